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
enum {
    CONFIGS = sizeof configs / sizeof *configs,
    CLAIMED_BYTES = 16, /* of the count of claimed tiles behind the rows in the workspace; a word is used */
};

typedef struct IS_TILING grouped_tiling {
    int32_t tiles_n; /* of a part, or of both parts of an activation */
} grouped_tiling;

/* A row of A that is put into order, in 16 bits. */
static int64_t row_bytes(int64_t k) {
    return ceil_div(k, SM90_GROUPED_STAGE_K) * (SM90_GROUPED_STAGE_K * 2);
}

/* Rows of its wgmmas, in rising order; 0 behind the last. */
static const int32_t *widths_of(const grouped_config *c) {
#define X(n) n,
    static const int32_t of_96[SM90_GROUPED_WIDTHS + 1] = {SM90_GROUPED_WIDTHS_96(X)},
                                                     of_152[SM90_GROUPED_WIDTHS + 1] = {SM90_GROUPED_WIDTHS_152(X)};
#undef X
    return c->mma_tile_n == 96 ? of_96 : of_152;
}

/* Rows of the wgmma that a tile takes. */
static double width_of(const grouped_config *c, double rows) {
    const int32_t *widths = widths_of(c);
    while (rows > widths[0] && widths[1]) widths++;
    return widths[0];
}

/* A tile of so many rows. A stage takes, of wgmma and dequantizing, the longer and a part of the other. */
static double tile_clocks(const sm90_model *m, const grouped_config *c, double stages, double rows) {
    const double steps = SM90_GROUPED_TILE_N / 64 * (SM90_GROUPED_STAGE_K / 16);
    const double wgmma = m->grouped_mma_clocks * steps * width_of(c, rows) / 2;
    const double decode = m->grouped_decode_clocks / (c->type == NVFP4_BF16 ? 1.0 : m->nn_bf16_loss);
    const double stage =
        wgmma < decode ? decode + m->grouped_hidden_mma * wgmma : wgmma + m->grouped_hidden_decode * decode;
    return m->grouped_tile_clocks + stages * stage;
}

static double single_us(const sm90_model *m, const device_props *props, const gemm_traits *t, const grouped_config *c,
                        double across) {
    const double rows = (double)t->m, k = (double)t->k, sms = props->sm_count;
    const double hit = groups_with_rows(rows, t->groups), parts = (double)(t->l / t->groups);
    const double stages = (double)ceil_div(t->k, SM90_GROUPED_STAGE_K);
    double tiles = 0, clocks = 0; /* along the rows of a group */
    for (int32_t i = 0; i < EIGHTHS; i++) {
        const double here = rows_of_eighth(rows / hit, i), count = max_double(1.0, ceil(here / c->mma_tile_n));
        tiles += count / EIGHTHS;
        clocks += count * tile_clocks(m, c, stages, here / count) / EIGHTHS;
    }
    const double turns = turns_of(hit * tiles * across / sms);
    const double stored = rows * (double)t->n * parts * t->output_bytes;
    const double of_b = hit * parts * (double)t->n * k * SM90_RAW_BYTES, others = rows * k * 2.0 + stored;
    const double memory = max_double(of_b / m->grouped_tb_s, of_b / m->dram_tb_s) + others / m->dram_tb_s;
    const int a_is_e2m1 = t->a_type == VALUES_E2M1;
    const double read = a_is_e2m1 ? SM90_RAW_BYTES / SM90_FP16_BYTES : 1.0; /* of what is written */
    const double reordered = (1.0 + read) * rows * (double)row_bytes(t->k);
    return m->grouped_fixed_us + (a_is_e2m1 ? m->grouped_e2m1_us : 0.0) + reordered / m->dram_tb_s * 1e-6 +
           overlapped(sm90_clocks_us(m, turns * clocks / tiles), memory * 1e-6, m->overlap);
}

/* CTAs of the pre-pass over so many rows. Groups count where A is NVFP4. */
static int64_t reorder_ctas(int32_t a_type, int64_t rows, int64_t groups, int64_t k) {
    const int64_t spans = ceil_div(k, SM90_GROUPED_STAGE_K);
    if (a_type != VALUES_E2M1) return SM90_REORDER_CTAS(rows, spans);
    return max_group_tiles(rows, groups, SM90_REORDER_TILE_M) * SM90_REORDER_CHUNKS(spans);
}

/* Whether the kernels reach the product: a CTA's next tile must not overflow, nor the chunks of 16 bytes of what the
 * pre-pass writes. */
static int reaches(const device_props *props, const gemm_traits *t, int64_t tiles_m, int64_t across) {
    return t->n <= INT32_MAX / 2 && reorder_ctas(t->a_type, t->m, t->groups, t->k) <= INT32_MAX &&
           t->m * row_bytes(t->k) / 16 < UINT32_MAX && tiles_m <= (INT32_MAX - props->sm_count) / across;
}

/* The product by an instantiation; with both parts in a tile, if it has an activation of two. 0: it is too large. */
static int32_t candidate_of(const sm90_model *model, const device_props *props, const gemm_traits *t,
                            const grouped_config *c, int both_parts, gemm_candidate *out) {
    const int64_t parts = t->l / t->groups, tile_n = both_parts ? SM90_GROUPED_BOX_ROWS : SM90_GROUPED_TILE_N;
    const int64_t tiles_n = ceil_div(t->n, tile_n), across = tiles_n * (both_parts ? 1 : parts);
    const int64_t tiles_m = max_group_tiles(t->m, t->groups, c->mma_tile_n);
    if (!reaches(props, t, tiles_m, across)) return 0;
    *out = (gemm_candidate){
        .single_us = single_us(model, props, t, c, (double)across),
        .reason = both_parts ? "wgmma over gate and up: a decoded value is used often"
                             : "wgmma in wide tiles: a decoded value is used often",
        .workspace = t->m * row_bytes(t->k) + CLAIMED_BYTES,
        .grid = min_int(tiles_m * across, props->sm_count),
        .kernel = c->kernel,
        .swap_ab = 1,
        .split_k = 1,
        .tile_m = c->mma_tile_n,
        .tile_n = SM90_GROUPED_TILE_N,
        .tile_k = SM90_GROUPED_STAGE_K,
        .stages = c->stages,
    };
    *TILING(grouped_tiling, out) = (grouped_tiling){.tiles_n = (int32_t)tiles_n};
    return 1;
}

/* The product by each instantiation. */
static int32_t list(const sm90_model *model, const device_props *props, const gemm_traits *t, int both_parts,
                    gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++)
        if (configs[i].type == sm90_wgmma_type(t) && configs[i].shared_bytes <= props->shared_per_block)
            count += candidate_of(model, props, t, &configs[i], both_parts, &out[count]);
    return count;
}

static int32_t candidates(const sm90_model *model, const device_props *props, const gemm_traits *t,
                          gemm_candidate *out) {
    return sm90_reaches(t) ? list(model, props, t, 0, out) : 0;
}

static int32_t with_activation(const sm90_model *model, const device_props *props, const gemm_traits *t,
                               const gemm_candidate *of, gemm_candidate *out) {
    gemm_candidate all[CONFIGS];
    (void)of;
    if (t->output_bytes != 2) return 0;
    return sm90_take_fastest(all, list(model, props, t, t->l / t->groups == 2, all), out);
}

/* All of them add in one order, whatever T is. */
static int32_t batch_invariant(const sm90_model *model, const device_props *props, const gemm_traits *t,
                               gemm_candidate *out) {
    return sm90_reaches(t) ? candidates(model, props, t, out) : -1;
}

/* Dequantizes NVFP4 A, whose rows are those of the result. */
static void add_reorder_e2m1(const grouped_problem *p, uint8_t *to, uint32_t *claimed, launch_plan *out) {
    const int64_t ctas = reorder_ctas(VALUES_E2M1, p->g.m, p->groups, p->g.k);
    const int32_t spans = (int32_t)ceil_div(p->g.k, SM90_GROUPED_STAGE_K);
    launch_step *step = add_step(out, KERNEL_SM90_REORDER_E2M1, ctas, 0);
    *(grouped_problem *)add_param(out, step, sizeof *p) = *p;
    *(sm90_reorder_e2m1_schedule *)add_param(out, step, sizeof(sm90_reorder_e2m1_schedule)) =
        (sm90_reorder_e2m1_schedule){
            .to = to, .claimed = claimed, .spans = spans, .chunks = SM90_REORDER_CHUNKS(spans)};
}

/* Puts the rows of A that those of the result are into order. */
static void add_reorder(const grouped_problem *p, uint8_t *to, uint32_t *claimed, launch_plan *out) {
    const int64_t count = p->g.m, spans = ceil_div(p->g.k, SM90_GROUPED_STAGE_K);
    launch_step *step = add_step(out, KERNEL_SM90_REORDER, reorder_ctas(p->g.a_type, count, p->groups, p->g.k), 0);
    *(sm90_reorder_schedule *)add_param(out, step, sizeof(sm90_reorder_schedule)) =
        (sm90_reorder_schedule){.a = p->g.a,
                                .a_pitch = p->g.a_pitch,
                                .a_rows = p->a_rows,
                                .rows = p->rows,
                                .to = to,
                                .claimed = claimed,
                                .count = count,
                                .k = p->g.k,
                                .spans = (int32_t)spans,
                                .bf16 = p->g.a_type == NVFP4_BF16};
}

/* A tile of so many rows is loaded from the pre-pass's rows by this layout. */
static tensor_layout reordered_layout(const gemm_problem *g, const void *data, int32_t box_rows) {
    const uint64_t pitch = (uint64_t)row_bytes(g->k);
    return (tensor_layout){
        .name = "a in the order of the wgmma",
        .data = data,
        .element_bytes = 2,
        .rank = 3,
        .dims = {pitch / 2, (uint64_t)g->m, 1},
        .strides = {pitch, pitch * (uint64_t)g->m},
        .box = {SM90_GROUPED_STAGE_K, (uint32_t)box_rows, 1},
        .swizzle = 128,
    };
}

static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    (void)props;
    const grouped_problem *p = &problem->grouped;
    const gemm_problem *g = &p->g;
    const grouped_tiling *tiling = TILING(const grouped_tiling, c);
    const grouped_config *config = &configs[c->kernel - configs->kernel];
    const int has_values = g->k > 0 && p->a_rows > 0;
    uint32_t *claimed = has_values ? (uint32_t *)((uint8_t *)workspace + g->m * row_bytes(g->k)) : NULL;
    if (has_values && g->a_type == VALUES_E2M1)
        add_reorder_e2m1(p, workspace, claimed, out);
    else if (has_values)
        add_reorder(p, workspace, claimed, out);
    launch_step *step = add_step(out, c->kernel, c->grid, config->shared_bytes);
    *(grouped_problem *)add_param(out, step, sizeof *p) = *p;
    sm90_grouped_schedule *s = add_param(out, step, sizeof *s);
    *s = (sm90_grouped_schedule){.b_cache_policy = L2_EVICT_NORMAL,
                                 .claimed = claimed,
                                 .stages_k = has_values ? (int32_t)ceil_div(g->k, SM90_GROUPED_STAGE_K) : 0,
                                 .tiles_n = tiling->tiles_n,
                                 .numbers = gating_of(p->limit, p->activation_alpha, p->parts == 2)};
    if (!has_values) return; /* nothing is loaded */
    const tensor_layout b = values_layout(g, 1, g->l, SM90_GROUPED_STAGE_K / 2, SM90_GROUPED_BOX_ROWS, 0);
    add_tensor_map(out, &b, &s->b);
    const int32_t *widths = widths_of(config);
    for (int32_t i = 0; widths[i]; i++) {
        const tensor_layout a = reordered_layout(g, workspace, widths[i]);
        add_tensor_map(out, &a, &s->a[i]);
    }
}

const sm90_kind sm90_grouped_kind = {.product_kind = PRODUCT_GROUPED,
                                     .candidates = candidates,
                                     .batch_invariant = batch_invariant,
                                     .with_activation = with_activation,
                                     .build = build};
