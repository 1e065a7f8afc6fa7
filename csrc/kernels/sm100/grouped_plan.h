/* The candidates and launches of sm100/grouped.cu (grouped_plan.c). C11 and C++17. Its kernels follow those of gemm.cu
 * in the backend's kernel_set. */
#ifndef NVFP4_SM100_GROUPED_PLAN_H
#define NVFP4_SM100_GROUPED_PLAN_H

#include "kernels/sm100/grouped_config.h"
#include "kernels/sm100/plan.h"
#include "plan/product_problem.h"

enum {
    KERNEL_LAST_OF_GEMM = SM100_CONFIGS - 1,
#define X(id, ...) KERNEL_##id,
    SM100_GROUPED_CONFIGS(X)
#undef X
        SM100_GROUPED_END
};

/* Whether the kernels reach the operands: 128x4 scales, K of whole blocks of 64, values that tensor maps describe. */
int sm100_grouped_reaches(const gemm_traits *traits);

/* For the gemm_planner of products of groups, batch-invariant or not: all candidates add in one order. */
int32_t sm100_grouped_candidates(const sm100_model *model, const device_props *props, const gemm_traits *traits,
                                 gemm_candidate *out);
int32_t sm100_grouped_with_activation(const sm100_model *model, const device_props *props,
                                      const grouped_problem *problem, const gemm_candidate *of, gemm_candidate *out);
int32_t sm100_grouped_with_quantized_activation(const sm100_model *model, const device_props *props,
                                                const gated_grouped_quantize_problem *problem, const gemm_candidate *of,
                                                gemm_candidate *out);
/* problem: grouped, or gated_grouped_quantize where the candidate quantizes. */
void sm100_grouped_build(const product_problem *problem, const gemm_candidate *candidate, launch_plan *out);

#endif
