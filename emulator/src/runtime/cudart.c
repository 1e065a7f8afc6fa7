/* A CUDA runtime over the emulated driver, for programs built with nvcc -cudart shared: devices, memory, streams,
 * events. Registration and launches are in launch.c. A runtime function that is missing here is an unresolved
 * symbol, which the dynamic linker names.
 *
 * Defaults differ from the driver's: kernels cannot read host memory, and EMULATE_FENCES is hardware. EMULATE_...
 * variables override both. */
#define _GNU_SOURCE /* dladdr */
#include "runtime/cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static driver_calls calls;
static _Thread_local cudaError_t last;

static void open_driver(void) {
    Dl_info self;
    char path[4096] = "libcuda.so.1";
    if (dladdr((void *)open_driver, &self) && strrchr(self.dli_fname, '/'))
        snprintf(path, sizeof path, "%.*s/libcuda.so.1", (int)(strrchr(self.dli_fname, '/') - self.dli_fname),
                 self.dli_fname);
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "emulator: the runtime finds no driver: %s\n", dlerror());
        exit(2);
    }
#define X(name, arguments)                                                                                             \
    *(void **)&calls.name = dlsym(library, #name);                                                                     \
    if (!calls.name) {                                                                                                 \
        fprintf(stderr, "emulator: %s is not the emulated driver: it has no " #name "\n", path);                       \
        exit(2);                                                                                                       \
    }
    DRIVER_CALLS(X)
#undef X
    if (!getenv("EMULATE_HOST_MEMORY")) calls.emulator_configure("host_memory", "0");
    if (!getenv("EMULATE_FENCES")) calls.emulator_configure("fences", "hardware");
    CUcontext context;
    calls.cuInit(0);
    calls.cuDevicePrimaryCtxRetain(&context, 0);
}

const driver_calls *cuda(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_driver);
    return &calls;
}

cudaError_t keep(cudaError_t error) {
    if (error) last = error;
    return error;
}

/* ---- errors and versions ---- */

API cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = CUDA_SUCCESS;
    return error;
}
API cudaError_t cudaPeekAtLastError(void) {
    return last;
}
/* The driver's numbers, with the runtime's names; and those that are the runtime's only. */
API const char *cudaGetErrorName(cudaError_t error) {
    static const struct {
        cudaError_t error;
        const char *name;
    } names[] = {
        {CUDA_SUCCESS, "cudaSuccess"},
        {CUDA_ERROR_INVALID_VALUE, "cudaErrorInvalidValue"},
        {CUDA_ERROR_OUT_OF_MEMORY, "cudaErrorMemoryAllocation"},
        {CUDA_ERROR_NOT_INITIALIZED, "cudaErrorInitializationError"},
        {RUNTIME_ERROR_INVALID_CONFIGURATION, "cudaErrorInvalidConfiguration"},
        {CUDA_ERROR_NO_DEVICE, "cudaErrorNoDevice"},
        {CUDA_ERROR_INVALID_DEVICE, "cudaErrorInvalidDevice"},
        {CUDA_ERROR_INVALID_IMAGE, "cudaErrorInvalidKernelImage"},
        {CUDA_ERROR_INVALID_CONTEXT, "cudaErrorDeviceUninitialized"},
        {CUDA_ERROR_NO_BINARY_FOR_GPU, "cudaErrorNoKernelImageForDevice"},
        {CUDA_ERROR_INVALID_PTX, "cudaErrorInvalidPtx"},
        {CUDA_ERROR_FILE_NOT_FOUND, "cudaErrorFileNotFound"},
        {CUDA_ERROR_INVALID_HANDLE, "cudaErrorInvalidResourceHandle"},
        {CUDA_ERROR_NOT_FOUND, "cudaErrorSymbolNotFound"},
        {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "cudaErrorLaunchOutOfResources"},
        {CUDA_ERROR_ASSERT, "cudaErrorAssert"},
        {CUDA_ERROR_LAUNCH_FAILED, "cudaErrorLaunchFailure"},
        {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "cudaErrorCooperativeLaunchTooLarge"},
        {CUDA_ERROR_NOT_SUPPORTED, "cudaErrorNotSupported"},
        {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "cudaErrorStreamCaptureUnmatched"},
        {CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "cudaErrorGraphExecUpdateFailure"},
        {CUDA_ERROR_INVALID_CLUSTER_SIZE, "cudaErrorInvalidClusterSize"},
        {CUDA_ERROR_UNKNOWN, "cudaErrorUnknown"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) return names[i].name;
    return "unrecognized error code";
}
API const char *cudaGetErrorString(cudaError_t error) {
    const char *text = NULL;
    cuda()->cuGetErrorString(error, &text);
    return text ? text : "unknown error";
}
API cudaError_t cudaDriverGetVersion(int *version) {
    *version = 13000;
    return CUDA_SUCCESS;
}
API cudaError_t cudaRuntimeGetVersion(int *version) {
    return cudaDriverGetVersion(version);
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                 unsigned long long flags, int *status) {
    int found;
    cuda()->cuGetProcAddress_v2(name, function, (int)version, flags, &found);
    if (status) *status = found; /* the numbers of the two enumerations agree */
    return CUDA_SUCCESS;
}
API cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
    return cudaGetDriverEntryPointByVersion(name, function, 13000, flags, status);
}

/* ---- devices ---- */

API cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    cuda();
    return CUDA_SUCCESS;
}
API cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return CUDA_SUCCESS;
}
API cudaError_t cudaSetDevice(int device) {
    return keep(device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}
API cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
    (void)device_flags, (void)flags;
    return cudaSetDevice(device);
}
API cudaError_t cudaChooseDevice(int *device, const void *properties) {
    (void)properties;
    return cudaGetDevice(device);
}
API cudaError_t cudaSetDeviceFlags(unsigned flags) {
    (void)flags;
    return CUDA_SUCCESS;
}
API cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    return keep(cuda()->cuDeviceGetAttribute(value, attribute, device));
}
API cudaError_t cudaDeviceSynchronize(void) {
    return keep(cuda()->cuCtxSynchronize());
}
API cudaError_t cudaDeviceReset(void) {
    return cudaDeviceSynchronize();
}
API cudaError_t cudaDeviceSetLimit(int limit, size_t value) {
    (void)limit, (void)value;
    return CUDA_SUCCESS;
}
API cudaError_t cudaDeviceGetLimit(size_t *value, int limit) {
    (void)limit;
    *value = (size_t)1 << 20;
    return CUDA_SUCCESS;
}
API cudaError_t cudaDeviceSetCacheConfig(int config) {
    (void)config;
    return CUDA_SUCCESS;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}
API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    (void)device, (void)peer;
    *can = 0;
    return CUDA_SUCCESS;
}
API cudaError_t cudaCtxResetPersistingL2Cache(void) {
    return CUDA_SUCCESS;
}
API cudaError_t cudaProfilerStart(void) {
    return CUDA_SUCCESS;
}
API cudaError_t cudaProfilerStop(void) {
    return CUDA_SUCCESS;
}

/* cudaDeviceProp of CUDA 13 (driver_types.h): 1008 bytes; the offset of each field that is set, its size, and the
 * number of the attribute that it repeats. */
enum { PROPERTIES_BYTES = 1008, TOTAL_MEMORY_AT = 288 };
static const struct {
    short at, bytes, attribute;
} properties[] = {
    {296, 8, 8},   {304, 4, 12},  {308, 4, 10},  {312, 8, 11},  {320, 4, 1},  {324, 4, 2},  {328, 4, 3},  {332, 4, 4},
    {336, 4, 5},   {340, 4, 6},   {344, 4, 7},   {352, 8, 9},   {360, 4, 75}, {364, 4, 76}, {368, 8, 14}, {384, 4, 16},
    {388, 4, 18},  {392, 4, 19},  {560, 4, 31},  {564, 4, 32},  {568, 4, 33}, {572, 4, 34}, {576, 4, 50}, {584, 4, 40},
    {588, 4, 41},  {592, 4, 37},  {596, 4, 38},  {600, 4, 108}, {604, 4, 39}, {608, 4, 78}, {612, 4, 79}, {616, 4, 80},
    {624, 8, 81},  {632, 4, 82},  {636, 4, 83},  {652, 4, 88},  {656, 4, 89}, {668, 4, 95}, {672, 8, 97}, {688, 4, 106},
    {692, 4, 109}, {696, 8, 111}, {720, 4, 115}, {748, 4, 120},
};

API cudaError_t cudaGetDeviceProperties(void *out, int device) {
    if (device != 0) return keep(CUDA_ERROR_INVALID_DEVICE);
    char *p = out;
    memset(p, 0, PROPERTIES_BYTES);
    cuda()->cuDeviceGetName(p, 256, 0);
    cuda()->cuDeviceTotalMem_v2((size_t *)(p + TOTAL_MEMORY_AT), 0);
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++) {
        int value = 0;
        cuda()->cuDeviceGetAttribute(&value, properties[i].attribute, 0);
        if (properties[i].bytes == 8)
            *(size_t *)(p + properties[i].at) = (size_t)value;
        else
            *(int *)(p + properties[i].at) = value;
    }
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

API cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    CUdeviceptr p = 0;
    cudaError_t error = bytes ? cuda()->cuMemAlloc_v2(&p, bytes) : CUDA_SUCCESS;
    *pointer = (void *)(uintptr_t)p;
    return keep(error);
}
API cudaError_t cudaFree(void *pointer) {
    return keep(pointer ? cuda()->cuMemFree_v2((uintptr_t)pointer) : (cuda(), CUDA_SUCCESS));
}
API cudaError_t cudaMallocAsync(void **pointer, size_t bytes, CUstream stream) {
    (void)stream;
    return cudaMalloc(pointer, bytes);
}
API cudaError_t cudaFreeAsync(void *pointer, CUstream stream) {
    (void)stream;
    return cudaFree(pointer);
}
API cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return cudaMalloc(pointer, bytes);
}
API cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
    return cudaMalloc(pointer, bytes);
}
API cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return cudaMalloc(pointer, bytes);
}
API cudaError_t cudaFreeHost(void *pointer) {
    return cudaFree(pointer);
}
API cudaError_t cudaHostGetDevicePointer(void **pointer, void *host, unsigned flags) {
    (void)flags;
    *pointer = host;
    return CUDA_SUCCESS;
}
/* Kernels may now access this memory. Its bounds are not known, so all host memory becomes accessible. */
API cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    (void)pointer, (void)bytes, (void)flags;
    return cuda()->emulator_configure("host_memory", "1") ? keep(CUDA_ERROR_UNKNOWN) : CUDA_SUCCESS;
}
API cudaError_t cudaHostUnregister(void *pointer) {
    (void)pointer;
    return CUDA_SUCCESS;
}
API cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    CUdeviceptr p = 0;
    cudaError_t error = cuda()->cuMemAllocPitch_v2(&p, pitch, width, height, 16);
    *pointer = (void *)(uintptr_t)p;
    return keep(error);
}
API cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
    return keep(cuda()->cuMemGetInfo_v2(unused, total));
}
API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    (void)kind;
    return keep(bytes ? cuda()->cuMemcpy((uintptr_t)to, (uintptr_t)from, bytes) : CUDA_SUCCESS);
}
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, CUstream stream) {
    if (capture_copy(stream, to, 0, from, 0, bytes, 1)) return CUDA_SUCCESS;
    return cudaMemcpy(to, from, bytes, kind);
}
API cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t height, int kind) {
    cudaError_t error = CUDA_SUCCESS;
    for (size_t i = 0; i < height && !error; i++)
        error = cudaMemcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, kind);
    return error;
}
API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                  size_t height, int kind, CUstream stream) {
    if (capture_copy(stream, to, to_pitch, from, from_pitch, width, height)) return CUDA_SUCCESS;
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
API cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    return keep(bytes ? cuda()->cuMemsetD8_v2((uintptr_t)to, (uint8_t)value, bytes) : CUDA_SUCCESS);
}
API cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, CUstream stream) {
    if (capture_fill(stream, to, value, bytes)) return CUDA_SUCCESS;
    return cudaMemset(to, value, bytes);
}
API cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
    cudaError_t error = CUDA_SUCCESS;
    for (size_t i = 0; i < height && !error; i++) error = cudaMemset((char *)to + i * pitch, value, width);
    return error;
}
API cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset, int kind,
                                        CUstream stream) {
    size_t size;
    CUdeviceptr p = symbol_address(symbol, &size);
    if (!p || offset + bytes > size) return keep(CUDA_ERROR_INVALID_VALUE);
    return cudaMemcpyAsync((char *)(uintptr_t)p + offset, from, bytes, kind, stream);
}
API cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset, int kind,
                                          CUstream stream) {
    size_t size;
    CUdeviceptr p = symbol_address(symbol, &size);
    if (!p || offset + bytes > size) return keep(CUDA_ERROR_INVALID_VALUE);
    return cudaMemcpyAsync(to, (char *)(uintptr_t)p + offset, bytes, kind, stream);
}
API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, int kind) {
    return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, NULL);
}
API cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, int kind) {
    return cudaMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind, NULL);
}
API cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
    size_t size;
    *pointer = (void *)(uintptr_t)symbol_address(symbol, &size);
    return keep(*pointer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
API cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol) {
    return keep(symbol_address(symbol, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

struct pointer_attributes {
    int type; /* 0 unregistered, 2 device */
    int device;
    void *device_pointer, *host_pointer;
    long reserved[8];
};

API cudaError_t cudaPointerGetAttributes(struct pointer_attributes *out, const void *pointer) {
    CUdeviceptr base;
    size_t size;
    int known = !cuda()->cuMemGetAddressRange_v2(&base, &size, (uintptr_t)pointer);
    *out = (struct pointer_attributes){.type = known ? 2 : 0,
                                       .device = known ? 0 : -2,
                                       .device_pointer = known ? (void *)(uintptr_t)pointer : NULL,
                                       .host_pointer = (void *)(uintptr_t)pointer};
    return CUDA_SUCCESS;
}

/* Pools: memory comes from where all memory does. */
API cudaError_t cudaDeviceGetDefaultMemPool(void **pool, int device) {
    *pool = &calls;
    return keep(device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}
API cudaError_t cudaMemPoolSetAttribute(void *pool, int attribute, void *value) {
    (void)pool, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}

/* ---- streams and events ---- */

API cudaError_t cudaStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    return keep(cuda()->cuStreamCreateWithPriority(stream, flags, priority));
}
API cudaError_t cudaStreamCreateWithFlags(CUstream *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
API cudaError_t cudaStreamCreate(CUstream *stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}
API cudaError_t cudaStreamDestroy(CUstream stream) {
    return keep(cuda()->cuStreamDestroy_v2(stream));
}
API cudaError_t cudaStreamSynchronize(CUstream stream) {
    (void)stream;
    return cudaDeviceSynchronize();
}
API cudaError_t cudaStreamQuery(CUstream stream) {
    return cudaStreamSynchronize(stream);
}
API cudaError_t cudaStreamGetFlags(CUstream stream, unsigned *flags) {
    return keep(cuda()->cuStreamGetFlags(stream, flags));
}
API cudaError_t cudaStreamGetPriority(CUstream stream, int *priority) {
    return keep(cuda()->cuStreamGetPriority(stream, priority));
}
API cudaError_t cudaStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    capture_wait(stream, event); /* otherwise nothing to do: there is one queue (driver.c) */
    return CUDA_SUCCESS;
}
API cudaError_t cudaStreamSetAttribute(CUstream stream, int attribute, const void *value) {
    (void)stream, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}
API cudaError_t cudaLaunchHostFunc(CUstream stream, void (*call)(void *), void *argument) {
    if (capture_call(stream, call, argument)) return CUDA_SUCCESS;
    return keep(cuda()->cuLaunchHostFunc(stream, call, argument));
}
API cudaError_t cudaStreamAddCallback(CUstream stream, void (*call)(CUstream, cudaError_t, void *), void *argument,
                                      unsigned flags) {
    (void)flags;
    cudaError_t error = cudaStreamSynchronize(stream);
    call(stream, error, argument);
    return error;
}
API cudaError_t cudaEventCreateWithFlags(CUevent *event, unsigned flags) {
    return keep(cuda()->cuEventCreate(event, flags));
}
API cudaError_t cudaEventCreate(CUevent *event) {
    return cudaEventCreateWithFlags(event, 0);
}
API cudaError_t cudaEventDestroy(CUevent event) {
    return keep(cuda()->cuEventDestroy_v2(event));
}
API cudaError_t cudaEventRecord(CUevent event, CUstream stream) {
    if (capture_event(stream, event)) return CUDA_SUCCESS;
    return keep(cuda()->cuEventRecord(event, stream));
}
API cudaError_t cudaEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    (void)flags;
    return cudaEventRecord(event, stream);
}
API cudaError_t cudaEventSynchronize(CUevent event) {
    (void)event;
    return cudaDeviceSynchronize();
}
API cudaError_t cudaEventQuery(CUevent event) {
    return cudaEventSynchronize(event);
}
API cudaError_t cudaEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return keep(cuda()->cuEventElapsedTime_v2(milliseconds, start, end));
}
