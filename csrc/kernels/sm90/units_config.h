/* Instantiations and schedule of sm90/units.cu. Host C and device code share this file: plain C preprocessor.
 *
 * For 1 <= M <= 8 * a_units. A unit is 8 rows of B: rows 2i and 2i + 1 of each of the four quarters (32 rows) of a
 * 128-row block. Two neighbours are a pair, rows 4i to 4i + 3 of the quarters, 16 rows as an mma takes them. The warps
 * of a CTA take steps of 256 values along K in turn. */
#ifndef NVFP4_SM90_UNITS_CONFIG_H
#define NVFP4_SM90_UNITS_CONFIG_H

#include <stdint.h>

#include "common/tensor_map.h"
#include "kernels/common/ceil_div.h"

/*    id, a_units, a (NVFP4 0 / fp16 1 / bf16 2), stages of each warp for pairs of B, a_stages for steps of A */
#define SM90_UNITS_CONFIGS(X)                                                                                          \
    X(sm90_units_8, 1, 0, 3, 1)                                                                                        \
    X(sm90_units_16, 2, 0, 3, 1)                                                                                       \
    X(sm90_units_fp16_8, 1, 1, 3, 1)                                                                                   \
    X(sm90_units_fp16_16, 2, 1, 3, 1)                                                                                  \
    X(sm90_units_bf16_8, 1, 2, 3, 1)                                                                                   \
    X(sm90_units_bf16_16, 2, 2, 3, 1)

#define SM90_UNITS_STEP_K     256
#define SM90_UNITS_ATOMS      (SM90_UNITS_STEP_K / 64) /* of a step: 512-byte blocks of the 128x4 scale layout */
#define SM90_UNITS_UNIT_BYTES (8 * SM90_UNITS_STEP_K / 2)
#define SM90_UNITS_PAIR_BYTES (2 * SM90_UNITS_UNIT_BYTES)
#define SM90_UNITS_SCALES     (SM90_UNITS_ATOMS * 64)     /* bytes of the scales of a pair's step */
#define SM90_UNITS_WARPS      8                           /* math warps, which share K */
#define SM90_UNITS_PASS_PAIRS 7                           /* of a pass at most (units_plan.c) */
#define SM90_UNITS_THREADS    (2 * 32 * SM90_UNITS_WARPS) /* each has a producer warp */

/* A step of 8 * a_units rows of A. NVFP4: 128 bytes a row, and 16 bytes of scales a row and atom. 16 bits: a box of
 * 64 values, 128 bytes a row, for each lane of a quad; 256 bytes between boxes give the lanes different banks. */
#define SM90_UNITS_A_BOX(a_units)             ((a_units) * 1024 + 256)
#define SM90_UNITS_A_BYTES(a_units, a)        ((a) ? 4 * SM90_UNITS_A_BOX(a_units) : (a_units) * 1024)
#define SM90_UNITS_A_SCALES(a_units, a)       ((a) ? 0 : (a_units) * SM90_UNITS_ATOMS * 128)
#define SM90_UNITS_BARRIERS(stages, a_stages) (2 * ((stages) + (a_stages))) /* full and empty */
/* Shared memory of the warps' stages with their mbarriers. The sums of a pass lie behind it. */
#define SM90_UNITS_STAGES_BYTES(a_units, a, stages, a_stages)                                                          \
    (SM90_UNITS_WARPS * ((stages) * (SM90_UNITS_PAIR_BYTES + SM90_UNITS_SCALES) +                                      \
                         (a_stages) * (SM90_UNITS_A_BYTES(a_units, a) + SM90_UNITS_A_SCALES(a_units, a)) +             \
                         SM90_UNITS_BARRIERS(stages, a_stages) * 8))
/* The sums of all warps for a pair of units. */
#define SM90_UNITS_SUMS_BYTES(a_units) (SM90_UNITS_WARPS * (a_units) * 512)

/* Units of n rows of B. In the last, partial block they come in whole pairs, up to the last row of the first quarter
 * that exists. */
#define SM90_UNITS_FULL(n) ((n) / 128 * 16)
#define SM90_UNITS_ALL(n)  (SM90_UNITS_FULL(n) + 2 * CEIL_DIV((n) % 128 < 32 ? (n) % 128 : 32, 4))
/* How an instantiation is loaded: its kernel_entry, for the host. */
#define SM90_UNITS_ENTRY(id, ...)                                                                                      \
    {.name = "nvfp4_" #id, .fatbin = "sm90_units", .threads = SM90_UNITS_THREADS, .more_shared = 1, .pdl = 1},

/* Second parameter of the kernels. The grid is ctas * L CTAs: CTA b has batch b / ctas, and there with i = b % ctas
 * cta_units units of B from i * cta_units + min(i, larger_ctas) on, one more if i < larger_ctas. So those with an even
 * number of units, if they are the larger ones, have whole pairs. */
typedef struct sm90_units_schedule {
    /* Tensor maps. b_pairs, b_units: of whole blocks of B, bytes {K/2, 32, 4 * (N / 128), L} in boxes of a step by the
     * 4 or 2 rows of 4 quarters; none if N < 128. b_tail: bytes {K/2, N, L}, a step by the 4 rows of a quarter; none if
     * N is a multiple of 128. b_scales: bytes {512, atoms, blocks, L}, 64 bytes, a pair's, of each atom of a step. a:
     * bytes {K/2, M, L}, a step by M rows; or 16-bit values {K, M, L}, 64 by M rows. All but b_scales have the 128-byte
     * swizzle. */
    tensor_map b_pairs, b_units, b_tail, b_scales, a;
    uint64_t a_cache_policy, b_cache_policy;
    int32_t ctas; /* of a batch */
    int32_t cta_units, larger_ctas;
    int32_t full_units; /* SM90_UNITS_FULL(n): units from here on lie in the last, partial block */
    int32_t steps;      /* along K; at least 1 */
    int32_t pass_pairs; /* pairs whose sums have room: a CTA with more takes several passes */
    int32_t early_b;    /* 1: b is loaded before griddepcontrol.wait */
    int32_t padding_[5];
} sm90_units_schedule;

#endif
