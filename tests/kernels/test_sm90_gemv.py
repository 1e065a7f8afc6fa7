"""The small-M kernels of Hopper, every instantiation, launched on the emulated H200 without the planner.

SM90_SEEDS is the number of timings of each case (1; a full proof takes 20).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest
from harness import sass
from harness.launch import SHARED_LIMIT, chain, check_chain, load, timing
from harness.values import E4M3, NAN, TYPES, VALUES, rounded, stored, swizzle_scales
from paths import CSRC
from sm90.gemv import CONFIGS, FAMILY, Product, schedule

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 1))
by_name = pytest.mark.parametrize("name", CONFIGS)


@by_name
@pytest.mark.parametrize("linear", [False, True], ids=["128x4", "linear"])
def test_ragged_products(name: str, linear: bool, random: numpy.random.Generator) -> None:
    """Any N and K, rows on 16 bytes or on 8, batches, few SMs and many: equal bits, nothing written out of bounds."""
    config = CONFIGS[name]
    for case in range(8 * SEEDS):
        emulator, module = load(config, timing(random, case))
        m, l = int(random.integers(1, config.rows + 1)), int(random.integers(1, 4))
        n = int(random.integers(1, (40, 300)[case % 2]))
        k = int(random.choice([16, 32, 64, 512])) * int(random.integers(1, 7)) + int(random.choice([0, 512, 4096]))
        form: dict[str, int] = {"out_type": TYPES[case % 3]}
        if case % 4 == 1:
            form["pitch"] = (k // 2 + 15) // 16 * 16 + 16
        sms = int(random.choice([1, 3, 7, 132]))
        print(f"{m} x {n} x {k} x {l}, {sms} SMs, {form}")
        product = Product(emulator, random, m, n, k, l, linear=linear, **form)
        product.launch(module, config, sms)
        product.check()


@by_name
def test_every_split_k(name: str, random: numpy.random.Generator) -> None:
    """Split-K over any number of warps, splits that differ by a step, a partial last step."""
    config = CONFIGS[name]
    for case, split_k in enumerate((1, 2, 4, 8, 16)[: config.warps.bit_length()]):
        emulator, module = load(config, timing(random, case))
        k = 512 * (split_k + int(random.integers(0, split_k + 2))) + 32 * int(random.integers(1, 16))
        product = Product(emulator, random, config.rows, 200, k)
        print(f"split_k {split_k}, K {k}")
        product.launch(module, config, sms=int(random.choice([5, 9, 40])), split_k=split_k)
        product.check()


@by_name
def test_every_code_and_scale(name: str, random: numpy.random.Generator) -> None:
    """Every pair of codes and every scale of both operands, sign bit set or not: the exact product, rounded once."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    n, k = 256, 16 * 256
    product = Product(emulator, random, config.rows, n, k)
    a, b = numpy.zeros((1, config.rows, k), "u1"), numpy.zeros((1, n, k), "u1")
    rows = numpy.arange(n)
    position = (rows * 16 + random.integers(0, 16, n))[random.permutation(n)]  # of the one nonzero value in a row of B
    a[0, :, position] = (rows % 16)[:, None]
    b[0, rows, position] = rows // 16
    scales_a = numpy.broadcast_to(random.permutation(256).astype("u1"), (1, config.rows, 256))
    scales_b = random.integers(0, 256, (1, n, 256), numpy.uint8)
    scales_b[scales_b & 127 == NAN] = 0x38
    nans = scales_a & 127 == NAN
    scales_a = numpy.where(nans, 0x38, scales_a).astype("u1")
    for array, data in zip(product.arrays[::2], (a, b)):
        array.numpy()[:] = data[..., ::2] | data[..., 1::2] << 4
    for array, scales in zip(product.arrays[1::2], (scales_a, scales_b)):
        array.numpy()[:] = swizzle_scales(scales, NAN)
    product.launch(module, config)
    exact = VALUES[rows % 16] * VALUES[rows // 16]
    exact = exact * E4M3[scales_a[0, 0, position // 16] & 127] * E4M3[scales_b[0, rows, position // 16] & 127]
    assert (product.result() == exact.astype("f4")).all()


@by_name
def test_nan_scales(name: str, random: numpy.random.Generator) -> None:
    """A NaN scale makes its row or column NaN, even if the products sum to 0, and nothing else."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    product = Product(emulator, random, config.rows, 150, 1040)
    product.scales[1][0, 70, 64] = NAN
    product.scales[0][0, 0, 3] = 0x38
    product.arrays[3].numpy()[:] = swizzle_scales(product.scales[1], NAN)
    product.arrays[2].numpy()[0, 70] = 0
    product.launch(module, config)
    nan = numpy.isnan(product.result())
    assert nan[:, :, 70].all() and nan.sum() == config.rows


@by_name
@pytest.mark.parametrize("k", [0, 16, 1024])
def test_epilogues(name: str, k: int, random: numpy.random.Generator) -> None:
    """alpha by value, in memory, per column; c, also aliasing out; bias; each output type; K = 0."""
    config = CONFIGS[name]
    for case in range(6 * SEEDS):
        emulator, module = load(config, timing(random, case))
        out_type, bias_type = TYPES[case % 3], TYPES[int(random.integers(3))]
        product = Product(emulator, random, config.rows, 133, k, l=2, out_type=out_type)
        columns, in_place = case % 2 == 1, case // 2 % 2 == 1
        alpha = random.choice([0.5, 1, -2, 4], 133 if columns else 1).astype("f4")
        bias = rounded(random.integers(-64, 65, 133), bias_type)
        c = rounded(random.integers(-64, 65, (2, config.rows, 133)), out_type)
        product.keep(alpha, "alpha", alpha_stride=int(columns))
        product.keep(stored(bias, bias_type), "bias", bias_type=bias_type)
        product.place_c(c, -0.5, in_place)
        print(f"K {k}, types {out_type}, {bias_type}, in place {in_place}, alpha of each column {columns}")
        product.launch(module, config, sms=9)
        expected = (alpha * product.expected()).astype("f4")
        product.check(((expected - numpy.float32(0.5) * c).astype("f4") + bias).astype("f4"))


@by_name
def test_calls_in_a_row(name: str, random: numpy.random.Generator) -> None:
    """Dependent launches, each reading the previous output as c."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        calls = chain([Product(emulator, random, config.rows, 260, 1536) for _ in range(4)])
        for call in calls:
            call.launch(module, config, sms=20, wait=False)
        emulator.synchronize()
        check_chain(calls)


def test_rule_of_the_schedule() -> None:
    """The schedule covers K and all rows within the limits of shared memory, at sizes too large for the emulator."""
    for config in CONFIGS.values():
        for n, k, l in ((7168, 16384, 1), (4096, 7168, 1), (7168, 2048, 1), (128256, 4096, 1), (5, 16, 300), (1, 0, 1)):
            made, shared = schedule(config, n, k, l, 132)
            tiles = n // 128 * 16 + -(-min(n % 128, 32) // 2)
            full_ctas = made.full_ctas or made.ctas
            assert made.tiles_per_cta * full_ctas + (made.tiles_per_cta - 1) * (made.ctas - full_ctas) == tiles
            assert 1 << made.log2_split_k <= config.warps and shared <= SHARED_LIMIT


@sass.needed
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
def test_machine_code(tmp_path: Path) -> None:
    """No local memory; both variants contain exactly the dp4a of a step of 4 rows and 32 values. No cp.async with a
    cache policy has a uniform register in its shared address: an H200 rejects that as an illegal instruction."""
    cubin = tmp_path / "kernels.cubin"
    source = FAMILY.folder / "gemv.cu"
    subprocess.run(["nvcc", "-cubin", "-arch=sm_90a", f"-I{CSRC}", "-o", str(cubin), str(source)], check=True)
    kernels = sass.disassemble(cubin, "nvfp4_")
    for name, config in CONFIGS.items():
        kernel = kernels[name]
        assert kernel.stack == kernel.local == 0 and not kernel.all("LDL|STL")
        products = 4 * 32 // 4 * (2 if config.rows == 1 else config.rows)
        in_steps = len(kernel.all(r"IDP\.4A")) - (
            0 if config.rows == 1 else 2 * 4
        )  # 4 dp4a for the sum of a block of A
        assert in_steps == 2 * products
        copies = kernel.all("LDGSTS.*128")
        assert copies and not any("+UR" in copy.operands.split("]")[0] for copy in copies)
