#!/usr/bin/env python3
"""The whole proof of a backend's GEMM kernel without a GPU, as a table (minutes to hours):

    python tests/kernels/prove.py schedules sm100              every launch, by the static verifier, in every schedule
    python tests/kernels/prove.py mutations sm90 mma_b split   mutations whose name contains one of the words, and what
                                                               finds them: the verifier, the emulator in 20 timings
    python tests/kernels/prove.py schedules sm100 --part 3/16  the third of 16 parts, for as many processes or machines

The tests run some of it (test_proof.py).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

TESTS = Path(__file__).resolve().parents[1]
sys.path[1:1] = [str(TESTS / "support"), str(TESTS.parent / "emulator")]

from harness import mutations, verify  # noqa: E402
from paths import proven_backends  # noqa: E402

Item = TypeVar("Item")


def part(text: str) -> tuple[int, int]:
    """(i, n) of "i/n"."""
    i, n = map(int, text.split("/"))
    if not 1 <= i <= n:
        raise argparse.ArgumentTypeError(f"{text}: a part is I/N with 1 <= I <= N")
    return i, n


def chosen(items: Sequence[Item], words: Sequence[str], part: tuple[int, int]) -> list[Item]:
    """Selects the items whose name contains one of the words; of these every n-th, so that a part has long and short
    ones."""
    i, n = part
    return [item for item in items if not words or any(word in item.name for word in words)][i - 1 :: n]


def main(what: str, backend: str, words: Sequence[str], part: tuple[int, int]) -> int:
    if what == "schedules":
        launches = list(importlib.import_module(f"{backend}.schedules").launches())
        return verify.table(chosen(launches, words, part))
    found = importlib.import_module(f"{backend}.mutations")
    halves = getattr(found, "HALVES", [])
    return mutations.table(chosen([*found.CONTROLS, *halves, *found.MUTATIONS], words, part), halves)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("schedules", "mutations"))
    parser.add_argument("backend", choices=proven_backends())
    parser.add_argument("words", nargs="*")
    parser.add_argument("--part", type=part, default=(1, 1), metavar="I/N")
    options = parser.parse_intermixed_args()
    sys.exit(main(options.what, options.backend, options.words, options.part) > 0)
