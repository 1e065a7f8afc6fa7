/* RECORD_CTA() at the start of a kernel: with NVFP4_DUMP its thread 0 records where and when the CTA runs
 * (placement.h). Without it the machine code is the same as without the line (tests/kernels/test_dump.py). */
#ifndef NVFP4_COMMON_PLACEMENT_CUH
#define NVFP4_COMMON_PLACEMENT_CUH

#ifdef NVFP4_DUMP

#include "kernels/common/placement.h"

extern "C" __device__ placement_record *nvfp4_placement;
__device__ placement_record *nvfp4_placement; /* every .cu file is a module of its own; NULL: nothing is recorded */

/* Lives as long as the kernel's body. */
struct recorded_cta {
    placement_cta *to = nullptr;

    __device__ __forceinline__ static uint64_t now() {
        uint64_t ns;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
        return ns;
    }

    __device__ __forceinline__ recorded_cta() {
        placement_record *record = nvfp4_placement;
        if (!record || threadIdx.x) return;
        uint64_t start = now();
        uint32_t place = atomicAdd(&record->count, 1);
        if (place >= record->capacity) return;
        to = (placement_cta *)(record + 1) + place;
        to->cta = (int32_t)(blockIdx.y * gridDim.x + blockIdx.x), to->ctas = (int32_t)(gridDim.x * gridDim.y);
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(to->cluster));
        asm volatile("mov.u32 %0, %%smid;" : "=r"(to->sm));
        to->start = start;
        to->clocks = clock64();
    }

    __device__ __forceinline__ ~recorded_cta() {
        if (!to) return;
        to->clocks = clock64() - to->clocks;
        to->end = now();
    }
};
#define RECORD_CTA() recorded_cta recorded

#else

#define RECORD_CTA() (void)0

#endif

#endif
