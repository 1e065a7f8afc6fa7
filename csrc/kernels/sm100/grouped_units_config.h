/* Instantiations of units/grouped.cuh for compute capability 10: Hopper's, since a CTA has as much shared memory. */
#ifndef NVFP4_SM100_GROUPED_UNITS_CONFIG_H
#define NVFP4_SM100_GROUPED_UNITS_CONFIG_H

#include "kernels/units/grouped_config.h"

/*    id, a_units, bf16 (of A; else fp16), stages of each warp for pairs of B, a_stages for steps of A, pairs */
#define SM100_GROUPED_UNITS_CONFIGS(X)                                                                                 \
    X(sm100_grouped_units_fp16_8, 1, 0, 4, 2, 8)                                                                       \
    X(sm100_grouped_units_fp16_16, 2, 0, 4, 1, 8)                                                                      \
    X(sm100_grouped_units_bf16_8, 1, 1, 4, 2, 8)                                                                       \
    X(sm100_grouped_units_bf16_16, 2, 1, 4, 1, 8)

#define SM100_GROUPED_UNITS_ENTRY(...) GROUPED_UNITS_ENTRY("sm100_grouped_units", __VA_ARGS__)

#endif
