"""Tables of the Hopper kernels for the pages, from the CSV files of log/. readme_tables.py writes them.

    layers    README.md: layers beside vLLM's Marlin and bf16 on an H100, quantization included
    marlin    README.md of this folder: every figure of that run
    vllm      the same page: the GPU's time for a step of a model in vLLM, on an H100
    vllm_steps  the same page: from step to step, with the host
    vllm_goals  the same page: the GPU's time beside each goal
    vllm_h200   the same page: the GPU's time, on an H200
    fused_quantizers  the same page: norms and activations that quantize
    experts   the same page: layers of experts, beside Marlin and bf16 on an H100
    experts_humming  the same page: layers, and their products beside Humming's, on an H200
    goals     the same page: every shape beside its goal, cuBLAS and published kernels
    ratios    the same page: back-to-back calls, and speed-ups of the H200's run (results/h200.json)
    targets   the same page: each goal, what was measured, met or missed
    humming_layers  the same page: layers beside Humming on an H200
    skewed    the same page: layers of experts under skewed routing, and products beside Humming's

Only the goals are typed in (goals.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

import monotone
import recorded
from goals import CHAIN_GOAL_US, GOALS, MEAN_GOAL_US, OF_RANKED, VLLM_STEPS, W4A16

from nvfp4.bench import report
from nvfp4.bench.shapes import Shape, task_shapes
from nvfp4.cli import show

LOG = Path(__file__).resolve().parent / "log"
RESULTS = LOG.parent / "results"
GPUS = ("h200", "h100")
CUBLAS = ("cuBLAS fp16", "cuBLAS fp8")
LAYERS = {  # columns of marlin_h100.csv: in README.md
    "quantize + W4A4": "**W4A4**, quantization included",
    "W4A16": "**W4A16**",
    "Marlin": "Marlin (W4A16)",
    "bf16": "bf16",
}
LARGE = Shape(2304, 4608, 7168)
SQUARE = Shape(8192, 8192, 8192)  # its goal: cuBLAS fp16 in the same run
MONOTONE_GOAL = 0.03

Row = dict[str, str]


def read(name: str) -> list[Row]:
    return recorded.rows(LOG / name)


def measured() -> dict[Shape, Row]:
    return {Shape(int(row["m"]), int(row["n"]), int(row["k"])): row for row in read("hopper.csv")}


def goal_of(row: Row) -> float:
    return float(row["goal (H200)"])


def over(us: float, goal: float) -> float:
    """How far a time is above its goal, in per cent; at most 0: met."""
    return 100 * (us / goal - 1)


def beside_marlin() -> Iterable[tuple[Shape, Row]]:
    for row in read("marlin_h100.csv"):
        yield Shape(int(row["m"]), int(row["n"]), int(row["k"])), row


def layers() -> str:
    """Back-to-back calls."""
    lines = [[str(shape), *(row[f"{name} back-to-back"] for name in LAYERS)] for shape, row in beside_marlin()]
    return show.markdown(["<M x N x K", *LAYERS.values()], lines)


def marlin() -> str:
    """Single calls/back-to-back calls."""
    names = ("W4A4", *LAYERS)
    lines = [
        [str(shape), *(f"{row[f'{name} us']}/{row[f'{name} back-to-back']}" for name in names)]
        for shape, row in beside_marlin()
    ]
    return show.markdown(["<M x N x K", *names], lines)


def vllm() -> str:
    """The GPU's milliseconds for a step of a model: the median of the rounds."""
    return steps("gpu", 3, spread=False)


def vllm_h200() -> str:
    """The fastest round: some rows lack the GPU's time in one."""
    return steps("gpu least", 3, spread=False, file="vllm_h200.csv")


def fused_quantizers() -> str:
    """us of a part, and of a step of 16 layers."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in read("fused_quantizers_h200.csv"):
        found.setdefault((row["what"], row["rows"]), {})[row["way"]] = show.digits(float(row["us"]))
    names = list(dict.fromkeys(way for row in found.values() for way in row))
    return show.markdown(
        ["<what", "rows", *names], [[*key, *(row.get(name, "-") for name in names)] for key, row in found.items()]
    )


def quantize_gemm() -> str:
    """us of the product alone, of two calls and of one."""
    names = ("gemm, constant_b", "quantize and gemm, constant_b", "quantize_gemm us")
    found: dict[int, dict[str, str]] = {}
    for row in (row for row in read("constant_b.csv") if row["gpu"] == "h200"):
        cell = " / ".join(f"{float(row[name]):.1f}" for name in names)
        found.setdefault(int(row["M"]), {})[row["NxK"]] = cell
    shapes = list(found[8])
    return show.markdown(
        ["rows", *shapes], [[str(m), *(found[m].get(shape, "-") for shape in shapes)] for m in sorted(found)]
    )


def vllm_steps() -> str:
    """Milliseconds from one step to the next: the median of the rounds (least to most)."""
    return steps("ms", 2, spread=True)


def steps(what: str, digits: int, spread: bool, file: str = "vllm_h100.csv") -> str:
    """A column for each engine."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in read(file):
        middle, *ends = (
            f"{float(row[what + key]):.{digits}f}" for key in (("", " least", " most") if spread else ("",))
        )
        cell = f"{middle} ({'..'.join(ends)})" if spread else middle
        found.setdefault((row["model"], row["what"]), {})[row["run"]] = cell
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    return show.markdown(
        ["<model", "<step", *names], [[*key, *(row.get(name, "-") for name in names)] for key, row in found.items()]
    )


def vllm_goals() -> str:
    """How many times as fast a step of the dense model is, by the GPU's time."""
    us = {(row["what"], row["run"]): float(row["gpu"]) for row in read("vllm_h100.csv") if row["model"] == "llama"}
    names = ("nvfp4 W4A4", "nvfp4 W4A16")
    lines = []
    for what, beside, goal in VLLM_STEPS:
        found = [us[what, beside] / us[what, name] for name in names]
        cells = [f"{ratio:.3f} {'met' if ratio >= goal else 'missed'}" for ratio in found]
        lines.append([what, beside, f"{goal:g}", *cells])
    return show.markdown(["<step", "<beside", "goal", *names], lines)


def experts() -> str:
    """Layers of experts, of one run of `bench --set experts --against marlin`."""
    names = (
        "floor us",
        "layer us",
        "layer W4A4 us",
        "vLLM Marlin W4A16 us",
        "torch bf16 us",
        "over Marlin",
        "over bf16",
    )
    return show.markdown(
        ["<experts of", "tokens", "hit", *names],
        [[row[name] for name in ("model", "tokens", "hit", *names)] for row in read("experts_h100.csv")],
    )


def experts_humming() -> str:
    """Layers, and products beside Humming's, of one run of `bench --set experts --against humming`."""
    labels = {
        "layer": "layer",
        "gate and up": "gate and up",
        "gate and up, silu": "with silu",
        "Humming W4A16 gate and up": "Humming",
        "down": "down",
        "Humming W4A16 down": "Humming's down",
    }
    rows = [
        [row[name] for name in ("model", "tokens", *(f"{name} us" for name in labels))]
        for row in read("experts_humming_h200.csv")
    ]
    return show.markdown(["<experts of", "tokens", *labels.values()], rows)


def humming_layers() -> str:
    names = ("W4A4", "W4A16", "Humming", "bf16")
    rows = [
        [str(Shape(*(int(row[size]) for size in "mnk"))), *(row[f"{name} back-to-back"] for name in names)]
        for row in read("layers_humming_h200.csv")
    ]
    return show.markdown(["<M x N x K", *names], rows)


def skewed() -> str:
    """A cell has the layer's time, then how many times as long Humming's gate and up, and its down, take as ours."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in read("experts_skew_h200.csv"):
        if row["tokens"] not in ("32", "512", "2048"):
            continue
        ratios = [
            f"{float(theirs) / float(row[ours]):.2f}" if (theirs := row[f"Humming {name}"]) != "fails" else "-"
            for ours, name in (("gate and up, silu", "gate and up"), ("down", "down"))
        ]
        cell = f"{float(row['layer']):.0f}; {', '.join(ratios)}"
        found.setdefault((row["model"], row["tokens"]), []).append(cell)
    columns = ["<experts of", "tokens", "skew 0", "0.7", "1.4", "one expert"]
    return show.markdown(columns, [[*key, *cells] for key, cells in found.items()])


def goals() -> str:
    """Cells a/b/c are of the ranked N x K."""
    rows = measured()
    columns = ["<M", "goal"]
    for gpu in GPUS:
        columns += [gpu.upper(), "over, %", "fp16", "fp8 *"]
    columns += [name.removesuffix(" W4A16") for name in W4A16]

    def line(label: str, cells: Callable[[str], list[float]], targets: list[float]) -> list[str]:
        """`cells` gives the values of a column."""
        made = [label, "/".join(f"{goal:g}" for goal in targets)]
        for gpu in GPUS:
            ours = cells(f"{gpu} us")
            late = [f"{round(over(us, goal))}" for us, goal in zip(ours, targets, strict=bool(ours))]
            made += [joined(ours), "/".join(late) or "-"]
            made += [joined(cells(f"{gpu} {name}")) for name in CUBLAS]
        return made + [joined(cells(f"{name} (H200)")) for name in W4A16]

    def of(shapes: list[Shape]) -> Callable[[str], list[float]]:
        return lambda column: [float(rows[shape][column]) for shape in shapes if rows[shape][column]]

    def mean(column: str) -> list[float]:
        return [statistics.geometric_mean(of(task_shapes([report.RANKED_M]))(column))]

    lines = [line(str(m), of(task_shapes([m])), list(targets)) for m, targets in OF_RANKED.items()]
    lines.append(line(f"{report.RANKED_M}, mean", mean, [MEAN_GOAL_US]))
    lines.append(line(str(LARGE), of([LARGE]), [GOALS[LARGE]]))
    return show.markdown(columns, lines)


def ratios() -> str:
    """Medians of ratios of one round each; the H100's run has times alone."""
    run, rows = report.load(RESULTS / "h200.json"), measured()
    results = {report.shape_of(result): result for result in run["results"]}
    columns = ["<M", "floor", *(f"{gpu.upper()} back-to-back" for gpu in GPUS)]
    columns += ["over fp16", "over fp8 *", "back-to-back over fp16"]
    lines = []
    for label, shapes in [*((str(m), task_shapes([m])) for m in OF_RANKED), (str(LARGE), [LARGE])]:
        if shapes[0] not in results:
            continue
        line = [label, joined(1e6 * report.floor(run, shape) for shape in shapes)]
        ours = [results[shape]["implementations"][0]["seconds"]["back_to_back"]["median"] for shape in shapes]
        line += [joined(1e6 * each for each in ours)]
        line += [joined(float(rows[shape]["h100 back-to-back"]) for shape in shapes)]
        for mode, place in (("single_call", -2), ("single_call", -1), ("back_to_back", -2)):
            entries = [results[shape]["implementations"][place] for shape in shapes]
            line.append(joined(entry["ratio"][mode]["median"] for entry in entries))
        lines.append(line)
    return show.markdown(columns, lines)


def joined(values: Iterable[float]) -> str:
    return "/".join(show.digits(us) for us in values) or "-"


def targets() -> str:
    columns = ["<goal", "<H200", "<H100", "<from"]
    lines = [
        ["each single call below", *map(single_calls, GPUS), "hopper.csv"],
        [
            f"M = {report.RANKED_M} in a graph, `constant_b`: geometric mean {CHAIN_GOAL_US:g}",
            *map(chain, GPUS),
            "constant_b.csv",
        ],
        [f"{SQUARE} at most cuBLAS fp16", *map(square, GPUS), "hopper.csv"],
        [f"M up to 512: at most {MONOTONE_GOAL:.0%} over any larger M", *map(monotonicity, GPUS), "monotone.csv"],
        ["chosen plan: at most 5% over the fastest", *map(regret, GPUS), "sm90_regret.csv"],
    ]
    linked = [[*line[:-1], f"[csv](log/{line[-1]})"] for line in lines]
    return show.markdown(columns, linked)


def single_calls(gpu: str) -> str:
    rows = [row for row in measured().values() if row["goal (H200)"] and row[f"{gpu} us"]]
    found = [over(float(row[f"{gpu} us"]), goal_of(row)) for row in rows]
    late = [excess for excess in found if excess > 0]
    others = f"; {min(late):.0f} to {max(late):.0f}% over" if late else ""
    return f"{verdict(max(found))}: {len(found) - len(late)} of {len(found)} met{others}"


def verdict(excess: float) -> str:
    return "met" if excess <= 0 else "missed"


def chain(gpu: str) -> str:
    """The verdict on a chain, of the products alone."""
    ranked = {f"{shape.n}x{shape.k}" for shape in task_shapes([report.RANKED_M])}
    rows = [row for row in read("constant_b.csv") if (row["gpu"], row["M"]) == (gpu, str(report.RANKED_M))]
    rows = [row for row in rows if row["NxK"] in ranked]
    us = statistics.geometric_mean(float(row["gemm, constant_b"]) for row in rows)
    excess = over(us, CHAIN_GOAL_US)
    return f"{verdict(excess)}: {show.digits(us)}, {excess:.0f}% over"


def square(gpu: str) -> str:
    row = measured()[SQUARE]
    us, goal = float(row[f"{gpu} us"]), float(row[f"{gpu} {CUBLAS[0]}"])
    return f"{verdict(over(us, goal))}: {show.digits(us)} for {show.digits(goal)}"


def monotonicity(gpu: str) -> str:
    found = [more for points in monotone.logged()[gpu].values() for more, _, _ in monotone.excess(points)]
    late = sum(more > MONOTONE_GOAL for more in found)
    return f"{verdict(late)}: {late} of {len(found)} above, at most {max(found):.0%}"


def regret(gpu: str) -> str:
    """The verdict on all products that were measured in graphs."""
    rows = [row for row in read("sm90_regret.csv") if (row["card"], row["times of"]) == (gpu, "graphs")]
    late, count = (sum(int(row[name]) for row in rows) for name in ("above 5 %", "count"))
    mean = sum(int(row["count"]) * float(row["mean, %"]) for row in rows) / count
    worst = max(rows, key=lambda row: float(row["most, %"]))
    return (
        f"{verdict(late)}: {late} of {count} above, at most {float(worst['most, %']):.1f}% ({worst['worst']}, "
        f"{worst['products']}); mean {mean:.2f}%"
    )


TABLES: dict[str, Callable[[], str]] = {
    "layers": layers,
    "marlin": marlin,
    "vllm": vllm,
    "vllm_steps": vllm_steps,
    "vllm_goals": vllm_goals,
    "vllm_h200": vllm_h200,
    "fused_quantizers": fused_quantizers,
    "quantize_gemm": quantize_gemm,
    "experts": experts,
    "experts_humming": experts_humming,
    "goals": goals,
    "ratios": ratios,
    "targets": targets,
    "humming_layers": humming_layers,
    "skewed": skewed,
}
