/* Random numbers of a test that is one file: splitmix64, whose state a seed begins. */
#ifndef NVFP4_TESTS_DRAW_H
#define NVFP4_TESTS_DRAW_H

#include <stdint.h>

static uint64_t state;

static inline uint64_t draw(void) {
    uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

static inline int64_t below(int64_t n) {
    return (int64_t)(draw() % (uint64_t)n);
}

#endif
