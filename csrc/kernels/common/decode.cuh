/* Conversion of e2m1 values and e4m3 scales to fp16: exact, up to a power of two that the epilogue removes.
 *
 * An e2m1 code is s|ee|m. With s at the sign, ee at the low end of the exponent and m at the top of the mantissa of a
 * wider format, it is the same number times 2^(difference of the exponent biases), subnormals (0 and 0.5) included. So
 * a conversion is a few masks and shifts:
 *
 *   sm_89 and later   to e4m3 (bias 7), value * 2^-6, then one cvt a pair to fp16; one cvt for the scale
 *   before            to fp16 (bias 15), value * 2^-14; the scale likewise, multiplied by 2^15: scale * 2^7
 *
 * The product of value and scale has at most 6 significant bits and lies between 2^-17 and 2688 * 2^-6. Multiples of
 * 2^-24 are exact there in fp16. */
#ifndef NVFP4_COMMON_DECODE_CUH
#define NVFP4_COMMON_DECODE_CUH

#include <cuda_fp16.h>
#include <stdint.h>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
#define DECODE_HAS_CVT       1
#define DECODED_PRODUCT_UNIT 4096.0f /* (2^6)^2: both operands */
#else
#define DECODE_HAS_CVT       0
#define DECODED_PRODUCT_UNIT 16384.0f /* (2^7)^2 */
#endif

/* (x & mask) | y in one lop3, which the compiler does not always find. */
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t y) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(x), "r"(mask), "r"(y));
    return result;
}

__device__ __forceinline__ uint32_t half2_multiply(uint32_t x, uint32_t y) {
    uint32_t result;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(x), "r"(y));
    return result;
}

/* One half of a pair, duplicated. It costs nothing: HMUL2 has an operand selector for it. */
template <int half> __device__ __forceinline__ uint32_t both_halves(uint32_t pair) {
    uint32_t result;
    if (half == 0)
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(result) : "r"(pair));
    else
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(result) : "r"(pair));
    return result;
}

#if DECODE_HAS_CVT
/* Four e4m3 values to fp16: the two low bytes and the two high bytes. */
__device__ __forceinline__ void e4m3x4_to_half2x2(uint32_t four, uint32_t &low, uint32_t &high) {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
        : "=r"(low), "=r"(high)
        : "r"(four));
}
#endif

/* Two scale bytes to an fp16 pair, `first` in the low half. Bit 7 is ignored; 0x7F gives NaN. */
__device__ __forceinline__ uint32_t decode_scales(uint32_t first, uint32_t second) {
    uint32_t magnitudes = (first | second << 8) & 0x7F7F;
#if DECODE_HAS_CVT
    uint32_t pair, unused;
    e4m3x4_to_half2x2(magnitudes, pair, unused);
    return pair;
#else
    uint32_t low = magnitudes & 0x7F, high = magnitudes >> 8;
    uint32_t scaled = half2_multiply(low << 7 | high << 23, 0x78007800); /* 2^15 */
    if (low == 0x7F) scaled |= 0x7FFF;
    if (high == 0x7F) scaled |= 0x7FFF0000;
    return scaled;
#endif
}

/* The 8 values of a word as 4 pairs, without their scale. The order of values is the same for every word, which
 * suffices for dot products of converted words. */
__device__ __forceinline__ void e2m1_pairs(uint32_t word, uint32_t (&pairs)[4]) {
#if DECODE_HAS_CVT
    uint32_t even = and_or(word << 4, 0x80808080, (word << 2) & 0x1C1C1C1C);
    uint32_t odd = and_or(word, 0x80808080, (word >> 2) & 0x1C1C1C1C);
    e4m3x4_to_half2x2(even, pairs[0], pairs[1]);
    e4m3x4_to_half2x2(odd, pairs[2], pairs[3]);
#else
    uint32_t low = word << 8;
    pairs[0] = and_or(low << 4, 0x80008000, (low << 1) & 0x0E000E00);
    pairs[1] = and_or(low, 0x80008000, (low >> 3) & 0x0E000E00);
    pairs[2] = and_or(word << 4, 0x80008000, (word << 1) & 0x0E000E00);
    pairs[3] = and_or(word, 0x80008000, (word >> 3) & 0x0E000E00);
#endif
}

/* The same times one half of `scales`. */
template <int half> __device__ __forceinline__ void decode_word(uint32_t word, uint32_t scales, uint32_t (&pairs)[4]) {
    e2m1_pairs(word, pairs);
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = half2_multiply(pairs[i], both_halves<half>(scales));
}

#endif
