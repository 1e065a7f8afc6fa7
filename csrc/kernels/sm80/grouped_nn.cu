/* Products A . B of groups of rows of fp16 or bf16 A, each group by an NVFP4 matrix of its own: the gradient of the
 * experts' input, on every GPU since sm_80. N is the columns of the result and K the sum, as in nn.cu.
 *
 * A CTA finds its rows from the ends of all groups (common/group_tile.cuh), then multiplies them as nn.cu does.
 *
 *   find the group and the rows | addresses and factors of the rows | stages along K | epilogue
 *
 * Shared memory: the stages, in their place at the end the sums; behind them [TILE_M] addresses of rows and [TILE_M]
 * factors, as in grouped.cu. */
#include "kernels/common/group_tile.cuh"
#include "kernels/sm80/grouped_rows.cuh"
#include "kernels/sm80/nn_tile.cuh"

/* A thread's pieces of A, in rows that lie anywhere; NULL is the address of a row outside of A. */
template <class C> struct rows_anywhere {
    static constexpr int A_ROWS = C::THREADS / 8;

    const uint8_t *const *addresses; /* from the thread's first row on */

    __device__ __forceinline__ bool exists(int pass) const { return addresses[pass * A_ROWS] != NULL; }
    __device__ __forceinline__ const uint8_t *at(int pass) const {
        return addresses[pass * A_ROWS] + threadIdx.x % 8 * 16;
    }
};

/* Stores results as the epilogue of nn.cu does; m is the first row of the warp in the tile. */
template <class C>
__device__ __forceinline__ void store_rows(const grouped_problem &p, const group_tile &tile, const float *factors,
                                           int m, int64_t n0, float (*shared_sums)[C::SUMS_PITCH],
                                           const float (&sums)[4][C::MMAS_M][4]) {
    const gemm_problem &g = p.g;
    const int lane = threadIdx.x % 32, column = lane % 16 * 4, rows = min(C::TILE_M, tile.rows);
    const int64_t n = n0 + column;
    four_column_epilogue columns(g, n);
    take_batch(columns, g, tile.group);
    char *out = (char *)g.out + (int64_t)tile.row * g.out_pitch + n * type_bytes(g.out_type);
#pragma unroll 1
    for (int j = 0; j < C::MMAS_M && m + j * 8 < rows; j++) {
        share_sums<C>(j, shared_sums, sums);
#pragma unroll 1
        for (int row = lane / 16; row < 8 && n < g.n; row += 2) {
            const int at = m + j * 8 + row;
            if (at >= rows) break;
            const float4 from = *(const float4 *)&shared_sums[row][column];
            float v[4] = {from.x, from.y, from.z, from.w};
            for (int i = 0; i < 4; i++) v[i] *= w4a16<C::TYPE>::UNIT;
            scale_row(columns, g, factors[at], v);
            store_floats(out + at * g.out_pitch, g.out_type, v, columns.count);
        }
        __syncwarp();
    }
}

template <class C> __device__ __forceinline__ void multiply(const grouped_problem &p, const sm80_grouped_schedule &s) {
    extern __shared__ __align__(16) uint8_t shared[];
    const gemm_problem &g = p.g;
    const int warp = threadIdx.x / 32;
    const int64_t n0 = (int64_t)(blockIdx.x / (uint32_t)s.tiles_m) * C::TILE_N;
    group_tile_scratch<C::THREADS> &scratch = *(group_tile_scratch<C::THREADS> *)shared; /* until the stages fill */
    const group_tile tile =
        find_group_tile<C::THREADS>(p.ends, p.groups, (int)g.m, C::TILE_M, blockIdx.x % (uint32_t)s.tiles_m, scratch);
    if (tile.rows == 0) return;
    const tile_rows<C::TILE_M> rows(shared + C::STAGES * C::STAGE_BYTES);
    rows.find(p, tile);

    const rows_anywhere<C> a = {rows.addresses + threadIdx.x / 8};
    const loader<C, rows_anywhere<C>> load(g, a, tile.rows, tile.group, n0);
    float sums[4][C::MMAS_M][4] = {};
    multiply_stages<C>(load, shared, 0, (int)((g.k + C::STAGE_K - 1) / C::STAGE_K), g.k, sums);
    __syncthreads(); /* the last stage has been read: sums replace it */
    store_rows<C>(p, tile, rows.factors, warp / C::WARPS_N * C::MMAS_M * 8, n0 + warp % C::WARPS_N * SM80_NN_WARP_N,
                  (float (*)[C::SUMS_PITCH])shared + warp * 8, sums);
}

#define KERNEL(id, warps_n, mmas_m, stages, ctas_per_sm, bf16)                                                         \
    extern "C" __global__ void __launch_bounds__(SM80_NN_THREADS(1, warps_n), ctas_per_sm)                             \
        nvfp4_##id(const __grid_constant__ grouped_problem p, const __grid_constant__ sm80_grouped_schedule s) {       \
        multiply<config<(bf16) ? NVFP4_BF16 : NVFP4_FP16, 1, warps_n, mmas_m, stages>>(p, s);                          \
    }
SM80_GROUPED_NN_CONFIGS(KERNEL)
