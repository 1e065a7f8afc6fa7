/* A checked product, as every kernel takes it: pointers, sizes and distances in bytes. Host C and device code share
 * this struct; a GPU kernel receives it by value as its first parameter. */
#ifndef NVFP4_DEVICE_PROBLEM_H
#define NVFP4_DEVICE_PROBLEM_H

#include <stdint.h>

enum { SCALES_128X4 = 0, SCALES_LINEAR = 1 };      /* = nvfp4_layout */
enum { OUT_FP16 = 4, OUT_BF16 = 5, OUT_FP32 = 6 }; /* = nvfp4_dtype */

typedef struct gemm_problem {
    int64_t m, n, k, l;
    const uint8_t *a, *b;     /* [l][rows][k/2] bytes */
    int64_t a_pitch, b_pitch; /* bytes from row to row: a multiple of 16, or k/2 */
    int64_t a_batch, b_batch; /* bytes from batch to batch */
    const uint8_t *sfa, *sfb;
    int64_t sfa_pitch, sfb_pitch; /* linear: bytes from row to row; 128x4: from 128-row block to the next */
    int64_t sfa_batch, sfb_batch;
    void *out;
    int64_t out_pitch, out_batch;
    const void *c; /* NULL: no beta*C */
    int64_t c_pitch, c_batch;
    const float *alpha;   /* NULL: alpha_value */
    int64_t alpha_stride; /* elements: 0 for one alpha, 1 for one a column */
    const void *bias;     /* NULL: none */
    float alpha_value, beta;
    int32_t scale_layout; /* SCALES_* */
    int32_t out_type;     /* OUT_* : of out and c */
    int32_t bias_type;    /* OUT_* */
    int32_t aligned16;    /* 1: every row of a and b starts on 16 bytes; 0: on 8 */
} gemm_problem;

/* The epilogue that every backend computes, in this order and in fp32, so that equal sums give equal bits:
 *   v = alpha * sum;  v = fma(beta, c, v) if there is c;  v = v + bias if there is bias;  round once to out_type. */

/* A checked quantisation or dequantisation. */
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
    int32_t x_type; /* OUT_* */
    int32_t padding_;
} quantize_problem;

/* A checked change of scale layout; rows x columns scales a batch. */
typedef struct swizzle_problem {
    int64_t rows, columns, l;
    uint8_t *linear;
    int64_t linear_pitch, linear_batch;
    uint8_t *swizzled; /* contiguous */
} swizzle_problem;

#endif
