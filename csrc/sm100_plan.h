/* Which sm100 kernel runs a product, how it is cut up, and what its tensor maps describe. Pure, as plan.h. */
#ifndef NVFP4_SM100_PLAN_H
#define NVFP4_SM100_PLAN_H

#include "device/problem.h"
#include "nvfp4.h"
#include "plan.h"
#include "sm100_configs.h"

/* What sets a plan for a product apart from the others for it. */
typedef struct sm100_settings {
    int32_t kernel; /* kernel_id */
    int32_t swapped, split_k, prefetch_stages;
} sm100_settings;

/* Which plan to take: plans are in the order of their estimated times, but for the first. */
typedef struct sm100_wish {
    sm100_settings first; /* stands before all others, where the product has such a plan; split_k = 0: none does */
    int32_t candidate;    /* the place of the plan to take, from 0 on; the last, where there are not so many */
} sm100_wish;

/* Fills the plan, and the schedule but for its tensor maps; without a wish by the estimate alone. Sizes of the problem
 * are at least 1 (k may be 0). Fails, with a sentence, only where no configuration fits the device or the tiles cannot
 * be counted. */
nvfp4_status sm100_plan(const device_facts *facts, const gemm_problem *problem, const sm100_wish *wish,
                        nvfp4_plan *plan, sm100_schedule *schedule);

/* A tensor map that a planned product needs: what is encoded, and where in the schedule. */
typedef struct sm100_tensor {
    tensor_layout layout;
    tensor_map *map;
} sm100_tensor;
enum { SM100_TENSORS = 4 };

/* The tensor maps of a planned product, 0 to SM100_TENSORS of them; returns how many. */
int sm100_tensors(const gemm_problem *problem, const nvfp4_plan *plan, sm100_schedule *schedule,
                  sm100_tensor tensors[SM100_TENSORS]);

/* CTAs of a cluster. */
int32_t sm100_cluster(const nvfp4_plan *plan);

/* Bytes of shared memory that partial sums take behind what the kernel always has. */
int32_t sm100_parts_bytes(const nvfp4_plan *plan, const sm100_schedule *schedule);

#endif
