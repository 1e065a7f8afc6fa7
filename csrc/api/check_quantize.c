/* The rules of quantisation, its inverse, fused and global scales, and changes of scale layout. */
#include <float.h>

#include "api/check.h"
#include "api/rules.h"
#include "common/error.h"
#include "common/math.h"

static nvfp4_status check_block_scale(int32_t block_scale) {
    if (block_scale == NVFP4_AMAX6 || block_scale == NVFP4_FOUR_OVER_SIX) return NVFP4_OK;
    return fail(NVFP4_INVALID, "block_scale: is %d; must be amax6 (%d) or four_over_six (%d)", block_scale, NVFP4_AMAX6,
                NVFP4_FOUR_OVER_SIX);
}

/* One fp32 number on the device of an input. */
static nvfp4_status check_scalar(const char *name, const nvfp4_tensor *t, const char *input_name,
                                 const nvfp4_tensor *input) {
    if (t->dtype != NVFP4_FP32)
        return fail(NVFP4_INVALID, "%s: dtype is %s; must be float32", name, nvfp4_dtype_name(t->dtype));
    nvfp4_status status = check_sizes(name, t);
    if (!status && element_count(t) != 1)
        return fail(NVFP4_INVALID, "%s: has %lld elements; must have 1", name, (long long)element_count(t));
    if (!status) status = check_device(name, t, input_name, input);
    if (!status) status = check_alignment(name, t, 4);
    return status;
}

/* quantize divides by the global scale. A scale in device memory is not read: it has to keep the rule by itself. */
static nvfp4_status check_divisor(const nvfp4_quantize_args *args) {
    const nvfp4_tensor *g = &args->global_scale;
    if (!absent(g) && (g->device != NVFP4_HOST || !g->data)) return NVFP4_OK;
    float value = absent(g) ? args->global_value : *(const float *)g->data;
    if (value > 0.0f && value <= FLT_MAX) return NVFP4_OK;
    return fail(NVFP4_INVALID, "global_scale: is %g; must be positive and finite", (double)value);
}

/* x_name: of args->x. */
static nvfp4_status check_blocks(const nvfp4_quantize_args *args, const char *x_name, int output_is_x,
                                 quantize_problem *p) {
    const nvfp4_tensor *g = &args->global_scale;
    matrix x, data;
    *p = (quantize_problem){
        .global_value = args->global_value, .scale_layout = args->scale_layout, .block_scale = args->block_scale};
    nvfp4_status status = check_present(x_name, &args->x);
    if (!status) status = check_present("data", &args->data);
    if (!status) status = check_present("scale", &args->scale);
    if (!status) status = check_layout(args->scale_layout);
    if (!status) status = check_block_scale(args->block_scale);
    if (!status) status = check_dtype(x_name, &args->x, is_float, "float16, bfloat16 or float32");
    if (!status) status = check_matrix(x_name, "[R, K]", "[L, R, K]", &args->x, output_is_x ? OUTPUT : INPUT, &x);
    if (status) return status;
    if (x.columns % 16 != 0)
        return fail(NVFP4_INVALID, "%s: K is %lld; must be a multiple of 16", output_is_x ? "data" : x_name,
                    (long long)x.columns);
    status = check_data("data", "[R, K/2]", "[L, R, K/2]", &args->data, output_is_x ? INPUT : OUTPUT, &data);
    if (status) return status;
    if (args->data.ndim != args->x.ndim || data.l != x.l || data.rows != x.rows || data.columns * 2 != x.columns)
        return fail(NVFP4_INVALID,
                    "data: is %lld x %lld x %lld; %s needs L x R x K/2 = %lld x %lld x %lld in %d dimensions",
                    (long long)data.l, (long long)data.rows, (long long)data.columns, x_name, (long long)x.l,
                    (long long)x.rows, (long long)x.columns / 2, args->x.ndim);
    status = check_scale("scale", &args->scale, args->scale_layout, x.l, x.rows, x.columns / 16,
                         output_is_x ? INPUT : OUTPUT, &p->scale_pitch, &p->scale_batch);
    const nvfp4_tensor *input = output_is_x ? &args->data : &args->x;
    const char *input_name = output_is_x ? "data" : x_name;
    if (!status) status = check_device(x_name, &args->x, input_name, input);
    if (!status) status = check_device("data", &args->data, input_name, input);
    if (!status) status = check_device("scale", &args->scale, input_name, input);
    if (!status) status = check_alignment(x_name, &args->x, dtype_bytes(args->x.dtype));
    if (!status && !absent(g)) status = check_scalar("global_scale", g, input_name, input);
    if (!status && !output_is_x) status = check_divisor(args);
    if (!status && output_is_x) {
        status = check_apart(x_name, &args->x, "data", &args->data);
        if (!status) status = check_apart(x_name, &args->x, "scale", &args->scale);
        if (!status) status = check_apart(x_name, &args->x, "global_scale", g);
    } else if (!status) {
        status = check_apart("data", &args->data, x_name, &args->x);
        if (!status) status = check_apart("data", &args->data, "scale", &args->scale);
        if (!status) status = check_apart("data", &args->data, "global_scale", g);
        if (!status) status = check_apart("scale", &args->scale, x_name, &args->x);
        if (!status) status = check_apart("scale", &args->scale, "global_scale", g);
    }
    if (!status) status = check_has_data(x_name, &args->x);
    if (!status) status = check_has_data("data", &args->data);
    if (!status) status = check_has_data("scale", &args->scale);
    if (status) return status;
    p->rows = x.rows;
    p->k = x.columns;
    p->l = x.l;
    p->x = args->x.data;
    p->x_pitch = x.pitch;
    p->x_batch = x.batch;
    p->x_type = args->x.dtype;
    p->data = args->data.data;
    p->data_pitch = data.pitch;
    p->data_batch = data.batch;
    p->scale = args->scale.data;
    p->global_scale = absent(g) ? NULL : g->data;
    return NVFP4_OK;
}

nvfp4_status check_quantize(const nvfp4_quantize_args *args, int output_is_x, quantize_problem *p) {
    return check_blocks(args, "x", output_is_x, p);
}

static nvfp4_status check_normed(const nvfp4_rms_norm_quantize_args *args, norm_problem *p) {
    const nvfp4_tensor *x = &args->x, *weight = &args->weight, *residual = &args->residual;
    if (!(args->eps >= 0.0f && args->eps <= FLT_MAX))
        return fail(NVFP4_INVALID, "eps: is %g; must be finite and not negative", (double)args->eps);
    if (weight->dtype != NVFP4_FP32 && weight->dtype != x->dtype)
        return fail(NVFP4_INVALID, "weight: dtype is %s; must be float32 or that of x, %s",
                    nvfp4_dtype_name(weight->dtype), nvfp4_dtype_name(x->dtype));
    nvfp4_status status = check_sizes("weight", weight);
    if (status) return status;
    if (weight->ndim != 1 || element_count(weight) != p->q.k)
        return fail(NVFP4_INVALID, "weight: has %lld elements in %d dimensions; must be a vector of length K = %lld",
                    (long long)element_count(weight), weight->ndim, (long long)p->q.k);
    if (!is_contiguous(weight))
        return fail(NVFP4_INVALID, "weight: stride is %lld; must be 1", (long long)weight->stride[0]);
    status = check_device("weight", weight, "x", x);
    if (!status) status = check_alignment("weight", weight, dtype_bytes(weight->dtype));
    if (!status) status = check_apart("data", &args->data, "weight", weight);
    if (!status) status = check_apart("scale", &args->scale, "weight", weight);
    if (!status) status = check_has_data("weight", weight);
    p->weight = weight->data;
    p->weight_type = weight->dtype;
    p->eps = args->eps;
    if (status || absent(residual)) return status;
    matrix r;
    if (residual->dtype != x->dtype)
        return fail(NVFP4_INVALID, "residual: dtype is %s; must be that of x, %s", nvfp4_dtype_name(residual->dtype),
                    nvfp4_dtype_name(x->dtype));
    status = check_matrix("residual", "[R, K]", "[L, R, K]", residual, OUTPUT, &r);
    if (status) return status;
    if (residual->ndim != x->ndim || r.l != p->q.l || r.rows != p->q.rows || r.columns != p->q.k)
        return fail(NVFP4_INVALID,
                    "residual: is %lld x %lld x %lld; must be as x, %lld x %lld x %lld, in %d dimensions",
                    (long long)r.l, (long long)r.rows, (long long)r.columns, (long long)p->q.l, (long long)p->q.rows,
                    (long long)p->q.k, x->ndim);
    status = check_device("residual", residual, "x", x);
    if (!status) status = check_alignment("residual", residual, dtype_bytes(residual->dtype));
    if (!status) status = check_apart("residual", residual, "x", x);
    if (!status) status = check_apart("residual", residual, "weight", weight);
    if (!status) status = check_apart("residual", residual, "data", &args->data);
    if (!status) status = check_apart("residual", residual, "scale", &args->scale);
    if (!status) status = check_apart("residual", residual, "global_scale", &args->global_scale);
    if (!status) status = check_has_data("residual", residual);
    p->residual = residual->data;
    p->residual_pitch = r.pitch;
    p->residual_batch = r.batch;
    return status;
}

nvfp4_status check_rms_norm_quantize(const nvfp4_rms_norm_quantize_args *args, norm_problem *p) {
    const nvfp4_quantize_args q = {.x = args->x,
                                   .data = args->data,
                                   .scale = args->scale,
                                   .global_scale = args->global_scale,
                                   .global_value = args->global_value,
                                   .scale_layout = args->scale_layout};
    *p = (norm_problem){.weight = NULL};
    nvfp4_status status = check_present("x", &args->x);
    if (!status) status = check_present("weight", &args->weight);
    if (!status) status = check_quantize(&q, 0, &p->q);
    return status ? status : check_normed(args, p);
}

nvfp4_status check_silu_mul_quantize(const nvfp4_quantize_args *args, quantize_problem *p) {
    nvfp4_quantize_args half = *args;
    const nvfp4_tensor *x = &args->x;
    nvfp4_status status = check_present("gate_up", x);
    if (!status) status = check_dtype("gate_up", x, is_float, "float16, bfloat16 or float32");
    if (!status) status = check_sizes("gate_up", x);
    if (status) return status;
    if (x->ndim > 0 && x->shape[x->ndim - 1] % 32 != 0)
        return fail(NVFP4_INVALID, "gate_up: has %lld columns; must have 2 K, K a multiple of 16",
                    (long long)x->shape[x->ndim - 1]);
    if (x->ndim > 0) half.x.shape[x->ndim - 1] /= 2; /* the gates */
    if (args->block_scale != NVFP4_AMAX6)
        return fail(NVFP4_INVALID, "block_scale: is %d; must be amax6 (%d)", args->block_scale, NVFP4_AMAX6);
    matrix whole;
    status = check_matrix("gate_up", "[R, 2 K]", "[L, R, 2 K]", x, INPUT, &whole);
    if (!status) status = check_blocks(&half, "gate_up", 0, p);
    if (!status) status = check_apart("data", &args->data, "gate_up", x);
    if (!status) status = check_apart("scale", &args->scale, "gate_up", x);
    return status;
}

nvfp4_status check_amax_scale(const nvfp4_amax_scale_args *args, amax_problem *p) {
    matrix x;
    nvfp4_status status = check_present("x", &args->x);
    if (!status) status = check_present("scale", &args->scale);
    if (!status) status = check_block_scale(args->block_scale);
    if (!status) status = check_dtype("x", &args->x, is_float, "float16, bfloat16 or float32");
    if (!status) status = check_matrix("x", "[R, K]", "[L, R, K]", &args->x, INPUT, &x);
    if (!status) status = check_alignment("x", &args->x, dtype_bytes(args->x.dtype));
    if (!status) status = check_scalar("scale", &args->scale, "x", &args->x);
    if (!status) status = check_apart("scale", &args->scale, "x", &args->x);
    if (!status) status = check_has_data("x", &args->x);
    if (!status) status = check_has_data("scale", &args->scale);
    if (status) return status;
    *p = (amax_problem){.rows = x.rows,
                        .l = x.l,
                        .x = args->x.data,
                        .x_bytes = x.columns * dtype_bytes(args->x.dtype),
                        .x_pitch = x.pitch,
                        .x_batch = x.batch,
                        .scale = args->scale.data,
                        .divisor = (args->block_scale == NVFP4_FOUR_OVER_SIX ? 256.0 : 448.0) * 6.0,
                        .x_type = args->x.dtype};
    if (is_contiguous(&args->x)) { /* one row */
        p->x_bytes *= x.rows * x.l;
        p->rows = p->l = 1;
    }
    p->chunks = ceil_div(p->x_bytes, AMAX_CHUNK);
    return NVFP4_OK;
}

nvfp4_status check_swizzle(const nvfp4_tensor *linear, const nvfp4_tensor *swizzled, int output_is_linear,
                           swizzle_problem *p) {
    matrix x;
    int64_t pitch, batch;
    nvfp4_status status = check_present("scale", linear);
    if (!status) status = check_present("swizzled", swizzled);
    if (!status) status = check_dtype("scale", linear, is_scale, "float8_e4m3fn or uint8");
    if (!status) status = check_matrix("scale", "[R, S]", "[L, R, S]", linear, output_is_linear ? OUTPUT : INPUT, &x);
    if (!status)
        status = check_scale("swizzled", swizzled, NVFP4_128X4, x.l, x.rows, x.columns,
                             output_is_linear ? INPUT : OUTPUT, &pitch, &batch);
    if (!status) status = check_device("swizzled", swizzled, "scale", linear);
    if (!status) status = check_apart("scale", linear, "swizzled", swizzled);
    if (!status) status = check_has_data("scale", linear);
    if (!status) status = check_has_data("swizzled", swizzled);
    if (status) return status;
    *p = (swizzle_problem){.rows = x.rows,
                           .columns = x.columns,
                           .l = x.l,
                           .linear = linear->data,
                           .linear_pitch = x.pitch,
                           .linear_batch = x.batch,
                           .swizzled = swizzled->data};
    return NVFP4_OK;
}
