"""Quantizers of rows in the order of their groups (nvfp4.quantize with ends or rows, nvfp4.gated_quantize): their
definition from quantize of each row by itself, and generated calls in guarded memory, as generated_calls.py has them of
the other operations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from generated_calls import (
    DTYPES,
    At,
    Draw,
    Maker,
    backends,
    backends_on_gpu,
    draw_at,
    draw_size,
    explain,
    one_of,
    prepare,
    tensors,
    wrongly_written,
)
from hypothesis import strategies as st

import nvfp4
from nvfp4 import reference

INT32 = torch.iinfo(torch.int32)
ENDS = ("spread", "few", "falling", "none", "most", "wild")
ACTIVATIONS = ("silu", "gelu_tanh", "relu2", "swiglu")


# --- the definition -----------------------------------------------------------------------------------------------


def groups_of(ends: torch.Tensor | None, t: int) -> list[tuple[int, int]]:
    """The first row of each group and the one behind its last, by a loop."""
    if ends is None:
        return [(0, t)]
    found, end = [], 0
    for value in ends.tolist():
        begin, end = end, max(end, min(value, t))
        found.append((begin, end))
    return found


def max_blocks(t: int, groups: int) -> int:
    most = min(groups, t)
    return most + (t - most) // 128


def sorted_rows(x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """Rows of x in the order of `rows`, NaN for those that it does not have."""
    if rows is None:
        return x
    outside = (rows < 0) | (rows >= len(x))
    found = x[rows.where(~outside, 0).long()] if len(x) else x.new_zeros(len(rows), x.shape[1])
    return torch.where(outside[:, None], math.nan, found)


def scale_of_each(
    g: torch.Tensor, ends: torch.Tensor | None, rows: torch.Tensor | None, r: int, t: int
) -> torch.Tensor:
    """The global scale of each sorted row: one of the call, of groups ([E]) or of rows of x ([R] without ends, [R, 1]).
    That of a row of NaN does not matter."""
    if g.numel() == 1:
        return g.flatten().expand(t)
    each = torch.ones(t)
    if ends is not None and g.ndim == 1:
        for value, (begin, end) in zip(g, groups_of(ends, t), strict=True):
            each[begin:end] = value
    elif r:
        each = g.flatten() if rows is None else g.flatten()[rows.clamp(0, r - 1).long()]
    return each


def by_definition(
    x: torch.Tensor,
    g: torch.Tensor,
    ends: torch.Tensor | None,
    layout: str,
    block_scale: str = "amax6",
    poison: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Data, scales and scale_rows of sorted rows x, with a global scale each. Bytes not written are `poison`."""
    t, columns = len(x), x.shape[1] // 16
    groups = groups_of(ends, t)
    shape = (t, columns) if layout == "linear" else (128 * max_blocks(t, len(groups)), -(-columns // 4) * 4)
    data = torch.full((t, columns * 8), poison, dtype=torch.uint8)
    scale = torch.full(shape, poison, dtype=torch.uint8)
    codes, scales = reference.quantize(x, global_scale=g, scale_layout="linear", block_scale=block_scale)
    scale_rows, block = [], 0
    for begin, end in groups:
        scale_rows.append(begin if layout == "linear" else 128 * block)
        data[begin:end] = codes[begin:end]
        if layout == "linear":
            scale[begin:end] = scales[begin:end]
        elif end > begin:
            own = -(-(end - begin) // 128)
            scale[128 * block : 128 * (block + own)] = reference.swizzle(scales[begin:end]).view(128 * own, -1)
            block += own
    return data, scale, torch.tensor(scale_rows, dtype=torch.int32)


# --- inputs -------------------------------------------------------------------------------------------------------


def rows_of(kind: str | None, t: int, r: int, generator: torch.Generator) -> torch.Tensor | None:
    if kind is None:
        return None
    rows = torch.randint(0, max(r, 1), (t,), generator=generator, dtype=torch.int32)
    if kind == "outside" and t:
        wrong = torch.tensor([-1, r, INT32.min, INT32.max, -r - 1], dtype=torch.int32)
        rows[torch.randint(0, t, (5,), generator=generator)] = wrong
    return rows


def ends_of(kind: str, groups: int, t: int, generator: torch.Generator) -> torch.Tensor:
    if kind == "wild":
        return torch.randint(INT32.min, INT32.max, (groups,), generator=generator, dtype=torch.int32)
    if kind == "falling":
        return torch.linspace(t + 5, -5, groups).int()
    if kind == "none":
        return torch.zeros(groups, dtype=torch.int32)
    if kind == "few":  # not all rows, and most groups have none
        ends = torch.zeros(groups, dtype=torch.int32)
        ends[groups // 2 :] = t * 2 // 3
        return ends
    if kind == "most":  # as many blocks as there can be: groups of one row, and one with the others
        return (t - groups + 1 + torch.arange(groups, dtype=torch.int32)).clamp(min=0)
    return torch.randint(0, t + 1, (groups,), generator=generator, dtype=torch.int32).sort().values


def numbers(r: int, k: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return (torch.randn(r, k, generator=generator) * 10 ** torch.randn(r, 1, generator=generator)).to(dtype)


def scales_of(shape: int | tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Global scales of a few powers of ten; one in 8 is outside of the range of the fast path."""
    g = 10 ** torch.randn(shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 1 / 8, g * 2.0**-60, g)


# --- generated calls ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sorted:
    t: int  # rows in the order of their groups
    k: int
    groups: int | None = None  # None: no ends
    ends: str = "spread"
    rows: str | None = None  # "inside", "outside": some that x does not have. Of quantize
    r: int = 1  # the rows of x, if there are `rows`
    global_scale: str | None = None  # "number", "one", "group", "row"
    layout: str = "128x4"
    dtype: str = "float32"
    block_scale: str = "amax6"  # of quantize
    activation: str | None = None  # of gated_quantize; None: quantize
    up: bool = True  # where the activation leaves the choice
    limit: float | None = None
    backend: str | None = None
    threads: int = 1
    seed: int = 0
    at: dict[str, At] = field(default_factory=dict)


@st.composite
def sorteds(draw: Draw, target: str) -> Sorted:
    t, k, r = one_of(draw, draw_size(draw, 300), 0), 16 * draw_size(draw, 20), one_of(draw, 1, 2, 50)
    groups = one_of(draw, None, 1, 2, 3, 8, 33, 256, 257, 1024)
    activation = one_of(draw, None, None, *ACTIVATIONS)
    rows = None if activation else one_of(draw, None, "inside", "outside")
    if groups is None and activation is None and rows is None:
        groups = 1
    dtype = one_of(draw, *DTYPES)
    item = DTYPES[dtype].itemsize
    unit = item if activation else 16  # a gate's rows lie any distance apart
    count = t if rows is None else r
    at = {
        name: draw_at(draw, None, count, k * item, unit, one_of(draw, item, 16), False) for name in ("x", "gate", "up")
    }
    for name in ("ends", "rows", "global_scale"):
        at[name] = At(slack=4 * one_of(draw, 0, 0, 1, 2), edge=one_of(draw, "end", "begin"))
    return Sorted(
        t,
        k,
        groups,
        one_of(draw, *ENDS),
        rows,
        r,
        one_of(draw, None, "number", "one", "row", *(["group"] if groups else [])),
        one_of(draw, "128x4", "linear"),
        dtype,
        "amax6" if activation else one_of(draw, "amax6", "four_over_six"),
        activation,
        up=one_of(draw, False, True) or activation == "swiglu",
        limit=one_of(draw, None, 0.5) if activation in ("silu", "swiglu") else None,
        backend=one_of(draw, *backends(target)),
        threads=one_of(draw, 1, 2) if not backends_on_gpu(target) else 1,
        seed=draw(st.integers(0, 2**20)),
        at=at | {"result": At(edge=one_of(draw, "end", "begin"))},
    )


def make_scale(case: Sorted, make: Maker, r: int) -> tuple[Any, torch.Tensor]:
    """The argument, and the same in host memory."""
    if case.global_scale is None or case.global_scale == "number":
        number = None if case.global_scale is None else 0.75
        return number, torch.tensor([number or 1.0])
    shape = {"one": (1,), "group": (case.groups or 1,), "row": (r, 1) if case.groups else (r,)}[case.global_scale]
    g = scales_of(shape, make.random)
    return make.place("global_scale", g), g


def run_sorted(target: str, case: Sorted) -> str:
    """The verdict: "" or what is wrong."""
    device = prepare(target, case.backend, case.seed, case.threads)
    make = Maker(case.seed, case.at, device)
    r = case.r if case.rows else case.t
    x = numbers(r, case.k, DTYPES[case.dtype], make.random)
    rows = rows_of(case.rows, case.t, r, make.random)
    ends = None if case.groups is None else ends_of(case.ends, case.groups, case.t, make.random)
    argument, g = make_scale(case, make, r)
    args: dict[str, Any] = {"scale_layout": case.layout, "global_scale": argument}
    for name, values in (("ends", ends), ("rows", rows)):
        args |= {} if values is None else {name: make.place(name, values)}
    if case.activation is None:
        leader = make.place("x", x)
        values, call = sorted_rows(leader.cpu(), rows), nvfp4.quantize
        args |= {"block_scale": case.block_scale}
    else:
        up = numbers(r, case.k, x.dtype, make.random) if case.up and case.activation != "relu2" else None
        leader = make.place("gate", x)
        up = None if up is None else make.place("up", up)
        args |= {"up": up, "activation": case.activation, "limit": case.limit}
        both = (leader.cpu(), None if up is None else up.cpu())  # rows that share memory have other values now
        values = reference.gated(*both, case.activation, limit=case.limit, out_dtype=torch.float32)
        call = nvfp4.gated_quantize
    make.guard_results(leader)
    try:
        got = call(leader, **args)
    except nvfp4.Error as error:
        return explain(target, error)
    guarded = [memory.tensor for name, memory in tensors.items() if name.startswith("result")]
    if [y.data_ptr() for y in guarded[: len(got)]] != [y.data_ptr() for y in got]:
        return "the results are not in guarded memory"
    if len(got) != (3 if ends is not None and case.layout == "128x4" else 2):
        return f"there are {len(got)} results"
    each = scale_of_each(g, ends, rows, r, case.t)
    expected = [by_definition(values, each, ends, case.layout, case.block_scale, poison) for poison in (0, 255)]
    for mine, theirs, poisoned in zip(got, *expected):  # scale_rows are not returned with linear scales
        written = theirs == poisoned
        bytes_of = mine.cpu() if mine.dtype == torch.int32 else mine.cpu().view(torch.uint8)
        if bytes_of.shape != theirs.shape or not torch.equal(bytes_of[written], theirs[written]):
            return "a result differs"
    return wrongly_written()
