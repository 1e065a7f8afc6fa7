/* C = epilogue(A . B^T) of NVFP4 operands for 1 to 4 rows of A on Hopper, bound by reading B. Integer dot products, no
 * tensor cores.
 *
 * Twice an e2m1 value is an integer of magnitude at most 12, so the 16 products under one pair of scales sum exactly in
 * dp4a. The product of the two scales is exact in fp32, and costs one fma a block of 16. prmt maps codes to bytes: each
 * selector picks one of eight table bytes, or, with its top bit set, replicates the sign of the picked byte.
 *
 *   1 row of A       tables of positive bytes: negative codes give 0; with flipped sign bits, positive codes do. The
 *                    sum is one dp4a chain minus the other. 7 instructions and 4 dp4a for 8 values.
 *   2 or 4 rows      tables of 2v - 116, all negative: the wrong half of the codes gives 0xFF, and the AND of both
 *                    halves is 2v - 116. 9 instructions, then 2 dp4a a row of A. dp4a starts from 116 times the sum
 *                    of A's block.
 *
 * dp4a accumulates onto the bits of 1.5 * 2^23, so one subtraction converts the sum to float.
 *
 * The grid is one CTA an SM. A tile is 8 rows of B: rows i and i + 1 of the four quarters of a 128-row block
 * (sm90/gemv_config.h). 2^log2_split_k warps split a tile along K, in steps of 512. Half a warp takes row i, the other
 * half row i + 1; a lane has 32 values (two blocks of 16) of each quarter.
 *
 *   all threads   cp.async of A, e2m1
 *   each warp     cp.async of its first STAGES steps of B
 *   all threads   dequantize A to int8 and fp32 scales in shared memory; CTA barrier
 *   each warp     step i: wait for its copies; warp barrier; dot products; warp barrier; cp.async of step i +
 *                 STAGES. After the last step of a tile: reduce over lanes, 8 partial sums to shared memory
 *   all threads   CTA barrier; a thread a column adds the partials in the order of K and runs the epilogue
 *
 * Each warp has its own cp.async pipeline. A stage:
 *
 *   values [4 quarters][32 lanes][16 bytes] | scales [2 rows][8 blocks of 64 along K][4 quarters][4 bytes]
 *
 * A lane copies the scales as 16 bytes from the 128x4 layout, as 4 bytes from aligned linear scales, else byte by byte.
 * The kernel has only 8 to 16 warps on 4 schedulers, and no load is in flight before the first copies are issued. So
 * the copies' addresses are kept in registers, and start-up and steps share one loop.
 *
 * Shared memory for 7168x16384 on 132 SMs: 1 row 76 KiB (partials 1.8, A 20, stages 54), 2 rows 127, 4 rows 182. If
 * the grid fits the SMs, a launch asks for at least 113, so that a CTA is alone on its SM (sm90/gemv_plan.c).
 *
 * Tails: rows past the end are not loaded; stale data there reach only sums that are not stored. Past the end of K, A
 * and the scales of B are zero, since stale scales may be NaN. */
#include "kernels/common/cluster.cuh"
#include "kernels/common/cp_async.cuh"
#include "kernels/common/decode.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/placement.cuh"
#include "kernels/common/shared.cuh"
#include "kernels/sm90/gemv_config.h"
#include "kernels/sm90/gemv_quantize.cuh"

template <int ROWS_, int WARPS_, int STAGES_, int X_ = 0> struct config {
    static constexpr bool QUANTIZES = X_ != 0; /* A, which has 16 bits */
    static constexpr int X_TYPE = X_ == 1 ? NVFP4_FP16 : NVFP4_BF16;
    static constexpr int ROWS = ROWS_, WARPS = WARPS_, STAGES = STAGES_, THREADS = SM90_GEMV_THREADS(WARPS);
    static constexpr int LOG2_WARPS = WARPS == 8 ? 3 : WARPS == 16 ? 4 : 5;
    static_assert(1 << LOG2_WARPS == WARPS, "8, 16 or 32 warps");
    static constexpr int SUMS = 4 * ROWS; /* of a lane: one for each quarter and row of A */
    static_assert(ROWS == 1 || ROWS == 2 || ROWS == 4, "sums are halved from lane to lane");
    static_assert(STAGES >= 1, "a stage to copy to");
    static_assert(ROWS == 1 || !QUANTIZES, "a kernel that quantizes has one row");
};

constexpr int CHUNK_K = 32;                                              /* values of a row of a lane */
constexpr int STEP_CHUNKS = SM90_GEMV_STEP_K / CHUNK_K;                  /* lanes that share a row */
constexpr int SCALES_OFFSET = SM90_GEMV_TILE_N * (SM90_GEMV_STEP_K / 2); /* in a stage */
constexpr uint32_t SUM_BASE = 0x4B400000; /* 1.5 * 2^23: its bits plus a small integer are a float */

__device__ __forceinline__ float from_sum_base(uint32_t sum) {
    return __fadd_rn(__uint_as_float(sum), -__uint_as_float(SUM_BASE));
}

/* prmt: the bytes that the 4 low codes select; codes with the sign bit give 0 or 0xFF (file header). */
__device__ __forceinline__ uint32_t choose(uint32_t low, uint32_t high, uint32_t codes) {
    uint32_t bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(codes));
    return bytes;
}

/* The upper half of a word, by dp2a: the unit that shifts is busier than the one that multiplies. */
__device__ __forceinline__ uint32_t upper_half(uint32_t word) {
    return __dp2a_lo(word, 0x0100u, 0u);
}

/* Keeps a constant in a register of its own: the compiler would move it from a uniform register before each use. tid.x
 * is below 1024, so the AND gives 0, which ptxas does not know. */
__device__ __forceinline__ uint32_t in_register(uint32_t word) {
    uint32_t result;
    asm("{.reg .u32 t; mov.u32 t, %%tid.x; and.b32 t, t, 0x8000; xor.b32 %0, t, %1;}" : "=r"(result) : "r"(word));
    return result;
}

/* The prmt table words that are not immediates. */
struct code_tables {
    uint32_t low = in_register(0x03020100), low_above = in_register(0x8F8E8D8C), low_below = in_register(0x898A8B8C);

    /* 2|v| for codes without the sign bit, else 0. */
    __device__ __forceinline__ uint32_t positive(uint32_t codes) const { return choose(low, 0x0C080604, codes); }

    /* 2v - 116, signed, from 4 codes and the same codes with flipped signs. */
    __device__ __forceinline__ uint32_t lowered(uint32_t codes, uint32_t flipped) const {
        return choose(low_above, 0x98949290, codes) & choose(low_below, 0x80848688, flipped);
    }

    /* 2v, signed. The bytewise subtraction cannot borrow: the minuend's top bits are set. */
    __device__ __forceinline__ uint32_t doubled(uint32_t codes) const {
        return ((positive(codes) | 0x80808080) - positive(codes ^ 0x8888)) ^ 0x80808080;
    }
};

/* A in shared memory. For each row: int8 values of the first block of every chunk, of the second block, then for every
 * chunk two scales and, with several rows, the two start values of dp4a. */
template <class C, bool FAST> struct a_in_shared {
    static constexpr int FACTORS_BYTES = C::ROWS == 1 ? 8 : 16;

    uint8_t *base;
    int chunks;

    __device__ __forceinline__ uint8_t *row(int m) const { return base + m * chunks * (CHUNK_K + FACTORS_BYTES); }
    __device__ __forceinline__ uint4 *bytes(int m, int block, int chunk) const {
        return (uint4 *)row(m) + block * chunks + chunk;
    }
    __device__ __forceinline__ uint8_t *factors(int m, int chunk) const {
        return row(m) + chunks * CHUNK_K + chunk * FACTORS_BYTES;
    }

    /* Codes of a block of the first row and its scale, where copy puts them. */
    __device__ __forceinline__ void place(int block, uint2 *&codes, uint8_t *&scale) const {
        const int chunk = block / 2;
        codes = (uint2 *)bytes(0, 1, chunk) + block % 2;
        scale = factors(0, chunk) + chunk % 2 * 2 + block % 2;
    }

    /* Issues the copies of a chunk: e2m1 values to the place of the second block, scales to the factors. */
    __device__ __forceinline__ void copy(const gemm_problem &p, int64_t batch, int m, int chunk) const {
        const int64_t left = p.k - (int64_t)chunk * CHUNK_K;
        if (m >= p.m || left <= 0) return;
        const uint8_t *from = p.a + batch * p.a_batch + m * p.a_pitch + chunk * (CHUNK_K / 2);
        const uint8_t *scale = p.scale_a + batch * p.scale_a_batch;
        const uint32_t to = shared_address(bytes(m, 1, chunk)), scales = shared_address(factors(m, chunk));
        if (FAST || (p.aligned16 && left >= CHUNK_K)) {
            cp_async_16(to, from);
        } else {
            cp_async_8(to, from);
            if (left >= CHUNK_K) cp_async_8(to + 8, from + 8);
        }
        if (FAST || p.scale_layout != NVFP4_LINEAR) {
            cp_async_4(scales, scale + chunk / 2 * 512 + m * 16);
        } else {
            scale += m * p.scale_a_pitch + chunk * 2;
            uint32_t pair = scale[0];
            if (left >= CHUNK_K) pair |= (uint32_t)scale[1] << 8;
            st_shared(scales, pair << chunk % 2 * 16);
        }
    }

    /* Dequantizes a chunk in place. Zeros past the end. */
    __device__ __forceinline__ void decode(const gemm_problem &p, const code_tables &tables, int m, int chunk) const {
        const int blocks = m < p.m ? (int)(p.k / 16) - chunk * 2 : 0;
        const uint32_t raw_scales = *(const uint32_t *)factors(m, chunk) >> chunk % 2 * 16;
#pragma unroll 1
        for (int block = 0; block < 2; block++) {
            uint2 codes = ((const uint2 *)bytes(m, 1, chunk))[block];
            uint32_t scale = raw_scales >> block * 8 & 0x7F;
            if (block >= blocks) codes = make_uint2(0, 0), scale = 0;
            uint4 v = make_uint4(tables.doubled(codes.x), tables.doubled(codes.x >> 16), tables.doubled(codes.y),
                                 tables.doubled(codes.y >> 16));
            *bytes(m, block, chunk) = v;
            uint32_t *to = (uint32_t *)factors(m, chunk) + block;
            uint32_t pair = decode_scales(scale, 0);
            to[0] = __float_as_uint(__low2float(*(const __half2 *)&pair));
            if (C::ROWS > 1) {
                int sum = __dp4a((int)v.x, 0x01010101, 0);
                sum = __dp4a((int)v.y, 0x01010101, sum);
                sum = __dp4a((int)v.z, 0x01010101, sum);
                to[2] = SUM_BASE + 116 * __dp4a((int)v.w, 0x01010101, sum);
            }
        }
    }
};

/* Position of a warp in its tiles and steps. */
struct position {
    int tile, step;

    /* True if it enters another tile. */
    __device__ __forceinline__ bool advance(int begin, int end, int tile_step) {
        if (++step < end) return false;
        step = begin, tile += tile_step;
        return true;
    }
};

/* 16 bytes that are read once: evict_first, so that they displace each other in L2 and nothing else. */
__device__ __forceinline__ void cp_async_16_once(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "l"(0x12F0000000000000) /* evict_first, fraction 1 */
                 : "memory");
}

/* Source addresses of a lane's copies of B. FAST: 128x4 scales, rows on 16 bytes, K a multiple of CHUNK_K. */
template <bool FAST> struct b_source {
    const uint8_t *first_values, *first_scales; /* of tile 0, at the warp's first step */
    const uint8_t *values, *scales;
    uint32_t row; /* of the first quarter */
    int quarters; /* number of quarters in which the row exists */
    /* FAST, pinned to registers: pitches of b and its scales, 32 rows of b, steps in which the lane's chunk exists. */
    uint32_t pitch, scale_pitch, quarter_bytes;
    int steps;

    __device__ __forceinline__ b_source(const gemm_problem &p, int64_t batch, int step, int lane)
        : pitch((uint32_t)p.b_pitch), scale_pitch((uint32_t)p.scale_b_pitch), quarter_bytes(32 * (uint32_t)p.b_pitch),
          steps(((int)(p.k / CHUNK_K) - lane % STEP_CHUNKS + STEP_CHUNKS - 1) / STEP_CHUNKS) {
        pin(pitch), pin(scale_pitch), pin(quarter_bytes), pin(steps);
        const int half = lane / STEP_CHUNKS, chunk = lane % STEP_CHUNKS;
        first_values =
            p.b + batch * p.b_batch + half * p.b_pitch + step * (SM90_GEMV_STEP_K / 2) + chunk * (CHUNK_K / 2);
        first_scales = p.scale_b + batch * p.scale_b_batch;
        if (FAST || p.scale_layout != NVFP4_LINEAR)
            first_scales += (step * (SM90_GEMV_STEP_K / 64) + chunk / 2) * 512 + half * 16;
        else /* the lane has two quarters of a block of 64 */
            first_scales += (half + chunk % 2 * 64) * p.scale_b_pitch + step * (SM90_GEMV_STEP_K / 16) + chunk / 2 * 4;
    }

    __device__ __forceinline__ void begin_tile(const gemm_problem &p, uint32_t tile, int lane) {
        const uint32_t block = tile / 16, pair = tile % 16 * 2;
        row = block * 128 + pair;
        if constexpr (FAST) {
            values = first_values + row * (uint64_t)pitch;
            scales = first_scales + block * (uint64_t)scale_pitch + pair * 16;
        } else {
            values = first_values + row * (uint64_t)p.b_pitch;
            scales = first_scales + (p.scale_layout != NVFP4_LINEAR ? block * (uint64_t)p.scale_b_pitch + pair * 16
                                                                    : row * (uint64_t)p.scale_b_pitch);
        }
        row += lane / STEP_CHUNKS;
        quarters = (((int)p.n - (int)row - 1) >> 5) + 1;
    }

    __device__ __forceinline__ void next_step(const gemm_problem &p) {
        values += SM90_GEMV_STEP_K / 2;
        scales += FAST || p.scale_layout != NVFP4_LINEAR ? SM90_GEMV_STEP_K / 64 * 512 : SM90_GEMV_STEP_K / 16;
    }

    /* to, to_scales: this lane's addresses in the stage. */
    __device__ __forceinline__ void copy(const gemm_problem &p, int step, int lane, uint32_t to,
                                         uint32_t to_scales) const {
        if constexpr (FAST) {
            const int exist = step < steps ? quarters : 0;
            const uint8_t *from = values;
#pragma unroll
            for (int j = 0; j < 4; j++, from += quarter_bytes)
                if (j < exist) cp_async_16_once(to + j * 512, from);
            if (lane % 2 == 0 && step < steps) cp_async_16_once(to_scales, scales);
        } else {
            const int chunk = step * STEP_CHUNKS + lane % STEP_CHUNKS;
            const int64_t left = p.k - (int64_t)chunk * CHUNK_K; /* values of the row from here on */
            const int blocks = (int)(p.k / 16) - chunk / 2 * 4;  /* scales of the row from the lane's block of 64 on */
#pragma unroll 1
            for (int j = 0; j < min(quarters, 4) && left > 0; j++) {
                const uint8_t *from = values + j * 32 * p.b_pitch;
                if (p.aligned16 && left >= CHUNK_K) {
                    cp_async_16(to + j * 512, from);
                } else {
                    cp_async_8(to + j * 512, from);
                    if (left >= CHUNK_K) cp_async_8(to + j * 512 + 8, from + 8);
                }
            }
            if (blocks <= 0) return;
            if (p.scale_layout != NVFP4_LINEAR) {
                if (lane % 2 == 0) cp_async_16(to_scales, scales);
                return;
            }
            const bool words = p.k % 64 == 0 && ((uintptr_t)p.scale_b | p.scale_b_pitch | p.scale_b_batch) % 4 == 0;
            const int quarter = lane % 2 * 2;
#pragma unroll 1
            for (int j = 0; j < 2 && quarter + j < quarters; j++) {
                const uint8_t *from = scales + j * 32 * p.scale_b_pitch;
                if (words) {
                    cp_async_4(to_scales + (quarter + j) * 4, from);
                } else {
                    uint32_t four = 0;
#pragma unroll 1
                    for (int i = 0; i < min(blocks, 4); i++) four |= (uint32_t)from[i] << (8 * i);
                    st_shared(to_scales + (quarter + j) * 4, four);
                }
            }
        }
    }
};

/* Sums COUNT values over the 2 * DISTANCE lanes that share a row. Each step halves the values: of two lanes each sends
 * the half that the other keeps. A lane ends with index lane % (2 * DISTANCE) / (2 * DISTANCE / COUNT). */
template <int DISTANCE, int COUNT> __device__ __forceinline__ float reduce_lanes(const float (&v)[COUNT], int lane) {
    constexpr int KEPT = COUNT > 1 ? COUNT / 2 : 1;
    const bool upper = COUNT > 1 && lane & DISTANCE;
    float kept[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        float low = v[i], high = v[COUNT > 1 ? i + KEPT : i];
        kept[i] = (upper ? high : low) + __shfl_xor_sync(0xFFFFFFFF, upper ? low : high, DISTANCE);
    }
    if constexpr (DISTANCE > 1)
        return reduce_lanes<DISTANCE / 2>(kept, lane);
    else
        return kept[0];
}

/* A of a step for a lane: of each row two blocks of 16 int8 and their factors. */
template <class C> struct a_of_step {
    uint4 bytes[C::ROWS][2];
    float scales[C::ROWS][2];
    int begin[C::ROWS][2];

    template <bool FAST> __device__ __forceinline__ a_of_step(const a_in_shared<C, FAST> &a, int chunk) {
#pragma unroll
        for (int m = 0; m < C::ROWS; m++) {
            bytes[m][0] = *a.bytes(m, 0, chunk), bytes[m][1] = *a.bytes(m, 1, chunk);
            float2 factors = *(const float2 *)a.factors(m, chunk);
            scales[m][0] = factors.x, scales[m][1] = factors.y;
            if (C::ROWS > 1) {
                int2 sums = *(const int2 *)(a.factors(m, chunk) + 8);
                begin[m][0] = sums.x, begin[m][1] = sums.y;
            }
        }
    }
};

/* sums[row of A] += the dot products with 32 values of a row of B. scales: two bytes. */
template <class C>
__device__ __forceinline__ void dot_products(const code_tables &tables, float (&sums)[C::ROWS], const uint4 &values,
                                             uint32_t scales, const a_of_step<C> &a) {
    uint32_t pair, unused;
    e4m3x4_to_half2x2(scales, pair, unused);
    const float2 both = __half22float2(*(const __half2 *)&pair);
    const uint32_t words[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
    for (int block = 0; block < 2; block++) {
        const float scale = block ? both.y : both.x;
        if constexpr (C::ROWS == 1) {
            const uint4 v = a.bytes[0][block];
            const uint32_t bytes[4] = {v.x, v.y, v.z, v.w};
            int above = SUM_BASE, below = SUM_BASE;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t codes = words[2 * block + i], flipped = codes ^ 0x88888888;
                above = __dp4a((int)tables.positive(codes), (int)bytes[2 * i], above);
                below = __dp4a((int)tables.positive(flipped), (int)bytes[2 * i], below);
                above = __dp4a((int)tables.positive(upper_half(codes)), (int)bytes[2 * i + 1], above);
                below = __dp4a((int)tables.positive(upper_half(flipped)), (int)bytes[2 * i + 1], below);
            }
            const float sum = __fadd_rn(__int_as_float(above), -__int_as_float(below));
            sums[0] = __fmaf_rn(sum, __fmul_rn(scale, a.scales[0][block]), sums[0]);
        } else {
            uint32_t b[4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t codes = words[2 * block + i], flipped = codes ^ 0x88888888;
                b[2 * i] = tables.lowered(codes, flipped);
                b[2 * i + 1] = tables.lowered(upper_half(codes), upper_half(flipped));
            }
#pragma unroll
            for (int m = 0; m < C::ROWS; m++) {
                int sum = __dp4a((int)b[0], (int)a.bytes[m][block].x, a.begin[m][block]);
                sum = __dp4a((int)b[1], (int)a.bytes[m][block].y, sum);
                sum = __dp4a((int)b[2], (int)a.bytes[m][block].z, sum);
                sum = __dp4a((int)b[3], (int)a.bytes[m][block].w, sum);
                sums[m] = __fmaf_rn(from_sum_base((uint32_t)sum), __fmul_rn(scale, a.scales[m][block]), sums[m]);
            }
        }
    }
}

template <class C, bool FAST> __device__ __forceinline__ void gemv(const gemm_problem &p, const sm90_gemv_schedule &s) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int batch = p.l > 1 ? blockIdx.x / s.ctas : 0, cta = blockIdx.x - batch * s.ctas;
    float *const partials = (float *)shared; /* [tile][split][2][SUMS] */
    const a_in_shared<C, FAST> a = {shared + SM90_GEMV_PARTIALS_BYTES(C::ROWS, s.tiles_per_cta, 1 << s.log2_split_k),
                                    s.steps * STEP_CHUNKS};
    const row_of_x<C::X_TYPE, C::THREADS> x = {a.row(C::ROWS), (int)(p.k / 16)};
    /* From threadIdx.x, not `warp`: that is a uniform register, for which ptxas 13.0 has no valid encoding of cp.async
     * with a cache policy. */
    const uint32_t stages = shared_address(C::QUANTIZES ? x.shared + SM90_GEMV_X_BYTES(s.steps) : x.shared) +
                            threadIdx.x / 32 * SM90_GEMV_STEP_BYTES;

    /* The warp's work: every 2^log2_groups-th tile of the CTA, steps [begin, end) of each. */
    const int log2_groups = C::LOG2_WARPS - s.log2_split_k, groups = 1 << log2_groups;
    const int group = warp >> s.log2_split_k, split_idx = warp & ((1 << s.log2_split_k) - 1);
    const int begin = split_idx * s.steps >> s.log2_split_k, end = (split_idx + 1) * s.steps >> s.log2_split_k;
    const bool longer = cta < s.full_ctas; /* one tile more than the other CTAs */
    const int tiles = s.tiles_per_cta - (longer || !s.full_ctas ? 0 : 1);
    const int todo = group < tiles ? ((tiles - group + groups - 1) >> log2_groups) * (end - begin) : 0;
    position copied = {group, begin}, used = copied;
    b_source<FAST> source(p, batch, begin, lane);
    source.begin_tile(p, cta + group * s.ctas, lane);

    griddepcontrol_wait();
    griddepcontrol_launch_dependents();

    float global_scale = 0.0f;
    if constexpr (C::QUANTIZES) {
        global_scale = s.global_scale ? *s.global_scale : s.global_value;
        x.copy(p.a + batch * p.a_batch);
    } else {
#pragma unroll 1
        for (int chunk = threadIdx.x; chunk < a.chunks; chunk += C::THREADS)
#pragma unroll 1
            for (int m = 0; m < C::ROWS; m++) a.copy(p, batch, m, chunk);
    }
    cp_async_commit_group();

    /* Output column `index` of this CTA; a tile has 8. */
    auto column = [&](int index) {
        uint32_t tile = cta + index / 8 * s.ctas;
        return (int64_t)tile / 16 * 128 + tile % 16 * 2 + index % 2 + index / 2 % 4 * 32;
    };
    /* Mask of the lane's two scale bytes in the last step: zero past the end of K, no sign bits. */
    const int lane_chunk = lane % STEP_CHUNKS;
    const int blocks_left = (int)(p.k / 16) - ((s.steps - 1) * STEP_CHUNKS + lane_chunk) * 2;
    const uint32_t last_mask = (blocks_left > 0 ? 0x7F : 0) | (blocks_left > 1 ? 0x7F00 : 0);
    const uint32_t pick = lane % 2 ? 0x4432 : 0x4410; /* prmt selector: the lane's two bytes of four */
    const code_tables tables;
    float sums[4][C::ROWS] = {}; /* of each quarter */
    uint32_t stage = stages;
#pragma unroll 1
    for (int i = -C::STAGES; i < max(todo, 1); i++) {
        if (i == 0) {
            cp_async_wait_group<C::STAGES>(); /* A */
            if constexpr (C::QUANTIZES) {
                x.quantize(a, global_scale);
                __syncthreads(); /* two threads quantize a chunk */
            }
#pragma unroll 1
            for (int chunk = threadIdx.x; chunk < a.chunks; chunk += C::THREADS)
#pragma unroll 1
                for (int m = 0; m < C::ROWS; m++) a.decode(p, tables, m, chunk);
            /* Prefetch the epilogue's inputs to L2. */
            if ((int)threadIdx.x < tiles * 8 && (p.alpha || p.bias || p.c) && column(threadIdx.x) < p.n) {
                int64_t n = column(threadIdx.x);
                if (p.alpha) prefetch(p.alpha + n * p.alpha_stride);
                if (p.bias) prefetch((const char *)p.bias + n * type_bytes(p.bias_type));
#pragma unroll 1
                for (int m = 0; p.c && m < p.m; m++)
                    prefetch((const char *)p.c + batch * p.c_batch + m * p.c_pitch + n * type_bytes(p.out_type));
            }
            __syncthreads();
        }
        if (i >= 0 && i < todo) {
            cp_async_wait_group<C::STAGES - 1>();
            __syncwarp();
            const uint8_t *from = shared + (stage - shared_address(shared));
            const uint8_t *scales = from + SCALES_OFFSET + lane / 2 * 16;
            const uint32_t mask = used.step + 1 == s.steps ? last_mask : 0x7F7F;
            const a_of_step<C> a_now(a, used.step * STEP_CHUNKS + lane_chunk);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint4 values = ((const uint4 *)from)[j * 32 + lane];
                const uint32_t two = choose(((const uint32_t *)scales)[j], 0, pick) & mask;
                dot_products<C>(tables, sums[j], values, two, a_now);
            }
            __syncwarp();
            if (used.step + 1 == end) {
                float flat[C::SUMS];
#pragma unroll
                for (int j = 0; j < C::SUMS; j++) flat[j] = sums[j % 4][j / 4], sums[j % 4][j / 4] = 0.0f;
                const float sum = reduce_lanes<STEP_CHUNKS / 2>(flat, lane);
                constexpr int SHARERS = STEP_CHUNKS / C::SUMS; /* lanes that hold the same sum */
                float *to = partials + (((used.tile << s.log2_split_k) + split_idx) * 2 + lane / STEP_CHUNKS) * C::SUMS;
                if (lane % SHARERS == 0) to[lane_chunk / SHARERS] = sum;
            }
            used.advance(begin, end, groups);
        }
        if (i + C::STAGES < todo) {
            source.copy(p, copied.step, lane, stage + lane * 16, stage + SCALES_OFFSET + lane / 2 * 16);
            if (copied.advance(begin, end, groups))
                source.begin_tile(p, cta + copied.tile * s.ctas, lane);
            else
                source.next_step(p);
        }
        cp_async_commit_group();
        stage += C::WARPS * SM90_GEMV_STEP_BYTES;
        if (stage == stages + C::STAGES * (C::WARPS * SM90_GEMV_STEP_BYTES)) stage = stages;
    }
    __syncthreads();

#pragma unroll 1
    for (int index = threadIdx.x; index < tiles * 8; index += C::THREADS) {
        int64_t n = column(index);
        if (n >= p.n) continue;
        const float *from = partials + ((index / 8 << s.log2_split_k) * 2 + index % 2) * C::SUMS + index / 2 % 4;
        float v[C::ROWS] = {};
#pragma unroll 4
        for (int i = 0; i < (s.steps ? 1 << s.log2_split_k : 0); i++)
#pragma unroll
            for (int m = 0; m < C::ROWS; m++) v[m] = __fadd_rn(v[m], from[i * 2 * C::SUMS + m * 4]);
#pragma unroll
        for (int m = 0; m < C::ROWS; m++) v[m] *= 0.25f; /* both operands are doubled */
        if (p.c || p.bias)
            one_column_epilogue(p, n).store<false>(p, batch, 0, v, (int)p.m);
        else
            one_column_epilogue(p, n).store<true>(p, batch, 0, v, (int)p.m);
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::THREADS, 1)                                      \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_gemv_schedule s) {             \
        RECORD_CTA();                                                                                                  \
        if (p.scale_layout != NVFP4_LINEAR && p.aligned16 && p.k % CHUNK_K == 0 &&                                     \
            (p.b_pitch | p.scale_b_pitch) >> 26 == 0)                                                                  \
            gemv<config<__VA_ARGS__>, true>(p, s);                                                                     \
        else                                                                                                           \
            gemv<config<__VA_ARGS__>, false>(p, s);                                                                    \
    }
SM90_GEMV_CONFIGS(KERNEL)

/* The kernels that quantize have the FAST code alone. */
#define QUANTIZE_KERNEL(id, ...)                                                                                       \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::THREADS, 1)                                      \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_gemv_schedule s) {             \
        gemv<config<__VA_ARGS__>, true>(p, s);                                                                         \
    }
SM90_GEMV_QUANTIZE_CONFIGS(QUANTIZE_KERNEL)
