/* The traits of a problem: sizes and how operands lie in memory, no addresses. Planners are given nothing else, so
 * equal traits (and a device's properties) give equal plans: the cache of choose.c relies on that. C11 and C++17. */
#ifndef NVFP4_PLAN_TRAITS_H
#define NVFP4_PLAN_TRAITS_H

#include <string.h>

#include "common/problem.h"
#include "common/tensor_layout.h"

/* One array serves all batches: its batch stride is 0. */
enum { BROADCAST_VALUES = 1, BROADCAST_SCALES = 2 };

typedef struct gemm_traits { /* compared as bytes: no padding */
    int64_t m, n, k, l;
    int32_t scale_layout; /* nvfp4_layout */
    int32_t output_bytes; /* of an element of C */
    int32_t tma_values;   /* 1: tensor maps can describe A and B */
    /* 1: N = 1, no bias, elements of C (and c) are contiguous: the transposed product writes them as one row */
    int32_t output_is_column;
    int32_t broadcast_a, broadcast_b; /* BROADCAST_* */
    int32_t a_type;                   /* as of gemm_problem */
    int32_t product_kind, by_batch;   /* as of gemm_problem */
    int32_t groups;                   /* of a product of groups; else 0 */
} gemm_traits;

/* Whether TMA takes rows that lie so: base and strides on 16 bytes, strides below 2^40 (PTX ISA 9.0, section
 * 5.5.2). The stride of a dimension of size 1 does not matter. */
static inline int tma_reaches(const gemm_problem *p, int64_t rows, int64_t pitch, int64_t batch) {
    const int rows_ok = rows == 1 || (pitch >= 0 && pitch < TENSOR_STRIDE_END && pitch % 16 == 0);
    const int batches_ok = p->l == 1 || (batch >= 0 && batch < TENSOR_STRIDE_END && batch % 16 == 0);
    return p->aligned16 && rows_ok && batches_ok;
}

static inline gemm_traits traits_of(const gemm_problem *p) {
    const int64_t element = p->out_type == NVFP4_FP32 ? 4 : 2;
    const int64_t b_rows = p->product_kind == PRODUCT_GEMM_NN ? p->k : p->n;
    gemm_traits t;
    memset(&t, 0, sizeof t);
    t.m = p->m, t.n = p->n, t.k = p->k, t.l = p->l;
    t.scale_layout = p->scale_layout;
    t.output_bytes = (int32_t)element;
    t.tma_values = tma_reaches(p, p->m, p->a_pitch, p->a_batch) && tma_reaches(p, b_rows, p->b_pitch, p->b_batch);
    t.output_is_column = p->n == 1 && p->out_pitch == element && (!p->c || p->c_pitch == element) && !p->bias;
    t.broadcast_a = (p->a_batch == 0 ? BROADCAST_VALUES : 0) | (p->scale_a_batch == 0 ? BROADCAST_SCALES : 0);
    t.broadcast_b = (p->b_batch == 0 ? BROADCAST_VALUES : 0) | (p->scale_b_batch == 0 ? BROADCAST_SCALES : 0);
    t.a_type = p->a_type;
    t.product_kind = p->product_kind;
    t.by_batch = p->by_batch;
    return t;
}

#endif
