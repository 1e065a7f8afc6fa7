/* Chooses the plan of a product. */
#include "api/plan.h"

#include <string.h>

#include "api/gemm.h"
#include "common/error.h"
#include "plan/choose.h"

nvfp4_status plan_on_gpu(nvfp4_context *context, const product_problem *p, uint32_t flags,
                         const plan_settings *override, int32_t rank, prepared_call *call) {
    const target *where = &call->where;
    plan_query query;
    memset(&query, 0, sizeof query);
    query.traits = traits_of(&p->gemm);
    if (query.traits.product_kind >= PRODUCT_GROUPED) query.traits.groups = p->grouped.groups;
    query.props = *where->props;
    query.backends = where->backends;
    query.override = *override;
    query.rank = rank;
    query.batch_invariant = (flags & NVFP4_BATCH_INVARIANT) != 0;
    const plan_answer *answer = plan_choose(&query);
    call->candidates = answer->candidates;
    call->candidate = answer->taken;
    if (answer->candidates) return NVFP4_OK;
    if (!backends_taking(where->backends, &p->gemm)) return reject_backends(context, where, &p->gemm);
    return query.batch_invariant ? reject_batch_invariant(context, where, &query) : reject_product(&query);
}

static nvfp4_status plan_on_host(nvfp4_context *context, const gemm_problem *p, uint32_t flags, prepared_call *call) {
    for (int32_t b = 0; b < GEMM_BACKENDS; b++) {
        const gemm_planner *planner = planner_of(b, p->product_kind, p->a_type);
        if (!planner || !(call->where.backends >> b & 1)) continue;
        if (!planner->candidates(NULL, NULL, &call->candidate)) return planner->reject(NULL, NULL);
        call->candidate.batch_invariant = (flags & NVFP4_BATCH_INVARIANT) != 0;
        return NVFP4_OK;
    }
    return reject_backends(context, &call->where, p);
}

/* The plan of a product without results names the newest backend that may run it. */
static gemm_candidate no_launch(const target *where) {
    return (gemm_candidate){
        .backend = 31 - __builtin_clz(where->backends), .name = "none", .reason = "the result is empty", .split_k = 1};
}

nvfp4_status plan_product(nvfp4_context *context, const product_problem *p, uint32_t flags, prepared_call *call) {
    const target *where = &call->where;
    call->candidates = call->is_fused = 0;
    call->intermediate_bytes = 0;
    if (!where->on_gpu) return plan_on_host(context, &p->gemm, flags, call);
    if (p->gemm.product_kind >= PRODUCT_GROUPED && p->grouped.b_list)
        return CONTRADICTS("b", ("is a list but the backend runs on a GPU; must be one tensor there"));
    if (call->is_empty) {
        call->candidate = no_launch(where);
        return NVFP4_OK;
    }
    const plan_settings override = overrides_find(context->overrides, where->device, &p->gemm);
    return plan_on_gpu(context, p, flags, &override, context->rank, call);
}

nvfp4_status gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    const nvfp4_gemm_args *args = c->args;
    nvfp4_status status = find_target(context, args->backend, args->a.device, &call->where);
    return status ? status : plan_product(context, &call->problem.product, args->flags, call);
}

nvfp4_status grouped_gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    const nvfp4_grouped_gemm_args *args = c->args;
    nvfp4_status status = find_target(context, args->backend, args->a.device, &call->where);
    return status ? status : plan_product(context, &call->problem.product, args->flags, call);
}
