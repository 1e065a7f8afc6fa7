/* amax_scale: its row of the table and its rules. */
#include "api/row_op.h"
#include "api/rules.h"
#include "common/error.h"
#include "common/math.h"

/* An fp32 scalar. */
static nvfp4_status check_scalar(const checked_call *c, const nvfp4_tensor *t) {
    if (element_count(t) != 1)
        return REJECT(argument_name(c, t), ("has %lld elements", (long long)element_count(t)), ("must have 1"));
    return check_alignment(c, t, 4);
}

static nvfp4_status check_amax_scale(const checked_call *c, prepared_call *call) {
    const nvfp4_amax_scale_args *args = c->args;
    const nvfp4_tensor *x = &args->x;
    matrix blocks;
    nvfp4_status status = check_block_scale(args->block_scale);
    if (!status) status = check_matrix(c, x, "[R, K]", "[L, R, K]", READ_ONLY, &blocks);
    if (!status) status = check_alignment(c, x, dtype_bytes(x->dtype));
    if (status) return status;
    if (args->by_row > 1) return REJECT("by_row", ("is %u", args->by_row), ("must be 0 or 1"));
    if (args->by_row && x->ndim != 2)
        return REJECT("x", ("has %d dimensions", x->ndim), ("must have 2 ([R, K]) for a scale of each row"));
    status = args->by_row ? check_written_vector(c, &args->scale, "R", blocks.rows) : check_scalar(c, &args->scale);
    if (status) return status;
    amax_problem *p = &call->problem.row_op.amax_scale;
    *p = (amax_problem){.rows = blocks.rows,
                        .l = blocks.l,
                        .x_bytes = blocks.columns * dtype_bytes(x->dtype),
                        .x_pitch = blocks.pitch,
                        .x_batch = blocks.batch,
                        .divisor = (args->block_scale == NVFP4_FOUR_OVER_SIX ? 256.0 : 448.0) * 6.0,
                        .x_type = (int32_t)x->dtype,
                        .by_row = (int32_t)args->by_row};
    if (is_contiguous(x) && !args->by_row) { /* one row */
        p->x_bytes *= blocks.rows * blocks.l;
        p->rows = p->l = 1;
    }
    p->chunks = ceil_div(p->x_bytes, AMAX_CHUNK);
    call->is_empty = args->by_row && blocks.rows == 0; /* the scale of nothing is 1 */
    return NVFP4_OK;
}

static void bind_amax_scale(const checked_call *c, prepared_call *call) {
    const nvfp4_amax_scale_args *args = c->args;
    call->problem.row_op.amax_scale.x = args->x.data;
    call->problem.row_op.amax_scale.scale = args->scale.data;
}

/* ---- its row ---- */

#define AT(field) offsetof(nvfp4_amax_scale_args, field)
static const operation_tensor tensors[] = {
    {"x", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    {"scale", AT(scale), OUTPUT, HOLDS_FLOAT32, 0, 0},
};
static const operation_scalar scalars[] = {
    {"block_scale", SCALAR_BLOCK_SCALE, AT(block_scale), 0, NULL},
    {"by_row", SCALAR_FLAGS, AT(by_row), 0, "0"},
};
static const operation_result results[] = {{
    .tensor = 1,
    .dtype = NVFP4_FP32,
    .shape = {"[1]", 0},
    .flag_shape = {"[rows_of(x)]", 0},
    .flags_offset = AT(by_row),
    .flags_mask = 1,
}};
#undef AT
const operation operation_amax_scale = {
    .name = OPERATION(amax_scale),
    .tensors = TENSORS(tensors),
    .scalars = SCALARS(scalars),
    .results = RESULTS(results),
    .given = RESULTS_NEW,
    .planners = ROW_OP(amax_scale),
    .check = check_amax_scale,
    .bind = bind_amax_scale,
};
