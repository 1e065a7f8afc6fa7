"""The sm100 kernels in programs that take every backend: mutants and the tests that have to notice them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

ALSO_EMULATED: tuple[str, ...] = ()  # tests/ops/test_*.py, beside those of every backend (test_emulated.py)
# Tests that notice mutants of csrc/kernels/common.
NOTICE_COMMON = (("kernels/sm100/test_sm100_gemm.py",), ("kernels/sm100/test_sm100_grouped.py",))


def mutated(suites: ModuleType) -> dict[str, Any]:
    """The sources that tools/mutation mutates, and their tests: first those that find most in the shortest time."""
    named, drawn = suites.guarded("sm_100")
    files = ("gemm.cu", "column_pairs.cuh", "cp_async_producer.cuh", "epilogue.cuh", "schedule.cuh")
    grouped_tests = (
        ("kernels/sm100/test_sm100_grouped.py",),
        suites.on("sm_100", "ops/test_grouped_invariance.py", "-k", "sm100"),
        drawn,
    )
    return {
        "sm100": suites.Area(
            tuple(f"kernels/sm100/{name}" for name in files),
            (
                ("kernels/sm100/test_sm100_gemm.py",),
                ("kernels/test_dependent_launch.py",),
                named,
                suites.one_of_each_kind("sm100"),
                suites.on("sm_100", "ops/test_gemm_bounds.py", "-k", "sm100"),
                ("kernels/sm100/test_sm100_stages.py",),
                drawn,
                suites.ragged("sm100"),
                ("kernels/test_proof.py", "-k", "test_every_schedule and sm100"),
            ),
        ),
        "sm100_grouped": suites.Area(("kernels/sm100/group*.cu*", "kernels/sm100/grouped_*"), grouped_tests),
    }
