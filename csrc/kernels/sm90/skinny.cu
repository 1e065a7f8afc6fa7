/* C = epilogue(A . B^T) of NVFP4 operands for a few rows of A on Hopper, with mma.sync m16n8k16. B is the operand with
 * 16 rows an mma.
 *
 * The warps of a CTA share a tile of B and all of A, and split K: warp w takes steps w, w + WARPS, ... of 256 values.
 * Each has a pipeline of its own, filled by TMA, and waits for no other warp before the final sum:
 *
 *   step    wait for the stage's mbarrier | dequantize both operands and mma, 64 values at a time | warp barrier |
 *           one lane issues the loads of the step STAGES steps later
 *   end     CTA barrier | accumulators to shared memory | CTA barrier | a thread adds those of all warps for two rows
 *           of a column, in the order of the warps, and runs the epilogue
 *
 * A stage in shared memory; a unit is 8 rows of 128 bytes with the 128-byte swizzle of TMA:
 *
 *   values   units of B | units of A
 *   scales   of each 128-row block of B that the tile touches 4 blocks of 512 bytes of the 128x4 layout | of the 4
 *            blocks of A the first 8 * A_UNITS rows
 *
 * In a chunk of 64 along K, lane t of a quad takes block t, 16 values under one scale, of its row in every unit: 8
 * bytes, two words, four steps of the mma along K. Row g of an mma is row g % 4 * 2 + g / 4 of a unit of B, so that the
 * 16 lanes that shared memory serves at a time find their 8 bytes in different banks.
 *
 * Hopper issues no instruction of the ALU pipe beside mma.sync (fitted to 6 loops: 2 clocks for each of the former, 5.8
 * for each of the latter). So weights are converted with as few of them as possible: 9 for 8 values.
 *
 * Tails: TMA loads zeros past the end of K and of the rows of B. Of A it loads the rows that exist: it takes some 10
 * clocks to fill one with zeros, and the others, like scales past the ends of the rows, reach only results that are not
 * stored. Scales past the end of K may be NaN and are masked. */
#include "kernels/common/cluster.cuh"
#include "kernels/common/decode.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/sm90/skinny_config.h"

template <int A_UNITS_, int B_UNITS_, int WARPS_, int STAGES_> struct config {
    static constexpr int A_UNITS = A_UNITS_, B_UNITS = B_UNITS_, WARPS = WARPS_, STAGES = STAGES_;
    static constexpr int ROWS = 8 * B_UNITS; /* of B in a tile */
    static constexpr int MMAS_B = (B_UNITS + 1) / 2, SUM_TILES = MMAS_B * A_UNITS;
    static constexpr int SCALE_BLOCKS = SM90_SKINNY_SCALE_BLOCKS(B_UNITS), B_SCALES_BYTES = SM90_SKINNY_CHUNKS * 512;
    static constexpr int VALUES_BYTES = SM90_SKINNY_VALUES_BYTES(A_UNITS, B_UNITS);
    static constexpr int SCALES_BYTES = SM90_SKINNY_SCALES_BYTES(A_UNITS, B_UNITS);
    static constexpr int SCALES_OFFSET = WARPS * STAGES * VALUES_BYTES,
                         BARRIERS_OFFSET = SCALES_OFFSET + WARPS * STAGES * SCALES_BYTES;
    static_assert(WARPS == SM90_SKINNY_WARPS, "the launch has so many");
    static_assert(A_UNITS == 1 || A_UNITS == 2, "scales of two units make a pair");
};

constexpr float PRODUCT_UNIT = 268435456.0f; /* (2^14)^2: both operands */

/* The 8 values of a word times one half of `scales`, as 4 pairs. The upper bytes of fp16 are e5m2: an e2m1 code with
 * its lower bits at the exponent's low end is value * 2^-14. Products with a scale are multiples of 2^-24, exact in
 * fp16. */
template <int half> __device__ __forceinline__ void decode(uint32_t word, uint32_t scales, uint32_t (&pairs)[4]) {
    const uint32_t even = and_or(word << 4, 0x80808080, (word << 1) & 0x0E0E0E0E);
    const uint32_t odd = and_or(word, 0x80808080, (word >> 3) & 0x0E0E0E0E);
    pairs[0] = __byte_perm(even, 0, 0x1404), pairs[1] = __byte_perm(even, 0, 0x3424);
    pairs[2] = __byte_perm(odd, 0, 0x1404), pairs[3] = __byte_perm(odd, 0, 0x3424);
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = half2_multiply(pairs[i], both_halves<half>(scales));
}

/* Two scale bytes to a pair. mask: 0x7F7F, or 0 past the end of K. */
__device__ __forceinline__ uint32_t scale_pair(uint32_t first, uint32_t second, uint32_t mask) {
    uint32_t pair, unused;
    e4m3x4_to_half2x2((first | second << 8) & mask, pair, unused);
    return pair;
}

/* Row of a unit of B that is row g of an mma. */
__device__ __forceinline__ int row_of_unit(int g) {
    return g % 4 * 2 + g / 4;
}

/* The loads of one warp, by one lane. */
template <class C> struct loader {
    uint32_t values, scales, barriers; /* of the warp's first stage */

    __device__ __forceinline__ void start(const gemm_problem &p, const sm90_skinny_schedule &s, int batch, int n0,
                                          int step, int stage) const {
        const uint32_t full = barriers + stage * 8, to = values + stage * C::VALUES_BYTES,
                       to_scales = scales + stage * C::SCALES_BYTES;
        const int chunks = max(min(SM90_SKINNY_CHUNKS, (int)((p.k + 63) / 64) - step * SM90_SKINNY_CHUNKS), 0);
        const int block = n0 / 128, more = C::SCALE_BLOCKS == 2 && n0 % 128 > 128 - C::ROWS && (block + 1) * 128 < p.n;
        const int rows = C::ROWS + (int)p.m;
        mbarrier_arrive_expect_tx(full,
                                  rows * (SM90_SKINNY_STEP_K / 2) + chunks * (512 + more * 512 + C::A_UNITS * 128));
        const int x = step * (SM90_SKINNY_STEP_K / 2);
        tma_load_3d<1>(to, &s.b, x, n0, batch, full, s.b_cache_policy);
        tma_load_3d<1>(to + C::B_UNITS * SM90_SKINNY_UNIT, &s.a, x, 0, batch, full, s.a_cache_policy);
        if (chunks == 0) return;
        const int64_t first = (int64_t)step * (SM90_SKINNY_CHUNKS * 512);
        const uint8_t *b = p.sfb + batch * p.sfb_batch + block * p.sfb_pitch + first;
        const uint8_t *a = p.sfa + batch * p.sfa_batch + first;
        cp_async_bulk(to_scales, b, chunks * 512, full, s.b_cache_policy);
        if (more) cp_async_bulk(to_scales + C::B_SCALES_BYTES, b + p.sfb_pitch, chunks * 512, full, s.b_cache_policy);
        const uint32_t to_a = to_scales + C::SCALE_BLOCKS * C::B_SCALES_BYTES;
#pragma unroll
        for (int i = 0; i < SM90_SKINNY_CHUNKS; i++)
            if (i < chunks)
                cp_async_bulk(to_a + i * C::A_UNITS * 128, a + i * 512, C::A_UNITS * 128, full, s.a_cache_policy);
    }
};

/* mma of 64 values along K; all pointers are the lane's. b_scales[i]: where unit i's scales lie. */
template <class C>
__device__ __forceinline__ void mma_chunk(const uint8_t *b, const uint8_t *a, const uint8_t *sfb, const uint8_t *sfa,
                                          const uint32_t (&b_scales)[C::B_UNITS], uint32_t mask,
                                          float (&sums)[C::MMAS_B][C::A_UNITS][4]) {
    uint32_t a_fragment[C::A_UNITS][2][4];
    const uint32_t a_pair = scale_pair(sfa[0], C::A_UNITS == 2 ? sfa[128] : 0, mask);
    const uint2 a_words = *(const uint2 *)a;
    decode<0>(a_words.x, a_pair, a_fragment[0][0]);
    decode<0>(a_words.y, a_pair, a_fragment[0][1]);
    if constexpr (C::A_UNITS == 2) {
        const uint2 second = *(const uint2 *)(a + SM90_SKINNY_UNIT);
        decode<1>(second.x, a_pair, a_fragment[1][0]);
        decode<1>(second.y, a_pair, a_fragment[1][1]);
    }
#pragma unroll
    for (int j = 0; j < C::MMAS_B; j++) {
        constexpr int LAST = C::B_UNITS - 1;
        const bool two = 2 * j < LAST; /* else rows 8 to 15 of the mma are zeros */
        const uint2 low = *(const uint2 *)(b + 2 * j * SM90_SKINNY_UNIT);
        const uint2 high = two ? *(const uint2 *)(b + (2 * j + 1) * SM90_SKINNY_UNIT) : make_uint2(0, 0);
        const uint32_t pair = scale_pair(sfb[b_scales[2 * j]], two ? sfb[b_scales[two ? 2 * j + 1 : LAST]] : 0, mask);
#pragma unroll
        for (int word = 0; word < 2; word++) {
            uint32_t x[4], y[4] = {};
            decode<0>(word ? low.y : low.x, pair, x);
            if (two) decode<1>(word ? high.y : high.x, pair, y);
#pragma unroll
            for (int k = 0; k < 4; k += 2)
#pragma unroll
                for (int i = 0; i < C::A_UNITS; i++)
                    mma_m16n8k16(sums[j][i], x[k], y[k], x[k + 1], y[k + 1], a_fragment[i][word][k],
                                 a_fragment[i][word][k + 1]);
        }
    }
}

__device__ __forceinline__ void prefetch(const void *address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* Prefetches the epilogue's inputs of a tile to L2, which the loads of B have left cold. */
template <class C> __device__ __forceinline__ void prefetch_epilogue(const gemm_problem &p, int64_t batch, int64_t n0) {
    const int64_t n = n0 + threadIdx.x;
    if ((int)threadIdx.x >= C::ROWS || n >= p.n || !(p.alpha || p.bias || p.c)) return;
    if (p.alpha) prefetch(p.alpha + n * p.alpha_stride);
    if (p.bias) prefetch((const char *)p.bias + n * type_bytes(p.bias_type));
#pragma unroll 1
    for (int m = 0; p.c && m < p.m; m++)
        prefetch((const char *)p.c + batch * p.c_batch + m * p.c_pitch + n * type_bytes(p.out_type));
}

template <class C> __device__ __forceinline__ void skinny(const gemm_problem &p, const sm90_skinny_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int batch = p.l > 1 ? blockIdx.x / s.ctas : 0, cta = blockIdx.x - batch * s.ctas;
    const uint32_t base = shared_address(shared);
    const loader<C> load = {base + warp * C::STAGES * C::VALUES_BYTES,
                            base + C::SCALES_OFFSET + warp * C::STAGES * C::SCALES_BYTES,
                            base + C::BARRIERS_OFFSET + warp * C::STAGES * 8};
    if (elect_one()) {
        for (int i = 0; i < C::STAGES; i++) mbarrier_init(load.barriers + i * 8, 1);
        fence_mbarrier_init();
        prefetch_tensormap(&s.b);
        prefetch_tensormap(&s.a);
    }
    __syncwarp();
    const int tiles = s.tiles > s.ctas ? (s.tiles - cta + s.ctas - 1) / s.ctas : 1;
    const int of_tile = max((s.steps - warp + C::WARPS - 1) / C::WARPS, 1); /* steps of this warp: one may be past K */
    int load_n0 = cta * C::ROWS, load_step = warp, load_stage = 0, n0 = load_n0, step = warp, stage = 0, phase = 0;

    griddepcontrol_wait();
    griddepcontrol_launch_dependents();

    uint32_t b_scales[C::B_UNITS];
    float sums[C::MMAS_B][C::A_UNITS][4] = {};
    const int row = row_of_unit(g), scale_blocks_k = (int)(p.k / 16);
    const uint32_t in_b = row * 128 + (t / 2 ^ row) * 16 + t % 2 * 8, in_a = g * 128 + (t / 2 ^ g) * 16 + t % 2 * 8;
#pragma unroll 1
    for (int i = -C::STAGES; i < tiles * of_tile; i++) {
        if (i >= 0) {
            if (step == warp) {
#pragma unroll
                for (int unit = 0; unit < C::B_UNITS; unit++) {
                    const uint32_t r = (uint32_t)n0 % 128 + unit * 8;
                    b_scales[unit] = r / 128 * C::B_SCALES_BYTES + r % 32 * 16 + r / 32 % 4 * 4;
                }
                prefetch_epilogue<C>(p, batch, n0);
            }
            mbarrier_wait(load.barriers + stage * 8, phase);
            const uint8_t *values = shared + (warp * C::STAGES + stage) * C::VALUES_BYTES;
            const uint8_t *scales = shared + C::SCALES_OFFSET + (warp * C::STAGES + stage) * C::SCALES_BYTES + t;
#pragma unroll 1
            for (int chunk = 0; chunk < SM90_SKINNY_CHUNKS; chunk++) {
                const bool exists = (step * SM90_SKINNY_CHUNKS + chunk) * 4 + t < scale_blocks_k;
                mma_chunk<C>(values + (in_b ^ chunk * 32), values + C::B_UNITS * SM90_SKINNY_UNIT + (in_a ^ chunk * 32),
                             scales + chunk * 512 + row * 16,
                             scales + C::SCALE_BLOCKS * C::B_SCALES_BYTES + chunk * C::A_UNITS * 128 + g * 16, b_scales,
                             exists ? 0x7F7F : 0, sums);
            }
            __syncwarp();
            step += C::WARPS;
            if (++stage == C::STAGES) stage = 0, phase ^= 1;
        }
        if (i + C::STAGES < tiles * of_tile) {
            if (elect_one()) load.start(p, s, batch, load_n0, load_step, load_stage);
            if (++load_stage == C::STAGES) load_stage = 0;
            load_step += C::WARPS;
            if (load_step >= s.steps) load_step = warp, load_n0 += s.ctas * C::ROWS;
        }
        if (i < 0 || step < s.steps) continue;

        /* The end of a tile. The first barrier: all warps have used what lies where the sums go. */
        __syncthreads();
        float4 *const all = (float4 *)(shared + s.sums_offset);
#pragma unroll
        for (int j = 0; j < C::SUM_TILES; j++) {
            float (&v)[4] = sums[j / C::A_UNITS][j % C::A_UNITS];
            all[(warp * C::SUM_TILES + j) * 32 + lane] = make_float4(v[0], v[1], v[2], v[3]);
            v[0] = v[1] = v[2] = v[3] = 0.0f;
        }
        __syncthreads();
#pragma unroll 1
        for (int index = threadIdx.x; index < C::SUM_TILES * 64; index += SM90_SKINNY_THREADS) {
            const int tile = index / 64, of = index / 2 % 32, unit = tile / C::A_UNITS * 2 + index % 2;
            const int m = tile % C::A_UNITS * 8 + of % 4 * 2;
            const int64_t n = n0 + unit * 8 + row_of_unit(of / 4);
            if (unit >= C::B_UNITS || n >= p.n || m >= p.m) continue;
            float v[2] = {};
#pragma unroll
            for (int w = 0; w < C::WARPS; w++) {
                const float2 add = ((const float2 *)all)[w * C::SUM_TILES * 64 + index];
                v[0] = __fadd_rn(v[0], add.x), v[1] = __fadd_rn(v[1], add.y);
            }
            v[0] *= PRODUCT_UNIT, v[1] *= PRODUCT_UNIT;
            if (p.c || p.bias)
                one_column_epilogue(p, n).store<false>(p, batch, m, v, (int)p.m - m);
            else
                one_column_epilogue(p, n).store<true>(p, batch, m, v, (int)p.m - m);
        }
        step = warp, n0 += s.ctas * C::ROWS;
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(SM90_SKINNY_THREADS, 1)                                               \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_skinny_schedule s) {           \
        skinny<config<__VA_ARGS__>>(p, s);                                                                             \
    }
SM90_SKINNY_CONFIGS(KERNEL)
