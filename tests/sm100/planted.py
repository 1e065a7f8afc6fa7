"""Bugs planted in csrc/sm100_gemm.cu, and what finds them: the static verifier (verify.py) over every schedule, the
emulator in at most 20 timings.

    python tests/sm100/planted.py                every bug on both, as a table (minutes)
    python tests/sm100/planted.py pair parity    those whose name contains one of the words
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
EMULATOR = ("both", "emulator")  # found_by of what it finds
FINDS = ("not_wellsynced", "potential_race", "invalid_lifecycle")  # other words than race_free are no finds

# Where bugs are planted. Rings wrap, so that a slot's second filling can meet its first.
ONE = Launch("sm100_gemm_128x64", "ring", 64, 128, 6)
TAIL = Launch("sm100_gemm_128x64", "tail", 64, 128, 5, tail=64)
TILES = Launch("sm100_gemm_128x128", "tiles", 128, 384, 1, swap_ab=False)
SPLIT = Launch("sm100_gemm_128x64", "split", 64, 128, 2, split_k=2)
IN_STAGES = Launch("sm100_gemm_128x64", "split in stages", 64, 128, 2, split_k=2, in_stages=True)
PAIR = Launch("sm100_gemm_256x64", "pair", 64, 256, 5)
PAIR_TILES = Launch("sm100_gemm_256x64", "pair, tiles", 512, 64, 1, swap_ab=False)
GATHER = Launch("sm100_gemm_128x16_cp_async", "gather", 16, 128, 5, pitch=648)


@dataclass(frozen=True)
class Bug:
    name: str
    launch: Launch
    edits: tuple[tuple[str, str], ...]  # old text, which must be there exactly once, and new text
    found_by: str

    def source(self) -> str:
        """The kernel's file with the bug, and the launched instantiation alone."""
        text = (CSRC / "sm100_gemm.cu").read_text()
        c = configs()[self.launch.config]
        alone = f"KERNEL({c.name}, {c.group}, {c.tile_y}, {c.stages}, {c.accumulators}, {c.gather})"
        for old, new in (*self.edits, ("SM100_GEMM_CONFIGS(KERNEL)", alone)):
            count = text.count(old)
            assert count == 1, f"{self.name}: in the kernel there is {count} times: {old}"
            text = text.replace(old, new)
        return text

    def ptx(self) -> str:
        if not self.edits:
            return gemm_ptx()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "planted.cu")
            path.write_text(self.source())
            return compile_ptx(path)


def bug(name: str, launch: Launch, *edits: str, found_by: str = "both") -> Bug:
    return Bug(name, launch, tuple(zip(edits[::2], edits[1::2])), found_by)


WAIT_FOR_SLOT = (  # of the producer
    "            mbarrier_wait(w.empty(at.slot), at.parity ^ 1);\n            if constexpr (C::GATHER)\n"
)

BUGS = [
    bug("mma: no wait on full", ONE, "            mbarrier_wait(w.full(at.slot), at.parity);\n", ""),
    bug(
        "producer: no wait on empty",
        ONE,
        WAIT_FOR_SLOT,
        "            if constexpr (C::GATHER)\n",
    ),
    bug(
        "producer: parity of empty flipped",
        ONE,
        WAIT_FOR_SLOT,
        "            mbarrier_wait(w.empty(at.slot), at.parity);\n            if constexpr (C::GATHER)\n",
    ),
    bug("mma: parity of full flipped", ONE, "(w.full(at.slot), at.parity);\n", "(w.full(at.slot), at.parity ^ 1);\n"),
    bug(
        "16 bytes too many expected",
        ONE,
        "2 * w.blocks(k) * SM100_ATOM_BYTES);",
        "2 * w.blocks(k) * SM100_ATOM_BYTES + 16);",
    ),
    bug(
        "16 bytes too few expected",
        ONE,
        "2 * w.blocks(k) * SM100_ATOM_BYTES);",
        "2 * w.blocks(k) * SM100_ATOM_BYTES - 16);",
    ),
    bug(
        "stage released before its products",
        ONE,
        "            int blocks = w.blocks(k);\n",
        "            int blocks = w.blocks(k);\n            tcgen05_commit<C::GROUP>(w.empty(at.slot), pair);\n",
        "            tcgen05_commit<C::GROUP>(w.empty(at.slot), pair);\n        }\n",
        "        }\n",
    ),
    bug(
        "tile announced before its products",
        ONE,
        "        mbarrier_wait(w.acc_empty(acc.slot), acc.parity ^ 1);\n",
        "        mbarrier_wait(w.acc_empty(acc.slot), acc.parity ^ 1);\n"
        "        tcgen05_commit<C::GROUP>(w.acc_full(acc.slot), pair);\n",
        "        tcgen05_commit<C::GROUP>(w.acc_full(acc.slot), pair);\n    }\n",
        "    }\n",
    ),
    bug("epilogue: no wait on acc_full", ONE, "            mbarrier_wait(w.acc_full(acc.slot), acc.parity);\n", ""),
    bug(
        "scales overlap the accumulator by 4 columns",
        ONE,
        "SCALES_AT = ACCUMULATORS * TILE_Y,",
        "SCALES_AT = ACCUMULATORS * TILE_Y - 4,",
    ),
    bug(
        "x scales under y scales in shared memory",
        ONE,
        "SFY_AT = SFX_AT + SM100_SFX_BYTES;",
        "SFY_AT = SFX_AT + SM100_SFX_BYTES - 512;",
    ),
    bug(
        "dealloc without the CTA's barrier",
        ONE,
        "    __syncthreads();\n    if (C::GROUP == 2)",
        "    if (C::GROUP == 2)",
    ),
    bug(
        "no dealloc",
        ONE,
        "    if (warp == MMA_WARP) tcgen05_dealloc<C::GROUP, C::COLUMNS>(tmem);\n",
        "",
        found_by="emulator",
    ),
    bug(
        "tensor memory's address read without a barrier",
        ONE,
        "    __syncthreads();\n    tcgen05_fence_after_thread_sync();\n    return",
        "    tcgen05_fence_after_thread_sync();\n    return",
    ),
    bug(
        "epilogue: sums used before wait::ld",
        ONE,
        "        if (more) tcgen05_wait_ld(next);\n",
        "",
        found_by="emulator",
    ),
    bug(
        "epilogue: no fence behind acc_full",
        ONE,
        "            mbarrier_wait(w.acc_full(acc.slot), acc.parity);\n            tcgen05_fence_after_thread_sync();\n",
        "            mbarrier_wait(w.acc_full(acc.slot), acc.parity);\n",
        found_by="emulator",
    ),
    bug(
        "last stage: 4 blocks always",
        TAIL,
        "        return min(SM100_STAGE_ATOMS, k_blocks - k_stage * SM100_STAGE_ATOMS);",
        "        return SM100_STAGE_ATOMS;",
        found_by="emulator",
    ),
    bug(
        "accumulator reused without acc_empty",
        TILES,
        "        mbarrier_wait(w.acc_empty(acc.slot), acc.parity ^ 1);\n",
        "",
    ),
    bug(
        "accumulator released before it is read",
        TILES,
        "        if (kept.units > 1) {\n            if (s.partials_in_stages)",
        "        if (threadIdx.x % 32 == 0 && walk.reaches(C::ACCUMULATORS))\n"
        "            mbarrier_arrive_relaxed(w.of_leader(w.acc_empty(acc.slot)));\n"
        "        if (kept.units > 1) {\n            if (s.partials_in_stages)",
        "        if (threadIdx.x % 32 == 0 && walk.reaches(C::ACCUMULATORS))\n"
        "            mbarrier_arrive_relaxed(w.of_leader(w.acc_empty(acc.slot)));\n    }\n",
        "    }\n",
    ),
    bug(
        "three warps release an accumulator", TILES, "EPILOGUE_WARPS * C::GROUP);", "(EPILOGUE_WARPS - 1) * C::GROUP);"
    ),
    bug(
        "pair: no cluster barrier at the start",
        PAIR,
        "    if (C::GROUP * s.split_k > 1) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();\n",
        "",
    ),
    bug(
        "pair: no cluster barrier at the end",
        PAIR,
        "    if (C::GROUP == 2) barrier_cluster_arrive_relaxed(), barrier_cluster_wait(); /*",
        "    /*",
        found_by="verifier",
    ),
    bug(
        "pair: bytes of one CTA expected",
        PAIR,
        "mbarrier_arrive_expect_tx(own, 2 * C::STAGE_BYTES);",
        "mbarrier_arrive_expect_tx(own, C::STAGE_BYTES);",
    ),
    bug("pair: commits reach the leader only", PAIR, "(uint16_t)(3u << w.unit * 2);", "(uint16_t)(1u << w.unit * 2);"),
    bug("pair: peer signals its own barrier", PAIR, "full = w.of_leader(own);", "full = own;"),
    bug(
        "pair: peer does not wait on empty",
        PAIR,
        WAIT_FOR_SLOT,
        WAIT_FOR_SLOT.replace("mbarrier_wait", "if (!w.rank) mbarrier_wait"),
    ),
    bug(
        "pair: both CTAs' warps release to their own",
        PAIR_TILES,
        "w.of_leader(w.acc_empty(acc.slot))",
        "mapa(w.acc_empty(acc.slot), cluster_ctarank())",
    ),
    bug("pair: leader's four warps release for both", PAIR_TILES, "EPILOGUE_WARPS * C::GROUP);", "EPILOGUE_WARPS);"),
    bug(
        "pair: N of one CTA in the descriptor",
        PAIR,
        "instruction_descriptor(C::TILE_X, C::TILE_Y)",
        "instruction_descriptor(C::TILE_X, C::CTA_Y)",
        found_by="emulator",
    ),
    bug("split: no wait for the parts", SPLIT, "            mbarrier_wait_cluster(w.parts_full(), 0);\n", ""),
    bug(
        "split: half of the parts' bytes expected",
        SPLIT,
        "SM100_PARTIALS_BYTES(C::TILE_Y, s.split_k));",
        "SM100_PARTIALS_BYTES(C::TILE_Y, s.split_k) / 2);",
    ),
    bug(
        "split: parts on top of each other",
        SPLIT,
        "(from * kept + column) * SM100_CTA_ROWS",
        "(from * kept + column / 2) * SM100_CTA_ROWS",
    ),
    bug(
        "split: no cluster barrier at the start",
        SPLIT,
        "    if (C::GROUP * s.split_k > 1) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();\n",
        "",
        found_by="verifier",
    ),
    bug(
        "split in stages: sums sent before the stages are free",
        IN_STAGES,
        "            if (s.partials_in_stages) barrier_cluster_arrive(), barrier_cluster_wait(); /*",
        "            /*",
        "    if (s.partials_in_stages && warp >= EPILOGUE_WARPS) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();\n",
        "",
    ),
    bug("gather: no proxy fence", GATHER, "        fence_proxy_async();\n", "", found_by="emulator"),
    bug(
        "gather: announced before the copies have landed",
        GATHER,
        "                cp_async_wait_group<C::STAGES - 2>();\n",
        "",
    ),
    bug(
        "gather: no wait on empty",
        GATHER,
        "                mbarrier_wait(w.empty(at.slot), at.parity ^ 1);\n                scales",
        "                scales",
    ),
]
# Not bugs: the second of two 64-row tiles takes its scales from the third column of an atom on. The verifier orders a
# copy before a product only where the product reads from where the copy began, so it is given the kernel with the first
# two columns read instead, which the same copy writes and nothing else does.
HALVES = [
    bug(
        f"both halves of an atom: {launch.name}",
        launch,
        "C::TILE_Y == 64 ? walk.place.y / 64 % 2 * 2 : 0",
        "0",
        found_by="nobody",
    )
    for launch in (
        Launch("sm100_gemm_256x64", "along y", 128, 256, 1, tail=192),
        Launch("sm100_gemm_256x64", "along y, ring", 128, 256, 5),
        Launch("sm100_gemm_128x64", "along y", 128, 128, 1, tail=192),
        Launch("sm100_gemm_128x64", "along y, ring", 128, 128, 5),
    )
]

# Nothing planted: what the launches say of the kernel as it is.
CONTROLS = [
    bug(f"nothing planted: {launch.name}", launch, found_by="nobody")
    for launch in dict.fromkeys(b.launch for b in BUGS)
]


def emulate(planted: Bug, ptx: str) -> str:
    """What the emulator says, and after how many timings."""
    text = only_entry(ptx, configs()[planted.launch.config].kernel)
    generator = numpy.random.default_rng()
    for seed in range(SEEDS):
        emulator = Emulator("sm_100", seed=seed)
        product = planted.launch.product(emulator, generator)
        try:
            planted.launch.start(product, emulator.load(text))
            product.check()
        except (EmulatorError, AssertionError) as error:
            said = "wrong result" if isinstance(error, AssertionError) else str(error).split("\n")[0].split("`: ")[-1]
            return f"seed {seed}: {said}"
    return ""


def main(words: Sequence[str]) -> int:
    surprises = 0
    print(f"{'bug':54} {'in':15} {'verifier':18} {'s':>5}  emulator")
    for planted in CONTROLS + HALVES + BUGS:
        if words and not any(word in planted.name for word in words):
            continue
        ptx = planted.ptx()
        verdict: Verdict = prove(planted.launch, ptx, seconds=100)
        emulated = emulate(planted, ptx) if planted not in HALVES else ""
        found = {(False, False): "nobody", (True, False): "verifier", (False, True): "emulator", (True, True): "both"}
        surprises += found[verdict.result in FINDS, bool(emulated)] != planted.found_by
        seen = "-" if verdict.result == "race_free" else verdict.result
        print(f"{planted.name:54} {planted.launch.note:15} {seen:18} {verdict.seconds:5.1f}  {emulated or '-'}")
        for one in verdict.details[:1] if seen not in FINDS else []:
            print(f"        {one}", flush=True)
    print(f"{surprises} found by others than BUGS says")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
