/* cp.async: copies from global to shared memory that run behind the thread's back (PTX ISA 9.0, section
 * 9.7.9.25.3). A thread's copies form groups; waiting for a group orders that thread's own copies alone, so other
 * threads read the data only after a barrier that follows the wait. Needs sm_80. */
#ifndef NVFP4_DEVICE_CP_ASYNC_CUH
#define NVFP4_DEVICE_CP_ASYNC_CUH

#include "shared.cuh"

/* 16 bytes between addresses aligned to 16. Goes past L1, and asks L2 for the whole 128-byte line, which the
 * neighbouring threads want too. */
__device__ __forceinline__ void cp_async_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* 8 and 4 bytes, between addresses aligned to as much. */
__device__ __forceinline__ void cp_async_8(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async_4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/* The first `bytes` of 4, and zeros for the rest. */
__device__ __forceinline__ void cp_async_4_zfill(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* Closes the group of the copies issued since the last call. */
__device__ __forceinline__ void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until all but the `pending` latest groups of this thread have landed. */
template <int pending> __device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

#endif
