"""quantize and dequantize, bit for bit against the definition and against one written here in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FULL, Backend
from guarded_buffers import Guarded

import nvfp4
from nvfp4 import reference

LAYOUTS = ["128x4", "linear"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
NAN = reference.E4M3_NAN
E2M1_EDGES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]  # between code i and i + 1


def numpy_quantize(x: np.ndarray, g: float) -> tuple[np.ndarray, np.ndarray]:
    """[rows, K] fp32 to codes [rows, K] and scale bytes [rows, K/16]; rounding by comparing with every neighbour."""
    g32 = np.float32(g)
    table = np.array([i / 512 if i < 8 else (8 + i % 8) / 8 * 2.0 ** (i // 8 - 7) for i in range(127)])
    blocks = x.astype(np.float32).reshape(x.shape[0], -1, 16)
    with np.errstate(all="ignore"):
        amax = np.abs(blocks).max(-1)
        wanted = (amax / np.float32(6) / g32).astype(np.float64)
        distance = np.abs(np.minimum(wanted, 448)[..., None] - table)
        distance = np.where(np.isnan(distance), 0, distance)
        nearest = distance == distance.min(-1, keepdims=True)
        # of two equally near take the even one
        scale = np.where(nearest & (np.arange(127) % 2 == 0), np.arange(127), -1).max(-1)
        scale = np.where(scale < 0, nearest.argmax(-1), scale)
        scale = np.where(np.isnan(wanted), NAN, scale)
        scale = np.where(amax == 0, 0, scale).astype(np.uint8)
        values = np.append(table, np.nan).astype(np.float32)[scale]
        q = blocks / (values * g32)[..., None]
        code = np.zeros(q.shape, np.uint8)
        for i, edge in enumerate(E2M1_EDGES):
            code += (np.abs(q) > edge) | ((np.abs(q) == edge) & (i % 2 == 1))
        code |= np.signbit(q).astype(np.uint8) << 3
        keep = ((scale != 0) & (scale != NAN))[..., None] & ~np.isnan(q)
    return np.where(keep, code, 0).reshape(x.shape), scale


def codes(data: torch.Tensor) -> torch.Tensor:
    byte = data.cpu().view(torch.uint8)
    return torch.stack([byte & 15, byte >> 4], dim=-1).flatten(-2)


def linear(scale: torch.Tensor, x: torch.Tensor, layout: str) -> torch.Tensor:
    rows, columns = x.shape[-2], x.shape[-1] // 16
    byte = scale.cpu().view(torch.uint8)
    byte = reference.unswizzle(byte, rows, columns) if layout == "128x4" else byte
    return byte.reshape(*x.shape[:-1], columns)


def check(x: torch.Tensor, backend: Backend, layout: str = "linear", g: float | torch.Tensor | None = None) -> None:
    data, scale = nvfp4.quantize(x.to(backend.device), global_scale=g, scale_layout=layout)
    assert data.shape == (*x.shape[:-1], x.shape[-1] // 2)
    expected_data, expected_scale = reference.quantize(x, global_scale=1.0 if g is None else g, scale_layout=layout)
    assert torch.equal(scale.cpu().view(torch.uint8).flatten(), expected_scale.flatten())  # padding is zeros
    assert torch.equal(data.cpu().view(torch.uint8), expected_data)
    numpy_codes, numpy_scale = numpy_quantize(
        x.float().reshape(-1, x.shape[-1]).numpy(), 1.0 if g is None else float(g)
    )
    assert np.array_equal(codes(data).reshape(numpy_codes.shape).numpy(), numpy_codes)
    assert np.array_equal(linear(scale, x, layout).reshape(numpy_scale.shape).numpy(), numpy_scale)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (3, 48), (129, 80), (5, 464), (2, 130, 144), (3, 1, 16)])
def test_random(
    backend: Backend, shape: tuple[int, ...], dtype: torch.dtype, layout: str, generator: torch.Generator
) -> None:
    x = torch.randn(shape, generator=generator) * 10 ** torch.randn(*shape[:-1], 1, generator=generator)
    check(x.to(dtype), backend, layout)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_pattern(backend: Backend, dtype: torch.dtype) -> None:
    """In order, so that a block holds neighbours; and each alone in its block beside a 6, where the scale is 1."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    check(x.view(64, 1024), backend)
    alone = torch.zeros(65536, 16, dtype=dtype)
    alone[:, 3], alone[:, 7] = x, 6.0
    check(alone, backend)


def test_every_edge_of_a_value(backend: Backend) -> None:
    """The seven ties and their fp32 neighbours, of both signs, under a scale of 1."""
    edges = torch.tensor(E2M1_EDGES)
    near = torch.cat([edges, torch.nextafter(edges, torch.tensor(9.0)), torch.nextafter(edges, torch.tensor(0.0))])
    near = torch.cat([near, -near])
    x = torch.zeros(len(near), 16)
    x[:, 0], x[:, 9] = near, 6.0
    check(x, backend)
    data, _ = nvfp4.quantize(x[:7].to(backend.device), scale_layout="linear")
    assert codes(data)[:, 0].tolist() == [0, 2, 2, 4, 4, 6, 6]


def test_every_edge_of_a_scale(backend: Backend) -> None:
    """Between each two scales: the tie and its fp32 neighbours. 6 times them divides back exactly or nearly so."""
    table = reference.e4m3_table()[:NAN]
    ties = torch.cat([(table[1:] + table[:-1]) / 2, table, torch.tensor([448.0, 464.0, 1e9])]) * 6
    near = torch.cat([ties, torch.nextafter(ties, torch.tensor(1e10)), torch.nextafter(ties, torch.tensor(0.0))])
    x = torch.zeros(len(near), 16)
    x[:, 5] = near
    check(x, backend)
    for g in (0.75, 3.0, 2.0**-20):
        check(x * g, backend, g=g)


def test_hardly_anything_and_too_much(backend: Backend) -> None:
    """Below half of the least scale a block is zeros, in place of a value over nothing; above 448 it saturates."""
    x = torch.zeros(8, 16)
    for row, value in enumerate([0.0, -0.0, 1e-45, 6 * 2.0**-11, 6 * 2.0**-10, 6 * 1.01 * 2.0**-10, 1e10, 3e38]):
        x[row, row] = -value
    check(x, backend)
    data, scale = nvfp4.quantize(x.to(backend.device), scale_layout="linear")
    assert scale.cpu().view(torch.uint8).flatten().tolist() == [0, 0, 0, 0, 0, 1, 126, 126]
    assert data[:5].cpu().view(torch.uint8).count_nonzero() == 0
    got = nvfp4.dequantize(data, scale, scale_layout="linear")
    assert got[6:].min() == -6 * 448


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_and_infinity(backend: Backend, dtype: torch.dtype, layout: str, generator: torch.Generator) -> None:
    x = torch.randn(40, 64, generator=generator)
    x[torch.rand(x.shape, generator=generator) < 0.03] = math.inf
    x[torch.rand(x.shape, generator=generator) < 0.03] = -math.inf
    x[torch.rand(x.shape, generator=generator) < 0.01] = math.nan
    x = x.to(dtype)
    check(x, backend, layout)
    data, scale = nvfp4.quantize(x.to(backend.device), scale_layout=layout)
    back = nvfp4.dequantize(data, scale, scale_layout=layout).cpu()
    block_is_nan = x.isnan().view(40, 4, 16).any(-1, keepdim=True).expand(40, 4, 16).reshape(40, 64)
    assert torch.equal(back.isnan(), block_is_nan) and not back.isinf().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_input_never_gives_nan(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Random bits as numbers: every exponent."""
    bits = torch.randint(0, 256, (512, 64 * dtype.itemsize), dtype=torch.uint8, generator=generator)
    x = bits.view(dtype)
    x = torch.where(x.isfinite(), x, 0)
    check(x, backend)
    for g in (1.0, 1e-3, 77.0):
        data, scale = nvfp4.quantize(x.to(backend.device), global_scale=g)
        assert nvfp4.dequantize(data, scale, global_scale=g).isfinite().all()


@pytest.mark.parametrize("form", ["float", "tensor"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_global_scale(backend: Backend, layout: str, form: str, generator: torch.Generator) -> None:
    x = torch.randn(33, 96, generator=generator) * 1000
    g = float(x.abs().max()) / (448 * 6)
    check(x, backend, layout, torch.tensor(g) if form == "tensor" and backend.device == "cpu" else g)
    scale_on_device = torch.tensor([g], device=backend.device) if form == "tensor" else g
    data, scale = nvfp4.quantize(x.to(backend.device), global_scale=scale_on_device, scale_layout=layout)
    got = nvfp4.dequantize(data, scale, global_scale=scale_on_device, scale_layout=layout)
    expected = reference.dequantize(data, scale, global_scale=g, scale_layout=layout)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("g", [0.0, -0.0, -1.0, math.inf, -math.inf, math.nan, 1e-46])
@pytest.mark.parametrize("form", [float, torch.tensor])
def test_rule_of_global_scale(g: float, form: Callable[[float], Any]) -> None:
    """The scale is given as a number and as a tensor that the host can read; 1e-46 is 0 in fp32."""
    with pytest.raises(nvfp4.Error, match=r"^global_scale: is .*; must be positive and finite$"):
        nvfp4.quantize(torch.ones(2, 16), global_scale=form(g))


def test_global_scale_of_which_six_times_overflows(backend: Backend, generator: torch.Generator) -> None:
    """The scale is amax / 6 / g, in this order: 6 g is not finite here."""
    x = torch.randn(8, 64, generator=generator).clamp(-3, 3) * 1e38
    check(x, backend, g=1e38)


def same_as_reference(x: torch.Tensor, layout: str, g: float = 1.0, block_scale: str = "amax6") -> bool:
    got = nvfp4.quantize(x, global_scale=g, scale_layout=layout, block_scale=block_scale)
    expected = reference.quantize(x.cpu(), global_scale=g, scale_layout=layout, block_scale=block_scale)
    return all(torch.equal(a.cpu().view(torch.uint8).flatten(), b.flatten()) for a, b in zip(got, expected))


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_over_random_units(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Quotients at and next to every tie, over units with all 24 bits; fp16 and bf16 get as near as they can."""
    rows = 1024
    for exponent in (-20, -3, 9):
        g = float(2.0**exponent * (1 + torch.rand(1, generator=generator)))
        code = torch.randint(8 if dtype == torch.float16 else 1, 120, (rows, 1), generator=generator)
        unit = reference.e4m3_table()[code] * torch.tensor(g)
        edge = torch.tensor(E2M1_EDGES)[torch.randint(0, 7, (rows, 64), generator=generator)]
        x = (edge * unit).view(torch.int32) + torch.randint(-2, 3, (rows, 64), dtype=torch.int32, generator=generator)
        x = x.view(torch.float32) * (torch.randint(0, 2, (rows, 64), generator=generator) * 2 - 1)
        x[:, ::16] = 6 * unit
        x = torch.where(x.to(dtype).isfinite(), x, 0).to(dtype).to(backend.device)
        for layout in LAYOUTS:
            assert same_as_reference(x, layout, g)


@pytest.mark.parametrize("dtype", DTYPES)
def test_global_scales_near_and_past_the_fast_range(
    backend: Backend, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """The GPU divides otherwise for global scales below 2^-48 and above 2^48."""
    bits = torch.randint(0, 256, (9, 64 * dtype.itemsize), dtype=torch.uint8, generator=generator)
    wild = bits.view(dtype)
    for g in (2.0**-49, 2.0**-48, 1.3 * 2.0**-48, 2.0**48, 1.7 * 2.0**48, 1e-45, 1e-38, 3e38):
        near = (torch.randn(9, 64, generator=generator) * 1000 * g).to(dtype)
        for x in (wild, near):
            assert same_as_reference(x.to(backend.device), "128x4", g)


@pytest.mark.parametrize("dtype", DTYPES)
def test_input_at_every_address(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Aligned to fewer than 16 bytes, in the first row or in odd batches alone."""
    for shape in ((3, 48), (2, 5, 16), (2, 130, 80)):
        values = torch.randn(shape, generator=generator).to(dtype)
        for offset in range(16 // dtype.itemsize):
            memory = torch.zeros(values.numel() + 64, dtype=dtype).to(backend.device)
            memory[offset : offset + values.numel()] = values.flatten()
            assert same_as_reference(memory[offset : offset + values.numel()].view(shape), "linear")
        batches = torch.zeros(2, shape[-2] * shape[-1] + 1, dtype=dtype).to(backend.device)
        batch = shape[-2] * shape[-1]
        x = batches.flatten().as_strided((2, *shape[-2:]), (batch + 1, shape[-1], 1))
        x.copy_(torch.randn(2, *shape[-2:], generator=generator))
        assert same_as_reference(x, "128x4")


@pytest.mark.parametrize(
    ("layout", "rows", "columns"), [("128x4", 1, 6403), ("128x4", 130, 16), ("linear", 8200, 33), ("linear", 1, 519)]
)
def test_many_tiles(backend: Backend, layout: str, rows: int, columns: int, generator: torch.Generator) -> None:
    """A CTA of the GPU takes up to three tiles of these rows one after another; some have less than a tile."""
    x = torch.randn(1, columns * 16, generator=generator).expand(rows, -1).to(torch.bfloat16)
    assert same_as_reference(x.to(backend.device), layout, 0.5)


def test_batches(backend: Backend, generator: torch.Generator) -> None:
    for batches, rows, columns in ((3, 64, 1), (2, 65, 4), (5, 1, 5), (2, 128, 3), (2, 257, 2)):
        x = torch.randn(batches, rows, columns * 16, generator=generator).to(backend.device)
        for layout in LAYOUTS:
            assert same_as_reference(x, layout)
            got = nvfp4.quantize(x, scale_layout=layout)
            expected = reference.dequantize(*(y.cpu() for y in got), scale_layout=layout)
            assert torch.equal(nvfp4.dequantize(*got, scale_layout=layout).cpu(), expected)


@pytest.mark.skipif(not FULL, reason="a minute on an emulated GPU: CI_FULL=1")
def test_more_rows_of_tiles_than_a_grid_has_along_y(backend: Backend, generator: torch.Generator) -> None:
    batches = 65600
    scale = torch.randint(0, 127, (batches, 1, 1), dtype=torch.uint8, generator=generator).to(backend.device)
    swizzled = nvfp4.swizzle(scale)
    assert torch.equal(swizzled.flatten(), reference.swizzle(scale).flatten())
    assert torch.equal(nvfp4.unswizzle(swizzled, 1, 1), scale)
    x = torch.randn(batches, 1, 16, generator=generator).to(backend.device)
    assert same_as_reference(x, "linear")
    got = nvfp4.quantize(x, scale_layout="linear")
    assert torch.equal(nvfp4.dequantize(*got, scale_layout="linear"), reference.dequantize(*got, scale_layout="linear"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 16), (5, 48), (130, 80), (2, 129, 144)])
def test_dequantize(
    backend: Backend, shape: tuple[int, ...], layout: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """All codes, all scale bytes with NaN among them and in the padding, overflow to infinity in fp16."""
    data = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), dtype=torch.uint8, generator=generator)
    scale = torch.randint(0, 256, (*shape[:-1], shape[-1] // 16), dtype=torch.uint8, generator=generator)
    scale = reference.swizzle(scale, padding=NAN) if layout == "128x4" else scale
    args = (data.to(backend.device), scale.to(backend.device))
    for g in (1.0, 0.3, 1000.0):
        got = nvfp4.dequantize(*args, global_scale=g, scale_layout=layout, out_dtype=dtype)
        assert got.dtype == dtype and got.shape == shape
        expected = reference.dequantize(*args, global_scale=g, scale_layout=layout, out_dtype=dtype)
        assert reference.compare(got, expected, exact=True) == (True, "every bit is equal")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantize_of_dequantized_changes_nothing(backend: Backend, layout: str, generator: torch.Generator) -> None:
    x = torch.randn(131, 208, generator=generator).to(backend.device)
    data, scale = nvfp4.quantize(x, scale_layout=layout)
    again = nvfp4.quantize(nvfp4.dequantize(data, scale, scale_layout=layout), scale_layout=layout)
    assert torch.equal(again[0].view(torch.uint8), data.view(torch.uint8))
    assert torch.equal(again[1].view(torch.uint8), scale.view(torch.uint8))


def test_error_is_within_the_format(backend: Backend, generator: torch.Generator) -> None:
    """A scale is at most 1/16 off where it is normal, so values reach up to 17/16 of 6: the step below 6 is 2, half of
    it is 1, and what saturates is off by at most 6/16; in units of the scale as rounded."""
    x = torch.randn(256, 512, generator=generator)
    data, scale = nvfp4.quantize(x.to(backend.device), scale_layout="linear")
    got = nvfp4.dequantize(data, scale, scale_layout="linear").cpu()
    steps = reference.decode_e4m3(scale.cpu()).repeat_interleave(16, dim=-1)
    assert ((got - x).abs() <= steps * (1 + 1e-6)).all()
    small = x.abs() <= 2 * steps
    assert ((got - x).abs()[small] <= steps[small] / 4 * (1 + 1e-6)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_four_over_six(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Random blocks; with NaN, infinities and zeros; all bit patterns; scales that saturate, vanish or are subnormal;
    global scales that take IEEE divisions; inputs aligned to a value."""
    x = torch.randn(130, 144, generator=generator) * 10 ** torch.randn(130, 1, generator=generator)
    wild = torch.randint(0, 256, (33, 160 * dtype.itemsize), dtype=torch.uint8, generator=generator).view(dtype)
    special = x.clone()
    special[torch.rand(x.shape, generator=generator) < 0.02] = math.inf
    special[torch.rand(x.shape, generator=generator) < 0.01] = math.nan
    special[:, :32] = 0
    for values, layout, g in (
        (x, "128x4", float(x.abs().max()) / (256 * 6)),
        (x, "linear", 0.05),
        (special, "128x4", 1.0),
        (wild, "linear", 1.0),
        (wild, "128x4", 2.0**-49),
        (wild, "128x4", 1.7 * 2.0**48),
    ):
        assert same_as_reference(values.to(dtype).contiguous().to(backend.device), layout, g, "four_over_six")
    memory = x.to(dtype).flatten().to(backend.device)
    assert same_as_reference(memory[1:145].view(9, 16), "linear", 0.3, "four_over_six")


def test_four_over_six_takes_the_smaller_error(backend: Backend, generator: torch.Generator) -> None:
    """In fp64, up to the roundings of fp32. Also for magnitudes whose squares no fp32 has. Both candidates of the last
    row are exact: it gets amax/6."""
    x = torch.randn(64, 256, generator=generator)
    x[-1] = 0.0
    x[-1, ::16], x[-1, 1::16] = 12.0, -6.0
    g = 2.0 ** math.ceil(math.log2(float(nvfp4.amax_scale(x, block_scale="four_over_six"))))
    blocks = x.view(-1, 16)
    amax = blocks.abs().amax(-1)

    def error(scale: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
        values = reference.e2m1_table()[code.int()].double() * reference.decode_e4m3(scale).view(-1, 1) * g
        return (values - blocks).square().sum(-1)

    six, four = (reference.encode(blocks, amax / largest / g, torch.tensor(g)) for largest in (6, 4))
    for exponent in (0, -100, 100):
        factor = 2.0**exponent
        data, scale = nvfp4.quantize(
            (x * factor).to(backend.device),
            global_scale=g * factor,
            scale_layout="linear",
            block_scale="four_over_six",
        )
        taken = scale.cpu().view(torch.uint8).flatten()
        smaller = torch.minimum(error(*six), error(*four))
        assert (error(taken, codes(data).view(-1, 16)) <= smaller * (1 + 1e-5)).all()
        assert 0.2 < (taken == four[0]).float().mean() < 0.8
        assert torch.equal(taken[-16:], six[0][-16:])


def same_scale(x: torch.Tensor) -> bool:
    """The scale of x, in each mode, is the one of the definition."""
    modes = ("amax6", "four_over_six")
    got = [nvfp4.amax_scale(x, block_scale=mode) for mode in modes]
    assert all(scale.shape == (1,) and scale.dtype == torch.float32 and scale.device == x.device for scale in got)
    return all(torch.equal(a.cpu(), reference.amax_scale(x.cpu(), block_scale=mode)) for a, mode in zip(got, modes))


@pytest.mark.parametrize("dtype", DTYPES)
def test_amax_scale(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """One CTA or several reduce. The workspace holds the result of an earlier call: each amax is below the one before.
    The largest value is anywhere, the quotient nearly always rounds."""
    for shape in ((1, 16), (3, 17), (2, 5, 33), (70, 512), (2, 37, 513), (0, 16), (2, 0)):
        x = torch.randn(shape, generator=generator).to(dtype)
        for factor in (1, 0.37, -0.0021):
            assert same_scale((x * factor).to(backend.device)), shape
    x = torch.zeros(70, 512, dtype=dtype)
    for at in (0, x.numel() - 1, int(torch.randint(0, x.numel(), (1,), generator=generator))):
        for value in (math.nan, -math.nan, math.inf, -math.inf, -3.0, torch.finfo(dtype).max, torch.finfo(dtype).tiny):
            x.view(-1)[at] = value
            assert same_scale(x.to(backend.device))
            assert math.isfinite(value) or nvfp4.amax_scale(x.to(backend.device)) == 1
            x.view(-1)[at] = 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_amax_scale_reads_the_rows_alone(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Random bytes lie between the rows and around them, NaN among them; data aligned to a value."""
    values = (torch.randn(37, 520, generator=generator) / 100).to(dtype)
    x = Guarded(values.shape, dtype, backend.device, generator=generator, pitch=528 * dtype.itemsize, values=values)
    assert same_scale(x.tensor) and same_scale(x.tensor[:, 1:517]) and x.unchanged()
    for offset in range(16 // dtype.itemsize):
        assert same_scale(values.view(-1)[offset : offset + 1200].view(24, 50).to(backend.device))


def test_edges_of_amax_scale(backend: Backend) -> None:
    """fp32 quotients: subnormal, rounded to 0, and on both sides of a tie in fp32."""
    for amax in (1e-45, 1.5e-42, 1.9e-42, 2.0e-42, 1e-38, 3.4e38, 2688.0, 1 + 2**-23, 2688 * (1 + 2**-23)):
        assert same_scale(torch.full((1, 16), -amax).to(backend.device))
    assert nvfp4.amax_scale(torch.full((1, 16), 1.5e-42).to(backend.device)) == 1  # 1.5e-42 / 2688 rounds to 0


def test_input_with_a_pitch(backend: Backend, generator: torch.Generator) -> None:
    for dtype in DTYPES:
        values = torch.randn(37, 48, generator=generator).to(dtype)
        x = Guarded((37, 48), dtype, backend.device, generator=generator, pitch=48 * dtype.itemsize + 16, values=values)
        for got, expected in zip(nvfp4.quantize(x.tensor), nvfp4.quantize(values.to(backend.device)), strict=True):
            assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
        assert x.unchanged()


@pytest.mark.parametrize("shape", [(0, 32), (5, 0), (0, 3, 16), (2, 0, 16)])
def test_nothing_to_do(backend: Backend, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, device=backend.device)
    for layout in LAYOUTS:
        data, scale = nvfp4.quantize(x, scale_layout=layout)
        assert data.shape == (*shape[:-1], shape[-1] // 2) and scale.numel() == 0
        assert nvfp4.dequantize(data, scale, scale_layout=layout).shape == shape


def test_gpu_and_cpu_agree(cuda: Backend, generator: torch.Generator) -> None:
    x = torch.randn(300, 1040, generator=generator)
    for mine, theirs in zip(nvfp4.quantize(x), nvfp4.quantize(x.cuda()), strict=True):
        assert torch.equal(mine.view(torch.uint8), theirs.cpu().view(torch.uint8))


FLOATS = "must be float16, bfloat16 or float32"


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (torch.zeros(2, 32, dtype=torch.int32), "int32"),
        (torch.zeros(2, 32, dtype=torch.int16), "torch.int16"),
        (torch.zeros(2, 32, dtype=torch.float64), "torch.float64"),
        (torch.zeros(2, 32, dtype=torch.uint8), "uint8"),
        (np.zeros((2, 32), np.int32), "int32"),
        (np.zeros((2, 32), np.float64), "float64"),
    ],
)
def test_a_dtype_error_lists_what_quantize_takes(x: object, dtype: str) -> None:
    """Neither uint8 nor float8_e4m3fn, which other arguments may have."""
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.quantize(x)
    assert str(error.value) == f"x: dtype is {dtype}; {FLOATS}"


def test_dtype_errors_of_operators_and_other_arguments() -> None:
    data, scale = nvfp4.quantize(torch.ones(2, 32), scale_layout="linear")
    with pytest.raises(RuntimeError, match=rf"^x: dtype is torch's number \d+; {FLOATS}"):
        torch.ops.nvfp4.quantize(
            torch.zeros(2, 32, dtype=torch.float64), torch.empty(0, dtype=torch.uint8), 1.0, "linear", "amax6"
        )
    for message, arguments in {
        "data: dtype is torch.int16; must be uint8 or float4_e2m1fn_x2": (data.short(), scale),
        "scale: dtype is torch.int16; must be float8_e4m3fn or uint8": (data, scale.float().short()),
    }.items():
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.dequantize(*arguments, scale_layout="linear")
        assert str(error.value) == message


def test_stride_errors_name_the_remedy() -> None:
    """Not for what is written: a copy would take the result."""
    for x in (torch.zeros(32, 16).T, torch.zeros(16, 64)[:, ::2]):
        with pytest.raises(
            nvfp4.Error, match=r"^x: stride of the last dimension is \d+; .*: pass a copy, \.contiguous\(\)$"
        ):
            nvfp4.quantize(x)
        nvfp4.quantize(x.contiguous())
    data, scale = nvfp4.quantize(torch.ones(4, 32), scale_layout="linear")
    with pytest.raises(nvfp4.Error, match=r"^data: stride of the last dimension is 2; must be 1 \(dense rows\)$"):
        nvfp4.silu_mul_quantize(
            torch.ones(4, 64), out=(torch.zeros(4, 32, dtype=torch.uint8)[:, ::2], scale), scale_layout="linear"
        )


def test_what_the_docstring_says_of_small_weights() -> None:
    """Its first lines: the errors with the default, and with the global scale that they name."""
    told = nvfp4.quantize.__doc__.partition("Args:")[0]
    assert "amax_scale(x)" in told and all(number in told for number in ("10.3 %", "9.5 %", "0.001 become zeros"))
    for sigma, error in ((0.02, 0.103), (0.001, 1.0)):
        w = torch.randn(2000, 256) * sigma
        for g, expected in ((1.0, error), (nvfp4.amax_scale(w), 0.095)):
            again = nvfp4.dequantize(*nvfp4.quantize(w, global_scale=g), global_scale=g)
            assert abs(float((again - w).norm() / w.norm()) - expected) < 0.001
