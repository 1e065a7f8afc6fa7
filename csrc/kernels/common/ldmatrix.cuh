/* ldmatrix and stmatrix (PTX ISA 9.0, 9.7.14.5.15 and 16): 8x8 matrices of 16-bit values between shared memory and a
 * warp's registers. */
#ifndef NVFP4_COMMON_LDMATRIX_CUH
#define NVFP4_COMMON_LDMATRIX_CUH

#include <stdint.h>

/* Four matrices, transposed: lane 8i + r gives the address of row r of matrix i, 16 bytes. Lane 4g + t gets of each
 * matrix column g of rows 2t (low half) and 2t + 1. */
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t from, uint32_t (&v)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(from)
                 : "memory");
}

/* Four matrices as they lie: lane 4g + t gets of each matrix the two values 2t and 2t + 1 of row g, 4 bytes. */
__device__ __forceinline__ void ldmatrix_x4(uint32_t from, uint32_t (&v)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(from)
                 : "memory");
}

/* Two; lanes 16 to 31 give no address. */
__device__ __forceinline__ void ldmatrix_x2(uint32_t from, uint32_t &v0, uint32_t &v1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(v0), "=r"(v1)
                 : "r"(from)
                 : "memory");
}

/* Stores two matrices, transposed: lane 4g + t has of each the values of column g in rows 2t (low half) and 2t + 1. Lane
 * 8i + r gives the address of row r of matrix i, 16 bytes; lanes 16 to 31 give no address. Needs sm_90. */
__device__ __forceinline__ void stmatrix_x2_trans(uint32_t to, uint32_t v0, uint32_t v1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(v0), "r"(v1)
                 : "memory");
}

#endif
