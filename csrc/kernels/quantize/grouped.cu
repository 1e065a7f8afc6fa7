/* Quantization of rows in the order of their groups, of x or of gated activations, bit for bit as cpu/quantize.c.
 *
 * Each group has whole 128-row blocks, numbered in the order of groups: in the 128x4 layout those of its scales. A grid
 * has gridDim.x CTAs for each block that any ends can lead to, along y and z. They find the block's group
 * (common/group_tile.cuh), and their warps take 32 scales of a row at a time, a lane a block of 16 values. Without ends
 * all rows of a batch are one group. CTA 0 also stores where the scales of each group begin. */
#include "common/gating.h"
#include "common/group_blocks.h"
#include "kernels/common/group_tile.cuh"
#include "kernels/quantize/block.cuh"

constexpr int WARPS = QUANTIZE_THREADS / 32;

/* A 128-row block of a group: its first row in the order of groups, and the first scale of that row. */
struct row_block {
    int64_t batch, row;
    int group;
    int rows; /* 0: there is no such block */
    uint8_t *scale;

    /* Called by all threads of the CTA. */
    __device__ __forceinline__ row_block(const grouped_quantize_problem &p, int64_t number) {
        __shared__ group_tile_scratch<QUANTIZE_THREADS> scratch;
        const quantize_problem &q = p.q;
        batch = 0;
        if (p.ends) {
            const group_tile tile =
                find_group_tile<QUANTIZE_THREADS>(p.ends, p.groups, (int)q.rows, SCALE_BLOCK_ROWS, number, scratch);
            group = tile.group, row = tile.row, rows = min(tile.rows, SCALE_BLOCK_ROWS);
        } else {
            const int64_t blocks = (q.rows + SCALE_BLOCK_ROWS - 1) / SCALE_BLOCK_ROWS;
            if (q.l > 1) batch = number / max(blocks, (int64_t)1), number -= batch * blocks;
            group = 0, row = number * SCALE_BLOCK_ROWS;
            rows = batch < q.l ? (int)max(min(q.rows - row, (int64_t)SCALE_BLOCK_ROWS), (int64_t)0) : 0;
        }
        scale = q.scale + batch * q.scale_batch + (q.scale_layout == NVFP4_LINEAR ? row : number) * q.scale_pitch;
    }
    /* The scale of a row of the block. */
    __device__ __forceinline__ uint8_t *scale_at(const quantize_problem &q, uint32_t r, uint32_t column) const {
        if (q.scale_layout == NVFP4_LINEAR) return scale + r * q.scale_pitch + column;
        return scale + column / 4 * (int64_t)512 + r % 32 * 16 + r / 32 * 4 + column % 4;
    }
};

/* Stores the row of scales at which each group begins. Called by all threads of one CTA. */
__device__ __forceinline__ void store_scale_rows(const grouped_quantize_problem &p) {
    __shared__ int greatest[WARPS], counts[WARPS];
    if (!p.ends) {
        if (threadIdx.x == 0) *p.q.scale_rows = 0;
        return;
    }
    const int each = (p.groups + QUANTIZE_THREADS - 1) / QUANTIZE_THREADS, m = (int)p.q.rows;
    const int first = threadIdx.x * each, last = min(first + each, p.groups);
    const int unit = p.q.scale_layout == NVFP4_LINEAR ? 1 : SCALE_BLOCK_ROWS;
    int most = 0, units = 0;
    for (int e = first; e < last; e++) most = max(most, min(p.ends[e], m));
    const int begin = scan_before<greater_of, QUANTIZE_THREADS>(most, greatest);
    for (int e = first, at = begin; e < last; e++) {
        const int end = max(at, min(p.ends[e], m));
        units += tiles_of_rows(at, end, unit);
        at = end;
    }
    int before = scan_before<sum_of, QUANTIZE_THREADS>(units, counts);
    for (int e = first, at = begin; e < last; e++) {
        const int end = max(at, min(p.ends[e], m));
        p.q.scale_rows[e] = before * unit;
        before += tiles_of_rows(at, end, unit);
        at = end;
    }
}

/* Zeros for the rows that a block lacks: 16 bytes of an atom are rows r, r + 32, r + 64 and r + 96. */
__device__ __forceinline__ void pad_rows(const quantize_problem &q, const row_block &block) {
    const uint32_t chunks = ((uint32_t)q.k / 16 + 3) / 4 * 32, rows = block.rows;
    for (uint32_t i = blockIdx.x * QUANTIZE_THREADS + threadIdx.x; i < chunks; i += gridDim.x * QUANTIZE_THREADS) {
        uint32_t *words = (uint32_t *)(block.scale + (int64_t)i * 16), r = i % 32;
        if (r >= rows)
            *(uint4 *)words = make_uint4(0, 0, 0, 0);
        else
#pragma unroll
            for (int j = 1; j < 4; j++)
                if (r + 32 * j >= rows) words[j] = 0;
    }
}

template <int TYPE> __device__ __forceinline__ void load_typed(float (&v)[16], const char *from) {
    raw_block<TYPE> raw;
    raw.load(from, (uintptr_t)from % 16 == 0);
    raw.values(v);
}

/* 16 values from column * 16 of a row on. */
__device__ __forceinline__ void load_block(float (&v)[16], const char *row, uint32_t column, int32_t type) {
    if (type == NVFP4_FP32)
        load_typed<NVFP4_FP32>(v, row + (int64_t)column * 64);
    else if (type == NVFP4_BF16)
        load_typed<NVFP4_BF16>(v, row + (int64_t)column * 32);
    else
        load_typed<NVFP4_FP16>(v, row + (int64_t)column * 32);
}

__device__ __forceinline__ void round_to(float (&v)[16], int32_t type) {
    if (type == NVFP4_BF16)
        round_to_type<NVFP4_BF16>(v);
    else if (type == NVFP4_FP16)
        round_to_type<NVFP4_FP16>(v);
}

/* The activation of v, times up where there is one; each is rounded to the type of x. */
template <int ACTIVATION>
__device__ __forceinline__ void gate_in_steps(const grouped_quantize_problem &p, float (&v)[16], const float (&up)[16],
                                              gating numbers) {
    const gating alone = gating_of(p.limit, p.alpha, 0);
#pragma unroll
    for (int j = 0; j < 16; j++) v[j] = gated(ACTIVATION, v[j], 1.0f, alone);
    round_to(v, p.q.x_type);
    if (!p.up) return;
#pragma unroll
    for (int j = 0; j < 16; j++) v[j] = __fmul_rn(v[j], factor_of_up(ACTIVATION, up[j], numbers));
    round_to(v, p.q.x_type);
}

template <int ACTIVATION, int BLOCK_SCALE>
__device__ __forceinline__ void quantize_rows(const grouped_quantize_problem &p) {
    const quantize_problem &q = p.q;
    begin_dependent_grid();
    const int64_t number = (int64_t)blockIdx.z * gridDim.y + blockIdx.y;
    if (p.q.scale_rows && number == 0 && blockIdx.x == 0) store_scale_rows(p);
    const row_block block(p, number);
    if (block.rows == 0) return;
    const bool swizzled = q.scale_layout == NVFP4_128X4;
    if (swizzled && block.rows < SCALE_BLOCK_ROWS) pad_rows(q, block);

    const uint32_t columns = (uint32_t)q.k / 16, padded = swizzled ? (columns + 3) / 4 * 4 : columns;
    const uint32_t across = (padded + 31) / 32, items = block.rows * across, warp = threadIdx.x / 32;
    const gating numbers = gating_of(p.limit, p.alpha, p.up != nullptr);
    float g = q.global_value;
    if (q.global_scale && q.global_by != GLOBAL_BY_ROW)
        g = q.global_scale[q.global_by == GLOBAL_BY_GROUP ? block.group : 0];
#pragma unroll 1
    for (uint32_t i = blockIdx.x * WARPS + warp; i < items; i += gridDim.x * WARPS) {
        const uint32_t r = i / across, column = (i - r * across) * 32 + threadIdx.x % 32;
        if (column >= padded) continue;
        uint8_t *scale = block.scale_at(q, r, column);
        const int64_t row = block.row + r, from = p.rows ? p.rows[row] : row;
        uint2 *data = (uint2 *)(q.data + block.batch * q.data_batch + row * q.data_pitch) + column;
        if (column >= columns) {
            *scale = 0;
        } else if (from < 0 || from >= p.x_rows) {
            *scale = 0x7F;
            *data = make_uint2(0, 0);
        } else {
            float v[16];
            load_block(v, (const char *)q.x + block.batch * q.x_batch + from * q.x_pitch, column, q.x_type);
            if (ACTIVATION != NO_ACTIVATION) {
                float up[16];
                if (p.up)
                    load_block(up, (const char *)p.up + block.batch * p.up_batch + row * p.up_pitch, column, q.x_type);
                if (p.q.round_steps)
                    gate_in_steps<ACTIVATION>(p, v, up, numbers);
                else
#pragma unroll
                    for (int j = 0; j < 16; j++) v[j] = gated(ACTIVATION, v[j], p.up ? up[j] : 1.0f, numbers);
            }
            if (q.global_scale && q.global_by == GLOBAL_BY_ROW) g = q.global_scale[block.batch * q.rows + from];
            quantize_floats<BLOCK_SCALE>(v, g, g >= MIN_SCALE && g <= MAX_SCALE, data, scale);
        }
    }
}

#define KERNEL(NAME, CTAS, ACTIVATION, BLOCK_SCALE)                                                                    \
    extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS, CTAS)                                               \
        nvfp4_##NAME(const __grid_constant__ grouped_quantize_problem p) {                                             \
        quantize_rows<ACTIVATION, BLOCK_SCALE>(p);                                                                     \
    }
KERNEL(grouped_quantize, 4, NO_ACTIVATION, NVFP4_AMAX6)
KERNEL(grouped_four_over_six, 3, NO_ACTIVATION, NVFP4_FOUR_OVER_SIX)
KERNEL(gated_quantize_silu, 3, NVFP4_SILU, NVFP4_AMAX6)
KERNEL(gated_quantize_gelu_tanh, 3, NVFP4_GELU_TANH, NVFP4_AMAX6)
KERNEL(gated_quantize_relu2, 3, NVFP4_RELU2, NVFP4_AMAX6)
KERNEL(gated_quantize_swiglu, 3, NVFP4_SWIGLU, NVFP4_AMAX6)
