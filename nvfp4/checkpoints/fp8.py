"""FP8 layers beside NVFP4 ones, in the formats of ModelOpt, compressed-tensors and DeepSeek (quant_method "fp8").

    weight                     [N, K] float8_e4m3fn
    weight_scale               a multiplier: [] or [1], [N] or [N, 1], or one for each block of 128 x 128 values:
                               [ceil(N/128), ceil(K/128)], of ModelOpt [ceil(N/128), 1, ceil(K/128), 1].
                               DeepSeek: weight_scale_inv or scale
                               MXFP8: e8m0 [N, K/32], bytes or float8_e8m0fnu, of which s stands for 2^(s - 127)
    input_scale                [] or [1], a multiplier; layers with static activations alone
    bias                       [N]

ModelOpt's scales are float32, those of compressed-tensors have the dtype of the model. Sources: torch/export/ and
torch/quantization/qtensor/mxfp8_tensor.py in ModelOpt 0.47, compressors/naive_quantized/ and compressors/mxfp8/ in
compressed-tensors 0.20.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints.options import check_off
from nvfp4.layers.buffers import loaded, remove_stand_ins, stand_in
from nvfp4.layers.checks import prefix_errors, short
from nvfp4.layers.fp8 import BLOCK, FP8, GROUP, Fp8Linear, Fp8Tensors, StoredScales, blocks_of, shapes_of

NAME = "FP8"
# How a layer is computed, by the words of a configuration.
STATIC, DYNAMIC, TOKEN = "FP8 W8A8", "FP8 W8A8 dynamic", "FP8 W8A8 per token"
BLOCKS, W8A16 = "FP8 W8A8 per block", "FP8 W8A16"
MXFP8, MXFP8_INPUTS = "MXFP8 W8A16", "MXFP8"  # the configuration quantizes inputs in the second; both run as W8A16
ACTIVATIONS = {STATIC: "tensor", DYNAMIC: "tensor", TOKEN: "token", BLOCKS: "block", W8A16: None}
ACTIVATIONS |= {MXFP8: None, MXFP8_INPUTS: None}

SCALE_NAMES = ("weight_scale", "weight_scale_inv", "scale")
INPUT_SCALE = "input_scale"
KNOWN = ("weight", *SCALE_NAMES, INPUT_SCALE, "bias")
E8M0 = torch.float8_e8m0fnu
SCALE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, E8M0)  # all are exact in float32

MODELOPT = "modelopt"
# ModelOpt's names, which it writes in either case.
ALGORITHMS = {"FP8": STATIC, "FP8_PER_CHANNEL_PER_TOKEN": TOKEN, "FP8_PB_WO": W8A16, "FP8_PB_REAL": W8A16}
ALGORITHMS |= {"MXFP8": MXFP8_INPUTS}
# Modes and scales that its algorithms can store, with the scales that they store: "tensor" can be expanded to any.
STORABLE = {
    (STATIC, "tensor"): "tensor",
    (STATIC, "channel"): "channel",
    (TOKEN, "tensor"): "channel",
    (TOKEN, "channel"): "channel",
    (W8A16, "tensor"): "block",
    (W8A16, "block"): "block",
    (MXFP8_INPUTS, "group"): "group",
}


@dataclass(frozen=True)
class Fp8Mode:
    """The mode of an FP8 layer and which part of its weight shares a scale: one group of a configuration."""

    mode: str
    scales: str

    def __str__(self) -> str:
        return self.mode


def mode_of(tensors: Fp8Tensors) -> Fp8Mode:
    modes = {"tensor": DYNAMIC, "token": TOKEN, "block": BLOCKS, None: MXFP8 if tensors.scales == "group" else W8A16}
    own = STATIC if tensors.input_scale is not None else modes[tensors.activations]
    stated = None if tensors.stored is None else tensors.stored.mode
    return Fp8Mode(stated or own, tensors.scales)


# ---- a layer's tensors ----


def is_layer(own: Mapping[str, Tensor]) -> bool:
    """Whether a module's tensors are an FP8 layer's, whole or not."""
    weight = own.get("weight")
    return weight is not None and weight.dtype == FP8 and weight.ndim == 2


def chosen(own: Mapping[str, Tensor], modes: Iterable[str | None]) -> str | None:
    """The first of these modes that an FP8 layer may have, if the tensors are one's; None otherwise."""
    return next((mode for mode in modes if mode in ACTIVATIONS), None) if is_layer(own) else None


def read(tensors: Mapping[str, Tensor], format: str, mode: str, weights_only: bool = False) -> Fp8Tensors:
    """A layer's tensors as ours. The scales become float32, exactly.

    Args:
        tensors: by the names above.
        format: "compressed-tensors" or "modelopt".
        mode: a key of ACTIVATIONS.
        weights_only: whether to leave the input as it is, whatever the mode.

    Raises:
        nvfp4.Error: a tensor is missing, unknown, or of another shape or dtype, or a scale is not positive and finite.
    """
    for name in tensors:
        if name not in KNOWN:
            raise _C.Error(f"{name}: is no tensor of an FP8 layer: {', '.join(KNOWN)}")
    given = [name for name in SCALE_NAMES if name in tensors]
    if len(given) != 1:
        found = f"are both there: {', '.join(given)}" if given else "is missing"
        raise _C.Error(f"weight_scale: {found}; an FP8 layer has one of {', '.join(SCALE_NAMES)}")
    if not weights_only and (mode == STATIC) != (INPUT_SCALE in tensors):
        found = "is there, but" if INPUT_SCALE in tensors else "is missing;"
        raise _C.Error(f"{INPUT_SCALE}: {found} the configuration says {mode}")
    weight, name = tensors["weight"], given[0]
    groups = mode in (MXFP8, MXFP8_INPUTS)
    scales = {"weight_scale": (group_scale if groups else weight_scale)(name, tensors[name], *weight.shape)}
    stored = {"weight_scale": (name, tuple(tensors[name].shape), tensors[name].dtype)}
    if mode == STATIC and not weights_only:
        t = tensors[INPUT_SCALE]
        scales[INPUT_SCALE] = as_float(INPUT_SCALE, t).reshape(one(INPUT_SCALE, t))
        stored[INPUT_SCALE] = (INPUT_SCALE, tuple(t.shape), t.dtype)
    return Fp8Tensors(
        weight,
        scales["weight_scale"],
        scales.get(INPUT_SCALE),
        tensors.get("bias"),
        None if weights_only else ACTIVATIONS[mode],
        StoredScales(format, stored, MXFP8_INPUTS if mode == MXFP8_INPUTS and not weights_only else None),
    )


def group_scale(name: str, t: Tensor, n: int, k: int) -> Tensor:
    """The powers of two of MXFP8 as float32."""
    shape = shapes_of(n, k)["group"]
    if t.dtype not in (torch.uint8, E8M0) or t.shape != shape:
        raise _C.Error(
            f"{name}: is {short(t.dtype)} {list(t.shape)}; must be uint8 or {short(E8M0)} {list(shape)}, for each "
            f"{GROUP} values of a weight of {n} x {k}"
        )
    return t.view(E8M0).float()


def weight_scale(name: str, t: Tensor, n: int, k: int) -> Tensor:
    a, b = blocks_of(n, k)
    shapes = {(): (), (1,): (), (1, 1): (), (n,): (n,), (n, 1): (n,), (a, b): (a, b), (a, 1, b, 1): (a, b)}
    shape = shapes.get(tuple(t.shape))
    if shape is None:
        wanted = f"[], [1], [{n}], [{n}, 1], [{a}, {b}] or [{a}, 1, {b}, 1]"
        raise _C.Error(f"{name}: shape is {list(t.shape)}; must be {wanted} for a weight of {n} x {k}")
    return as_float(name, t).reshape(shape)


def one(name: str, t: Tensor) -> tuple[()]:
    if t.numel() != 1:
        raise _C.Error(f"{name}: shape is {list(t.shape)}; must have 1 element")
    return ()


def as_float(name: str, t: Tensor) -> Tensor:
    if t.dtype not in SCALE_DTYPES:
        raise _C.Error(f"{name}: dtype is {short(t.dtype)}; must be {', '.join(map(short, SCALE_DTYPES))}")
    return t.float()


def as_dtype(t: Tensor, dtype: torch.dtype) -> Tensor:
    """A float32 scale in a dtype; in bytes as e8m0. `as_float` and `group_scale` undo it."""
    return t.to(E8M0).view(torch.uint8) if dtype == torch.uint8 else t.to(dtype)


def warn_of_inputs(layers: Mapping[str, Fp8Tensors]) -> None:
    """Warns, once for all layers, where the configuration quantizes inputs and nvfp4 does not."""
    names = [name for name, own in layers.items() if own.stored is not None and own.stored.mode == MXFP8_INPUTS]
    if names:
        count = f"{len(names)} layers are" if len(names) > 1 else "1 layer is"
        text = f"{count} MXFP8 with MXFP8 inputs by the configuration ({names[0]}); W8A16 runs, with 16-bit inputs"
        warnings.warn(text, stacklevel=4)  # past load and file_errors


def write(tensors: Fp8Tensors, format: str) -> dict[str, Tensor]:
    """Our tensors as a format's: scales as they were read, if they were read from it.

    Raises:
        nvfp4.Error: ModelOpt has no algorithm with these scales, or one of a group is no power of two.
    """
    mode, scale = mode_of(tensors), tensors.weight_scale
    n, k = tensors.out_features, tensors.in_features
    a, b = blocks_of(n, k)
    given: dict[str, Tensor | None] = {"weight_scale": scale, INPUT_SCALE: tensors.input_scale}
    if format == MODELOPT:
        kind = STORABLE.get((mode.mode, mode.scales))
        if kind is None:
            raise _C.Error(
                f"weight_scale: is one for each {mode.scales} of a layer in the mode {mode}, which {format} cannot "
                "store: write compressed-tensors"
            )
        shapes = {**shapes_of(n, k), "block": (a, 1, b, 1)}
        default = {"weight_scale": shapes[kind], INPUT_SCALE: ()}
    else:
        shapes = {**shapes_of(n, k), "tensor": (1,), "channel": (n, 1)}
        default = {"weight_scale": shapes[mode.scales], INPUT_SCALE: (1,)}
    result = {"weight": tensors.weight}
    for name, t in given.items():
        if t is not None:
            new = powers(t) if name == "weight_scale" and mode.scales == "group" else shaped(t, default[name])
            result |= as_stored(name, t, tensors.stored, format) or {name: new}
    return result if tensors.bias is None else result | {"bias": tensors.bias}


def powers(scale: Tensor) -> Tensor:
    """The scales of groups as bytes."""
    stored = as_dtype(scale, torch.uint8)
    wrong = stored.view(E8M0).float() != scale
    if not scale.is_meta and bool(wrong.any()):
        raise _C.Error(f"weight_scale: is {float(scale[wrong][0]):g} of a group; must be a power of two")
    return stored


def shaped(scale: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A scale in another shape; one of the whole weight for each part of it."""
    return scale.reshape(shape) if scale.ndim else scale.expand(shape).contiguous()


def as_stored(name: str, t: Tensor, stored: StoredScales | None, format: str) -> dict[str, Tensor]:
    """A scale as it was read; nothing if it was not read from this format, or has other values now."""
    if stored is None or stored.format != format or name not in stored.scales:
        return {}
    local, shape, dtype = stored.scales[name]
    if math.prod(shape) != t.numel():
        return {}
    old = as_dtype(t, dtype)
    same = t.is_meta or torch.equal((old.view(E8M0) if dtype == torch.uint8 else old).float(), t)
    return {local: old.reshape(shape)} if same else {}


# ---- configurations ----


def by_modelopt(algorithm: str) -> str:
    """A layer's mode by its quant_algo; another one as it is."""
    return ALGORITHMS.get(algorithm.upper(), algorithm)


def check_modelopt(where: str, given: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Rejects options of an FP8 layer of ModelOpt that change what it computes. Returns those that mean nothing: a
    group_size, unless each block or group of the weight has a scale."""
    group, wanted = given.get("group_size"), {W8A16: BLOCK, MXFP8_INPUTS: GROUP}
    if mode in wanted and group not in (None, 0, wanted[mode]):
        raise _C.Error(f"{where}group_size: is {shown(group)}; must be {wanted[mode]}")
    for key, what in (
        ("has_zero_point", "a zero point"),
        ("pre_quant_scale", "a scale of the inputs before FP8"),
        ("lora_rank", "a product of low rank beside the layer"),
    ):
        check_off(where, given, (key,), what)
    return {f"{where}group_size": group} if group and mode not in wanted else {}


def by_deepseek(config: Mapping[str, Any]) -> str:
    """The mode of FP8 layers by a configuration with quant_method "fp8"; another way to quantize in words."""
    scheme, blocks = config.get("activation_scheme") or "dynamic", config.get("weight_block_size")
    fmt = config.get("fmt") or "e4m3"
    if fmt not in ("e4m3", "float8_e4m3fn") or scheme not in ("dynamic", "static"):
        return f"{fmt} with {scheme} activations"
    if blocks == [1, GROUP] and scheme == "dynamic":
        return MXFP8_INPUTS
    if blocks not in (None, [BLOCK, BLOCK]):
        return f"FP8 in blocks of {shown(blocks)}"
    if scheme == "static":
        return STATIC
    return DYNAMIC if blocks is None else BLOCKS


def by_group(where: str, weights: Mapping[str, Any], inputs: Mapping[str, Any], group: Mapping[str, Any]) -> str | None:
    """The mode of a group of compressed-tensors with 8-bit floats; None for another way to quantize.

    Raises:
        nvfp4.Error: an option changes what an FP8 layer computes.
    """
    if not is_e4m3(weights) or (inputs and not is_e4m3(inputs)):
        return None
    groups = is_mxfp8(weights)
    strategy = weights.get("strategy") or "tensor"
    blocks = weights.get("block_structure")
    if not groups and (
        strategy not in ("tensor", "channel", "block") or (strategy == "block" and blocks != [BLOCK, BLOCK])
    ):
        return None
    mode = MXFP8 if groups else W8A16
    if inputs and groups:
        if not is_mxfp8(inputs):
            return None
        mode = MXFP8_INPUTS
    elif inputs:
        dynamic = inputs.get("dynamic") or False
        mode = INPUTS.get((dynamic, inputs.get("strategy") or "tensor"), "")
        if strategy == "channel" and not dynamic and "strategy" not in inputs:
            mode = TOKEN  # ModelOpt's FP8_PER_CHANNEL_PER_TOKEN, which says no more
        if not mode or (mode == BLOCKS and inputs.get("group_size") != BLOCK):
            return None
    if weights.get("dynamic") or group.get("output_activations"):
        key = "weights.dynamic" if weights.get("dynamic") else "output_activations"
        raise _C.Error(f"{where}{key}: is set, which nvfp4 does not do for FP8 layers; must be false or null")
    if group.get("format") not in (None, *FORMATS):
        raise _C.Error(f"{where}format: is {shown(group['format'])}; must be {' or '.join(map(repr, FORMATS))}")
    return mode


INPUTS = {(False, "tensor"): STATIC, (True, "tensor"): DYNAMIC, (True, "token"): TOKEN, (True, "group"): BLOCKS}
MXFP8_FORMAT = "mxfp8-quantized"
FORMATS = ("float-quantized", "naive-quantized", MXFP8_FORMAT)  # of compressed-tensors; the first two are the same


def is_e4m3(numbers: Mapping[str, Any]) -> bool:
    right = numbers.get("num_bits") == 8 and numbers.get("type") == "float"
    return right and numbers.get("symmetric") is not False and numbers.get("actorder") is None


def is_mxfp8(numbers: Mapping[str, Any]) -> bool:
    """Whether 8-bit floats have a power of two for each 32 of them. ModelOpt says neither strategy nor scale_dtype."""
    words = numbers.get("strategy"), numbers.get("scale_dtype")
    return numbers.get("group_size") == GROUP and words in ((None, None), ("group", "torch.uint8"))


def group(mode: Fp8Mode) -> dict[str, Any]:
    """A group of compressed-tensors' configuration, without targets."""
    eight = {"num_bits": 8, "symmetric": True, "type": "float"}
    if mode.mode in (MXFP8, MXFP8_INPUTS):
        eight |= {"strategy": "group", "group_size": GROUP, "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
        return {
            "format": MXFP8_FORMAT,
            "input_activations": {**eight, "dynamic": True} if mode.mode == MXFP8_INPUTS else None,
            "output_activations": None,
            "weights": {**eight, "dynamic": False},
        }
    weights = {**eight, "dynamic": False, "strategy": mode.scales}
    if mode.scales == "block":
        weights["block_structure"] = [BLOCK, BLOCK]
    inputs = None
    for (dynamic, strategy), name in INPUTS.items():
        if name == mode.mode:
            inputs = {**eight, "dynamic": dynamic, "strategy": strategy}
    if inputs is not None and mode.mode == BLOCKS:
        inputs["group_size"] = BLOCK
    return {
        "format": FORMATS[0],
        "input_activations": inputs,
        "output_activations": None,
        "weights": weights,
    }


def modelopt_group(mode: Fp8Mode) -> dict[str, Any]:
    """A group of ModelOpt's configuration, without targets."""
    eight: dict[str, Any] = {"dynamic": False, "num_bits": 8, "type": "float"}
    if mode.mode == MXFP8_INPUTS:
        eight["group_size"] = GROUP
    weights = {**eight, "strategy": "channel"} if mode.mode == TOKEN else dict(eight)
    return ({} if mode.mode == W8A16 else {"input_activations": dict(eight)}) | {"weights": weights}


def modelopt_options(mode: Fp8Mode) -> dict[str, Any]:
    """A layer's entry in ModelOpt's quantized_layers."""
    options = {"quant_algo": next(algorithm for algorithm, own in ALGORITHMS.items() if own == mode.mode)}
    return options | ({"group_size": GROUP} if mode.mode == MXFP8_INPUTS else {})


# ---- modules ----


class StoredFp8(Fp8Linear):
    """A layer with its checkpoint's tensors as buffers of their names, on the meta device until transformers loads
    them. `finish` turns it into an Fp8Linear in place."""

    def __init__(self, tensors: Fp8Tensors, format: str, old: torch.nn.Linear) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = tensors.in_features, tensors.out_features
        self.activations, self.stored = tensors.activations, tensors.stored
        self.format, self.mode = format, mode_of(tensors).mode
        assert tensors.stored is not None
        buffers = {"weight": (tuple(tensors.weight.shape), FP8)}
        buffers |= {local: (shape, dtype) for local, shape, dtype in tensors.stored.scales.values()}
        if tensors.bias is not None:
            buffers["bias"] = (tuple(tensors.bias.shape), old.bias.dtype)
        for key, (shape, dtype) in buffers.items():
            self.register_buffer(key, torch.empty(shape, dtype=dtype, device="meta"))
        stand_in(self)

    def finish(self, name: str) -> None:
        own = loaded(self, name)
        own["weight"] = own["weight"].to(FP8)  # a model may keep modules in fp32, which holds e4m3 exactly
        with prefix_errors(name):
            layer = Fp8Linear.from_packed(read(own, self.format, self.mode))
        del self.format, self.mode
        remove_stand_ins(self)
        self._buffers, self._non_persistent_buffers_set = layer._buffers, layer._non_persistent_buffers_set
        self.__class__ = Fp8Linear  # in place: hooks that accelerate adds stay where they are

    def reset_parameters(self) -> None:
        """Does nothing: a class may call it for layers that it takes for new ones."""

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"

    _apply = torch.nn.Module._apply
