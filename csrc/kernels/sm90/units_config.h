/* Instantiations of units/gemm.cuh for Hopper (units/config.h). */
#ifndef NVFP4_SM90_UNITS_CONFIG_H
#define NVFP4_SM90_UNITS_CONFIG_H

#include "kernels/units/config.h"

/*    id, a_units, a (NVFP4 0 / fp16 1 / bf16 2), stages of each warp for pairs of B, a_stages for steps of A */
#define SM90_UNITS_CONFIGS(X)                                                                                          \
    X(sm90_units_8, 1, 0, 3, 1)                                                                                        \
    X(sm90_units_16, 2, 0, 3, 1)                                                                                       \
    X(sm90_units_fp16_8, 1, 1, 3, 1)                                                                                   \
    X(sm90_units_fp16_16, 2, 1, 3, 1)                                                                                  \
    X(sm90_units_bf16_8, 1, 2, 3, 1)                                                                                   \
    X(sm90_units_bf16_16, 2, 2, 3, 1)

#define SM90_UNITS_ENTRY(...) UNITS_ENTRY("sm90_units", __VA_ARGS__)

#endif
