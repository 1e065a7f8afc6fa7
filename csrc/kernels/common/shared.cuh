/* Shared memory by 32-bit shared address, the form that the asynchronous instructions take. */
#ifndef NVFP4_COMMON_SHARED_CUH
#define NVFP4_COMMON_SHARED_CUH

#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void st_shared(uint32_t to, uint32_t word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

__device__ __forceinline__ void st_shared_v4(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

__device__ __forceinline__ uint32_t ld_shared(uint32_t from) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

__device__ __forceinline__ uint4 ld_shared_v4(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint2 ld_shared_v2(uint32_t from) {
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint32_t ld_shared_u8(uint32_t from) {
    uint32_t byte;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(from) : "memory");
    return byte;
}

__device__ __forceinline__ uint32_t ld_shared_u16(uint32_t from) {
    uint16_t half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(from) : "memory");
    return half;
}

__device__ __forceinline__ void ld_shared_v4_f32(uint32_t from, float (&v)[4]) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(from)
                 : "memory");
}

/* Orders this thread's earlier writes to shared memory before reads through the async proxy (tensor cores, TMA). Called
 * before the arrive that publishes the data (PTX ISA 9.0, 9.7.13.5). Needs sm_90. */
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Named barriers (PTX ISA 9.0, 9.7.13.1); 0 is that of __syncthreads. Warps that arrive do not wait for those that
 * sync; `threads` counts both. Orders accesses to shared memory before either call ahead of those after the sync. */
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* True in one thread of a converged warp, always the same one. With elect.sync, unlike a test of the lane, the compiler
 * knows that one thread runs and uses uniform registers (9.7.14.1). Needs sm_90. */
__device__ __forceinline__ bool elect_one() {
    uint32_t elected;
    asm volatile("{ .reg .pred chosen; elect.sync _|chosen, 0xffffffff; selp.u32 %0, 1, 0, chosen; }"
                 : "=r"(elected)::"memory");
    return elected != 0;
}

/* Computes the value here and keeps it in a register. Without it the compiler may compute it again at each use, or move
 * it to after a wait. */
template <class T> __device__ __forceinline__ void pin(T &value) {
    if constexpr (sizeof(T) == 8)
        asm volatile("" : "+l"(value));
    else
        asm volatile("" : "+r"(value));
}

__device__ __forceinline__ void pin_float(float &value) {
    asm volatile("" : "+f"(value));
}

#endif
