/* A . B by wgmma, split along the sum over clusters where tiles leave SMs idle. Scales are 128x4, and tensor maps
 * describe the values of both operands. */
#include "kernels/sm90/plan.h"

typedef struct nn_config {
    int32_t kernel, tile_m, stages, type, shared_bytes;
} nn_config;

static const nn_config configs[] = {
#define X(id, tile_m, stages, bf16)                                                                                    \
    {KERNEL_##id, tile_m, stages, (bf16) ? NVFP4_BF16 : NVFP4_FP16, SM90_NN_SHARED_BYTES(tile_m, stages)},
    SM90_NN_CONFIGS(X)
#undef X
};

typedef struct IS_TILING nn_tiling {
    int32_t tiles_m, tiles_n;
    int32_t a_batches, b_batches; /* L, or 1 if all batches share the operand */
} nn_tiling;

/* Partial sums that a CTA receives. */
static double partials_bytes(const nn_config *c, int32_t split_k) {
    return (double)((split_k - 1) * ceil_div(c->tile_m / 8, split_k) * SM90_NN_TILE_N * 8 * (int64_t)sizeof(float));
}

/* tiles: of all batches. */
static double single_us(const sm90_model *m, const device_props *props, const gemm_traits *t, const nn_config *c,
                        int64_t tiles, int32_t split_k) {
    const double wgmma = SM90_NN_TILE_N / 64 * (SM90_NN_STAGE_K / 16) * (c->tile_m / 2.0);
    const double decode = m->nn_decode_clocks * (c->type == NVFP4_BF16 ? m->nn_bf16_loss : 1.0);
    const double stages = (double)ceil_div(ceil_div(t->k, SM90_NN_STAGE_K), split_k);
    const double rows = (double)min_int(t->m, c->tile_m);
    const double stored = rows * SM90_NN_TILE_N * t->output_bytes / split_k / m->nn_store_b_clk;
    const double exchange = split_k > 1 ? sm90_exchange_time_us(m, split_k, partials_bytes(c, split_k)) : 0.0;
    const double tile = sm90_clocks_us(m, stages * (decode + wgmma * m->nn_hidden_mma) + stored) + exchange;
    const int64_t rounds = ceil_div(tiles, sm90_ctas_that_fit(props->sm_count, split_k) / split_k);
    const double m_k = (double)t->m * (double)t->k, m_n = (double)t->m * (double)t->n,
                 n_k = (double)t->n * (double)t->k;
    const double bytes = (double)t->l * (m_k * 2.0 + m_n * t->output_bytes + n_k * SM90_RAW_BYTES);
    return m->nn_fixed_us + max_double((double)rounds * tile, sm90_memory_us(m, bytes, 0.0));
}

static int32_t candidates(const sm90_model *model, const device_props *props, const gemm_traits *t,
                          gemm_candidate *out) {
    int32_t count = 0;
    if (!sm90_reaches(t)) return 0;
    const int64_t stages = ceil_div(t->k, SM90_NN_STAGE_K);
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const nn_config *c = &configs[i];
        if (c->type != t->a_type || c->shared_bytes > props->shared_per_block) continue;
        const nn_tiling tiling = {.tiles_m = (int32_t)ceil_div(t->m, c->tile_m),
                                  .tiles_n = (int32_t)ceil_div(t->n, SM90_NN_TILE_N),
                                  .a_batches = t->broadcast_a & BROADCAST_VALUES ? 1 : (int32_t)t->l,
                                  .b_batches = t->broadcast_b & BROADCAST_VALUES ? 1 : (int32_t)t->l};
        const int64_t tiles = (int64_t)tiling.tiles_m * tiling.tiles_n;
        if (tiles > INT32_MAX / SM90_NN_MAX_SPLIT / (SM90_NN_BAND * t->l)) continue;
        for (int32_t split_k = 1; split_k <= SM90_NN_MAX_SPLIT; split_k++) {
            if (split_k > 1 && split_k > stages) break;
            out[count] = (gemm_candidate){
                .single_us = single_us(model, props, t, c, tiles * t->l, split_k),
                .reason = split_k > 1 ? "wgmma; split along the sum over a cluster so that more SMs have work"
                                      : "wgmma; its tiles fill the SMs",
                .grid = tiles * t->l * split_k,
                .kernel = c->kernel,
                .split_k = split_k,
                .tile_m = c->tile_m,
                .tile_n = SM90_NN_TILE_N,
                .tile_k = SM90_NN_STAGE_K,
                .stages = c->stages,
            };
            *TILING(nn_tiling, &out[count++]) = tiling;
        }
    }
    return count;
}

/* A as it is. */
static tensor_layout a_layout(const gemm_problem *p, int64_t batches, int32_t box_rows) {
    return (tensor_layout){
        .name = "a",
        .data = p->a,
        .element_bytes = 2,
        .rank = 3,
        .dims = {(uint64_t)p->k, (uint64_t)p->m, (uint64_t)batches},
        .strides = {tensor_stride(p->m, p->a_pitch), tensor_stride(batches, p->a_batch)},
        .box = {SM90_NN_STAGE_K, (uint32_t)box_rows, 1},
        .swizzle = 128,
    };
}

static tensor_layout b_layout(const gemm_problem *p, int64_t batches) {
    return (tensor_layout){
        .name = "b",
        .data = p->b,
        .element_bytes = 1,
        .rank = 3,
        .dims = {(uint64_t)p->n / 2, (uint64_t)p->k, (uint64_t)batches},
        .strides = {tensor_stride(p->k, p->b_pitch), tensor_stride(batches, p->b_batch)},
        .box = {SM90_NN_TILE_N / 2, SM90_NN_STAGE_K, 1},
        .swizzle = 128,
    };
}

static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    const gemm_problem *p = &problem->gemm;
    (void)props, (void)workspace;
    const nn_tiling *tiling = TILING(const nn_tiling, c);
    launch_step *step = add_step(out, c->kernel, c->grid, configs[c->kernel - configs->kernel].shared_bytes);
    if (c->split_k > 1) step->cluster = c->split_k;
    *(gemm_problem *)add_param(out, step, sizeof *p) = *p;
    sm90_nn_schedule *s = add_param(out, step, sizeof *s);
    *s = (sm90_nn_schedule){.a_batches = tiling->a_batches,
                            .b_batches = tiling->b_batches,
                            .tiles_m = tiling->tiles_m,
                            .tiles_n = tiling->tiles_n,
                            .split_k = c->split_k,
                            .inv_split_k = sm90_reciprocal(c->split_k)};
    if (p->k == 0) return;                                  /* nothing is loaded */
    const int32_t rows = (int32_t)min_int(p->m, c->tile_m); /* TMA takes some 10 clocks to fill one with zeros */
    const tensor_layout a = a_layout(p, tiling->a_batches, rows), b = b_layout(p, tiling->b_batches);
    add_tensor_map(out, &a, &s->a);
    add_tensor_map(out, &b, &s->b);
}

const sm90_kind sm90_nn_kind = {.product_kind = PRODUCT_GEMM_NN, .candidates = candidates, .build = build};
