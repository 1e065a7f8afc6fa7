"""gated, moe_route and moe_combine: against the definitions of reference.py, NumPy and fp64, and their rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Backend
from fake_array_library import Array
from guarded_buffers import Guarded

import nvfp4
from nvfp4 import reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
ACTIVATIONS = ["silu", "gelu_tanh", "relu2", "swiglu"]
EPS = torch.finfo(torch.float32).eps


def equal(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits, but for the payload of a NaN."""
    same, message = reference.compare(got.cpu(), expected, exact=True)
    assert same, message


# --- gated --------------------------------------------------------------------------------------------------------


def options(activation: str) -> list[dict[str, Any]]:
    """Its limits and alphas."""
    if activation == "silu":
        return [{}, {"limit": 0.75}]
    return [{}, {"limit": 0.75, "alpha": 1.25}, {"alpha": 100.0}] if activation == "swiglu" else [{}]


def factors(activation: str, up: torch.Tensor) -> list[torch.Tensor | None]:
    return {"relu2": [None], "swiglu": [up]}.get(activation, [up, None])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated(backend: Backend, activation: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Whole groups of 8 columns and ragged ones, batches, halves of one tensor, every type of the result."""
    for shape in ((1, 8), (3, 5), (2, 5, 64), (5, 2064), (130, 24)):
        both = torch.randn(*shape[:-1], 2 * shape[-1], generator=generator) * 4
        gate, up = both.to(dtype).to(backend.device).chunk(2, dim=-1)
        for other in factors(activation, up):
            for how in options(activation):
                for out_dtype in (None, *DTYPES):
                    got = nvfp4.gated(gate, other, activation, out_dtype=out_dtype, **how)
                    assert got.device.type == backend.device
                    others = None if other is None else other.cpu()
                    equal(got, reference.gated(gate.cpu(), others, activation, out_dtype=out_dtype, **how))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_of_every_16_bit_pattern(backend: Backend, activation: str, dtype: torch.dtype) -> None:
    gate = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).view(64, 1024)
    up = gate.flip(0)
    for other in factors(activation, up):
        for how in options(activation):
            there = None if other is None else other.to(backend.device)
            got = nvfp4.gated(gate.to(backend.device), there, activation, out_dtype="float32", **how)
            equal(got, reference.gated(gate, other, activation, out_dtype=torch.float32, **how))


def exact_gated(gate: torch.Tensor, up: torch.Tensor, activation: str, limit: float, alpha: float) -> torch.Tensor:
    """By torch's own functions in fp64, but for gelu below 0, where 1 + tanh loses all bits."""
    if activation == "gelu_tanh":
        by_sigmoid = gate * torch.sigmoid(math.sqrt(8 / math.pi) * (gate + 0.044715 * gate**3))
        torch.testing.assert_close(
            by_sigmoid, torch.nn.functional.gelu(gate, approximate="tanh"), rtol=1e-14, atol=1e-14
        )
        return by_sigmoid * up
    if activation == "relu2":
        return torch.relu(gate).square()
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if activation == "silu":
        return torch.nn.functional.silu(gate) * up
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_is_what_torch_computes(activation: str, generator: torch.Generator) -> None:
    """In fp64, by the bounds of gating.h and a rounding for each product."""
    gate = torch.linspace(-12, 100, 8192)[None].contiguous()
    up = torch.randn(gate.shape, generator=generator) * 3
    for limit in (math.inf, 2.5) if activation in ("silu", "swiglu") else (math.inf,):
        how = {} if limit == math.inf else {"limit": limit}
        alpha = float(torch.tensor(1.702))
        exact = exact_gated(gate.double(), up.double(), activation, limit, alpha)
        got = nvfp4.gated(gate, None if activation == "relu2" else up, activation, **how).double()
        argument = gate.double() * {"gelu_tanh": 1.6 + 0.0714 * gate.double() ** 2, "swiglu": alpha}.get(activation, 1)
        ulps = 7 + 5 * argument.clamp(max=0).abs()
        known = argument > -80
        error = (got - exact).abs()
        # up + 1 is rounded, which for up near -1 is more than an ulp of the result
        allowed = ulps * EPS * exact.abs() + EPS * gate.double().abs() * (activation == "swiglu")
        assert (error <= allowed)[known].all() and (got.abs()[~known] < 1e-30).all()


def test_gated_passes_nan_on(backend: Backend) -> None:
    """A NaN comes out where torch's clamps, products and relu have one."""
    gate = torch.tensor([[math.nan, 1.0, math.nan, 1.0]]).to(backend.device)
    up = torch.tensor([[1.0, math.nan, math.nan, 1.0]]).to(backend.device)
    for activation in ("silu", "gelu_tanh", "swiglu"):
        for how in options(activation):
            assert nvfp4.gated(gate, up, activation, **how).isnan().tolist() == [[True, True, True, False]]
    assert nvfp4.gated(gate, activation="relu2").isnan().tolist() == [[True, False, True, False]]


def test_gated_of_infinity(backend: Backend) -> None:
    gate = torch.tensor([[math.inf, -math.inf]]).to(backend.device)
    up = torch.ones(1, 2).to(backend.device)
    for activation in ("silu", "gelu_tanh", "swiglu"):
        high, low = nvfp4.gated(gate, up, activation)[0].tolist()
        assert high == math.inf and -1e-34 < low < 0
    limited = nvfp4.gated(gate, up, "swiglu", limit=2.0)[0, 0].item()
    assert limited == pytest.approx(2 / (1 + math.exp(-1.702 * 2)) * 2, rel=1e-6)


def test_up_one_is_no_limit(backend: Backend) -> None:
    """An absent up is 1, which a smaller limit does not clamp."""
    gate = torch.full((1, 4), 0.25).to(backend.device)
    equal(nvfp4.gated(gate, limit=0.5), reference.silu(gate.cpu()))


# --- moe_route ----------------------------------------------------------------------------------------------------


def route_by_loops(ids: np.ndarray, E: int, expert_map: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    choices: list[list[int]] = [[] for _ in range(E)]
    places = np.full(ids.size, -1, np.int32)
    for i, id in enumerate(ids.flatten().tolist()):
        expert = id
        if expert_map is not None:
            expert = int(expert_map[id]) if 0 <= id < len(expert_map) else -1
        if 0 <= expert < E:
            choices[expert].append(i)
    order = [i for of_expert in choices for i in of_expert]
    rows = np.zeros(ids.size, np.int32)
    for place, i in enumerate(order):
        places[i] = place
        rows[place] = i // ids.shape[1]
    ends = np.cumsum([len(of_expert) for of_expert in choices]).astype(np.int32)
    return rows, ends, places.reshape(ids.shape)


def check_route(backend: Backend, ids: torch.Tensor, E: int, expert_map: torch.Tensor | None = None) -> None:
    there = None if expert_map is None else expert_map.to(backend.device)
    got = nvfp4.moe_route(ids.to(backend.device), E, there)
    ids = ids.cpu()
    expected = route_by_loops(ids.numpy(), E, None if expert_map is None else expert_map.numpy())
    for name, mine, theirs, defined in zip(
        ("rows", "ends", "places"), got, expected, reference.moe_route(ids, E, expert_map), strict=True
    ):
        assert mine.dtype == defined.dtype == torch.int32 and mine.device.type == backend.device
        assert np.array_equal(mine.cpu().numpy(), theirs), name
        assert np.array_equal(defined.numpy(), theirs), f"reference.py: {name}"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("E", [1, 2, 8, 31, 32, 33, 128, 257, 384, 1024])
def test_route(backend: Backend, E: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    """One warp, several, and more choices than a CTA has threads; sentinels and duplicates among them."""
    for tokens, k in ((0, 4), (1, 1), (3, 2), (33, 1), (5, 16), (64, 8), (150, 8)):
        for least, most in ((0, E), (-2, E + 3)):
            ids = torch.randint(least, most, (tokens, k), generator=generator, dtype=dtype)
            check_route(backend, ids, E)


def test_route_of_no_choices(backend: Backend) -> None:
    """No tokens, no choices of a token, and sentinels alone."""
    for shape in ((0, 0), (0, 3), (3, 0)):
        check_route(backend, torch.zeros(shape, dtype=torch.int32), 5)
    check_route(backend, torch.full((70, 3), -1), 5)
    check_route(backend, torch.full((70, 3), 5), 5)


def test_route_of_one_expert_alone(backend: Backend) -> None:
    for tokens, E, expert in ((200, 1, 0), (200, 9, 8), (200, 1024, 511)):
        check_route(backend, torch.full((tokens, 5), expert, dtype=torch.int32), E)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_route_of_garbage(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Any bits: the router's logits were NaN. Low halves of 64 bits are experts, which must not count."""
    info = torch.iinfo(dtype)
    ids = torch.randint(info.min, info.max, (40, 6), generator=generator, dtype=dtype)
    ids[0], ids[1], ids[2, :4] = info.min, info.max, torch.tensor([0, 7, 8, -1], dtype=dtype)
    if dtype == torch.int64:
        ids[3:20] = (ids[3:20] & ~0xFFFFFFFF) | torch.arange(6)
        ids[20] = 2**32 + torch.arange(6)
    check_route(backend, ids, 8)
    check_route(backend, ids, 8, torch.arange(8, dtype=torch.int32).flip(0))


def test_expert_map(backend: Backend, generator: torch.Generator) -> None:
    """Expert parallelism: some ids are experts here, in any order, the others are not; the map has any numbers."""
    for G, E in ((1, 1), (16, 5), (300, 40), (5, 16)):
        expert_map = torch.full((G,), -1, dtype=torch.int32)
        some = torch.randperm(G, generator=generator)[: min(E, G)]
        expert_map[some] = torch.arange(len(some), dtype=torch.int32)
        ids = torch.randint(-2, G + 2, (90, 4), generator=generator)
        check_route(backend, ids, E, expert_map)
        expert_map[torch.rand(G, generator=generator) < 0.3] = E
        expert_map[torch.rand(G, generator=generator) < 0.2] = -(2**31)
        expert_map[torch.rand(G, generator=generator) < 0.2] = 2**31 - 1
        check_route(backend, ids.int(), E, expert_map)
    check_route(backend, torch.tensor([[0, 1], [-1, 2]]), 3, torch.empty(0, dtype=torch.int32))


def test_route_of_rows_apart(backend: Backend, generator: torch.Generator) -> None:
    for tokens in (50, 700):
        wide = torch.randint(0, 7, (tokens, 9), generator=generator).to(backend.device)
        check_route(backend, wide[:, 2:6], 7)
        assert not wide[:, 2:6].is_contiguous()


def test_route_of_a_prefill(backend: Backend, generator: torch.Generator) -> None:
    """More choices than 32 warps take in one step, for several CTAs, on as many segments as there is memory for
    counters."""
    for tokens, k, E in ((700, 10, 64), (600, 8, 1024)) if backend.emulated else ((8192, 10, 512), (4096, 8, 1024)):
        check_route(backend, torch.randint(-1, E, (tokens, k), generator=generator, dtype=torch.int32), E)


def test_a_permutation_of_tokens_permutes_places(backend: Backend, generator: torch.Generator) -> None:
    """Each expert's choices are the same, in the tokens' new order."""
    ids = torch.randint(0, 12, (60, 4), generator=generator)
    order = torch.randperm(60, generator=generator)
    rows, ends, _ = nvfp4.moe_route(ids.to(backend.device), 12)
    moved, same_ends, _ = nvfp4.moe_route(ids[order].to(backend.device), 12)
    assert torch.equal(ends, same_ends)
    for begin, end in zip([0, *ends.tolist()], ends.tolist()):
        assert rows[begin:end].tolist() == sorted(order[moved[begin:end].long().cpu()].tolist())


# --- moe_combine --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights_dtype", [None, *DTYPES])
@pytest.mark.parametrize("dtype", DTYPES)
def test_combine(
    backend: Backend, dtype: torch.dtype, weights_dtype: torch.dtype | None, generator: torch.Generator
) -> None:
    for tokens, k, columns, rows in ((1, 1, 8, 1), (5, 3, 13, 9), (33, 8, 64, 200), (7, 16, 2072, 40), (3, 0, 8, 4)):
        y = torch.randn(rows, columns, generator=generator).to(dtype)
        places = torch.randint(-2, rows, (tokens, k), generator=generator, dtype=torch.int32)
        weights = None if weights_dtype is None else torch.randn(tokens, k, generator=generator).to(weights_dtype)
        there = None if weights is None else weights.to(backend.device)
        for out_dtype in (None, *DTYPES):
            got = nvfp4.moe_combine(y.to(backend.device), places.to(backend.device), there, out_dtype=out_dtype)
            equal(got, reference.moe_combine(y, places, weights, out_dtype=out_dtype))


def test_combine_is_a_weighted_sum(backend: Backend, generator: torch.Generator) -> None:
    """In fp64: k roundings of sums that are at most the sum of magnitudes."""
    y, weights = torch.randn(50, 40, generator=generator), torch.randn(20, 7, generator=generator)
    places = torch.randint(0, 50, (20, 7), generator=generator, dtype=torch.int32)
    summands = weights.double()[..., None] * y.double()[places.long()]
    got = nvfp4.moe_combine(*(x.to(backend.device) for x in (y, places, weights))).cpu().double()
    assert ((got - summands.sum(1)).abs() <= 7 * EPS / 2 * summands.abs().sum(1) * (1 + 1e-6)).all()


def test_the_order_of_additions(backend: Backend) -> None:
    """From the first choice to the last, by fma from +0."""
    y = torch.tensor([[2.0**24], [1.0], [-(2.0**24)]]).to(backend.device)
    for order, expected in (([0, 1, 2], 0.0), ([0, 2, 1], 1.0), ([1, 0, 2], 0.0), ([2, 0, 1], 1.0)):
        places = torch.tensor([order], dtype=torch.int32).to(backend.device)
        assert nvfp4.moe_combine(y, places).item() == expected
    x = torch.tensor([[1 + 2.0**-12], [1.0]]).to(backend.device)  # its square has 25 bits
    weights = torch.tensor([[-1.0 - 2.0**-11, 1 + 2.0**-12]]).to(backend.device)
    got = nvfp4.moe_combine(x.flip(0), torch.tensor([[0, 1]], dtype=torch.int32).to(backend.device), weights)
    assert got.item() == 2.0**-24
    zero = nvfp4.moe_combine(*(x.to(backend.device) for x in (-torch.zeros(1, 8), torch.zeros(1, 1).int())))
    assert not zero.signbit().any()


def test_combine_skips_and_marks(backend: Backend) -> None:
    """A negative place is not read, even times NaN; one past the rows is NaN, even times 0; a token of none is 0."""
    y = torch.ones(3, 9).to(backend.device)
    y[2] = math.nan
    places = torch.tensor([[0, -1], [-(2**31), -1], [1, 3], [2**31 - 1, 0], [2, 0]], dtype=torch.int32)
    weights = torch.tensor([[2.0, math.nan], [math.nan, math.inf], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    got = nvfp4.moe_combine(y, places.to(backend.device), weights.to(backend.device)).cpu()
    assert got[:2].tolist() == [[2.0] * 9, [0.0] * 9] and got[2:].isnan().all()
    assert nvfp4.moe_combine(y[:0], places.to(backend.device))[[0, 2, 3, 4]].isnan().all()


@pytest.mark.parametrize("E", [4, 40])
def test_there_and_back(backend: Backend, E: int, generator: torch.Generator) -> None:
    """Rows that are sorted by expert and combined again are the tokens, times the sum of their experts' factors."""
    ids = torch.randint(-1, E, (30, 5), generator=generator).to(backend.device)
    x = torch.randint(-8, 9, (30, 24), generator=generator).float().to(backend.device)
    factor = torch.arange(1, E + 1, device=backend.device).float()
    rows, ends, places = nvfp4.moe_route(ids, E)
    expert = torch.searchsorted(ends, torch.arange(len(rows), device=backend.device).int(), right=True)
    y = x[rows.long()] * torch.where(expert < E, factor[expert.clamp(max=E - 1)], math.nan)[:, None]
    expected = x * torch.where(ids >= 0, factor[ids.clamp(min=0)], 0).sum(1, keepdim=True)
    assert torch.equal(nvfp4.moe_combine(y, places), expected)


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_around_is_left_alone(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Rows apart by a multiple of 16 bytes and by less, given outputs; poison around all of them."""

    def guarded(t: torch.Tensor, more: int) -> Guarded:
        pitch = t.shape[-1] * t.dtype.itemsize + more
        return Guarded(t.shape, t.dtype, backend.device, generator=generator, values=t, pitch=pitch)

    for more in (0, dtype.itemsize * 3, 16):
        for columns in (40, 43):
            gate, up = torch.randn(2, 5, columns, generator=generator).to(dtype)
            g, u, out = guarded(gate, more), guarded(up, 2 * more), guarded(torch.zeros_like(gate), more)
            assert nvfp4.gated(g.tensor, u.tensor, "swiglu", out=out.tensor) is out.tensor
            equal(out.tensor, reference.gated(gate, up, "swiglu"))
            assert g.unchanged() and u.unchanged() and out.unchanged_around()

            y = torch.randn(9, columns, generator=generator).to(dtype)
            places = torch.randint(-1, 10, (5, 3), generator=generator, dtype=torch.int32)
            weights = torch.randn(5, 3, generator=generator).to(dtype)
            source, at, w = guarded(y, more), guarded(places, 4 * (more > 0)), guarded(weights, more)
            out = guarded(torch.zeros_like(gate), more)
            assert nvfp4.moe_combine(source.tensor, at.tensor, w.tensor, out=out.tensor) is out.tensor
            equal(out.tensor, reference.moe_combine(y, places, weights))
            assert source.unchanged() and at.unchanged() and w.unchanged() and out.unchanged_around()


# --- other arrays -------------------------------------------------------------------------------------------------


def test_arrays_of_numpy(random: np.random.Generator) -> None:
    ids = random.integers(-1, 6, (20, 3)).astype(np.int64)
    expert_map = np.int32([3, -1, 0, 1, -1, 2])
    got = nvfp4.moe_route(ids, 4, expert_map)
    for mine, theirs in zip(got, route_by_loops(ids, 4, expert_map), strict=True):
        assert isinstance(mine, np.ndarray) and mine.dtype == np.int32 and np.array_equal(mine, theirs)
    rows, _, places = got
    both = random.standard_normal((len(rows), 20), np.float32)
    y = nvfp4.gated(both[:, :10], both[:, 10:], "gelu_tanh", out_dtype=np.float16)
    assert y.dtype == np.float16 and y.shape == (60, 10)
    out = np.full((20, 10), np.nan, np.float32)
    assert nvfp4.moe_combine(y, places, random.random((20, 3), np.float32), out=out) is out
    assert np.isfinite(out).all()


def test_arrays_of_dlpack(random: np.random.Generator) -> None:
    gate = random.standard_normal((3, 8), np.float32)
    got = nvfp4.gated(Array(gate), Array(gate), "silu")
    assert type(got) is Array and np.array_equal(got.memory, nvfp4.gated(gate, gate))
    ids = random.integers(-1, 4, (6, 2))
    routed = nvfp4.moe_route(Array(ids), 4)
    assert all(np.array_equal(a.memory, b) for a, b in zip(routed, nvfp4.moe_route(ids, 4), strict=True))
    y = random.standard_normal((12, 8), np.float32)
    got = nvfp4.moe_combine(Array(y), routed[2])
    assert np.array_equal(got.memory, nvfp4.moe_combine(y, routed[2].memory))


# --- rules --------------------------------------------------------------------------------------------------------


def rejected_calls() -> dict[str, Callable[[], Any]]:
    x, half = torch.ones(4, 8), torch.ones(4, 8, dtype=torch.float16)
    ids, places, weights = torch.zeros(4, 2).long(), torch.zeros(4, 2).int(), torch.ones(4, 2)
    gated, route, combine = nvfp4.gated, nvfp4.moe_route, nvfp4.moe_combine
    return {
        "gate: dtype is int64; must be float16, bfloat16 or float32": lambda: gated(ids),
        "gate: has 1 dimensions; must have 2, or 3 with a leading batch": lambda: gated(x[0]),
        "gate: stride of the last dimension is 8; must be 1 (dense rows): pass a copy, .contiguous()": lambda: gated(
            x.T
        ),
        "up: dtype is float16; must be that of gate, float32": lambda: gated(x, half),
        "up: is 1 x 3 x 8; must be as gate, 1 x 4 x 8, in 2 dimensions": lambda: gated(x, x[:3]),
        "up: is 1 x 4 x 8; must be as gate, 1 x 4 x 8, in 2 dimensions": lambda: gated(x, x[None]),
        "up: is missing; must be a tensor: swiglu multiplies by up + 1": lambda: gated(x, activation="swiglu"),
        "up: is given, but relu2 is a function of gate alone": lambda: gated(x, x, "relu2"),
        "activation: is 'gelu'; must be 'silu', 'gelu_tanh', 'relu2' or 'swiglu'": lambda: gated(x, x, "gelu"),
        "activation: is of type int; must be a string": lambda: gated(x, x, 0),
        "limit: is 0; must be positive": lambda: gated(x, x, limit=0.0),
        "limit: is -1; must be positive": lambda: gated(x, x, limit=-1),
        "limit: is nan; must be positive": lambda: gated(x, x, limit=math.nan),
        "limit: is 2; must be left out: gelu_tanh has none": lambda: gated(x, x, "gelu_tanh", limit=2),
        "limit: is 2; must be left out: relu2 has none": lambda: gated(x, None, "relu2", limit=2),
        "alpha: is 1; must be left out (1.702): silu has none": lambda: gated(x, x, alpha=1.0),
        "alpha: is 0; must be between 2^-64 and 2^64": lambda: gated(x, x, "swiglu", alpha=0.0),
        "alpha: is nan; must be between 2^-64 and 2^64": lambda: gated(x, x, "swiglu", alpha=math.nan),
        "alpha: is of type str; must be a real number": lambda: gated(x, x, "swiglu", alpha="1"),
        "out: is 1 x 4 x 7; must be as gate, 1 x 4 x 8, in 2 dimensions": lambda: gated(x, x, out=torch.ones(4, 7)),
        "out: shares memory with gate; must not overlap it, it is written": lambda: gated(x, out=x),
        "out: rows overlap (strides of 64 and 16 bytes); must not, it is written": lambda: gated(
            x, out=torch.ones(64).as_strided((4, 8), (4, 1))
        ),
        "out_dtype: is float16 but out has float32": lambda: gated(x, out=torch.ones(4, 8), out_dtype="float16"),
        "out_dtype: is int32; must be float16, bfloat16 or float32": lambda: gated(x, out_dtype="int32"),
        "ids: dtype is float32; must be int32 or int64": lambda: route(x, 4),
        "ids: has 3 dimensions; must have 2 ([S, k])": lambda: route(ids[None], 4),
        "ids: has 1 dimensions; must have 2, or 3 with a leading batch": lambda: route(ids[0], 4),
        "ids: is missing; must be a tensor": lambda: route(None, 4),
        "ids: stride of the last dimension is 2; must be 1 (dense rows): pass a copy, .contiguous()": lambda: route(
            ids.T, 4
        ),
        "E: is 0; must be between 1 and 1024": lambda: route(ids, 0),
        "E: is 1025; must be between 1 and 1024": lambda: route(ids, 1025),
        "E: is of type float; must be an integer": lambda: route(ids, 4.0),
        "E: is -1; must be between 0 and 2147483647": lambda: route(ids, -1),
        "expert_map: dtype is int64; must be int32": lambda: route(ids, 4, ids[0]),
        "expert_map: has 2 dimensions; must be a vector, [G]": lambda: route(ids, 4, places),
        "expert_map: stride is 2; must be 1: pass a copy, .contiguous()": lambda: route(ids, 4, places[:, 0]),
        "y: dtype is int32; must be float16, bfloat16 or float32": lambda: combine(places, places),
        "y: has 3 dimensions; must have 2 ([R, N])": lambda: combine(x[None], places),
        "places: dtype is int64; must be int32": lambda: combine(x, ids),
        "places: has 1 dimensions; must have 2, or 3 with a leading batch": lambda: combine(x, places[0]),
        "weights: dtype is int32; must be float16, bfloat16 or float32": lambda: combine(x, places, places),
        "weights: is 3 x 2; must be as places, 4 x 2": lambda: combine(x, places, weights[:3]),
        "weights: has 1 dimensions; must have 2 ([S, k])": lambda: combine(x, places, weights[0]),
        "out: is 4 x 7; places and y make it S x N = 4 x 8": lambda: combine(x, places, out=torch.ones(4, 7)),
        "out: shares memory with y; must not overlap it, it is written": lambda: combine(x, places, out=x),
        "out: shares memory with weights; must not overlap it, it is written": lambda: combine(
            torch.ones(4, 2), places, weights, out=weights
        ),
    }


REJECTED = rejected_calls()


@pytest.mark.parametrize("message", REJECTED)
def test_rejected(message: str) -> None:
    with pytest.raises(nvfp4.Error) as error:
        REJECTED[message]()
    assert str(error.value) == message


def test_a_rejected_call_writes_nothing() -> None:
    x, out = torch.ones(4, 8), torch.full((4, 8), math.nan)
    with pytest.raises(nvfp4.Error, match=r"^up: is missing"):
        nvfp4.gated(x, activation="swiglu", out=out)
    with pytest.raises(nvfp4.Error, match=r"^weights: is 3 x 1"):
        nvfp4.moe_combine(x, torch.zeros(4, 1).int(), torch.ones(3, 1), out=out)
    assert out.isnan().all()


# --- compiled and captured ----------------------------------------------------------------------------------------


def layer(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, expert_map: torch.Tensor) -> torch.Tensor:
    rows, ends, places = nvfp4.moe_route(ids, 4, expert_map)
    y = nvfp4.gated(x[rows.long()], x[rows.long()] + ends[-1], "swiglu", limit=3.0)
    return nvfp4.moe_combine(nvfp4.gated(y, activation="relu2"), places, weights) + 1


def test_compile(backend: Backend, generator: torch.Generator) -> None:
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (5, 12):
        x = torch.randn(tokens, 24, generator=generator).to(backend.device)
        ids = torch.randint(-1, 6, (tokens, 2), generator=generator).to(backend.device)
        weights = torch.randn(tokens, 2, generator=generator).to(backend.device)
        expert_map = torch.tensor([1, 0, -1, 3, 2, 9], dtype=torch.int32).to(backend.device)
        assert torch.equal(compiled(x, ids, weights, expert_map), layer(x, ids, weights, expert_map))


def test_a_graph_reads_new_ids(cuda: Backend, generator: torch.Generator) -> None:
    """A graph that is captured once runs with the ids, weights and values that are there when it runs."""
    x, ids, weights = torch.randn(256, 40), torch.zeros(64, 4).long(), torch.ones(64, 4)
    expert_map = torch.arange(8, dtype=torch.int32).cuda()
    on_gpu = [t.cuda() for t in (x, ids, weights)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows, ends, places = nvfp4.moe_route(on_gpu[1], 8, expert_map)
        y = nvfp4.moe_combine(nvfp4.gated(on_gpu[0]), places, on_gpu[2])
    for _ in range(5):
        fresh = torch.randn(256, 40, generator=generator), torch.randint(-1, 9, (64, 4), generator=generator)
        new = (*fresh, torch.randn(64, 4, generator=generator))
        for target, source in zip(on_gpu, new, strict=True):
            target.copy_(source)
        graph.replay()
        torch.cuda.synchronize()
        expected = reference.moe_route(new[1], 8)
        assert all(torch.equal(a.cpu(), b) for a, b in zip((rows, ends, places), expected, strict=True))
        equal(y, reference.moe_combine(reference.gated(new[0]), expected[2], new[2]))
