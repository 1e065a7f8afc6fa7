/* Instantiations and schedule of sm90/nn.cu. Host C and device code share this file: plain C preprocessor.
 *
 * A CTA computes tile_m rows of C, which are the N of a wgmma, by 256 columns: two math warpgroups, 128 each. split_k
 * CTAs, a cluster, share a tile along K. A grid is split_k * tiles_m * tiles_n * L CTAs, in bands of SM90_NN_BAND tiles
 * along m. */
#ifndef NVFP4_SM90_NN_CONFIG_H
#define NVFP4_SM90_NN_CONFIG_H

#include <stdint.h>

#include "common/tensor_map.h"

/*    id, tile_m, stages, bf16 (of A; else fp16) */
#define SM90_NN_CONFIGS(X)                                                                                             \
    X(sm90_nn_fp16_32x256, 32, 12, 0)                                                                                  \
    X(sm90_nn_fp16_64x256, 64, 10, 0)                                                                                  \
    X(sm90_nn_fp16_128x256, 128, 8, 0)                                                                                 \
    X(sm90_nn_bf16_32x256, 32, 12, 1)                                                                                  \
    X(sm90_nn_bf16_64x256, 64, 10, 1)                                                                                  \
    X(sm90_nn_bf16_128x256, 128, 8, 1)

#define SM90_NN_THREADS   384 /* two math warpgroups, one of producers */
#define SM90_NN_STAGE_K   64  /* rows of B: 128 bytes of a row of A, one span of the 128-byte swizzle */
#define SM90_NN_TILE_N    256
#define SM90_NN_BAND      16
#define SM90_NN_MAX_SPLIT 8 /* CTAs of a portable cluster */
/* A stage: A, values of B, an atom of scales for each 64 columns, scales as pairs along K. */
#define SM90_NN_A_BYTES(tile_m) ((tile_m) * SM90_NN_STAGE_K * 2)
#define SM90_NN_VALUES_BYTES    (SM90_NN_STAGE_K * SM90_NN_TILE_N / 2)
#define SM90_NN_SCALES_BYTES    (SM90_NN_TILE_N / 64 * 512)
#define SM90_NN_PAIRS_BYTES     (SM90_NN_STAGE_K / 2 * (SM90_NN_TILE_N / 16) * 4)
#define SM90_NN_STAGE_BYTES(tile_m)                                                                                    \
    (SM90_NN_A_BYTES(tile_m) + SM90_NN_VALUES_BYTES + SM90_NN_SCALES_BYTES + SM90_NN_PAIRS_BYTES)
/* Stages, three mbarriers each, one for partial sums. */
#define SM90_NN_SHARED_BYTES(tile_m, stages) ((stages) * (SM90_NN_STAGE_BYTES(tile_m) + 24) + 8)
/* How an instantiation is loaded: its kernel_entry, for the host. */
#define SM90_NN_ENTRY(id, tile_m, stages, ...)                                                                         \
    {.name = "nvfp4_" #id,                                                                                             \
     .source = "sm90_nn",                                                                                              \
     .threads = SM90_NN_THREADS,                                                                                       \
     .shared_bytes = SM90_NN_SHARED_BYTES(tile_m, stages)},

/* Second parameter. */
typedef struct sm90_nn_schedule {
    tensor_map a, b; /* {K, M, batches} of 16 bits in boxes {64, tile_m or M if that is less, 1}, and bytes {N/2, K,
                        batches} in boxes {128, 64, 1}, both with the 128-byte swizzle */
    int32_t a_batches, b_batches; /* L, or 1 if all batches share the operand */
    int32_t tiles_m, tiles_n;
    int32_t split_k;      /* 1 to 8; CTAs of a cluster, at most one a stage */
    uint32_t inv_split_k; /* ceil(2^31 / split_k) */
    uint8_t padding_[40];
} sm90_nn_schedule;

#endif
