"""The sm120 kernels, every instantiation, split_k and swap_ab, launched directly on the emulated RTX 5090.
`pytest --emulate sm_120 -k sm120` runs what the plan chooses, through the package.

SM120_SEEDS: emulated timings a case (4; .ci/full takes 5, a release 20).
"""

from __future__ import annotations

import os

import numpy
import pytest
from conftest import one_in
from emulate import Emulator
from harness.headers import Config
from harness.launch import chain, check_chain, load, ptx_of, timing
from harness.values import BF16, FP16, FP32
from sm120.gemm import CONFIGS, PART_K, SHARED_LIMIT, Product, splits

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM120_SEEDS", 4))
FORMS = ("tma", "linear", "ragged", "unaligned")  # how operands are loaded


def form_of(kind: str, k: int) -> tuple[int, dict[str, int | bool]]:
    """K, and the layout that makes the kernel load so."""
    if kind == "tma":
        k = -(-k // 64) * 64
        return k, {"pitch": -(-k // 2 // 16) * 16 + 16}  # padded rows
    if kind == "linear":  # whole words of scales
        k = -(-k // 64) * 64
        return k, {"linear": True}
    if kind == "ragged":  # scales by bytes
        k = -(-k // 64) * 64 + 32
        return k, {"linear": True}
    return k, {"pitch": -(-k // 2 // 16) * 16 + 8}  # rows on 8 bytes, 128x4 scales


def sizes(config: Config, random: numpy.random.Generator) -> tuple[int, int, int]:
    """Rows of mma_a and of mma_b, up to two and three tiles, and K."""
    mma_m = int(random.integers(1, config.mma_tile_m * 2 + 1))
    mma_n = int(random.integers(1, config.mma_tile_n * 3 + 1))
    return mma_m, mma_n, 16 * int(random.integers(1, 70))


def test_shared_memory_of_a_cta() -> None:
    """No instantiation asks for more than the chip gives a CTA, the 1 KB that it keeps for itself aside."""
    assert max(config.shared_bytes for config in CONFIGS.values()) <= SHARED_LIMIT


@pytest.mark.parametrize("swap_ab", [False, True], ids=["mma_a_is_a", "mma_a_is_b"])
@pytest.mark.parametrize("name", CONFIGS)
def test_ragged_products(name: str, swap_ab: bool, random: numpy.random.Generator) -> None:
    """Any size, batches, more tiles than CTAs, every way to load: equal bits, and no write outside the result."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        mma_m, mma_n, k = sizes(config, random)
        kind = FORMS[(case + int(swap_ab)) % 4]
        k, form = form_of(kind, k)
        m, n = (mma_n, mma_m) if swap_ab else (mma_m, mma_n)
        out_type = (FP32, FP16, BF16)[case % 3]
        product = Product(emulator, random, m, n, k, int(random.integers(1, 4)), out_type, **form)
        product.constant_b = case % 2 == 0
        product.group_m = int(random.integers(1, 4))
        if case % 2:
            product.set_epilogue(random, "vector", FP16, "apart")
        most = product.schedule(config, swap_ab, 1).tiles
        clusters = int(random.integers(1, most + 1))
        print(f"{m} x {n} x {k} x {product.l}, {clusters} CTAs of {most}, {kind}")
        product.launch(module, config, swap_ab, clusters=clusters)
        product.check()


@pytest.mark.parametrize("name,split", one_in(2, [(name, s) for name in CONFIGS for s in splits(CONFIGS[name])[1:]]))
def test_split_products(name: str, split: int, random: numpy.random.Generator) -> None:
    """Split-K, with parts of K whose stages differ by one, a last stage that is not whole, either operand as mma_a."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        swap_ab = bool(random.integers(2))
        emulator, module = load(config, timing(random, case))
        mma_m, mma_n, _ = sizes(config, random)
        k, form = form_of(FORMS[case % 4], PART_K * split + 16 * int(random.integers(1, 40)))
        m, n = (mma_n, mma_m) if swap_ab else (mma_m, mma_n)
        product = Product(emulator, random, m, n, k, **form)
        product.constant_b = case % 2 == 0
        print(f"{m} x {n} x {k}, split {split}, {form}")
        product.launch(module, config, swap_ab, split)
        product.check()


@pytest.mark.parametrize("name", CONFIGS)
def test_order_of_additions(name: str, random: numpy.random.Generator) -> None:
    """Sums that round have the bits of another instantiation's, whichever operand is mma_a and for every split_k that
    both take: a row's bits do not depend on how many rows there are."""
    config, other = CONFIGS[name], CONFIGS["sm120_gemm_128x16"]
    for split in splits(config):
        k = PART_K * (split + 1) + 16
        results = []
        for kernel, swap_ab in ((other, True), (config, False), (config, True)):
            emulator, module = load(kernel, timing(random, len(results)))
            generator = numpy.random.default_rng(split)
            product = Product(emulator, generator, 9, 40, k, integer=False)
            product.launch(module, kernel, swap_ab, split)
            results.append(product.result())
        assert not (results[0] == numpy.round(results[0])).all(), "no sum rounds"
        assert all((result == results[0]).all() for result in results)


@pytest.mark.parametrize("name", CONFIGS)
def test_empty_k(name: str, random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    product = Product(emulator, random, 3, 5, 0)
    product.launch(module, config, swap_ab=False)
    product.check()


@pytest.mark.parametrize("name", one_in(2, CONFIGS))
def test_back_to_back_calls(name: str, random: numpy.random.Generator) -> None:
    """Four calls with programmatic dependent launch, each reading as c what the previous one wrote, of different
    kernels: CTAs of the next call start early and must not read too soon."""
    for case in range(SEEDS):
        emulator = Emulator("sm_120", seed=timing(random, case))
        chosen = [CONFIGS[name], *(CONFIGS[other] for other in random.choice(list(CONFIGS), 3))]
        module = emulator.load(ptx_of(chosen[0]))
        calls = chain([Product(emulator, random, 130, 20, 768, linear=case % 2 == 1) for _ in chosen])
        print([config.name for config in chosen])
        for call, config in zip(calls, chosen):
            call.launch(module, config, bool(random.integers(2)), int(random.choice([1, 2])), wait=False)
        emulator.synchronize()
        check_chain(calls)
