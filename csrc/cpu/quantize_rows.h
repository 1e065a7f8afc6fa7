/* Rows of quantisation by vectors, the part that is the same for every ISA: LANES blocks at a time, whose scales are a
 * vector. A quantize_*.c includes this once, after it has defined
 *
 *   floats, ints, LANES   vectors of LANES floats and int32
 *   fused                 x * y + sum
 *   smaller, larger       as minps and maxps: y where one is NaN
 *   any                   whether a bit is set
 *   load_lanes            LANES values of a type as floats
 *   store_lanes           floats rounded to a type
 *   store_bytes           the low bytes of ints
 *   amax_of_blocks        of 16 * LANES values of a type: the largest magnitude of each block, NaN above infinity
 *   encode_blocks         their codes: x over the block's unit, rounded; zeros where a lane of `valid` is 0. saturate:
 *                         quotients may be 7 and more, and infinite
 *   decode_blocks         codes and the values of their scales to 16 * LANES values of a type
 *   transpose_16          LANES rows of 16 floats, `pitch` bytes apart, to 16 vectors
 *
 * Codes come of x / unit in two operations, by kernels/quantize/quotient.h. For global scales outside its range, and
 * for four_over_six, blocks take the definition's path. */
#ifndef NVFP4_CPU_QUANTIZE_ROWS_H
#define NVFP4_CPU_QUANTIZE_ROWS_H

#include <float.h>

#include "cpu/quantize.h"
#include "kernels/quantize/exponential.h"

enum { GROUP = LANES * BLOCK, SPAN = 8, PARTIALS = 256 };

/* Scales that blocks get, and what x is divided by. */
typedef struct units {
    ints code;
    floats value, unit; /* unit: value * g */
} units;

/* As e4m3_encode. Scales of one exponent, and with the least one those below, are equally spaced: adding 2^20 times the
 * power of two rounds, and leaves the multiple of the spacing in the last bits. */
static inline units encode_scales(floats amax, floats wanted, float g) {
    const floats most = 448.0f - (floats){0}, least = 0x1p-6f - (floats){0};
    floats capped = smaller(wanted, most); /* NaN too */
    ints exponent = (ints)larger((floats)((ints)capped & 0x7F800000), least);
    floats shift = (floats)(exponent + (20 << 23)), rounded = capped + shift;
    ints code = ((ints)rounded & 0x1F) + (exponent >> 20) - ((127 - 6) << 3);
    floats value = rounded - shift;
    ints nan = (ints)amax > 0x7F800000;
    return (units){(code & ~nan) | (0x7F & nan), value, value * g};
}

/* As reciprocal_of: low is rounded towards zero. */
static inline void reciprocals(floats unit, floats *high, floats *low) {
    *high = 1.0f / unit;
    floats rest = fused(-unit, *high, 1.0f - (floats){0}), product = *high * rest;
    floats error = fused(*high, rest, -product); /* of the other sign: the product is too large */
    *low = (floats)((ints)product + ((((ints)error ^ (ints)product) >> 31) & (ints)(error != 0.0f)));
}

/* Up to SPAN groups, in three loops: a scale takes 100 cycles of latency, in which others can be computed only if
 * little else is between them. */
static inline __attribute__((always_inline)) void quantize_groups(uint8_t *data, uint8_t *scale, const char *x,
                                                                  const int type, float g, int64_t groups) {
    floats amax[SPAN], high[SPAN], low[SPAN], over_g[2];
    ints valid[SPAN], saturated = {0};
    int64_t size = GROUP * type_size(type);
    reciprocals(g - (floats){0}, over_g, over_g + 1);
    for (int64_t i = 0; i < groups; i++) amax[i] = amax_of_blocks(x + i * size, type);
    for (int64_t i = 0; i < groups; i++) {
        /* 2^62 / 6 over the greatest g is above 448. NaN stays. */
        floats part = smaller(0x1p62f - (floats){0}, amax[i]);
        part = fused(part, 0x1.555556p-3f - (floats){0}, part * -0x1.555556p-28f); /* over 6 */
        units u = encode_scales(amax[i], fused(part, over_g[0], part * over_g[1]), g);
        reciprocals(u.unit, high + i, low + i);
        valid[i] = (u.code > 0) & (u.code < 0x7F);
        saturated |= (ints)(amax[i] > u.unit * 6.5f);
        store_bytes(scale + i * LANES, u.code);
    }
    if (any(saturated))
        for (int64_t i = 0; i < groups; i++)
            encode_blocks(data + i * LANES * 8, x + i * size, type, (const float *)(high + i), (const float *)(low + i),
                          valid[i], 1);
    else
        for (int64_t i = 0; i < groups; i++)
            encode_blocks(data + i * LANES * 8, x + i * size, type, (const float *)(high + i), (const float *)(low + i),
                          valid[i], 0);
}

/* The same for a type. Not inlined: their loops need all registers. */
static __attribute__((noinline)) void quantize_fp16(uint8_t *data, uint8_t *scale, const char *x, float g, int64_t n) {
    quantize_groups(data, scale, x, OUT_FP16, g, n);
}
static __attribute__((noinline)) void quantize_bf16(uint8_t *data, uint8_t *scale, const char *x, float g, int64_t n) {
    quantize_groups(data, scale, x, OUT_BF16, g, n);
}
static __attribute__((noinline)) void quantize_fp32(uint8_t *data, uint8_t *scale, const char *x, float g, int64_t n) {
    quantize_groups(data, scale, x, OUT_FP32, g, n);
}

static inline void store_scales(const quantize_problem *p, row_at at, int64_t column, const uint8_t *scale,
                                int64_t count) {
    uint8_t *to = at.scale + scale_offset(p->scale_layout, p->scale_pitch, at.row, column);
    if (p->scale_layout == SCALES_LINEAR)
        memcpy(to, scale, (size_t)count);
    else
        for (int64_t i = 0; i < count; i += 4) memcpy(to + i * 128, scale + i, 4);
}

static inline int in_range(float g) {
    return g >= 0x1p-48f && g <= 0x1p48f; /* no quotient overflows or loses bits: block.cuh */
}

/* `count` blocks, at most SPAN * LANES, from a column on. */
static void quantize_blocks(const quantize_problem *p, row_at at, int64_t column, int64_t count, const char *x,
                            int32_t type) {
    uint8_t scale[SPAN * LANES] = {0}, *data = at.data + column * 8, tail_data[LANES * 8];
    int64_t size = BLOCK * type_size(type), groups = count / LANES, whole = groups * LANES;
    float g = problem_global_scale(p);
    if (p->block_scale == BLOCK_FOUR_OVER_SIX || !in_range(g)) {
        for (int64_t b = 0; b < count; b++) {
            float block[BLOCK];
            load_floats(block, x + b * size, type, BLOCK);
            quantize_block(block, g, p->block_scale == BLOCK_FOUR_OVER_SIX, data + b * 8, scale + b);
        }
    } else {
        void (*quantize)(uint8_t *, uint8_t *, const char *, float, int64_t) = type == OUT_FP32   ? quantize_fp32
                                                                               : type == OUT_BF16 ? quantize_bf16
                                                                                                  : quantize_fp16;
        if (groups) quantize(data, scale, x, g, groups);
        if (whole < count) {
            char tail[GROUP * 4] = {0};
            memcpy(tail, x + whole * size, (size_t)((count - whole) * size));
            quantize(tail_data, scale + whole, tail, g, 1);
            memcpy(data + whole * 8, tail_data, (size_t)(count - whole) * 8);
        }
    }
    store_scales(p, at, column, scale, count);
}

/* Blocks from a column on, at most `most`. */
static inline int64_t blocks_from(int64_t column, int64_t k, int64_t most) {
    return k / BLOCK - column < most ? k / BLOCK - column : most;
}

static void quantize_row(const quantize_problem *p, row_at at) {
    enum { STEP = SPAN * LANES };
    for (int64_t c = 0; c < p->k / BLOCK; c += STEP)
        quantize_blocks(p, at, c, blocks_from(c, p->k, STEP), at.x + c * BLOCK * type_size(p->x_type), p->x_type);
}

static inline __attribute__((always_inline)) void dequantize_typed(const quantize_problem *p, row_at at,
                                                                   const int type) {
    float g = problem_global_scale(p);
    operand scales = {.scale = at.scale, .scale_pitch = p->scale_pitch, .scale_layout = p->scale_layout};
    for (int64_t c = 0; c < p->k / BLOCK; c += LANES) {
        int64_t count = blocks_from(c, p->k, LANES), size = BLOCK * type_size(type);
        floats scale = load_scale_values(&scales, at.row, c, count);
        char *to = at.x + c * size, tail[GROUP * 4];
        uint8_t codes[LANES * 8] = {0};
        if (count == LANES) {
            decode_blocks(to, at.data + c * 8, scale, g, type);
            continue;
        }
        memcpy(codes, at.data + c * 8, (size_t)count * 8);
        decode_blocks(tail, codes, scale, g, type);
        memcpy(to, tail, (size_t)(count * size));
    }
}

static void dequantize_row(const quantize_problem *p, row_at at) {
    float g = problem_global_scale(p);
    if (!(g > 0.0f && g <= FLT_MAX)) /* a NaN may come of g too */
        quantize_portable.dequantize(p, at);
    else if (p->x_type == OUT_BF16)
        dequantize_typed(p, at, OUT_BF16);
    else if (p->x_type == OUT_FP16)
        dequantize_typed(p, at, OUT_FP16);
    else
        dequantize_typed(p, at, OUT_FP32);
}

/* fused.c defines what follows. Values past a row's end are zeros. */
static inline void load_values(float to[GROUP], const char *from, int32_t type, int64_t count) {
    if (count < LANES) memset(to, 0, GROUP * 4);
    for (int64_t i = 0; i < count * BLOCK; i += LANES) {
        floats value = load_lanes(from + i * type_size(type), type);
        memcpy(to + i, &value, sizeof value);
    }
}

static void silu_mul_row(const quantize_problem *p, row_at at) {
    for (int64_t c = 0; c < p->k / BLOCK; c += LANES) {
        _Alignas(64) float y[GROUP], up[GROUP];
        int64_t count = blocks_from(c, p->k, LANES), from = c * BLOCK * type_size(p->x_type);
        load_values(y, at.x + from, p->x_type, count);
        load_values(up, at.x + p->k * type_size(p->x_type) + from, p->x_type, count);
        for (int i = 0; i < GROUP; i++) y[i] = silu(y[i]) * up[i];
        quantize_blocks(p, at, c, count, (const char *)y, OUT_FP32);
    }
}

/* h of a group; the residual becomes h. */
static inline void add_residual(float h[GROUP], char *residual, int32_t type, int64_t count) {
    for (int64_t i = 0; i < count * BLOCK; i += LANES) {
        char *at = residual + i * type_size(type);
        floats sum = *(const floats *)(h + i) + load_lanes(at, type);
        store_lanes(at, sum, type);
        *(floats *)(h + i) = load_lanes(at, type);
    }
}

static void rms_norm_row(const norm_problem *p, row_at at) {
    const quantize_problem *q = &p->q;
    char *residual =
        p->residual ? (char *)p->residual + at.batch * p->residual_batch + at.row * p->residual_pitch : NULL;
    int64_t size = type_size(q->x_type), weight_size = type_size(p->weight_type);
    _Alignas(64) float sums[PARTIALS] = {0}, h[GROUP], weight[GROUP];
    for (int64_t c = 0; c < q->k / BLOCK; c += LANES) {
        int64_t count = blocks_from(c, q->k, LANES);
        load_values(h, at.x + c * BLOCK * size, q->x_type, count);
        if (residual) add_residual(h, residual + c * BLOCK * size, q->x_type, count);
        floats values[BLOCK], *sum = (floats *)(sums + c % PARTIALS);
        transpose_16(values, h, BLOCK * 4);
        for (int i = 0; i < BLOCK; i++) *sum = fused(values[i], values[i], *sum);
    }
    for (int n = PARTIALS / 2; n > 0; n /= 2)
        for (int j = 0; j < n; j++) sums[j] = sums[j] + sums[j + n];
    float inverse = 1.0f / sqrtf(sums[0] / (float)q->k + p->eps);
    for (int64_t c = 0; c < q->k / BLOCK; c += LANES) {
        int64_t count = blocks_from(c, q->k, LANES);
        load_values(h, (residual ? residual : at.x) + c * BLOCK * size, q->x_type, count);
        load_values(weight, (const char *)p->weight + c * BLOCK * weight_size, p->weight_type, count);
        for (int i = 0; i < GROUP; i++) h[i] = h[i] * inverse * weight[i];
        quantize_blocks(q, at, c, count, (const char *)h, OUT_FP32);
    }
}

#endif
