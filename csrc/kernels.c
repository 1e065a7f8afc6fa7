/* The table of the GPU kernels: where they run, names, threads a CTA, dynamic shared memory a CTA. */
#include "kernels.h"

#define SM80_ROW(id, tile_m, tile_n, tile_k, stages, warps, ...)                                                       \
    [KERNEL_##id] = {ARCH_SM80,    0,                                                                                  \
                     "nvfp4_" #id, "sm80_gemm",                                                                        \
                     32 * (warps), SM80_SHARED_BYTES(tile_m, tile_n, tile_k, stages, warps)},
#define SM90_ROW(id, math_groups, x_tiles, tile_y, stages, y_stages, support_groups, ...)                              \
    [KERNEL_##id] = {ARCH_SM90,                                                                                        \
                     1,                                                                                                \
                     "nvfp4_" #id,                                                                                     \
                     "sm90_gemm",                                                                                      \
                     SM90_THREADS(math_groups, support_groups),                                                        \
                     SM90_SHARED_BYTES(math_groups, x_tiles, tile_y, stages, y_stages)},
#define SM100_ROW(id, group, tile_y, stages, accumulators, gather)                                                     \
    [KERNEL_##id] = {                                                                                                  \
        ARCH_SM100, 1, "nvfp4_" #id, "sm100_gemm", SM100_THREADS(gather), SM100_SHARED_BYTES(group, tile_y, stages)},

const kernel_entry kernels[KERNEL_COUNT] = {
    [KERNEL_SM80_SPLIT_REDUCE] = {ARCH_SM80, 0, "nvfp4_sm80_split_reduce", "sm80_split_reduce", SM80_REDUCE_THREADS, 0},
    [KERNEL_QUANTIZE] = {ARCH_SM80, 0, "nvfp4_quantize_blocks", "quantize_kernels", QUANTIZE_THREADS, 0},
    [KERNEL_DEQUANTIZE] = {ARCH_SM80, 0, "nvfp4_dequantize_blocks", "quantize_kernels", QUANTIZE_THREADS, 0},
    [KERNEL_SWIZZLE] = {ARCH_SM80, 0, "nvfp4_swizzle_scales", "quantize_kernels", QUANTIZE_THREADS, 0},
    [KERNEL_UNSWIZZLE] = {ARCH_SM80, 0, "nvfp4_unswizzle_scales", "quantize_kernels", QUANTIZE_THREADS, 0},
    SM80_GEMM_CONFIGS(SM80_ROW) SM90_GEMM_CONFIGS(SM90_ROW) SM100_GEMM_CONFIGS(SM100_ROW)};
