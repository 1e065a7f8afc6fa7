/* Instantiations and schedule of sm90/skinny.cu. Host C and device code share this file: plain C preprocessor.
 *
 * For 1 <= M <= 8 * a_units. A unit is 8 rows of an operand; a tile is 8 * b_units rows of B by all rows of A. The
 * warps of a CTA take steps of 256 values along K in turn. */
#ifndef NVFP4_SM90_SKINNY_CONFIG_H
#define NVFP4_SM90_SKINNY_CONFIG_H

#include <stdint.h>

#include "common/tensor_map.h"
#include "kernels/common/ceil_div.h"

/*    id, a_units, b_units, warps, stages of each warp's pipeline */
#define SM90_SKINNY_CONFIGS(X)                                                                                         \
    X(sm90_skinny_8x32, 1, 4, 8, 3)                                                                                    \
    X(sm90_skinny_8x40, 1, 5, 8, 2)                                                                                    \
    X(sm90_skinny_8x48, 1, 6, 8, 2)                                                                                    \
    X(sm90_skinny_8x56, 1, 7, 8, 2)                                                                                    \
    X(sm90_skinny_8x64, 1, 8, 8, 2)                                                                                    \
    X(sm90_skinny_16x32, 2, 4, 8, 3)

#define SM90_SKINNY_STEP_K  256
#define SM90_SKINNY_CHUNKS  (SM90_SKINNY_STEP_K / 64) /* of a step; a chunk has one 512-byte scale block of 128 rows */
#define SM90_SKINNY_UNIT    (8 * SM90_SKINNY_STEP_K / 2)
#define SM90_SKINNY_WARPS   8
#define SM90_SKINNY_THREADS (32 * SM90_SKINNY_WARPS)

#define SM90_SKINNY_MAX(a, b) ((a) > (b) ? (a) : (b))
/* 128-row blocks that a tile may touch. */
#define SM90_SKINNY_SCALE_BLOCKS(b_units) (128 % (8 * (b_units)) ? 2 : 1)
/* A stage: values of B and A; scale blocks of B, and of each block of A the first 8 * a_units rows; an mbarrier. */
#define SM90_SKINNY_VALUES_BYTES(a_units, b_units) (((a_units) + (b_units)) * SM90_SKINNY_UNIT)
#define SM90_SKINNY_SCALES_BYTES(a_units, b_units)                                                                     \
    (SM90_SKINNY_CHUNKS * (SM90_SKINNY_SCALE_BLOCKS(b_units) * 512 + (a_units) * 128))
#define SM90_SKINNY_STAGES_BYTES(a_units, b_units, warps, stages)                                                      \
    ((warps) * (stages) * (SM90_SKINNY_VALUES_BYTES(a_units, b_units) + SM90_SKINNY_SCALES_BYTES(a_units, b_units) + 8))
/* The accumulators of all warps, 512 bytes for each mma tile of 16 rows of B by 8 of A. */
#define SM90_SKINNY_SUMS_BYTES(a_units, b_units, warps) ((warps) * (((b_units) + 1) / 2) * (a_units) * 512)
/* How an instantiation is loaded: its kernel_entry, for the host. */
#define SM90_SKINNY_ENTRY(id, ...)                                                                                     \
    {.name = "nvfp4_" #id, .fatbin = "sm90_skinny", .threads = SM90_SKINNY_THREADS, .more_shared = 1, .pdl = 1},

/* Second parameter of the kernels. The grid is ctas * L CTAs: CTA b has batch b / ctas and there tiles b % ctas, b %
 * ctas + ctas, ... */
typedef struct sm90_skinny_schedule {
    tensor_map a, b; /* bytes {K/2, rows, L}, boxes of a step by M rows and by a tile's, 128-byte swizzle */
    uint64_t a_cache_policy, b_cache_policy;
    int32_t ctas; /* of a batch */
    int32_t tiles;
    int32_t steps;       /* along K; at least 1 */
    int32_t sums_offset; /* in shared memory, of the warps' accumulators: 0, or behind the stages if a CTA has several
                          * tiles */
} sm90_skinny_schedule;

#endif
