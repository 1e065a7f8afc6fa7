/* The rule of the contest's file (csrc/contest/settings.h) beside kernels/sm100/plan.h: what each chooses, what the
 * model says of either, and whether the schedules agree. Built as a library by tests/plan/test_submission_rule.py. */
#include <string.h>

#include "contest/settings.h"
#include "kernels.h"
#include "sm100_plan.h"

typedef struct verdict {
    int32_t config, swap_ab, split_k, grid; /* the rule's; config counts through SM100_GEMM_CONFIGS */
    int32_t legal;                          /* sm100_plan has it among its candidates */
    int32_t same;                           /* and takes it itself */
    int32_t same_schedule; /* and the schedule, its tensor maps, the grid and the shared memory are alike */
    int32_t padding_;
    double us, best_us; /* modelled, of the rule's choice and of sm100_plan's */
} verdict;

static uint8_t memory[5][16] __attribute__((aligned(16))); /* whose addresses stand for operands; nothing is read */

static gemm_problem problem_of(int64_t m, int64_t n, int64_t k, int64_t l, int64_t rows_b) {
    const int64_t pitch = k / 64 * 512;
    return (gemm_problem){.m = m,
                          .n = n,
                          .k = k,
                          .l = l,
                          .a = memory[0],
                          .b = memory[1],
                          .a_pitch = k / 2,
                          .b_pitch = k / 2,
                          .a_batch = m * k / 2,
                          .b_batch = rows_b * k / 2,
                          .sfa = memory[2],
                          .sfb = memory[3],
                          .sfa_pitch = pitch,
                          .sfb_pitch = pitch,
                          .sfa_batch = (m + 127) / 128 * pitch,
                          .sfb_batch = (n + 127) / 128 * pitch,
                          .out = memory[4],
                          .out_pitch = n * 2,
                          .out_batch = m * n * 2,
                          .alpha_value = 1,
                          .scale_layout = SCALES_128X4,
                          .out_type = OUT_FP16,
                          .aligned16 = 1};
}

static const kernel_id ids[] = {
#define X(id, ...) KERNEL_##id,
    SM100_GEMM_CONFIGS(X)
#undef X
};

static int same_map(const contest_map *own, const plan_tensor *planned, const sm100_schedule *own_schedule,
                    const sm100_schedule *planned_schedule) {
    const tensor_layout *t = &planned->layout;
    const int values = own->rank == 3;
    if ((int32_t)own->rank != t->rank || t->element_bytes != (values ? 1 : 2) || t->swizzle != (values ? 128 : 0))
        return 0;
    for (uint32_t i = 0; i < own->rank; i++)
        if (own->dims[i] != t->dims[i] || own->box[i] != t->box[i] ||
            (i > 0 && own->distances[i - 1] != t->strides[i - 1]))
            return 0;
    return own->data == t->data &&
           (char *)own->map - (char *)own_schedule == (char *)planned->map - (char *)planned_schedule;
}

static int same_maps(const gemm_problem *p, const contest_config *config, sm100_schedule *own, const nvfp4_plan *plan,
                     sm100_schedule *planned) {
    contest_map maps[4];
    plan_tensor tensors[PLAN_MOST_TENSORS];
    const int count = contest_maps(p, config, own, maps);
    if (count != sm100_tensors(p, plan, planned, tensors)) return 0;
    for (int i = 0; i < count; i++)
        if (!same_map(&maps[i], &tensors[i], own, planned)) return 0;
    return 1;
}

/* Returns 0 if sm100_plan fails. */
int32_t judge(int32_t sm_count, int64_t l2_bytes, int64_t m, int64_t n, int64_t k, int64_t l, int64_t rows_b,
              verdict *v) {
    const device_facts facts = {100, 0, 1, sm_count, CONTEST_SHARED_PER_CTA, CONTEST_SHARED_PER_SM, l2_bytes};
    const gemm_problem p = problem_of(m, n, k, l, rows_b);
    const contest_choice choice = contest_choose(&p, sm_count);
    const contest_config *config = &contest_configs[choice.config];
    sm100_schedule own;
    memset(&own, 0, sizeof own);
    memset(v, 0, sizeof *v);
    v->config = choice.config, v->swap_ab = choice.swap_ab, v->split_k = choice.split_k;
    v->grid = contest_schedule(&p, choice, sm_count, l2_bytes, &own);
    int32_t count = 1;
    for (int32_t i = 0; i < count; i++) {
        const plan_wish wish = {.candidate = i};
        nvfp4_plan plan;
        sm100_schedule planned;
        if (sm100_plan(&facts, &p, &wish, &plan, &planned)) return 0;
        count = plan.candidates;
        if (i == 0) v->best_us = plan.modelled_us;
        if ((kernel_id)plan.kernel != ids[choice.config] || plan.swap_ab != choice.swap_ab ||
            plan.split_k != choice.split_k || plan.prefetch_stages)
            continue;
        const int32_t bytes = kernels[plan.kernel].shared_bytes + sm100_parts_bytes(&plan, &planned);
        const int32_t own_bytes = contest_shared_bytes(config) +
                                  (own.partials_in_stages ? 0 : SM100_PARTIALS_BYTES(config->mma_tile_n, own.split_k));
        v->legal = 1;
        v->same = i == 0;
        v->us = plan.modelled_us;
        memset(&planned.mma_a.values, 0, sizeof planned.mma_a.values);
        memset(&planned.mma_a.scales, 0, sizeof planned.mma_a.scales);
        memset(&planned.mma_b.values, 0, sizeof planned.mma_b.values);
        memset(&planned.mma_b.scales, 0, sizeof planned.mma_b.scales);
        v->same_schedule = memcmp(&own, &planned, sizeof own) == 0 && plan.grid == v->grid && bytes == own_bytes &&
                           kernels[plan.kernel].threads == SM100_THREADS(config->cp_async) &&
                           same_maps(&p, config, &own, &plan, &planned);
    }
    return 1;
}
