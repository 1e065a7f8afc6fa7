/* Arithmetic of plans and checks, in C11 and in C++17. */
#ifndef NVFP4_COMMON_MATH_H
#define NVFP4_COMMON_MATH_H

#include <stdint.h>

/* a / b rounded up; a >= 0, b > 0. Does not overflow. */
static inline int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b > 0);
}

static inline int64_t min_int(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t max_int(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline double max_double(double a, double b) {
    return a > b ? a : b;
}

#endif
