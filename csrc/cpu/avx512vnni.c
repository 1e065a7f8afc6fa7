/* AVX-512 with VNNI. vpdpbusd multiplies unsigned bytes by signed ones and adds four products to an int32 lane.
 *
 * Twice an e2m1 value is an integer in -12 .. 12. The long operand is decoded with 12 added, which makes it unsigned;
 * the short one stays signed, and its block sums, times -12, are where the lane's sum starts, so the shift costs
 * nothing. A block of 16 is four vpdpbusd, exact; then one conversion, one product with the short scale (exact: 12 bits
 * by 4) and one fused multiply-add with the long scale: a single rounding a block. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")
#include "cpu/avx512.h"

enum { STRIP_ROWS = 8, SHIFT = 12, PREFETCH = 512 };

typedef __m512i ints;

/* `start` is -12 * sum of values. */
typedef struct panel_block {
    __m512i values[4], start;
    __m512 scales;
} panel_block;

static inline __m512i doubled_table(int shift) {
    __m128i table = _mm_add_epi8(_mm_loadu_si128((const __m128i *)e2m1_doubled), _mm_set1_epi8((char)shift));
    return _mm512_broadcast_i32x4(table);
}

/* Blocks of one row, in order; writes whole groups of 4 blocks of values and 16 of scales. */
static inline void decode_row(void *values, float *scales, const operand *x, int64_t row, int64_t block, int64_t blocks,
                              int shift, float factor) {
    const uint8_t *from = x->data + row * x->pitch + block * 8;
    __m512i table = doubled_table(shift);
    for (int64_t b = 0; b < blocks; b += 4) {
        __m512i pairs = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(low_bits((blocks - b) * 8), from + b * 8));
        __m512i codes = _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4)), _mm512_set1_epi8(15));
        _mm512_storeu_si512((char *)values + b * 16, _mm512_shuffle_epi8(table, codes));
    }
    for (int64_t b = 0; b < blocks; b += 16)
        _mm512_storeu_ps(scales + b, decode_scales(load_scales(x, row, block + b, blocks - b), factor));
}

static inline __m512i broadcast_quad(int32_t quad) {
    return _mm512_set1_epi32(quad);
}

static inline void set_start(panel_block *p) {
    __m512i twelve = _mm512_set1_epi8(SHIFT), sum = _mm512_setzero_si512();
    for (int j = 0; j < 4; j++) sum = _mm512_dpbusd_epi32(sum, twelve, p->values[j]);
    p->start = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
}

static inline __m512i add_quads(__m512i dots, __m512i quads, const panel_block *p, int j) {
    return _mm512_dpbusd_epi32(j ? dots : p->start, quads, p->values[j]);
}

static inline __m512 scale_dots(__m512i dots, const panel_block *p) {
    return _mm512_mul_ps(_mm512_cvtepi32_ps(dots), p->scales);
}

#include "cpu/w4a4.h"

/* A packed vector, for 256 elements (128 bytes of the long row) at a time: values[h][0] meet the low nibbles of the
 * half's 64 bytes, values[h][1] the high ones. A block is then two neighbouring lanes. */
typedef struct vector_group {
    __m512i values[2][2], start[2];
    __m512 scales;
} vector_group;

size_t avx512vnni_vector_bytes(int64_t blocks) {
    return (size_t)((blocks + 15) / 16) * sizeof(vector_group);
}

/* 64 bytes of a row, zeros from byte `valid` on, as low and high nibbles looked up. */
static inline void load_nibbles(__m512i to[2], const uint8_t *from, int64_t valid, __m512i table) {
    __mmask64 mask = valid >= 64 ? ~0ull : valid <= 0 ? 0 : (1ull << valid) - 1;
    __m512i pairs = _mm512_maskz_loadu_epi8(mask, from), low = _mm512_set1_epi8(15);
    to[0] = _mm512_shuffle_epi8(table, _mm512_and_si512(pairs, low));
    to[1] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low));
}

void avx512vnni_pack_vector(void *vector, const operand *x, int64_t row, int64_t blocks) {
    vector_group *to = vector;
    const uint8_t *from = x->data + row * x->pitch;
    __m512i table = doubled_table(0), twelve = _mm512_set1_epi8(SHIFT);
    for (int64_t b = 0; b < blocks; b += 16, to++) {
        for (int half = 0; half < 2; half++) {
            int64_t valid = (blocks - b) * 8 - half * 64;
            load_nibbles(to->values[half], valid > 0 ? from + b * 8 + half * 64 : from, valid, table);
            __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), twelve, to->values[half][0]);
            sum = _mm512_dpbusd_epi32(sum, twelve, to->values[half][1]);
            to->start[half] = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
        }
        to->scales = decode_scales(load_scales(x, row, b, blocks - b), 0.25f * 256.0f);
    }
}

/* One group of 16 blocks, of which `blocks` exist, of `rows` long rows against every vector. The hardware's own
 * prefetching stays too close to reads that are mixed with this much arithmetic. */
static inline __attribute__((always_inline)) void dots_group(__m512 *sum, __m256i *largest, const operand *x,
                                                             int64_t row, const int rows, int64_t block, int64_t blocks,
                                                             const vector_group *v, size_t pitch, const int count) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1)), table = doubled_table(SHIFT);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        const uint8_t *from = x->data + (row + r) * x->pitch + block * 8;
        _mm_prefetch(from + PREFETCH, _MM_HINT_T0);
        _mm_prefetch(from + PREFETCH + 64, _MM_HINT_T0);
        __m512i w[2][2];
        load_nibbles(w[0], from, blocks * 8, table);
        load_nibbles(w[1], blocks > 8 ? from + 64 : from, blocks * 8 - 64, table);
        __m256i half = scales_as_fp16(load_scales(x, row + r, block, blocks));
        largest[r] = _mm256_max_epu16(largest[r], half);
        __m512 scales = _mm512_cvtph_ps(half); /* of 1/256 of the scales; pack_vector has the 256 */
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const vector_group *q = (const vector_group *)((const char *)v + (size_t)i * pitch);
            __m512i dot[2];
            for (int h = 0; h < 2; h++)
                dot[h] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(q->start[h], w[h][0], q->values[h][0]), w[h][1],
                                             q->values[h][1]);
            __m512i whole = _mm512_add_epi32(_mm512_permutex2var_epi32(dot[0], even, dot[1]),
                                             _mm512_permutex2var_epi32(dot[0], odd, dot[1]));
            __m512 *s = sum + r * count + i;
            *s = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(whole), q->scales), scales, *s);
        }
    }
}

static inline __attribute__((always_inline)) void dots_rows(float *sums, const operand *x, int64_t row, const int rows,
                                                            const vector_group *v, int64_t blocks, const int count) {
    size_t pitch = avx512vnni_vector_bytes(blocks);
    __m512 sum[MAX_VECTORS];
    __m256i largest[4];
    for (int i = 0; i < rows * count; i++) sum[i] = _mm512_setzero_ps();
    for (int r = 0; r < rows; r++) largest[r] = _mm256_setzero_si256();
    int64_t b = 0;
    for (; b + 16 <= blocks; b += 16, v++) dots_group(sum, largest, x, row, rows, b, 16, v, pitch, count);
    if (b < blocks) dots_group(sum, largest, x, row, rows, b, blocks - b, v, pitch, count);
    for (int r = 0; r < rows; r++) {
        int nan = _mm256_cmpeq_epi16_mask(largest[r], _mm256_set1_epi16(0x3F80)) != 0;
        for (int i = 0; i < count; i++) sums[r * count + i] = nan ? NAN : _mm512_reduce_add_ps(sum[r * count + i]);
    }
}

/* Several rows at a time share the loads of the vectors, and the cache lines of scales in the 128x4 layout. */
#define DOTS_COUNT(COUNT, ROWS)                                                                                        \
    case COUNT:                                                                                                        \
        for (; ROWS > 1 && rows >= ROWS; row += ROWS, rows -= ROWS, sums += ROWS * COUNT)                              \
            dots_rows(sums, x, row, ROWS, vectors, blocks, COUNT);                                                     \
        for (; rows > 0; row++, rows--, sums += COUNT) dots_rows(sums, x, row, 1, vectors, blocks, COUNT);             \
        break

void avx512vnni_dots(float *sums, const operand *x, int64_t row, int64_t rows, const void *vectors, int count,
                     int64_t blocks) {
    switch (count) {
        DOTS_COUNT(1, 4);
        DOTS_COUNT(2, 4);
        DOTS_COUNT(3, 2);
        DOTS_COUNT(4, 2);
        DOTS_COUNT(5, 1);
        DOTS_COUNT(6, 1);
        DOTS_COUNT(7, 1);
        DOTS_COUNT(8, 1);
    }
}

const cpu_kernel avx512vnni_kernel = {
    .lanes = LANES,
    .strip_rows = STRIP_ROWS,
    .chunk_blocks = CHUNK_BLOCKS,
    .panel_bytes = CHUNK_BLOCKS * sizeof(panel_block),
    .strip_bytes = sizeof(strip),
    .pack_panel = pack_panel,
    .decode_strip = decode_strip,
    .tile = tile,
    .max_vectors = MAX_VECTORS,
    .vector_bytes = avx512vnni_vector_bytes,
    .pack_vector = avx512vnni_pack_vector,
    .dots = avx512vnni_dots,
    .epilogue = epilogue,
};
#endif
