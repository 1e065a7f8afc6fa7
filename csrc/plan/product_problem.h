/* The problem of a product: gemm or grouped, by its product_kind; quantize_gemm for a kernel that quantizes A too,
 * gated_grouped_quantize for one that quantizes the activation too. Each begins with a gemm_problem. C11 and C++17. */
#ifndef NVFP4_PLAN_PRODUCT_PROBLEM_H
#define NVFP4_PLAN_PRODUCT_PROBLEM_H

#include "common/gated_grouped_quantize_problem.h"
#include "common/quantize_gemm_problem.h"

typedef union product_problem {
    gemm_problem gemm;
    grouped_problem grouped;
    quantize_gemm_problem quantize_gemm;
    gated_grouped_quantize_problem gated_grouped_quantize;
} product_problem;

#endif
