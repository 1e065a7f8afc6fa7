/* Quantisation, its inverse, and changes of scale layout on the GPU. */
#ifndef NVFP4_QUANTIZE_KERNELS_H
#define NVFP4_QUANTIZE_KERNELS_H

#define QUANTIZE_THREADS 256 /* of a CTA */

enum { KERNEL_QUANTIZE, KERNEL_DEQUANTIZE, KERNEL_SWIZZLE, KERNEL_UNSWIZZLE, QUANTIZE_KERNELS };

#endif
