/* Rows of the steps around experts with AVX2, FMA and F16C. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#pragma GCC optimize("no-trapping-math")
#include "cpu/avx2.h"
#include "cpu/moe.h"

static inline void load_row(float *to, const char *from, int32_t type, int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, load_lanes(from + i * type_size(type), type));
    load_floats(to + i, from + i * type_size(type), type, count - i);
}

static inline void store_row(char *to, const float *from, int32_t type, int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) store_lanes(to + i * type_size(type), _mm256_loadu_ps(from + i), type);
    store_floats(to + i * type_size(type), from + i, type, count - i);
}

#include "cpu/moe_rows.h"

const moe_kernel moe_avx2 = {.gated = gated_row, .combine = combine_row};

#endif
