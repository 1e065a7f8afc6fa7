"""The two scale layouts: conversions both ways, against an index formula written here."""

from __future__ import annotations

import pytest
import torch
from conftest import Backend
from guarded_buffers import Guarded

import nvfp4
from nvfp4 import reference

SIZES = [
    (1, 1),
    (1, 4),
    (3, 5),
    (31, 2),
    (32, 3),
    (33, 4),
    (127, 7),
    (128, 4),
    (128, 29),
    (129, 1),
    (257, 64),
    (300, 9),
]


def offset(row: int, column: int, columns: int) -> int:
    """A 128x4 block is 512 bytes; blocks run along K first. In a block, 16 bytes hold rows r, r+32, r+64 and r+96,
    4 bytes each, one for every column."""
    block = row // 128 * ((columns + 3) // 4) + column // 4
    return 512 * block + 16 * (row % 32) + 4 * (row // 32 % 4) + column % 4


def scales(rows: int, columns: int, batch: int | None, generator: torch.Generator) -> torch.Tensor:
    shape = (rows, columns) if batch is None else (batch, rows, columns)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("batch", [None, 1, 3])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_swizzle(
    backend: Backend, rows: int, columns: int, batch: int | None, dtype: torch.dtype, generator: torch.Generator
) -> None:
    linear = scales(rows, columns, batch, generator)
    swizzled = nvfp4.swizzle(linear.to(backend.device).view(dtype))
    assert swizzled.dtype == dtype and swizzled.is_contiguous()
    size = -(-rows // 128) * -(-columns // 4) * 512
    expected = bytearray(size * (batch or 1))
    for i, matrix in enumerate(linear.view(-1, rows, columns).tolist()):
        for row, line in enumerate(matrix):
            for column, byte in enumerate(line):
                expected[i * size + offset(row, column, columns)] = byte
    assert bytes(swizzled.view(torch.uint8).flatten().tolist()) == bytes(expected)
    assert torch.equal(reference.swizzle(linear).flatten(), swizzled.cpu().view(torch.uint8).flatten())
    back = nvfp4.unswizzle(swizzled, rows, columns)
    assert back.dtype == dtype
    assert torch.equal(back.cpu().view(torch.uint8).reshape(linear.shape), linear)
    assert torch.equal(
        reference.unswizzle(swizzled, rows, columns).cpu().view(torch.uint8), linear.view(-1, rows, columns)
    )


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_padding_is_not_read(backend: Backend, rows: int, columns: int, generator: torch.Generator) -> None:
    linear = scales(rows, columns, None, generator)
    padded = reference.swizzle(linear, padding=reference.E4M3_NAN).to(backend.device)
    assert torch.equal(nvfp4.unswizzle(padded, rows, columns).cpu().reshape(linear.shape), linear)


def test_rows_with_a_pitch(backend: Backend, generator: torch.Generator) -> None:
    linear = scales(130, 7, None, generator)
    placed = Guarded(linear.shape, linear.dtype, backend.device, generator=generator, pitch=32, values=linear)
    assert torch.equal(nvfp4.swizzle(placed.tensor).cpu().flatten(), reference.swizzle(linear).flatten())
    assert placed.unchanged()


def test_both_layouts_give_the_same_product(backend: Backend, generator: torch.Generator) -> None:
    """Any scales, not only integers: the layout changes addresses, not the order of the sum."""
    a, b = (torch.randint(0, 256, (rows, 232), dtype=torch.uint8, generator=generator) for rows in (67, 131))
    sfa, sfb = (torch.randint(0, 127, (rows, 29), dtype=torch.uint8, generator=generator) for rows in (67, 131))
    options = {"out_dtype": torch.float32, "backend": backend.name}
    a, b, sfa, sfb = (x.to(backend.device) for x in (a, b, sfa, sfb))
    swizzled = nvfp4.gemm(a, b, nvfp4.swizzle(sfa), nvfp4.swizzle(sfb), scale_layout="128x4", **options)
    linear = nvfp4.gemm(a, b, sfa, sfb, scale_layout="linear", **options)
    assert torch.equal(swizzled, linear)


def test_competition_view() -> None:
    """sfa_permuted[r % 32, r % 128 / 32, r / 128, s % 4, s / 4, l] is the scale of row r, column s, batch l."""
    data = reference.generate_input(260, 5, 144, 2, seed=3, device="cpu")
    sfa, permuted = data[2].view(torch.uint8), data[4].view(torch.uint8)
    for row in range(260):
        for column in range(9):
            for batch in range(2):
                at = (row % 32, row % 128 // 32, row // 128, column % 4, column // 4, batch)
                assert permuted[at] == sfa[row, column, batch]
