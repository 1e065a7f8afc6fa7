/* Products of groups of rows of A, each group by an NVFP4 matrix of its own (common/grouped_problem.h), on Hopper
 * tensor cores. A is fp16 or bf16. An NVFP4 A becomes fp16 in the pre-pass.
 *
 * As in gemm.cu with swap_ab, mma_a is B: it is dequantized into the registers that wgmma reads. Up to ROWS rows of A are
 * mma_b. The pre-pass sm90/reorder.cu writes the rows of the result in their order, and their values in the order along K
 * that dequantizing leads to. The rows of a group are split evenly into tiles, and a tile of fewer rows takes a narrower
 * wgmma. Every width adds along K in the same order, so the bits of a row depend on nothing but its operands.
 *
 * The grid is at most a CTA an SM. Each reads the ends of all groups and claims tiles (common/grouped_tiles.cuh).
 *
 *   warps            waits for                     does                                                  arrives at
 *   0-7 (math)       tile_full, full, drained      dequantizes mma_a, wgmma; rounded results to staging  empty, staged
 *   8 (one thread)   tile_empty, empty             finds tiles; TMA loads of A and B, bulk copies of     tile_full, full
 *                                                  scales
 *   9-11 (stores)    tile_full, staged             activation, results to global memory                  drained
 *
 * A math warpgroup has 128 of a tile's 256 columns. With an activation of two parts, a tile has 128 columns of part 0,
 * then the same of part 1. fp32 results, which staging is too small for, go to memory from registers.
 *
 * Dependent launch: the pre-pass lets this grid start when all grids before the pre-pass have completed. So only what
 * reads its result waits for it. Where A has no values there is no pre-pass, and every thread waits.
 *
 * Shared memory: stages | staging of a tile, [row][column] in 16 bits, 16-byte chunks swizzled by the row |
 * mbarriers | descriptions of tiles | table of groups (sm90/grouped_roles.cuh). A row of mma_a in a stage has 32 bytes.
 *
 * A lane dequantizes 16 values of a row in a stage, words 0 and 1 under one scale. Chunk 4w + j of mma_b, 16 bytes, has
 * for each lane t of a quad pair j (w4a16.cuh) of the 8 values of word w at 16t.
 *
 * Tails: what is past the end of K is zero in A, and its scales are masked. The results of rows that A does not have, or
 * that have no scales, have the factor NaN. Rows past the end of a group and columns past the end of B reach only
 * results that are not stored. */
#include "kernels/common/placement.cuh"
#include "kernels/sm90/grouped_roles.cuh"

enum {
    WGMMAS = 2, /* of a math warpgroup, 64 columns each */
    /* setmaxnreg: of 168 registers a thread at launch. */
    MATH_REGISTERS = 232,
    OTHER_REGISTERS = 40,
};

template <int ROWS, int STAGES, int BF16>
using config = grouped_config<ROWS, STAGES, BF16, SM90_GROUPED_STAGE_K, SM90_GROUPED_MATH_WARPS, 0, 3, true>;

/* Calls `function` with the narrowest wgmma for so many rows, and its place among all widths. */
template <class C, class F> __device__ __forceinline__ void with_width(int rows, F function) {
    int i = 0;
#define X(n)                                                                                                           \
    if (n == C::ROWS || rows <= n) return function(wgmma_width<n>(), i);                                               \
    i++;
    if constexpr (C::ROWS == 96) {
        SM90_GROUPED_WIDTHS_96(X)
    } else {
        SM90_GROUPED_WIDTHS_152(X)
    }
#undef X
}

/* ---- loads ---- */

/* One thread: the stages of a tile; of the first tile, B of `early` stages before the pre-pass has completed. A is loaded
 * when the next tile has been claimed, which waits for the pre-pass. */
template <class C>
__device__ __forceinline__ void load_tile(const grouped_problem &p, const sm90_grouped_schedule &s,
                                          const grouped_cta<C> &cta, const grouped_tile &tile, int32_t column,
                                          int32_t early, int is_described, pipeline_state<C::STAGES> &state) {
    const b_loads<C, sm90_grouped_schedule> b(p, s, tile.l, column);
    uint32_t a_bytes = 0;
    const tensor_map *a = NULL;
    with_width<C>(tile.rows, [&](auto width, int i) { a = &s.a[i], a_bytes = width.ROWS * 128; });
    auto load_a = [&](int32_t k, uint32_t index) {
        tma_load_3d<1>(cta.stage(index), a, k * C::STAGE_K, tile.row, 0, cta.full(index), s.b_cache_policy);
    };
    if (!is_described) {
#pragma unroll 1
        for (int32_t k = 0; k < early; k++, state.advance())
            b.load(k, cta.stage(state.index), cta.full(state.index), a_bytes);
        return;
    }
#pragma unroll 1
    for (int32_t k = 0; k < early; k++) load_a(k, (uint32_t)k);
#pragma unroll 1
    for (int32_t k = early; k < s.stages_k; k++, state.advance()) {
        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
        b.load(k, cta.stage(state.index), cta.full(state.index), a_bytes);
        load_a(k, state.index);
    }
}

/* ---- math ---- */

/* A lane knows this before the first tile: its place in a stage, and where K ends. */
template <class C> struct math_lane {
    int column; /* in a tile, the lane's first one; 8, 64 and 72 further are the others */
    uint32_t values, scales;
    int32_t stages_k, k_tail; /* k_tail: the stage in which K ends; behind all stages if it has no rest */
    uint32_t tail_mask;

    __device__ __forceinline__ math_lane(const gemm_problem &g, int warp, int32_t stages_k) : stages_k(stages_k) {
        const int lane = threadIdx.x % 32, t = lane % 4, row = warp % 4 * 16 + lane / 4; /* row: in a block */
        column = warp / 4 * BOX_ROWS + row;
        values = C::B_OFFSET + column * 32 + t * 8;
        scales = C::SCALES_OFFSET + warp / 4 * C::BLOCK_SCALES + row % 32 * 16 + row / 32 * 4 + t;
        k_tail = (int32_t)(g.k / C::STAGE_K);
        tail_mask = g.k / 16 - k_tail * (C::STAGE_K / 16) > t ? 0x7F7F : 0;
        pin(values), pin(scales);
    }
};

/* The mainloop of one tile, in steps of 16 along K. A stage is released as in mainloop.cuh. Word 0 and the scales of the
 * next stage are read when word 0 of this one is dequantized, word 1 at the end. */
template <class C, int WIDTH>
__device__ __forceinline__ void wide_mainloop(const grouped_cta<C> &cta, const math_lane<C> &own,
                                              pipeline_state<C::STAGES> &state, float (&acc)[WGMMAS][WIDTH / 2]) {
    using convert = w4a16<C::TYPE>;
    uint32_t fragments[2][WGMMAS][4], words[2][WGMMAS][2], scales[WGMMAS], next_scales[WGMMAS]; /* [word][m][row] */
    auto read_word = [&](uint32_t stage, int word) {
#pragma unroll
        for (int m = 0; m < WGMMAS; m++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                words[word][m][h] = ld_shared(stage + own.values + (m * 64 + h * 8) * 32 + word * 4);
    };
    auto read_scales = [&](uint32_t stage, int32_t k) {
        const uint32_t mask = k == own.k_tail ? own.tail_mask : 0x7F7F;
#pragma unroll
        for (int m = 0; m < WGMMAS; m++) { /* 64 rows further are 8 bytes further in a block of scales */
            const uint32_t first = ld_shared_u8(stage + own.scales + m * 8);
            const uint32_t second = ld_shared_u8(stage + own.scales + m * 8 + 8 * 16);
            next_scales[m] = convert::scales((first | second << 8) & mask);
        }
    };
    auto wait = [&] {
        const uint32_t stage = cta.stage(state.index);
        mbarrier_wait(cta.full(state.index), state.phase);
        state.advance();
        return stage;
    };
    if (own.stages_k == 0) return;
    uint32_t current = state.index, previous = 0, stage = wait();
    read_word(stage, 0), read_word(stage, 1), read_scales(stage, 0);
#pragma unroll 1
    for (int32_t k = 0; k < own.stages_k; k++) {
        uint64_t descriptor = wgmma_smem_descriptor(cta.stage(current));
        pin(descriptor); /* one addition a step */
        const bool more = k + 1 < own.stages_k;
#pragma unroll
        for (int m = 0; m < WGMMAS; m++) scales[m] = next_scales[m];
#pragma unroll
        for (int step = 0; step < 4; step++) {
            auto &of_step = fragments[step % 2];
#pragma unroll
            for (int m = 0; m < WGMMAS; m++) {
                uint32_t pairs[2][4];
                convert::template word<0>(words[step / 2][m][0], scales[m], pairs[0]);
                convert::template word<1>(words[step / 2][m][1], scales[m], pairs[1]);
#pragma unroll
                for (int q = 0; q < 4; q++) of_step[m][q] = pairs[q % 2][step % 2 * 2 + q / 2];
            }
            wgmma_fence();
#pragma unroll
            for (int m = 0; m < WGMMAS; m++)
                wgmma_rs<WIDTH, C::TYPE>::mma_async(acc[m], of_step[m], descriptor + step * 2, step > 0 || k > 0);
            wgmma_commit_group();
            if (step == 1) {
                previous = current, current = state.index;
                if (more) {
                    stage = wait();
                    read_word(stage, 0), read_scales(stage, k + 1);
                }
            }
            if (step == 3 && more) read_word(stage, 1);
            wgmma_wait_group<1>();
            if (step == 0 && k > 0) mbarrier_arrive(cta.empty(previous));
        }
    }
    wgmma_wait_group<0>();
#pragma unroll
    for (int m = 0; m < WGMMAS; m++)
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) pin_float(acc[m][i]);
    mbarrier_arrive(cta.empty(previous));
}

/* fp32 results of the lane's two columns, which begin at `column` of the part. */
template <class C, int WIDTH>
__device__ __forceinline__ void store_fp32(const grouped_problem &p, const header_of<C> &tile, int column,
                                           const lane_columns &columns, const float (&acc)[WIDTH / 2]) {
    const gemm_problem &g = p.g;
    const int row = threadIdx.x % 4 * 2;
    const int64_t n = tile.column + column;
    char *out = (char *)g.out + (tile.row + row) * g.out_pitch + tile.part * g.out_batch + n * 4;
    const bool exists[2] = {n < g.n, n + 8 < g.n};
#pragma unroll
    for (int group = 0; group < WIDTH / 8; group++, out += 8 * g.out_pitch) {
        float v[2][2];
        scale_group<C>(p, tile, group, columns, acc, v);
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (group * 8 + row + r < tile.rows && exists[i]) *(float *)(out + r * g.out_pitch + i * 32) = v[i][r];
    }
}

template <class C>
__device__ __forceinline__ void multiply_tiles(const grouped_problem &p, const sm90_grouped_schedule &s,
                                               const grouped_cta<C> &cta, int warp, const uint8_t *shared) {
    const math_lane<C> own(p.g, warp, s.stages_k);
    const int first_column = own.column - (int)threadIdx.x % 32 / 4; /* of the warp */
    pipeline_state<C::STAGES> state;
    uint32_t phase = 1; /* of the wait for an empty staging buffer */
    tile_reader<C> tiles(cta, shared);
    for (; const auto *tile = tiles.next(); phase ^= 1) {
        with_width<C>(tile->rows, [&](auto width, int) {
            constexpr int WIDTH = decltype(width)::ROWS;
            /* Without a value the accumulators of all widths would be live around the loop, and not fit. */
            float acc[WGMMAS][WIDTH / 2] = {};
            wide_mainloop<C, WIDTH>(cta, own, state, acc);
            const bool is_fp32 = p.g.out_type == NVFP4_FP32;
            if (!is_fp32) mbarrier_wait(cta.drained(), phase);
#pragma unroll
            for (int m = 0; m < WGMMAS; m++) {
                const lane_columns columns(p, *tile, own.column + m * 64);
                if (is_fp32)
                    store_fp32<C, WIDTH>(p, *tile, own.column + m * 64, columns, acc[m]);
                else
                    stage_results<C, WIDTH>(p, *tile, cta.staging(), first_column + m * 64, columns, acc[m]);
            }
            if (!is_fp32) mbarrier_arrive(cta.staged());
        });
        tiles.release();
    }
}

/* ---- the kernel ---- */

template <class C> __device__ __forceinline__ void multiply(const grouped_problem &p, const sm90_grouped_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const grouped_cta<C> cta{shared_address(shared)};
    if (cta.base % 1024) __trap(); /* the swizzle pattern follows absolute addresses */
    prologue(s.b, cta);
    if (s.stages_k == 0) griddepcontrol_wait();
    group_table &table = *(group_table *)(shared + C::TABLE_OFFSET);
    /* Scratch in the staging buffers, which the barrier at the end of group_table::fill frees. */
    table.fill(p.ends, p.groups, (int)p.g.m, C::ROWS, *(group_table_scratch<C::THREADS> *)(shared + C::STAGING_OFFSET));

    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    if (warp < C::MATH_WARPS) {
        setmaxnreg_inc<MATH_REGISTERS>();
        multiply_tiles(p, s, cta, warp, shared);
        return;
    }
    setmaxnreg_dec<OTHER_REGISTERS>();
    if (warp == C::MATH_WARPS) {
        grouped_tiles tiles(table, p, s.tiles_n, blockIdx.x, gridDim.x, p.has_activation);
        produce(
            p, s, cta, tiles, (header_of<C> *)(shared + C::TILES_OFFSET), false,
            [&](const grouped_tile &tile, int32_t column, int32_t early, int is_described,
                pipeline_state<C::STAGES> &state) { load_tile(p, s, cta, tile, column, early, is_described, state); });
    } else {
        griddepcontrol_wait();
        griddepcontrol_launch_dependents();
        store_tiles(p, s, cta, threadIdx.x - 32 * (C::MATH_WARPS + C::OTHER_WARPS), shared);
    }
}

#define KERNEL(id, rows, stages, bf16)                                                                                 \
    extern "C" __global__ void __launch_bounds__(SM90_GROUPED_THREADS, 1)                                              \
        nvfp4_##id(const __grid_constant__ grouped_problem p, const __grid_constant__ sm90_grouped_schedule s) {       \
        RECORD_CTA();                                                                                                  \
        multiply<config<rows, stages, bf16>>(p, s);                                                                    \
    }
SM90_GROUPED_CONFIGS(KERNEL)
