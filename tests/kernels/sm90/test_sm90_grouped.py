"""The wgmma kernel for groups on Hopper and its pre-passes, launched on the emulated H200 behind a grid that writes one
of their operands late. Ragged products are tests/ops/test_grouped_gemm.py's.

SM90_SEEDS is the number of timings of each case (1).
"""

from __future__ import annotations

import os

import numpy
import pytest
from harness.launch import load, timing
from harness.predecessor import Predecessor
from sm90.grouped import CONFIGS, E2m1Product, Product, reorder_ptx

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 1))


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
