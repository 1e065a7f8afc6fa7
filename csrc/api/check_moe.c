/* The rules of gated activations, and of the ways of rows to experts and back. */
#include <math.h>

#include "api/row_op.h"
#include "api/rules.h"
#include "common/error.h"

/* A matrix without batches, whose rows are any distance apart. */
static nvfp4_status check_table(const checked_call *c, const nvfp4_tensor *t, const char *shape, direction use,
                                matrix *x) {
    if (t->ndim != 2) return REJECT(argument_name(c, t), ("has %d dimensions", t->ndim), ("must have 2 (%s)", shape));
    nvfp4_status status = check_strided_matrix(c, t, shape, "", use, x);
    return status ? status : check_alignment(c, t, dtype_bytes(t->dtype));
}

/* ---- gated ---- */

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

nvfp4_status check_gated(const checked_call *c, prepared_call *call) {
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

/* ---- moe_route ---- */

nvfp4_status check_moe_route(const checked_call *c, prepared_call *call) {
    const nvfp4_moe_route_args *args = c->args;
    const nvfp4_tensor *map = &args->expert_map, *ends = &args->ends, *out = &args->places;
    matrix ids, places;
    nvfp4_status status = check_table(c, &args->ids, "[S, k]", READ_ONLY, &ids);
    if (status) return status;
    const int64_t choices = ids.rows * ids.columns, experts = ends->ndim ? ends->shape[0] : 0;
    if (experts < 1 || experts > NVFP4_MOE_MAX_EXPERTS)
        return REJECT("E", ("is %lld", (long long)experts), ("must be between 1 and %d", NVFP4_MOE_MAX_EXPERTS));
    if (!absent(map) && map->ndim != 1)
        return REJECT(argument_name(c, map), ("has %d dimensions", map->ndim), ("must be a vector, [G]"));
    if (!absent(map)) status = check_vector(c, map, 'G', map->shape[0], 0);
    if (!status) status = check_written_vector(c, &args->rows, "S * k", choices);
    if (!status) status = check_written_vector(c, ends, "E", experts);
    if (!status) status = check_table(c, out, "[S, k]", WRITTEN, &places);
    if (status) return status;
    if (places.rows != ids.rows || places.columns != ids.columns)
        return REJECT(argument_name(c, out), ("is %lld x %lld", (long long)places.rows, (long long)places.columns),
                      ("must be as ids, %lld x %lld", (long long)ids.rows, (long long)ids.columns));
    if (!is_contiguous(out)) return REJECT(argument_name(c, out), ("is not contiguous"), ("must be"));
    call->problem.row_op.moe_route = (moe_route_problem){.choices = choices,
                                                         .per_token = ids.columns,
                                                         .ids_pitch = ids.pitch,
                                                         .ids_end = absent(map) ? experts : map->shape[0],
                                                         .experts = (int32_t)experts,
                                                         .ids_type = (int32_t)args->ids.dtype};
    call->is_empty = 0; /* the ends of nothing are zeros */
    return NVFP4_OK;
}

/* ---- moe_combine ---- */

nvfp4_status check_moe_combine(const checked_call *c, prepared_call *call) {
    const nvfp4_moe_combine_args *args = c->args;
    const nvfp4_tensor *weights = &args->weights;
    matrix y, places, w = {0}, out;
    nvfp4_status status = check_table(c, &args->y, "[R, N]", READ_ONLY, &y);
    if (!status) status = check_table(c, &args->places, "[S, k]", READ_ONLY, &places);
    if (!status && !absent(weights)) status = check_table(c, weights, "[S, k]", READ_ONLY, &w);
    if (!status) status = check_table(c, &args->out, "[S, N]", WRITTEN, &out);
    if (status) return status;
    if (!absent(weights) && (w.rows != places.rows || w.columns != places.columns))
        return REJECT(argument_name(c, weights), ("is %lld x %lld", (long long)w.rows, (long long)w.columns),
                      ("must be as places, %lld x %lld", (long long)places.rows, (long long)places.columns));
    if (out.rows != places.rows || out.columns != y.columns)
        return REJECT(argument_name(c, &args->out), ("is %lld x %lld", (long long)out.rows, (long long)out.columns),
                      ("places and y make it S x N = %lld x %lld", (long long)places.rows, (long long)y.columns));
    call->problem.row_op.moe_combine = (moe_combine_problem){.tokens = places.rows,
                                                             .columns = y.columns,
                                                             .per_token = places.columns,
                                                             .y_rows = y.rows,
                                                             .y_pitch = y.pitch,
                                                             .places_pitch = places.pitch,
                                                             .weights_pitch = w.pitch,
                                                             .out_pitch = out.pitch,
                                                             .y_type = (int32_t)args->y.dtype,
                                                             .weights_type = (int32_t)weights->dtype,
                                                             .out_type = (int32_t)args->out.dtype};
    call->is_empty = out.rows * out.columns == 0;
    return NVFP4_OK;
}
