"""csrc/kernels/sm100/grouped.cu, every instantiation, launched directly on the emulated B200: groups of any size, any
number of CTAs. tests/ops/test_grouped_gemm.py and test_grouped_invariance.py run them through the package.

SM100_SEEDS: emulated timings a case (4; the full proof takes 20).
"""

from __future__ import annotations

import os

import numpy
import pytest
from emulate import Module
from harness.groups import MAX_GROUPS, sizes_of
from harness.headers import Config
from harness.launch import Generator, Product, load, only_entry, ptx_of, timing
from harness.predecessor import Predecessor
from harness.values import BF16, FP16, FP32, ceil_div, swizzle_scales
from sm100 import gemm
from sm100.grouped import CONFIGS, Groups

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM100_SEEDS", 4))
NAMES = pytest.mark.parametrize("name", CONFIGS)
SHARED_LIMIT = 227 * 1024  # of a CTA


def activation_of(config: Config, random: Generator) -> dict[str, str | float | int]:
    """One that the instantiation computes: of two parts those with two matrices."""
    chosen = ("silu", "gelu_tanh", "swiglu") if config.matrices == 2 else ("silu", "gelu_tanh", "relu2")
    name = str(random.choice(chosen))
    limit = float(random.choice([0.5, 2.0, numpy.inf])) if name in ("silu", "swiglu") else numpy.inf
    return {"parts": config.matrices, "activation": name, "limit": limit}


def simplest(config: Config) -> dict[str, str | int]:
    """Returns the form that the instantiation needs."""
    of_16_bits = {"out_type": BF16} if config.cta_group == 2 else {}
    return {"parts": 2, "activation": "silu", **of_16_bits} if config.matrices == 2 else of_16_bits


def columns_of(config: Config, n: int) -> int:
    """At least that many columns, as the instantiation takes them: rows of two matrices alternate by 16 in a pair."""
    return -(-n // 32) * 32 if config.cta_group == 2 and config.matrices == 2 else n


def set_scales_behind_to_nan(product: Groups, rows_of_dense: int = 0) -> None:
    """Makes the scales of rows NaN that a block of 128 has and its group has not."""
    padded = product.memory("scale_a").numpy()
    blocks = padded.reshape(-1, ceil_div(product.k, 64), 32, 4, 4)  # K blocks, row % 32, row / 32 % 4, 4 scales
    for e, rows in enumerate([rows_of_dense] if rows_of_dense else product.sizes):
        first = 0 if rows_of_dense else int(product.kept["scale_rows"].numpy()[e]) // 128
        row = numpy.arange(128).reshape(4, 32).T
        for i in range(ceil_div(rows, 128)):
            behind = (row >= rows - 128 * i)[None, :, :, None]
            blocks[first + i] = numpy.where(behind, 0x7F, blocks[first + i])


def test_shared_memory_of_a_cta() -> None:
    assert max(config.shared_bytes for config in CONFIGS.values()) <= SHARED_LIMIT


def launch_and_check(product: Groups, module: Module, config: Config, random: Generator, said: str) -> None:
    """By fewer CTAs than tiles, or by more."""
    grid = int(random.integers(1, product.tiles(config) + 3))
    print(f"{said}, {grid} CTAs")
    product.launch(module, config, grid)
    product.check()


@NAMES
def test_ragged_groups(name: str, random: Generator) -> None:
    """Any sizes, parts, columns, K of no whole stage, fewer CTAs than tiles and more, with an activation and without:
    equal bits, rows behind the last group and bytes behind a row as they were, NaN for groups without scales."""
    config = CONFIGS[name]
    for case in range(3 * SEEDS):
        emulator, module = load(config, timing(random, case))
        form = activation_of(config, random) if config.matrices == 2 or case % 3 == 0 else {"parts": 1 + case % 2}
        sizes, k = sizes_of(config, random), 64 * int(random.integers(1, 24))
        n = int(random.integers(1, 320)) // (1 + case % 2) * (1 + case % 2)
        types = (FP16, BF16) if config.cta_group == 2 else (FP32, FP16, BF16)
        missing = [e for e in range(len(sizes)) if random.random() < 0.3]
        pitch = k // 2 + 16 * int(random.integers(3))
        product = Groups(
            emulator, random, sizes, columns_of(config, max(n, 1)), k, out_type=types[case // 2 % len(types)],
            behind=int(random.integers(0, 5)), missing=missing, pitch=pitch, out_align=int(random.choice([4, 16])),
            **form,
        )  # fmt: skip
        if case % 2:
            product.set_row_scale(random)
        if case % 4 >= 2 or "activation" in form:
            product.set_alpha_and_bias(random)
        launch_and_check(product, module, config, random, f"sizes {sizes}, {n} x {k}, {form}, missing {missing}")


@NAMES
def test_quantized(name: str, random: Generator) -> None:
    """Results as NVFP4, with global scales of each kind, some out of the range of quick quotients: the bytes of
    gated_quantize on the CPU, the padding of each group's last block zeros, all other bytes as they were."""
    config = CONFIGS[name]
    for case in range(3 * SEEDS):
        emulator, module = load(config, timing(random, case))
        sizes, k, n = sizes_of(config, random), 64 * int(random.integers(0, 9)), 16 * int(random.integers(1, 20))
        n = columns_of(config, n)
        missing = [e for e in range(len(sizes)) if random.random() < 0.2]
        product = Groups(
            emulator, random, sizes, n, k, out_type=(FP16, BF16)[case % 2], behind=int(random.integers(0, 3)),
            missing=missing if k else [], **activation_of(config, random),
        )  # fmt: skip
        product.set_alpha_and_bias(random)
        if case % 2:
            product.set_row_scale(random)
        product.set_quantized(random, case % 3, times=2.0**-60 if case % 5 == 4 else 1.0)
        launch_and_check(
            product,
            module,
            config,
            random,
            f"sizes {sizes}, {n} x {k}, {product.activation}, global by {case % 3}, missing {missing}",
        )


@NAMES
def test_a_dense_group(name: str, random: Generator) -> None:
    """One group that needs no table: any number of rows without ends, up to a block of them with an end, behind which
    no row is written. All terms of the epilogue, numbers and NVFP4, fewer CTAs than tiles and more, scales behind the
    last row NaN."""
    config = CONFIGS[name]
    for case in range(3 * SEEDS):
        emulator, module = load(config, timing(random, case))
        has_ends, quantizes = bool(case // 2 % 2), case % 3 == 2
        form = activation_of(config, random) if config.matrices == 2 or quantizes else {"parts": 1 + case % 2}
        rows, k = max(sizes_of(config, random)), 64 * int(random.integers(1, 9))
        behind = 0
        if has_ends:
            rows = min(rows, 128)
            behind = int(random.integers(0, 129 - rows))
        n = columns_of(config, 16 * int(random.integers(1, 20)) if quantizes else int(random.integers(1, 320)))
        types = (FP16, BF16) if config.cta_group == 2 or quantizes else (FP32, FP16, BF16)
        product = Groups(
            emulator, random, [rows], n, k, out_type=types[case % len(types)], dense=True, has_ends=has_ends,
            behind=behind, missing=[0] if has_ends and not quantizes and case % 8 == 7 else [],
            pitch=k // 2 + 16 * int(random.integers(3)), out_align=int(random.choice([4, 16])), **form,
        )  # fmt: skip
        set_scales_behind_to_nan(product, product.m)
        if case % 2:
            product.set_row_scale(random)
        if case % 4 >= 2 or "activation" in form:
            product.set_alpha_and_bias(random)
        if quantizes:
            product.set_quantized(random, case % 2)
        launch_and_check(product, module, config, random, f"{rows} rows, {behind} behind, {n} x {k}, {form}")


@NAMES
def test_wild_end_of_a_dense_group(name: str, random: Generator) -> None:
    """It counts within 0 .. T; while it changes, which rows are written is not defined, but the grid ends."""
    config = CONFIGS[name]
    for end, rows in ((-7, 0), (0, 0), (2**31 - 1, 70), (-(2**31), 0), (70, 70)):
        emulator, module = load(config, timing(random, rows))
        form = simplest(config) | {"dense": True}
        product = Groups(emulator, random, [rows], columns_of(config, 130), 320, behind=70 - rows, **form)
        product.kept["ends"] = emulator.array(numpy.array([end], "i4"))
        if end == rows == 70:
            product.set_changing_ends(numpy.array([20], "i4"))
        product.launch(module, config, grid=2)
        product.check()


@NAMES
def test_a_dense_group_has_the_bits_of_groups(name: str, random: Generator) -> None:
    """Sums that round too."""
    config, seed = CONFIGS[name], int(random.integers(2**30))
    results = []
    for rows, form in ((config.mma_tile_n + 9, {"has_ends": False}), (50, {})):
        for dense in ({}, {"dense": True} | form):
            emulator, module = load(config, timing(random, 3))
            generator = numpy.random.default_rng(seed)
            form_of_config = simplest(config) | {"out_type": BF16}
            product = Groups(emulator, generator, [rows], 160, 1024, integer=False, **form_of_config, **dense)
            product.set_row_scale(generator)
            product.set_alpha_and_bias(generator)
            product.launch(module, config, grid=2)
            results.append(product.out.numpy().tobytes())
    assert results[0] == results[1] and results[2] == results[3]


@NAMES
def test_a_pipeline_that_wraps(name: str, random: Generator) -> None:
    """One CTA with all tiles: stages of a tile are loaded while those of the one before are read, and accumulators
    stored while the next ones are summed."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        k = (config.stages + 2) * gemm.STAGE_K
        sizes, n = [3, 0, config.mma_tile_n + 2, 17], columns_of(config, 130)
        product = Groups(emulator, random, sizes, n, k, **simplest(config))
        product.set_alpha_and_bias(random)
        product.launch(module, config, grid=1)
        product.check()


@NAMES
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513])
def test_rows_of_a_group(name: str, rows: int, random: Generator) -> None:
    """Rows of the mma are the tile's, rounded up, in any half of a block of scales, whatever stands behind it."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, rows))
    product = Groups(emulator, random, [rows, 5], 128, 128, behind=2, **simplest(config) | {"out_type": BF16})
    product.set_alpha_and_bias(random)
    product.launch(module, config, grid=2)
    product.check()


@NAMES
def test_nan_behind_a_group(name: str, random: Generator) -> None:
    """Scales of rows that a block of 128 has and its group has not are NaN: they reach no result."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    n = columns_of(config, 20)
    product = Groups(emulator, random, [3, config.mma_tile_n - 1], n, 192, **simplest(config))
    set_scales_behind_to_nan(product)
    product.launch(module, config, grid=2)
    product.check()


@NAMES
def test_many_groups(name: str, random: Generator) -> None:
    """The most groups that there may be are nearly all empty."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    sizes = [int(random.random() < 0.02) for _ in range(MAX_GROUPS)]
    sizes[0], sizes[-1] = int(random.integers(2)), 2
    product = Groups(emulator, random, sizes, columns_of(config, 3), 64, **simplest(config))
    product.launch(module, config, grid=7)
    product.check()


@NAMES
def test_wild_ends(name: str, random: Generator) -> None:
    """A running maximum of the ends within 0 .. T counts."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    product = Groups(emulator, random, [0, 5, 0, 4, 0], columns_of(config, 9), 64, **simplest(config))
    product.kept["ends"] = emulator.array(numpy.array([-7, 5, 2, 2**31 - 1, -(2**31)], "i4"))
    product.launch(module, config, grid=2)
    product.check()


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.cta_group == 1])
def test_order_of_additions(name: str, random: Generator) -> None:
    """Sums that round have the bits of gemm's, whatever else a tile has."""
    k, sizes = 1024, (9, 30, 1)
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    gate_alone = {"parts": 2, "activation": "silu"} if config.matrices == 2 else {}
    product = Groups(emulator, random, sizes, 40, k, integer=False, **gate_alone)
    if gate_alone:  # up is 0 * sum + 1, gate small, so that the result tells the bits of gate
        alpha = numpy.tile([2.0**-20, 0.0], len(sizes))
        product.keep(alpha.astype("f4"), "alpha", alpha_stride=0)
        product.keep(numpy.tile([[0.0], [1.0]], (len(sizes), 40)).astype("f4"), "bias", bias_type=FP32)
        product.extras["by_batch"] = 3
    product.launch(module, config, grid=2)
    alone_config = gemm.CONFIGS["sm100_gemm_128x16"]
    emulator, module = load(alone_config, timing(random, 2))
    alone = gemm.Product(emulator, random, sizes[0], 40, k)
    alone.data = [product.data[which][:1, :rows, : k // 2] for which, rows in ((0, sizes[0]), (1, 40))]
    alone.scales = [product.scales[which][:1, :rows] for which, rows in ((0, sizes[0]), (1, 40))]
    pairs = zip(alone.data, map(swizzle_scales, alone.scales))
    alone.arrays = [emulator.array(x) for pair in pairs for x in pair]
    alone.launch(module, alone_config, swap_ab=True)
    wanted = alone.result()[0]
    assert not (wanted == numpy.round(wanted)).all(), "no sum rounds"
    if gate_alone:
        wanted = product.activated(numpy.hstack([wanted * numpy.float32(2.0**-20), numpy.ones_like(wanted)]))
    assert (product.result()[: sizes[0]] == wanted).all()


@NAMES
def test_ends_that_change(name: str, random: Generator) -> None:
    """While a CTA reads them: which rows are written is not defined, but the grid ends, and writes nothing else. CTAs
    of a pair must not have different tiles."""
    config = CONFIGS[name]
    for case in range(2 * SEEDS):
        emulator, module = load(config, timing(random, case))
        product = Groups(emulator, random, [300, 0, 17, 260], columns_of(config, 130), 320, **simplest(config))
        other = [numpy.array(ends, "i4") for ends in ([0, 290, 577, 577], [1, 1, 530, 577])][case % 2]
        product.set_changing_ends(other)
        product.launch(module, config, grid=2)
        product.check()


@NAMES
def test_ends_of_many_groups_that_change(name: str, random: Generator) -> None:
    """A thread has several groups, each of which may have all rows or none: the table has as many rows and tiles before
    a group as before an earlier one, or more, and no CTA reads or writes outside."""
    config, m = CONFIGS[name], 600
    for case in range(2 * SEEDS):
        emulator, module = load(config, timing(random, case))
        sizes = numpy.diff(numpy.sort(random.integers(0, m, 699)), prepend=0, append=m).tolist()
        product = Groups(emulator, random, sizes, columns_of(config, 9), 64, **simplest(config))
        product.set_changing_ends(random.choice(numpy.array([0, m], "i4"), len(sizes)))
        product.launch(module, config, grid=3)
        product.check()


PAIRS = pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.cta_group == 2])


def low_bits(random: Generator, config: Config, sizes: list[int], k: int, alone: bool, quantized: bool) -> list[bytes]:
    """Results of the pair, or of a CTA alone, by products whose sums round. The bias of a column removes all but the
    lowest bits of the sums of a group's first row, so that 16 bits show them."""
    name = config.name if not alone else "sm100_grouped_" + ("gated_128x128" if config.matrices == 2 else "128x128")
    emulator, module = load(CONFIGS[name], timing(random, 2))
    form = simplest(config) | ({"activation": "silu"} if quantized else {})
    product = Groups(emulator, random, sizes, 160, k, integer=False, scale_end=0x70, **form)
    l, n = product.l, product.n
    starts = numpy.cumsum([0, *sizes[:-1]])
    a, b = product.decoded(0)[0], product.decoded(1)
    bias = numpy.stack([-(a[starts[i // product.parts]] @ b[i].T) for i in range(l)]).astype("f4")
    if quantized:
        product.set_quantized(random)
    scale = 2.0**-8 if product.activation else 1.0
    product.keep(numpy.full(l, scale, "f4"), "alpha", alpha_stride=0)
    product.keep((bias * numpy.float32(scale)).reshape(l, n), "bias", bias_type=FP32)
    product.extras["by_batch"] = 3
    product.launch(module, CONFIGS[name], grid=2)
    assert quantized or product.result()[0].any(), "no sum rounds"
    kept = [product.kept[f"quantized {i}"] for i in range(3)] if quantized else [product.out]
    return [array.numpy().tobytes() for array in kept]


@PAIRS
@pytest.mark.parametrize("quantized", [False, True])
def test_a_pair_has_the_bits_of_a_cta(name: str, quantized: bool, random: Generator) -> None:
    """Sums that round too, with results as numbers and as NVFP4, in groups of one tile and of several."""
    config = CONFIGS[name]
    seed = int(random.integers(2**30))
    same = [
        low_bits(numpy.random.default_rng(seed), config, [1, 140, 0, 300], 1024, alone, quantized)
        for alone in (False, True)
    ]
    assert same[0] == same[1]


@pytest.mark.parametrize("late", ["ends", "scale_rows", "row_scale", "alpha", "a", "scale_a", "b", "scale_b"])
def test_operands_written_late(late: str, random: Generator) -> None:
    """By the grid before: nothing is read ahead of griddepcontrol.wait, the weights of a group that is not known yet
    neither."""
    config = list(CONFIGS.values())[int(random.integers(len(CONFIGS)))]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        form = simplest(config) | {"dense": case % 2 == 1}
        sizes = [12] if form["dense"] else [3, 0, 9]
        product = Groups(emulator, random, sizes, columns_of(config, 130), 320, **form)
        product.set_row_scale(random)
        product.set_alpha_and_bias(random)
        before = Predecessor(emulator, "sm100")
        before.writes(product.memory(late))
        with before.launched():
            product.launch(module, config, grid=2, wait=False)
        product.check()


@NAMES
def test_back_to_back_calls(name: str, random: Generator) -> None:
    """CTAs of a grid start while those of the one before run, of this kernel and of gemm, which takes as much tensor
    memory: each grid frees its columns."""
    config, dense = CONFIGS[name], gemm.CONFIGS["sm100_gemm_128x128"]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        module_of_gemm = emulator.load(only_entry(ptx_of(dense), dense.kernel))
        calls: list[Product] = []
        for _ in range(2):
            grouped = Groups(emulator, random, [20, 0, 70], columns_of(config, 200), 320, **simplest(config))
            grouped.set_alpha_and_bias(random)
            grouped.launch(module, config, grid=3, wait=False)
            calls += [grouped, gemm.Product(emulator, random, 128, 256, 320)]
            calls[-1].launch(module_of_gemm, dense, False, wait=False)
        emulator.synchronize()
        for call in calls:
            call.check()


@NAMES
def test_no_rows_and_no_terms(name: str, random: Generator) -> None:
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    for sizes, k in (([0, 0], 64), ([2, 0, 3], 0)):
        for missing in ([], [2] if k == 0 else []):
            n = columns_of(config, 5)
            product = Groups(emulator, random, sizes, n, k, behind=3, missing=missing, **simplest(config))
            if missing:
                product.kept["scale_rows"] = emulator.array(numpy.array([0, 0, -1], "i4"))
            product.launch(module, config, grid=3)
            product.check()
