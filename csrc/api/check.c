/* The rules a call must keep, one function a rule, and those of a product. An error message names the argument, the
 * rule and the value. */
#include "api/check.h"

#include "api/rules.h"
#include "common/error.h"
#include "common/math.h"

/* Distance between rows that a rule allows besides dense ones. */
enum { PITCH_BYTES = 16 };

int64_t swizzled_bytes(int64_t rows, int64_t columns) {
    return ceil_div(rows, 128) * ceil_div(columns, 4) * 512;
}

int64_t dtype_bytes(int32_t dtype) {
    switch (dtype) {
    case NVFP4_FP16:
    case NVFP4_BF16:
        return 2;
    case NVFP4_FP32:
        return 4;
    default:
        return 1;
    }
}

const char *nvfp4_dtype_name(int32_t dtype) {
    static const char *const names[] = {"none",    "uint8",    "float4_e2m1fn_x2", "float8_e4m3fn",
                                        "float16", "bfloat16", "float32"};
    return dtype >= 0 && dtype <= NVFP4_FP32 ? names[dtype] : "unknown";
}

static int is_bytes(int32_t dtype) {
    return dtype == NVFP4_UINT8 || dtype == NVFP4_E2M1X2;
}
static int is_16_bit(int32_t dtype) {
    return dtype == NVFP4_FP16 || dtype == NVFP4_BF16;
}
static int is_a(int32_t dtype) {
    return is_bytes(dtype) || is_16_bit(dtype);
}
int is_scale(int32_t dtype) {
    return dtype == NVFP4_UINT8 || dtype == NVFP4_E4M3;
}
int is_float(int32_t dtype) {
    return dtype == NVFP4_FP16 || dtype == NVFP4_BF16 || dtype == NVFP4_FP32;
}

nvfp4_status check_dtype(const char *name, const nvfp4_tensor *t, int (*allowed)(int32_t), const char *rule) {
    if (allowed(t->dtype)) return NVFP4_OK;
    return fail(NVFP4_INVALID, "%s: dtype is %s; must be %s", name, nvfp4_dtype_name(t->dtype), rule);
}

static const char *device_name(int32_t device, char buffer[24]) {
    if (device == NVFP4_HOST) return "the CPU";
    if (device < NVFP4_HOST) return "no device";
    char *p = buffer;
    for (const char *s = "cuda:"; *s; s++) *p++ = *s;
    char digits[12];
    int n = 0;
    for (uint32_t d = (uint32_t)device; d || !n; d /= 10) digits[n++] = (char)('0' + d % 10);
    while (n) *p++ = digits[--n];
    *p = 0;
    return buffer;
}

nvfp4_status check_device(const char *name, const nvfp4_tensor *t, const char *first_name, const nvfp4_tensor *first) {
    char mine[24], theirs[24];
    if (t->device == first->device) return NVFP4_OK;
    return fail(NVFP4_INVALID, "%s: is on %s but %s is on %s", name, device_name(t->device, mine), first_name,
                device_name(first->device, theirs));
}

/* Sizes are countable: each dimension fits 32 bits, the element count and the extent in bytes fit 62. */
nvfp4_status check_sizes(const char *name, const nvfp4_tensor *t) {
    if (t->ndim < 0 || t->ndim > NVFP4_MAX_DIMS)
        return fail(NVFP4_INVALID, "%s: has %d dimensions; must have at most %d", name, t->ndim, NVFP4_MAX_DIMS);
    int64_t count = 1, extent = 0, step;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0 || t->shape[i] > MAX_SIZE)
            return fail(NVFP4_INVALID, "%s: dimension %d is %lld; must be between 0 and %d", name, i,
                        (long long)t->shape[i], MAX_SIZE);
        if (t->shape[i] > 1 && t->stride[i] < 0)
            return fail(NVFP4_INVALID, "%s: stride of dimension %d is %lld; must not be negative", name, i,
                        (long long)t->stride[i]);
        if (__builtin_mul_overflow(count, t->shape[i], &count) || count > INT64_MAX / 8 ||
            (t->shape[i] > 1 && (__builtin_mul_overflow(t->shape[i] - 1, t->stride[i], &step) ||
                                 __builtin_add_overflow(extent, step, &extent) || extent > INT64_MAX / 8)))
            return fail(NVFP4_INVALID, "%s: has more than 2^60 elements", name);
    }
    return NVFP4_OK;
}

int64_t element_count(const nvfp4_tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++) count *= t->shape[i];
    return count;
}

int is_contiguous(const nvfp4_tensor *t) {
    int64_t expected = 1;
    if (element_count(t) == 0) return 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] > 1 && t->stride[i] != expected) return 0;
        expected *= t->shape[i];
    }
    return 1;
}

nvfp4_status check_alignment(const char *name, const nvfp4_tensor *t, int64_t bytes) {
    if ((uintptr_t)t->data % (uintptr_t)bytes == 0) return NVFP4_OK;
    return fail(NVFP4_INVALID, "%s: data is at address %p; must be aligned to %lld bytes", name, t->data,
                (long long)bytes);
}

/* Two or three dimensions, dense rows that lie their own length or a multiple of 16 bytes apart; an output's rows
 * must not overlap. */
nvfp4_status check_matrix(const char *name, const char *shape2, const char *shape3, const nvfp4_tensor *t,
                          direction use, matrix *x) {
    nvfp4_status status = check_sizes(name, t);
    if (status) return status;
    if (t->ndim != 2 && t->ndim != 3)
        return fail(NVFP4_INVALID, "%s: has %d dimensions; must have 2 (%s) or 3 (%s)", name, t->ndim, shape2, shape3);
    const int64_t *shape = t->shape + t->ndim - 2, *stride = t->stride + t->ndim - 2;
    int64_t bytes = dtype_bytes(t->dtype);
    x->l = t->ndim == 3 ? t->shape[0] : 1;
    x->rows = shape[0];
    x->columns = shape[1];
    if (x->columns > 1 && stride[1] != 1)
        return fail(NVFP4_INVALID, "%s: stride of the last dimension is %lld; must be 1 (dense rows)", name,
                    (long long)stride[1]);
    int64_t dense = x->columns * bytes;
    /* Where there is one row or batch, or nothing at all, there is no distance: whatever the strides say, the dense one
     * serves. But one row of a padded matrix is to lie as the matrix does: a batch-invariant product takes its order of
     * additions from that. */
    int empty = element_count(t) == 0;
    int padded = stride[0] >= x->columns && stride[0] <= MAX_SIZE / bytes && stride[0] * bytes % PITCH_BYTES == 0;
    x->pitch = !empty && (x->rows > 1 || padded) ? stride[0] * bytes : dense;
    x->batch = x->l > 1 && !empty ? t->stride[0] * bytes : x->rows * x->pitch;
    if (x->pitch != dense && x->pitch % PITCH_BYTES != 0)
        return fail(NVFP4_INVALID, "%s: rows are %lld bytes apart; must be %lld (dense) or a multiple of %d", name,
                    (long long)x->pitch, (long long)dense, PITCH_BYTES);
    if (use == OUTPUT && x->l * x->rows * x->columns > 0) {
        int64_t within = (x->rows - 1) * x->pitch + dense; /* one batch, where batches are outermost */
        int64_t across = (x->l - 1) * x->batch + dense;    /* one row of all batches, where rows are outermost */
        int batches_outermost = x->pitch >= dense && (x->l == 1 || x->batch >= within);
        int rows_outermost = x->batch >= dense && (x->rows == 1 || x->pitch >= across);
        if (!batches_outermost && !rows_outermost)
            return fail(NVFP4_INVALID, "%s: rows overlap (strides of %lld and %lld bytes); must not, it is written",
                        name, (long long)x->batch, (long long)x->pitch);
    }
    return NVFP4_OK;
}

/* a, b or quantised data: 8-byte aligned rows whose length is a multiple of 16 values. */
nvfp4_status check_data(const char *name, const char *shape2, const char *shape3, const nvfp4_tensor *t, direction use,
                        matrix *x) {
    nvfp4_status status = check_dtype(name, t, is_bytes, "uint8 or float4_e2m1fn_x2");
    if (!status) status = check_matrix(name, shape2, shape3, t, use, x);
    if (status) return status;
    if (x->columns % 8 != 0)
        return fail(NVFP4_INVALID, "%s: K is %lld (%lld bytes a row); must be a multiple of 16", name,
                    (long long)x->columns * 2, (long long)x->columns);
    if (x->batch % 8 != 0)
        return fail(NVFP4_INVALID, "%s: batches are %lld bytes apart; must be a multiple of 8", name,
                    (long long)x->batch);
    return check_alignment(name, t, 8);
}

/* a in 16 bits: 16-byte aligned rows whose length is a multiple of 16 values; any rows of the product A . B. */
static nvfp4_status check_activations(const nvfp4_tensor *t, int no_transpose_b, matrix *x) {
    if (no_transpose_b) {
        nvfp4_status status = check_matrix("a", "[M, N]", "[L, M, N]", t, INPUT, x);
        return status ? status : check_alignment("a", t, 2);
    }
    nvfp4_status status = check_matrix("a", "[M, K]", "[L, M, K]", t, INPUT, x);
    if (status) return status;
    if (x->columns % 16 != 0)
        return fail(NVFP4_INVALID, "a: K is %lld; must be a multiple of 16", (long long)x->columns);
    if (x->batch % 16 != 0)
        return fail(NVFP4_INVALID, "a: batches are %lld bytes apart; must be a multiple of 16", (long long)x->batch);
    return check_alignment("a", t, 16);
}

/* Scales of l batches of rows x columns in either layout. */
nvfp4_status check_scale(const char *name, const nvfp4_tensor *t, int32_t layout, int64_t l, int64_t rows,
                         int64_t columns, direction use, int64_t *pitch, int64_t *batch) {
    nvfp4_status status = check_dtype(name, t, is_scale, "float8_e4m3fn or uint8");
    if (status) return status;
    if (layout == NVFP4_LINEAR) {
        matrix x;
        status = check_matrix(name, "[rows, K/16]", "[L, rows, K/16]", t, use, &x);
        if (status) return status;
        if (x.l != l || x.rows != rows || x.columns != columns)
            return fail(NVFP4_INVALID,
                        "%s: is %lld x %lld x %lld; the linear layout needs L x rows x K/16 = %lld x %lld x %lld", name,
                        (long long)x.l, (long long)x.rows, (long long)x.columns, (long long)l, (long long)rows,
                        (long long)columns);
        *pitch = x.pitch;
        *batch = x.batch;
        return NVFP4_OK;
    }
    status = check_sizes(name, t);
    if (status) return status;
    int64_t needed, have = element_count(t);
    if (__builtin_mul_overflow(l, swizzled_bytes(rows, columns), &needed)) needed = INT64_MAX; /* no tensor has it */
    if (have != needed)
        return fail(
            NVFP4_INVALID,
            "%s: has %lld bytes; the 128x4 layout of %lld rows and K = %lld needs L * ceil(rows/128) * ceil(K/64) * "
            "512 = %lld",
            name, (long long)have, (long long)rows, (long long)columns * 16, (long long)needed);
    if (!is_contiguous(t)) return fail(NVFP4_INVALID, "%s: is not contiguous; the 128x4 layout must be", name);
    *pitch = ceil_div(columns, 4) * 512;
    *batch = ceil_div(rows, 128) * *pitch;
    return check_alignment(name, t, 16);
}

nvfp4_status check_layout(int32_t layout) {
    if (layout == NVFP4_128X4 || layout == NVFP4_LINEAR) return NVFP4_OK;
    return fail(NVFP4_INVALID, "scale_layout: is %d; must be 128x4 (%d) or linear (%d)", layout, NVFP4_128X4,
                NVFP4_LINEAR);
}

/* A dense fp32-like vector of 1 or `length` elements. */
static nvfp4_status check_vector(const char *name, const nvfp4_tensor *t, char size, int64_t length, int one_allowed) {
    nvfp4_status status = check_sizes(name, t);
    if (status) return status;
    int64_t count = element_count(t);
    if (one_allowed && count == 1) return check_alignment(name, t, dtype_bytes(t->dtype));
    if (t->ndim != 1 || count != length)
        return fail(NVFP4_INVALID, "%s: has %lld elements in %d dimensions; must be a vector of %slength %c = %lld",
                    name, (long long)count, t->ndim, one_allowed ? "length 1 or of " : "", size, (long long)length);
    if (!is_contiguous(t)) return fail(NVFP4_INVALID, "%s: stride is %lld; must be 1", name, (long long)t->stride[0]);
    return check_alignment(name, t, dtype_bytes(t->dtype));
}

/* Bytes from the first to behind the last element. */
static int64_t extent_bytes(const nvfp4_tensor *t) {
    int64_t last = 0;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0) return 0;
        last += (t->shape[i] - 1) * t->stride[i] * (t->shape[i] > 1);
    }
    return (last + 1) * dtype_bytes(t->dtype);
}

nvfp4_status check_apart(const char *name, const nvfp4_tensor *t, const char *other_name, const nvfp4_tensor *other) {
    if (absent(other) || !t->data || !other->data) return NVFP4_OK;
    uintptr_t x = (uintptr_t)t->data, y = (uintptr_t)other->data;
    uintptr_t x_bytes = (uintptr_t)extent_bytes(t), y_bytes = (uintptr_t)extent_bytes(other);
    if (x_bytes == 0 || y_bytes == 0 || x + x_bytes <= y || y + y_bytes <= x) return NVFP4_OK;
    return fail(NVFP4_INVALID, "%s: shares memory with %s; must not overlap it, it is written", name, other_name);
}

static int same_view(const nvfp4_tensor *s, const nvfp4_tensor *t) {
    if (s->data != t->data) return 0;
    for (int i = 0; i < s->ndim; i++)
        if (s->shape[i] > 1 && s->stride[i] != t->stride[i]) return 0;
    return 1;
}

nvfp4_status check_present(const char *name, const nvfp4_tensor *t) {
    if (absent(t)) return fail(NVFP4_INVALID, "%s: is missing; must be a tensor", name);
    return NVFP4_OK;
}

/* The caller's name for the columns of the result. */
static char column_size(const gemm_problem *p) {
    return p->operation == OP_GEMM_NN ? 'K' : 'N';
}

static nvfp4_status check_result_shape(const char *name, const nvfp4_tensor *t, const nvfp4_tensor *a, const matrix *x,
                                       const gemm_problem *p) {
    if (t->ndim == a->ndim && x->l == p->l && x->rows == p->m && x->columns == p->n) return NVFP4_OK;
    if (t->ndim != a->ndim) return fail(NVFP4_INVALID, "%s: has %d dimensions but a has %d", name, t->ndim, a->ndim);
    const char columns = column_size(p);
    if (a->ndim == 3)
        return fail(NVFP4_INVALID, "%s: is %lld x %lld x %lld; must be L x M x %c = %lld x %lld x %lld", name,
                    (long long)x->l, (long long)x->rows, (long long)x->columns, columns, (long long)p->l,
                    (long long)p->m, (long long)p->n);
    return fail(NVFP4_INVALID, "%s: is %lld x %lld; must be M x %c = %lld x %lld", name, (long long)x->rows,
                (long long)x->columns, columns, (long long)p->m, (long long)p->n);
}

/* a and b: both 2-D or both 3-D, equal L, and equal K, or N of the product A . B. */
static nvfp4_status check_operands(const nvfp4_gemm_args *args, gemm_problem *p) {
    matrix a, b;
    const int a_is_16_bit = is_16_bit(args->a.dtype), no_transpose_b = (args->flags & NVFP4_NO_TRANSPOSE_B) != 0;
    nvfp4_status status = check_present("a", &args->a);
    if (!status) status = check_present("b", &args->b);
    if (!status) status = check_dtype("a", &args->a, is_a, "uint8, float4_e2m1fn_x2, float16 or bfloat16");
    if (!status && no_transpose_b && !a_is_16_bit)
        return fail(NVFP4_INVALID, "a: dtype is %s; must be float16 or bfloat16 where transpose_b is False",
                    nvfp4_dtype_name(args->a.dtype));
    if (!status)
        status = a_is_16_bit ? check_activations(&args->a, no_transpose_b, &a)
                             : check_data("a", "[M, K/2]", "[L, M, K/2]", &args->a, INPUT, &a);
    if (!status) status = check_data("b", "[N, K/2]", "[L, N, K/2]", &args->b, INPUT, &b);
    if (!status) status = check_device("b", &args->b, "a", &args->a);
    if (status) return status;
    if (args->a.ndim != args->b.ndim)
        return fail(NVFP4_INVALID, "b: has %d dimensions but a has %d", args->b.ndim, args->a.ndim);
    const int64_t k = b.columns * 2; /* a's columns are K or, without the transposition, N */
    const int64_t a_columns = a_is_16_bit ? a.columns : a.columns * 2, b_length = no_transpose_b ? b.rows : k;
    if (b_length != a_columns)
        return fail(NVFP4_INVALID, "b: %c is %lld but a has %c = %lld", no_transpose_b ? 'N' : 'K', (long long)b_length,
                    no_transpose_b ? 'N' : 'K', (long long)a_columns);
    if (b.l != a.l) return fail(NVFP4_INVALID, "b: L is %lld but a has L = %lld", (long long)b.l, (long long)a.l);
    if (k > MAX_SIZE)
        return fail(NVFP4_INVALID, "%s: K is %lld; must be at most %d", no_transpose_b ? "b" : "a", (long long)k,
                    MAX_SIZE);
    *p = (gemm_problem){
        .m = a.rows,
        .n = no_transpose_b ? k : b.rows,
        .k = b_length,
        .l = a.l,
        .a = args->a.data,
        .b = args->b.data,
        .a_pitch = a.pitch,
        .b_pitch = b.pitch,
        .a_batch = a.batch,
        .b_batch = b.batch,
        .a_type = a_is_16_bit ? args->a.dtype : VALUES_E2M1,
        .operation = no_transpose_b ? OP_GEMM_NN : OP_GEMM,
    };
    uintptr_t bits = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)(a.pitch | b.pitch);
    if (a.l > 1) bits |= (uintptr_t)(a.batch | b.batch);
    p->aligned16 = bits % 16 == 0;
    return NVFP4_OK;
}

static nvfp4_status check_scales(const nvfp4_gemm_args *args, gemm_problem *p) {
    const int a_is_e2m1 = p->a_type == VALUES_E2M1;
    if (!a_is_e2m1 && !absent(&args->scale_a))
        return fail(NVFP4_INVALID, "scale_a: is given but a is %s; must be absent, its values have no scales",
                    nvfp4_dtype_name(p->a_type));
    nvfp4_status status = a_is_e2m1 ? check_present("scale_a", &args->scale_a) : NVFP4_OK;
    if (!status) status = check_present("scale_b", &args->scale_b);
    if (!status) status = check_layout(args->scale_layout);
    if (!status && a_is_e2m1)
        status = check_scale("scale_a", &args->scale_a, args->scale_layout, p->l, p->m, p->k / 16, INPUT, &p->sfa_pitch,
                             &p->sfa_batch);
    if (!status)
        status = p->operation == OP_GEMM_NN ? check_scale("scale_b", &args->scale_b, args->scale_layout, p->l, p->k,
                                                          p->n / 16, INPUT, &p->sfb_pitch, &p->sfb_batch)
                                            : check_scale("scale_b", &args->scale_b, args->scale_layout, p->l, p->n,
                                                          p->k / 16, INPUT, &p->sfb_pitch, &p->sfb_batch);
    if (!status && a_is_e2m1) status = check_device("scale_a", &args->scale_a, "a", &args->a);
    if (!status) status = check_device("scale_b", &args->scale_b, "a", &args->a);
    p->sfa = args->scale_a.data;
    p->sfb = args->scale_b.data;
    p->scale_layout = args->scale_layout;
    return status;
}

/* out, and c beside it. */
static nvfp4_status check_results(const nvfp4_gemm_args *args, gemm_problem *p) {
    const nvfp4_tensor *out = &args->out, *c = &args->c;
    matrix x;
    nvfp4_status status = check_present("out", out);
    if (!status) status = check_dtype("out", out, is_float, "float16, bfloat16 or float32");
    const char *shape2 = p->operation == OP_GEMM_NN ? "[M, K]" : "[M, N]",
               *shape3 = p->operation == OP_GEMM_NN ? "[L, M, K]" : "[L, M, N]";
    if (!status) status = check_matrix("out", shape2, shape3, out, OUTPUT, &x);
    if (!status) status = check_result_shape("out", out, &args->a, &x, p);
    if (!status) status = check_device("out", out, "a", &args->a);
    if (!status) status = check_alignment("out", out, dtype_bytes(out->dtype));
    if (status) return status;
    p->out = out->data;
    p->out_type = out->dtype;
    p->out_pitch = x.pitch;
    p->out_batch = x.batch;

    p->beta = args->beta;
    if (absent(c)) {
        if (args->beta != 0.0f) return fail(NVFP4_INVALID, "beta: is %g but c is missing", (double)args->beta);
        return NVFP4_OK;
    }
    if (c->dtype != out->dtype)
        return fail(NVFP4_INVALID, "c: dtype is %s; must be that of out, %s", nvfp4_dtype_name(c->dtype),
                    nvfp4_dtype_name(out->dtype));
    status = check_matrix("c", shape2, shape3, c, INPUT, &x);
    if (!status) status = check_result_shape("c", c, &args->a, &x, p);
    if (!status) status = check_device("c", c, "a", &args->a);
    if (!status) status = check_alignment("c", c, dtype_bytes(c->dtype));
    if (!status && !same_view(c, out)) status = check_apart("out", out, "c", c);
    if (status || args->beta == 0.0f) return status; /* beta = 0: c is not read, as in BLAS */
    p->c = c->data;
    p->c_pitch = x.pitch;
    p->c_batch = x.batch;
    return NVFP4_OK;
}

static nvfp4_status check_alpha_and_bias(const nvfp4_gemm_args *args, gemm_problem *p) {
    const nvfp4_tensor *alpha = &args->alpha, *bias = &args->bias;
    nvfp4_status status = NVFP4_OK;
    p->alpha_value = args->alpha_value;
    if (!absent(alpha)) {
        if (alpha->dtype != NVFP4_FP32)
            return fail(NVFP4_INVALID, "alpha: dtype is %s; must be float32", nvfp4_dtype_name(alpha->dtype));
        if (p->operation == OP_GEMM_NN && element_count(alpha) != 1)
            return fail(NVFP4_INVALID,
                        "alpha: has %lld elements; must have 1 where transpose_b is False, since N is summed over",
                        (long long)element_count(alpha));
        status = check_vector("alpha", alpha, 'N', p->n, 1);
        if (!status) status = check_device("alpha", alpha, "a", &args->a);
        if (status) return status;
        p->alpha = alpha->data;
        p->alpha_stride = element_count(alpha) > 1;
    }
    if (!absent(bias)) {
        if (bias->dtype != NVFP4_FP32 && bias->dtype != p->out_type)
            return fail(NVFP4_INVALID, "bias: dtype is %s; must be float32 or that of out, %s",
                        nvfp4_dtype_name(bias->dtype), nvfp4_dtype_name(p->out_type));
        status = check_vector("bias", bias, column_size(p), p->n, 0);
        if (!status) status = check_device("bias", bias, "a", &args->a);
        if (status) return status;
        p->bias = bias->data;
        p->bias_type = bias->dtype;
    }
    return NVFP4_OK;
}

nvfp4_status check_flags(uint32_t flags) {
    if ((flags & ~(uint32_t)(NVFP4_BATCH_INVARIANT | NVFP4_CONSTANT_B | NVFP4_NO_TRANSPOSE_B)) == 0) return NVFP4_OK;
    return fail(NVFP4_INVALID,
                "flags: is %u; must be 0 or a sum of %d (batch invariant), %d (constant b), %d (b not transposed)",
                flags, NVFP4_BATCH_INVARIANT, NVFP4_CONSTANT_B, NVFP4_NO_TRANSPOSE_B);
}

nvfp4_status check_gemm(const nvfp4_gemm_args *args, gemm_problem *p) {
    nvfp4_status status = check_flags(args->flags);
    if (!status) status = check_operands(args, p);
    if (!status) status = check_scales(args, p);
    if (!status) status = check_results(args, p);
    if (!status) status = check_alpha_and_bias(args, p);
    if (!status) status = check_apart("out", &args->out, "a", &args->a);
    if (!status) status = check_apart("out", &args->out, "b", &args->b);
    if (!status) status = check_apart("out", &args->out, "scale_a", &args->scale_a);
    if (!status) status = check_apart("out", &args->out, "scale_b", &args->scale_b);
    if (!status) status = check_apart("out", &args->out, "alpha", &args->alpha);
    if (!status) status = check_apart("out", &args->out, "bias", &args->bias);
    p->constant_b = (args->flags & NVFP4_CONSTANT_B) != 0;
    return status;
}

nvfp4_status check_has_data(const char *name, const nvfp4_tensor *t) {
    if (absent(t) || t->data || element_count(t) == 0) return NVFP4_OK;
    return fail(NVFP4_INVALID, "%s: has no data; must not be a fake or meta tensor", name);
}

nvfp4_status check_gemm_data_present(const nvfp4_gemm_args *args) {
    const struct {
        const char *name;
        const nvfp4_tensor *tensor;
    } all[] = {{"a", &args->a},
               {"b", &args->b},
               {"scale_a", &args->scale_a},
               {"scale_b", &args->scale_b},
               {"alpha", &args->alpha},
               {"bias", &args->bias},
               {"c", &args->c},
               {"out", &args->out}};
    nvfp4_status status = NVFP4_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && !status; i++)
        status = check_has_data(all[i].name, all[i].tensor);
    return status;
}
