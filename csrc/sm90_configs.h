/* The instantiations of sm90_gemm.cu and the schedule they run by. Host C and device code both include this, so it is
 * plain C preprocessor.
 *
 * The side of wgmma whose rows are decoded in registers is called x, the side that is decoded into shared memory y.
 * Which of A and B is x is the schedule's choice (swapped: x is B). A CTA computes math_groups * 64 * x_tiles rows of x
 * by tile_y rows of y. */
#ifndef NVFP4_SM90_CONFIGS_H
#define NVFP4_SM90_CONFIGS_H

#include <stdint.h>

#include "device/tensor_map.h"

/*    id, math_groups, x_tiles, tile_y, stages, y_stages, support_groups */
#define SM90_GEMM_CONFIGS(X)                                                                                           \
    X(sm90_gemm_128x8, 2, 1, 8, 8, 4, 1)                                                                               \
    X(sm90_gemm_128x16, 2, 1, 16, 8, 4, 1)                                                                             \
    X(sm90_gemm_128x32, 2, 1, 32, 8, 3, 1)                                                                             \
    X(sm90_gemm_128x64, 2, 1, 64, 6, 3, 1)                                                                             \
    X(sm90_gemm_256x64, 2, 2, 64, 4, 3, 1)                                                                             \
    X(sm90_gemm_128x112, 2, 1, 112, 4, 2, 2)                                                                           \
    X(sm90_gemm_128x128, 2, 1, 128, 4, 2, 2)                                                                           \
    X(sm90_gemm_256x112, 2, 2, 112, 4, 2, 1)                                                                           \
    X(sm90_gemm_256x128, 2, 2, 128, 4, 2, 1)

#define SM90_STAGE_K     128 /* values along K of a stage: 64 bytes of a row */
#define SM90_STAGE_ATOMS 2   /* along K of a stage */
#define SM90_ATOM_BYTES  512 /* scales of 128 rows and 64 values along K */
#define SM90_ATOM_ROWS   128

#define SM90_CEIL_DIV(a, b)                (((a) + (b) - 1) / (b))
#define SM90_TILE_X(math_groups, x_tiles)  ((math_groups) * (x_tiles) * 64)
#define SM90_THREADS(math_groups, support) (((math_groups) + (support)) * 128)
/* Blocks of 128 rows that a tile of y touches, which begins on a multiple of tile_y. */
#define SM90_Y_BLOCKS(tile_y) (128 % (tile_y) ? 1 + SM90_CEIL_DIV(tile_y, 128) : SM90_CEIL_DIV(tile_y, 128))
/* A stage as it arrives: values of x, values of y, scales of x, scales of y. */
#define SM90_BLOCK_BYTES (SM90_STAGE_ATOMS * SM90_ATOM_BYTES)
#define SM90_STAGE_BYTES(tile_x, tile_y)                                                                               \
    (((tile_x) + (tile_y)) * (SM90_STAGE_K / 2) + ((tile_x) / 128 + SM90_Y_BLOCKS(tile_y)) * SM90_BLOCK_BYTES)
/* A stage of y decoded: fp16 [16 pieces of 8 along K][tile_y][8]. */
#define SM90_DECODED_BYTES(tile_y) ((tile_y) * SM90_STAGE_K * 2)
/* Where a warp turns 32 columns of 16 rows of sums into the order of the output: fp32, rows padded against bank
 * conflicts. */
#define SM90_TURN_BYTES (32 * 20 * 4)
/* Stages, decoded stages, a turning place for each math warp, then barriers. */
#define SM90_SHARED_BYTES(math_groups, x_tiles, tile_y, stages, y_stages)                                              \
    ((stages) * SM90_STAGE_BYTES(SM90_TILE_X(math_groups, x_tiles), tile_y) +                                          \
     (y_stages) * SM90_DECODED_BYTES(tile_y) + (math_groups) * 4 * SM90_TURN_BYTES + 16 * ((stages) + (y_stages)) +    \
     16)
/* Where K is cut, what the other units send, fp32 fragments: behind the barriers, for which a launch asks for so much
 * more, or in place of the stages, which takes a barrier of the cluster. */
#define SM90_PARTS_BYTES(math_groups, x_tiles, tile_y, split_k)                                                        \
    (((split_k) - 1) * SM90_CEIL_DIV((tile_y) / 8, split_k) * (math_groups) * (x_tiles) * 2048)

/* One operand, as the side of wgmma it is on. */
typedef struct sm90_operand {
    tensor_map values; /* uint8 {K/2, rows, L}, box {64, rows of the tile, 1}; x as it lies, y in the 64-byte swizzle */
    const uint8_t *data;
    const uint8_t *scale;
    int64_t pitch, batch;             /* bytes from row to row, from batch to batch of data */
    int64_t scale_pitch, scale_batch; /* 128x4: bytes from 128-row block to block; linear: from row to row */
    uint64_t policy;                  /* L2 cache policy of the values and scales */
    int32_t rows;
    int32_t padding_;
} sm90_operand;

/* Second parameter of the GEMM kernels. The grid is clusters of split_k CTAs; rank r of a cluster takes part r of K.
 * A cluster begins with tile blockIdx.x / split_k and goes on by the number of clusters; y fastest, then x, then the
 * batch. */
typedef struct sm90_schedule {
    sm90_operand x, y;
    int32_t tiles; /* x times y times l */
    int32_t tiles_x, tiles_y;
    int32_t split_k;         /* 1 to 8; > 1: the CTAs of a cluster add up; one tile each */
    int32_t k_stages;        /* ceil(K/128); part i of K is stages [i*k_stages/split_k, (i+1)*k_stages/split_k) */
    int32_t swapped;         /* 1: x is B, so that x counts columns of the output */
    int32_t parts_in_stages; /* split_k > 1: partial sums take the place of the stages */
    int32_t values_by_tma;   /* 1: tensor maps reach the values */
    int32_t scales_by_bulk;  /* 1: scales are in the 128x4 layout; 0: linear */
    int32_t padding_;
} sm90_schedule;

#endif
