/* The end of a tile of the sm80 kernels: the sum over the warps, each of which has a share of K, and the epilogue. */
#ifndef NVFP4_SM80_STORE_TILE_CUH
#define NVFP4_SM80_STORE_TILE_CUH

#include "kernels/common/batch_epilogue.cuh"
#include "kernels/sm80/config.h"

/* The sums of four neighbours of a row over the warps' tiles, fp32 [WARPS][TILE_M][SUM_PITCH], in the order of K. */
template <class C>
__device__ __forceinline__ void add_warps(float (&v)[4], const float *sums, int row, int column, float unit) {
#pragma unroll
    for (int warp = 0; warp < C::WARPS; warp++) {
        const float4 add = *(const float4 *)(sums + (warp * C::TILE_M + row) * C::SUM_PITCH + column);
        v[0] += add.x, v[1] += add.y, v[2] += add.z, v[3] += add.w;
    }
    for (int i = 0; i < 4; i++) v[i] *= unit;
}

/* Adds the warps' tiles, fp32 [WARPS][TILE_M][SUM_PITCH], in the order of K; then the epilogue, or with split_k a store
 * to the workspace. A thread has 4 columns, `column` of the tiles on and n of the output on, of every PASS_ROWS-th row
 * from `first` on. `unit`: the power of two that conversions leave in a product. */
template <class C, int PASS_ROWS>
__device__ __forceinline__ void store_tile(const gemm_problem &p, const sm80_schedule &s, const float *sums,
                                           int64_t split_idx, int64_t l, int64_t m0, int64_t n, int column, int first,
                                           float unit) {
    four_column_epilogue columns(p, n);
    take_batch(columns, p, l);
    float *partials = s.partials + ((split_idx * p.l + l) * p.m + m0) * p.n + n;
    const int rows = (int)min((int64_t)C::TILE_M, p.m - m0);
#pragma unroll 2
    for (int row = first; row < rows; row += PASS_ROWS) {
        float v[4] = {};
        add_warps<C>(v, sums, row, column, unit);
        if (s.split_k > 1)
            store_floats(partials + row * p.n, NVFP4_FP32, v, columns.count);
        else
            columns.store(p, l, m0 + row, v);
    }
}

#endif
