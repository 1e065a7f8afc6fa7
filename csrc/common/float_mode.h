/* The floating-point mode of a call: rounding to nearest, subnormal numbers kept. Results do not depend on the mode of
 * the thread that calls, nor on that of the thread that made a worker. */
#ifndef NVFP4_COMMON_FLOAT_MODE_H
#define NVFP4_COMMON_FLOAT_MODE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef uint32_t float_mode;
enum { OWN_FLOAT_MODE = 0x1F80 }; /* MXCSR: all exceptions are masked */

static inline float_mode set_float_mode(float_mode mode) {
    const float_mode before = _mm_getcsr();
    if (before != mode) _mm_setcsr(mode);
    return before;
}
#elif defined(__aarch64__)
typedef uint64_t float_mode;
enum { OWN_FLOAT_MODE = 0 }; /* FPCR */

static inline float_mode set_float_mode(float_mode mode) {
    float_mode before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before)::"memory");
    if (before != mode) __asm__ volatile("msr fpcr, %0" ::"r"(mode) : "memory");
    return before;
}
#else
typedef int float_mode;
enum { OWN_FLOAT_MODE = 0 };

static inline float_mode set_float_mode(float_mode mode) {
    return mode;
}
#endif

#endif
