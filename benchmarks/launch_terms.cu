/* Measures the terms that the B200 model (model_b200.py) takes from a Hopper GPU: the gap between launches on a stream,
 * the hidden part of a prologue, stores of C, the exchange of partial sums between CTAs of a cluster, L2 prefetch.
 *
 *   nvcc -O3 -std=c++17 -arch=sm_90 -o launch_terms benchmarks/launch_terms.cu && ./launch_terms */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call) check((call), #call)

static void check(cudaError_t error, const char *call) {
    if (!error) return;
    printf("%s: %s\n", call, cudaGetErrorString(error));
    exit(1);
}

enum {
    CALLS = 400,
    REPEATS = 7,
    BODY_US = 3,
    BUFFERS = 50,
    STAGE = 18432,
    PIPELINE_STAGES = 4,
    LD = 14336,
    THREADS = 128
};
enum trigger { PLAIN, NONE, BEFORE, BEHIND }; /* the wait; PLAIN: no dependent launch */
static const char *const triggers[] = {"plain", "dependent, no trigger", "trigger before the wait", "behind it"};

static double clocks_per_us;

__device__ void spin_for(long long clocks) {
    long long begin = clock64();
    while (clock64() - begin < clocks);
}
__global__ void spin(long long clocks) {
    spin_for(clocks);
}
__device__ void wait_and_trigger(int trigger) {
    if (trigger == BEFORE) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    if (trigger != PLAIN) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (trigger == BEHIND) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ uint32_t at_rank(uint32_t address, uint32_t rank) {
    uint32_t mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}
__device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{ .reg .pred done; WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;"
                 " @!done bra WAIT; }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* A load, a body of so many clocks, a store; `before` clocks of it stand before the wait. */
__global__ void tiny(const int *in, int *out, int trigger, long long before, long long body) {
    spin_for(before);
    wait_and_trigger(trigger);
    int i = blockIdx.x * blockDim.x + threadIdx.x, value = __ldcg(in + i);
    spin_for(body);
    __stcg(out + i, value + 1);
}

/* A body, then a tile of fp16: by columns a warp stores 64 bytes of each of ROWS rows, by rows a lane 16 of its own. */
template <int ROWS, bool BY_COLUMNS> __global__ void __launch_bounds__(THREADS) store(uint16_t *out, long long body) {
    wait_and_trigger(BEHIND);
    spin_for(body);
    if (BY_COLUMNS) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) out[(size_t)i * LD + blockIdx.x * THREADS + threadIdx.x] = (uint16_t)i;
    } else {
        uint4 *row = (uint4 *)(out + (size_t)threadIdx.x * LD + blockIdx.x * ROWS);
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) row[i] = make_uint4(i, i, i, i);
    }
}

/* Reads `stages` of a buffer through a pipeline; dependent calls prefetch the first `ahead` into L2 before the wait. */
__global__ void __launch_bounds__(THREADS) stream(const char *in, uint16_t *out, int stages, int ahead, int trigger) {
    extern __shared__ __align__(1024) char buffers[];
    __shared__ __align__(8) uint64_t full[PIPELINE_STAGES];
    const char *from = in + (size_t)blockIdx.x * stages * STAGE;
    if (threadIdx.x == 0) {
        for (int i = 0; i < PIPELINE_STAGES; i++)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(full + i)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i < ahead; i++)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + (size_t)i * STAGE), "r"(STAGE));
    }
    __syncthreads();
    wait_and_trigger(trigger);
    if (threadIdx.x == 0)
        for (int i = 0; i < stages + PIPELINE_STAGES; i++) {
            uint32_t stage = i % PIPELINE_STAGES, barrier = shared_address(full + stage);
            if (i >= PIPELINE_STAGES) barrier_wait(barrier, (i / PIPELINE_STAGES - 1) & 1);
            if (i >= stages) continue;
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(STAGE) : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    shared_address(buffers) + stage * STAGE),
                "l"(from + (size_t)i * STAGE), "r"(STAGE), "r"(barrier)
                : "memory");
        }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; i++) out[(size_t)i * LD + blockIdx.x * THREADS + threadIdx.x] = (uint16_t)i;
}

/* Each CTA of a cluster sends the COLUMNS / SPLIT columns of 128 fp32 that it does not keep, and waits for its own.
 * clocks: of a barrier of the cluster, and of the exchange. */
template <int COLUMNS, int SPLIT> __global__ void __launch_bounds__(THREADS) exchange(int *clocks, float seed) {
    extern __shared__ __align__(16) char partials[];
    __shared__ __align__(8) uint64_t all_here;
    constexpr int KEPT = COLUMNS / SPLIT, ROUNDS = 8;
    uint32_t rank, barrier = shared_address(&all_here);
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0)
        asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(barrier)
                     : "memory");
    float sums[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) sums[i] = seed * (float)(i + (int)threadIdx.x);
    long long at_barriers = 0, exchanging = 0;
    for (int round = 0; round < ROUNDS; round++) {
        cluster_sync();
        if (threadIdx.x == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier),
                         "r"((SPLIT - 1) * KEPT * 512)
                         : "memory");
        long long begin = clock64();
        cluster_sync();
        long long ready = clock64();
#pragma unroll
        for (int to = 0; to < SPLIT; to++) {
            if (to == (int)rank) continue;
            uint32_t there = at_rank(shared_address(partials) + rank * KEPT * 512 + threadIdx.x * 16, to);
#pragma unroll
            for (int i = 0; i < KEPT; i += 4) {
                const float *v = sums + to * KEPT + i;
                asm volatile(
                    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                        there + i * 512),
                    "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(at_rank(barrier, to))
                    : "memory");
            }
        }
        barrier_wait(barrier, round & 1);
        __syncthreads();
        if (round) at_barriers += ready - begin, exchanging += clock64() - ready;
    }
    cluster_sync();
    if (threadIdx.x == 0)
        clocks[2 * blockIdx.x] = at_barriers / (ROUNDS - 1), clocks[2 * blockIdx.x + 1] = exchanging / (ROUNDS - 1);
}

struct launch {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2];

    launch(int grid, int threads, int shared, bool dependent, int cluster) {
        config.gridDim = grid, config.blockDim = threads, config.dynamicSmemBytes = shared, config.attrs = attributes;
        if (dependent) {
            attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
        }
        if (cluster > 1) {
            attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
            attributes[config.numAttrs].val.clusterDim.x = cluster;
            attributes[config.numAttrs].val.clusterDim.y = attributes[config.numAttrs].val.clusterDim.z = 1;
            config.numAttrs++;
        }
    }
};

/* Microseconds a call of `call(i)`, enqueued after a kernel that hides the host's time. */
template <class F> static double back_to_back(F call) {
    static cudaEvent_t begin, end;
    if (!begin) CHECK(cudaEventCreate(&begin)), CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        float ms;
        spin<<<1, 1>>>(12000000);
        CHECK(cudaEventRecord(begin));
        for (int i = 0; i < CALLS; i++) call(i);
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        times.push_back(ms * 1000 / CALLS);
    }
    std::sort(times.begin(), times.end());
    return times[REPEATS / 2];
}

static double chain(int trigger, int grid, int cluster, int shared, double before_us, int *a, int *b) {
    CHECK(cudaFuncSetAttribute(tiny, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    launch l(grid, 192, shared, trigger != PLAIN, cluster);
    return back_to_back([&](int i) {
        CHECK(cudaLaunchKernelEx(&l.config, tiny, (const int *)(i & 1 ? a : b), i & 1 ? b : a, trigger,
                                 (long long)(before_us * clocks_per_us), (long long)(BODY_US * clocks_per_us)));
    });
}

template <int ROWS, bool BY_COLUMNS> static void stores(uint16_t *out, int grid) {
    launch l(grid, THREADS, 0, true, 1);
    double us = back_to_back([&](int) {
        CHECK(cudaLaunchKernelEx(&l.config, store<ROWS, BY_COLUMNS>, out, (long long)(BODY_US * clocks_per_us)));
    });
    printf("stores, %3d CTAs, %3d %s: %.2f us beyond the body\n", grid, ROWS,
           BY_COLUMNS ? "rows of 64 bytes a warp" : "numbers of each lane's row", us - BODY_US);
}

static void streams(const char *in, uint16_t *out, int grid, int stages) {
    CHECK(cudaFuncSetAttribute(stream, cudaFuncAttributeMaxDynamicSharedMemorySize, PIPELINE_STAGES * STAGE));
    printf("streaming %.1f MB:", 1e-6 * grid * stages * STAGE);
    for (int ahead = -1; ahead <= stages; ahead = ahead < 1 ? ahead + 1 : ahead * 2) {
        launch l(grid, THREADS, PIPELINE_STAGES * STAGE, ahead >= 0, 1);
        double us = back_to_back([&](int i) {
            CHECK(cudaLaunchKernelEx(&l.config, stream, in + (size_t)(i % BUFFERS) * grid * stages * STAGE, out, stages,
                                     ahead < 0 ? 0 : ahead, (int)(ahead < 0 ? PLAIN : BEHIND)));
        });
        if (ahead < 0)
            printf(" plain %.2f us, dependent", us);
        else
            printf(" %.2f with %d of %d stages ahead,", us, ahead, stages);
    }
    printf("\n");
}

template <int COLUMNS, int SPLIT> static void exchanges(int *clocks) {
    int grid = 112 / SPLIT * SPLIT, shared = COLUMNS * 512;
    CHECK(cudaFuncSetAttribute(exchange<COLUMNS, SPLIT>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    launch l(grid, THREADS, shared, false, SPLIT);
    for (int i = 0; i < 2; i++) CHECK(cudaLaunchKernelEx(&l.config, exchange<COLUMNS, SPLIT>, clocks, 1.5f));
    CHECK(cudaDeviceSynchronize());
    long at_barrier = 0, exchanging = 0;
    for (int i = 0; i < grid; i++) at_barrier += clocks[2 * i], exchanging += clocks[2 * i + 1];
    printf("clusters of %d, %3d columns: barrier %ld, exchange %ld clocks\n", SPLIT, COLUMNS, at_barrier / grid,
           exchanging / grid);
}

int main() {
    int *a, *b, *clocks;
    uint16_t *out;
    char *in;
    float ms;
    cudaEvent_t begin, end;
    size_t most = (size_t)BUFFERS * 112 * 30 * STAGE;
    CHECK(cudaMalloc(&a, 1 << 20)), CHECK(cudaMalloc(&b, 1 << 20)), CHECK(cudaMalloc(&in, most));
    CHECK(cudaMalloc(&out, (size_t)THREADS * LD * 2)), CHECK(cudaMallocManaged(&clocks, 1 << 16));
    CHECK(cudaMemset(a, 0, 1 << 20)), CHECK(cudaMemset(b, 0, 1 << 20)), CHECK(cudaMemset(in, 1, most));
    CHECK(cudaEventCreate(&begin)), CHECK(cudaEventCreate(&end));
    spin<<<1, 1>>>(100000000);
    CHECK(cudaEventRecord(begin));
    spin<<<1, 1>>>(100000000);
    CHECK(cudaEventRecord(end)), CHECK(cudaEventSynchronize(end)), CHECK(cudaEventElapsedTime(&ms, begin, end));
    clocks_per_us = 100000000 / (ms * 1000);

    for (int shared : {100 << 10, 200 << 10})
        for (int cluster : {1, 2, 4})
            for (int trigger : {PLAIN, NONE, BEFORE, BEHIND})
                printf("112 CTAs of %d KB, clusters of %d, %s: gap %.2f us, %.2f with a prologue of 0.7\n",
                       shared >> 10, cluster, triggers[trigger],
                       chain(trigger, 112, cluster, shared, 0, a, b) - BODY_US,
                       chain(trigger, 112, cluster, shared, 0.7, a, b) - BODY_US);
    stores<8, true>(out, 56), stores<32, true>(out, 56), stores<128, true>(out, 56), stores<64, true>(out, 112);
    stores<8, false>(out, 56), stores<32, false>(out, 56), stores<128, false>(out, 56);
    exchanges<64, 2>(clocks), exchanges<64, 4>(clocks), exchanges<64, 8>(clocks);
    exchanges<128, 2>(clocks), exchanges<128, 4>(clocks), exchanges<128, 8>(clocks);
    streams(in, out, 112, 4), streams(in, out, 128, 7), streams(in, out, 112, 30);
    return 0;
}
