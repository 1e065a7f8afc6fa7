"""Timing of contestants that take turns: medians with their spread, and ratios of times from one round of one run.

Two figures each. A single call with cold caches is what a lone product costs. Back to back is the share of one call in
a queue of them, each on inputs that the caches no longer hold: the gap between two calls is in it, the launch and the
clock are not.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from .machine import need_torch
from .show import Failure

if TYPE_CHECKING:
    import torch

FLUSH_BYTES = 512 * 2**20  # several times the L2 of any GPU so far
MOST_WRITES = 512  # of the flush buffer before one timing: 40 ms of a B200, and the driver queues 1024 launches
MIN_ROUNDS = 3
BUDGET_S = 8.0  # a contestant that would take longer sits out rounds, evenly
QUEUE_CALLS = 50  # as the competition has it
QUEUE_S = 0.25  # a queue that would take longer is shorter
PAUSE_S = 0.02  # OpenMP's threads spin for milliseconds after a call, on cores that the next contestant needs

Call = Callable[[], object]


@dataclass
class Contestant:
    name: str
    call: Callable[[int], object]  # runs the product on input set i, whichever i; returns the result
    run: str = ""  # of which run its times are
    ours: bool = False
    kernel: str = ""
    note: str = ""  # what a reader must know of its figures
    sets: int = 1  # of inputs, through which the calls rotate
    cold: dict[int, float] = field(default_factory=dict)  # round -> seconds of a single call
    queued: dict[int, float] = field(default_factory=dict)  # round -> seconds a call, back to back
    host: list[float] = field(default_factory=list)  # seconds a call of the thread that queued them
    estimate: float = 0.0
    stride: int = 1

    def queue_calls(self) -> int:
        return max(MIN_ROUNDS, min(QUEUE_CALLS, int(QUEUE_S / max(self.estimate, 1e-9))))


@dataclass(frozen=True)
class Queued:
    seconds: float  # a call
    host: float | None  # seconds a call of the calling thread, where that is another matter


class Clock(Protocol):
    def warm_up(self, call: Callable[[int], object]) -> float:
        """About how long a call takes."""

    def run(self, calls: Sequence[Call]) -> list[float]:
        """Seconds of each, one at a time with cold caches."""

    def queue(self, calls: Sequence[Call]) -> Queued:
        """Seconds a call, of these in a row."""

    def copy_bandwidth(self, repeat: int) -> float:
        """Bytes read and written a second by a copy that no cache holds, the best of some."""


class HostClock:
    """Times calls on the CPU with the host's monotonic clock."""

    def warm_up(self, call: Callable[[int], object]) -> float:
        call(0)
        return self.run([partial(call, 1)])[0]

    def run(self, calls: Sequence[Call]) -> list[float]:
        return [self.queue([call]).seconds for call in calls]

    def queue(self, calls: Sequence[Call]) -> Queued:
        time.sleep(PAUSE_S)
        start = time.perf_counter()
        for call in calls:
            call()
        return Queued((time.perf_counter() - start) / len(calls), None)

    def copy_bandwidth(self, repeat: int) -> float:
        torch = need_torch()
        source, target = torch.full((2, FLUSH_BYTES // 2), 1, dtype=torch.uint8)  # zeros may share one page
        target.copy_(source)
        return 2 * source.numel() / min(self.run([lambda: target.copy_(source)] * repeat))


class DeviceClock:
    """Times calls on the GPU with events around them, behind writes of a buffer that evict the L2.

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
        pairs = []
        for call in calls:
            self.value = (self.value + 1) % 256
            self.flush.fill_(self.value)
            pair = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            call()
            pair[1].record()
            pairs.append(pair)
        self.torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in pairs]

    def queue(self, calls: Sequence[Call]) -> Queued:
        queued, self.writes = time_queue(self.torch, self.flush, calls, self.writes)
        return queued

    def empty_pair(self, repeat: int) -> float:
        """Seconds between two events with nothing between them: the part of a single call that is not the kernel."""
        return statistics.median(self.run([lambda: None] * repeat))

    def copy_bandwidth(self, repeat: int) -> float:
        half = self.flush.numel() // 2
        target, source = self.flush[:half], self.flush[half : 2 * half]
        return 2 * half / min(self.run([lambda: target.copy_(source)] * repeat))


def time_queue(torch: ModuleType, flush: torch.Tensor, calls: Sequence[Call], writes: int) -> tuple[Queued, int]:
    """Times calls in a plain queue (no graph) between one pair of events, behind writes of the flush buffer.

    The writes must last until all calls are queued, or the host's time would be in the figure: a figure whose first
    event came earlier is dropped and twice as many writes precede. Returns how many that were, for the next time.
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
            return Queued(start.elapsed_time(end) * 1e-3 / len(calls), host / len(calls)), writes
        if writes >= MOST_WRITES:
            raise Failure(f"this machine cannot queue {len(calls)} calls in the time of {writes} writes")
        writes *= 2


def matmul_rate(clock: Clock, device: torch.device, dtype: torch.dtype, size: int, repeat: int) -> float:
    """Operations a second of torch's product of two square matrices of random values, the best of some."""
    torch = need_torch()
    a, b, out = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
    torch.matmul(a, b, out=out)
    return 2 * size**3 / min(clock.run([lambda: torch.matmul(a, b, out=out)] * repeat))


def compete(contestants: Sequence[Contestant], clock: Clock, repeat: int) -> None:
    """Runs `repeat` rounds of single calls; in each, every contestant that is not sitting out runs once."""
    for contestant in contestants:
        contestant.estimate = clock.warm_up(contestant.call)
        affordable = min(repeat, max(MIN_ROUNDS, int(BUDGET_S / max(contestant.estimate, 1e-9))))
        # A power of two, so that the rounds of a slow one are among those of any that is faster.
        contestant.stride = 2 ** math.floor(math.log2(repeat / affordable))
    for turn in range(repeat):
        order = [c for c in rotated(contestants, turn) if turn % c.stride == 0]
        times = clock.run([partial(c.call, turn) for c in order])
        for contestant, seconds in zip(order, times):
            contestant.cold[turn] = seconds


def compete_in_queues(contestants: Sequence[Contestant], clock: Clock, rounds: int) -> None:
    """Runs `rounds` rounds of queues, after `compete`; each contestant goes on with the inputs after its last ones."""
    for turn in range(rounds):
        for contestant in rotated(contestants, turn):
            count = contestant.queue_calls()
            queued = clock.queue([partial(contestant.call, turn * count + i) for i in range(count)])
            contestant.queued[turn] = queued.seconds
            if queued.host is not None:
                contestant.host.append(queued.host)


def rotated(contestants: Sequence[Contestant], turn: int) -> list[Contestant]:
    """The contestants in turn, another one first in each round."""
    first = turn % len(contestants)
    return [*contestants[first:], *contestants[:first]]


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


def ratio(rival: Contestant, ours: Contestant, mode: str = "cold") -> Spread:
    """The rival's time over ours, of the rounds in which both ran: above 1 we are faster."""
    if rival.run != ours.run:
        raise ValueError(f"{rival.name} ran in run {rival.run}, {ours.name} in run {ours.run}: no ratio of two runs")
    theirs, our = getattr(rival, mode), getattr(ours, mode)
    return Spread.of([theirs[i] / our[i] for i in sorted(theirs.keys() & our.keys())])
