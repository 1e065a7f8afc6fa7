/* C = epilogue(A . B^T) of NVFP4 operands with mma.sync m16n8k16 in fp16: every GPU since sm_80. The tile of a CTA, its
 * stages and its tails are w4a4_tile.cuh's.
 *
 * At the end the warps add their accumulators in the memory of the stages, and CTAs that split K add through the
 * workspace (sm80/split_reduce.cu), both in a fixed order.
 *
 * Shared memory of a CTA in KiB: 8x32 94, 16x32 84, 16x56 83, 32x64 55, 64x56 69, 64x64 68 (SM80_SHARED_BYTES); every
 * GPU since sm_80 has 99. */
#include "kernels/sm80/store_tile.cuh"
#include "kernels/sm80/w4a4_tile.cuh"

template <class C>
__device__ __forceinline__ void epilogue(const gemm_problem &p, const sm80_schedule &s, const float *sums,
                                         int64_t split_idx, int64_t l, int64_t m0, int64_t n0) {
    constexpr int GROUPS = C::TILE_N / 4, PASS_ROWS = C::THREADS / GROUPS;
    int column = threadIdx.x % GROUPS * 4, first = threadIdx.x / GROUPS;
    if (first >= PASS_ROWS || n0 + column >= p.n) return;
    store_tile<C, PASS_ROWS>(p, s, sums, split_idx, l, m0, n0 + column, column, first, DECODED_PRODUCT_UNIT);
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm80_schedule &s) {
    extern __shared__ __align__(16) uint8_t shared[];
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint8_t *stages = shared + warp * C::WARP_STAGES_BYTES;

    uint32_t index = blockIdx.x;
    int64_t m0 = (int64_t)(index % s.tiles_m) * C::TILE_M;
    index /= s.tiles_m;
    int64_t n0 = (int64_t)(index % s.tiles_n) * C::TILE_N;
    index /= s.tiles_n;
    uint32_t l = index % (uint32_t)p.l, split_idx = index / (uint32_t)p.l;
    int64_t first = split_idx * s.k_tiles_per_split;
    int tiles = (int)min(s.k_tiles_per_split, (p.k + C::TILE_K - 1) / C::TILE_K - first);

    operand a = operand_a(p, l, m0, C::TILE_M), b = operand_b(p, l, n0, C::TILE_N);
    const operand &mma_a = C::SWAP_AB ? b : a, &mma_b = C::SWAP_AB ? a : b;
    bool linear = p.scale_layout == NVFP4_LINEAR;
    uint32_t stages_address = shared_address(stages);
    int64_t k = first * C::TILE_K + warp * C::STAGE_K;
    loader<C, C::MMA_TILE_M> load_a(mma_a, k, linear, stages_address, stages_address + C::MMA_SFA_OFFSET);
    loader<C, C::MMA_TILE_N> load_b(mma_b, k, linear, stages_address + C::MMA_B_OFFSET,
                                    stages_address + C::MMA_SFB_OFFSET);
    bool words =
        !linear || ((uintptr_t)mma_a.scale | mma_a.scale_pitch | (uintptr_t)mma_b.scale | mma_b.scale_pitch) % 4 == 0;
    int full_tiles = p.aligned16 && words ? (int)min((int64_t)tiles, p.k / C::TILE_K - first) : 0;
    pin(full_tiles);

    float sums[C::MMAS_M][C::MMAS_N][4] = {};
    multiply_stages<C>(load_a, load_b, stages, first, tiles, full_tiles, p.k, sums);

    /* The stages' memory now holds the accumulators, a tile for each warp. */
    float *tiles_of_sums = (float *)shared;
    __syncthreads();
    store_sums<C>(tiles_of_sums + warp * C::TILE_M * C::SUM_PITCH, g, 2 * t, sums);
    __syncthreads();
    epilogue<C>(p, s, tiles_of_sums, split_idx, l, m0, n0);
}

#define X(id, tile_m, tile_n, tile_k, stages, warps, swap_ab, ctas_per_sm)                                             \
    extern "C" __global__ void __launch_bounds__(32 * (warps), ctas_per_sm)                                            \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm80_schedule s) {                  \
        gemm<config<tile_m, tile_n, tile_k, stages, warps, swap_ab, ctas_per_sm>>(p, s);                               \
    }
SM80_GEMM_CONFIGS(X)
#undef X
