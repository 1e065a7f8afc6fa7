/* Products of groups of a few rows of fp16 or bf16 A, each group by an NVFP4 matrix of its own
 * (common/grouped_problem.h), with mma.sync m16n8k16. B is the operand with 16 rows an mma. A backend instantiates the
 * kernels in its grouped_units.cu.
 *
 * A warp multiplies pairs of units of B as in units/gemm.cuh (units/units.cuh). Each math warp has a producer warp and
 * pipelines of its own:
 *
 *   producer   tile   addresses of its rows of A, a lane each
 *              step   wait until A's stage is empty, bulk copies of the rows
 *              pair   wait until the stage is empty, TMA loads of B and its scales
 *   math       step   wait for A's stage | fragments of A to registers | release the stage
 *              pair   wait for the pair's stage | its words to registers | release it | dequantize and mma, sums in
 *                     shared memory
 *              tile   barrier of the team | a warp adds the sums of all warps of the team for a pair and 8 rows, in the
 *                     order of the warps, and runs the epilogue
 *
 * With an activation a tile has the same columns of both parts, part 0's pairs before part 1's, and their sums so. The
 * epilogue rounds the results of both and computes the activation.
 *
 * The warps of a team share K, so the few tiles of a single token still occupy all SMs. Where K is short, more teams
 * have fewer warps. The bits of a result depend on the number of warps of a team, and on no other row.
 *
 * Shared memory (units/grouped_config.h): stages of B | scales of B | stages of A [row][lane of a quad] 128 bytes
 * | mbarriers | sums [tile % 2][warp][pair][unit of A][lane] 16 bytes | table of groups. While a team stores the sums
 * of a tile, its warps may add to those of the next.
 *
 * Tails: TMA loads zeros past the end of K and of the rows of B. Scales past the end of K may be NaN and are masked,
 * and values of A there, which are not loaded, become zeros. Rows that A does not have are not loaded: they reach only
 * results that are not stored, or have the factor NaN. */
#ifndef NVFP4_UNITS_GROUPED_CUH
#define NVFP4_UNITS_GROUPED_CUH

#include "kernels/common/batch_epilogue.cuh"
#include "kernels/common/dependent.cuh"
#include "kernels/common/group_activation.cuh"
#include "kernels/common/grouped_tiles.cuh"
#include "kernels/units/grouped_config.h"
#include "kernels/units/units.cuh"

template <int A_UNITS_, int BF16_, int STAGES_, int A_STAGES_, int PAIRS_> struct config {
    static constexpr int A_UNITS = A_UNITS_, STAGES = STAGES_, A_STAGES = A_STAGES_, ROWS = 8 * A_UNITS;
    static constexpr int TYPE = BF16_ ? NVFP4_BF16 : NVFP4_FP16, WARPS = GROUPED_UNITS_WARPS;
    static constexpr int A_BYTES = GROUPED_UNITS_A_BYTES(A_UNITS);
    /* Offsets in shared memory. */
    static constexpr int SCALES_OFFSET = WARPS * STAGES * UNITS_PAIR_BYTES;
    static constexpr int A_OFFSET = SCALES_OFFSET + WARPS * STAGES * UNITS_SCALES;
    static constexpr int BARRIERS_OFFSET = A_OFFSET + WARPS * A_STAGES * A_BYTES;
    static constexpr int BARRIERS = UNITS_BARRIERS(STAGES, A_STAGES);
    static constexpr int HEADERS_OFFSET = BARRIERS_OFFSET + WARPS * BARRIERS * 8;
    static constexpr int SUMS_OFFSET = HEADERS_OFFSET + WARPS * A_STAGES * GROUPED_UNITS_HEADER;
    static constexpr int TABLE_OFFSET = SUMS_OFFSET + GROUPED_UNITS_SUMS(PAIRS_);
    static constexpr int WARP_SUMS = PAIRS_ * 32; /* float4 */

    static_assert(TABLE_OFFSET + GROUP_TABLE_BYTES == GROUPED_UNITS_SHARED_BYTES(A_UNITS, STAGES, A_STAGES, PAIRS_),
                  "as the host reserves it");
    static_assert(GROUPED_UNITS_SHARED_BYTES(A_UNITS, STAGES, A_STAGES, PAIRS_) <= 227 * 1024,
                  "shared memory of a CTA");
    static_assert(SUMS_OFFSET % 16 == 0 && TABLE_OFFSET % 16 == 0, "vectors of sums");
    static_assert(STAGES >= 2, "the first two pairs are loaded before a stage is released");
};

/* A tile, as its producer describes it to the math warps in shared memory beside each stage of A. */
struct tile_header {
    int32_t l, part, column;
    int32_t row, rows; /* rows 0: there is no further tile */
    float alphas[2];   /* if alpha is one number for a matrix: of the first and the last part of the tile */
    float factors[16]; /* of the results of each row */
    int32_t padding_;
};
static_assert(sizeof(tile_header) == GROUPED_UNITS_HEADER, "as the host reserves it");

/* The same for a tile of at most 8 rows. */
template <class C> struct narrowed : C {
    static constexpr int A_UNITS = 1;
};

/* The stages of a math warp and its producer, by shared address, and their way through them. */
template <class C> struct warp_stages {
    uint32_t values, scales, a, full, empty, a_full, a_empty;
    tile_header *headers;
    pipeline_state<C::STAGES> stage;
    pipeline_state<C::A_STAGES> a_stage;

    __device__ __forceinline__ warp_stages(uint8_t *base, int warp) {
        const uint32_t shared = shared_address(base);
        values = shared + warp * C::STAGES * UNITS_PAIR_BYTES;
        scales = shared + C::SCALES_OFFSET + warp * C::STAGES * UNITS_SCALES;
        a = shared + C::A_OFFSET + warp * C::A_STAGES * C::A_BYTES;
        full = shared + C::BARRIERS_OFFSET + warp * C::BARRIERS * 8, empty = full + C::STAGES * 8;
        a_full = empty + C::STAGES * 8, a_empty = a_full + C::A_STAGES * 8;
        headers = (tile_header *)(base + C::HEADERS_OFFSET) + warp * C::A_STAGES;
    }
};

/* How many parts a tile has. */
__device__ __forceinline__ int parts_of_tile(const grouped_problem &p) {
    return p.has_activation ? p.parts : 1;
}

/* 0x7F for each of the lane's four blocks of a step that is within K. */
__device__ __forceinline__ uint32_t step_mask(const gemm_problem &g, int step) {
    const int left = (int)(g.k / 16) - step * (UNITS_STEP_K / 16) - threadIdx.x % 4 * 4;
    return left >= 4 ? 0x7F7F7F7F : left <= 0 ? 0 : 0x7F7F7F7F >> (32 - 8 * left);
}

__device__ __forceinline__ bool has_one_alpha(const gemm_problem &g) {
    return !g.alpha || !g.alpha_stride;
}

/* ---- producer ---- */

template <class C>
__device__ __forceinline__ void load_b(const grouped_units_schedule &s, const warp_stages<C> &to, int l, int pair,
                                       int step) {
    const uint32_t full = to.full + to.stage.index * 8, values = to.values + to.stage.index * UNITS_PAIR_BYTES;
    const int x = step * (UNITS_STEP_K / 2), block = pair / 8, row = pair % 8 * 4;
    mbarrier_arrive_expect_tx(full, UNITS_PAIR_BYTES + UNITS_SCALES);
    if (pair >= s.full_pairs)
        for (int quarter = 0; quarter < 4; quarter++)
            tma_load_3d<1>(values + quarter * 512, &s.b_tail, x, block * 128 + quarter * 32 + row, l, full,
                           s.b_cache_policy);
    else
        tma_load_4d(values, &s.b_pairs, x, row, block * 4, l, full, s.b_cache_policy);
    tma_load_4d(to.scales + to.stage.index * UNITS_SCALES, &s.b_scales, row * 16, step * UNITS_ATOMS, block, l, full,
                s.b_cache_policy);
}

/* A warp's copies of a step of A, of which `left` bytes of a row remain. row: the lane's; NULL: none. */
template <class C>
__device__ __forceinline__ void load_a(const warp_stages<C> &to, const uint8_t *row, int64_t begin, int64_t left,
                                       uint64_t cache_policy) {
    const int bytes = (int)min(left, (int64_t)UNITS_STEP_K * 2), count = __popc(__ballot_sync(~0u, row != NULL));
    const uint32_t full = to.a_full + to.a_stage.index * 8;
    const uint32_t place = to.a + to.a_stage.index * C::A_BYTES + threadIdx.x % 32 * GROUPED_UNITS_A_ROW;
    if (elect_one())
        mbarrier_arrive_expect_tx(full, count * bytes);
    else
        mbarrier_arrive(full);
    __syncwarp();
    if (row)
        for (int t = 0; t * 128 < bytes; t++)
            cp_async_bulk(place + t * GROUPED_UNITS_A_PIECE, row + begin + t * 128, min(bytes - t * 128, 128), full,
                          cache_policy);
    __syncwarp();
}

/* A tile with what is read from memory for it, so that the loads of one tile hide the latency of the next one's. */
struct fetched_tile {
    grouped_tile tile;
    int32_t from; /* the lane's row of A */
    float factor, alphas[2];

    __device__ __forceinline__ bool next(grouped_tiles &tiles, const grouped_problem &p, int tile_rows) {
        if (!tiles.next(tile, tile_rows)) {
            tile.rows = 0;
            return false;
        }
        const int lane = threadIdx.x % 32, at = tile.row + min(lane, tile.rows - 1);
        const gemm_problem &g = p.g;
        from = p.rows ? p.rows[at] : at;
        factor = p.row_scale ? p.row_scale[at] : 1.0f;
        const int32_t by_batch = g.by_batch & ALPHA_BY_BATCH;
        for (int i = 0; i < 2; i++)
            alphas[i] = !g.alpha || !has_one_alpha(g) ? g.alpha_value
                                                      : g.alpha[by_batch ? tile.l + i * (parts_of_tile(p) - 1) : 0];
        return true;
    }
};

/* Writes the header of the stage of A that is filled next. */
template <class C>
__device__ __forceinline__ void announce(const warp_stages<C> &to, const fetched_tile &t, bool exists) {
    tile_header &header = to.headers[to.a_stage.index];
    const int lane = threadIdx.x % 32;
    if (lane < C::ROWS) header.factors[lane] = exists ? t.factor : __int_as_float(0x7FFFFFFF);
    if (lane == 0) {
        header.l = t.tile.l, header.part = t.tile.part, header.column = t.tile.column;
        header.row = t.tile.row, header.rows = t.tile.rows;
        header.alphas[0] = t.alphas[0], header.alphas[1] = t.alphas[1];
    }
}

template <class C>
__device__ __forceinline__ void produce(const grouped_problem &p, const grouped_units_schedule &s, grouped_tiles &tiles,
                                        int first_step, warp_stages<C> &to) {
    const int parts = parts_of_tile(p);
    fetched_tile next;
    bool more = next.next(tiles, p, C::ROWS);
    /* B of the first tile, while rows are fetched. More pairs would delay A: two further ones by 0.8 us. */
    int ahead = more ? min(min(2, s.tile_pairs), s.pairs - next.tile.column * s.tile_pairs) : 0;
#pragma unroll 1
    for (int i = 0; i < ahead; i++, to.stage.advance())
        if (elect_one()) load_b(s, to, next.tile.l, next.tile.column * s.tile_pairs + i, first_step);
    while (more) {
        const fetched_tile now = next;
        more = next.next(tiles, p, C::ROWS);
        const int begin = now.tile.column * s.tile_pairs, end = min(begin + s.tile_pairs, s.pairs);
        const bool exists = now.from >= 0 && now.from < p.a_rows && (int)threadIdx.x % 32 < now.tile.rows;
        const uint8_t *const row = exists ? p.g.a + now.from * p.g.a_pitch : NULL;
#pragma unroll 1
        for (int step = first_step; step < s.steps; step += 1 << s.team_log2) {
            const int64_t k = (int64_t)step * UNITS_STEP_K;
            mbarrier_wait(to.a_empty + to.a_stage.index * 8, to.a_stage.phase ^ 1);
            if (step == first_step) announce(to, now, exists);
            load_a(to, row, k * 2, (p.g.k - k) * 2, s.a_cache_policy);
            to.a_stage.advance();
#pragma unroll 1
            for (int part = 0; part < parts; part++, ahead = 0)
#pragma unroll 1
                for (int pair = begin + ahead; pair < end; pair++) {
                    mbarrier_wait(to.empty + to.stage.index * 8, to.stage.phase ^ 1);
                    if (elect_one()) load_b(s, to, now.tile.l + part, pair, step);
                    to.stage.advance();
                }
        }
    }
    mbarrier_wait(to.a_empty + to.a_stage.index * 8, to.a_stage.phase ^ 1);
    announce(to, next, false);
    mbarrier_arrive(to.a_full + to.a_stage.index * 8);
}

/* ---- math ---- */

/* The lane's fragments of a step of A. */
template <class C> __device__ __forceinline__ void fragments_of_a(const uint8_t *values, uint32_t mask, units_a<C> &a) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < C::A_UNITS; i++) {
        const uint8_t *row = values + (i * 8 + g) * GROUPED_UNITS_A_ROW + t * GROUPED_UNITS_A_PIECE;
#pragma unroll
        for (int word = 0; word < 8; word++) {
            w4a16<C::TYPE>::activations(*(const uint4 *)(row + word * 16), a[i][word]);
            if (mask != 0x7F7F7F7F && !(mask >> word / 2 * 8 & 0x7F))
#pragma unroll
                for (int pair = 0; pair < 4; pair++) a[i][word][pair] = 0;
        }
    }
}

/* The warp's part of a tile with `count` pairs, whose first step of A is there. sums: the lane's first. */
template <class C, class STAGES>
__device__ __forceinline__ void multiply_tile(const gemm_problem &g, const grouped_units_schedule &s, int count,
                                              int first_step, const uint8_t *shared, int warp, STAGES &from,
                                              float4 *sums) {
    const int lane = threadIdx.x % 32, row_of_8 = lane / 4, t = lane % 4;
    const uint8_t *const values = shared + warp * C::STAGES * UNITS_PAIR_BYTES;
    const uint8_t *const scales = shared + C::SCALES_OFFSET + warp * C::STAGES * UNITS_SCALES;
    uint32_t row = row_of_8 * 128 + (2 * t ^ row_of_8) * 16, scale = t * 64 + row_of_8 % 4 * 16 + row_of_8 / 4 * 4;
    pin(row), pin(scale);
#pragma unroll 1
    for (int step = first_step; step < s.steps; step += 1 << s.team_log2) {
        const uint32_t mask = step_mask(g, step);
        units_a<C> a;
        if (step != first_step) mbarrier_wait(from.a_full + from.a_stage.index * 8, from.a_stage.phase);
        fragments_of_a<C>(shared + C::A_OFFSET + (warp * C::A_STAGES + from.a_stage.index) * C::A_BYTES, mask, a);
        mbarrier_arrive(from.a_empty + from.a_stage.index * 8);
        from.a_stage.advance();
        float4 *to = sums;
#pragma unroll 1
        for (int pair = 0; pair < count; pair++, to += C::A_UNITS * 32) {
            const uint8_t *at = values + from.stage.index * UNITS_PAIR_BYTES;
            const uint8_t *scales_at = scales + from.stage.index * UNITS_SCALES;
            mbarrier_wait(from.full + from.stage.index * 8, from.stage.phase);
            units_multiply<C, true>(at + row, at + (row ^ 16), scales_at + scale, from.empty + from.stage.index * 8,
                                    mask, a, step == first_step, to);
            from.stage.advance();
        }
    }
}

/* The results of four columns of a row in matrix l, before rounding. sums: of the team's first warp. */
template <class C>
__device__ __forceinline__ void results_of(const gemm_problem &g, int l, float alpha, float factor, int64_t n,
                                           const float *sums, int warps, float (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = 0.0f;
#pragma unroll 1
    for (int warp = 0; warp < warps; warp++, sums += C::WARP_SUMS * 4)
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = __fadd_rn(v[i], sums[i * 16]);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __fmul_rn(v[i], units_unit<C::TYPE>);
    if (has_one_alpha(g) && !g.bias) {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = __fmul_rn(__fmul_rn(alpha, v[i]), factor);
        return;
    }
    four_column_epilogue columns(g, n);
    take_batch(columns, g, l);
    scale_row(columns, g, factor, v);
}

/* Replaces results of gate by the activation. The most frequent one has code of its own: math warps of other teams need
 * the issue slots that one code for all takes, 1 to 2 % of the time of a product. */
__device__ __forceinline__ void activate(int activation, const gating &numbers, int type, float (&gate)[4],
                                         const float (&up)[4]) {
    if (activation == NVFP4_SILU)
#pragma unroll
        for (int i = 0; i < 4; i++) gate[i] = gated(NVFP4_SILU, rounded(gate[i], type), rounded(up[i], type), numbers);
    else
#pragma unroll
        for (int i = 0; i < 4; i++) gate[i] = gated(activation, rounded(gate[i], type), rounded(up[i], type), numbers);
}

/* The results of a pair and 8 rows, of which a lane has four columns of one. sums: of the team's first warp; those of
 * the next part are part_sums further. */
template <class C>
__device__ __forceinline__ void store_pair(const grouped_problem &p, const gating &numbers, const tile_header &tile,
                                           float factor, int pair, int unit, const float *sums, int part_sums,
                                           int warps) {
    const int lane = threadIdx.x % 32, quarter = lane / 8, m = lane % 8, row = unit * 8 + m;
    const int64_t n = (int64_t)(pair / 8) * 128 + quarter * 32 + pair % 8 * 4;
    if (row >= tile.rows || n >= p.g.n) return;
    /* Rows 0-7 of the mma's 16 are quarters 0 and 1, rows 8-15 the others. */
    sums += quarter % 2 * 64 + m / 2 * 4 + quarter / 2 * 2 + m % 2;
    const int type = p.g.out_type;
    float v[4];
    results_of<C>(p.g, tile.l, tile.alphas[0], factor, n, sums, warps, v);
    if (p.has_activation) {
        float up[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        if (p.parts == 2) results_of<C>(p.g, tile.l + 1, tile.alphas[1], factor, n, sums + part_sums, warps, up);
        activate(p.activation, numbers, type, v, up);
    }
    char *out =
        (char *)p.g.out + (int64_t)(tile.row + row) * p.g.out_pitch + tile.part * p.g.out_batch + n * type_bytes(type);
    store_floats(out, type, v, (int)min(p.g.n - n, (int64_t)4));
}

/* A tile of at most 8 * units rows: the warp's part of the results. sums: of the team's first warp. */
template <class C>
__device__ __forceinline__ void store_tile(const grouped_problem &p, const grouped_units_schedule &s,
                                           const tile_header &tile, float factor, float factor_8, int units,
                                           int of_team, const float4 *sums) {
    const int begin = tile.column * s.tile_pairs, count = min(s.tile_pairs, s.pairs - begin) * units;
#pragma unroll 1
    for (int i = of_team; i < count; i += 1 << s.team_log2) {
        const int unit = i & (units - 1); /* 1 or 2 units */
        store_pair<C>(p, s.numbers, tile, unit ? factor_8 : factor, begin + (i >> (units - 1)), unit,
                      (const float *)(sums + i * 32), count * 128, 1 << s.team_log2);
    }
}

template <class C>
__device__ __forceinline__ void consume(const grouped_problem &p, const grouped_units_schedule &s, int warp,
                                        uint8_t *shared, warp_stages<C> &stages) {
    float4 *sums = (float4 *)(shared + C::SUMS_OFFSET);
    const int team_warps = 1 << s.team_log2, of_team = warp % team_warps;
#pragma unroll 1
    for (int buffer = 0;; buffer ^= C::WARPS * C::WARP_SUMS) {
        mbarrier_wait(stages.a_full + stages.a_stage.index * 8, stages.a_stage.phase);
        const tile_header tile = stages.headers[stages.a_stage.index];
        if (tile.rows == 0) return;
        const float *of_rows = stages.headers[stages.a_stage.index].factors + threadIdx.x % 8;
        const float factor = of_rows[0], factor_8 = of_rows[8]; /* of the lane's row, and the row 8 further on */
        const int pairs = min(s.tile_pairs, s.pairs - tile.column * s.tile_pairs) * parts_of_tile(p);
        float4 *const own = sums + buffer + warp * C::WARP_SUMS + threadIdx.x % 32;
        const int units = C::A_UNITS == 1 || tile.rows <= 8 ? 1 : C::A_UNITS;
        if (units == 1)
            multiply_tile<narrowed<C>>(p.g, s, pairs, of_team, shared, warp, stages, own);
        else
            multiply_tile<C>(p.g, s, pairs, of_team, shared, warp, stages, own);
        if (team_warps > 1)
            named_barrier_sync(1 + (warp >> s.team_log2), 32 * team_warps);
        else
            __syncwarp();
        store_tile<C>(p, s, tile, factor, factor_8, units, of_team, sums + buffer + (warp - of_team) * C::WARP_SUMS);
    }
}

/* ---- the kernel ---- */

template <class C> __device__ __forceinline__ void multiply(const grouped_problem &p, const grouped_units_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warps = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0), warp = warps % C::WARPS;
    const bool is_producer = warps >= C::WARPS;
    warp_stages<C> stages(shared, warp);
    if (is_producer && elect_one()) {
        if (s.full_pairs) prefetch_tensormap(&s.b_pairs);
        prefetch_tensormap(&s.b_scales);
        for (int i = 0; i < 2 * C::STAGES; i++) mbarrier_init(stages.full + i * 8, 1);
        /* Each lane arrives that writes a part of a header, or reads it. */
        for (int i = 0; i < 2 * C::A_STAGES; i++) mbarrier_init(stages.a_full + i * 8, 32);
        fence_mbarrier_init();
    }
    __syncwarp();
    begin_dependent_grid();
    group_table &table = *(group_table *)(shared + C::TABLE_OFFSET);
    /* Scratch in the place of sums, which the barrier at the end of group_table::fill frees. */
    table.fill(p.ends, p.groups, (int)p.g.m, C::ROWS,
               *(group_table_scratch<GROUPED_UNITS_THREADS> *)(shared + C::SUMS_OFFSET));
    if (is_producer) {
        const uint32_t team = warp >> s.team_log2, teams = C::WARPS >> s.team_log2;
        grouped_tiles tiles(table, p, s.tiles_n, blockIdx.x + team * gridDim.x, gridDim.x * teams, p.has_activation);
        produce<C>(p, s, tiles, warp % (1 << s.team_log2), stages);
    } else {
        consume<C>(p, s, warp, shared, stages);
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(GROUPED_UNITS_THREADS, 1)                                             \
        nvfp4_##id(const __grid_constant__ grouped_problem p, const __grid_constant__ grouped_units_schedule s) {      \
        multiply<config<__VA_ARGS__>>(p, s);                                                                           \
    }

#endif
