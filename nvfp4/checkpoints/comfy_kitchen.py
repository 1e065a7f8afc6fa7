"""NVFP4 weights of comfy-kitchen (ComfyUI), as its TensorCoreNVFP4Layout stores them.

    weight           [N rounded up to 16, K/2] uint8; by default the even element is in the HIGH nibble (hi_first)
    weight_scale     float8_e4m3fn in the 128x4 layout
    weight_scale_2   [] float32, a multiplier: amax / (448 * 6)
    input_scale      [] float32, a multiplier; optional
    bias             [N]

    pre_quant_scale  [K]; optional: the input is multiplied by it

K is rounded up to a multiple of 16 too. Block scales may be stored as bytes. Activations have no stored scale in
comfy-kitchen; files for ComfyUI may have one, and pre_quant_scale (comfy_files.py reads whole files). Source:
tensor/nvfp4.py and backends/eager/quantization.py in comfy-kitchen 0.2.40, comfy/ops.py in ComfyUI (0271a46).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.checkpoints.tensors import check_names, one_scale, read_scalar
from nvfp4.layers.buffers import aligned, round_up
from nvfp4.layers.checks import check_tensor
from nvfp4.layers.packed import BLOCK, PackedLinear

NAME, NVFP4 = "comfy-kitchen", "nvfp4"
REQUIRED = ("weight", "weight_scale", "weight_scale_2")
INPUT_SCALE = "input_scale"
MARK, METADATA, SCALED_FP8 = "comfy_quant", "_quantization_metadata", "scaled_fp8"
PRE_QUANT_SCALE = "pre_quant_scale"
KNOWN = (*REQUIRED, INPUT_SCALE, PRE_QUANT_SCALE, "bias")
MAX_MARK = 2**16  # bytes
ROWS = 16  # to a multiple of which the weight is padded with rows of zeros


def is_marked(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bool:
    """Whether a file is one for ComfyUI."""
    return METADATA in metadata or any(name.rpartition(".")[2] in (MARK, SCALED_FP8) for name in tensors)


def mark_text(name: str, mark: Tensor) -> str:
    """The JSON of a layer's mark."""
    check_tensor(name, mark, torch.uint8)
    if mark.numel() > MAX_MARK:
        raise _C.Error(f"{name}: has {mark.numel()} bytes; must have at most {MAX_MARK}")
    return bytes(mark.flatten().tolist()).decode("utf-8", "replace")


def swap_nibbles(data: Tensor) -> Tensor:
    return data << 4 | data >> 4


def read(
    tensors: Mapping[str, Tensor],
    rows: int | None = None,
    hi_first: bool = True,
    activations: str | None = "nvfp4",
) -> PackedLinear:
    """A layer's tensors as ours.

    Args:
        tensors: by the names above.
        rows: N; None: that of the bias, or without one all stored rows.
        hi_first: whether the even element is in the high nibble.
        activations: "nvfp4" (W4A4, with a dynamic scale if there is no input_scale) or None (W4A16).

    Raises:
        nvfp4.Error: a tensor is missing, unknown, or of another shape or dtype, or weight_scale_2 is not positive and
            finite.
    """
    check_names(NAME, tensors, REQUIRED, KNOWN)
    weight, scale, bias = tensors["weight"], tensors["weight_scale"], tensors.get("bias")
    check_tensor("weight", weight, torch.uint8)
    scale = scale.view(torch.float8_e4m3fn) if scale.dtype == torch.uint8 else scale
    check_tensor("weight_scale", scale, torch.float8_e4m3fn)
    if weight.ndim != 2:
        raise _C.Error(f"weight: has {weight.ndim} dimensions; must have 2 ([N, K/2])")
    stored = weight.shape[0]
    if rows is None:
        rows = stored if bias is None else bias.numel()
    if rows > stored:
        raise _C.Error(f"rows: is {rows} but weight has {stored}")
    linear = _api.unswizzle(aligned(scale, 16).reshape(-1), stored, weight.shape[1] * 2 // BLOCK)
    weight = weight[:rows]
    return PackedLinear(
        swap_nibbles(weight) if hi_first else weight,
        linear[:rows],
        read_scalar("weight_scale_2", tensors["weight_scale_2"]),
        read_scalar(INPUT_SCALE, tensors[INPUT_SCALE]) if INPUT_SCALE in tensors else None,
        bias=bias,
        activations=activations,
        pre_quant_scale=padded(tensors.get(PRE_QUANT_SCALE), weight.shape[1] * 2),
    )


def padded(scale: Tensor | None, columns: int) -> Tensor | None:
    """A pre_quant_scale of K values for a weight with K rounded up: it has ones for columns that are zeros."""
    if scale is None or scale.ndim != 1 or not 0 < columns - scale.numel() < BLOCK:
        return scale
    return torch.nn.functional.pad(scale, (0, columns - scale.numel()), value=1.0)


def write(packed: PackedLinear, hi_first: bool = True) -> dict[str, Tensor]:
    """Our tensors as the format's, without an input_global_scale, which it does not store.

    Raises:
        nvfp4.Error: the layer has one weight_global_scale for each row.
    """
    more = round_up(packed.out_features, ROWS) - packed.out_features
    weight = torch.nn.functional.pad(packed.weight, (0, 0, 0, more))
    tensors = {
        "weight": swap_nibbles(weight) if hi_first else weight,
        "weight_scale": _api.swizzle(packed.weight_scale.contiguous()),
        "weight_scale_2": one_scale(NAME, packed, pre_quant_scale=True),
        PRE_QUANT_SCALE: packed.pre_quant_scale,
        "bias": packed.bias,
    }
    return {name: t for name, t in tensors.items() if t is not None}
