/* A few rows of A, NVFP4 or 16-bit, with mma.sync: which instantiation, and how units of B are spread over CTAs
 * (units/config.h).
 *
 * The model: B passes at the rate of DRAM, while the busiest CTA takes a time in proportion to the pairs of units of
 * its steps. */
#include "kernels/units/plan.h"

#include "common/error.h"
#include "plan/reject.h"

static const int32_t a_types[] = {VALUES_E2M1, NVFP4_FP16, NVFP4_BF16};

typedef struct IS_TILING units_tiling {
    int32_t ctas, cta_units, larger_ctas, steps, pass_pairs; /* as in units_schedule */
    int32_t pairs;                                           /* of the busiest CTA */
    int32_t shared_bytes;
} units_tiling;

/* 0: the sums of a pair have no room. A pass has few pairs: between the steps of a row its neighbouring bytes should
 * still lie in DRAM's open pages (28672x4096 on an H100, 8 rows: 34.3 us back to back with 14 pairs a pass, 33.3 with
 * 7; 57344x8192: 113.6 with 4, 110.4 with 7). */
static int tile(const device_props *props, const gemm_traits *t, const units_kernel *c, units_tiling *tiling) {
    const int64_t wanted = props->sm_count > t->l ? props->sm_count / t->l : 1, units = UNITS_ALL(t->n);
    const int64_t ctas = min_int(units, wanted), larger = units % ctas;
    const int32_t stages = UNITS_STAGES_BYTES(c->a_units, c->a, c->stages, c->a_stages);
    const int32_t of_pair = UNITS_SUMS_BYTES(c->a_units);
    const int64_t room = min_int((props->shared_per_block - stages) / of_pair, UNITS_PASS_PAIRS);
    if (room < 1) return 0;
    const int64_t pairs = ceil_div(units / ctas + (larger > 0), 2), passes = ceil_div(pairs, room);
    *tiling = (units_tiling){.ctas = (int32_t)ctas,
                             .cta_units = (int32_t)(units / ctas),
                             .larger_ctas = (int32_t)larger,
                             .steps = (int32_t)ceil_div(t->k, UNITS_STEP_K),
                             .pass_pairs = (int32_t)ceil_div(pairs, passes),
                             .pairs = (int32_t)pairs};
    tiling->shared_bytes = stages + tiling->pass_pairs * of_pair;
    return 1;
}

/* Until B has come from DRAM, while lines of the L2 are written back. */
static double memory_us(const units_model *m, double bytes) {
    const double written_back = bytes < m->l2_bytes ? bytes : m->l2_bytes;
    return (bytes + m->dirty * written_back) / m->dram_tb_s * 1e-6;
}

static double clocks_us(const units_model *m, double clocks) {
    return clocks * 1e-3 / m->clock_ghz;
}

static double time_us(const units_model *model, const device_props *props, const gemm_traits *t, const units_kernel *c,
                      const units_tiling *tiling) {
    const double bytes = (double)t->l * (double)t->n * (double)t->k * UNITS_VALUE_BYTES;
    const double rounds = (double)ceil_div(tiling->ctas * t->l, props->sm_count);
    const double warp_steps = (double)ceil_div(tiling->steps, UNITS_WARPS);
    const double pair = model->pair_clk * (c->a_units == 2 ? model->rows_clk : 1.0) *
                        (t->a_type == VALUES_E2M1 ? 1.0 : model->a16_loss);
    const double step = clocks_us(model, UNITS_WARPS * tiling->pairs * pair);
    const double passes = (double)ceil_div(tiling->pairs, tiling->pass_pairs);
    const double lines = t->k % UNITS_STEP_K ? model->line_loss : 1.0;
    const double a_bytes = passes * (double)t->m * (t->a_type == VALUES_E2M1 ? UNITS_VALUE_BYTES : 2.0);
    const double arriving = rounds * (double)t->k * (a_bytes + tiling->pairs * 16 * UNITS_VALUE_BYTES);
    const double memory = max_double(lines * memory_us(model, bytes), clocks_us(model, arriving / model->l2_b_clk));
    const double busy = overlapped(memory, rounds * warp_steps * step, model->overlap);
    return model->fixed_us + (c->a_units - 1) * model->rows_us + model->unhidden * step +
           busy * (1.0 + model->pass_loss * (passes - 1.0));
}

int32_t units_candidates(const units_model *model, const units_kernels *kernels, const device_props *props,
                         const gemm_traits *t, gemm_candidate *out) {
    if (!units_reach(t)) return 0;
    int32_t count = 0;
    for (int32_t i = 0; i < kernels->count; i++) {
        const units_kernel *c = &kernels->all[i];
        units_tiling tiling;
        if (t->a_type != a_types[c->a] || t->m > 8 * c->a_units || !tile(props, t, c, &tiling) ||
            tiling.ctas * t->l > INT32_MAX)
            continue;
        out[count] = (gemm_candidate){
            .single_us = time_us(model, props, t, c, &tiling),
            .reason = "A has a few rows only: each warp reads, dequantizes and multiplies a share of K by itself",
            .grid = tiling.ctas * t->l,
            .kernel = c->kernel,
            .swap_ab = 1,
            .split_k = 1,
            .tile_m = 8 * c->a_units,
            .tile_n = 16,
            .tile_k = UNITS_STEP_K,
            .stages = c->stages,
        };
        *TILING(units_tiling, &out[count++]) = tiling;
    }
    return count;
}

/* The clocks are those of sm90/model.h, rounded; of a pair, those that its 4096 values take at 35 a clock
 * (docs/lessons.md), since the fit is of an H200 whose memory brings no more. */
units_model units_model_by_data_sheet(const units_data_sheet *sheet) {
    return (units_model){.clock_ghz = sheet->clock_ghz,
                         .dram_tb_s = sheet->dram_tb_s,
                         .l2_bytes = (double)sheet->l2_bytes,
                         .overlap = 6.0,
                         .dirty = 0.34,
                         .l2_b_clk = sheet->l2_b_clk,
                         .fixed_us = 3.8,
                         .pair_clk = 4096 / 35.0,
                         .rows_clk = 1.33,
                         .rows_us = 0.66,
                         .a16_loss = 1.0,
                         .unhidden = 0.77,
                         .line_loss = 1.12,
                         .pass_loss = 0.01};
}

nvfp4_status reject_units(const char *backend, const gemm_traits *t) {
    const char *type = t->a_type == NVFP4_FP16 ? "float16" : "bfloat16";
    if (!units_reach(t))
        return REJECT_AS(
            NVFP4_UNSUPPORTED, "a",
            ("dtype is %s, which the %s kernels multiply by b with 128x4 scales and rows and batches on 16 "
             "bytes alone, and with K above 0",
             type, backend),
            ("must be uint8 or float4_e2m1fn_x2, or the backend sm80"));
    if (t->product_kind == PRODUCT_GEMM && t->m > UNITS_MAX_M)
        return REJECT_AS(NVFP4_UNSUPPORTED, "a",
                         ("dtype is %s and M is %lld, where the %s kernels multiply up to %d rows of that type", type,
                          (long long)t->m, backend, UNITS_MAX_M),
                         ("must be uint8 or float4_e2m1fn_x2, or the backend sm80"));
    return reject_tiles(backend, t);
}

/* Whole 128-row blocks of B in boxes of `rows` rows of the four quarters. 32 rows of an existing B of 128 are less than
 * TENSOR_STRIDE_END apart. */
static tensor_layout quarters_layout(const gemm_problem *p, uint32_t rows) {
    tensor_layout t = values_layout(p, 1, p->l, UNITS_STEP_K / 2, (int32_t)rows, 128);
    t.rank = 4;
    t.dims[1] = 32, t.dims[2] = (uint64_t)p->n / 128 * 4, t.dims[3] = (uint64_t)p->l;
    t.strides[2] = t.strides[1];
    t.strides[0] = (uint64_t)p->b_pitch, t.strides[1] = 32 * (uint64_t)p->b_pitch;
    t.box[2] = 4, t.box[3] = 1;
    return t;
}

static tensor_layout scales_layout(const gemm_problem *p) {
    const int64_t blocks = ceil_div(p->n, 128);
    return (tensor_layout){
        .name = "scale_b",
        .data = p->scale_b,
        .element_bytes = 1,
        .rank = 4,
        .dims = {512, (uint64_t)ceil_div(p->k, 64), (uint64_t)blocks, (uint64_t)p->l},
        .strides = {512, tensor_stride(blocks, p->scale_b_pitch), tensor_stride(p->l, p->scale_b_batch)},
        .box = {64, UNITS_ATOMS, 1, 1},
    };
}

void units_maps(const gemm_problem *p, launch_plan *out, tensor_map *pairs, tensor_map *units, tensor_map *tail,
                tensor_map *scales) {
    if (p->n >= 128) {
        const tensor_layout of_pairs = quarters_layout(p, 4), of_units = quarters_layout(p, 2);
        add_tensor_map(out, &of_pairs, pairs);
        if (units) add_tensor_map(out, &of_units, units);
    }
    if (p->n % 128) {
        const tensor_layout of_tail = values_layout(p, 1, p->l, UNITS_STEP_K / 2, 4, 128);
        add_tensor_map(out, &of_tail, tail);
    }
    const tensor_layout of_scales = scales_layout(p);
    add_tensor_map(out, &of_scales, scales);
}

int32_t units_target_candidates(const units_target *target, const device_props *props, const gemm_traits *t,
                                gemm_candidate *out) {
    const units_model model = units_model_by_data_sheet(&target->sheet);
    return units_candidates(&model, &target->gemm, props, t, out);
}

static tensor_layout a_layout(const gemm_problem *p) {
    tensor_layout t = values_layout(p, 0, p->l, UNITS_STEP_K / 2, (int32_t)p->m, 128);
    if (p->a_type != VALUES_E2M1) t.element_bytes = 2, t.dims[0] = (uint64_t)p->k, t.box[0] = 64;
    return t;
}

void units_build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                 launch_plan *out) {
    const gemm_problem *p = &problem->gemm;
    (void)workspace;
    const units_tiling *tiling = TILING(const units_tiling, c);
    const cache_policies policies = choose_cache_policies(props, p, 1, tiling->ctas, 1, 0);
    launch_step *step = add_step(out, c->kernel, c->grid, tiling->shared_bytes);
    *(gemm_problem *)add_param(out, step, sizeof *p) = *p;
    units_schedule *s = add_param(out, step, sizeof *s);
    *s = (units_schedule){.a_cache_policy = policies.mma_b,
                          .b_cache_policy = policies.mma_a,
                          .ctas = tiling->ctas,
                          .cta_units = tiling->cta_units,
                          .larger_ctas = tiling->larger_ctas,
                          .full_units = UNITS_FULL((int32_t)p->n),
                          .steps = tiling->steps,
                          .pass_pairs = tiling->pass_pairs,
                          .early_b = p->constant_b};
    units_maps(p, out, &s->b_pairs, &s->b_units, &s->b_tail, &s->b_scales);
    const tensor_layout a = a_layout(p);
    add_tensor_map(out, &a, &s->a);
}
