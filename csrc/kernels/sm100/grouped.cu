/* Products of groups of rows of NVFP4 A, each group by an NVFP4 matrix of its own (common/grouped_problem.h), by
 * tcgen05.mma kind::mxf4nvf4 (Blackwell), and gated products, which need two matrices a group.
 *
 * mma_a is B, 128 columns of the result; mma_b is up to MMA_TILE_N rows of a group. So a lane of an accumulator is a
 * column of the result. The mma takes as many rows as the tile has, rounded up to 16, so one instantiation serves
 * groups of few rows and of many. The grid has at most a CTA an SM. Each CTA reads the ends of all groups into a table
 * (common/group_table.cuh) and takes tile after tile from it, so that the grid does not depend on the ends.
 *
 *   warp  role      threads  waits for     work                                               arrives on
 *   0-3   epilogue  128      acc_full[i]   tcgen05.ld, activation, store                      acc_empty[i]
 *   4     producer  1        empty[stage]  TMA loads of values, bulk copies of scales         full[stage]
 *   5     mma       1        full[stage]   tcgen05.cp of scales, tcgen05.mma                  empty[stage]
 *                            acc_empty[i]  (once a tile)                                      acc_full[i]
 *
 * Each role finds its tiles in the table itself, as a converged warp.
 *
 * With MATRICES = 2 a CTA loads the rows of gate and of up for the same columns and multiplies both by the same rows of
 * A, into accumulators side by side. So gate and up of an element meet in one thread, and only the activation is stored.
 *
 * An activation may leave as NVFP4, quantized from its fp32 value (grouped_quantize.cuh).
 *
 * 128x4 scales of a group begin with a block of 128 rows of their own, and a tile does not cross blocks. A tile whose
 * block does not exist is multiplied by whatever scales the stage still holds, and its results are NaN: which groups
 * have scales is in memory, and roles that each read it must not disagree on what they wait for. Rows behind a group's
 * last one, which are those of the next group or zeros, and their scales reach only columns of an accumulator that are
 * not stored.
 *
 * Shared memory of a CTA: stages, each
 *
 *   values of each matrix 16384 | values of A 128 a row | scales of each matrix 2048 | scales of A 2048
 *
 * then full | empty | acc_full | acc_empty | TMEM address | scratch of the table | table. In KiB, rounded up: 128x64
 * 205, 128x128 225, gated 128x64 193, gated 128x128 225.
 *
 * Tensor memory: accumulators of MMA_TILE_N columns for each matrix, then the scale columns of each stage. Each stage
 * has its own, as in gemm.cu: PTX does not order a tcgen05.cp after an earlier tcgen05.mma (9.7.16.6).
 *
 * Bulk copies take whole atoms of scales, so K % 64 == 0; scales are 128x4, and tensor maps describe the values. */
#include "kernels/common/batch_epilogue.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/group_activation.cuh"
#include "kernels/common/grouped_tiles.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/placement.cuh"
#include "kernels/common/tcgen05.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/sm100/column_pairs.cuh"
#include "kernels/sm100/grouped_config.h"
#include "kernels/sm100/grouped_quantize.cuh"

enum { EPILOGUE_WARPS = 4, PRODUCER_WARP = 4, MMA_WARP = 5, THREADS = SM100_GROUPED_THREADS };
enum { CHUNK = SM100_GROUPED_MMA_STEP }; /* rows of the result that a thread stores at a time */

using table_scratch = group_table_scratch<THREADS>;

template <int MATRICES_, int MMA_TILE_N_, int STAGES_, int ACCUMULATORS_> struct config {
    static constexpr int MATRICES = MATRICES_, MMA_TILE_N = MMA_TILE_N_, STAGES = STAGES_;
    static constexpr int ACCUMULATORS = ACCUMULATORS_;
    /* Byte offsets in a stage; values of the first matrix are at 0. */
    static constexpr int STAGE_BYTES = SM100_GROUPED_STAGE_BYTES(MATRICES, MMA_TILE_N);
    static constexpr int MMA_B_OFFSET = MATRICES * SM100_MMA_A_BYTES;
    static constexpr int MMA_SFA_OFFSET = MMA_B_OFFSET + SM100_MMA_B_BYTES(1, MMA_TILE_N);
    static constexpr int MMA_SFB_OFFSET = MMA_SFA_OFFSET + MATRICES * SM100_MMA_SFA_BYTES;
    /* Byte offsets after the stages. */
    static constexpr int FULL_OFFSET = STAGES * STAGE_BYTES, EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES;
    static constexpr int ACC_FULL_OFFSET = EMPTY_OFFSET + 8 * STAGES;
    static constexpr int ACC_EMPTY_OFFSET = ACC_FULL_OFFSET + 8 * ACCUMULATORS;
    static constexpr int TMEM_ADDRESS_OFFSET = ACC_EMPTY_OFFSET + 8 * ACCUMULATORS;
    static constexpr int SCRATCH_OFFSET = FULL_OFFSET + SM100_GROUPED_BARRIER_BYTES(STAGES, ACCUMULATORS);
    static constexpr int TABLE_OFFSET = SCRATCH_OFFSET + SM100_GROUPED_SCRATCH_BYTES;
    /* Tensor memory columns. */
    static constexpr int SCALES_COLUMN = ACCUMULATORS * MATRICES * MMA_TILE_N;
    static constexpr int SCALE_COLUMNS = SM100_GROUPED_SCALE_COLUMNS(MATRICES);

    static_assert(STAGE_BYTES % 1024 == 0 && MMA_SFA_OFFSET % 1024 == 0,
                  "the 128-byte swizzle repeats every 1024 bytes");
    static_assert(sizeof(table_scratch) <= SM100_GROUPED_SCRATCH_BYTES && TMEM_ADDRESS_OFFSET + 4 <= SCRATCH_OFFSET &&
                      TABLE_OFFSET + GROUP_TABLE_BYTES ==
                          SM100_GROUPED_SHARED_BYTES(MATRICES, MMA_TILE_N, STAGES, ACCUMULATORS),
                  "as the host reserves it");
    static_assert(TABLE_OFFSET + GROUP_TABLE_BYTES <= 227 * 1024, "shared memory of a CTA");
    static_assert(SM100_GROUPED_USED_COLUMNS(MATRICES, MMA_TILE_N, STAGES, ACCUMULATORS) <= SM100_GROUPED_TMEM_COLUMNS,
                  "tensor memory of a CTA");
    static_assert(MMA_TILE_N <= SM100_ATOM_ROWS && SM100_ATOM_ROWS % MMA_TILE_N == 0,
                  "a tile does not cross blocks of scales");
};

/* Shared addresses. */
template <class C> struct cta_memory {
    uint32_t base;

    __device__ __forceinline__ uint32_t stage(uint32_t index) const { return base + index * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t index) const { return base + C::FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t empty(uint32_t index) const { return base + C::EMPTY_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t acc_full(uint32_t index) const { return base + C::ACC_FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t acc_empty(uint32_t index) const {
        return base + C::ACC_EMPTY_OFFSET + 8 * index;
    }
    __device__ __forceinline__ uint32_t tmem_address() const { return base + C::TMEM_ADDRESS_OFFSET; }
};

/* The next tile of this CTA, as of grouped_tiles. Tiles without rows are left out: the table may have some where ends
 * change while it is filled. */
template <class C> __device__ __forceinline__ bool next_tile(grouped_tiles &tiles, grouped_tile &tile) {
    while (tiles.next(tile, C::MMA_TILE_N))
        if (tile.rows > 0) return true;
    return false;
}

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

/* One thread: loads the stages of a tile. */
template <class C>
__device__ __forceinline__ void load_tile(const grouped_problem &p, const sm100_grouped_schedule &s,
                                          const cta_memory<C> &cta, const grouped_tile &tile,
                                          pipeline_state<C::STAGES> &state) {
    const mma_operand &a = s.mma_a, &b = s.mma_b;
    const int32_t column = tile.column * SM100_CTA_ROWS;
    const int boxes = (tile.rows + SM100_GROUPED_BOX_ROWS - 1) / SM100_GROUPED_BOX_ROWS;
    const int64_t row_of_scales = scale_row_of(p, tile.group, tile.row_in_group); /* negative: there are none */
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

/* One thread: the tcgen05.cp and tcgen05.mma of a tile into the accumulators at tensor memory address d. */
template <class C>
__device__ __forceinline__ void multiply_tile(const grouped_problem &p, const cta_memory<C> &cta,
                                              const grouped_tile &tile, uint32_t tmem, uint32_t d,
                                              pipeline_state<C::STAGES> &state) {
    const uint32_t instruction = instruction_descriptor(SM100_CTA_ROWS, mma_rows(tile));
    /* A tile of 64 rows uses half of a scale atom's 128: columns 0-1 or 2-3. */
    const uint32_t half = C::MMA_TILE_N == 64 ? tile.row_in_group / 64 % 2 * 2 : 0;
#pragma unroll 1
    for (int32_t k = 0; k < k_stages(p); k++, state.advance()) {
        mbarrier_wait(cta.full(state.index), state.phase);
        tcgen05_fence_after_thread_sync();
        const uint32_t stage = cta.stage(state.index);
        const uint32_t sfa = tmem + C::SCALES_COLUMN + state.index * C::SCALE_COLUMNS;
        const uint32_t sfb = sfa + C::MATRICES * 4 * SM100_STAGE_ATOMS;
        const uint64_t sfa_atoms = smem_descriptor_atom(stage) + C::MMA_SFA_OFFSET / 16;
        const uint64_t sfb_atoms = smem_descriptor_atom(stage) + C::MMA_SFB_OFFSET / 16;
        const uint64_t mma_a = smem_descriptor_sw128(stage), mma_b = mma_a + C::MMA_B_OFFSET / 16;
        const int blocks = blocks_of(p.g.k, k);
#pragma unroll
        for (int i = 0; i < SM100_STAGE_ATOMS; i++) {
            if (i >= blocks) break;
#pragma unroll
            for (int j = 0; j < C::MATRICES; j++)
                tcgen05_cp_atom<1>(sfa + 4 * (j * SM100_STAGE_ATOMS + i),
                                   sfa_atoms + (j * SM100_MMA_SFA_BYTES + i * SM100_ATOM_BYTES) / 16);
            tcgen05_cp_atom<1>(sfb + 4 * i, sfb_atoms + i * SM100_ATOM_BYTES / 16);
        }
#pragma unroll
        for (int i = 0; i < SM100_STAGE_ATOMS; i++) {
            if (i >= blocks) break;
#pragma unroll
            for (int j = 0; j < C::MATRICES; j++)
                tcgen05_mma_mxf4nvf4<1>(d + j * C::MMA_TILE_N,
                                        mma_a + (j * SM100_MMA_A_BYTES + i * SM100_MMA_K / 2) / 16,
                                        mma_b + i * SM100_MMA_K / 32, instruction,
                                        sfa + 4 * (j * SM100_STAGE_ATOMS + i), sfb + 4 * i + half, k > 0 || i > 0);
        }
        tcgen05_commit<1>(cta.empty(state.index), 0);
    }
}

/* A lane's column of a tile: the epilogue of each matrix, and the stores. */
template <class C> struct column_output {
    const grouped_problem &p;
    const sm100_grouped_schedule &s;
    const grouped_tile &tile;
    int64_t n; /* the column of its part */
    bool exists, is_nan;
    float alpha[C::MATRICES], bias[C::MATRICES];

    __device__ __forceinline__ column_output(const grouped_problem &p, const sm100_grouped_schedule &s,
                                             const grouped_tile &tile)
        : p(p), s(s), tile(tile), n((int64_t)tile.column * SM100_CTA_ROWS + threadIdx.x), exists(n < p.g.n),
          is_nan(scale_row_of(p, tile.group, tile.row_in_group) < 0) {
#pragma unroll
        for (int i = 0; i < C::MATRICES; i++) {
            one_column_epilogue column(p.g, min(n, p.g.n - 1));
            take_batch(column, p.g, tile.l + i);
            alpha[i] = column.alpha, bias[i] = column.bias;
        }
    }

    /* The rows first, first + 1, ... of the tile from their sums by each matrix, before they are rounded. */
    __device__ __forceinline__ void results(const float (&sums)[C::MATRICES][CHUNK], int first,
                                            float (&v)[CHUNK]) const {
        const int64_t row = (int64_t)tile.row + first;
        const int count = min((int)CHUNK, tile.rows - first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            float factor = 1.0f;
            if (p.row_scale && i < count) factor = p.row_scale[row + i];
            if (is_nan) factor = __int_as_float(0x7FFFFFFF);
            v[i] = result(sums, i, factor);
        }
    }

    /* Stores them as numbers. All lanes of a warp. */
    __device__ __forceinline__ void store(float (&v)[CHUNK], int first) const {
        const gemm_problem &g = p.g;
        const int64_t row = (int64_t)tile.row + first;
        const int count = min((int)CHUNK, tile.rows - first);
        char *to = (char *)g.out + row * g.out_pitch + tile.part * g.out_batch + n * type_bytes(g.out_type);
        if (s.column_pairs && g.out_type == NVFP4_FP16)
            store_column_pairs<NVFP4_FP16>(v, to, g.out_pitch, exists, count);
        else if (s.column_pairs)
            store_column_pairs<NVFP4_BF16>(v, to, g.out_pitch, exists, count);
        else if (exists)
            store_some(v, to, g.out_pitch, g.out_type, count);
    }

  private:
    /* The result of row i, before it is rounded. One matrix of an activation is gate, and 1 stands for up. */
    __device__ __forceinline__ float result(const float (&sums)[C::MATRICES][CHUNK], int i, float factor) const {
        float of_matrix[C::MATRICES];
#pragma unroll
        for (int j = 0; j < C::MATRICES; j++) {
            float v = __fmul_rn(alpha[j], sums[j][i]);
            if (p.g.bias) v = __fadd_rn(v, bias[j]);
            of_matrix[j] = __fmul_rn(v, factor);
        }
        if (!p.has_activation) return of_matrix[0];
        const float up = C::MATRICES == 1 ? 1.0f : rounded(of_matrix[C::MATRICES - 1], p.g.out_type);
        return gated(p.activation, rounded(of_matrix[0], p.g.out_type), up, s.numbers);
    }
};

/* The epilogue warps: warp w reads tensor memory lanes 32 w to 32 w + 31. */
template <class C>
__device__ __forceinline__ void epilogue(const grouped_problem &p, const sm100_grouped_schedule &s,
                                         const cta_memory<C> &cta, grouped_tiles tiles, uint32_t tmem) {
    const uint32_t lanes = tmem + (threadIdx.x / 32 << 21);
    const bool has_sums = p.g.k > 0;
    const bool quantizes = s.quantized.data;
    const group_table &table = tiles.table;
    blocks_before before(table);
    pipeline_state<C::ACCUMULATORS> acc;
    grouped_tile tile;
    if (quantizes && blockIdx.x == 0 && threadIdx.x < 32) store_scale_rows(table, p.groups, s.quantized.scale_rows);
    for (; next_tile<C>(tiles, tile); acc.advance()) {
        const column_output<C> out(p, s, tile);
        const quantized_tile quantized(s.quantized, tile, p.g.n, quantizes ? before.of(tile.group) : 0);
        const uint32_t accumulator = lanes + acc.index * C::MATRICES * C::MMA_TILE_N;
        if (has_sums) {
            mbarrier_wait(cta.acc_full(acc.index), acc.phase);
            tcgen05_fence_after_thread_sync();
        }
#pragma unroll 1
        for (int first = 0; first < tile.rows; first += CHUNK) {
            float sums[C::MATRICES][CHUNK] = {};
            if (has_sums) {
#pragma unroll
                for (int i = 0; i < C::MATRICES; i++) tcgen05_ld(sums[i], accumulator + i * C::MMA_TILE_N + first);
#pragma unroll
                for (int i = 0; i < C::MATRICES; i++) tcgen05_wait_ld(sums[i]);
                if (first + CHUNK >= tile.rows) {
                    /* All is read: the mma of a later tile may overwrite it while the last rows are stored. */
                    tcgen05_fence_before_thread_sync();
                    __syncwarp();
                    if (threadIdx.x % 32 == 0) mbarrier_arrive_relaxed(cta.acc_empty(acc.index));
                }
            }
            float v[CHUNK];
            out.results(sums, first, v);
            if (quantizes)
                quantized.store(v, first, min((int)CHUNK, tile.rows - first));
            else
                out.store(v, first);
        }
        if (quantizes && is_last_of_group(table, tile)) quantized.pad_rows();
    }
}

template <class C> __device__ __forceinline__ void multiply(const grouped_problem &p, const sm100_grouped_schedule &s) {
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
            mbarrier_init(cta.full(i), 1);
            mbarrier_init(cta.empty(i), 1);
        }
        for (int i = 0; i < C::ACCUMULATORS; i++) {
            mbarrier_init(cta.acc_full(i), 1);
            mbarrier_init(cta.acc_empty(i), EPILOGUE_WARPS);
        }
        fence_mbarrier_init();
    }
    __syncwarp();
    if (warp == MMA_WARP) {
        tcgen05_alloc<1, SM100_GROUPED_TMEM_COLUMNS>(cta.tmem_address());
        tcgen05_relinquish_alloc_permit<1>();
        tcgen05_fence_before_thread_sync();
    }
    /* All threads, since all read what grids before may have written. */
    griddepcontrol_wait();
    /* After tcgen05.alloc, so that no CTA of the next grid takes these columns. */
    if (warp == MMA_WARP) griddepcontrol_launch_dependents();
    group_table &table = *(group_table *)(shared + C::TABLE_OFFSET);
    /* The barrier at the end of fill orders mbarrier_init and the tensor memory address, too. */
    table.fill<THREADS>(p.ends, p.groups, (int)p.g.m, C::MMA_TILE_N, *(table_scratch *)(shared + C::SCRATCH_OFFSET));
    tcgen05_fence_after_thread_sync();
    const uint32_t tmem = ld_shared(cta.tmem_address());

    grouped_tiles tiles(table, p, s.tiles_n, blockIdx.x, gridDim.x, C::MATRICES > 1);
    pipeline_state<C::STAGES> state;
    grouped_tile tile;
    if (warp == PRODUCER_WARP) {
        while (next_tile<C>(tiles, tile)) {
            if (elect_one()) load_tile<C>(p, s, cta, tile, state);
            __syncwarp();
        }
        /* The last commits arrive on empty in this CTA's shared memory, which must still be allocated. */
        if (elect_one())
            for (int i = 0; i < C::STAGES; i++, state.advance()) mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
        __syncwarp();
    } else if (warp == MMA_WARP) {
        pipeline_state<C::ACCUMULATORS> acc;
        for (; p.g.k > 0 && next_tile<C>(tiles, tile); acc.advance()) {
            if (elect_one()) {
                mbarrier_wait(cta.acc_empty(acc.index), acc.phase ^ 1);
                tcgen05_fence_after_thread_sync();
                multiply_tile<C>(p, cta, tile, tmem, tmem + acc.index * C::MATRICES * C::MMA_TILE_N, state);
                tcgen05_commit<1>(cta.acc_full(acc.index), 0);
            }
            __syncwarp();
        }
    } else {
        epilogue<C>(p, s, cta, tiles, tmem);
    }
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    tcgen05_fence_after_thread_sync();
    if (warp == MMA_WARP) tcgen05_dealloc<1, SM100_GROUPED_TMEM_COLUMNS>(tmem);
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                           \
        nvfp4_##id(const __grid_constant__ grouped_problem p, const __grid_constant__ sm100_grouped_schedule s) {      \
        RECORD_CTA();                                                                                                  \
        multiply<config<__VA_ARGS__>>(p, s);                                                                           \
    }
SM100_GROUPED_CONFIGS(KERNEL)
