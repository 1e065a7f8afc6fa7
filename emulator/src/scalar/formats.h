/* Number formats: the conversions of PTX `cvt` between float/double and the 16-, 8-, 6- and 4-bit formats (PTX ISA
 * 9.7.9 "cvt"), one value at a time and without state. The caller packs results into registers.
 *
 * A conversion to a narrow format takes a rounding mode and flags. It rounds once, from the exact value, subnormals
 * included. NaN gives the format's only NaN, without sign or payload (f16 and bf16 0x7fff, tf32 0x7fffffff, e4m3 and
 * e5m2 0x7f, ue8m0 0xff); formats without NaN (e2m1, e2m3, e3m2) give their positive maximum. */
#ifndef EMULATOR_FORMATS_H
#define EMULATOR_FORMATS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    ROUND_RN,  /* to nearest, ties to even */
    ROUND_RZ,  /* toward zero */
    ROUND_RM,  /* toward minus infinity */
    ROUND_RP,  /* toward plus infinity */
    ROUND_RNA, /* to nearest, ties away from zero */
} rounding_mode;

enum {
    FORMAT_SATFINITE = 1, /* what overflows, infinity included, becomes the largest finite value of its sign */
    FORMAT_RELU = 2,      /* negative results become +0; NaN stays NaN */
};

/* A binary floating-point format; value = (-1)^sign * 1.mantissa * 2^(exponent - bias). */
typedef enum {
    SPECIALS_IEEE,     /* the highest exponent holds infinity (mantissa 0) and NaN */
    SPECIALS_NAN_ONLY, /* only the all-ones pattern is NaN, no infinity (e4m3) */
    SPECIALS_NONE,     /* every pattern is a number; overflow always saturates (e2m1, e2m3, e3m2) */
} format_specials;

typedef struct {
    int exponent_bits, mantissa_bits, bias;
    format_specials specials;
} float_format;

extern const float_format format_f64, format_f32, format_tf32, format_f16, format_bf16, format_e4m3, format_e5m2,
    format_e2m3, format_e3m2, format_e2m1;

/* The pattern of the number (-1)^negative * (significand + sticky/2) * 2^exponent, rounded once. `sticky` says that
 * the number lies strictly between significand and significand + 1 at a place that only directions and ties see;
 * significand then needs at least two bits more than the format's. A zero keeps its sign. */
uint64_t format_encode(const float_format *format, bool negative, uint64_t significand, int exponent, bool sticky,
                       rounding_mode rounding, int flags);
uint64_t format_from_double(const float_format *format, double x, rounding_mode rounding, int flags);

/* Integers to floating point, rounded once (cvt.rn.f32.u64 and its relatives). */
uint64_t format_from_int64(const float_format *format, int64_t x, rounding_mode rounding, int flags);
uint64_t format_from_uint64(const float_format *format, uint64_t x, rounding_mode rounding, int flags);

float f32_from_double(double x, rounding_mode rounding);
uint16_t f16_from_double(double x, rounding_mode rounding, int flags);
uint16_t bf16_from_double(double x, rounding_mode rounding, int flags);
uint16_t f16_from_float(float x, rounding_mode rounding, int flags);
uint16_t bf16_from_float(float x, rounding_mode rounding, int flags);
uint32_t tf32_from_float(float x, rounding_mode rounding, int flags); /* an f32 whose low 13 bits are 0 */
uint8_t e4m3_from_float(float x, rounding_mode rounding, int flags);
uint8_t e5m2_from_float(float x, rounding_mode rounding, int flags);
uint8_t e2m3_from_float(float x, rounding_mode rounding, int flags); /* bits 5..0 */
uint8_t e3m2_from_float(float x, rounding_mode rounding, int flags); /* bits 5..0 */
uint8_t e2m1_from_float(float x, rounding_mode rounding, int flags); /* bits 3..0 */
/* Only RZ and RP exist, and the sign is ignored: the power of two below or above |x|. */
uint8_t ue8m0_from_float(float x, rounding_mode rounding, int flags);

float f16_to_float(uint16_t x);  /* NaN becomes 0x7fffffff */
float bf16_to_float(uint16_t x); /* a shift: NaN keeps its payload */
float tf32_to_float(uint32_t x); /* what the tensor core reads: the low 13 bits do not count */
float e4m3_to_float(uint8_t x);
float e5m2_to_float(uint8_t x);
float e2m3_to_float(uint8_t x);  /* bits 7..6 do not count */
float e3m2_to_float(uint8_t x);  /* bits 7..6 do not count */
float e2m1_to_float(uint8_t x);  /* bits 7..4 do not count */
float ue4m3_to_float(uint8_t x); /* e4m3 whose sign bit does not count; 0x7f and 0xff are NaN */
float ue8m0_to_float(uint8_t x); /* 2^(x - 127); 0xff is NaN */
uint16_t ue8m0_to_bf16(uint8_t x);

#endif
