"""`bench --tune` and nvfp4.use_tuning: all but the clock, which needs an H200 or a B200.

Tests that need kernels for one architecture take the fixture tunable. Ordinary runs start them in other processes, on
the emulated GPUs of these architectures, with a fake clock.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from backend_table import OWN, device_of
from conftest import one_in, runs
from emulated_runs import emulated

import nvfp4
from nvfp4 import _C, reference
from nvfp4.__main__ import main
from nvfp4._tuning import SETTINGS
from nvfp4.bench import command, plans, timing, tune, verdict
from nvfp4.bench.shapes import Shape
from nvfp4.cli import machine, show

SMALL, UNALIGNED = Shape(16, 128, 512), Shape(3, 130, 96)
CALLS = 2


@pytest.fixture
def dice() -> random.Random:
    seed = int(os.environ["NVFP4_TEST_SEED"])
    print(f"NVFP4_TEST_SEED={seed}")
    return random.Random(seed)


def settings(plan: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(plan[name] for name in SETTINGS)


# --- statistics of the times ----------------------------------------------------------------------------------------


def test_rank_correlation_is_spearmans(dice: random.Random) -> None:
    for count in range(2, 30):
        x, y = dice.sample(range(1000), count), dice.sample(range(1000), count)
        ranks = [[sorted(values).index(value) for value in values] for values in (x, y)]
        squares = sum((i - j) ** 2 for i, j in zip(*ranks))
        assert verdict.rank_correlation(x, y) == pytest.approx(1 - 6 * squares / (count * (count**2 - 1)))
    assert verdict.ranks([5, 1, 5, 3]) == [3.5, 1, 3.5, 2]
    assert verdict.rank_correlation([1, 2, 3], [10, 20, 400]) == pytest.approx(1)
    assert verdict.rank_correlation([1, 2, 3], [4, 4, 4]) is None


def result_of(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    candidates = [{"modelled_us": modelled, "samples_us": [us - 1, us, us + 1], "wrong": ""} for modelled, us in points]
    return {"candidates": [*candidates, {"modelled_us": 1.0, "samples_us": [], "wrong": "every value"}]}


def test_the_fit_finds_a_line(dice: random.Random) -> None:
    offset, scale = dice.uniform(-1, 3), dice.uniform(0.5, 2)
    modelled = [dice.uniform(3, 40) for _ in range(30)]
    results = [result_of([(x, offset + scale * x) for x in part]) for part in (modelled[:10], modelled[10:])]
    fitted = verdict.fit(results)
    assert fitted is not None and fitted["plans"] == 30
    assert (fitted["offset_us"], fitted["scale"]) == (pytest.approx(offset), pytest.approx(scale))
    assert fitted["relative_error"] < 1e-9
    assert verdict.fit([result_of([(1, 2), (1, 3), (2, 3)])]) is None


def with_samples(*samples: list[float], wrong: int | None = None) -> list[plans.Candidate]:
    plan = dict.fromkeys((*SETTINGS, "tile_m", "tile_n", "stages"), 1) | {"kernel": "k", "swap_ab": False}
    made = [plans.Candidate(i, plan | {"grid": 1, "modelled_us": float(i)}, "", list(s)) for i, s in enumerate(samples)]
    if wrong is not None:
        made[wrong].wrong = "every value"
    return made


def test_the_fastest_is_selected_on_even_rounds_and_compared_on_odd_ones() -> None:
    found = verdict.judge(with_samples([10, 10] * 10, [8, 9] * 10, [9, 5] * 10))
    assert found["fastest"] == found["selected"] == 1
    assert found["loss"] == {"median": 10 / 9, "p10": 10 / 9, "p90": 10 / 9, "samples": 10}
    assert found["rank_correlation"] == pytest.approx(-1)


def test_the_models_choice_stays_unless_it_is_slower_in_nine_rounds_of_ten() -> None:
    lucky = verdict.judge(with_samples([10, 10] * 10, [8, 9, 8, 9, 8, 11] * 3 + [8, 9]))
    assert (lucky["fastest"], lucky["selected"]) == (1, 0)
    equal = verdict.judge(with_samples([10, 10] * 10, [8, 10] * 10))
    assert (equal["fastest"], equal["selected"]) == (1, 0)


def test_a_wrong_plan_is_neither_fastest_nor_compared_with() -> None:
    assert verdict.judge(with_samples([10, 10], [1, 1], [9, 9], wrong=1))["fastest"] == 2
    without_choice = verdict.judge(with_samples([1, 1], [9, 9], wrong=0))
    assert (without_choice["fastest"], without_choice["selected"], without_choice["loss"]) == (1, 1, None)
    assert verdict.judge(with_samples([1, 1], wrong=0))["selected"] is None


# --- the clock's logic, on a fake GPU -------------------------------------------------------------------------------


def graph_clock(monkeypatch: pytest.MonkeyPatch, late: int) -> tuple[plans.GraphClock, list[str]]:
    """A clock whose GPU completes the first event too early `late` times, and its log, without captured calls."""
    log: list[str] = []
    pairs = iter(range(10**6))

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.number = next(pairs)

        def record(self) -> None:
            log.append("event")

        def query(self) -> bool:
            return self.number // 2 < late

        def elapsed_time(self, end: Event) -> float:
            assert end.number == self.number + 1
            return 0.004 * (self.number // 2 + 1)

    class Graph:
        held: list[str]

        def replay(self) -> None:
            log.append(f"graph of {self.held}")

    @contextmanager
    def capture(graph: Graph) -> Iterator[None]:
        outside = log[:]
        del log[:]
        yield
        graph.held, log[:] = log[:], outside

    cuda = SimpleNamespace(Event=Event, CUDAGraph=Graph, graph=capture, synchronize=lambda: log.append("wait"))
    monkeypatch.setattr(timing, "need_torch", lambda: SimpleNamespace(cuda=cuda))
    clock = object.__new__(plans.GraphClock)
    clock.clock = object.__new__(timing.DeviceClock)
    clock.clock.flush = SimpleNamespace(fill_=lambda value: log.append("write"), numel=lambda: 2**29)
    clock.clock.torch, clock.clock.value, clock.clock.writes = SimpleNamespace(cuda=cuda), 0, 1
    return clock, log


def test_consecutive_calls_are_timed_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is captured anew for the plan that is in force, and replayed once before; host time is dropped."""
    clock, log = graph_clock(monkeypatch, late=1)
    calls = [lambda name=name: log.append(name) for name in "abcd"]
    assert clock.run(calls) == pytest.approx(2e-6)  # 8 us of the second try, over 4 calls
    graph = "graph of ['a', 'b', 'c', 'd']"
    attempt = ["write", "event", graph, "event"]
    assert log == ["a", "wait", graph, *attempt, *attempt, "wait"]
    assert "writes of 512 MiB" in clock.describe()


# --- inputs ---------------------------------------------------------------------------------------------------------

ON_CPU = machine.Target(torch.device("cpu"), torch.device("cpu"), None)


def test_inputs_have_exact_sums(dice: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    scales_by_k = {}
    for k in (16, 1024, 16384, 1 << 17):
        monkeypatch.setattr(plans, "WIDE_BYTES", 8 * k * dice.randint(1, 3))  # the expected results in 1 to 3 parts
        products = plans.Products(Shape(2, 3, k), ON_CPU, CALLS, dice.randrange(2**31))
        for (a, b, scale_a, scale_b), expected in zip(products.inputs, products.expected):
            wide = [reference.operand(x, scale, "128x4")[0] for x, scale in ((a, scale_a), (b, scale_b))]
            assert reference.sums_are_exact(*wide)
            assert torch.equal((wide[0].double() @ wide[1].double().T).half(), expected)
        scales_by_k[k] = set(products.inputs[0][2].flatten().tolist()) - {reference.E4M3_NAN}
        assert reference.E4M3_NAN in products.inputs[0][2]  # padding
        first, second = (products.inputs[i][0] for i in range(2))
        assert not torch.equal(first, second) or k == 16
    assert scales_by_k[16384] == {0, 0x38, 0x40, 0x44} and scales_by_k[1 << 17] == {0, 0x38}
    with pytest.raises(show.CommandError, match="K is too large"):
        plans.Products(Shape(1, 1, 1 << 21), ON_CPU, 1, 0)


# --- errors ---------------------------------------------------------------------------------------------------------


def test_a_cpu_has_nothing_to_tune(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--tune", "--backend", "cpu"]) == 2
    assert f"--backend is cpu: must be {', '.join(OWN)} or left out" in capsys.readouterr().err
    with pytest.raises(show.CommandError, match="B200, B300.*no usable GPU here"):
        tune.tunable(argparse.Namespace(backend=None), ON_CPU)


def test_another_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    a100 = {"name": "NVIDIA A100", "compute_capability": 80}
    monkeypatch.setattr(tune, "info", lambda: {"devices": [a100]})
    gpu = torch.device("cuda:0")
    with pytest.raises(show.CommandError, match=r"B300, Thor\).*\); cuda:0 is NVIDIA A100, of compute capability 8.0"):
        tune.tunable(argparse.Namespace(backend=None), machine.Target(gpu, gpu, None))


def error_of(path: Path | str) -> str:
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.use_tuning(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_files_that_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    assert "No such file" in error_of(path)
    path.write_text("no")
    assert "is not JSON" in error_of(path)
    for text in ("[]", "{}", '{"format": "nvfp4-tune 3"}'):
        path.write_text(text)
        assert "is not a file of `bench --tune` in the format 'nvfp4-tune 4'" in error_of(path)
    ours = {"format": "nvfp4-tune 4", "nvfp4": nvfp4.__version__, "results": []}
    for damaged in (ours, ours | {"device": 1}, ours | {"device": {"name": "a"}}):
        path.write_text(json.dumps(damaged))
        assert "is damaged" in error_of(path)
    path.write_text(json.dumps(ours | {"nvfp4": "0.0.1"}))
    assert f"measured with nvfp4 0.0.1, this is {nvfp4.__version__}" in error_of(path)
    gpu = {"name": "Another GPU", "compute_capability": 100, "sm_count": 148}
    path.write_text(json.dumps(ours | {"device": gpu}))
    assert "was measured on Another GPU with 148 SMs; this machine has " in error_of(path)
    assert nvfp4.use_tuning(None) == []


# --- on a GPU whose kernels have many plans -------------------------------------------------------------------------


@pytest.mark.parametrize("device", one_in(3, [*map(device_of, OWN)]))
def test_on_an_emulated_gpu(device: str) -> None:
    if not nvfp4.info()["archs"]:
        pytest.skip("this build has no GPU code")
    output = emulated(device, "plan/test_tune.py", "-k", "test_tunable")
    assert int(output.split(" passed")[0].split()[-1]) >= 7


class FakeClock:
    """Runs each call once, and gives a random time that depends on the plan."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.seed, self.shape, self.runs = seed, shape, 0

    def describe(self) -> str:
        return "fake"

    def us(self, plan: dict[str, Any]) -> float:
        return random.Random(f"{self.seed} {settings(plan)}").uniform(5, 20)

    def run(self, calls: Sequence[Callable[[], object]]) -> float:
        assert len(calls) == CALLS
        self.runs += 1
        return 1e-6 * (self.us(plan_of(self.shape)) + 1e-3 * (self.runs % 7))


def own_backend() -> str:
    return next(name for name in OWN if runs(name))


def plan_of(shape: Shape) -> dict[str, Any]:
    return _C.plan(0, own_backend(), None, shape.m, shape.n, shape.k, 1, 0)


@pytest.fixture
def tunable() -> Iterator[machine.Target]:
    if not any(map(runs, OWN)):
        pytest.skip("needs a GPU with kernels of its own")
    nvfp4.use_tuning(None)
    yield machine.pick_target(None)
    nvfp4.use_tuning(None)


@pytest.fixture
def tuning(tunable: machine.Target, dice: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for SMALL, whose selected plan is not the model's choice."""
    monkeypatch.chdir(tmp_path)
    while True:
        clock = FakeClock(dice.randrange(2**31), SMALL)
        report = tune.tune([SMALL], tunable, clock, 3, clock.seed, CALLS)
        if report["results"][0]["selected"] != 0:
            tune.write(report, path := tmp_path / tune.new_path(0))
            return path


def test_tunable_times_every_plan_and_finds_the_fastest(tunable: machine.Target, dice: random.Random) -> None:
    clock = FakeClock(dice.randrange(2**31), SMALL)
    before = plan_of(SMALL)
    report = json.loads(json.dumps(tune.tune([SMALL], tunable, clock, 5, clock.seed, CALLS)))
    (result,) = report["results"]
    assert report["failure"] == "" and clock.runs == 5 * before["candidates"]
    assert plan_of(SMALL) == before  # no override is left
    assert len({settings(c) for c in result["candidates"]}) == before["candidates"] == len(result["candidates"])
    for rank, candidate in enumerate(result["candidates"]):
        assert candidate["rank"] == rank and candidate["wrong"] == ""
        assert candidate["samples_us"] == pytest.approx([clock.us(candidate)] * 5, abs=0.01)
    modelled = [c["modelled_us"] for c in result["candidates"]]
    assert modelled == sorted(modelled)
    fastest = min(result["candidates"], key=clock.us)
    assert result["fastest"] == result["selected"] == fastest["rank"]
    assert result["loss"]["median"] == pytest.approx(clock.us(before) / clock.us(fastest), rel=0.01)


def test_tunable_plans_give_equal_bits(tunable: machine.Target, dice: random.Random) -> None:
    """Also with unaligned scales and partial tiles."""
    for shape in (SMALL, UNALIGNED):
        products = plans.Products(shape, tunable, 1, dice.randrange(2**31))
        for candidate in plans.candidates(shape, 0):
            with plans.forced(candidate.rank):
                assert plan_of(shape) == candidate.plan
                products.outputs[0].fill_(float("nan"))
                products.calls()[0]()
            plans.wait(tunable.tensors)
            bits = [x.view(torch.int16) for x in (products.outputs[0], products.expected[0])]
            assert torch.equal(*bits), candidate


def test_tunable_plans_that_are_wrong_are_reported_and_not_timed(
    tunable: machine.Target,
    dice: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """One is wrong in one value of one call, one writes nothing, one raises."""
    found = plans.candidates(SMALL, 0)
    wrong, idle, rejected = dice.sample(found, 3)
    count = 0

    def gemm(*inputs: torch.Tensor, out: torch.Tensor | None = None, backend: str) -> torch.Tensor:
        nonlocal count
        if backend == own_backend() and plan_of(SMALL) == rejected.plan:
            raise nvfp4.Error("the CUDA driver refused the launch")
        if backend == own_backend() and plan_of(SMALL) == idle.plan:
            return out
        result = nvfp4.gemm(*inputs, out=out, backend=backend)
        if backend == own_backend() and plan_of(SMALL) == wrong.plan:
            count += 1
            if count % CALLS == 0:
                result[3, 5] += 1
        return result

    monkeypatch.setattr(plans, "gemm", gemm)
    monkeypatch.chdir(tmp_path)
    args = argparse.Namespace(backend=None, repeat=2, seed=1, json=True, markdown=False)
    assert tune.run(args, tunable, [SMALL], FakeClock(1, SMALL), CALLS) == 1
    report = json.loads(capsys.readouterr().out)
    (path,) = tmp_path.glob("nvfp4-tune-*.json")
    written = json.loads(path.read_text())
    clocks = written.pop("clocks_after"), report.pop("clocks_after")  # each read when it is reported
    assert written == report and (None in clocks) == (clocks[0] is clocks[1])
    by_rank = {c["rank"]: c for c in report["results"][0]["candidates"]}
    assert by_rank[rejected.rank]["wrong"] == "the CUDA driver refused the launch"
    assert by_rank[wrong.rank]["wrong"].startswith("call 1 of 2: 1 of 2048 values are wrong, the first at [3, 5]")
    assert by_rank[idle.rank]["wrong"].startswith("call 0 of 2: 2048 of 2048 values are wrong")
    for rank, candidate in by_rank.items():
        bad = rank in (wrong.rank, idle.rank, rejected.rank)
        assert (bool(candidate["wrong"]), bool(candidate["samples_us"])) == (bad, not bad)


def test_tunable_that_stops_writes_what_was_measured(
    tunable: machine.Target, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Stopping(FakeClock):
        def run(self, calls: Sequence[Callable[[], object]]) -> float:
            if self.runs == plan_of(SMALL)["candidates"]:
                raise RuntimeError("CUDA error: an illegal instruction was encountered\nand more")
            return super().run(calls)

    monkeypatch.chdir(tmp_path)
    args = argparse.Namespace(backend=own_backend(), repeat=1, seed=1, json=False, markdown=True)
    assert tune.run(args, tunable, [SMALL, UNALIGNED], Stopping(1, SMALL), CALLS) == 1
    (path,) = tmp_path.glob("nvfp4-tune-*.json")
    report = json.loads(path.read_text())
    assert [result["shape"] for result in report["results"]] == [{"m": 16, "n": 128, "k": 512}]
    assert re.match(r"3x130x96: \w+[,:] ", report["failure"]) and report["failure"].endswith(
        "an illegal instruction was encountered"
    )
    out = capsys.readouterr().out
    assert f"THE GPU STOPPED: {report['failure']}." in out and path.name in out
    assert out.count("\n| ") == plan_of(SMALL)["candidates"] + 1  # and the header


def test_tunable_that_is_interrupted_leaves_the_shapes_that_it_finished(
    tunable: machine.Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Interrupted(FakeClock):
        def run(self, calls: Sequence[Callable[[], object]]) -> float:
            if self.runs > plan_of(SMALL)["candidates"]:
                raise KeyboardInterrupt
            return super().run(calls)

    monkeypatch.chdir(tmp_path)
    args = argparse.Namespace(backend=own_backend(), repeat=1, seed=1, json=False, markdown=True)
    with pytest.raises(KeyboardInterrupt):
        tune.run(args, tunable, [SMALL, UNALIGNED], Interrupted(1, SMALL), CALLS)
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert [result["shape"] for result in report["results"]] == [{"m": 16, "n": 128, "k": 512}]
    assert report["failure"] == "" and report["results"][0]["selected"] is not None
    nvfp4.use_tuning(path)


def test_tunable_that_is_emulated_is_not_timed(tunable: machine.Target, capsys: pytest.CaptureFixture[str]) -> None:
    if tunable.device == tunable.tensors:
        pytest.skip("a real one is")
    assert main(["bench", "--tune"]) == 2
    assert "timing it needs a torch that can use it" in capsys.readouterr().err


def test_tunable_uses_a_tuning_file(tunable: machine.Target, tuning: Path, dice: random.Random) -> None:
    model = {shape: plan_of(shape) for shape in (SMALL, UNALIGNED)}
    batched = _C.plan(0, own_backend(), None, 16, 128, 512, 2, 0)
    (result,) = json.loads(tuning.read_text())["results"]
    best = result["candidates"][result["selected"]]
    (used,) = nvfp4.use_tuning(tuning)
    product = {"operation": "gemm", "a_dtype": None, "m": 16, "n": 128, "k": 512}
    assert used == product | {name: best[name] for name in SETTINGS}
    assert settings(nvfp4.info(16, 128, 512, backend=own_backend())["plan"]) == settings(best) != settings(model[SMALL])
    assert plan_of(UNALIGNED) == model[UNALIGNED]
    assert _C.plan(0, own_backend(), None, 16, 128, 512, 2, 0) == batched

    a, b, scale_a, scale_b = plans.Products(SMALL, tunable, 1, dice.randrange(2**31)).inputs[0]
    linear = [nvfp4.unswizzle(s.flatten(), rows, 32) for s, rows in ((scale_a, 16), (scale_b, 128))]
    for out_dtype in (torch.float16, torch.float32):
        expected = nvfp4.gemm(a.cpu(), b.cpu(), scale_a.cpu(), scale_b.cpu(), out_dtype=out_dtype, backend="cpu")
        product = nvfp4.gemm(a, b, scale_a, scale_b, out_dtype=out_dtype, backend=own_backend())
        by_linear = nvfp4.gemm(a, b, *linear, out_dtype=out_dtype, scale_layout="linear", backend=own_backend())
        assert torch.equal(product.cpu(), expected) and torch.equal(by_linear.cpu(), expected)

    with plans.forced(1):  # the other plans keep the model's order
        assert settings(plan_of(SMALL)) == settings(model[SMALL])
    assert nvfp4.use_tuning(None) == [] and plan_of(SMALL) == model[SMALL]


def test_tunable_rejects_a_tuning_that_is_stale(tunable: machine.Target, tuning: Path, tmp_path: Path) -> None:
    nvfp4.use_tuning(tuning)
    in_force = plan_of(SMALL)
    stale = tmp_path / "stale.json"

    def without(change: Callable[[dict[str, Any]], None]) -> str:
        report = json.loads(tuning.read_text())
        change(report["results"][0]["candidates"][report["results"][0]["selected"]])
        stale.write_text(json.dumps(report))
        message = error_of(stale)
        assert plan_of(SMALL) == in_force  # the overrides stay
        return message

    def none_of(backend: str | None) -> str:
        count = _C.plan(0, backend, None, SMALL.m, SMALL.n, SMALL.k, 1, 0)["candidates"]
        return f"which is none of the {count} plans for a product of M = 16, N = 128, K = 512, L = 1"

    # No backend has a kernel of such a name: the plans of all backends are counted.
    assert none_of(None) in without(lambda c: c.update(kernel=f"nvfp4_{own_backend()}_gemm_512x512"))
    assert none_of("sm80") in without(lambda c: c.update(kernel="nvfp4_sm80_gemm_64x64", swap_ab=True))
    assert none_of(own_backend()) in without(lambda c: c.update(split_k=8, prefetch_stages=77))
    assert "must be between 1 and" in without(lambda c: c.update(split_k=0))
    assert "does not fit this nvfp4" in without(lambda c: c.update(kernel=None))
    assert "is damaged" in without(lambda c: c.pop("swap_ab"))
    for wrong in ({"operation": "gemm_tn"}, {"operation": None}):
        report = json.loads(tuning.read_text())
        report["results"][0] |= wrong
        stale.write_text(json.dumps(report))
        assert "is damaged" in error_of(stale) and plan_of(SMALL) == in_force
    report = json.loads(tuning.read_text())
    report["results"][0]["operation"] = "gemm_nn"
    stale.write_text(json.dumps(report))
    assert "transpose_b: is False but a_dtype is none" in error_of(stale) and plan_of(SMALL) == in_force

    report = json.loads(tuning.read_text())
    report["results"].append(report["results"][0] | {"shape": {"m": 16, "n": 128, "k": 24}})
    stale.write_text(json.dumps(report))
    assert "K a multiple of 16" in error_of(stale) and plan_of(SMALL) == in_force


def test_bench_still_has_its_shapes() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert parser.parse_args([]).m is None and parser.parse_args(["--m", "1,5"]).m == [1, 5]
    assert [str(shape) for shape in command.task_shapes([128])] == ["128x7168x16384", "128x4096x7168", "128x7168x2048"]
