/* Rows of quantization with AVX2, FMA and F16C: 8 blocks at a time. Encoding keeps 16 bits a value where it can. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#pragma GCC optimize("no-trapping-math")
#include "cpu/avx2.h"
#include "cpu/quantize.h"

typedef int32_t ints __attribute__((vector_size(32)));

static inline floats smaller(floats x, floats y) {
    return _mm256_min_ps(x, y);
}

static inline floats larger(floats x, floats y) {
    return _mm256_max_ps(x, y);
}

static inline int any(ints x) {
    return !_mm256_testz_si256((__m256i)x, (__m256i)x);
}

static inline ints min_unsigned(ints x, ints y) {
    return (ints)_mm256_min_epu32((__m256i)x, (__m256i)y);
}

#include "cpu/round_quotients.h"

static inline __m256i load(const void *from) {
    return _mm256_loadu_si256(from);
}

static inline __m256i upper_halves(__m256i pairs) {
    return _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xFFFF0000));
}

static inline void store_bytes(uint8_t *to, ints x) { /* of 0 .. 127 */
    __m128i half = _mm256_extracti128_si256((__m256i)x, 1);
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)x), half);
    _mm_storeu_si64(to, _mm_packs_epi16(words, words));
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

static inline __m256i max_16(__m256i x, __m256i y) {
    return _mm256_max_epu16(_mm256_unpacklo_epi16(x, y), _mm256_unpackhi_epi16(x, y));
}
static inline __m256i max_32(__m256i x, __m256i y, int size) {
    if (size == 4) return _mm256_max_epu32(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
    return _mm256_max_epu32(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y));
}
static inline __m256i max_words(__m256i x, __m256i y, int size) {
    if (size == 4) return _mm256_max_epu16(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
    return _mm256_max_epu16(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y));
}

/* Every step puts two vectors' maxima beside each other, until a vector has those of all blocks. */
static inline __attribute__((always_inline)) floats amax_of_blocks(const char *x, const int type) {
    __m256i m[8];
    if (type == NVFP4_FP32) {
        const __m256i magnitude = _mm256_set1_epi32(INT32_MAX);
        for (int b = 0; b < 8; b++)
            m[b] = _mm256_max_epu32(_mm256_and_si256(load(x + b * 64), magnitude),
                                    _mm256_and_si256(load(x + b * 64 + 32), magnitude));
        for (int i = 0; i < 4; i++) m[i] = max_32(m[2 * i], m[2 * i + 1], 4);
        for (int i = 0; i < 2; i++) m[i] = max_32(m[2 * i], m[2 * i + 1], 8);
        return _mm256_castsi256_ps(
            _mm256_max_epu32(_mm256_permute2x128_si256(m[0], m[1], 0x20), _mm256_permute2x128_si256(m[0], m[1], 0x31)));
    }
    for (int b = 0; b < 8; b++) m[b] = _mm256_and_si256(load(x + b * 32), _mm256_set1_epi16(INT16_MAX));
    for (int i = 0; i < 4; i++) m[i] = max_16(m[2 * i], m[2 * i + 1]);
    for (int i = 0; i < 2; i++) m[i] = max_words(m[2 * i], m[2 * i + 1], 4);
    __m256i all = max_words(m[0], m[1], 8);
    __m128i codes = _mm_max_epu16(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    return decode_16_bit(codes, type);
}

static inline floats round_values(floats magnitude, floats high, floats low) {
    const __m256 values = _mm256_setr_ps(2.0f, 3.0f, 4.0f, 6.0f, 0.0f, 0.5f, 1.0f, 1.5f); /* of code - 4, modulo 8 */
    return _mm256_permutevar8x32_ps(values, (__m256i)round_quotients(magnitude, high, low, 1));
}

/* 16 words, code - 4 each, and 16 with the signs. */
typedef struct words {
    __m256i codes, signs;
} words;

static inline __attribute__((always_inline)) words encode_block(const char *x, const int type, float h, float l,
                                                                const int saturate) {
    const __m256 high = _mm256_set1_ps(h), low = _mm256_set1_ps(l);
    if (type == NVFP4_BF16) { /* even and odd values of pairs */
        __m256i pairs = load(x), magnitudes = _mm256_and_si256(pairs, _mm256_set1_epi16(INT16_MAX));
        ints even = round_quotients((floats)_mm256_slli_epi32(magnitudes, 16), high, low, saturate);
        ints odd = round_quotients((floats)upper_halves(magnitudes), high, low, saturate);
        return (words){_mm256_blend_epi16((__m256i)even, _mm256_slli_epi32((__m256i)odd, 16), 0xAA), pairs};
    }
    __m256i values[2], codes[2];
    for (int i = 0; i < 2; i++) {
        values[i] = _mm256_castps_si256(load_lanes(x + i * 8 * type_size(type), type));
        __m256i magnitude = _mm256_and_si256(values[i], _mm256_set1_epi32(INT32_MAX));
        codes[i] = _mm256_sub_epi32((__m256i)round_quotients((floats)magnitude, high, low, saturate),
                                    _mm256_set1_epi32(0x4B000000));
    }
    return (words){_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(values[0], values[1])};
}

/* Two blocks to 16 words of two codes each. */
static inline __m256i join(words x, words y) {
    __m256i codes = _mm256_packs_epi16(x.codes, y.codes), signs = _mm256_packs_epi16(x.signs, y.signs);
    codes = _mm256_add_epi8(codes, _mm256_blendv_epi8(_mm256_set1_epi8(4), _mm256_set1_epi8(12), signs));
    return _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001));
}

static inline __attribute__((always_inline)) void encode_blocks(uint8_t *to, const char *x, const int type,
                                                                const float *high, const float *low, ints valid,
                                                                const int saturate) {
    /* The halves of a vector hold the halves of the blocks, or of 16-bit and fp32 values that packs has mixed the
     * quarters 0, 2 and 1, 3. */
    const __m256i order = _mm256_broadcastsi128_si256(
        type == NVFP4_BF16 ? _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)
                           : _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    __m128i mask[2] = {_mm256_castsi256_si128((__m256i)valid), _mm256_extracti128_si256((__m256i)valid, 1)};
    for (int half = 0; half < 2; half++) {
        words w[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            int b = half * 4 + i;
            w[i] = encode_block(x + b * BLOCK * type_size(type), type, high[b], low[b], saturate);
        }
        __m256i codes = _mm256_packus_epi16(join(w[0], w[1]), join(w[2], w[3]));
        codes = _mm256_shuffle_epi8(_mm256_permute4x64_epi64(codes, 0xD8), order);
        codes = _mm256_and_si256(codes, _mm256_cvtepi32_epi64(mask[half]));
        _mm256_storeu_si256((__m256i *)(to + half * 32), codes);
    }
}

/* --- decoding ----------------------------------------------------------------------------------------------------- */

static inline floats load_scale_values(const operand *x, int64_t row, int64_t block, int64_t blocks) {
    __m256 value = decode_scales(load_scales(x, row, block, blocks), 1.0f);
    return _mm256_blendv_ps(value, _mm256_set1_ps(NAN), _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

/* 16 blocks' values are looked up: a block has 8 magnitudes. NaN has no sign. */
static inline void decode_to_floats(float *to, const uint8_t *codes, float scale, float g) {
    const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    __m256 table = _mm256_mul_ps(_mm256_mul_ps(magnitudes, _mm256_set1_ps(scale)), _mm256_set1_ps(g));
    __m256i signs = _mm256_set1_epi32(isnan(scale) ? 0 : INT32_MIN);
    for (int i = 0; i < 2; i++) _mm256_storeu_ps(to + i * 8, decode_codes(codes + i * 4, table, signs));
}

/* Two blocks, a half of each vector each: tables of the low bytes and of the high ones. */
static inline __attribute__((always_inline)) void decode_to_16_bit(char *to, const uint8_t *codes, __m256 scale,
                                                                   __m256 g, const int type) {
    const __m256 magnitudes[2] = {_mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 0.0f, 0.5f, 1.0f, 1.5f),
                                  _mm256_setr_ps(2.0f, 3.0f, 4.0f, 6.0f, 2.0f, 3.0f, 4.0f, 6.0f)};
    __m256 values[2];
    for (int i = 0; i < 2; i++) values[i] = _mm256_mul_ps(_mm256_mul_ps(magnitudes[i], scale), g);
    __m256i table;
    if (type == NVFP4_FP16) {
        __m128i low = _mm256_cvtps_ph(values[0], _MM_FROUND_TO_NEAREST_INT);
        __m128i high = _mm256_cvtps_ph(values[1], _MM_FROUND_TO_NEAREST_INT);
        table = _mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high));
    } else {
        for (int i = 0; i < 2; i++) /* NaN here is 0x7FC00000, and stays it */
            values[i] = _mm256_castsi256_ps(_mm256_srli_epi32(round_to_bf16(values[i]), 16));
        table = _mm256_packus_epi32(_mm256_castps_si256(values[0]), _mm256_castps_si256(values[1]));
    }
    const __m256i even = _mm256_set1_epi64x(0x0E0C0A0806040200), odd = _mm256_set1_epi64x(0x0F0D0B0907050301);
    __m256i negative = _mm256_and_si256(
        _mm256_castps_si256(_mm256_cmp_ps(scale, scale, _CMP_ORD_Q)),
        _mm256_setr_epi32(0, 0, (int)0x80808080, (int)0x80808080, 0, 0, (int)0x80808080, (int)0x80808080));
    __m256i low = _mm256_shuffle_epi8(table, even), high = _mm256_or_si256(_mm256_shuffle_epi8(table, odd), negative);
    __m256i pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)codes));
    pairs = _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)), _mm256_set1_epi8(15));
    low = _mm256_shuffle_epi8(low, pairs), high = _mm256_shuffle_epi8(high, pairs);
    __m256i first = _mm256_unpacklo_epi8(low, high), second = _mm256_unpackhi_epi8(low, high);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256((__m256i *)(to + 32), _mm256_permute2x128_si256(first, second, 0x31));
}

static inline __attribute__((always_inline)) void decode_blocks(char *to, const uint8_t *codes, floats scale, float g,
                                                                const int type) {
    float scales[8];
    _mm256_storeu_ps(scales, scale);
    if (type == NVFP4_FP32)
        for (int b = 0; b < 8; b++) decode_to_floats((float *)to + b * 16, codes + b * 8, scales[b], g);
    else
        for (int b = 0; b < 8; b += 2)
            decode_to_16_bit(to + b * 32, codes + b * 8,
                             _mm256_set_m128(_mm_set1_ps(scales[b + 1]), _mm_set1_ps(scales[b])), _mm256_set1_ps(g),
                             type);
}

#include "cpu/quantize_rows.h"

const quantize_kernel quantize_avx2 = QUANTIZE_ROWS;
#endif
