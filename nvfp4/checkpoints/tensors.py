"""The tensors of one layer: rules that all formats share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints.recipe import AUTO
from nvfp4.layers.checks import check_positive, check_strided, short
from nvfp4.layers.packed import ACTIVATIONS, BLOCK, PackedLinear

MAX_DIMENSIONS = 64  # those of torch's element-wise operations


def check_kind(name: str, t: object) -> None:
    """Rejects what no file stores as a tensor, or torch does not compute with."""
    if not isinstance(t, Tensor):
        raise _C.Error(f"{name}: is of type {type(t).__name__}; must be a torch.Tensor")
    check_strided(name, t)
    if t.ndim > MAX_DIMENSIONS:
        raise _C.Error(f"{name}: has {t.ndim} dimensions; must have at most {MAX_DIMENSIONS}")


def check_names(format_name: str, tensors: Mapping[str, Tensor], required: Sequence[str], known: Sequence[str]) -> None:
    """Rejects a missing and an unknown name: a tensor that is not read may change what the layer computes."""
    for name in required:
        if name not in tensors:
            raise _C.Error(f"{name}: is missing; a layer of {format_name} has {', '.join(required)}")
    for name in tensors:
        if name.startswith("svdquant_"):
            raise _C.Error(
                f"{name}: is a factor of SVDQuant, whose layers add a product of low rank to that of the weight, which "
                "nvfp4 does not do: take the model's checkpoint without SVDQuant"
            )
        if name not in known:
            raise _C.Error(f"{name}: is no tensor of an NVFP4 layer of {format_name}: {', '.join(known)}")


def read_scalar(name: str, t: Tensor) -> Tensor:
    """A stored global scale, float32 with one element, as []. It must be positive and finite."""
    if t.dtype != torch.float32:
        raise _C.Error(f"{name}: dtype is {short(t.dtype)}; must be float32")
    if t.numel() != 1:
        raise _C.Error(f"{name}: shape is {list(t.shape)}; must have 1 element")
    check_positive(name, t)
    return t.reshape(())


def is_coarse(weight: Tensor, scale: Tensor) -> bool:
    """Whether block scales [..., K/32] are for 32 values each, of a weight [..., K/2]."""
    return weight.ndim > 0 and scale.ndim == weight.ndim and 0 < weight.shape[-1] == scale.shape[-1] * BLOCK


def of_blocks(weight: Tensor, scale: Tensor) -> Tensor:
    """Block scales [..., K/16]: those of groups of 32 count for two blocks each."""
    if not is_coarse(weight, scale) or scale.element_size() != 1:
        return scale
    return scale.view(torch.uint8).repeat_interleave(2, -1).view(scale.dtype)


def reciprocal(name: str, t: Tensor) -> Tensor:
    """A divisor as a multiplier or the reverse, rounded once. There and back is off by at most 2^-23 of the value."""
    result = t.reciprocal()
    if not result.is_meta and not bool((result > 0) & result.isfinite()):
        raise _C.Error(f"{name}: is {float(t):g}; its reciprocal must be positive and finite")
    return result


def one_scale(format_name: str, packed: PackedLinear, pre_quant_scale: bool = False) -> Tensor:
    """The weight_global_scale of a layer in a format that stores one number.

    Args:
        pre_quant_scale: whether the format has that one.
    """
    if packed.pre_quant_scale is not None and not pre_quant_scale:
        raise _C.Error(f"pre_quant_scale: is there, but {format_name} cannot store it: write modelopt")
    scale = packed.weight_global_scale
    if scale.ndim:
        raise _C.Error(
            f"weight_global_scale: shape is {list(scale.shape)}; {format_name} stores one scale for a layer: "
            "write the layers before they are fused"
        )
    return scale


def resolve(activations: str | None, input_scale: str, tensors: Mapping[str, Tensor]) -> str | None:
    """The `activations` of a PackedLinear; AUTO: quantized if the tensors have the input scale of this name."""
    if activations == AUTO:
        return "nvfp4" if input_scale in tensors else None
    if activations is None and input_scale in tensors:
        raise _C.Error(f"{input_scale}: is there, but the layer is W4A16")
    return activations


def check_activations(activations: str | None) -> None:
    if activations not in (AUTO, *ACTIVATIONS):
        raise _C.Error(f"activations: is {activations!r}; must be {AUTO!r}, 'nvfp4' or None")


def chosen(
    own: dict[str, Tensor], input_scale: str, activations: str | None, wanted: str | None, dynamic: bool = False
) -> str | None:
    """The `activations` with which to read a layer's tensors. Removes an input scale that is not used, so that it is
    not checked either.

    Args:
        own: the layer's tensors, `input_scale` the name of theirs.
        activations: what the checkpoint says: "nvfp4", None or AUTO.
        wanted: what the caller says, which comes first; AUTO: nothing.
        dynamic: whether the checkpoint says that each input gives its scale.
    """
    if wanted is None or dynamic:
        own.pop(input_scale, None)
    return activations if wanted == AUTO else wanted
