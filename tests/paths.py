"""Where things are in the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CSRC, BENCHMARKS, EMULATOR, TESTS = ROOT / "csrc", ROOT / "benchmarks", ROOT / "emulator", ROOT / "tests"
KERNELS = TESTS / "kernels"
