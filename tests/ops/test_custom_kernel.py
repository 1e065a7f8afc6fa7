"""custom_kernel, on the competition's views. It takes no backend: it runs where its tensors are."""

from __future__ import annotations

import pytest
import torch
from conftest import Backend

import nvfp4
from nvfp4 import reference

SHAPES = [(128, 256, 256, 1), (128, 128, 512, 3), (1, 1, 16, 1), (5, 9, 48, 2), (129, 130, 464, 1), (200, 72, 1040, 2)]


def call(data: reference.Data) -> torch.Tensor:
    a, b, _, _, sfa, sfb, c = data
    return nvfp4.custom_kernel(a, b, sfa, sfb, c)


@pytest.mark.parametrize(("m", "n", "k", "l"), SHAPES)
def test_equal_bits(backend: Backend, m: int, n: int, k: int, l: int, generator: torch.Generator) -> None:  # noqa: E741
    seed = int(torch.randint(2**31, (), generator=generator))
    data = reference.generate_input(m, n, k, l, seed, device=backend.device)
    before = [x.view(torch.uint8).clone() for x in data[:6]]
    out = call(data)
    assert out is data[6]
    assert reference.check_implementation(data, out, exact=True) == (True, "every bit is equal")
    assert reference.check_implementation(data, out)[0]
    assert all(torch.equal(x.view(torch.uint8), y) for x, y in zip(data[:6], before, strict=True))


@pytest.mark.parametrize("scales", ["finite", "extreme", "zero", "nan"])
def test_harder_scales(backend: Backend, scales: str, generator: torch.Generator) -> None:
    """One block: exact under any scales, overflow and NaN included."""
    seed = int(torch.randint(2**31, (), generator=generator))
    data = reference.generate_input(130, 67, 16, 2, seed, scales=scales, device=backend.device)
    expected = reference.ref_kernel(data)
    assert reference.compare(call(data), expected, exact=True) == (True, "every bit is equal")


def test_same_as_gemm(backend: Backend, generator: torch.Generator) -> None:
    seed = int(torch.randint(2**31, (), generator=generator))
    data = reference.generate_input(65, 130, 528, 2, seed, scales="finite", device=backend.device)
    a, b, sfa, sfb = reference.batch_first(data)
    assert reference.compare(
        call(data).permute(2, 0, 1), nvfp4.gemm(a, b, sfa, sfb, scale_layout="linear"), exact=True
    )[0]


@pytest.mark.parametrize(("m", "k", "l"), [(130, 272, 3), (256, 1536, 1), (7, 64, 2)])
def test_vector_in_a_matrix(backend: Backend, m: int, k: int, l: int, generator: torch.Generator) -> None:  # noqa: E741
    """The competition's gemv: b is the first of 128 rows, batches lie 128 rows apart, and the other rows are NaN."""
    seed = int(torch.randint(2**31, (), generator=generator))
    data = reference.generate_input(m, 1, k, l, seed, b_rows=128, device=backend.device)
    a, b, _, _, sfa, sfb, c = data
    assert reference.check_implementation(data, nvfp4.custom_kernel(a, b[:1], sfa, sfb, c), exact=True)[0]


def test_the_stride_of_one_column_means_nothing(backend: Backend, generator: torch.Generator) -> None:
    seed = int(torch.randint(2**31, (), generator=generator))
    data = reference.generate_input(9, 1, 48, 2, seed, device=backend.device)
    a, b, _, _, sfa, sfb, c = data
    strange = torch.full_like(c, 7.0).as_strided(c.shape, (c.stride(0), 77, c.stride(2)))
    assert reference.check_implementation(data, nvfp4.custom_kernel(a, b, sfa, sfb, strange), exact=True)[0]


@pytest.mark.parametrize("test", reference.load_task()["tests"][:1], ids=str)
def test_first_of_the_ten(backend: Backend, test: dict[str, int]) -> None:
    """`python -m nvfp4 check` runs all ten."""
    data = reference.generate_input(**test, device=backend.device)
    assert reference.check_implementation(data, call(data), exact=True)[0]
