#!/usr/bin/env python3
"""The whole proof of a family's GEMM kernel without a GPU, as a table (minutes to hours):

    python tests/kernels/prove.py schedules sm100              every launch, by the static verifier, in every schedule
    python tests/kernels/prove.py mutations sm90 mma_b split   mutations whose name contains one of the words, and what
                                                               finds them: the verifier, the emulator in 20 timings

The tests run a part (test_proof.py).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path[1:1] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "emulator")]

from harness import mutations, verify  # noqa: E402


def main(what: str, family: str, words: Sequence[str]) -> int:
    if what == "schedules":
        return verify.table(importlib.import_module(f"{family}.schedules").launches(), words)
    found = importlib.import_module(f"{family}.mutations")
    halves = getattr(found, "HALVES", [])
    return mutations.table([*found.CONTROLS, *halves, *found.MUTATIONS], words, halves)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("schedules", "mutations") or sys.argv[2] not in ("sm90", "sm100"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:3], sys.argv[3:]) > 0)
