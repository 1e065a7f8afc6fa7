"""Compares a run on an H200 or an H100 with the goals of the Hopper kernels and with published W4A16 kernels.

    python benchmarks/goals.py [RUN.json]      default: results/h200.json
    python benchmarks/goals.py H200.json H100.json --csv log/hopper.csv

Times in us: single-call, cold L2, an event pair of 1.3 us included. The goals are for an H200. The W4A16 kernels
multiply fp16 activations with repacked NVFP4 weights; each figure is the best configuration on an H200. They were
measured in another run, so no ratio to them is printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import recorded
from monotone import gpu_of

from nvfp4.bench import report
from nvfp4.bench.shapes import Shape, task_shapes
from nvfp4.cli import show

DEFAULT = Path(__file__).resolve().parent / "results/h200.json"
DEVICES = ("H200", "H100")  # in the name of the GPU
BACKEND = "sm90"  # in the names of the kernels

# a step of a dense model in vLLM on an H100, what it is beside, how many times as fast it is to be
VLLM_STEPS = [
    ("decode, batch of 1", "vLLM Marlin", 1.2),
    ("decode, batch of 8", "vLLM Marlin", 1.2),
    ("decode, batch of 32", "vLLM Marlin", 1.15),
    ("decode, batch of 128", "vLLM Marlin", 1.4),
    ("decode, batch of 128", "bf16", 1.1),
    ("prefill, 8 x 1024", "bf16", 1.0),
]

# M: us of the ranked N x K
OF_RANKED = {
    1: (22.5, 9.8, 7.6),
    2: (24.0, 10.5, 8.2),
    4: (24.0, 10.5, 8.2),
    8: (25.0, 11.0, 9.0),
    16: (25.0, 11.0, 9.0),
    32: (28.0, 12.5, 10.0),
    64: (31.0, 14.0, 11.0),
    128: (45.5, 18.0, 13.0),
    256: (84.0, 26.0, 17.0),
}
GOALS = {shape: us for m, row in OF_RANKED.items() for shape, us in zip(task_shapes([m]), row)}
GOALS[Shape(2304, 4608, 7168)] = 195.0
MEAN_GOAL_US = 22.0  # geometric mean of the ranked shapes at M = 128
CHAIN_GOAL_US = 18.5  # the same of layers in a CUDA graph, with constant_b (chain.py)

W4A16 = ("Marlin W4A16", "Humming W4A16")  # the columns of PUBLISHED
PUBLISHED = {
    Shape(1, 7168, 16384): (36.4, 36.5),
    Shape(1, 4096, 7168): (16.3, 16.9),
    Shape(1, 7168, 2048): (12.3, 13.0),
    Shape(16, 7168, 16384): (38.0, 38.7),
    Shape(16, 4096, 7168): (17.1, 16.9),
    Shape(16, 7168, 2048): (13.0, 14.0),
    Shape(64, 7168, 16384): (64.1, 47.3),
    Shape(64, 4096, 7168): (25.1, 18.8),
    Shape(64, 7168, 2048): (20.1, 15.5),
    Shape(128, 7168, 16384): (100.5, 58.9),
    Shape(128, 4096, 7168): (38.5, 23.4),
    Shape(128, 7168, 2048): (24.9, 19.1),
    Shape(256, 7168, 16384): (183.0, 105.7),
    Shape(256, 4096, 7168): (57.6, 34.5),
    Shape(256, 7168, 2048): (34.8, 24.4),
    Shape(2304, 4608, 7168): (468.0, 215.0),
}


def load(path: Path) -> report.Report:
    """A run that the goals apply to: on this GPU, the first implementation with kernels of this backend."""
    run = report.load(path)
    kernels = [result["implementations"][0]["kernel"] for result in run["results"]]
    here = any(device in run["conditions"]["hardware"] for device in DEVICES)
    if not here or not any(BACKEND in kernel for kernel in kernels):
        raise show.CommandError(f"{path}: is not a run of the {BACKEND} kernels on an {' or an '.join(DEVICES)}")
    return run


def median_us(result: dict[str, Any]) -> float:
    return float(result["implementations"][0]["seconds"]["single_call"]["median"]) * 1e6


def goal_cell(shape: Shape, us: float) -> str:
    """The goal in us, and how far the time is above it."""
    if shape not in GOALS:
        return "-"
    miss = us / GOALS[shape] - 1
    return f"{GOALS[shape]:g} ({'met' if miss <= 0 else f'missed by {miss:.0%}'})"


def table(run: report.Report) -> tuple[list[str], list[list[str]]]:
    columns = ["<M x N x K", f"{report.names(run)[0]}, us", "goal, us", *(f"{name}, us" for name in W4A16)]
    rows = []
    for result in run["results"]:
        shape, us = report.shape_of(result), median_us(result)
        published = [f"{value:g}" for value in PUBLISHED.get(shape, ())] or ["-"] * len(W4A16)
        rows.append([str(shape), show.digits(us), goal_cell(shape, us), *published])
    return columns, rows


def means(run: report.Report) -> str:
    """Geometric means over the ranked shapes at M = 128; "" if the run lacks one of them."""
    wanted = task_shapes([report.RANKED_M])
    times = {report.shape_of(result): median_us(result) for result in run["results"]}
    if any(shape not in times for shape in wanted):
        return ""
    values = {report.names(run)[0]: [times[shape] for shape in wanted]}
    values |= {name: [PUBLISHED[shape][i] for shape in wanted] for i, name in enumerate(W4A16)}
    parts = [f"{name} {show.digits(statistics.geometric_mean(column))} us" for name, column in values.items()]
    return f"geometric means, ranked shapes at M = {report.RANKED_M}: {', '.join(parts)}"


def log(runs: list[report.Report]) -> list[list[object]]:
    """A header and a row for each shape: its goal, what is published, and of each run that has it the times in us: ours
    with 10th and 90th percentile and back to back, then the single calls of the others."""
    others = ("sm80", "cuBLAS fp16", "cuBLAS fp8")
    header = ["m", "n", "k", "goal (H200)", *(f"{name} (H200)" for name in W4A16)]
    names = ("us", "p10", "p90", "back-to-back", *others)
    header += [f"{gpu_of(run)} {name}" for run in runs for name in names]
    rows: list[list[object]] = [header]
    found = [{report.shape_of(result): result for result in run["results"]} for run in runs]
    for shape in max(found, key=len):
        row = [shape.m, shape.n, shape.k, GOALS.get(shape, ""), *PUBLISHED.get(shape, [""] * len(W4A16))]
        for results in found:
            if shape not in results:
                row += [""] * len(names)
                continue
            ours, *rest = (one["seconds"] for one in results[shape]["implementations"])
            single = [ours["single_call"][name] for name in ("median", "p10", "p90")]
            seconds = [*single, ours["back_to_back"]["median"], *(one["single_call"]["median"] for one in rest)]
            row += [f"{1e6 * s:.4g}" for s in seconds]
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "runs", nargs="*", type=Path, default=[DEFAULT], metavar="RUN.json", help="of `nvfp4 bench --json`"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table in markdown")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the times of all runs side by side instead")
    options = parser.parse_args()
    try:
        runs = [load(path) for path in options.runs]
        if options.csv:
            cards = ", ".join(run["conditions"]["hardware"] for run in runs)
            recorded.write(options.csv, log(runs), cards)
            return 0
    except show.CommandError as error:
        print(f"goals.py: {error}", file=sys.stderr)
        return 2
    for run in runs:
        if options.markdown:
            print(show.markdown(*table(run)))
        else:
            show.table(f"Single-call (cold L2) times against the goals: {run['conditions']['hardware']}", *table(run))
        if text := means(run):
            print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
