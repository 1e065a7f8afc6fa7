/* C = epilogue(A . B^T) of NVFP4 operands on the fp16 tensor cores of every GPU since Ampere.
 *
 * The warps of a CTA share an output tile and cut K between them: of every TILE_K values along K each takes STAGE_K.
 * They meet only at the end, to add up. Both operands travel raw, 4-bit values and scales, through a ring of stages in
 * shared memory that each warp has to itself and fills with cp.async:
 *
 *   stage s      wait for its copies | warp barrier | start the copies of stage s + STAGES - 1 | decode and mma
 *   the barrier also says that every lane has left stage s - 1, whose place those copies take.
 *
 * Each lane decodes in registers straight into mma fragments, with no shuffle and no fp16 in memory. That works
 * because a sum over K may be taken in any order as long as A and B agree on it: of a chunk of 64 along K, lane t of
 * a quad takes block t, 16 values under one scale, as its columns 2t, 2t + 1, 2t + 8, 2t + 9 of four mma steps.
 *
 * The side of mma that is 16 rows wide is called x here, the 8-wide one y: x is A and y is B, or the other way round
 * (WEIGHTS_FIRST). A stage in shared memory, of STAGE_K / 64 chunks:
 *
 *   x values: a chunk [X rows][32 bytes], 32 bytes of padding, the next chunk, ... | y values: the same |
 *   x scales: a chunk [X rows][4 bytes], the next chunk, ... | y scales: the same
 *
 * At the end the warps that share K add up in the ring's memory, and the CTAs that share it through the workspace
 * (sm80_split_reduce.cu), both in a fixed order.
 *
 * Shared memory a CTA, the rings or the sums, in KiB: 8x32 94, 16x32 84, 16x56 83, 32x64 55, 64x56 69, 64x64 68
 * (SM80_SHARED_BYTES); 99 is what every GPU since Ampere gives.
 *
 * Tails. Rows past the end of a tensor are not loaded: whatever lies in their place reaches only results that are not
 * stored. Along K a scale past the end is replaced by zero, and 4-bit values are finite whatever the byte. */
#include "device/cp_async.cuh"
#include "device/decode.cuh"
#include "device/epilogue.cuh"
#include "device/mma.cuh"
#include "device/shared.cuh"
#include "sm80_configs.h"

template <int TILE_M_, int TILE_N_, int TILE_K_, int STAGES_, int WARPS_, int WEIGHTS_FIRST_, int CTAS_PER_SM_>
struct config {
    static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, TILE_K = TILE_K_, STAGES = STAGES_, WARPS = WARPS_;
    static constexpr int CTAS_PER_SM = CTAS_PER_SM_;
    static constexpr bool WEIGHTS_FIRST = WEIGHTS_FIRST_;
    static constexpr int THREADS = 32 * WARPS, STAGE_K = TILE_K / WARPS, CHUNKS = STAGE_K / SM80_CHUNK;
    /* Of the sides of mma: rows, and mma tiles. */
    static constexpr int X = WEIGHTS_FIRST ? TILE_N : TILE_M, Y = WEIGHTS_FIRST ? TILE_M : TILE_N;
    static constexpr int X_MMAS = X / 16, Y_MMAS = Y / 8;
    /* Where the parts of a stage begin; x values come first. */
    static constexpr int Y_VALUES = CHUNKS * (X + 1) * 32, X_SCALES = Y_VALUES + CHUNKS * (Y + 1) * 32;
    static constexpr int Y_SCALES = X_SCALES + CHUNKS * X * 4;
    static constexpr int SUM_PITCH = SM80_SUM_PITCH(TILE_N);
    static constexpr int STAGE_BYTES = SM80_STAGE_BYTES(TILE_M, TILE_N, STAGE_K), RING_BYTES = STAGES * STAGE_BYTES;
    static constexpr int SHARED_BYTES = SM80_SHARED_BYTES(TILE_M, TILE_N, TILE_K, STAGES, WARPS);

    static_assert(TILE_K % (SM80_CHUNK * WARPS) == 0, "each warp takes as many chunks of TILE_K");
    static_assert(X % 16 == 0 && Y % 8 == 0, "whole mma tiles");
    static_assert(STAGE_BYTES % 16 == 0, "stages start on 16 bytes");
    static_assert(STAGES >= 2 && SHARED_BYTES <= 99 * 1024, "what every GPU since Ampere gives a CTA");
};

/* One operand at one batch index, and where this CTA's tile begins in it. */
struct operand {
    const uint8_t *data, *scale;
    int64_t pitch, scale_pitch, row;
    int rows; /* of the tile that exist */
};

__device__ operand operand_a(const gemm_problem &p, int64_t l, int64_t m, int tile) {
    return {p.a + l * p.a_batch, p.sfa + l * p.sfa_batch, p.a_pitch, p.sfa_pitch, m, (int)min((int64_t)tile, p.m - m)};
}

__device__ operand operand_b(const gemm_problem &p, int64_t l, int64_t n, int tile) {
    return {p.b + l * p.b_batch, p.sfb + l * p.sfb_batch, p.b_pitch, p.sfb_pitch, n, (int)min((int64_t)tile, p.n - n)};
}

constexpr int power_of_two_from(int n) {
    int power = 1;
    while (power < n) power *= 2;
    return power;
}

/* What one lane copies of one operand in every stage of its warp: pieces of 16
 * bytes of values, neighbours along a row, and words of 4 scales, neighbours
 * along the rows. Several passes of the warp cover the stage. */
template <class C, int ROWS> struct loader {
    static constexpr int PIECES = C::STAGE_K / 32;                              /* in a row of the stage */
    static constexpr int PASS_ROWS = 32 / PIECES;                               /* values: rows a pass */
    static constexpr int SCALE_ROWS = ROWS > 32 ? 32 : power_of_two_from(ROWS); /* scales: rows a pass */
    static constexpr int PASS_CHUNKS = 32 / SCALE_ROWS;                         /* scales: chunks a pass */
    static constexpr int ROW_PASSES = (ROWS + 31) / 32;
    static_assert(32 % PIECES == 0, "a lane keeps its column of values");

    const uint8_t *values, *scales[ROW_PASSES]; /* of the first pass, in the next stage */
    int64_t pass_pitch;                         /* between the values of two passes */
    int chunk_pitch;                            /* between two words of a row of scales */
    uint32_t values_to, scales_to;              /* shared addresses, in a stage at the start of the ring */
    int rows;                                   /* of values that exist, from this lane's first on */
    int scale_rows;                             /* of scales, likewise; 0 where this lane copies none */
    int chunk;                                  /* of this lane's first word of scales */

    __device__ __forceinline__ loader(const operand &x, int64_t k, bool linear, uint32_t values_at,
                                      uint32_t scales_at) {
        int lane = threadIdx.x % 32, piece = lane % PIECES, row = lane / PIECES;
        values = x.data + (x.row + row) * x.pitch + k / 2 + piece * 16;
        pass_pitch = PASS_ROWS * x.pitch;
        values_to = values_at + piece / 2 * (ROWS + 1) * 32 + piece % 2 * 16 + row * 32;
        rows = min(x.rows, ROWS) - row;

        int scale_row = lane % SCALE_ROWS;
        chunk = lane / SCALE_ROWS;
        chunk_pitch = linear ? 4 : 512;
#pragma unroll
        for (int i = 0; i < ROW_PASSES; i++) {
            int64_t at = x.row + scale_row + i * 32;
            scales[i] = x.scale + (k / SM80_CHUNK + chunk) * chunk_pitch +
                        (linear ? at * x.scale_pitch : at / 128 * x.scale_pitch + at % 32 * 16 + at % 128 / 32 * 4);
            pin(scales[i]);
        }
        scales_to = scales_at + (chunk * ROWS + scale_row) * 4;
        scale_rows = chunk < C::CHUNKS ? min(x.rows, ROWS) - scale_row : 0;
        pin(values), pin(pass_pitch), pin(chunk_pitch), pin(values_to), pin(scales_to), pin(rows), pin(scale_rows);
    }

    __device__ __forceinline__ void advance() {
        values += C::TILE_K / 2;
#pragma unroll
        for (int i = 0; i < ROW_PASSES; i++) scales[i] += C::TILE_K / SM80_CHUNK * chunk_pitch;
    }

    /* Starts the copies of a stage that K fills, from memory aligned to 16 bytes
     * and scales aligned to 4. */
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

    /* The same for any stage, of which k_left values along K exist: a scale past
     * them becomes zero. */
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

/* Adds the products of one stage to this warp's sums. at is this lane's first
 * row and its block of a chunk: row * 4 + block. */
template <class C>
__device__ __forceinline__ void multiply_stage(const uint8_t *stage, int at, float (&sums)[C::X_MMAS][C::Y_MMAS][4]) {
#pragma unroll(C::CHUNKS <= 2 ? 2 : 1)
    for (int chunk = 0; chunk < C::CHUNKS; chunk++) {
        const uint8_t *x_values = stage + chunk * (C::X + 1) * 32 + at * 8;
        const uint8_t *y_values = stage + C::Y_VALUES + chunk * (C::Y + 1) * 32 + at * 8;
        const uint8_t *x_scales = stage + C::X_SCALES + chunk * C::X * 4 + at;
        const uint8_t *y_scales = stage + C::Y_SCALES + chunk * C::Y * 4 + at;
        uint2 x[C::X_MMAS][2], y[C::Y_MMAS];
        uint32_t x_scale[C::X_MMAS], y_scale[(C::Y_MMAS + 1) / 2]; /* of two rows each */
#pragma unroll
        for (int i = 0; i < C::X_MMAS; i++) {
            x[i][0] = *(const uint2 *)(x_values + i * 16 * 32);
            x[i][1] = *(const uint2 *)(x_values + (i * 16 + 8) * 32);
            x_scale[i] = decode_scales(x_scales[i * 16 * 4], x_scales[(i * 16 + 8) * 4]);
        }
#pragma unroll
        for (int j = 0; j < C::Y_MMAS; j++) y[j] = *(const uint2 *)(y_values + j * 8 * 32);
#pragma unroll
        for (int j = 0; j < C::Y_MMAS; j += 2)
            y_scale[j / 2] = decode_scales(y_scales[j * 8 * 4], j + 1 < C::Y_MMAS ? y_scales[(j + 1) * 8 * 4] : 0);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t fx[C::X_MMAS][2][4];
#pragma unroll
            for (int i = 0; i < C::X_MMAS; i++) {
                decode_word<0>(half ? x[i][0].y : x[i][0].x, x_scale[i], fx[i][0]);
                decode_word<1>(half ? x[i][1].y : x[i][1].x, x_scale[i], fx[i][1]);
            }
#pragma unroll
            for (int j = 0; j < C::Y_MMAS; j++) {
                uint32_t fy[4], word = half ? y[j].y : y[j].x;
                if (j % 2 == 0)
                    decode_word<0>(word, y_scale[j / 2], fy);
                else
                    decode_word<1>(word, y_scale[j / 2], fy);
#pragma unroll
                for (int step = 0; step < 4; step += 2)
#pragma unroll
                    for (int i = 0; i < C::X_MMAS; i++)
                        mma_m16n8k16(sums[i][j], fx[i][0][step], fx[i][1][step], fx[i][0][step + 1], fx[i][1][step + 1],
                                     fy[step], fy[step + 1]);
            }
        }
    }
}

/* Writes this warp's sums into the tile of its part of K, fp32 [TILE_M][TILE_N
 * + 4]. */
template <class C>
__device__ __forceinline__ void put_sums(float *tile, int x_row, int y_row,
                                         const float (&sums)[C::X_MMAS][C::Y_MMAS][4]) {
#pragma unroll
    for (int i = 0; i < C::X_MMAS; i++)
#pragma unroll
        for (int j = 0; j < C::Y_MMAS; j++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int x = x_row + i * 16 + r / 2 * 8, y = y_row + j * 8 + r % 2;
                tile[C::WEIGHTS_FIRST ? y * C::SUM_PITCH + x : x * C::SUM_PITCH + y] = sums[i][j][r];
            }
}

/* Adds the parts of K up, in their order, and hands the sums to the epilogue,
 * or to the workspace where other CTAs hold the rest of K. A thread keeps 4
 * columns. */
template <class C>
__device__ __forceinline__ void finish(const gemm_problem &p, const sm80_schedule &s, const float *sums, int64_t split,
                                       int64_t l, int64_t m0, int64_t n0) {
    constexpr int GROUPS = C::TILE_N / 4, PASS_ROWS = C::THREADS / GROUPS;
    int column = threadIdx.x % GROUPS * 4, first = threadIdx.x / GROUPS;
    if (first >= PASS_ROWS || n0 + column >= p.n) return;
    column_epilogue epilogue(p, n0 + column);
    float *partial = s.partial + ((split * p.l + l) * p.m + m0) * p.n + n0 + column;
    int rows = (int)min((int64_t)C::TILE_M, p.m - m0);
#pragma unroll 2
    for (int row = first; row < rows; row += PASS_ROWS) {
        float v[4] = {};
#pragma unroll
        for (int part = 0; part < C::WARPS; part++) {
            float4 add = *(const float4 *)(sums + (part * C::TILE_M + row) * C::SUM_PITCH + column);
            v[0] += add.x, v[1] += add.y, v[2] += add.z, v[3] += add.w;
        }
        for (int i = 0; i < 4; i++) v[i] *= DECODED_PRODUCT_UNIT;
        if (s.split_k > 1)
            store_floats(partial + row * p.n, OUT_FP32, v, epilogue.count);
        else
            epilogue.store(p, l, m0 + row, v);
    }
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm80_schedule &s) {
    extern __shared__ __align__(16) uint8_t shared[];
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint8_t *ring = shared + warp * C::RING_BYTES;

    uint32_t index = blockIdx.x;
    int64_t m0 = (int64_t)(index % s.tiles_m) * C::TILE_M;
    index /= s.tiles_m;
    int64_t n0 = (int64_t)(index % s.tiles_n) * C::TILE_N;
    index /= s.tiles_n;
    uint32_t l = index % (uint32_t)p.l, split = index / (uint32_t)p.l;
    int64_t first = split * s.split_tiles;
    int tiles = (int)min(s.split_tiles, (p.k + C::TILE_K - 1) / C::TILE_K - first);

    operand a = operand_a(p, l, m0, C::TILE_M), b = operand_b(p, l, n0, C::TILE_N);
    const operand &x = C::WEIGHTS_FIRST ? b : a, &y = C::WEIGHTS_FIRST ? a : b;
    bool linear = p.scale_layout == SCALES_LINEAR;
    uint32_t ring_address = shared_address(ring);
    int64_t k = first * C::TILE_K + warp * C::STAGE_K;
    loader<C, C::X> load_x(x, k, linear, ring_address, ring_address + C::X_SCALES);
    loader<C, C::Y> load_y(y, k, linear, ring_address + C::Y_VALUES, ring_address + C::Y_SCALES);
    bool words = !linear || ((uintptr_t)x.scale | x.scale_pitch | (uintptr_t)y.scale | y.scale_pitch) % 4 == 0;
    int whole_tiles = p.aligned16 && words ? (int)min((int64_t)tiles, p.k / C::TILE_K - first) : 0;
    pin(whole_tiles);

    float sums[C::X_MMAS][C::Y_MMAS][4] = {};
    uint32_t stage = 0, ahead = 0; /* bytes into the ring */
    for (int tile = 1 - C::STAGES; tile < tiles; tile++) {
        if (tile >= 0) {
            cp_async_wait_group<C::STAGES - 2>();
            __syncwarp();
        }
        int next = tile + C::STAGES - 1;
        if (next < whole_tiles) {
            load_x.start(ahead);
            load_y.start(ahead);
        } else if (next < tiles) {
            int64_t k_left = p.k - (first + next) * C::TILE_K - warp * C::STAGE_K;
            load_x.start_ragged(ahead, k_left);
            load_y.start_ragged(ahead, k_left);
        }
        cp_async_commit_group();
        ahead = ahead + C::STAGE_BYTES == C::RING_BYTES ? 0 : ahead + C::STAGE_BYTES;
        if (tile >= 0) {
            multiply_stage<C>(ring + stage, g * 4 + t, sums);
            stage = stage + C::STAGE_BYTES == C::RING_BYTES ? 0 : stage + C::STAGE_BYTES;
        }
    }

    /* The rings' memory now holds the sums: one tile for every warp, which are
     * added in their order. */
    float *tiles_of_sums = (float *)shared;
    __syncthreads();
    put_sums<C>(tiles_of_sums + warp * C::TILE_M * C::SUM_PITCH, g, 2 * t, sums);
    __syncthreads();
    finish<C>(p, s, tiles_of_sums, split, l, m0, n0);
}

#define X(id, tile_m, tile_n, tile_k, stages, warps, weights_first, ctas_per_sm)                                       \
    extern "C" __global__ void __launch_bounds__(32 * (warps), ctas_per_sm)                                            \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm80_schedule s) {                  \
        gemm<config<tile_m, tile_n, tile_k, stages, warps, weights_first, ctas_per_sm>>(p, s);                         \
    }
SM80_GEMM_CONFIGS(X)
#undef X
