/* A few rows of A with mma.sync: which instantiations, and how tiles of B are spread over CTAs
 * (sm90/skinny_config.h).
 *
 * The model: B passes at the rate of DRAM while the busiest CTA takes a time in proportion to the units of its steps.
 */
#include "kernels/sm90/plan.h"

typedef struct skinny_config {
    int32_t kernel, a_units, b_units, warps, stages;
} skinny_config;

static const skinny_config configs[] = {
#define X(id, a_units, b_units, warps, stages) {KERNEL_##id, a_units, b_units, warps, stages},
    SM90_SKINNY_CONFIGS(X)
#undef X
};
enum { CONFIGS = sizeof configs / sizeof *configs };

typedef struct IS_TILING skinny_tiling {
    int32_t ctas, tiles, steps, sums_offset; /* as in sm90_skinny_schedule */
    int32_t shared_bytes;
} skinny_tiling;

static skinny_tiling tile(const device_props *props, const gemm_traits *t, const skinny_config *c) {
    const int64_t wanted = props->sm_count > t->l ? props->sm_count / t->l : 1;
    const int32_t stages = SM90_SKINNY_STAGES_BYTES(c->a_units, c->b_units, c->warps, c->stages);
    const int32_t sums = SM90_SKINNY_SUMS_BYTES(c->a_units, c->b_units, c->warps);
    skinny_tiling tiling = {.tiles = (int32_t)ceil_div(t->n, 8 * c->b_units),
                            .steps = (int32_t)ceil_div(t->k, SM90_SKINNY_STEP_K)};
    tiling.ctas = (int32_t)min_int(tiling.tiles, wanted);
    tiling.sums_offset = tiling.tiles > tiling.ctas ? (stages + 15) / 16 * 16 : 0;
    tiling.shared_bytes = SM90_SKINNY_MAX(stages, tiling.sums_offset + sums);
    return tiling;
}

static double time_us(const sm90_model *model, const gemm_traits *t, const skinny_config *c,
                      const skinny_tiling *tiling, int64_t tiles_per_sm) {
    const double bytes = (double)t->l * (double)t->n * (double)t->k * SM90_RAW_BYTES;
    const double steps = (double)(tiles_per_sm * ceil_div(tiling->steps, c->warps) * c->warps);
    const double computing = sm90_clocks_us(model, steps * (c->a_units + c->b_units) * model->skinny_unit_clk) +
                             (double)(tiles_per_sm - 1) * model->skinny_tile_us;
    return model->skinny_fixed_us + overlapped(sm90_memory_us(model, bytes, 0), computing, model->overlap);
}

static int32_t candidates(const sm90_model *model, const device_props *props, const gemm_traits *t,
                          gemm_candidate *out) {
    if (t->a_type != VALUES_E2M1 || t->scale_layout != NVFP4_128X4 || !t->tma_values || t->k == 0) return 0;
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++) {
        const skinny_config *c = &configs[i];
        if (t->m > 8 * c->a_units || t->n > INT32_MAX / 2) continue;
        const skinny_tiling tiling = tile(props, t, c);
        if (tiling.ctas * t->l > INT32_MAX || tiling.shared_bytes > props->shared_per_block) continue;
        const int64_t tiles_per_sm =
            ceil_div(tiling.tiles, tiling.ctas) * ceil_div(tiling.ctas * t->l, props->sm_count);
        out[count] = (gemm_candidate){
            .single_us = time_us(model, t, c, &tiling, tiles_per_sm),
            .reason = "A has a few rows only: each warp reads, dequantizes and multiplies a share of K by itself",
            .grid = tiling.ctas * t->l,
            .kernel = c->kernel,
            .swap_ab = 1,
            .split_k = 1,
            .tile_m = 8 * c->a_units,
            .tile_n = 8 * c->b_units,
            .tile_k = SM90_SKINNY_STEP_K,
            .stages = c->stages,
        };
        *TILING(skinny_tiling, &out[count++]) = tiling;
    }
    return count;
}

static void build(const device_props *props, const gemm_problem *p, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    (void)workspace;
    const skinny_config *config = &configs[c->kernel - configs->kernel];
    const skinny_tiling *tiling = TILING(const skinny_tiling, c);
    const cache_policies policies = choose_cache_policies(props, p, 1, tiling->tiles, 1, 0);
    launch_step *step = add_step(out, c->kernel, c->grid, tiling->shared_bytes);
    *(gemm_problem *)add_param(out, step, sizeof *p) = *p;
    sm90_skinny_schedule *s = add_param(out, step, sizeof *s);
    *s = (sm90_skinny_schedule){.a_cache_policy = policies.mma_b,
                                .b_cache_policy = policies.mma_a,
                                .ctas = tiling->ctas,
                                .tiles = tiling->tiles,
                                .steps = tiling->steps,
                                .sums_offset = tiling->sums_offset};
    const tensor_layout a = values_layout(p, 0, p->l, SM90_SKINNY_STEP_K / 2, (int32_t)p->m, 128);
    const tensor_layout b = values_layout(p, 1, p->l, SM90_SKINNY_STEP_K / 2, 8 * config->b_units, 128);
    add_tensor_map(out, &a, &s->a);
    add_tensor_map(out, &b, &s->b);
}

const sm90_kind sm90_skinny_kind = {.operation = OP_GEMM, .candidates = candidates, .build = build};
