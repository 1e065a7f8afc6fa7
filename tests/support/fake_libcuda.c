/* A libcuda that runs nothing: it answers the entry points that csrc/driver/driver.c asks for and logs every launch.
 *
 *     gcc -shared -fPIC -o libcuda_fake.so tests/support/fake_libcuda.c
 *     NVFP4_LIBCUDA=./libcuda_fake.so FAKE_LOG=launches.txt python ...
 *
 * With it the host's side of a GPU call (opening, errors, launch shapes, cost) is tested where there is no GPU.
 *   FAKE_VERSION  driver version (13000)       FAKE_CC      compute capability (90)
 *   FAKE_DEVICES  number of devices (1)        FAKE_MISSING an entry point to leave out
 *   FAKE_PAGEABLE 1: the device reads host memory (1)       FAKE_FAIL  an entry point that fails
 *   FAKE_ABSENT   kernels whose names begin so have no code for the device
 *   FAKE_KERNEL   cuKernelGetFunction fails (FAKE_FAIL) for this kernel alone
 *   FAKE_QUERY    what cuStreamQuery says (0)  FAKE_CAPTURES 1: streams are being captured (0)
 *   FAKE_DEVICE   the one whose context tensor maps and launches must have (0)
 *   FAKE_CURRENT  a thread's current context before any push (0: none); device i's primary context is i + 1
 *   FAKE_PTX      PTX version that the kernels were compiled from (90, or FAKE_CC if that is less)
 *   FAKE_WAIT     1: each launch leaves a wait in the watchdog's records
 *   FAKE_SLOW     an entry point that takes 50 ms
 *   FAKE_BUS_BITS, FAKE_MEMORY_KHZ, FAKE_CLOCK_KHZ  width and clock of the memory, clock of the SMs (0: unknown)
 *   FAKE_CLUSTERS clusters of 2, 4 and 8 that fit with one CTA an SM; of the second CTA each has twice as many
 *                 (74,33,15 where FAKE_CC is 10.x, 10,4,1 where it is 11.x, else 66,30,15)
 *   FAKE_CALLS    file to append the name of each entry point to that may fail, when it is called
 *   FAKE_LOG      file to append "kernel grid threads shared stream cluster programmatic" to for each launch, and
 *                 "map bits rank dims strides box swizzle" for each tensor map, both without spaces in the lists;
 *                 none: nothing is written
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

#include "../../csrc/driver/cuda_abi.h"
#include "../../csrc/kernels/common/watchdog.h"

#define EXPORT __attribute__((visibility("default")))
enum { INVALID_VALUE = 1, FAILED = 999 };

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

/* Read once: what a call costs is measured on this library. */
static FILE *calls;
static const char *slow;

__attribute__((constructor)) static void open_calls(void) {
    const char *path = getenv("FAKE_CALLS");
    slow = getenv("FAKE_SLOW");
    calls = path ? fopen(path, "a") : NULL;
    if (calls) setvbuf(calls, NULL, _IOLBF, BUFSIZ);
}

static int fails(const char *entry) {
    const char *name = getenv("FAKE_FAIL");
    if (calls) fprintf(calls, "%s\n", entry);
    if (slow && !strcmp(slow, entry)) thrd_sleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    return name && !strcmp(name, entry);
}

/* Each entry point begins by being slow or failing where the test asks for that. */
#define ENTRY(name, ...) static CUresult name(__VA_ARGS__)
#define MAY_FAIL                                                                                                       \
    if (fails(__func__)) return FAILED

static char kernel_names[1024][64]; /* a kernel is its index here plus one */
static int kernel_count;
static _Thread_local CUcontext pushed[8];
static _Thread_local int depth;
static CUcontext of_tensors; /* the primary context of the device that has the test's tensors */

static CUcontext current(void) {
    return depth ? pushed[depth - 1] : (CUcontext)(uintptr_t)number("FAKE_CURRENT", 0);
}

/* For a test: the number of the thread's current context. */
EXPORT int fake_context(void) {
    return (int)(uintptr_t)current();
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = number("FAKE_VERSION", 13000);
    return CUDA_SUCCESS;
}

ENTRY(cuInit, unsigned flags) {
    MAY_FAIL;
    (void)flags;
    of_tensors = (CUcontext)(uintptr_t)(number("FAKE_DEVICE", 0) + 1);
    return number("FAKE_DEVICES", 1) ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

ENTRY(cuGetErrorString, CUresult error, const char **text) {
    (void)error;
    *text = "fake error";
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
        *value = cc / 10 == 11 ? 20 : cc / 10 == 10 ? 148 : 132;
        break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        *value = 50 << 20;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = cc == 86 || cc == 89 || cc >= 120 ? 101376 : cc >= 90 ? 232448 : 166912;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *value = 233472;
        break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
        *value = number("FAKE_BUS_BITS", 0);
        break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        *value = number("FAKE_MEMORY_KHZ", 0);
        break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        *value = number("FAKE_CLOCK_KHZ", 0);
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
    MAY_FAIL;
    (void)device;
    return CUDA_SUCCESS;
}

ENTRY(cuCtxGetCurrent, CUcontext *context) {
    MAY_FAIL;
    *context = current();
    return CUDA_SUCCESS;
}

ENTRY(cuCtxPushCurrent, CUcontext context) {
    MAY_FAIL;
    if (depth == sizeof pushed / sizeof *pushed) return FAILED;
    pushed[depth++] = context;
    return CUDA_SUCCESS;
}

ENTRY(cuCtxPopCurrent, CUcontext *context) {
    if (!depth) return FAILED;
    *context = pushed[--depth];
    return CUDA_SUCCESS;
}

ENTRY(cuThreadExchangeStreamCaptureMode, int *mode) {
    *mode = 0;
    return CUDA_SUCCESS;
}

ENTRY(cuLibraryLoadData, CUlibrary *library, const void *code, int *jit_options, void **jit_values, unsigned jit_count,
      int *options, void **values, unsigned count) {
    MAY_FAIL;
    if (jit_count && !(jit_options && jit_values)) return INVALID_VALUE;
    if (count && !(options && values)) return INVALID_VALUE;
    *library = (CUlibrary)code;
    return CUDA_SUCCESS;
}

ENTRY(cuLibraryUnload, CUlibrary library) {
    MAY_FAIL;
    (void)library;
    return CUDA_SUCCESS;
}

ENTRY(cuLibraryGetKernel, CUkernel *kernel, CUlibrary library, const char *name) {
    MAY_FAIL;
    (void)library;
    const char *absent = getenv("FAKE_ABSENT");
    if (absent && !strncmp(name, absent, strlen(absent))) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    int i = 0;
    while (i < kernel_count && strcmp(kernel_names[i], name)) i++;
    if (i == (int)(sizeof kernel_names / sizeof *kernel_names)) return FAILED;
    if (i == kernel_count) snprintf(kernel_names[kernel_count++], sizeof *kernel_names, "%s", name);
    *kernel = (CUkernel)(uintptr_t)(i + 1);
    return CUDA_SUCCESS;
}

ENTRY(cuKernelGetFunction, CUfunction *function, CUkernel kernel) {
    const char *only = getenv("FAKE_KERNEL");
    if (!kernel) return FAILED;
    if (!only || !strcmp(only, kernel_names[(uintptr_t)kernel - 1])) MAY_FAIL;
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

ENTRY(cuKernelGetAttribute, int *value, int attribute, CUkernel kernel, CUdevice device) {
    MAY_FAIL;
    (void)kernel, (void)device;
    if (attribute != CU_FUNC_ATTRIBUTE_PTX_VERSION) return INVALID_VALUE;
    int cc = number("FAKE_CC", 90);
    *value = number("FAKE_PTX", cc < 90 ? cc : 90);
    return CUDA_SUCCESS;
}

ENTRY(cuKernelSetAttribute, int attribute, int value, CUkernel kernel, CUdevice device) {
    MAY_FAIL;
    (void)attribute, (void)value, (void)kernel, (void)device;
    return CUDA_SUCCESS;
}

/* For builds with NVFP4_WATCHDOG: cuLibraryGetGlobal gives the address of `watched`, whichever variable it is. */
static watchdog_state watched;
static watchdog_record *records[64];
static int record_count;

ENTRY(cuLibraryGetGlobal, CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name) {
    MAY_FAIL;
    (void)bytes, (void)library, (void)name;
    *address = (CUdeviceptr)(uintptr_t)&watched;
    return CUDA_SUCCESS;
}

ENTRY(cuMemcpyHtoD, CUdeviceptr to, const void *from, size_t bytes) {
    MAY_FAIL;
    memcpy((void *)(uintptr_t)to, from, bytes); /* NOLINT: it is an address here */
    if (record_count < 64) records[record_count++] = watched.record;
    return CUDA_SUCCESS;
}

ENTRY(cuMemHostAlloc, void **memory, size_t bytes, unsigned flags) {
    MAY_FAIL;
    (void)flags;
    *memory = malloc(bytes);
    memset(*memory, 255, bytes);
    return CUDA_SUCCESS;
}

ENTRY(cuStreamIsCapturing, CUstream stream, int *status) {
    MAY_FAIL;
    (void)stream;
    *status = number("FAKE_CAPTURES", 0);
    return CUDA_SUCCESS;
}

ENTRY(cuStreamQuery, CUstream stream) {
    (void)stream;
    return number("FAKE_QUERY", 0);
}

static void leave_wait(void) {
    for (int i = 0; i < record_count; i++)
        records[i]->expired[0] = (watchdog_wait){.kind = WATCHDOG_FLAG,
                                                 .line = 7,
                                                 .file = "some.cu",
                                                 .cta_x = 1,
                                                 .cta_y = 2,
                                                 .warp = 3,
                                                 .wanted = 6,
                                                 .seen = 5,
                                                 .polls = 4,
                                                 .address = 64};
}

static FILE *open_log(void) {
    const char *path = getenv("FAKE_LOG");
    return path ? fopen(path, "a") : NULL;
}

static void write_list(FILE *log, const uint64_t *wide, const uint32_t *narrow, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        fprintf(log, "%c%llu", i ? ',' : ' ', (unsigned long long)(wide ? wide[i] : narrow[i]));
}

ENTRY(cuTensorMapEncodeTiled, void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
      const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle,
      int l2_promotion, int fill) {
    MAY_FAIL;
    (void)l2_promotion;
    if (current() != of_tensors) return FAILED; /* without a context, an H200's driver fails too */
    if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || rank < 1 || rank > 5 || interleave || fill) return FAILED;
    for (uint32_t i = 0; i < rank; i++)
        if (steps[i] != 1 || !dims[i] || !box[i] || box[i] > 256) return FAILED;
    memset(map, 0, 128);
    FILE *log = open_log();
    if (!log) return CUDA_SUCCESS;
    fprintf(log, "map %d %u", type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 8 : 16, rank);
    write_list(log, dims, NULL, rank);
    write_list(log, strides, NULL, rank - 1);
    write_list(log, NULL, box, rank);
    fprintf(log, " %s\n",
            swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? "128"
            : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? "64"
            : swizzle                              ? "other"
                                                   : "0");
    fclose(log);
    return CUDA_SUCCESS;
}

ENTRY(cuOccupancyMaxActiveClusters, int *clusters, CUfunction function, const CUlaunchConfig *config) {
    MAY_FAIL;
    const char *text = getenv("FAKE_CLUSTERS");
    int fit[3];
    const int generation = number("FAKE_CC", 90) / 10;
    if (!text) text = generation == 11 ? "10,4,1" : generation == 10 ? "74,33,15" : "66,30,15";
    if (!function || sscanf(text, "%d,%d,%d", &fit[0], &fit[1], &fit[2]) != 3) return FAILED;
    if (config->numAttrs != 1 || config->attrs->id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return INVALID_VALUE;
    const unsigned size = config->attrs->value.clusterDim.x;
    if (size != 2 && size != 4 && size != 8) return INVALID_VALUE;
    if (config->gridDimX % size || !config->blockDimX || config->sharedMemBytes > 232448) return INVALID_VALUE;
    *clusters = fit[size / 4] * (233472 / ((int)config->sharedMemBytes + 1024));
    return CUDA_SUCCESS;
}

ENTRY(cuLaunchKernelEx, const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    MAY_FAIL;
    (void)arguments, (void)extra;
    if (current() != of_tensors) return FAILED;
    unsigned cluster = 0;
    int programmatic = 0;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *a = &config->attrs[i];
        if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && a->value.clusterDim.y == 1 && a->value.clusterDim.z == 1)
            cluster = a->value.clusterDim.x;
        else if (a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            programmatic = a->value.programmaticStreamSerializationAllowed;
        else
            return FAILED;
    }
    if (number("FAKE_WAIT", 0)) leave_wait();
    FILE *log = open_log();
    if (!log) return CUDA_SUCCESS;
    fprintf(log, "%s %u %u %u %p %u %d\n", kernel_names[(uintptr_t)function - 1], config->gridDimX * config->gridDimY,
            config->blockDimX, config->sharedMemBytes, (void *)config->hStream, cluster, programmatic);
    fclose(log);
    return CUDA_SUCCESS;
}

ENTRY(cuStreamSynchronize, CUstream stream) {
    MAY_FAIL;
    (void)stream;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **entry, int version, uint64_t flags, int *found) {
    (void)flags, (void)found;
    *entry = NULL;
    if (version > number("FAKE_VERSION", 13000)) return INVALID_VALUE; /* a version that the driver does not know */
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
        ROW(cuKernelGetAttribute),
        ROW(cuKernelSetAttribute),
        ROW(cuTensorMapEncodeTiled),
        ROW(cuOccupancyMaxActiveClusters),
        ROW(cuLaunchKernelEx),
        ROW(cuStreamSynchronize),
        ROW(cuLibraryGetGlobal),
        ROW(cuMemcpyHtoD),
        ROW(cuMemHostAlloc),
        ROW(cuStreamIsCapturing),
        ROW(cuStreamQuery),
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
