/* Measures the terms of the B200 model (csrc/kernels/sm100/model.h) that are tcgen05 instructions, on one SM and on a
 * pair. Prints `name value` lines in the model's units. Nobody has run it on a B200 yet; tests/kernels/test_terms.py
 * runs its kernels on the emulated one.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_100a,code=sm_100a -Icsrc -o tcgen05_terms benchmarks/tcgen05_terms.cu &&
 *   ./tcgen05_terms */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "kernels/common/cluster.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/tcgen05.cuh"

enum { N = 256, FEW = 16, MANY = 48, REPEATS = 5, THREADS = 128, COLUMNS = 512, SCALES = N, WARM_UP = 2 };
enum { A_BYTES = 128 * 128, B_BYTES = N * 128, ATOM_BYTES = 512, ATOMS = 3, SCALES_AT = A_BYTES + B_BYTES };
enum { BARRIER_AT = SCALES_AT + ATOMS * ATOM_BYTES, ADDRESS_AT = BARRIER_AT + 8, SHARED_BYTES = ADDRESS_AT + 8 + 1024 };
/* Clocks from the first of so many instructions until the wait for their commit has ended; of so many loads. */
enum { COMMIT, ONE_MMA, FEW_MMA, MANY_MMA, FEW_CP, MANY_CP, LOADS, TERMS };

/* One tile of 128 * CTA_GROUP x N, all operands ones. Shared memory of a CTA: mma_a, mma_b, a scale atom of mma_a, two
 * of mma_b, the mbarrier, the address of tensor memory. Columns: the accumulator, 4 of mma_a's scales, 8 of mma_b's. */
template <int CTA_GROUP> struct tensor_terms {
    uint32_t base, barrier, tmem, phase = 0;

    __device__ __forceinline__ long long timed(int mmas, int copies) {
        const uint64_t a = smem_descriptor_sw128(base), b = smem_descriptor_sw128(base + A_BYTES);
        const uint64_t atom = smem_descriptor_atom(base + SCALES_AT);
        const long long begin = clock64();
        for (int i = 0; i < mmas; i++)
            tcgen05_mma_mxf4nvf4<CTA_GROUP>(tmem, a, b, instruction_descriptor(128 * CTA_GROUP, N), tmem + SCALES,
                                            tmem + SCALES + 4, i > 0);
        for (int i = 0; i < copies; i++)
            tcgen05_cp_atom<CTA_GROUP>(tmem + SCALES + 4 * (i % ATOMS), atom + i % ATOMS * ATOM_BYTES / 16);
        tcgen05_commit<CTA_GROUP>(barrier, 3);
        mbarrier_wait(barrier, phase);
        phase ^= 1;
        tcgen05_fence_after_thread_sync();
        return clock64() - begin;
    }

    __device__ __forceinline__ void run(long long *clocks) {
        const int mmas[] = {0, 1, FEW, MANY, 0, 0}, copies[] = {0, 0, 0, 0, FEW, MANY};
        timed(0, ATOMS); /* the MMAs' scales */
        for (int term = 0; term < LOADS; term++) {
            long long least = 1ll << 60;
            for (int i = 0; i < REPEATS; i++) least = min(least, timed(mmas[term], copies[term]));
            clocks[term] = least;
        }
    }
};

template <int CTA_GROUP> __device__ __forceinline__ void measure(long long *clocks, float *sink) {
    extern __shared__ __align__(16) uint8_t memory[];
    const uint32_t base = (uint32_t)(__cvta_generic_to_shared(memory) + 1023) & ~1023u;
    const uint32_t barrier = base + BARRIER_AT;
    const int rank = CTA_GROUP == 2 ? (int)cluster_ctarank() : 0;
    for (uint32_t i = threadIdx.x * 4; i < BARRIER_AT; i += THREADS * 4)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(base + i), "r"(i < SCALES_AT ? 0x22222222 : 0x38383838)
                     : "memory");
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (CTA_GROUP == 2) barrier_cluster_arrive(), barrier_cluster_wait();
    if (threadIdx.x / 32 == 0) {
        tcgen05_alloc<CTA_GROUP, COLUMNS>(base + ADDRESS_AT);
        tcgen05_relinquish_alloc_permit<CTA_GROUP>();
    }
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (CTA_GROUP == 2) barrier_cluster_arrive(), barrier_cluster_wait();
    tcgen05_fence_after_thread_sync();
    tensor_terms<CTA_GROUP> terms{base, barrier, ld_shared(base + ADDRESS_AT)};
    if (threadIdx.x == 0 && rank == 0) terms.run(clocks);
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (CTA_GROUP == 2) barrier_cluster_arrive(), barrier_cluster_wait();
    tcgen05_fence_after_thread_sync();
    if (threadIdx.x / 32 == 0 && rank == 0) {
        float v[32], sum = 0;
        long long begin = clock64();
        for (int i = 0; i < FEW; i++) {
            tcgen05_ld(v, terms.tmem + i % (N / 32) * 32);
            tcgen05_wait_ld(v);
            sum += v[i];
        }
        if (threadIdx.x == 0) clocks[LOADS] = clock64() - begin;
        sink[threadIdx.x] = sum;
    }
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (CTA_GROUP == 2) barrier_cluster_arrive(), barrier_cluster_wait();
    tcgen05_fence_after_thread_sync();
    if (threadIdx.x / 32 == 0) tcgen05_dealloc<CTA_GROUP, COLUMNS>(terms.tmem);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) one_sm(long long *clocks, float *sink) {
    measure<1>(clocks, sink);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) pair(long long *clocks, float *sink) {
    measure<2>(clocks, sink);
}

#define CHECK(call) check((call), #call)

static void check(cudaError_t error, const char *call) {
    if (!error) return;
    printf("%s: %s\n", call, cudaGetErrorString(error));
    exit(1);
}

/* Clocks of each term by the kernel on so many CTAs. */
static void run(void (*kernel)(long long *, float *), int ctas, long long (&clocks)[TERMS]) {
    long long *on_device;
    float *sink;
    CHECK(cudaMalloc(&on_device, sizeof clocks)), CHECK(cudaMalloc(&sink, 32 * sizeof *sink));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)ctas, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = (unsigned)ctas, config.blockDim = THREADS, config.dynamicSmemBytes = SHARED_BYTES;
    config.attrs = &cluster, config.numAttrs = 1;
    for (int i = 0; i < WARM_UP; i++) CHECK(cudaLaunchKernelEx(&config, kernel, on_device, sink));
    CHECK(cudaMemcpy(clocks, on_device, sizeof clocks, cudaMemcpyDeviceToHost));
}

int main() {
    long long one[TERMS], two[TERMS];
    run(one_sm, 1, one), run(pair, 2, two);
    const double mma = (double)(one[MANY_MMA] - one[FEW_MMA]) / (MANY - FEW);
    const double mma_pair = (double)(two[MANY_MMA] - two[FEW_MMA]) / (MANY - FEW);
    printf("mma_column_cycles %.4f\n", mma / N);
    printf("mma_fill_1 %.1f\n", (double)(one[ONE_MMA] - one[COMMIT]) - mma);
    printf("mma_fill_2 %.1f\n", (double)(two[ONE_MMA] - two[COMMIT]) - mma_pair);
    printf("tcgen05_cp_cycles %.2f\n", (double)(one[MANY_CP] - one[FEW_CP]) / (MANY - FEW));
    printf("commit_and_wait_cycles %.1f\n", (double)one[COMMIT]);
    printf("tcgen05_ld_cycles %.2f\n", (double)one[LOADS] / FEW);
    return 0;
}
