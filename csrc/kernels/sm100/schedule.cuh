/* sm100/gemm.cu's constants of an instantiation, what a CTA derives from the schedule, and the order of tiles. */
#ifndef NVFP4_SM100_SCHEDULE_CUH
#define NVFP4_SM100_SCHEDULE_CUH

#include "common/problem.h"
#include "kernels/common/cluster.cuh"
#include "kernels/common/shared.cuh"
#include "kernels/sm100/config.h"

/* EPILOGUE_WARPS is a group's. The second group and the cp.async producer never are in one kernel. */
enum { EPILOGUE_WARPS = 4, PRODUCER_WARP = 4, MMA_WARP = 5, CP_ASYNC_WARP = 6, CP_ASYNC_THREADS = 128 };
enum { TMEM_BARRIER = 1 }; /* epilogue warps and mma warp */

template <int CTA_GROUP_, int MMA_TILE_N_, int STAGES_, int ACCUMULATORS_, int CP_ASYNC_, int MULTICAST_>
struct config {
    static constexpr int CTA_GROUP = CTA_GROUP_, MMA_TILE_N = MMA_TILE_N_, STAGES = STAGES_;
    static constexpr int ACCUMULATORS = ACCUMULATORS_, THREADS = SM100_THREADS(MMA_TILE_N, CP_ASYNC_);
    static constexpr int EPILOGUE_GROUPS = SM100_EPILOGUE_GROUPS(MMA_TILE_N);
    static constexpr int TMEM_BARRIER_THREADS = 32 * (EPILOGUE_WARPS * EPILOGUE_GROUPS + 1);
    static constexpr bool CP_ASYNC = CP_ASYNC_;
    static constexpr int MULTICAST = MULTICAST_, SPLIT_CTAS = CTA_GROUP * MULTICAST; /* CTAs with one split index */
    static constexpr int MMA_TILE_M = SM100_CTA_ROWS * CTA_GROUP;
    static constexpr int MMA_B_ROWS = MMA_TILE_N / CTA_GROUP;                   /* in one CTA */
    static constexpr int MMA_SFB_ATOMS = CEIL_DIV(MMA_TILE_N, SM100_ATOM_ROWS); /* a K block of 64 */
    /* Byte offsets in a stage; mma_a values are at 0. */
    static constexpr int STAGE_BYTES = SM100_STAGE_BYTES(CTA_GROUP, MMA_TILE_N), MMA_B_OFFSET = SM100_MMA_A_BYTES;
    static constexpr int MMA_SFA_OFFSET = MMA_B_OFFSET + SM100_MMA_B_BYTES(CTA_GROUP, MMA_TILE_N);
    static constexpr int MMA_SFB_OFFSET = MMA_SFA_OFFSET + SM100_MMA_SFA_BYTES;
    /* Byte offsets after the stages. */
    static constexpr int FULL_OFFSET = STAGES * STAGE_BYTES, EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES;
    static constexpr int ACC_FULL_OFFSET = EMPTY_OFFSET + 8 * STAGES;
    static constexpr int ACC_EMPTY_OFFSET = ACC_FULL_OFFSET + 8 * ACCUMULATORS;
    static constexpr int PARTIALS_FULL_OFFSET = ACC_EMPTY_OFFSET + 8 * ACCUMULATORS;
    static constexpr int SCALES_FULL_OFFSET = PARTIALS_FULL_OFFSET + 8;
    static constexpr int TMEM_ADDRESS_OFFSET = SCALES_FULL_OFFSET + 8 * STAGES;
    static constexpr int PARTIALS_OFFSET = SM100_SHARED_BYTES(CTA_GROUP, MMA_TILE_N, STAGES);
    /* Tensor memory: allocated columns, first scale column, scale columns a stage. */
    static constexpr int COLUMNS = SM100_TMEM_COLUMNS(MMA_TILE_N, STAGES, ACCUMULATORS);
    static constexpr int SCALES_COLUMN = ACCUMULATORS * MMA_TILE_N, SCALE_COLUMNS = SM100_SCALE_COLUMNS(MMA_TILE_N);
    /* A CTA of this call and one of the next. __launch_bounds__ then limits registers for two of 4 or 8 warps: PTX
     * 9.7.16.8.1 ties warp w to lanes by w % 4, so hardware may tie it to a quarter of the SM's registers. */
    static constexpr int CTAS_PER_SM = COLUMNS <= 256 && PARTIALS_OFFSET <= 113 * 1024 ? 2 : 1;
    static constexpr int BOUND_THREADS = CTAS_PER_SM == 2 ? CEIL_DIV(THREADS, 128) * 128 : THREADS;
    static constexpr int CHUNK = MMA_TILE_N < 32 ? MMA_TILE_N : 32; /* columns of one tcgen05.ld of the epilogue */

    static_assert(STAGE_BYTES % 1024 == 0 && MMA_SFA_OFFSET % 1024 == 0,
                  "the 128-byte swizzle repeats every 1024 bytes");
    static_assert(TMEM_ADDRESS_OFFSET + 4 <= PARTIALS_OFFSET && PARTIALS_OFFSET % 16 == 0, "the barriers fit");
    static_assert(SM100_SHARED_BYTES(CTA_GROUP, MMA_TILE_N, STAGES) <= 227 * 1024, "shared memory of a CTA");
    static_assert(SM100_USED_COLUMNS(MMA_TILE_N, STAGES, ACCUMULATORS) <= COLUMNS, "tensor memory has 512 columns");
    static_assert(SCALES_COLUMN % 4 == 0, "a scale atom takes 4 columns");
    static_assert(!CP_ASYNC || CTA_GROUP == 1, "cp.async cannot arrive on the mbarrier of another CTA");
    static_assert(MULTICAST == 1 || (MULTICAST == 2 && CTA_GROUP == 2), "the masks of producer and mma warp");
    static_assert(CHUNK == 16 || CHUNK == 32, "tcgen05_ld loads 16 or 32 columns");
};

/* Which part of the product this CTA computes, and where its barriers are. */
template <class C> struct cta_context {
    uint32_t base;          /* shared address of the stages */
    uint32_t rank;          /* in the pair: 0 is the leader */
    uint32_t sharer;        /* which of MULTICAST tiles */
    uint32_t split_idx;     /* rank of this CTA or pair among the split_k that share a tile */
    uint32_t first, step;   /* tiles first, first + step, ... */
    int32_t k_begin, k_end; /* K stages [k_begin, k_end) */
    int32_t k_blocks;       /* K blocks of 64 in all of K */
    int32_t kept_columns;   /* of the tile, that this CTA or pair reduces under split-K */
    uint32_t partials;      /* shared address of the received partial sums */

    __device__ __forceinline__ cta_context(const gemm_problem &p, const sm100_schedule &s, uint32_t base) : base(base) {
        uint32_t split_shift = __ffs(s.split_k) - 1, cluster_shift = split_shift + C::SPLIT_CTAS / 2;
        uint32_t ctarank = cluster_ctarank();
        rank = ctarank % C::CTA_GROUP;
        sharer = ctarank / C::CTA_GROUP % C::MULTICAST;
        split_idx = ctarank / C::SPLIT_CTAS;
        first = (blockIdx.x >> cluster_shift) * C::MULTICAST + sharer;
        step = (gridDim.x >> cluster_shift) * C::MULTICAST;
        k_begin = (int32_t)((int64_t)split_idx * s.k_stages >> split_shift);
        k_end = (int32_t)((int64_t)(split_idx + 1) * s.k_stages >> split_shift);
        kept_columns = C::MMA_TILE_N >> split_shift;
        k_blocks = (int32_t)((p.k + SM100_MMA_K - 1) / SM100_MMA_K);
        partials = base + (s.partials_in_stages ? 0 : C::PARTIALS_OFFSET);
    }

    __device__ __forceinline__ uint32_t stage(uint32_t index) const { return base + index * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t index) const { return base + C::FULL_OFFSET + 8 * index; }
    /* cp.async kernels count scales on full. */
    __device__ __forceinline__ uint32_t scales_full(uint32_t index) const {
        return base + (C::CP_ASYNC ? C::FULL_OFFSET : C::SCALES_FULL_OFFSET) + 8 * index;
    }
    __device__ __forceinline__ uint32_t empty(uint32_t index) const { return base + C::EMPTY_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t partials_full() const { return base + C::PARTIALS_FULL_OFFSET; }
    __device__ __forceinline__ uint32_t acc_full(uint32_t index) const { return base + C::ACC_FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t acc_empty(uint32_t index) const {
        return base + C::ACC_EMPTY_OFFSET + 8 * index;
    }

    /* Cluster rank of the pair's leader, or of the one with that split index. */
    __device__ __forceinline__ uint32_t leader() const { return leader(split_idx); }
    __device__ __forceinline__ uint32_t leader(uint32_t split_idx) const {
        return (split_idx * C::MULTICAST + sharer) * C::CTA_GROUP;
    }
    /* The leader's barrier of the same offset, as a shared::cluster address. */
    __device__ __forceinline__ uint32_t of_leader(uint32_t barrier) const {
        return C::CTA_GROUP == 1 ? barrier : mapa(barrier, leader());
    }
    /* K blocks of 64 in a stage: 4, fewer in the last one. */
    __device__ __forceinline__ int blocks(int32_t k_stage) const {
        return min(SM100_STAGE_ATOMS, k_blocks - k_stage * SM100_STAGE_ATOMS);
    }
};

/* First row of mma_a in this CTA, first row of mma_b in the tile, batch. */
struct tile_coord {
    int32_t mma_m, mma_n, l;
};

__device__ __forceinline__ uint32_t divide(uint32_t x, fast_divisor by) {
    return (uint32_t)((uint64_t)x * by.multiplier >> (31 + by.shift));
}

/* Static persistent scheduler: mma_b fastest, then mma_a, then the batch. */
template <class C> struct tile_scheduler {
    const sm100_schedule &s;
    uint32_t tile, step, rank;
    tile_coord coord;

    __device__ __forceinline__ tile_scheduler(const sm100_schedule &s, const cta_context<C> &cta)
        : s(s), tile(cta.first), step(cta.step), rank(cta.rank) {
        locate();
        pin(coord.mma_m), pin(coord.mma_n), pin(coord.l); /* computed ahead of griddepcontrol.wait */
    }
    __device__ __forceinline__ bool more() const { return tile < (uint32_t)s.tiles; }
    /* Whether this CTA has a tile `tiles` steps further on. */
    __device__ __forceinline__ bool reaches(uint32_t tiles) const { return tile + tiles * step < (uint32_t)s.tiles; }
    __device__ __forceinline__ void advance() {
        tile += step;
        if (more()) locate();
    }

  private:
    __device__ __forceinline__ void locate() {
        uint32_t rest = divide(tile, s.inv_tiles_mma_n), l = divide(rest, s.inv_tiles_mma_m);
        coord.mma_n = (int32_t)(tile - rest * s.tiles_mma_n) * C::MMA_TILE_N;
        coord.mma_m = (int32_t)(rest - l * s.tiles_mma_m) * C::MMA_TILE_M + (int32_t)rank * SM100_CTA_ROWS;
        coord.l = (int32_t)l;
    }
};

#endif
