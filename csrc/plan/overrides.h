/* Plans that a user has put before the ranking's choice, one a device and shape: the table of nvfp4_override_plan. */
#ifndef NVFP4_PLAN_OVERRIDES_H
#define NVFP4_PLAN_OVERRIDES_H

#include "plan/choose.h"

typedef struct plan_override {
    int64_t device, m, n, k, l;
    plan_settings settings;
    int32_t padding_;
} plan_override;

typedef struct plan_overrides {
    plan_override *entries; /* sorted, so that a call finds its own */
    size_t count;
} plan_overrides;

/* Adds one, or replaces that of the same device and shape. */
nvfp4_status overrides_add(plan_overrides *all, const plan_override *one);
/* The settings for a device and shape; split_k is 0 where there are none. */
plan_settings overrides_find(const plan_overrides *all, int32_t device, const gemm_problem *problem);
void overrides_clear(plan_overrides *all);

#endif
