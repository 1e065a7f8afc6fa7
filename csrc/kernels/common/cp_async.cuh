/* cp.async: asynchronous copies from global to shared memory (PTX ISA 9.0, section 9.7.9.25.3). A thread's copies form
 * groups. Waiting for a group covers this thread's copies alone; other threads need a barrier after the wait. Needs
 * sm_80. */
#ifndef NVFP4_COMMON_CP_ASYNC_CUH
#define NVFP4_COMMON_CP_ASYNC_CUH

#include "kernels/common/shared.cuh"

/* 16 bytes, both addresses aligned to 16. Bypasses L1 and prefetches the 128-byte line to L2, which neighbouring
 * threads read. */
__device__ __forceinline__ void cp_async_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* The first `bytes` of 16, zeros for the rest. */
__device__ __forceinline__ void cp_async_16_zfill(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* 8 and 4 bytes, both addresses aligned to as much. */
__device__ __forceinline__ void cp_async_8(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async_4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/* The first `bytes` of 4, zeros for the rest. */
__device__ __forceinline__ void cp_async_4_zfill(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all but the `pending` latest groups of this thread. */
template <int pending> __device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

#endif
