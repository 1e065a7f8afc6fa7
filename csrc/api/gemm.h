/* The product: its rules, its plan and its launch. */
#ifndef NVFP4_API_GEMM_H
#define NVFP4_API_GEMM_H

#include "api/composite.h"
#include "api/operation.h"
#include "api/rules.h"

nvfp4_status check_flags(uint32_t flags);
nvfp4_status check_gemm(const checked_call *c, prepared_call *call);
void bind_gemm(const checked_call *c, prepared_call *call);
/* Finds where a checked call runs, and chooses its plan (plan.c). */
nvfp4_status gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call);
/* The rules of alpha and bias of a product with `columns` columns, by the name that a caller gives to their number. */
nvfp4_status check_alpha(const checked_call *c, const nvfp4_tensor *alpha, gemm_problem *p);
nvfp4_status check_bias(const checked_call *c, const nvfp4_tensor *bias, nvfp4_dtype out, gemm_problem *p);
/* A 16-bit a, with aligned rows; without the transposition of b, rows of any length. */
nvfp4_status check_activations(const checked_call *c, const nvfp4_tensor *t, int no_transpose_b, matrix *x);
nvfp4_status gemm_run(nvfp4_context *context, const checked_call *c, const prepared_call *call);
/* Launches or computes a product by a candidate of its plan. */
nvfp4_status product_launch(nvfp4_context *context, const nvfp4_call *how, const target *where,
                            const gemm_candidate *candidate, const product_problem *p);

/* A product whose A is quantized first (quantize_gemm.c). */
extern const composite quantize_gemm_composite;

/* The rules of products of groups, which run as others do; has_activation: for out of [T, N]. */
nvfp4_status check_groups(const checked_call *c, const nvfp4_grouped_gemm_args *args, int has_activation,
                          prepared_call *call);
/* Makes [E, P, N, K/2] of b, with its scales and factors, a stack of E * P matrices. */
nvfp4_status join_parts(operation_args *args);
nvfp4_status grouped_gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call);

/* The rows of tensors that the operations of groups read, and of their scalars: the arguments of all begin with those
 * of grouped_gemm, of gated ones with those of gated_grouped_gemm. */
#define GROUPED_AT(field) offsetof(nvfp4_grouped_gemm_args, field)
#define GATED_AT(field)   offsetof(nvfp4_gated_grouped_gemm_args, field)
enum { GROUPED_B = 1, GROUPED_SCALE_B = 3, GROUPED_ALPHA = 8, GROUPED_INPUT_COUNT = 10 };
#define GROUPED_INPUTS                                                                                                 \
    {"a", GROUPED_AT(a), INPUT, HOLDS_VALUES_16, 0, 0}, {"b", GROUPED_AT(b), INPUT, HOLDS_VALUES, 0, 0},               \
        {"scale_a", GROUPED_AT(scale_a), INPUT, HOLDS_SCALES, 1, 0},                                                   \
        {"scale_b", GROUPED_AT(scale_b), INPUT, HOLDS_SCALES, 0, 0},                                                   \
        {"ends", GROUPED_AT(ends), INPUT, HOLDS_INT32, 0, 0}, {"rows", GROUPED_AT(rows), INPUT, HOLDS_INT32, 1, 0},    \
        {"scale_rows", GROUPED_AT(scale_rows), INPUT, HOLDS_INT32, 1, 0},                                              \
        {"row_scale", GROUPED_AT(row_scale), INPUT, HOLDS_FLOAT32, 1, 0},                                              \
        {"alpha", GROUPED_AT(alpha), INPUT, HOLDS_FLOAT32, 1, 0}, {"bias", GROUPED_AT(bias), INPUT, HOLDS_ANY, 1, 0}
#define GROUPED_FACTOR {"alpha_value", SCALAR_FLOAT, GROUPED_AT(alpha_value), 1 + GROUPED_ALPHA, NULL}
#define GROUPED_SCALARS                                                                                                \
    {"scale_layout", SCALAR_LAYOUT, GROUPED_AT(scale_layout), 0, NULL},                                                \
        {"backend", SCALAR_BACKEND, GROUPED_AT(backend), 0, NULL}, {                                                   \
        "flags", SCALAR_FLAGS, GROUPED_AT(flags), 0, NULL                                                              \
    }
#define GATED_SCALARS                                                                                                  \
    {"activation", SCALAR_ACTIVATION, GATED_AT(activation), 0, NULL},                                                  \
        {"limit", SCALAR_FLOAT, GATED_AT(limit), 0, NULL}, {                                                           \
        "activation_alpha", SCALAR_FLOAT, GATED_AT(activation_alpha), 0, NULL                                          \
    }

/* A product with an activation writes the results of all parts side by side where another launch computes the
 * activation; their bytes are a multiple of 16. The former returns the place of up's; NULL: there is none, or no
 * memory. */
const void *fill_products_of_parts(const grouped_problem *p, void *memory, grouped_problem *product);
int64_t products_of_parts_bytes(const call_problem *problem);

/* Products of groups and their activation (gated_grouped_gemm.c). */
extern const composite gated_grouped_gemm_composite;
nvfp4_status check_gated_grouped_gemm(const checked_call *c, prepared_call *call);
nvfp4_status gated_grouped_gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call);
nvfp4_status gated_grouped_gemm_run(nvfp4_context *context, const checked_call *c, const prepared_call *call);

#endif
