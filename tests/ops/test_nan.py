"""NaN goes where it belongs: a NaN scale to its own row or column, the bytes of padding nowhere."""

from __future__ import annotations

import pytest
import torch
from conftest import Backend, one_in

import nvfp4
from nvfp4 import reference

NAN = reference.E4M3_NAN


@pytest.mark.parametrize("layout", ["128x4", "linear"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("values", ["random", "zero"])
@pytest.mark.parametrize("nan_byte", [0x7F, 0xFF])
@pytest.mark.parametrize(("m", "n", "k"), one_in(2, [(1, 1, 16), (129, 66, 272), (5, 9, 48), (40, 131, 1040)]))
def test_nan_scales(
    backend: Backend,
    m: int,
    n: int,
    k: int,
    nan_byte: int,
    values: str,
    dtype: torch.dtype,
    layout: str,
    generator: torch.Generator,
) -> None:
    """Even where the 4-bit values are all zero; and every other result keeps its exact value."""

    def operand(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        data = torch.randint(
            0, 256 if values == "random" else 1, (rows, k // 2), dtype=torch.uint8, generator=generator
        )
        choices = torch.tensor(reference.SCALE_SETS["contest"], dtype=torch.uint8)
        scale = choices[torch.randint(0, 4, (rows, k // 16), generator=generator)]
        bad = torch.rand(rows, generator=generator) < 0.2
        column = torch.randint(0, k // 16, (rows,), generator=generator)
        scale[bad, column[bad]] = nan_byte
        return data, scale, bad

    (a, scale_a, bad_a), (b, scale_b, bad_b) = operand(m), operand(n)
    args = [a, b, *((reference.swizzle(x, NAN) if layout == "128x4" else x) for x in (scale_a, scale_b))]
    args = [x.to(backend.device) for x in args]
    got = nvfp4.gemm(*args, out_dtype=dtype, scale_layout=layout, backend=backend.name)
    assert torch.equal(got.isnan().cpu(), bad_a[:, None] | bad_b[None, :])
    expected = reference.gemm(*args, out_dtype=dtype, scale_layout=layout)
    assert reference.compare(got, expected, exact=True) == (True, "every bit is equal")


@pytest.mark.parametrize("padding", [0x00, 0x7E, 0x7F, 0xFF])
def test_padding_of_the_scales(backend: Backend, padding: int, generator: torch.Generator) -> None:
    """Whatever the padding holds, the bits of the result are the same."""
    results = []
    seed = int(torch.randint(2**31, (), generator=generator))
    for byte in (0x55, padding):
        data = reference.generate_input(131, 77, 336, 2, seed, scales="finite", padding=byte, device=backend.device)
        a, b, _, _ = reference.batch_first(data)
        scales = [x.permute(5, 2, 4, 0, 1, 3).view(torch.uint8) for x in data[4:6]]
        results.append(nvfp4.gemm(a, b, *scales, out_dtype=torch.float32, backend=backend.name))
    assert torch.equal(*results)


def test_sign_bit_of_a_scale_is_ignored(backend: Backend, generator: torch.Generator) -> None:
    seed = int(torch.randint(2**31, (), generator=generator))
    data = reference.generate_input(33, 70, 112, 1, seed, scales="finite", device=backend.device)
    a, b, sfa, sfb = reference.batch_first(data)
    options = {"out_dtype": torch.float32, "scale_layout": "linear", "backend": backend.name}
    plain, signed = nvfp4.gemm(a, b, sfa, sfb, **options), nvfp4.gemm(a, b, sfa | 0x80, sfb | 0x80, **options)
    assert torch.equal(plain, signed)
