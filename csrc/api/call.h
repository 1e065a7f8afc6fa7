/* A call between its check and its launch. */
#ifndef NVFP4_API_CALL_H
#define NVFP4_API_CALL_H

#include "api/context.h"
#include "common/grouped_problem.h"
#include "common/quantize_gemm_problem.h"
#include "plan/launch_plan.h"
#include "plan/row_op.h"

/* A problem as its check leaves it: pointers, sizes and strides. */
typedef union call_problem {
    gemm_problem gemm;
    grouped_problem grouped;             /* begins with a gemm_problem */
    quantize_gemm_problem quantize_gemm; /* so does this */
    row_op_problem row_op;
} call_problem;

typedef struct prepared_call {
    call_problem problem;
    target where;
    gemm_candidate candidate; /* of a product */
    int32_t candidates;       /* how many there are */
    int32_t is_empty;         /* 1: there is nothing to compute */
    int32_t is_fused;         /* 1: the candidate quantizes A too, or computes the activation too */
} prepared_call;

#endif
