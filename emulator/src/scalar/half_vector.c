/* add, sub, mul and fma of f16 and bf16 for a whole warp, computed in fp32 with the bits of half.c.
 *
 * A sum or product of two f16 that is rounded to fp32 and then to f16 equals one rounding, since 24 >= 2 * 11 + 2
 * bits. The same holds for bf16 except at the ends of fp32's range. For fma the product is exact in fp32, and the
 * sum is rounded to odd with the help of an error-free sum. */
#include <math.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "scalar/formats.h"
#include "scalar/half.h"

static inline float float_from(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint32_t bits_from(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void widen(const uint16_t *from, float *to, int brain, uint32_t mode) {
    uint16_t flushed[HALVES];
    if (mode & HALF_FTZ) {
        for (int i = 0; i < HALVES; i++) flushed[i] = from[i] & 0x7c00 ? from[i] : from[i] & 0x8000;
        from = flushed;
    }
    if (brain) {
        for (int i = 0; i < HALVES; i++) to[i] = float_from((uint32_t)from[i] << 16);
        return;
    }
#ifdef __F16C__
    for (int i = 0; i < HALVES; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#else
    for (int i = 0; i < HALVES; i++) to[i] = f16_to_float(from[i]);
#endif
}

/* To nearest, ties to even; not for NaN. */
static void narrow(const float *from, uint16_t *to, int brain) {
    if (brain) {
        for (int i = 0; i < HALVES; i++) {
            uint32_t bits = bits_from(from[i]);
            to[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
        return;
    }
#ifdef __F16C__
    for (int i = 0; i < HALVES; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < HALVES; i++) to[i] = f16_from_double(from[i], ROUND_RN, 0);
#endif
}

/* Whether bf16's products are exact in fp32: neither tiny, unless a factor is zero, nor huge. */
static int products_fit(const float *x, const float *y) {
    int wrong = 0;
    for (int i = 0; i < HALVES; i++) {
        float size = fabsf(x[i] * y[i]);
        wrong |= !((size >= 0x1p-100f) & (size <= 0x1p100f)) & (x[i] != 0) & (y[i] != 0);
    }
    return !wrong;
}

static int all_small(const float *x) {
    int wrong = 0;
    for (int i = 0; i < HALVES; i++) wrong |= !(fabsf(x[i]) <= 0x1p100f);
    return !wrong;
}

static void add_to_odd(const float *x, const float *y, const float *z, float *r) {
    for (int i = 0; i < HALVES; i++) {
        float p = x[i] * y[i], c = z[i], s = p + c, c_held = s - p, p_held = s - c_held;
        float error = (p - p_held) + (c - c_held);
        uint32_t bits = bits_from(s), finite = (bits & 0x7f800000) != 0x7f800000;
        uint32_t adjust = finite & (error != 0) & ~bits & 1;
        uint32_t away = (error > 0) == (s > 0);
        r[i] = float_from(bits + (adjust & away) - (adjust & (away ^ 1)));
    }
}

int half_vector(half_operation op, uint32_t mode, int brain, const uint16_t *a, const uint16_t *b, const uint16_t *c,
                uint16_t *out) {
    float x[HALVES], y[HALVES], z[HALVES], r[HALVES];
    widen(a, x, brain, mode);
    widen(b, y, brain, mode);
    if (brain && op >= HALF_MUL && !products_fit(x, y)) return 0;
    switch (op) {
    case HALF_ADD:
        for (int i = 0; i < HALVES; i++) r[i] = x[i] + y[i];
        break;
    case HALF_SUB:
        for (int i = 0; i < HALVES; i++) r[i] = x[i] - y[i];
        break;
    case HALF_MUL:
        for (int i = 0; i < HALVES; i++) r[i] = x[i] * y[i];
        break;
    case HALF_FMA:
        widen(c, z, brain, mode);
        if (brain && !all_small(z)) return 0;
        add_to_odd(x, y, z, r);
        break;
    }
    if (mode & HALF_FTZ)
        for (int i = 0; i < HALVES; i++) r[i] = fabsf(r[i]) < TINY_F16 ? copysignf(0, r[i]) : r[i];
    narrow(r, out, brain);
    uint16_t one = brain ? 0x3f80 : 0x3c00, tiny = brain ? 0x7f80 : 0x7c00;
    if (mode & HALF_FTZ)
        for (int i = 0; i < HALVES; i++) out[i] = out[i] & tiny ? out[i] : out[i] & 0x8000;
    if (mode & (HALF_SAT | HALF_RELU))
        for (int i = 0; i < HALVES; i++) out[i] = out[i] >> 15 ? 0 : out[i];
    if (mode & HALF_SAT)
        for (int i = 0; i < HALVES; i++) out[i] = out[i] > one ? one : out[i];
    for (int i = 0; i < HALVES; i++) {
        uint16_t nan = mode & HALF_SAT ? 0 : NAN_HALF;
        out[i] = r[i] != r[i] ? nan : out[i];
    }
    return 1;
}
