/* tcgen05: the tensor cores of Blackwell and their memory (PTX ISA 9.0, section 9.7.16). Tensor memory has 128 lanes of
 * 512 32-bit columns; an address is lane << 16 | column. GROUP, 1 or 2, is the number of CTAs that multiply together;
 * all instructions of a kernel name the same. Needs sm_100 of the family f (sm_100, sm_103).
 *
 * Order (9.7.16.6): of one thread, cp before mma and mma before mma on the same accumulator; no promise that a cp stays
 * behind an earlier mma. Other threads learn of mma and cp by commit and an mbarrier, and put
 * tcgen05_fence_after_thread_sync behind the wait; they put tcgen05_fence_before_thread_sync ahead of a barrier that
 * tells of their own loads. */
#ifndef NVFP4_DEVICE_TCGEN05_CUH
#define NVFP4_DEVICE_TCGEN05_CUH

#include "shared.cuh"

/* ---- allocation (9.7.16.7): a whole warp, converged; for a pair one warp in both of its CTAs, which must both have
 * been launched: behind a barrier of the cluster */

/* Writes the address of `columns` (a power of two, 32 to 512) to shared memory at `to`. Waits while other CTAs of the
 * SM hold them. */
template <int GROUP, int columns> __device__ __forceinline__ void tcgen05_alloc(uint32_t to) {
    if constexpr (GROUP == 2)
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "n"(columns)
                     : "memory");
    else
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "n"(columns)
                     : "memory");
}

/* This CTA allocates no more, so that others need not wait for it. */
template <int GROUP> __device__ __forceinline__ void tcgen05_relinquish_alloc_permit() {
    if constexpr (GROUP == 2)
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
    else
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

/* Before the CTA ends, and after everything that uses the columns. */
template <int GROUP, int columns> __device__ __forceinline__ void tcgen05_dealloc(uint32_t address) {
    if constexpr (GROUP == 2)
        asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(columns) : "memory");
    else
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(columns) : "memory");
}

/* ---- order (9.7.16.6.4) */

__device__ __forceinline__ void tcgen05_fence_before_thread_sync() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void tcgen05_fence_after_thread_sync() {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/* ---- descriptors (9.7.16.4) */

/* Values in shared memory, rows of 128 bytes along K under the 128-byte swizzle, on 1024 bytes: the next 8 rows lie
 * 1024 bytes on, bit 46 is constant, layout 2. 32 bytes more in the address are the next 64 values along K: the swizzle
 * is taken of the absolute address. */
__device__ __forceinline__ uint64_t smem_descriptor_sw128(uint32_t address) {
    return 0x4000404000010000 | (address & 0x3ffff) >> 4;
}

/* A scale atom in shared memory: 32 rows of 16 bytes, no swizzle, the next 8 rows 128 bytes on. */
__device__ __forceinline__ uint64_t smem_descriptor_atom(uint32_t address) {
    return 0x0000400800010000 | (address & 0x3ffff) >> 4;
}

/* kind::mxf4nvf4, both e2m1 (code 1), scales ue4m3 (bit 23 clear), scale ids 0, K = 64. */
__device__ constexpr uint32_t instruction_descriptor(int m, int n) {
    return 1u << 7 | 1u << 10 | (uint32_t)n / 8 << 17 | (uint32_t)m / 128 << 27;
}

/* ---- by one thread; of a pair, by one thread of the CTA of even rank */

/* A scale atom from shared memory into 4 columns of tensor memory, once for each quarter of the lanes: row r goes to
 * lane r % 32, column r / 32. A pair copies in both CTAs, each from its own memory (9.7.16.9). */
template <int GROUP> __device__ __forceinline__ void tcgen05_cp_atom(uint32_t to, uint64_t atom) {
    if constexpr (GROUP == 2)
        asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(atom) : "memory");
    else
        asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(atom) : "memory");
}

/* d = x . y over 64 values along K with a scale for every 16, plus d where `add` (9.7.16.10). */
template <int GROUP>
__device__ __forceinline__ void tcgen05_mma_mxf4nvf4(uint32_t d, uint64_t x, uint64_t y, uint32_t descriptor,
                                                     uint32_t sfx, uint32_t sfy, bool add) {
    if constexpr (GROUP == 2)
        asm volatile(
            "{ .reg .pred p; setp.ne.u32 p, %6, 0;"
            " tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.block16 [%0], %1, %2, %3, [%4], [%5], p; }" ::"r"(d),
            "l"(x), "l"(y), "r"(descriptor), "r"(sfx), "r"(sfy), "r"((uint32_t)add)
            : "memory");
    else
        asm volatile(
            "{ .reg .pred p; setp.ne.u32 p, %6, 0;"
            " tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%0], %1, %2, %3, [%4], [%5], p; }" ::"r"(d),
            "l"(x), "l"(y), "r"(descriptor), "r"(sfx), "r"(sfy), "r"((uint32_t)add)
            : "memory");
}

/* The mbarrier gets one arrival when all mma and cp that this thread has issued have ended: of a pair, the mbarrier at
 * the same place in both CTAs, `pair` being the bits of their ranks (9.7.16.12). */
template <int GROUP> __device__ __forceinline__ void tcgen05_commit(uint32_t barrier, uint16_t pair) {
    if constexpr (GROUP == 2)
        asm volatile(
            "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                barrier),
            "h"(pair)
            : "memory");
    else
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
                     : "memory");
}

/* ---- loads (9.7.16.8): a whole warp, converged; lane i of warp w reads lane 32 * (w % 4) + i, whose address it names
 */

#define TCGEN05_8(v, i)                                                                                                \
    "=f"(v[i]), "=f"(v[i + 1]), "=f"(v[i + 2]), "=f"(v[i + 3]), "=f"(v[i + 4]), "=f"(v[i + 5]), "=f"(v[i + 6]),        \
        "=f"(v[i + 7])

/* 8, 16 or 32 columns from that of the address on. The values are there after tcgen05_wait_ld. */
__device__ __forceinline__ void tcgen05_ld(float (&v)[8], uint32_t address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : TCGEN05_8(v, 0)
                 : "r"(address));
}
__device__ __forceinline__ void tcgen05_ld(float (&v)[16], uint32_t address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13,"
                 " %14, %15}, [%16];"
                 : TCGEN05_8(v, 0), TCGEN05_8(v, 8)
                 : "r"(address));
}
__device__ __forceinline__ void tcgen05_ld(float (&v)[32], uint32_t address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13,"
                 " %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
                 : TCGEN05_8(v, 0), TCGEN05_8(v, 8), TCGEN05_8(v, 16), TCGEN05_8(v, 24)
                 : "r"(address));
}
#undef TCGEN05_8

/* Waits for all loads of this thread. The values pass through it, since the compiler sees no other reason to keep what
 * uses them behind the wait. */
template <int COUNT> __device__ __forceinline__ void tcgen05_wait_ld(float (&v)[COUNT]) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(v[i]));
}

#endif
