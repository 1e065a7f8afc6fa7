"""Host time of a call: from the Python call to the launch, without the driver's work.

    python benchmarks/call_cost.py [--json] [--real] [--backend sm100]

The calls go to tests/support/fake_libcuda.c, which launches nothing. The time is that of nvfp4 and Python: the frame,
the tensors' attributes, all checks, the plan and the arguments of the launch. Most rows are of a product with one
launch on each backend and no workspace. If torch has a GPU, the tensors are on it, on the given or the default backend,
and there are rows for two launches with a workspace: split-K on sm80, a dequantize pre-pass on sm90. Else the tensors
are on the CPU, the backend is sm80 or the given one, and the time includes a wait that returns at once. --real keeps
the machine's own driver, to show its cost. Needs a build with GPU code, and gcc for the fake driver.
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

SOURCE = Path(__file__).resolve().parent.parent / "tests" / "support" / "fake_libcuda.c"
ONE_LAUNCH = (16, 32768, 256)  # without a workspace: a tile for each SM, too few rows for a dequantize pre-pass
TWO_LAUNCHES = {"sm80": (128, 4096, 7168), "sm90": (128, 4096, 7168)}  # with a workspace, by backend
WHY_TWO = {"sm80": "split-K", "sm90": "dequantize pre-pass"}
REPEATS, CALLS = 15, 20_000
ENQUEUED = 200  # calls between two waits with the real driver: the host must never wait for the GPU


def expect(shape: tuple[int, int, int], backend: str | None, workspace: bool) -> str:
    """The backend of the shape's plan; exits if the plan needs no workspace, or one, against the expectation."""
    import nvfp4

    plan = nvfp4.info(*shape, device=0, backend=backend)["plan"]
    if (plan["workspace"] > 0) != workspace:
        wanted = "a workspace" if workspace else "no workspace"
        sys.exit(f"call_cost.py: {shape} on {backend or 'the device'} is expected to need {wanted}; its plan is {plan}")
    return plan["backend"]


def measure(calls: int, named: str | None) -> dict[str, dict[str, float]]:
    """Nanoseconds a call, by statement: best and median of REPEATS runs."""
    import torch

    import nvfp4

    on_gpu = torch.cuda.is_available()
    device, backend = ("cuda", named) if on_gpu else ("cpu", named or "sm80")
    torch.set_num_threads(1)
    m, n, k = ONE_LAUNCH
    rows_a, rows_b = (-(-rows // 128) * 128 for rows in (m, n))
    taken = expect(ONE_LAUNCH, backend, workspace=False)

    def empty(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    names = {
        "torch": torch,
        "nvfp4": nvfp4,
        "ops": torch.ops.nvfp4,
        "a": empty(m, k // 2),
        "b": empty(n, k // 2),
        "scale_a": empty(rows_a, k // 16, dtype=torch.float8_e4m3fn),
        "scale_b": empty(rows_b, k // 16, dtype=torch.float8_e4m3fn),
        "bias": empty(n, dtype=torch.float32),
        "none": empty(0),  # absent
        "out": empty(m, n, dtype=torch.float16),
        "c": empty(m, n, dtype=torch.float16),
        "backend": backend,
        "x": torch.zeros(1),
        "y": torch.zeros(1),
    }
    statements = [
        "nvfp4.gemm(a, b, scale_a, scale_b, out=out, backend=backend)",
        "nvfp4.gemm(a, b, scale_a, scale_b, out=out, backend=backend, alpha=bias, bias=bias, c=c, beta=0.5)",
        "nvfp4.gemm(a, b, scale_a, scale_b, backend=backend)",
        "ops.gemm_out(a, b, scale_a, scale_b, none, none, none, 1.0, 0.0, '128x4', backend or 'auto', 0, out)",
        "torch.add(x, x, out=y)",
    ]
    if on_gpu:  # custom_kernel takes no backend: it runs where its tensors are; CPU memory is slow to allocate
        names["views"] = (
            names["a"].view(1, m, k // 2).permute(1, 2, 0),
            names["b"].view(1, n, k // 2).permute(1, 2, 0),
            names["scale_a"].view(1, rows_a // 128, k // 64, 32, 4, 4).permute(3, 4, 1, 5, 2, 0),
            names["scale_b"].view(1, rows_b // 128, k // 64, 32, 4, 4).permute(3, 4, 1, 5, 2, 0),
            names["out"].view(1, m, n).permute(1, 2, 0),
        )
        statements.insert(1, "nvfp4.custom_kernel(*views)")
        for two in sorted({"sm80", taken} & set(TWO_LAUNCHES)):  # every GPU runs sm80
            m, n, k = TWO_LAUNCHES[two]
            expect((m, n, k), two, workspace=True)
            scales = [empty(-(-rows // 128) * 128, k // 16, dtype=torch.float8_e4m3fn) for rows in (m, n)]
            names[f"{two}_in"] = (empty(m, k // 2), empty(n, k // 2), *scales)
            names[f"{two}_out"] = empty(m, n, dtype=torch.float16)
            why = f"{WHY_TWO[two]}: a workspace, two launches"
            statements.insert(2, f"nvfp4.gemm(*{two}_in, out={two}_out, backend='{two}')  # {why}")
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
    parser.add_argument("--backend", metavar="B", help="the backend (on a GPU the default one, else sm80)")
    parser.add_argument("--calls", type=int, metavar="N", help=f"calls per figure ({CALLS}, with --real {ENQUEUED})")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.calls or (ENQUEUED if args.real else CALLS), args.backend)))
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        if not args.real:
            library = Path(folder) / "libcuda_fake.so"
            subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
            environment["NVFP4_LIBCUDA"] = str(library)
            environment.setdefault("FAKE_CC", "100" if args.backend == "sm100" else "90")
        child = [sys.executable, __file__, "--measure"] + ["--real"] * args.real
        child += ["--backend", args.backend] if args.backend else []
        child += ["--calls", str(args.calls)] if args.calls else []
        results = json.loads(subprocess.run(child, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    if args.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'best':>9} {'median':>9}   {'the real driver' if args.real else 'a driver that does nothing'}")
    for statement, row in results.items():
        print(f"{row['best_ns']:6.0f} ns {row['median_ns']:6.0f} ns   {statement}")


if __name__ == "__main__":
    main()
