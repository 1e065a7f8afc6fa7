/* The instantiations of sm100/gemm.cu and the schedule that a launch passes to them. Plain C preprocessor: host C and
 * device code include it.
 *
 * mma_a and mma_b are the operands A and B of tcgen05.mma: mma_a has 128 rows a CTA, mma_b mma_tile_n rows a tile. With
 * swap_ab mma_a is the caller's B. cta_group = 2: a pair of CTAs computes tiles of 256 x mma_tile_n. accumulators = 2:
 * the epilogue of one tile overlaps the mma of the next. cp_async = 1: four more warps load with cp.async what TMA
 * cannot. multicast = 2: the pairs of two tiles with the same mma_a are in one cluster, and each loads half of it for
 * both. */
#ifndef NVFP4_SM100_CONFIG_H
#define NVFP4_SM100_CONFIG_H

#include <stdint.h>

#include "common/mma_operand.h"
#include "kernels/common/ceil_div.h"
#ifdef NVFP4_DUMP
#include "kernels/common/dump.h"
#define SM100_DUMP_BYTES 16 /* two more mbarriers, at the end */
#else
#define SM100_DUMP_BYTES 0
#endif

#ifndef SM100_GEMM_CONFIGS /* a program may choose its own */
/*    id, cta_group, mma_tile_n, stages, accumulators, cp_async, multicast */
#define SM100_GEMM_CONFIGS(X) SM100_GEMM_TMA(X) SM100_GEMM_CP_ASYNC(X)
#endif
/* Among plans with equal modelled times the first is taken: what loads less comes first. */
#define SM100_GEMM_TMA(X)                                                                                              \
    X(sm100_gemm_128x16, 1, 16, 4, 1, 0, 1)                                                                            \
    X(sm100_gemm_128x32, 1, 32, 4, 1, 0, 1)                                                                            \
    X(sm100_gemm_256x64, 2, 64, 4, 1, 0, 1)                                                                            \
    X(sm100_gemm_128x64, 1, 64, 4, 1, 0, 1)                                                                            \
    X(sm100_gemm_128x128, 1, 128, 6, 2, 0, 1)                                                                          \
    X(sm100_gemm_256x64_deep, 2, 64, 6, 1, 0, 1)                                                                       \
    X(sm100_gemm_256x64_multicast, 2, 64, 6, 1, 0, 2)                                                                  \
    X(sm100_gemm_256x128, 2, 128, 4, 1, 0, 1)                                                                          \
    X(sm100_gemm_256x128_deep, 2, 128, 6, 2, 0, 1)                                                                     \
    X(sm100_gemm_256x256_multicast, 2, 256, 5, 1, 0, 2)                                                                \
    X(sm100_gemm_256x256, 2, 256, 5, 1, 0, 1)
#define SM100_GEMM_CP_ASYNC(X)                                                                                         \
    X(sm100_gemm_128x16_cp_async, 1, 16, 4, 1, 1, 1)                                                                   \
    X(sm100_gemm_128x128_cp_async, 1, 128, 6, 2, 1, 1)

#define SM100_STAGE_K    256 /* K of a stage: rows of 128 bytes, one span of the 128-byte swizzle */
#define SM100_MMA_K      64  /* K of one tcgen05.mma */
#define SM100_ATOM_BYTES 512 /* a scale atom: 128 rows, K = 64 */
#define SM100_ATOM_ROWS  128
#define SM100_CTA_ROWS   128 /* rows of mma_a in one CTA */

/* Shared memory of a stage: values of mma_a and mma_b, then whole scale atoms of each. A CTA of a pair holds half of
 * mma_b's values but all of its scales. */
#define SM100_MMA_A_BYTES                        (SM100_CTA_ROWS * SM100_STAGE_K / 2)
#define SM100_MMA_B_BYTES(cta_group, mma_tile_n) ((mma_tile_n) / (cta_group) * SM100_STAGE_K / 2)
#define SM100_STAGE_ATOMS                        (SM100_STAGE_K / SM100_MMA_K)
#define SM100_MMA_SFA_BYTES                      (SM100_STAGE_ATOMS * SM100_ATOM_BYTES)
#define SM100_MMA_SFB_BYTES(mma_tile_n)          (CEIL_DIV(mma_tile_n, SM100_ATOM_ROWS) * SM100_MMA_SFA_BYTES)
#define SM100_STAGE_BYTES(cta_group, mma_tile_n)                                                                       \
    (SM100_MMA_A_BYTES + SM100_MMA_B_BYTES(cta_group, mma_tile_n) + SM100_MMA_SFA_BYTES +                              \
     SM100_MMA_SFB_BYTES(mma_tile_n))
/* Behind the stages: mbarriers full, empty and scales_full of each stage, full and empty of at most two accumulators,
 * partials_full; the tensor memory address. */
#define SM100_BARRIER_BYTES(stages) (CEIL_DIV(24 * (stages), 16) * 16 + 48 + SM100_DUMP_BYTES)
#define SM100_SHARED_BYTES(cta_group, mma_tile_n, stages)                                                              \
    ((stages) * SM100_STAGE_BYTES(cta_group, mma_tile_n) + SM100_BARRIER_BYTES(stages))
/* Split-K: fp32 partial sums that a CTA receives. Additional shared memory of the launch, unless they replace the
 * stages. */
#define SM100_PARTIALS_BYTES(mma_tile_n, split_k) (((split_k) - 1) * ((mma_tile_n) / (split_k)) * SM100_CTA_ROWS * 4)

/* Tensor memory columns: accumulators, then 4 columns a scale atom for each stage. Allocations are powers of two. */
#define SM100_SCALE_COLUMNS(mma_tile_n) (4 * SM100_STAGE_ATOMS * (1 + CEIL_DIV(mma_tile_n, SM100_ATOM_ROWS)))
#define SM100_USED_COLUMNS(mma_tile_n, stages, accumulators)                                                           \
    ((accumulators) * (mma_tile_n) + (stages) * SM100_SCALE_COLUMNS(mma_tile_n))
#define SM100_TMEM_COLUMNS(mma_tile_n, stages, accumulators)                                                           \
    (SM100_USED_COLUMNS(mma_tile_n, stages, accumulators) <= 256 ? 256 : 512)

/* Whether an SM of compute capability 10.x (228 KB, of which each CTA takes 1 KB more) holds two CTAs. */
#define SM100_CO_RESIDENT(cta_group, mma_tile_n, stages, accumulators)                                                 \
    (SM100_TMEM_COLUMNS(mma_tile_n, stages, accumulators) <= 256 &&                                                    \
     SM100_SHARED_BYTES(cta_group, mma_tile_n, stages) <= 113 * 1024)

/* Tiles of 256 columns have one accumulator: two groups of epilogue warps hold most of it in registers, so that the
 * next tile's mma begins before they store it. */
#define SM100_EPILOGUE_GROUPS(mma_tile_n) ((mma_tile_n) == 256 ? 2 : 1)
#define SM100_DRAINED_COLUMNS             80 /* of a group's 128: with the 168 registers of 10 warps 96 spill */
#define SM100_DRAINED_CHUNK               16 /* of them, in one tcgen05.ld */
/* Warps: 0-3 epilogue, 4 TMA producer, 5 mma, 6-9 cp.async producer or the second group of the epilogue. */
#define SM100_THREADS(mma_tile_n, cp_async) ((cp_async) || SM100_EPILOGUE_GROUPS(mma_tile_n) == 2 ? 320 : 192)

enum { SM100_CONSTANT_NONE, SM100_CONSTANT_MMA_A, SM100_CONSTANT_MMA_B };

/* x / d = x * multiplier >> 31 + shift for 0 <= x < 2^31: 2^(31 + shift) / d and log2(d), rounded up. */
typedef struct fast_divisor {
    uint32_t multiplier, shift;
} fast_divisor;

/* Second parameter of the GEMM kernels. A cluster has cta_group * multicast * split_k CTAs; CTA r, from the right:
 * r % cta_group in its pair, then which of `multicast` tiles, then the split index. With tiles in groups of
 * `multicast`, cluster c of n computes groups c, c + n, ...; mma_b fastest, then mma_a, then the batch. */
typedef struct sm100_schedule {
    mma_operand mma_a, mma_b; /* values: box {128, rows that a CTA loads, 1}, 128-byte swizzle */
    /* Pairs only: uint16 {256, ceil(K/64), ceil(rows/128), L}, box {256, 4, atoms of its rows, 1}. */
    tensor_map mma_a_scales, mma_b_scales;
    int32_t tiles;       /* tiles_mma_m * tiles_mma_n * L */
    int32_t tiles_mma_m; /* of 128 * cta_group rows of mma_a */
    int32_t tiles_mma_n; /* of mma_tile_n rows of mma_b; a multiple of multicast */
    fast_divisor inv_tiles_mma_m, inv_tiles_mma_n;
    int32_t split_k; /* a power of two; > 1: a cluster computes one tile; each index reduces mma_tile_n/split_k columns,
                        >= 4 */
    int32_t k_stages;      /* ceil(K/256); index i has stages [i*k_stages/split_k, (i+1)*k_stages/split_k) */
    int32_t swap_ab;       /* 1: mma_a is the caller's B, so accumulator lanes are columns of the output */
    int32_t values_by_tma; /* cp.async kernels: 1 if tensor maps describe the values; cp.async then loads scales only */
    int32_t prefetch_stages;    /* stages of mma_a prefetched into L2 ahead of griddepcontrol.wait; 0: none */
    int32_t partials_in_stages; /* split_k > 1: partial sums replace the stages */
    int32_t column_pairs;       /* swap_ab: neighbouring columns of C are stored as 32 bits; not in cp.async kernels */
    int32_t constant_operand;   /* SM100_CONSTANT_*: loaded ahead of griddepcontrol.wait; not in cp.async kernels */
#ifdef NVFP4_DUMP
    sm100_dump *dump;             /* where one K block of one CTA is written, or NULL */
    int32_t dump_cta, dump_block; /* blockIdx.x; K block, counted through the tiles of the CTA */
#endif
} sm100_schedule;

#endif
