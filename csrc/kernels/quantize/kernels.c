/* The kernels of kernels.cu, norm.cu and amax.cu, by their number in the set. */
#include "kernels/quantize/kernels.h"

#include "plan/gemm_family.h"

#define ROW_OF(fatbin_, symbol) {.name = "nvfp4_" symbol, .fatbin = "quantize_" fatbin_, .threads = QUANTIZE_THREADS}
#define ROW(symbol)             ROW_OF("kernels", symbol)
static const kernel_entry kernels[QUANTIZE_KERNELS] = {
    [KERNEL_QUANTIZE] = ROW("quantize_fp16"),
    ROW("quantize_bf16"),
    ROW("quantize_fp32"),
    [KERNEL_FOUR_OVER_SIX] = ROW("four_over_six_fp16"),
    ROW("four_over_six_bf16"),
    ROW("four_over_six_fp32"),
    [KERNEL_DEQUANTIZE] = ROW("dequantize_fp16"),
    ROW("dequantize_bf16"),
    ROW("dequantize_fp32"),
    [KERNEL_SILU_MUL_QUANTIZE] = ROW("silu_mul_quantize_fp16"),
    ROW("silu_mul_quantize_bf16"),
    ROW("silu_mul_quantize_fp32"),
    [KERNEL_RMS_NORM_QUANTIZE] = ROW_OF("norm", "rms_norm_quantize_fp16"),
    ROW_OF("norm", "rms_norm_quantize_bf16"),
    ROW_OF("norm", "rms_norm_quantize_fp32"),
    [KERNEL_SWIZZLE] = ROW("swizzle_scales"),
    [KERNEL_UNSWIZZLE] = ROW("unswizzle_scales"),
    [KERNEL_AMAX_SCALE] = ROW_OF("amax", "amax_scale"),
};
const kernel_set quantize_kernels = {
    .kernels = kernels, .count = QUANTIZE_KERNELS, .least_capability = 80, .most_capability = INT32_MAX};
