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
from harness import few_rows, sass
from harness.launch import SHARED_LIMIT, load, timing
from harness.values import BF16, NAN, TYPES, swizzle_scales
from paths import CSRC
from sm90.gemv import CONFIGS, HEADERS, QUANTIZING, Product, products_of, schedule

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 1))
by_name = pytest.mark.parametrize("name", CONFIGS)


@by_name
@pytest.mark.parametrize("linear", [False, True], ids=["128x4", "linear"])
def test_ragged_products(
    name: str, linear: bool, random: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any N and K, rows on 16 bytes or on 8, batches, few SMs and many: equal bits, nothing written out of bounds.
    Lanes of a warp in step and apart."""
    config = CONFIGS[name]
    for case in range(8 * SEEDS):
        monkeypatch.setenv("EMULATE_LANES", ("together", "apart")[case // 2 % 2])
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
    few_rows.every_code_and_scale(Product, CONFIGS[name], CONFIGS[name].rows, random)


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
    for case in range(6 * SEEDS):
        few_rows.epilogue(Product, CONFIGS[name], CONFIGS[name].rows, k, case, random)


@by_name
def test_calls_in_a_row(name: str, random: numpy.random.Generator) -> None:
    for case in range(SEEDS):
        few_rows.calls_in_a_row(Product, CONFIGS[name], CONFIGS[name].rows, case, random)


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
    """No local memory; both variants, or the one that quantizes, contain exactly the dp4a of a step of 4 rows and 32
    values. No cp.async with a cache policy has a uniform register in its shared address: an H200 rejects that as an
    illegal instruction."""
    cubin = tmp_path / "kernels.cubin"
    source = HEADERS.folder / "gemv.cu"
    subprocess.run(["nvcc", "-cubin", "-arch=sm_90a", f"-I{CSRC}", "-o", str(cubin), str(source)], check=True)
    kernels = sass.disassemble(cubin, "nvfp4_")
    for name, config in (CONFIGS | QUANTIZING).items():
        kernel = kernels[name]
        assert kernel.stack == kernel.local == 0 and not kernel.all("LDL|STL")
        products = 4 * 32 // 4 * (2 if config.rows == 1 else config.rows)
        in_steps = len(kernel.all(r"IDP\.4A")) - (
            0 if config.rows == 1 else 2 * 4
        )  # 4 dp4a for the sum of a block of A
        assert in_steps == (1 if name in QUANTIZING else 2) * products
        copies = kernel.all("LDGSTS.*128")
        assert copies and not any("+UR" in copy.operands.split("]")[0] for copy in copies)


# ---- A quantized in the kernel ----

of_each_type = pytest.mark.parametrize("name", QUANTIZING)


@of_each_type
def test_quantized_products(name: str, random: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any N, blocks of 32 of K, batches, few SMs and many, every split of K; the global scale in memory and by value:
    equal bits, nothing written out of bounds."""
    config = QUANTIZING[name]
    for case in range(6 * SEEDS):
        monkeypatch.setenv("EMULATE_LANES", ("together", "apart")[case // 2 % 2])
        emulator, module = load(config, timing(random, case))
        n, l = int(random.integers(1, (40, 300)[case % 2])), int(random.integers(1, 4))
        k = 32 * int(random.integers(1, 40)) + int(random.choice([0, 512, 4096, 8192]))
        sms, split_k = int(random.choice([1, 3, 7, 132])), int(random.choice([0, 1, 8]))
        print(f"1 x {n} x {k} x {l}, {sms} SMs, split_k {split_k}")
        product = products_of(config)(emulator, random, 1, n, k, l, out_type=TYPES[case % 3])
        split_k = min(split_k, 1 << (max(1, config.steps(k)).bit_length() - 1))
        product.launch(module, config, sms, split_k if sms > 3 else 0)
        product.check()


@pytest.mark.parametrize("scale", [2.0**-60, 2.0**60])
def test_global_scales_out_of_range(scale: float, random: numpy.random.Generator) -> None:
    """Where quotients by a reciprocal would lose bits, there are divisions. No fp16 number reaches such scales."""
    (config,) = (config for config in QUANTIZING.values() if products_of(config).keywords["x_type"] == BF16)
    emulator, module = load(config, timing(random, 0))
    product = products_of(config)(emulator, random, 1, 70, 1056)
    product.global_scale = scale
    product.place_x(product.decoded(0) * scale, 0)
    product.launch(module, config)
    product.check()


@of_each_type
def test_quantized_nan(name: str, random: numpy.random.Generator) -> None:
    """A NaN in A makes the whole row NaN; infinities saturate."""
    config = QUANTIZING[name]
    emulator, module = load(config, timing(random, 0))
    for number in (numpy.nan, numpy.inf):
        product = products_of(config)(emulator, random, 1, 150, 1056, 2)
        x = product.decoded(0) * product.global_scale
        x[1, 0, 777] = number
        product.place_x(x, 1)
        product.launch(module, config)
        result = product.result()
        assert (result[0] == product.expected()[0].astype("f4")).all()
        assert numpy.isnan(result[1]).all() if numpy.isnan(number) else numpy.isfinite(result[1]).all()


@of_each_type
def test_quantized_epilogues(name: str, random: numpy.random.Generator) -> None:
    for case in range(6):
        few_rows.epilogue(products_of(QUANTIZING[name]), QUANTIZING[name], 1, 1024, case, random)


@of_each_type
def test_quantized_calls_in_a_row(name: str, random: numpy.random.Generator) -> None:
    few_rows.calls_in_a_row(products_of(QUANTIZING[name]), QUANTIZING[name], 1, 0, random)
