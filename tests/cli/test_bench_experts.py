"""`nvfp4 bench --set experts`: its table, its floor, and that a wrong layer is not timed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import recorded
import torch
from paths import ROOT

from nvfp4.__main__ import main
from nvfp4.bench import experts, timing

TINY = experts.Model("tiny", 16, 4, 256, 96)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "MODELS", (TINY,))


def test_the_table_and_the_file_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "experts.json"
    assert main(["bench", "--set", "experts", "--m", "1,5", "--repeat", "3", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("tiny")] == [["tiny", "1"], ["tiny", "5"]]
    stored = json.loads(path.read_text())
    for one in stored["results"]:
        assert min(TINY.choices, TINY.experts) <= one["hit"] <= TINY.experts
        assert set(one["seconds"]) == set(experts.names_of("bfloat16")) and one["seconds"]["layer"]["median"] > 0
    first = stored["results"][0]
    assert first["hit"] == 4  # one token has its own four experts


def test_experts_of_the_other_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "experts.json"
    words = ["bench", "--set", "experts", "--dtype", "float16", "--m", "3", "--repeat", "3", "--json", str(path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("dtype: float16; hardware: ") and "W4A16 is faster than torch fp16" in out
    (one,) = json.loads(path.read_text())["results"]
    assert list(one["seconds"]) == ["layer", "route and combine", "torch fp16", "layer W4A4"]


def test_a_wrong_layer_is_not_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    activated = experts.gated_grouped_gemm
    monkeypatch.setattr(experts, "gated_grouped_gemm", lambda *given, **how: activated(*given, "gelu_tanh", **how))
    assert main(["bench", "--set", "experts", "--m", "3"]) == 1
    assert "tiny, 3 tokens: our layer and torch's differ by" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(experts, "MODELS", (TINY,))
    right = experts.gated_grouped_quantize
    monkeypatch.setattr(
        experts, "gated_grouped_quantize", lambda a, b, *rest, **form: right(a, b.flip(1), *rest, **form)
    )
    assert main(["bench", "--set", "experts", "--m", "3"]) == 1
    assert "tiny, 3 tokens: our layer and torch's differ by" in capsys.readouterr().err


class Recorded:
    """A clock of calls that return their seconds."""

    def __init__(self) -> None:
        self.passed = 0.0

    def warm_up(self, call: Callable[[int], float]) -> float:
        self.passed += 4 * call(0)
        return call(0)

    def run(self, calls: Sequence[Callable[[], float]]) -> list[float]:
        seconds = [call() for call in calls]
        self.passed += sum(seconds)
        return seconds

    def back_to_back(self, calls: Sequence[Callable[[], float]]) -> timing.StreamTime:
        return timing.StreamTime(sum(self.run(calls)) / len(calls), None)


def test_the_calls_of_a_run_take_two_minutes_of_an_h100() -> None:
    """By the times that one has measured, with as much for W4A4 as for W4A16. Ten seconds for the slowest
    implementation made 440 s."""
    clock = Recorded()
    rows = recorded.rows(ROOT / "benchmarks/log/experts_h100.csv")
    assert len(rows) == len(experts.TOKENS) * 4
    for row in rows:
        graphs = [experts.ROUTINGS * 1e-6 * float(row[f"{name} us"]) for name in experts.names_of("bfloat16")[:3]]
        made = [timing.Implementation(str(i), lambda _, s=s: s) for i, s in enumerate([*graphs, graphs[0]])]
        experts.time_all(made, clock, None, on_gpu=True)
        assert all(len(one.back_to_back) >= 5 for one in made)
    assert 30 < clock.passed < 120


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(experts.machine, "free_memory", lambda device: 1000)
    assert main(["bench", "--set", "experts", "--m", "1"]) == 0
    assert "tiny is left out: needs 3.02 MB, 1.00 kB are free" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option", ["--backend=cpu", "--against=bf16", "--against=bf16,marlin", "--csv=x", "--plot=x", "--markdown"]
)
def test_options_of_other_sets(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--set", "experts", option]) == 2
    name = option.partition("=")[0]
    assert f"--set experts has its own baseline and table: {name} does not go with it" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_layer_is_that_of_dense_weights(dtype: torch.dtype) -> None:
    """Against a loop over tokens and experts in fp64 of the 16-bit weights."""
    generator = torch.Generator().manual_seed(torch.initial_seed() % 2**31)
    weights = experts.make_weights(TINY, torch.device("cpu"), generator, dtype)
    routing = experts.make_routing(TINY, 3, torch.device("cpu"), generator, dtype)
    wanted = torch.zeros(3, TINY.hidden, dtype=torch.float64)
    for t in range(3):
        for e, w in zip(routing.ids[t], routing.weights[t]):
            y = weights.wide[0][e].double() @ routing.x[t].double()
            h = torch.nn.functional.silu(y[: TINY.inner]) * y[TINY.inner :]
            wanted[t] += w.double() * (weights.wide[1][e].double() @ h)
    found = experts.layer(TINY, weights, routing)
    assert found.dtype == dtype == experts.baseline(TINY, weights, routing).dtype
    most = {torch.bfloat16: 2**-6, torch.float16: 2**-9}[dtype]
    assert (found.double() - wanted).norm() <= most * wanted.norm()
    found = experts.layer_w4a4(TINY, weights, routing)
    assert found.dtype == dtype
    assert 2**-6 * wanted.norm() < (found.double() - wanted).norm() <= experts.AGREEMENT_W4A4 * wanted.norm()
