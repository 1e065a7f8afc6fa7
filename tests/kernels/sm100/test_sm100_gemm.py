"""Stage F of the B200 kernel's bring-up: the whole kernel, every instantiation, split_k and swap_ab, launched directly
on the emulated B200. `pytest --emulate sm_100 -k sm100` runs what the plan chooses, through the package.

SM100_SEEDS: emulated timings a case (4; the full proof takes 20). SM100_RANKED: timings of the competition's three
shapes (0; the full proof takes 3).
"""

from __future__ import annotations

import itertools
import os

import numpy
import pytest
from conftest import one_in
from emulate import Emulator
from harness.headers import Config
from harness.launch import chain, check_chain, load, ptx_of, timing
from harness.mutations import SEEDS as MANY_SEEDS
from harness.mutations import emulate, mutation
from harness.values import FP16, FP32
from sm100.gemm import CONFIGS, Product, cluster, mma_tile_m, splits, tmem_base
from sm100.schedules import Launch

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM100_SEEDS", 4))
RANKED_SEEDS = int(os.environ.get("SM100_RANKED", 0))
RANKED = ((128, 7168, 16384), (128, 4096, 7168), (128, 7168, 2048))


def ragged_sizes(config: Config, random: numpy.random.Generator, tiles: bool) -> tuple[int, int, int]:
    """Rows of mma_a, rows of mma_b, K; with `tiles` up to three tiles each way, or groups of them that share mma_a."""
    mma_m = int(random.integers(1, mma_tile_m(config) * (3 if tiles else 1) + 1))
    groups = int(random.integers(1, 4)) if tiles and config.mma_tile_n >= 64 else 1
    mma_n = config.mma_tile_n * (groups * config.multicast - 1) + int(random.integers(1, config.mma_tile_n + 1))
    k = 16 * int(random.integers(1, 100)) if config.cp_async else 64 * int(random.integers(1, 33))
    return mma_m, mma_n, k


@pytest.mark.parametrize("swap_ab", [False, True], ids=["mma_a_is_a", "mma_a_is_b"])
@pytest.mark.parametrize("name", CONFIGS)
def test_ragged_products(name: str, swap_ab: bool, random: numpy.random.Generator) -> None:
    """Any size, batches, more tiles than clusters: equal bits, and no write outside the result."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        seed = timing(random, case)  # each kind of timing once
        emulator, module = load(config, seed, tmem_base(seed, cluster(config)))
        mma_m, mma_n, k = ragged_sizes(config, random, tiles=True)
        l = int(random.integers(1, 4))
        form = {"linear": bool(config.cp_async and case % 2), "out_type": (FP32, FP16)[case // 2 % 2]}
        if not config.cp_async or case % 4 == 3:
            form["pitch"] = (k // 2 + 15) // 16 * 16 + 16  # padded rows
        product = Product(emulator, random, *((mma_n, mma_m) if swap_ab else (mma_m, mma_n)), k, l, **form)
        product.constant_b = case % 2 == 0
        most = product.schedule(config, swap_ab, 1).tiles // config.multicast
        clusters = int(random.integers(1, most + 1))
        print(f"seed {seed}: {product.m} x {product.n} x {k} x {l}, {clusters} clusters of {most}, {form}")
        product.launch(module, config, swap_ab, clusters=clusters)
        product.check()


@pytest.mark.parametrize("name,split", one_in(2, [(name, s) for name in CONFIGS for s in splits(CONFIGS[name])[1:]]))
def test_split_products(name: str, split: int, random: numpy.random.Generator) -> None:
    """Split-K, with a last stage that is not whole and split indices whose stage counts differ by one; either operand
    as mma_a."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        swap_ab = bool(random.integers(2))
        seed = timing(random, case)
        emulator, module = load(config, seed, tmem_base(seed, cluster(config, split)))
        mma_m, mma_n, _ = ragged_sizes(config, random, tiles=case % 2 == 0)
        k = 256 * split + (16 if config.cp_async else 64) * int(random.integers(1, 40))
        product = Product(
            emulator, random, *((mma_n, mma_m) if swap_ab else (mma_m, mma_n)), k, linear=bool(config.cp_async)
        )
        in_stages = True if case % 3 == 0 else None
        print(f"seed {seed}: {product.m} x {product.n} x {k}, in_stages {in_stages}")
        product.launch(module, config, swap_ab, split, in_stages=in_stages)
        product.check()


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.cta_group == 2])
def test_pairs_whose_second_cta_has_no_rows(name: str, random: numpy.random.Generator) -> None:
    """mma_a ends with the rows of a first CTA: the second one reads, and prefetches, nothing past the end."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    mma_m, mma_n = 128 * int(random.choice([1, 3])), config.mma_tile_n * config.multicast
    product = Product(emulator, random, mma_m, mma_n, 64 * int(random.integers(1, 20)))
    product.launch(module, config, swap_ab=False)
    product.check()


@pytest.mark.parametrize("name", CONFIGS)
def test_empty_k(name: str, random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    seed = timing(random, 1)
    emulator, module = load(config, seed, tmem_base(seed, cluster(config)))
    product = Product(emulator, random, 3, 5 + config.mma_tile_n * (config.multicast - 1), 0)
    product.launch(module, config, swap_ab=False)
    product.check()


@pytest.mark.parametrize("name", one_in(2, CONFIGS))
def test_back_to_back_calls(name: str, random: numpy.random.Generator) -> None:
    """Four calls with programmatic dependent launch, each reading as c what the previous one wrote. CTAs of the next
    call start early on the same SMs; they must neither block tensor memory allocation nor read too soon."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        seed = timing(random, case)
        split = splits(config)[case % len(splits(config))]
        emulator, module = load(config, seed, tmem_base(seed, 2))  # room for two CTAs an SM
        m, n, k = 2 * mma_tile_m(config), config.mma_tile_n * config.multicast, 256 * max(split, 3)
        calls = chain([Product(emulator, random, m, n, k, linear=bool(config.cp_async)) for _ in range(4)])
        print(f"seed {seed}: {m} x {n} x {k}, split {split}")
        for call in calls:
            call.launch(module, config, False, split, wait=False)
        emulator.synchronize()
        check_chain(calls)


def test_a_pair_ends_together() -> None:
    """One stage: the CTA that is done first waits for the other one, whose commits may still arrive."""
    launch = Launch("sm100_gemm_256x64", "pair, one stage", 64, 256, 1)
    assert not emulate(mutation("unchanged", launch), launch.ptx(), MANY_SEEDS)


def test_back_to_back_calls_of_different_kernels(random: numpy.random.Generator) -> None:
    """The same with a different instantiation each time, with and without split-K: kernels of 256 and 512 tensor memory
    columns, single CTAs and pairs, follow each other on the SMs."""
    for case in range(SEEDS):
        seed = timing(random, case)
        emulator = Emulator("sm_100", seed=seed)
        alone = [name for name, config in CONFIGS.items() if config.multicast == 1]  # 16 rows of mma_b are one tile
        chosen = [CONFIGS[name] for name in random.choice(alone, 6)]
        module = emulator.load(ptx_of(chosen[0]))
        calls = chain([Product(emulator, random, 300, 16, 768, linear=bool(config.cp_async)) for config in chosen])
        print(f"seed {seed}: {chosen}")
        for call, config in zip(calls, chosen):
            split = int(random.choice([split for split in splits(config) if split <= 2]))
            call.launch(module, config, False, split, wait=False)
        emulator.synchronize()
        check_chain(calls)


@pytest.mark.skipif(not RANKED_SEEDS, reason="SM100_RANKED=3 runs the competition's shapes: minutes")
@pytest.mark.parametrize("shape", RANKED, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize(
    "name", [f"sm100_gemm_{tile}" for tile in ("128x128", "256x128", "128x64", "256x64_multicast")]
)
def test_ranked_shapes(name: str, shape: tuple[int, int, int], random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    for case, split in itertools.product(range(RANKED_SEEDS), splits(config)[:3]):
        emulator, module = load(config, timing(random, case))
        product = Product(emulator, random, *shape)
        product.launch(module, config, True, split)
        product.check()
