"""The mma.sync kernels of csrc/kernels/units for a few rows, every instantiation of every backend, launched on its
emulated GPU by themselves.

UNITS_SEEDS is the number of timings of each case (1; a full proof takes 20).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy
import pytest
from harness import few_rows, sass
from harness.headers import headers_of
from harness.launch import load, shared_limit, timing
from harness.values import BF16, NAN, TYPES, swizzle_scales
from units.gemm import BACKENDS, CONFIGS, STEP_K, Product, products_of, schedule

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("UNITS_SEEDS", 1))
by_name = pytest.mark.parametrize("name", CONFIGS)
# One of each type of A, and both numbers of units of A.
of_each_kind = pytest.mark.parametrize(
    "name", [name for name in CONFIGS if SEEDS > 1 or name.endswith(("_units_8", "_fp16_16", "_bf16_8"))]
)


@by_name
def test_ragged_products(name: str, random: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any N, with and without a partial block of B, and K that is no multiple of a step, an atom or 32; warps without a
    step and with several; batches; CTAs with one unit and with several passes: equal bits, nothing written out of
    bounds. Lanes of a warp in step and apart."""
    config = CONFIGS[name]
    for case in range(4 * SEEDS):
        monkeypatch.setenv("EMULATE_LANES", ("together", "apart")[case // 2 % 2])
        emulator, module = load(config, timing(random, case))
        m, l = int(random.integers(1, 8 * config.a_units + 1)), int(random.integers(1, 3))
        n = int(random.integers(1, (60, 400)[case % 2]))
        if case % 4 == 3:
            n = n // 128 * 128 + 128
        k = 16 * int(random.integers(1, 40)) + (0, 8 * STEP_K)[case % 2]
        pitch = (k // 2 + 15) // 16 * 16 + 16 * (case % 2)
        sms, max_pairs = int(random.choice([1, 3, 132])), int(random.integers(0, 4))
        print(f"{m} x {n} x {k} x {l}, {sms} SMs, rows {pitch} bytes apart, {max_pairs or 'all'} pairs a pass")
        product = products_of(config)(emulator, random, m, n, k, l, out_type=TYPES[case % 3], pitch=pitch)
        product.launch(module, config, sms, max_pairs=max_pairs)
        product.check()


@pytest.mark.parametrize("name", [name for name in CONFIGS if CONFIGS[name].a == 0])
def test_every_code_and_scale(name: str, random: numpy.random.Generator) -> None:
    few_rows.every_code_and_scale(products_of(CONFIGS[name]), CONFIGS[name], 8 * CONFIGS[name].a_units, random)


@pytest.mark.parametrize("name", [name for name in CONFIGS if CONFIGS[name].a])
def test_every_code_and_scale_of_b(name: str, random: numpy.random.Generator) -> None:
    """With 16-bit numbers of all significant bits, from the smallest normal ones of fp16 on: the exact product."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    m, n, k = 8 * config.a_units, 256, 16 * 256
    product = products_of(config)(emulator, random, m, n, k)
    bits = 7 if product.a_type == BF16 else 10
    exact = few_rows.place_every_code_and_scale_of_b(product, (1, m, k), n, bits, random)
    product.launch(module, config)
    assert (product.result() == exact.astype("f4")).all()


@of_each_kind
def test_nan_scales(name: str, random: numpy.random.Generator) -> None:
    """A NaN scale makes its row or column NaN, even if the products sum to 0, and nothing else. So does NaN in a 16-bit
    A."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    m = 8 * config.a_units - 1
    product = products_of(config)(emulator, random, m, 150, 1056)
    product.scales[1][0, 70, 64] = NAN
    product.arrays[3].numpy()[:] = swizzle_scales(product.scales[1], NAN)
    product.arrays[2].numpy()[0, 70] = 0
    if config.a:
        product.values[0, 2, 50] = numpy.nan
        product.place_a()
    else:
        product.scales[0][0, 2, 3] = NAN
        product.arrays[1].numpy()[:] = swizzle_scales(product.scales[0], NAN)
    product.launch(module, config)
    nan = numpy.isnan(product.result())
    assert nan[:, :, 70].all() and nan[:, 2].all() and nan.sum() == m + 149


@of_each_kind
def test_epilogues(name: str, random: numpy.random.Generator) -> None:
    for case in range(6 * SEEDS):
        few_rows.epilogue(products_of(CONFIGS[name]), CONFIGS[name], 8 * CONFIGS[name].a_units, 1024, case, random)


@of_each_kind
def test_calls_in_a_row(name: str, random: numpy.random.Generator) -> None:
    for case in range(SEEDS):
        few_rows.calls_in_a_row(products_of(CONFIGS[name]), CONFIGS[name], 8 * CONFIGS[name].a_units, case, random)


@of_each_kind
def test_rows_do_not_depend_on_their_number(name: str, random: numpy.random.Generator) -> None:
    """Sums that round: the bits of a row are those of the row alone, by any instantiation of its type of A."""
    config = CONFIGS[name]
    others = [other for other in CONFIGS.values() if other.a == config.a]
    emulator, module = load(config, timing(random, 0))
    n, k = 136, 9 * STEP_K + 32
    product = products_of(config)(emulator, random, 5, n, k, integer=False)
    product.launch(module, config, sms=5)
    for other in others:
        emulator, module = load(other, timing(random, 1))
        alone = products_of(other)(emulator, random, 1, n, k, integer=False)
        for array, of in list(zip(alone.arrays, product.arrays))[1:]:
            array.numpy()[...] = of.numpy()
        if config.a:
            alone.values = product.values[:, :1]
            alone.place_a()
        else:
            alone.arrays[0].numpy()[...] = product.arrays[0].numpy()[:, :1]
        alone.launch(module, other, sms=int(random.integers(1, 20)), max_pairs=1)
        assert (alone.result()[0, 0].view("u4") == product.result()[0, 0].view("u4")).all()


def test_shared_memory_of_schedules() -> None:
    """Any product fits an SM."""
    for config in CONFIGS.values():
        for n, k in ((4096, 16384), (128256, 4096), (5, 16)):
            assert schedule(config, n, k, 1, 132)[1] <= shared_limit(config)


@sass.needed
@pytest.mark.parametrize("backend", BACKENDS)
def test_machine_code(backend: str, tmp_path: Path) -> None:
    """No local memory; the loop over pairs is not unrolled, since cold instructions cost a microsecond: the mma and
    scalings of one pair and of one unit, and of a step of NVFP4 A. A CTA fits the registers."""
    cubin = sass.find_cubin(Path(nvfp4._C.__file__), tmp_path, f"nvfp4_{backend}_units_")
    kernels = sass.disassemble(cubin, "nvfp4_")
    for name, config in headers_of(backend).configs("units").items():
        kernel = kernels[name]
        assert kernel.stack == kernel.local == 0 and not kernel.all("LDL|STL")
        assert not kernel.all(r"F2F\."), "results are rounded by F2FP"
        assert len(kernel.all("HMMA")) == 2 * 16 * config.a_units
        scalings = len(kernel.all(r"HMUL2|HFMA2\.(MMA\.)?BF16"))
        assert scalings >= 3 * 32 + 32 * config.a_units * (config.a == 0)
        assert scalings <= 3 * 32 + 32 * config.a_units * (config.a == 0) + 8
        assert kernel.registers * config.threads <= 65536


@pytest.mark.parametrize("name", [name for name in CONFIGS if CONFIGS[name].headers.name != "sm90"])
def test_bits_are_those_of_hopper(name: str, random: numpy.random.Generator) -> None:
    """Sums that round, of a few rows: the instantiation of sm90 for as many rows has the same bits, though it decodes B
    otherwise."""
    config = CONFIGS[name]
    of_hopper = CONFIGS[name.replace(config.headers.name, "sm90")]
    given: Product | None = None
    results = []
    for one in (config, of_hopper):
        emulator, module = load(one, timing(random, 0))
        product = products_of(one)(emulator, random, 8 * one.a_units, 200, 9 * STEP_K + 32, integer=False)
        given = given or product
        for array, of in list(zip(product.arrays, given.arrays))[1:]:
            array.numpy()[...] = of.numpy()
        product.values = given.values = random.standard_normal(given.values.shape) if not results else given.values
        product.a_pitch = given.a_pitch
        product.place_a()
        product.launch(module, one, sms=7)
        results.append(product.result().view("u4").copy())
    assert (results[0] == results[1]).all()
