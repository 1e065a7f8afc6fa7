"""csrc/kernels/sm120/grouped.cu, every instantiation, launched directly on the emulated RTX 5090: groups of any size,
any number of CTAs. tests/ops/test_grouped_gemm.py and test_grouped_invariance.py run them through the package.

SM120_SEEDS: emulated timings a case (4; .ci/full takes 5, a release 20).
"""

from __future__ import annotations

import os

import numpy
import pytest
from harness.groups import ACTIVATIONS, MAX_GROUPS, sizes_of
from harness.launch import load, timing
from harness.predecessor import Predecessor
from harness.values import BF16, FP16, FP32, swizzle_scales
from sm120 import gemm
from sm120.grouped import CONFIGS, Groups

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM120_SEEDS", 4))
# How operands are loaded; pitch: rows on 8 bytes.
FORMS: list[dict[str, bool]] = [{}, {"linear": True, "gathers": True}, {"pitch": True}, {"linear": True}]
FORMS += [{}, {"linear": True, "gathers": True, "pitch": True}]
NONE_MISSING = [{"linear": True}]
NAMES = pytest.mark.parametrize("name", CONFIGS)


def test_shared_memory_of_a_cta() -> None:
    assert max(config.shared_bytes for config in CONFIGS.values()) <= gemm.SHARED_LIMIT


@NAMES
def test_ragged_groups(name: str, random: numpy.random.Generator) -> None:
    """Any sizes, parts, K of no whole stage or K block, fewer CTAs than tiles and more, every way to load: equal bits,
    rows behind the last group and bytes behind a row as they were, NaN for groups without scales or rows of a."""
    config = CONFIGS[name]
    for case in range(2 * SEEDS):
        emulator, module = load(config, timing(random, case))
        form = FORMS[case // 4 * 2 % len(FORMS) + case % 2]
        sizes, parts = sizes_of(config, random), int(random.integers(1, 3))
        n, k = int(random.integers(1, config.mma_tile_m * 5 // 2)), 16 * int(random.integers(1, 70))
        missing = [e for e in range(len(sizes)) if form not in NONE_MISSING and random.random() < 0.3]
        how = form | ({"pitch": k // 2 + -k // 2 % 16 + 8} if form.get("pitch") else {})
        out_type = (FP32, FP16, BF16)[case % 3]
        product = Groups(emulator, random, sizes, n, k, parts, out_type, int(random.integers(0, 5)), missing, **how)
        if case % 2:
            product.set_row_scale(random)
        if case % 4 >= 2:
            product.set_alpha_and_bias(random)
        grid = int(random.integers(1, product.tiles(config) + 3))
        print(f"sizes {sizes}, {n} x {k}, {parts} parts, {how}, missing {missing}, {grid} CTAs")
        product.launch(module, config, grid)
        product.check()


@NAMES
def test_activation(name: str, random: numpy.random.Generator) -> None:
    """One part or two, in every way to load: results have the bits of `gated` on the CPU, of parts that are rounded,
    and are NaN for groups without scales or rows of a."""
    config = CONFIGS[name]
    for case in range(2 * SEEDS):
        emulator, module = load(config, timing(random, case))
        form = FORMS[case // 4 * 2 % len(FORMS) + case % 2]
        activation = ACTIVATIONS[case % 4]
        parts = {"relu2": 1, "swiglu": 2}.get(activation, 1 + int(random.random() < 0.7))
        limit = float(random.choice([0.5, 2.0, numpy.inf])) if activation in ("silu", "swiglu") else numpy.inf
        sizes, out_type = sizes_of(config, random), int(random.choice([FP32, FP16, BF16]))
        n, k = int(random.integers(1, config.mma_tile_m * 5 // 2)), 16 * int(random.integers(1, 40))
        missing = [e for e in range(len(sizes)) if form not in NONE_MISSING and random.random() < 0.2]
        how = form | ({"pitch": k // 2 + -k // 2 % 16 + 8} if form.get("pitch") else {})
        gated = {"activation": activation, "limit": limit}
        out_align = int(random.choice([4, 16]))  # gate comes back by vectors or one by one
        product = Groups(
            emulator, random, sizes, n, k, parts, out_type, 3, missing, **how, **gated, out_align=out_align
        )  # fmt: skip
        product.set_alpha_and_bias(random)
        if case % 2:
            product.set_row_scale(random)
        grid = int(random.integers(1, product.tiles(config) + 3))
        print(f"sizes {sizes}, {n} x {k}, {parts} parts, {how}, {gated}, missing {missing}, {grid} CTAs")
        product.launch(module, config, grid)
        product.check()


@NAMES
def test_a_pipeline_that_wraps(name: str, random: numpy.random.Generator) -> None:
    """One CTA with all tiles: stages of a tile are loaded while those of the one before are read."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        k, linear = (config.stages + 2) * config.stage_k, case % 2 == 1
        product = Groups(emulator, random, [3, 0, config.mma_tile_n + 2], 130, k, linear=linear, gathers=linear)
        product.launch(module, config, grid=1)
        product.check()


@NAMES
def test_many_groups(name: str, random: numpy.random.Generator) -> None:
    """The most groups that there may be are nearly all empty."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    sizes = [int(random.random() < 0.02) for _ in range(MAX_GROUPS)]
    sizes[0], sizes[-1] = int(random.integers(2)), 2
    product = Groups(emulator, random, sizes, 3, 48)
    product.launch(module, config, grid=7)
    product.check()


@NAMES
def test_wild_ends(name: str, random: numpy.random.Generator) -> None:
    """A running maximum of the ends within 0 .. T counts."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    product = Groups(emulator, random, [0, 5, 0, 4, 0], 9, 64)
    product.kept["ends"] = emulator.array(numpy.array([-7, 5, 2, 2**31 - 1, -(2**31)], "i4"))
    product.launch(module, config, grid=2)
    product.check()


@NAMES
def test_order_of_additions(name: str, random: numpy.random.Generator) -> None:
    """Sums that round have the bits of another instantiation's, in groups of other sizes, and of gemm's."""
    k, sizes, results = 1040, (9, 30, 1), []
    for config in (CONFIGS["sm120_grouped_128x16"], CONFIGS[name]):
        emulator, module = load(config, timing(random, len(results)))
        product = Groups(emulator, numpy.random.default_rng(5), sizes, 40, k, integer=False)
        product.launch(module, config, grid=2)
        results.append(product.result())
    assert not (results[0] == numpy.round(results[0])).all(), "no sum rounds"
    assert (results[0] == results[1]).all()
    config = gemm.CONFIGS["sm120_gemm_128x16"]
    emulator, module = load(config, timing(random, 2))
    alone = gemm.Product(emulator, random, sizes[0], 40, k)
    alone.data = [product.data[which][:1, :rows, : k // 2] for which, rows in ((0, sizes[0]), (1, 40))]
    alone.scales = [product.scales[which][:1, :rows] for which, rows in ((0, sizes[0]), (1, 40))]
    pairs = zip(alone.data, map(swizzle_scales, alone.scales))
    alone.arrays = [emulator.array(x) for pair in pairs for x in pair]
    alone.launch(module, config, swap_ab=True)
    assert (alone.result()[0] == results[0][: sizes[0]]).all()


@pytest.mark.parametrize("late", ["ends", "scale_rows", "rows", "row_scale", "alpha", "a", "scale_a", "b", "scale_b"])
def test_operands_written_late(late: str, random: numpy.random.Generator) -> None:
    """By the grid before: nothing is read ahead of griddepcontrol.wait, the weights of a group that is not known yet
    neither."""
    config = list(CONFIGS.values())[int(random.integers(len(CONFIGS)))]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        linear = late == "rows" or (late != "scale_rows" and case % 2 == 1)
        product = Groups(emulator, random, [3, 0, 9], 130, 320, linear=linear, gathers=linear)
        product.set_row_scale(random)
        product.set_alpha_and_bias(random)
        before = Predecessor(emulator, "sm120")
        before.writes(product.memory(late))
        with before.launched():
            product.launch(module, config, grid=2, wait=False)
        product.check()


@NAMES
def test_no_rows_and_no_terms(name: str, random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    for sizes, k in (([0, 0], 64), ([2, 0, 3], 0)):
        product = Groups(emulator, random, sizes, 5, k, behind=3)
        product.launch(module, config, grid=3)
        product.check()
