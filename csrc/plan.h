/* The choice of a kernel: shape and device facts in, kernel and settings out. Pure: no driver, no state. */
#ifndef NVFP4_PLAN_H
#define NVFP4_PLAN_H

#include <stdint.h>

#include "cpu/cpu.h"
#include "nvfp4.h"

typedef struct device_facts {
    int32_t compute_capability; /* 10*major + minor */
    int32_t sm_count;
    int32_t shared_per_block; /* bytes a CTA may ask for */
    int32_t shared_per_sm;
    int64_t l2_bytes;
} device_facts;

void plan_cpu(cpu_isa isa, nvfp4_plan *plan);

#endif
