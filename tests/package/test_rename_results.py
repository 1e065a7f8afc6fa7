"""tools/rename_results.py: results of version 1 become what this version reads, once."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import fake_gpu
import pytest
from paths import ROOT

import nvfp4
from nvfp4 import _C, _tuning
from nvfp4.__main__ import main
from nvfp4.cli import report

SCRIPT = ROOT / "tools" / "rename_results.py"

spec = importlib.util.spec_from_file_location("rename_results", SCRIPT)
rename_results = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rename_results)

FIGURES = {"single_call": "cold", "back_to_back": "queued"}


def script(monkeypatch: pytest.MonkeyPatch, *files: Path) -> int:
    monkeypatch.setattr(sys, "argv", ["rename_results.py", *map(str, files)])
    return rename_results.main()


def renamed(old: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in old.items()}


def version_1(run: dict[str, Any]) -> dict[str, Any]:
    """The run as version 1 wrote it."""
    results = []
    for result in run["results"]:
        entries = []
        for new in result["implementations"]:
            entry = renamed(new, {"back_to_back_calls": "queue_calls"})
            entry["name"] = entry["name"].replace("dequantize", "dequantise")
            entry |= {name: renamed(entry[name], FIGURES) for name in ("seconds", "ratio") if name in entry}
            entries.append(entry)
        results.append(renamed(result, {"implementations": "contestants"}) | {"contestants": entries})
    conditions = renamed(run["conditions"], {"single-call": "single calls", "back-to-back": "back to back"})
    return run | {"format": "nvfp4-bench-1", "conditions": conditions, "results": results}


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in the present format."""
    fake_gpu.install(monkeypatch, fake_gpu.Clock())
    path = tmp_path / "run.json"
    assert main(["bench", "--m", "128", "--json", str(path)]) == 0
    return path


def test_a_run_of_bench(stored: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers, order and layout are those of the run as this version writes it."""
    new = stored.read_text()
    run = json.loads(new)
    assert any("dequantize" in entry["name"] for entry in run["results"][0]["implementations"])
    stored.write_text(json.dumps(version_1(run)))
    assert main(["bench", "--from", str(stored)]) == 2
    assert "rename_results.py" in capsys.readouterr().err
    for said in ("rewritten", "nothing to rename"):  # idempotent
        assert script(monkeypatch, stored) == 0
        assert capsys.readouterr().out == f"{said}: {stored}\n" and stored.read_text() == new
    report.load(stored)


def test_words_in_conditions() -> None:
    old = {
        "single calls": "cold: 9 MiB written before each; an empty pair of CUDA events takes 1.28 us, in every figure",
        "back to back": "a plain queue (no graph) of up to 50 calls between one pair of events, behind writes of 9 MiB",
        "caches": "cold: the inputs of each contestant rotate through more than a largest cache of 480 MiB",
        "hardware": "NVIDIA H200",
    }
    run = {
        "format": "nvfp4-bench-1",
        "conditions": old,
        "left_out": {"torch dequantise + matmul": "why"},
        "results": [],
    }
    run["host"] = {"of": "the calling thread, to queue a call: over the shapes, median and range", "seconds": {}}
    new = json.loads(rename_results.rewritten(json.dumps(run)))
    assert new["conditions"] == {
        "single-call": "cold L2: 9 MiB written before each call; each figure includes an empty pair of CUDA events, "
        "1.28 us",
        "back-to-back": "up to 50 calls on a stream (no graph) between one pair of events, after writes of 9 MiB",
        "caches": "cold: the inputs of each implementation rotate through more than a largest cache of 480 MiB",
        "hardware": "NVIDIA H200",
    }
    assert new["left_out"] == {"torch dequantize + matmul": "why"} and "enqueue a call" in new["host"]["of"]


def test_csv_of_bench(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = report.csv_text(report.load(stored))
    rows = list(csv.DictReader(io.StringIO(new)))
    old = io.StringIO()
    writer = csv.DictWriter(old, [name.replace("implementation", "contestant") for name in rows[0]])
    writer.writeheader()
    for row in rows:
        row["contestant"] = row.pop("implementation").replace("dequantize", "dequantise")
        row["figure"] = FIGURES[row["figure"]]
        writer.writerow(row)
    path = stored.with_suffix(".csv")
    path.write_text(old.getvalue())
    for _ in range(2):
        assert script(monkeypatch, path) == 0 and path.read_text() == new
    samples = ROOT / "benchmarks/results/sm90_candidates_h200.csv"  # another table
    assert rename_results.rewritten(samples.read_text()) is None


CANDIDATE = {"place": 0, "kernel": "nvfp4_sm90_dense_x_raw", "swapped": 1, "split_k": 2, "prefetch_stages": 0}


@pytest.mark.parametrize("version", [1, 2])
def test_a_tune_file(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """use_tuning rejects older versions with the name of the script, and overrides the plan of the rewritten file."""
    gpu = {"name": "NVIDIA H200", "compute_capability": 90, "sm_count": 132}
    candidates = [CANDIDATE | {"place": place, "swapped": 1 - place} for place in range(2)]
    result = {"shape": {"m": 16, "n": 128, "k": 512}, "preferred": 1, "candidates": candidates}
    if version == 2:
        names = {"place": "rank", "swapped": "swap_ab"}
        candidates = [{names.get(key, key): value for key, value in one.items()} for one in candidates]
        result = {"shape": result["shape"], "selected": 1, "candidates": candidates}
    old = {"format": f"nvfp4-tune {version}", "nvfp4": nvfp4.__version__, "device": gpu, "results": [result]}
    path = tmp_path / "tune.json"
    path.write_text(json.dumps(old))
    with pytest.raises(nvfp4.Error, match="python tools/rename_results.py"):
        nvfp4.use_tuning(path)
    for _ in range(2):
        assert script(monkeypatch, path) == 0
    overrides: list[Any] = []
    monkeypatch.setattr(_C, "driver", lambda: {"devices": 1})
    monkeypatch.setattr(_C, "device", lambda ordinal: gpu)
    monkeypatch.setattr(_tuning, "_override", overrides.extend)
    monkeypatch.setattr(_tuning, "_overrides", [])
    settings = {"kernel": "nvfp4_sm90_prefill_mixed", "swap_ab": 0, "split_k": 2, "prefetch_stages": 0}
    settings["ctas_per_sm"] = 0
    assert nvfp4.use_tuning(path) == [{"m": 16, "n": 128, "k": 512} | settings]
    assert overrides == [(0, 16, 128, 512, 1, *settings.values())]


@pytest.mark.parametrize(("old", "new"), [("queued", "back-to-back"), ("single", "single-call")])
def test_a_run_of_the_competition(old: str, new: str) -> None:
    run = {"format": "nvfp4-contest-1", "timed": True, "mode": old, "shapes": []}
    text = rename_results.rewritten(json.dumps(run))
    assert json.loads(text) == run | {"format": "nvfp4-contest-2", "mode": new}
    assert rename_results.rewritten(text) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nvfp4_sm90_dense_expanded", "nvfp4_sm90_prefill_fp16"),
        ("nvfp4_sm90_gemm_128x64_helped", "nvfp4_sm90_gemm_128x64_streamk"),
        ("nvfp4_sm100_gemm_256x64_gather", "nvfp4_sm100_gemm_256x64_cp_async"),
        ("nvfp4_sm80_gemm_16x56", "nvfp4_sm80_gemm_16x56"),
    ],
)
def test_kernels(old: str, new: str) -> None:
    assert rename_results.kernel(old) == new == rename_results.kernel(new)


def test_other_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    texts = {"a.json": '{"format": "nvfp4-output-1"}', "b.json": "[1]", "c.csv": "m,n\n1,2\n", "d.json": ""}
    paths = []
    for name, text in texts.items():
        paths.append(tmp_path / name)
        paths[-1].write_text(text)
    assert script(monkeypatch, *paths) == 0
    assert [path.read_text() for path in paths] == list(texts.values())
    damaged = '{"format": "nvfp4-tune 1"}'
    paths[0].write_text(damaged)
    assert script(monkeypatch, paths[0], tmp_path / "none.json") == 1
    errors = capsys.readouterr().err
    assert errors.count("cannot be rewritten") == 2 and paths[0].read_text() == damaged


def test_stored_results_are_of_this_version() -> None:
    for path in (ROOT / "benchmarks/results").iterdir():
        if path.suffix in (".json", ".csv"):
            assert rename_results.rewritten(path.read_text()) is None, path.name
