/* Pairs of units of B times a few rows of A: the loads and the main loop of units/gemm.cuh, for a producer warp and a
 * math warp.
 *
 * A stage holds a pair of units of B: 16 rows of 256 values, 2 KB, and their scales. In shared memory the rows are
 * [quarter][4], of a lone unit [quarter][2], 128 bytes each with the 128-byte swizzle of TMA; the scales are [atom][4
 * rows][quarter][4]. Row g of the mma is row g of the stage, and g + 8 the row 8 further on.
 *
 * Lane t of a quad takes atom t of a step: 64 values along K under four scales, two 16-byte loads and one of 4 a row.
 * The fragments of A are made once a step, for all of the CTA's units.
 *
 * Hopper issues no instruction of the ALU pipe beside mma.sync (2 clocks for each of the former, 5.8 for each of the
 * latter). So weights are converted with as few of them as possible: for 8 values 9 on Hopper, and 6 with the
 * conversion of e2m1 codes, if it is one of that pipe. */
#ifndef NVFP4_UNITS_UNITS_CUH
#define NVFP4_UNITS_UNITS_CUH

#include "kernels/common/mbarrier.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/units/config.h"

template <int A_UNITS_, int A_, int STAGES_, int A_STAGES_> struct units_config {
    static constexpr int A_UNITS = A_UNITS_, STAGES = STAGES_, A_STAGES = A_STAGES_;
    static constexpr int TYPE = A_ == 0 ? VALUES_E2M1 : A_ == 1 ? NVFP4_FP16 : NVFP4_BF16;
    static constexpr int WARPS = UNITS_WARPS, ATOMS = UNITS_ATOMS;
    static constexpr int UNIT_BYTES = UNITS_UNIT_BYTES, PAIR_BYTES = UNITS_PAIR_BYTES;
    static constexpr int SCALES_BYTES = UNITS_SCALES;
    static constexpr int A_BOX = UNITS_A_BOX(A_UNITS), A_BYTES = UNITS_A_BYTES(A_UNITS, A_);
    static constexpr int A_SCALES_BYTES = UNITS_A_SCALES(A_UNITS, A_);
    /* Offsets in shared memory of the warps' stages, by kind. */
    static constexpr int A_OFFSET = WARPS * STAGES * PAIR_BYTES, SCALES_OFFSET = A_OFFSET + WARPS * A_STAGES * A_BYTES;
    static constexpr int A_SCALES_OFFSET = SCALES_OFFSET + WARPS * STAGES * SCALES_BYTES;
    static constexpr int BARRIERS_OFFSET = A_SCALES_OFFSET + WARPS * A_STAGES * A_SCALES_BYTES;
    static constexpr int BARRIERS = UNITS_BARRIERS(STAGES, A_STAGES);
    static constexpr int SUMS_OFFSET = BARRIERS_OFFSET + WARPS * BARRIERS * 8;
    static_assert(SUMS_OFFSET == UNITS_STAGES_BYTES(A_UNITS, A_, STAGES, A_STAGES), "the plan's");
    static_assert(A_BYTES % 1024 == 0 && SUMS_OFFSET % 16 == 0, "swizzled rows, vectors of sums");
};

/* Fragments of A for a step: of each 8 rows, the lane's 8 words of B's order. */
template <class C> using units_a = uint32_t[C::A_UNITS][8][4];

#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1000
#define UNITS_HAS_CVT_E2M1 1
#else
#define UNITS_HAS_CVT_E2M1 0
#endif

#if UNITS_HAS_CVT_E2M1
/* The bytes 1 and 3 of a word, two e2m1 codes each, to fp16 pairs. */
__device__ __forceinline__ void e2m1x2_to_half2(uint32_t word, uint32_t &low, uint32_t &high) {
    asm("{.reg .b8 x, y, unused; mov.b32 {unused, x, unused, y}, %2;"
        " cvt.rn.f16x2.e2m1x2 %0, x; cvt.rn.f16x2.e2m1x2 %1, y;}"
        : "=r"(low), "=r"(high)
        : "r"(word));
}

/* The low nibbles of x and the high nibbles of y, in one lop3. */
__device__ __forceinline__ uint32_t nibbles_of(uint32_t x, uint32_t y) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(result) : "r"(x), "r"(y), "r"(0x0F0F0F0F));
    return result;
}
#endif

/* A sum has to be multiplied by this, for the powers of two that units_decode leaves in a value of B, and, if A is
 * NVFP4, of A. */
template <int TYPE>
constexpr float units_unit = TYPE == NVFP4_BF16    ? 128.0f
                             : UNITS_HAS_CVT_E2M1  ? 1.0f
                             : TYPE == VALUES_E2M1 ? 268435456.0f
                                                   : 16384.0f;

/* The 8 values of a word times one half of `scales`, as 4 pairs, in A's type. An mma adds the values of two pairs at
 * once, so its roundings depend on which they are: the pairs are the same on every GPU.
 *
 * For an fp16 or NVFP4 A they are values 0 and 2, 4 and 6, 1 and 3, 5 and 7. sm_100f and later have a conversion of
 * two codes in a byte; 8 values then take 12 instructions, with the scales. Before, the upper bytes of fp16 are e5m2,
 * and an e2m1 code with its lower bits at the exponent's low end is value * 2^-14; 15 instructions. Products with a
 * scale are multiples of 2^-24, exact in fp16. */
template <int TYPE, int half>
__device__ __forceinline__ void units_decode(uint32_t word, uint32_t scales, uint32_t (&pairs)[4]) {
    if constexpr (TYPE == NVFP4_BF16) {
        w4a16<NVFP4_BF16>::word<half>(word, scales, pairs);
    } else {
#if UNITS_HAS_CVT_E2M1
        e2m1x2_to_half2(nibbles_of(word << 8, word << 4), pairs[0], pairs[1]);
        e2m1x2_to_half2(nibbles_of(word << 4, word), pairs[2], pairs[3]);
#else
        const uint32_t even = and_or(word << 4, 0x80808080, (word << 1) & 0x0E0E0E0E);
        const uint32_t odd = and_or(word, 0x80808080, (word >> 3) & 0x0E0E0E0E);
        pairs[0] = __byte_perm(even, 0, 0x1404), pairs[1] = __byte_perm(even, 0, 0x3424);
        pairs[2] = __byte_perm(odd, 0, 0x1404), pairs[3] = __byte_perm(odd, 0, 0x3424);
#endif
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = half2_multiply(pairs[i], both_halves<half>(scales));
    }
}

/* Four scale bytes with bit 7 clear, of blocks 0 to 3, to two pairs. */
template <int TYPE> __device__ __forceinline__ void units_scales(uint32_t four, uint32_t (&pairs)[2]) {
    if constexpr (TYPE == NVFP4_BF16)
        pairs[0] = w4a16<NVFP4_BF16>::scales(four & 0xFFFF), pairs[1] = w4a16<NVFP4_BF16>::scales(four >> 16);
    else
        e4m3x4_to_half2x2(four, pairs[0], pairs[1]);
}

/* Word i of a row's 8: two to a block of 16. */
template <int TYPE>
__device__ __forceinline__ void units_word(int i, const uint4 (&row)[2], const uint32_t (&scales)[2],
                                           uint32_t (&pairs)[4]) {
    const uint4 &four = row[i / 4];
    const uint32_t word = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
    if (i / 2 % 2)
        units_decode<TYPE, 1>(word, scales[i / 4], pairs);
    else
        units_decode<TYPE, 0>(word, scales[i / 4], pairs);
}

/* A warp has read what the barrier's stage holds. */
__device__ __forceinline__ void units_release(uint32_t empty) {
    __syncwarp();
    if (elect_one()) mbarrier_arrive(empty);
}

/* Adds the product of a stage to the lane's sums: of a pair, or with !PAIR of a lone unit. `row` is the lane's first 16
 * bytes in the stage and `behind` those that follow along K; `scales` those of the row, mask: 0x7F for each of the four
 * that is within K. Releases the stage as soon as it is in registers. */
template <class C, bool PAIR>
__device__ __forceinline__ void units_multiply(const uint8_t *row, const uint8_t *behind, const uint8_t *scales,
                                               uint32_t empty, uint32_t mask, const units_a<C> &a, bool first,
                                               float4 *sums) {
    constexpr int ROWS_8 = 8 * 128, SCALES_8 = 8; /* to the row 8 further on */
    const uint4 x[2] = {*(const uint4 *)row, *(const uint4 *)behind};
    const uint32_t x_bytes = *(const uint32_t *)scales;
    uint4 y[2] = {};
    uint32_t y_bytes = 0;
    if (PAIR) {
        y[0] = *(const uint4 *)(row + ROWS_8), y[1] = *(const uint4 *)(behind + ROWS_8);
        y_bytes = *(const uint32_t *)(scales + SCALES_8);
    }
    units_release(empty);
    uint32_t x_scales[2], y_scales[2] = {};
    units_scales<C::TYPE>(x_bytes & mask, x_scales);
    if (PAIR) units_scales<C::TYPE>(y_bytes & mask, y_scales);
    float d[C::A_UNITS][2][4] = {}; /* two chains of mma */
    if (!first)
#pragma unroll
        for (int i = 0; i < C::A_UNITS; i++) {
            const float4 v = sums[i * 32];
            d[i][0][0] = v.x, d[i][0][1] = v.y, d[i][0][2] = v.z, d[i][0][3] = v.w;
        }
#pragma unroll
    for (int word = 0; word < 8; word++) {
        uint32_t low[4], high[4] = {};
        units_word<C::TYPE>(word, x, x_scales, low);
        if (PAIR) units_word<C::TYPE>(word, y, y_scales, high);
#pragma unroll
        for (int k = 0; k < 4; k += 2)
#pragma unroll
            for (int i = 0; i < C::A_UNITS; i++) {
                if constexpr (C::TYPE == NVFP4_BF16)
                    mma_m16n8k16_bf16(d[i][k / 2], low[k], high[k], low[k + 1], high[k + 1], a[i][word][k],
                                      a[i][word][k + 1]);
                else
                    mma_m16n8k16(d[i][k / 2], low[k], high[k], low[k + 1], high[k + 1], a[i][word][k],
                                 a[i][word][k + 1]);
            }
    }
#pragma unroll
    for (int i = 0; i < C::A_UNITS; i++)
        sums[i * 32] = make_float4(d[i][0][0] + d[i][1][0], d[i][0][1] + d[i][1][1], d[i][0][2] + d[i][1][2],
                                   d[i][0][3] + d[i][1][3]);
}

/* The lane's fragments of a step of A. */
template <class C>
__device__ __forceinline__ void units_fragments(const uint8_t *values, const uint8_t *scales, uint32_t mask,
                                                units_a<C> &a) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < C::A_UNITS; i++) {
        if constexpr (C::TYPE == VALUES_E2M1) {
            const uint32_t at = i * 1024 + g * 128 + (2 * t ^ g) * 16;
            const uint4 row[2] = {*(const uint4 *)(values + at), *(const uint4 *)(values + (at ^ 16))};
            uint32_t pairs[2];
            units_scales<C::TYPE>(*(const uint32_t *)(scales + (t * C::A_UNITS + i) * 128 + g * 16) & mask, pairs);
#pragma unroll
            for (int word = 0; word < 8; word++) units_word<C::TYPE>(word, row, pairs, a[i][word]);
        } else {
            const uint8_t *row = values + t * C::A_BOX + i * 1024 + g * 128;
            const uint32_t swizzle = (g + 2 * t) % 8; /* of the row's place: a box begins on a multiple of 256 */
#pragma unroll
            for (int word = 0; word < 8; word++)
                w4a16<C::TYPE>::activations(*(const uint4 *)(row + (word ^ swizzle) * 16), a[i][word]);
        }
    }
}

/* The box at (x, y, z, w) of a rank 4 map (common/tma.cuh has ranks 3 and, of a pair, 4). */
__device__ __forceinline__ void tma_load_4d(uint32_t to, const tensor_map *map, int32_t x, int32_t y, int32_t z,
                                            int32_t w, uint32_t barrier, uint64_t cache_policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(cache_policy)
                 : "memory");
}

/* The units of B that the warps of a CTA multiply by the rows of A. */
struct units_work {
    const units_schedule *s; /* tensor maps and cache policies */
    const uint8_t *scale_a;  /* of an NVFP4 A */
    int batch, rows;         /* of A and B; rows of A */
    int first_unit, end_unit;
    int full_units; /* those from here on lie in the last, partial block of B */
    int blocks;     /* of 16 along K */

    __device__ __forceinline__ int first_pair() const { return first_unit / 2; }
    __device__ __forceinline__ int end_pair() const { return (end_unit + 1) / 2; }
    /* In whole blocks of B a CTA may have one unit of its first and last pair. */
    __device__ __forceinline__ bool upper_only(int pair) const {
        return 2 * pair < first_unit && 2 * pair < full_units;
    }
    __device__ __forceinline__ bool is_pair(int pair) const {
        return (2 * pair >= first_unit && 2 * pair + 1 < end_unit) || 2 * pair >= full_units;
    }
    /* 0x7F for each of the lane's four blocks of a step that is within K: others may be NaN. */
    __device__ __forceinline__ uint32_t scale_mask(int step) const {
        const int left = blocks - step * (UNITS_STEP_K / 16) - threadIdx.x % 4 * 4;
        return left >= 4 ? 0x7F7F7F7F : left <= 0 ? 0 : 0x7F7F7F7F >> (32 - 8 * left);
    }
};

/* A math warp's stages in shared memory, by shared address. */
template <class C> struct units_stages {
    uint32_t values, scales, a, a_scales, full, empty, a_full, a_empty;

    __device__ __forceinline__ units_stages(uint32_t shared, int warp)
        : values(shared + warp * C::STAGES * C::PAIR_BYTES),
          scales(shared + C::SCALES_OFFSET + warp * C::STAGES * C::SCALES_BYTES),
          a(shared + C::A_OFFSET + warp * C::A_STAGES * C::A_BYTES),
          a_scales(shared + C::A_SCALES_OFFSET + warp * C::A_STAGES * C::A_SCALES_BYTES),
          full(shared + C::BARRIERS_OFFSET + warp * C::BARRIERS * 8), empty(full + C::STAGES * 8),
          a_full(empty + C::STAGES * 8), a_empty(a_full + C::A_STAGES * 8) {}
};

/* A way through a math warp's work: pass after pass, in a pass step after step, in a step pair after pair. */
struct units_position {
    int pair, begin, end; /* of the pass */
    int step, warp;

    __device__ __forceinline__ units_position(const units_work &work, int warp)
        : pair(work.first_pair()), begin(pair), end(min(pair + work.s->pass_pairs, work.end_pair())), step(warp),
          warp(warp) {
        if (warp >= work.s->steps) begin = end = work.end_pair();
    }
    __device__ __forceinline__ bool exists() const { return begin < end; }
    __device__ __forceinline__ void next_pass(const units_work &work) {
        begin = end, end = min(begin + work.s->pass_pairs, work.end_pair());
        pair = begin, step = warp;
    }
    __device__ __forceinline__ void next_step(const units_work &work) {
        pair = begin, step += UNITS_WARPS;
        if (step >= work.s->steps) next_pass(work);
    }
};

/* The loads for one math warp, by a producer warp of which one lane issues them. A step's A comes before its B. */
template <class C> struct units_loader {
    const units_work &work;
    units_stages<C> to;
    units_position b, a;
    pipeline_state<C::STAGES> stage;
    pipeline_state<C::A_STAGES> a_stage;
    int a_behind; /* steps whose loads of B have been begun, and those of A not */

    __device__ __forceinline__ units_loader(const units_work &work, uint32_t shared, int warp)
        : work(work), to(shared, warp), b(work, warp), a(b), a_behind(b.exists()) {
        if (!elect_one()) return;
        for (int i = 0; i < C::BARRIERS; i++) {
            const uint32_t barrier = to.full + i * 8;
            mbarrier_init(barrier, barrier >= to.a_empty ? 32 : 1);
        }
        fence_mbarrier_init();
    }

    __device__ __forceinline__ bool is_left() const { return b.exists() || a_behind; }

    __device__ __forceinline__ void next_b() {
        if (!b.exists()) return;
        mbarrier_wait(to.empty + stage.index * 8, stage.phase ^ 1);
        if (elect_one()) load_b();
        stage.advance();
        if (++b.pair < b.end) return;
        b.next_step(work);
        a_behind += b.exists();
    }
    __device__ __forceinline__ void next_a() {
#pragma unroll 1
        for (; a_behind; a_behind--) {
            mbarrier_wait(to.a_empty + a_stage.index * 8, a_stage.phase ^ 1);
            if (elect_one()) load_a();
            a_stage.advance();
            a.next_step(work);
        }
    }

  private:
    __device__ __forceinline__ void load_b() const {
        const units_schedule &s = *work.s;
        const uint32_t full = to.full + stage.index * 8, values = to.values + stage.index * C::PAIR_BYTES;
        const bool is_pair = work.is_pair(b.pair);
        const int x = b.step * (UNITS_STEP_K / 2), block = b.pair / 8, row = b.pair % 8 * 4;
        mbarrier_arrive_expect_tx(full, (is_pair ? C::PAIR_BYTES : C::UNIT_BYTES) + C::SCALES_BYTES);
        if (2 * b.pair >= work.full_units) {
            for (int quarter = 0; quarter < 4; quarter++)
                tma_load_3d<1>(values + quarter * 512, &s.b_tail, x, block * 128 + quarter * 32 + row, work.batch, full,
                               s.b_cache_policy);
        } else if (is_pair) {
            tma_load_4d(values, &s.b_pairs, x, row, block * 4, work.batch, full, s.b_cache_policy);
        } else {
            tma_load_4d(values, &s.b_units, x, row + 2 * work.upper_only(b.pair), block * 4, work.batch, full,
                        s.b_cache_policy);
        }
        tma_load_4d(to.scales + stage.index * C::SCALES_BYTES, &s.b_scales, row * 16, b.step * C::ATOMS, block,
                    work.batch, full, s.b_cache_policy);
    }
    __device__ __forceinline__ void load_a() const {
        const units_schedule &s = *work.s;
        const uint32_t full = to.a_full + a_stage.index * 8, values = to.a + a_stage.index * C::A_BYTES;
        if constexpr (C::TYPE == VALUES_E2M1) {
            const int atoms = min(C::ATOMS, (work.blocks + 3) / 4 - a.step * C::ATOMS);
            mbarrier_arrive_expect_tx(full, work.rows * (UNITS_STEP_K / 2) + atoms * (C::A_UNITS * 128));
            tma_load_3d<1>(values, &s.a, a.step * (UNITS_STEP_K / 2), 0, work.batch, full, s.a_cache_policy);
            for (int i = 0; i < atoms; i++)
                cp_async_bulk(to.a_scales + a_stage.index * C::A_SCALES_BYTES + i * (C::A_UNITS * 128),
                              work.scale_a + ((int64_t)a.step * C::ATOMS + i) * 512, C::A_UNITS * 128, full,
                              s.a_cache_policy);
        } else {
            mbarrier_arrive_expect_tx(full, work.rows * (UNITS_STEP_K * 2));
            for (int t = 0; t < 4; t++)
                tma_load_3d<1>(values + t * C::A_BOX, &s.a, a.step * UNITS_STEP_K + t * 64, 0, work.batch, full,
                               s.a_cache_policy);
        }
    }
};

/* Multiplies the pairs of a pass, [now.begin, now.end), with all steps of the warp. sums: the lane's first. */
template <class C>
__device__ __forceinline__ void units_pass(const units_work &work, const units_position &now, const uint8_t *shared,
                                           const units_stages<C> &stages, pipeline_state<C::STAGES> &stage,
                                           pipeline_state<C::A_STAGES> &a_stage, float4 *sums) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint8_t *const values = shared + now.warp * C::STAGES * C::PAIR_BYTES;
    const uint8_t *const scales = shared + C::SCALES_OFFSET + now.warp * C::STAGES * C::SCALES_BYTES;
    uint32_t row = g * 128 + (2 * t ^ g) * 16;
    uint32_t pair_scale = t * 64 + g % 4 * 16 + g / 4 * 4, unit_scale = t * 64 + g % 2 * 16 + g / 2 * 4;
    pin(row), pin(pair_scale), pin(unit_scale);
#pragma unroll 1
    for (int step = now.warp; step < work.s->steps; step += C::WARPS) {
        const uint32_t mask = work.scale_mask(step);
        const int of_a = now.warp * C::A_STAGES + a_stage.index;
        units_a<C> a;
        mbarrier_wait(stages.a_full + a_stage.index * 8, a_stage.phase);
        units_fragments<C>(shared + C::A_OFFSET + of_a * C::A_BYTES,
                           shared + C::A_SCALES_OFFSET + of_a * C::A_SCALES_BYTES, mask, a);
        /* Every lane arrives: racecheck follows the bulk copies of A's scales, and takes no order from a warp barrier
         * before the arrival of one lane. */
        mbarrier_arrive(stages.a_empty + a_stage.index * 8);
        a_stage.advance();
        float4 *to = sums;
#pragma unroll 1
        for (int pair = now.begin; pair < now.end; pair++, to += C::A_UNITS * 32) {
            const uint8_t *from = values + stage.index * C::PAIR_BYTES, *of = scales + stage.index * C::SCALES_BYTES;
            const uint32_t empty = stages.empty + stage.index * 8;
            mbarrier_wait(stages.full + stage.index * 8, stage.phase);
            if (work.is_pair(pair))
                units_multiply<C, true>(from + row, from + (row ^ 16), of + pair_scale, empty, mask, a,
                                        step == now.warp, to);
            else
                units_multiply<C, false>(from + row, from + (row ^ 16), of + unit_scale + 32 * work.upper_only(pair),
                                         empty, mask, a, step == now.warp, to);
            stage.advance();
        }
    }
}

#endif
