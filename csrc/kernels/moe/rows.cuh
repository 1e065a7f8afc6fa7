/* A thread's columns of a row: ROWS_COLUMNS neighbours, fewer at the end of a row. */
#ifndef NVFP4_MOE_ROWS_CUH
#define NVFP4_MOE_ROWS_CUH

#include "kernels/common/epilogue.cuh"
#include "kernels/moe/kernels.h"

/* A CTA has 2^tile_log2 threads of a row and as many rows as fit. Rows of all batches are counted along y and z. */
struct row_coord {
    int64_t row, column;
    int count; /* of columns; 0 or less: the thread has none */

    __device__ __forceinline__ row_coord(int64_t rows, int64_t columns, int32_t tile_log2) {
        uint32_t width = 1u << tile_log2;
        row = ((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * (ROWS_THREADS >> tile_log2) + (threadIdx.x >> tile_log2);
        column = ((int64_t)blockIdx.x * width + (threadIdx.x & (width - 1))) * ROWS_COLUMNS;
        count = row < rows ? (int)min(columns - column, (int64_t)ROWS_COLUMNS) : 0;
    }
};

/* The values as they are in memory, so that loads of several rows precede the arithmetic. 16-bit ones fill w[0..3]. */
struct raw_columns {
    uint32_t w[ROWS_COLUMNS];

    __device__ __forceinline__ void load(const char *from, int bytes, int count) {
        if (count == ROWS_COLUMNS && (uintptr_t)from % 16 == 0) {
            put(0, ((const uint4 *)from)[0]);
            if (bytes == 4) put(4, ((const uint4 *)from)[1]);
            return;
        }
#pragma unroll
        for (int i = 0; i < ROWS_COLUMNS; i++) {
            uint32_t value = 0;
            if (i < count) value = bytes == 4 ? ((const uint32_t *)from)[i] : ((const uint16_t *)from)[i];
            if (bytes == 4)
                w[i] = value;
            else
                w[i / 2] = i % 2 ? w[i / 2] | value << 16 : value;
        }
    }
    __device__ __forceinline__ void put(int at, uint4 four) {
        w[at] = four.x, w[at + 1] = four.y, w[at + 2] = four.z, w[at + 3] = four.w;
    }
    __device__ __forceinline__ void values(float (&v)[ROWS_COLUMNS], int32_t type) const {
#pragma unroll
        for (int i = 0; i < ROWS_COLUMNS; i++) {
            uint32_t half = w[i / 2] >> i % 2 * 16 & 0xFFFF;
            v[i] = type == NVFP4_FP32   ? __uint_as_float(w[i])
                   : type == NVFP4_BF16 ? __uint_as_float(half << 16)
                                        : __half2float(__ushort_as_half((uint16_t)half));
        }
    }
};

__device__ __forceinline__ void store_columns(const float (&v)[ROWS_COLUMNS], char *to, int32_t type, int count) {
    if (count < ROWS_COLUMNS || (uintptr_t)to % 16) {
        store_some(v, to, type_bytes(type), type, count);
    } else if (type == NVFP4_FP32) {
        ((float4 *)to)[0] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)to)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = pack_16(v[2 * i], v[2 * i + 1], type);
        *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

#endif
