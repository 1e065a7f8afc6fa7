/* quantize, weighted_quantize and dequantize: rows of the table and rules. The rules of blocks, of global scales and of
 * rows serve the other quantizers too. */
#include "api/quantize.h"

#include <float.h>

#include "common/error.h"

/* ---- what quantizers share ---- */

nvfp4_status check_divisor(const nvfp4_tensor *g, float global_value) {
    if (!absent(g) && (g->device != NVFP4_HOST || !g->data)) return NVFP4_OK;
    for (int64_t i = 0, count = absent(g) ? 1 : element_count(g); i < count; i++) {
        const float value = absent(g) ? global_value : ((const float *)g->data)[i];
        if (!(value > 0.0f && value <= FLT_MAX))
            return REJECT("global_scale", ("is %g", (double)value), ("must be positive and finite"));
    }
    return NVFP4_OK;
}

nvfp4_status check_global_scale(const checked_call *c, const nvfp4_tensor *g, const nvfp4_tensor *ends, const matrix *x,
                                int32_t *global_by) {
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

nvfp4_status check_x(const checked_call *c, const nvfp4_quantize_args *args, direction use, int is_strided, matrix *x) {
    nvfp4_status status = check_layout(args->scale_layout);
    if (!status) status = check_block_scale(args->block_scale);
    if (!status)
        status = (is_strided ? check_strided_matrix : check_matrix)(c, &args->x, "[R, K]", "[L, R, K]", use, x);
    if (status || x->columns % 16 == 0) return status;
    return REJECT(use == WRITTEN ? "data" : argument_name(c, &args->x), ("K is %lld", (long long)x->columns),
                  ("must be a multiple of 16"));
}

nvfp4_status check_data(const checked_call *c, const nvfp4_quantize_args *args, direction x_use, const matrix *x,
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

nvfp4_status check_blocks(const checked_call *c, direction x_use, quantize_problem *p) {
    const nvfp4_quantize_args *args = c->args;
    matrix x;
    nvfp4_status status = check_x(c, args, x_use, 0, &x);
    return status ? status : check_data(c, args, x_use, &x, (result_rows){x.rows, x.rows, 'R'}, NULL, p);
}

nvfp4_status check_amax6(nvfp4_block_scale block_scale) {
    if (block_scale == NVFP4_AMAX6) return NVFP4_OK;
    return REJECT("block_scale", ("is %d", (int)block_scale), ("must be amax6 (%d)", NVFP4_AMAX6));
}

/* ---- quantize ---- */

nvfp4_status check_quantize(const checked_call *c, prepared_call *call) {
    quantize_problem *p = &call->problem.row_op.quantize;
    nvfp4_status status = check_blocks(c, READ_ONLY, p);
    call->is_empty = is_empty(p);
    return status;
}

static void bind_quantize(const checked_call *c, prepared_call *call) {
    bind_blocks(c->args, &call->problem.row_op.quantize);
}

static const operation_tensor quantize_tensors[] = {
    {"x", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    GLOBAL_SCALE,
    DATA_TENSOR,
    SCALE_TENSOR,
};
static const operation_scalar quantize_scalars[] = {
    GLOBAL_VALUE(1),
    SCALE_LAYOUT,
    {"block_scale", SCALAR_BLOCK_SCALE, AT(block_scale), 0, "amax6"},
};
static const operation_result quantize_results[] = DATA_AND_SCALE(2, 3, "x");
const operation operation_quantize = {
    .name = OPERATION(quantize),
    .tensors = TENSORS(quantize_tensors),
    .scalars = SCALARS(quantize_scalars),
    .results = RESULTS(quantize_results),
    .given = RESULTS_NEW,
    .planners = ROW_OP(quantize),
    .check = check_quantize,
    .bind = bind_quantize,
};

/* ---- weighted_quantize ---- */

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

static nvfp4_status check_weighted_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_weighted_quantize_args *args = c->args;
    if (args->quantize.block_scale != NVFP4_SEARCH)
        return REJECT("block_scale", ("is %d", (int)args->quantize.block_scale),
                      ("must be search (%d) with importance", NVFP4_SEARCH));
    nvfp4_status status = check_quantize(c, call);
    return status ? status : check_importance(c, &args->importance, call->problem.row_op.quantize.k);
}

static void bind_weighted_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_weighted_quantize_args *args = c->args;
    quantize_problem *p = &call->problem.row_op.quantize;
    bind_blocks(&args->quantize, p);
    p->importance = args->importance.data;
}

static const operation_tensor weighted_quantize_tensors[] = {
    {"x", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    {"importance", offsetof(nvfp4_weighted_quantize_args, importance), INPUT, HOLDS_FLOAT32, 0, READS_BY_CHECK},
    GLOBAL_SCALE,
    DATA_TENSOR,
    SCALE_TENSOR,
};
static const operation_scalar weighted_quantize_scalars[] = {GLOBAL_VALUE(2), SCALE_LAYOUT};
static const operation_result weighted_quantize_results[] = DATA_AND_SCALE(3, 4, "x");
const operation operation_weighted_quantize = {
    .name = OPERATION(weighted_quantize),
    .tensors = TENSORS(weighted_quantize_tensors),
    .scalars = SCALARS(weighted_quantize_scalars),
    .results = RESULTS(weighted_quantize_results),
    .given = RESULTS_NEW,
    .planners = ROW_OP(weighted_quantize),
    .check = check_weighted_quantize,
    .bind = bind_weighted_quantize,
};

/* ---- dequantize ---- */

static nvfp4_status check_dequantize(const checked_call *c, prepared_call *call) {
    quantize_problem *p = &call->problem.row_op.quantize;
    nvfp4_status status = check_blocks(c, WRITTEN, p);
    call->is_empty = is_empty(p);
    return status;
}

static const operation_tensor dequantize_tensors[] = {
    {"data", AT(data), INPUT, HOLDS_VALUES, 0, 0},
    {"scale", AT(scale), INPUT, HOLDS_SCALES, 0, 0},
    GLOBAL_SCALE,
    {"x", AT(x), OUTPUT, HOLDS_FLOATS, 0, 0},
};
static const operation_scalar dequantize_scalars[] = {GLOBAL_VALUE(2), SCALE_LAYOUT};
static const operation_result dequantize_results[] = {{
    .tensor = 3,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP32,
    .shape = {"[*batch_of(data), rows_of(data), 2 * columns_of(data)]", 0},
}};
const operation operation_dequantize = {
    .name = OPERATION(dequantize),
    .tensors = TENSORS(dequantize_tensors),
    .scalars = SCALARS(dequantize_scalars),
    .results = RESULTS(dequantize_results),
    .given = RESULTS_NEW,
    .planners = ROW_OP(dequantize),
    .check = check_dequantize,
    .bind = bind_quantize,
};
