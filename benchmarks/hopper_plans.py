"""Measured times of all likely plans of products on Hopper GPUs, and what the model makes of them.

results/sm90_plans_CARD.csv has a row for a product of NVFP4 or bf16 A: gemm, grouped_gemm, or gated_grouped_gemm of
gate and up with their activation. m are all rows, l all matrices. Plans are KERNEL/SWAP_AB/SPLIT_K, of groups
KERNEL/TILE_N/FUSED, with =SINGLE/GRAPH: microseconds of a single call with a cold L2, less an empty pair of events, and
of a call in a CUDA graph whose weights rotate. One that was not measured is absent. sm80's plans are among them.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import c_model
import recorded
from c_model import Struct

from nvfp4.bench.shapes import MONOTONE_M, monotone

if TYPE_CHECKING:
    from nvfp4.bench.timing import DeviceClock

RESULTS = Path(__file__).resolve().parent / "results"
CARDS = tuple(sorted(path.stem for path in (c_model.CSRC / "kernels/sm90").glob("*.def")))  # with constants
COLUMNS = ["operation", "a", "m", "n", "k", "l", "groups", "plans"]
GATED = "gated_grouped_gemm"


DEVICE = ("sm_count", "clock_mhz", "memory_gb_s", "l2_bytes")  # that the model scales with


@dataclass(frozen=True)
class Product:
    operation: str
    a: str  # "nvfp4" or "bfloat16"
    m: int
    n: int
    k: int
    l: int = 1  # noqa: E741
    groups: int = 0

    def __str__(self) -> str:
        of = f", {self.groups} groups" if self.groups else ""
        return f"{self.operation} {self.m}x{self.n}x{self.k}{of}, {self.a} A"

    def traits(self) -> Struct:
        dtype = c_model.number("VALUES_E2M1" if self.a == "nvfp4" else "NVFP4_BF16")
        if self.groups:
            return c_model.grouped_traits(self.m, self.n, self.k, self.l, self.groups, dtype)
        return c_model.traits(self.m, self.n, self.k, self.l, dtype)


@dataclass(frozen=True)
class Timed:
    single: float | None  # us
    graph: float | None


Times = dict[Product, dict[str, Timed]]  # by plan


def path_of(card: str) -> Path:
    return RESULTS / f"sm90_plans_{card}.csv"


def device_of(card: str) -> Struct:
    """The properties of the GPU that was measured."""
    members = (each.split() for each in recorded.head(path_of(card))["device"].split(", "))
    return c_model.device("h200").copy(**{name: int(value) for name, value in members})


def read(card: str) -> Times:
    times: Times = {}
    for row in recorded.rows(path_of(card)):
        product = Product(row["operation"], row["a"], *(int(row[name]) for name in COLUMNS[2:7]))
        cells = [each.partition("=") for each in row["plans"].split()]
        times[product] = {
            plan: Timed(*(float(us) if us else None for us in both.split("/"))) for plan, _, both in cells
        }
    return times


# ---- the model ----


def name_of(plan: Struct | dict[str, Any], kernel: str, fused: bool, groups: int) -> str:
    """The name of a plan in the tables."""
    get = plan.__getitem__ if isinstance(plan, dict) else functools.partial(getattr, plan)
    settings = (get("tile_n"), int(fused)) if groups else (int(get("swap_ab")), get("split_k"))
    return "/".join(map(str, (kernel.removeprefix("nvfp4_"), *settings)))


def ranked(product: Product, constants: Struct, on: Struct) -> dict[str, Struct]:
    """The plans of a product from the chosen one on, with their modelled times."""
    found: dict[str, Struct] = {}
    for plan, fused in c_model.hopper_plans(constants, on, product.traits(), product.operation == GATED):
        found.setdefault(name_of(plan, plan.name.decode(), fused, product.groups), plan)
    return found


@dataclass(frozen=True)
class Outcome:
    product: Product
    chosen: str  # the first measured plan by the model
    best: str  # the fastest one
    us: float  # of the chosen one: in a graph, or of a single call where no graph was measured
    best_us: float
    unmeasured: str | None  # the chosen plan, where it was not measured

    @property
    def regret(self) -> float:
        return self.us / self.best_us - 1


def outcome(product: Product, measured: dict[str, Timed], constants: Struct, on: Struct, single: bool) -> Outcome:
    """single: by single calls."""
    us = {plan: us for plan, timed in measured.items() if (us := timed.single if single else timed.graph) is not None}
    order = [*ranked(product, constants, on)]
    chosen = next(plan for plan in order if plan in us)
    best = min(us, key=us.__getitem__)
    return Outcome(product, chosen, best, us[chosen], us[best], None if chosen == order[0] else order[0])


def outcomes(times: Times, constants: Struct, on: Struct, single: bool = False) -> list[Outcome]:
    """Outcomes of the products that were measured so, the worst first."""
    measured = {
        product: plans
        for product, plans in times.items()
        if any((timed.single if single else timed.graph) is not None for timed in plans.values())
    }
    return sorted((outcome(*each, constants, on, single) for each in measured.items()), key=lambda o: -o.regret)


# ---- measuring ----

MANY_ROWS = (33, 65, 129, 768, 1024, 2048, 4096)  # beside those of MONOTONE_M
MANY_VALUES = 2**27  # of B, at most, with more than 512 rows
NEAR = ((-128, 0), (-64, 0), (-8, 0), (8, 0), (64, 0), (128, 0), (0, -128), (0, -64), (0, 64), (0, 128))
NEAR_M = (1, 8, 16, 32, 64, 128)
LAYERS = [(shape.n, shape.k) for shape in monotone([1])]
RANKED = LAYERS[-3:]
WIDE = [(m, n, k) for n, k in ((51200, 5120), (128256, 4096)) for m in (8, 16, 32, 48)]
LARGE = [(2304, 4608, 7168), (8192, 8192, 8192), (1024, 7168, 16384)]
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
LIKELY = 1.3  # times the chosen plan's modelled time
MAX_PLANS = 14
ROTATED_BYTES = 160e6  # of weights: three times the L2
SINGLE_REPEAT, GRAPH_REPEAT, TURNS = 5, 3, 2
MIN_CALLS, MAX_SETS = 6, 16
WARM_SECONDS = 0.2
Call = Callable[[int], object]


def shapes() -> Iterator[tuple[int, int, int]]:
    """M, N, K of products that are not of groups, those of an N and K one after the other."""
    found = {(m, n, k): None for n, k in LAYERS for m in (*MONOTONE_M, *MANY_ROWS) if m <= 512 or n * k < MANY_VALUES}
    near = {(m, n + more_n, k + more_k): None for n, k in RANKED for more_n, more_k in NEAR for m in NEAR_M}
    yield from (found | near | dict.fromkeys(WIDE) | dict.fromkeys(LARGE))


def measure(path: Path, seconds: float) -> None:
    """Times the likely plans of all products on this GPU. Raises TimeoutError if that takes longer."""
    import torch

    import nvfp4
    from nvfp4.bench.timing import DeviceClock

    began, clock = time.monotonic(), DeviceClock(torch.device("cuda"))
    pair = clock.empty_pair(99) * 1e6
    rows: list[list[object]] = [[*COLUMNS]]
    for product, calls, plan in itertools.chain(*(kind(a) for kind in (gemms, groups) for a in ("nvfp4", "bfloat16"))):
        cells = " ".join(times_of(product, plan, calls, clock, pair))
        rows.append([*(getattr(product, name) for name in COLUMNS[:-1]), cells])
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{len(rows)} products took {seconds:.0f} s")
    what = f"us of plans by product; nvfp4 {nvfp4.__version__}; event pair of {pair:.2f} us taken off"
    own = nvfp4.info()["devices"][torch.cuda.current_device()]
    device = ", ".join(f"{name} {own[name]}" for name in DEVICE)
    recorded.write(path, rows, torch.cuda.get_device_name(), what=what, device=device)


def times_of(
    product: Product,
    plan: Callable[[], dict[str, Any]],
    calls: list[Callable[[], object]],
    clock: DeviceClock,
    pair: float,
) -> Iterator[str]:
    """The times of the plans of a product, which take turns."""
    from nvfp4 import _C
    from nvfp4.bench.timing import captured

    first, graphs = plan(), {}
    samples: dict[str, tuple[list[float], list[float]]] = {}
    try:
        for rank in range(first["candidates"]):
            _C.set_candidate(rank)
            now = plan()
            if len(graphs) == MAX_PLANS or now["modelled_us"] > LIKELY * first["modelled_us"]:
                break
            name = name_of(now, now["kernel"], now["fused"], product.groups)
            if name not in graphs:
                graphs[name] = rank, captured(calls)
        for turn in range(TURNS):
            for name, (rank, replay) in [*graphs.items()][:: -1 if turn % 2 else 1]:
                _C.set_candidate(rank)
                single, graph = samples.setdefault(name, ([], []))
                if not product.groups:
                    calls[0]()
                    single += clock.run(calls[:1] * SINGLE_REPEAT)
                replay()
                graph += clock.run([replay] * GRAPH_REPEAT)
    finally:
        _C.set_candidate(0)
    for name, (single, graph) in samples.items():
        one = f"{statistics.median(single) * 1e6 - pair:.2f}" if single else ""
        yield f"{name}={one}/{statistics.median(graph) * 1e6 / len(calls):.2f}"


def raise_clock(device: str) -> None:
    """Keeps the GPU busy until its clock has risen: it falls while the host prepares operands."""
    import torch

    ones = torch.ones(4096, 4096, dtype=torch.float16, device=device)
    began = time.monotonic()
    while time.monotonic() - began < WARM_SECONDS:
        ones @ ones
        torch.cuda.synchronize()


Measured = Iterator[tuple[Product, list[Callable[[], object]], Callable[[], dict[str, Any]]]]


def gemms(a: str, device: str = "cuda") -> Measured:
    """Products that are not of groups, with calls whose weights rotate, and what names their plan."""
    import torch

    import nvfp4

    dtype = None if a == "nvfp4" else getattr(torch, a)

    def draw(rows: int, k: int) -> tuple[Any, Any]:
        scale = torch.randint(0x28, 0x48, (rows, k // 16), dtype=torch.uint8, device=device)
        return torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, device=device), nvfp4.swizzle(scale)

    for (n, k), same in itertools.groupby(shapes(), lambda shape: shape[1:]):
        weights = [draw(n, k) for _ in range(max(2, min(MAX_SETS, int(ROTATED_BYTES / (n * k * 9 / 16)))))]
        raise_clock(device)
        for m, _, _ in same:
            x, scale = draw(m, k) if dtype is None else (torch.randn(m, k, device=device).to(dtype), None)
            out = torch.empty(m, n, dtype=dtype or torch.float16, device=device)
            calls = [
                functools.partial(nvfp4.gemm, x, b, scale, scale_b, out=out)
                for _, (b, scale_b) in zip(range(max(len(weights), MIN_CALLS)), itertools.cycle(weights))
            ]
            yield Product("gemm", a, m, n, k), calls, functools.partial(plan_of, m, n, k, a_dtype=dtype)


def plan_of(m: int, n: int, k: int, **more: Any) -> dict[str, Any]:
    import nvfp4

    plan: dict[str, Any] = nvfp4.info(m, n, k, **more)["plan"]
    return plan


def groups(a: str, device: str = "cuda") -> Measured:
    """Products of experts: gate and up with their activation, and down. Routings rotate. NVFP4 rows are quantized
    before."""
    import torch

    import nvfp4
    from nvfp4.bench import experts

    on, generator = torch.device(device), torch.Generator(device).manual_seed(1)
    dtype = None if a == "nvfp4" else getattr(torch, a)

    def operand(x: Any, r: Any, **rows: Any) -> tuple[Any, Any, dict[str, Any]]:
        """a, scale_a, and what else describes the rows."""
        if dtype is not None:
            return x.to(dtype), None, rows
        data, scale, first = nvfp4.quantize(x, ends=r.ends, **rows)
        return data, scale, {"scale_rows": first}

    def call(operation: Any, given: tuple[Any, Any, dict[str, Any]], b: Any, scale_b: Any, ends: Any) -> object:
        data, scale, rows = given
        return operation(data, b, scale, scale_b, ends, constant_b=True, out_dtype=torch.bfloat16, **rows)

    for model in (*experts.MODELS[1:], experts.Model("DeepSeek-V3 of 64", 64, 8, 7168, 2048)):
        e, h, i = model.experts, model.hidden, model.inner
        gate_up, down = (
            experts.stack(e, parts, n, k, on, generator, torch.bfloat16)[:2] for parts, n, k in ((2, i, h), (1, h, i))
        )
        raise_clock(device)
        for tokens in TOKENS:
            m = tokens * model.choices
            routings = [experts.make_routing(model, tokens, on, generator, torch.bfloat16) for _ in range(4)] * 2
            hidden = torch.randn(m, i, device=on, generator=generator).bfloat16()
            for operation, n, k, parts in ((GATED, i, h, 2), ("grouped_gemm", h, i, 1)):
                weights = gate_up if parts == 2 else down
                given = [operand(r.x, r, rows=r.rows) if parts == 2 else operand(hidden, r) for r in routings]
                calls = [
                    functools.partial(call, getattr(nvfp4, operation), one, *weights, r.ends)
                    for one, r in zip(given, routings)
                ]
                of = GATED if parts == 2 else None
                plan = functools.partial(plan_of, m, n, k, a_dtype=dtype, groups=e, operation=of)
                yield Product(operation, a, m, n, k, e * parts, e), calls, plan
        del gate_up, down
