"""Bugs planted in csrc/sm90_gemm.cu, sm90_gemm_parts.cuh and sm90_dequant.cu, and whether the emulator finds them in at
most 20 timings.

python tests/sm90/planted.py               every bug, as a table (minutes)
python tests/sm90/planted.py ring parity   those whose name contains one of the words
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from sm90.dense import DenseProduct
from sm90.launch import CSRC, Help, configs
from sm90.verify import Launch, prove
from sm100.launch import FP32, Emulator, compile_ptx, rounded
from sm100.verify import Verdict

sys.path.insert(0, str(CSRC.parent / "tests" / "emulator"))
from emulate import EmulatorError

SEEDS = 20
FINDS = ("not_wellsynced", "potential_race", "invalid_lifecycle")  # other words than race_free are no finds


@dataclass(frozen=True)
class Expansion:
    """A launch of csrc/sm90_dequant.cu for one operand of two batches, behind another for the same memory."""

    note: str
    rows: int
    k: int
    rows_a_thread: int
    calls = 2

    @property
    def name(self) -> str:
        return f"expand {self.note}"

    def start(self, emulator: Emulator, module: Any, generator: numpy.random.Generator) -> list[Expanded]:
        """Queues the calls; the first one's result is gone when both have ended."""
        calls = [DenseProduct(emulator, generator, self.rows, 1, self.k, 2, integer=False) for _ in range(self.calls)]
        place = calls[0].expanded(0)
        for call in calls:
            call.places[0] = place
            call.expand(module, [(0, place)], rows_a_thread=self.rows_a_thread)
        return [Expanded(calls[-1])]


@dataclass(frozen=True)
class Expanded:
    """The operand, as if it were a product."""

    product: DenseProduct
    out_type = FP32  # in which the numbers are exact

    def result(self) -> numpy.ndarray:
        return self.product.places[0].numpy()

    def expected(self) -> numpy.ndarray:
        return self.product.expected_expansion(0)


@dataclass(frozen=True)
class Bug:
    name: str
    launch: Launch | Expansion
    edits: tuple[tuple[str, str], ...]  # old text, which must be there exactly once, and new text
    found_by: str  # both, emulator, verifier; machine code: tests/test_sm90_sass.py; nobody

    def source(self) -> str:
        """The kernel's files in one with the bug, and the launched instantiation alone."""
        edits = self.edits
        if isinstance(self.launch, Expansion):
            text = (CSRC / "sm90_dequant.cu").read_text()
        else:
            text = (CSRC / "sm90_gemm.cu").read_text()
            for name in ("sm90_gemm_parts.cuh", "device/flags.cuh"):
                include = f'#include "{name}"\n'
                assert text.count(include) == 1
                text = text.replace(include, (CSRC / name).read_text())
            edits += (("SM90_GEMM_CONFIGS(KERNEL)", f"KERNEL({configs()[self.launch.config].row})"),)
        for old, new in edits:
            count = text.count(old)
            assert count == 1, f"{self.name}: in the kernel there is {count} times: {old}"
            text = text.replace(old, new)
        return text

    def ptx(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "planted.cu")
            path.write_text(self.source())
            return compile_ptx(path, family="sm90")


def bug(name: str, launch: Launch | Expansion, *edits: str, found_by: str = "both") -> Bug:
    return Bug(name, launch, tuple(zip(edits[::2], edits[1::2])), found_by)


# Where bugs are planted. Rings go round, so that a slot's second filling can meet its first.
RING = Launch("sm90_gemm_128x32", "ring", 19)
RAW = Launch("sm90_gemm_128x16", "ring, raw y", 23)
TAIL = Launch("sm90_gemm_128x16", "tail", 1, tail=48)
TILES = Launch("sm90_gemm_128x16", "tiles", 2, tiles=12, clusters=1)
SPLIT = Launch("sm90_gemm_128x16", "split", 5, split_k=2)
LATE = Launch("sm90_gemm_128x64", "one stage, split", 1, split_k=8)  # units have sent before the first has begun
LATE_IN_STAGES = Launch("sm90_gemm_128x64", "and in stages", 1, split_k=2, in_stages=True)
HALVES = Launch("sm90_gemm_128x64", "halves, plain", 2, split_k=2, plain=True)
THIRDS = Launch("sm90_gemm_128x64", "thirds", 3, split_k=3)
IN_STAGES = Launch("sm90_gemm_128x16", "split in stages", 20, split_k=2, in_stages=True)
HELPED = Launch("sm90_gemm_128x32_streamk", "helped", 7, tiles=2, split_k=2, help=Help(2, 4, 2))
FALL = Launch("sm90_gemm_128x32_streamk", "helped as it falls", 5, tiles=3, help=Help(2, 2, 3))
ROUND = Launch("sm90_gemm_128x32_streamk", "helped, ring", 7, help=Help(6, 6, 1))  # more sums than slots
ROW = Launch("sm90_gemm_128x16", "two calls, K = 0", 0, calls=2)  # with K the loads wait for all
FEW = Expansion("few rows", 150, 528, 1)
MANY = Expansion("many rows", 150, 528, 4)

WAIT_FOR_SLOT = "                mbarrier_wait(w.empty(at.index), at.phase ^ 1);\n"
WAIT_FOR_DATA = "\n        mbarrier_wait(w.full(at.index), at.phase);\n"
STORE_Y = "            rows.store("
WAIT_FOR_Y = "            mbarrier_wait(w.empty(at.index), at.phase ^ 1);\n" + STORE_Y
TELL_OF_Y = "            mbarrier_arrive(w.full(at.index));\n"
RELEASE = "            if (group == 0 && k > w.k_first) mbarrier_arrive(before);\n"
RELEASE_LAST = "    if (w.k_first < w.k_last) mbarrier_arrive(w.empty(previous));\n"
RELEASE_SUMS = "            mbarrier_arrive(w.empty(at.index));\n            at.advance();\n"
SUMS_ARE_THERE = "\n            mbarrier_wait(w.full(at.index), at.phase);\n"
WAIT_FOR_PARTS = "            mbarrier_wait_cluster(w.parts_full(), 0);\n"
EACH_PART = "    for (int from = 0; from < kept.units; from++) {\n"
SECOND_HALF = "if (s.split_k == 2) return function(kept_columns<C>(2, 1, 1u << 30));"
FINISH_KEPT = "if (stored) finish_plain<true>(p, s, place, kept, acc);"
MEET = "            if (s.partials_in_stages) barrier_cluster_arrive(), barrier_cluster_wait(); /*"
MEET_SUPPORT = "        if (s.partials_in_stages) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();\n"
BUGS = [
    bug("load: no wait on empty", RING, WAIT_FOR_SLOT, ""),
    bug("load: parity of empty flipped", RING, WAIT_FOR_SLOT, WAIT_FOR_SLOT.replace(" ^ 1", "")),
    bug(
        "load: 16 bytes too few expected", RING, "C::SFX_AT) + x_blocks * bytes)", "C::SFX_AT) + x_blocks * bytes - 16)"
    ),
    bug(
        "load: 16 bytes too many expected",
        RING,
        "C::SFX_AT) + x_blocks * bytes)",
        "C::SFX_AT) + x_blocks * bytes + 16)",
    ),
    bug(
        "load: bytes of y not expected",
        RING,
        "(C::Y_RAW ? C::SFX_AT - C::X_AT : C::SFX_AT)",
        "(C::SFX_AT - C::X_AT)",
    ),
    bug("load: one slot too many ahead", RING, "AHEAD = Y_RAW ? 0 : 2;", "AHEAD = STAGES + 1;"),
    bug("y: no wait on empty", RAW, WAIT_FOR_Y, STORE_Y),
    bug("y: parity of empty flipped", RAW, WAIT_FOR_Y, WAIT_FOR_Y.replace(" ^ 1", "")),
    bug("y: no proxy fence", RAW, "            fence_proxy_async();\n", "", found_by="emulator"),
    bug("y: a lane too few tells of it", RAW, "1 + (C::Y_RAW ? 32 : 0)", "1 + (C::Y_RAW ? 31 : 0)"),
    bug("y: told of before it is stored", RAW, TELL_OF_Y, "", STORE_Y, TELL_OF_Y + STORE_Y),
    bug(
        "y: a warp takes another's stage",
        RAW,
        "            turn = C::Y_WARPS - 1;\n",
        "            turn = C::Y_WARPS;\n",
    ),
    bug("math: no wait on full", RING, WAIT_FOR_DATA, "\n"),
    bug("math: parity of full flipped", RING, WAIT_FOR_DATA, WAIT_FOR_DATA.replace("parity", "parity ^ 1")),
    bug(
        "math: a warp too few releases a slot",
        RING,
        "mbarrier_init(w.empty(i), 32 * C::MATH_WARPS)",
        "mbarrier_init(w.empty(i), 32 * C::MATH_WARPS - 32)",
    ),
    bug(
        "math: slot released before its products have ended",
        RING,
        RELEASE,
        "",
        "            wgmma_commit_group();\n",
        "            if (group == 0 && k + 1 < w.k_last) mbarrier_arrive(w.empty(at.index));\n"
        "            wgmma_commit_group();\n",
    ),
    bug(
        "math: slot released before x is read",
        RING,
        RELEASE,
        "",
        WAIT_FOR_DATA,
        WAIT_FOR_DATA + "        mbarrier_arrive(w.empty(at.index));\n",
        RELEASE_LAST,
        "",
    ),
    bug("math: last slot of a tile not released", TILES, RELEASE_LAST, ""),
    bug(
        "math: registers decoded into while products read them",
        RING,
        "            wgmma_wait_group<1>();\n",
        "            wgmma_wait_group<2>();\n",
        found_by="emulator",
    ),
    bug("math: no wait for the last products", RING, "    wgmma_wait_group<0>();\n", "", found_by="emulator"),
    bug("math: no fence before products", RING, "            wgmma_fence();\n", "", found_by="emulator"),
    bug("math: products added to what was there", TILES, "all > 0 || k > w.k_first)", "1)", found_by="emulator"),
    bug("math: only K = 0 begins a sum", SPLIT, "all > 0 || k > w.k_first)", "all > 0 || k > 0)", found_by="emulator"),
    bug("math: scales past K kept", TAIL, "(k == w.k_tail ? tail_mask[b] : 0x7F7F)", "0x7F7F", found_by="emulator"),
    bug(
        "math: sums turned before all lanes have stored",
        RING,
        "            turn_group(turn, s.swap_ab, {v[g].x, v[g].y, v[g].z, v[g].w});\n            __syncwarp();\n",
        "            turn_group(turn, s.swap_ab, {v[g].x, v[g].y, v[g].z, v[g].w});\n",
        found_by="verifier",
    ),
    bug("split: no wait for the parts", SPLIT, WAIT_FOR_PARTS, ""),
    bug("split, halves: no wait for the parts", HALVES, WAIT_FOR_PARTS, "", found_by="emulator"),
    bug("split: half of the parts' bytes expected", SPLIT, "C::MATH_WARPS * 512);", "C::MATH_WARPS * 256);"),
    bug("split: parts on top of each other", SPLIT, "sender + threadIdx.x * 16;", "sender + threadIdx.x / 2 * 16;"),
    bug(
        "split: no cluster barrier at the start",
        LATE,
        "    if (s.split_k > 1) barrier_cluster_arrive_relaxed(); /*",
        "    /*",
        "            barrier_cluster_wait();                                          /*",
        "            /*",
        "        if (s.split_k > 1) barrier_cluster_wait();\n" + MEET_SUPPORT,
        MEET_SUPPORT,
    ),
    bug(
        "split: the last part added twice",
        THIRDS,
        EACH_PART,
        EACH_PART.replace("int from", "int each").replace("from < kept.units; from++", "each <= kept.units; each++")
        + "        int from = min(each, kept.units - 1);\n",
        found_by="emulator",
    ),
    bug(
        "split: the last part left out", THIRDS, EACH_PART, EACH_PART.replace("units", "units - 1"), found_by="emulator"
    ),
    bug("split, halves: the part left out", HALVES, EACH_PART, EACH_PART.replace("= 0", "= 1"), found_by="emulator"),
    bug(
        "split, halves: the second unit has the first one's",
        HALVES,
        SECOND_HALF,
        SECOND_HALF.replace("2, 1", "2, 0"),
        found_by="emulator",
    ),
    bug(
        "split, halves: the second unit finishes the first one's",
        HALVES,
        FINISH_KEPT,
        FINISH_KEPT.replace("kept, acc", "kept.of(0), acc"),
        found_by="emulator",
    ),
    bug(
        "split: sent to where the unit itself keeps",
        THIRDS,
        "- theirs.first * layout.GROUP",
        "- kept.first * layout.GROUP",
    ),
    bug(
        "split in stages: sums sent before the stages are free",
        LATE_IN_STAGES,
        MEET,
        "            /*",
        MEET_SUPPORT,
        "",
    ),
    bug("helped: nothing handed over", HELPED, "flag_arrive(s.fixup_flags + walk.helper);", "{}", found_by="emulator"),
    bug(
        "helped: handed over before the sums are stored",
        HELPED,
        "        if (walk.contributes()) {\n",
        "        if (walk.contributes()) {\n"
        "            if (threadIdx.x % 32 == 0) flag_arrive(s.fixup_flags + walk.helper);\n",
        "        if (threadIdx.x % 32 == 0) flag_arrive(s.fixup_flags + walk.helper);\n        if (s.split_k",
        "        if (s.split_k",
        found_by="emulator",
    ),
    bug(
        "helped: sums read before they are handed over",
        HELPED,
        "        flag_wait(walk.s.fixup_flags + helper, C::MATH_WARPS);\n",
        "",
        found_by="emulator",
    ),
    bug(
        "helped: sums read when one warp has handed over",
        HELPED,
        "flag_wait(walk.s.fixup_flags + helper, C::MATH_WARPS);",
        "flag_wait(walk.s.fixup_flags + helper, 1);",
        found_by="emulator",
    ),
    bug("helped: no acquire", HELPED, "ld.acquire.gpu.global", "ld.relaxed.gpu.global", found_by="emulator"),
    bug("helped: no release", HELPED, "red.release.gpu.global", "red.relaxed.gpu.global", found_by="nobody"),
    bug(
        "helped: no fence before sums are copied",
        HELPED,
        '    asm volatile("fence.proxy.async.global;" ::: "memory");\n',
        "",
        found_by="emulator",
    ),
    bug(
        "helped: another helper's flag waited for",
        HELPED,
        "flag_wait(walk.s.fixup_flags + helper, C::MATH_WARPS);",
        "flag_wait(walk.s.fixup_flags, C::MATH_WARPS);",
        found_by="emulator",
    ),
    bug(
        "helped: sums on top of each other",
        FALL,
        "(int64_t)(helper + divided - 1) * C::PARTIAL_TILE_BYTES",
        "(int64_t)helper * C::PARTIAL_TILE_BYTES",
        found_by="emulator",
    ),
    bug(
        "helped: the last helper of a tile left out",
        FALL,
        "return divide(divided * s.streamk_stages - 1, s.inv_worker_stages) - first_helper() + 1;",
        "return divide(divided * s.streamk_stages - 1, s.inv_worker_stages) - first_helper();",
        found_by="emulator",
    ),
    bug(
        "helped: a piece goes on behind the end of a tile's helped stages",
        FALL,
        "last = helps ? s.streamk_stages : w.k_last;",
        "last = helps ? s.k_stages : w.k_last;",
        found_by="emulator",
    ),
    bug(
        "helped: the next tile's piece begins where the one before began",
        FALL,
        "        first = whole ? first : 0;\n",
        "",
        found_by="emulator",
    ),
    bug("helped: slots of sums not released", ROUND, RELEASE_SUMS, "            at.advance();\n", found_by="emulator"),
    bug(
        "helped: no wait on empty before sums",
        ROUND,
        "            mbarrier_wait(w.empty(at.index), at.phase ^ 1);\n"
        "            mbarrier_arrive_expect_tx(w.full(at.index), bytes);",
        "            mbarrier_arrive_expect_tx(w.full(at.index), bytes);",
        found_by="emulator",
    ),
    bug(
        "helped: sums added before they have arrived",
        HELPED,
        SUMS_ARE_THERE,
        "\n",
        found_by="emulator",
    ),
    bug(
        "helped: workspace written before the grid before has ended",
        HELPED,
        "            griddepcontrol_wait();\n            contribute(walk, acc);",
        "            contribute(walk, acc);",
        found_by="nobody",  # the loads of y, whose end the products wait for, are behind that wait
    ),
    bug(
        "calls: no wait for the grid before",
        ROW,
        "        griddepcontrol_wait();\n        " + FINISH_KEPT,
        "        " + FINISH_KEPT,
        found_by="emulator",
    ),
    bug(
        "start: barriers used before they are there",
        RING,
        "    __syncthreads();\n}\n\ntemplate <class C> __device__ __forceinline__ void gemm(",
        "}\n\ntemplate <class C> __device__ __forceinline__ void gemm(",
    ),
    bug("start: no fence behind mbarrier.init", SPLIT, "        fence_mbarrier_init();\n", "", found_by="nobody"),
    bug(
        "split: parts waited for in the scope of a CTA",
        SPLIT,
        WAIT_FOR_PARTS,
        WAIT_FOR_PARTS.replace("wait_cluster", "wait"),
        found_by="nobody",
    ),
    bug(
        "split in stages: nothing released to the others",
        IN_STAGES,
        MEET,
        MEET.replace("arrive", "arrive_relaxed"),
        found_by="nobody",
    ),
    bug(
        "math: more registers taken than there are",
        RING,
        "setmaxnreg_inc<C::MATH_REGISTERS>()",
        "setmaxnreg_inc<256 - 8>()",
        found_by="machine code",
    ),
    bug(
        "expand: scales of the first rows of a block for all",
        FEW,
        " + quarter % 4 * 4",
        "",
        found_by="emulator",
    ),
    bug(
        "expand: rows of the CTAs behind written",
        FEW,
        "        if (i == s.rows_a_thread) break;\n",
        "",
        found_by="emulator",
    ),
    bug("expand: every CTA the first rows", FEW, "= block * s.rows_a_thread;", "= 0;", found_by="emulator"),
    bug(
        "expand: batches one behind the other",
        FEW,
        "l = block / blocks, block -= l * blocks;",
        "{}",
        found_by="emulator",
    ),
    bug("expand: one scale for a lane's rows", MANY, "scale[i * scale_step]", "scale[0]", found_by="emulator"),
    bug("expand: no wait for the grid before", MANY, "    griddepcontrol_wait();\n", "", found_by="emulator"),
]
# Nothing planted: what the launches say of the kernel as it is.
CONTROLS = [Bug(f"nothing planted: {one.note}", one, (), "nobody") for one in dict.fromkeys(b.launch for b in BUGS)]


def emulate(planted: Bug, ptx: str, seeds: int = SEEDS) -> str:
    """What the emulator says, and in which timing."""
    generator = numpy.random.default_rng()
    for seed in range(seeds):
        emulator = Emulator("sm_90", seed=seed)
        try:
            calls = planted.launch.start(emulator, emulator.load(ptx), generator)
            emulator.synchronize()
            expected = sum(call.expected() for call in calls)
            assert (calls[-1].result() == rounded(expected, calls[-1].out_type)).all()
        except (EmulatorError, AssertionError) as error:
            said = "wrong result" if isinstance(error, AssertionError) else str(error).split("\n")[0].split("`: ")[-1]
            return f"seed {seed}: {said}"
    return ""


def main(words: Sequence[str]) -> int:
    surprises = 0
    print(f"{'bug':62} {'in':16} {'verifier':18} {'s':>5}  emulator")
    for planted in CONTROLS + BUGS:
        if words and not any(word in planted.name for word in words):
            continue
        ptx = planted.ptx()
        provable = isinstance(planted.launch, Launch) and planted.launch.for_verifier
        verdict = prove(planted.launch, ptx, 100) if provable else Verdict("-", 0.0, 0.0)
        said = emulate(planted, ptx)
        found = {(False, False): "nobody", (True, False): "verifier", (False, True): "emulator", (True, True): "both"}
        by = found[verdict.result in FINDS, bool(said)]
        surprises += by != ("nobody" if planted.found_by == "machine code" else planted.found_by)
        seen = "-" if verdict.result == "race_free" else verdict.result
        print(f"{planted.name:62} {planted.launch.note:16} {seen:18} {verdict.seconds:5.1f}  {said or '-'}", flush=True)
        for detail in verdict.details[:1] if seen not in FINDS else []:
            print(f"        {detail}", flush=True)
    print(f"{surprises} found by others than BUGS says")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
