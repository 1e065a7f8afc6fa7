/* The GPU kernels in the embedded fat binaries: one row each, in one table (kernels.c). */
#ifndef NVFP4_KERNELS_H
#define NVFP4_KERNELS_H

#include <stdint.h>

#include "sm80_configs.h"

typedef enum kernel_id {
#define X(id, ...) KERNEL_##id,
    SM80_GEMM_CONFIGS(X)
#undef X
        KERNEL_SM80_SPLIT_REDUCE,
    KERNEL_QUANTIZE,
    KERNEL_DEQUANTIZE,
    KERNEL_SWIZZLE,
    KERNEL_UNSWIZZLE,
    KERNEL_COUNT,
} kernel_id;

typedef struct kernel_entry {
    const char *name;     /* its extern "C" name */
    const char *source;   /* the .cu file it is in, which names the fat binary */
    int32_t threads;      /* a CTA */
    int32_t shared_bytes; /* dynamic shared memory a CTA */
} kernel_entry;

extern const kernel_entry kernels[KERNEL_COUNT];

#endif
