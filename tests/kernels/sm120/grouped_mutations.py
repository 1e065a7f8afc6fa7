"""Mutations of csrc/kernels/sm120/grouped.cu, of the table of groups and of the activation. Which tiles a CTA has is in
memory, which the static verifier does not know: the emulator finds all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from harness import verify
from harness.groups import MAX_GROUPS
from harness.headers import Config
from harness.launch import Generator
from harness.mutations import Mutation, mutation
from harness.values import BF16, FP32
from sm120.grouped import CONFIGS, Groups, Schedule

OF_KERNELS = ("common/group_scales.cuh", "common/group_table.cuh", "common/group_activation.cuh")
OF_KERNELS += ("sm120/store.cuh", "sm120/tile.cuh")
INLINED = (*(f"kernels/{name}" for name in OF_KERNELS), "common/gating.h")


@dataclass(frozen=True)
class Launch(verify.Launch):
    """One launch, with the epilogue's terms, of CTAs that share the tiles."""

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
    linear: bool = False  # scales
    gathers: bool = False  # rows of a in another order
    activation: str = ""
    limit: float = float("inf")
    out_type: int = FP32
    out_align: int = 16  # of the rows of the result

    schedule = Schedule
    split_k = 1
    for_verifier = False  # the ends are in memory
    inlined = INLINED

    @property
    def config(self) -> Config:
        return CONFIGS[self.config_name]

    @property
    def size(self) -> tuple[int, int, int]:
        return sum(self.sizes), self.n, self.k

    def start(self, emulator: Any, module: Any, generator: Generator) -> list[Groups]:
        names = ("out_type", "behind", "missing", "linear", "gathers", "activation", "limit", "out_align")
        form = {name: getattr(self, name) for name in names}
        product = Groups(emulator, generator, self.sizes, self.n, self.k, self.parts, **form)
        product.set_row_scale(generator)
        product.set_alpha_and_bias(generator)
        if self.ends:
            product.kept["ends"] = emulator.array(numpy.array(self.ends, "i4"))
        with self.grid_before(emulator, product):
            product.launch(module, self.config, self.grid, wait=False)
        return [product]


TILES = Launch("sm120_grouped_128x8", "tiles", (9, 0, 1, 20), 200, 320, parts=2, grid=2, behind=3)
WRAP = Launch("sm120_grouped_128x16", "wrap", (16, 3), 128, 6 * 256)
MANY = Launch("sm120_grouped_128x8", "many groups", tuple(int(e % 37 == 5) for e in range(100)), 8, 64, grid=3)
# Four groups a thread, whose ends fall after the second.
SIZES = tuple({5: 5, 20: 4}.get(e, 0) for e in range(MAX_GROUPS))
ENDS = (0, 0, 0, 0, 0, 5, 2, 1, *([0] * 12), 9, *([3] * (MAX_GROUPS - 21)))
ALL_GROUPS = Launch("sm120_grouped_128x8", "most groups", SIZES, 8, 64, ends=ENDS)
WILD = Launch("sm120_grouped_128x8", "wild ends", (0, 5, 0, 4, 0), 8, 64, ends=(-7, 5, 2, 2**31 - 1, -(2**31)))
BLOCKS = Launch("sm120_grouped_128x16", "two blocks of scales", (3, 140), 16, 64)
NARROW = Launch("sm120_grouped_128x64", "a block's second half", (70,), 16, 256)
# The last group's tile reuses a stage that has scales of another.
MISSING = Launch("sm120_grouped_128x8", "groups without scales", (4, 3, 5, 2, 6, 4), 16, 256, missing=(0, 5))
GATHER = Launch("sm120_grouped_128x16", "gathered rows", (16, 3), 128, 6 * 256, linear=True, gathers=True)
OUTSIDE = Launch(
    "sm120_grouped_128x8", "rows outside", (4, 3, 5, 2, 6, 4), 16, 256, missing=(0, 5), linear=True, gathers=True
)
HALF = Launch("sm120_grouped_128x64", "a second half, linear", (70,), 16, 256, linear=True)
TAIL = Launch("sm120_grouped_128x8", "K of 15 blocks", (5, 3), 16, 240)
ODD = Launch("sm120_grouped_128x8", "K of 17 blocks", (5, 3), 16, 272)
TALL = Launch("sm120_grouped_256x128", "tall", (130, 5), 300, 5 * 128)
GATED = Launch(
    "sm120_grouped_128x8", "swiglu of two parts", (9, 0, 1, 20), 200, 320, parts=2, grid=2, activation="swiglu",
    limit=2.0, out_type=BF16,
)  # fmt: skip
BY_ONE = Launch(
    "sm120_grouped_128x16", "silu, odd columns", (9, 3), 131, 320, parts=2, activation="silu", limit=2.0,
    out_type=BF16, out_align=4,
)  # fmt: skip
TWO_ROWS = Launch(
    "sm120_grouped_128x16", "silu, two rows a lane", (16, 3), 136, 320, parts=2, activation="silu", out_type=BF16
)
GELU = Launch("sm120_grouped_128x16", "gelu of two parts", (9, 3), 130, 320, parts=2, activation="gelu_tanh")
GATE_ALONE = Launch("sm120_grouped_128x16", "silu of one part", (9, 3), 130, 320, activation="silu", out_type=BF16)
RELU2 = Launch("sm120_grouped_128x16", "relu2", (9, 3), 130, 320, activation="relu2")
LATE = Launch("sm120_grouped_128x8", "ends written late", (5, 3), 16, 256, late="ends")

EXPECT = "        mbarrier_arrive_expect_tx(full, C::"
WAIT_EMPTY = "        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n" + EXPECT
LANES_EXPECT = "        if (threadIdx.x % 32 == 0) {\n            mbarrier_arrive_expect_tx(full, b_by_tma"
LANES_WAIT_EMPTY = "        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n" + LANES_EXPECT
OF_A = "tile.row, 0, k);\n        mma_a.scales_by_tma("
SKIP = "if (!LIST::ALL_EXIST && r < 0) continue;\n            const int chunk"
CONSUMER, SUMS = "    tile_consumer<C> consumer(cta, p.g.k);\n", "        accumulators<C> acc = {};\n"
CLAMPED, GREATEST = "rows[e] = min(ends[e], m)", "most = max(most, rows[e]);"
COLUMN = "column = place / (uint32_t)along;"

EDITS: list[tuple[Any, ...]] = [
    # the table of groups
    ("groups: read before the grid before has ended", LATE, "    griddepcontrol_wait();\n", ""),
    ("groups: no tiles are counted", TILES, "tiles[groups] = count;", "tiles[groups] = 0;"),
    ("groups: no end of the last group", TILES, "rows[groups] = at,", "rows[groups] = 0,"),
    ("groups: ends are added up", TILES, "scan_before<greater_of, THREADS>", "scan_before<sum_of, THREADS>"),
    ("groups: ends are not clamped", WILD, CLAMPED, "rows[e] = ends[e]"),
    ("groups: the last of a thread's ends counts", ALL_GROUPS, GREATEST, "most = rows[e];"),
    ("groups: tiles of a thread's own groups alone", TILES, "count = scan_before<sum_of,", "scan_before<sum_of,"),
    ("groups: the group before is found", TILES, "tiles[group] <= number)", "tiles[group] < number)"),
    ("groups: places behind the last are looked at", TILES, "group < groups && tiles", "tiles"),
    ("groups: the first 32 groups are looked at", MANY, "number, block + lane)", "number, lane)"),
    ("groups: blocks of 16 groups", MANY, "number, lane * 32)", "number, lane * 16)"),
    # the tiles of a CTA
    ("tiles: all CTAs have the same", TILES, "number(blockIdx.x << pairs)", "number(0)"),
    ("tiles: a CTA leaves one out", TILES, "(gridDim.x << pairs) - pairs;", "gridDim.x + 1;"),
    ("tiles: those of one part alone", TILES, " * tiles_n * (uint32_t)p.parts)", " * tiles_n)"),
    ("tiles: rows and columns are exchanged", TILES, COLUMN, "column = place / (tiles_n * (uint32_t)p.parts);"),
    ("tiles: columns of all parts count on", TILES, "(column - tile.part * tiles_n)", "column"),
    ("tiles: a matrix for each group alone", TILES, "group * p.parts + tile.part;", "group + tile.part;"),
    ("tiles: a group's first rows each time", TILES, "table.rows[group] + tile.mma_n;", "table.rows[group];"),
    ("tiles: rows of the next group are stored", TILES, "table.rows[group + 1] - tile.row;", "C::MMA_TILE_N;"),
    # scales
    ("scales: of the group's first rows", BLOCKS, "(int64_t)first + row;", "first;"),
    ("scales: from the block's first row", NARROW, "tile.mma_n % SM120_ATOM_ROWS +", "0 +"),
    ("scales: a group begins inside a block", MISSING, "first % SCALE_BLOCK_ROWS || at >=", "at >="),
    ("scales: blocks that do not exist", MISSING, " || at >= p.scale_a_rows)", ")"),
    ("scales: results without them are not NaN", MISSING, "exists = tile.scale_row >= 0 &&", "exists ="),
    ("scales: bytes are expected that do not come", MISSING, "+ has_scales;", "+ 1;"),
    ("scales: bytes come that are not expected", TILES, "+ has_scales;", "+ 0;"),
    ("scales: those behind K count", ODD, "MASKS && tail ?", "false ?"),
    ("scales: a stage of whole blocks is not masked", TAIL, "(mask == ~0u || i + 1 < tile.k_end)", "true"),
    ("scales: of A alone are masked", ODD, "for (uint32_t &word : sfa) word &= mask;", ""),
    # rows that lie anywhere
    ("rows: they are taken in order", GATHER, "list ? list[first + i] : first + i;", "first + i;"),
    ("rows: those of the first group", GATHER, "rows_b{p.rows, tile.row, p.a_rows}", "rows_b{p.rows, 0, p.a_rows}"),
    ("rows: one behind the last is read", OUTSIDE, "return row < end ? row : -1;", "return row;"),
    ("rows: one before the first is read", OUTSIDE, SKIP, SKIP.replace("!LIST::ALL_EXIST && r < 0", "false")),
    ("rows: results of those outside are not NaN", OUTSIDE, "&& (!p.rows ||", "&& (true ||"),
    ("rows: values by a tensor map all the same", GATHER, "form.values_by_tma && !p.rows;", "form.values_by_tma;"),
    ("rows: scales of the other half", HALF, "in_block = tile.mma_n % SM120_ATOM_ROWS;", "in_block = 0;"),
    ("rows: bytes of both operands are expected", GATHER, "by_tma ? C::MMA_B_OFFSET", "by_tma ? C::MMA_SFA_OFFSET"),
    ("rows: full counts one arrival less", GATHER, "1 : 1 + 32)", "1 : 32)"),
    ("rows: no wait on empty", GATHER, LANES_WAIT_EMPTY, LANES_EXPECT),
    # the activation
    ("gated: pairs begin with the wrong one", GATED, "number(blockIdx.x << pairs)", "number(blockIdx.x)"),
    ("gated: pairs overlap", GATED, ": (gridDim.x << pairs) - pairs;", ": gridDim.x;"),
    ("gated: a pair's second tile is left out", GATED, "of_pair < pairs ?", "false ?"),
    ("gated: both tiles are of part 0", GATED, "        tile.part += (int32_t)of_pair;\n", ""),
    ("gated: tiles of a pair have two places", GATED, "place = in_group >> pairs,", "place = in_group,"),
    ("gated: of part 0 too", GATED, "p.has_activation && tile.part + 1 == p.parts", "p.has_activation"),
    ("gated: of two parts alone", GATE_ALONE, "tile.part + 1 == p.parts", "tile.part == 1"),
    ("gated: gate is not read back", GATED, "gate[i] = ahead.value(i, type);", ";"),
    ("gated: gate of a row's neighbour", TWO_ROWS, "loaded.row[i - 1] = loaded.row[i];", ";"),
    ("gated: gate of the first row each time", TWO_ROWS, "lane / chunks() + i * (32 / chunks());", "lane / chunks();"),
    ("gated: gate of one part is read back", GATE_ALONE, "if (p.parts == 1)", "if (false)"),
    ("gated: the one part counts as up", GATE_ALONE, "v[i] = 1.0f;", ";"),
    ("gated: up is not rounded", GATED, "gate[i] = v[i] = rounded(v[i], type);", "gate[i] = v[i];"),
    ("gated: columns come back in another order", GATED, ">> i % 2 * 16, type);", ">> (i + 1) % 2 * 16, type);"),
    ("gated: gate as the other type", GATED, "type == NVFP4_FP16 ? __half2float", "type == NVFP4_BF16 ? __half2float"),
    ("gated: unaligned results by one load", BY_ONE, " && (uintptr_t)out % 8 == 0;", ";"),
    ("gated: behind the last column", BY_ONE, "gate[i] = i < count ?", "gate[i] = false ?"),
    ("gated: up is not limited", GATED, "at_least(at_most(up, g.up_limit), -g.up_limit);", "up;"),
    ("gated: gate is not limited", BY_ONE, "at_least(at_most(gate, g.limit),", "at_least(gate,"),
    ("gated: swiglu without alpha", GATED, "NVFP4_SWIGLU ? __fmul_rn(g.alpha, c) : c;", "NVFP4_SWIGLU ? c : c;"),
    ("gated: swiglu without the one", GATED, "__fadd_rn(limited, 1.0f)", "limited"),
    ("gated: gelu by silu's argument", GELU, "return gelu_tanh_argument(c);", "return c;"),
    ("gated: relu2 has a sigmoid", RELU2, "is_relu2 ? c :", "false ? c :"),
    # the pipeline
    ("groups: no wait on empty", WRAP, WAIT_EMPTY, EXPECT),
    ("groups: phase of empty inverted", WRAP, WAIT_EMPTY, WAIT_EMPTY.replace(" ^ 1", "")),
    ("groups: a warp too few releases a stage", WRAP, "cta.empty(i), C::WARPS)", "cta.empty(i), C::WARPS - 1)"),
    ("groups: A has a batch for each matrix", TILES, OF_A, OF_A.replace("0, k", "tile.l, k")),
    ("groups: one block of B's scales", TALL, "mma_a.scale_blocks(tile.mma_m) + has", "1 + has"),
    ("groups: no fence after mbarrier init", WRAP, "        fence_mbarrier_init();\n", ""),
    # results
    ("groups: sums of the tile before are kept", TILES, SUMS, "", CONSUMER, CONSUMER + SUMS),
    ("groups: parts overwrite each other", TILES, " + tile.part * g.out_batch", ""),
    ("groups: alpha and bias of the first matrix", TILES, "        take_batch(columns, p.g, tile.l);\n", ""),
    ("groups: factors of the tile's rows", TILES, "p.row_scale[at]", "p.row_scale[row]"),
]  # fmt: skip
MUTATIONS: list[Mutation] = [mutation(name, launch, *edits, found_by="emulator") for name, launch, *edits in EDITS]
