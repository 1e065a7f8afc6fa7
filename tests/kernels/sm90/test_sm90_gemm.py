"""The Hopper GEMM kernels without stream-K (test_sm90_streamk.py has those), every instantiation, launched on the
emulated H200 without the planner. The tests of products (`pytest --emulate sm_90 -k sm90`) run the planner's choice
through the package.

SM90_SEEDS is the number of timings of each case (1; a full proof takes 20).
"""

from __future__ import annotations

import os

import numpy
import pytest
from conftest import one_in
from emulate import Emulator
from harness.launch import SHARED_LIMIT, chain, check_chain, load, ptx_of, timing
from harness.values import BF16, FP16, TYPES
from sm90.gemm import CONFIGS, SPLITS, STAGE_K, Product, product, rows, tail

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 1))
NAMES = [name for name, c in CONFIGS.items() if not c.streamk]
by_name = pytest.mark.parametrize("name", NAMES)
by_swap = pytest.mark.parametrize("swap_ab", [False, True], ids=["mma_a_is_a", "mma_a_is_b"])


@by_swap
@by_name
def test_ragged_products(name: str, swap_ab: bool, random: numpy.random.Generator) -> None:
    """Any size, batches, padded rows, more tiles than clusters, K longer than the pipeline: exact, nothing written
    out of bounds."""
    config = CONFIGS[name]
    for case in range(3 * SEEDS):
        emulator, module = load(config, timing(random, case))
        if case % 3 == 0:  # one tile, K so long that the pipeline wraps around
            mma_m, mma_n = rows(config.mma_tile_m, random), rows(config.mma_tile_n, random)
            l, stages = 1, config.stages + 2
        else:
            mma_m, mma_n = rows(2 * config.mma_tile_m, random), rows(3 * config.mma_tile_n, random)
            l, stages = 1 + case % 2, 2
        k = STAGE_K * int(random.integers(0, stages)) + tail(random)
        p = product(emulator, random, swap_ab, mma_m, mma_n, k, l, out_type=TYPES[case % 3], apart=16 * (case % 2))
        tiles = p.schedule(config, swap_ab, 1).tiles
        p.launch(module, config, swap_ab, clusters=int(random.integers(1, tiles + 1)))
        p.check()


@pytest.mark.parametrize("split", SPLITS[1:])
@by_name
def test_split_products(name: str, split: int, random: numpy.random.Generator) -> None:
    """Split-K in a cluster: splits that differ by a stage, of one stage or none, a partial last stage; partials
    received behind the mbarriers or in the stages."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        swap_ab = bool(random.integers(2))
        emulator, module = load(config, timing(random, case + split))
        stages = split + int(random.integers(0, split)) if random.integers(3) else int(random.integers(0, split))
        k = STAGE_K * stages + tail(random)
        mma_m, mma_n = rows(config.mma_tile_m, random), rows((1 + (stages < split)) * config.mma_tile_n, random)
        fits = config.shared_bytes + config.partials_bytes(split) <= SHARED_LIMIT
        in_stages = bool(not fits or random.integers(2))
        print(f"split {split}, swap_ab {swap_ab}, in_stages {in_stages}")
        p = product(emulator, random, swap_ab, mma_m, mma_n, k, out_type=TYPES[random.integers(3)])
        p.launch(module, config, swap_ab, split, in_stages=in_stages)
        p.check()


@by_name
def test_empty_k(name: str, random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    for split in (1, 2):
        emulator, module = load(config, timing(random, split))
        p = product(emulator, random, False, 3, 5, 0)
        p.set_epilogue(random, c="apart")
        p.launch(module, config, False, split)
        p.check()


@by_swap
@by_name
def test_epilogues(name: str, swap_ab: bool, random: numpy.random.Generator) -> None:
    """alpha by value, in memory or per column; a bias of each type; c apart or aliasing out."""
    config = CONFIGS[name]
    for case in range(3 * SEEDS):
        emulator, module = load(config, timing(random, case))
        mma_m, mma_n = rows(config.mma_tile_m + 9, random), rows(config.mma_tile_n + 9, random)
        p = product(emulator, random, swap_ab, mma_m, mma_n, 144, out_type=TYPES[case % 3])
        form = {
            "alpha": ("vector", "one", "value")[case % 3],
            "bias": (None, *TYPES)[random.integers(4)],
            "c": ("none", "apart", "out")[random.integers(3)],
        }
        print(form)
        p.set_epilogue(random, **form)
        p.launch(module, config, swap_ab, 1 + case % 2)
        p.check()


@pytest.mark.parametrize("name,swap_ab", one_in(2, [(name, swap_ab) for name in NAMES for swap_ab in (False, True)]))
def test_whole_columns(name: str, swap_ab: bool, random: numpy.random.Generator) -> None:
    """The common case: 16-bit output, all columns of a tile, alpha alone. Output rows on 8 bytes or 2; tiles of one
    CTA, of two, or of so many that each keeps an odd number of column groups."""
    config = CONFIGS[name]
    for case in range(4 * SEEDS):
        emulator, module = load(config, timing(random, case))
        mma_m = config.mma_tile_m if swap_ab else rows(config.mma_tile_m, random)
        mma_n = rows(2 * config.mma_tile_n, random) if swap_ab else 2 * config.mma_tile_n
        split = (1, 2, int(random.choice(SPLITS[2:])), int(random.choice(SPLITS)))[case % 4]
        form = {"out_type": (FP16, BF16)[random.integers(2)], "out_align": 2 if case % 4 == 3 else 8}
        p = product(emulator, random, swap_ab, mma_m, mma_n, STAGE_K * split + 32, int(random.integers(1, 3)), **form)
        tiles = p.schedule(config, swap_ab, split).tiles
        clusters = int(random.integers(1, tiles + 1)) if split == 1 else tiles
        print(f"split {split}, {clusters} clusters for {tiles} tiles")
        p.set_epilogue(random, alpha=("value", "one")[random.integers(2)])
        p.launch(module, config, swap_ab, split, clusters=clusters)
        p.check()


@by_name
def test_equal_bits_in_every_timing(name: str, random: numpy.random.Generator) -> None:
    """Sums that round: the order of the partials is fixed, whatever the timing."""
    config, split = CONFIGS[name], int(random.integers(2, 6))
    mma_m, mma_n, k = config.mma_tile_m - 3, config.mma_tile_n, STAGE_K * split - 48
    found, state = set(), random.bit_generator.state
    for case in range(max(3, SEEDS)):
        emulator, module = load(config, timing(random, case))
        same = numpy.random.Generator(type(random.bit_generator)())
        same.bit_generator.state = state
        p = product(emulator, same, False, mma_m, mma_n, k, integer=False)
        p.launch(module, config, False, split)
        found.add(p.result().tobytes())
    assert len(found) == 1


@by_name
def test_calls_in_a_row(name: str, random: numpy.random.Generator) -> None:
    """Dependent launches, each reading the previous output as c: CTAs of the next launch start early and must wait."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        split = int(random.integers(1, 4))
        calls = chain([product(emulator, random, False, 130, 9, STAGE_K * max(split, 2)) for _ in range(3)])
        for call in calls:  # NumPy dequantizes mma_b; making its array would wait for the calls before
            call.schedule(config, False, split)
        for call in calls:
            call.launch(module, config, False, split, wait=False)
        emulator.synchronize()
        check_chain(calls)


def test_calls_of_different_kernels_in_a_row(random: numpy.random.Generator) -> None:
    for _ in range(SEEDS):
        emulator = Emulator("sm_90", seed=int(random.integers(2**30)))
        chosen = [CONFIGS[name] for name in random.choice([name for name, c in CONFIGS.items() if not c.streamk], 6)]
        module = emulator.load(ptx_of(chosen[0]))
        print(chosen)
        calls = chain([Product(emulator, random, 300, 16, 384) for _ in chosen])
        forms = [(bool(random.integers(2)), int(random.integers(1, 4))) for _ in chosen]
        for call, config, (swap_ab, split) in zip(calls, chosen, forms):
            call.schedule(config, swap_ab, split)
        for call, config, (swap_ab, split) in zip(calls, chosen, forms):
            call.launch(module, config, swap_ab, split, wait=False)
        emulator.synchronize()
        check_chain(calls)
