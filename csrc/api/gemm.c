/* gemm: its row of the table and its rules. product.c runs it. */
#include "api/gemm.h"
#include "api/rules.h"
#include "common/error.h"

static int is_16_bit(nvfp4_dtype dtype) {
    return dtype == NVFP4_FP16 || dtype == NVFP4_BF16;
}

nvfp4_status check_activations(const checked_call *c, const nvfp4_tensor *t, int no_transpose_b, matrix *x) {
    nvfp4_status status = no_transpose_b ? check_matrix(c, t, "[M, N]", "[L, M, N]", READ_ONLY, x)
                                         : check_matrix(c, t, "[M, K]", "[L, M, K]", READ_ONLY, x);
    if (status) return status;
    if (no_transpose_b) return check_alignment(c, t, 2);
    if (x->columns % 16 != 0)
        return REJECT(argument_name(c, t), ("K is %lld", (long long)x->columns), ("must be a multiple of 16"));
    if (x->batch % 16 != 0)
        return REJECT(argument_name(c, t), ("batches are %lld bytes apart", (long long)x->batch),
                      ("must be a multiple of 16"));
    return check_alignment(c, t, 16);
}

static int is_grouped(const gemm_problem *p) {
    return p->product_kind == PRODUCT_GROUPED || p->product_kind == PRODUCT_GROUPED_NN;
}

static int is_nn(const gemm_problem *p) {
    return p->product_kind == PRODUCT_GEMM_NN || p->product_kind == PRODUCT_GROUPED_NN;
}

/* The caller's name for the columns of the result. */
static char column_size(const gemm_problem *p) {
    return is_nn(p) ? 'K' : 'N';
}

static nvfp4_status check_result_shape(const checked_call *c, const nvfp4_tensor *t, const nvfp4_tensor *a,
                                       const matrix *x, const gemm_problem *p) {
    if (t->ndim == a->ndim && x->l == p->l && x->rows == p->m && x->columns == p->n) return NVFP4_OK;
    if (t->ndim != a->ndim)
        return CONTRADICTS(argument_name(c, t), ("has %d dimensions but a has %d", t->ndim, a->ndim));
    const char columns = column_size(p);
    if (a->ndim == 3)
        return REJECT(
            argument_name(c, t), ("is %lld x %lld x %lld", (long long)x->l, (long long)x->rows, (long long)x->columns),
            ("must be L x M x %c = %lld x %lld x %lld", columns, (long long)p->l, (long long)p->m, (long long)p->n));
    return REJECT(argument_name(c, t), ("is %lld x %lld", (long long)x->rows, (long long)x->columns),
                  ("must be M x %c = %lld x %lld", columns, (long long)p->m, (long long)p->n));
}

/* a and b: both 2-D or both 3-D, equal L, and equal K, or N of the product A . B. */
static nvfp4_status check_operands(const checked_call *c, const nvfp4_gemm_args *args, gemm_problem *p) {
    matrix a, b;
    const int a_is_16_bit = is_16_bit(args->a.dtype), no_transpose_b = (args->flags & NVFP4_NO_TRANSPOSE_B) != 0;
    if (no_transpose_b && !a_is_16_bit)
        return REJECT("a", ("dtype is %s", nvfp4_dtype_name(args->a.dtype)),
                      ("must be float16 or bfloat16 " WHERE_NOT_TRANSPOSED));
    nvfp4_status status = a_is_16_bit ? check_activations(c, &args->a, no_transpose_b, &a)
                                      : check_values(c, &args->a, "[M, K/2]", "[L, M, K/2]", READ_ONLY, &a);
    if (!status) status = check_values(c, &args->b, "[N, K/2]", "[L, N, K/2]", READ_ONLY, &b);
    if (status) return status;
    if (args->a.ndim != args->b.ndim)
        return CONTRADICTS("b", ("has %d dimensions but a has %d", args->b.ndim, args->a.ndim));
    const int64_t k = b.columns * 2; /* a's columns are K or, without the transposition, N */
    const int64_t a_columns = a_is_16_bit ? a.columns : a.columns * 2, b_length = no_transpose_b ? b.rows : k;
    const char summed = no_transpose_b ? 'N' : 'K';
    if (b_length != a_columns)
        return CONTRADICTS(
            "b", ("%c is %lld but a has %c = %lld", summed, (long long)b_length, summed, (long long)a_columns));
    if (b.l != a.l) return CONTRADICTS("b", ("L is %lld but a has L = %lld", (long long)b.l, (long long)a.l));
    if (k > MAX_SIZE)
        return REJECT(no_transpose_b ? "b" : "a", ("K is %lld", (long long)k), ("must be at most %d", MAX_SIZE));
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
        .a_type = a_is_16_bit ? (int32_t)args->a.dtype : VALUES_E2M1,
        .product_kind = no_transpose_b ? PRODUCT_GEMM_NN : PRODUCT_GEMM,
    };
    uintptr_t bits = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)(a.pitch | b.pitch);
    if (a.l > 1) bits |= (uintptr_t)(a.batch | b.batch);
    p->aligned16 = bits % 16 == 0;
    return NVFP4_OK;
}

static nvfp4_status check_scales(const checked_call *c, const nvfp4_gemm_args *args, gemm_problem *p) {
    const nvfp4_tensor *scale_a = &args->scale_a, *scale_b = &args->scale_b;
    const int a_is_e2m1 = p->a_type == VALUES_E2M1;
    if (!a_is_e2m1 && !absent(scale_a))
        return REJECT(argument_name(c, scale_a), ("is given but a is %s", nvfp4_dtype_name(args->a.dtype)),
                      ("must be absent, its values have no scales"));
    if (a_is_e2m1 && absent(scale_a)) return REJECT(argument_name(c, scale_a), ("is missing"), ("must be a tensor"));
    const int64_t b_rows = is_nn(p) ? p->k : p->n, b_columns = is_nn(p) ? p->n : p->k;
    nvfp4_status status = check_layout(args->scale_layout);
    if (!status && a_is_e2m1)
        status = check_scale(c, scale_a, args->scale_layout, p->l, p->m, p->k / 16, READ_ONLY, &p->scale_a_pitch,
                             &p->scale_a_batch);
    if (!status)
        status = check_scale(c, scale_b, args->scale_layout, p->l, b_rows, b_columns / 16, READ_ONLY, &p->scale_b_pitch,
                             &p->scale_b_batch);
    p->scale_a = scale_a->data;
    p->scale_b = scale_b->data;
    p->scale_layout = (int32_t)args->scale_layout;
    return status;
}

/* out, and c beside it. */
static nvfp4_status check_results(const checked_call *call, const nvfp4_gemm_args *args, gemm_problem *p) {
    const nvfp4_tensor *out = &args->out, *c = &args->c;
    matrix x;
    const char *shape2 = p->product_kind == PRODUCT_GEMM_NN ? "[M, K]" : "[M, N]",
               *shape3 = p->product_kind == PRODUCT_GEMM_NN ? "[L, M, K]" : "[L, M, N]";
    nvfp4_status status = check_matrix(call, out, shape2, shape3, WRITTEN, &x);
    if (!status) status = check_result_shape(call, out, &args->a, &x, p);
    if (!status) status = check_alignment(call, out, dtype_bytes(out->dtype));
    if (status) return status;
    p->out = out->data;
    p->out_type = (int32_t)out->dtype;
    p->out_pitch = x.pitch;
    p->out_batch = x.batch;

    p->beta = args->beta;
    if (absent(c)) {
        if (args->beta != 0.0f) return CONTRADICTS("beta", ("is %g but c is missing", (double)args->beta));
        return NVFP4_OK;
    }
    if (c->dtype != out->dtype)
        return REJECT(argument_name(call, c), ("dtype is %s", nvfp4_dtype_name(c->dtype)),
                      ("must be that of out, %s", nvfp4_dtype_name(out->dtype)));
    status = check_matrix(call, c, shape2, shape3, READ_ONLY, &x);
    if (!status) status = check_result_shape(call, c, &args->a, &x, p);
    if (!status) status = check_alignment(call, c, dtype_bytes(c->dtype));
    if (status || args->beta == 0.0f) return status; /* beta = 0: c is not read, as in BLAS */
    p->c = c->data;
    p->c_pitch = x.pitch;
    p->c_batch = x.batch;
    return NVFP4_OK;
}

/* A dense tensor with `columns` elements for each batch; or with one, in min_ndim dimensions or two. */
static nvfp4_status check_by_batch(const checked_call *c, const nvfp4_tensor *t, int64_t l, int64_t columns,
                                   int min_ndim) {
    const char *name = argument_name(c, t);
    const int one = t->ndim == 1 || (t->ndim == 2 && t->shape[1] == 1 && min_ndim > 0);
    const int fits = (t->ndim == 2 || (t->ndim == 1 && min_ndim == 1)) && t->shape[0] == l;
    if (!fits || !(one || t->shape[1] == columns))
        return REJECT(name, ELEMENTS_OF(t),
                      ("must have %s%lld x %lld, a row for each batch",
                       min_ndim == 1   ? "one element for each matrix of b, or "
                       : min_ndim == 2 ? "L x 1 elements, or "
                                       : "",
                       (long long)l, (long long)columns));
    if (!is_contiguous(t)) return REJECT(name, ("is not contiguous"), ("must be, with a row for each batch"));
    return check_alignment(c, t, dtype_bytes(t->dtype));
}

nvfp4_status check_alpha(const checked_call *c, const nvfp4_tensor *alpha, gemm_problem *p) {
    if (absent(alpha)) return NVFP4_OK;
    const int by_batch = element_count(alpha) != 1 && (is_grouped(p) || alpha->ndim == 2);
    if (is_nn(p) && (by_batch ? alpha->ndim == 2 && alpha->shape[1] != 1 : element_count(alpha) != 1))
        return REJECT(argument_name(c, alpha), ("has %lld elements", (long long)element_count(alpha)),
                      ("must have 1 %s" WHERE_NOT_TRANSPOSED ", since N is summed over", p->l > 1 ? "a batch " : ""));
    nvfp4_status status =
        by_batch ? check_by_batch(c, alpha, p->l, p->n, is_grouped(p) ? 1 : 2) : check_vector(c, alpha, 'N', p->n, 1);
    if (status) return status;
    p->alpha = alpha->data;
    p->alpha_stride = by_batch ? alpha->ndim == 2 && alpha->shape[1] > 1 : element_count(alpha) > 1;
    if (by_batch) p->by_batch |= ALPHA_BY_BATCH;
    return NVFP4_OK;
}

nvfp4_status check_bias(const checked_call *c, const nvfp4_tensor *bias, nvfp4_dtype out, gemm_problem *p) {
    if (absent(bias)) return NVFP4_OK;
    if (bias->dtype != NVFP4_FP32 && bias->dtype != out)
        return REJECT(argument_name(c, bias), ("dtype is %s", nvfp4_dtype_name(bias->dtype)),
                      ("must be float32 or that of out, %s", nvfp4_dtype_name(out)));
    const int by_batch = is_grouped(p) || bias->ndim == 2;
    nvfp4_status status =
        by_batch ? check_by_batch(c, bias, p->l, p->n, 0) : check_vector(c, bias, column_size(p), p->n, 0);
    if (status) return status;
    p->bias = bias->data;
    p->bias_type = (int32_t)bias->dtype;
    if (by_batch) p->by_batch |= BIAS_BY_BATCH;
    return NVFP4_OK;
}

nvfp4_status check_flags(uint32_t flags) {
    if ((flags & ~(uint32_t)(NVFP4_BATCH_INVARIANT | NVFP4_CONSTANT_B | NVFP4_NO_TRANSPOSE_B)) == 0) return NVFP4_OK;
    return REJECT("flags", ("is %u", flags),
                  ("must be 0 or a sum of %d (batch invariant), %d (constant b), %d (b not transposed)",
                   NVFP4_BATCH_INVARIANT, NVFP4_CONSTANT_B, NVFP4_NO_TRANSPOSE_B));
}

nvfp4_status check_gemm(const checked_call *c, prepared_call *call) {
    const nvfp4_gemm_args *args = c->args;
    gemm_problem *p = &call->problem.gemm;
    nvfp4_status status = check_flags(args->flags);
    if (!status) status = check_operands(c, args, p);
    if (!status) status = check_scales(c, args, p);
    if (!status) status = check_results(c, args, p);
    p->alpha_value = args->alpha_value;
    if (!status) status = check_alpha(c, &args->alpha, p);
    if (!status) status = check_bias(c, &args->bias, args->out.dtype, p);
    if (status) return status;
    p->constant_b = (args->flags & NVFP4_CONSTANT_B) != 0;
    call->is_empty = p->m == 0 || p->n == 0 || p->l == 0;
    return NVFP4_OK;
}

void bind_gemm(const checked_call *c, prepared_call *call) {
    const nvfp4_gemm_args *args = c->args;
    call->problem.gemm.out = args->out.data;
}

/* ---- its row ---- */

enum { GEMM_A, GEMM_B, GEMM_ALPHA = 4, GEMM_OUT = 7 };

#define AT(field) offsetof(nvfp4_gemm_args, field)
static const operation_tensor tensors[] = {
    [GEMM_A] = {"a", AT(a), INPUT, HOLDS_VALUES_16, 0, 0},
    [GEMM_B] = {"b", AT(b), INPUT, HOLDS_VALUES, 0, 0},
    {"scale_a", AT(scale_a), INPUT, HOLDS_SCALES, 1, 0},
    {"scale_b", AT(scale_b), INPUT, HOLDS_SCALES, 0, 0},
    [GEMM_ALPHA] = {"alpha", AT(alpha), INPUT, HOLDS_FLOAT32, 1, 0},
    {"bias", AT(bias), INPUT, HOLDS_ANY, 1, 0},
    {"c", AT(c), INPUT, HOLDS_ANY, 1, ALIAS_OF_OUTPUT},
    [GEMM_OUT] = {"out", AT(out), OUTPUT, HOLDS_FLOATS, 0, 0},
};
static const operation_scalar scalars[] = {
    {"alpha_value", SCALAR_FLOAT, AT(alpha_value), 1 + GEMM_ALPHA, NULL},
    {"beta", SCALAR_FLOAT, AT(beta), 0, NULL},
    {"scale_layout", SCALAR_LAYOUT, AT(scale_layout), 0, NULL},
    {"backend", SCALAR_BACKEND, AT(backend), 0, NULL},
    {"flags", SCALAR_FLAGS, AT(flags), 0, NULL},
};
static const operation_result results[] = {{
    .tensor = GEMM_OUT,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP16,
    .shape = {"[*batch_of(a), rows_of(a), rows_of(b)]", 0},
    .flag_shape = {"[*batch_of(a), rows_of(a), 2 * columns_of(b)]", 0},
    .flags_offset = AT(flags),
    .flags_mask = NVFP4_NO_TRANSPOSE_B,
}};
#undef AT
const operation operation_gemm = {
    .name = OPERATION(gemm),
    .tensors = TENSORS(tensors),
    .scalars = SCALARS(scalars),
    .results = RESULTS(results),
    .given = RESULTS_NEW_OR_GIVEN,
    .check = check_gemm,
    .plan = gemm_plan,
    .bind = bind_gemm,
    .run = gemm_run,
};
