/* Tile schedulers of sm90/gemm.cu: which output tiles and which stages along K a CTA computes.
 *
 *   tile_scheduler      Data-parallel (split_k = 1): CTA c computes tiles c, c + clusters, ...
 *                       Split-K: cluster c computes tile c only, CTA u of the cluster split u along K.
 *   streamk_scheduler   Stream-K: work tiles (CUTLASS's word), each an output tile and a range of stages along K: all
 *                       stages of a data-parallel tile, or some of a stream-K tile.
 *
 * Stream-K serves grids that would leave SMs idle. The first streamk_stages along K of each stream-K tile belong to
 * workers (CUTLASS: stream-K units); the cluster that owns the tile computes the rest, split over its CTAs. The
 * workers' stages of all tiles form one linear range, of which each worker takes worker_stages: a worker can cover
 * several tiles, and a tile several workers. A worker stores each partial tile in the workspace. Its warps add to its
 * flag once, after the last partial tile, because a release at GPU scope takes about 1 us. The dequantize pre-pass
 * zeroes the flags. With more tiles than clusters (split_k 1) all CTAs first compute dp_tiles data-parallel tiles.
 *
 * Workers wait for nobody and are the first CTAs of the grid. GPUs start CTAs in that order (CUDA does not promise it),
 * so waiting CTAs cannot keep workers from starting. */
#ifndef NVFP4_SM90_SCHEDULE_CUH
#define NVFP4_SM90_SCHEDULE_CUH

#include <stdint.h>

#include "common/problem.h"
#include "kernels/sm90/gemm_config.h"

/* The values that a CTA derives from the schedule, and its shared memory. */
template <class C> struct cta_context {
    uint32_t base;      /* shared address of the stages */
    uint32_t split_idx; /* rank in the cluster */
    uint32_t first_tile, tile_step;
    int32_t k_begin, k_end; /* stages along K: [k_begin, k_end) */
    int32_t scales;         /* scales along K: K / 16 */
    int32_t k_tail;         /* index of the partial last stage; the number of stages if K fills them all */
    uint32_t partials;      /* shared address of received partials */

    __device__ __forceinline__ cta_context(const gemm_problem &p, const sm90_schedule &s, uint32_t base) : base(base) {
        split_idx = blockIdx.x;
        first_tile = blockIdx.y;
        tile_step = gridDim.y;
        k_begin = (C::STREAMK ? s.streamk_stages : 0) + (int32_t)split_idx * s.stages_per_split +
                  min((int32_t)split_idx, s.splits_with_one_more);
        k_end = k_begin + s.stages_per_split + ((int32_t)split_idx < s.splits_with_one_more);
        scales = (int32_t)(p.k / 16);
        k_tail = (int32_t)(p.k / SM90_STAGE_K);
        partials = base + (s.partials_in_stages ? 0 : C::PARTIALS_OFFSET);
    }

    __device__ __forceinline__ uint32_t stage(uint32_t stage_idx) const { return base + stage_idx * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t stage_idx) const { return base + C::FULL_OFFSET + 8 * stage_idx; }
    __device__ __forceinline__ uint32_t empty(uint32_t stage_idx) const {
        return base + C::EMPTY_OFFSET + 8 * stage_idx;
    }
    __device__ __forceinline__ uint32_t raw(uint32_t stage_idx) const { return base + C::RAW_OFFSET + 8 * stage_idx; }
    __device__ __forceinline__ uint32_t partials_full() const { return base + C::PARTIALS_FULL_OFFSET; }

    /* Mask of two bytes, scales i and i + 1 of a row in stage k_tail: zero past the end of K, else the magnitude bits
     * (bit 7 is ignored). */
    __device__ __forceinline__ uint32_t tail_mask(int i) const {
        int32_t left = scales - (k_tail * 8 + i);
        return left >= 2 ? 0x7F7F : left == 1 ? 0x7F : 0;
    }
};

/* First row of mma_a and of mma_b of a tile, and its batch. */
struct tile_coord {
    int32_t mma_m, mma_n, l;
};

template <class C> __device__ __forceinline__ tile_coord tile_coord_of(const sm90_schedule &s, uint32_t tile) {
    uint32_t m = tile, n = 0, l = 0; /* no division for one tile along N and one batch */
    if (s.tiles_mma_n > 1) n = m % s.tiles_mma_n, m /= s.tiles_mma_n;
    if (m >= (uint32_t)s.tiles_mma_m) l = m / s.tiles_mma_m, m %= s.tiles_mma_m;
    return {(int32_t)m * C::MMA_TILE_M, (int32_t)n * C::MMA_TILE_N, (int32_t)l};
}

/* The tiles of this CTA. */
template <class C> struct tile_scheduler {
    const sm90_schedule &s;
    uint32_t tile, step;
    tile_coord coord;

    __device__ __forceinline__ tile_scheduler(const sm90_schedule &s, const cta_context<C> &cta)
        : s(s), tile(cta.first_tile), step(cta.tile_step) {
        coord = tile_coord_of<C>(s, tile);
    }
    __device__ __forceinline__ bool more() const { return tile < (uint32_t)s.tiles; }
    __device__ __forceinline__ void advance() {
        tile += step;
        if (more()) coord = tile_coord_of<C>(s, tile);
    }
};

/* x / d with inv = ceil(2^31 / d), exact for x * d < 2^31 (CUTLASS: FastDivmod). It stays in uniform registers, unlike
 * a division. */
__device__ __forceinline__ int32_t divide(int32_t x, uint32_t inv) {
    return (int32_t)((uint64_t)(uint32_t)x * inv >> 31);
}

/* The work tiles of a stream-K CTA: data-parallel tiles, then ranges of stream-K tiles. All fields but the coordinates
 * are computed without branches, in uniform registers: the mainloop's bounds and addresses then stay there
 * too, which saves 30 of its 190 instructions. */
template <class C> struct streamk_scheduler {
    const sm90_schedule &s;
    int32_t worker;               /* index of this worker; -1: an owner */
    int32_t dp_tile;              /* next data-parallel tile */
    int32_t streamk_tile;         /* stream-K tile after the current one */
    int32_t next_begin, next_end; /* stages of the next stream-K work tile, before `left` limits them */
    int32_t left;                 /* stages of stream-K tiles that this CTA has left */
    bool is_dp_tile;              /* of the current work tile */
    int32_t k_begin, k_end;       /* its stages */
    tile_coord coord;

    __device__ __forceinline__ streamk_scheduler(const sm90_schedule &s, const cta_context<C> &cta) : s(s) {
        int32_t cluster = blockIdx.y, worker_idx = cluster * (int32_t)gridDim.x + (int32_t)blockIdx.x;
        int32_t begin = worker_idx * s.worker_stages,
                end = min(begin + s.worker_stages, (s.tiles - s.dp_tiles) * s.streamk_stages);
        int32_t worker_tile = divide(begin, s.inv_streamk_stages), own_tile = cluster - s.worker_clusters;
        bool is_worker = cluster < s.worker_clusters;
        worker = is_worker ? worker_idx : -1;
        dp_tile = cluster;
        streamk_tile = is_worker ? worker_tile : own_tile;
        next_begin = is_worker ? begin - worker_tile * s.streamk_stages : cta.k_begin;
        next_end = is_worker ? s.streamk_stages : cta.k_end;
        left = is_worker ? end - begin : cta.k_end - cta.k_begin;
    }
    __device__ __forceinline__ bool next() {
        is_dp_tile = dp_tile < s.dp_tiles;
        if (!is_dp_tile && left <= 0) return false;
        k_begin = is_dp_tile ? 0 : next_begin;
        k_end = is_dp_tile ? s.k_stages : min(next_end, next_begin + left);
        coord = tile_coord_of<C>(s, is_dp_tile ? dp_tile : s.dp_tiles + streamk_tile);
        dp_tile += gridDim.y;
        left -= is_dp_tile ? 0 : k_end - k_begin;
        next_begin = is_dp_tile ? next_begin : 0;
        streamk_tile += is_dp_tile ? 0 : 1;
        return true;
    }
    /* The current work tile is a worker's. */
    __device__ __forceinline__ bool stores_partial_tile() const { return !is_dp_tile && worker >= 0; }
    /* The current work tile is an owner's: workers() partial tiles from first_worker() on are added to it. */
    __device__ __forceinline__ bool needs_fixup() const { return !is_dp_tile && worker < 0; }
    __device__ __forceinline__ int32_t first_worker() const {
        return divide((streamk_tile - 1) * s.streamk_stages, s.inv_worker_stages);
    }
    __device__ __forceinline__ int32_t workers() const {
        return divide(streamk_tile * s.streamk_stages - 1, s.inv_worker_stages) - first_worker() + 1;
    }
    /* The address of a worker's partial tile of the current tile. Both indices grow along the linear range, so the
     * addresses are distinct. */
    __device__ __forceinline__ uint8_t *partial_tile(int32_t worker) const {
        return s.partial_tiles + (int64_t)(worker + streamk_tile - 1) * C::PARTIAL_TILE_BYTES;
    }
};

#endif
