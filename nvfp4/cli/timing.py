"""Timing of contestants that take turns: cold caches, medians with their spread, ratios of times from one round."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from .machine import need_torch

if TYPE_CHECKING:
    import torch

FLUSH_BYTES = 512 * 2**20  # several times the L2 of any GPU so far
MIN_ROUNDS = 3
BUDGET_S = 8.0  # a contestant that would take longer sits out rounds, evenly
PAUSE_S = 0.02  # OpenMP's threads spin for milliseconds after a call, on cores that the next contestant needs


@dataclass
class Contestant:
    name: str
    call: Callable[[int], object]  # runs the product on input set i, whichever i; returns the result
    times: dict[int, float] = field(default_factory=dict)  # round -> seconds
    stride: int = 1


class HostClock:
    """Times a call on the CPU with the host's monotonic clock."""

    def warm_up(self, call: Callable[[int], object]) -> float:
        call(0)
        return self.run([partial(call, 1)])[0]

    def run(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        times = []
        for call in calls:
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return times


class DeviceClock:
    """Times a call on the GPU with events around it, behind the write of a buffer that evicts the L2.

    That write also takes longer than the host needs to enqueue the call, so that no host time is in the figure.
    """

    def __init__(self, device: torch.device) -> None:
        self.torch = need_torch()
        l2 = self.torch.cuda.get_device_properties(device).L2_cache_size
        self.flush = self.torch.empty(max(FLUSH_BYTES, 4 * l2), dtype=self.torch.uint8, device=device)
        self.value = 0

    def warm_up(self, call: Callable[[int], object]) -> float:
        for i in range(3):
            call(i)
        return self.run([partial(call, 3)])[0]

    def run(self, calls: Sequence[Callable[[], object]]) -> list[float]:
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

    def empty_pair(self, repeat: int) -> float:
        """Seconds between two events with nothing between them: the part of every figure that is not the kernel."""
        return statistics.median(self.run([lambda: None] * repeat))

    def copy_bandwidth(self, repeat: int) -> float:
        """Bytes read and written a second by a copy from one half of the flush buffer to the other."""
        half = self.flush.numel() // 2
        target, source = self.flush[:half], self.flush[half : 2 * half]
        return 2 * half / statistics.median(self.run([lambda: target.copy_(source)] * repeat))


def compete(contestants: Sequence[Contestant], clock: HostClock | DeviceClock, repeat: int) -> None:
    """Runs `repeat` rounds; in each, every contestant that is not sitting out runs once, the first one rotating."""
    for contestant in contestants:
        estimate = clock.warm_up(contestant.call)
        affordable = min(repeat, max(MIN_ROUNDS, int(BUDGET_S / max(estimate, 1e-9))))
        # A power of two, so that the rounds of a slow one are among those of any that is faster.
        contestant.stride = 2 ** math.floor(math.log2(repeat / affordable))
    for turn in range(repeat):
        first = turn % len(contestants)
        order = [c for c in (*contestants[first:], *contestants[:first]) if turn % c.stride == 0]
        times = clock.run([partial(c.call, turn) for c in order])
        for contestant, seconds in zip(order, times):
            contestant.times[turn] = seconds


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


def ratio(rival: Contestant, ours: Contestant) -> Spread:
    """The rival's time over ours, of the rounds in which both ran: above 1 we are faster."""
    rounds = rival.times.keys() & ours.times.keys()
    return Spread.of([rival.times[i] / ours.times[i] for i in sorted(rounds)])
