"""nvfp4.dequantize_model replaces the NVFP4 layers of a model by torch.nn.Linear, in place, and reports on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.layers.checks import check_dense_dtype, check_type
from nvfp4.layers.dense import find_dense
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.fp8 import Fp8Linear
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.linear import Linear
from nvfp4.layers.traversal import find_layers, keep_hooks, places_of, put
from nvfp4.quantizing.report import QuantizedLayer, QuantizeReport

ERROR_ROWS = 1024  # rows of a weight that are fp64 at a time; a multiple of the scale tile's 128


def dequantize_model(model: torch.nn.Module, dtype: torch.dtype | None = None) -> QuantizeReport:
    """Replaces each nvfp4.Linear of a model by a dense torch.nn.Linear, in place.

    The layers are replaced one by one, so that no more than one of them exists twice. Those that
    `quantize_model(fuse=True)` joined become separate layers again.

    Args:
        model (torch.nn.Module): any module with one or more nvfp4.Linear below it.
        dtype (torch.dtype, optional): the dtype of the new weights and biases: float16, bfloat16 or float32.
            Default: the `dtype` of each layer, which is that of the dense weight before it was quantized, or, of a
            loaded layer, that of the model's weight.

    Returns:
        A QuantizeReport. `error` of a layer is the relative error of the new weight against the product
        value * scale * weight_global_scale. It is 0 where the new weight is exact.

    Weights and biases are parameters that require a gradient, as those of a new torch.nn.Linear do. Hooks of the
    replaced layers are kept. A model of transformers is no quantized model afterwards: `save_pretrained` writes a dense
    checkpoint.

    Raises:
        nvfp4.Error: an argument breaks a rule, the model has no NVFP4 layer or has an FP8 layer or nvfp4.Experts, or a
            layer is split among ranks. The model is unchanged.

    Examples:
        >>> import nvfp4, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
        >>> report = nvfp4.quantize_model(model)
        >>> nvfp4.dequantize_model(model).bytes_after == report.bytes_before
        True
        >>> model[0]
        Linear(in_features=64, out_features=128, bias=True)
    """
    check_type("model", model, torch.nn.Module, "a torch.nn.Module")
    if dtype is not None:
        check_dense_dtype(dtype)
    layers = find_layers(model)
    if not layers:
        raise _C.Error("model: has no nvfp4.Linear; must have 1 or more")
    for name, module in model.named_modules():
        if isinstance(module, (Fp8Linear, Experts)):
            raise _C.Error(f"{name}: is an {type(module).__name__}, which dequantize_model cannot make dense")
    if "" in layers:
        raise _C.Error("model: is the layer itself; use its to_linear")
    for name, layer in layers.items():
        if type(whole(layer)) is not Linear:
            raise _C.Error(f"{name}: is a {type(whole(layer)).__name__}; must be an nvfp4.Linear that is not split")
    joined = {id(layer): layer for layer in map(whole, layers.values())}
    _, other_bytes = find_dense(model, joined.values())
    del joined
    first = {id(layer): name for name, layer in reversed(layers.items())}
    layers = {name: layer for name, layer in layers.items() if first[id(layer)] == name}
    report, places = QuantizeReport(other_bytes=other_bytes), places_of(model, layers)
    for name in [*layers]:
        old = layers.pop(name)
        layer = old if isinstance(old, Linear) else Linear.from_packed(old.packed(), dtype=whole(old).dtype)
        linear = layer.to_linear(dtype)
        report.layers.append(
            QuantizedLayer(
                name,
                (layer.out_features, layer.in_features),
                rounding_error(linear.weight.detach(), layer),
                sum(t.nbytes for t in layer.buffers()),
                sum(t.nbytes for t in linear.parameters()),
                None if layer.input_global_scale is None else float(layer.input_global_scale),
            )
        )
        keep_hooks(old, linear)
        put(places[name], linear.train(old.training))
        del old, layer, linear  # or this layer would stay while the next one is made
    forget_quantizer(model)
    return report


def whole(layer: Linear | FusedPart) -> Linear:
    return layer.joined() if isinstance(layer, FusedPart) else layer


def rounding_error(weight: Tensor, layer: Linear) -> float:
    """|weight - the layer's| / |the layer's| in fp64, by slices of rows."""
    if weight.is_meta:
        return 0.0
    lost = total = 0.0
    for row in range(0, len(weight), ERROR_ROWS):
        rows = slice(row, row + ERROR_ROWS)
        exact = _api.dequantize(layer.weight[rows], layer.weight_scale[rows]).double()  # value * scale fits in fp32
        scale = layer.weight_global_scale.double()
        exact = exact * (scale[rows, None] if scale.ndim else scale)
        if layer.pre_quant_scale is not None:
            exact = exact * layer.pre_quant_scale.double()
        lost += float((weight[rows].double() - exact).square().sum())
        total += float(exact.square().sum())
    return (lost / total) ** 0.5 if total else 0.0


def forget_quantizer(model: torch.nn.Module) -> None:
    """Takes the quantizer that nvfp4 gave it from each model of transformers, since its layers are dense now."""
    for own in model.modules():
        quantizer: Any = vars(own).get("hf_quantizer")  # getattr of a PeftModel gives that of the model inside
        if not type(quantizer).__module__.startswith("nvfp4."):
            continue
        if hasattr(quantizer, "remove_quantization_config"):
            quantizer.remove_quantization_config(own)
        else:
            del own.hf_quantizer
