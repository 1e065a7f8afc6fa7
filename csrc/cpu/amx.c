/* Products with AMX: tiles of 16 x 16 fp32 sums, to which tdpbf16ps adds products of 16 x 32 by 32 x 16 values in bf16.
 *
 * An e2m1 value times an e4m3 scale has at most 6 significant bits and is exact in bf16, so both sides are decoded with
 * their scales applied, and tdpbf16ps does the rest: exact products, fp32 sums. Long rows are the rows of the left
 * tile, as decoded; short rows are the columns of the right one, whose rows hold pairs of elements. Few short rows are
 * multiplied by the vectors of avx512vnni.c and w4a16_avx512.c.
 *
 * a may be bf16. tdpbf16ps takes subnormals as zeros and flushes sums below 2^-126. NVFP4 has neither: products are
 * multiples of 2^-20. A bf16 a loses elements below 2^-126, which b multiplies by at most 6 * 448: an element of the
 * result is off by at most K * 2^-114 before alpha, and only here. */
#if defined(__x86_64__)
#pragma GCC target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx2,fma,f16c")
#include "cpu/avx512.h"

#include <pthread.h>
#include <stdatomic.h>

enum { STRIP_ROWS = 32, STEP = 2 /* blocks a tile */, STEPS = CHUNK_BLOCKS / STEP, TILE_BYTES = 1024 };

/* Bytes from one decoded row to the next; the 64 more keep neighbouring rows out of the same cache sets. */
static inline int64_t row_bytes(int64_t blocks) {
    return (blocks + STEP - 1) / STEP * 64 + 64;
}
enum { STRIP_BYTES = STRIP_ROWS * (STEPS * 64 + 64) };

typedef struct panel {
    char tiles[STEPS][TILE_BYTES];
} panel;

/* The bf16 products of every scale byte with every e2m1 code. */
static _Alignas(64) uint16_t products[256][16];
static pthread_once_t products_once = PTHREAD_ONCE_INIT;

static void make_products(void) {
    for (int scale = 0; scale < 256; scale++)
        for (int code = 0; code < 16; code++)
            products[scale][code] = bf16_encode(0.5f * e2m1_doubled[code] * e4m3_decode((uint8_t)scale));
}

/* 32 codes, of two blocks, times their scales. Lane i of four takes nibble i of every word: K comes out in another
 * order, the same for both sides. */
static inline __m512i decode_step(__m128i codes, const uint8_t *scales) {
    const __m512i nibble = _mm512_set1_epi16(15), second = _mm512_set4_epi32(0x00100010, 0x00100010, 0, 0);
    const __m512i shifts =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_setr_m128i(_mm_set1_epi16(0), _mm_set1_epi16(4))),
                           _mm256_setr_m128i(_mm_set1_epi16(8), _mm_set1_epi16(12)), 1);
    __m512i index = _mm512_srlv_epi16(_mm512_broadcast_i32x4(codes), shifts);
    index = _mm512_ternarylogic_epi32(index, nibble, second, 0xEA); /* (index & nibble) | second */
    __m512i table = _mm512_castsi256_si512(_mm256_load_si256((const __m256i *)products[scales[0]]));
    table = _mm512_inserti64x4(table, _mm256_load_si256((const __m256i *)products[scales[1]]), 1);
    return _mm512_permutexvar_epi16(index, table);
}

/* 32 bf16 values in the order of decode_step, zeros from `valid` on. */
static inline __m512i load_step(const uint8_t *from, int64_t valid) {
    const __m512i words = _mm512_set_epi16(31, 27, 23, 19, 15, 11, 7, 3, 30, 26, 22, 18, 14, 10, 6, 2, 29, 25, 21, 17,
                                           13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
    return _mm512_permutexvar_epi16(words, _mm512_maskz_loadu_epi16(low_bits(valid), from));
}

/* Decodes blocks of one row. It writes whole steps; the missing block is zeros by its scale or by load_step. */
static inline void decode_row(char *to, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    const uint8_t *from = x->data + row * x->pitch + block * block_bytes(x);
    if (x->type == NVFP4_BF16) {
        for (int64_t b = 0; b < blocks; b += STEP, to += 64)
            _mm512_storeu_si512(to, load_step(from + b * 32, (blocks - b) * 16));
        return;
    }
    uint8_t scales[CHUNK_BLOCKS];
    for (int64_t b = 0; b < blocks; b += 16)
        _mm_storeu_si128((__m128i *)(scales + b), load_scales(x, row, block + b, blocks - b));
    int64_t b = 0;
    for (; b + STEP <= blocks; b += STEP, to += 64)
        _mm512_storeu_si512(to, decode_step(_mm_loadu_si128((const __m128i *)(from + b * 8)), scales + b));
    if (b < blocks) _mm512_storeu_si512(to, decode_step(_mm_loadu_si64(from + b * 8), scales + b));
}

static void decode_rows(char *to, int64_t rows, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    pthread_once(&products_once, make_products);
    int64_t pitch = row_bytes(blocks);
    for (int64_t r = 0; r < rows; r++, to += pitch)
        if (row + r < x->rows)
            decode_row(to, x, row + r, block, blocks);
        else
            memset(to, 0, (size_t)pitch);
}

static void decode_strip(void *memory, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    prefetch_rows(x, row + STRIP_ROWS, STRIP_ROWS, block, blocks);
    decode_rows(memory, STRIP_ROWS, x, row, block, blocks);
}

static void pack_panel(void *memory, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    panel *to = memory;
    char rows[LANES * (STEPS * 64 + 64)];
    decode_rows(rows, LANES, x, row, block, blocks);
    for (int64_t step = 0; step * STEP < blocks; step++)
        for (int quad = 0; quad < 4; quad++)
            transpose((__m512i *)to->tiles[step] + quad * 4, rows + step * 64 + quad * 16, (size_t)row_bytes(blocks));
}

/* Tiles 0..3 hold sums, 4 and 5 long rows, 6 and 7 short ones; all are 16 rows of 64 bytes. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tiles = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

static void two_panels(float *sums, const char *strip, int64_t pitch, const panel *p, int64_t steps, int first) {
    enum { PITCH = SUMS_PITCH * sizeof(float) };
    float *lower = sums + 16 * SUMS_PITCH;
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums, PITCH);
        _tile_loadd(1, sums + LANES, PITCH);
        _tile_loadd(2, lower, PITCH);
        _tile_loadd(3, lower + LANES, PITCH);
    }
    for (int64_t step = 0; step < steps; step++) {
        _tile_loadd(4, strip + step * 64, pitch);
        _tile_loadd(6, p[0].tiles[step], 64);
        _tile_loadd(7, p[1].tiles[step], 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, strip + 16 * pitch + step * 64, pitch);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, PITCH);
    _tile_stored(1, sums + LANES, PITCH);
    _tile_stored(2, lower, PITCH);
    _tile_stored(3, lower + LANES, PITCH);
}

static void one_panel(float *sums, const char *strip, int64_t pitch, const panel *p, int64_t steps, int first) {
    enum { PITCH = SUMS_PITCH * sizeof(float) };
    float *lower = sums + 16 * SUMS_PITCH;
    if (first) {
        _tile_zero(0);
        _tile_zero(2);
    } else {
        _tile_loadd(0, sums, PITCH);
        _tile_loadd(2, lower, PITCH);
    }
    for (int64_t step = 0; step < steps; step++) {
        _tile_loadd(6, p->tiles[step], 64);
        _tile_loadd(4, strip + step * 64, pitch);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, strip + 16 * pitch + step * 64, pitch);
        _tile_dpbf16ps(2, 5, 6);
    }
    _tile_stored(0, sums, PITCH);
    _tile_stored(2, lower, PITCH);
}

static void tile(float *sums, const void *strip, const void *panels, int panel_count, int64_t blocks, int first) {
    const panel *p = panels;
    int64_t steps = (blocks + STEP - 1) / STEP, pitch = row_bytes(blocks);
    atomic_signal_fence(memory_order_seq_cst); /* gcc's tile loads and stores do not say what memory they touch */
    _tile_loadconfig(&tiles);
    int i = 0;
    for (; i + 2 <= panel_count; i += 2) two_panels(sums + i * LANES, strip, pitch, p + i, steps, first);
    if (i < panel_count) one_panel(sums + i * LANES, strip, pitch, p + i, steps, first);
    _tile_release();
    atomic_signal_fence(memory_order_seq_cst);
}

#define AMX_TILES                                                                                                      \
    .lanes = LANES, .strip_rows = STRIP_ROWS, .chunk_blocks = CHUNK_BLOCKS, .panel_bytes = sizeof(panel),              \
    .strip_bytes = STRIP_BYTES, .pack_panel = pack_panel, .decode_strip = decode_strip, .tile = tile,                  \
    .epilogue = epilogue

const cpu_kernel amx_kernel = {AMX_TILES, .vectors = &avx512vnni_vectors, .max_vectors = MAX_VECTORS};

/* For a in bf16. Tiles overtake vectors at fewer rows than for a in NVFP4: M = 6 takes 1.9 ms in tiles, 3.6 ms in
 * vectors. */
const cpu_kernel w4a16_amx_kernel = {AMX_TILES, .vectors = &w4a16_avx512_vectors, .max_vectors = 4};
#endif
