/* What the Python module and the torch operators share: words, result shapes, the competition's views. */
#include "bindings/frontend.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "api/context.h"
#include "common/error.h"
#include "common/math.h"

/* ---- words ---- */

nvfp4_status layout_from_name(const char *name, int32_t *layout) {
    if (strcmp(name, "128x4") == 0)
        *layout = NVFP4_128X4;
    else if (strcmp(name, "linear") == 0)
        *layout = NVFP4_LINEAR;
    else
        return fail(NVFP4_INVALID, "scale_layout: is '%.80s'; must be '128x4' or 'linear'", name);
    return NVFP4_OK;
}

nvfp4_status block_scale_from_name(const char *name, int32_t *block_scale) {
    if (strcmp(name, "amax6") == 0)
        *block_scale = NVFP4_AMAX6;
    else if (strcmp(name, "four_over_six") == 0)
        *block_scale = NVFP4_FOUR_OVER_SIX;
    else
        return fail(NVFP4_INVALID, "block_scale: is '%.80s'; must be 'amax6' or 'four_over_six'", name);
    return NVFP4_OK;
}

nvfp4_status backend_from_name(const char *name, int32_t *backend) {
    for (*backend = NVFP4_AUTO; *backend < GEMM_FAMILIES; ++*backend)
        if (strcmp(name, nvfp4_backend_name(*backend)) == 0) return NVFP4_OK;
    char names[160];
    return fail(NVFP4_INVALID, "backend: is '%.80s'; must be None, %s", name,
                list_backends(names, sizeof names, ALL_BACKENDS & ~1u, "'%s'", " or "));
}

nvfp4_status dtype_from_name(const char *argument, const char *name, int32_t *dtype) {
    for (*dtype = NVFP4_FP16; *dtype <= NVFP4_FP32; ++*dtype)
        if (strcmp(name, nvfp4_dtype_name(*dtype)) == 0) return NVFP4_OK;
    return fail(NVFP4_INVALID, "%s: is %.80s; must be float16, bfloat16 or float32", argument, name);
}

/* ---- shapes of results ---- */

static int64_t round_up(int64_t x, int64_t multiple) {
    return ceil_div(x, multiple) * multiple;
}

static nvfp4_status check_rank(const char *name, const nvfp4_tensor *t) {
    if (t->dtype == NVFP4_NONE) return fail(NVFP4_INVALID, "%s: is missing; must be a tensor", name);
    if (t->ndim != 2 && t->ndim != 3)
        return fail(NVFP4_INVALID, "%s: has %d dimensions; must have 2, or 3 with a leading batch", name, t->ndim);
    for (int i = 0; i < t->ndim; i++) /* before anything of that size is allocated */
        if (t->shape[i] > INT32_MAX)
            return fail(NVFP4_INVALID, "%s: dimension %d is %lld; must be between 0 and %d", name, i,
                        (long long)t->shape[i], INT32_MAX);
    return NVFP4_OK;
}

static void dense(nvfp4_tensor *t, int32_t dtype, int32_t device, int ndim, const int64_t *shape) {
    *t = (nvfp4_tensor){.dtype = dtype, .device = device, .ndim = ndim};
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t->shape[i] = shape[i];
        t->stride[i] = stride;
        if (__builtin_mul_overflow(stride, shape[i] > 1 ? shape[i] : 1, &stride)) stride = INT64_MAX;
    }
}

/* As `like` but for the last two dimensions. */
static void dense_like(nvfp4_tensor *t, int32_t dtype, const nvfp4_tensor *like, int64_t rows, int64_t columns) {
    const int64_t shape[3] = {like->shape[0], rows, columns};
    dense(t, dtype, like->device, like->ndim, shape + 3 - like->ndim);
}

int32_t default_out_dtype(const nvfp4_gemm_args *args) {
    return args->a.dtype == NVFP4_BF16 ? NVFP4_BF16 : NVFP4_FP16;
}

nvfp4_status gemm_result(const nvfp4_gemm_args *args, int32_t dtype, nvfp4_tensor *out) {
    nvfp4_status status = check_rank("a", &args->a);
    if (!status) status = check_rank("b", &args->b);
    if (status) return status;
    const int64_t *b = args->b.shape + args->b.ndim - 2;
    const int64_t columns = args->flags & NVFP4_NO_TRANSPOSE_B ? b[1] * 2 : b[0];
    if (columns > INT32_MAX) /* before anything of that size is allocated */
        return fail(NVFP4_INVALID, "b: K is %lld; must be at most %d", (long long)columns, INT32_MAX);
    dense_like(out, dtype, &args->a, args->a.shape[args->a.ndim - 2], columns);
    return NVFP4_OK;
}

static nvfp4_status results_of(const char *name, const nvfp4_tensor *x, int32_t layout, nvfp4_tensor *data,
                               nvfp4_tensor *scale) {
    nvfp4_status status = check_rank(name, x);
    if (status) return status;
    int64_t rows = x->shape[x->ndim - 2], k = x->shape[x->ndim - 1];
    dense_like(data, NVFP4_UINT8, x, rows, k / 2);
    if (layout == NVFP4_LINEAR)
        dense_like(scale, NVFP4_E4M3, x, rows, k / 16);
    else
        dense_like(scale, NVFP4_E4M3, x, round_up(rows, 128), round_up(k / 16, 4));
    return NVFP4_OK;
}

nvfp4_status quantize_results(const nvfp4_tensor *x, int32_t layout, nvfp4_tensor *data, nvfp4_tensor *scale) {
    return results_of("x", x, layout, data, scale);
}

nvfp4_status silu_mul_quantize_results(const nvfp4_tensor *x, int32_t layout, nvfp4_tensor *data, nvfp4_tensor *scale) {
    nvfp4_tensor gates = *x;
    if (x->ndim > 0) gates.shape[x->ndim - 1] /= 2;
    return results_of("gate_up", &gates, layout, data, scale);
}

nvfp4_status dequantize_result(const nvfp4_tensor *data, int32_t dtype, nvfp4_tensor *x) {
    nvfp4_status status = check_rank("data", data);
    if (!status) dense_like(x, dtype, data, data->shape[data->ndim - 2], data->shape[data->ndim - 1] * 2);
    return status;
}

void scale_result(const nvfp4_tensor *x, nvfp4_tensor *scale) {
    const int64_t shape[1] = {1};
    dense(scale, NVFP4_FP32, x->device, 1, shape);
}

nvfp4_status swizzle_result(const nvfp4_tensor *linear, nvfp4_tensor *swizzled) {
    nvfp4_status status = check_rank("scale", linear);
    if (!status)
        dense_like(swizzled, linear->dtype, linear, round_up(linear->shape[linear->ndim - 2], 128),
                   round_up(linear->shape[linear->ndim - 1], 4));
    return status;
}

nvfp4_status unswizzle_result(const nvfp4_tensor *swizzled, int64_t rows, int64_t columns, nvfp4_tensor *linear) {
    int batched = swizzled->ndim == 3;
    int64_t have = 1, needed;
    if (swizzled->dtype == NVFP4_NONE) return fail(NVFP4_INVALID, "scale: is missing; must be a tensor");
    if (rows < 0 || rows > INT32_MAX || columns < 0 || columns > INT32_MAX)
        return fail(NVFP4_INVALID, "%s: is %lld; must be between 0 and %d",
                    rows < 0 || rows > INT32_MAX ? "rows" : "columns",
                    (long long)(rows < 0 || rows > INT32_MAX ? rows : columns), INT32_MAX);
    needed = round_up(rows, 128) * round_up(columns, 4);
    for (int i = batched; i < swizzled->ndim; i++) have *= swizzled->shape[i];
    if (have != needed)
        return fail(NVFP4_INVALID, "scale: has %lld bytes%s; the 128x4 layout of %lld rows and %lld columns has %lld",
                    (long long)have, batched ? " a batch" : "", (long long)rows, (long long)columns, (long long)needed);
    const int64_t shape[3] = {swizzled->shape[0], rows, columns};
    dense(linear, swizzled->dtype, swizzled->device, 2 + batched, shape + !batched);
    return NVFP4_OK;
}

/* ---- the competition's views ---- */

/* [rows, columns, L] in memory order (L, rows, columns), as [L, rows, columns]. */
static nvfp4_status rotate(const char *name, const char *shape, nvfp4_tensor *t) {
    if (t->dtype == NVFP4_NONE) return fail(NVFP4_INVALID, "%s: is missing; must be a tensor", name);
    if (t->ndim != 3) return fail(NVFP4_INVALID, "%s: has %d dimensions; must have 3 (%s)", name, t->ndim, shape);
    if (t->shape[1] > 1 && t->stride[1] != 1)
        return fail(NVFP4_INVALID, "%s: stride of dimension 1 is %lld; must be 1 (%s in memory order L, rows, columns)",
                    name, (long long)t->stride[1], shape);
    nvfp4_tensor view = *t;
    for (int i = 0; i < 3; i++) {
        view.shape[(i + 1) % 3] = t->shape[i];
        view.stride[(i + 1) % 3] = t->stride[i];
    }
    *t = view;
    return NVFP4_OK;
}

/* [32, 4, rest_m, 4, rest_k, L]: the 128x4 layout as a permuted view of contiguous (L, rest_m, rest_k, 32, 4, 4).
 * Becomes that contiguous tensor. */
static nvfp4_status restore_blocks(const char *name, int64_t rows, int64_t k, int64_t l, nvfp4_tensor *t) {
    static const int axes[6] = {5, 2, 4, 0, 1, 3}; /* of the view, in memory order */
    const int64_t wanted[6] = {32, 4, ceil_div(rows, 128), 4, ceil_div(k, 64), l};
    if (t->dtype == NVFP4_NONE) return fail(NVFP4_INVALID, "%s: is missing; must be a tensor", name);
    if (t->ndim != 6)
        return fail(NVFP4_INVALID, "%s: has %d dimensions; must have 6 ([32, 4, rest_m, 4, rest_k, L])", name, t->ndim);
    nvfp4_tensor blocks;
    int64_t shape[6];
    for (int i = 0; i < 6; i++) {
        shape[i] = t->shape[axes[i]];
        if (shape[i] != wanted[axes[i]])
            return fail(NVFP4_INVALID, "%s: dimension %d is %lld; must be %lld ([32, 4, rest_m, 4, rest_k, L])", name,
                        axes[i], (long long)shape[i], (long long)wanted[axes[i]]);
    }
    dense(&blocks, t->dtype, t->device, 6, shape);
    for (int i = 0; i < 6; i++)
        if (shape[i] > 1 && t->stride[axes[i]] != blocks.stride[i])
            return fail(NVFP4_INVALID,
                        "%s: stride of dimension %d is %lld; must be %lld (a view of contiguous "
                        "(L, rest_m, rest_k, 32, 4, 4))",
                        name, axes[i], (long long)t->stride[axes[i]], (long long)blocks.stride[i]);
    blocks.data = t->data;
    *t = blocks;
    return NVFP4_OK;
}

nvfp4_status gemm_of_views(nvfp4_gemm_args *args) {
    if (args->a.dtype == NVFP4_FP16 || args->a.dtype == NVFP4_BF16)
        return fail(NVFP4_INVALID, "a: dtype is %s; must be uint8 or float4_e2m1fn_x2",
                    nvfp4_dtype_name(args->a.dtype));
    nvfp4_status status = rotate("a", "[M, K/2, L]", &args->a);
    if (!status) status = rotate("b", "[N, K/2, L]", &args->b);
    if (!status) status = rotate("c", "[M, N, L]", &args->out);
    if (status) return status;
    int64_t l = args->a.shape[0], k = args->a.shape[2] * 2;
    status = restore_blocks("sfa_permuted", args->a.shape[1], k, l, &args->scale_a);
    if (!status) status = restore_blocks("sfb_permuted", args->b.shape[1], k, l, &args->scale_b);
    return status;
}

static int is_word(char c) {
    return c == '_' || isalnum((unsigned char)c);
}

/* A message about an argument has a mark behind its name: "out of memory" is about none. */
static int is_mark(char c) {
    return c == ':' || c == ';';
}

void rename_argument(const char *from, const char *to) {
    char message[1024], renamed[1024];
    size_t length = strlen(from), end = 0;
    snprintf(message, sizeof message, "%s", nvfp4_last_error());
    for (const char *at = message; *at && end < sizeof renamed - 1;) {
        int found = strncmp(at, from, length) == 0 && is_mark(at[length]) && (at == message || !is_word(at[-1]));
        const char *source = found ? to : at;
        size_t count = found ? strlen(to) : 1;
        for (size_t i = 0; i < count && end < sizeof renamed - 1; i++) renamed[end++] = source[i];
        at += found ? length : 1;
    }
    renamed[end] = 0;
    fail(NVFP4_INVALID, "%s", renamed);
}

void rename_views(void) {
    rename_argument("out", "c");
    rename_argument("scale_a", "sfa_permuted");
    rename_argument("scale_b", "sfb_permuted");
}
