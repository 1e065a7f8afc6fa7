// wgmma of eight-bit integers, K-major only. Names as in wgmma_half.cu.
#include "wgmma.cuh"

WGMMA_SS(wgmma_s8_n16_ss, 8, 8, 9, 10, start_s32, "m64n16k32.s32.s8.s8", "")
WGMMA_SS(wgmma_u8_s8_n64_ss, 32, 32, 33, 34, start_s32, "m64n64k32.s32.u8.s8", "")
WGMMA_SS(wgmma_s8_n8_ss_satfinite, 4, 4, 5, 6, start_s32, "m64n8k32.s32.s8.s8.satfinite", "")
WGMMA_RS(wgmma_u8_n16_rs, 8, 8, 9, 10, 11, 12, 13, start_s32, "m64n16k32.s32.u8.u8", "")
