"""Show what this machine can run, and why it cannot run the rest.

Needs neither torch nor a driver nor a GPU. With --shape it also shows the plan for a product of that shape.
"""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any

from nvfp4 import info
from nvfp4.cli import commands, machine, show

NEVER_RUN = "assembled only, never run"  # sm100's PTX for a Thor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", type=shape, metavar="MxNxK[xL]", help="show the plan for a product of this shape")
    parser.add_argument(
        "--backend", metavar="B", help=f"with --shape: show the plan on this backend ({machine.backends()})"
    )
    parser.add_argument(
        "--a-dtype", choices=("float16", "bfloat16"), help="with --shape: the plan of 16-bit activations (W4A16)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def shape(text: str) -> tuple[int, ...]:
    one, *others = commands.shapes(text, most=4, least=0)
    if others:
        raise argparse.ArgumentTypeError(f"{text!r}: only one shape")
    return one


def run(args: argparse.Namespace) -> int:
    for option, given in (("--backend", args.backend), ("--a-dtype", args.a_dtype)):
        if given is not None and args.shape is None:
            raise show.CommandError(f"{option}: needs --shape MxNxK")
    software = {"python": platform.python_version(), "torch": torch_version()}
    properties = software | info(*(args.shape or ()), backend=args.backend, a_dtype=args.a_dtype)
    properties |= {"cpu": machine.cpu_name(), "cpu_features": machine.cpu_features()}
    if args.json:
        print(json.dumps(properties, indent=1))
    else:
        lines = describe(properties)
        width = max(len(name) for name, _ in lines)
        print("\n".join(f"{name:<{width}}  {value}" for name, value in lines))
    return 0


def torch_version() -> str | None:
    try:
        return str(machine.import_torch().__version__)
    except ImportError:
        return None


def gpu_code(archs: list[str]) -> str:
    named = (f"{arch} ({NEVER_RUN})" if arch == "compute_110f" else arch for arch in archs)
    return " ".join(named) or "none: this build is for the CPU only"


def driver(properties: dict[str, Any]) -> str:
    if not properties["driver"]:
        return properties["driver_reason"]
    return f"{properties['driver']} (this build needs {properties['driver_needed']} or later)"


def describe(properties: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each line."""
    lines = [
        ("nvfp4", properties["version"]),
        ("Python", properties["python"]),
        ("torch", properties["torch"] or "not installed: NumPy arrays only, no check and no bench"),
        ("GPU code for", gpu_code(properties["archs"])),
        ("CPU", f"{properties['cpu']} ({properties['cpu_features']}), {properties['cpu_threads']} threads"),
        ("CPU kernel", properties["cpu_kernel"]),
        ("CUDA driver", driver(properties)),
    ]
    for ordinal, gpu in enumerate(properties["devices"]):
        major, minor = divmod(gpu["compute_capability"], 10)
        memory = show.si(gpu["memory_bytes"], "B")
        state = "usable" if gpu["usable"] else f"NOT usable: {gpu['reason']}"
        if gpu["usable"] and major == 11:
            state += f"; the code of sm100 for it was {NEVER_RUN}"
        lines.append((f"GPU {ordinal}", f"{gpu['name']}, sm_{major}{minor}, {gpu['sm_count']} SMs, {memory}: {state}"))
    if properties["driver"] and not properties["devices"]:
        lines.append(("GPU", "none: the driver reports no device"))
    if "plan" in properties:
        plan = properties["plan"]
        lines.append(("this shape", f"{plan['kernel']} ({plan['backend']}) on {plan['device']}: {plan['reason']}"))
        if plan["grid"]:
            tile = "x".join(str(plan[f"tile_{side}"]) for side in "mnk")
            detail = f"tile {tile}, {plan['stages']} stages, {plan['grid']} CTAs, split-K {plan['split_k']}"
            lines.append(("", f"{detail}, workspace {plan['workspace']} bytes"))
            modelled = f"{plan['modelled_us']:.1f} us back-to-back, {plan['single_us']:.1f} us a single call"
            lines.append(("", f"modelled time: {modelled}"))
            lines.append(("", f"constants of the model: {plan['model']}"))
    return lines
