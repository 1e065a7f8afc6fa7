/* A libcuda that runs nothing: it answers the entry points that csrc/driver.c asks for and writes down every launch.
 *
 *     gcc -shared -fPIC -o libcuda_fake.so tests/fake_driver/libcuda.c
 *     NVFP4_LIBCUDA=./libcuda_fake.so FAKE_LOG=launches.txt python ...
 *
 * With it the host's side of a GPU call (opening, refusals, launch shapes, cost) is tested where there is no GPU.
 *   FAKE_VERSION  driver version (13000)       FAKE_CC      compute capability (90)
 *   FAKE_DEVICES  number of devices (1)        FAKE_MISSING an entry point to leave out
 *   FAKE_PAGEABLE 1: the device reads host memory (1)       FAKE_REFUSE  an entry point that fails
 *   FAKE_LOG      file to append "kernel grid threads shared queue" to; none: nothing is written
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/cuda_abi.h"

#define EXPORT __attribute__((visibility("default")))
enum { FAILED = 999 };

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int refuses(const char *entry) {
    const char *name = getenv("FAKE_REFUSE");
    return name && !strcmp(name, entry);
}

/* Each entry point begins by failing where the test asks for that. */
#define ENTRY(name, ...) static CUresult name(__VA_ARGS__)
#define MAY_FAIL                                                                                                       \
    if (refuses(__func__)) return FAILED

static char kernel_names[256][64]; /* a kernel is its index here plus one */
static int kernel_count;
static CUcontext current;

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = number("FAKE_VERSION", 13000);
    return CUDA_SUCCESS;
}

ENTRY(cuInit, unsigned flags) {
    MAY_FAIL;
    (void)flags;
    return number("FAKE_DEVICES", 1) ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

ENTRY(cuGetErrorString, CUresult error, const char **text) {
    (void)error;
    *text = "fake refusal";
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetCount, int *count) {
    MAY_FAIL;
    *count = number("FAKE_DEVICES", 1);
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGet, CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetName, char *name, int length, CUdevice device) {
    MAY_FAIL;
    snprintf(name, (size_t)length, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetAttribute, int *value, int attribute, CUdevice device) {
    (void)device;
    int cc = number("FAKE_CC", 90);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = cc / 10;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = cc % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 132;
        break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        *value = 50 << 20;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = cc == 86 || cc >= 120 ? 101376 : 166912;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *value = 233472;
        break;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
        *value = number("FAKE_PAGEABLE", 1);
        break;
    default:
        return FAILED;
    }
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceTotalMem, size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = (size_t)1 << 37;
    return CUDA_SUCCESS;
}

ENTRY(cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device) {
    MAY_FAIL;
    *context = (CUcontext)(uintptr_t)(device + 1);
    return CUDA_SUCCESS;
}

ENTRY(cuDevicePrimaryCtxRelease, CUdevice device) {
    (void)device;
    return CUDA_SUCCESS;
}

ENTRY(cuCtxGetCurrent, CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}

ENTRY(cuCtxPushCurrent, CUcontext context) {
    MAY_FAIL;
    current = context;
    return CUDA_SUCCESS;
}

ENTRY(cuCtxPopCurrent, CUcontext *context) {
    *context = current;
    current = NULL;
    return CUDA_SUCCESS;
}

ENTRY(cuThreadExchangeStreamCaptureMode, int *mode) {
    *mode = 0;
    return CUDA_SUCCESS;
}

ENTRY(cuLibraryLoadData, CUlibrary *library, const void *code, int *jit_options, void **jit_values, unsigned jit_count,
      int *options, void **values, unsigned count) {
    MAY_FAIL;
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    *library = (CUlibrary)code;
    return CUDA_SUCCESS;
}

ENTRY(cuLibraryUnload, CUlibrary library) {
    (void)library;
    return CUDA_SUCCESS;
}

ENTRY(cuLibraryGetKernel, CUkernel *kernel, CUlibrary library, const char *name) {
    MAY_FAIL;
    (void)library;
    if (kernel_count == 256) return FAILED;
    snprintf(kernel_names[kernel_count], sizeof *kernel_names, "%s", name);
    *kernel = (CUkernel)(uintptr_t)++kernel_count;
    return CUDA_SUCCESS;
}

ENTRY(cuKernelGetFunction, CUfunction *function, CUkernel kernel) {
    MAY_FAIL;
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

ENTRY(cuKernelSetAttribute, int attribute, int value, CUkernel kernel, CUdevice device) {
    MAY_FAIL;
    (void)attribute, (void)value, (void)kernel, (void)device;
    return CUDA_SUCCESS;
}

ENTRY(cuLaunchKernelEx, const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    MAY_FAIL;
    (void)arguments, (void)extra;
    const char *path = getenv("FAKE_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (!log) return CUDA_SUCCESS;
    fprintf(log, "%s %u %u %u %p\n", kernel_names[(uintptr_t)function - 1], config->gridDimX, config->blockDimX,
            config->sharedMemBytes, (void *)config->hStream);
    fclose(log);
    return CUDA_SUCCESS;
}

ENTRY(cuStreamSynchronize, CUstream queue) {
    MAY_FAIL;
    (void)queue;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **entry, int version, uint64_t flags, int *found) {
    (void)version, (void)flags, (void)found;
    static const struct {
        const char *name;
        void *entry;
    } table[] = {
#define ROW(name) {#name, (void *)name}
        ROW(cuInit),
        ROW(cuDriverGetVersion),
        ROW(cuGetErrorString),
        ROW(cuDeviceGetCount),
        ROW(cuDeviceGet),
        ROW(cuDeviceGetName),
        ROW(cuDeviceGetAttribute),
        ROW(cuDeviceTotalMem),
        ROW(cuDevicePrimaryCtxRetain),
        ROW(cuDevicePrimaryCtxRelease),
        ROW(cuCtxGetCurrent),
        ROW(cuCtxPushCurrent),
        ROW(cuCtxPopCurrent),
        ROW(cuThreadExchangeStreamCaptureMode),
        ROW(cuLibraryLoadData),
        ROW(cuLibraryUnload),
        ROW(cuLibraryGetKernel),
        ROW(cuKernelGetFunction),
        ROW(cuKernelSetAttribute),
        ROW(cuLaunchKernelEx),
        ROW(cuStreamSynchronize),
    };
    const char *missing = getenv("FAKE_MISSING");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name) && !(missing && !strcmp(missing, name))) {
            *entry = table[i].entry;
            return CUDA_SUCCESS;
        }
    *entry = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
