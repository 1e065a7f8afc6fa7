"""Checks that products of neighbouring sizes run at neighbouring rates, in measured times of all likely plans
(hopper_plans.py).

    python benchmarks/neighbours.py [CARD]            every pair whose rates differ by over 5 %, and what the plans lose
    python benchmarks/neighbours.py --log             writes log/neighbours_h100.csv, the pairs of an H100 with their
                                                      reasons, and the single calls of each card, log/monotone.csv

Products have an NVFP4 A, in a CUDA graph. Shapes are those of `nvfp4 bench --set monotone`, and NEAR ones of the ranked
N and K. The chosen plan is that of the model as it is.

A rate is the floor (minimum traffic at READ, or products at MULTIPLY, whichever takes longer) over the time in a graph.
Pairs are two following M of an N and K, of which the larger must not be over 5 % slower by its rate; an M and the
fastest larger M, which must not be over 5 % faster; and a ranked N and K with those near them, which must not be over
5 % slower. A pair is avoidable if the fastest measured plans of both keep the rule. tests/tools/test_neighbours.py
holds the H100's run against the log: a pair that the log does not have fails it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import c_model
import hopper_plans
import recorded
from hopper_plans import CARDS, LAYERS, NEAR, NEAR_M, RANKED

from nvfp4.bench.shapes import MONOTONE_M, Shape

HERE = Path(__file__).resolve().parent
LOG, CURVES = HERE / "log/neighbours_h100.csv", HERE / "log/monotone.csv"
MAX_LOSS = 0.05
READ, MULTIPLY = 2.9e12, 6.2e14  # bytes and operations a second, of copies and of large matmuls on an H100
HEADER = ["rule", "from", "to", "rate, %", "by the fastest plans, %", "kernel", "kernel of the other", "reason"]


@dataclass(frozen=True)
class Timed:
    plan: str
    single: float  # us
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


def shapes() -> Iterator[Shape]:
    for n, k in LAYERS:
        yield from (Shape(m, n, k) for m in MONOTONE_M)
    for n, k in RANKED:
        yield from (Shape(m, n + more_n, k + more_k) for more_n, more_k in NEAR for m in NEAR_M)


def read(card: str = "h100") -> Times:
    """The plans that were timed in graphs, in the order of the model."""
    measured, on = hopper_plans.read(card), hopper_plans.device_of(card)
    constants, times = c_model.sm90_on(on), {}
    for shape in shapes():
        product = hopper_plans.Product("gemm", "nvfp4", shape.m, shape.n, shape.k)
        plans = measured[product]
        order = [plan for plan in hopper_plans.ranked(product, constants, on) if plan in plans]
        found = ((plan, plans[plan].single, plans[plan].graph) for plan in order)
        times[shape] = [Timed(plan, single, graph) for plan, single, graph in found if single and graph]
    return times


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


def write_curves() -> None:
    """The chosen plans' single calls on each card, into the log that benchmarks/monotone.py draws."""
    rows: list[list[object]] = [["gpu", "n", "k", "m", "us", "kernel"]]
    for card in CARDS:
        times = read(card)
        for n, k in LAYERS:
            for m in MONOTONE_M:
                plan = times[Shape(m, n, k)][0]
                rows.append([card, n, k, m, f"{plan.single:.2f}", plan.plan.partition("/")[0]])
    recorded.write(CURVES, rows, ", ".join(recorded.head(hopper_plans.path_of(card))["card"] for card in CARDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("card", nargs="?", choices=CARDS, default="h100")
    parser.add_argument("--log", action="store_true", help="write the pairs of the H100 instead of printing them")
    options = parser.parse_args()
    times = read("h100" if options.log else options.card)
    broken = found(times)
    if options.log:
        card = recorded.head(hopper_plans.path_of("h100"))["card"]
        recorded.write(LOG, [HEADER, *(pair.row(times) for pair in broken)], card)
        write_curves()
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
