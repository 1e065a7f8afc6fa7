/* A tensor in global memory and the box of it that one TMA load takes: what a tensor map is encoded from
 * (cuTensorMapEncodeTiled). */
#ifndef NVFP4_COMMON_TENSOR_LAYOUT_H
#define NVFP4_COMMON_TENSOR_LAYOUT_H

#include <stdint.h>

typedef struct tensor_layout {
    const char *name; /* of the argument, for error messages */
    const void *data; /* aligned to 16 bytes */
    int32_t element_bytes, rank;
    uint64_t dims[5];    /* elements, the contiguous dimension first */
    uint64_t strides[4]; /* bytes, of dimension 1 and so on: multiples of 16, below TENSOR_STRIDE_END */
    uint32_t box[5];     /* elements, at most 256 */
    int32_t swizzle;     /* bytes of the swizzle pattern in shared memory, as wide as the box: 128 or 64; 0: none */
} tensor_layout;

#define TENSOR_STRIDE_END ((int64_t)1 << 40)

#endif
