/* swizzle and unswizzle, the changes of scale layout: rows of the table and rules. */
#include "api/row_op.h"
#include "api/rules.h"
#include "common/error.h"

/* Contiguous scales of x->l batches. Of three dimensions the first counts the batches. */
static nvfp4_status check_swizzled(const checked_call *c, const nvfp4_tensor *t, const matrix *x) {
    const int batched = t->ndim == 3 && t->shape[0] == x->l;
    int64_t have = 1, needed = swizzled_bytes(x->rows, x->columns);
    for (int i = batched; i < t->ndim; i++) have *= t->shape[i];
    if (!batched && __builtin_mul_overflow(x->l, needed, &needed)) needed = INT64_MAX; /* no tensor has it */
    if (have != needed)
        return REJECT(argument_name(c, t), ("has %lld bytes%s", (long long)have, batched ? " a batch" : ""),
                      ("the 128x4 layout of %lld rows and %lld columns has %lld", (long long)x->rows,
                       (long long)x->columns, (long long)needed));
    if (!is_contiguous(t)) return REJECT(argument_name(c, t), ("is not contiguous"), ("the 128x4 layout must be"));
    return check_alignment(c, t, 16);
}

static nvfp4_status check_layouts(const checked_call *c, direction linear_use, prepared_call *call) {
    const nvfp4_swizzle_args *args = c->args;
    matrix x;
    nvfp4_status status = check_matrix(c, &args->linear, "[R, S]", "[L, R, S]", linear_use, &x);
    if (!status) status = check_swizzled(c, &args->swizzled, &x);
    if (status) return status;
    call->problem.row_op.swizzle = (swizzle_problem){
        .rows = x.rows, .columns = x.columns, .l = x.l, .linear_pitch = x.pitch, .linear_batch = x.batch};
    call->is_empty = x.l == 0 || x.rows == 0 || x.columns == 0;
    return NVFP4_OK;
}

static nvfp4_status check_swizzle(const checked_call *c, prepared_call *call) {
    return check_layouts(c, READ_ONLY, call);
}

static nvfp4_status check_unswizzle(const checked_call *c, prepared_call *call) {
    return check_layouts(c, WRITTEN, call);
}

static void bind_swizzle(const checked_call *c, prepared_call *call) {
    const nvfp4_swizzle_args *args = c->args;
    call->problem.row_op.swizzle.linear = args->linear.data;
    call->problem.row_op.swizzle.swizzled = args->swizzled.data;
}

/* ---- the rows ---- */

#define AT(field) offsetof(nvfp4_swizzle_args, field)
static const operation_tensor swizzle_tensors[] = {
    {"scale", AT(linear), INPUT, HOLDS_SCALES, 0, 0},
    {"swizzled", AT(swizzled), OUTPUT, HOLDS_SCALES, 0, 0},
};
static const operation_result swizzle_results[] = {{
    .tensor = 1,
    .dtype = DTYPE_OF_FIRST,
    .shape = {"[*batch_of(scale), round_up(rows_of(scale), 128), round_up(columns_of(scale), 4)]", 16},
}};
const operation operation_swizzle = {
    .name = OPERATION(swizzle),
    .tensors = TENSORS(swizzle_tensors),
    .results = RESULTS(swizzle_results),
    .given = RESULTS_NEW,
    .planners = ROW_OP(swizzle),
    .check = check_swizzle,
    .bind = bind_swizzle,
};

static const operation_tensor unswizzle_tensors[] = {
    {"scale", AT(swizzled), INPUT, HOLDS_SCALES, 0, 0},
    {"linear", AT(linear), OUTPUT, HOLDS_SCALES, 0, 0},
};
#undef AT
static const operation_scalar unswizzle_scalars[] = {
    {"rows", SCALAR_SIZE, 0, 0, NULL},
    {"columns", SCALAR_SIZE, 1, 0, NULL},
};
static const operation_result unswizzle_results[] = {{
    .tensor = 1,
    .dtype = DTYPE_OF_FIRST,
    .shape = {"[*batch_of(scale), rows, columns]", 0},
}};
const operation operation_unswizzle = {
    .name = OPERATION(unswizzle),
    .tensors = TENSORS(unswizzle_tensors),
    .scalars = SCALARS(unswizzle_scalars),
    .results = RESULTS(unswizzle_results),
    .given = RESULTS_NEW,
    .planners = ROW_OP(unswizzle),
    .check = check_unswizzle,
    .bind = bind_swizzle,
};
