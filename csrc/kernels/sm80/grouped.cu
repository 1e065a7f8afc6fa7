/* Products of groups of rows of fp16 or bf16 A, each group by an NVFP4 matrix of its own (common/grouped_problem.h),
 * with mma.sync m16n8k16: every GPU since sm_80.
 *
 * A CTA finds its rows from the ends of all groups (common/group_tile.cuh), then multiplies them as w4a16.cu does
 * (w4a16_tile.cuh), with its warps sharing K. Rows of A may lie anywhere: their addresses are kept in shared memory.
 *
 *   find the group and the rows | addresses and factors of the rows | stages along K | add the warps, epilogue
 *
 * Shared memory: the stages, in their place at the end the accumulators; behind them [TILE_M] addresses of rows, NULL
 * for an index outside of A, and [TILE_M] factors of their results. A row without an address is not loaded, and its
 * factor is NaN. Tails are those of w4a16.cu. */
#include "kernels/common/dependent.cuh"
#include "kernels/common/group_tile.cuh"
#include "kernels/sm80/grouped_rows.cuh"
#include "kernels/sm80/w4a16_tile.cuh"

template <int TYPE_, int TILE_M_, int STAGES_>
struct grouped_config : config<TYPE_, TILE_M_, SM80_GROUPED_OCTETS, SM80_GROUPED_CHUNKS, STAGES_, SM80_GROUPED_WARPS> {
    static constexpr int ROWS_OFFSET = SM80_GROUPED_TILE_BYTES(TILE_M_, STAGES_);

    static_assert(ROWS_OFFSET % 8 == 0, "addresses are aligned");
    static_assert(TILE_M_ <= SM80_GROUPED_THREADS, "a thread finds one row");
};

/* The copies of one lane of rows of A, in 16-byte pieces that are neighbours along a row. */
template <class C> struct gathering_loader {
    static constexpr int PIECES = 8 * C::CHUNKS, PASS_ROWS = 32 / PIECES;

    const uint8_t *const *addresses; /* of rows, from the lane's first on */
    int64_t offset;                  /* of the lane's piece of the next stage in a row */
    int rows;                        /* that exist from the lane's first on */
    uint32_t to;

    __device__ __forceinline__ gathering_loader(const uint8_t *const *rows_of_tile, int rows_in_tile, int64_t k,
                                                uint32_t stages) {
        const int lane = threadIdx.x % 32, piece = lane % PIECES, row = lane / PIECES;
        addresses = rows_of_tile + row;
        offset = k * 2 + piece * 16;
        rows = rows_in_tile - row;
        to = stages + C::A_OFFSET + piece / 8 * C::A_BYTES + row * 128 + (piece % 8 ^ row % 2) * 16;
        pin(offset), pin(rows), pin(to);
    }

    /* Issues the copies of a stage; with RAGGED, what exists of k_left values along K, and zeros beyond. */
    template <bool RAGGED> __device__ __forceinline__ void start(uint32_t stage, int64_t k_left) {
        const bool exists = !RAGGED || threadIdx.x % PIECES * 8 < k_left;
#pragma unroll
        for (int i = 0; i * PASS_ROWS < C::TILE_M; i++) {
            const uint32_t piece = stage + to + i * PASS_ROWS * 128;
            if (i * PASS_ROWS >= rows) continue;
            const uint8_t *row = addresses[i * PASS_ROWS];
            if (!row) continue;
            if (exists)
                cp_async_16(piece, row + offset);
            else
                for (int word = 0; word < 4; word++) st_shared(piece + word * 4, 0);
        }
        offset += C::TILE_K * 2;
    }
};

template <class C> __device__ __forceinline__ void multiply(const grouped_problem &p, const sm80_grouped_schedule &s) {
    extern __shared__ __align__(16) uint8_t shared[];
    const gemm_problem &g = p.g;
    const int warp = threadIdx.x / 32;
    const uint8_t *stages = shared + warp * C::WARP_STAGES_BYTES;

    const uint32_t index = blockIdx.x / (uint32_t)s.tiles_m, part = index / (uint32_t)s.tiles_n;
    const uint32_t tile_n = index % (uint32_t)s.tiles_n;
    const int64_t n0 = (int64_t)(tile_n / (4 / C::OCTETS)) * 128 + tile_n % (4 / C::OCTETS) * (8 * C::OCTETS);
    group_tile_scratch<C::THREADS> &scratch = *(group_tile_scratch<C::THREADS> *)shared; /* until the stages fill */
    const group_tile tile =
        find_group_tile<C::THREADS>(p.ends, p.groups, (int)g.m, C::TILE_M, blockIdx.x % (uint32_t)s.tiles_m, scratch);
    if (tile.rows == 0) return;

    const tile_rows<C::TILE_M> rows(shared + C::ROWS_OFFSET);
    rows.find(p, tile);

    const int64_t k = warp * C::STAGE_K;
    const int tiles = (int)((g.k + C::TILE_K - 1) / C::TILE_K);
    b_loader<C> load_b(g, (int64_t)tile.group * p.parts + part, n0, k, shared_address(stages));
    gathering_loader<C> load_a(rows.addresses, min(C::TILE_M, tile.rows), k, shared_address(stages));
    const bool words = !load_b.linear || ((uintptr_t)g.scale_b | g.scale_b_batch | g.scale_b_pitch) % 4 == 0;
    int full_tiles = g.aligned16 && words ? (int)(g.k / C::TILE_K) : 0;
    pin(full_tiles);

    float sums[C::MMAS_B][C::MMAS_A][4] = {};
    multiply_stages<C>(load_b, load_a, stages, 0, tiles, full_tiles, g.k, sums);

    float *tiles_of_sums = (float *)shared;
    __syncthreads();
    store_sums<C>(tiles_of_sums + warp * C::TILE_M * C::SUM_PITCH, threadIdx.x % 32 / 4, threadIdx.x % 4, sums);
    __syncthreads();
    const int column = threadIdx.x % (C::TILE_N / 4) * 4;
    store_tile_rows<C>(p, tiles_of_sums, rows.factors, tile, part, column,
                       n0 + column / 32 * 8 + column % 32 / 8 * 32 + column % 8, w4a16<C::TYPE>::UNIT);
}

#define KERNEL(id, tile_m, stages, ctas_per_sm, bf16)                                                                  \
    extern "C" __global__ void __launch_bounds__(SM80_GROUPED_THREADS, ctas_per_sm)                                    \
        nvfp4_##id(const __grid_constant__ grouped_problem p, const __grid_constant__ sm80_grouped_schedule s) {       \
        begin_dependent_grid();                                                                                        \
        multiply<grouped_config<(bf16) ? NVFP4_BF16 : NVFP4_FP16, tile_m, stages>>(p, s);                              \
    }
SM80_GROUPED_CONFIGS(KERNEL)
