/* Instantiations of units/grouped.cuh for compute capability 12. A CTA has 99 KiB of shared memory: a tile has 8 rows and
 * two pairs at most. Groups of more rows have several tiles, which read B again from L2. */
#ifndef NVFP4_SM120_GROUPED_UNITS_CONFIG_H
#define NVFP4_SM120_GROUPED_UNITS_CONFIG_H

#include "kernels/units/grouped_config.h"

/*    id, a_units, bf16 (of A; else fp16), stages of each warp for pairs of B, a_stages for steps of A, pairs */
#define SM120_GROUPED_UNITS_CONFIGS(X)                                                                                 \
    X(sm120_grouped_units_fp16_8, 1, 0, 2, 1, 2)                                                                       \
    X(sm120_grouped_units_bf16_8, 1, 1, 2, 1, 2)

#define SM120_GROUPED_UNITS_ENTRY(...) GROUPED_UNITS_ENTRY("sm120_grouped_units", __VA_ARGS__)

#endif
