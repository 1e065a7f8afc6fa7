/* The instantiations in the file for the competition's dual product, which are not the package's: products are not
 * rounded before the activation, so those of a pair of CTAs, too, stay in tensor memory until they are stored. */
#ifndef NVFP4_CONTEST_DUAL_INSTANTIATIONS_H
#define NVFP4_CONTEST_DUAL_INSTANTIATIONS_H

#define SM100_GEMM_CONFIGS(X) /* none */
#define SM100_GROUPED_DUAL    1
#define SM100_GROUPED_CONFIGS(X)                                                                                       \
    X(sm100_grouped_gated_128x64, 1, 2, 64, 4, 2)                                                                      \
    X(sm100_grouped_gated_128x128, 1, 2, 128, 4, 1)                                                                    \
    X(sm100_grouped_gated_128x256, 2, 2, 256, 5, 1)

#endif
