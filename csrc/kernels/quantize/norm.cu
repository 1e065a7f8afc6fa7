/* RMS norm and quantization in one pass over memory, bit for bit as cpu/fused.c, which defines every rounding.
 *
 * A row has 2^tile_log2 threads of a CTA, up to all of them. Thread t has the blocks of 16 values t, t + 256, ... of
 * the row: it adds the squares of its values in order, and the threads' sums are added over 128, 64, ... 1 threads. The
 * first KEPT blocks of a thread wait in registers for the sum, others are loaded again. Rows that are padding of the
 * 128x4 layout have threads too, which store zeros. */
#include "kernels/quantize/block.cuh"

constexpr int KEPT = 2; /* blocks of 16: 8192 values a row */

/* The offset of a row's scales, and of its scale i from there. */
__device__ __forceinline__ int64_t row_offset(const quantize_problem &q, uint32_t row) {
    if (q.scale_layout == NVFP4_LINEAR) return row * q.scale_pitch;
    return row / 128 * q.scale_pitch + row % 32 * 16 + row % 128 / 32 * 4;
}
__device__ __forceinline__ int64_t scale_offset(const quantize_problem &q, uint32_t i) {
    return q.scale_layout == NVFP4_LINEAR ? i : i / 4 * (int64_t)512 + i % 4;
}

/* One row of a problem, as its threads see it. */
template <int TYPE> struct norm_row {
    static constexpr uint32_t item = TYPE == NVFP4_FP32 ? 4 : 2;
    const char *x;
    char *residual; /* NULL: none */
    bool aligned;

    /* Block i of the sum of x and the residual; its first load stores the sum. */
    __device__ __forceinline__ raw_block<TYPE> load(uint32_t i, bool first) const {
        raw_block<TYPE> raw;
        const char *from = !first && residual ? residual : x;
        raw.load(from + (int64_t)i * (16 * item), aligned);
        if (!residual || !first) return raw;
        raw_block<TYPE> old;
        old.load(residual + (int64_t)i * (16 * item), aligned);
        float a[16], b[16];
        raw.values(a), old.values(b);
#pragma unroll
        for (int j = 0; j < 16; j++) a[j] = __fadd_rn(a[j], b[j]);
        raw.pack(a);
        raw.store(residual + (int64_t)i * (16 * item), aligned);
        return raw;
    }
};

template <int TYPE> __device__ __forceinline__ float add_squares(float sum, const raw_block<TYPE> &raw) {
    float h[16];
    raw.values(h);
#pragma unroll
    for (int i = 0; i < 16; i++) sum = __fmaf_rn(h[i], h[i], sum);
    return sum;
}

/* The sum over the `threads` threads of a row, in the order of cpu/fused.c; every thread gets it. */
__device__ __forceinline__ float row_sum(float sum, uint32_t threads) {
    __shared__ float shared[QUANTIZE_THREADS];
    shared[threadIdx.x] = sum;
    __syncthreads();
    uint32_t first = threadIdx.x & ~(threads - 1), lane = threadIdx.x % 32;
    float s[8];
#pragma unroll
    for (int w = 0; w < 8; w++) s[w] = w * 32 < threads ? shared[first + w * 32 + lane] : 0.0f;
#pragma unroll
    for (int half = 4; half > 0; half /= 2)
#pragma unroll
        for (int w = 0; w < half; w++) s[w] = __fadd_rn(s[w], s[w + half]);
    sum = s[0];
#pragma unroll
    for (int half = 16; half > 0; half /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, half));
    return sum;
}

template <int TYPE>
__device__ __forceinline__ void quantize_normed(const norm_problem &p, const raw_block<TYPE> &raw, uint32_t i,
                                                float inverse, float g, bool in_range, uint8_t *data, uint8_t *scale) {
    float h[16], w[16];
    raw.values(h);
    if (p.weight_type == NVFP4_FP32) {
        raw_block<NVFP4_FP32> weight;
        const char *from = (const char *)p.weight + (int64_t)i * 64;
        weight.load(from, (uintptr_t)from % 16 == 0);
        weight.values(w);
    } else {
        raw_block<TYPE> weight;
        const char *from = (const char *)p.weight + (int64_t)i * 32;
        weight.load(from, (uintptr_t)from % 16 == 0);
        weight.values(w);
    }
#pragma unroll
    for (int j = 0; j < 16; j++) h[j] = __fmul_rn(h[j], inverse);
    if (p.q.round_steps) round_to_type<TYPE>(h);
#pragma unroll
    for (int j = 0; j < 16; j++) h[j] = __fmul_rn(h[j], w[j]);
    if (p.q.round_steps) round_to_type<TYPE>(h);
    quantize_floats<NVFP4_AMAX6>(h, g, in_range, (uint2 *)data + i, scale + scale_offset(p.q, i));
}

/* One CTA brings the weight, which other layers have displaced from L2, back there while the grid before ends. */
__device__ __forceinline__ void prefetch_weight(const norm_problem &p) {
    constexpr int64_t line = 128;
    if (blockIdx.x + blockIdx.y + blockIdx.z) return;
    const int64_t bytes = p.q.k * type_bytes(p.weight_type);
#pragma unroll 1
    for (int64_t at = threadIdx.x * line; at < bytes; at += QUANTIZE_THREADS * line)
        prefetch((const char *)p.weight + at);
    if (threadIdx.x == 0 && p.q.global_scale) prefetch(p.q.global_scale);
}

template <int TYPE> __device__ __forceinline__ void rms_norm_quantize(const norm_problem &p) {
    const quantize_problem &q = p.q;
    prefetch_weight(p);
    begin_dependent_grid();
    uint32_t threads = 1u << q.tile_log2, rows = (uint32_t)q.rows, columns = (uint32_t)q.k / 16, padded = columns;
    uint32_t padded_rows = rows, height = QUANTIZE_THREADS >> q.tile_log2, lane = threadIdx.x & (threads - 1);
    if (q.scale_layout == NVFP4_128X4) padded_rows = (rows + 127) / 128 * 128, padded = (columns + 3) / 4 * 4;
    tile_coord tile(q.l, (padded_rows + height - 1) / height);
    uint32_t row = tile.y * height + (threadIdx.x >> q.tile_log2);
    bool stored = tile.l < (uint32_t)q.l && row < padded_rows, exists = stored && row < rows;
    uint32_t end = exists ? columns : 0;

    norm_row<TYPE> from;
    from.x = (const char *)q.x + tile.l * q.x_batch + row * q.x_pitch;
    from.residual = p.residual ? (char *)p.residual + tile.l * p.residual_batch + row * p.residual_pitch : nullptr;
    from.aligned = ((uintptr_t)from.x | (uintptr_t)from.residual) % 16 == 0;
    raw_block<TYPE> kept[KEPT];
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < KEPT; n++)
        if (lane + n * threads < end) {
            kept[n] = from.load(lane + n * threads, true);
            sum = add_squares(sum, kept[n]);
        }
#pragma unroll 1
    for (uint32_t i = lane + KEPT * threads; i < end; i += threads) sum = add_squares(sum, from.load(i, true));
    sum = row_sum(sum, threads);
    float mean = __fadd_rn(__fdiv_rn(sum, (float)q.k), p.eps), inverse = __fdiv_rn(1.0f, __fsqrt_rn(mean));

    float g = exists ? global_scale(q, tile.l, row) : 1.0f;
    bool in_range = g >= MIN_SCALE && g <= MAX_SCALE;
    uint8_t *data = q.data + tile.l * q.data_batch + row * q.data_pitch;
    uint8_t *scale = q.scale + tile.l * q.scale_batch + row_offset(q, row);
#pragma unroll
    for (int n = 0; n < KEPT; n++)
        if (lane + n * threads < end)
            quantize_normed(p, kept[n], lane + n * threads, inverse, g, in_range, data, scale);
#pragma unroll 1
    for (uint32_t i = lane + KEPT * threads; i < end; i += threads)
        quantize_normed(p, from.load(i, false), i, inverse, g, in_range, data, scale);
    if (stored && q.scale_layout == NVFP4_128X4)
        for (uint32_t i = end + lane; i < padded; i += threads) scale[scale_offset(q, i)] = 0;
}

/* 4 CTAs an SM: with 3, which spill nothing, 10 % slower. */
#define KERNEL(NAME, TYPE, CTAS)                                                                                       \
    extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS, CTAS)                                               \
        nvfp4_rms_norm_quantize_##NAME(const __grid_constant__ norm_problem p) {                                       \
        rms_norm_quantize<TYPE>(p);                                                                                    \
    }
KERNEL(fp16, NVFP4_FP16, 4)
KERNEL(bf16, NVFP4_BF16, 4)
KERNEL(fp32, NVFP4_FP32, 2)
