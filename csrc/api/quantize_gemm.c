/* quantize_gemm: the row of the table, the rules, and the two operations that it stands for. Its arguments begin with
 * those of gemm, its problem with that of gemm, so that gemm's functions take both.
 *
 * The rules are those of quantize and of gemm: either checks a call of its own, whose data and scales of A have no
 * memory yet. On a GPU they lie in the workspace, the product's own behind them. */
#include "api/gemm.h"
#include "api/quantize.h"
#include "api/row_op.h"
#include "common/error.h"
#include "common/math.h"
#include "plan/gemm_backend.h"

/* ---- rules ---- */

/* quantize's arguments by the names that this operation gives them. */
#define AT(field) offsetof(nvfp4_quantize_args, field)
static const operation_tensor quantize_part[] = {
    {"a", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    {"global_scale", AT(global_scale), INPUT, HOLDS_FLOAT32, 1, 0},
};
#undef AT
static const operation quantize_of_a = {
    .name = "quantize_gemm", .tensors = quantize_part, .tensor_count = COUNT(quantize_part)};

/* A contiguous tensor without memory, as a but for its columns. */
static nvfp4_tensor without_memory(const nvfp4_tensor *a, nvfp4_dtype dtype, int64_t columns) {
    int64_t shape[NVFP4_MAX_DIMS];
    memcpy(shape, a->shape, sizeof shape);
    shape[a->ndim - 1] = columns;
    return contiguous_tensor((int32_t)dtype, a->device, a->ndim, shape);
}

static int64_t batches_of(const nvfp4_tensor *a) {
    return a->ndim == 3 ? a->shape[0] : 1;
}

static nvfp4_tensor scales_of(const nvfp4_tensor *a, nvfp4_layout layout) {
    const int64_t rows = a->shape[a->ndim - 2], blocks = a->shape[a->ndim - 1] / 16;
    if (layout == NVFP4_LINEAR) return without_memory(a, NVFP4_E4M3, blocks);
    return (nvfp4_tensor){.dtype = NVFP4_E4M3,
                          .device = a->device,
                          .ndim = 1,
                          .shape = {batches_of(a) * swizzled_bytes(rows, blocks)},
                          .stride = {1}};
}

static nvfp4_status check_one(const nvfp4_quantize_gemm_args *args) {
    const nvfp4_tensor *g = &args->global_scale;
    if (args->gemm.flags & NVFP4_NO_TRANSPOSE_B)
        return REJECT("flags", ("is %u", args->gemm.flags),
                      ("must be without %d (b not transposed), since a is quantized along K", NVFP4_NO_TRANSPOSE_B));
    if (!absent(&args->gemm.scale_a))
        return REJECT("scale_a", ("is given"), ("must be absent, quantize_gemm makes the scales of a"));
    if (!absent(g) && element_count(g) != 1)
        return REJECT("global_scale", ("has %lld elements", (long long)element_count(g)), ("must have 1"));
    return NVFP4_OK;
}

static nvfp4_status check_quantize_gemm(const checked_call *c, prepared_call *call) {
    const nvfp4_quantize_gemm_args *args = c->args;
    const nvfp4_tensor *a = &args->gemm.a;
    prepared_call quantizer;
    matrix x;
    nvfp4_status status = check_one(args);
    if (!status) status = check_layout(args->gemm.scale_layout);
    if (!status) status = check_matrix(c, a, "[M, K]", "[L, M, K]", READ_ONLY, &x);
    if (status) return status;
    const nvfp4_quantize_args quantize = {.call = args->gemm.call,
                                          .x = *a,
                                          .data = without_memory(a, NVFP4_UINT8, x.columns / 2),
                                          .scale = scales_of(a, args->gemm.scale_layout),
                                          .global_scale = args->global_scale,
                                          .global_value = args->global_value,
                                          .scale_layout = args->gemm.scale_layout,
                                          .block_scale = args->block_scale};
    nvfp4_gemm_args gemm = args->gemm;
    gemm.a = quantize.data, gemm.scale_a = quantize.scale;
    status = check_quantize(&(const checked_call){&quantize_of_a, &quantize}, &quantizer);
    if (!status) status = check_gemm(&(const checked_call){&operation_gemm, &gemm}, call);
    call->problem.quantize_gemm.q = quantizer.problem.row_op.quantize;
    call->problem.quantize_gemm.q.x = a->data;
    return status;
}

/* ---- the two steps ---- */

/* Bytes of the data and of the scales of A, each rounded up to the alignment of a workspace. */
static int64_t data_bytes(const quantize_problem *q) {
    return ceil_div(q->l * q->rows * q->k / 2, 16) * 16;
}

static int64_t quantized_bytes(const quantize_problem *q) {
    const int64_t scales = q->scale_layout == NVFP4_LINEAR ? q->rows * (q->k / 16) : swizzled_bytes(q->rows, q->k / 16);
    return data_bytes(q) + ceil_div(q->l * scales, 16) * 16;
}

static int64_t intermediate_bytes(const call_problem *problem) {
    return quantized_bytes(&problem->quantize_gemm.q);
}

/* A product without terms reads no A. */
static int32_t fill_steps(const call_problem *problem, void *memory, product_problem *product, row_op_problem *row_op) {
    quantize_problem *q = &row_op->quantize;
    gemm_problem *p = &product->gemm;
    *q = problem->quantize_gemm.q;
    *p = problem->quantize_gemm.g;
    if (memory) q->data = memory, q->scale = (uint8_t *)memory + data_bytes(q);
    p->a = q->data, p->scale_a = q->scale;
    if (p->k == 0) return 0;
    /* The quantizer waits for all work before it, then lets the product start, and writes a alone: whatever wrote b has
     * completed. */
    p->constant_b = 1;
    return 1;
}

static int32_t fuse(const gemm_planner *planner, const device_props *props, const call_problem *problem,
                    const gemm_candidate *of, gemm_candidate *out) {
    return planner->with_quantizer && planner->with_quantizer(props, &problem->quantize_gemm, of, out);
}

const composite quantize_gemm_composite = {.row_op = PLANNERS(quantize),
                                           .intermediate_bytes = intermediate_bytes,
                                           .fill_steps = fill_steps,
                                           .fuse = fuse,
                                           .argument = "a",
                                           .contents = "its values as NVFP4"};

static nvfp4_status quantize_gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    const nvfp4_quantize_gemm_args *args = c->args;
    nvfp4_status status = find_target(context, args->gemm.backend, args->gemm.a.device, &call->where);
    return status ? status : composite_plan(context, &quantize_gemm_composite, args->gemm.flags, call);
}

static nvfp4_status quantize_gemm_run(nvfp4_context *context, const checked_call *c, const prepared_call *call) {
    return composite_run(context, &quantize_gemm_composite, c->args, call);
}

/* ---- its row ---- */

enum { LAYER_A, LAYER_B, LAYER_GLOBAL = 3, LAYER_ALPHA, LAYER_OUT = 7 };

#define AT(field) offsetof(nvfp4_quantize_gemm_args, field)
static const operation_tensor tensors[] = {
    [LAYER_A] = {"a", AT(gemm.a), INPUT, HOLDS_FLOATS, 0, 0},
    [LAYER_B] = {"b", AT(gemm.b), INPUT, HOLDS_VALUES, 0, 0},
    {"scale_b", AT(gemm.scale_b), INPUT, HOLDS_SCALES, 0, 0},
    [LAYER_GLOBAL] = {"global_scale", AT(global_scale), INPUT, HOLDS_FLOAT32, 1, 0},
    [LAYER_ALPHA] = {"alpha", AT(gemm.alpha), INPUT, HOLDS_FLOAT32, 1, 0},
    {"bias", AT(gemm.bias), INPUT, HOLDS_ANY, 1, 0},
    {"c", AT(gemm.c), INPUT, HOLDS_ANY, 1, ALIAS_OF_OUTPUT},
    [LAYER_OUT] = {"out", AT(gemm.out), OUTPUT, HOLDS_FLOATS, 0, 0},
};
static const operation_scalar scalars[] = {
    {"global_value", SCALAR_FLOAT, AT(global_value), 1 + LAYER_GLOBAL, NULL},
    {"alpha_value", SCALAR_FLOAT, AT(gemm.alpha_value), 1 + LAYER_ALPHA, NULL},
    {"beta", SCALAR_FLOAT, AT(gemm.beta), 0, NULL},
    {"scale_layout", SCALAR_LAYOUT, AT(gemm.scale_layout), 0, NULL},
    {"block_scale", SCALAR_BLOCK_SCALE, AT(block_scale), 0, NULL},
    {"backend", SCALAR_BACKEND, AT(gemm.backend), 0, NULL},
    {"flags", SCALAR_FLAGS, AT(gemm.flags), 0, NULL},
};
#undef AT
static const operation_result results[] = {{
    .tensor = LAYER_OUT,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP32,
    .shape = {"[*batch_of(a), rows_of(a), rows_of(b)]", 0},
}};
const operation operation_quantize_gemm = {
    .name = OPERATION(quantize_gemm),
    .tensors = TENSORS(tensors),
    .scalars = SCALARS(scalars),
    .results = RESULTS(results),
    .given = RESULTS_NEW_OR_GIVEN,
    .check = check_quantize_gemm,
    .plan = quantize_gemm_plan,
    .bind = bind_gemm,
    .run = quantize_gemm_run,
};
