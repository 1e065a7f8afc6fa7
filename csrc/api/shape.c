/* A shape of nvfp4.h: its rules, and the problem that it describes. */
#include "api/gemm.h"
#include "api/plan.h"
#include "api/rules.h"
#include "common/error.h"
#include "common/math.h"

/* The struct of an older program is shorter. */
int64_t groups_of_shape(const nvfp4_shape *s) {
    return s->size > offsetof(nvfp4_shape, groups) ? s->groups : 0;
}

int32_t operation_of_shape(const nvfp4_shape *s) {
    return s->size > offsetof(nvfp4_shape, operation) ? (int32_t)s->operation : NVFP4_SHAPE_PRODUCT;
}

/* The rules of an operation that is no product alone. */
static nvfp4_status check_shape_operation(const nvfp4_shape *s) {
    const int32_t operation = operation_of_shape(s);
    const char *dtype = nvfp4_dtype_name(s->a_dtype);
    const int is_16_bit = s->a_dtype == NVFP4_FP16 || s->a_dtype == NVFP4_BF16;
    if (operation < NVFP4_SHAPE_PRODUCT || operation > NVFP4_SHAPE_GATED_GROUPED_GEMM)
        return REJECT("operation", ("is %d", operation),
                      ("must be 0, %d (quantize_gemm) or %d (gated_grouped_gemm)", NVFP4_SHAPE_QUANTIZE_GEMM,
                       NVFP4_SHAPE_GATED_GROUPED_GEMM));
    if (operation != NVFP4_SHAPE_PRODUCT && s->flags & NVFP4_NO_TRANSPOSE_B)
        return REJECT(ARGUMENT_TRANSPOSE, (WORD_NOT_TRANSPOSED),
                      (WORD_MUST_TRANSPOSE " for quantize_gemm and gated_grouped_gemm"));
    if (operation == NVFP4_SHAPE_QUANTIZE_GEMM && !is_16_bit && s->a_dtype != NVFP4_FP32)
        return REJECT("a_dtype", ("is %s", dtype), ("must be float16, bfloat16 or float32 for quantize_gemm"));
    if (operation != NVFP4_SHAPE_QUANTIZE_GEMM && !is_16_bit && s->a_dtype != NVFP4_NONE)
        return REJECT("a_dtype", ("is %s", dtype), ("must be none (NVFP4), float16 or bfloat16"));
    if ((operation == NVFP4_SHAPE_QUANTIZE_GEMM && groups_of_shape(s)) ||
        (operation == NVFP4_SHAPE_GATED_GROUPED_GEMM && !groups_of_shape(s)))
        return REJECT("groups", ("are %lld", (long long)groups_of_shape(s)),
                      ("must be %s", groups_of_shape(s) ? "0 for quantize_gemm" : "at least 1 for gated_grouped_gemm"));
    return NVFP4_OK;
}

/* The rules of a shape. */
nvfp4_status check_shape(const nvfp4_shape *s) {
    const int64_t m = s->m, n = s->n, k = s->k, l = s->l;
    if (s->size != sizeof *s && s->size != offsetof(nvfp4_shape, groups) && s->size != offsetof(nvfp4_shape, operation))
        return REJECT("shape", ("its size is %zu", s->size), ("must be %zu, as NVFP4_SHAPE sets it", sizeof *s));
    nvfp4_status status = check_flags(s->flags);
    const int64_t groups = groups_of_shape(s);
    if (!status) status = check_shape_operation(s);
    if (status) return status;
    if (groups < 0 || groups > NVFP4_MAX_GROUPS || (groups && l != 1))
        return REJECT("groups", ("are %lld with L = %lld", (long long)groups, (long long)l),
                      ("must be between 0 and %d, with L = 1", NVFP4_MAX_GROUPS));
    if (m < 0 || n < 0 || k < 0 || l < 0 || m > INT32_MAX || n > INT32_MAX || k > INT32_MAX || l > INT32_MAX || k % 16)
        return REJECT("shape", ("is %lld x %lld x %lld x %lld", (long long)m, (long long)n, (long long)k, (long long)l),
                      ("M, N, K, L must be between 0 and %d, and K a multiple of 16", INT32_MAX));
    int64_t count;
    if (__builtin_mul_overflow(m * n, l, &count) || count > INT64_MAX / 8) /* as rules.c bounds a tensor */
        return REJECT("shape", ("M, N, L are %lld, %lld, %lld", (long long)m, (long long)n, (long long)l),
                      ("their product must be at most 2^60"));
    if (!(s->flags & NVFP4_NO_TRANSPOSE_B)) return NVFP4_OK;
    if (s->a_dtype == NVFP4_NONE)
        return REJECT(ARGUMENT_TRANSPOSE, (WORD_NOT_TRANSPOSED " but a_dtype is none (NVFP4)"),
                      (WORD_MUST_TRANSPOSE ", or a_dtype must be float16 or bfloat16"));
    if (__builtin_mul_overflow(m * k, l, &count) || count > INT64_MAX / 8)
        return REJECT("shape", ("M, K, L are %lld, %lld, %lld", (long long)m, (long long)k, (long long)l),
                      ("their product must be at most 2^60"));
    return NVFP4_OK;
}

/* The product of all rows by one matrix, of operands that lie one row after the other. */
static gemm_problem product_of_shape(const nvfp4_shape *s) {
    const int is_nn = (s->flags & NVFP4_NO_TRANSPOSE_B) != 0;
    const int is_e2m1 = s->a_dtype == NVFP4_NONE || operation_of_shape(s) == NVFP4_SHAPE_QUANTIZE_GEMM;
    const int64_t columns = is_nn ? s->k : s->n, sums_of = is_nn ? s->n : s->k;
    const int64_t a_row = is_e2m1 ? s->k / 2 : sums_of * 2;
    return (gemm_problem){.m = s->m,
                          .n = columns,
                          .k = sums_of,
                          .l = s->l,
                          .a_pitch = a_row,
                          .b_pitch = s->k / 2,
                          .a_batch = s->m * a_row,
                          .b_batch = s->n * s->k / 2,
                          .scale_a_batch = is_e2m1 ? swizzled_bytes(s->m, s->k / 16) : 0,
                          .scale_b_batch = swizzled_bytes(s->n, s->k / 16),
                          .out_type = NVFP4_FP16,
                          .out_pitch = columns * 2,
                          .out_batch = s->m * columns * 2,
                          .aligned16 = s->k % 32 == 0 && a_row % 16 == 0,
                          .a_type = is_e2m1 ? VALUES_E2M1 : (int32_t)s->a_dtype,
                          .product_kind = is_nn ? PRODUCT_GEMM_NN : PRODUCT_GEMM};
}

static grouped_problem groups_problem(const nvfp4_shape *s, gemm_problem product) {
    const int is_gated = operation_of_shape(s) == NVFP4_SHAPE_GATED_GROUPED_GEMM;
    const int32_t parts = is_gated ? 2 : 1;
    product.product_kind = product.product_kind == PRODUCT_GEMM_NN ? PRODUCT_GROUPED_NN : PRODUCT_GROUPED;
    product.l = groups_of_shape(s) * parts;
    product.a_batch = product.scale_a_batch = 0;
    product.out_batch = is_gated ? 0 : product.n * 2;
    return (grouped_problem){.g = product,
                             .a_rows = s->m,
                             .groups = (int32_t)groups_of_shape(s),
                             .parts = parts,
                             .has_activation = is_gated,
                             .activation = NVFP4_SILU,
                             .limit = INFINITY,
                             .activation_alpha = 1.702f};
}

void set_problem_of_shape(const nvfp4_shape *s, prepared_call *call) {
    const gemm_problem product = product_of_shape(s);
    const int64_t row = s->k * dtype_bytes((int32_t)s->a_dtype);
    call->is_empty = product.m == 0 || product.n == 0 || product.l == 0;
    if (groups_of_shape(s))
        call->problem.grouped = groups_problem(s, product);
    else if (operation_of_shape(s) == NVFP4_SHAPE_QUANTIZE_GEMM)
        call->problem.quantize_gemm = (quantize_gemm_problem){.g = product,
                                                              .q = {.rows = s->m,
                                                                    .k = s->k,
                                                                    .l = s->l,
                                                                    .x_pitch = row,
                                                                    .x_batch = s->m * row,
                                                                    .global_value = 1.0f,
                                                                    .scale_layout = NVFP4_128X4,
                                                                    .x_type = (int32_t)s->a_dtype,
                                                                    .block_scale = NVFP4_AMAX6}};
    else
        call->problem.gemm = product;
}
