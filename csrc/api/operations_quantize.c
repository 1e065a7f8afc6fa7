/* The quantizers in the table of operations: data and scales of a matrix, and of rows in groups. */
#include "api/row_op.h"
#include "common/group_blocks.h"

static void quantize_defaults(operation_args *args) {
    nvfp4_quantize_init(&args->quantize);
}

/* Shapes of data and scales for a matrix of R rows and `of` times as many columns as there are values. */
#define DATA_SHAPE(x, of)   {{SIZE_ROWS, x, 1, 1, 1}, {SIZE_COLUMNS, x, 1, 2 * (of), 1}, 8}
#define BLOCKS_SHAPE(x, of) {{SIZE_ROWS, x, 1, 1, 128}, {SIZE_COLUMNS, x, 1, 16 * (of), 4}, 16}
#define LINEAR_SHAPE(x, of) {{SIZE_ROWS, x, 1, 1, 1}, {SIZE_COLUMNS, x, 1, 16 * (of), 1}, 1}
#define DATA_AND_SCALE(data_, scale_, x, of)                                                                           \
    {                                                                                                                  \
        {.tensor = data_, .like = x, .rank = RANK_MATRIX, .dtype = NVFP4_UINT8, .shape = DATA_SHAPE(x, of)}, {         \
            .tensor = scale_, .like = x, .rank = RANK_MATRIX, .dtype = NVFP4_E4M3, .shape = BLOCKS_SHAPE(x, of),       \
            .flag_shape = LINEAR_SHAPE(x, of), .flags_offset = AT(scale_layout), .flags_mask = NVFP4_LINEAR            \
        }                                                                                                              \
    }

#define AT(field)            offsetof(nvfp4_quantize_args, field)
#define GLOBAL_SCALE         {"global_scale", AT(global_scale), INPUT, HOLDS_FLOAT32, 1, 0}
#define GLOBAL_VALUE(tensor) {"global_value", SCALAR_FLOAT, AT(global_value), 1 + (tensor), NULL}
#define SCALE_LAYOUT         {"scale_layout", SCALAR_LAYOUT, AT(scale_layout), 0, NULL}
static const operation_tensor quantize_tensors[] = {
    {"x", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    GLOBAL_SCALE,
    {"data", AT(data), OUTPUT, HOLDS_VALUES, 0, 0},
    {"scale", AT(scale), OUTPUT, HOLDS_SCALES, 0, 0},
};
static const operation_scalar quantize_scalars[] = {
    GLOBAL_VALUE(1),
    SCALE_LAYOUT,
    {"block_scale", SCALAR_BLOCK_SCALE, AT(block_scale), 0, "amax6"},
};
static const operation_result quantize_results[] = DATA_AND_SCALE(2, 3, 0, 1);
const operation operation_quantize = {
    .name = "quantize",
    .args_bytes = sizeof(nvfp4_quantize_args),
    .min_bytes = sizeof(nvfp4_quantize_args),
    .defaults = quantize_defaults,
    .tensors = quantize_tensors,
    .tensor_count = COUNT(quantize_tensors),
    .scalars = quantize_scalars,
    .scalar_count = COUNT(quantize_scalars),
    .results = quantize_results,
    .result_count = COUNT(quantize_results),
    .given = RESULTS_NEW,
    .planners = PLANNERS(quantize),
    .check = check_quantize,
    .plan = row_op_plan,
    .bind = bind_quantize,
    .run = row_op_run,
};

static void weighted_quantize_defaults(operation_args *args) {
    nvfp4_weighted_quantize_init(&args->weighted_quantize);
}

static const operation_tensor weighted_quantize_tensors[] = {
    {"x", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    {"importance", offsetof(nvfp4_weighted_quantize_args, importance), INPUT, HOLDS_FLOAT32, 0, READS_BY_CHECK},
    GLOBAL_SCALE,
    {"data", AT(data), OUTPUT, HOLDS_VALUES, 0, 0},
    {"scale", AT(scale), OUTPUT, HOLDS_SCALES, 0, 0},
};
static const operation_scalar weighted_quantize_scalars[] = {GLOBAL_VALUE(2), SCALE_LAYOUT};
static const operation_result weighted_quantize_results[] = DATA_AND_SCALE(3, 4, 0, 1);
const operation operation_weighted_quantize = {
    .name = "weighted_quantize",
    .args_bytes = sizeof(nvfp4_weighted_quantize_args),
    .min_bytes = sizeof(nvfp4_weighted_quantize_args),
    .defaults = weighted_quantize_defaults,
    .tensors = weighted_quantize_tensors,
    .tensor_count = COUNT(weighted_quantize_tensors),
    .scalars = weighted_quantize_scalars,
    .scalar_count = COUNT(weighted_quantize_scalars),
    .results = weighted_quantize_results,
    .result_count = COUNT(weighted_quantize_results),
    .given = RESULTS_NEW,
    .planners = PLANNERS(weighted_quantize),
    .check = check_weighted_quantize,
    .plan = row_op_plan,
    .bind = bind_weighted_quantize,
    .run = row_op_run,
};

static void gptq_block_defaults(operation_args *args) {
    nvfp4_gptq_block_init(&args->gptq_block);
}

#define GPTQ_AT(field) offsetof(nvfp4_gptq_block_args, field)
static const operation_tensor gptq_block_tensors[] = {
    {"x", GPTQ_AT(x), INPUT, HOLDS_FLOAT32, 0, 0},
    {"u", GPTQ_AT(u), INPUT, HOLDS_FLOAT32, 0, 0},
    {"global_scale", GPTQ_AT(global_scale), INPUT, HOLDS_FLOAT32, 1, 0},
    {"data", GPTQ_AT(data), OUTPUT, HOLDS_VALUES, 0, 0},
    {"scale", GPTQ_AT(scale), OUTPUT, HOLDS_SCALES, 0, 0},
    {"error", GPTQ_AT(error), OUTPUT, HOLDS_FLOAT32, 0, 0},
};
static const operation_scalar gptq_block_scalars[] = {
    {"global_value", SCALAR_FLOAT, GPTQ_AT(global_value), 1 + 2, NULL}};
#undef GPTQ_AT
static const operation_result gptq_block_results[] = {
    {.tensor = 3, .like = 0, .rank = RANK_MATRIX, .dtype = NVFP4_UINT8, .shape = DATA_SHAPE(0, 1)},
    {.tensor = 4, .like = 0, .rank = RANK_MATRIX, .dtype = NVFP4_E4M3, .shape = LINEAR_SHAPE(0, 1)},
    {.tensor = 5,
     .like = 0,
     .rank = RANK_MATRIX,
     .dtype = NVFP4_FP32,
     .shape = {{SIZE_ROWS, 0, 1, 1, 1}, {SIZE_COLUMNS, 0, 1, 1, 1}, 16}},
};
const operation operation_gptq_block = {
    .name = "gptq_block",
    .args_bytes = sizeof(nvfp4_gptq_block_args),
    .min_bytes = sizeof(nvfp4_gptq_block_args),
    .defaults = gptq_block_defaults,
    .tensors = gptq_block_tensors,
    .tensor_count = COUNT(gptq_block_tensors),
    .scalars = gptq_block_scalars,
    .scalar_count = COUNT(gptq_block_scalars),
    .results = gptq_block_results,
    .result_count = COUNT(gptq_block_results),
    .given = RESULTS_NEW,
    .planners = PLANNERS(gptq_block),
    .check = check_gptq_block,
    .plan = row_op_plan,
    .bind = bind_gptq_block,
    .run = row_op_run,
};

/* T rows, of `rows` or else of x; their 128-row blocks of scales, of which each group begins with one. */
#define SORTED_ROWS_OF(rows, x)      {SIZE_COUNT, rows, 1, 1, 1, 1 + (x), 0}
#define GROUP_BLOCKS(of, t, x, ends) {of, t, SCALE_BLOCK_ROWS, 1, 1, x, 1 + (ends)}
#define SCALE_ROWS_RESULT(tensor_, like_, ends)                                                                        \
    {                                                                                                                  \
        .tensor = tensor_, .like = like_, .rank = RANK_VECTOR, .dtype = NVFP4_INT32, .shape = {                        \
            .columns = {SIZE_COUNT, ends, 1, 1, 1, 0, 0}                                                               \
        }                                                                                                              \
    }

enum { SORT_X, SORT_GLOBAL, SORT_ENDS, SORT_ROWS, SORT_DATA, SORT_SCALE, SORT_SCALE_ROWS };

static void grouped_quantize_defaults(operation_args *args) {
    nvfp4_grouped_quantize_init(&args->grouped_quantize);
}

#define GROUPED_AT(field) offsetof(nvfp4_grouped_quantize_args, field)
static const operation_tensor grouped_quantize_tensors[] = {
    [SORT_X] = {"x", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    [SORT_GLOBAL] = GLOBAL_SCALE,
    [SORT_ENDS] = {"ends", GROUPED_AT(ends), INPUT, HOLDS_INT32, 1, 0},
    [SORT_ROWS] = {"rows", GROUPED_AT(rows), INPUT, HOLDS_INT32, 1, 0},
    [SORT_DATA] = {"data", AT(data), OUTPUT, HOLDS_VALUES, 0, 0},
    [SORT_SCALE] = {"scale", AT(scale), OUTPUT, HOLDS_SCALES, 0, 0},
    [SORT_SCALE_ROWS] = {"scale_rows", GROUPED_AT(scale_rows), OUTPUT, HOLDS_INT32, 0, 0},
};
#undef GROUPED_AT
static const operation_scalar grouped_quantize_scalars[] = {
    GLOBAL_VALUE(SORT_GLOBAL),
    SCALE_LAYOUT,
    {"block_scale", SCALAR_BLOCK_SCALE, AT(block_scale), 0, NULL},
};
static const operation_result grouped_quantize_results[] = {
    {.tensor = SORT_DATA,
     .like = SORT_X,
     .rank = RANK_MATRIX,
     .dtype = NVFP4_UINT8,
     .shape = {SORTED_ROWS_OF(SORT_ROWS, SORT_X), {SIZE_COLUMNS, SORT_X, 1, 2, 1}, 8}},
    {.tensor = SORT_SCALE,
     .like = SORT_X,
     .rank = RANK_MATRIX,
     .dtype = NVFP4_E4M3,
     .shape = {GROUP_BLOCKS(SIZE_COUNT, SORT_ROWS, 1 + SORT_X, SORT_ENDS), {SIZE_COLUMNS, SORT_X, 1, 16, 4}, 16},
     .flag_shape = {SORTED_ROWS_OF(SORT_ROWS, SORT_X), {SIZE_COLUMNS, SORT_X, 1, 16, 1}, 1},
     .flags_offset = AT(scale_layout),
     .flags_mask = NVFP4_LINEAR},
    SCALE_ROWS_RESULT(SORT_SCALE_ROWS, SORT_X, SORT_ENDS),
};
const operation operation_grouped_quantize = {
    .name = "grouped_quantize",
    .args_bytes = sizeof(nvfp4_grouped_quantize_args),
    .min_bytes = sizeof(nvfp4_grouped_quantize_args),
    .defaults = grouped_quantize_defaults,
    .tensors = grouped_quantize_tensors,
    .tensor_count = COUNT(grouped_quantize_tensors),
    .scalars = grouped_quantize_scalars,
    .scalar_count = COUNT(grouped_quantize_scalars),
    .results = grouped_quantize_results,
    .result_count = COUNT(grouped_quantize_results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = PLANNERS(grouped_quantize),
    .check = check_grouped_quantize,
    .plan = row_op_plan,
    .bind = bind_grouped_quantize,
    .run = row_op_run,
};

static const operation_tensor dequantize_tensors[] = {
    {"data", AT(data), INPUT, HOLDS_VALUES, 0, 0},
    {"scale", AT(scale), INPUT, HOLDS_SCALES, 0, 0},
    GLOBAL_SCALE,
    {"x", AT(x), OUTPUT, HOLDS_FLOATS, 0, 0},
};
static const operation_scalar dequantize_scalars[] = {GLOBAL_VALUE(2), SCALE_LAYOUT};
static const operation_result dequantize_results[] = {{
    .tensor = 3,
    .like = 0,
    .rank = RANK_MATRIX,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP32,
    .shape = {{SIZE_ROWS, 0, 1, 1, 1}, {SIZE_COLUMNS, 0, 2, 1, 1}, 0},
}};
const operation operation_dequantize = {
    .name = "dequantize",
    .args_bytes = sizeof(nvfp4_quantize_args),
    .min_bytes = sizeof(nvfp4_quantize_args),
    .defaults = quantize_defaults,
    .tensors = dequantize_tensors,
    .tensor_count = COUNT(dequantize_tensors),
    .scalars = dequantize_scalars,
    .scalar_count = COUNT(dequantize_scalars),
    .results = dequantize_results,
    .result_count = COUNT(dequantize_results),
    .given = RESULTS_NEW,
    .planners = PLANNERS(dequantize),
    .check = check_dequantize,
    .plan = row_op_plan,
    .bind = bind_quantize,
    .run = row_op_run,
};

static const operation_tensor silu_tensors[] = {
    {"gate_up", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    GLOBAL_SCALE,
    {"data", AT(data), OUTPUT, HOLDS_VALUES, 0, 0},
    {"scale", AT(scale), OUTPUT, HOLDS_SCALES, 0, 0},
};
static const operation_scalar silu_scalars[] = {GLOBAL_VALUE(1), SCALE_LAYOUT};
static const operation_result silu_results[] = DATA_AND_SCALE(2, 3, 0, 2);
const operation operation_silu_mul_quantize = {
    .name = "silu_mul_quantize",
    .args_bytes = sizeof(nvfp4_quantize_args),
    .min_bytes = sizeof(nvfp4_quantize_args),
    .defaults = quantize_defaults,
    .tensors = silu_tensors,
    .tensor_count = COUNT(silu_tensors),
    .scalars = silu_scalars,
    .scalar_count = COUNT(silu_scalars),
    .results = silu_results,
    .result_count = COUNT(silu_results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = PLANNERS(silu_mul_quantize),
    .check = check_silu_mul_quantize,
    .plan = row_op_plan,
    .bind = bind_silu_mul_quantize,
    .run = row_op_run,
};

enum { GATED_GATE, GATED_UP, GATED_GLOBAL, GATED_ENDS, GATED_DATA, GATED_SCALE, GATED_SCALE_ROWS };

static void gated_quantize_defaults(operation_args *args) {
    nvfp4_gated_quantize_init(&args->gated_quantize);
}

#define GATED_AT(field) offsetof(nvfp4_gated_quantize_args, field)
static const operation_tensor gated_quantize_tensors[] = {
    [GATED_GATE] = {"gate", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    [GATED_UP] = {"up", GATED_AT(up), INPUT, HOLDS_FLOATS, 1, 0},
    [GATED_GLOBAL] = GLOBAL_SCALE,
    [GATED_ENDS] = {"ends", GATED_AT(ends), INPUT, HOLDS_INT32, 1, 0},
    [GATED_DATA] = {"data", AT(data), OUTPUT, HOLDS_VALUES, 0, 0},
    [GATED_SCALE] = {"scale", AT(scale), OUTPUT, HOLDS_SCALES, 0, 0},
    [GATED_SCALE_ROWS] = {"scale_rows", GATED_AT(scale_rows), OUTPUT, HOLDS_INT32, 0, 0},
};
static const operation_scalar gated_quantize_scalars[] = {
    GLOBAL_VALUE(GATED_GLOBAL),
    {"activation", SCALAR_ACTIVATION, GATED_AT(activation), 0, NULL},
    {"limit", SCALAR_FLOAT, GATED_AT(limit), 0, NULL},
    {"alpha", SCALAR_FLOAT, GATED_AT(alpha), 0, NULL},
    SCALE_LAYOUT,
};
#undef GATED_AT
static const operation_result gated_quantize_results[] = {
    {.tensor = GATED_DATA,
     .like = GATED_GATE,
     .rank = RANK_MATRIX,
     .dtype = NVFP4_UINT8,
     .shape = DATA_SHAPE(GATED_GATE, 1)},
    {.tensor = GATED_SCALE,
     .like = GATED_GATE,
     .rank = RANK_MATRIX,
     .dtype = NVFP4_E4M3,
     .shape = {GROUP_BLOCKS(SIZE_ROWS, GATED_GATE, 0, GATED_ENDS), {SIZE_COLUMNS, GATED_GATE, 1, 16, 4}, 16},
     .flag_shape = LINEAR_SHAPE(GATED_GATE, 1),
     .flags_offset = AT(scale_layout),
     .flags_mask = NVFP4_LINEAR},
    SCALE_ROWS_RESULT(GATED_SCALE_ROWS, GATED_GATE, GATED_ENDS),
};
const operation operation_gated_quantize = {
    .name = "gated_quantize",
    .args_bytes = sizeof(nvfp4_gated_quantize_args),
    .min_bytes = sizeof(nvfp4_gated_quantize_args),
    .defaults = gated_quantize_defaults,
    .tensors = gated_quantize_tensors,
    .tensor_count = COUNT(gated_quantize_tensors),
    .scalars = gated_quantize_scalars,
    .scalar_count = COUNT(gated_quantize_scalars),
    .results = gated_quantize_results,
    .result_count = COUNT(gated_quantize_results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = PLANNERS(gated_quantize),
    .check = check_gated_quantize,
    .plan = row_op_plan,
    .bind = bind_gated_quantize,
    .run = row_op_run,
};

static void rms_norm_quantize_defaults(operation_args *args) {
    nvfp4_rms_norm_quantize_init(&args->rms_norm_quantize);
}

/* Its arguments begin with those of quantize, so AT finds them. */
static const operation_tensor norm_tensors[] = {
    {"x", AT(x), INPUT, HOLDS_FLOATS, 0, 0},
    {"weight", offsetof(nvfp4_rms_norm_quantize_args, weight), INPUT, HOLDS_ANY, 0, 0},
    {"residual", offsetof(nvfp4_rms_norm_quantize_args, residual), IN_OUT, HOLDS_ANY, 1, 0},
    GLOBAL_SCALE,
    {"data", AT(data), OUTPUT, HOLDS_VALUES, 0, 0},
    {"scale", AT(scale), OUTPUT, HOLDS_SCALES, 0, 0},
};
static const operation_scalar norm_scalars[] = {
    GLOBAL_VALUE(3),
    {"eps", SCALAR_FLOAT, offsetof(nvfp4_rms_norm_quantize_args, eps), 0, NULL},
    SCALE_LAYOUT,
};
static const operation_result norm_results[] = DATA_AND_SCALE(4, 5, 0, 1);
const operation operation_rms_norm_quantize = {
    .name = "rms_norm_quantize",
    .args_bytes = sizeof(nvfp4_rms_norm_quantize_args),
    .min_bytes = sizeof(nvfp4_rms_norm_quantize_args),
    .defaults = rms_norm_quantize_defaults,
    .tensors = norm_tensors,
    .tensor_count = COUNT(norm_tensors),
    .scalars = norm_scalars,
    .scalar_count = COUNT(norm_scalars),
    .results = norm_results,
    .result_count = COUNT(norm_results),
    .given = RESULTS_NEW_OR_GIVEN,
    .planners = PLANNERS(rms_norm_quantize),
    .check = check_rms_norm_quantize,
    .plan = row_op_plan,
    .bind = bind_rms_norm_quantize,
    .run = row_op_run,
};
#undef AT
