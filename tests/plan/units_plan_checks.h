/* The rules that the kernels of kernels/units rely on in their parameters and launches (units/config.h), for the tests of
 * the backends that have them. */
#ifndef NVFP4_TESTS_UNITS_PLAN_CHECKS_H
#define NVFP4_TESTS_UNITS_PLAN_CHECKS_H

#include "kernels/units/plan.h"
#include "plan_checks.h"

static inline int needs_tma(const gemm_problem *p) {
    return p->aligned16 && !is_far(p);
}

static inline void check_units(const gpu *g, const gemm_problem *p, const units_kernel *of, const gemm_candidate *c,
                               const launch_plan *plan, const launch_step *gemm) {
    const units_schedule *s = param_of(plan, gemm, 1);
    const int a_units = of->a_units, a = of->a;
    const int64_t full = p->n / 128 * 16, tail = p->n % 128, most = s->cta_units + (s->larger_ctas > 0);
    const int64_t units = full + (tail == 0 ? 0 : tail >= 32 ? 16 : 2 * ceil_div(tail, 4));
    const int32_t type = a == 0 ? VALUES_E2M1 : a == 1 ? NVFP4_FP16 : NVFP4_BF16;
    expect(p->a_type == type && p->scale_layout == NVFP4_128X4 && needs_tma(p) && p->k > 0, "operands that TMA loads");
    expect(c->swap_ab && p->m <= 8 * a_units && c->tile_m == 8 * a_units && c->tile_n == 16, "it holds all of A");
    expect(s->full_units == full && s->cta_units >= 1 && s->larger_ctas >= 0 && s->larger_ctas < s->ctas &&
               (int64_t)s->ctas * s->cta_units + s->larger_ctas == units,
           "each unit has one CTA, and each CTA a unit");
    expect(c->grid == s->ctas * p->l && gemm->cluster == 0 && gemm->grid_y == 1, "its grid");
    expect(s->ctas == units || s->ctas == max_int(1, g->props.sm_count / p->l), "a CTA an SM");
    expect(s->steps == ceil_div(p->k, UNITS_STEP_K), "steps cover K");
    expect(s->pass_pairs >= 1 && s->pass_pairs <= UNITS_PASS_PAIRS && s->pass_pairs <= ceil_div(most, 2),
           "pairs of a pass");
    const int32_t stages = UNITS_STAGES_BYTES(a_units, a, of->stages, of->a_stages);
    expect(gemm->shared_bytes == stages + s->pass_pairs * UNITS_SUMS_BYTES(a_units) &&
               gemm->shared_bytes <= g->props.shared_per_block,
           "shared memory fits a CTA");
    expect(s->b_cache_policy == (p->l > 1 && p->b_batch == 0 ? s->b_cache_policy : 0x12F0000000000000),
           "B leaves L2 first if it is read once");
    expect(s->early_b == p->constant_b, "a constant B is loaded early");
    expect(c->workspace == 0 && plan->steps == 1, "no workspace");
    expect(plan->tensor_maps == 2 * (full > 0) + (tail > 0) + 2, "a tensor map for each kind of load");
    for (int32_t j = 0; j < plan->tensor_maps; j++) {
        const tensor_layout *t = &plan->tensor_map[j].layout;
        const unsigned char *place = plan->params + plan->tensor_map[j].offset;
        if (place == (const unsigned char *)&s->b_pairs || place == (const unsigned char *)&s->b_units) {
            expect(t->data == p->b && t->rank == 4 && t->swizzle == 128 && (int64_t)t->dims[0] == p->k / 2 &&
                       t->dims[1] == 32 && (int64_t)t->dims[2] * 32 == p->n / 128 * 128 &&
                       (int64_t)t->dims[3] == p->l && (int64_t)t->strides[0] == p->b_pitch &&
                       (int64_t)t->strides[1] == 32 * p->b_pitch,
                   "whole blocks of B, by quarters");
            expect(t->box[0] == UNITS_STEP_K / 2 && t->box[2] == 4 &&
                       t->box[1] == (place == (const unsigned char *)&s->b_pairs ? 4 : 2),
                   "a pair of units, or one");
        } else if (place == (const unsigned char *)&s->b_tail) {
            expect(t->data == p->b && t->rank == 3 && t->swizzle == 128 && (int64_t)t->dims[1] == p->n &&
                       t->box[0] == UNITS_STEP_K / 2 && t->box[1] == 4,
                   "rows of the last block");
        } else if (place == (const unsigned char *)&s->b_scales) {
            expect(t->data == p->scale_b && t->rank == 4 && t->swizzle == 0 && t->dims[0] == 512 &&
                       (int64_t)t->dims[1] == ceil_div(p->k, 64) && (int64_t)t->dims[2] == ceil_div(p->n, 128) &&
                       t->box[0] == 64 && t->box[1] == UNITS_STEP_K / 64,
                   "the scales of a pair");
        } else {
            expect(place == (const unsigned char *)&s->a && t->data == p->a && t->swizzle == 128 &&
                       t->element_bytes == (a ? 2 : 1) && (int64_t)t->dims[0] == (a ? p->k : p->k / 2) &&
                       (int64_t)t->dims[1] == p->m && t->box[0] == (a ? 64 : UNITS_STEP_K / 2) &&
                       t->box[1] == (uint32_t)p->m,
                   "all rows of A");
        }
    }
}

/* Few rows a group take one launch, teams that share K, tiles of pairs of units. */
static inline void check_grouped_units(const gpu *g, const grouped_problem *all, const grouped_units_kernel *of,
                                       const gemm_candidate *c, const launch_plan *plan, const launch_step *step) {
    const gemm_problem *p = &all->g;
    const grouped_units_schedule *s = param_of(plan, step, 1);
    const int64_t blocks = p->n / 128, tail = p->n % 128, pairs = blocks * 8 + ceil_div(min_int(tail, 32), 4);
    expect(plan->steps == 1 && c->workspace == 0, "one launch");
    expect(p->k > 0 && s->steps == ceil_div(p->k, 256) && 1 << s->team_log2 <= s->steps && s->team_log2 <= 3,
           "each warp of a team has a step");
    expect(s->pairs == pairs && s->full_pairs == blocks * 8, "pairs cover N");
    expect(s->tile_pairs >= 1 && s->tile_pairs * (c->tile_m / 8) <= of->pairs, "sums have room");
    expect((s->tiles_n - 1) * (int64_t)s->tile_pairs < pairs && s->tiles_n * (int64_t)s->tile_pairs >= pairs,
           "tiles cover the pairs");
    expect(c->tile_n == 16 * s->tile_pairs && c->tile_k == 256 << s->team_log2, "as info shows it");
    check_tiles_of_groups(g, all, c, step, s->tiles_n, 8 >> s->team_log2);
    int32_t maps = 0;
    if (blocks) {
        const tensor_layout *b = &plan->tensor_map[maps++].layout;
        expect(b->data == p->b && b->rank == 4 && (int64_t)b->dims[2] == blocks * 4 && (int64_t)b->dims[3] == p->l,
               "a tensor map of whole blocks of B");
        expect(b->box[0] == 128 && b->box[1] == 4 && b->box[2] == 4, "by pairs");
    }
    if (tail) {
        const tensor_layout *b = &plan->tensor_map[maps++].layout;
        expect(b->data == p->b && (int64_t)b->dims[1] == p->n && b->box[1] == 4, "one of the rest");
    }
    const tensor_layout *scales = &plan->tensor_map[maps++].layout;
    expect(scales->data == p->scale_b && (int64_t)scales->dims[3] == p->l && scales->box[0] == 64, "one of the scales");
    expect(plan->tensor_maps == maps, "and no other");
}

#endif
