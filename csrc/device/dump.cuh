/* The hooks of a debug build: what one CTA of sm100_gemm.cu holds when one k_block (64 values along K) has been
 * multiplied, written to global memory. Without NVFP4_DUMP they are empty, and the machine code is the same as if they
 * were not there (tests/test_dump.py).
 *
 * The schedule names the CTA and the k_block, which counts on through the tiles of that CTA. Behind the products of
 * that k_block the mma thread notes what it gave the instruction, commits to a barrier of its own, `ready`, and waits;
 * the epilogue warps of the CTA, which would wait for the tile's last k_block anyway, copy the stage, the columns of
 * the scales and the accumulator, and arrive at `done`. In a pair the leader's mma thread does so for either CTA. The
 * stage is not released meanwhile, and the order of the instructions stays as it is. */
#ifndef NVFP4_DEVICE_DUMP_CUH
#define NVFP4_DEVICE_DUMP_CUH

#include "../sm100_configs.h"
#include "mbarrier.cuh"
#include "tcgen05.cuh"

template <class C> struct share;
template <class C> struct tile_walk;

/* What tcgen05_mma_mxf4nvf4 is given. */
struct mma_operands {
    uint32_t d;
    uint64_t x, y;
    uint32_t instruction, sfx, sfy;
    bool add;
};

#ifdef NVFP4_DUMP

/* 4 columns from that of the address on, as tcgen05_ld. */
__device__ __forceinline__ void tcgen05_ld(float (&v)[4], uint32_t address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(address));
}

/* At a barrier of any CTA of the cluster; what the thread has read and written comes before it. */
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

template <class C> struct dumper {
    const share<C> &w;
    sm100_dump *to;
    uint32_t cta;
    int32_t first, left; /* the chosen k_block; how many come before it. Negative: none is chosen, or it is over */
    uint32_t slot = 0, parity = 0;

    static constexpr int READY_AT = C::PARTS_AT - SM100_DUMP_BYTES, DONE_AT = READY_AT + 8;
    static_assert(C::TMEM_AT + 4 <= READY_AT, "the barriers fit");
    static_assert(C::STAGE_BYTES <= SM100_DUMP_STAGE_BYTES, "what a dump has room for");

    __device__ __forceinline__ dumper(const sm100_schedule &s, const share<C> &w)
        : w(w), to(s.dump), cta((uint32_t)s.dump_cta), first(s.dump_block), left(first) {
        if (!to || cta / C::GROUP != blockIdx.x / C::GROUP) left = -1;
    }

    /* By the thread that initialises the barriers. */
    __device__ __forceinline__ static void prepare(const share<C> &w) {
        mbarrier_init(w.base + READY_AT, 1);
        mbarrier_init(w.base + DONE_AT, 4); /* warps */
    }

    /* ---- the mma thread */

    __device__ __forceinline__ void stage(uint32_t slot_, uint32_t parity_) { slot = slot_, parity = parity_; }

    /* Behind the products of a k_block. */
    __device__ __forceinline__ void block(const mma_operands &m, uint64_t atoms_x, uint64_t atoms_y) {
        if (left < 0 || left-- > 0) return;
        to->slot = slot, to->parity = parity;
        to->d = m.d, to->instruction = m.instruction, to->sfx = m.sfx, to->sfy = m.sfy, to->add = m.add;
        to->x = m.x, to->y = m.y, to->atoms_x = atoms_x, to->atoms_y = atoms_y;
        tcgen05_commit<C::GROUP>(w.base + READY_AT, (uint16_t)(1u << (w.unit * C::GROUP + cta % C::GROUP)));
        mbarrier_wait_cluster(w.base + DONE_AT, 0);
        tcgen05_fence_after_thread_sync();
        to->complete = 1;
    }

    /* ---- the epilogue warps */

    __device__ __forceinline__ int32_t blocks() const {
        return min(w.k_last * SM100_STAGE_ATOMS, w.k_blocks) - w.k_first * SM100_STAGE_ATOMS;
    }

    __device__ __forceinline__ void begin(const sm100_schedule &s) {
        if (cta != blockIdx.x) left = -1;
        if (!to || cta != blockIdx.x || threadIdx.x) return;
        to->group = C::GROUP, to->tile_y = C::TILE_Y, to->stages = C::STAGES, to->stage_bytes = C::STAGE_BYTES;
        to->swap_ab = s.swap_ab, to->split_k = s.split_k, to->rank = (int32_t)w.rank, to->unit = (int32_t)w.unit;
        to->tiles = w.first < (uint32_t)s.tiles ? (int32_t)((s.tiles - w.first + w.step - 1) / w.step) : 0;
        to->k_blocks = blocks(), to->first_block = w.k_first * SM100_STAGE_ATOMS;
        to->here = 1;
    }

    /* Before the wait for a tile's sums. */
    __device__ __forceinline__ void tile(const tile_walk<C> &walk, uint32_t accumulator, uint32_t tmem) {
        int32_t block = left;
        left -= blocks();
        if (block < 0 || left >= 0) return;
        /* Stages of the tiles before were whole slots, each at most one k_block short of four. */
        int32_t before = first / blocks() * (w.k_last - w.k_first) + block / SM100_STAGE_ATOMS;
        uint32_t from = w.stage((uint32_t)before % C::STAGES), in_stage = (uint32_t)block % SM100_STAGE_ATOMS;
        uint32_t sums = accumulator * C::TILE_Y;
        uint32_t scales = C::SCALES_AT + (uint32_t)before % C::STAGES * C::SCALE_COLUMNS;
        mbarrier_wait(w.base + READY_AT, 0);
        tcgen05_fence_after_thread_sync();
        if (threadIdx.x == 0) {
            to->tile = (int32_t)walk.tile, to->row_x = walk.place.x, to->row_y = walk.place.y;
            to->batch = walk.place.l, to->k_block = w.k_first * SM100_STAGE_ATOMS + block;
            to->stage = from, to->tmem = tmem, to->accumulator = sums, to->scales = scales;
        }
        for (uint32_t i = threadIdx.x; i < C::STAGE_BYTES / 4; i += SM100_DUMP_LANES)
            to->stage_data[i] = ld_shared(from + 4 * i);
        tmem += threadIdx.x / 32 << 21; /* the lanes that this warp reaches */
        columns(to->scale_columns, 0, tmem + scales + 4 * in_stage);
        for (int j = 0; j < C::ATOMS_Y; j++)
            columns(to->scale_columns, 4 + 4 * j,
                    tmem + scales + 4 * (SM100_STAGE_ATOMS + in_stage * C::ATOMS_Y + (uint32_t)j));
        for (int j = 0; j < C::TILE_Y; j += 4) columns(to->sums, j, tmem + sums + (uint32_t)j);
        tcgen05_fence_before_thread_sync();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive_cluster(w.of_leader(w.base + DONE_AT));
    }

  private:
    /* 4 columns of tensor memory. */
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
    __device__ __forceinline__ dumper(const sm100_schedule &, const share<C> &) {}
    __device__ __forceinline__ static void prepare(const share<C> &) {}
    __device__ __forceinline__ void stage(uint32_t, uint32_t) {}
    __device__ __forceinline__ void block(const mma_operands &, uint64_t, uint64_t) {}
    __device__ __forceinline__ void begin(const sm100_schedule &) {}
    __device__ __forceinline__ void tile(const tile_walk<C> &, uint32_t, uint32_t) {}
};

#endif

#endif
