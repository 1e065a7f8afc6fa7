"""Every 4-bit value under every scale byte, through the product."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import pytest
import torch
from conftest import Backend

import nvfp4
from nvfp4 import reference

LAYOUTS = ("128x4", "linear")


def e2m1(code: int) -> Fraction:
    """From the format's definition, apart from reference.py's tables."""
    magnitude = (0, Fraction(1, 2), 1, Fraction(3, 2), 2, 3, 4, 6)[code & 7]
    return -Fraction(magnitude) if code & 8 else Fraction(magnitude)


def e4m3(byte: int) -> Fraction | None:
    """None is NaN. Bit 7 is ignored."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if (exponent, mantissa) == (15, 7):
        return None
    return Fraction(mantissa, 512) if exponent == 0 else Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)


@functools.cache
def products() -> list[float]:
    """e2m1(code) times e4m3(byte) at 16*byte + code, which a float holds exactly; NaN where the scale is."""
    exact = [None if e4m3(byte) is None else e2m1(code) * e4m3(byte) for byte in range(256) for code in range(16)]
    assert all(value is None or Fraction(float(value)) == value for value in exact)
    return [math.nan if value is None else float(value) for value in exact]


def layout(scale: torch.Tensor, name: str) -> torch.Tensor:
    return reference.swizzle(scale, padding=reference.E4M3_NAN) if name == "128x4" else scale


@pytest.mark.parametrize("scale_layout", LAYOUTS)
@pytest.mark.parametrize("position", [0, 1, 15, 16, 33, 47])
@pytest.mark.parametrize("swap_ab", [False, True])
def test_every_value_under_every_scale(backend: Backend, position: int, scale_layout: str, swap_ab: bool) -> None:
    """Row 16*byte + code has that code at one position and that scale in its block; against a 1 at that position."""
    k = 48
    rows = torch.arange(4096)
    data = torch.zeros(4096, k // 2, dtype=torch.uint8)
    data[:, position // 2] = ((rows % 16) << (position % 2 * 4)).to(torch.uint8)
    scale = torch.zeros(4096, k // 16, dtype=torch.uint8)
    scale[:, position // 16] = (rows // 16).to(torch.uint8)
    one = torch.zeros(1, k // 2, dtype=torch.uint8)
    one[0, position // 2] = 0x2 << (position % 2 * 4)
    ones = torch.full((1, k // 16), 0x38, dtype=torch.uint8)

    to = backend.device
    x = (data.to(to), layout(scale, scale_layout).to(to))
    y = (one.to(to), layout(ones, scale_layout).to(to))
    (a, scale_a), (b, scale_b) = (y, x) if swap_ab else (x, y)
    options = {"scale_layout": scale_layout, "backend": backend.name}
    out = nvfp4.gemm(a, b, scale_a, scale_b, out_dtype=torch.float32, **options).flatten().tolist()

    assert len(out) == len(products())
    for row, (got, wanted) in enumerate(zip(out, products())):
        assert got == wanted or (math.isnan(got) and math.isnan(wanted)), divmod(row, 16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("position", [*range(8), 63])
def test_every_value_under_every_scale_in_w4a16(backend: Backend, position: int, dtype: torch.dtype) -> None:
    """The same of B against a 1 of 16 bits, at every position of a word, by the kernels for few rows of A."""
    k = 64
    rows = torch.arange(4096)
    data = torch.zeros(4096, k // 2, dtype=torch.uint8)
    data[:, position // 2] = ((rows % 16) << (position % 2 * 4)).to(torch.uint8)
    scale = torch.zeros(4096, k // 16, dtype=torch.uint8)
    scale[:, position // 16] = (rows // 16).to(torch.uint8)
    one = torch.zeros(1, k, dtype=dtype)
    one[0, position] = 1.0
    operands = [x.to(backend.device) for x in (one, data, layout(scale, "128x4"))]
    a, b, scale_b = operands
    out = nvfp4.gemm(a, b, None, scale_b, out_dtype=torch.float32, backend=backend.name).flatten().tolist()
    for row, (got, wanted) in enumerate(zip(out, products(), strict=True)):
        assert got == wanted or (math.isnan(got) and math.isnan(wanted)), divmod(row, 16)


@pytest.mark.parametrize("scale_layout", LAYOUTS)
def test_every_pair_of_scales(backend: Backend, scale_layout: str, generator: torch.Generator) -> None:
    """One block of 16 random values: its sum is exact in fp32 under any two scales (at most 12 + 8 bits)."""
    scale = torch.arange(127, dtype=torch.uint8).unsqueeze(1)
    a, b = (torch.randint(0, 256, (127, 8), dtype=torch.uint8, generator=generator) for _ in range(2))
    args = [x.to(backend.device) for x in (a, b, layout(scale, scale_layout), layout(scale, scale_layout))]
    out = nvfp4.gemm(*args, out_dtype=torch.float32, scale_layout=scale_layout, backend=backend.name)
    expected = reference.gemm(*args, out_dtype=torch.float32, scale_layout=scale_layout)
    assert reference.compare(out, expected, exact=True) == (True, "every bit is equal")


@pytest.mark.parametrize("scale_layout", LAYOUTS)
def test_every_pair_of_values(backend: Backend, scale_layout: str) -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    data = torch.zeros(16, 24, dtype=torch.uint8)
    data[:, 11] = codes << 4
    scale = torch.full((16, 3), 0x38, dtype=torch.uint8)
    x = (data.to(backend.device), layout(scale, scale_layout).to(backend.device))
    options = {"scale_layout": scale_layout, "backend": backend.name}
    out = nvfp4.gemm(x[0], x[0], x[1], x[1], out_dtype=torch.float32, **options)
    assert out.tolist() == [[float(e2m1(i) * e2m1(j)) for j in range(16)] for i in range(16)]
