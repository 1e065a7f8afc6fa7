/* The choice of a kernel: shape and device facts in, kernel and settings out. Pure: no driver, no state. */
#ifndef NVFP4_PLAN_H
#define NVFP4_PLAN_H

#include <stdint.h>

#include "cpu/cpu.h"
#include "nvfp4.h"

typedef struct device_facts {
    int32_t compute_capability;  /* 10*major + minor */
    int32_t has_sm90, has_sm100; /* 1: the kernels of that family are loaded */
    int32_t sm_count;
    int32_t shared_per_block; /* bytes a CTA may ask for */
    int32_t shared_per_sm;
    int64_t l2_bytes;
} device_facts;

/* A tensor in memory and the box of it that one copy takes, for a tensor map (driver_encode). */
typedef struct tensor_layout {
    const char *name; /* of the argument */
    const void *data; /* aligned to 16 bytes */
    int32_t element_bytes, rank;
    uint64_t dims[5];    /* elements, the dense dimension first */
    uint64_t strides[4]; /* bytes, of dimension 1 and so on: multiples of 16, below TENSOR_STRIDE_END */
    uint32_t box[5];     /* elements, at most 256 */
    int32_t swizzle;     /* bytes of the pattern in shared memory, which a box is wide: 128 or 64; 0: as it lies */
} tensor_layout;
#define TENSOR_STRIDE_END ((int64_t)1 << 40)

/* What sets a plan for a product apart from the others for it. */
typedef struct plan_settings {
    int32_t kernel; /* kernel_id */
    int32_t swap_ab, split_k, prefetch_stages;
} plan_settings;

/* Which plan to take: plans are in the order of their estimated times, but for the first. */
typedef struct plan_wish {
    plan_settings first; /* stands before all others, where the product has such a plan; split_k = 0: none does */
    int32_t candidate;   /* the place of the plan to take, from 0 on; the last, where there are not so many */
} plan_wish;

/* The GPU family that runs a call for `asked` (nvfp4_backend): the best that the device has code for, or the one that
 * is asked for by name. NVFP4_AUTO: the device cannot run what is asked. */
int32_t plan_family(const device_facts *facts, int32_t asked);

void plan_cpu(cpu_isa isa, nvfp4_plan *plan);

#endif
