"""Run the ten tests of a competition's task and judge each against the definition.

Every test draws random data, fills the output with NaN, multiplies, and compares with an fp64 sum of the same data:
within 1e-3 as the competition asks, and bit for bit, which this data allows. The product then runs a second time, for
the time, and must give the same bits. Runs on the first usable GPU, or on the CPU where there is none. The tasks are
nvfp4_gemm, a product of two matrices, and nvfp4_gemv, a matrix times the first row of a b that is filled up to 128.

Exit status: 0 all tests passed, 1 a test failed, 2 the tests cannot run.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import TYPE_CHECKING, Any

from .. import custom_kernel, gemm
from . import dump, machine, show

if TYPE_CHECKING:
    import torch


TASKS = ("nvfp4_gemm", "nvfp4_gemv")  # of reference.TASKS, which needs torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", metavar="B", help="run on this backend (cpu, sm80, sm90, sm100), not on the best one"
    )
    parser.add_argument("--task", choices=TASKS, default="nvfp4_gemm", help="whose tests (nvfp4_gemm)")
    parser.add_argument("--only", type=int, metavar="N", help="run test N alone, counted from 1")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the random data, instead of task.yml's")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--dump",
        type=dump.parse,
        metavar="cta=I,k_block=J",
        help="with --only, on a B200, in a debug build: print what this CTA held when it had multiplied that k_block "
        "of 64 values; lanes=A:B and columns=A:B, added, say how much of it is printed (0:8)",
    )


def run(args: argparse.Namespace) -> int:
    place = machine.pick_place(args.backend)
    from ..reference import load_task  # needs torch

    tests = list(enumerate(load_task(args.task)["tests"], start=1))
    if args.only is not None:
        if not 1 <= args.only <= len(tests):
            raise show.Refusal(f"--only {args.only}: there are tests 1 to {len(tests)}")
        tests = [tests[args.only - 1]]
    if args.dump:
        if args.only is None or args.json:
            raise show.Refusal("--dump prints one test's k_block as text: it needs --only, and goes without --json")
        return dump.run(seeded(tests[0][1], args.seed), place, args.dump, multiply)

    results = []
    with show.progress(len(tests)) as step:
        for number, test in tests:
            test = seeded(test, args.seed)
            step("check {m}x{n}x{k}, l = {l}".format(**test))
            results.append({"test": number} | run_test(test, place))

    passed = sum(result["passed"] for result in results)
    if args.json:
        hardware = machine.describe(place.device)
        print(json.dumps({"task": args.task, "hardware": hardware, "passed": passed, "tests": results}, indent=1))
    else:
        report(args.task, results, place.device)
    return 0 if passed == len(results) else 1


def seeded(test: dict[str, int], seed: int | None) -> dict[str, int]:
    return test if seed is None else test | {"seed": seed}


def run_test(test: dict[str, int], place: machine.Place) -> dict[str, Any]:
    import torch

    from .. import reference

    data = reference.generate_input(**test, device=place.tensors)
    expected = reference.ref_kernel(data)
    output = multiply(data, place.backend)[0].clone()
    again, seconds = multiply(data, place.backend)
    close, why = reference.compare(output, expected)
    exact, why_not_exact = reference.compare(output, expected, exact=True)
    repeats = torch.equal(output.view(torch.int16), again.view(torch.int16))
    return {
        "shape": {key: test[key] for key in "mnkl"},
        "seed": test["seed"],
        "kernel": machine.kernel(test["m"], test["n"], test["k"], place.device, place.backend, test["l"]),
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
    """The product and its seconds, into a poisoned output. Rows of b beyond c's columns are not passed."""
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


def call(a, b, sfa, sfb, c, backend: str | None) -> torch.Tensor:
    if backend is None:
        return custom_kernel(a, b, sfa, sfb, c)
    # custom_kernel chooses by itself; gemm takes the same bytes with the batch first.
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
