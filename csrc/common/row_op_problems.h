/* The problems of row ops after checking, as gemm_problem is a product: quantizers, global scales, changes of scale
 * layout and the steps around experts. */
#ifndef NVFP4_COMMON_ROW_OP_PROBLEMS_H
#define NVFP4_COMMON_ROW_OP_PROBLEMS_H

#include <stdint.h>

#include "common/format.h"

/* Quantization and dequantization. */
typedef struct quantize_problem {
    int64_t rows, k, l;
    void *x; /* input of quantize, output of dequantize */
    int64_t x_pitch, x_batch;
    uint8_t *data;
    int64_t data_pitch, data_batch;
    uint8_t *scale;
    int64_t scale_pitch, scale_batch; /* as scale_a_pitch */
    const float *global_scale;        /* NULL: global_value */
    int64_t up_at;                    /* of silu_mul_quantize: bytes from a row's gates to their factors */
    int32_t *scale_rows;              /* [groups]: the row of scales where a group of rows begins. NULL: not wanted */
    float global_value;
    int32_t scale_layout;
    int32_t x_type;    /* nvfp4_dtype */
    int32_t tile_log2; /* GPU: a CTA has 2^tile_log2 scales in a row; 2 or 3 for 128x4 scales */
    int32_t block_scale;
    int32_t global_by;       /* what global_scale[] has one of */
    int32_t round_steps;     /* 1: the steps before quantization, a norm's or an activation's, are rounded to x_type */
    const float *importance; /* [k], of NVFP4_SEARCH; NULL: ones */
} quantize_problem;

enum { GLOBAL_BY_CALL, GLOBAL_BY_ROW, GLOBAL_BY_GROUP };

/* Codes of the scales that NVFP4_SEARCH tries: SEARCH_FIRST .. SEARCH_LAST from that of amax / 6, within bounds. */
enum { SEARCH_FIRST = -5, SEARCH_LAST = 7, SEARCH_MIN_CODE = 1, SEARCH_MAX_CODE = 126 };

/* A block of GPTQ. Distances are in bytes. */
typedef struct gptq_problem {
    int64_t rows;
    const float *x, *u;
    uint8_t *data, *scale;
    float *error;
    int64_t x_pitch, u_pitch, data_pitch, scale_pitch, error_pitch;
    const float *global_scale; /* NULL: global_value */
    float global_value;
    int32_t global_by; /* GLOBAL_BY_CALL or GLOBAL_BY_ROW */
} gptq_problem;

/* RMS norm before quantization. */
typedef struct norm_problem {
    quantize_problem q;
    void *residual; /* as q.x; NULL: none */
    int64_t residual_pitch, residual_batch;
    const void *weight;  /* k values */
    int32_t weight_type; /* nvfp4_dtype */
    float eps;
} norm_problem;

/* Quantization of rows in the order of their groups, of x or of gated activations. q.rows counts rows of the result.
 * Groups are those of common/grouped_problem.h; in the 128x4 layout the scales of each begin with a 128-row block. */
typedef struct grouped_quantize_problem {
    quantize_problem q;  /* x: of gated activations the gates. GLOBAL_BY_ROW: of rows of x. l is 1 with ends or rows */
    const int32_t *ends; /* NULL: one group has all rows */
    const int32_t *rows; /* [q.rows]: rows of x. NULL: row i is row i of x. One outside of x becomes a row of NaN */
    int64_t x_rows;
    const void *up; /* NULL: absent */
    int64_t up_pitch, up_batch;
    float limit, alpha;
    int32_t activation; /* nvfp4_activation; NO_ACTIVATION: x is quantized */
    int32_t groups;
} grouped_quantize_problem;

enum { NO_ACTIVATION = -1 };

/* The global scale of x: amax(|x|) / divisor, or 1. Rows are read in chunks of AMAX_CHUNK bytes. */
enum { AMAX_CHUNK = 16384 };
typedef struct amax_problem {
    int64_t rows, l;
    const void *x;
    int64_t x_bytes; /* of a row */
    int64_t x_pitch, x_batch;
    int64_t chunks; /* of a row */
    float *scale;
    double divisor;
    int32_t x_type;     /* nvfp4_dtype */
    int32_t by_row;     /* 1: a scale for each row, of l = 1 */
    uint64_t *arrivals; /* GPU, where the grid has several CTAs: tag + how many have arrived; else NULL */
    uint32_t *partial;  /* and one amax of each CTA */
    uint64_t tag;       /* of this call, a multiple of AMAX_MAX_CTAS */
} amax_problem;

/* Conversion between scale layouts, rows x columns scales a batch. */
typedef struct swizzle_problem {
    int64_t rows, columns, l;
    uint8_t *linear;
    int64_t linear_pitch, linear_batch;
    uint8_t *swizzled; /* contiguous */
} swizzle_problem;

/* Gated activations: common/gating.h. Distances are in bytes. */
typedef struct gated_problem {
    int64_t rows, columns, l;
    const void *gate, *up; /* up: NULL where it is absent */
    void *out;
    int64_t gate_pitch, gate_batch, up_pitch, up_batch, out_pitch, out_batch;
    float limit, alpha;
    int32_t activation;
    int32_t type, out_type; /* nvfp4_dtype; type: of gate and up */
    int32_t tile_log2;      /* GPU: a CTA has 2^tile_log2 threads in a row */
} gated_problem;

/* The choices of a router in the order of experts. `rows` and `places` are dense. */
typedef struct moe_route_problem {
    int64_t choices; /* tokens * per_token */
    int64_t per_token;
    const void *ids;
    int64_t ids_pitch;
    const int32_t *expert_map;
    int64_t ids_end; /* an id of an expert is below: entries of expert_map, or experts */
    int32_t *rows, *ends, *places;
    int32_t experts;
    int32_t ids_type; /* NVFP4_INT32 or NVFP4_INT64 */
    int32_t maps_ids; /* 0: ids are experts */
    int32_t segments; /* GPU: the parts of the choices that a warp sorts each */
    int64_t segment;  /* and their choices */
} moe_route_problem;

/* The sums of each token's rows of y. */
typedef struct moe_combine_problem {
    int64_t tokens, columns, per_token;
    const void *y;
    int64_t y_rows, y_pitch;
    const int32_t *places;
    int64_t places_pitch;
    const void *weights; /* NULL: 1 */
    int64_t weights_pitch;
    void *out;
    int64_t out_pitch;
    int32_t y_type, weights_type, out_type; /* nvfp4_dtype */
    int32_t tile_log2;                      /* as in gated_problem */
} moe_combine_problem;

#endif
