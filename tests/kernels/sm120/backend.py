"""The sm120 kernels in programs that take every backend: mutants and the tests that have to notice them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

ALSO_EMULATED = ("constant_b",)  # tests/ops/test_*.py, beside those of every backend (test_emulated.py)
# Tests that notice mutants of csrc/kernels/common.
NOTICE_COMMON = (("kernels/sm120/test_sm120_gemm.py",), ("kernels/sm120/test_sm120_grouped.py",))


def mutated(suites: ModuleType) -> dict[str, Any]:
    """The sources that tools/mutation mutates, and their tests: first those that find most in the shortest time."""
    named, drawn = suites.guarded("sm_120")
    grouped = ("kernels/sm120/grouped.cu", "kernels/sm120/grouped_*", "kernels/common/group_table.cuh")
    grouped_tests = (
        ("kernels/sm120/test_sm120_grouped.py",),
        ("ops/test_grouped_gemm.py", "-k", "sm_120"),
        suites.on("sm_120", "ops/test_grouped_invariance.py", "-k", "sm120"),
        drawn,
    )
    return {
        "sm120": suites.Area(
            ("kernels/sm120/gemm.cu", "kernels/sm120/*.cuh"),
            (
                ("kernels/sm120/test_sm120_gemm.py",),
                ("kernels/test_dependent_launch.py",),
                named,
                suites.one_of_each_kind("sm120"),
                suites.on("sm_120", "ops/test_gemm_bounds.py", "-k", "sm120"),
                drawn,
                suites.ragged("sm120"),
            ),
        ),
        "sm120_grouped": suites.Area(grouped, grouped_tests),
    }
