"""`nvfp4 bench`: what it compares, how it times, what it says, and what it refuses to say.

On the CPU it runs as a user runs it. What needs a GPU runs on a made-up one (made_up_gpu.py), whose clock tells times
by a formula, so that every figure of a report can be checked.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import made_up_gpu
import pytest
import torch

from nvfp4.__main__ import main
from nvfp4.cli import bench, goals, machine, plot, report, rivals, shapes, show, timing
from nvfp4.cli.shapes import Shape

CPU = torch.device("cpu")
HOPPER = ["bench", "--set", "hopper", "--backend", "sm90", "--backend", "sm80", "--against", "fp16,fp8"]


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few input sets suffice to be cold, and small limits are measured, so that a test is quick."""
    monkeypatch.setattr(rivals, "last_level_cache", lambda: 2**20)
    monkeypatch.setattr(timing, "FLUSH_BYTES", 2**20)
    monkeypatch.setattr(timing, "PAUSE_S", 0)
    rate = timing.matmul_rate
    monkeypatch.setattr(
        timing, "matmul_rate", lambda clock, device, dtype, size, repeat: rate(clock, device, dtype, 64, 3)
    )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> made_up_gpu.Clock:
    clock = made_up_gpu.Clock()
    made_up_gpu.install(monkeypatch, clock)
    return clock


def stored(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "run.json"
    assert main([*arguments, "--json", str(path)]) == 0
    return report.load(path)


# --- on the CPU ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_cache")
def test_ratios_and_times_of_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--backend", "cpu", "--shapes", "2x384x1024,17x129x48", "--repeat", "5", "--json"]
    assert main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["command"].endswith("bench --shapes 2x384x1024,17x129x48 --backend cpu --repeat 5")
    assert answer["set"] is None and answer["device"] == "cpu"
    assert all(word in answer["conditions"] for word in ("hardware", "software", "caches", "back to back", "clock"))
    assert [tuple(result["shape"].values()) for result in answer["results"]] == [(2, 384, 1024), (17, 129, 48)]
    for result in answer["results"]:
        assert result["run"] == answer["run"]
        first, *others = result["contestants"]
        assert first["name"] == "nvfp4 cpu" and first["input_sets"] > 2 and "ratio" not in first
        assert [e["name"] for e in others] == [rivals.NAMES[kind] for kind in ("bf16", "fp32", "dequant")]
        for entry in result["contestants"]:
            summaries = [*entry["seconds"].values(), *entry.get("ratio", {}).values()]
            assert len(summaries) == (2 if entry is first else 4)
            for summary in summaries:
                assert 0 < summary["p10"] <= summary["median"] <= summary["p90"]
            assert [s["samples"] for s in summaries] == [5, 3] * (len(summaries) // 2)
    assert set(answer["host"]["seconds"]) == {
        "nvfp4 cpu",
        *(rivals.NAMES[kind] for kind in ("bf16", "fp32", "dequant")),
    }
    assert answer["limits"]["bytes_per_s"] > 0 and "bf16" in answer["limits"]["flops_of"]


@pytest.mark.usefixtures("small_cache")
def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--backend", "cpu", "--shapes", "3x64x64", "--repeat", "3", "--against", "fp32"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert out.index("over torch fp32 matmul") < out.index("nvfp4 cpu, ms"), "the ratio comes first"
    assert "bf16 matmul, ms" not in out and out.count("single call, cold") == 2 == out.count("back to back\nM x N") + 1
    (host,) = [line for line in out.splitlines() if line.startswith("host cost")]
    assert host.count(" us") == 2
    assert main([*arguments, "--markdown"]) == 0
    tables = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert tables[0].startswith("| M x N x K | over torch") and tables[2].startswith("| 3x64x64 | ")


@pytest.mark.usefixtures("small_cache")
def test_a_wrong_product_is_not_timed(monkeypatch, capsys) -> None:
    monkeypatch.setattr(rivals, "gemm", lambda *args, out, **options: out.fill_(1))
    assert main(["bench", "--backend", "cpu", "--shapes", "4x64x64", "--repeat", "3"]) == 1
    streams = capsys.readouterr()
    assert streams.out == "" and "differ by" in streams.err


def test_every_rival_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds, fp8 within what e4m3 loses, on input sets that differ."""
    monkeypatch.setattr(rivals, "last_level_cache", lambda: 4000)
    seed = random.SystemRandom().randrange(2**31)
    lined_up = rivals.line_up(Shape(5, 48, 64), CPU, [None, "cpu"], rivals.KINDS, seed, "a run")
    names = [contestant.name for contestant in lined_up.contestants]
    assert names == ["nvfp4", "nvfp4 cpu", *rivals.NAMES.values()], seed
    assert {contestant.run for contestant in lined_up.contestants} == {"a run"}
    assert [contestant.name for contestant in lined_up.contestants if contestant.note] == ["torch fp8 matmul"]
    for i in (0, 1, 2, 7):
        expected = lined_up.contestants[0].call(i).double()
        for contestant in lined_up.contestants:
            if i < contestant.sets or contestant.ours:
                error = (contestant.call(i).double() - expected).norm() / expected.norm()
                assert error < (rivals.AGREEMENT_FP8 if contestant.note else 5e-3), (contestant.name, seed)
    first, second = (lined_up.contestants[0].call(i).clone() for i in (0, 1))
    assert not torch.equal(first, second)


def test_fp8_sits_out_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "last_level_cache", lambda: 4000)

    def refuses(*args: object, **options: object) -> None:
        raise RuntimeError("no such shape\nand a trace")

    monkeypatch.setattr(torch, "_scaled_mm", refuses)
    ragged = rivals.line_up(Shape(2, 24, 32), CPU, [None], ["fp8", "fp32"], 0)
    assert [contestant.name for contestant in ragged.contestants] == ["nvfp4", "torch fp32 matmul"]
    assert ragged.left_out == {"torch fp8 matmul": "at 2x24x32: no such shape"}


def test_without_a_gpu_no_gpu_backend() -> None:
    arguments = ["bench", "--backend", "cpu", "--backend", "sm80", "--shapes", "1x16x16"]
    program = [sys.executable, "-m", "nvfp4", *arguments]
    done = subprocess.run(program, env={"NVFP4_LIBCUDA": "/nowhere/libcuda.so.1"}, capture_output=True, text=True)
    assert done.returncode == 2 and "/nowhere/libcuda.so.1" in done.stderr and done.stdout == ""


# --- shapes --------------------------------------------------------------------------------------------------------


def test_sets_of_shapes() -> None:
    ranked = shapes.SETS["ranked"](None)
    assert [str(shape) for shape in ranked[:3]] == ["1x7168x16384", "16x7168x16384", "128x7168x16384"]
    assert len(ranked) == 9 and len(shapes.SETS["ranked"]([128])) == 3
    hopper = shapes.SETS["hopper"](None)
    assert set(hopper) == set(goals.GOALS) == set(goals.FIGURES) and len(hopper) == 16
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


# --- turns, clocks -------------------------------------------------------------------------------------------------


def test_contestants_take_turns() -> None:
    """The first one rotates, a slow one sits out, and a ratio pairs only rounds in which both ran."""
    log = []

    class Clock:
        def warm_up(self, call):
            return 4.0 if call(0) == "slow" else 1e-3

        def run(self, calls):
            return [{"fast": 1.0, "other": 2.0, "slow": 3.0 + len(log)}[call()] for call in calls]

    def contestant(name: str) -> timing.Contestant:
        return timing.Contestant(name, lambda turn: log.append((turn, name)) or name)

    fast, other, slow = (contestant(name) for name in ("fast", "other", "slow"))
    timing.compete([fast, other, slow], Clock(), 13)
    log = log[3:]  # warm-up
    assert [name for turn, name in log if turn == 1] == ["other", "fast"]
    assert [name for turn, name in log if turn == 8] == ["slow", "fast", "other"]
    assert sorted(fast.cold) == list(range(13)) and sorted(slow.cold) == [0, 4, 8, 12]
    assert timing.ratio(other, fast) == timing.Spread(2.0, 2.0, 2.0, 13)
    assert timing.ratio(slow, fast).samples == 4


def test_queues_go_on_through_the_inputs() -> None:
    """Each contestant in turn, as many calls as its time allows, on the inputs after those of the queue before."""
    log: list[tuple[str, list[int]]] = []

    class Clock:
        def queue(self, calls):
            answers = [call() for call in calls]
            log.append((answers[0][0], [i for _, i in answers]))
            return timing.Queued(2.0 if answers[0][0] == "a" else 6.0, 1e-6)

    def contestant(name: str, estimate: float) -> timing.Contestant:
        made = timing.Contestant(name, lambda i: (name, i))
        made.estimate = estimate
        return made

    a, b = contestant("a", 0.02), contestant("b", 1e-6)
    timing.compete_in_queues([a, b], Clock(), 2)
    assert [name for name, _ in log] == ["a", "b", "b", "a"]
    assert [inputs for name, inputs in log if name == "a"] == [list(range(12)), list(range(12, 24))]
    assert [inputs for name, inputs in log if name == "b"] == [list(range(50)), list(range(50, 100))]
    assert timing.ratio(b, a, "queued") == timing.Spread(3.0, 3.0, 3.0, 2) and a.host == [1e-6] * 2
    a.estimate = 10.0
    assert a.queue_calls() == 3


def test_no_ratio_of_two_runs() -> None:
    a, b = (timing.Contestant(name, lambda i: None, run, cold={0: 1.0}) for name, run in (("a", "1"), ("b", "2")))
    with pytest.raises(ValueError, match="no ratio of two runs"):
        timing.ratio(a, b)


def test_spread() -> None:
    spread = timing.Spread.of([float(i) for i in range(101)])
    assert (spread.median, spread.p10, spread.p90, spread.samples) == (50, 10, 90, 101)


def fake_cuda(too_short: int) -> tuple[timing.DeviceClock, list[str]]:
    """A clock of a GPU that only keeps a log, on which this many writes are over before four calls are queued."""
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


def test_single_calls_behind_writes() -> None:
    clock, log = fake_cuda(too_short=0)
    assert clock.run([lambda: log.append("a"), lambda: log.append("b")]) == pytest.approx([8e-6, 8e-6])
    assert log == ["write", "event", "a", "event", "write", "event", "b", "event", "wait"]
    assert clock.empty_pair(3) == pytest.approx(8e-6)


def test_queue_behind_writes() -> None:
    """The calls are queued between two events behind the writes; time and the host's time are shares of a call."""
    clock, log = fake_cuda(too_short=1)
    queued = clock.queue([lambda: log.append("call")] * 4)
    assert clock.writes == 2 and queued.seconds == pytest.approx(2e-6) and 0 < queued.host < 1
    calls = ["event", *["call"] * 4, "event", "wait"]
    assert log == ["write", *calls, "write", "write", *calls]


def test_rotation_exceeds_the_cache_or_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "last_level_cache", lambda: 1000)
    monkeypatch.setattr(rivals, "available_memory", lambda: 10**6)
    assert rivals.rotation({"x": 300, "y": 2000}, CPU) == ({"x": 5, "y": 2}, True)
    assert rivals.rotation({"x": 300, "y": 2000}, CPU, most=3) == ({"x": 3, "y": 2}, False)
    monkeypatch.setattr(rivals, "available_memory", lambda: 5000)
    sets, cold = rivals.rotation({"x": 300, "y": 2000}, CPU)
    assert not cold and sets == {"x": 2, "y": 1}


@pytest.mark.usefixtures("gpu")
def test_rotation_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the L2 of 60 MiB, or a set for each call of a queue; at least three."""
    free = 100 * 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    sizes = {"small": 1000, "expert down": 9 * 2**20, "large": 2**28}
    assert rivals.rotation(sizes, made_up_gpu.GPU) == ({"small": 50, "expert down": 27, "large": 3}, True)
    free = 2**30
    assert not rivals.rotation(sizes, made_up_gpu.GPU)[1]


def test_what_a_gpu_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, why in (((8, 0), "needs compute capability 8.9, this GPU has 8.0"), ((8, 9), ""), ((9, 0), "")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        assert rivals.unavailable("fp8", made_up_gpu.GPU) == why and rivals.unavailable("fp16", made_up_gpu.GPU) == ""
    assert rivals.unavailable("fp8", CPU) == ""


def test_clocks_are_those_of_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(uuid="123")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    asked = []

    def smi(command: list[str], **options: object) -> SimpleNamespace:
        asked.append(command)
        return SimpleNamespace(stdout="580.1, 1980, 1980, 3201, 98.5, 700.00, P0, 31\n")

    monkeypatch.setattr(subprocess, "run", smi)
    state = machine.clocks(made_up_gpu.GPU)
    assert "--id=GPU-123" in asked[0] and any("pstate" in word for word in asked[0])
    assert state == (
        "SM 1980 of 1980 MHz, memory 3201 MHz, 98.5 of 700.00 W, P0, 31 C; not locked (nvidia-smi, driver 580.1)"
    )
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: SimpleNamespace(stdout="what?"))
    assert "unknown" in machine.clocks(made_up_gpu.GPU)


# --- a run on a GPU that is made up --------------------------------------------------------------------------------


def test_figures_of_a_run(gpu: made_up_gpu.Clock, tmp_path: Path) -> None:
    """Every median, ratio and floor is what the made-up GPU takes."""
    gpu.noise = 0.0
    run = stored(tmp_path, *HOPPER)
    assert {shapes_of(result) for result in run["results"]} == set(goals.GOALS)
    assert run["left_out"] == {} and run["conditions"]["clocks before"] and run["conditions"]["clocks after"]
    for result in run["results"]:
        shape, first = shapes_of(result), result["contestants"][0]
        assert [entry["name"] for entry in result["contestants"]] == list(made_up_gpu.SPEED)
        assert [entry["ours"] for entry in result["contestants"]] == [True, True, False, False]
        for entry in result["contestants"]:
            expected = made_up_gpu.seconds(entry["name"], shape)
            assert entry["seconds"]["queued"]["median"] == pytest.approx(expected, rel=1e-4)
            assert entry["seconds"]["cold"]["median"] == pytest.approx(expected + 3e-6, rel=1e-4)
            assert entry["seconds"]["cold"]["samples"] == 200 and entry["seconds"]["queued"]["samples"] == 20
            assert entry["host"]["median"] == pytest.approx(made_up_gpu.HOST_S)
            if entry is not first:
                ratio = expected / made_up_gpu.seconds(first["name"], shape)
                assert entry["ratio"]["queued"]["median"] == pytest.approx(ratio, rel=1e-4)
        floor = max(shape.bytes / made_up_gpu.COPY, shape.operations / made_up_gpu.MATH)
        assert report.floor(run, shape) == pytest.approx(floor)


def shapes_of(result: dict[str, Any]) -> Shape:
    return Shape(**result["shape"])


def test_a_run_of_the_hopper_set_is_short(gpu: made_up_gpu.Clock, tmp_path: Path) -> None:
    """What the GPU has to do: with start, checks and setting up it must stay within a minute and a half."""
    stored(tmp_path, *HOPPER)
    assert 5 < gpu.spent < 30


@pytest.mark.usefixtures("gpu")
def test_the_report_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stored(tmp_path, *HOPPER)
    out = capsys.readouterr().out
    assert "not exact: rounds to e4m3" in out and "goal, us" in out
    assert sum("missed by" in line for line in out.splitlines()) == 16
    means = report.geometric_means(run)
    assert len(means) == 3 and all(line in out for line in means)
    cold = [next(r for r in run["results"] if shapes_of(r) == s) for s in shapes.task_shapes([128])]
    ratios = [entry["ratio"]["cold"]["median"] for r in cold for entry in r["contestants"] if "fp16" in entry["name"]]
    assert f"{math.prod(ratios) ** (1 / 3):.2f} over torch fp16 matmul" in means[0]
    assert "Humming W4A16 29.7 us" in means[2] and "no ratio" in means[2]
    (host,) = [line for line in out.splitlines() if line.startswith("host cost")]
    assert host.count(" us") == 4


@pytest.mark.usefixtures("gpu")
def test_goals_are_those_of_one_gpu_and_set(tmp_path: Path, monkeypatch) -> None:
    run = stored(tmp_path, *HOPPER)
    assert report.has_goals(run)
    assert not report.has_goals(stored(tmp_path, "bench", "--set", "hopper", "--backend", "sm80"))
    run["conditions"]["hardware"] = "NVIDIA H100"
    assert not report.has_goals(run) and len(report.geometric_means(run)) == 2
    run = stored(tmp_path, "bench", "--m", "16")
    assert not report.has_goals(run) and report.geometric_means(run) == []
    assert report.goal_cell(Shape(1, 7168, 16384), {"seconds": {"cold": {"median": 19e-6}}}) == "19 (met)"
    assert report.goal_cell(Shape(1, 7168, 16384), {"seconds": {"cold": {"median": 38e-6}}}) == "19 (missed by 100%)"


def test_layers_are_named(gpu: made_up_gpu.Clock, tmp_path: Path, capsys) -> None:
    run = stored(tmp_path, "bench", "--set", "decode", "--m", "8", "--repeat", "10")
    out = capsys.readouterr().out
    assert len(run["results"]) == len(shapes.LAYERS)
    for layer in shapes.LAYERS:
        assert out.count(f"{layer.model}, {layer.layer}") >= 4


def test_fp8_is_left_out_with_the_reason(monkeypatch, tmp_path, capsys) -> None:
    made_up_gpu.install(monkeypatch, made_up_gpu.Clock(), capability=(8, 0))
    run = stored(tmp_path, "bench", "--m", "128")
    assert report.names(run) == ["nvfp4", "torch fp16 matmul", "torch dequantise + matmul"]
    assert "left out: torch fp8 matmul: needs compute capability 8.9, this GPU has 8.0" in capsys.readouterr().out


@pytest.mark.usefixtures("gpu")
def test_one_contestant_alone_has_no_ratios(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bench, "default_kinds", lambda device: [])
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
    assert len(lines) == 16 * 4 * 2 and {line["run"] for line in lines} == {run["run"]}
    assert {line["figure"] for line in lines} == set(report.MODES)
    line = lines[2]  # the second contestant, a single call
    entry = run["results"][0]["contestants"][1]
    assert line["contestant"] == "nvfp4 sm80" and (line["m"], line["n"], line["k"]) == ("1", "7168", "16384")
    assert float(line["median_us"]) == pytest.approx(entry["seconds"]["cold"]["median"] * 1e6)
    assert float(line["ratio"]) == entry["ratio"]["cold"]["median"]
    assert lines[0]["ratio"] == "" and float(line["floor_us"]) > 0 and float(line["host_us"]) > 0


def tampered(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    run = json.loads(path.read_text())
    change(run)
    path.with_name("other.json").write_text(json.dumps(run))
    with pytest.raises(show.Refusal) as refusal:
        report.load(path.with_name("other.json"))
    return str(refusal.value)


@pytest.mark.usefixtures("gpu")
def test_a_file_of_two_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = stored(tmp_path, "bench", "--m", "128", "--repeat", "10")
    two = stored(tmp_path, "bench", "--m", "16", "--repeat", "10")
    assert one["run"] != two["run"]
    path = tmp_path / "run.json"
    why = tampered(path, lambda run: run["results"].extend(one["results"]))
    assert one["run"] in why and two["run"] in why and "no ratio is taken between two runs" in why
    assert "nvfp4-bench-1" in tampered(path, lambda run: run.update(format="another"))
    path.write_text("{")
    capsys.readouterr()
    assert main(["bench", "--from", str(path)]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and "cannot be read" in streams.err


# --- the plot ------------------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("arguments", [HOPPER, ["bench", "--set", "decode"], ["bench", "--shapes", "3x64x64"]])
def test_plot(arguments: list[str], tmp_path: Path) -> None:
    """Well-formed, everything inside, a curve and its markers for each contestant, figure and N x K, and the floor."""
    run = stored(tmp_path, *arguments)
    picture = ElementTree.fromstring(plot.svg(run))
    width, height = (float(picture.get(side)) for side in ("width", "height"))
    panels = picture.findall(f"{SVG}g")
    groups = plot.groups(run)
    assert len(panels) == 2 * len(groups) == {"hopper": 6, "decode": 16, None: 2}[run["set"]]
    names = report.names(run)
    for number, panel in enumerate(panels):
        x, y = (float(part) for part in panel.get("transform")[10:-1].split(","))
        assert 0 <= x <= width - plot.PANEL_WIDTH and 0 <= y <= height - plot.PANEL_HEIGHT
        kinds = [path.get("class") for path in panel.iter(f"{SVG}path")]
        rows = len(groups[number % len(groups)])
        for i in range(len(names)):
            assert kinds.count(f"line s{i}") == 1 and kinds.count(f"f{i}") == kinds.count(f"bar s{i}") == rows
        assert kinds.count("floor") == kinds.count("below") == 1
    words = " ".join(picture.itertext())
    assert all(name in words for name in names) and "prefers-color-scheme: dark" in words and run["run"] in words
    assert ("not exact" in words) == any("fp8" in name for name in names)


@pytest.mark.usefixtures("gpu")
def test_curves_lie_where_the_figures_are(tmp_path: Path) -> None:
    """Log-log: equal factors are equal distances, the slower lies higher, nothing lies under its floor."""
    run = stored(tmp_path, *HOPPER)
    (panel, *_) = ElementTree.fromstring(plot.svg(run)).findall(f"{SVG}g")

    def points(kind: str) -> list[tuple[float, float]]:
        (path,) = [path for path in panel.iter(f"{SVG}path") if path.get("class") == kind]
        return [tuple(map(float, point.split(","))) for point in path.get("d")[1:].split("L")]

    curves = [points(f"line s{i}") for i in range(4)]
    floor = points("floor")
    xs = [x for x, _ in curves[0]]  # M = 1, 16, 64, 128, 256
    assert xs[1] - xs[0] == pytest.approx(4 * (xs[3] - xs[2]), abs=0.51)  # each is rounded to a tenth
    assert xs[4] - xs[3] == pytest.approx(xs[3] - xs[2], abs=0.21)
    ours, sm80, fp16, fp8 = (curve[0][1] for curve in curves)
    assert fp16 < sm80 < fp8 < ours < floor[0][1]  # y grows downwards
    figures = [entry["seconds"]["cold"]["median"] for entry in run["results"][0]["contestants"]]
    slope = (ours - fp16) / math.log(figures[2] / figures[0])
    assert (ours - sm80) == pytest.approx(slope * math.log(figures[1] / figures[0]), abs=0.3)


def test_ticks() -> None:
    assert plot.steps(1.5, 60) == [2, 5, 10, 20, 50]
    assert plot.steps(0.02, 900) == [0.1, 1, 10, 100]


def test_long_lines_are_wrapped() -> None:
    line = "a picture of words " * 12
    pieces = plot.wrapped(line, 300)
    assert " ".join(pieces) == line.strip() and max(map(len, pieces)) <= 52


# --- refusals, progress -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--against", "fp16,int3"], "'int3' is none of"),
        (["--set", "training"], "training"),
        (["--set", "ranked", "--shapes", "1x16x16"], "not allowed with"),
        (["--from", "x.json", "--shapes", "1x16x16"], "not allowed with"),
        (["--backend", "cpu", "--backend", "cpu"], "named twice"),
        (["--markdown", "--json"], "name a file"),
        (["--shapes", "1x16x16", "--m", "2"], "--m goes with --set"),
        (["--from", "x.json", "--m", "2"], "--from times nothing"),
        (["--from", "x.json", "--backend", "cpu"], "--from times nothing"),
        (["--plot", "/nowhere/at/all.svg"], "there is no folder /nowhere/at"),
        (["--from", "/nowhere/run.json"], "cannot be read"),
        (["--tune", "--plot", "x.svg"], "--tune times"),
        (["--tune", "--backend", "sm100", "--backend", "sm80"], "one backend"),
    ],
)
def test_what_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["bench", *arguments])
    except SystemExit as stop:  # argparse's
        status = stop.code
    streams = capsys.readouterr()
    assert status == 2 and words in streams.err and streams.out == ""


def test_backends_on_two_devices_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"cpu": machine.Place(CPU, CPU, "cpu"), "sm80": machine.Place(made_up_gpu.GPU, made_up_gpu.GPU, "sm80")}
    monkeypatch.setattr(machine, "pick_place", lambda backend: places[backend])
    with pytest.raises(show.Refusal, match="cpu on cpu, sm80 on cuda:0; only what takes turns"):
        bench.pick_place(["cpu", "sm80"])
    assert bench.pick_place(["sm80"]) is places["sm80"]


@pytest.mark.usefixtures("gpu")
def test_progress_is_a_line_a_shape_unless_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--m", "128", "--repeat", "5", "--json"]) == 0
    streams = capsys.readouterr()
    assert "[1/4] bench 128x7168x16384\n" in streams.err and "[4/4] bench: limits" in streams.err
    json.loads(streams.out)
