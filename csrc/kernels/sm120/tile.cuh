/* The main loop of a tile on sm_120: a producer warp fills a pipeline of stages, the other warps multiply. It takes the
 * tile's coordinates and its operands; which tiles there are is the kernel's (gemm.cu).
 *
 * A stage (config.h) holds rows of mma_a and of mma_b in the 128-byte swizzle (stage_k = 256) or the 64-byte one (128):
 * the 16-byte chunk of a row is XORed with the row's place in the pattern, so that ldmatrix reads 8 rows without bank
 * conflicts. Behind them lie scale atoms: row r of 128, scale s of a K block of 64 at r % 32 * 16 + r / 32 * 4 + s. A
 * lane reads the words of its rows, which are 16 bytes apart.
 *
 *   scales_by_tma       one thread: TMA loads of values, bulk copies of whole atoms. full counts 1 arrival and bytes.
 *   not scales_by_tma   all lanes: cp.async of scales, a row and K block each; scales past K become zero, so that the
 *                       values there, whatever they are, multiply to zero. Values by TMA, or by cp.async of 8 bytes
 *                       where no tensor map describes them. full counts an arrival of each lane too. */
#ifndef NVFP4_SM120_TILE_CUH
#define NVFP4_SM120_TILE_CUH

#include "common/problem.h"
#include "kernels/common/cp_async.cuh"
#include "kernels/common/cp_async_mbarrier.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/mma_block_scale.cuh"
#include "kernels/common/shared.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/sm120/config.h"

template <int MMA_TILE_M_, int MMA_TILE_N_, int STAGE_K_, int STAGES_, int WARPS_M_, int WARPS_N_> struct config {
    static constexpr int MMA_TILE_M = MMA_TILE_M_, MMA_TILE_N = MMA_TILE_N_, STAGE_K = STAGE_K_, STAGES = STAGES_;
    static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, WARPS = SM120_WARPS(WARPS_M, WARPS_N);
    static constexpr int THREADS = SM120_THREADS(MMA_TILE_M, MMA_TILE_N, WARPS_M, WARPS_N), PRODUCER_WARP = WARPS;
    static constexpr bool MOVES_REGISTERS = SM120_LARGE_WARP_TILE(MMA_TILE_M, MMA_TILE_N, WARPS_M, WARPS_N);
    static constexpr int WARP_M = MMA_TILE_M / WARPS_M, WARP_N = MMA_TILE_N / WARPS_N;
    static constexpr int MMAS_M = WARP_M / 16, MMAS_N = WARP_N / 8;
    static constexpr int ROW_BYTES = SM120_ROW_BYTES(STAGE_K), STAGE_ATOMS = SM120_STAGE_ATOMS(STAGE_K);
    static constexpr int BLOCK_BYTES = SM120_BLOCK_BYTES(STAGE_K);
    static constexpr int PART_STAGES = SM120_PART_K / STAGE_K; /* of a part of K */
    /* Byte offsets in a stage; mma_a values are at 0. */
    static constexpr int MMA_B_OFFSET = MMA_TILE_M * ROW_BYTES;
    static constexpr int MMA_SFA_OFFSET = MMA_B_OFFSET + MMA_TILE_N * ROW_BYTES;
    static constexpr int MMA_SFB_OFFSET = MMA_SFA_OFFSET + SM120_SCALE_BYTES(MMA_TILE_M, STAGE_K);
    static constexpr int STAGE_BYTES = SM120_STAGE_BYTES(MMA_TILE_M, MMA_TILE_N, STAGE_K);
    /* Byte offsets after the stages. */
    static constexpr int STAGING_OFFSET = STAGES * STAGE_BYTES;
    static constexpr int FULL_OFFSET = STAGING_OFFSET + SM120_STAGING_BYTES(MMA_TILE_N, WARPS_M, WARPS_N);
    static constexpr int EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES, PARTIALS_FULL_OFFSET = EMPTY_OFFSET + 8 * STAGES;
    static constexpr int SHARED_BYTES = SM120_SHARED_BYTES(MMA_TILE_M, MMA_TILE_N, STAGE_K, STAGES, WARPS_M, WARPS_N);

    static_assert(ROW_BYTES == 128 || ROW_BYTES == 64, "a row is as wide as a swizzle pattern");
    static_assert(SM120_PART_K % STAGE_K == 0, "a part of K is whole stages");
    static_assert(STAGE_BYTES % 1024 == 0 && MMA_B_OFFSET % 1024 == 0, "the swizzle repeats every 1024 bytes or fewer");
    static_assert(MMA_TILE_M % SM120_ATOM_ROWS == 0, "a tile begins with a scale atom");
    static_assert(WARP_M % 64 == 0 || WARP_M == 32 || WARP_M == 16, "a lane's scales of mma_a are one or two words");
    static_assert(WARP_N % 64 == 0 || WARP_N <= 32, "and those of mma_b");
    static_assert(SHARED_BYTES <= 99 * 1024, "what sm_120 gives a CTA");
};

template <class C> using accumulators = float[C::MMAS_M][C::MMAS_N][4];

/* A tile: its first row of mma_a and of mma_b, its batch, and the stages along K. */
struct tile_coord {
    int32_t mma_m, mma_n, l, k_begin, k_end;
};

template <class C> struct cta_memory {
    uint32_t base; /* shared address of the stages */

    __device__ __forceinline__ uint32_t stage(uint32_t index) const { return base + index * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t index) const { return base + C::FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t empty(uint32_t index) const { return base + C::EMPTY_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t partials_full() const { return base + C::PARTIALS_FULL_OFFSET; }
};

/* K blocks of 64 in a stage: fewer in the last one. */
template <class C> __device__ __forceinline__ int blocks_of(int64_t k, int32_t stage) {
    return min(C::STAGE_ATOMS, (int)((k + SM120_MMA_K - 1) / SM120_MMA_K - (int64_t)stage * C::STAGE_ATOMS));
}

/* ---- the producer warp ---- */

/* How the operands lie in memory; the same for all tiles of a call. */
struct operand_form {
    int64_t k;
    bool linear, words; /* scales: their layout, and whether each word of them is aligned */
    bool values_by_tma;
};

template <class SCHEDULE> __device__ __forceinline__ operand_form form_of(const gemm_problem &p, const SCHEDULE &s) {
    const uint64_t bits = (uint64_t)s.mma_a.scale | (uint64_t)s.mma_b.scale | s.mma_a.scale_pitch |
                          s.mma_b.scale_pitch | s.mma_a.scale_batch | s.mma_b.scale_batch;
    return {p.k, p.scale_layout == NVFP4_LINEAR, bits % 4 == 0, s.values_by_tma != 0};
}

/* The rows that lanes load: from one on, or those that a list names, of which some may not exist (negative). */
struct consecutive_rows {
    static constexpr bool ALL_EXIST = true;
    int32_t first;
    __device__ __forceinline__ int64_t operator()(int i) const { return (int64_t)first + i; }
};
struct listed_rows {
    static constexpr bool ALL_EXIST = false;
    const int32_t *list; /* NULL: consecutive */
    int64_t first, end;
    __device__ __forceinline__ int64_t operator()(int i) const {
        const int64_t row = list ? list[first + i] : first + i;
        return row < end ? row : -1;
    }
};

/* Arrives for this lane's loads of a stage. Without words there are ordinary stores, which an arrival of copies does
 * not order. */
__device__ __forceinline__ void arrive_loaded(uint32_t full, bool words) {
    if (words) {
        cp_async_mbarrier_arrive_noinc(full);
    } else {
        cp_async_commit_group();
        cp_async_wait_group<0>();
        mbarrier_arrive(full);
    }
}

/* Loads one operand of a tile: ROWS rows from `row` on. */
template <class C, int ROWS> struct operand_loader {
    const mma_operand &o;
    uint32_t values_offset, scales_offset; /* in a stage */

    /* Rows that the tile has and the operand too, and 128-row blocks of scales. */
    __device__ __forceinline__ int count(int32_t row) const { return min(ROWS, o.rows - row); }
    __device__ __forceinline__ int scale_blocks(int32_t row) const {
        static_assert(ROWS <= 2 * SM120_ATOM_ROWS, "one or two");
        return ROWS > SM120_ATOM_ROWS && o.rows - row > SM120_ATOM_ROWS ? 2 : 1;
    }
    __device__ __forceinline__ void values_by_tma(uint32_t stage, uint32_t full, int32_t row, int32_t l,
                                                  int32_t k) const {
        tma_load_3d<1>(stage + values_offset, &o.values, k * C::ROW_BYTES, row, l, full, o.cache_policy);
    }
    __device__ __forceinline__ void scales_by_tma(uint32_t stage, uint32_t full, int32_t row, int32_t l, int32_t k,
                                                  int blocks) const {
        const uint8_t *from =
            o.scale + l * o.scale_batch + row / SM120_ATOM_ROWS * o.scale_pitch + (int64_t)k * C::BLOCK_BYTES;
        for (int i = 0; i < scale_blocks(row); i++)
            cp_async_bulk(stage + scales_offset + i * C::BLOCK_BYTES, from + i * o.scale_pitch,
                          blocks * SM120_ATOM_BYTES, full, o.cache_policy);
    }

    /* All lanes: scales of `count` rows by words, or by bytes if they are not aligned. in_block: of the first row. */
    template <class LIST>
    __device__ __forceinline__ void scales_by_lanes(uint32_t stage, const LIST &row_of, int in_block, int count,
                                                    int32_t l, int32_t k, int blocks, const operand_form &form) const {
        const int64_t atom = (int64_t)k * C::STAGE_ATOMS;
#pragma unroll 1
        for (int i = threadIdx.x % 32; i < count; i += 32) {
            const int64_t r = row_of(i);
            if (!LIST::ALL_EXIST && r < 0) continue;
            const int at = in_block + i;
            uint32_t to = stage + scales_offset + at / 128 * C::BLOCK_BYTES + at % 32 * 16 + at % 128 / 32 * 4;
            const uint8_t *from =
                o.scale + l * o.scale_batch +
                (form.linear ? r * o.scale_pitch + atom * 4
                             : r / 128 * o.scale_pitch + atom * SM120_ATOM_BYTES + r % 32 * 16 + r % 128 / 32 * 4);
            int64_t left = form.k / 16 - atom * 4;
            for (int block = 0; block < blocks; block++, left -= 4, to += SM120_ATOM_BYTES) {
                const int valid = (int)min((int64_t)4, left);
                if (form.words) {
                    cp_async_4_zfill(to, from, valid);
                } else {
                    uint32_t word = 0;
                    for (int byte = 0; byte < valid; byte++) word |= (uint32_t)from[byte] << byte * 8;
                    st_shared(to, word);
                }
                from += form.linear ? 4 : SM120_ATOM_BYTES;
            }
        }
    }

    /* All lanes: pieces of 8 bytes. Behind the end of a row old bytes stay: their scales are zero. */
    template <class LIST>
    __device__ __forceinline__ void values_by_lanes(uint32_t stage, const LIST &row_of, int count, int32_t l, int32_t k,
                                                    int64_t row_bytes) const {
        constexpr int PIECES = C::ROW_BYTES / 8;
        const int piece = threadIdx.x % PIECES;
        const int64_t byte = (int64_t)k * C::ROW_BYTES + piece * 8;
        if (byte >= row_bytes) return;
        const uint8_t *from = o.data + l * o.batch + byte;
#pragma unroll 1
        for (int i = threadIdx.x % 32 / PIECES; i < count; i += 32 / PIECES) {
            const int64_t r = row_of(i);
            if (!LIST::ALL_EXIST && r < 0) continue;
            const int chunk = piece / 2 ^ (C::ROW_BYTES == 128 ? i % 8 : i / 2 % 4);
            cp_async_8(stage + values_offset + i * C::ROW_BYTES + chunk * 16 + piece % 2 * 8, from + r * o.pitch);
        }
    }
};

template <class C> struct tile_producer {
    operand_loader<C, C::MMA_TILE_M> mma_a;
    operand_loader<C, C::MMA_TILE_N> mma_b;
    operand_form form;
    cta_memory<C> cta;
    pipeline_state<C::STAGES> state;

    __device__ __forceinline__ tile_producer(const mma_operand &a, const mma_operand &b, const operand_form &form,
                                             const cta_memory<C> &cta)
        : mma_a{a, 0, C::MMA_SFA_OFFSET}, mma_b{b, C::MMA_B_OFFSET, C::MMA_SFB_OFFSET}, form(form), cta(cta) {}

    /* One thread: announces a stage's bytes. A box counts whole, rows out of bounds too. */
    __device__ __forceinline__ void expect(const tile_coord &tile, int32_t k, uint32_t index) const {
        const int scale_blocks = mma_a.scale_blocks(tile.mma_m) + 1;
        mbarrier_arrive_expect_tx(cta.full(index),
                                  C::MMA_SFA_OFFSET + scale_blocks * blocks_of<C>(form.k, k) * SM120_ATOM_BYTES);
    }

    /* One thread. */
    __device__ __forceinline__ void load(const tile_coord &tile, int32_t k, uint32_t index, bool a, bool b) const {
        const uint32_t stage = cta.stage(index), full = cta.full(index);
        const int blocks = blocks_of<C>(form.k, k);
        if (a) mma_a.values_by_tma(stage, full, tile.mma_m, tile.l, k);
        if (b) mma_b.values_by_tma(stage, full, tile.mma_n, tile.l, k);
        if (a) mma_a.scales_by_tma(stage, full, tile.mma_m, tile.l, k, blocks);
        if (b) mma_b.scales_by_tma(stage, full, tile.mma_n, tile.l, k, blocks);
    }

    /* One thread. The first `preloaded` stages have the operand `constant` (SM120_CONSTANT_*) already. */
    __device__ __forceinline__ void run_one(const tile_coord &tile, int32_t constant, int32_t &preloaded) {
#pragma unroll 1
        for (int32_t k = tile.k_begin; k < tile.k_end; k++, state.advance()) {
            const bool both = preloaded == 0;
            if (both) {
                mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
                expect(tile, k, state.index);
            } else {
                preloaded--;
            }
            load(tile, k, state.index, both || constant != SM120_CONSTANT_MMA_A,
                 both || constant != SM120_CONSTANT_MMA_B);
        }
    }

    /* All lanes. */
    __device__ __forceinline__ void run_lanes(const tile_coord &tile) {
        const consecutive_rows rows_a{tile.mma_m}, rows_b{tile.mma_n};
        const int count_a = mma_a.count(tile.mma_m), count_b = mma_b.count(tile.mma_n);
#pragma unroll 1
        for (int32_t k = tile.k_begin; k < tile.k_end; k++, state.advance()) {
            const uint32_t stage = cta.stage(state.index), full = cta.full(state.index);
            const int blocks = blocks_of<C>(form.k, k);
            mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
            if (threadIdx.x % 32 == 0) {
                mbarrier_arrive_expect_tx(full, form.values_by_tma ? C::MMA_SFA_OFFSET : 0);
                if (form.values_by_tma) {
                    mma_a.values_by_tma(stage, full, tile.mma_m, tile.l, k);
                    mma_b.values_by_tma(stage, full, tile.mma_n, tile.l, k);
                }
            }
            __syncwarp();
            if (!form.values_by_tma) {
                mma_a.values_by_lanes(stage, rows_a, count_a, tile.l, k, form.k / 2);
                mma_b.values_by_lanes(stage, rows_b, count_b, tile.l, k, form.k / 2);
            }
            mma_a.scales_by_lanes(stage, rows_a, tile.mma_m % SM120_ATOM_ROWS, count_a, tile.l, k, blocks, form);
            mma_b.scales_by_lanes(stage, rows_b, tile.mma_n % SM120_ATOM_ROWS, count_b, tile.l, k, blocks, form);
            arrive_loaded(full, form.words);
        }
    }
};

/* ---- the warps that multiply ---- */

template <class C> struct tile_consumer {
    cta_memory<C> cta;
    int64_t k;
    uint32_t values_a, values_b; /* offsets in a stage of what this lane gives ldmatrix, K block 0 */
    uint32_t scales_a, scales_b; /* and of its words of scales */
    pipeline_state<C::STAGES> state;
    static constexpr int PAIR = C::MMAS_N > 1 ? 2 : 1; /* mma tiles along mma_b that one ldmatrix loads */

    /* Chunk `chunk` of 16 bytes of a row. */
    static __device__ __forceinline__ uint32_t chunk_at(int row, int chunk) {
        return row * C::ROW_BYTES + (chunk ^ (C::ROW_BYTES == 128 ? row % 8 : row / 2 % 4)) * 16;
    }

    __device__ __forceinline__ tile_consumer(const cta_memory<C> &cta, int64_t k) : cta(cta), k(k) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
        const int warp_m = warp / C::WARPS_N * C::WARP_M;
        /* mma_a: rows 0-7, rows 8-15, both once more 32 values further on. mma_b: 8 rows, the same 32 values on, ... */
        values_a = chunk_at(warp_m + matrix % 2 * 8 + row, matrix / 2);
        const int rows_b = PAIR == 2 ? matrix / 2 * 8 : 0;
        values_b = C::MMA_B_OFFSET + chunk_at(warp % C::WARPS_N * C::WARP_N + rows_b + row, matrix % 2);
        /* Row 8t + g of 32; a warp with 16 rows has two such groups of 8. */
        const int own = lane % 4 * 8 + lane / 4, at = warp_m + (C::WARP_M == 16 ? own % 16 : own);
        scales_a = C::MMA_SFA_OFFSET + at / 128 * C::BLOCK_BYTES + at % 32 * 16 + at % 128 / 32 * 4;
        scales_b = 0;
    }

    /* The tile's place in the atoms of mma_b. */
    __device__ __forceinline__ void begin(const tile_coord &tile) {
        const int lane = threadIdx.x % 32, groups = C::MMAS_N < 4 ? C::MMAS_N : 4;
        const int at =
            tile.mma_n % SM120_ATOM_ROWS + threadIdx.x / 32 % C::WARPS_N * C::WARP_N + lane % 4 % groups * 8 + lane / 4;
        scales_b = C::MMA_SFB_OFFSET + at / 128 * C::BLOCK_BYTES + at % 32 * 16 + at % 128 / 32 * 4;
    }

    /* The lane's words for `rows` rows of a warp. */
    template <int ROWS> static __device__ __forceinline__ void load_scales(uint32_t from, uint32_t (&words)[2]) {
        if constexpr (ROWS > 32) {
            const uint2 two = ld_shared_v2(from);
            words[0] = two.x, words[1] = two.y;
        } else {
            words[0] = ld_shared(from);
        }
    }

    /* The mma of one stage. ALL: a whole one, without branches; else the last K block of `blocks` takes the scales in
     * `mask` of a word. */
    template <bool ALL>
    __device__ __forceinline__ void multiply(uint32_t stage, int blocks, uint32_t mask, accumulators<C> &acc) const {
#pragma unroll
        for (int block = 0; block < C::STAGE_ATOMS; block++) {
            if (!ALL && block >= blocks) break;
            const uint32_t atom = stage + block * SM120_ATOM_BYTES, along_k = block * (SM120_MMA_K / 2);
            uint32_t a[C::MMAS_M][4], sfa[2], sfb[2];
            load_scales<C::WARP_M>(atom + scales_a, sfa);
            load_scales<C::WARP_N>(atom + scales_b, sfb);
            if (!ALL && block + 1 == blocks) {
                for (uint32_t &word : sfa) word &= mask;
                for (uint32_t &word : sfb) word &= mask;
            }
#pragma unroll
            for (int i = 0; i < C::MMAS_M; i++) ldmatrix_x4((stage + values_a + i * 16 * C::ROW_BYTES) ^ along_k, a[i]);
#pragma unroll
            for (int j = 0; j < C::MMAS_N; j += PAIR) { /* 8 rows of mma_b each */
                uint32_t b[4];
                const uint32_t rows = (stage + values_b + j * 8 * C::ROW_BYTES) ^ along_k;
                if constexpr (PAIR == 2)
                    ldmatrix_x4(rows, b);
                else
                    ldmatrix_x2(rows, b[0], b[1]);
#pragma unroll
                for (int half = 0; half < PAIR; half++)
#pragma unroll
                    for (int i = 0; i < C::MMAS_M; i++)
                        mma_m16n8k64_mxf4nvf4(acc[i][j + half], a[i], b[2 * half], b[2 * half + 1], sfa[i / 2], i % 2,
                                              sfb[j / 4], j % 4 + half);
            }
        }
    }

    /* Adds the tile's products to acc, from the lowest K on. MASKS: a stage may have scales behind the end of K that
     * are not zero; else the producer has cleared them. */
    template <bool MASKS> __device__ __forceinline__ void run(const tile_coord &tile, accumulators<C> &acc) {
        const int tail = (int)(k % SM120_MMA_K / 16); /* scales of the last K block, if it is not whole */
        const uint32_t mask = MASKS && tail ? (1u << 8 * tail) - 1 : ~0u;
        begin(tile);
#pragma unroll 1
        for (int32_t i = tile.k_begin; i < tile.k_end; i++, state.advance()) {
            const uint32_t stage = cta.stage(state.index);
            const int blocks = blocks_of<C>(k, i);
            mbarrier_wait(cta.full(state.index), state.phase);
            if (blocks == C::STAGE_ATOMS && (mask == ~0u || i + 1 < tile.k_end))
                multiply<true>(stage, blocks, mask, acc);
            else
                multiply<false>(stage, blocks, mask, acc);
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(cta.empty(state.index));
        }
    }
};

#endif
