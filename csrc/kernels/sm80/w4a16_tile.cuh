/* The parts of a W4A16 tile that w4a16.cu and grouped.cu share: copies of B, dequantization and mma of a stage, and the
 * accumulators of the warps.
 *
 * The warps of a CTA share an output tile and split K, each with a cp.async pipeline of its own; a sum over K may be
 * taken in any order that both operands share. B is the operand with 16 rows an mma, dequantized into fragments; A's
 * fragments are its values in the order of the words that B is converted from (common/w4a16.cuh).
 *
 * Of a chunk of 64 along K, lane t of a quad takes block t, 16 values under one scale. The columns of a tile are rows g
 * to g + 7 of the four quarters of a 128-row block (sm80/w4a16_config.h), so that 16 bytes of the 128x4 layout are the
 * scales of row g in all quarters and the chunk's four blocks. A stage in shared memory, a chunk at a time:
 *
 *   values of B   [octets][4 quarters][8 rows][32 bytes], 64 bytes of padding
 *   scales of B   [octets][8 rows][4 quarters][4 bytes]
 *   A             [TILE_M rows][8 pieces of 16 bytes]; piece i of an odd row lies at i ^ 1, so that the rows of a
 *                 load of 16 bytes a lane take all banks
 *
 * Tails: rows past the end of a tensor are not loaded; stale data there reach only results that are not stored. Past
 * the end of K, A and the scales of B are zero, since stale data may be NaN; e2m1 values are finite for every bit
 * pattern. */
#ifndef NVFP4_SM80_W4A16_TILE_CUH
#define NVFP4_SM80_W4A16_TILE_CUH

#include "kernels/common/cp_async.cuh"
#include "kernels/common/shared.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/sm80/w4a16_config.h"

template <int TYPE_, int TILE_M_, int OCTETS_, int CHUNKS_, int STAGES_, int WARPS_> struct config {
    static constexpr int TYPE = TYPE_, TILE_M = TILE_M_, OCTETS = OCTETS_, CHUNKS = CHUNKS_, STAGES = STAGES_;
    static constexpr int WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int TILE_N = SM80_W4A16_TILE_N(OCTETS), STAGE_K = CHUNKS * SM80_CHUNK,
                         TILE_K = SM80_W4A16_TILE_K(CHUNKS, WARPS);
    static constexpr int MMAS_B = TILE_N / 16, MMAS_A = (TILE_M + 7) / 8; /* mma tiles of 16 rows of B, 8 of A */
    /* Bytes of a chunk, and offsets in a stage; values of B are at 0. */
    static constexpr int VALUES_BYTES = TILE_N * 32 + 64, SCALES_BYTES = TILE_N * 4, A_BYTES = TILE_M * 128;
    static constexpr int SCALES_OFFSET = CHUNKS * VALUES_BYTES, A_OFFSET = SCALES_OFFSET + CHUNKS * SCALES_BYTES;
    static constexpr int STAGE_BYTES = SM80_W4A16_STAGE_BYTES(TILE_M, OCTETS, CHUNKS),
                         WARP_STAGES_BYTES = STAGES * STAGE_BYTES;
    static constexpr int SUM_PITCH = SM80_W4A16_SUM_PITCH(OCTETS);

    static_assert(OCTETS == 1 || OCTETS == 2 || OCTETS == 4, "a block of 128 rows has whole tiles");
    static_assert(CHUNKS == 1 || CHUNKS == 2, "a warp's copies of values cover whole octets");
    static_assert(CHUNKS * OCTETS * 8 <= 32, "a lane copies one piece of scales");
    static_assert(TILE_M % 8 == 0 || TILE_M == 1 || TILE_M == 2 || TILE_M == 4, "lanes share the rows of A evenly");
    static_assert(STAGES >= 2 && STAGE_BYTES % 16 == 0, "stages start on 16 bytes");
};

/* The copies of one lane of rows of B: 16-byte pieces of values, neighbours along a row, and one 16-byte piece of
 * scales, or words of linear scales. */
template <class C> struct b_loader {
    static constexpr int PIECES = 2 * C::CHUNKS, PASS_ROWS = 32 / PIECES, PASSES = C::TILE_N / PASS_ROWS;
    static constexpr int SCALE_PIECES = C::OCTETS * 8; /* of a chunk */

    const uint8_t *values, *scales; /* of the next stage: of the lane's row in the first pass */
    int64_t pitch, scale_pitch;
    int rows;       /* rows that exist from the lane's first row of values on */
    int scale_rows; /* the same from its first row of linear scales on */
    uint32_t values_to, scales_to;
    bool linear;

    /* Row of B, from the tile's first, of the first lane in a pass: the passes go through the quarters of an octet. */
    static __device__ __forceinline__ constexpr int pass_row(int pass) {
        return C::CHUNKS == 2 ? pass % 4 * 32 + pass / 4 * 8 : pass % 2 * 64 + pass / 2 * 8;
    }

    __device__ __forceinline__ b_loader(const gemm_problem &p, int64_t l, int64_t n0, int64_t k, uint32_t stages) {
        const int lane = threadIdx.x % 32, piece = lane % PIECES;
        const int row = C::CHUNKS == 2 ? lane / 4 : lane / 16 * 32 + lane / 2 % 8;
        pitch = p.b_pitch, scale_pitch = p.scale_b_pitch;
        linear = p.scale_layout == NVFP4_LINEAR;
        values = p.b + l * p.b_batch + (n0 + row) * pitch + k / 2 + piece * 16;
        rows = (int)min((int64_t)128, p.n - n0) - row;
        values_to = stages + piece / 2 * C::VALUES_BYTES + lane / PIECES * 32 + piece % 2 * 16;
        scales = p.scale_b + l * p.scale_b_batch;
        scales_to = stages + C::SCALES_OFFSET;
        if (linear) {
            const int scale_row = lane / 8 * 32 + lane % 8;
            scales += (n0 + scale_row) * scale_pitch + k / 16;
            scale_rows = (int)min((int64_t)128, p.n - n0) - scale_row;
            scales_to += lane % 8 * 16 + lane / 8 * 4;
        } else {
            scales += n0 / 128 * scale_pitch + (k / SM80_CHUNK + lane / SCALE_PIECES) * 512 +
                      (n0 % 32 + lane % SCALE_PIECES) * 16;
            scale_rows = lane < C::CHUNKS * SCALE_PIECES;
            scales_to += lane * 16;
        }
        pin(values), pin(scales), pin(pitch), pin(rows), pin(scale_rows), pin(values_to), pin(scales_to);
    }

    __device__ __forceinline__ void advance() {
        values += C::TILE_K / 2;
        scales += linear ? C::TILE_K / 16 : C::TILE_K / SM80_CHUNK * 512;
    }

    /* Issues the copies of a full stage: rows on 16 bytes, linear scales on 4. */
    __device__ __forceinline__ void start(uint32_t stage) {
        const uint32_t values_at = stage + values_to, scales_at = stage + scales_to;
#pragma unroll
        for (int i = 0; i < PASSES; i++)
            if (pass_row(i) < rows) cp_async_16(values_at + i * PASS_ROWS * 32, values + pass_row(i) * pitch);
        if (!linear) {
            if (scale_rows) cp_async_16(scales_at, scales);
        } else {
#pragma unroll
            for (int octet = 0; octet < C::OCTETS; octet++)
#pragma unroll
                for (int chunk = 0; chunk < C::CHUNKS; chunk++)
                    if (octet * 8 < scale_rows)
                        cp_async_4(scales_at + chunk * C::SCALES_BYTES + octet * 128,
                                   scales + octet * 8 * scale_pitch + chunk * 4);
        }
        advance();
    }

    /* Issues the copies of any stage with k_left values along K. Scales past them become zero. */
    __device__ __forceinline__ void start_ragged(uint32_t stage, int64_t k_left) {
        const int64_t values_left = k_left - threadIdx.x % PIECES * 32;
#pragma unroll 1
        for (int i = 0; i < PASSES; i++) {
            if (pass_row(i) >= rows) continue;
            const uint32_t to = stage + values_to + i * PASS_ROWS * 32;
            const uint8_t *from = values + pass_row(i) * pitch;
            if (values_left > 0) cp_async_8(to, from);
            if (values_left > 16) cp_async_8(to + 8, from + 8);
        }
        const int64_t scales_left = k_left / 16;
        if (!linear) {
            const int chunk = threadIdx.x % 32 / SCALE_PIECES;
            for (int quarter = 0; quarter < 4 && scale_rows; quarter++)
                st_shared(stage + scales_to + quarter * 4, scale_word(scales + quarter * 4, scales_left - chunk * 4));
        } else {
            for (int octet = 0; octet < C::OCTETS; octet++)
                for (int chunk = 0; chunk < C::CHUNKS && octet * 8 < scale_rows; chunk++)
                    st_shared(stage + scales_to + chunk * C::SCALES_BYTES + octet * 128,
                              scale_word(scales + octet * 8 * scale_pitch + chunk * 4, scales_left - chunk * 4));
        }
        advance();
    }

    /* The first `count` of 4 scales; zeros for the rest. */
    static __device__ __forceinline__ uint32_t scale_word(const uint8_t *from, int64_t count) {
        uint32_t word = 0;
        for (int i = 0; i < 4; i++)
            if (i < count) word |= (uint32_t)from[i] << i * 8;
        return word;
    }
};

/* mma of one stage. g, t: this lane's row of 8 and its block of a chunk. */
template <class C>
__device__ __forceinline__ void mma_stage(const uint8_t *stage, int g, int t, float (&sums)[C::MMAS_B][C::MMAS_A][4]) {
    using convert = w4a16<C::TYPE>;
#pragma unroll
    for (int chunk = 0; chunk < C::CHUNKS; chunk++) {
        const uint8_t *values = stage + chunk * C::VALUES_BYTES + g * 32 + t * 8;
        const uint8_t *scales = stage + C::SCALES_OFFSET + chunk * C::SCALES_BYTES + g * 16;
        const uint8_t *a = stage + C::A_OFFSET + chunk * C::A_BYTES;
        uint2 words[C::MMAS_B][2];      /* of rows g and g + 8 of an mma: quarters 2i and 2i + 1 */
        uint32_t scale_pair[C::MMAS_B]; /* the same */
#pragma unroll
        for (int octet = 0; octet < C::OCTETS; octet++) {
            const uint4 quarters = *(const uint4 *)(scales + octet * 128);
            const uint32_t selector = t | (4 + t) << 4; /* byte t of both words */
            const uint32_t low = __byte_perm(quarters.x, quarters.y, selector);
            const uint32_t high = __byte_perm(quarters.z, quarters.w, selector);
            scale_pair[octet * 2] = convert::scales(low & 0x7F7F);
            scale_pair[octet * 2 + 1] = convert::scales(high & 0x7F7F);
#pragma unroll
            for (int quarter = 0; quarter < 4; quarter++)
                words[octet * 2 + quarter / 2][quarter % 2] = *(const uint2 *)(values + (octet * 4 + quarter) * 8 * 32);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t b_fragment[C::MMAS_B][2][4];
#pragma unroll
            for (int i = 0; i < C::MMAS_B; i++) {
                convert::template word<0>(half ? words[i][0].y : words[i][0].x, scale_pair[i], b_fragment[i][0]);
                convert::template word<1>(half ? words[i][1].y : words[i][1].x, scale_pair[i], b_fragment[i][1]);
            }
#pragma unroll
            for (int j = 0; j < C::MMAS_A; j++) {
                const int row = j * 8 + g % min(C::TILE_M, 8); /* rows past TILE_M repeat others: never stored */
                uint32_t a_fragment[4];
                convert::activations(*(const uint4 *)(a + row * 128 + ((2 * t + half) ^ row % 2) * 16), a_fragment);
#pragma unroll
                for (int step = 0; step < 4; step += 2)
#pragma unroll
                    for (int i = 0; i < C::MMAS_B; i++)
                        convert::mma(sums[i][j], b_fragment[i][0][step], b_fragment[i][1][step],
                                     b_fragment[i][0][step + 1], b_fragment[i][1][step + 1], a_fragment[step],
                                     a_fragment[step + 1]);
            }
        }
    }
}

/* The pipeline of one warp: adds the products of `tiles` stages to sums, the first of which is stage `first` of k
 * values along K. The copies of the first full_tiles of them need no bounds. */
template <class C, class A>
__device__ __forceinline__ void multiply_stages(b_loader<C> &load_b, A &load_a, const uint8_t *stages, int64_t first,
                                                int tiles, int full_tiles, int64_t k,
                                                float (&sums)[C::MMAS_B][C::MMAS_A][4]) {
    uint32_t stage = 0, next_stage = 0; /* byte offsets */
    for (int tile = 1 - C::STAGES; tile < tiles; tile++) {
        if (tile >= 0) {
            cp_async_wait_group<C::STAGES - 2>();
            __syncwarp();
        }
        const int next = tile + C::STAGES - 1;
        if (next < full_tiles) {
            load_b.start(next_stage);
            load_a.template start<false>(next_stage, 0);
        } else if (next < tiles) {
            const int64_t k_left = k - (first + next) * C::TILE_K - threadIdx.x / 32 * C::STAGE_K;
            load_b.start_ragged(next_stage, k_left);
            load_a.template start<true>(next_stage, k_left);
        }
        cp_async_commit_group();
        next_stage = next_stage + C::STAGE_BYTES == C::WARP_STAGES_BYTES ? 0 : next_stage + C::STAGE_BYTES;
        if (tile >= 0) {
            mma_stage<C>(stages + stage, threadIdx.x % 32 / 4, threadIdx.x % 4, sums);
            stage = stage + C::STAGE_BYTES == C::WARP_STAGES_BYTES ? 0 : stage + C::STAGE_BYTES;
        }
    }
}

/* Writes this warp's accumulators to its fp32 tile, [TILE_M][SUM_PITCH]; columns in the order of the rows in a stage:
 * octet, quarter, row. */
template <class C>
__device__ __forceinline__ void store_sums(float *tile, int g, int t, const float (&sums)[C::MMAS_B][C::MMAS_A][4]) {
#pragma unroll
    for (int i = 0; i < C::MMAS_B; i++)
#pragma unroll
        for (int j = 0; j < C::MMAS_A; j++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const int m = j * 8 + 2 * t + r % 2, column = i * 16 + r / 2 * 8 + g;
                if (C::TILE_M >= 8 || m < C::TILE_M) tile[m * C::SUM_PITCH + column] = sums[i][j][r];
            }
}

#endif
