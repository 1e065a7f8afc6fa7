/* One product: its launch, or its computation on the host. No backend is named here. */
#include "api/gemm.h"

#include "api/launch.h"
#include "plan/gemm_backend.h"

static nvfp4_status launch(nvfp4_context *context, const nvfp4_call *how, const gemm_planner *planner,
                           const target *where, const gemm_candidate *candidate, const product_problem *p) {
    void *workspace;
    launch_plan plan;
    nvfp4_status status = find_workspace(how, candidate->workspace, &workspace);
    if (status) return status;
    launch_plan_init(&plan);
#ifdef NVFP4_DUMP
    plan.dump = context->dump, plan.dump_cta = context->dump_cta, plan.dump_k_block = context->dump_k_block;
#endif
    planner->build(where->props, p, candidate, workspace, &plan);
    return launch_steps(context, where, gemm_backends[candidate->backend]->kernels, &plan, how->stream);
}

nvfp4_status product_launch(nvfp4_context *context, const nvfp4_call *how, const target *where,
                            const gemm_candidate *candidate, const product_problem *p) {
    const gemm_planner *planner = planner_of(candidate->backend, p->gemm.product_kind, p->gemm.a_type);
    if (where->on_gpu) return launch(context, how, planner, where, candidate, p);
    return planner->run_host(p, candidate, how->threads);
}

nvfp4_status gemm_run(nvfp4_context *context, const checked_call *c, const prepared_call *call) {
    return product_launch(context, c->args, &call->where, &call->candidate, &call->problem.product);
}
