/* Turns fp32 sums into the output, as problem.h defines it. Every kernel file includes this and compiles it for its own
 * instructions. */
#ifndef NVFP4_CPU_EPILOGUE_H
#define NVFP4_CPU_EPILOGUE_H

#include "common/grouped_problem.h" /* ALPHA_BY_BATCH */
#include "cpu/numbers.h"

/* alpha * sum and the additions after it round one by one; gcc fuses them where it can unless told not to. */
#pragma GCC optimize("fp-contract=off")

static inline int64_t type_size(int32_t type) {
    return type == NVFP4_FP32 ? 4 : 2;
}

/* Loads and stores of count values that start at base. */
static inline void load_floats(float *to, const void *base, int32_t type, int64_t count) {
    const uint16_t *codes = base;
    if (type == NVFP4_FP32)
        memcpy(to, base, (size_t)count * 4);
    else if (type == NVFP4_FP16)
        for (int64_t i = 0; i < count; i++) to[i] = fp16_decode(codes[i]);
    else
        for (int64_t i = 0; i < count; i++) to[i] = bf16_decode(codes[i]);
}

static inline void store_floats(void *base, const float *from, int32_t type, int64_t count) {
    uint16_t *codes = base;
    if (type == NVFP4_FP32)
        memcpy(base, from, (size_t)count * 4);
    else if (type == NVFP4_FP16)
        for (int64_t i = 0; i < count; i++) codes[i] = fp16_encode(from[i]);
    else
        for (int64_t i = 0; i < count; i++) codes[i] = bf16_encode(from[i]);
}

/* Sums of a rectangle of the output, in any order of storage. */
typedef struct sums_tile {
    const float *sums;
    int64_t m0, n0, rows, columns;
    int64_t row_stride, column_stride; /* of sums, in elements */
    const float *row_scale;            /* factors of the rows of the output; NULL: none */
} sums_tile;

static inline void epilogue(const gemm_problem *p, int64_t batch, sums_tile t) {
    enum { CHUNK = 64 };
    float v[CHUNK], other[CHUNK];
    const float *alpha = p->alpha;
    const char *bias = p->bias;
    if (p->by_batch & ALPHA_BY_BATCH) alpha += batch * (p->alpha_stride ? p->n : 1);
    if (p->by_batch & BIAS_BY_BATCH) bias += batch * p->n * type_size(p->bias_type);
    for (int64_t i = 0; i < t.rows; i++) {
        int64_t m = t.m0 + i;
        char *out = (char *)p->out + batch * p->out_batch + m * p->out_pitch;
        const char *c = p->c ? (const char *)p->c + batch * p->c_batch + m * p->c_pitch : NULL;
        for (int64_t j = 0; j < t.columns; j += CHUNK) {
            int64_t n = t.n0 + j, count = t.columns - j < CHUNK ? t.columns - j : CHUNK;
            const float *sums = t.sums + i * t.row_stride + j * t.column_stride;
            if (alpha)
                for (int64_t x = 0; x < count; x++) v[x] = alpha[(n + x) * p->alpha_stride] * sums[x * t.column_stride];
            else
                for (int64_t x = 0; x < count; x++) v[x] = p->alpha_value * sums[x * t.column_stride];
            if (c) {
                load_floats(other, c + n * type_size(p->out_type), p->out_type, count);
                for (int64_t x = 0; x < count; x++) v[x] = fmaf(p->beta, other[x], v[x]);
            }
            if (bias) {
                load_floats(other, bias + n * type_size(p->bias_type), p->bias_type, count);
                for (int64_t x = 0; x < count; x++) v[x] = v[x] + other[x];
            }
            if (t.row_scale)
                for (int64_t x = 0; x < count; x++) v[x] = v[x] * t.row_scale[m];
            store_floats(out + n * type_size(p->out_type), v, p->out_type, count);
        }
    }
}

#endif
