/* Plans that a user has put before the first of the ranking, one for a device and a product: the table of
 * nvfp4_override_plan. */
#ifndef NVFP4_PLAN_OVERRIDES_H
#define NVFP4_PLAN_OVERRIDES_H

#include "plan/choose.h"

/* The products that an override holds for. Keys are compared as bytes: no padding. */
typedef struct override_key {
    int64_t m, n, k, l;
    int32_t device, product_kind, a_type; /* the latter two as of gemm_problem */
    int32_t padding_;
} override_key;

typedef struct plan_override {
    override_key key;
    plan_settings settings;
} plan_override;

/* Any threads may add, find and clear at the same time. */
typedef struct plan_overrides plan_overrides;

plan_overrides *overrides_create(void); /* NULL: no memory */
void overrides_destroy(plan_overrides *all);
size_t overrides_count(const plan_overrides *all);
override_key override_key_of(int32_t device, const gemm_problem *problem);

/* Adds one, or replaces that of the same key. */
nvfp4_status overrides_add(plan_overrides *all, const plan_override *one);
/* The settings for a device and product; split_k is 0 where there are none. */
plan_settings overrides_find(plan_overrides *all, int32_t device, const gemm_problem *problem);
void overrides_clear(plan_overrides *all);

#endif
