/* Instantiations of sm90/grouped.cu, and what they share with those of sm90/grouped_few.cu. Host C and device code share
 * this file: plain C preprocessor.
 *
 * mma_a, the operand A of wgmma, is B: a tile is 256 columns of a part of the result by at most mma_tile_n rows of a
 * group, or, with an activation of gate and up, 128 columns of both. A tile of fewer rows takes a narrower wgmma. All of
 * them add along K in one order. */
#ifndef NVFP4_SM90_GROUPED_CONFIG_H
#define NVFP4_SM90_GROUPED_CONFIG_H

#include "common/gating.h"
#include "kernels/common/group_table.h"
#include "kernels/sm90/gemm_config.h"

/*    id, mma_tile_n, stages, bf16 (of A; else fp16) */
#define SM90_GROUPED_CONFIGS(X)                                                                                        \
    X(sm90_grouped_fp16_256x96, 96, 8, 0)                                                                              \
    X(sm90_grouped_fp16_256x152, 152, 5, 0)                                                                            \
    X(sm90_grouped_bf16_256x96, 96, 8, 1)                                                                              \
    X(sm90_grouped_bf16_256x152, 152, 5, 1)

/* Rows of a wgmma: a tile takes the least that its rows fit into. The accumulators of more widths in one kernel do not
 * fit its registers. */
#define SM90_GROUPED_WIDTHS_96(X)  X(16) X(48) X(64) X(80) X(96)
#define SM90_GROUPED_WIDTHS_152(X) X(104) X(120) X(136) X(152)
#define SM90_GROUPED_WIDTHS        5 /* at most */

#define SM90_GROUPED_STAGE_K    64 /* values along K of a stage: a span of A */
#define SM90_GROUPED_MATH_WARPS 8
#define SM90_GROUPED_THREADS    384 /* math warps, one that loads, store warps */

/* Both kernels have these. */
#define SM90_GROUPED_TILE_N      256
#define SM90_GROUPED_BOX_ROWS    128 /* of B, whose scales lie in one block */
#define SM90_GROUPED_COPY_WARPS  4
#define SM90_GROUPED_STORE_WARPS 2
#define SM90_GROUPED_TILES_AHEAD 4 /* whose descriptions are in shared memory at a time */
/* A description of a tile has rows of A where warps copy them. */
#define SM90_GROUPED_TILE_BYTES(mma_tile_n, copies) (32 + 4 * (1 + (copies)) * (mma_tile_n))
/* A stage: mma_b fp16 or bf16, mma_a values, mma_a scales. */
#define SM90_GROUPED_STAGE_BYTES(mma_tile_n, stage_k)                                                                  \
    ((mma_tile_n) * (stage_k) * 2 + SM90_GROUPED_TILE_N * (stage_k) / 2 +                                              \
     SM90_GROUPED_TILE_N / 128 * ((stage_k) / 64) * SM90_ATOM_BYTES)
#define SM90_GROUPED_STAGING_BYTES(mma_tile_n) ((mma_tile_n) * SM90_GROUPED_TILE_N * 2) /* of a tile */
/* mbarriers: three of a stage, two of a description, two of the staging buffer. */
#define SM90_GROUPED_BARRIERS_BYTES(stages) (8 * (3 * (stages) + 2 * SM90_GROUPED_TILES_AHEAD + 2))
/* Stages, the staging buffer, mbarriers, descriptions of tiles, the table of groups. */
#define SM90_GROUPED_SHARED_BYTES_OF(mma_tile_n, stages, stage_k, copies)                                              \
    ((stages) * SM90_GROUPED_STAGE_BYTES(mma_tile_n, stage_k) + SM90_GROUPED_STAGING_BYTES(mma_tile_n) +               \
     CEIL_DIV(SM90_GROUPED_BARRIERS_BYTES(stages), 16) * 16 +                                                          \
     SM90_GROUPED_TILES_AHEAD * SM90_GROUPED_TILE_BYTES(mma_tile_n, copies) + GROUP_TABLE_BYTES)
#define SM90_GROUPED_SHARED_BYTES(mma_tile_n, stages)                                                                  \
    SM90_GROUPED_SHARED_BYTES_OF(mma_tile_n, stages, SM90_GROUPED_STAGE_K, 0)
/* How an instantiation is loaded: its kernel_entry, for the host. */
#define SM90_GROUPED_ENTRY(id, mma_tile_n, stages, ...)                                                                \
    {.name = "nvfp4_" #id,                                                                                             \
     .source = "sm90_grouped",                                                                                         \
     .threads = SM90_GROUPED_THREADS,                                                                                  \
     .shared_bytes = SM90_GROUPED_SHARED_BYTES(mma_tile_n, stages),                                                    \
     .pdl = 1},

/* Second parameter. Tiles of a group that share columns are neighbours. */
typedef struct sm90_grouped_schedule {
    tensor_map b; /* bytes {K/2, N, E * parts} in boxes {32, 128, 1}, no swizzle */
    /* The rows that the pre-pass wrote: 16 bits {64 * stages_k, m, 1} in boxes {64, rows of a wgmma, 1}, 128-byte swizzle; one for each
     * width of the kernel. */
    tensor_map a[SM90_GROUPED_WIDTHS];
    uint64_t b_cache_policy;
    uint32_t *claimed; /* tiles beyond the first of each CTA that CTAs have taken: 0 after the pre-pass; NULL: there is
                        * none, and a CTA takes tiles blockIdx.x, + gridDim.x, ... */
    int32_t stages_k;  /* ceil(K/64); 0 where A has no values, and nothing is loaded */
    int32_t tiles_n;   /* of a part, or of both parts of an activation */
    gating numbers;    /* of an activation */
    uint8_t padding_[24];
} sm90_grouped_schedule;

/* The pre-passes, sm90/reorder.cu: 8 threads for 64 values of a row, in four passes. */
#define SM90_REORDER_THREADS           256
#define SM90_REORDER_PASSES            4
#define SM90_REORDER_CTAS(rows, spans) CEIL_DIV((rows) * (spans) * 8, SM90_REORDER_THREADS * SM90_REORDER_PASSES)

typedef struct sm90_reorder_schedule {
    const uint8_t *a;
    int64_t a_pitch, a_rows;
    const int32_t *rows; /* [count] rows of A, of which those that A does not have are left out. NULL: row i is row i */
    uint8_t *to;         /* [count][spans][128] */
    uint32_t *claimed;   /* becomes 0 */
    int64_t count, k;
    int32_t spans; /* ceil(K/64) */
    int32_t bf16;  /* A is bf16, else fp16 */
} sm90_reorder_schedule;

/* The pre-pass over NVFP4 A takes as many tiles along the rows as any ends can lead to. */
#define SM90_REORDER_TILE_M        32
#define SM90_REORDER_SPANS         16 /* 64 values each */
#define SM90_REORDER_CHUNKS(spans) CEIL_DIV(spans, SM90_REORDER_SPANS)

/* Second parameter. */
typedef struct sm90_reorder_e2m1_schedule {
    uint8_t *to;           /* [m][spans][128] */
    uint32_t *claimed;     /* becomes 0 */
    int32_t spans, chunks; /* ceil(K/64) */
} sm90_reorder_e2m1_schedule;

#endif
