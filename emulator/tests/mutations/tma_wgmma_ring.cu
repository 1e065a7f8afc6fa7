// sm_90a: C = A B^T + U V^T + bias of f16, tile after tile along N. A warp fills a ring of slots by TMA, a warpgroup
// multiplies by wgmma and stores each tile by TMA. U and V are written to shared memory by threads.
#include "device.cuh"

#define BUGS(X)                                                                                                        \
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

enum class bug { BUGS(BUG_NAME) };

enum { THREADS = 160, CONSUMERS = 128, PRODUCER = 4, ROWS = 64, COLUMNS = 32, DEPTH = 64, RANK = 16 };
enum { SLOTS = 3, TILES = 3, STEPS = 3, WGMMA_K = 16 };
enum { A_BYTES = ROWS * DEPTH * 2, B_BYTES = COLUMNS * DEPTH * 2, FILL = A_BYTES + B_BYTES };
enum { AT_B = SLOTS * A_BYTES, AT_U = AT_B + SLOTS * B_BYTES, AT_V = AT_U + ROWS * RANK * 2 };
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

template <bug planted>
static __device__ __forceinline__ void produce(const TensorMap *a, const TensorMap *b, u32 base, u32 full, u32 empty) {
    for (int fill = 0; fill < TILES * STEPS; fill++) {
        const u32 slot = fill % SLOTS, bar = full + 8 * slot, parity = fill / SLOTS & 1;
        if (!HAS(no_empty_wait)) wait(empty + 8 * slot, parity ^ !HAS(empty_parity_flipped));
        arrive_expect(bar, FILL + (HAS(expects_too_little) ? -128 : HAS(expects_too_much) ? 128 : 0));
        const u32 k = fill % STEPS * DEPTH, row = fill / STEPS * COLUMNS;
        tma_load(base + slot * A_BYTES + (HAS(misaligned_destination) ? 64 : 0), a, k, 0, bar);
        if (HAS(coordinates_swapped))
            tma_load(base + AT_B + slot * B_BYTES, b, row, k, bar);
        else
            tma_load(base + AT_B + slot * B_BYTES, b, k, row, bar);
    }
}

// D's element i of a thread: row and column in the tile.
static __device__ __forceinline__ u32 row_of(int i) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * (i >> 1 & 1);
}
static __device__ __forceinline__ u32 column_of(int i) {
    return 8 * (i >> 2) + threadIdx.x % 4 * 2 + (i & 1);
}

template <bug planted>
static __device__ __forceinline__ void consume(const half *u, const half *v, const float *bias, const TensorMap *c,
                                               u32 base, u32 full, u32 empty) {
    const u32 t = threadIdx.x;
    half *const u_at = (half *)(smem + AT_U), *const v_at = (half *)(smem + AT_V);
    float *const staged = (float *)(smem + AT_STAGED);
    for (u32 i = t; i < ROWS * RANK; i += CONSUMERS)
        u_at[i / RANK / 8 * 128 + i % RANK / 8 * 64 + i / RANK % 8 * 8 + i % 8] = u[i];
    const u64 layout = HAS(descriptor_of_other_swizzle) ? 2 : 1;
    const u32 stride = HAS(descriptor_stride_halved) ? 512 : 1024;
    if (HAS(no_wgmma_fence_behind_bias)) wgmma_fence();
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++) {
        for (u32 i = t; i < COLUMNS * RANK; i += CONSUMERS)
            v_at[i / RANK / 8 * 128 + i % RANK / 8 * 64 + i / RANK % 8 * 8 + i % 8] = v[tile * COLUMNS * RANK + i];
        if (!HAS(no_proxy_fence_for_wgmma)) fence_proxy_async();
        named_barrier(1, CONSUMERS);
        float d[16];
        for (int i = 0; i < 16; i++) d[i] = bias[tile * COLUMNS + column_of(i)];
        if (!HAS(no_wgmma_fence_at_all) && !HAS(no_wgmma_fence_behind_bias)) wgmma_fence();
        wgmma(d, descriptor(base + AT_U, 0, 128, 256), descriptor(base + AT_V, 0, 128, 256));
        wgmma_commit();
#pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
            const u32 fill = tile * STEPS + step, slot = fill % SLOTS, parity = fill / SLOTS & 1;
            if (!HAS(no_full_wait)) wait(full + 8 * slot, parity ^ HAS(full_parity_flipped));
            if (!HAS(no_wgmma_fence_at_all) && !HAS(no_wgmma_fence_behind_bias)) wgmma_fence();
            for (int k = 0; k < DEPTH / WGMMA_K; k++) {
                const u64 da = descriptor(base + slot * A_BYTES + k * 32, layout, 16, stride);
                const u64 db = descriptor(base + AT_B + slot * B_BYTES + k * 32, layout, 16, stride);
                if (HAS(descriptors_swapped))
                    wgmma(d, db, da);
                else
                    wgmma(d, da, db);
            }
            if (!HAS(no_wgmma_commit)) wgmma_commit();
            if (HAS(released_before_wgmma_ended) && t % 32 == 0) arrive(empty + 8 * slot);
            if (!HAS(no_wgmma_wait) && !(HAS(accumulators_read_before_wait) && step == STEPS - 1)) wgmma_wait(d);
            if (!HAS(released_before_wgmma_ended) && !HAS(no_release) && t % 32 == 0) arrive(empty + 8 * slot);
        }
        if (t == 0 && !HAS(no_read_wait_before_reuse)) bulk_wait_read();
        named_barrier(1, CONSUMERS);
        for (int i = 0; i < 16; i++) staged[row_of(i) * COLUMNS + column_of(i)] = d[i];
        if (HAS(accumulators_read_before_wait)) wgmma_wait(d);
        if (HAS(proxy_fence_by_storing_thread_before_sync)) {
            if (t == 0) fence_proxy_async();
        } else if (!HAS(no_proxy_fence_for_store))
            fence_proxy_async();
        if (!HAS(no_sync_before_store)) named_barrier(1, HAS(staging_barrier_count_wrong) ? THREADS : CONSUMERS);
        if (t == 0) {
            tma_store(c, tile * COLUMNS, 0, base + AT_STAGED);
            bulk_commit();
        }
    }
    if (t == 0 && !HAS(exit_with_store_under_way)) bulk_wait();
}

template <bug planted>
static __device__ __forceinline__ void run(const TensorMap *a, const TensorMap *b, const TensorMap *c, const half *u,
                                           const half *v, const float *bias) {
    const u32 t = threadIdx.x, base = shared_address(smem), full = base + AT_BARRIERS, empty = full + 8 * SLOTS;
    if (t == 0 || (HAS(barriers_initialised_twice) && t == 32)) {
        for (int i = 0; i < SLOTS; i++) {
            barrier_init(full + 8 * i, HAS(full_count_too_large) ? 2 : 1);
            if (!HAS(one_barrier_uninitialised) || i != SLOTS - 1)
                barrier_init(empty + 8 * i, HAS(empty_count_too_small) ? 1 : CONSUMERS / 32);
        }
        fence_barrier_init();
    }
    if (!HAS(no_sync_behind_init)) __syncthreads();
    if (t / 32 != PRODUCER)
        consume<planted>(u, v, bias, c, base, full, empty);
    else if (t % 32 == 0 || HAS(whole_warp_produces))
        produce<planted>(a, b, base, full, empty);
}

#define ENTRY(name)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,                                 \
             const __grid_constant__ TensorMap c, const half *u, const half *v, const float *bias) {                   \
        run<bug::name>(&a, &b, &c, u, v, bias);                                                                        \
    }
BUGS(ENTRY)
