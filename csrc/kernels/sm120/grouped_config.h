/* The instantiations of sm120/grouped.cu. Plain C preprocessor: host C and device code include it.
 *
 * A tile is mma_tile_m columns of a part of the result, rows of B, by at most mma_tile_n rows of a group. All
 * instantiations add along K in one order. By the model one of 32 rows would gain 0.5 % at most, for 20 KB of code. */
#ifndef NVFP4_SM120_GROUPED_CONFIG_H
#define NVFP4_SM120_GROUPED_CONFIG_H

#include "common/gating.h"
#include "kernels/common/group_table.h"
#include "kernels/sm120/config.h"

/*    id, mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n */
#define SM120_GROUPED_CONFIGS(X)                                                                                       \
    X(sm120_grouped_128x8, 128, 8, 256, 4, 8, 1)                                                                       \
    X(sm120_grouped_128x16, 128, 16, 256, 3, 8, 1)                                                                     \
    X(sm120_grouped_128x64, 128, 64, 128, 5, 4, 2)                                                                     \
    X(sm120_grouped_128x128, 128, 128, 128, 4, 2, 4)                                                                   \
    X(sm120_grouped_256x128, 256, 128, 128, 3, 4, 2)

/* Behind what a CTA of gemm.cu has: the table of groups (common/group_table.cuh). */
#define SM120_GROUPED_SHARED_BYTES(mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n)                          \
    (SM120_SHARED_BYTES(mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n) + GROUP_TABLE_BYTES)

/* Second parameter. A CTA takes tiles, or pairs of them, blockIdx.x, + gridDim.x, ... */
typedef struct sm120_grouped_schedule {
    mma_operand mma_a, mma_b; /* B and A; the latter's rows of scales are where grouped_problem says */
    int32_t tiles_n;          /* of mma_tile_m columns, of a part */
    int32_t scales_by_tma;    /* 0: threads load the scales: they are linear, or values are not by TMA */
    int32_t values_by_tma;    /* 0: threads load the values too, which no tensor map describes */
    int32_t pairs;            /* 1: gated, of two parts: a CTA takes a tile of part 0 and the same of part 1 */
    gating numbers;           /* of the activation */
    int32_t padding_[8];
} sm120_grouped_schedule;

#endif
