/* The emulated driver: settings, devices, contexts, streams and events. Launches are queued and run when something
 * waits for them, so that dependent grids can overlap; every stream shares one queue, in the order of the calls.
 *
 * Settings (README): EMULATE_DEVICE, EMULATE_SEED, EMULATE_ARITHMETIC, EMULATE_FENCES, EMULATE_TRACE,
 * EMULATE_TMEM_BASE, EMULATE_HOST_MEMORY, EMULATE_QUIET; or emulator_configure from the same process. */
#define _GNU_SOURCE /* asprintf, recursive mutex */
#include "driver.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

driver_state driver;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
void driver_lock(void) {
    pthread_mutex_lock(&lock);
}
void driver_unlock(void) {
    pthread_mutex_unlock(&lock);
}

CUresult driver_refuse(CUresult code, char *sentence) {
    free(driver.error);
    driver.error = sentence;
    if (!driver.quiet && sentence) fprintf(stderr, "emulator: %s\n", sentence);
    return code;
}

CUresult driver_refusef(CUresult code, const char *sentence, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, sentence);
    if (vasprintf(&text, sentence, arguments) < 0) text = NULL;
    va_end(arguments);
    return driver_refuse(code, text);
}

CUresult driver_flush(void) {
    driver.queued = 0;
    if (!driver.machine) return CUDA_SUCCESS;
    if (!driver.machine->error) {
        if (machine_run(driver.machine) == 0) return CUDA_SUCCESS;
        driver_refuse(CUDA_ERROR_LAUNCH_FAILED, strdup(driver.machine->error));
    }
    return driver.machine->assertion_failed ? CUDA_ERROR_ASSERT : CUDA_ERROR_LAUNCH_FAILED; /* sticky */
}

/* ---- settings ------------------------------------------------------------------------------------------------------
 */

static void apply(machine *m) {
    machine_seed(m, driver.seed);
    m->arithmetic = driver.arithmetic;
    m->fences = driver.fences;
    m->tmem_base = driver.tmem_base;
}

static int set_number(uint64_t *out, const char *value) {
    char *end;
    *out = strtoull(value, &end, 0);
    return *value && !*end;
}

static void start_machine(void) {
    driver.machine = machine_create(driver.device);
    if (!driver.machine) abort();
    apply(driver.machine);
    if (driver.trace_path) trace_begin(driver.machine, driver.trace_path);
}

/* NULL, or what is wrong with the value. */
const char *driver_wrong_setting(const char *name, const char *value) {
    uint64_t number = 0;
    int is_number = set_number(&number, value);
    if (!strcmp(name, "device")) {
        const device *d = device_by_key(value);
        if (!d) return "must be sm_80, sm_90, sm_100 or sm_120";
        int other = d != driver.device;
        driver.device = d;
        if (driver.machine && other) {
            machine_destroy(driver.machine);
            start_machine();
        }
    } else if (!strcmp(name, "seed")) {
        if (!is_number) return "must be a number";
        driver.seed = number;
    } else if (!strcmp(name, "arithmetic")) {
        if (strcmp(value, "silicon") != 0 && strcmp(value, "fp64") != 0) return "must be silicon or fp64";
        driver.arithmetic = strcmp(value, "fp64") ? ARITHMETIC_SILICON : ARITHMETIC_FP64;
    } else if (!strcmp(name, "fences")) {
        if (strcmp(value, "text") != 0 && strcmp(value, "silicon") != 0) return "must be text or silicon";
        driver.fences = strcmp(value, "silicon") ? FENCES_TEXT : FENCES_SILICON;
    } else if (!strcmp(name, "tmem_base")) {
        if (!is_number || number >= 512 || number % 32) return "must be a multiple of 32 below 512";
        driver.tmem_base = (int)number;
    } else if (!strcmp(name, "host_memory")) {
        if (!is_number || number > 1) return "must be 0 or 1";
        host_memory_allowed = (int)number;
    } else if (!strcmp(name, "quiet")) {
        if (!is_number || number > 1) return "must be 0 or 1";
        driver.quiet = (int)number;
    } else if (!strcmp(name, "trace")) {
        free(driver.trace_path);
        driver.trace_path = *value ? strdup(value) : NULL;
        if (driver.machine) {
            trace_end(driver.machine);
            if (driver.trace_path) trace_begin(driver.machine, driver.trace_path);
        }
    } else {
        return "is no setting: there are device, seed, arithmetic, fences, tmem_base, host_memory, trace and quiet";
    }
    if (driver.machine && strcmp(name, "trace") != 0) apply(driver.machine);
    return NULL;
}

static int opened;

void driver_open(void) {
    if (opened) return;
    opened = 1;
    driver.device = device_by_key(NULL);
    host_memory_allowed = 1;
    static const char *const names[] = {"device",    "seed",        "arithmetic", "fences",
                                        "tmem_base", "host_memory", "quiet",      "trace"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char variable[64] = "EMULATE_";
        for (size_t j = 0; names[i][j]; j++)
            variable[8 + j] = (char)(names[i][j] >= 'a' && names[i][j] <= 'z' ? names[i][j] - 32 : names[i][j]);
        const char *value = getenv(variable), *wrong = value ? driver_wrong_setting(names[i], value) : NULL;
        if (wrong) {
            fprintf(stderr, "emulator: %s is `%s`; it %s\n", variable, value, wrong);
            exit(2); /* running with another setting than the one asked for would mislead */
        }
    }
}

/* Sets what EMULATE_<NAME> sets, from now on: "seed", "arithmetic", "fences", "trace" ... 0, or -1 and emulator_error.
 */
API int emulator_configure(const char *name, const char *value) {
    driver_lock();
    driver_open();
    if (driver.machine) driver_flush();
    const char *wrong = driver_wrong_setting(name, value);
    if (wrong) driver_refusef(CUDA_ERROR_INVALID_VALUE, "%s is `%s`; it %s", name, value, wrong);
    driver_unlock();
    return wrong ? -1 : 0;
}

/* The last sentence, "" if there was none. */
API const char *emulator_error(void) {
    return driver.error ? driver.error : "";
}

/* After a fault, which sticks as on hardware: a new machine, with the same settings, modules and memory. */
API void emulator_reset(void) {
    driver_lock();
    if (driver.machine) {
        machine_destroy(driver.machine);
        start_machine();
    }
    free(driver.error);
    driver.error = NULL;
    driver_unlock();
}

__attribute__((destructor)) static void at_exit(void) {
    if (driver.machine) trace_end(driver.machine);
}

/* ---- initialisation, errors
 * ------------------------------------------------------------------------------------------ */

API CUresult cuInit(unsigned flags) {
    ENTER;
    (void)flags;
    driver_open();
    if (!driver.machine) start_machine();
    driver.initialized = 1;
    LEAVE;
}

API CUresult cuDriverGetVersion(int *version) {
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for this device"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX compilation failed"},
    {CUDA_ERROR_FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_ASSERT, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
     "too many blocks in cooperative launch"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "the stream began no capture that it could end"},
    {CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
     "the graph update was not performed because it included changes which violated constraints"},
    {CUDA_ERROR_INVALID_CLUSTER_SIZE, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

API CUresult cuGetErrorName(CUresult error, const char **text) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) return *text = errors[i].name, CUDA_SUCCESS;
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

/* The sentence of the last refusal where there is one: more than the real driver says. */
API CUresult cuGetErrorString(CUresult error, const char **text) {
    static char sentence[4096];
    if (error != CUDA_SUCCESS && driver.error) {
        snprintf(sentence, sizeof sentence, "%s", driver.error);
        *text = sentence;
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) return *text = errors[i].text, CUDA_SUCCESS;
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- devices
 * ---------------------------------------------------------------------------------------------------------- */

API CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return driver.initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", driver.device->name);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice device) {
    memset(uuid, 0, 16);
    memcpy(uuid, "emulated", 8);
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = (size_t)driver.device->memory_bytes;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    *major = driver.device->cc / 10;
    *minor = driver.device->cc % 10;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* By the numbers of CUdevice_attribute. Attributes of hardware that is not emulated (textures, surfaces) answer 0. */
static int device_attribute(int attribute) {
    const device *d = driver.device;
    switch (attribute) {
    case 1: /* MAX_THREADS_PER_BLOCK */
    case 2: /* MAX_BLOCK_DIM_X, Y */
    case 3:
        return 1024;
    case 4:
        return 64;
    case 5: /* MAX_GRID_DIM_X, Y, Z */
        return INT32_MAX;
    case 6:
    case 7:
        return 65535;
    case 8: /* MAX_SHARED_MEMORY_PER_BLOCK */
        return 48 * 1024;
    case 9: /* TOTAL_CONSTANT_MEMORY */
        return 65536;
    case 10: /* WARP_SIZE */
        return WARP_LANES;
    case 11: /* MAX_PITCH */
        return INT32_MAX;
    case 12: /* MAX_REGISTERS_PER_BLOCK */
        return 65536;
    case 13: /* CLOCK_RATE, kHz */
        return 1830000;
    case 14: /* TEXTURE_ALIGNMENT */
        return 512;
    case 16: /* MULTIPROCESSOR_COUNT */
        return d->sm_count;
    case 31:  /* CONCURRENT_KERNELS */
    case 32:  /* ECC_ENABLED */
    case 41:  /* UNIFIED_ADDRESSING */
    case 15:  /* GPU_OVERLAP */
    case 19:  /* CAN_MAP_HOST_MEMORY */
    case 78:  /* STREAM_PRIORITIES_SUPPORTED */
    case 79:  /* GLOBAL_L1_CACHE_SUPPORTED */
    case 80:  /* LOCAL_L1_CACHE_SUPPORTED */
    case 83:  /* MANAGED_MEMORY */
    case 89:  /* CONCURRENT_MANAGED_ACCESS */
    case 95:  /* COOPERATIVE_LAUNCH */
    case 115: /* MEMORY_POOLS_SUPPORTED */
        return 1;
    case 36: /* MEMORY_CLOCK_RATE, kHz */
        return 3996000;
    case 37: /* GLOBAL_MEMORY_BUS_WIDTH */
        return 8192;
    case 38: /* L2_CACHE_SIZE */
        return d->l2_bytes;
    case 39: /* MAX_THREADS_PER_MULTIPROCESSOR */
        return d->threads_per_sm;
    case 40: /* ASYNC_ENGINE_COUNT */
        return 3;
    case 75: /* COMPUTE_CAPABILITY_MAJOR, MINOR */
        return d->cc / 10;
    case 76:
        return d->cc % 10;
    case 81: /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
        return d->shared_per_sm;
    case 82: /* MAX_REGISTERS_PER_MULTIPROCESSOR */
        return d->registers_per_sm;
    case 88: /* PAGEABLE_MEMORY_ACCESS */
        return host_memory_allowed;
    case 97: /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
        return d->shared_per_block;
    case 108: /* MAX_PERSISTING_L2_CACHE_SIZE */
        return d->l2_bytes / 4 * 3;
    case 109: /* MAX_ACCESS_POLICY_WINDOW_SIZE */
        return 128 << 20;
    case 106: /* MAX_BLOCKS_PER_MULTIPROCESSOR */
        return d->ctas_per_sm;
    case 111: /* RESERVED_SHARED_MEMORY_PER_BLOCK */
        return d->shared_reserved;
    case 120: /* CLUSTER_LAUNCH */
    case 127: /* TENSOR_MAP_ACCESS_SUPPORTED */
        return d->cc >= 90;
    default:
        return 0;
    }
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
    if (attribute < 1 || attribute > 147) return CUDA_ERROR_INVALID_VALUE;
    *value = device_attribute(attribute);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    (void)device, (void)peer;
    *can = 0;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    snprintf(text, (size_t)length, "0000:00:00.0");
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* ---- contexts: one, which is always current enough ------------------------------------------------------------------
 */

static _Thread_local CUcontext current;

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = &driver.primary;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    emulator_reset();
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = driver.initialized;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    (void)flags;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    (void)flags;
    *context = current = &driver.primary;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
    (void)parameters;
    return cuCtxCreate_v2(context, flags, device);
}
API CUresult cuCtxDestroy_v2(CUcontext context) {
    if (current == context) current = NULL;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    return cuCtxSetCurrent(context);
}
API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (context) *context = current;
    current = NULL;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
API CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    (void)context;
    *version = 3020;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetFlags(unsigned *flags) {
    *flags = 0;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}
/* Stack, heap and printf buffers are as large as they need to be. */
API CUresult cuCtxGetLimit(size_t *value, int limit) {
    (void)limit;
    *value = (size_t)1 << 20;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetLimit(int limit, size_t value) {
    (void)limit, (void)value;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCacheConfig(int config) {
    (void)config;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSynchronize(void) {
    ENTER;
    result = driver_flush();
    LEAVE;
}
API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    static _Thread_local int kept;
    int before = kept;
    kept = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
API CUresult cuProfilerStart(void) {
    return CUDA_SUCCESS;
}
API CUresult cuProfilerStop(void) {
    return CUDA_SUCCESS;
}

/* ---- streams and events --------------------------------------------------------------------------------------------
 */

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    *stream = calloc(1, sizeof **stream);
    if (!*stream) return CUDA_ERROR_OUT_OF_MEMORY;
    (*stream)->flags = flags;
    (*stream)->priority = priority;
    return CUDA_SUCCESS;
}
API CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}
API CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER;
    result = driver_flush();
    free(stream);
    LEAVE;
}
API CUresult cuStreamSynchronize(CUstream stream) {
    (void)stream;
    return cuCtxSynchronize();
}
API CUresult cuStreamQuery(CUstream stream) {
    return cuStreamSynchronize(stream);
}
API CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) {
    *flags = (uintptr_t)stream > 2 ? stream->flags : 0;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetPriority(CUstream stream, int *priority) {
    *priority = (uintptr_t)stream > 2 ? stream->priority : 0;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    (void)stream;
    *context = &driver.primary;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
    *id = (uintptr_t)stream;
    return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    (void)stream;
    *status = 0;
    return CUDA_SUCCESS;
}
/* One queue in the order of the calls: what an event marks has always run before what is queued later. */
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)stream, (void)event, (void)flags;
    return CUDA_SUCCESS;
}
API CUresult cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
API CUresult cuEventDestroy_v2(CUevent event) {
    free(event);
    return CUDA_SUCCESS;
}
/* Runs what was queued before, so that elapsed times are of this machine's clock: not a GPU's. */
API CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER;
    (void)stream;
    result = driver_flush();
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->nanoseconds = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    LEAVE;
}
API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    (void)flags;
    return cuEventRecord(event, stream);
}
API CUresult cuEventSynchronize(CUevent event) {
    (void)event;
    return cuCtxSynchronize();
}
API CUresult cuEventQuery(CUevent event) {
    return cuEventSynchronize(event);
}
API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    *milliseconds = (float)((double)(end->nanoseconds - start->nanoseconds) * 1e-6);
    return CUDA_SUCCESS;
}
API CUresult cuLaunchHostFunc(CUstream stream, void (*call)(void *), void *argument) {
    (void)stream;
    CUresult result = cuCtxSynchronize();
    if (!result) call(argument);
    return result;
}
