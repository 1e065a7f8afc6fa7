"""Mutations of csrc/kernels/sm90/nn.cu and of the sums of a cluster in reduce.cuh, all of which the emulator finds."""

from __future__ import annotations

from harness.mutations import mutation
from sm90.nn import STAGE_K, Launch

WRAP = Launch("sm90_nn_fp16_32x256", "wrap", 26 * STAGE_K)
EVEN = Launch("sm90_nn_bf16_64x256", "wrap", 24 * STAGE_K)  # its stages are no multiple of three
TAIL = Launch("sm90_nn_bf16_32x256", "tail", STAGE_K + 29)
SPLIT = Launch("sm90_nn_fp16_64x256", "split", 4 * STAGE_K, split_k=2)
LATE = Launch("sm90_nn_fp16_32x256", "one stage, split", 8 * STAGE_K, split_k=8)
BIAS = Launch("sm90_nn_fp16_64x256", "bias", 3 * STAGE_K, bias=True)

WAIT_EMPTY = "        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n"
WAIT_FULL = "        mbarrier_wait(cta.full(state.index), state.phase);\n"
WAIT_SCALES = "        mbarrier_wait(cta.scales_full(state.index), state.phase);\n"
RELEASE = "            if (half == 0 && k > cta.k_begin) mbarrier_arrive(cta.empty(previous));\n"
COMMIT, WAIT_GROUP = "            wgmma_commit_group();\n", "            wgmma_wait_group<1>();\n"
CLUSTER = "        if (s.split_k > 1) barrier_cluster_arrive(), barrier_cluster_wait();\n"
WAIT_PARTIALS = "            mbarrier_wait_cluster(cta.partials_full(), 0);\n"
ARRIVE_SCALES = "        mbarrier_arrive(cta.full(state.index));\n"
BYTES = "        mbarrier_arrive_expect_tx(full, bytes);\n"

NN_MUTATIONS = [
    mutation(f"nn: {name}", launch, *edits, found_by="emulator")
    for name, launch, *edits in (
        ("no wait on empty", WRAP, WAIT_EMPTY, ""),
        ("phase parity of empty flipped", WRAP, WAIT_EMPTY, WAIT_EMPTY.replace(" ^ 1", "")),
        ("expect_tx 16 bytes short", WRAP, BYTES, BYTES.replace("bytes)", "bytes - 16)")),
        (
            "scales expect half their bytes",
            WRAP,
            "expect_tx(scales_full, groups * 512)",
            "expect_tx(scales_full, groups * 256)",
        ),
        ("no wait for scales", WRAP, WAIT_SCALES, ""),
        (
            "a scale warp skips phases of its barriers",
            EVEN,
            "SCALE_WARPS = 2",
            "SCALE_WARPS = 3",
            "STAGES % SCALE_WARPS == 0",
            "STAGES > 0",
        ),
        ("full expects a lane too few", WRAP, "cta.full(i), 1 + 32)", "cta.full(i), 1 + 31)"),
        (
            "scales arrive before they are converted",
            WRAP,
            ARRIVE_SCALES,
            "",
            WAIT_SCALES,
            WAIT_SCALES + ARRIVE_SCALES,
        ),
        ("scales past K kept", TAIL, "left >= 2 ? 0x7F7F : left == 1 ? 0x7F : 0", "0x7F7F"),
        ("second scale of a lane past K kept", TAIL, "left >= 2 ?", "left >= 1 ?"),
        ("no wait on full", WRAP, WAIT_FULL, ""),
        (
            "empty expects a warp too few",
            WRAP,
            "cta.empty(i), 32 * C::MATH_WARPS)",
            "cta.empty(i), 32 * C::MATH_WARPS - 32)",
        ),
        (
            "stage released before its wgmma are complete",
            WRAP,
            RELEASE,
            "            if (half == 1) mbarrier_arrive(cta.empty(current));\n",
        ),
        ("commit behind the wait", WRAP, COMMIT, "", WAIT_GROUP, WAIT_GROUP + COMMIT),
        ("fragments overwritten while wgmma read them", WRAP, WAIT_GROUP, WAIT_GROUP.replace("1", "2")),
        ("no fence before wgmma", WRAP, "            wgmma_fence();\n", ""),
        ("no wait for the last wgmma", WRAP, "    wgmma_wait_group<0>();\n", ""),
        ("mbarriers not fenced", WRAP, "        fence_mbarrier_init();\n", ""),
        (
            "partial sums sent before the stages are free",
            LATE,
            "        __syncwarp();\n" + CLUSTER,
            "        __syncwarp();\n",
            "are free for partial sums. */\n" + CLUSTER,
            "are free for partial sums. */\n",
        ),
        ("no wait for partial sums", SPLIT, WAIT_PARTIALS, ""),
        ("half of the partial sums expected", SPLIT, "C::MATH_WARPS * 512);", "C::MATH_WARPS * 256);"),
        (
            "stages overwritten while wgmma read them",
            BIAS,
            "    named_barrier_sync(1, C::MATH_WARPS * 32);",
            "    ",
        ),
    )
]
