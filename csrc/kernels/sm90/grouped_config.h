/* Instantiations of sm90/grouped.cu. Host C and device code share this file: plain C preprocessor.
 *
 * mma_a, the operand A of wgmma, is B: a tile is 128 columns of a part of the result by at most mma_tile_n rows of a
 * group. A tile of fewer rows takes a narrower wgmma. All of them add along K in one order. */
#ifndef NVFP4_SM90_GROUPED_CONFIG_H
#define NVFP4_SM90_GROUPED_CONFIG_H

#include "kernels/common/group_table.h"
#include "kernels/sm90/gemm_config.h"

/*    id, mma_tile_n, stages, bf16 (of A; else fp16) */
#define SM90_GROUPED_CONFIGS(X)                                                                                        \
    X(sm90_grouped_fp16_128x64, 64, 8, 0)                                                                              \
    X(sm90_grouped_fp16_128x128, 128, 5, 0)                                                                            \
    X(sm90_grouped_bf16_128x64, 64, 8, 1)                                                                              \
    X(sm90_grouped_bf16_128x128, 128, 5, 1)

/* Rows of a wgmma: a tile takes the least that its rows fit into. */
#define SM90_GROUPED_WIDTHS_64(X)  X(8) X(16) X(32) X(48) X(64)
#define SM90_GROUPED_WIDTHS_128(X) X(32) X(64) X(96) X(128)

#define SM90_GROUPED_MATH_WARPS  8
#define SM90_GROUPED_COPY_WARPS  4
#define SM90_GROUPED_THREADS     512 /* math warps, copy warps, and a warpgroup of which two threads work */
#define SM90_GROUPED_TILE_N      128 /* columns of the result */
#define SM90_GROUPED_TILES_AHEAD 4   /* whose rows' factors are in shared memory at a time */
/* mbarriers: three of a stage, and two of a tile's factors. */
#define SM90_GROUPED_BARRIERS_BYTES(stages) (8 * (3 * (stages) + 2 * SM90_GROUPED_TILES_AHEAD))
/* Stages, an epilogue staging buffer of each math warp, mbarriers, factors of rows, the table of groups. */
#define SM90_GROUPED_SHARED_BYTES(mma_tile_n, stages)                                                                  \
    ((stages) * SM90_STAGE_BYTES(2, 1, mma_tile_n) + SM90_GROUPED_MATH_WARPS * SM90_EPILOGUE_STAGING_BYTES +           \
     SM90_GROUPED_BARRIERS_BYTES(stages) + SM90_GROUPED_TILES_AHEAD * (mma_tile_n) * 4 + GROUP_TABLE_BYTES)
/* How an instantiation is loaded: its kernel_entry, for the host. */
#define SM90_GROUPED_ENTRY(id, mma_tile_n, stages, ...)                                                                \
    {.name = "nvfp4_" #id,                                                                                             \
     .fatbin = "sm90_grouped",                                                                                         \
     .threads = SM90_GROUPED_THREADS,                                                                                  \
     .shared_bytes = SM90_GROUPED_SHARED_BYTES(mma_tile_n, stages),                                                    \
     .pdl = 1},

/* Second parameter. A CTA takes tiles blockIdx.x, + gridDim.x, ...: those of a group that share columns are neighbours.
 */
typedef struct sm90_grouped_schedule {
    tensor_map b; /* bytes {K/2, N, E * parts} in boxes {64, 128, 1}, no swizzle */
    uint64_t b_cache_policy;
    const uint8_t *a;      /* by the pre-pass; NULL: A has no values */
    int32_t a_is_gathered; /* 1: row i there is that of row i of the result, else row i of A */
    int32_t tiles_n;       /* of a part */
    uint8_t padding_[40];
} sm90_grouped_schedule;

/* The pre-passes, sm90/reorder.cu: 4 threads for 128 values of a row. */
#define SM90_REORDER_THREADS            256
#define SM90_REORDER_CTAS(rows, stages) CEIL_DIV((rows) * (stages) * 4, SM90_REORDER_THREADS)

typedef struct sm90_reorder_schedule {
    const uint8_t *a;
    int64_t a_pitch, a_rows;
    const int32_t *rows; /* [count] rows of A, of which those that A does not have are left out. NULL: all */
    uint8_t *to;         /* [count][stages][256] */
    int64_t count, k;
    int32_t stages; /* ceil(K/128) */
    int32_t bf16;   /* A is bf16, else fp16 */
} sm90_reorder_schedule;

/* The pre-pass over NVFP4 A takes as many tiles along the rows as any ends can lead to. */
#define SM90_REORDER_TILE_M         32
#define SM90_REORDER_STAGES         8 /* 128 values each */
#define SM90_REORDER_CHUNKS(stages) CEIL_DIV(stages, SM90_REORDER_STAGES)

/* Second parameter. */
typedef struct sm90_reorder_e2m1_schedule {
    uint8_t *to;            /* [m][stages][256] */
    int32_t stages, chunks; /* ceil(K/128) */
} sm90_reorder_e2m1_schedule;

#endif
