"""The sm80 kernels in programs that take every backend: mutants and the tests that have to notice them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

ALSO_EMULATED = ("grouped_invariance",)  # tests/ops/test_*.py, beside those of every backend (test_emulated.py)
NOTICE_COMMON: tuple[tuple[str, ...], ...] = ()  # tests that notice mutants of csrc/kernels/common


def mutated(suites: ModuleType) -> dict[str, Any]:
    """The sources that tools/mutation mutates, and their tests: first those that find most in the shortest time."""
    named, drawn = suites.guarded("sm_80")
    return {
        "sm80": suites.Area(
            ("kernels/sm80/*.cu", "kernels/sm80/*.cuh"),
            (
                named,
                ("ops/test_grouped_gemm.py", "-k", "sm_80"),
                suites.one_of_each_kind("sm80"),
                suites.on("sm_80", "ops/test_gemm_bounds.py", "-k", "sm80"),
                suites.on("sm_120", "kernels/test_decode.py"),  # where e4m3 is converted by an instruction
                drawn,
                suites.ragged("sm80"),
            ),
        )
    }
