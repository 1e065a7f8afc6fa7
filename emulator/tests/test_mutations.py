"""Mutations of the kernels in mutations/ are found within 20 seeds; the kernels without one are right in every seed.

A mutation is tried until the first seed that shows it. A kernel without one runs with 12 seeds, or, with
EMULATE_ALL_SEEDS=1, with 200, and fresh data every 20.
"""

from __future__ import annotations

import os
import shutil

import kernels  # in mutations/
import numpy
import pytest

SEEDS_TO_FIND = 20
CLEAN_SEEDS = 200 if os.environ.get("EMULATE_ALL_SEEDS") == "1" else 12
CLEAN = ("none", "first")  # first: the grid that the dependent one follows
APART = ("no_warp_sync_behind_scales",)  # found with EMULATE_LANES=apart

pytestmark = pytest.mark.skipif(
    not shutil.which("nvcc") and not os.environ.get("CI"), reason="nvcc is not here: the kernels cannot be compiled"
)


def fresh() -> numpy.random.Generator:
    return numpy.random.default_rng()


@pytest.mark.parametrize("lanes", ["together", "apart"])
@pytest.mark.parametrize("name", kernels.KERNELS)
def test_clean_kernels_are_right_at_every_time(name: str, lanes: str) -> None:
    for first in range(0, CLEAN_SEEDS, SEEDS_TO_FIND):
        runner = kernels.Runner(kernels.KERNELS[name], "none", fresh(), lanes=lanes)
        wrong = {
            seed: what
            for seed in range(first, min(first + SEEDS_TO_FIND, CLEAN_SEEDS))
            if (what := runner.outcome(seed))
        }
        assert not wrong


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_mutations_are_found(name: str) -> None:
    kernel, found, missed = kernels.KERNELS[name], {}, []
    for entry in kernels.entries(kernel):
        if entry in CLEAN:
            continue
        runner = kernels.Runner(kernel, entry, fresh(), lanes="apart" if entry in APART else "together")
        outcomes = ((seed, runner.outcome(seed)) for seed in range(SEEDS_TO_FIND))
        found[entry] = next(((seed, what) for seed, what in outcomes if what), None)
        if found[entry] is None:
            missed.append(entry)
    for entry, hit in found.items():
        seed, what = hit or (None, "not found")
        print(f"{entry:40} seed {seed}: {what.splitlines()[0][-100:]}")
    assert not missed


def test_there_are_enough_of_them() -> None:
    mutations = {entry for kernel in kernels.KERNELS.values() for entry in kernels.entries(kernel)} - set(CLEAN)
    assert len(mutations) >= 100, len(mutations)
    assert {"no_wait_ld", "no_fence_after_result"} <= mutations, sorted(mutations)
