/* Eight outputs at once: the vector types, and an operand of tensor_multiply prepared for them. */
#ifndef EMULATOR_TENSOR_LANES_H
#define EMULATOR_TENSOR_LANES_H

#include "tensor/arithmetic_rule.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

/* Without AVX-512, or AVX, gcc warns that passing such vectors depends on these options; they never leave this
 * library's own functions. */
#pragma GCC diagnostic ignored "-Wpsabi"

enum { MANY_BITS = 99, LANES = 8, MOST_ROWS = 256, MOST_K = 64, MOST_BLOCKS = 4 };

typedef float lanes_f32 __attribute__((vector_size(32)));
typedef int32_t lanes_s32 __attribute__((vector_size(32)));
typedef uint32_t lanes_u32 __attribute__((vector_size(32)));
typedef double lanes_f64 __attribute__((vector_size(64)));
typedef int64_t lanes_s64 __attribute__((vector_size(64)));

/* Rows of A or B in groups of eight, one row a lane, K (in the order of the fused sums) outside. */
typedef struct {
    lanes_f32 value[MOST_K];      /* relative to the row's largest exponent where sums are fused */
    lanes_s32 exponent[MOST_K];   /* as the hardware aligns by, relative likewise; see has_exponents */
    lanes_s32 largest[4];         /* per fused sum: the row's largest exponent, the block scale's added */
    lanes_s32 element_largest[4]; /* the same without the block scale */
    /* Per fused sum: every element is its row's 2^largest times a multiple of 2^-bits; MANY_BITS where that would
     * take more than 13. */
    int bits[4];
    lanes_f32 scale[MOST_BLOCKS];          /* significand of the block scale */
    lanes_s32 scale_exponent[MOST_BLOCKS]; /* and its exponent, -126 for a zero */
    lanes_s32 nan;                         /* all ones where every output of the row is NaN */
    lanes_s32 by_element; /* all ones where the row has infinities or exponents too far apart for fp32 */
    bool plain;           /* neither nan nor by_element anywhere */
    bool has_exponents;   /* filled in when a sum first needs them */
} row_group;

typedef struct {
    row_group group[MOST_ROWS / LANES];
} prepared_operand;

typedef struct {
    tensor_element type;
    const char *rows;
    ptrdiff_t stride;
    int count;
    const uint8_t *scales;
    ptrdiff_t scale_stride;
    bool negate;
} operand_source;

void tensor_prepare(prepared_operand *operand, const operand_source *source, const tensor_op *op, const sum_rule *rule);
void tensor_fill_exponents(row_group *group, tensor_element type, const tensor_op *op, const sum_rule *rule);

static inline lanes_s32 lanes_select(lanes_s32 mask, lanes_s32 yes, lanes_s32 no) {
    return (mask & yes) | (~mask & no);
}

static inline lanes_s32 lanes_max(lanes_s32 a, lanes_s32 b) {
#ifdef __AVX2__
    return (lanes_s32)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    return lanes_select(a > b, a, b);
#endif
}

static inline lanes_s32 lanes_min(lanes_s32 a, lanes_s32 b) {
#ifdef __AVX2__
    return (lanes_s32)_mm256_min_epi32((__m256i)a, (__m256i)b);
#else
    return lanes_select(a < b, a, b);
#endif
}

/* a * b + c. Only for sums that are exact in fp32, so that one rounding or two make no difference. */
static inline lanes_f32 lanes_multiply_add(lanes_f32 a, lanes_f32 b, lanes_f32 c) {
#ifdef __FMA__
    return (lanes_f32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static inline lanes_s32 lanes_all(int32_t x) {
    return (lanes_s32){x, x, x, x, x, x, x, x};
}

static inline lanes_f32 lanes_all_f32(float x) {
    return (lanes_f32){x, x, x, x, x, x, x, x};
}

/* Bit i is set where lane i is negative (a true comparison). */
static inline unsigned lanes_mask(lanes_s32 x) {
#ifdef __AVX2__
    return (unsigned)_mm256_movemask_ps((__m256)x);
#else
    unsigned mask = 0;
    for (int i = 0; i < LANES; i++) mask |= (unsigned)(x[i] < 0) << i;
    return mask;
#endif
}

/* 2^exponent in fp32, -126 .. 127, and in fp64, -1022 .. 1023. */
static inline lanes_f32 lanes_power(lanes_s32 exponent) {
    return (lanes_f32)((exponent + 127) << 23);
}

static inline lanes_f64 lanes_power_f64(lanes_s32 exponent) {
#ifdef __AVX512F__
    return (lanes_f64)_mm512_slli_epi64(_mm512_cvtepi32_epi64((__m256i)(exponent + 1023)), 52);
#else
    return (lanes_f64)((__builtin_convertvector(exponent, lanes_s64) + 1023) << 52);
#endif
}

/* Magnitudes of a format without specials to values. */
static inline lanes_f32 lanes_small_float(lanes_u32 magnitude, int mantissa_bits, int bias) {
    lanes_f32 normal = (lanes_f32)((magnitude << (23 - mantissa_bits)) + ((uint32_t)(127 - bias) << 23));
    lanes_s32 mantissa = (lanes_s32)(magnitude & ((1U << mantissa_bits) - 1));
    union {
        uint32_t bits;
        float value;
    } unit = {(uint32_t)(127 + 1 - bias - mantissa_bits) << 23};
    lanes_f32 subnormal = __builtin_convertvector(mantissa, lanes_f32) * unit.value;
    return (lanes_f32)lanes_select((lanes_s32)(magnitude >> mantissa_bits == 0), (lanes_s32)subnormal,
                                   (lanes_s32)normal);
}

#endif
