"""Checks that products of neighbouring sizes run at neighbouring rates, in measured times of all likely plans.

    python benchmarks/neighbours.py                   every pair whose rates differ by over 5 %, and what the plans lose
    python benchmarks/neighbours.py --log             writes log/neighbours_h100.csv, the pairs with their reasons, and
                                                      the H100's single calls into log/monotone.csv
    python benchmarks/neighbours.py --measure FILE    on a Hopper GPU: times the plans (30 s)
    python benchmarks/neighbours.py --measure FILE --a-dtype bfloat16
    python benchmarks/neighbours.py --store FILE FILE writes the means of runs, with the plans of the last one

results/sm90_plans_h100.csv has a row for a product, with its plans from the chosen one on, as KERNEL/SWAP_AB/SPLIT_K=
COLD/GRAPH: microseconds of a single call with a cold L2, and of a call in a CUDA graph whose weights rotate. Plans are
those that are modelled to take at most 1.12 times as long as the chosen one, sm80's too. Shapes are those of
`nvfp4 bench --set monotone`, and NEAR ones of the ranked N and K.

A rate is the floor (minimum traffic at READ, or products at MULTIPLY, whichever takes longer) over the time in a graph.
Pairs are two following M of an N and K, of which the larger must not be over 5 % slower by its rate; an M and the
fastest larger M, which must not be over 5 % faster; and a ranked N and K with those near them, which must not be over
5 % slower. A pair is avoidable if the fastest measured plans of both keep the rule. tests/tools/test_neighbours.py
holds the stored run against the log: a pair that the log does not have fails it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import recorded

from nvfp4.bench.shapes import MONOTONE_M, Shape, monotone

if TYPE_CHECKING:
    from nvfp4.bench.timing import DeviceClock

HERE = Path(__file__).resolve().parent
RESULTS, LOG = HERE / "results/sm90_plans_h100.csv", HERE / "log/neighbours_h100.csv"
CURVES = HERE / "log/monotone.csv"
LAYERS = [(shape.n, shape.k) for shape in monotone([1])]
RANKED = LAYERS[-3:]
NEAR = ((-128, 0), (-64, 0), (-8, 0), (8, 0), (64, 0), (128, 0), (0, -128), (0, -64), (0, 64), (0, 128))
NEAR_M = (1, 8, 16, 32, 64, 128)
MAX_LOSS = 0.05
LIKELY = 1.12  # times the chosen plan's modelled time
MAX_PLANS = 12
READ, MULTIPLY = 2.9e12, 6.2e14  # bytes and operations a second, of copies and of large matmuls on an H100
ROTATED_BYTES = 160e6  # of weights: three times the L2
COLD_REPEAT, GRAPH_REPEAT, MIN_CALLS = 9, 5, 6

COLUMNS: list[object] = ["m", "n", "k", "plans"]  # of measured times
HEADER = ["rule", "from", "to", "rate, %", "by the fastest plans, %", "kernel", "kernel of the other", "reason"]


@dataclass(frozen=True)
class Timed:
    plan: str
    cold: float  # us
    graph: float


Times = dict[Shape, list[Timed]]  # from the chosen plan on


@dataclass(frozen=True)
class Pair:
    rule: str
    one: Shape
    other: Shape
    change: float  # of the rate of the chosen plans, from one to the other
    fastest: float  # the same of the fastest measured plans

    @property
    def avoidable(self) -> bool:
        return self.fastest >= -MAX_LOSS

    def row(self, times: Times) -> list[str]:
        kernels = [times[shape][0].plan for shape in (self.one, self.other)]
        changes = [f"{100 * by:.1f}" for by in (self.change, self.fastest)]
        return [self.rule, str(self.one), str(self.other), *changes, *kernels, reason(self)]


# ---- measuring ----


def shapes() -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """N, K and all M of them."""
    for n, k in LAYERS:
        yield n, k, MONOTONE_M
    for n, k in RANKED:
        for more_n, more_k in NEAR:
            yield n + more_n, k + more_k, NEAR_M


def measure(path: Path, a_dtype: str) -> None:
    """Times the plans of all shapes on this GPU."""
    import torch

    import nvfp4
    from nvfp4.bench.timing import DeviceClock

    device = torch.device("cuda")
    clock = DeviceClock(device)
    dtype = None if a_dtype == "nvfp4" else getattr(torch, a_dtype)

    def draw(rows: int, k: int) -> tuple[Any, Any]:
        scale = torch.randint(0x28, 0x48, (rows, k // 16), dtype=torch.uint8, device=device)
        return torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, device=device), nvfp4.swizzle(scale)

    def product(a: Any, scale_a: Any, weights: list[tuple[Any, Any]], out: Any, i: int) -> None:
        b, scale_b = weights[i % len(weights)]
        nvfp4.gemm(a, b, scale_a, scale_b, out=out)

    found = [COLUMNS]
    for n, k, rows in shapes():
        weights = [draw(n, k) for _ in range(max(2, min(16, int(ROTATED_BYTES / (n * k * 9 / 16)))))]
        for m in rows:
            a, scale_a = draw(m, k) if dtype is None else (torch.randn(m, k, device=device).to(dtype), None)
            out = torch.empty(m, n, dtype=dtype or torch.float16, device=device)
            call = partial(product, a, scale_a, weights, out)
            plan = partial(nvfp4.info, m, n, k, a_dtype=dtype)
            found.append([m, n, k, " ".join(times_of(plan, call, max(len(weights), MIN_CALLS), clock))])
    pair = clock.empty_pair(99) * 1e6
    what = f"us of plans by shape; nvfp4 {nvfp4.__version__}, A of {a_dtype}; event pair {pair:.2f} us"
    recorded.write(path, found, torch.cuda.get_device_name(), what=what)


def times_of(
    info: Callable[[], dict[str, Any]], call: Callable[[int], None], calls: int, clock: DeviceClock
) -> Iterator[str]:
    """The times of the plans of a product."""
    from nvfp4 import _C
    from nvfp4.bench.timing import captured

    first = info()["plan"]
    try:
        for rank in range(min(MAX_PLANS, first["candidates"])):
            _C.set_candidate(rank)
            plan = info()["plan"]
            if plan["modelled_us"] > LIKELY * first["modelled_us"]:
                break
            call(0)
            cold = statistics.median(clock.run([partial(call, i) for i in range(COLD_REPEAT)]))
            replay = captured([partial(call, i) for i in range(calls)])
            replay()
            graph = statistics.median(clock.run([replay] * GRAPH_REPEAT)) / calls
            settings = f"{plan['kernel'].removeprefix('nvfp4_')}/{int(plan['swap_ab'])}/{plan['split_k']}"
            yield f"{settings}={cold * 1e6:.2f}/{graph * 1e6:.2f}"
    finally:
        _C.set_candidate(0)


def read(path: Path = RESULTS) -> Times:
    times: Times = {}
    for row in recorded.rows(path):
        own = times.setdefault(Shape(int(row["m"]), int(row["n"]), int(row["k"])), [])
        for each in row["plans"].split():
            plan, _, us = each.partition("=")
            cold, _, graph = us.partition("/")
            own.append(Timed(plan, float(cold), float(graph)))
    return times


def store(paths: list[Path]) -> None:
    """Writes the stored run: commit, card and plans of the last run, and the mean time of each plan in all runs."""
    runs = [read(path) for path in paths]
    about, rows = recorded.head(paths[-1]), [COLUMNS]
    for shape, plans in runs[-1].items():
        cells = []
        for plan in plans:
            same = [each for run in runs for each in run.get(shape, []) if each.plan == plan.plan]
            cold, graph = (statistics.fmean(times) for times in zip(*((each.cold, each.graph) for each in same)))
            cells.append(f"{plan.plan}={cold:.2f}/{graph:.2f}")
        rows.append([shape.m, shape.n, shape.k, " ".join(cells)])
    what = f"{about['what']}; means of {len(runs)} runs"
    recorded.write(RESULTS, rows, about["card"], commit=about["commit"], what=what)


# ---- rules ----


def floor(shape: Shape) -> float:
    """Microseconds."""
    return 1e6 * max(shape.bytes / READ, shape.operations / MULTIPLY)


def is_long(shape: Shape) -> bool:
    """Whether the GPU draws its power limit while it runs the product over and over."""
    return floor(shape) > 100


def chosen(plans: list[Timed]) -> float:
    return plans[0].graph


def fastest(plans: list[Timed]) -> float:
    return min(each.graph for each in plans)


def pairs(times: Times) -> Iterator[tuple[str, Shape, Shape]]:
    """Rule, one, other: the rate of the other must not be over 5 % less."""
    for n, k in LAYERS:
        rows = [Shape(m, n, k) for m in MONOTONE_M]
        for one, other in zip(rows, rows[1:]):
            yield "M", one, other
        for i, one in enumerate(rows[:-1]):
            yield "order", min(rows[i + 1 :], key=lambda other: chosen(times[other])), one
    for n, k in RANKED:
        for m in NEAR_M:
            for more_n, more_k in NEAR:
                yield "N" if more_n else "K", Shape(m, n, k), Shape(m, n + more_n, k + more_k)


def change(rule: str, one: Shape, other: Shape, times: Times, of: Callable[[list[Timed]], float]) -> float:
    """How much the rate changes from one to the other; by `order` that of the time alone."""
    slower = of(times[one]) / of(times[other])
    return (slower if rule == "order" else slower * floor(other) / floor(one)) - 1


def found(times: Times) -> list[Pair]:
    """Pairs that break their rule."""
    broken = []
    for rule, one, other in pairs(times):
        by, least = (change(rule, one, other, times, of) for of in (chosen, fastest))
        if by < -MAX_LOSS:
            broken.append(Pair(rule, one, other, by, least))
    return broken


def reason(pair: Pair) -> str:
    """The reason names work that every plan of the other product has more of. Empty: none is known."""
    one, other = pair.one, pair.other
    if pair.rule == "M" and one.m < 4:
        return "dot products of another row"
    if pair.rule == "M" and one.m in (8, 16, 32):
        return f"tiles of more than {one.m} rows"
    if pair.rule == "M" and one.m % 64 == 0:
        return "another tile of 64 or 128 rows"
    if pair.rule == "order" and is_long(other):
        return "long calls at the power limit: the clock differs between runs"
    if pair.rule == "K" and other.k % 256:
        return "rows of B begin inside lines of 128 bytes, and the last step of K is not full"
    return ""


def regrets(times: Times) -> list[float]:
    """By product, how much longer the chosen plan takes than the fastest one."""
    return [chosen(plans) / fastest(plans) - 1 for plans in times.values()]


def write_curves(times: Times) -> None:
    """The chosen plans' single calls into the log that benchmarks/monotone.py draws."""
    header, *rows = recorded.table(CURVES)
    own = [
        ["h100", str(n), str(k), str(m), f"{plan.cold:.2f}", plan.plan.partition("/")[0]]
        for n, k in LAYERS
        for m in MONOTONE_M
        for plan in times[Shape(m, n, k)][:1]
    ]
    kept = [row for row in rows if row[0] != "h100"]
    recorded.write(CURVES, [header, *kept, *own], recorded.head(CURVES)["card"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, metavar="FILE", help="time the plans on this GPU")
    parser.add_argument("--a-dtype", default="nvfp4", choices=("nvfp4", "float16", "bfloat16"), help="type of A")
    parser.add_argument("--log", action="store_true", help="write the pairs instead of printing them")
    parser.add_argument("file", nargs="?", type=Path, default=RESULTS, help="measured times instead of the stored ones")
    parser.add_argument("--store", type=Path, nargs="+", metavar="FILE", help="write the stored run from measured ones")
    options = parser.parse_args()
    if options.store:
        store(options.store)
        return
    if options.measure:
        measure(options.measure, options.a_dtype)
        return
    times = read(options.file)
    broken = found(times)
    if options.log:
        recorded.write(LOG, [HEADER, *(pair.row(times) for pair in broken)], recorded.head(options.file)["card"])
        write_curves(times)
        return
    for pair in broken:
        print(*pair.row(times), "AVOIDABLE" if pair.avoidable else "", sep="  ")
    lost = regrets(times)
    mean, above = statistics.fmean(lost), sum(each > MAX_LOSS for each in lost)
    print(
        f"{len(broken)} of {sum(1 for _ in pairs(times))} pairs, {sum(p.avoidable for p in broken)} of them avoidable"
    )
    print(f"{len(lost)} products: regret {mean:.2%} on average, at most {max(lost):.1%}; above 5 %: {above}")


if __name__ == "__main__":
    main()
