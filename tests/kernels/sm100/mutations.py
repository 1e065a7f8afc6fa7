"""Mutations of csrc/kernels/sm100/gemm.cu, and which tool finds each."""

from __future__ import annotations

from dataclasses import replace

from harness.mutations import controls_of, mutation
from sm100 import grouped_mutations
from sm100.schedules import Launch

# Launches that show the mutations. The pipeline wraps, so that a stage's second load can meet its first.
ONE = Launch("sm100_gemm_128x64", "wrap", 64, 128, 6)
TAIL = Launch("sm100_gemm_128x64", "tail", 64, 128, 5, tail=64)
TILES = Launch("sm100_gemm_128x128", "tiles", 128, 384, 1, swap_ab=False)
SPLIT = Launch("sm100_gemm_128x64", "split", 64, 128, 2, split_k=2)
IN_STAGES = Launch("sm100_gemm_128x64", "split in stages", 64, 128, 2, split_k=2, in_stages=True)
PAIR = Launch("sm100_gemm_256x64", "pair", 64, 256, 5)
MULTICAST = Launch("sm100_gemm_256x64_multicast", "multicast", 128, 256, 1)
MULTICAST_WRAP = Launch("sm100_gemm_256x64_multicast", "multicast, wrap", 128, 256, 7)
PAIR_TILES = Launch("sm100_gemm_256x64", "pair, tiles", 512, 64, 1, swap_ab=False)
GROUPS = Launch("sm100_gemm_256x256", "two groups, tiles", 512, 256, 1, swap_ab=False)
GROUPS_SPLIT = Launch("sm100_gemm_256x256", "two groups, split", 256, 256, 2, split_k=2, in_stages=True, swap_ab=False)
LATE = Launch("sm100_gemm_128x64", "b written late", 64, 128, 2, late="b")
CONSTANT = Launch("sm100_gemm_128x64", "constant b", 64, 128, 5, constant_b=True)
PAIRS = Launch("sm100_gemm_128x32", "column pairs", 30, 130, 1, fp16=True)
CP_ASYNC = Launch("sm100_gemm_128x16_cp_async", "cp.async", 16, 128, 5, pitch=648)


WAIT_FOR_STAGE = "                    mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n"  # of the TMA producer

MUTATIONS = [
    mutation("mma: no wait on full", ONE, "            mbarrier_wait(cta.full(state.index), state.phase);\n", ""),
    mutation(
        "mma: no wait on scales_full",
        ONE,
        "            if (!scales_ready) mbarrier_wait(cta.scales_full(state.index), state.phase);\n",
        "",
    ),
    mutation(
        "mma: the next stage's scales tested with the other phase",
        ONE,
        "mbarrier_test(cta.scales_full(next.index), next.phase);",
        "mbarrier_test(cta.scales_full(next.index), next.phase ^ 1);",
        found_by="emulator",
    ),
    mutation(
        "mma: this stage tested for the next one",
        ONE,
        "mbarrier_test(cta.scales_full(next.index), next.phase);",
        "mbarrier_test(cta.scales_full(state.index), state.phase);",
        found_by="emulator",
    ),
    mutation(
        "scales arrive on full",
        ONE,
        "own = cta.scales_full(index);",
        "own = cta.full(index);",
    ),
    mutation(
        "producer: no wait on empty",
        ONE,
        WAIT_FOR_STAGE,
        "",
    ),
    mutation(
        "producer: phase of empty inverted",
        ONE,
        WAIT_FOR_STAGE,
        WAIT_FOR_STAGE.replace(" ^ 1", ""),
    ),
    mutation(
        "mma: phase of full inverted",
        ONE,
        "(cta.full(state.index), state.phase);\n",
        "(cta.full(state.index), state.phase ^ 1);\n",
    ),
    mutation(
        "expect_tx 16 bytes too many",
        ONE,
        "2 * cta.blocks(k) * SM100_ATOM_BYTES;",
        "2 * cta.blocks(k) * SM100_ATOM_BYTES + 16;",
    ),
    mutation(
        "expect_tx 16 bytes too few",
        ONE,
        "2 * cta.blocks(k) * SM100_ATOM_BYTES;",
        "2 * cta.blocks(k) * SM100_ATOM_BYTES - 16;",
    ),
    mutation(
        "stage released before its mma",
        ONE,
        "            int blocks = cta.blocks(k);\n",
        "            int blocks = cta.blocks(k);\n"
        "            tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), sharers);\n",
        "            tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), sharers);\n        }\n",
        "        }\n",
    ),
    mutation(
        "acc_full committed before the mma",
        ONE,
        "        mbarrier_wait(cta.acc_empty(acc.index), acc.phase ^ 1);\n",
        "        mbarrier_wait(cta.acc_empty(acc.index), acc.phase ^ 1);\n"
        "        tcgen05_commit<C::CTA_GROUP>(cta.acc_full(acc.index), pair);\n",
        "        tcgen05_commit<C::CTA_GROUP>(cta.acc_full(acc.index), pair);\n    }\n",
        "    }\n",
    ),
    mutation(
        "epilogue: no wait on acc_full", ONE, "            mbarrier_wait(cta.acc_full(acc.index), acc.phase);\n", ""
    ),
    mutation(
        "scales overlap the accumulator by 4 columns",
        ONE,
        "SCALES_COLUMN = ACCUMULATORS * MMA_TILE_N,",
        "SCALES_COLUMN = ACCUMULATORS * MMA_TILE_N - 4,",
    ),
    mutation(
        "mma_a scales overlap mma_b scales in shared memory",
        ONE,
        "MMA_SFB_OFFSET = MMA_SFA_OFFSET + SM100_MMA_SFA_BYTES;",
        "MMA_SFB_OFFSET = MMA_SFA_OFFSET + SM100_MMA_SFA_BYTES - 512;",
    ),
    mutation(
        "dealloc without the CTA barrier",
        ONE,
        "    __syncthreads();\n    if (C::CTA_GROUP == 2) {",
        "    if (C::CTA_GROUP == 2) {",
    ),
    mutation(
        "no dealloc",
        ONE,
        "    if (warp == MMA_WARP) tcgen05_dealloc<C::CTA_GROUP, C::COLUMNS>(tmem);\n",
        "",
        found_by="emulator",
    ),
    mutation(
        "tensor memory address read without a barrier",
        ONE,
        "    named_barrier_sync(TMEM_BARRIER, C::TMEM_BARRIER_THREADS);\n",
        "",
        "    named_barrier_arrive(TMEM_BARRIER, C::TMEM_BARRIER_THREADS);\n",
        "",
    ),
    mutation(
        "epilogue: accumulator used before wait::ld",
        ONE,
        "        if (more) tcgen05_wait_ld(next);\n",
        "",
        found_by="emulator",
    ),
    mutation(
        "epilogue: no fence after acc_full",
        ONE,
        "            mbarrier_wait(cta.acc_full(acc.index), acc.phase);\n"
        "            tcgen05_fence_after_thread_sync();\n",
        "            mbarrier_wait(cta.acc_full(acc.index), acc.phase);\n",
        found_by="emulator",
    ),
    mutation(
        "last stage: always 4 K blocks",
        TAIL,
        "        return min(SM100_STAGE_ATOMS, k_blocks - k_stage * SM100_STAGE_ATOMS);",
        "        return SM100_STAGE_ATOMS;",
        found_by="emulator",
    ),
    mutation(
        "accumulator reused without acc_empty",
        TILES,
        "        mbarrier_wait(cta.acc_empty(acc.index), acc.phase ^ 1);\n",
        "",
    ),
    mutation(
        "accumulator released before it is read",
        TILES,
        "        if (reduction.splits > 1) {\n            /* Until",
        "        if (threadIdx.x % 32 == 0 && scheduler.reaches(C::ACCUMULATORS))\n"
        "            mbarrier_arrive_relaxed(cta.of_leader(cta.acc_empty(acc.index)));\n"
        "        if (reduction.splits > 1) {\n            /* Until",
        "        release();\n    }\n",
        "    }\n",
    ),
    mutation(
        "three warps release an accumulator",
        TILES,
        "EPILOGUE_WARPS * C::EPILOGUE_GROUPS *",
        "(EPILOGUE_WARPS - 1) * C::EPILOGUE_GROUPS *",
    ),
    mutation(
        "pair: no cluster barrier at the start",
        PAIR,
        "    if (C::SPLIT_CTAS * s.split_k > 1) {",
        "    if (false) {",
    ),
    mutation(
        "pair: no cluster barrier at the end",
        PAIR,
        "    if (C::CTA_GROUP == 2) { /*",
        "    if (false) { /*",
        found_by="verifier",  # the emulator too, but in its 56th timing
    ),
    mutation(
        "pair: expect_tx of one CTA",
        PAIR,
        "mbarrier_arrive_expect_tx(cta.full(index), C::CTA_GROUP * VALUES);",
        "mbarrier_arrive_expect_tx(cta.full(index), VALUES);",
    ),
    mutation(
        "pair: commits arrive in the leader only",
        PAIR,
        "(uint16_t)(3u << cta.leader());",
        "(uint16_t)(1u << cta.leader());",
    ),
    mutation(
        "pair: peer loads onto its own full barrier",
        PAIR,
        "full = cta.of_leader(cta.full(index));",
        "full = cta.full(index);",
    ),
    mutation(
        "pair: scales of one CTA expected",
        PAIR,
        "C::CTA_GROUP == 2 ? 2 * SCALES :",
        "C::CTA_GROUP == 2 ? SCALES :",
    ),
    mutation(
        "pair: peer does not wait on empty",
        PAIR,
        WAIT_FOR_STAGE,
        WAIT_FOR_STAGE.replace("mbarrier_wait", "if (!cta.rank) mbarrier_wait"),
    ),
    mutation(
        "pair: each CTA arrives on its own acc_empty",
        PAIR_TILES,
        "cta.of_leader(cta.acc_empty(acc.index))",
        "mapa(cta.acc_empty(acc.index), cluster_ctarank())",
    ),
    mutation(
        "pair: acc_empty counts one CTA", PAIR_TILES, "C::EPILOGUE_GROUPS * C::CTA_GROUP);", "C::EPILOGUE_GROUPS);"
    ),
    mutation(
        "pair: N of one CTA in the instruction descriptor",
        PAIR,
        "instruction_descriptor(C::MMA_TILE_M, C::MMA_TILE_N)",
        "instruction_descriptor(C::MMA_TILE_M, C::MMA_B_ROWS)",
        found_by="emulator",
    ),
    mutation(
        "two groups: released before the sums are in registers",
        GROUPS,
        "                drained_columns drained(accumulator + at_once);\n                release();\n",
        "                release();\n                drained_columns drained(accumulator + at_once);\n",
    ),
    mutation(
        "two groups: registers used before wait::ld",
        GROUPS,
        "        for (int i = 0; i < CHUNKS; i++) tcgen05_wait_ld(v[i]);\n",
        "        for (int i = 0; i < 0; i++) tcgen05_wait_ld(v[i]);\n",
    ),
    mutation(
        "two groups: acc_empty counts one",
        GROUPS,
        "EPILOGUE_WARPS * C::EPILOGUE_GROUPS *",
        "EPILOGUE_WARPS *",
    ),
    mutation(
        "two groups: both have the lower columns",
        GROUPS,
        "first = second ? group_columns :",
        "first = second ? 0 :",
    ),
    mutation(
        "two groups: both take part in split-K",
        GROUPS_SPLIT,
        "    if (second && s.split_k > 1) return;\n",
        "",
        found_by="emulator",
    ),
    mutation("multicast: to this CTA only", MULTICAST, "(5u <<", "(1u << cta.sharer * 2 <<"),
    mutation("multicast: to the other CTA of the pair", MULTICAST, "(5u <<", "(3u <<"),
    mutation(
        "multicast: both pairs load the same half",
        MULTICAST,
        "half = (int32_t)cta.sharer *",
        "half = (int32_t)cta.rank *",
    ),
    mutation(
        "multicast: half loaded to the other half's place",
        MULTICAST,
        "to + half *",
        "to + (64 - half) *",
        found_by="emulator",
    ),
    mutation(
        "multicast: the commit leaves the other pair out",
        MULTICAST,
        "            tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), sharers);\n",
        "            tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), pair);\n",
    ),
    mutation(
        "multicast: no wait for the other pair's commit",
        MULTICAST_WRAP,
        "mbarrier_init(cta.empty(i), C::MULTICAST);",
        "mbarrier_init(cta.empty(i), 1);",
        "tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), sharers);",
        "tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), pair);",
    ),
    mutation(
        "split-K: no wait for the partials", SPLIT, "            mbarrier_wait_cluster(cta.partials_full(), 0);\n", ""
    ),
    mutation(
        "split-K: expect_tx of half the partials",
        SPLIT,
        "cta.kept_columns * SM100_CTA_ROWS * 4);",
        "cta.kept_columns * SM100_CTA_ROWS * 2);",
    ),
    mutation(
        "split-K: partials overlap",
        SPLIT,
        "(from * kept + column) * SM100_CTA_ROWS",
        "(from * kept + column / 2) * SM100_CTA_ROWS",
    ),
    mutation(
        "split-K: no cluster barrier at the start",
        SPLIT,
        "    if (C::SPLIT_CTAS * s.split_k > 1) {",
        "    if (false) {",
        found_by="verifier",
    ),
    mutation(
        "split-K in stages: partials sent before the stages are free",
        IN_STAGES,
        "            if (s.partials_in_stages) {\n                barrier",
        "            if (false) {\n                barrier",
        "    if (s.partials_in_stages && warp >= EPILOGUE_WARPS) {",
        "    if (false) {",
        found_by="verifier",  # the emulator too, but in its 21st timing
    ),
    mutation(
        "weights loaded early although b is not constant",
        LATE,
        "producer{s, cta, scheduler, s.constant_operand};",
        "producer{s, cta, scheduler, SM100_CONSTANT_MMA_A};",
        found_by="emulator",
    ),
    mutation(
        "constant b: both operands loaded early",
        replace(LATE, note="constant b, a written late", constant_b=True, late="a"),
        "load(cta.k_begin + i, i, constant == SM100_CONSTANT_MMA_A, constant == SM100_CONSTANT_MMA_B);",
        "load(cta.k_begin + i, i, true, true);",
        "both || constant != SM100_CONSTANT_MMA_A,",
        "both,",
        "both || constant != SM100_CONSTANT_MMA_B);",
        "both);",
        found_by="emulator",
    ),
    mutation(
        "constant b: loaded twice",
        CONSTANT,
        "load(k, state.index, both || constant != SM100_CONSTANT_MMA_A,",
        "load(k, state.index, true,",
    ),
    mutation(
        "registers for two CTAs of 6 warps",
        ONE,
        "CEIL_DIV(THREADS, 128) * 128",
        "THREADS",
        found_by="machine code",
    ),
    mutation(
        "column pairs: each lane stores its own row of the other lane",
        PAIRS,
        "__byte_perm(other, own, 0x7632)",
        "__byte_perm(other, own, 0x5410)",
        found_by="emulator",
    ),
    mutation(
        "column pairs: both lanes store one row",
        PAIRS,
        "    to += odd * (pitch - 2);\n",
        "    to -= odd * 2;\n",
    ),
    mutation("cp.async: no proxy fence", CP_ASYNC, "        fence_proxy_async();\n", "", found_by="emulator"),
    mutation(
        "cp.async: arrive before the copies complete",
        CP_ASYNC,
        "                cp_async_wait_group<C::STAGES - 2>();\n",
        "",
    ),
    mutation(
        "cp.async: no wait on empty",
        CP_ASYNC,
        "                mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n                scales",
        "                scales",
    ),
    *grouped_mutations.MUTATIONS,
]
# Not mutations to find: the second of two 64-row tiles reads its scales from the third column of an atom on. The
# verifier orders a cp before an mma only where the mma reads from the first column that the cp writes, so it gets the
# kernel with the first two columns read instead, which only the same cp writes.
HALVES = [
    mutation(
        f"both halves of an atom: {launch.name}",
        launch,
        "C::MMA_TILE_N == 64 ? scheduler.coord.mma_n / 64 % 2 * 2 : 0",
        "0",
        found_by="nobody",
    )
    for launch in (
        Launch("sm100_gemm_256x64", "mma_b tiles", 128, 256, 1, tail=192),
        Launch("sm100_gemm_256x64", "mma_b tiles, wrap", 128, 256, 5),
        Launch("sm100_gemm_128x64", "mma_b tiles", 128, 128, 1, tail=192),
        Launch("sm100_gemm_128x64", "mma_b tiles, wrap", 128, 128, 5),
    )
]

CONTROLS = controls_of(MUTATIONS)
CONTROL_SEEDS = 20  # timings, in an ordinary run
# The launches that an ordinary run proves, a few seconds each: a pipeline that wraps (single CTA, pair, cp.async), two
# tiles for one CTA, split-K, a tail.
PROVEN = [
    Launch("sm100_gemm_128x64", "wrap", 64, 128, 5),
    Launch("sm100_gemm_256x64", "wrap", 64, 256, 5),
    MULTICAST,
    Launch("sm100_gemm_128x16_cp_async", "wrap", 16, 128, 5, pitch=648),
    Launch("sm100_gemm_128x32", "two tiles", 256, 32, 1, swap_ab=False),
    Launch("sm100_gemm_128x128", "two tiles", 128, 256, 1, swap_ab=False),
    Launch("sm100_gemm_128x16", "split 2", 16, 128, 3, split_k=2),
    Launch("sm100_gemm_128x64", "split 2 in stages", 64, 128, 2, split_k=2, in_stages=True),
    Launch("sm100_gemm_256x128", "tail", 128, 256, 1, tail=64),
    Launch("sm100_gemm_256x64", "constant b", 64, 256, 5, constant_b=True),
    *grouped_mutations.PROVEN,
]
QUICK = ("split-K: partials overlap",)
