/* The product: its rules, its plan and its launch. */
#ifndef NVFP4_API_GEMM_H
#define NVFP4_API_GEMM_H

#include "api/operation.h"

nvfp4_status check_flags(uint32_t flags);
nvfp4_status check_gemm(const checked_call *c, prepared_call *call);
void bind_gemm(const checked_call *c, prepared_call *call);
/* Finds where a checked call runs, and chooses its plan (plan.c). */
nvfp4_status gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call);
nvfp4_status gemm_run(nvfp4_context *context, const checked_call *c, const prepared_call *call);

#endif
