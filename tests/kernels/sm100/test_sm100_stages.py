"""Stages A to E of the B200 kernel's bring-up, on the emulated B200: each step of csrc/kernels/sm100/gemm.cu
separately, with the kernel's own functions (tests/kernels/sm100/stages.cu). Stage F, the whole kernel, is
tests/kernels/sm100/test_sm100_gemm.py.

The first stage that fails names the wrong step; each docstring lists what its failure means. SM100_SEEDS: emulated
timings a case (4, one of each kind; the full proof takes 20). SM100_HARDWARE=1 runs them on the machine's own B200 or
B300.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys

import numpy
import pytest
from emulate import Emulator, EmulatorError, Kernel, build
from harness.hardware import Hardware
from harness.headers import Config
from harness.launch import NO_SWIZZLE, SHARED_LIMIT, SWIZZLE_128, UINT8, UINT16, compile_ptx, only_entry
from harness.values import BF16, FP16, FP32, ceil_div, stored, swizzle_scales
from paths import KERNELS
from sm100.expected import box, codes, swizzled, tensor_core
from sm100.gemm import CONFIGS, Product, cluster, column_pairs, mma_tile_m, splits

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM100_SEEDS", 2))
HARDWARE = os.environ.get("SM100_HARDWARE") == "1"
NEVER_WRITTEN = 0xA5
CTA_BYTES = 65536  # as in stages.cu
SHARED = CTA_BYTES + 64
ATOM = 512

Generator = numpy.random.Generator


def by_name(chosen: list[Config]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("config", chosen, ids=lambda c: c.short)


ALL = by_name(list(CONFIGS.values()))
PLAIN = by_name([c for c in CONFIGS.values() if not c.cp_async])
CP_ASYNC = by_name([c for c in CONFIGS.values() if c.cp_async])


def gpu(seed: int, tmem_base: int) -> Emulator:
    """The GPU; an emulated one allocates tensor memory from tmem_base on."""
    return Hardware() if HARDWARE else Emulator("sm_100", seed=seed, tmem_base=tmem_base)


def kernel_text(name: str) -> str:
    return only_entry(compile_ptx(KERNELS / "sm100/stages.cu", "sm100"), name)


def stage(name: str, seed: int, tmem_base: int | None = None) -> tuple[Emulator, Kernel]:
    emulator = gpu(seed, seed % 5 * 32 if tmem_base is None else tmem_base)
    return emulator, emulator.load(kernel_text(name))[name]


# ---- A: loads into shared memory


def corners(random: Generator, limits: tuple[int, int, int], shape: tuple[int, int, int]) -> list[tuple[int, ...]]:
    """(z, y, x): inside, across the end of each dimension, and past it. x in whole boxes."""
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
    """Loads boxes of `shape` from source with that kernel and compares the whole image of shared memory.

    source: [z][y][x] elements of `element` bytes, or scales [z][y][x][256], whose last axis is the map's dimension 0.
    """
    cta_group = 2 if name.endswith("pair") else 1
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
            image = emulator.empty((cta_group, size), numpy.uint8)
            arguments = [encoded, x, y, z, step, at, bytes_, image, size]
            emulator.launch(kernel, cta_group, 128, arguments, SHARED, cluster=cta_group if cta_group == 2 else None)
            for rank in range(cta_group):
                whole = (z, y + rank * step, x) + (0,) * (source.ndim - 3)
                tile = box(source, whole, shape)
                tile = swizzled(tile.reshape(-1, 128)) if swizzle else numpy.ascontiguousarray(tile).view("u1").ravel()
                check_image(image.numpy()[rank], image_with(tile, at, size), f"seed {seed}, CTA {rank}, corner {whole}")


def boxes(cta_group: int) -> list[int]:
    """Rows of the value boxes of the instantiations with that cta_group."""
    found = [c for c in CONFIGS.values() if c.cta_group == cta_group]
    return sorted({rows for c in found for rows in (128 // c.multicast, c.mma_tile_n // c.cta_group)})


@pytest.mark.parametrize(
    ("cta_group", "rows"),
    [(cta_group, rows) for cta_group in (1, 2) for rows in sorted({8, *boxes(1)} if cta_group == 1 else boxes(2))],
)
def test_a_values_by_tensor_map(cta_group: int, rows: int, random: Generator) -> None:
    """A: a TMA load writes a box of values in the 128-byte swizzle, zeros past the tensor's end, nothing outside the
    box, and completes all bytes of the box. In a pair both CTAs complete on the leader's barrier.

    Wrong bytes in a pattern of 16: the map's swizzle, or a stage that is not 1024-byte aligned. A hang: the byte count.
    Wrong rows or columns: the map's dimensions, strides or box.
    """
    pitch = 16 * int(random.integers(5, 40))
    source = random.integers(0, 256, (2, int(random.integers(1, 200)), pitch), numpy.uint8)
    name = "stage_a_values" + "_pair" * (cta_group == 2)
    run_boxes(name, random, source, (1, rows, 128), 1, swizzle=True)


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_scales_by_tensor_map(blocks: int, random: Generator) -> None:
    """A: each CTA of a pair loads four scale atoms for each 128 rows, in order. A failure is in the rank 4 map: its
    dimensions are 256 pairs of bytes, atoms along K, 128-row blocks, batches."""
    shape = (2, int(random.integers(1, 6)), int(random.integers(1, 11)), ATOM // 2)
    source = random.integers(0, 1 << 16, shape, numpy.uint16)
    run_boxes("stage_a_scales_pair", random, source, (1, blocks, 4, ATOM // 2), 2, swizzle=False)


def test_a_scales_by_bulk_copy(random: Generator) -> None:
    """A: one to four scale atoms by cp.async.bulk, as a single CTA loads them. A hang is the byte count, a fault a
    misaligned address."""
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


@CP_ASYNC
@pytest.mark.parametrize("linear", [False, True], ids=["128x4", "linear"])
def test_a_cp_async(config: Config, linear: bool, random: Generator) -> None:
    """A: the cp.async producer writes the same bytes as TMA: swizzled values in pieces of 8 bytes, scales of either
    layout as atoms, zeros for scales past K. Rows and pieces that do not exist stay untouched. A failure here and not
    above is the address arithmetic of the cp.async warps."""
    mma_b_bytes, sfb_atoms = config.mma_tile_n * 128, -(-config.mma_tile_n // 128)
    size = 16384 + mma_b_bytes + 2048 * (1 + sfb_atoms)
    for seed in range(SEEDS):
        emulator, kernel = stage(f"stage_a_{config.name}", seed)
        k = 16 * int(random.integers(1, 40))
        pitch = k // 2 + 8 * int(random.integers(0, 3))
        m, n = int(random.integers(1, config.mma_tile_n * 2)), int(random.integers(1, 300))
        product = Product(emulator, random, m, n, k, l=2, linear=linear, pitch=pitch)
        schedule = product.schedule(config, True, 1)
        mma_m = int(random.integers(n)) // 128 * 128
        mma_n, l = int(random.integers(m)) // config.mma_tile_n * config.mma_tile_n, 1
        k_stage = int(random.integers(-(-k // 256)))
        image = emulator.empty(size, numpy.uint8)
        arguments = [bytes(product.problem()), bytes(schedule), mma_m, mma_n, l, k_stage, image]
        emulator.launch(kernel, 1, config.threads, arguments, config.shared_bytes)

        expected = numpy.full(size, NEVER_WRITTEN, numpy.uint8)
        for which, first, rows, at, scales_at in (
            (1, mma_m, 128, 0, 16384 + mma_b_bytes),
            (0, mma_n, config.mma_tile_n, 16384, 16384 + mma_b_bytes + 2048),
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
        check_image(
            image.numpy(), expected, f"seed {seed}, mma_m {mma_m} mma_n {mma_n} k stage {k_stage} of {m}x{n}x{k}"
        )


# ---- B: allocation of tensor memory


def hold(
    launches: list[tuple[str, int, int]], seed: int, tmem_base: int = 0
) -> tuple[numpy.ndarray, list[int], list[int]]:
    """Launches (kernel, CTAs, bytes of shared memory) back to back with programmatic dependent launch; a real GPU,
    which spreads CTAs over SMs, gets 40 times as many.

    Returns for each CTA [sm, address, asked, got, gone, foreign cells], its columns and the index of its launch.
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
    """No column has two owners at a time. Returns how often a CTA asked while a CTA of an earlier launch held columns
    on the same SM."""
    contended = 0
    assert not holdings[:, 5].any(), "a CTA found another CTA's number in its columns"
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
    """B: CTAs of several grids share an SM and its tensor memory, back to back with programmatic dependent launch, each
    calling launch_dependents after its allocation: every CTA gets columns of its own. Single-CTA kernels of 256 and 512
    columns have so little shared memory that more CTAs fit an SM than its tensor memory serves; pairs have the amount
    that the kernel uses.

    A hang: the order of alloc, griddepcontrol and relinquish. Foreign cells: an assumed address, or columns deallocated
    too early.
    """
    contended = 0
    for seed in range(max(SEEDS, 8)):
        contended += check_holdings(*hold(CONTENDERS[name], seed, tmem_base=seed * 96 % 512))
    assert contended, "no CTA allocated while another grid held columns of its SM: the test proves nothing"


@pytest.mark.skipif(HARDWARE, reason="would hang the GPU")
@pytest.mark.parametrize("columns", [256, 512])
def test_b_letting_go_before_the_allocation_deadlocks(columns: int) -> None:
    """B: the order that the kernel must not have. If a CTA calls launch_dependents before its allocation, CTAs of the
    next grid can take its columns and keep them until it ends. The emulator finds the deadlock in some timings, so the
    test above can fail."""
    stuck, grids = [], 4 if columns == 256 else 3  # enough to hold all 512 columns and one more

    for seed in range(max(SEEDS, 14)):
        try:
            hold([(f"stage_b_{columns}_early", 10, 30000)] * grids, seed)
        except EmulatorError as error:
            assert "tensor memory" in str(error) or "alloc" in str(error), error
            stuck.append(seed)
    assert stuck


# ---- C: scales in tensor memory


@pytest.mark.parametrize("cta_group", [1, 2])
@pytest.mark.parametrize("sfb_atoms", [1, 2])
def test_c_scales_in_tensor_memory(cta_group: int, sfb_atoms: int, random: Generator) -> None:
    """C: tcgen05.cp writes row r of an atom to lane r % 32 of every lane quarter, column r / 32, four scales a cell. A
    stage has four atoms of mma_a, then 4 or 8 columns of mma_b a K block, as mainloop() expects. Rows 64 to 127, which
    odd tiles of MMA_TILE_N = 64 use, begin 2 columns further on. In a pair each CTA has its own tensor memory.

    Wrong rows: the descriptor's stride or swizzle. One quarter wrong: the warpx4 multicast. Right values in other
    columns: the address.
    """
    blocks = 1 + sfb_atoms
    for seed in range(SEEDS):
        emulator, kernel = stage(f"stage_c_{cta_group}_{sfb_atoms}", seed)
        scales = random.integers(0, 256, (cta_group, blocks, 128, 16), numpy.uint8)  # of four atoms along K
        atoms = swizzle_scales(scales.reshape(cta_group * blocks, 128, 16))
        source = emulator.array(atoms)
        image = emulator.empty((cta_group, 128, 64, 4), numpy.uint8)
        first = 4 * int(random.integers(0, 5))
        emulator.launch(
            kernel, cta_group, 192, [source, image, first], SHARED, cluster=cta_group if cta_group == 2 else None
        )
        expected = numpy.full((cta_group, 128, 64, 4), NEVER_WRITTEN, numpy.uint8)
        lane = numpy.arange(128)
        for i in range(4):
            for column in range(4):
                row = 32 * column + lane % 32
                of_atom = slice(4 * i, 4 * i + 4)
                expected[:, :, first + 4 * i + column] = scales[:, 0, row, of_atom]
                for j in range(sfb_atoms):
                    at = first + 16 + 4 * (i * sfb_atoms + j) + column
                    expected[:, :, at] = scales[:, 1 + j, row, of_atom]
        check_image(image.numpy().ravel(), expected.ravel(), f"seed {seed}")
        odd_half = image.numpy()[:, :32, first + 18 : first + 20].transpose(0, 2, 1, 3).reshape(cta_group, 64, 4)
        assert (odd_half == scales[:, 1, 64:, :4]).all()


# ---- D: products


def set_scales(product: Product, random: Generator, choices: numpy.ndarray) -> None:
    for which in (0, 1):
        scales = random.choice(choices, product.scales[which].shape)
        product.scales[which] = scales
        product.arrays[2 * which + 1].numpy()[...] = swizzle_scales(scales)


FINITE = numpy.arange(0x7F, dtype=numpy.uint8)  # zero, subnormal and normal
SMALL = numpy.arange(0x11, dtype=numpy.uint8)  # the subnormal ones and the least normal ones
MIDDLE = numpy.arange(0x28, 0x48, dtype=numpy.uint8)


def run_products(config: Config, random: Generator, k: int, choices: numpy.ndarray, tiles: int = 1) -> None:
    """Accumulators of one tile of mma_a and `tiles` of mma_b against tensor_core(): equal bits."""
    tiles = ceil_div(tiles, config.multicast) * config.multicast
    for seed in range(SEEDS):
        emulator, kernel = stage(f"stage_d_{config.name}", seed)
        m = mma_tile_m(config) - int(random.integers(0, 20))
        n = config.mma_tile_n * (tiles - 1) + int(random.integers(config.mma_tile_n // 2 + 1, config.mma_tile_n + 1))
        pitch = (
            k // 2 + 8 * int(random.integers(2)) if config.cp_async else 0
        )  # rows off 16 bytes: values by cp.async, too
        product = Product(emulator, random, m, n, k, pitch=pitch)
        set_scales(product, random, choices)
        schedule = product.schedule(config, False, 1)
        ctas = schedule.tiles * config.cta_group
        image = emulator.empty((ctas, 128, config.mma_tile_n), numpy.float32)
        arguments = [bytes(product.problem()), bytes(schedule), image]
        emulator.launch(
            kernel, ctas, config.threads, arguments, config.shared_bytes, cluster=cluster(config), programmatic=True
        )
        expected, exact, largest = tensor_core(
            codes(product.data[0][0, :, : k // 2]),
            product.scales[0][0],
            codes(product.data[1][0, :, : k // 2]),
            product.scales[1][0],
        )
        accumulators = image.numpy().reshape(tiles, mma_tile_m(config), config.mma_tile_n)
        got = accumulators.transpose(1, 0, 2).reshape(mma_tile_m(config), -1)[:m, :n]
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
    """D: one tcgen05.mma, K = 64, with every finite scale: the exact sum, truncated to fp32.

    Sums of other rows: descriptors, or the instruction's M and N. Right rows times powers of two: scales of another row
    or block (if stage C passes, the scale columns given to the mma). Only the second CTA of a pair wrong: its half of
    mma_a or mma_b.
    """
    run_products(config, random, 64, choices)


@by_name([c for c in CONFIGS.values() if c.mma_tile_n == 64])
def test_d_odd_half(config: Config, random: Generator) -> None:
    """D: tiles with MMA_TILE_N = 64; the odd ones use the upper half of the scale atom."""
    run_products(config, random, 64, FINITE, tiles=3)


@ALL
def test_d_chain(config: Config, random: Generator) -> None:
    """D: the whole loop over K; the pipeline wraps more than twice, with a tail. Bits equal the same chain in integers,
    so no K block is lost, repeated or reordered, and no scale is read after its column is overwritten. A failure in
    some timings only is a barrier's phase or a missing wait (if stage D with K = 64 passes).
    """
    k = 256 * (2 * config.stages + 1) + 64 * int(random.integers(1, 4))
    run_products(config, random, k, MIDDLE)


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
    """One launch of the epilogue alone; compares the whole output buffer with its guard bytes.

    weights: of tile, lane and column in a cell's sum. extras: alpha, of each column or of all, bias and beta * C.
    """
    emulator, kernel = stage(f"stage_e_{config.name}", seed, tmem_base=None if split == 1 else 0)
    mma_m = int(random.integers(1, 2 * mma_tile_m(config) + 1))
    mma_n = int(random.integers(1 + config.mma_tile_n * (config.multicast - 1), 2 * config.mma_tile_n + 1))
    m, n = (mma_n, mma_m) if swap_ab else (mma_m, mma_n)
    l = int(random.integers(1, 3)) if split == 1 else 1
    product = Product(emulator, random, m, n, 256 * split, l=l, out_type=kind)
    in_stages = split > 1 and bool(
        config.shared_bytes + config.partials_bytes(split) > SHARED_LIMIT or random.integers(2)
    )
    schedule = product.schedule(config, swap_ab, split, in_stages)
    item = 4 if kind == FP32 else 2
    pitch = n * item + item * int(random.integers(0, 20))
    start = GUARD + item * int(random.choice([0, 0, 1, 4]))
    batch = m * pitch + item * int(random.integers(0, 9))
    out = emulator.empty(start + l * batch + GUARD, numpy.uint8)
    problem = product.problem()
    problem.out, problem.out_pitch, problem.out_batch, problem.out_type = out.address + start, pitch, batch, kind
    alpha, bias, c, beta = numpy.ones(n, numpy.float32), numpy.zeros(n, numpy.float32), None, 0.0
    alpha_stride = seed % 2
    if extras:
        alpha = random.choice(numpy.float32([0.5, -0.5, 2, -1]), n if alpha_stride else 1)
        bias = random.integers(-8, 9, n).astype(numpy.float32)
        c, beta = random.integers(-8, 9, (l, m, n)).astype(numpy.float32), 0.5
    arrays = [emulator.array(alpha), emulator.array(stored(bias, kind))]
    if extras:
        arrays.append(emulator.array(stored(c, kind)))
        problem.alpha, problem.alpha_stride = arrays[0].address, alpha_stride
        problem.bias, problem.bias_type = arrays[1].address, kind
        problem.c, problem.c_pitch, problem.c_batch, problem.beta = arrays[2].address, n * item, m * n * item, beta
    schedule.column_pairs = column_pairs(problem, swap_ab)
    pattern = struct.pack("<4f", *weights, 1.0)
    groups = schedule.tiles // config.multicast
    grid = min(clusters or groups, groups) * cluster(config, split)
    shared = config.shared_bytes + (0 if in_stages else config.partials_bytes(split))
    emulator.launch(
        kernel,
        grid,
        32 * (6 + 4 * config.epilogue_groups),
        [bytes(problem), bytes(schedule), pattern],
        shared,
        cluster=cluster(config, split),
    )

    z, row, column = numpy.ogrid[:l, :mma_m, :mma_n]
    tile = (z * schedule.tiles_mma_m + row // mma_tile_m(config)) * schedule.tiles_mma_n + column // config.mma_tile_n
    cells = weights[0] * tile + weights[1] * (row % mma_tile_m(config)) + weights[2] * (column % config.mma_tile_n)
    sums = cells * sum(1 + split_idx for split_idx in range(split))
    sums = (sums.transpose(0, 2, 1) if swap_ab else sums).astype(numpy.float32)
    v = alpha * sums
    if extras:
        v = v + numpy.float32(beta) * c + bias
    image = numpy.full(out.nbytes, 0xFF, numpy.uint8)
    bits = stored(v, kind)
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


EXACT = (131072.0, 512.0, 1.0)  # a different number for every cell of every tile, exact in fp32
KINDS = {"fp32": FP32, "fp16": FP16, "bf16": BF16}


@PLAIN
@pytest.mark.parametrize("swap_ab", [False, True], ids=["plain", "swap_ab"])
def test_e_every_cell_to_its_place(config: Config, swap_ab: bool, random: Generator) -> None:
    """E: every lane and column of the accumulator is stored to its row and column of C and nothing else is written:
    ragged edges, any pitch and alignment, several tiles and batches, persistent CTAs. With 16-bit outputs tile, lane
    and column are tested one at a time.

    Rows and columns transposed: swap_ab. 32 lanes of 128 wrong: the warp's lane quarter. The second tile of a CTA
    wrong: acc_full and acc_empty.
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
    """E: alpha of a column or of all, bias of a column and beta * C of a cell, in every type. If the test above passes,
    a failure is an index into one of the three."""
    for seed in range(SEEDS):
        kind = list(KINDS.values())[seed % 3]
        weights = EXACT if kind == FP32 else (0.0, 1.0, 0.0)
        run_epilogue(config, random, seed, swap_ab, kind, weights, extras=True, clusters=int(random.integers(0, 3)))


@PLAIN
def test_e_split(config: Config, random: Generator) -> None:
    """E: the partial sums of a cluster, times split_idx + 1, are added in the CTA that owns the column. A failure here
    only is in the split-K reduction: owned columns, addresses in other CTAs' shared memory, or its barriers."""
    for seed in range(SEEDS):
        split = splits(config)[1:][seed % len(splits(config)[1:])]
        weights = (65536.0, 256.0, 1.0)
        run_epilogue(config, random, seed, bool(random.integers(2)), FP32, weights, split)


@pytest.mark.skipif(HARDWARE, reason="tests the emulated GPU")
def test_stages_run_through_the_hardware_interface() -> None:
    """SM100_HARDWARE=1: some of these tests through harness/hardware.py, with the emulated driver as libcuda."""
    environment = {**os.environ, "SM100_HARDWARE": "1", "SM100_SEEDS": "1", "LD_LIBRARY_PATH": str(build().parent)}
    chosen = "test_a_cp_async or test_c or test_e_alpha and 128x16"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", chosen]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
