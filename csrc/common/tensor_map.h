/* A tensor map as cuTensorMapEncodeTiled writes it: 128 opaque bytes, 64-byte aligned. Host C and device code include
 * it; a kernel receives it in a __grid_constant__ parameter. */
#ifndef NVFP4_COMMON_TENSOR_MAP_H
#define NVFP4_COMMON_TENSOR_MAP_H

#include <stdint.h>

typedef struct __attribute__((aligned(64))) tensor_map {
    uint64_t opaque[16];
} tensor_map;

#endif
