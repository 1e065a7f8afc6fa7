/* mma.sync: a matrix product by one warp, operands and accumulators in registers (PTX ISA 9.0, section 9.7.14.5.8,
 * fragments of m16n8k16 .f16). All 32 lanes execute it. Needs sm_80. */
#ifndef NVFP4_COMMON_MMA_CUH
#define NVFP4_COMMON_MMA_CUH

#include <stdint.h>

/* d[16][8] += a[16][16] . b[8][16]^T. Lane 4g + t holds, as pairs of fp16 along K,
 *   a: rows g and g + 8, K = 2t.. and 2t + 8..   in the order (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8)
 *   b: row g, K = 2t.. and 2t + 8..
 *   d: (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1) */
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The same of bf16. */
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                  uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#endif
