/* W4A16 with AVX-512, in fp32.
 *
 * Few rows: nibble i of 16 dwords, which are 8 blocks of the long row, is looked up by vpermps, without the scale: 1/64
 * of the value, so that no product or sum of eight overflows where a is finite. One multiply-add takes the sum of eight
 * products times 64 * scale onto the lane's sum. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")
#include "cpu/avx512.h"

enum { STRIP_ROWS = 8, TILE_PANELS = 2, PREFETCH = 512, KEEPS_NAN = 0, VECTORS = 8, GROUP_BLOCKS = 16 };

static inline void decode_row(float *to, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    const uint8_t *from = x->data + row * x->pitch + block * block_bytes(x);
    if (x->type != VALUES_E2M1) {
        for (int64_t b = 0; b < blocks; b++)
            _mm512_storeu_ps(to + b * 16, decode_16_bit(_mm256_loadu_si256((const __m256i *)(from + b * 32)), x->type));
        return;
    }
    for (int64_t b = 0; b < blocks; b += 16) {
        float scales[16];
        _mm512_storeu_ps(scales, decode_scales(load_scales(x, row, block + b, blocks - b), 1.0f));
        for (int64_t i = 0; i < min_int(16, blocks - b); i++, from += 8, to += 16)
            _mm512_storeu_ps(to, decode_codes(from, e2m1_table(scales[i])));
    }
}

#include "cpu/w4a16.h"

/* A packed vector, for 16 blocks of the long row at a time: lane j of values[half][i] has element 8j + i of the half,
 * which meets nibble i of its dword j. */
typedef struct vector_group {
    __m512 values[2][8];
} vector_group;

static void pack_vector(void *vector, const operand *x, int64_t row, int64_t blocks) {
    if (x->type == VALUES_E2M1) {
        decode_row(vector, x, row, 0, blocks);
        return;
    }
    const __m512i eighths = _mm512_setr_epi32(0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120);
    vector_group *to = vector;
    for (int64_t b = 0; b < blocks; b += 16, to++) {
        float values[256] = {0};
        decode_row(values, x, row, b, min_int(16, blocks - b));
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 8; i++) to->values[half][i] = _mm512_i32gather_ps(eighths, values + half * 128 + i, 4);
    }
}

static inline __attribute__((always_inline)) void dots_group(floats *sum, halves *largest, const operand *x,
                                                             int64_t row, const int rows, int64_t block, int64_t blocks,
                                                             const vector_group *v, size_t pitch, const int count) {
    (void)largest;
    const __m512 table = e2m1_table(1.0f / 64.0f);
    const __m512i pair = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const uint8_t *from = x->data + row * x->pitch + block * 8;
    __m512 scales[4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        _mm_prefetch(from + r * x->pitch + PREFETCH, _MM_HINT_T0);
        _mm_prefetch(from + r * x->pitch + PREFETCH + 64, _MM_HINT_T0);
        scales[r] = decode_scales(load_scales(x, row + r, block, blocks), 64.0f);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        int64_t valid = (blocks - half * 8) * 8;
        if (valid <= 0) break;
        __mmask64 mask = valid >= 64 ? ~0ull : (1ull << valid) - 1;
        __m512i codes[4];
        __m512 part[4][MAX_VECTORS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) codes[r] = _mm512_maskz_loadu_epi8(mask, from + r * x->pitch + half * 64);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                __m512 w = _mm512_permutexvar_ps(_mm512_srli_epi32(codes[r], 4 * (unsigned)i), table);
#pragma GCC unroll 8
                for (int c = 0; c < count; c++) {
                    const vector_group *q = (const vector_group *)((const char *)v + (size_t)c * pitch);
                    part[r][c] =
                        i ? _mm512_fmadd_ps(w, q->values[half][i], part[r][c]) : _mm512_mul_ps(w, q->values[half][i]);
                }
            }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m512i index = _mm512_add_epi32(pair, _mm512_set1_epi32(half * 8));
            __m512 scale = _mm512_permutexvar_ps(index, scales[r]);
#pragma GCC unroll 8
            for (int c = 0; c < count; c++) sum[r * count + c] = _mm512_fmadd_ps(part[r][c], scale, sum[r * count + c]);
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

const vector_kernel w4a16_avx512_vectors = {vector_bytes, pack_vector, dots};
const cpu_kernel w4a16_avx512_kernel = {W4A16_TILES, .vectors = &w4a16_avx512_vectors, .max_vectors = VECTORS};
#endif
