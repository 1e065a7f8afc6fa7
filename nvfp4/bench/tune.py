"""`nvfp4 bench --tune`: times every launch plan of the GPU's own kernels and compares it with the model's ranking.

The plans of a shape differ in kernel, in swap_ab, in split_k, in the prefetch of weights and in whether an SM has room
for a CTA of the next call. sm90, sm100 and sm120 rank them by models (model.h in their folders of csrc/kernels). Each
plan is first checked bit for bit against torch's fp64 product, on data whose sums are exact. Then all correct plans
alternate, in a new random order each round, and are timed in CUDA graphs of consecutive calls, each on its own inputs,
after writes that evict the L2. The fastest plan is selected on the even rounds and compared with the model's choice on
the odd ones, so that the comparison is unbiased.

The result is a file that nvfp4.use_tuning (nvfp4/_tuning.py) reads. It is written anew after each shape, so that a
run that is interrupted leaves the shapes that it finished.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import random
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvfp4 import Error, __version__, info
from nvfp4._tuning import DEVICE, FORMAT
from nvfp4.bench.plans import Candidate, Clock, GraphClock, Lost, Products, candidates, fits, forced
from nvfp4.bench.shapes import Shape
from nvfp4.bench.tune_report import show_report
from nvfp4.bench.verdict import fit, judge
from nvfp4.cli import files, machine, show

if TYPE_CHECKING:
    pass

CALLS = 50  # consecutive, each on its own inputs: as in the competition
ROUNDS = 100
SIZES = ("shared_per_block", "shared_per_sm", "l2_bytes", "memory_bytes")  # of the device, for whoever fits a model


# --- inputs -------------------------------------------------------------------------------------------------------


# --- measuring ----------------------------------------------------------------------------------------------------


def tune_shape(
    shape: Shape,
    target: machine.Target,
    clock: Clock,
    rounds: int,
    seed: int,
    calls: int = CALLS,
    say: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    fits(shape, target.tensors, calls)
    order = random.Random(seed)
    found = candidates(shape, target.device.index)
    say(f"{shape}: {calls} input sets and their expected results")
    products = Products(shape, target, calls, seed)
    consecutive = products.calls()

    def guarded(candidate: Candidate, step: Callable[[], Any]) -> Any:
        try:
            with forced(candidate.rank):
                return step()
        except (RuntimeError, Error) as error:  # from torch and from nvfp4, for a fault on the GPU
            raise Lost(f"{shape}: {candidate}: {str(error).splitlines()[0]}") from error

    for candidate in found:
        say(f"{shape}: checking {candidate}")
        candidate.wrong = guarded(candidate, products.check)
    right = [candidate for candidate in found if not candidate.wrong]
    say(f"{shape}: timing {len(right)} plans, {rounds} rounds")
    for _ in range(rounds):
        for candidate in order.sample(right, len(right)):
            candidate.samples.append(1e6 * guarded(candidate, lambda: clock.run(consecutive)))
    for candidate in right:  # again: a race may show late
        candidate.wrong = guarded(candidate, products.check)
    return {"operation": "gemm", "a_dtype": None, "shape": asdict(shape), "calls": calls} | judge(found)


# --- the command --------------------------------------------------------------------------------------------------


def tunable(args: argparse.Namespace, target: machine.Target) -> None:
    backends = machine.own_backends()
    names = [row["name"] for row in backends]
    places = "; ".join(f"{row['name']} on {row['runs_on']}" for row in backends)
    what = f"--tune measures the plans of kernels for one architecture ({places})"
    if args.backend not in (None, *names):
        raise show.CommandError(f"{what}; --backend is {args.backend}: must be {', '.join(names)} or left out")
    if target.device.type == "cpu":
        raise show.CommandError(f"{what}; there is no usable GPU here")
    gpu = info()["devices"][target.device.index]
    major, minor = divmod(gpu["compute_capability"], 10)
    own = machine.own_backend(gpu["compute_capability"])
    if own is None or args.backend not in (None, own["name"]):
        raise show.CommandError(f"{what}; {target.device} is {gpu['name']}, of compute capability {major}.{minor}")


def run(
    args: argparse.Namespace,
    target: machine.Target,
    shapes: list[Shape],
    clock: Clock | None = None,
    calls: int = CALLS,
) -> int:
    tunable(args, target)
    with machine.need_torch().cuda.device(target.device) if clock is None else nullcontext():
        path = new_path(target.device.index)
        report = tune(
            shapes,
            target,
            clock or GraphClock(target.device),
            args.repeat or ROUNDS,
            args.seed,
            calls,
            keep=lambda report: write(report, path),
        )
    if args.json:
        print(f"written to {path}", file=sys.stderr)
        print(json.dumps(report, indent=1))
    else:
        show_report(report, path, markdown=args.markdown)
    wrong = any(candidate["wrong"] for result in report["results"] for candidate in result["candidates"])
    return 1 if wrong or report["failure"] else 0


def tune(
    shapes: list[Shape],
    target: machine.Target,
    clock: Clock,
    rounds: int,
    seed: int,
    calls: int = CALLS,
    keep: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Times the plans of each shape and returns the content of the file; `keep` gets it after each shape."""
    torch = machine.need_torch()
    on_gpu = target.tensors.type == "cuda"
    properties = info()
    device = properties["devices"][target.device.index]
    before = machine.clocks(target.device) if on_gpu else None
    results: list[dict[str, Any]] = []
    failure = ""

    def report() -> dict[str, Any]:
        return {
            "format": FORMAT,
            "nvfp4": __version__,
            "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "device": {
                name: device[name]
                for name in (*DEVICE, "shared_per_block", "shared_per_sm", "l2_bytes", "memory_bytes")
            },
            "driver": properties["driver"],
            "software": f"torch {torch.__version__}, Python {platform.python_version()}",
            "clocks_before": before,
            "clocks_after": machine.clocks(target.device) if on_gpu and not failure else None,
            "clock": clock.describe(),
            "seed": seed,
            "failure": failure,
            "fitted_from_this_run": fit(results),
            "results": results,
        }

    steps = sum(len(candidates(shape, target.device.index)) + 2 for shape in shapes)
    with show.progress(steps) as step:
        for shape in shapes:
            try:
                results.append(tune_shape(shape, target, clock, rounds, seed, calls, step))
            except Lost as loss:
                failure = str(loss)
            keep(report())
            if failure:
                break
    return report()


def new_path(ordinal: int) -> Path:
    """A name in the current folder that no file has."""
    gpu = re.sub(r"[^a-z0-9]+", "-", str(info()["devices"][ordinal]["name"]).lower()).strip("-")
    stem = f"nvfp4-tune-{gpu}-{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"
    names = (f"{stem}{suffix}.json" for suffix in ("", *(f"-{i}" for i in range(2, 1000))))
    return next(path for path in map(Path, names) if not path.exists())


def write(report: dict[str, Any], path: Path) -> None:
    files.write_text(path, json.dumps(report, indent=1) + "\n")
