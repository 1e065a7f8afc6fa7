/* Operands of mma where A is fp16 or bf16 and B is NVFP4 (W4A16): e2m1 values times their scales in A's type, exact up
 * to a power of two that the epilogue removes, and A's values in the same order along K.
 *
 *   fp16   as decode.cuh: value * 2^-6, or * 2^-14 and scale * 2^7
 *   bf16   an e2m1 code in place in bf16 (bias 127) is value * 2^-126; the scale is multiplied by 2^119, which keeps
 *          448 * 2^119 below 2^128. The product has at most 6 significant bits, of bf16's 8. */
#ifndef NVFP4_COMMON_W4A16_CUH
#define NVFP4_COMMON_W4A16_CUH

#include <cuda_fp16.h>

#include "common/problem.h"
#include "kernels/common/decode.cuh"
#include "kernels/common/mma.cuh"

/* Multiplies pairs; the sum with -0 changes no bit. fma because mul.bf16x2 needs sm_90. */
__device__ __forceinline__ uint32_t bf162_multiply(uint32_t x, uint32_t y) {
    uint32_t result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "r"(0x80008000));
    return result;
}

/* The codes i and i + 4 of a word, in place in a bf16 pair. A code is isolated in both halves, one multiplication puts
 * copies of it where its sign and its magnitude belong, and a mask keeps those bits: the copies do not overlap. A word
 * takes 13 instructions, and 4 to multiply by scales. Shifts instead take 2 more. */
template <int i> __device__ __forceinline__ uint32_t bf16_codes(uint32_t word) {
    constexpr uint32_t CODE = i % 2 ? 0x00F000F0 : 0x000F000F;
    constexpr uint32_t TO_SIGN = i % 2 ? 1 << 8 : 1 << 12, TO_MAGNITUDE = i % 2 ? 1 << 2 : 1 << 6;
    uint32_t copies;
    asm("mul.lo.u32 %0, %1, %2;" : "=r"(copies) : "r"((i < 2 ? word : word >> 8) & CODE), "n"(TO_SIGN + TO_MAGNITUDE));
    return copies & 0x81C081C0;
}

__device__ __forceinline__ void bf16_codes(uint32_t word, uint32_t (&pairs)[4]) {
    pairs[0] = bf16_codes<0>(word), pairs[1] = bf16_codes<1>(word);
    pairs[2] = bf16_codes<2>(word), pairs[3] = bf16_codes<3>(word);
}

/* 8 neighbours along K, in natural order, as pairs i, i + 4: the order of words that are converted by masks. */
__device__ __forceinline__ void pairs_4_apart(const uint4 &natural, uint32_t (&pairs)[4]) {
    pairs[0] = __byte_perm(natural.x, natural.z, 0x5410);
    pairs[1] = __byte_perm(natural.x, natural.z, 0x7632);
    pairs[2] = __byte_perm(natural.y, natural.w, 0x5410);
    pairs[3] = __byte_perm(natural.y, natural.w, 0x7632);
}

template <int TYPE> struct w4a16;

template <> struct w4a16<NVFP4_FP16> {
    static constexpr float UNIT = DECODE_HAS_CVT ? 64.0f : 128.0f;

    static __device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1) {
        mma_m16n8k16(d, a0, a1, a2, a3, b0, b1);
    }
    /* Two scales in the low bytes, with bit 7 clear, to a pair of factors. */
    static __device__ __forceinline__ uint32_t scales(uint32_t bytes) {
#if DECODE_HAS_CVT
        uint32_t pair, unused;
        e4m3x4_to_half2x2(bytes, pair, unused);
        return pair;
#else
        return decode_scales(bytes & 0xFF, bytes >> 8);
#endif
    }
    template <int half>
    static __device__ __forceinline__ void word(uint32_t word, uint32_t scales, uint32_t (&pairs)[4]) {
        decode_word<half>(word, scales, pairs);
    }
    /* pairs[i]: the nibbles i of words x and y times a pair of scales, for i from 0 to 3 or, with `high`, 4 to 7. */
    template <bool high>
    static __device__ __forceinline__ void zipped(uint32_t x, uint32_t y, uint32_t scales, uint32_t (&pairs)[4]) {
#if DECODE_HAS_CVT
        uint32_t columns[4];
        e2m1_pairs(__byte_perm(x, y, high ? 0x7362 : 0x5140), columns);
        pairs[0] = columns[0], pairs[1] = columns[2], pairs[2] = columns[1], pairs[3] = columns[3];
#else
        e2m1_pairs(__byte_perm(x, y, high ? 0x7632 : 0x5410), pairs);
#endif
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = half2_multiply(pairs[i], scales);
    }
    static __device__ __forceinline__ void activations(const uint4 &natural, uint32_t (&pairs)[4]) {
#if DECODE_HAS_CVT
        pairs[0] = __byte_perm(natural.x, natural.y, 0x5410);
        pairs[1] = __byte_perm(natural.z, natural.w, 0x5410);
        pairs[2] = __byte_perm(natural.x, natural.y, 0x7632);
        pairs[3] = __byte_perm(natural.z, natural.w, 0x7632);
#else
        pairs_4_apart(natural, pairs);
#endif
    }
};

template <> struct w4a16<NVFP4_BF16> {
    static constexpr float UNIT = 128.0f;

    static __device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1) {
        mma_m16n8k16_bf16(d, a0, a1, a2, a3, b0, b1);
    }
    static __device__ __forceinline__ uint32_t scales(uint32_t bytes) {
        constexpr float FACTOR = DECODE_HAS_CVT ? 0x1p119f : 0x1p112f; /* of what decode_scales gives */
        const uint32_t pair = w4a16<NVFP4_FP16>::scales(bytes);
        const float2 two = __half22float2(*(const __half2 *)&pair);
        uint32_t result;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(two.y * FACTOR), "f"(two.x * FACTOR));
        return result;
    }
    template <int half>
    static __device__ __forceinline__ void word(uint32_t word, uint32_t scales, uint32_t (&pairs)[4]) {
        bf16_codes(word, pairs);
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = bf162_multiply(pairs[i], both_halves<half>(scales));
    }
    template <bool high>
    static __device__ __forceinline__ void zipped(uint32_t x, uint32_t y, uint32_t scales, uint32_t (&pairs)[4]) {
        bf16_codes(__byte_perm(x, y, high ? 0x7632 : 0x5410), pairs);
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = bf162_multiply(pairs[i], scales);
    }
    static __device__ __forceinline__ void activations(const uint4 &natural, uint32_t (&pairs)[4]) {
        pairs_4_apart(natural, pairs);
    }
};

/* The factor of the sum of products of fragments of TYPE: the powers of two that B's conversion leaves, and A's if A
 * is NVFP4, whose fragments are fp16. */
template <int TYPE> __device__ __forceinline__ float product_unit(const gemm_problem &p) {
    return TYPE == NVFP4_FP16 && p.a_type == VALUES_E2M1 ? DECODED_PRODUCT_UNIT : w4a16<TYPE>::UNIT;
}

#endif
