"""quantize with ends, rows and global scales of groups and rows, and gated_quantize: the same bytes as quantize of each
row by itself (reference.py), in guarded memory; amax_scale of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FULL, Backend
from generated_grouped_quantize import (
    ENDS,
    by_definition,
    ends_of,
    groups_of,
    max_blocks,
    numbers,
    rows_of,
    scale_of_each,
    scales_of,
    sorted_rows,
)
from guarded_buffers import Guarded

import nvfp4
from nvfp4 import _C, reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
LAYOUTS = ["128x4", "linear"]
POISON = 0xA5


def guarded(
    t: torch.Tensor | None, backend: Backend, generator: torch.Generator, pitch: int | None = None
) -> Guarded | None:
    if t is None:
        return None
    return Guarded(t.shape, t.dtype, backend.device, generator=generator, values=t, pitch=pitch)


def check(
    backend: Backend,
    generator: torch.Generator,
    x: torch.Tensor,
    ends: torch.Tensor | None,
    rows: torch.Tensor | None,
    g: torch.Tensor,
    layout: str,
    block_scale: str = "amax6",
    pitch: int | None = None,
) -> None:
    """A call whose inputs and outputs lie between pages that fault: every byte of the outputs is as defined, those that
    are not written included."""
    t = len(x) if rows is None else len(rows)
    groups = 1 if ends is None else len(ends)
    values = sorted_rows(x, rows)
    each = scale_of_each(g, ends, rows, len(x), t)
    expected = by_definition(values, each, ends, layout, block_scale, POISON)
    inputs = [guarded(value, backend, generator) for value in (g, ends, rows)]
    source = guarded(x, backend, generator, pitch)
    outputs = [guarded(torch.full_like(value, POISON), backend, generator) for value in expected[:2]]
    outputs.append(guarded(torch.full((groups,), -1, dtype=torch.int32), backend, generator))
    given = [None if value is None else value.tensor for value in inputs]
    out = tuple(value.tensor for value in outputs)
    _C.grouped_quantize(source.tensor, *given, layout, block_scale, out)
    for name, got, right in zip(("data", "scale", "scale_rows"), out, expected, strict=True):
        assert torch.equal(got.cpu(), right), name
    assert all(value is None or value.unchanged() for value in (source, *inputs))
    assert all(value.unchanged_around() for value in outputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ends", ENDS)
def test_groups(backend: Backend, ends: str, layout: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    for t, groups, k in ((300, 3, 80), (7, 5, 64)) if backend.emulated else ((300, 3, 80), (7, 5, 64), (900, 33, 528)):
        x = numbers(t, k, dtype, generator)
        for shape in ((groups,), (t, 1)):  # global scales of groups, and of rows
            check(backend, generator, x, ends_of(ends, groups, t, generator), None, scales_of(shape, generator), layout)


@pytest.mark.parametrize("E", [1, 2, 31, 255, 256, 257, 1000, 1023, 1024])
def test_any_number_of_groups(backend: Backend, E: int, generator: torch.Generator) -> None:
    for t, ends in ((1, "spread"), (E + 40, "spread"), (E + 130, "most")):
        x = numbers(t, 32, torch.bfloat16, generator)
        layout = LAYOUTS[int(torch.randint(2, (), generator=generator))]
        check(backend, generator, x, ends_of(ends, E, t, generator), None, scales_of(E, generator), layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["inside", "outside"])
def test_rows(backend: Backend, kind: str, layout: str, generator: torch.Generator) -> None:
    """With and without ends, and global scales of the call, of groups and of rows of x."""
    for t, r, groups, k in ((140, 9, 4, 96), (5, 130, 2, 16), (6, 0, 2, 32)):
        x = numbers(r, k, torch.float16, generator)
        ends = ends_of("spread", groups, t, generator)
        for given, g in (
            (None, scales_of(1, generator)),
            (None, scales_of(r, generator)),
            (ends, scales_of(1, generator)),
            (ends, scales_of(groups, generator)),
            (ends, scales_of((r, 1), generator)),
        ):
            check(backend, generator, x, given, rows_of(kind if r else "outside", t, r, generator), g, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_their_own(backend: Backend, layout: str, generator: torch.Generator) -> None:
    """A global scale of each row without groups: quantize itself, of batches too, and back."""
    for shape in ((1, 32), (133, 80), (2, 37, 48)):
        x = torch.randn(shape, generator=generator) * 10 ** torch.randn(*shape[:-1], 1, generator=generator)
        g = scales_of(shape[:-1], generator)
        for block_scale in ("amax6", "four_over_six"):
            how = {"scale_layout": layout, "block_scale": block_scale}
            data, scale = nvfp4.quantize(x.to(backend.device), global_scale=g.to(backend.device), **how)
            codes, scales = reference.quantize(x, global_scale=g, **how)
            assert torch.equal(data.cpu(), codes)
            assert torch.equal(scale.cpu().view(torch.uint8).flatten(), scales.flatten())
            got = nvfp4.dequantize(data, scale, global_scale=g.to(backend.device), scale_layout=layout).cpu()
            for row, of_row in zip(got.flatten(0, -2), nvfp4_rows(x, g, block_scale), strict=True):
                assert torch.equal(row, of_row)


def nvfp4_rows(x: torch.Tensor, g: torch.Tensor, block_scale: str) -> list[torch.Tensor]:
    """Each row to NVFP4 and back by itself."""
    found = []
    for row, value in zip(x.flatten(0, -2), g.flatten().tolist(), strict=True):
        data, scale = nvfp4.quantize(row[None], global_scale=value, block_scale=block_scale)
        found.append(nvfp4.dequantize(data, scale, global_scale=value)[0])
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_four_over_six(backend: Backend, dtype: torch.dtype, layout: str, generator: torch.Generator) -> None:
    x, rows = numbers(20, 144, dtype, generator), rows_of("outside", 150, 20, generator)
    ends, g = ends_of("spread", 6, 150, generator), scales_of(6, generator)
    check(backend, generator, x, ends, rows, g, layout, "four_over_six")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_number(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    x = torch.randint(0, 256, (40, 160 * dtype.itemsize), dtype=torch.uint8, generator=generator).view(dtype)
    x[8] = 0
    for g in (1.0, 1e-4, 2.0**50, 2.0**-126):
        ends = ends_of("spread", 3, 40, generator)
        check(backend, generator, x, ends, None, torch.tensor([g]), "128x4")


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_with_a_pitch(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    x, rows = numbers(9, 48, dtype, generator), rows_of("inside", 30, 9, generator)
    ends = ends_of("spread", 4, 30, generator)
    check(backend, generator, x, ends, rows, scales_of(4, generator), "128x4", pitch=48 * dtype.itemsize + 16)
    for offset in range(1, 16 // dtype.itemsize):  # values aligned to themselves alone
        memory = torch.zeros(9 * 48 + offset, dtype=dtype).to(backend.device)
        shifted = memory[offset:].view(9, 48)
        shifted.copy_(x)
        got = nvfp4.quantize(shifted, ends=ends.to(backend.device), scale_layout="linear")
        data, scale, _ = by_definition(x, torch.ones(9), ends, "linear")
        end = groups_of(ends, 9)[-1][1]
        assert torch.equal(got[0].cpu()[:end], data[:end])
        assert torch.equal(got[1].cpu().view(torch.uint8)[:end], scale[:end])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_to_do(backend: Backend, layout: str, generator: torch.Generator) -> None:
    """No rows, no columns: scale_rows are written nevertheless."""
    for t, k in ((0, 32), (5, 0), (0, 0)):
        x = torch.zeros(t, k)
        for ends in (None, torch.tensor([-3, 5, 2], dtype=torch.int32)):
            check(backend, generator, x, ends, None, torch.ones(1), layout)
            check(backend, generator, x, ends, torch.zeros(0, dtype=torch.int32), torch.ones(1), layout)


@pytest.mark.skipif(not FULL, reason="CI_FULL=1 runs it")
def test_many_rows(backend: Backend, generator: torch.Generator) -> None:
    x, rows = numbers(300, 4112, torch.bfloat16, generator), rows_of("outside", 20000, 300, generator)
    for groups in (1, 128, 1024):
        ends = ends_of("spread", groups, 20000, generator)
        check(backend, generator, x, ends, rows, scales_of(groups, generator), "128x4")


def test_what_is_returned(backend: Backend) -> None:
    """scale_rows where a product needs them, and results of torch's types."""
    x = torch.randn(200, 64).to(backend.device)
    ends, rows = (torch.tensor(v, dtype=torch.int32).to(backend.device) for v in ([130, 200], list(range(199, -1, -1))))
    data, scale, scale_rows = nvfp4.quantize(x, ends=ends, rows=rows)
    assert data.dtype == torch.uint8 and data.shape == (200, 32)
    assert scale.dtype == torch.float8_e4m3fn and scale.shape == (128 * 3, 4) == (128 * max_blocks(200, 2), 4)
    assert scale_rows.dtype == torch.int32 and scale_rows.tolist() == [0, 256]
    assert all(t.device.type == backend.device for t in (data, scale, scale_rows))
    assert len(nvfp4.quantize(x, ends=ends, scale_layout="linear")) == 2
    data, scale = nvfp4.quantize(x, rows=rows[:5])
    assert data.shape == (5, 32) and scale.shape == (128, 4)
    assert len(nvfp4.gated_quantize(x, ends=ends)) == 3 and len(nvfp4.gated_quantize(x)) == 2
    assert len(nvfp4.gated_quantize(x, ends=ends, scale_layout="linear")) == 2


CALLS: dict[str, Callable[..., Any]] = {
    "ends": lambda x, ends, rows, **how: nvfp4.quantize(x, ends=ends, **how),
    "rows": lambda x, ends, rows, **how: nvfp4.quantize(x, rows=rows, **how),
    "both": lambda x, ends, rows, **how: nvfp4.quantize(x, ends=ends, rows=rows, **how),
    "gated": lambda x, ends, rows, **how: nvfp4.gated_quantize(x, ends=ends, **how),
    "gated alone": lambda x, ends, rows, **how: nvfp4.gated_quantize(x, **how),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", CALLS)
def test_into_tensors_that_exist(backend: Backend, call: str, layout: str, generator: torch.Generator) -> None:
    """The bytes of a call that makes tensors; what is returned are the given ones."""
    x = torch.randn(150, 64, generator=generator).to(backend.device)
    ends, rows = (torch.tensor(v, dtype=torch.int32).to(backend.device) for v in ([70, 150], list(range(149, -1, -1))))
    wanted = CALLS[call](x, ends, rows, scale_layout=layout)
    groups = 2 if call in ("ends", "both", "gated") else 1
    out = (*map(torch.empty_like, wanted[:2]), torch.full((groups,), -1, dtype=torch.int32, device=x.device))
    got = CALLS[call](x, ends, rows, scale_layout=layout, out=out)
    assert len(got) == len(wanted) and all(t.data_ptr() == own.data_ptr() for t, own in zip(got, out))
    for t, right in zip(got, wanted):  # a third block of 128x4 scales would be that of no group
        assert torch.equal(t[:256].view(torch.uint8), right[:256].view(torch.uint8))
    assert out[2].tolist() == ([0] if groups == 1 else [0, 70 if layout == "linear" else 128])
    if backend.device == "cpu" and not backend.emulated:
        again = tuple(torch.full_like(t, 1) for t in out)
        torch._dynamo.reset()
        run = torch.compile(CALLS[call], fullgraph=True, backend="aot_eager")
        run(x, ends, rows, scale_layout=layout, out=again)
        assert all(torch.equal(t[:256].view(torch.uint8), own[:256].view(torch.uint8)) for t, own in zip(again, out))


# --- gated_quantize -----------------------------------------------------------------------------------------------

ACTIVATIONS: list[tuple[str, dict[str, Any]]] = [
    ("silu", {}),
    ("silu", {"limit": 0.75}),
    ("gelu_tanh", {}),
    ("relu2", {}),
    ("swiglu", {}),
    ("swiglu", {"limit": 0.75, "alpha": 1.25}),
]


def check_gated(
    backend: Backend,
    generator: torch.Generator,
    gate: torch.Tensor,
    up: torch.Tensor | None,
    activation: str,
    how: dict[str, Any],
    ends: torch.Tensor | None,
    g: torch.Tensor,
    layout: str,
    round_steps: bool = False,
) -> None:
    """gate and up are halves of one guarded tensor, or each its own."""
    t, groups = len(gate), 1 if ends is None else len(ends)
    y = reference.gated(gate, up, activation, out_dtype=torch.float32, round_steps=round_steps, **how)
    expected = by_definition(y, scale_of_each(g, ends, None, t, t), ends, layout, poison=POISON)
    both = guarded(torch.cat([gate, gate if up is None else up], dim=1), backend, generator)
    halves = both.tensor.chunk(2, dim=1)
    inputs = [guarded(value, backend, generator) for value in (g, ends)]
    outputs = [guarded(torch.full_like(value, POISON), backend, generator) for value in expected[:2]]
    outputs.append(guarded(torch.full((groups,), -1, dtype=torch.int32), backend, generator))
    out = tuple(value.tensor for value in outputs)
    limit, alpha = how.get("limit", math.inf), how.get("alpha", 1.702)
    there = [None if value is None else value.tensor for value in inputs]
    how_rounded = (layout, 1 if round_steps else 0, out)
    _C.gated_quantize(halves[0], None if up is None else halves[1], *there, activation, limit, alpha, *how_rounded)
    for name, got, right in zip(("data", "scale", "scale_rows"), out, expected, strict=True):
        assert torch.equal(got.cpu(), right), name
    assert both.unchanged() and all(value is None or value.unchanged() for value in inputs)
    assert all(value.unchanged_around() for value in outputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("activation", range(len(ACTIVATIONS)))
def test_gated(backend: Backend, activation: int, layout: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    name, how = ACTIVATIONS[activation]
    for t, n, groups in ((3, 16, 2), (140, 80, 3)):
        gate, up = (numbers(t, n, dtype, generator) for _ in range(2))
        ends = ends_of(("spread", "few", "falling", "wild")[t % 4], groups, t, generator)
        for other in {"relu2": [None], "swiglu": [up]}.get(name, [up, None]):
            for given, g in (
                (ends, scales_of(groups, generator)),
                (ends, scales_of((t, 1), generator)),
                (None, scales_of(t, generator)),
            ):
                rounded = name != "swiglu" and given is None
                check_gated(backend, generator, gate, other, name, how, given, g, layout, rounded)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "relu2", "swiglu"])
def test_gated_of_every_16_bit_pattern(backend: Backend, activation: str, generator: torch.Generator) -> None:
    gate = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(64, 1024)
    up = None if activation == "relu2" else gate.flip(0)
    for rounded in (False, True)[: 1 if activation == "swiglu" else 2]:
        check_gated(backend, generator, gate, up, activation, {}, None, torch.tensor([0.01]), "linear", rounded)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gated_of_batches(backend: Backend, layout: str, generator: torch.Generator) -> None:
    """[L, R, N], whose rows lie any distance apart; silu_mul_quantize's bytes."""
    both = torch.randn(2, 130, 2 * 48, generator=generator).half()
    gate, up = both.to(backend.device).chunk(2, dim=-1)
    g = scales_of((2, 130), generator)
    for scale, each in ((0.003, 0.003), (g.to(backend.device), g)):
        got = nvfp4.gated_quantize(gate, up, global_scale=scale, scale_layout=layout)
        same = nvfp4.silu_mul_quantize(both.to(backend.device), global_scale=scale, scale_layout=layout)
        y = reference.gated(gate.cpu(), up.cpu(), out_dtype=torch.float32)
        right = reference.quantize(y, global_scale=each, scale_layout=layout)
        for mine, silu_mul, theirs in zip(got, same, right, strict=True):
            assert torch.equal(mine.cpu().view(torch.uint8).flatten(), theirs.flatten())
            assert torch.equal(silu_mul.cpu().view(torch.uint8).flatten(), theirs.flatten())


# --- amax_scale of rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_scale", ["amax6", "four_over_six"])
def test_amax_of_rows(backend: Backend, block_scale: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    for r, k, pitch in ((1, 1, 16), (5, 33, 80), (130, 64, 64), (4, 9001, 9008), (4, 0, 8)):
        values = numbers(r, k, dtype, generator)
        if k > 20:
            values[0, 7], values[1, 11], values[2], values[3, -1] = math.nan, -math.inf, 0, -3e4
        memory = torch.full((r, pitch), 1e4, dtype=dtype)
        memory[:, :k] = values
        x = memory.to(backend.device)[:, :k]
        got = nvfp4.amax_scale(x, block_scale=block_scale, by_row=True)
        assert got.dtype == torch.float32 and got.shape == (r,) and got.device.type == backend.device
        right = torch.cat([reference.amax_scale(row[None], block_scale=block_scale) for row in values])
        assert torch.equal(got.cpu(), right)
        assert torch.equal(reference.amax_scale(values, block_scale=block_scale, by_row=True), right)
        assert nvfp4.amax_scale(x[:0], by_row=True).shape == (0,)


def test_per_token_is_each_row_by_itself(backend: Backend, generator: torch.Generator) -> None:
    """Dynamic scales: amax by row, then quantize with them, gathered or not."""
    x = numbers(17, 96, torch.bfloat16, generator).to(backend.device)
    g = nvfp4.amax_scale(x, by_row=True)
    data, scale = nvfp4.quantize(x, global_scale=g, scale_layout="linear")
    rows = torch.tensor([3, 16, 3, 0], dtype=torch.int32).to(backend.device)
    gathered = nvfp4.quantize(x, global_scale=g, scale_layout="linear", rows=rows)
    for i in range(17):
        own = nvfp4.amax_scale(x[i : i + 1])
        assert own.item() == g[i].item()
        one = nvfp4.quantize(x[i : i + 1], global_scale=own, scale_layout="linear")
        assert torch.equal(one[0], data[i : i + 1]) and torch.equal(
            one[1].view(torch.uint8), scale[i : i + 1].view(torch.uint8)
        )
    assert torch.equal(gathered[0], data[rows.long()])
    assert torch.equal(gathered[1].view(torch.uint8), scale.view(torch.uint8)[rows.long()])


# --- rules --------------------------------------------------------------------------------------------------------


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


X, OF_TWO = torch.ones(4, 32), int32(1, 4)
DATA, SCALE = torch.full((4, 16), 7, dtype=torch.uint8), torch.full((4, 2), 7, dtype=torch.uint8)
PLACES = torch.full((2,), -1, dtype=torch.int32)


def raw(
    x: Any = X,
    g: Any = None,
    ends: Any = OF_TWO,
    rows: Any = None,
    layout: str = "linear",
    out: Any = (DATA, SCALE, PLACES),
) -> Any:
    return _C.grouped_quantize(x, g, ends, rows, layout, "amax6", out)


def gate(x: Any = X, up: Any = X, g: Any = None, ends: Any = OF_TWO, activation: str = "silu", **how: Any) -> Any:
    limit, alpha, out = how.get("limit", math.inf), how.get("alpha", 1.702), how.get("out", (DATA, SCALE, PLACES))
    round_steps = how.get("round_steps", 0)
    return _C.gated_quantize(x, up, g, ends, activation, limit, alpha, "linear", round_steps, out)


ERRORS = {
    "x: is missing; must be a tensor": lambda: raw(None),
    "x: has 3 dimensions; must have 2 ([R, K]) with ends or rows": lambda: raw(X[None]),
    "x: K is 24; must be a multiple of 16": lambda: raw(torch.ones(4, 24)),
    "x: dtype is int32; must be float16, bfloat16 or float32": lambda: raw(X.int()),
    "ends: dtype is int64; must be int32": lambda: raw(ends=OF_TWO.long()),
    "ends: has 2 dimensions; must be a vector, [E]": lambda: raw(ends=OF_TWO[None]),
    "ends: E is 0; must be between 1 and 1024": lambda: raw(ends=OF_TWO[:0]),
    "ends: E is 1025; must be between 1 and 1024": lambda: raw(ends=torch.zeros(1025, dtype=torch.int32)),
    "ends: stride is 2; must be 1: pass a copy, .contiguous()": lambda: raw(ends=int32(1, 2, 3, 4)[::2]),
    "rows: has 2 dimensions; must be a vector, [T]": lambda: raw(rows=OF_TWO[None]),
    "rows: dtype is int64; must be int32": lambda: raw(rows=OF_TWO.long()),
    "rows: stride is 2; must be 1: pass a copy, .contiguous()": lambda: raw(rows=int32(*range(8))[::2]),
    "data: is 1 x 4 x 16; x needs L x T x K/2 = 1 x 3 x 16 in 2 dimensions": lambda: raw(rows=int32(0, 1, 2)),
    "scale: is 1 x 3 x 2; the linear layout needs L x rows x K/16 = 1 x 4 x 2": lambda: raw(
        out=(DATA, SCALE[:3], PLACES)
    ),
    "scale: has 8 bytes; the 128x4 layout of 256 rows and K = 32 needs L * ceil(rows/128) * ceil(K/64) * 512 = 1024": (
        lambda: raw(layout="128x4")
    ),
    "scale_rows: has 3 elements in 1 dimension; must be a vector of length E = 2": lambda: raw(
        out=(DATA, SCALE, int32(0, 0, 0))
    ),
    "global_scale: has 3 elements in 1 dimension; must have 1, be [E] = [2], or [R, 1] = [4, 1] for rows": (
        lambda: raw(g=torch.ones(3))
    ),
    "global_scale: has 4 elements in 1 dimension; must have 1, be [E] = [2], or [R, 1] = [4, 1] for rows": (
        lambda: raw(g=torch.ones(4))
    ),
    "global_scale: has 2 elements; must have 1, or one a row: 4": lambda: nvfp4.quantize(X, global_scale=torch.ones(2)),
    "global_scale: is not contiguous; must be: pass a copy, .contiguous()": lambda: raw(g=torch.ones(4)[::2]),
    "global_scale: is 0; must be positive and finite": lambda: raw(g=torch.tensor([1.0, 0.0])),
    "global_scale: is nan; must be positive and finite": lambda: raw(g=math.nan),
    "global_scale: dtype is torch.float64; must be float32": lambda: raw(g=torch.ones(2).double()),
    "data: shares memory with x; must not overlap it, it is written": lambda: raw(
        out=(X.view(torch.uint8).flatten()[:64].view(4, 16), SCALE, PLACES)
    ),
    "scale_rows: shares memory with ends; must not overlap it, it is written": lambda: raw(out=(DATA, SCALE, OF_TWO)),
    "out: has 2 elements; must be a tuple of data, scale and scale_rows": lambda: raw(out=(DATA, SCALE)),
    "out: is given without ends and rows; must be None then": lambda: nvfp4.quantize(X, out=(DATA, SCALE, PLACES)),
    "gate: is missing; must be a tensor": lambda: gate(None),
    "gate: has 3 dimensions; must have 2 ([R, N]) with ends": lambda: gate(X[None], X[None]),
    "gate: K is 24; must be a multiple of 16": lambda: gate(torch.ones(4, 24), None),
    "up: dtype is float16; must be that of gate, float32": lambda: gate(up=X.half()),
    "up: is 1 x 3 x 32; must be as gate, 1 x 4 x 32, in 2 dimensions": lambda: gate(up=X[:3]),
    "up: is missing; must be a tensor: swiglu multiplies by up + 1": lambda: gate(up=None, activation="swiglu"),
    "up: is given, but relu2 is a function of gate alone": lambda: gate(activation="relu2"),
    "limit: is 1; must be left out: gelu_tanh has none": lambda: gate(activation="gelu_tanh", limit=1.0),
    "limit: is 0; must be positive": lambda: gate(limit=0.0),
    "alpha: is 2; must be left out (1.702): silu has none": lambda: gate(alpha=2.0),
    "activation: is 'tanh'; must be 'silu', 'gelu_tanh', 'relu2' or 'swiglu'": lambda: gate(activation="tanh"),
    "round_steps: is 2; must be 0 or 1": lambda: gate(round_steps=2),
    "round_steps: is 1; must be 0 with swiglu, whose steps are others": lambda: gate(
        activation="swiglu", round_steps=1
    ),
    "round_steps: is of type int; must be True or False": lambda: nvfp4.gated_quantize(X, round_steps=1),  # type: ignore[arg-type]
    "x: has 3 dimensions; must have 2 ([R, K]) for a scale of each row": lambda: nvfp4.amax_scale(X[None], by_row=True),
    "by_row: is of type int; must be True or False": lambda: nvfp4.amax_scale(X, by_row=1),  # type: ignore[arg-type]
    "by_row: is 2; must be 0 or 1": lambda: _C.amax_scale(X, "amax6", 2),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message: str) -> None:
    with pytest.raises(nvfp4.Error) as error:
        ERRORS[message]()
    assert str(error.value) == message
    assert (DATA == 7).all() and (SCALE == 7).all() and (PLACES == -1).all() and (X == 1).all()
    assert OF_TWO.tolist() == [1, 4]


def test_numpy(generator: torch.Generator) -> None:
    x, rows = numbers(6, 32, torch.float32, generator), np.int32([5, 0, -1])
    data, scale, scale_rows = nvfp4.quantize(
        x.numpy(), ends=np.int32([2, 3]), rows=rows, global_scale=np.float32([2, 3])
    )
    right = by_definition(sorted_rows(x, torch.from_numpy(rows)), torch.tensor([2.0, 2.0, 3.0]), int32(2, 3), "128x4")
    assert np.array_equal(data, right[0].numpy()) and np.array_equal(scale_rows, right[2].numpy())
    assert np.array_equal(np.asarray(scale).view(np.uint8), right[1].numpy())


# --- torch --------------------------------------------------------------------------------------------------------


def experts(x: torch.Tensor, ends: torch.Tensor, rows: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The quantizers of a mixture's step, with arithmetic around them."""
    data, scale, scale_rows = nvfp4.quantize(x + 1, ends=ends, rows=rows, global_scale=g)
    per_token = nvfp4.amax_scale(x + 1, by_row=True)
    own, own_scale = nvfp4.quantize(x + 1, global_scale=per_token, scale_layout="linear")
    gated, gated_scale, places = nvfp4.gated_quantize(x + 1, x, limit=2.0, ends=ends, global_scale=g)
    return data, scale_rows + 1, own, own_scale.view(torch.uint8), gated, places, scale, gated_scale


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic: bool, generator: torch.Generator) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(experts, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for r in (4, 7):
        x = torch.randn(r, 64, generator=generator)
        rows, ends = torch.arange(r, dtype=torch.int32).flip(0), int32(1, 3, r)
        results = [call(x, ends, rows, torch.tensor([0.5, 1.0, 2.0])) for call in (compiled, experts)]
        for got, right in zip(*results, strict=True):
            assert got.shape == right.shape and got.dtype == right.dtype
        for got, right in list(zip(*results, strict=True))[:6]:  # 128x4 scales have blocks that are not written
            assert torch.equal(got, right)
