/* gated_grouped_gemm: its rules, and the two operations that it stands for. Its arguments begin with those of
 * grouped_gemm, so that grouped_gemm's functions take both; grouped_gemm.c has its row.
 *
 * A kernel of the product's backend may compute the activation too, with the same bits. Otherwise the results of all
 * parts lie side by side in the workspace, the product's own behind them, and `gated` reads them from there. */
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

/* ---- the two steps ---- */

int64_t products_of_parts_bytes(const call_problem *problem) {
    const grouped_problem *p = &problem->grouped;
    return ceil_div(p->g.m * p->parts * p->g.n * dtype_bytes(p->g.out_type), 16) * 16;
}

const void *fill_products_of_parts(const grouped_problem *p, void *memory, grouped_problem *product) {
    const int64_t part = p->g.n * dtype_bytes(p->g.out_type);
    *product = *p;
    product->has_activation = 0;
    product->g.out = memory;
    product->g.out_pitch = p->parts * part;
    product->g.out_batch = part;
    return p->parts == 2 && memory ? (const char *)memory + part : NULL;
}

static int32_t fill_steps(const call_problem *problem, void *memory, product_problem *product, row_op_problem *row_op) {
    const grouped_problem *p = &problem->grouped;
    const void *up = fill_products_of_parts(p, memory, &product->grouped);
    const int64_t pitch = product->gemm.out_pitch;
    row_op->gated = (gated_problem){.rows = p->g.m,
                                    .columns = p->g.n,
                                    .l = 1,
                                    .gate = memory,
                                    .up = up,
                                    .out = p->g.out,
                                    .gate_pitch = pitch,
                                    .up_pitch = pitch,
                                    .out_pitch = p->g.out_pitch,
                                    .limit = p->limit,
                                    .alpha = p->activation_alpha,
                                    .activation = p->activation,
                                    .type = p->g.out_type,
                                    .out_type = p->g.out_type};
    return 1;
}

static int32_t fuse(const gemm_planner *planner, const device_props *props, const call_problem *problem,
                    const gemm_candidate *of, gemm_candidate *out) {
    return planner->with_activation && planner->with_activation(props, &problem->grouped, of, out);
}

const composite gated_grouped_gemm_composite = {.row_op = PLANNERS(gated),
                                                .product_is_first = 1,
                                                .intermediate_bytes = products_of_parts_bytes,
                                                .fill_steps = fill_steps,
                                                .fuse = fuse,
                                                .argument = "b",
                                                .contents = "its products"};

nvfp4_status gated_grouped_gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    const nvfp4_gated_grouped_gemm_args *args = c->args;
    nvfp4_status status = find_target(context, args->grouped.backend, args->grouped.a.device, &call->where);
    return status ? status : composite_plan(context, &gated_grouped_gemm_composite, args->grouped.flags, call);
}

nvfp4_status gated_grouped_gemm_run(nvfp4_context *context, const checked_call *c, const prepared_call *call) {
    return composite_run(context, &gated_grouped_gemm_composite, c->args, call);
}
