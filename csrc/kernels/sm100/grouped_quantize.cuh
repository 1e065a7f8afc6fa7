/* Results of sm100/grouped.cu as NVFP4, with the bytes of gated_quantize (kernels/quantize/grouped.cu): values and
 * scales of activations, in blocks of 16 columns, the scales of each group in 128-row blocks of their own. */
#ifndef NVFP4_SM100_GROUPED_QUANTIZE_CUH
#define NVFP4_SM100_GROUPED_QUANTIZE_CUH

#include "common/group_blocks.h"
#include "kernels/quantize/block.cuh"
#include "kernels/sm100/grouped_config.h"
#include "kernels/sm100/groups.cuh"

/* Transposes 16 x 16 values of each half of a warp: from row j of lane i to row i of lane j. All lanes of the warp. */
__device__ __forceinline__ void transpose_16(float (&v)[16]) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            if (i & step) continue;
            const float sent = upper ? v[i] : v[i | step], got = __shfl_xor_sync(0xffffffff, sent, step);
            if (upper)
                v[i] = got;
            else
                v[i | step] = got;
        }
    }
}

__device__ __forceinline__ int blocks_of_rows(int rows) {
    return (rows + SCALE_BLOCK_ROWS - 1) / SCALE_BLOCK_ROWS;
}

/* How many blocks of scales come before a group's, for tiles in the order of groups. The calls of a warp are converged.
 */
struct blocks_before {
    const groups_of_call &groups;
    int group = 0, blocks = 0;

    __device__ __forceinline__ explicit blocks_before(const groups_of_call &groups) : groups(groups) {}
    __device__ __forceinline__ int of(int next) {
        int more = 0;
        for (int e = group + (int)threadIdx.x % 32; e < next; e += 32) more += blocks_of_rows(groups.rows_of(e));
        group = next;
        return blocks += __reduce_add_sync(0xffffffff, more);
    }
};

/* Stores the row of scales at which each group begins. One warp. */
__device__ __forceinline__ void store_scale_rows(const groups_of_call &groups, int count, int32_t *scale_rows) {
    int before = 0;
    for (int first = 0; first < count; first += 32) {
        const int e = first + (int)threadIdx.x % 32;
        const int own = e < count ? blocks_of_rows(groups.rows_of(e)) : 0;
        int through = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xffffffff, through, step);
            if ((int)threadIdx.x % 32 >= step) through += other;
        }
        if (e < count) scale_rows[e] = (before + through - own) * SCALE_BLOCK_ROWS;
        before += __shfl_sync(0xffffffff, through, 31);
    }
}

/* A block by the definition, with any global scale, as quantize_any of block.cuh, which keeps it in local memory. Here
 * the values move up, so that one place in registers serves all. */
__device__ __forceinline__ void quantize_by_definition(float (&v)[16], float g, uint2 *data, uint8_t *scale) {
    float amax = 0.0f;
    bool nan = false;
#pragma unroll
    for (int i = 0; i < 16; i++) nan |= isnan(v[i]), amax = fmaxf(amax, fabsf(v[i]));
    const uint32_t code = plain_scale(nan, amax, 6.0f, g);
    const float unit = __fmul_rn(decode_e4m3(code), g);
    const bool empty = code == 0 || code == 0x7F;
    uint64_t codes = 0;
#pragma unroll 1
    for (int i = 0; i < 16 && !empty; i++) {
        codes |= (uint64_t)encode_e2m1(__fdiv_rn(v[0], unit)) << 4 * i;
#pragma unroll
        for (int j = 1; j < 16; j++) v[j - 1] = v[j];
    }
    *scale = (uint8_t)code;
    *data = make_uint2((uint32_t)codes, (uint32_t)(codes >> 32));
}

/* The results of a tile in one block of scales. Each half of a warp has a block of 16 columns. */
struct quantized_tile {
    const sm100_quantized &q;
    const grouped_tile &tile;
    const int64_t &n; /* columns of the result */
    uint32_t column;  /* the block of 16 columns that the lane has */
    int block;        /* the 128-row block of scales that the tile is in */
    float g;

    /* column: the lane's. before: how many blocks of scales come before the group's. */
    __device__ __forceinline__ quantized_tile(const sm100_quantized &q, const grouped_tile &tile, const int64_t &n,
                                              int64_t column, int before)
        : q(q), tile(tile), n(n), column((uint32_t)(column / 16)), block(before + tile.row_in_group / SCALE_BLOCK_ROWS),
          g(q.global_value) {
        if (q.global_scale && q.global_by != GLOBAL_BY_ROW)
            g = q.global_scale[q.global_by == GLOBAL_BY_GROUP ? tile.group : 0];
    }

    __device__ __forceinline__ uint32_t columns() const { return (uint32_t)(n / 16); }
    __device__ __forceinline__ uint32_t padded() const { return (columns() + 3) / 4 * 4; }
    __device__ __forceinline__ uint8_t *scale_at(uint32_t row, uint32_t at) const {
        return q.scale + block * q.scale_pitch + at / 4 * (int64_t)SM100_ATOM_BYTES + row % 32 * 16 + row / 32 * 4 +
               at % 4;
    }

    /* v: rows first, first + 1, ... of the lane's column, of which `count` exist. All lanes of a warp; first and count
     * are those of a half. */
    __device__ __forceinline__ void store(float (&v)[16], int first, int count) const {
        transpose_16(v);
        const int own = threadIdx.x % 16;
        const int64_t row = (int64_t)tile.row + first + own;
        if (own >= count || column >= padded()) return;
        uint8_t *to = scale_at((uint32_t)(tile.row_in_group + first + own) % SCALE_BLOCK_ROWS, column);
        if (column >= columns()) {
            *to = 0;
            return;
        }
        const float by = q.global_scale && q.global_by == GLOBAL_BY_ROW ? q.global_scale[row] : g;
        uint2 *data = (uint2 *)(q.data + row * q.data_pitch) + column;
        if (by >= MIN_SCALE && by <= MAX_SCALE)
            quantize_block<NVFP4_AMAX6>(block_of(v), by, reciprocal_of(by), data, to);
        else
            quantize_by_definition(v, by, data, to);
    }

    /* Zeros for the rows that the block lacks behind the group's last one, which the tile has, in 128 columns from
     * `from` on. Four warps; a lane has a row. */
    __device__ __forceinline__ void pad_rows(int64_t from) const {
        const uint32_t end = (uint32_t)(tile.row_in_group + tile.rows - 1) % SCALE_BLOCK_ROWS + 1;
        const uint32_t first = (uint32_t)(from / 16), row = threadIdx.x % SCALE_BLOCK_ROWS;
        if (row < end) return;
        for (uint32_t at = first; at < min(first + SM100_CTA_ROWS / 16, padded()); at += 4)
            *(uint32_t *)scale_at(row, at) = 0;
    }
};

#endif
