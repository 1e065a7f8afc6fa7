/* Functions of the AVX2 kernels. avx512.h has most of the same names for AVX-512, which code for either uses. */
#ifndef NVFP4_CPU_AVX2_H
#define NVFP4_CPU_AVX2_H

#include <immintrin.h>

#include "cpu/gemm.h"

enum { LANES = 8, MAX_ROWS_AT_ONCE = 1 };

typedef __m256 floats;
typedef __m128i halves; /* LANES values of 16 bits */

static inline floats broadcast(float x) {
    return _mm256_set1_ps(x);
}

static inline floats fused(floats x, floats y, floats sum) {
    return _mm256_fmadd_ps(x, y, sum);
}

static inline int rows_at_once(int count) {
    (void)count;
    return 1;
}

/* 8 scale bytes of a row from a block (a multiple of 4) on; zeros past the last. Never reads past the last scale, or
 * in the 128x4 layout past the last whole group of 4. */
static inline __m128i load_scales(const operand *x, int64_t row, int64_t block, int64_t blocks) {
    const uint8_t *from = x->scale + scale_offset(x->scale_layout, x->scale_pitch, row, block);
    uint8_t codes[8] = {0};
    if (blocks >= 8) {
        if (x->scale_layout == NVFP4_LINEAR) return _mm_loadu_si64(from);
        return _mm_unpacklo_epi32(_mm_loadu_si32(from), _mm_loadu_si32(from + 512));
    }
    for (int64_t i = 0; i < blocks; i++)
        codes[i] = x->scale_layout == NVFP4_LINEAR ? from[i] : from[i / 4 * 512 + i % 4];
    return _mm_loadu_si64(codes);
}

/* e4m3 without its sign, seven bits to the left, is the fp16 of value / 256, subnormals included. */
static inline halves scales_as_fp16(__m128i codes) {
    return _mm_and_si128(_mm_slli_epi16(_mm_cvtepu8_epi16(codes), 7), _mm_set1_epi16(0x3F80));
}

/* Whether one of these is that of NaN. */
static inline int any_nan(halves scales) {
    __m128i nan = _mm_cmpeq_epi16(scales, _mm_set1_epi16(0x3F80));
    return !_mm_testz_si128(nan, nan);
}

static inline floats decode_scales(__m128i codes, float factor) {
    __m128i half = scales_as_fp16(codes);
    __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f * factor));
    __m256i nan = _mm256_cvtepi16_epi32(_mm_cmpeq_epi16(half, _mm_set1_epi16(0x3F80)));
    return _mm256_or_ps(value, _mm256_castsi256_ps(nan)); /* all ones is a NaN */
}

/* 8 rows of four dwords, `pitch` bytes apart, to four vectors of 8 lanes. */
static inline void transpose(__m256i to[4], const char *from, size_t pitch) {
    __m256i rows[4];
    for (int i = 0; i < 4; i++)
        rows[i] = _mm256_loadu2_m128i((const __m128i *)(from + (size_t)(i + 4) * pitch),
                                      (const __m128i *)(from + (size_t)i * pitch));
    __m256i low01 = _mm256_unpacklo_epi32(rows[0], rows[1]), high01 = _mm256_unpackhi_epi32(rows[0], rows[1]);
    __m256i low23 = _mm256_unpacklo_epi32(rows[2], rows[3]), high23 = _mm256_unpackhi_epi32(rows[2], rows[3]);
    to[0] = _mm256_unpacklo_epi64(low01, low23);
    to[1] = _mm256_unpackhi_epi64(low01, low23);
    to[2] = _mm256_unpacklo_epi64(high01, high23);
    to[3] = _mm256_unpackhi_epi64(high01, high23);
}

/* LANES rows of 16 floats, `pitch` bytes apart, to 16 vectors. */
static inline void transpose_16(floats to[16], const float *rows, size_t pitch) {
    for (int k = 0; k < 16; k += 4) transpose((__m256i *)to + k, (const char *)(rows + k), pitch);
}

/* The values of 8 codes. magnitudes: of a code without bit 3. signs: INT32_MIN, or 0 for values without a sign. */
static inline floats decode_codes(const uint8_t *codes, floats magnitudes, __m256i signs) {
    int word;
    memcpy(&word, codes, 4);
    __m256i index = _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    __m256i sign = _mm256_and_si256(_mm256_slli_epi32(index, 28), signs);
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, index), _mm256_castsi256_ps(sign));
}

/* `from`, or if fewer than 8 blocks exist a copy of them with zeros behind. */
static inline __attribute__((always_inline)) const uint8_t *whole_group(uint8_t copy[64], const uint8_t *from,
                                                                        int64_t blocks) {
    if (blocks < 8) {
        memset(copy, 0, 64);
        memcpy(copy, from, (size_t)blocks * 8);
        from = copy;
    }
    return from;
}

/* 8 codes of a 16-bit type as floats. */
static inline floats decode_16_bit(__m128i codes, int32_t type) {
    if (type == NVFP4_FP16) return _mm256_cvtph_ps(codes);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
}

/* 8 values of a type as floats, and floats rounded to a type. */
static inline floats load_lanes(const void *from, int32_t type) {
    if (type == NVFP4_FP32) return _mm256_loadu_ps(from);
    return decode_16_bit(_mm_loadu_si128(from), type);
}

/* Rounds to nearest even; the upper half is bf16. A NaN keeps its upper bits, made quiet. */
static inline __m256i round_to_bf16(__m256 x) {
    __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan));
}

static inline void store_lanes(void *to, __m256 x, int32_t type) {
    if (type == NVFP4_FP32) {
        _mm256_storeu_ps(to, x);
    } else if (type == NVFP4_FP16) {
        _mm_storeu_si128(to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    } else {
        __m256i words = _mm256_srli_epi32(round_to_bf16(x), 16);
        words = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
        _mm_storeu_si128(to, _mm256_castsi256_si128(words));
    }
}

static inline float add_lanes(__m256 x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#endif
