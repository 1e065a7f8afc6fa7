/* Which of the ways to run a product to take, for families that have many: listed by the family's own rules, in the
 * order of their estimated times, and remembered. */
#ifndef NVFP4_PLAN_CHOICE_H
#define NVFP4_PLAN_CHOICE_H

#include "device/problem.h"
#include "plan.h"

typedef struct plan_candidate {
    plan_settings settings;
    double time; /* estimated, us a call */
} plan_candidate;

enum { PLAN_MOST_CANDIDATES = 384 };

/* Writes the candidates for a product, in any order, and returns how many there are. Depends on nothing but the sizes
 * of the problem, its scale_layout, whether out_type is OUT_FP32, whether tensor maps reach the values and whether the
 * result is a column (plan_operands.h), whether A or B with its scales serves all batches (strides of 0), and the facts
 * sm_count, shared_per_block and shared_per_sm. */
typedef int32_t plan_lister(const device_facts *facts, const gemm_problem *problem,
                            plan_candidate all[PLAN_MOST_CANDIDATES]);

typedef struct plan_choice {
    plan_candidate taken;
    int32_t candidates; /* how many there were; 0: nothing is taken */
} plan_choice;

/* The candidate that the wish asks for; without a wish the one of the least estimated time. */
plan_choice plan_choose(int32_t family, plan_lister *list, const device_facts *facts, const gemm_problem *problem,
                        const plan_wish *wish);

#endif
