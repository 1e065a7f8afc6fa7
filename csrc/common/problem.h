/* Problems after checking, as every kernel takes them: pointers, sizes, and strides in bytes. Host C and device code
 * include this; a GPU kernel receives its problem by value as the first parameter. */
#ifndef NVFP4_COMMON_PROBLEM_H
#define NVFP4_COMMON_PROBLEM_H

#include <stdint.h>

#include "common/format.h"

enum { VALUES_E2M1 = NVFP4_NONE }; /* a_type of an A in the format, with scales; else NVFP4_FP16 or NVFP4_BF16 */

/* The products. B is [n][k] of the first, [k][n] of the second, whose A has 16 bits. */
typedef enum gemm_operation {
    OP_GEMM = 0, /* A . B^T */
    OP_GEMM_NN,  /* A . B */
    GEMM_OPERATIONS
} gemm_operation;

typedef struct gemm_problem {
    int64_t m, n, k, l;           /* out is [l][m][n], sums have k terms */
    const uint8_t *a, *b;         /* [l][rows][k/2] bytes; 16-bit a: [l][rows][k] values */
    int64_t a_pitch, b_pitch;     /* bytes between rows: a multiple of 16, or those of a row */
    int64_t a_batch, b_batch;     /* bytes between batches */
    const uint8_t *sfa, *sfb;     /* 16-bit a: sfa is NULL */
    int64_t sfa_pitch, sfb_pitch; /* linear: bytes between rows; 128x4: between 128-row blocks */
    int64_t sfa_batch, sfb_batch;
    void *out;
    int64_t out_pitch, out_batch;
    const void *c; /* NULL: no beta*C */
    int64_t c_pitch, c_batch;
    const float *alpha;   /* NULL: alpha_value */
    int64_t alpha_stride; /* elements: 0: one alpha, 1: one for each column */
    const void *bias;     /* NULL: none */
    float alpha_value, beta;
    int32_t scale_layout; /* nvfp4_layout */
    int32_t out_type;     /* nvfp4_dtype : of out and c */
    int32_t bias_type;    /* nvfp4_dtype */
    int32_t aligned16;  /* 1: every row of a and b is 16-byte aligned; 0: 8-byte (a 16-bit a is always 16-byte aligned,
                         * under OP_GEMM_NN 2-byte) */
    int32_t a_type;     /* VALUES_E2M1, NVFP4_FP16 or NVFP4_BF16 */
    int32_t constant_b; /* 1: what may still run when the first kernel starts does not write b and sfb. For plans */
    int32_t operation;  /* gemm_operation. OP_GEMM: b is [l][n][k/2] bytes. OP_GEMM_NN: b is [l][k][n/2] bytes, and a
                         * scale belongs to 16 values along n; n is a multiple of 16, k any number */
    int32_t padding_;
} gemm_problem;

/* The epilogue of every backend, in fp32 and in this order, so that equal sums give equal bits:
 *   v = alpha * sum;  if c: v = fma(beta, c, v);  if bias: v = v + bias;  one rounding to out_type. */

/* Quantisation and dequantisation. */
typedef struct quantize_problem {
    int64_t rows, k, l;
    void *x; /* input of quantize, output of dequantize */
    int64_t x_pitch, x_batch;
    uint8_t *data;
    int64_t data_pitch, data_batch;
    uint8_t *scale;
    int64_t scale_pitch, scale_batch; /* as sfa_pitch */
    const float *global_scale;        /* NULL: global_value */
    float global_value;
    int32_t scale_layout;
    int32_t x_type;    /* nvfp4_dtype */
    int32_t tile_log2; /* GPU: a CTA has 2^tile_log2 scales in a row; 2 for 128x4 scales */
    int32_t block_scale;
    int32_t padding_;
} quantize_problem;

/* What precedes quantisation in a fused call. silu_mul: a row of q.x has 2k values, of which the first k are the gates.
 */
typedef struct norm_problem {
    quantize_problem q;
    void *residual; /* as q.x; NULL: none */
    int64_t residual_pitch, residual_batch;
    const void *weight;  /* k values */
    int32_t weight_type; /* nvfp4_dtype */
    float eps;
} norm_problem;

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
    int32_t x_type; /* nvfp4_dtype */
    int32_t padding_;
    uint64_t *arrivals; /* GPU, where the grid has several CTAs: tag + how many have arrived; else NULL */
    uint32_t *partial;  /* and one amax of each CTA */
    uint64_t tag;       /* of this call, a multiple of AMAX_MOST_CTAS */
} amax_problem;

/* Conversion between scale layouts, rows x columns scales a batch. */
typedef struct swizzle_problem {
    int64_t rows, columns, l;
    uint8_t *linear;
    int64_t linear_pitch, linear_batch;
    uint8_t *swizzled; /* contiguous */
} swizzle_problem;

#endif
