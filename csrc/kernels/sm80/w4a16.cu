/* C = epilogue(A . B^T) of fp16 or bf16 A and NVFP4 B (W4A16) with mma.sync m16n8k16: every GPU since sm_80.
 *
 * As sm80/gemm.cu: the warps of a CTA share an output tile and split K (w4a16_tile.cuh).
 *
 *   stage s    wait for its copies | warp barrier | issue the copies of stage s + STAGES - 1 | dequantize and mma
 *
 * At the end the warps add their accumulators in the memory of the stages, and CTAs that split K add through the
 * workspace (sm80/split_reduce.cu), both in a fixed order. */
#include "kernels/common/dependent.cuh"
#include "kernels/sm80/store_tile.cuh"
#include "kernels/sm80/w4a16_tile.cuh"

/* The copies of one lane of rows of A, in 16-byte pieces that are neighbours along a row. */
template <class C> struct a_loader {
    static constexpr int PIECES = 8 * C::CHUNKS, PASS_ROWS = 32 / PIECES;

    const uint8_t *values;
    int64_t pass_pitch;
    int rows; /* that exist from the lane's first on */
    uint32_t to;

    __device__ __forceinline__ a_loader(const gemm_problem &p, int64_t l, int64_t m0, int64_t k, uint32_t stages) {
        const int lane = threadIdx.x % 32, piece = lane % PIECES, row = lane / PIECES;
        values = p.a + l * p.a_batch + (m0 + row) * p.a_pitch + k * 2 + piece * 16;
        pass_pitch = PASS_ROWS * p.a_pitch;
        rows = (int)min((int64_t)C::TILE_M, p.m - m0) - row;
        to = stages + C::A_OFFSET + piece / 8 * C::A_BYTES + row * 128 + (piece % 8 ^ row % 2) * 16;
        pin(values), pin(pass_pitch), pin(rows), pin(to);
    }

    /* Issues the copies of a stage; with RAGGED, what exists of k_left values along K, and zeros beyond. */
    template <bool RAGGED> __device__ __forceinline__ void start(uint32_t stage, int64_t k_left) {
        const bool exists = !RAGGED || threadIdx.x % PIECES * 8 < k_left;
#pragma unroll
        for (int i = 0; i * PASS_ROWS < C::TILE_M; i++) {
            const uint32_t piece = stage + to + i * PASS_ROWS * 128;
            if (i * PASS_ROWS >= rows) continue;
            if (exists)
                cp_async_16(piece, values + i * pass_pitch);
            else
                for (int word = 0; word < 4; word++) st_shared(piece + word * 4, 0);
        }
        values += C::TILE_K * 2;
    }
};

template <class C>
__device__ __forceinline__ void epilogue(const gemm_problem &p, const sm80_schedule &s, const float *sums,
                                         int64_t split_idx, int64_t l, int64_t m0, int64_t n0) {
    constexpr int GROUPS = C::TILE_N / 4, PASS_ROWS = C::THREADS / GROUPS;
    const int column = threadIdx.x % GROUPS * 4, first = threadIdx.x / GROUPS;
    const int64_t n = n0 + column / 32 * 8 + column % 32 / 8 * 32 + column % 8;
    if (n < p.n) store_tile<C, PASS_ROWS>(p, s, sums, split_idx, l, m0, n, column, first, w4a16<C::TYPE>::UNIT);
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm80_schedule &s) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint8_t *stages = shared + warp * C::WARP_STAGES_BYTES;

    uint32_t index = blockIdx.x;
    const int64_t m0 = (int64_t)(index % s.tiles_m) * C::TILE_M;
    index /= s.tiles_m;
    const uint32_t tile_n = index % s.tiles_n;
    const int64_t n0 = (int64_t)(tile_n / (4 / C::OCTETS)) * 128 + tile_n % (4 / C::OCTETS) * (8 * C::OCTETS);
    index /= s.tiles_n;
    const uint32_t l = index % (uint32_t)p.l, split_idx = index / (uint32_t)p.l;
    const int64_t first = split_idx * s.k_tiles_per_split;
    const int tiles = (int)min(s.k_tiles_per_split, (p.k + C::TILE_K - 1) / C::TILE_K - first);

    const int64_t k = first * C::TILE_K + warp * C::STAGE_K;
    b_loader<C> load_b(p, l, n0, k, shared_address(stages));
    a_loader<C> load_a(p, l, m0, k, shared_address(stages));
    const bool words = !load_b.linear || ((uintptr_t)p.scale_b | p.scale_b_batch | p.scale_b_pitch) % 4 == 0;
    int full_tiles = p.aligned16 && words ? (int)min((int64_t)tiles, p.k / C::TILE_K - first) : 0;
    pin(full_tiles);

    float sums[C::MMAS_B][C::MMAS_A][4] = {};
    multiply_stages<C>(load_b, load_a, stages, first, tiles, full_tiles, p.k, sums);

    /* The stages' memory now holds the accumulators, a tile for each warp. */
    float *tiles_of_sums = (float *)shared;
    __syncthreads();
    store_sums<C>(tiles_of_sums + warp * C::TILE_M * C::SUM_PITCH, g, t, sums);
    __syncthreads();
    epilogue<C>(p, s, tiles_of_sums, split_idx, l, m0, n0);
}

#define KERNEL(id, tile_m, octets, chunks, stages, warps, ctas_per_sm, bf16)                                           \
    extern "C" __global__ void __launch_bounds__(32 * (warps), ctas_per_sm)                                            \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm80_schedule s) {                  \
        begin_dependent_grid();                                                                                        \
        gemm<config<(bf16) ? NVFP4_BF16 : NVFP4_FP16, tile_m, octets, chunks, stages, warps>>(p, s);                   \
    }
SM80_W4A16_CONFIGS(KERNEL)
