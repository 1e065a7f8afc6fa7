/* A product of groups of rows whose activation is quantized, after checking. C11 and device code. */
#ifndef NVFP4_COMMON_GATED_GROUPED_QUANTIZE_PROBLEM_H
#define NVFP4_COMMON_GATED_GROUPED_QUANTIZE_PROBLEM_H

#include "common/grouped_problem.h"
#include "common/row_op_problems.h"

typedef struct gated_grouped_quantize_problem {
    grouped_problem p;          /* with the activation; out has no memory */
    grouped_quantize_problem q; /* of the products, which have none either */
} gated_grouped_quantize_problem;

#endif
