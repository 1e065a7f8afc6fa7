/* sm90/grouped.cu and sm90/grouped_few.cu share this: offsets in shared memory, the descriptions of tiles that the warp
 * which finds them leaves to the others, loads of B, and results. */
#ifndef NVFP4_SM90_GROUPED_ROLES_CUH
#define NVFP4_SM90_GROUPED_ROLES_CUH

#include "kernels/common/batch_epilogue.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/dependent.cuh"
#include "kernels/common/group_activation.cuh"
#include "kernels/common/grouped_tiles.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/sm90/grouped_config.h"
#include "kernels/sm90/mainloop.cuh"

enum {
    TILE_N = SM90_GROUPED_TILE_N,
    BOX_ROWS = SM90_GROUPED_BOX_ROWS,
    BOXES = TILE_N / BOX_ROWS,
    TILES_AHEAD = SM90_GROUPED_TILES_AHEAD,
};

/* An instantiation: math warps, copy warps, if there are any, one that loads, one that passes copies on, store warps. */
template <int ROWS_, int STAGES_, int BF16_, int STAGE_K_, int MATH_WARPS_, int COPY_WARPS_, int STORE_WARPS_,
          bool EVEN_>
struct grouped_config {
    static constexpr bool EVEN = EVEN_; /* tiles of a group have as many rows (common/grouped_tiles.cuh) */
    static constexpr int TYPE = BF16_ ? NVFP4_BF16 : NVFP4_FP16, ROWS = ROWS_, STAGES = STAGES_, STAGE_K = STAGE_K_;
    static constexpr int MATH_WARPS = MATH_WARPS_, COPY_WARPS = COPY_WARPS_, STORE_WARPS = STORE_WARPS_;
    static constexpr int OTHER_WARPS = COPY_WARPS ? 2 : 1;
    static constexpr int THREADS = 32 * (MATH_WARPS + COPY_WARPS + OTHER_WARPS + STORE_WARPS);
    static constexpr int TILE_READERS = THREADS - 32; /* of a description: all but the warp that writes it */
    /* A stage: mma_b [span of 64 along K][row] 128 bytes, 128-byte swizzle; mma_a [row]; its scales [block][atom]. */
    static constexpr int SPAN = ROWS * 128, SPANS = STAGE_K / 64, B_OFFSET = SPANS * SPAN;
    static constexpr int SCALES_OFFSET = B_OFFSET + TILE_N * STAGE_K / 2;
    static constexpr int BLOCK_SCALES = SPANS * SM90_ATOM_BYTES; /* of 128 rows in a stage */
    static constexpr int STAGE_BYTES = SM90_GROUPED_STAGE_BYTES(ROWS, STAGE_K);
    /* Byte offsets after the stages. */
    static constexpr int STAGING_OFFSET = STAGES * STAGE_BYTES,
                         FULL_OFFSET = STAGING_OFFSET + SM90_GROUPED_STAGING_BYTES(ROWS);
    static constexpr int EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES, COPIED_OFFSET = EMPTY_OFFSET + 8 * STAGES,
                         TILE_FULL_OFFSET = COPIED_OFFSET + 8 * STAGES,
                         TILE_EMPTY_OFFSET = TILE_FULL_OFFSET + 8 * TILES_AHEAD,
                         STAGED_OFFSET = TILE_EMPTY_OFFSET + 8 * TILES_AHEAD;
    static constexpr int DRAINED_OFFSET = STAGED_OFFSET + 8, TILES_OFFSET = CEIL_DIV(DRAINED_OFFSET + 8, 16) * 16,
                         TABLE_OFFSET = TILES_OFFSET + TILES_AHEAD * SM90_GROUPED_TILE_BYTES(ROWS, COPY_WARPS > 0);

    static_assert(STAGE_BYTES % 1024 == 0 && SPAN % 1024 == 0, "the 128-byte swizzle repeats every 1024 bytes");
    static_assert(SCALES_OFFSET + BOXES * BLOCK_SCALES == STAGE_BYTES, "as the host reserves a stage");
    static_assert(TABLE_OFFSET + GROUP_TABLE_BYTES ==
                      SM90_GROUPED_SHARED_BYTES_OF(ROWS, STAGES, STAGE_K, COPY_WARPS > 0),
                  "as the host reserves it");
    static_assert(TABLE_OFFSET + GROUP_TABLE_BYTES <= 227 * 1024, "shared memory of a CTA");
};

/* Rows of the wgmma of a tile. */
template <int N> struct wgmma_width {
    static constexpr int ROWS = N;
};

/* Other warps read this of a tile in shared memory. */
template <int ROWS, bool COPIES> struct tile_header {
    int32_t l, part, column; /* the matrix, or the first of both; column of the part */
    int32_t row, rows;       /* rows 0: there is no further tile */
    float alphas[2];         /* if alpha is one number for a matrix: of the first and the last part of the tile */
    int32_t padding_;
    float factors[ROWS]; /* of the results of each row */
};
template <int ROWS> struct tile_header<ROWS, true> : tile_header<ROWS, false> {
    int32_t from[ROWS]; /* rows of A; negative: A does not have it */
};
static_assert(sizeof(tile_header<16, false>) == SM90_GROUPED_TILE_BYTES(16, 0), "as the host reserves it");
static_assert(sizeof(tile_header<16, true>) == SM90_GROUPED_TILE_BYTES(16, 1), "as the host reserves it");

template <class C> using header_of = tile_header<C::ROWS, (C::COPY_WARPS > 0)>;

/* Shared addresses. */
template <class C> struct grouped_cta {
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
    using header = header_of<C>;

    const grouped_cta<C> &cta;
    const header *tiles;
    pipeline_state<TILES_AHEAD> state;

    __device__ __forceinline__ tile_reader(const grouped_cta<C> &cta, const uint8_t *shared)
        : cta(cta), tiles((const header *)(shared + C::TILES_OFFSET)) {}
    /* The next tile, which stays until it is released; NULL: there is none. */
    __device__ __forceinline__ const header *next() const {
        mbarrier_wait(cta.tile_full(state.index), state.phase);
        const header *tile = tiles + state.index;
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
    int32_t scaled;     /* rows of the group that have scales of A */
    float factors[EACH], alphas[2];

    __device__ __forceinline__ void find(grouped_tiles &tiles) {
        if (!tiles.next<C::EVEN>(tile, C::ROWS)) tile.rows = 0;
    }
    __device__ __forceinline__ void fetch(const grouped_problem &p) {
        if (!tile.rows) return;
        const gemm_problem &g = p.g;
        scaled = rows_with_scales(p, tile.group);
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
    __device__ __forceinline__ void write(header_of<C> &to, const grouped_problem &p, int tile_n) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (!tile.rows) break;
            const int row = lane + 32 * i;
            if (row >= C::ROWS) break;
            const bool exists = from[i] >= 0 && from[i] < p.a_rows && tile.row_in_group + row < scaled;
            if constexpr (C::COPY_WARPS > 0) to.from[row] = exists && row < tile.rows ? from[i] : -1;
            to.factors[row] = exists ? factors[i] : __int_as_float(0x7FFFFFFF);
        }
        if (lane == 0) {
            to.l = tile.l, to.part = tile.part, to.column = tile.column * tile_n;
            to.row = tile.row, to.rows = tile.rows;
            to.alphas[0] = alphas[0], to.alphas[1] = alphas[1];
        }
    }
};

/* ---- loads ---- */

/* One thread's loads of a tile's B: a stage at a time. */
template <class C, class S> struct b_loads {
    static constexpr uint32_t VALUES_BYTES = C::SCALES_OFFSET - C::B_OFFSET;

    const S &s;
    int32_t atoms, ls[BOXES], columns[BOXES];
    const uint8_t *scales[BOXES];

    __device__ __forceinline__ b_loads(const grouped_problem &p, const S &s, int32_t l, int32_t column)
        : s(s), atoms((int32_t)((p.g.k + 63) / 64)) {
        const gemm_problem &g = p.g;
        const bool both = has_both_parts(p);
#pragma unroll
        for (int i = 0; i < BOXES; i++) { /* a box behind the last column loads zeros, and scales that are not used */
            ls[i] = both ? l + i : l, columns[i] = both ? column : column + i * BOX_ROWS;
            scales[i] = g.scale_b + ls[i] * g.scale_b_batch +
                        (columns[i] < g.n ? columns[i] : column) / SM90_ATOM_ROWS * g.scale_b_pitch;
        }
    }
    /* Begins the phase of the full barrier, for which `more` bytes are loaded besides. */
    __device__ __forceinline__ void load(int32_t k, uint32_t stage, uint32_t full, uint32_t more) const {
        const uint32_t bytes = min(C::SPANS, atoms - k * C::SPANS) * SM90_ATOM_BYTES; /* of a box's scales */
        mbarrier_arrive_expect_tx(full, VALUES_BYTES + BOXES * bytes + more);
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            tma_load_3d<1>(stage + C::B_OFFSET + i * (BOX_ROWS * C::STAGE_K / 2), &s.b, k * (C::STAGE_K / 2),
                           columns[i], ls[i], full, s.b_cache_policy);
            cp_async_bulk(stage + C::SCALES_OFFSET + i * C::BLOCK_SCALES, scales[i] + (int64_t)k * C::BLOCK_SCALES,
                          bytes, full, s.b_cache_policy);
        }
    }
};

/* A converged warp: the number of a tile that no other CTA takes. */
__device__ __forceinline__ uint32_t claim_tile(uint32_t *claimed) {
    uint32_t number = 0;
    if (threadIdx.x % 32 == 0) number = gridDim.x + atomicAdd(claimed, 1);
    return __shfl_sync(0xFFFFFFFF, number, 0);
}

/* A converged warp: describes each tile of the CTA, and loads it. One thread calls load(tile, column, early,
 * is_described, state) twice for each tile. The first time, before the tile is described, it loads what does not depend
 * on the pre-pass of `early` stages, which are 0 for all but the first tile; then all the rest.
 *
 * waits: the warp has not executed griddepcontrol.wait, and does so behind the loads of `early` stages. */
template <class C, class S, class LOAD>
__device__ __forceinline__ void produce(const grouped_problem &p, const S &s, const grouped_cta<C> &cta,
                                        grouped_tiles &tiles, header_of<C> *headers, bool waits, LOAD load) {
    const int tile_n = has_both_parts(p) ? TILE_N / 2 : TILE_N;
    pipeline_state<C::STAGES> state;
    pipeline_state<TILES_AHEAD> slot;
    fetched_tile<C> next;
    next.find(tiles);
    if (!waits) next.fetch(p);
    int32_t early = min(s.stages_k, C::STAGES); /* loaded while rows are fetched */
    for (bool more = true; more; slot.advance(), early = 0) {
        const grouped_tile now = next.tile;
        more = now.rows > 0;
#pragma unroll 1
        for (int is_described = 0; is_described < 2; is_described++) {
            if (is_described) {
                if (waits) {
                    begin_dependent_grid();
                    next.fetch(p);
                    waits = false;
                }
                mbarrier_wait(cta.tile_empty(slot.index), slot.phase ^ 1);
                next.write(headers[slot.index], p, tile_n);
                mbarrier_arrive(cta.tile_full(slot.index));
                if (more && s.claimed) {
                    griddepcontrol_wait(); /* of the pre-pass */
                    tiles.number = claim_tile(s.claimed);
                }
                if (more) {
                    next.find(tiles);
                    next.fetch(p);
                }
            }
            if (more && elect_one()) load(now, now.column * tile_n, early, is_described, state);
            __syncwarp();
        }
    }
}

/* ---- results ---- */

/* alpha and bias of the lane's two columns. */
struct lane_columns {
    float alpha[2], bias[2];

    template <class H> __device__ __forceinline__ lane_columns(const grouped_problem &p, const H &tile, int column) {
        const gemm_problem &g = p.g;
        const int part = has_both_parts(p) && column >= BOX_ROWS;
        const int64_t l = tile.l + part, first = tile.column + column - part * BOX_ROWS;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t n = first + 8 * i;
            alpha[i] = tile.alphas[part], bias[i] = 0.0f;
            if (n >= g.n) continue;
            if (!has_one_alpha(g)) alpha[i] = g.alpha[g.by_batch & ALPHA_BY_BATCH ? l * g.n + n : n];
            if (g.bias) bias[i] = load_float(g.bias, g.by_batch & BIAS_BY_BATCH ? l * g.n + n : n, g.bias_type);
        }
    }
};

/* Results of the lane's two columns in a group of 8 rows of the tile, before rounding: [column][row]. */
template <class C>
__device__ __forceinline__ void scale_group(const grouped_problem &p, const header_of<C> &tile, int group,
                                            const lane_columns &columns, const float *acc, float (&v)[2][2]) {
    const uint2 bits = ld_shared_v2(shared_address(tile.factors) + threadIdx.x % 4 * 8 + group * 32);
    const float of_row[2] = {__uint_as_float(bits.x), __uint_as_float(bits.y)};
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            v[i][r] = __fmul_rn(columns.alpha[i], rescale(acc[group * 4 + i * 2 + r], w4a16<C::TYPE>::UNIT));
            if (p.g.bias) v[i][r] = __fadd_rn(v[i][r], columns.bias[i]);
            v[i][r] = __fmul_rn(v[i][r], of_row[r]);
        }
}

/* Rounded results of the lane's two columns to staging, transposed: a row of the result is one of staging. */
template <class C, int WIDTH>
__device__ __forceinline__ void stage_results(const grouped_problem &p, const header_of<C> &tile, uint32_t staging,
                                              int first_column, const lane_columns &columns,
                                              const float (&acc)[WIDTH / 2]) {
    const int lane = threadIdx.x % 32, row = lane % 8, chunk = first_column / 8 + lane / 8 % 2;
    const uint32_t to = staging + row * TILE_N * 2 + (chunk ^ row) * 16;
#pragma unroll
    for (int group = 0; group < WIDTH / 8; group++) {
        float v[2][2];
        scale_group<C>(p, tile, group, columns, acc, v);
        stmatrix_x2_trans(to + group * 8 * TILE_N * 2, round_pair(v[0][0], v[0][1], p.g.out_type),
                          round_pair(v[1][0], v[1][1], p.g.out_type));
    }
}

/* ---- stores ---- */

/* Replaces eight results of gate in staging by the activation. up: where those of up are; 0: 1 stands for them. Each
 * activation has code of its own, without branches: values follow each other closely in the pipeline. */
template <int ACTIVATION>
__device__ __forceinline__ void activate_chunk_by(const gating &numbers, int type, uint32_t gate, uint32_t up) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t gates = ld_shared(gate + i * 4), ups = up ? ld_shared(up + i * 4) : 0;
        float v[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float u = value_16(ups >> h * 16 & 0xFFFF, type);
            v[h] = gated(ACTIVATION, value_16(gates >> h * 16 & 0xFFFF, type), up ? u : 1.0f, numbers);
        }
        st_shared(gate + i * 4, round_pair(v[0], v[1], type));
    }
}

__device__ __forceinline__ void activate_chunk(int activation, const gating &numbers, int type, uint32_t gate,
                                               uint32_t up) {
    if (activation == NVFP4_SILU)
        activate_chunk_by<NVFP4_SILU>(numbers, type, gate, up);
    else if (activation == NVFP4_SWIGLU)
        activate_chunk_by<NVFP4_SWIGLU>(numbers, type, gate, up);
    else if (activation == NVFP4_GELU_TANH)
        activate_chunk_by<NVFP4_GELU_TANH>(numbers, type, gate, up);
    else
        activate_chunk_by<NVFP4_RELU2>(numbers, type, gate, up);
}

/* The columns of eight neighbours that exist: with one instruction, if all do and the address is aligned. */
__device__ __forceinline__ void store_chunk(uint16_t *to, uint32_t from, int count) {
    const uint4 v = ld_shared_v4(from);
    if (count >= 8 && (uintptr_t)to % 16 == 0) {
        *(uint4 *)to = v;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) to[i] = (uint16_t)(word_of(v, i / 2) >> i % 2 * 16);
}

template <class C, class S>
__device__ __forceinline__ void store_tiles(const grouped_problem &p, const S &s, const grouped_cta<C> &cta, int thread,
                                            const uint8_t *shared) {
    const bool both = has_both_parts(p);
    const int chunks_log2 = both ? 4 : 5; /* chunks of a row of the tile's results */
    uint32_t phase = 0;
    for (tile_reader<C> tiles(cta, shared); const auto *tile = tiles.next();) {
        const int rows = tile->rows, column = tile->column;
        char *const out =
            (char *)p.g.out + tile->row * p.g.out_pitch + tile->part * p.g.out_batch + (int64_t)column * 2;
        tiles.release();
        if (p.g.out_type == NVFP4_FP32) continue; /* which math warps store */
        const uint32_t staging = cta.staging();
        mbarrier_wait(cta.staged(), phase);
#pragma unroll 1
        for (int i = thread; i < rows << chunks_log2; i += 32 * C::STORE_WARPS) {
            const int row = i >> chunks_log2, chunk = i & ((1 << chunks_log2) - 1);
            const int count = (int)min(p.g.n - column - chunk * 8, (int64_t)8);
            if (count <= 0) continue;
            const uint32_t of_row = staging + row * TILE_N * 2, at = of_row + (chunk ^ row % 8) * 16;
            if (p.has_activation)
                activate_chunk(p.activation, s.numbers, p.g.out_type, at, both ? at + BOX_ROWS * 2 : 0);
            store_chunk((uint16_t *)(out + row * p.g.out_pitch) + chunk * 8, at, count);
        }
        mbarrier_arrive(cta.drained());
        phase ^= 1;
    }
}

/* ---- the kernel ---- */

/* Initializes mbarriers. Reads no tensor, so it runs before griddepcontrol.wait. */
template <class C> __device__ __forceinline__ void prologue(const tensor_map &b, const grouped_cta<C> &cta) {
    if (threadIdx.x / 32 == 0 && elect_one()) {
        prefetch_tensormap(&b);
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(cta.full(i), C::COPY_WARPS ? 1 + 1 : 1);
            mbarrier_init(cta.empty(i), 32 * C::MATH_WARPS);
            if (C::COPY_WARPS) mbarrier_init(cta.copied(i), 32 * C::COPY_WARPS);
        }
        for (int i = 0; i < TILES_AHEAD; i++) {
            mbarrier_init(cta.tile_full(i), 32);
            mbarrier_init(cta.tile_empty(i), C::TILE_READERS);
        }
        mbarrier_init(cta.staged(), 32 * C::MATH_WARPS);
        mbarrier_init(cta.drained(), 32 * C::STORE_WARPS);
        fence_mbarrier_init();
    }
    __syncwarp();
}

#endif
