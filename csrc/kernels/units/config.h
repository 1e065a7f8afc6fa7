/* Sizes and schedule of the kernels of units/gemm.cuh, which backends instantiate by a list of their own:
 *
 *   id, a_units, a (NVFP4 0 / fp16 1 / bf16 2), stages of each warp for pairs of B, a_stages for steps of A
 *
 * Host C and device code share this file: plain C preprocessor.
 *
 * For 1 <= M <= 8 * a_units. A unit is 8 rows of B: rows 2i and 2i + 1 of each of the four quarters (32 rows) of a
 * 128-row block. Two neighbours are a pair, rows 4i to 4i + 3 of the quarters, 16 rows as an mma takes them. The warps
 * of a CTA take steps of 256 values along K in turn. */
#ifndef NVFP4_UNITS_CONFIG_H
#define NVFP4_UNITS_CONFIG_H

#include <stdint.h>

#include "common/tensor_map.h"
#include "kernels/common/ceil_div.h"

#define UNITS_MAX_M      16 /* rows of A: two units */
#define UNITS_STEP_K     256
#define UNITS_ATOMS      (UNITS_STEP_K / 64) /* of a step: 512-byte blocks of the 128x4 scale layout */
#define UNITS_UNIT_BYTES (8 * UNITS_STEP_K / 2)
#define UNITS_PAIR_BYTES (2 * UNITS_UNIT_BYTES)
#define UNITS_SCALES     (UNITS_ATOMS * 64)     /* bytes of the scales of a pair's step */
#define UNITS_WARPS      8                      /* math warps, which share K */
#define UNITS_PASS_PAIRS 7                      /* of a pass at most (units/plan.c) */
#define UNITS_THREADS    (2 * 32 * UNITS_WARPS) /* each has a producer warp */

/* A step of 8 * a_units rows of A. NVFP4: 128 bytes a row, and 16 bytes of scales a row and atom. 16 bits: a box of
 * 64 values, 128 bytes a row, for each lane of a quad; 256 bytes between boxes give the lanes different banks. */
#define UNITS_A_BOX(a_units)             ((a_units) * 1024 + 256)
#define UNITS_A_BYTES(a_units, a)        ((a) ? 4 * UNITS_A_BOX(a_units) : (a_units) * 1024)
#define UNITS_A_SCALES(a_units, a)       ((a) ? 0 : (a_units) * UNITS_ATOMS * 128)
#define UNITS_BARRIERS(stages, a_stages) (2 * ((stages) + (a_stages))) /* full and empty */
/* Shared memory of the warps' stages with their mbarriers. The sums of a pass lie behind it. */
#define UNITS_STAGES_BYTES(a_units, a, stages, a_stages)                                                               \
    (UNITS_WARPS *                                                                                                     \
     ((stages) * (UNITS_PAIR_BYTES + UNITS_SCALES) +                                                                   \
      (a_stages) * (UNITS_A_BYTES(a_units, a) + UNITS_A_SCALES(a_units, a)) + UNITS_BARRIERS(stages, a_stages) * 8))
/* The sums of all warps for a pair of units. */
#define UNITS_SUMS_BYTES(a_units) (UNITS_WARPS * (a_units) * 512)

/* Units of n rows of B. In the last, partial block they come in whole pairs, up to the last row of the first quarter
 * that exists. */
#define UNITS_FULL(n) ((n) / 128 * 16)
#define UNITS_ALL(n)  (UNITS_FULL(n) + 2 * CEIL_DIV((n) % 128 < 32 ? (n) % 128 : 32, 4))
/* How an instantiation is loaded: its kernel_entry, for the host. */
#define UNITS_ENTRY(source_, id, ...)                                                                                  \
    {.name = "nvfp4_" #id, .source = source_, .threads = UNITS_THREADS, .more_shared = 1, .pdl = 1},

/* Second parameter of the kernels. The grid is ctas * L CTAs: CTA b has batch b / ctas, and there with i = b % ctas
 * cta_units units of B from i * cta_units + min(i, larger_ctas) on, one more if i < larger_ctas. So those with an even
 * number of units, if they are the larger ones, have whole pairs. */
typedef struct units_schedule {
    /* Tensor maps. b_pairs, b_units: of whole blocks of B, bytes {K/2, 32, 4 * (N / 128), L} in boxes of a step by the
     * 4 or 2 rows of 4 quarters; none if N < 128. b_tail: bytes {K/2, N, L}, a step by the 4 rows of a quarter; none if
     * N is a multiple of 128. b_scales: bytes {512, atoms, blocks, L}, 64 bytes, a pair's, of each atom of a step. a:
     * bytes {K/2, M, L}, a step by M rows; or 16-bit values {K, M, L}, 64 by M rows. All but b_scales have the 128-byte
     * swizzle. */
    tensor_map b_pairs, b_units, b_tail, b_scales, a;
    uint64_t a_cache_policy, b_cache_policy;
    int32_t ctas; /* of a batch */
    int32_t cta_units, larger_ctas;
    int32_t full_units; /* UNITS_FULL(n): units from here on lie in the last, partial block */
    int32_t steps;      /* along K; at least 1 */
    int32_t pass_pairs; /* pairs whose sums have room: a CTA with more takes several passes */
    int32_t early_b;    /* 1: b is loaded before griddepcontrol.wait */
    int32_t padding_[5];
} units_schedule;

#endif
