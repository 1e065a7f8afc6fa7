"""gated_grouped_gemm has the bits of grouped_gemm and gated, whichever kernels run, in guarded memory
(support/generated_grouped_gemm.py): the routings and the named calls of test_grouped_gemm.py. Its rules are theirs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from backend_table import ROWS
from call_workers import Workers
from conftest import Backend, one_in
from expert_layers import H, make, routing
from generated_calls import EMULATED_BACKENDS
from generated_grouped_gemm import ACTIVATIONS, BACKEND, A, Grouped, groups_of_rows
from test_grouped_errors import BAD, INT32, NVFP4_A, UINT8, E, K, N, P, R, T, operands
from test_grouped_gemm import CASES, NAMED, SLOW, SMALL, drawn, is_whole, verdicts
from torch._subclasses.fake_tensor import FakeTensorMode

import nvfp4
from nvfp4 import _C
from nvfp4.layers.experts import w4a16

Arguments = dict[str, Any]
LIMITS = {"silu": (None, 0.5, 40.0), "swiglu": (None, 7.0)}
ALPHAS = {"swiglu": (None, 0.01, 3.0)}


def activated(case: Grouped, i: int) -> Grouped:
    """With an activation, a limit and an alpha that are the same every time."""
    choose = random.Random(i).choice
    name = choose(ACTIVATIONS[case.parts or 1])
    limit, alpha = choose(LIMITS.get(name, (None,))), choose(ALPHAS.get(name, (None,)))
    return replace(case, activation=name, limit=limit, activation_alpha=alpha)


GATED = [activated(case, i) for i, case in enumerate(case for case in CASES if case.transpose_b)]


def test_enough_cases() -> None:
    assert len(GATED) > 250
    for parts, names in ACTIVATIONS.items():
        assert {case.activation for case in GATED if (case.parts or 1) == parts} == set(names)
    for name, limits in LIMITS.items():
        assert {case.limit for case in GATED if case.activation == name} == set(limits)
    assert {case.activation_alpha for case in GATED if case.activation == "swiglu"} == {*ALPHAS["swiglu"]}
    for field in ("parts", "ends", "rows", "layout", "out_dtype", "alpha", "bias", "a", "scale_rows", "scales"):
        assert {getattr(case, field) for case in GATED} == {getattr(case, field) for case in CASES if case.transpose_b}


def test_ragged_routings(target: str, workers: Workers, generator: torch.Generator) -> None:
    """All of them by the quick CPU kernels. Others run a part, and emulated GPUs the small ones of it."""
    some = one_in(SLOW.get(target, 1), GATED)
    if target in EMULATED_BACKENDS:
        some = [case for case in some if max(case.t, case.groups) * case.n * case.k * (case.parts or 1) <= SMALL]
    wrong = verdicts(workers, target, some, generator)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", NAMED)
def test_named(name: str, target: str, workers: Workers, generator: torch.Generator) -> None:
    """Each with one part and with two."""
    if name == "several tiles an SM" and not is_whole(target):
        pytest.skip("CI_FULL=1 runs it: 5 s, and sm_90 runs the same PTX")
    some = [replace(NAMED[name], parts=parts) for parts in (None, 2)]
    if some[0].a != "nvfp4":
        some += [replace(case, a="bfloat16", layout="linear") for case in some]
        some += [replace(some[1], a="nvfp4", layout=layout, rows=None) for layout in ("linear", "128x4")]
    wrong = verdicts(workers, target, [activated(case, i) for i, case in enumerate(some)], generator)
    assert not wrong, "\n".join(wrong)


def test_every_tile(target: str, workers: Workers, generator: torch.Generator) -> None:
    """Each plan and each activation, where groups have just less and just more rows than its tile."""
    if target not in EMULATED_BACKENDS:
        pytest.skip("has one plan")
    case = Grouped(140, 40, 144, 3, 2, alpha="matrix", bias="out", row_scale=True)
    wrong = []
    for i, a in enumerate(A):
        for plan in range(6 if is_whole(target) else 1):
            form = replace(activated(replace(case, parts=(2, 2, 1)[plan % 3]), i + plan), a=a, scale_rows="apart")
            form = replace(drawn(form, target, generator), rank=plan)
            if verdict := workers.run(target, form):
                wrong.append(f"{verdict}: {form!r}")
    assert not wrong, "\n".join(wrong)


def test_every_tensor_is_guarded(target: str, workers: Workers) -> None:
    """The result is written, and read where a kernel keeps the gate there."""
    if target == "cuda":
        pytest.skip("plain allocations have no guard")
    case = Grouped(9, 40, 64, 2, 2, activation="silu", backend=BACKEND if target in EMULATED_BACKENDS else None)
    for name in ("b", "out"):
        verdict = workers.ask(target, "generated_grouped_gemm.without", target, name, case)
        assert "which it may not access, of " + name in verdict


# ---- rules ----

OF_OUT = {
    "out: is 5 x 6; must be T x N = 5 x 7": torch.zeros(T, N - 1).half(),
    "out: is 5 x 14; must be T x N = 5 x 7": torch.zeros(T, P * N).half(),
    "out: is 4 x 7; must be T x N = 5 x 7": torch.zeros(R, N).half(),
    "out: has 3 dimensions; must have 2": torch.zeros(T, 1, N).half(),
    "out: dtype is int32; must be float16, bfloat16 or float32": torch.zeros(T, N, dtype=INT32),
}
ONE_PART: Arguments = {"b": torch.zeros(E, N, K // 2, dtype=UINT8), "scale_b": torch.zeros(E * 512, dtype=UINT8)}
THREE_PARTS: Arguments = {
    "b": torch.zeros(E, 3, N, K // 2, dtype=UINT8),
    "scale_b": torch.zeros(E * 3 * 512, dtype=UINT8),
}
OWN: dict[str, Arguments] = {
    **{message: {"out": out} for message, out in OF_OUT.items()},
    "b: has 3 parts; must have 1 or 2 (gate and up)": THREE_PARTS,
    "b: has 2 parts; must have 1: relu2 is a function of gate alone": {"activation": "relu2"},
    "b: has 1 part; must have 2 (gate and up): swiglu multiplies by up + 1": ONE_PART | {"activation": "swiglu"},
    "activation: is 'tanh'; must be 'silu', 'gelu_tanh', 'relu2' or 'swiglu'": {"activation": "tanh"},
    "limit: is 0; must be positive": {"limit": 0.0},
    "limit: is nan; must be positive": {"limit": float("nan")},
    "limit: is 7; must be left out: gelu_tanh has none": {"activation": "gelu_tanh", "limit": 7.0},
    "activation_alpha: is 2; must be left out (1.702): silu has none": {"activation_alpha": 2.0},
    "activation_alpha: is 0; must be between 2^-64 and 2^64": {"activation": "swiglu", "activation_alpha": 0.0},
    "batch_invariant: is of type NoneType; must be True or False": {"batch_invariant": None},
    "constant_b: is of type int; must be True or False": {"constant_b": 1},
}
BAD_CALLS = OWN | {
    message: given
    for message, given in BAD.items()
    if not {"transpose_b", "constant_ends"} & {*given}
    and not message.startswith("out: ")
    and "transpose_b" not in message
}


@pytest.mark.parametrize("message", BAD_CALLS)
@pytest.mark.parametrize("fake", [False, True])
def test_bad_arguments(message: str, fake: bool) -> None:
    """The rules of grouped_gemm hold, with its messages; others are of this operation alone."""
    given = operands() | BAD_CALLS[message]
    out = given.setdefault("out", torch.zeros(T, N).half()).fill_(7)
    with pytest.raises(nvfp4.Error) as error:
        if fake:
            with FakeTensorMode() as mode:
                tensors = {x: mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for x, t in given.items()}
                nvfp4.gated_grouped_gemm(**tensors)
        else:
            nvfp4.gated_grouped_gemm(**given)
    assert str(error.value) == message and (out == 7).all()


@pytest.mark.parametrize("message", [x for x in BAD_CALLS if not x.startswith("out: ")])
def test_bad_arguments_without_out(message: str) -> None:
    """Before a result is allocated, sizes are read from the arguments."""
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.gated_grouped_gemm(**operands() | BAD_CALLS[message])
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("t", "n", "value", "rule"),
    [
        (1, 2**30 + 8, f"parts * N = {2**31 + 16}", f"must have at most {2**31 - 1}"),
        (2**31 - 1, 2**29, f"parts * N = {2**30} for T = {2**31 - 1} rows", "T * parts * N must be at most 2^60"),
    ],
)
def test_products_are_countable(t: int, n: int, value: str, rule: str) -> None:
    """Results of both parts lie side by side, so together they obey the bounds of a tensor."""
    with FakeTensorMode():
        given = operands() | {
            "b": torch.empty(1, 2, n, 8, dtype=UINT8),
            "scale_b": torch.empty(8, -(-n // 128) * 128, dtype=UINT8),
            "a": torch.empty(1, 16).half(),
            "ends": torch.empty(1, dtype=INT32),
            "rows": torch.empty(t, dtype=INT32),
            "row_scale": None,
        }
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.gated_grouped_gemm(**given, backend="cpu")
    assert str(error.value) == f"b: has {value}; {rule}"


def test_results_overlap_nothing() -> None:
    memory = torch.zeros(T * N)
    given = operands() | {"out": memory.view(T, N)}
    overlapping: Arguments = {
        "row_scale": memory[:T],
        "ends": memory.view(INT32)[2 : 2 + E],
        "rows": memory.view(INT32)[:T],
        "alpha": memory[: E * P].view(E, P),
        "a": memory.view(torch.float16)[:0].view(0, K),
    }
    for name in ("row_scale", "ends", "rows", "alpha"):
        with pytest.raises(nvfp4.Error, match=f"^out: shares memory with {name}; must not overlap it, it is written$"):
            nvfp4.gated_grouped_gemm(**given | {name: overlapping[name]})
    scale_a = torch.zeros(512, dtype=UINT8)
    some = given | NVFP4_A | {"scale_a": scale_a, "out": scale_a.view(torch.float16)[: T * N].view(T, N)}
    with pytest.raises(nvfp4.Error, match="^out: shares memory with scale_a"):
        nvfp4.gated_grouped_gemm(**some)


# ---- front ends ----


def by_two(given: Arguments, activation: str = "silu", **gating: float) -> torch.Tensor:
    """The definition, of the rows up to the last end."""
    y = nvfp4.grouped_gemm(**given)
    columns = given["b"].shape[-2]
    gate, up = (y[:, :columns], y[:, columns:]) if y.shape[1] == 2 * columns else (y, None)
    return nvfp4.gated(gate, up, activation, **gating)[: len(groups_of_rows(given["ends"], len(y)))]


def test_defaults_of_the_result() -> None:
    """Its dtype is that of out, else of a 16-bit a, else float16."""
    given = operands()
    assert nvfp4.gated_grouped_gemm(**given | {"a": given["a"].bfloat16()}).dtype == torch.bfloat16
    assert nvfp4.gated_grouped_gemm(**given | NVFP4_A | {"row_scale": None}).dtype == torch.float16
    out = torch.zeros(T, N)
    assert nvfp4.gated_grouped_gemm(**given, out=out) is out
    rounded_first = by_two(given | {"out_dtype": torch.float16})
    assert not torch.equal(out[: len(rounded_first)], rounded_first.float())  # products are rounded to out's dtype


def test_numpy_and_lists() -> None:
    given = operands()
    expected = by_two(given, "swiglu", limit=2.0, alpha=1.5)
    gating: Arguments = {"activation": "swiglu", "limit": 2.0, "activation_alpha": 1.5}
    arrays = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    assert torch.equal(torch.from_numpy(nvfp4.gated_grouped_gemm(**arrays, **gating))[: len(expected)], expected)
    lists = {"b": list(given["b"]), "scale_b": list(given["scale_b"].view(E, -1))}
    assert torch.equal(nvfp4.gated_grouped_gemm(**given | lists, **gating)[: len(expected)], expected)


@pytest.mark.parametrize("out", [False, True])
def test_compiled(out: bool, generator: torch.Generator) -> None:
    """For numbers of rows that are not known when the call is traced."""
    given = operands()
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def run(rows: torch.Tensor, into: torch.Tensor | None) -> torch.Tensor:
        some = given | {"rows": rows, "row_scale": None}
        return nvfp4.gated_grouped_gemm(**some, activation="swiglu", limit=3.0, out=into, alpha=0.5)

    for t in (4, 9):
        rows = torch.randint(0, R, (t,), generator=generator).int()
        into = torch.full((t, N), torch.nan).half() if out else None
        got = run(rows, into)
        expected = by_two(given | {"rows": rows, "row_scale": None, "alpha": 0.5}, "swiglu", limit=3.0)
        assert got.shape == (t, N) and torch.equal(got[: len(expected)], expected)


# ---- in a module ----


@pytest.mark.parametrize(("activation", "gated"), [("silu", True), ("swiglu", True), ("relu2", False)])
def test_experts_on_every_backend(
    activation: str, gated: bool, backend: Backend, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvfp4.Experts has the bits of two calls, whichever kernels its choice of a plan leads to."""
    if "float16" not in ROWS[backend.name]["product_kinds"].get("grouped_gemm", []):
        pytest.skip("has no such kernel")
    experts = make(generator, activation, gated, bias=True, inner=64, limit=1.5 if gated else None).to(backend.device)
    for tokens in (2, 40):
        given = [
            t.to(backend.device) for t in (torch.randn(tokens, H, generator=generator), *routing(generator, tokens))
        ]
        given[0] = given[0].half()
        results = []
        try:
            _C.set_default_backend(backend.name if backend.emulated else None)
            for in_one in (True, False):
                monkeypatch.setattr(w4a16, "activates", lambda stack, dtype, in_one=in_one: in_one)
                with torch.no_grad():
                    results.append(experts(*given))
        finally:
            _C.set_default_backend(None)
        is_here = (given[1] >= 0) & (given[1] < experts.num_experts)  # two tokens may choose none that is
        assert torch.equal(*results) and results[0].isfinite().all() and results[0].any() == is_here.any()
