/* Functions of the AVX-512 kernels. avx2.h has most of the same names for AVX2, which code for either uses. */
#ifndef NVFP4_CPU_AVX512_H
#define NVFP4_CPU_AVX512_H

#include <immintrin.h>

#include "cpu/gemm.h"

enum { LANES = 16, MAX_ROWS_AT_ONCE = 4 };

typedef __m512 floats;
typedef __m256i halves; /* LANES values of 16 bits */

static inline floats broadcast(float x) {
    return _mm512_set1_ps(x);
}

static inline floats fused(floats x, floats y, floats sum) {
    return _mm512_fmadd_ps(x, y, sum);
}

/* Several rows at a time share the loads of the vectors, and the cache lines of scales in the 128x4 layout. */
static inline int rows_at_once(int count) {
    return count <= 2 ? 4 : count <= 4 ? 2 : 1;
}

/* The low `count` bits, count clipped to 0 .. 32. */
static inline __mmask32 low_bits(int64_t count) {
    return count >= 32 ? 0xFFFFFFFF : count <= 0 ? 0 : (1u << count) - 1;
}

/* 16 scale bytes of a row from a block (a multiple of 4) on; zeros past the last. Never reads past the last scale, or
 * in the 128x4 layout past the last whole group of 4. */
static inline __m128i load_scales(const operand *x, int64_t row, int64_t block, int64_t blocks) {
    const uint8_t *from = x->scale + scale_offset(x->scale_layout, x->scale_pitch, row, block);
    __mmask16 valid = (__mmask16)low_bits(blocks);
    if (x->scale_layout == NVFP4_LINEAR) return _mm_maskz_loadu_epi8(valid, from);
    if (blocks >= 16)
        return _mm_unpacklo_epi64(_mm_unpacklo_epi32(_mm_loadu_si32(from), _mm_loadu_si32(from + 512)),
                                  _mm_unpacklo_epi32(_mm_loadu_si32(from + 1024), _mm_loadu_si32(from + 1536)));
    uint32_t groups[4] = {0};
    for (int64_t i = 0; i < 4 && i * 4 < blocks; i++) memcpy(groups + i, from + i * 512, 4);
    return _mm_maskz_mov_epi8(valid, _mm_loadu_si128((const __m128i *)groups));
}

/* e4m3 without its sign, seven bits to the left, is the fp16 of value / 256, subnormals included. */
static inline halves scales_as_fp16(__m128i codes) {
    return _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 7), _mm256_set1_epi16(0x3F80));
}

/* Whether one of these is that of NaN. */
static inline int any_nan(halves scales) {
    return _mm256_cmpeq_epi16_mask(scales, _mm256_set1_epi16(0x3F80)) != 0;
}

static inline __m512 decode_scales(__m128i codes, float factor) {
    __m256i half = scales_as_fp16(codes);
    __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f * factor));
    __mmask16 nan = _mm256_cmpeq_epi16_mask(half, _mm256_set1_epi16(0x3F80));
    return _mm512_mask_mov_ps(value, nan, _mm512_set1_ps(NAN));
}

/* 16 rows of four dwords, `pitch` bytes apart, to four vectors of 16 lanes. */
static inline void transpose(__m512i to[4], const char *from, size_t pitch) {
    __m512i rows[4];
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(from + (size_t)i * pitch)));
        rows[i] = _mm512_inserti32x4(rows[i], _mm_loadu_si128((const __m128i *)(from + (size_t)(i + 4) * pitch)), 1);
        rows[i] = _mm512_inserti32x4(rows[i], _mm_loadu_si128((const __m128i *)(from + (size_t)(i + 8) * pitch)), 2);
        rows[i] = _mm512_inserti32x4(rows[i], _mm_loadu_si128((const __m128i *)(from + (size_t)(i + 12) * pitch)), 3);
    }
    __m512i low01 = _mm512_unpacklo_epi32(rows[0], rows[1]), high01 = _mm512_unpackhi_epi32(rows[0], rows[1]);
    __m512i low23 = _mm512_unpacklo_epi32(rows[2], rows[3]), high23 = _mm512_unpackhi_epi32(rows[2], rows[3]);
    to[0] = _mm512_unpacklo_epi64(low01, low23);
    to[1] = _mm512_unpackhi_epi64(low01, low23);
    to[2] = _mm512_unpacklo_epi64(high01, high23);
    to[3] = _mm512_unpackhi_epi64(high01, high23);
}

/* LANES rows of 16 floats, `pitch` bytes apart, to 16 vectors. */
static inline void transpose_16(floats to[16], const float *rows, size_t pitch) {
    for (int k = 0; k < 16; k += 4) transpose((__m512i *)to + k, (const char *)(rows + k), pitch);
}

/* The values of all codes, times a factor. */
static inline floats e2m1_table(float factor) {
    const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                                         -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_mul_ps(values, _mm512_set1_ps(factor));
}

/* 16 codes; vpermps ignores all but the low 4 bits of an index. */
static inline floats decode_codes(const uint8_t *codes, floats table) {
    const __m512i word = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    __m512i words = _mm512_permutexvar_epi32(word, _mm512_castsi128_si512(_mm_loadu_si64(codes)));
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), table);
}

/* 16 codes of a 16-bit type as floats. */
static inline floats decode_16_bit(__m256i codes, int32_t type) {
    if (type == NVFP4_FP16) return _mm512_cvtph_ps(codes);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16));
}

/* 16 values of a type as floats, and floats rounded to a type. */
static inline floats load_lanes(const void *from, int32_t type) {
    if (type == NVFP4_FP32) return _mm512_loadu_ps(from);
    return decode_16_bit(_mm256_loadu_si256(from), type);
}

/* Rounds to nearest even. A NaN keeps its upper bits, made quiet. VCVTNEPS2BF16 would make subnormal numbers 0. */
static inline __m256i round_to_bf16(__m512 x) {
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

static inline __m256i round_to_16_bit(floats x, int32_t type) {
    return type == NVFP4_FP16 ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT) : round_to_bf16(x);
}

static inline void store_lanes(void *to, floats x, int32_t type) {
    if (type == NVFP4_FP32)
        _mm512_storeu_ps(to, x);
    else
        _mm256_storeu_si256(to, round_to_16_bit(x, type));
}

static inline float add_lanes(floats x) {
    return _mm512_reduce_add_ps(x);
}

#endif
