/* gated_grouped_gemm: its rules, and the two operations that it stands for. Its arguments begin with those of
 * grouped_gemm, so that grouped_gemm's functions take both; operations.c has its row.
 *
 * A kernel of the product's backend may compute the activation too, with the same bits. Otherwise the results of all
 * parts lie side by side in the workspace, the product's own behind them, and `gated` reads them from there. */
#include <stdlib.h>

#include "api/gemm.h"
#include "api/row_op.h"
#include "common/error.h"
#include "common/math.h"
#include "plan/gemm_backend.h"

/* ---- rules ---- */

/* The rules of the activation and of the parts that it takes. */
static nvfp4_status check_parts(const nvfp4_gated_grouped_gemm_args *args, const grouped_problem *p) {
    const int64_t most = INT64_MAX / 8; /* as rules.c bounds a tensor */
    int64_t columns, count;
    if (p->parts > 2) return REJECT("b", ("has %d parts", p->parts), ("must have 1 or 2 (gate and up)"));
    if (args->activation == NVFP4_SWIGLU && p->parts == 1)
        return REJECT("b", ("has 1 part"), ("must have 2 (gate and up): swiglu multiplies by up + 1"));
    if (args->activation == NVFP4_RELU2 && p->parts == 2)
        return REJECT("b", ("has 2 parts"), ("must have 1: relu2 is a function of gate alone"));
    columns = p->g.n * p->parts;
    if (columns > MAX_SIZE)
        return REJECT("b", ("has parts * N = %lld", (long long)columns), ("must have at most %d", MAX_SIZE));
    if (__builtin_mul_overflow(p->g.m, columns, &count) || count > most)
        return REJECT("b", ("has parts * N = %lld for T = %lld rows", (long long)columns, (long long)p->g.m),
                      ("T * parts * N must be at most 2^60"));
    return NVFP4_OK;
}

nvfp4_status check_gated_grouped_gemm(const checked_call *c, prepared_call *call) {
    const nvfp4_gated_grouped_gemm_args *args = c->args;
    grouped_problem *p = &call->problem.grouped;
    nvfp4_status status = check_activation((int32_t)args->activation);
    if (!status)
        status = check_gating((int32_t)args->activation, args->limit, args->activation_alpha, "activation_alpha");
    if (status) return status;
    if (args->grouped.flags & NVFP4_NO_TRANSPOSE_B)
        return REJECT("flags", ("is %u", args->grouped.flags),
                      ("must be without %d (b not transposed): an activation follows products with the transpose",
                       NVFP4_NO_TRANSPOSE_B));
    status = check_groups(c, &args->grouped, 1, call);
    if (!status) status = check_parts(args, p);
    p->activation = (int32_t)args->activation;
    p->limit = args->limit;
    p->activation_alpha = args->activation_alpha;
    return status;
}

/* ---- plan and run ---- */

static int64_t part_bytes(const grouped_problem *p) {
    return p->g.n * dtype_bytes(p->g.out_type);
}

/* The product alone, whose results lie in `memory`. */
static grouped_problem product_of(const grouped_problem *p, void *memory) {
    grouped_problem product = *p;
    product.has_activation = 0;
    product.g.out = memory;
    product.g.out_pitch = p->parts * part_bytes(p);
    product.g.out_batch = part_bytes(p);
    return product;
}

static gated_problem activation_of(const grouped_problem *p, const void *memory) {
    const int64_t pitch = p->parts * part_bytes(p);
    return (gated_problem){.rows = p->g.m,
                           .columns = p->g.n,
                           .l = 1,
                           .gate = memory,
                           .up = p->parts == 2 ? (const char *)memory + part_bytes(p) : NULL,
                           .out = p->g.out,
                           .gate_pitch = pitch,
                           .up_pitch = pitch,
                           .out_pitch = p->g.out_pitch,
                           .limit = p->limit,
                           .alpha = p->activation_alpha,
                           .activation = p->activation,
                           .type = p->g.out_type,
                           .out_type = p->g.out_type};
}

/* Bytes of the product's results, rounded up to the alignment of a workspace. */
static int64_t results_bytes(const grouped_problem *p) {
    return ceil_div(p->g.m * p->parts * part_bytes(p), 16) * 16;
}

void fuse_activation(prepared_call *call) {
    const grouped_problem *p = &call->problem.grouped;
    gemm_candidate fused;
    if (call->is_empty || !call->where.on_gpu) return;
    const gemm_planner *planner = planner_of(call->candidate.backend, p->g.product_kind, p->g.a_type);
    call->is_fused =
        planner->with_activation && planner->with_activation(call->where.props, p, &call->candidate, &fused);
    if (call->is_fused)
        call->candidate = fused;
    else
        call->candidate.workspace += results_bytes(p);
}

nvfp4_status gated_grouped_gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    const grouped_problem p = call->problem.grouped;
    call->problem.grouped = product_of(&p, NULL);
    nvfp4_status status = grouped_gemm_plan(context, c, call);
    call->problem.grouped = p;
    if (!status) fuse_activation(call);
    return status;
}

/* Multiplies to `memory` and computes the activation. On a GPU the product's own workspace lies behind. */
static nvfp4_status run_in(nvfp4_context *context, const nvfp4_gated_grouped_gemm_args *args, const prepared_call *call,
                           uint8_t *memory) {
    const grouped_problem *p = &call->problem.grouped;
    nvfp4_grouped_gemm_args grouped = args->grouped;
    prepared_call product = *call;
    product.problem.grouped = product_of(p, memory);
    if (call->where.on_gpu) {
        product.candidate.workspace -= results_bytes(p);
        grouped.call.workspace = memory + results_bytes(p);
        grouped.call.workspace_size = (size_t)product.candidate.workspace;
        grouped.call.allocate = NULL;
    }
    nvfp4_status status = gemm_run(context, &(const checked_call){&operation_grouped_gemm, &grouped}, &product);
    if (status) return status;
    const prepared_call activation = {.problem.row_op.gated = activation_of(p, memory), .where = call->where};
    return row_op_run(context, &(const checked_call){&operation_gated, args}, &activation);
}

nvfp4_status gated_grouped_gemm_run(nvfp4_context *context, const checked_call *c, const prepared_call *call) {
    const nvfp4_gated_grouped_gemm_args *args = c->args;
    void *memory;
    if (call->is_fused) return gemm_run(context, c, call);
    if (call->where.on_gpu) {
        nvfp4_status status = find_workspace(c->args, call->candidate.workspace, &memory);
        return status ? status : run_in(context, args, call, memory);
    }
    const int64_t bytes = results_bytes(&call->problem.grouped);
    memory = aligned_alloc(64, (size_t)ceil_div(bytes, 64) * 64);
    if (!memory) return fail(NVFP4_OUT_OF_MEMORY, "b: no memory for the %lld bytes of its products", (long long)bytes);
    nvfp4_status status = run_in(context, args, call, memory);
    free(memory);
    return status;
}
