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
C_CORE: Arguments = ("api/test_c_core.py", "-k", "sanitized")

AREAS: dict[str, Area] = {}
for _module in KERNELS.values():
    AREAS |= _module.mutated(suites)
AREAS |= {
    "common": Area(
        ("kernels/common/[!d]*", "kernels/common/de*"),  # not dump.h, which is for the debug build
        (
            *(tests for module in KERNELS.values() for tests in module.NOTICE_COMMON),
            on("sm_80", "kernels/test_decode.py"),
            ("api/test_guarded.py", "-k", DEVICES),
            ("api/test_grouped_gemm.py", "api/test_gated_grouped_gemm.py", "-k", DEVICES),
            *map(one_of_each_kind, KERNELS),
            ("api/test_generated.py", "-k", DEVICES),
        ),
    ),
    "quantize": Area(
        (
            "kernels/quantize/*.cu",
            "kernels/quantize/block.cuh",
            "kernels/quantize/quotient.h",
            "kernels/quantize/plan.c",
        ),
        (
            on("sm_80", "api/test_quantize.py", "api/test_fused.py", "api/test_grouped_quantize.py"),
            ("api/test_grouped_quantize_driver.py",),
            ("kernels/test_dequantize_unaligned.py",),
            ("api/test_guarded.py", "-k", "test_conversions and sm_80"),
            guarded("sm_80")[1],
        ),
    ),
    "moe": Area(
        (
            "kernels/moe/*",
            "kernels/common/activation.h",
            "kernels/common/exponential.h",
            "cpu/moe*",
            "api/check_moe.c",
        ),
        (
            ("api/test_moe_ops.py", "-k", "not sm80 and not sm90 and not sm100"),
            on("sm_80", "api/test_moe_ops.py", "api/test_fused.py"),
            ("api/test_guarded.py", "-k", "steps and (cpu or sm_80)"),
            ("api/test_c_core.py", "-k", "sanitized and (exponential or header)"),
        ),
    ),
    "cpu": Area(
        ("cpu/*",),
        (
            ("api/test_guarded.py", "-k", "cpu"),
            ("api/test_grouped_gemm.py", "api/test_grouped_promises.py", "-k", "cpu"),
            (
                "api/test_epilogue.py",
                "api/test_layouts.py",
                "api/test_nan.py",
                "api/test_quantize.py",
                "api/test_fused.py",
                "api/test_grouped_quantize.py",
                "-k",
                "cpu",
            ),
            (
                "api/test_shared_batches.py",
                "api/test_determinism.py",
                "api/test_reference.py",
                "-k",
                "cpu or reference",
            ),
            ("api/test_gemm_exact.py", "api/test_gemm_bounds.py", "-k", "cpu"),
            ("api/test_binding.py", "api/test_binding_errors.py"),
            C_CORE,
            ("api/test_generated.py", "-k", "cpu"),
        ),
    ),
    "plan": Area(
        ("plan/*", "kernels/sm*/*plan*.[ch]", "kernels/sm*/model.h", "kernels/sm100/backend.c"),
        (
            C_CORE,
            ("plan",),
            ("api/test_driver.py", "api/test_driver_backends.py", "api/test_grouped_driver.py"),
            ("package/test_submission.py",),
            ("api/test_guarded.py", "-k", DEVICES),
            *(one_of_each_kind(name, "sm80") for name in KERNELS if name != "sm80"),
            ("api/test_generated.py", "-k", DEVICES),
        ),
    ),
    "check": Area(
        ("api/*.c", "common/*"),
        (
            ("api/test_binding.py", "api/test_binding_errors.py", "api/test_grouped_errors.py"),
            ("api/test_grouped_quantize.py", "-k", "cpu or errors"),
            C_CORE,
            ("api/test_fuzz.py", "api/test_torch_ops.py"),
            (
                "api/test_quantize.py",
                "api/test_fused.py",
                "api/test_guarded.py",
                "-k",
                "cpu or sm_80 or rule or aligned",
            ),
            ("api/test_driver.py", "api/test_custom_kernel.py", "plan/test_choice.py"),
            ("api/test_generated.py",),
        ),
    ),
    "bindings": Area(
        ("bindings/*/*.c", "bindings/*.c"),
        (
            ("api/test_binding.py", "api/test_binding_errors.py", "api/test_torch_abi.py"),
            ("api/test_torch_ops.py", "api/test_custom_kernel.py", "api/test_dlpack_arrays.py"),
            ("api/test_fuzz.py", "api/test_graphs.py", "api/test_reference.py", "api/test_model.py"),
            ("api/test_driver.py", "plan/test_choice.py", "plan/test_tune.py", "package/test_cli.py"),
            ("api/test_guarded.py", "-k", "cpu"),
            ("api/test_generated.py", "-k", "cpu"),
        ),
    ),
    "driver": Area(
        ("driver/*",),
        (
            ("api/test_driver.py", "api/test_driver_backends.py"),
            C_CORE,
            ("api/test_guarded.py", "-k", DEVICES),
            ("kernels/test_dump.py", "kernels/test_emulated.py", "-k", "dump or check_runs"),
            ("kernels/test_watchdog.py",),
            one_of_each_kind("sm90"),
        ),
    ),
}
