/* Instantiations and schedule of sm90/gemm.cu. Host C and device code share this file: plain C preprocessor.
 *
 * mma_a and mma_b are the operands A and B of wgmma. mma_a is dequantized into registers; mma_b is fp16, by the
 * pre-pass sm90/dequant.cu, or dequantized in the kernel if its tile has at most 16 rows. swap_ab selects which user
 * matrix is mma_a (1: B), so that the larger one stays e2m1. A CTA computes math_warpgroups * 64 * wgmmas_m rows of
 * mma_a by mma_tile_n rows of mma_b. */
#ifndef NVFP4_SM90_GEMM_CONFIG_H
#define NVFP4_SM90_GEMM_CONFIG_H

#include <stdint.h>

#include "common/tensor_map.h"
#include "kernels/common/ceil_div.h"
#include "kernels/sm90/prefill_config.h"

/* dequant_b: who dequantizes mma_b: 0 the pre-pass; 1 three warps that would be idle, from global memory; 2 a
 * warpgroup, from the stages, to which TMA brings mma_b as e2m1. bf16: wgmma in bf16, for bf16 A. */
/*    id, math_warpgroups, wgmmas_m, mma_tile_n, group_words, stages, dequant_b, streamk, bf16 */
#define SM90_GEMM_CONFIGS(X)                                                                                           \
    X(sm90_gemm_128x8, 2, 1, 8, 2, 10, 1, 0, 0)                                                                        \
    X(sm90_gemm_256x8, 4, 1, 8, 2, 8, 1, 0, 0)                                                                         \
    X(sm90_gemm_128x16, 2, 1, 16, 2, 10, 1, 0, 0)                                                                      \
    X(sm90_gemm_256x16, 4, 1, 16, 1, 8, 1, 0, 0)                                                                       \
    X(sm90_gemm_128x32, 2, 1, 32, 2, 8, 0, 0, 0)                                                                       \
    X(sm90_gemm_256x32, 4, 1, 32, 2, 6, 0, 0, 0)                                                                       \
    X(sm90_gemm_128x64, 2, 1, 64, 2, 6, 0, 0, 0)                                                                       \
    X(sm90_gemm_256x64, 4, 1, 64, 1, 5, 0, 0, 0)                                                                       \
    X(sm90_gemm_128x128, 2, 1, 128, 1, 4, 0, 0, 0)                                                                     \
    X(sm90_gemm_128x32_streamk, 2, 1, 32, 2, 8, 0, 1, 0)                                                               \
    X(sm90_gemm_128x64_streamk, 2, 1, 64, 2, 6, 0, 1, 0)                                                               \
    X(sm90_gemm_128x128_streamk, 2, 1, 128, 1, 4, 0, 1, 0)                                                             \
    X(sm90_gemm_128x32_raw, 2, 1, 32, 2, 8, 2, 0, 0)                                                                   \
    X(sm90_gemm_128x64_raw, 2, 1, 64, 2, 6, 2, 0, 0)                                                                   \
    X(sm90_gemm_bf16_128x32, 2, 1, 32, 2, 8, 0, 0, 1)                                                                  \
    X(sm90_gemm_bf16_256x32, 4, 1, 32, 2, 6, 0, 0, 1)                                                                  \
    X(sm90_gemm_bf16_128x64, 2, 1, 64, 2, 6, 0, 0, 1)                                                                  \
    X(sm90_gemm_bf16_256x64, 4, 1, 64, 1, 5, 0, 0, 1)                                                                  \
    X(sm90_gemm_bf16_128x128, 2, 1, 128, 1, 4, 0, 0, 1)                                                                \
    X(sm90_gemm_bf16_128x32_streamk, 2, 1, 32, 2, 8, 0, 1, 1)                                                          \
    X(sm90_gemm_bf16_128x64_streamk, 2, 1, 64, 2, 6, 0, 1, 1)                                                          \
    X(sm90_gemm_bf16_128x128_streamk, 2, 1, 128, 1, 4, 0, 1, 1)

#define SM90_STAGE_K     128  /* values along K of a stage: 64 bytes of a row of mma_a, two 128-byte spans of mma_b */
#define SM90_ATOM_BYTES  512  /* scales of 128 rows and 64 values along K */
#define SM90_BLOCK_BYTES 1024 /* scales of 128 rows and 128 values along K */
#define SM90_ATOM_ROWS   128

/* Up to 16 rows back-to-back calls are 7 to 14 % faster than with the pre-pass (H200). */
#define SM90_DEQUANT_B_IN_KERNEL(dequant_b)        ((dequant_b) != 0)
#define SM90_DEQUANT_FROM_STAGES(dequant_b)        ((dequant_b) == 2)
#define SM90_MMA_TILE_M(math_warpgroups, wgmmas_m) ((math_warpgroups) * (wgmmas_m) * 64)
#define SM90_THREADS(math_warpgroups, dequant_b)   (((math_warpgroups) + 1 + SM90_DEQUANT_FROM_STAGES(dequant_b)) * 128)
/* Rows of mma_b that a stage's e2m1 values have: TMA takes some 10 clocks for each row past the end. */
#define SM90_RAW_BOX_ROWS(mma_tile_n, rows) ((rows) < (mma_tile_n) ? CEIL_DIV(rows, 8) * 8 : (mma_tile_n))
/* More of them delay the first mma_b loads after the pre-pass: 6 stages cost 0.3 to 1.5 us (H200, cold L2). */
#define SM90_PRELOAD_STAGES 2
/* A stage: mma_b fp16 (two spans of 64 along K), mma_a values, mma_a scales. */
#define SM90_MMA_B_BYTES(mma_tile_n) ((mma_tile_n) * SM90_STAGE_K * 2)
#define SM90_MMA_A_BYTES(mma_tile_m)                                                                                   \
    ((mma_tile_m) * (SM90_STAGE_K / 2) + (mma_tile_m) / SM90_ATOM_ROWS * SM90_BLOCK_BYTES)
#define SM90_STAGE_BYTES(math_warpgroups, wgmmas_m, mma_tile_n)                                                        \
    (SM90_MMA_B_BYTES(mma_tile_n) + SM90_MMA_A_BYTES(SM90_MMA_TILE_M(math_warpgroups, wgmmas_m)))
/* Epilogue staging buffer of a warp: 16 columns of 16 rows, fp32. */
#define SM90_EPILOGUE_STAGING_BYTES (16 * 16 * 4)
/* Stages, an epilogue staging buffer for each math warp, mbarriers: at most three a stage, and one. */
#define SM90_SHARED_BYTES(math_warpgroups, wgmmas_m, mma_tile_n, stages)                                               \
    ((stages) * SM90_STAGE_BYTES(math_warpgroups, wgmmas_m, mma_tile_n) +                                              \
     (math_warpgroups) * 4 * SM90_EPILOGUE_STAGING_BYTES + CEIL_DIV(24 * (stages) + 8, 16) * 16)
/* split-K partials that a CTA receives, fp32 accumulators. They follow the mbarriers, as additional dynamic shared
 * memory, or in the stages (partials_in_stages), which takes a cluster barrier. */
#define SM90_PARTIALS_BYTES(math_warpgroups, wgmmas_m, mma_tile_n, split_k)                                            \
    (((split_k) - 1) * CEIL_DIV((mma_tile_n) / 8, split_k) * (math_warpgroups) * (wgmmas_m) * 2048)
#define SM90_PARTIALS_ROOM(math_warpgroups, wgmmas_m, mma_tile_n, stages)                                              \
    ((stages) * SM90_STAGE_BYTES(math_warpgroups, wgmmas_m, mma_tile_n))
/* How an instantiation is loaded: its kernel_entry, for the host. */
#define SM90_GEMM_ENTRY(id, math_warpgroups, wgmmas_m, mma_tile_n, group_words, stages, dequant_b, ...)                \
    {.name = "nvfp4_" #id,                                                                                             \
     .source = "sm90_gemm",                                                                                            \
     .threads = SM90_THREADS(math_warpgroups, dequant_b),                                                              \
     .shared_bytes = SM90_SHARED_BYTES(math_warpgroups, wgmmas_m, mma_tile_n, stages),                                 \
     .more_shared = 1,                                                                                                 \
     .pdl = 1},
/* Limit of stream-K workers: one CTA of the dequantize pre-pass zeroes a flag for each. */
#define SM90_MAX_WORKERS 512
/* A worker's partial tile in the workspace, fp32 accumulators. */
#define SM90_PARTIAL_TILE_BYTES(math_warpgroups, wgmmas_m, mma_tile_n)                                                 \
    ((math_warpgroups) * (wgmmas_m) * 64 * (mma_tile_n) * 4)

typedef struct sm90_mma_a_operand {
    tensor_map values; /* uint8 {K/2, rows, L}, box {64, rows of the tile, 1}, no swizzle */
    const uint8_t *scale;
    int64_t scale_pitch, scale_batch; /* 128x4: bytes from 128-row block to block, from batch to batch */
    uint64_t cache_policy;            /* createpolicy of values and scales */
    int32_t rows;
    int32_t padding_;
} sm90_mma_a_operand;

/* fp16 in the workspace, or dequantized in the kernel: dequant_b 1 needs `rows` alone. */
typedef struct sm90_mma_b_operand {
    tensor_map values; /* fp16 {128 ceil(K/128), rows of whole tiles, L}, box {64, mma_tile_n, 1}, 128-byte swizzle;
                          dequant_b 2: uint8 {K/2, rows, L}, box {64, SM90_RAW_BOX_ROWS, 1}, no swizzle */
    uint64_t cache_policy;
    int32_t rows;
    int32_t shared; /* 1: one matrix for all batches */
} sm90_mma_b_operand;

/* Second parameter of the GEMM kernels. The grid is (split_k, clusters), split_k CTAs a cluster. CTA (u, c) computes
 * split u of tiles c, c + clusters, ...; tiles count along mma_b first, then mma_a, then batches. sm90/schedule.cuh
 * describes stream-K. */
typedef struct sm90_schedule {
    sm90_mma_a_operand mma_a;
    sm90_mma_b_operand mma_b;
    sm90_dequant_operand mma_b_e2m1; /* SM90_DEQUANT_B_IN_KERNEL: mma_b in the user's memory */
    int32_t tiles;                   /* tiles_mma_m * tiles_mma_n * L */
    int32_t tiles_mma_m, tiles_mma_n;
    int32_t split_k;              /* 1 to 8; > 1: CTAs of a cluster, which has one tile */
    int32_t stages_per_split;     /* stages of each split, of ceil(K/128) - streamk_stages */
    int32_t splits_with_one_more; /* this many first splits have one stage more */
    int32_t swap_ab;              /* 1: mma_a is B, so mma_m counts columns of the output */
    int32_t partials_in_stages;   /* split_k > 1: partials are received in the stages; not with stream-K */
    int32_t preload_stages;       /* stages of mma_a loaded before griddepcontrol.wait: 0 or SM90_PRELOAD_STAGES */
    int32_t padding_;
    /* Stream-K kernels only. */
    int32_t dp_tiles;                      /* the first tiles, data-parallel: 0, or a multiple of the clusters */
    int32_t k_stages;                      /* ceil(K/128) */
    int32_t worker_clusters;               /* the first clusters; each other cluster owns a stream-K tile */
    int32_t streamk_stages, worker_stages; /* of a tile, that workers compute; of a worker */
    uint32_t inv_streamk_stages, inv_worker_stages; /* ceil(2^31 / n) */
    uint32_t inv_split_k;                           /* all kernels: ceil(2^31 / split_k) */
    uint8_t *partial_tiles;                         /* workspace: one for each worker and stream-K tile */
    uint32_t *fixup_flags;                          /* of a worker: number of its warps that are done; 0 at the start */
} sm90_schedule;

#endif
