"""GGUF tensors of types 40 (NVFP4) and 39 (MXFP4) of llama.cpp.

A row is blocks of 36 bytes for 64 values, so K is a multiple of 64:

    byte 0..3     e4m3 scales, one for each 16 values; 0x7F decodes as 0 here and as NaN elsewhere
    byte 4..35    four times 8 bytes: byte j has value j in the low and value j + 8 in the high nibble

The tensors `.scale` and `.input_scale` beside the weight are float32 multipliers, absent if 1.

A row of type 39 is blocks of 17 bytes for 32 values: an e8m0 scale, then 16 bytes with value j in the low and value
j + 16 in the high nibble. Source: ggml-common.h in llama.cpp and quants.py in gguf 0.19.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints.recipe import AUTO
from nvfp4.checkpoints.tensors import one_scale, read_scalar, resolve
from nvfp4.layers.checks import check_tensor
from nvfp4.layers.packed import BLOCK, PackedLinear

NAME = "GGUF"
VALUES, BYTES = 64, 36  # of a block
MXFP4_BYTES = 17
NAN = 0x7F


def read(
    blocks: Tensor,
    scale: Tensor | None = None,
    input_scale: Tensor | None = None,
    bias: Tensor | None = None,
    activations: str | None = AUTO,
) -> PackedLinear:
    """A tensor's bytes as ours.

    Args:
        blocks: [N, K/64 * 36] uint8.
        scale, input_scale: float32 with one element, multipliers; None: 1.
        bias: [N].
        activations: "nvfp4" (W4A4), None (W4A16), or "auto": W4A4 if there is an input_scale. W4A4 without one has a
            dynamic scale.

    Raises:
        nvfp4.Error: a tensor is of another shape or dtype, or a global scale is not positive and finite.
    """
    check_tensor("blocks", blocks, torch.uint8)
    if blocks.ndim != 2 or blocks.shape[1] == 0 or blocks.shape[1] % BYTES:
        raise _C.Error(f"blocks: shape is {list(blocks.shape)}; must be [N, K/{VALUES} * {BYTES}]")
    rows = blocks.shape[0]
    split = blocks.reshape(rows, -1, BYTES)
    scales, codes = split[..., :4].reshape(rows, -1), split[..., 4:].reshape(rows, -1, BLOCK // 2)
    if bool((scales == 0xFF).any()):
        raise _C.Error("blocks: has the scale 0xFF; must be a finite e4m3 without sign")
    return PackedLinear(
        pairs(codes).reshape(rows, -1),
        torch.where(scales == NAN, 0, scales).to(torch.uint8).view(torch.float8_e4m3fn),
        torch.ones((), device=blocks.device) if scale is None else read_scalar("scale", scale),
        None if input_scale is None else read_scalar("input_scale", input_scale),
        bias,
        resolve(activations, "input_scale", {} if input_scale is None else {"input_scale": input_scale}),
    )


def pairs(codes: Tensor) -> Tensor:
    """Blocks [..., n] with the even values in the low nibbles, from blocks with the first n values there."""
    values = torch.cat([codes & 15, codes >> 4], -1)
    return values[..., 0::2] | values[..., 1::2] << 4


def mxfp4_tensors(blocks: Tensor) -> dict[str, Tensor]:
    """The tensors of nvfp4.checkpoints.mxfp4 that gpt-oss has, of a tensor of type 39, [..., N, K/32 * 17] uint8."""
    check_tensor("blocks", blocks, torch.uint8)
    if blocks.ndim < 2 or blocks.shape[-1] == 0 or blocks.shape[-1] % MXFP4_BYTES:
        raise _C.Error(f"blocks: shape is {list(blocks.shape)}; must be [..., N, K/32 * {MXFP4_BYTES}]")
    split = blocks.unflatten(-1, (-1, MXFP4_BYTES))
    return {"blocks": pairs(split[..., 1:]), "scales": split[..., 0].contiguous()}


def write(packed: PackedLinear) -> dict[str, Tensor]:
    """Our tensors as `blocks`, `scale`, `input_scale` and `bias` of `read`.

    Raises:
        nvfp4.Error: K is no multiple of 64, a scale is NaN, or the layer has one weight_global_scale for each row.
    """
    rows, k = packed.out_features, packed.in_features
    if k % VALUES:
        raise _C.Error(f"weight: K is {k}; must be a multiple of {VALUES} in {NAME}")
    scales = packed.weight_scale.contiguous().view(torch.uint8) & 0x7F
    if bool((scales == NAN).any()):
        raise _C.Error(f"weight_scale: has a NaN, which {NAME} cannot store")
    values = torch.stack([packed.weight & 15, packed.weight >> 4], -1).reshape(rows, k // BLOCK, BLOCK)
    codes = values[..., : BLOCK // 2] | values[..., BLOCK // 2 :] << 4
    blocks = torch.cat([scales.reshape(rows, -1, 4), codes.reshape(rows, -1, VALUES // 2)], -1).reshape(rows, -1)
    tensors = {
        "blocks": blocks,
        "scale": one_scale(NAME, packed),
        "input_scale": packed.input_global_scale,
        "bias": packed.bias,
    }
    return {name: t for name, t in tensors.items() if t is not None}
