/* C = epilogue(A . B) of fp16 or bf16 A [M, K] and NVFP4 B, whose rows k hold scales along N, with mma.sync m16n8k16:
 * the gradient of a linear layer's input, on every GPU since sm_80. Here N is the columns of C and K the sum, which the
 * caller names K and N.
 *
 *   stage s    wait for its copies | CTA barrier | issue the copies of stage s + STAGES - 1 | dequantize and mma
 *
 * Stages are nn_tile.cuh's. CTAs that split K add through the workspace (sm80/split_reduce.cu), in a fixed order. */
#include "kernels/common/dependent.cuh"
#include "kernels/sm80/nn_tile.cuh"
#include "kernels/sm80/store_tile.cuh"

/* Sums pass through shared memory, 8 rows of a warp at a time, and one loop stores them. Unrolled over the lane's 16
 * rows of 8 columns, which are in registers, the epilogue would be three quarters of the kernel's code. A lane stores 4
 * neighbours of every second row. */
template <class C>
__device__ __forceinline__ void epilogue(const gemm_problem &p, const sm80_schedule &s, int64_t split_idx, int64_t l,
                                         int64_t m0, int64_t n0, float (*rows)[C::SUMS_PITCH],
                                         const float (&sums)[4][C::MMAS_M][4]) {
    const int lane = threadIdx.x % 32, column = lane % 16 * 4;
    const int64_t n = n0 + column;
    four_column_epilogue columns(p, n);
    take_batch(columns, p, l);
    float *partials = s.partials + ((split_idx * p.l + l) * p.m) * p.n + n;
#pragma unroll 1
    for (int j = 0; j < C::MMAS_M && m0 + j * 8 < p.m; j++) {
        share_sums<C>(j, rows, sums);
#pragma unroll 1
        for (int row = lane / 16; row < 8 && n < p.n; row += 2) {
            const int64_t m = m0 + j * 8 + row;
            if (m >= p.m) break;
            const float4 from = *(const float4 *)&rows[row][column];
            const float v[4] = {from.x * w4a16<C::TYPE>::UNIT, from.y * w4a16<C::TYPE>::UNIT,
                                from.z * w4a16<C::TYPE>::UNIT, from.w * w4a16<C::TYPE>::UNIT};
            if (s.split_k > 1)
                store_floats(partials + m * p.n, NVFP4_FP32, v, 4);
            else
                columns.store(p, l, m, v);
        }
        __syncwarp();
    }
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm80_schedule &s) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int warp = threadIdx.x / 32;
    const int warp_m = warp / C::WARPS_N, warp_n = warp % C::WARPS_N;

    uint32_t index = blockIdx.x;
    const int64_t m0 = (int64_t)(index % s.tiles_m) * C::TILE_M;
    index /= s.tiles_m;
    const int64_t n0 = (int64_t)(index % s.tiles_n) * C::TILE_N;
    index /= s.tiles_n;
    const uint32_t l = index % (uint32_t)p.l, split_idx = index / (uint32_t)p.l;
    const int64_t first = split_idx * s.k_tiles_per_split;
    const int tiles = (int)min(s.k_tiles_per_split, (p.k + C::STAGE_K - 1) / C::STAGE_K - first);

    const loader<C, rows_at_pitch<C>> load(p, rows_at_pitch<C>(p, l, m0), p.m - m0, l, n0);
    float sums[4][C::MMAS_M][4] = {};
    multiply_stages<C>(load, shared, first, tiles, p.k, sums);
    __syncthreads(); /* the last stage has been read: sums replace it */
    epilogue<C>(p, s, split_idx, l, m0 + warp_m * C::MMAS_M * 8, n0 + warp_n * SM80_NN_WARP_N,
                (float (*)[C::SUMS_PITCH])shared + warp * 8, sums);
}

#define KERNEL(id, warps_m, warps_n, mmas_m, stages, ctas_per_sm, bf16)                                                \
    extern "C" __global__ void __launch_bounds__(SM80_NN_THREADS(warps_m, warps_n), ctas_per_sm)                       \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm80_schedule s) {                  \
        begin_dependent_grid();                                                                                        \
        gemm<config<(bf16) ? NVFP4_BF16 : NVFP4_FP16, warps_m, warps_n, mmas_m, stages>>(p, s);                        \
    }
SM80_NN_CONFIGS(KERNEL)
