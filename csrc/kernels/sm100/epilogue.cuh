/* The epilogue warps of sm100/gemm.cu: from accumulators in tensor memory to C, with the split-K reduction. */
#ifndef NVFP4_SM100_EPILOGUE_CUH
#define NVFP4_SM100_EPILOGUE_CUH

#include "kernels/common/cluster.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/tcgen05.cuh"
#include "kernels/sm100/column_pairs.cuh"
#include "kernels/sm100/dump.cuh"
#include "kernels/sm100/schedule.cuh"

/* Stores one lane of the accumulator, row m of mma_a: a row of the output, or a column of it with swap_ab. alpha,
 * beta*C, bias and rounding are in common/epilogue.cuh. */
template <class C> struct output {
    const gemm_problem &p;
    bool swap_ab, column_pairs;
    bool plain; /* no c, no bias, and one alpha for all elements of the lane */
    bool exists;
    int64_t l, m;
    one_column_epilogue column;

    __device__ __forceinline__ output(const gemm_problem &p, const sm100_schedule &s, int64_t l, int64_t m)
        : p(p), swap_ab(s.swap_ab), column_pairs(s.column_pairs),
          plain(!p.c && !p.bias && (swap_ab || !p.alpha || p.alpha_stride == 0)), exists(m < s.mma_a.rows), l(l), m(m),
          column(p, s.swap_ab ? min(m, (int64_t)s.mma_a.rows - 1) : 0) {}

    /* v: accumulator columns of rows n, n + 1, ... of mma_b, of which `count` exist. All lanes of a warp. */
    template <bool PLAIN, int COUNT>
    __device__ __forceinline__ void store(int64_t n, float (&v)[COUNT], int count) const {
        if (!C::CP_ASYNC && column_pairs) {
            column.template apply<PLAIN>(p, l, n, v, exists ? count : 0, column.n * type_bytes(p.out_type));
            char *to = (char *)p.out + l * p.out_batch + n * p.out_pitch + m * 2;
            if (p.out_type == NVFP4_FP16)
                store_column_pairs<NVFP4_FP16>(v, to, p.out_pitch, exists, count);
            else
                store_column_pairs<NVFP4_BF16>(v, to, p.out_pitch, exists, count);
            return;
        }
        if (!exists) return;
        if (swap_ab)
            column.template store<PLAIN>(p, l, n, v, count);
        else
            store_row<PLAIN>(p, l, m, n, v, count);
    }
};

/* Split-K reduction of one lane: this CTA keeps `count` columns from split_idx * count on. splits is 0 for K = 0. */
struct split_k_reduction {
    int count, split_idx, splits;
    const float4 *partials;

    /* Adds the partial sums of columns `first`... in the order of split_idx, so that equal inputs give equal bits. v is
     * this CTA's own partial sum. */
    template <int COUNT> __device__ __forceinline__ void add(float (&v)[COUNT], int first) const {
        const float4 *partial = partials + first / 4 * SM100_CTA_ROWS;
        float sum[COUNT] = {};
#pragma unroll 1
        for (int i = 0; i < splits; i++) {
            if (i == split_idx) {
#pragma unroll
                for (int j = 0; j < COUNT; j++) sum[j] += v[j];
                continue;
            }
#pragma unroll
            for (int j = 0; j < COUNT; j += 4)
                if (first + j < count) {
                    float4 sent = partial[j / 4 * SM100_CTA_ROWS];
                    sum[j] += sent.x, sum[j + 1] += sent.y, sum[j + 2] += sent.z, sum[j + 3] += sent.w;
                }
            partial += count / 4 * SM100_CTA_ROWS;
        }
#pragma unroll
        for (int j = 0; j < COUNT; j++) v[j] = sum[j];
    }
};

/* Stores `columns` columns of an accumulator, COUNT at a time, for the rows n... of mma_b. The tcgen05.ld of a chunk
 * overlaps the stores of the one before. */
template <bool PLAIN, int COUNT, class C>
__device__ __forceinline__ void store_accumulator(const output<C> &out, uint32_t accumulator,
                                                  const split_k_reduction &reduction, int32_t n, int columns) {
    float v[COUNT] = {}, next[COUNT] = {}; /* K = 0 stores zeros */
    if (reduction.splits) {
        tcgen05_ld(v, accumulator);
        tcgen05_wait_ld(v);
    }
#pragma unroll 1
    for (int chunk = 0; chunk < columns; chunk += COUNT) {
        bool more = reduction.splits && chunk + COUNT < columns;
        if (more) tcgen05_ld(next, accumulator + chunk + COUNT);
        if (reduction.splits > 1) reduction.add(v, chunk);
        out.template store<PLAIN>(n + chunk, v, columns - chunk);
        if (more) tcgen05_wait_ld(next);
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] = next[i];
    }
}

/* Epilogue warps with split-K: sends the partial sums of columns that other CTAs keep, beginning with the next split
 * index, so that the CTAs of a cluster do not all send to the same one. */
template <class C> __device__ __forceinline__ void send_partials(const cta_context<C> &cta, uint32_t lanes, int kept) {
    static_assert((C::MMA_TILE_N & (C::MMA_TILE_N - 1)) == 0, "columns wrap by a mask");
    int shift = __ffs(kept) - 1;
    int start = ((int)cta.split_idx + 1) * kept & -C::CHUNK;
#pragma unroll 1
    for (int done = 0; done < C::MMA_TILE_N; done += C::CHUNK) {
        int chunk = (start + done) & (C::MMA_TILE_N - 1);
        if (kept >= C::CHUNK && chunk >> shift == cta.split_idx) continue;
        float v[C::CHUNK];
        tcgen05_ld(v, lanes + chunk);
        tcgen05_wait_ld(v);
#pragma unroll
        for (int i = 0; i < C::CHUNK; i += 4) {
            uint32_t column = (chunk + i) & (kept - 1), receiver = (chunk + i) >> shift;
            if (receiver == cta.split_idx) continue;
            uint32_t from = cta.split_idx < receiver ? cta.split_idx : cta.split_idx - 1; /* index among the senders */
            uint32_t to = cta.partials + ((from * kept + column) * SM100_CTA_ROWS + threadIdx.x * 4) * 4;
            uint32_t rank = cta.leader(receiver) + cta.rank;
            st_async(mapa(to, rank), mapa(cta.partials_full(), rank), v[i], v[i + 1], v[i + 2], v[i + 3]);
        }
    }
}

/* Columns of an accumulator in registers, so that the mma may overwrite it while they are stored. */
struct drained_columns {
    enum { COLUMNS = SM100_DRAINED_COLUMNS, CHUNK = SM100_DRAINED_CHUNK, CHUNKS = COLUMNS / CHUNK };
    float v[CHUNKS][CHUNK];

    __device__ __forceinline__ explicit drained_columns(uint32_t accumulator) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) tcgen05_ld(v[i], accumulator + i * CHUNK);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) tcgen05_wait_ld(v[i]);
    }

    /* The chunks move up: an unrolled loop would be CHUNKS times as long. */
    template <class C> __device__ __forceinline__ void store(const output<C> &out, int32_t n, int columns) {
#pragma unroll 1
        for (int chunk = 0; chunk < columns; chunk += CHUNK) {
            out.template store<true>(n + chunk, v[0], columns - chunk);
#pragma unroll
            for (int i = 1; i < CHUNKS; i++)
#pragma unroll
                for (int j = 0; j < CHUNK; j++) v[i - 1][j] = v[i][j];
        }
    }
};

/* The epilogue: warp w reads tensor memory lanes 32 (w % 4) to 32 (w % 4) + 31. Of two groups the second, warps 6-9,
 * has the upper half of the columns, none with split-K. */
template <class C>
__device__ __forceinline__ void epilogue(const gemm_problem &p, const sm100_schedule &s, const cta_context<C> &cta,
                                         tile_scheduler<C> scheduler, uint32_t tmem, const float4 *partials) {
    const int lane = threadIdx.x % SM100_CTA_ROWS;
    const bool second = C::EPILOGUE_GROUPS == 2 && threadIdx.x >= SM100_CTA_ROWS;
    const int group_columns = C::EPILOGUE_GROUPS == 1 || s.split_k > 1 ? cta.kept_columns : C::MMA_TILE_N / 2;
    if (second && s.split_k > 1) return;
    split_k_reduction reduction{cta.kept_columns, (int)cta.split_idx, s.k_stages ? s.split_k : 0, partials + lane};
    uint32_t lanes = tmem + (threadIdx.x / 32 % 4 << 21);
    pipeline_state<C::ACCUMULATORS> acc;
    dumper<C> dump(s, cta);
    dump.begin(s);
    for (; scheduler.more(); scheduler.advance(), acc.advance()) {
        dump.tile(scheduler, acc.index, tmem);
        output<C> out(p, s, scheduler.coord.l, scheduler.coord.mma_m + lane);
        const int first = second ? group_columns : reduction.split_idx * reduction.count;
        uint32_t accumulator = lanes + acc.index * C::MMA_TILE_N + first;
        int32_t n = scheduler.coord.mma_n + first;
        int columns = min(group_columns, s.mma_b.rows - n);
        if (reduction.splits) {
            mbarrier_wait(cta.acc_full(acc.index), acc.phase);
            tcgen05_fence_after_thread_sync();
        }
        if (reduction.splits > 1) {
            /* Until every CTA is done with its stages. Relaxed: what was on them, TMA writes and reads by the tensor
             * core, has completed by acc_full's commit, and receivers see the sums by complete_tx. */
            if (s.partials_in_stages) {
                barrier_cluster_arrive_relaxed();
                barrier_cluster_wait();
            }
            send_partials(cta, lanes, reduction.count);
            mbarrier_wait_cluster(cta.partials_full(), 0);
        }
        /* Arrives only if the mma warp reuses this accumulator: an arrival that nobody waits for could reach a leader
         * CTA that has exited. */
        auto release = [&] {
            tcgen05_fence_before_thread_sync();
            __syncwarp();
            if (threadIdx.x % 32 == 0 && scheduler.reaches(C::ACCUMULATORS))
                mbarrier_arrive_relaxed(cta.of_leader(cta.acc_empty(acc.index)));
        };
        if constexpr (C::EPILOGUE_GROUPS == 2) {
            if (out.plain && reduction.splits == 1) {
                const int at_once = C::MMA_TILE_N / 2 - drained_columns::COLUMNS;
                store_accumulator<true, drained_columns::CHUNK>(out, accumulator, reduction, n, min(columns, at_once));
                drained_columns drained(accumulator + at_once);
                release();
                drained.store(out, n + at_once, columns - at_once);
                continue;
            }
        }
        if (out.plain)
            store_accumulator<true, C::CHUNK>(out, accumulator, reduction, n, columns);
        else
            store_accumulator<false, 8>(out, accumulator, reduction, n, columns);
        release();
    }
}

#endif
