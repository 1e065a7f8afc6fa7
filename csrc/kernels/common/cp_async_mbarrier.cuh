/* cp.async.mbarrier.arrive: a thread's copies arrive on an mbarrier when they complete (PTX ISA 9.0, 9.7.13.15.17).
 * Needs sm_80; on an mbarrier of a pipeline sm_90. */
#ifndef NVFP4_COMMON_CP_ASYNC_MBARRIER_CUH
#define NVFP4_COMMON_CP_ASYNC_MBARRIER_CUH

#include <stdint.h>

/* One arrival, which the mbarrier's count must include, when all cp.async that this thread has issued are complete. It
 * does not order the thread's ordinary stores. */
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

#endif
