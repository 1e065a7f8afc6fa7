// One wgmma chain, for every type, shape and source of A (PTX ISA 9.7.15). A warpgroup puts `words` 16-byte words of
// the input in shared memory, starts from sums that depend on thread and register, and runs `steps` instructions whose
// descriptors advance by step_a and step_b (in units of 16 bytes). The descriptors come from the host without their
// start address; the kernel adds that of its shared memory. What memory means to the descriptors is thus all in the
// case. With A from registers, four words of every thread and step follow the image in the input.
#pragma once

#include "golden.cuh"
#include "wgmma_registers.cuh"

#define STRING_(x) #x
#define STRING(x)  STRING_(x)
#define BIND(x)    "+r"(x)

// the first sums: small integers in the type of D
static __device__ __forceinline__ u32 start_f32(u32 t, int j) {
    return __float_as_uint((float)((int)((t * 3 + j) % 11) - 5));
}
static __device__ __forceinline__ u32 start_s32(u32 t, int j) {
    return (t * 3 + j) % 11 - 5;
}
static __device__ __forceinline__ u32 start_f16(u32 t, int j) {
    const u32 halves[4] = {0x0000, 0x3c00, 0xc000, 0x4200}; // 0, 1, -2, 3
    return halves[(t + j) & 3] << 16 | halves[(t * 3 + j) >> 2 & 3];
}

#define WGMMA_BEGIN                                                                                                    \
    extern __shared__ __align__(1024) u8 area[];                                                                       \
    u32 t = threadIdx.x;                                                                                               \
    for (int i = t; i < words; i += blockDim.x) ((uint4 *)area)[i] = in[i];                                            \
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                                                       \
    __syncthreads();                                                                                                   \
    u64 base = (shared_address(area) & 0x3ffff) >> 4;

// Fence, instruction, commit and wait stand in one piece of text, so that nothing touches the registers in between.
#define WGMMA_TEXT(instruction)                                                                                        \
    "wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned." instruction                                              \
    "; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }"

// A and B from shared memory. regs: 32-bit registers of D; i0, i1, i2: the numbers of the three operands after them
#define WGMMA_SS(name, regs, i0, i1, i2, start, text, tail)                                                                \
    extern "C" __global__ void __launch_bounds__(128)                                                                      \
        name(const uint4 *in, u32 *out, int words, u64 desc_a, u64 desc_b, int step_a, int step_b, int steps,              \
             int scale_d) {                                                                                                \
        WGMMA_BEGIN                                                                                                        \
        u32 d[regs];                                                                                                       \
        for (int j = 0; j < regs; j++) d[j] = start(t, j);                                                                 \
        desc_a += base, desc_b += base;                                                                                    \
        _Pragma("unroll 1") for (int k = 0; k < steps; k++, desc_a += step_a, desc_b += step_b, scale_d = 1) asm volatile( \
            "{ .reg .pred p; setp.ne.b32 p, %" STRING(i2) ", 0; " WGMMA_TEXT(text " {" LIST_##regs "}, %" STRING(          \
                i0) ", %" STRING(i1) ", p" tail) : REGS_##regs(BIND) : "l"(desc_a),                                        \
            "l"(desc_b), "r"(scale_d) : "memory");                                                                         \
        for (int j = 0; j < regs; j++) out[t * regs + j] = d[j];                                                           \
    }

// A from registers
#define WGMMA_RS(name, regs, i0, i1, i2, i3, i4, i5, start, text, tail)                                                \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        name(const uint4 *in, u32 *out, int words, u64 desc_b, int step_b, int steps, int scale_d) {                   \
        WGMMA_BEGIN                                                                                                    \
        u32 d[regs];                                                                                                   \
        for (int j = 0; j < regs; j++) d[j] = start(t, j);                                                             \
        desc_b += base;                                                                                                \
        _Pragma("unroll 1") for (int k = 0; k < steps; k++, desc_b += step_b, scale_d = 1) {                           \
            uint4 a = in[words + 128 * k + t];                                                                         \
            asm volatile(                                                                                              \
                "{ .reg .pred p; setp.ne.b32 p, %" STRING(i5) ", 0; " WGMMA_TEXT(text " {" LIST_##regs "}, {%" STRING( \
                    i0) ", %" STRING(i1) ", %" STRING(i2) ", %" STRING(i3) "}, %" STRING(i4) ", p" tail)               \
                : REGS_##regs(BIND)                                                                                    \
                : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(desc_b), "r"(scale_d)                                    \
                : "memory");                                                                                           \
        }                                                                                                              \
        for (int j = 0; j < regs; j++) out[t * regs + j] = d[j];                                                       \
    }
