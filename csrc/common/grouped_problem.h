/* A product of groups of rows, each group by a matrix of its own, after checking; and the bits that say which operands
 * of the epilogue each batch has of its own. C11 and device code.
 *
 * Rows 0 .. m-1 lie in the order of their groups: group e has rows ends[e-1] .. ends[e]-1. Ends are data of the device:
 * a running maximum of them, clamped to 0 .. m, is what counts, so that no end can lead out of a tensor. */
#ifndef NVFP4_COMMON_GROUPED_PROBLEM_H
#define NVFP4_COMMON_GROUPED_PROBLEM_H

#include "common/problem.h"

/* Bits of gemm_problem.by_batch. */
enum {
    ALPHA_BY_BATCH = 1, /* alpha is [l], or with alpha_stride 1 [l][n] */
    BIAS_BY_BATCH = 2,  /* bias is [l][n] */
};

/* b is [groups][parts][n][k/2] bytes, of PRODUCT_GROUPED_NN [groups][k][n/2] with one part; g.l is groups * parts. A
 * row of out has the n results of each part side by side. The epilogue is gemm's and, before rounding, v = v *
 * row_scale.
 *
 * With has_activation, out has n results a row: `gated` (common/gating.h) of the results of part 0, rounded
 * to out_type, and of those of part 1, rounded too. One part alone is without `up`. g.out_batch is 0. */
typedef struct grouped_problem {
    gemm_problem g;      /* m: rows in the order of groups; g.a_batch is 0, g.out_batch the bytes of a part's results */
    const int32_t *ends; /* [groups] */
    const int32_t *rows; /* [m]: rows of a. NULL: row i is row i of a. The result of an index outside of a is NaN */
    /* [groups]: where the scales of a group's rows begin in g.scale_a, which then has the 128x4 layout of scale_a_rows
     * rows. The results of a group that begins inside a block of 128 rows, or before row 0, are NaN, and those of its
     * rows whose scales would lie behind g.scale_a. NULL: scales lie as their rows of a do, or a has none */
    const int32_t *scale_rows;
    const float *row_scale; /* [m]; NULL: none */
    /* [groups], on the CPU: what g.b and g.scale_b are for each. NULL: none */
    const void *const *b_list, *const *scale_b_list;
    int64_t a_rows, scale_a_rows;
    int32_t groups, parts;
    int32_t has_activation, activation; /* 0 or 1; nvfp4_activation */
    float limit, activation_alpha;      /* of `gated` */
    int32_t constant_ends;              /* 1: no kernel that may still run writes ends. For plans */
} grouped_problem;

#endif
