/* The GPU kernels in the embedded fat binaries: one row each, in one table (kernels.c). */
#ifndef NVFP4_KERNELS_H
#define NVFP4_KERNELS_H

#include <stdint.h>

#include "sm100_configs.h"
#include "sm80_configs.h"
#include "sm90_configs.h"
#include "sm90_gemv_configs.h"
#include "sm90_prefill_configs.h"

typedef enum kernel_id {
#define X(id, ...) KERNEL_##id,
    SM80_GEMM_CONFIGS(X) SM90_GEMM_CONFIGS(X) SM90_GEMV_CONFIGS(X) SM90_PREFILL_CONFIGS(X) SM100_GEMM_CONFIGS(X)
#undef X
        KERNEL_SM80_SPLIT_REDUCE,
    KERNEL_SM90_DEQUANT,
    KERNEL_QUANTIZE,
    KERNEL_DEQUANTIZE,
    KERNEL_SWIZZLE,
    KERNEL_UNSWIZZLE,
    KERNEL_COUNT,
} kernel_id;

typedef enum kernel_arch {
    ARCH_SM80,  /* any GPU of compute capability 8.0 or later */
    ARCH_SM90,  /* 9.0 alone: code for sm_90a (PTX ISA 9.0, .target) */
    ARCH_SM100, /* the family of 10.0: 10.0 and 10.3 (PTX ISA 9.0, .target sm_100f) */
} kernel_arch;

typedef struct kernel_entry {
    kernel_arch arch;
    int32_t programmatic; /* 1: it waits for the kernel before it by itself (griddepcontrol.wait), so may start early */
    int32_t more_shared;  /* 1: a launch may ask for more shared memory than shared_bytes */
    const char *name;     /* its extern "C" name */
    const char *source;   /* the .cu file it is in, which names the fat binary */
    int32_t threads;      /* a CTA */
    int32_t shared_bytes; /* dynamic shared memory a CTA */
} kernel_entry;

extern const kernel_entry kernels[KERNEL_COUNT];

#endif
