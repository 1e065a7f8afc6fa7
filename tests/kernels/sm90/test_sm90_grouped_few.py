"""The wgmma kernels for groups of a few rows on Hopper: every instantiation, launched on the emulated H200.

SM90_SEEDS is the number of timings of each case (1; a full proof takes 20).
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy
import pytest
from emulate import Module
from harness import few_rows, sass
from harness.headers import Config
from harness.launch import SHARED_LIMIT, load, timing
from harness.values import BF16, FP16, rounded
from sm90.grouped_few import CONFIGS, STAGE_K, Product
from units.grouped import (
    check_activations,
    check_calls_in_a_row,
    check_late_operand,
    draw_ends,
    place_epilogue,
    place_nan,
)

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 1))
REGISTERS = 65536  # of an SM
PREFIX = "nvfp4_sm90_grouped_few_"
WIDTHS = {16: (8, 16), 32: (16, 32), 48: (32, 48)}
by_name = pytest.mark.parametrize("name", CONFIGS)
of_each_kind = pytest.mark.parametrize(
    "name",
    CONFIGS if SEEDS > 1 else [f"sm90_grouped_few_{kind}" for kind in ("fp16_256x16", "bf16_256x32", "fp16_256x48")],
)


def draw_k(random: numpy.random.Generator, case: int) -> int:
    """Up to 640, a multiple of 16 or of a stage, or more stages than a pipeline has."""
    return (16 * int(random.integers(1, 41)), STAGE_K * int(random.integers(1, 3)), 8 * STAGE_K + 80)[case % 3]


@by_name
def test_ragged_products(name: str, random: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any groups, rows anywhere in A, any N, K that is no multiple of a stage, an atom or 32: equal bits, nothing else
    is written. Lanes of a warp in step and apart."""
    config = CONFIGS[name]
    for case in range(4 * SEEDS):
        monkeypatch.setenv("EMULATE_LANES", ("together", "apart")[case // 2 % 2])
        emulator, module = load(config, timing(random, case))
        m, groups, parts = int(random.integers(1, 100)), int(random.integers(1, 5)), int(random.integers(1, 3))
        n = int(random.integers(1, (60, 300)[case % 2]))
        if case % 4 == 3:
            n = n // 128 * 128 + 128
        k, ctas = draw_k(random, case), int(random.choice([1, 2, 5]))
        ends = draw_ends(random, m, groups)
        print(f"{ends} of {m} by {n} x {k}, {parts} parts, {ctas} CTAs")
        product = Product(emulator, random, config, ends, n, k, parts, (FP16, BF16)[case % 2], m, gathers=case % 2 == 0)
        if case % 2:
            product.scale_rows(random)
        product.launch_few(module, config, ctas)
        product.check()


@by_name
def test_activations(name: str, random: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS[name]

    def run(product: Product, module: Module, ctas: int) -> None:
        product.launch_few(module, config, ctas)

    check_activations(Product, run, config, random, monkeypatch, 4 * SEEDS, 100, draw_k)


@by_name
def test_many_tiles_of_a_cta(name: str, random: numpy.random.Generator) -> None:
    """A CTA has more tiles than stages, buffers and descriptions, of groups with one row, and with more than a tile
    has."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        product = Product(emulator, random, config, [1, 2, 2, 19, 20, 160], 600, STAGE_K + 32, out_type=FP16)
        product.launch_few(module, config, 1)
        product.check()


@by_name
def test_every_code_and_scale_of_b(name: str, random: numpy.random.Generator) -> None:
    """With numbers of all significant bits: the exact product, rounded once."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    m, n, k = config.mma_tile_n, 256, 16 * 256
    product = Product(emulator, random, config, [m], n, k, gathers=False, out_type=BF16)
    exact = few_rows.place_every_code_and_scale_of_b(product, (m, k), n, 7 if config.bf16 else 10, random)
    product.launch_few(module, config)
    assert (product.result() == rounded(exact.astype("f4"), BF16)).all()


@of_each_kind
def test_nan(name: str, random: numpy.random.Generator) -> None:
    """A NaN scale makes its column of the group NaN, NaN in A its row, an index outside of A the row of the result, and
    nothing else."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    product = Product(emulator, random, config, [5, 9], 150, 1056, gathers=False, out_type=FP16)
    expected = place_nan(product)
    product.launch_few(module, config, 3)
    assert (numpy.isnan(product.result()) == expected).all()


@of_each_kind
def test_epilogues(name: str, random: numpy.random.Generator) -> None:
    """alpha as a number, of all, of each matrix and of each of its columns; bias of each matrix in any type; factors of
    rows; both output types, rows of the result on fewer bytes than a store has."""
    config = CONFIGS[name]
    for case in range(4 * SEEDS):
        emulator, module = load(config, timing(random, case))
        out_type = (FP16, BF16)[case % 2]
        product = Product(emulator, random, config, [3, 3, 12], 133, 288, 2, out_type)
        results = place_epilogue(product, random, case)
        product.launch_few(module, config, 4)
        product.check(results())


@of_each_kind
def test_rows_do_not_depend_on_others(name: str, random: numpy.random.Generator) -> None:
    """Sums that round: the bits of a row are those of the row in a group of its own, by any instantiation of its type
    of A and any number of SMs."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    n, k, rows = 136, 9 * STAGE_K + 32, 47
    product = Product(emulator, random, config, [rows], n, k, gathers=False, out_type=FP16)
    product.extras["alpha_value"] = 2.0**-6
    product.values = random.standard_normal((rows, k)).astype("f2" if not config.bf16 else "f4")
    product.place_a()
    product.launch_few(module, config, 5)
    for other in (other for other in CONFIGS.values() if other.bf16 == config.bf16):
        emulator, module = load(other, timing(random, 1))
        alone = Product(emulator, random, other, [1], n, k, gathers=False, out_type=FP16)
        for array, of in list(zip(alone.arrays, product.arrays))[2:]:
            array.numpy()[...] = of.numpy()
        row = int(random.integers(rows))
        alone.extras["alpha_value"], alone.values = 2.0**-6, product.values[row : row + 1]
        alone.place_a()
        alone.launch_few(module, other, int(random.integers(1, 20)))
        assert (alone.result()[0].view("u4") == product.result()[row].view("u4")).all()


@pytest.mark.parametrize("early_b", [0, 1])
@of_each_kind
def test_calls_in_a_row(name: str, early_b: int, random: numpy.random.Generator) -> None:
    """Dependent launches: each has the previous result as A."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        calls = [Product(emulator, random, config, [2, 9], 128, 128, out_type=FP16, gathers=False) for _ in range(3)]
        launch_one = partial(Product.launch_few, module=module, config=config, ctas=3, wait=False)
        for call in calls:
            call.early_b = early_b
        check_calls_in_a_row(calls, launch_one, a_is_fp16=not config.bf16)


READ_EARLY, OTHERS = ["b", "scale_b", "ends"], ["a", "rows", "row_scale", "alpha"]


def run_behind_late(operand: str, random: numpy.random.Generator, early_b: int, k: int = 800) -> None:
    """The grid before writes an operand late, or reads the output late and overwrites it."""
    config = CONFIGS[str(random.choice(list(CONFIGS)))]
    for case in range(3 * SEEDS):
        emulator, module = load(config, timing(random, case))
        product = Product(emulator, random, config, [3, 3, 20], 150, k, parts=2, out_type=FP16)
        product.early_b = early_b
        launch_one = partial(Product.launch_few, module=module, config=config, ctas=(3, 30)[case % 2], wait=False)
        check_late_operand(product, launch_one, operand, random, case)


@pytest.mark.parametrize("operand", [*OTHERS, *READ_EARLY, "out"])
def test_late_operands(operand: str, random: numpy.random.Generator) -> None:
    run_behind_late(operand, random, 0)


@pytest.mark.parametrize("operand", [*OTHERS, "out"])
def test_late_operands_beside_an_early_b(operand: str, random: numpy.random.Generator) -> None:
    run_behind_late(operand, random, 1)


@pytest.mark.parametrize("operand", READ_EARLY)
def test_early_b_is_read_early(operand: str, random: numpy.random.Generator) -> None:
    """A grid that does write it late is the caller's error: the result is wrong."""
    with pytest.raises(AssertionError):
        run_behind_late(operand, random, 1)


@pytest.mark.parametrize("ends_between", [[2, 9], [0, 0]], ids=["", "without tiles"])
@pytest.mark.parametrize("operand", [*OTHERS, *READ_EARLY])
def test_early_b_behind_another_launch(operand: str, ends_between: list[int], random: numpy.random.Generator) -> None:
    """The grid before the launch before has ended when that launch lets this one start."""
    config = CONFIGS[str(random.choice(list(CONFIGS)))]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        product = Product(emulator, random, config, [3, 3, 20], 150, 800, out_type=FP16)
        between = Product(emulator, random, config, ends_between, 150, 800, m=9, out_type=FP16)
        product.early_b, between.early_b = 1, case % 2

        def launch_both(
            product: Product, between: Product = between, module: Module = module, config: Config = config
        ) -> None:
            for one in (between, product):
                one.launch_few(module, config, 3, wait=False)

        check_late_operand(product, launch_both, operand, random, case)


def test_shared_memory() -> None:
    assert all(config.shared_bytes <= SHARED_LIMIT for config in CONFIGS.values())


@sass.needed
@by_name
def test_machine_code(name: str) -> None:
    """No local memory. The wgmma of a stage for each width, of as many groups as words, and none is serialized. After
    setmaxnreg the six warpgroups have no more registers than the launch."""
    config, widths = CONFIGS[name], WIDTHS[CONFIGS[name].mma_tile_n]
    kernel = sass.kernels_of(Path(nvfp4._C.__file__), PREFIX, "sm_90")[name.removeprefix("sm90_grouped_few_")]
    assert kernel.stack == kernel.local == 0 and not kernel.all("LDL|STL")
    found = sorted(i.opcode for i in kernel.all("HGMMA"))
    assert found == sorted([f"HGMMA.64x{width}x16.F32" + ".BF16" * config.bf16 for width in widths] * 16)
    assert sum(i.operands.endswith("gsb0") for i in kernel.all("HGMMA")) == 8 * len(widths)
    assert len(kernel.all("UTMALDG")) == len(kernel.all("UBLKCP")) == 2
    taken = [int(i.operands.split()[-1], 16) for i in kernel.all("USETMAXREG.TRY_ALLOC")]
    given = [int(i.operands.split()[-1], 16) for i in kernel.all("USETMAXREG.DEALLOC")]
    assert len(taken) == 1 and len(given) == 2 and config.threads == 768
    assert -(-kernel.registers // 8) * 8 * config.threads <= REGISTERS
    assert 512 * taken[0] + 128 * sum(given) <= REGISTERS
