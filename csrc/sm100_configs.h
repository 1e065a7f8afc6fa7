/* The instantiations of sm100_gemm.cu and the schedule they run by. Host C and device code both include this, so it is
 * plain C preprocessor.
 *
 * The side of tcgen05.mma with 128 rows a CTA is called x, the side with tile_y rows y. Which of A and B is x is the
 * schedule's choice (swap_ab: x is B), so that weights lie on the side that reads them once. A unit, one CTA or a pair
 * of two, computes 128 * group rows of x by tile_y rows of y. accumulators = 2 lets the epilogue of one tile run beside
 * the products of the next. gather = 1 adds four warps that load by cp.async what bulk copies cannot. */
#ifndef NVFP4_SM100_CONFIGS_H
#define NVFP4_SM100_CONFIGS_H

#include <stdint.h>

#include "device/tensor_map.h"
#ifdef NVFP4_DUMP
#include "device/dump.h"
#define SM100_DUMP_BYTES 16 /* two more barriers, at the end */
#else
#define SM100_DUMP_BYTES 0
#endif

/*    id, group, tile_y, stages, accumulators, gather */
#define SM100_GEMM_CONFIGS(X)                                                                                          \
    X(sm100_gemm_128x16, 1, 16, 4, 1, 0)                                                                               \
    X(sm100_gemm_128x32, 1, 32, 4, 1, 0)                                                                               \
    X(sm100_gemm_128x64, 1, 64, 4, 1, 0)                                                                               \
    X(sm100_gemm_128x128, 1, 128, 6, 2, 0)                                                                             \
    X(sm100_gemm_256x64, 2, 64, 4, 1, 0)                                                                               \
    X(sm100_gemm_256x128, 2, 128, 4, 1, 0)                                                                             \
    X(sm100_gemm_256x128_deep, 2, 128, 8, 2, 0)                                                                        \
    X(sm100_gemm_256x256, 2, 256, 5, 1, 0)                                                                             \
    X(sm100_gemm_128x16_cp_async, 1, 16, 4, 1, 1)                                                                      \
    X(sm100_gemm_128x128_cp_async, 1, 128, 6, 2, 1)

#define SM100_STAGE_K    256 /* values along K of a stage: 128 bytes of a row, one span of the 128-byte swizzle */
#define SM100_MMA_K      64  /* values along K of one tcgen05.mma */
#define SM100_ATOM_BYTES 512 /* scales of 128 rows and 64 values along K */
#define SM100_ATOM_ROWS  128
#define SM100_CTA_ROWS   128 /* rows of x in one CTA */

#define SM100_CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
/* Shared memory of a stage: values of x and y, then scales of x and y, whole atoms. A CTA of a pair holds its half of
 * y's values but the scales of all of y. */
#define SM100_X_BYTES                (SM100_CTA_ROWS * SM100_STAGE_K / 2)
#define SM100_Y_BYTES(group, tile_y) ((tile_y) / (group) * SM100_STAGE_K / 2)
#define SM100_STAGE_ATOMS            (SM100_STAGE_K / SM100_MMA_K)
#define SM100_SFX_BYTES              (SM100_STAGE_ATOMS * SM100_ATOM_BYTES)
#define SM100_SFY_BYTES(tile_y)      (SM100_CEIL_DIV(tile_y, SM100_ATOM_ROWS) * SM100_SFX_BYTES)
#define SM100_STAGE_BYTES(group, tile_y)                                                                               \
    (SM100_X_BYTES + SM100_Y_BYTES(group, tile_y) + SM100_SFX_BYTES + SM100_SFY_BYTES(tile_y))
/* Behind the stages: full and empty barriers of the stages, full and empty barriers of at most two accumulators, the
 * barrier of the partial sums, the address of the tensor memory. */
#define SM100_BARRIER_BYTES(stages) (16 * (stages) + 48 + SM100_DUMP_BYTES)
#define SM100_SHARED_BYTES(group, tile_y, stages)                                                                      \
    ((stages) * SM100_STAGE_BYTES(group, tile_y) + SM100_BARRIER_BYTES(stages))
/* Where K is cut, what the other units send, fp32: behind the barriers, for which a launch asks for so much more, or in
 * place of the stages, which takes a barrier of the cluster. */
#define SM100_PARTIALS_BYTES(tile_y, split_k) (((split_k) - 1) * ((tile_y) / (split_k)) * SM100_CTA_ROWS * 4)

/* Tensor memory: accumulators first, then for each stage 4 columns an atom. Allocations are powers of two. */
#define SM100_SCALE_COLUMNS(tile_y) (4 * SM100_STAGE_ATOMS * (1 + SM100_CEIL_DIV(tile_y, SM100_ATOM_ROWS)))
#define SM100_USED_COLUMNS(tile_y, stages, accumulators)                                                               \
    ((accumulators) * (tile_y) + (stages) * SM100_SCALE_COLUMNS(tile_y))
#define SM100_TMEM_COLUMNS(tile_y, stages, accumulators)                                                               \
    (SM100_USED_COLUMNS(tile_y, stages, accumulators) <= 256 ? 256 : 512)

/* Warps: 0-3 epilogue (warp w reaches tensor memory lanes 32w..), 4 producer, 5 mma, 6-9 gather. */
#define SM100_THREADS(gather) ((gather) ? 320 : 192)

/* One operand, as the side of the mma it is on. */
typedef struct sm100_operand {
    tensor_map values; /* uint8 {K/2, rows, L}, box {128, rows of the tile in one CTA, 1}, 128-byte swizzle */
    tensor_map scales; /* pairs: uint16 {256, ceil(K/64), ceil(rows/128), L}, box {256, 4, 1, 1}: an atom is 256 */
    const uint8_t *data;
    const uint8_t *scale;
    int64_t pitch, batch;             /* bytes from row to row, from batch to batch of data */
    int64_t scale_pitch, scale_batch; /* 128x4: bytes from 128-row block to block; linear: from row to row */
    uint64_t policy;                  /* L2 cache policy of the values and scales */
    int32_t rows;
    int32_t padding_;
} sm100_operand;

/* Second parameter of the GEMM kernels. The grid is clusters of group * split_k CTAs; rank r of a cluster is CTA
 * r % group of the unit that takes part r / group of K. A cluster begins with tile blockIdx.x / cluster and goes on
 * by the number of clusters; y fastest, then x, then the batch. */
typedef struct sm100_schedule {
    sm100_operand x, y;
    int32_t tiles;            /* x times y times l */
    int32_t tiles_x, tiles_y; /* tiles_x counts units: 128 * group rows */
    int32_t split_k;         /* > 1: a cluster's units add up, each tile_y/split_k columns (4 or more); one tile each */
    int32_t k_stages;        /* ceil(K/256); part i of K is stages [i*k_stages/split_k, (i+1)*k_stages/split_k) */
    int32_t swap_ab;         /* 1: x is B, so that x counts columns of the output */
    int32_t values_by_tma;   /* gather kernels: 1 if tensor maps reach the values, so that only scales are gathered */
    int32_t prefetch_stages; /* of x that CTAs bring into L2 while they wait for the grids before; 0: none */
    int32_t partials_in_stages; /* split_k > 1: partial sums take the place of the stages */
    int32_t padding_;
#ifdef NVFP4_DUMP
    sm100_dump *dump;             /* where one k_block of one CTA is written, or NULL */
    int32_t dump_cta, dump_block; /* blockIdx.x; k_block, which counts on through the tiles of the CTA */
#endif
} sm100_schedule;

#endif
