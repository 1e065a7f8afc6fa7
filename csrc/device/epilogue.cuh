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

/* The epilogue of 4 neighbouring columns, n to n + 3 (fewer where the output ends), for any number of rows.
 */
struct column_epilogue {
    int64_t n;
    int count;
    float alpha[4], bias[4];

    __device__ __forceinline__ column_epilogue(const gemm_problem &p, int64_t first) : n(first) {
        count = (int)min((int64_t)4, p.n - n);
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

/* The epilogue of one column that exists, n, for any number of rows: for threads that are neighbours along a row. What
 * depends on the call alone is decided once for all COUNT rows, since a tile is finished when nothing else is left to
 * do.
 */
struct single_epilogue {
    int64_t n;
    float alpha, bias;

    __device__ __forceinline__ single_epilogue(const gemm_problem &p, int64_t column) : n(column) {
        alpha = p.alpha ? p.alpha[n * p.alpha_stride] : p.alpha_value;
        bias = p.bias ? load_float(p.bias, n, p.bias_type) : 0.0f;
    }

    /* Finishes the sums of out[l][m..][n], of which the first `rows` exist. c may be out itself. */
    template <int COUNT>
    __device__ __forceinline__ void store(const gemm_problem &p, int64_t l, int64_t m, float (&v)[COUNT],
                                          int rows) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] = __fmul_rn(alpha, v[i]);
        if (p.c) {
            const char *c = (const char *)p.c + l * p.c_batch + m * p.c_pitch;
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                if (i < rows) v[i] = __fmaf_rn(p.beta, load_float(c + i * p.c_pitch, n, p.out_type), v[i]);
        }
        if (p.bias)
#pragma unroll
            for (int i = 0; i < COUNT; i++) v[i] = __fadd_rn(v[i], bias);
        char *out = (char *)p.out + l * p.out_batch + m * p.out_pitch + n * type_bytes(p.out_type);
        if (p.out_type == OUT_FP16)
            store_rows<OUT_FP16>(out, p.out_pitch, v, rows);
        else if (p.out_type == OUT_BF16)
            store_rows<OUT_BF16>(out, p.out_pitch, v, rows);
        else
            store_rows<OUT_FP32>(out, p.out_pitch, v, rows);
    }

  private:
    template <int TYPE, int COUNT>
    __device__ __forceinline__ static void store_rows(char *out, int64_t pitch, const float (&v)[COUNT], int rows) {
        if (rows >= COUNT) {
#pragma unroll
            for (int i = 0; i < COUNT; i++, out += pitch) store_float(out, 0, TYPE, v[i]);
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; i++, out += pitch)
                if (i < rows) store_float(out, 0, TYPE, v[i]);
        }
    }
};

/* The epilogue of COUNT neighbouring columns of one row, a multiple of 8: for threads that have a row each. */
template <int COUNT> struct row_epilogue {
    static_assert(COUNT % 8 == 0, "16 bytes of a 16-bit type at a time");

    /* Finishes the sums of out[l][m][n..], of which the first `columns` exist. c may be out itself. */
    __device__ __forceinline__ static void store(const gemm_problem &p, int64_t l, int64_t m, int64_t n,
                                                 float (&v)[COUNT], int columns) {
        const char *c = (const char *)p.c + l * p.c_batch + m * p.c_pitch + n * type_bytes(p.out_type);
        char *out = (char *)p.out + l * p.out_batch + m * p.out_pitch + n * type_bytes(p.out_type);
        if (p.alpha && p.alpha_stride) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) v[i] = __fmul_rn(i < columns ? p.alpha[n + i] : 0.0f, v[i]);
        } else {
            float alpha = p.alpha ? *p.alpha : p.alpha_value;
#pragma unroll
            for (int i = 0; i < COUNT; i++) v[i] = __fmul_rn(alpha, v[i]);
        }
        if (p.c)
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                if (i < columns) v[i] = __fmaf_rn(p.beta, load_float(c, i, p.out_type), v[i]);
        if (p.bias)
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                if (i < columns) v[i] = __fadd_rn(v[i], load_float(p.bias, n + i, p.bias_type));
        if (columns < COUNT || (uintptr_t)out % 16) {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                if (i < columns) store_float(out, i, p.out_type, v[i]);
        } else if (p.out_type == OUT_FP32) {
#pragma unroll
            for (int i = 0; i < COUNT; i += 4) ((float4 *)out)[i / 4] = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; i += 8) {
                uint32_t word[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    word[j] = round_16(v[i + 2 * j], p.out_type) | (uint32_t)round_16(v[i + 2 * j + 1], p.out_type)
                                                                       << 16;
                ((uint4 *)out)[i / 8] = make_uint4(word[0], word[1], word[2], word[3]);
            }
        }
    }
};

#endif
