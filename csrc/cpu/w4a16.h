/* W4A16 in fp32, the part that is the same for every ISA. A w4a16_*.c includes this once, after it has defined
 *
 *   floats, LANES           a vector of floats, and how many
 *   STRIP_ROWS, TILE_PANELS the register tile: rows of a strip by panels
 *   broadcast, fused        x in every lane; sum + x * y
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

/* STRIP_ROWS long rows by LANES * panels short rows, in registers. */
static inline __attribute__((always_inline)) void register_tile(float *sums, const strip *s, const panel *p,
                                                                const int panels, int64_t blocks, int first) {
    floats sum[STRIP_ROWS][TILE_PANELS];
    for (int r = 0; r < STRIP_ROWS; r++)
        for (int i = 0; i < panels; i++)
            if (first)
                sum[r][i] = broadcast(0.0f);
            else
                memcpy(&sum[r][i], sums + r * SUMS_PITCH + i * LANES, sizeof(floats));
    for (int64_t k = 0; k < blocks * 16; k++) {
#pragma GCC unroll 16
        for (int r = 0; r < STRIP_ROWS; r++) {
            floats x = broadcast(s->values[r][k]);
#pragma GCC unroll 4
            for (int i = 0; i < panels; i++) sum[r][i] = fused(x, p[i].values[k], sum[r][i]);
        }
    }
    for (int r = 0; r < STRIP_ROWS; r++)
        for (int i = 0; i < panels; i++) memcpy(sums + r * SUMS_PITCH + i * LANES, &sum[r][i], sizeof(floats));
}

static void tile(float *sums, const void *strip_memory, const void *panels, int panel_count, int64_t blocks,
                 int first) {
    const panel *p = panels;
    int i = 0;
    for (; i + TILE_PANELS <= panel_count; i += TILE_PANELS)
        register_tile(sums + i * LANES, strip_memory, p + i, TILE_PANELS, blocks, first);
    for (; i < panel_count; i++) register_tile(sums + i * LANES, strip_memory, p + i, 1, blocks, first);
}

/* A packed vector: whole groups of 16 blocks, in the order of K for decoded_dots. */
static size_t vector_bytes(int64_t blocks) {
    return (size_t)round_up(blocks, 16) * 64;
}

static inline float add_all_lanes(floats x) {
    float lanes[LANES];
    memcpy(lanes, &x, sizeof lanes);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
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
            int64_t k_count = least(GROUP, blocks - block) * 16;
            decode_row(values, x, row, block, k_count / 16);
            for (int i = 0; i < count; i++) {
                const float *v = (const float *)((const char *)vectors + (size_t)i * vector_bytes(blocks)) + block * 16;
                for (int64_t k = 0; k < k_count; k += LANES)
                    sum[i] = fused(*(const floats *)(values + k), *(const floats *)(v + k), sum[i]);
            }
        }
        for (int i = 0; i < count; i++) sums[i] = add_all_lanes(sum[i]);
    }
}

#endif
