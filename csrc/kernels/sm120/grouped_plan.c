/* Candidates of sm120/grouped.cu, by the model of model.h under an even routing, and launches. Ends are on the device,
 * so a plan depends on T, E, N, K alone.
 *
 * Rows that lie anywhere (`rows`) have linear scales, which threads load, as they do values that no tensor map
 * describes. The plan knows the layout and not whether rows are gathered. */
#include "common/group_blocks.h"
#include "common/grouped_problem.h"
#include "kernels/sm120/plan.h"

typedef struct grouped_config {
    const char *name;
    int32_t kernel, mma_tile_m, mma_tile_n, stage_k, stages, shared_bytes;
} grouped_config;

static const grouped_config configs[] = {
#define X(id, mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n)                                               \
    {"nvfp4_" #id,                                                                                                     \
     KERNEL_##id,                                                                                                      \
     mma_tile_m,                                                                                                       \
     mma_tile_n,                                                                                                       \
     stage_k,                                                                                                          \
     stages,                                                                                                           \
     SM120_GROUPED_SHARED_BYTES(mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n)},
    SM120_GROUPED_CONFIGS(X)
#undef X
};
enum { CONFIGS = sizeof configs / sizeof *configs };

typedef struct IS_TILING grouped_tiling {
    int32_t tiles_n;   /* of a part */
    int32_t read_once; /* 1: most matrices are read for one tile of rows */
    int32_t scales_by_tma, values_by_tma;
    int32_t pairs; /* 1: of part 0 and of part 1 (sm120_grouped_schedule) */
} grouped_tiling;

/* Whether bulk copies take the scales: the kernels mask those behind the end of K. */
static int scales_by_tma(const gemm_traits *t) {
    return t->scale_layout == NVFP4_128X4 && t->tma_values;
}

static sm120_model_input model_input(const gemm_traits *t, const grouped_config *c, int32_t pairs) {
    return (sm120_model_input){
        .mma_m = t->n,
        .mma_n = t->m,
        .k = max_int(t->k, 1), /* without products there still are tiles to write */
        .l = t->l / t->groups,
        .mma_tile_m = c->mma_tile_m,
        .mma_tile_n = c->mma_tile_n,
        .stage_k = c->stage_k,
        .split_k = 1,
        .scales_by_tma = scales_by_tma(t),
        .values_by_tma = t->tma_values,
        .output_bytes = t->output_bytes,
        .group_m = 1,
        .pairs = pairs,
    };
}

/* One instantiation: 1, or 0 where it cannot be. */
static int32_t list_one(const device_props *props, const gemm_traits *t, const grouped_config *c, int32_t pairs,
                        gemm_candidate *out) {
    const int64_t tiles_n = ceil_div(t->n, c->mma_tile_m), across = tiles_n * (t->l / t->groups);
    const int64_t along = max_group_tiles(t->m, t->groups, c->mma_tile_n);
    const sm120_model_input in = model_input(t, c, pairs);
    if (c->shared_bytes > props->shared_per_block) return 0;
    if (along > (INT32_MAX - props->sm_count) / across) return 0; /* a CTA's next tile must not overflow */
    *out = (gemm_candidate){
        .single_us = sm120_grouped_single_us(&sm120_published, props, t->groups, &in),
        .name = c->name,
        .reason = c->mma_tile_n <= 16 ? "block-scaled mma, few rows a group: reading the weights takes longest"
                                      : "block-scaled mma, many rows a group, which share the weights of a tile",
        .grid = min_int(along * across >> pairs, props->sm_count),
        .backend = NVFP4_BACKEND_SM120,
        .kernel = c->kernel,
        .swap_ab = 1,
        .split_k = 1,
        .tile_m = c->mma_tile_n,
        .tile_n = c->mma_tile_m,
        .tile_k = c->stage_k,
        .stages = c->stages,
    };
    *TILING(grouped_tiling, out) = (grouped_tiling){.tiles_n = (int32_t)tiles_n,
                                                    .read_once = t->m <= (int64_t)t->groups * c->mma_tile_n / 2,
                                                    .scales_by_tma = scales_by_tma(t),
                                                    .values_by_tma = t->tma_values,
                                                    .pairs = pairs};
    return set_modelled_us(out, 1);
}

int32_t sm120_grouped_candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++) count += list_one(props, t, &configs[i], 0, out + count);
    return count;
}

/* The instantiation of the product. A CTA has both tiles of a pair, so fewer SMs have work where there are few tiles:
 * then `gated` may as well be a launch of its own. */
int32_t sm120_grouped_with_activation(const device_props *props, const grouped_problem *p, const gemm_candidate *of,
                                      gemm_candidate *out) {
    const grouped_config *c = &configs[of->kernel - configs->kernel];
    gemm_traits t = traits_of(&p->g);
    t.groups = p->groups;
    const sm120_model_input in = model_input(&t, c, 0);
    gemm_candidate both;
    if (!list_one(props, &t, c, p->parts == 2, &both)) return 0;
    if (both.modelled_us > of->modelled_us + sm120_gated_us(&sm120_published, props, &in)) return 0;
    both.reason = "block-scaled mma, and the activation where results are stored: one launch";
    both.batch_invariant = of->batch_invariant;
    *out = both;
    return 1;
}

void sm120_grouped_build(const device_props *props, const product_problem *problem, const gemm_candidate *candidate,
                         void *workspace, launch_plan *out) {
    (void)props, (void)workspace;
    const grouped_config *c = &configs[candidate->kernel - configs->kernel];
    const grouped_tiling *tiling = TILING(const grouped_tiling, candidate);
    const grouped_problem *p = &problem->grouped;
    const gemm_problem *g = &p->g;
    launch_step *step = add_step(out, c->kernel, candidate->grid, c->shared_bytes);
    *(grouped_problem *)add_param(out, step, sizeof *p) = *p;
    sm120_grouped_schedule *s = add_param(out, step, sizeof *s);
    memset(s, 0, sizeof *s);
    s->tiles_n = tiling->tiles_n;
    s->scales_by_tma = tiling->scales_by_tma;
    s->values_by_tma = tiling->values_by_tma;
    s->pairs = tiling->pairs;
    s->numbers = gating_of(p->limit, p->activation_alpha, p->parts == 2);
    fill_operand(g, 1, tiling->read_once ? L2_EVICT_FIRST : L2_EVICT_NORMAL, &s->mma_a);
    fill_operand(g, 0, L2_EVICT_NORMAL, &s->mma_b);
    if (g->k == 0 || !s->values_by_tma) return;
    sm120_add_values_map(g, 1, g->l, c->stage_k, c->mma_tile_m, &s->mma_a, out);
    sm120_add_values_map(g, 0, 1, c->stage_k, c->mma_tile_n, &s->mma_b, out);
}
