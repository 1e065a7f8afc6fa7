"""Products whose sums fp32 must round: the error stays within what the order of summation allows, derived here.

Let u = 2^-24 be half a unit in the last place of fp32, and S the sum of |a_i * b_i| of one result.

A chain of n additions, each rounded to nearest, is off by at most gamma(n) * S with gamma(n) = n*u / (1 - n*u)
(Higham, Accuracy and Stability of Numerical Algorithms, section 4.2), whatever the order: every product is exact and
passes through at most n additions.

  cpu   the sum of a block of 16 is an exact integer times an exact product of two scales; its fused multiply-add into
        the running sum rounds once. K/16 blocks, so at most K/16 roundings for a term, and at most 8 more where the
        sums of vector lanes or of parts of K are added up.
  amx   of the CPU adds products one by one or in pairs, to nearest: at most K roundings, and 8 as above.
  sm80  one tensor core instruction adds 16 products (8 at a time on some chips) to the running sum. It aligns its
        terms to the largest one and cuts what falls below that one's 24 bits, so each of up to 17 terms loses less
        than 2u times the largest, which is at most S; then the sum is cut, another 2u. Per 16 values of K that is
        2 * (17 + 1) * u * S at most, twice that where 8 are added at a time. Parts of K are added up to nearest:
        at most 64 more.
  sm90  wgmma adds 16 products to the running sum, as sm80's instruction does; at most 8 parts of K. For a few rows of
        A there is no tensor core: sums of 16 are exact integers, as on the CPU.
  sm100 one instruction takes 64 values of K: four sums of 16 products, each exact, and the running sum. It cuts these
        five below 35 bits of the largest, less than 2^-33 * S each, and their sum to fp32, less than 2u * S: less than
        3u * S in all. The at most 8 parts of K are added up to nearest.
  sm120 mma.sync takes 64 values of K likewise, as the emulator defines it: what the hardware does is not known.

Against the definition, which rounds its own fp64 sum to fp32 once (u * S).
"""

from __future__ import annotations

import pytest
import torch
from backend_table import ON_GPU
from conftest import Backend, is_emulated, one_in
from error_bounds import U, gamma, roundings

import nvfp4
from nvfp4 import reference

SHAPES = [
    (1, 64, 16),
    (1, 300, 7168),
    (3, 129, 464),
    (16, 257, 4096),
    (17, 64, 16384),
    (128, 96, 2048),
    (130, 200, 1040),
    (257, 131, 528),
]


DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Emulated, each product has one of the types: they differ in one rounding, which test_epilogue.py compares to the bit.
PRODUCTS = [(shape, layout) for shape in SHAPES for layout in ("128x4", "linear")]
CASES = [(*shape, DTYPES[(i + j) % 3], layout) for i, (shape, layout) in enumerate(PRODUCTS) for j in range(3)]


def kernel(backend: Backend) -> str:
    return nvfp4.info()["cpu_kernel"] if backend.name == "cpu" else backend.name


@pytest.mark.parametrize(("m", "n", "k", "out_dtype", "scale_layout"), one_in(3, CASES) if is_emulated() else CASES)
def test_random_data(
    backend: Backend,
    m: int,
    n: int,
    k: int,
    out_dtype: torch.dtype,
    scale_layout: str,
    generator: torch.Generator,
) -> None:
    seed = int(torch.randint(2**31, (), generator=generator))
    data = reference.generate_input(m, n, k, 1, seed, scales="finite", device=backend.device)
    a, b, sfa, sfb = (x[0] for x in reference.batch_first(data))
    scales = (reference.swizzle(x, reference.E4M3_NAN) if scale_layout == "128x4" else x for x in (sfa, sfb))
    alpha = 2.0**-14  # a multiplication that rounds nothing, and keeps sums of random signs in the range of fp16
    options = {"alpha": alpha, "out_dtype": out_dtype, "scale_layout": scale_layout, "backend": backend.name}
    got = nvfp4.gemm(a, b, *scales, **options).double()

    x, y = (reference.operand(*pair, "linear")[0].double() for pair in ((a, sfa), (b, sfb)))
    expected = alpha * (x @ y.mT)
    bound = (gamma(roundings(kernel(backend), k)) + U) * alpha * (x.abs() @ y.abs().mT)
    if out_dtype != torch.float32:
        info = torch.finfo(out_dtype)
        bound += info.eps / 2 * (expected.abs() + bound) + info.tiny * info.eps / 2  # half a step
    assert expected.abs().max() < torch.finfo(out_dtype).max
    wrong = ~((got - expected).abs() <= bound)
    assert not wrong.any(), (
        f"{int(wrong.sum())} wrong, the worst by {((got - expected).abs() / bound).max():.3g} bounds"
    )


def test_the_bounds_are_tight_enough_to_see_a_block_left_out() -> None:
    """One block of 256, scales of 1: in most results on the CPU, sm100 and sm120, in some on sm80: in no tensor
    unseen."""
    generator = torch.Generator().manual_seed(0)
    x, y = (
        reference.decode_e2m1(torch.randint(0, 256, (64, 2048), dtype=torch.uint8, generator=generator)).double()
        for _ in range(2)
    )
    difference = (x[:, -16:] @ y[:, -16:].mT).abs()
    shares = dict.fromkeys(ON_GPU, 0.2) | {"avx512vnni": 0.9, "amx": 0.7, "sm100": 0.9, "sm120": 0.9}
    for name, share in shares.items():
        bound = (gamma(roundings(name, 4096)) + U) * (x.abs() @ y.abs().mT)
        assert (difference > bound).double().mean() > share


@pytest.mark.parametrize("scales", ["extreme", "zero"])
def test_extreme_scales(backend: Backend, scales: str, generator: torch.Generator) -> None:
    """Scales of 2^-9 and 448 side by side: small blocks must not be lost before they are added up."""
    seed = int(torch.randint(2**31, (), generator=generator))
    data = reference.generate_input(65, 130, 272, 1, seed, scales=scales, device=backend.device)
    a, b, sfa, sfb = (x[0] for x in reference.batch_first(data))
    options = {"out_dtype": torch.float32, "scale_layout": "linear", "backend": backend.name}
    got = nvfp4.gemm(a, b, sfa, sfb, **options).double()
    x, y = (reference.operand(*pair, "linear")[0].double() for pair in ((a, sfa), (b, sfb)))
    bound = (gamma(roundings(kernel(backend), 272)) + U) * (x.abs() @ y.abs().mT)
    assert ((got - x @ y.mT).abs() <= bound).all()
