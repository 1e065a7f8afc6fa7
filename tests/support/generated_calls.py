"""Calls of every kind, where each tensor has a layout of its own in guarded memory, and the verdict on one of them.

`gemms` is a hypothesis strategy. `run_gemm` makes the tensors, calls and judges, in a child of call_workers.py. The
definition is reference.py: equal bits where sums are exact, else the bound of error_bounds.py. Other modules have the
same of other operations (generated_conversions.py, generated_quantize_gemm.py, generated_grouped_gemm.py ...).

    python tests/support/generated_calls.py sm_90 'Gemm(3, 40, 96, seed=5)'  # one call again, as a failure prints it
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from backend_table import ON_GPU, OWN, backends_of, device_of, max_rows, takes
from error_bounds import Bounded, roundings
from guarded_memory import Memory
from hypothesis import strategies as st

import nvfp4
from nvfp4 import _C, reference

Draw = Callable[[st.SearchStrategy], Any]
EMULATED_BACKENDS = {device: backends_of(device) for device in map(device_of, ON_GPU)}  # of emulated GPUs
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class At:
    """How a tensor lies in memory. In bytes."""

    pitch: int | None = None  # between rows; None: dense
    batch: int | None = None  # between batches; None: one after the other
    slack: int = 0  # between the tensor and the edge of its memory
    edge: str = "end"

    def __repr__(self) -> str:
        parts = [f"{name}={getattr(self, name)!r}" for name in ("pitch", "batch", "slack", "edge")]
        return f"At({', '.join(p for p in parts if not p.endswith(('=None', '=0', 'end' + chr(39))))})"


@dataclass(frozen=True)
class Gemm:
    m: int
    n: int
    k: int
    l: int | None = None  # None: no batch dimension
    layout: str = "128x4"
    out_dtype: str = "float16"
    alpha: str | None = None  # "number", "one", "vector", of batches "batch" [L, 1] or "matrix" [L, N]
    bias: str | None = None  # "float32", "out"
    c: str | None = None  # "c", "out" (in place), "unread" (beta = 0, NaN)
    bias_by_batch: bool = False  # [L, N] rather than [N]
    allocated: bool = False  # no out is passed
    typed: str = ""  # of a, b, A, B (scales): those that have the types of torch rather than uint8
    scales: str = "contest"
    backend: str | None = None
    rank: float = 0.0  # of the plan, as a part of the number of candidates
    plan: tuple[str, bool, int, int, int] | None = None  # nvfp4._tuning.SETTINGS: instead of a rank
    threads: int = 1  # on the CPU
    a: str = "nvfp4"  # or "float16", "bfloat16": of 16 bits
    transpose_b: bool = True  # False, for a of 16 bits: a is m x n and out m x k
    batch_invariant: bool = False  # in which case neither rank nor plan count
    constant_b: bool = False
    seed: int = 0  # of the data, and the emulated GPU's
    lanes: str = ""  # "together", "apart"; the default is EMULATE_LANES, or follows from the seed
    broken: str = ""  # the operand whose layout breaks a rule
    at: dict[str, At] = field(default_factory=dict)

    def __repr__(self) -> str:
        default = Gemm(self.m, self.n, self.k)
        given = [f"{name}={value!r}" for name, value in vars(self).items() if value != getattr(default, name)]
        return f"Gemm({', '.join([str(self.m), str(self.n), str(self.k), *given])})"

    @property
    def sums(self) -> int:
        """Products of a sum: the columns of a."""
        return self.k if self.transpose_b else self.n

    @property
    def columns(self) -> int:
        """The columns of out."""
        return self.n if self.transpose_b else self.k


# --- strategies ---------------------------------------------------------------------------------------------------

EDGES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 31, 32, 33, 56, 57, 63, 64, 65, 127, 128, 129, 130, 191, 256, 257)
WHOLE = (8, 16, 32, 64, 128, 192, 256)  # tiles


def one_of(draw: Draw, *choices: Any) -> Any:
    return draw(st.sampled_from(choices))


def up(size: int, to: int) -> int:
    return -(-size // to) * to


def draw_at(draw: Draw, l: int | None, rows: int, row: int, unit: int, align: int, written: bool) -> At:
    """A legal layout of l x rows rows of `row` bytes. `unit`: of batch strides and of the address, by the rules;
    `align`: a multiple of unit that all distances shall have, if they can."""
    edge = one_of(draw, "end", "end", "begin")
    if rows == 0 or row == 0 or l == 0:
        return At(edge=edge)
    step = max(align, unit)
    kind = one_of(draw, "dense", "dense", "padded", "padded", "inner", *(() if written else ("shared", "overlapping")))
    pitch, batch, inside = row, None, kind == "inner" and (l or 1) > 1  # batches lie inside rows
    if kind == "padded" or (not inside and step == 16 and row % 16):
        pitch = up(row, 16) + 16 * draw(st.integers(0, 3))
    if inside:
        batch = up(row, step) + step * draw(st.integers(0, 3))
        pitch = up(l * batch, 16) + 16 * draw(st.integers(0, 1))
    elif kind == "shared":
        batch = 0
    elif kind == "overlapping" and one_of(draw, False, True):
        pitch = one_of(draw, 0, 16)
    if batch is None and l is not None and one_of(draw, False, True):
        batch = up((rows - 1) * pitch + row, step) + step * draw(st.integers(0, 5))
    elif batch is None and step == 16:
        batch = up(rows * pitch, 16)
    size = row + (rows - 1) * pitch + ((l or 1) - 1) * (rows * pitch if batch is None else batch)
    slack = -size % step if edge == "end" else 0
    if align <= unit:
        slack += unit * draw(st.integers(0, 3)) if one_of(draw, False, False, True) else 0
    return At(None if pitch == row else pitch, batch if l is not None else None, slack, edge)


def draw_broken(draw: Draw, l: int | None, rows: int, row: int, unit: int, swizzled: bool) -> At | None:
    """A layout that breaks one rule, and by its edge keeps the address aligned. None: there is no rule to break."""
    broken = []
    if swizzled:
        return At(slack=one_of(draw, 8, 4, 1))
    if rows > 1:
        apart = [
            x
            for x in (row + 1, row + 2, row + 4, row + 8, row + 12)
            if x % 16 and x % (2 if unit == 16 else max(1, unit % 8)) == 0
        ]
        broken += [At(pitch=x, edge="begin") for x in apart]
    if unit >= 8 and (l or 1) > 1:
        broken += [At(batch=rows * row + x, edge="begin") for x in (unit // 8 * (1 if unit == 8 else 2), unit // 2)]
    if unit == 16:
        broken += [At(slack=8), At(slack=2), At(slack=8, edge="begin")]
    if unit == 8:
        broken += [At(slack=4), At(slack=1), At(slack=4, edge="begin")]
    return draw(st.sampled_from(broken)) if broken else None


@functools.cache
def backends_on_gpu(target: str) -> tuple[str, ...]:
    """The backends of a GPU, real or emulated, its own first; () for a CPU."""
    if target == "cuda":
        capability = nvfp4.info()["devices"][0]["compute_capability"]
        return backends_of(f"sm_{capability}")
    return EMULATED_BACKENDS.get(target, ())


def backends(target: str) -> list[str | None]:
    """The backends that run on the target, the backend of its own more often. CPU tensors are the CPU's by default."""
    own = [*backends_on_gpu(target)[:1] * 4, *backends_on_gpu(target)[1:]]
    return own if target in EMULATED_BACKENDS else [None, *(own or ["cpu"])]


def draw_size(draw: Draw, most: int) -> int:
    return min(most, draw(st.one_of(st.sampled_from(EDGES), st.sampled_from(WHOLE), st.integers(1, 300))))


@st.composite
def gemms(draw: Draw, target: str, volume: float) -> Gemm:
    """`volume`: the largest M * N * K * L, each of M and N at least 16."""
    l = one_of(draw, None, None, 1, 2, 3)
    m = draw_size(draw, 300)
    n = draw_size(draw, max(1, int(volume / 64 / max(m, 16) / (l or 1))))
    most = max(1, int(volume / max(m, 16) / max(n, 16) / (l or 1)) // 16)
    k = 16 * min(most, one_of(draw, *range(1, 10), 15, 16, 17, 31, 32, 33, 34, 64, 65, 68, 96, 128, 130, 144))
    if one_of(draw, *([False] * 30), True):
        name = one_of(draw, "m", "n", "k", "l")
        m, n, k, l = (0 if name == x and (y is not None) else y for x, y in zip("mnkl", (m, n, k, l)))
    layout, dtype = one_of(draw, "128x4", "linear"), one_of(draw, *DTYPES)
    item = DTYPES[dtype].itemsize
    alpha = one_of(draw, None, "number", "one", "vector", "vector")
    bias, c = one_of(draw, None, None, "float32", "out"), one_of(draw, None, None, "c", "out", "unread")
    if one_of(draw, False, False, True):  # kernels have paths for this
        bias = c = None

    backend = one_of(draw, *backends(target))
    both = backend is None or takes(backend, "float16")
    a = one_of(draw, "nvfp4", "nvfp4", "float16", "bfloat16") if both else "nvfp4"
    by_tma = a != "nvfp4" and backend is not None and not takes(backend, a, linear=True)
    if by_tma:
        layout, k = "128x4", up(k, 32)
    if backend and (most := max_rows(backend, a)):
        m, k = min(m, most), max(k, 32)
    transpose_b = a == "nvfp4" or not takes(backend or "sm80", a, transpose_b=False) or one_of(draw, True, False)
    n = up(n, 8) if not transpose_b and backend == "sm90" else n
    by_batch = backend in (None, "cpu", "sm80") and one_of(draw, False, False, True)
    if by_batch and alpha in ("one", "vector"):
        alpha = {"one": "batch", "vector": "matrix"}[alpha]
    if not transpose_b:
        alpha = {"vector": "one", "matrix": "batch"}.get(alpha, alpha)

    at = {}
    columns = n if transpose_b else k
    matrices = {
        "a": (m, k // 2, 8) if a == "nvfp4" else (m, k * 2, 16) if transpose_b else (m, n * 2, 2),
        "b": (n, k // 2, 8),
        "out": (m, columns * item, item),
    }
    if c in ("c", "unread"):
        matrices["c"] = (m, columns * item, item)
    if layout == "linear":
        matrices |= {"scale_a": (m, k // 16, 1)} if a == "nvfp4" else {}
        matrices |= {"scale_b": (n, k // 16, 1)}
    # Most kernels have a path for data on 16 bytes, which one operand on 8 is enough to forbid.
    odd = one_of(draw, "", "", "a", "b", "both") if not by_tma else ""
    for name, (rows, row, unit) in matrices.items():
        align = 16 if name not in (odd, "scale_a", "scale_b", "c") and odd != "both" else unit
        at[name] = draw_at(draw, l, rows, row, unit, align, name == "out")
    if layout == "128x4":
        swizzled = "ab" if a == "nvfp4" else "b"
        at |= {f"scale_{x}": At(slack=one_of(draw, 0, 0, 16), edge=one_of(draw, "end", "begin")) for x in swizzled}
    for name, there in (("alpha", alpha not in (None, "number")), ("bias", bias)):
        if there:
            at[name] = At(slack=one_of(draw, 0, 0, 4, 8), edge=one_of(draw, "end", "begin"))

    at["result"] = At(edge=one_of(draw, "end", "begin"))

    broken = ""
    if one_of(draw, *([False] * 7), True) and 0 not in (m, n, k, l):
        broken = one_of(draw, *sorted(x for x in at if x not in ("alpha", "bias", "result")))
        rows, row, unit = matrices.get(broken, (0, 0, 0))
        wrong = draw_broken(draw, l, rows, row, unit, broken not in matrices)
        broken, at = (broken, at | {broken: wrong}) if wrong else ("", at)
    return Gemm(
        m,
        n,
        k,
        l,
        layout,
        dtype,
        alpha,
        bias,
        c,
        by_batch,
        allocated=c != "out" and broken != "out" and one_of(draw, False, False, False, True),
        typed="".join(x for x in "abAB" if one_of(draw, False, True)),
        scales=one_of(draw, "contest", "contest", "contest", "nan", "finite"),
        backend=backend,
        rank=one_of(draw, 0.0, draw(st.integers(0, 99)) / 100) if backends_on_gpu(target) else 0.0,
        threads=one_of(draw, 1, 2) if not backends_on_gpu(target) else 1,
        a=a,
        transpose_b=transpose_b,
        batch_invariant=one_of(draw, *([False] * 5), True),
        constant_b=one_of(draw, False, False, True),
        seed=draw(st.integers(0, 2**20)),
        broken=broken,
        at={name: x for name, x in at.items() if x != At()},
    )


# --- tensors ------------------------------------------------------------------------------------------------------

WRITTEN = ("out", "residual", "result 0", "result 1", "result 2")
tensors: dict[str, Memory] = {}  # of the call that runs, for the report of a fault


def where(address: int) -> str:
    found = [f"{near} {name}" for name, memory in tensors.items() if (near := memory.where(address))]
    return found[0] if found else "near no tensor of the call"


class Maker:
    def __init__(self, seed: int, at: dict[str, At], device: str) -> None:
        tensors.clear()
        self.random = torch.Generator().manual_seed(seed)
        self.at, self.device = at, device

    def place(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """The values in memory laid out as `at` says. Rows or batches that share memory keep the last values."""
        at, item = self.at.get(name, At()), values.element_size()
        strides = list(values.contiguous().stride())
        if values.ndim in (2, 3) and values.numel():
            if at.pitch is not None:
                strides[-2] = at.pitch // item
            if values.ndim == 3:
                strides[0] = values.shape[1] * strides[1] if at.batch is None else at.batch // item
        form = {"edge": at.edge, "slack": at.slack, "device": self.device}
        tensors[name] = Memory(values.shape, strides, values.dtype, generator=self.random, **form)
        if values.numel():
            shared = [x for x in range(values.ndim) if strides[x] == 0 and values.shape[x] > 1]
            target = tensors[name].tensor
            for x in shared:
                target, values = target.narrow(x, 0, 1), values.narrow(x, 0, 1)
            for row in range(values.shape[-2]) if values.ndim > 1 and strides[-2] < values.shape[-1] else ():
                target[..., row, :] = values[..., row, :]  # one by one: copy_ rejects rows that overlap
            if values.ndim < 2 or strides[-2] >= values.shape[-1] or values.shape[-2] == 1:
                target.copy_(values)
        tensors[name].freeze(writable=name in WRITTEN)
        return tensors[name].tensor

    def guard_results(self, leader: torch.Tensor) -> None:
        """Guards the results that the call allocates by this method of its first argument: `result 0` and so on."""

        def new_empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            name, at = f"result {sum(name.startswith('result') for name in tensors)}", self.at.get("result", At())
            strides = torch.empty(shape, device="meta").stride()
            form = {"edge": at.edge, "slack": at.slack, "device": self.device}
            tensors[name] = Memory(shape, strides, dtype, generator=self.random, **form)
            tensors[name].freeze(writable=True)
            return tensors[name].tensor

        leader.new_empty = new_empty

    def bytes(self, *shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=self.random)

    def integers(self, least: int, most: int, *shape: int) -> torch.Tensor:
        return torch.randint(least, most + 1, shape, generator=self.random)

    def scales(self, kind: str, *shape: int) -> torch.Tensor:
        choices = {**reference.SCALE_SETS, "nan": (*[0x38, 0x40, 0x44] * 40, reference.E4M3_NAN)}[kind]
        picked = torch.randint(0, len(choices), shape, generator=self.random)
        return torch.tensor(choices, dtype=torch.uint8)[picked]

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.random)


def wrongly_written() -> str:
    for name, memory in tensors.items():
        if name in WRITTEN and not memory.unchanged_around():
            return f"bytes around {name} were written"
        if name not in WRITTEN and not memory.unchanged():
            return f"{name}, an input, was written"
    return ""


def is_guarded(results: tuple[torch.Tensor, ...]) -> bool:
    """Whether guard_results has made them."""
    guarded = [memory.tensor for name, memory in tensors.items() if name.startswith("result")]
    return [x.data_ptr() for x in guarded] == [x.data_ptr() for x in results]


def prepare(target: str, backend: str | None, seed: int, threads: int, lanes: str = "") -> str:
    """The device of the tensors."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, sorted(every_cpu)[:threads] if threads else every_cpu)
    _C.set_default_backend(backend)  # of what takes no backend
    if target.startswith("sm_"):
        emulator().emulator_configure(b"seed", str(seed).encode())
        lanes = lanes or os.environ.get("EMULATE_LANES", ("together", "apart")[seed // 4 % 2])
        assert emulator().emulator_configure(b"lanes", lanes.encode()) == 0
    return "cuda" if target == "cuda" else "cpu"


every_cpu = os.sched_getaffinity(0)


def emulator() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["NVFP4_LIBCUDA"])


def explain(target: str, error: nvfp4.Error) -> str:
    """The message, and of an address that is not mapped in which tensor it is."""
    message = str(error)
    if target.startswith("sm_"):
        emulator().emulator_reset()
    found = re.search(r"address (0x[0-9a-f]+) is not mapped", message)
    return message + (f": {where(int(found[1], 16))}" if found else "")


def usable(target: str) -> bool:
    """Whether the CPU has the instructions that the target needs."""
    return "this CPU has not the instructions" not in run_gemm(
        target, Gemm(1, 1, 16, backend=EMULATED_BACKENDS.get(target, (None,))[0])
    )


def planned(case: Gemm) -> tuple[Any, ...]:
    """The arguments of _C.plan."""
    a = None if case.a == "nvfp4" else case.a
    return 0, case.backend, a, case.m, case.n, case.k, 1 if case.l is None else case.l, 0 if case.transpose_b else 4


def plans(target: str, case: Gemm) -> list[dict[str, Any]]:
    """Every plan of a product of this shape, by rank."""
    shape = planned(case)
    found = []
    try:
        for rank in range(max(1, _C.plan(*shape)["candidates"])):
            _C.set_candidate(rank)
            found.append(_C.plan(*shape))
    finally:
        _C.set_candidate(0)
    return found


# --- products -----------------------------------------------------------------------------------------------------


def make_gemm(case: Gemm, device: str) -> dict[str, Any]:
    make, batch = Maker(case.seed, case.at, device), () if case.l is None else (case.l,)
    dtype = DTYPES[case.out_dtype]
    args: dict[str, Any] = {}
    if case.a != "nvfp4":
        shape = (*batch, case.m, case.sums)
        halves = (make.integers(-12, 12, *shape) / 2) if case.scales == "contest" else make.normal(*shape)
        args |= {"a": make.place("a", halves.to(DTYPES[case.a])), "scale_a": None}
    for name, rows in (("a", case.m), ("b", case.n)):
        if name in args:
            continue
        args[name] = make.place(name, make.bytes(*batch, rows, case.k // 2))
        scale = make.scales(case.scales, *batch, rows, case.k // 16)
        scale = reference.swizzle(scale, padding=reference.E4M3_NAN) if case.layout == "128x4" else scale
        args[f"scale_{name}"] = make.place(f"scale_{name}", scale)
        if name in case.typed:
            args[name] = args[name].view(torch.float4_e2m1fn_x2)
        if name.upper() in case.typed:
            args[f"scale_{name}"] = args[f"scale_{name}"].view(torch.float8_e4m3fn)
    if case.alpha == "number":
        args["alpha"] = float(make.normal(1))
    elif case.alpha:
        l = case.l if case.l is not None else 1
        shape = {"one": (1,), "vector": (case.n,), "batch": (l, 1), "matrix": (l, case.n)}[case.alpha]
        args["alpha"] = make.place("alpha", make.normal(*shape))
    if case.bias:
        shape = (1 if case.l is None else case.l, case.columns)[not case.bias_by_batch :]
        args["bias"] = make.place("bias", make.normal(*shape).to(torch.float32 if case.bias == "float32" else dtype))
    shape = (*batch, case.m, case.columns)
    if not case.allocated:
        values = make.normal(*shape) if case.c == "out" else torch.full(shape, math.nan)
        args["out"] = make.place("out", values.to(dtype))
    if case.c:
        values = torch.full(shape, math.nan) if case.c == "unread" else make.normal(*shape)
        args["c"] = args["out"] if case.c == "out" else make.place("c", values.to(dtype))
        args["beta"] = 0.0 if case.c == "unread" else float(make.normal(1))
    make.guard_results(args["a"])
    switches = {name: getattr(case, name) for name in ("transpose_b", "batch_invariant", "constant_b")}
    return args | {"scale_layout": case.layout, "out_dtype": dtype, **switches}


NO_ORDER = "batch_invariant: no kernel of this backend is batch invariant for "


def has_no_order(case: Gemm, args: dict[str, Any]) -> bool:
    """Whether the backend has no order of additions that serves every M; sm80 has one for everything."""
    if case.a != "nvfp4" and case.backend in OWN and case.backend != "sm90":
        return True
    on_16 = all(
        x.data_ptr() % 16 == 0
        and x.stride(-2) * x.element_size() % 16 == 0
        and (x.dim() == 2 or len(x) == 1 or x.stride(0) * x.element_size() % 16 == 0)
        for x in (args["a"], args["b"])
    )
    return case.backend == "sm90" and not (case.transpose_b and case.layout == "128x4" and case.n > 1 and on_16)


def run_gemm(target: str, case: Gemm) -> str:
    """The verdict: "" or what is wrong."""
    device = prepare(target, case.backend, case.seed, case.threads, case.lanes)
    args = make_gemm(case, device)
    copies = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in args.items() if name != "out"}
    try:
        if case.plan:
            _C.override_plan(*planned(case), *case.plan)
        elif case.rank:
            shape = planned(case)
            _C.set_candidate(int(case.rank * _C.plan(*shape)["candidates"]))
        try:
            result = nvfp4.gemm(**args, backend=case.backend)
        except nvfp4.Error as error:
            if case.batch_invariant and str(error).startswith(NO_ORDER) and has_no_order(case, args):
                return run_gemm(target, replace(case, backend="sm80"))
            if not case.broken:
                return explain(target, error)
            if not str(error).startswith(f"{case.broken}: "):
                return f"the message does not begin with {case.broken}: {error}"
            return "" if all(memory.unchanged() for memory in tensors.values()) else "something was written"
    finally:
        _C.set_candidate(0)
        _C.clear_overrides()
    if case.broken:
        return f"a call was accepted that breaks a rule of {case.broken}"
    if case.allocated:
        if result.shape != (*args["a"].shape[:-1], case.columns) or result.dtype != args["out_dtype"]:
            return f"the result has shape {tuple(result.shape)} and dtype {result.dtype}"
        if not is_guarded((result,)):
            return "the result is not in guarded memory"
    elif result.data_ptr() != args["out"].data_ptr():
        return "out was not returned"
    return judge(target, case, copies, result) or wrongly_written()


def judge(target: str, case: Gemm, args: dict[str, Any], result: torch.Tensor) -> str:
    args = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in args.items()}
    result = result.cpu()
    expected = reference.gemm(**{name: x for name, x in args.items() if name not in ("batch_invariant", "constant_b")})
    x, y = (reference.operand(args[name], args[f"scale_{name}"], case.layout).nan_to_num(0.0) for name in "ab")
    y = y if case.transpose_b else y.mT
    if reference.sums_are_exact(x, y):
        equal, message = reference.compare(result, expected, exact=True)
        return "" if equal else message
    kernel = _C.cpu_kernel() if target.startswith("cpu") else case.backend or "sm80"  # whose bound is the widest
    x, y = x.double(), y.double().mT
    bound = Bounded(x @ y, x.abs() @ y.abs(), roundings(kernel, case.sums, case.a != "nvfp4"))
    bound.multiply(reference.for_rows(args.get("alpha", 1.0)))
    if args.get("beta"):
        bound.add(float(torch.tensor(args["beta"])) * args["c"].double())
    if case.bias:
        bound.add(reference.for_rows(args["bias"]))
    return bound.verdict(result, expected)


# --- proof of the guard -------------------------------------------------------------------------------------------


def go_past(target: str, edge: str, by: int, write: bool) -> str:
    """A deliberate access: a read `by` bytes past a tensor, or a write to an input. Must not return."""
    prepare(target, None, 0, 1)
    x = Maker(0, {"x": At(edge=edge)}, "cpu").place("x", torch.zeros(100, dtype=torch.uint8))
    past = -1 - by if edge == "begin" else 100 + by
    ctypes.memset(x.data_ptr(), 0, 1) if write else ctypes.string_at(x.data_ptr() + past, 1)
    return "no fault"


def without(target: str, name: str, case: Gemm) -> str:
    """A product one of whose tensors the kernel cannot read."""
    prepare(target, case.backend, case.seed, case.threads)
    args = make_gemm(case, "cpu")
    tensors[name].forbid()
    try:
        nvfp4.gemm(**args, backend=case.backend)
    except nvfp4.Error as error:
        return explain(target, error)
    return "no fault"


def main(target: str, text: str) -> int:
    from call_workers import Workers
    from generated_conversions import Conversion
    from generated_grouped_gemm import Grouped
    from generated_grouped_quantize import Sorted
    from generated_moe import Step
    from generated_quantize_gemm import Layer

    kinds = (Gemm, Conversion, Grouped, Step, Sorted, Layer, At)
    case = eval(text, {kind.__name__: kind for kind in kinds})
    workers = Workers()
    verdict = workers.run(target, case)
    workers.close()
    print(verdict or "right")
    return bool(verdict)


if __name__ == "__main__":
    from paths import EMULATOR

    sys.path.append(str(EMULATOR))
    import generated_calls  # whose classes the worker can unpickle, as it cannot those of __main__

    sys.exit(generated_calls.main(*sys.argv[1:]))
