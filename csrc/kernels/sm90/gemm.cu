/* C = epilogue(A . B^T) of NVFP4 operands on Hopper tensor cores: wgmma, fp16 operands, fp32 accumulators.
 *
 * wgmma's operand A (here mma_a) is usually the larger matrix. It stays e2m1 in memory and is dequantized, exactly,
 * into the registers that wgmma reads. Operand B (mma_b) is fp16: the pre-pass sm90/dequant.cu dequantizes it once. For
 * few rows a second launch costs more than the work, so mma_b is dequantized in the kernel (DEQUANT_B_IN_KERNEL): up to
 * 16 rows by idle warps, from global memory; in the _raw kernels by a warpgroup (RAW_B), from the stages. swap_ab
 * selects which user matrix is mma_a (1: B). A CTA computes a tile of MMA_TILE_M rows of mma_a by MMA_TILE_N rows of
 * mma_b.
 *
 * Warp roles, one warpgroup of producers after the consumers, then with RAW_B one that dequantizes:
 *
 *   warp                          waits for   does                                                    arrives at
 *   math warpgroups (consumers)   full        dequantize mma_a to registers, wgmma; epilogue of a tile    empty
 *   producer (1 thread)           empty       TMA loads of values, bulk copies of mma_a's scales          full
 *   3 warps, without RAW_B        empty       every third stage of mma_b, from global memory to fp16      full
 *   4 warps, RAW_B                raw         mma_b of every stage, from e2m1 to fp16 in place            full
 *
 * Shared memory: STAGES stages, an epilogue staging buffer for each math warp, mbarriers (SM90_SHARED_BYTES). A stage
 * covers 128 values along K:
 *
 *   mma_b      fp16, 2 spans of 64 along K, 128 bytes a row, 128-byte swizzle; RAW_B: before that e2m1, 64 bytes a row,
 *              and scale factors
 *   mma_a      e2m1, 64 bytes a row
 *   mma_a SF   e4m3 scale factors, 128x4 layout
 *
 * Order along K: a sum over K may be taken in any order that both operands share. Of the 128 values of a stage, lane t
 * of a quad takes the 32 under scales 2t and 2t + 1, which are 16 bytes of a row; word i of them supplies this lane's
 * fragments of wgmma K-steps 2i and 2i + 1. So mma_a needs no shuffle, a row is one 16-byte load without bank conflicts
 * and one 2-byte load of scales, and sm90/dequant.cu writes mma_b in the same order. While wgmma runs on one group of
 * K-steps, the math warp dequantizes the next into a second set of registers.
 *
 * Dependent launch: preload_stages of mma_a are loaded before griddepcontrol.wait, where no grid that may still run
 * writes mma_a:
 *
 *   with the pre-pass     It calls launch_dependents after its own wait. This grid starts when every CTA of it has, so
 *                         all grids before it are complete, and the pre-pass itself does not write mma_a.
 *   constant_b, swap_ab   Without the pre-pass too; and the pre-pass calls launch_dependents before its wait. The grid
 *                         before the call may still run: the caller vouches that it does not write mma_a, which is B.
 *                         Older grids are complete if that one calls launch_dependents after its own wait, as ours do,
 *                         quantizers among them.
 *   else                  Nothing is loaded.
 *
 * K can be split over the CTAs of a cluster (split_k) and, in the stream-K kernels, over workers: see sm90/reduce.cuh.
 *
 * Tails: rows past the end of a tensor reach only results that are not stored. Scales past the end of K are masked to
 * zero where they are decoded; e2m1 values are finite for every bit pattern. */
#include <type_traits>

#include "kernels/common/decode.cuh"
#include "kernels/common/dequant_rows.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/placement.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/sm90/mainloop.cuh"
#include "kernels/sm90/reduce.cuh"

template <int MATH_WARPGROUPS_, int WGMMAS_M_, int MMA_TILE_N_, int GROUP_WORDS_, int STAGES_, int DEQUANT_B_,
          int STREAMK_, int BF16_>
struct config {
    static constexpr int TYPE = BF16_ ? NVFP4_BF16 : NVFP4_FP16; /* of the wgmma operands */
    static constexpr int MATH_WARPGROUPS = MATH_WARPGROUPS_, WGMMAS_M = WGMMAS_M_, MMA_TILE_N = MMA_TILE_N_,
                         STAGES = STAGES_;
    static constexpr int THREADS = SM90_THREADS(MATH_WARPGROUPS, DEQUANT_B_), MATH_WARPS = 4 * MATH_WARPGROUPS;
    static constexpr int MMA_TILE_M = SM90_MMA_TILE_M(MATH_WARPGROUPS, WGMMAS_M),
                         SCALE_BLOCKS = MMA_TILE_M / SM90_ATOM_ROWS;
    /* Words of a row that form one wgmma group (two K-steps a word): WGMMAS_M * GROUP_WORDS * 8 registers. */
    static constexpr int GROUP_WORDS = GROUP_WORDS_;
    static constexpr int GROUPS = 4 / GROUP_WORDS; /* of a stage */
    /* The wgmma group of a stage after which the next stage of mma_a is read into registers. After the first, its
     * latency is hidden, but math warps wait for a stage earlier. Four math warpgroups hide it by themselves; groups of
     * one word would make ptxas serialize wgmma (measured: benchmarks/log/sm90_gemm.csv, rows 35 to 38). */
    static constexpr int READ_GROUP = MATH_WARPGROUPS == 2 && GROUP_WORDS == 2 ? 0 : GROUPS - 1;
    static constexpr int COLUMN_GROUPS = MMA_TILE_N / 8;
    static constexpr bool DEQUANT_B_IN_KERNEL = SM90_DEQUANT_B_IN_KERNEL(DEQUANT_B_),
                          RAW_B = SM90_DEQUANT_FROM_STAGES(DEQUANT_B_);
    static constexpr int DEQUANT_WARPS = RAW_B ? 4 : DEQUANT_B_IN_KERNEL ? 3 : 0;
    /* At a full barrier: each lane of one of three warps, or one of each of four. */
    static constexpr int DEQUANT_ARRIVALS = RAW_B ? 32 * DEQUANT_WARPS : DEQUANT_B_IN_KERNEL ? 32 : 0;
    static constexpr bool STREAMK = STREAMK_;
    static constexpr int PARTIAL_TILE_BYTES = SM90_PARTIAL_TILE_BYTES(MATH_WARPGROUPS, WGMMAS_M, MMA_TILE_N);
    /* Byte offsets in a stage; mma_b is at 0. */
    static constexpr int MMA_B_SPAN = MMA_TILE_N * 128, MMA_A_OFFSET = 2 * MMA_B_SPAN,
                         MMA_SFA_OFFSET = MMA_A_OFFSET + MMA_TILE_M * SM90_STAGE_K / 2;
    static constexpr int RAW_SFB_OFFSET = MMA_TILE_N * SM90_STAGE_K / 2; /* RAW_B: until mma_b is dequantized */
    static constexpr int STAGE_BYTES = SM90_STAGE_BYTES(MATH_WARPGROUPS, WGMMAS_M, MMA_TILE_N);
    /* Byte offsets after the stages. */
    static constexpr int EPILOGUE_STAGING_OFFSET = STAGES * STAGE_BYTES,
                         FULL_OFFSET = EPILOGUE_STAGING_OFFSET + MATH_WARPS * SM90_EPILOGUE_STAGING_BYTES;
    static constexpr int EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES, RAW_OFFSET = EMPTY_OFFSET + 8 * STAGES,
                         PARTIALS_FULL_OFFSET = RAW_OFFSET + 8 * STAGES;
    static constexpr int PARTIALS_OFFSET = SM90_SHARED_BYTES(MATH_WARPGROUPS, WGMMAS_M, MMA_TILE_N, STAGES);

    /* setmaxnreg: the producers give registers to the math warpgroups. */
    static constexpr int PRODUCER_REGISTERS = DEQUANT_B_IN_KERNEL && !RAW_B ? 80 : 32;
    static constexpr int RAW_REGISTERS = 80; /* of the dequant warpgroup */
    static constexpr int MATH_REGISTERS =
        (65536 / THREADS / 8 * 8 * (THREADS / 128) - PRODUCER_REGISTERS - (RAW_B ? RAW_REGISTERS : 0)) /
        MATH_WARPGROUPS / 8 * 8;

    static_assert(SM90_PRELOAD_STAGES <= STAGES, "nobody frees a stage that early");
    static_assert(GROUP_WORDS == 1 || GROUP_WORDS == 2, "wgmma groups alternate between two register buffers");
    static_assert(MMA_TILE_M % SM90_ATOM_ROWS == 0, "a tile of mma_a has whole atoms of scales");
    static_assert(STAGE_BYTES % 1024 == 0 && MMA_B_SPAN % 1024 == 0, "the 128-byte swizzle repeats every 1024 bytes");
    static_assert(PARTIALS_FULL_OFFSET + 8 <= PARTIALS_OFFSET && PARTIALS_OFFSET % 16 == 0, "the barriers fit");
    static_assert(PARTIALS_OFFSET <= 227 * 1024, "shared memory of a CTA on Hopper");
    static_assert(!STREAMK || !DEQUANT_B_IN_KERNEL, "the dequantize pre-pass zeroes the fix-up flags");
    static_assert(!RAW_B || MMA_TILE_N % 32 == 0, "equal rows for the dequant warps");
};

/* The producer, one thread. */
template <class C> struct producer {
    const sm90_schedule &s;
    const cta_context<C> &cta;
    tile_coord coord;
    int scale_blocks;
    const uint8_t *sfa, *sfb;

    __device__ __forceinline__ producer(const sm90_schedule &s, const cta_context<C> &cta) : s(s), cta(cta) {}

    __device__ __forceinline__ void begin_tile(const tile_coord &tile) {
        coord = tile;
        scale_blocks = CEIL_DIV(min(C::MMA_TILE_M, s.mma_a.rows - tile.mma_m), SM90_ATOM_ROWS);
        sfa = s.mma_a.scale + tile.l * s.mma_a.scale_batch + tile.mma_m / SM90_ATOM_ROWS * s.mma_a.scale_pitch;
        if constexpr (C::RAW_B)
            sfb = s.mma_b_e2m1.scale + tile.l * s.mma_b_e2m1.scale_batch +
                  tile.mma_n / SM90_ATOM_ROWS * s.mma_b_e2m1.scale_pitch;
    }

    /* Bytes of a stage's scales of 128 rows. */
    __device__ __forceinline__ uint32_t scale_bytes(int32_t k) const {
        return min(2, (cta.scales - k * 8 + 3) / 4) * SM90_ATOM_BYTES;
    }

    __device__ __forceinline__ void load_a(int32_t k, uint32_t stage_idx) const {
        uint32_t stage = cta.stage(stage_idx), full = cta.full(stage_idx), bytes = scale_bytes(k);
        mbarrier_arrive_expect_tx(full,
                                  (C::DEQUANT_B_IN_KERNEL ? C::MMA_SFA_OFFSET - C::MMA_A_OFFSET : C::MMA_SFA_OFFSET) +
                                      scale_blocks * bytes);
        tma_load_3d<1>(stage + C::MMA_A_OFFSET, &s.mma_a.values, k * (SM90_STAGE_K / 2), coord.mma_m, coord.l, full,
                       s.mma_a.cache_policy);
#pragma unroll
        for (int i = 0; i < C::SCALE_BLOCKS; i++)
            if (i < scale_blocks)
                cp_async_bulk(stage + C::MMA_SFA_OFFSET + i * SM90_BLOCK_BYTES,
                              sfa + i * s.mma_a.scale_pitch + (int64_t)k * SM90_BLOCK_BYTES, bytes, full,
                              s.mma_a.cache_policy);
    }

    /* mma_b as e2m1, for the dequant warpgroup. */
    __device__ __forceinline__ void load_raw_b(int32_t k, uint32_t stage_idx) const {
        const uint32_t stage = cta.stage(stage_idx), raw = cta.raw(stage_idx), bytes = scale_bytes(k);
        mbarrier_arrive_expect_tx(raw, SM90_RAW_BOX_ROWS(C::MMA_TILE_N, s.mma_b.rows) * (SM90_STAGE_K / 2) + bytes);
        tma_load_3d<1>(stage, &s.mma_b.values, k * (SM90_STAGE_K / 2), coord.mma_n, coord.l, raw, s.mma_b.cache_policy);
        cp_async_bulk(stage + C::RAW_SFB_OFFSET, sfb + (int64_t)k * SM90_BLOCK_BYTES, bytes, raw, s.mma_b.cache_policy);
    }

    __device__ __forceinline__ void load_b(int32_t k, uint32_t stage_idx) const {
        uint32_t stage = cta.stage(stage_idx), full = cta.full(stage_idx);
        int32_t l = s.mma_b.shared ? 0 : coord.l;
        tma_load_3d<1>(stage, &s.mma_b.values, k * SM90_STAGE_K, coord.mma_n, l, full, s.mma_b.cache_policy);
        tma_load_3d<1>(stage + C::MMA_B_SPAN, &s.mma_b.values, k * SM90_STAGE_K + 64, coord.mma_n, l, full,
                       s.mma_b.cache_policy);
    }

    /* Loads the stages of one tile. `preloaded` stages already have mma_a. */
    __device__ __forceinline__ void load_stages(int32_t k_begin, int32_t k_end, int32_t &preloaded,
                                                pipeline_state<C::STAGES> &state) const {
#pragma unroll 1
        for (int32_t k = k_begin; k < k_end; k++, state.advance()) {
            const bool have_a = preloaded > 0;
            if (have_a)
                preloaded--;
            else
                mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
            if constexpr (C::RAW_B) load_raw_b(k, state.index); /* first, since it has to be dequantized */
            if (!have_a) load_a(k, state.index);
            if constexpr (!C::DEQUANT_B_IN_KERNEL) load_b(k, state.index);
        }
    }

    /* Loads mma_a of the first stages, then waits for the grids before. Returns the number of stages. */
    __device__ __forceinline__ int32_t preload_a(int32_t k_begin, int32_t k_end) const {
        int32_t preloaded = min(s.preload_stages, k_end - k_begin);
#pragma unroll 1
        for (int32_t i = 0; i < preloaded; i++) load_a(k_begin + i, i);
        griddepcontrol_wait();
        griddepcontrol_launch_dependents();
        return preloaded;
    }

    __device__ __forceinline__ void run(streamk_scheduler<C> scheduler) {
        pipeline_state<C::STAGES> state;
        if (!scheduler.next()) return;
        begin_tile(scheduler.coord); /* for preload_a; the loop repeats it, with the same result */
        int32_t preloaded = preload_a(scheduler.k_begin, scheduler.k_end);
        do {
            begin_tile(scheduler.coord);
            load_stages(scheduler.k_begin, scheduler.k_end, preloaded, state);
            if (scheduler.needs_fixup()) load_partial_tiles(cta, scheduler, state);
        } while (scheduler.next());
    }

    __device__ __forceinline__ void run(tile_scheduler<C> scheduler) {
        pipeline_state<C::STAGES> state;
        if (!scheduler.more()) return;
        begin_tile(scheduler.coord); /* for preload_a; the loop repeats it, with the same result */
        int32_t preloaded = preload_a(cta.k_begin, cta.k_end);
        for (; scheduler.more(); scheduler.advance()) {
            begin_tile(scheduler.coord);
            load_stages(cta.k_begin, cta.k_end, preloaded, state);
        }
    }
};

/* One dequant warp: takes every DEQUANT_WARPS-th stage of all tiles. The loads of its next stage run during the math of
 * the stages between. */
template <class C>
__device__ __forceinline__ void dequantize_b(const sm90_schedule &s, const cta_context<C> &cta,
                                             tile_scheduler<C> scheduler, int index) {
    const sm90_dequant_operand &b = s.mma_b_e2m1;
    dequant_rows<C::COLUMN_GROUPS> rows;
    pipeline_state<C::STAGES> state;
    int skip = index; /* stages until this warp's next one */
    griddepcontrol_wait();
    for (; scheduler.more(); scheduler.advance()) {
        int32_t l = scheduler.coord.l;
        rows.begin(b.data + l * b.batch, b.pitch, b.scale + l * b.scale_batch, b.scale_pitch, scheduler.coord.mma_n,
                   b.rows, cta.scales);
        if (cta.k_begin + skip < cta.k_end) rows.load(cta.k_begin + skip);
#pragma unroll 1
        for (int32_t k = cta.k_begin; k < cta.k_end; k++, state.advance()) {
            if (skip-- > 0) continue;
            mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
            rows.store(cta.stage(state.index), C::MMA_B_SPAN);
            fence_proxy_async();
            mbarrier_arrive(cta.full(state.index));
            if (k + C::DEQUANT_WARPS < cta.k_end) rows.load(k + C::DEQUANT_WARPS);
            skip = C::DEQUANT_WARPS - 1;
        }
    }
}

/* A warp of the dequant warpgroup: of each stage the rows 8 index to 8 index + 7 of every 32 of mma_b, from e2m1 to
 * fp16 in place. So all warps read before any writes. */
template <class C>
__device__ __forceinline__ void dequantize_raw(const sm90_schedule &s, const cta_context<C> &cta,
                                               tile_scheduler<C> scheduler, int index) {
    constexpr int UNITS = C::MMA_TILE_N / 32;
    const int r = threadIdx.x % 32 / 4, t = threadIdx.x % 4, first = index * 8 + r;
    const uint32_t tail_mask = cta.tail_mask(2 * t);
    pipeline_state<C::STAGES> state;
    for (; scheduler.more(); scheduler.advance()) {
        const int row = scheduler.coord.mma_n + index * 8, units = CEIL_DIV(s.mma_b.rows - row, 32); /* with rows */
        const uint32_t values = first * (SM90_STAGE_K / 2) + t * 16;
        const uint32_t scales =
            C::RAW_SFB_OFFSET + scale_offset(row % SM90_ATOM_ROWS + r) + t / 2 * SM90_ATOM_BYTES + t % 2 * 2;
#pragma unroll 1
        for (int32_t k = cta.k_begin; k < cta.k_end; k++, state.advance()) {
            const uint32_t stage = cta.stage(state.index), mask = k == cta.k_tail ? tail_mask : 0x7F7F;
            uint4 words[UNITS];
            uint32_t two[UNITS]; /* scales */
            mbarrier_wait(cta.raw(state.index), state.phase);
#pragma unroll
            for (int i = 0; i < UNITS; i++) { /* 32 rows further are 4 bytes further in a block of scales */
                words[i] = ld_shared_v4(stage + values + i * (32 * SM90_STAGE_K / 2));
                two[i] = ld_shared_u16(stage + scales + i * 4) & mask;
            }
            named_barrier_sync(1, 32 * C::DEQUANT_WARPS);
#pragma unroll
            for (int i = 0; i < UNITS; i++)
                if (i < units) {
                    const uint32_t to = stage + (i * 32 + first) * 128 + t * 4, pair = w4a16<C::TYPE>::scales(two[i]);
                    store_dequantized<0>(to, r, words[i].x, words[i].y, pair);
                    store_dequantized<1>(to + C::MMA_B_SPAN, r, words[i].z, words[i].w, pair);
                }
            fence_proxy_async();
            mbarrier_arrive(cta.full(state.index));
        }
    }
}

/* Whether the output is one alpha times the sums, in 16 bits, with rows aligned to 8 bytes, and lanes store either all
 * of their columns or none: 4 with swap_ab. Without it the tile must not pass the last column. */
template <class C>
__device__ __forceinline__ bool is_plain(const gemm_problem &p, const sm90_schedule &s, const tile_coord &coord) {
    const bool columns_exist = s.swap_ab ? p.n % 4 == 0 || (int64_t)coord.mma_m + C::MMA_TILE_M <= p.n
                                         : (int64_t)coord.mma_n + C::MMA_TILE_N <= p.n;
    return !p.c && !p.bias && (!p.alpha || p.alpha_stride == 0) && p.out_type != NVFP4_FP32 && columns_exist &&
           ((uint64_t)p.out | p.out_pitch | p.out_batch) % 8 == 0;
}

/* Epilogue of plain output, from registers, two groups of 8 columns at a time. */
template <bool SWAP_AB, class C>
__device__ __forceinline__ void epilogue_plain(const gemm_problem &p, const sm90_schedule &s, const tile_coord &coord,
                                               const kept_columns<C> &kept, const accumulators<C> &acc) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t mma_m = coord.mma_m + warp / 4 * 64 * C::WGMMAS_M + warp % 4 * 16;
    int32_t row = (SWAP_AB ? coord.mma_n : mma_m) + lane / 4;
    int32_t rows = (SWAP_AB ? s.mma_b.rows : s.mma_a.rows) - row; /* from `row` on */
    int64_t column = SWAP_AB ? mma_m : coord.mma_n, eight_rows = 8 * p.out_pitch;
    int32_t columns = SWAP_AB ? (int32_t)p.n - mma_m - two_groups_column() : 0; /* from those of the lane on */
    char *out = (char *)p.out + coord.l * p.out_batch + row * p.out_pitch + column * 2;
    float alpha = p.alpha ? *p.alpha : p.alpha_value, unit = product_unit<C::TYPE>(p);
#pragma unroll
    for (int first = 0; first < C::COLUMN_GROUPS; first += 2)
#pragma unroll
        for (int i = 0; i < C::WGMMAS_M; i++) {
            bool have[2] = {kept.have(first), first + 1 < C::COLUMN_GROUPS && kept.have(first + 1)};
            if (!have[0] && !have[1]) continue;
            uint32_t pairs[2][2] = {};
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (first + j / 2 < C::COLUMN_GROUPS) {
                    const float *v = acc[i] + first * 4 + j * 2;
                    pairs[j / 2][j % 2] = round_pair(__fmul_rn(alpha, rescale(v[0], unit)),
                                                     __fmul_rn(alpha, rescale(v[1], unit)), p.out_type);
                }
#pragma unroll
            for (int j = 0; j < 2; j++) /* a group, or 8 rows of mma_a */
                if (SWAP_AB) {
                    char *to = out + (first + j) * eight_rows + i * 128 + two_groups_column() * 2;
                    if (have[j])
                        store_two_groups(to, (first + j) * 8 < rows && i * 64 < columns, transpose(pairs[j][0]),
                                         transpose(pairs[j][1]));
                } else {
                    char *to = out + (i * 8 + j) * eight_rows + first * 16;
                    bool exists = i * 64 + j * 8 < rows;
                    if (have[0] && have[1])
                        store_two_groups(to + two_groups_column() * 2, exists, pairs[0][j], pairs[1][j]);
                    else if (exists)
                        *(uint32_t *)(to + (have[0] ? 0 : 16) + lane % 4 * 4) = have[0] ? pairs[0][j] : pairs[1][j];
                }
        }
}

/* Epilogue of any output: two groups of 8 columns at a time, through the epilogue staging buffer. A loop, not unrolled:
 * it keeps the kernel small. */
template <class C>
__device__ __forceinline__ void epilogue_any(const gemm_problem &p, const sm90_schedule &s, const tile_coord &coord,
                                             const kept_columns<C> &kept, uint8_t *shared, const accumulators<C> &acc) {
    constexpr int PAIRS = CEIL_DIV(C::COLUMN_GROUPS, 2);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *staging = (float *)(shared + C::EPILOGUE_STAGING_OFFSET + warp * SM90_EPILOGUE_STAGING_BYTES);
    float4 *own = (float4 *)staging + lane;
    float unit = product_unit<C::TYPE>(p);
    int row = s.swap_ab ? lane / 4 : lane / 2, column = s.swap_ab ? lane % 4 * 4 : lane % 2 * 4; /* of the output */
#pragma unroll 1
    for (int step = 0; step < PAIRS * C::WGMMAS_M; step++) {
        int i = step / PAIRS, first = step % PAIRS * 2;
        bool have[2] = {kept.have(first), first + 1 < C::COLUMN_GROUPS && kept.have(first + 1)};
        if (!have[0] && !have[1]) continue;
        /* The accumulators are registers, which take constant indices only. The two groups of this step pass through
         * shared memory, which saves a chain of selects for each register. */
#pragma unroll
        for (int j = 0; j < PAIRS * C::WGMMAS_M; j++)
            if (j == step)
#pragma unroll
                for (int g = 0; g < 2; g++)
                    if (j % PAIRS * 2 + g < C::COLUMN_GROUPS) {
                        const float *v = acc[j / PAIRS] + (j % PAIRS * 2 + g) * 4;
                        own[g * 32] = make_float4(rescale(v[0], unit), rescale(v[1], unit), rescale(v[2], unit),
                                                  rescale(v[3], unit));
                    }
        float4 groups[2] = {have[0] ? own[0] : float4{}, have[1] ? own[32] : float4{}};
        int64_t mma_m = coord.mma_m + (warp / 4 * C::WGMMAS_M + i) * 64 + warp % 4 * 16,
                mma_n = coord.mma_n + first * 8;
#pragma unroll
        for (int g = 0; g < 2; g++) {
            __syncwarp();
            write_group_to_staging(staging, s.swap_ab, {groups[g].x, groups[g].y, groups[g].z, groups[g].w});
            __syncwarp();
            float4 four = *(const float4 *)(staging + row * (s.swap_ab ? 20 : 12) + column);
            int64_t m = row + (s.swap_ab ? mma_n + g * 8 : mma_m), n = column + (s.swap_ab ? mma_m : mma_n + g * 8);
            if (have[g] && m < p.m && n < p.n)
                four_column_epilogue(p, n).store(p, coord.l, m, {four.x, four.y, four.z, four.w});
        }
        __syncwarp();
    }
}

/* End of a tile: exchanges partial sums in the cluster, adds the workers' partial tiles (`fixup`), and runs the
 * epilogue on the columns that this CTA keeps. */
template <class C, class F>
__device__ __forceinline__ void finish_tile(const gemm_problem &p, const sm90_schedule &s, const cta_context<C> &cta,
                                            const tile_coord &coord, uint8_t *shared, accumulators<C> &acc, F fixup) {
    /* stored: with swap_ab, plain output is stored inside with_kept_columns, where the kept columns of 1 and 2 splits
     * are compile-time constants. */
    bool plain = is_plain<C>(p, s, coord), stored = plain && s.swap_ab;
    with_kept_columns<C>(s, cta, [&](const kept_columns<C> &kept) {
        if (kept.splits > 1) send_partials<C>(cta, kept, acc);
        fixup(kept);
        if (kept.splits > 1) {
            mbarrier_wait_cluster(cta.partials_full(), 0);
            add_partials<C>(cta, kept, acc);
        }
        griddepcontrol_wait();
        if (stored) epilogue_plain<true>(p, s, coord, kept, acc);
    });
    kept_columns<C> kept(s.split_k, cta.split_idx, s.inv_split_k);
    if (!stored && plain) epilogue_plain<false>(p, s, coord, kept, acc);
    if (!plain) epilogue_any(p, s, coord, kept, shared, acc);
}

/* The math warpgroups of a stream-K kernel. */
template <class C>
__device__ __forceinline__ void consumer(const gemm_problem &p, const sm90_schedule &s, cta_context<C> cta,
                                         streamk_scheduler<C> scheduler, uint8_t *shared) {
    pipeline_state<C::STAGES> state;
    while (scheduler.next()) {
        accumulators<C> acc;
        cta.k_begin = scheduler.k_begin, cta.k_end = scheduler.k_end;
        mainloop<C>(cta, state, acc);
        if (scheduler.stores_partial_tile()) {
            griddepcontrol_wait();
            store_partial_tile(scheduler, acc);
            continue;
        }
        if (s.split_k > 1) barrier_cluster_wait();
        finish_tile(p, s, cta, scheduler.coord, shared, acc, [&](const kept_columns<C> &kept) {
            if (scheduler.needs_fixup()) add_partial_tiles(cta, scheduler, state, kept, acc);
        });
    }
    if (scheduler.worker >= 0) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) flag_arrive(s.fixup_flags + scheduler.worker);
        if (s.split_k > 1) barrier_cluster_wait(); /* arrived in prologue() */
    }
}

/* The math warpgroups of a data-parallel or split-K kernel. */
template <class C>
__device__ __forceinline__ void consumer(const gemm_problem &p, const sm90_schedule &s, const cta_context<C> &cta,
                                         tile_scheduler<C> scheduler, uint8_t *shared) {
    pipeline_state<C::STAGES> state;
    for (; scheduler.more(); scheduler.advance()) {
        accumulators<C> acc;
        mainloop<C>(cta, state, acc);
        if (s.split_k > 1) {
            barrier_cluster_wait(); /* the other CTAs have initialized their mbarriers */
            if (s.partials_in_stages)
                barrier_cluster_arrive(), barrier_cluster_wait(); /* the stages of every CTA are free */
        }
        finish_tile(p, s, cta, scheduler.coord, shared, acc, [](const kept_columns<C> &) {});
    }
}

/* Initializes mbarriers and prefetches tensor maps. Reads no tensor, so it runs before griddepcontrol.wait. */
template <class C> __device__ __forceinline__ void prologue(const sm90_schedule &s, const cta_context<C> &cta) {
    int warp = threadIdx.x / 32;
    if (warp == C::MATH_WARPS && elect_one()) {
        prefetch_tensormap(&s.mma_a.values);
        if (C::RAW_B || !C::DEQUANT_B_IN_KERNEL) prefetch_tensormap(&s.mma_b.values);
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(cta.full(i), 1 + C::DEQUANT_ARRIVALS);
            if (C::RAW_B) mbarrier_init(cta.raw(i), 1);
            mbarrier_init(cta.empty(i), 32 * C::MATH_WARPS);
        }
        mbarrier_init(cta.partials_full(), 1);
        fence_mbarrier_init();
        bool is_worker = C::STREAMK && (int32_t)blockIdx.y < s.worker_clusters; /* receives no partial sums */
        if (s.split_k > 1 && !is_worker) {
            kept_columns<C> kept(s.split_k, cta.split_idx, s.inv_split_k);
            mbarrier_arrive_expect_tx(cta.partials_full(),
                                      (s.split_k - 1) * (kept.end - kept.begin) * C::WGMMAS_M * C::MATH_WARPS * 512);
        }
    }
    __syncwarp();
    if (s.split_k > 1) barrier_cluster_arrive_relaxed(); /* waited for before partial sums are sent */
    __syncthreads();
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm90_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    cta_context<C> cta(p, s, shared_address(shared));
    if (cta.base % 1024) __trap(); /* the swizzle pattern follows absolute addresses */
    prologue(s, cta);
    std::conditional_t<C::STREAMK, streamk_scheduler<C>, tile_scheduler<C>> scheduler(s, cta);
    int warp = threadIdx.x / 32;
    if (warp >= C::MATH_WARPS) {
        int index = warp - C::MATH_WARPS;
        if (C::RAW_B && index >= 4) {
            setmaxnreg_dec<C::RAW_REGISTERS>();
            if constexpr (C::RAW_B) dequantize_raw(s, cta, scheduler, index - 4);
        } else {
            setmaxnreg_dec<C::PRODUCER_REGISTERS>();
            if (index == 0 && elect_one()) producer<C>(s, cta).run(scheduler);
            if constexpr (C::DEQUANT_B_IN_KERNEL && !C::RAW_B)
                if (index > 0) dequantize_b(s, cta, scheduler, index - 1);
        }
        __syncwarp();
        if (s.split_k > 1) barrier_cluster_wait();
        if (s.partials_in_stages) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
    } else {
        setmaxnreg_inc<C::MATH_REGISTERS>();
        consumer(p, s, cta, scheduler, shared);
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::THREADS, 1)                                      \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_schedule s) {                  \
        RECORD_CTA();                                                                                                  \
        gemm<config<__VA_ARGS__>>(p, s);                                                                               \
    }
SM90_GEMM_CONFIGS(KERNEL)
