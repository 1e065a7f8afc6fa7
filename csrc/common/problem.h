/* A product after checking, as every kernel takes it: pointers, sizes, and strides in bytes. Host C and device code
 * include this; a GPU kernel receives its problem by value as the first parameter. */
#ifndef NVFP4_COMMON_PROBLEM_H
#define NVFP4_COMMON_PROBLEM_H

#include <stdint.h>

#include "common/format.h"

enum { VALUES_E2M1 = NVFP4_NONE }; /* a_type of an A in the format, with scales; else NVFP4_FP16 or NVFP4_BF16 */

/* Kinds of products. B is [n][k] of the first, [k][n] of the second, whose A has 16 bits. */
typedef enum product_kind {
    PRODUCT_GEMM = 0,   /* A . B^T */
    PRODUCT_GEMM_NN,    /* A . B */
    PRODUCT_GROUPED,    /* A . B^T of groups of rows, each by a B of its own: common/grouped_problem.h */
    PRODUCT_GROUPED_NN, /* A . B of such groups */
    PRODUCT_KINDS
} product_kind;

typedef struct gemm_problem {
    int64_t m, n, k, l;                   /* out is [l][m][n], sums have k terms */
    const uint8_t *a, *b;                 /* [l][rows][k/2] bytes; 16-bit a: [l][rows][k] values */
    int64_t a_pitch, b_pitch;             /* bytes between rows: a multiple of 16, or those of a row */
    int64_t a_batch, b_batch;             /* bytes between batches */
    const uint8_t *scale_a, *scale_b;     /* 16-bit a: scale_a is NULL */
    int64_t scale_a_pitch, scale_b_pitch; /* bytes between rows; 128x4: between 128-row blocks */
    int64_t scale_a_batch, scale_b_batch;
    void *out;
    int64_t out_pitch, out_batch;
    const void *c; /* NULL: no beta*C */
    int64_t c_pitch, c_batch;
    const float *alpha;   /* NULL: alpha_value */
    int64_t alpha_stride; /* elements: 0: one alpha, 1: one for each column */
    const void *bias;     /* NULL: none */
    float alpha_value, beta;
    int32_t scale_layout; /* nvfp4_layout */
    int32_t out_type;     /* nvfp4_dtype of out and c */
    int32_t bias_type;    /* nvfp4_dtype */
    int32_t aligned16;    /* 1: every row of a and b is aligned to 16 bytes. 0: to 8 bytes; a row of a 16-bit a is still
                           * aligned to 16 bytes in A . B^T, and to 2 in A . B */
    int32_t a_type;       /* VALUES_E2M1, NVFP4_FP16 or NVFP4_BF16 */
    int32_t constant_b;   /* 1: no kernel that may still run writes b and scale_b. For plans */
    int32_t product_kind; /* A . B^T: b is [l][n][k/2] bytes, and a scale belongs to 16 values along k. A . B: b is
                           * [l][k][n/2] bytes, a scale belongs to 16 values along n, and n is a multiple of 16 */
    int32_t by_batch;     /* which of alpha and bias are those of a batch: bits of common/grouped_problem.h */
} gemm_problem;

/* The epilogue of every backend, in fp32 and this order, so that equal sums give equal bits:
 *   v = alpha * sum;  if c: v = fma(beta, c, v);  if bias: v = v + bias;  one rounding to out_type. */

#endif
