"""Low-rank adapters of nvfp4.Experts, and the gradients: of the input, of the router's weights and of adapters."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.layers.checks import short
from nvfp4.layers.experts.stack import Adapter

ALIGNMENT = 16  # bytes: torch.nn.functional.grouped_mm wants them of the strides of its operands


def low_rank(x: Tensor, left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """(x . right^T) . left^T of each expert, for rows [T, K] in the order of their experts: [T, N] in the dtype of x,
    to which both factors are rounded. Rows past the last end are not defined."""
    if torch.compiler.is_compiling() and x.dtype != torch.bfloat16:
        raise _C.Error(
            f"hidden: dtype is {short(x.dtype)}, which torch's grouped_mm does not compile; must be bfloat16 in "
            "compiled code of experts with adapters"
        )
    pad = -left.shape[2] % (ALIGNMENT // x.element_size())
    right = F.pad(right.to(x.dtype), (0, 0, 0, pad)).contiguous()
    left = F.pad(left.to(x.dtype), (0, pad)).contiguous()
    inner = F.grouped_mm(x, right.transpose(1, 2), offs=ends)
    return F.grouped_mm(inner, left.transpose(1, 2), offs=ends)


class Gradient(torch.autograd.Function):
    """Experts with gradients. The backward pass computes gate and up again, so that it keeps no more than the input."""

    @staticmethod
    def forward(
        ctx: Any,
        experts: Any,
        x: Tensor,
        weights: Tensor | None,
        rows: Tensor,
        ends: Tensor,
        places: Tensor,
        *factors: Tensor | None,
    ) -> Tensor:
        """
        Args:
            experts: the RoutedExperts, whose module imports this one.
            factors: the adapter of gate and up, and that of down; two times None for none.
        """
        ctx.experts = experts
        ctx.save_for_backward(x, weights, rows, ends, places, *factors)
        return experts._computed(x, rows, ends, places, weights, *adapters(factors))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        experts = ctx.experts
        x, weights, rows, ends, places, *factors = ctx.saved_tensors
        first, second = adapters(factors)
        inner = experts._inner(x, rows, ends)
        if first is not None:
            added, of_first = torch.func.vjp(partial(low_rank, ends=ends), x.index_select(0, rows), *first)
            inner = inner + added
        slots = rows.shape[0]
        at = torch.where(places < 0, slots, places).long()  # a row more, for experts elsewhere
        each_dy = dy.float().unsqueeze(1)
        wide = dy.new_zeros((slots + 1, dy.shape[1]), dtype=torch.float32)
        wide[at] = each_dy if weights is None else each_dy * weights.float().unsqueeze(2)
        dout = wide[:slots].to(x.dtype)
        dweights = dx = None
        dfactors: list[Tensor | None] = [None] * 4
        if weights is not None and ctx.needs_input_grad[2]:
            y = experts._outputs(inner, ends, second)[at.clamp(max=slots - 1)]
            dweights = torch.where(places < 0, 0.0, (y.float() * each_dy).sum(2)).to(weights.dtype)
        dh: Tensor | None = None
        if second is not None:
            _, of_second = torch.func.vjp(partial(low_rank, ends=ends), experts._hidden(inner), *second)
            dh, *dfactors[2:] = of_second(dout)
        if ctx.needs_input_grad[1] or first is not None:
            through = experts._transposed(True, dout, ends)
            dh = through if dh is None else through + dh
            with torch.enable_grad():
                given = inner.detach().float().requires_grad_()
                (dinner,) = torch.autograd.grad(experts._activated(given), given, dh)
            dinner = dinner.to(x.dtype)
            each = None
            if first is not None:
                each, *dfactors[:2] = of_first(dinner)
            if ctx.needs_input_grad[1]:
                through = experts._transposed(False, dinner, ends)
                each = through if each is None else through + each
                dx = _api.moe_combine(each, backward_places(places, x), None, out_dtype=x.dtype)
        return None, dx, dweights, None, None, None, *dfactors


def adapters(factors: Any) -> tuple[Adapter | None, Adapter | None]:
    """The adapters of gate and up and of down, from their four factors."""
    first, second = tuple(factors[:2]), tuple(factors[2:])
    return None if first[0] is None else first, None if second[0] is None else second


def backward_places(places: Tensor, x: Tensor) -> Tensor:
    """The slots that each row of x was read into: those of its token, or its own if it stands for one choice."""
    return places if places.shape[0] == x.shape[0] else places.reshape(-1, 1)
