/* The instantiations of sm100/grouped.cu. Plain C preprocessor: host C and device code include it.
 *
 * mma_a has 128 rows of one matrix, or of the two that have gate and up, mma_b at most mma_tile_n rows of a group. A
 * tile of fewer rows takes a narrower mma. All instantiations add along K in the order of gemm.cu. */
#ifndef NVFP4_SM100_GROUPED_CONFIG_H
#define NVFP4_SM100_GROUPED_CONFIG_H

#include "common/gating.h"
#include "kernels/common/group_table.h"
#include "kernels/sm100/config.h"

/*    id, matrices, mma_tile_n, stages, accumulators (each of all matrices) */
#define SM100_GROUPED_CONFIGS(X)                                                                                       \
    X(sm100_grouped_128x64, 1, 64, 7, 2)                                                                               \
    X(sm100_grouped_128x128, 1, 128, 6, 2)                                                                             \
    X(sm100_grouped_gated_128x64, 2, 64, 4, 2)                                                                         \
    X(sm100_grouped_gated_128x128, 2, 128, 4, 1)

#define SM100_GROUPED_THREADS  192 /* warps: 0-3 epilogue, 4 producer, 5 mma */
#define SM100_GROUPED_MMA_STEP 16  /* rows of mma_b: an mma has a multiple of them */
#define SM100_GROUPED_BOX_ROWS 32  /* rows of A that one TMA load brings: one tensor map serves all tiles */

/* Values of each matrix and of A, then scales of each matrix and of A. */
#define SM100_GROUPED_STAGE_BYTES(matrices, mma_tile_n)                                                                \
    ((matrices) * (SM100_MMA_A_BYTES + SM100_MMA_SFA_BYTES) + SM100_MMA_B_BYTES(1, mma_tile_n) +                       \
     SM100_MMA_SFB_BYTES(mma_tile_n))
/* mbarriers: full and empty of each stage and accumulator; the tensor memory address; scratch of the table. */
#define SM100_GROUPED_BARRIER_BYTES(stages, accumulators) (16 * ((stages) + (accumulators)) + 16)
#define SM100_GROUPED_SCRATCH_BYTES                       (2 * 4 * SM100_GROUPED_THREADS / 32)
/* Stages, mbarriers, scratch, the table of groups. */
#define SM100_GROUPED_SHARED_BYTES(matrices, mma_tile_n, stages, accumulators)                                         \
    ((stages) * SM100_GROUPED_STAGE_BYTES(matrices, mma_tile_n) + SM100_GROUPED_BARRIER_BYTES(stages, accumulators) +  \
     SM100_GROUPED_SCRATCH_BYTES + GROUP_TABLE_BYTES)

/* Tensor memory columns: accumulators, then 4 columns a scale atom for each stage. */
#define SM100_GROUPED_SCALE_COLUMNS(matrices) (4 * SM100_STAGE_ATOMS * ((matrices) + 1))
#define SM100_GROUPED_USED_COLUMNS(matrices, mma_tile_n, stages, accumulators)                                         \
    ((accumulators) * (matrices) * (mma_tile_n) + (stages) * SM100_GROUPED_SCALE_COLUMNS(matrices))
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

/* Second parameter. A CTA takes tiles blockIdx.x, + gridDim.x, ...: those of a group that share columns are neighbours.
 */
typedef struct sm100_grouped_schedule {
    mma_operand mma_a, mma_b; /* B in boxes {128, 128, 1}, A in boxes {128, SM100_GROUPED_BOX_ROWS, 1} */
    int32_t tiles_n;          /* of 128 columns, of a part */
    int32_t column_pairs;     /* neighbouring columns of the result are stored as 32 bits */
    gating numbers;           /* of the activation */
    sm100_quantized quantized;
    int32_t padding_[12];
} sm100_grouped_schedule;

#endif
