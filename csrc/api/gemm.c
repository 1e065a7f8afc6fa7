/* One product: check, plan (plan.c), launch. No family of kernels is named here. */
#include "api/gemm.h"

#include <stdio.h>

#include "api/check.h"
#include "common/error.h"
#include "plan/gemm_family.h"

nvfp4_status gemm_prepare(nvfp4_context *context, const nvfp4_gemm_args *args, gemm_call *call) {
    nvfp4_status status = check_gemm(args, &call->problem);
    if (!status) status = find_target(context, args->backend, args->a.device, &call->where);
    return status ? status : gemm_choose(context, args->flags, call);
}

static const gemm_planner *planner_of_call(const gemm_call *call) {
    return planner_of(call->candidate.family, call->problem.operation, call->problem.a_type);
}

/* Encodes the tensor maps of a launch plan into its parameters, and launches its steps. */
static nvfp4_status launch(driver *d, const gemm_call *call, launch_plan *plan, void *stream) {
    const kernel_set *set = gemm_families[call->candidate.family]->kernels;
    nvfp4_status status = NVFP4_OK;
    for (int32_t i = 0; i < plan->tensor_maps && !status; i++)
        status = driver_encode(d, call->where.device, &plan->tensor_map[i].layout,
                               plan->params + plan->tensor_map[i].offset);
    for (int32_t i = 0; i < plan->steps && !status; i++) {
        const launch_step *step = &plan->step[i];
        void *params[PLAN_MAX_PARAMS];
        for (int32_t j = 0; j < step->params; j++) params[j] = plan->params + step->param_offset[j];
        const kernel_launch one = {.set = set,
                                   .kernel = step->kernel,
                                   .cluster = step->cluster,
                                   .grid_x = step->grid_x,
                                   .grid_y = step->grid_y,
                                   .shared_bytes = step->shared_bytes,
                                   .params = params,
                                   .stream = stream};
        status = driver_launch(d, call->where.device, &one);
    }
    return status ? status : driver_watch(d, call->where.device, stream);
}

static nvfp4_status run_on_gpu(nvfp4_context *context, const nvfp4_gemm_args *args, const gemm_call *call) {
    const gemm_candidate *candidate = &call->candidate;
    void *workspace;
    launch_plan plan;
    const workspace_source source = {args->workspace, args->workspace_size, args->allocate, args->owner};
    nvfp4_status status = find_workspace(&source, candidate->workspace, &workspace);
    if (status) return status;
    launch_plan_init(&plan);
#ifdef NVFP4_DUMP
    plan.dump = context->dump, plan.dump_cta = context->dump_cta, plan.dump_k_block = context->dump_k_block;
#endif
    planner_of_call(call)->build(call->where.props, &call->problem, candidate, workspace, &plan);
    status = launch(context->driver, call, &plan, args->stream);
    if (!call->where.host_memory) return status;
    if (!status) return driver_synchronize(context->driver, call->where.device, args->stream);
    /* An earlier launch may still use the caller's memory. If waiting for it fails too, the first error is told. */
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", nvfp4_last_error());
    driver_synchronize(context->driver, call->where.device, args->stream);
    return fail(status, "%s", reason);
}

nvfp4_status gemm_run(nvfp4_context *context, const nvfp4_gemm_args *args, gemm_call *call) {
    nvfp4_status status = check_gemm_data_present(args);
    if (status || gemm_is_empty(&call->problem)) return status;
    call->problem.out = args->out.data;
    if (call->where.on_gpu) return run_on_gpu(context, args, call);
    return planner_of_call(call)->run_host(&call->problem, &call->candidate, args->threads);
}

nvfp4_status nvfp4_gemm(nvfp4_context *context, const nvfp4_gemm_args *args) {
    gemm_call call;
    nvfp4_status status = gemm_prepare(context, args, &call);
    return status ? status : gemm_run(context, args, &call);
}
