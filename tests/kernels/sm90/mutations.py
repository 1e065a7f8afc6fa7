"""Mutations of csrc/kernels/sm90/gemm.cu, mainloop.cuh, reduce.cuh, schedule.cuh and dequant.cu there, and which tool
finds each. Those of nn.cu, prefill.cu, grouped_few.cu and units/grouped.cuh are in files of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from emulate import Emulator
from harness import verify
from harness.launch import Generator
from harness.mutations import Mutation, controls_of, mutation
from sm90 import grouped_few_mutations, grouped_mutations
from sm90.gemm import Product, StreamK
from sm90.nn_mutations import NN_MUTATIONS
from sm90.operands import HEADERS, dequant_ptx
from sm90.prefill import PrefillProduct
from sm90.prefill_mutations import PREFILL_MUTATIONS
from sm90.schedules import Launch


@dataclass(frozen=True)
class Dequantize(verify.Launch):
    """Two launches of csrc/kernels/sm90/dequant.cu for one operand of two batches, into the same memory."""

    note: str
    rows: int
    k: int
    rows_per_thread: int
    span: int = PrefillProduct.span
    calls = 2
    for_verifier, device, kernel = False, HEADERS.name, "nvfp4_sm90_dequant"

    @property
    def name(self) -> str:
        return f"dequant {self.note}"

    def source(self) -> str:
        header = (HEADERS.folder / "dequant.cuh").read_text()
        return (HEADERS.folder / "dequant.cu").read_text().replace('#include "kernels/sm90/dequant.cuh"\n', header)

    def ptx(self) -> str:
        return dequant_ptx()

    def start(self, emulator: Emulator, module: Any, generator: Generator) -> list[Dequantized]:
        """The second call overwrites the result of the first."""
        calls = [PrefillProduct(emulator, generator, self.rows, 1, self.k, 2, integer=False) for _ in range(self.calls)]
        output = calls[0].dequant_output(0)
        for call in calls:
            call.outputs[0], call.span = output, self.span
            call.dequantize(module, [(0, output)], rows_per_thread=self.rows_per_thread)
        return [Dequantized(calls[-1])]


@dataclass(frozen=True)
class Dequantized:
    """The operand, with the interface of a product."""

    product: PrefillProduct

    def expected(self) -> numpy.ndarray:
        return self.product.expected_dequant(0)

    def check(self, expected: numpy.ndarray) -> None:
        assert (self.product.outputs[0].numpy() == expected).all()


# Launches to mutate. Pipelines wrap around, so that the second fill of a stage can race with the first.
WRAP = Launch("sm90_gemm_128x32", "wrap", 19)
ONE_STAGE = Launch("sm90_gemm_128x32", "one stage", 1)  # an epilogue is proven in 1.5 s, behind 19 stages in 8 s
DEQUANT = Launch("sm90_gemm_128x16", "wrap, dequant", 23)
RAW = Launch("sm90_gemm_128x32_raw", "wrap, dequant from stages", 19)
RAW_TAIL = Launch("sm90_gemm_128x64_raw", "tail, dequant from stages", 1, tail=48)
TAIL = Launch("sm90_gemm_128x16", "tail", 1, tail=48)
TILES = Launch("sm90_gemm_128x16", "tiles", 2, tiles=12, clusters=1)
SPLIT = Launch("sm90_gemm_128x16", "split", 5, split_k=2)
LATE = Launch("sm90_gemm_128x64", "one stage, split", 1, split_k=8)  # CTAs send before another one has started
LATE_IN_STAGES = Launch("sm90_gemm_128x64", "and in stages", 1, split_k=2, in_stages=True)
HALVES = Launch("sm90_gemm_128x64", "halves, plain", 2, split_k=2, plain=True)
THIRDS = Launch("sm90_gemm_128x64", "thirds", 3, split_k=3)
IN_STAGES = Launch("sm90_gemm_128x16", "split in stages", 20, split_k=2, in_stages=True)
STREAMK = Launch("sm90_gemm_128x32_streamk", "stream-K", 7, tiles=2, split_k=2, streamk=StreamK(2, 4, 2))
UNEVEN = Launch("sm90_gemm_128x32_streamk", "stream-K, uneven", 5, tiles=3, streamk=StreamK(2, 2, 3))
# The fix-up has more chunks of partial tiles than the pipeline has stages.
FIXUP_WRAP = Launch("sm90_gemm_128x32_streamk", "stream-K, wrap", 7, streamk=StreamK(6, 6, 1))
ROW = Launch("sm90_gemm_128x16", "two calls, K = 0", 0, calls=2)  # with K > 0 the loads wait as well
FEW = Dequantize("few rows", 150, 528, 1)
MANY = Dequantize("many rows", 150, 528, 4)
WIDE = Dequantize("spans of sm90/gemm.cu", 40, 528, 1, Product.span)  # K ends in the first half of a span

WAIT_EMPTY = "                mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n"
WAIT_FULL = "\n        mbarrier_wait(cta.full(state.index), state.phase);\n"
STORE_B = "            rows.store("
WAIT_EMPTY_B = "            mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n" + STORE_B
ARRIVE_FULL = "            mbarrier_arrive(cta.full(state.index));\n"
LOAD_NEXT_B = "            if (k + C::DEQUANT_WARPS < cta.k_end)"
ARRIVE_FULL_B = ARRIVE_FULL + LOAD_NEXT_B
WAIT_RAW = "            mbarrier_wait(cta.raw(state.index), state.phase);\n"
RAW_BARRIER = "            named_barrier_sync(1, 32 * C::DEQUANT_WARPS);\n"
FENCE = "            fence_proxy_async();\n"
RAW_ARRIVE = ARRIVE_FULL + "        }\n"
RAW_ARRIVALS = "RAW_B ? 32 * DEQUANT_WARPS"
RELEASE = "            if (group == 0 && k > cta.k_begin) mbarrier_arrive(previous_empty);\n"
RELEASE_LAST = "    if (cta.k_begin < cta.k_end) mbarrier_arrive(cta.empty(previous_stage));\n"
RELEASE_FIXUP = "            mbarrier_arrive(cta.empty(state.index));\n            state.advance();\n"
WAIT_FIXUP = "\n            mbarrier_wait(cta.full(state.index), state.phase);\n"
WRITE_STAGING = (
    "            write_group_to_staging(staging, s.swap_ab, {groups[g].x, groups[g].y, groups[g].z, groups[g].w});\n"
)
WAIT_PARTIALS = "            mbarrier_wait_cluster(cta.partials_full(), 0);\n"
EACH_PARTIAL = "    for (int from = 0; from < kept.splits; from++) {\n"
SECOND_HALF = "if (s.split_k == 2) return function(kept_columns<C>(2, 1, 1u << 30));"
STORE_KEPT = "if (stored) epilogue_plain<true>(p, s, coord, kept, acc);"
FREE_STAGES = (
    "            if (s.partials_in_stages)\n                barrier_cluster_arrive(), barrier_cluster_wait(); /*"
)
FREE_STAGES_PRODUCER = "        if (s.partials_in_stages) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();\n"
MUTATIONS = [
    mutation("producer: no wait on empty", WRAP, WAIT_EMPTY, ""),
    mutation("producer: phase parity of empty flipped", WRAP, WAIT_EMPTY, WAIT_EMPTY.replace(" ^ 1", "")),
    mutation("producer: expect_tx 16 bytes short", WRAP, "scale_blocks * bytes);", "scale_blocks * bytes - 16);"),
    mutation(
        "producer: expect_tx 16 bytes long",
        WRAP,
        "scale_blocks * bytes);",
        "scale_blocks * bytes + 16);",
    ),
    mutation(
        "producer: expect_tx without mma_b",
        WRAP,
        "(C::DEQUANT_B_IN_KERNEL ? C::MMA_SFA_OFFSET - C::MMA_A_OFFSET : C::MMA_SFA_OFFSET)",
        "(C::MMA_SFA_OFFSET - C::MMA_A_OFFSET)",
    ),
    mutation(
        "producer: preloads one stage too many",
        WRAP,
        "min(s.preload_stages, k_end - k_begin)",
        "min(C::STAGES + 1, k_end - k_begin)",
    ),
    mutation("mma_b: no wait on empty", DEQUANT, WAIT_EMPTY_B, STORE_B),
    mutation("mma_b: phase parity of empty flipped", DEQUANT, WAIT_EMPTY_B, WAIT_EMPTY_B.replace(" ^ 1", "")),
    mutation("mma_b: no proxy fence", DEQUANT, FENCE + ARRIVE_FULL_B, ARRIVE_FULL_B, found_by="emulator"),
    mutation(
        "mma_b: full expects a lane too few",
        DEQUANT,
        "1 + C::DEQUANT_ARRIVALS",
        "C::DEQUANT_ARRIVALS",
    ),
    mutation(
        "mma_b: full arrives before the store", DEQUANT, ARRIVE_FULL_B, LOAD_NEXT_B, STORE_B, ARRIVE_FULL + STORE_B
    ),
    mutation(
        "mma_b: a warp takes another's stage",
        DEQUANT,
        "            skip = C::DEQUANT_WARPS - 1;\n",
        "            skip = C::DEQUANT_WARPS;\n",
    ),
    mutation("raw mma_b: no wait on raw", RAW, WAIT_RAW, ""),
    mutation("raw mma_b: phase parity of raw flipped", RAW, WAIT_RAW, WAIT_RAW.replace("phase", "phase ^ 1")),
    mutation("raw mma_b: written before all warps have read", RAW, RAW_BARRIER, ""),
    mutation("raw mma_b: no proxy fence", RAW, FENCE + RAW_ARRIVE, RAW_ARRIVE, found_by="emulator"),
    mutation("raw mma_b: full completes before all warps have stored", RAW, RAW_ARRIVALS, f"{RAW_ARRIVALS} - 32"),
    mutation("raw mma_b: expect_tx without scales", RAW, "* (SM90_STAGE_K / 2) + bytes);", "* (SM90_STAGE_K / 2));"),
    mutation(
        "raw mma_b: scales past K kept",
        RAW_TAIL,
        "k == cta.k_tail ? tail_mask : 0x7F7F;",
        "0x7F7F;",
        found_by="emulator",
    ),
    mutation("math: no wait on full", WRAP, WAIT_FULL, "\n"),
    mutation("math: phase parity of full flipped", WRAP, WAIT_FULL, WAIT_FULL.replace("phase", "phase ^ 1")),
    mutation(
        "math: empty expects a warp too few",
        WRAP,
        "mbarrier_init(cta.empty(i), 32 * C::MATH_WARPS)",
        "mbarrier_init(cta.empty(i), 32 * C::MATH_WARPS - 32)",
    ),
    mutation(
        "math: stage released before its wgmma are complete",
        WRAP,
        RELEASE,
        "",
        "            wgmma_commit_group();\n",
        "            if (group == 0 && k + 1 < cta.k_end) mbarrier_arrive(cta.empty(state.index));\n"
        "            wgmma_commit_group();\n",
    ),
    mutation(
        "math: stage released before mma_a is read",
        WRAP,
        RELEASE,
        "",
        WAIT_FULL,
        WAIT_FULL + "        mbarrier_arrive(cta.empty(state.index));\n",
        RELEASE_LAST,
        "",
    ),
    mutation("math: last stage of a tile not released", TILES, RELEASE_LAST, ""),
    mutation(
        "math: fragments overwritten while wgmma read them",
        WRAP,
        "            wgmma_wait_group<1>();\n",
        "            wgmma_wait_group<2>();\n",
        found_by="emulator",
    ),
    mutation("math: no wait for the last wgmma", WRAP, "    wgmma_wait_group<0>();\n", "", found_by="emulator"),
    mutation("math: no fence before wgmma", WRAP, "            wgmma_fence();\n", "", found_by="emulator"),
    mutation(
        "math: accumulators not cleared between tiles", TILES, "all > 0 || k > cta.k_begin)", "1)", found_by="emulator"
    ),
    mutation(
        "math: accumulators cleared at K = 0 only",
        SPLIT,
        "all > 0 || k > cta.k_begin)",
        "all > 0 || k > 0)",
        found_by="emulator",
    ),
    mutation("math: scales past K kept", TAIL, "(k == cta.k_tail ? tail_mask : 0x7F7F)", "0x7F7F", found_by="emulator"),
    mutation(
        "math: second scale of a lane past K kept",
        TAIL,
        "left >= 2 ? 0x7F7F : left == 1 ? 0x7F : 0",
        "left >= 1 ? 0x7F7F : 0",
        found_by="emulator",
    ),
    mutation(
        "math: staging buffer read before all lanes have stored",
        ONE_STAGE,
        WRITE_STAGING + "            __syncwarp();\n",
        WRITE_STAGING,
    ),
    mutation("split-K: no wait for partials", SPLIT, WAIT_PARTIALS, ""),
    mutation("split-K by 2: no wait for partials", HALVES, WAIT_PARTIALS, "", found_by="emulator"),
    mutation("split-K: expect_tx half of the partials", SPLIT, "C::MATH_WARPS * 512);", "C::MATH_WARPS * 256);"),
    mutation(
        "split-K: partials overlap", SPLIT, "sender_bytes + threadIdx.x * 16;", "sender_bytes + threadIdx.x / 2 * 16;"
    ),
    mutation(
        "split-K: no cluster barrier at the start",
        LATE,
        "    if (s.split_k > 1) barrier_cluster_arrive_relaxed(); /*",
        "    /*",
        "            barrier_cluster_wait(); /*",
        "            /*",
        "        if (s.split_k > 1) barrier_cluster_wait();\n" + FREE_STAGES_PRODUCER,
        FREE_STAGES_PRODUCER,
    ),
    mutation(
        "split-K: last partial added twice",
        THIRDS,
        EACH_PARTIAL,
        EACH_PARTIAL.replace("int from", "int each").replace(
            "from < kept.splits; from++", "each <= kept.splits; each++"
        )
        + "        int from = min(each, kept.splits - 1);\n",
        found_by="emulator",
    ),
    mutation(
        "split-K: last partial left out",
        THIRDS,
        EACH_PARTIAL,
        EACH_PARTIAL.replace("splits", "splits - 1"),
        found_by="emulator",
    ),
    mutation(
        "split-K by 2: partial left out", HALVES, EACH_PARTIAL, EACH_PARTIAL.replace("= 0", "= 1"), found_by="emulator"
    ),
    mutation(
        "split-K by 2: second CTA keeps the columns of the first",
        HALVES,
        SECOND_HALF,
        SECOND_HALF.replace("2, 1", "2, 0"),
        found_by="emulator",
    ),
    mutation(
        "split-K by 2: second CTA stores the columns of the first",
        HALVES,
        STORE_KEPT,
        STORE_KEPT.replace("kept, acc", "kept.of(0), acc"),
        found_by="emulator",
    ),
    mutation(
        "split-K: sent to the sender's columns",
        THIRDS,
        "- theirs.begin * layout.GROUP_BYTES",
        "- kept.begin * layout.GROUP_BYTES",
    ),
    mutation(
        "split-K in stages: partials sent before the stages are free",
        LATE_IN_STAGES,
        FREE_STAGES,
        "            /*",
        FREE_STAGES_PRODUCER,
        "",
    ),
    mutation(
        "stream-K: flag not raised",
        STREAMK,
        "flag_arrive(s.fixup_flags + scheduler.worker);",
        "{}",
        found_by="emulator",
    ),
    mutation(
        "stream-K: flag raised before the partial tile is stored",
        STREAMK,
        "        if (scheduler.stores_partial_tile()) {\n",
        "        if (scheduler.stores_partial_tile()) {\n"
        "            if (threadIdx.x % 32 == 0) flag_arrive(s.fixup_flags + scheduler.worker);\n",
        "        if (threadIdx.x % 32 == 0) flag_arrive(s.fixup_flags + scheduler.worker);\n        if (s.split_k",
        "        if (s.split_k",
        found_by="emulator",
    ),
    mutation(
        "stream-K: no wait for the flag",
        STREAMK,
        "        flag_wait(scheduler.s.fixup_flags + worker, C::MATH_WARPS);\n",
        "",
        found_by="emulator",
    ),
    mutation(
        "stream-K: waits for one warp of the worker only",
        STREAMK,
        "flag_wait(scheduler.s.fixup_flags + worker, C::MATH_WARPS);",
        "flag_wait(scheduler.s.fixup_flags + worker, 1);",
        found_by="emulator",
    ),
    mutation("stream-K: no acquire", STREAMK, "ld.acquire.gpu.global", "ld.relaxed.gpu.global", found_by="emulator"),
    mutation("stream-K: no release", STREAMK, "red.release.gpu.global", "red.relaxed.gpu.global", found_by="emulator"),
    mutation(
        "stream-K: no proxy fence before the bulk copies",
        STREAMK,
        '    asm volatile("fence.proxy.async.global;" ::: "memory");\n',
        "",
        found_by="emulator",
    ),
    mutation(
        "stream-K: waits for another worker's flag",
        STREAMK,
        "flag_wait(scheduler.s.fixup_flags + worker, C::MATH_WARPS);",
        "flag_wait(scheduler.s.fixup_flags, C::MATH_WARPS);",
        found_by="emulator",
    ),
    mutation(
        "stream-K: partial tiles overlap",
        UNEVEN,
        "(int64_t)(worker + streamk_tile - 1) * C::PARTIAL_TILE_BYTES",
        "(int64_t)worker * C::PARTIAL_TILE_BYTES",
        found_by="emulator",
    ),
    mutation(
        "stream-K: last worker of a tile left out",
        UNEVEN,
        "return divide(streamk_tile * s.streamk_stages - 1, s.inv_worker_stages) - first_worker() + 1;",
        "return divide(streamk_tile * s.streamk_stages - 1, s.inv_worker_stages) - first_worker();",
        found_by="emulator",
    ),
    mutation(
        "stream-K: worker continues past streamk_stages of a tile",
        UNEVEN,
        "next_end = is_worker ? s.streamk_stages : cta.k_end;",
        "next_end = is_worker ? s.k_stages : cta.k_end;",
        found_by="emulator",
    ),
    mutation(
        "stream-K: next tile starts at the first stage of the previous",
        UNEVEN,
        "        next_begin = is_dp_tile ? next_begin : 0;\n",
        "",
        found_by="emulator",
    ),
    mutation(
        "stream-K: stages of the fix-up not released",
        FIXUP_WRAP,
        RELEASE_FIXUP,
        "            state.advance();\n",
        found_by="emulator",
    ),
    mutation(
        "stream-K: no wait on empty in the fix-up",
        FIXUP_WRAP,
        "            mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n"
        "            mbarrier_arrive_expect_tx(cta.full(state.index), bytes);",
        "            mbarrier_arrive_expect_tx(cta.full(state.index), bytes);",
        found_by="emulator",
    ),
    mutation(
        "stream-K: fix-up before the copies are complete",
        STREAMK,
        WAIT_FIXUP,
        "\n",
        found_by="emulator",
    ),
    mutation(
        "stream-K: workspace written before griddepcontrol.wait",
        STREAMK,
        "            griddepcontrol_wait();\n            store_partial_tile(scheduler, acc);",
        "            store_partial_tile(scheduler, acc);",
        found_by="nobody",  # the mainloop depends on loads of mma_b after the same wait
    ),
    mutation(
        "calls: no griddepcontrol.wait",
        ROW,
        "        griddepcontrol_wait();\n        " + STORE_KEPT,
        "        " + STORE_KEPT,
        found_by="emulator",
    ),
    mutation(
        "start: mbarriers used before initialization",
        WRAP,
        "    __syncthreads();\n}\n\ntemplate <class C> __device__ __forceinline__ void gemm(",
        "}\n\ntemplate <class C> __device__ __forceinline__ void gemm(",
    ),
    mutation("start: no fence after mbarrier.init", SPLIT, "        fence_mbarrier_init();\n", "", found_by="emulator"),
    mutation(
        "split-K: wait for partials at CTA scope",
        SPLIT,
        WAIT_PARTIALS,
        WAIT_PARTIALS.replace("wait_cluster", "wait"),
        found_by="nobody",
    ),
    mutation(
        "split-K in stages: relaxed cluster arrival",
        IN_STAGES,
        FREE_STAGES,
        FREE_STAGES.replace("arrive", "arrive_relaxed"),
        found_by="nobody",
    ),
    mutation(
        "math: setmaxnreg beyond the register file",
        WRAP,
        "setmaxnreg_inc<C::MATH_REGISTERS>()",
        "setmaxnreg_inc<256 - 8>()",
        found_by="machine code",
    ),
    mutation(
        "dequant: scales of the first quarter for all",
        FEW,
        " + quarter % 4 * 4",
        "",
        found_by="emulator",
    ),
    mutation(
        "dequant: writes rows of the following CTAs",
        FEW,
        "            if (i == count) break;\n",
        "",
        found_by="emulator",
    ),
    mutation("dequant: all CTAs take the first rows", FEW, "= block * s.rows_per_thread;", "= 0;", found_by="emulator"),
    mutation(
        "dequant: batch index not advanced",
        FEW,
        "l = block / blocks, block -= l * blocks;",
        "{}",
        found_by="emulator",
    ),
    mutation("dequant: order of another kernel", WIDE, "s.span == 128 ?", "s.span == 64 ?", found_by="emulator"),
    mutation(
        "dequant: last half span not zeroed",
        WIDE,
        "stored = k64 / 2 * 128 < s.k",
        "stored = k64 * 64 < s.k",
        found_by="emulator",
    ),
    mutation("dequant: one scale for a lane's rows", MANY, "scale[i * scale_step]", "scale[0]", found_by="emulator"),
    mutation("dequant: no griddepcontrol.wait", MANY, "    griddepcontrol_wait();\n", "", found_by="emulator"),
    *NN_MUTATIONS,
    *grouped_few_mutations.MUTATIONS,
    *grouped_mutations.MUTATIONS,
    *PREFILL_MUTATIONS,
]
CONTROLS = controls_of(MUTATIONS)
CONTROL_SEEDS = 4  # timings, in an ordinary run
HALVES: list[Mutation] = []
# The launches that an ordinary run proves, a few seconds each: pipelines that wrap around, two tiles for one
# CTA, split-K, partials in the stages.
PROVEN = [
    Launch("sm90_gemm_128x8", "wrap", 12),
    Launch("sm90_gemm_128x16", "split 3 in stages", 3, split_k=3, in_stages=True),
    Launch("sm90_gemm_128x64", "split 2", 3, split_k=2),
]
QUICK: tuple[str, ...] = ()
