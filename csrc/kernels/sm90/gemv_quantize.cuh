/* A 16-bit row of A that a CTA of sm90/gemv.cu quantizes while its first loads of B are under way, with the bits of
 * kernels/quantize. A block of 16 values has one thread, which copies it to shared memory by cp.async and quantizes it
 * from there. Codes and scales go where the kernel copies those of a quantized A to.
 *
 * Each CTA quantizes all of the row: for K = 16384 that is four blocks a thread. */
#ifndef NVFP4_SM90_GEMV_QUANTIZE_CUH
#define NVFP4_SM90_GEMV_QUANTIZE_CUH

#include "kernels/common/cp_async.cuh"
#include "kernels/quantize/block.cuh"

template <int TYPE, int THREADS> struct row_of_x {
    uint8_t *shared; /* [blocks][32 bytes] */
    int blocks;

    __device__ __forceinline__ void copy(const uint8_t *from) const {
#pragma unroll 1
        for (int block = threadIdx.x; block < blocks; block += THREADS) {
            const uint32_t to = shared_address(shared + block * 32);
            cp_async_16(to, from + block * 32);
            cp_async_16(to + 16, from + block * 32 + 16);
        }
    }
    /* Quantizes the blocks that the thread has copied, to where `a` places them. */
    template <class A> __device__ __forceinline__ void quantize(const A &a, float g) const {
        const bool in_range = g >= MIN_SCALE && g <= MAX_SCALE;
        const reciprocal over_g = reciprocal_of(g);
#pragma unroll 1
        for (int block = threadIdx.x; block < blocks; block += THREADS) {
            const char *from = (const char *)shared + block * 32;
            uint2 *codes;
            uint8_t *scale;
            a.place(block, codes, scale);
            if (in_range) {
                raw_block<TYPE> raw;
                raw.load(from, true);
                quantize_block<NVFP4_AMAX6>(raw.unpack(), g, over_g, codes, scale);
            } else {
                quantize_any<TYPE, NVFP4_AMAX6>(from, g, codes, scale);
            }
        }
    }
};

#endif
