/* W4A16 with AVX2 and FMA, in fp32.
 *
 * Few rows: the long row's codes become the two bytes of bf16 by vpshufb and fp32 by a shift or a mask, without the
 * scale: 1/64 of the value, so that no product or sum of four overflows where a is finite. One multiply-add takes the
 * sum of four products times 64 * scale onto the lane's sum. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include "cpu/avx2.h"

enum { STRIP_ROWS = 6, TILE_PANELS = 2, PREFETCH = 512, KEEPS_NAN = 0, VECTORS = 8, GROUP_BLOCKS = 8 };

static inline void decode_row(float *to, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    const uint8_t *from = x->data + row * x->pitch + block * block_bytes(x);
    if (x->type != VALUES_E2M1) {
        for (int64_t i = 0; i < blocks * 16; i += 8)
            _mm256_storeu_ps(to + i, decode_16_bit(_mm_loadu_si128((const __m128i *)(from + i * 2)), x->type));
        return;
    }
    const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256i signs = _mm256_set1_epi32(INT32_MIN);
    for (int64_t b = 0; b < blocks; b += 8) {
        float scales[8];
        _mm256_storeu_ps(scales, decode_scales(load_scales(x, row, block + b, blocks - b), 1.0f));
        for (int64_t i = 0; i < min_int(8, blocks - b); i++, from += 8, to += 16) {
            __m256 table = _mm256_mul_ps(magnitudes, _mm256_set1_ps(scales[i]));
            _mm256_storeu_ps(to, decode_codes(from, table, signs));
            _mm256_storeu_ps(to + 8, decode_codes(from + 4, table, signs));
        }
    }
}

#include "cpu/w4a16.h"

/* A packed vector, for 8 blocks of the long row at a time: values[i][q] has the elements 4d + q of blocks j and j + 2,
 * four lanes each, of j = 0, 1, 4, 5. */
typedef struct vector_group {
    __m256 values[4][4];
} vector_group;

static void pack_vector(void *vector, const operand *x, int64_t row, int64_t blocks) {
    if (x->type == VALUES_E2M1) {
        decode_row(vector, x, row, 0, blocks);
        return;
    }
    float *to = vector;
    for (int64_t b = 0; b < blocks; b += 8, to += 128) {
        float values[128] = {0};
        decode_row(values, x, row, b, min_int(8, blocks - b));
        for (int i = 0; i < 8; i++) {
            __m128 q[4];
            for (int d = 0; d < 4; d++) q[d] = _mm_loadu_ps(values + i * 16 + d * 4);
            _MM_TRANSPOSE4_PS(q[0], q[1], q[2], q[3]);
            for (int j = 0; j < 4; j++) _mm_store_ps(to + (i / 4 * 2 + i % 2) * 32 + j * 8 + i / 2 % 2 * 4, q[j]);
        }
    }
}

/* bf16 of value / 64 by code: the high bytes and the low ones. */
#define TABLE(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))
#define HIGH_BYTES                                                                                                     \
    TABLE(0, 0x3C, 0x3C, 0x3C, 0x3D, 0x3D, 0x3D, 0x3D, -0x80, -0x44, -0x44, -0x44, -0x43, -0x43, -0x43, -0x43)
#define LOW_BYTES TABLE(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40)

/* Four blocks: to[h][q] has the elements 4d + q of blocks h and h + 2. */
static inline void decode_blocks(__m256 to[2][4], const uint8_t *from) {
    const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi32((int)0xFFFF0000);
    __m256i pairs = _mm256_loadu_si256((const __m256i *)from);
    __m256i codes[2] = {_mm256_and_si256(pairs, nibble), _mm256_and_si256(_mm256_srli_epi16(pairs, 4), nibble)};
    for (int i = 0; i < 2; i++) {
        __m256i high = _mm256_shuffle_epi8(HIGH_BYTES, codes[i]), low = _mm256_shuffle_epi8(LOW_BYTES, codes[i]);
        __m256i words[2] = {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
        for (int h = 0; h < 2; h++) {
            to[h][i] = _mm256_castsi256_ps(_mm256_slli_epi32(words[h], 16));
            to[h][i + 2] = _mm256_castsi256_ps(_mm256_and_si256(words[h], upper));
        }
    }
}

static inline __attribute__((always_inline)) void dots_group(floats *sum, halves *largest, const operand *x,
                                                             int64_t row, const int rows, int64_t block, int64_t blocks,
                                                             const vector_group *v, size_t pitch, const int count) {
    (void)rows, (void)largest;
    const uint8_t *from = x->data + row * x->pitch + block * 8;
    _mm_prefetch(from + PREFETCH, _MM_HINT_T0);
    uint8_t copy[64];
    from = whole_group(copy, from, blocks);
    __m128i codes = _mm_shufflelo_epi16(load_scales(x, row, block, blocks), _MM_SHUFFLE(3, 1, 2, 0));
    __m256 scales = decode_scales(codes, 64.0f); /* of blocks 0 1 4 5 and 2 3 6 7 */
    __m256 scale[4] = {_mm256_permute_ps(scales, 0x00), _mm256_permute_ps(scales, 0x55),
                       _mm256_permute_ps(scales, 0xAA), _mm256_permute_ps(scales, 0xFF)};
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        __m256 w[2][4];
        decode_blocks(w, from + half * 32);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) {
                const __m256 *q = ((const vector_group *)((const char *)v + (size_t)i * pitch))->values[half * 2 + h];
                __m256 part = _mm256_mul_ps(w[h][0], q[0]);
                part = _mm256_fmadd_ps(w[h][1], q[1], part);
                part = _mm256_fmadd_ps(w[h][2], q[2], part);
                part = _mm256_fmadd_ps(w[h][3], q[3], part);
                sum[i] = _mm256_fmadd_ps(part, scale[half * 2 + h], sum[i]);
            }
    }
}

#include "cpu/dots.h"

static void dots(float *sums, const operand *x, int64_t row, int64_t rows, const void *vectors, int count,
                 int64_t blocks) {
    if (x->type != VALUES_E2M1)
        decoded_dots(sums, x, row, rows, vectors, count, blocks);
    else
        packed_dots(sums, x, row, rows, vectors, count, blocks);
}

static const vector_kernel vectors = {vector_bytes, pack_vector, dots};
const cpu_kernel w4a16_avx2_kernel = {W4A16_TILES, .vectors = &vectors, .max_vectors = VECTORS};
#endif
