/* Records on which SMs the CTAs of back-to-back launches run, under programmatic dependent launch, with the grids,
 * clusters, shared memory and registers of our sm100 plans and an idle body. Prints CSV: a row a case, with the SMs
 * that each launch of a chain uses, and how many of the last launch's hold two of its CTAs.
 *
 *   nvcc -O3 -std=c++17 -arch=sm_90 -Icsrc -o placement benchmarks/placement.cu && ./placement */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/sm100/config.h"

#define CHECK(call) check((call), #call)

static void check(cudaError_t error, const char *call) {
    if (!error) return;
    printf("%s: %s\n", call, cudaGetErrorString(error));
    exit(1);
}

enum {
    LAUNCHES = 12,
    CHAINS = 9,
    THREADS = SM100_THREADS(64, 0), /* of a tile that leaves room for a second CTA */
    BODY_CLOCKS = 6000,
    HOLD_CLOCKS = 400000,
    MAX_CTAS = 256
};

/* Keeps LIVE registers over the body, so that the kernel has about that many and 16. */
template <int LIVE> __global__ void __launch_bounds__(THREADS) idle(const int *in, int *sms) {
    asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory");
    int live[LIVE], sum = 0;
#pragma unroll
    for (int i = 0; i < LIVE; i++)
        asm volatile("ld.volatile.global.s32 %0, [%1];" : "=r"(live[i]) : "l"(in + i * THREADS + threadIdx.x));
    if (threadIdx.x == 0) asm volatile("mov.u32 %0, %%smid;" : "=r"(sms[blockIdx.x]));
    for (const long long begin = clock64(); clock64() - begin < BODY_CLOCKS;) {
    }
#pragma unroll
    for (int i = 0; i < LIVE; i++) sum = sum * 3 + live[i]; /* of zeros */
    if (sum) sms[blockIdx.x] = sum;
}

static std::vector<int> counts_of(const int *sms, int ctas, int sm_count) {
    std::vector<int> counts((size_t)sm_count);
    for (int i = 0; i < ctas; i++) counts[(size_t)sms[i]]++;
    return counts;
}

/* While it runs the host enqueues a chain. */
__global__ void hold() {
    for (const long long begin = clock64(); clock64() - begin < HOLD_CLOCKS;) {
    }
}

template <int LIVE>
static void run(const char *plan, int ctas, int cluster, int shared, int sm_count, const int *in, int *sms) {
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, idle<LIVE>));
    CHECK(cudaFuncSetAttribute(idle<LIVE>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    cudaLaunchAttribute attrs[2];
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = 1;
    attrs[1].id = cudaLaunchAttributeClusterDimension;
    attrs[1].val.clusterDim.x = (unsigned)cluster, attrs[1].val.clusterDim.y = attrs[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = (unsigned)ctas, config.blockDim = THREADS, config.dynamicSmemBytes = (size_t)shared;
    config.attrs = attrs, config.numAttrs = cluster > 1 ? 2 : 1;
    std::vector<int> fewest(LAUNCHES, sm_count + 1);
    int doubled = 0, last_of[CHAINS];
    for (int chain = 0; chain < CHAINS; chain++) {
        CHECK(cudaMemset(sms, 0xff, LAUNCHES * MAX_CTAS * sizeof *sms));
        CHECK(cudaDeviceSynchronize());
        hold<<<1, 1>>>();
        for (int i = 0; i < LAUNCHES; i++) CHECK(cudaLaunchKernelEx(&config, idle<LIVE>, in, sms + i * MAX_CTAS));
        std::vector<int> host(LAUNCHES * MAX_CTAS);
        CHECK(cudaMemcpy(host.data(), sms, host.size() * sizeof *sms, cudaMemcpyDeviceToHost));
        std::vector<int> used;
        for (int i = 0; i < LAUNCHES; i++) {
            std::vector<int> counts = counts_of(host.data() + i * MAX_CTAS, ctas, sm_count);
            used.push_back(sm_count - (int)std::count(counts.begin(), counts.end(), 0));
        }
        last_of[chain] = used.back();
        if (used.back() >= fewest.back()) continue;
        fewest = used;
        std::vector<int> last = counts_of(host.data() + (LAUNCHES - 1) * MAX_CTAS, ctas, sm_count);
        doubled = (int)std::count_if(last.begin(), last.end(), [](int n) { return n > 1; });
    }
    printf("%s,%d,%d,%d,%d,", plan, ctas, cluster, shared, attributes.numRegs);
    for (int i = 0; i < LAUNCHES; i++) printf("%s%d", i ? " " : "", fewest[(size_t)i]);
    printf(",%d,", doubled);
    for (int i = 0; i < CHAINS; i++) printf("%d%s", last_of[i], i + 1 < CHAINS ? " " : "\n");
}

int main() {
    int *in, *sms;
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    CHECK(cudaMalloc(&in, 256 * THREADS * sizeof *in)), CHECK(cudaMemset(in, 0, 256 * THREADS * sizeof *in));
    CHECK(cudaMalloc(&sms, LAUNCHES * MAX_CTAS * sizeof *sms));
    const int deep = SM100_SHARED_BYTES(2, 128, 8), pair = SM100_SHARED_BYTES(2, 64, 4);
    const int split = pair + SM100_PARTIALS_BYTES(64, 2), narrow = SM100_SHARED_BYTES(1, 16, 4) + 4096;
    const int alone = 120 << 10; /* no second CTA fits */
    const int n = device.multiProcessorCount;
    printf("plan,CTAs,cluster,shared bytes,registers,SMs used by launch 1 to %d,SMs with two CTAs in the last,SMs of "
           "the last launch of each chain\n",
           LAUNCHES);
#define CASE(plan, ctas, cluster, shared)                                                                              \
    run<158>(plan, ctas, cluster, shared, n, in, sms), run<118>(plan, ctas, cluster, shared, n, in, sms)
    CASE("128x7168x16384 by 256x128_deep", 112, 4, deep);
    CASE("128x4096x7168 by 256x64", 128, 4, split);
    CASE("the same with room for one CTA", 128, 4, alone);
    CASE("128x7168x2048 by 256x64", 112, 2, pair);
    CASE("16x4096x7168 by 256x64", 128, 2, pair);
    CASE("1x7168x2048 by 128x16", 112, 2, narrow);
    CASE("100 KiB", 128, 1, 100 << 10);
    CASE("100 KiB", 128, 2, 100 << 10);
    CASE("100 KiB", 128, 4, 100 << 10);
    CASE("100 KiB", 112, 4, 100 << 10);
    CASE("100 KiB", 96, 8, 100 << 10);
    CASE("100 KiB", 120, 8, 100 << 10);
    return 0;
}
