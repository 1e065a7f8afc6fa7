/* C = epilogue(A . B^T) of NVFP4 operands on the fp16 tensor cores of every GPU since Ampere.
 *
 * Both operands travel raw, 4-bit values and scales, through a ring of stages in shared memory that cp.async fills:
 *
 *   stage s      wait for its copies | barrier | start the copies of stage s + STAGES - 1 | decode and mma
 *   the barrier also says that every warp has left stage s - 1, whose place those copies take.
 *
 * Each lane decodes in registers straight into mma fragments, with no shuffle and no fp16 in memory. That works
 * because a sum over K may be taken in any order as long as A and B agree on it: of a chunk of 64 along K, lane t of
 * a quad takes block t, 16 values under one scale, as its columns 2t, 2t + 1, 2t + 8, 2t + 9 of four mma steps.
 *
 * The side of mma that is 16 rows wide is called x here, the 8-wide one y: x is A and y is B, or the other way round
 * where A has few rows (WEIGHTS_FIRST). Shared memory of a stage, per chunk of 64 along K:
 *
 *   x values [X rows][32 bytes] + 32 | ... | y values [Y rows][32 bytes] + 32 | ... | x scales [X rows][4] | y scales
 *
 * Tails. Rows past the end of a tensor are not loaded: whatever lies in their place reaches only results that are
 * not stored. Along K a scale past the end is replaced by zero, and 4-bit values are finite whatever the byte. */
#include "device/cp_async.cuh"
#include "device/decode.cuh"
#include "device/epilogue.cuh"
#include "device/mma.cuh"
#include "sm80_configs.h"

template <int TILE_M_, int TILE_N_, int TILE_K_, int STAGES_, int WARPS_M, int WARPS_N, int WARPS_K_,
          int WEIGHTS_FIRST_, int CTAS_PER_SM_>
struct config {
    static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, TILE_K = TILE_K_, STAGES = STAGES_;
    static constexpr int WARPS_K = WARPS_K_, CTAS_PER_SM = CTAS_PER_SM_;
    static constexpr bool WEIGHTS_FIRST = WEIGHTS_FIRST_;
    static constexpr int THREADS = SM80_THREADS(WARPS_M, WARPS_N, WARPS_K);
    static constexpr int CHUNKS = TILE_K / SM80_CHUNK;
    /* Of the sides of mma: rows a CTA, warps, rows a warp. */
    static constexpr int X = WEIGHTS_FIRST ? TILE_N : TILE_M, Y = WEIGHTS_FIRST ? TILE_M : TILE_N;
    static constexpr int X_WARPS = WEIGHTS_FIRST ? WARPS_N : WARPS_M, Y_WARPS = WEIGHTS_FIRST ? WARPS_M : WARPS_N;
    static constexpr int WARP_X = X / X_WARPS, WARP_Y = Y / Y_WARPS;
    static constexpr int X_MMAS = WARP_X / 16, Y_MMAS = WARP_Y / 8;
    static constexpr int SUMS = X_MMAS * Y_MMAS * 4; /* a lane */
    static constexpr int STAGE_BYTES = SM80_STAGE_BYTES(TILE_M, TILE_N, TILE_K);
    static constexpr int SHARED_BYTES = SM80_SHARED_BYTES(TILE_M, TILE_N, TILE_K, STAGES);

    static_assert(TILE_K % (SM80_CHUNK * WARPS_K) == 0, "each warp along K takes as many chunks of a stage");
    static_assert(X % (16 * X_WARPS) == 0 && Y % (8 * Y_WARPS) == 0, "warps hold whole mma tiles");
    static_assert(128 % X == 0 && 128 % Y == 0, "a tile lies in one 128-row block of scales");
    static_assert((TILE_K & (TILE_K - 1)) == 0 && THREADS % (TILE_K / 32) == 0, "threads load whole rows of a stage");
    static_assert(STAGE_BYTES % 16 == 0, "stages start on 16 bytes");
    static_assert(STAGES >= 2 && SHARED_BYTES <= 99 * 1024, "what sm_86, sm_89 and sm_120 give a CTA");
    static_assert(WARPS_K == 1 || THREADS * SUMS * 4 <= SHARED_BYTES, "the sums of all warps fit the ring");
};

/* One operand, at the batch index and the first row of this CTA's tile. */
struct operand {
    const uint8_t *data, *scale;
    int64_t pitch, scale_pitch;
    int rows;       /* of the tile that exist */
    int row_in_128; /* of the tile, in its block of scales */
};

__device__ operand operand_a(const gemm_problem &p, int64_t l, int64_t m, int tile) {
    int64_t scale_row = p.scale_layout == SCALES_LINEAR ? m : m / 128;
    return {p.a + l * p.a_batch + m * p.a_pitch,
            p.sfa + l * p.sfa_batch + scale_row * p.sfa_pitch,
            p.a_pitch,
            p.sfa_pitch,
            (int)min((int64_t)tile, p.m - m),
            (int)(m % 128)};
}

__device__ operand operand_b(const gemm_problem &p, int64_t l, int64_t n, int tile) {
    int64_t scale_row = p.scale_layout == SCALES_LINEAR ? n : n / 128;
    return {p.b + l * p.b_batch + n * p.b_pitch,
            p.sfb + l * p.sfb_batch + scale_row * p.sfb_pitch,
            p.b_pitch,
            p.sfb_pitch,
            (int)min((int64_t)tile, p.n - n),
            (int)(n % 128)};
}

/* Starts the copies of one operand's values at K = k.. of a stage; k_left is how many values the rows have there. */
template <class C, int ROWS>
__device__ __forceinline__ void load_values(uint32_t to, const operand &x, int64_t k, int64_t k_left, bool aligned16) {
    constexpr int PIECES = C::TILE_K / 32; /* of 16 bytes, in a row of the stage */
    constexpr int STEP = C::THREADS / PIECES;
    int piece = threadIdx.x % PIECES, first = threadIdx.x / PIECES;
    int valid = (int)max((int64_t)0, min((int64_t)16, k_left / 2 - piece * 16));
    const uint8_t *from = x.data + first * x.pitch + k / 2 + piece * 16;
    to += piece / 2 * (ROWS + 1) * 32 + piece % 2 * 16 + first * 32;
    if (valid == 0) return;
#pragma unroll
    for (int row = 0; row < ROWS; row += STEP, from += STEP * x.pitch, to += STEP * 32) {
        if (first + row >= x.rows) break;
        if (aligned16) {
            cp_async_16(to, from, valid);
        } else {
            cp_async_8(to, from);
            if (valid == 16) cp_async_8(to + 8, from + 8);
        }
    }
}

/* The same for its scales, a word of 4 a row and chunk. Words that end past K, or that memory does not align, are
 * put together by hand. */
template <class C, int ROWS>
__device__ __forceinline__ void load_scales(uint8_t *to, const operand &x, int64_t column, int64_t columns_left,
                                            bool linear) {
    bool aligned4 = !linear || ((uintptr_t)x.scale | (uintptr_t)x.scale_pitch) % 4 == 0;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * C::CHUNKS; i += C::THREADS) {
        int row = linear ? i / C::CHUNKS : i % ROWS, chunk = linear ? i % C::CHUNKS : i / ROWS;
        if (row >= x.rows) continue;
        uint8_t *word = to + (chunk * ROWS + row) * 4;
        int block_row = x.row_in_128 + row;
        const uint8_t *from = linear ? x.scale + row * x.scale_pitch + column + chunk * 4
                                     : x.scale + (column / 4 + chunk) * 512 + block_row % 32 * 16 + block_row / 32 * 4;
        int64_t valid = columns_left - chunk * 4;
        if (valid >= 4 && aligned4) {
            cp_async_4(shared_address(word), from);
        } else {
            for (int j = 0; j < 4; j++) word[j] = j < valid ? from[j] : 0;
        }
    }
}

template <class C>
__device__ __forceinline__ void load_stage(uint8_t *stage, const operand &x, const operand &y, const gemm_problem &p,
                                           int64_t tile) {
    int64_t k = tile * C::TILE_K, k_left = p.k - k;
    bool linear = p.scale_layout == SCALES_LINEAR;
    uint8_t *y_values = stage + C::CHUNKS * (C::X + 1) * 32, *scales = y_values + C::CHUNKS * (C::Y + 1) * 32;
    load_values<C, C::X>(shared_address(stage), x, k, k_left, p.aligned16);
    load_values<C, C::Y>(shared_address(y_values), y, k, k_left, p.aligned16);
    load_scales<C, C::X>(scales, x, k / 16, k_left / 16, linear);
    load_scales<C, C::Y>(scales + C::CHUNKS * C::X * 4, y, k / 16, k_left / 16, linear);
}

/* The block of 16 values of this lane in one row of a chunk, and its scale. */
struct raw_block {
    uint2 values;
    uint32_t scale;
};

__device__ __forceinline__ raw_block load_block(const uint8_t *values, const uint8_t *scales, int row) {
    int t = threadIdx.x % 4;
    return {*(const uint2 *)(values + row * 32 + t * 8), decode_scale(scales[row * 4 + t])};
}

/* Adds the products of one stage to this warp's sums. */
template <class C>
__device__ __forceinline__ void multiply_stage(const uint8_t *stage, int x_row, int y_row, int k_warp,
                                               float (&sums)[C::X_MMAS][C::Y_MMAS][4]) {
    const uint8_t *y_base = stage + C::CHUNKS * (C::X + 1) * 32, *x_scale_base = y_base + C::CHUNKS * (C::Y + 1) * 32;
    const uint8_t *y_scale_base = x_scale_base + C::CHUNKS * C::X * 4;
#pragma unroll(C::CHUNKS / C::WARPS_K <= 2 ? 2 : 1)
    for (int chunk = k_warp; chunk < C::CHUNKS; chunk += C::WARPS_K) {
        const uint8_t *x_values = stage + chunk * (C::X + 1) * 32, *y_values = y_base + chunk * (C::Y + 1) * 32;
        const uint8_t *x_scales = x_scale_base + chunk * C::X * 4, *y_scales = y_scale_base + chunk * C::Y * 4;
        raw_block x[C::X_MMAS][2], y[C::Y_MMAS];
#pragma unroll
        for (int i = 0; i < C::X_MMAS; i++) {
            x[i][0] = load_block(x_values, x_scales, x_row + i * 16);
            x[i][1] = load_block(x_values, x_scales, x_row + i * 16 + 8);
        }
#pragma unroll
        for (int j = 0; j < C::Y_MMAS; j++) y[j] = load_block(y_values, y_scales, y_row + j * 8);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t fx[C::X_MMAS][2][4];
#pragma unroll
            for (int i = 0; i < C::X_MMAS; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    decode_word(half ? x[i][h].values.y : x[i][h].values.x, x[i][h].scale, fx[i][h]);
#pragma unroll
            for (int j = 0; j < C::Y_MMAS; j++) {
                uint32_t fy[4];
                decode_word(half ? y[j].values.y : y[j].values.x, y[j].scale, fy);
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

/* Adds up the sums of the warps along K, in their order, through the ring's memory. Afterwards the first of them
 * holds the total. */
template <class C> __device__ __forceinline__ void add_warps(float *memory, int k_warp, float *sums) {
    constexpr int LANES = C::THREADS / C::WARPS_K; /* that hold one copy of the tile */
    int lane = threadIdx.x % LANES;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < C::SUMS; i++) memory[(k_warp * C::SUMS + i) * LANES + lane] = sums[i];
    __syncthreads();
    if (k_warp > 0) return;
    for (int w = 1; w < C::WARPS_K; w++)
#pragma unroll
        for (int i = 0; i < C::SUMS; i++) sums[i] += memory[(w * C::SUMS + i) * LANES + lane];
}

/* Sums of out[l][m][n] and out[l][m][n + 1]: to the epilogue, or to the workspace where others hold the rest. */
__device__ __forceinline__ void store_sums(const gemm_problem &p, const sm80_schedule &s, int64_t split, int64_t l,
                                           int64_t m, int64_t n, float sum0, float sum1) {
    if (m >= p.m || n >= p.n) return;
    sum0 *= DECODED_PRODUCT_UNIT, sum1 *= DECODED_PRODUCT_UNIT;
    bool both = n + 1 < p.n;
    if (s.split_k > 1) {
        float *partial = s.partial + ((split * p.l + l) * p.m + m) * p.n + n;
        partial[0] = sum0;
        if (both) partial[1] = sum1;
    } else if (both) {
        store_out_pair(p, l, m, n, sum0, sum1);
    } else {
        store_out(p, l, m, n, sum0);
    }
}

/* One sum, where the neighbours in a lane are rows of A. */
__device__ __forceinline__ void store_sum(const gemm_problem &p, const sm80_schedule &s, int64_t split, int64_t l,
                                          int64_t m, int64_t n, float sum) {
    if (m >= p.m || n >= p.n) return;
    sum *= DECODED_PRODUCT_UNIT;
    if (s.split_k > 1)
        s.partial[((split * p.l + l) * p.m + m) * p.n + n] = sum;
    else
        store_out(p, l, m, n, sum);
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm80_schedule &s) {
    extern __shared__ __align__(16) uint8_t ring[];

    int64_t index = blockIdx.x;
    int64_t m0 = index % s.tiles_m * C::TILE_M;
    index /= s.tiles_m;
    int64_t n0 = index % s.tiles_n * C::TILE_N;
    index /= s.tiles_n;
    int64_t l = index % p.l, split = index / p.l;

    operand a = operand_a(p, l, m0, C::TILE_M), b = operand_b(p, l, n0, C::TILE_N);
    const operand &x = C::WEIGHTS_FIRST ? b : a, &y = C::WEIGHTS_FIRST ? a : b;

    int64_t first = split * s.split_tiles;
    int tiles = (int)min(s.split_tiles, (p.k + C::TILE_K - 1) / C::TILE_K - first);

    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int x_warp = warp % C::X_WARPS, y_warp = warp / C::X_WARPS % C::Y_WARPS;
    int k_warp = warp / (C::X_WARPS * C::Y_WARPS);
    float sums[C::X_MMAS][C::Y_MMAS][4] = {};

    for (int tile = 0; tile < C::STAGES - 1; tile++) {
        if (tile < tiles) load_stage<C>(ring + tile * C::STAGE_BYTES, x, y, p, first + tile);
        cp_async_commit();
    }
    int stage = 0, ahead = C::STAGES - 1;
    for (int tile = 0; tile < tiles; tile++) {
        cp_async_wait<C::STAGES - 2>();
        __syncthreads();
        if (tile + C::STAGES - 1 < tiles)
            load_stage<C>(ring + ahead * C::STAGE_BYTES, x, y, p, first + tile + C::STAGES - 1);
        cp_async_commit();
        multiply_stage<C>(ring + stage * C::STAGE_BYTES, x_warp * C::WARP_X + g, y_warp * C::WARP_Y + g, k_warp, sums);
        stage = stage + 1 == C::STAGES ? 0 : stage + 1;
        ahead = ahead + 1 == C::STAGES ? 0 : ahead + 1;
    }
    if (C::WARPS_K > 1) {
        add_warps<C>((float *)ring, k_warp, &sums[0][0][0]);
        if (k_warp > 0) return;
    }

#pragma unroll
    for (int i = 0; i < C::X_MMAS; i++)
#pragma unroll
        for (int j = 0; j < C::Y_MMAS; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int x_row = x_warp * C::WARP_X + i * 16 + h * 8 + g, y_row = y_warp * C::WARP_Y + j * 8 + 2 * t;
                float sum0 = sums[i][j][2 * h], sum1 = sums[i][j][2 * h + 1];
                if (C::WEIGHTS_FIRST) {
                    store_sum(p, s, split, l, m0 + y_row, n0 + x_row, sum0);
                    store_sum(p, s, split, l, m0 + y_row + 1, n0 + x_row, sum1);
                } else {
                    store_sums(p, s, split, l, m0 + x_row, n0 + y_row, sum0, sum1);
                }
            }
}

#define X(id, tile_m, tile_n, tile_k, stages, warps_m, warps_n, warps_k, weights_first, ctas_per_sm)                   \
    extern "C" __global__ void __launch_bounds__(SM80_THREADS(warps_m, warps_n, warps_k), ctas_per_sm)                 \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm80_schedule s) {                  \
        gemm<config<tile_m, tile_n, tile_k, stages, warps_m, warps_n, warps_k, weights_first, ctas_per_sm>>(p, s);     \
    }
SM80_GEMM_CONFIGS(X)
#undef X
