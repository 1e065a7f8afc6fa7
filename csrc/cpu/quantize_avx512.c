/* Rows of quantization with AVX-512 F, BW and VL: 16 blocks at a time. A vector of 16-bit values is two blocks. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")
#pragma GCC optimize("no-trapping-math")
#include "cpu/avx512.h"
#include "cpu/quantize.h"

typedef int32_t ints __attribute__((vector_size(64)));

static inline floats smaller(floats x, floats y) {
    return _mm512_min_ps(x, y);
}

static inline floats larger(floats x, floats y) {
    return _mm512_max_ps(x, y);
}

static inline int any(ints x) {
    return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0;
}

static inline ints min_unsigned(ints x, ints y) {
    return (ints)_mm512_min_epu32((__m512i)x, (__m512i)y);
}

#include "cpu/round_quotients.h"

static inline void store_bytes(uint8_t *to, ints x) {
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)x));
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

static inline __m512i max_words(__m512i x, __m512i y, int size) {
    if (size == 2) return _mm512_max_epu16(_mm512_unpacklo_epi16(x, y), _mm512_unpackhi_epi16(x, y));
    if (size == 4) return _mm512_max_epu16(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y));
    return _mm512_max_epu16(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
}

static inline __m512i max_dwords(__m512i x, __m512i y, int size) {
    if (size == 4) return _mm512_max_epu32(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y));
    if (size == 8) return _mm512_max_epu32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
    if (size == 16) return _mm512_max_epu32(_mm512_shuffle_i32x4(x, y, 0x44), _mm512_shuffle_i32x4(x, y, 0xEE));
    return _mm512_max_epu32(_mm512_shuffle_i32x4(x, y, 0x88), _mm512_shuffle_i32x4(x, y, 0xDD));
}

/* Every step puts two vectors' maxima beside each other, until a vector has those of all blocks. */
static inline __attribute__((always_inline)) floats amax_of_blocks(const char *x, const int type) {
    __m512i m[16];
    if (type == NVFP4_FP32) {
        for (int b = 0; b < 16; b++)
            m[b] = _mm512_and_si512(_mm512_loadu_si512(x + b * 64), _mm512_set1_epi32(INT32_MAX));
        for (int count = 8, size = 4; count > 0; count /= 2, size *= 2)
            for (int i = 0; i < count; i++) m[i] = max_dwords(m[2 * i], m[2 * i + 1], size);
        return _mm512_castsi512_ps(m[0]);
    }
    for (int i = 0; i < 8; i++) m[i] = _mm512_and_si512(_mm512_loadu_si512(x + i * 64), _mm512_set1_epi16(INT16_MAX));
    for (int count = 4, size = 2; count > 0; count /= 2, size *= 2)
        for (int i = 0; i < count; i++) m[i] = max_words(m[2 * i], m[2 * i + 1], size);
    __m512i all = _mm512_max_epu16(m[0], _mm512_shuffle_i32x4(m[0], m[0], 0xB1)); /* even blocks, then odd ones */
    __m128i even = _mm512_castsi512_si128(all), odd = _mm512_extracti32x4_epi32(all, 2);
    __m256i codes = _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
    return decode_16_bit(codes, type);
}

static inline floats round_values(floats magnitude, floats high, floats low) {
    const __m512 values = _mm512_setr_ps(2.0f, 3.0f, 4.0f, 6.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f,
                                         0.5f, 1.0f, 1.5f); /* of code - 4, modulo 16 */
    return _mm512_permutexvar_ps((__m512i)round_quotients(magnitude, high, low, 1), values);
}

/* 32 words, code - 4 each, and 32 with the signs. */
typedef struct words {
    __m512i codes, signs;
} words;

static inline __attribute__((always_inline)) words encode_two(const char *x, const int type, const float *high,
                                                              const float *low, const int saturate) {
    __m512 h[2] = {_mm512_set1_ps(high[0]), _mm512_set1_ps(high[1])};
    __m512 l[2] = {_mm512_set1_ps(low[0]), _mm512_set1_ps(low[1])};
    if (type == NVFP4_BF16) { /* even and odd values of pairs */
        __m512 both_h = _mm512_mask_mov_ps(h[0], 0xFF00, h[1]), both_l = _mm512_mask_mov_ps(l[0], 0xFF00, l[1]);
        __m512i pairs = _mm512_loadu_si512(x), magnitudes = _mm512_and_si512(pairs, _mm512_set1_epi16(INT16_MAX));
        __m512i lower = _mm512_slli_epi32(magnitudes, 16);
        __m512i upper = _mm512_slli_epi32(_mm512_srli_epi32(magnitudes, 16), 16);
        ints even = round_quotients((floats)lower, both_h, both_l, saturate);
        ints odd = round_quotients((floats)upper, both_h, both_l, saturate);
        return (words){_mm512_mask_blend_epi16(0xAAAAAAAA, (__m512i)even, _mm512_slli_epi32((__m512i)odd, 16)), pairs};
    }
    __m512i values[2], codes[2];
    for (int i = 0; i < 2; i++) {
        values[i] = _mm512_castps_si512(load_lanes(x + i * BLOCK * type_size(type), type));
        __m512i magnitude = _mm512_and_si512(values[i], _mm512_set1_epi32(INT32_MAX));
        codes[i] = _mm512_sub_epi32((__m512i)round_quotients((floats)magnitude, h[i], l[i], saturate),
                                    _mm512_set1_epi32(0x4B000000));
    }
    return (words){_mm512_packs_epi32(codes[0], codes[1]), _mm512_packs_epi32(values[0], values[1])};
}

/* Four blocks to 32 words of two codes each. */
static inline __m512i join(words x, words y) {
    __m512i codes = _mm512_packs_epi16(x.codes, y.codes), signs = _mm512_packs_epi16(x.signs, y.signs);
    __m512i offset = _mm512_mask_blend_epi8(_mm512_movepi8_mask(signs), _mm512_set1_epi8(4), _mm512_set1_epi8(12));
    return _mm512_maddubs_epi16(_mm512_add_epi8(codes, offset), _mm512_set1_epi16(0x1001));
}

static inline __attribute__((always_inline)) void encode_blocks(uint8_t *to, const char *x, const int type,
                                                                const float *high, const float *low, ints valid,
                                                                const int saturate) {
    /* The place of quarter q of block b: bf16 blocks have two quarters of a vector; packs has mixed two of others. */
    uint16_t order[32];
    for (int b = 0; b < 8; b++)
        for (int q = 0; q < 4; q++)
            order[b * 4 + q] = (uint16_t)(type == NVFP4_BF16 ? (b % 2 * 2 + q / 2) * 8 + b / 2 * 2 + q % 2 : q * 8 + b);
    const __m512i index = _mm512_loadu_si512(order);
    __mmask16 mask = _mm512_test_epi32_mask((__m512i)valid, (__m512i)valid);
    for (int half = 0; half < 2; half++) {
        words w[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            int b = half * 8 + i * 2;
            w[i] = encode_two(x + b * BLOCK * type_size(type), type, high + b, low + b, saturate);
        }
        __m512i codes = _mm512_packus_epi16(join(w[0], w[1]), join(w[2], w[3]));
        codes = _mm512_maskz_mov_epi64((__mmask8)(mask >> half * 8), _mm512_permutexvar_epi16(index, codes));
        _mm512_storeu_si512(to + half * 64, codes);
    }
}

/* --- decoding ----------------------------------------------------------------------------------------------------- */

static inline floats load_scale_values(const operand *x, int64_t row, int64_t block, int64_t blocks) {
    return decode_scales(load_scales(x, row, block, blocks), 1.0f);
}

/* The values of all codes under a scale. NaN has no sign: it is the scale's. */
static inline floats table_of(float scale, float g) {
    return _mm512_mul_ps(e2m1_table(scale), _mm512_set1_ps(g));
}

/* Two blocks, each with its half of the table. */
static inline void decode_to_16_bit(void *to, const uint8_t *codes, __m256i low, __m256i high) {
    __m512i table = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    __m512i pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
    __m512i index = _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi32(pairs, 12)), _mm512_set1_epi16(15));
    index = _mm512_mask_or_epi32(index, 0xFF00, index, _mm512_set1_epi16(16));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(index, table));
}

static inline __attribute__((always_inline)) void decode_blocks(char *to, const uint8_t *codes, floats scale, float g,
                                                                const int type) {
    float scales[16];
    _mm512_storeu_ps(scales, scale);
    if (type == NVFP4_FP32)
        for (int b = 0; b < 16; b++) _mm512_storeu_ps(to + b * 64, decode_codes(codes + b * 8, table_of(scales[b], g)));
    else
        for (int b = 0; b < 16; b += 2)
            decode_to_16_bit(to + b * 32, codes + b * 8, round_to_16_bit(table_of(scales[b], g), type),
                             round_to_16_bit(table_of(scales[b + 1], g), type));
}

#include "cpu/quantize_rows.h"

const quantize_kernel quantize_avx512 = QUANTIZE_ROWS;
#endif
