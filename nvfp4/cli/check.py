"""Run the ten tests of a competition's task and compare each result with the reference.

Each test draws random data, fills the output with NaN, multiplies, and compares with an fp64 sum of the same data:
within the competition's tolerance of 1e-3, and bit for bit, since the sums of this data are exact. A second call is
timed and must give the same bits. The tests run on the first usable GPU, else on the CPU. Task nvfp4_gemm multiplies
two matrices. Task nvfp4_gemv multiplies a matrix with a vector: row 0 of b, which is padded to 128 rows.

Exit status: 0 all tests passed, 1 a test failed, 2 the tests cannot run.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import TYPE_CHECKING, Any

from nvfp4 import custom_kernel, gemm
from nvfp4.cli import machine, show

if TYPE_CHECKING:
    import torch


TASKS = ("nvfp4_gemm", "nvfp4_gemv")  # of reference.TASKS, which needs torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", metavar="B", help=f"run on this backend ({machine.backends()}) instead of the chosen one"
    )
    parser.add_argument(
        "--task", choices=TASKS, default="nvfp4_gemm", help="the task whose tests run (default: nvfp4_gemm)"
    )
    parser.add_argument("--only", type=int, metavar="N", help="run only test N, counted from 1")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the random data, instead of the one in task.yml")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    target = machine.pick_target(args.backend)
    if args.only is not None:
        tests = [(args.only, test_of(args.task, args.only, "--only"))]
    else:
        tests = list(enumerate(tests_of(args.task), start=1))
    results = []
    with show.progress(len(tests)) as step:
        for number, test in tests:
            test = seeded(test, args.seed)
            step("check {m}x{n}x{k}, l = {l}".format(**test))
            results.append({"test": number} | run_test(test, target))

    passed = sum(result["passed"] for result in results)
    if args.json:
        hardware = machine.describe(target.device)
        print(json.dumps({"task": args.task, "hardware": hardware, "passed": passed, "tests": results}, indent=1))
    else:
        report(args.task, results, target.device)
    return 0 if passed == len(results) else 1


def tests_of(task: str) -> list[dict[str, int]]:
    from nvfp4.reference import load_task  # needs torch

    return load_task(task)["tests"]


def test_of(task: str, number: int, option: str) -> dict[str, int]:
    """The test of this number, counted from 1; the error names the option."""
    tests = tests_of(task)
    if not 1 <= number <= len(tests):
        raise show.CommandError(f"{option} {number}: there are tests 1 to {len(tests)}")
    return tests[number - 1]


def seeded(test: dict[str, int], seed: int | None) -> dict[str, int]:
    return test if seed is None else test | {"seed": seed}


def run_test(test: dict[str, Any], target: machine.Target) -> dict[str, Any]:
    import torch

    from nvfp4 import reference

    data = reference.generate_input(**test, device=target.tensors)
    expected = reference.ref_kernel(data)
    output = multiply(data, target.backend)[0].clone()
    again, seconds = multiply(data, target.backend)
    close, why = reference.compare(output, expected)
    exact, why_not_exact = reference.compare(output, expected, exact=True)
    repeats = torch.equal(output.view(torch.int16), again.view(torch.int16))
    return {
        "shape": {key: test[key] for key in "mnkl"},
        "seed": test["seed"],
        "kernel": machine.kernel(test["m"], test["n"], test["k"], target.device, target.backend, test["l"]),
        "max_error": (output.double() - expected.double()).abs().max().item(),
        "exact": exact,
        "repeats": repeats,
        "seconds": seconds,
        "passed": close and exact and repeats,
        "why": verdict(close, why, exact, why_not_exact, repeats),
    }


def verdict(close: bool, why: str, exact: bool, why_not_exact: str, repeats: bool) -> str:
    if not close:
        return why
    if not exact:
        return f"{why}, but {why_not_exact}"
    return "every bit is equal" if repeats else "a second call gave other bits"


def multiply(data: tuple[torch.Tensor, ...], backend: str | None) -> tuple[torch.Tensor, float]:
    """Multiplies into an output full of NaN; returns it and the seconds. Drops rows of b beyond the columns of c."""
    import torch

    a, b, _, _, sfa, sfb, c = data
    b = b[: c.shape[1]]
    c.fill_(math.nan)
    if c.is_cuda:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        result = call(a, b, sfa, sfb, c, backend)
        end.record()
        end.synchronize()
        return result, begin.elapsed_time(end) * 1e-3
    start = time.perf_counter()
    result = call(a, b, sfa, sfb, c, backend)
    return result, time.perf_counter() - start


def call(
    a: torch.Tensor, b: torch.Tensor, sfa: torch.Tensor, sfb: torch.Tensor, c: torch.Tensor, backend: str | None
) -> torch.Tensor:
    if backend is None:
        return custom_kernel(a, b, sfa, sfb, c)
    # custom_kernel has no argument for the backend; gemm takes the same bytes with the batch first.
    first = (2, 0, 1)
    scales = (scale.permute(5, 2, 4, 0, 1, 3) for scale in (sfa, sfb))
    return gemm(a.permute(first), b.permute(first), *scales, out=c.permute(first), backend=backend).permute(1, 2, 0)


def report(task: str, results: list[dict[str, Any]], device: torch.device) -> None:
    columns = ["test", "<M x N x K x L", "<kernel", "max error", "<exact", "time", "<verdict"]
    rows = [
        [
            str(result["test"]),
            "x".join(str(size) for size in result["shape"].values()),
            result["kernel"],
            f"{result['max_error']:.3g}",
            "yes" if result["exact"] else "no",
            show.seconds(result["seconds"]),
            "pass" if result["passed"] else "FAIL",
        ]
        for result in results
    ]
    show.table(f"The competition's {task} tests on {machine.describe(device)}", columns, rows)
    for result in results:
        if not result["passed"]:
            print(f"test {result['test']}: {result['why']}")
    print(f"{sum(result['passed'] for result in results)} of {len(results)} tests passed")
