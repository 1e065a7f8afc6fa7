/* From an fp32 sum to the output, as problem.h defines it. */
#ifndef NVFP4_DEVICE_EPILOGUE_CUH
#define NVFP4_DEVICE_EPILOGUE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "problem.h"

__device__ __forceinline__ int out_bytes(int32_t type) {
    return type == OUT_FP32 ? 4 : 2;
}

__device__ __forceinline__ float load_float(const void *base, int64_t index, int32_t type) {
    if (type == OUT_FP32) return ((const float *)base)[index];
    if (type == OUT_FP16) return __half2float(((const __half *)base)[index]);
    return __bfloat162float(((const __nv_bfloat16 *)base)[index]);
}

/* The bits of a 16-bit type, rounded to nearest even. */
__device__ __forceinline__ uint16_t round_16(float value, int32_t type) {
    return type == OUT_FP16 ? __half_as_ushort(__float2half_rn(value))
                            : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__device__ __forceinline__ void store_float(void *base, int64_t index, int32_t type, float value) {
    if (type == OUT_FP32)
        ((float *)base)[index] = value;
    else
        ((uint16_t *)base)[index] = round_16(value, type);
}

__device__ __forceinline__ float epilogue_value(const gemm_problem &p, int64_t l, int64_t m, int64_t n, float sum) {
    float v = __fmul_rn(p.alpha ? p.alpha[n * p.alpha_stride] : p.alpha_value, sum);
    if (p.c) v = __fmaf_rn(p.beta, load_float((const char *)p.c + l * p.c_batch + m * p.c_pitch, n, p.out_type), v);
    if (p.bias) v = __fadd_rn(v, load_float(p.bias, n, p.bias_type));
    return v;
}

/* Finishes the sum of out[l][m][n]. */
__device__ __forceinline__ void store_out(const gemm_problem &p, int64_t l, int64_t m, int64_t n, float sum) {
    store_float((char *)p.out + l * p.out_batch + m * p.out_pitch, n, p.out_type, epilogue_value(p, l, m, n, sum));
}

/* The same for columns n and n + 1, in one store where the type has 16 bits and the address allows. c may be out
 * itself, so both values are made before either is stored. */
__device__ __forceinline__ void store_out_pair(const gemm_problem &p, int64_t l, int64_t m, int64_t n, float sum0,
                                               float sum1) {
    char *row = (char *)p.out + l * p.out_batch + m * p.out_pitch;
    float v0 = epilogue_value(p, l, m, n, sum0), v1 = epilogue_value(p, l, m, n + 1, sum1);
    char *address = row + n * out_bytes(p.out_type);
    if (p.out_type != OUT_FP32 && (uintptr_t)address % 4 == 0) {
        *(uint32_t *)address = round_16(v0, p.out_type) | (uint32_t)round_16(v1, p.out_type) << 16;
    } else {
        store_float(row, n, p.out_type, v0);
        store_float(row, n + 1, p.out_type, v1);
    }
}

#endif
