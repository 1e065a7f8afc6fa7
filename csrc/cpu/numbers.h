/* Decodes and encodes the number formats, one value at a time. Encoding rounds to nearest, ties to even. */
#ifndef NVFP4_CPU_NUMBERS_H
#define NVFP4_CPU_NUMBERS_H

#include "common/fp32.h"

/* Twice the value of an e2m1 code: the values themselves are halves. */
static const int8_t e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* The value itself, with the sign of a zero. */
static inline float e2m1_decode(int code) {
    float magnitude = 0.5f * e2m1_doubled[code & 7];
    return code & 8 ? -magnitude : magnitude;
}

/* An e4m3 scale; bit 7 is ignored. */
static inline float e4m3_decode(uint8_t code) {
    uint32_t magnitude = code & 0x7F;
    if (magnitude == 0x7F) return NAN;
    if (magnitude < 8) return (float)magnitude * 0x1p-9f; /* subnormal */
    return __uint_as_float((magnitude << 20) + ((127u - 7u) << 23));
}

/* Rounds a scale to e4m3, saturating at 448; NaN gives NaN, anything below zero gives zero. */
static inline uint8_t e4m3_encode(float value) {
    if (isnan(value)) return 0x7F;
    if (value <= 0.0f) return 0;
    if (value >= 448.0f) return 0x7E;
    /* Around 2^14 a float's last bit is worth 2^-9, e4m3's subnormal step: the addition does the rounding. */
    if (value < 0x1p-6f) return (uint8_t)(__float_as_uint(value + 0x1p14f) & 0xF);
    uint32_t bits = __float_as_uint(value);
    bits += 0x7FFFF + (bits >> 20 & 1);
    return (uint8_t)((bits >> 20) - ((127 - 7) << 3));
}

/* Rounds to e2m1, saturating at 6; NaN gives zero. The bounds are midpoints; one that ties to the code above includes
 * it. */
static inline uint8_t e2m1_encode(float value) {
    float x = fabsf(value);
    int code = (x > 0.25f) + (x >= 0.75f) + (x > 1.25f) + (x >= 1.75f) + (x > 2.5f) + (x >= 3.5f) + (x > 5.0f);
    return (uint8_t)(code | (isnan(value) ? 0 : __float_as_uint(value) >> 31 << 3));
}

static inline float fp16_decode(uint16_t code) {
    uint32_t sign = (uint32_t)(code & 0x8000) << 16, magnitude = code & 0x7FFF;
    if (magnitude >= 0x7C00) return __uint_as_float(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
    if (magnitude < 0x0400) return __uint_as_float(sign | __float_as_uint((float)magnitude * 0x1p-24f));
    return __uint_as_float(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

static inline uint16_t fp16_encode(float value) {
    uint32_t bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* 65520 and above round to infinity */
    if (magnitude < 0x38800000)                                    /* subnormal: steps of 2^-24, as in e4m3_encode */
        return (uint16_t)(sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3F000000));
    magnitude += 0xFFF + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude >> 13) - ((127 - 15) << 10)));
}

static inline float bf16_decode(uint16_t code) {
    return __uint_as_float((uint32_t)code << 16);
}

static inline uint16_t bf16_encode(float value) {
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

#endif
