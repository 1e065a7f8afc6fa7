/* Quantisation, its inverse, and changes of scale layout on the GPU. */
#ifndef NVFP4_QUANTIZE_KERNELS_H
#define NVFP4_QUANTIZE_KERNELS_H

#define QUANTIZE_THREADS 256 /* of a CTA: half an atom of 128x4 scales */
#define SWIZZLE_COLUMNS  32  /* scales of a row that a CTA of swizzle or unswizzle has: 16 a thread, of 128 rows */

/* quantize and dequantize have a kernel for each type of x, in the order of OUT_*. */
enum { KERNEL_QUANTIZE, KERNEL_DEQUANTIZE = 3, KERNEL_SWIZZLE = 6, KERNEL_UNSWIZZLE, QUANTIZE_KERNELS };

#endif
