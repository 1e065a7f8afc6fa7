"""`python tools/contest measure` on a fake GPU: the end of the repeats, wrong results, the command and its output."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import b200_report  # benchmarks/b200_report.py
import emulate
import pytest
import torch
from contest import dual, submission
from contest import measure as contest
from contest import method as measuring
from contest.__main__ import main
from paths import TOOLS
from python_server import python

import nvfp4
from nvfp4 import reference
from nvfp4.bench import timing
from nvfp4.cli import machine

SMALL = {"m": 5, "n": 24, "k": 64, "l": 2, "seed": 3}


class FakeGpu:
    """Computes on the CPU; a call takes `seconds` with relative noise; each repeat advances the clock by a second."""

    def __init__(self, seconds: float = 9e-6, noise: float = 0.0, hidden: bool = True, seed: int = 0) -> None:
        self.seconds, self.noise, self.hidden, self.random = seconds, noise, hidden, random.Random(seed)
        self.clock, self.counts, self.prepared = 0.0, [], 0

    def release(self) -> None:
        self.released = self.prepared + 1

    def prepare(self) -> None:
        self.prepared += 1
        assert self.prepared == self.released

    def now(self) -> float:
        return self.clock

    def time(self, calls: Sequence[Callable[[], torch.Tensor]]) -> measuring.Repeat:
        self.clock += 1.0
        self.counts.append(len(calls))
        seconds = sum(self.seconds * (1 + self.noise * self.random.gauss(0, 1)) for _ in calls)
        return measuring.Repeat([call() for call in calls], seconds, self.hidden)

    def flush_text(self) -> str:
        return "nothing was written"


def right(data: reference.Data) -> torch.Tensor:
    a, b, _, _, sfa, sfb, c = data
    return nvfp4.custom_kernel(a, b[: c.shape[1]], sfa, sfb, c)


def inputs_of(task: str = "nvfp4_gemm", **test: int) -> measuring.Inputs:
    return measuring.Inputs(dual.definition(task), SMALL | test, 42, torch.device("cpu"))


def measure(
    kernel: measuring.Kernel,
    count: int = 6,
    gpu: FakeGpu | None = None,
    repeats: int = 20,
    task: str = "nvfp4_gemm",
    **test: int,
) -> dict:
    inputs = inputs_of(task, **test)
    return measuring.measure(inputs, kernel, count, gpu or FakeGpu(), measuring.Limits(repeats, 1000.0))


# --- statistics -----------------------------------------------------------------------------------------------------


def test_statistics() -> None:
    found = measuring.Statistics.of([3.0, 1.0, 2.0, 6.0])
    assert (found.repeats, found.mean, found.best, found.worst) == (4, 3.0, 1.0, 6.0)
    assert found.error == pytest.approx(math.sqrt((0 + 4 + 1 + 9) / 3) / 2)
    assert measuring.Statistics.of([2.0]).error == math.inf


def test_when_repeats_end() -> None:
    limits = measuring.Limits(100, 30.0)
    assert measuring.why_stop([1.0, 1.0, 1.0], 0.2, limits) == "error below 0.1%"
    assert measuring.why_stop([1.0, 1.0], 0.2, limits) == "", "two agree by chance"
    assert measuring.why_stop([1.0, 1.0, 1.0], 0.05, limits) == "", "too short a time for a stable clock"
    # standard error of n samples of 1 +- d: d / sqrt(n - 1)
    assert measuring.why_stop([1.009, 0.991] * 42, 20.0, limits) == "error below 0.1%"
    assert measuring.why_stop([1.009, 0.991] * 40, 20.0, limits) == ""
    assert measuring.why_stop([1.1, 0.9] * 41, 31.0, limits) == "30 s"
    assert measuring.why_stop([1.1, 0.9] * 50, 1.0, limits) == "100 repeats"


def test_repeats_end_at_the_requested_error() -> None:
    """They end at the first repeat whose times so far have a small enough error, which the same noise predicts."""
    seed = int(os.environ["NVFP4_TEST_SEED"])
    found = measure(right, count=1, gpu=FakeGpu(noise=0.01, seed=seed), repeats=1000)
    drawn = random.Random(seed)
    samples = [9e-6 * (1 + 0.01 * drawn.gauss(0, 1)) for _ in range(measuring.WARM_UP + 1000)][measuring.WARM_UP :]
    ends = (measuring.Statistics.of(samples[:count]) for count in range(measuring.MIN_REPEATS, 1000))
    expected = next(times for times in ends if times.error < 1e-3 * times.mean)
    assert found["stopped by"] == "error below 0.1%", seed
    assert found["seconds"] == pytest.approx(asdict(expected), rel=1e-9), seed
    assert expected.best < expected.mean < expected.worst and 3 <= expected.repeats < 1000, seed


def test_flush_that_fits_the_memory() -> None:
    wanted, gib = measuring.MODES["back-to-back"].flush_bytes, 2**30
    assert wanted == 16000 * 1024 * 1024 * 4 and measuring.MODES["single-call"].flush_bytes == 4 * gib
    assert measuring.flush_that_fits(wanted, 130 * gib) == wanted
    assert measuring.flush_that_fits(wanted, 60 * gib) == 44 * gib
    assert measuring.flush_that_fits(wanted, 10 * gib) == 5 * gib


class FakeCuda:
    """torch.cuda with one stream, which is the current one until a call changes that."""

    def __init__(self, log: list[str], hidden: bool = True) -> None:
        self.log, self.hidden, self.current, self.made = log, hidden, "stream", []
        self.later: list[Callable[[], object]] = []  # the work of other streams before the device is idle

    def install(self, monkeypatch: pytest.MonkeyPatch, tensor: type) -> measuring.Gpu:
        """A timer of method.py that uses this as torch.cuda."""
        buffer = SimpleNamespace(normal_=lambda: self.log.append("flush"))
        empty = lambda count, **_: self.made.append(count) or buffer  # noqa: E731
        fake = SimpleNamespace(cuda=self, float32=None, empty=empty, Tensor=tensor)
        with monkeypatch.context() as patch:
            patch.setattr(measuring, "need_torch", lambda: fake)
            gpu = measuring.Gpu(torch.device("cuda:0"), 4 * 2**30)
        gpu.prepare()
        return gpu

    def Event(self, enable_timing: bool) -> SimpleNamespace:  # noqa: N802 (torch's name)
        def record(stream: str) -> None:
            assert stream == "stream"
            self.log.append(f"record {'end' if 'record start' in self.log else 'start'}")

        assert enable_timing
        return SimpleNamespace(record=record, query=lambda: not self.hidden, elapsed_time=lambda end: 0.45)

    def current_stream(self, device: torch.device) -> str:
        return self.current

    @contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        assert stream == "stream"
        yield

    def synchronize(self) -> None:
        self.log.append("wait")
        while self.later:
            self.later.pop(0)()

    def empty_cache(self) -> None:
        self.log.append("empty cache")

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 10 * 2**30, 20 * 2**30


@pytest.mark.parametrize("hidden", [True, False])
def test_order_of_a_repeat(hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the calls are between the two events; the flush is between the idle device and the first event."""
    log = []

    class Tensor:
        def __init__(self, number: int) -> None:
            self.number = number
            log.append(f"call {number}")

        def clone(self) -> str:
            log.append(f"copy {self.number}")
            return f"copy of {self.number}"

    fake = FakeCuda(log, hidden)
    gpu = fake.install(monkeypatch, Tensor)
    repeat = gpu.time([partial(Tensor, i) for i in range(2)] + [lambda: log.append("call 2")])
    assert log[:5] == ["empty cache", "wait", "flush", "record start", "call 0"]
    assert log[5:] == ["call 1", "call 2", "record end", "copy 1", "copy 0", "wait"]
    assert repeat == measuring.Repeat(["copy of 0", "copy of 1", None], pytest.approx(0.45e-3), hidden)
    assert fake.made == [2**30]
    assert gpu.flush_text().startswith("4 GiB of random numbers written") and "competition's" in gpu.flush_text()


def test_a_call_that_changes_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both events and the copies stay on the first stream."""
    fake = FakeCuda([])
    gpu = fake.install(monkeypatch, torch.Tensor)
    gpu.time([lambda: setattr(fake, "current", "another")])
    assert fake.log[-3:] == ["record start", "record end", "wait"]


@pytest.mark.parametrize("count", [1, 6])
def test_later_work_of_another_stream_is_not_judged(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result becomes right after the second event, before the device is idle."""
    fake, left = FakeCuda([]), count
    gpu = fake.install(monkeypatch, torch.Tensor)
    assert measure(right, count, gpu)["seconds"]["mean"] == pytest.approx(0.45e-3 / count)

    def kernel(data: reference.Data) -> torch.Tensor:
        nonlocal left
        left -= 1
        if left >= 0:
            return right(data)
        fake.later.append(partial(right, data))
        return data[6]

    with pytest.raises(measuring.Wrong, match=f"warm-up 1, input 1 of {count}: 240 of 240 values are wrong"):
        measure(kernel, count, gpu)
    assert not fake.later


# --- both modes -----------------------------------------------------------------------------------------------------


def test_back_to_back_calls() -> None:
    gpu = FakeGpu(hidden=False)
    seen = []

    def kernel(data: reference.Data) -> torch.Tensor:
        assert data[6].isnan().all(), "an output is poisoned before each call"
        seen.append((data[0].data_ptr(), data[0].view(torch.uint8).sum().item()))
        return right(data)

    found = measure(kernel, gpu=gpu)
    assert gpu.prepared == 1 and gpu.counts == [6] * (measuring.WARM_UP + found["seconds"]["repeats"])
    assert found["seconds"]["mean"] == pytest.approx(9e-6) and found["exposed"] == found["seconds"]["repeats"] == 3
    first, timed = seen[:6], seen[6:]
    assert not {pointer for pointer, _ in first} & {pointer for pointer, _ in timed}, "the first check uses copies"
    assert len({pointer for pointer, _ in timed}) == 6 and timed[0][0] == timed[6][0]
    assert len({numbers for _, numbers in first}) > 3, "different inputs"
    assert len(set(timed)) > 6, "one input has new numbers in each repeat"


@pytest.mark.parametrize("task", contest.TASKS)
def test_inputs_are_those_of_their_seeds(task: str) -> None:
    """The bytes that the task's definition gives for the seeds of the yml file plus 42, plus 84, ..."""
    definition, test = dual.definition(task), dual.load_task(task)["benchmarks"][0] | {"m": 70, "n": 1, "k": 96}
    inputs = measuring.Inputs(definition, test, 42, torch.device("cpu"))
    for seed in (1111 + 42, 1111 + 84):
        data, expected = inputs.draw()
        wanted = definition.generate_input(**test | {"seed": seed})
        assert [part.shape for part in data] == [part.shape for part in wanted]
        assert all(torch.equal(*map(reference.as_bytes, pair)) for pair in zip(data[:-1], wanted))
        assert torch.equal(expected, definition.ref_kernel(wanted)) and data[-1].isnan().all()
    expected, wanted = inputs.renew(data), definition.generate_input(**test | {"seed": 1111 + 126})
    assert all(torch.equal(*map(reference.as_bytes, pair)) for pair in zip(data[:-1], wanted))
    assert torch.equal(expected, definition.ref_kernel(wanted))


def test_inputs_of_the_dual_product() -> None:
    """Every byte that the task allows occurs, and no other; three matrices differ, and their scales."""
    data = inputs_of(dual.NAME, m=80, n=80, k=128, l=1).draw()[0]
    allowed = {byte & dual.VALUES for byte in range(256)}
    assert all(set(reference.as_bytes(part).flatten().tolist()) == allowed for part in data[:3])
    for one, other in ((1, 2), (4, 5), (7, 8), (0, 1), (3, 4)):
        assert not torch.equal(reference.as_bytes(data[one]), reference.as_bytes(data[other]))
    for linear, swizzled in zip(data[3:6], data[6:9]):
        assert (linear.float() >= 0).all() and (linear.float() <= 1).all()
        rows = reference.unswizzle(swizzled.permute(5, 2, 4, 0, 1, 3), 80, 8)
        assert torch.equal(*(reference.as_bytes(part) for part in (rows.permute(1, 2, 0), linear)))


REORDERED = [
    ("nvfp4_gemm", {"m": 40}),
    ("nvfp4_gemv", {"m": 150, "n": 1, "k": 80, "b_rows": 128}),
    ("nvfp4_gemm", {"m": 33, "n": 260, "l": 1}),
    (dual.NAME, {"m": 40, "n": 150, "k": 80}),
]


@pytest.mark.parametrize(("task", "shape"), REORDERED, ids=str)
def test_permuted_rows(task: str, shape: dict[str, int]) -> None:
    """The result is a complete input, padding included, and its product is the expected result."""
    inputs = inputs_of(task, **shape)
    data, expected = inputs.draw()
    matrices = len(data) // 3
    before = [reference.as_bytes(part).clone() for part in data[:-1]]
    now = inputs.reorder(data, expected)
    assert now.shape == expected.shape and not torch.equal(now, expected)
    assert reference.compare(inputs.definition.ref_kernel(data), now)[0]
    assert reference.compare(contest.package(task, None)(data), now)[0]
    for index, (part, old) in enumerate(zip(data[:-1], before)):
        stays = index % matrices > 0 and expected.shape[1] == 1  # of B, the one row that counts
        assert torch.equal(reference.as_bytes(part), old) == stays
        assert torch.equal(reference.as_bytes(part).flatten().sort()[0], old.flatten().sort()[0])
    for linear, swizzled in zip(data[matrices:-1], data[2 * matrices : -1]):
        again = reference.swizzle(reference.as_bytes(linear).permute(2, 0, 1), reference.E4M3_NAN)
        assert torch.equal(reference.as_bytes(swizzled), again.permute(3, 4, 1, 5, 2, 0))


def test_single_calls_have_new_numbers_in_each_repeat() -> None:
    seen = []
    found = measure(lambda data: seen.append(data[0].view(torch.uint8).clone()) or right(data), count=1)
    assert len(seen) == 1 + measuring.WARM_UP + found["seconds"]["repeats"]
    assert not any(torch.equal(x, y) for x, y in zip(seen, seen[1:]))


def test_vector_in_a_matrix() -> None:
    assert measure(right, count=2, n=1, b_rows=128)["stopped by"] == "error below 0.1%"


# --- what is wrong --------------------------------------------------------------------------------------------------


class Mutation:
    """A kernel that is right for the first `after` calls and then wrong."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, data: reference.Data) -> torch.Tensor:
        self.left -= 1
        return right(data) if self.left >= 0 else self.wrong(data)


class ReturnsStaleOutput(Mutation):
    def wrong(self, data: reference.Data) -> torch.Tensor:
        return data[6]


class LeavesOneElement(Mutation):
    def wrong(self, data: reference.Data) -> torch.Tensor:
        kept = data[6][-1, -1, -1].clone()
        right(data)
        data[6][-1, -1, -1] = kept
        return data[6]


class SkipsOne(Mutation):
    """Not the last of the calls: a verdict on that one alone misses the error."""

    def wrong(self, data: reference.Data) -> torch.Tensor:
        return data[6] if self.left == -2 else right(data)


class Replays(Mutation):
    """Returns an earlier result for the same addresses."""

    def __init__(self, after: int) -> None:
        super().__init__(after)
        self.known: dict[int, torch.Tensor] = {}

    def wrong(self, data: reference.Data) -> torch.Tensor:
        if data[0].data_ptr() not in self.known:
            self.known[data[0].data_ptr()] = right(data).clone()
        return self.known[data[0].data_ptr()]


class RemembersByTheFirstBytes(Mutation):
    def __init__(self, after: int) -> None:
        super().__init__(after)
        self.known: dict[tuple, torch.Tensor] = {}

    def wrong(self, data: reference.Data) -> torch.Tensor:
        key = (data[0].data_ptr(), *data[0].view(torch.uint8)[0, :8, 0].tolist())
        if key not in self.known:
            self.known[key] = right(data).clone()
        return self.known[key]


class KeepsItsB(Mutation):
    """Like a kernel that caches repacked weights by their address."""

    def __init__(self, after: int) -> None:
        super().__init__(after)
        self.known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def wrong(self, data: reference.Data) -> torch.Tensor:
        own = tuple(reference.as_bytes(part).clone().view(part.dtype) for part in (data[1], data[5]))
        b, sfb = self.known.setdefault(data[1].data_ptr(), own)
        return right((data[0], b, *data[2:5], sfb, data[6]))


class ComputesWhenRead(Mutation):
    class Lazy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):  # noqa: ANN001, ANN206 (torch's)
            for late in arguments:
                if type(late) is cls and (work := late.__dict__.pop("work", None)):
                    work()
            return super().__torch_function__(function, types, arguments, options or {})

    def wrong(self, data: reference.Data) -> torch.Tensor:
        late = data[6].as_subclass(self.Lazy)
        late.__dict__["work"] = partial(right, data)
        return late


class GivesAllOneTensor(Mutation):
    def wrong(self, data: reference.Data) -> torch.Tensor:
        self.one = getattr(self, "one", data[6])
        return self.one.copy_(right(data))


class Raises(Mutation):
    def wrong(self, data: reference.Data) -> torch.Tensor:
        raise ValueError("no such tile")


class ReturnsNothing(Mutation):
    def wrong(self, data: reference.Data) -> None:
        right(data)


@pytest.mark.parametrize("mutation", Mutation.__subclasses__(), ids=lambda mutation: mutation.__name__)
@pytest.mark.parametrize("first", [0, 6 * (1 + measuring.WARM_UP)], ids=["at once", "when it is timed"])
def test_mutations(mutation: type[Mutation], first: int) -> None:
    if mutation in (Replays, RemembersByTheFirstBytes, KeepsItsB, GivesAllOneTensor) and first == 0:
        first = 6  # for copies, judged one by one, these give right results
    messages = {
        Raises: "ValueError: no such tile",
        ReturnsNothing: "a NoneType, not a torch.Tensor",
        ComputesWhenRead: "a Lazy, not a torch.Tensor",
    }
    with pytest.raises(measuring.Wrong, match=messages.get(mutation, "values are wrong, the first at")) as caught:
        measure(mutation(first), gpu=FakeGpu(noise=0.1))
    if mutation is SkipsOne:
        assert f"{'' if first == 0 else 'repeat 1, '}input 2 of 6: 240 of 240" in str(caught.value)


# Kernels of the dual product; each takes its ten tensors.
GATE, UP, OUTPUT = (0, 1, 6, 7), (0, 2, 6, 8), 9
right_dual = contest.package(dual.NAME, None)


def exchanged(data: measuring.Data) -> torch.Tensor:
    a, gate, up, sfa, sfb_gate, sfb_up, sfa_permuted, of_gate, of_up, c = data
    return right_dual((a, up, gate, sfa, sfb_up, sfb_gate, sfa_permuted, of_up, of_gate, c))


def without_silu(data: measuring.Data) -> torch.Tensor:
    c = data[OUTPUT]
    gate, up = (
        nvfp4.custom_kernel(*(data[i] for i in which), torch.empty_like(c, dtype=torch.float32)) for which in (GATE, UP)
    )
    return c.copy_(gate * up)


def silu_alone(data: measuring.Data) -> torch.Tensor:
    c = data[OUTPUT]
    return c.copy_(torch.nn.functional.silu(nvfp4.custom_kernel(*(data[i] for i in GATE), torch.empty_like(c))))


class KeepsItsUp:
    """Wrong from the second call on the same address."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, data: measuring.Data) -> torch.Tensor:
        own = tuple(reference.as_bytes(data[i]).clone().view(data[i].dtype) for i in (2, 8))
        up, scales = self.known.setdefault(data[2].data_ptr(), own)
        return right_dual((*data[:2], up, *data[3:8], scales, data[OUTPUT]))


def test_right_dual_product() -> None:
    assert measure(right_dual, task=dual.NAME)["stopped by"] == "error below 0.1%"


WRONG = {"exchanged": exchanged, "without silu": without_silu, "silu alone": silu_alone, "keeps its up": KeepsItsUp()}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_dual_products(wrong: measuring.Kernel) -> None:
    with pytest.raises(measuring.Wrong, match="values are wrong, the first at"):
        measure(wrong, task=dual.NAME)


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Makes the command time on the fake GPU."""
    fake, cpu = FakeGpu(noise=1e-4), torch.device("cpu")
    monkeypatch.setattr(machine, "pick_target", lambda backend: machine.Target(cpu, cpu, None))
    monkeypatch.setattr(contest, "timer", lambda target, mode: fake)
    monkeypatch.setattr(timing, "DeviceClock", lambda device: type("", (), {"copy_bandwidth": lambda self, n: 4e12})())
    monkeypatch.setattr(machine, "clocks", lambda device: "SM 1980 MHz")
    monkeypatch.setattr(machine, "describe", lambda device: "NVIDIA H200 (fake), 132 SMs")
    return fake


def test_times_and_json(gpu: FakeGpu, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    assert main(["measure", "--shapes", "128x256x256,3x5x48x2", "--inputs", "4", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found["mode"] == "back-to-back" and set(gpu.counts) == {4}
    first, second = found["shapes"]
    assert first["shape"] == {"m": 128, "n": 256, "k": 256, "l": 1} and first["right"] and second["right"]
    mean = first["seconds"]["mean"] * 1e6
    floor = ((128 + 256) * (128 + 16) + 2 * 128 * 256) / 4e12 * 1e6
    (row,) = (line.split() for line in out.splitlines() if line.startswith("128x256x256x1"))
    assert row[1] == f"{mean:.2f}" and row[-2:] == [f"{floor:.2f}", f"{mean / floor:.2f}"]
    both = math.sqrt(mean * second["seconds"]["mean"] * 1e6)
    assert f"geometric mean: {both:.2f} us" in out and "mean / speed of light" not in out
    of_it = "python tools/contest measure --shapes 128x256x256,3x5x48x2 --inputs 4"  # without --json
    assert found["command"] == of_it and found["format"] == contest.FORMAT and "host time" not in out


def test_gemv_is_timed_by_single_calls(gpu: FakeGpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.hidden = False
    assert main(["measure", "--task", "nvfp4_gemv", "--shapes", "64x1x256x2"]) == 0
    out = capsys.readouterr().out
    assert main(["measure", "--task", "nvfp4_gemv", "--shapes", "64x1x256x2", "--inputs", "5"]) == 2
    assert set(gpu.counts) == {1} and "between two events: one call" in out and "repeats include host time" in out


def test_dual_products_are_timed_back_to_back(gpu: FakeGpu, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "--task", dual.NAME, "--shapes", "128x64x256", "--inputs", "3"]) == 0
    out = capsys.readouterr().out
    assert set(gpu.counts) == {3} and f"The competition's {dual.NAME}: nvfp4" in out
    (row,) = (line.split() for line in out.splitlines() if line.startswith("128x64x256x1"))
    floor = ((128 + 2 * 64) * (128 + 16) + 2 * 128 * 64) / 4e12 * 1e6
    assert float(row[-1]) == pytest.approx(9 / floor, rel=1e-3)


def test_ratio_to_the_speed_of_light_is_a_b200s(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "describe", lambda device: "NVIDIA B200 (fake), 148 SMs")
    monkeypatch.setitem(contest.TASKS, "nvfp4_gemm", contest.Task("back-to-back", {(64, 64, 64, 1): 3.0}))
    gpu.noise = 0.0
    assert main(["measure", "--shapes", "64x64x64", "--inputs", "2"]) == 0
    row = capsys.readouterr().out.splitlines()[3].split()
    assert row[1] == "9.00" and row[-4:-2] == ["3", "3.00"]


def test_speed_of_light_is_of_the_ranked_shapes() -> None:
    assert list(contest.TASKS) == list(submission.TASKS)
    for name, task in contest.TASKS.items():
        ranked = dual.load_task(name)["benchmarks"]
        assert [tuple(test[size] for size in "mnkl") for test in ranked] == list(task.speed_of_light)
    of_the_model = {(*sizes, 1): light for sizes, light, _ in b200_report.DUAL}
    assert of_the_model == contest.TASKS[dual.NAME].speed_of_light


def test_ranked_shapes_of_the_dual_product(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """All four of the yml file by default, with its seed, one of them by --only."""
    seen: list[dict[str, int]] = []

    def result_of(inputs: measuring.Inputs, *_: object) -> dict:
        seen.append(inputs.test)
        times = {"mean": 1.0, "error": 0.0, "best": 1.0, "repeats": 3}
        shape = {size: inputs.test[size] for size in "mnkl"}
        return {"shape": shape, "right": True, "why": "", "seconds": times, "stopped by": "", "exposed": 0}

    monkeypatch.setattr(contest, "result_of", result_of)
    assert main(["measure", "--task", dual.NAME]) == 0
    assert seen == dual.load_task()["benchmarks"] and {test["seed"] for test in seen} == {1111}
    assert main(["measure", "--task", dual.NAME, "--only", "3"]) == 0
    assert len(seen) == 5 and [seen[4][size] for size in "mnkl"] == [256, 3072, 4096, 1]


def test_a_wrong_result_is_exit_status_1(gpu: FakeGpu, monkeypatch, capsys) -> None:
    mutation = SkipsOne(10)
    monkeypatch.setattr(contest, "package", lambda task, backend: mutation)
    assert main(["measure", "--shapes", "5x24x64x2,64x64x64", "--inputs", "4"]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out and "5x24x64x2: warm-up 2, input 4 of 4: 240 of 240 values are wrong" in out
    assert "geometric mean" not in out and "64x64x64x1" in out, "the other shape is still timed"


@pytest.mark.parametrize("task", contest.TASKS)
def test_correctness_on_the_cpu(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "--task", task, "--backend", "cpu", "--shapes", "128x1x256x2", "--inputs", "3"]) == 0
    out = capsys.readouterr().out
    assert ["128x1x256x2", "3", "right"] in [line.split() for line in out.splitlines()]
    assert "Nothing was timed: a time on a CPU says nothing" in out


@pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")
@pytest.mark.parametrize("task", contest.TASKS)
def test_correctness_on_the_emulated_gpu(task: str) -> None:
    device = random.choice(emulate.DEVICES[:3])
    driver = {"NVFP4_LIBCUDA": str(emulate.build()), "CUDA_VISIBLE_DEVICES": "", "EMULATE_DEVICE": device}
    done = command("--task", task, "--shapes", "130x1x272x2", "--inputs", "2", **driver)
    assert done.returncode == 0, done.stderr
    assert "on Emulated" in done.stdout
    assert ["130x1x272x2", "2", "right"] in [line.split() for line in done.stdout.splitlines()]
    assert "a time on an emulated GPU says nothing" in done.stdout


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return python(TOOLS / "contest/__main__.py", "measure", *arguments, env=environment, timeout=300, cwd="/")


SUBMISSION = """
from task import input_t, output_t
import nvfp4

def custom_kernel(data: input_t) -> output_t:
    a, b, _, _, sfa, sfb, c = data
    return nvfp4.custom_kernel(a, b, sfa, sfb, c){spoil}
"""


@pytest.mark.parametrize(("spoil", "status"), [("", 0), (".zero_()", 1)])
def test_submission(spoil: str, status: int, tmp_path: Path) -> None:
    file = tmp_path / "submission.py"
    file.write_text(SUBMISSION.format(spoil=spoil))
    arguments = ("--submission", str(file), "--correctness", "--shapes", "64x64x64", "--inputs", "2")
    done = command(*arguments, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == status, done.stderr
    assert str(file) in done.stdout and ("right" if status == 0 else "input 1 of 2: ") in done.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no such Python file"),
        ("import cutlass_of_nobody", "importing it raised ModuleNotFoundError"),
        ("def kernel(data): ...", "has no function custom_kernel(data)"),
    ],
)
def test_submission_that_cannot_run(text: str | None, message: str, tmp_path: Path, capsys) -> None:
    file = tmp_path / "submission.py"
    if text is not None:
        file.write_text(text)
    assert main(["measure", "--submission", str(file)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "4"], "the shapes of nvfp4_gemm are 1 to 3"),
        (["--task", dual.NAME, "--only", "5"], f"the shapes of {dual.NAME} are 1 to 4"),
        (["--task", "nvfp4_gemv", "--shapes", "64x2x64"], "N is 1 in every shape of nvfp4_gemv"),
        (["--repeats", "1"], "--repeats must be at least 2"),
        (["--inputs", "0"], "--inputs at least 1"),
        (["--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
        (["--backend", "sm70"], "sm70"),
    ],
)
def test_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("tools/contest measure: ") and message in captured.err and captured.out == ""


@pytest.mark.parametrize(
    "arguments", [["--shapes", "1x2"], ["--shapes", "1x2x17"], ["--mode", "best"], ["--task", "x"]]
)
def test_arguments_that_are_not_understood(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        main(["measure", *arguments])
    said = capsys.readouterr().err
    assert exit_status.value.code == 2 and f"error: argument {arguments[0]}: " in said
    assert arguments[0] != "--task" or all(f"{name}'" in said for name in contest.TASKS)
