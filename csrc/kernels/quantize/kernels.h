/* Quantization, its inverse, global scales, and changes of scale layout on the GPU. */
#ifndef NVFP4_QUANTIZE_KERNELS_H
#define NVFP4_QUANTIZE_KERNELS_H

#define QUANTIZE_THREADS 256 /* of a CTA: half an atom of 128x4 scales */
#define SWIZZLE_COLUMNS  32  /* scales of a row that a CTA of swizzle or unswizzle has: 16 a thread, of 128 rows */

#define GPTQ_LANES 16 /* a row of gptq_block has one for each scale that it tries, and spare ones */

#define AMAX_MAX_CTAS   1536 /* of amax_scale */
#define AMAX_COUNT_MASK 2047 /* the bits of amax_problem.arrivals that count them; its tag has the others */

/* An operation before KERNEL_SWIZZLE has a kernel for each type of x, in the order of nvfp4_dtype. */
enum {
    KERNEL_QUANTIZE,
    KERNEL_FOUR_OVER_SIX = 3,
    KERNEL_DEQUANTIZE = 6,
    KERNEL_SILU_MUL_QUANTIZE = 9,
    KERNEL_RMS_NORM_QUANTIZE = 12,
    KERNEL_SEARCH = 15,
    KERNEL_SWIZZLE = 18,
    KERNEL_UNSWIZZLE,
    KERNEL_AMAX_SCALE,
    KERNEL_AMAX_SCALE_ROWS,
    KERNEL_GPTQ_BLOCK,
    KERNEL_GROUPED_QUANTIZE,                             /* + nvfp4_block_scale, without NVFP4_SEARCH */
    KERNEL_GATED_QUANTIZE = KERNEL_GROUPED_QUANTIZE + 2, /* + nvfp4_activation */
    QUANTIZE_KERNELS = KERNEL_GATED_QUANTIZE + 4
};

#endif
