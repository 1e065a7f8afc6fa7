// Arithmetic of 16-bit floats and minima that sm_90 added (PTX ISA 9.7.3, 9.7.4).
#include "golden.cuh"

extern "C" __global__ void half_sm90_ops(const u32 *in, u32 *out, int n) {
    INPUTS
    OP_16("add.bf16 d, a, b")
    OP_16("add.rn.bf16 d, a, b")
    OP_16("sub.bf16 d, a, b")
    OP_16("mul.rn.bf16 d, a, b")
    OP_16("fma.rn.oob.f16 d, a, b, c")
    OP_16("fma.rn.oob.relu.bf16 d, a, b, c")
    OP_16("min.xorsign.abs.f16 d, a, b")
    OP_16("max.NaN.xorsign.abs.f16 d, a, b")
    OP_16("max.xorsign.abs.bf16 d, a, b")
    OP_16_PRED("setp.lt.bf16 p, a, b")
    OP_16_PRED("setp.equ.bf16 p, a, b")
    // shifted up: ptxas 13.0 leaves other bits in the upper half of this result
    OP(".reg .b16 a, b, d; cvt.u16.u32 a, %1; cvt.u16.u32 b, %2; set.ge.bf16.bf16 d, a, b; cvt.u32.u16 %0, d; shl.b32 "
       "%0, %0, 16")
    OP("add.bf16x2 %0, %1, %2")
    OP("sub.rn.bf16x2 %0, %1, %2")
    OP("mul.bf16x2 %0, %1, %2")
    OP("min.NaN.xorsign.abs.f16x2 %0, %1, %2")
    OP("max.xorsign.abs.bf16x2 %0, %1, %2")
    OP(".reg .pred p, q; setp.ge.bf16x2 p|q, %1, %2; selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2")
    OP("min.relu.s32 %0, %1, %2")
    OP("max.relu.s32 %0, %1, %2")
    OP("min.relu.s16x2 %0, %1, %2")
    OP("max.s16x2 %0, %1, %2")
    OP("min.u16x2 %0, %1, %2")
    OP("add.s16x2 %0, %1, %2")
    OP("add.u16x2 %0, %1, %2")
}

extern "C" __global__ void f32_sm90_ops(const u32 *in, u32 *out, int n) {
    INPUTS float fx = __uint_as_float(x), fy = __uint_as_float(y), fz = __uint_as_float(z);
    OP_F32("min.xorsign.abs.f32 %0, %1, %2")
    OP_F32("max.xorsign.abs.f32 %0, %1, %2")
    OP_F32("min.NaN.xorsign.abs.f32 %0, %1, %2")
    OP_F32("max.ftz.NaN.xorsign.abs.f32 %0, %1, %2")
}

extern "C" __global__ void half_sm90_approx_ops(const u32 *in, u32 *out, int n) {
    INPUTS
    OP_16("tanh.approx.bf16 d, a")
    OP_16("ex2.approx.ftz.bf16 d, a")
}
