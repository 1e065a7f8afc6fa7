/* Driver API: device memory, which is host memory, and pointer attributes. */
#include <stdlib.h>

#include "driver/driver.h"

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    NEED(pointer && bytes);
    ENTER;
    result = driver_sticky();
    if (!result) {
        void *p = bytes <= (size_t)driver.device->memory_bytes ? device_allocate(bytes) : NULL;
        *pointer = (CUdeviceptr)(uintptr_t)p;
        if (!p) result = driver_rejectf(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc: no %zu bytes are left", bytes);
    }
    LEAVE;
}

API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    READY;
    ENTER;
    result = driver_flush();
    if (pointer && !device_free((void *)(uintptr_t)pointer) && !result)
        result = driver_rejectf(CUDA_ERROR_INVALID_VALUE, "cuMemFree: 0x%llx is not what cuMemAlloc gave",
                                (unsigned long long)pointer);
    LEAVE;
}

API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    NEED_STREAM(stream);
    return cuMemAlloc_v2(pointer, bytes);
}
API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    NEED_STREAM(stream);
    return cuMemFree_v2(pointer);
}
API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    NEED(flags == 1 || flags == 2); /* attached to every stream, or to the host */
    return cuMemAlloc_v2(pointer, bytes);
}
API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    NEED(pitch && width && height && width <= SIZE_MAX / 2 && height <= SIZE_MAX / 2 / (width + 512));
    NEED(element == 4 || element == 8 || element == 16);
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(pointer, *pitch * height);
}

/* ---- host memory ---- */

/* Page-locked host memory is readable by kernels, so it is device memory too. */
API CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    NEED(pointer);
    CUdeviceptr p = 0;
    CUresult result = cuMemAlloc_v2(&p, bytes);
    *pointer = (void *)(uintptr_t)p;
    return result;
}
API CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}
API CUresult cuMemFreeHost(void *pointer) {
    return cuMemFree_v2((CUdeviceptr)(uintptr_t)pointer);
}
API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned flags) {
    NEED(pointer && host && !flags);
    *pointer = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}
API CUresult cuMemHostGetFlags(unsigned *flags, void *host) {
    NEED(flags && device_range((uint64_t)(uintptr_t)host, NULL, NULL));
    *flags = 2; /* mapped */
    return CUDA_SUCCESS;
}
/* Kernels may now access this memory. Its bounds are not recorded, so all host memory becomes accessible. */
API CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    (void)flags;
    NEED(pointer && bytes);
    ENTER;
    result = driver_flush();
    host_memory_allowed = 1;
    LEAVE;
}
API CUresult cuMemHostUnregister(void *pointer) {
    NEED(pointer);
    ENTER;
    result = driver_flush();
    LEAVE;
}

/* ---- what is asked about memory, and advised ---- */

API CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    NEED(unused && total);
    *total = (size_t)driver.device->memory_bytes;
    *unused = *total / 10 * 9;
    return CUDA_SUCCESS;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    READY;
    uint64_t start, bytes;
    if (!device_range(pointer, &start, &bytes)) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = start;
    if (size) *size = bytes;
    return CUDA_SUCCESS;
}

static CUresult advised(const char *call, CUdeviceptr pointer, size_t bytes) {
    uint64_t start, size;
    if (device_range(pointer, &start, &size) && bytes && bytes <= start + size - pointer) return CUDA_SUCCESS;
    return driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: %zu bytes from 0x%llx on are in no allocation", call, bytes,
                          (unsigned long long)pointer);
}
/* All memory is in one place: nothing moves. */
API CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
    (void)device;
    NEED_STREAM(stream);
    return advised("cuMemPrefetchAsync", pointer, bytes);
}
API CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation to, unsigned flags,
                                   CUstream stream) {
    (void)to;
    NEED(!flags);
    return cuMemPrefetchAsync(pointer, bytes, 0, stream);
}
API CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, int advice, CUdevice device) {
    (void)device;
    NEED(advice >= 1 && advice <= 6);
    return advised("cuMemAdvise", pointer, bytes);
}
API CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, int advice, CUmemLocation location) {
    (void)location;
    return cuMemAdvise(pointer, bytes, advice, 0);
}

enum {
    POINTER_CONTEXT = 1,
    POINTER_MEMORY_TYPE = 2,
    POINTER_DEVICE = 3,
    POINTER_HOST = 4,
    POINTER_SYNC_MEMOPS = 6,
    POINTER_BUFFER = 7,
    POINTER_MANAGED = 8,
    POINTER_ORDINAL = 9,
    POINTER_START = 11,
    POINTER_SIZE = 12,
    POINTER_MAPPED = 13
};

API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer) {
    uint64_t start, bytes;
    NEED(data && device_range(pointer, &start, &bytes));
    switch (attribute) {
    case POINTER_CONTEXT:
        *(CUcontext *)data = &driver.primary;
        return CUDA_SUCCESS;
    case POINTER_MEMORY_TYPE:
        *(unsigned *)data = 2; /* CU_MEMORYTYPE_DEVICE */
        return CUDA_SUCCESS;
    case POINTER_DEVICE:
    case POINTER_HOST:
        *(CUdeviceptr *)data = pointer;
        return CUDA_SUCCESS;
    case POINTER_START:
    case POINTER_BUFFER:
        *(CUdeviceptr *)data = start;
        return CUDA_SUCCESS;
    case POINTER_SIZE:
        *(size_t *)data = bytes;
        return CUDA_SUCCESS;
    case POINTER_ORDINAL:
        *(int *)data = 0;
        return CUDA_SUCCESS;
    case POINTER_MAPPED:
        *(uint8_t *)data = 1;
        return CUDA_SUCCESS;
    case POINTER_MANAGED:
    case POINTER_SYNC_MEMOPS:
        *(uint8_t *)data = 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}
/* As in the real driver, attributes of an unknown pointer are 0, without an error. */
API CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr pointer) {
    NEED(count && attributes && data);
    for (unsigned i = 0; i < count; i++) {
        int attribute = attributes[i];
        NEED(data[i]);
        if (!cuPointerGetAttribute(data[i], attribute, pointer)) continue;
        if (attribute == POINTER_ORDINAL)
            *(int *)data[i] = -2;
        else if (attribute == POINTER_MEMORY_TYPE)
            *(unsigned *)data[i] = 0;
        else if (attribute == POINTER_MANAGED || attribute == POINTER_MAPPED || attribute == POINTER_SYNC_MEMOPS)
            *(uint8_t *)data[i] = 0;
        else
            *(uint64_t *)data[i] = 0;
    }
    return CUDA_SUCCESS;
}
