"""Mutations of csrc/kernels/sm120, and which tool finds each."""

from __future__ import annotations

from typing import Any

from harness.mutations import Mutation, controls_of, mutation
from sm120 import grouped_mutations
from sm120.schedules import Launch

# Launches that show the mutations. The pipeline wraps, so that a stage's second load can meet its first.
WRAP = Launch("sm120_gemm_128x16", "wrap", 16, 128, 6 * 256)
TAIL = Launch("sm120_gemm_128x16", "tail", 16, 100, 256 + 64)
SECOND = Launch("sm120_gemm_128x32", "second tile of an atom", 128, 96, 256, swap_ab=True)
TALL = Launch("sm120_gemm_256x128", "tall, wrap", 256, 128, 5 * 128, swap_ab=False)
TALL_EDGE = Launch("sm120_gemm_256x128", "tall, 100 rows", 100, 128, 256, swap_ab=False)
TILES = Launch("sm120_gemm_128x32", "tiles", 70, 300, 256, l=2, clusters=2, group_m=2)
SPLIT = Launch("sm120_gemm_128x16", "split", 16, 128, 1024, split_k=4)
LATE_A = Launch("sm120_gemm_128x16", "a written late", 16, 128, 512, late="a", constant_b=True)
LATE_B = Launch("sm120_gemm_128x16", "b written late", 16, 128, 512, late="b")
CONSTANT = Launch("sm120_gemm_128x16", "constant b", 16, 128, 6 * 256, constant_b=True)
LINEAR = Launch("sm120_gemm_128x16", "linear", 16, 128, 6 * 256, linear=True)
BYTES = Launch("sm120_gemm_128x16", "bytes", 16, 128, 5 * 256 + 48, linear=True, aligned=False)
PADDED = Launch("sm120_gemm_128x16", "padding in a scale word", 16, 128, 256 + 48)
UNALIGNED = Launch("sm120_gemm_128x16", "rows on 8 bytes", 16, 128, 5 * 256, pitch=648)
NARROW_ROWS = Launch("sm120_gemm_128x128", "rows on 8 bytes, stages of 128", 128, 128, 256, pitch=136)

WAIT_EMPTY = "                mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n                expect("
LANES_WAIT_EMPTY = (
    "            mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n            if (threadIdx.x % 32 == 0) {\n"
)
WAIT_FULL = "            mbarrier_wait(cta.full(state.index), state.phase);\n"
RELEASE = "            if (threadIdx.x % 32 == 0) mbarrier_arrive(cta.empty(state.index));\n"
CLUSTER = "            barrier_cluster_arrive();\n            barrier_cluster_wait();"
ARRIVE_LANES = "        cp_async_mbarrier_arrive_noinc(full);\n"

EDITS: list[tuple[Any, ...]] = [
    # the pipeline
    ("multiply: no wait on full", WRAP, WAIT_FULL, ""),
    ("multiply: phase of full inverted", WRAP, WAIT_FULL, WAIT_FULL.replace("phase)", "phase ^ 1)")),
    ("producer: no wait on empty", WRAP, WAIT_EMPTY, "                expect("),
    ("producer: phase of empty inverted", WRAP, WAIT_EMPTY, WAIT_EMPTY.replace(" ^ 1", "")),
    ("a warp too few releases a stage", WRAP, "cta.empty(i), C::WARPS)", "cta.empty(i), C::WARPS - 1)"),
    ("a stage is released before it is read", WRAP, RELEASE, "", WAIT_FULL, WAIT_FULL + "__syncwarp();\n" + RELEASE),
    ("expect_tx 16 bytes too few", WRAP, "C::MMA_SFA_OFFSET + scale_blocks", "C::MMA_SFA_OFFSET - 16 + scale_blocks"),
    ("expect_tx 16 bytes too many", WRAP, "C::MMA_SFA_OFFSET + scale_blocks", "C::MMA_SFA_OFFSET + 16 + scale_blocks"),
    ("no barrier after mbarrier init", WRAP, "    __syncthreads();\n", ""),
    ("no fence after mbarrier init", WRAP, "        fence_mbarrier_init();\n", ""),
    # stages and fragments
    ("mma_b's scales overlap those of mma_a", WRAP, "MMA_SFA_OFFSET + SM120_SCALE_BYTES", "SM120_SCALE_BYTES"),
    ("the last stage has all K blocks", TAIL, "if (blocks == C::STAGE_ATOMS && (mask", "if (true || (mask"),
    (
        "values without the swizzle",
        WRAP,
        "(chunk ^ (C::ROW_BYTES == 128 ? row % 8 : row / 2 % 4)) * 16;",
        "chunk * 16;",
    ),
    ("the other swizzle of rows of 64 bytes", TALL, "row % 8 : row / 2 % 4)) * 16;", "row % 8 : row % 4)) * 16;"),
    ("scales of mma_a from the other half", TALL, "i % 2,\n", "1 - i % 2,\n"),
    ("scales of mma_b of the tile beside", TALL, "j % 4 + half)", "j % 4 + 1 - half)"),
    ("all tiles take an atom's first scales", SECOND, "tile.mma_n % SM120_ATOM_ROWS +", "0 +"),
    (
        "rows g and g + 8 have exchanged scales",
        WRAP,
        "lane % 4 * 8 + lane / 4, at",
        "(lane % 4 ^ 1) * 8 + lane / 4, at",
    ),
    ("scales past the operand are read", TALL_EDGE, "o.rows - row > SM120_ATOM_ROWS ? 2 : 1", "true ? 2 : 1"),
    # the lanes' loads
    ("lanes: no wait on empty", LINEAR, LANES_WAIT_EMPTY, "            if (threadIdx.x % 32 == 0) {\n"),
    ("lanes: arrival before the copies complete", LINEAR, ARRIVE_LANES, "        mbarrier_arrive(full);\n"),
    ("lanes: full counts one arrival less", LINEAR, "1 : 1 + 32)", "1 : 32)"),
    ("lanes: scales past K are kept", PADDED, "cp_async_4_zfill(to, from, valid);", "cp_async_4(to, from);"),
    (
        "lanes: bytes past K are kept",
        BYTES,
        "for (int byte = 0; byte < valid; byte++)",
        "for (int byte = 0; byte < 4; byte++)",
    ),
    (
        "lanes: values without the swizzle",
        UNALIGNED,
        "piece / 2 ^ (C::ROW_BYTES == 128 ? i % 8 : i / 2 % 4);",
        "piece / 2;",
    ),
    ("lanes: the other swizzle", NARROW_ROWS, "i % 8 : i / 2 % 4);", "i % 8 : i % 4);"),
    # tiles
    ("a group of tiles is counted by columns", TILES, "column = at / rows;", "column = at / s.tiles_mma_n;"),
    (
        "the last group is taken for whole",
        TILES,
        "rows = min((uint32_t)s.group_m, s.tiles_mma_m - first);",
        "rows = s.group_m;",
    ),
    (
        "sums of the tile before are kept",
        TILES,
        "        accumulators<C> acc = {};\n",
        "",
        "    tile_consumer<C> consumer(cta, p.k);\n",
        "    tile_consumer<C> consumer(cta, p.k);\n    accumulators<C> acc = {};\n",
    ),
    # split-K and the epilogue
    (
        "split-K: no cluster barrier",
        SPLIT,
        CLUSTER + " /*",
        "            /*",
        "            barrier_cluster_arrive();\n            barrier_cluster_wait();\n        }\n        return;",
        "        }\n        return;",
    ),
    ("split-K: no wait for the partial sums", SPLIT, "        mbarrier_wait_cluster(cta.partials_full(), 0);\n", ""),
    ("split-K: half the partial sums are expected", SPLIT, "kept() * TILE_BYTES);", "kept() * TILE_BYTES / 2);"),
    ("split-K: senders share a place", SPLIT, "sender < keeper() ? sender : sender - 1;", "0;"),
    (
        "split-K: the last part ends early",
        SPLIT,
        "(int64_t)(split_idx + 1) * s.k_parts",
        "(int64_t)(split_idx + 1) * (s.k_parts - 1)",
    ),
    (
        "epilogue: a warp reads what it has not written",
        WRAP,
        "            __syncwarp();\n            staged.store",
        "            staged.store",
    ),
    (
        "epilogue: a warp overwrites what it still reads",
        TILES,
        "mma_n + j * block::COLUMNS, loaded);\n            __syncwarp();\n",
        "mma_n + j * block::COLUMNS, loaded);\n",
    ),
    (
        "epilogue: chunks are XORed on one side alone",
        WRAP,
        "st_shared(swap_ab ? at(column, row)",
        "st_shared(swap_ab ? at(column ^ 2, row)",
    ),
    # grids before
    ("no griddepcontrol.wait", LATE_B, "    griddepcontrol_wait();\n", ""),
    (
        "constant b: both operands are loaded early",
        LATE_A,
        "s.constant_operand == SM120_CONSTANT_MMA_B);",
        "true);",
        "both || constant != SM120_CONSTANT_MMA_A,",
        "both,",
        "both || constant != SM120_CONSTANT_MMA_B);",
        "both);",
    ),
    (
        "constant b: the other operand is loaded early",
        LATE_A,
        "preloaded, s.constant_operand == SM120_CONSTANT_MMA_A,",
        "preloaded, s.constant_operand == SM120_CONSTANT_MMA_B,",
    ),
    ("constant b: loaded twice", CONSTANT, "both || constant != SM120_CONSTANT_MMA_A,", "true,"),
    # what orders the lanes of a warp
    ("a stage is released without the warp", WRAP, "            __syncwarp();\n" + RELEASE, RELEASE),
    ("lanes: bytes arrive as copies do", BYTES, "    if (words) {\n", "    if (true) {\n"),
]
# By whom a mutation is found; others by the emulator alone.
FOUND_BY = {
    **dict.fromkeys(
        (
            "multiply: no wait on full",
            "multiply: phase of full inverted",
            "producer: no wait on empty",
            "producer: phase of empty inverted",
            "a warp too few releases a stage",
            "a stage is released before it is read",
            "expect_tx 16 bytes too few",
            "expect_tx 16 bytes too many",
            "no barrier after mbarrier init",
            "mma_b's scales overlap those of mma_a",
            "lanes: no wait on empty",
            "lanes: arrival before the copies complete",
            "lanes: full counts one arrival less",
            "split-K: no cluster barrier",
            "split-K: no wait for the partial sums",
            "split-K: half the partial sums are expected",
            "split-K: senders share a place",
            "epilogue: a warp reads what it has not written",
            "constant b: loaded twice",
        ),
        "both",
    ),
    "a stage is released without the warp": "verifier",
    "lanes: bytes arrive as copies do": "nobody",  # stores that no arrival orders, which either completes in order
}
MUTATIONS: list[Mutation] = [
    *(mutation(name, launch, *edits, found_by=FOUND_BY.get(name, "emulator")) for name, launch, *edits in EDITS),
    *grouped_mutations.MUTATIONS,
]

CONTROLS = controls_of(MUTATIONS)
CONTROL_SEEDS = 4  # timings, in an ordinary run: each kind once
HALVES: list[Mutation] = []
# The launches that an ordinary run proves, a few seconds each: a pipeline that wraps by TMA and by cp.async, two tiles
# for one CTA, split-K, a tail.
PROVEN = [
    Launch("sm120_gemm_128x8", "wrap", 8, 128, 1536),
    Launch("sm120_gemm_128x16", "linear", 16, 128, 1536, linear=True),
    Launch("sm120_gemm_128x8", "rows on 8 bytes", 8, 128, 1536, pitch=776),
    Launch("sm120_gemm_128x32", "tiles", 128, 64, 512, l=2, swap_ab=False),
    Launch("sm120_gemm_128x16", "split 4", 16, 128, 1280, split_k=4),
    Launch("sm120_gemm_128x64", "tail", 64, 128, 320),
    Launch("sm120_gemm_128x16", "constant b", 16, 128, 1536, constant_b=True),
]
QUICK = ()
