// sm_100a: C += A B^T of kind::mxf4nvf4 (e2m1, a ue4m3 scale for 16), tile after tile along N, by a CTA (GROUP = 1) or
// a pair (GROUP = 2). Warp 0 fills a pipeline of stages by TMA, except the scales of B, which warp 3 writes as a thread
// does; warp 1 copies scales to tensor memory and multiplies; warp 2 allocates; warps 4 to 7 put C into the accumulator
// before and take the result after.
#include "device.cuh"

#if GROUP == 2
#define PAIR_MUTATIONS(X)                                                                                              \
    X(no_cluster_sync_at_start)                                                                                        \
    X(expects_bytes_of_one_cta)                                                                                        \
    X(stages_released_in_one_cta)                                                                                      \
    X(result_committed_in_one_cta)                                                                                     \
    X(peer_signals_own_barrier)                                                                                        \
    X(full_count_without_peer)                                                                                         \
    X(ready_count_without_peer)                                                                                        \
    X(peer_loads_first_half_of_b)                                                                                      \
    X(both_ctas_multiply)                                                                                              \
    X(peer_deallocates_late)                                                                                           \
    X(peer_does_not_allocate)
#else
#define PAIR_MUTATIONS(X) X(arrival_for_commit)
#endif
#define MUTATIONS(X)                                                                                                   \
    X(none)                                                                                                            \
    X(no_full_wait)                                                                                                    \
    X(full_parity_flipped)                                                                                             \
    X(no_empty_wait)                                                                                                   \
    X(expects_too_little)                                                                                              \
    X(expects_too_much)                                                                                                \
    X(no_warp_sync_behind_scales)                                                                                      \
    X(no_proxy_fence_behind_scales)                                                                                    \
    X(scales_arrive_early)                                                                                             \
    X(no_ready_wait)                                                                                                   \
    X(no_wait_st)                                                                                                      \
    X(no_fence_before_ready)                                                                                           \
    X(no_fence_after_ready)                                                                                            \
    X(no_result_wait)                                                                                                  \
    X(no_fence_after_result)                                                                                           \
    X(no_wait_ld)                                                                                                      \
    X(no_commit_to_stage)                                                                                              \
    X(commit_to_full_barrier)                                                                                          \
    X(stage_commit_before_mma)                                                                                         \
    X(no_commit_of_result)                                                                                             \
    X(result_commit_before_last_mma)                                                                                   \
    X(short_alloc)                                                                                                     \
    X(no_dealloc)                                                                                                      \
    X(alloc_after_relinquish)                                                                                          \
    X(dealloc_before_epilogue)                                                                                         \
    X(address_read_before_sync)                                                                                        \
    X(descriptors_swapped)                                                                                             \
    X(descriptor_of_other_swizzle)                                                                                     \
    X(descriptor_stride_doubled)                                                                                       \
    X(map_without_swizzle)                                                                                             \
    X(instruction_n_halved)                                                                                            \
    X(instruction_m_wrong)                                                                                             \
    X(instruction_scale_type)                                                                                          \
    X(instruction_element_type)                                                                                        \
    X(accumulator_overwritten)                                                                                         \
    X(scales_over_accumulator)                                                                                         \
    X(scale_column_not_advanced)                                                                                       \
    X(scales_swapped)                                                                                                  \
    X(scale_copy_overtakes)                                                                                            \
    X(lanes_of_next_quarter)                                                                                           \
    X(empty_barriers_set_twice)                                                                                        \
    X(ready_count_too_small)                                                                                           \
    PAIR_MUTATIONS(X)

enum class mutation { MUTATIONS(MUTATION_NAME) };

enum { THREADS = 256, ROWS = 128, COLUMNS = 64, DEPTH = 128, MMA_K = 64, PIECES = DEPTH / MMA_K };
enum { STAGES = 3, TILES = 3, STEPS = 3, ACCUMULATORS = 2 };
enum { ATOM = 512, A_BYTES = ROWS * DEPTH / 2, B_BYTES = COLUMNS / GROUP * DEPTH / 2, SCALE_BYTES = PIECES * ATOM };
enum { FILL = A_BYTES + B_BYTES + SCALE_BYTES }; // by TMA
enum { AT_B = STAGES * A_BYTES, AT_SFA = AT_B + STAGES * B_BYTES, AT_SFB = AT_SFA + STAGES * SCALE_BYTES };
enum { AT_BARRIERS = AT_SFB + STAGES * SCALE_BYTES, AT_ADDRESS = AT_BARRIERS + 128 };
enum { SFA_COLUMN = ACCUMULATORS * COLUMNS, SFB_COLUMN = SFA_COLUMN + 4 * PIECES, TENSOR_COLUMNS = 256 };
// 2 x e2m1, ue4m3 scales, N, M
enum { INSTRUCTION = 1 << 7 | 1 << 10 | COLUMNS / 8 << 17 | GROUP << 27 };

#define STRING_(x) #x
#define STRING(x)  STRING_(x)
#define CTA_GROUP  "cta_group::" STRING(GROUP)

// ---- instructions

static __device__ __forceinline__ u64 descriptor(u32 address, u64 layout, u32 stride) {
    return (address & 0x3ffff) >> 4 | 1ull << 16 | (u64)(stride >> 4) << 32 | 1ull << 46 | layout << 61;
}
static __device__ __forceinline__ void alloc(u32 to, u32 columns) {
    asm volatile("tcgen05.alloc." CTA_GROUP ".sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "r"(columns)
                 : "memory");
}
static __device__ __forceinline__ void relinquish() {
    asm volatile("tcgen05.relinquish_alloc_permit." CTA_GROUP ".sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void dealloc(u32 address, u32 columns) {
    asm volatile("tcgen05.dealloc." CTA_GROUP ".sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns) : "memory");
}
static __device__ __forceinline__ void fence_before() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
static __device__ __forceinline__ void fence_after() {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}
static __device__ __forceinline__ void copy_scales(u32 to, u32 from) {
    asm volatile("tcgen05.cp." CTA_GROUP ".32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(descriptor(from, 0, 128))
                 : "memory");
}
static __device__ __forceinline__ void multiply(u32 d, u64 a, u64 b, u32 instruction, u32 sfa, u32 sfb, u32 add) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %6, 0; tcgen05.mma." CTA_GROUP
                 ".kind::mxf4nvf4.block_scale.block16 [%0], %1, %2, %3, [%4], [%5], p; }" ::"r"(d),
                 "l"(a), "l"(b), "r"(instruction), "r"(sfa), "r"(sfb), "r"(add)
                 : "memory");
}
// in both CTAs of a pair, or in this one
static __device__ __forceinline__ void commit(u32 bar, int everywhere) {
#if GROUP == 2
    if (everywhere) {
        asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
                     " [%0], %1;" ::"r"(bar),
                     "h"((u16)3)
                     : "memory");
        return;
    }
#endif
    asm volatile("tcgen05.commit." CTA_GROUP ".mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(bar) : "memory");
}
static __device__ __forceinline__ void load(u32 to, const TensorMap *map, u32 x, u32 y, u32 bar) {
#if GROUP == 2
    asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(bar)
                 : "memory");
#else
    tma_load(to, map, x, y, bar);
#endif
}
// The even CTA of the pair multiplies; its barriers say when there is something to do.
static __device__ __forceinline__ u32 of_leader(u32 bar) {
    return GROUP == 2 ? map_to(bar, 0) : bar;
}
static __device__ __forceinline__ void arrive_at_leader(u32 bar) {
    if (GROUP == 2)
        arrive_remote(of_leader(bar));
    else
        arrive(bar);
}

#define D_8(i)                                                                                                         \
    "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3]), "=f"(d[i + 4]), "=f"(d[i + 5]), "=f"(d[i + 6]),        \
        "=f"(d[i + 7])
#define S_8(i)                                                                                                         \
    "f"(d[i]), "f"(d[i + 1]), "f"(d[i + 2]), "f"(d[i + 3]), "f"(d[i + 4]), "f"(d[i + 5]), "f"(d[i + 6]), "f"(d[i + 7])
#define REGISTERS_0 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define REGISTERS_1 "{%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16}"

static __device__ __forceinline__ void tensor_load(float (&d)[16], u32 address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 " REGISTERS_0 ", [%16];" : D_8(0), D_8(8) : "r"(address));
}
static __device__ __forceinline__ void tensor_store(u32 address, const float (&d)[16]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x16.b32 [%0], " REGISTERS_1 ";" ::"r"(address), S_8(0), S_8(8)
                 : "memory");
}

// ---- the roles

struct barriers {
    u32 full, empty;   // of stages
    u32 ready, result; // of accumulators: C is in it, the sum is
};

template <mutation active>
static __device__ __forceinline__ void produce(const TensorMap *a, const TensorMap *b, const TensorMap *sfa, u32 base,
                                               const barriers &bar, u32 rank) {
    for (int fill = 0; fill < TILES * STEPS; fill++) {
        const u32 stage = fill % STAGES, step = fill % STEPS, tile = fill / STEPS;
        if (!IS(no_empty_wait)) wait_cluster(bar.empty + 8 * stage, (fill / STAGES & 1) ^ 1);
        const u32 own = bar.full + 8 * stage;
        u32 full = own;
#if GROUP == 2
        if (!IS(peer_signals_own_barrier)) full = of_leader(own);
        const int peers = IS(expects_bytes_of_one_cta) ? 1 : 2;
        const u32 half = IS(peer_loads_first_half_of_b) ? 0 : rank * COLUMNS / 2;
#else
        const int peers = 1;
        const u32 half = 0;
#endif
        if (rank == 0)
            arrive_expect(own, peers * FILL + (IS(expects_too_little) ? -64 : IS(expects_too_much) ? 64 : 0));
        load(base + stage * A_BYTES, a, step * DEPTH, rank * ROWS, full);
        load(base + AT_B + stage * B_BYTES, b, step * DEPTH, tile * COLUMNS + half, full);
        load(base + AT_SFA + stage * SCALE_BYTES, sfa, 0, (rank * STEPS + step) * PIECES, full);
    }
    // The last releases arrive here too: the block must be there.
    for (int fill = TILES * STEPS; fill < TILES * STEPS + STAGES; fill++)
        wait_cluster(bar.empty + 8 * (fill % STAGES), (fill / STAGES & 1) ^ 1);
}

// The scales of B of a tile and step: PIECES atoms.
template <mutation active> static __device__ __forceinline__ void write_scales(const uint4 *sfb, const barriers &bar) {
    const u32 lane = threadIdx.x % 32;
    for (int fill = 0; fill < TILES * STEPS; fill++) {
        const u32 stage = fill % STAGES;
        if (!IS(no_empty_wait)) wait_cluster(bar.empty + 8 * stage, (fill / STAGES & 1) ^ 1);
        if (IS(scales_arrive_early) && lane == 0) arrive_at_leader(bar.full + 8 * stage);
        uint4 *to = (uint4 *)(smem + AT_SFB + stage * SCALE_BYTES);
        for (u32 i = lane; i < SCALE_BYTES / 16; i += 32) to[i] = sfb[fill * SCALE_BYTES / 16 + i];
        if (!IS(no_proxy_fence_behind_scales)) fence_proxy_async();
        if (!IS(no_warp_sync_behind_scales)) __syncwarp();
        if (!IS(scales_arrive_early) && lane == 0) arrive_at_leader(bar.full + 8 * stage);
    }
}

template <mutation active> static __device__ __forceinline__ void all_scales(u32 tensor, u32 base, u32 stage) {
    for (int i = 0; i < PIECES; i++) {
        const u32 sfa = base + AT_SFA + stage * SCALE_BYTES + i * ATOM, sfb = sfa + AT_SFB - AT_SFA;
        copy_scales(tensor + (IS(scales_over_accumulator) ? COLUMNS - 4 : SFA_COLUMN) + 4 * i, sfa);
        copy_scales(tensor + SFB_COLUMN + 4 * i, sfb);
    }
}

// Mutation scale_copy_overtakes: another warp than the one that multiplies copies the scales.
template <mutation active>
static __device__ __forceinline__ void copy_all_scales(u32 tensor, u32 base, const barriers &bar) {
    for (int fill = 0; fill < TILES * STEPS; fill++) {
        wait_cluster(bar.full + 8 * (fill % STAGES), fill / STAGES & 1);
        all_scales<active>(tensor, base, fill % STAGES);
    }
}

template <mutation active>
static __device__ __forceinline__ void multiply_all(u32 tensor, u32 base, const barriers &bar) {
    const u64 layout = IS(descriptor_of_other_swizzle) ? 6 : 4; // 4: a swizzle of 64 bytes
    const u32 stride = IS(descriptor_stride_doubled) ? 1024 : 512;
    const u32 sfa = tensor + (IS(scales_over_accumulator) ? COLUMNS - 4 : SFA_COLUMN), sfb = tensor + SFB_COLUMN;
    u32 instruction = INSTRUCTION;
    if (IS(instruction_n_halved)) instruction -= COLUMNS / 16 << 17;
    if (IS(instruction_m_wrong)) instruction ^= 3 << 27;
    if (IS(instruction_scale_type)) instruction |= 1 << 23;
    if (IS(instruction_element_type)) instruction ^= 7 << 7;
    for (int tile = 0; tile < TILES; tile++) {
        const u32 index = tile % ACCUMULATORS, d = tensor + index * COLUMNS;
        if (!IS(no_ready_wait)) wait_cluster(bar.ready + 8 * index, tile / ACCUMULATORS & 1);
        if (!IS(no_fence_after_ready)) fence_after();
#pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
            const u32 fill = tile * STEPS + step, stage = fill % STAGES;
            if (!IS(no_full_wait)) wait_cluster(bar.full + 8 * stage, (fill / STAGES & 1) ^ IS(full_parity_flipped));
            if (!IS(scale_copy_overtakes)) all_scales<active>(tensor, base, stage);
#if GROUP == 2
            const int both = !IS(stages_released_in_one_cta);
#else
            const int both = 1;
#endif
            if (IS(stage_commit_before_mma)) commit(bar.empty + 8 * stage, both);
            for (int i = 0; i < PIECES; i++) {
                const u64 a = descriptor(base + stage * A_BYTES + i * MMA_K / 2, layout, stride);
                const u64 b = descriptor(base + AT_B + stage * B_BYTES + i * MMA_K / 2, layout, stride);
                const int last = step == STEPS - 1 && i == PIECES - 1;
                if (IS(result_commit_before_last_mma) && last) commit(bar.result + 8 * index, 1);
                const u32 scales = IS(scale_column_not_advanced) ? 0 : 4 * i;
                multiply(d, IS(descriptors_swapped) ? b : a, IS(descriptors_swapped) ? a : b, instruction,
                         (IS(scales_swapped) ? sfb : sfa) + scales, (IS(scales_swapped) ? sfa : sfb) + scales,
                         !IS(accumulator_overwritten) || step || i);
            }
            if (!IS(no_commit_to_stage) && !IS(stage_commit_before_mma))
                commit((IS(commit_to_full_barrier) ? bar.full : bar.empty) + 8 * stage, both);
        }
        if (IS(no_commit_of_result) || IS(result_commit_before_last_mma)) continue;
#if GROUP == 2
        commit(bar.result + 8 * index, !IS(result_committed_in_one_cta));
#else
        if (IS(arrival_for_commit))
            arrive(bar.result + 8 * index);
        else
            commit(bar.result + 8 * index, 1);
#endif
    }
}

template <mutation active>
static __device__ __forceinline__ void prepare(float *c, int tile, u32 tensor, const barriers &bar) {
    const u32 index = tile % ACCUMULATORS;
    if (tile >= TILES) return;
    for (int column = 0; column < COLUMNS; column += 16) {
        float d[16];
        for (int i = 0; i < 16; i++) d[i] = c[tile * COLUMNS + column + i];
        tensor_store(tensor + index * COLUMNS + column, d);
    }
    if (!IS(no_wait_st)) asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
    if (!IS(no_fence_before_ready)) fence_before();
    if (threadIdx.x % 32 == 0) arrive_at_leader(bar.ready + 8 * index);
}

// A warp's 32 rows; `c` is this thread's.
template <mutation active> static __device__ __forceinline__ void finish(float *c, u32 tensor, const barriers &bar) {
    const u32 quarter = (threadIdx.x / 32 + IS(lanes_of_next_quarter)) % 4;
    tensor += quarter << 21;
    prepare<active>(c, 0, tensor, bar);
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++) {
        prepare<active>(c, tile + 1, tensor, bar);
        const u32 index = tile % ACCUMULATORS;
        if (!IS(no_result_wait)) wait_cluster(bar.result + 8 * index, tile / ACCUMULATORS & 1);
        if (!IS(no_fence_after_result)) fence_after();
        float d[16];
        for (int column = 0; column < COLUMNS; column += 16) {
            tensor_load(d, tensor + index * COLUMNS + column);
            if (!IS(no_wait_ld)) asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
            for (int i = 0; i < 16; i++) c[tile * COLUMNS + column + i] = d[i];
        }
    }
    fence_before();
}

template <mutation active>
static __device__ __forceinline__ void run(const TensorMap *a, const TensorMap *b, const TensorMap *sfa,
                                           const uint4 *sfb, float *c) {
    const u32 t = threadIdx.x, warp = t / 32, base = shared_address(smem);
    const u32 rank = GROUP == 2 ? cluster_rank() : 0;
    barriers bar;
    bar.full = base + AT_BARRIERS;
    bar.empty = bar.full + 8 * STAGES;
    bar.ready = bar.empty + 8 * STAGES;
    bar.result = bar.ready + 8 * ACCUMULATORS;
    volatile u32 *const address = (u32 *)(smem + AT_ADDRESS);
    if (t == 0) {
        u32 full = 1 + GROUP, ready = 4 * GROUP;
        if (IS(ready_count_too_small)) ready -= 1;
#if GROUP == 2
        if (IS(full_count_without_peer)) full -= 1;
        if (IS(ready_count_without_peer)) ready = 4;
#endif
        for (int i = 0; i < STAGES; i++) {
            barrier_init(bar.full + 8 * i, full);
            barrier_init(bar.empty + 8 * i, 1);
        }
        for (int i = 0; i < ACCUMULATORS; i++) {
            barrier_init(bar.ready + 8 * i, ready);
            barrier_init(bar.result + 8 * i, 1);
        }
        fence_barrier_init();
    }
    if (IS(empty_barriers_set_twice) && t == 96) barrier_init(bar.empty, 1);
#if GROUP == 2
    __syncwarp();
    if (!IS(no_cluster_sync_at_start)) cluster_arrive();
    if (!IS(no_cluster_sync_at_start)) cluster_wait();
#endif
    int allocates = warp == 2;
#if GROUP == 2
    if (IS(peer_does_not_allocate) && rank) allocates = 0;
#endif
    if (allocates) {
        if (IS(alloc_after_relinquish)) relinquish();
        alloc(base + AT_ADDRESS, IS(short_alloc) ? TENSOR_COLUMNS / 2 : TENSOR_COLUMNS);
        if (!IS(alloc_after_relinquish)) relinquish();
    }
    u32 tensor = 0;
    if (IS(address_read_before_sync)) tensor = *address;
    fence_before();
    __syncthreads();
    fence_after();
    if (!IS(address_read_before_sync)) tensor = *address;
    int multiplies = rank == 0;
#if GROUP == 2
    if (IS(both_ctas_multiply)) multiplies = 1;
#endif
    if (warp == 0 && t == 0) produce<active>(a, b, sfa, base, bar, rank);
    if (warp == 1 && t % 32 == 0 && multiplies) multiply_all<active>(tensor, base, bar);
    if (warp == 2 && t % 32 == 0 && multiplies && IS(scale_copy_overtakes)) copy_all_scales<active>(tensor, base, bar);
    if (warp == 3) write_scales<active>(sfb, bar);
    if (warp >= 4) finish<active>(c + (rank * ROWS + t - 128) * TILES * COLUMNS, tensor, bar);
    __syncwarp();
    if (IS(dealloc_before_epilogue)) {
        if (warp == 2) dealloc(tensor, TENSOR_COLUMNS);
        return;
    }
    __syncthreads();
    fence_after();
#if GROUP == 2
    if (IS(peer_deallocates_late) && warp == 2 && rank == 0) dealloc(tensor, TENSOR_COLUMNS);
    cluster_arrive();
    cluster_wait();
    if (IS(peer_deallocates_late) && rank == 0) return;
#endif
    if (warp == 2 && !IS(no_dealloc)) dealloc(tensor, IS(short_alloc) ? TENSOR_COLUMNS / 2 : TENSOR_COLUMNS);
}

#define ENTRY(name)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,                                 \
             const __grid_constant__ TensorMap sfa, const uint4 *sfb, float *c) {                                      \
        run<mutation::name>(&a, &b, &sfa, sfb, c);                                                                     \
    }
MUTATIONS(ENTRY)
