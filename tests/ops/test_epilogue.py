"""The epilogue of a sum: v = alpha * sum; v = fma(beta, c, v); v = v + bias; one rounding. NaN, infinity, overflow and
empty sizes are tested too."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import Backend
from guarded_buffers import Guarded

import nvfp4
from nvfp4 import reference

INF, NAN = math.inf, math.nan
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def product(backend: Backend, sums: list[float], **options: object) -> torch.Tensor:
    """gemm of one row whose sums are these: each an e2m1 value, or each one times 448^2."""
    unit, scale = (1.0, 0x38) if max(map(abs, sums)) <= 6 else (448.0**2, 0x7E)
    codes = [reference.e2m1_table().tolist().index(x / unit) for x in sums]
    a = torch.tensor([[0x2] + [0] * 7], dtype=torch.uint8)
    b = torch.tensor([[code] + [0] * 7 for code in codes], dtype=torch.uint8)
    scales = (torch.full((len(x), 1), scale, dtype=torch.uint8) for x in (a, b))
    args = [x.to(backend.device) for x in (a, b, *scales)]
    moved = {k: v.to(backend.device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    return nvfp4.gemm(*args, scale_layout="linear", backend=backend.name, **moved)


def same(got: torch.Tensor, expected: list[float]) -> bool:
    want = torch.tensor([expected], dtype=torch.float64).to(got.dtype)
    return reference.compare(got.cpu(), want, exact=True)[0]


def test_no_double_rounding(backend: Backend) -> None:
    """3 * (1/3 in fp32) is 1 exactly after one rounding; 1 + 2^-11 ties to even in fp16."""
    assert same(product(backend, [3.0], alpha=1 / 3, out_dtype=torch.float32), [1.0])
    assert same(product(backend, [1.0], alpha=1 + 2**-11), [1.0])
    assert same(product(backend, [1.0], alpha=1 + 2**-11 + 2**-23), [1 + 2**-10])
    assert same(product(backend, [1.0], alpha=1 + 3 * 2**-11), [1 + 2**-9])
    assert same(product(backend, [1.0], alpha=1 + 2**-8, out_dtype=torch.bfloat16), [1.0])
    assert same(product(backend, [1.0], alpha=1 + 3 * 2**-8, out_dtype=torch.bfloat16), [1 + 2**-6])


def test_beta_is_a_fused_multiply_add(backend: Backend) -> None:
    """(1 + 2^-12)^2 - 1 keeps its last bit, 2^-24, only if beta * c is not rounded by itself."""
    x = 1 + 2**-12
    c = torch.tensor([[x]])
    got = product(backend, [-1.0], c=c, beta=x, out_dtype=torch.float32)
    assert same(got, [2**-11 + 2**-24])


def test_bias_is_added_last(backend: Backend) -> None:
    """2^24 + 1 is lost, then -2^24 leaves 0: in another order 1 would remain."""
    c = torch.tensor([[1.0]])
    got = product(
        backend, [1.0], alpha=2.0**24, c=c, beta=1.0, bias=torch.tensor([-(2.0**24)]), out_dtype=torch.float32
    )
    assert same(got, [0.0])


def test_alpha_is_applied_before_beta(backend: Backend) -> None:
    got = product(backend, [1.0], alpha=2.0**127, c=torch.tensor([[2.0]]), beta=-(2.0**126), out_dtype=torch.float32)
    assert same(got, [0.0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_bias_is_no_addition(backend: Backend, dtype: torch.dtype) -> None:
    """-0 + 0 is +0: a bias of zeros turns the sign that c leaves, no bias keeps it."""
    c = torch.full((1, 3), -0.0, dtype=dtype)
    options = {"alpha": -1.0, "c": c, "beta": 1.0, "out_dtype": dtype}
    assert same(product(backend, [0.0] * 3, **options), [-0.0] * 3)
    assert same(product(backend, [0.0] * 3, **options, bias=torch.zeros(3, dtype=dtype)), [0.0] * 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_overflow(backend: Backend, dtype: torch.dtype) -> None:
    """6 * 448 * 448 = 1204224 is infinite in fp16 alone, and keeps its sign."""
    got = product(backend, [6 * 448.0**2, -6 * 448.0**2], out_dtype=dtype)
    big = INF if dtype == torch.float16 else float(torch.tensor(6 * 448.0**2).to(dtype))
    assert same(got, [big, -big])


def test_the_edge_of_fp16(backend: Backend) -> None:
    """65504 is the largest; 65520 and beyond round to infinity."""
    assert same(product(backend, [1.0], alpha=65504.0), [65504.0])
    assert same(product(backend, [1.0], alpha=65520.0 - 2**-8), [65504.0])
    assert same(product(backend, [1.0, -1.0], alpha=65520.0), [INF, -INF])


def test_subnormal_results(backend: Backend) -> None:
    """fp16 rounds at 2^-24, ties to even, and nothing is flushed to zero on the way."""
    assert same(product(backend, [1.0], alpha=2.0**-24), [2.0**-24])
    assert same(product(backend, [1.0], alpha=2.0**-25), [0.0])
    assert same(product(backend, [3.0, -3.0], alpha=2.0**-25), [2.0**-23, -(2.0**-23)])
    assert same(product(backend, [1.0], alpha=2.0**-149, out_dtype=torch.float32), [2.0**-149])
    assert same(product(backend, [0.5, 1.5], alpha=2.0**-133, out_dtype=torch.bfloat16), [0.0, 2.0**-132])


@pytest.mark.parametrize("alpha", [INF, -INF, NAN, 0.0, -0.0])
@pytest.mark.parametrize("form", ["float", "one", "vector"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha_that_is_not_a_plain_number(backend: Backend, alpha: float, form: str, dtype: torch.dtype) -> None:
    """alpha = 0 multiplies as any other number."""
    sums = [1.0, -2.0, 0.0]
    value = {"float": alpha, "one": torch.tensor([alpha]), "vector": torch.tensor([alpha] * 3)}[form]
    got = product(backend, sums, alpha=value, out_dtype=dtype)
    assert same(got, (torch.tensor(alpha) * torch.tensor(sums)).tolist())


def test_beta_zero_does_not_read_c(backend: Backend) -> None:
    c = torch.full((1, 2), NAN, dtype=torch.float16)
    assert same(product(backend, [1.0, 2.0], c=c, beta=0.0), [1.0, 2.0])


def test_c_may_hold_anything(backend: Backend) -> None:
    c = torch.tensor([[INF, -INF, NAN, 1.0]], dtype=torch.float16)
    assert same(product(backend, [1.0] * 4, c=c, beta=-1.0), [-INF, INF, NAN, 0.0])
    assert same(product(backend, [1.0] * 4, c=c, beta=INF), [INF, -INF, NAN, INF])


@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_in_both_types(backend: Backend, dtype: torch.dtype) -> None:
    bias = torch.tensor([0.1, -7.3, 1e-3])
    for typed in (bias, bias.to(dtype)):
        got = product(backend, [1.0, 2.0, 3.0], bias=typed, out_dtype=dtype)
        assert same(got, (torch.tensor([1.0, 2.0, 3.0]) + typed.float()).tolist())


@pytest.mark.parametrize("dtype", DTYPES)
def test_default_output_is_new_and_dense(backend: Backend, dtype: torch.dtype) -> None:
    got = product(backend, [1.0, 2.0], out_dtype=dtype)
    assert got.shape == (1, 2) and got.dtype == dtype and got.is_contiguous() and got.device.type == backend.device


@pytest.mark.parametrize("layout", ["128x4", "linear"])
@pytest.mark.parametrize("c_is_out", [False, True])
@pytest.mark.parametrize("batch", [None, 2])
def test_no_k(backend: Backend, layout: str, c_is_out: bool, batch: int | None, generator: torch.Generator) -> None:
    """K = 0: the sums are 0 and the rest happens all the same."""
    lead = () if batch is None else (batch,)
    shape = (*lead, 5, 7)
    empty = [torch.empty(*lead, rows, 0, dtype=torch.uint8, device=backend.device) for rows in (5, 7, 5, 7)]
    c, bias = torch.randn(shape, generator=generator), torch.randn(7, generator=generator)
    out = Guarded(shape, torch.float32, backend.device, generator=generator, values=c if c_is_out else None)
    given = out.tensor if c_is_out else c.to(backend.device)
    options = {"c": given, "beta": 0.5, "bias": bias.to(backend.device), "alpha": 3.0, "scale_layout": layout}
    nvfp4.gemm(*empty, **options, out=out.tensor, backend=backend.name)
    assert torch.equal(out.tensor.cpu(), 0.5 * c + bias)
    assert out.unchanged_around()


@pytest.mark.parametrize("layout", ["128x4", "linear"])
@pytest.mark.parametrize("size", [(0, 5, 32, None), (5, 0, 32, None), (0, 0, 0, None), (3, 4, 32, 0), (0, 4, 48, 2)])
def test_nothing_to_do(backend: Backend, size: tuple[int, int, int, int | None], layout: str) -> None:
    m, n, k, batch = size
    lead = () if batch is None else (batch,)

    def operand(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        scale = torch.zeros(*lead, rows, k // 16, dtype=torch.uint8)
        scale = reference.swizzle(scale) if layout == "128x4" else scale
        return torch.zeros(*lead, rows, k // 2, dtype=torch.uint8, device=backend.device), scale.to(backend.device)

    (a, scale_a), (b, scale_b) = operand(m), operand(n)
    out = nvfp4.gemm(a, b, scale_a, scale_b, scale_layout=layout, backend=backend.name)
    assert out.shape == (*lead, m, n) and out.dtype == torch.float16
