/* Products of groups of rows of NVFP4 A, each group by an NVFP4 matrix of its own (common/grouped_problem.h), by
 * tcgen05.mma kind::mxf4nvf4 (Blackwell), and gated products, which need two matrices a group.
 *
 * mma_a is B, 128 columns of the result; mma_b is up to MMA_TILE_N rows of a group. So a lane of an accumulator is a
 * column of the result. The mma takes as many rows as the tile has, rounded up to 16, so one instantiation serves
 * groups of few rows and of many. The grid has at most a CTA an SM. Each CTA reads the ends of all groups into a table
 * (common/group_table.cuh) and takes tile after tile from it, so that the grid does not depend on the ends.
 *
 *   warp  role                  threads  waits for     work                                    arrives on
 *   0-3   epilogue (pairs: 6-9  128      acc_full[i]   tcgen05.ld, activation, store           acc_empty[i]
 *         too, rows from 128 on)
 *   4     producer              1        empty[stage]  loads of values and scales              full[stage]
 *   5     mma                   1        full[stage]   tcgen05.cp of scales, tcgen05.mma       empty[stage]
 *                                        acc_empty[i]  (once a tile)                           acc_full[i]
 *
 * Each role finds its tiles in the table itself, as a converged warp.
 *
 * A dense group needs no table (groups.cuh).
 *
 * With CTA_GROUP = 2 two CTAs issue one mma. Each loads its 128 rows of mma_a, half of the rows of mma_b and all scales
 * of mma_b. full and acc_empty of the leader, the CTA of rank 0, count for both CTAs; its mma warp alone issues, and
 * commits arrive in both. The leader reads the ends and copies its table to the other CTA: two tables could differ
 * where ends change meanwhile, and CTAs with different tiles would wait for each other forever.
 *
 * With MATRICES = 2 gate and up of the same columns are multiplied by the same rows of A, and only the activation is
 * stored. A CTA alone has two mma_a and accumulators side by side, so gate and up of an element meet in one thread. In
 * a pair mma_a has 16 rows of gate and the 16 of up in turn: a warp's lower lanes have gate of 16 columns, the upper
 * ones up. Of 32 rows of the result each half of the warp passes 16 to the other by shuffles. Row 32 w + 16 h + i of a
 * CTA's mma_a, i < 16, is column 32 w + 16 rank + i of the tile's 128, of gate (h = 0) or up: in the 128x4 layout the
 * scales of these rows are then half an atom of each matrix, and one TMA load of four dimensions brings either
 * operand.
 *
 * A pair has room for one accumulator of 256 columns. Its epilogue takes all sums of a tile into registers, rounded to
 * the 16-bit type of the result, before it stores one, so that the next tile's mma waits for loads alone.
 *
 * An activation may leave as NVFP4, quantized from its fp32 value (grouped_quantize.cuh).
 *
 * 128x4 scales of a group begin with a block of 128 rows of their own, and a tile begins with a block or lies in one. A
 * block that does not exist comes from a pair's tensor map as zeros, else it is what the stage still holds; its results
 * are NaN. Which groups have scales is in memory, and roles that each read it must not disagree on what they wait for.
 * Rows behind a group's last one, which are those of the next group or zeros, and their scales reach only columns of an
 * accumulator that are not stored.
 *
 * Shared memory of a CTA: stages, each
 *
 *   values of each mma_a 16384 | of mma_b 128 a row | scales of each mma_a 2048 | of mma_b 2048 (pairs: 4096)
 *
 * then full | empty | acc_full | acc_empty | TMEM address | scratch of the table | table. In KiB, rounded up: 128x64
 * 205, 128x128 225, gated 128x64 193, gated 128x128 225, the pairs 199.
 *
 * Tensor memory: accumulators of MMA_TILE_N columns for each mma_a, then the scale columns of each stage. Each stage
 * has its own, as in gemm.cu: PTX does not order a tcgen05.cp after an earlier tcgen05.mma (9.7.16.6).
 *
 * Copies take whole atoms of scales, so K % 64 == 0; scales are 128x4, and tensor maps describe the values. */
#include "kernels/common/batch_epilogue.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/group_activation.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/placement.cuh"
#include "kernels/common/tcgen05.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/sm100/column_pairs.cuh"
#include "kernels/sm100/grouped_config.h"
#include "kernels/sm100/grouped_quantize.cuh"
#include "kernels/sm100/groups.cuh"

/* EPILOGUE_WARPS is a group's. */
enum { EPILOGUE_WARPS = 4, PRODUCER_WARP = 4, MMA_WARP = 5 };
enum { CHUNK = SM100_GROUPED_MMA_STEP }; /* rows of the result that a thread stores at a time */
enum { PAIR = 3 };                       /* the cluster ranks of a pair, as a mask */

template <int CTA_GROUP_, int MATRICES_, int MMA_TILE_N_, int STAGES_, int ACCUMULATORS_> struct config {
    static constexpr int CTA_GROUP = CTA_GROUP_, MATRICES = MATRICES_, MMA_TILE_N = MMA_TILE_N_, STAGES = STAGES_;
    static constexpr int ACCUMULATORS = ACCUMULATORS_, THREADS = SM100_GROUPED_THREADS(CTA_GROUP);
    static constexpr int EPILOGUE_GROUPS = CTA_GROUP; /* each has the rows of one block of scales */
    static constexpr bool INTERLEAVED = CTA_GROUP == 2 && MATRICES == 2;
    static constexpr bool ROUNDS = !SM100_GROUPED_DUAL; /* products, before an activation */
    static constexpr int CTA_MMAS = SM100_GROUPED_CTA_MMAS(CTA_GROUP, MATRICES);
    static constexpr int SUMS = SM100_GROUPED_SUMS(CTA_GROUP, MATRICES, MMA_TILE_N); /* columns of accumulators */
    static constexpr int MMA_SFB_ATOMS = CEIL_DIV(MMA_TILE_N, SM100_ATOM_ROWS);      /* a K block of 64 */
    static constexpr int LOADED_ROWS = INTERLEAVED ? 2 * CHUNK : CHUNK;              /* of which a lane stores CHUNK */
    /* Byte offsets in a stage; values of the first mma_a are at 0. */
    static constexpr int STAGE_BYTES = SM100_GROUPED_STAGE_BYTES(CTA_GROUP, MATRICES, MMA_TILE_N);
    static constexpr int MMA_B_OFFSET = CTA_MMAS * SM100_MMA_A_BYTES;
    static constexpr int MMA_SFA_OFFSET = MMA_B_OFFSET + SM100_MMA_B_BYTES(CTA_GROUP, MMA_TILE_N);
    static constexpr int MMA_SFB_OFFSET = MMA_SFA_OFFSET + CTA_MMAS * SM100_MMA_SFA_BYTES;
    /* Byte offsets after the stages. */
    static constexpr int FULL_OFFSET = STAGES * STAGE_BYTES, EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES;
    static constexpr int ACC_FULL_OFFSET = EMPTY_OFFSET + 8 * STAGES;
    static constexpr int ACC_EMPTY_OFFSET = ACC_FULL_OFFSET + 8 * ACCUMULATORS;
    static constexpr int TMEM_ADDRESS_OFFSET = ACC_EMPTY_OFFSET + 8 * ACCUMULATORS;
    static constexpr int SCRATCH_OFFSET = FULL_OFFSET + SM100_GROUPED_BARRIER_BYTES(STAGES, ACCUMULATORS);
    static constexpr int TABLE_OFFSET = SCRATCH_OFFSET + SM100_GROUPED_SCRATCH_BYTES(CTA_GROUP);
    /* Tensor memory columns. */
    static constexpr int SCALES_COLUMN = ACCUMULATORS * SUMS;
    static constexpr int SCALE_COLUMNS = SM100_GROUPED_SCALE_COLUMNS(CTA_GROUP, MATRICES, MMA_TILE_N);

    static_assert(STAGE_BYTES % 1024 == 0 && MMA_SFA_OFFSET % 1024 == 0,
                  "the 128-byte swizzle repeats every 1024 bytes");
    static_assert(sizeof(group_table_scratch<THREADS>) <= SM100_GROUPED_SCRATCH_BYTES(CTA_GROUP) &&
                      TMEM_ADDRESS_OFFSET + 4 <= SCRATCH_OFFSET &&
                      TABLE_OFFSET + GROUP_TABLE_BYTES ==
                          SM100_GROUPED_SHARED_BYTES(CTA_GROUP, MATRICES, MMA_TILE_N, STAGES, ACCUMULATORS),
                  "as the host reserves it");
    static_assert(TABLE_OFFSET + GROUP_TABLE_BYTES <= 227 * 1024, "shared memory of a CTA");
    static_assert(SM100_GROUPED_USED_COLUMNS(CTA_GROUP, MATRICES, MMA_TILE_N, STAGES, ACCUMULATORS) <=
                      SM100_GROUPED_TMEM_COLUMNS,
                  "tensor memory of a CTA");
    static_assert(SM100_ATOM_ROWS * EPILOGUE_GROUPS % MMA_TILE_N == 0 && MMA_SFB_ATOMS == EPILOGUE_GROUPS,
                  "what an epilogue group has of a tile does not cross blocks of scales");
};

/* Shared addresses, and the rank in the pair. */
template <class C> struct cta_memory {
    uint32_t base, rank;

    __device__ __forceinline__ uint32_t stage(uint32_t index) const { return base + index * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t index) const { return base + C::FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t empty(uint32_t index) const { return base + C::EMPTY_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t acc_full(uint32_t index) const { return base + C::ACC_FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t acc_empty(uint32_t index) const {
        return base + C::ACC_EMPTY_OFFSET + 8 * index;
    }
    __device__ __forceinline__ uint32_t tmem_address() const { return base + C::TMEM_ADDRESS_OFFSET; }
    /* The leader's barrier of the same offset, as a shared::cluster address. */
    __device__ __forceinline__ uint32_t of_leader(uint32_t barrier) const {
        return C::CTA_GROUP == 1 ? barrier : mapa(barrier, 0);
    }
};

__device__ __forceinline__ int32_t k_stages(const grouped_problem &p) {
    return (int32_t)((p.g.k + SM100_STAGE_K - 1) / SM100_STAGE_K);
}

/* K blocks of 64 in a stage: 4, fewer in the last one. */
__device__ __forceinline__ int blocks_of(int64_t k, int32_t stage) {
    return (int)min((int64_t)SM100_STAGE_ATOMS, k / SM100_MMA_K - (int64_t)stage * SM100_STAGE_ATOMS);
}

/* Rows of the mma. */
__device__ __forceinline__ int mma_rows(const grouped_tile &tile) {
    return (tile.rows + SM100_GROUPED_MMA_STEP - 1) / SM100_GROUPED_MMA_STEP * SM100_GROUPED_MMA_STEP;
}

/* Blocks of scales of mma_b that the tile has rows in. */
__device__ __forceinline__ int scale_blocks(const grouped_tile &tile) {
    return (tile.rows + SM100_ATOM_ROWS - 1) / SM100_ATOM_ROWS;
}

/* One thread of each CTA of a pair: loads its part of the stages of a tile. Scales come by tensor maps, because no
 * other copy can signal the leader's mbarrier. A block that does not exist counts as many bytes: CTAs that read
 * different scale_rows expect the same. */
template <class C>
__device__ __forceinline__ void load_tile_of_pair(const grouped_problem &p, const sm100_grouped_schedule &s,
                                                  const cta_memory<C> &cta, const grouped_tile &tile,
                                                  pipeline_state<C::STAGES> &state) {
    const mma_operand &a = s.mma_a, &b = s.mma_b;
    constexpr int BOX_BYTES = SM100_GROUPED_BOX_ROWS * SM100_STAGE_K / 2;
    const int32_t block = C::INTERLEAVED ? tile.column : tile.column * 2 + (int32_t)cta.rank; /* of 128 columns */
    const int32_t rows = mma_rows(tile) / 2, row = tile.row + (int32_t)cta.rank * rows;
    const int boxes = (rows + SM100_GROUPED_BOX_ROWS - 1) / SM100_GROUPED_BOX_ROWS, atoms = scale_blocks(tile);
    int32_t blocks_of_b[C::MMA_SFB_ATOMS];
    for (int i = 0; i < C::MMA_SFB_ATOMS; i++) {
        const int64_t at = loaded_scale_row(p, s, tile.group, tile.row_in_group + i * SM100_ATOM_ROWS);
        blocks_of_b[i] = at < 0 ? -1 : (int32_t)(at / SM100_ATOM_ROWS);
    }
#pragma unroll 1
    for (int32_t k = 0; k < k_stages(p); k++, state.advance()) {
        const uint32_t stage = cta.stage(state.index), full = cta.of_leader(cta.full(state.index));
        const int32_t byte = k * (SM100_STAGE_K / 2), atom = k * SM100_STAGE_ATOMS;
        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
        if (cta.rank == 0)
            mbarrier_arrive_expect_tx(cta.full(state.index), 2 * (SM100_MMA_A_BYTES + SM100_MMA_SFA_BYTES +
                                                                  boxes * BOX_BYTES + atoms * SM100_MMA_SFA_BYTES));
        if constexpr (C::INTERLEAVED) {
            constexpr int ROWS = SM100_GROUPED_INTERLEAVED_ROWS, TURNS = SM100_CTA_ROWS / (2 * ROWS);
            tma_load_4d_2sm(stage, &a.values, byte, (int32_t)cta.rank * ROWS, tile.l, block * TURNS, full,
                            a.cache_policy);
            tma_load_4d_2sm(stage + C::MMA_SFA_OFFSET, &s.mma_a_scales, (int32_t)cta.rank * (SM100_ATOM_BYTES / 4),
                            tile.l, atom, block, full, a.cache_policy);
        } else {
            tma_load_3d<2>(stage, &a.values, byte, block * SM100_CTA_ROWS, tile.l, full, a.cache_policy);
            tma_load_4d_2sm(stage + C::MMA_SFA_OFFSET, &s.mma_a_scales, 0, atom, block, tile.l, full, a.cache_policy);
        }
        for (int i = 0; i < boxes; i++)
            tma_load_3d<2>(stage + C::MMA_B_OFFSET + i * BOX_BYTES, &b.values, byte, row + i * SM100_GROUPED_BOX_ROWS,
                           0, full, b.cache_policy);
#pragma unroll
        for (int i = 0; i < C::MMA_SFB_ATOMS; i++)
            if (i < atoms)
                tma_load_4d_2sm(stage + C::MMA_SFB_OFFSET + i * SM100_MMA_SFA_BYTES, &s.mma_b_scales, 0, atom,
                                blocks_of_b[i], 0, full, b.cache_policy);
    }
}

/* One thread: loads the stages of a tile. */
template <class C>
__device__ __forceinline__ void load_tile(const grouped_problem &p, const sm100_grouped_schedule &s,
                                          const cta_memory<C> &cta, const grouped_tile &tile,
                                          pipeline_state<C::STAGES> &state) {
    const mma_operand &a = s.mma_a, &b = s.mma_b;
    const int32_t column = tile.column * SM100_CTA_ROWS;
    const int boxes = (tile.rows + SM100_GROUPED_BOX_ROWS - 1) / SM100_GROUPED_BOX_ROWS;
    const int64_t row_of_scales = loaded_scale_row(p, s, tile.group, tile.row_in_group);
    const uint8_t *scales_a = a.scale + tile.l * a.scale_batch + tile.column * a.scale_pitch;
    const uint8_t *scales_b = b.scale + row_of_scales / SM100_ATOM_ROWS * b.scale_pitch;
#pragma unroll 1
    for (int32_t k = 0; k < k_stages(p); k++, state.advance()) {
        const uint32_t stage = cta.stage(state.index), full = cta.full(state.index);
        const int scale_bytes = blocks_of(p.g.k, k) * SM100_ATOM_BYTES;
        const int box_bytes = SM100_GROUPED_BOX_ROWS * SM100_STAGE_K / 2;
        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
        mbarrier_arrive_expect_tx(full, C::MATRICES * (SM100_MMA_A_BYTES + scale_bytes) + boxes * box_bytes +
                                            (row_of_scales < 0 ? 0 : scale_bytes));
#pragma unroll
        for (int i = 0; i < C::MATRICES; i++) {
            tma_load_3d<1>(stage + i * SM100_MMA_A_BYTES, &a.values, k * (SM100_STAGE_K / 2), column, tile.l + i, full,
                           a.cache_policy);
            cp_async_bulk(stage + C::MMA_SFA_OFFSET + i * SM100_MMA_SFA_BYTES,
                          scales_a + i * a.scale_batch + (int64_t)k * SM100_MMA_SFA_BYTES, scale_bytes, full,
                          a.cache_policy);
        }
        for (int i = 0; i < boxes; i++)
            tma_load_3d<1>(stage + C::MMA_B_OFFSET + i * box_bytes, &b.values, k * (SM100_STAGE_K / 2),
                           tile.row + i * SM100_GROUPED_BOX_ROWS, 0, full, b.cache_policy);
        if (row_of_scales >= 0)
            cp_async_bulk(stage + C::MMA_SFB_OFFSET, scales_b + (int64_t)k * SM100_MMA_SFA_BYTES, scale_bytes, full,
                          b.cache_policy);
    }
}

/* One thread, in a pair the leader's: the tcgen05.cp and tcgen05.mma of a tile into the accumulators at tensor memory
 * address d. */
template <class C>
__device__ __forceinline__ void multiply_tile(const grouped_problem &p, const cta_memory<C> &cta,
                                              const grouped_tile &tile, uint32_t tmem, uint32_t d,
                                              pipeline_state<C::STAGES> &state) {
    const uint32_t instruction = instruction_descriptor(SM100_CTA_ROWS * C::CTA_GROUP, mma_rows(tile));
    /* A tile of 64 rows uses half of a scale atom's 128: columns 0-1 or 2-3. */
    const uint32_t half = C::MMA_TILE_N == 64 ? tile.row_in_group / 64 % 2 * 2 : 0;
    const int atoms = C::MMA_SFB_ATOMS == 1 ? 1 : scale_blocks(tile);
#pragma unroll 1
    for (int32_t k = 0; k < k_stages(p); k++, state.advance()) {
        mbarrier_wait(cta.full(state.index), state.phase);
        tcgen05_fence_after_thread_sync();
        const uint32_t stage = cta.stage(state.index);
        const uint32_t sfa = tmem + C::SCALES_COLUMN + state.index * C::SCALE_COLUMNS;
        const uint32_t sfb = sfa + C::CTA_MMAS * 4 * SM100_STAGE_ATOMS;
        const uint64_t sfa_atoms = smem_descriptor_atom(stage) + C::MMA_SFA_OFFSET / 16;
        const uint64_t sfb_atoms = smem_descriptor_atom(stage) + C::MMA_SFB_OFFSET / 16;
        const uint64_t mma_a = smem_descriptor_sw128(stage), mma_b = mma_a + C::MMA_B_OFFSET / 16;
        const int blocks = blocks_of(p.g.k, k);
#pragma unroll
        for (int i = 0; i < SM100_STAGE_ATOMS; i++) {
            if (i >= blocks) break;
#pragma unroll
            for (int j = 0; j < C::CTA_MMAS; j++)
                tcgen05_cp_atom<C::CTA_GROUP>(sfa + 4 * (j * SM100_STAGE_ATOMS + i),
                                              sfa_atoms + (j * SM100_MMA_SFA_BYTES + i * SM100_ATOM_BYTES) / 16);
#pragma unroll
            for (int j = 0; j < C::MMA_SFB_ATOMS; j++)
                if (j < atoms)
                    tcgen05_cp_atom<C::CTA_GROUP>(sfb + 4 * (i * C::MMA_SFB_ATOMS + j),
                                                  sfb_atoms + (j * SM100_MMA_SFA_BYTES + i * SM100_ATOM_BYTES) / 16);
        }
#pragma unroll
        for (int i = 0; i < SM100_STAGE_ATOMS; i++) {
            if (i >= blocks) break;
#pragma unroll
            for (int j = 0; j < C::CTA_MMAS; j++)
                tcgen05_mma_mxf4nvf4<C::CTA_GROUP>(
                    d + j * C::MMA_TILE_N, mma_a + (j * SM100_MMA_A_BYTES + i * SM100_MMA_K / 2) / 16,
                    mma_b + i * SM100_MMA_K / 32, instruction, sfa + 4 * (j * SM100_STAGE_ATOMS + i),
                    sfb + 4 * i * C::MMA_SFB_ATOMS + half, k > 0 || i > 0);
        }
        tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), PAIR);
    }
}

/* The rows of a tile that an epilogue group has, in one block of scales; maybe none. */
__device__ __forceinline__ grouped_tile rows_of_group(grouped_tile tile, int group) {
    tile.row += group * SM100_ATOM_ROWS, tile.row_in_group += group * SM100_ATOM_ROWS;
    tile.rows = min(tile.rows - group * SM100_ATOM_ROWS, (int32_t)SM100_ATOM_ROWS);
    return tile;
}

/* A lane's column of a tile: the epilogue of each matrix, and the stores. */
template <class C> struct column_output {
    static constexpr int OWN = C::CTA_MMAS; /* matrices of which the lane has sums */

    const grouped_problem &p;
    const sm100_grouped_schedule &s;
    const grouped_tile &tile;
    int64_t n; /* the column of its part */
    bool exists, is_nan;
    float alpha[OWN], bias[OWN];

    __device__ __forceinline__ column_output(const grouped_problem &p, const sm100_grouped_schedule &s,
                                             const grouped_tile &tile, uint32_t rank)
        : p(p), s(s), tile(tile), is_nan(!has_scales(p, s, tile.group, tile.row_in_group)) {
        constexpr int ROWS = SM100_GROUPED_INTERLEAVED_ROWS;
        const int lane = threadIdx.x % SM100_CTA_ROWS;
        n = first_column(tile, rank) + (C::INTERLEAVED ? lane / 32 * 32 + (int)rank * ROWS + lane % ROWS : lane);
        exists = n < p.g.n;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            one_column_epilogue column(p.g, min(n, p.g.n - 1));
            take_batch(column, p.g, tile.l + (C::INTERLEAVED ? (int)is_upper() : i));
            alpha[i] = column.alpha, bias[i] = column.bias;
        }
    }

    /* The first of 128 columns among which are the CTA's. */
    static __device__ __forceinline__ int64_t first_column(const grouped_tile &tile, uint32_t rank) {
        return (int64_t)tile.column * SM100_GROUPED_TILE_COLUMNS(C::CTA_GROUP, C::MATRICES) +
               (C::INTERLEAVED ? 0 : (int)rank * SM100_CTA_ROWS);
    }

    /* Whether the lane is in the upper half of a warp. */
    static __device__ __forceinline__ bool is_upper() { return threadIdx.x & SM100_GROUPED_INTERLEAVED_ROWS; }

    /* The first row that the lane stores of LOADED_ROWS from `row` on. */
    static __device__ __forceinline__ int stored_from(int row) {
        return row + (C::INTERLEAVED && is_upper() ? (int)CHUNK : 0);
    }

    /* The factor of the tile's row. */
    __device__ __forceinline__ float factor_of(int row) const {
        float factor = 1.0f;
        if (p.row_scale && row < tile.rows) factor = p.row_scale[(int64_t)tile.row + row];
        if (is_nan) factor = __int_as_float(0x7FFFFFFF);
        return factor;
    }

    /* Results by matrix i, before the factors of their rows, from their sums. */
    template <int COUNT> __device__ __forceinline__ void scale(float (&v)[COUNT], int i) const {
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            v[j] = __fmul_rn(alpha[i], v[j]);
            if (p.g.bias) v[j] = __fadd_rn(v[j], bias[i]);
        }
    }

    /* The rows that the lane stores, before they are rounded, from the results by each matrix, in a pair rounded ones.
     * All lanes of a warp. */
    __device__ __forceinline__ void activate(const float (&of)[OWN][C::LOADED_ROWS], float (&v)[CHUNK]) const {
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            float gate = of[0][i], up = 1.0f; /* one matrix of an activation is gate, and 1 stands for up */
            if constexpr (C::INTERLEAVED) {
                const float first = of[0][i], second = of[0][i + CHUNK];
                const float got = __shfl_xor_sync(0xffffffff, is_upper() ? first : second, CHUNK);
                gate = is_upper() ? got : first, up = is_upper() ? second : got;
            } else if (C::MATRICES == 2) {
                up = of[OWN - 1][i];
                if (C::ROUNDS) up = rounded(up, p.g.out_type);
            }
            if (p.has_activation && C::CTA_GROUP == 1 && C::ROUNDS) gate = rounded(gate, p.g.out_type);
            if (SM100_GROUPED_DUAL && s.up_is_first) {
                const float first = gate;
                gate = up, up = first;
            }
            v[i] = p.has_activation ? gated(p.activation, gate, up, s.numbers) : gate;
        }
    }

    /* Stores results of rows row, row + 1, ... as numbers. All lanes of a warp. */
    __device__ __forceinline__ void store(float (&v)[CHUNK], int row) const {
        const gemm_problem &g = p.g;
        const int64_t at = (int64_t)tile.row + row;
        const int count = min((int)CHUNK, tile.rows - row);
        char *to = (char *)g.out + at * g.out_pitch + tile.part * g.out_batch + n * type_bytes(g.out_type);
        if (s.column_pairs && g.out_type == NVFP4_FP16)
            store_column_pairs<NVFP4_FP16>(v, to, g.out_pitch, exists, count);
        else if (s.column_pairs)
            store_column_pairs<NVFP4_BF16>(v, to, g.out_pitch, exists, count);
        else if (exists)
            store_some(v, to, g.out_pitch, g.out_type, count);
    }
};

/* Factors of the rows of an epilogue group in the registers of a warp: lane i has those of rows i, i + 32, ... They are
 * loaded before the warp waits for sums: an accumulator that is read is not held until memory answers. */
struct row_factors {
    bool by_row; /* else all rows have one */
    float of[SM100_ATOM_ROWS / 32];

    template <class C>
    __device__ __forceinline__ explicit row_factors(const column_output<C> &out) : by_row(out.p.row_scale) {
#pragma unroll
        for (int i = 0; i < SM100_ATOM_ROWS / 32; i++) of[i] = out.factor_of(i * 32 + threadIdx.x % 32);
    }
    /* Multiplies rows row, row + 1, ... by their factors. All lanes of a warp. */
    __device__ __forceinline__ void multiply(float (&v)[CHUNK], int row) const {
        if (by_row) {
#pragma unroll
            for (int i = 0; i < CHUNK; i++) v[i] = __fmul_rn(v[i], __shfl_sync(0xffffffff, of[row / 32], row % 32 + i));
        } else {
#pragma unroll
            for (int i = 0; i < CHUNK; i++) v[i] = __fmul_rn(v[i], of[0]);
        }
    }
};

/* The rows of an epilogue group in registers, two in one, rounded to the 16-bit type of the result, as an activation
 * takes them: the mma may overwrite the accumulator while they are stored. */
template <class C> struct drained_rows {
    uint32_t pairs[SM100_ATOM_ROWS / 2];

    __device__ __forceinline__ drained_rows(const column_output<C> &out, const row_factors &factors,
                                            uint32_t accumulator, bool has_sums) {
#pragma unroll
        for (int row = 0; row < SM100_ATOM_ROWS; row += CHUNK) {
            float v[CHUNK] = {};
            if (row >= out.tile.rows) break;
            if (has_sums) {
                tcgen05_ld(v, accumulator + row);
                tcgen05_wait_ld(v);
            }
            out.scale(v, 0);
            factors.multiply(v, row);
#pragma unroll
            for (int i = 0; i < CHUNK; i += 2) pairs[(row + i) / 2] = pack_16(v[i], v[i + 1], out.p.g.out_type);
        }
    }

    /* The next rows. Those behind move up: an unrolled loop over all would be many times as long. */
    __device__ __forceinline__ void take(float (&v)[C::LOADED_ROWS], int32_t type) {
#pragma unroll
        for (int i = 0; i < C::LOADED_ROWS; i++) v[i] = value_16(pairs[i / 2] >> i % 2 * 16, type);
#pragma unroll
        for (int i = C::LOADED_ROWS / 2; i < SM100_ATOM_ROWS / 2; i++) pairs[i - C::LOADED_ROWS / 2] = pairs[i];
    }
};

/* The epilogue warps: warp w reads tensor memory lanes 32 (w % 4) to 32 (w % 4) + 31. In a pair the second group, warps
 * 6-9, has the rows of a tile from 128 on. */
template <class C>
__device__ __forceinline__ void epilogue(const grouped_problem &p, const sm100_grouped_schedule &s,
                                         const cta_memory<C> &cta, tiles_of_call tiles, uint32_t tmem) {
    const int group = C::EPILOGUE_GROUPS == 2 && threadIdx.x >= SM100_CTA_ROWS;
    const uint32_t lanes = tmem + (threadIdx.x / 32 % 4 << 21) + group * SM100_ATOM_ROWS;
    const bool has_sums = p.g.k > 0;
    const bool quantizes = s.quantized.data;
    const groups_of_call &groups = tiles.table;
    blocks_before before(groups);
    pipeline_state<C::ACCUMULATORS> acc;
    grouped_tile whole;
    if (quantizes && blockIdx.x == 0 && threadIdx.x < 32) store_scale_rows(groups, p.groups, s.quantized.scale_rows);
    for (; tiles.next(whole, C::MMA_TILE_N); acc.advance()) {
        const grouped_tile tile = C::EPILOGUE_GROUPS == 1 ? whole : rows_of_group(whole, group);
        const int32_t results = groups.results_of(p, tile.group);
        grouped_tile stored = tile; /* the rows that are results; maybe none */
        stored.rows = min(tile.rows, results - tile.row_in_group);
        const column_output<C> out(p, s, stored, cta.rank);
        const quantized_tile quantized(s.quantized, stored, p.g.n, out.n, quantizes ? before.of(tile.group) : 0);
        const uint32_t accumulator = lanes + acc.index * C::SUMS;
        /* All is read: the mma of a later tile may overwrite it while the last rows are stored. */
        auto release = [&] {
            tcgen05_fence_before_thread_sync();
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive_relaxed(cta.of_leader(cta.acc_empty(acc.index)));
        };
        auto store = [&](const float (&of)[C::CTA_MMAS][C::LOADED_ROWS], int row) {
            float v[CHUNK];
            out.activate(of, v);
            const int from = out.stored_from(row);
            if (quantizes)
                quantized.store(v, from, min((int)CHUNK, stored.rows - from));
            else
                out.store(v, from);
        };
        auto wait = [&] {
            if (!has_sums) return;
            mbarrier_wait(cta.acc_full(acc.index), acc.phase);
            tcgen05_fence_after_thread_sync();
        };
        if constexpr (C::EPILOGUE_GROUPS == 2 && C::ROUNDS) {
            const row_factors factors(out);
            wait();
            drained_rows<C> drained(out, factors, accumulator, has_sums);
            if (has_sums) release();
#pragma unroll 1
            for (int row = 0; row < stored.rows; row += C::LOADED_ROWS) {
                float of[1][C::LOADED_ROWS];
                drained.take(of[0], p.g.out_type);
                store(of, row);
            }
        } else {
            wait();
            if (C::EPILOGUE_GROUPS == 2 && has_sums && tile.rows <= 0) release();
#pragma unroll 1
            for (int row = 0; row < tile.rows; row += C::LOADED_ROWS) {
                float of[C::CTA_MMAS][C::LOADED_ROWS] = {};
                if (has_sums) {
#pragma unroll
                    for (int i = 0; i < C::CTA_MMAS; i++) tcgen05_ld(of[i], accumulator + i * C::MMA_TILE_N + row);
#pragma unroll
                    for (int i = 0; i < C::CTA_MMAS; i++) tcgen05_wait_ld(of[i]);
                    if (row + C::LOADED_ROWS >= tile.rows) release();
                }
#pragma unroll
                for (int i = 0; i < C::CTA_MMAS; i++) {
                    out.scale(of[i], i);
#pragma unroll
                    for (int j = 0; j < C::LOADED_ROWS; j++) of[i][j] = __fmul_rn(of[i][j], out.factor_of(row + j));
                }
                store(of, row);
            }
        }
        /* Both CTAs of a pair with two matrices have columns of the same 128. */
        const bool is_last = stored.rows > 0 && stored.row_in_group + stored.rows == results;
        if (quantizes && is_last && (!C::INTERLEAVED || cta.rank == 0))
            quantized.pad_rows(out.first_column(tile, cta.rank));
    }
}

template <class C> __device__ __forceinline__ void multiply(const grouped_problem &p, const sm100_grouped_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const cta_memory<C> cta{shared_address(shared), C::CTA_GROUP == 2 ? cluster_ctarank() : 0};
    if (cta.base % 1024) __trap(); /* the swizzle XORs absolute address bits */
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        if (p.g.k > 0) {
            prefetch_tensormap(&s.mma_a.values);
            prefetch_tensormap(&s.mma_b.values);
            if constexpr (C::CTA_GROUP == 2) {
                prefetch_tensormap(&s.mma_a_scales);
                prefetch_tensormap(&s.mma_b_scales);
            }
        }
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(cta.full(i), 1);
            mbarrier_init(cta.empty(i), 1);
        }
        for (int i = 0; i < C::ACCUMULATORS; i++) {
            mbarrier_init(cta.acc_full(i), 1);
            mbarrier_init(cta.acc_empty(i), EPILOGUE_WARPS * C::EPILOGUE_GROUPS * C::CTA_GROUP);
        }
        fence_mbarrier_init();
    }
    __syncwarp();
    if constexpr (C::CTA_GROUP == 2) { /* a pair allocates together, so both CTAs must have started */
        barrier_cluster_arrive_relaxed();
        barrier_cluster_wait();
    }
    if (warp == MMA_WARP) {
        tcgen05_alloc<C::CTA_GROUP, SM100_GROUPED_TMEM_COLUMNS>(cta.tmem_address());
        tcgen05_relinquish_alloc_permit<C::CTA_GROUP>();
        tcgen05_fence_before_thread_sync();
    }
    /* All threads, since all read what grids before may have written. */
    griddepcontrol_wait();
    /* After tcgen05.alloc, so that no CTA of the next grid takes these columns. */
    if (warp == MMA_WARP) griddepcontrol_launch_dependents();
    group_table &table = *(group_table *)(shared + C::TABLE_OFFSET);
    auto &scratch = *(group_table_scratch<C::THREADS> *)(shared + C::SCRATCH_OFFSET);
    /* The barrier at the end of fill, or the cluster's, orders mbarrier_init and the tensor memory address, too. */
    if (s.is_dense)
        __syncthreads();
    else if (cta.rank == 0)
        table.fill<C::THREADS>(p.ends, p.groups, (int)p.g.m, C::MMA_TILE_N, scratch);
    if constexpr (C::CTA_GROUP == 2) {
        if (!s.is_dense && cta.rank == 0) table.copy_to<C::THREADS>(1, p.groups);
        __syncwarp();
        barrier_cluster_arrive();
        barrier_cluster_wait();
    }
    tcgen05_fence_after_thread_sync();
    const uint32_t tmem = ld_shared(cta.tmem_address());

    const groups_of_call groups(table, p, s, C::MMA_TILE_N);
    tiles_of_call tiles(groups, p, s.tiles_n, blockIdx.x / C::CTA_GROUP, gridDim.x / C::CTA_GROUP, C::MATRICES > 1);
    pipeline_state<C::STAGES> state;
    grouped_tile tile;
    if (warp == PRODUCER_WARP) {
        while (tiles.next(tile, C::MMA_TILE_N)) {
            if (elect_one()) {
                if constexpr (C::CTA_GROUP == 2)
                    load_tile_of_pair<C>(p, s, cta, tile, state);
                else
                    load_tile<C>(p, s, cta, tile, state);
            }
            __syncwarp();
        }
        /* The last commits arrive on empty in this CTA's shared memory, which must still be allocated. */
        if (elect_one())
            for (int i = 0; i < C::STAGES; i++, state.advance()) mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
        __syncwarp();
    } else if (warp == MMA_WARP) {
        pipeline_state<C::ACCUMULATORS> acc;
        for (; cta.rank == 0 && p.g.k > 0 && tiles.next(tile, C::MMA_TILE_N); acc.advance()) {
            if (elect_one()) {
                mbarrier_wait(cta.acc_empty(acc.index), acc.phase ^ 1);
                tcgen05_fence_after_thread_sync();
                multiply_tile<C>(p, cta, tile, tmem, tmem + acc.index * C::SUMS, state);
                tcgen05_commit<C::CTA_GROUP>(cta.acc_full(acc.index), PAIR);
            }
            __syncwarp();
        }
        if constexpr (C::CTA_GROUP == 2) { /* the other CTA's last arrivals must find this CTA's shared memory */
            if (elect_one())
                for (int i = 0; i < C::ACCUMULATORS; i++, acc.advance())
                    mbarrier_wait(cta.acc_empty(acc.index), acc.phase ^ 1);
            __syncwarp();
        }
    } else {
        epilogue<C>(p, s, cta, tiles, tmem);
    }
    __syncwarp();
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    if constexpr (C::CTA_GROUP == 2) { /* until the other CTA's commits have completed and its accumulators are read */
        barrier_cluster_arrive_relaxed();
        barrier_cluster_wait();
    }
    tcgen05_fence_after_thread_sync();
    if (warp == MMA_WARP) tcgen05_dealloc<C::CTA_GROUP, SM100_GROUPED_TMEM_COLUMNS>(tmem);
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::THREADS, 1)                                      \
        nvfp4_##id(const __grid_constant__ grouped_problem p, const __grid_constant__ sm100_grouped_schedule s) {      \
        RECORD_CTA();                                                                                                  \
        multiply<config<__VA_ARGS__>>(p, s);                                                                           \
    }
SM100_GROUPED_CONFIGS(KERNEL)
