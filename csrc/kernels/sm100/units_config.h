/* Instantiations of units/gemm.cuh for compute capability 10, with fp16 and bf16 A: an NVFP4 A takes sm100/gemm.cu. One
 * stage more than Hopper has: a B200's memory brings 25 bytes a clock to an SM (sm100/model.h), an H200's 16. */
#ifndef NVFP4_SM100_UNITS_CONFIG_H
#define NVFP4_SM100_UNITS_CONFIG_H

#include "kernels/units/config.h"

/*    id, a_units, a (NVFP4 0 / fp16 1 / bf16 2), stages of each warp for pairs of B, a_stages for steps of A */
#define SM100_UNITS_CONFIGS(X)                                                                                         \
    X(sm100_units_fp16_8, 1, 1, 4, 1)                                                                                  \
    X(sm100_units_fp16_16, 2, 1, 4, 1)                                                                                 \
    X(sm100_units_bf16_8, 1, 2, 4, 1)                                                                                  \
    X(sm100_units_bf16_16, 2, 2, 4, 1)

#define SM100_UNITS_ENTRY(...) UNITS_ENTRY("sm100_units", __VA_ARGS__)

#endif
