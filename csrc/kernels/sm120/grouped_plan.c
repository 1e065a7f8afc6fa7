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
} grouped_tiling;

/* Whether bulk copies take the scales: the kernels mask those behind the end of K. */
static int scales_by_tma(const gemm_traits *t) {
    return t->scale_layout == NVFP4_128X4 && t->tma_values;
}

static double single_us(const device_props *props, const gemm_traits *t, const grouped_config *c) {
    const sm120_model_input in = {
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
    };
    return sm120_grouped_single_us(&sm120_published, props, t->groups, &in);
}

int32_t sm120_grouped_candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++) {
        const grouped_config *c = &configs[i];
        const int64_t tiles_n = ceil_div(t->n, c->mma_tile_m), across = tiles_n * (t->l / t->groups);
        const int64_t along = most_group_tiles(t->m, t->groups, c->mma_tile_n);
        if (c->shared_bytes > props->shared_per_block) continue;
        if (along > (INT32_MAX - props->sm_count) / across) continue; /* a CTA's next tile must not overflow */
        gemm_candidate *x = &out[count++];
        *x = (gemm_candidate){
            .single_us = single_us(props, t, c),
            .name = c->name,
            .reason = c->mma_tile_n <= 16 ? "block-scaled mma, few rows a group: reading the weights takes longest"
                                          : "block-scaled mma, many rows a group, which share the weights of a tile",
            .grid = min_int(along * across, props->sm_count),
            .family = NVFP4_BACKEND_SM120,
            .kernel = c->kernel,
            .swap_ab = 1,
            .split_k = 1,
            .tile_m = c->mma_tile_n,
            .tile_n = c->mma_tile_m,
            .tile_k = c->stage_k,
            .stages = c->stages,
        };
        *TILING(grouped_tiling, x) = (grouped_tiling){.tiles_n = (int32_t)tiles_n,
                                                      .read_once = t->m <= (int64_t)t->groups * c->mma_tile_n / 2,
                                                      .scales_by_tma = scales_by_tma(t),
                                                      .values_by_tma = t->tma_values};
    }
    return set_modelled_us(out, count);
}

void sm120_grouped_build(const device_props *props, const gemm_problem *g, const gemm_candidate *candidate,
                         void *workspace, launch_plan *out) {
    (void)props, (void)workspace;
    const grouped_config *c = &configs[candidate->kernel - configs->kernel];
    const grouped_tiling *tiling = TILING(const grouped_tiling, candidate);
    launch_step *step = add_step(out, c->kernel, candidate->grid, c->shared_bytes);
    *(grouped_problem *)add_param(out, step, sizeof(grouped_problem)) = *(const grouped_problem *)g;
    sm120_grouped_schedule *s = add_param(out, step, sizeof *s);
    memset(s, 0, sizeof *s);
    s->tiles_n = tiling->tiles_n;
    s->scales_by_tma = tiling->scales_by_tma;
    s->values_by_tma = tiling->values_by_tma;
    sm120_fill_operand(g, 1, tiling->read_once ? L2_EVICT_FIRST : L2_EVICT_NORMAL, &s->mma_a);
    sm120_fill_operand(g, 0, L2_EVICT_NORMAL, &s->mma_b);
    if (g->k == 0 || !s->values_by_tma) return;
    sm120_add_values_map(g, 1, g->l, c->stage_k, c->mma_tile_m, &s->mma_a, out);
    sm120_add_values_map(g, 0, 1, c->stage_k, c->mma_tile_n, &s->mma_b, out);
}
