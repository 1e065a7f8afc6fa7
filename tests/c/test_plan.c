/* plan.c and the sm80 rules over many shapes on the facts of real GPUs: every plan is one that can be launched.
 * Prints "N passed, N failed". */
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "kernels.h"
#include "sm80_plan.h"

/* Compute capability, has_sm90, has_sm100, SMs, shared memory a CTA and an SM, L2 (CUDA programming guide, technical
 * specifications). */
static const struct {
    const char *name;
    device_facts facts;
} gpus[] = {
    {"A100", {80, 0, 0, 108, 166912, 167936, 40 << 20}},     {"RTX 3090", {86, 0, 0, 82, 101376, 102400, 6 << 20}},
    {"RTX 4090", {89, 0, 0, 128, 101376, 102400, 72 << 20}}, {"H200", {90, 1, 0, 132, 232448, 233472, 50 << 20}},
    {"B200", {100, 0, 1, 148, 232448, 233472, 126 << 20}},   {"RTX 5090", {120, 0, 0, 170, 101376, 102400, 96 << 20}},
};
static const int64_t sizes[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 127, 128, 129, 300, 2304, 7168, 100000};
static const int64_t depths[] = {0, 16, 48, 464, 2048, 7168, 16384, 1 << 20};
static const int64_t batches[] = {1, 3, 1000};

static int passed, failed;

static void expect(int holds, const char *rule, const char *gpu, const gemm_problem *p, const nvfp4_plan *plan) {
    passed += holds != 0;
    failed += holds == 0;
    if (!holds)
        printf("FAILED on %s, %lld x %lld x %lld x %lld, %s: %s\n", gpu, (long long)p->m, (long long)p->n,
               (long long)p->k, (long long)p->l, plan->name ? plan->name : "no kernel", rule);
}

static void one(const char *gpu, const device_facts *facts, const gemm_problem *p) {
    nvfp4_plan plan = {0}, again = {0};
    sm80_schedule schedule;
    nvfp4_status status = sm80_plan(facts, p, &plan, &schedule);
    expect(status == NVFP4_OK, nvfp4_last_error(), gpu, p, &plan);
    if (status) return;
    const kernel_entry *kernel = &kernels[plan.kernel];
    expect(!strcmp(kernel->source, "sm80_gemm"), "kernel is a GEMM", gpu, p, &plan);
    expect(kernel->shared_bytes <= facts->shared_per_block, "shared memory fits a CTA", gpu, p, &plan);
    expect(schedule.tiles_m * plan.tile_m >= p->m && (schedule.tiles_m - 1) * plan.tile_m < p->m, "tiles cover M", gpu,
           p, &plan);
    expect(schedule.tiles_n * plan.tile_n >= p->n && (schedule.tiles_n - 1) * plan.tile_n < p->n, "tiles cover N", gpu,
           p, &plan);
    expect(plan.grid == schedule.tiles_m * schedule.tiles_n * p->l * plan.split_k, "grid is tiles x L x split", gpu, p,
           &plan);
    expect(schedule.split_k == plan.split_k && plan.split_k >= 1, "one split in both", gpu, p, &plan);
    expect(plan.split_k * schedule.k_tiles_per_split * plan.tile_k >= p->k, "splits cover K", gpu, p, &plan);
    expect(plan.split_k == 1 || (plan.split_k - 1) * schedule.k_tiles_per_split * plan.tile_k < p->k,
           "no split is empty", gpu, p, &plan);
    expect(plan.workspace == (plan.split_k > 1 ? (size_t)(plan.split_k * p->l * p->m * p->n) * 4 : 0),
           "workspace holds the partial sums", gpu, p, &plan);
    expect((schedule.reduce_grid > 0) == (plan.split_k > 1), "a split is reduced", gpu, p, &plan);
    expect(plan.reason && *plan.reason && plan.name && *plan.name, "it says why", gpu, p, &plan);
    sm80_plan(facts, p, &again, &schedule);
    expect(again.kernel == plan.kernel && again.split_k == plan.split_k, "the same twice", gpu, p, &plan);
}

int main(void) {
    for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++)
        for (size_t m = 0; m < sizeof sizes / sizeof *sizes; m++)
            for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
                for (size_t k = 0; k < sizeof depths / sizeof *depths; k++)
                    for (size_t l = 0; l < sizeof batches / sizeof *batches; l++) {
                        gemm_problem p = {
                            .m = sizes[m], .n = sizes[n], .k = depths[k], .l = batches[l], .aligned16 = 1};
                        if (p.m * p.n * p.l > (int64_t)1 << 34) continue; /* results that no GPU holds */
                        one(gpus[g].name, &gpus[g].facts, &p);
                    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
