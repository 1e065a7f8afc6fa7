"""The table of backends (nvfp4._C.backends) as tests ask it."""

from __future__ import annotations

from typing import Any

from nvfp4 import _C

ROWS: dict[str, dict[str, Any]] = {row["name"]: row for row in _C.backends()}
ON_GPU = [name for name, row in ROWS.items() if row["min_capability"]]  # oldest architecture first
OWN = [name for name in ON_GPU if ROWS[name]["max_capability"]]  # whose kernels are for one architecture
LISTED = f"{', '.join(['auto', *ROWS][:-1])} or {list(ROWS)[-1]}"  # as messages do
QUOTED = f"None, {', '.join(map(repr, [*ROWS][:-1]))} or {[*ROWS][-1]!r}"  # as the front ends do


def capability(device: str) -> int:
    """90 of an emulated "sm_90"."""
    return int(device.removeprefix("sm_"))


def device_of(backend: str) -> str:
    """The oldest emulated GPU that runs it."""
    return f"sm_{ROWS[backend]['min_capability']}"


def runs_on(backend: str, compute_capability: int) -> bool:
    oldest, newest = (ROWS[backend][f"{end}_capability"] for end in ("min", "max"))
    return oldest is not None and oldest <= compute_capability and (newest is None or compute_capability <= newest)


def backends_of(device: str) -> tuple[str, ...]:
    """The backends that an emulated GPU runs, its own first."""
    return tuple(name for name in reversed(ON_GPU) if runs_on(name, capability(device)))


def max_rows(backend: str, a: str) -> int | None:
    """The most rows that an A of this dtype may have in gemm; None: any number."""
    rows: int | None = ROWS[backend]["a16_rows"]
    return rows if a in ("float16", "bfloat16") else None


def takes(backend: str, a: str = "uint8", transpose_b: bool = True, linear: bool = False, m: int = 1) -> bool:
    """Whether it multiplies M rows of an A of this dtype by B; linear: with linear scales, and wherever rows lie."""
    kinds = ROWS[backend]["linear_scales" if linear else "product_kinds"]
    most = max_rows(backend, a)
    return a in kinds.get("gemm" if transpose_b else "gemm_nn", []) and (most is None or m <= most)
