/* A 16-bit row of A that a CTA of sm90/gemv.cu quantizes while its first loads of B are under way, with the bits of
 * kernels/quantize. A block of 16 values has one thread, which copies it to shared memory by cp.async and quantizes it
 * there:
 *
 *   x [blocks][32 bytes] | codes [blocks][8 bytes] | scales [blocks]
 *
 * Each CTA quantizes all of the row: for K = 16384 that is four blocks a thread. */
#ifndef NVFP4_SM90_GEMV_QUANTIZE_CUH
#define NVFP4_SM90_GEMV_QUANTIZE_CUH

#include "kernels/common/cp_async.cuh"
#include "kernels/quantize/block.cuh"

template <int TYPE, int THREADS> struct quantized_row {
    uint8_t *x;
    int blocks, room; /* room: with those past the end of K in the last step. They are not written; their scales do not
                       * count */

    __device__ __forceinline__ uint8_t *codes() const { return x + room * 32; }
    __device__ __forceinline__ uint8_t *scales() const { return x + room * 40; }

    __device__ __forceinline__ void copy(const uint8_t *from) const {
#pragma unroll 1
        for (int block = threadIdx.x; block < blocks; block += THREADS) {
            const uint32_t to = shared_address(x + block * 32);
            cp_async_16(to, from + block * 32);
            cp_async_16(to + 16, from + block * 32 + 16);
        }
    }
    /* Quantizes the blocks that the thread has copied. */
    __device__ __forceinline__ void quantize(float g) const {
        const bool in_range = g >= MIN_SCALE && g <= MAX_SCALE;
        const reciprocal over_g = reciprocal_of(g);
#pragma unroll 1
        for (int block = threadIdx.x; block < blocks; block += THREADS) {
            const char *from = (const char *)x + block * 32;
            uint2 *const data = (uint2 *)codes() + block;
            if (in_range) {
                raw_block<TYPE> raw;
                raw.load(from, true);
                quantize_block<NVFP4_AMAX6>(raw.unpack(), g, over_g, data, scales() + block);
            } else {
                quantize_any<TYPE, NVFP4_AMAX6>(from, g, data, scales() + block);
            }
        }
    }
    /* 32 codes and two scales. */
    __device__ __forceinline__ uint4 codes_of(int chunk) const { return ((const uint4 *)codes())[chunk]; }
    __device__ __forceinline__ uint32_t scales_of(int chunk) const { return ((const uint16_t *)scales())[chunk]; }
};

#endif
