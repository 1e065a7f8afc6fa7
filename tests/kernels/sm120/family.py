"""The sm120 kernels in programs that take every family: mutants and the tests that have to notice them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

ALSO_EMULATED = ("constant_b",)  # tests/api/test_*.py, beside those of every family (test_emulated.py)
NOTICE_COMMON = (("kernels/sm120/test_sm120_gemm.py",),)  # tests that notice mutants of csrc/kernels/common


def mutated(suites: ModuleType) -> dict[str, Any]:
    """The sources that tools/mutation mutates, and their tests: first those that find most in the shortest time."""
    named, drawn = suites.guarded("sm_120")
    return {
        "sm120": suites.Family(
            ("kernels/sm120/*.cu", "kernels/sm120/*.cuh"),
            (
                ("kernels/sm120/test_sm120_gemm.py",),
                ("kernels/test_dependent_launch.py",),
                named,
                suites.one_of_each_kind("sm120"),
                suites.on("sm_120", "api/test_gemm_bounds.py", "-k", "sm120"),
                drawn,
                suites.ragged("sm120"),
            ),
        )
    }
