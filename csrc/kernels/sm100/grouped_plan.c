/* Candidates of sm100/grouped.cu, by the model of grouped_model.h, and launches. Ends are on the device, so a plan
 * depends on T, E, N, K alone. */
#include "kernels/sm100/grouped_plan.h"
#include "common/group_blocks.h"
#include "kernels/sm100/grouped_model.h"

typedef struct grouped_config {
    const char *name;
    int32_t kernel, matrices, mma_tile_n, stages, accumulators, shared_bytes;
} grouped_config;

static const grouped_config configs[] = {
#define X(id, matrices, mma_tile_n, stages, accumulators)                                                              \
    {"nvfp4_" #id,                                                                                                     \
     KERNEL_##id,                                                                                                      \
     matrices,                                                                                                         \
     mma_tile_n,                                                                                                       \
     stages,                                                                                                           \
     accumulators,                                                                                                     \
     SM100_GROUPED_SHARED_BYTES(matrices, mma_tile_n, stages, accumulators)},
    SM100_GROUPED_CONFIGS(X)
#undef X
};
enum { CONFIGS = sizeof configs / sizeof *configs, BOX_BYTES = SM100_STAGE_K / 2 };

#define FEW  "tcgen05, few rows a group: reading the weights takes longest"
#define MANY "tcgen05, many rows a group, which share the weights of a tile"

typedef struct IS_TILING grouped_tiling {
    int32_t tiles_n;   /* of a part */
    int32_t read_once; /* 1: most matrices are read for one tile of rows */
    int32_t quantizes; /* 1: the results are NVFP4 */
} grouped_tiling;

int sm100_grouped_reaches(const gemm_traits *t) {
    return t->scale_layout == NVFP4_128X4 && t->tma_values && t->k % SM100_MMA_K == 0;
}

static sm100_grouped_input model_input(const gemm_traits *t, const grouped_config *c) {
    return (sm100_grouped_input){
        .columns = t->n,
        .rows = t->m,
        .k = max_int(t->k, 1), /* without products there still are tiles to write */
        .groups = t->groups,
        .parts = (int32_t)(t->l / t->groups),
        .matrices = c->matrices,
        .mma_tile_n = c->mma_tile_n,
        .accumulators = c->accumulators,
        .output_bytes = t->output_bytes,
    };
}

/* One instantiation: 1, or 0 where it cannot be. */
static int32_t list_one(const sm100_model *model, const device_props *props, const gemm_traits *t,
                        const grouped_config *c, gemm_candidate *out) {
    const int64_t tiles_n = ceil_div(t->n, SM100_CTA_ROWS), across = tiles_n * (t->l / t->groups / c->matrices);
    const int64_t along = max_group_tiles(t->m, t->groups, c->mma_tile_n);
    const sm100_grouped_input in = model_input(t, c);
    if (!sm100_grouped_reaches(t) || c->shared_bytes > props->shared_per_block) return 0;
    if (along > (INT32_MAX - props->sm_count) / across) return 0; /* a CTA's next tile must not overflow */
    const double modelled_us = sm100_grouped_time_us(model, props, &in);
    *out = (gemm_candidate){
        .modelled_us = modelled_us,
        .single_us = modelled_us + SINGLE_CALL_US,
        .name = c->name,
        .reason = c->mma_tile_n == 64 ? FEW : MANY,
        .grid = min_int(along * across, props->sm_count),
        .backend = NVFP4_BACKEND_SM100,
        .kernel = c->kernel,
        .swap_ab = 1,
        .split_k = 1,
        .tile_m = c->mma_tile_n,
        .tile_n = SM100_CTA_ROWS,
        .tile_k = SM100_STAGE_K,
        .stages = c->stages,
        .ctas_per_sm = 1,
    };
    *TILING(grouped_tiling, out) =
        (grouped_tiling){.tiles_n = (int32_t)tiles_n, .read_once = t->m <= (int64_t)t->groups * c->mma_tile_n / 2};
    return 1;
}

int32_t sm100_grouped_candidates(const sm100_model *model, const device_props *props, const gemm_traits *t,
                                 gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++)
        if (configs[i].matrices == 1) count += list_one(model, props, t, &configs[i], out + count);
    return count;
}

int32_t sm100_grouped_with_activation(const sm100_model *model, const device_props *props, const grouped_problem *p,
                                      const gemm_candidate *of, gemm_candidate *out) {
    gemm_traits t = traits_of(&p->g);
    t.groups = p->groups;
    /* One part needs the product's own kernel, two the gated one with as wide a tile. */
    const grouped_config *c = configs, *end = configs + CONFIGS;
    while (c < end &&
           (p->parts == 1 ? c->kernel != of->kernel : c->matrices != p->parts || c->mma_tile_n != of->tile_m))
        c++;
    gemm_candidate fused;
    if (c == end || !list_one(model, props, &t, c, &fused)) return 0;
    const sm100_grouped_input in = model_input(&t, c);
    if (fused.modelled_us > of->modelled_us + sm100_gated_us(model, props, &in)) return 0;
    fused.reason =
        fused.tile_m == 64 ? FEW "; and the activation: one launch" : MANY "; and the activation: one launch";
    fused.batch_invariant = of->batch_invariant;
    *out = fused;
    return 1;
}

int32_t sm100_grouped_with_quantized_activation(const sm100_model *model, const device_props *props,
                                                const gated_grouped_quantize_problem *p, const gemm_candidate *of,
                                                gemm_candidate *out) {
    gemm_candidate fused;
    if (!sm100_grouped_with_activation(model, props, &p->p, of, &fused)) return 0;
    fused.reason = fused.tile_m == 64 ? FEW "; the activation and its quantizer: one launch"
                                      : MANY "; the activation and its quantizer: one launch";
    TILING(grouped_tiling, &fused)->quantizes = 1;
    *out = fused;
    return 1;
}

static sm100_quantized quantized_of(const grouped_quantize_problem *p) {
    return (sm100_quantized){.data = p->q.data,
                             .scale = p->q.scale,
                             .scale_rows = p->scale_rows,
                             .global_scale = p->q.global_scale,
                             .data_pitch = p->q.data_pitch,
                             .scale_pitch = p->q.scale_pitch,
                             .global_value = p->q.global_value,
                             .global_by = p->q.global_by};
}

static const grouped_config *config_of(const gemm_candidate *candidate) {
    const grouped_config *c = configs;
    while (c->kernel != candidate->kernel) c++;
    return c;
}

void sm100_grouped_build(const product_problem *problem, const gemm_candidate *candidate, launch_plan *out) {
    const grouped_tiling *tiling = TILING(const grouped_tiling, candidate);
    const grouped_problem *p = &problem->grouped;
    const gemm_problem *g = &p->g;
    launch_step *step = add_step(out, candidate->kernel, candidate->grid, config_of(candidate)->shared_bytes);
    *(grouped_problem *)add_param(out, step, sizeof *p) = *p;
    sm100_grouped_schedule *s = (sm100_grouped_schedule *)add_param(out, step, sizeof *s);
    memset(s, 0, sizeof *s);
    s->tiles_n = tiling->tiles_n;
    s->column_pairs = sm100_column_pairs(g, 1);
    s->numbers = gating_of(p->limit, p->activation_alpha, p->parts == 2);
    if (tiling->quantizes) s->quantized = quantized_of(&problem->gated_grouped_quantize.q);
    fill_operand(g, 1, tiling->read_once ? L2_EVICT_FIRST : L2_EVICT_NORMAL, &s->mma_a);
    fill_operand(g, 0, L2_EVICT_NORMAL, &s->mma_b);
    if (g->k == 0) return;
    const tensor_layout a = values_layout(g, 1, g->l, BOX_BYTES, SM100_CTA_ROWS, 128);
    const tensor_layout b = values_layout(g, 0, 1, BOX_BYTES, SM100_GROUPED_BOX_ROWS, 128);
    add_tensor_map(out, &a, &s->mma_a.values);
    add_tensor_map(out, &b, &s->mma_b.values);
}
