/* C = epilogue(A . B^T) for a few rows of A, NVFP4 or 16-bit, with mma.sync m16n8k16. B is the operand with 16 rows an
 * mma. A backend instantiates the kernels in its units.cu.
 *
 * A CTA has a range of units of B, 8 rows each, and all of A. Its WARPS math warps split K: warp w takes steps w, w +
 * WARPS, ... of 256 values. Each has a producer warp and pipelines of its own for A and B, and waits for no other
 * before the final sum:
 *
 *   producer   step by step: TMA loads of A; pair by pair: wait until the stage is empty, TMA loads of B
 *   math       step   wait for A's stage | fragments of A to registers | release the stage
 *              pair   wait for the pair's stage | its words to registers | release it | dequantize and mma, sums in
 *                     shared memory
 *              pass   barrier of the math warps | a thread adds the sums of all warps for two rows of C in a column, in
 *                     the order of the warps, and runs the epilogue
 *
 * So the first mma follows the first 2 KB, and when the last bytes arrive, all but the last pair is done. CTAs take
 * ranges of units, not of pairs: 7168 rows are 6.8 units an SM, whose busiest has 7 of them, or 8 in pairs. The warps
 * take turns along K, so that the loads of an SM that are under way are neighbours in memory: with a range of K for
 * each warp 28672x4096 takes 43 us for 34 on an H100.
 *
 * Shared memory (units/config.h): stages of B | of A | scales of B | of A | mbarriers | sums [warp][pair][unit of
 * A][lane] 16 bytes.
 *
 * Tails: TMA loads zeros past the end of K and of the rows of B. Of A it loads the rows that exist: others reach only
 * results that are not stored. Scales past the end of K may be NaN and are masked.
 *
 * Dependent launch: nothing is read before griddepcontrol.wait, but B and its scales where no grid that may still run
 * writes them (early_b). */
#ifndef NVFP4_UNITS_GEMM_CUH
#define NVFP4_UNITS_GEMM_CUH

#include "kernels/common/cluster.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/units/units.cuh"

enum { START = 1, MATH }; /* named barriers: mbarriers are initialized; between math warps */

/* Prefetches the epilogue's inputs of the CTA's columns to L2, which the loads of B have left cold. */
__device__ __forceinline__ void prefetch_epilogue(const gemm_problem &p, const units_work &work) {
    if (!(p.alpha || p.bias || p.c)) return;
#pragma unroll 1
    for (int i = work.first_pair() * 16 + threadIdx.x; i < work.end_pair() * 16; i += 32 * UNITS_WARPS) {
        const int64_t n = i / 128 * 128 + i % 4 * 32 + i % 128 / 4;
        if (n >= p.n) continue;
        if (p.alpha) prefetch(p.alpha + n * p.alpha_stride);
        if (p.bias) prefetch((const char *)p.bias + n * type_bytes(p.bias_type));
#pragma unroll 1
        for (int m = 0; p.c && m < p.m; m++)
            prefetch((const char *)p.c + work.batch * p.c_batch + m * p.c_pitch + n * type_bytes(p.out_type));
    }
}

/* Adds the sums of a pass and stores its results. A pair has 64 pieces of two sums for each unit of A, in the order of
 * the mma's accumulators. */
template <class C>
__device__ __forceinline__ void store_pass(const gemm_problem &p, const units_work &work, int begin, int end,
                                           const float2 *sums) {
    const int warps = min(C::WARPS, work.s->steps), of_warp = work.s->pass_pairs * C::A_UNITS * 64;
#pragma unroll 1
    for (int index = threadIdx.x; index < (end - begin) * C::A_UNITS * 64; index += 32 * UNITS_WARPS) {
        const int tile = index / 64, pair = begin + tile / C::A_UNITS, g = index / 8 % 8, high = index % 2;
        const int m = tile % C::A_UNITS * 8 + index / 2 % 4 * 2;
        const bool is_pair = work.is_pair(pair);
        const int quarter = is_pair ? high * 2 + g / 4 : g / 2;
        const int row = is_pair ? g % 4 : g % 2 + 2 * work.upper_only(pair);
        const int unit = 2 * pair + row / 2;
        const int64_t n = (int64_t)(pair / 8) * 128 + quarter * 32 + pair % 8 * 4 + row;
        const bool own = unit >= work.first_unit && unit < work.end_unit && (is_pair || !high);
        if (!own || m >= p.m || n >= p.n) continue;
        float v[2] = {};
#pragma unroll 1
        for (int w = 0; w < warps; w++) {
            const float2 add = sums[w * of_warp + index];
            v[0] = __fadd_rn(v[0], add.x), v[1] = __fadd_rn(v[1], add.y);
        }
        v[0] *= units_unit<C::TYPE>, v[1] *= units_unit<C::TYPE>;
        if (p.c || p.bias)
            one_column_epilogue(p, n).store<false>(p, work.batch, m, v, (int)p.m - m);
        else
            one_column_epilogue(p, n).store<true>(p, work.batch, m, v, (int)p.m - m);
    }
}

template <class C> __device__ __forceinline__ void units(const gemm_problem &p, const units_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    const int batch = p.l > 1 ? blockIdx.x / s.ctas : 0, cta = blockIdx.x - batch * s.ctas;
    const int first_unit = cta * s.cta_units + min(cta, s.larger_ctas);
    const units_work work = {&s,           p.scale_a + batch * p.scale_a_batch,
                             batch,        (int)p.m,
                             first_unit,   first_unit + s.cta_units + (cta < s.larger_ctas),
                             s.full_units, (int)(p.k / 16)};
    if (warp >= C::WARPS) {
        if (elect_one()) {
            if (s.full_units) prefetch_tensormap(&s.b_pairs);
            prefetch_tensormap(&s.b_scales);
            prefetch_tensormap(&s.a);
        }
        units_loader<C> loader(work, shared_address(shared), warp - C::WARPS);
        __syncwarp();
        named_barrier_arrive(START, UNITS_THREADS);
        /* Half of the stages, since TMA serves A after what is asked for before it; and no further than the first step,
         * since A's stages are free for that alone. */
        if (s.early_b)
#pragma unroll 1
            for (int i = min((C::STAGES > 1 ? C::STAGES / 2 : 1), loader.b.end - loader.b.begin); i > 0; i--)
                loader.next_b();
        griddepcontrol_wait();
        griddepcontrol_launch_dependents();
#pragma unroll 1
        while (loader.is_left()) {
            loader.next_a();
            loader.next_b();
        }
        return;
    }
    griddepcontrol_wait();
    prefetch_epilogue(p, work);
    const units_stages<C> stages(shared_address(shared), warp);
    float4 *const sums = (float4 *)(shared + C::SUMS_OFFSET);
    pipeline_state<C::STAGES> stage;
    pipeline_state<C::A_STAGES> a_stage;
    named_barrier_sync(START, UNITS_THREADS);
    units_position now(work, 0); /* a warp without a step stores results too */
    now.warp = warp;
#pragma unroll 1
    for (; now.exists(); now.next_pass(work)) {
        units_pass<C>(work, now, shared, stages, stage, a_stage,
                      sums + warp * s.pass_pairs * C::A_UNITS * 32 + threadIdx.x % 32);
        named_barrier_sync(MATH, 32 * C::WARPS);
        store_pass<C>(p, work, now.begin, now.end, (const float2 *)sums);
        if (now.end < work.end_pair()) named_barrier_sync(MATH, 32 * C::WARPS); /* the sums' places are free */
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(UNITS_THREADS, 1)                                                     \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ units_schedule s) {                 \
        units<units_config<__VA_ARGS__>>(p, s);                                                                        \
    }

#endif
