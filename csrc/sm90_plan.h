/* Which sm90 kernel runs a product, how it is cut up, and what its tensor maps describe. Pure, as plan.h. */
#ifndef NVFP4_SM90_PLAN_H
#define NVFP4_SM90_PLAN_H

#include "device/problem.h"
#include "nvfp4.h"
#include "plan.h"
#include "plan_operands.h"
#include "sm90_configs.h"

/* Fills the plan, and the schedule but for its tensor maps; without a wish by the estimate alone. Sizes of the problem
 * are at least 1 (k may be 0). Fails, with a sentence, only where no configuration fits the device or the tiles cannot
 * be counted. */
nvfp4_status sm90_plan(const device_facts *facts, const gemm_problem *problem, const plan_wish *wish, nvfp4_plan *plan,
                       sm90_schedule *schedule);

/* The tensor maps of a planned product, 0 to PLAN_MOST_TENSORS of them; returns how many. */
int sm90_tensors(const gemm_problem *problem, const nvfp4_plan *plan, sm90_schedule *schedule,
                 plan_tensor tensors[PLAN_MOST_TENSORS]);

/* Bytes of shared memory that partial sums take behind what the kernel always has. */
int32_t sm90_parts_bytes(const nvfp4_plan *plan, const sm90_schedule *schedule);

#endif
