"""Paths in the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CSRC, BENCHMARKS, EMULATOR, TESTS = ROOT / "csrc", ROOT / "benchmarks", ROOT / "emulator", ROOT / "tests"
KERNELS, TOOLS = TESTS / "kernels", ROOT / "tools"


def families() -> list[str]:
    """The families of GPU kernels, oldest architecture first: folders of csrc/kernels with a config header."""
    names = {path.parent.name for path in (CSRC / "kernels").glob("*/*config.h")}
    return sorted(names, key=lambda name: int(name.removeprefix("sm")))


def proven_families() -> list[str]:
    """The families whose folder has launches for the static verifier (schedules.py) and mutations (mutations.py)."""
    return [name for name in families() if (KERNELS / name / "mutations.py").exists()]
