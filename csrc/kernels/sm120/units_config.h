/* Instantiations of units/gemm.cuh for compute capability 12, with fp16 and bf16 A: an NVFP4 A takes sm120/gemm.cu. A CTA
 * has 99 KiB of shared memory. So there are fewer stages than on Hopper, with room for the sums of 5 pairs with 8 rows
 * of A, and of one pair with 16. Memory needs few: it brings 4.4 bytes a clock to an SM of an RTX 5090, for Hopper's
 * 16. */
#ifndef NVFP4_SM120_UNITS_CONFIG_H
#define NVFP4_SM120_UNITS_CONFIG_H

#include "kernels/units/config.h"

/*    id, a_units, a (NVFP4 0 / fp16 1 / bf16 2), stages of each warp for pairs of B, a_stages for steps of A */
#define SM120_UNITS_CONFIGS(X)                                                                                         \
    X(sm120_units_fp16_8, 1, 1, 2, 1)                                                                                  \
    X(sm120_units_fp16_16, 2, 1, 1, 1)                                                                                 \
    X(sm120_units_bf16_8, 1, 2, 2, 1)                                                                                  \
    X(sm120_units_bf16_16, 2, 2, 1, 1)

#define SM120_UNITS_ENTRY(...) UNITS_ENTRY("sm120_units", __VA_ARGS__)

#endif
