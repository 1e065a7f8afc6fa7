/* Products of groups by wgmma, with B dequantized in registers, and NVFP4 A by a pre-pass. Scales are 128x4, and a
 * tensor map describes B.
 *
 * Ends are on the device, so a plan depends on T, E, N, K alone. The model of time is an even routing's (plan.h). */
#include "common/group_blocks.h"
#include "common/grouped_problem.h"
#include "kernels/sm90/grouped_config.h"
#include "kernels/sm90/plan.h"

typedef struct grouped_config {
    int32_t kernel, mma_tile_n, stages, type, shared_bytes;
} grouped_config;

static const grouped_config configs[] = {
#define X(id, mma_tile_n, stages, bf16)                                                                                \
    {KERNEL_##id, mma_tile_n, stages, (bf16) ? NVFP4_BF16 : NVFP4_FP16, SM90_GROUPED_SHARED_BYTES(mma_tile_n, stages)},
    SM90_GROUPED_CONFIGS(X)
#undef X
};

typedef struct IS_TILING grouped_tiling {
    int32_t tiles_n;
    int32_t read_once; /* 1: few groups have more than one tile along their rows */
} grouped_tiling;

/* A row of A that is put into order, in 16 bits. */
static int64_t row_bytes(int64_t k) {
    return ceil_div(k, SM90_STAGE_K) * (SM90_STAGE_K * 2);
}

/* Rows of the wgmma that a tile takes. */
static double width_of(const grouped_config *c, double rows) {
#define X(n)                                                                                                           \
    if (rows <= n) return n;
    if (c->mma_tile_n == 64) {
        SM90_GROUPED_WIDTHS_64(X)
    } else {
        SM90_GROUPED_WIDTHS_128(X)
    }
#undef X
    return c->mma_tile_n;
}

/* A stage of a tile of so many rows: of wgmma and dequantizing, the longer and a part of the other. */
static double stage_clocks(const sm90_model *m, const grouped_config *c, double rows) {
    const double steps = SM90_GROUPED_TILE_N / 64 * (SM90_STAGE_K / 16);
    const double wgmma = m->grouped_mma_clocks * steps * width_of(c, rows) / 2;
    const double decode = m->grouped_decode_clocks / (c->type == NVFP4_BF16 ? 1.0 : m->nn_bf16_loss);
    return wgmma < decode ? decode + m->grouped_hidden_mma * wgmma : wgmma + m->grouped_hidden_decode * decode;
}

/* The time of all tiles of 128 columns of a group with so many rows on average, by eighths of the distribution. */
static double group_clocks(const sm90_model *m, const gemm_traits *t, const grouped_config *c, double rows) {
    const double stages = (double)ceil_div(t->k, SM90_STAGE_K);
    double clocks = 0;
    for (int i = 0; i < EIGHTHS; i++) {
        const double here = rows_of_eighth(rows, i), whole = floor(here / c->mma_tile_n);
        const double rest = here - whole * c->mma_tile_n;
        clocks += whole * (m->grouped_tile_clocks + stages * stage_clocks(m, c, c->mma_tile_n));
        clocks += rest > 0 ? m->grouped_tile_clocks + stages * stage_clocks(m, c, rest) : 0;
    }
    return clocks / EIGHTHS;
}

static double single_us(const sm90_model *model, const device_props *props, const gemm_traits *t,
                        const grouped_config *c, int64_t tiles_n) {
    const double rows = (double)t->m, k = (double)t->k, groups = t->groups, sms = props->sm_count;
    const double hit = groups_with_rows(rows, groups), parts = (double)(t->l / t->groups);
    const double one = group_clocks(model, t, c, rows / hit), tiles = hit * (double)tiles_n * parts;
    const double clocks = one * max_double(1.0, tiles / sms + 0.5);
    const double stored = rows * (double)t->n * parts * t->output_bytes;
    const double bytes = hit * parts * (double)t->n * k * SM90_RAW_BYTES + rows * k * 2.0 + stored;
    const double busy = sm90_clocks_us(model, clocks + stored / sms / model->store_b_clk);
    const int a_is_e2m1 = t->a_type == VALUES_E2M1;
    const double read = a_is_e2m1 ? SM90_RAW_BYTES / SM90_FP16_BYTES : 1.0; /* of what is written */
    /* At most: A may have less rows than the result. */
    const double reordered = (1.0 + read) * rows * (double)row_bytes(t->k);
    return model->grouped_fixed_us + (a_is_e2m1 ? model->grouped_e2m1_us : 0.0) + reordered / model->dram_tb_s * 1e-6 +
           overlapped(busy, bytes / model->dram_tb_s * 1e-6, model->overlap);
}

/* CTAs of the pre-pass over so many rows. Groups count where A is NVFP4. */
static int64_t reorder_ctas(int32_t a_type, int64_t rows, int64_t groups, int64_t k) {
    const int64_t stages = ceil_div(k, SM90_STAGE_K);
    if (a_type != VALUES_E2M1) return SM90_REORDER_CTAS(rows, stages);
    return max_group_tiles(rows, groups, SM90_REORDER_TILE_M) * SM90_REORDER_CHUNKS(stages);
}

static int32_t candidates(const sm90_model *model, const device_props *props, const gemm_traits *t,
                          gemm_candidate *out) {
    int32_t count = 0;
    if (!sm90_reaches(t)) return 0;
    if (reorder_ctas(t->a_type, t->m, t->groups, t->k) > INT32_MAX) return 0;
    const int64_t tiles_n = ceil_div(t->n, SM90_GROUPED_TILE_N), across = tiles_n * (t->l / t->groups);
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const grouped_config *c = &configs[i];
        if (c->type != sm90_wgmma_type(t) || c->shared_bytes > props->shared_per_block) continue;
        const int64_t tiles_m = max_group_tiles(t->m, t->groups, c->mma_tile_n);
        if (tiles_m > (INT32_MAX - props->sm_count) / across) continue; /* a CTA's next tile must not overflow */
        out[count] = (gemm_candidate){
            .single_us = single_us(model, props, t, c, tiles_n),
            .reason = c->mma_tile_n <= 64
                          ? "wgmma, in tiles of up to 64 rows of a group: deep stages"
                          : "wgmma, in tiles of up to 128 rows of a group: a decoded value is used often",
            .grid = min_int(tiles_m * across, props->sm_count),
            .kernel = c->kernel,
            .swap_ab = 1,
            .split_k = 1,
            .tile_m = c->mma_tile_n,
            .tile_n = SM90_GROUPED_TILE_N,
            .tile_k = SM90_STAGE_K,
            .stages = c->stages,
        };
        out[count].workspace = t->m * row_bytes(t->k);
        *TILING(grouped_tiling, &out[count++]) =
            (grouped_tiling){.tiles_n = (int32_t)tiles_n, .read_once = t->m <= (int64_t)t->groups * c->mma_tile_n / 2};
    }
    return count;
}

/* All of them add in one order, whatever T is. */
static int32_t batch_invariant(const sm90_model *model, const device_props *props, const gemm_traits *t,
                               gemm_candidate *out) {
    return sm90_reaches(t) ? candidates(model, props, t, out) : -1;
}

/* Dequantizes NVFP4 A, whose rows are those of the result. */
static void add_reorder_e2m1(const grouped_problem *p, uint8_t *to, launch_plan *out) {
    const int64_t ctas = reorder_ctas(VALUES_E2M1, p->g.m, p->groups, p->g.k);
    const int32_t stages = (int32_t)ceil_div(p->g.k, SM90_STAGE_K);
    launch_step *step = add_step(out, KERNEL_SM90_REORDER_E2M1, ctas, 0);
    *(grouped_problem *)add_param(out, step, sizeof *p) = *p;
    *(sm90_reorder_e2m1_schedule *)add_param(out, step, sizeof(sm90_reorder_e2m1_schedule)) =
        (sm90_reorder_e2m1_schedule){.to = to, .stages = stages, .chunks = SM90_REORDER_CHUNKS(stages)};
}

/* Rows that the pre-pass writes: those of the result where A has more, or is NVFP4. */
static int64_t reordered_rows(const grouped_problem *p) {
    return p->g.a_type == VALUES_E2M1 ? p->g.m : min_int(p->g.m, p->a_rows);
}

static int64_t workspace_of(const product_problem *problem, const gemm_candidate *c) {
    (void)c;
    return reordered_rows(&problem->grouped) * row_bytes(problem->gemm.k);
}

/* Puts A into order, or, if it has more rows than the result, those rows of it that the result's are. */
static void add_reorder(const grouped_problem *p, int gathers, uint8_t *to, launch_plan *out) {
    const int64_t count = reordered_rows(p), stages = ceil_div(p->g.k, SM90_STAGE_K);
    launch_step *step = add_step(out, KERNEL_SM90_REORDER, reorder_ctas(p->g.a_type, count, p->groups, p->g.k), 0);
    *(sm90_reorder_schedule *)add_param(out, step, sizeof(sm90_reorder_schedule)) =
        (sm90_reorder_schedule){.a = p->g.a,
                                .a_pitch = p->g.a_pitch,
                                .a_rows = p->a_rows,
                                .rows = gathers ? p->rows : NULL,
                                .to = to,
                                .count = count,
                                .k = p->g.k,
                                .stages = (int32_t)stages,
                                .bf16 = p->g.a_type == NVFP4_BF16};
}

static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    (void)props;
    const grouped_problem *p = &problem->grouped;
    const gemm_problem *g = &p->g;
    const grouped_tiling *tiling = TILING(const grouped_tiling, c);
    const int gathers = p->a_rows > g->m, has_values = g->k > 0 && p->a_rows > 0;
    if (has_values && g->a_type == VALUES_E2M1)
        add_reorder_e2m1(p, workspace, out);
    else if (has_values)
        add_reorder(p, gathers, workspace, out);
    launch_step *step = add_step(out, c->kernel, c->grid, configs[c->kernel - configs->kernel].shared_bytes);
    *(grouped_problem *)add_param(out, step, sizeof *p) = *p;
    sm90_grouped_schedule *s = add_param(out, step, sizeof *s);
    *s = (sm90_grouped_schedule){.b_cache_policy = tiling->read_once ? L2_EVICT_FIRST : L2_EVICT_NORMAL,
                                 .a = has_values ? workspace : NULL,
                                 .a_is_gathered = gathers,
                                 .tiles_n = tiling->tiles_n};
    if (g->k == 0) return; /* nothing is loaded */
    const tensor_layout b = values_layout(g, 1, g->l, SM90_STAGE_K / 2, SM90_GROUPED_TILE_N, 0);
    add_tensor_map(out, &b, &s->b);
}

const sm90_kind sm90_grouped_kind = {.product_kind = PRODUCT_GROUPED,
                                     .candidates = candidates,
                                     .batch_invariant = batch_invariant,
                                     .workspace = workspace_of,
                                     .build = build};
