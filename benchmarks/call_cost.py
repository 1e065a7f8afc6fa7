"""What a call costs on the host: from the Python call to the launch, the driver's own work excluded.

    python benchmarks/call_cost.py [--json] [--real] [--backend sm100]

The calls go to tests/fake_driver, a libcuda that launches nothing, so what is timed is nvfp4 and Python: the frame,
the reading of the tensors, every check, the plan and the launch's arguments. Tensors are on the GPU if torch has one,
else on the CPU with backend="sm80" or the one that is named (and then include a wait that returns at once). --real
leaves the machine's own driver in place, to see what it adds. Needs a build with GPU code, and gcc for the fake driver.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import timeit
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "tests" / "fake_driver" / "libcuda.c"
M, N, K = 128, 32768, 256  # enough tiles for any GPU: one launch, no workspace
REPEATS, CALLS = 15, 20_000
QUEUED = 200  # calls between two waits where the GPU works: it must never be the one that is waited for


def measure(calls: int, named: str) -> dict[str, dict[str, float]]:
    """Nanoseconds a call, by statement: best and median of REPEATS runs."""
    import torch

    import nvfp4

    on_gpu = torch.cuda.is_available()
    device, backend = ("cuda", None) if on_gpu else ("cpu", named)
    torch.set_num_threads(1)

    assert nvfp4.info(M, N, K, device=0, backend=backend)["plan"]["workspace"] == 0

    def empty(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    names = {
        "torch": torch,
        "nvfp4": nvfp4,
        "ops": torch.ops.nvfp4,
        "a": empty(M, K // 2),
        "b": empty(N, K // 2),
        "scale_a": empty(M, K // 16, dtype=torch.float8_e4m3fn),
        "scale_b": empty(N, K // 16, dtype=torch.float8_e4m3fn),
        "bias": empty(N, dtype=torch.float32),
        "none": empty(0),  # absent
        "out": empty(M, N, dtype=torch.float16),
        "c": empty(M, N, dtype=torch.float16),
        "backend": backend,
        "x": torch.zeros(1),
        "y": torch.zeros(1),
    }
    statements = [
        "nvfp4.gemm(a, b, scale_a, scale_b, out=out, backend=backend)",
        "nvfp4.gemm(a, b, scale_a, scale_b, out=out, backend=backend, alpha=bias, bias=bias, c=c, beta=0.5)",
        "nvfp4.gemm(a, b, scale_a, scale_b, backend=backend)",
        "ops.gemm_out(a, b, scale_a, scale_b, none, none, none, 1.0, 0.0, '128x4', backend or 'auto', out)",
        "torch.add(x, x, out=y)",
    ]
    if on_gpu:  # custom_kernel takes no backend: it runs where its tensors are; CPU memory is slow to allocate
        names |= {
            "split": (empty(128, 3584), empty(4096, 3584), empty(128, 448), empty(4096, 448)),
            "split_out": empty(128, 4096, dtype=torch.float16),
            "views": (
                names["a"].view(1, M, K // 2).permute(1, 2, 0),
                names["b"].view(1, N, K // 2).permute(1, 2, 0),
                names["scale_a"].view(1, M // 128, K // 64, 32, 4, 4).permute(3, 4, 1, 5, 2, 0),
                names["scale_b"].view(1, N // 128, K // 64, 32, 4, 4).permute(3, 4, 1, 5, 2, 0),
                names["out"].view(1, M, N).permute(1, 2, 0),
            ),
        }
        assert nvfp4.info(128, 4096, 7168, device=0, backend="sm80")["plan"]["workspace"] > 0
        statements.insert(1, "nvfp4.custom_kernel(*views)")
        statements.insert(2, "nvfp4.gemm(*split, out=split_out, backend='sm80')  # with a workspace, two launches")
    results = {}
    for statement in statements:
        timer = timeit.Timer(statement, globals=names)
        timer.timeit(100)
        times = []
        for _ in range(REPEATS):
            times.append(timer.timeit(calls) / calls * 1e9)
            if on_gpu:
                torch.cuda.synchronize()
        results[statement] = {"best_ns": min(times), "median_ns": statistics.median(times)}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--real", action="store_true", help="call the machine's own driver")
    parser.add_argument("--backend", default="sm80", metavar="B", help="without a GPU: whose calls (%(default)s)")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(QUEUED if args.real else CALLS, args.backend)))
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        if not args.real:
            library = Path(folder) / "libcuda_fake.so"
            subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
            environment["NVFP4_LIBCUDA"] = str(library)
            environment.setdefault("FAKE_CC", "100" if args.backend == "sm100" else "90")
        child = [sys.executable, __file__, "--measure", "--backend", args.backend] + ["--real"] * args.real
        results = json.loads(subprocess.run(child, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    if args.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'best':>9} {'median':>9}   {'the real driver' if args.real else 'a driver that does nothing'}")
    for statement, row in results.items():
        print(f"{row['best_ns']:6.0f} ns {row['median_ns']:6.0f} ns   {statement}")


if __name__ == "__main__":
    main()
