"""Tables of the B200 model: published figures against it, our shapes, which configurations win, what each constant is
worth. Printed by model_b200.py; --write puts them into b200_model.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import c_model
from c_model import Config, Struct
from model_b200 import Plan, Shape, Times, best, ceil_div, configs, constants, plans, times, work_of

DOCUMENT = Path(__file__).resolve().parent / "b200_model.md"
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
GOAL_DEPENDENT, GOAL_PLAIN = 5.3, 8.5


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

    name: str
    shape: Shape
    us: float
    work: Struct  # sm100_work
    time: Callable[[Times], float]


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
    acts_read = acts * ceil_div(shape.n, rows_n) / multicast
    scales_again = tiles * cta_group * tile_atoms * atoms - ceil_div(shape.n, atom_rows) * atoms
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
        tcgen05_cp=stage_atoms * (1 + tile_atoms),
        stores_as=c_model.number("SM100_BULK_STORES"),
        stage_bytes=(rows_m + cta_n) * stage_k / 2 + stage_atoms * atom_bytes * (1 + tile_atoms),
        ingress=(present + cta_n) * row_bytes + (1 + tile_atoms) * atoms,
        dram=weights + acts,
        l2=weights * ceil_div(shape.m, rows_m * cta_group) + acts_read + max(0.0, scales_again),
        stores=shape.m * shape.n * 2,
        store_bytes=present * rows_n * 2,
    )


def plain(t: Times) -> float:
    return t.call.plain


def kernel_only(t: Times) -> float:
    return t.call.kernel


def flashinfer(shape: Shape) -> Struct:
    """Its tuner takes the fastest tile: here the fastest by this model of its tiles, without swap_ab."""
    menu = [peer_work(shape, 128, n, 227 * 1024 // (20480 + 128 * n)) for n in (64, 128)]
    menu += [peer_work(shape, 128, n, 227 * 1024 // (20480 + 64 * n), cta_group=2, cta_n=n // 2) for n in (64, 128)]
    return min(menu, key=lambda work: kernel_only(times(work, constants())))


def peers() -> list[Peer]:
    found = []
    for shape, lt, template, naive in zip(RANKED, (22.6, 12.5, 8.55), (96.5, 51.6, 36.9), (459.0, 211.0, 82.7)):
        pair = peer_work(shape, 128, 128, 7, cta_group=2, cta_n=64)
        found.append(Peer("cuBLASLt, pair 256x128, half of M empty", shape, lt, pair, plain))
        found.append(Peer("CuTe DSL template, 128x128, 1 stage", shape, template, peer_work(shape, 128, 128, 1), plain))
        found.append(Peer("naive PTX, 128x128, 1 stage", shape, naive, peer_work(shape, 128, 128, 1), plain))
    for shape, guess in zip(RANKED, (17.0, 9.3, 7.8)):
        found.append(
            Peer(
                "winners (a guess), 128x64, A to 4 CTAs", shape, guess, peer_work(shape, 128, 64, 7, multicast=4), plain
            )
        )
    cold = {(64, 7168, 2304): 6.34, (256, 7168, 2304): 7.36, (64, 4608, 7168): 10.18, (256, 4608, 7168): 10.66}
    cold |= {(64, 5120, 16384): 15.92, (64, 8192, 7168): 11.68, (64, 8192, 28672): 33.39, (64, 7168, 256): 4.00}
    for size, us in cold.items():
        shape = Shape(*size)
        found.append(Peer("FlashInfer, CuTe DSL, tile by this model", shape, us, flashinfer(shape), kernel_only))
    # BF16, so counted as NVFP4 of as many bytes: a kernel bound by DRAM takes equally long.
    for shape, split, us in (
        (Shape(1, 8192, 464), 1, 1.54),
        (Shape(1, 256, 29120), 8, 3.52),
        (Shape(1, 4608, 29120), 4, 13.6),
    ):
        narrow = Config("128x16", 1, 16, 8, 1, 0)
        work = work_of(shape, narrow, split, swap_ab=True)
        name = f"FlashInfer, lean cluster kernel, 128 weights a CTA, split {split}"
        found.append(Peer(name, shape, us, work, kernel_only))
    return found


def slope_lines() -> list[str]:
    """Microseconds for a further 256 along K of the kernels with one stage, from the first shape and the third: their
    fixed part is not of the GPU alone."""
    lines = header("one stage, 128x128: a further 256 along K", "published us", "model us", "model error %")
    stages = (RANKED[0].k - RANKED[2].k) / c_model.number("SM100_STAGE_K")
    own = [times(peer_work(shape, 128, 128, 1), constants()).call.plain for shape in (RANKED[0], RANKED[2])]
    for name, first, third in (("CuTe DSL template", 96.5, 36.9), ("naive PTX", 459.0, 82.7)):
        published, us = (first - third) / stages, (own[0] - own[1]) / stages
        lines.append(row(name, published, us, f"{100 * (us / published - 1):+.0f}"))
    return lines


def peer_table() -> list[str]:
    lines = header(
        "kernel, tiling as known or assumed", "M x N x K", "published us", "model us", "model error %", "bound by"
    )
    for peer in peers():
        t = times(peer.work, constants())
        us = peer.time(t)
        lines.append(row(peer.name, peer.shape, peer.us, us, f"{100 * (us / peer.us - 1):+.0f}", t.bound_by))
    return lines


# ---- ours ----


def plan_row(plan: Plan, plain_us: float) -> str:
    parts, call = plan.times.parts, plan.times.call
    return row(
        plan.shape, plan, call.dependent, plain_us, plan.times.bound_by, parts.first_byte,
        call.mainloop + parts.again, parts.last_stage, parts.reduction, parts.epilogue, call.exposed,
    )  # fmt: skip


COLUMNS = (
    "M x N x K", "configuration", "with PDL us", "without PDL us", "bound by", "first byte us", "main loop us",
    "last stage us", "partial sums us", "stores us", "prologue us",
)  # fmt: skip


def shape_table(shapes: Iterable[Shape], rows: list[Config], c: Struct) -> list[str]:
    lines = header(*COLUMNS)
    for shape in shapes:
        plain_us = min(plan.times.call.plain for plan in plans(shape, rows, c))
        lines.append(plan_row(best(shape, rows, c), plain_us))
    return lines


def all_table(shape: Shape, rows: list[Config], c: Struct, count: int) -> list[str]:
    lines = header(*COLUMNS)
    ranking = sorted(plans(shape, rows, c), key=lambda plan: plan.us)
    return lines + [plan_row(plan, plan.times.call.plain) for plan in ranking[:count]]


def ranked(rows: list[Config], c: Struct) -> float:
    """Geometric mean over the three shapes, back to back with dependent launch."""
    return geomean(best(shape, rows, c).us for shape in RANKED)


def ranked_plain(rows: list[Config], c: Struct) -> float:
    return geomean(min(plan.times.call.plain for plan in plans(shape, rows, c)) for shape in RANKED)


def goal_table(rows: list[Config], c: Struct) -> list[str]:
    lines = header("ranked shapes, geometric mean", "model us", "goal us")
    lines.append(row("back-to-back, with PDL", ranked(rows, c), GOAL_DEPENDENT))
    late = c.copy(dependent_gap_us=c.dependent_gap_us + c.early_trigger_us)
    lines.append(row("the same, `launch_dependents` before the wait", ranked(rows, late), GOAL_DEPENDENT))
    lines.append(row("back-to-back, without PDL", ranked_plain(rows, c), GOAL_PLAIN))
    floors = [shape_floor(shape, c) for shape in RANKED]
    lines.append(row("floor: DRAM alone, " + " / ".join(f"{floor:.2f}" for floor in floors), geomean(floors), ""))
    return lines


def shape_floor(shape: Shape, c: Struct) -> float:
    work = work_of(shape, configs()[0])
    return (work.dram + work.stores) / (c.dram_tb_s * 1e6)


# ---- sensitivity ----


def sensitivity(rows: list[Config]) -> list[tuple[float, str, float, float]]:
    """(most change in %, constant, geometric mean at -20 %, at +20 %), the configurations chosen anew."""
    base = ranked(rows, constants())
    found = []
    for constant in c_model.sm100_constants():
        low, high = (ranked(rows, constants(**{constant.name: constant.value * factor})) for factor in (0.8, 1.2))
        found.append((100 * max(abs(low / base - 1), abs(high / base - 1)), constant.name, low, high))
    return sorted(found, reverse=True)


def sensitivity_table(rows: list[Config]) -> list[str]:
    lines = header("constant", "geomean at -20 %, us", "geomean at +20 %, us", "largest change %")
    for change, name, low, high in sensitivity(rows):
        lines.append(row(name, low, high, f"{change:.1f}"))
    return lines


# What measurements would most likely show instead, where a constant is a guess between two sources.
SCENARIOS = (
    ("a load of tensor memory takes 420 cycles", {"tcgen05_ld_cycles": 420.0}),
    ("an SM takes in 46 B/clk, the most seen directly", {"ingress_b_clk": 46.0}),
    ("L2 delivers 8.35 TB/s, all that was seen of it alone", {"l2_tb_s": 8.35}),
    ("L2 is no limit", {"l2_tb_s": 1000.0}),
    ("gaps are CUB's 1.64 and 4.09 less an L2 latency", {"dependent_gap_us": 1.44, "plain_gap_us": 3.89}),
    ("the gap is CUB's 1.64 less its body on an H200", {"dependent_gap_us": 0.59}),
    ("SMs exchange at 16 B/clk", {"remote_b_clk": 16.0}),
    ("tcgen05.cp takes 75 cycles beside the MMAs", {"tcgen05_cp_cycles": 75.0}),
)


def scenario_table(rows: list[Config], base: Struct) -> list[str]:
    lines = header("if instead", "geomean with PDL us", "geomean without PDL us")
    lines.append(row("as above", ranked(rows, base), ranked_plain(rows, base)))
    for name, changes in SCENARIOS:
        c = base.copy(**changes)
        lines.append(row(name, ranked(rows, c), ranked_plain(rows, c)))
    return lines


# ---- configurations ----

OTHER_CONFIGS = (
    Config("256x128, 6 stages", 2, 128, 6, 1, 0),
    Config("256x128, 3 stages", 2, 128, 3, 1, 0),
    Config("256x64, 3 stages", 2, 64, 3, 1, 0),
    Config("256x64, 6 stages", 2, 64, 6, 1, 0),
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
    return header("constant", "value", "unit", "source") + [
        row(c.name, f"{c.value:g}", c.unit, c.source) for c in c_model.sm100_constants()
    ]


def tables(rows: list[Config], c: Struct) -> dict[str, list[str]]:
    """Those of b200_model.md. model_b200.py prints the rest: more shapes, --all plans, --peers, --sensitivity,
    --configurations."""
    return {
        "goal": goal_table(rows, c),
        "ranked": shape_table(RANKED, rows, c),
        "slopes": slope_lines(),
        "scenarios": scenario_table(rows, c),
    }


def write(rows: list[Config], c: Struct, path: Path = DOCUMENT) -> None:
    """Puts each table between its markers in the document."""
    text = path.read_text()
    for name, lines in tables(rows, c).items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        head, rest = text.split(begin)
        text = head + begin + "\n".join(lines).rstrip() + "\n" + end + rest.split(end, 1)[1]
    path.write_text(text)
