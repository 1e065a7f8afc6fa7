"""The mma.sync kernels of Hopper for a few rows, every instantiation, launched on the emulated H200 by themselves.

SM90_SEEDS is the number of timings of each case (1; a full proof takes 20).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy
import pytest
from harness import sass
from harness.launch import SHARED_LIMIT, load, timing
from harness.values import NAN, TYPES, swizzle_scales
from sm90 import few_rows
from sm90.skinny import CONFIGS, STEP_K, Product, schedule

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 1))
by_name = pytest.mark.parametrize("name", CONFIGS)
# One of each kind: tiles that touch two scale blocks of B and have an odd number of units; two units of A.
of_each_kind = pytest.mark.parametrize("name", CONFIGS if SEEDS > 1 else ["sm90_skinny_8x56", "sm90_skinny_16x32"])


@by_name
def test_ragged_products(name: str, random: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any N, and K that is no multiple of a step, a chunk or 32; warps without a step and with several; batches; CTAs
    with one tile and with several: equal bits, nothing written out of bounds. Lanes of a warp in step and apart."""
    config = CONFIGS[name]
    for case in range(4 * SEEDS):
        monkeypatch.setenv("EMULATE_LANES", ("together", "apart")[case // 2 % 2])
        emulator, module = load(config, timing(random, case))
        m, l = int(random.integers(1, 8 * config.a_units + 1)), int(random.integers(1, 3))
        n = int(random.integers(1, (60, 400)[case % 2]))
        k = 16 * int(random.integers(1, 40)) + (0, 8 * STEP_K)[case % 2]
        pitch = (k // 2 + 15) // 16 * 16 + 16 * (case % 2)
        sms = int(random.choice([1, 3, 132]))
        print(f"{m} x {n} x {k} x {l}, {sms} SMs, rows {pitch} bytes apart")
        product = Product(emulator, random, m, n, k, l, out_type=TYPES[case % 3], pitch=pitch)
        product.launch(module, config, sms)
        product.check()


@of_each_kind
def test_every_code_and_scale(name: str, random: numpy.random.Generator) -> None:
    few_rows.every_code_and_scale(Product, CONFIGS[name], 8 * CONFIGS[name].a_units, random)


@of_each_kind
def test_nan_scales(name: str, random: numpy.random.Generator) -> None:
    """A NaN scale makes its row or column NaN, even if the products sum to 0, and nothing else."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    m = 8 * config.a_units - 1
    product = Product(emulator, random, m, 150, 1056)
    product.scales[1][0, 70, 64] = NAN
    product.arrays[3].numpy()[:] = swizzle_scales(product.scales[1], NAN)
    product.arrays[2].numpy()[0, 70] = 0
    product.scales[0][0, 2, 3] = NAN
    product.arrays[1].numpy()[:] = swizzle_scales(product.scales[0], NAN)
    product.launch(module, config)
    nan = numpy.isnan(product.result())
    assert nan[:, :, 70].all() and nan[:, 2].all() and nan.sum() == m + 149


@of_each_kind
def test_epilogues(name: str, random: numpy.random.Generator) -> None:
    for case in range(6 * SEEDS):
        few_rows.epilogue(Product, CONFIGS[name], 8 * CONFIGS[name].a_units, 1024, case, random)


@of_each_kind
def test_calls_in_a_row(name: str, random: numpy.random.Generator) -> None:
    for case in range(SEEDS):
        few_rows.calls_in_a_row(Product, CONFIGS[name], 8 * CONFIGS[name].a_units, case, random)


def test_shared_memory_of_schedules() -> None:
    """One tile a CTA fits an SM, with 8 rows of A several do."""
    for config in CONFIGS.values():
        for n, k in ((4096, 16384), (128256, 4096), (5, 16)):
            made, shared = schedule(config, n, k, 1, 132)
            assert made.tiles * 8 * config.b_units >= n
            assert shared <= SHARED_LIMIT or (config.a_units == 2 and n > 4096)


@sass.needed
def test_machine_code(tmp_path: Path) -> None:
    """No local memory; the loop over chunks is not unrolled, since cold instructions cost a microsecond: it contains
    the mma and scalings of one chunk."""
    cubin = sass.find_cubin(Path(nvfp4._C.__file__), tmp_path, "nvfp4_sm90_skinny_")
    kernels = sass.disassemble(cubin, "nvfp4_")
    for name, config in CONFIGS.items():
        kernel = kernels[name]
        assert kernel.stack == kernel.local == 0 and not kernel.all("LDL|STL")
        assert len(kernel.all("HMMA")) == 4 * config.a_units * -(-config.b_units // 2)
        assert len(kernel.all("HMUL2")) == 8 * (config.a_units + config.b_units)
