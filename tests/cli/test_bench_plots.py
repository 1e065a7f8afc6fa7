"""`nvfp4 bench --plot`: curves, ticks, and what is drawn alike each time."""

from __future__ import annotations

import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest
from test_bench import HOPPER, stored
from test_bench import gpu as gpu

from nvfp4.__main__ import main
from nvfp4.bench import command, plot, report
from nvfp4.bench.shapes import Shape

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def matplotlib() -> ModuleType:
    return pytest.importorskip("matplotlib", reason="matplotlib comes with the extra `plot`")


def points(picture: ElementTree.Element, gid: str) -> list[tuple[float, float]]:
    """The points of the curve in the group with this id."""
    (group,) = [group for group in picture.iter(f"{SVG}g") if group.get("id") == gid]
    words = group.find(f"{SVG}path").get("d").split()
    return [(float(words[i + 1]), float(words[i + 2])) for i, word in enumerate(words) if word in ("M", "L")]


@pytest.mark.usefixtures("gpu", "matplotlib")
@pytest.mark.parametrize("arguments", [HOPPER, ["bench", "--set", "decode"], ["bench", "--shapes", "3x64x64"]])
def test_plot(arguments: list[str], tmp_path: Path) -> None:
    """Well-formed, all inside, a curve and its markers for each implementation, figure and N x K, and the floor."""
    run = stored(tmp_path, *arguments)
    picture = ElementTree.fromstring(plot.svg(run))
    _, _, width, height = map(float, picture.get("viewBox").split())
    groups, names = plot.groups(run), report.names(run)
    labels = [f"{mode} {shapes[0].n}x{shapes[0].k}" for mode in report.MODES for shapes in groups]
    assert len(labels) == {"hopper": 6, "decode": 16, None: 2}[run["set"]]
    ids = [element.get("id") for element in picture.iter() if element.get("id")]
    assert len(ids) == len(set(ids)) and set(labels) <= set(ids)
    for number, label in enumerate(labels):
        rows = len(groups[number % len(groups)])
        curves = [points(picture, f"{label} line {i}") for i in range(len(names))]
        assert [len(curve) for curve in curves] == [rows] * len(names)
        for x, y in [point for curve in [*curves, points(picture, f"{label} floor")] for point in curve]:
            assert 0 <= x <= width and 0 <= y <= height
        for i in range(len(names)):
            (bars,) = [group for group in picture.iter(f"{SVG}g") if group.get("id") == f"{label} bars {i}"]
            (line,) = [group for group in picture.iter(f"{SVG}g") if group.get("id") == f"{label} line {i}"]
            assert len(bars.findall(f"{SVG}path")) == rows == len([*line.iter(f"{SVG}use")])
        assert f"{label} below floor" in ids
    words = " ".join(picture.itertext())
    assert all(name in words for name in names) and "prefers-color-scheme: dark" in words and run["run"] in words
    assert ("not exact" in words) == any("fp8" in name for name in names)


@pytest.mark.usefixtures("gpu", "matplotlib")
def test_curves_lie_where_the_figures_are(tmp_path: Path) -> None:
    """Log-log: equal factors are equal distances, the slower lies higher, no curve lies below its floor."""
    run = stored(tmp_path, *HOPPER)
    picture = ElementTree.fromstring(plot.svg(run))
    label = "single_call 7168x16384"
    curves = [points(picture, f"{label} line {i}") for i in range(4)]
    floor = points(picture, f"{label} floor")
    xs = [x for x, _ in curves[0]]  # M = 1, 2, 4, 8, 16, 32, 64, 128, 256
    assert xs[2] - xs[0] == pytest.approx(2 * (xs[3] - xs[2]), abs=0.01)
    assert xs[8] - xs[0] == pytest.approx(8 * (xs[4] - xs[3]), abs=0.01)
    ours, sm80, fp16, fp8 = (curve[0][1] for curve in curves)
    assert fp16 < sm80 < fp8 < ours < floor[0][1]  # y grows downwards
    figures = [entry["seconds"]["single_call"]["median"] for entry in run["results"][0]["implementations"]]
    slope = (ours - fp16) / math.log(figures[2] / figures[0])
    assert (ours - sm80) == pytest.approx(slope * math.log(figures[1] / figures[0]), abs=0.01)


@pytest.mark.usefixtures("gpu")
def test_plots_are_deterministic_and_dark(matplotlib: ModuleType, tmp_path: Path) -> None:
    """The same bytes with any style of the user, an identifier of the run, a dark colour for each colour in use."""
    run = stored(tmp_path, *HOPPER)
    drawn = plot.svg(run)
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.grid": True, "font.size": 30}):
        assert plot.svg(run) == drawn
    assert plot.digest(run) in drawn and plot.digest(run | {"run": "another"}) not in drawn
    light, dark = drawn.split("@media (prefers-color-scheme: dark){", 1)
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", dark.split("</style>", 1)[1]))
    replaced = set(re.findall(r'"fill: (#[0-9a-f]{6})"', dark))
    assert len(used) >= 4 + 5 and used <= replaced


@pytest.mark.usefixtures("gpu")
def test_ticks(matplotlib: ModuleType, tmp_path: Path) -> None:
    run = stored(tmp_path, *HOPPER)
    axes = next(axes for axes in plot.figure(run).axes if axes.get_label() == "single_call 7168x16384")
    low, high = axes.get_ylim()
    assert [tick for tick in axes.get_yticks() if low <= tick <= high] == [20, 50, 100, 200]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "4", "8", "16", "32", "64", "128", "256"]
    assert plot.tick_labels([Shape(m, 1, 16) for m in (1, 100, 101, 1000)], 1, 1000) == ["1", "100", "", "1000"]


def test_long_lines_are_wrapped() -> None:
    line = "a picture of words " * 12
    pieces = plot.wrapped(line, 300)
    assert " ".join(pieces) == line.strip() and max(map(len, pieces)) <= 52


def test_without_matplotlib_nothing_is_timed(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(command, "measure", lambda *args: pytest.fail("measured"))
    assert main(["bench", "--backend", "cpu", "--plot", str(tmp_path / "a.svg")]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.count("\n") == 1 and "pip install 'matplotlib>=3.8'" in streams.err
