// mma.sync on 8-bit integers (PTX ISA 9.7.14.5). Registers as in mma.cu.
#include "golden.cuh"

#define FRAGMENTS(na, nb, nc)                                                                                          \
    u32 lane = threadIdx.x, a[na], b[nb], c[nc];                                                                       \
    for (int problem = 0; problem < count; problem++, in += 32 * (na + nb + nc), out += 32 * nc) {                     \
        for (int j = 0; j < na; j++) a[j] = in[na * lane + j];                                                         \
        for (int j = 0; j < nb; j++) b[j] = in[32 * na + nb * lane + j];                                               \
        for (int j = 0; j < nc; j++) c[j] = in[32 * (na + nb) + nc * lane + j];
#define MMA_4_2_4(name, text)                                                                                          \
    extern "C" __global__ void name(const u32 *in, u32 *out, int count) {                                              \
        FRAGMENTS(4, 2, 4)                                                                                             \
        asm volatile("mma.sync.aligned." text " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"       \
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                              \
        for (int j = 0; j < 4; j++) out[4 * lane + j] = c[j];                                                          \
    }                                                                                                                  \
    }
#define MMA_2_1_4(name, text)                                                                                          \
    extern "C" __global__ void name(const u32 *in, u32 *out, int count) {                                              \
        FRAGMENTS(2, 1, 4)                                                                                             \
        asm volatile("mma.sync.aligned." text " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                   \
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(b[0]));                                                               \
        for (int j = 0; j < 4; j++) out[4 * lane + j] = c[j];                                                          \
    }                                                                                                                  \
    }

MMA_4_2_4(mma_m16n8k32_s8, "m16n8k32.row.col.s32.s8.s8.s32")
MMA_4_2_4(mma_m16n8k32_u8_s8, "m16n8k32.row.col.s32.u8.s8.s32")
MMA_4_2_4(mma_m16n8k32_s8_satfinite, "m16n8k32.row.col.satfinite.s32.s8.s8.s32")
MMA_2_1_4(mma_m16n8k16_u8, "m16n8k16.row.col.s32.u8.u8.s32")
