"""Products of groups of rows (nvfp4.grouped_gemm), some with an activation (nvfp4.gated_grouped_gemm), in guarded
memory: calls, their definition, and the verdict on one.

`groupeds` is a hypothesis strategy; `run_grouped` makes the tensors, calls and judges, in a child of call_workers.py.
As in generated_calls.py, whose tools these are, results have equal bits where sums are exact, else they are within a
bound.

    python tests/support/generated_grouped_gemm.py sm_80 'Grouped(9, 40, 96, 4, seed=5)'  # one call again
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import backend_table
import torch
from error_bounds import Bounded, roundings
from generated_calls import (
    DTYPES,
    At,
    Draw,
    Maker,
    backends_on_gpu,
    draw_at,
    draw_broken,
    draw_size,
    explain,
    is_guarded,
    one_of,
    prepare,
    tensors,
    wrongly_written,
)
from hypothesis import strategies as st

import nvfp4
from nvfp4 import _C, reference

ENDS = ("spread", "few", "one", "none", "wild")
ROWS = (None, "permuted", "repeated", "outside")
ALPHAS = (None, "number", "one", "matrix", "column")
BIASES = (None, "float32", "out")
A = ("float16", "bfloat16", "nvfp4")
SCALE_ROWS = ("dense", "apart", "wild")
GATING = ("activation", "limit", "activation_alpha")
ACTIVATIONS = {1: ("silu", "gelu_tanh", "relu2"), 2: ("silu", "gelu_tanh", "swiglu")}  # of one part, of two
INT32 = torch.iinfo(torch.int32)
BACKEND = "sm80"  # of kernels that take every product of groups, on every GPU


def takes(target: str, transpose_b: bool) -> bool:
    """Whether the target has a kernel."""
    return (
        not backends_on_gpu(target) or transpose_b or "grouped_gemm_nn" in backend_table.ROWS[BACKEND]["product_kinds"]
    )


def own_backend(target: str, a: str, anywhere: bool = False, few: bool = True) -> str | None:
    """The backend for the target alone that take products of groups of such an A, with 128x4 scales and where
    tensor maps reach the values; or with any scales and values anywhere. few: kernels for few rows alone take it, which
    have no order for every T, and nothing to do where K is 0."""
    kind, listed = "uint8" if a == "nvfp4" else a, "linear_scales" if anywhere else "product_kinds"
    own = [name for name in backends_on_gpu(target) if name in backend_table.OWN]
    own = [name for name in own if few or not backend_table.max_rows(name, a)]
    return next((x for x in own if kind in backend_table.ROWS[x][listed].get("grouped_gemm", [])), None)


@dataclass(frozen=True)
class Grouped:
    t: int  # rows in the order of their groups
    n: int
    k: int
    groups: int
    parts: int | None = None  # None: b is [E, N, K/2]
    ends: str = "spread"  # "few": on few groups, and not all rows; "one": on one; "wild": of any value
    rows: str | None = None  # "permuted", "repeated", "outside": some that a does not have
    row_scale: bool = False
    layout: str = "128x4"
    out_dtype: str = "float16"
    alpha: str | None = None  # "number", "one", "matrix", "column"
    bias: str | None = None  # "float32", "out"
    a: str = "float16"  # or "bfloat16", "nvfp4"
    scale_rows: str = "dense"  # of an NVFP4 a; "apart": in another order; "wild": also outside, and inside of blocks
    transpose_b: bool = True
    activation: str | None = None  # of gated_grouped_gemm; None: grouped_gemm
    limit: float | None = None
    activation_alpha: float | None = None
    allocated: bool = False  # no out is passed
    typed: str = ""  # of a, b, A, B (scales): those that have the types of torch rather than uint8
    scales: str = "contest"  # else a is random, too
    backend: str | None = None
    rank: int = 0  # of the plan
    threads: int = 1  # on the CPU
    batch_invariant: bool = False
    constant_b: bool = False
    constant_ends: bool = False
    seed: int = 0  # of the data, and the emulated GPU's
    broken: str = ""  # the operand whose layout breaks a rule
    at: dict[str, At] = field(default_factory=dict)

    def __repr__(self) -> str:
        default = Grouped(self.t, self.n, self.k, self.groups)
        sizes = [str(x) for x in (self.t, self.n, self.k, self.groups)]
        given = [f"{name}={value!r}" for name, value in vars(self).items() if value != getattr(default, name)]
        return f"Grouped({', '.join([*sizes, *given])})"

    @property
    def matrices(self) -> int:
        return self.groups * (self.parts or 1)

    @property
    def sums(self) -> int:
        """Products of a sum: the columns of a."""
        return self.k if self.transpose_b else self.n

    @property
    def a_row_bytes(self) -> int:
        return self.k // 2 if self.a == "nvfp4" else self.sums * 2

    @property
    def has_scale_rows(self) -> bool:
        return self.a == "nvfp4" and self.layout == "128x4"

    @property
    def columns(self) -> int:
        """The results of a part."""
        return self.n if self.transpose_b else self.k

    @property
    def width(self) -> int:
        """The columns of the result."""
        return self.columns * (1 if self.activation else self.parts or 1)


@st.composite
def groupeds(draw: Draw, target: str, volume: float) -> Grouped:
    """`volume`: the largest T * N * K * P and the largest E * N * K * P, each of T and N at least 16."""
    t, groups = draw_size(draw, 300), one_of(draw, 1, 2, 3, 4, 7, 8, 32, 33, 128, 129, 200, 1023, 1024)
    transpose_b = not takes(target, False) or one_of(draw, True, True, False)
    parts = one_of(draw, None, None, 1, 2, 3) if transpose_b else None
    most = volume / max(t, groups, 16) / (parts or 1)
    n = draw_size(draw, max(1, int(most / 64)))
    k = 16 * min(max(1, int(most / max(n, 16)) // 16), one_of(draw, *range(1, 10), 15, 16, 17, 32, 33, 34, 64, 65, 130))
    if one_of(draw, *([False] * 30), True):
        name = one_of(draw, "t", "n", "k", "e")
        t, n, k, groups = (0 if name == x else y for x, y in zip("tnke", (t, n, k, groups)))
    layout, dtype = one_of(draw, "128x4", "linear"), one_of(draw, *DTYPES)
    rows, alpha = one_of(draw, *ROWS), one_of(draw, *ALPHAS)
    a = one_of(draw, *(A if transpose_b else A[:2]))
    if a == "nvfp4" and layout == "128x4":
        rows = None
    bias, row_scale = one_of(draw, *BIASES), one_of(draw, False, True)
    activation, limit, activation_alpha = None, None, None
    if transpose_b and parts != 3 and one_of(draw, False, False, True):
        activation = one_of(draw, *ACTIVATIONS[parts or 1])
        limit = one_of(draw, None, 0.5, 40.0) if activation in ("silu", "swiglu") else None
        activation_alpha = one_of(draw, None, 0.01) if activation == "swiglu" else None
    if not transpose_b and alpha == "column":
        alpha = "matrix"

    matrices = groups * (parts or 1)
    item, width = DTYPES[dtype].itemsize, (n if transpose_b else k) * (1 if activation else parts or 1)
    at = {}
    places: dict[str, tuple[int | None, int, int, int]] = {
        "a": (None, t, k // 2, 8) if a == "nvfp4" else (None, t, k * 2, 16) if transpose_b else (None, t, n * 2, 2),
        "b": (matrices, n, k // 2, 8),
        "out": (None, t, width * item, item),
    }
    if layout == "linear":
        places["scale_b"] = (matrices, n, k // 16, 1)
        places |= {"scale_a": (None, t, k // 16, 1)} if a == "nvfp4" else {}
    odd = one_of(draw, "", "", "a", "b", "both")
    for name, (l, count, row, unit) in places.items():
        align = 16 if name not in (odd, "scale_a", "scale_b") and odd != "both" else unit
        at[name] = draw_at(draw, l, count, row, unit, align, name == "out")
    for name in ("scale_a", "scale_b") if layout == "128x4" else ():
        at[name] = At(slack=one_of(draw, 0, 0, 16), edge=one_of(draw, "end", "begin"))
    for name in ("ends", "rows", "scale_rows", "row_scale", "alpha", "bias"):
        at[name] = At(slack=one_of(draw, 0, 0, 4, 8), edge=one_of(draw, "end", "begin"))
    at["result"] = At(edge=one_of(draw, "end", "begin"))
    broken = ""
    if one_of(draw, *([False] * 7), True) and 0 not in (t, n, k, groups):
        broken = one_of(draw, "a", "b", "scale_b", "out", *(["scale_a"] if a == "nvfp4" else []))
        l, count, row, unit = places.get(broken, (None, 0, 0, 0))
        wrong = draw_broken(draw, l, count, row, unit, broken not in places)
        broken, at = (broken, at | {broken: wrong}) if wrong else ("", at)
    backends = [BACKEND] if backends_on_gpu(target) else [None, "cpu"]
    reached = layout == "128x4" and odd not in ("b", "both") and (n > 1 or k % 32 == 0)
    if a == "nvfp4":
        reached = reached and odd != "a" and (t > 1 or k % 32 == 0)
    batch_invariant = one_of(draw, False, False, True)
    own = own_backend(target, a, not reached, k > 0 and not batch_invariant)
    if own and transpose_b and not broken:
        backends = [own]
    return Grouped(
        t,
        n,
        k,
        groups,
        parts,
        one_of(draw, *ENDS),
        rows if broken not in ("a", "scale_a") else None,  # a of one row breaks no rule of rows
        row_scale,
        layout,
        dtype,
        alpha,
        bias,
        a,
        one_of(draw, *SCALE_ROWS),
        transpose_b,
        activation,
        limit,
        activation_alpha,
        allocated=broken != "out" and one_of(draw, False, False, True),
        typed="".join(x for x in "abAB" if one_of(draw, False, True)),
        scales=one_of(draw, "contest", "contest", "nan", "finite"),
        backend=one_of(draw, *backends),
        rank=one_of(draw, 0, 1, 2, 3) if backends_on_gpu(target) else 0,
        threads=one_of(draw, 1, 2) if not backends_on_gpu(target) else 1,
        batch_invariant=batch_invariant,
        constant_b=one_of(draw, False, False, True),
        constant_ends=one_of(draw, False, True),
        seed=draw(st.integers(0, 2**20)),
        broken=broken,
        at={name: x for name, x in at.items() if x != At()},
    )


# --- tensors ------------------------------------------------------------------------------------------------------


def draw_ends(make: Maker, case: Grouped) -> torch.Tensor:
    t, groups = case.t, case.groups
    if case.ends == "none" or groups == 0:
        return torch.zeros(groups, dtype=torch.int32)
    if case.ends == "wild":
        values = make.integers(-t - 3, 2 * t + 3, groups)
        far = torch.tensor([INT32.min, INT32.max, -1, 0, t, t + 1])[make.integers(0, 5, groups)]
        return torch.where(make.integers(0, 3, groups) == 0, far, values).int()
    if case.ends == "one":
        return torch.where(torch.arange(groups) < int(make.integers(0, groups - 1)), 0, t).int()
    if case.ends == "few":
        some = make.integers(0, groups - 1, 3)
        group_of_row = some[make.integers(0, 2, int(make.integers(0, t)))]
    else:
        group_of_row = make.integers(0, groups - 1, t)
    return torch.bincount(group_of_row, minlength=groups).cumsum(0).int()


def draw_rows(make: Maker, case: Grouped) -> tuple[int, torch.Tensor | None]:
    """The rows of a, and which of them each row of the result is."""
    t = case.t
    if case.rows is None:
        return t, None
    if case.rows == "permuted":
        return t, torch.randperm(t, generator=make.random).int()
    count = t // 3 + 1
    rows = make.integers(0, count - 1, t).int()
    if case.rows == "outside":
        far = torch.tensor([INT32.min, -1, count, INT32.max], dtype=torch.int32)[make.integers(0, 3, t)]
        rows = torch.where(make.integers(0, 2, t) == 0, far, rows)
    return count, rows


def draw_scale_rows(make: Maker, case: Grouped, ends: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Where the scales of each group begin, and of how many blocks there are scales."""
    blocks = (torch.bincount(groups_of_rows(ends, case.t), minlength=case.groups) + 127) // 128
    order = torch.arange(case.groups)
    if case.scale_rows != "dense":
        order = torch.randperm(case.groups, generator=make.random)
        blocks = blocks + make.integers(0, 1, case.groups)
    first = torch.zeros(case.groups, dtype=torch.int64)
    first[order] = blocks[order].cumsum(0) - blocks[order]
    count = int(blocks.sum())
    rows = first * 128
    if case.scale_rows == "wild" and case.groups:
        far = torch.tensor([INT32.min, -128, -1, 1, 64, 127, max(count - 1, 0) * 128, count * 128, INT32.max - 127])
        rows = torch.where(make.integers(0, 2, case.groups) == 0, far[make.integers(0, 8, case.groups)], rows)
    return rows.int(), count


def make_a(make: Maker, case: Grouped, count: int, ends: torch.Tensor) -> dict[str, Any]:
    """a of `count` rows, with its scales. Those between groups are NaN."""
    if case.a != "nvfp4":
        shape = (count, case.sums)
        a = make.integers(-12, 12, *shape) / 2 if case.scales == "contest" else make.normal(*shape)
        return {"a": make.place("a", a.to(DTYPES[case.a])), "scale_a": None}
    args: dict[str, Any] = {"a": make.place("a", make.bytes(count, case.k // 2))}
    if case.layout == "linear":
        args["scale_a"] = make.place("scale_a", make.scales(case.scales, count, case.k // 16))
    else:
        rows, blocks = draw_scale_rows(make, case, ends)
        scale = torch.full((blocks * 128, case.k // 16), reference.E4M3_NAN, dtype=torch.uint8)
        group = groups_of_rows(ends, case.t)
        at = rows[group] + torch.arange(len(group)) - torch.searchsorted(group, group)
        at = at[(at >= 0) & (at < blocks * 128)]
        scale[at] = make.scales(case.scales, len(at), case.k // 16)
        args["scale_a"] = make.place("scale_a", reference.swizzle(scale[None], padding=reference.E4M3_NAN).flatten())
        args["scale_rows"] = make.place("scale_rows", rows)
    if "a" in case.typed:
        args["a"] = args["a"].view(torch.float4_e2m1fn_x2)
    if "A" in case.typed:
        args["scale_a"] = args["scale_a"].view(torch.float8_e4m3fn)
    return args


def make_grouped(case: Grouped, device: str) -> dict[str, Any]:
    make, dtype = Maker(case.seed, case.at, device), DTYPES[case.out_dtype]
    leading = (case.groups,) if case.parts is None else (case.groups, case.parts)
    count, rows = draw_rows(make, case)
    ends = draw_ends(make, case)
    scale = make.scales(case.scales, case.matrices, case.n, case.k // 16)
    scale = reference.swizzle(scale, padding=reference.E4M3_NAN) if case.layout == "128x4" else scale
    scale_b = make.place("scale_b", scale)
    args: dict[str, Any] = make_a(make, case, count, ends) | {
        "b": make.place("b", make.bytes(case.matrices, case.n, case.k // 2)).unflatten(0, leading),
        "scale_b": scale_b.unflatten(0, leading) if case.layout == "linear" else scale_b,
        "ends": make.place("ends", ends),
    }
    if "b" in case.typed:
        args["b"] = args["b"].view(torch.float4_e2m1fn_x2)
    if "B" in case.typed:
        args["scale_b"] = args["scale_b"].view(torch.float8_e4m3fn)
    if rows is not None:
        args["rows"] = make.place("rows", rows)
    if case.row_scale:
        args["row_scale"] = make.place("row_scale", make.normal(case.t))
    if case.alpha == "number":
        args["alpha"] = float(make.normal(1))
    elif case.alpha:
        shapes = {"one": (1,), "matrix": leading, "column": (*leading, case.columns)}
        args["alpha"] = make.place("alpha", make.normal(*shapes[case.alpha]))
    if case.bias:
        bias = make.normal(*leading, case.columns).to(torch.float32 if case.bias == "float32" else dtype)
        args["bias"] = make.place("bias", bias)
    if not case.allocated:
        args["out"] = make.place("out", torch.full((case.t, case.width), math.nan, dtype=dtype))
    make.guard_results(args["a"])
    names = ("batch_invariant", "constant_b", *(GATING if case.activation else ("transpose_b", "constant_ends")))
    switches = {name: getattr(case, name) for name in names}
    return args | {"scale_layout": case.layout, "out_dtype": dtype, **switches}


# --- the definition -----------------------------------------------------------------------------------------------


def groups_of_rows(ends: torch.Tensor, t: int) -> torch.Tensor:
    """The group of each row up to the last end."""
    last = torch.cummax(ends.long().clamp(0, t), 0).values if len(ends) else ends.long()
    return torch.repeat_interleave(torch.arange(len(ends)), last.diff(prepend=torch.zeros(1, dtype=torch.int64)))


def scales_of_rows(args: dict[str, Any], group: torch.Tensor, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The 128x4 scales of each row up to the last end, [rows, columns], and whether it has any."""
    if columns == 0:
        first = args["scale_rows"].long()[group]
        return torch.zeros(len(group), 0), (first >= 0) & (first % 128 == 0)
    scale = reference.as_bytes(args["scale_a"]).flatten()
    total = scale.numel() // (-(-columns // 4) * 4)
    first = args["scale_rows"].long()[group]
    at = first + torch.arange(len(group)) - torch.searchsorted(group, group)
    inside = (first >= 0) & (first % 128 == 0) & (at < total)
    linear = reference.unswizzle(scale, total, columns)[0] if total else torch.zeros(1, columns, dtype=torch.uint8)
    return reference.decode_e4m3(linear[at.where(inside, torch.zeros_like(at))]), inside


def operands_of_rows(args: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What each row up to the last end has: its group, its row of a (zeros for one outside), whether a has it. Then all
    matrices, [E, P, N, K], or [E, 1, K, N] where they are not transposed."""
    a, b, rows, scale_rows = args["a"], args["b"], args.get("rows"), args.get("scale_rows")
    group = groups_of_rows(args["ends"], len(a) if rows is None else len(rows))
    rows = torch.arange(len(a)) if rows is None else rows.long()
    rows = rows[: len(group)]
    inside = (rows >= 0) & (rows < len(a))
    scale, layout = args["scale_b"], args["scale_layout"]
    if args["scale_a"] is None:
        whole = a.float()
    elif scale_rows is None:
        whole = reference.operand(a, args["scale_a"], layout)[0]
    else:
        whole = reference.decode_e2m1(a)
        scales, has_scales = scales_of_rows(args, group, whole.shape[1] // 16)
        inside &= has_scales
    x = torch.zeros(len(rows), whole.shape[1])
    x[inside] = whole[rows[inside]]
    if scale_rows is not None:
        x[inside] *= scales[inside].repeat_interleave(16, dim=-1)
    y = reference.operand(b.flatten(0, -3), scale.flatten(0, -3) if layout == "linear" else scale, layout)
    y = y.unflatten(0, b.shape[:2] if b.ndim == 4 else (len(b), 1))
    return group, x, inside, y if args["transpose_b"] else y.mT


def by_matrix(x: torch.Tensor | float, group: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """alpha or bias of each row, [rows, P, 1 or N]; shape: [E, P, N]."""
    x = torch.as_tensor(x)
    if x.numel() == 1 and shape[0] * shape[1] != 1:
        return x.reshape(1, 1, 1)
    return x.reshape(*shape[:2], 1 if x.numel() == shape[0] * shape[1] else shape[2])[group]


def sums_of_rows(group: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """fp64 [rows, P, N]."""
    sums = torch.zeros(len(x), *y.shape[1:3], dtype=torch.float64)
    for e in group.unique():
        own = group == e
        sums[own] = (x[own].double() @ y[e].double().mT).transpose(0, 1)
    return sums


def definition(args: dict[str, Any]) -> torch.Tensor:
    """The rows up to the last end, in out_dtype."""
    group, x, inside, y = operands_of_rows(args)
    v = sums_of_rows(group, x, y).float() + 0.0
    for name, apply in (("alpha", torch.mul), ("bias", torch.add)):
        if args.get(name) is not None:
            v = apply(v, by_matrix(args[name], group, tuple(y.shape[:3])).float())
    if args.get("row_scale") is not None:
        v = v * args["row_scale"][: len(v), None, None]
    v[~inside] = math.nan
    return v.flatten(1).to(args["out_dtype"])


def judge(target: str, args: dict[str, Any], result: torch.Tensor, backend: str | None = BACKEND) -> str:
    """The verdict on the rows up to the last end. backend: of a GPU's kernels."""
    group, x, inside, y = operands_of_rows(args)
    expected = definition(args)
    result = result[: len(expected)]
    finite, x = y.nan_to_num(0.0), x.nan_to_num(0.0)
    if reference.sums_are_exact(x, finite.flatten(0, 2)):
        return compared(result, expected)
    kernel = _C.cpu_kernel() if target.startswith("cpu") else backend
    bound = Bounded(
        sums_of_rows(group, x, finite),
        sums_of_rows(group, x.abs(), finite.abs()),
        roundings(kernel, x.shape[1], args["scale_a"] is None),
    )
    bound.multiply(by_matrix(args.get("alpha", 1.0), group, tuple(y.shape[:3])))
    if args.get("bias") is not None:
        bound.add(by_matrix(args["bias"], group, tuple(y.shape[:3])))
    if args.get("row_scale") is not None:
        bound.multiply(args["row_scale"][: len(x), None, None])
    return bound.verdict(result, expected)


def judge_activation(case: Grouped, args: dict[str, Any], result: torch.Tensor) -> str:
    """The verdict on the rows up to the last end: they have the bits of two calls, and where sums are exact those of
    the definitions."""
    alpha = 1.702 if case.activation_alpha is None else case.activation_alpha
    how: dict[str, Any] = {"activation": case.activation, "limit": case.limit, "alpha": alpha}
    product = {name: x for name, x in args.items() if name not in (*GATING, "out")}

    def of_parts(gated: Callable[..., torch.Tensor], y: torch.Tensor) -> torch.Tensor:
        return gated(y[:, : case.columns], y[:, case.columns :] if case.parts == 2 else None, **how)

    own = product | {"a": product["a"][:]}  # whose results are not guarded
    by_two = of_parts(nvfp4.gated, nvfp4.grouped_gemm(**own, backend=case.backend)).cpu()
    host = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in product.items()} | {"transpose_b": True}
    group, x, _, y = operands_of_rows(host)
    result = result[: len(group)]
    verdict = compared(result, by_two[: len(group)])
    if verdict or not reference.sums_are_exact(x.nan_to_num(0.0), y.nan_to_num(0.0).flatten(0, 2)):
        return verdict
    return compared(result, of_parts(reference.gated, definition(host)))


def compared(result: torch.Tensor, expected: torch.Tensor) -> str:
    return reference.compare(result, expected, exact=True)[1].removeprefix("every bit is equal")


def run_grouped(target: str, case: Grouped) -> str:
    """The verdict: "" or what is wrong."""
    device = prepare(target, case.backend, case.seed, case.threads)
    args = make_grouped(case, device)
    given = {name: x.clone().cpu() if isinstance(x, torch.Tensor) else x for name, x in args.items() if name != "out"}
    _C.set_candidate(case.rank)
    try:
        result = call_of(case)(**args, backend=case.backend)
        verdict = wrongly_written() or (judge_activation(case, args, result.cpu()) if case.activation else "")
    except nvfp4.Error as error:
        if not case.broken:
            return explain(target, error)
        if not str(error).startswith(f"{case.broken}: "):
            return f"the message does not begin with {case.broken}: {error}"
        return "" if all(memory.unchanged() for memory in tensors.values()) else "something was written"
    finally:
        _C.set_candidate(0)
    if case.broken:
        return f"a call was accepted that breaks a rule of {case.broken}"
    if result.shape != (case.t, case.width) or result.dtype != args["out_dtype"]:
        return f"the result has shape {tuple(result.shape)} and dtype {result.dtype}"
    if case.allocated and not is_guarded((result,)):
        return "the result is not in guarded memory"
    if not case.allocated and result.data_ptr() != args["out"].data_ptr():
        return "out was not returned"
    if case.activation:
        return verdict
    before = tensors["result 0" if case.allocated else "out"].values
    past = len(groups_of_rows(given["ends"], case.t))
    same = torch.equal(*(x[past:].contiguous().view(torch.uint8) for x in (result, before)))
    return (
        judge(target, given, result.cpu(), case.backend)
        or ("" if same else "a row past the last end was written")
        or verdict
    )


def call_of(case: Grouped) -> Callable[..., Any]:
    return nvfp4.gated_grouped_gemm if case.activation else nvfp4.grouped_gemm


def without(target: str, name: str, case: Grouped) -> str:
    """A product one of whose tensors the kernel cannot read."""
    prepare(target, case.backend, case.seed, case.threads)
    args = make_grouped(case, "cpu")
    tensors[name].forbid()
    try:
        call_of(case)(**args, backend=case.backend)
    except nvfp4.Error as error:
        return explain(target, error)
    return "no fault"


if __name__ == "__main__":
    from paths import EMULATOR

    sys.path.append(str(EMULATOR))
    import generated_calls

    sys.exit(generated_calls.main(*sys.argv[1:]))
