/* The instantiations of sm120/gemm.cu and the schedule that a launch passes to them. Plain C preprocessor: host C and
 * device code include it.
 *
 * A CTA computes mma_tile_m x mma_tile_n: mma_a, the operand of the mma with 16 rows, has mma_tile_m rows, mma_b, the
 * one with 8, mma_tile_n. With swap_ab mma_a is the caller's B. The tile is divided among warps_m x warps_n warps; one
 * more loads. */
#ifndef NVFP4_SM120_CONFIG_H
#define NVFP4_SM120_CONFIG_H

#include <stdint.h>

#include "common/mma_operand.h"
#include "kernels/common/ceil_div.h"

/*    id, mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n */
#define SM120_GEMM_CONFIGS(X)                                                                                          \
    X(sm120_gemm_128x8, 128, 8, 256, 4, 8, 1)                                                                          \
    X(sm120_gemm_128x16, 128, 16, 256, 4, 8, 1)                                                                        \
    X(sm120_gemm_128x32, 128, 32, 256, 3, 4, 2)                                                                        \
    X(sm120_gemm_128x64, 128, 64, 256, 3, 4, 2)                                                                        \
    X(sm120_gemm_128x128, 128, 128, 128, 5, 2, 4)                                                                      \
    X(sm120_gemm_256x128, 256, 128, 128, 3, 4, 2)

#define SM120_MMA_K      64  /* K of one mma */
#define SM120_PART_K     256 /* K is split at multiples of it, whatever stage_k is */
#define SM120_ATOM_BYTES 512 /* a scale atom: 128 rows, K = 64 */
#define SM120_ATOM_ROWS  128

/* Shared memory of a stage: values of mma_a and mma_b in the swizzle of the row's bytes, then whole scale atoms of
 * each, [128 rows][K] of atoms. */
#define SM120_ROW_BYTES(stage_k)           ((stage_k) / 2)
#define SM120_STAGE_ATOMS(stage_k)         ((stage_k) / SM120_MMA_K)
#define SM120_BLOCK_BYTES(stage_k)         (SM120_STAGE_ATOMS(stage_k) * SM120_ATOM_BYTES) /* scales of 128 rows */
#define SM120_SCALE_BYTES(rows, stage_k)   (CEIL_DIV(rows, SM120_ATOM_ROWS) * SM120_BLOCK_BYTES(stage_k))
#define SM120_OPERAND_BYTES(rows, stage_k) ((rows) * SM120_ROW_BYTES(stage_k) + SM120_SCALE_BYTES(rows, stage_k))
#define SM120_STAGE_BYTES(mma_tile_m, mma_tile_n, stage_k)                                                             \
    (SM120_OPERAND_BYTES(mma_tile_m, stage_k) + SM120_OPERAND_BYTES(mma_tile_n, stage_k))
#define SM120_WARPS(warps_m, warps_n) ((warps_m) * (warps_n)) /* that multiply */
/* A warp tile of 64 x 64 takes more registers than an even share. They come from a warpgroup of the producer's, of
 * which one warp works (setmaxnreg). */
#define SM120_LARGE_WARP_TILE(mma_tile_m, mma_tile_n, warps_m, warps_n)                                                \
    ((mma_tile_m) * (mma_tile_n) >= 64 * 64 * SM120_WARPS(warps_m, warps_n))
#define SM120_THREADS(mma_tile_m, mma_tile_n, warps_m, warps_n)                                                        \
    (32 * (SM120_WARPS(warps_m, warps_n) + (SM120_LARGE_WARP_TILE(mma_tile_m, mma_tile_n, warps_m, warps_n) ? 4 : 1)))
/* Behind the stages: each warp's epilogue staging buffer, 16 x 16 fp32 sums or 16 x 8. */
#define SM120_BLOCK_COLUMNS(mma_tile_n, warps_n) ((mma_tile_n) / (warps_n) < 16 ? (mma_tile_n) / (warps_n) : 16)
#define SM120_STAGING_BYTES(mma_tile_n, warps_m, warps_n)                                                              \
    (SM120_WARPS(warps_m, warps_n) * 16 * SM120_BLOCK_COLUMNS(mma_tile_n, warps_n) * 4)
/* Then the mbarriers full and empty of each stage, and partials_full. */
#define SM120_SHARED_BYTES(mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n)                                  \
    ((stages) * SM120_STAGE_BYTES(mma_tile_m, mma_tile_n, stage_k) +                                                   \
     SM120_STAGING_BYTES(mma_tile_n, warps_m, warps_n) + 16 * (stages) + 16)
/* Split-K: fp32 partial sums that a CTA receives, in place of the stages. */
#define SM120_PARTIALS_BYTES(mma_tile_m, mma_tile_n, split_k)                                                          \
    ((mma_tile_m) * (mma_tile_n) * 4 / (split_k) * ((split_k) - 1))

enum { SM120_CONSTANT_NONE, SM120_CONSTANT_MMA_A, SM120_CONSTANT_MMA_B };

/* Second parameter of the GEMM kernels. Cluster c of n computes tiles c, c + n, ...; under split-K one, and CTA r of a
 * cluster has part r of K. The tiles of group_m rows of tiles come one after the other, column by column, so that those
 * computed at a time share rows of both operands; then the next group_m rows, then the next batch. */
typedef struct sm120_schedule {
    mma_operand mma_a, mma_b;         /* values: box {stage_k / 2, rows of the tile, 1}, swizzled as wide as the box */
    int32_t tiles;                    /* tiles_mma_m * tiles_mma_n * L */
    int32_t tiles_mma_m, tiles_mma_n; /* of mma_tile_m rows of mma_a, of mma_tile_n rows of mma_b */
    int32_t group_m;
    int32_t split_k;          /* 1, 2, 4 or 8 */
    int32_t k_parts;          /* ceil(K/SM120_PART_K); index i has parts [i*k_parts/split_k, (i+1)*k_parts/split_k) */
    int32_t swap_ab;          /* 1: mma_a is the caller's B, so accumulator rows are columns of the output */
    int32_t scales_by_tma;    /* 0: threads load the scales: they are linear, or K is not a multiple of 64 */
    int32_t values_by_tma;    /* 0: threads load the values too, which no tensor map describes */
    int32_t constant_operand; /* SM120_CONSTANT_*: loaded ahead of griddepcontrol.wait; with scales_by_tma alone */
} sm120_schedule;

#endif
