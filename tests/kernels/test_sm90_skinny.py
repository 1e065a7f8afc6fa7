"""The mma.sync kernels of Hopper for a few rows, every instantiation, launched on the emulated H200 by themselves.

SM90_SEEDS is the number of timings of each case (1; a full proof takes 20).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy
import pytest
from harness import sass
from harness.launch import SHARED_LIMIT, chain, check_chain, load, timing
from harness.values import E4M3, NAN, TYPES, VALUES, rounded, stored, swizzle_scales
from sm90.skinny import CONFIGS, STEP_K, Product, schedule

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 1))
by_name = pytest.mark.parametrize("name", CONFIGS)
# One of each kind: tiles that touch two scale blocks of B and have an odd number of units; two units of A.
of_each_kind = pytest.mark.parametrize("name", CONFIGS if SEEDS > 1 else ["sm90_skinny_8x56", "sm90_skinny_16x32"])


@by_name
def test_ragged_products(name: str, random: numpy.random.Generator) -> None:
    """Any N, and K that is no multiple of a step, a chunk or 32; warps without a step and with several; batches; CTAs
    with one tile and with several: equal bits, nothing written out of bounds."""
    config = CONFIGS[name]
    for case in range(2 * SEEDS):
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
    """Every pair of codes and every scale of both operands, sign bit set or not: the exact product, rounded once."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    n, k, m = 256, 16 * 256, 8 * config.a_units
    product = Product(emulator, random, m, n, k)
    a, b = numpy.zeros((1, m, k), "u1"), numpy.zeros((1, n, k), "u1")
    rows = numpy.arange(n)
    position = (rows * 16 + random.integers(0, 16, n))[random.permutation(n)]  # of the one nonzero value in a row of B
    a[0, :, position] = (rows % 16)[:, None]
    b[0, rows, position] = rows // 16
    scales_a = numpy.broadcast_to(random.permutation(256).astype("u1"), (1, m, 256))
    scales_b = random.integers(0, 256, (1, n, 256), numpy.uint8)
    scales_b[scales_b & 127 == NAN] = 0x38
    scales_a = numpy.where(scales_a & 127 == NAN, 0x38, scales_a).astype("u1")
    for array, data in zip(product.arrays[::2], (a, b)):
        array.numpy()[:] = data[..., ::2] | data[..., 1::2] << 4
    for array, scales in zip(product.arrays[1::2], (scales_a, scales_b)):
        array.numpy()[:] = swizzle_scales(scales, NAN)
    product.launch(module, config)
    exact = VALUES[rows % 16] * VALUES[rows // 16]
    exact = exact * E4M3[scales_a[0, 0, position // 16] & 127] * E4M3[scales_b[0, rows, position // 16] & 127]
    assert (product.result() == exact.astype("f4")).all()


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
    """alpha by value, in memory, per column; c, also aliasing out; bias; each output type; all rows or one less, with a
    guard row behind the last one of each batch."""
    config = CONFIGS[name]
    most = 8 * config.a_units
    for case in range(6 * SEEDS):
        emulator, module = load(config, timing(random, case))
        out_type, bias_type = TYPES[case % 3], TYPES[int(random.integers(3))]
        product = Product(emulator, random, most, 133, 1024, l=2, out_type=out_type)
        columns, in_place = case % 2 == 1, case // 2 % 2 == 1
        alpha = random.choice([0.5, 1, -2, 4], 133 if columns else 1).astype("f4")
        bias = rounded(random.integers(-64, 65, 133), bias_type)
        c = rounded(random.integers(-64, 65, (2, most, 133)), out_type)
        product.keep(alpha, "alpha", alpha_stride=int(columns))
        product.keep(stored(bias, bias_type), "bias", bias_type=bias_type)
        product.place_c(c, -0.5, in_place)
        rows = most - case // 3 % 2
        product.extras["m"] = rows
        print(f"types {out_type}, {bias_type}, in place {in_place}, alpha of each column {columns}, {rows} rows")
        guard = product.out.numpy()[:, rows:].copy()
        product.launch(module, config, sms=9)
        assert (product.out.numpy()[:, rows:] == guard).all(), "a row behind the last one was written"
        expected = (alpha * product.expected()).astype("f4")
        expected = rounded(((expected - numpy.float32(0.5) * c).astype("f4") + bias).astype("f4"), out_type)
        assert (product.result() == expected)[:, :rows].all() and product.untouched()


@of_each_kind
def test_calls_in_a_row(name: str, random: numpy.random.Generator) -> None:
    """Dependent launches, each reading the previous output as c."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        calls = chain([Product(emulator, random, 8 * config.a_units, 260, 1536) for _ in range(3)])
        for call in calls:
            call.launch(module, config, sms=20, wait=False)
        emulator.synchronize()
        check_chain(calls)


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
