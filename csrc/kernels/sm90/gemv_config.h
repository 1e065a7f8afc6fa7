/* Instantiations and schedule of sm90/gemv.cu. Host C and device code share this file: plain C preprocessor.
 *
 * For 1 <= M <= rows. A tile is 8 rows of B: rows i, i + 1 of each of the four quarters (32 rows) of a 128-row block,
 * whose scales are neighbours in the 128x4 layout. Along K a warp takes steps of 512 values of a tile. */
#ifndef NVFP4_SM90_GEMV_CONFIG_H
#define NVFP4_SM90_GEMV_CONFIG_H

#include <stdint.h>

#include "kernels/common/ceil_div.h"

/*    id, rows, warps, stages of each warp's cp.async pipeline */
#define SM90_GEMV_CONFIGS(X)                                                                                           \
    X(sm90_gemv_1, 1, 8, 3)                                                                                            \
    X(sm90_gemv_2, 2, 16, 2)                                                                                           \
    X(sm90_gemv_4, 4, 16, 2)

/* Instantiations that quantize a 16-bit A themselves (sm90/gemv_quantize.cuh), for K up to QUANTIZE_MAX_K. For 4096x7168
 * and 7168x2048 that takes 0.4 and 0.6 us in a graph, where a quantizer and its launch take 1.4. For 7168x16384 it takes
 * 1.6 us, a quantizer 1.1 (H200). On an H100 the last took 0.5. */
/*    id, rows, warps, stages, x (fp16 1 / bf16 2) */
#define SM90_GEMV_QUANTIZE_CONFIGS(X)                                                                                  \
    X(sm90_gemv_quantize_fp16_1, 1, 8, 3, 1)                                                                           \
    X(sm90_gemv_quantize_bf16_1, 1, 8, 3, 2)

#define SM90_GEMV_QUANTIZE_MAX_K 32768

#define SM90_GEMV_STEP_K     512 /* values along K */
#define SM90_GEMV_TILE_N     8
#define SM90_GEMV_STEP_BYTES (SM90_GEMV_TILE_N * (SM90_GEMV_STEP_K / 2 + SM90_GEMV_STEP_K / 16))

#define SM90_GEMV_MIN(a, b)      ((a) < (b) ? (a) : (b))
#define SM90_GEMV_THREADS(warps) (32 * (warps))
#define SM90_GEMV_STEPS(k)       CEIL_DIV(k, SM90_GEMV_STEP_K)
/* Tiles of n rows of B; the first quarter of the last block may have less than 32 rows. */
#define SM90_GEMV_TILES(n) ((n) / 128 * 16 + CEIL_DIV(SM90_GEMV_MIN((n) % 128, 32), 2))
/* Shared memory: partial sums of the CTA's tiles, one for each split; A as int8, with the factors of its blocks of 16;
 * the warps' stages, as many as a warp has steps, at most `stages`. */
#define SM90_GEMV_PARTIALS_BYTES(rows, tiles_per_cta, split_k)                                                         \
    ((rows) * (tiles_per_cta) * (split_k) * SM90_GEMV_TILE_N * 4)
#define SM90_GEMV_A_BYTES(rows, steps)        ((rows) * (steps) * (SM90_GEMV_STEP_K / 16) * ((rows) == 1 ? 16 + 4 : 16 + 8))
#define SM90_GEMV_STAGES_BYTES(warps, stages) ((warps) * (stages) * SM90_GEMV_STEP_BYTES)
#define SM90_GEMV_PARTIALS_LIMIT              16384 /* bytes of the partials of a schedule */
/* A kernel that quantizes has a row of 16-bit values behind A. */
#define SM90_GEMV_X_BYTES(steps) ((steps) * SM90_GEMV_STEP_K * 2)
/* How an instantiation is loaded: its kernel_entry, for the host. */
#define SM90_GEMV_ENTRY(id, rows, warps, ...)                                                                          \
    {.name = "nvfp4_" #id, .source = "sm90_gemv", .threads = SM90_GEMV_THREADS(warps), .more_shared = 1, .pdl = 1},

/* Second parameter of the kernels. The grid is ctas * L CTAs: CTA b has batch b / ctas and there tiles b % ctas, b %
 * ctas + ctas, ... Groups of split_k warps take a tile each; warp i of a group has steps [i * steps / split_k, (i + 1)
 * * steps / split_k).
 *
 * The schedule of a kernel of `rows` and `warps` (integer divisions):
 *
 *   steps         = SM90_GEMV_STEPS(k), tiles = SM90_GEMV_TILES(n)
 *   ctas          = max(min(tiles, max(1, sm_count / L)), CEIL_DIV(tiles, PARTIALS_LIMIT / PARTIALS_BYTES(rows, 1,
 *                 1)))
 *   tiles_per_cta = CEIL_DIV(tiles, ctas), full_ctas = tiles % ctas
 *   split_k       = of the powers of two from 1 to min(warps, steps), or 1, with PARTIALS_BYTES(rows, tiles_per_cta,
 *                 split_k) <= PARTIALS_LIMIT, the one with the fewest steps of the busiest warp,
 *                 CEIL_DIV(tiles_per_cta, warps / split_k) * CEIL_DIV(steps, split_k). The smallest of equals: it
 *                 reduces over lanes less often (14336x4096 on an H200: 13.6 us, the largest 14.6)
 *   stages        = min(stages, steps of the busiest warp)
 *   shared bytes  = PARTIALS_BYTES(rows, tiles_per_cta, split_k) + A_BYTES(rows, steps) + STAGES_BYTES(warps, stages),
 *                 with X_BYTES(steps) behind A where it is quantized. More keeps other CTAs off the SM (gemv_plan.c)
 *
 * A product whose shared bytes exceed those of a CTA (long K) is not supported by the kernel. */
typedef struct sm90_gemv_schedule {
    int32_t ctas; /* of a batch */
    int32_t tiles_per_cta;
    int32_t full_ctas; /* CTAs below it have tiles_per_cta tiles, the others one less; 0: all have tiles_per_cta */
    int32_t steps;
    int32_t log2_split_k;
    float global_value;        /* where the kernel quantizes A, and global_scale is NULL */
    const float *global_scale; /* and there */
} sm90_gemv_schedule;

#endif
