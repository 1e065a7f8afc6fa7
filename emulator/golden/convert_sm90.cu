// cvt as sm_89 and sm_90 have it: the eight-bit floats, bf16 to and from integers, tf32 in more roundings
// (PTX ISA 9.7.9.21).
#include "golden.cuh"

extern "C" __global__ void cvt_sm90_from_f32(const u32 *in, u32 *out, int n) {
    INPUTS float fx = __uint_as_float(x), fy = __uint_as_float(y), fz = __uint_as_float(z);
    OP_F32_BITS("cvt.rn.satfinite.e4m3x2.f32 h, %1, %2; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.satfinite.e5m2x2.f32 h, %1, %2; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.satfinite.relu.e4m3x2.f32 h, %1, %2; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.satfinite.relu.e5m2x2.f32 h, %1, %2; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.tf32.f32 %0, %1")
    OP_F32_BITS("cvt.rz.tf32.f32 %0, %1")
    OP_F32_BITS("cvt.rn.relu.tf32.f32 %0, %1")
    OP_F32_BITS("cvt.rna.satfinite.tf32.f32 %0, %1")
    OP_F32_BITS("cvt.rn.satfinite.f16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.satfinite.bf16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.satfinite.f16x2.f32 %0, %1, %2")
    OP_F32_BITS("cvt.rn.relu.satfinite.bf16x2.f32 %0, %1, %2")
    OP_F32_BITS("cvt.rm.bf16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rp.bf16.f32 h, %1; cvt.u32.u16 %0, h")
}

extern "C" __global__ void cvt_sm90_from_half(const u32 *in, u32 *out, int n) {
    INPUTS
    OP_16("cvt.rn.satfinite.e4m3x2.f16x2 d, %1")
    OP_16("cvt.rn.satfinite.e5m2x2.f16x2 d, %1")
    OP_16("cvt.rn.satfinite.relu.e4m3x2.f16x2 d, %1")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.bf16 %0, h")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.rni.s32.bf16 %0, h")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.rzi.u32.bf16 %0, h")
    OP_16("cvt.rni.s16.bf16 d, a")
    OP_16("cvt.rn.bf16.s32 d, %1")
    OP_16("cvt.rz.bf16.u32 d, %1")
    OP_16("cvt.rn.bf16.s16 d, a")
    OP_16("cvt.rmi.bf16.bf16 d, a")
    OP_16("cvt.rn.f16.bf16 d, a")
    OP_16("cvt.rn.bf16.f16 d, a")
}

// every code of the eight-bit floats: input i is the code in both halves of the pair
extern "C" __global__ void cvt_sm90_from_fp8(const u32 *in, u32 *out, int n) {
    INPUTS
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f16x2.e4m3x2 %0, h")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f16x2.e5m2x2 %0, h")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.relu.f16x2.e4m3x2 %0, h")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.relu.f16x2.e5m2x2 %0, h")
}
