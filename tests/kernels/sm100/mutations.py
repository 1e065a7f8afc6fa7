"""Mutations of csrc/kernels/sm100/gemm.cu, and which tool finds each: the static verifier (verify.py) over every
schedule, the emulator in at most 20 timings.

    python tests/kernels/sm100/mutations.py                every mutation on both, as a table (minutes)
    python tests/kernels/sm100/mutations.py pair phase     those whose name contains one of the words
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from sm100.launch import CSRC, Emulator, compile_ptx, configs, gemm_ptx, only_entry
from sm100.verify import Launch, Verdict, prove

sys.path.insert(0, str(CSRC.parent / "emulator"))
from emulate import EmulatorError

SEEDS = 20
EMULATOR = ("both", "emulator")  # values of found_by that include it
FINDS = ("not_wellsynced", "potential_race", "invalid_lifecycle")  # other results do not count as found

# Launches that show the mutations. The pipeline wraps, so that a stage's second load can meet its first.
ONE = Launch("sm100_gemm_128x64", "wrap", 64, 128, 6)
TAIL = Launch("sm100_gemm_128x64", "tail", 64, 128, 5, tail=64)
TILES = Launch("sm100_gemm_128x128", "tiles", 128, 384, 1, swap_ab=False)
SPLIT = Launch("sm100_gemm_128x64", "split", 64, 128, 2, split_k=2)
IN_STAGES = Launch("sm100_gemm_128x64", "split in stages", 64, 128, 2, split_k=2, in_stages=True)
PAIR = Launch("sm100_gemm_256x64", "pair", 64, 256, 5)
PAIR_TILES = Launch("sm100_gemm_256x64", "pair, tiles", 512, 64, 1, swap_ab=False)
CP_ASYNC = Launch("sm100_gemm_128x16_cp_async", "cp.async", 16, 128, 5, pitch=648)


@dataclass(frozen=True)
class Mutation:
    name: str
    launch: Launch
    edits: tuple[tuple[str, str], ...]  # old text, which must occur exactly once, and new text
    found_by: str

    def source(self) -> str:
        """The kernel's file with the mutation and only the launched instantiation."""
        text = (CSRC / "kernels/sm100/gemm.cu").read_text()
        c = configs()[self.launch.config]
        alone = f"KERNEL({c.name}, {c.cta_group}, {c.mma_tile_n}, {c.stages}, {c.accumulators}, {c.cp_async})"
        for old, new in (*self.edits, ("SM100_GEMM_CONFIGS(KERNEL)", alone)):
            count = text.count(old)
            assert count == 1, f"{self.name}: occurs {count} times in the kernel: {old}"
            text = text.replace(old, new)
        return text

    def ptx(self) -> str:
        if not self.edits:
            return gemm_ptx()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "mutated.cu")
            path.write_text(self.source())
            return compile_ptx(path)


def mutation(name: str, launch: Launch, *edits: str, found_by: str = "both") -> Mutation:
    return Mutation(name, launch, tuple(zip(edits[::2], edits[1::2])), found_by)


WAIT_FOR_STAGE = (  # of the TMA producer
    "            mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n            if constexpr (C::CP_ASYNC)\n"
)

MUTATIONS = [
    mutation("mma: no wait on full", ONE, "            mbarrier_wait(cta.full(state.index), state.phase);\n", ""),
    mutation(
        "producer: no wait on empty",
        ONE,
        WAIT_FOR_STAGE,
        "            if constexpr (C::CP_ASYNC)\n",
    ),
    mutation(
        "producer: phase of empty inverted",
        ONE,
        WAIT_FOR_STAGE,
        "            mbarrier_wait(cta.empty(state.index), state.phase);\n            if constexpr (C::CP_ASYNC)\n",
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
        "2 * cta.blocks(k) * SM100_ATOM_BYTES);",
        "2 * cta.blocks(k) * SM100_ATOM_BYTES + 16);",
    ),
    mutation(
        "expect_tx 16 bytes too few",
        ONE,
        "2 * cta.blocks(k) * SM100_ATOM_BYTES);",
        "2 * cta.blocks(k) * SM100_ATOM_BYTES - 16);",
    ),
    mutation(
        "stage released before its mma",
        ONE,
        "            int blocks = cta.blocks(k);\n",
        "            int blocks = cta.blocks(k);\n"
        "            tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), pair);\n",
        "            tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), pair);\n        }\n",
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
        "    __syncthreads();\n    tcgen05_fence_after_thread_sync();\n    return",
        "    tcgen05_fence_after_thread_sync();\n    return",
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
        "        if (reduction.splits > 1) {\n            if (s.partials_in_stages)",
        "        if (threadIdx.x % 32 == 0 && scheduler.reaches(C::ACCUMULATORS))\n"
        "            mbarrier_arrive_relaxed(cta.of_leader(cta.acc_empty(acc.index)));\n"
        "        if (reduction.splits > 1) {\n            if (s.partials_in_stages)",
        "        if (threadIdx.x % 32 == 0 && scheduler.reaches(C::ACCUMULATORS))\n"
        "            mbarrier_arrive_relaxed(cta.of_leader(cta.acc_empty(acc.index)));\n    }\n",
        "    }\n",
    ),
    mutation(
        "three warps release an accumulator",
        TILES,
        "EPILOGUE_WARPS * C::CTA_GROUP);",
        "(EPILOGUE_WARPS - 1) * C::CTA_GROUP);",
    ),
    mutation(
        "pair: no cluster barrier at the start",
        PAIR,
        "    if (C::CTA_GROUP * s.split_k > 1) {",
        "    if (false) {",
    ),
    mutation(
        "pair: no cluster barrier at the end",
        PAIR,
        "    if (C::CTA_GROUP == 2) { /*",
        "    if (false) { /*",
        found_by="verifier",
    ),
    mutation(
        "pair: expect_tx of one CTA",
        PAIR,
        "mbarrier_arrive_expect_tx(own, 2 * C::STAGE_BYTES);",
        "mbarrier_arrive_expect_tx(own, C::STAGE_BYTES);",
    ),
    mutation(
        "pair: commits arrive in the leader only",
        PAIR,
        "(uint16_t)(3u << cta.split_idx * 2);",
        "(uint16_t)(1u << cta.split_idx * 2);",
    ),
    mutation("pair: peer loads onto its own full barrier", PAIR, "full = cta.of_leader(own);", "full = own;"),
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
    mutation("pair: acc_empty counts one CTA", PAIR_TILES, "EPILOGUE_WARPS * C::CTA_GROUP);", "EPILOGUE_WARPS);"),
    mutation(
        "pair: N of one CTA in the instruction descriptor",
        PAIR,
        "instruction_descriptor(C::MMA_TILE_M, C::MMA_TILE_N)",
        "instruction_descriptor(C::MMA_TILE_M, C::MMA_B_ROWS)",
        found_by="emulator",
    ),
    mutation(
        "split-K: no wait for the partials", SPLIT, "            mbarrier_wait_cluster(cta.partials_full(), 0);\n", ""
    ),
    mutation(
        "split-K: expect_tx of half the partials",
        SPLIT,
        "SM100_PARTIALS_BYTES(C::MMA_TILE_N, s.split_k));",
        "SM100_PARTIALS_BYTES(C::MMA_TILE_N, s.split_k) / 2);",
    ),
    mutation(
        "split-K: partials overlap",
        SPLIT,
        "(from * owned + column) * SM100_CTA_ROWS",
        "(from * owned + column / 2) * SM100_CTA_ROWS",
    ),
    mutation(
        "split-K: no cluster barrier at the start",
        SPLIT,
        "    if (C::CTA_GROUP * s.split_k > 1) {",
        "    if (false) {",
        found_by="verifier",
    ),
    mutation(
        "split-K in stages: partials sent before the stages are free",
        IN_STAGES,
        "            if (s.partials_in_stages) { /*",
        "            if (false) { /*",
        "    if (s.partials_in_stages && warp >= EPILOGUE_WARPS) {",
        "    if (false) {",
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

# The same launches of the kernel without a mutation.
CONTROLS = [
    mutation(f"no mutation: {launch.name}", launch, found_by="nobody")
    for launch in dict.fromkeys(m.launch for m in MUTATIONS)
]


def emulate(mutant: Mutation, ptx: str) -> str:
    """The emulator's error message and the seed that showed it; empty if it finds nothing."""
    text = only_entry(ptx, configs()[mutant.launch.config].kernel)
    generator = numpy.random.default_rng()
    for seed in range(SEEDS):
        emulator = Emulator("sm_100", seed=seed)
        product = mutant.launch.product(emulator, generator)
        try:
            mutant.launch.start(product, emulator.load(text))
            product.check()
        except (EmulatorError, AssertionError) as error:
            said = "wrong result" if isinstance(error, AssertionError) else str(error).split("\n")[0].split("`: ")[-1]
            return f"seed {seed}: {said}"
    return ""


def main(words: Sequence[str]) -> int:
    surprises = 0
    print(f"{'mutation':54} {'in':15} {'verifier':18} {'s':>5}  emulator")
    for mutant in CONTROLS + HALVES + MUTATIONS:
        if words and not any(word in mutant.name for word in words):
            continue
        ptx = mutant.ptx()
        verdict: Verdict = prove(mutant.launch, ptx, seconds=100)
        emulated = emulate(mutant, ptx) if mutant not in HALVES else ""
        found = {(False, False): "nobody", (True, False): "verifier", (False, True): "emulator", (True, True): "both"}
        surprises += found[verdict.result in FINDS, bool(emulated)] != mutant.found_by
        seen = "-" if verdict.result == "race_free" else verdict.result
        print(f"{mutant.name:54} {mutant.launch.note:15} {seen:18} {verdict.seconds:5.1f}  {emulated or '-'}")
        for one in verdict.details[:1] if seen not in FINDS else []:
            print(f"        {one}", flush=True)
    print(f"{surprises} not found by what MUTATIONS says")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
