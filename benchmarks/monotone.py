"""Lists products that take longer than one of more rows, in a run of `nvfp4 bench --set monotone`.

    python -m nvfp4 bench --set monotone --against none --repeat 21 --json run.json --plot run.svg
    python benchmarks/monotone.py run.json [another.json] [--most 3] [--csv log/monotone.csv]
    python benchmarks/monotone.py --draw          # log/monotone_GPU.svg of each GPU in log/monotone.csv

Prints, for each N x K, the M whose single call takes the largest share more than the fastest of any larger M, with both
kernels; and how many M are above --most per cent. --csv writes all points instead. The picture marks them.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import recorded

from nvfp4.bench import plot, report
from nvfp4.cli import show

LOG = Path(__file__).resolve().parent / "log/monotone.csv"

Point = tuple[int, float, str]  # M, seconds, kernel
Curves = dict[str, list[Point]]  # of each N x K, by M


def curves(run: dict[str, Any]) -> Curves:
    """The curves of the first implementation."""
    found: Curves = {}
    for result in run["results"]:
        shape, first = report.shape_of(result), result["implementations"][0]
        point = (shape.m, first["seconds"]["single_call"]["median"], first["kernel"])
        found.setdefault(f"{shape.n}x{shape.k}", []).append(point)
    return {name: sorted(points) for name, points in found.items()}


def excess(points: list[Point]) -> list[tuple[float, Point, Point]]:
    """For each M but the largest: its time over that of the fastest larger M, less 1; and both points."""
    found = []
    for i, point in enumerate(points[:-1]):
        fastest = min(points[i + 1 :], key=lambda other: other[1])
        found.append((point[1] / fastest[1] - 1, point, fastest))
    return found


def gpu_of(run: dict[str, Any]) -> str:
    """ "h200" of a run on an "NVIDIA H200, ..."."""
    return str(run["conditions"]["hardware"]).split(",")[0].split()[1].lower()


def log(runs: list[dict[str, Any]]) -> Iterator[list[object]]:
    yield ["gpu", "n", "k", "m", "us", "kernel"]
    for run in runs:
        for name, points in curves(run).items():
            for m, seconds, kernel in points:
                yield [gpu_of(run), *name.split("x"), m, f"{1e6 * seconds:.2f}", kernel.removeprefix("nvfp4_")]


def print_worst(run: dict[str, Any], most: float) -> None:
    above = total = 0
    print(f"{'N x K':12} {'M':>4} {'us':>7}  {'kernel':34} {'than M':>6} {'us':>7}  {'kernel':34} {'more':>6}")
    for name, points in curves(run).items():
        found = excess(points)
        above += sum(100 * more > most for more, _, _ in found)
        total += len(found)
        if found:
            more, (m, s, kernel), (larger, t, other) = max(found)
            times = f"{m:4} {s * 1e6:7.2f}  {kernel:34} {larger:6} {t * 1e6:7.2f}  {other:34} {more:6.1%}"
            print(f"{name:12} {times}")
    print(f"{above} of {total} points take over {most:g} % longer than one of a larger M")


def logged() -> dict[str, Curves]:
    """By GPU."""
    found: dict[str, Curves] = {}
    for row in recorded.rows(LOG):
        points = found.setdefault(row["gpu"], {}).setdefault(f"{row['n']}x{row['k']}", [])
        points.append((int(row["m"]), 1e-6 * float(row["us"]), row["kernel"]))
    return found


def picture(gpu: str) -> Path:
    return LOG.with_name(f"monotone_{gpu}.svg")


def svg(gpu: str, layers: Curves, most: float) -> str:
    """A panel for each N x K: microseconds over M, and a mark where a larger M is more than `most` per cent faster."""
    plot.need_matplotlib()
    import matplotlib.style
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ours, marked = plot.COLOURS[0][0], plot.COLOURS[1][0]
    text = io.StringIO()
    with matplotlib.style.context(["default", plot.STYLE]):
        rows = -(-len(layers) // plot.COLUMNS)
        size = (plot.COLUMNS * plot.PANEL_WIDTH / 72, rows * plot.PANEL_HEIGHT / 72)
        figure = Figure(figsize=size, layout="constrained")
        for place, (name, points) in enumerate(layers.items(), 1):
            axes = figure.add_subplot(rows, plot.COLUMNS, place, xscale="log", yscale="log")
            axes.plot([m for m, _, _ in points], [1e6 * s for _, s, _ in points], color=ours, linewidth=1.8)
            above = [point for more, point, _ in excess(points) if 100 * more > most]
            axes.scatter([m for m, _, _ in above], [1e6 * s for _, s, _ in above], color=marked, s=20, zorder=3)
            axes.set_title(f"N x K {name}: {len(above)} of {len(points) - 1}")
            axes.set_xticks([1, 4, 16, 64, 256, 512], ["1", "4", "16", "64", "256", "512"])
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.grid(axis="y")
        figure.suptitle(f"{gpu.upper()}: us of a single call over M; marked: a larger M is over {most:g} % faster")
        figure.savefig(text, format="svg", metadata={"Title": f"Time over M on an {gpu.upper()}", "Date": None})
    return plot.for_readers(text.getvalue())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="*", metavar="run", help="a run of nvfp4 bench")
    parser.add_argument("--most", type=float, default=3.0, metavar="P", help="per cent that are allowed (default: 3)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the points of all runs instead")
    parser.add_argument("--draw", action="store_true", help="draw the points of the log instead")
    options = parser.parse_args()
    if options.draw:
        for gpu, layers in logged().items():
            picture(gpu).write_text(svg(gpu, layers, options.most))
        return 0
    try:
        runs = [report.load(path) for path in options.runs]
    except show.CommandError as error:
        print(error, file=sys.stderr)
        return 2
    if options.csv:
        recorded.write(options.csv, log(runs), ", ".join(run["conditions"]["hardware"] for run in runs))
        return 0
    for run in runs:
        print_worst(run, options.most)
    return 0


if __name__ == "__main__":
    sys.exit(main())
