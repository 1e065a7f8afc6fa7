"""The launch plans of a product on a GPU: each forced in turn, checked bit for bit, and timed in a CUDA graph."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from nvfp4 import _C, Error, gemm, info
from nvfp4.bench import timing
from nvfp4.bench.shapes import Shape
from nvfp4.cli import machine, show

if TYPE_CHECKING:
    import torch

SCALES = ((0x00, 0x38, 0x40, 0x44), (0x00, 0x38))  # e4m3: the competition's 0, 1, 2, 3; 0 and 1 where K is large
LARGEST_VALUE = 6
EXACT_SUM = 2.0**22  # fp32 sums of multiples of 1/4 are exact below (reference.sums_are_exact)
WIDE_BYTES = 1 << 28  # of B in fp64 at a time, for the expected results


class Clock(Protocol):
    def describe(self) -> str: ...

    def run(self, calls: Sequence[Callable[[], object]]) -> float:
        """Seconds per call, over consecutive calls."""


class GraphClock:
    """Times a CUDA graph of consecutive calls, after writes that evict the L2: kernels follow each other as in a model
    whose step is captured, and the host has no part in it."""

    def __init__(self, device: torch.device) -> None:
        self.clock = timing.DeviceClock(device)

    def describe(self) -> str:
        flush = show.mebibytes(self.clock.flush.numel())
        return f"one pair of CUDA events around a CUDA graph of the calls, enqueued during writes of {flush} before it"

    def run(self, calls: Sequence[Callable[[], object]]) -> float:
        replay = timing.captured(calls)
        replay()  # the first one also loads the graph
        return self.clock.run([replay])[0] / len(calls)


@dataclass
class Candidate:
    rank: int  # by the model, 0 is its choice
    plan: dict[str, Any]  # of _C.plan
    wrong: str = ""  # the error, for a plan that is not timed
    samples: list[float] = field(default_factory=list)  # us a call, one a round

    def __str__(self) -> str:
        settings = "".join(
            [
                ", swap_ab" if self.plan["swap_ab"] else "",
                f", split-K {self.plan['split_k']}" if self.plan["split_k"] > 1 else "",
                f", prefetch {self.plan['prefetch_stages']}" if self.plan["prefetch_stages"] else "",
                f", {self.plan['ctas_per_sm']} CTAs an SM" if self.plan["ctas_per_sm"] > 1 else "",
            ]
        )
        return f"{short(self.plan['kernel'])}{settings}"

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


class Lost(Exception):
    """The GPU has a sticky error: nothing can run on it in this process."""


@contextmanager
def forced(rank: int) -> Iterator[None]:
    """Within the context, products use the plan of this rank."""
    _C.set_candidate(rank)
    try:
        yield
    finally:
        _C.set_candidate(0)


def backend_of(ordinal: int) -> str:
    """The backend of the GPU's own kernels."""
    own = machine.own_backend(info()["devices"][ordinal]["compute_capability"])
    assert own is not None, "tunable has seen to that"
    return str(own["name"])


def candidates(shape: Shape, ordinal: int) -> list[Candidate]:
    backend = backend_of(ordinal)
    found = [Candidate(0, _C.plan(ordinal, backend, None, shape.m, shape.n, shape.k, 1, 0))]
    for rank in range(1, found[0].plan["candidates"]):
        with forced(rank):
            found.append(Candidate(rank, _C.plan(ordinal, backend, None, shape.m, shape.n, shape.k, 1, 0)))
    return found


class Products:
    """`count` products of one shape, each with its own inputs, output and expected result."""

    def __init__(self, shape: Shape, target: machine.Target, count: int, seed: int) -> None:
        torch = machine.need_torch()
        from nvfp4 import reference

        self.reference, self.device = reference, target.tensors
        self.backend = backend_of(target.device.index) if target.device.type == "cuda" else "cpu"
        generator = torch.Generator(target.tensors).manual_seed(seed)

        def operand(rows: int, scales: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
            def draw(end: int, columns: int) -> torch.Tensor:
                size = (rows, columns)
                return torch.randint(end, size, dtype=torch.uint8, device=target.tensors, generator=generator)

            table = torch.tensor(scales, dtype=torch.uint8, device=target.tensors)
            linear = table[draw(len(scales), shape.k // 16).int()]
            return draw(256, shape.k // 2), reference.swizzle(linear, padding=reference.E4M3_NAN)

        def is_exact(a: torch.Tensor, scale: torch.Tensor, scales: Sequence[int]) -> bool:
            largest_b = LARGEST_VALUE * reference.e4m3_table()[max(scales)].item()
            row_sums = reference.operand(a, scale, "128x4").abs().sum(dim=-1)
            return row_sums.max().item() * largest_b <= EXACT_SUM

        self.inputs, self.outputs, self.expected = [], [], []
        for _ in range(count):
            for scales in SCALES:
                (a, scale_a), (b, scale_b) = (operand(rows, scales) for rows in (shape.m, shape.n))
                if is_exact(a, scale_a, scales):
                    break
            else:
                raise show.CommandError(
                    f"{shape}: K is too large for random data with exact sums, with which --tune checks the plans"
                )
            inputs = (a, b, scale_a, scale_b)
            self.inputs.append(inputs)
            self.outputs.append(torch.empty((shape.m, shape.n), dtype=torch.float16, device=target.tensors))
            self.expected.append(self.product(*inputs))

    def product(self, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
        """A . B^T in float16, by torch in fp64, where these sums are exact in any order: on the device of the inputs,
        since the CPU takes a minute and a half for the inputs of the largest ranked shape."""
        torch = machine.need_torch()
        wide_a = self.reference.operand(a, scale_a, "128x4")[0].double()
        scales = self.reference.scale_rows(scale_b, b.shape[0], wide_a.shape[1] // 16, "128x4")[0]
        rows = max(1, WIDE_BYTES // (8 * wide_a.shape[1]))
        parts = [
            (wide_a @ self.reference.operand(part, scale, "linear")[0].double().T).half()
            for part, scale in zip(b.split(rows), scales.split(rows))
        ]
        return torch.cat(parts, dim=1)

    def calls(self) -> list[Callable[[], object]]:
        pairs = zip(self.inputs, self.outputs)
        return [lambda i=inputs, o=output: gemm(*i, out=o, backend=self.backend) for inputs, output in pairs]

    def check(self) -> str:
        """Runs all calls; returns "" or the first error in the results."""
        for output in self.outputs:
            output.fill_(math.nan)
        message = ""
        try:
            for call in self.calls():
                call()
        except Error as error:
            message = str(error)
        wait(self.device)
        if message:
            return message
        for number, (output, expected) in enumerate(zip(self.outputs, self.expected)):
            equal, why = self.reference.compare(output, expected, exact=True)
            if not equal:
                return f"call {number} of {len(self.outputs)}: {why}"
        return ""


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        machine.need_torch().cuda.synchronize()


def fits(shape: Shape, device: torch.device, count: int) -> None:
    """Rejects a shape with inputs that take more than half of the GPU's free memory."""
    if device.type != "cuda":
        return
    free, _ = machine.need_torch().cuda.mem_get_info(device)
    need = count * (shape.bytes + 2 * shape.m * shape.n)
    if need > free // 2:
        raise show.CommandError(
            f"{shape}: {count} input sets take {show.si(need, 'B')}, more than half of the {show.si(free, 'B')} of "
            "free memory on the GPU"
        )


def short(kernel: str) -> str:
    return re.sub(r"nvfp4_sm\d+_(gemm_)?", "", kernel)
