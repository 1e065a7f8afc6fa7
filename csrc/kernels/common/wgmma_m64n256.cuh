/* wgmma m64n256k16 (PTX ISA 9.0, section 9.7.15), beside the narrower ones of wgmma.cuh. b, and a unless it is in
 * registers, are in shared memory with the 128-byte swizzle. Needs sm_90a. */
#ifndef NVFP4_COMMON_WGMMA_M64N256_CUH
#define NVFP4_COMMON_WGMMA_M64N256_CUH

#include "kernels/common/wgmma.cuh"

#define D4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D64(i) D16(i), D16(i + 16), D16(i + 32), D16(i + 48)
#define TEN(i) "%" #i "0, %" #i "1, %" #i "2, %" #i "3, %" #i "4, %" #i "5, %" #i "6, %" #i "7, %" #i "8, %" #i "9, "
#define P0_127                                                                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10)  \
        TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127"
#define ADD "{ .reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned."

/* d += a . b */
__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(ADD "m64n256k16.f32.f16.f16 {" P0_127 "}, %128, %129, add, 1, 1, 0, 0; }"
                 : D64(0), D64(64)
                 : "l"(a), "l"(b)
                 : "memory");
}

/* TYPE: of a and b, NVFP4_FP16 or NVFP4_BF16. */
template <int TYPE>
__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
    if constexpr (TYPE == NVFP4_FP16)
        asm volatile(ADD "m64n256k16.f32.f16.f16 {" P0_127 "}, {%128, %129, %130, %131}, %132, add, 1, 1, 0; }"
                     : D64(0), D64(64)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                     : "memory");
    else
        asm volatile(ADD "m64n256k16.f32.bf16.bf16 {" P0_127 "}, {%128, %129, %130, %131}, %132, add, 1, 1, 0; }"
                     : D64(0), D64(64)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                     : "memory");
}

#undef D4
#undef D16
#undef D64
#undef TEN
#undef P0_127
#undef ADD

#endif
