/* The table of the GPU kernels: names, where they are, threads a CTA, dynamic shared memory a CTA. */
#include "kernels.h"

const kernel_entry kernels[KERNEL_COUNT] = {
#define X(id, tile_m, tile_n, tile_k, stages, warps, ...)                                                              \
    [KERNEL_##id] = {"nvfp4_" #id, "sm80_gemm", 32 * (warps), SM80_SHARED_BYTES(tile_m, tile_n, tile_k, stages, warps)},
    SM80_GEMM_CONFIGS(X)
#undef X
        [KERNEL_SM80_SPLIT_REDUCE] = {"nvfp4_sm80_split_reduce", "sm80_split_reduce", SM80_REDUCE_THREADS, 0},
    [KERNEL_QUANTIZE] = {"nvfp4_quantize_blocks", "quantize_kernels", QUANTIZE_THREADS, 0},
    [KERNEL_DEQUANTIZE] = {"nvfp4_dequantize_blocks", "quantize_kernels", QUANTIZE_THREADS, 0},
    [KERNEL_SWIZZLE] = {"nvfp4_swizzle_scales", "quantize_kernels", QUANTIZE_THREADS, 0},
    [KERNEL_UNSWIZZLE] = {"nvfp4_unswizzle_scales", "quantize_kernels", QUANTIZE_THREADS, 0},
};
