/* Properties of a device that plans depend on. Bytes are compared (plan/choose.c), so no padding. */
#ifndef NVFP4_COMMON_DEVICE_PROPS_H
#define NVFP4_COMMON_DEVICE_PROPS_H

#include <stdint.h>

typedef struct device_props {
    int32_t compute_capability; /* 10*major + minor */
    int32_t sm_count;
    int32_t shared_per_block; /* bytes of shared memory that a CTA may have */
    int32_t shared_per_sm;
    int32_t clock_mhz;   /* highest SM clock; 0: unknown */
    int32_t memory_gb_s; /* peak of the device memory's bus; 0: unknown */
    int64_t l2_bytes;
    /* Clusters of 2, 4 and 8 CTAs that the device says run at a time, with one and with two CTAs an SM. 0: it has not
     * said; -1: none. */
    int32_t clusters[2][3];
} device_props;

/* Bytes of an SM's shared memory that each CTA takes besides its own (CUDA programming guide, compute capabilities). */
enum { RESERVED_SHARED = 1024 };

/* The least shared memory with which a CTA keeps others of its kernel from its SM. */
static inline int32_t shared_alone(const device_props *props) {
    return (props->shared_per_sm / 2 - RESERVED_SHARED) / 16 * 16 + 16;
}

#endif
