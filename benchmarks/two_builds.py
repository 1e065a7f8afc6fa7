#!/usr/bin/env python3
"""Compares two builds on a GPU, times and bits, in alternating processes on the same data:

    python benchmarks/two_builds.py FOLDER_A FOLDER_B [--rounds R] [--csv FILE]

Each folder has an nvfp4 package. Nothing of nvfp4.bench is used, which another build may have otherwise. The calls are
dense products (the ranked N x K at eight M, W4A4 and W4A16), sm80's products, quantizers, and both products of experts
with route and combine (Qwen3-30B-A3B's shapes, and DeepSeek-V3's with 64 experts). A time is the fastest of seven
replays of a CUDA graph with rotated operands and a cold L2, and of all rounds.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPLAYS, L2_BYTES, WEIGHTS_BYTES = 7, 256 << 20, 150 << 20  # more than an L2
RANKED = ((7168, 16384), (4096, 7168), (7168, 2048))  # N, K
ROWS = (1, 8, 16, 64, 128, 512, 1024, 4096)
# name: experts, hidden, intermediate, experts of a token, tokens
EXPERTS = {
    "Qwen3": (128, 2048, 768, 8, (1, 16, 128, 1024, 8192)),
    "DeepSeek-V3": (64, 7168, 2048, 8, (16, 128, 1024)),
}


class Run:
    """The times and the bits of one process."""

    def __init__(self) -> None:
        import torch

        import nvfp4

        self.torch, self.nvfp4 = torch, nvfp4
        torch.manual_seed(0)
        self.found: dict[str, tuple[float, str]] = {}
        self.flush = torch.empty(L2_BYTES, dtype=torch.uint8, device="cuda")

    def bytes(self, *shape: int) -> Any:
        return self.torch.randint(0, 256, shape, dtype=self.torch.uint8, device="cuda")

    def scales(self, rows: int, columns: int) -> Any:
        """Draws scales of numbers near 1, in the layout 128x4."""
        linear = self.torch.randint(0x30, 0x48, (rows, columns), dtype=self.torch.uint8, device="cuda")
        return self.nvfp4.swizzle(linear)

    def normal(self, *shape: int) -> Any:
        return self.torch.randn(shape, device="cuda", dtype=self.torch.bfloat16)

    def time(self, name: str, calls: list[Callable[[], Any]]) -> None:
        torch = self.torch
        result = [call() for call in calls][0]
        parts = result if isinstance(result, tuple) else (result,)
        contents = b"".join(part.contiguous().view(torch.uint8).cpu().numpy().tobytes() for part in parts)
        graph, times = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        for _ in range(REPLAYS):
            self.flush.zero_()
            torch.cuda._sleep(50_000)  # so that the CPU is ahead
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / len(calls))
        self.found[name] = min(times), hashlib.sha256(contents).hexdigest()

    def dense(self, n: int, k: int) -> None:
        count = max(2, min(8, WEIGHTS_BYTES // (n * k // 2)))
        weights = [(self.bytes(n, k // 2), self.scales(n, k // 16)) for _ in range(count)]
        options, other = {"alpha": 1e-3, "constant_b": True}, {"alpha": 1e-3, "backend": "sm80"}
        gemm = self.nvfp4.gemm
        for m in ROWS:
            fp4 = [(self.bytes(m, k // 2), self.scales(m, k // 16)) for _ in weights]
            bf16 = [self.normal(m, k) for _ in weights]
            pairs = [(a, sa, b, sb) for (a, sa), (b, sb) in zip(fp4, weights)]
            shape = f"{m}x{n}x{k}"
            self.time(f"W4A4 {shape}", [lambda p=p: gemm(p[0], p[2], p[1], p[3], **options) for p in pairs])
            wide = [(x, b, sb) for x, (b, sb) in zip(bf16, weights)]
            self.time(f"W4A16 {shape}", [lambda p=p: gemm(p[0], p[1], None, p[2], **options) for p in wide])
            if m in (16, 64, 128):
                self.time(f"sm80 W4A4 {shape}", [lambda p=p: gemm(p[0], p[2], p[1], p[3], **other) for p in pairs])
            if n == 4096:
                self.time(f"quantize {m}x{k}", [lambda x=x: self.nvfp4.quantize(x) for x in bf16])

    def experts(self, name: str, e: int, hidden: int, wide: int, k: int, tokens: tuple[int, ...]) -> None:
        torch, nvfp4 = self.torch, self.nvfp4
        up, down = self.bytes(e, 2, wide, hidden // 2), self.bytes(e, hidden, wide // 2)
        scale_up = torch.cat([self.scales(wide, hidden // 16).reshape(-1) for _ in range(2 * e)])
        scale_down = torch.cat([self.scales(hidden, wide // 16).reshape(-1) for _ in range(e)])
        alpha_up, alpha_down = torch.full((e, 2), 1e-3, device="cuda"), torch.full((e,), 1e-3, device="cuda")
        for count in tokens:
            sets = []
            for _ in range(4):
                ids = torch.rand(count, e, device="cuda").topk(k).indices.int()
                route = nvfp4.moe_route(ids, e)
                x, h, y = self.normal(count, hidden), self.normal(count * k, wide), self.normal(count * k, hidden)
                sets.append((ids, route, x, h, y, torch.rand(count, k, device="cuda")))

            def gated(ids: Any, route: Any, x: Any, *_: Any) -> Any:
                rows, ends, _places = route
                options = {"rows": rows, "alpha": alpha_up, "constant_b": True}
                return nvfp4.gated_grouped_gemm(x, up, None, scale_up, ends, **options)

            def product(ids: Any, route: Any, x: Any, h: Any, *_: Any) -> Any:
                return nvfp4.grouped_gemm(h, down, None, scale_down, route[1], alpha=alpha_down, constant_b=True)

            self.time(f"{name} gate and up {count}", [lambda s=s: gated(*s) for s in sets])
            self.time(f"{name} down {count}", [lambda s=s: product(*s) for s in sets])
            self.time(f"{name} route {count}", [lambda s=s: nvfp4.moe_route(s[0], e) for s in sets])
            self.time(f"{name} combine {count}", [lambda s=s: nvfp4.moe_combine(s[4], s[1][2], s[5]) for s in sets])


def child() -> None:
    run = Run()
    for n, k in RANKED:
        run.dense(n, k)
    for name, shape in EXPERTS.items():
        run.experts(name, *shape)
    print(json.dumps(run.found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs=2, type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    found: list[dict[str, list[Any]]] = [{}, {}]
    for _ in range(args.rounds):
        for folder, runs in zip(args.folders, found):
            environment = {**os.environ, "PYTHONPATH": str(folder.resolve())}
            command = [sys.executable, str(Path(__file__).resolve()), "child"]
            output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, cwd=folder).stdout
            for name, one in json.loads(output.splitlines()[-1]).items():
                runs.setdefault(name, []).append(one)
    rows = []
    for name in found[0]:
        first, second = (min(time for time, _ in runs[name]) for runs in found)
        equal = len({bits for runs in found for _, bits in runs[name]}) == 1
        rows.append([name, f"{first:.2f}", f"{second:.2f}", f"{second / first:.3f}", "equal" if equal else "DIFFERENT"])
        print(*rows[-1], sep="  ")
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([["call", "us of A", "us of B", "B / A", "bits"], *rows])


if __name__ == "__main__":
    child() if sys.argv[1:] == ["child"] else main()
