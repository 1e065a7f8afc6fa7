/* W4A16 in fp32, the part that is the same for every ISA. A w4a16_*.c includes this once, after it has defined
 *
 *   floats, LANES           a vector of floats, and how many
 *   STRIP_ROWS, TILE_PANELS the register tile: rows of a strip by panels
 *   broadcast, fused        x in every lane; sum + x * y
 *   add_lanes               the sum of a vector, halves first
 *   decode_row              blocks of one row, of any type, as floats in the order of K
 *   transpose_16            LANES rows of 16 floats, `pitch` bytes apart, to 16 vectors
 *
 * An e2m1 value times an e4m3 scale has at most 6 significant bits, fp16 has 11 and bf16 has 8: values and products are
 * exact in fp32 unless a product overflows, since the smallest product of bf16 is 2^-143. Each addition rounds once.
 * Blocked sums are formed element by element in the order of K, so they have the same bits on every ISA. */
#ifndef NVFP4_CPU_W4A16_H
#define NVFP4_CPU_W4A16_H

#include "cpu/gemm.h"

enum {
    W4A16_CHUNK_BLOCKS = 32,
    CHUNK_K = W4A16_CHUNK_BLOCKS * 16,
    STRIP_PITCH = CHUNK_K + 16, /* not a power of two, as SUMS_PITCH */
};

/* LANES short rows, a lane each. */
typedef struct panel {
    floats values[CHUNK_K];
} panel;

typedef struct strip {
    _Alignas(64) float values[STRIP_ROWS][STRIP_PITCH];
} strip;

/* A row of x, or zeros past the last one. */
static inline void decode_or_zero(float *to, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    if (row < x->rows)
        decode_row(to, x, row, block, blocks);
    else
        memset(to, 0, (size_t)blocks * 64);
}

static void decode_strip(void *memory, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    strip *to = memory;
    prefetch_rows(x, row + STRIP_ROWS, STRIP_ROWS, block, blocks);
    for (int r = 0; r < STRIP_ROWS; r++) decode_or_zero(to->values[r], x, row + r, block, blocks);
}

static void pack_panel(void *memory, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    panel *to = memory;
    _Alignas(64) float rows[LANES][STRIP_PITCH];
    for (int lane = 0; lane < LANES; lane++) decode_or_zero(rows[lane], x, row + lane, block, blocks);
    for (int64_t k = 0; k < blocks * 16; k += 16) transpose_16(to->values + k, rows[0] + k, sizeof rows[0]);
}

/* The distances inside a register tile: vectors from one panel to the next, and from one k to the next; floats from one
 * row of sums to the next. */
typedef struct tile_steps {
    int panel, k, sums;
} tile_steps;

/* Some rows of a strip by LANES * panels columns, in registers. */
static inline __attribute__((always_inline)) void register_tile(float *sums, const strip *s, const floats *p,
                                                                const tile_steps step, const int rows, const int panels,
                                                                int64_t k_count, int first) {
    floats sum[rows][panels];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < panels; i++)
            if (first)
                sum[r][i] = broadcast(0.0f);
            else
                memcpy(&sum[r][i], sums + r * step.sums + i * LANES, sizeof(floats));
    for (int64_t k = 0; k < k_count; k++) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            floats x = broadcast(s->values[r][k]);
#pragma GCC unroll 8
            for (int i = 0; i < panels; i++) sum[r][i] = fused(x, p[i * step.panel + k * step.k], sum[r][i]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < panels; i++) memcpy(sums + r * step.sums + i * LANES, &sum[r][i], sizeof(floats));
}

static void tile(float *sums, const void *strip_memory, const void *panels, int panel_count, int64_t blocks,
                 int first) {
    const panel *p = panels;
    const tile_steps step = {.panel = CHUNK_K, .k = 1, .sums = SUMS_PITCH};
    int i = 0;
    for (; i + TILE_PANELS <= panel_count; i += TILE_PANELS)
        register_tile(sums + i * LANES, strip_memory, p[i].values, step, STRIP_ROWS, TILE_PANELS, blocks * 16, first);
    for (; i < panel_count; i++)
        register_tile(sums + i * LANES, strip_memory, p[i].values, step, STRIP_ROWS, 1, blocks * 16, first);
}

static void nn_decode(float *to, const operand *b, int64_t row, int64_t rows, int64_t block, int64_t blocks) {
    enum { AHEAD = 8 };
    for (int64_t r = 0; r < rows; r++, to += NN_PITCH) {
        prefetch_rows(b, row + r + AHEAD, 1, block, blocks);
        decode_row(to, b, row + r, block, blocks);
    }
}

/* Values k .. k+count-1 of a row of 16-bit values, k being a multiple of 16; reads no others. Writes whole blocks. */
static void decode_values(float *to, const operand *x, int64_t row, int64_t k, int64_t count) {
    uint8_t copy[64] = {0}; /* gcc warns of 16 floats, which x never has */
    const int64_t whole = count / 16 * 16;
    decode_row(to, x, row, k / 16, whole / 16);
    if (whole == count) return;
    memcpy(copy, x->data + row * x->pitch + (k + whole) * 2, (size_t)(count - whole) * 2);
    const operand tail = {.data = copy, .type = x->type};
    decode_row(to + whole, &tail, 0, 0, 1);
}

static void nn_multiply(float *sums, const operand *a, int64_t row, int64_t rows, int64_t k, int64_t k_count,
                        const float *decoded, int64_t columns, int first) {
    enum { ROW_PANELS = 8 }; /* of a single row, whose sums would else wait for each other */
    const tile_steps step = {.panel = 1, .k = NN_PITCH / LANES, .sums = NN_PITCH};
    for (int64_t r = 0; r < rows; r += STRIP_ROWS, sums += STRIP_ROWS * NN_PITCH) {
        strip s;
        for (int i = 0; i < STRIP_ROWS; i++)
            if (r + i < rows)
                decode_values(s.values[i], a, row + r + i, k, k_count);
            else
                memset(s.values[i], 0, sizeof s.values[i]);
        int64_t n = 0;
        for (; rows == 1 && n + ROW_PANELS * LANES <= columns; n += ROW_PANELS * LANES)
            register_tile(sums + n, &s, (const floats *)(decoded + n), step, 1, ROW_PANELS, k_count, first);
        for (; n + TILE_PANELS * LANES <= columns; n += TILE_PANELS * LANES)
            register_tile(sums + n, &s, (const floats *)(decoded + n), step, STRIP_ROWS, TILE_PANELS, k_count, first);
        for (; n < columns; n += LANES)
            register_tile(sums + n, &s, (const floats *)(decoded + n), step, STRIP_ROWS, 1, k_count, first);
    }
}

/* A packed vector: whole groups of 16 blocks, in the order of K for decoded_dots. */
static size_t vector_bytes(int64_t blocks) {
    return (size_t)round_up(blocks, 16) * 64;
}

/* Long rows by vectors in the order of K; long rows of 16-bit values are not worth more than a buffer in L1. */
static void decoded_dots(float *sums, const operand *x, int64_t row, int64_t rows, const void *vectors, int count,
                         int64_t blocks) {
    enum { GROUP = 16 };
    for (int64_t end = row + rows; row < end; row++, sums += count) {
        floats sum[MAX_VECTORS];
        for (int i = 0; i < count; i++) sum[i] = broadcast(0.0f);
        for (int64_t block = 0; block < blocks; block += GROUP) {
            _Alignas(64) float values[GROUP * 16];
            int64_t k_count = min_int(GROUP, blocks - block) * 16;
            decode_row(values, x, row, block, k_count / 16);
            for (int i = 0; i < count; i++) {
                const float *v = (const float *)((const char *)vectors + (size_t)i * vector_bytes(blocks)) + block * 16;
                for (int64_t k = 0; k < k_count; k += LANES)
                    sum[i] = fused(*(const floats *)(values + k), *(const floats *)(v + k), sum[i]);
            }
        }
        for (int i = 0; i < count; i++) sums[i] = add_lanes(sum[i]);
    }
}

/* These entries of a cpu_kernel are the same for every ISA. */
#define W4A16_TILES                                                                                                    \
    .lanes = LANES, .strip_rows = STRIP_ROWS, .chunk_blocks = W4A16_CHUNK_BLOCKS, .panel_bytes = sizeof(panel),        \
    .strip_bytes = sizeof(strip), .pack_panel = pack_panel, .decode_strip = decode_strip, .tile = tile,                \
    .nn_decode = nn_decode, .nn_multiply = nn_multiply, .epilogue = epilogue

#endif
