"""docs/checkpoints.md agrees with the recorded tables behind it."""

from __future__ import annotations

import csv
import re

from paths import ROOT

PAGE = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
MODES = ("bf16", "W4A4", "W4A4 dynamic", "W4A16")


def test_times_on_several_gpus_are_those_of_the_run() -> None:
    """Each cell, and of all rows where bf16 is faster."""
    with (ROOT / "benchmarks/log/parallel_h200.csv").open(encoding="utf-8", newline="") as file:
        runs = {(int(row["gpus"]), int(row["m"])): row for row in csv.DictReader(file)}
    section = PAGE.split("## Several GPUs")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert shown[0][1:] == ["bf16 on 1, 2 H200s", *MODES[1:]]

    def us(gpus: int, m: int, mode: str) -> float:
        return float(runs[gpus, m][f"{mode} us"])

    rows = (1, 128, 2048)
    assert shown[1:] == [[str(m), *(f"{us(1, m, mode):.0f}, {us(2, m, mode):.0f}" for mode in MODES)] for m in rows]
    losses = {(gpus, m, mode) for gpus, m in runs for mode in MODES[1:] if us(gpus, m, mode) > us(gpus, m, "bf16")}
    assert losses == {(2, 128, "W4A4 dynamic"), *((2, 2048, mode) for mode in MODES[1:])}
    words = re.sub(r"\s+", " ", section)
    assert "On two GPUs bf16 is the fastest at M = 2048." in words
    assert "At M = 128 it also beats W4A4 with dynamic scales." in words
    assert ({gpus for gpus, _ in runs} == {1, 2}) == ("Four GPUs were not timed" in words)
