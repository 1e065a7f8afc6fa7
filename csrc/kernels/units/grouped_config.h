/* Sizes and schedule of the kernels of units/grouped.cuh, which backends instantiate by a list of their own:
 *
 *   id, a_units, bf16 (of A; else fp16), stages of each warp for pairs of B, a_stages for steps of A, pairs
 *
 * Host C and device code share this file: plain C preprocessor.
 *
 * A tile is up to 8 * a_units rows of a group by tile_pairs pairs of units of a part's matrix (units/config.h).
 * The math warps of a CTA form teams of 2^team_log2, each of which has tiles of its own; the warps of a team take steps
 * of 256 values along K in turn. */
#ifndef NVFP4_UNITS_GROUPED_CONFIG_H
#define NVFP4_UNITS_GROUPED_CONFIG_H

#include "common/gating.h"
#include "kernels/common/group_table.h"
#include "kernels/units/config.h"

#define GROUPED_UNITS_WARPS   UNITS_WARPS
#define GROUPED_UNITS_THREADS UNITS_THREADS
/* The sums of two tiles of each team. pairs: units of A by pairs of units of B that a tile has at most. */
#define GROUPED_UNITS_SUMS(pairs) (2 * GROUPED_UNITS_WARPS * (pairs) * 512)
/* A row of a step of A: 128 bytes for each lane of a quad. The 16 bytes between them, and the length of a row, give the
 * lanes different banks. */
#define GROUPED_UNITS_A_PIECE          144
#define GROUPED_UNITS_A_ROW            (4 * GROUPED_UNITS_A_PIECE)
#define GROUPED_UNITS_A_BYTES(a_units) ((a_units) * 8 * GROUPED_UNITS_A_ROW)
#define GROUPED_UNITS_HEADER           96 /* bytes beside a stage of A: what a tile is */
/* The stages of all warps with their mbarriers, the sums, the table of groups. */
#define GROUPED_UNITS_SHARED_BYTES(a_units, stages, a_stages, pairs)                                                   \
    (GROUPED_UNITS_WARPS * ((stages) * (UNITS_PAIR_BYTES + UNITS_SCALES) +                                             \
                            (a_stages) * (GROUPED_UNITS_A_BYTES(a_units) + GROUPED_UNITS_HEADER) +                     \
                            UNITS_BARRIERS(stages, a_stages) * 8) +                                                    \
     GROUPED_UNITS_SUMS(pairs) + GROUP_TABLE_BYTES)
/* How an instantiation is loaded: its kernel_entry, for the host. */
#define GROUPED_UNITS_ENTRY(source_, id, a_units, bf16, ...)                                                           \
    {.name = "nvfp4_" #id,                                                                                             \
     .source = source_,                                                                                                \
     .threads = GROUPED_UNITS_THREADS,                                                                                 \
     .shared_bytes = GROUPED_UNITS_SHARED_BYTES(a_units, __VA_ARGS__),                                                 \
     .pdl = 1},

/* Second parameter. Team t of CTA c takes tiles c + t * gridDim.x, then one of every gridDim.x * teams. */
typedef struct grouped_units_schedule {
    /* Tensor maps of E * parts matrices, as those of units_schedule. */
    tensor_map b_pairs, b_tail, b_scales;
    uint64_t a_cache_policy, b_cache_policy;
    int32_t team_log2;
    int32_t steps; /* along K; at least 1 */
    int32_t pairs; /* of a matrix */
    int32_t full_pairs;
    int32_t tile_pairs, tiles_n; /* of a part: pairs of a tile, and tiles */
    gating numbers;              /* of an activation */
    int32_t padding_[2];
} grouped_units_schedule;

#endif
