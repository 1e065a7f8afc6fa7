/* Which sm80 kernel runs a product, and how it is cut up. */
#ifndef NVFP4_SM80_PLAN_H
#define NVFP4_SM80_PLAN_H

#include "device/problem.h"
#include "nvfp4.h"
#include "plan.h"
#include "sm80_configs.h"

/* Fills the plan, workspace included, and the schedule but for its workspace pointer (partial, NULL here). Reads the
 * sizes of the problem alone, which are at least 1 (k may be 0). Fails, with a sentence, only where no configuration
 * fits the device or the grid. */
nvfp4_status sm80_plan(const device_facts *facts, const gemm_problem *problem, nvfp4_plan *plan,
                       sm80_schedule *schedule);

#endif
