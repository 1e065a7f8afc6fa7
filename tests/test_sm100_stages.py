"""Stages A to E of the B200 kernel's bring-up, on the emulated B200: each step of csrc/sm100_gemm.cu by itself, with
the functions and wrappers that the kernel is made of (tests/sm100/stages.cu). Stage F, the whole kernel, is
tests/test_sm100_gemm.py.

A stage that fails while those before it pass names the step that is wrong; each docstring says what its failure means.
SM100_SEEDS is the number of timings that each case is run with (4, one of each kind; the full proof takes 20). With
SM100_HARDWARE=1 they run on the GPU that is there, a B200 or a B300.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from emulate import Emulator, EmulatorError, Kernel, build
from sm100.expected import BF16, box, codes, swizzled, tensor_core, to_type
from sm100.hardware import Hardware
from sm100.launch import (
    FP16,
    FP32,
    NAN,
    NO_SWIZZLE,
    SWIZZLE_128,
    UINT8,
    UINT16,
    Config,
    Product,
    compile_ptx,
    configs,
    only_entry,
    swizzle_scales,
)

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM100_SEEDS", 4))
HARDWARE = os.environ.get("SM100_HARDWARE") == "1"
CONFIGS = configs()
NEVER_WRITTEN = 0xA5
CTA_BYTES = 65536  # as in stages.cu
SHARED = CTA_BYTES + 64
ATOM = 512

Generator = numpy.random.Generator


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Generator:
    return numpy.random.default_rng([int(os.environ["NVFP4_TEST_SEED"]), *request.node.nodeid.encode()])


def by_name(chosen: list[Config]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("config", chosen, ids=lambda c: c.name.removeprefix("sm100_gemm_"))


ALL = by_name(list(CONFIGS.values()))
PLAIN = by_name([c for c in CONFIGS.values() if not c.gather])
GATHER = by_name([c for c in CONFIGS.values() if c.gather])


def gpu(seed: int, tmem_base: int) -> Emulator:
    """With tensor memory that begins anywhere, where that can be chosen."""
    return Hardware() if HARDWARE else Emulator("sm_100", seed=seed, tmem_base=tmem_base)


def kernel_text(name: str) -> str:
    return only_entry(compile_ptx(Path(__file__).parent / "sm100" / "stages.cu"), name)


def stage(name: str, seed: int, tmem_base: int | None = None) -> tuple[Emulator, Kernel]:
    emulator = gpu(seed, seed % 5 * 32 if tmem_base is None else tmem_base)
    return emulator, emulator.load(kernel_text(name))[name]


# ---- A: copies into shared memory


def corners(random: Generator, limits: tuple[int, int, int], shape: tuple[int, int, int]) -> list[tuple[int, ...]]:
    """(z, y, x): inside, over the end of each dimension, and past it. x in whole spans."""
    l, rows, columns = limits
    _, high, wide = shape
    y, x = int(random.integers(rows)), int(random.integers(-(-columns // wide))) * wide
    over = (max(rows - high // 2, 0), columns // wide * wide)
    return [(0, 0, 0), (l - 1, y, x), (l - 1, *over), (0, rows, 0), (0, y, over[1] + wide), (l, y, x)]


def image_with(tile: numpy.ndarray, at: int, size: int) -> numpy.ndarray:
    image = numpy.full(size, NEVER_WRITTEN, numpy.uint8)
    image[at : at + len(tile)] = tile
    return image


def check_image(got: numpy.ndarray, expected: numpy.ndarray, what: object) -> None:
    wrong = numpy.flatnonzero(got != expected)
    assert not len(wrong), (
        f"{what}: {len(wrong)} of {got.size} bytes differ, first at {wrong[0]}: "
        f"{got[wrong[0]]:#04x} for {expected[wrong[0]]:#04x}"
    )


def run_boxes(
    name: str, random: Generator, source: numpy.ndarray, shape: tuple[int, ...], element: int, swizzle: bool
) -> None:
    """Copies boxes of `shape` out of source by the kernel of that name and compares all of shared memory's image.

    source: [z][y][x] elements of that many bytes, or [z][y][x][256] of scales, which the map has as dimension 0.
    """
    group = 2 if name.endswith("pair") else 1
    bytes_, step = int(numpy.prod(shape)) * element, shape[1]
    size = bytes_ + 4096
    span = shape[:3]
    for seed in range(SEEDS):
        emulator, kernel = stage(name, seed)
        memory = emulator.array(source)
        dims = source.shape[::-1]
        strides = [source.strides[i] for i in range(source.ndim - 2, -1, -1)]
        encoded = emulator.tensor_map(
            UINT8 if element == 1 else UINT16, memory, dims, strides, shape[::-1],
            swizzle=SWIZZLE_128 if swizzle else NO_SWIZZLE,
        )  # fmt: skip
        for corner in corners(random, source.shape[:3], span):
            z, y, x = corner
            at = 1024 * int(random.integers(0, 4)) if swizzle else 512 * int(random.integers(0, 8))
            image = emulator.empty((group, size), numpy.uint8)
            arguments = [encoded, x, y, z, step, at, bytes_, image, size]
            emulator.launch(kernel, group, 128, arguments, SHARED, cluster=group if group == 2 else None)
            for rank in range(group):
                whole = (z, y + rank * step, x) + (0,) * (source.ndim - 3)
                tile = box(source, whole, shape)
                tile = swizzled(tile.reshape(-1, 128)) if swizzle else numpy.ascontiguousarray(tile).view("u1").ravel()
                check_image(image.numpy()[rank], image_with(tile, at, size), f"seed {seed}, CTA {rank}, corner {whole}")


def boxes(group: int) -> list[int]:
    """Rows of the boxes of values of the instantiations with that group."""
    return sorted({128, *(c.tile_y // c.group for c in CONFIGS.values() if c.group == group)})


@pytest.mark.parametrize(
    ("group", "rows"),
    [(group, rows) for group in (1, 2) for rows in sorted({8, *boxes(1)} if group == 1 else boxes(2))],
)
def test_a_values_by_tensor_map(group: int, rows: int, random: Generator) -> None:
    """A: a box of values lands under the 128-byte swizzle as the tensor core expects it, zeros where the tensor ends,
    all bytes of the box counted, nothing beside it. In a pair both CTAs count at the leader's barrier.

    Wrong bytes in a pattern of 16: the swizzle of the map, or a stage that does not begin on 1024 bytes. A hang: the
    count of bytes. Wrong rows or columns: the map's dimensions, strides or box.
    """
    pitch = 16 * int(random.integers(5, 40))
    source = random.integers(0, 256, (2, int(random.integers(1, 200)), pitch), numpy.uint8)
    name = "stage_a_values" + "_pair" * (group == 2)
    run_boxes(name, random, source, (1, rows, 128), 1, swizzle=True)


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_scales_by_tensor_map(blocks: int, random: Generator) -> None:
    """A: four atoms of scales for each 128 rows, whole and in order, by each CTA of a pair. A failure is one of the
    map of rank 4: dimensions (256 pairs of bytes, atoms along K, blocks of rows, batches)."""
    shape = (2, int(random.integers(1, 6)), int(random.integers(1, 11)), ATOM // 2)
    source = random.integers(0, 1 << 16, shape, numpy.uint16)
    run_boxes("stage_a_scales_pair", random, source, (1, blocks, 4, ATOM // 2), 2, swizzle=False)


def test_a_scales_by_bulk_copy(random: Generator) -> None:
    """A: one to four atoms of scales by a bulk copy, as a CTA without a pair loads them. A hang is the count of bytes,
    a fault an address that is not on 16."""
    for seed in range(SEEDS):
        emulator, kernel = stage("stage_a_bulk", seed)
        source = random.integers(0, 256, 8 * ATOM, numpy.uint8)
        memory = emulator.array(source)
        for atoms in (1, 2, 3, 4):
            first, at = (ATOM * int(i) for i in random.integers(0, 5, 2))
            image = emulator.empty(8 * ATOM, numpy.uint8)
            arguments = [memory.address + first, at, atoms * ATOM, image, 8 * ATOM]
            emulator.launch(kernel, 1, 128, arguments, SHARED)
            expected = image_with(source[first : first + atoms * ATOM], at, 8 * ATOM)
            check_image(image.numpy(), expected, f"seed {seed}, {atoms} atoms")


@GATHER
@pytest.mark.parametrize("linear", [False, True], ids=["128x4", "linear"])
def test_a_gather(config: Config, linear: bool, random: Generator) -> None:
    """A: what the gather warps write with cp.async is what the tensor map writes, byte for byte: swizzled values in
    pieces of 8 bytes, scales out of either layout as atoms, zeros for scales past K. Rows and pieces that do not exist
    are left alone. A failure here and not in the tests above is the gather warps' own address arithmetic."""
    y_bytes, atoms_y = config.tile_y * 128, -(-config.tile_y // 128)
    size = 16384 + y_bytes + 2048 * (1 + atoms_y)
    for seed in range(SEEDS):
        emulator, kernel = stage(f"stage_a_{config.name}", seed)
        k = 16 * int(random.integers(1, 40))
        pitch = k // 2 + 8 * int(random.integers(0, 3))
        m, n = int(random.integers(1, config.tile_y * 2)), int(random.integers(1, 300))
        product = Product(emulator, random, m, n, k, l=2, linear=linear, pitch=pitch)
        schedule = product.schedule(config, True, 1)
        x, y, l = int(random.integers(n)) // 128 * 128, int(random.integers(m)) // config.tile_y * config.tile_y, 1
        k_stage = int(random.integers(-(-k // 256)))
        image = emulator.empty(size, numpy.uint8)
        arguments = [bytes(product.problem()), bytes(schedule), x, y, l, k_stage, image]
        emulator.launch(kernel, 1, config.threads, arguments, config.shared_bytes)

        expected = numpy.full(size, NEVER_WRITTEN, numpy.uint8)
        for which, first, rows, at, scales_at in (
            (1, x, 128, 0, 16384 + y_bytes),
            (0, y, config.tile_y, 16384, 16384 + y_bytes + 2048),
        ):
            data, scales = product.data[which][l, :, : k // 2], product.scales[which][l]
            window = (slice(first, first + rows), slice(k_stage * 128, k_stage * 128 + 128))
            tile = numpy.full((rows, 128), NEVER_WRITTEN, numpy.uint8)
            there = data[window]
            tile[: there.shape[0], : there.shape[1]] = there
            expected[at : at + rows * 128] = swizzled(tile)
            for i in range(min(4, -(-k // 64) - k_stage * 4)):
                four = box(scales, (first, k_stage * 16 + 4 * i), (min(rows, len(scales) - first), 4))
                for row, word in enumerate(four):
                    to = scales_at + ATOM * i + row % 32 * 16 + row // 32 * 4
                    expected[to : to + 4] = word
        check_image(image.numpy(), expected, f"seed {seed}, x {x} y {y} k stage {k_stage} of {m}x{n}x{k}")


# ---- B: allocation of tensor memory


def hold(
    launches: list[tuple[str, int, int]], seed: int, tmem_base: int = 0
) -> tuple[numpy.ndarray, list[int], list[int]]:
    """Queues (kernel, CTAs, bytes of shared memory) one behind the other under dependent launch; a real GPU, which
    spreads them, gets 40 times as many CTAs.

    Returns what each CTA saw [sm, address, asked, got, gone, foreign cells], its columns and its launch's number.
    """
    emulator = gpu(seed, tmem_base)
    launches = [(name, ctas * 40 if HARDWARE else ctas, shared) for name, ctas, shared in launches]
    kernels = {name: emulator.load(kernel_text(name))[name] for name in {name for name, _, _ in launches}}
    total = sum(ctas for _, ctas, _ in launches)
    tickets = emulator.array(numpy.zeros(1, numpy.uint32))
    holdings = emulator.array(numpy.zeros((total, 6), numpy.uint32))
    columns, launch_of, first = [], [], 0
    for i, (name, ctas, shared) in enumerate(launches):
        emulator.launch(
            kernels[name], ctas, 192, [tickets, holdings, first], shared,
            cluster=2 if "pair" in name else None, programmatic=True, wait=False,
        )  # fmt: skip
        columns += [int(re.search(r"\d+", name)[0])] * ctas
        launch_of += [i] * ctas
        first += ctas
    emulator.synchronize()
    return holdings.numpy().copy(), columns, launch_of


def check_holdings(holdings: numpy.ndarray, columns: list[int], launch_of: list[int]) -> int:
    """No column belongs to two at a time. Returns how often a CTA asked while one of an earlier launch held columns of
    the same SM."""
    contended = 0
    assert not holdings[:, 5].any(), "a CTA found another one's number in its columns"
    for i, (sm, address, asked, got, gone, _) in enumerate(holdings.tolist()):
        assert address % 32 == 0 and address + columns[i] <= 512
        for j, (other_sm, other, _, other_got, other_gone, _) in enumerate(holdings.tolist()):
            if sm != other_sm or i == j:
                continue
            contended += launch_of[j] < launch_of[i] and other_got < asked < other_gone
            if got < other_gone and other_got < gone:
                assert address + columns[i] <= other or other + columns[j] <= address
    return contended


CONTENDERS = {
    "256": [("stage_b_256", 8, 40000)] * 6,
    "512": [("stage_b_512", 6, 40000)] * 6,
    "mixed": [("stage_b_256", 8, 40000), ("stage_b_512", 5, 40000)] * 3,
    "pairs": [("stage_b_256_pair", 8, 112000)] * 6,
    "pairs and singles": [("stage_b_256_pair", 8, 112000), ("stage_b_512_pair", 4, 190000)] * 2
    + [("stage_b_256", 6, 105000), ("stage_b_256_pair", 6, 112000), ("stage_b_512", 4, 216000)],
}


@pytest.mark.parametrize("name", CONTENDERS)
def test_b_allocation_never_deadlocks(name: str) -> None:
    """B: CTAs of several grids share an SM and its tensor memory, back to back under dependent launch, each letting the
    next grid start when it has its columns: all get theirs, nobody another one's. Alone, kernels of 256 and 512 columns
    are given so little shared memory that more CTAs fit an SM than its tensor memory serves; pairs as much as they
    really use.

    A hang: the order of alloc, griddepcontrol and relinquish. Foreign cells: an address that was assumed, or columns
    given back too early.
    """
    contended = 0
    for seed in range(max(SEEDS, 8)):
        contended += check_holdings(*hold(CONTENDERS[name], seed, tmem_base=seed * 96 % 512))
    assert contended, "no grid ever asked where another one held columns: this proved nothing"


@pytest.mark.skipif(HARDWARE, reason="would hang the GPU")
@pytest.mark.parametrize("columns", [256, 512])
def test_b_letting_go_before_the_allocation_deadlocks(columns: int) -> None:
    """B: the order that the kernel must not have. A CTA that lets the next grid start before it has its own columns can
    lose them to that grid's CTAs, which keep them until it ends. The emulator finds it in some timings, so that the
    test above could have failed."""
    stuck, grids = [], 4 if columns == 256 else 3  # enough to hold all 512 columns and one more

    for seed in range(max(SEEDS, 14)):
        try:
            hold([(f"stage_b_{columns}_early", 10, 30000)] * grids, seed)
        except EmulatorError as error:
            assert "tensor memory" in str(error) or "alloc" in str(error), error
            stuck.append(seed)
    assert stuck


# ---- C: scales in tensor memory


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("atoms_y", [1, 2])
def test_c_scales_in_tensor_memory(group: int, atoms_y: int, random: Generator) -> None:
    """C: tcgen05.cp puts row r of an atom into lane r % 32 of every quarter, column r / 32, four scales a cell; the
    atoms of a stage lie as multiply() expects them, four for x, then 4 or 8 columns a step for y. So rows 64 to 127,
    which an odd tile of 64 rows multiplies with, begin 2 columns on. In a pair each CTA's tensor memory gets its own.

    Wrong rows: the descriptor's stride or swizzle. One quarter wrong: the multicast. Right values in other columns:
    the address.
    """
    blocks = 1 + atoms_y
    for seed in range(SEEDS):
        emulator, kernel = stage(f"stage_c_{group}_{atoms_y}", seed)
        scales = random.integers(0, 256, (group, blocks, 128, 16), numpy.uint8)  # of four atoms along K
        atoms = swizzle_scales(scales.reshape(group * blocks, 128, 16), NAN)
        source = emulator.array(atoms)
        image = emulator.empty((group, 128, 64, 4), numpy.uint8)
        first = 4 * int(random.integers(0, 5))
        emulator.launch(kernel, group, 192, [source, image, first], SHARED, cluster=group if group == 2 else None)
        expected = numpy.full((group, 128, 64, 4), NEVER_WRITTEN, numpy.uint8)
        lane = numpy.arange(128)
        for i in range(4):
            for column in range(4):
                row = 32 * column + lane % 32
                of_atom = slice(4 * i, 4 * i + 4)
                expected[:, :, first + 4 * i + column] = scales[:, 0, row, of_atom]
                for j in range(atoms_y):
                    at = first + 16 + 4 * (i * atoms_y + j) + column
                    expected[:, :, at] = scales[:, 1 + j, row, of_atom]
        check_image(image.numpy().ravel(), expected.ravel(), f"seed {seed}")
        odd_half = image.numpy()[:, :32, first + 18 : first + 20].transpose(0, 2, 1, 3).reshape(group, 64, 4)
        assert (odd_half == scales[:, 1, 64:, :4]).all()


# ---- D: products


def set_scales(product: Product, random: Generator, choices: numpy.ndarray) -> None:
    for which in (0, 1):
        scales = random.choice(choices, product.scales[which].shape)
        product.scales[which] = scales
        product.arrays[2 * which + 1].numpy()[...] = swizzle_scales(scales, NAN)


FINITE = numpy.arange(0x7F, dtype=numpy.uint8)  # zero, subnormal and normal
SMALL = numpy.arange(0x11, dtype=numpy.uint8)  # the subnormal ones and the least normal ones
MIDDLE = numpy.arange(0x28, 0x48, dtype=numpy.uint8)


def run_products(config: Config, random: Generator, k: int, choices: numpy.ndarray, tiles: int = 1) -> None:
    """Accumulators of one tile of x and `tiles` of y against tensor_core(), equal to the bit."""
    for seed in range(SEEDS):
        emulator, kernel = stage(f"stage_d_{config.name}", seed)
        m = config.tile_x - int(random.integers(0, 20))
        n = config.tile_y * (tiles - 1) + int(random.integers(config.tile_y // 2 + 1, config.tile_y + 1))
        pitch = k // 2 + 8 * int(random.integers(2)) if config.gather else 0  # off 16 bytes: values gathered, too
        product = Product(emulator, random, m, n, k, pitch=pitch)
        set_scales(product, random, choices)
        schedule = product.schedule(config, False, 1)
        ctas = schedule.tiles * config.group
        image = emulator.empty((ctas, 128, config.tile_y), numpy.float32)
        arguments = [bytes(product.problem()), bytes(schedule), image]
        emulator.launch(
            kernel, ctas, config.threads, arguments, config.shared_bytes, cluster=config.group, programmatic=True
        )
        expected, exact, largest = tensor_core(
            codes(product.data[0][0, :, : k // 2]),
            product.scales[0][0],
            codes(product.data[1][0, :, : k // 2]),
            product.scales[1][0],
        )
        unit = image.numpy().reshape(tiles, config.tile_x, config.tile_y)
        got = unit.transpose(1, 0, 2).reshape(config.tile_x, -1)[:m, :n]
        wrong = numpy.argwhere(got != expected)
        assert not len(wrong), (
            f"seed {seed}, {m}x{n}x{k}: {len(wrong)} of {got.size} wrong, first at {wrong[0].tolist()}: "
            f"{got[tuple(wrong[0])]} for {expected[tuple(wrong[0])]}, exactly {exact[tuple(wrong[0])]}"
        )
        steps = -(-k // 64)
        assert (abs(got - exact) <= steps * 2.0**-23 * largest).all()


@ALL
@pytest.mark.parametrize("choices", [FINITE, SMALL], ids=["finite scales", "small scales"])
def test_d_one_mma(config: Config, choices: numpy.ndarray, random: Generator) -> None:
    """D: one tcgen05.mma, K = 64, with every finite scale there is: the exact sum, cut to fp32.

    Sums of other rows: descriptors, or the instruction's M and N. Right rows with factors of powers of two: scales of
    another row or block (stage C passes: then the columns that the mma is given). Only the second CTA of a pair wrong:
    its half of x or y.
    """
    run_products(config, random, 64, choices)


@by_name([c for c in CONFIGS.values() if c.tile_y == 64])
def test_d_odd_half(config: Config, random: Generator) -> None:
    """D: tiles of 64 rows of y, the odd ones with the upper half of the scale atom."""
    run_products(config, random, 64, FINITE, tiles=3)


@ALL
def test_d_chain(config: Config, random: Generator) -> None:
    """D: the whole loop over K, around the ring more than twice, with a tail: equal to the bit to the same chain in
    integers, so no block is lost, taken twice or added in another order, and no scale read after its column was written
    again. In some timing only: a barrier's parity or a missing wait (stage D with K = 64 passes).
    """
    k = 256 * (2 * config.stages + 1) + 64 * int(random.integers(1, 4))
    run_products(replace(config), random, k, MIDDLE)


# ---- E: the epilogue


GUARD = 256


def run_epilogue(
    config: Config,
    random: Generator,
    seed: int,
    swap_ab: bool,
    kind: int,
    weights: tuple[float, float, float],
    split: int = 1,
    extras: bool = False,
    clusters: int = 0,
) -> None:
    """One launch of the epilogue alone, the whole output buffer compared with its guard bytes.

    weights: what a cell's sum gets of tile, lane and column. extras: alpha a column, bias and beta * C.
    """
    emulator, kernel = stage(f"stage_e_{config.name}", seed, tmem_base=None if split == 1 else 0)
    x_rows = int(random.integers(1, 2 * config.tile_x + 1))
    y_rows = int(random.integers(1, 2 * config.tile_y + 1))
    m, n = (y_rows, x_rows) if swap_ab else (x_rows, y_rows)
    l = int(random.integers(1, 3)) if split == 1 else 1
    product = Product(emulator, random, m, n, 256 * split, l=l, out_type=kind)
    in_stages = split > 1 and bool(config.shared_bytes + config.parts_bytes(split) > 227 * 1024 or random.integers(2))
    schedule = product.schedule(config, swap_ab, split, in_stages)
    item = 4 if kind == FP32 else 2
    pitch = n * item + item * int(random.integers(0, 20))
    start = GUARD + item * int(random.choice([0, 0, 1, 4]))
    batch = m * pitch + item * int(random.integers(0, 9))
    out = emulator.empty(start + l * batch + GUARD, numpy.uint8)
    problem = product.problem()
    problem.out, problem.out_pitch, problem.out_batch, problem.out_type = out.address + start, pitch, batch, kind
    alpha, bias, c, beta = numpy.ones(n, numpy.float32), numpy.zeros(n, numpy.float32), None, 0.0
    if extras:
        alpha = random.choice(numpy.float32([0.5, 1, 2, -1]), n)
        bias = random.integers(-8, 9, n).astype(numpy.float32)
        c, beta = random.integers(-8, 9, (l, m, n)).astype(numpy.float32), 0.5
    arrays = [emulator.array(alpha), emulator.array(to_type(bias, kind))]
    if extras:
        arrays.append(emulator.array(to_type(c, kind)))
        problem.alpha, problem.alpha_stride = arrays[0].address, 1
        problem.bias, problem.bias_type = arrays[1].address, kind
        problem.c, problem.c_pitch, problem.c_batch, problem.beta = arrays[2].address, n * item, m * n * item, beta
    pattern = struct.pack("<4f", *weights, 1.0)
    cluster = config.group * split
    grid = min(clusters or schedule.tiles, schedule.tiles) * cluster
    shared = config.shared_bytes + (0 if in_stages else config.parts_bytes(split))
    emulator.launch(kernel, grid, 320, [bytes(problem), bytes(schedule), pattern], shared, cluster=cluster)

    z, x, y = numpy.ogrid[:l, :x_rows, :y_rows]
    tile = (z * schedule.tiles_x + x // config.tile_x) * schedule.tiles_y + y // config.tile_y
    cells = weights[0] * tile + weights[1] * (x % config.tile_x) + weights[2] * (y % config.tile_y)
    sums = cells * sum(1 + unit for unit in range(split))
    sums = (sums.transpose(0, 2, 1) if swap_ab else sums).astype(numpy.float32)
    v = alpha * sums
    if extras:
        v = v + numpy.float32(beta) * c + bias
    image = numpy.full(out.nbytes, 0xFF, numpy.uint8)
    bits = to_type(v, kind)
    batches, rows, columns, byte = numpy.ogrid[:l, :m, :n, :item]
    image[start + batches * batch + rows * pitch + columns * item + byte] = bits.view(numpy.uint8).reshape(
        l, m, n, item
    )
    got = out.numpy()
    wrong = numpy.flatnonzero(got != image)
    if len(wrong):
        at = int(wrong[0]) - start
        where = (at // batch, at % batch // pitch, at % batch % pitch // item)
        raise AssertionError(
            f"seed {seed}, {m}x{n} l {l} split {split}: {len(wrong)} bytes differ, first in batch, row, column {where}"
        )


EXACT = (131072.0, 512.0, 1.0)  # every cell of every tile another number, all exact in fp32
KINDS = {"fp32": FP32, "fp16": FP16, "bf16": BF16}


@PLAIN
@pytest.mark.parametrize("swap_ab", [False, True], ids=["plain", "swap_ab"])
def test_e_every_cell_to_its_place(config: Config, swap_ab: bool, random: Generator) -> None:
    """E: lane and column of every accumulator reach their row and column of C and nothing else is written: ragged
    edges, any pitch and alignment, several tiles and batches, also by CTAs that take one tile after the other. In 16
    bits the tile, the lane and the column are told apart one at a time.

    Rows or columns exchanged: swap_ab. Every 32nd lane group wrong: the warp's quarter. The second tile of a CTA wrong:
    acc_full and acc_empty.
    """
    for seed in range(SEEDS):
        kind = list(KINDS.values())[seed % 3]
        weights = EXACT
        if kind != FP32:
            weights = tuple(numpy.roll((1.0, 0.0, 0.0), int(random.integers(3))).tolist())
        run_epilogue(config, random, seed, swap_ab, kind, weights, clusters=int(random.integers(0, 3)))


@PLAIN
@pytest.mark.parametrize("swap_ab", [False, True], ids=["plain", "swap_ab"])
def test_e_alpha_bias_and_c(config: Config, swap_ab: bool, random: Generator) -> None:
    """E: alpha and bias of a column and beta * C of a cell, in every type: a failure where the test above passes is an
    index into one of the three."""
    for seed in range(SEEDS):
        kind = list(KINDS.values())[seed % 3]
        weights = EXACT if kind == FP32 else (0.0, 1.0, 0.0)
        run_epilogue(config, random, seed, swap_ab, kind, weights, extras=True, clusters=int(random.integers(0, 3)))


@PLAIN
def test_e_split(config: Config, random: Generator) -> None:
    """E: partial sums of the units of a cluster come together, unit i's times i + 1, in the unit that keeps the column.
    A failure here alone is the exchange: columns kept, addresses in the other CTAs' shared memory, or the barriers
    around it."""
    for seed in range(SEEDS):
        splits = [split for split in (2, 4, 8) if config.group * split <= 8 and config.tile_y // split >= 4]
        split = splits[seed % len(splits)]
        weights = (65536.0, 256.0, 1.0)
        run_epilogue(config, random, seed, bool(random.integers(2)), FP32, weights, split)


@pytest.mark.skipif(HARDWARE, reason="is about the emulated GPU")
def test_stages_run_through_the_face_of_real_hardware() -> None:
    """SM100_HARDWARE=1 works: some of these tests through tests/sm100/hardware.py, the emulated driver as libcuda."""
    environment = {**os.environ, "SM100_HARDWARE": "1", "SM100_SEEDS": "1", "LD_LIBRARY_PATH": str(build().parent)}
    chosen = "test_a_gather or test_c or test_e_alpha and 128x16"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", chosen]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
