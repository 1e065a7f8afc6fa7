"""The kernels of csrc/kernels/units for groups of a few rows: every instantiation of every backend, launched on its
emulated GPU with any schedule.

UNITS_SEEDS is the number of timings of each case (1; a full proof takes 20).
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy
import pytest
from harness import few_rows, sass
from harness.headers import Config, headers_of
from harness.launch import load, shared_limit, timing
from harness.values import FP16, TYPES
from units.gemm import BACKENDS
from units.grouped import (
    CONFIGS,
    STEP_K,
    WARPS,
    Product,
    check_calls_in_a_row,
    check_late_operand,
    draw_activation,
    draw_ends,
    place_epilogue,
    place_epilogue_of_each_matrix,
    place_nan,
)

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("UNITS_SEEDS", 1))
by_name = pytest.mark.parametrize("name", CONFIGS)
of_each_kind = pytest.mark.parametrize(
    "name", [name for name in CONFIGS if SEEDS > 1 or name.endswith(("_fp16_16", "_bf16_8"))]
)


def draw_schedule(random: numpy.random.Generator, config: Config, k: int, parts: int = 1) -> dict[str, int]:
    """parts: of a tile."""
    steps = -(-k // STEP_K)
    return {
        "team_log2": int(random.integers(min(steps, WARPS).bit_length())),
        "tile_pairs": int(random.integers(1, config.pairs // config.a_units // parts + 1)),
        "ctas": int(random.choice([1, 2, 5])),
    }


@by_name
def test_ragged_products(name: str, random: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any groups, rows anywhere in A, any N, K that is no multiple of a step, an atom or 32, teams of any size, tiles
    of any number of pairs: equal bits, nothing else is written. Lanes of a warp in step and apart."""
    config = CONFIGS[name]
    for case in range(4 * SEEDS):
        monkeypatch.setenv("EMULATE_LANES", ("together", "apart")[case // 2 % 2])
        emulator, module = load(config, timing(random, case))
        m, groups, parts = int(random.integers(1, 30)), int(random.integers(1, 5)), int(random.integers(1, 3))
        n = int(random.integers(1, (60, 300)[case % 2]))
        if case % 4 == 3:
            n = n // 128 * 128 + 128
        k = 16 * int(random.integers(1, 40)) + (0, 4 * STEP_K)[case % 2]
        ends, of = draw_ends(random, m, groups), draw_schedule(random, config, k)
        print(f"{ends} of {m} by {n} x {k}, {parts} parts, {of}")
        product = Product(emulator, random, config, ends, n, k, parts, TYPES[case % 3], m, gathers=case % 2 == 0)
        if case % 2:
            product.scale_rows(random)
        product.launch(module, config, **of)
        product.check()


@by_name
def test_activations(name: str, random: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gate and up in one tile, or one part alone: the bits of the product, rounded, and of nvfp4.gated on the CPU, for
    ragged shapes, uneven numbers of pairs and any schedule. NaN of a row outside of A passes. alpha and bias are those
    of each matrix, so that those of gate are not up's."""
    config = CONFIGS[name]
    for case in range(4 * SEEDS):
        monkeypatch.setenv("EMULATE_LANES", ("together", "apart")[case // 2 % 2])
        emulator, module = load(config, timing(random, case))
        m, groups, parts = int(random.integers(1, 30)), int(random.integers(1, 5)), (2, 2, 1, 2)[case % 4]
        n, k = int(random.integers(1, (300, 60)[case % 2])), 16 * int(random.integers(1, 60))
        ends, of = draw_ends(random, m, groups), draw_schedule(random, config, k, parts)
        activation, kind = draw_activation(random, parts), TYPES[case % 3]
        print(f"{ends} of {m} by {n} x {k}, {parts} parts, {of}, {activation}")
        product = Product(emulator, random, config, ends, n, k, parts, kind, m, case % 2 == 0, activation)
        results = place_epilogue_of_each_matrix(product, random, case)
        product.launch(module, config, **of)
        product.check(results())


@by_name
def test_many_tiles_of_a_team(name: str, random: numpy.random.Generator) -> None:
    """A team has more tiles than stages of any kind, of groups with one row, and with more than a tile has."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        ends = [1, 2, 2, 19, 20, 60]
        product = Product(emulator, random, config, ends, 200, 2 * STEP_K + 32)
        product.launch(module, config, 1, team_log2=1, tile_pairs=1 + case % min(4, config.pairs))
        product.check()


@by_name
def test_every_code_and_scale_of_b(name: str, random: numpy.random.Generator) -> None:
    """With numbers of all significant bits, from the smallest normal ones of fp16 on: the exact product."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    m, n, k = 8 * config.a_units, 256, 16 * 256
    product = Product(emulator, random, config, [m], n, k, gathers=False)
    exact = few_rows.place_every_code_and_scale_of_b(product, (m, k), n, 7 if config.bf16 else 10, random)
    product.launch(module, config, team_log2=2, tile_pairs=config.pairs // config.a_units)
    assert (product.result() == exact.astype("f4")).all()


@of_each_kind
def test_nan(name: str, random: numpy.random.Generator) -> None:
    """A NaN scale makes its column of the group NaN, NaN in A its row, an index outside of A the row of the result, and
    nothing else."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 1))
    product = Product(emulator, random, config, [5, 9], 150, 1056, gathers=False)
    expected = place_nan(product)
    product.launch(module, config, 3, team_log2=1, tile_pairs=2)
    assert (numpy.isnan(product.result()) == expected).all()


@of_each_kind
def test_epilogues(name: str, random: numpy.random.Generator) -> None:
    """alpha as a number, of all, of each matrix and of each of its columns; bias of each matrix in any type; factors of
    rows; each output type, rows of the result on fewer bytes than a store has."""
    config = CONFIGS[name]
    for case in range(4 * SEEDS):
        emulator, module = load(config, timing(random, case))
        product = Product(emulator, random, config, [3, 3, 12], 133, 288, 2, TYPES[case % 3])
        results = place_epilogue(product, random, case)
        product.launch(module, config, 4, team_log2=1, tile_pairs=min(3, config.pairs))
        product.check(results())


@of_each_kind
def test_rows_do_not_depend_on_others(name: str, random: numpy.random.Generator) -> None:
    """Sums that round: the bits of a row are those of the row in a group of its own, by any instantiation of its type
    of A and any number of SMs, as long as the team has as many warps."""
    config = CONFIGS[name]
    emulator, module = load(config, timing(random, 0))
    n, k = 136, 9 * STEP_K + 32
    product = Product(emulator, random, config, [11], n, k, gathers=False)
    product.values = random.standard_normal((11, k)).astype("f2" if not config.bf16 else "f4")
    product.place_a()
    product.launch(module, config, 5, team_log2=2, tile_pairs=2)
    for other in (other for other in CONFIGS.values() if other.bf16 == config.bf16):
        emulator, module = load(other, timing(random, 1))
        alone = Product(emulator, random, other, [1], n, k, gathers=False)
        for array, of in list(zip(alone.arrays, product.arrays))[2:]:
            array.numpy()[...] = of.numpy()
        alone.values = product.values[9:10]
        alone.place_a()
        alone.launch(module, other, int(random.integers(1, 20)), team_log2=2, tile_pairs=1)
        assert (alone.result()[0].view("u4") == product.result()[9].view("u4")).all()


@of_each_kind
def test_calls_in_a_row(name: str, random: numpy.random.Generator) -> None:
    """Dependent launches: each has the previous result as A."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, module = load(config, timing(random, case))
        calls = [Product(emulator, random, config, [2, 9], 128, 128, out_type=FP16, gathers=False) for _ in range(3)]
        launch_one = partial(Product.launch, module=module, config=config, ctas=3, tile_pairs=2, wait=False)
        check_calls_in_a_row(calls, launch_one, a_is_fp16=not config.bf16)


@pytest.mark.parametrize("operand", ["a", "b", "scale_b", "ends", "rows", "row_scale", "alpha"])
def test_late_operands(operand: str, random: numpy.random.Generator) -> None:
    """The grid before writes an operand late."""
    config = CONFIGS[str(random.choice(list(CONFIGS)))]
    for case in range(3 * SEEDS):
        emulator, module = load(config, timing(random, case))
        product = Product(emulator, random, config, [3, 3, 20], 150, 800, parts=2)
        of = {"team_log2": int(random.integers(2)), "tile_pairs": 2}
        launch_one = partial(Product.launch, module=module, config=config, ctas=3, wait=False, **of)
        check_late_operand(product, launch_one, operand, random, case)


def test_shared_memory() -> None:
    assert all(config.shared_bytes <= shared_limit(config) for config in CONFIGS.values())


@sass.needed
@pytest.mark.parametrize("backend", BACKENDS)
def test_machine_code(backend: str, tmp_path: Path) -> None:
    """No local memory; the loop over pairs is not unrolled: the mma and scalings of one pair, for 8 rows and, where a
    tile has 16, for those. A CTA fits the registers."""
    cubin = sass.find_cubin(Path(nvfp4._C.__file__), tmp_path, f"nvfp4_{backend}_grouped_units_")
    kernels = sass.disassemble(cubin, "nvfp4_")
    for name, config in headers_of(backend).configs("grouped_units").items():
        kernel = kernels[name]
        spills = name == "sm100_grouped_units_bf16_16"  # 16 bytes, at 127 registers; of this kernel nothing was timed
        assert kernel.stack == 16 * spills and kernel.local == 0 and (spills or not kernel.all("LDL|STL"))
        assert not kernel.all(r"F2F\."), "results are rounded by F2FP"
        assert len(kernel.all("HMMA")) == 16 * (1 if config.a_units == 1 else 3)
        scalings = len(kernel.all(r"HMUL2|HFMA2\.(MMA\.)?BF16"))
        assert 64 * config.a_units <= scalings <= 64 * config.a_units + 8
        assert kernel.registers * config.threads <= 65536


@pytest.mark.parametrize("name", [name for name in CONFIGS if CONFIGS[name].headers.name != "sm90"])
def test_bits_are_those_of_hopper(name: str, random: numpy.random.Generator) -> None:
    """Sums that round: sm90's instantiation has the same bits by teams of as many warps, though it decodes B otherwise
    and has tiles of other sizes."""
    config = CONFIGS[name]
    of_hopper = CONFIGS[name.replace(config.headers.name, "sm90")]
    given: Product | None = None
    results = []
    for one, tile_pairs in ((config, 1), (of_hopper, 3)):
        emulator, module = load(one, timing(random, 0))
        product = Product(emulator, random, one, [3, 3, 11], 200, 9 * STEP_K + 32, 2, gathers=False)
        given = given or product
        for array, of in list(zip(product.arrays, given.arrays))[1:]:
            array.numpy()[...] = of.numpy()
        product.values = given.values = random.standard_normal(given.values.shape) if not results else given.values
        product.place_a()
        product.launch(module, one, 5, team_log2=2, tile_pairs=tile_pairs)
        results.append(product.result().view("u4").copy())
    assert (results[0] == results[1]).all()
