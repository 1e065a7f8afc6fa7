/* Driver API: copies and fills. Device memory is host memory. Every copy, asynchronous or not, first waits for the
 * work queued before it. */
#include <stdlib.h>

#include "driver/driver.h"
#include "machine/guard.h"

/* HOST, DEVICE: what the call says that an address is. EITHER: it may be both. */
typedef enum { HOST, DEVICE, EITHER } side;

/* A range that begins in an allocation must end in it. Device memory must be allocated, unless host memory counts. */
static CUresult in_bounds(const char *call, side where, uint64_t address, size_t bytes) {
    uint64_t start, size;
    if (!address) return driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: a null pointer", call);
    if (!device_range(address, &start, &size)) {
        if (device_is_reserved(address) || (where == DEVICE && !host_memory_allowed))
            return driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: 0x%llx is in no allocation", call,
                                  (unsigned long long)address);
        return CUDA_SUCCESS;
    }
    if (bytes <= start + size - address) return CUDA_SUCCESS;
    return driver_rejectf(CUDA_ERROR_INVALID_VALUE,
                          "%s: %zu bytes from 0x%llx on, in an allocation that ends after %llu", call, bytes,
                          (unsigned long long)address, (unsigned long long)(start + size - address));
}

typedef struct {
    void *to;
    const void *from;
    size_t bytes;
} move;

static void do_move(void *argument) {
    const move *m = argument;
    memmove(m->to, m->from, m->bytes);
}

static CUresult copy_row(const char *call, uint64_t to, uint64_t from, size_t bytes) {
    move m = {(void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes};
    const void *address = guarded(do_move, &m);
    if (!address) return CUDA_SUCCESS;
    return driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: address %p is not mapped in this process", call, address);
}

static CUresult copy(const char *call, side to_is, uint64_t to, side from_is, uint64_t from, size_t bytes) {
    READY;
    ENTER;
    result = driver_flush();
    if (!result && bytes) result = in_bounds(call, to_is, to, bytes);
    if (!result && bytes) result = in_bounds(call, from_is, from, bytes);
    if (!result && bytes) result = copy_row(call, to, from, bytes);
    LEAVE;
}

API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy("cuMemcpy", EITHER, to, EITHER, from, bytes);
}
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    NEED_STREAM(stream);
    return copy("cuMemcpyAsync", EITHER, to, EITHER, from, bytes);
}
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy("cuMemcpyHtoD", DEVICE, to, HOST, (uintptr_t)from, bytes);
}
API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy("cuMemcpyDtoH", HOST, (uintptr_t)to, DEVICE, from, bytes);
}
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy("cuMemcpyDtoD", DEVICE, to, DEVICE, from, bytes);
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    NEED_STREAM(stream);
    return cuMemcpyHtoD_v2(to, from, bytes);
}
API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    NEED_STREAM(stream);
    return cuMemcpyDtoH_v2(to, from, bytes);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    NEED_STREAM(stream);
    return cuMemcpyDtoD_v2(to, from, bytes);
}

/* CUDA_MEMCPY2D */
typedef struct {
    size_t x, y;
    int memory; /* 1 host, 2 device, 3 array, 4 unified */
    const void *host;
    CUdeviceptr device;
    void *array;
    size_t pitch;
} plane;
typedef struct {
    plane from, to;
    size_t width, height;
} copy_2d;

/* Of one side of a copy of two dimensions: the address of its first byte, in bounds from there to its last. */
static CUresult first_of(const char *call, const plane *p, size_t width, size_t height, uint64_t *first,
                         size_t *pitch) {
    if (p->memory != 1 && p->memory != 2 && p->memory != 4)
        return driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: memory of type %d; there are no arrays here", call,
                              p->memory);
    *pitch = p->pitch ? p->pitch : width;
    uint64_t start = p->memory == 1 ? (uint64_t)(uintptr_t)p->host : p->device, rows = 0, offset = 0;
    if ((height > 1 && *pitch < width) || __builtin_mul_overflow(height - 1, *pitch, &rows) ||
        __builtin_add_overflow(rows, width, &rows) || __builtin_mul_overflow(p->y, *pitch, &offset))
        return driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: rows of %zu bytes, a pitch of %zu", call, width, *pitch);
    *first = start + offset + p->x;
    return in_bounds(call, p->memory == 1 ? HOST : p->memory == 2 ? DEVICE : EITHER, *first, (size_t)rows);
}

static CUresult copy_plane(const char *call, const copy_2d *c) {
    NEED(c);
    ENTER;
    uint64_t to = 0, from = 0;
    size_t to_pitch = 0, from_pitch = 0;
    int some = c->width && c->height;
    result = driver_flush();
    if (!result && some) result = first_of(call, &c->to, c->width, c->height, &to, &to_pitch);
    if (!result && some) result = first_of(call, &c->from, c->width, c->height, &from, &from_pitch);
    for (size_t i = 0; !result && some && i < c->height; i++)
        result = copy_row(call, to + i * to_pitch, from + i * from_pitch, c->width);
    LEAVE;
}
API CUresult cuMemcpy2D_v2(const copy_2d *c) {
    return copy_plane("cuMemcpy2D", c);
}
API CUresult cuMemcpy2DUnaligned_v2(const copy_2d *c) {
    return copy_plane("cuMemcpy2DUnaligned", c);
}
API CUresult cuMemcpy2DAsync_v2(const copy_2d *c, CUstream stream) {
    NEED_STREAM(stream);
    return copy_plane("cuMemcpy2DAsync", c);
}

typedef struct {
    uint8_t *to;
    const void *value;
    size_t size, pitch, width, height;
} filling;

static void do_fill(void *argument) {
    const filling *f = argument;
    for (size_t y = 0; y < f->height; y++)
        for (size_t x = 0; x < f->width; x++) memcpy(f->to + y * f->pitch + x * f->size, f->value, f->size);
}

static CUresult fill(const char *call, CUdeviceptr to, const void *value, size_t size, size_t pitch, size_t width,
                     size_t height) {
    READY;
    ENTER;
    size_t bytes = 0, rows = 0;
    result = driver_flush();
    if (!result && (to % size || (height > 1 && pitch % size)))
        result = driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: 0x%llx is not a multiple of %zu", call,
                                (unsigned long long)to, size);
    if (!result && width && height) {
        if (__builtin_mul_overflow(width, size, &bytes) || __builtin_mul_overflow(height - 1, pitch, &rows) ||
            __builtin_add_overflow(bytes, rows, &bytes) || (height > 1 && pitch < width * size))
            result =
                driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: %zu elements in each of %zu rows", call, width, height);
        else
            result = in_bounds(call, DEVICE, to, bytes);
        filling f = {(uint8_t *)(uintptr_t)to, value, size, pitch, width, height};
        const void *address = result ? NULL : guarded(do_fill, &f);
        if (address)
            result =
                driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: address %p is not mapped in this process", call, address);
    }
    LEAVE;
}

#define FILLS(name, name_2d, type)                                                                                     \
    API CUresult name##_v2(CUdeviceptr to, type value, size_t count) {                                                 \
        return fill(#name, to, &value, sizeof value, 0, count, 1);                                                     \
    }                                                                                                                  \
    API CUresult name##Async(CUdeviceptr to, type value, size_t count, CUstream stream) {                              \
        NEED_STREAM(stream);                                                                                           \
        return fill(#name, to, &value, sizeof value, 0, count, 1);                                                     \
    }                                                                                                                  \
    API CUresult name_2d##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) {                 \
        return fill(#name_2d, to, &value, sizeof value, pitch, width, height);                                         \
    }                                                                                                                  \
    API CUresult name_2d##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,                 \
                                CUstream stream) {                                                                     \
        NEED_STREAM(stream);                                                                                           \
        return fill(#name_2d, to, &value, sizeof value, pitch, width, height);                                         \
    }
FILLS(cuMemsetD8, cuMemsetD2D8, uint8_t)
FILLS(cuMemsetD16, cuMemsetD2D16, uint16_t)
FILLS(cuMemsetD32, cuMemsetD2D32, uint32_t)
