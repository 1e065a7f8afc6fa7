/* NVFP4 by NVFP4 in integers, the part that is the same for every ISA. A file of kernels includes this once, after it
 * has defined
 *
 *   floats, ints, LANES   vectors of LANES floats, and of as many bytes of integers
 *   STRIP_ROWS            rows of a strip
 *   SHIFT                 what is added to twice a long row's values, so that none is negative
 *   panel_block           a block of LANES short rows, a lane each: `values`, of which values[j] holds elements
 *                         4j .. 4j+3, `scales`, a quarter of the scale since both sides are doubled, and `start`, which
 *                         takes the shift off the lane's sum
 *   decode_row            blocks of one row, in order: twice the values plus a shift as bytes, scales times a factor
 *   transpose             LANES rows of four dwords, `pitch` bytes apart, to four vectors
 *   set_start             `start` of a panel_block whose values and scales are there
 *   broadcast_quad        four bytes in every lane
 *   add_quads             adds the products of elements 4j .. 4j+3 to a block's dots; j = 0 comes first
 *   scale_dots            the dots of a whole block by the short scales, without the shift
 */
#ifndef NVFP4_CPU_W4A4_H
#define NVFP4_CPU_W4A4_H

#include "cpu/gemm.h"

typedef struct strip {
    uint8_t values[STRIP_ROWS][CHUNK_BLOCKS * 16];
    float scales[STRIP_ROWS][CHUNK_BLOCKS];
} strip;

/* Short rows before they are interleaved. */
typedef struct rows_decoded {
    int8_t values[LANES][CHUNK_BLOCKS * 16];
    float scales[LANES][CHUNK_BLOCKS];
} rows_decoded;

static void decode_strip(void *memory, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    strip *to = memory;
    prefetch_rows(x, row + STRIP_ROWS, STRIP_ROWS, block, blocks);
    for (int r = 0; r < STRIP_ROWS; r++)
        if (row + r < x->rows)
            decode_row(to->values[r], to->scales[r], x, row + r, block, blocks, SHIFT, 1.0f);
        else
            memset(to->scales[r], 0, sizeof to->scales[r]);
}

static void pack_panel(void *memory, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    panel_block *to = memory;
    rows_decoded d;
    for (int lane = 0; lane < LANES; lane++)
        if (row + lane < x->rows) {
            decode_row(d.values[lane], d.scales[lane], x, row + lane, block, blocks, 0, 0.25f);
        } else {
            memset(d.values[lane], 0, sizeof d.values[lane]);
            memset(d.scales[lane], 0, sizeof d.scales[lane]);
        }
    for (int64_t b = 0; b < blocks; b += 4) {
        ints scales[4];
        transpose(scales, (const char *)(d.scales[0] + b), sizeof d.scales[0]);
        for (int64_t i = 0; i < min_int(4, blocks - b); i++) to[b + i].scales = (floats)scales[i];
    }
    for (int64_t b = 0; b < blocks; b++) {
        transpose(to[b].values, (const char *)d.values[0] + b * 16, sizeof d.values[0]);
        set_start(&to[b]);
    }
}

/* STRIP_ROWS long rows by LANES * panels short rows, in registers. */
static inline __attribute__((always_inline)) void register_tile(float *sums, const strip *s, const panel_block *p,
                                                                const int panels, int64_t blocks, int first) {
    floats sum[STRIP_ROWS][2];
    for (int r = 0; r < STRIP_ROWS; r++)
        for (int i = 0; i < panels; i++)
            sum[r][i] = first ? broadcast(0.0f) : load_lanes(sums + r * SUMS_PITCH + i * LANES, NVFP4_FP32);
    for (int64_t b = 0; b < blocks; b++) {
#pragma GCC unroll 16
        for (int r = 0; r < STRIP_ROWS; r++) {
            ints dots[2];
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                int32_t quad;
                memcpy(&quad, s->values[r] + b * 16 + j * 4, 4);
                const ints quads = broadcast_quad(quad);
                for (int i = 0; i < panels; i++) dots[i] = add_quads(dots[i], quads, &p[i * CHUNK_BLOCKS + b], j);
            }
            for (int i = 0; i < panels; i++) {
                const floats scaled = scale_dots(dots[i], &p[i * CHUNK_BLOCKS + b]);
                sum[r][i] = fused(scaled, broadcast(s->scales[r][b]), sum[r][i]);
            }
        }
    }
    for (int r = 0; r < STRIP_ROWS; r++)
        for (int i = 0; i < panels; i++) store_lanes(sums + r * SUMS_PITCH + i * LANES, sum[r][i], NVFP4_FP32);
}

static void tile(float *sums, const void *strip_memory, const void *panels, int panel_count, int64_t blocks,
                 int first) {
    const panel_block *p = panels;
    int i = 0;
    for (; i + 2 <= panel_count; i += 2)
        register_tile(sums + i * LANES, strip_memory, p + i * CHUNK_BLOCKS, 2, blocks, first);
    if (i < panel_count) register_tile(sums + i * LANES, strip_memory, p + i * CHUNK_BLOCKS, 1, blocks, first);
}

/* These entries of a cpu_kernel are the same for every ISA. */
#define W4A4_TILES                                                                                                     \
    .lanes = LANES, .strip_rows = STRIP_ROWS, .chunk_blocks = CHUNK_BLOCKS,                                            \
    .panel_bytes = CHUNK_BLOCKS * sizeof(panel_block), .strip_bytes = sizeof(strip), .pack_panel = pack_panel,         \
    .decode_strip = decode_strip, .tile = tile, .epilogue = epilogue

#endif
