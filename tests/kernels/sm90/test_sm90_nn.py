"""The wgmma kernels of A . B on Hopper, every instantiation, launched on the emulated H200 by themselves.

SM90_SEEDS is the number of timings of each case (1; a full proof takes 20).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy
import pytest
from harness import sass
from harness.launch import load, timing
from harness.values import E4M3, FP32, NAN, TYPES, VALUES, rounded, stored
from sm90.nn import CONFIGS, STAGE_K, Product

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 1))
by_name = pytest.mark.parametrize("name", CONFIGS)
# One of each type; a full proof takes all.
of_each_type = pytest.mark.parametrize("name", CONFIGS if SEEDS > 1 else ["sm90_nn_fp16_32x256", "sm90_nn_bf16_32x256"])


@by_name
def test_ragged_products(name: str, random: numpy.random.Generator) -> None:
    """Any M, columns that end within a block of 64, any K; fewer stages than the pipeline has and more; batches;
    clusters of any size: equal bits, nothing written out of bounds."""
    config = CONFIGS[name]
    for case in range(2 * SEEDS):
        emulator, module = load(config, timing(random, case))
        m, n = int(random.integers(1, 2 * config.tile_m)), 16 * int(random.integers(1, 24))
        k = (config.stages + 1) * STAGE_K + int(random.integers(1, 200)) if case % 2 else int(random.integers(1, 300))
        l = 2 - case % 2
        split_k = 1 + case % 4 // 2 * int(random.integers(0, min(8, -(-k // STAGE_K))))
        print(f"{m} x {n} x {k} x {l}, split {split_k}")
        product = Product(emulator, random, config, m, n, k, l, out_type=TYPES[case % 3])
        if l > 1:
            product.share(int(random.integers(2)))
        product.launch(module, split_k)
        product.check()


@by_name
def test_splits(name: str, random: numpy.random.Generator) -> None:
    """Clusters of each size, of which some CTAs keep no rows; more stages of a CTA than the pipeline has."""
    config = CONFIGS[name]
    sizes = range(2, 9) if SEEDS > 1 else [2, int(random.integers(3, 9))]
    for case, split_k in enumerate(sizes):
        emulator, module = load(config, timing(random, case))
        k = STAGE_K * (split_k + int(random.integers(0, 3))) - int(random.integers(0, STAGE_K))
        if split_k == 2:
            k += 2 * config.stages * STAGE_K
        product = Product(emulator, random, config, int(random.integers(1, config.tile_m + 1)), 256, k)
        print(f"{product.m} rows, K {k}, split {split_k}")
        product.launch(module, split_k)
        product.check()


@of_each_type
def test_every_code_and_scale(name: str, random: numpy.random.Generator) -> None:
    """Each code under each scale, sign bit set or not: a unit matrix gives the exact values of B."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    product = Product(emulator, random, config, 256, 64, 256)
    product.a[:] = numpy.eye(256)[None]
    codes = random.permuted(numpy.tile(numpy.arange(16, dtype="u1"), (256, 4, 1)), axis=2).reshape(1, 256, 64)
    product.codes = codes[:, :, ::2] | codes[:, :, 1::2] << 4
    scales = numpy.stack([random.permutation(256) for _ in range(4)], axis=1).astype("u1")[None]
    product.scales = numpy.where(scales & 127 == NAN, 0x38, scales).astype("u1")
    product.launch(module)
    assert (product.result() == VALUES[codes] * numpy.repeat(E4M3[product.scales & 127], 16, axis=2)).all()


@of_each_type
def test_nan_scales(name: str, random: numpy.random.Generator) -> None:
    """A NaN scale makes its 16 columns NaN, even if the products sum to 0, and nothing else."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    product = Product(emulator, random, config, 20, 96, 200)
    product.codes[0, 130, 24:32] = 0
    product.scales[0, 130, 3] = NAN
    product.launch(module)
    nan = numpy.isnan(product.result())
    assert nan[:, :, 48:64].all() and nan.sum() == 20 * 16


@by_name
def test_epilogues(name: str, random: numpy.random.Generator) -> None:
    """alpha by value and in memory; c, also aliasing out; bias; each output type; rows on 4 bytes; columns that end
    within a tile; each with and without a cluster."""
    config = CONFIGS[name]
    for case in range(3 * SEEDS):
        emulator, module = load(config, timing(random, case))
        out_type, bias_type = TYPES[case % 3], TYPES[int(random.integers(3))]
        m, n = int(random.integers(1, config.tile_m + 1)), 256 + 16 * (case % 2)
        product = Product(emulator, random, config, m, n, 150, out_type=out_type, out_align=(16, 4)[case % 2])
        alpha = numpy.float32(random.choice([0.5, 1, -2, 4]))
        if case % 3 == 1:
            product.extras["alpha_value"] = alpha
        else:
            product.keep(numpy.array([alpha]), "alpha")
        expected = (alpha * product.expected()).astype("f4")
        if case % 3 < 2:
            c, bias = (rounded(random.integers(-64, 65, shape), kind) for shape, kind in
                       (((1, m, n), out_type), ((n,), bias_type)))  # fmt: skip
            product.place_c(c, -0.5, in_place=case % 2 == 0)
            product.keep(stored(bias, bias_type), "bias", bias_type=bias_type)
            expected = ((expected - numpy.float32(0.5) * c).astype("f4") + bias).astype("f4")
        split_k = 1 + 2 * int(random.integers(2))
        print(f"{m} x {n}, types {out_type}, {bias_type}, split {split_k}")
        product.launch(module, split_k)
        product.check(expected)


def test_bands_of_tiles(random: numpy.random.Generator) -> None:
    """More tiles along M than a band holds: each is computed once."""
    config = CONFIGS["sm90_nn_fp16_32x256"]
    emulator, module = load(config, timing(random, 0))
    product = Product(emulator, random, config, 512 + int(random.integers(1, 100)), 288, 16)
    product.launch(module)
    product.check()


@of_each_type
def test_empty_k(name: str, random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 2))
    product = Product(emulator, random, config, 3, 48, 0, out_type=FP32)
    product.launch(module)
    product.check(numpy.zeros((1, 3, 48)))


@pytest.mark.skipif("sm_90a" not in nvfp4.info()["archs"], reason="this build has no machine code for sm_90a")
@sass.needed
def test_machine_code(tmp_path: Path) -> None:
    """wgmma with A in registers, two groups of four in the mainloop; B by ldmatrix."""
    cubin = sass.find_cubin(Path(nvfp4._C.__file__), tmp_path, "nvfp4_sm90_nn_")
    kernels = sass.disassemble(cubin, "nvfp4_")
    for name, config in CONFIGS.items():
        kernel = kernels[name]
        assert kernel.stack == kernel.local == 0 and not kernel.all("LDL|STL|HMMA")
        products = kernel.all("HGMMA")
        opcode = f"HGMMA.64x{config.tile_m}x16.F32" + ".BF16" * config.bf16
        assert {i.opcode for i in products} == {opcode} and len(products) == 8
        assert [i.operands.endswith("gsb0") for i in products] == [False, False, False, True] * 2
        assert len(kernel.all("LDSM")) == 4
