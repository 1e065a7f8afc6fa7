/* The sm90 kernel for a few rows of A, among the candidates of sm90_plan.c. */
#ifndef NVFP4_SM90_GEMV_PLAN_H
#define NVFP4_SM90_GEMV_PLAN_H

#include "plan_choice.h"
#include "sm90_gemv_configs.h"

/* The product with a and b exchanged, which is the same one where result_is_column (plan_operands.h). */
gemm_problem sm90_gemv_exchanged(const gemm_problem *problem);

/* Appends the candidates for a product, if there are any; returns how many. */
int32_t sm90_gemv_list(const device_facts *facts, const gemm_problem *problem, plan_candidate *all);

/* The plan and the schedule of a candidate; swap_ab: of the exchanged product, which the kernel then is given. */
void sm90_gemv_fill(const device_facts *facts, const gemm_problem *problem, int32_t kernel, int32_t swap_ab,
                    nvfp4_plan *plan, sm90_gemv_schedule *schedule);

/* Dynamic shared memory of a CTA. */
int64_t sm90_gemv_shared_bytes(int32_t kernel, const sm90_gemv_schedule *schedule);

#endif
