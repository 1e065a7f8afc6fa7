/* The numbers of types, scale layouts and block scales: public in nvfp4.h, and the same in kernels. C, C++ and device
 * code. */
#ifndef NVFP4_COMMON_FORMAT_H
#define NVFP4_COMMON_FORMAT_H

typedef enum nvfp4_dtype {
    NVFP4_NONE = 0, /* the argument is absent */
    NVFP4_UINT8,
    NVFP4_E2M1X2, /* two e2m1 values in a byte */
    NVFP4_E4M3,
    NVFP4_FP16,
    NVFP4_BF16,
    NVFP4_FP32,
    NVFP4_INT32,
    NVFP4_INT64,
} nvfp4_dtype;

typedef enum nvfp4_layout {
    NVFP4_128X4 = 0,
    NVFP4_LINEAR = 1,
} nvfp4_layout;

typedef enum nvfp4_block_scale {
    NVFP4_AMAX6 = 0,         /* amax / 6: the largest value of a block becomes 6 */
    NVFP4_FOUR_OVER_SIX = 1, /* amax / 6 or amax / 4, the one with the smaller error */
    NVFP4_SEARCH = 2,        /* the best of 13 scales */
} nvfp4_block_scale;

#endif
