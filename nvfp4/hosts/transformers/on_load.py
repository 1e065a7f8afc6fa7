"""NVFP4Config and its quantizer: from_pretrained reads a dense checkpoint and quantizes each linear layer as it comes.

transformers loads one tensor after another, on the device of the device_map and in the model's dtype, and gives the
weight of a linear layer to `_Quantize`. That puts an nvfp4.Linear in the layer's place, and nothing holds the dense
weight any more. What cannot be quantized there is dense until all is loaded: a weight that is tied, has a dtype of its
own, comes before its bias, or is one of several that transformers splits from one tensor. A module of experts is
quantized when it has all its parameters. At the end the model is as after quantize_model, with the same report and the
same quantizer for save_pretrained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.hosts.loading import (
    all_names,
    check_device_map,
    check_dtype,
    check_options,
    check_unknown,
    ignored,
    nothing_becomes_nvfp4,
)
from nvfp4.hosts.transformers.library import ConversionOps, HfQuantizer, QuantizationConfigMixin
from nvfp4.hosts.transformers.registry import register
from nvfp4.layers.checks import prefix_errors
from nvfp4.layers.dense import find_dense, not_linear
from nvfp4.layers.experts.mixture import Description
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.stack import Stack
from nvfp4.layers.gptq import exact_mode
from nvfp4.layers.hosts import layers_replaced
from nvfp4.layers.invariance import set_batch_invariant
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import BLOCK
from nvfp4.layers.traversal import places_of, put
from nvfp4.quantizing.experts import check_finite, quantize_experts
from nvfp4.quantizing.linears import quantize_layer
from nvfp4.quantizing.quantize_model import check_weight
from nvfp4.quantizing.report import QuantizedLayer, QuantizeReport
from nvfp4.quantizing.selection import check_ignore, find_linears, find_mixtures, towers_of
from nvfp4.quantizing.weights import searched, shared_scale, siblings_of, weight_of

METHOD = "nvfp4-on-load"  # in transformers' registry, in which "nvfp4" is taken


class NVFP4Config(QuantizationConfigMixin):
    """Quantizes a dense checkpoint while from_pretrained loads it: `quantization_config=NVFP4Config()`.

    The model is the same as after quantize_model, but is never dense as a whole: a layer's weight is released before
    the next one is read, and so are the weights of a module of experts. `model.hf_quantizer.report` is the
    QuantizeReport. `save_pretrained` and `push_to_hub` write an NVFP4 checkpoint, as after quantize_model.

    Args:
        activations (str, optional): "nvfp4" (W4A4, with input scales that each call computes) or None (W4A16), see
            nvfp4.Linear. Default: "nvfp4".
        block_scale (str, optional): how nvfp4.quantize chooses the scales of inputs, and of weights with
            weights="round", "amax6" or "four_over_six". Default: "amax6".
        ignore (sequence of str or str, optional): names or patterns of layers to leave as they are, or a preset, see
            quantize_model. Default: ("lm_head",).
        modules_to_not_convert (sequence of str, optional): another name of `ignore`, as transformers' configurations
            call it. Default: None.
        batch_invariant (bool, optional): makes the bits of a sequence independent of its batch in all NVFP4 layers, see
            nvfp4.set_batch_invariant. It needs activations=None. Default: False.
        weights (str, optional): "round" or "search", see quantize_model. Default: "round".
            With "search" layers that share a global scale are dense until the last of them comes.

    transformers has a class of this name too, which needs a Blackwell GPU and kernels from the Hub. It does not clash
    with this one.

    Raises:
        nvfp4.Error: an argument breaks a rule. from_pretrained raises it if no layer can become NVFP4, if a weight has
            a value that is NaN or infinite, or if the device_map has "disk".

    Examples:
        >>> import nvfp4.transformers
        >>> from transformers import AutoModelForCausalLM
        >>> config = nvfp4.transformers.NVFP4Config(activations=None)
        >>> model = AutoModelForCausalLM.from_pretrained("Llama", quantization_config=config)  # doctest: +SKIP
    """

    def __init__(
        self,
        activations: str | None = "nvfp4",
        block_scale: str = "amax6",
        ignore: Sequence[str] | str = ("lm_head",),
        modules_to_not_convert: Sequence[str] | str | None = None,
        batch_invariant: bool = False,
        weights: str = "round",
        **unknown: Any,
    ) -> None:
        self.quant_method = unknown.pop("quant_method", METHOD)
        check_unknown(unknown)
        if self.quant_method != METHOD:
            raise _C.Error(f"quant_method: is {self.quant_method!r}; must be {METHOD!r}")
        check_options(activations, block_scale, batch_invariant, weights)
        ignore = ignored(ignore, modules_to_not_convert, ignore in (("lm_head",), ["lm_head"]))
        check_ignore(ignore)
        self.activations = activations
        self.block_scale = block_scale
        self.ignore = ignore if isinstance(ignore, str) else list(ignore)
        self.batch_invariant = batch_invariant
        self.weights = weights


class NVFP4Quantizer(HfQuantizer):
    """Quantizes while transformers loads a dense checkpoint. At the end, the quantizer for save_pretrained takes its
    place in the model."""

    quantization_config: NVFP4Config

    def __init__(self, quantization_config: NVFP4Config, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        if self.pre_quantized:
            raise _C.Error(f"quant_method: is {METHOD!r} in config.json; must be given to from_pretrained alone")
        self.dtype: torch.dtype | None = None
        self.linears: dict[str, Any] = {}  # dense layers that will be NVFP4: torch.nn.Linear and GPT-2's Conv1D
        self.mixtures: dict[str, Description] = {}  # dense modules of experts that will be NVFP4
        self.siblings: dict[str, tuple[str, ...]] = {}  # of `linears`, those that share a global scale
        self.names: dict[str, str] = {}  # all names of these, each with the one in `linears`
        self.places: dict[str, list[tuple[torch.nn.Module, str]]] = {}
        self.tied: set[str] = set()  # names of tied weights
        self.skipped: dict[str, str] = {}
        self.rows: dict[str, QuantizedLayer] = {}
        self.error: _C.Error | None = None

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        self.dtype = check_dtype("dtype", dtype)
        return dtype

    def validate_environment(self, device_map: Any = None, **kwargs: Any) -> None:
        """Called with the device_map as it is given, and as transformers makes it of "auto"."""
        check_device_map(device_map)

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        if getattr(model.config, "distributed_config", None) is not None:
            raise _C.Error("distributed_config: is given; NVFP4 layers cannot be distributed yet")
        self.linears, self.skipped = find_linears(model, self.quantization_config.ignore)
        self.mixtures = find_mixtures(model, self.quantization_config.ignore, self.skipped)
        if not self.linears and not self.mixtures:
            raise nothing_becomes_nvfp4(model, self.skipped)
        self.places = places_of(model, self.linears)
        if self.quantization_config.weights == "search":
            self.siblings = siblings_of(model, self.linears)
        self.names = all_names(model, self.linears)
        self.tied = {*model.all_tied_weights_keys.keys(), *model.all_tied_weights_keys.values()}

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        name, _, local = param_name.rpartition(".")
        if name in self.mixtures:
            return bool(model.get_parameter(param_name).dtype == self.dtype)
        if local != "weight" or name not in self.names or param_name in self.tied:
            return False
        linear = self.linears.get(self.names[name])
        return linear is None or linear.weight.dtype == self.dtype  # else transformers casts it as the dense layer's

    def param_element_size(self, model: Any, param_name: str, param: Tensor) -> float:
        if param.ndim > 1 and self.param_needs_quantization(model, param_name):
            return 1 / 2 + 1 / BLOCK
        return float(param.element_size())

    def get_quantize_ops(self) -> ConversionOps:
        return _Quantize(self)

    def take(self, model: Any, key: str, weight: Tensor) -> Tensor | None:
        """Quantizes the weight of a layer, or the last parameter of a module of experts with the others. Returns what
        transformers must load in its place, if anything."""
        module, _, local = key.rpartition(".")
        if module in self.mixtures:
            return self.take_of_experts(model, module, local, weight)
        name = self.names.get(module, "")
        if local != "weight" or not name:
            return weight
        linear = self.linears.get(name)
        if linear is None:
            return None  # another name of a layer that is quantized
        if key in self.tied or linear.weight.dtype != weight.dtype or (linear.bias is not None and linear.bias.is_meta):
            return weight
        if self.error is None:
            try:
                self.quantize(name, weight)
                return None
            except _C.Error as error:  # transformers would catch it and raise another one
                self.error = error
        return weight.new_zeros(()).expand(weight.shape)

    def take_of_experts(self, model: Any, name: str, key: str, t: Tensor) -> Tensor | None:
        old = model.get_submodule(name)
        if old._parameters[key].dtype != t.dtype:
            return t
        if self.error is None:
            try:
                check_shape(f"{name}.{key}", t, old._parameters[key])
                old._parameters[key] = torch.nn.Parameter(t, requires_grad=False)
                old._parameters[key]._is_hf_initialized = True  # else transformers would draw random values
                if not any(own.is_meta for own in old.parameters()):
                    self.replace_experts(model, name)
                return None
            except _C.Error as error:
                self.error = error
        return t.new_zeros(()).expand(t.shape)

    def quantize(self, name: str, weight: Tensor) -> None:
        linear = self.linears[name]
        with prefix_errors(name):
            check_shape("weight", weight, linear.weight)
        linear.weight = torch.nn.Parameter(weight, requires_grad=False)
        names = self.siblings.get(name, (name,))
        if not any(self.linears[own].weight.is_meta for own in names):
            self.replace(names)

    def replace(self, names: tuple[str, ...]) -> None:
        """Quantizes layers that share a global scale, which is one layer but with weights="search"."""
        made = {}
        for name in names:
            with prefix_errors(name):
                made[name] = self.layer(name)
        for name, (layer, row) in made.items():
            for owner in (layer, *layer.buffers()):
                owner._is_hf_initialized = True  # else transformers would draw random values
            self.rows[name] = row
            put(self.places[name], layer)
            del self.linears[name]

    def layer(self, name: str) -> tuple[Linear, QuantizedLayer]:
        linear, config = self.linears[name], self.quantization_config
        given = (name, linear, config.activations, None, config.block_scale)
        if config.weights == "round":
            return quantize_layer(*given)
        check_weight(linear, config.weights)
        names = self.siblings.get(name, (name,))
        with exact_mode(linear.weight.device), prefix_errors(name):
            scale = shared_scale((weight_of(self.linears, each) for each in names), "search")
        with prefix_errors(name):
            return searched(weight_of(self.linears, name), scale).layer(*given)

    def replace_experts(self, model: Any, name: str) -> None:
        about = self.mixtures.pop(name)
        check_finite(name, model.get_submodule(name))
        with torch.no_grad():
            config = self.quantization_config
            rule = config.block_scale if config.weights == "round" else config.weights
            self.rows[name] = quantize_experts(model, name, about, rule, config.activations)
        new = model.get_submodule(name)
        for owner in (*new.modules(), *new.buffers()):
            owner._is_hf_initialized = True  # as of layers

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if self.error is not None:
            raise self.error
        for name, linear in self.linears.items():
            if linear.weight.is_meta:
                raise _C.Error(f"{name}.weight: is offloaded; must be on a device to be quantized, or in `ignore`")
        with torch.no_grad():
            while self.linears:
                name = next(iter(self.linears))
                self.replace(self.siblings.get(name, (name,)))
        for name in [*self.mixtures]:
            for key, t in model.get_submodule(name)._parameters.items():
                if t.is_meta:
                    raise _C.Error(f"{name}.{key}: is offloaded; must be on a device to be quantized, or in `ignore`")
            self.replace_experts(model, name)
        layers = [module for module in model.modules() if isinstance(module, (Linear, Stack))]
        for layer in layers:
            if isinstance(layer, Linear):
                layer.update_alpha()  # transformers overwrites buffers that are not in the state dict
        now = sum(t.nbytes for layer in layers for t in layer.buffers())
        dense, others = find_dense(model, layers, sum(row.bytes_before for row in self.rows.values()) - now)
        found = [(name, isinstance(module, Experts)) for name, module in model.named_modules() if name in self.rows]
        rows = [self.rows[name] for name, _ in sorted(found, key=lambda entry: entry[1])]  # experts last
        if self.quantization_config.batch_invariant:
            set_batch_invariant(model)
        report = QuantizeReport(rows, self.skipped | not_linear(model, dense), dense, others)
        report.weights, report.towers = self.quantization_config.weights, towers_of(row.name for row in rows)
        model.hf_quantizer = None
        del model.config.quantization_config
        layers_replaced(model)
        model.quantization_method = model.hf_quantizer.quantization_config.quant_method
        model.hf_quantizer.report = report
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True


def check_shape(name: str, t: Tensor, own: Tensor) -> None:
    if t.shape != own.shape:
        raise _C.Error(f"{name}: shape is {list(t.shape)}; must be {list(own.shape)} for the model")


class _Quantize(ConversionOps):
    """Quantizes the weights of one layer, or the several that transformers made of one tensor, as they come."""

    def __init__(self, quantizer: NVFP4Quantizer) -> None:
        self.quantizer = quantizer

    def convert(self, input_dict: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        result = {}
        while input_dict:
            key, value = input_dict.popitem()
            rest = self.quantizer.take(kwargs["model"], key, value[0] if isinstance(value, list) else value)
            if rest is None:
                kwargs["missing_keys"].discard(key)
            else:
                result[key] = rest
        return result


register(METHOD, NVFP4Config, NVFP4Quantizer)
