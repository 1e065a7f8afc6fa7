/* C = epilogue(A . B^T) of NVFP4 operands by mma.sync kind::mxf4nvf4 with block scales (RTX 50, RTX PRO 6000, GB10).
 * The tensor core takes the e2m1 values and the ue4m3 scales as they lie in global memory; nothing is dequantized.
 *
 * mma_a, mma_b: config.h. With swap_ab the caller's B has the mma's 16 rows, so that a few rows of A waste less and B
 * is loaded once.
 *
 *   warp     role      waits for     work                                                    arrives on
 *   0-7      multiply  full[stage]   ldmatrix, mma.sync (tile.cuh); the epilogue (store.cuh) empty[stage]
 *   8        producer  empty[stage]  TMA loads, or cp.async by all lanes (tile.cuh)          full[stage]
 *
 *   producer   load 0 | load 1 | ... | load STAGES - 1 | wait empty[0], load STAGES | ...    | stages of the next tile
 *   multiply            full[0], mma, empty[0] | full[1], mma, empty[1] | ...                | epilogue
 *
 * Without split-K a CTA an SM takes tile after tile, and the producer fills the stages during the epilogue. With it the
 * CTAs of a cluster share a tile. They use the cluster for that sum alone: these chips have no multicast.
 *
 * Shared memory of a CTA in KiB: 128x8 89, 128x16 97, 128x32 81, 128x64 93, 128x128 99, 256x128 90. */
#include "kernels/common/cluster.cuh"
#include "kernels/common/placement.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/sm120/store.cuh"

/* setmaxnreg: of 168 registers a thread at launch, three warpgroups. */
enum { PRODUCER_REGISTERS = 72, MULTIPLY_REGISTERS = 216 };

/* Locates tile `index`. Parts of K are PART_STAGES stages; K may end before the last one does. */
template <class C>
__device__ __forceinline__ tile_coord locate(const sm120_schedule &s, int64_t k, uint32_t index, int split_idx) {
    const uint32_t in_batch = s.tiles_mma_m * s.tiles_mma_n, l = index / in_batch, rest = index - l * in_batch;
    const uint32_t in_group = s.group_m * s.tiles_mma_n, group = rest / in_group, at = rest - group * in_group;
    const uint32_t first = group * s.group_m, rows = min((uint32_t)s.group_m, s.tiles_mma_m - first);
    const uint32_t column = at / rows;
    const int shift = __ffs(s.split_k) - 1;
    const int64_t begin = (int64_t)split_idx * s.k_parts >> shift, end = (int64_t)(split_idx + 1) * s.k_parts >> shift;
    return {(int32_t)(first + at - column * rows) * C::MMA_TILE_M, (int32_t)column * C::MMA_TILE_N, (int32_t)l,
            (int32_t)begin * C::PART_STAGES, (int32_t)min(end * C::PART_STAGES, (k + C::STAGE_K - 1) / C::STAGE_K)};
}

/* Read anew at each use: ptxas spills what it keeps of blockIdx.x. */
__device__ __forceinline__ uint32_t first_tile(const sm120_schedule &s) {
    uint32_t cta;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta));
    return cta >> (__ffs(s.split_k) - 1);
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm120_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const cta_memory<C> cta{shared_address(shared)};
    if (cta.base % 1024) __trap(); /* the swizzle XORs absolute address bits */
    const int warp = threadIdx.x / 32, split_idx = blockIdx.x & (s.split_k - 1);
    const uint32_t step = gridDim.x >> (__ffs(s.split_k) - 1);
    const split_sum<C> sum(cta, s.split_k, split_idx);
    tile_producer<C> producer(s.mma_a, s.mma_b, form_of(p, s), cta);

    if (threadIdx.x == 0) {
        prefetch_tensormap(&s.mma_a.values);
        prefetch_tensormap(&s.mma_b.values);
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(cta.full(i), s.scales_by_tma ? 1 : 1 + 32);
            mbarrier_init(cta.empty(i), C::WARPS);
        }
        mbarrier_init(cta.partials_full(), 1);
        fence_mbarrier_init();
        if (s.split_k > 1) sum.expect();
    }
    __syncthreads();

    int32_t preloaded = 0;
    if (warp == C::PRODUCER_WARP && s.constant_operand && elect_one()) { /* each CTA has a tile */
        const tile_coord tile = locate<C>(s, p.k, first_tile(s), split_idx);
        for (; preloaded < min(C::STAGES, tile.k_end - tile.k_begin); preloaded++) {
            producer.expect(tile, tile.k_begin + preloaded, preloaded);
            producer.load(tile, tile.k_begin + preloaded, preloaded, s.constant_operand == SM120_CONSTANT_MMA_A,
                          s.constant_operand == SM120_CONSTANT_MMA_B);
        }
    }
    __syncwarp();
    griddepcontrol_wait();
    if (threadIdx.x == 0) griddepcontrol_launch_dependents();

    if (warp >= C::PRODUCER_WARP) {
        if constexpr (C::MOVES_REGISTERS) setmaxnreg_dec<PRODUCER_REGISTERS>();
        const bool loads = warp == C::PRODUCER_WARP && (!s.scales_by_tma || elect_one()); /* who has preloaded */
        for (uint32_t index = first_tile(s); loads && index < (uint32_t)s.tiles; index += step) {
            const tile_coord tile = locate<C>(s, p.k, index, split_idx);
            if (s.scales_by_tma)
                producer.run_one(tile, s.constant_operand, preloaded);
            else
                producer.run_lanes(tile);
        }
        __syncwarp();
        if (s.split_k > 1) {
            barrier_cluster_arrive();
            barrier_cluster_wait();
        }
        return;
    }
    if constexpr (C::MOVES_REGISTERS) setmaxnreg_inc<MULTIPLY_REGISTERS>();
    tile_consumer<C> consumer(cta, p.k);
    for (uint32_t index = first_tile(s); index < (uint32_t)s.tiles; index += step) {
        const tile_coord tile = locate<C>(s, p.k, index, split_idx);
        accumulators<C> acc = {};
        consumer.template run<false>(tile, acc);
        if (s.split_k > 1) { /* the grid has a cluster for each tile */
            barrier_cluster_arrive();
            barrier_cluster_wait(); /* all have read their stages, and expect the partial sums */
            if (!sum.keeps()) {
                sum.send(acc);
                return;
            }
            sum.add(acc);
        }
        store_warp<C>(batch_output{p, tile.l}, cta, s.swap_ab, tile.mma_m, tile.mma_n, acc);
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::THREADS, 1)                                      \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm120_schedule s) {                 \
        RECORD_CTA();                                                                                                  \
        gemm<config<__VA_ARGS__>>(p, s);                                                                               \
    }
SM120_GEMM_CONFIGS(KERNEL)
