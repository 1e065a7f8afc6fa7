/* Rounds quotients to e2m1 by vectors. quantize_avx2.c and quantize_avx512.c include this once, after they have defined
 * `ints`, a vector of LANES int32, and `min_unsigned`, the lesser of two as uint32.
 *
 * A quotient q of 0 to 6 is rounded by two additions: near 2^23 the last bit of a float is worth 1/2 below and 1 above,
 * so with code = 0 .. 7 and 2^23 standing for code 4,
 *
 *   q + (2^23 - 2)       is right up to 4, and not less than the other above
 *   q / 2 + 2^23         is right from 4 on, and not less than the other below
 *
 * The lesser of their bits is 2^23's and code - 4. */
#ifndef NVFP4_CPU_ROUND_QUOTIENTS_H
#define NVFP4_CPU_ROUND_QUOTIENTS_H

/* 2^23 and code - 4 of magnitudes times high + low, a reciprocal. saturate: quotients may be 7 and more, then as bits
 * NaN and infinities of any sign are above them. */
static inline __attribute__((always_inline)) ints round_quotients(floats magnitude, floats high, floats low,
                                                                  const int saturate) {
    const floats q = fused(magnitude, high, magnitude * low);
    const floats below = q + (0x1p23f - 2), above = fused(q, broadcast(0.5f), broadcast(0x1p23f));
    const ints rounded = min_unsigned((ints)below, (ints)above);
    return saturate ? min_unsigned(rounded, (ints)broadcast(0x1p23f + 3)) : rounded;
}

#endif
