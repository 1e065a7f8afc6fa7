/* The cp.async producer of sm100/gemm.cu's _cp_async kernels, warps 6-9: thread r copies the scales of row r of both
 * operands, one word (4 scales) an atom, and 8-byte pieces of the values. */
#ifndef NVFP4_SM100_CP_ASYNC_PRODUCER_CUH
#define NVFP4_SM100_CP_ASYNC_PRODUCER_CUH

#include "kernels/common/cp_async.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/sm100/schedule.cuh"

template <class C> struct cp_async_producer {
    const gemm_problem &p;
    const sm100_schedule &s;
    const cta_context<C> &cta;
    int thread;
    bool linear, words; /* words: every word of scales is 4-byte aligned in global memory */

    __device__ __forceinline__ cp_async_producer(const gemm_problem &p, const sm100_schedule &s,
                                                 const cta_context<C> &cta)
        : p(p), s(s), cta(cta), thread(threadIdx.x - CP_ASYNC_WARP * 32), linear(p.scale_layout == NVFP4_LINEAR) {
        uint64_t bits = (uint64_t)s.mma_a.scale | (uint64_t)s.mma_b.scale | s.mma_a.scale_pitch | s.mma_b.scale_pitch;
        words = (bits | s.mma_a.scale_batch | s.mma_b.scale_batch) % 4 == 0;
    }

    /* Scales of one row for each atom of the stage; scales past K become zero. */
    __device__ __forceinline__ void scales(uint32_t to, const mma_operand &o, int64_t row, int64_t l,
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
    __device__ __forceinline__ void values(uint32_t to, const mma_operand &o, int32_t row, int64_t l,
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

#endif
