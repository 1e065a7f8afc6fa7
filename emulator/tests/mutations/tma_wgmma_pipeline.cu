// sm_90a: C = A B^T + U V^T + bias of f16, tile after tile along N. A warp fills a pipeline of stages by TMA, a
// warpgroup multiplies by wgmma and stores each tile by TMA. U and V are written to shared memory by threads.
#include "device.cuh"

#define MUTATIONS(X)                                                                                                   \
    X(none)                                                                                                            \
    X(no_full_wait)                                                                                                    \
    X(full_parity_flipped)                                                                                             \
    X(no_empty_wait)                                                                                                   \
    X(empty_parity_flipped)                                                                                            \
    X(released_before_wgmma_ended)                                                                                     \
    X(no_release)                                                                                                      \
    X(expects_too_little)                                                                                              \
    X(expects_too_much)                                                                                                \
    X(full_count_too_large)                                                                                            \
    X(empty_count_too_small)                                                                                           \
    X(barriers_initialised_twice)                                                                                      \
    X(one_barrier_uninitialised)                                                                                       \
    X(no_sync_behind_init)                                                                                             \
    X(whole_warp_produces)                                                                                             \
    X(misaligned_destination)                                                                                          \
    X(map_without_swizzle)                                                                                             \
    X(coordinates_swapped)                                                                                             \
    X(descriptor_of_other_swizzle)                                                                                     \
    X(descriptors_swapped)                                                                                             \
    X(descriptor_stride_halved)                                                                                        \
    X(no_wgmma_fence_at_all)                                                                                           \
    X(no_wgmma_fence_behind_bias)                                                                                      \
    X(no_wgmma_commit)                                                                                                 \
    X(no_wgmma_wait)                                                                                                   \
    X(accumulators_read_before_wait)                                                                                   \
    X(no_proxy_fence_for_wgmma)                                                                                        \
    X(no_proxy_fence_for_store)                                                                                        \
    X(proxy_fence_by_storing_thread_before_sync)                                                                       \
    X(no_sync_before_store)                                                                                            \
    X(staging_barrier_count_wrong)                                                                                     \
    X(no_read_wait_before_reuse)                                                                                       \
    X(exit_with_store_under_way)

enum class mutation { MUTATIONS(MUTATION_NAME) };

enum { THREADS = 160, CONSUMERS = 128, PRODUCER = 4, ROWS = 64, COLUMNS = 32, DEPTH = 64, RANK = 16 };
enum { STAGES = 3, TILES = 3, STEPS = 3, WGMMA_K = 16 };
enum { A_BYTES = ROWS * DEPTH * 2, B_BYTES = COLUMNS * DEPTH * 2, FILL = A_BYTES + B_BYTES };
enum { AT_B = STAGES * A_BYTES, AT_U = AT_B + STAGES * B_BYTES, AT_V = AT_U + ROWS * RANK * 2 };
enum { AT_STAGED = AT_V + COLUMNS * RANK * 2, AT_BARRIERS = AT_STAGED + ROWS * COLUMNS * 4 };

// Layout 1 is a swizzle of 128 bytes, whose eight rows take 1024; 0 is none: 8 rows x 16 bytes lie together.
static __device__ __forceinline__ u64 descriptor(u32 address, u64 layout, u32 leading, u32 stride) {
    return (address & 0x3ffff) >> 4 | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | layout << 62;
}

static __device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#define D_8(d, i)                                                                                                      \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])

static __device__ __forceinline__ void wgmma_wait(float (&d)[16]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : D_8(d, 0), D_8(d, 8)::"memory");
}
static __device__ __forceinline__ void wgmma(float (&d)[16], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11,"
                 " %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
                 : D_8(d, 0), D_8(d, 8)
                 : "l"(a), "l"(b)
                 : "memory");
}

template <mutation active>
static __device__ __forceinline__ void produce(const TensorMap *a, const TensorMap *b, u32 base, u32 full, u32 empty) {
    for (int fill = 0; fill < TILES * STEPS; fill++) {
        const u32 stage = fill % STAGES, bar = full + 8 * stage, parity = fill / STAGES & 1;
        if (!IS(no_empty_wait)) wait(empty + 8 * stage, parity ^ !IS(empty_parity_flipped));
        arrive_expect(bar, FILL + (IS(expects_too_little) ? -128 : IS(expects_too_much) ? 128 : 0));
        const u32 k = fill % STEPS * DEPTH, row = fill / STEPS * COLUMNS;
        tma_load(base + stage * A_BYTES + (IS(misaligned_destination) ? 64 : 0), a, k, 0, bar);
        if (IS(coordinates_swapped))
            tma_load(base + AT_B + stage * B_BYTES, b, row, k, bar);
        else
            tma_load(base + AT_B + stage * B_BYTES, b, k, row, bar);
    }
}

// D's element i of a thread: row and column in the tile.
static __device__ __forceinline__ u32 row_of(int i) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * (i >> 1 & 1);
}
static __device__ __forceinline__ u32 column_of(int i) {
    return 8 * (i >> 2) + threadIdx.x % 4 * 2 + (i & 1);
}

template <mutation active>
static __device__ __forceinline__ void consume(const half *u, const half *v, const float *bias, const TensorMap *c,
                                               u32 base, u32 full, u32 empty) {
    const u32 t = threadIdx.x;
    half *const u_at = (half *)(smem + AT_U), *const v_at = (half *)(smem + AT_V);
    float *const staged = (float *)(smem + AT_STAGED);
    for (u32 i = t; i < ROWS * RANK; i += CONSUMERS)
        u_at[i / RANK / 8 * 128 + i % RANK / 8 * 64 + i / RANK % 8 * 8 + i % 8] = u[i];
    const u64 layout = IS(descriptor_of_other_swizzle) ? 2 : 1;
    const u32 stride = IS(descriptor_stride_halved) ? 512 : 1024;
    if (IS(no_wgmma_fence_behind_bias)) wgmma_fence();
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++) {
        for (u32 i = t; i < COLUMNS * RANK; i += CONSUMERS)
            v_at[i / RANK / 8 * 128 + i % RANK / 8 * 64 + i / RANK % 8 * 8 + i % 8] = v[tile * COLUMNS * RANK + i];
        if (!IS(no_proxy_fence_for_wgmma)) fence_proxy_async();
        named_barrier(1, CONSUMERS);
        float d[16];
        for (int i = 0; i < 16; i++) d[i] = bias[tile * COLUMNS + column_of(i)];
        if (!IS(no_wgmma_fence_at_all) && !IS(no_wgmma_fence_behind_bias)) wgmma_fence();
        wgmma(d, descriptor(base + AT_U, 0, 128, 256), descriptor(base + AT_V, 0, 128, 256));
        wgmma_commit();
#pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
            const u32 fill = tile * STEPS + step, stage = fill % STAGES, parity = fill / STAGES & 1;
            if (!IS(no_full_wait)) wait(full + 8 * stage, parity ^ IS(full_parity_flipped));
            if (!IS(no_wgmma_fence_at_all) && !IS(no_wgmma_fence_behind_bias)) wgmma_fence();
            for (int k = 0; k < DEPTH / WGMMA_K; k++) {
                const u64 da = descriptor(base + stage * A_BYTES + k * 32, layout, 16, stride);
                const u64 db = descriptor(base + AT_B + stage * B_BYTES + k * 32, layout, 16, stride);
                if (IS(descriptors_swapped))
                    wgmma(d, db, da);
                else
                    wgmma(d, da, db);
            }
            if (!IS(no_wgmma_commit)) wgmma_commit();
            if (IS(released_before_wgmma_ended) && t % 32 == 0) arrive(empty + 8 * stage);
            if (!IS(no_wgmma_wait) && !(IS(accumulators_read_before_wait) && step == STEPS - 1)) wgmma_wait(d);
            if (!IS(released_before_wgmma_ended) && !IS(no_release) && t % 32 == 0) arrive(empty + 8 * stage);
        }
        if (t == 0 && !IS(no_read_wait_before_reuse)) bulk_wait_read();
        named_barrier(1, CONSUMERS);
        for (int i = 0; i < 16; i++) staged[row_of(i) * COLUMNS + column_of(i)] = d[i];
        if (IS(accumulators_read_before_wait)) wgmma_wait(d);
        if (IS(proxy_fence_by_storing_thread_before_sync)) {
            if (t == 0) fence_proxy_async();
        } else if (!IS(no_proxy_fence_for_store))
            fence_proxy_async();
        if (!IS(no_sync_before_store)) named_barrier(1, IS(staging_barrier_count_wrong) ? THREADS : CONSUMERS);
        if (t == 0) {
            tma_store(c, tile * COLUMNS, 0, base + AT_STAGED);
            bulk_commit();
        }
    }
    if (t == 0 && !IS(exit_with_store_under_way)) bulk_wait();
}

template <mutation active>
static __device__ __forceinline__ void run(const TensorMap *a, const TensorMap *b, const TensorMap *c, const half *u,
                                           const half *v, const float *bias) {
    const u32 t = threadIdx.x, base = shared_address(smem), full = base + AT_BARRIERS, empty = full + 8 * STAGES;
    if (t == 0 || (IS(barriers_initialised_twice) && t == 32)) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + 8 * i, IS(full_count_too_large) ? 2 : 1);
            if (!IS(one_barrier_uninitialised) || i != STAGES - 1)
                barrier_init(empty + 8 * i, IS(empty_count_too_small) ? 1 : CONSUMERS / 32);
        }
        fence_barrier_init();
    }
    if (!IS(no_sync_behind_init)) __syncthreads();
    if (t / 32 != PRODUCER)
        consume<active>(u, v, bias, c, base, full, empty);
    else if (t % 32 == 0 || IS(whole_warp_produces))
        produce<active>(a, b, base, full, empty);
}

#define ENTRY(name)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,                                 \
             const __grid_constant__ TensorMap c, const half *u, const half *v, const float *bias) {                   \
        run<mutation::name>(&a, &b, &c, u, v, bias);                                                                   \
    }
MUTATIONS(ENTRY)
