"""Times implementations in alternation: medians with percentiles, and ratios of times from the same round of one run.

Two figures each. Single-call: one product with cold caches (cold L2 on a GPU). Back-to-back: the time per call of
consecutive calls on one stream, each on inputs that the caches do not hold. It includes the gap between two calls, but
neither the launch latency nor the cost of the clock.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nvfp4.cli.machine import need_torch
from nvfp4.cli.show import Failure

if TYPE_CHECKING:
    import torch

FLUSH_BYTES = 512 * 2**20  # several times the L2 of any GPU so far
MAX_WRITES = 512  # of the flush buffer before one timing: 40 ms of a B200, and the driver queues 1024 launches
MAX_TRIES = 32  # of a single call that the host does not enqueue in time: up to 128 writes
MIN_ROUNDS, MIN_CALLS = 3, 2
BUDGET_S = 8.0  # of the single calls of an implementation
BACK_TO_BACK_CALLS = 50  # as the competition has it
BACK_TO_BACK_S = 0.25  # fewer calls where 50 would take longer
PAUSE_S = 0.02  # OpenMP's threads spin for milliseconds after a call, on cores that the next implementation needs

Call = Callable[[], object]
T = TypeVar("T")


@dataclass
class Implementation:
    """Our product on one backend, or a baseline, with its times in this run."""

    name: str
    call: Callable[[int], Any]  # runs the product on input set i, any i; returns the result
    run: str = ""  # the run that its times are from
    ours: bool = False
    kernel: str = ""
    note: str = ""  # what a reader must know of its figures
    sets: int = 1  # of inputs, through which the calls rotate
    single_call: dict[int, float] = field(default_factory=dict)  # round -> seconds
    back_to_back: dict[int, float] = field(default_factory=dict)  # round -> seconds a call
    host: list[float] = field(default_factory=list)  # seconds a call of the thread that enqueues
    estimate: float = 0.0
    stride: int = 1

    def back_to_back_calls(self) -> int:
        return max(MIN_CALLS, min(BACK_TO_BACK_CALLS, int(BACK_TO_BACK_S / max(self.estimate, 1e-9))))


@dataclass(frozen=True)
class StreamTime:
    """The time of consecutive calls on a stream."""

    seconds: float  # a call
    host: float | None  # seconds a call of the calling thread; None where both are the same


class Clock(Protocol):
    def warm_up(self, call: Callable[[int], object]) -> float:
        """About how long a call takes."""

    def run(self, calls: Sequence[Call]) -> list[float]:
        """Seconds of each call, one at a time with cold caches."""

    def back_to_back(self, calls: Sequence[Call]) -> StreamTime:
        """Seconds per call, over consecutive calls."""

    def copy_bandwidth(self, repeat: int) -> float:
        """Bytes per second, read plus written, of a copy that no cache holds: the best of `repeat`."""


class HostClock:
    """Times calls on the CPU with the host's monotonic clock."""

    def warm_up(self, call: Callable[[int], object]) -> float:
        call(0)
        return self.run([partial(call, 1)])[0]

    def run(self, calls: Sequence[Call]) -> list[float]:
        return [self.back_to_back([call]).seconds for call in calls]

    def back_to_back(self, calls: Sequence[Call]) -> StreamTime:
        time.sleep(PAUSE_S)
        start = time.perf_counter()
        for call in calls:
            call()
        return StreamTime((time.perf_counter() - start) / len(calls), None)

    def copy_bandwidth(self, repeat: int) -> float:
        torch = need_torch()
        source, target = torch.full((2, FLUSH_BYTES // 2), 1, dtype=torch.uint8)  # zeros may share one page
        target.copy_(source)
        return 2 * source.numel() / min(self.run([lambda: target.copy_(source)] * repeat))


class DeviceClock:
    """Times calls on the GPU with events around them, after writes of a buffer that evict the L2.

    Those writes also take longer than the host needs to enqueue the calls, so that no host time is in the figure.
    """

    def __init__(self, device: torch.device) -> None:
        self.torch = need_torch()
        l2 = self.torch.cuda.get_device_properties(device).L2_cache_size
        self.flush = self.torch.empty(max(FLUSH_BYTES, 4 * l2), dtype=self.torch.uint8, device=device)
        self.value = 0
        self.writes = 1

    def warm_up(self, call: Callable[[int], object]) -> float:
        for i in range(3):
            call(i)
        return self.run([partial(call, 3)])[0]

    def run(self, calls: Sequence[Call]) -> list[float]:
        pairs = [self.pair_around(call) for call in calls]
        self.torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in pairs]

    def pair_around(self, call: Call) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """The events around a call after a write. If that ended before the call was enqueued, host time is in the
        figure: it is dropped and the call repeated, every fourth time after twice as many writes."""
        for tries in range(MAX_TRIES):
            for _ in range(2 ** (tries // 4)):
                self.value = (self.value + 1) % 256
                self.flush.fill_(self.value)
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            if not start.query():
                return start, end
        raise Failure(f"this host did not enqueue a call in the time of a write in {MAX_TRIES} tries")

    def back_to_back(self, calls: Sequence[Call]) -> StreamTime:
        timed, self.writes = time_on_stream(self.torch, self.flush, calls, self.writes)
        return timed

    def empty_pair(self, repeat: int) -> float:
        """Seconds between two events with nothing between them: the part of a single call that is not the kernel."""
        return statistics.median(self.run([lambda: None] * repeat))

    def copy_bandwidth(self, repeat: int) -> float:
        half = self.flush.numel() // 2
        target, source = self.flush[:half], self.flush[half : 2 * half]
        return 2 * half / min(self.run([lambda: target.copy_(source)] * repeat))


def captured(calls: Sequence[Callable[[], T]]) -> Callable[[], T]:
    """All calls as one CUDA graph. The result is that of the last one, always the same object."""
    cuda = need_torch().cuda
    calls[0]()
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        for call in calls:
            result = call()

    def replay() -> T:
        graph.replay()
        return result

    return replay


def time_on_stream(
    torch: ModuleType, flush: torch.Tensor, calls: Sequence[Call], writes: int
) -> tuple[StreamTime, int]:
    """Times calls on the current stream (no graph) between one pair of events, after writes of the flush buffer.

    The writes must last until all calls are enqueued: otherwise host time is in the figure. If the first event
    completes earlier, the figure is dropped and the number of writes doubles. Returns that number, for the next time.
    """
    cuda = torch.cuda
    while True:
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        for value in range(writes):
            flush.fill_(value % 256)
        start.record()
        begin = time.perf_counter()
        for call in calls:
            call()
        host = time.perf_counter() - begin
        end.record()
        in_time = not start.query()
        cuda.synchronize()
        if in_time:
            return StreamTime(start.elapsed_time(end) * 1e-3 / len(calls), host / len(calls)), writes
        if writes >= MAX_WRITES:
            raise Failure(f"this host cannot enqueue {len(calls)} calls in the time of {writes} writes")
        writes *= 2


def matmul_rate(clock: Clock, device: torch.device, dtype: torch.dtype, size: int, repeat: int) -> float:
    """Operations per second of torch's product of two square random matrices: the best of `repeat`."""
    torch = need_torch()
    a, b, out = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
    torch.matmul(a, b, out=out)
    return 2 * size**3 / min(clock.run([lambda: torch.matmul(a, b, out=out)] * repeat))


def run_single_call_rounds(
    implementations: Sequence[Implementation], clock: Clock, repeat: int, budget: float = BUDGET_S
) -> None:
    """Runs `repeat` rounds of single calls; in each, every implementation that does not skip the round runs once.

    Args:
        budget: seconds of an implementation; one that would take longer skips rounds, evenly.
    """
    for implementation in implementations:
        implementation.estimate = clock.warm_up(implementation.call)
        affordable = min(repeat, max(MIN_ROUNDS, int(budget / max(implementation.estimate, 1e-9))))
        # A power of two, so that the rounds of a slow one are among those of any that is faster.
        implementation.stride = 2 ** math.floor(math.log2(repeat / affordable))
    for turn in range(repeat):
        order = [each for each in rotated(implementations, turn) if turn % each.stride == 0]
        times = clock.run([partial(each.call, turn) for each in order])
        for implementation, seconds in zip(order, times):
            implementation.single_call[turn] = seconds


def run_back_to_back_rounds(
    implementations: Sequence[Implementation], clock: Clock, rounds: int, budget: float = math.inf
) -> None:
    """Runs `rounds` rounds of consecutive calls, after the single calls. Each round continues with the next inputs.

    Args:
        budget: seconds of the slowest implementation, for which there may be fewer rounds.
    """
    slowest = max(each.estimate * each.back_to_back_calls() for each in implementations)
    if rounds * slowest > budget:
        rounds = max(MIN_ROUNDS, int(budget / slowest))
    for turn in range(rounds):
        for implementation in rotated(implementations, turn):
            count = implementation.back_to_back_calls()
            timed = clock.back_to_back([partial(implementation.call, turn * count + i) for i in range(count)])
            implementation.back_to_back[turn] = timed.seconds
            if timed.host is not None:
                implementation.host.append(timed.host)


def rotated(implementations: Sequence[Implementation], turn: int) -> list[Implementation]:
    """The implementations in turn, starting with another one in each round."""
    first = turn % len(implementations)
    return [*implementations[first:], *implementations[:first]]


@dataclass(frozen=True)
class Spread:
    """The median and the tenth and ninetieth percentiles of some samples."""

    median: float
    p10: float
    p90: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        ordered = sorted(samples)

        def at(fraction: float) -> float:
            return ordered[round(fraction * (len(ordered) - 1))]

        return cls(statistics.median(ordered), at(0.1), at(0.9), len(ordered))


def ratio(baseline: Implementation, ours: Implementation, mode: str = "single_call") -> Spread:
    """The baseline's time over ours, from rounds in which both ran. Above 1 ours is faster."""
    if baseline.run != ours.run:
        raise ValueError(
            f"{baseline.name} ran in run {baseline.run}, {ours.name} in run {ours.run}: no ratio of two runs"
        )
    theirs, our = getattr(baseline, mode), getattr(ours, mode)
    return Spread.of([theirs[i] / our[i] for i in sorted(theirs.keys() & our.keys())])
