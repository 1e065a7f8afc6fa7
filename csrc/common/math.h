/* Arithmetic of plans and checks, in C11 and in C++17. */
#ifndef NVFP4_COMMON_MATH_H
#define NVFP4_COMMON_MATH_H

#include <math.h>
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

/* The time that two resources take which work at once, of the times that they take alone; both >= 0. They hinder each
 * other where these are alike: the more, the smaller p. */
static inline double overlapped(double a, double b, double p) {
    const double longer = max_double(a, b), shorter = a > b ? b : a;
    return longer > 0 ? longer * pow(1.0 + pow(shorter / longer, p), 1.0 / p) : 0.0;
}

#endif
