/* Turns a block of 16 values into its codes and scale, bit for bit as cpu/quantize.c. */
#ifndef NVFP4_QUANTIZE_BLOCK_CUH
#define NVFP4_QUANTIZE_BLOCK_CUH

#include <math.h>

#include "common/exponential.h"
#include "common/row_op_problems.h"
#include "kernels/common/decode.cuh"
#include "kernels/common/dependent.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/quotient.h"

/* ---- tiles ---- */

/* Batch, and row of tiles in it. The grid may overshoot: then l is too large. */
struct tile_coord {
    uint32_t l, y;

    __device__ __forceinline__ tile_coord(int64_t batches, uint32_t tiles) {
        l = 0, y = blockIdx.z * gridDim.y + blockIdx.y;
        if (batches > 1 || gridDim.z > 1) l = y / tiles, y %= tiles;
    }
};

/* ---- numbers ---- */

/* An e4m3 scale; bit 7 is ignored. */
__device__ __forceinline__ float decode_e4m3(uint32_t code) {
    float scale = __half2float(__ushort_as_half((uint16_t)decode_scales(code, 0)));
    return DECODE_HAS_CVT ? scale : __fmul_rn(scale, 0x1p-7f);
}

/* Rounds a value that is not negative to nearest even, saturating at 448. NaN gives NaN. */
__device__ __forceinline__ uint32_t encode_e4m3(float value) {
#if DECODE_HAS_CVT
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return pair;
#else
    if (isnan(value)) return 0x7F;
    if (value >= 448.0f) return 0x7E;
    /* The last bit of a float near 2^14 is worth 2^-9, the step of the subnormals. */
    if (value < 0x1p-6f) return __float_as_uint(__fadd_rn(value, 0x1p14f)) & 0xF;
    uint32_t bits = __float_as_uint(value);
    bits += 0x7FFFF + (bits >> 20 & 1);
    return (bits >> 20) - ((127 - 7) << 3);
#endif
}

/* Rounds to nearest even, saturating at 6; NaN gives 0. */
__device__ uint32_t encode_e2m1(float value) {
    if (isnan(value)) return 0;
    float x = fabsf(value);
    uint32_t code = (x > 0.25f) + (x >= 0.75f) + (x > 1.25f) + (x >= 1.75f) + (x > 2.5f) + (x >= 3.5f) + (x > 5.0f);
    return code | __float_as_uint(value) >> 31 << 3;
}

/* 0 <= value < 7 to nearest even, as ROUND_BASE + code: the bits of 2^22 + code / 2. With v = code / 2, as a function
 * of the value and rounded to multiples of 1/2: v is the value up to 2, value / 2 + 1 up to 4, value / 4 + 2 above, and
 * always the least of the three. */
constexpr uint32_t ROUND_BASE = 0x4A800000;
__device__ __forceinline__ uint32_t round_e2m1(float value) {
    float low = __fadd_rn(value, 0x1p22f), middle = __fmaf_rn(value, 0.5f, 0x1p22f + 1);
    float high = __fmaf_rn(value, 0.25f, 0x1p22f + 2);
    return min(min(__float_as_uint(low), __float_as_uint(middle)), __float_as_uint(high));
}

/* The global scale of a row that exists. */
__device__ __forceinline__ float global_scale(const quantize_problem &p, uint32_t batch, uint32_t row) {
    if (!p.global_scale) return p.global_value;
    return p.global_scale[p.global_by == GLOBAL_BY_ROW ? batch * p.rows + row : 0];
}

/* The e2m1 values of COUNT / 2 bytes, times 2^-14: with its fields at those of fp16, a code is this number. */
template <int COUNT> __device__ __forceinline__ void decode_e2m1(uint32_t codes, float (&v)[COUNT]) {
    if (COUNT == 4) codes = (codes & 0xFF) | codes << 8; /* pairs are 16 bits apart */
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        uint32_t pair =
            (codes << (12 - 4 * i) & 0x80008000) | ((i < 3 ? codes << (9 - 4 * i) : codes >> 3) & 0x0E000E00);
        v[i] = __half2float(__ushort_as_half((uint16_t)pair));
        v[i + COUNT / 2] = __half2float(__ushort_as_half((uint16_t)(pair >> 16)));
    }
}

/* ---- blocks ---- */

/* Global scales for which no quotient overflows or loses bits. */
constexpr float MIN_SCALE = 0x1p-48f, MAX_SCALE = 0x1p48f;

/* 16 values: magnitudes, and the signs at the sign bits of their codes. */
struct block {
    float magnitude[16];
    uint32_t signs[2];
};

/* The signs of 8 values, which are pairs of 16-bit values, at the sign bits of 8 codes. */
__device__ __forceinline__ uint32_t sign_bits(const uint32_t *pairs) {
    uint32_t first = __byte_perm(pairs[0], pairs[1], 0x7351), second = __byte_perm(pairs[2], pairs[3], 0x7351);
    uint32_t even = __byte_perm(first, second, 0x5410), odd = __byte_perm(first, second, 0x7632);
    return (even >> 4 & 0x08080808) | (odd & 0x80808080);
}

/* 16 values as they are in memory. */
template <int TYPE> struct raw_block {
    static constexpr int words = TYPE == NVFP4_FP32 ? 16 : 8;
    uint32_t w[words];

    /* Aligned: to 16 bytes, else to a value. */
    __device__ __forceinline__ void load(const char *x, bool aligned) {
        if (!aligned) return load_unaligned(x);
#pragma unroll
        for (int i = 0; i < words; i += 4) {
            uint4 four = ((const uint4 *)x)[i / 4];
            w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
        }
    }
    __device__ __forceinline__ void store(char *x, bool aligned) const {
#pragma unroll
        for (int i = 0; i < words; i += 4)
            if (aligned) ((uint4 *)x)[i / 4] = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
        if (aligned) return;
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (TYPE == NVFP4_FP32)
                ((uint32_t *)x)[i] = w[i % words];
            else
                ((uint16_t *)x)[i] = (uint16_t)(w[i / 2] >> i % 2 * 16);
    }
    __device__ __forceinline__ void values(float (&v)[16]) const {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            uint32_t half = w[i / 2] >> i % 2 * 16 & 0xFFFF;
            v[i] = TYPE == NVFP4_FP32   ? __uint_as_float(w[i % words])
                   : TYPE == NVFP4_BF16 ? __uint_as_float(half << 16)
                                        : __half2float(__ushort_as_half((uint16_t)half));
        }
    }
    /* Rounded to nearest even. */
    __device__ __forceinline__ void pack(const float (&v)[16]) {
#pragma unroll
        for (int i = 0; i < words; i++)
            w[i] = TYPE == NVFP4_FP32 ? __float_as_uint(v[i]) : pack_16(v[2 * i % 16], v[(2 * i + 1) % 16], TYPE);
    }
    __device__ __forceinline__ void load_unaligned(const char *x) {
#pragma unroll
        for (int i = 0; i < words; i++)
            w[i] = TYPE == NVFP4_FP32 ? ((const uint32_t *)x)[i]
                                      : ((const uint16_t *)x)[2 * i] | (uint32_t)((const uint16_t *)x)[2 * i + 1] << 16;
    }
    /* Values 2i and 2i + 1 in 16 bits each, with their signs. */
    __device__ __forceinline__ uint32_t pair(int i) const {
        return TYPE == NVFP4_FP32 ? __byte_perm(w[2 * i % words], w[(2 * i + 1) % words], 0x7632) : w[i];
    }
    __device__ __forceinline__ block unpack() const {
        block b;
        uint32_t pairs[8];
#pragma unroll
        for (int i = 0; i < 8; i++) pairs[i] = pair(i);
        b.signs[0] = sign_bits(pairs), b.signs[1] = sign_bits(pairs + 4);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            uint32_t half = w[i / 2] >> i % 2 * 16 & 0x7FFF;
            b.magnitude[i] = TYPE == NVFP4_FP32   ? fabsf(__uint_as_float(w[i % words]))
                             : TYPE == NVFP4_BF16 ? __uint_as_float(half << 16)
                                                  : __half2float(__ushort_as_half((uint16_t)half));
        }
        return b;
    }
};

template <int TYPE> __device__ __forceinline__ void round_to_type(float (&v)[16]) {
    raw_block<TYPE> raw;
    raw.pack(v);
    raw.values(v);
}

/* The signs of the products of values. */
template <int TYPE, int OTHER>
__device__ __forceinline__ block signs_of(const raw_block<TYPE> &x, const raw_block<OTHER> &y) {
    block b;
    uint32_t pairs[8];
#pragma unroll
    for (int i = 0; i < 8; i++) pairs[i] = x.pair(i) ^ y.pair(i);
    b.signs[0] = sign_bits(pairs), b.signs[1] = sign_bits(pairs + 4);
    return b;
}

__device__ __forceinline__ block block_of(const float (&v)[16]) {
    raw_block<NVFP4_FP32> raw;
    raw.pack(v);
    return raw.unpack();
}

/* The codes of 8 values over 1 / r. CAP: quotients may be 7 or more, or infinite, or an infinity's NaN. */
template <bool CAP> __device__ __forceinline__ uint32_t encode_8(const float *magnitude, reciprocal r) {
    uint32_t sum = 0;
#pragma unroll
    for (int i = 7; i >= 0; i--) {
        uint32_t code = round_e2m1(quotient(magnitude[i], r));
        sum = sum * 16 + (CAP ? min(code, ROUND_BASE + 7) : code);
    }
    return sum - ROUND_BASE * 0x11111111u;
}

/* Codes under one of the block scales that a block may get. */
struct candidate {
    uint32_t scale; /* e4m3 */
    float unit;     /* the value of a code 1.0 */
    uint2 codes;    /* without signs; 0 if the scale is 0 or NaN */

    __device__ __forceinline__ candidate(const block &b, float amax, uint32_t scale_, float g) : scale(scale_) {
        unit = __fmul_rn(decode_e4m3(scale), g);
        reciprocal r = reciprocal_of(unit);
        if (amax > __fmul_rn(6.5f, unit)) /* the scale saturates, or is a small subnormal */
            codes = make_uint2(encode_8<true>(b.magnitude, r), encode_8<true>(b.magnitude + 8, r));
        else
            codes = make_uint2(encode_8<false>(b.magnitude, r), encode_8<false>(b.magnitude + 8, r));
        uint32_t mask = scale - 1 < 0x7E ? ~0u : 0;
        codes.x &= mask, codes.y &= mask;
    }
};

/* The power of two that brings amax to [1, 2), or as near as 2^-126 to 2^126 do. */
__device__ __forceinline__ float normalizer(float amax) {
    return __uint_as_float((254 - min(max(__float_as_uint(amax) >> 23, 1u), 253u)) << 23);
}

/* The squared error over normalizer^-2, added in the order of the values. */
__device__ __forceinline__ float squared_error(const block &b, const candidate &c, float normalizer) {
    float unit = __fmul_rn(__fmul_rn(c.unit, normalizer), 0x1p14f), sum = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float v[8];
        decode_e2m1(half ? c.codes.y : c.codes.x, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float r = __fmaf_rn(-v[i], unit, __fmul_rn(b.magnitude[half * 8 + i], normalizer));
            sum = __fmaf_rn(r, r, sum);
        }
    }
    return sum;
}

/* The nearest value of e2m1 to a quotient of magnitudes, saturating. As bits NaN and infinities of either sign, which a
 * quotient that overflows may have, are above 6. In [2^i, 2^(i+1)), i >= 0, values are 2^(i-1) apart, and below 1 as
 * in [1, 2). */
__device__ __forceinline__ float nearest_e2m1(float quotient) {
    constexpr float shift = 0x1.8p22f; /* times 2^i: its last bit is worth 2^(i-1) */
    const float q = __uint_as_float(min(__float_as_uint(quotient), 0x40C00000u));
    const float power = __uint_as_float(max(__float_as_uint(q) & 0x7F800000, 0x3F800000u));
    return __fmaf_rn(power, -shift, __fmaf_rn(power, shift, q));
}

__device__ __forceinline__ uint32_t searched_scale(uint32_t scale, int offset) {
    return (uint32_t)min(max((int)scale + offset, SEARCH_MIN_CODE), SEARCH_MAX_CODE);
}

/* Importance of 16 values, over a power of two. */
__device__ __forceinline__ void load_weights(float (&weight)[16], const float *importance) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) most = fmaxf(weight[i] = importance ? importance[i] : 1.0f, most);
    const float p = normalizer(most);
#pragma unroll
    for (int i = 0; i < 16; i++) weight[i] = most == 0.0f ? 1.0f : __fmul_rn(weight[i], p);
}

/* The scale with the least error, of those around `nearest`; amax > 0 and no NaN. */
__device__ __forceinline__ uint32_t search(const block &b, float amax, uint32_t nearest, float g,
                                           const float *importance) {
    float weight[16], scaled[16], p = normalizer(amax), least = INFINITY;
    uint32_t best = nearest;
    load_weights(weight, importance);
#pragma unroll
    for (int i = 0; i < 16; i++) scaled[i] = __fmul_rn(b.magnitude[i], p);
#pragma unroll 1
    for (int offset = SEARCH_FIRST; offset <= SEARCH_LAST; offset++) {
        const uint32_t scale = searched_scale(nearest, offset);
        const float unit = __fmul_rn(decode_e4m3(scale), g), d = __fmul_rn(unit, p);
        const reciprocal r = reciprocal_of(unit);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float rest = __fmaf_rn(-nearest_e2m1(quotient(b.magnitude[i], r)), d, scaled[i]);
            sum = __fmaf_rn(__fmul_rn(rest, weight[i]), rest, sum);
        }
        if (sum < least) least = sum, best = scale;
    }
    return best;
}

/* importance: of NVFP4_SEARCH, 16 numbers; NULL: ones. */
template <int BLOCK_SCALE>
__device__ __forceinline__ void quantize_block(const block &b, float g, reciprocal over_g, uint2 *data, uint8_t *scale,
                                               const float *importance = nullptr) {
    constexpr float most = 0x1p62f; /* over 6 and MAX_SCALE it is above 448 */
    constexpr reciprocal sixth = {0x1.555556p-3f, -0x1.555556p-28f};
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) bits = max(bits, __float_as_uint(b.magnitude[i])); /* NaN is above infinity */
    float amax = __uint_as_float(bits), capped = amax > most ? most : amax;
    uint32_t nearest = encode_e4m3(quotient(quotient(capped, sixth), over_g));
    if (BLOCK_SCALE == NVFP4_SEARCH && amax > 0.0f) nearest = search(b, amax, nearest, g, importance);
    candidate best(b, amax, nearest, g);
    if (BLOCK_SCALE == NVFP4_FOUR_OVER_SIX) {
        candidate four(b, amax, encode_e4m3(quotient(__fmul_rn(capped, 0.25f), over_g)), g);
        float p = normalizer(amax);
        if (squared_error(b, four, p) < squared_error(b, best, p)) best = four;
    }
    uint32_t mask = best.scale - 1 < 0x7E ? ~0u : 0; /* a scale of 0 or NaN has no values */
    *scale = (uint8_t)best.scale;
    *data = make_uint2(best.codes.x | (b.signs[0] & mask), best.codes.y | (b.signs[1] & mask));
}

/* The same by the definition, with any global scale; x at any address. */
template <int TYPE> struct plain_candidate {
    uint32_t scale;
    float unit;
    uint64_t codes;

    __device__ __forceinline__ plain_candidate(const char *x, uint32_t scale_, float g) : scale(scale_) {
        unit = __fmul_rn(decode_e4m3(scale), g);
        codes = 0;
        bool empty = scale == 0 || scale == 0x7F;
#pragma unroll 1
        for (int i = 0; i < 16 && !empty; i++)
            codes |= (uint64_t)encode_e2m1(__fdiv_rn(load_float(x, i, TYPE), unit)) << 4 * i;
    }
    __device__ __forceinline__ float squared_error(const char *x, float normalizer, const float *weight) const {
        float d = __fmul_rn(unit, normalizer), sum = 0.0f;
#pragma unroll 1
        for (int i = 0; i < 16; i++) {
            float v[4], value = __fmul_rn(load_float(x, i, TYPE), normalizer);
            decode_e2m1((uint32_t)(codes >> 4 * i) & 15, v);
            float r = __fmaf_rn(__fmul_rn(-v[0], 0x1p14f), d, value);
            sum = __fmaf_rn(weight ? __fmul_rn(r, weight[i]) : r, r, sum);
        }
        return sum;
    }
};

__device__ __forceinline__ uint32_t plain_scale(bool nan, float amax, float largest, float g) {
    const float wanted = __fdiv_rn(__fdiv_rn(amax, largest), g);
    return nan ? 0x7F : amax == 0.0f || wanted <= 0.0f ? 0 : encode_e4m3(wanted);
}

template <int TYPE, int BLOCK_SCALE>
__device__ __forceinline__ void quantize_any(const char *x, float g, uint2 *data, uint8_t *scale,
                                             const float *importance = nullptr) {
    float amax = 0.0f;
    bool nan = false;
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        float value = load_float(x, i, TYPE);
        nan |= isnan(value);
        amax = fmaxf(amax, fabsf(value));
    }
    plain_candidate<TYPE> best(x, plain_scale(nan, amax, 6.0f, g), g);
    const float p = normalizer(amax);
    if (BLOCK_SCALE == NVFP4_FOUR_OVER_SIX) {
        plain_candidate<TYPE> four(x, plain_scale(nan, amax, 4.0f, g), g);
        if (four.squared_error(x, p, nullptr) < best.squared_error(x, p, nullptr)) best = four;
    }
    if (BLOCK_SCALE == NVFP4_SEARCH && !nan && amax > 0.0f) {
        float weight[16], least = INFINITY;
        const uint32_t nearest = best.scale;
        load_weights(weight, importance);
#pragma unroll 1
        for (int offset = SEARCH_FIRST; offset <= SEARCH_LAST; offset++) {
            const plain_candidate<TYPE> other(x, searched_scale(nearest, offset), g);
            const float error = other.squared_error(x, p, weight);
            if (error < least) least = error, best = other;
        }
    }
    *scale = (uint8_t)best.scale;
    *data = make_uint2((uint32_t)best.codes, (uint32_t)(best.codes >> 32));
}

/* A block that is not in memory. in_range: MIN_SCALE <= g <= MAX_SCALE. */
template <int BLOCK_SCALE>
__device__ __forceinline__ void quantize_floats(const float (&v)[16], float g, bool in_range, uint2 *data,
                                                uint8_t *scale) {
    if (in_range) {
        quantize_block<BLOCK_SCALE>(block_of(v), g, reciprocal_of(g), data, scale);
    } else {
        float stored[16]; /* v has no address, so that in range it is never stored */
#pragma unroll
        for (int i = 0; i < 16; i++) stored[i] = v[i];
        quantize_any<NVFP4_FP32, BLOCK_SCALE>((const char *)stored, g, data, scale);
    }
}

#endif
