/* A call between its check and its launch. */
#ifndef NVFP4_API_CALL_H
#define NVFP4_API_CALL_H

#include "api/context.h"
#include "plan/gemm_backend.h"
#include "plan/launch_plan.h"
#include "plan/row_op.h"

/* A problem as its check leaves it: pointers, sizes and strides. */
typedef union call_problem {
    product_problem product; /* one of the next three, in the type that planners take */
    gemm_problem gemm;
    grouped_problem grouped;
    quantize_gemm_problem quantize_gemm;
    row_op_problem row_op;
} call_problem;

typedef struct prepared_call {
    call_problem problem;
    target where;
    gemm_candidate candidate; /* of a product */
    int32_t candidates;       /* how many there are */
    int32_t is_empty;         /* 1: there is nothing to compute */
    int32_t is_fused;         /* 1: the candidate quantizes A too, or computes the activation (and quantizes it) too */
    int64_t intermediate_bytes; /* of workspace before the candidate's, for what two steps share */
} prepared_call;

#endif
