/* Products of groups of up to some 48 rows, by wgmma, of fp16 or bf16 A as it lies: which instantiation of
 * sm90/grouped_few.cu. Results are fp16 or bf16.
 *
 * The plan depends on T, E, N, K alone, by the model of an even routing (plan.h). All instantiations add in one order,
 * so a product with an activation may have tiles of another width than the product. */
#include "common/group_blocks.h"
#include "common/grouped_problem.h"
#include "kernels/sm90/plan.h"

typedef struct few_config {
    int32_t kernel, mma_tile_n, stages, type, shared_bytes;
} few_config;

static const few_config configs[] = {
#define X(id, mma_tile_n, stages, bf16)                                                                                \
    {KERNEL_##id, mma_tile_n, stages, (bf16) ? NVFP4_BF16 : NVFP4_FP16,                                                \
     SM90_GROUPED_FEW_SHARED_BYTES(mma_tile_n, stages)},
    SM90_GROUPED_FEW_CONFIGS(X)
#undef X
};
enum { CONFIGS = sizeof configs / sizeof *configs };

typedef struct IS_TILING few_tiling {
    int32_t tiles_n;
} few_tiling;

/* Rows of the wgmma that a tile takes. */
static double width_of(const few_config *c, double rows) {
#define X(n)                                                                                                           \
    if (rows <= n && 2 * n >= c->mma_tile_n) return n;
    SM90_GROUPED_FEW_WIDTHS(X)
#undef X
    return rows;
}

static double tile_clocks(const sm90_model *m, const few_config *c, double stages, double rows) {
    const double stage = m->group_few_stage_clocks + m->group_few_row_clocks * (width_of(c, rows) - 8.0);
    return m->group_few_tile_clocks + stages * stage;
}

static double single_us(const sm90_model *m, const device_props *props, const gemm_traits *t, const few_config *c,
                        double across) {
    const double rows = (double)t->m, hit = groups_with_rows(rows, t->groups), sms = props->sm_count;
    const double stages = (double)ceil_div(t->k, SM90_GROUPED_FEW_STAGE_K);
    double tiles = 0, clocks = 0; /* along the rows of a group */
    for (int32_t i = 0; i < EIGHTHS; i++) {
        const double here = rows_of_eighth(rows / hit, i), whole = floor(here / c->mma_tile_n);
        const double rest = here - whole * c->mma_tile_n;
        tiles += (whole + (rest > 0)) / EIGHTHS;
        clocks += whole * tile_clocks(m, c, stages, c->mma_tile_n) / EIGHTHS;
        if (rest > 0) clocks += tile_clocks(m, c, stages, rest) / EIGHTHS;
    }
    const double turns = turns_of(hit * tiles * across / sms);
    const double bytes = hit * (double)(t->l / t->groups) * (double)t->n * (double)t->k * SM90_RAW_BYTES;
    const double memory_us = tiles * bytes / m->dram_tb_s * 1e-6;
    return m->group_few_fixed_us + max_double(memory_us, sm90_clocks_us(m, turns * clocks / tiles));
}

/* The product by an instantiation; with both parts in a tile, if it has an activation of two. 0: too many tiles. */
static int32_t candidate_of(const sm90_model *model, const device_props *props, const gemm_traits *t,
                            const few_config *c, int both_parts, gemm_candidate *out) {
    const int64_t parts = t->l / t->groups, tile_n = both_parts ? SM90_GROUPED_TILE_N / 2 : SM90_GROUPED_TILE_N;
    const int64_t tiles_n = ceil_div(t->n, tile_n), across = tiles_n * (both_parts ? 1 : parts);
    const int64_t tiles_m = max_group_tiles(t->m, t->groups, c->mma_tile_n);
    if (tiles_m > (INT32_MAX - props->sm_count) / across) return 0; /* a CTA's next tile must not overflow */
    *out = (gemm_candidate){
        .single_us = single_us(model, props, t, c, (double)across),
        .reason = both_parts ? "few rows a group: wgmma over gate and up, A as it lies"
                             : "few rows a group: wgmma in deep stages, A as it lies",
        .grid = min_int(tiles_m * across, props->sm_count),
        .kernel = c->kernel,
        .swap_ab = 1,
        .split_k = 1,
        .tile_m = c->mma_tile_n,
        .tile_n = SM90_GROUPED_TILE_N,
        .tile_k = SM90_GROUPED_FEW_STAGE_K,
        .stages = c->stages,
    };
    *TILING(few_tiling, out) = (few_tiling){.tiles_n = (int32_t)tiles_n};
    return 1;
}

/* The product by each instantiation. */
static int32_t list(const sm90_model *model, const device_props *props, const gemm_traits *t, int both_parts,
                    gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++)
        if (configs[i].type == t->a_type && configs[i].shared_bytes <= props->shared_per_block)
            count += candidate_of(model, props, t, &configs[i], both_parts, &out[count]);
    return count;
}

static int32_t candidates(const sm90_model *model, const device_props *props, const gemm_traits *t,
                          gemm_candidate *out) {
    return units_reach(t) && t->output_bytes == 2 ? list(model, props, t, 0, out) : 0;
}

static int32_t with_activation(const sm90_model *model, const device_props *props, const gemm_traits *t,
                               const gemm_candidate *of, gemm_candidate *out) {
    gemm_candidate all[CONFIGS];
    (void)of;
    return sm90_take_fastest(all, list(model, props, t, t->l / t->groups == 2, all), out);
}

/* B is read once by most tiles. Only tiles of 32 rows gain where lines stay in L2 for others of the group and for the
 * next stage: 2 to 11 % (16 rows a group, H200); those of 16 and of 48 rows lose up to 6 %. */
static uint64_t b_cache_policy(const few_config *c) {
    return c->mma_tile_n == 32 ? L2_EVICT_NORMAL : L2_EVICT_FIRST;
}

static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    (void)props, (void)workspace;
    const grouped_problem *p = &problem->grouped;
    const few_tiling *tiling = TILING(const few_tiling, c);
    const few_config *config = &configs[c->kernel - configs->kernel];
    launch_step *step = add_step(out, c->kernel, c->grid, config->shared_bytes);
    *(grouped_problem *)add_param(out, step, sizeof *p) = *p;
    sm90_grouped_few_schedule *s = add_param(out, step, sizeof *s);
    *s = (sm90_grouped_few_schedule){.b_cache_policy = b_cache_policy(config),
                                     .stages_k = (int32_t)ceil_div(p->g.k, SM90_GROUPED_FEW_STAGE_K),
                                     .tiles_n = tiling->tiles_n,
                                     .numbers = gating_of(p->limit, p->activation_alpha, p->parts == 2),
                                     .early_b = p->g.constant_b && p->constant_ends};
    const tensor_layout b = values_layout(&p->g, 1, p->g.l, SM90_GROUPED_FEW_STAGE_K / 2, SM90_GROUPED_BOX_ROWS, 128);
    add_tensor_map(out, &b, &s->b);
}

const sm90_kind sm90_grouped_few_kind = {
    .product_kind = PRODUCT_GROUPED, .candidates = candidates, .with_activation = with_activation, .build = build};
