/* Products of groups of rows of NVFP4 A, each group by an NVFP4 matrix of its own (common/grouped_problem.h), by
 * mma.sync kind::mxf4nvf4 with block scales (RTX 50, RTX PRO 6000, GB10).
 *
 * A tile and its pipeline are those of gemm.cu with swap_ab: mma_a, which has the 16 rows of an mma, is B; mma_b is up
 * to MMA_TILE_N rows of a group. The grid has at most a CTA an SM. Each CTA reads the ends of all groups into a table
 * (common/group_table.cuh) and takes tile after tile from it, so that the grid does not depend on the ends.
 *
 *   warp     role      waits for     work                                                    arrives on
 *   0-7      multiply  full[stage]   ldmatrix, mma.sync (tile.cuh); the epilogue (store.cuh) empty[stage]
 *   8        producer  empty[stage]  TMA loads, or cp.async by all lanes (tile.cuh)          full[stage]
 *
 * Tiles are numbered in the order of groups; of a group, first along its rows, then along the columns, part by part. So
 * tiles that share columns of a matrix run at the same time, and it comes from memory once.
 *
 * With an activation a tile of part 1 follows that of part 0 with the same rows and columns, in the same CTA; the two
 * have one number. Results of part 0 are stored as they would be without part 1. A thread reads them back where it has
 * those of part 1, the same elements, and stores `gated` of both. This takes no shared memory and no accumulators; the
 * rows of matrices that a CTA loads at a time, and their scales, are those of a product without activation.
 *
 * 128x4 scales of a group begin with a block of 128 rows of their own, and a tile does not cross blocks. A tile whose
 * block does not exist has no scales loaded, and its results are NaN, as are those of rows outside of A. Rows behind a
 * group's last one are those of the next group, or zeros; they reach only sums that are not stored. Scales behind the
 * end of K are masked.
 *
 * Shared memory of a CTA in KiB: 128x8 97, 128x16 83, 128x64 87, 128x128 89, 256x128 98. */
#include "kernels/common/batch_epilogue.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/group_activation.cuh"
#include "kernels/common/group_scales.cuh"
#include "kernels/common/group_table.cuh"
#include "kernels/common/placement.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/sm120/grouped_config.h"
#include "kernels/sm120/store.cuh"

/* setmaxnreg: as in gemm.cu. */
enum { PRODUCER_REGISTERS = 72, MULTIPLY_REGISTERS = 216 };

template <int... COLUMNS> struct grouped_config : config<COLUMNS...> {
    static constexpr int TABLE_OFFSET = grouped_config::SHARED_BYTES;

    static_assert(TABLE_OFFSET + GROUP_TABLE_BYTES <= 99 * 1024, "what sm_120 gives a CTA");
    static_assert(grouped_config::MMA_TILE_N <= SM120_ATOM_ROWS, "a tile does not cross blocks of scales");
};

/* A tile of a group. mma_m: the first column of its part; mma_n: the first row of the group; l: the matrix. */
struct group_coord : tile_coord {
    int32_t row, rows, part; /* the first row in the order of groups, and how many the group has from there on */
    int64_t scale_row;       /* 128x4: the first row of its scales; negative: they do not exist */
};

/* The tiles of this CTA, one after the other. The calls of a warp are converged. */
template <class C> struct tiles_of_groups {
    const group_table &table;
    const grouped_problem &p;
    uint32_t tiles_n, pairs, number, all;

    __device__ __forceinline__ tiles_of_groups(const group_table &table, const grouped_problem &p,
                                               const sm120_grouped_schedule &s)
        : table(table), p(p), tiles_n((uint32_t)s.tiles_n), pairs((uint32_t)s.pairs), number(blockIdx.x << pairs),
          all((uint32_t)table.tiles[p.groups] * tiles_n * (uint32_t)p.parts) {}

    /* The row of scales of a group's row; -1: there is none. It does not count where scales lie as the rows of A. */
    __device__ __forceinline__ int64_t scale_row(int32_t group, int32_t row) const {
        return p.scale_rows ? scale_row_of(p, group, row) : 0;
    }

    /* The next tile; false if there is none. */
    __device__ __forceinline__ bool next(group_coord &tile) {
        if (number >= all) return false;
        const uint32_t across = tiles_n * (uint32_t)p.parts;
        const int32_t group = table.group_of(p.groups, (int32_t)(number / across));
        const int32_t before = table.tiles[group], along = table.tiles[group + 1] - before;
        const uint32_t in_group = number - (uint32_t)before * across, of_pair = in_group & pairs;
        const uint32_t place = in_group >> pairs, column = place / (uint32_t)along;
        tile.part = (int32_t)(column / tiles_n);
        tile.mma_m = (int32_t)(column - tile.part * tiles_n) * C::MMA_TILE_M;
        tile.mma_n = (int32_t)(place - column * (uint32_t)along) * C::MMA_TILE_N;
        tile.part += (int32_t)of_pair;
        tile.l = group * p.parts + tile.part;
        tile.row = table.rows[group] + tile.mma_n;
        tile.rows = table.rows[group + 1] - tile.row;
        tile.scale_row = scale_row(group, tile.mma_n);
        tile.k_begin = 0;
        tile.k_end = (int32_t)((p.g.k + C::STAGE_K - 1) / C::STAGE_K);
        number += of_pair < pairs ? 1 : (gridDim.x << pairs) - pairs;
        return true;
    }
};

/* One thread: loads the stages of a tile. */
template <class C>
__device__ __forceinline__ void load_tile(const gemm_problem &g, const sm120_grouped_schedule &s,
                                          const cta_memory<C> &cta, const group_coord &tile,
                                          pipeline_state<C::STAGES> &state) {
    const operand_loader<C, C::MMA_TILE_M> mma_a{s.mma_a, 0, C::MMA_SFA_OFFSET};
    const operand_loader<C, C::MMA_TILE_N> mma_b{s.mma_b, C::MMA_B_OFFSET, C::MMA_SFB_OFFSET};
    const bool has_scales = tile.scale_row >= 0;
    const int scale_blocks = mma_a.scale_blocks(tile.mma_m) + has_scales;
    const uint8_t *scales = s.mma_b.scale + tile.scale_row / SM120_ATOM_ROWS * s.mma_b.scale_pitch;
#pragma unroll 1
    for (int32_t k = 0; k < tile.k_end; k++, state.advance(), scales += C::BLOCK_BYTES) {
        const uint32_t stage = cta.stage(state.index), full = cta.full(state.index);
        const int blocks = blocks_of<C>(g.k, k);
        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
        mbarrier_arrive_expect_tx(full, C::MMA_SFA_OFFSET + scale_blocks * blocks * SM120_ATOM_BYTES);
        mma_a.values_by_tma(stage, full, tile.mma_m, tile.l, k);
        mma_b.values_by_tma(stage, full, tile.row, 0, k);
        mma_a.scales_by_tma(stage, full, tile.mma_m, tile.l, k, blocks);
        if (has_scales)
            cp_async_bulk(stage + C::MMA_SFB_OFFSET, scales, blocks * SM120_ATOM_BYTES, full, s.mma_b.cache_policy);
    }
}

/* All lanes: the same where threads load scales. Rows of A may lie anywhere then, and so they load its values too. */
template <class C>
__device__ __forceinline__ void load_tile_by_lanes(const grouped_problem &p, const sm120_grouped_schedule &s,
                                                   const cta_memory<C> &cta, const group_coord &tile,
                                                   const operand_form &form, pipeline_state<C::STAGES> &state) {
    const operand_loader<C, C::MMA_TILE_M> mma_a{s.mma_a, 0, C::MMA_SFA_OFFSET};
    const operand_loader<C, C::MMA_TILE_N> mma_b{s.mma_b, C::MMA_B_OFFSET, C::MMA_SFB_OFFSET};
    const consecutive_rows rows_a{tile.mma_m};
    const listed_rows rows_b{p.rows, tile.row, p.a_rows};
    const listed_rows scales_b = form.linear ? rows_b : listed_rows{nullptr, tile.scale_row, INT64_MAX};
    const int count_a = mma_a.count(tile.mma_m), count_b = min(C::MMA_TILE_N, tile.rows);
    const int scales = tile.scale_row < 0 ? 0 : count_b, in_block = tile.mma_n % SM120_ATOM_ROWS;
    const bool b_by_tma = form.values_by_tma && !p.rows;
#pragma unroll 1
    for (int32_t k = 0; k < tile.k_end; k++, state.advance()) {
        const uint32_t stage = cta.stage(state.index), full = cta.full(state.index);
        const int blocks = blocks_of<C>(form.k, k);
        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
        if (threadIdx.x % 32 == 0) {
            mbarrier_arrive_expect_tx(full, b_by_tma ? C::MMA_SFA_OFFSET : form.values_by_tma ? C::MMA_B_OFFSET : 0);
            if (form.values_by_tma) mma_a.values_by_tma(stage, full, tile.mma_m, tile.l, k);
            if (b_by_tma) mma_b.values_by_tma(stage, full, tile.row, 0, k);
        }
        __syncwarp();
        if (!form.values_by_tma) mma_a.values_by_lanes(stage, rows_a, count_a, tile.l, k, form.k / 2);
        if (!b_by_tma) mma_b.values_by_lanes(stage, rows_b, count_b, 0, k, form.k / 2);
        mma_a.scales_by_lanes(stage, rows_a, 0, count_a, tile.l, k, blocks, form);
        mma_b.scales_by_lanes(stage, scales_b, in_block, scales, 0, k, blocks, form);
        arrive_loaded(full, form.words);
    }
}

/* The rows of the result that a tile has, as store_warp writes them. */
struct group_output {
    const grouped_problem &p;
    const group_coord &tile;
    const gating &numbers; /* of the activation */
    using loaded = gate_results;

    __device__ __forceinline__ int64_t rows() const { return tile.rows; }
    __device__ __forceinline__ int64_t columns() const { return p.g.n; }
    __device__ __forceinline__ four_column_epilogue epilogue(int64_t n) const {
        four_column_epilogue columns(p.g, n);
        take_batch(columns, p.g, tile.l);
        return columns;
    }
    __device__ __forceinline__ char *place(int64_t row, int64_t n) const {
        const gemm_problem &g = p.g;
        return (char *)g.out + (tile.row + row) * g.out_pitch + tile.part * g.out_batch + n * type_bytes(g.out_type);
    }
    __device__ __forceinline__ void load(int64_t row, int64_t n, loaded &gate) const {
        if (!p.has_activation || tile.part == 0) return;
        const void *out = place(row, n);
        if (loaded::are_ahead(out, p.g.out_type, (int)min((int64_t)4, p.g.n - n))) gate.load(out);
    }
    __device__ __forceinline__ void store(const four_column_epilogue &columns, int64_t row, float (&sums)[4],
                                          const loaded &gate) const {
        const gemm_problem &g = p.g;
        const int64_t at = tile.row + row;
        const bool exists = tile.scale_row >= 0 && (!p.rows || (p.rows[at] >= 0 && p.rows[at] < p.a_rows));
        const float factor = !exists ? __int_as_float(0x7FFFFFFF) : p.row_scale ? p.row_scale[at] : 1.0f;
        scale_row(columns, g, factor, sums);
        char *out = place(row, columns.n);
        if (p.has_activation && tile.part + 1 == p.parts) activate(p, numbers, out, gate, sums, columns.count);
        store_floats(out, g.out_type, sums, columns.count);
    }
};

template <class C> __device__ __forceinline__ void multiply(const grouped_problem &p, const sm120_grouped_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const cta_memory<C> cta{shared_address(shared)};
    if (cta.base % 1024) __trap(); /* the swizzle XORs absolute address bits */
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        if (p.g.k > 0) {
            prefetch_tensormap(&s.mma_a.values);
            prefetch_tensormap(&s.mma_b.values);
        }
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(cta.full(i), s.scales_by_tma ? 1 : 1 + 32);
            mbarrier_init(cta.empty(i), C::WARPS);
        }
        fence_mbarrier_init();
    }
    griddepcontrol_wait();
    if (threadIdx.x == 0) griddepcontrol_launch_dependents();
    group_table &table = *(group_table *)(shared + C::TABLE_OFFSET);
    /* Scratch in the epilogue staging buffers; the barrier at the end of fill orders mbarrier_init, too. */
    table.fill<C::THREADS>(p.ends, p.groups, (int)p.g.m, C::MMA_TILE_N,
                           *(group_table_scratch<C::THREADS> *)(shared + C::STAGING_OFFSET));

    tiles_of_groups<C> tiles(table, p, s);
    group_coord tile;
    if (warp >= C::PRODUCER_WARP) {
        if constexpr (C::MOVES_REGISTERS) setmaxnreg_dec<PRODUCER_REGISTERS>();
        const operand_form form = form_of(p.g, s);
        pipeline_state<C::STAGES> state;
        while (warp == C::PRODUCER_WARP && tiles.next(tile)) {
            if (!s.scales_by_tma)
                load_tile_by_lanes<C>(p, s, cta, tile, form, state);
            else if (elect_one())
                load_tile<C>(p.g, s, cta, tile, state);
            __syncwarp();
        }
        return;
    }
    if constexpr (C::MOVES_REGISTERS) setmaxnreg_inc<MULTIPLY_REGISTERS>();
    tile_consumer<C> consumer(cta, p.g.k);
    while (tiles.next(tile)) {
        accumulators<C> acc = {};
        consumer.template run<true>(tile, acc);
        store_warp<C>(group_output{p, tile, s.numbers}, cta, true, tile.mma_m, 0, acc);
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(grouped_config<__VA_ARGS__>::THREADS, 1)                              \
        nvfp4_##id(const __grid_constant__ grouped_problem p, const __grid_constant__ sm120_grouped_schedule s) {      \
        RECORD_CTA();                                                                                                  \
        multiply<grouped_config<__VA_ARGS__>>(p, s);                                                                   \
    }
SM120_GROUPED_CONFIGS(KERNEL)
