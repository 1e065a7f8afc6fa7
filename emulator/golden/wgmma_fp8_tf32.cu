// wgmma of tf32 and of the eight-bit floats, K-major only. Names as in wgmma_half.cu.
#include "wgmma.cuh"

WGMMA_SS(wgmma_tf32_n8_f32_ss, 4, 4, 5, 6, start_f32, "m64n8k8.f32.tf32.tf32", ", 1, 1")
WGMMA_SS(wgmma_tf32_n64_f32_ss, 32, 32, 33, 34, start_f32, "m64n64k8.f32.tf32.tf32", ", 1, 1")
WGMMA_RS(wgmma_tf32_n16_f32_rs, 8, 8, 9, 10, 11, 12, 13, start_f32, "m64n16k8.f32.tf32.tf32", ", 1, 1")
WGMMA_SS(wgmma_e4m3_n8_f32_ss, 4, 4, 5, 6, start_f32, "m64n8k32.f32.e4m3.e4m3", ", 1, 1")
WGMMA_SS(wgmma_e4m3_n64_f32_ss, 32, 32, 33, 34, start_f32, "m64n64k32.f32.e4m3.e4m3", ", 1, 1")
WGMMA_SS(wgmma_e4m3_n64_f16_ss, 16, 16, 17, 18, start_f16, "m64n64k32.f16.e4m3.e4m3", ", 1, 1")
WGMMA_SS(wgmma_e5m2_n64_f32_ss, 32, 32, 33, 34, start_f32, "m64n64k32.f32.e5m2.e5m2", ", 1, 1")
WGMMA_SS(wgmma_e4m3_e5m2_n16_f32_ss, 8, 8, 9, 10, start_f32, "m64n16k32.f32.e4m3.e5m2", ", 1, -1")
WGMMA_SS(wgmma_e5m2_e4m3_n16_f16_ss, 4, 4, 5, 6, start_f16, "m64n16k32.f16.e5m2.e4m3", ", 1, 1")
WGMMA_RS(wgmma_e4m3_n64_f32_rs, 32, 32, 33, 34, 35, 36, 37, start_f32, "m64n64k32.f32.e4m3.e4m3", ", 1, 1")
WGMMA_RS(wgmma_e5m2_n16_f32_rs, 8, 8, 9, 10, 11, 12, 13, start_f32, "m64n16k32.f32.e5m2.e5m2", ", -1, 1")
