/* One operand of a product at one batch index: packed rows and their scales, or rows of 16-bit values. */
#ifndef NVFP4_CPU_OPERAND_H
#define NVFP4_CPU_OPERAND_H

#include <stddef.h>

#include "common/problem.h"

typedef struct operand {
    const uint8_t *data, *scale;
    int64_t rows, pitch, scale_pitch;
    int32_t scale_layout;
    int32_t type; /* VALUES_E2M1, NVFP4_FP16 or NVFP4_BF16 */
} operand;

static inline operand operand_a(const gemm_problem *p, int64_t batch) {
    return (operand){p->a + batch * p->a_batch,
                     p->scale_a ? p->scale_a + batch * p->scale_a_batch : NULL,
                     p->m,
                     p->a_pitch,
                     p->scale_a_pitch,
                     p->scale_layout,
                     p->a_type};
}

static inline operand operand_b(const gemm_problem *p, int64_t batch) {
    return (operand){p->b + batch * p->b_batch,
                     p->scale_b + batch * p->scale_b_batch,
                     p->product_kind == PRODUCT_GEMM_NN ? p->k : p->n,
                     p->b_pitch,
                     p->scale_b_pitch,
                     p->scale_layout,
                     VALUES_E2M1};
}

/* Bytes of 16 values of a row. */
static inline int64_t block_bytes(const operand *x) {
    return x->type == VALUES_E2M1 ? 8 : 32;
}

/* The offset of the scale of a row's column (block of 16) from the first scale. */
static inline ptrdiff_t scale_offset(int32_t layout, int64_t pitch, int64_t row, int64_t column) {
    if (layout == NVFP4_LINEAR) return (ptrdiff_t)(row * pitch + column);
    return (ptrdiff_t)(row / 128 * pitch + column / 4 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4);
}

/* Brings the rows of the next strip close while this one is multiplied. Four neighbouring rows share their lines of
 * scales in the 128x4 layout; a linear row's are a line or two. */
static inline void prefetch_rows(const operand *x, int64_t row, int64_t rows, int64_t block, int64_t blocks) {
    int swizzled = x->scale_layout == NVFP4_128X4;
    int64_t end = row + rows < x->rows ? row + rows : x->rows, bytes = block_bytes(x);
    for (int64_t r = row; r < end; r++) {
        for (int64_t i = 0; i < blocks * bytes; i += 64) __builtin_prefetch(x->data + r * x->pitch + block * bytes + i);
        for (int64_t b = 0; x->scale && b < blocks && (!swizzled || r % 4 == 0); b += swizzled ? 4 : 64)
            __builtin_prefetch(x->scale + scale_offset(x->scale_layout, x->scale_pitch, r, block + b));
    }
}

#endif
