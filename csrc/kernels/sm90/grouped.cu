/* Products of groups of rows of A, each group by an NVFP4 matrix of its own (common/grouped_problem.h), on Hopper
 * tensor cores. A is fp16 or bf16. An NVFP4 A becomes fp16 in the pre-pass.
 *
 * As in gemm.cu with swap_ab, mma_a is B: it is dequantized into the registers that wgmma reads (sm90/mainloop.cuh). Up
 * to MMA_TILE_N rows of A are mma_b. The pre-pass sm90/reorder.cu puts their values into the order along K that
 * dequantizing leads to. Rows may lie anywhere, so that no tensor map describes those of a tile, and warps copy them. A
 * tile of fewer rows takes a narrower wgmma. Every width adds along K in the same order, so the bits of a row depend on
 * nothing but its operands.
 *
 * The grid is at most a CTA an SM. Each reads the ends of all groups and takes tiles in turn (common/grouped_tiles.cuh).
 *
 *   warps             waits for                does                                               arrives at
 *   0-7 (math)        full, factors_full       dequantizes mma_a, wgmma; epilogue of the tile     empty, factors_free
 *   8-11 (copies)     empty, factors_free      rows of A; factors of the results of a tile        copied, factors_full
 *   12 (one thread)   empty                    TMA loads of values of B, bulk copies of scales    full
 *   13 (one thread)   copied                   the proxy fence between copies and wgmma           full
 *
 * A fence waits for all accesses of its warp that are under way, so it is not in the warps whose copies are.
 *
 * Dependent launch: the pre-pass lets this grid start when all grids before the pre-pass have completed. So only what
 * reads its result waits for it. Where A has no values there is no pre-pass, and every thread waits.
 *
 * Shared memory: stages as in gemm.cu, an epilogue staging buffer for each math warp, mbarriers, factors of the rows of
 * some tiles, the table of groups (SM90_GROUPED_SHARED_BYTES).
 *
 * Tails: what is past the end of K is zero in A, and its scales are masked. The result of a row outside of A, or
 * without scales, has the factor NaN. Rows past the end of a group and columns past the end of B reach only results
 * that are not stored. */
#include "kernels/common/batch_epilogue.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/cp_async.cuh"
#include "kernels/common/grouped_tiles.cuh"
#include "kernels/common/placement.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/sm90/grouped_config.h"
#include "kernels/sm90/mainloop.cuh"

enum {
    MATH_WARPS = SM90_GROUPED_MATH_WARPS,
    COPY_WARPS = SM90_GROUPED_COPY_WARPS,
    TILE_N = SM90_GROUPED_TILE_N,
    /* setmaxnreg: of 128 registers a thread at launch. */
    MATH_REGISTERS = 200,
    COPY_REGISTERS = 72,
    OTHER_REGISTERS = 40,
};

template <int MMA_TILE_N_, int STAGES_, int BF16_> struct config {
    static constexpr int TYPE = BF16_ ? NVFP4_BF16 : NVFP4_FP16, MMA_TILE_N = MMA_TILE_N_, STAGES = STAGES_;
    /* Names that sm90/mainloop.cuh uses. */
    static constexpr int WGMMAS_M = 1, MMA_B_SPAN = MMA_TILE_N * 128, MMA_A_OFFSET = 2 * MMA_B_SPAN,
                         MMA_SFA_OFFSET = MMA_A_OFFSET + TILE_N * SM90_STAGE_K / 2;
    static constexpr int STAGE_BYTES = SM90_STAGE_BYTES(2, WGMMAS_M, MMA_TILE_N);
    /* Byte offsets after the stages. */
    static constexpr int STAGING_OFFSET = STAGES * STAGE_BYTES,
                         FULL_OFFSET = STAGING_OFFSET + MATH_WARPS * SM90_EPILOGUE_STAGING_BYTES;
    static constexpr int EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES, COPIED_OFFSET = EMPTY_OFFSET + 8 * STAGES,
                         FACTORS_FULL_OFFSET = COPIED_OFFSET + 8 * STAGES;
    static constexpr int FACTORS_FREE_OFFSET = FACTORS_FULL_OFFSET + 8 * SM90_GROUPED_TILES_AHEAD,
                         FACTORS_OFFSET = FACTORS_FREE_OFFSET + 8 * SM90_GROUPED_TILES_AHEAD,
                         TABLE_OFFSET = FACTORS_OFFSET + SM90_GROUPED_TILES_AHEAD * MMA_TILE_N * 4;

    static_assert(STAGE_BYTES % 1024 == 0 && MMA_B_SPAN % 1024 == 0, "the 128-byte swizzle repeats every 1024 bytes");
    static_assert(TABLE_OFFSET + GROUP_TABLE_BYTES == SM90_GROUPED_SHARED_BYTES(MMA_TILE_N, STAGES),
                  "as the host reserves it");
    static_assert(SM90_GROUPED_SHARED_BYTES(MMA_TILE_N, STAGES) <= 227 * 1024, "shared memory of a CTA on Hopper");
};

/* The same for a tile of at most N rows, in stages of C's size. */
template <class C, int N> struct narrowed : C {
    static constexpr int MMA_TILE_N = N, COLUMN_GROUPS = N / 8;
    static constexpr int GROUP_WORDS = N <= 64 ? 2 : 1, GROUPS = 4 / GROUP_WORDS;
    static constexpr int READ_GROUP = GROUP_WORDS == 2 ? 0 : GROUPS - 1; /* as in gemm.cu */
};

/* Calls `function` with the narrowest config for so many rows. */
template <class C, class F> __device__ __forceinline__ void with_width(int rows, F function) {
#define X(n)                                                                                                           \
    if (n == C::MMA_TILE_N || rows <= n) return function(narrowed<C, n>());
    if constexpr (C::MMA_TILE_N == 64) {
        SM90_GROUPED_WIDTHS_64(X)
    } else {
        SM90_GROUPED_WIDTHS_128(X)
    }
#undef X
}

/* Shared addresses; the stages along K. */
template <class C> struct grouped_cta {
    uint32_t base;
    int32_t k_begin, k_end, k_tail; /* as in cta_context of schedule.cuh */
    int32_t scales;                 /* along K */

    __device__ __forceinline__ grouped_cta(const gemm_problem &g, uint32_t base)
        : base(base), k_begin(0), k_end((int32_t)((g.k + SM90_STAGE_K - 1) / SM90_STAGE_K)),
          k_tail((int32_t)(g.k / SM90_STAGE_K)), scales((int32_t)(g.k / 16)) {}
    __device__ __forceinline__ uint32_t stage(uint32_t index) const { return base + index * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t index) const { return base + C::FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t empty(uint32_t index) const { return base + C::EMPTY_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t copied(uint32_t index) const { return base + C::COPIED_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t factors_full(uint32_t index) const {
        return base + C::FACTORS_FULL_OFFSET + 8 * index;
    }
    __device__ __forceinline__ uint32_t factors_free(uint32_t index) const {
        return base + C::FACTORS_FREE_OFFSET + 8 * index;
    }
    __device__ __forceinline__ uint32_t factors(uint32_t index) const {
        return base + C::FACTORS_OFFSET + index * C::MMA_TILE_N * 4;
    }
    /* The mask of two scales, as in cta_context. */
    __device__ __forceinline__ uint32_t tail_mask(int i) const {
        const int32_t left = scales - (k_tail * 8 + i);
        return left >= 2 ? 0x7F7F : left == 1 ? 0x7F : 0;
    }
};

__device__ __forceinline__ int32_t first_column(const grouped_tile &tile) {
    return tile.column * TILE_N;
}

/* ---- operands ---- */

/* One thread: the stages of a tile's B. */
template <class C>
__device__ __forceinline__ void load_b(const gemm_problem &g, const sm90_grouped_schedule &s, const grouped_cta<C> &cta,
                                       const grouped_tile &tile, pipeline_state<C::STAGES> &state) {
    const uint8_t *scales =
        g.scale_b + tile.l * g.scale_b_batch + first_column(tile) / SM90_ATOM_ROWS * g.scale_b_pitch;
#pragma unroll 1
    for (int32_t k = 0; k < cta.k_end; k++, state.advance()) {
        const uint32_t stage = cta.stage(state.index), full = cta.full(state.index);
        const uint32_t bytes = min(2, (cta.scales - k * 8 + 3) / 4) * SM90_ATOM_BYTES; /* of scales */
        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
        mbarrier_arrive_expect_tx(full, C::MMA_SFA_OFFSET - C::MMA_A_OFFSET + bytes);
        tma_load_3d<1>(stage + C::MMA_A_OFFSET, &s.b, k * (SM90_STAGE_K / 2), first_column(tile), tile.l, full,
                       s.b_cache_policy);
        cp_async_bulk(stage + C::MMA_SFA_OFFSET, scales + (int64_t)k * SM90_BLOCK_BYTES, bytes, full, s.b_cache_policy);
    }
}

/* One thread: passes on copied rows to wgmma. */
template <class C>
__device__ __forceinline__ void pass_on_a(const grouped_cta<C> &cta, pipeline_state<C::STAGES> &state) {
#pragma unroll 1
    for (int32_t k = 0; k < cta.k_end; k++, state.advance()) {
        mbarrier_wait(cta.copied(state.index), state.phase);
        fence_proxy_async();
        mbarrier_arrive(cta.full(state.index));
    }
}

/* Arrives when all earlier cp.async of this thread have completed (PTX ISA 9.0, section 9.7.13.15.15). */
__device__ __forceinline__ void cp_async_mbarrier_arrive(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* A copy warp's part of the rows of A of a tile: every fourth block of 8 rows. A lane has two rows of a block, and of
 * both spans of a stage the same 16-byte chunk. */
template <class C> struct a_rows {
    static constexpr int BLOCKS = C::MMA_TILE_N / 8 / COPY_WARPS;

    const grouped_cta<C> &cta;
    int32_t rows[BLOCKS][2]; /* of what the pre-pass wrote; negative: none */
    int warp, row, chunk;

    __device__ __forceinline__ explicit a_rows(const grouped_cta<C> &cta)
        : cta(cta), warp(threadIdx.x / 32 - MATH_WARPS), row(threadIdx.x % 32 / 8), chunk(threadIdx.x % 8) {}

    /* Finds the rows, and stores the factors of their results. */
    __device__ __forceinline__ void begin_tile(const grouped_problem &p, const sm90_grouped_schedule &s,
                                               const grouped_tile &tile, const group_table &table, uint32_t factors) {
        const int32_t group = tile.l / p.parts, begin = table.rows[group], scaled = rows_with_scales(p, group);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int at = (warp + i * COPY_WARPS) * 8 + h * 4 + row;
                rows[i][h] = -1;
                if (at >= tile.rows) continue;
                const int32_t to = tile.row + at, from = p.rows ? p.rows[to] : to;
                const bool exists = from >= 0 && from < p.a_rows && to - begin < scaled;
                if (exists && s.a) rows[i][h] = s.a_is_gathered ? to : from;
                if (chunk == 0)
                    st_shared(factors + at * 4, !exists       ? 0x7FFFFFFF
                                                : p.row_scale ? __float_as_uint(p.row_scale[to])
                                                              : __float_as_uint(1.0f));
            }
    }

    /* Copies the stages of the tile. */
    __device__ __forceinline__ void copy_tile(const uint8_t *a, pipeline_state<C::STAGES> &state) const {
        const int64_t pitch = (int64_t)cta.k_end * (SM90_STAGE_K * 2);
        const uint8_t *from = a + chunk * 16;
#pragma unroll 1
        for (int32_t k = 0; k < cta.k_end; k++, state.advance(), from += SM90_STAGE_K * 2) {
            const uint32_t to = cta.stage(state.index) + warp * 1024 + row * 128;
            mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
#pragma unroll
            for (int i = 0; i < BLOCKS; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    if (rows[i][h] < 0) continue;
                    const uint8_t *piece = from + rows[i][h] * pitch;
                    const uint32_t here = to + i * COPY_WARPS * 1024 + h * 512 + (chunk ^ (h * 4 + row)) * 16;
                    cp_async_16(here, piece);
                    cp_async_16(here + C::MMA_B_SPAN, piece + 128);
                }
            cp_async_mbarrier_arrive(cta.copied(state.index));
        }
    }
};

/* ---- epilogue ---- */

/* Whether the result is one alpha times the sums, in 16 bits, with rows aligned to 8 bytes, and the tile does not pass
 * the last column. */
__device__ __forceinline__ bool is_plain(const gemm_problem &g, const grouped_tile &tile) {
    return !g.bias && !(g.alpha && g.alpha_stride) && g.out_type != NVFP4_FP32 && first_column(tile) + TILE_N <= g.n &&
           ((uint64_t)g.out | g.out_pitch | g.out_batch) % 8 == 0;
}

/* Rows of the tile lie along mma_n: of a group of 8, a lane has two for two columns of the result. */
template <class C>
__device__ __forceinline__ void epilogue_plain(const gemm_problem &g, const grouped_tile &tile, uint32_t factors,
                                               const float (&acc)[C::MMA_TILE_N / 2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4;
    const float alpha = !g.alpha ? g.alpha_value : g.alpha[g.by_batch & ALPHA_BY_BATCH ? tile.l : 0];
    const int64_t eight_rows = 8 * g.out_pitch;
    char *out = (char *)g.out + (tile.row + row) * g.out_pitch + tile.part * g.out_batch +
                (first_column(tile) + warp * 16 + two_groups_column()) * 2;
#pragma unroll
    for (int group = 0; group < C::COLUMN_GROUPS; group++, out += eight_rows) {
        const uint2 bits = ld_shared_v2(factors + (group * 8 + lane % 4 * 2) * 4);
        const float first = __uint_as_float(bits.x), second = __uint_as_float(bits.y);
        uint32_t pairs[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float *v = acc + group * 4 + h * 2;
            const float x = __fmul_rn(alpha, rescale(v[0], w4a16<C::TYPE>::UNIT)),
                        y = __fmul_rn(alpha, rescale(v[1], w4a16<C::TYPE>::UNIT));
            pairs[h] = round_pair(__fmul_rn(x, first), __fmul_rn(y, second), g.out_type);
        }
        store_two_groups(out, group * 8 + row < tile.rows, transpose(pairs[0]), transpose(pairs[1]));
    }
}

/* Any result: a group of 8 rows at a time, through the epilogue staging buffer. A loop, not unrolled: it keeps the
 * kernel small. */
template <class C>
__device__ __forceinline__ void epilogue_any(const gemm_problem &g, const grouped_tile &tile, uint32_t factors,
                                             float *staging, const float (&acc)[C::MMA_TILE_N / 2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4;
    const int64_t n = first_column(tile) + warp * 16 + lane % 4 * 4;
    four_column_epilogue columns(g, n);
    take_batch(columns, g, tile.l);
    float4 *own = (float4 *)staging + lane;
    char *out = (char *)g.out + (tile.row + row) * g.out_pitch + tile.part * g.out_batch + n * type_bytes(g.out_type);
#pragma unroll 1
    for (int group = 0; group * 8 < tile.rows; group++, out += 8 * g.out_pitch) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < C::COLUMN_GROUPS; i++) /* registers take constant indices only */
            if (i == group) {
                const float *v = acc + i * 4;
                constexpr float UNIT = w4a16<C::TYPE>::UNIT;
                *own = make_float4(rescale(v[0], UNIT), rescale(v[1], UNIT), rescale(v[2], UNIT), rescale(v[3], UNIT));
            }
        const float4 mine = *own;
        __syncwarp();
        write_group_to_staging(staging, true, {mine.x, mine.y, mine.z, mine.w});
        __syncwarp();
        const float4 four = *(const float4 *)(staging + row * 20 + lane % 4 * 4);
        if (group * 8 + row >= tile.rows || n >= g.n) continue;
        float v[4] = {four.x, four.y, four.z, four.w};
        scale_row(columns, g, __uint_as_float(ld_shared(factors + (group * 8 + row) * 4)), v);
        store_floats(out, g.out_type, v, columns.count);
    }
}

/* ---- the kernel ---- */

/* Initializes mbarriers. Reads no tensor, so it runs before griddepcontrol.wait. */
template <class C> __device__ __forceinline__ void prologue(const sm90_grouped_schedule &s, const grouped_cta<C> &cta) {
    if (threadIdx.x / 32 == 0 && elect_one()) {
        if (cta.scales > 0) prefetch_tensormap(&s.b);
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(cta.full(i), 1 + 1);
            mbarrier_init(cta.empty(i), 32 * MATH_WARPS);
            mbarrier_init(cta.copied(i), 32 * COPY_WARPS);
        }
        for (int i = 0; i < SM90_GROUPED_TILES_AHEAD; i++) {
            mbarrier_init(cta.factors_full(i), 32 * COPY_WARPS);
            mbarrier_init(cta.factors_free(i), 32 * MATH_WARPS);
        }
        fence_mbarrier_init();
    }
    __syncwarp();
}

template <class C> __device__ __forceinline__ void multiply(const grouped_problem &p, const sm90_grouped_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const gemm_problem &g = p.g;
    const grouped_cta<C> cta(g, shared_address(shared));
    if (cta.base % 1024) __trap(); /* the swizzle pattern follows absolute addresses */
    prologue(s, cta);
    if (!s.a) griddepcontrol_wait();
    group_table &table = *(group_table *)(shared + C::TABLE_OFFSET);
    /* Scratch in the epilogue staging, which the barrier at the end of group_table::fill frees. */
    table.fill(p.ends, p.groups, (int)g.m, C::MMA_TILE_N,
               *(group_table_scratch<SM90_GROUPED_THREADS> *)(shared + C::STAGING_OFFSET));

    grouped_tiles tiles(table, p, s.tiles_n, blockIdx.x, gridDim.x);
    grouped_tile tile;
    const int warp = threadIdx.x / 32;
    pipeline_state<SM90_GROUPED_TILES_AHEAD> factors;
    if (warp < MATH_WARPS) {
        setmaxnreg_inc<MATH_REGISTERS>();
        pipeline_state<C::STAGES> state;
        float *staging = (float *)(shared + C::STAGING_OFFSET + warp * SM90_EPILOGUE_STAGING_BYTES);
        for (; tiles.next(tile, C::MMA_TILE_N); factors.advance()) {
            with_width<C>(tile.rows, [&](auto width) {
                using W = decltype(width);
                /* Without a value the accumulators of all widths would be live around the loop, and not fit. */
                float acc[1][W::MMA_TILE_N / 2] = {};
                mainloop<W>(cta, state, acc);
                mbarrier_wait(cta.factors_full(factors.index), factors.phase);
                if (is_plain(g, tile))
                    epilogue_plain<W>(g, tile, cta.factors(factors.index), acc[0]);
                else
                    epilogue_any<W>(g, tile, cta.factors(factors.index), staging, acc[0]);
            });
            mbarrier_arrive(cta.factors_free(factors.index));
        }
    } else if (warp < MATH_WARPS + COPY_WARPS) {
        setmaxnreg_dec<COPY_REGISTERS>();
        griddepcontrol_wait();
        griddepcontrol_launch_dependents();
        a_rows<C> rows(cta);
        pipeline_state<C::STAGES> state;
        for (; tiles.next(tile, C::MMA_TILE_N); factors.advance()) {
            mbarrier_wait(cta.factors_free(factors.index), factors.phase ^ 1);
            rows.begin_tile(p, s, tile, table, cta.factors(factors.index));
            mbarrier_arrive(cta.factors_full(factors.index));
            rows.copy_tile(s.a, state);
        }
    } else {
        setmaxnreg_dec<OTHER_REGISTERS>();
        const int role = warp - MATH_WARPS - COPY_WARPS;
        pipeline_state<C::STAGES> state;
        while (role < 2 && tiles.next(tile, C::MMA_TILE_N)) {
            if (elect_one()) {
                if (role == 0)
                    load_b(g, s, cta, tile, state);
                else
                    pass_on_a(cta, state);
            }
            __syncwarp();
        }
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(SM90_GROUPED_THREADS, 1)                                              \
        nvfp4_##id(const __grid_constant__ grouped_problem p, const __grid_constant__ sm90_grouped_schedule s) {       \
        RECORD_CTA();                                                                                                  \
        multiply<config<__VA_ARGS__>>(p, s);                                                                           \
    }
SM90_GROUPED_CONFIGS(KERNEL)
