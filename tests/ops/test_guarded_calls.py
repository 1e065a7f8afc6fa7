"""Named calls in guarded memory: what tests of contiguous tensors let through, on the CPU and on the emulated GPUs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from backend_table import device_of, takes
from call_workers import Workers
from conftest import FULL, one_in
from generated_calls import DTYPES, EMULATED_BACKENDS, At, Gemm, up
from generated_conversions import CONVERSIONS, Conversion
from generated_grouped_quantize import Sorted
from generated_moe import ACTIVATIONS, STEPS, Step

from nvfp4._tuning import SETTINGS


def backend(target: str) -> str | None:
    """The backend of its own for an emulated GPU, the default for other targets."""
    return EMULATED_BACKENDS[target][0] if target in EMULATED_BACKENDS else None


def on_plans(workers: Workers, target: str, case: Gemm, most: int, **wanted: object) -> list[Gemm]:
    """The case on some plans with these settings, spread over all of them. Plans are forced by name: another scale
    layout or type ranks them otherwise than the shape alone. Where a and b do not lie on 16 bytes there are fewer
    plans than for the shape, so these are forced by rank."""
    if target not in EMULATED_BACKENDS:
        return [case]
    plans, of = workers.ask(target, "plans", case), {}
    lie = [case.at[name] for name in "ab" if name in case.at]
    by_name = all(x is None or x % 16 == 0 for at in lie for x in (at.pitch, at.batch, at.slack))
    for rank, plan in enumerate(plans):
        if all(check(plan[name]) for name, check in wanted.items()):
            settings = tuple(plan[name] for name in SETTINGS)
            of.setdefault(settings[:3], {"plan": settings} if by_name else {"rank": (rank + 0.5) / len(plans)})
    chosen = list(of.values())[:: max(1, -(-len(of) // most))]
    return [replace(case, seed=i, **how) for i, how in enumerate(chosen)]


def verdicts(workers: Workers, target: str, cases: list[Any]) -> list[str]:
    return [f"{verdict}: {case!r}" for case in cases if (verdict := workers.run(target, case))]


# --- the guard itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge", ["begin", "end"])
@pytest.mark.parametrize("by", [0, 7, 4095])
def test_an_over_read_is_a_fault(edge: str, by: int, workers: Workers) -> None:
    where = f"{by} bytes behind the last byte of x" if edge == "end" else f"{by + 1} bytes before the first byte of x"
    assert workers.ask("cpu-reference", "go_past", edge, by, False).endswith(where)


def test_a_write_to_an_input_is_a_fault(workers: Workers) -> None:
    assert workers.ask("cpu-reference", "go_past", "end", 0, True).endswith(
        "byte 0 of 100, which it may not access, of x"
    )


def test_a_process_that_died_is_replaced(workers: Workers) -> None:
    assert workers.ask("cpu-reference", "go_past", "end", 0, False).startswith("a fault at 0x")
    assert workers.run("cpu-reference", Gemm(3, 5, 48)) == ""


@pytest.mark.parametrize("name", ["a", "b", "scale_a", "scale_b", "alpha", "bias", "c", "out"])
def test_every_tensor_is_guarded(name: str, target: str, workers: Workers) -> None:
    """An access to a tensor of a product is a fault that names the tensor, also inside an emulated kernel."""
    if target == "cuda":
        pytest.skip("plain allocations have no guard")
    case = Gemm(16, 129, 64, alpha="vector", bias="out", c="c", backend=backend(target))
    verdict = workers.ask(target, "without", name, case)
    assert "which it may not access, of " + name in verdict and ("a fault" in verdict or "not mapped" in verdict)


# --- products -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("l", "n"), [(3, 64), (3, 66), (2, 61), (None, 66)])
def test_split_k_of_batches(l: int | None, n: int, target: str, workers: Workers) -> None:
    """Partial sums of every batch, also where rows of them begin on 8 or 4 bytes only (N % 4 = 2, 1)."""
    sizes = ((3, 3136), (40, 1104)) if target != "cpu-reference" else ((3, 1104),)
    cases = []
    for (m, k), dtype in zip(sizes, ("float32", "float16")):
        case = Gemm(m, n, k, l, out_dtype=dtype, alpha="vector", bias="float32", c="out", backend=backend(target))
        cases += on_plans(workers, target, case, 5, split_k=lambda split: split > 1)
    assert len(cases) > 3 or target not in EMULATED_BACKENDS
    assert not verdicts(workers, target, cases)


EDGES = ["begin", "end"]


def emulated_at(names: list[Any]) -> list[tuple[Any, str]]:
    """The cases that run emulated: each name at one edge, the next one at the other; with CI_FULL=1 at both."""
    return one_in(2, [(name, EDGES[(i + j) % 2]) for i, name in enumerate(names) for j in range(2)])


A_TYPES = ["float16", "bfloat16"]
EMULATED_A = emulated_at(A_TYPES)


@pytest.mark.parametrize("a", A_TYPES)
@pytest.mark.parametrize("edge", EDGES)
def test_16_bit_a(a: str, edge: str, target: str, workers: Workers) -> None:
    """Every kernel of this A, with and without split-K; N reaches into three quarters of a block of 128 rows."""
    if target in EMULATED_BACKENDS and (a, edge) not in EMULATED_A:
        pytest.skip("CI_FULL=1 runs it")
    at = {name: At(edge=edge) for name in ("a", "b", "scale_b", "out")}
    cases = []
    for m, n, k, l in ((5, 72, 2080, None), (33, 200, 1056, 2)):
        for backend in EMULATED_BACKENDS.get(target, (None,)):
            case = Gemm(m, n, k, l, alpha="vector", bias="out", c="c", backend=backend, a=a, at=at)
            if backend and not takes(backend, a, m=m):
                continue
            if backend and target != device_of(backend):  # the code that converts by cvt
                cases += on_plans(workers, target, case, 2)[:2]
            else:
                for split in (lambda s: s == 1, lambda s: s > 1):
                    cases += on_plans(workers, target, case, 6, split_k=split)
    assert not verdicts(workers, target, cases)


def aligned(rows: int, row: int, pitch: int, l: int | None, edge: str) -> At:
    """Rows on 16 bytes."""
    size = ((l or 1) * rows - 1) * pitch + row
    return At(pitch, rows * pitch if l else None, -size % 16 if edge == "end" else 0, edge)


@pytest.mark.parametrize("a", A_TYPES)
@pytest.mark.parametrize("edge", EDGES)
def test_transpose_b(a: str, edge: str, target: str, workers: Workers) -> None:
    """A . B by every kernel, with and without split-K: whole tiles and ragged ones, rows on 16 bytes and on 2 or 8."""
    if target in EMULATED_BACKENDS and (a, edge) not in EMULATED_A:
        pytest.skip("CI_FULL=1 runs it")
    at = {name: At(edge=edge) for name in ("a", "b", "scale_b", "out")}
    on_16 = at | {"a": aligned(33, 274, 288, 2, edge), "b": aligned(137, 264, 272, 2, edge)}
    rest = {"a": a, "transpose_b": False}
    whole = [
        (Gemm(5, 136, 544, None, alpha="one", bias="out", at=at, **rest), 2),
        (Gemm(130, 72, 288, None, alpha="number", c="out", at=at, **rest), 6),
        (Gemm(17, 400, 96, None, scales="finite", at=at, **rest), 2),
        (Gemm(3, 0, 64, 2, bias="out", c="c", at=at, **rest), 1),
    ]
    padded = [
        (Gemm(33, 137, 528, 2, "linear", "float32", bias="float32", c="c", at=on_16, **rest), 3),
        (Gemm(33, 137, 528, 2, scales="nan", bias="out", at=on_16, **rest), 2),
    ]
    ragged = [
        (Gemm(3, 131, 48, 2, scales="nan", at=at, **rest), 2),
        (Gemm(3, 131, 48, 2, "linear", "bfloat16", bias="out", at=at, **rest), 2),
    ]
    tall = [
        (Gemm(300, 200, 160, None, out_dtype="float32", bias="float32", c="c", at=at, **rest), 2),
        (Gemm(150, 72, 288, 2, out_dtype="bfloat16", at=at, **rest), 2),
    ]
    cases = []
    backends = [f for f in EMULATED_BACKENDS.get(target, (None,)) if f is None or takes(f, a, transpose_b=False)]
    for backend in backends if FULL else backends[:1]:
        by_tma = backend is not None and not takes(backend, a, transpose_b=False, linear=True)
        if by_tma:  # plans are not those of the shape alone
            cases += [replace(case, backend=backend) for case, _ in padded[1:]]
        for case, most in whole + tall if by_tma else whole + padded + ragged:
            for split in (lambda s: s == 1, lambda s: s > 1):
                cases += on_plans(workers, target, replace(case, backend=backend), most, split_k=split)
    assert not verdicts(workers, target, cases)


DISTANCES = [f"{name}.{what}" for name in "ab" for what in ("slack", "pitch", "batch")]
ODD = [*DISTANCES, "none", "all"]
EMULATED = emulated_at(ODD)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("edge", EDGES)
def test_one_distance_on_8_bytes(odd: str, edge: str, target: str, workers: Workers) -> None:
    """One address, row pitch or batch stride of one operand is no multiple of 16; those of the other tensors are."""
    if target in EMULATED_BACKENDS and (odd, edge) not in EMULATED:
        pytest.skip("CI_FULL=1 runs it")
    cases = []
    for m, n in ((2, 40), (5, 40), (70, 33)):
        k = 272 if "pitch" in odd or odd == "all" else 288  # a pitch of 8 bytes more is dense
        at = {}
        for name, rows in (("a", m), ("b", n)):
            pitch = k // 2 if f"{name}.pitch" == odd or odd == "all" else 160
            batch = up(rows * pitch, 16) + 8 * (f"{name}.batch" == odd or odd == "all")
            slack = 8 * (f"{name}.slack" == odd or odd == "all")
            if edge == "end":
                slack += -((rows - 1) * pitch + batch + k // 2) % 16
            at[name] = At(pitch, batch, slack, edge)
        case = Gemm(m, n, k, 2, at=at, backend=backend(target))
        cases += on_plans(workers, target, case, 3)
    assert not verdicts(workers, target, cases)


@pytest.mark.parametrize("unit", [1, 2, 4, 8, 16])
def test_distances_that_differ_by_operand(unit: int, target: str, workers: Workers) -> None:
    """Batch strides and addresses of linear scales, c and out are multiples of `unit` alone, or of their own type."""
    cases = []
    for dtype, item in (("float16", 2), ("bfloat16", 2), ("float32", 4)):
        for m, n, k in ((5, 42, 272), (33, 130, 96)):
            at = {}
            matrices = {"a": (m, k // 2, 8), "b": (n, k // 2, 8), "scale_a": (m, k // 16, 1)}
            matrices |= {"scale_b": (n, k // 16, 1), "c": (m, n * item, item), "out": (m, n * item, item)}
            for i, (name, (rows, row, least)) in enumerate(matrices.items()):
                step = max(unit, least)
                pitch = up(row, 16) + 16 * (i % 2)
                at[name] = At(pitch, up(rows * pitch, step) + (i + 1) * step, 0, ("end", "begin")[i % 2])
            case = Gemm(m, n, k, 3, "linear", dtype, "vector", "out", "c", backend=backend(target), at=at)
            cases += on_plans(workers, target, case, 2)
    assert not verdicts(workers, target, cases)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_vector_alpha(dtype: str, target: str, workers: Workers) -> None:
    """Nothing but a vector of alpha, on results that are whole tiles: the paths for one alpha must not take it."""
    cases = []
    for m, n, k in ((8, 256, 128), (128, 256, 128), (256, 128, 64), (1, 256, 128), (256, 1, 128)):
        case = Gemm(m, n, k, out_dtype=dtype, alpha="vector", backend=backend(target))
        if target == "cpu-reference" and m * n * k > 1e6:
            continue
        cases += on_plans(workers, target, case, 8)
    assert not verdicts(workers, target, cases)


def test_linear_scales_on_4_bytes_or_not(target: str, workers: Workers) -> None:
    """Row pitch and address of the scales of either operand are multiples of 4 or not, in every combination: copies of
    four scales need all of them. K is more than the longest tile; 66 scales a row are 2 more than a multiple of 4."""
    cases = []
    m, n, k, l = 3, 5, 1056, 2
    case = Gemm(m, n, k, l, "linear", backend=backend(target))
    found = on_plans(workers, target, case, 12 if target == "sm_80" else 2)
    for i, odd in enumerate(product((False, True), repeat=4)):
        at = {}
        for name, rows, (pitch_odd, address_odd) in (("scale_a", m, odd[:2]), ("scale_b", n, odd[2:])):
            pitch = k // 16 if pitch_odd else up(k // 16, 16)
            batch = up(rows * pitch, 4) + 2 * (address_odd and i % 2)
            slack = -(batch * (l - 1) + (rows - 1) * pitch + k // 16) % 4 + 2 * address_odd
            at[name] = At(pitch, batch, slack)
        cases += [replace(case, at=at, seed=i) for case in (found if target == "sm_80" else found[i % 2 :: 2])]
    assert not verdicts(workers, target, cases)


@pytest.mark.parametrize("odd", ["none", *(f"scale_{name}.{what}" for name in "ab" for what in ("slack", "batch"))])
def test_one_distance_of_linear_scales(odd: str, target: str, workers: Workers) -> None:
    """One address or batch stride of linear scales is no multiple of 4, where rows could be copied by 4."""
    m, n, k, l = 3, 40, 1088, 2
    at = {}
    for name, rows in (("scale_a", m), ("scale_b", n)):
        pitch = up(k // 16, 16)
        batch = rows * pitch + 2 * (odd == f"{name}.batch")
        at[name] = At(pitch, batch, 2 * (odd == f"{name}.slack"), "begin")
    case = Gemm(m, n, k, l, "linear", backend=backend(target), at=at)
    gemv = on_plans(workers, target, case, 2, kernel=lambda name: "gemv" in name)
    assert not verdicts(workers, target, gemv or on_plans(workers, target, case, 2))


@pytest.mark.parametrize("shared", ["a", "b", "scale_a", "scale_b"])
def test_batches_share_values_or_scales(shared: str, target: str, workers: Workers) -> None:
    """One array of values for all batches, each with scales of its own, or one of scales: in every kernel."""
    layout = "linear" if shared.startswith("scale") else "128x4"
    case = Gemm(70, 130, 192, 3, layout, backend=backend(target), at={shared: At(batch=0)})
    cases = on_plans(workers, target, case, 100, split_k=lambda split: split == 1)
    assert len(cases) > 4 or target not in EMULATED_BACKENDS
    assert not verdicts(workers, target, cases)


@pytest.mark.parametrize(("m", "n"), [(3, 130), (61, 55), (70, 123)])
def test_c_is_out(m: int, n: int, target: str, workers: Workers) -> None:
    """beta * c + sum in place, in every plan: an element that is stored twice has beta * c twice."""
    cases = []
    for l, bias in ((None, None), (2, "float32")):
        case = Gemm(m, n, 96, l, bias=bias, c="out", backend=backend(target))
        for i, planned in enumerate(on_plans(workers, target, case, 12)):
            cases.append(replace(planned, out_dtype=list(DTYPES)[(i + (l or 0)) % 3]))
    assert not verdicts(workers, target, cases)


@pytest.mark.parametrize("wide", ["c", "out", "neither"])
def test_one_column(wide: str, target: str, workers: Workers) -> None:
    """N = 1: c or the output is a column of a wider tensor, or both are dense, which another kernel takes as a row."""
    cases = []
    for m, l, dtype in ((9, None, "float32"), (70, 2, "bfloat16")):
        at = {} if wide == "neither" else {wide: At(16)}
        case = Gemm(m, 1, 272, l, out_dtype=dtype, c="c", backend=backend(target), at=at)
        cases += on_plans(workers, target, case, 4)
    assert not verdicts(workers, target, cases)


def test_lanes_that_run_apart(target: str, workers: Workers) -> None:
    """Lanes of a warp that share a stage wait for each other's copies, not for their own alone."""
    if not target.startswith("sm_"):
        pytest.skip("is a matter of the emulated GPU")
    cases = []
    for m, n, k in ((3, 40, 2080), (61, 55, 1056)):
        case = Gemm(m, n, k, backend=backend(target), lanes="apart")
        cases += on_plans(workers, target, case, 6)
        if target == "sm_80":
            cases += on_plans(workers, target, replace(case, a="float16"), 4)
    assert not verdicts(workers, target, cases)


@pytest.mark.parametrize("odd", ["address", "batch", "pitch"])
def test_plain_output_on_few_bytes(odd: str, target: str, workers: Workers) -> None:
    """One alpha alone and whole tiles of columns, which kernels have wide stores for: the address, the batch stride or
    the row pitch of out is a multiple of 2, 4 or 8 bytes only."""
    cases = []
    for i, (unit, m, n) in enumerate(
        ((2, 16, 256), (4, 16, 256), (8, 16, 256), (4, 3, 256), (2, 256, 128), (8, 256, 128))
    ):
        n += unit // 2 * (odd == "pitch")  # such a pitch is a dense one
        batch = up(m * n * 2, 16) + unit * (odd == "batch")
        slack = (-(batch + m * n * 2) + unit * (odd == "address")) % 16
        form = {"out_dtype": ("float16", "bfloat16")[i % 2], "alpha": (None, "number", "one")[i % 3]}
        case = Gemm(m, n, 32, 2, backend=backend(target), at={"out": At(None, batch, slack)}, **form)
        cases += on_plans(workers, target, case, 4 if m == 16 else 2)
    assert not verdicts(workers, target, cases)


FAR = {  # bytes between rows, and between batches
    "rows": (2**31 + 48, None),
    "rows of batches": (2**32 - 16, 2**36 + 8 * 2**20),
    "batches": (None, 2**32 + 4096),
    "batches inside rows": (2**33 + 16, 2**31 + 16),
}


@pytest.mark.parametrize("far", FAR)
def test_tensors_of_gigabytes(far: str, target: str, workers: Workers) -> None:
    """Rows and batches of every tensor lie so far apart that 32 bits do not count the bytes."""
    if target == "cuda":
        pytest.skip("needs more memory than a GPU has")
    pitch, batch = FAR[far]
    cases = []
    for (m, n), (k, layout) in product(((3, 5), (9, 6)), ((64, "128x4"), (80, "linear"))):
        names = ["a", "b", "c", "out"] + ["scale_a", "scale_b"] * (layout == "linear")
        case = Gemm(m, n, k, 3 if batch else None, layout, "float32", c="c", bias="out", backend=backend(target))
        case = replace(case, at=dict.fromkeys(names, At(pitch, batch)))
        cases += on_plans(workers, target, case, 5)
    assert not verdicts(workers, target, cases)


@pytest.mark.parametrize("pitch", [2**26 - 16, 2**27 - 16, 2**31 - 16])
@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_many_rows_of_gigabytes(name: str, pitch: int, target: str, workers: Workers) -> None:
    """The bytes between two rows fit 26 bits, which kernels have paths for, or 31, but rows from 65 on are beyond
    4 GiB."""
    if target == "cuda":
        pytest.skip("needs more memory than a GPU has")
    m, n = (3, 130) if name == "b" else (130, 3)
    case = Gemm(m, n, 64, backend=backend(target), at={name: At(pitch)})
    assert not verdicts(workers, target, on_plans(workers, target, case, 12))


# --- rules --------------------------------------------------------------------------------------------------------

RULES = {  # each breaks one rule alone: the edge keeps the address aligned
    "a": [At(pitch=40), At(batch=12 * 32 + 4, edge="begin"), At(slack=4), At(slack=1, edge="begin")],
    "b": [At(pitch=40), At(batch=20 * 32 + 4, edge="begin"), At(slack=4), At(slack=1, edge="begin")],
    "scale_a": [At(pitch=5), At(pitch=8), At(pitch=20)],
    "scale_b": [At(pitch=5), At(pitch=8), At(pitch=20)],
    "c": [At(pitch=42), At(pitch=44), At(pitch=56)],
    "out": [At(pitch=42), At(pitch=44), At(pitch=56), At(pitch=16), At(pitch=48, batch=16), At(pitch=0), At(batch=0)],
}


@pytest.mark.parametrize(("name", "at"), [(name, at) for name, wrong in RULES.items() for at in wrong], ids=str)
def test_every_rule_holds_for_every_operand(name: str, at: At, workers: Workers) -> None:
    """The message names the operand, and nothing is written."""
    case = Gemm(12, 20, 64, 2, "linear", c="c", broken=name, at={name: at})
    assert workers.run("cpu-portable", case) == ""


@pytest.mark.parametrize("name", ["scale_a", "scale_b"])
@pytest.mark.parametrize("slack", [1, 4, 8])
def test_swizzled_scales_are_aligned(name: str, slack: int, workers: Workers) -> None:
    case = Gemm(12, 20, 64, 2, broken=name, at={name: At(slack=slack)})
    assert workers.run("cpu-portable", case) == ""


# --- conversions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("call", CONVERSIONS)
def test_conversions(call: str, edge: str, target: str, workers: Workers) -> None:
    """Tensors that they read and that they allocate begin or end where memory does."""
    names = ("x", "data", "scale", "global_scale", "gate_up", "weight", "residual", "result")
    at = {name: At(edge=edge) for name in names}
    wrong = []
    for i, (rows, columns) in enumerate(((1, 1), (3, 5), (33, 4), (129, 9))):
        for layout, dtype, l in (("128x4", "float32", None), ("linear", "float16", 2), ("linear", "bfloat16", None)):
            size = columns if "swizzle" in call else 16 * columns
            options = {"global_scale": "one", "block_scale": "four_over_six" if l else "amax6", "at": at}
            options |= {"residual": call == "rms_norm_quantize" and dtype != "bfloat16", "weight": dtype}
            case = Conversion(call, rows, size, l, layout, dtype, backend=backend(target), seed=2 * i, **options)
            wrong += verdicts(workers, target, [case])
    assert not wrong


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("call", STEPS)
def test_steps_around_experts(call: str, edge: str, target: str, workers: Workers) -> None:
    """Rows that end where memory does, on 16 bytes and on few, beside rows apart, for whole and ragged columns."""
    names = ("gate", "up", "out", "ids", "expert_map", "y", "places", "weights", "result")
    cases = []
    for i, (rows, columns, k) in enumerate(((1, 1, 1), (3, 13, 2), (33, 64, 8), (129, 40, 5))):
        for j, (dtype, out_dtype, apart) in enumerate((("float32", None, 0), ("bfloat16", "float32", 4))):
            item = DTYPES[dtype].itemsize
            at = {name: At(edge=edge) for name in names}
            if apart:
                at |= {name: At(columns * item + apart, edge=edge) for name in ("gate", "up", "y")}
                at |= {name: At(4 * k + apart, edge=edge) for name in ("places", "weights")}
            form = {"weights": "float32" if apart else None, "mapped": columns if apart else None, "at": at}
            activation = ACTIVATIONS[(i + 2 * j) % 4]
            form |= {"activation": activation, "allocated": not apart, "y_rows": 2 * rows, "seed": i}
            cases.append(Step(call, rows, columns, None, k, dtype, out_dtype, backend=backend(target), **form))
    assert not verdicts(workers, target, cases)


QUANTIZED = [None, *ACTIVATIONS]
EMULATED_QUANTIZED = emulated_at(QUANTIZED)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("activation", QUANTIZED)
def test_quantizers_of_groups(activation: str | None, edge: str, target: str, workers: Workers) -> None:
    """Rows beside rows or apart, of x in their order or gathered; a scale for the call, each group and each row."""
    if target in EMULATED_BACKENDS and (activation, edge) not in EMULATED_QUANTIZED:
        pytest.skip("CI_FULL=1 runs it")
    names = ("x", "gate", "up", "ends", "rows", "global_scale", "result")
    cases = []
    for i, (t, k, groups) in enumerate(((1, 16, 1), (5, 48, 3), (140, 80, 4), (300, 144, 1024))):
        for j, (dtype, layout) in enumerate((("float32", "128x4"), ("bfloat16", "linear"))):
            at = {name: At(edge=edge) for name in names}
            if j:
                at |= {name: At(k * 2 + 16, edge=edge) for name in ("x", "gate", "up")}
            form = {"ends": ("spread", "most")[j], "global_scale": (None, "one", "group", "row")[(i + j) % 4], "at": at}
            form |= {"rows": None if activation else ("outside", None)[j], "r": 9, "activation": activation}
            cases.append(Sorted(t, k, groups, layout=layout, dtype=dtype, backend=backend(target), seed=i, **form))
    assert not verdicts(workers, target, cases)
