/* W4A16 of few rows by the kernels of kernels/units (units_plan.c). Their numbers follow those of sm100/grouped.cu in the
 * backend's kernel_set. */
#ifndef NVFP4_SM100_UNITS_PLAN_H
#define NVFP4_SM100_UNITS_PLAN_H

#include "kernels/sm100/grouped_plan.h"
#include "kernels/sm100/grouped_units_config.h"
#include "kernels/sm100/units_config.h"
#include "kernels/units/plan.h"

enum {
    KERNEL_LAST_OF_GROUPED = SM100_GROUPED_END - 1,
#define X(id, ...) KERNEL_##id,
    SM100_UNITS_CONFIGS(X) SM100_GROUPED_UNITS_CONFIGS(X)
#undef X
        SM100_KERNELS
};

/* For the gemm_planners, where A has 16 bits; `model` is of the device. Candidates have single_us. */
int32_t sm100_units_candidates(const sm100_model *model, const device_props *props, const gemm_traits *traits,
                               gemm_candidate *out);
int32_t sm100_grouped_units_candidates(const sm100_model *model, const device_props *props, const gemm_traits *traits,
                                       gemm_candidate *out);
int32_t sm100_grouped_units_with_activation(const sm100_model *model, const device_props *props,
                                            const grouped_problem *problem, const gemm_candidate *of,
                                            gemm_candidate *out);

#endif
