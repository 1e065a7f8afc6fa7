"""NVFP4Tensor of torchao, as its safetensors support stores a linear layer's weight.

    _weight_qdata                  [N, K/2] uint8, the even element in the low nibble
    _weight_scale                  float8_e4m3fn: [N, K/16], or with is_swizzled_scales the 128x4 layout in a container
                                   of [N/128 * 32, K/64 * 16], both rounded up
    _weight_per_tensor_scale       [] float32, a multiplier; absent: 1
    _weight_act_per_tensor_scale   [] float32, a multiplier; absent: 1, or dynamic
    bias                           [N]

The file's JSON metadata says is_swizzled_scales and act_quant_kwargs. A block of zeros has the scale 2^-6 and not 0.
Source: prototype/mx_formats/nvfp4_tensor.py in torchao 0.18.
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

NAME, INPUT_SCALE = "torchao", "_weight_act_per_tensor_scale"
REQUIRED = ("_weight_qdata", "_weight_scale")
KNOWN = (*REQUIRED, "_weight_per_tensor_scale", INPUT_SCALE, "bias")


def is_described(metadata: Mapping[str, str]) -> bool:
    """Whether a file's metadata is torchao's, with an NVFP4Tensor."""
    return "tensor_names" in metadata and any('"NVFP4Tensor"' in text for text in metadata.values())


def read(
    tensors: Mapping[str, Tensor],
    is_swizzled_scales: bool,
    activations: str | None = None,
    dynamic: bool = False,
) -> PackedLinear:
    """A layer's tensors as ours.

    Args:
        tensors: by the names above.
        is_swizzled_scales: of the NVFP4Tensor: whether the scales are in the 128x4 layout.
        activations: None (W4A16) if act_quant_kwargs is None, else "nvfp4".
        dynamic: use_dynamic_per_tensor_scale of act_quant_kwargs. Otherwise activations without a stored scale are
            quantized with the global scale 1.

    Raises:
        nvfp4.Error: a tensor is missing, unknown, or of another shape or dtype, or a global scale is not positive and
            finite.
    """
    check_names(NAME, tensors, REQUIRED, KNOWN)
    weight, scale = tensors["_weight_qdata"], tensors["_weight_scale"]
    if is_swizzled_scales:
        check_tensor("_weight_scale", scale, torch.float8_e4m3fn)
        if weight.ndim != 2:
            raise _C.Error(f"_weight_qdata: has {weight.ndim} dimensions; must have 2 ([N, K/2])")
        scale = _api.unswizzle(aligned(scale, 16).reshape(-1), weight.shape[0], weight.shape[1] * 2 // BLOCK)
    given = tensors.get("_weight_act_per_tensor_scale")
    if activations is None or dynamic:
        given = None
    elif given is None:
        given = torch.ones((), device=weight.device)
    own = tensors.get("_weight_per_tensor_scale")
    return PackedLinear(
        weight,
        scale,
        torch.ones((), device=weight.device) if own is None else read_scalar("_weight_per_tensor_scale", own),
        None if given is None else read_scalar("_weight_act_per_tensor_scale", given),
        tensors.get("bias"),
        activations,
    )


def write(packed: PackedLinear, is_swizzled_scales: bool = False) -> dict[str, Tensor]:
    """Our tensors as the format's; the scales linear, or in the 128x4 layout.

    Raises:
        nvfp4.Error: the layer has one weight_global_scale for each row.
    """
    scale = packed.weight_scale
    if is_swizzled_scales:
        tiles = (round_up(packed.out_features, 128) // 128, round_up(packed.in_features, 64) // 64)
        scale = _api.swizzle(scale.contiguous()).reshape(tiles[0] * 32, tiles[1] * 16)
    tensors = {
        "_weight_qdata": packed.weight,
        "_weight_scale": scale,
        "_weight_per_tensor_scale": one_scale(NAME, packed),
        "_weight_act_per_tensor_scale": packed.input_global_scale,
        "bias": packed.bias,
    }
    return {name: t for name, t in tensors.items() if t is not None}
