/* C = epilogue(A . B^T) of NVFP4 operands by tcgen05.mma kind::mxf4nvf4 (Blackwell). The tensor core takes the e2m1
 * values and the ue4m3 scales as they lie in global memory; nothing is dequantized.
 *
 * mma_a, operand A of the mma, has 128 rows a CTA; mma_b, operand B, has MMA_TILE_N rows, which are the columns of the
 * accumulator. With swap_ab mma_a is the caller's B: the operand with more rows is then loaded once. With CTA_GROUP = 2
 * two CTAs issue one mma of 256 x MMA_TILE_N; each loads its 128 rows of mma_a and half of mma_b, 3/4 of the bytes
 * that two single CTAs load.
 *
 *   warp  role                       threads  waits for     work                                    arrives on
 *   0-3   epilogue                   128      acc_full[i]   tcgen05.ld, common/epilogue.cuh, store  acc_empty[i]
 *   4     TMA producer               1        empty[stage]  TMA loads of values and scales          full[stage]
 *   5     mma                        1        full[stage]   tcgen05.cp of scales, tcgen05.mma       empty[stage]
 *                                             acc_empty[i]  (once a tile)                           acc_full[i]
 *   6-9   cp.async producer          128      empty[stage]  cp.async of scales, of values that      full[stage]
 *         (_cp_async kernels only)                          no tensor map describes
 *
 *   producer   load 0 | load 1 | ... | load STAGES - 1 | wait empty[0], load STAGES | ...
 *   mma                 cp, mma 0 | cp, mma 1 | ...                       acc_full |  next tile (ACCUMULATORS = 2)
 *   epilogue                                                                       |  ld, store | acc_empty
 *
 * In a pair full and acc_empty of the leader, the CTA of even rank, count arrivals for both CTAs. Only the leader's mma
 * warp issues, and its commits arrive in both CTAs.
 *
 * Shared memory of a CTA, then the residency that follows from it (kernels of <= 113 KiB and <= 256 TMEM columns share
 * an SM with a CTA of the next call, which runs its prologue early by programmatic dependent launch):
 *
 *   stage     mma_a values 16384 | mma_b values 128 a row | mma_a scales 2048 | mma_b scales 2048 (256x256: 4096)
 *   CTA       stages | full | empty | acc_full | acc_empty | partials_full | TMEM address | partial sums (split-K)
 *
 *   kernel         128x16  128x32  128x64  128x128  256x64  256x128  256x128_deep  256x256
 *   stages              4       4       4        6       4        4             8        5
 *   stages, KiB        88      96     112      216      96      112           224      190
 *   TMEM columns      144     160     192      448     192      256           512      496
 *   allocated         256     256     256      512     256      256           512      512
 *
 * Tensor memory: accumulators of MMA_TILE_N columns, then 32 columns of scales a stage (256x256: 48). Each stage has
 * scale columns of its own because PTX does not order a tcgen05.cp after an earlier tcgen05.mma (9.7.16.6): the cp
 * into a stage's columns follows the wait on full[stage], so the mma instructions that read them have completed.
 *
 * Split-K: the split_k CTAs or pairs of a cluster share a tile, each with a range of K stages. Each keeps MMA_TILE_N /
 * split_k columns; the others send it their partial sums by st.async, [sender][4 columns][128 lanes][4] fp32, and it
 * adds them in the order of split_idx. The buffer lies after the barriers, or replaces the stages (partials_in_stages)
 * after a cluster barrier, where a buffer of its own would cost the next call's CTA its residency.
 *
 * Edges: rows past the end of a tensor load as zeros (TMA) or keep old bytes (cp.async); their results are not stored.
 * The last stage multiplies only the K blocks of 64 that exist. TMA kernels need K % 64 == 0 and 16-byte alignment; the
 * cp.async kernels take the rest and zero the scales past K, so any value bytes there multiply to zero. */
#include "kernels/common/cluster.cuh"
#include "kernels/common/cp_async.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/placement.cuh"
#include "kernels/common/tcgen05.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/sm100/config.h"
#include "kernels/sm100/dump.cuh"

enum { EPILOGUE_WARPS = 4, PRODUCER_WARP = 4, MMA_WARP = 5, CP_ASYNC_WARP = 6, CP_ASYNC_THREADS = 128 };
enum { TMEM_BARRIER = 1, TMEM_BARRIER_THREADS = 32 * (EPILOGUE_WARPS + 1) }; /* epilogue warps and mma warp */

template <int CTA_GROUP_, int MMA_TILE_N_, int STAGES_, int ACCUMULATORS_, int CP_ASYNC_> struct config {
    static constexpr int CTA_GROUP = CTA_GROUP_, MMA_TILE_N = MMA_TILE_N_, STAGES = STAGES_;
    static constexpr int ACCUMULATORS = ACCUMULATORS_, THREADS = SM100_THREADS(CP_ASYNC_);
    static constexpr bool CP_ASYNC = CP_ASYNC_;
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
    static constexpr int TMEM_ADDRESS_OFFSET = PARTIALS_FULL_OFFSET + 8;
    static constexpr int PARTIALS_OFFSET = SM100_SHARED_BYTES(CTA_GROUP, MMA_TILE_N, STAGES);
    /* Tensor memory: allocated columns, first scale column, scale columns a stage. */
    static constexpr int COLUMNS = SM100_TMEM_COLUMNS(MMA_TILE_N, STAGES, ACCUMULATORS);
    static constexpr int SCALES_COLUMN = ACCUMULATORS * MMA_TILE_N, SCALE_COLUMNS = SM100_SCALE_COLUMNS(MMA_TILE_N);
    /* A CTA of this call and one of the next. __launch_bounds__ then limits registers for two, as if each had a
     * multiple of 4 warps: PTX 9.7.16.8.1 ties warp w to tensor memory lanes by w % 4, so the SM may tie it to a
     * sub-partition, with a quarter of the registers, where two CTAs of 6 warps have 4 warps. */
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
    static_assert(CHUNK == 16 || CHUNK == 32, "tcgen05_ld loads 16 or 32 columns");
};

/* Which part of the product this CTA computes, and where its barriers are. */
template <class C> struct cta_context {
    uint32_t base;          /* shared address of the stages */
    uint32_t rank;          /* in the pair: 0 is the leader */
    uint32_t split_idx;     /* rank of this CTA or pair among the split_k that share a tile */
    uint32_t first, step;   /* tiles first, first + step, ... */
    int32_t k_begin, k_end; /* K stages [k_begin, k_end) */
    int32_t k_blocks;       /* K blocks of 64 in all of K */
    int32_t kept_columns;   /* of the tile, that this CTA or pair reduces under split-K */
    uint32_t partials;      /* shared address of the received partial sums */

    __device__ __forceinline__ cta_context(const gemm_problem &p, const sm100_schedule &s, uint32_t base) : base(base) {
        uint32_t split_shift = __ffs(s.split_k) - 1, cluster_shift = split_shift + C::CTA_GROUP - 1;
        uint32_t ctarank = cluster_ctarank();
        rank = ctarank % C::CTA_GROUP;
        split_idx = ctarank / C::CTA_GROUP;
        first = blockIdx.x >> cluster_shift;
        step = gridDim.x >> cluster_shift;
        k_begin = (int32_t)((int64_t)split_idx * s.k_stages >> split_shift);
        k_end = (int32_t)((int64_t)(split_idx + 1) * s.k_stages >> split_shift);
        kept_columns = C::MMA_TILE_N >> split_shift;
        k_blocks = (int32_t)((p.k + SM100_MMA_K - 1) / SM100_MMA_K);
        partials = base + (s.partials_in_stages ? 0 : C::PARTIALS_OFFSET);
    }

    __device__ __forceinline__ uint32_t stage(uint32_t index) const { return base + index * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t index) const { return base + C::FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t empty(uint32_t index) const { return base + C::EMPTY_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t partials_full() const { return base + C::PARTIALS_FULL_OFFSET; }
    __device__ __forceinline__ uint32_t acc_full(uint32_t index) const { return base + C::ACC_FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t acc_empty(uint32_t index) const {
        return base + C::ACC_EMPTY_OFFSET + 8 * index;
    }

    /* The leader's barrier of the same offset, as a shared::cluster address. */
    __device__ __forceinline__ uint32_t of_leader(uint32_t barrier) const {
        return C::CTA_GROUP == 1 ? barrier : mapa(barrier, split_idx * C::CTA_GROUP);
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

    /* Of both operands. In a pair the leader expects the bytes of both CTAs; a box counts whole, bytes out of bounds
     * included. */
    __device__ __forceinline__ void expect(int32_t k, uint32_t index) const {
        if constexpr (C::CP_ASYNC)
            mbarrier_arrive_expect_tx(cta.full(index), s.values_by_tma ? C::MMA_SFA_OFFSET : 0);
        else if constexpr (C::CTA_GROUP == 1)
            mbarrier_arrive_expect_tx(cta.full(index), C::MMA_SFA_OFFSET + 2 * cta.blocks(k) * SM100_ATOM_BYTES);
        else if (cta.rank == 0)
            mbarrier_arrive_expect_tx(cta.full(index), 2 * C::STAGE_BYTES);
    }

    /* Values and scales of one operand. */
    template <bool MMA_A> __device__ __forceinline__ void load(int32_t k, uint32_t index) const {
        const sm100_operand &operand = MMA_A ? s.mma_a : s.mma_b;
        const tile_coord &coord = scheduler.coord;
        int32_t first = MMA_A ? coord.mma_m : coord.mma_n, block = first / SM100_ATOM_ROWS;
        int32_t row = MMA_A ? first : first + (int32_t)cta.rank * C::MMA_B_ROWS;
        uint32_t values = cta.stage(index) + (MMA_A ? 0 : C::MMA_B_OFFSET);
        uint32_t scales = cta.stage(index) + (MMA_A ? C::MMA_SFA_OFFSET : C::MMA_SFB_OFFSET);
        uint32_t own = cta.full(index), full = cta.of_leader(own);
        if (!C::CP_ASYNC || s.values_by_tma)
            tma_load_3d<C::CTA_GROUP>(values, &operand.values, k * (SM100_STAGE_K / 2), row, coord.l, full,
                                      operand.cache_policy);
        if constexpr (C::CTA_GROUP == 2) /* cp.async.bulk cannot signal the leader's mbarrier */
            tma_load_4d_2sm(scales, &operand.scales, 0, k * SM100_STAGE_ATOMS, block, coord.l, full,
                            operand.cache_policy);
        else if constexpr (!C::CP_ASYNC)
            cp_async_bulk(scales,
                          operand.scale + coord.l * operand.scale_batch + block * operand.scale_pitch +
                              (int64_t)k * SM100_MMA_SFA_BYTES,
                          cta.blocks(k) * SM100_ATOM_BYTES, own, operand.cache_policy);
    }

    /* Ahead of griddepcontrol.wait, where no earlier grid that may still run writes that operand (constant_b). */
    __device__ __forceinline__ void preload() const {
        int32_t stages = preloaded_stages();
#pragma unroll 1
        for (int32_t i = 0; i < stages; i++) {
            expect(cta.k_begin + i, i);
            if (constant == SM100_CONSTANT_MMA_A)
                load<true>(cta.k_begin + i, i);
            else
                load<false>(cta.k_begin + i, i);
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
                if (both || constant != SM100_CONSTANT_MMA_A) load<true>(k, state.index);
                if (both || constant != SM100_CONSTANT_MMA_B) load<false>(k, state.index);
            }
        }
        /* The last commits arrive on empty in this CTA's shared memory, which must still be allocated. */
        for (int i = 0; i < C::STAGES; i++, state.advance()) mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
    }
};

/* The cp.async producer, warps 6-9: thread r copies the scales of row r of both operands, one word (4 scales) an atom,
 * and 8-byte pieces of the values. */
template <class C> struct cp_async_producer {
    const gemm_problem &p;
    const sm100_schedule &s;
    const cta_context<C> &cta;
    int thread;
    bool linear, words; /* words: every word of scales is 4-byte aligned in global memory */

    __device__ __forceinline__ cp_async_producer(const gemm_problem &p, const sm100_schedule &s,
                                                 const cta_context<C> &cta)
        : p(p), s(s), cta(cta), thread(threadIdx.x - CP_ASYNC_WARP * 32), linear(p.scale_layout == SCALES_LINEAR) {
        uint64_t bits = (uint64_t)s.mma_a.scale | (uint64_t)s.mma_b.scale | s.mma_a.scale_pitch | s.mma_b.scale_pitch;
        words = (bits | s.mma_a.scale_batch | s.mma_b.scale_batch) % 4 == 0;
    }

    /* Scales of one row for each atom of the stage; scales past K become zero. */
    __device__ __forceinline__ void scales(uint32_t to, const sm100_operand &o, int64_t row, int64_t l,
                                           int32_t k_stage) const {
        if (row >= o.rows) return;
        to += thread % 32 * 16 + thread / 32 * 4;
        int64_t atom = (int64_t)k_stage * SM100_STAGE_ATOMS;
        const uint8_t *from =
            o.scale + l * o.scale_batch +
            (linear ? row * o.scale_pitch + atom * 4
                    : row / 128 * o.scale_pitch + atom * SM100_ATOM_BYTES + row % 32 * 16 + row % 128 / 32 * 4);
        int64_t left = p.k / 16 - atom * 4;
        for (int i = 0; i < cta.blocks(k_stage); i++, left -= 4, from += linear ? 4 : SM100_ATOM_BYTES) {
            int valid = (int)min((int64_t)4, left);
            if (words) {
                cp_async_4_zfill(to + i * SM100_ATOM_BYTES, from, valid);
            } else {
                uint32_t word = 0;
                for (int byte = 0; byte < valid; byte++) word |= (uint32_t)from[byte] << byte * 8;
                st_shared(to + i * SM100_ATOM_BYTES, word);
            }
        }
    }

    /* Rows of 128 bytes in the 128-byte swizzle, 16 threads a row. Rows may be aligned to 8 bytes only. */
    template <int ROWS>
    __device__ __forceinline__ void values(uint32_t to, const sm100_operand &o, int32_t row, int64_t l,
                                           int32_t k_stage) const {
        int piece = thread % 16;
        int64_t byte = (int64_t)k_stage * (SM100_STAGE_K / 2) + piece * 8;
        if (byte >= p.k / 2) return;
        const uint8_t *from = o.data + l * o.batch + byte;
        for (int i = thread / 16; i < ROWS && row + i < o.rows; i += CP_ASYNC_THREADS / 16)
            cp_async_8(to + i * 128 + ((piece / 2) ^ (i % 8)) * 16 + piece % 2 * 8, from + (row + i) * o.pitch);
    }

    __device__ __forceinline__ void arrive(uint32_t index) const {
        fence_proxy_async();
        mbarrier_arrive(cta.full(index));
    }

    /* Arrives on full[stage] once STAGES - 2 later stages have been issued, so that their copies overlap; the remaining
     * stages follow after the loop. */
    __device__ __forceinline__ void run(tile_scheduler<C> scheduler) const {
        pipeline_state<C::STAGES> state, arrived;
        int pending = 0;
        for (; scheduler.more(); scheduler.advance()) {
            tile_coord coord = scheduler.coord;
            for (int32_t k = cta.k_begin; k < cta.k_end; k++, state.advance()) {
                uint32_t stage = cta.stage(state.index);
                mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
                scales(stage + C::MMA_SFA_OFFSET, s.mma_a, coord.mma_m + thread, coord.l, k);
                if (thread < C::MMA_TILE_N)
                    scales(stage + C::MMA_SFB_OFFSET, s.mma_b, coord.mma_n + thread, coord.l, k);
                if (!s.values_by_tma) {
                    values<SM100_CTA_ROWS>(stage, s.mma_a, coord.mma_m, coord.l, k);
                    values<C::MMA_TILE_N>(stage + C::MMA_B_OFFSET, s.mma_b, coord.mma_n, coord.l, k);
                }
                cp_async_commit_group();
                if (++pending < C::STAGES - 1) continue;
                cp_async_wait_group<C::STAGES - 2>();
                arrive(arrived.index);
                arrived.advance();
                pending--;
            }
        }
        cp_async_wait_group<0>();
        for (; pending; pending--, arrived.advance()) arrive(arrived.index);
    }
};

/* The tcgen05.cp and tcgen05.mma of one stage, issued by one thread. */
template <class C> struct stage_mma {
    uint64_t mma_a, mma_b, sfa_atoms, sfb_atoms; /* shared memory descriptors of K block 0 */
    uint32_t d, sfa, sfb;                        /* tensor memory addresses */
    uint32_t half;                               /* MMA_TILE_N = 64 uses half of a 128-row atom: columns 0-1 or 2-3 */

    __device__ __forceinline__ stage_mma(uint32_t stage, uint32_t d, uint32_t scales, uint32_t half)
        : mma_a(smem_descriptor_sw128(stage)), mma_b(mma_a + C::MMA_B_OFFSET / 16),
          sfa_atoms(smem_descriptor_atom(stage) + C::MMA_SFA_OFFSET / 16),
          sfb_atoms(sfa_atoms + (C::MMA_SFB_OFFSET - C::MMA_SFA_OFFSET) / 16), d(d), sfa(scales),
          sfb(scales + 4 * SM100_STAGE_ATOMS), half(half) {}

    /* add: the first mma accumulates onto d. ALL: a whole stage, issued without branches. */
    template <bool ALL> __device__ __forceinline__ void issue(int blocks, bool add, dumper<C> &dump) const {
#pragma unroll
        for (int i = 0; i < SM100_STAGE_ATOMS; i++) {
            if (!ALL && i >= blocks) break;
            tcgen05_cp_atom<C::CTA_GROUP>(sfa + 4 * i, sfa_atoms + i * SM100_ATOM_BYTES / 16);
#pragma unroll
            for (int j = 0; j < C::MMA_SFB_ATOMS; j++)
                tcgen05_cp_atom<C::CTA_GROUP>(sfb + 4 * (i * C::MMA_SFB_ATOMS + j),
                                              sfb_atoms + (j * SM100_MMA_SFA_BYTES + i * SM100_ATOM_BYTES) / 16);
        }
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
    }
};

/* The mma warp, one thread; in a pair the leader's. */
template <class C>
__device__ __forceinline__ void mainloop(const cta_context<C> &cta, tile_scheduler<C> scheduler, uint32_t tmem) {
    uint16_t pair = (uint16_t)(3u << cta.split_idx * 2); /* cluster ranks of both CTAs, for the multicast commit */
    pipeline_state<C::STAGES> state;
    pipeline_state<C::ACCUMULATORS> acc;
    dumper<C> dump(scheduler.s, cta);
    if (cta.k_begin == cta.k_end) return; /* K = 0: the epilogue stores zeros */
    for (; scheduler.more(); scheduler.advance(), acc.advance()) {
        uint32_t half = C::MMA_TILE_N == 64 ? scheduler.coord.mma_n / 64 % 2 * 2 : 0;
        mbarrier_wait(cta.acc_empty(acc.index), acc.phase ^ 1);
        tcgen05_fence_after_thread_sync();
        for (int32_t k = cta.k_begin; k < cta.k_end; k++, state.advance()) {
            mbarrier_wait(cta.full(state.index), state.phase);
            tcgen05_fence_after_thread_sync();
            /* After the wait the compiler knows that one thread runs, and uses uniform registers. */
            stage_mma<C> stage(cta.stage(state.index), tmem + acc.index * C::MMA_TILE_N,
                               tmem + C::SCALES_COLUMN + state.index * C::SCALE_COLUMNS, half);
            int blocks = cta.blocks(k);
            dump.stage(state.index, state.phase);
            if (blocks == SM100_STAGE_ATOMS)
                stage.template issue<true>(blocks, k > cta.k_begin, dump);
            else
                stage.template issue<false>(blocks, k > cta.k_begin, dump);
            tcgen05_commit<C::CTA_GROUP>(cta.empty(state.index), pair);
        }
        tcgen05_commit<C::CTA_GROUP>(cta.acc_full(acc.index), pair);
    }
}

/* Stores one lane of the accumulator, row m of mma_a: a row of the output, or a column of it with swap_ab. alpha,
 * beta*C, bias and rounding are in common/epilogue.cuh. */
struct output {
    const gemm_problem &p;
    bool swap_ab, plain; /* plain: no c, no bias, and one alpha for all elements of the lane */
    bool exists;
    int64_t l, m;
    one_column_epilogue column;

    __device__ __forceinline__ output(const gemm_problem &p, const sm100_schedule &s, int64_t l, int64_t m)
        : p(p), swap_ab(s.swap_ab), plain(!p.c && !p.bias && (swap_ab || !p.alpha || p.alpha_stride == 0)),
          exists(m < s.mma_a.rows), l(l), m(m), column(p, s.swap_ab ? min(m, (int64_t)s.mma_a.rows - 1) : 0) {}

    /* v: accumulator columns of rows n, n + 1, ... of mma_b, of which `count` exist. */
    template <bool PLAIN, int COUNT>
    __device__ __forceinline__ void store(int64_t n, float (&v)[COUNT], int count) const {
        if (!exists) return;
        if (swap_ab)
            column.store<PLAIN>(p, l, n, v, count);
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
template <bool PLAIN, int COUNT>
__device__ __forceinline__ void store_accumulator(const output &out, uint32_t accumulator,
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
        out.store<PLAIN>(n + chunk, v, columns - chunk);
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
            uint32_t rank = receiver * C::CTA_GROUP + cta.rank;
            st_async(mapa(to, rank), mapa(cta.partials_full(), rank), v[i], v[i + 1], v[i + 2], v[i + 3]);
        }
    }
}

/* The epilogue, warps 0-3: warp w reads tensor memory lanes 32w to 32w + 31. */
template <class C>
__device__ __forceinline__ void epilogue(const gemm_problem &p, const sm100_schedule &s, const cta_context<C> &cta,
                                         tile_scheduler<C> scheduler, uint32_t tmem, const float4 *partials) {
    split_k_reduction reduction{cta.kept_columns, (int)cta.split_idx, s.k_stages ? s.split_k : 0,
                                partials + threadIdx.x};
    uint32_t lanes = tmem + (threadIdx.x / 32 << 21);
    pipeline_state<C::ACCUMULATORS> acc;
    dumper<C> dump(s, cta);
    dump.begin(s);
    for (; scheduler.more(); scheduler.advance(), acc.advance()) {
        dump.tile(scheduler, acc.index, tmem);
        output out(p, s, scheduler.coord.l, scheduler.coord.mma_m + (int)threadIdx.x);
        uint32_t accumulator = lanes + acc.index * C::MMA_TILE_N + reduction.split_idx * reduction.count;
        int32_t n = scheduler.coord.mma_n + reduction.split_idx * reduction.count;
        int columns = min(reduction.count, s.mma_b.rows - n);
        if (reduction.splits) {
            mbarrier_wait(cta.acc_full(acc.index), acc.phase);
            tcgen05_fence_after_thread_sync();
        }
        if (reduction.splits > 1) {
            if (s.partials_in_stages) { /* until every CTA is done with its stages */
                barrier_cluster_arrive();
                barrier_cluster_wait();
            }
            send_partials(cta, lanes, reduction.count);
            mbarrier_wait_cluster(cta.partials_full(), 0);
        }
        if (out.plain)
            store_accumulator<true, C::CHUNK>(out, accumulator, reduction, n, columns);
        else
            store_accumulator<false, 8>(out, accumulator, reduction, n, columns);
        /* Arrives only if the mma warp reuses this accumulator: an arrival that nobody waits for could reach a leader
         * CTA that has exited. */
        tcgen05_fence_before_thread_sync();
        __syncwarp();
        if (threadIdx.x % 32 == 0 && scheduler.reaches(C::ACCUMULATORS))
            mbarrier_arrive_relaxed(cta.of_leader(cta.acc_empty(acc.index)));
    }
}

/* One thread, ahead of griddepcontrol.wait: prefetches the first stages of mma_a into L2, and one stage a CTA of mma_b,
 * which all CTAs read. DRAM is nearly idle while the previous call ends. */
template <class C>
__device__ __forceinline__ void prefetch_l2(const sm100_schedule &s, const cta_context<C> &cta,
                                            const tile_coord &coord) {
    int32_t stages = min(s.prefetch_stages, cta.k_end - cta.k_begin);
    if (stages <= 0 || cta.first >= (uint32_t)s.tiles) return;
    const sm100_operand &op_a = s.mma_a, &op_b = s.mma_b;
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
    /* One of the stages that a mask reaches, another one in each cluster. */
    int32_t k = cta.k_begin + (int32_t)(cta.first & ((1u << (31 - __clz(cta.k_end - cta.k_begin))) - 1));
    tma_prefetch_l2_3d(&op_b.values, k * (SM100_STAGE_K / 2), coord.mma_n + (int32_t)cta.rank * C::MMA_B_ROWS, coord.l);
    cp_async_bulk_prefetch_l2(op_b.scale + coord.l * op_b.scale_batch +
                                  coord.mma_n / SM100_ATOM_ROWS * op_b.scale_pitch + (int64_t)k * SM100_MMA_SFA_BYTES,
                              cta.blocks(k) * SM100_ATOM_BYTES);
}

/* All threads: initialises barriers and prefetches. Reads no tensor, so it may run before the previous grid has
 * completed. */
template <class C>
__device__ __forceinline__ void prologue(const sm100_schedule &s, const cta_context<C> &cta, const tile_coord &first) {
    int warp = threadIdx.x / 32;
    if (warp == PRODUCER_WARP && elect_one()) {
        prefetch_tensormap(&s.mma_a.values);
        prefetch_tensormap(&s.mma_b.values);
        if constexpr (C::CTA_GROUP == 2) {
            prefetch_tensormap(&s.mma_a.scales);
            prefetch_tensormap(&s.mma_b.scales);
        }
        if constexpr (!C::CP_ASYNC) prefetch_l2(s, cta, first);
    }
    if (warp == 0 && elect_one()) {
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(cta.full(i), 1 + (C::CP_ASYNC ? CP_ASYNC_THREADS : 0));
            mbarrier_init(cta.empty(i), 1);
        }
        for (int i = 0; i < C::ACCUMULATORS; i++) {
            mbarrier_init(cta.acc_full(i), 1);
            mbarrier_init(cta.acc_empty(i), EPILOGUE_WARPS * C::CTA_GROUP);
        }
        mbarrier_init(cta.partials_full(), 1);
        dumper<C>::init(cta);
        fence_mbarrier_init();
        if (s.split_k > 1)
            mbarrier_arrive_expect_tx(cta.partials_full(), (s.split_k - 1) * cta.kept_columns * SM100_CTA_ROWS * 4);
    }
    __syncwarp();
    /* Orders mbarrier init before arrivals; and a pair allocates together, so both CTAs must have started. */
    if (C::CTA_GROUP * s.split_k > 1) {
        barrier_cluster_arrive_relaxed();
        barrier_cluster_wait();
    } else {
        __syncthreads();
    }
}

/* The mma warp: allocates tensor memory, returns its address and gives it to the epilogue warps. No other warp waits,
 * so loads are under way meanwhile. In a pair both CTAs get the same columns, when both have asked for them. */
template <class C> __device__ __forceinline__ uint32_t allocate_tensor_memory(const cta_context<C> &cta) {
    tcgen05_alloc<C::CTA_GROUP, C::COLUMNS>(cta.base + C::TMEM_ADDRESS_OFFSET);
    tcgen05_relinquish_alloc_permit<C::CTA_GROUP>();
    tcgen05_fence_before_thread_sync();
    named_barrier_arrive(TMEM_BARRIER, TMEM_BARRIER_THREADS);
    return ld_shared(cta.base + C::TMEM_ADDRESS_OFFSET);
}

/* The epilogue warps: waits for the allocation and returns its address. */
template <class C> __device__ __forceinline__ uint32_t tensor_memory(const cta_context<C> &cta) {
    named_barrier_sync(TMEM_BARRIER, TMEM_BARRIER_THREADS);
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
    /* After tcgen05.alloc: a CTA of the next grid could otherwise take these columns and deadlock. After the wait: an
     * earlier call also admits the grid after next (0.3 us a call slower on an H200). */
    if (warp == MMA_WARP) griddepcontrol_launch_dependents();

    if (warp == PRODUCER_WARP) {
        if (elect_one()) producer.run();
    } else if (warp == MMA_WARP) {
        if (cta.rank == 0 && elect_one()) mainloop(cta, scheduler, tmem);
    } else if (warp >= CP_ASYNC_WARP) {
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
    if (C::CTA_GROUP == 2) { /* until the other CTA's commits and arrivals have completed */
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
