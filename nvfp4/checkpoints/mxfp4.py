"""MXFP4 layers: e2m1 values, and a power of two for each 32 of a row. They are read as NVFP4 with equal values.

    blocks, scales               gpt-oss (quant_method "mxfp4"), for all experts: [E, N, K/32, 16] and [E, N, K/32]
    weight_packed, weight_scale  compressed-tensors, mxfp4-pack-quantized
    weight, weight_scale         ModelOpt
    weight, scale                DeepSeek-V4's experts, beside FP8 layers
    bias                         [N]

Values are bytes [N, K/2] with the even element in the low nibble. Scales are e8m0 [N, K/32], bytes or float8_e8m0fnu:
s stands for 2^(s - 127), and 0xFF for NaN.

NVFP4 has the scale twice, for blocks of 16, so a value takes 4.5 bits in place of 4.25. A scale 2^k becomes the global
scale 2^(k_max - 8) times the block scale 2^(k - k_max + 8), where k_max is the largest k of a block that is not all
zeros. e4m3 has the powers of two from -9 to 8, so this is exact where the k of such blocks span at most 17 octaves. In
a matrix of a larger span each row has a global scale of its own.

Sources: integrations/mxfp4.py in transformers 5.24, compressors/mxfp4/ in compressed-tensors 0.20,
torch/quantization/qtensor/mxfp4_tensor.py in ModelOpt 0.47; examples/hf_ptq/cast_mxfp4_to_nvfp4.py there has the same
rule for the scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints import kv_cache
from nvfp4.checkpoints.checkpoint import Checkpoint
from nvfp4.checkpoints.names import Names
from nvfp4.checkpoints.options import MXFP4 as KEYS
from nvfp4.checkpoints.options import unknown_keys
from nvfp4.checkpoints.patterns import Work
from nvfp4.checkpoints.recipe import MXFP4, Recipe, Verdict, strings
from nvfp4.checkpoints.stacks import MAX_EXPERTS
from nvfp4.checkpoints.tensors import check_names
from nvfp4.layers.checks import prefix_errors
from nvfp4.layers.packed import PackedLinear

NAME = "mxfp4"
GROUP = 32  # values that share a scale
SPAN = 17  # octaves between the largest and the smallest power of two in e4m3
NAN = 0xFF
PAIRS = (
    ("blocks", "scales"),
    ("weight_packed", "weight_scale"),
    ("weight", "weight_scale"),
    ("weight", "scale"),
)
INPUT_SCALE = "input_scale"  # which MXFP4 inputs do not have
INPUT_SCALES = (INPUT_SCALE, "input_global_scale")  # of FP8 inputs
VALUES = {torch.uint8, torch.int8, getattr(torch, "float4_e2m1fn_x2", torch.uint8)}
EXPONENTS = {torch.uint8, torch.float8_e8m0fnu}
# The codes of 2^-9 to 2^8 in e4m3, of which the first three are subnormal.
POWERS = torch.tensor([1, 2, 4, *(exponent << 3 for exponent in range(1, 16))], dtype=torch.uint8, device="cpu")
LOOKED_AT = 1024  # blocks that are looked at before all are


class Pair(NamedTuple):
    """The values and scales of a layer as bytes, [..., N, K/2] and [..., N, K/32], and the names that they have."""

    values: Tensor
    exponents: Tensor
    names: tuple[str, str]


# ---- a layer's tensors ----


def names_of(own: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """The names of an MXFP4 layer's values and scales. None: these are the tensors of another module."""
    if "weight_scale_2" in own or "weight_global_scale" in own:
        return None
    for values, scales in PAIRS:
        if values in own and scales in own and own[values].dtype in VALUES and own[scales].dtype in EXPONENTS:
            shape, width = own[values].shape, own[scales].shape[-1] if own[scales].ndim else 0
            if values == "blocks" or (len(shape) > 1 and own[scales].ndim > 1 and width == -(-shape[-1] * 2 // GROUP)):
                return values, scales
    return None


def pair(own: Mapping[str, Tensor]) -> Pair:
    """Checks the shapes of a layer's or a stack's values and scales, and returns both.

    Raises:
        nvfp4.Error: a tensor is unknown, or has another shape.
    """
    names = names_of(own)
    assert names is not None
    check_names(NAME, own, names, (*names, "bias"))
    values, scales = (own[name] for name in names)
    if names[0] == "blocks":
        if values.ndim < 3 or values.shape[-1] != GROUP // 2:
            raise _C.Error(f"blocks: shape is {list(values.shape)}; must be [..., N, K/{GROUP}, {GROUP // 2}]")
        values = values.flatten(-2)
    if values.ndim not in (2, 3):
        row = f"K/{GROUP}, {GROUP // 2}" if names[0] == "blocks" else "K/2"
        raise _C.Error(f"{names[0]}: shape is {list(own[names[0]].shape)}; must be [N, {row}] or [E, N, {row}]")
    if values.shape[-1] * 2 % GROUP:
        raise _C.Error(f"{names[0]}: K is {values.shape[-1] * 2}; must be a multiple of {GROUP}")
    wanted = [*values.shape[:-1], values.shape[-1] * 2 // GROUP]
    if [*scales.shape] != wanted:
        raise _C.Error(f"{names[1]}: shape is {list(scales.shape)}; must be {wanted}")
    return Pair(values.view(torch.uint8), scales.view(torch.uint8), names)


def add(checkpoint: Checkpoint, module: str, own: Mapping[str, Tensor], activations: str | None) -> None:
    """Reads a layer, or a stack of experts [E, N, K/2], into the checkpoint."""
    with prefix_errors(module):
        stored = pair(own)
    if stored.values.ndim == 3:
        checkpoint.experts[module] = read_stack(module, own, activations)
    else:
        with prefix_errors(module):
            checkpoint.layers[module] = read(own, activations)
    checkpoint.mxfp4[module] = own


def read(own: Mapping[str, Tensor], activations: str | None = None) -> PackedLinear:
    """A layer's tensors as ours: the same bytes of values, and scales of equal values.

    Args:
        own: by the names above.
        activations: "nvfp4" (W4A4, with a dynamic input scale) or None (W4A16).

    Raises:
        nvfp4.Error: a tensor is unknown or has another shape, a scale is NaN, or a row spans more than 17 octaves.
    """
    stored = pair(own)
    if stored.values.ndim != 2:
        raise _C.Error(f"{stored.names[0]}: shape is {list(own[stored.names[0]].shape)}; must be that of one layer")
    scale, factor = scales_of(stored, extent(stored))
    return PackedLinear(stored.values, scale, factor, None, own.get("bias"), activations)


def read_stack(name: str, own: Mapping[str, Tensor], activations: str | None = None) -> list[PackedLinear]:
    """The layers of a stack [E, N, K/2]. They share a global scale where this is exact.

    Args:
        name: of the module, for error messages.

    Raises:
        nvfp4.Error: as `read`.
    """
    with prefix_errors(name):
        stack = pair(own)
    if len(stack.values) > MAX_EXPERTS or ("bias" in own and len(own["bias"]) != len(stack.values)):
        shapes = " and ".join(f"{key} {list(t.shape)}" for key, t in own.items())
        raise _C.Error(f"{name}: has {shapes}; must have one number of experts, at most {MAX_EXPERTS}")
    layers = [Pair(values, exponents, stack.names) for values, exponents in zip(stack.values, stack.exponents)]
    extents = []
    for i, layer in enumerate(layers):
        with prefix_errors(f"{name}[{i}]"):
            extents.append(extent(layer))
    known = [limits for limits in extents if limits is not None]
    shared = (min(low for low, _ in known), max(high for _, high in known)) if known else None
    if shared is not None and shared[1] - shared[0] > SPAN:
        shared = None
    result = []
    for i, (layer, limits) in enumerate(zip(layers, extents)):
        with prefix_errors(f"{name}[{i}]"):
            scale, factor = scales_of(layer, shared or limits)
            bias = own["bias"][i] if "bias" in own else None
            result.append(PackedLinear(layer.values, scale, factor, None, bias, activations))
    return result


# ---- scales ----


def extent(layer: Pair) -> tuple[int, int] | None:
    """The least and the largest stored exponent of blocks that are not all zeros; None: all are.

    Mostly some blocks of either exponent show that without reading all values.
    """
    exponents = layer.exponents
    if exponents.is_meta or not exponents.numel():
        return None
    limits = int(exponents.amin()), int(exponents.amax())
    if limits[1] == NAN:
        row, column = (exponents == NAN).nonzero()[0].tolist()
        raise _C.Error(f"{layer.names[1]}: is 0xFF (NaN) at row {row}, column {column}; must be 0 to 0xFE")
    blocks = layer.values.unflatten(-1, (-1, GROUP // 2))
    if all(bool((blocks[first_places(exponents == limit)] & 0x77).any()) for limit in {*limits}):
        return limits
    used = exponents[is_used(layer)]
    return (int(used.amin()), int(used.amax())) if used.numel() else None


def first_places(mask: Tensor) -> tuple[Tensor, ...]:
    rows, columns = mask.nonzero()[:LOOKED_AT].unbind(1)
    return rows, columns


def is_used(layer: Pair) -> Tensor:
    """Which blocks [N, K/32] are not all zeros."""
    return (layer.values.unflatten(-1, (-1, GROUP // 2)) & 0x77 != 0).any(-1)


def scales_of(layer: Pair, limits: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """weight_scale [N, K/16] and weight_global_scale, [] or [N], of a layer of this extent."""
    exponents = layer.exponents
    if exponents.is_meta:
        scale = torch.empty(exponents.shape[0], exponents.shape[1] * 2, dtype=torch.uint8, device="meta")
        return scale.view(torch.float8_e4m3fn), torch.empty((), dtype=torch.float32, device="meta")
    low, high = limits or (127, 127)
    top = exponents.new_tensor(high, dtype=torch.int32) if high - low <= SPAN else tops_of_rows(layer, high)
    steps = (exponents.int() - top.unsqueeze(-1) + 8).clamp(-9, 8)  # a block of zeros may have any exponent
    codes = POWERS.to(exponents.device)[steps + 9]
    return codes.repeat_interleave(2, -1).view(torch.float8_e4m3fn), power_of_two(top - 8)


def tops_of_rows(layer: Pair, high: int) -> Tensor:
    """The largest exponent of each row."""
    used, exponents = is_used(layer), layer.exponents.int()
    lows, highs = torch.where(used, exponents, NAN).amin(1), torch.where(used, exponents, 0).amax(1)
    spans = torch.where(used.any(1), highs - lows, 0)
    if bool((spans > SPAN).any()):
        row = int((spans > SPAN).nonzero()[0])
        raise _C.Error(
            f"{layer.names[1]}: row {row} has exponents from {int(lows[row]) - 127} to {int(highs[row]) - 127}, which "
            f"span {int(spans[row])} octaves; must span at most {SPAN}, those of NVFP4's block scales"
        )
    return torch.where(used.any(1), highs, high)


def power_of_two(exponent: Tensor) -> Tensor:
    """2^(exponent - 127) in float32, of integers from -22 to 254. Those up to 0 are subnormal."""
    exponent = exponent.int()
    return torch.where(exponent > 0, exponent << 23, 1 << (exponent + 22).clamp(max=22)).int().view(torch.float32)


# ---- the configuration ----


def recipe(config: Mapping[str, Any]) -> Recipe:
    """Reads `quantization_config` of quant_method "mxfp4": the names of modules that are not quantized. Tensors tell
    the others."""
    ignore = Names(strings(config, "modules_to_not_convert"), "modules_to_not_convert", Work())

    def look(name: str) -> Verdict:
        match = ignore.find(name)
        if match is None:
            return Verdict(MXFP4, f"quant_method is {NAME}")
        return Verdict(None, f"modules_to_not_convert has {match}", MXFP4 if match.subtree else None)

    return Recipe(NAME, look, (ignore,), (), unknown_keys(config, KEYS), kv_cache.described(config))
