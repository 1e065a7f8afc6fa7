/* Epilogue: from fp32 sums to the output, as problem.h defines it. */
#ifndef NVFP4_COMMON_EPILOGUE_CUH
#define NVFP4_COMMON_EPILOGUE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "common/problem.h"

__device__ __forceinline__ int type_bytes(int32_t type) {
    return type == NVFP4_FP32 ? 4 : 2;
}

__device__ __forceinline__ float load_float(const void *base, int64_t index, int32_t type) {
    if (type == NVFP4_FP32) return ((const float *)base)[index];
    if (type == NVFP4_FP16) return __half2float(((const __half *)base)[index]);
    return __bfloat162float(((const __nv_bfloat16 *)base)[index]);
}

/* Brings the line of an address to L2. It reads nothing, so a grid may do it before griddepcontrol.wait. */
__device__ __forceinline__ void prefetch(const void *address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* Bits of a 16-bit type, rounded to nearest even. */
__device__ __forceinline__ uint16_t round_16(float value, int32_t type) {
    return type == NVFP4_FP16 ? __half_as_ushort(__float2half_rn(value))
                              : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/* Two such, `low` in the lower half. One cvt: for sm_100 ptxas makes F2F and PRMT of two that are joined. */
__device__ __forceinline__ uint32_t pack_16(float low, float high, int32_t type) {
    uint32_t pair;
    if (type == NVFP4_FP16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ void store_float(void *base, int64_t index, int32_t type, float value) {
    if (type == NVFP4_FP32)
        ((float *)base)[index] = value;
    else
        ((uint16_t *)base)[index] = round_16(value, type);
}

/* Stores `count` of 4 neighbours, with one instruction if all exist and the address is aligned. */
__device__ __forceinline__ void store_floats(void *base, int32_t type, const float (&v)[4], int count) {
    if (count < 4 || (uintptr_t)base % (4 * type_bytes(type))) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < count) store_float(base, i, type, v[i]);
    } else if (type == NVFP4_FP32) {
        *(float4 *)base = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        *(uint2 *)base = make_uint2(pack_16(v[0], v[1], type), pack_16(v[2], v[3], type));
    }
}

/* Epilogue of 4 neighbouring columns, n to n + 3 (fewer at the end of the output), for any number of rows. */
struct four_column_epilogue {
    int64_t n;
    int count;
    float alpha[4], bias[4];

    __device__ __forceinline__ four_column_epilogue(const gemm_problem &p, int64_t first) : n(first) {
        count = (int)min((int64_t)4, p.n - n);
        for (int i = 0; i < 4; i++) {
            alpha[i] = !p.alpha ? p.alpha_value : i < count ? p.alpha[(n + i) * p.alpha_stride] : 0.0f;
            bias[i] = p.bias && i < count ? load_float(p.bias, n + i, p.bias_type) : 0.0f;
        }
    }

    /* out[l][m][n..] from its sums. c may alias out: all reads precede the writes. */
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

template <int TYPE, int COUNT>
__device__ __forceinline__ void load_some_as(float (&v)[COUNT], const char *from, int64_t step, int count) {
#pragma unroll
    for (int i = 0; i < COUNT; i++, from += step) v[i] = i < count ? load_float(from, 0, TYPE) : 0.0f;
}

/* Loads the first `count` of COUNT values, `step` bytes apart; zeros for the others. */
template <int COUNT>
__device__ __forceinline__ void load_some(float (&v)[COUNT], const char *from, int64_t step, int32_t type, int count) {
    if (type == NVFP4_FP16)
        load_some_as<NVFP4_FP16>(v, from, step, count);
    else if (type == NVFP4_BF16)
        load_some_as<NVFP4_BF16>(v, from, step, count);
    else
        load_some_as<NVFP4_FP32>(v, from, step, count);
}

template <int TYPE, int COUNT>
__device__ __forceinline__ void store_some_as(const float (&v)[COUNT], char *to, int64_t step, int count) {
#pragma unroll
    for (int i = 0; i < COUNT; i++, to += step)
        if (i < count) store_float(to, 0, TYPE, v[i]);
}

template <int COUNT>
__device__ __forceinline__ void store_some(const float (&v)[COUNT], char *to, int64_t step, int32_t type, int count) {
    if (type == NVFP4_FP16)
        store_some_as<NVFP4_FP16>(v, to, step, count);
    else if (type == NVFP4_BF16)
        store_some_as<NVFP4_BF16>(v, to, step, count);
    else
        store_some_as<NVFP4_FP32>(v, to, step, count);
}

/* 32 bytes, aligned to 32: a thread with a row of its own fills whole sectors. Needs sm_100. */
__device__ __forceinline__ void store_global_256(void *to, const uint32_t *w) {
    asm volatile("st.global.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]),
                 "r"(w[3]), "r"(w[4]), "r"(w[5]), "r"(w[6]), "r"(w[7])
                 : "memory");
}

template <int WORDS> __device__ __forceinline__ void store_words(char *to, const uint32_t (&w)[WORDS]) {
    if (WORDS % 8 == 0 && (uintptr_t)to % 32 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 8) store_global_256(to + i * 4, w + i);
    } else {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) *(uint4 *)(to + i * 4) = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
    }
}

/* Stores COUNT neighbours, a multiple of 8, aligned to 16 bytes. */
template <int COUNT> __device__ __forceinline__ void store_neighbours(const float (&v)[COUNT], char *to, int32_t type) {
    if (type == NVFP4_FP32) {
        uint32_t w[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) w[i] = __float_as_uint(v[i]);
        store_words(to, w);
        return;
    }
    uint32_t w[COUNT / 2];
    if (type == NVFP4_FP16) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) w[i / 2] = pack_16(v[i], v[i + 1], NVFP4_FP16);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) w[i / 2] = pack_16(v[i], v[i + 1], NVFP4_BF16);
    }
    store_words(to, w);
}

/* The epilogues below work on a tile in registers; branches on the call's parameters are taken once for all COUNT sums.
 * PLAIN: no c, no bias, and one alpha for the call or the column. */

/* One column, any number of rows: for threads that are neighbours along a row. */
struct one_column_epilogue {
    int64_t n;
    float alpha, bias;

    __device__ __forceinline__ one_column_epilogue(const gemm_problem &p, int64_t column) : n(column) {
        alpha = p.alpha ? p.alpha[n * p.alpha_stride] : p.alpha_value;
        bias = p.bias ? load_float(p.bias, n, p.bias_type) : 0.0f;
    }

    /* The results of rows m.. from their sums, of which the first `rows` exist, before they are rounded. `byte` is n's
     * in a row. */
    template <bool PLAIN, int COUNT>
    __device__ __forceinline__ void apply(const gemm_problem &p, int64_t l, int64_t m, float (&v)[COUNT], int rows,
                                          int64_t byte) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] = __fmul_rn(alpha, v[i]);
        if (!PLAIN && p.c) {
            float c[COUNT];
            load_some(c, (const char *)p.c + l * p.c_batch + m * p.c_pitch + byte, p.c_pitch, p.out_type, rows);
#pragma unroll
            for (int i = 0; i < COUNT; i++) v[i] = __fmaf_rn(p.beta, c[i], v[i]);
        }
        if (!PLAIN && p.bias)
#pragma unroll
            for (int i = 0; i < COUNT; i++) v[i] = __fadd_rn(v[i], bias);
    }

    /* out[l][m..][n] from its sums, of which the first `rows` exist. c may alias out. */
    template <bool PLAIN, int COUNT>
    __device__ __forceinline__ void store(const gemm_problem &p, int64_t l, int64_t m, float (&v)[COUNT],
                                          int rows) const {
        const int64_t byte = n * type_bytes(p.out_type);
        apply<PLAIN>(p, l, m, v, rows, byte);
        store_some(v, (char *)p.out + l * p.out_batch + m * p.out_pitch + byte, p.out_pitch, p.out_type, rows);
    }
};

/* COUNT neighbouring columns of one row, for threads that have a row each: out[l][m][n..] from its sums, of which the
 * first `columns` exist. c may alias out. */
template <bool PLAIN, int COUNT>
__device__ __forceinline__ void store_row(const gemm_problem &p, int64_t l, int64_t m, int64_t n, float (&v)[COUNT],
                                          int columns) {
    int item = type_bytes(p.out_type);
    char *out = (char *)p.out + l * p.out_batch + m * p.out_pitch + n * item;
    if (PLAIN || !p.alpha || p.alpha_stride == 0) {
        float alpha = p.alpha ? *p.alpha : p.alpha_value;
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] = __fmul_rn(alpha, v[i]);
    } else {
        float alpha[COUNT];
        load_some_as<NVFP4_FP32>(alpha, (const char *)(p.alpha + n), 4, columns);
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] = __fmul_rn(alpha[i], v[i]);
    }
    if (!PLAIN && p.c) {
        float c[COUNT];
        load_some(c, (const char *)p.c + l * p.c_batch + m * p.c_pitch + n * item, item, p.out_type, columns);
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] = __fmaf_rn(p.beta, c[i], v[i]);
    }
    if (!PLAIN && p.bias) {
        int bias_item = type_bytes(p.bias_type);
        float bias[COUNT];
        load_some(bias, (const char *)p.bias + n * bias_item, bias_item, p.bias_type, columns);
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] = __fadd_rn(v[i], bias[i]);
    }
    if (columns < COUNT || (uintptr_t)out % 16)
        store_some(v, out, item, p.out_type, columns);
    else
        store_neighbours(v, out, p.out_type);
}

#endif
