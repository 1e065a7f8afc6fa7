/* tcgen05: Blackwell's tensor core and tensor memory (PTX ISA 9.0, 9.7.16). Tensor memory has 128 lanes of 512 32-bit
 * columns; an address is lane << 16 | column. CTA_GROUP is PTX's .cta_group: 1, or 2 for a pair of CTAs; all tcgen05
 * instructions of a kernel use the same. Needs sm_100f (sm_100, sm_103).
 *
 * Order (9.7.16.6): in one thread cp precedes a later mma, and mma a later mma on the same accumulator. A cp is not
 * ordered after an earlier mma. Other threads observe cp and mma by tcgen05_commit, an mbarrier wait and then
 * tcgen05_fence_after_thread_sync. A thread calls tcgen05_fence_before_thread_sync between its own tcgen05.ld and the
 * arrive or barrier that publishes it. */
#ifndef NVFP4_COMMON_TCGEN05_CUH
#define NVFP4_COMMON_TCGEN05_CUH

#include "kernels/common/shared.cuh"

/* ---- allocation (9.7.16.7): one converged warp; in a pair one warp of each CTA, after a cluster barrier, because
 * both CTAs must be running */

/* Allocates `columns` (a power of two, 32 to 512) and writes their address to shared memory at `to`. Blocks until other
 * CTAs of the SM have deallocated enough. */
template <int CTA_GROUP, int columns> __device__ __forceinline__ void tcgen05_alloc(uint32_t to) {
    if constexpr (CTA_GROUP == 2)
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "n"(columns)
                     : "memory");
    else
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "n"(columns)
                     : "memory");
}

/* This CTA allocates no more; allocations of other CTAs no longer wait for it. */
template <int CTA_GROUP> __device__ __forceinline__ void tcgen05_relinquish_alloc_permit() {
    if constexpr (CTA_GROUP == 2)
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
    else
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

/* Before the CTA exits, after every access to the columns has completed. */
template <int CTA_GROUP, int columns> __device__ __forceinline__ void tcgen05_dealloc(uint32_t address) {
    if constexpr (CTA_GROUP == 2)
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

/* K-major values, rows of 128 bytes in the 128-byte swizzle (layout 2), aligned to 1024 bytes; 1024 bytes between
 * groups of 8 rows; bit 46 is a constant of the format. The next K block of 64 is 32 bytes further on, because the
 * swizzle XORs absolute address bits. */
__device__ __forceinline__ uint64_t smem_descriptor_sw128(uint32_t address) {
    return 0x4000404000010000 | (address & 0x3ffff) >> 4;
}

/* A scale atom: 32 rows of 16 bytes, no swizzle, 128 bytes between groups of 8 rows. */
__device__ __forceinline__ uint64_t smem_descriptor_atom(uint32_t address) {
    return 0x0000400800010000 | (address & 0x3ffff) >> 4;
}

/* kind::mxf4nvf4, A and B e2m1 (code 1), scales ue4m3 (bit 23 clear), scale factor ids 0, K = 64. */
__device__ constexpr uint32_t instruction_descriptor(int m, int n) {
    return 1u << 7 | 1u << 10 | (uint32_t)n / 8 << 17 | (uint32_t)m / 128 << 27;
}

/* ---- issued by one thread, in a pair by one thread of the leader (the CTA of even rank); asynchronous */

/* Copies a scale atom from shared memory to 4 columns of tensor memory, in each of the four lane quarters: row r to
 * lane r % 32, column r / 32. A pair copies in both CTAs, each from its own shared memory (9.7.16.9). */
template <int CTA_GROUP> __device__ __forceinline__ void tcgen05_cp_atom(uint32_t to, uint64_t atom) {
    if constexpr (CTA_GROUP == 2)
        asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(atom) : "memory");
    else
        asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(atom) : "memory");
}

/* D = A . B^T (+ D with `add`) for K = 64, one scale for 16 values (9.7.16.10). d, sfa, sfb: tensor memory addresses.
 */
template <int CTA_GROUP>
__device__ __forceinline__ void tcgen05_mma_mxf4nvf4(uint32_t d, uint64_t a_desc, uint64_t b_desc, uint32_t idesc,
                                                     uint32_t sfa, uint32_t sfb, bool add) {
    if constexpr (CTA_GROUP == 2)
        asm volatile(
            "{ .reg .pred p; setp.ne.u32 p, %6, 0;"
            " tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.block16 [%0], %1, %2, %3, [%4], [%5], p; }" ::"r"(d),
            "l"(a_desc), "l"(b_desc), "r"(idesc), "r"(sfa), "r"(sfb), "r"((uint32_t)add)
            : "memory");
    else
        asm volatile(
            "{ .reg .pred p; setp.ne.u32 p, %6, 0;"
            " tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%0], %1, %2, %3, [%4], [%5], p; }" ::"r"(d),
            "l"(a_desc), "l"(b_desc), "r"(idesc), "r"(sfa), "r"(sfb), "r"((uint32_t)add)
            : "memory");
}

/* Arrives once on the mbarrier when every mma and cp that this thread has issued has completed; in a pair on the
 * mbarrier of the same offset in both CTAs, `pair` being a mask of their cluster ranks (9.7.16.12). */
template <int CTA_GROUP> __device__ __forceinline__ void tcgen05_commit(uint32_t barrier, uint16_t pair) {
    if constexpr (CTA_GROUP == 2)
        asm volatile(
            "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                barrier),
            "h"(pair)
            : "memory");
    else
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
                     : "memory");
}

/* ---- loads (9.7.16.8): a converged warp; thread i of warp w reads tensor memory lane 32 * (w % 4) + i */

#define TCGEN05_8(v, i)                                                                                                \
    "=f"(v[i]), "=f"(v[i + 1]), "=f"(v[i + 2]), "=f"(v[i + 3]), "=f"(v[i + 4]), "=f"(v[i + 5]), "=f"(v[i + 6]),        \
        "=f"(v[i + 7])

/* Loads 8, 16 or 32 columns; the registers are valid after tcgen05_wait_ld. */
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

/* Waits for all tcgen05.ld of this thread. The empty asm makes each value depend on the wait; without it the compiler
 * may move its uses ahead. */
template <int COUNT> __device__ __forceinline__ void tcgen05_wait_ld(float (&v)[COUNT]) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(v[i]));
}

#endif
