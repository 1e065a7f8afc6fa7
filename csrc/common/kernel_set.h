/* The GPU kernels of one backend in the embedded images, as the driver loads and launches them. */
#ifndef NVFP4_COMMON_KERNEL_SET_H
#define NVFP4_COMMON_KERNEL_SET_H

#include <stdint.h>

typedef struct kernel_entry {
    const char *name;     /* its extern "C" name */
    const char *source;   /* the .cu file it is compiled from, by its folder and stem: "sm80_gemm" */
    int32_t threads;      /* of a CTA */
    int32_t shared_bytes; /* dynamic shared memory that each launch takes at least */
    int32_t more_shared;  /* 1: a launch may take more than shared_bytes, up to the device's limit */
    int32_t ctas_per_sm;  /* 1 or 2: launched in clusters; the driver asks how many fit (device_props). 0: not so */
    int32_t pdl;          /* 1: programmatic dependent launch, where the kernel's PTX is that of sm_90 or later: there
                           * it executes griddepcontrol.wait, so it may start early */
} kernel_entry;

typedef struct kernel_set {
    const kernel_entry *kernels;
    int32_t count;
    int32_t min_capability, max_capability; /* compute capabilities it runs on, 10*major + minor */
    int32_t optional; /* 1: a driver without code for the device leaves the set out; 0: that is an error */
} kernel_set;

#endif
