/* mma.sync of e2m1 values with block scales, a matrix product by one warp (PTX ISA 9.0, sections 9.7.14.3 block scaling
 * and 9.7.14.5.14 fragments of m16n8k64). All 32 lanes execute it. Needs sm_120f. */
#ifndef NVFP4_COMMON_MMA_BLOCK_SCALE_CUH
#define NVFP4_COMMON_MMA_BLOCK_SCALE_CUH

#include <stdint.h>

/* d[16][8] += (a * sfa)[16][64] . (b * sfb)[8][64]^T, a scale for 16 values along K. Lane 4g + t holds, 8 values a word
 * and the lowest k in the lowest bits,
 *   a: rows g and g + 8, K = 8t.. and 32 + 8t..  in the order (g, 8t) (g + 8, 8t) (g, 32 + 8t) (g + 8, 32 + 8t)
 *   b: row g, K = 8t.. and 32 + 8t..
 *   d: (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
 * A word of scales has a row's four. sfa is read of two lanes of a quad: row g of lane t = 2 * a_lanes, row g + 8 of
 * the next; sfb of one: row g of lane t = b_lane. So if lane 4g + t holds the scales of row 8t + g, a word serves two
 * mma along the rows of a and four along those of b. */
__device__ __forceinline__ void mma_m16n8k64_mxf4nvf4(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                                      uint32_t sfa, uint16_t a_lanes, uint32_t sfb, uint16_t b_lane) {
    asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {0,%11}, {%12}, {0,%13};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(sfa), "h"(a_lanes), "r"(sfb), "h"(b_lane));
}

#endif
