/* Quantisation of a block and back: the definition. The exact fp32 operations, which the GPU repeats so that its bytes
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
 *   dequantised              (value(code) * value(scale)) * g  rounded once more to the type of x
 *
 * A NaN in g gives scale 0x7F and codes 0, but for blocks of zeros. */
#ifndef NVFP4_CPU_QUANTIZE_H
#define NVFP4_CPU_QUANTIZE_H

#include "cpu/epilogue.h"
#include "cpu/operand.h"
#include "cpu/threads.h"

/* fmaf is a call into libm without the instruction: gcc compiles the function for CPUs with it as well. */
#if defined(__x86_64__)
#define WITH_FMA __attribute__((target_clones("arch=haswell", "default")))
#else
#define WITH_FMA
#endif

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

static inline float squared_error(const float x[16], const candidate *c, float p) {
    float sum = 0.0f, d = c->d * p;
    for (int i = 0; i < 16; i++) {
        float r = fmaf(-e2m1_decode(c->data[i / 2] >> i % 2 * 4 & 15), d, x[i] * p);
        sum = fmaf(r, r, sum);
    }
    return sum;
}

static inline float normalizer(float amax) {
    uint32_t exponent = float_bits(amax) >> 23;
    return bits_float((254 - (exponent < 1 ? 1 : exponent > 253 ? 253 : exponent)) << 23);
}

static inline void quantize_block(const float x[16], float g, int four_over_six, uint8_t data[8], uint8_t *scale) {
    float amax = 0.0f;
    int nan = 0;
    for (int i = 0; i < 16; i++) {
        nan |= isnan(x[i]);
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    candidate best = encode(x, nan ? 0x7F : amax == 0.0f ? 0 : e4m3_encode(amax / 6.0f / g), g);
    if (four_over_six && !nan) {
        candidate four = encode(x, amax == 0.0f ? 0 : e4m3_encode(amax / 4.0f / g), g);
        float p = normalizer(amax);
        if (squared_error(x, &four, p) < squared_error(x, &best, p)) best = four;
    }
    *scale = best.scale;
    memcpy(data, best.data, 8);
}

static inline float problem_global_scale(const quantize_problem *p) {
    return p->global_scale ? *p->global_scale : p->global_value;
}

/* Rows and scale columns with their padding. */
static inline int64_t padded_rows(const quantize_problem *p) {
    return p->scale_layout == SCALES_LINEAR ? p->rows : (p->rows + 127) / 128 * 128;
}
static inline int64_t padded_columns(const quantize_problem *p) {
    return p->scale_layout == SCALES_LINEAR ? p->k / 16 : (p->k / 16 + 3) / 4 * 4;
}

/* Where a row of all batches, padding included, is to go. */
typedef struct quantized_row {
    int64_t batch, row, columns; /* columns: 0 if the row is padding */
    uint8_t *data, *scale;       /* scale: of the batch */
    float g;
} quantized_row;

static inline quantized_row quantized_row_of(const quantize_problem *p, int64_t task) {
    int64_t batch = task / padded_rows(p), row = task % padded_rows(p);
    return (quantized_row){.batch = batch,
                           .row = row,
                           .columns = row < p->rows ? p->k / 16 : 0,
                           .data = p->data + batch * p->data_batch + row * p->data_pitch,
                           .scale = p->scale + batch * p->scale_batch,
                           .g = problem_global_scale(p)};
}

static inline void quantize_to(const quantize_problem *p, const quantized_row *to, int64_t column, const float x[16]) {
    quantize_block(x, to->g, p->block_scale == BLOCK_FOUR_OVER_SIX, to->data + column * 8,
                   to->scale + scale_offset(p->scale_layout, p->scale_pitch, to->row, column));
}

static inline void pad_row(const quantize_problem *p, const quantized_row *to) {
    for (int64_t column = to->columns; column < padded_columns(p); column++)
        to->scale[scale_offset(p->scale_layout, p->scale_pitch, to->row, column)] = 0;
}

/* A thread should find some 100 us of work. */
static inline int worthwhile_threads(const quantize_problem *p, int threads) {
    int64_t worth = 1 + p->rows * p->k * p->l / 65536;
    if (threads <= 0) threads = threads_available();
    return threads < worth ? threads : (int)worth;
}

#endif
