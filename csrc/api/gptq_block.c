/* gptq_block: its row of the table and its rules. */
#include "api/quantize.h"
#include "common/error.h"

enum { BLOCK_COLUMNS = 16 };

/* 16 columns of fp32, of N rows or of 16. */
static nvfp4_status check_columns(const checked_call *c, const nvfp4_tensor *t, const char *shape, int64_t rows,
                                  direction use, matrix *x) {
    nvfp4_status status = check_strided_matrix(c, t, shape, shape, use, x);
    if (status) return status;
    if (t->ndim != 2) return REJECT(argument_name(c, t), ("has %d dimensions", t->ndim), ("must have 2 (%s)", shape));
    if (x->columns != BLOCK_COLUMNS || (rows >= 0 && x->rows != rows))
        return REJECT(argument_name(c, t), ("is %lld x %lld", (long long)x->rows, (long long)x->columns),
                      ("must be %s%s", shape, rows >= 0 ? ", N as of x" : ""));
    return check_alignment(c, t, 4);
}

static nvfp4_status check_gptq_block(const checked_call *c, prepared_call *call) {
    const nvfp4_gptq_block_args *args = c->args;
    const nvfp4_tensor *g = &args->global_scale;
    gptq_problem *p = &call->problem.row_op.gptq_block;
    matrix x, u, data, error;
    int64_t scale_batch;
    *p = (gptq_problem){.global_value = args->global_value, .global_scale = absent(g) ? NULL : g->data};
    nvfp4_status status = check_columns(c, &args->x, "[N, 16]", -1, READ_ONLY, &x);
    if (!status) status = check_columns(c, &args->u, "[16, 16]", BLOCK_COLUMNS, READ_ONLY, &u);
    if (!status) status = check_values(c, &args->data, "[N, 8]", "[N, 8]", WRITTEN, &data);
    if (status) return status;
    if (args->data.ndim != 2 || data.rows != x.rows || data.columns != BLOCK_COLUMNS / 2)
        return REJECT("data", ("is %lld x %lld", (long long)data.rows, (long long)data.columns),
                      ("must be [N, 8] = %lld x 8", (long long)x.rows));
    status = check_scale(c, &args->scale, NVFP4_LINEAR, 1, x.rows, 1, WRITTEN, &p->scale_pitch, &scale_batch);
    if (!status) status = check_columns(c, &args->error, "[N, 16]", x.rows, WRITTEN, &error);
    if (!status) status = check_global_scale(c, g, NULL, &x, &p->global_by);
    if (!status) status = check_divisor(g, args->global_value);
    if (status) return status;
    p->rows = x.rows;
    p->x_pitch = x.pitch;
    p->u_pitch = u.pitch;
    p->data_pitch = data.pitch;
    p->error_pitch = error.pitch;
    call->is_empty = x.rows == 0;
    return NVFP4_OK;
}

static void bind_gptq_block(const checked_call *c, prepared_call *call) {
    const nvfp4_gptq_block_args *args = c->args;
    gptq_problem *p = &call->problem.row_op.gptq_block;
    p->x = args->x.data;
    p->u = args->u.data;
    p->data = args->data.data;
    p->scale = args->scale.data;
    p->error = args->error.data;
}

/* ---- its row ---- */

#undef AT
#define AT(field) offsetof(nvfp4_gptq_block_args, field)
static const operation_tensor tensors[] = {
    {"x", AT(x), INPUT, HOLDS_FLOAT32, 0, 0},
    {"u", AT(u), INPUT, HOLDS_FLOAT32, 0, 0},
    {"global_scale", AT(global_scale), INPUT, HOLDS_FLOAT32, 1, 0},
    {"data", AT(data), OUTPUT, HOLDS_VALUES, 0, 0},
    {"scale", AT(scale), OUTPUT, HOLDS_SCALES, 0, 0},
    {"error", AT(error), OUTPUT, HOLDS_FLOAT32, 0, 0},
};
static const operation_scalar scalars[] = {{"global_value", SCALAR_FLOAT, AT(global_value), 1 + 2, NULL}};
#undef AT
static const operation_result results[] = {
    {.tensor = 3, .dtype = NVFP4_UINT8, .shape = {"[rows_of(x), columns_of(x) // 2]", 8}},
    {.tensor = 4, .dtype = NVFP4_E4M3, .shape = {"[rows_of(x), columns_of(x) // 16]", 0}},
    {.tensor = 5, .dtype = NVFP4_FP32, .shape = {"[rows_of(x), columns_of(x)]", 16}},
};
const operation operation_gptq_block = {
    .name = OPERATION(gptq_block),
    .tensors = TENSORS(tensors),
    .scalars = SCALARS(scalars),
    .results = RESULTS(results),
    .given = RESULTS_NEW,
    .planners = ROW_OP(gptq_block),
    .check = check_gptq_block,
    .bind = bind_gptq_block,
};
