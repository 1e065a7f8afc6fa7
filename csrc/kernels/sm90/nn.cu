/* C = epilogue(A . B) of fp16 or bf16 A [M, K] and NVFP4 B, whose rows k hold scales along N, on Hopper tensor cores:
 * the gradient of a linear layer's input. Here N is the columns of C and K the sum, which the caller names K and N.
 *
 * Columns of B are the rows of wgmma, dequantized into its register operand; rows of A are its N, in shared memory. A
 * fragment's pairs lie along K: a transposed ldmatrix of the packed bytes gives lane 4g + t four columns, 4g to 4g + 3,
 * of rows 2t and 2t + 1. A warp has 32 columns; row g of its part of wgmma i is column 4g + 2i, row g + 8 the next.
 *
 *   warp                       waits for     does                                                    arrives at
 *   0-7 (math)                 full          dequantizes to registers, wgmma; epilogue of the tile   empty
 *   8 (producer, one thread)   empty         TMA loads of A and B, bulk copies of scales             full, scales
 *   9, 10                      scales        every second stage: scales to pairs of 16-bit factors   full
 *
 * Half of a stage is dequantized while the wgmma of the half before run. split_k CTAs of a cluster have a range of K
 * each; they exchange their sums through their stages (sm90/reduce.cuh).
 *
 * A stage in shared memory, of 64 along K:
 *
 *   A             [TILE_M rows][128 bytes], 128-byte swizzle, by TMA
 *   values of B   [64 rows][128 bytes], 128-byte swizzle, by TMA
 *   scales of B   [4 groups of 64 columns] 128x4 atoms of 512 bytes, by bulk copies; half of one are the stage's
 *   pairs         [16 blocks of 16 columns][half][t][4]: factors of rows 2t, 2t + 1, and of those 8, 16, 24 further
 *
 * Tails: TMA fills with zeros what is past the end of K. Scales there may be NaN: their factors are zero. Rows past the
 * end of A and columns past the end of B reach only results that are not stored. */
#include "kernels/common/epilogue.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/sm90/nn_config.h"
#include "kernels/sm90/reduce.cuh"

/* createpolicy.fractional evict_normal, fraction 1 (PTX ISA 9.0, section 9.7.9.20). */
static constexpr uint64_t EVICT_NORMAL = 0x1000000000000000;

template <int TYPE_, int TILE_M_, int STAGES_> struct config {
    static constexpr int TYPE = TYPE_, TILE_M = TILE_M_, STAGES = STAGES_;
    /* Names that sm90/reduce.cuh uses. */
    static constexpr int WGMMAS_M = 2, MMA_TILE_N = TILE_M, COLUMN_GROUPS = TILE_M / 8, MATH_WARPS = 8;
    static constexpr int SCALE_WARPS = 2, GROUPS = SM90_NN_TILE_N / 64;
    static constexpr int VALUES_OFFSET = SM90_NN_A_BYTES(TILE_M), SCALES_OFFSET = VALUES_OFFSET + SM90_NN_VALUES_BYTES,
                         PAIRS_OFFSET = SCALES_OFFSET + SM90_NN_SCALES_BYTES;
    static constexpr int STAGE_BYTES = SM90_NN_STAGE_BYTES(TILE_M), FULL_OFFSET = STAGES * STAGE_BYTES;
    static constexpr int EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES, SCALES_FULL_OFFSET = EMPTY_OFFSET + 8 * STAGES,
                         PARTIALS_FULL_OFFSET = SCALES_FULL_OFFSET + 8 * STAGES;
    /* setmaxnreg: of 168 registers a thread at launch. */
    static constexpr int PRODUCER_REGISTERS = 56, MATH_REGISTERS = 224;

    static_assert(STAGES % SCALE_WARPS == 0, "a warp sees every phase of the barriers that it waits for");
    static_assert(STAGE_BYTES % 1024 == 0 && VALUES_OFFSET % 1024 == 0, "the 128-byte swizzle repeats");
    static_assert(PARTIALS_FULL_OFFSET + 8 == SM90_NN_SHARED_BYTES(TILE_M, STAGES), "as the host reserves it");
    static_assert(PARTIALS_FULL_OFFSET + 8 <= 227 * 1024, "shared memory of a CTA on Hopper");
    static_assert((COLUMN_GROUPS + SM90_NN_MAX_SPLIT - 1) * WGMMAS_M * MATH_WARPS * 512 <= FULL_OFFSET,
                  "partial sums fit the stages: (splits - 1) * ceil(COLUMN_GROUPS / splits) groups at most");
};

/* Shared addresses; the stages along K of this CTA. */
template <class C> struct nn_cta {
    uint32_t base, partials, split_idx;
    int32_t k_begin, k_end;

    __device__ __forceinline__ nn_cta(const gemm_problem &p, const sm90_nn_schedule &s, uint32_t base)
        : base(base), partials(base), split_idx(blockIdx.x % s.split_k) {
        const uint32_t stages = (uint32_t)((p.k + SM90_NN_STAGE_K - 1) / SM90_NN_STAGE_K);
        k_begin = (int32_t)(stages * split_idx / s.split_k), k_end = (int32_t)(stages * (split_idx + 1) / s.split_k);
    }
    __device__ __forceinline__ uint32_t stage(uint32_t index) const { return base + index * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t index) const { return base + C::FULL_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t empty(uint32_t index) const { return base + C::EMPTY_OFFSET + 8 * index; }
    __device__ __forceinline__ uint32_t scales_full(uint32_t index) const {
        return base + C::SCALES_FULL_OFFSET + 8 * index;
    }
    __device__ __forceinline__ uint32_t partials_full() const { return base + C::PARTIALS_FULL_OFFSET; }
};

/* First row and column of the tile; its batch. */
struct nn_coord {
    int32_t l, m, n;

    /* Concurrent tiles share rows of A and columns of B in L2. */
    template <class C> static __device__ __forceinline__ nn_coord of(const sm90_nn_schedule &s) {
        const uint32_t tile = blockIdx.x / s.split_k, batch = (uint32_t)s.tiles_m * s.tiles_n, in_batch = tile % batch;
        const uint32_t band = in_batch / (SM90_NN_BAND * s.tiles_n), in_band = in_batch % (SM90_NN_BAND * s.tiles_n);
        const uint32_t width = min((uint32_t)SM90_NN_BAND, s.tiles_m - band * SM90_NN_BAND);
        return {(int32_t)(tile / batch), (int32_t)(band * SM90_NN_BAND + in_band % width) * C::TILE_M,
                (int32_t)(in_band / width) * SM90_NN_TILE_N};
    }
};

/* The producer, one thread. */
template <class C>
__device__ __forceinline__ void producer(const gemm_problem &p, const sm90_nn_schedule &s, const nn_cta<C> &cta,
                                         const nn_coord &coord) {
    const uint8_t *scales = p.scale_b + coord.l * p.scale_b_batch + (int64_t)(coord.n / 64) * 512;
    const int32_t a_batch = s.a_batches == 1 ? 0 : coord.l, b_batch = s.b_batches == 1 ? 0 : coord.l;
    const uint32_t groups = (uint32_t)min((int64_t)C::GROUPS, (p.n - coord.n + 63) / 64); /* that have scales */
    const uint32_t bytes = SM90_NN_A_BYTES((int)min((int64_t)C::TILE_M, p.m)) + SM90_NN_VALUES_BYTES;
    pipeline_state<C::STAGES> state;
#pragma unroll 1
    for (int32_t k = cta.k_begin; k < cta.k_end; k++, state.advance()) {
        const uint32_t stage = cta.stage(state.index), full = cta.full(state.index),
                       scales_full = cta.scales_full(state.index);
        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
        mbarrier_arrive_expect_tx(scales_full, groups * 512);
        cp_async_bulk(stage + C::SCALES_OFFSET, scales + k / 2 * p.scale_b_pitch, groups * 512, scales_full,
                      EVICT_NORMAL);
        mbarrier_arrive_expect_tx(full, bytes);
        tma_load_3d<1>(stage + C::VALUES_OFFSET, &s.b, coord.n / 2, k * SM90_NN_STAGE_K, b_batch, full, EVICT_NORMAL);
        tma_load_3d<1>(stage, &s.a, k * SM90_NN_STAGE_K, coord.m, a_batch, full, EVICT_NORMAL);
    }
}

/* One warp: converts the scales of every SCALE_WARPS-th stage. A lane has two rows. */
template <class C>
__device__ __forceinline__ void convert_scales(const gemm_problem &p, const nn_cta<C> &cta, int index) {
    const int lane = threadIdx.x % 32, row = 2 * lane;
    const uint32_t from = C::SCALES_OFFSET + row % 32 * 16 + row / 32 * 4,
                   to = C::PAIRS_OFFSET + lane / 16 * 64 + lane % 4 * 16 + lane / 4 % 4 * 4;
    pipeline_state<C::STAGES> state;
    state.index = index;
#pragma unroll 1
    for (int32_t k = cta.k_begin + index; k < cta.k_end; k += C::SCALE_WARPS) {
        const uint32_t stage = cta.stage(state.index);
        const int64_t left = p.k - (int64_t)k * SM90_NN_STAGE_K - row; /* rows of B from this lane's first on */
        const uint32_t mask = left >= 2 ? 0x7F7F : left == 1 ? 0x7F : 0;
        mbarrier_wait(cta.scales_full(state.index), state.phase);
#pragma unroll
        for (int group = 0; group < C::GROUPS; group++) {
            const uint32_t atom = stage + from + group * 512 + k % 2 * 8, pairs = stage + to + group * 4 * 128;
            const uint32_t first = ld_shared(atom), second = ld_shared(atom + 16);
#pragma unroll
            for (int block = 0; block < 4; block++)
                st_shared(pairs + block * 128,
                          w4a16<C::TYPE>::scales(__byte_perm(first, second, block | (4 + block) << 4) & mask));
        }
        mbarrier_arrive(cta.full(state.index));
#pragma unroll
        for (int i = 0; i < C::SCALE_WARPS; i++) state.advance();
    }
}

template <int TYPE> __device__ __forceinline__ uint32_t multiply(uint32_t x, uint32_t y) {
    if constexpr (TYPE == NVFP4_FP16)
        return half2_multiply(x, y);
    else
        return bf162_multiply(x, y);
}

/* Four columns of two rows, in the halves of a word, as pairs along K times a pair of scales. */
template <int TYPE>
__device__ __forceinline__ void dequantize(uint32_t word, uint32_t scales, uint32_t &first, uint32_t &second,
                                           uint32_t &third, uint32_t &fourth) {
    uint32_t pairs[4];
    if constexpr (TYPE == NVFP4_FP16) {
        uint32_t columns[4];
        e2m1_pairs(__byte_perm(word, 0, 0x3120), columns);
        pairs[0] = columns[0], pairs[1] = columns[2], pairs[2] = columns[1], pairs[3] = columns[3];
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t codes = word << (12 - 4 * i);
            pairs[i] = and_or(codes, 0x80008000, codes >> 6 & 0x01C001C0);
        }
    }
    first = multiply<TYPE>(pairs[0], scales), second = multiply<TYPE>(pairs[1], scales);
    third = multiply<TYPE>(pairs[2], scales), fourth = multiply<TYPE>(pairs[3], scales);
}

/* A lane's part of B in a stage: [half] rows 2t and 2t + 1 of four matrices of 8 rows, and their scales. */
struct b_words {
    uint32_t values[2][4];
    uint4 scales[2];
};

__device__ __forceinline__ uint32_t word_of(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* A stage is released once the first wgmma of the next one are issued and those before are complete. Every lane
 * arrives: a __syncwarp in the loop would serialize wgmma (sm90/gemm.cu). */
template <class C> __device__ __forceinline__ void mainloop(const nn_cta<C> &cta, accumulators<C> &acc) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32_t values = C::VALUES_OFFSET + lane * 128 + (warp ^ lane % 8) * 16,
             scales = C::PAIRS_OFFSET + (2 * warp + g / 4) * 128 + t * 16;
    pin(values), pin(scales);
#pragma unroll
    for (int i = 0; i < C::WGMMAS_M; i++)
#pragma unroll
        for (int j = 0; j < C::TILE_M / 2; j++) acc[i][j] = 0.0f;
    pipeline_state<C::STAGES> state;
    uint32_t a[2][C::WGMMAS_M][2][4]; /* [half][wgmma][K-step] */
    b_words next;
    const auto read = [&] {
        const uint32_t stage = cta.stage(state.index);
        mbarrier_wait(cta.full(state.index), state.phase);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            ldmatrix_x4_trans(stage + values + half * 4096, next.values[half]);
            next.scales[half] = ld_shared_v4(stage + scales + half * 64);
        }
    };
    uint32_t previous = 0;
    if (cta.k_begin < cta.k_end) read();
#pragma unroll 1
    for (int32_t k = cta.k_begin; k < cta.k_end; k++) {
        const uint64_t descriptor = wgmma_smem_descriptor(cta.stage(state.index));
        const uint32_t current = state.index;
        state.advance();
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < 4; i++) { /* matrices of 8 rows: two of a K-step */
                uint32_t (&x)[4] = a[half][0][i / 2], (&y)[4] = a[half][1][i / 2];
                const int r = i % 2 * 2;
                dequantize<C::TYPE>(next.values[half][i], word_of(next.scales[half], i), x[r], x[r + 1], y[r],
                                    y[r + 1]);
            }
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < 2; step++)
#pragma unroll
                for (int i = 0; i < C::WGMMAS_M; i++)
                    wgmma_rs<C::TILE_M, C::TYPE>::mma_async(acc[i], a[half][i][step],
                                                            descriptor + 2 * (2 * half + step), 1);
            wgmma_commit_group();
            if (half == 1 && k + 1 < cta.k_end) read();
            wgmma_wait_group<1>();
            if (half == 0 && k > cta.k_begin) mbarrier_arrive(cta.empty(previous));
        }
        previous = current;
    }
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < C::WGMMAS_M; i++)
#pragma unroll
        for (int j = 0; j < C::TILE_M / 2; j++) pin_float(acc[i][j]);
}

/* A lane has two rows, 2t and 2t + 1, of a group of 8 rows of A, which are columns of wgmma, for four columns of B. */
template <class C>
__device__ __forceinline__ void four_columns(float (&v)[4], const accumulators<C> &acc, int group, int row) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = acc[i / 2][4 * group + i % 2 * 2 + row];
}

/* Stores the kept rows without c or bias, with one instruction for four columns. */
template <class C, int OUT>
__device__ __forceinline__ void epilogue_plain(const gemm_problem &p, char *out, int rows, const kept_columns<C> &kept,
                                               const accumulators<C> &acc) {
    const float alpha = p.alpha ? *p.alpha : p.alpha_value;
#pragma unroll
    for (int group = 0; group < C::COLUMN_GROUPS; group++)
#pragma unroll
        for (int row = 0; row < 2; row++) {
            if (!kept.have(group) || 8 * group + row >= rows) continue;
            float v[4];
            four_columns<C>(v, acc, group, row);
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = __fmul_rn(alpha, v[i] * w4a16<C::TYPE>::UNIT);
            char *to = out + (8 * group + row) * p.out_pitch;
            if (OUT == NVFP4_FP32)
                *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
            else
                *(uint2 *)to = make_uint2(pack_16(v[0], v[1], OUT), pack_16(v[2], v[3], OUT));
        }
}

/* Any output. The sums pass through the stages, where each thread has places of its own: registers take constant
 * indices only, and this loop is not unrolled, which keeps the kernel small. */
template <class C>
__device__ __forceinline__ void epilogue_any(const gemm_problem &p, int64_t l, int64_t m, int64_t n, uint32_t stages,
                                             const kept_columns<C> &kept, const accumulators<C> &acc) {
    const uint32_t own = stages + threadIdx.x * 16;
    named_barrier_sync(1, C::MATH_WARPS * 32); /* the other warpgroup's wgmma have read the stages */
#pragma unroll
    for (int group = 0; group < C::COLUMN_GROUPS; group++)
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float v[4];
            four_columns<C>(v, acc, group, row);
#pragma unroll
            for (int i = 0; i < 4; i++)
                st_shared(own + (2 * group + row) * C::MATH_WARPS * 512 + i * 4,
                          __float_as_uint(v[i] * w4a16<C::TYPE>::UNIT));
        }
    if (n >= p.n) return;
    const four_column_epilogue columns(p, n);
#pragma unroll 1
    for (int i = 2 * kept.begin; i < 2 * kept.end; i++) {
        float v[4];
        ld_shared_v4_f32(own + i * C::MATH_WARPS * 512, v);
        const int64_t row = m + i / 2 * 8 + i % 2;
        if (row < p.m) columns.store(p, l, row, v);
    }
}

/* The end of a tile: the sum over the cluster, then the rows that this CTA keeps. */
template <class C>
__device__ __forceinline__ void finish_tile(const gemm_problem &p, const sm90_nn_schedule &s, const nn_cta<C> &cta,
                                            const nn_coord &coord, accumulators<C> &acc) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, item = type_bytes(p.out_type);
    const int64_t m = coord.m + lane % 4 * 2, n = coord.n + warp * 32 + lane / 4 * 4;
    const int rows = (int)min((int64_t)C::TILE_M, p.m - m);
    const bool plain = !p.c && !p.bias && coord.n + SM90_NN_TILE_N <= p.n &&
                       ((uint64_t)p.out | p.out_pitch | p.out_batch) % (4 * item) == 0;
    char *out = (char *)p.out + coord.l * p.out_batch + m * p.out_pitch + n * item;
    with_kept_columns<C>(s, cta, [&](const kept_columns<C> &kept) {
        if (kept.splits > 1) {
            send_partials<C>(cta, kept, acc);
            mbarrier_wait_cluster(cta.partials_full(), 0);
            add_partials<C>(cta, kept, acc);
        }
        if (!plain) return;
        if (p.out_type == NVFP4_FP16)
            epilogue_plain<C, NVFP4_FP16>(p, out, rows, kept, acc);
        else if (p.out_type == NVFP4_BF16)
            epilogue_plain<C, NVFP4_BF16>(p, out, rows, kept, acc);
        else
            epilogue_plain<C, NVFP4_FP32>(p, out, rows, kept, acc);
    });
    if (!plain)
        epilogue_any<C>(p, coord.l, m, n, cta.base, kept_columns<C>(s.split_k, cta.split_idx, s.inv_split_k), acc);
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm90_nn_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const nn_cta<C> cta(p, s, shared_address(shared));
    const nn_coord coord = nn_coord::of<C>(s);
    const int warp = threadIdx.x / 32;
    if (cta.base % 1024) __trap(); /* the swizzle pattern follows absolute addresses */
    if (warp == C::MATH_WARPS && elect_one()) {
        if (p.k > 0) prefetch_tensormap(&s.a), prefetch_tensormap(&s.b);
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(cta.full(i), 1 + 32);
            mbarrier_init(cta.empty(i), 32 * C::MATH_WARPS);
            mbarrier_init(cta.scales_full(i), 1);
        }
        mbarrier_init(cta.partials_full(), 1);
        fence_mbarrier_init();
        const kept_columns<C> kept(s.split_k, cta.split_idx, s.inv_split_k);
        if (s.split_k > 1)
            mbarrier_arrive_expect_tx(cta.partials_full(),
                                      (s.split_k - 1) * (kept.end - kept.begin) * C::WGMMAS_M * C::MATH_WARPS * 512);
    }
    __syncthreads();
    if (warp >= C::MATH_WARPS) {
        setmaxnreg_dec<C::PRODUCER_REGISTERS>();
        const int index = warp - C::MATH_WARPS - 1;
        if (index < 0 && elect_one()) producer<C>(p, s, cta, coord);
        if (index >= 0 && index < C::SCALE_WARPS) convert_scales<C>(p, cta, index);
        __syncwarp();
        if (s.split_k > 1) barrier_cluster_arrive(), barrier_cluster_wait();
    } else {
        setmaxnreg_inc<C::MATH_REGISTERS>();
        accumulators<C> acc;
        mainloop<C>(cta, acc);
        /* Every CTA has initialized its mbarriers, and its stages are free for partial sums. */
        if (s.split_k > 1) barrier_cluster_arrive(), barrier_cluster_wait();
        finish_tile<C>(p, s, cta, coord, acc);
    }
}

#define KERNEL(id, tile_m, stages, bf16)                                                                               \
    extern "C" __global__ void __launch_bounds__(SM90_NN_THREADS, 1)                                                   \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_nn_schedule s) {               \
        gemm<config<(bf16) ? NVFP4_BF16 : NVFP4_FP16, tile_m, stages>>(p, s);                                          \
    }
SM90_NN_CONFIGS(KERNEL)
