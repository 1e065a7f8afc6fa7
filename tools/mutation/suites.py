"""The parts of families of mutants, and tests that every family of kernels has."""

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


def device_of(family: str) -> str:
    """The emulated GPU of a family of kernels."""
    return family.replace("sm", "sm_")


def on(device: str, *arguments: str) -> Arguments:
    """On an emulated GPU."""
    return (f"--emulate={device}", *arguments)


def one_of_each_kind(family: str, *also: str) -> Arguments:
    """also: other families that the device runs."""
    files = ("epilogue", "scale_layouts", "nan", "shared_batches", "custom_kernel")
    chosen = " or ".join((*also, family))
    return on(device_of(family), *(f"ops/test_{name}.py" for name in files), "-k", chosen)


def ragged(family: str) -> Arguments:
    return on(device_of(family), "ops/test_gemm_exact.py", "-k", f"equal_bits and {family}")


def guarded(target: str) -> tuple[Arguments, Arguments]:
    """Named and generated calls in guarded memory."""
    return ("ops/test_guarded_calls.py", "-k", target), ("ops/test_generated_calls.py", "-k", target)
