"""Tables of the B200 model: published figures against it, our shapes, which configurations win, what each constant is
worth. Printed by model_b200.py; --write puts them into b200_model.md."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import c_model
import recorded
import sm120_model
from b200_ranges import DIRTY_L2_US, Span, ends, ranges, span
from c_model import Config, Struct
from model_b200 import (
    Plan,
    Shape,
    best,
    ceil_div,
    configs,
    constant_b_us,
    constants,
    dependent_us,
    plans,
    times,
    work_of,
)  # fmt: skip

DOCUMENT = Path(__file__).resolve().parent / "b200_model.md"
MEASURED_CONSTANT_B = DOCUMENT.parent / "log/constant_b.csv"
RANKED = (Shape(128, 7168, 16384), Shape(128, 4096, 7168), Shape(128, 7168, 2048))
DECODE = tuple(Shape(m, n, k) for n, k in ((7168, 16384), (4096, 7168), (7168, 2048)) for m in (1, 8, 16, 32, 64))
TASK = (
    Shape(128, 256, 256),
    Shape(128, 1536, 7168),
    Shape(128, 3072, 1536),
    Shape(256, 7168, 256),
    Shape(256, 7168, 2048),
    Shape(2304, 4608, 7168),
    Shape(384, 7168, 2304),
    Shape(512, 512, 7168),
    Shape(512, 4096, 512),
    Shape(512, 1536, 7168),
)
PREFILL = tuple(Shape(m, 7168, 16384) for m in (512, 1024, 2048, 4096, 8192)) + (Shape(8192, 4096, 7168),)
ALL = (*RANKED, *DECODE, *TASK, *PREFILL)
SUBMITTED = "the competition's file, without PDL"
GOALS = {SUBMITTED: 9.3, "with PDL": 6.6}
SPAN = ("low us", "model us", "high us")


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def row(*cells: object) -> str:
    return "| " + " | ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def header(*cells: str) -> list[str]:
    return [row(*cells), "|" + "|".join("--:" if cell.endswith("us") or "%" in cell else "---" for cell in cells) + "|"]


# ---- published kernels ----


@dataclass(frozen=True)
class Peer:
    """A published figure with what is known of its kernel."""

    kind: str
    tiling: str  # as known or assumed
    shape: Shape
    us: float
    work: Struct  # sm100_work
    time: Callable[[Struct, Struct], float]  # of work and constants

    @cached_property
    def span(self) -> Span:
        return span(lambda c: self.time(self.work, c), constants())

    @property
    def error(self) -> float:
        """The error of the model, in %."""
        return 100 * (self.time(self.work, constants()) / self.us - 1)


def peer_work(
    shape: Shape, rows_m: int, rows_n: int, stages: int, cta_group: int = 1, cta_n: int = 0, multicast: int = 1
) -> Struct:
    """Counted work of a kernel without swap_ab: a CTA has rows_m rows of A (rows past the end cost only tensor core
    time) and cta_n rows of B, its cta_group rows_n of B; multicast CTAs share what L2 delivers of A. Bulk stores write
    C."""
    stage_k, mma_k, stage_atoms, atom_bytes, atom_rows = (
        c_model.number(f"SM100_{name}") for name in ("STAGE_K", "MMA_K", "STAGE_ATOMS", "ATOM_BYTES", "ATOM_ROWS")
    )
    cta_n = cta_n or rows_n
    tiles = ceil_div(shape.m, rows_m * cta_group) * ceil_div(shape.n, rows_n)
    tile_atoms = ceil_div(rows_n, atom_rows)
    atoms = ceil_div(shape.k, mma_k) * atom_bytes
    row_bytes = shape.k / 2
    present = min(shape.m, rows_m)
    weights = shape.n * row_bytes + ceil_div(shape.n, atom_rows) * atoms
    acts = shape.m * row_bytes + ceil_div(shape.m, atom_rows) * atoms
    acts_loaded, weights_loaded = acts * ceil_div(shape.n, rows_n), weights * ceil_div(shape.m, rows_m * cta_group)
    scales_again = max(0.0, tiles * cta_group * tile_atoms * atoms - ceil_div(shape.n, atom_rows) * atoms)
    return c_model.new(
        "sm100_work",
        tiles=tiles,
        k_stages=ceil_div(shape.k, stage_k),
        cluster=cta_group,
        ctas_per_sm=1,
        cta_group=cta_group,
        mma_tile_n=rows_n,
        stages=stages,
        accumulators=2,
        split_k=1,
        multicast=1,
        tcgen05_cp=stage_atoms * (1 + tile_atoms),
        stores_as=c_model.number("SM100_BULK_STORES"),
        stage_bytes=(rows_m + cta_n) * stage_k / 2 + stage_atoms * atom_bytes * (1 + tile_atoms),
        ingress=(present + cta_n) * row_bytes + (1 + tile_atoms) * atoms,
        dram=weights + acts,
        loaded=weights_loaded + acts_loaded + scales_again,
        l2=weights_loaded + acts_loaded / multicast + scales_again,
        stores=shape.m * shape.n * 2,
        store_bytes=present * rows_n * 2,
    )


def plain(work: Struct, c: Struct) -> float:
    return times(work, c).call.plain


def kernel_only(work: Struct, c: Struct) -> float:
    return times(work, c).call.kernel


def warm(c: Struct) -> Struct:
    """For operands that L2 holds: its rate, and 200 ns to the first byte (TMA gather4, 4.1)."""
    return c.copy(dram_tb_s=c.l2_tb_s, first_byte_us=0.2)


def warm_plain(work: Struct, c: Struct) -> float:
    return plain(work, warm(c))


def warm_dependent(work: Struct, c: Struct) -> float:
    return dependent_us(work, warm(c))


def flashinfer(shape: Shape) -> Struct:
    """Its tuner takes the fastest tile: here the fastest by this model of its tiles, without swap_ab."""
    menu = [peer_work(shape, 128, n, 227 * 1024 // (20480 + 128 * n)) for n in (64, 128)]
    menu += [peer_work(shape, 128, n, 227 * 1024 // (20480 + 64 * n), cta_group=2, cta_n=n // 2) for n in (64, 128)]
    return min(menu, key=lambda work: kernel_only(work, constants()))


def peers() -> list[Peer]:
    found = []
    for shape, lt, template, naive in zip(RANKED, (22.6, 12.5, 8.55), (96.5, 51.6, 36.9), (459.0, 211.0, 82.7)):
        pair = peer_work(shape, 128, 128, 7, cta_group=2, cta_n=64)
        found.append(Peer("cuBLASLt", "pair 256x128, half of M empty", shape, lt, pair, plain))
        alone = peer_work(shape, 128, 128, 1)
        found.append(Peer("one stage: CuTe DSL template", "128x128", shape, template, alone, plain))
        found.append(Peer("one stage: naive PTX", "128x128", shape, naive, alone, plain))
    # The fastest times of the 15th entry, without PDL: CuTe DSL, clusters of (1, 2), persistent
    # (arseniivanov.github.io, 2026-01-21). The best entry's mean, about 11 us, has no known shapes.
    for shape, us in zip(RANKED, (19.0, 10.4, 6.53)):
        work = peer_work(shape, 128, 64, 7, multicast=2)
        found.append(Peer("the competition's 15th", "128x64, A to 2 CTAs", shape, us, work, plain))
    cube = Shape(8192, 8192, 8192)  # operands that L2 holds
    for name, us in (("cuBLASLt", 179.0), ("fast.cu's port", 173.2)):
        work = peer_work(cube, 128, 256, 5, cta_group=2, cta_n=128)
        found.append(Peer("cuBLASLt and fast.cu's port, 8192^3", f"{name}: pair 256x256", cube, us, work, kernel_only))
    cold = {(64, 7168, 2304): 6.34, (256, 7168, 2304): 7.36, (64, 4608, 7168): 10.18, (256, 4608, 7168): 10.66}
    cold |= {(64, 5120, 16384): 15.92, (64, 8192, 7168): 11.68, (64, 8192, 28672): 33.39, (64, 7168, 256): 4.00}
    # A GB200's.
    cutlass = {(16, 7168, 4608): 9.81, (16, 9216, 7168): 13.63, (64, 2560, 8192): 11.63, (64, 512, 7168): 9.12}
    for name, figures in (("FlashInfer CuTe DSL", cold), ("FlashInfer CUTLASS", cutlass)):
        for size, us in figures.items():
            shape = Shape(*size)
            found.append(Peer(name, "tile by this model", shape, us, flashinfer(shape), kernel_only))
    # BF16, so counted as NVFP4 of as many bytes: a kernel bound by DRAM takes equally long.
    for shape, split, us in (
        (Shape(1, 8192, 464), 1, 1.54),
        (Shape(1, 256, 29120), 8, 3.52),
        (Shape(1, 4608, 29120), 4, 13.6),
    ):
        narrow = Config("128x16", 1, 16, 8, 1, 0)
        work = work_of(shape, narrow, split, swap_ab=True)
        found.append(Peer("FlashInfer lean BF16", f"128 weights a CTA, split {split}", shape, us, work, kernel_only))
    # Graphs of 100 equal calls, so that L2 holds the operands (PR 2277; N x K in BF16 3072x1536, 2880x1024, 1280x2880).
    # The weights are mma_a; a CTA of 64 of them.
    for shape, alone, dependent in (
        (Shape(64, 3072, 5456), 4.88, 4.38),
        (Shape(16, 2880, 3632), 4.21, 3.55),
        (Shape(1, 1280, 10240), 6.01, 5.52),
    ):
        work = peer_work(Shape(shape.n, shape.m, shape.k), 64, max(shape.m, 16), 8)
        found.append(Peer("FlashInfer TGV BF16", "64 weights a CTA", shape, alone, work, warm_plain))
        found.append(Peer("FlashInfer TGV BF16 by PDL", "64 weights a CTA", shape, dependent, work, warm_dependent))
    return found


def slope_lines() -> list[str]:
    """Microseconds for a further 256 along K of the kernels with one stage, from the first shape and the third: their
    fixed part is not of the GPU alone."""
    lines = header("one stage, 128x128: a further 256 along K", "published us", "model us", "model error %")
    stages = (RANKED[0].k - RANKED[2].k) / c_model.number("SM100_STAGE_K")
    own = [plain(peer_work(shape, 128, 128, 1), constants()) for shape in (RANKED[0], RANKED[2])]
    for name, first, third in (("CuTe DSL template", 96.5, 36.9), ("naive PTX", 459.0, 82.7)):
        published, us = (first - third) / stages, (own[0] - own[1]) / stages
        lines.append(row(name, published, us, f"{100 * (us / published - 1):+.0f}"))
    return lines


def peer_table() -> list[str]:
    lines = header(
        "kernel", "tiling as known or assumed", "M x N x K", "published us", *SPAN, "model error %", "bound by"
    )
    for peer in peers():
        s, t = peer.span, times(peer.work, constants())
        cells = (peer.kind, peer.tiling, peer.shape, peer.us, s.low, s.middle, s.high, f"{peer.error:+.0f}", t.bound_by)
        lines.append(row(*cells))
    return lines


def peer_summary() -> list[str]:
    """A row for each kernel: its errors, and how many published times lie between low and high."""
    lines = header("kernel", "model error %", "in range")
    kinds: dict[str, list[Peer]] = {}
    for peer in peers():
        if not peer.kind.startswith("one stage"):  # most of whose time is not the GPU's
            kinds.setdefault(peer.kind, []).append(peer)
    for kind, found in kinds.items():
        within = sum(peer.span.low <= peer.us <= peer.span.high for peer in found)
        errors = sorted(peer.error for peer in found)
        lines.append(row(kind, f"{errors[0]:+.0f}..{errors[-1]:+.0f}", f"{within}/{len(found)}"))
    return lines


# ---- ours ----


def plan_row(plan: Plan, plain_us: float) -> str:
    early = constant_b_us(plan.shape, plan.work, plan.constants)
    cells = (plan.span.low, plan.us, plan.span.high, early, plain_us)
    return row(plan.shape, plan, *cells, plan.times.bound_by)


def parts_row(plan: Plan) -> str:
    parts, call = plan.times.parts, plan.times.call
    return row(
        plan.shape, plan, parts.first_byte, call.mainloop + parts.again, parts.last_stage, parts.reduction,
        parts.epilogue, call.exposed,
    )  # fmt: skip


COLUMNS = ("M x N x K", "configuration", *SPAN, "`constant_b` us", "without PDL us", "bound by")
PARTS_COLUMNS = (
    "M x N x K", "configuration", "first byte us", "main loop us", "last stage us", "partial sums us", "stores us",
    "prologue us",
)  # fmt: skip


def shape_table(shapes: Iterable[Shape], rows: list[Config], c: Struct) -> list[str]:
    lines = header(*COLUMNS)
    for shape in shapes:
        plain_us = min(plan.times.call.plain for plan in plans(shape, rows, c))
        lines.append(plan_row(best(shape, rows, c), plain_us))
    return lines


def submitted_table(shapes: Iterable[Shape], rows: list[Config], c: Struct) -> list[str]:
    """Lists the launches of the competition's file."""
    lines = header("M x N x K", "configuration", *SPAN, "bound by")
    for shape in shapes:
        plan = best_plain(shape, rows, c)
        s = span(functools.partial(plain, plan.work), c)
        lines.append(row(shape, plan, s.low, s.middle, s.high, plan.times.bound_by))
    return lines


def parts_table(shapes: Iterable[Shape], rows: list[Config], c: Struct) -> list[str]:
    """The parts of the same plans with PDL; the gap between calls comes on top."""
    return header(*PARTS_COLUMNS) + [parts_row(best(shape, rows, c)) for shape in shapes]


def all_table(shape: Shape, rows: list[Config], c: Struct, count: int) -> list[str]:
    lines = header(*COLUMNS)
    ranking = sorted(plans(shape, rows, c), key=lambda plan: plan.us)
    return lines + [plan_row(plan, plan.times.call.plain) for plan in ranking[:count]]


def ranked(rows: list[Config], c: Struct) -> float:
    """Geometric mean over the three shapes, back to back with dependent launch."""
    return geomean(best(shape, rows, c).us for shape in RANKED)


def best_plain(shape: Shape, rows: list[Config], c: Struct) -> Plan:
    return min(plans(shape, rows, c), key=lambda plan: plan.times.call.plain)


def ranked_plain(rows: list[Config], c: Struct) -> float:
    return geomean(best_plain(shape, rows, c).times.call.plain for shape in RANKED)


def ranked_spans(rows: list[Config], c: Struct) -> dict[str, Span]:
    """The spans of the geometric means, with the plans that are chosen by the middle values."""
    chosen = [best(shape, rows, c) for shape in RANKED]
    without = [best_plain(shape, rows, c) for shape in RANKED]
    means: dict[str, Callable[[Struct], float]] = {
        SUBMITTED: lambda k: geomean(plain(p.work, k) for p in without),
        "with PDL": lambda k: geomean(dependent_us(p.work, k) for p in chosen),
        "with `constant_b`": lambda k: geomean(constant_b_us(p.shape, p.work, k) for p in chosen),
    }
    return {name: span(mean, c) for name, mean in means.items()}


def measured_gains() -> list[float]:
    """The time that constant_b saved on an H200 for the ranked shapes, us: its kernels leave the next call no room."""
    lines = recorded.rows(MEASURED_CONSTANT_B)
    found = {(line["M"], line["NxK"]): line for line in lines if line["gpu"] == "h200"}
    ranked = [found[str(shape.m), f"{shape.n}x{shape.k}"] for shape in RANKED]
    return [float(line["gemm us"]) - float(line["gemm, constant_b"]) for line in ranked]


def measured_mean(rows: list[Config], c: Struct) -> float:
    """The geometric mean less those."""
    return geomean(best(shape, rows, c).us - gain for shape, gain in zip(RANKED, measured_gains()))


def goal_table(rows: list[Config], c: Struct) -> list[str]:
    lines = header("geometric mean", "all fast us", *SPAN, "all slow us", "goal us")
    found = {name: (s.least, s.low, s.middle, s.high, s.most) for name, s in ranked_spans(rows, c).items()}
    lines += [row(name, *us, f"{GOALS[name]:g}" if name in GOALS else "") for name, us in found.items()]
    for name in GOALS:
        lines.append(row(f"{name}, dirty L2 written back", *(us + DIRTY_L2_US for us in found[name]), ""))
    floors = [shape_floor(shape, c) for shape in RANKED]
    lines.append(
        row("DRAM alone, " + " / ".join(f"{floor:.2f}" for floor in floors), "", "", geomean(floors), "", "", "")
    )
    return lines


def worst_case(
    shapes: Iterable[Shape], rows: list[Config], c: Struct, within: float = math.inf
) -> list[tuple[Plan, Plan]]:
    """(the plan with the least middle, that with the least high among those at most so many % longer in the middle),
    where they differ."""
    found = []
    for shape in shapes:
        first = best(shape, rows, c)
        most = min(first.span.high, (1 + within / 100) * first.us)
        others = [plan for plan in plans(shape, rows, c) if plan.us <= most]
        safest = min(others, key=lambda plan: (plan.span.high, plan.us))
        if safest.span.high < first.span.high:
            found.append((first, safest))
    return found


def change_of(first: Plan, other: Plan) -> tuple[float, float]:
    """The change of the middle and of the high, in %."""
    return 100 * (other.us / first.us - 1), 100 * (other.span.high / first.span.high - 1)


def worst_case_table(rows: list[Config], c: Struct) -> list[str]:
    lines = header("M x N x K", "plan by the middle", "by the high", "its middle %", "its high %")
    for first, other in worst_case(ALL, rows, c):
        lines.append(row(first.shape, first, other, *(f"{change:+.1f}" for change in change_of(first, other))))
    return lines


def shape_floor(shape: Shape, c: Struct) -> float:
    work = work_of(shape, configs()[0])
    return (work.dram + work.stores) / (c.dram_tb_s * 1e6)


# ---- clusters of two sizes ----

MIXED = tuple(Shape(m, n, k) for n, k in ((7168, 16384), (4096, 7168), (8192, 8192)) for m in (4096, 8192, 16384))


def mixed_us(shape: Shape, rows: list[Config], c: Struct) -> float:
    """The best call of a kernel that does not exist: 256x256_multicast whose clusters of 4 leave no pair of SMs idle,
    since pairs that join none run by themselves. Those load all of mma_a from L2."""
    b200 = c_model.device("b200")
    groups, shared = c_model.clusters_that_fit(b200, 2) // 2, c_model.clusters_that_fit(b200, 4)
    full = c_model.answering(b200, (2 * groups, groups, 0) * 2)
    (config,) = (config for config in rows if config.name == "256x256_multicast")
    found = []
    for swap_ab in (False, True):
        work = work_of(shape, config, swap_ab=swap_ab)
        if ceil_div(shape.m if swap_ab else shape.n, config.mma_tile_n) % config.multicast == 0:
            loads = work.l2 + (work.loaded - work.l2) * (groups - shared) / groups
            found.append(c_model.sm100_times(c, full, work.copy(l2=loads))[1].dependent)
    return min(found)


def mixed_table(rows: list[Config], c: Struct) -> list[str]:
    faster = c.copy(l2_tb_s=ranges()["l2_tb_s"].high)

    def cells(shape: Shape, constants: Struct) -> tuple[float, float, float]:
        now = best(shape, rows, constants).us
        then = min(now, mixed_us(shape, rows, constants))
        return now, then, now / then

    lines = header(
        "M x N x K", "plan us", "with pairs us", "gain %", f"L2 at {faster.l2_tb_s}: plan us", "with pairs us", "gain %"
    )
    gains = []
    for shape in MIXED:
        found = [cells(shape, constants) for constants in (c, faster)]
        gains.append([gain for _, _, gain in found])
        lines.append(row(shape, *(cell for now, then, gain in found for cell in (now, then, percent(gain)))))
    means = [percent(geomean(one)) for one in zip(*gains)]
    return [*lines, row("geometric mean", "", "", means[0], "", "", means[1])]


def percent(gain: float) -> str:
    return f"{100 * (gain - 1):.1f}"


# ---- sensitivity ----


def sensitivity(rows: list[Config], c: Struct) -> list[tuple[str, float, float]]:
    """(constant, geometric mean at its fast end, at its slow end), with the plans of the middle; most change first."""
    chosen = [best(shape, rows, c) for shape in RANKED]
    middle = geomean(plan.us for plan in chosen)
    fast, slow = ends()
    found = []
    for name in fast:
        sides = (c.copy(**{name: side[name]}) for side in (fast, slow))
        found.append((name, *(geomean(dependent_us(plan.work, k) for plan in chosen) for k in sides)))
    return sorted(found, key=lambda one: -max(abs(us - middle) for us in one[1:]))


def sensitivity_table(rows: list[Config], c: Struct, count: int) -> list[str]:
    known = ranges()
    lines = header("mean with", "range", "at its fast end us", "slow end us")
    for name, fast, slow in sensitivity(rows, c)[:count]:
        lines.append(row(f"`{name}`", f"{known[name].low:g} to {known[name].high:g}", fast, slow))
    return lines


# ---- configurations ----

OTHER_CONFIGS = (
    Config("256x128, 6 stages", 2, 128, 6, 1, 0),
    Config("256x128, 3 stages", 2, 128, 3, 1, 0),
    Config("256x64, 3 stages", 2, 64, 3, 1, 0),
    Config("256x64, 8 stages, 2 accumulators", 2, 64, 8, 2, 0),
    Config("256x32, 4 stages", 2, 32, 4, 1, 0),
    Config("128x64, 7 stages", 1, 64, 7, 1, 0),
    Config("256x256, 4 stages", 2, 256, 4, 1, 0),
)


def config_table(rows: list[Config], c: Struct) -> list[str]:
    """The value of each configuration: the mean without it, or with one that does not exist."""
    sets = (RANKED, DECODE, TASK, PREFILL)

    def means(some: list[Config]) -> list[float]:
        return [geomean(best(shape, some, c).us for shape in shapes) for shapes in sets]

    base = means(rows)
    names = ("ranked", "decode", "task.yml's tests", "prefill")
    lines = header("change", *(f"{name}, %" for name in names))
    changes = {}
    for config in rows:
        if not config.cp_async:
            left = [other for other in rows if other != config]
            changes[f"without {config.name}"] = change(means(left), base)
    for names in (("128x64", "128x128", "256x128_deep"),):
        left = [other for other in rows if other.name not in names]
        changes["without " + ", ".join(names)] = change(means(left), base)
    for other in OTHER_CONFIGS:
        changes[f"with {other.name}"] = change(means([*rows, other]), base)
    none = ["+0.0"] * len(sets)
    lines += [row(name, *values) for name, values in changes.items() if values != none]
    return [*lines, row("; ".join(name for name, values in changes.items() if values == none), *none)]


def change(means: list[float], base: list[float]) -> list[str]:
    return [f"{100 * (mean / old - 1):+.1f}" for mean, old in zip(means, base)]


# ---- the document ----


def constants_table() -> list[str]:
    known = ranges()
    return header("constant", "low", "value", "high", "unit", "source of the value", "of the ends") + [
        row(c.name, f"{r.low:g}", f"{c.value:g}", f"{r.high:g}", c.unit, c.source, r.source)
        for c in c_model.constants_of("sm100")
        for r in (known[c.name],)
    ]


# Experts, choices of a token, rows of gate and of up, H; and by tokens the whole layer on a B200, with routing and the
# sum over a token's experts, as a comment in FlashInfer's pull request 3976 has it: TRT-LLM's kernels, CuTe DSL's.
MIXTURES = {
    "DeepSeek-V3, all experts on one GPU": (256, 8, 2048, 7168, {1: "60, 73", 16: "391, 475", 64: "819, 985"}),
    "Qwen3-30B-A3B": (128, 8, 768, 2048, {}),
}
TOKENS = (1, 16, 64, 128, 1024, 8192)
B200 = sm120_model.Gpu("B200", 8184, 9000)  # the memory's peak and NVIDIA's figure for dense FP4
B200_16_BIT = sm120_model.Gpu("B200", 8184, 2250)  # the same for dense bf16


def experts_table() -> list[str]:
    """Both products of a layer's experts back to back, the activation in the first one."""
    gpu, cases = len(sm120_model.GPUS), []
    for groups, choices, inner, hidden, _ in MIXTURES.values():
        for t in TOKENS:
            cases += [(gpu, t * choices, inner, hidden, groups, 2), (gpu, t * choices, hidden, inner, groups, 1)]
    found, less = iter(sm120_model.modelled(cases)), sm120_model.BACK_TO_BACK_US
    lines = header("model", "T", "sm100 us", "gate and up us", "down us", "sm80 us", "floor us", "published layer us")
    for name, (*sizes, published) in MIXTURES.items():
        for t in TOKENS:
            up, down = next(found), next(found)
            first, second, portable = up.gated - less, down.own - less, up.portable + down.portable - 2 * less
            times = (first + second, first, second, portable, sm120_model.mixture_floor_us(B200, t, *sizes))
            lines.append(row(name, t, *(f"{us:.1f}" for us in times), published.get(t, "")))
    return lines


def experts_a16_table() -> list[str]:
    """The same in W4A16, with a bf16 A, by the plan that is taken: of sm100's kernels for few rows or of sm80's. The
    activation is left out: sm80's launches have none."""
    gpu, cases = len(sm120_model.GPUS), []
    for groups, choices, inner, hidden, _ in MIXTURES.values():
        for t in TOKENS:
            rows = t * choices
            cases += [(gpu, rows, inner, hidden, groups, 2, 1), (gpu, rows, hidden, inner, groups, 1, 1)]
    found, less = iter(sm120_model.modelled(cases)), sm120_model.BACK_TO_BACK_US
    lines = header(
        "model", "T", "taken us", "gate and up us", "down us", "loads at DRAM's rate us", "sm80 us", "floor us"
    )
    for name, (*sizes, _) in MIXTURES.items():
        for t in TOKENS:
            both = next(found), next(found)
            taken = [min((x.own, "sm100"), (x.portable, "sm80")) for x in both]
            portable = sum(x.portable - less for x in both)
            unlimited = sum(min(x.unlimited, x.portable) - less for x in both)
            floor = sm120_model.mixture_floor_us(B200_16_BIT, t, *sizes)
            cells = (f"{us - less:.1f} ({backend})" for us, backend in taken)
            total = sum(us - less for us, _ in taken)
            lines.append(row(name, t, f"{total:.1f}", *cells, *(f"{us:.1f}" for us in (unlimited, portable, floor))))
    return lines


# M, N, K of the competition's ranked shapes; its speed of light, and the best published entry by shape (guag's, as
# teelaitila/nvfp4_gpumode records it), in us.
DUAL = (
    ((256, 4096, 7168), 4.708, 12.4),
    ((512, 4096, 7168), 8.714, 15.3),
    ((256, 3072, 4096), 2.125, 10.0),
    ((512, 3072, 7168), 6.535, 14.4),
)


def dual_table(c: Struct) -> list[str]:
    """The file for nvfp4_dual_gemm, which launches without dependent launch."""
    found = [c_model.dense_gated(c_model.without_pdl(c), *sizes) for sizes, _, _ in DUAL]
    lines = header("M x N x K", "rows of a tile", "modelled us", "best published entry us", "speed of light us")
    for (sizes, light, published), (us, tile) in zip(DUAL, found):
        lines.append(row("x".join(map(str, sizes)), tile, f"{us:.1f}", f"{published:.1f}", f"{light:.2f}"))
    means = [geomean(column) for column in ((us for us, _ in found), *zip(*(other for _, *other in DUAL)))]
    return [*lines, row("geometric mean", "", f"{means[0]:.1f}", f"{means[2]:.1f}", f"{means[1]:.2f}")]


def tables(rows: list[Config], c: Struct) -> dict[str, list[str]]:
    """The tables of b200_model.md. model_b200.py prints the rest: more shapes, parts, --all plans, --peers,
    --sensitivity, --worst, --configurations, --constants."""
    return {
        "goal": goal_table(rows, c),
        "submitted": submitted_table(RANKED, rows, c),
        "ranked": shape_table(RANKED, rows, c),
        "mixed": mixed_table(rows, c),
        "experts": experts_table(),
        "experts-a16": experts_a16_table(),
        "dual": dual_table(c),
        "peers": peer_summary(),
        "sensitivity": sensitivity_table(rows, c, 5),
    }


def write(rows: list[Config], c: Struct, path: Path = DOCUMENT) -> None:
    """Puts each table between its markers in the document."""
    text = path.read_text()
    for name, lines in tables(rows, c).items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        head, rest = text.split(begin)
        text = head + begin + "\n".join(lines).rstrip() + "\n" + end + rest.split(end, 1)[1]
    path.write_text(text)
