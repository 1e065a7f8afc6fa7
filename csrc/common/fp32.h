/* fp32 operations that round as they are written, under CUDA's names, for functions that host and device code share:
 * both then give the same bits. A host file that includes this is compiled with fp-contract=off (cpu/epilogue.h). */
#ifndef NVFP4_COMMON_FP32_H
#define NVFP4_COMMON_FP32_H

#ifdef __CUDACC__
#define HOST_DEVICE static __device__ __forceinline__
#else
#include <math.h>
/* A loop over a function that is called would not become vectors. */
#define HOST_DEVICE        static inline __attribute__((always_inline))
#define __fadd_rn(a, b)    ((a) + (b))
#define __fdiv_rn(a, b)    ((a) / (b))
#define __fmaf_rn(a, b, c) fmaf(a, b, c)
#define __fmul_rn(a, b)    ((a) * (b))
#define __frcp_rn(a)       (1.0f / (a))
static inline float __fmul_rz(float a, float b) {
    double exact = (double)a * b;
    float nearest = (float)exact;
    return fabs(nearest) > fabs(exact) ? nextafterf(nearest, 0.0f) : nearest;
}
#endif

#endif
