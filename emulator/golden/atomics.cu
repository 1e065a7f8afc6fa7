// atom and red on global and shared memory: every type of sm_80, and sm_90's bf16, vectors and 16-bit cas (PTX ISA
// 9.7.13.15, 9.7.13.16). In the kernels that end in _ops every thread has a cell of its own; the rows alternate between
// what atom returned and what it left behind.
#include "golden.cuh"

#define ATOM_32(text)                                                                                                  \
    {                                                                                                                  \
        u32 r;                                                                                                         \
        scratch[i] = x;                                                                                                \
        asm volatile("{ .reg .b64 a; mov.b64 a, %1; " text "; }"                                                       \
                     : "=r"(r)                                                                                         \
                     : "l"(scratch + i), "r"(y), "r"(z)                                                                \
                     : "memory");                                                                                      \
        out[(k++) * n + i] = r;                                                                                        \
        out[(k++) * n + i] = *(volatile u32 *)(scratch + i);                                                           \
    }
#define ATOM_64(text)                                                                                                  \
    {                                                                                                                  \
        u64 r;                                                                                                         \
        scratch[i] = x;                                                                                                \
        asm volatile("{ .reg .b64 a; mov.b64 a, %1; " text "; }"                                                       \
                     : "=l"(r)                                                                                         \
                     : "l"(scratch + i), "l"(y), "l"(z)                                                                \
                     : "memory");                                                                                      \
        out[(k++) * n + i] = r;                                                                                        \
        out[(k++) * n + i] = *(volatile u64 *)(scratch + i);                                                           \
    }
#define ATOM_SHARED_32(text)                                                                                           \
    {                                                                                                                  \
        u32 r;                                                                                                         \
        cell[i] = x;                                                                                                   \
        asm volatile("{ .reg .b32 a; mov.b32 a, %1; " text "; }"                                                       \
                     : "=r"(r)                                                                                         \
                     : "r"(shared_address(cell + i)), "r"(y), "r"(z)                                                   \
                     : "memory");                                                                                      \
        out[(k++) * n + i] = r;                                                                                        \
        out[(k++) * n + i] = *(volatile u32 *)(cell + i);                                                              \
    }

extern "C" __global__ void atomic32_ops(const u32 *in, u32 *out, int n, u32 *scratch) {
    INPUTS
    ATOM_32("atom.global.add.u32 %0, [a], %2")
    ATOM_32("atom.global.add.s32 %0, [a], %2")
    ATOM_32("atom.global.min.s32 %0, [a], %2")
    ATOM_32("atom.global.min.u32 %0, [a], %2")
    ATOM_32("atom.global.max.s32 %0, [a], %2")
    ATOM_32("atom.global.max.u32 %0, [a], %2")
    ATOM_32("atom.global.and.b32 %0, [a], %2")
    ATOM_32("atom.global.or.b32 %0, [a], %2")
    ATOM_32("atom.global.xor.b32 %0, [a], %2")
    ATOM_32("atom.global.exch.b32 %0, [a], %2")
    ATOM_32("atom.global.cas.b32 %0, [a], %2, %3")
    ATOM_32("atom.global.cas.b32 %0, [a], %2, 5")
    ATOM_32("atom.global.inc.u32 %0, [a], %2")
    ATOM_32("atom.global.dec.u32 %0, [a], %2")
    ATOM_32("atom.relaxed.gpu.global.add.u32 %0, [a], %2")
    ATOM_32("atom.acq_rel.sys.global.exch.b32 %0, [a], %2")
    ATOM_32("atom.acquire.cta.global.add.u32 %0, [a], %2")
    ATOM_32("atom.add.u32 %0, [a], %2")
    ATOM_32("mov.b32 %0, 1; red.global.add.u32 [a], %2")
    ATOM_32("mov.b32 %0, 2; red.global.max.s32 [a], %2")
    ATOM_32("mov.b32 %0, 3; red.release.gpu.global.xor.b32 [a], %2")
    ATOM_32("mov.b32 %0, 4; red.global.inc.u32 [a], %2")
}

extern "C" __global__ void atomic_float_ops(const u32 *in, u32 *out, int n, u32 *scratch) {
    INPUTS
    ATOM_32("atom.global.add.f32 %0, [a], %2")
    ATOM_32("mov.b32 %0, 1; red.global.add.f32 [a], %2")
    ATOM_32("atom.global.add.noftz.f16x2 %0, [a], %2")
    ATOM_32("mov.b32 %0, 2; red.global.add.noftz.f16x2 [a], %2")
    ATOM_32(".reg .b16 h, r; cvt.u16.u32 h, %2; atom.global.add.noftz.f16 r, [a], h; cvt.u32.u16 %0, r")
    ATOM_32(".reg .b16 h, r; cvt.u16.u32 h, %2; atom.global.add.noftz.f16 r, [a+2], h; cvt.u32.u16 %0, r")
}

extern "C" __global__ void atomic_shared32_ops(const u32 *in, u32 *out, int n) {
    __shared__ u32 cell[128];
    INPUTS
    ATOM_SHARED_32("atom.shared.add.u32 %0, [a], %2")
    ATOM_SHARED_32("atom.shared.min.s32 %0, [a], %2")
    ATOM_SHARED_32("atom.shared.max.u32 %0, [a], %2")
    ATOM_SHARED_32("atom.shared.and.b32 %0, [a], %2")
    ATOM_SHARED_32("atom.shared.or.b32 %0, [a], %2")
    ATOM_SHARED_32("atom.shared.xor.b32 %0, [a], %2")
    ATOM_SHARED_32("atom.shared.exch.b32 %0, [a], %2")
    ATOM_SHARED_32("atom.shared.cas.b32 %0, [a], %2, %3")
    ATOM_SHARED_32("atom.shared.inc.u32 %0, [a], %2")
    ATOM_SHARED_32("atom.shared.dec.u32 %0, [a], %2")
    ATOM_SHARED_32("atom.shared.add.f32 %0, [a], %2")
    ATOM_SHARED_32("mov.b32 %0, 1; red.shared.add.f32 [a], %2")
    ATOM_SHARED_32("mov.b32 %0, 2; red.shared.min.u32 [a], %2")
}

extern "C" __global__ void atomic64_ops(const u64 *in, u64 *out, int n, u64 *scratch) {
    INPUTS
    ATOM_64("atom.global.add.u64 %0, [a], %2")
    ATOM_64("atom.global.min.s64 %0, [a], %2")
    ATOM_64("atom.global.min.u64 %0, [a], %2")
    ATOM_64("atom.global.max.s64 %0, [a], %2")
    ATOM_64("atom.global.max.u64 %0, [a], %2")
    ATOM_64("atom.global.and.b64 %0, [a], %2")
    ATOM_64("atom.global.or.b64 %0, [a], %2")
    ATOM_64("atom.global.xor.b64 %0, [a], %2")
    ATOM_64("atom.global.exch.b64 %0, [a], %2")
    ATOM_64("atom.global.cas.b64 %0, [a], %2, %3")
    ATOM_64("mov.b64 %0, 1; red.global.add.u64 [a], %2")
}

extern "C" __global__ void atomic_f64_ops(const u64 *in, u64 *out, int n, u64 *scratch) {
    INPUTS
    ATOM_64("atom.global.add.f64 %0, [a], %2")
    ATOM_64("mov.b64 %0, 1; red.global.add.f64 [a], %2")
}

// many threads of several blocks on the same cells; only operations whose order does not matter
extern "C" __global__ void atomic_contended(const u32 *in, u32 *cells) {
    __shared__ u32 local[8];
    u32 t = threadIdx.x, x = in[blockIdx.x * blockDim.x + t];
    if (t < 8) local[t] = t == 2 ? 0xffffffff : 0;
    __syncthreads();
    atomicAdd(&cells[0], x);
    atomicMax((int *)&cells[1], (int)x);
    atomicMin(&cells[2], x);
    atomicXor(&cells[3], x);
    atomicOr(&cells[4], x & 0x11111111);
    atomicAnd(&cells[5], x | 0x77777777);
    atomicInc(&cells[6], 36);
    atomicAdd((float *)&cells[7], (float)(x % 17));
    atomicAdd(&local[0], x);
    atomicMax((int *)&local[1], (int)x);
    atomicMin(&local[2], x);
    atomicXor(&local[3], x);
    atomicOr(&local[4], x & 0x01010101);
    atomicInc(&local[5], 10);
    atomicAdd((float *)&local[6], (float)(x % 7));
    __syncthreads();
    if (t < 8) cells[8 + 8 * blockIdx.x + t] = local[t];
}

// a lock and a counter of tickets: every thread of every block gets one ticket of its own
extern "C" __global__ void atomic_tickets(u32 *counter, u32 *seen) {
    u32 ticket = atomicAdd(counter, 1);
    seen[ticket] = 1;
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void atomic_sm90_ops(const u32 *in, u32 *out, int n, u32 *scratch) {
    INPUTS
    ATOM_32("atom.global.add.noftz.bf16x2 %0, [a], %2")
    ATOM_32("mov.b32 %0, 1; red.global.add.noftz.bf16x2 [a], %2")
    ATOM_32(".reg .b16 h, r; cvt.u16.u32 h, %2; atom.global.add.noftz.bf16 r, [a], h; cvt.u32.u16 %0, r")
    ATOM_32(
        ".reg .b16 h, g, r; cvt.u16.u32 h, %2; cvt.u16.u32 g, %3; atom.global.cas.b16 r, [a], h, g; cvt.u32.u16 %0, r")
}

// eight words to a thread: x in the cell, y the operand
extern "C" __global__ void atomic_vectors(const uint4 *in, uint4 *out, int n, uint4 *scratch) {
    int i = threadIdx.x;
    uint4 x = in[i], y = in[n + i], r;
    scratch[i] = x;
    asm volatile("atom.global.add.v4.f32 {%0, %1, %2, %3}, [%4], {%5, %6, %7, %8};"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(scratch + i), "r"(y.x), "r"(y.y), "r"(y.z), "r"(y.w)
                 : "memory");
    out[i] = r;
    out[n + i] = __ldcg(scratch + i);
}
#endif
