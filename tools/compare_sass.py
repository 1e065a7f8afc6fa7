#!/usr/bin/env python3
"""Compares the machine code of two builds, kernel by kernel: every function of every architecture in every fat binary.

    python tools/compare_sass.py BEFORE AFTER [--rename OLD=NEW ...]

BEFORE and AFTER are folders of fat binaries (build/cuda of two checkouts). Only instructions count: names of kernels,
files and sections may differ. --rename gives the new name of a renamed kernel; OLD may be a regular expression.
Needs cuobjdump and nvdisasm (the extra `test` brings them). Exits with 1 if a function differs or is missing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

Functions = dict[tuple[str, str], list[str]]


def tool(name: str) -> str:
    places = (Path(entry, "nvidia", "cu13", "bin", name) for entry in sys.path)
    return str(next((path for path in places if path.is_file()), name))


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def normal(instruction: str, name: str) -> str:
    """The instruction without address and comments, with KERNEL in place of the kernel's name."""
    instruction = re.sub(r"/\*[0-9a-f]{4,}\*/", "", instruction)
    return " ".join(instruction.replace(name, "KERNEL").split())


def functions_of(fatbin: Path) -> Functions:
    """{(architecture, kernel): instructions}, in order."""
    found: Functions = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run(tool("cuobjdump"), "-xelf", "all", str(fatbin.resolve()), folder=folder)
        for cubin in sorted(folder.glob("*.cubin")):
            architecture = re.search(r"sm_\d+[a-z]?", cubin.name)
            name = ""
            for line in run(tool("nvdisasm"), "-c", cubin.name, folder=folder).splitlines():
                if section := re.match(r"\.section\s+\.text\.(\w+)", line.strip()):
                    name = section[1]
                    found[architecture[0] if architecture else cubin.name, name] = []
                elif name and re.match(r"\s*(/\*[0-9a-f]{4,}\*/|\.L_)", line):
                    found[architecture[0] if architecture else cubin.name, name].append(normal(line, name))
    return found


def functions_in(folder: Path) -> Functions:
    found: Functions = {}
    for fatbin in sorted(folder.rglob("*.fatbin")):
        found |= functions_of(fatbin)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    options = parser.parse_args()
    renames = [rule.split("=", 1) for rule in options.rename]

    def renamed(name: str) -> str:
        for old, new in renames:
            name = re.sub(old, new, name)
        return name

    before = {(arch, renamed(name)): code for (arch, name), code in functions_in(options.before).items()}
    after = functions_in(options.after)
    wrong = []
    for arch, name in sorted(before.keys() | after.keys()):
        old, new = before.get((arch, name)), after.get((arch, name))
        if old is None or new is None:
            wrong.append(f"{arch} {name}: only {'after' if old is None else 'before'}")
        elif old != new:
            lines = [i for i, (x, y) in enumerate(zip(old, new)) if x != y] or [min(len(old), len(new))]
            wrong.append(
                f"{arch} {name}: {len(old)} instructions and labels before, {len(new)} after, first at {lines[0]}"
            )
    print("\n".join([*wrong, f"{len(before)} functions before, {len(after)} after, {len(wrong)} differ"]))
    return 1 if wrong or not before else 0


if __name__ == "__main__":
    sys.exit(main())
