/* Measures the terms of the B200 model (csrc/kernels/sm100/model.h) that are loads, stores and barriers, on any GPU
 * from Hopper on, and whether bytes that are read once gain by EVICT_FIRST. Prints `name value` lines in the model's
 * units.
 *
 *   nvcc -O3 -std=c++17 -arch=sm_90 -Icsrc -o load_terms benchmarks/load_terms.cu && ./load_terms */
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

enum { STAGE = 16384, STAGES = 8, REPEATS = 7, ROUNDS = 64, WARPS = 32 };
static const size_t DRAM_BYTES = (size_t)4 << 30, L2_BYTES = (size_t)16 << 20;

__device__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ void barrier_init(uint64_t *barrier) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
__device__ void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ void barrier_wait(uint64_t *barrier, uint32_t parity) {
    asm volatile("{ .reg .pred done; WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
                 " @!done bra WAIT; }" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}
/* policy: of createpolicy; 0: none. */
__device__ void bulk_load(void *to, const char *from, uint32_t bytes, uint64_t *barrier, uint64_t policy = 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
    if (policy)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                     "[%3], %4;" ::"r"(shared_address(to)),
                     "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
                     : "memory");
    else
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(to)),
                     "l"(from), "r"(bytes), "r"(shared_address(barrier))
                     : "memory");
}

/* All SMs: nanoseconds of that many clocks. */
__global__ void spin(long long clocks, unsigned long long *nanoseconds) {
    unsigned long long begin, end;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    for (const long long from = clock64(); clock64() - from < clocks;) {
    }
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end));
    nanoseconds[blockIdx.x] = end - begin;
}

/* Each CTA loads `stages` stages; stage i of CTA c is at (i * CTAs + c) % `buffer` stages. clocks: of CTA 0. */
__global__ void load(const char *in, long long stages, long long buffer, int evict_first, long long *clocks) {
    extern __shared__ __align__(1024) char to[];
    __shared__ __align__(8) uint64_t full[STAGES];
    for (int i = 0; i < STAGES; i++) barrier_init(full + i);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    uint64_t policy = 0;
    if (evict_first) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    const long long begin = clock64();
    for (long long i = 0; i < stages + STAGES; i++) {
        const int stage = (int)(i % STAGES);
        if (i >= STAGES) barrier_wait(full + stage, (uint32_t)(i / STAGES - 1) & 1);
        if (i < stages)
            bulk_load(to + stage * STAGE, in + (i * gridDim.x + blockIdx.x) % buffer * STAGE, STAGE, full + stage,
                      policy);
    }
    if (blockIdx.x == 0) *clocks = clock64() - begin;
}

/* One load of 128 bytes at a time, `stride` bytes apart. */
__global__ void first_byte(const char *in, long long stride, long long *clocks) {
    __shared__ __align__(128) char to[128];
    __shared__ __align__(8) uint64_t full;
    barrier_init(&full);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    const long long begin = clock64();
    for (int i = 0; i < ROUNDS; i++) {
        bulk_load(to, in + i * stride, sizeof to, &full);
        barrier_wait(&full, i & 1);
    }
    *clocks = (clock64() - begin) / ROUNDS;
}

/* Bulk copies out of the shared memory of one SM, until they are complete. */
__global__ void bulk_store(char *out, long long *clocks) {
    extern __shared__ __align__(1024) char from[];
    for (uint32_t i = threadIdx.x; i < STAGES * STAGE / 4; i += blockDim.x) ((uint32_t *)from)[i] = i;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x) return;
    const long long begin = clock64();
    for (int i = 0; i < ROUNDS; i++)
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + (i % STAGES) * STAGE),
                     "r"(shared_address(from) + i % STAGES * STAGE), "r"(STAGE)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    *clocks = clock64() - begin;
}

/* Two warps wait for each other by turns. */
__global__ void barriers(long long *clocks) {
    __shared__ __align__(8) uint64_t turn[2];
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) barrier_init(turn), barrier_init(turn + 1);
    __syncthreads();
    if (threadIdx.x % 32) return;
    const long long begin = clock64();
    for (uint32_t i = 0; i < ROUNDS; i++) {
        if (warp == 0) barrier_arrive(turn);
        barrier_wait(turn + !warp, i & 1);
        if (warp == 1) barrier_arrive(turn + 1);
    }
    if (warp == 0) *clocks = (clock64() - begin) / (2 * ROUNDS);
}

/* Loads of 16 bytes a lane from shared memory by all warps. */
__global__ void shared_loads(long long *clocks, uint32_t *sink) {
    __shared__ uint4 data[WARPS * 32];
    uint4 sum = {};
    data[threadIdx.x] = make_uint4(threadIdx.x, 1, 2, 3);
    __syncthreads();
    const long long begin = clock64();
#pragma unroll 8
    for (int i = 0; i < ROUNDS; i++) {
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(shared_address(data + (threadIdx.x ^ (uint32_t)i % WARPS * 32))));
        sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
    }
    __syncthreads();
    if (threadIdx.x == 0) *clocks = clock64() - begin;
    sink[threadIdx.x] = sum.x ^ sum.y ^ sum.z ^ sum.w;
}

/* cp.async of 16 bytes a lane from L2, by four warps as in the cp.async kernels. */
__global__ void cp_async(const char *in, long long *clocks) {
    extern __shared__ __align__(1024) char to[];
    const long long begin = clock64();
    for (int i = 0; i < ROUNDS; i++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) +
                                                                       (uint32_t)(i * 128 + threadIdx.x) * 16),
                     "l"(in + (size_t)(i * 128 + threadIdx.x) * 16)
                     : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) *clocks = clock64() - begin;
}

/* The median of REPEATS; one run before does not count. */
template <class F> static double median(F run) {
    std::vector<double> values;
    run();
    for (int i = 0; i < REPEATS; i++) values.push_back(run());
    std::sort(values.begin(), values.end());
    return values[REPEATS / 2];
}

int main() {
    char *in, *out;
    long long *clocks;
    uint32_t *sink;
    unsigned long long *nanoseconds;
    cudaDeviceProp device;
    cudaEvent_t begin, end;
    CHECK(cudaGetDeviceProperties(&device, 0));
    const int sms = device.multiProcessorCount, shared = STAGES * STAGE;
    CHECK(cudaMalloc(&in, DRAM_BYTES)), CHECK(cudaMemset(in, 1, DRAM_BYTES));
    CHECK(cudaMalloc(&out, (size_t)STAGES * STAGE)), CHECK(cudaMalloc(&clocks, sizeof *clocks));
    CHECK(cudaMalloc(&sink, WARPS * 32 * sizeof *sink)), CHECK(cudaMalloc(&nanoseconds, (size_t)sms * 8));
    CHECK(cudaEventCreate(&begin)), CHECK(cudaEventCreate(&end));
    CHECK(cudaFuncSetAttribute(load, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    CHECK(cudaFuncSetAttribute(bulk_store, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    CHECK(cudaFuncSetAttribute(cp_async, cudaFuncAttributeMaxDynamicSharedMemorySize, ROUNDS * 2048));

    auto read_clocks = [&] {
        long long value;
        CHECK(cudaMemcpy(&value, clocks, sizeof value, cudaMemcpyDeviceToHost));
        return (double)value;
    };
    auto clocks_of = [&](auto launch) {
        return median([&] {
            launch();
            CHECK(cudaGetLastError());
            return read_clocks();
        });
    };
    /* TB/s of all SMs, each loading that many stages. */
    auto rate_once = [&](const char *from, long long stages, size_t buffer, int evict_first) {
        float ms;
        CHECK(cudaEventRecord(begin));
        load<<<sms, 1, shared>>>(from, stages, (long long)(buffer / STAGE), evict_first, clocks);
        CHECK(cudaEventRecord(end)), CHECK(cudaEventSynchronize(end)), CHECK(cudaEventElapsedTime(&ms, begin, end));
        return 1e-9 * STAGE * (double)stages * sms / ms;
    };
    auto rate = [&](long long stages, size_t buffer) {
        return median([&] { return rate_once(in, stages, buffer, 0); });
    };
    /* The same of bytes that are read once, half as many as L2 holds, all of whose lines were written just before. */
    const size_t l2_bytes = (size_t)device.l2CacheSize, read_stages = l2_bytes / 2 / STAGE / sms;
    size_t fresh = 0;
    auto read_once = [&](int evict_first) {
        return median([&] {
            fresh = fresh + l2_bytes < DRAM_BYTES / 2 ? fresh + l2_bytes : 0;
            CHECK(cudaMemsetAsync(in + DRAM_BYTES / 2, evict_first, l2_bytes));
            return rate_once(in + fresh / STAGE * STAGE, (long long)read_stages, l2_bytes, evict_first);
        });
    };
    double ghz = median([&] {
        const long long spun = 20000000;
        unsigned long long taken;
        spin<<<sms, 1>>>(spun, nanoseconds);
        CHECK(cudaMemcpy(&taken, nanoseconds, sizeof taken, cudaMemcpyDeviceToHost));
        return (double)spun / (double)taken;
    });
    printf("clock_ghz %.4f\n", ghz);
    printf("dram_tb_s %.4f\n", rate((long long)(DRAM_BYTES / STAGE) / sms, DRAM_BYTES));
    printf("l2_tb_s %.4f\n", rate(2000, L2_BYTES));
    printf("evict_normal_tb_s %.4f\n", read_once(0));
    printf("evict_first_tb_s %.4f\n", read_once(1));
    printf("ingress_b_clk %.3f\n",
           2000.0 * STAGE / clocks_of([&] { load<<<1, 1, shared>>>(in, 2000, 64, 0, clocks); }));
    long long place = 0; /* other addresses each time: cold */
    printf("first_byte_us %.4f\n", clocks_of([&] {
                                       first_byte<<<1, 1>>>(in + place, 256 << 10, clocks);
                                       place += ROUNDS * (256 << 10);
                                   }) * 1e-3 /
                                       ghz);
    printf("bulk_store_b_clk %.3f\n",
           (double)ROUNDS * STAGE / clocks_of([&] { bulk_store<<<1, 128, shared>>>(out, clocks); }));
    printf("barrier_cycles %.2f\n", clocks_of([&] { barriers<<<1, 64>>>(clocks); }));
    printf("shared_b_clk %.2f\n",
           (double)ROUNDS * WARPS * 512 / clocks_of([&] { shared_loads<<<1, WARPS * 32>>>(clocks, sink); }));
    printf("cp_async_cycles %.3f\n",
           clocks_of([&] { cp_async<<<1, 128, ROUNDS * 2048>>>(in, clocks); }) / (ROUNDS * 4));
    return 0;
}
