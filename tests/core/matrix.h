/* Operands of tests of the public C interface. examples/product.c, a user's program, has this of its own. */
#ifndef NVFP4_TESTS_MATRIX_H
#define NVFP4_TESTS_MATRIX_H

#include "nvfp4.h"

/* A dense matrix in host memory. */
static inline nvfp4_tensor matrix(void *data, nvfp4_dtype dtype, int64_t rows, int64_t columns) {
    return (nvfp4_tensor){
        .data = data,
        .dtype = dtype,
        .device = NVFP4_HOST,
        .ndim = 2,
        .shape = {rows, columns},
        .stride = {columns, 1},
    };
}

#endif
