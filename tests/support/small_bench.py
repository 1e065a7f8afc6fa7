"""Small runs of `nvfp4 bench --against` with a fake library on a CPU, where the real one does not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nvfp4.__main__ import main
from nvfp4.bench import baselines, experts, limits, timing

CPU = torch.device("cpu")
TINY = experts.Model("tiny", 5, 2, 128, 64)
SETS = [["--shapes", "3x64x64"], ["--set", "linear"], ["--set", "readme"], ["--set", "experts"]]
ON_THE_HOST = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the fake's experts run on the host, which a CUDA graph does not capture"
)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few sets of inputs are cold, and the experts are TINY."""
    monkeypatch.setattr(baselines, "last_level_cache", lambda: 20000)
    monkeypatch.setattr(timing, "FLUSH_BYTES", 2**20)
    monkeypatch.setattr(timing, "PAUSE_S", 0)
    monkeypatch.setattr(limits, "LARGEST", 256)
    monkeypatch.setattr(experts, "MODELS", (TINY,))


def run(kind: str, path: Path, *arguments: str) -> dict[str, Any]:
    """The JSON object of a run that succeeds."""
    assert main(["bench", *arguments, "--against", kind, "--repeat", "3", "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def rejected(kind: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command that cannot run."""
    assert main(["bench", *arguments, "--against", kind]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    return streams.err
