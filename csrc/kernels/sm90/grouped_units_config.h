/* Instantiations and schedule of sm90/grouped_units.cu. Host C and device code share this file: plain C preprocessor.
 *
 * A tile is up to 8 * a_units rows of a group by tile_pairs pairs of units of a part's matrix (sm90/units_config.h).
 * The math warps of a CTA form teams of 2^team_log2, each of which has tiles of its own; the warps of a team take steps
 * of 256 values along K in turn. */
#ifndef NVFP4_SM90_GROUPED_UNITS_CONFIG_H
#define NVFP4_SM90_GROUPED_UNITS_CONFIG_H

#include "common/gating.h"
#include "kernels/sm90/grouped_config.h"
#include "kernels/sm90/units_config.h"

/*    id, a_units, bf16 (of A; else fp16), stages of each warp for pairs of B, a_stages for steps of A */
#define SM90_GROUPED_UNITS_CONFIGS(X)                                                                                  \
    X(sm90_grouped_units_fp16_8, 1, 0, 4, 2)                                                                           \
    X(sm90_grouped_units_fp16_16, 2, 0, 4, 1)                                                                          \
    X(sm90_grouped_units_bf16_8, 1, 1, 4, 2)                                                                           \
    X(sm90_grouped_units_bf16_16, 2, 1, 4, 1)

#define SM90_GROUPED_UNITS_WARPS   SM90_UNITS_WARPS
#define SM90_GROUPED_UNITS_THREADS SM90_UNITS_THREADS
/* Units of A by pairs of units of B that a tile has at most: the sums of two tiles of each team lie in shared memory.
 */
#define SM90_GROUPED_UNITS_PAIRS 8
#define SM90_GROUPED_UNITS_SUMS  (2 * SM90_GROUPED_UNITS_WARPS * SM90_GROUPED_UNITS_PAIRS * 512)
/* A row of a step of A: 128 bytes for each lane of a quad. The 16 bytes between them, and the length of a row, give the
 * lanes different banks. */
#define SM90_GROUPED_UNITS_A_PIECE          144
#define SM90_GROUPED_UNITS_A_ROW            (4 * SM90_GROUPED_UNITS_A_PIECE)
#define SM90_GROUPED_UNITS_A_BYTES(a_units) ((a_units) * 8 * SM90_GROUPED_UNITS_A_ROW)
#define SM90_GROUPED_UNITS_HEADER           96 /* bytes beside a stage of A: what a tile is */
/* The stages of all warps with their mbarriers, the sums, the table of groups. */
#define SM90_GROUPED_UNITS_SHARED_BYTES(a_units, stages, a_stages)                                                     \
    (SM90_GROUPED_UNITS_WARPS * ((stages) * (SM90_UNITS_PAIR_BYTES + SM90_UNITS_SCALES) +                              \
                                 (a_stages) * (SM90_GROUPED_UNITS_A_BYTES(a_units) + SM90_GROUPED_UNITS_HEADER) +      \
                                 SM90_UNITS_BARRIERS(stages, a_stages) * 8) +                                          \
     SM90_GROUPED_UNITS_SUMS + GROUP_TABLE_BYTES)
/* How an instantiation is loaded: its kernel_entry, for the host. */
#define SM90_GROUPED_UNITS_ENTRY(id, a_units, bf16, stages, a_stages, ...)                                             \
    {.name = "nvfp4_" #id,                                                                                             \
     .fatbin = "sm90_grouped_units",                                                                                   \
     .threads = SM90_GROUPED_UNITS_THREADS,                                                                            \
     .shared_bytes = SM90_GROUPED_UNITS_SHARED_BYTES(a_units, stages, a_stages),                                       \
     .pdl = 1},

/* Second parameter. Team t of CTA c takes tiles c + t * gridDim.x, then one of every gridDim.x * teams. */
typedef struct sm90_grouped_units_schedule {
    /* Tensor maps of E * parts matrices, as those of sm90_units_schedule. */
    tensor_map b_pairs, b_tail, b_scales;
    uint64_t a_cache_policy, b_cache_policy;
    int32_t team_log2;
    int32_t steps; /* along K; at least 1 */
    int32_t pairs; /* of a matrix */
    int32_t full_pairs;
    int32_t tile_pairs, tiles_n; /* of a part: pairs of a tile, and tiles */
    gating numbers;              /* of an activation */
    int32_t padding_[2];
} sm90_grouped_units_schedule;

#endif
