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

/* For the gemm_planners, where A has 16 bits; `model` is of the device. */
units_target sm100_units(const sm100_model *model, const device_props *props);

#endif
