/* What a plan may depend on besides the shape: the facts of one device. */
#ifndef NVFP4_PLAN_H
#define NVFP4_PLAN_H

#include <stdint.h>

struct device_facts {
    int compute_capability; /* 10*major + minor */
    int sm_count;
    int shared_per_block; /* bytes, opt-in limit */
    int shared_per_sm;
    int64_t l2_bytes;
};

#endif
