"""Stage F of the B200 kernel's bring-up: the whole kernel, every instantiation in every form, launched by hand on the
emulated B200, whether plan.c would choose it or not. The tests of products (`pytest --emulate sm_100 -k sm100`) run
what plan.c chooses, through the package.

SM100_SEEDS is the number of timings that each case is run with (4; the full proof takes 20), SM100_RANKED that of the
competition's three shapes (0; the full proof takes 3).
"""

from __future__ import annotations

import itertools
import os

import numpy
import pytest
from emulate import Emulator, Module
from sm100.launch import FP16, FP32, Config, Product, configs, gemm_ptx, only_entry

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM100_SEEDS", 4))
RANKED_SEEDS = int(os.environ.get("SM100_RANKED", 0))
CONFIGS = configs()
RANKED = ((128, 7168, 16384), (128, 4096, 7168), (128, 7168, 2048))


def load(config: Config, seed: int, cluster: int = 1) -> tuple[Emulator, Module]:
    """A B200 where tensor memory begins anywhere; for clusters at 0, since their CTAs wait for each other, and two
    clusters of which each holds the columns on one SM that the other wants would wait for ever. By itself that cannot
    come: no more CTAs fit an SM by shared memory than by tensor memory."""
    emulator = Emulator("sm_100", seed=seed, tmem_base=seed % 5 * 32 if cluster == 1 else 0)
    return emulator, emulator.load(only_entry(gemm_ptx(), config.kernel))


@pytest.fixture
def random(request: pytest.FixtureRequest) -> numpy.random.Generator:
    seed = [int(os.environ["NVFP4_TEST_SEED"]), *request.node.nodeid.encode()]
    return numpy.random.default_rng(seed)


def splits(config: Config) -> list[int]:
    return [split for split in (1, 2, 4, 8) if config.group * split <= 8 and config.tile_y >= 4 * split]


def ragged_sizes(config: Config, random: numpy.random.Generator, tiles: bool) -> tuple[int, int, int]:
    """Rows of x and y and K, of several tiles if asked."""
    x = int(random.integers(1, config.tile_x * (3 if tiles else 1) + 1))
    most_y = config.tile_y if config.tile_y < 64 else config.tile_y * (3 if tiles else 1)
    y = int(random.integers(1, most_y + 1))
    k = 16 * int(random.integers(1, 100)) if config.gather else 64 * int(random.integers(1, 33))
    return x, y, k


@pytest.mark.parametrize("swap_ab", [False, True], ids=["x_is_a", "x_is_b"])
@pytest.mark.parametrize("name", CONFIGS)
def test_ragged_products(name: str, swap_ab: bool, random: numpy.random.Generator) -> None:
    """Any size, batches, more tiles than clusters: equal bits, and nothing written beside the result."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        seed = int(random.integers(2**30)) * 4 + case % 4  # each kind of timing in turn
        emulator, module = load(config, seed, config.group)
        x, y, k = ragged_sizes(config, random, tiles=True)
        l = int(random.integers(1, 4))
        form = {"linear": bool(config.gather and case % 2), "out_type": (FP32, FP16)[case // 2 % 2]}
        if not config.gather or case % 4 == 3:
            form["pitch"] = (k // 2 + 15) // 16 * 16 + 16  # rows apart, as tensor maps and gather kernels take them
        product = Product(emulator, random, *((y, x) if swap_ab else (x, y)), k, l, **form)
        tiles = product.schedule(config, swap_ab, 1).tiles
        clusters = int(random.integers(1, tiles + 1))
        print(f"seed {seed}: {product.m} x {product.n} x {k} x {l}, {clusters} clusters for {tiles} tiles, {form}")
        product.launch(module, config, swap_ab, clusters=clusters)
        product.check()


@pytest.mark.parametrize("swap_ab", [False, True], ids=["x_is_a", "x_is_b"])
@pytest.mark.parametrize("name,split", [(name, s) for name in CONFIGS for s in splits(CONFIGS[name])[1:]])
def test_split_products(name: str, split: int, swap_ab: bool, random: numpy.random.Generator) -> None:
    """K cut between the units of a cluster, a last stage that is not whole, parts that differ by a stage."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        seed = int(random.integers(2**30)) * 4 + case % 4
        emulator, module = load(config, seed, config.group * split)
        x, y, _ = ragged_sizes(config, random, tiles=case % 2 == 0)
        k = 256 * split + (16 if config.gather else 64) * int(random.integers(1, 40))
        product = Product(emulator, random, *((y, x) if swap_ab else (x, y)), k, linear=bool(config.gather))
        in_stages = True if case % 3 == 0 else None
        print(f"seed {seed}: {product.m} x {product.n} x {k}, in_stages {in_stages}")
        product.launch(module, config, swap_ab, split, in_stages=in_stages)
        product.check()


@pytest.mark.parametrize("name", CONFIGS)
def test_empty_k(name: str, random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    emulator, module = load(config, int(random.integers(2**32)), config.group)
    product = Product(emulator, random, 3, 5, 0)
    product.launch(module, config, swap_ab=False)
    product.check()


@pytest.mark.parametrize("name", CONFIGS)
def test_calls_in_a_row(name: str, random: numpy.random.Generator) -> None:
    """Four calls under dependent launch, each reading as c what the one before wrote: the next one's CTAs are there
    early, on the same SMs, and must neither take tensor memory that is still wanted nor read too soon."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        seed = int(random.integers(2**30)) * 4 + case % 4
        split = splits(config)[case % len(splits(config))]
        emulator, module = load(config, seed, 2)  # room for two CTAs an SM
        x, y, k = 2 * config.tile_x, config.tile_y, 256 * max(split, 3)
        calls = [Product(emulator, random, x, y, k, linear=bool(config.gather)) for _ in range(4)]
        print(f"seed {seed}: {x} x {y} x {k}, split {split}")
        for before, call in zip([None, *calls], calls):
            call.add = before
            call.launch(module, config, False, split, wait=False)
        emulator.synchronize()
        total = 0
        for call in calls:
            total = total + call.expected()
            assert (call.result() == total).all()
            assert call.untouched()


def test_calls_of_different_kernels_in_a_row(random: numpy.random.Generator) -> None:
    """The same with another instantiation each time, with K cut or not: kernels of 256 and of 512 columns of tensor
    memory, single CTAs and pairs, take each other's places on the SMs."""
    for case in range(SEEDS):
        seed = int(random.integers(2**30)) * 4 + case % 4
        emulator = Emulator("sm_100", seed=seed)
        module = emulator.load(gemm_ptx())
        chosen = [CONFIGS[name] for name in random.choice(list(CONFIGS), 6)]
        calls = [Product(emulator, random, 300, 16, 768, linear=bool(config.gather)) for config in chosen]
        print(f"seed {seed}: {[config.name for config in chosen]}")
        for before, call, config in zip([None, *calls], calls, chosen):
            call.add = before
            split = int(random.choice([split for split in splits(config) if split <= 2]))
            call.launch(module, config, False, split, wait=False)
        emulator.synchronize()
        assert (calls[-1].result() == sum(call.expected() for call in calls)).all()
        assert all(call.untouched() for call in calls)


@pytest.mark.skipif(not RANKED_SEEDS, reason="SM100_RANKED=3 runs the competition's shapes in every form: minutes")
@pytest.mark.parametrize("shape", RANKED, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("name", ["sm100_gemm_128x128", "sm100_gemm_256x128", "sm100_gemm_128x64"])
def test_ranked_shapes(name: str, shape: tuple[int, int, int], random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    for case, split in itertools.product(range(RANKED_SEEDS), splits(config)[:3]):
        emulator, module = load(config, int(random.integers(2**30)) * 4 + case, config.group * split)
        product = Product(emulator, random, *shape)
        product.launch(module, config, True, split)
        product.check()
