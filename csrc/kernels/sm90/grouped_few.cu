/* Products of groups of a few rows of fp16 or bf16 A, each group by an NVFP4 matrix of its own
 * (common/grouped_problem.h), on Hopper tensor cores: up to 48 rows a tile.
 *
 * As in grouped.cu, mma_a is B, dequantized into the registers that wgmma reads, and rows of A are mma_b. What differs
 * suits a product that reads B at the rate of memory: stages are 256 values along K of whole 128-byte lines of B; copy
 * warps read A where it lies and put it into the order along K that dequantizing leads to, so no pre-pass runs; and
 * store warps write a tile's results, with an activation if there is one, while the math warps are at the next tile.
 *
 *   warps             waits for                     does                                                  arrives at
 *   0-15 (math)       tile_full, full, drained      dequantizes mma_a, wgmma; rounded results to staging  empty, staged
 *   16-19 (copies)    tile_full, empty              rows of A, from global memory through registers       copied
 *   20 (one thread)   tile_empty, empty             finds tiles; TMA loads of B, bulk copies of scales    tile_full, full
 *   21 (one thread)   tile_full, copied             the proxy fence between copies and wgmma              full
 *   22-23 (stores)    tile_full, staged             activation, results to global memory                  drained
 *
 * A math warpgroup has 64 of a tile's 256 columns. With an activation of two parts, a tile has 128 columns of part 0,
 * then the same of part 1. Every width of wgmma adds along K in the same order, so the bits of a row depend on nothing
 * but its operands.
 *
 * Shared memory: stages | staging of a tile, [row][column] in 16 bits, 16-byte chunks swizzled by the row |
 * mbarriers | descriptions of tiles | table of groups (sm90/grouped_roles.cuh). A row of mma_a in a stage has 128 bytes,
 * with the 128-byte swizzle.
 *
 * A lane dequantizes 64 values of a row in a stage, one atom of scales: words w = 0 to 3 of each half. Chunk 4w + j of a
 * half of mma_b, 16 bytes, has for each lane t of a quad pair j (w4a16.cuh) of the 8 values of word w at 64t.
 *
 * Dependent launch: with early_b the ends, and B of the first tile, are read before griddepcontrol.wait. In a layer of
 * experts that is while the product of gate and up, whose CTAs leave the SMs one after the other, is still running.
 *
 * Tails: values past the end of K are zeros in A and in B, and scales there are masked. Rows that A does not have are
 * not copied: their results have the factor NaN. Rows past the end of a group and columns past the end of B reach only
 * results that are not stored. */
#include "kernels/sm90/grouped_few_config.h"
#include "kernels/sm90/grouped_roles.cuh"

/* setmaxnreg: of 80 registers a thread at launch. */
enum { MATH_REGISTERS = 96, COPY_REGISTERS = 64, OTHER_REGISTERS = 32 };

template <int ROWS, int STAGES, int BF16>
using config = grouped_config<ROWS, STAGES, BF16, SM90_GROUPED_FEW_STAGE_K, SM90_GROUPED_FEW_MATH_WARPS, 4, 2, false>;

/* Calls `function` with the narrowest wgmma for so many rows. */
template <class C, class F> __device__ __forceinline__ void with_width(int rows, F function) {
#define X(n)                                                                                                           \
    if constexpr (2 * n >= C::ROWS && n <= C::ROWS)                                                                    \
        if (n == C::ROWS || rows <= n) return function(wgmma_width<n>());
    SM90_GROUPED_FEW_WIDTHS(X)
#undef X
}

/* ---- loads ---- */

/* One thread: stages first to last - 1 of a tile's B. */
template <class C>
__device__ __forceinline__ void load_b(const grouped_problem &p, const sm90_grouped_few_schedule &s,
                                       const grouped_cta<C> &cta, int32_t l, int32_t column, int32_t first,
                                       int32_t last, pipeline_state<C::STAGES> &state) {
    const b_loads<C, sm90_grouped_few_schedule> b(p, s, l, column);
#pragma unroll 1
    for (int32_t k = first; k < last; k++, state.advance()) {
        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
        b.load(k, cta.stage(state.index), cta.full(state.index), 0);
    }
}

/* 16 bytes from L2: the grid before may have written them. */
__device__ __forceinline__ uint4 ld_global_cg(const uint8_t *from) {
    uint4 v;
    asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/* A copy thread has word w of half h of all four atoms in rows r, r + 16, ...: of a row it reads 16 bytes of each atom,
 * and writes four chunks. Two rows, of a stage or of two, are on their way in registers. */
template <class C> struct a_copies {
    static constexpr int ROWS = C::ROWS / 16, AT_ONCE = 2, STAGES = ROWS % AT_ONCE ? AT_ONCE : 1;
    static_assert(C::ROWS % 16 == 0, "whole rows of copy threads");

    const grouped_cta<C> &cta;
    const uint8_t *rows[ROWS]; /* NULL: there is none */
    int32_t stages_k, left;    /* stages along K; values from the thread's first one to the end of K */
    uint32_t to;               /* in a stage */
    int row, chunk;
    uint4 atoms[AT_ONCE][4];

    __device__ __forceinline__ a_copies(const grouped_cta<C> &cta, const gemm_problem &g, int32_t stages_k)
        : cta(cta), stages_k(stages_k) {
        const int thread = threadIdx.x - 32 * C::MATH_WARPS, word = thread % 4, half = thread / 4 % 2;
        row = thread / 8, chunk = word % 2 * 4, left = (int32_t)g.k - half * 32 - word * 8;
        to = (2 * half + word / 2) * C::SPAN + row * 128;
    }
    __device__ __forceinline__ void begin_tile(const gemm_problem &g, const header_of<C> &tile) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int32_t from = tile.from[row + 16 * i];
            rows[i] = from >= 0 ? g.a + from * g.a_pitch + ((int32_t)g.k - left) * 2 : NULL;
        }
    }
    /* Loads the piece `number` places behind the first one of stage k. */
    __device__ __forceinline__ void load(int32_t k, int number) {
        k += number / ROWS;
        if (k >= stages_k) return;
        const uint8_t *from = rows[number % ROWS];
#pragma unroll
        for (int atom = 0; atom < 4; atom++) {
            const int32_t at = k * C::STAGE_K + atom * 64;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (from && at < left) v = ld_global_cg(from + (int64_t)at * 2);
            atoms[number % AT_ONCE][atom] = v;
        }
    }
    __device__ __forceinline__ void store(int number, uint32_t stage) const {
        if (!rows[number % ROWS]) return;
        const uint32_t here = stage + to + number % ROWS * 16 * 128;
        uint32_t pairs[4][4];
#pragma unroll
        for (int atom = 0; atom < 4; atom++) w4a16<C::TYPE>::activations(atoms[number % AT_ONCE][atom], pairs[atom]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            st_shared_v4(here + ((chunk + j) ^ row % 8) * 16, pairs[0][j], pairs[1][j], pairs[2][j], pairs[3][j]);
    }
    __device__ __forceinline__ void copy_tile(pipeline_state<C::STAGES> &state) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) load(0, i);
#pragma unroll 1
        for (int32_t k = 0; k < stages_k; k += STAGES)
#pragma unroll
            for (int i = 0; i < STAGES * ROWS; i++) {
                if (k + i / ROWS >= stages_k) break;
                if (i % ROWS == 0) mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
                store(i, cta.stage(state.index));
                if (i % ROWS == ROWS - 1) {
                    mbarrier_arrive(cta.copied(state.index));
                    state.advance();
                }
                load(k, i + AT_ONCE);
            }
    }
};

/* One thread: passes on copied rows to wgmma. */
template <class C>
__device__ __forceinline__ void pass_on_a(const grouped_cta<C> &cta, int32_t stages_k,
                                          pipeline_state<C::STAGES> &state) {
#pragma unroll 1
    for (int32_t k = 0; k < stages_k; k++, state.advance()) {
        mbarrier_wait(cta.copied(state.index), state.phase);
        fence_proxy_async();
        mbarrier_arrive(cta.full(state.index));
    }
}

/* ---- math ---- */

/* A lane knows this before the first tile: its place in a stage, and where K ends. */
template <class C> struct math_lane {
    int column; /* in a tile, the lane's first one; the other is 8 further */
    uint32_t values, scales, chunk;
    int32_t stages_k, k_tail; /* k_tail: the stage in which K ends; behind all stages if it has no rest */
    uint32_t tail_masks[2];   /* of each half */

    __device__ __forceinline__ math_lane(const gemm_problem &g, int warp, int32_t stages_k) : stages_k(stages_k) {
        const int lane = threadIdx.x % 32, t = lane % 4, row_of_8 = lane / 4;
        column = warp * 16 + row_of_8;
        const int block = column / BOX_ROWS, row = column % BOX_ROWS;
        values = C::B_OFFSET + column * 128, chunk = (2 * t ^ row_of_8) * 16;
        scales = C::SCALES_OFFSET + block * C::BLOCK_SCALES + t * SM90_ATOM_BYTES + row % 32 * 16 + row / 32 * 4;
        k_tail = (int32_t)(g.k / C::STAGE_K);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int32_t left = (int32_t)(g.k / 16) - k_tail * (C::STAGE_K / 16) - t * 4 - h * 2;
            tail_masks[h] = left >= 2 ? 0x7F7F : left == 1 ? 0x7F : 0;
        }
        pin(values), pin(scales), pin(chunk);
    }
};

/* The mainloop of one tile, by halves of a stage. A stage is released as in mainloop.cuh. */
template <class C, int WIDTH>
__device__ __forceinline__ void few_mainloop(const grouped_cta<C> &cta, const math_lane<C> &own,
                                             pipeline_state<C::STAGES> &state, float (&acc)[WIDTH / 2]) {
    using convert = w4a16<C::TYPE>;
    uint32_t fragments[2][2][4], next_scales[2];
    uint4 next[2];
    auto read = [&](uint32_t stage, int h) { /* rows `column` and 8 further */
                                             const uint32_t at = stage + own.values + (own.chunk ^ h * 16),
                                                            scales = stage + own.scales + 2 * h;
                                             next[0] = ld_shared_v4(at), next[1] = ld_shared_v4(at + 8 * 128);
                                             next_scales[0] = ld_shared_u16(scales),
                                             next_scales[1] = ld_shared_u16(scales + 8 * 16);
    };
    auto wait = [&] {
        const uint32_t stage = cta.stage(state.index);
        mbarrier_wait(cta.full(state.index), state.phase);
        state.advance();
        return stage;
    };
    uint32_t current = state.index, previous = 0, stage = wait();
    read(stage, 0);
#pragma unroll 1
    for (int32_t k = 0; k < own.stages_k; k++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint64_t descriptor = wgmma_smem_descriptor(cta.stage(current) + h * 2 * C::SPAN);
            pin(descriptor); /* one addition a step */
            const uint4 now[2] = {next[0], next[1]};
            const uint32_t mask = k == own.k_tail ? own.tail_masks[h] : 0x7F7F;
            const uint32_t scales[2] = {convert::scales(next_scales[0] & mask), convert::scales(next_scales[1] & mask)};
#pragma unroll
            for (int word = 0; word < 4; word++) {
                auto &of_word = fragments[word % 2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    uint32_t pairs[4];
                    if (word < 2)
                        convert::template word<0>(word_of(now[r], word), scales[r], pairs);
                    else
                        convert::template word<1>(word_of(now[r], word), scales[r], pairs);
#pragma unroll
                    for (int q = 0; q < 4; q++) of_word[q / 2][q % 2 * 2 + r] = pairs[q];
                }
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < 2; step++) {
                    const int all = 2 * word + step;
                    wgmma_rs<WIDTH, C::TYPE>::mma_async(acc, of_word[step],
                                                        descriptor + (all / 4 * C::SPAN + all % 4 * 32) / 16,
                                                        all > 0 || h > 0 || k > 0);
                }
                wgmma_commit_group();
                if (word == 3) {
                    if (h == 0) {
                        read(stage, 1);
                    } else {
                        previous = current, current = state.index;
                        if (k + 1 < own.stages_k) {
                            stage = wait();
                            read(stage, 0);
                        }
                    }
                }
                wgmma_wait_group<1>();
                if (word == 0 && h == 0 && k > 0) mbarrier_arrive(cta.empty(previous));
            }
        }
    }
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) pin_float(acc[i]);
    mbarrier_arrive(cta.empty(previous));
}

template <class C>
__device__ __forceinline__ void multiply_tiles(const grouped_problem &p, const sm90_grouped_few_schedule &s,
                                               const grouped_cta<C> &cta, int warp, const uint8_t *shared) {
    const math_lane<C> own(p.g, warp, s.stages_k);
    const int first_column = own.column - (int)threadIdx.x % 32 / 4; /* of the warp */
    pipeline_state<C::STAGES> state;
    uint32_t phase = 1; /* of the wait for an empty staging buffer */
    tile_reader<C> tiles(cta, shared);
    for (; const auto *tile = tiles.next(); phase ^= 1) {
        with_width<C>(tile->rows, [&](auto width) {
            constexpr int WIDTH = decltype(width)::ROWS;
            const lane_columns columns(p, *tile, own.column);
            /* Without a value the accumulators of all widths would be live around the loop, and not fit. */
            float acc[WIDTH / 2] = {};
            few_mainloop<C, WIDTH>(cta, own, state, acc);
            mbarrier_wait(cta.drained(), phase);
            stage_results<C, WIDTH>(p, *tile, cta.staging(), first_column, columns, acc);
            mbarrier_arrive(cta.staged());
        });
        tiles.release();
    }
}

/* ---- the kernel ---- */

template <class C>
__device__ __forceinline__ void multiply(const grouped_problem &p, const sm90_grouped_few_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const grouped_cta<C> cta{shared_address(shared)};
    if (cta.base % 1024) __trap(); /* the swizzle pattern follows absolute addresses */
    prologue(s.b, cta);
    if (!s.early_b) begin_dependent_grid();
    group_table &table = *(group_table *)(shared + C::TABLE_OFFSET);
    /* Scratch in the staging buffers, which the barrier at the end of group_table::fill frees. */
    table.fill(p.ends, p.groups, (int)p.g.m, C::ROWS, *(group_table_scratch<C::THREADS> *)(shared + C::STAGING_OFFSET));

    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    if (s.early_b && warp != C::MATH_WARPS + C::COPY_WARPS) begin_dependent_grid();
    if (warp < C::MATH_WARPS) {
        setmaxnreg_inc<MATH_REGISTERS>();
        multiply_tiles(p, s, cta, warp, shared);
    } else if (warp < C::MATH_WARPS + C::COPY_WARPS) {
        setmaxnreg_dec<COPY_REGISTERS>();
        a_copies<C> copies(cta, p.g, s.stages_k);
        pipeline_state<C::STAGES> state;
        for (tile_reader<C> tiles(cta, shared); const auto *tile = tiles.next();) {
            copies.begin_tile(p.g, *tile);
            tiles.release();
            copies.copy_tile(state);
        }
    } else {
        setmaxnreg_dec<OTHER_REGISTERS>();
        const int role = warp - C::MATH_WARPS - C::COPY_WARPS;
        if (role == 0) {
            grouped_tiles tiles(table, p, s.tiles_n, blockIdx.x, gridDim.x, p.has_activation);
            produce(p, s, cta, tiles, (header_of<C> *)(shared + C::TILES_OFFSET), s.early_b,
                    [&](const grouped_tile &tile, int32_t column, int32_t early, int is_described,
                        pipeline_state<C::STAGES> &state) {
                        load_b(p, s, cta, tile.l, column, is_described ? early : 0, is_described ? s.stages_k : early,
                               state);
                    });
        } else if (role == 1) {
            pipeline_state<C::STAGES> state;
            for (tile_reader<C> tiles(cta, shared); tiles.next();) {
                tiles.release();
                if (elect_one()) pass_on_a(cta, s.stages_k, state);
                __syncwarp();
            }
        } else {
            store_tiles(p, s, cta, threadIdx.x - 32 * (C::MATH_WARPS + C::COPY_WARPS + C::OTHER_WARPS), shared);
        }
    }
}

#define KERNEL(id, rows, stages, bf16)                                                                                 \
    extern "C" __global__ void __launch_bounds__(SM90_GROUPED_FEW_THREADS, 1)                                          \
        nvfp4_##id(const __grid_constant__ grouped_problem p, const __grid_constant__ sm90_grouped_few_schedule s) {   \
        multiply<config<rows, stages, bf16>>(p, s);                                                                    \
    }
SM90_GROUPED_FEW_CONFIGS(KERNEL)
