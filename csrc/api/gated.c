/* gated: its row of the table and its rules, which the operations that compute an activation too share. */
#include <math.h>

#include "api/row_op.h"
#include "api/rules.h"
#include "common/error.h"

/* up and out have the shape of the gate. */
static nvfp4_status check_as_gate(const checked_call *c, const nvfp4_tensor *t, const nvfp4_tensor *gate, direction use,
                                  const matrix *expected, matrix *x) {
    nvfp4_status status = check_strided_matrix(c, t, "[R, N]", "[L, R, N]", use, x);
    if (status) return status;
    if (t->ndim != gate->ndim || x->l != expected->l || x->rows != expected->rows || x->columns != expected->columns)
        return REJECT(argument_name(c, t),
                      ("is %lld x %lld x %lld", (long long)x->l, (long long)x->rows, (long long)x->columns),
                      ("must be as gate, %lld x %lld x %lld, in %d dimensions", (long long)expected->l,
                       (long long)expected->rows, (long long)expected->columns, gate->ndim));
    return check_alignment(c, t, dtype_bytes(t->dtype));
}

nvfp4_status check_up(const checked_call *c, const nvfp4_tensor *up, const nvfp4_tensor *gate, const matrix *expected,
                      matrix *x) {
    if (up->dtype != gate->dtype)
        return REJECT(argument_name(c, up), ("dtype is %s", nvfp4_dtype_name(up->dtype)),
                      ("must be that of gate, %s", nvfp4_dtype_name(gate->dtype)));
    return check_as_gate(c, up, gate, READ_ONLY, expected, x);
}

nvfp4_status check_activation(int32_t activation) {
    if (activation >= NVFP4_SILU && activation <= NVFP4_SWIGLU) return NVFP4_OK;
    return REJECT("activation", ("is %d", activation),
                  ("must be silu (%d), gelu_tanh (%d), relu2 (%d) or swiglu (%d)", NVFP4_SILU, NVFP4_GELU_TANH,
                   NVFP4_RELU2, NVFP4_SWIGLU));
}

nvfp4_status check_gating(int32_t activation, float limit, float alpha, const char *alpha_name) {
    const char *name = activation_name(activation);
    if (!(limit > 0.0f)) return REJECT("limit", ("is %g", (double)limit), ("must be positive"));
    if (limit < INFINITY && activation != NVFP4_SILU && activation != NVFP4_SWIGLU)
        return REJECT("limit", ("is %g", (double)limit), ("must be left out: %s has none", name));
    if (activation != NVFP4_SWIGLU && alpha != 1.702f)
        return REJECT(alpha_name, ("is %g", (double)alpha), ("must be left out (1.702): %s has none", name));
    if (!(alpha >= 0x1p-64f && alpha <= 0x1p64f))
        return REJECT(alpha_name, ("is %g", (double)alpha), ("must be between 2^-64 and 2^64"));
    return NVFP4_OK;
}

nvfp4_status check_gate_and_up(int32_t activation, const nvfp4_tensor *up, float limit, float alpha) {
    nvfp4_status status = check_activation(activation);
    if (status) return status;
    if (activation == NVFP4_SWIGLU && absent(up))
        return REJECT("up", ("is missing"), ("must be a tensor: swiglu multiplies by up + 1"));
    if (activation == NVFP4_RELU2 && !absent(up))
        return CONTRADICTS("up", ("is given, but relu2 is a function of gate alone"));
    return check_gating(activation, limit, alpha, "alpha");
}

static nvfp4_status check_gated(const checked_call *c, prepared_call *call) {
    const nvfp4_gated_args *args = c->args;
    const nvfp4_tensor *gate = &args->gate, *up = &args->up;
    matrix g, u = {0}, out;
    nvfp4_status status = check_gate_and_up((int32_t)args->activation, up, args->limit, args->alpha);
    if (!status) status = check_strided_matrix(c, gate, "[R, N]", "[L, R, N]", READ_ONLY, &g);
    if (!status) status = check_alignment(c, gate, dtype_bytes(gate->dtype));
    if (status) return status;
    if (!absent(up)) status = check_up(c, up, gate, &g, &u);
    if (!status) status = check_as_gate(c, &args->out, gate, WRITTEN, &g, &out);
    if (status) return status;
    call->problem.row_op.gated = (gated_problem){.rows = g.rows,
                                                 .columns = g.columns,
                                                 .l = g.l,
                                                 .gate_pitch = g.pitch,
                                                 .gate_batch = g.batch,
                                                 .up_pitch = u.pitch,
                                                 .up_batch = u.batch,
                                                 .out_pitch = out.pitch,
                                                 .out_batch = out.batch,
                                                 .limit = args->limit,
                                                 .alpha = args->alpha,
                                                 .activation = (int32_t)args->activation,
                                                 .type = (int32_t)gate->dtype,
                                                 .out_type = (int32_t)args->out.dtype};
    call->is_empty = element_count(gate) == 0;
    return NVFP4_OK;
}

static void bind_gated(const checked_call *c, prepared_call *call) {
    const nvfp4_gated_args *args = c->args;
    gated_problem *p = &call->problem.row_op.gated;
    p->gate = args->gate.data;
    p->up = args->up.dtype == NVFP4_NONE ? NULL : args->up.data;
    p->out = args->out.data;
}

/* ---- its row ---- */

#define AT(field) offsetof(nvfp4_gated_args, field)
static const operation_tensor tensors[] = {
    {"gate", AT(gate), INPUT, HOLDS_FLOATS, 0, 0},
    {"up", AT(up), INPUT, HOLDS_FLOATS, 1, 0},
    {"out", AT(out), OUTPUT, HOLDS_FLOATS, 0, 0},
};
static const operation_scalar scalars[] = {
    {"activation", SCALAR_ACTIVATION, AT(activation), 0, NULL},
    {"limit", SCALAR_FLOAT, AT(limit), 0, NULL},
    {"alpha", SCALAR_FLOAT, AT(alpha), 0, NULL},
};
#undef AT
static const operation_result results[] = {{
    .tensor = 2,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP32,
    .shape = {"[*batch_of(gate), rows_of(gate), columns_of(gate)]", 0},
}};
const operation operation_gated = {
    .name = OPERATION(gated),
    .tensors = TENSORS(tensors),
    .scalars = SCALARS(scalars),
    .results = RESULTS(results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = ROW_OP(gated),
    .check = check_gated,
    .bind = bind_gated,
};
