/* The sm90 kernels for large products, among the candidates of sm90_plan.c. */
#ifndef NVFP4_SM90_PREFILL_PLAN_H
#define NVFP4_SM90_PREFILL_PLAN_H

#include "plan_choice.h"
#include "plan_operands.h"
#include "sm90_dequant_plan.h"
#include "sm90_prefill_configs.h"

/* Appends the candidates for a product; returns how many. */
int32_t sm90_prefill_list(const device_facts *facts, const gemm_problem *problem, plan_candidate *all);

/* The plan of a candidate, workspace included, the launch that expands, and the schedule but for its tensor maps. */
void sm90_prefill_fill(const device_facts *facts, const gemm_problem *problem, const plan_settings *settings,
                       nvfp4_plan *plan, sm90_dequant_run *expand, sm90_prefill_schedule *schedule);

/* The tensor maps; returns how many. The expansion has been placed. */
int sm90_prefill_tensors(const gemm_problem *problem, const nvfp4_plan *plan, const sm90_dequant_run *expand,
                         sm90_prefill_schedule *schedule, plan_tensor tensors[PLAN_MOST_TENSORS]);

#endif
