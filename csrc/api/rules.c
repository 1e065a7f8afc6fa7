/* The rules that operations share. An error names the argument, the rule and the value. */
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
    case NVFP4_INT32:
        return 4;
    case NVFP4_INT64:
        return 8;
    default:
        return 1;
    }
}

const char *nvfp4_dtype_name(nvfp4_dtype dtype) {
    static const char *const names[] = {
        "none", "uint8", "float4_e2m1fn_x2", "float8_e4m3fn", "float16", "bfloat16", "float32", "int32", "int64"};
    return (uint32_t)dtype <= NVFP4_INT64 ? names[dtype] : "unknown";
}

const char *activation_name(int32_t activation) {
    static const char *const names[] = {
        [NVFP4_SILU] = "silu", [NVFP4_GELU_TANH] = "gelu_tanh", [NVFP4_RELU2] = "relu2", [NVFP4_SWIGLU] = "swiglu"};
    return names[activation];
}

int64_t element_count(const nvfp4_tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++) count *= t->shape[i];
    return count;
}

nvfp4_tensor contiguous_tensor(int32_t dtype, int32_t device, int ndim, const int64_t *shape) {
    nvfp4_tensor t = {.dtype = (nvfp4_dtype)dtype, .device = device, .ndim = ndim};
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        if (__builtin_mul_overflow(stride, shape[i] > 1 ? shape[i] : 1, &stride)) stride = INT64_MAX;
    }
    return t;
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

int same_view(const nvfp4_tensor *s, const nvfp4_tensor *t) {
    if (s->data != t->data || s->ndim != t->ndim) return 0;
    for (int i = 0; i < s->ndim; i++)
        if (s->shape[i] != t->shape[i] || (s->shape[i] > 1 && s->stride[i] != t->stride[i])) return 0;
    return 1;
}

const char *argument_name(const checked_call *c, const nvfp4_tensor *t) {
    for (int32_t i = 0; i < c->op->tensor_count; i++)
        if (tensor_at(c->op, i, c->args) == t) return c->op->tensors[i].name;
    return "";
}

/* ---- what the table says ---- */

#define BIT(dtype) (1u << NVFP4_##dtype)
static const struct {
    uint32_t dtypes;
    const char *names;
} dtype_rules[TENSOR_HOLDS] = {
    [HOLDS_VALUES] = {BIT(UINT8) | BIT(E2M1X2), "uint8 or float4_e2m1fn_x2"},
    [HOLDS_VALUES_16] = {BIT(UINT8) | BIT(E2M1X2) | BIT(FP16) | BIT(BF16),
                         "uint8, float4_e2m1fn_x2, float16 or bfloat16"},
    [HOLDS_SCALES] = {BIT(E4M3) | BIT(UINT8), "float8_e4m3fn or uint8"},
    [HOLDS_FLOATS] = {BIT(FP16) | BIT(BF16) | BIT(FP32), "float16, bfloat16 or float32"},
    [HOLDS_FLOAT32] = {BIT(FP32), "float32"},
    [HOLDS_INT32] = {BIT(INT32), "int32"},
    [HOLDS_INDICES] = {BIT(INT32) | BIT(INT64), "int32 or int64"},
    [HOLDS_ANY] = {UINT32_MAX, "float16, bfloat16 or float32"}, /* those that some call takes */
};
#undef BIT

const char *dtypes_held(tensor_holds holds) {
    return dtype_rules[holds].names;
}

static nvfp4_status check_dtype(const checked_call *c, const nvfp4_tensor *t, tensor_holds holds) {
    if ((uint32_t)t->dtype < 32 && dtype_rules[holds].dtypes >> t->dtype & 1) return NVFP4_OK;
    return REJECT(argument_name(c, t), ("dtype is %s", nvfp4_dtype_name(t->dtype)), ("must be %s", dtypes_held(holds)));
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

static nvfp4_status check_device(const checked_call *c, const nvfp4_tensor *t) {
    const nvfp4_tensor *first = tensor_at(c->op, 0, c->args);
    char mine[24], theirs[24];
    if (t->device == first->device) return NVFP4_OK;
    return CONTRADICTS(argument_name(c, t), ("is on %s but %s is on %s", device_name(t->device, mine),
                                             c->op->tensors[0].name, device_name(first->device, theirs)));
}

/* Checks that sizes are countable: each dimension fits 32 bits, the element count and the extent in bytes fit 62. */
static nvfp4_status check_sizes(const checked_call *c, const nvfp4_tensor *t) {
    if (t->ndim < 0 || t->ndim > NVFP4_MAX_DIMS)
        return REJECT(argument_name(c, t), ("has %d dimensions", t->ndim), ("must have at most %d", NVFP4_MAX_DIMS));
    int64_t count = 1, extent = 0, step;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0 || t->shape[i] > MAX_SIZE)
            return REJECT(argument_name(c, t), ("dimension %d is %lld", i, (long long)t->shape[i]),
                          ("must be between 0 and %d", MAX_SIZE));
        if (t->shape[i] > 1 && t->stride[i] < 0)
            return REJECT(argument_name(c, t), ("stride of dimension %d is %lld", i, (long long)t->stride[i]),
                          ("must not be negative"));
        if (__builtin_mul_overflow(count, t->shape[i], &count) || count > INT64_MAX / 8 ||
            (t->shape[i] > 1 && (__builtin_mul_overflow(t->shape[i] - 1, t->stride[i], &step) ||
                                 __builtin_add_overflow(extent, step, &extent) || extent > INT64_MAX / 8)))
            return CONTRADICTS(argument_name(c, t), ("has more than 2^60 elements"));
    }
    return NVFP4_OK;
}

nvfp4_status check_arguments(const checked_call *c) {
    const operation *op = c->op;
    nvfp4_status status = NVFP4_OK;
    for (int32_t i = 0; i < op->tensor_count && !status; i++) {
        const nvfp4_tensor *t = tensor_at(op, i, c->args);
        if (absent(t) && !op->tensors[i].optional)
            return REJECT(op->tensors[i].name, ("is missing"), ("must be a tensor"));
        if (absent(t)) continue;
        status = check_dtype(c, t, op->tensors[i].holds);
        if (!status) status = check_sizes(c, t);
        if (!status) status = check_device(c, t);
    }
    return status;
}

int64_t bytes_to_end(const nvfp4_tensor *t) {
    int64_t last = 0;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0) return 0;
        last += (t->shape[i] - 1) * t->stride[i] * (t->shape[i] > 1);
    }
    return (last + 1) * dtype_bytes(t->dtype);
}

static int overlaps(const nvfp4_tensor *t, int64_t t_bytes, const nvfp4_tensor *other) {
    const uintptr_t x = (uintptr_t)t->data, y = (uintptr_t)other->data;
    if (absent(other) || !x || !y || t_bytes == 0) return 0;
    const int64_t other_bytes = bytes_to_end(other);
    return other_bytes != 0 && x + (uintptr_t)t_bytes > y && y + (uintptr_t)other_bytes > x;
}

nvfp4_status check_overlap(const checked_call *c) {
    const operation *op = c->op;
    for (int32_t i = 0; i < op->tensor_count; i++) {
        const nvfp4_tensor *t = tensor_at(op, i, c->args);
        if (op->tensors[i].role == INPUT || absent(t) || !t->data) continue;
        const int64_t bytes = bytes_to_end(t);
        for (int32_t j = 0; j < op->tensor_count; j++) {
            const operation_tensor *row = &op->tensors[j];
            const nvfp4_tensor *other = tensor_at(op, j, c->args);
            if (j == i || (j < i && row->role != INPUT) || !overlaps(t, bytes, other)) continue;
            if ((row->allows & ALIAS_OF_OUTPUT) && same_view(t, other)) continue;
            return REJECT(op->tensors[i].name, ("shares memory with %s", row->name),
                          ("must not overlap it, it is written"));
        }
    }
    return NVFP4_OK;
}

/* Whether a list of addresses stands for a tensor, whose own data is not read then. */
static int is_listed(const checked_call *c, int32_t tensor) {
    for (int32_t i = 0; i < c->op->list_count; i++)
        if (c->op->lists[i].tensor == tensor)
            return *(const void *const *const *)((const char *)c->args + c->op->lists[i].offset) != NULL;
    return 0;
}

nvfp4_status check_data_present(const checked_call *c) {
    for (int32_t i = 0; i < c->op->tensor_count; i++) {
        const nvfp4_tensor *t = tensor_at(c->op, i, c->args);
        if (!absent(t) && !t->data && element_count(t) != 0 && !is_listed(c, i))
            return REJECT(c->op->tensors[i].name, ("has no data"), ("must not be a fake or meta tensor"));
    }
    return NVFP4_OK;
}

/* ---- what an operation says of a tensor ---- */

nvfp4_status check_alignment(const checked_call *c, const nvfp4_tensor *t, int64_t bytes) {
    if ((uintptr_t)t->data % (uintptr_t)bytes == 0) return NVFP4_OK;
    return REJECT(argument_name(c, t), ("data is at address %p", t->data),
                  ("must be aligned to %lld bytes", (long long)bytes));
}

/* `pitch_bytes`: what rows lie a multiple of apart, if not their own length. */
static nvfp4_status check_rows(const checked_call *c, const nvfp4_tensor *t, const char *shape2, const char *shape3,
                               direction use, int64_t pitch_bytes, matrix *x) {
    if (t->ndim != 2 && t->ndim != 3)
        return REJECT(argument_name(c, t), ("has %d dimensions", t->ndim),
                      ("must have 2 (%s) or 3 (%s)", shape2, shape3));
    const int64_t *shape = t->shape + t->ndim - 2, *stride = t->stride + t->ndim - 2;
    const int64_t bytes = dtype_bytes(t->dtype);
    x->l = t->ndim == 3 ? t->shape[0] : 1;
    x->rows = shape[0];
    x->columns = shape[1];
    const int empty = element_count(t) == 0;
    const char *remedy =
        use == WRITTEN ? "" : ": pass a copy, .contiguous()"; /* of what is written that is no remedy */
    if (!empty && x->columns > 1 && stride[1] != 1)
        return REJECT(argument_name(c, t), ("stride of the last dimension is %lld", (long long)stride[1]),
                      ("must be 1 (dense rows)%s", remedy));
    const int64_t dense = x->columns * bytes;
    /* One row or batch, or none, has no distance to another: the dense one serves, whatever the strides say. But one
     * row of a padded matrix must lie as the matrix does: a batch-invariant product takes its order of additions from
     * that. */
    const int padded = stride[0] >= x->columns && stride[0] <= MAX_SIZE / bytes && stride[0] * bytes % pitch_bytes == 0;
    x->pitch = !empty && (x->rows > 1 || padded) ? stride[0] * bytes : dense;
    x->batch = x->l > 1 && !empty ? t->stride[0] * bytes : x->rows * x->pitch;
    if (x->pitch != dense && x->pitch % pitch_bytes != 0)
        return REJECT(argument_name(c, t), ("rows are %lld bytes apart", (long long)x->pitch),
                      ("must be %lld (dense) or a multiple of %d%s", (long long)dense, (int)pitch_bytes, remedy));
    if (use == WRITTEN && x->l * x->rows * x->columns > 0) {
        const int64_t within = (x->rows - 1) * x->pitch + dense; /* one batch, where batches are outermost */
        const int64_t across = (x->l - 1) * x->batch + dense;    /* one row of all batches, where rows are outermost */
        const int batches_outermost = x->pitch >= dense && (x->l == 1 || x->batch >= within);
        const int rows_outermost = x->batch >= dense && (x->rows == 1 || x->pitch >= across);
        if (!batches_outermost && !rows_outermost)
            return REJECT(argument_name(c, t),
                          ("rows overlap (strides of %lld and %lld bytes)", (long long)x->batch, (long long)x->pitch),
                          ("must not, it is written"));
    }
    return NVFP4_OK;
}

nvfp4_status check_matrix(const checked_call *c, const nvfp4_tensor *t, const char *shape2, const char *shape3,
                          direction use, matrix *x) {
    return check_rows(c, t, shape2, shape3, use, PITCH_BYTES, x);
}

nvfp4_status check_strided_matrix(const checked_call *c, const nvfp4_tensor *t, const char *shape2, const char *shape3,
                                  direction use, matrix *x) {
    return check_rows(c, t, shape2, shape3, use, 1, x);
}

nvfp4_status check_values(const checked_call *c, const nvfp4_tensor *t, const char *shape2, const char *shape3,
                          direction use, matrix *x) {
    nvfp4_status status = check_matrix(c, t, shape2, shape3, use, x);
    if (status) return status;
    if (x->columns % 8 != 0)
        return REJECT(argument_name(c, t),
                      ("K is %lld (%lld bytes a row)", (long long)x->columns * 2, (long long)x->columns),
                      ("must be a multiple of 16"));
    if (x->batch % 8 != 0)
        return REJECT(argument_name(c, t), ("batches are %lld bytes apart", (long long)x->batch),
                      ("must be a multiple of 8"));
    return check_alignment(c, t, 8);
}

nvfp4_status check_scale(const checked_call *c, const nvfp4_tensor *t, nvfp4_layout layout, int64_t l, int64_t rows,
                         int64_t columns, direction use, int64_t *pitch, int64_t *batch) {
    if (layout == NVFP4_LINEAR) {
        matrix x;
        nvfp4_status status = check_matrix(c, t, "[rows, K/16]", "[L, rows, K/16]", use, &x);
        if (status) return status;
        if (x.l != l || x.rows != rows || x.columns != columns)
            return REJECT(argument_name(c, t),
                          ("is %lld x %lld x %lld", (long long)x.l, (long long)x.rows, (long long)x.columns),
                          ("the linear layout needs L x rows x K/16 = %lld x %lld x %lld", (long long)l,
                           (long long)rows, (long long)columns));
        *pitch = x.pitch;
        *batch = x.batch;
        return NVFP4_OK;
    }
    int64_t needed, have = element_count(t);
    if (__builtin_mul_overflow(l, swizzled_bytes(rows, columns), &needed)) needed = INT64_MAX; /* no tensor has it */
    if (have != needed)
        return REJECT(argument_name(c, t), ("has %lld bytes", (long long)have),
                      ("the 128x4 layout of %lld rows and K = %lld needs L * ceil(rows/128) * ceil(K/64) * 512 = %lld",
                       (long long)rows, (long long)columns * 16, (long long)needed));
    if (!is_contiguous(t)) return REJECT(argument_name(c, t), ("is not contiguous"), ("the 128x4 layout must be"));
    *pitch = ceil_div(columns, 4) * 512;
    *batch = ceil_div(rows, 128) * *pitch;
    return check_alignment(c, t, 16);
}

nvfp4_status check_vector(const checked_call *c, const nvfp4_tensor *t, char size, int64_t length, int one_allowed) {
    const int64_t count = element_count(t);
    if (one_allowed && count == 1) return check_alignment(c, t, dtype_bytes(t->dtype));
    if (t->ndim != 1 || count != length)
        return REJECT(
            argument_name(c, t), ELEMENTS_OF(t),
            ("must be a vector of %slength %c = %lld", one_allowed ? "length 1 or of " : "", size, (long long)length));
    if (!is_contiguous(t))
        return REJECT(argument_name(c, t), ("stride is %lld", (long long)t->stride[0]),
                      ("must be 1: pass a copy, .contiguous()"));
    return check_alignment(c, t, dtype_bytes(t->dtype));
}

nvfp4_status check_written_vector(const checked_call *c, const nvfp4_tensor *t, const char *size, int64_t length) {
    if (t->ndim != 1 || t->shape[0] != length)
        return REJECT(argument_name(c, t), ELEMENTS_OF(t),
                      ("must be a vector of length %s = %lld", size, (long long)length));
    if (!is_contiguous(t)) return REJECT(argument_name(c, t), ("is not contiguous"), ("must be"));
    return check_alignment(c, t, dtype_bytes(t->dtype));
}

nvfp4_status check_layout(nvfp4_layout layout) {
    if (layout == NVFP4_128X4 || layout == NVFP4_LINEAR) return NVFP4_OK;
    return REJECT("scale_layout", ("is %d", (int)layout),
                  ("must be 128x4 (%d) or linear (%d)", NVFP4_128X4, NVFP4_LINEAR));
}

nvfp4_status check_round_steps(uint32_t round_steps) {
    return round_steps > 1 ? REJECT("round_steps", ("is %u", round_steps), ("must be 0 or 1")) : NVFP4_OK;
}

nvfp4_status check_block_scale(nvfp4_block_scale block_scale) {
    if (block_scale >= NVFP4_AMAX6 && block_scale <= NVFP4_SEARCH) return NVFP4_OK;
    return REJECT(
        "block_scale", ("is %d", (int)block_scale),
        ("must be amax6 (%d), four_over_six (%d) or search (%d)", NVFP4_AMAX6, NVFP4_FOUR_OVER_SIX, NVFP4_SEARCH));
}
