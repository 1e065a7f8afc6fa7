/* Quantization, its inverse, global scales, and changes of scale layout on the GPU. */
#ifndef NVFP4_QUANTIZE_KERNELS_H
#define NVFP4_QUANTIZE_KERNELS_H

#define QUANTIZE_THREADS 256 /* of a CTA: half an atom of 128x4 scales */
#define SWIZZLE_COLUMNS  32  /* scales of a row that a CTA of swizzle or unswizzle has: 16 a thread, of 128 rows */

#define GPTQ_LANES 16 /* a row of gptq_block has one for each scale that it tries, and spare ones */

#define AMAX_MAX_CTAS   1536 /* of amax_scale */
#define AMAX_COUNT_MASK 2047 /* the bits of amax_problem.arrivals that count them; its tag has the others */

#endif
