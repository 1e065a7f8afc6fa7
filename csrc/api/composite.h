/* Operations that are two in turn: a product, and a row op before or after it. */
#ifndef NVFP4_API_COMPOSITE_H
#define NVFP4_API_COMPOSITE_H

#include "api/call.h"
#include "plan/gemm_backend.h"

typedef struct composite {
    const row_op_planner *row_op[ROW_OP_TARGETS];
    int32_t product_is_first;
    /* Bytes of what the first step writes and the second one reads; a multiple of 16. */
    int64_t (*intermediate_bytes)(const call_problem *problem);
    /* Fills the problems of both steps, which share these bytes at `memory`; NULL for a plan, which reads no addresses.
     * Returns 0 if the row op has nothing to do. */
    int32_t (*fill_steps)(const call_problem *problem, void *memory, product_problem *product, row_op_problem *row_op);
    /* One kernel for both, with the bits of this candidate of the product; 0: there is none, or two are faster. */
    int32_t (*fuse)(const gemm_planner *planner, const device_props *props, const call_problem *problem,
                    const gemm_candidate *of, gemm_candidate *out);
    const char *argument, *contents; /* of the error where the host has no memory for these bytes */
} composite;

/* Chooses the plan of a checked call on its target. */
nvfp4_status composite_plan(nvfp4_context *context, const composite *both, uint32_t flags, prepared_call *call);
nvfp4_status composite_run(nvfp4_context *context, const composite *both, const nvfp4_call *how,
                           const prepared_call *call);

#endif
