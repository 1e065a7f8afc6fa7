/* The global scale of a tensor or of each row, amax(|x|) / divisor, in one launch. A row has a CTA.
 *
 * Of a tensor, a CTA takes every gridDim.x-th chunk of AMAX_CHUNK bytes of a row, in 16-byte loads where they are
 * aligned. Magnitudes compare as integers: NaN is above infinity. Each CTA leaves its amax in p.partial; the last to
 * arrive reduces them.
 *
 * p.arrivals holds anything at first, and there is no launch before this one to clear it: a count belongs to this call
 * if the bits above it are p.tag, which no other call of the process has. A count without them is replaced by 0. */
#include <cuda_fp16.h>
#include <float.h>
#include <stdint.h>

#include "common/row_op_problems.h"
#include "kernels/quantize/kernels.h"

/* The larger magnitude of `amax` and the values of a word, as bits of fp32, or of fp16 in the upper half. */
__device__ __forceinline__ uint32_t amax_word(uint32_t amax, uint32_t word, bool wide) {
    return wide ? max(amax, word & 0x7FFFFFFF) : max(amax, max(word & 0x7FFF0000, word << 16 & 0x7FFF0000));
}

__device__ __forceinline__ uint32_t amax_chunk(uint32_t amax, const char *x, uint32_t bytes, bool wide) {
    uint32_t item = wide ? 4 : 2, vectors = (uintptr_t)x % 16 == 0 ? bytes / 16 : 0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < vectors; i += QUANTIZE_THREADS) {
        uint4 four = ((const uint4 *)x)[i];
        amax = amax_word(amax_word(amax, four.x, wide), four.y, wide);
        amax = amax_word(amax_word(amax, four.z, wide), four.w, wide);
    }
#pragma unroll 1
    for (uint32_t at = vectors * 16 + threadIdx.x * item; at < bytes; at += QUANTIZE_THREADS * item)
        amax = amax_word(amax, wide ? *(const uint32_t *)(x + at) : *(const uint16_t *)(x + at), wide);
    return amax;
}

/* Reduces to the amax of the CTA; thread 0 has it. */
__device__ __forceinline__ uint32_t amax_of_cta(uint32_t amax) {
    __shared__ uint32_t of_warp[QUANTIZE_THREADS / 32];
    amax = __reduce_max_sync(~0u, amax);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = amax;
    __syncthreads();
    if (threadIdx.x < 32) amax = __reduce_max_sync(~0u, threadIdx.x < QUANTIZE_THREADS / 32 ? of_warp[threadIdx.x] : 0);
    return amax;
}

/* Counts the CTA; true for the last one, which then sees every p.partial. */
__device__ __forceinline__ bool arrive_last(const amax_problem &p) {
    unsigned long long *arrivals = (unsigned long long *)p.arrivals, tag = p.tag;
    unsigned long long seen = *(volatile unsigned long long *)arrivals;
    __threadfence();
    while ((seen & ~(unsigned long long)AMAX_COUNT_MASK) != tag) {
        unsigned long long before = atomicCAS(arrivals, seen, tag);
        seen = before == seen ? tag : before;
    }
    bool last = atomicAdd(arrivals, 1ull) == tag + gridDim.x - 1;
    if (last) *arrivals = 0; /* for a graph that runs the same call again */
    __threadfence();
    return last;
}

__device__ __forceinline__ float scale_of(const amax_problem &p, uint32_t amax) {
    float value =
        p.x_type == NVFP4_FP16 ? __half2float(__ushort_as_half((uint16_t)(amax >> 16))) : __uint_as_float(amax);
    float scale = __double2float_rn(__ddiv_rn((double)value, p.divisor));
    return scale > 0.0f && scale <= FLT_MAX ? scale : 1.0f;
}

extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)
    nvfp4_amax_scale_rows(const __grid_constant__ amax_problem p) {
    const char *x = (const char *)p.x + blockIdx.x * p.x_pitch;
    uint32_t amax = 0;
#pragma unroll 1
    for (int64_t at = 0; at < p.x_bytes; at += AMAX_CHUNK)
        amax = amax_chunk(amax, x + at, (uint32_t)min(p.x_bytes - at, (int64_t)AMAX_CHUNK), p.x_type == NVFP4_FP32);
    amax = amax_of_cta(amax);
    if (threadIdx.x == 0) p.scale[blockIdx.x] = scale_of(p, amax);
}

extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)
    nvfp4_amax_scale(const __grid_constant__ amax_problem p) {
    __shared__ bool last;
    const bool wide = p.x_type == NVFP4_FP32;
    const int64_t chunks = p.l * p.rows * p.chunks;
    uint32_t amax = 0;
#pragma unroll 1
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        int64_t row = 0, at = chunk;
        if (p.chunks != chunks) row = chunk / p.chunks, at = chunk % p.chunks;
        const char *x = (const char *)p.x + row / p.rows * p.x_batch + row % p.rows * p.x_pitch + at * AMAX_CHUNK;
        int64_t left = p.x_bytes - at * AMAX_CHUNK;
        amax = amax_chunk(amax, x, left < AMAX_CHUNK ? (uint32_t)left : AMAX_CHUNK, wide);
    }
    amax = amax_of_cta(amax);
    if (gridDim.x > 1) {
        if (threadIdx.x == 0) {
            p.partial[blockIdx.x] = amax;
            last = arrive_last(p);
        }
        __syncthreads();
        if (!last) return;
        amax = 0;
        for (uint32_t i = threadIdx.x; i < gridDim.x; i += QUANTIZE_THREADS) amax = max(amax, __ldcg(p.partial + i));
        amax = amax_of_cta(amax);
    }
    if (threadIdx.x == 0) *p.scale = scale_of(p, amax);
}
