// cvt between integers, f32, f16, bf16 and tf32 (PTX ISA 9.7.9.21). sm_89 and sm_90 added the eight-bit floats, bf16 to
// and from integers, and more roundings of tf32.
#include "golden.cuh"

extern "C" __global__ void cvt_from_f32(const u32 *in, u32 *out, int n) {
    INPUTS float fx = __uint_as_float(x), fy = __uint_as_float(y), fz = __uint_as_float(z);
    OP_F32_BITS("cvt.rni.s32.f32 %0, %1")
    OP_F32_BITS("cvt.rzi.s32.f32 %0, %1")
    OP_F32_BITS("cvt.rmi.s32.f32 %0, %1")
    OP_F32_BITS("cvt.rpi.s32.f32 %0, %1")
    OP_F32_BITS("cvt.rni.u32.f32 %0, %1")
    OP_F32_BITS("cvt.rzi.u32.f32 %0, %1")
    OP_F32_BITS("cvt.rpi.ftz.u32.f32 %0, %1")
    OP_F32_BITS("cvt.rni.s16.f32 h, %1; cvt.s32.s16 %0, h")
    OP_F32_BITS("cvt.rzi.u16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rni.sat.s8.f32 %0, %1")
    OP_F32_BITS("cvt.rzi.sat.u8.f32 %0, %1")
    OP_F32_BITS("cvt.rni.s8.f32 %0, %1")
    OP_F32_BITS(".reg .b64 q, u; cvt.rni.s64.f32 q, %1; shr.u64 u, q, 32; xor.b64 q, q, u; cvt.u32.u64 %0, q")
    OP_F32_BITS(".reg .b64 q, u; cvt.rzi.u64.f32 q, %1; shr.u64 u, q, 32; xor.b64 q, q, u; cvt.u32.u64 %0, q")
    OP_F32_BITS("cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rz.f16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rm.f16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rp.f16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.ftz.f16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.sat.f16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.relu.f16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.bf16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rz.bf16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.relu.bf16.f32 h, %1; cvt.u32.u16 %0, h")
    OP_F32_BITS("cvt.rn.f16x2.f32 %0, %1, %2")
    OP_F32_BITS("cvt.rz.f16x2.f32 %0, %1, %2")
    OP_F32_BITS("cvt.rn.relu.f16x2.f32 %0, %1, %2")
    OP_F32_BITS("cvt.rn.bf16x2.f32 %0, %1, %2")
    OP_F32_BITS("cvt.rz.bf16x2.f32 %0, %1, %2")
    OP_F32_BITS("cvt.rz.relu.bf16x2.f32 %0, %1, %2")
    OP_F32_BITS("cvt.rna.tf32.f32 %0, %1")
}

extern "C" __global__ void cvt_from_int(const u32 *in, u32 *out, int n) {
    INPUTS
    OP("cvt.rn.f32.s32 %0, %1")
    OP("cvt.rz.f32.s32 %0, %1")
    OP("cvt.rm.f32.s32 %0, %1")
    OP("cvt.rp.f32.s32 %0, %1")
    OP("cvt.rn.f32.u32 %0, %1")
    OP("cvt.rp.f32.u32 %0, %1")
    OP(".reg .b64 q; mov.b64 q, {%1, %2}; cvt.rn.f32.s64 %0, q")
    OP(".reg .b64 q; mov.b64 q, {%1, %2}; cvt.rz.f32.u64 %0, q")
    OP(".reg .b64 q; mov.b64 q, {%1, %2}; cvt.sat.s32.s64 %0, q")
    OP(".reg .b64 q; mov.b64 q, {%1, %2}; cvt.sat.u32.u64 %0, q")
    OP(".reg .b64 q; mov.b64 q, {%1, %2}; cvt.sat.s32.u64 %0, q")
    OP(".reg .b64 q; cvt.s64.s32 q, %1; shr.u64 q, q, 16; cvt.u32.u64 %0, q")
    OP(".reg .b64 q; cvt.u64.u32 q, %1; shr.u64 q, q, 16; cvt.u32.u64 %0, q")
    OP("cvt.sat.u32.s32 %0, %1")
    OP("cvt.s32.s8 %0, %1")
    OP("cvt.u32.u8 %0, %1")
    OP("cvt.sat.s8.s32 %0, %1")
    OP("cvt.sat.u8.s32 %0, %1")
    OP("cvt.sat.u8.u32 %0, %1")
    OP_16("cvt.sat.s16.s32 d, %1")
    OP_16("cvt.sat.u16.s32 d, %1")
    OP_16("cvt.u16.u32 d, %1")
    OP("cvt.rn.f32.s8 %0, %1")
    OP("cvt.rn.f32.u8 %0, %1")
    OP_16("cvt.rn.f16.s32 d, %1")
    OP_16("cvt.rz.f16.u32 d, %1")
    OP_16("cvt.rn.f16.s16 d, a")
    OP_16("cvt.rp.f16.u16 d, a")
    OP_16("cvt.rn.f16.s8 d, a")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f32.s16 %0, h")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f32.u16 %0, h")
    OP("cvt.pack.sat.s16.s32 %0, %1, %2")
    OP("cvt.pack.sat.u16.s32 %0, %1, %2")
    OP("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3")
    OP("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3")
}

extern "C" __global__ void cvt_from_f16(const u32 *in, u32 *out, int n) {
    INPUTS
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.ftz.f32.f16 %0, h")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.rni.s32.f16 %0, h")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.rzi.u32.f16 %0, h")
    OP_16("cvt.rni.s16.f16 d, a")
    OP_16("cvt.rmi.u16.f16 d, a")
    OP(".reg .b16 h; cvt.u16.u32 h, %1; cvt.rzi.sat.s8.f16 %0, h")
    OP(".reg .b16 h; .reg .b64 q; cvt.u16.u32 h, %1; cvt.rpi.s64.f16 q, h; cvt.u32.u64 %0, q")
    OP_16("cvt.rni.f16.f16 d, a")
    OP_16("cvt.rzi.f16.f16 d, a")
    OP_16("cvt.rmi.f16.f16 d, a")
    OP_16("cvt.rpi.f16.f16 d, a")
    OP_16("cvt.sat.f16.f16 d, a")
    OP_16(".reg .f64 w; cvt.f64.f16 w, a; cvt.rn.f16.f64 d, w")
}

#if __CUDA_ARCH__ >= 900
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
#endif
