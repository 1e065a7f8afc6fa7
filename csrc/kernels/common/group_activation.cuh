/* The activation of a product of groups (common/grouped_problem.h), for kernels of which a thread stores the same four
 * neighbours of a row for part 0 and, later, for part 1. */
#ifndef NVFP4_COMMON_GROUP_ACTIVATION_CUH
#define NVFP4_COMMON_GROUP_ACTIVATION_CUH

#include "common/grouped_problem.h"
#include "kernels/common/activation.h"
#include "kernels/common/epilogue.cuh"

/* A value of a 16-bit type. */
__device__ __forceinline__ float value_16(uint32_t bits, int32_t type) {
    return type == NVFP4_FP16 ? __half2float(__ushort_as_half((uint16_t)bits)) : __uint_as_float(bits << 16);
}

__device__ __forceinline__ float rounded(float value, int32_t type) {
    return type == NVFP4_FP32 ? value : value_16(round_16(value, type), type);
}

/* Loads `count` of 4 neighbours, with one instruction if all exist and the address is aligned. */
__device__ __forceinline__ void load_floats(float (&v)[4], const void *base, int32_t type, int count) {
    if (count < 4 || (uintptr_t)base % (4 * type_bytes(type))) {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = i < count ? load_float(base, i, type) : 0.0f;
    } else if (type == NVFP4_FP32) {
        const float4 four = *(const float4 *)base;
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
        const uint2 two = *(const uint2 *)base;
        v[0] = value_16(two.x, type), v[1] = value_16(two.x >> 16, type);
        v[2] = value_16(two.y, type), v[3] = value_16(two.y >> 16, type);
    }
}

/* v, the results of the last part, becomes the activation, before it is rounded. `out` has the results of part 0 if
 * there are two parts. One part is the gate, and 1 stands for up. */
__device__ __forceinline__ void activate(const grouped_problem &p, const gating &numbers, const void *out,
                                         float (&v)[4], int count) {
    float gate[4];
#pragma unroll
    for (int i = 0; i < 4; i++) gate[i] = v[i] = rounded(v[i], p.g.out_type);
    if (p.parts == 2)
        load_floats(gate, out, p.g.out_type, count);
    else
        for (int i = 0; i < 4; i++) v[i] = 1.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = gated(p.activation, gate[i], v[i], numbers);
}

#endif
