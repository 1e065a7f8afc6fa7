"""The tensors of one NVFP4 linear layer, from which nvfp4.Linear is made. nvfp4.checkpoints reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.layers.checks import check_positive, check_strided, check_tensor, short

BLOCK = 16  # values that share a scale
ACTIVATIONS = ("nvfp4", None)


@dataclass(frozen=True, repr=False)
class PackedLinear:
    """Holds the tensors of y = x . W^T + bias, where W = value * scale * weight_global_scale has N rows and K columns.

    Attributes:
        weight (Tensor): [N, K/2] uint8. Element 2i of a row is the low nibble of byte i. K is a multiple of 16.
        weight_scale (Tensor): [N, K/16] float8_e4m3fn in the linear layout: one scale for every 16 values of a row.
        weight_global_scale (Tensor): float32, a multiplier: [] for the whole layer, or [N] with one for each row.
        input_global_scale (Tensor, optional): float32 [], the multiplier with which activations are quantized.
            Default: None, and the largest absolute value of each input gives the multiplier.
        bias (Tensor, optional): [N]. Default: None.
        activations (str, optional): "nvfp4" if the layer quantizes its input (W4A4), None if it does not (W4A16).
            Default: "nvfp4".
        pre_quant_scale (Tensor, optional): [K] float16, bfloat16 or float32, positive. The layer multiplies its input
            by it first. Default: None.
        divisors (dict of float, optional): of global scales by their names the divisors that a checkpoint stores, where
            these are not the reciprocals of the multipliers here. Default: None.

    Raises:
        nvfp4.Error: a tensor has another shape or dtype, or a global scale or a value of pre_quant_scale is not
            positive and finite. The values of a tensor on the meta device are not checked.
    """

    weight: Tensor
    weight_scale: Tensor
    weight_global_scale: Tensor
    input_global_scale: Tensor | None = None
    bias: Tensor | None = None
    activations: str | None = "nvfp4"
    pre_quant_scale: Tensor | None = None
    divisors: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.activations not in ACTIVATIONS:
            raise _C.Error(f"activations: is {self.activations!r}; must be 'nvfp4' or None")
        check_tensor("weight", self.weight, torch.uint8)
        if self.weight.ndim != 2:
            raise _C.Error(f"weight: has {self.weight.ndim} dimensions; must have 2 ([N, K/2])")
        rows, k = self.weight.shape[0], self.weight.shape[1] * 2
        if k == 0 or k % BLOCK:
            raise _C.Error(f"weight: K is {k}; must be a positive multiple of {BLOCK}")
        check_tensor("weight_scale", self.weight_scale, torch.float8_e4m3fn, (rows, k // BLOCK))
        check_tensor("weight_global_scale", self.weight_global_scale, torch.float32, (), (rows,))
        check_positive("weight_global_scale", self.weight_global_scale)
        if self.input_global_scale is not None:
            if self.activations is None:
                raise _C.Error("input_global_scale: is given but activations is None; must be None then")
            check_tensor("input_global_scale", self.input_global_scale, torch.float32, ())
            check_positive("input_global_scale", self.input_global_scale)
        if self.bias is not None:
            check_tensor("bias", self.bias, None, (rows,))
        if self.pre_quant_scale is not None:
            check_tensor("pre_quant_scale", self.pre_quant_scale, None, (k,))
            check_positive("pre_quant_scale", self.pre_quant_scale)

    def __repr__(self) -> str:
        """The dtypes and shapes of the tensors."""
        return f"PackedLinear({', '.join(f'{name}={_described(value)}' for name, value in vars(self).items())})"

    @property
    def in_features(self) -> int:
        return self.weight.shape[1] * 2

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in vars(self).values() if isinstance(t, Tensor))


def _described(value: Tensor | str | Mapping[str, float] | None) -> str:
    return f"{short(value.dtype)} {list(value.shape)}" if isinstance(value, Tensor) else repr(value)


def layer_input(x: object, in_features: int) -> Tensor:
    """A layer's input in the dtype that it computes in: x, checked, or cast to autocast's dtype."""
    if not isinstance(x, Tensor):
        raise _C.Error(f"x: is of type {type(x).__name__}; must be a torch.Tensor")
    check_strided("x", x)
    if x.ndim == 0 or x.shape[-1] != in_features:
        raise _C.Error(f"x: shape is {list(x.shape)}; the last dimension must be in_features = {in_features}")
    check_tensor("x", x, None)
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return x


def invertible(scale: Tensor) -> Tensor:
    """Global scales as numbers that are the reciprocal of their reciprocal, so that a format of divisors stores them
    without loss. Each changes by at most 1 in the last place. A scale with an infinite reciprocal stays as it is.

    If the significand of d is at most sqrt(2), 1/(1/d) rounds to d. Rounding moves 1/d by at most half a unit in its
    last place, which has half the size of d's, and the second reciprocal at most doubles that. One of d and 1/d has
    such a significand, so further reciprocals keep the second reciprocal of any number.
    """
    result = scale.reciprocal().reciprocal()
    return torch.where((result > 0) & result.isfinite(), result, scale)


def check_block_scales(name: str, packed: PackedLinear) -> None:
    """Rejects block scales of damaged data: one that is NaN or below 0, or all 0 where values are not. Products take a
    scale below 0 as its absolute value (docs/format.md), and no producer writes one. `name` is of the scales' tensor.
    Sound scales are read once, without a copy."""
    scale = packed.weight_scale.view(torch.uint8)
    if scale.is_meta or not scale.numel():
        return
    largest = int(scale.amax())
    if largest == 0 and bool((packed.weight & 0x77).any()):
        raise _C.Error(f"{name}: is 0 everywhere, but values of the weight are not; must be positive for these")
    if largest < 0x7F:
        return
    nan = scale & 0x7F == 0x7F
    for wrong, rule in ((nan, "finite"), (scale > 0x80, "0 or more")):  # 0x80 is -0
        if bool(wrong.any()):
            row, column = wrong.nonzero()[0].tolist()
            value, count = float(packed.weight_scale[row, column]), int(wrong.sum())
            where = f"at row {row}, column {column} ({count} of {scale.numel()} are such)"
            raise _C.Error(f"{name}: is {value:g} {where}; must be {rule}")
