/* The parts of a tile of A . B that nn.cu and grouped_nn.cu share: copies, dequantization and mma of a stage.
 *
 * Columns of B are the 16 rows of an mma, rows of A its 8 columns, and a warp has 64 columns of B. A lane's pairs along
 * K are one nibble of each of two rows of B, zipped before they are converted (common/w4a16.cuh): a word of 8 columns
 * of two rows gives the pairs of 8 columns. A sum over K may be taken in any order that both operands share: of 32 rows
 * of B lane t of a quad takes 8t to 8t + 7, which are one 16-byte piece of a row of A and two steps of 16. Lane 4g + t
 * has columns 8g to 8g + 7, in the operand and in the accumulators.
 *
 * A stage in shared memory, of 64 along K:
 *
 *   A             [TILE_M rows][8 pieces of 16 bytes]; piece i of an odd row lies at i ^ 4
 *   values of B   [64 rows][WARPS_N groups of 32 bytes]; group i of row r lies at i ^ r / 8 % 4
 *   scales of B   [WARPS_N][64 rows][4 bytes]: those of a warp's columns
 *
 * Tails: past the end of K, A and the scales of B are zero, since stale data may be NaN; e2m1 values are finite for
 * every bit pattern. Stale rows of A and columns of B reach only results that are not stored. */
#ifndef NVFP4_SM80_NN_TILE_CUH
#define NVFP4_SM80_NN_TILE_CUH

#include "kernels/common/cp_async.cuh"
#include "kernels/common/shared.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/sm80/nn_config.h"

template <int TYPE_, int WARPS_M_, int WARPS_N_, int MMAS_M_, int STAGES_> struct config {
    static constexpr int TYPE = TYPE_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, MMAS_M = MMAS_M_, STAGES = STAGES_;
    static constexpr int THREADS = SM80_NN_THREADS(WARPS_M, WARPS_N), STAGE_K = SM80_NN_STAGE_K;
    static constexpr int TILE_M = SM80_NN_TILE_M(WARPS_M, MMAS_M), TILE_N = SM80_NN_TILE_N(WARPS_N);
    static constexpr int A_PITCH = STAGE_K * 2, B_PITCH = TILE_N / 2; /* bytes of a row in shared memory */
    static constexpr int VALUES_OFFSET = TILE_M * A_PITCH, SCALES_OFFSET = VALUES_OFFSET + STAGE_K * B_PITCH;
    static constexpr int STAGE_BYTES = SM80_NN_STAGE_BYTES(WARPS_M, WARPS_N, MMAS_M);
    /* 16-byte pieces of values of B, and words of scales. */
    static constexpr int ROW_PIECES = B_PITCH / 16, B_PIECES = STAGE_K * ROW_PIECES;
    static constexpr int SCALE_WORDS = STAGE_K * WARPS_N;
    /* Floats of a row of sums in shared memory; a warp has 8 rows there. */
    static constexpr int SUMS_PITCH = SM80_NN_WARP_N + 4;

    static_assert(WARPS_N % 4 == 0, "groups are permuted among four");
    static_assert(B_PIECES % THREADS == 0 && SCALE_WORDS % THREADS == 0, "threads share the pieces of B evenly");
    static_assert(SCALES_OFFSET + SCALE_WORDS * 4 == STAGE_BYTES, "as the host reserves it");
    static_assert(WARPS_M * WARPS_N * 8 * SUMS_PITCH * 4 <= STAGES * STAGE_BYTES, "sums fit");
};

static __device__ __forceinline__ int clamp(int64_t value, int most) {
    return value < 0 ? 0 : value > most ? most : (int)value;
}

/* A thread's pieces of A, in rows at equal distances. */
template <class C> struct rows_at_pitch {
    static constexpr int A_ROWS = C::THREADS / 8; /* that all threads copy at a time */

    const uint8_t *a; /* the thread's first piece */
    int64_t a_pass;

    __device__ __forceinline__ rows_at_pitch(const gemm_problem &p, int64_t l, int64_t m0) {
        a = p.a + l * p.a_batch + (m0 + threadIdx.x / 8) * p.a_pitch + threadIdx.x % 8 * 16;
        a_pass = A_ROWS * p.a_pitch;
        pin(a), pin(a_pass);
    }

    __device__ __forceinline__ bool exists(int) const { return true; }
    __device__ __forceinline__ const uint8_t *at(int pass) const { return a + pass * a_pass; }
};

/* The copies of one thread: 16-byte pieces that are neighbours along a row, and words of scales that are neighbours
 * along K. */
template <class C, class A> struct loader {
    /* Rows of A, rows of B and groups of 64 columns that all threads copy at a time. */
    static constexpr int A_ROWS = C::THREADS / 8, B_ROWS = C::THREADS / C::ROW_PIECES, GROUPS = C::THREADS / C::STAGE_K;
    static_assert(B_ROWS == 16 || B_ROWS == 32, "a pass further, r / 8 % 4 is the same or the same with bit 1 flipped");

    A a;
    const uint8_t *b, *scales; /* of the thread's first piece; scales: of row 0 */
    int64_t b_pass, b_pitch, scale_pitch;
    int64_t columns; /* of B from the tile's first on */
    int rows;        /* of A that exist from the thread's first on */
    uint32_t a_to, b_to, scale_to;
    bool linear, aligned, whole; /* rows on 16 bytes, linear scales on 4; aligned, and all columns of the tile exist */

    /* a_rows: of A that the tile has, at most. */
    __device__ __forceinline__ loader(const gemm_problem &p, const A &a, int64_t a_rows, int64_t l, int64_t n0) : a(a) {
        const int thread = threadIdx.x, a_row = thread / 8, a_piece = thread % 8;
        b_pitch = p.b_pitch, scale_pitch = p.scale_b_pitch;
        rows = clamp(a_rows, C::TILE_M) - a_row;
        a_to = a_row * C::A_PITCH + (a_piece ^ a_row % 2 * 4) * 16;
        const int b_row = thread / C::ROW_PIECES, b_piece = thread % C::ROW_PIECES;
        b = p.b + l * p.b_batch + b_row * b_pitch + n0 / 2 + b_piece * 16;
        b_pass = B_ROWS * b_pitch;
        b_to = C::VALUES_OFFSET + b_row * C::B_PITCH + (b_piece / 2 ^ b_row / 8 % 4) * 32 + b_piece % 2 * 16;
        const int row = thread % C::STAGE_K, group = thread / C::STAGE_K;
        linear = p.scale_layout == NVFP4_LINEAR;
        scales = p.scale_b + l * p.scale_b_batch;
        scales +=
            linear ? row * scale_pitch + n0 / 16 + group * 4 : (n0 / 64 + group) * 512 + row % 32 * 16 + row / 32 * 4;
        scale_to = C::SCALES_OFFSET + thread * 4;
        columns = p.n - n0;
        aligned = p.aligned16 && (!linear || ((uintptr_t)p.scale_b | p.scale_b_batch | p.scale_b_pitch) % 4 == 0);
        whole = aligned && columns >= C::TILE_N;
        pin(b), pin(scales), pin(b_pass), pin(rows), pin(a_to), pin(b_to), pin(scale_to);
    }

    /* Bytes from row 0 to row k of the scales; k is a multiple of 64. */
    __device__ __forceinline__ int64_t scale_rows(int64_t k) const {
        return linear ? k * scale_pitch : k / 128 * scale_pitch + k % 128 / 32 * 4;
    }

    /* The shared address that a piece of values is copied to in a pass. */
    __device__ __forceinline__ uint32_t values_to(int pass) const {
        return (B_ROWS == 16 && pass % 2 ? b_to ^ 64 : b_to) + pass * B_ROWS * C::B_PITCH;
    }

    /* Issues the copies of the stage at k, of which k_left rows of B exist. */
    __device__ __forceinline__ void start(uint32_t stage, int64_t k, int64_t k_left) const {
        if (!whole || k_left < C::STAGE_K) {
            start_ragged(stage, k, clamp(k_left, C::STAGE_K));
            return;
        }
#pragma unroll
        for (int i = 0; i * A_ROWS < C::TILE_M; i++)
            if (i * A_ROWS < rows && a.exists(i)) cp_async_16(stage + a_to + i * A_ROWS * C::A_PITCH, a.at(i) + k * 2);
        const uint8_t *values = b + k * b_pitch, *from = scales + scale_rows(k);
#pragma unroll
        for (int i = 0; i < C::B_PIECES / C::THREADS; i++) cp_async_16(stage + values_to(i), values + i * b_pass);
#pragma unroll
        for (int i = 0; i < C::SCALE_WORDS / C::THREADS; i++)
            cp_async_4(stage + scale_to + i * C::THREADS * 4, from + i * GROUPS * (linear ? 4 : 512));
    }

    __device__ __forceinline__ void start_ragged(uint32_t stage, int64_t k, int k_left) const {
        const int a_values = clamp(k_left - (int)threadIdx.x % 8 * 8, 8);
#pragma unroll 1
        for (int i = 0; i * A_ROWS < min(C::TILE_M, rows); i++) {
            const uint32_t to = stage + a_to + i * A_ROWS * C::A_PITCH;
            if (!a.exists(i)) continue;
            const uint8_t *from = a.at(i) + k * 2;
            if (aligned)
                cp_async_16_zfill(to, from, a_values * 2);
            else
                copy_values(to, (const uint16_t *)from, a_values);
        }
        const int piece = threadIdx.x % C::ROW_PIECES, bytes = clamp(columns / 2 - piece * 16, 16);
#pragma unroll 1
        for (int i = 0; i < C::B_PIECES / C::THREADS; i++) {
            if ((int)threadIdx.x / C::ROW_PIECES + i * B_ROWS >= k_left) break;
            const uint8_t *from = b + k * b_pitch + i * b_pass;
            if (aligned) {
                cp_async_16_zfill(stage + values_to(i), from, bytes);
            } else {
                if (bytes > 0) cp_async_8(stage + values_to(i), from);
                if (bytes > 8) cp_async_8(stage + values_to(i) + 8, from + 8);
            }
        }
        const bool exists = (int)threadIdx.x % C::STAGE_K < k_left;
#pragma unroll 1
        for (int i = 0; i < C::SCALE_WORDS / C::THREADS; i++) {
            const int group = threadIdx.x / C::STAGE_K + i * GROUPS;
            int count = exists ? clamp(columns / 16 - group * 4, 4) : 0;
            if (!linear && count > 0) count = 4; /* whole words exist */
            const uint32_t to = stage + scale_to + i * C::THREADS * 4;
            const uint8_t *from = scales + scale_rows(k) + i * GROUPS * (linear ? 4 : 512);
            if (aligned)
                cp_async_4_zfill(to, from, count);
            else
                copy_scales(to, from, count);
        }
    }

    /* The first `count` of 8 values at any address; zeros for the rest. */
    static __device__ __forceinline__ void copy_values(uint32_t to, const uint16_t *from, int count) {
        for (int i = 0; i < 8; i += 2)
            st_shared(to + i * 2, (i < count ? from[i] : 0u) | (i + 1 < count ? (uint32_t)from[i + 1] << 16 : 0u));
    }

    static __device__ __forceinline__ void copy_scales(uint32_t to, const uint8_t *from, int count) {
        uint32_t word = 0;
        for (int i = 0; i < count; i++) word |= (uint32_t)from[i] << i * 8;
        st_shared(to, word);
    }
};

/* mma of one stage by a warp. */
template <class C>
__device__ __forceinline__ void mma_stage(const uint8_t *stage, int warp_m, int warp_n, int g, int t,
                                          float (&sums)[4][C::MMAS_M][4]) {
    using convert = w4a16<C::TYPE>;
    const uint8_t *a = stage + (warp_m * C::MMAS_M * 8 + g) * C::A_PITCH;
    const uint8_t *values = stage + C::VALUES_OFFSET + 8 * t * C::B_PITCH + (warp_n ^ t) * 32 + g * 4;
    const uint8_t *scales = stage + C::SCALES_OFFSET + (warp_n * C::STAGE_K + 8 * t) * 4;
    const uint32_t block = g / 2, selector = block | (4 + block) << 4; /* the block's byte of two words */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t pairs[4][8]; /* of rows 2i and 2i + 1: 8 columns */
        const uint4 words[2] = {*(const uint4 *)(scales + half * 128), *(const uint4 *)(scales + half * 128 + 16)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 &w = words[i / 2];
            const uint32_t bytes = __byte_perm(i % 2 ? w.z : w.x, i % 2 ? w.w : w.y, selector) & 0x7F7F;
            const uint32_t scale_pair = convert::scales(bytes);
            const uint8_t *row = values + (half * 32 + 2 * i) * C::B_PITCH;
            const uint32_t x = *(const uint32_t *)row, y = *(const uint32_t *)(row + C::B_PITCH);
            uint32_t (&low)[4] = *(uint32_t (*)[4])pairs[i], (&high)[4] = *(uint32_t (*)[4])(pairs[i] + 4);
            convert::template zipped<false>(x, y, scale_pair, low);
            convert::template zipped<true>(x, y, scale_pair, high);
        }
#pragma unroll
        for (int j = 0; j < C::MMAS_M; j++) {
            const uint4 v = *(const uint4 *)(a + j * 8 * C::A_PITCH + ((half * 4 + t) ^ g % 2 * 4) * 16);
#pragma unroll
            for (int i = 0; i < 4; i++)
                convert::mma(sums[i][j], pairs[0][2 * i], pairs[0][2 * i + 1], pairs[1][2 * i], pairs[1][2 * i + 1],
                             v.x, v.y);
#pragma unroll
            for (int i = 0; i < 4; i++)
                convert::mma(sums[i][j], pairs[2][2 * i], pairs[2][2 * i + 1], pairs[3][2 * i], pairs[3][2 * i + 1],
                             v.z, v.w);
        }
    }
}

/* The pipeline: adds the products of `tiles` stages, from stage `first` of k rows of B on. */
template <class C, class A>
__device__ __forceinline__ void multiply_stages(const loader<C, A> &load, const uint8_t *shared, int64_t first,
                                                int tiles, int64_t k_end, float (&sums)[4][C::MMAS_M][4]) {
    const int warp = threadIdx.x / 32, warp_m = warp / C::WARPS_N, warp_n = warp % C::WARPS_N;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t stages = shared_address(shared);
    int stage = 0, next_stage = 0; /* byte offsets */
    for (int tile = 1 - C::STAGES; tile < tiles; tile++) {
        if (tile >= 0) {
            cp_async_wait_group<C::STAGES - 2>();
            __syncthreads();
        }
        const int next = tile + C::STAGES - 1;
        const int64_t k = (first + next) * C::STAGE_K;
        if (next < tiles) load.start(stages + next_stage, k, k_end - k);
        cp_async_commit_group();
        next_stage = next_stage + C::STAGE_BYTES == C::STAGES * C::STAGE_BYTES ? 0 : next_stage + C::STAGE_BYTES;
        if (tile >= 0) {
            mma_stage<C>(shared + stage, warp_m, warp_n, g, t, sums);
            stage = stage + C::STAGE_BYTES == C::STAGES * C::STAGE_BYTES ? 0 : stage + C::STAGE_BYTES;
        }
    }
}

/* Writes the j-th 8 rows of the warp's sums to shared memory. */
template <class C>
__device__ __forceinline__ void share_sums(int j, float (*rows)[C::SUMS_PITCH], const float (&sums)[4][C::MMAS_M][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < C::MMAS_M; i++)
        if (i == j) /* registers have no index */
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    *(float4 *)&rows[2 * t + r][g * 8 + half * 4] =
                        make_float4(sums[2 * half][i][r], sums[2 * half][i][2 + r], sums[2 * half + 1][i][r],
                                    sums[2 * half + 1][i][2 + r]);
    __syncwarp();
}

#endif
