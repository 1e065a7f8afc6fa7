"""An area of sources whose mutants the same tests have to notice, and tests that every backend has."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path

Arguments = tuple[str, ...]  # of pytest, in tests/


@dataclass(frozen=True)
class Area:
    files: Arguments  # patterns
    tests: tuple[Arguments, ...]  # what finds most in the shortest time first

    def sources(self, root: Path) -> list[str]:
        names = sorted(str(path.relative_to(root)) for path in (root / "csrc").rglob("*") if path.is_file())
        return [name for name in names if any(fnmatch.fnmatch(name, f"csrc/{part}") for part in self.files)]


def device_of(backend: str) -> str:
    """The emulated GPU of a backend."""
    return backend.replace("sm", "sm_")


def on(device: str, *arguments: str) -> Arguments:
    """On an emulated GPU."""
    return (f"--emulate={device}", *arguments)


def one_of_each_kind(backend: str, *also: str) -> Arguments:
    """also: other backends that the device runs."""
    files = ("epilogue", "scale_layouts", "nan", "shared_batches", "custom_kernel")
    chosen = " or ".join((*also, backend))
    return on(device_of(backend), *(f"ops/test_{name}.py" for name in files), "-k", chosen)


def ragged(backend: str) -> Arguments:
    return on(device_of(backend), "ops/test_gemm_exact.py", "-k", f"equal_bits and {backend}")


def guarded(target: str) -> tuple[Arguments, Arguments]:
    """Named and generated calls in guarded memory."""
    return ("ops/test_guarded_calls.py", "-k", target), ("ops/test_generated_calls.py", "-k", target)
