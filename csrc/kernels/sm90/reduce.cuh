/* Sums the accumulators of CTAs that share an output tile of sm90/gemm.cu, or of sm90/nn.cu by split-K. The order of
 * the additions depends on the schedule alone, so equal calls give equal bits.
 *
 *   split-K    The CTAs of a cluster have a range of K each. A CTA keeps some groups of 8 columns of the tile. It sends
 *              the other columns with st.async to the CTAs that keep them, in wgmma's register layout, and adds what it
 *              receives to its own sums, in the order of the split indices.
 *   stream-K   Workers store partial tiles in the workspace (sm90/schedule.cuh). Each warp of a worker then adds 1 to
 *              the worker's flag, a counter of MATH_WARPS arrivals. The cluster that owns the tile waits for the flags
 *              of the tile's workers, loads the partial tiles with bulk copies into free pipeline stages, and adds them
 *              in the order of K (fix-up). */
#ifndef NVFP4_SM90_REDUCE_CUH
#define NVFP4_SM90_REDUCE_CUH

#include "kernels/common/cluster.cuh"
#include "kernels/common/flags.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/shared.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/sm90/schedule.cuh"

/* Accumulators of a lane: [wgmma][group of 8 columns * 4 + (row / 8) * 2 + column % 2]. */
template <class C> using accumulators = float[C::WGMMAS_M][C::MMA_TILE_N / 2];

/* The groups of 8 columns of a tile that one of `splits` CTAs keeps. */
template <class C> struct kept_columns {
    int splits, split_idx;
    uint32_t inv_splits; /* ceil(2^31 / splits) */
    int begin, end;

    __device__ __forceinline__ kept_columns(int splits, int split_idx, uint32_t inv_splits)
        : splits(splits), split_idx(split_idx), inv_splits(inv_splits),
          begin(divide(split_idx * C::COLUMN_GROUPS, inv_splits)),
          end(divide((split_idx + 1) * C::COLUMN_GROUPS, inv_splits)) {}
    __device__ __forceinline__ bool have(int group) const { return group >= begin && group < end; }
    __device__ __forceinline__ kept_columns of(int other) const { return {splits, other, inv_splits}; }
};

/* Calls `function` with the columns that this CTA keeps. For 1 and 2 splits they are compile-time constants: the loops
 * over groups unroll without branches, and their latencies overlap. */
template <class C, class S, class CTA, class F>
__device__ __forceinline__ void with_kept_columns(const S &s, const CTA &cta, F function) {
    if constexpr (C::COLUMN_GROUPS >= 4) {
        if (s.split_k == 1) return function(kept_columns<C>(1, 0, 1u << 31));
        if (s.split_k == 2 && cta.split_idx == 0) return function(kept_columns<C>(2, 0, 1u << 30));
        if (s.split_k == 2) return function(kept_columns<C>(2, 1, 1u << 30));
    }
    function(kept_columns<C>(s.split_k, cta.split_idx, s.inv_split_k));
}

/* The receive buffer of split-K partials: [sender, without the receiver][group of columns, of those
 * kept][wgmma][warp][lane] 16 bytes. */
template <class C> struct partials_layout {
    /* Bytes from one to the next. */
    static constexpr int WGMMA_BYTES = C::MATH_WARPS * 512, GROUP_BYTES = C::WGMMAS_M * WGMMA_BYTES;
    int sender_bytes;

    __device__ __forceinline__ partials_layout(const kept_columns<C> &kept)
        : sender_bytes(divide(C::COLUMN_GROUPS + kept.splits - 1, kept.inv_splits) * GROUP_BYTES) {}
    __device__ __forceinline__ int first(int from, int to) const {
        return (from < to ? from : from - 1) * sender_bytes + threadIdx.x * 16;
    }
};

__device__ __forceinline__ void add_shared(float *to, uint32_t from) {
    float add[4];
    ld_shared_v4_f32(from, add);
#pragma unroll
    for (int r = 0; r < 4; r++) to[r] += add[r];
}

/* Sends each other CTA the partial sums of the columns that the receiver keeps, the next CTA first, so that not all
 * send to the same. */
template <class C, class CTA>
__device__ __forceinline__ void send_partials(const CTA &cta, const kept_columns<C> &kept, const accumulators<C> &acc) {
    partials_layout<C> layout(kept);
#pragma unroll 1
    for (int offset = 1; offset < kept.splits; offset++) {
        int to = kept.split_idx + offset;
        if (to >= kept.splits) to -= kept.splits;
        kept_columns<C> theirs = kept.of(to);
        uint32_t partials =
            mapa(cta.partials, to) + layout.first(kept.split_idx, to) - theirs.begin * layout.GROUP_BYTES;
        uint32_t full = mapa(cta.partials_full(), to);
#pragma unroll
        for (int group = 0; group < C::COLUMN_GROUPS; group++)
            if (theirs.have(group))
#pragma unroll
                for (int i = 0; i < C::WGMMAS_M; i++) {
                    const float *v = acc[i] + 4 * group;
                    st_async(partials + group * layout.GROUP_BYTES + i * layout.WGMMA_BYTES, full, v[0], v[1], v[2],
                             v[3]);
                }
    }
}

/* Adds the partial sums of the other CTAs to the CTA's own, in the order of the split indices. So its own come first,
 * after the fix-up if there is one. */
template <class C, class CTA>
__device__ __forceinline__ void add_partials(const CTA &cta, const kept_columns<C> &kept, accumulators<C> &acc) {
    partials_layout<C> layout(kept);
#pragma unroll 1
    for (int from = 0; from < kept.splits; from++) {
        if (from == kept.split_idx) continue;
        uint32_t partials = cta.partials + layout.first(from, kept.split_idx) - kept.begin * layout.GROUP_BYTES;
#pragma unroll
        for (int group = 0; group < C::COLUMN_GROUPS; group++)
            if (kept.have(group))
#pragma unroll
                for (int i = 0; i < C::WGMMAS_M; i++)
                    add_shared(acc[i] + 4 * group, partials + group * layout.GROUP_BYTES + i * layout.WGMMA_BYTES);
    }
}

/* A partial tile in the workspace: [group of 8 columns][wgmma][warp][lane] 16 bytes. It is loaded into pipeline stages
 * after the last stage of the mainloop, up to CHUNK groups a stage. */
template <class C> struct partial_tile_layout {
    static constexpr int WGMMA_BYTES = C::MATH_WARPS * 512, GROUP_BYTES = C::WGMMAS_M * WGMMA_BYTES;
    static constexpr int CHUNK = C::COLUMN_GROUPS > 1 ? C::COLUMN_GROUPS / 2 : 1;
    static_assert(CHUNK * GROUP_BYTES <= C::STAGE_BYTES, "a stage takes it");
    static_assert(C::COLUMN_GROUPS * GROUP_BYTES == C::PARTIAL_TILE_BYTES, "the workspace takes it");
};

/* A worker stores its accumulators in the workspace. */
template <class C>
__device__ __forceinline__ void store_partial_tile(const streamk_scheduler<C> &scheduler, const accumulators<C> &acc) {
    using layout = partial_tile_layout<C>;
    uint8_t *to = scheduler.partial_tile(scheduler.worker) + threadIdx.x * 16;
#pragma unroll
    for (int group = 0; group < C::COLUMN_GROUPS; group++)
#pragma unroll
        for (int i = 0; i < C::WGMMAS_M; i++) {
            const float *v = acc[i] + 4 * group;
            *(float4 *)(to + group * layout::GROUP_BYTES + i * layout::WGMMA_BYTES) =
                make_float4(v[0], v[1], v[2], v[3]);
        }
}

/* The producer thread loads the partial tiles of this tile, of the columns that the CTA keeps. */
template <class C>
__device__ __forceinline__ void load_partial_tiles(const cta_context<C> &cta, const streamk_scheduler<C> &scheduler,
                                                   pipeline_state<C::STAGES> &state) {
    using layout = partial_tile_layout<C>;
    kept_columns<C> kept(scheduler.s.split_k, cta.split_idx, scheduler.s.inv_split_k);
    int32_t worker = scheduler.first_worker(), end = worker + scheduler.workers();
#pragma unroll 1
    for (; worker < end; worker++) {
        const uint8_t *from = scheduler.partial_tile(worker);
        flag_wait(scheduler.s.fixup_flags + worker, C::MATH_WARPS);
#pragma unroll 1
        for (int begin = kept.begin; begin < kept.end; begin += layout::CHUNK, state.advance()) {
            uint32_t bytes = min(layout::CHUNK, kept.end - begin) * layout::GROUP_BYTES;
            mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
            mbarrier_arrive_expect_tx(cta.full(state.index), bytes);
            cp_async_bulk(cta.stage(state.index), from + begin * layout::GROUP_BYTES, bytes, cta.full(state.index),
                          scheduler.s.mma_b.cache_policy);
        }
    }
}

/* Fix-up: adds the partial tiles. `state` by value: this is the CTA's last tile. */
template <class C>
__device__ __forceinline__ void add_partial_tiles(const cta_context<C> &cta, const streamk_scheduler<C> &scheduler,
                                                  pipeline_state<C::STAGES> state, const kept_columns<C> &kept,
                                                  accumulators<C> &acc) {
    using layout = partial_tile_layout<C>;
#pragma unroll 1
    for (int count = scheduler.workers(); count > 0; count--)
#pragma unroll
        for (int chunk = 0; chunk < C::COLUMN_GROUPS; chunk += layout::CHUNK) {
            int begin = kept.begin + chunk, end = min(begin + layout::CHUNK, kept.end);
            if (begin >= kept.end) continue;
            uint32_t from = cta.stage(state.index) + threadIdx.x * 16 - begin * layout::GROUP_BYTES;
            mbarrier_wait(cta.full(state.index), state.phase);
#pragma unroll
            for (int group = 0; group < C::COLUMN_GROUPS; group++)
                if (group >= begin && group < end)
#pragma unroll
                    for (int i = 0; i < C::WGMMAS_M; i++)
                        add_shared(acc[i] + 4 * group, from + group * layout::GROUP_BYTES + i * layout::WGMMA_BYTES);
            mbarrier_arrive(cta.empty(state.index));
            state.advance();
        }
}

#endif
