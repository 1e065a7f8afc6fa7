"""Products of nvfp4.Linear and their gradients: W4A16 has one with respect to the input, W4A4 has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from nvfp4 import _C, _api

WITH_GRADIENT = "activations=None, which makes layers (W4A16) that have a gradient"


def is_transformed() -> bool:
    """Whether code is traced, or a transform of torch.func is active. A backward cannot raise its own error there."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._are_functorch_transforms_active()


def is_constant() -> bool:
    """Whether a product may be promised `constant_b`, if a kernel of nvfp4 that waits for all earlier kernels (a
    quantizer) was launched before it. Not in compiled or traced code, which may write the weights after that kernel."""
    return not (torch.compiler.is_compiling() or torch._C._is_tracing())


class NoGradient(torch.autograd.Function):
    """The product of a quantized input. Its backward raises."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        product: Callable[..., Tensor],
        scale: Tensor | None,
        alpha: Tensor | None,
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        return product(rows, scale, alpha, bias, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        raise _C.Error(f"activations: is 'nvfp4' (W4A4), which has no gradient; must be {WITH_GRADIENT}")


def check_no_tangent(x: Tensor) -> None:
    """Rejects forward-mode differentiation: the kernels would give a tangent of 0."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if forward_ad.unpack_dual(x).tangent is not None:
        raise _C.Error("x: has a tangent; nvfp4 has no forward-mode derivatives, except of W4A16 with float32")


def as_gemm_takes_it(x: Tensor) -> Tensor:
    """Dense rows on 16 bytes: x itself, if it has them. A traced tensor has no address and is taken to be aligned."""
    if x.stride(-1) != 1 or (x.shape[0] > 1 and x.stride(0) != x.shape[1]):
        return x.contiguous()
    traced = torch.compiler.is_compiling() or type(x) is not Tensor
    return x if traced or x.data_ptr() % 16 == 0 else x.clone()


def weight_only(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    alpha: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    batch_invariant: bool,
) -> Tensor:
    if x.dtype != torch.float32:
        if bias is not None and bias.dtype != dtype:
            bias = bias.float()
        options = {"alpha": alpha, "bias": bias, "out_dtype": dtype, "batch_invariant": batch_invariant}
        return _api.gemm(as_gemm_takes_it(x), weight, None, weight_scale, **options)
    if batch_invariant:
        y = product_of_parts(x, weight, weight_scale, True, batch_invariant)
    else:
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
            y = torch.mm(x, _api.dequantize(weight, weight_scale).t())
    y = y if alpha is None else y * alpha
    return y if bias is None else y + bias.float()


class WeightOnly(torch.autograd.Function):
    """weight_only, with a gradient with respect to x that multiplies by the packed weight."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        alpha: Tensor | None,
        bias: Tensor | None,
        dtype: torch.dtype,
        batch_invariant: bool,
    ) -> Tensor:
        ctx.save_for_backward(weight, weight_scale, alpha)
        ctx.batch_invariant = batch_invariant
        return weight_only(x, weight, weight_scale, alpha, bias, dtype, batch_invariant)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, weight_scale, alpha = ctx.saved_tensors
        dx = input_gradient(gradients[0], weight, weight_scale, alpha, ctx.batch_invariant)
        return dx, None, None, None, None, None, None


def input_gradient(
    dy: Tensor, weight: Tensor, weight_scale: Tensor, alpha: Tensor | None, batch_invariant: bool
) -> Tensor:
    """(alpha * dy) . W. One alpha is applied to the fp32 sums; one for each row of W lies along the sums."""
    along_sums = alpha is not None and alpha.ndim > 0
    if dy.dtype != torch.float32 and not along_sums:
        dy = as_gemm_takes_it(dy)
        options = {"out_dtype": dy.dtype, "transpose_b": False, "batch_invariant": batch_invariant}
        return _api.gemm(dy, weight, None, weight_scale, alpha=alpha, **options)
    given = dy.float() * alpha if along_sums else dy
    dx = product_of_parts(given, weight, weight_scale, False, batch_invariant)
    return (dx if alpha is None or along_sums else dx * alpha).to(dy.dtype)


def product_of_parts(
    x: Tensor, weight: Tensor, weight_scale: Tensor, transpose_b: bool, batch_invariant: bool
) -> Tensor:
    """The product of fp32 rows in fp32: the sum of those of three bf16 parts, the smallest first."""
    parts = bf16_parts(x).reshape(-1, x.shape[1])
    options = {"out_dtype": torch.float32, "transpose_b": transpose_b, "batch_invariant": batch_invariant}
    sums = _api.gemm(parts, weight, None, weight_scale, **options).reshape(3, x.shape[0], -1)
    return sums[2] + sums[1] + sums[0]


def bf16_parts(x: Tensor) -> Tensor:
    """fp32 as three bf16 [3, ...], whose sum it is: each takes the upper 8 of the significant bits that are left. Bits
    are masked, since a compiler may drop a rounding to bf16 and back."""

    def upper(x: Tensor) -> Tensor:
        return (x.contiguous().view(torch.int32) & -0x10000).view(torch.float32)

    def rest(x: Tensor, part: Tensor) -> Tensor:
        return torch.where(x.isinf(), 0.0, x - part)

    first = upper(x)
    second = upper(rest(x, first))
    return torch.stack((first, second, rest(rest(x, first), second))).bfloat16()
