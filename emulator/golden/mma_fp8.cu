// mma.sync on eight-bit floats, sm_89 and later (PTX ISA 9.7.14.5). Registers as in mma.cu.
#include "golden.cuh"

#define MMA_4_2_4(name, text)                                                                                          \
    extern "C" __global__ void name(const u32 *in, u32 *out, int count) {                                              \
        u32 lane = threadIdx.x, a[4], b[2], c[4];                                                                      \
        for (int problem = 0; problem < count; problem++, in += 320, out += 128) {                                     \
            for (int j = 0; j < 4; j++) a[j] = in[4 * lane + j];                                                       \
            for (int j = 0; j < 2; j++) b[j] = in[128 + 2 * lane + j];                                                 \
            for (int j = 0; j < 4; j++) c[j] = in[192 + 4 * lane + j];                                                 \
            asm volatile("mma.sync.aligned." text " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"   \
                         : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                              \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                          \
            for (int j = 0; j < 4; j++) out[4 * lane + j] = c[j];                                                      \
        }                                                                                                              \
    }

MMA_4_2_4(mma_m16n8k32_e4m3, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
MMA_4_2_4(mma_m16n8k32_e5m2, "m16n8k32.row.col.f32.e5m2.e5m2.f32")
MMA_4_2_4(mma_m16n8k32_e4m3_e5m2, "m16n8k32.row.col.f32.e4m3.e5m2.f32")
