/* Instantiations of sm80/grouped.cu and sm80/grouped_nn.cu. Host C and device code share this file: plain C
 * preprocessor.
 *
 * They differ in the rows of a tile alone and add along K in the same order, so the bits of a result depend neither on
 * the plan nor on the size of a group. */
#ifndef NVFP4_SM80_GROUPED_CONFIG_H
#define NVFP4_SM80_GROUPED_CONFIG_H

#include "kernels/sm80/config.h"
#include "kernels/sm80/nn_config.h"
#include "kernels/sm80/w4a16_config.h"

#define SM80_GROUPED_OCTETS  2
#define SM80_GROUPED_CHUNKS  1
#define SM80_GROUPED_WARPS   4
#define SM80_GROUPED_THREADS (32 * SM80_GROUPED_WARPS)

/*    id, tile_m, stages, ctas_per_sm, bf16 (of A; else fp16) */
#define SM80_GROUPED_CONFIGS(X)                                                                                        \
    X(sm80_grouped_fp16_8x64, 8, 4, 3, 0)                                                                              \
    X(sm80_grouped_fp16_16x64, 16, 4, 2, 0)                                                                            \
    X(sm80_grouped_fp16_32x64, 32, 3, 2, 0)                                                                            \
    X(sm80_grouped_fp16_64x64, 64, 2, 2, 0)                                                                            \
    X(sm80_grouped_bf16_8x64, 8, 4, 3, 1)                                                                              \
    X(sm80_grouped_bf16_16x64, 16, 4, 2, 1)                                                                            \
    X(sm80_grouped_bf16_32x64, 32, 3, 2, 1)                                                                            \
    X(sm80_grouped_bf16_64x64, 64, 2, 2, 1)

#define SM80_GROUPED_TILE_N SM80_W4A16_TILE_N(SM80_GROUPED_OCTETS)
#define SM80_GROUPED_TILE_K SM80_W4A16_TILE_K(SM80_GROUPED_CHUNKS, SM80_GROUPED_WARPS)
/* Each row of a tile has its address in A there, and the factor of its results. */
#define SM80_GROUPED_ROW_BYTES 16
#define SM80_GROUPED_TILE_BYTES(tile_m, stages)                                                                        \
    SM80_W4A16_SHARED_BYTES(tile_m, SM80_GROUPED_OCTETS, SM80_GROUPED_CHUNKS, stages, SM80_GROUPED_WARPS)
#define SM80_GROUPED_SHARED_BYTES(tile_m, stages)                                                                      \
    (SM80_GROUPED_TILE_BYTES(tile_m, stages) + (tile_m) * SM80_GROUPED_ROW_BYTES)

/* The kernels of sm80/grouped_w4a4.cu add in one order, too: that of sm80_gemm_32x64. B has the 16 rows of an mma. With
 * 64 rows the addresses would leave too few registers. */
/*    id, tile_m, stages, ctas_per_sm */
#define SM80_GROUPED_W4A4_CONFIGS(X)                                                                                   \
    X(sm80_grouped_w4a4_8x64, 8, 4, 3)                                                                                 \
    X(sm80_grouped_w4a4_16x64, 16, 4, 3)                                                                               \
    X(sm80_grouped_w4a4_32x64, 32, 4, 2)                                                                               \
    X(sm80_grouped_w4a4_48x64, 48, 3, 2)
#define SM80_GROUPED_W4A4_THREADS SM80_GROUPED_THREADS
#define SM80_GROUPED_W4A4_TILE_N  64
#define SM80_GROUPED_W4A4_TILE_K  256
/* Two addresses, of values and of scales, and the factor. */
#define SM80_GROUPED_W4A4_ROW_BYTES 24
#define SM80_GROUPED_W4A4_TILE_BYTES(tile_m, stages)                                                                   \
    SM80_SHARED_BYTES(tile_m, SM80_GROUPED_W4A4_TILE_N, SM80_GROUPED_W4A4_TILE_K, stages, SM80_GROUPED_WARPS)
#define SM80_GROUPED_W4A4_SHARED_BYTES(tile_m, stages)                                                                 \
    (SM80_GROUPED_W4A4_TILE_BYTES(tile_m, stages) + (tile_m) * SM80_GROUPED_W4A4_ROW_BYTES)

/* The kernels of sm80/grouped_nn.cu add in one order, too. */
/*    id, warps_n, mmas_m, stages, ctas_per_sm, bf16 (of A; else fp16) */
#define SM80_GROUPED_NN_CONFIGS(X)                                                                                     \
    X(sm80_grouped_nn_fp16_16x256, 4, 2, 4, 3, 0)                                                                      \
    X(sm80_grouped_nn_fp16_64x256, 4, 8, 4, 2, 0)                                                                      \
    X(sm80_grouped_nn_bf16_16x256, 4, 2, 4, 3, 1)                                                                      \
    X(sm80_grouped_nn_bf16_64x256, 4, 8, 4, 2, 1)
#define SM80_GROUPED_NN_THREADS(warps_n) SM80_NN_THREADS(1, warps_n)
#define SM80_GROUPED_NN_TILE_M(mmas_m)   SM80_NN_TILE_M(1, mmas_m)
#define SM80_GROUPED_NN_SHARED_BYTES(warps_n, mmas_m, stages)                                                          \
    (SM80_NN_SHARED_BYTES(1, warps_n, mmas_m, stages) + SM80_GROUPED_NN_TILE_M(mmas_m) * SM80_GROUPED_ROW_BYTES)

/* Second parameter. The grid is tiles_m * tiles_n * parts CTAs, tiles_m fastest. */
typedef struct sm80_grouped_schedule {
    int64_t tiles_m; /* at most, for any ends */
    int32_t tiles_n; /* of a part */
    int32_t padding_;
} sm80_grouped_schedule;

#endif
