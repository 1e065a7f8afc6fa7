"""Products of groups of rows, in guarded memory, by every CPU kernel and on the emulated GPUs
(support/generated_grouped_gemm.py): ragged routings, and named calls. test_generated_calls.py draws others; the
promises are in test_grouped_invariance.py, the messages in test_grouped_errors.py."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from backend_table import device_of
from call_workers import Workers
from conftest import FULL, one_in
from generated_calls import DTYPES, EMULATED_BACKENDS, At, up
from generated_grouped_gemm import (
    ALPHAS,
    BACKEND,
    BIASES,
    ENDS,
    ROWS,
    SCALE_ROWS,
    A,
    Grouped,
    definition,
    groups_of_rows,
    judge,
    own_backend,
    takes,
)

import nvfp4
from nvfp4 import reference

GROUPS = (1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 64, 127, 128, 129, 256)
T = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 129, 200)
N = (1, 2, 7, 8, 16, 31, 32, 33, 64, 65, 127, 128, 129, 130)
K = (16, 32, 48, 64, 80, 112, 128, 144, 240, 256, 272, 528)
VOLUME = 1.5e6  # of rows and of matrices: T * N * K * P, E * N * K * P


def cases() -> list[Grouped]:
    """300 routings, each with another combination of layout, types and epilogue. The list is the same every time; the
    data are not (`drawn`)."""
    rng = random.Random(0)
    sizes = [
        (0, 7, 48, 3),
        (5, 7, 48, 1024),
        (1025, 1, 16, 1024),
        (64, 3, 64, 1000),
        (9, 704, 48, 8),
        (40, 704, 112, 8),
    ]
    sizes += [
        (17, 1856, 48, 4),
        (3, 1856, 16, 16),
        (1, 1, 16, 1),
        (300, 1, 1040, 2),
        (20, 65, 2064, 3),
        (260, 33, 64, 2),
    ]
    while len(sizes) < 300:
        t, n, k, groups = (rng.choice(x) for x in (T, N, K, GROUPS))
        if max(t, groups) * n * k <= VOLUME:
            sizes.append((t, n, k, groups))
    found = []
    for i, (t, n, k, groups) in enumerate(sizes):
        transpose_b = i % 7 != 3
        parts = rng.choice((None, None, 1, 2)) if transpose_b else None
        rows, layout = rng.choice(ROWS), rng.choice(("128x4", "linear"))
        a = rng.choice((*A, "nvfp4") if transpose_b else A[:2])
        found.append(
            Grouped(
                t,
                n,
                k,
                groups,
                parts,
                ENDS[i % 5] if i % 3 == 2 else "spread",
                rows if (a, layout) != ("nvfp4", "128x4") else None,
                rng.random() < 0.5,
                layout,
                rng.choice(list(DTYPES)),
                rng.choice(ALPHAS if transpose_b else ALPHAS[:-1]),
                rng.choice(BIASES),
                a,
                rng.choice(SCALE_ROWS),
                transpose_b,
                allocated=i % 4 == 0,
                typed=rng.choice(("", "", "b", "B", "bB", "aA")),
                scales=rng.choice(("contest", "contest", "contest", "finite", "nan")),
                threads=1 + i % 2,
                batch_invariant=i % 5 == 0,
                constant_b=i % 5 == 1,
                constant_ends=i % 2 == 1,
            )
        )
    return found


CASES = cases()
FIELDS = {
    "parts": (None, 1, 2),
    "ends": ENDS,
    "rows": ROWS,
    "row_scale": (False, True),
    "layout": ("128x4", "linear"),
    "out_dtype": DTYPES,
    "alpha": ALPHAS,
    "bias": BIASES,
    "a": A,
    "scale_rows": SCALE_ROWS,
    "transpose_b": (True, False),
    "scales": ("contest", "finite", "nan"),
    "allocated": (False, True),
    "batch_invariant": (False, True),
}


def test_enough_cases() -> None:
    assert len(CASES) == 300 and len({*map(repr, CASES)}) == 300
    for name, values in FIELDS.items():
        assert {getattr(case, name) for case in CASES} == set(values)
    assert {case.k % 64 for case in CASES} == {0, 16, 32, 48}
    assert {1, 7, 704, 1856} <= {case.n for case in CASES} and {1, 1024} <= {case.groups for case in CASES}


def own_of(case: Grouped, target: str) -> str | None:
    """The target's own kernels, if they take the case: as it is, or with 128x4 scales and rows of A and B on 16 bytes.
    Linear scales of an NVFP4 A stay so, as `rows` may gather them."""
    if not case.transpose_b:
        return None
    reached = "b" not in case.at and (case.n > 1 or case.k % 32 == 0)  # or can be put there
    if case.a == "nvfp4":
        reached = reached and case.layout == "128x4" and (case.t > 1 or case.k % 32 == 0)
    return own_backend(target, case.a, not reached, case.k > 0 and not case.batch_invariant)


def drawn(case: Grouped, target: str, generator: torch.Generator) -> Grouped:
    """With data of this session, as the target takes it: by its own kernels where it has some. Rows of half of the
    matrices lie apart."""
    own = own_of(case, target)
    moved = own is not None and not own_backend(target, case.a, anywhere=True)
    if moved:
        case = replace(case, layout="128x4")
    if own == "sm100" and case.a == "nvfp4":
        case = replace(case, k=up(case.k, 64))  # whole blocks of its scales
    seed = int(torch.randint(2**20, (), generator=generator))
    names = ("a", "b", "scale_b", "ends", "rows", "row_scale", "alpha", "bias", "out", "result")
    names += ("scale_a", "scale_rows")
    edges = [("begin", "end")[seed >> i & 1] for i in range(len(names))]
    row_bytes = {"a": case.a_row_bytes, "b": case.k // 2, "out": case.width * DTYPES[case.out_dtype].itemsize}
    if case.layout == "linear":
        row_bytes |= dict.fromkeys(("scale_b", *(["scale_a"] if case.a == "nvfp4" else [])), case.k // 16)
    apart = {name for i, name in enumerate(row_bytes, 10) if seed >> i & 1}
    if moved and case.k % 32:
        apart |= {"a", "b"} if case.a == "nvfp4" else {"b"}
    pitches = {name: up(row_bytes[name], 16) + 16 for name in apart}
    slack = {name: -row_bytes[name] % 16 for name, edge in zip(names, edges) if name in pitches and edge == "end"}
    at = {name: At(pitches.get(name), slack=slack.get(name, 0), edge=edge) for name, edge in zip(names, edges)}
    case = replace(case, seed=seed, at=at | case.at)
    return replace(case, backend=own or BACKEND, rank=seed % 4, threads=1) if target in EMULATED_BACKENDS else case


def verdicts(workers: Workers, target: str, cases: list[Grouped], generator: torch.Generator) -> list[str]:
    cases = [drawn(case, target, generator) for case in cases if takes(target, case.transpose_b)]
    return [f"{verdict}: {case!r}" for case in cases if (verdict := workers.run(target, case))]


SLOW = {"cpu-reference": 3, "cpu-portable": 3} | dict.fromkeys(EMULATED_BACKENDS, 10)
SMALL = 1e5  # T * N * K * P of a case that is emulated


def test_ragged_routings(target: str, workers: Workers, generator: torch.Generator) -> None:
    """All of them by the quick CPU kernels. Others run a part, and emulated GPUs the small ones of it."""
    some = one_in(SLOW.get(target, 1), CASES)
    if target in EMULATED_BACKENDS:
        some = [case for case in some if max(case.t, case.groups) * case.n * case.k * (case.parts or 1) <= SMALL]
    wrong = verdicts(workers, target, some, generator)
    assert not wrong, "\n".join(wrong)


NAMED = {
    "one group has all rows": Grouped(70, 33, 80, 5, ends="one"),
    "no group has rows": Grouped(20, 33, 80, 5, ends="none"),
    "any ends": Grouped(20, 33, 80, 33, ends="wild", rows="outside"),
    "no rows of the result": Grouped(0, 33, 80, 5, rows="repeated"),
    "no rows at all": Grouped(0, 33, 80, 5),
    "no columns": Grouped(5, 0, 80, 5, bias="out"),
    "no terms": Grouped(5, 33, 0, 5, 2, alpha="column", bias="out", row_scale=True),
    "no terms, rows outside": Grouped(5, 33, 0, 2, rows="outside", bias="float32"),
    "no groups": Grouped(5, 33, 80, 0),
    "the most groups": Grouped(40, 3, 48, 1024, rows="permuted"),
    "parts of one column": Grouped(20, 1, 48, 3, 2, alpha="column", bias="out"),
    "NaN scales": Grouped(20, 33, 80, 3, scales="nan", rows="repeated"),
    "matrices on 8 bytes, their rows on 16": Grouped(9, 40, 64, 3, at={"b": At(batch=40 * 32 + 8, edge="begin")}),
    "rows of an NVFP4 a anywhere": Grouped(70, 33, 80, 5, 2, rows="outside", layout="linear", a="nvfp4", bias="out"),
    "its rows on 8 bytes": Grouped(20, 40, 144, 3, layout="linear", a="nvfp4", at={"a": At(slack=8), "scale_a": At()}),
    "its linear scales on a byte": Grouped(20, 40, 144, 3, layout="linear", a="nvfp4", at={"scale_a": At(slack=1)}),
    "its scales dense": Grouped(290, 9, 144, 3, a="nvfp4", alpha="matrix", row_scale=True),
    "its scales apart": Grouped(290, 9, 144, 3, a="nvfp4", scale_rows="apart", scales="finite", out_dtype="float32"),
    "its scales anywhere": Grouped(290, 9, 80, 33, a="nvfp4", scale_rows="wild", bias="float32"),
    "its scales anywhere, any ends": Grouped(150, 9, 80, 33, 2, ends="wild", a="nvfp4", scale_rows="wild"),
    "no terms of it": Grouped(5, 33, 0, 5, 2, a="nvfp4", scale_rows="wild", bias="out", row_scale=True),
    "several tiles an SM": Grouped(1000, 8, 32, 1000, 2, rows="outside", row_scale=True),
    "one group, rows behind it": Grouped(
        100, 40, 192, 1, 2, ends="few", a="nvfp4", alpha="matrix", bias="out", row_scale=True
    ),
    "one group, any end, its scales anywhere": Grouped(100, 40, 192, 1, 2, ends="wild", a="nvfp4", scale_rows="wild"),
    "more stages than in flight": Grouped(70, 130, 1312, 2, rows="permuted"),
    "the second quarter of a block": Grouped(9, 200, 144, 3, 2, layout="linear", out_dtype="float32", bias="float32"),
}


@pytest.mark.parametrize("name", NAMED)
def test_named(name: str, target: str, workers: Workers, generator: torch.Generator) -> None:
    if name == "several tiles an SM" and not is_whole(target):
        pytest.skip("CI_FULL=1 runs it: 5 s, and sm_90 runs the same PTX")
    case = NAMED[name]
    some = [case]
    if case.a != "nvfp4":
        turned = replace(case, transpose_b=False, parts=None, alpha=None) if case.parts is None else case
        some += [replace(case, a="bfloat16", layout="linear"), turned, replace(case, a="nvfp4", layout="linear")]
        some += [replace(case, a="nvfp4", layout="128x4", rows=None)]
    wrong = verdicts(workers, target, some, generator)
    assert not wrong, "\n".join(wrong)


def is_whole(target: str) -> bool:
    """Whether long tests run: on CPUs, and on emulated GPUs whose code for these products no other one has."""
    return (
        target not in EMULATED_BACKENDS
        or target == device_of(BACKEND)
        or any(own_backend(target, a) for a in A)
        or FULL
    )


def test_every_tile(target: str, workers: Workers, generator: torch.Generator) -> None:
    """Each plan, where groups have just less and just more rows than its tile."""
    if target not in EMULATED_BACKENDS:
        pytest.skip("has one plan")
    case = Grouped(140, 40, 144, 3, rows="repeated", alpha="matrix", bias="out")
    cases = [replace(case, a=a) for a in A[:2]]
    cases += [replace(case, a="nvfp4", layout="linear"), replace(case, a="nvfp4", rows=None, scale_rows="apart")]
    wrong = [
        f"{verdict}: {case!r}"
        for case in cases
        for plan in range(6 if target == device_of(BACKEND) or own_of(case, target) or FULL else 1)
        if (verdict := workers.run(target, replace(drawn(case, target, generator), rank=plan)))
    ]
    assert not wrong, "\n".join(wrong)


# --- the judge ----------------------------------------------------------------------------------------------------


def arguments(generator: torch.Generator) -> dict[str, object]:
    scale = torch.full((2, 3, 1), 0x38, dtype=torch.uint8)
    return {
        "a": torch.randint(1, 4, (3, 16), generator=generator).half(),
        "b": torch.randint(0, 256, (2, 3, 8), dtype=torch.uint8, generator=generator),
        "scale_a": None,
        "scale_b": scale,
        "scale_layout": "linear",
        "ends": torch.tensor([1, 2], dtype=torch.int32),
        "out_dtype": torch.float16,
        "transpose_b": True,
    }


def test_the_definition_is_that_of_products(generator: torch.Generator) -> None:
    given = arguments(generator)
    alpha, bias = torch.randn(2, 3, generator=generator), torch.randn(2, 3, generator=generator)
    rows, factors = torch.tensor([2, 0, 1], dtype=torch.int32), torch.randn(3, generator=generator)
    got = definition(given | {"alpha": alpha, "bias": bias, "rows": rows, "row_scale": factors})
    for i in range(2):
        scale, options = given["scale_b"][i], {"scale_layout": "linear", "out_dtype": torch.float32}
        a = given["a"][rows[i]][None]
        row = reference.gemm(a, given["b"][i], None, scale, alpha=alpha[i], bias=bias[i], **options)
        assert torch.equal(got[i], (row[0] * factors[i]).half())
    assert got.shape == (2, 3)


@pytest.mark.parametrize("layout", ["linear", "128x4"])
def test_the_definition_is_that_of_nvfp4_products(layout: str, generator: torch.Generator) -> None:
    """Each group's rows by themselves, with 128x4 scales of their own that lie in an order of their own."""
    x, sizes = torch.randn(140, 48, generator=generator), (131, 0, 7)
    ends = torch.tensor([131, 131, 138], dtype=torch.int32)
    b, scale_b = reference.quantize(torch.randn(3, 5, 48, generator=generator), scale_layout=layout)
    given = {"b": b, "scale_b": scale_b, "scale_layout": layout, "ends": ends, "out_dtype": torch.float16}
    a = reference.quantize(x, scale_layout=layout)
    given |= {"a": a[0], "scale_a": a[1], "transpose_b": True}
    parts = [reference.quantize(x[last - size : last], scale_layout=layout) for size, last in zip(sizes, ends) if size]
    if layout == "128x4":
        given["scale_a"] = torch.cat([parts[1][1].view(torch.uint8).flatten(), parts[0][1].view(torch.uint8).flatten()])
        given["scale_rows"] = torch.tensor([128, 0, 0], dtype=torch.int32)
    got = definition(given)
    rows = [0, 131, 138]
    for e, first, last, (data, scale) in zip((0, 2), rows, rows[1:], parts):
        other = scale_b.flatten().view(3, -1)[e] if layout == "128x4" else scale_b[e]
        expected = reference.gemm(data, b[e], scale, other, scale_layout=layout, out_dtype=torch.float16)
        assert torch.equal(got[first:last], expected)
    assert judge("cpu", given, nvfp4.grouped_gemm(**given)) == ""
    if layout == "128x4":
        bad = given | {"scale_rows": torch.tensor([128, 0, 1], dtype=torch.int32)}
        assert definition(bad)[131:].isnan().all() and torch.equal(definition(bad)[:131], got[:131])
        bad["scale_rows"] = torch.tensor([256, 0, 0], dtype=torch.int32)
        assert definition(bad)[128:131].isnan().all() and not definition(bad)[:128].isnan().any()


def test_a_running_maximum_of_the_ends_counts() -> None:
    ends = torch.tensor([-5, 2, 1, 2**31 - 1, 0], dtype=torch.int32)
    assert groups_of_rows(ends, 4).tolist() == [1, 1, 3, 3]


def test_the_judge_sees_one_wrong_bit(generator: torch.Generator) -> None:
    given = arguments(generator)
    result = definition(given)
    assert judge("cpu", given, result) == ""
    result.view(torch.int16)[1, 2] ^= 1
    assert "1 of 6 values are wrong" in judge("cpu", given, result)


def test_the_judge_sees_a_result_outside_of_the_bound(generator: torch.Generator) -> None:
    given = arguments(generator) | {"a": torch.rand(3, 16, generator=generator).half() + 1, "out_dtype": torch.float32}
    result = definition(given)
    assert judge("cpu", given, result) == ""
    result[1, 2] += 1e-3
    assert judge("cpu", given, result) == "1 values are not within the bound"


def test_numpy(generator: torch.Generator) -> None:
    given = arguments(generator) | {"rows": torch.tensor([2, 0], dtype=torch.int32), "bias": torch.ones(2, 3)}
    expected = definition(given)
    arrays = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    got = nvfp4.grouped_gemm(**arrays | {"out_dtype": "float16"})
    assert torch.equal(torch.from_numpy(got), expected)


@pytest.mark.parametrize("out", [False, True])
def test_compiled(out: bool, generator: torch.Generator) -> None:
    """For numbers of rows that are not known when the call is traced, with and without parts and the transposition."""
    given = {name: x for name, x in arguments(generator).items() if name != "out_dtype"}
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def run(rows: torch.Tensor, into: torch.Tensor | None, **form: object) -> torch.Tensor:
        return nvfp4.grouped_gemm(**given | form, rows=rows, out=into, alpha=0.5)

    forms = ({"transpose_b": False}, {}, {name: given[name][:, None] for name in ("b", "scale_b")})
    for form in forms[:1] if out else forms:
        a = given["a"] if form.get("transpose_b", True) else given["a"][:, :3].contiguous()
        columns = 3 if form.get("transpose_b", True) else 16
        for t in (2, 7):
            rows = torch.randint(0, 3, (t,), generator=generator).int()
            into = torch.full((t, columns), torch.nan).half() if out else None
            got = run(rows, into, a=a, **form)
            expected = definition(given | form | {"a": a, "rows": rows, "alpha": 0.5, "out_dtype": torch.float16})
            assert got.shape == (t, columns) and torch.equal(got[:2], expected)


GUARDED = ("a", "b", "scale_a", "scale_b", "ends", "rows", "scale_rows", "row_scale", "alpha", "bias", "out")


@pytest.mark.parametrize("name", GUARDED)
def test_every_tensor_is_guarded(name: str, target: str, workers: Workers) -> None:
    """An access to a tensor is a fault that names it, also inside an emulated kernel."""
    if target == "cuda":
        pytest.skip("plain allocations have no guard")
    backend = BACKEND if target in EMULATED_BACKENDS else None
    case = Grouped(9, 40, 64, 2, rows="permuted", row_scale=True, alpha="matrix", bias="out", backend=backend)
    if name in ("scale_a", "scale_rows"):
        case = replace(case, a="nvfp4", rows=None)
    verdict = workers.ask(target, "generated_grouped_gemm.without", target, name, case)
    assert "which it may not access, of " + name in verdict and ("a fault" in verdict or "not mapped" in verdict)


# ---- lists of matrices ----


def matrices(generator: torch.Generator, count: int, *parts: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Values [*parts, 32, 32] and linear scales [*parts, 32, 4] of random matrices."""
    values = [torch.randint(0, 256, (*parts, 32, 32), dtype=torch.uint8, generator=generator) for _ in range(count)]
    scales = [torch.randint(0x20, 0x40, (*parts, 32, 4), dtype=torch.uint8, generator=generator) for _ in range(count)]
    return values, scales


class Lazy(list):  # type: ignore[type-arg]
    """Makes each element when it is asked for, and keeps none."""

    def __init__(self, made: list[torch.Tensor]) -> None:
        super().__init__()
        self.made = made

    def __len__(self) -> int:
        return len(self.made)

    def __getitem__(self, i: Any) -> Any:
        return self.made[i].clone()


def test_a_list_that_makes_its_elements(generator: torch.Generator) -> None:
    values, scales = matrices(generator, 5)
    a, ends = torch.randn(40, 64, generator=generator).half(), torch.tensor([3, 10, 22, 30, 40], dtype=torch.int32)
    expected = nvfp4.grouped_gemm(a, values, None, scales, ends, scale_layout="linear")
    for _ in range(20):
        y = nvfp4.grouped_gemm(a, Lazy(values), None, Lazy(scales), ends, scale_layout="linear")
        assert torch.equal(y, expected)


def test_a_list_that_is_shorter_than_it_says(generator: torch.Generator) -> None:
    values, scales = matrices(generator, 2)

    class Short(Lazy):
        def __len__(self) -> int:
            return 3

    a, ends = torch.zeros(3, 64).half(), torch.tensor([1, 2, 3], dtype=torch.int32)
    with pytest.raises(IndexError):
        nvfp4.grouped_gemm(a, Short(values), None, Short(scales), ends, scale_layout="linear")


def test_alpha_and_bias_of_a_list_with_parts(generator: torch.Generator) -> None:
    values, scales = matrices(generator, 3, 2)
    a, ends = torch.randn(9, 64, generator=generator).half(), torch.tensor([2, 5, 9], dtype=torch.int32)
    stacks = torch.stack(values), torch.stack(scales)
    for shape in ((3, 2), (3, 2, 32)):
        alpha, bias = (torch.randn(size, generator=generator) for size in (shape, (3, 2, 32)))
        given = {"alpha": alpha, "bias": bias, "scale_layout": "linear"}
        y = nvfp4.grouped_gemm(a, values, None, scales, ends, **given)
        assert torch.equal(y, nvfp4.grouped_gemm(a, stacks[0], None, stacks[1], ends, **given))


@pytest.mark.parametrize("rows", [2, 40])
def test_rows_of_an_a_without_rows(rows: int, generator: torch.Generator) -> None:
    """An NVFP4 a with linear scales, which has no memory then: all results are NaN."""
    values, scales = (torch.stack(made) for made in matrices(generator, 2))
    a, scale_a = torch.empty(0, 32, dtype=torch.uint8), torch.empty(0, 4, dtype=torch.uint8)
    index, ends = torch.zeros(rows, dtype=torch.int32), torch.tensor([rows // 2, rows], dtype=torch.int32)
    given = {"rows": index, "scale_layout": "linear", "out_dtype": torch.float32}
    assert nvfp4.grouped_gemm(a, values, scale_a, scales, ends, **given).isnan().all()
