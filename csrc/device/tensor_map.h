/* A tensor map as the driver encodes it (cuTensorMapEncodeTiled): 128 opaque bytes on 64. Host C and device code share
 * this; a kernel receives it inside a __grid_constant__ parameter. */
#ifndef NVFP4_DEVICE_TENSOR_MAP_H
#define NVFP4_DEVICE_TENSOR_MAP_H

#include <stdint.h>

typedef struct __attribute__((aligned(64))) tensor_map {
    uint64_t opaque[16];
} tensor_map;

#endif
