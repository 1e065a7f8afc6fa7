"""quantize with block_scale="search", with importance and without, and gptq_block: bit for bit against the definition,
and against exhaustive searches in fp64."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import Backend
from guarded_buffers import Guarded

import nvfp4
from nvfp4 import reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SPANS = (2.0**-49, 2.0**-48, 0.3, 1.7 * 2.0**48, 1e-38, 3e38)  # global scales in and out of the fast range


def same_search(x: torch.Tensor, layout: str, g: float | torch.Tensor, importance: torch.Tensor | None = None) -> bool:
    given = {"scale_layout": layout, "block_scale": "search"}
    got = nvfp4.quantize(x, global_scale=g, importance=importance, **given)
    w = None if importance is None else importance.cpu()
    g = g.cpu() if isinstance(g, torch.Tensor) else g
    expected = reference.quantize(x.cpu(), global_scale=g, importance=w, **given)
    return all(torch.equal(a.cpu().view(torch.uint8).flatten(), b.flatten()) for a, b in zip(got, expected))


def random_importance(k: int, generator: torch.Generator) -> torch.Tensor:
    """Over many powers of two, with zeros: single ones, and a whole block of them."""
    w = torch.rand(k, generator=generator) * 2.0 ** torch.randint(-60, 60, (k,), generator=generator)
    w[torch.rand(k, generator=generator) < 0.1] = 0
    w[k // 2 // 16 * 16 :][:16] = 0
    return w


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["128x4", "linear"])
@pytest.mark.parametrize("shape", [(1, 16), (3, 48), (129, 80), (5, 464), (2, 130, 144)])
def test_search(
    backend: Backend, shape: tuple[int, ...], layout: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    x = (torch.randn(shape, generator=generator) * torch.randn(*shape[:-1], 1, generator=generator).exp()).to(dtype)
    g = float(x.abs().max()) / 2688
    importance = random_importance(shape[-1], generator).to(backend.device)
    for w in (None, importance):
        assert same_search(x.to(backend.device), layout, g, w)
        rows = torch.rand(*shape[:-1], generator=generator).flatten().to(backend.device)
        assert same_search(x.to(backend.device), layout, rows, w)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_blocks(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """NaN, infinities, zeros, every exponent; ties between scales; saturated, vanishing and subnormal scales; global
    scales that take IEEE divisions; inputs aligned to a value alone."""
    x = torch.randn(17, 80, generator=generator)
    x[torch.rand(x.shape, generator=generator) < 0.02] = math.inf
    x[torch.rand(x.shape, generator=generator) < 0.01] = math.nan
    x[:, :16] = 0
    x[::2, 16:32] = -0.0
    x[1::2, 16:32] = torch.randint(-6, 7, (8, 16), generator=generator).float()  # several scales are exact
    wild = torch.randint(0, 256, (17, 80 * dtype.itemsize), dtype=torch.uint8, generator=generator).view(dtype)
    importance = random_importance(80, generator).to(backend.device)
    for g in (2.0**-12, *SPANS):
        for w in (None, importance):
            for values in (x.to(dtype), (torch.randn(5, 80, generator=generator) * 1000 * g).to(dtype), wild):
                assert same_search(values.to(backend.device), "linear", g, w)
    memory = torch.randn(145, generator=generator).to(dtype).to(backend.device)
    assert same_search(memory[1:145].view(3, 48), "128x4", 0.01, importance[1:49].contiguous())


def loss(x: torch.Tensor, data: torch.Tensor, scale: torch.Tensor, g: float, w: torch.Tensor | float) -> torch.Tensor:
    """The weighted squared errors of blocks, in fp64."""
    values = reference.dequantize(data.cpu().view(torch.uint8), scale.cpu(), scale_layout="linear").double() * g
    return ((values - x.double()).square() * w).unflatten(-1, (-1, 16)).sum(-1)


def test_no_scale_of_all_has_a_smaller_error(backend: Backend, generator: torch.Generator) -> None:
    """All 126 scales in fp64. The window of 13 has the best, but for rare blocks whose importance has a wide range. Its
    loss is at most that of four_over_six, which is at most that of amax6."""
    x = torch.randn(64, 256, generator=generator)
    g = float(nvfp4.amax_scale(x))
    w = torch.randn(256, generator=generator).exp()
    for importance in (None, w):
        weight = 1.0 if importance is None else importance.double()
        given = None if importance is None else importance.to(backend.device)
        data, scale = nvfp4.quantize(
            x.to(backend.device), global_scale=g, block_scale="search", scale_layout="linear", importance=given
        )
        found, least = loss(x, data, scale, g, weight), torch.full((64, 16), torch.inf, dtype=torch.float64)
        for code in range(1, 127):
            every = torch.full((64, 16), code, dtype=torch.uint8)
            nibbles = reference.encode_under(x.unflatten(1, (-1, 16)), every, torch.tensor(g)).flatten(1)
            least = least.minimum(loss(x, nibbles[:, 0::2] | nibbles[:, 1::2] << 4, every, g, weight))
        assert (found >= least * (1 - 1e-6)).all()
        assert found.sum() <= least.sum() * (1 + (1e-6 if importance is None else 1e-3))
        if importance is None:
            names = ("four_over_six", "amax6")
            others = [nvfp4.quantize(x, global_scale=g, block_scale=name, scale_layout="linear") for name in names]
            four, six = (loss(x, *other, g, 1.0) for other in others)
            assert (found <= four * (1 + 1e-6)).all() and (four <= six * (1 + 1e-6)).all()
            assert found.sum() < 0.95 * four.sum()


def test_importance(backend: Backend, generator: torch.Generator) -> None:
    """Equal importance counts as none, whatever it is; zeros count as ones. A factor of a power of two changes nothing.
    Values of importance 0 do not count."""
    x = torch.randn(40, 64, generator=generator)
    g = float(nvfp4.amax_scale(x))

    def search(x: torch.Tensor, w: torch.Tensor | None) -> list[torch.Tensor]:
        w = None if w is None else w.to(backend.device)
        given = {"global_scale": g, "block_scale": "search", "importance": w, "scale_layout": "linear"}
        return [t.cpu().view(torch.uint8) for t in nvfp4.quantize(x.to(backend.device), **given)]

    plain = search(x, None)
    for value in (0.0, 1.0, 2.0**-140, 2.0**120):
        assert all(map(torch.equal, plain, search(x, torch.full((64,), value))))
    w = random_importance(64, generator)
    assert all(map(torch.equal, search(x, w), search(x, w * 2.0**30)))
    ignored = torch.ones(64)
    ignored[::4] = 0
    largest = x.unflatten(1, (-1, 16)).abs().amax(-1)  # the change below keeps it
    x[:, 1::16] = largest * 1.01
    scale = search(x, ignored)[1]
    x[:, ::4] = torch.randn(40, 16, generator=generator).clamp(-1, 1) * largest.repeat_interleave(4, 1)
    assert torch.equal(scale, search(x, ignored)[1])


def factor_of(rows: torch.Tensor) -> torch.Tensor:
    hessian = rows.T.double() @ rows.double() / len(rows) + 0.1 * torch.eye(rows.shape[1], dtype=torch.float64)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    return torch.linalg.cholesky(inverse, upper=True).float().contiguous()


def same_gptq(x: torch.Tensor, u: torch.Tensor, g: float | torch.Tensor) -> bool:
    got = [t.cpu() for t in nvfp4.gptq_block(x, u, global_scale=g)]
    expected = reference.gptq_block(x.cpu(), u.cpu(), g.cpu() if isinstance(g, torch.Tensor) else g)
    assert [tuple(t.shape) for t in got] == [(len(x), 8), (len(x), 1), (len(x), 16)]
    bytes_equal = all(torch.equal(a.view(torch.uint8), b) for a, b in zip(got[:2], expected[:2]))
    return bytes_equal and reference.compare(got[2], expected[2], exact=True)[0]


@pytest.mark.parametrize("rows", [1, 7, 16, 37, 700])
def test_gptq_block(backend: Backend, rows: int, generator: torch.Generator) -> None:
    """Columns and the factor are parts of larger matrices."""
    whole = torch.randn(rows, 160, generator=generator).to(backend.device)
    u = factor_of(torch.randn(200, 64, generator=generator) @ torch.randn(64, 64, generator=generator) / 8)
    for j in (0, 16, 48):
        x, part = whole[:, j + 3 : j + 19], u.to(backend.device)[j : j + 16, j : j + 16]
        for g in (1e-3, torch.tensor([0.01]).to(backend.device), torch.rand(rows, generator=generator) / 100):
            assert same_gptq(x, part, g.to(backend.device) if isinstance(g, torch.Tensor) else g)


def test_gptq_block_of_special_rows(backend: Backend, generator: torch.Generator) -> None:
    """Zeros, a NaN, an infinity, overflow while columns are changed, scales that saturate or vanish, and global scales
    out of the fast range."""
    x = torch.randn(40, 16, generator=generator)
    x[0], x[1, 3], x[2, 4], x[3], x[4], x[5] = 0, math.nan, math.inf, 1e-30, 1e30, -0.0
    x[6, 8] = 3e38
    u = factor_of(torch.randn(30, 16, generator=generator)).to(backend.device)
    for g in (0.01, *SPANS):
        assert same_gptq(x.to(backend.device), u, g)
        assert same_gptq((x * g).to(backend.device), u, g)
    _, scale, error = nvfp4.gptq_block(x[:2].to(backend.device), u)
    assert scale.cpu().view(torch.uint8).flatten().tolist() == [0, reference.E4M3_NAN]
    assert not error[0].any() and error[1].isnan().all()


def test_gptq_block_without_correlations_is_the_search(backend: Backend, generator: torch.Generator) -> None:
    x = torch.randn(300, 16, generator=generator).to(backend.device)
    for factor in (1.0, 0.5):
        got = nvfp4.gptq_block(x, torch.eye(16, device=backend.device) * factor, global_scale=0.002)
        plain = nvfp4.quantize(x, global_scale=0.002, block_scale="search", scale_layout="linear")
        assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(got, plain))


def test_gptq_block_has_the_smallest_error_of_its_scales(backend: Backend, generator: torch.Generator) -> None:
    """The sum of squared errors is D H D' of the result D = x - x', H = (u' u)^-1; in fp64 no other scale of the 126
    that is tried in the same way has a smaller one by more than the rounding. Other rows do not matter."""
    rows = torch.randn(100, 16, generator=generator) @ torch.randn(16, 16, generator=generator) / 4
    x, u = torch.randn(64, 16, generator=generator), factor_of(rows)
    data, scale, error = (t.cpu() for t in nvfp4.gptq_block(x.to(backend.device), u.to(backend.device)))
    hessian = torch.linalg.inv(u.double().T @ u.double())
    rest = x.double() - reference.dequantize(data.view(torch.uint8), scale, scale_layout="linear").double()
    sums = error.double().square().sum(1)
    assert torch.allclose(((rest @ hessian) * rest).sum(1), sums, rtol=1e-5, atol=0)
    for code in range(1, 127):
        tried = reference.round_columns(x, u, torch.full((64,), code, dtype=torch.uint8), torch.ones(64))[3].double()
        assert (tried >= sums * (1 - 1e-5)).float().mean() > 0.95  # all within the window, nearly all beyond
    alone = nvfp4.gptq_block(x[17:18].to(backend.device), u.to(backend.device))
    assert all(
        torch.equal(a.cpu().view(torch.uint8), b[17:18].view(torch.uint8)) for a, b in zip(alone, (data, scale, error))
    )


def test_gptq_block_reads_its_rows_alone(backend: Backend, generator: torch.Generator) -> None:
    """Random bytes, NaN among them, lie between and around the rows of x and u."""
    values, factor = torch.randn(37, 16, generator=generator), factor_of(torch.randn(64, 16, generator=generator))
    x = Guarded(values.shape, torch.float32, backend.device, generator=generator, pitch=80, values=values)
    u = Guarded(factor.shape, torch.float32, backend.device, generator=generator, pitch=96, values=factor)
    assert same_gptq(x.tensor, u.tensor, 0.01) and x.unchanged() and u.unchanged()


def test_lower_triangle_is_not_read(backend: Backend, generator: torch.Generator) -> None:
    x, u = torch.randn(20, 16, generator=generator).to(backend.device), factor_of(torch.randn(64, 16))
    other = u + torch.full((16, 16), math.nan).tril(-1)
    got, again = (nvfp4.gptq_block(x, factor.to(backend.device)) for factor in (u, other.triu() + other.tril(-1)))
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(got, again))


x, w, eye = torch.ones(2, 32), torch.ones(32), torch.eye(16)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("importance: is given but block_scale is 'amax6'; must be None, or it 'search'", {"block_scale": "amax6"}),
        ("importance: is given with ends, rows or out; must be None then", {"ends": torch.tensor([2]).int()}),
        ("importance: has 16 elements in 1 dimension; must be a vector of length K = 32", {"importance": w[:16]}),
        ("importance: dtype is torch.float64; must be float32", {"importance": w.double()}),
        ("importance: stride is 2; must be 1: pass a copy, .contiguous()", {"importance": torch.ones(64)[::2]}),
        *(
            (
                f"importance: element 7 is {value:g}; must be finite and not negative",
                {"importance": w.clone().index_fill_(0, torch.tensor(7), value)},
            )
            for value in (-1.0, math.inf, -math.inf, math.nan)
        ),
    ],
)
def test_rules_of_importance(message: str, arguments: dict[str, object]) -> None:
    with pytest.raises(nvfp4.Error) as raised:
        nvfp4.quantize(x, **({"block_scale": "search", "importance": w} | arguments))
    assert str(raised.value) == message


def test_search_is_not_for_groups() -> None:
    with pytest.raises(nvfp4.Error, match=r"^block_scale: is search \(2\); must be amax6 \(0\) or four_over_six \(1\)"):
        nvfp4.quantize(x, block_scale="search", ends=torch.tensor([2], dtype=torch.int32))


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("x: is 2 x 32; must be [N, 16]", (x, eye)),
        ("u: is 2 x 16; must be [16, 16]", (x[:, :16], eye[:2])),
        ("x: has 3 dimensions; must have 2 ([N, 16])", (torch.ones(2, 2, 16), eye)),
        ("x: dtype is bfloat16; must be float32", (x[:, :16].bfloat16(), eye)),
        ("u: dtype is torch.float64; must be float32", (x[:, :16], eye.double())),
        ("global_scale: has 3 elements; must have 1, or one a row: 2", (x[:, :16], eye, torch.ones(3))),
        ("global_scale: is 0; must be positive and finite", (x[:, :16], eye, 0.0)),
    ],
)
def test_rules_of_gptq_block(message: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(nvfp4.Error) as raised:
        nvfp4.gptq_block(*arguments[:2], global_scale=arguments[2] if len(arguments) > 2 else None)
    assert str(raised.value).startswith(message)
