/* The plans of the sm120 backend share its kernels' numbers in the kernel_set, candidates and launches. */
#ifndef NVFP4_SM120_PLAN_H
#define NVFP4_SM120_PLAN_H

#include "kernels/sm120/grouped_config.h"
#include "kernels/sm120/grouped_units_config.h"
#include "kernels/sm120/model.h"
#include "kernels/sm120/units_config.h"
#include "kernels/units/plan.h"
#include "plan/gemm_backend.h"
#include "plan/operands.h"

enum {
#define X(id, ...) KERNEL_##id,
    SM120_GEMM_CONFIGS(X) SM120_GROUPED_CONFIGS(X) SM120_UNITS_CONFIGS(X) SM120_GROUPED_UNITS_CONFIGS(X)
#undef X
        SM120_KERNELS,
#define X(...) +1
    SM120_CONFIGS = 0 SM120_GEMM_CONFIGS(X), /* those of gemm.cu, which come first */
    SM120_GROUPED_END = SM120_CONFIGS SM120_GROUPED_CONFIGS(X)
#undef X
};

extern const sm120_model sm120_published;

/* All candidates of a product with their times under given constants. */
int32_t sm120_candidates(const sm120_model *model, const device_props *props, const gemm_traits *traits,
                         gemm_candidate *out);

/* The kernels of grouped.cu, for the gemm_planner of products of groups, batch-invariant or not: all add in one order.
 */
int32_t sm120_grouped_candidates(const device_props *props, const gemm_traits *traits, gemm_candidate *out);
int32_t sm120_grouped_with_activation(const device_props *props, const grouped_problem *problem,
                                      const gemm_candidate *of, gemm_candidate *out);
void sm120_grouped_build(const device_props *props, const product_problem *problem, const gemm_candidate *candidate,
                         void *workspace, launch_plan *out);

/* The kernels of kernels/units, for the gemm_planners, where A has 16 bits. */
units_target sm120_units(const device_props *props);

/* Adds the tensor map of an operand's values, whose boxes are a stage along K by `rows` rows. */
void sm120_add_values_map(const gemm_problem *problem, int is_b, int64_t batches, int32_t stage_k, int32_t rows,
                          mma_operand *operand, launch_plan *out);

#endif
