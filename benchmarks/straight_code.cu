/* Measures the first pass over straight-line code on a GPU: in the first launch, in a second one, and after writes of
 * 512 MB, which evict it from L2; compared with a second pass over the same instructions.
 *
 *   nvcc -O3 -std=c++17 -arch=sm_90 -o straight_code benchmarks/straight_code.cu && ./straight_code */
#include <cstdio>
#include <cstdlib>

#define CHECK(call) check((call), #call)

static void check(cudaError_t error, const char *call) {
    if (!error) return;
    printf("%s: %s\n", call, cudaGetErrorString(error));
    exit(1);
}

enum { PASSES = 2, MAX_CTAS = 1024, FLUSH_MB = 512 };

/* 64 instructions of 16 bytes. */
__device__ __forceinline__ void kilobyte(int (&v)[4], int by) {
#pragma unroll
    for (int i = 0; i < 64; i++) asm volatile("mad.lo.s32 %0, %0, %1, %1;" : "+r"(v[i % 4]) : "r"(by));
}

template <int KILOBYTES> __global__ void run(long long *clocks, int *kept, int by) {
    int v[4] = {(int)threadIdx.x, 1, 2, 3};
#pragma unroll 1
    for (int pass = 0; pass < PASSES; pass++) {
        __syncthreads();
        long long begin = clock64();
#pragma unroll
        for (int i = 0; i < KILOBYTES; i++) kilobyte(v, by);
        if (threadIdx.x == 0) clocks[blockIdx.x * PASSES + pass] = clock64() - begin;
    }
    kept[blockIdx.x * blockDim.x + threadIdx.x] = v[0] + v[1] + v[2] + v[3];
}

template <int KILOBYTES> static void measure(int ctas, int threads, char *flush) {
    static long long host[MAX_CTAS * PASSES];
    static const char *const names[] = {"first launch", "second launch", "behind a flush"};
    long long *clocks;
    int *kept;
    CHECK(cudaMalloc(&clocks, sizeof host));
    CHECK(cudaMalloc(&kept, sizeof(int) * MAX_CTAS * 1024));
    for (int launch = 0; launch < 3; launch++) {
        if (launch == 2) CHECK(cudaMemset(flush, 1, (size_t)FLUSH_MB << 20));
        run<KILOBYTES><<<ctas, threads>>>(clocks, kept, 3);
        CHECK(cudaMemcpy(host, clocks, sizeof(long long) * ctas * PASSES, cudaMemcpyDeviceToHost));
        double sums[PASSES] = {};
        for (int i = 0; i < ctas * PASSES; i++) sums[i % PASSES] += (double)host[i] / ctas;
        printf("%2d KB, %3d threads, %-14s  first pass %6.0f clocks, second %6.0f\n", KILOBYTES, threads, names[launch],
               sums[0], sums[1]);
    }
    CHECK(cudaFree(clocks));
    CHECK(cudaFree(kept));
}

int main() {
    cudaDeviceProp properties;
    char *flush;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    CHECK(cudaMalloc(&flush, (size_t)FLUSH_MB << 20));
    int ctas = properties.multiProcessorCount < MAX_CTAS ? properties.multiProcessorCount : MAX_CTAS;
    printf("%s, a CTA an SM\n", properties.name);
    for (int threads : {32, 256}) {
        measure<1>(ctas, threads, flush);
        measure<4>(ctas, threads, flush);
        measure<16>(ctas, threads, flush);
        measure<32>(ctas, threads, flush);
    }
    return 0;
}
