// atom and red of sm_90: bf16, vectors, 128 bits, 16-bit compare and swap (PTX ISA 9.7.13.15, 9.7.13.16).
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
