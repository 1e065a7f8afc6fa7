"""The products of nvfp4.Experts with inputs as they are (W4A16): rows in the order of their experts, times the matrices
of a stack, and the gradient of such a product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nvfp4 import _api
from nvfp4.layers.experts.stack import Stack, as_grouped_gemm_takes_it, experts_of
from nvfp4.layers.gradient import bf16_parts, is_constant


def product(
    stack: Stack, a: Tensor, ends: Tensor, rows: Tensor | None, batch_invariant: bool, constant_ends: bool = False
) -> Tensor:
    """a [R, K] times each group's matrices, [T, P * N], in the dtype of a: rounded once. For float32 it is the sum
    of the products of three bfloat16 parts, which are exact. constant_ends: as of grouped_gemm."""
    if stack.kept is None:
        operands = stack.weight, stack.weight_scale, stack.weight_global_scale, stack.bias
        return _product(a, *operands, ends, rows, batch_invariant, constant_ends=constant_ends)
    used, ends = stack.used(ends)
    results = []
    for p in range(stack.shape[1]):
        bias = None if stack.bias is None else stack.bias[used, p]
        values, scales = ([tensors[e] for e in used] for tensors in stack.kept[p])
        alpha = stack.weight_global_scale[used, p]
        results.append(_product(a, values, scales, alpha, bias, ends, rows, batch_invariant))
    return results[0] if len(results) == 1 else torch.cat(results, 1)


def activates(stack: Stack, dtype: torch.dtype) -> bool:
    """Whether `activated` takes rows of this dtype: the products of float32 are sums of several."""
    return stack.kept is None and dtype != torch.float32


def activated(
    stack: Stack,
    a: Tensor,
    ends: Tensor,
    rows: Tensor | None,
    batch_invariant: bool,
    activation: str,
    limit: float | None,
    alpha: float | None,
) -> Tensor:
    """nvfp4.gated of the parts of `product`, [T, N], in one call with the same bits."""
    result: Tensor = _api.gated_grouped_gemm(
        a,
        stack.weight,
        None,
        stack.weight_scale,
        ends,
        activation,
        limit=limit,
        activation_alpha=alpha,
        rows=rows,
        alpha=stack.weight_global_scale,
        bias=as_grouped_gemm_takes_it(stack.bias, a.dtype),
        batch_invariant=batch_invariant,
        constant_b=is_constant(),
    )
    return result


def _product(
    a: Tensor,
    weight: Any,
    scale: Any,
    alpha: Tensor,
    bias: Tensor | None,
    ends: Tensor,
    rows: Tensor | None,
    batch_invariant: bool,
    transpose_b: bool = True,
    out_dtype: torch.dtype | None = None,
    constant_ends: bool = False,
) -> Tensor:
    """grouped_gemm, of float32 by parts, the smallest first."""
    bias = as_grouped_gemm_takes_it(bias, a.dtype)
    total = None
    parts = [a] if a.dtype != torch.float32 else [*bf16_parts(a)][::-1]
    for i, part in enumerate(parts):
        y: Tensor = _api.grouped_gemm(
            part,
            weight,
            None,
            scale,
            ends,
            rows=rows,
            alpha=alpha,
            bias=bias if i == len(parts) - 1 else None,
            out_dtype=a.dtype if out_dtype is None else out_dtype,
            scale_layout="128x4" if isinstance(scale, Tensor) else "linear",
            transpose_b=transpose_b,
            batch_invariant=batch_invariant,
            constant_b=is_constant(),
            constant_ends=constant_ends,
        )
        total = y if total is None else total + y
    assert total is not None
    return total


def transposed(stack: Stack, dy: Tensor, ends: Tensor, batch_invariant: bool) -> Tensor:
    """The gradient with respect to the rows of a, [T, K] float32, of one with respect to the product, [T, P * N].

    grouped_gemm computes it of one part. In a stack with two parts each expert counts as two groups, whose rows
    follow one another: those of gate, then those of up.
    """
    experts, parts, size, _ = stack.shape
    if stack.weight_global_scale.ndim == 3:  # factors of the rows of a matrix are not factors of its product here
        expert = experts_of(ends, dy.shape[0]).clamp(max=experts - 1)
        dy = dy.float() * stack.weight_global_scale.flatten(1)[expert]
    if stack.kept is not None:
        used, ends = stack.used(ends)
        total = None
        for p, each in enumerate(dy.split(size, 1)):
            values, scales = ([tensors[e] for e in used] for tensors in stack.kept[p])
            alpha = factors_of(stack)[used, p]
            dx = _gradient(each.contiguous(), values, scales, alpha, ends, None, batch_invariant)
            total = dx if total is None else total + dx
        assert total is not None
        return total
    assert stack.weight is not None
    weight, alpha = stack.weight.flatten(0, 1), factors_of(stack).flatten()
    if parts == 1:
        return _gradient(dy, weight, stack.weight_scale, alpha, ends, None, batch_invariant)
    slots = dy.shape[0]
    dy = dy.reshape(slots, 2, -1).transpose(0, 1).reshape(2 * slots, -1)
    slot = torch.arange(slots, device=dy.device, dtype=torch.int32)
    starts = torch.cat((ends.new_zeros(1), ends, ends.new_full((1,), slots)))
    expert = experts_of(ends, slots)
    first, second = (slot + starts[expert]).long(), (slot + starts[expert + 1]).long()
    rows = torch.empty(2 * slots, device=dy.device, dtype=torch.int32)
    rows[first], rows[second] = slot, slot + slots
    ends = torch.stack((starts[:-2] + ends, 2 * ends), 1).flatten()
    dx = _gradient(dy, weight, stack.weight_scale, alpha, ends, rows, batch_invariant)
    return dx[first] + dx[second]


def factors_of(stack: Stack) -> Tensor:
    """The global scale of each matrix, [E, P]; ones where its rows have one each."""
    scales = stack.weight_global_scale
    return scales if scales.ndim == 2 else torch.ones_like(scales[..., 0])


def _gradient(
    dy: Tensor,
    weight: Any,
    scale: Any,
    alpha: Tensor,
    ends: Tensor,
    rows: Tensor | None,
    batch_invariant: bool,
) -> Tensor:
    return _product(
        dy, weight, scale, alpha, None, ends, rows, batch_invariant, transpose_b=False, out_dtype=torch.float32
    )
