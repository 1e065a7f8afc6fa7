"""The programs that run vLLM on a GPU, without vLLM: what they call equal, and the checkpoints that they make.

tests/hosts/vllm_cuda.py compares whole models with transformers; benchmarks/vllm_steps.py times them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import recorded
import torch
from paths import BENCHMARKS, ROOT, TESTS

pytest.importorskip("transformers")


def program(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


runs = program(TESTS / "hosts" / "vllm_cuda.py")
steps = program(BENCHMARKS / "vllm_steps.py")
VOCABULARY, TOKENS = 32, 9


class Host:
    """support/vllm_host.py with a model whose log probabilities are given. `moved` is how far attention moves them."""

    def __init__(self, moved: float) -> None:
        self.moved = moved
        self.expected = torch.randn(TOKENS, VOCABULARY, dtype=torch.float64).log_softmax(-1)
        self.tokens = self.expected.argmax(1).tolist()

    def output(self, off: float = 0.0, wrong: int = 0) -> Any:
        """vLLM's, with log probabilities `off` and the first tokens wrong."""
        tokens = [(t + 1) % VOCABULARY if i < wrong else t for i, t in enumerate(self.tokens)]
        steps = [
            {t: SimpleNamespace(logprob=float(self.expected[i, t]) + off), 3: SimpleNamespace(logprob=row[3] + off)}
            for i, (t, row) in enumerate(zip(tokens, self.expected.tolist()))
        ]
        return SimpleNamespace(token_ids=tokens, logprobs=steps)

    def reference(self, model: Any, prompt: list[int]) -> list[int]:
        return self.tokens

    def log_probabilities(
        self, model: Any, prompt: list[int], tokens: list[int], chunk: int | None = None
    ) -> torch.Tensor:
        return self.expected + (self.moved if model.config._attn_implementation == "eager" else 0)


class Model:
    def __init__(self) -> None:
        self.config = SimpleNamespace(_attn_implementation="sdpa")

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name


def compared(
    dtype: str, mode: str = "W4A16", by: str = runs.NVFP4, moved: float = 0.1, **output: Any
) -> dict[str, Any]:
    """A row."""
    made = object.__new__(runs.Checkpoint)
    made.host, made.models, made.greedy = Host(moved), {dtype: Model()}, {}
    cell = runs.Cell(by, "Llama", "modelopt", mode, dtype, "eager")
    return dataclasses.asdict(cell) | made.compared(cell, [[1, 2]], [made.host.output(**output)])


def test_verdicts() -> None:
    """With whether they hold. A 4-bit activation may move in fp32 too."""
    for given, verdict, holds in (
        ({"dtype": "float32"}, "equal tokens", True),
        ({"dtype": "float32", "off": 1e-5}, "equal tokens", True),
        ({"dtype": "float32", "off": 2e-3}, "0.02 times the movement", False),
        ({"dtype": "float32", "wrong": 1}, "0.00 times the movement", False),
        ({"dtype": "float32", "wrong": 1, "mode": "W4A4"}, "equal probabilities", True),
        ({"dtype": "float32", "off": 0.15, "mode": "W4A4"}, "1.50 times the movement", True),
        ({"dtype": "float32", "off": 0.25, "mode": "W4A4"}, "2.50 times the movement", False),
        ({"dtype": "float32", "off": 0.25, "mode": "W4A4", "moved": 0.0}, "transformers does not move", False),
        ({"dtype": "bfloat16", "off": 0.15, "wrong": TOKENS}, "1.50 times the movement", True),
        ({"dtype": "bfloat16", "off": 0.25}, "2.50 times the movement", False),
        ({"dtype": "bfloat16", "off": 0.25, "by": runs.VLLM}, "2.50 times the movement", True),
    ):
        row = compared(**given)
        assert (row["verdict"], runs.holds(row, [row])) == (verdict, holds), given
    row = compared("bfloat16", off=0.25)
    assert row["movement"] == "0.100000" and row["tokens"] == f"{TOKENS}/{TOKENS}"
    for mean, held in (("0.2", True), ("0.1", False)):  # vLLM's own distance where the weights are dense
        assert runs.holds(row, [row, row | {"by": runs.VLLM, "format": runs.DENSE_WEIGHTS, "mean": mean}]) == held
    assert not runs.holds(row | {"verdict": "error: no memory", "mean": ""}, [])


def test_a_bit_that_depends_on_the_batch() -> None:
    made = object.__new__(runs.Checkpoint)
    host = made.host = Host(0.0)
    calls: list[int] = []

    def generate(llm: float, given: list[list[int]]) -> list[Any]:
        calls.append(len(given))
        return [host.output(off=llm * (len(given) > 3)) for _ in given]

    host.generate = generate  # type: ignore[attr-defined]
    cell = runs.Cell(runs.INVARIANT, "Llama", "modelopt", "W4A4", "bfloat16", "alone and in batches")
    given = [[1], [2, 3], [4]]
    assert made.batches(cell, 0.0, given)["verdict"] == "equal bits"
    assert calls == [1, 1, 1, 3, 8]
    row = made.batches(cell, 1e-12, given)
    assert row["verdict"] == "bits of 3 of 6 sequences depend on the batch"
    assert not runs.holds(dataclasses.asdict(cell) | row, [])
    assert runs.holds(dataclasses.asdict(cell) | row | {"by": runs.NVFP4}, [])  # which promises nothing


def test_the_plan() -> None:
    """Every model, format, mode and way; two GPUs where there are two; `--only` takes a part."""
    groups = runs.planned("", 2)
    cells = [cell for group in groups for cell in group]
    assert len(cells) == len(set(cells)) and {cell.way for cell in cells} == set(runs.MODES)
    assert all(len({dataclasses.astuple(cell)[:4] for cell in group}) == 1 for group in groups)
    assert {cell.by for cell in cells} == set(runs.ENVIRONMENTS)
    assert {"Llama", "Qwen3", "Qwen2", "Phi3", *runs.MIXTURES} == {cell.model for cell in cells}
    one = [cell for group in runs.planned("", 1) for cell in group]
    assert [cell for cell in cells if not cell.way.startswith("two GPUs")] == one
    both = {dataclasses.astuple(cell)[1:4] for cell in cells if cell not in one}
    assert both == {(model, *kind) for model in ("Llama", "qwen3-moe") for kind in runs.FORMATS}
    assert {cell.model for group in runs.planned("Phi3", 1) for cell in group} == {"Phi3"}


def test_a_worker_sees_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of several, or all of them for a model on two; never NVLink's multicast."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    one, both = (runs.environment(runs.NVFP4, tmp_path / name, gpu) for name, gpu in (("one", 1), ("both", None)))
    assert one["CUDA_VISIBLE_DEVICES"] == "1" and "CUDA_VISIBLE_DEVICES" not in both
    assert {own["VLLM_ALLREDUCE_USE_SYMM_MEM"] for own in (one, both)} == {"0"}


def test_the_page_has_the_table_of_the_file() -> None:
    rows = recorded.rows(ROOT / "docs" / "proof" / "vllm_cuda.csv")
    page = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
    assert f"<!-- vllm_cuda.py --table -->\n{runs.table(rows)}\n<!-- end of table -->" in page
    failed = [row for row in rows if not runs.holds(row, rows)]
    assert not failed and {row["card"] for row in rows} == {"NVIDIA H100 80GB HBM3"}


class Event:
    """torch.cuda.Event on a GPU whose clock `now` is set by hand, in milliseconds."""

    now = 0.0
    reached = True  # whether the GPU has come to the first event of a step

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.time = Event.now

    def query(self) -> bool:
        return Event.reached

    def elapsed_time(self, other: Event) -> float:
        return other.time - self.time


class Runner:
    """A model runner of vLLM's whose model takes 3 ms, and logits and sampling 1 ms."""

    def execute_model(self, scheduled: str) -> str:
        Event.now += 3
        return f"{scheduled}, run"

    def sample_tokens(self, grammar: None) -> str:
        Event.now += 1
        return "tokens"


def test_the_time_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is counted if the GPU still waits in front of it when all of it is enqueued."""
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", waits.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    runner = Runner()
    clock = steps.GpuClock(runner)

    def step(reached: bool, slower: float = 0.0) -> None:
        monkeypatch.setattr(Event, "reached", reached)
        assert runner.execute_model("batch") == "batch, run"
        Event.now += slower
        assert runner.sample_tokens(None) == "tokens"

    step(True)
    assert not waits and not clock.marks  # it is off
    clock.hold = 0.002
    for reached, slower in ((False, 50.0), (False, 0.0), (True, 90.0), (False, 0.5), (False, 0.0), (False, 60.0)):
        step(reached, slower)
    assert waits == [int(0.002 * steps.CYCLES)] * 6
    assert clock.taken(1, 4) == (0.004, 0.003)  # without the first, the last and the one that was late
    for _ in range(2):
        step(True)
    step(False)
    assert all(value != value for value in clock.taken(0, 3))  # NaN: most were late


def test_kernels_of_a_step() -> None:
    n = steps.PROFILED
    found = [("void a::b<1, int>(int*)", n, 30.0 * n), ("void a::b<2, int>(int*)", 2 * n, 12.0 * n)]
    found += [("Memset (Device)", n, 1.0 * n), ("c", n, 1.5 * n), ("d", n, 2.0 * n), ("host", n, 0.0)]
    assert steps.by_name(found) == [("a::b", "3", "42.0"), ("others", "3", "2.5"), ("d", "1", "2.0")]


@pytest.mark.parametrize(
    ("model", "mode", "linear"),
    [("llama", "W4A4", 14), ("llama", "W4A16", 14), ("mixture", "W4A16", 0), ("mixture", "W4A4", 0)],
)
def test_checkpoints_that_are_timed(
    model: str, mode: str, linear: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nvfp4.transformers

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    steps.write_checkpoint(tmp_path / "model", model, mode)
    loaded = nvfp4.transformers.load(tmp_path / "model", dtype="float32")
    layers = [module for module in loaded.modules() if isinstance(module, nvfp4.Linear)]
    experts = [module for module in loaded.modules() if isinstance(module, nvfp4.Experts)]
    assert len(layers) == linear and {layer.mode for layer in experts} <= {mode} and len(experts) == 2 * (not linear)
    assert all((layer.activations == "nvfp4") == (mode == "W4A4") for layer in layers)
    with torch.no_grad():
        assert loaded(torch.arange(5)[None]).logits.isfinite().all()
    steps.write_checkpoint(tmp_path / "dummy", model, None)
    assert "quantization_config" not in json.loads((tmp_path / "dummy" / "config.json").read_text())
