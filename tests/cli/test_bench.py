"""`nvfp4 bench`: implementations, timing, reports, files, plots and error messages.

On the CPU it runs as a user runs it. Tests of a GPU use a fake one (fake_gpu.py), whose clock gives times by a formula,
so that every figure of a report can be checked.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_gpu
import goals  # benchmarks/goals.py
import pytest
import torch
from python_server import python

from nvfp4.__main__ import main
from nvfp4.bench import baselines, command, limits, report, shapes, timing
from nvfp4.bench.shapes import Shape
from nvfp4.cli import machine, show

CPU = torch.device("cpu")

HOPPER = ["bench", "--set", "hopper", "--backend", "sm90", "--backend", "sm80", "--against", "fp16,fp8"]


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few input sets suffice to be cold, and the limits are of small problems, so that a test is quick."""
    monkeypatch.setattr(baselines, "last_level_cache", lambda: 2**20)
    monkeypatch.setattr(timing, "FLUSH_BYTES", 2**20)
    monkeypatch.setattr(timing, "PAUSE_S", 0)
    monkeypatch.setattr(limits, "LARGEST", 256)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> fake_gpu.Clock:
    clock = fake_gpu.Clock()
    fake_gpu.install(monkeypatch, clock)
    return clock


SQUARE = Shape(8192, 8192, 8192)  # of the set hopper; its goal is cuBLAS's time of the same run


def stored(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "run.json"
    assert main([*arguments, "--json", str(path)]) == 0
    return report.load(path)


# --- on the CPU ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_cache")
def test_ratios_and_times_of_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--backend", "cpu", "--shapes", "2x384x1024,17x129x48", "--repeat", "5", "--json"]
    assert main([*arguments, "--against", "bf16,fp32,dequant"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["command"].endswith(
        "bench --shapes 2x384x1024,17x129x48 --backend cpu --against bf16,fp32,dequant --repeat 5"
    )
    assert answer["set"] is None and answer["device"] == "cpu"
    assert all(word in answer["conditions"] for word in ("hardware", "software", "caches", "back-to-back", "clock"))
    assert [tuple(result["shape"].values()) for result in answer["results"]] == [(2, 384, 1024), (17, 129, 48)]
    for result in answer["results"]:
        assert result["run"] == answer["run"]
        first, *others = result["implementations"]
        assert first["name"] == "nvfp4 cpu" and first["input_sets"] > 2 and "ratio" not in first
        assert [e["name"] for e in others] == [baselines.NAMES[kind] for kind in ("bf16", "fp32", "dequant")]
        for entry in result["implementations"]:
            summaries = [*entry["seconds"].values(), *entry.get("ratio", {}).values()]
            assert len(summaries) == (2 if entry is first else 4)
            for summary in summaries:
                assert 0 < summary["p10"] <= summary["median"] <= summary["p90"]
            assert [s["samples"] for s in summaries] == [5, 3] * (len(summaries) // 2)
    assert set(answer["host"]["seconds"]) == {
        "nvfp4 cpu",
        *(baselines.NAMES[kind] for kind in ("bf16", "fp32", "dequant")),
    }
    assert answer["limits"]["bytes_per_s"] > 0 and answer["limits"]["flops_per_s"] > 0


@pytest.mark.usefixtures("small_cache")
def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--backend", "cpu", "--shapes", "3x64x64", "--repeat", "3", "--against", "fp32"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert out.index("over torch fp32 matmul") < out.index("nvfp4 cpu, ms"), "the ratio comes first"
    assert (
        "bf16 matmul, ms" not in out
        and out.count("single-call (cold caches)") == 2 == out.count("back-to-back\nM x N") + 1
    )
    (host,) = [line for line in out.splitlines() if line.startswith("host cost")]
    assert host.count(" us") == 2
    assert main([*arguments, "--markdown"]) == 0
    tables = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert tables[0].startswith("| M x N x K | over torch") and tables[2].startswith("| 3x64x64 | ")


@pytest.mark.usefixtures("small_cache")
def test_a_wrong_product_is_not_timed(monkeypatch, capsys) -> None:
    monkeypatch.setattr(baselines, "gemm", lambda *args, out, **options: out.fill_(1))
    assert main(["bench", "--backend", "cpu", "--shapes", "4x64x64", "--repeat", "3"]) == 1
    streams = capsys.readouterr()
    assert streams.out == "" and "differ by" in streams.err


def test_every_baseline_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's kinds, fp8 within what e4m3 loses, on input sets that differ."""
    monkeypatch.setattr(baselines, "last_level_cache", lambda: 4000)
    seed = random.SystemRandom().randrange(2**31)
    kinds = [kind for kind in baselines.KINDS if kind not in baselines.OTHERS]
    prepared = baselines.prepare(Shape(5, 48, 64), CPU, [None, "cpu"], kinds, seed, "a run")
    names = [implementation.name for implementation in prepared.implementations]
    assert names == ["nvfp4", "nvfp4 cpu", *(baselines.NAMES[kind] for kind in kinds)], seed
    assert {implementation.run for implementation in prepared.implementations} == {"a run"}
    assert [implementation.name for implementation in prepared.implementations if implementation.note] == [
        "torch fp8 matmul"
    ]
    for i in (0, 1, 2, 7):
        expected = prepared.implementations[0].call(i).double()
        for implementation in prepared.implementations:
            if i < implementation.sets or implementation.ours:
                error = (implementation.call(i).double() - expected).norm() / expected.norm()
                assert error < (baselines.AGREEMENT_FP8 if implementation.note else 5e-3), (implementation.name, seed)
    first, second = (prepared.implementations[0].call(i).clone() for i in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("has_bf16", [False, True])
@pytest.mark.parametrize(("dtype", "plain"), [("float16", "fp16"), ("bfloat16", "bf16")])
def test_results_of_one_dtype(dtype: str, plain: str, has_bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The baselines that --dtype keeps have results of it, and the others have not."""
    monkeypatch.setattr(baselines, "last_level_cache", lambda: 4000)
    monkeypatch.setattr(baselines, "has_bf16", lambda: has_bf16)
    kinds = [kind for kind in baselines.KINDS if kind not in baselines.OTHERS]
    prepared = baselines.prepare(Shape(5, 48, 64), CPU, [None], kinds, 1, dtype=dtype)
    found = {each.name: each.call(0).dtype for each in prepared.implementations}
    kept = [kind for kind in kinds if not baselines.unavailable(kind, CPU, dtype)]
    assert kept == [plain, "fp8", *(["dequant"] if has_bf16 and plain == "bf16" else [])]
    for kind in kinds:
        assert (found[baselines.NAMES[kind]] == getattr(torch, dtype)) == (kind in kept)
    assert found["nvfp4"] == getattr(torch, dtype)


@pytest.mark.usefixtures("small_cache")
def test_baselines_of_another_dtype_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--backend", "cpu", "--shapes", "3x64x64", "--against", "fp16,bf16,fp32", "--dtype", "bfloat16"]
    run = stored(tmp_path, "bench", *words, "--repeat", "3")
    assert report.names(run) == ["nvfp4 cpu", "torch bf16 matmul"] and run["conditions"]["dtype"] == "bfloat16"
    assert "--against fp16,bf16,fp32 --dtype bfloat16 --repeat 3" in run["command"]
    out = capsys.readouterr().out
    for name, own in (("fp16", "float16"), ("fp32", "float32")):
        line = f"left out: torch {name} matmul: its results are {own}, those of --dtype are bfloat16\n"
        assert line in out


@pytest.mark.usefixtures("gpu")
def test_default_baselines_of_a_dtype(tmp_path: Path) -> None:
    run = stored(tmp_path, "bench", "--m", "128", "--dtype", "bfloat16")
    assert report.names(run) == ["nvfp4", *(baselines.NAMES[kind] for kind in ("bf16", "fp8", "dequant"))]
    assert run["left_out"] == {} and run["conditions"]["dtype"] == "bfloat16"


def test_a_baseline_that_rejects_the_shape_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "last_level_cache", lambda: 4000)

    def reject(*args: object, **options: object) -> None:
        raise RuntimeError("no such shape\nand a trace")

    monkeypatch.setattr(torch, "_scaled_mm", reject)
    ragged = baselines.prepare(Shape(2, 24, 32), CPU, [None], ["fp8", "fp32"], 0)
    assert [implementation.name for implementation in ragged.implementations] == ["nvfp4", "torch fp32 matmul"]
    assert ragged.left_out == {"torch fp8 matmul": "at 2x24x32: no such shape"}


def test_without_a_gpu_no_gpu_backend() -> None:
    arguments = ["bench", "--backend", "cpu", "--backend", "sm80", "--shapes", "1x16x16"]
    done = python("-m", "nvfp4", *arguments, env={"NVFP4_LIBCUDA": "/nowhere/libcuda.so.1"})
    assert done.returncode == 2 and "/nowhere/libcuda.so.1" in done.stderr and done.stdout == ""


# --- shapes --------------------------------------------------------------------------------------------------------


def test_sets_of_shapes() -> None:
    ranked = shapes.SETS["ranked"](None)
    assert [str(shape) for shape in ranked[:3]] == ["1x7168x16384", "16x7168x16384", "128x7168x16384"]
    assert len(ranked) == 9 and len(shapes.SETS["ranked"]([128])) == 3
    hopper = shapes.SETS["hopper"](None)
    assert set(hopper) - {SQUARE} == set(goals.GOALS) > set(goals.PUBLISHED) and len(hopper) == 29
    assert {shape.m for shape in shapes.SETS["hopper"]([4])} == {4}
    for name, rows in (("decode", shapes.DECODE_M), ("prefill", shapes.PREFILL_M)):
        found = shapes.SETS[name](None)
        assert len(found) == len(set(found)) == len(shapes.LAYERS) * len(rows)
        assert all(shapes.layer_of(shape) for shape in found)
    assert min(shapes.DECODE_M) == 1 and max(shapes.DECODE_M) == 64
    assert len({(layer.n, layer.k) for layer in shapes.LAYERS}) == len(shapes.LAYERS)
    assert len({(layer.model, layer.layer) for layer in shapes.LAYERS}) == len(shapes.LAYERS)
    assert shapes.layer_of(Shape(1, 16, 16)) is None


def test_least_work_of_a_shape() -> None:
    shape = Shape(2, 3, 32)
    assert shape.operations == 2 * 2 * 3 * 32
    assert shape.bytes == (2 + 3) * (16 + 2) + 2 * 2 * 3


# --- rounds, clocks -----------------------------------------------------------------------------------------------


def test_implementations_alternate() -> None:
    """The first one rotates, a slow one skips rounds, and a ratio pairs only rounds in which both ran."""
    log = []

    class Clock:
        def warm_up(self, call):
            return 4.0 if call(0) == "slow" else 1e-3

        def run(self, calls):
            return [{"fast": 1.0, "other": 2.0, "slow": 3.0 + len(log)}[call()] for call in calls]

    def implementation(name: str) -> timing.Implementation:
        return timing.Implementation(name, lambda turn: log.append((turn, name)) or name)

    fast, other, slow = (implementation(name) for name in ("fast", "other", "slow"))
    timing.run_single_call_rounds([fast, other, slow], Clock(), 13)
    log = log[3:]  # warm-up
    assert [name for turn, name in log if turn == 1] == ["other", "fast"]
    assert [name for turn, name in log if turn == 8] == ["slow", "fast", "other"]
    assert sorted(fast.single_call) == list(range(13)) and sorted(slow.single_call) == [0, 4, 8, 12]
    assert timing.ratio(other, fast) == timing.Spread(2.0, 2.0, 2.0, 13)
    assert timing.ratio(slow, fast).samples == 4


def test_back_to_back_calls_continue_through_the_inputs() -> None:
    """Each implementation in turn, as many calls as its time allows, on the inputs after those of the last round."""
    log: list[tuple[str, list[int]]] = []

    class Clock:
        def back_to_back(self, calls):
            answers = [call() for call in calls]
            log.append((answers[0][0], [i for _, i in answers]))
            return timing.StreamTime(2.0 if answers[0][0] == "a" else 6.0, 1e-6)

    def implementation(name: str, estimate: float) -> timing.Implementation:
        made = timing.Implementation(name, lambda i: (name, i))
        made.estimate = estimate
        return made

    a, b = implementation("a", 0.02), implementation("b", 1e-6)
    timing.run_back_to_back_rounds([a, b], Clock(), 2)
    assert [name for name, _ in log] == ["a", "b", "b", "a"]
    assert [inputs for name, inputs in log if name == "a"] == [list(range(12)), list(range(12, 24))]
    assert [inputs for name, inputs in log if name == "b"] == [list(range(50)), list(range(50, 100))]
    assert timing.ratio(b, a, "back_to_back") == timing.Spread(3.0, 3.0, 3.0, 2) and a.host == [1e-6] * 2
    a.estimate = 10.0
    assert a.back_to_back_calls() == 2
    a.estimate, b.estimate = 0.5, 0.0
    for budget, rounds in ((0.0, 3), (5.5, 5), (100.0, 9)):
        del log[:]
        timing.run_back_to_back_rounds([a, b], Clock(), 9, budget)
        assert len(log) == 2 * rounds


def test_no_ratio_of_two_runs() -> None:
    a, b = (
        timing.Implementation(name, lambda i: None, run, single_call={0: 1.0}) for name, run in (("a", "1"), ("b", "2"))
    )
    with pytest.raises(ValueError, match="no ratio of two runs"):
        timing.ratio(a, b)


def test_spread() -> None:
    spread = timing.Spread.of([float(i) for i in range(101)])
    assert (spread.median, spread.p10, spread.p90, spread.samples) == (50, 10, 90, 101)


def fake_cuda(too_short: int) -> tuple[timing.DeviceClock, list[str]]:
    """The clock of a GPU that only keeps a log; `too_short` writes end before four calls are enqueued."""
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def query(self) -> bool:
            return log.count("write") == too_short

        def elapsed_time(self, end: object) -> float:
            return 0.008

    clock = object.__new__(timing.DeviceClock)
    clock.flush = SimpleNamespace(fill_=lambda value: log.append("write"))
    clock.torch = SimpleNamespace(cuda=SimpleNamespace(Event=Event, synchronize=lambda: log.append("wait")))
    clock.value, clock.writes = 0, 1
    return clock, log


def test_single_calls_after_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = fake_cuda(too_short=0)
    assert clock.run([lambda: log.append("a"), lambda: log.append("b")]) == pytest.approx([8e-6, 8e-6])
    assert log == ["write", "event", "a", "event", "write", "event", "b", "event", "wait"]
    assert clock.empty_pair(3) == pytest.approx(8e-6)
    clock, log = fake_cuda(too_short=1)  # the first write ended too early
    assert clock.run([lambda: log.append("a")]) == pytest.approx([8e-6])
    assert log == ["write", "event", "a", "event"] * 2 + ["wait"]
    monkeypatch.setattr(timing, "MAX_TRIES", 1)
    clock, _ = fake_cuda(too_short=1)
    with pytest.raises(show.Failure, match="did not enqueue"):
        clock.run([lambda: None])


def test_back_to_back_calls_after_writes() -> None:
    """The calls are enqueued between two events after the writes; the times are per call."""
    clock, log = fake_cuda(too_short=1)
    timed = clock.back_to_back([lambda: log.append("call")] * 4)
    assert clock.writes == 2 and timed.seconds == pytest.approx(2e-6) and 0 < timed.host < 1
    calls = ["event", *["call"] * 4, "event", "wait"]
    assert log == ["write", *calls, "write", "write", *calls]


def test_rotation_exceeds_the_cache_or_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "last_level_cache", lambda: 1000)
    monkeypatch.setattr(machine, "available_memory", lambda: 10**6)
    assert baselines.rotation({"x": 300, "y": 2000}, CPU) == ({"x": 5, "y": 2}, True)
    assert baselines.rotation({"x": 300, "y": 2000}, CPU, most=3) == ({"x": 3, "y": 2}, False)
    monkeypatch.setattr(machine, "available_memory", lambda: 5000)
    sets, cold = baselines.rotation({"x": 300, "y": 2000}, CPU)
    assert not cold and sets == {"x": 2, "y": 1}


@pytest.mark.usefixtures("gpu")
def test_rotation_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the L2 of 60 MiB, or a set for each back-to-back call; at least three."""
    free = 100 * 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    sizes = {"small": 1000, "expert down": 9 * 2**20, "large": 2**28}
    assert baselines.rotation(sizes, fake_gpu.GPU) == ({"small": 50, "expert down": 27, "large": 3}, True)
    free = 2**30
    assert not baselines.rotation(sizes, fake_gpu.GPU)[1]


def test_baselines_that_a_gpu_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, why in (((8, 0), "needs compute capability 8.9, this GPU has 8.0"), ((8, 9), ""), ((9, 0), "")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        assert baselines.unavailable("fp8", fake_gpu.GPU) == why and baselines.unavailable("fp16", fake_gpu.GPU) == ""
    assert baselines.unavailable("fp8", CPU) == ""


def test_clocks_are_those_of_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(uuid="123")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    asked = []

    def smi(command: list[str], **options: object) -> SimpleNamespace:
        asked.append(command)
        return SimpleNamespace(stdout="580.1, 1980, 1980, 3201, 98.5, 700.00, P0, 31\n")

    monkeypatch.setattr(subprocess, "run", smi)
    state = machine.clocks(fake_gpu.GPU)
    assert "--id=GPU-123" in asked[0] and any("pstate" in word for word in asked[0])
    assert state == (
        "SM 1980 of 1980 MHz, memory 3201 MHz, 98.5 of 700.00 W, P0, 31 C; not locked (nvidia-smi, driver 580.1)"
    )
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: SimpleNamespace(stdout="what?"))
    assert "unknown" in machine.clocks(fake_gpu.GPU)


# --- a run on a fake GPU -------------------------------------------------------------------------------------------


def test_figures_of_a_run(gpu: fake_gpu.Clock, tmp_path: Path) -> None:
    """Every median, ratio and floor is that of the fake GPU."""
    gpu.noise = 0.0
    run = stored(tmp_path, *HOPPER)
    assert {shapes_of(result) for result in run["results"]} == set(goals.GOALS) | {SQUARE}
    assert run["left_out"] == {} and run["conditions"]["clocks before"] and run["conditions"]["clocks after"]
    for result in run["results"]:
        shape, first = shapes_of(result), result["implementations"][0]
        assert [entry["name"] for entry in result["implementations"]] == list(fake_gpu.PRODUCTS)
        assert [entry["ours"] for entry in result["implementations"]] == [True, True, False, False]
        for entry in result["implementations"]:
            expected = fake_gpu.seconds(entry["name"], shape)
            assert entry["seconds"]["back_to_back"]["median"] == pytest.approx(expected, rel=1e-4)
            assert entry["seconds"]["single_call"]["median"] == pytest.approx(expected + 3e-6, rel=1e-4)
            assert (
                entry["seconds"]["single_call"]["samples"] == 200 and entry["seconds"]["back_to_back"]["samples"] == 20
            )
            assert entry["host"]["median"] == pytest.approx(fake_gpu.HOST_S)
            if entry is not first:
                ratio = expected / fake_gpu.seconds(first["name"], shape)
                assert entry["ratio"]["back_to_back"]["median"] == pytest.approx(ratio, rel=1e-4)
        floor = max(shape.bytes / fake_gpu.COPY, shape.operations / fake_gpu.MATH)
        assert report.floor(run, shape) == pytest.approx(floor)


def shapes_of(result: dict[str, Any]) -> Shape:
    return Shape(**result["shape"])


def test_a_run_of_the_hopper_set_is_short(gpu: fake_gpu.Clock, tmp_path: Path) -> None:
    """The GPU's time: with startup, checks and setup the run must take less than a minute and a half."""
    stored(tmp_path, *HOPPER)
    assert 5 < gpu.spent < 35


@pytest.mark.usefixtures("gpu")
def test_the_report_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stored(tmp_path, *HOPPER)
    out = capsys.readouterr().out
    assert "not exact: rounds to e4m3" in out and "goal" not in out
    means = report.geometric_means(run)
    assert len(means) == 2 and all(line in out for line in means)
    cold = [next(r for r in run["results"] if shapes_of(r) == s) for s in shapes.task_shapes([128])]
    ratios = [
        entry["ratio"]["single_call"]["median"]
        for r in cold
        for entry in r["implementations"]
        if "fp16" in entry["name"]
    ]
    assert f"{math.prod(ratios) ** (1 / 3):.2f} over torch fp16 matmul" in means[0]
    (host,) = [line for line in out.splitlines() if line.startswith("host cost")]
    assert host.count(" us") == 4


@pytest.mark.usefixtures("gpu")
def test_goals_are_those_of_one_gpu_and_backend(tmp_path: Path, monkeypatch, capsys) -> None:
    """benchmarks/goals.py"""
    path = tmp_path / "run.json"
    run = stored(tmp_path, *HOPPER)
    monkeypatch.setattr(sys, "argv", ["goals.py", str(path)])
    capsys.readouterr()
    assert goals.main() == 0
    out = capsys.readouterr().out
    late = [each for each in run["results"] if goals.median_us(each) > goals.GOALS.get(shapes_of(each), math.inf)]
    assert sum("missed by" in line for line in out.splitlines()) == len(late) > 0
    assert "nvfp4 sm90" in out and "Humming W4A16 29.7 us" in out and goals.means(run) in out
    for hardware, kernel in (("NVIDIA A100", "nvfp4_sm90_gemm_128x256"), ("NVIDIA H200", "nvfp4_sm80_gemm_128x256")):
        run["conditions"]["hardware"] = hardware
        for result in run["results"]:
            result["implementations"][0]["kernel"] = kernel
        path.write_text(json.dumps(run))
        assert goals.main() == 2
        streams = capsys.readouterr()
        assert streams.out == "" and "is not a run of the sm90 kernels on an H200 or an H100" in streams.err
    assert goals.goal_cell(Shape(1, 7168, 16384), 22.5) == "22.5 (met)"
    assert goals.goal_cell(Shape(1, 7168, 16384), 45.0) == "22.5 (missed by 100%)"
    assert goals.goal_cell(Shape(3, 7168, 16384), 38.0) == "-"


@pytest.mark.usefixtures("gpu")
def test_means_need_all_ranked_shapes(tmp_path: Path) -> None:
    run = stored(tmp_path, "bench", "--m", "16")
    assert report.geometric_means(run) == [] and goals.means(run) == ""


def test_layers_are_named(gpu: fake_gpu.Clock, tmp_path: Path, capsys) -> None:
    run = stored(tmp_path, "bench", "--set", "decode", "--m", "8", "--repeat", "10")
    out = capsys.readouterr().out
    assert len(run["results"]) == len(shapes.LAYERS)
    for layer in shapes.LAYERS:
        assert out.count(f"{layer.model}, {layer.layer}") >= 4


def test_fp8_is_left_out_with_the_reason(monkeypatch, tmp_path, capsys) -> None:
    fake_gpu.install(monkeypatch, fake_gpu.Clock(), capability=(8, 0))
    run = stored(tmp_path, "bench", "--m", "128")
    assert report.names(run) == ["nvfp4", "torch fp16 matmul", "torch dequantize + matmul"]
    assert "left out: torch fp8 matmul: needs compute capability 8.9, this GPU has 8.0" in capsys.readouterr().out


@pytest.mark.usefixtures("gpu")
def test_one_implementation_alone_has_no_ratios(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "default_kinds", lambda device, dtype: [])
    run = stored(tmp_path, "bench", "--m", "128", "--markdown")
    assert "Speed-up" not in capsys.readouterr().out and len(report.tables(run)) == 2
    assert all("over" not in column for column in report.compact_table(run)[1])


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
def test_a_stored_run_is_reported_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"--{kind}={tmp_path / name}" for kind, name in (("json", "a"), ("csv", "b"), ("plot", "c"))]
    assert main([*HOPPER, *files]) == 0
    first = capsys.readouterr().out
    again = [f"--{kind}={tmp_path / name}" for kind, name in (("json", "a2"), ("csv", "b2"), ("plot", "c2"))]
    assert main(["bench", "--from", str(tmp_path / "a"), *again]) == 0
    assert capsys.readouterr().out == first
    for name in "abc":
        assert (tmp_path / name).read_bytes() == (tmp_path / f"{name}2").read_bytes()
    assert main(["bench", "--from", str(tmp_path / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "a").read_text())


@pytest.mark.usefixtures("gpu")
def test_csv(tmp_path: Path) -> None:
    run = stored(tmp_path, *HOPPER)
    lines = list(csv.DictReader(io.StringIO(report.csv_text(run))))
    assert len(lines) == 29 * 4 * 2 and {line["run"] for line in lines} == {run["run"]}
    assert {line["figure"] for line in lines} == set(report.MODES)
    line = lines[2]  # the second implementation, a single call
    entry = run["results"][0]["implementations"][1]
    assert line["implementation"] == "nvfp4 sm80" and (line["m"], line["n"], line["k"]) == ("1", "7168", "16384")
    assert float(line["median_us"]) == pytest.approx(entry["seconds"]["single_call"]["median"] * 1e6)
    assert float(line["ratio"]) == entry["ratio"]["single_call"]["median"]
    assert lines[0]["ratio"] == "" and float(line["floor_us"]) > 0 and float(line["host_us"]) > 0


def tampered(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    run = json.loads(path.read_text())
    change(run)
    path.with_name("other.json").write_text(json.dumps(run))
    with pytest.raises(show.CommandError) as error:
        report.load(path.with_name("other.json"))
    return str(error.value)


@pytest.mark.usefixtures("gpu")
def test_a_file_of_two_runs_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = stored(tmp_path, "bench", "--m", "128", "--repeat", "10")
    two = stored(tmp_path, "bench", "--m", "16", "--repeat", "10")
    assert one["run"] != two["run"]
    path = tmp_path / "run.json"
    why = tampered(path, lambda run: run["results"].extend(one["results"]))
    assert one["run"] in why and two["run"] in why and "no ratio is taken between two runs" in why
    assert report.FORMAT in tampered(path, lambda run: run.update(format="another"))
    path.write_text("{")
    capsys.readouterr()
    assert main(["bench", "--from", str(path)]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and "cannot be read" in streams.err


# --- errors, progress ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--against", "fp16,int3"], "'int3' is none of"),
        (["--set", "training"], "training"),
        (["--set", "ranked", "--shapes", "1x16x16"], "not allowed with"),
        (["--from", "x.json", "--shapes", "1x16x16"], "not allowed with"),
        (["--backend", "cpu", "--backend", "cpu"], "given twice"),
        (["--markdown", "--json"], "give --json a file"),
        (["--shapes", "1x16x16", "--m", "2"], "--m goes with --set"),
        (["--from", "x.json", "--m", "2"], "--from times nothing"),
        (["--from", "x.json", "--dtype", "float16"], "--from times nothing"),
        (["--tune", "--dtype", "float16"], "--tune times"),
        (["--from", "x.json", "--backend", "cpu"], "--from times nothing"),
        (["--plot", "/nowhere/at/all.svg"], "there is no folder /nowhere/at"),
        (["--from", "/nowhere/run.json"], "cannot be read"),
        (["--tune", "--plot", "x.svg"], "--tune times"),
        (["--tune", "--backend", "sm100", "--backend", "sm80"], "one backend"),
    ],
)
def test_arguments_that_are_rejected(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["bench", *arguments])
    except SystemExit as stop:  # argparse's
        status = stop.code
    streams = capsys.readouterr()
    assert status == 2 and words in streams.err and streams.out == ""


def test_backends_on_two_devices_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = {"cpu": machine.Target(CPU, CPU, "cpu"), "sm80": machine.Target(fake_gpu.GPU, fake_gpu.GPU, "sm80")}
    monkeypatch.setattr(machine, "pick_target", lambda backend: targets[backend])
    with pytest.raises(show.CommandError, match="cpu on cpu, sm80 on cuda:0; only implementations on one device"):
        command.pick_target(["cpu", "sm80"])
    assert command.pick_target(["sm80"]) is targets["sm80"]


@pytest.mark.usefixtures("gpu")
def test_progress_is_a_line_a_shape_unless_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--m", "128", "--repeat", "5", "--json"]) == 0
    streams = capsys.readouterr()
    assert "[1/4] bench 128x7168x16384\n" in streams.err and "[4/4] bench: limits" in streams.err
    json.loads(streams.out)
