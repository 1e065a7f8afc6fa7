/* The candidates and launches of the sm100 backend (plan.c). C11 and C++17. */
#ifndef NVFP4_SM100_PLAN_H
#define NVFP4_SM100_PLAN_H

#include "kernels/sm100/model.h"
#include "plan/operands.h"

/* An instantiation. */
typedef struct sm100_config {
    const char *name;
    int32_t cta_group, mma_tile_n, stages, accumulators, cp_async, multicast;
    int32_t shared_bytes, threads;
    int32_t co_resident;       /* 1: an SM has shared and tensor memory for two CTAs */
    const char *reasons[2][2]; /* by swap_ab, by whether K is split */
} sm100_config;

enum {
#define X(...) +1
    SM100_CONFIGS = 0 SM100_GEMM_CONFIGS(X)
#undef X
};
extern const sm100_config sm100_configs[SM100_CONFIGS];

/* All candidates with their times under given constants, at most MAX_CANDIDATES, without the backend. */
int32_t sm100_candidates(const sm100_model *model, const device_props *props, const gemm_traits *traits,
                         gemm_candidate *out);

/* Whether two columns of C can be stored as 32 bits. */
int32_t sm100_column_pairs(const gemm_problem *problem, int32_t swap_ab);

void sm100_build(const device_props *props, const gemm_problem *problem, const gemm_candidate *candidate,
                 launch_plan *out);

#endif
