"""Draws a run of `nvfp4 bench` as SVG with matplotlib: time over M for each N x K, log-log, with the floor.

Colours follow the reader's light or dark colour scheme. Implementations differ in colour and marker. The same run gives
the same bytes with the same matplotlib; the SVG's identifier is a digest of the run.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nvfp4.bench import report as reports
from nvfp4.bench.shapes import Shape, layer_of
from nvfp4.cli.show import CommandError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Layout in pixels: a panel with the margins around its axes, text lines, panels side by side.
PANEL_WIDTH, PANEL_HEIGHT = 300, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 40, 36
MARGIN = 14
LINE = 18
COLUMNS = 3
LETTER = 6.4  # estimated width of a letter
HEADROOM = 1.12  # factor between the extreme values and the ends of an axis
MAX_TICKS = 10
PERCENTILES = ("median", "p10", "p90")

# A pair per implementation, for light and for dark backgrounds; distinguishable for colour-blind readers.
COLOURS = (
    ("#0b63c5", "#6cb2ff"),
    ("#c2410c", "#ff9a5c"),
    ("#0f7b5f", "#4fd1a5"),
    ("#8b3fa8", "#d79bf0"),
    ("#8a6d00", "#e8c547"),
    ("#b01e5b", "#ff86b3"),
    ("#4b5563", "#b6bfcc"),
)
MARKERS = "os^DvPX"
BACKGROUND, TEXT = ("#ffffff", "#0d1117"), ("#1f2328", "#e6edf3")
AXIS, GRID, FLOOR = ("#8c959f", "#6e7681"), ("#e4e7eb", "#262c36"), ("#57606a", "#9aa4af")

STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "nvfp4",  # the same ids each time
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: metrics are the same everywhere
    "font.size": 11,
    "figure.dpi": 72,  # a point is a pixel
    "figure.facecolor": BACKGROUND[0],
    "axes.facecolor": "none",
    "axes.edgecolor": AXIS[0],
    "axes.linewidth": 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": GRID[0],
    "grid.linewidth": 1,
    "xtick.color": AXIS[0],
    "ytick.color": AXIS[0],
    "text.color": TEXT[0],
    "axes.labelcolor": TEXT[0],
    "xtick.labelcolor": TEXT[0],
    "ytick.labelcolor": TEXT[0],
    "ytick.major.size": 0,
    "legend.fontsize": 12,
    "legend.frameon": False,
}


def need_matplotlib() -> None:
    """Raises an error message that says how to install matplotlib if it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        message = f"--plot needs matplotlib, which could not be imported ({error}); pip install 'matplotlib>=3.8'"
        raise CommandError(message) from None


def digest(report: dict[str, Any]) -> str:
    """Identifies the run in its SVG, by all but the commit, which is added to a file."""
    run = {key: value for key, value in report.items() if key != "commit"}
    return f"sha256:{hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()}"


def svg(report: dict[str, Any]) -> str:
    need_matplotlib()
    import matplotlib.style

    metadata = {"Title": title(report), "Identifier": digest(report), "Date": None}
    text = io.StringIO()
    with matplotlib.style.context(["default", STYLE]):
        figure(report).savefig(text, format="svg", metadata=metadata)
    return for_readers(text.getvalue())


def for_readers(drawn: str) -> str:
    """An SVG of matplotlib's with the reader's own font and colour scheme, and without spaces at the ends of lines."""
    drawn = drawn.replace("'DejaVu Sans', sans-serif", "system-ui, sans-serif")
    drawn = drawn.replace("</style>", f"{dark_scheme()}</style>", 1)
    return "".join(f"{line.rstrip()}\n" for line in drawn.splitlines())


def dark_scheme() -> str:
    """CSS that replaces the light colours, which matplotlib writes into style attributes."""
    pairs = (*COLOURS, BACKGROUND, TEXT, AXIS, GRID, FLOOR)
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}' for light, dark in pairs for what in ("fill", "stroke")
    ]
    plain_text = f"text:not([style*=fill]){{fill:{TEXT[1]}}}"
    return "\n@media (prefers-color-scheme: dark){\n" + "\n".join([*rules, plain_text]) + "\n}\n"


def title(report: dict[str, Any]) -> str:
    return f"Time over M: {', '.join(reports.names(report))}"


def groups(report: dict[str, Any]) -> list[list[Shape]]:
    """The shapes of each N x K, by M. Those with a single M are left out if others have more."""
    found: dict[tuple[int, int], list[Shape]] = {}
    for result in report["results"]:
        shape = reports.shape_of(result)
        found.setdefault((shape.n, shape.k), []).append(shape)
    drawn = [sorted(set(shapes), key=lambda shape: shape.m) for shapes in found.values()]
    return [shapes for shapes in drawn if len(shapes) > 1] or drawn


def figure(report: dict[str, Any]) -> Figure:
    """Title, legend, a panel for each N x K and figure, notes. Axes have the label "<mode> <N>x<K>"."""
    from matplotlib.figure import Figure

    drawn = groups(report)
    columns = min(COLUMNS, len(drawn)) if len(drawn) > 1 else len(reports.MODES)
    rows = math.ceil(len(drawn) / columns) * len(reports.MODES) if len(drawn) > 1 else 1
    width = 2 * MARGIN + columns * PANEL_WIDTH
    head = wrapped(f"{reports.unit(report)[0]} a call over M: {report['conditions']['hardware']}", 0.8 * width)
    labels = [*(label(report, name) for name in reports.names(report)), "floor"]
    per_row = legend_columns(labels, width)
    floor = f"floor: {reports.floor_text(report)}"
    bars = f"{reports.mode_title(report, 'single_call')}; bars: tenth to ninetieth percentile"
    foot = [floor, f"{bars}; run {report['run']}, {report['written'][:10]}"]
    foot = [line for whole in foot for line in wrapped(whole, width - 2 * MARGIN)]

    legend_top = MARGIN + LINE * len(head)
    top = legend_top + LINE * math.ceil(len(labels) / per_row) + 4
    height = top + rows * PANEL_HEIGHT + (LINE - 3) * len(foot) + MARGIN
    made = Figure(figsize=(width / 72, height / 72))
    for i, line in enumerate(head):
        made.text(MARGIN / width, 1 - (MARGIN + LINE * i) / height, line, size=12, weight="bold", va="top")
    for i, line in enumerate(foot):
        made.text(MARGIN / width, 1 - (top + rows * PANEL_HEIGHT + (LINE - 3) * i) / height, line, va="top")

    number = 0
    for mode in reports.MODES:
        for shapes in drawn:
            x = MARGIN + number % columns * PANEL_WIDTH + LEFT
            bottom = height - top - (number // columns + 1) * PANEL_HEIGHT + BOTTOM
            size = (PANEL_WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM)
            box = (x / width, bottom / height, size[0] / width, size[1] / height)
            axes = made.add_axes(box, label=f"{mode} {shapes[0].n}x{shapes[0].k}")
            draw_panel(axes, report, mode, shapes)
            number += 1
        if len(drawn) > 1:
            number = math.ceil(number / columns) * columns  # each figure begins a row
    handles = made.axes[0].get_legend_handles_labels()[0]
    made.legend(
        [*handles[:0:-1], handles[0]],  # drawn last first, the floor before all
        labels,
        ncols=per_row,
        loc="upper left",
        bbox_to_anchor=(MARGIN / width, 1 - legend_top / height),
        borderpad=0,
        borderaxespad=0,
        handlelength=22 / 12,
        handletextpad=0.5,
        columnspacing=1.2,
        labelspacing=0.4,
    )
    return made


def label(report: dict[str, Any], name: str) -> str:
    note = reports.notes(report).get(name)
    return f"{name} ({note})" if note else name


def legend_columns(labels: Sequence[str], width: float) -> int:
    """The largest number of columns that fit; a column is as wide as its widest label."""
    for columns in range(len(labels), 1, -1):
        rows = math.ceil(len(labels) / columns)
        widest = [max(map(len, labels[i : i + rows])) for i in range(0, len(labels), rows)]  # filled by columns
        if sum(44 + 7.2 * letters for letters in widest) <= width - 2 * MARGIN:
            return columns
    return 1


def wrapped(line: str, width: float) -> list[str]:
    """The line in pieces that fit."""
    return textwrap.wrap(line, int(width / (LETTER - 0.6)), break_long_words=False, break_on_hyphens=False)


def draw_panel(axes: Axes, report: dict[str, Any], mode: str, shapes: Sequence[Shape]) -> None:
    """Floor and curves. Artists have gids: "<label of the axes> floor", "... line <i>", "... bars <i>"."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    _, scale = reports.unit(report)
    by_shape = {reports.shape_of(result): result for result in report["results"]}
    first, last = shapes[0], shapes[-1]
    low_m, high_m = first.m / HEADROOM, last.m * HEADROOM
    name = str(axes.get_label())
    axes.set_gid(name)

    # The floor bends where arithmetic takes over, usually between two M: it is drawn finely.
    rows = [first.m * (last.m / first.m) ** (i / 48) for i in range(49)] if last.m > first.m else [low_m, high_m]
    floor = [scale * reports.floor(report, Shape(m, first.n, first.k)) for m in rows]  # type: ignore[arg-type]
    values = [*floor]
    axes.plot(rows, floor, color=FLOOR[0], linewidth=1.5, linestyle=(0, (5, 3)), label="floor", gid=f"{name} floor")
    names = reports.names(report)
    for i, implementation in reversed([*enumerate(names)]):  # ours last, on top
        entries = [(shape.m, reports.entry_of(by_shape[shape], implementation)) for shape in shapes]
        points = [(m, *(entry["seconds"][mode][key] * scale for key in PERCENTILES)) for m, entry in entries if entry]
        ms, medians, lows, highs = zip(*points) if points else ((), (), (), ())
        values += [*lows, *highs]
        colour = COLOURS[i % len(COLOURS)][0]
        axes.vlines(ms, lows, highs, color=colour, linewidth=1.2, gid=f"{name} bars {i}")
        axes.plot(
            ms,
            medians,
            color=colour,
            marker=MARKERS[i % len(MARKERS)],
            markersize=6.5,
            markeredgewidth=0,
            linewidth=1.8,
            label=implementation,
            gid=f"{name} line {i}",
        )
    low, high = min(values) / HEADROOM, max(values) * HEADROOM
    axes.fill_between(rows, floor, low, color=FLOOR[0], alpha=0.12, linewidth=0, gid=f"{name} below floor")

    axes.set(xscale="log", yscale="log", xlim=(low_m, high_m), ylim=(low, high))
    few = 3 * math.log10(high / low) < MAX_TICKS
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=99))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks([shape.m for shape in shapes], tick_labels(shapes, low_m, high_m))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid(axis="y")
    axes.set_title(f"N {first.n}, K {first.k}: {reports.MODES[mode]}", pad=18)
    layer = layer_of(first)
    if layer:
        words = f"{layer.model}, {layer.layer}"
        axes.annotate(words, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points")
    axes.set_xlabel("M", loc="right", labelpad=1)


def tick_labels(shapes: Sequence[Shape], low: float, high: float) -> list[str]:
    """The label of each shape, its M; "" where it would touch the previous label."""
    labels, taken = [], -math.inf
    for shape in shapes:
        x = math.log(shape.m / low) / math.log(high / low) * (PANEL_WIDTH - LEFT - RIGHT)
        labels.append(str(shape.m) if x - taken > 24 else "")
        taken = x if labels[-1] else taken
    return labels
