"""The report of `nvfp4 bench --tune` as tables."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from nvfp4.bench import timing
from nvfp4.bench.plans import Candidate, short
from nvfp4.bench.shapes import Shape
from nvfp4.cli import show

COLUMNS = [
    "rank by model",
    "<kernel",
    "<tile",
    "split-K",
    "prefetch",
    "CTAs an SM",
    "modelled, us",
    "measured, us",
    "over fastest",
    "over model",
]


def rows(result: dict[str, Any]) -> list[list[str]]:
    """The table of one shape: by time, untimed plans last."""
    medians = {c["rank"]: statistics.median(c["samples_us"]) for c in result["candidates"] if c["samples_us"]}
    best = medians.get(result["fastest"])
    lines = []
    for candidate in sorted(result["candidates"], key=lambda c: medians.get(c["rank"], math.inf)):
        lines.append(
            [
                str(candidate["rank"] + 1),
                short(candidate["kernel"]),
                f"{candidate['tile_m']}x{candidate['tile_n']}{', swap_ab' if candidate['swap_ab'] else ''}",
                str(candidate["split_k"]),
                str(candidate["prefetch_stages"] or "-"),
                str(candidate["ctas_per_sm"] or "-"),
                f"{candidate['modelled_us']:.2f}",
                *measured(candidate, medians.get(candidate["rank"]), best),
            ]
        )
    return lines


def measured(candidate: dict[str, Any], median: float | None, best: float | None) -> list[str]:
    if candidate["wrong"] or median is None or best is None:
        return ["WRONG", "", ""]
    spread = timing.Spread.of(candidate["samples_us"])
    figures = f"{spread.median:.2f} ({spread.p10:.2f}..{spread.p90:.2f})"
    return [figures, f"{median / best:.2f}", f"{median / candidate['modelled_us']:.2f}"]


def summary(result: dict[str, Any]) -> list[str]:
    by_rank = {candidate["rank"]: candidate for candidate in result["candidates"]}
    lines = [f"WRONG: {Candidate(c['rank'], c)}: {c['wrong']}" for c in result["candidates"] if c["wrong"]]
    if result["fastest"] is None:
        return [*lines, "No plan gave a correct result."]
    best, loss = by_rank[result["fastest"]], result["loss"]
    name = Candidate(best["rank"], best)
    if best["rank"] == 0:
        lines.append(f"The model's choice is the fastest: {name}.")
    else:
        lines.append(f"Fastest: {name}, ranked {best['rank'] + 1} by the model.")
        if loss:
            figures = f"{loss['median']:.3f} ({loss['p10']:.3f}..{loss['p90']:.3f})"
            lines.append(f"The model's choice takes {figures} times as long, in the rounds that did not select.")
        if result["selected"] != best["rank"]:
            lines.append("It is slower in fewer than nine of ten of them: use_tuning keeps it.")
    if result["rank_correlation"] is not None:
        timed = sum(bool(c["samples_us"]) and not c["wrong"] for c in result["candidates"])
        lines.append(f"Rank correlation of model and measurement: {result['rank_correlation']:.2f} over {timed} plans.")
    return lines


def show_report(report: dict[str, Any], path: Path, markdown: bool) -> None:
    for result in report["results"]:
        title = f"{Shape(**result['shape'])}, {result['calls']} back-to-back calls"
        if markdown:
            print(f"**{title}**\n\n{show.markdown(COLUMNS, rows(result))}\n")
        else:
            show.table(title, COLUMNS, rows(result))
        print("\n".join(summary(result)) + "\n")
    fitted = report["fitted_from_this_run"]
    if fitted:
        print(
            f"Fitted from this run: measured = {fitted['offset_us']:.2f} us + {fitted['scale']:.3f} * modelled, to "
            f"{100 * fitted['relative_error']:.0f}% over {fitted['plans']} plans."
        )
    device = report["device"]
    print(f"hardware: {device['name']}, {device['sm_count']} SMs, CUDA driver {report['driver']}")
    print(f"software: nvfp4 {report['nvfp4']}, {report['software']}")
    print(f"clock: {report['clock']}; clocks before: {report['clocks_before']}; after: {report['clocks_after']}")
    if report["failure"]:
        print(f"\nTHE GPU STOPPED: {report['failure']}. The file has the measurements before the fault.")
    print(
        f'\n{path} has these results with every sample. To use the plans: nvfp4.use_tuning("{path}"). To improve the '
        f'model, please attach the file to an issue of the nvfp4 project, "bench --tune on {device["name"]}"; it has '
        f"the GPU, the driver, versions, clocks, plans and times, and nothing else."
    )
