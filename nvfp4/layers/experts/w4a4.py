"""The products of nvfp4.Experts with quantized inputs (W4A4): rows in the order of their experts, quantized with the
global scale of their expert, or each with its own where there is none."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nvfp4 import _api
from nvfp4.layers.experts.stack import Stack, as_grouped_gemm_takes_it, experts_of


class Rows(NamedTuple):
    """Quantized rows in the order of their experts.

    Attributes:
        values: [T, K/2] uint8.
        scales: of the layout in which the stack's are.
        first: int32 [E], the row of scales at which each expert's begin; None: they lie as the rows do.
        factors: float32 [T], the rows' global scales; None: experts have them.
    """

    values: Tensor
    scales: Tensor
    first: Tensor | None
    factors: Tensor | None


def layout_of(stack: Stack) -> str:
    return "linear" if stack.kept is not None else "128x4"


def quantized(stack: Stack, x: Tensor, ends: Tensor, rows: Tensor | None) -> Rows:
    """Row i from row rows[i] of x."""
    x = x.detach() if x.stride(-1) == 1 else x.detach().contiguous()
    scales, _ = stack.input_scales()
    factors = None
    if scales is None:
        scales = _api.amax_scale(x, by_row=True)
        factors = scales if rows is None else scales[rows]
        scales = scales[:, None]
    made = _api.quantize(x, global_scale=scales, ends=ends, rows=rows, scale_layout=layout_of(stack))
    return Rows(made[0], made[1], made[2] if len(made) > 2 else None, factors)


def activated(
    stack: Stack,
    gate: Tensor,
    up: Tensor | None,
    ends: Tensor,
    activation: str,
    limit: float | None,
    alpha: float | None,
) -> Rows:
    """The results of an activation, which are not rounded before they are quantized."""
    scales, _ = stack.input_scales()
    if scales is None:
        h = _api.gated(gate, up, activation, limit=limit, alpha=alpha, out_dtype=torch.float32)
        return quantized(stack, h, ends, None)
    layout = layout_of(stack)
    made = _api.gated_quantize(
        gate, up, activation, limit=limit, alpha=alpha, global_scale=scales, ends=ends, scale_layout=layout
    )
    return Rows(made[0], made[1], made[2] if len(made) > 2 else None, None)


def quantizes_products(gate_up: Stack, down: Stack, dtype: torch.dtype) -> bool:
    """Whether `quantized_products` takes experts with results of this dtype: their products are rounded to 16 bits, and
    where rows have global scales of their own, a bias would be multiplied by them."""
    if gate_up.kept is not None or down.kept is not None or dtype == torch.float32 or down.input_global_scale is None:
        return False
    return gate_up.input_global_scale is not None or gate_up.bias is None


def quantized_products(
    gate_up: Stack,
    down: Stack,
    a: Rows,
    ends: Tensor,
    dtype: torch.dtype,
    batch_invariant: bool,
    constant_b: bool,
    activation: str,
    limit: float | None,
    alpha: float | None,
) -> Rows:
    """`activated` of the parts of `product` by gate_up, quantized for down, in one call with the same bytes."""
    values, scales, first = _api.gated_grouped_quantize(
        a.values,
        gate_up.weight,
        a.scales,
        gate_up.weight_scale,
        ends,
        activation,
        limit=limit,
        activation_alpha=alpha,
        scale_rows=a.first,
        row_scale=a.factors,
        alpha=gate_up.input_scales()[1],
        bias=as_grouped_gemm_takes_it(gate_up.bias, dtype),
        global_scale=down.input_scales()[0],
        product_dtype="bfloat16" if dtype == torch.bfloat16 else "float16",
        batch_invariant=batch_invariant,
        constant_b=constant_b,
    )
    return Rows(values, scales, first, None)


def product(stack: Stack, a: Rows, ends: Tensor, dtype: torch.dtype, batch_invariant: bool, constant_b: bool) -> Tensor:
    """The rows times their experts' matrices, [T, P * N] in dtype. constant_b: as of grouped_gemm."""
    _, alpha = stack.input_scales()
    bias = as_grouped_gemm_takes_it(stack.bias, dtype)
    parts = [(stack.weight, stack.weight_scale, alpha, bias)]
    group_ends = ends
    if stack.kept is not None:
        used, group_ends = stack.used(ends)
        parts = []
        for p, (values, linear) in enumerate(stack.kept):
            own = None if bias is None else bias[used, p]
            parts.append(([values[e] for e in used], [linear[e] for e in used], alpha[used, p], own))
    late = a.factors is not None and bias is not None  # the factors of rows would multiply the bias
    results = []
    for weight, weight_scale, factor, own in parts:
        y: Tensor = _api.grouped_gemm(
            a.values,
            weight,
            a.scales,
            weight_scale,
            group_ends,
            scale_rows=a.first,
            row_scale=a.factors,
            alpha=factor,
            bias=None if late else own,
            out_dtype=torch.float32 if late else dtype,
            scale_layout=layout_of(stack),
            batch_invariant=batch_invariant,
            constant_b=constant_b,
        )
        results.append(y)
    y = results[0] if len(results) == 1 else torch.cat(results, 1)
    if not late or bias is None:
        return y
    expert = experts_of(ends, len(y)).clamp(max=len(ends) - 1)  # rows past the last end do not count
    return (y + bias.float().flatten(1)[expert]).to(dtype)
