/* Instantiations of sm80/nn.cu. Host C and device code share this file: plain C preprocessor.
 *
 * A CTA computes tile_m rows of C by tile_n columns: warps_m * warps_n warps, each 8 * mmas_m rows by 64 columns, which
 * share stages of 64 along the sum. Every instantiation adds in the same order. ctas_per_sm bounds the registers. */
#ifndef NVFP4_SM80_NN_CONFIG_H
#define NVFP4_SM80_NN_CONFIG_H

#include "kernels/sm80/config.h"

/*    id, warps_m, warps_n, mmas_m, stages, ctas_per_sm, bf16 (of A; else fp16) */
#define SM80_NN_CONFIGS(X)                                                                                             \
    X(sm80_nn_fp16_8x512, 1, 8, 1, 4, 2, 0)                                                                            \
    X(sm80_nn_fp16_16x512, 1, 8, 2, 4, 2, 0)                                                                           \
    X(sm80_nn_fp16_32x256, 1, 4, 4, 4, 3, 0)                                                                           \
    X(sm80_nn_fp16_64x256, 1, 4, 8, 4, 2, 0)                                                                           \
    X(sm80_nn_fp16_128x256, 2, 4, 8, 3, 1, 0)                                                                          \
    X(sm80_nn_bf16_8x512, 1, 8, 1, 4, 2, 1)                                                                            \
    X(sm80_nn_bf16_16x512, 1, 8, 2, 4, 2, 1)                                                                           \
    X(sm80_nn_bf16_32x256, 1, 4, 4, 4, 3, 1)                                                                           \
    X(sm80_nn_bf16_64x256, 1, 4, 8, 4, 2, 1)                                                                           \
    X(sm80_nn_bf16_128x256, 2, 4, 8, 3, 1, 1)

#define SM80_NN_STAGE_K                   64 /* rows of B */
#define SM80_NN_WARP_N                    64
#define SM80_NN_THREADS(warps_m, warps_n) (32 * (warps_m) * (warps_n))
#define SM80_NN_TILE_M(warps_m, mmas_m)   ((warps_m) * (mmas_m) * 8)
#define SM80_NN_TILE_N(warps_n)           ((warps_n) * SM80_NN_WARP_N)
/* A stage has 128 bytes for each row of A, and for each row of B half a byte a value and a word of 4 scales a warp. */
#define SM80_NN_STAGE_BYTES(warps_m, warps_n, mmas_m)                                                                  \
    (SM80_NN_TILE_M(warps_m, mmas_m) * 2 * SM80_NN_STAGE_K +                                                           \
     SM80_NN_STAGE_K * (warps_n) * (SM80_NN_WARP_N / 2 + SM80_NN_WARP_N / 16))
#define SM80_NN_SHARED_BYTES(warps_m, warps_n, mmas_m, stages)                                                         \
    ((stages) * SM80_NN_STAGE_BYTES(warps_m, warps_n, mmas_m))

#endif
