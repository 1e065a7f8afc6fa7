/* C = epilogue(A . B) of fp16 or bf16 A [M, K] and NVFP4 B, whose rows k hold scales along N, on Hopper tensor cores:
 * the gradient of a linear layer's input, for many rows. Here N is the columns of C and K the sum, which the caller
 * names K and N.
 *
 * Columns of B are the 64 rows of a wgmma, dequantized into its register operand; rows of A are its N, in shared
 * memory. A fragment's pairs lie along K, so a lane takes a byte, two columns, of each of four rows of B. wgmma's row
 * 16w + g is column 16w + 2g of the warpgroup, row 16w + g + 8 the next column.
 *
 *   stage s    wait for its loads | CTA barrier | one thread issues the loads of stage s + STAGES - 2 |
 *              four times: dequantize, wgmma, wait for the wgmma before
 *
 * One wgmma is in flight while the next one's operand is dequantized, also across the barrier: stage s - 1 may still be
 * read there, so loads go to the stage before it.
 *
 * A stage in shared memory, of 64 along K:
 *
 *   A             [TILE_M rows][128 bytes], 128-byte swizzle, by TMA
 *   values of B   [64 rows][64 bytes], 64-byte swizzle, by TMA: piece i of 16 bytes of row r lies at i ^ r / 2 % 4, so
 *                 that the lanes of a quad, two rows apart, use different banks
 *   scales of B   [2 warpgroups] 128x4 atoms of 512 bytes, by bulk copies; half of one are the stage's
 *
 * Tails: TMA fills with zeros what is past the end of K. Scales there may be NaN: the last stage's are set to zero.
 * Rows past the end of A and columns past the end of B reach only results that are not stored. */
#include "kernels/common/epilogue.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/common/wgmma_m64n256.cuh"
#include "kernels/sm90/nn_config.h"

/* createpolicy.fractional evict_normal, fraction 1 (PTX ISA 9.0, section 9.7.9.20). */
static constexpr uint64_t EVICT_NORMAL = 0x1000000000000000;

template <int TYPE_, int TILE_M_, int STAGES_> struct config {
    static constexpr int TYPE = TYPE_, TILE_M = TILE_M_, STAGES = STAGES_, SUMS = TILE_M / 2;
    static constexpr int AHEAD = STAGES - 2; /* stages that loads are ahead */
    static constexpr int VALUES_OFFSET = SM90_NN_A_BYTES(TILE_M), SCALES_OFFSET = VALUES_OFFSET + SM90_NN_VALUES_BYTES;
    static constexpr int STAGE_BYTES = SM90_NN_STAGE_BYTES(TILE_M), FULL_OFFSET = STAGES * STAGE_BYTES;
    static_assert(TILE_M == 128 || TILE_M == 256, "wgmma of these widths");
    static_assert(STAGES >= 3 && STAGE_BYTES % 1024 == 0 && VALUES_OFFSET % 1024 == 0, "swizzles repeat");
    static_assert(FULL_OFFSET + 8 * STAGES == SM90_NN_SHARED_BYTES(TILE_M, STAGES), "as the host reserves it");
};

/* Four e2m1 pairs of two bytes each of `low` and `high`, without their scale: nibble 0 of both, 1, 2 and 3. */
template <int TYPE> __device__ __forceinline__ void decode(uint32_t low, uint32_t high, uint32_t (&pairs)[4]) {
    if constexpr (TYPE == OUT_FP16) {
        uint32_t columns[4];
        e2m1_pairs(__byte_perm(low, high, 0x5140), columns);
        pairs[0] = columns[0], pairs[1] = columns[2], pairs[2] = columns[1], pairs[3] = columns[3];
    } else {
        const uint32_t word = __byte_perm(low, high, 0x5410);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t codes = word << (12 - 4 * i);
            pairs[i] = and_or(codes, 0x80008000, codes >> 6 & 0x01C001C0);
        }
    }
}

template <int TYPE> __device__ __forceinline__ uint32_t multiply(uint32_t x, uint32_t y) {
    if constexpr (TYPE == OUT_FP16)
        return half2_multiply(x, y);
    else
        return bf162_multiply(x, y);
}

__device__ __forceinline__ uint32_t ld_shared_u8(uint32_t from) {
    uint16_t byte;
    asm volatile("{ .reg .u8 b; ld.shared.u8 b, [%1]; cvt.u16.u8 %0, b; }" : "=h"(byte) : "r"(from) : "memory");
    return byte;
}

/* Where a tile lies, and its loads. */
template <class C> struct tile_loads {
    const sm90_nn_schedule &s;
    const uint8_t *scales; /* of the tile's first 64 columns */
    int64_t scale_pitch;
    int32_t m0, n0, a_batch, b_batch, groups; /* groups of 64 columns that have scales */
    uint32_t bytes;                           /* of a stage */

    __device__ __forceinline__ tile_loads(const gemm_problem &p, const sm90_nn_schedule &schedule, int32_t l, int32_t m,
                                          int32_t n)
        : s(schedule), m0(m), n0(n) {
        scales = p.sfb + l * p.sfb_batch + (int64_t)(n0 / 64) * 512;
        scale_pitch = p.sfb_pitch;
        a_batch = s.a_batches == 1 ? 0 : l, b_batch = s.b_batches == 1 ? 0 : l;
        groups = p.n - n0 > 64 ? 2 : 1;
        bytes = SM90_NN_A_BYTES((int)min((int64_t)C::TILE_M, p.m)) + SM90_NN_VALUES_BYTES + groups * 512;
    }

    /* Issues the loads of a stage; one thread. */
    __device__ __forceinline__ void start(uint32_t stage, uint32_t full, int32_t tile) const {
        mbarrier_arrive_expect_tx(full, bytes);
        tma_load_3d<1>(stage, &s.a, tile * SM90_NN_STAGE_K, m0, a_batch, full, EVICT_NORMAL);
        tma_load_3d<1>(stage + C::VALUES_OFFSET, &s.b, n0 / 2, tile * SM90_NN_STAGE_K, b_batch, full, EVICT_NORMAL);
        const uint8_t *atom = scales + tile / 2 * scale_pitch;
        for (int group = 0; group < groups; group++)
            cp_async_bulk(stage + C::SCALES_OFFSET + group * 512, atom + group * 512, 512, full, EVICT_NORMAL);
    }
};

/* Place of a row's scales in its atom, of row 0 to 63 of a stage. */
__device__ __forceinline__ uint32_t scale_place(int row, int tile) {
    return row % 32 * 16 + (tile % 2 * 2 + row / 32) * 4;
}

/* Dequantizes a thread's fragment of 16 rows of B, of which 16 * step is the first in the stage. */
template <class C>
__device__ __forceinline__ void fragment(uint32_t values_at, uint32_t scales_at, int step, uint32_t selector,
                                         uint32_t (&a)[4]) {
    const uint32_t values = values_at + step * 16 * 64, scales = scales_at + scale_place(step * 16, 0);
    const uint32_t low = ld_shared_u8(values) | ld_shared_u8(values + 8 * 64) << 8;       /* rows 2t, 2t + 8 */
    const uint32_t high = ld_shared_u8(values + 64) | ld_shared_u8(values + 9 * 64) << 8; /* the rows after */
    const uint32_t words[4] = {ld_shared(scales), ld_shared(scales + 16), ld_shared(scales + 8 * 16),
                               ld_shared(scales + 9 * 16)};
    using convert = w4a16<C::TYPE>;
    const uint32_t scale[2] = {convert::scales(__byte_perm(words[0], words[1], selector) & 0x7F7F),
                               convert::scales(__byte_perm(words[2], words[3], selector) & 0x7F7F)};
    uint32_t pairs[4];
    decode<C::TYPE>(low, high, pairs);
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = multiply<C::TYPE>(pairs[i], scale[i / 2]);
}

template <class C>
__device__ __forceinline__ void mma_async(float (&d)[C::SUMS], const uint32_t (&a)[4], uint64_t b_descriptor) {
    if constexpr (C::TILE_M == 256)
        wgmma_m64n256k16<C::TYPE>(d, a, b_descriptor);
    else
        wgmma_rs<C::TILE_M, C::TYPE>::mma_async(d, a, b_descriptor, 1);
}

/* Of 8 rows of the tile a lane has two, of two columns: out[l][m][n] and [n + 1] for m from m0 on. PAIRS: no c, no
 * bias, and two columns are stored at once. c may alias out. */
template <class C, bool PAIRS, int OUT>
__device__ __forceinline__ void store_sums(const gemm_problem &p, int32_t l, int64_t m0, int64_t n,
                                           const float (&d)[C::SUMS]) {
    constexpr float UNIT = w4a16<C::TYPE>::UNIT;
    const float alpha = p.alpha ? *p.alpha : p.alpha_value;
    float bias[2] = {};
    if (!PAIRS && p.bias)
        for (int i = 0; i < 2; i++) bias[i] = load_float(p.bias, n + i, p.bias_type);
    const int item = type_bytes(OUT);
    char *out = (char *)p.out + l * p.out_batch + m0 * p.out_pitch + n * item;
    const char *c = (const char *)p.c + l * p.c_batch + m0 * p.c_pitch + n * item;
    const int rows = (int)min((int64_t)C::TILE_M, p.m - m0);
#pragma unroll
    for (int i = 0; i < C::SUMS; i += 4, out += 8 * p.out_pitch, c += 8 * p.c_pitch)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (i * 2 + r >= rows) continue;
            float v[2] = {__fmul_rn(alpha, d[i + r] * UNIT), __fmul_rn(alpha, d[i + 2 + r] * UNIT)};
            char *to = out + r * p.out_pitch;
            if (PAIRS && OUT == OUT_FP32) {
                *(float2 *)to = make_float2(v[0], v[1]);
            } else if (PAIRS) {
                *(uint32_t *)to = round_16(v[0], OUT) | (uint32_t)round_16(v[1], OUT) << 16;
            } else {
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    if (p.c) v[x] = __fmaf_rn(p.beta, load_float(c + r * p.c_pitch, x, OUT), v[x]);
                    if (p.bias) v[x] = __fadd_rn(v[x], bias[x]);
                    store_float(to, x, OUT, v[x]);
                }
            }
        }
}

template <class C, int OUT>
__device__ __forceinline__ void epilogue(const gemm_problem &p, int32_t l, int64_t m0, int64_t n,
                                         const float (&d)[C::SUMS]) {
    const bool aligned = ((uint64_t)p.out | p.out_pitch | p.out_batch) % (2 * type_bytes(OUT)) == 0;
    if (aligned && !p.c && !p.bias)
        store_sums<C, true, OUT>(p, l, m0, n, d);
    else
        store_sums<C, false, OUT>(p, l, m0, n, d);
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm90_nn_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t base = shared_address(shared);
    if (base % 1024) __trap(); /* the swizzle pattern follows absolute addresses */

    /* Concurrent tiles share rows of A and columns of B in L2. */
    const uint32_t batch = (uint32_t)s.tiles_m * s.tiles_n, in_batch = blockIdx.x % batch;
    const uint32_t band = in_batch / (SM90_NN_BAND * s.tiles_n), in_band = in_batch % (SM90_NN_BAND * s.tiles_n);
    const uint32_t width = min((uint32_t)SM90_NN_BAND, s.tiles_m - band * SM90_NN_BAND);
    const int32_t l = (int32_t)(blockIdx.x / batch), m0 = (int32_t)(band * SM90_NN_BAND + in_band % width) * C::TILE_M,
                  n0 = (int32_t)(in_band / width) * SM90_NN_TILE_N;

    const tile_loads<C> loads(p, s, l, m0, n0);
    const int tiles = (int)((p.k + SM90_NN_STAGE_K - 1) / SM90_NN_STAGE_K);
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::STAGES; i++) mbarrier_init(base + C::FULL_OFFSET + 8 * i, 1);
        fence_mbarrier_init();
        for (int tile = 0; tile < min(tiles, C::AHEAD); tile++)
            loads.start(base + tile * C::STAGE_BYTES, base + C::FULL_OFFSET + 8 * tile, tile);
    }
    __syncthreads();

    /* The lane's byte of row 2t lies in piece 2 * warpgroup + warp / 2 of 16 bytes, at the place of the swizzle. */
    const uint32_t values_at = C::VALUES_OFFSET + 2 * t * 64 + ((2 * warpgroup + warp / 2) ^ t) * 16 + warp % 2 * 8 + g;
    const uint32_t scales_at = C::SCALES_OFFSET + warpgroup * 512 + 2 * t * 16;
    const uint32_t selector = warp | (4 + warp) << 4; /* the warp's byte of two words */

    float d[C::SUMS];
#pragma unroll
    for (int i = 0; i < C::SUMS; i++) d[i] = 0.0f;
    uint32_t a[2][4];
    pipeline_state<C::STAGES> state;
    uint32_t next = C::AHEAD; /* index of the stage that loads go to */
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++, state.advance()) {
        const uint32_t stage = base + state.index * C::STAGE_BYTES;
        mbarrier_wait(base + C::FULL_OFFSET + 8 * state.index, state.phase);
        const int k_left = tile == tiles - 1 ? (int)(p.k - (int64_t)tile * SM90_NN_STAGE_K) : SM90_NN_STAGE_K;
        if (k_left < SM90_NN_STAGE_K && threadIdx.x < 128 && threadIdx.x % 64 >= k_left)
            st_shared(stage + C::SCALES_OFFSET + threadIdx.x / 64 * 512 + scale_place(threadIdx.x % 64, tile), 0);
        __syncthreads();
        if (threadIdx.x == 0 && tile + C::AHEAD < tiles)
            loads.start(base + next * C::STAGE_BYTES, base + C::FULL_OFFSET + 8 * next, tile + C::AHEAD);
        next = next + 1 == C::STAGES ? 0 : next + 1;
        const uint64_t b_descriptor = wgmma_smem_descriptor(stage);
        const uint32_t scales = stage + scales_at + scale_place(0, tile);
#pragma unroll
        for (int step = 0; step < 4; step++) {
            fragment<C>(stage + values_at, scales, step, selector, a[step % 2]);
            wgmma_fence();
            mma_async<C>(d, a[step % 2], b_descriptor + 2 * step);
            wgmma_commit_group();
            wgmma_wait_group<1>();
        }
    }
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < C::SUMS; i++) pin_float(d[i]);
    const int64_t n = n0 + warpgroup * 64 + warp * 16 + 2 * g, m = (int64_t)m0 + 2 * t;
    if (n >= p.n) return;
    if (p.out_type == OUT_FP16)
        epilogue<C, OUT_FP16>(p, l, m, n, d);
    else if (p.out_type == OUT_BF16)
        epilogue<C, OUT_BF16>(p, l, m, n, d);
    else
        epilogue<C, OUT_FP32>(p, l, m, n, d);
}

#define KERNEL(id, tile_m, stages, ctas_per_sm, bf16)                                                                  \
    extern "C" __global__ void __launch_bounds__(SM90_NN_THREADS, ctas_per_sm)                                         \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_nn_schedule s) {               \
        gemm<config<(bf16) ? OUT_BF16 : OUT_FP16, tile_m, stages>>(p, s);                                              \
    }
SM90_NN_CONFIGS(KERNEL)
