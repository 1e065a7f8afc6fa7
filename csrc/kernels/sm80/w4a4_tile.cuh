/* The parts of a W4A4 tile that gemm.cu and grouped_w4a4.cu share: copies, dequantization and mma of a stage, and the
 * accumulators of the warps.
 *
 * The warps of a CTA share an output tile and split K: of every TILE_K values along K a warp takes STAGE_K. Each warp
 * fills its own pipeline of stages with cp.async; warps meet only for the final sum.
 *
 *   stage s    wait for its copies | warp barrier | issue the copies of stage s + STAGES - 1 | dequantize and mma
 *
 * The warp barrier also frees stage s - 1, which those copies overwrite.
 *
 * A lane dequantizes e2m1 words straight into mma fragments, without shuffles or fp16 in memory. A sum over K may be
 * taken in any order that both operands share: of a chunk of 64 along K, lane t of a quad takes block t, 16 values
 * under one scale, as columns 2t, 2t + 1, 2t + 8, 2t + 9 of four mma K-steps.
 *
 * mma_a is the operand with 16 rows an mma, mma_b the one with 8. SWAP_AB selects which user matrix is mma_a (1: B). A
 * stage in shared memory, of STAGE_K / 64 chunks:
 *
 *   mma_a values   chunk [MMA_TILE_M rows][32 bytes], 32 bytes of padding, next chunk, ...
 *   mma_b values   likewise, MMA_TILE_N rows
 *   mma_a scales   chunk [MMA_TILE_M rows][4 bytes], next chunk, ...
 *   mma_b scales   likewise
 *
 * Tails: rows past the end of a tensor are not loaded; stale data there reach only results that are not stored. Scales
 * past the end of K are zero; e2m1 values are finite for every bit pattern. */
#ifndef NVFP4_SM80_W4A4_TILE_CUH
#define NVFP4_SM80_W4A4_TILE_CUH

#include "common/problem.h"
#include "kernels/common/cp_async.cuh"
#include "kernels/common/decode.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/shared.cuh"
#include "kernels/sm80/config.h"

template <int TILE_M_, int TILE_N_, int TILE_K_, int STAGES_, int WARPS_, int SWAP_AB_, int CTAS_PER_SM_>
struct config {
    static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, TILE_K = TILE_K_, STAGES = STAGES_, WARPS = WARPS_;
    static constexpr int CTAS_PER_SM = CTAS_PER_SM_;
    static constexpr bool SWAP_AB = SWAP_AB_;
    static constexpr int THREADS = 32 * WARPS, STAGE_K = TILE_K / WARPS, CHUNKS = STAGE_K / SM80_CHUNK;
    static constexpr int MMA_TILE_M = SWAP_AB ? TILE_N : TILE_M, MMA_TILE_N = SWAP_AB ? TILE_M : TILE_N;
    static constexpr int MMAS_M = MMA_TILE_M / 16, MMAS_N = MMA_TILE_N / 8;
    /* Byte offsets in a stage; mma_a values are at 0. */
    static constexpr int MMA_B_OFFSET = CHUNKS * (MMA_TILE_M + 1) * 32;
    static constexpr int MMA_SFA_OFFSET = MMA_B_OFFSET + CHUNKS * (MMA_TILE_N + 1) * 32;
    static constexpr int MMA_SFB_OFFSET = MMA_SFA_OFFSET + CHUNKS * MMA_TILE_M * 4;
    static constexpr int SUM_PITCH = SM80_SUM_PITCH(TILE_N);
    static constexpr int STAGE_BYTES = SM80_STAGE_BYTES(TILE_M, TILE_N, STAGE_K),
                         WARP_STAGES_BYTES = STAGES * STAGE_BYTES;
    static constexpr int SHARED_BYTES = SM80_SHARED_BYTES(TILE_M, TILE_N, TILE_K, STAGES, WARPS);

    static_assert(TILE_K % (SM80_CHUNK * WARPS) == 0, "each warp takes as many chunks of TILE_K");
    static_assert(MMA_TILE_M % 16 == 0 && MMA_TILE_N % 8 == 0, "whole mma tiles");
    static_assert(STAGE_BYTES % 16 == 0, "stages start on 16 bytes");
    static_assert(STAGES >= 2 && SHARED_BYTES <= 99 * 1024, "what every GPU since Ampere gives a CTA");
};

/* An operand at one batch index, and the first row of this CTA's tile. */
struct operand {
    const uint8_t *data, *scale;
    int64_t pitch, scale_pitch, row;
    int rows; /* rows of the tile that exist */
};

__device__ operand operand_a(const gemm_problem &p, int64_t l, int64_t m, int tile) {
    return {p.a + l * p.a_batch,
            p.scale_a + l * p.scale_a_batch,
            p.a_pitch,
            p.scale_a_pitch,
            m,
            (int)min((int64_t)tile, p.m - m)};
}

__device__ operand operand_b(const gemm_problem &p, int64_t l, int64_t n, int tile) {
    return {p.b + l * p.b_batch,
            p.scale_b + l * p.scale_b_batch,
            p.b_pitch,
            p.scale_b_pitch,
            n,
            (int)min((int64_t)tile, p.n - n)};
}

constexpr int power_of_two_from(int n) {
    int power = 1;
    while (power < n) power *= 2;
    return power;
}

/* The copies of one lane, of one operand, in every stage of its warp: 16-byte pieces of values, neighbours along a row,
 * and words of 4 scales, neighbours along the rows. Several passes of the warp cover a stage. */
template <class C, int ROWS> struct loader {
    static constexpr int PIECES = C::STAGE_K / 32;                              /* in a row of a stage */
    static constexpr int PASS_ROWS = 32 / PIECES;                               /* rows of values a pass */
    static constexpr int SCALE_ROWS = ROWS > 32 ? 32 : power_of_two_from(ROWS); /* rows of scales a pass */
    static constexpr int PASS_CHUNKS = 32 / SCALE_ROWS;                         /* chunks of scales a pass */
    static constexpr int ROW_PASSES = (ROWS + 31) / 32;
    static_assert(32 % PIECES == 0, "a lane keeps its column of values");

    const uint8_t *values, *scales[ROW_PASSES]; /* first pass, next stage */
    int64_t pass_pitch;                         /* bytes between the values of two passes */
    int chunk_pitch;                            /* bytes between two words of a row of scales */
    uint32_t values_to, scales_to;              /* shared addresses in stage 0 */
    int rows;                                   /* rows of values that exist, from this lane's first on */
    int scale_rows;                             /* the same of scales; 0 if this lane copies none */
    int chunk;                                  /* chunk of this lane's first word of scales */

    __device__ __forceinline__ loader(const operand &source, int64_t k, bool linear, uint32_t values_at,
                                      uint32_t scales_at) {
        int lane = threadIdx.x % 32, piece = lane % PIECES, row = lane / PIECES;
        values = source.data + (source.row + row) * source.pitch + k / 2 + piece * 16;
        pass_pitch = PASS_ROWS * source.pitch;
        values_to = values_at + piece / 2 * (ROWS + 1) * 32 + piece % 2 * 16 + row * 32;
        rows = min(source.rows, ROWS) - row;

        int scale_row = lane % SCALE_ROWS;
        chunk = lane / SCALE_ROWS;
        chunk_pitch = linear ? 4 : 512;
#pragma unroll
        for (int i = 0; i < ROW_PASSES; i++) {
            int64_t at = source.row + scale_row + i * 32;
            scales[i] =
                source.scale + (k / SM80_CHUNK + chunk) * chunk_pitch +
                (linear ? at * source.scale_pitch : at / 128 * source.scale_pitch + at % 32 * 16 + at % 128 / 32 * 4);
            pin(scales[i]);
        }
        scales_to = scales_at + (chunk * ROWS + scale_row) * 4;
        scale_rows = chunk < C::CHUNKS ? min(source.rows, ROWS) - scale_row : 0;
        pin(values), pin(pass_pitch), pin(chunk_pitch), pin(values_to), pin(scales_to), pin(rows), pin(scale_rows);
    }

    __device__ __forceinline__ void advance() {
        values += C::TILE_K / 2;
#pragma unroll
        for (int i = 0; i < ROW_PASSES; i++) scales[i] += C::TILE_K / SM80_CHUNK * chunk_pitch;
    }

    /* Issues the copies of a full stage: rows on 16 bytes, scales on 4. */
    __device__ __forceinline__ void start(uint32_t stage) {
#pragma unroll
        for (int i = 0; i * PASS_ROWS < ROWS; i++)
            if (i * PASS_ROWS < rows) cp_async_16(stage + values_to + i * PASS_ROWS * 32, values + i * pass_pitch);
#pragma unroll
        for (int i = 0; i < ROW_PASSES; i++)
#pragma unroll
            for (int j = 0; j < C::CHUNKS; j += PASS_CHUNKS)
                if (i * 32 < scale_rows && j + chunk < C::CHUNKS)
                    cp_async_4(stage + scales_to + (j * ROWS + i * 32) * 4, scales[i] + j * chunk_pitch);
        advance();
    }

    /* Issues the copies of any stage with k_left values along K. Scales past them become zero. */
    __device__ __forceinline__ void start_ragged(uint32_t stage, int64_t k_left) {
        int64_t values_left = k_left - threadIdx.x % PIECES * 32;
        int64_t scales_left = k_left / 16 - chunk * 4;
#pragma unroll 1
        for (int i = 0; i * PASS_ROWS < rows; i++) {
            uint32_t to = stage + values_to + i * PASS_ROWS * 32;
            if (values_left > 0) cp_async_8(to, values + i * pass_pitch);
            if (values_left > 16) cp_async_8(to + 8, values + i * pass_pitch + 8);
        }
#pragma unroll
        for (int i = 0; i < ROW_PASSES; i++)
            for (int j = 0; i * 32 < scale_rows && j + chunk < C::CHUNKS; j += PASS_CHUNKS) {
                const uint8_t *from = scales[i] + j * chunk_pitch;
                uint32_t word = 0;
                for (int byte = 0; byte < 4; byte++)
                    if (j * 4 + byte < scales_left) word |= (uint32_t)from[byte] << byte * 8;
                st_shared(stage + scales_to + (j * ROWS + i * 32) * 4, word);
            }
        advance();
    }
};

/* mma of one stage. `at` is this lane's first row and its block of a chunk: row * 4 + block. */
template <class C>
__device__ __forceinline__ void mma_stage(const uint8_t *stage, int at, float (&sums)[C::MMAS_M][C::MMAS_N][4]) {
#pragma unroll(C::CHUNKS <= 2 ? 2 : 1)
    for (int chunk = 0; chunk < C::CHUNKS; chunk++) {
        const uint8_t *a_values = stage + chunk * (C::MMA_TILE_M + 1) * 32 + at * 8;
        const uint8_t *b_values = stage + C::MMA_B_OFFSET + chunk * (C::MMA_TILE_N + 1) * 32 + at * 8;
        const uint8_t *a_scales = stage + C::MMA_SFA_OFFSET + chunk * C::MMA_TILE_M * 4 + at;
        const uint8_t *b_scales = stage + C::MMA_SFB_OFFSET + chunk * C::MMA_TILE_N * 4 + at;
        uint2 a_words[C::MMAS_M][2], b_words[C::MMAS_N];
        uint32_t a_scale[C::MMAS_M], b_scale[(C::MMAS_N + 1) / 2]; /* of two rows each */
#pragma unroll
        for (int i = 0; i < C::MMAS_M; i++) {
            a_words[i][0] = *(const uint2 *)(a_values + i * 16 * 32);
            a_words[i][1] = *(const uint2 *)(a_values + (i * 16 + 8) * 32);
            a_scale[i] = decode_scales(a_scales[i * 16 * 4], a_scales[(i * 16 + 8) * 4]);
        }
#pragma unroll
        for (int j = 0; j < C::MMAS_N; j++) b_words[j] = *(const uint2 *)(b_values + j * 8 * 32);
#pragma unroll
        for (int j = 0; j < C::MMAS_N; j += 2)
            b_scale[j / 2] = decode_scales(b_scales[j * 8 * 4], j + 1 < C::MMAS_N ? b_scales[(j + 1) * 8 * 4] : 0);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t a_fragment[C::MMAS_M][2][4];
#pragma unroll
            for (int i = 0; i < C::MMAS_M; i++) {
                decode_word<0>(half ? a_words[i][0].y : a_words[i][0].x, a_scale[i], a_fragment[i][0]);
                decode_word<1>(half ? a_words[i][1].y : a_words[i][1].x, a_scale[i], a_fragment[i][1]);
            }
#pragma unroll
            for (int j = 0; j < C::MMAS_N; j++) {
                uint32_t b_fragment[4], word = half ? b_words[j].y : b_words[j].x;
                if (j % 2 == 0)
                    decode_word<0>(word, b_scale[j / 2], b_fragment);
                else
                    decode_word<1>(word, b_scale[j / 2], b_fragment);
#pragma unroll
                for (int step = 0; step < 4; step += 2)
#pragma unroll
                    for (int i = 0; i < C::MMAS_M; i++)
                        mma_m16n8k16(sums[i][j], a_fragment[i][0][step], a_fragment[i][1][step],
                                     a_fragment[i][0][step + 1], a_fragment[i][1][step + 1], b_fragment[step],
                                     b_fragment[step + 1]);
            }
        }
    }
}

/* The pipeline of one warp: adds the products of `tiles` stages to sums, the first of which is stage `first` of k
 * values along K. The copies of the first full_tiles of them need no bounds. */
template <class C, class A, class B>
__device__ __forceinline__ void multiply_stages(A &load_a, B &load_b, const uint8_t *stages, int64_t first, int tiles,
                                                int full_tiles, int64_t k, float (&sums)[C::MMAS_M][C::MMAS_N][4]) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint32_t stage = 0, next_stage = 0; /* byte offsets */
    for (int tile = 1 - C::STAGES; tile < tiles; tile++) {
        if (tile >= 0) {
            cp_async_wait_group<C::STAGES - 2>();
            __syncwarp();
        }
        int next = tile + C::STAGES - 1;
        if (next < full_tiles) {
            load_a.start(next_stage);
            load_b.start(next_stage);
        } else if (next < tiles) {
            int64_t k_left = k - (first + next) * C::TILE_K - warp * C::STAGE_K;
            load_a.start_ragged(next_stage, k_left);
            load_b.start_ragged(next_stage, k_left);
        }
        cp_async_commit_group();
        next_stage = next_stage + C::STAGE_BYTES == C::WARP_STAGES_BYTES ? 0 : next_stage + C::STAGE_BYTES;
        if (tile >= 0) {
            mma_stage<C>(stages + stage, g * 4 + t, sums);
            stage = stage + C::STAGE_BYTES == C::WARP_STAGES_BYTES ? 0 : stage + C::STAGE_BYTES;
        }
    }
}

/* Writes this warp's accumulators to its fp32 tile, [TILE_M][SUM_PITCH]. */
template <class C>
__device__ __forceinline__ void store_sums(float *tile, int mma_m0, int mma_n0,
                                           const float (&sums)[C::MMAS_M][C::MMAS_N][4]) {
#pragma unroll
    for (int i = 0; i < C::MMAS_M; i++)
#pragma unroll
        for (int j = 0; j < C::MMAS_N; j++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int mma_m = mma_m0 + i * 16 + r / 2 * 8, mma_n = mma_n0 + j * 8 + r % 2;
                tile[C::SWAP_AB ? mma_n * C::SUM_PITCH + mma_m : mma_m * C::SUM_PITCH + mma_n] = sums[i][j][r];
            }
}

#endif
