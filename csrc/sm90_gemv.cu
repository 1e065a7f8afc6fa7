/* C = epilogue(A . B^T) of NVFP4 operands for a few rows of A, on Hopper: as fast as B can be read.
 *
 * Twice an e2m1 value is an integer of at most 12, so the 16 products under one pair of scales sum exactly in dp4a, and
 * the scales, whose product fp32 holds exactly, cost one multiply-add a block. A code becomes a byte by prmt, which has
 * eight bytes to choose from and answers a selector whose top bit is set with the chosen byte's sign, eight times:
 *
 *   one row of A     tables of positive bytes: codes below zero become 0; with the sign bits flipped, those above.
 *                    The sum is dp4a of the one less dp4a of the other: 7 instructions and 4 dp4a for 8 values.
 *   several rows     tables of 2v - 116, all of which are negative: the other half of the codes becomes 0xFF, and
 *                    an AND of both halves leaves 2v - 116. 9 instructions, then 2 dp4a a row; dp4a begins with 116
 *                    times the sum of the block of A.
 *
 * dp4a adds up on top of the bits of 1.5 * 2^23, so that the sum is a float after one subtraction.
 *
 * The grid is one CTA an SM (or several, one after the other). Groups of `cut` warps take a unit of 8 rows of B at a
 * time (sm90_gemv_configs.h), a warp its part of K in steps of 512. Half a warp has a row of each of the four quarters
 * of a block, the other half the row after it, and a lane 32 values of each, two blocks of 16:
 *
 *   all       start the copies of A, raw
 *   a warp    start the copies of its first STAGES steps
 *   all       A, as soon as it is there, to signed bytes and fp32 scales in shared memory | CTA barrier
 *   a warp    step i    wait for its copies | warp barrier | multiply | warp barrier | start the copies of step
 *                       i + STAGES, in the same place
 *             last step of a unit: add up over the lanes, one part of K of 8 sums to shared memory
 *   all       CTA barrier | a thread a column: add up the parts in their order, epilogue
 *
 * B goes by cp.async into a ring that each warp has for itself. A step in the ring:
 *
 *   values [4 quarters][32 lanes][16 bytes] | scales [2 rows][8 blocks of 64 along K][4 quarters][4 bytes]
 *
 * which for the 128x4 layout is a copy of 16 bytes, of 4 from linear scales on 4 bytes, else put together by bytes.
 * Each instruction here is one of 8 to 16 warps on 4 schedulers, and until the first copies are under way nothing else
 * is: hence what the copies need is in registers, and the start and the steps are one loop.
 *
 * Shared memory, KiB, of 7168x16384 on 132 SMs: one row 76 (parts 1.8, A 20, rings 54), two 127, four 182.
 *
 * Tails. Rows past the end are not loaded: whatever lies in their place reaches only sums that are not stored. Past the
 * end of K A is zero, and so are the scales of B, since what lies there may be NaN. */
#include "device/cluster.cuh"
#include "device/cp_async.cuh"
#include "device/decode.cuh"
#include "device/epilogue.cuh"
#include "device/shared.cuh"
#include "sm90_gemv_configs.h"

template <int ROWS_, int WARPS_, int STAGES_> struct config {
    static constexpr int ROWS = ROWS_, WARPS = WARPS_, STAGES = STAGES_, THREADS = SM90_GEMV_THREADS(WARPS);
    static constexpr int LOG2_WARPS = WARPS == 8 ? 3 : WARPS == 16 ? 4 : 5;
    static_assert(1 << LOG2_WARPS == WARPS, "8, 16 or 32 warps");
    static constexpr int SUMS = 4 * ROWS; /* of a lane: one of each quarter for each row of A */
    static_assert(ROWS == 1 || ROWS == 2 || ROWS == 4, "sums are halved from lane to lane");
    static_assert(STAGES >= 1, "a slot to copy to");
};

constexpr int CHUNK_K = 32;                                             /* values of a row that a lane takes */
constexpr int STEP_CHUNKS = SM90_GEMV_STEP_K / CHUNK_K;                 /* as many lanes share a row */
constexpr int SCALES_AT = SM90_GEMV_UNIT_ROWS * (SM90_GEMV_STEP_K / 2); /* in a slot */
constexpr uint32_t SUM_BASE = 0x4B400000; /* 1.5 * 2^23: its bits plus a small integer are a float */

__device__ __forceinline__ float from_sum_base(uint32_t sum) {
    return __fadd_rn(__uint_as_float(sum), -__uint_as_float(SUM_BASE));
}

/* The bytes that the 4 low codes choose from two words; 0 or 0xFF for those with the sign bit, as the header says. */
__device__ __forceinline__ uint32_t choose(uint32_t low, uint32_t high, uint32_t codes) {
    uint32_t bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(codes));
    return bytes;
}

/* The upper half of a word, by the unit that multiplies: the one that shifts has more to do. */
__device__ __forceinline__ uint32_t upper_half(uint32_t word) {
    return __dp2a_lo(word, 0x0100u, 0u);
}

/* The same in every lane, in a register: as a constant the compiler brings it from a uniform register before each use.
 * No lane has a number of 1024 or more, but as far as the assembler knows one may. */
__device__ __forceinline__ uint32_t in_register(uint32_t word) {
    uint32_t result;
    asm("{.reg .u32 t; mov.u32 t, %%tid.x; and.b32 t, t, 0x8000; xor.b32 %0, t, %1;}" : "=r"(result) : "r"(word));
    return result;
}

/* The words of the tables that are not part of the instruction. */
struct code_tables {
    uint32_t low = in_register(0x03020100), low_above = in_register(0x8F8E8D8C), low_below = in_register(0x898A8B8C);

    /* 2|v| where the sign bit is clear, else 0. */
    __device__ __forceinline__ uint32_t positive(uint32_t codes) const { return choose(low, 0x0C080604, codes); }

    /* 2v - 116, signed, of 4 codes and of the same with their signs flipped. */
    __device__ __forceinline__ uint32_t lowered(uint32_t codes, uint32_t flipped) const {
        return choose(low_above, 0x98949290, codes) & choose(low_below, 0x80848688, flipped);
    }

    /* 2v, signed. A byte less another, where the first has its top bit set, borrows from none. */
    __device__ __forceinline__ uint32_t doubled(uint32_t codes) const {
        return ((positive(codes) | 0x80808080) - positive(codes ^ 0x8888)) ^ 0x80808080;
    }
};

/* A in shared memory, of each row: bytes of the first block of every chunk, of the second block, then of every chunk
 * two scales and, for several rows, where dp4a begins for each block. PLAIN as below. */
template <class C, bool PLAIN> struct a_in_shared {
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

    /* Starts the copies of a chunk as it is: codes to where the second block will be, scales to the factors. */
    __device__ __forceinline__ void copy(const gemm_problem &p, int64_t batch, int m, int chunk) const {
        const int64_t left = p.k - (int64_t)chunk * CHUNK_K;
        if (m >= p.m || left <= 0) return;
        const uint8_t *from = p.a + batch * p.a_batch + m * p.a_pitch + chunk * (CHUNK_K / 2);
        const uint8_t *scale = p.sfa + batch * p.sfa_batch;
        const uint32_t to = shared_address(bytes(m, 1, chunk)), scales = shared_address(factors(m, chunk));
        if (PLAIN || (p.aligned16 && left >= CHUNK_K)) {
            cp_async_16(to, from);
        } else {
            cp_async_8(to, from);
            if (left >= CHUNK_K) cp_async_8(to + 8, from + 8);
        }
        if (PLAIN || p.scale_layout != SCALES_LINEAR) {
            cp_async_4(scales, scale + chunk / 2 * 512 + m * 16);
        } else {
            scale += m * p.sfa_pitch + chunk * 2;
            uint32_t pair = scale[0];
            if (left >= CHUNK_K) pair |= (uint32_t)scale[1] << 8;
            st_shared(scales, pair << chunk % 2 * 16);
        }
    }

    /* Decodes a chunk in its place, which the same thread has copied. Zeros where nothing is. */
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

/* A warp's way through its units and steps: where it copies, or where it multiplies. */
struct position {
    int unit, step;

    /* True if it comes to another unit. */
    __device__ __forceinline__ bool advance(int begin, int end, int units_further) {
        if (++step < end) return false;
        step = begin, unit += units_further;
        return true;
    }
};

/* 16 bytes that are read once: they take each other's place in L2 before they take that of anything else. */
__device__ __forceinline__ void cp_async_16_once(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "l"(0x12F0000000000000) /* evict first, all of it */
                 : "memory");
}

/* What a lane copies of B next. PLAIN: scales are in the 128x4 layout, rows start on 16 bytes and K is a multiple of
 * what a lane takes. */
template <bool PLAIN> struct b_source {
    const uint8_t *first_values, *first_scales; /* of unit 0, where the warp's part of K begins */
    const uint8_t *values, *scales;
    uint32_t row; /* of the first quarter */
    int quarters; /* that have the row */
    /* PLAIN, kept in registers: pitches of b and of its scales, 32 rows of b, steps in which the lane's chunk exists.
     */
    uint32_t pitch, scale_pitch, quarter_bytes;
    int steps;

    __device__ __forceinline__ b_source(const gemm_problem &p, int64_t batch, int step, int lane)
        : pitch((uint32_t)p.b_pitch), scale_pitch((uint32_t)p.sfb_pitch), quarter_bytes(32 * (uint32_t)p.b_pitch),
          steps(((int)(p.k / CHUNK_K) - lane % STEP_CHUNKS + STEP_CHUNKS - 1) / STEP_CHUNKS) {
        pin(pitch), pin(scale_pitch), pin(quarter_bytes), pin(steps);
        const int half = lane / STEP_CHUNKS, chunk = lane % STEP_CHUNKS;
        first_values =
            p.b + batch * p.b_batch + half * p.b_pitch + step * (SM90_GEMV_STEP_K / 2) + chunk * (CHUNK_K / 2);
        first_scales = p.sfb + batch * p.sfb_batch;
        if (PLAIN || p.scale_layout != SCALES_LINEAR)
            first_scales += (step * (SM90_GEMV_STEP_K / 64) + chunk / 2) * 512 + half * 16;
        else /* the lane has two quarters of a block of 64 */
            first_scales += (half + chunk % 2 * 64) * p.sfb_pitch + step * (SM90_GEMV_STEP_K / 16) + chunk / 2 * 4;
    }

    __device__ __forceinline__ void begin_unit(const gemm_problem &p, uint32_t unit, int lane) {
        const uint32_t block = unit / 16, pair = unit % 16 * 2;
        row = block * 128 + pair;
        if constexpr (PLAIN) {
            values = first_values + row * (uint64_t)pitch;
            scales = first_scales + block * (uint64_t)scale_pitch + pair * 16;
        } else {
            values = first_values + row * (uint64_t)p.b_pitch;
            scales = first_scales + (p.scale_layout != SCALES_LINEAR ? block * (uint64_t)p.sfb_pitch + pair * 16
                                                                     : row * (uint64_t)p.sfb_pitch);
        }
        row += lane / STEP_CHUNKS;
        quarters = (((int)p.n - (int)row - 1) >> 5) + 1;
    }

    __device__ __forceinline__ void next_step(const gemm_problem &p) {
        values += SM90_GEMV_STEP_K / 2;
        scales += PLAIN || p.scale_layout != SCALES_LINEAR ? SM90_GEMV_STEP_K / 64 * 512 : SM90_GEMV_STEP_K / 16;
    }

    /* to, to_scales: of the lane, in the slot. */
    __device__ __forceinline__ void copy(const gemm_problem &p, int step, int lane, uint32_t to,
                                         uint32_t to_scales) const {
        if constexpr (PLAIN) {
            const int exist = step < steps ? quarters : 0;
            const uint8_t *from = values;
#pragma unroll
            for (int j = 0; j < 4; j++, from += quarter_bytes)
                if (j < exist) cp_async_16_once(to + j * 512, from);
            if (lane % 2 == 0 && step < steps) cp_async_16_once(to_scales, scales);
        } else {
            const int chunk = step * STEP_CHUNKS + lane % STEP_CHUNKS;
            const int64_t left = p.k - (int64_t)chunk * CHUNK_K; /* values of a row from here on */
            const int blocks = (int)(p.k / 16) - chunk / 2 * 4;  /* scales of a row from the lane's 64 values on */
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
            if (p.scale_layout != SCALES_LINEAR) {
                if (lane % 2 == 0) cp_async_16(to_scales, scales);
                return;
            }
            const bool words = p.k % 64 == 0 && ((uintptr_t)p.sfb | p.sfb_pitch | p.sfb_batch) % 4 == 0;
            const int quarter = lane % 2 * 2;
#pragma unroll 1
            for (int j = 0; j < 2 && quarter + j < quarters; j++) {
                const uint8_t *from = scales + j * 32 * p.sfb_pitch;
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

/* Adds up COUNT values over the 2 * DISTANCE lanes that have a row together; each lane keeps the one of index
 * lane % (2 * DISTANCE) / (2 * DISTANCE / COUNT). Of two lanes each hands over the half that the other keeps. */
template <int DISTANCE, int COUNT> __device__ __forceinline__ float sum_over_lanes(const float (&v)[COUNT], int lane) {
    constexpr int KEPT = COUNT > 1 ? COUNT / 2 : 1;
    const bool upper = COUNT > 1 && lane & DISTANCE;
    float kept[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        float low = v[i], high = v[COUNT > 1 ? i + KEPT : i];
        kept[i] = (upper ? high : low) + __shfl_xor_sync(0xFFFFFFFF, upper ? low : high, DISTANCE);
    }
    if constexpr (DISTANCE > 1)
        return sum_over_lanes<DISTANCE / 2>(kept, lane);
    else
        return kept[0];
}

__device__ __forceinline__ void prefetch(const void *address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* A as a lane wants it for a step: of each row two blocks of 16 signed bytes and their factors. */
template <class C> struct a_of_step {
    uint4 bytes[C::ROWS][2];
    float scales[C::ROWS][2];
    int begin[C::ROWS][2];

    template <bool PLAIN> __device__ __forceinline__ a_of_step(const a_in_shared<C, PLAIN> &a, int chunk) {
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

/* sums[row of A] += what 32 values of a row of B give. scales: two bytes. */
template <class C>
__device__ __forceinline__ void multiply(const code_tables &tables, float (&sums)[C::ROWS], const uint4 &values,
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

template <class C, bool PLAIN>
__device__ __forceinline__ void gemv(const gemm_problem &p, const sm90_gemv_schedule &s) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int batch = p.l > 1 ? blockIdx.x / s.ctas : 0, cta = blockIdx.x - batch * s.ctas;
    float *const parts = (float *)shared; /* [unit][part][2][SUMS] */
    const a_in_shared<C, PLAIN> a = {shared + SM90_GEMV_PARTIALS_BYTES(C::ROWS, s.units_per_cta, 1 << s.log2_cut),
                                     s.steps * STEP_CHUNKS};
    /* Not by `warp`, a uniform register: ptxas 13.0 gives a copy that has a policy no valid form where part of the
     * address in shared memory is one. */
    const uint32_t ring = shared_address(a.row(C::ROWS)) + threadIdx.x / 32 * SM90_GEMV_STEP_BYTES;

    /* The warp's way: every 1 << log2_groups-th of the CTA's units, there the steps from begin to end. */
    const int log2_groups = C::LOG2_WARPS - s.log2_cut, groups = 1 << log2_groups;
    const int group = warp >> s.log2_cut, part = warp & ((1 << s.log2_cut) - 1);
    const int begin = part * s.steps >> s.log2_cut, end = (part + 1) * s.steps >> s.log2_cut;
    const bool longer = cta < s.units_left; /* by a unit than other CTAs */
    const int units = s.units_per_cta - (longer || !s.units_left ? 0 : 1);
    const int todo = group < units ? ((units - group + groups - 1) >> log2_groups) * (end - begin) : 0;
    position copied = {group, begin}, used = copied;
    b_source<PLAIN> source(p, batch, begin, lane);
    source.begin_unit(p, cta + group * s.ctas, lane);

    griddepcontrol_wait();
    griddepcontrol_launch_dependents();

#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < a.chunks; chunk += C::THREADS)
#pragma unroll 1
        for (int m = 0; m < C::ROWS; m++) a.copy(p, batch, m, chunk);
    cp_async_commit_group();

    /* A thread's column, of which a unit has 8. */
    auto column = [&](int index) {
        uint32_t unit = cta + index / 8 * s.ctas;
        return (int64_t)unit / 16 * 128 + unit % 16 * 2 + index % 2 + index / 2 % 4 * 32;
    };
    /* Of the bytes of scales that a lane takes, those that exist in the last step, and their sign bits never. */
    const int lane_chunk = lane % STEP_CHUNKS;
    const int blocks_left = (int)(p.k / 16) - ((s.steps - 1) * STEP_CHUNKS + lane_chunk) * 2;
    const uint32_t last_mask = (blocks_left > 0 ? 0x7F : 0) | (blocks_left > 1 ? 0x7F00 : 0);
    const uint32_t pick = lane % 2 ? 0x4432 : 0x4410; /* the lane's two bytes of four */
    const code_tables tables;
    float sums[4][C::ROWS] = {}; /* of each quarter */
    uint32_t place = ring;
#pragma unroll 1
    for (int i = -C::STAGES; i < max(todo, 1); i++) {
        if (i == 0) {
            cp_async_wait_group<C::STAGES>(); /* A */
#pragma unroll 1
            for (int chunk = threadIdx.x; chunk < a.chunks; chunk += C::THREADS)
#pragma unroll 1
                for (int m = 0; m < C::ROWS; m++) a.decode(p, tables, m, chunk);
            /* What the epilogue will want is on its way to L2 meanwhile. */
            if ((int)threadIdx.x < units * 8 && (p.alpha || p.bias || p.c) && column(threadIdx.x) < p.n) {
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
            const uint8_t *from = shared + (place - shared_address(shared));
            const uint8_t *scales = from + SCALES_AT + lane / 2 * 16;
            const uint32_t mask = used.step + 1 == s.steps ? last_mask : 0x7F7F;
            const a_of_step<C> a_now(a, used.step * STEP_CHUNKS + lane_chunk);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint4 values = ((const uint4 *)from)[j * 32 + lane];
                const uint32_t two = choose(((const uint32_t *)scales)[j], 0, pick) & mask;
                multiply<C>(tables, sums[j], values, two, a_now);
            }
            __syncwarp();
            if (used.step + 1 == end) {
                float flat[C::SUMS];
#pragma unroll
                for (int j = 0; j < C::SUMS; j++) flat[j] = sums[j % 4][j / 4], sums[j % 4][j / 4] = 0.0f;
                const float sum = sum_over_lanes<STEP_CHUNKS / 2>(flat, lane);
                constexpr int SHARERS = STEP_CHUNKS / C::SUMS; /* lanes with the same sum */
                float *to = parts + (((used.unit << s.log2_cut) + part) * 2 + lane / STEP_CHUNKS) * C::SUMS;
                if (lane % SHARERS == 0) to[lane_chunk / SHARERS] = sum;
            }
            used.advance(begin, end, groups);
        }
        if (i + C::STAGES < todo) {
            source.copy(p, copied.step, lane, place + lane * 16, place + SCALES_AT + lane / 2 * 16);
            if (copied.advance(begin, end, groups))
                source.begin_unit(p, cta + copied.unit * s.ctas, lane);
            else
                source.next_step(p);
        }
        cp_async_commit_group();
        place += C::WARPS * SM90_GEMV_STEP_BYTES;
        if (place == ring + C::STAGES * (C::WARPS * SM90_GEMV_STEP_BYTES)) place = ring;
    }
    __syncthreads();

#pragma unroll 1
    for (int index = threadIdx.x; index < units * 8; index += C::THREADS) {
        int64_t n = column(index);
        if (n >= p.n) continue;
        const float *from = parts + ((index / 8 << s.log2_cut) * 2 + index % 2) * C::SUMS + index / 2 % 4;
        float v[C::ROWS] = {};
#pragma unroll 4
        for (int i = 0; i < (s.steps ? 1 << s.log2_cut : 0); i++)
#pragma unroll
            for (int m = 0; m < C::ROWS; m++) v[m] = __fadd_rn(v[m], from[i * 2 * C::SUMS + m * 4]);
#pragma unroll
        for (int m = 0; m < C::ROWS; m++) v[m] *= 0.25f; /* both values came doubled */
        if (p.c || p.bias)
            single_epilogue(p, n).store<false>(p, batch, 0, v, (int)p.m);
        else
            single_epilogue(p, n).store<true>(p, batch, 0, v, (int)p.m);
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::THREADS, 1)                                      \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_gemv_schedule s) {             \
        if (p.scale_layout != SCALES_LINEAR && p.aligned16 && p.k % CHUNK_K == 0 &&                                    \
            (p.b_pitch | p.sfb_pitch) >> 26 == 0)                                                                      \
            gemv<config<__VA_ARGS__>, true>(p, s);                                                                     \
        else                                                                                                           \
            gemv<config<__VA_ARGS__>, false>(p, s);                                                                    \
    }
SM90_GEMV_CONFIGS(KERNEL)
