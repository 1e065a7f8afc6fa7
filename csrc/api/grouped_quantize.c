/* grouped_quantize, gated_quantize and silu_mul_quantize: rows of the table and rules. All three are a
 * grouped_quantize_problem, of rows in the order of their groups, of gated activations, or of both. */
#include <math.h>

#include "api/quantize.h"
#include "common/error.h"
#include "common/group_blocks.h"

/* scale_rows: the row of the scales where each group begins. */
#define SCALE_ROWS_RESULT(tensor_) {.tensor = tensor_, .dtype = NVFP4_INT32, .shape = {"[count_of(ends)]", 0}}

static nvfp4_status check_indices(const checked_call *c, const nvfp4_tensor *t, char size) {
    if (t->ndim != 1)
        return REJECT(argument_name(c, t), ("has %d dimensions", t->ndim), ("must be a vector, [%c]", size));
    return check_vector(c, t, size, t->shape[0], 0);
}

/* ends, rows (NULL: the operation has none) and scale_rows, for x rows of x. */
static nvfp4_status check_groups(const checked_call *c, const nvfp4_tensor *ends, const nvfp4_tensor *rows,
                                 const nvfp4_tensor *scale_rows, const matrix *x, grouped_quantize_problem *p,
                                 result_rows *result) {
    *p = (grouped_quantize_problem){
        .x_rows = x->rows, .groups = 1, .activation = NO_ACTIVATION, .limit = INFINITY, .alpha = 1.702f};
    *result = (result_rows){x->rows, 0, 'R'};
    nvfp4_status status = NVFP4_OK;
    if (!absent(ends)) {
        status = check_indices(c, ends, 'E');
        if (status) return status;
        const int64_t groups = ends->shape[0];
        if (groups < 1 || groups > NVFP4_MAX_GROUPS)
            return REJECT(argument_name(c, ends), ("E is %lld", (long long)groups),
                          ("must be between 1 and %d", NVFP4_MAX_GROUPS));
        p->groups = (int32_t)groups;
    }
    if (rows && !absent(rows)) {
        status = check_indices(c, rows, 'T');
        *result = (result_rows){rows->shape[0], 0, 'T'};
    }
    result->scale_rows = SCALE_BLOCK_ROWS * max_group_tiles(result->t, p->groups, SCALE_BLOCK_ROWS);
    if (!status && result->scale_rows > MAX_SIZE) /* scale_rows are int32 */
        return REJECT("T", ("is %lld, with %lld rows of scales", (long long)result->t, (long long)result->scale_rows),
                      ("must have at most %d", MAX_SIZE));
    return status ? status : check_written_vector(c, scale_rows, "E", p->groups);
}

/* ---- grouped_quantize ---- */

static nvfp4_status check_grouped_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_grouped_quantize_args *args = c->args;
    grouped_quantize_problem *p = &call->problem.row_op.grouped_quantize;
    result_rows result;
    matrix x;
    if (args->quantize.x.ndim != 2)
        return REJECT("x", ("has %d dimensions", args->quantize.x.ndim), ("must have 2 ([R, K]) with ends or rows"));
    if (args->quantize.block_scale == NVFP4_SEARCH)
        return REJECT("block_scale", ("is search (%d)", NVFP4_SEARCH),
                      ("must be amax6 (%d) or four_over_six (%d) with ends or rows", NVFP4_AMAX6, NVFP4_FOUR_OVER_SIX));
    nvfp4_status status = check_x(c, &args->quantize, READ_ONLY, 0, &x);
    if (!status) status = check_groups(c, &args->ends, &args->rows, &args->scale_rows, &x, p, &result);
    call->is_empty = 0; /* scale_rows of nothing are zeros */
    return status ? status : check_data(c, &args->quantize, READ_ONLY, &x, result, &args->ends, &p->q);
}

static void bind_grouped_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_grouped_quantize_args *args = c->args;
    grouped_quantize_problem *p = &call->problem.row_op.grouped_quantize;
    bind_blocks(&args->quantize, &p->q);
    p->ends = args->ends.dtype == NVFP4_NONE ? NULL : args->ends.data;
    p->rows = args->rows.dtype == NVFP4_NONE ? NULL : args->rows.data;
    p->q.scale_rows = args->scale_rows.data;
}

enum { SORT_X, SORT_GLOBAL, SORT_ENDS, SORT_ROWS, SORT_DATA, SORT_SCALE, SORT_SCALE_ROWS };

#define GROUPED_AT(field) offsetof(nvfp4_grouped_quantize_args, field)
static const operation_tensor grouped_quantize_tensors[] = {
    [SORT_X] = {"x", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    [SORT_GLOBAL] = GLOBAL_SCALE,
    [SORT_ENDS] = {"ends", GROUPED_AT(ends), INPUT, HOLDS_INT32, 1, 0},
    [SORT_ROWS] = {"rows", GROUPED_AT(rows), INPUT, HOLDS_INT32, 1, 0},
    [SORT_DATA] = DATA_TENSOR,
    [SORT_SCALE] = SCALE_TENSOR,
    [SORT_SCALE_ROWS] = {"scale_rows", GROUPED_AT(scale_rows), OUTPUT, HOLDS_INT32, 0, 0},
};
#undef GROUPED_AT
static const operation_scalar grouped_quantize_scalars[] = {
    GLOBAL_VALUE(SORT_GLOBAL),
    SCALE_LAYOUT,
    {"block_scale", SCALAR_BLOCK_SCALE, AT(block_scale), 0, NULL},
};
static const operation_result grouped_quantize_results[] = {
    DATA_RESULT(SORT_DATA, "[sorted_rows(rows, x), columns_of(x) // 2]"),
    SCALE_RESULT(SORT_SCALE, "[128 * group_blocks(sorted_rows(rows, x), ends), round_up(columns_of(x) // 16, 4)]",
                 "[sorted_rows(rows, x), columns_of(x) // 16]"),
    SCALE_ROWS_RESULT(SORT_SCALE_ROWS),
};
const operation operation_grouped_quantize = {
    .name = OPERATION(grouped_quantize),
    .tensors = TENSORS(grouped_quantize_tensors),
    .scalars = SCALARS(grouped_quantize_scalars),
    .results = RESULTS(grouped_quantize_results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = ROW_OP(grouped_quantize),
    .check = check_grouped_quantize,
    .bind = bind_grouped_quantize,
};

/* ---- gated_quantize ---- */

nvfp4_status check_gated_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_gated_quantize_args *args = c->args;
    const nvfp4_tensor *gate = &args->quantize.x, *up = &args->up;
    grouped_quantize_problem *p = &call->problem.row_op.grouped_quantize;
    result_rows result;
    matrix x, u = {0};
    nvfp4_status status = check_amax6(args->quantize.block_scale);
    if (!status) status = check_gate_and_up((int32_t)args->activation, up, args->limit, args->alpha);
    if (!status) status = check_x(c, &args->quantize, READ_ONLY, 1, &x);
    if (!status) status = check_round_steps(args->round_steps);
    if (status) return status;
    if (args->round_steps && args->activation == NVFP4_SWIGLU)
        return REJECT("round_steps", ("is 1"), ("must be 0 with swiglu, whose steps are others"));
    if (!absent(&args->ends) && gate->ndim != 2)
        return REJECT("gate", ("has %d dimensions", gate->ndim), ("must have 2 ([R, N]) with ends"));
    if (!absent(up)) status = check_up(c, up, gate, &x, &u);
    if (!status) status = check_groups(c, &args->ends, NULL, &args->scale_rows, &x, p, &result);
    if (!status) status = check_data(c, &args->quantize, READ_ONLY, &x, result, &args->ends, &p->q);
    p->up_pitch = u.pitch;
    p->up_batch = u.batch;
    p->limit = args->limit;
    p->alpha = args->alpha;
    p->activation = (int32_t)args->activation;
    p->q.round_steps = (int32_t)args->round_steps;
    call->is_empty = 0;
    return status;
}

static void bind_gated_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_gated_quantize_args *args = c->args;
    grouped_quantize_problem *p = &call->problem.row_op.grouped_quantize;
    bind_blocks(&args->quantize, &p->q);
    p->up = args->up.dtype == NVFP4_NONE ? NULL : args->up.data;
    p->ends = args->ends.dtype == NVFP4_NONE ? NULL : args->ends.data;
    p->q.scale_rows = args->scale_rows.data;
}

enum { GATED_GATE, GATED_UP, GATED_GLOBAL, GATED_ENDS, GATED_DATA, GATED_SCALE, GATED_SCALE_ROWS };

#define GATED_AT(field) offsetof(nvfp4_gated_quantize_args, field)
static const operation_tensor gated_quantize_tensors[] = {
    [GATED_GATE] = {"gate", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    [GATED_UP] = {"up", GATED_AT(up), INPUT, HOLDS_FLOATS, 1, 0},
    [GATED_GLOBAL] = GLOBAL_SCALE,
    [GATED_ENDS] = {"ends", GATED_AT(ends), INPUT, HOLDS_INT32, 1, 0},
    [GATED_DATA] = DATA_TENSOR,
    [GATED_SCALE] = SCALE_TENSOR,
    [GATED_SCALE_ROWS] = {"scale_rows", GATED_AT(scale_rows), OUTPUT, HOLDS_INT32, 0, 0},
};
static const operation_scalar gated_quantize_scalars[] = {
    GLOBAL_VALUE(GATED_GLOBAL),
    {"activation", SCALAR_ACTIVATION, GATED_AT(activation), 0, NULL},
    {"limit", SCALAR_FLOAT, GATED_AT(limit), 0, NULL},
    {"alpha", SCALAR_FLOAT, GATED_AT(alpha), 0, NULL},
    SCALE_LAYOUT,
    {"round_steps", SCALAR_FLAGS, GATED_AT(round_steps), 0, "0"},
};
#undef GATED_AT
static const operation_result gated_quantize_results[] = {
    DATA_RESULT(GATED_DATA, "[*batch_of(gate), rows_of(gate), columns_of(gate) // 2]"),
    SCALE_RESULT(GATED_SCALE,
                 "[*batch_of(gate), 128 * group_blocks(rows_of(gate), ends), round_up(columns_of(gate) // 16, 4)]",
                 "[*batch_of(gate), rows_of(gate), columns_of(gate) // 16]"),
    SCALE_ROWS_RESULT(GATED_SCALE_ROWS),
};
const operation operation_gated_quantize = {
    .name = OPERATION(gated_quantize),
    .tensors = TENSORS(gated_quantize_tensors),
    .scalars = SCALARS(gated_quantize_scalars),
    .results = RESULTS(gated_quantize_results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = ROW_OP(gated_quantize),
    .check = check_gated_quantize,
    .bind = bind_gated_quantize,
};

/* ---- silu_mul_quantize ---- */

/* A gated_quantize of the halves of x. */
static nvfp4_status check_silu_mul_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_quantize_args *args = c->args;
    const nvfp4_tensor *x = &args->x;
    grouped_quantize_problem *p = &call->problem.row_op.grouped_quantize;
    matrix whole;
    nvfp4_status status = check_amax6(args->block_scale);
    if (!status) status = check_matrix(c, x, "[R, 2 K]", "[L, R, 2 K]", READ_ONLY, &whole);
    if (status) return status;
    if (whole.columns % 32 != 0)
        return REJECT(argument_name(c, x), ("has %lld columns", (long long)whole.columns),
                      ("must have 2 K, K a multiple of 16"));
    nvfp4_quantize_args half = *args; /* x: the gates */
    half.x.shape[x->ndim - 1] /= 2;
    const checked_call gates = {c->op, &half};
    *p = (grouped_quantize_problem){
        .x_rows = whole.rows, .groups = 1, .activation = NVFP4_SILU, .limit = INFINITY, .alpha = 1.702f};
    status = check_blocks(&gates, READ_ONLY, &p->q);
    p->up_pitch = p->q.x_pitch;
    p->up_batch = p->q.x_batch;
    call->is_empty = is_empty(&p->q);
    return status;
}

static void bind_silu_mul_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_quantize_args *args = c->args;
    grouped_quantize_problem *p = &call->problem.row_op.grouped_quantize;
    bind_blocks(args, &p->q);
    p->up = (const char *)args->x.data + p->q.k * dtype_bytes((int32_t)args->x.dtype);
}

static const operation_tensor silu_tensors[] = {
    {"gate_up", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    GLOBAL_SCALE,
    DATA_TENSOR,
    SCALE_TENSOR,
};
static const operation_scalar silu_scalars[] = {GLOBAL_VALUE(1), SCALE_LAYOUT};
static const operation_result silu_results[] = {
    DATA_RESULT(2, "[*batch_of(gate_up), rows_of(gate_up), columns_of(gate_up) // 4]"),
    SCALE_RESULT(3, "[*batch_of(gate_up), round_up(rows_of(gate_up), 128), round_up(columns_of(gate_up) // 32, 4)]",
                 "[*batch_of(gate_up), rows_of(gate_up), columns_of(gate_up) // 32]"),
};
const operation operation_silu_mul_quantize = {
    .name = OPERATION(silu_mul_quantize),
    .tensors = TENSORS(silu_tensors),
    .scalars = SCALARS(silu_scalars),
    .results = RESULTS(silu_results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = ROW_OP(silu_mul_quantize),
    .check = check_silu_mul_quantize,
    .bind = bind_silu_mul_quantize,
};
