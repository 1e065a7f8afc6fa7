/* The rules of quantization, its inverse, fused and global scales, and changes of scale layout. */
#include <float.h>

#include "api/row_op.h"
#include "api/rules.h"
#include "common/error.h"
#include "common/group_blocks.h"
#include "common/math.h"

enum { BLOCK_COLUMNS = 16 };

/* quantize divides by the global scale. A scale in device memory is not read: it has to keep the rule by itself. */
static nvfp4_status check_divisor(const nvfp4_tensor *g, float global_value) {
    if (!absent(g) && (g->device != NVFP4_HOST || !g->data)) return NVFP4_OK;
    for (int64_t i = 0, count = absent(g) ? 1 : element_count(g); i < count; i++) {
        const float value = absent(g) ? global_value : ((const float *)g->data)[i];
        if (!(value > 0.0f && value <= FLT_MAX))
            return REJECT("global_scale", ("is %g", (double)value), ("must be positive and finite"));
    }
    return NVFP4_OK;
}

/* One number, one a row of x, or one a group. ends: NULL or absent where there are no groups. */
static nvfp4_status check_global_scale(const checked_call *c, const nvfp4_tensor *g, const nvfp4_tensor *ends,
                                       const matrix *x, int32_t *global_by) {
    const int64_t count = element_count(g), rows = x->l * x->rows;
    *global_by = GLOBAL_BY_CALL;
    if (absent(g)) return NVFP4_OK;
    if (count != 1) {
        const int has_groups = ends && !absent(ends);
        const int by_group = has_groups && g->ndim == 1 && count == ends->shape[0];
        const int by_row = count == rows && (!has_groups || (g->ndim == 2 && g->shape[1] == 1));
        if (has_groups && !by_group && !by_row)
            return REJECT(argument_name(c, g), ELEMENTS_OF(g),
                          ("must have 1, be [E] = [%lld], or [R, 1] = [%lld, 1] for rows", (long long)ends->shape[0],
                           (long long)rows));
        if (!by_group && !by_row)
            return REJECT(argument_name(c, g), ("has %lld elements", (long long)count),
                          ("must have 1, or one a row: %lld", (long long)rows));
        if (!is_contiguous(g))
            return REJECT(argument_name(c, g), ("is not contiguous"), ("must be: pass a copy, .contiguous()"));
        *global_by = by_group ? GLOBAL_BY_GROUP : GLOBAL_BY_ROW;
    }
    return check_alignment(c, g, 4);
}

/* How the rows of a result follow from those of x: T rows, whose scales have `scale_rows` rows in the 128x4 layout. */
typedef struct result_rows {
    int64_t t, scale_rows;
    char name; /* of T */
} result_rows;

/* x, of which data and scales are read or written. Rows of x lie any distance apart where is_strided. */
static nvfp4_status check_x(const checked_call *c, const nvfp4_quantize_args *args, direction use, int is_strided,
                            matrix *x) {
    nvfp4_status status = check_layout(args->scale_layout);
    if (!status) status = check_block_scale(args->block_scale);
    if (!status)
        status = (is_strided ? check_strided_matrix : check_matrix)(c, &args->x, "[R, K]", "[L, R, K]", use, x);
    if (status || x->columns % 16 == 0) return status;
    return REJECT(use == WRITTEN ? "data" : argument_name(c, &args->x), ("K is %lld", (long long)x->columns),
                  ("must be a multiple of 16"));
}

/* Data and scales of a checked x, either of which is written, and the global scale. */
static nvfp4_status check_data(const checked_call *c, const nvfp4_quantize_args *args, direction x_use, const matrix *x,
                               result_rows result, const nvfp4_tensor *ends, quantize_problem *p) {
    const direction data_use = x_use == WRITTEN ? READ_ONLY : WRITTEN;
    matrix data;
    *p = (quantize_problem){
        .rows = result.t,
        .k = x->columns,
        .l = x->l,
        .x_pitch = x->pitch,
        .x_batch = x->batch,
        .x_type = (int32_t)args->x.dtype,
        .scale_layout = (int32_t)args->scale_layout,
        .block_scale = (int32_t)args->block_scale,
    };
    nvfp4_status status = check_values(c, &args->data, "[R, K/2]", "[L, R, K/2]", data_use, &data);
    if (status) return status;
    if (args->data.ndim != args->x.ndim || data.l != x->l || data.rows != result.t || data.columns * 2 != x->columns)
        return REJECT("data",
                      ("is %lld x %lld x %lld", (long long)data.l, (long long)data.rows, (long long)data.columns),
                      ("%s needs L x %c x K/2 = %lld x %lld x %lld in %d dimensions", argument_name(c, &args->x),
                       result.name, (long long)x->l, (long long)result.t, (long long)x->columns / 2, args->x.ndim));
    p->data_pitch = data.pitch;
    p->data_batch = data.batch;
    status = check_scale(c, &args->scale, args->scale_layout, x->l,
                         args->scale_layout == NVFP4_LINEAR ? result.t : result.scale_rows, x->columns / 16, data_use,
                         &p->scale_pitch, &p->scale_batch);
    if (!status) status = check_alignment(c, &args->x, dtype_bytes(args->x.dtype));
    p->global_value = args->global_value;
    p->global_scale = absent(&args->global_scale) ? NULL : args->global_scale.data;
    if (!status) status = check_global_scale(c, &args->global_scale, ends, x, &p->global_by);
    if (!status && x_use == READ_ONLY) status = check_divisor(&args->global_scale, args->global_value);
    return status;
}

/* The blocks of args->x and their data and scales, either of which is written. */
static nvfp4_status check_blocks(const checked_call *c, direction x_use, quantize_problem *p) {
    const nvfp4_quantize_args *args = c->args;
    matrix x;
    nvfp4_status status = check_x(c, args, x_use, 0, &x);
    return status ? status : check_data(c, args, x_use, &x, (result_rows){x.rows, x.rows, 'R'}, NULL, p);
}

static int is_empty(const quantize_problem *p) {
    return p->l == 0 || p->rows == 0 || p->k == 0;
}

nvfp4_status check_quantize(const checked_call *c, prepared_call *call) {
    quantize_problem *p = &call->problem.row_op.quantize;
    nvfp4_status status = check_blocks(c, READ_ONLY, p);
    call->is_empty = is_empty(p);
    return status;
}

/* Numbers in device memory are not read: as of check_divisor. */
static nvfp4_status check_importance(const checked_call *c, const nvfp4_tensor *t, int64_t k) {
    nvfp4_status status = check_vector(c, t, 'K', k, 0);
    if (status || t->device != NVFP4_HOST || !t->data) return status;
    for (int64_t i = 0; i < k; i++) {
        const float value = ((const float *)t->data)[i];
        if (!(value >= 0.0f && value <= FLT_MAX))
            return REJECT(argument_name(c, t), ("element %lld is %g", (long long)i, (double)value),
                          ("must be finite and not negative"));
    }
    return NVFP4_OK;
}

nvfp4_status check_weighted_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_weighted_quantize_args *args = c->args;
    if (args->quantize.block_scale != NVFP4_SEARCH)
        return REJECT("block_scale", ("is %d", (int)args->quantize.block_scale),
                      ("must be search (%d) with importance", NVFP4_SEARCH));
    nvfp4_status status = check_quantize(c, call);
    return status ? status : check_importance(c, &args->importance, call->problem.row_op.quantize.k);
}

/* 16 columns of fp32, of N rows or of 16. */
static nvfp4_status check_columns(const checked_call *c, const nvfp4_tensor *t, const char *shape, int64_t rows,
                                  direction use, matrix *x) {
    nvfp4_status status = check_strided_matrix(c, t, shape, shape, use, x);
    if (status) return status;
    if (t->ndim != 2) return REJECT(argument_name(c, t), ("has %d dimensions", t->ndim), ("must have 2 (%s)", shape));
    if (x->columns != BLOCK_COLUMNS || (rows >= 0 && x->rows != rows))
        return REJECT(argument_name(c, t), ("is %lld x %lld", (long long)x->rows, (long long)x->columns),
                      ("must be %s%s", shape, rows >= 0 ? ", N as of x" : ""));
    return check_alignment(c, t, 4);
}

nvfp4_status check_gptq_block(const checked_call *c, prepared_call *call) {
    const nvfp4_gptq_block_args *args = c->args;
    const nvfp4_tensor *g = &args->global_scale;
    gptq_problem *p = &call->problem.row_op.gptq;
    matrix x, u, data, error;
    int64_t scale_batch;
    *p = (gptq_problem){.global_value = args->global_value, .global_scale = absent(g) ? NULL : g->data};
    nvfp4_status status = check_columns(c, &args->x, "[N, 16]", -1, READ_ONLY, &x);
    if (!status) status = check_columns(c, &args->u, "[16, 16]", BLOCK_COLUMNS, READ_ONLY, &u);
    if (!status) status = check_values(c, &args->data, "[N, 8]", "[N, 8]", WRITTEN, &data);
    if (status) return status;
    if (args->data.ndim != 2 || data.rows != x.rows || data.columns != BLOCK_COLUMNS / 2)
        return REJECT("data", ("is %lld x %lld", (long long)data.rows, (long long)data.columns),
                      ("must be [N, 8] = %lld x 8", (long long)x.rows));
    status = check_scale(c, &args->scale, NVFP4_LINEAR, 1, x.rows, 1, WRITTEN, &p->scale_pitch, &scale_batch);
    if (!status) status = check_columns(c, &args->error, "[N, 16]", x.rows, WRITTEN, &error);
    if (!status) status = check_global_scale(c, g, NULL, &x, &p->global_by);
    if (!status) status = check_divisor(g, args->global_value);
    if (status) return status;
    p->rows = x.rows;
    p->x_pitch = x.pitch;
    p->u_pitch = u.pitch;
    p->data_pitch = data.pitch;
    p->error_pitch = error.pitch;
    call->is_empty = x.rows == 0;
    return NVFP4_OK;
}

nvfp4_status check_dequantize(const checked_call *c, prepared_call *call) {
    quantize_problem *p = &call->problem.row_op.quantize;
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
    norm_problem *p = &call->problem.row_op.norm;
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

/* ---- rows in the order of their groups ---- */

static nvfp4_status check_indices(const checked_call *c, const nvfp4_tensor *t, char size) {
    if (t->ndim != 1)
        return REJECT(argument_name(c, t), ("has %d dimensions", t->ndim), ("must be a vector, [%c]", size));
    return check_vector(c, t, size, t->shape[0], 0);
}

/* ends, rows (NULL: the operation has none) and scale_rows, for x rows of x. */
static nvfp4_status check_groups(const checked_call *c, const nvfp4_tensor *ends, const nvfp4_tensor *rows,
                                 const nvfp4_tensor *scale_rows, const matrix *x, grouped_quantize_problem *p,
                                 result_rows *result) {
    *p = (grouped_quantize_problem){
        .x_rows = x->rows, .groups = 1, .activation = NO_ACTIVATION, .limit = INFINITY, .alpha = 1.702f};
    *result = (result_rows){x->rows, 0, 'R'};
    nvfp4_status status = NVFP4_OK;
    if (!absent(ends)) {
        status = check_indices(c, ends, 'E');
        if (status) return status;
        const int64_t groups = ends->shape[0];
        if (groups < 1 || groups > NVFP4_MAX_GROUPS)
            return REJECT(argument_name(c, ends), ("E is %lld", (long long)groups),
                          ("must be between 1 and %d", NVFP4_MAX_GROUPS));
        p->groups = (int32_t)groups;
    }
    if (rows && !absent(rows)) {
        status = check_indices(c, rows, 'T');
        *result = (result_rows){rows->shape[0], 0, 'T'};
    }
    result->scale_rows = SCALE_BLOCK_ROWS * max_group_tiles(result->t, p->groups, SCALE_BLOCK_ROWS);
    if (!status && result->scale_rows > MAX_SIZE) /* scale_rows are int32 */
        return REJECT("T", ("is %lld, with %lld rows of scales", (long long)result->t, (long long)result->scale_rows),
                      ("must have at most %d", MAX_SIZE));
    return status ? status : check_written_vector(c, scale_rows, "E", p->groups);
}

nvfp4_status check_grouped_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_grouped_quantize_args *args = c->args;
    grouped_quantize_problem *p = &call->problem.row_op.grouped;
    result_rows result;
    matrix x;
    if (args->quantize.x.ndim != 2)
        return REJECT("x", ("has %d dimensions", args->quantize.x.ndim), ("must have 2 ([R, K]) with ends or rows"));
    if (args->quantize.block_scale == NVFP4_SEARCH)
        return REJECT("block_scale", ("is search (%d)", NVFP4_SEARCH),
                      ("must be amax6 (%d) or four_over_six (%d) with ends or rows", NVFP4_AMAX6, NVFP4_FOUR_OVER_SIX));
    nvfp4_status status = check_x(c, &args->quantize, READ_ONLY, 0, &x);
    if (!status) status = check_groups(c, &args->ends, &args->rows, &args->scale_rows, &x, p, &result);
    call->is_empty = 0; /* scale_rows of nothing are zeros */
    return status ? status : check_data(c, &args->quantize, READ_ONLY, &x, result, &args->ends, &p->q);
}

/* ---- gated activations ---- */

nvfp4_status check_gated_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_gated_quantize_args *args = c->args;
    const nvfp4_tensor *gate = &args->quantize.x, *up = &args->up;
    grouped_quantize_problem *p = &call->problem.row_op.grouped;
    result_rows result;
    matrix x, u = {0};
    nvfp4_status status = check_amax6(args->quantize.block_scale);
    if (!status) status = check_gate_and_up((int32_t)args->activation, up, args->limit, args->alpha);
    if (!status) status = check_x(c, &args->quantize, READ_ONLY, 1, &x);
    if (status) return status;
    if (!absent(&args->ends) && gate->ndim != 2)
        return REJECT("gate", ("has %d dimensions", gate->ndim), ("must have 2 ([R, N]) with ends"));
    if (!absent(up)) status = check_up(c, up, gate, &x, &u);
    if (!status) status = check_groups(c, &args->ends, NULL, &args->scale_rows, &x, p, &result);
    if (!status) status = check_data(c, &args->quantize, READ_ONLY, &x, result, &args->ends, &p->q);
    p->up_pitch = u.pitch;
    p->up_batch = u.batch;
    p->limit = args->limit;
    p->alpha = args->alpha;
    p->activation = (int32_t)args->activation;
    call->is_empty = 0;
    return status;
}

/* A gated_quantize of the halves of x. */
nvfp4_status check_silu_mul_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_quantize_args *args = c->args;
    const nvfp4_tensor *x = &args->x;
    grouped_quantize_problem *p = &call->problem.row_op.grouped;
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
    *p = (grouped_quantize_problem){
        .x_rows = whole.rows, .groups = 1, .activation = NVFP4_SILU, .limit = INFINITY, .alpha = 1.702f};
    status = check_blocks(&gates, READ_ONLY, &p->q);
    p->up_pitch = p->q.x_pitch;
    p->up_batch = p->q.x_batch;
    call->is_empty = is_empty(&p->q);
    return status;
}

/* ---- global scales ---- */

/* An fp32 scalar. */
static nvfp4_status check_scalar(const checked_call *c, const nvfp4_tensor *t) {
    if (element_count(t) != 1)
        return REJECT(argument_name(c, t), ("has %lld elements", (long long)element_count(t)), ("must have 1"));
    return check_alignment(c, t, 4);
}

nvfp4_status check_amax_scale(const checked_call *c, prepared_call *call) {
    const nvfp4_amax_scale_args *args = c->args;
    const nvfp4_tensor *x = &args->x;
    matrix blocks;
    nvfp4_status status = check_block_scale(args->block_scale);
    if (!status) status = check_matrix(c, x, "[R, K]", "[L, R, K]", READ_ONLY, &blocks);
    if (!status) status = check_alignment(c, x, dtype_bytes(x->dtype));
    if (status) return status;
    if (args->by_row > 1) return REJECT("by_row", ("is %u", args->by_row), ("must be 0 or 1"));
    if (args->by_row && x->ndim != 2)
        return REJECT("x", ("has %d dimensions", x->ndim), ("must have 2 ([R, K]) for a scale of each row"));
    status = args->by_row ? check_written_vector(c, &args->scale, "R", blocks.rows) : check_scalar(c, &args->scale);
    if (status) return status;
    amax_problem *p = &call->problem.row_op.amax;
    *p = (amax_problem){.rows = blocks.rows,
                        .l = blocks.l,
                        .x_bytes = blocks.columns * dtype_bytes(x->dtype),
                        .x_pitch = blocks.pitch,
                        .x_batch = blocks.batch,
                        .divisor = (args->block_scale == NVFP4_FOUR_OVER_SIX ? 256.0 : 448.0) * 6.0,
                        .x_type = (int32_t)x->dtype,
                        .by_row = (int32_t)args->by_row};
    if (is_contiguous(x) && !args->by_row) { /* one row */
        p->x_bytes *= blocks.rows * blocks.l;
        p->rows = p->l = 1;
    }
    p->chunks = ceil_div(p->x_bytes, AMAX_CHUNK);
    call->is_empty = args->by_row && blocks.rows == 0; /* the scale of nothing is 1 */
    return NVFP4_OK;
}

/* ---- changes of scale layout ---- */

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
    call->problem.row_op.swizzle = (swizzle_problem){
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
