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

/* Products of groups and their activation (gated_grouped_gemm.c). */
extern const composite gated_grouped_gemm_composite;
nvfp4_status check_gated_grouped_gemm(const checked_call *c, prepared_call *call);
nvfp4_status gated_grouped_gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call);
nvfp4_status gated_grouped_gemm_run(nvfp4_context *context, const checked_call *c, const prepared_call *call);

#endif
