/* Instantiations and schedule of sm90/nn.cu. Host C and device code share this file: plain C preprocessor.
 *
 * A CTA computes tile_m rows of C, which are the N of a wgmma, by 128 columns: two warpgroups, 64 each. ctas_per_sm
 * bounds the registers. A grid is tiles_m * tiles_n * L CTAs, in bands of SM90_NN_BAND tiles along m. */
#ifndef NVFP4_SM90_NN_CONFIG_H
#define NVFP4_SM90_NN_CONFIG_H

#include <stdint.h>

#include "kernels/common/tensor_map.h"

/*    id, tile_m, stages, ctas_per_sm, bf16 (of A; else fp16) */
#define SM90_NN_CONFIGS(X)                                                                                             \
    X(sm90_nn_fp16_128x128, 128, 5, 2, 0)                                                                              \
    X(sm90_nn_fp16_256x128, 256, 5, 1, 0)                                                                              \
    X(sm90_nn_bf16_128x128, 128, 5, 2, 1)                                                                              \
    X(sm90_nn_bf16_256x128, 256, 5, 1, 1)

#define SM90_NN_THREADS 256
#define SM90_NN_STAGE_K 64 /* rows of B: 128 bytes of a row of A, one span of the 128-byte swizzle */
#define SM90_NN_TILE_N  128
#define SM90_NN_BAND    16
/* A stage: A, values of B, an atom of scales for each 64 columns. Behind the stages a full mbarrier for each. */
#define SM90_NN_A_BYTES(tile_m)              ((tile_m) * SM90_NN_STAGE_K * 2)
#define SM90_NN_VALUES_BYTES                 (SM90_NN_STAGE_K * SM90_NN_TILE_N / 2)
#define SM90_NN_STAGE_BYTES(tile_m)          (SM90_NN_A_BYTES(tile_m) + SM90_NN_VALUES_BYTES + SM90_NN_TILE_N / 64 * 512)
#define SM90_NN_SHARED_BYTES(tile_m, stages) ((stages) * (SM90_NN_STAGE_BYTES(tile_m) + 8))

/* Second parameter. */
typedef struct sm90_nn_schedule {
    tensor_map a, b; /* {K, M, batches} of 16 bits in boxes {64, tile_m or M if that is less, 1}, 128-byte swizzle;
                        bytes {N/2, K, batches} in boxes {64, 64, 1}, 64-byte swizzle */
    int32_t a_batches, b_batches; /* L, or 1 if all batches share the operand */
    int32_t tiles_m, tiles_n;
    uint8_t padding_[48];
} sm90_nn_schedule;

#endif
