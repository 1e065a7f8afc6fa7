/* Rows of quantization by vectors, the part that is the same for every ISA: LANES blocks at a time, whose scales are a
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
 *   round_values          magnitudes over a unit, rounded to e2m1
 *   decode_blocks         codes and the values of their scales to 16 * LANES values of a type
 *   transpose_16          LANES rows of 16 floats, `pitch` bytes apart, to 16 vectors
 *
 * Codes come of x / unit in two operations, by kernels/quantize/quotient.h. For global scales outside its range blocks
 * take the definition's path. */
#ifndef NVFP4_CPU_QUANTIZE_ROWS_H
#define NVFP4_CPU_QUANTIZE_ROWS_H

#include <float.h>

#include "cpu/gated.h"
#include "cpu/quantize.h"

enum { GROUP = LANES * BLOCK, SPAN = 8, STEP = SPAN * LANES, PARTIALS = 256 };

/* Scales that blocks get, and what x is divided by. */
typedef struct units {
    ints code;
    floats unit, high, low; /* the value of a code 1.0, and its reciprocal */
} units;

/* Vectors of reciprocal_of: low is rounded towards zero. */
static inline void reciprocals(floats unit, floats *high, floats *low) {
    *high = 1.0f / unit;
    floats rest = fused(-unit, *high, 1.0f - (floats){0}), product = *high * rest;
    floats error = fused(*high, rest, -product); /* of the other sign: the product is too large */
    *low = (floats)((ints)product + ((((ints)error ^ (ints)product) >> 31) & (ints)(error != 0.0f)));
}

/* Vectors of e4m3_encode. Scales of one exponent, and with the least one those below, are equally spaced: adding 2^20
 * times the power of two rounds, and leaves the multiple of the spacing in the last bits. */
static inline units encode_scales(floats amax, floats wanted, float g) {
    const floats most = 448.0f - (floats){0}, least = 0x1p-6f - (floats){0};
    floats capped = smaller(wanted, most); /* NaN too */
    ints exponent = (ints)larger((floats)((ints)capped & 0x7F800000), least);
    floats shift = (floats)(exponent + (20 << 23)), rounded = capped + shift;
    ints code = ((ints)rounded & 0x1F) + (exponent >> 20) - ((127 - 6) << 3);
    floats value = rounded - shift;
    ints nan = (ints)amax > 0x7F800000;
    units u = {.code = (code & ~nan) | (0x7F & nan), .unit = value * g};
    reciprocals(u.unit, &u.high, &u.low);
    return u;
}

static inline ints has_codes(ints scale) {
    return (scale > 0) & (scale < 0x7F);
}

/* Vectors of squared_error, for magnitudes. */
static inline floats squared_errors(const floats magnitude[BLOCK], units u, floats p) {
    floats sum = {0}, d = u.unit * p;
    for (int i = 0; i < BLOCK; i++) {
        floats value = (floats)((ints)round_values(magnitude[i], u.high, u.low) & has_codes(u.code));
        floats rest = fused(-value, d, magnitude[i] * p);
        sum = fused(rest, rest, sum);
    }
    return sum;
}

/* Vectors of normalizer. */
static inline floats normalizers(floats amax) {
    floats exponent = (floats)((ints)amax & 0x7F800000);
    exponent = smaller(larger(exponent, 0x1p-126f - (floats){0}), 0x1p126f - (floats){0});
    return (floats)((254 << 23) - (ints)exponent);
}

/* s where a lane of `mask` is -1, t elsewhere. */
static inline units choose_units(ints mask, units s, units t) {
    return (units){(mask & s.code) | (~mask & t.code), (floats)((mask & (ints)s.unit) | (~mask & (ints)t.unit)),
                   (floats)((mask & (ints)s.high) | (~mask & (ints)t.high)),
                   (floats)((mask & (ints)s.low) | (~mask & (ints)t.low))};
}

static inline void load_magnitudes(floats values[BLOCK], const float *x) {
    transpose_16(values, x, BLOCK * 4);
    for (int i = 0; i < BLOCK; i++) values[i] = (floats)((ints)values[i] & INT32_MAX);
}

static inline units smaller_error(units six, units four, floats amax, const float *x) {
    floats values[BLOCK], p = normalizers(amax);
    load_magnitudes(values, x);
    return choose_units(squared_errors(values, four, p) < squared_errors(values, six, p), four, six);
}

/* ---- search ---- */

/* Vectors of searched_scale, with the value of the code. */
static inline units searched_units(ints scale, int offset, float g) {
    ints code = scale + offset;
    code = (code & (code > SEARCH_MIN_CODE)) | (SEARCH_MIN_CODE & (code <= SEARCH_MIN_CODE));
    code = (code & (code < SEARCH_MAX_CODE)) | (SEARCH_MAX_CODE & (code >= SEARCH_MAX_CODE));
    /* A code's bits at those of an fp32's exponent and fraction are its value, with the bias of an fp32's exponent. The
     * bits of a subnormal are a fraction of 2^-6; below 8 they do not reach the exponent. */
    ints subnormal = code < 8;
    floats normal = (floats)((code << 20) + (120 << 23));
    floats small = (floats)((code << 20) + (121 << 23)) - 0x1p-6f;
    units u = {.code = code, .unit = (floats)(((ints)small & subnormal) | ((ints)normal & ~subnormal)) * g};
    reciprocals(u.unit, &u.high, &u.low);
    return u;
}

/* Vectors of weights_of. */
static inline void load_weights(floats weight[BLOCK], const float *importance) {
    floats most = {0};
    transpose_16(weight, importance, BLOCK * 4);
    for (int i = 0; i < BLOCK; i++) most = larger(weight[i], most);
    floats p = normalizers(most), ones = 1.0f - (floats){0};
    ints none = most == 0.0f;
    for (int i = 0; i < BLOCK; i++) weight[i] = (floats)(((ints)ones & none) | ((ints)(weight[i] * p) & ~none));
}

/* Vectors of search. A saturated scale's candidates below it have quotients far above 6: round_values saturates. */
static __attribute__((noinline)) units least_error(units nearest, floats amax, float g, const float *x,
                                                   const float *importance) {
    floats values[BLOCK], scaled[BLOCK], weight[BLOCK], p = normalizers(amax), least = INFINITY - (floats){0};
    ints searched = ((ints)amax > 0) & ((ints)amax <= 0x7F800000);
    units best = nearest;
    load_magnitudes(values, x);
    for (int i = 0; i < BLOCK; i++) scaled[i] = values[i] * p;
    if (importance) load_weights(weight, importance);
    for (int offset = SEARCH_FIRST; offset <= SEARCH_LAST; offset++) {
        const units u = searched_units(nearest.code, offset, g);
        floats sum = {0}, d = u.unit * p;
        for (int i = 0; i < BLOCK; i++) {
            floats rest = fused(-round_values(values[i], u.high, u.low), d, scaled[i]);
            floats weighted = rest;
            if (importance) weighted = rest * weight[i];
            sum = fused(weighted, rest, sum);
        }
        ints better = (sum < least) & searched;
        least = (floats)(((ints)sum & better) | ((ints)least & ~better));
        best = choose_units(better, u, best);
    }
    return best;
}

/* Up to SPAN groups, in three loops: a scale takes 100 cycles of latency, in which others can be computed only if
 * little else is between them. importance: of NVFP4_SEARCH, which has the values' type fp32. */
static inline __attribute__((always_inline)) void quantize_groups(uint8_t *data, uint8_t *scale, const char *x,
                                                                  const int type, float g, int64_t groups,
                                                                  const int block_scale, const float *importance) {
    floats amax[SPAN], high[SPAN], low[SPAN], over_g[2];
    ints valid[SPAN], saturated = {0};
    int64_t size = GROUP * type_size(type);
    reciprocals(g - (floats){0}, over_g, over_g + 1);
    for (int64_t i = 0; i < groups; i++) amax[i] = amax_of_blocks(x + i * size, type);
    for (int64_t i = 0; i < groups; i++) {
        /* 2^62 / 6 over the greatest g is above 448. NaN stays. */
        floats capped = smaller(0x1p62f - (floats){0}, amax[i]);
        floats part = fused(capped, 0x1.555556p-3f - (floats){0}, capped * -0x1.555556p-28f); /* over 6 */
        units u = encode_scales(amax[i], fused(part, over_g[0], part * over_g[1]), g);
        if (block_scale == NVFP4_SEARCH)
            u = least_error(u, amax[i], g, (const float *)x + i * GROUP, importance ? importance + i * GROUP : NULL);
        if (block_scale == NVFP4_FOUR_OVER_SIX) {
            part = capped * 0.25f;
            units other = encode_scales(amax[i], fused(part, over_g[0], part * over_g[1]), g);
            u = smaller_error(u, other, amax[i], (const float *)x + i * GROUP);
        }
        high[i] = u.high, low[i] = u.low, valid[i] = has_codes(u.code);
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

/* The same for each type. The functions are not inlined: their loops need all registers. */
typedef void quantizer(uint8_t *data, uint8_t *scale, const char *x, float g, int64_t groups, const float *importance);
#define QUANTIZER(NAME, TYPE, BLOCK_SCALE)                                                                             \
    static __attribute__((noinline)) void NAME(uint8_t *data, uint8_t *scale, const char *x, float g, int64_t n,       \
                                               const float *importance) {                                              \
        quantize_groups(data, scale, x, TYPE, g, n, BLOCK_SCALE, importance);                                          \
    }
QUANTIZER(quantize_fp16, NVFP4_FP16, NVFP4_AMAX6)
QUANTIZER(quantize_bf16, NVFP4_BF16, NVFP4_AMAX6)
QUANTIZER(quantize_fp32, NVFP4_FP32, NVFP4_AMAX6)
QUANTIZER(quantize_four_over_six, NVFP4_FP32, NVFP4_FOUR_OVER_SIX)
QUANTIZER(quantize_search, NVFP4_FP32, NVFP4_SEARCH)

/* Loads values as fp32. Values up to the end of the last group are zeros. */
static void load_values(float to[STEP * BLOCK], const char *from, int32_t type, int64_t count) {
    for (int64_t i = 0; i < count * BLOCK; i += LANES)
        *(floats *)(to + i) = load_lanes(from + i * type_size(type), type);
    memset(to + count * BLOCK, 0, (size_t)((LANES - count % LANES) % LANES * BLOCK * 4));
}

static inline void store_scales(const quantize_problem *p, row_at at, int64_t column, const uint8_t *scale,
                                int64_t count) {
    uint8_t *to = at.scale + scale_offset(p->scale_layout, p->scale_pitch, at.row, column);
    if (p->scale_layout == NVFP4_LINEAR)
        memcpy(to, scale, (size_t)count);
    else
        for (int64_t i = 0; i < count; i += 4) memcpy(to + i * 128, scale + i, 4);
}

static inline int in_range(float g) {
    return g >= 0x1p-48f && g <= 0x1p48f; /* no quotient overflows or loses bits: block.cuh */
}

/* `count` blocks, at most STEP, from a column on. */
static void quantize_blocks(const quantize_problem *p, row_at at, int64_t column, int64_t count, const char *x,
                            int32_t type) {
    _Alignas(64) float values[STEP * BLOCK];
    uint8_t scale[STEP] = {0}, *data = at.data + column * 8, tail_data[LANES * 8];
    if (p->block_scale != NVFP4_AMAX6 && type != NVFP4_FP32) {
        load_values(values, x, type, count);
        x = (const char *)values, type = NVFP4_FP32;
    }
    int64_t size = BLOCK * type_size(type), groups = count / LANES, whole = groups * LANES;
    float g = at.g;
    const float *importance = p->importance ? p->importance + column * BLOCK : NULL;
    quantizer *quantize = p->block_scale == NVFP4_SEARCH          ? quantize_search
                          : p->block_scale == NVFP4_FOUR_OVER_SIX ? quantize_four_over_six
                          : type == NVFP4_FP32                    ? quantize_fp32
                          : type == NVFP4_BF16                    ? quantize_bf16
                                                                  : quantize_fp16;
    if (!in_range(g))
        for (int64_t b = 0; b < count; b++) {
            float block[BLOCK];
            load_floats(block, x + b * size, type, BLOCK);
            quantize_block(block, g, p->block_scale, importance ? importance + b * BLOCK : NULL, data + b * 8,
                           scale + b);
        }
    else if (groups)
        quantize(data, scale, x, g, groups, importance);
    if (in_range(g) && whole < count) {
        char tail[GROUP * 4] = {0};
        float tail_importance[GROUP] = {0};
        memcpy(tail, x + whole * size, (size_t)((count - whole) * size));
        if (importance) memcpy(tail_importance, importance + whole * BLOCK, (size_t)(count - whole) * BLOCK * 4);
        quantize(tail_data, scale + whole, tail, g, 1, importance ? tail_importance : NULL);
        memcpy(data + whole * 8, tail_data, (size_t)(count - whole) * 8);
    }
    store_scales(p, at, column, scale, count);
}

/* Blocks from a column on, at most `most`. */
static inline int64_t blocks_from(int64_t column, int64_t k, int64_t most) {
    return k / BLOCK - column < most ? k / BLOCK - column : most;
}

/* While a step is encoded, what the next one reads and writes comes close: 20 % of the time. */
static void quantize_row(const quantize_problem *p, row_at at) {
    int64_t size = BLOCK * type_size(p->x_type);
    for (int64_t c = 0; c < p->k / BLOCK; c += STEP) {
        int64_t count = blocks_from(c, p->k, STEP), next = blocks_from(c + STEP, p->k, STEP);
        for (int64_t i = 0; i < next * size; i += 64) __builtin_prefetch(at.x + (c + STEP) * size + i);
        for (int64_t i = 0; i < next * 8; i += 64) __builtin_prefetch(at.data + (c + STEP) * 8 + i, 1);
        quantize_blocks(p, at, c, count, at.x + c * size, p->x_type);
    }
}

static inline __attribute__((always_inline)) void dequantize_typed(const quantize_problem *p, row_at at,
                                                                   const int type) {
    float g = at.g;
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
    float g = at.g;
    if (!(g > 0.0f && g <= FLT_MAX)) /* a NaN may come of g too */
        quantize_portable.dequantize(p, at);
    else if (p->x_type == NVFP4_BF16)
        dequantize_typed(p, at, NVFP4_BF16);
    else if (p->x_type == NVFP4_FP16)
        dequantize_typed(p, at, NVFP4_FP16);
    else
        dequantize_typed(p, at, NVFP4_FP32);
}

/* fused.c defines what follows. */
static void round_to_type(float *v, int32_t type, int64_t count) {
    if (type == NVFP4_FP32) return;
    for (int64_t i = 0; i < count * BLOCK; i += LANES) {
        char rounded[LANES * 4];
        store_lanes(rounded, *(const floats *)(v + i), type);
        *(floats *)(v + i) = load_lanes(rounded, type);
    }
}

/* The activation of y, times up where at.up; each is rounded to the type of x. */
static void gate_in_steps(const grouped_quantize_problem *p, float *y, const float *up, gating g, int64_t count) {
    _Alignas(64) float ones[STEP * BLOCK];
    for (int i = 0; i < STEP * BLOCK; i++) ones[i] = 1.0f;
    gate_values(p->activation, y, ones, gating_of(p->limit, p->alpha, 0), count * BLOCK);
    round_to_type(y, p->q.x_type, count);
    if (!up) return;
    for (int64_t i = 0; i < count * BLOCK; i++) y[i] = y[i] * factor_of_up(p->activation, up[i], g);
    round_to_type(y, p->q.x_type, count);
}

static void gated_row(const grouped_quantize_problem *p, row_at at) {
    const quantize_problem *q = &p->q;
    const gating g = gating_of(p->limit, p->alpha, at.up != NULL);
    _Alignas(64) float y[STEP * BLOCK], up[STEP * BLOCK];
    for (int i = 0; i < STEP * BLOCK && !at.up; i++) up[i] = 1.0f;
    for (int64_t c = 0; c < q->k / BLOCK; c += STEP) {
        int64_t count = blocks_from(c, q->k, STEP), from = c * BLOCK * type_size(q->x_type);
        load_values(y, at.x + from, q->x_type, count);
        if (at.up) load_values(up, at.up + from, q->x_type, count);
        if (q->round_steps)
            gate_in_steps(p, y, at.up ? up : NULL, g, count);
        else
            gate_values(p->activation, y, up, g, count * BLOCK);
        quantize_blocks(q, at, c, count, (const char *)y, NVFP4_FP32);
    }
}

/* h of `count` blocks; the residual becomes h. */
static void add_residual(float *h, char *residual, int32_t type, int64_t count) {
    for (int64_t i = 0; i < count * BLOCK; i += LANES) {
        char *at = residual + i * type_size(type);
        store_lanes(at, *(const floats *)(h + i) + load_lanes(at, type), type);
        *(floats *)(h + i) = load_lanes(at, type);
    }
}

static void rms_norm_row(const norm_problem *p, row_at at) {
    const quantize_problem *q = &p->q;
    char *residual =
        p->residual ? (char *)p->residual + at.batch * p->residual_batch + at.row * p->residual_pitch : NULL;
    int64_t size = BLOCK * type_size(q->x_type), weight_size = BLOCK * type_size(p->weight_type);
    _Alignas(64) float sums[PARTIALS] = {0}, h[STEP * BLOCK], weight[STEP * BLOCK];
    for (int64_t c = 0; c < q->k / BLOCK; c += STEP) {
        int64_t count = blocks_from(c, q->k, STEP);
        load_values(h, at.x + c * size, q->x_type, count);
        if (residual) add_residual(h, residual + c * size, q->x_type, count);
        for (int64_t b = 0; b < count; b += LANES) {
            floats values[BLOCK], *sum = (floats *)(sums + (c + b) % PARTIALS);
            transpose_16(values, h + b * BLOCK, BLOCK * 4);
            for (int i = 0; i < BLOCK; i++) *sum = fused(values[i], values[i], *sum);
        }
    }
    for (int n = PARTIALS / 2; n > 0; n /= 2)
        for (int j = 0; j < n; j++) sums[j] = sums[j] + sums[j + n];
    float inverse = 1.0f / sqrtf(sums[0] / (float)q->k + p->eps);
    for (int64_t c = 0; c < q->k / BLOCK; c += STEP) {
        int64_t count = blocks_from(c, q->k, STEP);
        load_values(h, (residual ? residual : at.x) + c * size, q->x_type, count);
        load_values(weight, (const char *)p->weight + c * weight_size, p->weight_type, count);
        for (int64_t i = 0; i < count * BLOCK; i++) h[i] = h[i] * inverse;
        if (q->round_steps) round_to_type(h, q->x_type, count);
        for (int64_t i = 0; i < count * BLOCK; i++) h[i] = h[i] * weight[i];
        if (q->round_steps) round_to_type(h, q->x_type, count);
        quantize_blocks(q, at, c, count, (const char *)h, NVFP4_FP32);
    }
}

#include "cpu/gptq_rows.h"

/* The quantize_kernel of the ISA. */
#define QUANTIZE_ROWS                                                                                                  \
    {.quantize = quantize_row,                                                                                         \
     .dequantize = dequantize_row,                                                                                     \
     .gated = gated_row,                                                                                               \
     .rms_norm = rms_norm_row,                                                                                         \
     .amax = amax_bits,                                                                                                \
     .gptq = gptq_rows}

#endif
