/* silu(x) = x / (1 + exp(-x)) in fp32 by defined operations, for host and device code, so that both give the same bits.
 *
 *   c = x, or -86 for less            m = c, or 87 for more or NaN
 *   z = -m log2(e), n = z to the nearest integer, r = z - n; z is used as it is before it is rounded
 *   exp(-m) = 2^n p(r), p the minimax polynomial of degree 5 of the relative error of 2^r, 1.8 * 2^-24
 *   silu(x) = c * (1 / (1 + exp(-m)))
 *
 * silu is at most 4 ulp off for x > -1, and 4 + |x| / 3 ulp down to -86: that much comes of a quarter of an ulp of x
 * (tests/core/test_exponential.c). Below -86 it is silu(-86) = -3.9e-36. */
#ifndef NVFP4_COMMON_EXPONENTIAL_H
#define NVFP4_COMMON_EXPONENTIAL_H

#include "common/fp32.h"

#ifdef __CUDACC__
/* 1 / d to nearest for 1 <= d < 2^126: __frcp_rn without the branch for other numbers. */
HOST_DEVICE float reciprocal_from_1(float d) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
}
#else
#define reciprocal_from_1(d) (1.0f / (d))
#endif

/* silu(x) = c * sigmoid. */
HOST_DEVICE float silu_limited(float x) {
    return x < -86.0f ? -86.0f : x;
}

HOST_DEVICE float sigmoid(float c) {
    const float shift = 0x1.8p23f; /* the last bit of a float near it is worth 1 */
    float m = c < 87.0f ? c : 87.0f;
    float shifted = __fmaf_rn(m, -0x1.715476p0f, shift), n = __fadd_rn(shifted, -shift);
    float r = __fmaf_rn(m, -0x1.715476p0f, -n), p = 0x1.5bb9fcp-10f;
    p = __fmaf_rn(p, r, 0x1.3cea9ep-7f);
    p = __fmaf_rn(p, r, 0x1.c6b754p-5f);
    p = __fmaf_rn(p, r, 0x1.ebf9bcp-3f);
    p = __fmaf_rn(p, r, 0x1.62e42ap-1f);
    p = __fmaf_rn(p, r, 1.0f);
    float power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3F800000u); /* 2^n */
    return reciprocal_from_1(__fmaf_rn(p, power, 1.0f));
}

HOST_DEVICE float silu(float x) {
    float c = silu_limited(x);
    return __fmul_rn(c, sigmoid(c));
}

#endif
