/* The instantiations of sm80_gemm.cu and the schedule they run by. Host C and device code both include this, so it is
 * plain C preprocessor.
 *
 * A CTA computes tile_m x tile_n of C. Of every tile_k values along K each of its warps takes an equal share, and the
 * warps add up in shared memory. weights_first = 1 puts the rows of B on the 16-wide side of the mma and those of A on
 * the 8-wide one, so that a few rows of A waste less. ctas_per_sm is what registers are allotted for. */
#ifndef NVFP4_SM80_CONFIGS_H
#define NVFP4_SM80_CONFIGS_H

#include <stdint.h>

/*    id, tile_m, tile_n, tile_k, stages, warps, weights_first, ctas_per_sm */
#define SM80_GEMM_CONFIGS(X)                                                                                           \
    X(sm80_gemm_8x32, 8, 32, 1024, 4, 8, 1, 2)                                                                         \
    X(sm80_gemm_16x32, 16, 32, 1024, 3, 8, 1, 2)                                                                       \
    X(sm80_gemm_16x56, 16, 56, 512, 4, 8, 0, 1)                                                                        \
    X(sm80_gemm_32x64, 32, 64, 256, 4, 4, 1, 3)                                                                        \
    X(sm80_gemm_64x56, 64, 56, 512, 2, 4, 0, 2)                                                                        \
    X(sm80_gemm_64x64, 64, 64, 256, 3, 4, 0, 2)

#define SM80_CHUNK 64 /* values along K of one row that a quad of lanes takes at a time */

/* tile_k of one stage, all warps: for each chunk, 32 bytes a row (and 32 of padding, so that rows of several chunks
 * written side by side fall into different banks) and 4 scales a row. */
#define SM80_STAGE_BYTES(tile_m, tile_n, tile_k)                                                                       \
    ((tile_k) / SM80_CHUNK * (((tile_m) + 1) * 32 + ((tile_n) + 1) * 32 + ((tile_m) + (tile_n)) * 4))
/* Sums are fp32 in rows that far apart, in floats, which spreads them over the banks. */
#define SM80_SUM_PITCH(tile_n)                 ((tile_n) + 4)
#define SM80_SUMS_BYTES(tile_m, tile_n, warps) ((warps) * (tile_m) * SM80_SUM_PITCH(tile_n) * 4)
#define SM80_MAX(a, b)                         ((a) > (b) ? (a) : (b))
/* The rings, and in the end the sums in their place. */
#define SM80_SHARED_BYTES(tile_m, tile_n, tile_k, stages, warps)                                                       \
    SM80_MAX((stages) * SM80_STAGE_BYTES(tile_m, tile_n, tile_k), SM80_SUMS_BYTES(tile_m, tile_n, warps))

#define SM80_REDUCE_THREADS 256 /* each finishes 4 columns of a row */
#define QUANTIZE_THREADS    256

/* Second parameter of the GEMM kernels and of the reduction. The GEMM's grid is
 * tiles_m * tiles_n * l * split_k CTAs, tile_m fastest, split slowest. */
typedef struct sm80_schedule {
    float *partial;      /* split_k > 1: fp32 [split_k][l][m][n], the workspace */
    int64_t split_tiles; /* stages of tile_k that one CTA runs */
    int64_t reduce_grid; /* CTAs of nvfp4_sm80_split_reduce to launch afterwards; 0: none */
    int32_t tiles_m, tiles_n, split_k;
    int32_t padding_;
} sm80_schedule;

#endif
