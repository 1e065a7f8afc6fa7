/* rms_norm_quantize: its row of the table and its rules. Its arguments begin with those of quantize. */
#include <float.h>

#include "api/quantize.h"
#include "common/error.h"

static nvfp4_status check_weight(const checked_call *c, const nvfp4_tensor *weight, const nvfp4_tensor *x, int64_t k) {
    if (weight->dtype != NVFP4_FP32 && weight->dtype != x->dtype)
        return REJECT(argument_name(c, weight), ("dtype is %s", nvfp4_dtype_name(weight->dtype)),
                      ("must be float32 or that of x, %s", nvfp4_dtype_name(x->dtype)));
    return check_vector(c, weight, 'K', k, 0);
}

/* The residual has the shape and the dtype of x. */
static nvfp4_status check_residual(const checked_call *c, const nvfp4_tensor *residual, const nvfp4_tensor *x,
                                   const quantize_problem *q, matrix *r) {
    if (residual->dtype != x->dtype)
        return REJECT(argument_name(c, residual), ("dtype is %s", nvfp4_dtype_name(residual->dtype)),
                      ("must be that of x, %s", nvfp4_dtype_name(x->dtype)));
    nvfp4_status status = check_matrix(c, residual, "[R, K]", "[L, R, K]", WRITTEN, r);
    if (status) return status;
    if (residual->ndim != x->ndim || r->l != q->l || r->rows != q->rows || r->columns != q->k)
        return REJECT(argument_name(c, residual),
                      ("is %lld x %lld x %lld", (long long)r->l, (long long)r->rows, (long long)r->columns),
                      ("must be as x, %lld x %lld x %lld, in %d dimensions", (long long)q->l, (long long)q->rows,
                       (long long)q->k, x->ndim));
    return check_alignment(c, residual, dtype_bytes(residual->dtype));
}

static nvfp4_status check_rms_norm_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_rms_norm_quantize_args *args = c->args;
    const nvfp4_tensor *x = &args->quantize.x, *residual = &args->residual;
    norm_problem *p = &call->problem.row_op.rms_norm_quantize;
    matrix r = {0};
    *p = (norm_problem){.weight = NULL};
    nvfp4_status status = check_amax6(args->quantize.block_scale);
    if (!status) status = check_blocks(c, READ_ONLY, &p->q);
    if (status) return status;
    if (!(args->eps >= 0.0f && args->eps <= FLT_MAX))
        return REJECT("eps", ("is %g", (double)args->eps), ("must be finite and not negative"));
    status = check_round_steps(args->round_steps);
    if (status) return status;
    status = check_weight(c, &args->weight, x, p->q.k);
    if (!status && !absent(residual)) status = check_residual(c, residual, x, &p->q, &r);
    p->weight_type = (int32_t)args->weight.dtype;
    p->eps = args->eps;
    p->q.round_steps = (int32_t)args->round_steps;
    p->residual_pitch = r.pitch;
    p->residual_batch = r.batch;
    call->is_empty = is_empty(&p->q);
    return status;
}

static void bind_rms_norm_quantize(const checked_call *c, prepared_call *call) {
    const nvfp4_rms_norm_quantize_args *args = c->args;
    norm_problem *p = &call->problem.row_op.rms_norm_quantize;
    bind_blocks(&args->quantize, &p->q);
    p->weight = args->weight.data;
    p->residual = args->residual.dtype == NVFP4_NONE ? NULL : args->residual.data;
}

/* ---- its row ---- */

static const operation_tensor tensors[] = {
    {"x", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    {"weight", offsetof(nvfp4_rms_norm_quantize_args, weight), INPUT, HOLDS_ANY, 0, 0},
    {"residual", offsetof(nvfp4_rms_norm_quantize_args, residual), IN_OUT, HOLDS_ANY, 1, 0},
    GLOBAL_SCALE,
    DATA_TENSOR,
    SCALE_TENSOR,
};
static const operation_scalar scalars[] = {
    GLOBAL_VALUE(3),
    {"eps", SCALAR_FLOAT, offsetof(nvfp4_rms_norm_quantize_args, eps), 0, NULL},
    SCALE_LAYOUT,
    {"round_steps", SCALAR_FLAGS, offsetof(nvfp4_rms_norm_quantize_args, round_steps), 0, "0"},
};
static const operation_result results[] = DATA_AND_SCALE(4, 5, "x");
const operation operation_rms_norm_quantize = {
    .name = OPERATION(rms_norm_quantize),
    .tensors = TENSORS(tensors),
    .scalars = SCALARS(scalars),
    .results = RESULTS(results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = ROW_OP(rms_norm_quantize),
    .check = check_rms_norm_quantize,
    .bind = bind_rms_norm_quantize,
};
