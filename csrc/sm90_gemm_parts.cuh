/* How the work of sm90_gemm.cu is shared out between CTAs, and how those that work on one tile bring their sums
 * together: those of a cluster through shared memory; those that help clusters through the workspace.
 *
 * Helped kernels. Clusters that take a tile each seldom fill the GPU. In a helped kernel each computes the end of K of
 * its tile, cut between its CTAs as ever; the first streamk_stages along K are helpers', CTAs that have no such tile.
 * Put one tile's behind the other's these stages make a row, of which each helper takes worker_stages; so its share can
 * reach into several tiles, and a tile's can be several helpers'. A helper leaves the sums of each piece in the
 * workspace, and counts a flag up for all of them when it has done the last one, since to make stores visible to the
 * whole GPU takes a microsecond. The flags were zeroed by the grid before, which expands y. Where there are more tiles
 * than clusters (split_k 1), all of these, helpers included, first compute `whole` tiles between them.
 *
 * Helpers wait for nobody, and are the first CTAs of the grid: since GPUs start CTAs in that order (which CUDA does not
 * promise), those who wait for them cannot keep them from starting. All sums are added in an order that the schedule
 * alone decides. */
#ifndef NVFP4_SM90_GEMM_PARTS_CUH
#define NVFP4_SM90_GEMM_PARTS_CUH

#include "device/cluster.cuh"
#include "device/flags.cuh"
#include "device/mbarrier.cuh"
#include "device/tma.cuh"
#include "sm90_configs.h"

/* This CTA's share of the work. */
template <class C> struct share {
    uint32_t base;           /* shared address of the stages */
    uint32_t unit;           /* rank in the cluster: the part of K */
    uint32_t first, step;    /* of tiles */
    int32_t k_first, k_last; /* stages along K */
    int32_t scales;          /* along K */
    int32_t k_tail;          /* the stage that K fills in part, if there is one */
    uint32_t parts;          /* shared address of the partial sums */

    __device__ __forceinline__ share(const gemm_problem &p, const sm90_schedule &s, uint32_t base) : base(base) {
        unit = blockIdx.x;
        first = blockIdx.y;
        step = gridDim.y;
        k_first = (C::HELPED ? s.streamk_stages : 0) + (int32_t)unit * s.stages_per_split +
                  min((int32_t)unit, s.splits_with_one_more);
        k_last = k_first + s.stages_per_split + ((int32_t)unit < s.splits_with_one_more);
        scales = (int32_t)(p.k / 16);
        k_tail = (int32_t)(p.k / SM90_STAGE_K);
        parts = base + (s.partials_in_stages ? 0 : C::PARTS_AT);
    }

    __device__ __forceinline__ uint32_t stage(uint32_t slot) const { return base + slot * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t slot) const { return base + C::FULL_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t empty(uint32_t slot) const { return base + C::EMPTY_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t parts_full() const { return base + C::PARTS_FULL_AT; }

    /* Of scale i of the stage k_tail: keeps its magnitude (bit 7 means nothing), or nothing past the end. */
    __device__ __forceinline__ uint32_t tail_mask(int i) const { return k_tail * 8 + i < scales ? 0x7F7F : 0; }
};

/* Which rows of x and y a tile begins with, and its batch. */
struct tile_place {
    int32_t x, y, l;
};

template <class C> __device__ __forceinline__ tile_place place_of(const sm90_schedule &s, uint32_t tile) {
    uint32_t x = tile, y = 0, l = 0; /* most have one row of tiles, and one batch */
    if (s.tiles_y > 1) y = x % s.tiles_y, x /= s.tiles_y;
    if (x >= (uint32_t)s.tiles_x) l = x / s.tiles_x, x %= s.tiles_x;
    return {(int32_t)x * C::TILE_X, (int32_t)y * C::TILE_Y, (int32_t)l};
}

/* The tiles of this CTA, one after the other. */
template <class C> struct tile_walk {
    const sm90_schedule &s;
    uint32_t tile, step;
    tile_place place;

    __device__ __forceinline__ tile_walk(const sm90_schedule &s, const share<C> &w)
        : s(s), tile(w.first), step(w.step) {
        place = place_of<C>(s, tile);
    }
    __device__ __forceinline__ bool more() const { return tile < (uint32_t)s.tiles; }
    __device__ __forceinline__ void advance() {
        tile += step;
        if (more()) place = place_of<C>(s, tile);
    }
};

/* x / d, by = ceil(2^31 / d): in uniform registers, which a division is not. */
__device__ __forceinline__ int32_t divide(int32_t x, uint32_t by) {
    return (int32_t)((uint64_t)(uint32_t)x * by >> 31);
}

/* Helped kernels: the pieces of tiles that a CTA computes, one after the other. All but the place is arithmetic without
 * branches, in uniform registers: the loop over stages, whose bounds these are, then keeps its addresses there too, and
 * otherwise takes 30 instructions more of 190. */
template <class C> struct piece_walk {
    const sm90_schedule &s;
    int32_t helper;            /* its number; below 0: none */
    int32_t tile;              /* the next one of those that are whole */
    int32_t divided;           /* of the others, which are divided, the one behind this piece's */
    int32_t first, last, left; /* of the next piece of these: where along K, where it ends at most, stages left */
    bool whole;                /* this piece; and */
    int32_t k_first, k_last;   /* its stages along K */
    tile_place place;

    __device__ __forceinline__ piece_walk(const sm90_schedule &s, const share<C> &w) : s(s) {
        int32_t cluster = blockIdx.y, cta = cluster * (int32_t)gridDim.x + (int32_t)blockIdx.x;
        int32_t at = cta * s.worker_stages, end = min(at + s.worker_stages, (s.tiles - s.whole) * s.streamk_stages);
        int32_t helped = divide(at, s.inv_streamk_stages), own = cluster - s.worker_clusters;
        bool helps = cluster < s.worker_clusters;
        helper = helps ? cta : -1;
        tile = cluster;
        divided = helps ? helped : own;
        first = helps ? at - helped * s.streamk_stages : w.k_first;
        last = helps ? s.streamk_stages : w.k_last;
        left = helps ? end - at : w.k_last - w.k_first;
    }
    __device__ __forceinline__ bool next() {
        whole = tile < s.whole;
        if (!whole && left <= 0) return false;
        k_first = whole ? 0 : first;
        k_last = whole ? s.k_stages : min(last, first + left);
        place = place_of<C>(s, whole ? tile : s.whole + divided);
        tile += gridDim.y;
        left -= whole ? 0 : k_last - k_first;
        first = whole ? first : 0;
        divided += whole ? 0 : 1;
        return true;
    }
    /* Its sums go to others. */
    __device__ __forceinline__ bool contributes() const { return !whole && helper >= 0; }
    /* Others' sums are added to it: those of so many helpers, from this one on. */
    __device__ __forceinline__ bool receives() const { return !whole && helper < 0; }
    __device__ __forceinline__ int32_t first_helper() const {
        return divide((divided - 1) * s.streamk_stages, s.inv_worker_stages);
    }
    __device__ __forceinline__ int32_t helpers() const {
        return divide(divided * s.streamk_stages - 1, s.inv_worker_stages) - first_helper() + 1;
    }
    /* Where a helper's sums of this piece's tile lie: both numbers grow, so no two have the same place. */
    __device__ __forceinline__ uint8_t *contribution(int32_t helper) const {
        return s.partial_tiles + (int64_t)(helper + divided - 1) * C::PARTIAL_TILE_BYTES;
    }
};

/* What a lane holds of a tile: [tile of 64 rows][group of 8 columns * 4 + row of 2 * 2 + column of 2]. */
template <class C> using sums = float[C::X_TILES][C::TILE_Y / 2];

/* Groups of 8 columns of a tile that one of `units` keeps. */
template <class C> struct kept_columns {
    int units, unit;
    uint32_t by_units; /* ceil(2^31 / units) */
    int first, last;

    __device__ __forceinline__ kept_columns(int units, int unit, uint32_t by_units)
        : units(units), unit(unit), by_units(by_units), first(divide(unit * C::COLUMN_GROUPS, by_units)),
          last(divide((unit + 1) * C::COLUMN_GROUPS, by_units)) {}
    __device__ __forceinline__ bool have(int group) const { return group >= first && group < last; }
    __device__ __forceinline__ kept_columns of(int other) const { return {units, other, by_units}; }
};

/* Calls the function with what this unit keeps, as numbers that the compiler knows where one or two units share a tile:
 * what is done of each group is then straight code, and its latencies overlap. */
template <class C, class F>
__device__ __forceinline__ void with_kept_columns(const sm90_schedule &s, const share<C> &w, F function) {
    if constexpr (C::COLUMN_GROUPS >= 4) {
        if (s.split_k == 1) return function(kept_columns<C>(1, 0, 1u << 31));
        if (s.split_k == 2 && w.unit == 0) return function(kept_columns<C>(2, 0, 1u << 30));
        if (s.split_k == 2) return function(kept_columns<C>(2, 1, 1u << 30));
    }
    function(kept_columns<C>(s.split_k, w.unit, s.inv_split_k));
}

/* Where the sums lie that units send to this one: [sender, among the others][group of columns, among those kept][tile
 * of 64 rows][warp][lane] 16 bytes. */
template <class C> struct parts_layout {
    static constexpr int TILE = C::MATH_WARPS * 512, GROUP = C::X_TILES * TILE; /* bytes from one to the next */
    int sender;

    __device__ __forceinline__ parts_layout(const kept_columns<C> &kept)
        : sender(divide(C::COLUMN_GROUPS + kept.units - 1, kept.by_units) * GROUP) {}
    __device__ __forceinline__ int first(int from, int to) const {
        return (from < to ? from : from - 1) * sender + threadIdx.x * 16;
    }
};

/* Adds four floats in shared memory to others. */
__device__ __forceinline__ void add_shared(float *to, uint32_t from) {
    float add[4];
    ld_shared_v4_f32(from, add);
#pragma unroll
    for (int r = 0; r < 4; r++) to[r] += add[r];
}

/* This unit's sums to the units that keep them, to the next one first, so that not all send to the same. */
template <class C>
__device__ __forceinline__ void send_sums(const share<C> &w, const kept_columns<C> &kept, const sums<C> &acc) {
    parts_layout<C> layout(kept);
#pragma unroll 1
    for (int ahead = 1; ahead < kept.units; ahead++) {
        int to = kept.unit + ahead;
        if (to >= kept.units) to -= kept.units;
        kept_columns<C> theirs = kept.of(to);
        uint32_t parts = mapa(w.parts, to) + layout.first(kept.unit, to) - theirs.first * layout.GROUP;
        uint32_t full = mapa(w.parts_full(), to);
#pragma unroll
        for (int group = 0; group < C::COLUMN_GROUPS; group++)
            if (theirs.have(group))
#pragma unroll
                for (int i = 0; i < C::X_TILES; i++) {
                    const float *v = acc[i] + 4 * group;
                    st_async(parts + group * layout.GROUP + i * layout.TILE, full, v[0], v[1], v[2], v[3]);
                }
    }
}

/* Adds what the others have sent, in the order of the parts of K. */
template <class C>
__device__ __forceinline__ void add_parts(const share<C> &w, const kept_columns<C> &kept, sums<C> &acc) {
    parts_layout<C> layout(kept);
#pragma unroll 1
    for (int from = 0; from < kept.units; from++) {
        if (from == kept.unit) continue;
        uint32_t part = w.parts + layout.first(from, kept.unit) - kept.first * layout.GROUP;
#pragma unroll
        for (int group = 0; group < C::COLUMN_GROUPS; group++)
            if (kept.have(group))
#pragma unroll
                for (int i = 0; i < C::X_TILES; i++)
                    add_shared(acc[i] + 4 * group, part + group * layout.GROUP + i * layout.TILE);
    }
}

/* A contribution is [group of 8 columns][tile of 64 rows][warp][lane] 16 bytes. It arrives in slots of the ring, behind
 * the last stage, up to CHUNK groups in each. */
template <class C> struct contribution_layout {
    static constexpr int TILE = C::MATH_WARPS * 512, GROUP = C::X_TILES * TILE;
    static constexpr int CHUNK = C::COLUMN_GROUPS > 1 ? C::COLUMN_GROUPS / 2 : 1;
    static_assert(CHUNK * GROUP <= C::STAGE_BYTES, "a slot takes it");
    static_assert(C::COLUMN_GROUPS * GROUP == C::PARTIAL_TILE_BYTES, "the workspace takes it");
};

/* A helper: its sums of a piece to the workspace. */
template <class C> __device__ __forceinline__ void contribute(const piece_walk<C> &walk, const sums<C> &acc) {
    using layout = contribution_layout<C>;
    uint8_t *to = walk.contribution(walk.helper) + threadIdx.x * 16;
#pragma unroll
    for (int group = 0; group < C::COLUMN_GROUPS; group++)
#pragma unroll
        for (int i = 0; i < C::X_TILES; i++) {
            const float *v = acc[i] + 4 * group;
            *(float4 *)(to + group * layout::GROUP + i * layout::TILE) = make_float4(v[0], v[1], v[2], v[3]);
        }
}

/* One thread: has the partial_tiles to this piece copied, of the columns that the unit keeps. */
template <class C>
__device__ __forceinline__ void load_contributions(const share<C> &w, const piece_walk<C> &walk,
                                                   pipeline_state<C::STAGES> &at) {
    using layout = contribution_layout<C>;
    kept_columns<C> kept(walk.s.split_k, w.unit, walk.s.inv_split_k);
    int32_t helper = walk.first_helper(), end = helper + walk.helpers();
#pragma unroll 1
    for (; helper < end; helper++) {
        const uint8_t *from = walk.contribution(helper);
        flag_wait(walk.s.fixup_flags + helper, C::MATH_WARPS);
#pragma unroll 1
        for (int first = kept.first; first < kept.last; first += layout::CHUNK, at.advance()) {
            uint32_t bytes = min(layout::CHUNK, kept.last - first) * layout::GROUP;
            mbarrier_wait(w.empty(at.index), at.phase ^ 1);
            mbarrier_arrive_expect_tx(w.full(at.index), bytes);
            cp_async_bulk(w.stage(at.index), from + first * layout::GROUP, bytes, w.full(at.index), walk.s.y.policy);
        }
    }
}

/* Adds them, in the order of K. No stages follow, so the ring need not be left where it is. */
template <class C>
__device__ __forceinline__ void add_contributions(const share<C> &w, const piece_walk<C> &walk,
                                                  pipeline_state<C::STAGES> at, const kept_columns<C> &kept,
                                                  sums<C> &acc) {
    using layout = contribution_layout<C>;
#pragma unroll 1
    for (int count = walk.helpers(); count > 0; count--)
#pragma unroll
        for (int chunk = 0; chunk < C::COLUMN_GROUPS; chunk += layout::CHUNK) {
            int first = kept.first + chunk, last = min(first + layout::CHUNK, kept.last);
            if (first >= kept.last) continue;
            uint32_t from = w.stage(at.index) + threadIdx.x * 16 - first * layout::GROUP;
            mbarrier_wait(w.full(at.index), at.phase);
#pragma unroll
            for (int group = 0; group < C::COLUMN_GROUPS; group++)
                if (group >= first && group < last)
#pragma unroll
                    for (int i = 0; i < C::X_TILES; i++)
                        add_shared(acc[i] + 4 * group, from + group * layout::GROUP + i * layout::TILE);
            mbarrier_arrive(w.empty(at.index));
            at.advance();
        }
}

#endif
