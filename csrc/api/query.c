/* Answers questions about plans, without a launch. */
#include "api/gemm.h"
#include "api/plan.h"
#include "plan/gemm_backend.h"

static void describe(const prepared_call *call, nvfp4_plan *plan) {
    const gemm_candidate *c = &call->candidate;
    *plan = (nvfp4_plan){
        .backend = c->backend,
        .name = c->name,
        .reason = c->reason,
        .tile_m = c->tile_m,
        .tile_n = c->tile_n,
        .tile_k = c->tile_k,
        .stages = c->stages,
        .swap_ab = c->swap_ab,
        .split_k = c->split_k,
        .grid = c->grid,
        .workspace = (size_t)(c->workspace + call->intermediate_bytes),
        .prefetch_stages = c->prefetch_stages,
        .ctas_per_sm = c->ctas_per_sm,
        .candidates = call->candidates,
        .modelled_us = c->modelled_us,
        .single_us = c->single_us,
        .is_fused = call->is_fused,
        .model = call->where.on_gpu ? gemm_backends[c->backend]->model(call->where.props) : NULL,
    };
}

static nvfp4_status plan_of(nvfp4_context *context, const operation *op, const void *args, nvfp4_plan *plan) {
    operation_args own;
    prepared_call call;
    const checked_call c = {op, complete_args(op, args, &own)};
    if (!c.args) return NVFP4_INVALID;
    nvfp4_status status = operation_prepare(context, &c, &call);
    if (!status) describe(&call, plan);
    return status;
}

nvfp4_status nvfp4_gemm_plan(nvfp4_context *context, const nvfp4_gemm_args *args, nvfp4_plan *plan) {
    return plan_of(context, &operation_gemm, args, plan);
}

nvfp4_status nvfp4_quantize_gemm_plan(nvfp4_context *context, const nvfp4_quantize_gemm_args *args, nvfp4_plan *plan) {
    return plan_of(context, &operation_quantize_gemm, args, plan);
}

nvfp4_status nvfp4_grouped_gemm_plan(nvfp4_context *context, const nvfp4_grouped_gemm_args *args, nvfp4_plan *plan) {
    return plan_of(context, &operation_grouped_gemm, args, plan);
}

nvfp4_status nvfp4_gated_grouped_gemm_plan(nvfp4_context *context, const nvfp4_gated_grouped_gemm_args *args,
                                           nvfp4_plan *plan) {
    return plan_of(context, &operation_gated_grouped_gemm, args, plan);
}

nvfp4_status nvfp4_gated_grouped_quantize_plan(nvfp4_context *context, const nvfp4_gated_grouped_quantize_args *args,
                                               nvfp4_plan *plan) {
    return plan_of(context, &operation_gated_grouped_quantize, args, plan);
}

nvfp4_status nvfp4_plan_shape(nvfp4_context *context, const nvfp4_shape *shape, nvfp4_plan *plan) {
    prepared_call call;
    nvfp4_status status = check_shape(shape);
    if (status) return status;
    set_problem_of_shape(shape, &call);
    status = find_target(context, shape->backend, shape->device, &call.where);
    if (status) return status;
    switch (operation_of_shape(shape)) {
    case NVFP4_SHAPE_QUANTIZE_GEMM:
        status = composite_plan(context, &quantize_gemm_composite, shape->flags, &call);
        break;
    case NVFP4_SHAPE_GATED_GROUPED_GEMM:
        status = composite_plan(context, &gated_grouped_gemm_composite, shape->flags, &call);
        break;
    default:
        status = plan_product(context, &call.problem.product, shape->flags, &call);
    }
    if (!status) describe(&call, plan);
    return status;
}
