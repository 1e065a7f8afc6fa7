/* The table of the GPU kernels: where they run, names, threads a CTA, dynamic shared memory a CTA. */
#include "kernels.h"

#define SM80_ROW(id, tile_m, tile_n, tile_k, stages, warps, ...)                                                       \
    [KERNEL_##id] = {.arch = ARCH_SM80,                                                                                \
                     .name = "nvfp4_" #id,                                                                             \
                     .source = "sm80_gemm",                                                                            \
                     .threads = 32 * (warps),                                                                          \
                     .shared_bytes = SM80_SHARED_BYTES(tile_m, tile_n, tile_k, stages, warps)},
#define SM90_ROW(id, math_warpgroups, x_tiles, tile_y, group_words, stages, helped)                                    \
    [KERNEL_##id] = {.arch = ARCH_SM90,                                                                                \
                     .programmatic = 1,                                                                                \
                     .more_shared = 1,                                                                                 \
                     .name = "nvfp4_" #id,                                                                             \
                     .source = "sm90_gemm",                                                                            \
                     .threads = SM90_THREADS(math_warpgroups),                                                         \
                     .shared_bytes = SM90_SHARED_BYTES(math_warpgroups, x_tiles, tile_y, stages)},
#define SM90_GEMV_ROW(id, rows, warps, ...)                                                                            \
    [KERNEL_##id] = {.arch = ARCH_SM90,                                                                                \
                     .programmatic = 1,                                                                                \
                     .more_shared = 1,                                                                                 \
                     .name = "nvfp4_" #id,                                                                             \
                     .source = "sm90_gemv",                                                                            \
                     .threads = SM90_GEMV_THREADS(warps)},
#define SM90_PREFILL_ROW(id, ...)                                                                                      \
    [KERNEL_##id] = {.arch = ARCH_SM90,                                                                                \
                     .programmatic = 1,                                                                                \
                     .name = "nvfp4_" #id,                                                                             \
                     .source = "sm90_prefill",                                                                         \
                     .threads = SM90_PREFILL_THREADS,                                                                  \
                     .shared_bytes = SM90_PREFILL_SHARED_BYTES(__VA_ARGS__)},
#define SM100_ROW(id, cta_group, mma_tile_n, stages, accumulators, cp_async)                                           \
    [KERNEL_##id] = {.arch = ARCH_SM100,                                                                               \
                     .programmatic = 1,                                                                                \
                     .more_shared = 1,                                                                                 \
                     .name = "nvfp4_" #id,                                                                             \
                     .source = "sm100_gemm",                                                                           \
                     .threads = SM100_THREADS(cp_async),                                                               \
                     .shared_bytes = SM100_SHARED_BYTES(cta_group, mma_tile_n, stages)},
#define QUANTIZE_ROW(symbol)                                                                                           \
    {.arch = ARCH_SM80, .name = "nvfp4_" symbol, .source = "quantize_kernels", .threads = QUANTIZE_THREADS}

/* The lists are no subscripts, as clang-format has it. */
/* clang-format off */
const kernel_entry kernels[KERNEL_COUNT] = {
    SM80_GEMM_CONFIGS(SM80_ROW)
    [KERNEL_SM80_SPLIT_REDUCE] = {.arch = ARCH_SM80,
                                  .name = "nvfp4_sm80_split_reduce",
                                  .source = "sm80_split_reduce",
                                  .threads = SM80_REDUCE_THREADS},
    SM90_GEMM_CONFIGS(SM90_ROW)
    SM90_GEMV_CONFIGS(SM90_GEMV_ROW)
    SM90_PREFILL_CONFIGS(SM90_PREFILL_ROW)
    [KERNEL_SM90_DEQUANT] = {.arch = ARCH_SM90,
                            .programmatic = 1,
                            .name = "nvfp4_sm90_dequant",
                            .source = "sm90_dequant",
                            .threads = SM90_DEQUANT_THREADS},
    SM100_GEMM_CONFIGS(SM100_ROW)
    [KERNEL_QUANTIZE] = QUANTIZE_ROW("quantize_blocks"),
    [KERNEL_DEQUANTIZE] = QUANTIZE_ROW("dequantize_blocks"),
    [KERNEL_SWIZZLE] = QUANTIZE_ROW("swizzle_scales"),
    [KERNEL_UNSWIZZLE] = QUANTIZE_ROW("unswizzle_scales"),
};
/* clang-format on */
