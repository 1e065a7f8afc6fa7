/* One product: its launch, or its computation on the host. No backend is named here. */
#include "api/gemm.h"

#include "api/launch.h"
#include "plan/gemm_backend.h"

void bind_gemm(const checked_call *c, prepared_call *call) {
    const nvfp4_gemm_args *args = c->args;
    call->problem.gemm.out = args->out.data;
}

static nvfp4_status run_on_gpu(nvfp4_context *context, const nvfp4_call *how, const gemm_planner *planner,
                               const prepared_call *call) {
    const gemm_candidate *candidate = &call->candidate;
    void *workspace;
    launch_plan plan;
    nvfp4_status status = find_workspace(how, candidate->workspace, &workspace);
    if (status) return status;
    launch_plan_init(&plan);
#ifdef NVFP4_DUMP
    plan.dump = context->dump, plan.dump_cta = context->dump_cta, plan.dump_k_block = context->dump_k_block;
#endif
    planner->build(call->where.props, &call->problem.gemm, candidate, workspace, &plan);
    return launch_steps(context, &call->where, gemm_backends[candidate->backend]->kernels, &plan, how->stream);
}

nvfp4_status gemm_run(nvfp4_context *context, const checked_call *c, const prepared_call *call) {
    const nvfp4_call *how = c->args;
    const gemm_problem *p = &call->problem.gemm;
    const gemm_planner *planner = planner_of(call->candidate.backend, p->product_kind, p->a_type);
    if (call->where.on_gpu) return run_on_gpu(context, how, planner, call);
    return planner->run_host(p, &call->candidate, how->threads);
}
