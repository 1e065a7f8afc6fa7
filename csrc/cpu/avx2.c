/* NVFP4 by NVFP4 with AVX2. The scheme is avx512vnni.c's, with vpmaddubsw: it multiplies unsigned bytes by signed ones
 * and adds pairs into int16, where four of them add up to at most 2304. The first of two multiply-adds takes off what
 * the shift by 12 has added to a block: dot * scale - 12 * sum * scale, exact. The second adds this times the long
 * scale to the sum. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include "cpu/avx2.h"

enum { STRIP_ROWS = 4, SHIFT = 12, PREFETCH = 512, KEEPS_NAN = 1, VECTORS = 4, GROUP_BLOCKS = 8 };

typedef __m256i ints;

/* `start` is -12 * sum of values * scale. */
typedef struct panel_block {
    __m256i values[4];
    __m256 scales, start;
} panel_block;

static inline __m256i doubled_table(int shift) {
    __m128i table = _mm_add_epi8(_mm_loadu_si128((const __m128i *)e2m1_doubled), _mm_set1_epi8((char)shift));
    return _mm256_broadcastsi128_si256(table);
}

/* Blocks of one row, in order; writes whole groups of 2 blocks of values and 8 of scales. */
static inline void decode_row(void *values, float *scales, const operand *x, int64_t row, int64_t block, int64_t blocks,
                              int shift, float factor) {
    const uint8_t *from = x->data + row * x->pitch + block * 8;
    __m256i table = doubled_table(shift);
    for (int64_t b = 0; b < blocks; b += 2) {
        __m128i bytes =
            b + 2 <= blocks ? _mm_loadu_si128((const __m128i *)(from + b * 8)) : _mm_loadu_si64(from + b * 8);
        __m256i pairs = _mm256_cvtepu8_epi16(bytes);
        __m256i codes = _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)), _mm256_set1_epi8(15));
        _mm256_storeu_si256((__m256i *)((char *)values + b * 16), _mm256_shuffle_epi8(table, codes));
    }
    for (int64_t b = 0; b < blocks; b += 8)
        _mm256_storeu_ps(scales + b, decode_scales(load_scales(x, row, block + b, blocks - b), factor));
}

static inline __m256i widen(__m256i pairs) {
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

static inline __m256i broadcast_quad(int32_t quad) {
    return _mm256_set1_epi32(quad);
}

static inline void set_start(panel_block *p) {
    __m256i twelve = _mm256_set1_epi8(SHIFT), sum = _mm256_setzero_si256();
    for (int j = 0; j < 4; j++) sum = _mm256_sub_epi16(sum, _mm256_maddubs_epi16(twelve, p->values[j]));
    p->start = _mm256_mul_ps(_mm256_cvtepi32_ps(widen(sum)), p->scales);
}

static inline __m256i add_quads(__m256i dots, __m256i quads, const panel_block *p, int j) {
    __m256i part = _mm256_maddubs_epi16(quads, p->values[j]);
    return j ? _mm256_add_epi16(dots, part) : part;
}

static inline __m256 scale_dots(__m256i dots, const panel_block *p) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(widen(dots)), p->scales, p->start);
}

#include "cpu/w4a4.h"

/* A packed vector, for 128 elements (64 bytes of the long row) at a time, in the order of load_nibbles. */
typedef struct vector_group {
    __m256i values[2][2];
    __m256 scales, start;
} vector_group;

static size_t vector_bytes(int64_t blocks) {
    return (size_t)(round_up(blocks, GROUP_BLOCKS) / GROUP_BLOCKS) * sizeof(vector_group);
}

/* 64 bytes of a row, zeros after `blocks` blocks, looked up: to[h][0] the low nibbles, to[h][1] the high ones. to[0]
 * has blocks 0 1 4 5, to[1] blocks 2 3 6 7, two lanes each, so that a horizontal addition leaves all 8 in order. */
static inline void load_nibbles(__m256i to[2][2], const uint8_t *from, int64_t blocks, __m256i table) {
    uint8_t copy[64];
    from = whole_group(copy, from, blocks);
    for (int h = 0; h < 2; h++) {
        __m256i low = _mm256_set1_epi8(15);
        __m256i pairs = _mm256_loadu2_m128i((const __m128i *)(from + h * 16 + 32), (const __m128i *)(from + h * 16));
        to[h][0] = _mm256_shuffle_epi8(table, _mm256_and_si256(pairs, low));
        to[h][1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(pairs, 4), low));
    }
}

/* The 8 block sums of unsigned x times signed y. */
static inline __m256i block_dots(const __m256i x[2][2], const __m256i y[2][2]) {
    __m256i half[2];
    for (int h = 0; h < 2; h++)
        half[h] =
            widen(_mm256_add_epi16(_mm256_maddubs_epi16(x[h][0], y[h][0]), _mm256_maddubs_epi16(x[h][1], y[h][1])));
    return _mm256_hadd_epi32(half[0], half[1]);
}

static void pack_vector(void *vector, const operand *x, int64_t row, int64_t blocks) {
    vector_group *to = vector;
    const uint8_t *from = x->data + row * x->pitch;
    const __m256i table = doubled_table(0), twelve = _mm256_set1_epi8(SHIFT);
    const __m256i twelves[2][2] = {{twelve, twelve}, {twelve, twelve}};
    for (int64_t b = 0; b < blocks; b += 8, to++) {
        load_nibbles(to->values, from + b * 8, blocks - b, table);
        to->scales = decode_scales(load_scales(x, row, b, blocks - b), 0.25f * 256.0f);
        __m256 sum = _mm256_cvtepi32_ps(block_dots(twelves, (const __m256i(*)[2])to->values));
        to->start = _mm256_mul_ps(_mm256_sub_ps(_mm256_setzero_ps(), sum), to->scales);
    }
}

static inline __attribute__((always_inline)) void dots_group(floats *sum, halves *largest, const operand *x,
                                                             int64_t row, const int rows, int64_t block, int64_t blocks,
                                                             const vector_group *v, size_t pitch, const int count) {
    for (int r = 0; r < rows; r++) {
        const uint8_t *from = x->data + (row + r) * x->pitch + block * 8;
        _mm_prefetch(from + PREFETCH, _MM_HINT_T0);
        __m256i w[2][2];
        load_nibbles(w, from, blocks, doubled_table(SHIFT));
        __m128i half = scales_as_fp16(load_scales(x, row + r, block, blocks));
        largest[r] = _mm_max_epu16(largest[r], half);
        __m256 scales = _mm256_cvtph_ps(half); /* of 1/256 of the scales; pack_vector has the 256 */
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const vector_group *q = (const vector_group *)((const char *)v + (size_t)i * pitch);
            __m256i dot = block_dots((const __m256i(*)[2])w, q->values);
            __m256 scaled = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), q->scales, q->start);
            sum[r * count + i] = _mm256_fmadd_ps(scaled, scales, sum[r * count + i]);
        }
    }
}

#include "cpu/dots.h"

static const vector_kernel vectors = {vector_bytes, pack_vector, packed_dots};
const cpu_kernel avx2_kernel = {W4A4_TILES, .vectors = &vectors, .max_vectors = VECTORS};
#endif
