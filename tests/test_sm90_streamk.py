"""The helped instantiations of the Hopper kernel, launched by hand on the emulated H200: any number of helpers, shares
that begin and end anywhere along K and reach into any number of tiles, whole tiles before them. What plan.c makes of
them runs in test_sm90_plans.py, with the expansion that zeroes their flags.

SM90_SEEDS is the number of timings that each case is run with (1; a full proof takes 20).
"""

from __future__ import annotations

import numpy
import pytest
from sm90.launch import STAGE_K, Config, Help, Product
from test_sm90_gemm import BF16, CONFIGS, FP16, SEEDS, TYPES, load, product, random, rows, tail

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

HELPED = [name for name, config in CONFIGS.items() if config.numbers["helped"]]
by_name = pytest.mark.parametrize("name", HELPED)
inv_split_k = pytest.mark.parametrize("split", [1, 2])

assert random  # the fixture


def some_help(random: numpy.random.Generator, split: int, divided: int, stages: int, most: int = 9) -> Help:
    """helped: at least a stage, and leaves each part of K one. The share of a helper is long enough that there are no
    more than so many; one cluster in four has nothing to do."""
    helped = int(random.integers(1, stages - split + 1))
    least = -(-divided * helped // most)
    each = int(random.integers(least, divided * helped + 1))
    if random.integers(2):  # whole pieces
        each = helped * max(1, each // helped) if each >= helped else max(each, helped // max(1, helped // each))
    clusters = -(-divided * helped // (each * split)) + int(random.integers(4) == 0)
    return Help(clusters, helped, each)


@inv_split_k
@by_name
def test_divided_tiles(name: str, split: int, random: numpy.random.Generator) -> None:
    """Any cut: exact, and nothing written beside the result."""
    config = CONFIGS[name]
    for case in range(3 * SEEDS):
        emulator, module = load(config, random, case)
        swap_ab = bool(random.integers(2))
        x, y, l = rows(2 * config.tile_x, random), rows(2 * config.tile_y, random), 1 + case % 2
        stages = int(random.integers(split + 1, 2 * config.numbers["stages"] if case % 3 == 0 else 6))
        k = STAGE_K * stages - tail(random) // 2 // 16 * 16
        p = product(emulator, random, swap_ab, x, y, k, l, out_type=TYPES[case % 3], apart=16 * (case % 2))
        help = some_help(random, split, p.schedule(config, swap_ab, 1).tiles, stages)
        print(help)
        p.launch(module, config, swap_ab, split, help=help)
        p.check()


@by_name
def test_whole_tiles_before(name: str, random: numpy.random.Generator) -> None:
    """As many rounds of whole tiles as there are, by all CTAs, helpers too."""
    config = CONFIGS[name]
    for case in range(2 * SEEDS):
        emulator, module = load(config, random, case)
        divided, helpers, rounds, stages = int(random.integers(1, 4)), int(random.integers(1, 4)), 1 + case % 2, 3
        tiles = divided + rounds * (divided + helpers)
        p = product(emulator, random, True, config.tile_x * tiles - 5, rows(config.tile_y, random), STAGE_K * stages)
        helped = int(random.integers(1, stages))
        help = Help(helpers, helped, -(-divided * helped // helpers), tiles - divided)
        print(help)
        p.launch(module, config, True, 1, help=help)
        p.check()


@inv_split_k
@by_name
def test_every_share(name: str, split: int, random: numpy.random.Generator) -> None:
    """Of two tiles with three helped stages each: shares of 1 to 6 stages."""
    config = CONFIGS[name]
    for each in range(1, 7):
        emulator, module = load(config, random, each)
        p = product(emulator, random, True, 2 * config.tile_x, 5, STAGE_K * 5)
        p.launch(module, config, True, split, help=Help(-(-6 // (each * split)), 3, each))
        p.check()


@inv_split_k
@by_name
def test_epilogues(name: str, split: int, random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    for case in range(2 * SEEDS):
        emulator, module = load(config, random, case)
        whole = case % 2 == 0  # columns
        x, y = (config.tile_x if whole else rows(config.tile_x + 9, random)), rows(config.tile_y, random)
        p = product(emulator, random, True, x, y, 3 * STAGE_K, out_type=(FP16, BF16)[random.integers(2)])
        if whole:
            p.finish(random, alpha=("value", "one")[random.integers(2)])
        else:
            p.finish(random, "vector", (None, *TYPES)[random.integers(4)], ("none", "apart", "out")[random.integers(3)])
        p.launch(module, config, True, split, help=Help(2, 1, 1))
        p.check()


@inv_split_k
@by_name
def test_equal_bits_in_every_timing(name: str, split: int, random: numpy.random.Generator) -> None:
    """Sums that round: the order of partial_tiles is fixed, whoever comes first."""
    config = CONFIGS[name]
    found, state = set(), random.bit_generator.state
    for case in range(max(4, SEEDS)):
        emulator, module = load(config, random, case)
        same = numpy.random.Generator(type(random.bit_generator)())
        same.bit_generator.state = state
        p = product(emulator, same, True, 2 * config.tile_x - 3, config.tile_y, STAGE_K * 7 - 48, integer=False)
        p.launch(module, config, True, split, help=Help(-(-8 // (3 * split)), 4, 3))
        found.add(p.result().tobytes())
    assert len(found) == 1


@by_name
def test_helpers_wait_for_nobody(name: str, random: numpy.random.Generator) -> None:
    """Without the clusters that have a tile they end, and have counted their flags up."""
    config = CONFIGS[name]
    emulator, module = load(config, random, 1)
    p = product(emulator, random, True, 2 * config.tile_x, 8, STAGE_K * 4)
    help = Help(2, 2, 2)
    start(p, module, config, help, clusters=2)
    assert list(p.fixup_flags.numpy()) == [config.numbers["math_warpgroups"] * 4] * 2


def start(p: Product, module: object, config: Config, help: Help, clusters: int) -> None:
    """A launch of so many clusters of what `help` asks for."""
    schedule = p.schedule(config, True, 1, help=help)
    p.emulator.launch(
        module[config.kernel], grid=(1, clusters), block=config.threads,
        args=[bytes(p.problem()), bytes(schedule)], shared=config.shared_bytes, cluster=1, programmatic=True,
    )  # fmt: skip
