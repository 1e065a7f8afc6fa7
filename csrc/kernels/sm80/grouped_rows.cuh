/* The rows of a tile of a product of groups: where each lies in A, and the factor of its results. */
#ifndef NVFP4_SM80_GROUPED_ROWS_CUH
#define NVFP4_SM80_GROUPED_ROWS_CUH

#include "kernels/common/batch_epilogue.cuh"
#include "kernels/common/group_scales.cuh"
#include "kernels/common/group_tile.cuh"
#include "kernels/sm80/grouped_config.h"
#include "kernels/sm80/store_tile.cuh"

/* In shared memory: addresses, NULL for an index outside of A, whose row is then not loaded; and factors, NaN for it.
 * An NVFP4 A has scales, too: their addresses follow those of the rows, and a row without scales is as one outside. */
template <int TILE_M, bool HAS_SCALES = false> struct tile_rows {
    static constexpr int ADDRESSES = HAS_SCALES ? 2 * TILE_M : TILE_M;

    const uint8_t **addresses, **scales;
    float *factors;

    __device__ __forceinline__ explicit tile_rows(uint8_t *shared)
        : addresses((const uint8_t **)shared), scales(addresses + TILE_M), factors((float *)(shared + ADDRESSES * 8)) {
        static_assert(SM80_GROUPED_ROW_BYTES >= 8 + 4 && SM80_GROUPED_W4A4_ROW_BYTES >= 2 * 8 + 4,
                      "as the host reserves it");
    }

    /* The offset of the first scale of row i in the order of groups, which is `row` of A; -1: there is none. */
    static __device__ __forceinline__ int64_t scale_offset(const grouped_problem &p, const group_tile &tile, int64_t i,
                                                           int64_t row) {
        if (!p.scale_rows) return row * p.g.scale_a_pitch;
        const int64_t at = scale_row_of(p, tile.group, i - tile.begin);
        if (at < 0) return -1;
        return at / 128 * p.g.scale_a_pitch + at % 32 * 16 + at % 128 / 32 * 4;
    }

    /* Called by all threads of the CTA, of which there are TILE_M at least; ends with a barrier. */
    __device__ __forceinline__ void find(const grouped_problem &p, const group_tile &tile) const {
        if ((int)threadIdx.x < min(TILE_M, tile.rows)) {
            const int64_t i = (int64_t)tile.row + threadIdx.x, row = p.rows ? p.rows[i] : i;
            bool exists = row >= 0 && row < p.a_rows;
            if (HAS_SCALES) {
                const int64_t offset = exists ? scale_offset(p, tile, i, row) : -1;
                exists = offset >= 0;
                scales[threadIdx.x] = exists ? p.g.scale_a + offset : NULL;
            }
            addresses[threadIdx.x] = exists ? p.g.a + row * p.g.a_pitch : NULL;
            factors[threadIdx.x] = !exists ? __int_as_float(0x7FFFFFFF) : p.row_scale ? p.row_scale[i] : 1.0f;
        }
        __syncthreads();
    }
};

/* The results of the tile's rows, from the warps' sums. The thread has four columns, `column` of the sums on and n of
 * the part on. `unit`: the power of two that conversions leave in a product. */
template <class C>
__device__ __forceinline__ void store_tile_rows(const grouped_problem &p, const float *sums, const float *factors,
                                                const group_tile &tile, int part, int column, int64_t n, float unit) {
    constexpr int GROUPS = C::TILE_N / 4, PASS_ROWS = C::THREADS / GROUPS;
    const gemm_problem &g = p.g;
    if (n >= g.n) return;
    four_column_epilogue columns(g, n);
    take_batch(columns, g, (int64_t)tile.group * p.parts + part);
    char *out = (char *)g.out + (int64_t)tile.row * g.out_pitch + part * g.out_batch + n * type_bytes(g.out_type);
    const int rows = min(C::TILE_M, tile.rows);
#pragma unroll 2
    for (int row = threadIdx.x / GROUPS; row < rows; row += PASS_ROWS) {
        float v[4] = {};
        add_warps<C>(v, sums, row, column, unit);
        scale_row(columns, g, factors[row], v);
        store_floats(out + row * g.out_pitch, g.out_type, v, columns.count);
    }
}

#endif
