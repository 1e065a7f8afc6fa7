"""The sources that are mutated, area by area, and the tests of the default run that have to notice. Backends of GPUs
list theirs in tests/kernels/<backend>/backend.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import suites
from suites import Area, Arguments, device_of, guarded, on, one_of_each_kind

ROOT = Path(__file__).resolve().parents[2]


def kernels() -> dict[str, ModuleType]:
    """backend.py of each GPU backend, oldest architecture first."""
    found = {}
    for path in sorted(ROOT.glob("tests/kernels/sm*/backend.py"), key=lambda path: int(path.parent.name[2:])):
        spec = importlib.util.spec_from_file_location(f"backend_{path.parent.name}", path)
        assert spec is not None and spec.loader is not None
        found[path.parent.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[path.parent.name])
    return found


KERNELS = kernels()
DEVICES = " or ".join(map(device_of, KERNELS))
C_CORE: Arguments = ("core/test_c_core.py", "-k", "sanitized")

AREAS: dict[str, Area] = {}
for _module in KERNELS.values():
    AREAS |= _module.mutated(suites)
AREAS |= {
    "common": Area(
        ("kernels/common/[!d]*", "kernels/common/de*"),  # not dump.h, which is for the debug build
        (
            *(tests for module in KERNELS.values() for tests in module.NOTICE_COMMON),
            on("sm_80", "kernels/test_decode.py"),
            ("ops/test_guarded_calls.py", "-k", DEVICES),
            ("ops/test_grouped_gemm.py", "ops/test_gated_grouped_gemm.py", "-k", DEVICES),
            *map(one_of_each_kind, KERNELS),
            ("ops/test_generated_calls.py", "-k", DEVICES),
        ),
    ),
    "quantize": Area(
        (
            "kernels/quantize/*.cu",
            "kernels/quantize/block.cuh",
            "kernels/quantize/tiles.cuh",
            "kernels/quantize/quotient.h",
            "kernels/quantize/plan.c",
        ),
        (
            on(
                "sm_80",
                "ops/test_quantize.py",
                "ops/test_search.py",
                "ops/test_fused.py",
                "ops/test_grouped_quantize.py",
            ),
            ("core/test_grouped_quantize_driver.py",),
            ("kernels/test_dequantize_unaligned.py",),
            ("ops/test_guarded_calls.py", "-k", "test_conversions and sm_80"),
            guarded("sm_80")[1],
        ),
    ),
    "moe": Area(
        (
            "kernels/moe/*",
            "common/gating.h",
            "common/exponential.h",
            "cpu/moe*",
            "api/moe.c",
            "api/gated.c",
        ),
        (
            ("ops/test_moe.py", "-k", "not sm80 and not sm90 and not sm100"),
            on("sm_80", "ops/test_moe.py", "ops/test_fused.py"),
            ("ops/test_guarded_calls.py", "-k", "steps and (cpu or sm_80)"),
            ("core/test_c_core.py", "-k", "sanitized and (exponential or header)"),
        ),
    ),
    "cpu": Area(
        ("cpu/*",),
        (
            ("ops/test_guarded_calls.py", "-k", "cpu"),
            ("ops/test_grouped_gemm.py", "ops/test_grouped_invariance.py", "-k", "cpu"),
            (
                "ops/test_epilogue.py",
                "ops/test_scale_layouts.py",
                "ops/test_nan.py",
                "ops/test_quantize.py",
                "ops/test_fused.py",
                "ops/test_grouped_quantize.py",
                "-k",
                "cpu",
            ),
            (
                "ops/test_shared_batches.py",
                "ops/test_determinism.py",
                "ops/test_reference.py",
                "-k",
                "cpu or reference",
            ),
            ("ops/test_gemm_exact.py", "ops/test_gemm_bounds.py", "-k", "cpu"),
            ("bindings/test_python_module.py", "bindings/test_python_module_errors.py"),
            C_CORE,
            ("ops/test_generated_calls.py", "-k", "cpu"),
        ),
    ),
    "plan": Area(
        (
            "plan/*",
            "kernels/sm*/*plan*.[ch]",
            "kernels/units/*plan*",
            "kernels/sm*/model.h",
            "kernels/sm90/cards.c",
            "kernels/sm100/backend.c",
        ),
        (
            C_CORE,
            ("plan",),
            ("core/test_driver.py", "core/test_driver_backends.py", "core/test_grouped_driver.py"),
            ("tools/test_submission.py", "tools/test_fit_sm90.py"),
            ("ops/test_guarded_calls.py", "-k", DEVICES),
            *(one_of_each_kind(name, "sm80") for name in KERNELS if name != "sm80"),
            ("ops/test_generated_calls.py", "-k", DEVICES),
        ),
    ),
    "check": Area(
        ("api/*.c", "common/*"),
        (
            ("bindings/test_python_module.py", "bindings/test_python_module_errors.py", "ops/test_grouped_errors.py"),
            ("ops/test_grouped_quantize.py", "-k", "cpu or errors"),
            C_CORE,
            ("ops/test_fuzzed_calls.py", "bindings/test_torch_ops.py"),
            (
                "ops/test_quantize.py",
                "ops/test_fused.py",
                "ops/test_guarded_calls.py",
                "-k",
                "cpu or sm_80 or rule or aligned",
            ),
            ("core/test_driver.py", "ops/test_custom_kernel.py", "plan/test_plan_order.py"),
            ("ops/test_generated_calls.py",),
        ),
    ),
    "bindings": Area(
        ("bindings/*/*.c", "bindings/*.c", "contest/*.c"),
        (
            ("bindings/test_python_module.py", "bindings/test_python_module_errors.py", "bindings/test_torch_abi.py"),
            ("bindings/test_torch_ops.py", "ops/test_custom_kernel.py", "bindings/test_dlpack_arrays.py"),
            (
                "ops/test_fuzzed_calls.py",
                "bindings/test_graphs.py",
                "ops/test_reference.py",
                "models/test_sentence_model.py",
            ),
            ("core/test_driver.py", "plan/test_plan_order.py", "plan/test_tune.py", "cli/test_cli.py"),
            ("ops/test_guarded_calls.py", "-k", "cpu"),
            ("ops/test_generated_calls.py", "-k", "cpu"),
        ),
    ),
    "driver": Area(
        ("driver/*",),
        (
            ("core/test_driver.py", "core/test_driver_backends.py"),
            C_CORE,
            ("ops/test_guarded_calls.py", "-k", DEVICES),
            ("kernels/test_dump.py", "kernels/test_emulated.py", "-k", "dump or check_runs"),
            ("kernels/test_watchdog.py",),
            one_of_each_kind("sm90"),
        ),
    ),
}
