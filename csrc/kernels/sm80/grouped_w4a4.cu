/* Products of groups of rows of NVFP4 A, each group by an NVFP4 matrix of its own (common/grouped_problem.h), with
 * mma.sync m16n8k16 in fp16: every GPU since sm_80.
 *
 * A CTA finds its rows from the ends of all groups (common/group_tile.cuh), then multiplies them as gemm.cu does
 * (w4a4_tile.cuh), with its warps sharing K. Rows of A may lie anywhere, and so may their scales: the addresses of both
 * are kept in shared memory. B has the 16 rows of an mma.
 *
 *   find the group and the rows | addresses and factors of the rows | stages along K | add the warps, epilogue
 *
 * Shared memory: the stages, in their place at the end the accumulators; behind them [TILE_M] addresses of rows and
 * [TILE_M] of their scales, NULL for a row outside of A or without scales, and [TILE_M] factors of their results. A row
 * without an address is not loaded, and its factor is NaN. Tails are those of w4a4_tile.cuh. */
#include "kernels/common/dependent.cuh"
#include "kernels/common/group_tile.cuh"
#include "kernels/sm80/grouped_rows.cuh"
#include "kernels/sm80/w4a4_tile.cuh"

template <int TILE_M_, int STAGES_, int CTAS_PER_SM_>
struct grouped_config : config<TILE_M_, SM80_GROUPED_W4A4_TILE_N, SM80_GROUPED_W4A4_TILE_K, STAGES_, SM80_GROUPED_WARPS,
                               1, CTAS_PER_SM_> {
    static constexpr int ROWS_OFFSET = SM80_GROUPED_W4A4_TILE_BYTES(TILE_M_, STAGES_);

    static_assert(grouped_config::CHUNKS == 1, "a lane copies one word of scales of a row");
    static_assert(ROWS_OFFSET % 8 == 0, "addresses are aligned");
    static_assert(TILE_M_ <= SM80_GROUPED_THREADS, "a thread finds one row");
    static_assert(SM80_GROUPED_W4A4_SHARED_BYTES(TILE_M_, STAGES_) <= 99 * 1024,
                  "what every GPU since Ampere gives a CTA");
};

/* The first `count` of 4 scales; zeros for the rest. */
__device__ __forceinline__ uint32_t scale_word(const uint8_t *from, int64_t count) {
    uint32_t word = 0;
    for (int i = 0; i < 4; i++)
        if (i < count) word |= (uint32_t)from[i] << i * 8;
    return word;
}

/* The copies of one lane of rows of A that lie anywhere, to the places of loader<C, C::TILE_M>. */
template <class C> struct gathering_loader {
    using places = loader<C, C::TILE_M>;

    uint32_t values, scales;              /* shared addresses of rows' addresses, from the lane's first of each on */
    int64_t values_offset, scales_offset; /* of the next stage in a row */
    int chunk_pitch;                      /* bytes between two words of a row of scales */
    int rows, scale_rows;                 /* that exist from the lane's first on */
    uint32_t values_to, scales_to;

    __device__ __forceinline__ gathering_loader(const tile_rows<C::TILE_M, true> &rows_of_tile, int rows_in_tile,
                                                int64_t k, bool linear, uint32_t values_at, uint32_t scales_at) {
        const int lane = threadIdx.x % 32, piece = lane % places::PIECES, row = lane / places::PIECES;
        const int scale_row = lane % places::SCALE_ROWS;
        rows_in_tile = min(rows_in_tile, C::TILE_M);
        values = shared_address(rows_of_tile.addresses + row);
        values_offset = k / 2 + piece * 16;
        values_to = values_at + row * 32 + piece * 16;
        rows = rows_in_tile - row;
        chunk_pitch = linear ? 4 : 512;
        scales = shared_address(rows_of_tile.scales + scale_row);
        scales_offset = k / SM80_CHUNK * chunk_pitch;
        scales_to = scales_at + scale_row * 4;
        scale_rows = lane < places::SCALE_ROWS ? rows_in_tile - scale_row : 0;
        pin(values_offset), pin(scales_offset), pin(chunk_pitch), pin(rows), pin(scale_rows);
        pin(values_to), pin(scales_to);
    }

    static __device__ __forceinline__ const uint8_t *row_at(uint32_t addresses, int row) {
        const uint2 words = ld_shared_v2(addresses + row * 8);
        return (const uint8_t *)((uint64_t)words.y << 32 | words.x);
    }

    __device__ __forceinline__ void advance() {
        values_offset += C::TILE_K / 2;
        scales_offset += C::TILE_K / SM80_CHUNK * chunk_pitch;
    }

    /* Issues the copies of a full stage: rows on 16 bytes, scales on 4. */
    __device__ __forceinline__ void start(uint32_t stage) {
#pragma unroll
        for (int i = 0; i * places::PASS_ROWS < C::TILE_M; i++) {
            if (i * places::PASS_ROWS >= rows) continue;
            const uint8_t *row = row_at(values, i * places::PASS_ROWS);
            if (row) cp_async_16(stage + values_to + i * places::PASS_ROWS * 32, row + values_offset);
        }
#pragma unroll
        for (int i = 0; i < places::ROW_PASSES; i++) {
            if (i * 32 >= scale_rows) continue;
            const uint8_t *row = row_at(scales, i * 32);
            if (row) cp_async_4(stage + scales_to + i * 32 * 4, row + scales_offset);
        }
        advance();
    }

    /* Issues the copies of any stage with k_left values along K. Scales past them become zero. */
    __device__ __forceinline__ void start_ragged(uint32_t stage, int64_t k_left) {
        const int64_t values_left = k_left - threadIdx.x % places::PIECES * 32, scales_left = k_left / 16;
#pragma unroll 1
        for (int i = 0; i * places::PASS_ROWS < rows; i++) {
            const uint32_t to = stage + values_to + i * places::PASS_ROWS * 32;
            const uint8_t *row = row_at(values, i * places::PASS_ROWS);
            if (row && values_left > 0) cp_async_8(to, row + values_offset);
            if (row && values_left > 16) cp_async_8(to + 8, row + values_offset + 8);
        }
#pragma unroll 1
        for (int i = 0; i * 32 < scale_rows; i++) {
            const uint8_t *row = row_at(scales, i * 32);
            if (row) st_shared(stage + scales_to + i * 32 * 4, scale_word(row + scales_offset, scales_left));
        }
        advance();
    }
};

template <class C> __device__ __forceinline__ void multiply(const grouped_problem &p, const sm80_grouped_schedule &s) {
    extern __shared__ __align__(16) uint8_t shared[];
    const gemm_problem &g = p.g;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint8_t *stages = shared + warp * C::WARP_STAGES_BYTES;

    const uint32_t index = blockIdx.x / (uint32_t)s.tiles_m, part = index / (uint32_t)s.tiles_n;
    const int64_t n0 = (int64_t)(index % (uint32_t)s.tiles_n) * C::TILE_N;
    group_tile_scratch<C::THREADS> &scratch = *(group_tile_scratch<C::THREADS> *)shared; /* until the stages fill */
    const group_tile tile =
        find_group_tile<C::THREADS>(p.ends, p.groups, (int)g.m, C::TILE_M, blockIdx.x % (uint32_t)s.tiles_m, scratch);
    if (tile.rows == 0) return;

    const tile_rows<C::TILE_M, true> rows(shared + C::ROWS_OFFSET);
    rows.find(p, tile);

    const operand b = operand_b(g, (int64_t)tile.group * p.parts + part, n0, C::TILE_N);
    const bool linear = g.scale_layout == NVFP4_LINEAR;
    const int64_t k = warp * C::STAGE_K;
    const uint32_t at = shared_address(stages);
    loader<C, C::TILE_N> load_b(b, k, linear, at, at + C::MMA_SFA_OFFSET);
    gathering_loader<C> load_a(rows, tile.rows, k, linear, at + C::MMA_B_OFFSET, at + C::MMA_SFB_OFFSET);
    const bool words =
        !linear || ((uintptr_t)b.scale | b.scale_pitch | (uintptr_t)g.scale_a | g.scale_a_pitch) % 4 == 0;
    const int tiles = (int)((g.k + C::TILE_K - 1) / C::TILE_K);
    int full_tiles = g.aligned16 && words ? (int)(g.k / C::TILE_K) : 0;
    pin(full_tiles);

    float sums[C::MMAS_M][C::MMAS_N][4] = {};
    multiply_stages<C>(load_b, load_a, stages, 0, tiles, full_tiles, g.k, sums);

    float *tiles_of_sums = (float *)shared;
    __syncthreads();
    store_sums<C>(tiles_of_sums + warp * C::TILE_M * C::SUM_PITCH, lane / 4, lane % 4 * 2, sums);
    __syncthreads();
    const int column = threadIdx.x % (C::TILE_N / 4) * 4;
    store_tile_rows<C>(p, tiles_of_sums, rows.factors, tile, part, column, n0 + column, DECODED_PRODUCT_UNIT);
}

#define KERNEL(id, tile_m, stages, ctas_per_sm)                                                                        \
    extern "C" __global__ void __launch_bounds__(SM80_GROUPED_W4A4_THREADS, ctas_per_sm)                               \
        nvfp4_##id(const __grid_constant__ grouped_problem p, const __grid_constant__ sm80_grouped_schedule s) {       \
        begin_dependent_grid();                                                                                        \
        multiply<grouped_config<tile_m, stages, ctas_per_sm>>(p, s);                                                   \
    }
SM80_GROUPED_W4A4_CONFIGS(KERNEL)
