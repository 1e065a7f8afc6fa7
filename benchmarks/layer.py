"""A linear layer on a GPU: what quantizing its activations adds to the product.

    python benchmarks/layer.py [--repeat 100]

Prints, for each number of rows M and each layer, medians of single calls with a cold L2 in us (nvfp4/cli/timing.py has
the method): `gemm` alone, `quantize` of bf16 activations [M, K] alone, both as README's Linear calls them, and torch's
bf16 matmul. In the same run, quantize of large matrices against a clone of them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch

import nvfp4
from nvfp4.cli import machine
from nvfp4.cli.timing import DeviceClock

LAYERS = [(7168, 16384), (4096, 7168), (7168, 2048)]  # N, K
ROWS = [1, 16, 128]
LARGE = [1024, 8192]


def median_us(clock: DeviceClock, calls: list[Callable[[], object]], repeat: int) -> list[float]:
    """Of each; the calls alternate."""
    for call in calls:
        for _ in range(3):
            call()
    rounds = [clock.run(calls) for _ in range(repeat)]
    return [1e6 * statistics.median(times) for times in zip(*rounds)]


def layer(m: int, n: int, k: int) -> list[Callable[[], object]]:
    x, w = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    (a, scale_a), (b, scale_b) = nvfp4.quantize(x), nvfp4.quantize(w)

    def product(a: torch.Tensor, scale_a: torch.Tensor) -> torch.Tensor:
        return nvfp4.gemm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)

    return [
        lambda: product(a, scale_a),
        lambda: nvfp4.quantize(x),
        lambda: product(*nvfp4.quantize(x)),
        lambda: x @ w.T,
    ]


def conversions(size: int) -> list[Callable[[], object]]:
    x = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    data, scale = nvfp4.quantize(x)
    return [
        lambda: nvfp4.quantize(x),
        lambda: nvfp4.dequantize(data, scale, out_dtype=torch.bfloat16),
        lambda: x.clone(),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeat", type=int, default=100, help="single calls of each (default: 100)")
    repeat = parser.parse_args().repeat
    print(machine.describe(torch.device("cuda")))
    clock = DeviceClock(torch.device("cuda"))
    print("\n| M x N x K | gemm, us | quantize, us | both, us | torch bf16 matmul, us |\n|:--|--:|--:|--:|--:|")
    for m in ROWS:
        for n, k in LAYERS:
            times = median_us(clock, layer(m, n, k), repeat)
            print(f"| {m}x{n}x{k} | " + " | ".join(f"{us:.1f}" for us in times) + " |")
    print("\n| bf16 matrix | quantize, us | dequantize, us | clone, us |\n|:--|--:|--:|--:|")
    for size in LARGE:
        times = median_us(clock, conversions(size), repeat)
        print(f"| {size}x{size} | " + " | ".join(f"{us:.1f}" for us in times) + " |")


if __name__ == "__main__":
    main()
