"""The operations around products are batch invariant: the bits of a row, or of a token, depend neither on the rows
beside it nor on how many there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conftest import Backend
from torch import Tensor

import nvfp4

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
COLUMNS = 2080  # more than a warp and a vector take at once, and no multiple of 64
Rows = tuple[Tensor, ...]


def gated(activation: str, up: bool = True) -> Callable[[Tensor], Rows]:
    def run(x: Tensor) -> Rows:
        gate, other = x.chunk(2, -1)
        return (nvfp4.gated(gate, other if up else None, activation, limit=3.0 if activation == "swiglu" else None),)

    return run


def rms_norm(x: Tensor) -> Rows:
    weight = torch.linspace(-2, 2, x.shape[1], device=x.device)
    residual = x.flip(1).contiguous()
    packed = nvfp4.rms_norm_quantize(x, weight, 1e-6, residual=residual, scale_layout="linear", global_scale=0.01)
    return *packed, residual


OPERATIONS: dict[str, Callable[[Tensor], Rows]] = {
    "silu": gated("silu"),
    "gelu_tanh": gated("gelu_tanh"),
    "swiglu": gated("swiglu"),
    "relu2": gated("relu2", up=False),
    "quantize": lambda x: nvfp4.quantize(x, global_scale=0.01, scale_layout="linear"),
    "quantize, four_over_six": lambda x: nvfp4.quantize(
        x, global_scale=0.01, scale_layout="linear", block_scale="four_over_six"
    ),
    "quantize, search": lambda x: nvfp4.quantize(
        x,
        global_scale=0.01,
        scale_layout="linear",
        block_scale="search",
        importance=torch.linspace(0, 2, x.shape[1], device=x.device),
    ),
    "gptq_block": lambda x: nvfp4.gptq_block(
        x[:, :16].float(), torch.linspace(1, 2, 256, device=x.device).view(16, 16), global_scale=0.01
    ),
    "silu_mul_quantize": lambda x: nvfp4.silu_mul_quantize(x, global_scale=0.01, scale_layout="linear"),
    "rms_norm_quantize": rms_norm,
}


def same_bytes(given: Rows, wanted: Rows, at: Tensor | slice) -> bool:
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b[at].contiguous().view(torch.uint8))
        for a, b in zip(given, wanted, strict=True)
    )


def some(count: int, generator: torch.Generator) -> list[Tensor]:
    """One row, a few, most in another order, and one row many times."""
    order = torch.randperm(count, generator=generator)
    return [order[:1], order[:3], order[2:], order[-1:].expand(count)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_row(operation: str, dtype: torch.dtype, backend: Backend, generator: torch.Generator) -> None:
    """Alone and among others, in an order of their own; with the largest values in another row."""
    count = 9 if backend.emulated else 150
    x = (torch.randn(count, COLUMNS, generator=generator) * 4).to(dtype)
    x[1] *= 100
    x = x.to(backend.device)
    whole = OPERATIONS[operation](x.clone())
    for rows in some(count, generator):
        at = rows.to(backend.device)
        assert same_bytes(OPERATIONS[operation](x[at].contiguous()), whole, at)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("experts", [5, 64])
def test_a_token(experts: int, dtype: torch.dtype, backend: Backend, generator: torch.Generator) -> None:
    """From its choices of experts to the sum of their results, which here are those of a function of token and
    expert: routed alone and beside others, also where those choose the same experts or none."""
    count, k, columns = 9 if backend.emulated else 150, 4, 136
    ids = torch.randint(-1, experts + 1, (count, k), generator=generator)
    ids[3:6] = ids[2]  # the same experts
    ids[6] = -1
    weights = torch.rand(count, k, generator=generator).to(dtype)
    results = torch.randn(count, experts, columns, generator=generator).to(dtype)
    seen = 0

    def computed(tokens: Tensor) -> Tensor:
        nonlocal seen
        rows, ends, places = nvfp4.moe_route(ids[tokens].to(backend.device), experts)
        slots = torch.arange(len(rows))
        expert = torch.searchsorted(ends.cpu(), slots.int(), right=True).clamp(max=experts - 1)
        y = results[tokens[rows.cpu().long()], expert]
        seen += int(ends[-1])
        return nvfp4.moe_combine(y.to(backend.device), places, weights[tokens].to(backend.device)).cpu()

    whole = computed(torch.arange(count))
    assert seen > count and not whole[6].any() and whole[0].isfinite().all()
    for tokens in some(count, generator):
        assert same_bytes((computed(tokens),), (whole,), tokens)
