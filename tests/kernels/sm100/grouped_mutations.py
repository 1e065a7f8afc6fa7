"""Mutations of csrc/kernels/sm100/grouped.cu, and which tool finds each.

Which tiles a CTA has of several groups is in memory, which the static verifier does not know. It gets products without
ends, whose one group is in the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from harness import groups, verify
from harness.headers import Config
from harness.launch import Generator
from harness.mutations import Mutation, mutation
from harness.values import BF16, FP32
from sm100.grouped import CONFIGS, Groups, Schedule
from sm100.schedules import split_multiply_add


@dataclass(frozen=True)
class Launch(verify.Launch):
    """One launch, with the epilogue's terms, of CTAs, or pairs of them, that share the tiles."""

    config_name: str
    note: str
    sizes: tuple[int, ...]
    n: int
    k: int
    parts: int = 1
    grid: int = 1
    behind: int = 0  # rows behind the last group's
    missing: tuple[int, ...] = ()  # groups without scales
    ends: tuple[int, ...] = ()  # instead of those of the sizes
    late: str = ""  # what a grid before writes late
    activation: str = ""
    limit: float = float("inf")
    out_type: int = FP32
    out_align: int = 16  # of the rows of the result
    dense: bool = False  # one group, whose tiles are in the parameters
    has_ends: bool = True
    terms: bool = True  # of the epilogue
    quantized: bool = False  # results as NVFP4, by global scales of groups
    changing: tuple[int, ...] = ()  # other ends, which alternate with those of the sizes while the kernel runs

    schedule, problem = Schedule, groups.Problem
    split_k = 1

    inlined = (  # each before those that it includes
        "kernels/sm100/grouped_quantize.cuh", "kernels/sm100/groups.cuh", "kernels/common/grouped_tiles.cuh",
        "kernels/common/group_scales.cuh", "kernels/common/group_table.cuh", "kernels/sm100/column_pairs.cuh",
        "kernels/common/batch_epilogue.cuh",
    )  # fmt: skip

    @property
    def for_verifier(self) -> bool:
        return not self.has_ends and not self.terms

    @property
    def config(self) -> Config:
        return CONFIGS[self.config_name]

    @property
    def size(self) -> tuple[int, int, int]:
        return sum(self.sizes), self.n, self.k

    def readable(self, text: str) -> str:
        return split_multiply_add(text)

    def start(self, emulator: Any, module: Any, generator: Generator) -> list[Groups]:
        names = ("out_type", "behind", "missing", "activation", "limit", "out_align", "dense", "has_ends")
        form: dict[str, Any] = {name: getattr(self, name) for name in names}
        product = Groups(emulator, generator, self.sizes, self.n, self.k, self.parts, **form)
        if self.terms:
            product.set_row_scale(generator)
            product.set_alpha_and_bias(generator)
        if self.quantized:
            product.set_quantized(generator)
        if self.changing:
            product.set_changing_ends(numpy.array(self.changing, "i4"))
        if self.ends:
            product.kept["ends"] = emulator.array(numpy.array(self.ends, "i4"))
        with self.grid_before(emulator, product):
            product.launch(module, self.config, self.grid, wait=False)
        return [product]


def dense(name: str, note: str, k: int, tiles: int = 1, fewer: int = 0, **form: Any) -> Launch:
    """One group of so many tiles for one CTA or pair, the last of which has so many rows fewer."""
    config = CONFIGS[name]
    if config.matrices == 2:
        form |= {"parts": 2, "activation": "silu"}
    if config.cta_group == 2:
        form["out_type"] = BF16
    # Tiles of 64 rows follow each other along the columns: every second one along the rows reads scales from the third
    # column on, which the verifier does not order (sm100/schedules.py).
    across = tiles if config.mma_tile_n == 64 else 1
    sizes = (config.mma_tile_n * tiles // across - fewer,)
    return Launch(name, note, sizes, config.tile_columns * across, k, dense=True, has_ends=False, terms=False, **form)


# Stages of the pipeline are few in gated kernels, so that it wraps soon.
WRAP = dense("sm100_grouped_gated_128x64", "wrap", 6 * 256)
TILES = dense("sm100_grouped_128x64", "tiles", 192, 5)
GATED_TILES = dense("sm100_grouped_gated_128x64", "gated tiles", 64, 5)
ONE_SET = dense("sm100_grouped_gated_128x128", "one accumulator", 64, 3)
# A proof takes half a minute for each tile of a pair: mutations get no more than they need.
PAIR_TILE = dense("sm100_grouped_256x256", "pair, a tile", 64)
PAIR_TWO_TILES = dense("sm100_grouped_256x256", "pair, two tiles", 64, 2)
PROVEN = [
    WRAP,
    TILES,
    GATED_TILES,
    ONE_SET,
    dense("sm100_grouped_256x256", "pair, tiles", 64, 3),
    dense("sm100_grouped_gated_128x256", "pair, gated tiles", 64, 2),
    dense("sm100_grouped_256x256", "pair, wrap", 7 * 256),
    dense("sm100_grouped_gated_128x256", "pair, gated wrap", 7 * 256),
    dense("sm100_grouped_128x64", "wrap", 9 * 256),
    dense("sm100_grouped_128x128", "tiles", 64, 5),
    dense("sm100_grouped_128x128", "a narrower tile", 64, 2, fewer=64),
    dense("sm100_grouped_gated_128x128", "a narrower tile", 64, 2, fewer=64),
    dense("sm100_grouped_256x256", "pair, a narrower tile", 64, 2, fewer=128),
    dense("sm100_grouped_gated_128x256", "pair, a narrower tile", 64, 2, fewer=128),
]

RAGGED = Launch("sm100_grouped_128x64", "ragged", (9, 0, 1, 70), 200, 320, parts=2, grid=2, behind=3)
MANY = Launch("sm100_grouped_128x64", "many groups", tuple(int(e % 37 == 5) for e in range(100)), 8, 64, grid=3)
WILD = Launch("sm100_grouped_128x64", "wild ends", (0, 5, 0, 4, 0), 8, 64, ends=(-7, 5, 2, 2**31 - 1, -(2**31)))
BLOCKS = Launch("sm100_grouped_128x128", "two blocks of scales", (3, 140), 16, 64)
HALVES = Launch("sm100_grouped_128x64", "a block's second half", (70,), 16, 256)
# The last group takes stages that hold scales of others.
MISSING = Launch("sm100_grouped_128x64", "groups without scales", (4, 3, 5, 2, 6, 4), 16, 512, missing=(0, 5))
TAIL = Launch("sm100_grouped_128x64", "K of 5 blocks", (5, 3), 16, 320)
WIDE = Launch("sm100_grouped_128x128", "two ranges of columns, all rows", (128, 40), 250, 256)
PAIRS = Launch("sm100_grouped_128x64", "column pairs", (21, 3), 130, 64, out_type=BF16)
ODD = Launch("sm100_grouped_128x64", "odd columns", (21, 3), 131, 64, out_type=BF16, out_align=4)
GATED = Launch(
    "sm100_grouped_gated_128x64", "swiglu of two parts", (9, 0, 1, 70), 200, 320, parts=2, grid=2,
    activation="swiglu", limit=2.0, out_type=BF16,
)  # fmt: skip
GATE_ALONE = Launch("sm100_grouped_128x64", "silu of one part", (9, 3), 130, 320, activation="silu", out_type=BF16)
QUANTIZED = Launch(
    "sm100_grouped_gated_128x64", "as NVFP4", (9, 0, 130, 33), 176, 192, parts=2, grid=2, behind=2, activation="silu",
    out_type=BF16, quantized=True,
)  # fmt: skip
MANY_QUANTIZED = Launch(
    "sm100_grouped_128x64", "many groups as NVFP4", tuple(int(e % 7 == 5) for e in range(70)), 16, 64, grid=3,
    activation="silu", out_type=BF16, quantized=True,
)  # fmt: skip
PAIR = Launch(
    "sm100_grouped_256x256", "pair, ragged", (9, 0, 300, 70), 300, 320, parts=2, grid=2, behind=3, out_type=BF16,
)  # fmt: skip
PAIR_FEW = Launch("sm100_grouped_256x256", "pair, few rows", (9, 3, 5, 130), 16, 64, out_type=BF16)
PAIR_MISSING = Launch(
    "sm100_grouped_256x256", "pair, groups without scales", (140, 3, 300, 2), 16, 512, missing=(0, 3), out_type=BF16,
)  # fmt: skip
PAIR_CHANGING = Launch(
    "sm100_grouped_256x256", "pair, ends change", (300, 0, 17, 260), 128, 320, out_type=BF16,
    changing=(0, 290, 577, 577),
)  # fmt: skip
MANY_CHANGING = Launch(
    "sm100_grouped_128x64", "ends of many groups change", (1,) * 600, 16, 64, grid=3, changing=(600, 0) * 300,
)  # fmt: skip
PAIR_LATE = Launch(
    "sm100_grouped_256x256", "pair, ends of many groups written late", (0,) * 90 + (5, 3), 16, 256, late="ends",
    out_type=BF16,
)  # fmt: skip
GATED_PAIR = Launch(
    "sm100_grouped_gated_128x256", "pair, swiglu", (9, 0, 300, 70), 224, 320, parts=2, grid=2, activation="swiglu",
    limit=2.0, out_type=BF16,
)  # fmt: skip
PAIR_QUANTIZED = Launch(
    "sm100_grouped_gated_128x256", "pair, as NVFP4", (9, 0, 300, 33), 160, 192, parts=2, grid=2, behind=2,
    activation="silu", out_type=BF16, quantized=True,
)  # fmt: skip
LATE = Launch("sm100_grouped_128x64", "ends written late", (5, 3), 16, 256, late="ends")
LATE_MANY = Launch("sm100_grouped_128x64", "ends of many groups written late", (0,) * 90 + (5, 3), 16, 256, late="ends")

DENSE = Launch("sm100_grouped_128x64", "dense", (300,), 200, 320, grid=2, dense=True, has_ends=False, out_type=BF16)
DENSE_END = Launch("sm100_grouped_128x64", "dense, with an end", (20,), 600, 64, behind=80, dense=True)
DENSE_WILD = Launch(
    "sm100_grouped_128x64", "dense, wild end", (100,), 16, 64, dense=True, ends=(2**31 - 1,), activation="silu",
    out_type=BF16, quantized=True,
)  # fmt: skip
DENSE_NONE = Launch("sm100_grouped_128x64", "dense, no row", (0,), 16, 64, behind=99, dense=True, ends=(-(2**31),))
DENSE_MISSING = Launch("sm100_grouped_128x64", "dense, without scales", (9,), 16, 64, missing=(0,), dense=True)
DENSE_LATE = Launch("sm100_grouped_128x64", "dense, end written late", (9,), 16, 64, dense=True, late="ends")
DENSE_QUANTIZED = Launch(
    "sm100_grouped_gated_128x64", "dense, as NVFP4", (70,), 176, 192, parts=2, behind=20, dense=True, activation="silu",
    out_type=BF16, quantized=True,
)  # fmt: skip
DENSE_PAIR = Launch(
    "sm100_grouped_gated_128x256", "dense pair", (300,), 224, 320, parts=2, grid=2, activation="silu", dense=True,
    has_ends=False, out_type=BF16,
)  # fmt: skip

EXPECT = "        mbarrier_arrive_expect_tx(full,"
WAIT_EMPTY = "        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n" + EXPECT
WAIT_FULL = "        mbarrier_wait(cta.full(state.index), state.phase);\n"
FENCE_AFTER = "                tcgen05_fence_after_thread_sync();\n"
WAIT_ACC_EMPTY = "                mbarrier_wait(cta.acc_empty(acc.index), acc.phase ^ 1);\n" + FENCE_AFTER
WAIT_ACC_FULL = "            mbarrier_wait(cta.acc_full(acc.index), acc.phase);\n"
COMMIT_STAGE = "        tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), PAIR);\n"
COMMIT_ACC = "                tcgen05_commit<C::CTA_GROUP>(cta.acc_full(acc.index), PAIR);\n"
RELEASE = "            if (threadIdx.x % 32 == 0) mbarrier_arrive_relaxed(cta.of_leader(cta.acc_empty(acc.index)));\n"
WAIT_LD = "                    for (int i = 0; i < C::CTA_MMAS; i++) tcgen05_wait_ld(of[i]);\n"
ARRIVALS = "EPILOGUE_WARPS * C::EPILOGUE_GROUPS * C::CTA_GROUP)"
DEALLOC = "    if (warp == MMA_WARP) tcgen05_dealloc<C::CTA_GROUP, SM100_GROUPED_TMEM_COLUMNS>(tmem);\n"
LAST = "row + C::LOADED_ROWS >= tile.rows"
CLUSTER_BARRIER = "        barrier_cluster_arrive_relaxed();\n        barrier_cluster_wait();\n"
AT_START = "    if constexpr (C::CTA_GROUP == 2) { /* a pair allocates together, so both CTAs must have started */\n"
AT_END = "    if constexpr (C::CTA_GROUP == 2) { /* until the other CTA's commits have completed and"
AT_END += " its accumulators are read */\n"
COPY = "        if (!s.is_dense && cta.rank == 0) table.copy_to<C::THREADS>(1, p.groups);\n"
FILL = "    else if (cta.rank == 0)\n        table.fill<"
DRAIN = "            drained_rows<C> drained(out, factors, accumulator, has_sums);\n"
RELEASE_DRAINED = "            if (has_sums) release();\n"
CLAMPED = "rows[e] = min(ends[e], m)"

EDITS: list[tuple[Any, ...]] = [
    # the pipeline of stages
    ("groups: no wait on empty", WRAP, WAIT_EMPTY, EXPECT),
    ("groups: phase of empty inverted", WRAP, WAIT_EMPTY, WAIT_EMPTY.replace(" ^ 1", "")),
    ("groups: no wait on full", WRAP, WAIT_FULL, ""),
    ("groups: a stage is released before its mma", WRAP, COMMIT_STAGE, "", WAIT_FULL, WAIT_FULL + COMMIT_STAGE),
    ("groups: a stage is not released", WRAP, COMMIT_STAGE, ""),
    ("groups: bytes of one matrix are expected", WRAP,
     "C::MATRICES * (SM100_MMA_A_BYTES + scale_bytes)", "1 * (SM100_MMA_A_BYTES + scale_bytes)"),
    ("groups: bytes of all boxes are expected", RAGGED, "+ boxes * box_bytes +", "+ C::MMA_TILE_N * 128 +"),
    ("groups: whole stages of scales are expected", TAIL,
     "(row_of_scales < 0 ? 0 : scale_bytes)", "(row_of_scales < 0 ? 0 : SM100_MMA_SFA_BYTES)"),
    ("groups: bytes are expected that do not come", MISSING,
     "(row_of_scales < 0 ? 0 : scale_bytes)", "scale_bytes"),
    ("groups: no fence after mbarrier init", WRAP, "        fence_mbarrier_init();\n", ""),
    # accumulators
    ("groups: no wait on acc_empty", GATED_TILES, WAIT_ACC_EMPTY, ""),
    ("groups: no wait on acc_full", TILES, WAIT_ACC_FULL, ""),
    ("groups: one accumulator is not released", ONE_SET, RELEASE, ""),
    ("groups: released after the first rows", GATED_TILES, LAST, "row == 0"),
    ("groups: released before the loads have ended", ONE_SET, WAIT_LD, ""),
    ("groups: three warps release it", ONE_SET,
     ARRIVALS, ARRIVALS[:-1] + " - 1)"),
    ("groups: acc_full before the last mma", TILES, COMMIT_ACC, "", WAIT_ACC_EMPTY, WAIT_ACC_EMPTY + COMMIT_ACC),
    ("groups: both matrices into one accumulator", GATED_TILES, "d + j * C::MMA_TILE_N", "d"),
    ("groups: accumulators overlap", GATED_TILES,
     "tmem + acc.index * C::SUMS, state", "tmem + acc.index * C::MMA_TILE_N, state"),
    # tensor memory
    ("groups: no dealloc", TILES, DEALLOC, ""),
    ("groups: dealloc before the accumulators are read", TILES,
     "    __syncthreads();\n" + AT_END, AT_END),
    # the table of groups
    ("groups: read before the grid before has ended", LATE, "    griddepcontrol_wait();\n", ""),
    ("groups: one thread waits for the grid before", LATE_MANY,
     "    griddepcontrol_wait();\n", "    if (threadIdx.x == 0) griddepcontrol_wait();\n"),
    ("groups: ends are not clamped", WILD, CLAMPED, "rows[e] = ends[e]"),
    ("groups: ends are read again", MANY_CHANGING,
     "max(at, rows[e]);\n            rows[e] = at,", "max(at, min(ends[e], m));\n            rows[e] = at,"),
    ("groups: the group before is found", RAGGED, "tiles[group] <= number)", "tiles[group] < number)"),
    ("groups: the first 32 groups are looked at", MANY, "number, block + lane)", "number, lane)"),
    # one group without a table
    ("dense: no barrier behind the start", TILES, "    if (s.is_dense)\n        __syncthreads();",
     "    if (s.is_dense)\n        ;"),
    ("dense: as many tiles as rows", DENSE, "tiles(tiles_of_rows(0, rows, tile_rows))", "tiles(rows)"),
    ("dense: the last tile is left out", DENSE,
     "tiles(tiles_of_rows(0, rows, tile_rows))", "tiles(rows / tile_rows)"),
    ("dense: scales of the first rows", DENSE, "return s.is_dense ? row :", "return s.is_dense ? 0 :"),
    ("dense: in a pair scales of the first rows", DENSE_PAIR, "return s.is_dense ? row :", "return s.is_dense ? 0 :"),
    ("dense: rows behind the end are stored", DENSE_END,
     "is_dense && p.ends ? max(0, min(p.ends[0], rows)) :", "is_dense ? rows :"),
    ("dense: a tile without results is not released", DENSE_END,
     "row < tile.rows; row += C::LOADED_ROWS) {\n                float of[C::CTA_MMAS]",
     "row < stored.rows; row += C::LOADED_ROWS) {\n                float of[C::CTA_MMAS]"),
    ("dense: the end is not clamped", DENSE_WILD, "max(0, min(p.ends[0], rows))", "p.ends[0]"),
    ("dense: a negative end is not clamped", DENSE_NONE, "max(0, min(p.ends[0], rows))", "min(p.ends[0], rows)"),
    ("dense: results without scales are not NaN", DENSE_MISSING,
     "return !p.scale_rows || p.scale_rows[0] == 0;", "return true;"),
    ("dense: the end is read before the grid before has ended", DENSE_LATE, "    griddepcontrol_wait();\n", ""),
    ("dense: padding begins behind the last row of A", DENSE_QUANTIZED,
     "stored.rows = min(tile.rows, results - tile.row_in_group);",
     "stored.rows = tile.rows;"),
    # the tiles of a CTA
    ("tiles: all CTAs have the same", RAGGED, "s.tiles_n, blockIdx.x / C::CTA_GROUP,", "s.tiles_n, 0,"),
    ("tiles: of one matrix alone", GATED,
     "gridDim.x / C::CTA_GROUP, C::MATRICES > 1)", "gridDim.x / C::CTA_GROUP, false)"),
    ("tiles: a matrix for each group alone", RAGGED, "group * p.parts + tile.part;", "group + tile.part;"),
    ("tiles: a group's first rows each time", RAGGED, "tile.row = first + tile.row_in_group;", "tile.row = first;"),
    ("tiles: rows of the next group are stored", RAGGED,
     "min(each, rows - tile.row_in_group);", "each;"),
    ("tiles: columns of all parts count on", RAGGED,
     "tile.column = (int32_t)(column % tiles_n);", "tile.column = (int32_t)column;"),
    # what the mma takes
    ("mma: rows of the tile before", RAGGED,
     "instruction_descriptor(SM100_CTA_ROWS * C::CTA_GROUP, mma_rows(tile))",
     "instruction_descriptor(SM100_CTA_ROWS * C::CTA_GROUP, 16)"),
    ("mma: rows are rounded down", PAIRS,
     "(tile.rows + SM100_GROUPED_MMA_STEP - 1) / SM100_GROUPED_MMA_STEP *",
     "max(1, tile.rows / SM100_GROUPED_MMA_STEP) *"),
    ("mma: one box too few", WIDE,
     "(tile.rows + SM100_GROUPED_BOX_ROWS - 1) / SM100_GROUPED_BOX_ROWS;",
     "max(1, tile.rows / SM100_GROUPED_BOX_ROWS);"),
    ("mma: boxes at one place", WIDE, "C::MMA_B_OFFSET + i * box_bytes,", "C::MMA_B_OFFSET,"),
    ("mma: boxes of the same rows", WIDE, "tile.row + i * SM100_GROUPED_BOX_ROWS,", "tile.row,"),
    ("mma: all blocks of the last stage", TAIL,
     "(int)min((int64_t)SM100_STAGE_ATOMS,", "(int)max((int64_t)SM100_STAGE_ATOMS,"),
    ("mma: sums of the tile before are kept", RAGGED, "k > 0 || i > 0)", "true)"),
    ("mma: the first block alone is summed", RAGGED, "k > 0 || i > 0)", "k > 0)"),
    ("mma: gate's values twice", GATED, "column, tile.l + i, full,", "column, tile.l, full,"),
    ("mma: gate's scales twice", GATED, "scales_a + i * a.scale_batch +", "scales_a +"),
    ("mma: up's scales of gate's columns", GATED,
     "instruction, sfa + 4 * (j * SM100_STAGE_ATOMS + i)", "instruction, sfa + 4 * i"),
    # scales
    ("scales: of the group's first rows", BLOCKS, "(int64_t)first + row;", "first;"),
    ("scales: the first half of a block", HALVES, "tile.row_in_group / 64 % 2 * 2 : 0", "0 : 0"),
    ("scales: a group begins inside a block", MISSING, "first % SCALE_BLOCK_ROWS || at >=", "at >="),
    ("scales: blocks that do not exist", MISSING, " || at >= p.scale_a_rows)", ")"),
    ("scales: results without them are not NaN", MISSING,
     "        if (is_nan) factor = __int_as_float(0x7FFFFFFF);\n", ""),
    ("scales: the next range of columns has the first's", WIDE, "tile.column * a.scale_pitch", "0 * a.scale_pitch"),
    # results
    ("results: parts overwrite each other", RAGGED, " + tile.part * g.out_batch", ""),
    ("results: columns behind the last", RAGGED, "exists = n < p.g.n;", "exists = true;"),
    ("results: alpha and bias of the first matrix", RAGGED,
     "            take_batch(column, p.g, tile.l + (C::INTERLEAVED ? (int)is_upper() : i));\n", ""),
    ("results: alpha and bias of gate for up", GATED,
     "tile.l + (C::INTERLEAVED ? (int)is_upper() : i));", "tile.l);"),
    ("results: factors of the first rows", RAGGED,
     "out.factor_of(row + j)", "out.factor_of(j)"),
    ("results: factors of the rows of the tile", RAGGED,
     "factor = p.row_scale[(int64_t)tile.row + row];", "factor = p.row_scale[row];"),
    ("results: no bias", RAGGED, "            if (p.g.bias) v[j] = __fadd_rn(v[j], bias[i]);\n", ""),
    ("results: first rows each time", WIDE,
     "accumulator + i * C::MMA_TILE_N + row)", "accumulator + i * C::MMA_TILE_N)"),
    ("results: lanes of the first warp", RAGGED, "tmem + (threadIdx.x / 32 % 4 << 21)", "tmem"),
    ("results: pairs of the other lane", PAIRS,
     "odd ? __byte_perm(other, own, 0x7632)", "odd ? __byte_perm(own, other, 0x7632)"),
    ("results: rows of pairs behind the last", PAIRS, "exists && i + odd < count", "exists && i < count"),
    ("results: pairs of an odd number of columns", ODD,
     "s.column_pairs && g.out_type == NVFP4_FP16",
     "g.out_type == NVFP4_FP16",
     "else if (s.column_pairs)",
     "else if (true)"),
    # the activation
    ("gated: gate and up change places", GATED,
     "gated(p.activation, gate, up, s.numbers)", "gated(p.activation, up, gate, s.numbers)"),
    ("gated: gate is not rounded", GATED, "gate = rounded(gate, p.g.out_type);", ";"),
    ("gated: up is not rounded", GATED,
     "up = rounded(up, p.g.out_type);", ";"),
    ("gated: the one part counts as up", GATE_ALONE, "up = 1.0f;", "up = of[0][i];"),
    ("gated: of two parts alone", GATE_ALONE,
     "v[i] = p.has_activation ?", "v[i] = p.has_activation && C::MATRICES == 2 ?"),
    # results as NVFP4
    ("quantized: values are not transposed", QUANTIZED, "        transpose_16(v);\n", ""),
    ("quantized: a step of the transposition too few", QUANTIZED, "step = 8; step > 0;", "step = 8; step > 1;"),
    ("quantized: the global scale of the first group", QUANTIZED,
     "GLOBAL_BY_GROUP ? tile.group : 0", "GLOBAL_BY_GROUP ? 0 : 0"),
    ("quantized: the first block of a group", QUANTIZED,
     "block(before + tile.row_in_group / SCALE_BLOCK_ROWS)", "block(before)"),
    ("quantized: rows of the first tile of a block", QUANTIZED, "(tile.row_in_group + first + own) % SCALE_BLOCK_ROWS",
     "(first + own) % SCALE_BLOCK_ROWS"),
    ("quantized: no blocks before a group's", QUANTIZED,
     "return blocks += __reduce_add_sync(0xffffffff, more);", "return 0;"),
    ("quantized: blocks before the tile's group once more", QUANTIZED, "        group = next;\n", ""),
    ("quantized: rows behind the last are written", QUANTIZED, "if (own >= count || column", "if (column"),
    ("quantized: padding of columns stays", QUANTIZED, "            *to = 0;\n", ""),
    ("quantized: padding of rows stays", QUANTIZED,
     "            quantized.pad_rows(out.first_column(tile, cta.rank));\n", "            ;\n"),
    ("quantized: every tile pads", QUANTIZED,
     "stored.rows > 0 && stored.row_in_group + stored.rows == results;", "stored.rows > 0;"),
    ("quantized: padding begins a row early", QUANTIZED, "% SCALE_BLOCK_ROWS + 1;", "% SCALE_BLOCK_ROWS;"),
    ("quantized: places of the first 32 groups", MANY_QUANTIZED,
     "        before += __shfl_sync(0xffffffff, through, 31);\n", ""),
    ("quantized: places count a group's own blocks", QUANTIZED, "(before + through - own)", "(before + through)"),
    ("quantized: no places", QUANTIZED, "    if (quantizes && blockIdx.x == 0 && threadIdx.x < 32) store",
     "    if (false) store"),
    # pairs
    ("pairs: no cluster barrier at the start", PAIR_TILE, AT_START + CLUSTER_BARRIER, AT_START),
    ("pairs: no cluster barrier at the end", PAIR_TILE, AT_END + CLUSTER_BARRIER, AT_END),
    ("pairs: no cluster barrier behind the table", PAIR,
     "        barrier_cluster_arrive();\n        barrier_cluster_wait();\n", "        __syncthreads();\n"),
    ("pairs: tiles of the table alone are copied", PAIR,
     "            st_shared_cluster(to_rows + 4 * e, (uint32_t)rows[e]);\n", ""),
    ("pairs: each CTA reads the ends", PAIR_CHANGING, FILL, FILL.replace(" if (cta.rank == 0)", ""), COPY, ""),
    ("pairs: one thread waits for the grid before", PAIR_LATE,
     "    griddepcontrol_wait();\n", "    if (threadIdx.x == 0) griddepcontrol_wait();\n"),
    ("pairs: bytes of one CTA are expected", PAIR_TILE,
     "2 * (SM100_MMA_A_BYTES + SM100_MMA_SFA_BYTES", "1 * (SM100_MMA_A_BYTES + SM100_MMA_SFA_BYTES"),
    ("pairs: scales of one block are expected", PAIR, "atoms * SM100_MMA_SFA_BYTES)", "SM100_MMA_SFA_BYTES)"),
    ("pairs: both CTAs expect", PAIR,
     "        if (cta.rank == 0)\n            mbarrier_arrive_expect_tx", "            mbarrier_arrive_expect_tx"),
    ("pairs: loads complete on the CTA's own barrier", PAIR_TILE,
     "full = cta.of_leader(cta.full(state.index));", "full = cta.full(state.index);"),
    ("pairs: commits arrive in the leader alone", PAIR_TILE, "enum { PAIR = 3 }", "enum { PAIR = 1 }"),
    ("pairs: both CTAs issue", PAIR_TILE, "cta.rank == 0 && p.g.k > 0", "p.g.k > 0"),
    ("pairs: arrivals of one CTA release", PAIR_TWO_TILES, ARRIVALS, ARRIVALS.replace(" * C::CTA_GROUP", "")),
    ("pairs: arrivals of one group release", PAIR, ARRIVALS, ARRIVALS.replace(" * C::EPILOGUE_GROUPS", "")),
    ("pairs: each CTA releases its own accumulator", PAIR_TWO_TILES, RELEASE, RELEASE.replace("cta.of_leader", "")),
    ("pairs: no wait on acc_empty", PAIR_TWO_TILES, WAIT_ACC_EMPTY, ""),
    ("pairs: no wait on acc_full", PAIR_TWO_TILES, WAIT_ACC_FULL, ""),
    ("pairs: released before the rows are in registers", PAIR_TWO_TILES, DRAIN + RELEASE_DRAINED,
     RELEASE_DRAINED + DRAIN),
    ("pairs: a group without rows does not release", PAIR_FEW,
     RELEASE_DRAINED, RELEASE_DRAINED.replace("has_sums", "has_sums && tile.rows > 0")),
    ("pairs: both CTAs load the first rows", PAIR, "row = tile.row + (int32_t)cta.rank * rows;", "row = tile.row;"),
    ("pairs: rows of the widest mma are halved", PAIR, "rows = mma_rows(tile) / 2,", "rows = C::MMA_TILE_N / 2,"),
    ("pairs: an mma of one CTA's rows", PAIR, "instruction_descriptor(SM100_CTA_ROWS * C::CTA_GROUP,",
     "instruction_descriptor(SM100_CTA_ROWS,"),
    ("pairs: the first block of scales twice", PAIR,
     "tile.row_in_group + i * SM100_ATOM_ROWS);", "tile.row_in_group);"),
    ("pairs: one block of scales is copied", PAIR, "if (j < atoms)", "if (j < 1)"),
    ("pairs: blocks of scales in one place", PAIR,
     "tcgen05_cp_atom<C::CTA_GROUP>(sfb + 4 * (i * C::MMA_SFB_ATOMS + j),",
     "tcgen05_cp_atom<C::CTA_GROUP>(sfb + 4 * (i * C::MMA_SFB_ATOMS),"),
    ("pairs: both CTAs load the first columns", PAIR, "tile.column * 2 + (int32_t)cta.rank;", "tile.column * 2;"),
    ("pairs: both CTAs store the first columns", PAIR, "(C::INTERLEAVED ? 0 : (int)rank * SM100_CTA_ROWS)", "0"),
    ("pairs: both groups read the first rows", PAIR,
     " + group * SM100_ATOM_ROWS;\n    const bool", ";\n    const bool"),
    ("pairs: both groups store the first rows", PAIR, "tile.row += group * SM100_ATOM_ROWS, ", ""),
    ("pairs: scales of the first rows decide on NaN", PAIR_MISSING,
     "is_nan(!has_scales(p, s, tile.group, tile.row_in_group))", "is_nan(!has_scales(p, s, 1, 0))"),
    ("pairs: factors of the first rows", PAIR, "of[row / 32], row % 32 + i)", "of[0], row % 32 + i)"),
    ("pairs: factors of every second 16 rows", PAIR, "of[row / 32], row % 32 + i)", "of[row / 32], i)"),
    ("pairs: factors of 32 rows", PAIR, "factor_of(i * 32 + threadIdx.x % 32)", "factor_of(threadIdx.x % 32)"),
    ("pairs: rows in registers do not move up", PAIR,
     "pairs[i - C::LOADED_ROWS / 2] = pairs[i];", "pairs[i - C::LOADED_ROWS / 2] = pairs[i - C::LOADED_ROWS / 2];"),
    ("pairs: pairs of rows change places", PAIR, "pairs[i / 2] >> i % 2 * 16", "pairs[i / 2] >> (i + 1) % 2 * 16"),
    # rows of two matrices in turn
    ("interleaved: gate and up change places", GATED_PAIR,
     "gate = is_upper() ? got : first, up = is_upper() ? second : got;",
     "up = is_upper() ? got : first, gate = is_upper() ? second : got;"),
    ("interleaved: halves pass the rows that they keep", GATED_PAIR,
     "is_upper() ? first : second, CHUNK)", "is_upper() ? second : first, CHUNK)"),
    ("interleaved: both halves store the same rows", GATED_PAIR,
     "C::INTERLEAVED && is_upper() ? (int)CHUNK : 0", "false ? (int)CHUNK : 0"),
    ("interleaved: alpha and bias of gate for up", GATED_PAIR, "? (int)is_upper() : i", "? 0 : i"),
    ("interleaved: values of the first CTA's rows", GATED_PAIR,
     "byte, (int32_t)cta.rank * ROWS, tile.l", "byte, 0, tile.l"),
    ("interleaved: scales of the first CTA's rows", GATED_PAIR, "(int32_t)cta.rank * (SM100_ATOM_BYTES / 4),", "0,"),
    ("interleaved: values of the first columns", GATED_PAIR, "tile.l, block * TURNS, full,", "tile.l, 0, full,"),
    ("interleaved: both CTAs store the first columns", GATED_PAIR, "(int)rank * ROWS + lane % ROWS", "lane % ROWS"),
    ("interleaved: the padding of rows stays", PAIR_QUANTIZED,
     "(!C::INTERLEAVED || cta.rank == 0)", "!C::INTERLEAVED"),
    ("interleaved: rows from 128 on are padded in the first block", PAIR_QUANTIZED,
     "block(before + tile.row_in_group / SCALE_BLOCK_ROWS)", "block(before)"),
]  # fmt: skip
# The verifier finds these too, or alone; the emulator alone finds the rest.
BOTH = {
    "groups: no wait on empty",
    "groups: phase of empty inverted",
    "groups: no wait on full",
    "groups: a stage is released before its mma",
    "groups: a stage is not released",
    "groups: bytes of one matrix are expected",
    "groups: no wait on acc_empty",
    "groups: no wait on acc_full",
    "groups: one accumulator is not released",
    "groups: released after the first rows",
    "groups: released before the loads have ended",
    "groups: three warps release it",
    "groups: acc_full before the last mma",
    "groups: accumulators overlap",
    "groups: dealloc before the accumulators are read",
    "dense: no barrier behind the start",
    "pairs: bytes of one CTA are expected",
    "pairs: loads complete on the CTA's own barrier",
    "pairs: commits arrive in the leader alone",
    "pairs: both CTAs issue",
    "pairs: arrivals of one CTA release",
    "pairs: each CTA releases its own accumulator",
    "pairs: no wait on acc_empty",
    "pairs: no wait on acc_full",
    "pairs: released before the rows are in registers",
}
ALONE = {"pairs: no cluster barrier at the end"}
FOUND_BY = dict.fromkeys(BOTH, "both") | dict.fromkeys(ALONE, "verifier")
MUTATIONS: list[Mutation] = [
    mutation(name, launch, *edits, found_by=FOUND_BY.get(name, "emulator")) for name, launch, *edits in EDITS
]
