/* The activation of a product of groups (common/grouped_problem.h), for kernels of which a thread stores the same four
 * neighbours of a row for part 0 and, later, for part 1. */
#ifndef NVFP4_COMMON_GROUP_ACTIVATION_CUH
#define NVFP4_COMMON_GROUP_ACTIVATION_CUH

#include "common/gating.h"
#include "common/grouped_problem.h"
#include "kernels/common/epilogue.cuh"

/* A value of a 16-bit type. */
__device__ __forceinline__ float value_16(uint32_t bits, int32_t type) {
    return type == NVFP4_FP16 ? __half2float(__ushort_as_half((uint16_t)bits)) : __uint_as_float(bits << 16);
}

/* bf16 in the upper half of a pair is the float. */
__device__ __forceinline__ float rounded(float value, int32_t type) {
    if (type == NVFP4_FP32) return value;
    if (type == NVFP4_FP16) return value_16(round_16(value, NVFP4_FP16), NVFP4_FP16);
    return __uint_as_float(pack_16(0.0f, value, NVFP4_BF16));
}

/* Results of part 0, 4 neighbours of a row, that a thread loads ahead of their use: those of a 16-bit type for which
 * one instruction suffices. It does other work meanwhile. */
struct gate_results {
    uint2 pairs;

    static __device__ __forceinline__ bool are_ahead(const void *out, int32_t type, int count) {
        return type != NVFP4_FP32 && count == 4 && (uintptr_t)out % 8 == 0;
    }
    __device__ __forceinline__ void load(const void *out) { pairs = *(const uint2 *)out; }
    __device__ __forceinline__ float value(int i, int32_t type) const {
        return value_16((i < 2 ? pairs.x : pairs.y) >> i % 2 * 16, type);
    }
};

/* v, results of the last part, becomes the activation, before it is rounded. Of two parts `out` has the results of part
 * 0, and `ahead` those that are loaded ahead. One part is the gate, and 1 stands for up. */
__device__ __forceinline__ void activate(const grouped_problem &p, const gating &numbers, const void *out,
                                         const gate_results &ahead, float (&v)[4], int count) {
    const int32_t type = p.g.out_type;
    float gate[4];
#pragma unroll
    for (int i = 0; i < 4; i++) gate[i] = v[i] = rounded(v[i], type);
    if (p.parts == 1)
        for (int i = 0; i < 4; i++) v[i] = 1.0f;
    else if (gate_results::are_ahead(out, type, count))
        for (int i = 0; i < 4; i++) gate[i] = ahead.value(i, type);
    else
        for (int i = 0; i < 4; i++) gate[i] = i < count ? load_float(out, i, type) : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = gated(p.activation, gate[i], v[i], numbers);
}

#endif
