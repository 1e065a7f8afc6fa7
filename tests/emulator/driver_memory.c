/* The emulated driver: device memory, copies and fills. Device memory is host memory, so a copy is a copy; it waits for
 * what was queued before it, also in its asynchronous form. */
#include <stdlib.h>

#include "driver.h"

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    ENTER;
    driver_open();
    if (bytes == 0) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        void *p = (int64_t)bytes <= driver.device->memory_bytes ? device_allocate(bytes) : NULL;
        *pointer = (CUdeviceptr)(uintptr_t)p;
        if (!p) result = driver_refusef(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc: no %zu bytes are left", bytes);
    }
    LEAVE;
}

API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    ENTER;
    result = driver_flush();
    if (pointer && !device_free((void *)(uintptr_t)pointer) && !result)
        result = driver_refusef(CUDA_ERROR_INVALID_VALUE, "cuMemFree: 0x%llx is not what cuMemAlloc gave",
                                (unsigned long long)pointer);
    LEAVE;
}

API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemAlloc_v2(pointer, bytes);
}
API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    (void)stream;
    return cuMemFree_v2(pointer);
}
API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return cuMemAlloc_v2(pointer, bytes);
}
API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    (void)element;
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(pointer, *pitch * height);
}
/* Page-locked host memory is readable by kernels, so it is device memory too. */
API CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
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
    (void)flags;
    *pointer = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}
API CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    driver_open();
    *total = (size_t)driver.device->memory_bytes;
    *unused = *total / 10 * 9;
    return CUDA_SUCCESS;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    uint64_t start, bytes;
    if (!device_range(pointer, &start, &bytes)) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = start;
    if (size) *size = bytes;
    return CUDA_SUCCESS;
}

enum { POINTER_CONTEXT = 1, POINTER_MEMORY_TYPE = 2, POINTER_DEVICE = 3, POINTER_HOST = 4, POINTER_ORDINAL = 9 };

API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer) {
    uint64_t start, bytes;
    int known = device_range(pointer, &start, &bytes);
    if (!known) return CUDA_ERROR_INVALID_VALUE;
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
    case POINTER_ORDINAL:
        *(int *)data = 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* A range that lies in a device allocation must lie in it wholly. */
static CUresult in_bounds(const char *call, uint64_t address, size_t bytes) {
    uint64_t start, size;
    if (!device_range(address, &start, &size) || address + bytes <= start + size) return CUDA_SUCCESS;
    return driver_refusef(CUDA_ERROR_INVALID_VALUE,
                          "%s: %zu bytes from 0x%llx on, in an allocation that ends after %llu", call, bytes,
                          (unsigned long long)address, (unsigned long long)(start + size - address));
}

static CUresult copy(const char *call, uint64_t to, uint64_t from, size_t bytes) {
    ENTER;
    result = driver_flush();
    if (!result) result = in_bounds(call, to, bytes);
    if (!result) result = in_bounds(call, from, bytes);
    if (!result) memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    LEAVE;
}

API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy("cuMemcpy", to, from, bytes);
}
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    return copy("cuMemcpyAsync", to, from, bytes);
}
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy("cuMemcpyHtoD", to, (uintptr_t)from, bytes);
}
API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy("cuMemcpyDtoH", (uintptr_t)to, from, bytes);
}
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy("cuMemcpyDtoD", to, from, bytes);
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyHtoD_v2(to, from, bytes);
}
API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyDtoH_v2(to, from, bytes);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyDtoD_v2(to, from, bytes);
}

static CUresult fill(const char *call, CUdeviceptr to, const void *value, size_t size, size_t count) {
    ENTER;
    result = driver_flush();
    if (!result) result = in_bounds(call, to, size * count);
    for (size_t i = 0; !result && i < count; i++) memcpy((uint8_t *)(uintptr_t)to + i * size, value, size);
    LEAVE;
}

#define FILLS(name, type)                                                                                              \
    API CUresult name##_v2(CUdeviceptr to, type value, size_t count) {                                                 \
        return fill(#name, to, &value, sizeof value, count);                                                           \
    }                                                                                                                  \
    API CUresult name##Async(CUdeviceptr to, type value, size_t count, CUstream stream) {                              \
        (void)stream;                                                                                                  \
        return fill(#name, to, &value, sizeof value, count);                                                           \
    }
FILLS(cuMemsetD8, uint8_t)
FILLS(cuMemsetD16, uint16_t)
FILLS(cuMemsetD32, uint32_t)
