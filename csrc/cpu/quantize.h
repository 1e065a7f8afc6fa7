/* Quantization of a block and back: the definition. The exact fp32 operations, which the GPU repeats so that its bytes
 * are the same; g is the global scale, divisions are IEEE divisions and nothing is contracted:
 *
 *   block of 16 with a NaN:  scale = 0x7F, all codes 0
 *   else                     amax = max |x|
 *                            scale = e4m3((amax / 6) / g)      to nearest even; >= 448 gives 448, <= 0 gives 0
 *                            d = value(scale) * g
 *                            code = e2m1(x / d)                to nearest even; beyond 6 gives 6, NaN gives 0;
 *                                                              the sign of x / d is kept, that of a zero too
 *   scale = 0 or amax = 0    scale = 0, all codes 0
 *   four_over_six            also with scale = e4m3((amax / 4) / g); this one if its error is the smaller number
 *                            error = s16: s0 = 0, s(i+1) = fma(r, r, s(i)), r = fma(-value(code), d * p, x * p);
 *                            p = the power of two with p * amax in [1, 2), or as near as 2^-126 .. 2^126 come
 *   search                   with each scale max(1, min(126, c + o)), o = -5 .. 7, c = e4m3((amax / 6) / g) as a code;
 *                            the first with the least error; c where no error is finite
 *                            with importance w: s(i+1) = fma(r * (w * q), r, s(i)), q of max w as p is of amax;
 *                            ones if all 16 are 0
 *   dequantized              (value(code) * value(scale)) * g  rounded once more to the type of x
 *
 * A NaN in g gives scale 0x7F and codes 0, but for blocks of zeros. */
#ifndef NVFP4_CPU_QUANTIZE_H
#define NVFP4_CPU_QUANTIZE_H

#include "cpu/cpu.h"
#include "cpu/epilogue.h"
#include "cpu/operand.h"

/* fmaf is a call into libm without the instruction: gcc compiles the function for CPUs with it as well. */
#if defined(__x86_64__)
#define WITH_FMA __attribute__((target_clones("arch=haswell", "default")))
#else
#define WITH_FMA
#endif

enum { BLOCK = 16 };

/* Codes under one of the block scales that a block may get. */
typedef struct candidate {
    uint8_t scale, data[8];
    float d;
} candidate;

static inline candidate encode(const float x[16], uint8_t scale, float g) {
    candidate c = {.scale = scale, .d = e4m3_decode(scale) * g};
    for (int i = 0; i < 16 && scale != 0 && scale != 0x7F; i++)
        c.data[i / 2] |= (uint8_t)(e2m1_encode(x[i] / c.d) << i % 2 * 4);
    return c;
}

/* weight: of each error; NULL: ones. */
static inline float squared_error(const float x[16], const candidate *c, float p, const float *weight) {
    float sum = 0.0f, d = c->d * p;
    for (int i = 0; i < 16; i++) {
        float r = fmaf(-e2m1_decode(c->data[i / 2] >> i % 2 * 4 & 15), d, x[i] * p);
        sum = fmaf(weight ? r * weight[i] : r, r, sum);
    }
    return sum;
}

static inline float normalizer(float amax) {
    uint32_t exponent = __float_as_uint(amax) >> 23;
    return __uint_as_float((254 - (exponent < 1 ? 1 : exponent > 253 ? 253 : exponent)) << 23);
}

/* Importance of 16 values, over a power of two. */
static inline void weights_of(float weight[16], const float *importance) {
    float most = 0.0f;
    for (int i = 0; i < 16; i++) most = importance[i] > most ? importance[i] : most;
    for (int i = 0; i < 16; i++) weight[i] = most == 0.0f ? 1.0f : importance[i] * normalizer(most);
}

static inline uint8_t searched_scale(int scale, int offset) {
    const int code = scale + offset;
    return (uint8_t)(code < SEARCH_MIN_CODE ? SEARCH_MIN_CODE : code > SEARCH_MAX_CODE ? SEARCH_MAX_CODE : code);
}

/* nearest: the candidate of amax / 6. */
static inline candidate search(const float x[16], float amax, float g, candidate nearest, const float *importance) {
    float weight[16], p = normalizer(amax), least = INFINITY;
    candidate best = nearest;
    if (importance) weights_of(weight, importance);
    for (int offset = SEARCH_FIRST; offset <= SEARCH_LAST; offset++) {
        const candidate other = encode(x, searched_scale(nearest.scale, offset), g);
        const float error = squared_error(x, &other, p, importance ? weight : NULL);
        if (error < least) best = other, least = error;
    }
    return best;
}

static inline void quantize_block(const float x[16], float g, int32_t block_scale, const float *importance,
                                  uint8_t data[8], uint8_t *scale) {
    float amax = 0.0f;
    int nan = 0;
    for (int i = 0; i < 16; i++) {
        nan |= isnan(x[i]);
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    candidate best = encode(x, nan ? 0x7F : amax == 0.0f ? 0 : e4m3_encode(amax / 6.0f / g), g);
    if (block_scale == NVFP4_SEARCH && !nan && amax > 0.0f) best = search(x, amax, g, best, importance);
    if (block_scale == NVFP4_FOUR_OVER_SIX && !nan) {
        candidate four = encode(x, amax == 0.0f ? 0 : e4m3_encode(amax / 4.0f / g), g);
        float p = normalizer(amax);
        if (squared_error(x, &four, p, NULL) < squared_error(x, &best, p, NULL)) best = four;
    }
    *scale = best.scale;
    memcpy(data, best.data, 8);
}

/* A row of a batch: its values, its global scale, and where its codes and the scales of its batch lie. */
typedef struct row_at {
    int64_t batch, row;
    char *x;
    const char *up; /* the factors of a gated activation; NULL: none */
    uint8_t *data, *scale;
    float g;
} row_at;

/* Row `from` of x as a row of the result. */
static inline row_at row_of(const quantize_problem *p, int64_t batch, int64_t row, int64_t from) {
    const int64_t global = p->global_by == GLOBAL_BY_ROW ? batch * p->rows + from : 0;
    return (row_at){.batch = batch,
                    .row = row,
                    .x = (char *)p->x + batch * p->x_batch + from * p->x_pitch,
                    .data = p->data + batch * p->data_batch + row * p->data_pitch,
                    .scale = p->scale + batch * p->scale_batch,
                    .g = p->global_scale ? p->global_scale[global] : p->global_value};
}

static inline void quantize_to(const quantize_problem *p, row_at at, int64_t column, const float x[BLOCK]) {
    quantize_block(x, at.g, p->block_scale, p->importance ? p->importance + column * BLOCK : NULL, at.data + column * 8,
                   at.scale + scale_offset(p->scale_layout, p->scale_pitch, at.row, column));
}

static inline void pad_columns(const quantize_problem *p, row_at at) {
    for (int64_t column = p->k / BLOCK; p->scale_layout == NVFP4_128X4 && column % 4; column++)
        at.scale[scale_offset(p->scale_layout, p->scale_pitch, at.row, column)] = 0;
}

/* The functions of an ISA: a row of each operation, scales of padding columns included, and the largest magnitude of
 * `bytes` bytes as its bits, where NaN is above infinity. */
typedef struct quantize_kernel {
    void (*quantize)(const quantize_problem *p, row_at at);
    void (*dequantize)(const quantize_problem *p, row_at at);
    void (*gated)(const grouped_quantize_problem *p, row_at at);
    void (*rms_norm)(const norm_problem *p, row_at at);
    int32_t (*amax)(const void *x, int64_t bytes, int32_t type);
    /* gptq_block of rows first .. end - 1: cpu/gptq.h. */
    void (*gptq)(const gptq_problem *p, int64_t first, int64_t end);
} quantize_kernel;

extern const quantize_kernel quantize_portable;
#if defined(__x86_64__)
extern const quantize_kernel quantize_avx2, quantize_avx512;
#endif

void portable_gated_row(const grouped_quantize_problem *p, row_at at);
void portable_rms_norm_row(const norm_problem *p, row_at at);

const quantize_kernel *quantize_kernel_for(cpu_isa isa);

static inline int32_t amax_bits(const void *x, int64_t bytes, int32_t type) {
    int16_t amax_16 = 0;
    int32_t amax_32 = 0;
    if (type == NVFP4_FP32)
        for (int64_t i = 0; i < bytes / 4; i++) {
            int32_t magnitude = ((const int32_t *)x)[i] & INT32_MAX;
            amax_32 = magnitude > amax_32 ? magnitude : amax_32;
        }
    else
        for (int64_t i = 0; i < bytes / 2; i++) {
            int16_t magnitude = (int16_t)(((const int16_t *)x)[i] & INT16_MAX);
            amax_16 = magnitude > amax_16 ? magnitude : amax_16;
        }
    return type == NVFP4_FP32 ? amax_32 : amax_16;
}

#endif
