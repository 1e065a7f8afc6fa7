/* The plans of products on an H200. Reads lines of M N K L SHARED, where SHARED is 1 or 2 if A or B serves all batches
 * and else 0; prints each plan. tests/plan/test_plan_order.py compiles it with the planners. */
#include "plan/choose.h"
#include <stdio.h>

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
        const gemm_problem p = {.m = m,
                                .n = n,
                                .k = k,
                                .l = l,
                                .a_pitch = k / 2,
                                .b_pitch = k / 2,
                                .a_batch = shared == 1 ? 0 : m * k / 2,
                                .b_batch = shared == 2 ? 0 : n * k / 2,
                                .scale_a_pitch = k / 64 * 512,
                                .scale_b_pitch = k / 64 * 512,
                                .scale_a_batch = shared == 1 ? 0 : scale_bytes(m, k),
                                .scale_b_batch = shared == 2 ? 0 : scale_bytes(n, k),
                                .out_type = NVFP4_FP16,
                                .out_pitch = n * 2,
                                .out_batch = m * n * 2,
                                .aligned16 = 1};
        plan_query query;
        memset(&query, 0, sizeof query);
        query.traits = traits_of(&p);
        query.props = (device_props){.compute_capability = 90,
                                     .sm_count = 132,
                                     .shared_per_block = 232448,
                                     .shared_per_sm = 233472,
                                     .l2_bytes = 50 << 20};
        query.backends = 1u << NVFP4_BACKEND_SM80 | 1u << NVFP4_BACKEND_SM90;
        const plan_answer *answer = plan_choose(&query);
        const gemm_candidate *c = &answer->taken;
        if (answer->candidates == 0) return 1;
        printf("%s %d %d %lld %d\n", c->name, c->swap_ab, c->split_k, (long long)c->workspace, answer->candidates);
    }
}
