/* Quantization of the rows of a matrix, for kernels.cu and search.cu.
 *
 * A CTA has a tile of QUANTIZE_THREADS scales, a thread a block of 16 values. A CTA continues along K, gridDim.x tiles
 * further each time, and loads a tile while it quantizes the one before.
 *
 *   128x4 layout   half an atom: 64 rows x 4 scales in the order of their bytes. A warp stores 32 neighbours; it loads
 *                  or stores the values of 4 neighbours in 8 rows
 *   <= 32 rows     32 rows x 8 scales of two atoms. Lanes 0 and 4 of a row also store the zeros of rows 32, 64 and 96
 *                  further
 *   linear         2^tile_log2 scales of as many rows as fit
 *
 * The grid has tiles of a row along x, rows of tiles of all batches along y and z. */
#ifndef NVFP4_QUANTIZE_TILES_CUH
#define NVFP4_QUANTIZE_TILES_CUH

#include "kernels/quantize/block.cuh"

/* --- tiles -------------------------------------------------------------------------------------------------------- */

/* A thread's part of a CTA's first tile. Sizes fit 32 bits (api/rules.c). */
struct block_coord {
    uint32_t l, row, column; /* of the tile's first scale in this row */
    uint32_t lane, width;    /* the thread's own from there, and how many the tile has */
    uint8_t *scale;          /* the first */

    __device__ __forceinline__ block_coord(const quantize_problem &p) {
        uint32_t across = threadIdx.x >> p.tile_log2;
        width = 1u << p.tile_log2;
        lane = threadIdx.x & (width - 1);
        column = blockIdx.x << p.tile_log2;
        if (p.scale_layout == NVFP4_LINEAR) {
            uint32_t height = QUANTIZE_THREADS >> p.tile_log2;
            tile_coord tile(p.l, ((uint32_t)p.rows + height - 1) / height);
            l = tile.l, row = tile.y * height + across;
            scale = p.scale + l * p.scale_batch + row * p.scale_pitch + column;
        } else if (width > 4) {
            tile_coord tile(p.l, 1);
            l = tile.l, row = across;
            scale = p.scale + l * p.scale_batch + column / 4 * (int64_t)512 + across * 16;
        } else {
            tile_coord tile(p.l, ((uint32_t)p.rows + 127) / 128 * 2);
            l = tile.l, row = tile.y / 2 * 128 + tile.y % 2 * 16 + across % 4 * 32 + across / 4;
            scale = p.scale + l * p.scale_batch + tile.y / 2 * p.scale_pitch + blockIdx.x * (int64_t)512 +
                    tile.y % 2 * 256 + across * 4;
        }
    }
    __device__ __forceinline__ uint8_t *own_scale(const quantize_problem &p) const {
        return scale + (p.scale_layout == NVFP4_LINEAR ? lane : lane / 4 * 512 + lane % 4);
    }
    __device__ __forceinline__ char *x(const quantize_problem &p, int item) const {
        return (char *)p.x + l * p.x_batch + row * p.x_pitch + (int64_t)column * (16 * item);
    }
    __device__ __forceinline__ uint8_t *data(const quantize_problem &p) const {
        return p.data + l * p.data_batch + row * p.data_pitch + (int64_t)column * 8;
    }
};

/* --- quantize ----------------------------------------------------------------------------------------------------- */

/* The sources of a row's blocks. x is the address of a row's block, `up` the bytes from the gates to the factors, `steps`
 * round_steps. */
template <int TYPE_> struct values_of_x {
    static constexpr int TYPE = TYPE_;
    static constexpr bool GATED = false;
    raw_block<TYPE> raw;

    __device__ __forceinline__ void load(const char *x, int64_t, bool aligned) { raw.load(x, aligned); }
    __device__ __forceinline__ block unpack(bool) const { return raw.unpack(); }
    template <int BLOCK_SCALE>
    static __device__ __forceinline__ void quantize_any_at(const char *x, int64_t, bool, float g, uint2 *data,
                                                           uint8_t *scale, const float *importance) {
        quantize_any<TYPE, BLOCK_SCALE>(x, g, data, scale, importance);
    }
};

__device__ __forceinline__ const float *at_block(const float *importance, uint32_t block) {
    return importance ? importance + (uint64_t)block * 16 : nullptr;
}

/* Stores zeros for rows 32, 64 and 96 further, in the 4 columns that begin with the scale's, and again every `step`
 * columns up to `end`. */
__device__ __forceinline__ void store_padding(uint8_t *scale, uint32_t end, uint32_t step) {
#pragma unroll 1
    for (uint32_t i = 0; i < end; i += step)
#pragma unroll
        for (int row = 1; row < 4; row++) ((uint32_t *)(scale + (uint64_t)i * 128))[row] = 0;
}

template <class SOURCE, int BLOCK_SCALE> __device__ __forceinline__ void quantize(const quantize_problem &p) {
    begin_dependent_grid();
    if (SOURCE::GATED && p.scale_rows && threadIdx.x + blockIdx.x + blockIdx.y + blockIdx.z == 0) *p.scale_rows = 0;
    constexpr uint32_t item = SOURCE::TYPE == NVFP4_FP32 ? 4 : 2;
    block_coord at(p);
    if (at.l >= (uint32_t)p.l) return;
    const int64_t up = p.up_at;
    const bool steps = SOURCE::GATED && p.round_steps;
    uint32_t columns = (uint32_t)p.k / 16, first = at.column + at.lane, pitch = 1;
    uint32_t end = first < columns && at.row < (uint32_t)p.rows ? columns - first : 0, stored = end;
    uint32_t step = gridDim.x << p.tile_log2; /* the thread's columns are first, first + step, ... */
    uint8_t *scale = at.own_scale(p);
    if (p.scale_layout == NVFP4_128X4) { /* the scales from `end` on are padding */
        pitch = 128;
        stored = max((int)((columns + 3) / 4 * 4 - first), 0);
        if (at.width > 4 && at.lane % 4 == 0) store_padding(scale, stored, step);
    }
    const char *x = at.x(p, item) + at.lane * (16 * item);
    uint2 *data = (uint2 *)at.data(p) + at.lane;
    float g = at.row < (uint32_t)p.rows ? global_scale(p, at.l, at.row) : 1.0f;
    bool in_range = g >= MIN_SCALE && g <= MAX_SCALE;
    const float *importance =
        BLOCK_SCALE == NVFP4_SEARCH && p.importance ? p.importance + (uint64_t)first * 16 : nullptr;
    if ((uintptr_t)x % 16 == 0 && in_range) {
        reciprocal over_g = reciprocal_of(g);
        SOURCE next;
        if (end) next.load(x, up, true);
#pragma unroll 1
        for (uint32_t i = 0; i < stored; i += step) {
            SOURCE raw = next;
            if (i + step < end) next.load(x + (uint64_t)(i + step) * (16 * item), up, true);
            if (i < end)
                quantize_block<BLOCK_SCALE>(raw.unpack(steps), g, over_g, data + i, scale + (uint64_t)i * pitch,
                                            at_block(importance, i));
            else
                scale[(uint64_t)i * pitch] = 0;
        }
        return;
    }
#pragma unroll 1
    for (uint32_t i = 0; i < stored; i += step) {
        const char *from = x + (uint64_t)i * (16 * item);
        uint8_t *code = scale + (uint64_t)i * pitch;
        if (i >= end) {
            *code = 0;
        } else if (in_range) {
            SOURCE raw;
            raw.load(from, up, false);
            quantize_block<BLOCK_SCALE>(raw.unpack(steps), g, reciprocal_of(g), data + i, code,
                                        at_block(importance, i));
        } else {
            SOURCE::template quantize_any_at<BLOCK_SCALE>(from, up, steps, g, data + i, code, at_block(importance, i));
        }
    }
}

#define QUANTIZE_KERNEL(NAME, CTAS, SOURCE, BLOCK_SCALE)                                                               \
    extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS, CTAS)                                               \
        NAME(const __grid_constant__ quantize_problem p) {                                                             \
        quantize<SOURCE, BLOCK_SCALE>(p);                                                                              \
    }

#endif
