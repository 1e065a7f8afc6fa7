/* Debug hooks of sm100/gemm.cu. Without NVFP4_DUMP they are empty and the machine code is the same as without them
 * (tests/kernels/test_dump.py). */
#ifndef NVFP4_SM100_DUMP_CUH
#define NVFP4_SM100_DUMP_CUH

#include "kernels/common/mbarrier.cuh"
#include "kernels/common/tcgen05.cuh"
#include "kernels/sm100/config.h"

template <class C> struct cta_context;
template <class C> struct tile_scheduler;

/* The arguments of tcgen05_mma_mxf4nvf4. */
struct mma_operands {
    uint32_t d;
    uint64_t mma_a, mma_b;
    uint32_t instruction, mma_sfa, mma_sfb;
    bool add;
};

#ifdef NVFP4_DUMP
/* One CTA's stage, scale columns and accumulator are written to global memory after the mma of one K block of 64.
 *
 *   mma thread      mma of the chosen K block | record its operands | commit -> ready | wait done  | next K block
 *   epilogue warps                              wait ready          | copy stage, scales, sums     | arrive done
 *
 * In a pair the leader's mma thread does this for either CTA. The stage stays allocated and the instruction order is
 * that of the release kernel. */

/* Loads 4 columns. */
__device__ __forceinline__ void tcgen05_ld(float (&v)[4], uint32_t address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(address));
}

/* On a barrier of any CTA of the cluster, with release: orders this thread's accesses before it. */
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

template <class C> struct dumper {
    const cta_context<C> &cta;
    sm100_dump *to;
    uint32_t dumped;     /* blockIdx.x of the dumped CTA */
    int32_t first, left; /* the chosen K block; K blocks until it, negative: none is chosen, or it is done */
    uint32_t index = 0, phase = 0;

    static constexpr int READY_OFFSET = C::PARTIALS_OFFSET - SM100_DUMP_BYTES, DONE_OFFSET = READY_OFFSET + 8;
    static_assert(C::TMEM_ADDRESS_OFFSET + 4 <= READY_OFFSET, "the barriers fit");
    static_assert(C::STAGE_BYTES <= SM100_DUMP_STAGE_BYTES, "a dump holds a stage");

    __device__ __forceinline__ dumper(const sm100_schedule &s, const cta_context<C> &cta)
        : cta(cta), to(s.dump), dumped((uint32_t)s.dump_cta), first(s.dump_block), left(first) {
        if (!to || dumped / C::CTA_GROUP != blockIdx.x / C::CTA_GROUP) left = -1;
    }

    /* Called by the thread that initializes the kernel's barriers. */
    __device__ __forceinline__ static void init(const cta_context<C> &cta) {
        mbarrier_init(cta.base + READY_OFFSET, 1);
        mbarrier_init(cta.base + DONE_OFFSET, 4); /* warps */
    }

    /* ---- the mma thread */

    __device__ __forceinline__ void stage(uint32_t index_, uint32_t phase_) { index = index_, phase = phase_; }

    /* After the mma of a K block. */
    __device__ __forceinline__ void block(const mma_operands &m, uint64_t sfa_atoms, uint64_t sfb_atoms) {
        if (left < 0 || left-- > 0) return;
        to->stage = index, to->phase = phase;
        to->d = m.d, to->instruction = m.instruction, to->add = m.add;
        to->mma_a = m.mma_a, to->mma_b = m.mma_b, to->mma_sfa = m.mma_sfa, to->mma_sfb = m.mma_sfb;
        to->sfa_atoms = sfa_atoms, to->sfb_atoms = sfb_atoms;
        const uint32_t rank = cta.leader() + dumped % C::CTA_GROUP;
        tcgen05_commit<C::CTA_GROUP>(cta.base + READY_OFFSET, (uint16_t)(1u << rank));
        mbarrier_wait_cluster(cta.base + DONE_OFFSET, 0);
        tcgen05_fence_after_thread_sync();
        to->complete = 1;
    }

    /* ---- the epilogue warps */

    __device__ __forceinline__ int32_t blocks() const {
        return min(cta.k_end * SM100_STAGE_ATOMS, cta.k_blocks) - cta.k_begin * SM100_STAGE_ATOMS;
    }

    __device__ __forceinline__ void begin(const sm100_schedule &s) {
        if (dumped != blockIdx.x || threadIdx.x >= SM100_DUMP_LANES) left = -1; /* of two groups the first dumps */
        if (!to || dumped != blockIdx.x || threadIdx.x) return;
        to->cta_group = C::CTA_GROUP, to->mma_tile_n = C::MMA_TILE_N, to->stages = C::STAGES;
        to->stage_bytes = C::STAGE_BYTES, to->swap_ab = s.swap_ab, to->split_k = s.split_k;
        to->rank = (int32_t)cta.rank, to->split_idx = (int32_t)cta.split_idx;
        to->tiles = cta.first < (uint32_t)s.tiles ? (int32_t)((s.tiles - cta.first + cta.step - 1) / cta.step) : 0;
        to->k_blocks = blocks(), to->first_block = cta.k_begin * SM100_STAGE_ATOMS;
        to->exists = 1;
    }

    /* Before the wait for acc_full. */
    __device__ __forceinline__ void tile(const tile_scheduler<C> &scheduler, uint32_t accumulator, uint32_t tmem) {
        int32_t block = left;
        left -= blocks();
        if (block < 0 || left >= 0) return;
        /* Each tile takes k_end - k_begin stages; its last one may hold fewer than 4 K blocks. */
        int32_t before = first / blocks() * (cta.k_end - cta.k_begin) + block / SM100_STAGE_ATOMS;
        uint32_t from = cta.stage((uint32_t)before % C::STAGES), in_stage = (uint32_t)block % SM100_STAGE_ATOMS;
        uint32_t sums = accumulator * C::MMA_TILE_N;
        uint32_t scales = C::SCALES_COLUMN + (uint32_t)before % C::STAGES * C::SCALE_COLUMNS;
        mbarrier_wait(cta.base + READY_OFFSET, 0);
        tcgen05_fence_after_thread_sync();
        if (threadIdx.x == 0) {
            to->tile = (int32_t)scheduler.tile, to->mma_a_row = scheduler.coord.mma_m;
            to->mma_b_row = scheduler.coord.mma_n, to->batch = scheduler.coord.l;
            to->k_block = cta.k_begin * SM100_STAGE_ATOMS + block;
            to->stage_address = from, to->tmem = tmem, to->accumulator = sums, to->scales = scales;
        }
        for (uint32_t i = threadIdx.x; i < C::STAGE_BYTES / 4; i += SM100_DUMP_LANES)
            to->stage_data[i] = ld_shared(from + 4 * i);
        tmem += threadIdx.x / 32 << 21; /* this warp's lane quarter */
        columns(to->scale_columns, 0, tmem + scales + 4 * in_stage);
        for (int j = 0; j < C::MMA_SFB_ATOMS; j++)
            columns(to->scale_columns, 4 + 4 * j,
                    tmem + scales + 4 * (SM100_STAGE_ATOMS + in_stage * C::MMA_SFB_ATOMS + (uint32_t)j));
        for (int j = 0; j < C::MMA_TILE_N; j += 4) columns(to->sums, j, tmem + sums + (uint32_t)j);
        tcgen05_fence_before_thread_sync();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive_cluster(cta.of_leader(cta.base + DONE_OFFSET));
    }

  private:
    __device__ __forceinline__ static void columns(uint32_t (*out)[SM100_DUMP_LANES], int column, uint32_t address) {
        float v[4];
        tcgen05_ld(v, address);
        tcgen05_wait_ld(v);
#pragma unroll
        for (int i = 0; i < 4; i++) out[column + i][threadIdx.x] = __float_as_uint(v[i]);
    }
};

#else

template <class C> struct dumper {
    __device__ __forceinline__ dumper(const sm100_schedule &, const cta_context<C> &) {}
    __device__ __forceinline__ static void init(const cta_context<C> &) {}
    __device__ __forceinline__ void stage(uint32_t, uint32_t) {}
    __device__ __forceinline__ void block(const mma_operands &, uint64_t, uint64_t) {}
    __device__ __forceinline__ void begin(const sm100_schedule &) {}
    __device__ __forceinline__ void tile(const tile_scheduler<C> &, uint32_t, uint32_t) {}
};

#endif

#endif
