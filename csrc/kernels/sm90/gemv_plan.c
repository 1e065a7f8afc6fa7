/* A few rows of A: which instantiation, and how its warps share the rows of B and K (the rule of sm90/gemv_config.h).
 * One row of B and many of A are the transposed product.
 *
 * The model: B passes at the rate of DRAM, or the warp with most to do takes longer. */
#include "kernels/sm90/plan.h"

typedef struct gemv_config {
    int32_t kernel, rows, warps, stages;
} gemv_config;

static const gemv_config configs[] = {
#define X(id, rows, warps, stages) {KERNEL_##id, rows, warps, stages},
    SM90_GEMV_CONFIGS(X)
#undef X
};

/* The instantiations that quantize A, by the type of x. */
static const struct {
    gemv_config config;
    int32_t x_type;
} quantizing[] = {
#define X(id, rows, warps, stages, x) {{KERNEL_##id, rows, warps, stages}, (x) == 1 ? NVFP4_FP16 : NVFP4_BF16},
    SM90_GEMV_QUANTIZE_CONFIGS(X)
#undef X
};

typedef struct IS_TILING gemv_tiling {
    sm90_gemv_schedule schedule;
    int32_t shared_bytes, padding_;
} gemv_tiling;

/* The instantiation with the fewest rows that holds all of A; NULL for none. */
static const gemv_config *config_for(int64_t m) {
    const gemv_config *found = NULL;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        if (m <= configs[i].rows && (!found || configs[i].rows < found->rows)) found = &configs[i];
    return found;
}

/* Steps that the busiest warp does, with K in 2^log2_split_k parts. */
static int64_t busiest_steps(const gemv_config *c, const sm90_gemv_schedule *s, int32_t log2_split_k) {
    return ceil_div(s->tiles_per_cta, c->warps >> log2_split_k) * ceil_div(s->steps, (int64_t)1 << log2_split_k);
}

static sm90_gemv_schedule schedule_of(const device_props *props, const gemv_config *c, int64_t n, int64_t k,
                                      int64_t l) {
    const int64_t steps = SM90_GEMV_STEPS(k), tiles = SM90_GEMV_TILES(n);
    const int64_t room = SM90_GEMV_PARTIALS_LIMIT / SM90_GEMV_PARTIALS_BYTES(c->rows, 1, 1);
    const int64_t wanted = props->sm_count > l ? props->sm_count / l : 1;
    const int64_t ctas = max_int(min_int(tiles, wanted), ceil_div(tiles, room));
    const int64_t tiles_per_cta = ceil_div(tiles, ctas);
    sm90_gemv_schedule s = {.ctas = (int32_t)ctas,
                            .tiles_per_cta = (int32_t)tiles_per_cta,
                            .full_ctas = (int32_t)(tiles % ctas),
                            .steps = (int32_t)steps};
    for (int32_t log2_split_k = 0; 1 << log2_split_k <= c->warps && (log2_split_k == 0 || 1 << log2_split_k <= steps);
         log2_split_k++) {
        if (SM90_GEMV_PARTIALS_BYTES(c->rows, tiles_per_cta, 1 << log2_split_k) > SM90_GEMV_PARTIALS_LIMIT) break;
        if (busiest_steps(c, &s, log2_split_k) < busiest_steps(c, &s, s.log2_split_k)) s.log2_split_k = log2_split_k;
    }
    return s;
}

/* Shared memory of a CTA in which A takes a_bytes. A grid that fits the device has a CTA an SM, and more than half of
 * the SM's shared memory keeps the SM from taking a second one: the grid starts while another ends, and two CTAs would
 * share an SM while another SM has none. Products of one row in turn then take up to 1.6 times as long (H200). */
static int64_t shared_bytes(const device_props *props, const gemv_config *c, const sm90_gemv_schedule *s, int64_t l,
                            int64_t a_bytes) {
    const int64_t stages = min_int(c->stages, busiest_steps(c, s, s->log2_split_k));
    const int64_t used = SM90_GEMV_PARTIALS_BYTES((int64_t)c->rows, s->tiles_per_cta, 1 << s->log2_split_k) + a_bytes +
                         SM90_GEMV_STAGES_BYTES(c->warps, stages);
    return s->ctas * l > props->sm_count ? used : max_int(used, shared_alone(props));
}

/* A has m rows and B n of the product that the kernel computes, which with swap_ab is the transposed one. */
static int32_t list_one(const sm90_model *model, const device_props *props, int64_t m, int64_t n, int64_t k, int64_t l,
                        int32_t swap_ab, gemm_candidate *out) {
    const gemv_config *c = config_for(m);
    if (!c) return 0;
    const sm90_gemv_schedule s = schedule_of(props, c, n, k, l);
    const int64_t shared = shared_bytes(props, c, &s, l, SM90_GEMV_A_BYTES((int64_t)c->rows, s.steps));
    if (s.ctas * l > INT32_MAX || shared > props->shared_per_block) return 0;
    const double bytes = (double)l * (double)n * (double)k * SM90_RAW_BYTES;
    const double values = (double)busiest_steps(c, &s, s.log2_split_k) * c->warps * SM90_GEMV_TILE_N * SM90_GEMV_STEP_K;
    const double rounds = (double)ceil_div(s.ctas * l, props->sm_count);
    const double rows = 1.0 + model->gemv_row_cost * (c->rows - 1);
    const double memory = sm90_memory_us(model, bytes, 0) * (1.0 + model->gemv_row_loss * (c->rows - 1));
    const double computing = sm90_clocks_us(model, rounds * values * rows / model->gemv_per_clk);
    *out = (gemm_candidate){
        .single_us =
            model->gemv_fixed_us + model->gemv_row_us * (c->rows - 1) + overlapped(memory, computing, model->overlap),
        .reason = swap_ab ? "B has one row only: each row of A passes it once, through integer dot products"
                          : "A has a few rows only: each row of B passes them once, through integer dot products",
        .grid = s.ctas * l,
        .kernel = c->kernel,
        .swap_ab = swap_ab,
        .split_k = 1,
        .tile_m = swap_ab ? SM90_GEMV_TILE_N : c->rows,
        .tile_n = swap_ab ? c->rows : SM90_GEMV_TILE_N,
        .tile_k = SM90_GEMV_STEP_K,
        .stages = c->stages,
    };
    *TILING(gemv_tiling, out) = (gemv_tiling){.schedule = s, .shared_bytes = (int32_t)shared};
    return 1;
}

static int32_t candidates(const sm90_model *model, const device_props *props, const gemm_traits *t,
                          gemm_candidate *out) {
    if (t->a_type != VALUES_E2M1) return 0; /* integer dot products */
    int32_t count = list_one(model, props, t->m, t->n, t->k, t->l, 0, out);
    if (t->m > 1 && t->output_is_column) count += list_one(model, props, t->n, t->m, t->k, t->l, 1, out + count);
    return count;
}

/* A and B exchanged, for a column of results that is written as a row. */
static gemm_problem transposed(const gemm_problem *p) {
    gemm_problem t = *p;
    t.m = p->n, t.n = p->m;
    t.a = p->b, t.b = p->a;
    t.a_pitch = p->b_pitch, t.b_pitch = p->a_pitch;
    t.a_batch = p->b_batch, t.b_batch = p->a_batch;
    t.scale_a = p->scale_b, t.scale_b = p->scale_a;
    t.scale_a_pitch = p->scale_b_pitch, t.scale_b_pitch = p->scale_a_pitch;
    t.scale_a_batch = p->scale_b_batch, t.scale_b_batch = p->scale_a_batch;
    t.alpha_stride = 0; /* the alpha of the only column is that of every element */
    return t;
}

static void add_launch(const gemm_problem *p, const gemm_candidate *c, const sm90_gemv_schedule *s, launch_plan *out) {
    launch_step *step = add_step(out, c->kernel, c->grid, TILING(const gemv_tiling, c)->shared_bytes);
    *(gemm_problem *)add_param(out, step, sizeof *p) = *p;
    *(sm90_gemv_schedule *)add_param(out, step, sizeof *s) = *s;
}

static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    const gemm_problem *p = &problem->gemm;
    (void)props, (void)workspace;
    const gemm_problem exchanged = c->swap_ab ? transposed(p) : *p;
    add_launch(&exchanged, c, &TILING(const gemv_tiling, c)->schedule, out);
}

/* ---- A quantized in the kernel ---- */

/* Whether the kernel's FAST code takes the product. */
static int is_fast(const gemm_problem *p) {
    return p->scale_layout == NVFP4_128X4 && p->aligned16 && p->k % 32 == 0 &&
           (p->b_pitch | p->scale_b_pitch) >> 26 == 0;
}

static int32_t with_quantizer(const device_props *props, const quantize_gemm_problem *p, const gemm_candidate *of,
                              gemm_candidate *out) {
    const quantize_problem *q = &p->q;
    if (of->kernel != KERNEL_sm90_gemv_1 || of->swap_ab || !is_fast(&p->g)) return 0;
    if (q->k > SM90_GEMV_QUANTIZE_MAX_K) return 0;
    if (of->grid > props->sm_count) return 0; /* an SM would quantize A again for its next CTA */
    for (size_t i = 0; i < sizeof quantizing / sizeof *quantizing; i++) {
        const gemv_config *c = &quantizing[i].config;
        const sm90_gemv_schedule *s = &TILING(const gemv_tiling, of)->schedule;
        if (quantizing[i].x_type != q->x_type) continue;
        const int64_t shared =
            shared_bytes(props, c, s, q->l, SM90_GEMV_A_BYTES((int64_t)1, s->steps) + SM90_GEMV_X_BYTES(s->steps));
        if (shared > props->shared_per_block) return 0;
        *out = *of;
        out->kernel = c->kernel;
        out->reason = "A has one row only: each CTA quantizes it while its first loads of B are under way";
        TILING(gemv_tiling, out)->shared_bytes = (int32_t)shared;
        return 1;
    }
    return 0;
}

static void build_quantizing(const device_props *props, const product_problem *problem, const gemm_candidate *c,
                             void *workspace, launch_plan *out) {
    (void)props, (void)workspace;
    const quantize_problem *q = &problem->quantize_gemm.q;
    gemm_problem of_x = problem->quantize_gemm.g;
    sm90_gemv_schedule s = TILING(const gemv_tiling, c)->schedule;
    of_x.a = q->x, of_x.a_pitch = q->x_pitch, of_x.a_batch = q->x_batch;
    of_x.a_type = q->x_type, of_x.scale_a = NULL;
    s.global_scale = q->global_scale, s.global_value = q->global_value;
    add_launch(&of_x, c, &s, out);
}

const sm90_kind sm90_gemv_kind = {
    .product_kind = PRODUCT_GEMM, .candidates = candidates, .with_quantizer = with_quantizer, .build = build};
const sm90_kind sm90_gemv_quantize_kind = {.product_kind = PRODUCT_KINDS, .build = build_quantizing};
