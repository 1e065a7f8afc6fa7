"""Time of a layer in a chain of them in a CUDA graph, with and without constant_b, and from bf16 activations.

    python benchmarks/chain.py [--m 1,16,128] [--shapes 7168x16384,4096x7168,7168x2048] [--csv FILE]

Each layer has weights of its own, 300 MB or more in all, so that they come from DRAM. `gemm`: products alone.
`quantize and gemm`: nvfp4.quantize of bf16 activations before each product. `quantize_gemm`: both in a call, as in
nvfp4.Linear. The replays of a shape's graphs alternate. Prints medians in us.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import recorded
import torch

import nvfp4

LAYERS, ROUNDS, WARM_UP = 40, 25, 4
FORMS = ("gemm", "quantize and gemm", "quantize_gemm")


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
    for form in FORMS:
        for constant_b in (False, True):

            def run(form: str = form, constant_b: bool = constant_b) -> None:
                for layer, out in enumerate(outs):
                    options = {"alpha": 2.0**-10, "out": out, "constant_b": constant_b}
                    if form == "quantize_gemm":
                        nvfp4.quantize_gemm(x, b[layer], scale_b[layer], **options)
                    else:
                        a, scale_a = quantized if form == "gemm" else nvfp4.quantize(x)
                        nvfp4.gemm(a, b[layer], scale_a, scale_b[layer], **options)

            graph = graphs[f"{form}{', constant_b' if constant_b else ''} us"] = captured(run)
            outs.fill_(torch.nan)
            graph.replay()
            expected = outs.clone() if expected is None else expected
            assert torch.equal(outs, expected), f"{m} x {n} x {k}: {form} or constant_b changes the result"
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(WARM_UP + ROUNDS):
        for name, graph in graphs.items():
            times[name].append(us_of_a_layer(graph))
    return {name: round(statistics.median(each[WARM_UP:]), 2) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--m", default="1,16,128")
    parser.add_argument("--shapes", default="7168x16384,4096x7168,7168x2048", metavar="NxK,...")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for m in map(int, arguments.m.split(",")):
        for shape in arguments.shapes.split(","):
            n, k = map(int, shape.split("x"))
            times = measure(m, n, k)
            plan = nvfp4.info(m, n, k, device=0, operation="quantize_gemm", a_dtype=torch.bfloat16)["plan"]
            row = {"M": m, "NxK": shape, "kernel": plan["kernel"].removeprefix("nvfp4_"), "fused": int(plan["fused"])}
            rows.append(row | times)
            print(f"{m} x {shape}, {row['kernel']}:", *(f"{name} {us:.2f}" for name, us in times.items()), sep="  ")
    if arguments.csv:
        recorded.write_rows(arguments.csv, list(rows[0]), rows, torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
