"""The stream-K instantiations of the Hopper kernel, launched on the emulated H200 without the planner: any number of
workers, ranges that begin and end anywhere along K and cover any number of tiles, data-parallel tiles before them.
tests/plan/test_sm90_candidates.py runs the planner's choice, with the dequantize pre-pass that zeroes the flags.

SM90_SEEDS is the number of timings of each case (1; a full proof takes 20).
"""

from __future__ import annotations

import os

import numpy
import pytest
from harness.launch import load, timing
from harness.values import BF16, FP16, TYPES
from sm90.gemm import CONFIGS, STAGE_K, StreamK, product, rows, tail

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 1))
STREAMK = [name for name, config in CONFIGS.items() if config.streamk]
by_name = pytest.mark.parametrize("name", STREAMK)
by_split_k = pytest.mark.parametrize("split", [1, 2])


def random_streamk(random: numpy.random.Generator, split: int, tiles: int, stages: int, most: int = 9) -> StreamK:
    """streamk_stages: at least one, and leaves one to each split. worker_stages is long enough that there are at most
    `most` workers. One division in four has an idle worker cluster."""
    streamk_stages = int(random.integers(1, stages - split + 1))
    least = -(-tiles * streamk_stages // most)
    worker_stages = int(random.integers(least, tiles * streamk_stages + 1))
    if random.integers(2):  # whole partial tiles
        if worker_stages >= streamk_stages:
            worker_stages = streamk_stages * max(1, worker_stages // streamk_stages)
        else:
            worker_stages = max(worker_stages, streamk_stages // max(1, streamk_stages // worker_stages))
    clusters = -(-tiles * streamk_stages // (worker_stages * split)) + int(random.integers(4) == 0)
    return StreamK(clusters, streamk_stages, worker_stages)


@by_split_k
@by_name
def test_streamk_tiles(name: str, split: int, random: numpy.random.Generator) -> None:
    """Any division: exact, and nothing written out of bounds."""
    config = CONFIGS[name]
    for case in range(3 * SEEDS):
        emulator, module = load(config, timing(random, case))
        swap_ab = bool(random.integers(2))
        mma_m, mma_n, l = rows(2 * config.mma_tile_m, random), rows(2 * config.mma_tile_n, random), 1 + case % 2
        stages = int(random.integers(split + 1, 2 * config.stages if case % 3 == 0 else 6))
        k = STAGE_K * stages - tail(random) // 2 // 16 * 16
        p = product(emulator, random, swap_ab, mma_m, mma_n, k, l, out_type=TYPES[case % 3], apart=16 * (case % 2))
        streamk = random_streamk(random, split, p.schedule(config, swap_ab, 1).tiles, stages)
        print(streamk)
        p.launch(module, config, swap_ab, split, streamk=streamk)
        p.check()


@by_name
def test_data_parallel_tiles_before(name: str, random: numpy.random.Generator) -> None:
    """One or two waves of data-parallel tiles by all CTAs, workers included."""
    config = CONFIGS[name]
    for case in range(2 * SEEDS):
        emulator, module = load(config, timing(random, case))
        streamk_tiles, workers, waves, stages = int(random.integers(1, 4)), int(random.integers(1, 4)), 1 + case % 2, 3
        tiles = streamk_tiles + waves * (streamk_tiles + workers)
        p = product(
            emulator, random, True, config.mma_tile_m * tiles - 5, rows(config.mma_tile_n, random), STAGE_K * stages
        )
        streamk_stages = int(random.integers(1, stages))
        worker_stages = -(-streamk_tiles * streamk_stages // workers)
        streamk = StreamK(workers, streamk_stages, worker_stages, tiles - streamk_tiles)
        print(streamk)
        p.launch(module, config, True, 1, streamk=streamk)
        p.check()


@by_split_k
@by_name
def test_every_worker_stages(name: str, split: int, random: numpy.random.Generator) -> None:
    """Two tiles with three stream-K stages each; workers of 1 to 6 stages."""
    config = CONFIGS[name]
    for worker_stages in range(1, 7):
        emulator, module = load(config, timing(random, worker_stages))
        p = product(emulator, random, True, 2 * config.mma_tile_m, 5, STAGE_K * 5)
        p.launch(module, config, True, split, streamk=StreamK(-(-6 // (worker_stages * split)), 3, worker_stages))
        p.check()


@by_split_k
@by_name
def test_epilogues(name: str, split: int, random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    for case in range(2 * SEEDS):
        emulator, module = load(config, timing(random, case))
        full_columns = case % 2 == 0
        mma_m, mma_n = (
            (config.mma_tile_m if full_columns else rows(config.mma_tile_m + 9, random)),
            rows(config.mma_tile_n, random),
        )
        p = product(emulator, random, True, mma_m, mma_n, 3 * STAGE_K, out_type=(FP16, BF16)[random.integers(2)])
        if full_columns:
            p.set_epilogue(random, alpha=("value", "one")[random.integers(2)])
        else:
            p.set_epilogue(
                random, "vector", (None, *TYPES)[random.integers(4)], ("none", "apart", "out")[random.integers(3)]
            )
        p.launch(module, config, True, split, streamk=StreamK(2, 1, 1))
        p.check()


@by_split_k
@by_name
def test_equal_bits_in_every_timing(name: str, split: int, random: numpy.random.Generator) -> None:
    """Sums that round: the order of the partial tiles is fixed, whatever the timing."""
    config = CONFIGS[name]
    found, state = set(), random.bit_generator.state
    for case in range(max(4, SEEDS)):
        emulator, module = load(config, timing(random, case))
        same = numpy.random.Generator(type(random.bit_generator)())
        same.bit_generator.state = state
        p = product(emulator, same, True, 2 * config.mma_tile_m - 3, config.mma_tile_n, STAGE_K * 7 - 48, integer=False)
        p.launch(module, config, True, split, streamk=StreamK(-(-8 // (3 * split)), 4, 3))
        found.add(p.result().tobytes())
    assert len(found) == 1


@by_name
def test_workers_wait_for_nobody(name: str, random: numpy.random.Generator) -> None:
    """Launched without the clusters that own tiles, workers end and raise their flags."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    p = product(emulator, random, True, 2 * config.mma_tile_m, 8, STAGE_K * 4)
    streamk = StreamK(2, 2, 2)
    p.launch(module, config, True, 1, clusters=2, streamk=streamk)
    assert list(p.fixup_flags.numpy()) == [config.math_warpgroups * 4] * 2
