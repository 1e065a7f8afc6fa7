"""A run of `nvfp4 bench` as a picture: time over M for each N x K, both axes logarithmic, the floor drawn in. SVG.

Colours follow the reader's light or dark scheme; contestants differ in their markers too. Nothing but the standard
library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from . import report as reports
from .shapes import Shape, layer_of

PANEL_WIDTH, PANEL_HEIGHT = 300, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 40, 36  # of a panel, around its axes
MARGIN = 14
LINE = 18  # of text
COLUMNS = 3
HEADROOM = 1.12  # beyond the extreme values, on either axis
LETTER = 6.4  # width of a letter in the legend, about

# One pair for each contestant, for light and for dark backgrounds; told apart by colour-blind readers as well.
COLOURS = (
    ("#0b63c5", "#6cb2ff"),
    ("#c2410c", "#ff9a5c"),
    ("#0f7b5f", "#4fd1a5"),
    ("#8b3fa8", "#d79bf0"),
    ("#8a6d00", "#e8c547"),
    ("#b01e5b", "#ff86b3"),
    ("#4b5563", "#b6bfcc"),
)
MARKERS = (
    "M-3.5,0A3.5,3.5 0 1 0 3.5,0A3.5,3.5 0 1 0 -3.5,0Z",
    "M-3.2,-3.2H3.2V3.2H-3.2Z",
    "M0,-4.2L4,3H-4Z",
    "M0,-4.5L4.5,0L0,4.5L-4.5,0Z",
    "M0,4.2L4,-3H-4Z",
    "M-4,-1.2H-1.2V-4H1.2V-1.2H4V1.2H1.2V4H-1.2V1.2H-4Z",
    "M-4,-2H4V2H-4Z",
)
STYLE = """
.back{fill:#ffffff}.text{fill:#1f2328;font:12px system-ui,sans-serif}.head{font-weight:600}.small{font-size:11px}
.axis{stroke:#8c959f;fill:none}.grid{stroke:#e4e7eb;fill:none}
.floor{stroke:#57606a;stroke-dasharray:5 3;stroke-width:1.5;fill:none}.below{fill:#57606a;opacity:.1}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.bar{stroke-width:1.2}
""".strip()
DARK = """
.back{fill:#0d1117}.text{fill:#e6edf3}.axis{stroke:#6e7681}.grid{stroke:#262c36}
.floor{stroke:#9aa4af}.below{fill:#9aa4af;opacity:.16}
""".strip()


class Scale:
    """Places values on an axis of logarithms."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low / HEADROOM, high * HEADROOM
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)


def svg(report: dict[str, Any]) -> str:
    names = reports.names(report)
    drawn = groups(report)
    columns = min(COLUMNS, len(drawn)) if len(drawn) > 1 else len(reports.MODES)
    width = 2 * MARGIN + columns * PANEL_WIDTH
    head = wrapped(f"{reports.unit(report)[0]} a call over M: {report['conditions']['hardware']}", 0.8 * width)
    legend, top = draw_legend(report, names, width, MARGIN + 12 + LINE * len(head))
    body = [*(text(MARGIN, MARGIN + 12 + LINE * i, line, "head") for i, line in enumerate(head)), *legend]
    number = 0
    for mode in reports.MODES:
        if len(drawn) > 1:
            number = math.ceil(number / columns) * columns  # each figure begins a row
        for shapes in drawn:
            x, y = MARGIN + number % columns * PANEL_WIDTH, top + number // columns * PANEL_HEIGHT
            body.append(f'<g transform="translate({x},{y})">')
            body += draw_panel(report, names, mode, shapes)
            body.append("</g>")
            number += 1
    foot = top + math.ceil(number / columns) * PANEL_HEIGHT + LINE
    floor = f"floor: {reports.floor_sentence(report)}"
    footer = [floor, f"bars: tenth to ninetieth percentile; run {report['run']}, {report['written'][:10]}"]
    for line in [piece for whole in footer for piece in wrapped(whole, width - 2 * MARGIN)]:
        body.append(text(MARGIN, foot, line, "small"))
        foot += LINE - 3
    height = foot + MARGIN - LINE + 6
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img">',
            f"<title>{escape(title(report))}</title>",
            f"<style>\n{STYLE}\n{colours(0, len(names))}",
            f"@media (prefers-color-scheme: dark){{\n{DARK}\n{colours(1, len(names))}\n}}\n</style>",
            f'<rect class="back" width="{width}" height="{height}"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def title(report: dict[str, Any]) -> str:
    return f"Time over M: {', '.join(reports.names(report))}"


def colours(scheme: int, count: int) -> str:
    pairs = [COLOURS[i % len(COLOURS)][scheme] for i in range(count)]
    return "".join(f".s{i}{{stroke:{colour}}}.f{i}{{fill:{colour}}}" for i, colour in enumerate(pairs))


def groups(report: dict[str, Any]) -> list[list[Shape]]:
    """The shapes of each N x K, by M. Those of a single M are left out if others have more."""
    found: dict[tuple[int, int], list[Shape]] = {}
    for result in report["results"]:
        shape = reports.shape_of(result)
        found.setdefault((shape.n, shape.k), []).append(shape)
    drawn = [sorted(set(shapes), key=lambda shape: shape.m) for shapes in found.values()]
    return [shapes for shapes in drawn if len(shapes) > 1] or drawn


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="text {kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def wrapped(line: str, width: float) -> list[str]:
    """The line in pieces that fit."""
    pieces, most = [""], int(width / (LETTER - 0.6))
    for word in line.split():
        if pieces[-1] and len(pieces[-1]) + 1 + len(word) > most:
            pieces.append("")
        pieces[-1] = f"{pieces[-1]} {word}".strip()
    return pieces


def draw_legend(report: dict[str, Any], names: list[str], width: float, y: float) -> tuple[list[str], float]:
    """The legend from this line of text on, and where it ends."""
    notes = reports.notes(report)
    labels = [f"{name} ({notes[name]})" if name in notes else name for name in names]
    parts, x = [], float(MARGIN)
    for i, label in enumerate([*labels, "floor"]):
        extent = 36 + LETTER * len(label)
        if x + extent > width and x > MARGIN:
            x, y = float(MARGIN), y + LINE
        if i < len(names):
            parts.append(f'<path class="line s{i}" d="M{x:.1f},{y - 4}h22"/>{marker(i, x + 11, y - 4)}')
        else:
            parts.append(
                f'<rect class="below" x="{x:.1f}" y="{y - 4}" width="22" height="6"/>'
                f'<path class="floor" d="M{x:.1f},{y - 4}h22"/>'
            )
        parts.append(text(x + 28, y, label))
        x += extent + 8
    return parts, y + LINE - 6


def marker(i: int, x: float, y: float) -> str:
    return f'<path class="f{i}" transform="translate({x:.1f},{y:.1f})" d="{MARKERS[i % len(MARKERS)]}"/>'


def steps(low: float, high: float) -> list[float]:
    """The numbers 1, 2 and 5 times a power of ten from low to high; only the powers where they are many."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = [base * 10.0**e for e in exponents for base in (1, 2, 5)]
    numbers = [number for number in numbers if low <= number <= high]
    return numbers if len(numbers) <= 10 else [n for n in numbers if math.log10(n) == round(math.log10(n))]


def draw_panel(report: dict[str, Any], names: list[str], mode: str, shapes: Sequence[Shape]) -> list[str]:
    _, scale = reports.unit(report)
    by_shape = {reports.shape_of(result): result for result in report["results"]}
    curves = {}
    for i, name in enumerate(names):
        entries = [(shape, reports.entry_of(by_shape[shape], name)) for shape in shapes]
        curves[i] = [(shape.m, entry["seconds"][mode]) for shape, entry in entries if entry]

    left, right, top, bottom = LEFT, PANEL_WIDTH - RIGHT, TOP, PANEL_HEIGHT - BOTTOM
    # The floor bends where arithmetic takes over, between two M as a rule: it is drawn finely.
    first, last = shapes[0], shapes[-1]
    rows = [first.m * (last.m / first.m) ** (i / 48) for i in range(49)] if last.m > first.m else [float(first.m)]
    floor = [(m, reports.floor(report, Shape(m, first.n, first.k)) * scale) for m in rows]
    values = [value * scale for points in curves.values() for _, s in points for value in (s["p10"], s["p90"])]
    values += [value for _, value in floor]
    x = Scale(first.m, last.m, left, right)
    y = Scale(min(values), max(values), bottom, top)

    parts = [text(left, 18, f"N {first.n}, K {first.k}: {reports.MODES[mode]}", "head")]
    layer = layer_of(first)
    if layer:
        parts.append(text(left, 32, f"{layer.model}, {layer.layer}", "small"))
    for tick in steps(y.low, y.high):
        parts.append(f'<path class="grid" d="M{left},{y(tick):.1f}H{right}"/>')
        parts.append(text(left - 5, y(tick) + 4, f"{tick:g}", "small", "end"))
    taken = -math.inf
    for shape in shapes:
        parts.append(f'<path class="axis" d="M{x(shape.m):.1f},{bottom}v4"/>')
        if x(shape.m) - taken > 24:
            parts.append(text(x(shape.m), bottom + 16, str(shape.m), "small", "middle"))
            taken = x(shape.m)
    parts.append(f'<path class="axis" d="M{left},{top}V{bottom}H{right}"/>')
    parts.append(text(right, bottom + 30, "M", "small", "end"))

    if len(floor) == 1:
        floor = [(floor[0][0] / HEADROOM, floor[0][1]), (floor[0][0] * HEADROOM, floor[0][1])]
    line = "L".join(f"{x(m):.1f},{y(value):.1f}" for m, value in floor)
    parts.append(f'<path class="below" d="M{line}V{bottom}H{x(floor[0][0]):.1f}Z"/><path class="floor" d="M{line}"/>')
    for i, points in reversed(curves.items()):  # ours last, on top
        if not points:
            continue
        places = [(x(m), [y(s[key] * scale) for key in ("median", "p10", "p90")]) for m, s in points]
        parts += [f'<path class="bar s{i}" d="M{px:.1f},{low:.1f}V{high:.1f}"/>' for px, (_, low, high) in places]
        parts.append(f'<path class="line s{i}" d="M' + "L".join(f"{px:.1f},{py[0]:.1f}" for px, py in places) + '"/>')
        parts += [marker(i, px, py[0]) for px, py in places]
    return parts
