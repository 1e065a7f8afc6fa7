/* Number formats: see formats.h. One encoder rounds for every format. Decoders are a few shifts each, since
 * fragments and epilogues call them for every element. */
#include "scalar/formats.h"

#include <math.h>
#include <string.h>

const float_format format_f64 = {11, 52, 1023, SPECIALS_IEEE};
const float_format format_f32 = {8, 23, 127, SPECIALS_IEEE};
const float_format format_tf32 = {8, 10, 127, SPECIALS_IEEE};
const float_format format_f16 = {5, 10, 15, SPECIALS_IEEE};
const float_format format_bf16 = {8, 7, 127, SPECIALS_IEEE};
const float_format format_e4m3 = {4, 3, 7, SPECIALS_NAN_ONLY};
const float_format format_e5m2 = {5, 2, 15, SPECIALS_IEEE};
const float_format format_e2m3 = {2, 3, 1, SPECIALS_NONE};
const float_format format_e3m2 = {3, 2, 3, SPECIALS_NONE};
const float_format format_e2m1 = {2, 1, 1, SPECIALS_NONE};

static uint64_t largest_finite(const float_format *format) {
    uint64_t all_ones = (UINT64_C(1) << (format->exponent_bits + format->mantissa_bits)) - 1;
    if (format->specials == SPECIALS_NONE) return all_ones;
    if (format->specials == SPECIALS_NAN_ONLY) return all_ones - 1;
    return all_ones - (UINT64_C(1) << format->mantissa_bits);
}

/* The one NaN of a result, the positive maximum where there is none. */
static uint64_t nan_of(const float_format *format) {
    return (UINT64_C(1) << (format->exponent_bits + format->mantissa_bits)) - 1;
}

static uint64_t with_sign(const float_format *format, bool negative, uint64_t magnitude, int flags) {
    if (!negative) return magnitude;
    return flags & FORMAT_RELU ? 0 : magnitude | UINT64_C(1) << (format->exponent_bits + format->mantissa_bits);
}

static uint64_t infinity_of(const float_format *format, bool negative, int flags) {
    uint64_t largest = largest_finite(format);
    if (flags & FORMAT_SATFINITE || format->specials == SPECIALS_NONE)
        return with_sign(format, negative, largest, flags);
    if (format->specials == SPECIALS_NAN_ONLY) return nan_of(format);
    return with_sign(format, negative, largest + 1, flags);
}

/* Whether the magnitude grows by one unit: `odd` is its last bit, `rest` what was cut off, in units of which `half`
 * is one half; `sticky` adds something between 0 and 1 to rest. */
static bool rounds_up(rounding_mode rounding, bool negative, bool odd, uint64_t rest, uint64_t half, bool sticky) {
    bool inexact = rest != 0 || sticky;
    switch (rounding) {
    case ROUND_RN:
        return rest > half || (rest == half && half != 0 && (sticky || odd));
    case ROUND_RNA:
        return rest >= half && half != 0;
    case ROUND_RM:
        return negative && inexact;
    case ROUND_RP:
        return !negative && inexact;
    case ROUND_RZ:
        return false;
    }
    return false;
}

uint64_t format_encode(const float_format *format, bool negative, uint64_t significand, int exponent, bool sticky,
                       rounding_mode rounding, int flags) {
    if (significand == 0 && !sticky) return with_sign(format, negative, 0, flags);
    int smallest = 1 - format->bias; /* exponent of the smallest normal number, and of every subnormal one */
    int leading = significand ? exponent + 63 - __builtin_clzll(significand) : exponent;
    int effective = leading > smallest ? leading : smallest;
    int cut = effective - format->mantissa_bits - exponent;
    uint64_t kept, rest = 0, half = 0;
    if (cut <= 0) {
        kept = significand << -cut;
    } else if (cut <= 63) {
        kept = significand >> cut;
        rest = significand & ((UINT64_C(1) << cut) - 1);
        half = UINT64_C(1) << (cut - 1);
    } else {
        /* All of it is cut off; beyond 64 places it is below one half whatever it holds. */
        kept = 0;
        half = UINT64_C(1) << 63;
        rest = cut == 64 ? significand : 1;
    }
    kept += rounds_up(rounding, negative, kept & 1, rest, half, sticky);
    /* The hidden bit, or a carry out of the mantissa, adds one to the exponent field. */
    uint64_t magnitude = ((uint64_t)(effective - smallest) << format->mantissa_bits) + kept;
    uint64_t largest = largest_finite(format);
    if (effective - smallest >= 1 << format->exponent_bits || magnitude > largest) {
        bool away = rounding == ROUND_RN || rounding == ROUND_RNA || (rounding == ROUND_RM && negative) ||
                    (rounding == ROUND_RP && !negative);
        if (away) return infinity_of(format, negative, flags);
        magnitude = largest;
    }
    return with_sign(format, negative, magnitude, flags);
}

uint64_t format_from_double(const float_format *format, double x, rounding_mode rounding, int flags) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bool negative = bits >> 63;
    int field = bits >> 52 & 2047;
    uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    if (field == 2047) return fraction ? nan_of(format) : infinity_of(format, negative, flags);
    if (field == 0) return format_encode(format, negative, fraction, -1074, false, rounding, flags);
    return format_encode(format, negative, fraction | UINT64_C(1) << 52, field - 1075, false, rounding, flags);
}

uint64_t format_from_uint64(const float_format *format, uint64_t x, rounding_mode rounding, int flags) {
    return format_encode(format, false, x, 0, false, rounding, flags);
}

uint64_t format_from_int64(const float_format *format, int64_t x, rounding_mode rounding, int flags) {
    uint64_t magnitude = x < 0 ? -(uint64_t)x : (uint64_t)x;
    return format_encode(format, x < 0, magnitude, 0, false, rounding, flags);
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float f32_from_double(double x, rounding_mode rounding) {
    return float_of((uint32_t)format_from_double(&format_f32, x, rounding, 0));
}

uint16_t f16_from_double(double x, rounding_mode rounding, int flags) {
    return (uint16_t)format_from_double(&format_f16, x, rounding, flags);
}

uint16_t bf16_from_double(double x, rounding_mode rounding, int flags) {
    return (uint16_t)format_from_double(&format_bf16, x, rounding, flags);
}

uint16_t f16_from_float(float x, rounding_mode rounding, int flags) {
    return f16_from_double(x, rounding, flags);
}

uint16_t bf16_from_float(float x, rounding_mode rounding, int flags) {
    return bf16_from_double(x, rounding, flags);
}

uint32_t tf32_from_float(float x, rounding_mode rounding, int flags) {
    if (x != x) return 0x7fffffff;
    return (uint32_t)format_from_double(&format_tf32, x, rounding, flags) << 13;
}

uint8_t e4m3_from_float(float x, rounding_mode rounding, int flags) {
    return (uint8_t)format_from_double(&format_e4m3, x, rounding, flags);
}

uint8_t e5m2_from_float(float x, rounding_mode rounding, int flags) {
    return (uint8_t)format_from_double(&format_e5m2, x, rounding, flags);
}

uint8_t e2m3_from_float(float x, rounding_mode rounding, int flags) {
    return (uint8_t)format_from_double(&format_e2m3, x, rounding, flags);
}

uint8_t e3m2_from_float(float x, rounding_mode rounding, int flags) {
    return (uint8_t)format_from_double(&format_e3m2, x, rounding, flags);
}

uint8_t e2m1_from_float(float x, rounding_mode rounding, int flags) {
    return (uint8_t)format_from_double(&format_e2m1, x, rounding, flags);
}

uint8_t ue8m0_from_float(float x, rounding_mode rounding, int flags) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return 0xff;
    uint32_t field = bits >> 23;
    /* Code 0 is 2^-127, the fp32 subnormal 0x00400000: everything up to it stays there. */
    if (rounding == ROUND_RP && bits & 0x7fffff && bits > 0x00400000) field++;
    if (field == 0xff && flags & FORMAT_SATFINITE) field = 0xfe;
    return (uint8_t)field;
}

/* A format without infinity; its NaN, if any, is the caller's. */
static inline float small_to_float(uint32_t x, int exponent_bits, int mantissa_bits, int bias) {
    uint32_t magnitude = x & ((1U << (exponent_bits + mantissa_bits)) - 1);
    uint32_t sign = x >> (exponent_bits + mantissa_bits) & 1;
    float value;
    if (magnitude >> mantissa_bits)
        value = float_of((magnitude << (23 - mantissa_bits)) + ((uint32_t)(127 - bias) << 23));
    else
        value = (float)magnitude * float_of((uint32_t)(127 + 1 - bias - mantissa_bits) << 23);
    return sign ? -value : value;
}

float f16_to_float(uint16_t x) {
    if ((x & 0x7fff) > 0x7c00) return float_of(0x7fffffff);
    if ((x & 0x7fff) == 0x7c00) return x >> 15 ? -INFINITY : INFINITY;
    return small_to_float(x, 5, 10, 15);
}

float bf16_to_float(uint16_t x) {
    return float_of((uint32_t)x << 16);
}

float tf32_to_float(uint32_t x) {
    return float_of(x & 0xffffe000);
}

float e4m3_to_float(uint8_t x) {
    if ((x & 0x7f) == 0x7f) return float_of(0x7fffffff);
    return small_to_float(x, 4, 3, 7);
}

float e5m2_to_float(uint8_t x) {
    return f16_to_float((uint16_t)(x << 8));
}

float e2m3_to_float(uint8_t x) {
    return small_to_float(x, 2, 3, 1);
}

float e3m2_to_float(uint8_t x) {
    return small_to_float(x, 3, 2, 3);
}

float e2m1_to_float(uint8_t x) {
    return small_to_float(x, 2, 1, 1);
}

float ue4m3_to_float(uint8_t x) {
    return e4m3_to_float(x & 0x7f);
}

float ue8m0_to_float(uint8_t x) {
    if (x == 0xff) return float_of(0x7fffffff);
    return x ? float_of((uint32_t)x << 23) : float_of(0x00400000);
}

uint16_t ue8m0_to_bf16(uint8_t x) {
    if (x == 0xff) return 0x7fff;
    return x ? (uint16_t)(x << 7) : 0x0040;
}
