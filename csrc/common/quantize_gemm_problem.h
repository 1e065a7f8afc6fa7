/* A product whose A is quantized first, after checking. C11 and device code. */
#ifndef NVFP4_COMMON_QUANTIZE_GEMM_PROBLEM_H
#define NVFP4_COMMON_QUANTIZE_GEMM_PROBLEM_H

#include "common/problem.h"
#include "common/row_op_problems.h"

typedef struct quantize_gemm_problem {
    gemm_problem g;     /* a and scale_a are q's data and scale */
    quantize_problem q; /* its x is the call's a */
} quantize_gemm_problem;

#endif
