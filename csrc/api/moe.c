/* moe_route and moe_combine, the ways of rows to experts and back: rows of the table and rules. */
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

/* ---- moe_route ---- */

static nvfp4_status check_moe_route(const checked_call *c, prepared_call *call) {
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

static void bind_moe_route(const checked_call *c, prepared_call *call) {
    const nvfp4_moe_route_args *args = c->args;
    moe_route_problem *p = &call->problem.row_op.moe_route;
    p->ids = args->ids.data;
    p->expert_map = args->expert_map.data;
    p->maps_ids = args->expert_map.dtype != NVFP4_NONE;
    p->rows = args->rows.data;
    p->ends = args->ends.data;
    p->places = args->places.data;
}

enum { ROUTE_IDS, ROUTE_MAP, ROUTE_ROWS, ROUTE_ENDS, ROUTE_PLACES };

#define AT(field) offsetof(nvfp4_moe_route_args, field)
static const operation_tensor moe_route_tensors[] = {
    [ROUTE_IDS] = {"ids", AT(ids), INPUT, HOLDS_INDICES, 0, 0},
    [ROUTE_MAP] = {"expert_map", AT(expert_map), INPUT, HOLDS_INT32, 1, 0},
    [ROUTE_ROWS] = {"rows", AT(rows), OUTPUT, HOLDS_INT32, 0, 0},
    [ROUTE_ENDS] = {"ends", AT(ends), OUTPUT, HOLDS_INT32, 0, 0},
    [ROUTE_PLACES] = {"places", AT(places), OUTPUT, HOLDS_INT32, 0, 0},
};
#undef AT
static const operation_scalar moe_route_scalars[] = {{"E", SCALAR_SIZE, 0, 0, NULL}};
static const operation_result moe_route_results[] = {
    {.tensor = ROUTE_ROWS, .dtype = NVFP4_INT32, .shape = {"[count_of(ids)]", 0}},
    {.tensor = ROUTE_ENDS, .dtype = NVFP4_INT32, .shape = {"[E]", 0}},
    {.tensor = ROUTE_PLACES, .dtype = NVFP4_INT32, .shape = {"[rows_of(ids), columns_of(ids)]", 0}},
};
const operation operation_moe_route = {
    .name = OPERATION(moe_route),
    .tensors = TENSORS(moe_route_tensors),
    .scalars = SCALARS(moe_route_scalars),
    .results = RESULTS(moe_route_results),
    .given = RESULTS_NEW,
    .planners = ROW_OP(moe_route),
    .check = check_moe_route,
    .bind = bind_moe_route,
};

/* ---- moe_combine ---- */

static nvfp4_status check_moe_combine(const checked_call *c, prepared_call *call) {
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

static void bind_moe_combine(const checked_call *c, prepared_call *call) {
    const nvfp4_moe_combine_args *args = c->args;
    moe_combine_problem *p = &call->problem.row_op.moe_combine;
    p->y = args->y.data;
    p->places = args->places.data;
    p->weights = args->weights.dtype == NVFP4_NONE ? NULL : args->weights.data;
    p->out = args->out.data;
}

#define AT(field) offsetof(nvfp4_moe_combine_args, field)
static const operation_tensor moe_combine_tensors[] = {
    {"y", AT(y), INPUT, HOLDS_FLOATS, 0, 0},
    {"places", AT(places), INPUT, HOLDS_INT32, 0, 0},
    {"weights", AT(weights), INPUT, HOLDS_FLOATS, 1, 0},
    {"out", AT(out), OUTPUT, HOLDS_FLOATS, 0, 0},
};
#undef AT
static const operation_result moe_combine_results[] = {{
    .tensor = 3,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP32,
    .shape = {"[rows_of(places), columns_of(y)]", 0},
}};
const operation operation_moe_combine = {
    .name = OPERATION(moe_combine),
    .tensors = TENSORS(moe_combine_tensors),
    .results = RESULTS(moe_combine_results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = ROW_OP(moe_combine),
    .check = check_moe_combine,
    .bind = bind_moe_combine,
};
