/* A debug build's (NVFP4_DUMP) record of each CTA of the sm90 and sm100 GEMM kernels: where and when it ran. Plain C;
 * tools/lab/placement.py decodes it. */
#ifndef NVFP4_COMMON_PLACEMENT_H
#define NVFP4_COMMON_PLACEMENT_H

#include <stdint.h>

typedef struct placement_cta {
    int32_t cta, ctas, cluster; /* blockIdx; of the grid; CTAs of a cluster */
    int32_t sm;                 /* %smid */
    uint64_t start, end;        /* ns of %globaltimer when thread 0 starts and ends; end is 0 until then */
    int64_t clocks;             /* of %clock64 between the two */
} placement_cta;

/* In memory of the device; the host clears it and sets capacity. */
typedef struct placement_record {
    uint32_t capacity; /* of the placement_cta that follow */
    uint32_t count;    /* of CTAs that have started; those beyond capacity are not recorded */
    uint64_t padding_;
} placement_record;

#endif
