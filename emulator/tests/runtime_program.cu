// Does what an ordinary CUDA program does with the runtime; each part prints a line. test_runtime.py builds it.
#include <cuda_runtime.h>

#include <cooperative_groups.h>
#include <cstdio>
#include <cstring>
#include <vector>

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess) {                                                                                   \
            printf("line %d: %s: %s\n", __LINE__, cudaGetErrorName(error_), cudaGetErrorString(error_));               \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

__constant__ float weights[4];
__device__ int counter = 5;
__managed__ int managed[2] = {7, 8};

__global__ void weigh(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * weights[i % 4];
}

template <typename T> __global__ void reverse(T *data) {
    extern __shared__ unsigned char raw[];
    T *kept = reinterpret_cast<T *>(raw);
    kept[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}

__global__ void count() {
    atomicAdd(&counter, 1);
    if (threadIdx.x == 0) managed[blockIdx.x] *= 10;
}

__global__ void say(int n) {
    if (threadIdx.x == 3) printf("block %d says %d %s %.2f\n", blockIdx.x, n, "words", 1.5);
}

__global__ void __cluster_dims__(1, 1, 1) alone(int *out) {
    *out = 1;
}

__global__ void neighbours(int *out) {
    namespace cg = cooperative_groups;
    __shared__ int own;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) own = 100 + blockIdx.x;
    cluster.sync();
    unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    if (threadIdx.x == 0) out[blockIdx.x] = *cluster.map_shared_rank(&own, next);
    cluster.sync();
}

__global__ void together(int *out) {
    namespace cg = cooperative_groups;
    cg::grid_group grid = cg::this_grid();
    atomicAdd(out, 1);
    grid.sync();
    if (grid.thread_rank() == 0) out[1] = out[0];
}

__global__ void wild(int *out) {
    out[1 << 20] = 1;
}

int main(int argc, char **argv) {
    cudaDeviceProp properties;
    int n = 0;
    OK(cudaGetDeviceCount(&n));
    OK(cudaGetDeviceProperties(&properties, 0));
    printf("%d device: %s, %d.%d, %d SMs, %zu bytes a block\n", n, properties.name, properties.major, properties.minor,
           properties.multiProcessorCount, properties.sharedMemPerBlockOptin);
    if (argc > 1 && !strcmp(argv[1], "wild")) {
        int *out;
        OK(cudaMalloc(&out, 4));
        wild<<<1, 1>>>(out);
        printf("launch: %s\n", cudaGetErrorName(cudaGetLastError()));
        printf("after: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
        printf("still: %s\n", cudaGetErrorName(cudaMemset(out, 0, 4)));
        return 3;
    }

    const int elements = 1000;
    std::vector<float> in(elements), out(elements);
    for (int i = 0; i < elements; i++) in[i] = 0.5f * i;
    const float given[4] = {1, -2, 3, 0.25f};
    float *d_in, *d_out;
    cudaStream_t stream;
    cudaEvent_t start, end;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&end));
    OK(cudaMalloc(&d_in, elements * sizeof(float)));
    OK(cudaMallocAsync(&d_out, elements * sizeof(float), stream));
    OK(cudaMemcpyToSymbol(weights, given, sizeof given));
    OK(cudaMemcpyAsync(d_in, in.data(), elements * sizeof(float), cudaMemcpyHostToDevice, stream));
    OK(cudaEventRecord(start, stream));
    weigh<<<(elements + 127) / 128, 128, 0, stream>>>(d_in, d_out, elements);
    OK(cudaGetLastError());
    OK(cudaEventRecord(end, stream));
    OK(cudaMemcpyAsync(out.data(), d_out, elements * sizeof(float), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    float milliseconds = -1;
    OK(cudaEventElapsedTime(&milliseconds, start, end));
    int wrong = 0;
    for (int i = 0; i < elements; i++) wrong += out[i] != in[i] * given[i % 4];
    printf("constant: %d wrong, time %s\n", wrong, milliseconds >= 0 ? "passes" : "does not pass");

    double doubles[64], *d_doubles;
    for (int i = 0; i < 64; i++) doubles[i] = i;
    OK(cudaMalloc(&d_doubles, sizeof doubles));
    OK(cudaMemcpy(d_doubles, doubles, sizeof doubles, cudaMemcpyHostToDevice));
    OK(cudaFuncSetAttribute(reverse<double>, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
    reverse<double><<<1, 64, 100000>>>(d_doubles);
    OK(cudaMemcpy(doubles, d_doubles, sizeof doubles, cudaMemcpyDefault));
    printf("dynamic shared memory: %g %g\n", doubles[0], doubles[63]);

    count<<<2, 32>>>();
    int counted = 0;
    OK(cudaMemcpyFromSymbol(&counted, counter, sizeof counted));
    OK(cudaDeviceSynchronize());
    printf("variables: %d %d %d\n", counted, managed[0], managed[1]);
    say<<<2, 32>>>(42);
    OK(cudaDeviceSynchronize());

    int *d_ints, ints[8] = {0};
    OK(cudaMalloc(&d_ints, sizeof ints));
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {4, 1, 1};
    config.gridDim = 8;
    config.blockDim = 32;
    config.attrs = &attribute;
    config.numAttrs = 1;
    OK(cudaLaunchKernelEx(&config, neighbours, d_ints));
    OK(cudaMemcpy(ints, d_ints, sizeof ints, cudaMemcpyDeviceToHost));
    printf("clusters:");
    for (int value : ints) printf(" %d", value);
    alone<<<1, 1>>>(d_ints);
    OK(cudaMemset(d_ints, 0, sizeof ints));
    void *arguments[] = {&d_ints};
    OK(cudaLaunchCooperativeKernel((void *)together, dim3(6), dim3(64), arguments, 0, 0));
    OK(cudaMemcpy(ints, d_ints, sizeof ints, cudaMemcpyDeviceToHost));
    printf("\ncooperative: %d\n", ints[1]);

    cudaFuncAttributes about;
    int blocks = 0;
    OK(cudaFuncGetAttributes(&about, neighbours));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, weigh, 512, 0));
    printf("kernel: %zu shared, %d threads, %d blocks\n", about.sharedSizeBytes, about.maxThreadsPerBlock, blocks);
    weigh<<<1, 2000>>>(d_in, d_out, 1);
    cudaError_t error = cudaPeekAtLastError();
    cudaError_t again = cudaGetLastError(), then = cudaGetLastError();
    printf("rejected: %s, %s, then %s\n", cudaGetErrorName(error), cudaGetErrorName(again), cudaGetErrorName(then));
    OK(cudaFreeAsync(d_out, stream));
    OK(cudaFree(d_in));
    OK(cudaEventDestroy(start));
    OK(cudaStreamDestroy(stream));
    OK(cudaDeviceReset());
    printf("done\n");
    return 0;
}
