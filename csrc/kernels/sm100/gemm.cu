/* C = epilogue(A . B^T) of NVFP4 operands by tcgen05.mma kind::mxf4nvf4 (Blackwell). The tensor core takes the e2m1
 * values and the ue4m3 scales as they lie in global memory; nothing is dequantized.
 *
 * mma_a, mma_b: config.h. Rows of mma_b are columns of the accumulator. With swap_ab the operand with more rows is
 * loaded once. With CTA_GROUP = 2 two CTAs issue one mma; each loads its 128 rows of mma_a and half of mma_b, 3/4 of
 * the bytes that two single CTAs load.
 *
 *   warp  role                       threads  waits for     work                                    arrives on
 *   0-3   epilogue (256x256: 6-9     128      acc_full[i]   tcgen05.ld, common/epilogue.cuh, store  acc_empty[i]
 *         too, columns from 128 on)
 *   4     TMA producer               1        empty[stage]  TMA loads of scales, then values        scales_full, full
 *   5     mma                        1        scales_full   tcgen05.cp of scales
 *                                             full[stage]   tcgen05.mma                             empty[stage]
 *                                             acc_empty[i]  (once a tile)                           acc_full[i]
 *   6-9   cp.async producer          128      empty[stage]  cp.async of scales, of values that      full[stage]
 *         (_cp_async kernels only)                          no tensor map describes
 *
 *   producer   load 0 | load 1 | ... | load STAGES - 1 | wait empty[0], load STAGES | ...
 *   mma                 cp, mma 0 | cp, mma 1 | ...                       acc_full |  next tile (ACCUMULATORS = 2)
 *   epilogue                                                                       |  ld, store | acc_empty
 *
 * The mma warp allocates tensor memory while the first loads run. With constant_b the caller's B is loaded into the
 * free stages ahead of griddepcontrol.wait. cp.async kernels ignore that and count scales on full.
 *
 * In a pair full, scales_full and acc_empty of the leader, the CTA of even rank, count arrivals for both CTAs. Only the
 * leader's mma warp issues, and its commits arrive in both CTAs.
 *
 * With MULTICAST = 2 two pairs, whose tiles differ in mma_b only, are in one cluster. Each CTA loads 64 rows of mma_a
 * into its own stage and that of the same rank in the other pair, once empty has both pairs' commits.
 *
 * Shared memory of a CTA (docs/kernels has each kernel's; with <= 113 KiB and <= 256 TMEM columns it shares an SM
 * with a CTA of the next call):
 *
 *   stage     mma_a values 16384 | mma_b values 128 a row | mma_a scales 2048 | mma_b scales 2048 (256x256: 4096)
 *   CTA       stages | full | empty | acc_full | acc_empty | partials_full | scales_full | TMEM address
 *             | partial sums (split-K)
 *
 * Tensor memory: accumulators of MMA_TILE_N columns, then 32 columns of scales a stage (256x256: 48). Each stage has
 * scale columns of its own because PTX does not order a tcgen05.cp after an earlier tcgen05.mma (9.7.16.6): the cp
 * follows the wait on scales_full[stage], whose loads followed empty[stage]: the mma that read them have completed.
 *
 * Split-K: the split_k CTAs or pairs of a cluster share a tile, each with a range of K stages. Each keeps MMA_TILE_N /
 * split_k columns; the others send it their partial sums by st.async, [sender][4 columns][128 lanes][4] fp32, and it
 * adds them in the order of split_idx. The buffer lies after the barriers, or replaces the stages (partials_in_stages)
 * after a cluster barrier.
 *
 * Edges: rows past the end of a tensor load as zeros (TMA) or keep old bytes (cp.async); their results are not stored.
 * The last stage multiplies only the K blocks of 64 that exist. TMA kernels need K % 64 == 0 and 16-byte alignment; the
 * cp.async kernels take the rest and zero the scales past K, so any value bytes there multiply to zero. */
#include "kernels/common/cluster.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/placement.cuh"
#include "kernels/common/tcgen05.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/sm100/cp_async_producer.cuh"
#include "kernels/sm100/dump.cuh"
#include "kernels/sm100/epilogue.cuh"
#include "kernels/sm100/schedule.cuh"

/* The TMA producer, one thread. In _cp_async kernels it loads values only, and only if tensor maps describe them. */
template <class C> struct tma_producer {
    const sm100_schedule &s;
    const cta_context<C> &cta;
    tile_scheduler<C> scheduler;
    int32_t constant; /* SM100_CONSTANT_* */

    /* Stages of the first tile whose constant operand is loaded ahead of griddepcontrol.wait. */
    __device__ __forceinline__ int32_t preloaded_stages() const {
        return !C::CP_ASYNC && constant && scheduler.more() ? min(C::STAGES, cta.k_end - cta.k_begin) : 0;
    }

    /* For both operands. In a pair the leader expects the bytes of both CTAs; a box counts whole, bytes out of bounds
     * too. */
    __device__ __forceinline__ void expect(int32_t k, uint32_t index) const {
        constexpr int VALUES = C::MMA_SFA_OFFSET, SCALES = C::STAGE_BYTES - VALUES;
        if constexpr (C::CP_ASYNC) {
            mbarrier_arrive_expect_tx(cta.full(index), s.values_by_tma ? VALUES : 0);
        } else if (cta.rank == 0) {
            int scales = C::CTA_GROUP == 2 ? 2 * SCALES : 2 * cta.blocks(k) * SM100_ATOM_BYTES;
            mbarrier_arrive_expect_tx(cta.scales_full(index), scales);
            mbarrier_arrive_expect_tx(cta.full(index), C::CTA_GROUP * VALUES);
        }
    }

    template <bool MMA_A> __device__ __forceinline__ void scales(int32_t k, uint32_t index) const {
        const mma_operand &operand = MMA_A ? s.mma_a : s.mma_b;
        const tile_coord &coord = scheduler.coord;
        int32_t block = (MMA_A ? coord.mma_m : coord.mma_n) / SM100_ATOM_ROWS, l = coord.l;
        uint32_t to = cta.stage(index) + (MMA_A ? C::MMA_SFA_OFFSET : C::MMA_SFB_OFFSET), own = cta.scales_full(index);
        if constexpr (C::CTA_GROUP == 2) /* cp.async.bulk cannot signal the leader's mbarrier */
            tma_load_4d_2sm(to, MMA_A ? &s.mma_a_scales : &s.mma_b_scales, 0, k * SM100_STAGE_ATOMS, block, l,
                            cta.of_leader(own), operand.cache_policy);
        else if constexpr (!C::CP_ASYNC)
            cp_async_bulk(to,
                          operand.scale + l * operand.scale_batch + block * operand.scale_pitch +
                              (int64_t)k * SM100_MMA_SFA_BYTES,
                          cta.blocks(k) * SM100_ATOM_BYTES, own, operand.cache_policy);
    }

    template <bool MMA_A> __device__ __forceinline__ void values(int32_t k, uint32_t index) const {
        const mma_operand &operand = MMA_A ? s.mma_a : s.mma_b;
        const tile_coord &coord = scheduler.coord;
        int32_t row = MMA_A ? coord.mma_m : coord.mma_n + (int32_t)cta.rank * C::MMA_B_ROWS;
        uint32_t to = cta.stage(index) + (MMA_A ? 0 : C::MMA_B_OFFSET), full = cta.of_leader(cta.full(index));
        if constexpr (MMA_A && C::MULTICAST == 2) {
            int32_t half = (int32_t)cta.sharer * (SM100_CTA_ROWS / 2);
            uint16_t ctas = (uint16_t)(5u << cta.split_idx * C::SPLIT_CTAS + cta.rank); /* this rank of both pairs */
            tma_load_3d_2sm_multicast(to + half * (SM100_STAGE_K / 2), &operand.values, k * (SM100_STAGE_K / 2),
                                      row + half, coord.l, full, ctas, operand.cache_policy);
        } else if (!C::CP_ASYNC || s.values_by_tma)
            tma_load_3d<C::CTA_GROUP>(to, &operand.values, k * (SM100_STAGE_K / 2), row, coord.l, full,
                                      operand.cache_policy);
    }

    /* Scales first: tcgen05.cp of them does not wait for values. */
    __device__ __forceinline__ void load(int32_t k, uint32_t index, bool mma_a, bool mma_b) const {
        if (mma_a) scales<true>(k, index);
        if (mma_b) scales<false>(k, index);
        if (mma_a) values<true>(k, index);
        if (mma_b) values<false>(k, index);
    }

    /* Ahead of griddepcontrol.wait. */
    __device__ __forceinline__ void preload() const {
        int32_t stages = preloaded_stages();
#pragma unroll 1
        for (int32_t i = 0; i < stages; i++) {
            expect(cta.k_begin + i, i);
            load(cta.k_begin + i, i, constant == SM100_CONSTANT_MMA_A, constant == SM100_CONSTANT_MMA_B);
        }
    }

    __device__ __forceinline__ void run() {
        pipeline_state<C::STAGES> state;
        int32_t preloaded = preloaded_stages();
        for (; scheduler.more(); scheduler.advance()) {
#pragma unroll 1 /* unrolling puts address arithmetic ahead of the first load */
            for (int32_t k = cta.k_begin; k < cta.k_end; k++, state.advance()) {
                bool both = preloaded == 0;
                if (both) {
                    mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
                    expect(k, state.index);
                } else {
                    preloaded--;
                }
                load(k, state.index, both || constant != SM100_CONSTANT_MMA_A,
                     both || constant != SM100_CONSTANT_MMA_B);
            }
        }
        /* The last commits arrive on empty in this CTA's shared memory, which must still be allocated. */
        for (int i = 0; i < C::STAGES; i++, state.advance()) mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
    }
};

/* The tcgen05.cp and tcgen05.mma of one stage, issued by one thread. */
template <class C> struct stage_mma {
    uint32_t stage;  /* shared address */
    uint32_t d, sfa; /* tensor memory addresses; mma_b scales lie behind those of mma_a */
    uint32_t half;   /* MMA_TILE_N = 64 uses half of a 128-row atom: columns 0-1 or 2-3 */

    /* Copies the scales, waits for the values and multiplies; returns whether the next stage's scales have arrived.
     * add: the first mma accumulates onto d. ALL: a whole stage, issued without branches. */
    template <bool ALL>
    __device__ __forceinline__ bool issue(const cta_context<C> &cta, const pipeline_state<C::STAGES> &state, int blocks,
                                          bool add, dumper<C> &dump) {
        uint32_t sfb = sfa + 4 * SM100_STAGE_ATOMS;
        uint64_t sfa_atoms = smem_descriptor_atom(stage) + C::MMA_SFA_OFFSET / 16;
        uint64_t sfb_atoms = sfa_atoms + (C::MMA_SFB_OFFSET - C::MMA_SFA_OFFSET) / 16;
#pragma unroll
        for (int i = 0; i < SM100_STAGE_ATOMS; i++) {
            if (!ALL && i >= blocks) break;
            tcgen05_cp_atom<C::CTA_GROUP>(sfa + 4 * i, sfa_atoms + i * SM100_ATOM_BYTES / 16);
#pragma unroll
            for (int j = 0; j < C::MMA_SFB_ATOMS; j++)
                tcgen05_cp_atom<C::CTA_GROUP>(sfb + 4 * (i * C::MMA_SFB_ATOMS + j),
                                              sfb_atoms + (j * SM100_MMA_SFA_BYTES + i * SM100_ATOM_BYTES) / 16);
        }
        pipeline_state<C::STAGES> next = state;
        next.advance();
        bool ready = mbarrier_test(cta.scales_full(next.index), next.phase);
        if constexpr (!C::CP_ASYNC) {
            mbarrier_wait(cta.full(state.index), state.phase);
            tcgen05_fence_after_thread_sync();
            /* Computed again, in uniform registers, which do not keep their values across a wait. */
            pin(stage), pin(sfa);
        }
        sfb = sfa + 4 * SM100_STAGE_ATOMS;
        uint64_t mma_a = smem_descriptor_sw128(stage), mma_b = mma_a + C::MMA_B_OFFSET / 16;
#pragma unroll
        for (int i = 0; i < SM100_STAGE_ATOMS; i++) {
            if (!ALL && i >= blocks) break;
            mma_operands m{d,
                           mma_a + i * (SM100_MMA_K / 32),
                           mma_b + i * (SM100_MMA_K / 32),
                           instruction_descriptor(C::MMA_TILE_M, C::MMA_TILE_N),
                           sfa + 4 * i,
                           sfb + 4 * i * C::MMA_SFB_ATOMS + half,
                           add || i > 0};
            tcgen05_mma_mxf4nvf4<C::CTA_GROUP>(m.d, m.mma_a, m.mma_b, m.instruction, m.mma_sfa, m.mma_sfb, m.add);
            dump.block(m, sfa_atoms, sfb_atoms);
        }
        return ready;
    }
};

/* The mma warp, one thread; in a pair the leader's. */
template <class C>
__device__ __forceinline__ void mainloop(const cta_context<C> &cta, tile_scheduler<C> scheduler, uint32_t tmem) {
    /* Cluster ranks for multicast commits: of the pair, and of all whose stages this pair's mma_a is loaded into. */
    uint16_t pair = (uint16_t)(3u << cta.leader());
    uint16_t sharers = C::MULTICAST == 1 ? pair : (uint16_t)(15u << cta.split_idx * C::SPLIT_CTAS);
    pipeline_state<C::STAGES> state;
    pipeline_state<C::ACCUMULATORS> acc;
    bool scales_ready = false; /* of the next stage */
    dumper<C> dump(scheduler.s, cta);
    if (cta.k_begin == cta.k_end) return; /* K = 0: the epilogue stores zeros */
    for (; scheduler.more(); scheduler.advance(), acc.advance()) {
        uint32_t half = C::MMA_TILE_N == 64 ? scheduler.coord.mma_n / 64 % 2 * 2 : 0;
        mbarrier_wait(cta.acc_empty(acc.index), acc.phase ^ 1);
        tcgen05_fence_after_thread_sync();
        for (int32_t k = cta.k_begin; k < cta.k_end; k++, state.advance()) {
            if (!scales_ready) mbarrier_wait(cta.scales_full(state.index), state.phase);
            tcgen05_fence_after_thread_sync();
            /* After the wait the compiler knows that one thread runs, and uses uniform registers. */
            stage_mma<C> stage{cta.stage(state.index), tmem + acc.index * C::MMA_TILE_N,
                               tmem + C::SCALES_COLUMN + state.index * C::SCALE_COLUMNS, half};
            int blocks = cta.blocks(k);
            dump.stage(state.index, state.phase);
            if (blocks == SM100_STAGE_ATOMS)
                scales_ready = stage.template issue<true>(cta, state, blocks, k > cta.k_begin, dump);
            else
                scales_ready = stage.template issue<false>(cta, state, blocks, k > cta.k_begin, dump);
            tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), sharers);
        }
        tcgen05_commit<C::CTA_GROUP>(cta.acc_full(acc.index), pair);
    }
}

/* One thread, ahead of griddepcontrol.wait: prefetches the first stages of mma_a into L2, and one stage a CTA of mma_b,
 * which all CTAs read. DRAM is nearly idle while the kernel before it ends. */
template <class C>
__device__ __forceinline__ void prefetch_l2(const sm100_schedule &s, const cta_context<C> &cta,
                                            const tile_coord &coord) {
    int32_t stages = min(s.prefetch_stages, cta.k_end - cta.k_begin);
    if (stages <= 0 || cta.first >= (uint32_t)s.tiles) return;
    const mma_operand &op_a = s.mma_a, &op_b = s.mma_b;
    int32_t sharer = coord.mma_n / C::MMA_TILE_N; /* CTAs that read the same mma_a share its stages out */
    if (coord.mma_m < op_a.rows) {
        int32_t atoms = min(stages * SM100_STAGE_ATOMS, cta.k_blocks - cta.k_begin * SM100_STAGE_ATOMS);
        if (sharer == 0)
            cp_async_bulk_prefetch_l2(op_a.scale + coord.l * op_a.scale_batch +
                                          coord.mma_m / SM100_ATOM_ROWS * op_a.scale_pitch +
                                          (int64_t)cta.k_begin * SM100_MMA_SFA_BYTES,
                                      atoms * SM100_ATOM_BYTES);
        for (int32_t k = cta.k_begin + sharer; k < cta.k_begin + stages; k += s.tiles_mma_n)
            tma_prefetch_l2_3d(&op_a.values, k * (SM100_STAGE_K / 2), coord.mma_m, coord.l);
    }
    int32_t k = cta.k_begin + (int32_t)(cta.first & ((1u << (31 - __clz(cta.k_end - cta.k_begin))) - 1));
    tma_prefetch_l2_3d(&op_b.values, k * (SM100_STAGE_K / 2), coord.mma_n + (int32_t)cta.rank * C::MMA_B_ROWS, coord.l);
    cp_async_bulk_prefetch_l2(op_b.scale + coord.l * op_b.scale_batch +
                                  coord.mma_n / SM100_ATOM_ROWS * op_b.scale_pitch + (int64_t)k * SM100_MMA_SFA_BYTES,
                              cta.blocks(k) * SM100_ATOM_BYTES);
}

/* All threads: initializes barriers and prefetches. Reads no tensor, so it may run while earlier kernels do. */
template <class C>
__device__ __forceinline__ void prologue(const sm100_schedule &s, const cta_context<C> &cta, const tile_coord &first) {
    int warp = threadIdx.x / 32;
    if (warp == PRODUCER_WARP && elect_one()) {
        prefetch_tensormap(&s.mma_a.values);
        prefetch_tensormap(&s.mma_b.values);
        if constexpr (C::CTA_GROUP == 2) {
            prefetch_tensormap(&s.mma_a_scales);
            prefetch_tensormap(&s.mma_b_scales);
        }
        if constexpr (!C::CP_ASYNC && C::MULTICAST == 1) prefetch_l2(s, cta, first);
    }
    if (warp == 0 && elect_one()) {
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(cta.full(i), 1 + (C::CP_ASYNC ? CP_ASYNC_THREADS : 0));
            mbarrier_init(cta.empty(i), C::MULTICAST);
            if (!C::CP_ASYNC) mbarrier_init(cta.scales_full(i), 1);
        }
        for (int i = 0; i < C::ACCUMULATORS; i++) {
            mbarrier_init(cta.acc_full(i), 1);
            mbarrier_init(cta.acc_empty(i), EPILOGUE_WARPS * C::EPILOGUE_GROUPS * C::CTA_GROUP);
        }
        mbarrier_init(cta.partials_full(), 1);
        dumper<C>::init(cta);
        fence_mbarrier_init();
        if (s.split_k > 1)
            mbarrier_arrive_expect_tx(cta.partials_full(), (s.split_k - 1) * cta.kept_columns * SM100_CTA_ROWS * 4);
    }
    __syncwarp();
    /* Orders mbarrier init before arrivals; and a pair allocates together, so both CTAs must have started. */
    if (C::SPLIT_CTAS * s.split_k > 1) {
        barrier_cluster_arrive_relaxed();
        barrier_cluster_wait();
    } else {
        __syncthreads();
    }
}

/* The mma warp: allocates tensor memory, returns its address and gives it to the epilogue warps. In a pair both CTAs
 * get the same columns, when both have asked. */
template <class C> __device__ __forceinline__ uint32_t allocate_tensor_memory(const cta_context<C> &cta) {
    tcgen05_alloc<C::CTA_GROUP, C::COLUMNS>(cta.base + C::TMEM_ADDRESS_OFFSET);
    tcgen05_relinquish_alloc_permit<C::CTA_GROUP>();
    tcgen05_fence_before_thread_sync();
    named_barrier_arrive(TMEM_BARRIER, C::TMEM_BARRIER_THREADS);
    return ld_shared(cta.base + C::TMEM_ADDRESS_OFFSET);
}

/* The epilogue warps. */
template <class C> __device__ __forceinline__ uint32_t tensor_memory(const cta_context<C> &cta) {
    named_barrier_sync(TMEM_BARRIER, C::TMEM_BARRIER_THREADS);
    tcgen05_fence_after_thread_sync();
    return ld_shared(cta.base + C::TMEM_ADDRESS_OFFSET);
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm100_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    cta_context<C> cta(p, s, shared_address(shared));
    if (cta.base % 1024) __trap(); /* the swizzle XORs absolute address bits */
    int warp = threadIdx.x / 32;

    tile_scheduler<C> scheduler(s, cta);
    prologue(s, cta, scheduler.coord);
    uint32_t tmem = 0;
    if (warp == MMA_WARP) tmem = allocate_tensor_memory(cta);
    tma_producer<C> producer{s, cta, scheduler, s.constant_operand};
    if (warp == PRODUCER_WARP && elect_one()) producer.preload();
    __syncwarp();
    griddepcontrol_wait();
    /* After tcgen05.alloc: a CTA of the next kernel could otherwise take these columns and deadlock.
     * After the wait: called earlier, it also admits the kernel after next (0.3 us a call slower on an H200). */
    if (warp == MMA_WARP) griddepcontrol_launch_dependents();

    if (warp == PRODUCER_WARP) {
        if (elect_one()) producer.run();
    } else if (warp == MMA_WARP) {
        if (cta.rank == 0 && elect_one()) mainloop(cta, scheduler, tmem);
    } else if (C::CP_ASYNC && warp >= CP_ASYNC_WARP) {
        if constexpr (C::CP_ASYNC) cp_async_producer<C>(p, s, cta).run(scheduler);
    } else {
        tmem = tensor_memory(cta);
        epilogue(p, s, cta, scheduler, tmem, (const float4 *)(shared + (cta.partials - cta.base)));
    }
    __syncwarp();
    if (s.partials_in_stages && warp >= EPILOGUE_WARPS) { /* the epilogue warps do so before they send */
        barrier_cluster_arrive_relaxed();
        barrier_cluster_wait();
    }

    tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (C::CTA_GROUP == 2) { /* until the other CTA's commits have completed and its accumulators are read */
        barrier_cluster_arrive_relaxed();
        barrier_cluster_wait();
    }
    tcgen05_fence_after_thread_sync();
    if (warp == MMA_WARP) tcgen05_dealloc<C::CTA_GROUP, C::COLUMNS>(tmem);
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::BOUND_THREADS, config<__VA_ARGS__>::CTAS_PER_SM) \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm100_schedule s) {                 \
        RECORD_CTA();                                                                                                  \
        gemm<config<__VA_ARGS__>>(p, s);                                                                               \
    }
SM100_GEMM_CONFIGS(KERNEL)
