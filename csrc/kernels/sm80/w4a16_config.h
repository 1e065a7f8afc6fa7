/* Instantiations of sm80/w4a16.cu. Host C and device code share this file: plain C preprocessor.
 *
 * A CTA computes tile_m rows of C by 32 * octets columns: `octets` neighbouring groups of 8 rows of B in each of the
 * four quarters (32 rows) of a 128-row block, whose scales are neighbours in the 128x4 layout. Its warps split every
 * tile_k values along K evenly and add up in shared memory. `chunks` of 64 along K are a warp's stage. ctas_per_sm
 * bounds the registers. */
#ifndef NVFP4_SM80_W4A16_CONFIG_H
#define NVFP4_SM80_W4A16_CONFIG_H

#include "kernels/common/ceil_div.h"
#include "kernels/sm80/config.h"

/*    id, tile_m, octets, chunks, stages, warps, ctas_per_sm, bf16 (of A; else fp16) */
#define SM80_W4A16_CONFIGS(X)                                                                                          \
    X(sm80_w4a16_fp16_1x32, 1, 1, 2, 4, 8, 2, 0)                                                                       \
    X(sm80_w4a16_fp16_4x32, 4, 1, 2, 3, 8, 2, 0)                                                                       \
    X(sm80_w4a16_fp16_8x32, 8, 1, 2, 3, 8, 2, 0)                                                                       \
    X(sm80_w4a16_fp16_16x32, 16, 1, 2, 3, 4, 2, 0)                                                                     \
    X(sm80_w4a16_fp16_16x64, 16, 2, 1, 4, 4, 2, 0)                                                                     \
    X(sm80_w4a16_fp16_32x64, 32, 2, 1, 3, 4, 2, 0)                                                                     \
    X(sm80_w4a16_fp16_64x64, 64, 2, 1, 2, 4, 2, 0)                                                                     \
    X(sm80_w4a16_bf16_1x32, 1, 1, 2, 4, 8, 2, 1)                                                                       \
    X(sm80_w4a16_bf16_4x32, 4, 1, 2, 3, 8, 2, 1)                                                                       \
    X(sm80_w4a16_bf16_8x32, 8, 1, 2, 3, 8, 2, 1)                                                                       \
    X(sm80_w4a16_bf16_16x32, 16, 1, 2, 3, 4, 2, 1)                                                                     \
    X(sm80_w4a16_bf16_16x64, 16, 2, 1, 4, 4, 2, 1)                                                                     \
    X(sm80_w4a16_bf16_32x64, 32, 2, 1, 3, 4, 2, 1)                                                                     \
    X(sm80_w4a16_bf16_64x64, 64, 2, 1, 2, 4, 2, 1)

#define SM80_W4A16_TILE_N(octets)        (32 * (octets))
#define SM80_W4A16_TILE_K(chunks, warps) ((warps) * (chunks) * SM80_CHUNK)

/* A chunk has 32 bytes of values and 4 of scales for each column, and 128 bytes for each row of A. The padding of 64
 * bytes puts the chunks of a column into different banks. */
#define SM80_W4A16_STAGE_BYTES(tile_m, octets, chunks)                                                                 \
    ((chunks) * (SM80_W4A16_TILE_N(octets) * (32 + 4) + 64 + (tile_m) * 128))
#define SM80_W4A16_SUM_PITCH(octets) (SM80_W4A16_TILE_N(octets) + 4)
/* The stages, and in their place at the end the accumulators. */
#define SM80_W4A16_SHARED_BYTES(tile_m, octets, chunks, stages, warps)                                                 \
    SM80_MAX((stages) * (warps) * SM80_W4A16_STAGE_BYTES(tile_m, octets, chunks),                                      \
             (warps) * (tile_m) * SM80_W4A16_SUM_PITCH(octets) * 4)

/* Tiles along N; the first quarter of the last block may have less than 32 rows. */
#define SM80_W4A16_MIN(a, b) ((a) < (b) ? (a) : (b))
#define SM80_W4A16_TILES_N(n, octets)                                                                                  \
    ((n) / 128 * (4 / (octets)) + CEIL_DIV(SM80_W4A16_MIN((n) % 128, 32), 8 * (octets)))

#endif
