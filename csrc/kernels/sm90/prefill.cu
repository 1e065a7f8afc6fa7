/* C = epilogue(A . B^T) on Hopper tensor cores for large M and N (prefill): dequantizing an operand again for every
 * tile costs more than a pre-pass over memory. sm90/dequant.cu writes mma_b as fp16, and mma_a unless MMA_A_E2M1. wgmma
 * is m64n256k16.
 *
 * A CTA computes 128 rows of mma_a by 256 of mma_b. The two CTAs of a cluster take neighbouring 128 rows of mma_a and
 * the same mma_b: each loads half of it and multicasts it to both. Tiles of the last wave, which would leave half of
 * the clusters idle, are split along K over the two CTAs of a cluster instead (sm90/prefill_config.h). Each CTA then
 * keeps 128 of the 256 columns and sends the other its partial sums.
 *
 *   warp            waits for   does                                                              arrives at
 *   0, one thread   empty,      TMA loads of both operands, bulk copies of scales                 full
 *                   flags
 *   1-3             -           DIVIDED: dequantize blocks of mma_b to the workspace              flags
 *   4-11 (math)     full        MMA_A_E2M1: dequantize to registers; four wgmma; tile epilogue    empty, of both CTAs
 *
 * A stage is released after the wgmma of the next stage are issued. With MMA_A_E2M1 the next stage is dequantized into
 * the second of two register buffers while wgmma runs; lane t of a quad takes the values under scale t
 * (sm90/dequant.cu). The epilogue of a tile overlaps the loads of the next one.
 *
 * Shared memory: STAGES stages [mma_b 32768 | mma_a 16384, or e2m1 4096 and scales 512] bytes, an epilogue staging
 * buffer for each math warp, mbarriers (SM90_PREFILL_SHARED_BYTES). Rows past the end of a tensor reach only results
 * that are not stored. */
#include "kernels/common/cluster.cuh"
#include "kernels/common/decode.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/flags.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/placement.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/common/wgmma_m64n256.cuh"
#include "kernels/sm90/dequant.cuh"
#include "kernels/sm90/prefill_config.h"

enum {
    MATH_WARPS = 8,
    FIRST_MATH_WARP = 4,
    BOX_ROWS = 128,
    SUMS = 128,                                           /* accumulators of a thread */
    SCALES = 512,                                         /* bytes of the scales of 128 rows by 64 along K */
    BLOCK_STAGES = SM90_DEQUANT_K / SM90_PREFILL_STAGE_K, /* of a block of mma_b */
};
/* createpolicy.fractional evict_normal, fraction 1 (PTX ISA 9.0, section 9.7.9.20). */
static constexpr uint64_t EVICT_NORMAL = 0x1000000000000000;

template <int MMA_A_E2M1_, int STAGES_, int DIVIDED_, int BF16_> struct config {
    static constexpr int TYPE = BF16_ ? NVFP4_BF16 : NVFP4_FP16; /* of the wgmma operands */
    static constexpr bool MMA_A_E2M1 = MMA_A_E2M1_, DIVIDED = DIVIDED_;
    static constexpr int STAGES = STAGES_, STAGE_BYTES = SM90_PREFILL_STAGE_BYTES(MMA_A_E2M1);
    static constexpr int HALF_B_BYTES = SM90_PREFILL_MMA_B_BYTES / 2, MMA_A_OFFSET = SM90_PREFILL_MMA_B_BYTES;
    static constexpr int MMA_A_BYTES = SM90_PREFILL_MMA_A_BYTES(MMA_A_E2M1),
                         MMA_SFA_OFFSET = MMA_A_OFFSET + MMA_A_BYTES;
    /* Byte offsets after the stages. */
    static constexpr int EPILOGUE_STAGING_OFFSET = STAGES * STAGE_BYTES,
                         FULL_OFFSET = EPILOGUE_STAGING_OFFSET + MATH_WARPS * SM90_PREFILL_EPILOGUE_STAGING_BYTES;
    static constexpr int EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES, END = EMPTY_OFFSET + 8 * STAGES;
    /* setmaxnreg: of 168 registers a thread at launch. */
    static constexpr int PRODUCER_REGISTERS = DIVIDED ? 56 : 40, MATH_REGISTERS = DIVIDED ? 224 : 232;

    static_assert(STAGE_BYTES % 1024 == 0 && MMA_A_OFFSET % 1024 == 0, "the 128-byte swizzle repeats every 1024 bytes");
    static_assert(END == SM90_PREFILL_SHARED_BYTES(MMA_A_E2M1, STAGES) && END <= 227 * 1024,
                  "shared memory of a CTA on Hopper");
    static_assert(SUMS / 2 * MATH_WARPS * 32 * 4 <= EPILOGUE_STAGING_OFFSET, "half a tile's sums fit the stages");
};

/* Shared addresses. */
template <class C> struct smem_layout {
    uint32_t base;

    __device__ __forceinline__ uint32_t stage(uint32_t index) const { return base + index * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t index) const { return base + C::FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t empty(uint32_t index) const { return base + C::EMPTY_OFFSET + 8 * index; }
};

/* The tiles of this CTA. Both CTAs of a cluster take equally many steps, so their pipelines stay in lockstep. */
struct tile_scheduler {
    const sm90_prefill_schedule &s;
    uint32_t rank, next, clusters;
    bool split_k;            /* each CTA of the cluster computes half of K of one tile */
    int32_t mma_m, mma_n, l; /* first rows of the tile; its batch */
    int32_t k, k_end, steps; /* stages along K; with split_k the last step can be at k_end, and is empty */

    __device__ __forceinline__ tile_scheduler(const sm90_prefill_schedule &s)
        : s(s), rank(cluster_ctarank()), next(blockIdx.x / 2), clusters(gridDim.x / 2) {}

    /* Advances to the next tile; false if there is none. */
    __device__ __forceinline__ bool advance() {
        uint32_t cluster = blockIdx.x / 2, half = rank;
        k = 0, k_end = steps = s.k_stages;
        split_k = next >= (uint32_t)s.dp_pairs;
        if (split_k) {
            if (next >= (uint32_t)s.dp_pairs + clusters || cluster >= (uint32_t)s.split_k_tiles) return false;
            half = cluster % 2;
            steps = (s.k_stages + 1) / 2;
            if (rank == 0)
                k_end = steps;
            else
                k = steps;
            locate(s.dp_pairs + cluster / 2, half);
            next = s.dp_pairs + clusters;
        } else {
            locate(next, half);
            next += clusters;
        }
        return true;
    }

  private:
    /* Pairs are ordered in bands of SM90_PREFILL_BAND along mma_m, along mma_m first: concurrent tiles then share rows
     * of both operands in L2. */
    __device__ __forceinline__ void locate(uint32_t pair, uint32_t half) {
        uint32_t pairs_m = (s.tiles_mma_m + 1) / 2, batch = pairs_m * s.tiles_mma_n, in_batch = pair % batch;
        uint32_t band = in_batch / (SM90_PREFILL_BAND * s.tiles_mma_n),
                 in_band = in_batch - band * SM90_PREFILL_BAND * s.tiles_mma_n;
        uint32_t width = min((uint32_t)SM90_PREFILL_BAND, pairs_m - band * SM90_PREFILL_BAND);
        l = (int32_t)(pair / batch);
        mma_n = (int32_t)(in_band / width) * SM90_PREFILL_MMA_TILE_N;
        mma_m = (int32_t)((band * SM90_PREFILL_BAND + in_band % width) * 2 + half) * SM90_PREFILL_MMA_TILE_M;
    }
};

/* Loads a box to the same shared address of both CTAs; the mbarrier of each counts its own bytes. */
__device__ __forceinline__ void tma_load_3d_multicast(uint32_t to, const tensor_map *map, int32_t x, int32_t y,
                                                      int32_t z, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"((uint16_t)3), "l"(EVICT_NORMAL)
                 : "memory");
}

/* DIVIDED: the blocks of a group of tiles of mma_b (sm90/prefill_config.h). */
struct block_group {
    uint32_t first_tile, tiles, first_block;

    __device__ __forceinline__ block_group(const sm90_prefill_schedule &s, uint32_t index)
        : first_tile(index * s.group_tiles), tiles(min(s.group_tiles, s.tiles_mma_n - first_tile)),
          first_block(first_tile * s.chunks) {}
};

/* The flags of the blocks of one tile. */
struct tile_flags {
    const sm90_prefill_schedule &s;
    block_group group;
    uint32_t in_group;

    __device__ __forceinline__ tile_flags(const sm90_prefill_schedule &s, uint32_t tile)
        : s(s), group(s, tile / s.group_tiles), in_group(tile - group.first_tile) {}

    /* Waits until the block along K has been dequantized. The warps that do it wait for nothing, and each block that
     * no warp has taken yet is taken by one of any CTA that runs, this one too. */
    __device__ __forceinline__ void wait(uint32_t chunk) const {
        flag_wait_generic(s.flags + group.first_block + chunk * group.tiles + in_group, SM90_PREFILL_BLOCK_PIECES);
    }
};

/* Warps 1 to 3: take pieces of blocks until none is left. The next piece is taken while the loads are under way. */
template <class C> __device__ __forceinline__ void dequantize_blocks(const sm90_prefill_schedule &s) {
    const sm90_dequant_operand &b = s.mma_b_e2m1;
    const int lane = threadIdx.x % 32;
    const uint32_t end = s.blocks * SM90_PREFILL_BLOCK_PIECES;
    uint32_t taken = 0;
    if (lane == 0) taken = atomicAdd(s.flags + s.blocks, 1);
    for (uint32_t piece; (piece = __shfl_sync(~0u, taken, 0)) < end;) {
        const uint32_t block = piece / SM90_PREFILL_BLOCK_PIECES;
        const block_group group(s, block / (s.group_tiles * s.chunks));
        const uint32_t chunk = (block - group.first_block) / group.tiles;
        const uint32_t tile = group.first_tile + block - group.first_block - chunk * group.tiles;
        const int32_t row = tile * SM90_PREFILL_MMA_TILE_N + piece % SM90_PREFILL_BLOCK_PIECES * 8 + lane / 16;
        const int64_t k64 = (int64_t)chunk * (SM90_DEQUANT_K / 64) + lane / 4 % 4;
        const int have = k64 < s.k_stages && row < b.rows ? (b.rows - row + 1) / 2 : 0;
        const int64_t pitch = (int64_t)(s.k_stages + 1) / 2 * 256, group16 = k64 * 4 + lane % 4;
        char *to = (char *)b.to + row * pitch + k64 * 128 + lane % 4 * 16;
        if (C::TYPE == NVFP4_FP16 && b.type == VALUES_E2M1) {
            const uint8_t *scale =
                b.scale + row / 128 * b.scale_pitch + k64 * SCALES + row % 32 * 16 + row / 32 % 4 * 4 + lane % 4;
            e2m1_lane<4> rows;
            rows.load(b.data + row * b.pitch + group16 * 8, 2 * b.pitch, scale, 2 * 16, 4, have);
            if (lane == 0) taken = atomicAdd(s.flags + s.blocks, 1);
            rows.store(to, 2 * pitch, 4, have);
        } else {
            const uint8_t *data = b.data + row * b.pitch + group16 * 32;
            if (lane == 0) taken = atomicAdd(s.flags + s.blocks, 1);
#pragma unroll 1
            for (int i = 0; i < 4; i += 2, data += 4 * b.pitch, to += 4 * pitch) {
                a16_lane<2> rows;
                rows.load(data, 2 * b.pitch, 2, have - i);
                rows.store(C::TYPE, to, 2 * pitch, 2, have - i);
            }
        }
        fence_proxy_async_global();
        __syncwarp();
        if (lane == 0) flag_arrive_at_both(s.flags + block, s.flags + s.blocks + 1);
    }
}

/* The producer, one thread. */
template <class C>
__device__ __forceinline__ void producer(const sm90_prefill_schedule &s, smem_layout<C> smem,
                                         tile_scheduler scheduler) {
    pipeline_state<C::STAGES> state;
    bool has_flags = C::DIVIDED; /* and some blocks of mma_b may not be done */
    while (scheduler.advance()) {
        int32_t a_batch = s.mma_a.batches == 1 ? 0 : scheduler.l, b_batch = s.mma_b.batches == 1 ? 0 : scheduler.l,
                k = scheduler.k;
        const uint8_t *scales = s.mma_a.scale + scheduler.l * s.mma_a.scale_batch +
                                scheduler.mma_m / SM90_PREFILL_MMA_TILE_M * s.mma_a.scale_pitch;
        bool have_scales = C::MMA_A_E2M1 && scheduler.mma_m < s.mma_a.rows;
        /* In later waves all pieces are done, and one look at their number replaces many at flags. */
        if (has_flags && flag_load(s.flags + s.blocks + 1) == s.blocks * SM90_PREFILL_BLOCK_PIECES) has_flags = false;
        const tile_flags flags(s, has_flags ? scheduler.mma_n / SM90_PREFILL_MMA_TILE_N : 0);
        int32_t flagged = has_flags && k < scheduler.k_end ? k : INT32_MAX; /* the next stage with another flag */
        uint32_t bytes = SM90_PREFILL_MMA_B_BYTES + C::MMA_A_BYTES + (have_scales ? SCALES : 0);
#pragma unroll 1
        for (int32_t step = 0; step < scheduler.steps; step++, k++, state.advance()) {
            uint32_t stage = smem.stage(state.index), full = smem.full(state.index);
            if (C::DIVIDED && k == flagged) {
                flags.wait(k / BLOCK_STAGES);
                flagged = (k / BLOCK_STAGES + 1) * BLOCK_STAGES;
            }
            mbarrier_wait(smem.empty(state.index), state.phase ^ 1);
            if (k == scheduler.k_end) { /* split_k, odd number of stages: the second CTA has one less */
                mbarrier_arrive(full);
                continue;
            }
            mbarrier_arrive_expect_tx(full, bytes);
            if (scheduler.split_k) {
                tma_load_3d<1>(stage, &s.mma_b.values, k * 64, scheduler.mma_n, b_batch, full, EVICT_NORMAL);
                tma_load_3d<1>(stage + C::HALF_B_BYTES, &s.mma_b.values, k * 64, scheduler.mma_n + BOX_ROWS, b_batch,
                               full, EVICT_NORMAL);
            } else {
                tma_load_3d_multicast(stage + scheduler.rank * C::HALF_B_BYTES, &s.mma_b.values, k * 64,
                                      scheduler.mma_n + scheduler.rank * BOX_ROWS, b_batch, full);
            }
            tma_load_3d<1>(stage + C::MMA_A_OFFSET, &s.mma_a.values, k * (C::MMA_A_E2M1 ? 32 : 64), scheduler.mma_m,
                           a_batch, full, EVICT_NORMAL);
            if (have_scales)
                cp_async_bulk(stage + C::MMA_SFA_OFFSET, scales + (int64_t)k * SCALES, SCALES, full, EVICT_NORMAL);
        }
    }
    /* The last arrivals, some from the other CTA, must find this CTA's shared memory alive. */
    for (int i = 0; i < C::STAGES; i++, state.advance()) mbarrier_wait(smem.empty(state.index), state.phase ^ 1);
}

/* A math warp releases a stage, half of which the other CTA fills. Every lane has read mma_a for itself and arrives
 * here. One arrival a warp suffices there: only wgmma reads what the other CTA loads, and the warp has waited for
 * it. */
__device__ __forceinline__ void release(uint32_t empty, uint32_t other_rank) {
    mbarrier_arrive(empty);
    if (threadIdx.x % 32 == 0) mbarrier_arrive_relaxed(mapa(empty, other_rank));
}

/* Dequantizes mma_a of a stage into a thread's fragments of its four K-steps. */
template <class C> __device__ __forceinline__ void decode_a(uint32_t stage, uint32_t (&a)[4][4]) {
    int lane = threadIdx.x % 32, row = (threadIdx.x / 32 - FIRST_MATH_WARP) * 16 + lane / 4, t = lane % 4;
    uint32_t values = stage + C::MMA_A_OFFSET + row * 32 + t * 8,
             scales = stage + C::MMA_SFA_OFFSET + row % 32 * 16 + row / 32 * 4;
    uint2 words[2];
    uint32_t four[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        words[h] = ld_shared_v2(values + h * 8 * 32);
        four[h] = ld_shared(scales + h * 8 * 16);
    }
    using convert = w4a16<C::TYPE>;
    uint32_t scale_pair = convert::scales((four[0] >> t * 8 & 0xFF | (four[1] >> t * 8 & 0xFF) << 8) & 0x7F7F);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int w = 0; w < 2; w++) {
            uint32_t pairs[4], word = w ? words[h].y : words[h].x;
            if (h == 0)
                convert::template word<0>(word, scale_pair, pairs);
            else
                convert::template word<1>(word, scale_pair, pairs);
#pragma unroll
            for (int i = 0; i < 4; i++) a[2 * w + i / 2][i % 2 * 2 + h] = pairs[i];
        }
}

/* The mainloop of one tile. */
template <class C> struct mainloop {
    smem_layout<C> smem;
    pipeline_state<C::STAGES> state;
    uint32_t previous; /* index of its stage */

    __device__ __forceinline__ mainloop(smem_layout<C> smem) : smem(smem) {}

    __device__ __forceinline__ void step(bool first, uint32_t other, uint32_t (&a)[4][4], float (&d)[SUMS]) {
        uint32_t stage = smem.stage(state.index);
        mbarrier_wait(smem.full(state.index), state.phase);
        if constexpr (C::MMA_A_E2M1) decode_a<C>(stage, a);
        uint64_t b_descriptor = wgmma_smem_descriptor(stage);
        uint64_t a_descriptor = wgmma_smem_descriptor(stage + C::MMA_A_OFFSET + threadIdx.x / 128 * 8192 - 8192);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            if constexpr (C::MMA_A_E2M1)
                wgmma_m64n256k16<C::TYPE>(d, a[i], b_descriptor + 2 * i);
            else
                wgmma_m64n256k16(d, a_descriptor + 2 * i, b_descriptor + 2 * i);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (!first) release(smem.empty(previous), other);
        previous = state.index;
        state.advance();
    }

    __device__ __forceinline__ void run(const tile_scheduler &scheduler, float (&d)[SUMS]) {
        /* DIVIDED: read again, since the scheduler's would be spilled. */
        uint32_t a[2][4][4], other = (C::DIVIDED ? cluster_ctarank() : scheduler.rank) ^ 1;
        int32_t k = scheduler.k;
#pragma unroll
        for (int i = 0; i < SUMS; i++) d[i] = 0.0f;
#pragma unroll 1
        while (k < scheduler.k_end) {
            step(k == scheduler.k, other, a[0], d);
            if (++k == scheduler.k_end) break;
            step(false, other, a[1], d);
            k++;
        }
        wgmma_wait_group<0>();
#pragma unroll
        for (int i = 0; i < SUMS; i++) pin_float(d[i]);
        if (scheduler.k < scheduler.k_end) release(smem.empty(previous), other);
        if (scheduler.steps > scheduler.k_end - scheduler.k) { /* the empty step of split_k */
            mbarrier_wait(smem.full(state.index), state.phase);
            release(smem.empty(state.index), other);
            state.advance();
        }
    }
};

__device__ __forceinline__ void st_shared_cluster_v4(uint32_t to, const float *v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]),
                 "f"(v[3])
                 : "memory");
}

/* split_k: the CTA of rank 0 keeps columns 0 to 127 of the tile, the other 128 to 255. Each sends its other columns to
 * the stages of the other CTA and adds what it receives. */
template <int KEPT>
__device__ __forceinline__ void exchange_partials(uint32_t stages, uint32_t other, float (&d)[SUMS]) {
    uint32_t mine = (threadIdx.x - FIRST_MATH_WARP * 32) * 16;
    uint32_t to = mapa(stages, other) + mine;
    barrier_cluster_arrive(), barrier_cluster_wait(); /* all wgmma and all loads are complete */
#pragma unroll
    for (int i = 0; i < SUMS / 2; i += 4) st_shared_cluster_v4(to + i * MATH_WARPS * 32 * 4, d + (SUMS / 2 - KEPT) + i);
    barrier_cluster_arrive(), barrier_cluster_wait();
#pragma unroll
    for (int i = 0; i < SUMS / 2; i += 4) {
        float received[4];
        ld_shared_v4_f32(stages + mine + i * MATH_WARPS * 32 * 4, received);
#pragma unroll
        for (int j = 0; j < 4; j++) d[KEPT + i + j] += received[j];
    }
}

/* Epilogue staging buffer of a warp: 32 columns of its 16 rows, from the wgmma register layout to the order of the
 * output, 4 neighbours along an output row to a thread. 16 x 40 floats, or 32 x 20 with swap_ab, padded against bank
 * conflicts. */
struct epilogue_staging {
    float *to;
    bool swap_ab;
    int row, column, rows, pitch; /* first row and column of this lane; rows of a pass */

    __device__ __forceinline__ epilogue_staging(float *to, bool swap_ab) : to(to), swap_ab(swap_ab) {
        int lane = threadIdx.x % 32;
        row = swap_ab ? lane / 4 : lane / 8, column = (swap_ab ? lane % 4 : lane % 8) * 4;
        rows = swap_ab ? 8 : 4, pitch = swap_ab ? 20 : 40;
    }

    __device__ __forceinline__ void put(const float *v, float unit) const {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 16; i += 2) {
            int mma_m = lane / 4 + i / 2 % 2 * 8, mma_n = i / 4 * 8 + lane % 4 * 2;
            float2 pair = make_float2(v[i] * unit, v[i + 1] * unit);
            if (swap_ab)
                to[mma_n * 20 + mma_m] = pair.x, to[(mma_n + 1) * 20 + mma_m] = pair.y;
            else
                *(float2 *)(to + mma_m * 40 + mma_n) = pair;
        }
    }

    /* This lane's output of pass 0 to 3, in row + pass * rows. */
    __device__ __forceinline__ float4 get(int pass) const {
        return *(const float4 *)(to + (row + pass * rows) * pitch + column);
    }
};

/* Whether the output is one alpha times the sums, in 16 bits, with rows aligned to 16 bytes. */
__device__ __forceinline__ bool is_plain(const gemm_problem &p) {
    uint64_t addresses = (uint64_t)p.out | (uint64_t)p.out_pitch | (uint64_t)p.out_batch;
    return !p.c && !p.bias && p.out_type != NVFP4_FP32 && (!p.alpha || p.alpha_stride == 0) &&
           (addresses % 16 | p.n % 8) == 0;
}

/* Stores four 8x8 matrices of 16-bit values. A lane holds columns 2 (lane % 4) and the next of row lane / 4; lane 8i +
 * r has the address of row r (TRANS: column r) of matrix i (PTX ISA 9.0, section 9.7.14.5.16 stmatrix). */
template <bool TRANS> __device__ __forceinline__ void stmatrix_x4(uint32_t to, const uint32_t (&v)[4]) {
    if (TRANS)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]),
                     "r"(v[1]), "r"(v[2]), "r"(v[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
                     "r"(v[2]), "r"(v[3])
                     : "memory");
}

/* Epilogue of plain output: 8 lanes store a line of 128 bytes. 64 columns of the tile at a time go through the warp's
 * own staging buffer (16 rows), or with SWAP_AB through those of the warpgroup (64 rows). In a row of 128 bytes, chunk
 * i of 16 bytes is at i ^ row % 8, against bank conflicts. */
template <bool SWAP_AB>
__device__ __forceinline__ void epilogue_plain(const gemm_problem &p, int32_t l, int32_t mma_m, int32_t mma_n,
                                               int begin, int end, uint32_t staging, float unit,
                                               const float (&d)[SUMS]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, matrix = lane / 8;
    float alpha = p.alpha ? *p.alpha : p.alpha_value;
    bool fp16 = p.out_type == NVFP4_FP16;
    /* Row and piece of the first two groups of 8 columns; the next two are 16 rows or two chunks further. */
    int row = SWAP_AB ? matrix / 2 * 8 + lane % 8 : matrix % 2 * 8 + lane % 8;
    int piece = SWAP_AB ? warp * 2 + matrix % 2 : matrix / 2;
    int64_t m = SWAP_AB ? mma_n + warp * 4 + lane / 8 : mma_m + lane / 8, n = (SWAP_AB ? mma_m : mma_n) + lane % 8 * 8;
    char *out = (char *)p.out + l * p.out_batch + m * p.out_pitch + n * 2;
    uint32_t mine = staging + (SWAP_AB ? warp * 4 + lane / 8 : lane / 8) * 128;
#pragma unroll
    for (int chunk = 0; chunk < SM90_PREFILL_MMA_TILE_N; chunk += 64) {
        if (chunk < begin || chunk >= end) continue;
        if (SWAP_AB)
            asm volatile("bar.sync %0, 128;" ::"r"(1 + (int)threadIdx.x / 128) : "memory");
        else
            __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t packed[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *v = d + chunk / 2 + i * 8 + j * 2;
                float first = alpha * (v[0] * unit), second = alpha * (v[1] * unit);
                __half2 halves = __floats2half2_rn(first, second);
                __nv_bfloat162 bfloats = __floats2bfloat162_rn(first, second);
                packed[j] = fp16 ? *(uint32_t *)&halves : *(uint32_t *)&bfloats;
            }
            int at_row = row + (SWAP_AB ? i * 16 : 0), at_piece = piece + (SWAP_AB ? 0 : i * 2);
            stmatrix_x4<SWAP_AB>(staging + at_row * 128 + (at_piece ^ at_row % 8) * 16, packed);
        }
        if (SWAP_AB)
            asm volatile("bar.sync %0, 128;" ::"r"(1 + (int)threadIdx.x / 128) : "memory");
        else
            __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            constexpr int STEP = SWAP_AB ? 16 : 4; /* rows */
            int64_t column = SWAP_AB ? 0 : chunk, to_row = i * STEP + (SWAP_AB ? chunk : 0);
            int at_row = i * STEP + (SWAP_AB ? warp * 4 + lane / 8 : lane / 8);
            uint4 v = ld_shared_v4(mine + i * STEP * 128 + (lane % 8 ^ at_row % 8) * 16);
            if (m + to_row < p.m && n + column < p.n) *(uint4 *)(out + to_row * p.out_pitch + column * 2) = v;
        }
    }
}

/* Stores the accumulators of a warp; with split_k the columns that this CTA keeps. */
__device__ __forceinline__ void epilogue(const gemm_problem &p, const sm90_prefill_schedule &s,
                                         const tile_scheduler &scheduler, float *to, float unit,
                                         const float (&d)[SUMS]) {
    int begin = scheduler.split_k && scheduler.rank == 1 ? 128 : 0,
        end = scheduler.split_k && scheduler.rank == 0 ? 128 : SM90_PREFILL_MMA_TILE_N;
    int warp = threadIdx.x / 32 - FIRST_MATH_WARP;
    int32_t mma_m = scheduler.mma_m + warp * 16;
    if (is_plain(p)) {
        uint32_t staging = shared_address(to);
        if (s.swap_ab)
            epilogue_plain<true>(p, scheduler.l, scheduler.mma_m + warp / 4 * 64, scheduler.mma_n, begin, end,
                                 staging - warp % 4 * SM90_PREFILL_EPILOGUE_STAGING_BYTES, unit, d);
        else
            epilogue_plain<false>(p, scheduler.l, mma_m, scheduler.mma_n, begin, end, staging, unit, d);
        return;
    }
    epilogue_staging staging(to, s.swap_ab);
#pragma unroll
    for (int chunk = 0; chunk < SM90_PREFILL_MMA_TILE_N; chunk += 32) {
        if (chunk < begin || chunk >= end) continue;
        staging.put(d + chunk / 2, unit);
        __syncwarp();
        int64_t mma_n = scheduler.mma_n + chunk;
        int64_t m = (s.swap_ab ? mma_n : mma_m) + staging.row, n = (s.swap_ab ? mma_m : mma_n) + staging.column;
        if (n < p.n) {
            four_column_epilogue columns(p, n);
#pragma unroll 1
            for (int pass = 0; pass < 4; pass++) {
                float4 v = staging.get(pass);
                if (m + pass * staging.rows < p.m)
                    columns.store(p, scheduler.l, m + pass * staging.rows, {v.x, v.y, v.z, v.w});
            }
        }
        __syncwarp();
    }
}

/* Initializes mbarriers and prefetches tensor maps. Reads no tensor, so it runs before griddepcontrol.wait. */
template <class C> __device__ __forceinline__ void prologue(const sm90_prefill_schedule &s, smem_layout<C> smem) {
    if (threadIdx.x / 32 == 0 && elect_one()) {
        prefetch_tensormap(&s.mma_a.values);
        prefetch_tensormap(&s.mma_b.values);
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(smem.full(i), 1);
            mbarrier_init(smem.empty(i), (32 + 1) * MATH_WARPS); /* every lane of this CTA, one a warp of the other */
        }
        fence_mbarrier_init();
    }
    __syncwarp();
    barrier_cluster_arrive_relaxed(), barrier_cluster_wait(); /* the mbarriers of both CTAs are initialized */
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm90_prefill_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    smem_layout<C> smem{shared_address(shared)};
    if (smem.base % 1024) __trap(); /* the swizzle pattern follows absolute addresses */
    int warp = threadIdx.x / 32;
    prologue(s, smem);
    griddepcontrol_wait();
    /* After the wait: launched earlier, the grid after next could start before this one's predecessor is complete. */
    griddepcontrol_launch_dependents();

    tile_scheduler scheduler(s);
    if (warp < FIRST_MATH_WARP) {
        setmaxnreg_dec<C::PRODUCER_REGISTERS>();
        if (warp == 0 && elect_one()) producer(s, smem, scheduler);
        if (C::DIVIDED && warp > 0) dequantize_blocks<C>(s);
        __syncwarp();
        if (blockIdx.x / 2 < s.split_k_tiles) { /* the math warps' barriers in exchange_partials */
            barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
            barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
        }
    } else {
        setmaxnreg_inc<C::MATH_REGISTERS>();
        mainloop<C> mainloop(smem);
        float *staging = (float *)(shared + C::EPILOGUE_STAGING_OFFSET) +
                         (warp - FIRST_MATH_WARP) * (SM90_PREFILL_EPILOGUE_STAGING_BYTES / 4);
        while (scheduler.advance()) {
            float d[SUMS];
            mainloop.run(scheduler, d);
            if (scheduler.split_k) {
                if (scheduler.rank == 0)
                    exchange_partials<0>(smem.base, 1, d);
                else
                    exchange_partials<SUMS / 2>(smem.base, 0, d);
            }
            epilogue(p, s, scheduler, staging, product_unit<C::TYPE>(p), d);
        }
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(SM90_PREFILL_THREADS, 1)                                              \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_prefill_schedule s) {          \
        RECORD_CTA();                                                                                                  \
        gemm<config<__VA_ARGS__>>(p, s);                                                                               \
    }
SM90_PREFILL_CONFIGS(KERNEL)
