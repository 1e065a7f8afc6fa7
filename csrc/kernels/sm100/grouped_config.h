/* The instantiations of sm100/grouped.cu. Plain C preprocessor: host C and device code include it.
 *
 * mma_a has 128 rows a CTA, mma_b at most mma_tile_n rows of a group. A tile of fewer rows takes a narrower mma. With
 * matrices = 2 a tile has the same columns of gate and of up: a CTA alone has two mma_a of 128 rows, a pair of CTAs
 * (cta_group = 2) one of 256 rows, in which rows of both are interleaved. All instantiations add along K in the order
 * of gemm.cu. */
#ifndef NVFP4_SM100_GROUPED_CONFIG_H
#define NVFP4_SM100_GROUPED_CONFIG_H

#include "common/gating.h"
#include "kernels/common/group_table.h"
#include "kernels/sm100/config.h"

#ifndef SM100_GROUPED_CONFIGS /* a program may choose its own */
/*    id, cta_group, matrices, mma_tile_n, stages, accumulators (each of all matrices) */
#define SM100_GROUPED_CONFIGS(X)                                                                                       \
    X(sm100_grouped_128x64, 1, 1, 64, 7, 2)                                                                            \
    X(sm100_grouped_128x128, 1, 1, 128, 6, 2)                                                                          \
    X(sm100_grouped_256x256, 2, 1, 256, 5, 1)                                                                          \
    X(sm100_grouped_gated_128x64, 1, 2, 64, 4, 2)                                                                      \
    X(sm100_grouped_gated_128x128, 1, 2, 128, 4, 1)                                                                    \
    X(sm100_grouped_gated_128x256, 2, 2, 256, 5, 1)
/* 1: a dual product of fp32. Products are not rounded before the activation. */
#define SM100_GROUPED_DUAL 0
#endif

/* Warps: 0-3 epilogue, 4 producer, 5 mma, 6-9 (pairs only) epilogue of rows 128 and on. */
#define SM100_GROUPED_THREADS(cta_group) ((cta_group) == 2 ? 320 : 192)
#define SM100_GROUPED_MMA_STEP           16 /* rows of mma_b: an mma has a multiple of them */
#define SM100_GROUPED_BOX_ROWS           32 /* rows of A that one TMA load brings: one tensor map serves all tiles */

/* Columns of a part of the result that a tile has. */
#define SM100_GROUPED_TILE_COLUMNS(cta_group, matrices) ((matrices) == 2 ? 128 : 128 * (cta_group))
/* mma_a of 128 rows in one CTA, each with an accumulator. */
#define SM100_GROUPED_CTA_MMAS(cta_group, matrices) ((cta_group) == 2 ? 1 : (matrices))
/* Rows of a matrix that follow each other where two are interleaved: half of a warp's lanes, a block of 16 columns. */
#define SM100_GROUPED_INTERLEAVED_ROWS 16

/* Values of each mma_a and of mma_b, then scales of each. */
#define SM100_GROUPED_STAGE_BYTES(cta_group, matrices, mma_tile_n)                                                     \
    (SM100_GROUPED_CTA_MMAS(cta_group, matrices) * (SM100_MMA_A_BYTES + SM100_MMA_SFA_BYTES) +                         \
     SM100_MMA_B_BYTES(cta_group, mma_tile_n) + SM100_MMA_SFB_BYTES(mma_tile_n))
/* mbarriers: full and empty of each stage and accumulator; the tensor memory address; scratch of the table. */
#define SM100_GROUPED_BARRIER_BYTES(stages, accumulators) (16 * ((stages) + (accumulators)) + 16)
#define SM100_GROUPED_SCRATCH_BYTES(cta_group)            (2 * 4 * SM100_GROUPED_THREADS(cta_group) / 32)
/* Stages, mbarriers, scratch, the table of groups. */
#define SM100_GROUPED_SHARED_BYTES(cta_group, matrices, mma_tile_n, stages, accumulators)                              \
    ((stages) * SM100_GROUPED_STAGE_BYTES(cta_group, matrices, mma_tile_n) +                                           \
     SM100_GROUPED_BARRIER_BYTES(stages, accumulators) + SM100_GROUPED_SCRATCH_BYTES(cta_group) + GROUP_TABLE_BYTES)

/* Tensor memory columns: accumulators, then 4 columns a scale atom for each stage. */
#define SM100_GROUPED_SUMS(cta_group, matrices, mma_tile_n) (SM100_GROUPED_CTA_MMAS(cta_group, matrices) * (mma_tile_n))
#define SM100_GROUPED_SCALE_COLUMNS(cta_group, matrices, mma_tile_n)                                                   \
    (4 * SM100_STAGE_ATOMS * (SM100_GROUPED_CTA_MMAS(cta_group, matrices) + CEIL_DIV(mma_tile_n, SM100_ATOM_ROWS)))
#define SM100_GROUPED_USED_COLUMNS(cta_group, matrices, mma_tile_n, stages, accumulators)                              \
    ((accumulators) * SM100_GROUPED_SUMS(cta_group, matrices, mma_tile_n) +                                            \
     (stages) * SM100_GROUPED_SCALE_COLUMNS(cta_group, matrices, mma_tile_n))
#define SM100_GROUPED_TMEM_COLUMNS 512

/* Results as NVFP4 with 128x4 scales (common/row_op_problems.h); data NULL: results are numbers. */
typedef struct sm100_quantized {
    uint8_t *data, *scale;
    int32_t *scale_rows;
    const float *global_scale;
    int64_t data_pitch, scale_pitch; /* bytes between rows, and between blocks of 128 rows */
    float global_value;
    int32_t global_by;
} sm100_quantized;

/* Second parameter. CTA or pair i of n takes tiles i, i + n, ...: those of a group that share columns are neighbours.
 *
 * Values of B: boxes {128, 128, 1}; a pair with two matrices has uint8 {K/2, 32, L, N/32} in boxes {128, 16, 2, 4}. Of
 * A: boxes {128, SM100_GROUPED_BOX_ROWS, 1}. */
typedef struct sm100_grouped_schedule {
    mma_operand mma_a, mma_b;
    /* Pairs only. Of B: uint16 {256, ceil(K/64), ceil(N/128), L} in boxes {256, 4, 1, 1}; with two matrices {256, L,
     * ceil(K/64), ceil(N/128)} in boxes {128, 2, 4, 1}. Of A: {256, ceil(K/64), blocks, 1} in boxes {256, 4, 1, 1}. */
    tensor_map mma_a_scales, mma_b_scales;
    int32_t tiles_n;      /* of a part */
    int32_t column_pairs; /* neighbouring columns of the result are stored as 32 bits */
    gating numbers;       /* of the activation */
    sm100_quantized quantized;
    int32_t is_dense;    /* one group, whose scales lie as its rows: all rows before its end, or, without ends, all */
    int32_t up_is_first; /* of two matrices; with SM100_GROUPED_DUAL alone */
    int32_t padding_[10];
} sm100_grouped_schedule;

#endif
