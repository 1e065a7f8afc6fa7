/* wgmma (PTX ISA 9.0, section 9.7.15): d += a . b by a warpgroup, asynchronously. a is 64 x 16 fp16 or bf16 in
 * registers, b 16 x N of the same type in shared memory, d 64 x N fp32 in registers. Needs sm_90a.
 *
 * Fragments of lane l of warp w: of a, rows 16w + l/4 and 8 further, columns 2(l%4), the next, and both 8 further; of d
 * the same rows and, of every 8 columns, columns 2(l%4) and the next. From wgmma.fence until the wait for its group, a
 * and d belong to the tensor core. */
#ifndef NVFP4_COMMON_WGMMA_CUH
#define NVFP4_COMMON_WGMMA_CUH

#include <stdint.h>

#include "common/problem.h"

/* Matrix descriptor of b: rows of 128 bytes, 64 values along K, 128-byte swizzle, which repeats every 1024 bytes
 * (section 9.7.15.5.1). A K-step of 16 is 32 bytes. The address is masked: in a cluster its upper bits hold the CTA
 * rank, which would reach other fields of the descriptor. */
__device__ __forceinline__ uint64_t wgmma_smem_descriptor(uint32_t address) {
    return (uint64_t)(address >> 4 & 0x3FFF) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Orders this thread's register writes to a and d before the following wgmma. */
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits for all groups but the latest PENDING. */
template <int PENDING> __device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Sets the registers of a thread; executed by all warps of the warpgroup. */
template <int REGISTERS> __device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int N, int TYPE> struct wgmma_rs; /* TYPE: of a and b, NVFP4_FP16 or NVFP4_BF16 */

/* scale_d = 0: d = a . b. */
#define WGMMA_RS_OF(type, type_name, n, registers, a0, a1, a2, a3, descriptor, scale, ...)                             \
    template <> struct wgmma_rs<n, type> {                                                                             \
        static __device__ __forceinline__ void mma_async(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b,        \
                                                         uint32_t scale_d) {                                           \
            asm volatile("{ .reg .pred add; setp.ne.u32 add, " scale ", 0;"                                            \
                         " wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type_name "." type_name " {" registers     \
                         "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " descriptor ", add, 1, 1, 0; }"                        \
                         : __VA_ARGS__                                                                                 \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d)                            \
                         : "memory");                                                                                  \
        }                                                                                                              \
    };

#define WGMMA_RS(...)                                                                                                  \
    WGMMA_RS_OF(NVFP4_FP16, "f16", __VA_ARGS__)                                                                        \
    WGMMA_RS_OF(NVFP4_BF16, "bf16", __VA_ARGS__)

#define D4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D8(i)  D4(i), D4(i + 4)
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)

#define P0_3   "%0, %1, %2, %3"
#define P0_7   P0_3 ", %4, %5, %6, %7"
#define P8_15  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define P16_23 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define P24_31 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define P32_39 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define P40_47 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define P48_55 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define P56_63 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define P40_51 ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51"
#define P56_59 ", %56, %57, %58, %59"
#define P64_67 ", %64, %65, %66, %67"
#define P68_75 ", %68, %69, %70, %71, %72, %73, %74, %75"
#define P0_31  P0_7 P8_15 P16_23 P24_31
#define P0_39  P0_31 P32_39
#define P0_55  P0_31 P32_39 P40_47 P48_55

WGMMA_RS(8, P0_3, "%4", "%5", "%6", "%7", "%8", "%9", D4(0))
WGMMA_RS(16, P0_7, "%8", "%9", "%10", "%11", "%12", "%13", D8(0))
WGMMA_RS(32, P0_7 P8_15, "%16", "%17", "%18", "%19", "%20", "%21", D16(0))
WGMMA_RS(48, P0_7 P8_15 P16_23, "%24", "%25", "%26", "%27", "%28", "%29", D16(0), D8(16))
WGMMA_RS(64, P0_31, "%32", "%33", "%34", "%35", "%36", "%37", D32(0))
WGMMA_RS(80, P0_39, "%40", "%41", "%42", "%43", "%44", "%45", D32(0), D8(32))
WGMMA_RS(96, P0_31 P32_39 P40_47, "%48", "%49", "%50", "%51", "%52", "%53", D32(0), D16(32))
WGMMA_RS(104, P0_39 P40_51, "%52", "%53", "%54", "%55", "%56", "%57", D32(0), D16(32), D4(48))
WGMMA_RS(112, P0_55, "%56", "%57", "%58", "%59", "%60", "%61", D32(0), D16(32), D8(48))
WGMMA_RS(120, P0_55 P56_59, "%60", "%61", "%62", "%63", "%64", "%65", D32(0), D16(32), D8(48), D4(56))
WGMMA_RS(128, P0_55 P56_63, "%64", "%65", "%66", "%67", "%68", "%69", D32(0), D32(32))
WGMMA_RS(136, P0_55 P56_63 P64_67, "%68", "%69", "%70", "%71", "%72", "%73", D32(0), D32(32), D4(64))
WGMMA_RS(152, P0_55 P56_63 P64_67 P68_75, "%76", "%77", "%78", "%79", "%80", "%81", D32(0), D32(32), D8(64), D4(72))

#undef WGMMA_RS
#undef WGMMA_RS_OF
#undef D4
#undef D8
#undef D16
#undef D32
#undef P0_3
#undef P0_7
#undef P8_15
#undef P16_23
#undef P24_31
#undef P32_39
#undef P40_47
#undef P48_55
#undef P56_63
#undef P40_51
#undef P56_59
#undef P64_67
#undef P68_75
#undef P0_31
#undef P0_39
#undef P0_55

#endif
