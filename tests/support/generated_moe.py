"""Calls of gated, moe_route and moe_combine in guarded memory, as generated_calls.py has them of the other operations:
a hypothesis strategy, and the verdict on one call, whose results have the bits of reference.py."""

from __future__ import annotations

from collections.abc import Callable
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
    draw_size,
    explain,
    is_guarded,
    one_of,
    prepare,
    wrongly_written,
)
from hypothesis import strategies as st

import nvfp4
from nvfp4 import reference

STEPS = ("gated", "moe_route", "moe_combine")
ACTIVATIONS = ("silu", "gelu_tanh", "relu2", "swiglu")


@dataclass(frozen=True)
class Step:
    call: str
    rows: int  # of the gate, or tokens
    columns: int = 1  # of rows; of moe_route the experts
    l: int | None = None
    k: int = 1
    dtype: str = "float32"  # of gate and up, or y
    out_dtype: str | None = None
    weights: str | None = None
    activation: str = "silu"
    up: bool = True  # where the activation leaves the choice
    limit: float | None = None
    y_rows: int = 1
    wide: bool = False  # ids are int64
    mapped: int | None = None  # the entries of expert_map
    allocated: bool = True  # no out is passed
    backend: str | None = None
    threads: int = 1
    seed: int = 0
    at: dict[str, At] = field(default_factory=dict)


def draw_at(draw: Draw, rows: int, row: int, item: int) -> At:
    """Rows any distance apart, an address that is aligned to a value."""
    edge = one_of(draw, "end", "end", "begin")
    if rows == 0 or row == 0:
        return At(edge=edge)
    pitch = one_of(draw, None, None, row + item * draw(st.integers(0, 9)), -(-row // 16) * 16 + 16)
    return At(pitch, None, item * draw(st.integers(0, 3)), edge)


@st.composite
def steps(draw: Draw, target: str) -> Step:
    call = one_of(draw, *STEPS)
    rows, l, k = one_of(draw, draw_size(draw, 60), 0), one_of(draw, None, 1, 2), one_of(draw, *range(17))
    columns = one_of(draw, draw_size(draw, 300), 1024) if call == "moe_route" else draw_size(draw, 300)
    dtype, y_rows = one_of(draw, *DTYPES), one_of(draw, 0, 1, 2, 50)
    out_dtype, weights = one_of(draw, None, *DTYPES), one_of(draw, None, *DTYPES)
    wide, mapped = one_of(draw, False, True), one_of(draw, None, None, 0, 1, 64)
    activation = one_of(draw, *ACTIVATIONS)
    item, out_item = DTYPES[dtype].itemsize, DTYPES[out_dtype or dtype].itemsize
    tables = {
        "gated": dict.fromkeys(("gate", "up"), (rows, columns * item, item))
        | {"out": (rows, columns * out_item, out_item)},
        "moe_route": {"ids": (rows, k * (8 if wide else 4), 8 if wide else 4), "expert_map": (1, 4 * (mapped or 0), 4)},
        "moe_combine": {"y": (y_rows, columns * item, item), "places": (rows, 4 * k, 4)}
        | {"out": (rows, columns * out_item, out_item)}
        | ({"weights": (rows, k * DTYPES[weights].itemsize, DTYPES[weights].itemsize)} if weights else {}),
    }
    at = {name: draw_at(draw, *table) for name, table in tables[call].items()}
    return Step(
        call,
        rows,
        columns,
        l if call == "gated" else None,
        k,
        dtype,
        out_dtype,
        weights,
        activation,
        up=one_of(draw, False, True) or activation == "swiglu",
        limit=one_of(draw, None, 0.5) if activation in ("silu", "swiglu") else None,
        y_rows=y_rows,
        wide=wide,
        mapped=mapped,
        allocated=one_of(draw, False, True),
        backend=one_of(draw, *backends(target)),
        threads=one_of(draw, 1, 2) if not backends_on_gpu(target) else 1,
        seed=draw(st.integers(0, 2**20)),
        at=at | {"result": At(edge=one_of(draw, "end", "begin"))},
    )


def make_gated(case: Step, make: Maker) -> dict[str, Any]:
    shape = (*(() if case.l is None else (case.l,)), case.rows, case.columns)
    args: dict[str, Any] = {"gate": make.place("gate", (make.normal(*shape) * 3).to(DTYPES[case.dtype]))}
    if case.up and case.activation != "relu2":
        args["up"] = make.place("up", make.normal(*shape).to(DTYPES[case.dtype]))
    return args | {"activation": case.activation, "limit": case.limit}


def make_moe_route(case: Step, make: Maker) -> dict[str, Any]:
    end = case.columns if case.mapped is None else case.mapped
    ids = make.integers(-1, end, case.rows, case.k)
    strange = make.integers(0, 9, case.rows, case.k)
    ids = torch.where(strange == 0, make.integers(-(2**31), 2**31 - 1, case.rows, case.k), ids)
    ids = torch.where(strange == 1, ids + 2**32 * case.wide, ids)
    args: dict[str, Any] = {"ids": make.place("ids", ids if case.wide else ids.int()), "E": case.columns}
    if case.mapped is not None:
        expert_map = make.integers(-1, case.columns, case.mapped).int()
        args["expert_map"] = make.place("expert_map", expert_map)
    return args


def make_moe_combine(case: Step, make: Maker) -> dict[str, Any]:
    y = make.normal(case.y_rows, case.columns).to(DTYPES[case.dtype])
    places = make.integers(-1, case.y_rows - (make.integers(0, 3, 1).item() > 0), case.rows, case.k).int()
    args = {"y": make.place("y", y), "places": make.place("places", places)}
    if case.weights:
        args["weights"] = make.place("weights", make.normal(case.rows, case.k).to(DTYPES[case.weights]))
    return args


MAKERS: dict[str, Callable[[Step, Maker], dict[str, Any]]] = {
    "gated": make_gated,
    "moe_route": make_moe_route,
    "moe_combine": make_moe_combine,
}


def run_step(target: str, case: Step) -> str:
    """The verdict: "" or what is wrong."""
    device = prepare(target, case.backend, case.seed, case.threads)
    make = Maker(case.seed, case.at, device)
    args = MAKERS[case.call](case, make)
    if case.call != "moe_route" and case.out_dtype:
        args["out_dtype"] = DTYPES[case.out_dtype]
    copies = {name: x.cpu().clone() if isinstance(x, torch.Tensor) else x for name, x in args.items()}
    expected = getattr(reference, case.call)(**copies)
    expected = expected if isinstance(expected, tuple) else (expected,)
    given = case.call != "moe_route" and not case.allocated
    if given:
        args["out"] = make.place("out", torch.full_like(expected[0], torch.nan))
    make.guard_results(next(iter(args.values())))
    try:
        got = getattr(nvfp4, case.call)(**args)
    except nvfp4.Error as error:
        return explain(target, error)
    got = got if isinstance(got, tuple) else (got,)
    if given and got[0] is not args["out"]:
        return "out was not returned"
    if not given and not is_guarded(got):
        return "the results are not in guarded memory"
    for mine, theirs in zip(got, expected, strict=True):
        if theirs.dtype == torch.int32:
            same, message = mine.dtype == torch.int32 and torch.equal(mine.cpu(), theirs), "a result differs"
        else:
            same, message = reference.compare(mine, theirs, exact=True)
        if not same:
            return message
    return wrongly_written()
