/* From an fp32 sum to the output, as problem.h defines it. */
#ifndef NVFP4_DEVICE_EPILOGUE_CUH
#define NVFP4_DEVICE_EPILOGUE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "problem.h"

__device__ __forceinline__ int type_bytes(int32_t type) {
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

/* Stores `count` of 4 neighbours, at once where all exist and the address allows. */
__device__ __forceinline__ void store_floats(void *base, int32_t type, const float (&v)[4], int count) {
    if (count < 4 || (uintptr_t)base % (4 * type_bytes(type))) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < count) store_float(base, i, type, v[i]);
    } else if (type == OUT_FP32) {
        *(float4 *)base = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        *(uint2 *)base = make_uint2(round_16(v[0], type) | (uint32_t)round_16(v[1], type) << 16,
                                    round_16(v[2], type) | (uint32_t)round_16(v[3], type) << 16);
    }
}

/* The epilogue of 4 neighbouring columns, n to n + 3 (`most`, or fewer where the output ends), for any number of rows.
 */
struct column_epilogue {
    int64_t n;
    int count;
    float alpha[4], bias[4];

    __device__ __forceinline__ column_epilogue(const gemm_problem &p, int64_t first, int most = 4) : n(first) {
        count = (int)min((int64_t)most, p.n - n);
        for (int i = 0; i < 4; i++) {
            alpha[i] = !p.alpha ? p.alpha_value : i < count ? p.alpha[(n + i) * p.alpha_stride] : 0.0f;
            bias[i] = p.bias && i < count ? load_float(p.bias, n + i, p.bias_type) : 0.0f;
        }
    }

    /* Finishes the sums of out[l][m][n..]. c may be out itself: all is read before anything is written. */
    __device__ __forceinline__ void store(const gemm_problem &p, int64_t l, int64_t m, const float (&sums)[4]) const {
        float v[4];
        for (int i = 0; i < 4; i++) v[i] = __fmul_rn(alpha[i], sums[i]);
        if (p.c) {
            const char *c = (const char *)p.c + l * p.c_batch + m * p.c_pitch;
            for (int i = 0; i < 4; i++)
                if (i < count) v[i] = __fmaf_rn(p.beta, load_float(c, n + i, p.out_type), v[i]);
        }
        if (p.bias)
            for (int i = 0; i < 4; i++) v[i] = __fadd_rn(v[i], bias[i]);
        char *out = (char *)p.out + l * p.out_batch + m * p.out_pitch;
        store_floats(out + n * type_bytes(p.out_type), p.out_type, v, count);
    }
};

/* The epilogue of one column that exists, for any number of rows: for threads that are neighbours along a row. */
struct single_epilogue {
    int64_t n;
    float alpha, bias;

    __device__ __forceinline__ single_epilogue(const gemm_problem &p, int64_t column) : n(column) {
        alpha = p.alpha ? p.alpha[n * p.alpha_stride] : p.alpha_value;
        bias = p.bias ? load_float(p.bias, n, p.bias_type) : 0.0f;
    }

    __device__ __forceinline__ void store(const gemm_problem &p, int64_t l, int64_t m, float sum) const {
        float v = __fmul_rn(alpha, sum);
        if (p.c) {
            const char *c = (const char *)p.c + l * p.c_batch + m * p.c_pitch;
            v = __fmaf_rn(p.beta, load_float(c, n, p.out_type), v);
        }
        if (p.bias) v = __fadd_rn(v, bias);
        store_float((char *)p.out + l * p.out_batch + m * p.out_pitch, n, p.out_type, v);
    }
};

#endif
