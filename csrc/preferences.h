/* Plans that a user prefers to the estimate's choice, one a device and shape: sorted, so that a call finds its own. */
#ifndef NVFP4_PREFERENCES_H
#define NVFP4_PREFERENCES_H

#include "device/problem.h"
#include "nvfp4.h"
#include "plan.h"

typedef struct preference {
    int64_t device, m, n, k, l;
    plan_settings settings;
} preference;

typedef struct preferences {
    preference *entries;
    size_t count;
} preferences;

/* Adds one, in place of what was said of that device and shape before. */
nvfp4_status preferences_add(preferences *all, const preference *one);
/* The settings preferred for a device and shape; those with split_k = 0 where there are none. */
plan_settings preferences_find(const preferences *all, int32_t device, const gemm_problem *problem);
void preferences_forget(preferences *all);

#endif
