/* fp32 operations that round as they are written, and the bits of a float, under CUDA's names. Functions that host and
 * device code share use them, so that both give the same bits. A host file that shares such a function is compiled with
 * fp-contract=off (cpu/epilogue.h). */
#ifndef NVFP4_COMMON_FP32_H
#define NVFP4_COMMON_FP32_H

#ifdef __CUDACC__
#define HOST_DEVICE static __device__ __forceinline__
#else
#include <math.h>
#include <stdint.h>
#include <string.h>

/* A loop over a function that is called would not become vectors. */
#define HOST_DEVICE        static inline __attribute__((always_inline))
#define __fadd_rn(a, b)    ((a) + (b))
#define __fdiv_rn(a, b)    ((a) / (b))
#define __fmaf_rn(a, b, c) fmaf(a, b, c)
#define __fmul_rn(a, b)    ((a) * (b))
#define __frcp_rn(a)       (1.0f / (a))

HOST_DEVICE uint32_t __float_as_uint(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

HOST_DEVICE float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline float __fmul_rz(float a, float b) {
    double exact = (double)a * b;
    float nearest = (float)exact;
    return fabs(nearest) > fabs(exact) ? nextafterf(nearest, 0.0f) : nearest;
}
#endif

#endif
