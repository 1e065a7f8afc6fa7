"""Modelled time of the sm100 kernels on a B200, from counted work. Nothing here was measured on one.

The model and the planner are the C of csrc/kernels/sm100 (model.h has the formula, its constants and their sources),
asked through c_model.py. b200_report.py makes the tables, b200_trace.py compares counts with the emulator's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import c_model
from b200_ranges import Span, span
from c_model import Config, Struct

PARTS = ("dram", "l2", "ingress", "mma", "cp_async", "drain")  # of the main loop


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def configs() -> list[Config]:
    return c_model.library().configs()


def constants(**changes: float) -> Struct:
    return c_model.model("sm100", **changes)


@dataclass(frozen=True)
class Shape:
    m: int
    n: int
    k: int
    l: int = 1

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}" + (f"x{self.l}" if self.l > 1 else "")

    @property
    def traits(self) -> Struct:
        return c_model.traits(self.m, self.n, self.k, self.l)


@dataclass(frozen=True)
class Times:
    """Microseconds."""

    parts: Struct  # sm100_times
    call: Struct  # sm100_call

    @property
    def bound_by(self) -> str:
        return max(PARTS, key=lambda part: getattr(self.parts, part))


def work_of(shape: Shape, config: Config, split_k: int = 1, swap_ab: bool = False, ctas_per_sm: int = 0) -> Struct:
    """Counted work (sm100_work) of one of our kernels, or of one that does not exist."""
    rows = configs()
    known = config in rows
    kernel = rows.index(config) if known else 0
    others = () if known else (config,)
    return c_model.sm100_work(c_model.device("b200"), shape.traits, kernel, swap_ab, split_k, ctas_per_sm, others)


def times(work: Struct, c: Struct) -> Times:
    return Times(*c_model.sm100_times(c, c_model.device("b200"), work))


def dependent_us(work: Struct, c: Struct) -> float:
    """A call back to back, with PDL."""
    return times(work, c).call.dependent


def constant_b_us(shape: Shape, work: Struct, c: Struct) -> float:
    """The same with constant_b. Where CTAs of two calls share an SM, weights fill the stages while the previous call
    runs, all in its main loop by assumption: a main loop then has the refills of its own call, but DRAM and L2 deliver
    as much as without. Elsewhere they have what the drain hides beyond a prologue."""
    t = times(work, c)
    weights = shape.l * (shape.n * shape.k / 2 + ceil_div(shape.n, 128) * ceil_div(shape.k, 64) * 512)
    early = t.parts.filled * weights / work.dram
    if not t.parts.resident:
        early = min(early, max(0.0, c.exit_overlap_us - c.prologue_us))
    dram = max((work.dram + work.stores) / (c.dram_tb_s * 1e6), t.parts.dram - early)
    others = max(getattr(t.parts, part) for part in PARTS if part != "dram")
    return t.call.dependent - t.call.mainloop + max(dram, others)


@dataclass(frozen=True)
class Plan:
    """A configuration with its split and side, and the modelled time of a back-to-back call with PDL."""

    shape: Shape
    config: Config
    split_k: int
    swap_ab: bool
    ctas_per_sm: int
    us: float
    constants: Struct

    def __str__(self) -> str:
        split = f" split {self.split_k}" if self.split_k > 1 else ""
        return f"{self.config.name}{split}{' swap_ab' if self.swap_ab else ''}"

    @cached_property
    def work(self) -> Struct:
        return work_of(self.shape, self.config, self.split_k, self.swap_ab, self.ctas_per_sm)

    @cached_property
    def times(self) -> Times:
        return times(self.work, self.constants)

    @cached_property
    def span(self) -> Span:
        return span(lambda c: dependent_us(self.work, c), self.constants)


def plans(shape: Shape, rows: list[Config], c: Struct) -> Iterator[Plan]:
    """The planner's candidates with these instantiations, without L2 prefetching, and without those whose CTAs pile
    up: room for the next call against the rule costs them more than the parts of their time."""
    own = () if rows == configs() else tuple(rows)
    for found in c_model.candidates(c, c_model.device("b200"), shape.traits, own):
        settings = found.split_k, bool(found.swap_ab)
        if found.prefetch_stages or found.ctas_per_sm > work_of(shape, rows[found.kernel], *settings).ctas_per_sm:
            continue
        yield Plan(shape, rows[found.kernel], *settings, found.ctas_per_sm, found.modelled_us, c)


def best(shape: Shape, rows: list[Config], c: Struct) -> Plan:
    return min(plans(shape, rows, c), key=lambda plan: plan.us)


def main() -> None:
    import b200_report as report
    import b200_trace as trace

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Modelled, not measured.")
    parser.add_argument("--shape", metavar="M,N,K[,L]", help="this one, instead of the ranked ones, decode and prefill")
    parser.add_argument("--all", action="store_true", help="every configuration, split and side, best first")
    parser.add_argument("--peers", action="store_true", help="published figures against the model")
    parser.add_argument("--sensitivity", action="store_true", help="the mean with each constant at its ends")
    parser.add_argument("--worst", action="store_true", help="plans that ranking by the worst case would take instead")
    parser.add_argument("--configurations", action="store_true", help="without each configuration, and with others")
    parser.add_argument("--constants", action="store_true", help="each constant with its range and their sources")
    parser.add_argument(
        "--count", metavar="TRACE", help="compare the counts with a trace of the emulator; needs --shape"
    )
    parser.add_argument("--config", default="256x64", help="for --count: %(default)s unless given")
    parser.add_argument("--split_k", type=int, default=1, help="for --count")
    parser.add_argument("--swap_ab", action="store_true", help="for --count")
    parser.add_argument("--write", action="store_true", help="put the tables into b200_model.md")
    options = parser.parse_args()
    rows, c = configs(), constants()
    shapes = [Shape(*map(int, options.shape.split(",")))] if options.shape else list(report.RANKED)
    if options.write:
        report.write(rows, c)
    elif options.peers:
        print("\n".join([*report.peer_table(), "", *report.slope_lines()]))
    elif options.sensitivity:
        print("\n".join(report.sensitivity_table(rows, c, len(c.members()))))
    elif options.worst:
        print("\n".join(report.worst_case_table(rows, c)))
    elif options.configurations:
        print("\n".join(report.config_table(rows, c)))
    elif options.constants:
        print("\n".join(report.constants_table()))
    elif options.count:
        config = next(config for config in rows if config.name == options.config)
        print("\n".join(trace.compare(options.count, shapes[0], config, options.split_k, options.swap_ab)))
    elif options.all:
        for shape in shapes:
            print("\n".join(report.all_table(shape, rows, c, 1000)))
    else:
        if not options.shape:
            print("\n".join(report.goal_table(rows, c)) + "\n")
            shapes += [*report.DECODE, *report.TASK, *report.PREFILL]
        print("\n".join([*report.shape_table(shapes, rows, c), "", *report.parts_table(shapes, rows, c)]))


if __name__ == "__main__":
    main()
