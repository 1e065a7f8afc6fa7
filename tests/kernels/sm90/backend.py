"""The sm90 kernels in programs that take every backend: mutants and the tests that have to notice them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

ALSO_EMULATED = ("constant_b", "quantize_gemm")  # tests/ops/test_*.py, beside those of every backend (test_emulated.py)
NOTICE_COMMON = (  # tests that notice mutants of csrc/kernels/common
    ("kernels/sm90/test_sm90_gemm.py", "kernels/sm90/test_sm90_gemv.py"),
    ("kernels/sm90/test_sm90_prefill.py", "kernels/sm90/test_sm90_streamk.py"),
)


def mutated(suites: ModuleType) -> dict[str, Any]:
    """The sources that tools/mutation mutates, and their tests: first those that find most in the shortest time."""
    named, drawn = suites.guarded("sm_90")

    def tests_of(kernel: str, *more: str) -> tuple[tuple[str, ...], ...]:
        return (
            (f"kernels/sm90/test_sm90_{kernel}.py", *more),
            ("kernels/test_dependent_launch.py",),
            named,
            suites.one_of_each_kind("sm90"),
            suites.on("sm_90", "ops/test_gemm_bounds.py", "-k", "sm90"),
            drawn,
            suites.ragged("sm90"),
        )

    headers = ("mainloop.cuh", "reduce.cuh", "schedule.cuh")
    gemm = tuple(f"kernels/sm90/{name}" for name in ("gemm.cu", "dequant.cu", "dequant.cuh", *headers))
    gemm_tests = (
        *tests_of("gemm", "kernels/sm90/test_sm90_streamk.py"),
        ("kernels/sm90/test_sm90_prefill.py", "-k", "dequant"),
        ("kernels/test_proof.py", "-k", "test_every_schedule and sm90"),
    )
    nn_tests = (
        ("kernels/sm90/test_sm90_nn.py",),
        suites.on("sm_90", "ops/test_transpose_b.py"),
        named,
        drawn,
    )
    grouped = ("kernels/sm90/grouped.cu", "kernels/common/grouped_tiles.cuh", "kernels/sm90/reorder.cu")
    grouped_tests = (
        ("kernels/sm90/test_sm90_grouped.py",),
        ("ops/test_grouped_gemm.py", "-k", "sm_90"),
        suites.on("sm_90", "ops/test_grouped_invariance.py", "-k", "sm90"),
        drawn,
    )
    return {
        "sm90_gemm": suites.Area(gemm, gemm_tests),
        "sm90_gemv": suites.Area(("kernels/sm90/gemv.cu", "kernels/sm90/gemv_quantize.cuh"), tests_of("gemv")),
        "units": suites.Area(
            ("kernels/units/gemm.cuh", "kernels/units/units.cuh", "kernels/sm*/units.cu"),
            (("kernels/units/test_units.py",), *tests_of("gemm")[1:]),
        ),
        "sm90_prefill": suites.Area(("kernels/sm90/prefill.cu",), tests_of("prefill")),
        "sm90_nn": suites.Area(("kernels/sm90/nn.cu",), nn_tests),
        "sm90_grouped": suites.Area(grouped, grouped_tests),
        "sm90_grouped_few": suites.Area(
            ("kernels/sm90/grouped_few.cu", "kernels/sm90/grouped_roles.cuh"),
            (("kernels/sm90/test_sm90_grouped_few.py",), *grouped_tests),
        ),
        "grouped_units": suites.Area(
            ("kernels/units/grouped.cuh", "kernels/sm*/grouped_units.cu"),
            (("kernels/units/test_grouped_units.py",), *grouped_tests),
        ),
    }
