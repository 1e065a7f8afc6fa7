/* Plans that a user puts before those that are chosen. */
#include <string.h>

#include "api/plan.h"
#include "api/rules.h"
#include "common/error.h"

/* The settings that a plan names; backend NVFP4_AUTO and kernel -1 where no kernel has its name. */
static plan_settings settings_of(const nvfp4_plan *plan) {
    plan_settings s = {.kernel = -1,
                       .swap_ab = plan->swap_ab,
                       .split_k = plan->split_k,
                       .prefetch_stages = plan->prefetch_stages,
                       .ctas_per_sm = plan->ctas_per_sm};
    for (int32_t b = 0; b < GEMM_BACKENDS; b++) {
        const kernel_set *set = gemm_backends[b] ? gemm_backends[b]->kernels : NULL;
        for (int32_t k = 0; set && k < set->count; k++)
            if (strcmp(plan->name, set->kernels[k].name) == 0) s.backend = b, s.kernel = k;
    }
    return s;
}

nvfp4_status nvfp4_override_plan(nvfp4_context *context, const nvfp4_shape *shape, const nvfp4_plan *plan) {
    prepared_call call = {.candidates = 0};
    nvfp4_status status = check_shape(shape);
    if (status) return status;
    if (!plan->name) return REJECT("plan", ("has no name"), ("must be one that nvfp4_gemm_plan has filled"));
    if (shape->device < 0) return REJECT("device", ("is %d", shape->device), ("must be the ordinal of a GPU"));
    if (groups_of_shape(shape))
        return REJECT("groups", ("are %lld", (long long)shape->groups), ("must be 0 for an override"));
    if (operation_of_shape(shape) != NVFP4_SHAPE_PRODUCT)
        return REJECT("operation", ("is %d", operation_of_shape(shape)), ("must be 0 for an override"));
    if (shape->flags & ~(uint32_t)NVFP4_NO_TRANSPOSE_B)
        return REJECT("flags", ("is %u", shape->flags),
                      ("must be 0 or %d (b not transposed) for an override", NVFP4_NO_TRANSPOSE_B));
    const plan_settings settings = settings_of(plan);
    const gemm_problem *p = &call.problem.gemm;
    set_problem_of_shape(shape, &call);
    status = find_target(context, shape->backend == NVFP4_AUTO ? settings.backend : (int32_t)shape->backend,
                         shape->device, &call.where);
    if (!status && !call.is_empty) status = plan_on_gpu(context, &call.problem.product, 0, &settings, 0, &call);
    if (status) return status;
    if (call.candidates == 0 || !candidate_is(&call.candidate, &settings))
        return CONTRADICTS("plan",
                           ("is %s, swap_ab = %d, split_k = %d, prefetch_stages = %d, ctas_per_sm = %d, which is none "
                            "of the %d plans for a product of M = %lld, N = %lld, K = %lld, L = %lld%s%s%s on cuda:%d",
                            plan->name, plan->swap_ab, plan->split_k, plan->prefetch_stages, plan->ctas_per_sm,
                            call.candidates, (long long)shape->m, (long long)shape->n, (long long)shape->k,
                            (long long)shape->l, p->a_type == VALUES_E2M1 ? "" : " with a of ",
                            p->a_type == VALUES_E2M1 ? "" : nvfp4_dtype_name((nvfp4_dtype)p->a_type),
                            p->product_kind == PRODUCT_GEMM_NN ? ", b not transposed," : "", call.where.device));
    const plan_override one = {.key = override_key_of(call.where.device, p), .settings = settings};
    return overrides_add(context->overrides, &one);
}
