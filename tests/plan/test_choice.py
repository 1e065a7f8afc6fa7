"""The cache of plan_choose (csrc/plan/choose.c) answers the query that was asked: the plan of a product is the same
whatever the thread has planned before, products of the same sizes with an operand for all batches included. That every
field of a query counts is tested by tests/c/test_plan_cache.c."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from paths import CSRC

SOURCES = (
    *sorted(CSRC.glob("kernels/sm*/*.c")),
    CSRC / "plan/choose.c",
    CSRC / "plan/reject.c",
    CSRC / "common/error.c",
)
# Reads "M N K L shared", shared: 0, or 1 or 2 where A or B serves all batches; properties of an H200.
PLANNER = r"""
#include <stdio.h>
#include "plan/choose.h"

extern const gemm_backend sm80_backend, sm90_backend;
const gemm_backend *const gemm_backends[GEMM_BACKENDS] = {
    [NVFP4_BACKEND_SM80] = &sm80_backend, [NVFP4_BACKEND_SM90] = &sm90_backend};

static int64_t scale_bytes(int64_t rows, int64_t k) {
    return (rows + 127) / 128 * (k / 64) * 512;
}

int main(void) {
    long long m, n, k, l;
    int shared;
    while (scanf("%lld %lld %lld %lld %d", &m, &n, &k, &l, &shared) == 5) {
        const gemm_problem p = {.m = m, .n = n, .k = k, .l = l, .a_pitch = k / 2, .b_pitch = k / 2,
                                .a_batch = shared == 1 ? 0 : m * k / 2, .b_batch = shared == 2 ? 0 : n * k / 2,
                                .scale_a_pitch = k / 64 * 512, .scale_b_pitch = k / 64 * 512,
                                .scale_a_batch = shared == 1 ? 0 : scale_bytes(m, k),
                                .scale_b_batch = shared == 2 ? 0 : scale_bytes(n, k),
                                .out_type = NVFP4_FP16, .out_pitch = n * 2, .out_batch = m * n * 2, .aligned16 = 1};
        plan_query query;
        memset(&query, 0, sizeof query);
        query.traits = traits_of(&p);
        query.props = (device_props){.compute_capability = 90, .sm_count = 132, .shared_per_block = 232448,
                                     .shared_per_sm = 233472, .l2_bytes = 50 << 20};
        query.backends = 1u << NVFP4_BACKEND_SM80 | 1u << NVFP4_BACKEND_SM90;
        const plan_answer *answer = plan_choose(&query);
        const gemm_candidate *c = &answer->taken;
        if (answer->candidates == 0) return 1;
        printf("%s %d %d %lld %d\n", c->name, c->swap_ab, c->split_k, (long long)c->workspace, answer->candidates);
    }
}
"""


def test_plan_does_not_depend_on_what_was_planned_before(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    (tmp_path / "planner.c").write_text(PLANNER)
    binary = tmp_path / "planner"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    subprocess.run(["gcc", *flags, tmp_path / "planner.c", *SOURCES, "-lm", "-o", binary], check=True)

    def plans(questions: list[str]) -> list[str]:
        result = subprocess.run([binary], input="\n".join(questions), capture_output=True, text=True, check=True)
        return result.stdout.splitlines()

    def shape() -> str:
        m, n = int(2 ** draw.uniform(0, 12)), int(2 ** draw.uniform(5, 12))
        return f"{m} {n} {64 * draw.randint(1, 100)} {draw.choice((2, 4, 8))}"

    shapes = [shape() for _ in range(100)]
    variants = [f"{shape} {shared}" for shape in shapes for shared in range(3)]
    forwards, backwards = plans(variants), plans(variants[::-1])[::-1]
    assert len(forwards) == len(backwards) == len(variants)
    different = [v for v, x, y in zip(variants, forwards, backwards) if x != y]
    assert not different, f"seed {seed}: {different[:5]}"
    assert any(len(set(forwards[i : i + 3])) > 1 for i in range(0, len(variants), 3))
