/* Driver API: devices and contexts. */
#include <stdio.h>
#include <stdlib.h>

#include "driver/driver.h"

/* ---- devices ---- */

API CUresult cuDeviceGetCount(int *count) {
    NEED(count);
    *count = 1;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    NEED(device);
    *device = 0;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    NEED(name && length > 0);
    NEED_DEVICE(device);
    snprintf(name, (size_t)length, "%s", driver.device->name);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice device) {
    NEED(uuid);
    NEED_DEVICE(device);
    memset(uuid, 0, 16);
    memcpy(uuid, "emulated", 8);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    NEED(bytes);
    NEED_DEVICE(device);
    *bytes = (size_t)driver.device->memory_bytes;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    NEED(major && minor);
    NEED_DEVICE(device);
    *major = driver.device->cc / 10;
    *minor = driver.device->cc % 10;
    return CUDA_SUCCESS;
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
        return d->clock_khz;
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
        return d->memory_clock_khz;
    case 37: /* GLOBAL_MEMORY_BUS_WIDTH */
        return d->memory_bus_bits;
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
    NEED(value && attribute >= 1 && attribute <= 147);
    NEED_DEVICE(device);
    *value = device_attribute(attribute);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    NEED(can);
    NEED_DEVICE(device);
    NEED_DEVICE(peer);
    *can = 0;
    return CUDA_SUCCESS;
}

static const char bus_id[] = "0000:00:00.0";

API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    NEED(text && length > 0);
    NEED_DEVICE(device);
    snprintf(text, (size_t)length, "%s", bus_id);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
    NEED(device && text);
    *device = 0;
    return strcmp(text, bus_id) ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

/* ---- contexts: one, which every thread has a stack of, and which is always current enough to work in ---- */

enum { MOST_PUSHED = 64 };
static _Thread_local struct {
    CUcontext stack[MOST_PUSHED];
    int depth;
} pushed;

static CUcontext current(void) {
    return pushed.depth ? pushed.stack[pushed.depth - 1] : NULL;
}
static CUresult push(CUcontext context) {
    if (pushed.depth == MOST_PUSHED) return CUDA_ERROR_INVALID_VALUE;
    pushed.stack[pushed.depth++] = context;
    return CUDA_SUCCESS;
}
static int is_context(CUcontext context) {
    return !context || context == &driver.primary;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    NEED(context);
    NEED_DEVICE(device);
    *context = &driver.primary;
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    NEED_DEVICE(device);
    return CUDA_SUCCESS;
}
/* Clears a fault, as a new context would. Keeps memory and modules, which other parts of the process may hold. */
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    NEED_DEVICE(device);
    emulator_reset();
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    NEED(flags && active);
    NEED_DEVICE(device);
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    (void)flags;
    NEED_DEVICE(device);
    return CUDA_SUCCESS;
}
API CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    (void)flags;
    NEED(context);
    NEED_DEVICE(device);
    *context = &driver.primary;
    return push(*context);
}
API CUresult cuCtxCreate_v3(CUcontext *context, void *affinities, int count, unsigned flags, CUdevice device) {
    (void)affinities, (void)count;
    return cuCtxCreate_v2(context, flags, device);
}
API CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
    (void)parameters;
    return cuCtxCreate_v2(context, flags, device);
}
API CUresult cuCtxDestroy_v2(CUcontext context) {
    NEED(context && is_context(context));
    if (current() == context) pushed.depth--;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *context) {
    NEED(context);
    *context = current();
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
    READY;
    if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (pushed.depth) pushed.depth--;
    return context ? push(context) : CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    READY;
    return is_context(context) ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}
API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    READY;
    if (!pushed.depth) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = current();
    pushed.depth--;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *device) {
    NEED(device);
    *device = 0;
    return current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    NEED(device && is_context(context));
    *device = 0;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    NEED(version && is_context(context));
    *version = 3020;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    NEED(id && is_context(context));
    *id = 1;
    return context || current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
API CUresult cuCtxGetFlags(unsigned *flags) {
    NEED(flags);
    *flags = 0;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    READY;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

/* Stack, heap and printf buffers have no limit here: a set value is only stored and returned. */
enum { LIMITS = 8 };
static size_t limits[LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0};

API CUresult cuCtxGetLimit(size_t *value, int limit) {
    NEED(value && limit >= 0 && limit < LIMITS);
    *value = limits[limit];
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetLimit(int limit, size_t value) {
    NEED(limit >= 0 && limit < LIMITS);
    limits[limit] = value;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetCacheConfig(int *config) {
    NEED(config);
    *config = 0;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCacheConfig(int config) {
    (void)config;
    READY;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSynchronize(void) {
    READY;
    ENTER;
    result = driver_flush();
    LEAVE;
}
API CUresult cuCtxSynchronize_v2(CUcontext context) {
    NEED(is_context(context));
    return cuCtxSynchronize();
}
API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    static _Thread_local int kept;
    NEED(mode);
    int before = kept;
    kept = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
API CUresult cuProfilerStart(void) {
    READY;
    return CUDA_SUCCESS;
}
API CUresult cuProfilerStop(void) {
    READY;
    return CUDA_SUCCESS;
}
