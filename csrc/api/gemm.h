/* A product in two halves, for front ends that allocate its result: what does not need the memory of `out`, and the
 * rest. A call is checked and planned once. */
#ifndef NVFP4_API_GEMM_H
#define NVFP4_API_GEMM_H

#include "api/context.h"
#include "plan/launch_plan.h"

typedef struct gemm_call {
    gemm_problem problem;
    target where;
    gemm_candidate candidate; /* of a GPU's product that is not empty, or of the CPU's */
    int32_t candidates;       /* how many there are */
} gemm_call;

/* No element of the result is to be computed. */
static inline int gemm_is_empty(const gemm_problem *problem) {
    return problem->m == 0 || problem->n == 0 || problem->l == 0;
}

/* Chooses the plan of a call whose problem and target are known; flags: of nvfp4_gemm_args. In plan.c. */
nvfp4_status gemm_choose(nvfp4_context *context, uint32_t flags, gemm_call *call);

/* Checks the arguments and plans. out.data may be NULL: out then describes a contiguous tensor that the caller has
 * still to allocate. Nothing is written, nothing launched. */
nvfp4_status gemm_prepare(nvfp4_context *context, const nvfp4_gemm_args *args, gemm_call *call);

/* Runs a prepared call. args are those of gemm_prepare, with out.data, stream, workspace or allocate, and threads. */
nvfp4_status gemm_run(nvfp4_context *context, const nvfp4_gemm_args *args, gemm_call *call);

#endif
