/* Runtime API: the registration calls that nvcc's host code makes at program start, and launches. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cudart.h"

/* A fat binary, loaded when something in it is first used. */
struct binary {
    const void *image;
    CUmodule module;
    int loaded;
    cudaError_t error;
};
static struct stub {
    const void *host;
    const char *name;
    struct binary *in;
    CUfunction function;
    int is_variable;
    size_t bytes;
    void **managed; /* of a __managed__ variable: where host code finds its address */
} *stubs;
static size_t stub_count, stub_capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add(struct stub s) {
    pthread_mutex_lock(&lock);
    if (stub_count == stub_capacity) {
        stub_capacity = stub_capacity ? 2 * stub_capacity : 256;
        stubs = realloc(stubs, stub_capacity * sizeof *stubs);
        if (!stubs) abort();
    }
    stubs[stub_count++] = s;
    pthread_mutex_unlock(&lock);
}

static struct stub *find(const void *host, int is_variable) {
    for (size_t i = 0; i < stub_count; i++)
        if (stubs[i].host == host && stubs[i].is_variable == is_variable) return &stubs[i];
    return NULL;
}

static cudaError_t load(struct binary *b) {
    if (!b->loaded) {
        b->loaded = 1;
        b->error = cuda()->cuModuleLoadData(&b->module, b->image);
    }
    return b->error;
}

API void **__cudaRegisterFatBinary(void *wrapper) {
    struct binary *b = calloc(1, sizeof *b);
    if (!b) abort();
    b->image = wrapper;
    return (void **)b;
}
API void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}
API void __cudaUnregisterFatBinary(void **handle) {
    (void)handle; /* the process ends */
}
API char __cudaInitModule(void **handle) {
    return load((struct binary *)handle) == CUDA_SUCCESS;
}
API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid,
                                void *bid, void *block, void *grid, int *warp_size) {
    (void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp_size;
    add((struct stub){.host = host, .name = name, .in = (struct binary *)handle});
}
API void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int is_extern, size_t bytes,
                           int constant, int global) {
    (void)device, (void)is_extern, (void)constant, (void)global;
    add((struct stub){.host = host, .name = name, .in = (struct binary *)handle, .is_variable = 1, .bytes = bytes});
}
API void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int is_extern,
                                  size_t bytes, int constant, int global) {
    (void)device, (void)is_extern, (void)constant, (void)global;
    struct binary *b = (struct binary *)handle;
    CUdeviceptr p = 0;
    if (!load(b)) cuda()->cuModuleGetGlobal_v2(&p, NULL, b->module, name);
    *host = (void *)(uintptr_t)p;
    add((struct stub){.host = host, .name = name, .in = b, .is_variable = 1, .bytes = bytes, .managed = host});
}

CUfunction kernel_of(const void *host) {
    struct stub *s = find(host, 0);
    if (!s) { /* a cudaKernel_t, which __cudaGetKernel gave */
        for (size_t i = 0; i < stub_count; i++)
            if (stubs[i].function == host) return stubs[i].function;
        return NULL;
    }
    if (!s->function && !load(s->in)) cuda()->cuModuleGetFunction(&s->function, s->in->module, s->name);
    return s->function;
}

CUdeviceptr symbol_address(const void *host, size_t *bytes) {
    struct stub *s = find(host, 1);
    CUdeviceptr p = 0;
    *bytes = 0;
    if (s && !load(s->in)) cuda()->cuModuleGetGlobal_v2(&p, bytes, s->in->module, s->name);
    return p;
}

/* The module that holds the kernel was rejected, or there is no such kernel. */
static cudaError_t missing(const void *host) {
    const struct stub *s = find(host, 0);
    return keep(s && s->in->error ? s->in->error : CUDA_ERROR_INVALID_HANDLE);
}

/* ---- launches ---- */

static _Thread_local struct configuration {
    dim3 grid, block;
    size_t shared;
    CUstream stream;
} pushed[64];
static _Thread_local int depth;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream stream) {
    if (depth == 64) return 1;
    pushed[depth++] = (struct configuration){grid, block, shared, stream};
    return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (depth == 0) return keep(CUDA_ERROR_INVALID_VALUE);
    struct configuration c = pushed[--depth];
    *grid = c.grid;
    *block = c.block;
    *shared = c.shared;
    *(CUstream *)stream = c.stream;
    return CUDA_SUCCESS;
}
API cudaError_t __cudaGetKernel(CUfunction *kernel, const void *host) {
    *kernel = kernel_of(host);
    return *kernel ? CUDA_SUCCESS : missing(host);
}

/* The runtime has an error of its own for shapes that no kernel can have. */
static int is_shape(dim3 grid, dim3 block) {
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    return grid.x && grid.y && grid.z && grid.x <= INT32_MAX && grid.y <= 65535 && grid.z <= 65535 && threads &&
           block.x <= 1024 && block.y <= 1024 && block.z <= 64 && threads <= 1024;
}

static cudaError_t launch(CUfunction f, dim3 grid, dim3 block, void **arguments, size_t shared, CUstream stream,
                          CUlaunchAttribute *attributes, unsigned count) {
    CUlaunchConfig config = {grid.x,  grid.y,           grid.z, block.x,    block.y,
                             block.z, (unsigned)shared, stream, attributes, count};
    if (capture_launch(stream, f, &config, arguments)) return CUDA_SUCCESS;
    cudaError_t error = cuda()->cuLaunchKernelEx(&config, f, arguments, NULL);
    return keep(error == CUDA_ERROR_INVALID_VALUE && !is_shape(grid, block) ? RUNTIME_ERROR_INVALID_CONFIGURATION
                                                                            : error);
}

API cudaError_t __cudaLaunchKernel(CUfunction f, dim3 grid, dim3 block, void **arguments, size_t shared,
                                   CUstream stream) {
    return f ? launch(f, grid, block, arguments, shared, stream, NULL, 0) : keep(CUDA_ERROR_INVALID_HANDLE);
}
API cudaError_t __cudaLaunchKernel_ptsz(CUfunction f, dim3 grid, dim3 block, void **arguments, size_t shared,
                                        CUstream stream) {
    return __cudaLaunchKernel(f, grid, block, arguments, shared, stream);
}
API cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared,
                                 CUstream stream) {
    CUfunction f = kernel_of(host);
    return f ? launch(f, grid, block, arguments, shared, stream, NULL, 0) : missing(host);
}
API cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared,
                                            CUstream stream) {
    CUfunction f = kernel_of(host);
    CUlaunchAttribute cooperative = {.id = LAUNCH_ATTRIBUTE_COOPERATIVE, .value.flag = 1};
    return f ? launch(f, grid, block, arguments, shared, stream, &cooperative, 1) : missing(host);
}

/* cudaLaunchConfig_t; its attributes are the driver's. */
struct launch_config {
    dim3 grid, block;
    size_t shared;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned count;
};

API cudaError_t cudaLaunchKernelExC(const struct launch_config *c, const void *host, void **arguments) {
    CUfunction f = kernel_of(host);
    if (!f) return missing(host);
    return launch(f, c->grid, c->block, arguments, c->shared, c->stream, c->attributes, c->count);
}

/* ---- what a kernel is ---- */

struct function_attributes {
    size_t shared_bytes, const_bytes, local_bytes;
    int most_threads, registers, ptx_version, binary_version, cache_mode, most_dynamic_shared, carveout;
    int cluster_required, cluster[3], scheduling, non_portable_cluster;
    int reserved[17];
};

API cudaError_t cudaFuncGetAttributes(struct function_attributes *out, const void *host) {
    CUfunction f = kernel_of(host);
    if (!f) return missing(host);
    int a[FUNCTION_ATTRIBUTES];
    for (int i = 0; i < FUNCTION_ATTRIBUTES; i++) cuda()->cuFuncGetAttribute(&a[i], i, f);
    *out = (struct function_attributes){
        .shared_bytes = (size_t)a[FUNCTION_SHARED_BYTES],
        .const_bytes = (size_t)a[FUNCTION_CONST_BYTES],
        .local_bytes = (size_t)a[FUNCTION_LOCAL_BYTES],
        .most_threads = a[FUNCTION_MAX_THREADS],
        .registers = a[FUNCTION_REGISTERS],
        .ptx_version = a[FUNCTION_PTX_VERSION],
        .binary_version = a[FUNCTION_BINARY_VERSION],
        .most_dynamic_shared = a[FUNCTION_MAX_DYNAMIC_SHARED],
        .cluster_required = a[FUNCTION_CLUSTER_REQUIRED],
        .cluster = {a[FUNCTION_CLUSTER_X], a[FUNCTION_CLUSTER_X + 1], a[FUNCTION_CLUSTER_X + 2]},
        .non_portable_cluster = a[FUNCTION_NON_PORTABLE_CLUSTER]};
    return CUDA_SUCCESS;
}

/* cudaFuncAttribute has the numbers of CUfunction_attribute. */
API cudaError_t cudaFuncSetAttribute(const void *host, int attribute, int value) {
    CUfunction f = kernel_of(host);
    return f ? keep(cuda()->cuFuncSetAttribute(f, attribute, value)) : missing(host);
}
API cudaError_t cudaFuncSetCacheConfig(const void *host, int config) {
    (void)config;
    return kernel_of(host) ? CUDA_SUCCESS : missing(host);
}
API cudaError_t cudaFuncGetName(const char **name, const void *host) {
    CUfunction f = kernel_of(host);
    return f ? keep(cuda()->cuFuncGetName(name, f)) : missing(host);
}
API cudaError_t cudaGetFuncBySymbol(CUfunction *out, const void *host) {
    return __cudaGetKernel(out, host);
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads,
                                                                       size_t shared, unsigned flags) {
    (void)flags;
    CUfunction f = kernel_of(host);
    if (!f) return missing(host);
    return keep(cuda()->cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, threads, shared));
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads,
                                                              size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, shared, 0);
}

static CUlaunchConfig driver_config(const struct launch_config *c) {
    return (CUlaunchConfig){c->grid.x,  c->grid.y,           c->grid.z, c->block.x,    c->block.y,
                            c->block.z, (unsigned)c->shared, c->stream, c->attributes, c->count};
}
API cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *host, const struct launch_config *c) {
    CUfunction f = kernel_of(host);
    CUlaunchConfig config = driver_config(c);
    return f ? keep(cuda()->cuOccupancyMaxActiveClusters(clusters, f, &config)) : missing(host);
}
API cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *host, const struct launch_config *c) {
    CUfunction f = kernel_of(host);
    CUlaunchConfig config = driver_config(c);
    return f ? keep(cuda()->cuOccupancyMaxPotentialClusterSize(size, f, &config)) : missing(host);
}
