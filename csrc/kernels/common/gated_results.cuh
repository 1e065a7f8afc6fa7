/* The activation of a product of groups (common/grouped_problem.h), in the kernel that multiplies. */
#ifndef NVFP4_COMMON_GATED_RESULTS_CUH
#define NVFP4_COMMON_GATED_RESULTS_CUH

#include "common/grouped_problem.h"
#include "kernels/common/activation.h"
#include "kernels/common/epilogue.cuh"

/* How many parts a tile covers. */
__device__ __forceinline__ int parts_of_tile(const grouped_problem &p) {
    return p.has_activation ? p.parts : 1;
}

/* A result as it would be read back from memory. */
__device__ __forceinline__ float as_stored(float v, int32_t type) {
    return type == NVFP4_FP32   ? v
           : type == NVFP4_FP16 ? __half2float(__float2half_rn(v))
                                : __bfloat162float(__float2bfloat16_rn(v));
}

template <int ACTIVATION, int COUNT>
__device__ __forceinline__ void activate_as(float (&gate)[COUNT], const float (&up)[COUNT], const gating &how) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) gate[i] = gated(ACTIVATION, gate[i], up[i], how);
}

/* Replaces `gate` by the activation of gate and up, both rounded. Of a product of one part up is 1. */
template <int COUNT>
__device__ __forceinline__ void activate(const grouped_problem &p, float (&gate)[COUNT], const float (&up)[COUNT]) {
    const gating how = gating_of(p.limit, p.activation_alpha, p.parts == 2);
    if (p.activation == NVFP4_GELU_TANH)
        activate_as<NVFP4_GELU_TANH>(gate, up, how);
    else if (p.activation == NVFP4_SWIGLU)
        activate_as<NVFP4_SWIGLU>(gate, up, how);
    else if (p.activation == NVFP4_RELU2)
        activate_as<NVFP4_RELU2>(gate, up, how);
    else
        activate_as<NVFP4_SILU>(gate, up, how);
}

#endif
