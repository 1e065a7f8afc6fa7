"""What is mutated, family by family, and the tests of the default run that have to notice."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path

Arguments = tuple[str, ...]  # of pytest, in tests/


@dataclass(frozen=True)
class Family:
    files: Arguments  # patterns
    tests: tuple[Arguments, ...]  # what finds most in the shortest time first

    def sources(self, root: Path) -> list[str]:
        names = sorted(str(path.relative_to(root)) for path in (root / "csrc").rglob("*") if path.is_file())
        return [name for name in names if any(fnmatch.fnmatch(name, f"csrc/{part}") for part in self.files)]


def on(device: str, *arguments: str) -> Arguments:
    """On an emulated GPU."""
    return (f"--emulate={device}", *arguments)


def one_of_each_kind(device: str, family: str) -> Arguments:
    files = ("epilogue", "layouts", "nan", "shared_batches", "custom_kernel")
    return on(device, *(f"api/test_{name}.py" for name in files), "-k", family)


def ragged(device: str, family: str) -> Arguments:
    return on(device, "api/test_gemm_exact.py", "-k", f"equal_bits and {family}")


def guarded(target: str) -> tuple[Arguments, Arguments]:
    """Named and generated calls in guarded memory."""
    return ("api/test_guarded.py", "-k", target), ("api/test_generated.py", "-k", target)


def sm90(kernel: str, *more: str) -> tuple[Arguments, ...]:
    named, drawn = guarded("sm_90")
    return (
        (f"kernels/test_sm90_{kernel}.py", *more),
        ("kernels/test_dependent_launch.py",),
        named,
        one_of_each_kind("sm_90", "sm90"),
        on("sm_90", "api/test_gemm_bounds.py", "-k", "sm90"),
        drawn,
        ragged("sm_90", "sm90"),
    )


C_CORE = ("api/test_c_core.py", "-k", "sanitized")

FAMILIES = {
    "sm80": Family(
        ("kernels/sm80/*.cu", "kernels/sm80/*.cuh"),
        (
            guarded("sm_80")[0],
            one_of_each_kind("sm_80", "sm80"),
            on("sm_80", "api/test_gemm_bounds.py", "-k", "sm80"),
            on("sm_120", "kernels/test_decode.py"),  # where e4m3 is converted by an instruction
            guarded("sm_80")[1],
            ragged("sm_80", "sm80"),
        ),
    ),
    "sm90_gemm": Family(
        ("kernels/sm90/gemm.cu", "kernels/sm90/dequant.cu", "kernels/sm90/*.cuh"),
        (
            *sm90("gemm", "kernels/test_sm90_streamk.py"),
            ("kernels/test_sm90_prefill.py", "-k", "dequant"),
            ("kernels/test_proof.py", "-k", "test_every_schedule and sm90"),
        ),
    ),
    "sm90_gemv": Family(("kernels/sm90/gemv.cu",), sm90("gemv")),
    "sm90_skinny": Family(("kernels/sm90/skinny.cu",), sm90("skinny")),
    "sm90_prefill": Family(("kernels/sm90/prefill.cu",), sm90("prefill")),
    "sm90_nn": Family(
        ("kernels/sm90/nn.cu",),
        (("kernels/test_sm90_nn.py",), on("sm_90", "api/test_transpose_b.py"), *guarded("sm_90")),
    ),
    "sm100": Family(
        (
            "kernels/sm100/gemm.cu",
            "kernels/sm100/cp_async_producer.cuh",
            "kernels/sm100/epilogue.cuh",
            "kernels/sm100/schedule.cuh",
        ),
        (
            ("kernels/test_sm100_gemm.py",),
            ("kernels/test_dependent_launch.py",),
            guarded("sm_100")[0],
            one_of_each_kind("sm_100", "sm100"),
            on("sm_100", "api/test_gemm_bounds.py", "-k", "sm100"),
            ("kernels/test_sm100_stages.py",),
            guarded("sm_100")[1],
            ragged("sm_100", "sm100"),
            ("kernels/test_proof.py", "-k", "test_every_schedule and sm100"),
        ),
    ),
    "common": Family(
        ("kernels/common/[!d]*", "kernels/common/de*"),  # not dump.h, which is for the debug build
        (
            ("kernels/test_sm90_gemm.py", "kernels/test_sm90_gemv.py"),
            ("kernels/test_sm100_gemm.py",),
            ("kernels/test_sm90_prefill.py", "kernels/test_sm90_streamk.py"),
            on("sm_80", "kernels/test_decode.py"),
            ("api/test_guarded.py", "-k", "sm_80 or sm_90 or sm_100"),
            one_of_each_kind("sm_80", "sm80"),
            one_of_each_kind("sm_90", "sm90"),
            one_of_each_kind("sm_100", "sm100"),
            ("api/test_generated.py", "-k", "sm_80 or sm_90 or sm_100"),
        ),
    ),
    "quantize": Family(
        (
            "kernels/quantize/*.cu",
            "kernels/quantize/block.cuh",
            "kernels/quantize/quotient.h",
            "kernels/quantize/exponential.h",
            "kernels/quantize/plan.c",
        ),
        (
            on("sm_80", "api/test_quantize.py", "api/test_fused.py"),
            ("kernels/test_dequantize_unaligned.py",),
            ("api/test_guarded.py", "-k", "test_conversions and sm_80"),
            guarded("sm_80")[1],
        ),
    ),
    "cpu": Family(
        ("cpu/*",),
        (
            ("api/test_guarded.py", "-k", "cpu"),
            (
                "api/test_epilogue.py",
                "api/test_layouts.py",
                "api/test_nan.py",
                "api/test_quantize.py",
                "api/test_fused.py",
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
    "plan": Family(
        ("plan/*", "kernels/sm*/*plan*.[ch]", "kernels/sm*/model.h", "kernels/sm100/family.c"),
        (
            C_CORE,
            ("plan",),
            ("api/test_driver.py", "package/test_submission.py"),
            ("api/test_guarded.py", "-k", "sm_80 or sm_90 or sm_100"),
            one_of_each_kind("sm_90", "sm80 or sm90"),
            one_of_each_kind("sm_100", "sm100"),
            ("api/test_generated.py", "-k", "sm_80 or sm_90 or sm_100"),
        ),
    ),
    "check": Family(
        ("api/*.c", "common/*"),
        (
            ("api/test_binding.py", "api/test_binding_errors.py"),
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
    "bindings": Family(
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
    "driver": Family(
        ("driver/*", "kernels/quantize/kernels.c"),
        (
            ("api/test_driver.py",),
            C_CORE,
            ("api/test_guarded.py", "-k", "sm_80 or sm_90 or sm_100"),
            ("kernels/test_dump.py", "kernels/test_emulated.py", "-k", "dump or check_runs"),
            ("kernels/test_watchdog.py",),
            one_of_each_kind("sm_90", "sm90"),
        ),
    ),
}
