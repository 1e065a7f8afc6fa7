"""The child processes of `first-run` that are no command of their own. They write into the working folder.

python -m lab.programs device | probe | check | equal-calls | build | constants | compiled
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nvfp4 import _C, Error, __version__, gemm, info, swizzle
from nvfp4.bench.command import shape_list
from nvfp4.bench.shapes import task_shapes
from nvfp4.cli import machine, show

from . import constants
from .steps import DEVICE_FILE

CALLS = 1000
BUILD_FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "reference.py", "task.yml")
BUILD_FOLDERS = ("csrc", "nvfp4", "build_backend")


def main(argv: Sequence[str] | None = None) -> int:
    top = argparse.ArgumentParser(prog="lab.programs", description=__doc__)
    programs = top.add_subparsers(dest="program", required=True)
    programs.add_parser("device").set_defaults(run=device)
    programs.add_parser("probe").set_defaults(run=probe)
    tests = programs.add_parser("check")
    tests.set_defaults(run=check)
    tests.add_argument("--only")
    tests.add_argument("--to", type=Path, required=True)
    tests.add_argument("--backend", required=True)
    equal = programs.add_parser("equal-calls")
    equal.set_defaults(run=equal_calls)
    equal.add_argument("--backend", required=True)
    equal.add_argument("--calls", type=int, default=CALLS)
    equal.add_argument("--shapes", type=shape_list, default=task_shapes([128]))
    built = programs.add_parser("build")
    built.set_defaults(run=build)
    built.add_argument("checkout", type=Path)
    built.add_argument("to", type=Path)
    built.add_argument("flags", nargs="+")
    measured = programs.add_parser("constants")
    measured.set_defaults(run=measure_constants)
    measured.add_argument("checkout", type=Path)
    one = programs.add_parser("compiled")
    one.set_defaults(run=compiled)
    one.add_argument("checkout", type=Path)
    one.add_argument("source")
    args = top.parse_args(argv)
    try:
        return args.run(args)
    except (show.CommandError, Error) as reason:
        print(reason)
        return 2


def device(_: argparse.Namespace) -> int:
    """Prints what the machine is and writes device.json; fails without a GPU that nvfp4 can use."""
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} CPUs")
    for command in (["nvidia-smi"], ["nvidia-smi", "-q", "-d", "CLOCK,POWER,MEMORY,ECC"], ["nvcc", "--version"]):
        if shutil.which(command[0]):
            with contextlib.suppress(subprocess.TimeoutExpired):
                print(subprocess.run(command, capture_output=True, text=True, timeout=20).stdout)
        else:
            print(f"{command[0]}: not on PATH")
    found = info()
    print(f"nvfp4 {__version__}, torch {machine.need_torch().__version__}")
    print(json.dumps(found, indent=1))
    if not found["devices"]:
        print(f"no GPU: {found['driver_reason'] or 'the driver reports no device'}")
        return 1
    gpu = found["devices"][0]
    target = machine.pick_target(None)  # raises where torch cannot use the GPU
    hardware = machine.describe(target.device)
    if not gpu["usable"] or target.device.type != "cuda":
        print(f"GPU 0 ({gpu['name']}): {gpu['reason'] or 'torch cannot use it'}")
        return 1
    described = {
        "hardware": hardware,
        "backend": (machine.own_backend(gpu["compute_capability"]) or {"name": "sm80"})["name"],
        "compute_capability": gpu["compute_capability"],
        "sm_count": gpu["sm_count"],
        "emulated": target.device != target.tensors,
    }
    for ctas, fit in enumerate(_C.clusters(0), 1):
        print(f"clusters of 2, 4 and 8 CTAs that run at a time, {ctas} CTA(s) an SM: {', '.join(map(str, fit))}")
    Path(DEVICE_FILE).write_text(json.dumps(described, indent=1) + "\n")
    print(hardware)
    return 0


def probe(_: argparse.Namespace) -> int:
    """Whether the GPU still multiplies."""
    import torch

    target = machine.pick_target("sm80")
    data, scale = (torch.zeros(rows, 32, dtype=torch.uint8, device=target.tensors) for rows in (16, 128))
    out = gemm(data, data, scale[:, :4].contiguous(), scale[:, :4].contiguous(), backend="sm80")
    print("the GPU answers" if not out.cpu().any() else "the GPU gives wrong results")
    return int(bool(out.cpu().any()))


def check(args: argparse.Namespace) -> int:
    """`nvfp4 check --json`, whose object goes to the file --to; prints a line a test."""
    from nvfp4.__main__ import main as command

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        few = ["--only", args.only] if args.only else []
        status = command(["check", "--json", "--backend", args.backend, *few])
    if not text.getvalue():
        return status
    args.to.write_text(text.getvalue())
    found = json.loads(text.getvalue())
    for test in found["tests"]:
        sizes = "x".join(str(size) for size in test["shape"].values())
        print(f"test {test['test']}, {sizes}, {test['kernel']}: {test['why']}")
    print(f"{found['passed']} of {len(found['tests'])} tests passed")
    return status


def equal_calls(args: argparse.Namespace) -> int:
    """Repeats a product of random data, whose sums round, into outputs full of NaN; all must have the first's bits."""
    import torch

    target = machine.pick_target(args.backend)
    generator = torch.Generator().manual_seed(0)
    wrong = 0
    for shape in args.shapes:
        operands = []
        for rows in (shape.m, shape.n):
            data = torch.randint(0, 256, (rows, shape.k // 2), dtype=torch.uint8, generator=generator)
            scale = torch.randint(0x28, 0x48, (rows, shape.k // 16), dtype=torch.uint8, generator=generator)
            operands.append((data.to(target.tensors), swizzle(scale).to(target.tensors)))
        (a, scale_a), (b, scale_b) = operands
        out = torch.empty(shape.m, shape.n, dtype=torch.float32, device=target.tensors)
        first, differing = None, []
        for call in range(args.calls):
            gemm(a, b, scale_a, scale_b, out=out.fill_(math.nan), backend=args.backend)
            if first is None:
                first = out.clone()
            elif not torch.equal(out.view(torch.int32), first.view(torch.int32)):
                differing.append(call)
        nan = bool(first is not None and first.isnan().any())
        verdict = f"call {differing[0]} and {len(differing) - 1} more differ" if differing else "equal bits"
        print(f"{shape}: {args.calls} calls, {verdict}{', NaN in the first' * nan}")
        wrong += bool(differing) or nan
    return int(wrong > 0)


def build(args: argparse.Namespace) -> int:
    """Builds a copy of the source tree with these flags, so that the installed build stays as it is."""
    args.to.mkdir()
    left_out = shutil.ignore_patterns("*.so", "__pycache__")
    for name in BUILD_FOLDERS:
        shutil.copytree(args.checkout / name, args.to / name, symlinks=True, ignore=left_out)
    for name in BUILD_FILES:
        shutil.copy(args.checkout / name, args.to / name)
    environment = {**os.environ, **dict.fromkeys(args.flags, "1")}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    status = subprocess.run(command, cwd=args.to, env=environment).returncode
    print("built" if status == 0 else f"the build failed with status {status}")
    return status


def compiled(args: argparse.Namespace) -> int:
    """Compiles benchmarks/SOURCE.cu, runs it and prints what it prints."""
    print(constants.output_of(args.checkout / f"benchmarks/{args.source}.cu"))
    return 0


def measure_constants(args: argparse.Namespace) -> int:
    """Measures what our programs can of the B200 model; writes constants.txt and constants.json."""
    with machine.need_torch().cuda.device(0):
        found = constants.measure(args.checkout / "benchmarks")
    described = json.loads(Path(DEVICE_FILE).read_text())
    text = constants.report(found, constants.modelled(), described["hardware"])
    Path("constants.txt").write_text(text)
    Path("constants.json").write_text(json.dumps(found, indent=1) + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
