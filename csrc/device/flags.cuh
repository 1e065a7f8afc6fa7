/* Hand-over between CTAs of a grid through global memory (PTX ISA 9.0, section 8.8 memory consistency model; 9.7.13.5
 * membar and fence). A flag counts those who have handed over; whoever sees the full count sees what they wrote. */
#ifndef NVFP4_DEVICE_FLAGS_CUH
#define NVFP4_DEVICE_FLAGS_CUH

#include <stdint.h>

/* By one lane, behind a __syncwarp, for the whole warp: all that it has written comes before. */
__device__ __forceinline__ void flag_arrive(uint32_t *flag) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");
}

/* Waits for the full count. What was handed over may then be read, by bulk copies too, which are the async proxy's and
 * need the fence (section 9.7.13.5 fence.proxy). Needs sm_90. */
__device__ __forceinline__ void flag_wait(const uint32_t *flag, uint32_t count) {
    uint32_t seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    while (seen < count);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

#endif
