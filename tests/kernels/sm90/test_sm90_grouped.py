"""The wgmma kernels for groups on Hopper and their pre-passes, launched on the emulated H200, also behind a grid that
writes one of their operands late. More ragged products, of NVFP4 A too, are tests/ops/test_grouped_gemm.py's.

SM90_SEEDS is the number of timings of each case (1).
"""

from __future__ import annotations

import os

import numpy
import pytest
from emulate import Module
from harness.launch import load, timing
from harness.predecessor import Predecessor
from harness.values import BF16, FP16, FP32
from sm90.grouped import CONFIGS, STAGE_K, E2m1Product, Product, reorder_ptx
from units.grouped import (
    check_activations,
    draw_ends,
    place_epilogue,
    place_nan,
)

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 1))
by_name = pytest.mark.parametrize("name", CONFIGS)


def run(product: Product, module: Module, ctas: int) -> None:
    product.make_workspace()
    product.queue(product.emulator.load(reorder_ptx()), module, product.config, ctas)


def draw_k(random: numpy.random.Generator, case: int) -> int:
    """Up to 320, a multiple of 16 or of a stage, or more stages than a pipeline has."""
    return (16 * int(random.integers(1, 21)), STAGE_K * int(random.integers(1, 5)), 9 * STAGE_K + 16)[case % 3]


@by_name
def test_ragged_products(name: str, random: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any groups, rows anywhere in A, any N, K that is no multiple of a stage, each type of the result: equal bits,
    nothing else is written. Groups of more rows than a tile has. Lanes of a warp in step and apart."""
    config = CONFIGS[name]
    for case in range(4 * SEEDS):
        monkeypatch.setenv("EMULATE_LANES", ("together", "apart")[case // 2 % 2])
        emulator, module = load(config, timing(random, case))
        m, groups, parts = int(random.integers(1, (60, 400)[case % 2])), int(random.integers(1, 5)), 1 + case // 2 % 2
        n, k, ctas = int(random.integers(1, 300)), draw_k(random, case), int(random.choice([1, 2, 5]))
        ends = draw_ends(random, m, groups)
        print(f"{ends} of {m} by {n} x {k}, {parts} parts, {ctas} CTAs")
        kind = (FP16, FP32, BF16, FP32)[case % 4]
        product = Product(emulator, random, config, ends, n, k, parts, kind, m, gathers=case % 2 == 0)
        if case % 2:
            product.scale_rows(random)
        run(product, module, ctas)
        product.check()


@by_name
def test_activations(name: str, random: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    check_activations(Product, run, CONFIGS[name], random, monkeypatch, 4 * SEEDS, 300, draw_k)


@by_name
def test_many_tiles_of_a_cta(name: str, random: numpy.random.Generator) -> None:
    """A CTA has more tiles than stages and descriptions; a group has tiles of each width."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        ends = numpy.cumsum([1, 0, 40, 60, 75, 90, 110, 130, 150, 300])
        product = Product(emulator, random, config, ends.tolist(), 500, STAGE_K + 32, out_type=FP16)
        run(product, module, 2)
        product.check()


@by_name
def test_nan(name: str, random: numpy.random.Generator) -> None:
    """A NaN scale makes its column of the group NaN, NaN in A its row, an index outside of A the row of the result, and
    nothing else."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    product = Product(emulator, random, config, [5, 9], 150, 1056, gathers=False, out_type=FP16)
    expected = place_nan(product)
    run(product, module, 3)
    assert (numpy.isnan(product.result()) == expected).all()


@by_name
def test_epilogues(name: str, random: numpy.random.Generator) -> None:
    """alpha as a number, of all, of each matrix and of each of its columns; bias of each matrix in any type; factors of
    rows; each type of the result, rows of it on fewer bytes than a store has."""
    config = CONFIGS[name]
    for case in range(4 * SEEDS):
        emulator, module = load(config, timing(random, case))
        product = Product(emulator, random, config, [3, 3, 12], 133, 96, 2, (FP16, BF16, FP32)[case % 3])
        results = place_epilogue(product, random, case)
        run(product, module, 4)
        product.check(results())


@by_name
def test_rows_do_not_depend_on_others(name: str, random: numpy.random.Generator) -> None:
    """Sums that round: the bits of a row are those of the row in a group of its own, by any instantiation of its type
    of A."""
    config = CONFIGS[name]
    same = [other for other in CONFIGS.values() if other.bf16 == config.bf16]
    n, k, rows = 136, 5 * STAGE_K + 32, 170
    b, values = None, random.standard_normal((rows, k)).astype("f2")
    results = []
    for other, ends in ((config, [rows]), *((one, [1, 30, rows]) for one in same)):
        emulator, module = load(other, timing(random, 0))
        product = Product(emulator, random, other, [*ends, rows, rows][:3], n, k, gathers=False, out_type=FP32)
        product.values = values
        product.place_a()
        arrays = [product.arrays[i].numpy() for i in (2, 3)]
        one = [x.reshape(3, -1)[:1].copy() for x in arrays]
        b = b or one
        for x, first in zip(arrays, b):
            x.reshape(3, -1)[...] = first
        run(product, module, 2)
        emulator.synchronize()
        results.append(product.result().copy())
    assert all((x == results[0]).all() for x in results[1:])


@pytest.mark.parametrize("operand", ["a", "b", "scale_b", "ends", "rows", "row_scale", "alpha"])
def test_late_operands(operand: str, random: numpy.random.Generator) -> None:
    """The kernel reads ends, and B by them, when the pre-pass has let it start: all grids before that have ended."""
    config = CONFIGS[str(random.choice(list(CONFIGS)))]
    for case in range(3 * SEEDS):
        emulator, module = load(config, timing(random, case))
        reorder = emulator.load(reorder_ptx())
        product = Product(emulator, random, config, [3, 3, 20], 150, 288, parts=2)
        product.scale_rows(random)
        product.keep(numpy.array([0.5], "f4"), "alpha", alpha_stride=0)
        product.make_workspace()
        arrays = {"a": product.arrays[0], "b": product.arrays[2], "scale_b": product.arrays[3]}
        arrays |= {"ends": product.placed_ends, "rows": product.placed_rows, "row_scale": product.row_scale}
        before = Predecessor(emulator, "sm90")
        late = (arrays | {"alpha": product.kept["alpha"]})[operand]
        before.writes(late, {"ends": (0, 20, -1)[case % 3], "rows": 0, "b": 0, "scale_b": 0}.get(operand))
        with before.launched():
            product.queue(reorder, module, config, 3)
        product.check(product.expected() * 0.5)


@pytest.mark.parametrize("operand", ["a", "scale_a", "b", "ends", "scale_rows", "row_scale"])
def test_late_operands_of_an_nvfp4_a(operand: str, random: numpy.random.Generator) -> None:
    """The pre-pass reads ends and where scales begin, too, and after it the kernel does."""
    config = CONFIGS[str(random.choice([name for name, x in CONFIGS.items() if not x.bf16]))]
    for case in range(3 * SEEDS):
        emulator, module = load(config, timing(random, case))
        reorder = emulator.load(reorder_ptx())
        ends = [[3, 3, 20], [5, 140, 145], [33, 66, 70]][case % 3]
        product = E2m1Product(emulator, random, config, ends, 150, 304, parts=2, lacks_scales=case % 2 == 1)
        product.scale_rows(random)
        product.make_workspace()
        arrays = {"a": product.arrays[0], "scale_a": product.arrays[1], "b": product.arrays[2]}
        arrays |= {"ends": product.placed_ends, "scale_rows": product.placed_first, "row_scale": product.row_scale}
        before = Predecessor(emulator, "sm90")
        before.writes(arrays[operand], {"ends": (0, 20, -1)[case % 3], "scale_rows": 0, "a": 0, "b": 0}.get(operand))
        with before.launched():
            product.queue(reorder, module, config, 3)
        product.check()
