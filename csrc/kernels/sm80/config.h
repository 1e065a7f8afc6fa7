/* Instantiations and schedule of sm80/gemm.cu. Host C and device code share this file: plain C preprocessor.
 *
 * A CTA computes tile_m x tile_n of C. Its warps split every tile_k values along K evenly and add up in shared memory.
 * swap_ab = 1 makes B mma_a (16 rows an mma) and A mma_b (8 rows), so that a few rows of A waste less. ctas_per_sm
 * bounds the registers. */
#ifndef NVFP4_SM80_CONFIG_H
#define NVFP4_SM80_CONFIG_H

#include <stdint.h>

/*    id, tile_m, tile_n, tile_k, stages, warps, swap_ab, ctas_per_sm */
#define SM80_GEMM_CONFIGS(X)                                                                                           \
    X(sm80_gemm_8x32, 8, 32, 1024, 4, 8, 1, 2)                                                                         \
    X(sm80_gemm_16x32, 16, 32, 1024, 3, 8, 1, 2)                                                                       \
    X(sm80_gemm_16x56, 16, 56, 512, 4, 8, 0, 1)                                                                        \
    X(sm80_gemm_32x64, 32, 64, 256, 4, 4, 1, 3)                                                                        \
    X(sm80_gemm_64x56, 64, 56, 512, 2, 4, 0, 2)                                                                        \
    X(sm80_gemm_64x64, 64, 64, 256, 3, 4, 0, 2)

#define SM80_CHUNK 64 /* values along K of a row that a quad takes at a time */

/* tile_k of one stage, all warps. A chunk has 32 bytes a row, 32 bytes of padding (rows of several chunks then fall
 * into different banks), and 4 scales a row. */
#define SM80_STAGE_BYTES(tile_m, tile_n, tile_k)                                                                       \
    ((tile_k) / SM80_CHUNK * (((tile_m) + 1) * 32 + ((tile_n) + 1) * 32 + ((tile_m) + (tile_n)) * 4))
/* Pitch of the accumulator tiles in floats; the padding spreads rows over the banks. */
#define SM80_SUM_PITCH(tile_n)                 ((tile_n) + 4)
#define SM80_SUMS_BYTES(tile_m, tile_n, warps) ((warps) * (tile_m) * SM80_SUM_PITCH(tile_n) * 4)
#define SM80_MAX(a, b)                         ((a) > (b) ? (a) : (b))
/* The stages, and in their place at the end the accumulators. */
#define SM80_SHARED_BYTES(tile_m, tile_n, tile_k, stages, warps)                                                       \
    SM80_MAX((stages) * SM80_STAGE_BYTES(tile_m, tile_n, tile_k), SM80_SUMS_BYTES(tile_m, tile_n, warps))

#define SM80_REDUCE_THREADS 256 /* a thread has 4 columns of a row */

/* Second parameter of the GEMM kernels and of the reduction. The GEMM grid is tiles_m * tiles_n * l * split_k CTAs,
 * tiles_m fastest, split_k slowest. */
typedef struct sm80_schedule {
    float *partials;           /* split_k > 1: workspace, fp32 [split_k][l][m][n] */
    int64_t k_tiles_per_split; /* stages of tile_k of a CTA */
    int64_t reduce_grid;       /* CTAs of nvfp4_sm80_split_reduce; 0: no reduction */
    int32_t tiles_m, tiles_n, split_k;
    int32_t padding_;
} sm80_schedule;

#endif
