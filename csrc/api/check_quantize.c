/* The rules of quantization, its inverse, fused and global scales, and changes of scale layout. */
#include <float.h>

#include "api/conversion.h"
#include "api/rules.h"
#include "common/error.h"
#include "common/math.h"

/* An fp32 scalar. */
static nvfp4_status check_scalar(const checked_call *c, const nvfp4_tensor *t) {
    if (element_count(t) != 1)
        return REJECT(argument_name(c, t), ("has %lld elements", (long long)element_count(t)), ("must have 1"));
    return check_alignment(c, t, 4);
}

/* quantize divides by the global scale. A scale in device memory is not read: it has to keep the rule by itself. */
static nvfp4_status check_divisor(const nvfp4_quantize_args *args) {
    const nvfp4_tensor *g = &args->global_scale;
    if (!absent(g) && (g->device != NVFP4_HOST || !g->data)) return NVFP4_OK;
    const float value = absent(g) ? args->global_value : *(const float *)g->data;
    if (value > 0.0f && value <= FLT_MAX) return NVFP4_OK;
    return REJECT("global_scale", ("is %g", (double)value), ("must be positive and finite"));
}

/* The blocks of args->x and their data and scales, either of which is written. */
static nvfp4_status check_blocks(const checked_call *c, direction x_use, quantize_problem *p) {
    const nvfp4_quantize_args *args = c->args;
    const nvfp4_tensor *x = &args->x, *g = &args->global_scale;
    const direction data_use = x_use == WRITTEN ? READ_ONLY : WRITTEN;
    const char *x_name = argument_name(c, x);
    matrix blocks, data;
    *p = (quantize_problem){.global_value = args->global_value,
                            .scale_layout = (int32_t)args->scale_layout,
                            .block_scale = (int32_t)args->block_scale};
    nvfp4_status status = check_layout(args->scale_layout);
    if (!status) status = check_block_scale(args->block_scale);
    if (!status) status = check_matrix(c, x, "[R, K]", "[L, R, K]", x_use, &blocks);
    if (status) return status;
    if (blocks.columns % 16 != 0)
        return REJECT(x_use == WRITTEN ? "data" : x_name, ("K is %lld", (long long)blocks.columns),
                      ("must be a multiple of 16"));
    status = check_values(c, &args->data, "[R, K/2]", "[L, R, K/2]", data_use, &data);
    if (status) return status;
    if (args->data.ndim != x->ndim || data.l != blocks.l || data.rows != blocks.rows ||
        data.columns * 2 != blocks.columns)
        return REJECT("data",
                      ("is %lld x %lld x %lld", (long long)data.l, (long long)data.rows, (long long)data.columns),
                      ("%s needs L x R x K/2 = %lld x %lld x %lld in %d dimensions", x_name, (long long)blocks.l,
                       (long long)blocks.rows, (long long)blocks.columns / 2, x->ndim));
    status = check_scale(c, &args->scale, args->scale_layout, blocks.l, blocks.rows, blocks.columns / 16, data_use,
                         &p->scale_pitch, &p->scale_batch);
    if (!status) status = check_alignment(c, x, dtype_bytes(x->dtype));
    if (!status && !absent(g)) status = check_scalar(c, g);
    if (!status && x_use == READ_ONLY) status = check_divisor(args);
    p->rows = blocks.rows;
    p->k = blocks.columns;
    p->l = blocks.l;
    p->x_pitch = blocks.pitch;
    p->x_batch = blocks.batch;
    p->x_type = (int32_t)x->dtype;
    p->data_pitch = data.pitch;
    p->data_batch = data.batch;
    p->global_scale = absent(g) ? NULL : g->data;
    return status;
}

static int is_empty(const quantize_problem *p) {
    return p->l == 0 || p->rows == 0 || p->k == 0;
}

nvfp4_status check_quantize(const checked_call *c, prepared_call *call) {
    quantize_problem *p = &call->problem.conversion.quantize;
    nvfp4_status status = check_blocks(c, READ_ONLY, p);
    call->is_empty = is_empty(p);
    return status;
}

nvfp4_status check_dequantize(const checked_call *c, prepared_call *call) {
    quantize_problem *p = &call->problem.conversion.quantize;
    nvfp4_status status = check_blocks(c, WRITTEN, p);
    call->is_empty = is_empty(p);
    return status;
}

/* A fused quantizer has one rule for its block scales. */
static nvfp4_status check_amax6(nvfp4_block_scale block_scale) {
    if (block_scale == NVFP4_AMAX6) return NVFP4_OK;
    return REJECT("block_scale", ("is %d", (int)block_scale), ("must be amax6 (%d)", NVFP4_AMAX6));
}

static nvfp4_status check_weight(const checked_call *c, const nvfp4_tensor *weight, const nvfp4_tensor *x, int64_t k) {
    if (weight->dtype != NVFP4_FP32 && weight->dtype != x->dtype)
        return REJECT(argument_name(c, weight), ("dtype is %s", nvfp4_dtype_name(weight->dtype)),
                      ("must be float32 or that of x, %s", nvfp4_dtype_name(x->dtype)));
    return check_vector(c, weight, 'K', k, 0);
}

/* The residual has the shape and the dtype of x. */
static nvfp4_status check_residual(const checked_call *c, const nvfp4_tensor *residual, const nvfp4_tensor *x,
                                   const quantize_problem *q, matrix *r) {
    if (residual->dtype != x->dtype)
        return REJECT(argument_name(c, residual), ("dtype is %s", nvfp4_dtype_name(residual->dtype)),
                      ("must be that of x, %s", nvfp4_dtype_name(x->dtype)));
    nvfp4_status status = check_matrix(c, residual, "[R, K]", "[L, R, K]", WRITTEN, r);
    if (status) return status;
    if (residual->ndim != x->ndim || r->l != q->l || r->rows != q->rows || r->columns != q->k)
        return REJECT(argument_name(c, residual),
                      ("is %lld x %lld x %lld", (long long)r->l, (long long)r->rows, (long long)r->columns),
                      ("must be as x, %lld x %lld x %lld, in %d dimensions", (long long)q->l, (long long)q->rows,
                       (long long)q->k, x->ndim));
    return check_alignment(c, residual, dtype_bytes(residual->dtype));
}

nvfp4_status check_rms_norm_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_rms_norm_quantize_args *args = c->args;
    const nvfp4_tensor *x = &args->quantize.x, *residual = &args->residual;
    norm_problem *p = &call->problem.conversion.norm;
    matrix r = {0};
    *p = (norm_problem){.weight = NULL};
    nvfp4_status status = check_amax6(args->quantize.block_scale);
    if (!status) status = check_blocks(c, READ_ONLY, &p->q);
    if (status) return status;
    if (!(args->eps >= 0.0f && args->eps <= FLT_MAX))
        return REJECT("eps", ("is %g", (double)args->eps), ("must be finite and not negative"));
    status = check_weight(c, &args->weight, x, p->q.k);
    if (!status && !absent(residual)) status = check_residual(c, residual, x, &p->q, &r);
    p->weight_type = (int32_t)args->weight.dtype;
    p->eps = args->eps;
    p->residual_pitch = r.pitch;
    p->residual_batch = r.batch;
    call->is_empty = is_empty(&p->q);
    return status;
}

nvfp4_status check_silu_mul_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_quantize_args *args = c->args;
    const nvfp4_tensor *x = &args->x;
    quantize_problem *p = &call->problem.conversion.quantize;
    matrix whole;
    nvfp4_status status = check_amax6(args->block_scale);
    if (!status) status = check_matrix(c, x, "[R, 2 K]", "[L, R, 2 K]", READ_ONLY, &whole);
    if (status) return status;
    if (whole.columns % 32 != 0)
        return REJECT(argument_name(c, x), ("has %lld columns", (long long)whole.columns),
                      ("must have 2 K, K a multiple of 16"));
    nvfp4_quantize_args half = *args; /* x: the gates */
    half.x.shape[x->ndim - 1] /= 2;
    const checked_call gates = {c->op, &half};
    status = check_blocks(&gates, READ_ONLY, p);
    call->is_empty = is_empty(p);
    return status;
}

nvfp4_status check_amax_scale(const checked_call *c, prepared_call *call) {
    const nvfp4_amax_scale_args *args = c->args;
    const nvfp4_tensor *x = &args->x;
    matrix blocks;
    nvfp4_status status = check_block_scale(args->block_scale);
    if (!status) status = check_matrix(c, x, "[R, K]", "[L, R, K]", READ_ONLY, &blocks);
    if (!status) status = check_alignment(c, x, dtype_bytes(x->dtype));
    if (!status) status = check_scalar(c, &args->scale);
    if (status) return status;
    amax_problem *p = &call->problem.conversion.amax;
    *p = (amax_problem){.rows = blocks.rows,
                        .l = blocks.l,
                        .x_bytes = blocks.columns * dtype_bytes(x->dtype),
                        .x_pitch = blocks.pitch,
                        .x_batch = blocks.batch,
                        .divisor = (args->block_scale == NVFP4_FOUR_OVER_SIX ? 256.0 : 448.0) * 6.0,
                        .x_type = (int32_t)x->dtype};
    if (is_contiguous(x)) { /* one row */
        p->x_bytes *= blocks.rows * blocks.l;
        p->rows = p->l = 1;
    }
    p->chunks = ceil_div(p->x_bytes, AMAX_CHUNK);
    call->is_empty = 0; /* the scale of nothing is 1 */
    return NVFP4_OK;
}

/* Contiguous scales of x->l batches. Of three dimensions the first counts the batches. */
static nvfp4_status check_swizzled(const checked_call *c, const nvfp4_tensor *t, const matrix *x) {
    const int batched = t->ndim == 3 && t->shape[0] == x->l;
    int64_t have = 1, needed = swizzled_bytes(x->rows, x->columns);
    for (int i = batched; i < t->ndim; i++) have *= t->shape[i];
    if (!batched && __builtin_mul_overflow(x->l, needed, &needed)) needed = INT64_MAX; /* no tensor has it */
    if (have != needed)
        return REJECT(argument_name(c, t), ("has %lld bytes%s", (long long)have, batched ? " a batch" : ""),
                      ("the 128x4 layout of %lld rows and %lld columns has %lld", (long long)x->rows,
                       (long long)x->columns, (long long)needed));
    if (!is_contiguous(t)) return REJECT(argument_name(c, t), ("is not contiguous"), ("the 128x4 layout must be"));
    return check_alignment(c, t, 16);
}

static nvfp4_status check_layouts(const checked_call *c, direction linear_use, prepared_call *call) {
    const nvfp4_swizzle_args *args = c->args;
    matrix x;
    nvfp4_status status = check_matrix(c, &args->linear, "[R, S]", "[L, R, S]", linear_use, &x);
    if (!status) status = check_swizzled(c, &args->swizzled, &x);
    if (status) return status;
    call->problem.conversion.swizzle = (swizzle_problem){
        .rows = x.rows, .columns = x.columns, .l = x.l, .linear_pitch = x.pitch, .linear_batch = x.batch};
    call->is_empty = x.l == 0 || x.rows == 0 || x.columns == 0;
    return NVFP4_OK;
}

nvfp4_status check_swizzle(const checked_call *c, prepared_call *call) {
    return check_layouts(c, READ_ONLY, call);
}

nvfp4_status check_unswizzle(const checked_call *c, prepared_call *call) {
    return check_layouts(c, WRITTEN, call);
}
