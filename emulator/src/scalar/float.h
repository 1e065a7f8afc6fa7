/* f32 and f64 as the handlers of float.c and float_functions.c treat them. */
#ifndef EMULATOR_FLOAT_H
#define EMULATOR_FLOAT_H

#include "scalar/lanes.h"

#define NAN_F32 0x7fffffffu
#define NAN_F64 0xfff8000000000000u

enum { FTZ = 1, SAT = 2 }; /* in->mode */

/* .ftz asks whether a result would be subnormal if exponents had no end (so an H200 does it): not what rounds to 2^-126
 * with 24 bits, but also what only the coarser grid of subnormal numbers rounds to 2^-126. Magnitudes that are flushed:
 * below the first one when rounded to nearest (the tie goes up), up to the second one when rounded away from zero. */
#define TINY_TO_NEAREST (0x1p-126 * (1 - 0x1p-25))
#define TINY_AWAY       (0x1p-126 * (1 - 0x1p-24))

static inline uint32_t is_nan(uint32_t x) {
    return (x & 0x7fffffff) > 0x7f800000;
}
static inline uint32_t canonical(uint32_t x) {
    return is_nan(x) ? NAN_F32 : x;
}
/* To [0, 1]: negative numbers, -0 and NaN become +0. */
static inline uint32_t saturate(uint32_t x) {
    return x >> 31 || is_nan(x) ? 0 : x > 0x3f800000 ? 0x3f800000 : x;
}
static inline uint32_t finish(uint32_t x, uint32_t mode) {
    x = canonical(x);
    if (mode & FTZ) x = flush_f32(x);
    if (mode & SAT) x = saturate(x);
    return x;
}
static inline uint32_t operand_bits(uint32_t x, uint32_t mode) {
    return mode & FTZ ? flush_f32(x) : x;
}
static inline float operand_f32(uint32_t x, uint32_t mode) {
    return float_of(operand_bits(x, mode));
}

static inline uint64_t is_nan_f64(uint64_t x) {
    return (x & INT64_MAX) > 0x7ff0000000000000;
}
static inline uint64_t quiet(uint64_t x) {
    return x | 0x0008000000000000;
}

/* div, rcp and sqrt are approximations too: float_functions.c. 0 if .approx and .full are not among the modifiers. */
int decode_approximation(decoder *d);
decode_function decode_float_abs, decode_float_neg, decode_float_min, decode_float_max, decode_testp, decode_copysign;

#endif
