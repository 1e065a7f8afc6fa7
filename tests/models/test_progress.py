"""The progress of load, calibration and quantize_model: who sees it, and what it says."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import nvfp4
from nvfp4 import _text

pytest.importorskip("safetensors", reason="comes with the extra `test`")


class ZMQInteractiveShell:
    """The name of Jupyter's shell."""


class Colab(ZMQInteractiveShell):
    pass


class TerminalInteractiveShell:
    """IPython's in a terminal, which may be a pipe."""


@pytest.fixture(params=["terminal", "notebook", "colab", "pipe", "ipython in a pipe"])
def seen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether somebody looks at standard error, without rich. The test has another object of capsys' class there."""
    shells = {"notebook": ZMQInteractiveShell(), "colab": Colab(), "ipython in a pipe": TerminalInteractiveShell()}
    monkeypatch.setattr(_text, "rich", None)
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: request.param == "terminal")
    if request.param in shells:
        fake = types.SimpleNamespace(get_ipython=lambda: shells[request.param])
        monkeypatch.setitem(sys.modules, "IPython", fake)
    return "pipe" not in request.param


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))


def steps(text: str) -> list[str]:
    """The lines, each without what it overwrites."""
    return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line]


def test_each_step_is_shown_to_those_who_look(seen: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = model()
    nvfp4.quantize_model(own, calibrate=lambda m: [m(torch.randn(2, 32)) for _ in range(2)])
    want = ["[1] calibrate: call 1", "[2] calibrate: call 2", "[1/2] 0", "[2/2] 2"]
    assert steps(capsys.readouterr().err) == (want if seen else [])
    nvfp4.save(own, tmp_path / "saved")
    nvfp4.load(tmp_path / "saved", model())
    want = ["[1/4] check 0", "[2/4] check 2", "[3/4] load 0", "[4/4] load 2"]
    text = capsys.readouterr().err
    assert steps(text) == (want if seen else []) and text.count("\n") == seen
    nvfp4.load(tmp_path / "saved")
    assert steps(capsys.readouterr().err) == (["[1/2] check 0", "[2/2] check 2"] if seen else [])


def test_a_changing_line_fits_into_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_text, "rich", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    with pytest.raises(ValueError, match="stop"), _text.progress(10) as step:
        step("a.long.name.of.a.layer")
        step("b\x1b[2J")
        raise ValueError("stop")
    first, second = capsys.readouterr().err.removesuffix("\n").removeprefix("\r").split("\r")
    assert first == "[1/10] a.long.name." and second == f"{'[2/10] b' + chr(92) + 'x1b[2J':<19}"


@pytest.mark.parametrize("place", ["terminal", "notebook", "notebook without widgets"])
def test_rich_draws_a_bar(place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a notebook only if it can redraw: rich would warn, and show nothing."""
    rich = pytest.importorskip("rich")
    made = []

    class Progress:
        def __init__(self, *columns: object, console: rich.console.Console, transient: bool) -> None:
            made.append((console.is_jupyter, console.stderr, transient))

        def __enter__(self) -> Progress:
            return self

        def __exit__(self, *given: object) -> None:
            pass

        def add_task(self, what: str, total: int | None) -> int:
            made.append(total)
            return 7

        def update(self, task: int, description: str, completed: int) -> None:
            made.append((task, description, completed))

    monkeypatch.setattr(rich.progress, "Progress", Progress)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: place == "terminal")
    monkeypatch.setattr(_text, "in_notebook", lambda: place != "terminal")
    monkeypatch.setattr(_text, "has_widgets", lambda: place == "notebook")
    with _text.watched(None) as step:
        step("a[b]")
        step("c")
    if place == "notebook without widgets":
        assert made == [] and steps(capsys.readouterr().err) == ["[1] a[b]", "[2] c"]
    else:
        assert made == [(place == "notebook", True, True), None, (7, r"a\[b]", 0), (7, "c", 1)]


def test_a_bar_of_rich_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with _text.watched(None) as step:
        step("a[b]")
        step("c")
    assert "1/?" in capsys.readouterr().err
