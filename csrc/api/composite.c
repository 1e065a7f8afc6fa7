/* Two operations in turn. A kernel of the product's backend may do both, with the same bits. Otherwise the workspace
 * begins with what the first step writes and the second one reads, and the product's own workspace follows. */
#include "api/composite.h"

#include <stdlib.h>

#include "api/gemm.h"
#include "api/plan.h"
#include "api/row_op.h"
#include "common/error.h"
#include "common/math.h"

nvfp4_status composite_plan(nvfp4_context *context, const composite *both, uint32_t flags, prepared_call *call) {
    product_problem product;
    row_op_problem row_op;
    gemm_candidate fused;
    both->fill_steps(&call->problem, NULL, &product, &row_op);
    nvfp4_status status = plan_product(context, &product, flags, call);
    if (status || call->is_empty || !call->where.on_gpu) return status;
    const gemm_planner *planner = planner_of(call->candidate.backend, product.gemm.product_kind, product.gemm.a_type);
    call->is_fused = both->fuse(planner, call->where.props, &call->problem, &call->candidate, &fused);
    if (call->is_fused)
        call->candidate = fused;
    else
        call->intermediate_bytes = both->intermediate_bytes(&call->problem);
    return NVFP4_OK;
}

/* Runs both steps, whose intermediate bytes are at `memory`. */
static nvfp4_status run_steps(nvfp4_context *context, const composite *both, const nvfp4_call *how,
                              const prepared_call *call, void *memory) {
    const target *where = &call->where;
    product_problem product;
    row_op_problem row_op;
    nvfp4_status status = NVFP4_OK;
    const int32_t has_row_op = both->fill_steps(&call->problem, memory, &product, &row_op);
    if (has_row_op && !both->product_is_first) status = row_op_launch(context, both->row_op, how, where, &row_op);
    if (!status) status = product_launch(context, how, where, &call->candidate, &product);
    if (has_row_op && both->product_is_first && !status)
        status = row_op_launch(context, both->row_op, how, where, &row_op);
    return status;
}

nvfp4_status composite_run(nvfp4_context *context, const composite *both, const nvfp4_call *how,
                           const prepared_call *call) {
    nvfp4_call steps = *how;
    void *memory;
    if (call->is_fused) return product_launch(context, how, &call->where, &call->candidate, &call->problem.product);
    if (call->where.on_gpu) {
        nvfp4_status status = find_workspace(how, call->intermediate_bytes + call->candidate.workspace, &memory);
        if (status) return status;
        steps.workspace = (char *)memory + call->intermediate_bytes;
        steps.workspace_size = (size_t)call->candidate.workspace;
        steps.allocate = NULL;
        return run_steps(context, both, &steps, call, memory);
    }
    const int64_t bytes = both->intermediate_bytes(&call->problem);
    memory = aligned_alloc(64, (size_t)ceil_div(max_int(bytes, 1), 64) * 64);
    if (!memory)
        return fail(NVFP4_OUT_OF_MEMORY, "%s: no memory for %s, %lld bytes", both->argument, both->contents,
                    (long long)bytes);
    nvfp4_status status = run_steps(context, both, &steps, call, memory);
    free(memory);
    return status;
}
