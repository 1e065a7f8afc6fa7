/* The candidates of the sm120 family (plan.c). */
#ifndef NVFP4_SM120_PLAN_H
#define NVFP4_SM120_PLAN_H

#include "kernels/sm120/model.h"
#include "plan/gemm_family.h"

enum {
#define X(...) +1
    SM120_CONFIGS = 0 SM120_GEMM_CONFIGS(X)
#undef X
};

/* All candidates with their times under given constants. */
int32_t sm120_candidates(const sm120_model *model, const device_props *props, const gemm_traits *traits,
                         gemm_candidate *out);

#endif
