"""Write the competition's file: the sm100 kernel, self-contained, from this checkout's own sources.

The file holds the CUDA sources of the checkout, a launcher and a torch binding, and compiles them when it is imported.
--check tests every rule that this machine can test: the competition's text rules, its static checker, compilation by
nvcc, and the bits of a result. For the last one the file runs as in the competition's harness, on a B200 or on an
emulated one. --json prints one object.

Exit status: 0 written, and no rule failed; 1 a rule failed; 2 the command cannot run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from nvfp4 import __version__
from nvfp4.cli import files, show

from . import dual, rules
from .amalgamate import SOURCES, amalgamate


@dataclass(frozen=True)
class Task:
    what: str
    count: str  # of tensors
    operation: str
    unpacked: str  # the names of the tensors
    arguments: str
    plan: str
    files: tuple[str, str] = ("contest/binding.cpp", "contest/launch.cu")


GEMM = {
    "count": "seven",
    "operation": "gemm",
    "unpacked": "a, b, _, _, sfa_permuted, sfb_permuted, c",
    "arguments": "a, b, sfa_permuted, sfb_permuted, c",
    "plan": "plan.c",
}
TASKS = {
    "nvfp4_gemm": Task("matrix products, C[m, n, l] = A[m, :, l] . B[n, :, l]", **GEMM),
    "nvfp4_gemv": Task("products of matrices with a vector, c[m, 0, l] = A[m, :, l] . b[0, :, l]", **GEMM),
    dual.NAME: Task(
        "gated products, C = silu(A . B1^T) * (A . B2^T)",
        count="ten",
        operation="dual_gemm",
        unpacked="a, b1, b2, _, _, _, sfa_permuted, sfb1_permuted, sfb2_permuted, c",
        arguments="a, b1, b2, sfa_permuted, sfb1_permuted, sfb2_permuted, c",
        plan="grouped_plan.c",
        files=("contest/dual_binding.cpp", "contest/dual_launch.cu"),
    ),
}

TEMPLATE = """\
#!POPCORN leaderboard @TASK@
#!POPCORN gpu NVIDIA

'''NVFP4 @WHAT@, on a B200's tensor cores.

Generated from nvfp4 @VERSION@,
by `python tools/contest submission --task @TASK@`.
The CUDA sources are the package's own files without debug code. License: Apache-2.0.

A call takes the competition's @COUNT@ tensors and returns the last one, c, into which the kernel has written. The
plan is the package's own (csrc/kernels/sm100/@PLAN@): all ways to run a product are ranked by modelled time.
'''

import torch
from task import input_t, output_t
from torch.utils.cpp_extension import load_inline

# For g++: checks the tensors and registers the operation.
BINDING = r'''
@BINDING@'''

# For nvcc: the kernel and its launcher, after the headers that they include.
KERNEL = r'''
@KERNEL@'''

load_inline(
    name="nvfp4_contest",
    cpp_sources=BINDING,
    cuda_sources=KERNEL,
    extra_cflags=["-O3"],
    extra_cuda_cflags=["-O3", "-gencode", "arch=compute_100a,code=sm_100a"],
    no_implicit_headers=True,  # torch's headers take longer to compile than the kernel
    is_python_module=False,
    verbose=True,
)
@OPERATION@ = torch.ops.nvfp4_contest.@OPERATION@.default


def custom_kernel(data: input_t) -> output_t:
    @UNPACKED@ = data
    @OPERATION@(@ARGUMENTS@)
    return c
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="submission.py",
        help="the file to write (default: submission.py); - is stdout",
    )
    parser.add_argument(
        "--task", choices=TASKS, default="nvfp4_gemm", help="the competition's task (default: nvfp4_gemm)"
    )
    parser.add_argument("--check", action="store_true", help="test the written file against every rule")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    text = submission(args.task)
    if args.output == "-":
        if args.check:
            raise show.CommandError("--check: checks a file; name one with -o")
        if args.json:
            raise show.CommandError("--json: reports on a file; name one with -o")
        sys.stdout.write(text)
        return 0
    path = Path(args.output)
    try:
        files.write_text(path, text)
    except OSError as error:
        raise show.CommandError(f"-o {args.output}: cannot be written ({error.strerror})") from None
    size = len(text.encode())
    if not args.json:
        print(f"{path}: {size:,} bytes for {args.task}, of nvfp4 {provenance()}")
    verdicts = rules.run(path, args.task) if args.check else []
    if args.json:
        listed = [{"name": name, "verdict": str(verdict), "why": verdict.why} for name, verdict in verdicts]
        print(json.dumps({"file": str(path), "bytes": size, "task": args.task, "rules": listed}, indent=1))
    elif args.check:
        rules.report(path, verdicts)
    return 1 if any(verdict.passed is False for _, verdict in verdicts) else 0


def submission(task: str) -> str:
    """The file's text. It depends on the sources only."""
    of = TASKS[task]
    parts = {
        "TASK": task,
        "WHAT": of.what,
        "COUNT": of.count,
        "OPERATION": of.operation,
        "UNPACKED": of.unpacked,
        "ARGUMENTS": of.arguments,
        "PLAN": of.plan,
        "VERSION": provenance(),
        "BINDING": amalgamate(of.files[0]),
        "KERNEL": amalgamate(of.files[1]),
    }
    pieces = TEMPLATE.split("@")  # even indices: the template's own text
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def provenance() -> str:
    """The version, and the commit if the sources are an unchanged checkout."""
    checkout = SOURCES.parent
    if (checkout / ".git").exists():
        status = git(checkout, "status", "--porcelain", "--untracked-files=no")
        commit = git(checkout, "rev-parse", "HEAD")
        if status == "" and commit:
            return f"{__version__}, commit {commit}"
    return __version__


def git(folder: Path, *arguments: str) -> str | None:
    """git's output; None if git is missing or fails."""
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
