/* Quantization with NVFP4_SEARCH, with importance or without: tiles.cuh's tiles, block.cuh's search, bit for bit as
 * cpu/quantize.c. A value takes 13 times some 10 instructions, about eight times as long as reading it from memory. */
#include "kernels/quantize/tiles.cuh"

/* 2 CTAs an SM: values, scaled values, weights and the next block take 100 registers. */
#define KERNEL(NAME, TYPE) QUANTIZE_KERNEL(nvfp4_search_##NAME, 2, values_of_x<TYPE>, NVFP4_SEARCH)
KERNEL(fp16, NVFP4_FP16)
KERNEL(bf16, NVFP4_BF16)
KERNEL(fp32, NVFP4_FP32)
