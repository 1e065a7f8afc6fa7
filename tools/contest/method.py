"""The competition's method, for measure.py: inputs, verdicts, repeats and when they end."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from nvfp4.cli.machine import need_torch

if TYPE_CHECKING:
    import torch

RELATIVE_ERROR = 1e-3  # of the mean: the repeats end below it
MIN_REPEATS, MIN_SECONDS = 3, 0.1  # before the repeats may end
WARM_UP = 3  # repeats that do not count

Data = tuple["torch.Tensor", ...]  # matrices, A first; their linear scales; their permuted scales; the output
Kernel = Callable[[Data], "torch.Tensor"]
Call = Callable[[], "torch.Tensor"]


@dataclass(frozen=True)
class Mode:
    inputs: int
    seed_step: int  # from an input to the next
    flush_bytes: int


MODES = {"back-to-back": Mode(50, 42, 16000 * 2**22), "single-call": Mode(1, 13, 2**32)}


class Wrong(Exception):
    """A kernel gave a wrong result or raised; the message says which."""


# --- statistics -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statistics:
    """Statistics of a call's time in the repeats, in seconds."""

    repeats: int
    mean: float
    error: float  # standard error of the mean
    best: float
    worst: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Statistics:
        error = statistics.stdev(samples) / math.sqrt(len(samples)) if len(samples) > 1 else math.inf
        return cls(len(samples), statistics.fmean(samples), error, min(samples), max(samples))


@dataclass(frozen=True)
class Limits:
    repeats: int
    seconds: float


def why_stop(samples: Sequence[float], elapsed: float, limits: Limits) -> str:
    """Why the repeats end; "" if they go on."""
    if len(samples) >= limits.repeats:
        return f"{limits.repeats} repeats"
    if len(samples) < MIN_REPEATS or elapsed <= MIN_SECONDS:
        return ""
    now = Statistics.of(samples)
    if now.error < RELATIVE_ERROR * now.mean:
        return f"error below {RELATIVE_ERROR:.1%}"
    return f"{limits.seconds:g} s" if elapsed > limits.seconds else ""


# --- inputs and verdicts --------------------------------------------------------------------------------------------


class Inputs:
    """Inputs of one shape with their expected results, in the order of their seeds.

    `definition` (nvfp4.reference or dual) has the task's generate_input and ref_kernel. Rows of A are rows of the
    result; rows of each other matrix are its columns.
    """

    def __init__(self, definition: ModuleType, test: dict[str, int], seed_step: int, device: torch.device) -> None:
        self.definition, self.test, self.device = definition, test, device
        self.seeds = itertools.count(test["seed"] + seed_step, seed_step)

    def draw(self) -> tuple[Data, torch.Tensor]:
        arguments = self.test | {"seed": next(self.seeds)}
        data = self.definition.generate_input(**arguments, device=self.device, drawn_on=self.device)
        return data, self.definition.ref_kernel(data)

    def renew(self, data: Data) -> torch.Tensor:
        """Overwrites the input with new numbers; returns the new expected result."""
        from nvfp4.reference import as_bytes

        new, expected = self.draw()
        for old, fresh in zip(data[:-1], new[:-1]):
            as_bytes(old).copy_(as_bytes(fresh))
        return expected

    def reorder(self, data: Data, expected: torch.Tensor) -> torch.Tensor:
        """Permutes the rows of A, and those of the others that count, in place; returns the new expected result.

        That result is the permuted old one: it takes copies and no product.
        """
        from nvfp4.reference import E4M3_NAN, as_bytes, swizzle

        order_a, order_b = (need_torch().randperm(rows, device=expected.device) for rows in expected.shape[:2])
        matrices = len(data) // 3
        for i in range(matrices):
            values, linear, swizzled = data[i:-1:matrices]
            order = order_b if i else order_a
            for part in (values, linear):
                rows = as_bytes(part).permute(2, 0, 1)
                rows[:, : len(order)] = rows[:, order]
            scales = as_bytes(linear).permute(2, 0, 1)
            as_bytes(swizzled).copy_(swizzle(scales, E4M3_NAN).permute(3, 4, 1, 5, 2, 0))
        return expected[order_a][:, order_b]


def copy_of(data: Data) -> Data:
    """A copy of all tensors in the same layout; the output holds NaN."""
    from nvfp4.reference import as_bytes

    *inputs, output = data
    return *(as_bytes(part).clone().view(part.dtype) for part in inputs), output.clone().fill_(math.nan)


def judge_some(inputs: Inputs, kernel: Kernel, count: int) -> None:
    """Judges `count` inputs, one after the other."""
    for index in range(count):
        data, expected = inputs.draw()
        judge(run(kernel, data), expected, input_name(index, count))


def input_name(index: int, count: int) -> str:
    return f"input {index + 1} of {count}"


def run(kernel: Kernel, data: Data) -> torch.Tensor:
    try:
        return kernel(data)
    except Exception as error:  # an error of the submission, not of this program
        raise Wrong(f"custom_kernel raised {type(error).__name__}: {error}") from error


def judge(output: Any, expected: torch.Tensor, where: str) -> None:
    from nvfp4.reference import compare

    if type(output) is not type(expected):  # a subclass may compute when it is read
        raise Wrong(f"{where}: custom_kernel returned a {type(output).__name__}, not a torch.Tensor")
    right, why = compare(output, expected)
    if not right:
        raise Wrong(f"{where}: {why}")


# --- timing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repeat:
    outputs: list[torch.Tensor]
    seconds: float  # of all calls
    hidden: bool  # whether all calls were enqueued before the first one began


class Device(Protocol):
    def release(self) -> None:
        """Called before a shape's inputs are made."""

    def prepare(self) -> None:
        """Called when they are in memory."""

    def now(self) -> float: ...

    def time(self, calls: Sequence[Call]) -> Repeat: ...


class Gpu:
    """Enqueues calls after a flush and times them with events."""

    def __init__(self, device: torch.device, flush_bytes: int) -> None:
        self.torch = need_torch()
        self.device, self.wanted, self.flush_bytes = device, flush_bytes, 0
        self.buffer: torch.Tensor | None = None
        self.now = time.perf_counter

    def release(self) -> None:
        self.buffer = None
        self.torch.cuda.empty_cache()

    def prepare(self) -> None:
        self.release()
        free, _ = self.torch.cuda.mem_get_info(self.device)
        self.flush_bytes = flush_that_fits(self.wanted, free)
        self.buffer = self.torch.empty(self.flush_bytes // 4, dtype=self.torch.float32, device=self.device)

    def time(self, calls: Sequence[Call]) -> Repeat:
        cuda = self.torch.cuda
        stream = cuda.current_stream(self.device)  # stays the same if a call changes the current stream
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda.synchronize()
        self.buffer.normal_()
        start.record(stream)
        outputs = [call() for call in calls]
        end.record(stream)
        hidden = not start.query()
        with cuda.stream(stream):
            outputs = self.copies(outputs)
        cuda.synchronize()
        return Repeat(outputs, start.elapsed_time(end) * 1e-3, hidden)

    def copies(self, outputs: Sequence[Any]) -> list[Any]:
        """Copies made on the same stream, right after the timed calls: they lack what another stream writes later. The
        last result, which is written last, is copied first. `judge` rejects what is not a plain tensor."""
        last_first = [output.clone() if type(output) is self.torch.Tensor else output for output in reversed(outputs)]
        return last_first[::-1]

    def flush_text(self) -> str:
        whole = self.flush_bytes == self.wanted
        amount = "the competition's amount" if whole else f"the part of {self.wanted / 2**30:.3g} GiB that fits"
        return f"{self.flush_bytes / 2**30:.3g} GiB of random numbers written before each repeat ({amount})"


def flush_that_fits(wanted: int, free: int) -> int:
    """Bytes to write, given the free bytes: the expected results need memory too."""
    return min(wanted, max(free - 16 * 2**30, free // 2)) // 4 * 4


def measure(inputs: Inputs, kernel: Kernel, count: int, device: Device, limits: Limits) -> dict[str, Any]:
    """Times `count` calls at a time until the mean is known; raises Wrong at the first wrong result."""
    device.release()
    drawn = [inputs.draw() for _ in range(count)]
    datas, expected = [data for data, _ in drawn], [result for _, result in drawn]
    for index, data in enumerate(datas):
        judge(run(kernel, copy_of(data)), expected[index], input_name(index, count))
    device.prepare()

    def repeat(name: str) -> Repeat:
        changed = random.randrange(count)
        expected[changed] = inputs.renew(datas[changed])
        for index in range(count):
            expected[index] = inputs.reorder(datas[index], expected[index])
        for data in datas:
            data[-1].fill_(math.nan)
        timed = device.time([partial(run, kernel, data) for data in datas])
        for index, output in enumerate(timed.outputs):
            judge(output, expected[index], f"{name}, {input_name(index, count)}")
        return timed

    for turn in range(WARM_UP):
        repeat(f"warm-up {turn + 1}")
    samples: list[float] = []
    exposed, stop, begin = 0, "", device.now()
    while not stop:
        timed = repeat(f"repeat {len(samples) + 1}")
        samples.append(timed.seconds / count)
        exposed += not timed.hidden
        stop = why_stop(samples, device.now() - begin, limits)
    return {"seconds": asdict(Statistics.of(samples)), "stopped by": stop, "exposed": exposed}
