"""Time of a layer in a chain of them in a CUDA graph, with and without constant_b.

    python benchmarks/chain.py [--m 1,16,128] [--shapes 7168x16384,4096x7168,7168x2048] [--json]

Each layer has weights of its own, 300 MB or more in all, so that they come from DRAM. `gemm`: products alone.
`quantize`: nvfp4.quantize of bf16 activations before each product, as in nvfp4.Linear. The replays of a shape's four
graphs alternate. Prints medians in us.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable

import torch

import nvfp4

LAYERS, ROUNDS, WARM_UP = 40, 25, 4


def captured(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def us_of_a_layer(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000 / LAYERS


def measure(m: int, n: int, k: int) -> dict[str, float]:
    b = torch.randint(0, 256, (LAYERS, n, k // 2), dtype=torch.uint8, device="cuda")
    scale_b = torch.randint(0x28, 0x48, (LAYERS, -(-n // 128) * 128, -(-k // 64) * 4), dtype=torch.uint8, device="cuda")
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    quantized = nvfp4.quantize(x)
    outs = torch.empty(LAYERS, m, n, dtype=torch.float16, device="cuda")
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    expected = None
    for before in ("gemm", "quantize"):
        for constant_b in (False, True):

            def run(quantize: bool = before == "quantize", constant_b: bool = constant_b) -> None:
                for layer, out in enumerate(outs):
                    a, scale_a = nvfp4.quantize(x) if quantize else quantized
                    options = {"alpha": 2.0**-10, "out": out, "constant_b": constant_b}
                    nvfp4.gemm(a, b[layer], scale_a, scale_b[layer], **options)

            graph = graphs[f"{before}{', constant_b' if constant_b else ''}"] = captured(run)
            outs.fill_(torch.nan)
            graph.replay()
            expected = outs.clone() if expected is None else expected
            assert torch.equal(outs, expected), f"{m} x {n} x {k}: constant_b changes the result"
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(WARM_UP + ROUNDS):
        for name, graph in graphs.items():
            times[name].append(us_of_a_layer(graph))
    return {name: round(statistics.median(each[WARM_UP:]), 2) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--m", default="1,16,128")
    parser.add_argument("--shapes", default="7168x16384,4096x7168,7168x2048", metavar="NxK,...")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for m in map(int, arguments.m.split(",")):
        for shape in arguments.shapes.split(","):
            n, k = map(int, shape.split("x"))
            times = measure(m, n, k)
            kernel = nvfp4.info(m, n, k, device=0)["plan"]["kernel"]
            if arguments.json:
                print(json.dumps({"m": m, "n": n, "k": k, "kernel": kernel, **times}), flush=True)
            else:
                print(f"{m} x {n} x {k}, {kernel}:", *(f"{name} {us:.2f}" for name, us in times.items()), sep="  ")


if __name__ == "__main__":
    main()
