/* The row ops: where a call runs, and the launch. */
#include "api/row_op.h"

#include "api/launch.h"
#include "api/rules.h"
#include "common/error.h"

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
