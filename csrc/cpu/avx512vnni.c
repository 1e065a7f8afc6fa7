/* NVFP4 by NVFP4 with AVX-512 VNNI. vpdpbusd multiplies unsigned bytes by signed ones and adds four products to an
 * int32 lane.
 *
 * Twice an e2m1 value is an integer in -12 .. 12. The long operand is decoded with 12 added, which makes it unsigned;
 * the short one stays signed, and its block sums, times -12, are where the lane's sum starts, so the shift costs
 * nothing. A block of 16 is four vpdpbusd, exact; then one conversion, one product with the short scale (exact: 12 bits
 * by 4) and one fused multiply-add with the long scale: a single rounding a block. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")
#include "cpu/avx512.h"

enum { STRIP_ROWS = 8, SHIFT = 12, PREFETCH = 512, KEEPS_NAN = 1, VECTORS = 8, GROUP_BLOCKS = 16 };

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

static size_t vector_bytes(int64_t blocks) {
    return (size_t)(round_up(blocks, GROUP_BLOCKS) / GROUP_BLOCKS) * sizeof(vector_group);
}

/* 64 bytes of a row, zeros from byte `valid` on, as low and high nibbles looked up. */
static inline void load_nibbles(__m512i to[2], const uint8_t *from, int64_t valid, __m512i table) {
    __mmask64 mask = valid >= 64 ? ~0ull : valid <= 0 ? 0 : (1ull << valid) - 1;
    __m512i pairs = _mm512_maskz_loadu_epi8(mask, from), low = _mm512_set1_epi8(15);
    to[0] = _mm512_shuffle_epi8(table, _mm512_and_si512(pairs, low));
    to[1] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low));
}

static void pack_vector(void *vector, const operand *x, int64_t row, int64_t blocks) {
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

/* The hardware's own prefetching stays too close to reads that are mixed with this much arithmetic. */
static inline __attribute__((always_inline)) void dots_group(floats *sum, halves *largest, const operand *x,
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
            __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), q->scales);
            sum[r * count + i] = _mm512_fmadd_ps(scaled, scales, sum[r * count + i]);
        }
    }
}

#include "cpu/dots.h"

const vector_kernel avx512vnni_vectors = {vector_bytes, pack_vector, packed_dots};
const cpu_kernel avx512vnni_kernel = {W4A4_TILES, .vectors = &avx512vnni_vectors, .max_vectors = VECTORS};
#endif
