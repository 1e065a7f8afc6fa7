/* Instantiations and schedule of sm90/grouped_few.cu. Host C and device code share this file: plain C preprocessor.
 *
 * mma_a, the operand A of wgmma, is B: a tile is 256 columns of a part of the result by at most mma_tile_n rows of a
 * group, or, with an activation of gate and up, 128 columns of both. A tile of fewer rows takes a narrower wgmma. All of
 * them add along K in one order. */
#ifndef NVFP4_SM90_GROUPED_FEW_CONFIG_H
#define NVFP4_SM90_GROUPED_FEW_CONFIG_H

#include "kernels/sm90/grouped_config.h"

/*    id, mma_tile_n, stages, bf16 (of A; else fp16) */
#define SM90_GROUPED_FEW_CONFIGS(X)                                                                                    \
    X(sm90_grouped_few_fp16_256x16, 16, 4, 0)                                                                          \
    X(sm90_grouped_few_fp16_256x32, 32, 3, 0)                                                                          \
    X(sm90_grouped_few_fp16_256x48, 48, 3, 0)                                                                          \
    X(sm90_grouped_few_bf16_256x16, 16, 4, 1)                                                                          \
    X(sm90_grouped_few_bf16_256x32, 32, 3, 1)                                                                          \
    X(sm90_grouped_few_bf16_256x48, 48, 3, 1)

/* Rows of a wgmma: a tile takes the least that its rows fit into, but no less than half of mma_tile_n: the accumulators
 * of more widths in one kernel do not fit its registers. */
#define SM90_GROUPED_FEW_WIDTHS(X) X(8) X(16) X(32) X(48)

#define SM90_GROUPED_FEW_STAGE_K    256 /* values along K of a stage: 128 bytes of a row of B, four spans of A */
#define SM90_GROUPED_FEW_MATH_WARPS 16
#define SM90_GROUPED_FEW_THREADS    768 /* math warps, copy warps, two warps of which a thread works, store warps */
#define SM90_GROUPED_FEW_SHARED_BYTES(mma_tile_n, stages)                                                              \
    SM90_GROUPED_SHARED_BYTES_OF(mma_tile_n, stages, SM90_GROUPED_FEW_STAGE_K, 1)
/* How an instantiation is loaded: its kernel_entry, for the host. */
#define SM90_GROUPED_FEW_ENTRY(id, mma_tile_n, stages, ...)                                                            \
    {.name = "nvfp4_" #id,                                                                                             \
     .source = "sm90_grouped_few",                                                                                     \
     .threads = SM90_GROUPED_FEW_THREADS,                                                                              \
     .shared_bytes = SM90_GROUPED_FEW_SHARED_BYTES(mma_tile_n, stages),                                                \
     .pdl = 1},

/* Second parameter. A CTA takes tiles blockIdx.x, + gridDim.x, ...: those of a group that share columns are neighbours.
 */
typedef struct sm90_grouped_few_schedule {
    tensor_map b; /* bytes {K/2, N, E * parts} in boxes {128, 128, 1}, 128-byte swizzle */
    uint64_t b_cache_policy;
    uint32_t *claimed; /* NULL */
    int32_t stages_k;  /* ceil(K/256), at least 1 */
    int32_t tiles_n;   /* of a part, or of both parts of an activation */
    gating numbers;    /* of an activation */
    int32_t early_b;   /* 1: ends and b are read before griddepcontrol.wait */
    uint8_t padding_[20];
} sm90_grouped_few_schedule;

#endif
