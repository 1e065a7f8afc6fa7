/* Operand A or B of the mma, as the kernels of sm100 and sm120 load it: a part of their schedules. C11, C++17 and
 * device code. */
#ifndef NVFP4_COMMON_MMA_OPERAND_H
#define NVFP4_COMMON_MMA_OPERAND_H

#include "common/tensor_map.h"

typedef struct mma_operand {
    tensor_map values; /* uint8 {K/2, rows, L}; the kernel's config.h has the box and the swizzle */
    const uint8_t *data, *scale;
    int64_t pitch, batch;             /* bytes between rows and between batches of data */
    int64_t scale_pitch, scale_batch; /* 128x4: bytes between 128-row blocks; linear: between rows */
    uint64_t cache_policy;            /* L2, of values and scales (PTX createpolicy) */
    int32_t rows;
    int32_t padding_;
} mma_operand;

#endif
