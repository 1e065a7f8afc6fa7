/* Instantiations of sm90/grouped_few.cu on the device: offsets in shared memory, and the descriptions of tiles that the
 * warp which finds them leaves to the others. */
#ifndef NVFP4_SM90_GROUPED_FEW_CUH
#define NVFP4_SM90_GROUPED_FEW_CUH

#include "kernels/common/batch_epilogue.cuh"
#include "kernels/common/grouped_tiles.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/sm90/grouped_few_config.h"

enum {
    MATH_WARPS = SM90_GROUPED_FEW_MATH_WARPS,
    COPY_WARPS = SM90_GROUPED_FEW_COPY_WARPS,
    STORE_WARPS = SM90_GROUPED_FEW_STORE_WARPS,
    STAGE_K = SM90_GROUPED_FEW_STAGE_K,
    TILE_N = SM90_GROUPED_FEW_TILE_N,
    BOX_ROWS = SM90_GROUPED_FEW_BOX_ROWS,
    /* setmaxnreg: of 80 registers a thread at launch. */
    MATH_REGISTERS = 96,
    COPY_REGISTERS = 64,
    OTHER_REGISTERS = 32,
    /* Threads that read the description of a tile: all but the warp that writes it. */
    TILE_READERS = SM90_GROUPED_FEW_THREADS - 32,
};

template <int ROWS_, int STAGES_, int BF16_> struct config {
    static constexpr int TYPE = BF16_ ? NVFP4_BF16 : NVFP4_FP16, ROWS = ROWS_, STAGES = STAGES_;
    static constexpr int SPAN = ROWS * 128, B_OFFSET = 4 * SPAN, SCALES_OFFSET = B_OFFSET + TILE_N * STAGE_K / 2;
    static constexpr int BLOCK_SCALES = SM90_GROUPED_FEW_ATOMS * SM90_ATOM_BYTES; /* of 128 rows in a stage */
    static constexpr int STAGE_BYTES = SM90_GROUPED_FEW_STAGE_BYTES(ROWS);
    static constexpr int STAGING_BYTES = SM90_GROUPED_FEW_STAGING_BYTES(ROWS);
    /* Byte offsets after the stages. */
    static constexpr int STAGING_OFFSET = STAGES * STAGE_BYTES, FULL_OFFSET = STAGING_OFFSET + STAGING_BYTES;
    static constexpr int EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES, COPIED_OFFSET = EMPTY_OFFSET + 8 * STAGES,
                         TILE_FULL_OFFSET = COPIED_OFFSET + 8 * STAGES,
                         TILE_EMPTY_OFFSET = TILE_FULL_OFFSET + 8 * SM90_GROUPED_FEW_TILES_AHEAD,
                         STAGED_OFFSET = TILE_EMPTY_OFFSET + 8 * SM90_GROUPED_FEW_TILES_AHEAD;
    static constexpr int DRAINED_OFFSET = STAGED_OFFSET + 8, TILES_OFFSET = CEIL_DIV(DRAINED_OFFSET + 8, 16) * 16,
                         TABLE_OFFSET = TILES_OFFSET + SM90_GROUPED_FEW_TILES_AHEAD * SM90_GROUPED_FEW_TILE_BYTES;

    static_assert(STAGE_BYTES % 1024 == 0 && SPAN % 1024 == 0, "the 128-byte swizzle repeats every 1024 bytes");
    static_assert(SCALES_OFFSET + TILE_N / 128 * BLOCK_SCALES == STAGE_BYTES, "as the host reserves a stage");
    static_assert(TABLE_OFFSET + GROUP_TABLE_BYTES == SM90_GROUPED_FEW_SHARED_BYTES(ROWS, STAGES),
                  "as the host reserves it");
    static_assert(SM90_GROUPED_FEW_SHARED_BYTES(ROWS, STAGES) <= 227 * 1024, "shared memory of a CTA");
};

/* The same for a tile of at most N rows, in stages of C's size. */
template <class C, int N> struct narrowed : C {
    static constexpr int WIDTH = N;
};

/* Calls `function` with the narrowest config for so many rows. */
template <class C, class F> __device__ __forceinline__ void with_width(int rows, F function) {
#define X(n)                                                                                                           \
    if constexpr (2 * n >= C::ROWS && n <= C::ROWS)                                                                    \
        if (n == C::ROWS || rows <= n) return function(narrowed<C, n>());
    SM90_GROUPED_FEW_WIDTHS(X)
#undef X
}

/* Other warps read this of a tile in shared memory. */
struct tile_header {
    int32_t l, part, column; /* the matrix, or the first of both; column of the part */
    int32_t row, rows;       /* rows 0: there is no further tile */
    float alphas[2];         /* if alpha is one number for a matrix: of the first and the last part of the tile */
    int32_t padding_;
    int32_t from[48];  /* rows of A; negative: A does not have it */
    float factors[48]; /* of the results of each row */
};
static_assert(sizeof(tile_header) == SM90_GROUPED_FEW_TILE_BYTES, "as the host reserves it");

/* Shared addresses. */
template <class C> struct few_cta {
    uint32_t base;

    __device__ __forceinline__ uint32_t stage(uint32_t index) const { return base + index * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t index) const { return base + C::FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t empty(uint32_t index) const { return base + C::EMPTY_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t copied(uint32_t index) const { return base + C::COPIED_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t tile_full(uint32_t index) const {
        return base + C::TILE_FULL_OFFSET + 8 * index;
    }
    __device__ __forceinline__ uint32_t tile_empty(uint32_t index) const {
        return base + C::TILE_EMPTY_OFFSET + 8 * index;
    }
    __device__ __forceinline__ uint32_t staging() const { return base + C::STAGING_OFFSET; }
    __device__ __forceinline__ uint32_t staged() const { return base + C::STAGED_OFFSET; }
    __device__ __forceinline__ uint32_t drained() const { return base + C::DRAINED_OFFSET; }
};

/* A role's way through the descriptions of tiles. */
template <class C> struct tile_reader {
    const few_cta<C> &cta;
    const tile_header *tiles;
    pipeline_state<SM90_GROUPED_FEW_TILES_AHEAD> state;

    __device__ __forceinline__ tile_reader(const few_cta<C> &cta, const uint8_t *shared)
        : cta(cta), tiles((const tile_header *)(shared + C::TILES_OFFSET)) {}
    /* The next tile, which stays until it is released; NULL: there is none. */
    __device__ __forceinline__ const tile_header *next() const {
        mbarrier_wait(cta.tile_full(state.index), state.phase);
        const tile_header *tile = tiles + state.index;
        return tile->rows ? tile : NULL;
    }
    __device__ __forceinline__ void release() {
        mbarrier_arrive(cta.tile_empty(state.index));
        state.advance();
    }
};

/* Whether a tile has columns of both parts. */
__device__ __forceinline__ bool has_both_parts(const grouped_problem &p) {
    return p.has_activation && p.parts == 2;
}

__device__ __forceinline__ bool has_one_alpha(const gemm_problem &g) {
    return !g.alpha || !g.alpha_stride;
}

/* A tile with what is read from memory for it, so that the loads of one tile hide the latency of the next one's. */
template <class C> struct fetched_tile {
    static constexpr int EACH = CEIL_DIV(C::ROWS, 32);

    grouped_tile tile;
    int32_t from[EACH]; /* the lane's rows of A */
    float factors[EACH], alphas[2];

    __device__ __forceinline__ void next(grouped_tiles &tiles, const grouped_problem &p) {
        if (!tiles.next(tile, C::ROWS)) {
            tile.rows = 0;
            return;
        }
        const gemm_problem &g = p.g;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = tile.row + min((int)threadIdx.x % 32 + 32 * i, tile.rows - 1);
            from[i] = p.rows ? p.rows[at] : at;
            factors[i] = p.row_scale ? p.row_scale[at] : 1.0f;
        }
        const int32_t by_batch = g.by_batch & ALPHA_BY_BATCH;
        for (int i = 0; i < 2; i++)
            alphas[i] =
                !g.alpha || !has_one_alpha(g) ? g.alpha_value : g.alpha[by_batch ? tile.l + i * has_both_parts(p) : 0];
    }

    /* Each lane writes its part. */
    __device__ __forceinline__ void write(tile_header &to, const grouped_problem &p, int tile_n) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (!tile.rows) break;
            const int row = lane + 32 * i;
            if (row >= C::ROWS) break;
            const bool exists = from[i] >= 0 && from[i] < p.a_rows;
            to.from[row] = exists && row < tile.rows ? from[i] : -1;
            to.factors[row] = exists ? factors[i] : __int_as_float(0x7FFFFFFF);
        }
        if (lane == 0) {
            to.l = tile.l, to.part = tile.part, to.column = tile.column * tile_n;
            to.row = tile.row, to.rows = tile.rows;
            to.alphas[0] = alphas[0], to.alphas[1] = alphas[1];
        }
    }
};

#endif
