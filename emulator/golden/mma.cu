// mma.sync on floats, 8-bit integers and, from sm_89 on, 8-bit floats (PTX ISA 9.7.14.5). One warp; the input holds every
// lane's registers of A, then of B, then of C for each of `count` problems, the output every lane's registers of D.
#include "golden.cuh"

#define FRAGMENTS(na, nb, nc)                                                                                          \
    u32 lane = threadIdx.x, a[na], b[nb], c[nc];                                                                       \
    for (int problem = 0; problem < count; problem++, in += 32 * (na + nb + nc), out += 32 * nc) {                     \
        for (int j = 0; j < na; j++) a[j] = in[na * lane + j];                                                         \
        for (int j = 0; j < nb; j++) b[j] = in[32 * na + nb * lane + j];                                               \
        for (int j = 0; j < nc; j++) c[j] = in[32 * (na + nb) + nc * lane + j];
#define STORE(nc)                                                                                                      \
    for (int j = 0; j < nc; j++) out[nc * lane + j] = c[j];                                                            \
    }

// A of 4 registers, B of 2, D of 4; the shapes whose A is half as large; D of 2 (f16 sums)
#define MMA_4_2_4(name, text)                                                                                          \
    extern "C" __global__ void name(const u32 *in, u32 *out, int count) {                                              \
        FRAGMENTS(4, 2, 4)                                                                                             \
        asm volatile("mma.sync.aligned." text " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"       \
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                              \
        STORE(4)                                                                                                       \
    }
#define MMA_2_1_4(name, text)                                                                                          \
    extern "C" __global__ void name(const u32 *in, u32 *out, int count) {                                              \
        FRAGMENTS(2, 1, 4)                                                                                             \
        asm volatile("mma.sync.aligned." text " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                   \
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(b[0]));                                                               \
        STORE(4)                                                                                                       \
    }
#define MMA_4_2_2(name, text)                                                                                          \
    extern "C" __global__ void name(const u32 *in, u32 *out, int count) {                                              \
        FRAGMENTS(4, 2, 2)                                                                                             \
        asm volatile("mma.sync.aligned." text " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"                       \
                     : "+r"(c[0]), "+r"(c[1])                                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                              \
        STORE(2)                                                                                                       \
    }
#define MMA_2_1_2(name, text)                                                                                          \
    extern "C" __global__ void name(const u32 *in, u32 *out, int count) {                                              \
        FRAGMENTS(2, 1, 2)                                                                                             \
        asm volatile("mma.sync.aligned." text " {%0, %1}, {%2, %3}, {%4}, {%0, %1};"                                   \
                     : "+r"(c[0]), "+r"(c[1])                                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(b[0]));                                                               \
        STORE(2)                                                                                                       \
    }

MMA_4_2_4(mma_m16n8k16_f16_f32, "m16n8k16.row.col.f32.f16.f16.f32")
MMA_4_2_2(mma_m16n8k16_f16_f16, "m16n8k16.row.col.f16.f16.f16.f16")
MMA_2_1_4(mma_m16n8k8_f16_f32, "m16n8k8.row.col.f32.f16.f16.f32")
MMA_2_1_2(mma_m16n8k8_f16_f16, "m16n8k8.row.col.f16.f16.f16.f16")
MMA_4_2_4(mma_m16n8k16_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA_2_1_4(mma_m16n8k8_bf16, "m16n8k8.row.col.f32.bf16.bf16.f32")
MMA_4_2_4(mma_m16n8k8_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
MMA_2_1_4(mma_m16n8k4_tf32, "m16n8k4.row.col.f32.tf32.tf32.f32")

MMA_4_2_4(mma_m16n8k32_s8, "m16n8k32.row.col.s32.s8.s8.s32")
MMA_4_2_4(mma_m16n8k32_u8_s8, "m16n8k32.row.col.s32.u8.s8.s32")
MMA_4_2_4(mma_m16n8k32_s8_satfinite, "m16n8k32.row.col.satfinite.s32.s8.s8.s32")
MMA_2_1_4(mma_m16n8k16_u8, "m16n8k16.row.col.s32.u8.u8.s32")

#if __CUDA_ARCH__ >= 900
MMA_4_2_4(mma_m16n8k32_e4m3, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
MMA_4_2_4(mma_m16n8k32_e5m2, "m16n8k32.row.col.f32.e5m2.e5m2.f32")
MMA_4_2_4(mma_m16n8k32_e4m3_e5m2, "m16n8k32.row.col.f32.e4m3.e5m2.f32")
#endif
