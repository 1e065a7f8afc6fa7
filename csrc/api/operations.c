/* The table of operations but for the quantizers (operations_quantize.c). */
#include "api/gemm.h"
#include "api/row_op.h"

/* ---- gemm ---- */

static void gemm_defaults(operation_args *args) {
    nvfp4_gemm_init(&args->gemm);
}

enum { GEMM_A, GEMM_B, GEMM_ALPHA = 4, GEMM_OUT = 7 };

#define AT(field) offsetof(nvfp4_gemm_args, field)
static const operation_tensor gemm_tensors[] = {
    [GEMM_A] = {"a", AT(a), INPUT, HOLDS_VALUES_16, 0, 0},
    [GEMM_B] = {"b", AT(b), INPUT, HOLDS_VALUES, 0, 0},
    {"scale_a", AT(scale_a), INPUT, HOLDS_SCALES, 1, 0},
    {"scale_b", AT(scale_b), INPUT, HOLDS_SCALES, 0, 0},
    [GEMM_ALPHA] = {"alpha", AT(alpha), INPUT, HOLDS_FLOAT32, 1, 0},
    {"bias", AT(bias), INPUT, HOLDS_ANY, 1, 0},
    {"c", AT(c), INPUT, HOLDS_ANY, 1, ALIAS_OF_OUTPUT},
    [GEMM_OUT] = {"out", AT(out), OUTPUT, HOLDS_FLOATS, 0, 0},
};
static const operation_scalar gemm_scalars[] = {
    {"alpha_value", SCALAR_FLOAT, AT(alpha_value), 1 + GEMM_ALPHA, NULL},
    {"beta", SCALAR_FLOAT, AT(beta), 0, NULL},
    {"scale_layout", SCALAR_LAYOUT, AT(scale_layout), 0, NULL},
    {"backend", SCALAR_BACKEND, AT(backend), 0, NULL},
    {"flags", SCALAR_FLAGS, AT(flags), 0, NULL},
};
static const operation_result gemm_results[] = {{
    .tensor = GEMM_OUT,
    .like = GEMM_A,
    .rank = RANK_MATRIX,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP16,
    .shape = {{SIZE_ROWS, GEMM_A, 1, 1, 1}, {SIZE_ROWS, GEMM_B, 1, 1, 1}, 0},
    .flag_shape = {{SIZE_ROWS, GEMM_A, 1, 1, 1}, {SIZE_COLUMNS, GEMM_B, 2, 1, 1}, 0},
    .flags_offset = AT(flags),
    .flags_mask = NVFP4_NO_TRANSPOSE_B,
}};
#undef AT
const operation operation_gemm = {
    .name = "gemm",
    .args_bytes = sizeof(nvfp4_gemm_args),
    .min_bytes = sizeof(nvfp4_gemm_args),
    .defaults = gemm_defaults,
    .tensors = gemm_tensors,
    .tensor_count = COUNT(gemm_tensors),
    .scalars = gemm_scalars,
    .scalar_count = COUNT(gemm_scalars),
    .results = gemm_results,
    .result_count = COUNT(gemm_results),
    .given = RESULTS_NEW_OR_GIVEN,
    .check = check_gemm,
    .plan = gemm_plan,
    .bind = bind_gemm,
    .run = gemm_run,
};

/* ---- grouped_gemm ---- */

static void grouped_defaults(operation_args *args) {
    nvfp4_grouped_gemm_init(&args->grouped_gemm);
}

enum { GROUPED_A, GROUPED_B, GROUPED_SCALE_B = 3, GROUPED_ROWS = 5, GROUPED_ALPHA = 8, GROUPED_OUT = 10 };

#define AT(field) offsetof(nvfp4_grouped_gemm_args, field)
static const operation_tensor grouped_tensors[] = {
    [GROUPED_A] = {"a", AT(a), INPUT, HOLDS_VALUES_16, 0, 0},
    [GROUPED_B] = {"b", AT(b), INPUT, HOLDS_VALUES, 0, 0},
    {"scale_a", AT(scale_a), INPUT, HOLDS_SCALES, 1, 0},
    [GROUPED_SCALE_B] = {"scale_b", AT(scale_b), INPUT, HOLDS_SCALES, 0, 0},
    {"ends", AT(ends), INPUT, HOLDS_INT32, 0, 0},
    [GROUPED_ROWS] = {"rows", AT(rows), INPUT, HOLDS_INT32, 1, 0},
    {"scale_rows", AT(scale_rows), INPUT, HOLDS_INT32, 1, 0},
    {"row_scale", AT(row_scale), INPUT, HOLDS_FLOAT32, 1, 0},
    [GROUPED_ALPHA] = {"alpha", AT(alpha), INPUT, HOLDS_FLOAT32, 1, 0},
    {"bias", AT(bias), INPUT, HOLDS_ANY, 1, 0},
    [GROUPED_OUT] = {"out", AT(out), OUTPUT, HOLDS_FLOATS, 0, 0},
};
#define GROUPED_FACTOR {"alpha_value", SCALAR_FLOAT, AT(alpha_value), 1 + GROUPED_ALPHA, NULL}
#define GROUPED_SCALARS                                                                                                \
    {"scale_layout", SCALAR_LAYOUT, AT(scale_layout), 0, NULL}, {"backend", SCALAR_BACKEND, AT(backend), 0, NULL}, {   \
        "flags", SCALAR_FLAGS, AT(flags), 0, NULL                                                                      \
    }
#define GROUPED_LISTS                                                                                                  \
    {                                                                                                                  \
        {GROUPED_B, AT(b_list), AT(groups)}, {                                                                         \
            GROUPED_SCALE_B, AT(scale_b_list), AT(groups)                                                              \
        }                                                                                                              \
    }
static const operation_scalar grouped_scalars[] = {GROUPED_FACTOR, GROUPED_SCALARS};
#define SORTED_ROWS {SIZE_COUNT, GROUPED_ROWS, 1, 1, 1, 1 + GROUPED_A}
static const operation_result grouped_results[] = {{
    .tensor = GROUPED_OUT,
    .like = GROUPED_A,
    .rank = RANK_MATRIX,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP16,
    .shape = {SORTED_ROWS, {SIZE_STACKED, GROUPED_B, 1, 1, 1, 0}, 0},
    .flag_shape = {SORTED_ROWS, {SIZE_STACK_COLUMNS, GROUPED_B, 2, 1, 1, 0}, 0},
    .flags_offset = AT(flags),
    .flags_mask = NVFP4_NO_TRANSPOSE_B,
}};
const operation operation_grouped_gemm = {
    .name = "grouped_gemm",
    .args_bytes = sizeof(nvfp4_grouped_gemm_args),
    .min_bytes = sizeof(nvfp4_grouped_gemm_args),
    .defaults = grouped_defaults,
    .tensors = grouped_tensors,
    .tensor_count = COUNT(grouped_tensors),
    .scalars = grouped_scalars,
    .scalar_count = COUNT(grouped_scalars),
    .results = grouped_results,
    .result_count = COUNT(grouped_results),
    .lists = GROUPED_LISTS,
    .list_count = 2,
    .given = RESULTS_NEW_OR_GIVEN,
    .adapt = join_parts,
    .check = check_grouped_gemm,
    .plan = grouped_gemm_plan,
    .bind = bind_grouped_gemm,
    .run = gemm_run,
};

/* Its arguments begin with those of grouped_gemm, so AT is the same. */
static void gated_grouped_defaults(operation_args *args) {
    nvfp4_gated_grouped_gemm_init(&args->gated_grouped_gemm);
}

#define GATED_AT(field) offsetof(nvfp4_gated_grouped_gemm_args, field)
static const operation_scalar gated_grouped_scalars[] = {
    GROUPED_FACTOR,
    {"activation", SCALAR_ACTIVATION, GATED_AT(activation), 0, NULL},
    {"limit", SCALAR_FLOAT, GATED_AT(limit), 0, NULL},
    {"activation_alpha", SCALAR_FLOAT, GATED_AT(activation_alpha), 0, NULL},
    GROUPED_SCALARS,
};
#undef GATED_AT
static const operation_result gated_grouped_results[] = {{
    .tensor = GROUPED_OUT,
    .like = GROUPED_A,
    .rank = RANK_MATRIX,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP16,
    .shape = {SORTED_ROWS, {SIZE_STACK_ROWS, GROUPED_B, 1, 1, 1, 0}, 0},
}};
const operation operation_gated_grouped_gemm = {
    .name = "gated_grouped_gemm",
    .args_bytes = sizeof(nvfp4_gated_grouped_gemm_args),
    .min_bytes = sizeof(nvfp4_gated_grouped_gemm_args),
    .defaults = gated_grouped_defaults,
    .tensors = grouped_tensors,
    .tensor_count = COUNT(grouped_tensors),
    .scalars = gated_grouped_scalars,
    .scalar_count = COUNT(gated_grouped_scalars),
    .results = gated_grouped_results,
    .result_count = COUNT(gated_grouped_results),
    .lists = GROUPED_LISTS,
    .list_count = 2,
    .given = RESULTS_NEW_OR_GIVEN,
    .adapt = join_parts,
    .check = check_gated_grouped_gemm,
    .plan = gated_grouped_gemm_plan,
    .bind = bind_grouped_gemm,
    .run = gated_grouped_gemm_run,
};
#undef AT

/* ---- global scales ---- */

static void amax_scale_defaults(operation_args *args) {
    nvfp4_amax_scale_init(&args->amax_scale);
}

#define AT(field) offsetof(nvfp4_amax_scale_args, field)
static const operation_tensor amax_tensors[] = {
    {"x", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    {"scale", AT(scale), OUTPUT, HOLDS_FLOAT32, 0, 0},
};
static const operation_scalar amax_scalars[] = {
    {"block_scale", SCALAR_BLOCK_SCALE, AT(block_scale), 0, NULL},
    {"by_row", SCALAR_FLAGS, AT(by_row), 0, "0"},
};
static const operation_result amax_results[] = {{.tensor = 1,
                                                 .rank = RANK_VECTOR,
                                                 .dtype = NVFP4_FP32,
                                                 .shape = {.columns = {SIZE_ONE, 0, 1, 1, 1}, .alignment = 0},
                                                 .flag_shape = {.columns = {SIZE_ROWS, 0, 1, 1, 1}, .alignment = 0},
                                                 .flags_offset = AT(by_row),
                                                 .flags_mask = 1}};
#undef AT
const operation operation_amax_scale = {
    .name = "amax_scale",
    .args_bytes = sizeof(nvfp4_amax_scale_args),
    .min_bytes = sizeof(nvfp4_amax_scale_args),
    .defaults = amax_scale_defaults,
    .tensors = amax_tensors,
    .tensor_count = COUNT(amax_tensors),
    .scalars = amax_scalars,
    .scalar_count = COUNT(amax_scalars),
    .results = amax_results,
    .result_count = COUNT(amax_results),
    .given = RESULTS_NEW,
    .planners = PLANNERS(amax_scale),
    .check = check_amax_scale,
    .plan = row_op_plan,
    .bind = bind_amax_scale,
    .run = row_op_run,
};

/* ---- changes of scale layout ---- */

static void swizzle_defaults(operation_args *args) {
    nvfp4_swizzle_init(&args->swizzle);
}

#define AT(field) offsetof(nvfp4_swizzle_args, field)
static const operation_tensor swizzle_tensors[] = {
    {"scale", AT(linear), INPUT, HOLDS_SCALES, 0, 0},
    {"swizzled", AT(swizzled), OUTPUT, HOLDS_SCALES, 0, 0},
};
static const operation_result swizzle_results[] = {{
    .tensor = 1,
    .rank = RANK_MATRIX,
    .dtype = DTYPE_OF_LIKE,
    .shape = {{SIZE_ROWS, 0, 1, 1, 128}, {SIZE_COLUMNS, 0, 1, 1, 4}, 16},
}};
const operation operation_swizzle = {
    .name = "swizzle",
    .args_bytes = sizeof(nvfp4_swizzle_args),
    .min_bytes = sizeof(nvfp4_swizzle_args),
    .defaults = swizzle_defaults,
    .tensors = swizzle_tensors,
    .tensor_count = COUNT(swizzle_tensors),
    .results = swizzle_results,
    .result_count = COUNT(swizzle_results),
    .given = RESULTS_NEW,
    .planners = PLANNERS(swizzle),
    .check = check_swizzle,
    .plan = row_op_plan,
    .bind = bind_swizzle,
    .run = row_op_run,
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
    .rank = RANK_BATCHED,
    .dtype = DTYPE_OF_LIKE,
    .shape = {{SIZE_SCALAR, 0, 1, 1, 1}, {SIZE_SCALAR, 1, 1, 1, 1}, 1},
}};
const operation operation_unswizzle = {
    .name = "unswizzle",
    .args_bytes = sizeof(nvfp4_swizzle_args),
    .min_bytes = sizeof(nvfp4_swizzle_args),
    .defaults = swizzle_defaults,
    .tensors = unswizzle_tensors,
    .tensor_count = COUNT(unswizzle_tensors),
    .scalars = unswizzle_scalars,
    .scalar_count = COUNT(unswizzle_scalars),
    .results = unswizzle_results,
    .result_count = COUNT(unswizzle_results),
    .given = RESULTS_NEW,
    .planners = PLANNERS(unswizzle),
    .check = check_unswizzle,
    .plan = row_op_plan,
    .bind = bind_swizzle,
    .run = row_op_run,
};

/* ---- the steps around experts ---- */

static void gated_defaults(operation_args *args) {
    nvfp4_gated_init(&args->gated);
}

#define AT(field) offsetof(nvfp4_gated_args, field)
static const operation_tensor gated_tensors[] = {
    {"gate", AT(gate), INPUT, HOLDS_FLOATS, 0, 0},
    {"up", AT(up), INPUT, HOLDS_FLOATS, 1, 0},
    {"out", AT(out), OUTPUT, HOLDS_FLOATS, 0, 0},
};
static const operation_scalar gated_scalars[] = {
    {"activation", SCALAR_ACTIVATION, AT(activation), 0, NULL},
    {"limit", SCALAR_FLOAT, AT(limit), 0, NULL},
    {"alpha", SCALAR_FLOAT, AT(alpha), 0, NULL},
};
#undef AT
static const operation_result gated_results[] = {{
    .tensor = 2,
    .like = 0,
    .rank = RANK_MATRIX,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP32,
    .shape = {{SIZE_ROWS, 0, 1, 1, 1, 0}, {SIZE_COLUMNS, 0, 1, 1, 1, 0}, 0},
}};
const operation operation_gated = {
    .name = "gated",
    .args_bytes = sizeof(nvfp4_gated_args),
    .min_bytes = sizeof(nvfp4_gated_args),
    .defaults = gated_defaults,
    .tensors = gated_tensors,
    .tensor_count = COUNT(gated_tensors),
    .scalars = gated_scalars,
    .scalar_count = COUNT(gated_scalars),
    .results = gated_results,
    .result_count = COUNT(gated_results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = PLANNERS(gated),
    .check = check_gated,
    .plan = row_op_plan,
    .bind = bind_gated,
    .run = row_op_run,
};

static void moe_route_defaults(operation_args *args) {
    nvfp4_moe_route_init(&args->moe_route);
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
    {.tensor = ROUTE_ROWS,
     .like = ROUTE_IDS,
     .rank = RANK_VECTOR,
     .dtype = NVFP4_INT32,
     .shape = {.columns = {SIZE_COUNT, ROUTE_IDS, 1, 1, 1, 0}}},
    {.tensor = ROUTE_ENDS,
     .like = ROUTE_IDS,
     .rank = RANK_VECTOR,
     .dtype = NVFP4_INT32,
     .shape = {.columns = {SIZE_SCALAR, 0, 1, 1, 1, 0}}},
    {.tensor = ROUTE_PLACES,
     .like = ROUTE_IDS,
     .rank = RANK_MATRIX,
     .dtype = NVFP4_INT32,
     .shape = {{SIZE_ROWS, ROUTE_IDS, 1, 1, 1, 0}, {SIZE_COLUMNS, ROUTE_IDS, 1, 1, 1, 0}, 0}},
};
const operation operation_moe_route = {
    .name = "moe_route",
    .args_bytes = sizeof(nvfp4_moe_route_args),
    .min_bytes = sizeof(nvfp4_moe_route_args),
    .defaults = moe_route_defaults,
    .tensors = moe_route_tensors,
    .tensor_count = COUNT(moe_route_tensors),
    .scalars = moe_route_scalars,
    .scalar_count = COUNT(moe_route_scalars),
    .results = moe_route_results,
    .result_count = COUNT(moe_route_results),
    .given = RESULTS_NEW,
    .planners = PLANNERS(moe_route),
    .check = check_moe_route,
    .plan = row_op_plan,
    .bind = bind_moe_route,
    .run = row_op_run,
};

static void moe_combine_defaults(operation_args *args) {
    nvfp4_moe_combine_init(&args->moe_combine);
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
    .like = 0,
    .rank = RANK_MATRIX,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP32,
    .shape = {{SIZE_ROWS, 1, 1, 1, 1, 0}, {SIZE_COLUMNS, 0, 1, 1, 1, 0}, 0},
}};
const operation operation_moe_combine = {
    .name = "moe_combine",
    .args_bytes = sizeof(nvfp4_moe_combine_args),
    .min_bytes = sizeof(nvfp4_moe_combine_args),
    .defaults = moe_combine_defaults,
    .tensors = moe_combine_tensors,
    .tensor_count = COUNT(moe_combine_tensors),
    .results = moe_combine_results,
    .result_count = COUNT(moe_combine_results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = PLANNERS(moe_combine),
    .check = check_moe_combine,
    .plan = row_op_plan,
    .bind = bind_moe_combine,
    .run = row_op_run,
};
