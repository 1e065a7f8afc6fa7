/* Flags in global memory between CTAs of a grid (PTX ISA 9.0, sections 8.8 memory consistency model, 9.7.13.5 membar
 * and fence). A flag counts arrivals; a waiter that sees the full count sees what the arrivers wrote. */
#ifndef NVFP4_COMMON_FLAGS_CUH
#define NVFP4_COMMON_FLAGS_CUH

#include <stdint.h>

#include "kernels/common/watchdog.cuh"

/* Executed by one lane after __syncwarp, for its warp: releases all that the warp has written. */
__device__ __forceinline__ void flag_arrive(uint32_t *flag) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");
}

/* The same for two flags, with one fence. */
__device__ __forceinline__ void flag_arrive_at_both(uint32_t *first, uint32_t *second) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(first) : "memory");
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(second) : "memory");
}

__device__ __forceinline__ uint32_t flag_load(const uint32_t *flag) {
    uint32_t seen;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    return seen;
}

/* Makes what this thread has written readable by bulk copies and TMA loads, which use the async proxy, of those that
 * acquire it later (section 9.7.13.5 fence.proxy). Needs sm_90. */
__device__ __forceinline__ void fence_proxy_async_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* Waits for `count` arrivals. */
__device__ __forceinline__ void flag_wait_generic(const uint32_t *flag, uint32_t count, wait_site site = WAIT_SITE) {
#ifdef NVFP4_WATCHDOG
    polled_wait wait(WATCHDOG_FLAG, (uint64_t)flag, count, site);
    for (uint32_t seen; (seen = flag_load(flag)) < count;) wait.again(seen);
#else
    (void)site;
    while (flag_load(flag) < count) {
    }
#endif
}

/* The same, for data that is read by bulk copies and that the writers have not fenced. */
__device__ __forceinline__ void flag_wait(const uint32_t *flag, uint32_t count, wait_site site = WAIT_SITE) {
    flag_wait_generic(flag, count, site);
    fence_proxy_async_global();
}

#endif
