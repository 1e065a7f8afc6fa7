"""The rates behind the floor of `nvfp4 bench`: bytes and operations per second, measured in the same run.

On a GPU they are those of a copy and of a large torch matmul. On a CPU no single product is known to be the fastest:
torch's bf16 product takes a hundred times as long as its fp32 product without bf16 instructions, and ours may be faster
than both. There a rate is the best of a copy, of square products and of all that the run has timed, so that no time of
the run lies below the floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nvfp4.bench import timing
from nvfp4.bench.baselines import multiply, operands
from nvfp4.bench.report import MODES, min_bytes, shape_of
from nvfp4.cli import machine

if TYPE_CHECKING:
    import torch

SMALLEST, LARGEST = 256, 2048  # sizes of square products on a CPU
LONGEST_S = 0.5  # of one product: larger ones are not tried
REPEAT = 5
COPY = "a copy, read and written"


def measure(
    device: torch.device, clock: timing.Clock, results: Sequence[dict[str, Any]], of_layers: bool
) -> dict[str, Any]:
    """The part "limits" of a report.

    Args:
        results: what the run has timed.
        of_layers: whether these are layers, which have more bytes than a product.
    """
    copy = (clock.copy_bandwidth(20), COPY)
    if device.type == "cuda":
        rate = timing.matmul_rate(clock, device, machine.need_torch().float16, 8192, repeat=10)
        traffic, rates = [copy], [(rate, "torch fp16 matmul of 8192 x 8192 x 8192")]
    else:
        rates = [square_rate(clock, name, make) for name, make in products().items()]
        found = [best(result, of_layers) for result in results]
        traffic, rates = [copy, *(own for own, _ in found)], [*rates, *(own for _, own in found)]
    (bytes_per_s, bytes_of), (flops_per_s, flops_of) = max(traffic), max(rates)
    return {
        "bytes_per_s": rounded_up(bytes_per_s),
        "bytes_of": bytes_of,
        "flops_per_s": rounded_up(flops_per_s),
        "flops_of": flops_of,
    }


def rounded_up(rate: float) -> float:
    """To four digits, so that no time which gave the rate lies below the floor."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 3)
    return float(f"{math.ceil(rate / unit) * unit:.4g}")


def best(result: dict[str, Any], of_layers: bool) -> tuple[tuple[float, str], tuple[float, str]]:
    """Bytes and operations per second of a shape's fastest implementation, each with what it is of."""
    shape = shape_of(result)
    seconds, name = min(
        (entry["seconds"][mode]["p10"], entry["name"]) for entry in result["implementations"] for mode in MODES
    )
    of = f"{name} at {shape}"
    return (min_bytes(shape, of_layers) / seconds, of), (shape.operations / seconds, of)


def products() -> dict[str, Callable[[int], timing.Call]]:
    """By name: a function that makes the product of two random square matrices on the CPU."""
    torch = machine.need_torch()
    found: dict[str, Callable[[int], timing.Call]] = {"torch fp32 matmul": partial(dense, torch.float32)}
    if machine.has_bf16():
        found["torch bf16 matmul"] = partial(dense, torch.bfloat16)
    return found | {"nvfp4.gemm": packed}


def dense(dtype: torch.dtype, size: int) -> timing.Call:
    torch = machine.need_torch()
    a, b, out = (torch.randn(size, size).to(dtype) for _ in range(3))
    return partial(torch.matmul, a, b, out=out)


def packed(size: int) -> timing.Call:
    torch = machine.need_torch()
    a, b = operands(2, size, size, torch.device("cpu"), torch.Generator())
    return partial(multiply, [(a, b)], [torch.empty(size, size, dtype=torch.float16)], None, 0)


def square_rate(clock: timing.Clock, name: str, make: Callable[[int], timing.Call]) -> tuple[float, str]:
    """The best rate over sizes that double up to LARGEST, as long as a product takes less than LONGEST_S."""
    found, size, seconds = (0.0, ""), SMALLEST // 2, 0.0
    while size < LARGEST and 8 * seconds < LONGEST_S:
        size *= 2
        call = make(size)
        call()
        seconds = min(clock.run([call] * REPEAT))
        found = max(found, (2 * size**3 / seconds, f"{name} of {size} x {size} x {size}"))
    return found
