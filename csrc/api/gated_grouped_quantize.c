/* gated_grouped_quantize: the row of the table, the rules, and the two operations that it stands for. Its arguments
 * begin with those of gated_grouped_gemm, its problem with that of grouped_gemm.
 *
 * The rules are those of gated_grouped_gemm and of gated_quantize: either checks a call of its own, whose products have
 * no memory yet. A kernel of the product's backend may quantize too, with the same bytes. Otherwise the products lie in
 * the workspace, those of a row side by side, and gated_quantize reads them from there. */
#include "api/gemm.h"
#include "api/quantize.h"
#include "api/row_op.h"
#include "common/error.h"
#include "common/gated_grouped_quantize_problem.h"
#include "plan/gemm_backend.h"

/* ---- rules ---- */

/* gated_quantize's arguments by the names that this operation gives them. */
#define PART(field) offsetof(nvfp4_gated_quantize_args, field)
static const operation_tensor quantize_part[] = {
    {"b", PART(quantize.x), INPUT, HOLDS_FLOATS, 0, 0},
    {"global_scale", PART(quantize.global_scale), INPUT, HOLDS_FLOAT32, 1, 0},
    {"ends", PART(ends), INPUT, HOLDS_INT32, 0, 0},
    {"data", PART(quantize.data), OUTPUT, HOLDS_VALUES, 0, 0},
    {"scale", PART(quantize.scale), OUTPUT, HOLDS_SCALES, 0, 0},
    {"new_scale_rows", PART(scale_rows), OUTPUT, HOLDS_INT32, 0, 0},
};
#undef PART
static const operation quantize_of_products = {
    .name = "gated_grouped_quantize", .tensors = quantize_part, .tensor_count = COUNT(quantize_part)};

static nvfp4_dtype product_type(const nvfp4_gated_grouped_quantize_args *args) {
    return args->gated.grouped.flags & NVFP4_BF16_PRODUCTS ? NVFP4_BF16 : NVFP4_FP16;
}

/* One part of products without memory, `parts` of which lie side by side in a row. */
static nvfp4_tensor products(const nvfp4_gated_grouped_quantize_args *args, int64_t rows, int64_t columns,
                             int64_t parts) {
    return (nvfp4_tensor){.dtype = product_type(args),
                          .device = args->gated.grouped.a.device,
                          .ndim = 2,
                          .shape = {rows, columns},
                          .stride = {parts * columns, 1}};
}

/* Sizes of tensors that no rule has seen yet: gated_grouped_gemm's rules come to its result last. */
static int64_t size_of(const nvfp4_tensor *t, int32_t from_end) {
    return t->ndim >= from_end ? t->shape[t->ndim - from_end] : 0;
}

static nvfp4_status check_gated_grouped_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_gated_grouped_quantize_args *args = c->args;
    const nvfp4_grouped_gemm_args *grouped = &args->gated.grouped;
    gated_grouped_quantize_problem *p = &call->problem.product.gated_grouped_quantize;
    if (!absent(&grouped->out)) return REJECT("out", ("is given"), ("must be absent: the products are not a result"));
    if (grouped->b_list || grouped->scale_b_list) return REJECT("b", ("is a list"), ("must be a tensor"));
    const int64_t rows = absent(&grouped->rows) ? size_of(&grouped->a, 2) : size_of(&grouped->rows, 1);
    nvfp4_gated_grouped_gemm_args gated = args->gated;
    gated.grouped.flags &= ~(uint32_t)NVFP4_BF16_PRODUCTS;
    gated.grouped.out = products(args, rows, size_of(&grouped->b, 2), 1);
    prepared_call product, quantizer;
    nvfp4_status status =
        check_gated_grouped_gemm(&(const checked_call){&operation_gated_grouped_gemm, &gated}, &product);
    if (status) return status;
    const grouped_problem *g = &product.problem.grouped;
    if (g->g.n % 16)
        return REJECT("b", ("N is %lld", (long long)g->g.n),
                      ("must be a multiple of 16: results are quantized along N"));
    const nvfp4_tensor part = products(args, g->g.m, g->g.n, g->parts);
    const nvfp4_gated_quantize_args quantize = {.quantize = {.call = grouped->call,
                                                             .x = part,
                                                             .data = args->data,
                                                             .scale = args->scale,
                                                             .global_scale = args->global_scale,
                                                             .global_value = args->global_value,
                                                             .scale_layout = grouped->scale_layout},
                                                .up = g->parts == 2 ? part : (nvfp4_tensor){.dtype = NVFP4_NONE},
                                                .ends = grouped->ends,
                                                .scale_rows = args->new_scale_rows,
                                                .activation = args->gated.activation,
                                                .limit = args->gated.limit,
                                                .alpha = args->gated.activation_alpha};
    status = check_gated_quantize(&(const checked_call){&quantize_of_products, &quantize}, &quantizer);
    p->p = *g;
    p->q = quantizer.problem.row_op.grouped_quantize;
    call->is_empty = product.is_empty;
    return status;
}

static void bind_gated_grouped_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_gated_grouped_quantize_args *args = c->args;
    grouped_quantize_problem *q = &call->problem.product.gated_grouped_quantize.q;
    q->q.data = args->data.data;
    q->q.scale = args->scale.data;
    q->q.scale_rows = args->new_scale_rows.data;
    q->ends = args->gated.grouped.ends.data;
}

/* ---- the two steps ---- */

static int32_t fill_steps(const call_problem *problem, void *memory, product_problem *product, row_op_problem *row_op) {
    const gated_grouped_quantize_problem *both = &problem->product.gated_grouped_quantize;
    row_op->grouped_quantize = both->q;
    row_op->grouped_quantize.q.x = memory;
    row_op->grouped_quantize.up = fill_products_of_parts(&both->p, memory, &product->grouped);
    return 1;
}

static int32_t fuse(const gemm_planner *planner, const device_props *props, const call_problem *problem,
                    const gemm_candidate *of, gemm_candidate *out) {
    return planner->with_quantized_activation &&
           planner->with_quantized_activation(props, &problem->product.gated_grouped_quantize, of, out);
}

static const composite steps = {.row_op = PLANNERS(gated_quantize),
                                .product_is_first = 1,
                                .intermediate_bytes = products_of_parts_bytes,
                                .fill_steps = fill_steps,
                                .fuse = fuse,
                                .argument = "b",
                                .contents = "its products"};

/* Without rows there still are scale_rows, zeros. */
static int has_products(const prepared_call *call) {
    return call->problem.gemm.m > 0 && call->problem.gemm.n > 0;
}

static nvfp4_status gated_grouped_quantize_plan(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    const nvfp4_grouped_gemm_args *args = &((const nvfp4_gated_grouped_quantize_args *)c->args)->gated.grouped;
    nvfp4_status status = find_target(context, args->backend, args->a.device, &call->where);
    if (!status) status = composite_plan(context, &steps, args->flags, call);
    call->is_empty = 0;
    return status;
}

static nvfp4_status gated_grouped_quantize_run(nvfp4_context *context, const checked_call *c,
                                               const prepared_call *call) {
    product_problem product;
    row_op_problem row_op;
    if (has_products(call)) return composite_run(context, &steps, c->args, call);
    fill_steps(&call->problem, NULL, &product, &row_op);
    return row_op_launch(context, steps.row_op, c->args, &call->where, &row_op);
}

/* ---- its row ---- */

enum { Q_GLOBAL = GROUPED_INPUT_COUNT, Q_DATA, Q_SCALE, Q_SCALE_ROWS };

#define OWN(field) offsetof(nvfp4_gated_grouped_quantize_args, field)
static const operation_tensor tensors[] = {
    GROUPED_INPUTS,
    [Q_GLOBAL] = {"global_scale", OWN(global_scale), INPUT, HOLDS_FLOAT32, 1, 0},
    [Q_DATA] = {"data", OWN(data), OUTPUT, HOLDS_VALUES, 0, 0},
    [Q_SCALE] = {"scale", OWN(scale), OUTPUT, HOLDS_SCALES, 0, 0},
    [Q_SCALE_ROWS] = {"new_scale_rows", OWN(new_scale_rows), OUTPUT, HOLDS_INT32, 0, 0},
};
static const operation_scalar scalars[] = {
    GROUPED_FACTOR,
    GATED_SCALARS,
    {"global_value", SCALAR_FLOAT, OWN(global_value), 1 + Q_GLOBAL, NULL},
    GROUPED_SCALARS,
};
static const operation_result results[] = {
    {.tensor = Q_DATA, .dtype = NVFP4_UINT8, .shape = {"[sorted_rows(rows, a), rows_of_part(b) // 2]", 8}},
    {.tensor = Q_SCALE,
     .dtype = NVFP4_E4M3,
     .shape = {"[128 * group_blocks(sorted_rows(rows, a), ends), round_up(rows_of_part(b) // 16, 4)]", 16},
     .flag_shape = {"[sorted_rows(rows, a), rows_of_part(b) // 16]", 0},
     .flags_offset = GROUPED_AT(scale_layout),
     .flags_mask = NVFP4_LINEAR},
    {.tensor = Q_SCALE_ROWS, .dtype = NVFP4_INT32, .shape = {"[count_of(ends)]", 0}},
};
#undef OWN
const operation operation_gated_grouped_quantize = {
    .name = OPERATION(gated_grouped_quantize),
    .tensors = TENSORS(tensors),
    .scalars = SCALARS(scalars),
    .results = RESULTS(results),
    .given = RESULTS_NEW_OR_GIVEN,
    .adapt = join_parts,
    .check = check_gated_grouped_quantize,
    .plan = gated_grouped_quantize_plan,
    .bind = bind_gated_grouped_quantize,
    .run = gated_grouped_quantize_run,
};
