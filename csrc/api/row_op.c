/* The row ops: where a call runs, and the launch. */
#include "api/row_op.h"

#include "api/launch.h"
#include "api/rules.h"
#include "common/error.h"

static void bind_blocks(const nvfp4_quantize_args *args, quantize_problem *p) {
    p->x = args->x.data;
    p->data = args->data.data;
    p->scale = args->scale.data;
}

void bind_quantize(const checked_call *c, prepared_call *call) {
    bind_blocks(c->args, &call->problem.row_op.quantize);
}

void bind_weighted_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_weighted_quantize_args *args = c->args;
    quantize_problem *p = &call->problem.row_op.quantize;
    bind_blocks(&args->quantize, p);
    p->importance = args->importance.data;
}

void bind_gptq_block(const checked_call *c, prepared_call *call) {
    const nvfp4_gptq_block_args *args = c->args;
    gptq_problem *p = &call->problem.row_op.gptq;
    p->x = args->x.data;
    p->u = args->u.data;
    p->data = args->data.data;
    p->scale = args->scale.data;
    p->error = args->error.data;
}

void bind_grouped_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_grouped_quantize_args *args = c->args;
    grouped_quantize_problem *p = &call->problem.row_op.grouped;
    bind_blocks(&args->quantize, &p->q);
    p->ends = args->ends.dtype == NVFP4_NONE ? NULL : args->ends.data;
    p->rows = args->rows.dtype == NVFP4_NONE ? NULL : args->rows.data;
    p->scale_rows = args->scale_rows.data;
}

void bind_silu_mul_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_quantize_args *args = c->args;
    grouped_quantize_problem *p = &call->problem.row_op.grouped;
    bind_blocks(args, &p->q);
    p->up = (const char *)args->x.data + p->q.k * dtype_bytes((int32_t)args->x.dtype);
}

void bind_gated_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_gated_quantize_args *args = c->args;
    grouped_quantize_problem *p = &call->problem.row_op.grouped;
    bind_blocks(&args->quantize, &p->q);
    p->up = args->up.dtype == NVFP4_NONE ? NULL : args->up.data;
    p->ends = args->ends.dtype == NVFP4_NONE ? NULL : args->ends.data;
    p->scale_rows = args->scale_rows.data;
}

void bind_rms_norm_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_rms_norm_quantize_args *args = c->args;
    norm_problem *p = &call->problem.row_op.norm;
    bind_blocks(&args->quantize, &p->q);
    p->weight = args->weight.data;
    p->residual = args->residual.dtype == NVFP4_NONE ? NULL : args->residual.data;
}

void bind_amax_scale(const checked_call *c, prepared_call *call) {
    const nvfp4_amax_scale_args *args = c->args;
    call->problem.row_op.amax.x = args->x.data;
    call->problem.row_op.amax.scale = args->scale.data;
}

void bind_swizzle(const checked_call *c, prepared_call *call) {
    const nvfp4_swizzle_args *args = c->args;
    call->problem.row_op.swizzle.linear = args->linear.data;
    call->problem.row_op.swizzle.swizzled = args->swizzled.data;
}

void bind_gated(const checked_call *c, prepared_call *call) {
    const nvfp4_gated_args *args = c->args;
    gated_problem *p = &call->problem.row_op.gated;
    p->gate = args->gate.data;
    p->up = args->up.dtype == NVFP4_NONE ? NULL : args->up.data;
    p->out = args->out.data;
}

void bind_moe_route(const checked_call *c, prepared_call *call) {
    const nvfp4_moe_route_args *args = c->args;
    moe_route_problem *p = &call->problem.row_op.moe_route;
    p->ids = args->ids.data;
    p->expert_map = args->expert_map.data;
    p->maps_ids = args->expert_map.dtype != NVFP4_NONE;
    p->rows = args->rows.data;
    p->ends = args->ends.data;
    p->places = args->places.data;
}

void bind_moe_combine(const checked_call *c, prepared_call *call) {
    const nvfp4_moe_combine_args *args = c->args;
    moe_combine_problem *p = &call->problem.row_op.moe_combine;
    p->y = args->y.data;
    p->places = args->places.data;
    p->weights = args->weights.dtype == NVFP4_NONE ? NULL : args->weights.data;
    p->out = args->out.data;
}

nvfp4_status row_op_plan(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    const operation *op = c->op;
    nvfp4_status status = find_target(context, NVFP4_AUTO, tensor_at(op, 0, c->args)->device, &call->where);
    if (status || op->planners[call->where.on_gpu ? ON_GPU : ON_HOST]) return status;
    return REJECT_AS(NVFP4_UNSUPPORTED, op->tensors[0].name, ("is on %s", call->where.on_gpu ? "a GPU" : "the CPU"),
                     ("%s runs elsewhere alone", op->name));
}

nvfp4_status row_op_launch(nvfp4_context *context, const row_op_planner *const planners[ROW_OP_TARGETS],
                           const nvfp4_call *how, const target *where, const row_op_problem *problem) {
    const row_op_planner *planner = planners[where->on_gpu ? ON_GPU : ON_HOST];
    if (!where->on_gpu) return planner->run_host(problem, how->threads);
    void *workspace;
    launch_plan plan;
    nvfp4_status status =
        find_workspace(how, planner->workspace ? planner->workspace(where->props, problem) : 0, &workspace);
    if (status) return status;
    launch_plan_init(&plan);
    planner->build(where->props, problem, workspace, &plan);
    return launch_steps(context, where, planner->kernels, &plan, how->stream);
}

nvfp4_status row_op_run(nvfp4_context *context, const checked_call *c, const prepared_call *call) {
    return row_op_launch(context, c->op->planners, c->args, &call->where, &call->problem.row_op);
}
