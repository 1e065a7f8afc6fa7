/* The instantiations of sm90_gemm.cu and the schedule they run by. Host C and device code both include this, so it is
 * plain C preprocessor.
 *
 * The side of wgmma whose rows are decoded in registers is called x, the other one y: it has been expanded to fp16 in a
 * workspace (sm90_dequant.cu), or, where it has so few rows that it fits a tile of 16, it is decoded inside. Which of A
 * and B is x is the schedule's choice (swap_ab: x is B), so that the larger one stays raw. A CTA computes
 * math_warpgroups * 64 * x_tiles rows of x by tile_y rows of y. */
#ifndef NVFP4_SM90_CONFIGS_H
#define NVFP4_SM90_CONFIGS_H

#include <stdint.h>

#include "device/tensor_map.h"
#include "sm90_prefill_configs.h"

/*    id, math_warpgroups, x_tiles, tile_y, group_words, stages, helped */
#define SM90_GEMM_CONFIGS(X)                                                                                           \
    X(sm90_gemm_128x8, 2, 1, 8, 2, 10, 0)                                                                              \
    X(sm90_gemm_256x8, 4, 1, 8, 2, 8, 0)                                                                               \
    X(sm90_gemm_128x16, 2, 1, 16, 2, 10, 0)                                                                            \
    X(sm90_gemm_256x16, 4, 1, 16, 1, 8, 0)                                                                             \
    X(sm90_gemm_128x32, 2, 1, 32, 2, 8, 0)                                                                             \
    X(sm90_gemm_256x32, 4, 1, 32, 2, 6, 0)                                                                             \
    X(sm90_gemm_128x64, 2, 1, 64, 2, 6, 0)                                                                             \
    X(sm90_gemm_256x64, 4, 1, 64, 1, 5, 0)                                                                             \
    X(sm90_gemm_128x128, 2, 1, 128, 1, 4, 0)                                                                           \
    X(sm90_gemm_128x32_streamk, 2, 1, 32, 2, 8, 1)                                                                     \
    X(sm90_gemm_128x64_streamk, 2, 1, 64, 2, 6, 1)                                                                     \
    X(sm90_gemm_128x128_streamk, 2, 1, 128, 1, 4, 1)

#define SM90_STAGE_K     128  /* values along K of a stage: 64 bytes of a row of x, two spans of the swizzle of y */
#define SM90_ATOM_BYTES  512  /* scales of 128 rows and 64 values along K */
#define SM90_BLOCK_BYTES 1024 /* scales of 128 rows and 128 values along K */
#define SM90_ATOM_ROWS   128

#define SM90_CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
/* Whether y arrives raw. Measured: up to 16 rows a queue of calls was 7 to 14 % faster than behind an expansion, whose
 * CTAs then had 128 rows each (benchmarks/log/sm90_gemm.csv, rows 20 and 29). */
#define SM90_Y_RAW(tile_y)                    ((tile_y) <= 16)
#define SM90_TILE_X(math_warpgroups, x_tiles) ((math_warpgroups) * (x_tiles) * 64)
#define SM90_THREADS(math_warpgroups)         (((math_warpgroups) + 1) * 128)
/* A stage: y fp16, first and second 64 along K, x values, x scales. */
#define SM90_Y_BYTES(tile_y) ((tile_y) * SM90_STAGE_K * 2)
#define SM90_X_BYTES(tile_x) ((tile_x) * (SM90_STAGE_K / 2) + (tile_x) / SM90_ATOM_ROWS * SM90_BLOCK_BYTES)
#define SM90_STAGE_BYTES(math_warpgroups, x_tiles, tile_y)                                                             \
    (SM90_Y_BYTES(tile_y) + SM90_X_BYTES(SM90_TILE_X(math_warpgroups, x_tiles)))
/* Where a warp keeps 16 columns of 16 rows of sums while it finishes them, fp32. */
#define SM90_EPILOGUE_STAGING_BYTES (16 * 16 * 4)
/* Stages, a turning place for each math warp, then barriers. */
#define SM90_SHARED_BYTES(math_warpgroups, x_tiles, tile_y, stages)                                                    \
    ((stages) * SM90_STAGE_BYTES(math_warpgroups, x_tiles, tile_y) +                                                   \
     (math_warpgroups) * 4 * SM90_EPILOGUE_STAGING_BYTES + 16 * (stages) + 16)
/* Where K is cut, what the other units send, fp32 fragments: behind the barriers, for which a launch asks for so much
 * more, or in place of the stages, which takes a barrier of the cluster. */
#define SM90_PARTIALS_BYTES(math_warpgroups, x_tiles, tile_y, split_k)                                                 \
    (((split_k) - 1) * SM90_CEIL_DIV((tile_y) / 8, split_k) * (math_warpgroups) * (x_tiles) * 2048)
#define SM90_PARTIALS_ROOM(math_warpgroups, x_tiles, tile_y, stages)                                                   \
    ((stages) * SM90_STAGE_BYTES(math_warpgroups, x_tiles, tile_y))
/* CTAs that help, at most: each has a flag, which one CTA of the expansion zeroes. */
#define SM90_MAX_WORKERS 512
/* What a helper leaves in the workspace for a tile, fp32 fragments. */
#define SM90_PARTIAL_TILE_BYTES(math_warpgroups, x_tiles, tile_y) ((math_warpgroups) * (x_tiles) * 64 * (tile_y) * 4)

/* x. */
typedef struct sm90_operand {
    tensor_map values; /* uint8 {K/2, rows, L}, box {64, rows of the tile, 1}, no swizzle */
    const uint8_t *scale;
    int64_t scale_pitch, scale_batch; /* 128x4: bytes from 128-row block to block, from batch to batch */
    uint64_t policy;                  /* L2 cache policy of the values and scales */
    int32_t rows;
    int32_t padding_;
} sm90_operand;

/* y, expanded; of raw y only `rows`. */
typedef struct sm90_mma_b_operand {
    tensor_map values; /* fp16 {64 ceil(K/64), rows, L}, box {64, tile_y, 1}, 128-byte swizzle */
    uint64_t policy;
    int32_t rows;
    int32_t shared; /* 1: one for all batches */
} sm90_mma_b_operand;

/* Second parameter of the GEMM kernels. The grid is split_k by clusters CTAs, split_k of them a cluster; CTA (u, c)
 * takes part u of K, begins with tile c and goes on by the number of clusters; y fastest, then x, then the batch. What
 * helped kernels do instead is in sm90_gemm_parts.cuh. */
typedef struct sm90_schedule {
    sm90_operand x;
    sm90_mma_b_operand y;
    sm90_dequant_operand raw_y; /* SM90_Y_RAW: y as it lies */
    int32_t tiles;              /* x times y times l */
    int32_t tiles_x, tiles_y;
    int32_t split_k;              /* 1 to 8; > 1: the CTAs of a cluster add up; one tile each */
    int32_t stages_per_split;     /* of ceil(K/128) stages, less streamk_stages, part i of K has so many ... */
    int32_t splits_with_one_more; /* ... and the first so many parts one more */
    int32_t swap_ab;              /* 1: x is B, so that x counts columns of the output */
    int32_t partials_in_stages;   /* split_k > 1: partial sums take the place of the stages; not if helped */
    /* Of helped kernels alone. */
    int32_t whole;           /* tiles, the first ones, that are not divided: 0, or a multiple of clusters */
    int32_t k_stages;        /* ceil(K/128) */
    int32_t worker_clusters; /* the first ones; the others have a divided tile each */
    int32_t streamk_stages, worker_stages; /* of a divided tile that helpers compute; that one helper computes */
    uint32_t inv_streamk_stages, inv_worker_stages; /* ceil(2^31 / these) */
    uint32_t inv_split_k;                           /* of every kernel: ceil(2^31 / split_k) */
    uint8_t *partial_tiles;                         /* in the workspace: one for each helper and divided tile */
    uint32_t *fixup_flags;                          /* by helper: warps that have, 0 at the start */
} sm90_schedule;

#endif
