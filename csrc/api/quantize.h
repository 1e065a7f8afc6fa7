/* The quantizers and dequantize share these rules, and these parts of their rows of the table. */
#ifndef NVFP4_API_QUANTIZE_H
#define NVFP4_API_QUANTIZE_H

#include "api/row_op.h"
#include "api/rules.h"

/* How the rows of a result follow from those of x: T rows, whose scales have `scale_rows` rows in the 128x4 layout. */
typedef struct result_rows {
    int64_t t, scale_rows;
    char name; /* of T */
} result_rows;

/* quantize divides by the global scale. A scale in device memory is not read: it has to keep the rule by itself. */
nvfp4_status check_divisor(const nvfp4_tensor *g, float global_value);
/* One number, one a row of x, or one a group. ends: NULL or absent where there are no groups. */
nvfp4_status check_global_scale(const checked_call *c, const nvfp4_tensor *g, const nvfp4_tensor *ends, const matrix *x,
                                int32_t *global_by);
/* x, of which data and scales are read or written. Rows of x lie any distance apart where is_strided. */
nvfp4_status check_x(const checked_call *c, const nvfp4_quantize_args *args, direction use, int is_strided, matrix *x);
/* Data and scales of a checked x, either of which is written, and the global scale. */
nvfp4_status check_data(const checked_call *c, const nvfp4_quantize_args *args, direction x_use, const matrix *x,
                        result_rows result, const nvfp4_tensor *ends, quantize_problem *p);
/* The blocks of args->x and their data and scales, either of which is written. */
nvfp4_status check_blocks(const checked_call *c, direction x_use, quantize_problem *p);
/* A fused quantizer has one rule for its block scales. */
nvfp4_status check_amax6(nvfp4_block_scale block_scale);
/* The rules of quantize itself, which quantize_gemm asks too. */
nvfp4_status check_quantize(const checked_call *c, prepared_call *call);
/* The rules of gated_quantize, which gated_grouped_quantize asks too. */
nvfp4_status check_gated_quantize(const checked_call *c, prepared_call *call);

static inline int is_empty(const quantize_problem *p) {
    return p->l == 0 || p->rows == 0 || p->k == 0;
}

static inline void bind_blocks(const nvfp4_quantize_args *args, quantize_problem *p) {
    p->x = args->x.data;
    p->data = args->data.data;
    p->scale = args->scale.data;
}

/* Rows of tensors and scalars; AT is that of nvfp4_quantize_args, with which the arguments of a quantizer begin. */
#define AT(field)            offsetof(nvfp4_quantize_args, field)
#define GLOBAL_SCALE         {"global_scale", AT(global_scale), INPUT, HOLDS_FLOAT32, 1, 0}
#define DATA_TENSOR          {"data", AT(data), OUTPUT, HOLDS_VALUES, 0, 0}
#define SCALE_TENSOR         {"scale", AT(scale), OUTPUT, HOLDS_SCALES, 0, 0}
#define GLOBAL_VALUE(tensor) {"global_value", SCALAR_FLOAT, AT(global_value), 1 + (tensor), NULL}
#define SCALE_LAYOUT         {"scale_layout", SCALAR_LAYOUT, AT(scale_layout), 0, NULL}

/* Rows of results: data of the sizes in a text, scales of the sizes in two, by their layout. */
#define DATA_RESULT(tensor_, sizes) {.tensor = tensor_, .dtype = NVFP4_UINT8, .shape = {sizes, 8}}
#define SCALE_RESULT(tensor_, sizes_128x4, sizes_linear)                                                               \
    {.tensor = tensor_,                                                                                                \
     .dtype = NVFP4_E4M3,                                                                                              \
     .shape = {sizes_128x4, 16},                                                                                       \
     .flag_shape = {sizes_linear, 0},                                                                                  \
     .flags_offset = AT(scale_layout),                                                                                 \
     .flags_mask = NVFP4_LINEAR}
/* Both of a matrix x. */
#define DATA_AND_SCALE(data, scale, x)                                                                                 \
    {DATA_RESULT(data, "[*batch_of(" x "), rows_of(" x "), columns_of(" x ") // 2]"),                                  \
     SCALE_RESULT(scale, "[*batch_of(" x "), round_up(rows_of(" x "), 128), round_up(columns_of(" x ") // 16, 4)]",    \
                  "[*batch_of(" x "), rows_of(" x "), columns_of(" x ") // 16]")}

#endif
