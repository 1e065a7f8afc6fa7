/* Candidates of sm100/grouped.cu, by the model of grouped_model.h, and launches. C11 and C++17. Ends are on the
 * device, so a plan depends on T, E, N, K alone. */
#include "kernels/sm100/grouped_plan.h"
#include "common/group_blocks.h"
#include "kernels/sm100/grouped_model.h"

typedef struct grouped_config {
    const char *name;
    int32_t kernel, cta_group, matrices, mma_tile_n, stages, accumulators, shared_bytes;
} grouped_config;

static const grouped_config configs[] = {
#define X(id, cta_group, matrices, mma_tile_n, stages, accumulators)                                                   \
    {"nvfp4_" #id, KERNEL_##id,                                                                                        \
     cta_group,    matrices,                                                                                           \
     mma_tile_n,   stages,                                                                                             \
     accumulators, SM100_GROUPED_SHARED_BYTES(cta_group, matrices, mma_tile_n, stages, accumulators)},
    SM100_GROUPED_CONFIGS(X)
#undef X
};
enum { CONFIGS = sizeof configs / sizeof *configs, BOX_BYTES = SM100_STAGE_K / 2 };

#define FEW                 "tcgen05, few rows a group: reading the weights takes longest"
#define MANY                "tcgen05, many rows a group, which share the weights of a tile"
#define PAIR                "tcgen05, two SMs share a tile of many rows and load half of them each"
#define WITH_THE_ACTIVATION "; and the activation: one launch"
#define WITH_THE_QUANTIZER  "; the activation and its quantizer: one launch"

/* Reasons by the width of a tile, then by what the launch computes: the product, the activation too, its quantizer too.
 */
enum { PRODUCT_ALONE, WITH_ACTIVATION, WITH_QUANTIZER };
static const char *const reasons[][3] = {
    {FEW, FEW WITH_THE_ACTIVATION, FEW WITH_THE_QUANTIZER},
    {MANY, MANY WITH_THE_ACTIVATION, MANY WITH_THE_QUANTIZER},
    {PAIR, PAIR WITH_THE_ACTIVATION, PAIR WITH_THE_QUANTIZER},
};

static const char *reason_of(int32_t mma_tile_n, int32_t launch) {
    return reasons[mma_tile_n / SM100_ATOM_ROWS][launch];
}

typedef struct IS_TILING grouped_tiling {
    int32_t tiles_n;   /* of a part */
    int32_t read_once; /* 1: most matrices are read for one tile of rows */
} grouped_tiling;

/* Whether tiles and scales follow from the parameters (groups.cuh). With ends only up to a block of rows: more rows
 * behind the end could be multiplied in vain. A is then as large as quantize makes it, and its scales begin at 0 or
 * nowhere. */
static int is_dense(const grouped_problem *p) {
    return p->groups == 1 && (!p->ends || (p->g.m <= SM100_ATOM_ROWS && p->scale_a_rows == SM100_ATOM_ROWS));
}

int sm100_grouped_reaches(const gemm_traits *t) {
    return t->scale_layout == NVFP4_128X4 && t->tma_values && t->k % SM100_MMA_K == 0;
}

static sm100_grouped_input model_input(const gemm_traits *t, const grouped_config *c) {
    sm100_grouped_input in;
    in.columns = t->n;
    in.rows = t->m;
    in.k = max_int(t->k, 1); /* without products there still are tiles to write */
    in.groups = t->groups;
    in.parts = (int32_t)(t->l / t->groups);
    in.is_dense = t->groups == 1 && t->m <= SM100_ATOM_ROWS;
    in.cta_group = c->cta_group;
    in.matrices = c->matrices;
    in.mma_tile_n = c->mma_tile_n;
    in.accumulators = c->accumulators;
    in.output_bytes = t->output_bytes;
    return in;
}

/* Pairs keep results of 16 bits in registers, and load by tensor maps the scales of B, and with two matrices their rows
 * by 32. */
static int pair_reaches(const gemm_traits *t, const grouped_config *c) {
    const int64_t scale_batch = ceil_div(t->n, SM100_ATOM_ROWS) * (t->k / SM100_MMA_K) * SM100_ATOM_BYTES;
    const int whole = t->n % (2 * SM100_GROUPED_INTERLEAVED_ROWS) == 0;
    return c->cta_group == 1 ||
           (t->output_bytes == 2 && (c->matrices == 1 || whole) && scale_batch < TENSOR_STRIDE_END);
}

/* One instantiation: 1, or 0 where it cannot be. */
static int32_t list_one(const sm100_model *model, const device_props *props, const gemm_traits *t,
                        const grouped_config *c, gemm_candidate *out) {
    const int32_t tile_n = SM100_GROUPED_TILE_COLUMNS(c->cta_group, c->matrices);
    const int64_t tiles_n = ceil_div(t->n, tile_n), across = tiles_n * (t->l / t->groups / c->matrices);
    const int64_t along = max_group_tiles(t->m, t->groups, c->mma_tile_n);
    const sm100_grouped_input in = model_input(t, c);
    const int64_t at_once = sm100_clusters_that_fit(props, c->cta_group, 1);
    if (!sm100_grouped_reaches(t) || c->shared_bytes > props->shared_per_block) return 0;
    if (!pair_reaches(t, c) || at_once == 0) return 0;
    if (along > (INT32_MAX - props->sm_count) / across) return 0; /* a CTA's next tile must not overflow */
    const double modelled_us = sm100_grouped_time_us(model, props, &in);
    memset(out, 0, sizeof *out);
    out->modelled_us = modelled_us;
    out->single_us = modelled_us + SINGLE_CALL_US;
    out->name = c->name;
    out->reason = reason_of(c->mma_tile_n, PRODUCT_ALONE);
    out->grid = min_int(along * across, at_once) * c->cta_group;
    out->kernel = c->kernel;
    out->swap_ab = 1;
    out->split_k = 1;
    out->tile_m = c->mma_tile_n;
    out->tile_n = tile_n;
    out->tile_k = SM100_STAGE_K;
    out->stages = c->stages;
    out->ctas_per_sm = 1;
    grouped_tiling *tiling = TILING(grouped_tiling, out);
    tiling->tiles_n = (int32_t)tiles_n;
    tiling->read_once = t->m <= (int64_t)t->groups * c->mma_tile_n / 2;
    return 1;
}

int32_t sm100_grouped_candidates(const sm100_model *model, const device_props *props, const gemm_traits *t,
                                 gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++)
        if (configs[i].matrices == 1) count += list_one(model, props, t, &configs[i], out + count);
    return count;
}

/* The bytes from one turn of a pair with two matrices to the next: 32 rows of B. */
static int64_t turn_bytes(const gemm_problem *g) {
    return 2 * SM100_GROUPED_INTERLEAVED_ROWS * g->b_pitch;
}

/* Whether the instantiation may compute an activation of a product: of one part the product's own, of two those with
 * both matrices and no wider a tile. They are in the order of widths. The strides of a tensor map end below
 * TENSOR_STRIDE_END, that of a turn too. */
static int computes(const grouped_config *c, const grouped_problem *p, const gemm_candidate *of) {
    if (p->parts == 1) return c->kernel == of->kernel;
    const int one_turn = p->g.n <= 2 * SM100_GROUPED_INTERLEAVED_ROWS;
    const int turns_reach = c->cta_group == 1 || one_turn || turn_bytes(&p->g) < TENSOR_STRIDE_END;
    return c->matrices == p->parts && c->mma_tile_n <= of->tile_m && turns_reach;
}

int32_t sm100_grouped_with_activation(const sm100_model *model, const device_props *props, const grouped_problem *p,
                                      const gemm_candidate *of, gemm_candidate *out) {
    gemm_traits t = traits_of(&p->g);
    t.groups = p->groups;
    gemm_candidate fused;
    int32_t i = CONFIGS - 1;
    while (i >= 0 && !(computes(&configs[i], p, of) && list_one(model, props, &t, &configs[i], &fused))) i--;
    if (i < 0) return 0;
    const sm100_grouped_input in = model_input(&t, &configs[i]);
    if (fused.modelled_us > of->modelled_us + sm100_gated_us(model, props, &in)) return 0;
    fused.reason = reason_of(fused.tile_m, WITH_ACTIVATION);
    fused.batch_invariant = of->batch_invariant;
    fused.backend = of->backend;
    *out = fused;
    return 1;
}

int32_t sm100_grouped_with_quantized_activation(const sm100_model *model, const device_props *props,
                                                const gated_grouped_quantize_problem *p, const gemm_candidate *of,
                                                gemm_candidate *out) {
    gemm_candidate fused;
    if (!sm100_grouped_with_activation(model, props, &p->p, of, &fused)) return 0;
    fused.reason = reason_of(fused.tile_m, WITH_QUANTIZER);
    fused.quantizes = 1;
    *out = fused;
    return 1;
}

static sm100_quantized quantized_of(const grouped_quantize_problem *p) {
    sm100_quantized q;
    q.data = p->q.data;
    q.scale = p->q.scale;
    q.scale_rows = p->q.scale_rows;
    q.global_scale = p->q.global_scale;
    q.data_pitch = p->q.data_pitch;
    q.scale_pitch = p->q.scale_pitch;
    q.global_value = p->q.global_value;
    q.global_by = p->q.global_by;
    return q;
}

static const grouped_config *config_of(const gemm_candidate *candidate) {
    const grouped_config *c = configs;
    while (c->kernel != candidate->kernel) c++;
    return c;
}

/* Scales of two matrices: half an atom of either is a CTA's for a K block. Strides need not grow from dimension to
 * dimension: CUTLASS's example 72a has maps in which they do not. */
static tensor_layout interleaved_scales(const gemm_problem *g, const mma_operand *o) {
    tensor_layout t = sm100_scales_layout(g, 1, o, ceil_div(g->n, SM100_ATOM_ROWS), g->l);
    const uint64_t blocks = t.dims[2], pitch = t.strides[1], batch = t.strides[2];
    t.dims[2] = t.dims[1], t.dims[1] = (uint64_t)g->l, t.dims[3] = blocks;
    t.strides[0] = batch, t.strides[1] = SM100_ATOM_BYTES, t.strides[2] = pitch;
    t.box[0] = SM100_ATOM_BYTES / 4, t.box[1] = 2, t.box[2] = SM100_STAGE_ATOMS;
    return t;
}

/* Values of two matrices: 16 rows of one, then as many of the other, with 32 rows from one such turn to the next. */
static tensor_layout interleaved_values(const gemm_problem *g) {
    enum { ROWS = SM100_GROUPED_INTERLEAVED_ROWS };
    tensor_layout t = values_layout(g, 1, g->l, BOX_BYTES, ROWS, 128);
    t.rank = 4;
    t.dims[1] = 2 * ROWS, t.dims[3] = (uint64_t)(g->n / (2 * ROWS));
    t.strides[0] = (uint64_t)g->b_pitch;
    t.strides[2] = tensor_stride(g->n / (2 * ROWS), turn_bytes(g));
    t.box[2] = 2, t.box[3] = SM100_CTA_ROWS / (2 * ROWS);
    return t;
}

static void add_scale_maps(const grouped_problem *p, int interleaved, sm100_grouped_schedule *s, launch_plan *out) {
    /* Without a block the map has one, which no load takes; its address is any. */
    const int64_t blocks = p->scale_a_rows / SM100_ATOM_ROWS;
    const tensor_layout sfa = interleaved
                                  ? interleaved_scales(&p->g, &s->mma_a)
                                  : sm100_scales_layout(&p->g, 1, &s->mma_a, ceil_div(p->g.n, SM100_ATOM_ROWS), p->g.l);
    tensor_layout sfb = sm100_scales_layout(&p->g, 0, &s->mma_b, max_int(blocks, 1), 1);
    if (blocks == 0) sfb.data = s->mma_a.scale;
    add_tensor_map(out, &sfa, &s->mma_a_scales);
    add_tensor_map(out, &sfb, &s->mma_b_scales);
}

void sm100_grouped_build(const product_problem *problem, const gemm_candidate *candidate, launch_plan *out) {
    const grouped_tiling *tiling = TILING(const grouped_tiling, candidate);
    const grouped_problem *p = &problem->grouped;
    const gemm_problem *g = &p->g;
    const grouped_config *config = config_of(candidate);
    launch_step *step = add_step(out, candidate->kernel, candidate->grid, config->shared_bytes);
    if (config->cta_group == 2) step->cluster = 2;
    *(grouped_problem *)add_param(out, step, sizeof *p) = *p;
    sm100_grouped_schedule *s = (sm100_grouped_schedule *)add_param(out, step, sizeof *s);
    memset(s, 0, sizeof *s);
    s->tiles_n = tiling->tiles_n;
    s->column_pairs = sm100_column_pairs(g, 1);
    s->is_dense = is_dense(p);
#if !SM100_GROUPED_DUAL /* there gating_of is device code, and the launcher has the numbers of the one activation */
    s->numbers = gating_of(p->limit, p->activation_alpha, p->parts == 2);
#endif
    if (candidate->quantizes) s->quantized = quantized_of(&problem->gated_grouped_quantize.q);
    fill_operand(g, 1, tiling->read_once ? L2_EVICT_FIRST : L2_EVICT_NORMAL, &s->mma_a);
    fill_operand(g, 0, L2_EVICT_NORMAL, &s->mma_b);
    if (g->k == 0) return;
    const int interleaved = config->cta_group == 2 && config->matrices == 2;
    const tensor_layout a =
        interleaved ? interleaved_values(g) : values_layout(g, 1, g->l, BOX_BYTES, SM100_CTA_ROWS, 128);
    const tensor_layout b = values_layout(g, 0, 1, BOX_BYTES, SM100_GROUPED_BOX_ROWS, 128);
    add_tensor_map(out, &a, &s->mma_a.values);
    add_tensor_map(out, &b, &s->mma_b.values);
    if (config->cta_group == 2) add_scale_maps(p, interleaved, s, out);
}
