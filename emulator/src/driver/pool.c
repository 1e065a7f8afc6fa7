/* Driver API: memory pools. Pools share one allocator; a pool only remembers its attributes. */
#include <stdlib.h>

#include "driver/driver.h"

enum { ATTRIBUTES = 8, REUSE_ATTRIBUTES = 3 }; /* the first three are ints, the others 64-bit numbers */

struct pool {
    uint64_t attributes[ATTRIBUTES + 1];
};
typedef struct pool *CUmemoryPool;

static struct pool by_default = {{0, 1, 1, 1}};
static CUmemoryPool chosen = &by_default;

static int is_pool(CUmemoryPool p) {
    return p == &by_default || handle_known(HANDLE_POOL, p);
}
#define NEED_POOL(pool)                                                                                                \
    do {                                                                                                               \
        READY;                                                                                                         \
        if (!is_pool(pool)) return CUDA_ERROR_INVALID_HANDLE;                                                          \
    } while (0)

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    NEED(pool);
    NEED_DEVICE(device);
    *pool = &by_default;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    NEED(pool);
    NEED_DEVICE(device);
    *pool = chosen;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    NEED_DEVICE(device);
    NEED_POOL(pool);
    chosen = pool;
    return CUDA_SUCCESS;
}
API CUresult cuMemPoolCreate(CUmemoryPool *pool, const void *properties) {
    NEED(pool && properties);
    *pool = malloc(sizeof **pool);
    if (!*pool) return CUDA_ERROR_OUT_OF_MEMORY;
    **pool = by_default;
    handle_add(HANDLE_POOL, *pool);
    return CUDA_SUCCESS;
}
API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    NEED_HANDLE(HANDLE_POOL, pool);
    handle_remove(pool);
    if (chosen == pool) chosen = &by_default;
    free(pool);
    return CUDA_SUCCESS;
}
API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes) {
    (void)bytes;
    NEED_POOL(pool);
    return CUDA_SUCCESS;
}
API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, const void *value) {
    NEED_POOL(pool);
    NEED(value && attribute >= 1 && attribute <= ATTRIBUTES);
    pool->attributes[attribute] =
        attribute <= REUSE_ATTRIBUTES ? (uint64_t)*(const int *)value : *(const uint64_t *)value;
    return CUDA_SUCCESS;
}
API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    NEED_POOL(pool);
    NEED(value && attribute >= 1 && attribute <= ATTRIBUTES);
    if (attribute <= REUSE_ATTRIBUTES)
        *(int *)value = (int)pool->attributes[attribute];
    else
        *(uint64_t *)value = pool->attributes[attribute];
    return CUDA_SUCCESS;
}
API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const void *accesses, size_t count) {
    NEED_POOL(pool);
    NEED(accesses || !count);
    return CUDA_SUCCESS;
}
API CUresult cuMemPoolGetAccess(unsigned *flags, CUmemoryPool pool, const CUmemLocation *location) {
    NEED_POOL(pool);
    NEED(flags && location);
    *flags = 3; /* read and write */
    return CUDA_SUCCESS;
}
API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream);
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    NEED_POOL(pool);
    return cuMemAllocAsync(pointer, bytes, stream);
}
