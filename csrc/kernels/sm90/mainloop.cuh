/* The mainloop of sm90/gemm.cu, and what its epilogue shares with those of sm90/grouped.cu and grouped_few.cu.
 *
 * A stage holds mma_b in 16 bits, [2 spans of 64 along K][rows of the tile][128 bytes] with the 128-byte swizzle and in
 * the order along K that gemm.cu describes; then values and scales of mma_a. C is the config of an instantiation, CTA
 * knows shared addresses and the stages along K (cta_context of schedule.cuh). */
#ifndef NVFP4_SM90_MAINLOOP_CUH
#define NVFP4_SM90_MAINLOOP_CUH

#include "kernels/common/epilogue.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/sm90/gemm_config.h"

/* Offset of the 4 scales of a row in a stage. The scales of the second 64 along K are SM90_ATOM_BYTES further. */
__device__ __forceinline__ uint32_t scale_offset(int row) {
    return row / SM90_ATOM_ROWS * SM90_BLOCK_BYTES + row % 32 * 16 + row % SM90_ATOM_ROWS / 32 * 4;
}

/* The i-th word, for a constant i. */
__device__ __forceinline__ uint32_t word_of(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* A lane's part of mma_a in a stage: [wgmma][row, row + 8] 32 values, two scales. */
template <class C> struct a_words {
    uint4 values[C::WGMMAS_M][2];
    uint32_t scales[C::WGMMAS_M][2];
};

/* The mainloop of one tile. A stage is released once the first wgmma group of the next stage is issued and
 * wgmma.wait_group 1 has completed all groups before it. Every lane arrives, because each reads mma_a for itself: a
 * __syncwarp in the loop serializes wgmma (measured). */
template <class C, class CTA>
__device__ __forceinline__ void mainloop(const CTA &cta, pipeline_state<C::STAGES> &state,
                                         float (&acc)[C::WGMMAS_M][C::MMA_TILE_N / 2]) {
    using convert = w4a16<C::TYPE>;
    constexpr int GROUPS = C::GROUPS, STEPS = 2 * C::GROUP_WORDS;
    int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
    int row = warp / 4 * 64 * C::WGMMAS_M + warp % 4 * 16 + lane / 4; /* and rows 8, 64, 72 further */
    uint32_t values = C::MMA_A_OFFSET + row * 64 + t * 16,
             scales = C::MMA_SFA_OFFSET + scale_offset(row) + t / 2 * SM90_ATOM_BYTES + t % 2 * 2;
    uint32_t tail_mask = cta.tail_mask(2 * t), current_stage = state.index, previous_stage = 0;
    pin(values), pin(scales), pin(tail_mask);
    uint32_t a_fragments[2][C::WGMMAS_M][STEPS][4];
    a_words<C> next;
    auto read_a = [&] {
        uint32_t stage = cta.stage(state.index);
        mbarrier_wait(cta.full(state.index), state.phase);
#pragma unroll
        for (int i = 0; i < C::WGMMAS_M; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) { /* 64 rows further are 8 bytes further in a block of scales */
                next.values[i][h] = ld_shared_v4(stage + values + (i * 64 + h * 8) * 64);
                next.scales[i][h] = ld_shared_u16(stage + scales + h * 8 * 16 + i * 8);
            }
        state.advance();
    };
    if (cta.k_begin < cta.k_end) { /* K > 0 */
        read_a();
#pragma unroll 1
        for (int32_t k = cta.k_begin; k < cta.k_end; k++) {
            const a_words<C> now = next;
            uint64_t b_descriptor = wgmma_smem_descriptor(cta.stage(current_stage));
            pin(b_descriptor); /* one addition a step */
            uint32_t previous_empty = cta.empty(previous_stage);
            previous_stage = current_stage, current_stage = state.index;
            uint32_t scale_pairs[C::WGMMAS_M][2];
#pragma unroll
            for (int i = 0; i < C::WGMMAS_M; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    scale_pairs[i][h] = convert::scales(now.scales[i][h] & (k == cta.k_tail ? tail_mask : 0x7F7F));
                }
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                auto &fragments = a_fragments[group % 2];
#pragma unroll
                for (int i = 0; i < C::WGMMAS_M; i++)
#pragma unroll
                    for (int j = 0; j < C::GROUP_WORDS; j++)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            int word = group * C::GROUP_WORDS + j;
                            uint32_t bits = word_of(now.values[i][h], word), pairs[4];
                            if (word < 2)
                                convert::template word<0>(bits, scale_pairs[i][h], pairs);
                            else
                                convert::template word<1>(bits, scale_pairs[i][h], pairs);
#pragma unroll
                            for (int q = 0; q < 4; q++) fragments[i][2 * j + q / 2][q % 2 * 2 + h] = pairs[q];
                        }
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < STEPS; step++)
#pragma unroll
                    for (int i = 0; i < C::WGMMAS_M; i++) {
                        int all = group * STEPS + step;
                        wgmma_rs<C::MMA_TILE_N, C::TYPE>::mma_async(
                            acc[i], fragments[i][step], b_descriptor + (all / 4 * C::MMA_B_SPAN + all % 4 * 32) / 16,
                            all > 0 || k > cta.k_begin);
                    }
                wgmma_commit_group();
                if (group == C::READ_GROUP && k + 1 < cta.k_end) read_a();
                wgmma_wait_group<1>();
                if (group == 0 && k > cta.k_begin) mbarrier_arrive(previous_empty);
            }
        }
    }
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < C::WGMMAS_M; i++)
#pragma unroll
        for (int j = 0; j < C::MMA_TILE_N / 2; j++) {
            if (cta.k_begin == cta.k_end) acc[i][j] = 0.0f; /* K = 0 */
            pin_float(acc[i][j]);
        }
    if (cta.k_begin < cta.k_end) mbarrier_arrive(cta.empty(previous_stage));
}

/* Removes the power of two that conversions leave in a product. The fma with +0 turns -0 into +0. */
__device__ __forceinline__ float rescale(float sum, float unit) {
    return __fmaf_rn(sum, unit, 0.0f);
}

/* Rounds two values to a 16-bit type: one cvt for either type. */
__device__ __forceinline__ uint32_t round_pair(float first, float second, int32_t type) {
    __half2 half = __floats2half2_rn(first, second);
    __nv_bfloat162 bfloat = __floats2bfloat162_rn(first, second);
    return type == NVFP4_FP16 ? *(uint32_t *)&half : *(uint32_t *)&bfloat;
}

/* Transposes an 8x8 matrix of 16-bit values; a lane holds two neighbours of row lane / 4 (PTX ISA 9.0, section
 * 9.7.14.5.17 movmatrix). */
__device__ __forceinline__ uint32_t transpose(uint32_t pair) {
    uint32_t result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
}

/* Stores two groups of 8 columns of a row, held by a quad: lane t has columns 2t, 2t + 1 of both. Lanes exchange one
 * pair, so that each stores 4 neighbours, 8 bytes, starting at two_groups_column(). */
__device__ __forceinline__ int two_groups_column() {
    return threadIdx.x % 4 / 2 * 4 + threadIdx.x % 2 * 8;
}
__device__ __forceinline__ void store_two_groups(char *to, bool exists, uint32_t first, uint32_t second) {
    bool odd = threadIdx.x % 2;
    uint32_t other = __shfl_xor_sync(0xFFFFFFFF, odd ? first : second, 1);
    if (exists) *(uint2 *)to = odd ? make_uint2(other, second) : make_uint2(first, other);
}

/* Writes 8 columns of a warp's 16 rows from the wgmma register layout to its epilogue staging buffer, in the order of
 * the output: pitch 12 floats, or 20 with swap_ab, against bank conflicts. */
__device__ __forceinline__ void write_group_to_staging(float *to, bool swap_ab, const float (&v)[4]) {
    int mma_m = threadIdx.x % 32 / 4, mma_n = threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int row = mma_m + r / 2 * 8, column = mma_n + r % 2;
        to[swap_ab ? column * 20 + row : row * 12 + column] = v[r];
    }
}

#endif
