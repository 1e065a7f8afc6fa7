"""Measure a submission, or this package, as the competition does.

    python tools/contest measure [--task nvfp4_gemv] [--submission submission.py | --backend sm90] [--json FILE]

For each ranked shape, every input is multiplied once and judged. Then come repeats, each between one pair of events.
Before a repeat, random numbers are written to a buffer that exceeds all caches; the write also takes longer than the
host needs to enqueue the calls. The repeats end when the standard error of their mean is below 0.1 %.

    back-to-back  50 consecutive calls, each on its own inputs; the time of a repeat is the time per call
                  nvfp4_gemm, nvfp4_dual_gemm (the package: two products in fp32, and nvfp4.gated)
    single-call   one call, on new numbers in each repeat
                  nvfp4_gemv

All results of a repeat are judged, as they were when the timed calls were complete; the outputs held NaN before. In
each repeat one input gets new numbers and the rows of all inputs are permuted, so that a cached result is wrong. Where
times mean nothing (a CPU, the emulated GPU) results are judged and nothing is timed. benchmarks/README.md describes the
figures.

Exit status: 0 done, 1 a result is wrong, 2 it cannot run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nvfp4 import __version__, gated
from nvfp4.bench import timing
from nvfp4.cli import check, commands, files, machine, show

from . import dual
from .method import MODES, Data, Device, Gpu, Inputs, Kernel, Limits, Mode, Wrong, judge_some, measure

if TYPE_CHECKING:
    import torch

FORMAT = "nvfp4-contest-2"


@dataclass(frozen=True)
class Task:
    mode: str  # by default
    speed_of_light: dict[tuple[int, int, int, int], float]  # the competition's, on a B200 at 1.5 GHz, us, by M, N, K, L
    matrices: int = 1  # that multiply A

    def bytes(self, m: int, n: int, k: int, l: int) -> int:  # noqa: E741 (the problem's name for the batch)
        """The minimum traffic: all matrices and their scales read once, the fp16 result written once."""
        return l * ((m + self.matrices * n) * (k // 2 + k // 16) + 2 * m * n)


TASKS = {
    "nvfp4_gemm": Task(
        "back-to-back", {(128, 7168, 16384, 1): 8.994, (128, 4096, 7168, 1): 2.354, (128, 7168, 2048, 1): 1.333}
    ),
    "nvfp4_gemv": Task(
        "single-call", {(7168, 1, 16384, 1): 8.622, (4096, 1, 7168, 8): 17.275, (7168, 1, 2048, 4): 4.317}
    ),
    dual.NAME: Task(
        "back-to-back",
        {
            (256, 4096, 7168, 1): 4.708,
            (512, 4096, 7168, 1): 8.714,
            (256, 3072, 4096, 1): 2.125,
            (512, 3072, 7168, 1): 6.535,
        },
        matrices=2,
    ),
}


# --- what is run ----------------------------------------------------------------------------------------------------


def package(task: str, backend: str | None) -> Kernel:
    """nvfp4.custom_kernel, or nvfp4.gemm on the same bytes if a backend is given; of the dual product two in fp32."""

    def product(data: Data) -> torch.Tensor:
        a, b, _, _, sfa, sfb, c = data
        return check.call(a, b[: c.shape[1]], sfa, sfb, c, backend)

    def dual_product(data: Data) -> torch.Tensor:
        a, b1, b2, _, _, _, sfa, sfb1, sfb2, c = data
        gate, up = (
            check.call(a, b, sfa, sfb, torch.empty_like(c, dtype=torch.float32), backend).permute(2, 0, 1)
            for b, sfb in ((b1, sfb1), (b2, sfb2))
        )
        gated(gate, up, out=c.permute(2, 0, 1))
        return c

    torch = machine.need_torch()
    return dual_product if task == dual.NAME else product


def submission(path: Path) -> Kernel:
    """custom_kernel of a file, which can import `task` as in the competition."""
    task = ModuleType("task")
    task.input_t, task.output_t = Data, machine.need_torch().Tensor
    sys.modules["task"] = task
    spec = importlib.util.spec_from_file_location("submission", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise show.CommandError(f"--submission {path}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise show.CommandError(f"--submission {path}: importing it raised {type(error).__name__}: {error}") from error
    kernel = getattr(module, "custom_kernel", None)
    if not callable(kernel):
        raise show.CommandError(f"--submission {path}: has no function custom_kernel(data)")
    return kernel


def tests_of(args: argparse.Namespace) -> list[dict[str, int]]:
    """The shapes to run, as arguments of generate_input."""
    ranked = dual.load_task(args.task)["benchmarks"]
    if args.only is not None:
        if not 1 <= args.only <= len(ranked):
            raise show.CommandError(f"--only {args.only}: the shapes of {args.task} are 1 to {len(ranked)}")
        return [ranked[args.only - 1]]
    if args.shapes is None:
        return ranked
    if args.task == "nvfp4_gemv" and any(shape["n"] != 1 for shape in args.shapes):
        raise show.CommandError("--shapes: N is 1 in every shape of nvfp4_gemv")
    return [ranked[0] | shape for shape in args.shapes]


def shape_list(text: str) -> list[dict[str, int]]:
    return [dict(zip("mnkl", [*sizes, 1])) for sizes in commands.shapes(text, most=4)]


# --- the command ----------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task",
        choices=TASKS,
        default="nvfp4_gemm",
        help="the task whose shapes and inputs are used (default: nvfp4_gemm)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--submission", type=Path, metavar="FILE", help="run custom_kernel(data) of this file")
    what.add_argument("--backend", metavar="B", help="run the package on this backend (cpu, sm80, sm90, sm100)")
    parser.add_argument(
        "--mode", choices=MODES, help="what is timed (default: single-call for nvfp4_gemv, else back-to-back)"
    )
    parser.add_argument("--correctness", action="store_true", help="judge each input once and time nothing")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", type=int, metavar="N", help="measure only shape N of the task, counted from 1")
    which.add_argument("--shapes", type=shape_list, metavar="MxNxK[xL],...", help="measure these shapes instead")
    parser.add_argument("--inputs", type=int, metavar="N", help="make N back-to-back calls (default: 50)")
    parser.add_argument(
        "--repeats", type=int, default=1000, metavar="N", help="make at most N repeats per shape (default: 1000)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        metavar="S",
        help="spend at most S seconds on a shape's repeats (default: 120)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the result as a JSON object")


def without_json(words: Sequence[str]) -> list[str]:
    """The arguments without --json: the file is not part of the measurement."""
    kept = [word for word in words if not word.startswith("--json=")]
    if "--json" in kept:
        at = kept.index("--json")
        del kept[at : at + 2]
    return kept


def run(args: argparse.Namespace) -> int:
    if args.repeats < 2 or (args.inputs is not None and args.inputs < 1):
        raise show.CommandError("--repeats must be at least 2, for the error of the mean, and --inputs at least 1")
    if args.json and not Path(args.json).parent.is_dir():
        raise show.CommandError(f"--json {args.json}: there is no folder {Path(args.json).parent}")
    target = machine.pick_target(args.backend)
    mode_name = args.mode or TASKS[args.task].mode
    mode = MODES[mode_name]
    count = args.inputs or MODES["back-to-back"].inputs
    tests = tests_of(args)
    kernel = submission(args.submission) if args.submission else package(args.task, target.backend)
    device = None if args.correctness else timer(target, mode)
    if device is None:
        method: dict[str, Any] = {"timed": False}
    else:
        if mode_name == "single-call" and args.inputs:
            raise show.CommandError(
                "--inputs goes with --mode back-to-back: a single call has one input, renewed in each repeat"
            )
        count = count if mode_name == "back-to-back" else mode.inputs
        rate = timing.DeviceClock(target.device).copy_bandwidth(20)
        method = {"timed": True, "mode": mode_name, "bytes_per_s": rate, "clocks before": machine.clocks(target.device)}

    results = []
    with show.progress(len(tests)) as step:
        for test in tests:
            step("contest " + title(test))
            inputs = Inputs(dual.definition(args.task), test, mode.seed_step, target.tensors)
            results.append(result_of(inputs, kernel, count, device, Limits(args.repeats, args.seconds)))
    if device is not None:
        method |= {"clocks after": machine.clocks(target.device), "flush": device.flush_text()}
    found = {
        "format": FORMAT,
        "task": args.task,
        "command": shlex.join(["python", "tools/contest", *without_json(args.words)]),
        "ran": str(args.submission) if args.submission else f"nvfp4 {__version__}, backend {args.backend or 'by rule'}",
        "hardware": machine.describe(target.device),
        "software": f"torch {machine.need_torch().__version__}",
        "inputs": count,
        **method,
        "shapes": results,
    }
    if args.json:
        files.write_text(args.json, json.dumps(found, indent=1) + "\n")
    report(found, emulated=target.device != target.tensors)
    return 0 if all(result["right"] for result in results) else 1


def timer(target: machine.Target, mode: Mode) -> Gpu | None:
    """The timer of this device; None where times mean nothing."""
    if target.tensors.type != "cuda":
        return None
    machine.need_torch().cuda.set_device(target.device)
    return Gpu(target.device, mode.flush_bytes)


def title(test: dict[str, int]) -> str:
    return "{m}x{n}x{k}x{l}".format(**test)


def result_of(inputs: Inputs, kernel: Kernel, count: int, device: Device | None, limits: Limits) -> dict[str, Any]:
    result: dict[str, Any] = {"shape": {size: inputs.test[size] for size in "mnkl"}, "right": True, "why": ""}
    try:
        if device is None:
            judge_some(inputs, kernel, count)
        else:
            result |= measure(inputs, kernel, count, device, limits)
    except (Wrong, RuntimeError) as why:  # RuntimeError: torch reports a fault of a kernel at the next synchronisation
        result |= {"right": False, "why": str(why)}
    return result


# --- output ------------------------------------------------------------------------------------------------------


def report(found: dict[str, Any], emulated: bool) -> None:
    (report_times if found["timed"] else report_verdicts)(found)
    for result in found["shapes"]:
        if not result["right"]:
            print(f"{title(result['shape'])}: {result['why']}")
    if not found["timed"]:
        where = "an emulated GPU" if emulated else "a CPU" if "SMs" not in found["hardware"] else ""
        print("Nothing was timed" + (f": a time on {where} says nothing about the competition's." if where else "."))


def head(found: dict[str, Any]) -> str:
    return f"The competition's {found['task']}: {found['ran']}, on {found['hardware']}"


def report_verdicts(found: dict[str, Any]) -> None:
    rows = [
        [title(result["shape"]), str(found["inputs"]), "right" if result["right"] else "WRONG"]
        for result in found["shapes"]
    ]
    show.table(head(found), ["<M x N x K x L", "inputs", "<verdict"], rows)


def report_times(found: dict[str, Any]) -> None:
    show.table(head(found), *time_table(found))
    print("\n".join(summary(found)))


def time_table(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Times in us; the ratio to the speed of light is printed only on a B200."""
    on_b200 = "B200" in found["hardware"]
    columns = ["<M x N x K x L", "mean, us", "standard error", "fastest, us", "repeats", "<stopped by"]
    columns += ["competition's speed of light on a B200, us"] + ["mean / speed of light"] * on_b200
    columns += ["copy time, us", "mean / copy time"]
    task, rows = TASKS[found["task"]], []
    for result in found["shapes"]:
        sizes = tuple(result["shape"].values())
        light = task.speed_of_light.get(sizes)
        copy = task.bytes(*sizes) / found["bytes_per_s"] * 1e6
        fixed = [f"{light:g}" if light else "-"]
        if not result["right"]:
            rows.append([title(result["shape"]), "WRONG", "", "", "", "", *fixed, *[""] * on_b200, f"{copy:.2f}", ""])
            continue
        mean, error, best = (result["seconds"][name] * 1e6 for name in ("mean", "error", "best"))
        measured = [f"{mean:.2f}", f"{error / mean:.2%}", f"{best:.2f}", str(result["seconds"]["repeats"])]
        ratio = [f"{mean / light:.2f}" if light else "-"] * on_b200
        of_copy = [f"{copy:.2f}", f"{mean / copy:.2f}"]
        rows.append([title(result["shape"]), *measured, result["stopped by"], *fixed, *ratio, *of_copy])
    return columns, rows


def summary(found: dict[str, Any]) -> list[str]:
    """The lines below the table of times."""
    lines = []
    if all(result["right"] for result in found["shapes"]):
        means = [result["seconds"]["mean"] * 1e6 for result in found["shapes"]]
        lines.append(f"geometric mean: {statistics.geometric_mean(means):.2f} us")
    calls = f"{found['inputs']} back-to-back calls, time per call" if found["mode"] == "back-to-back" else "one call"
    lines.append(f"between two events: {calls}; {found['flush']}")
    rate = show.si(found["bytes_per_s"], "B/s")
    lines.append(f"copy time: the minimum traffic at the rate of a copy, {rate}, measured before")
    if exposed := sum(result.get("exposed", 0) for result in found["shapes"]):
        lines.append(f"{exposed} repeats include host time: their calls were not all enqueued when the first one began")
    return [*lines, f"clocks: {found['clocks before']}; after: {found['clocks after']}"]
