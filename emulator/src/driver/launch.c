/* Driver API: launches and occupancy. */
#include <stdio.h>
#include <stdlib.h>

#include "driver/driver.h"

enum { MOST_QUEUED = 64 }; /* queued launches after which the queue runs without a wait */

static CUresult read_attributes(const CUlaunchConfig *config, launch *l) {
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *a = &config->attrs[i];
        switch (a->id) {
        case LAUNCH_ATTRIBUTE_COOPERATIVE:
            l->cooperative = a->value.flag;
            break;
        case LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            l->explicit_cluster = 1;
            memcpy(l->cluster, a->value.dimension, sizeof l->cluster);
            break;
        case LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            l->programmatic = a->value.flag;
            break;
        case 0: /* CU_LAUNCH_ATTRIBUTE_IGNORE */
            break;
        default: /* priorities, access policies, carve-outs and the like change no result */
            if (a->id < 0 || a->id > LAUNCH_ATTRIBUTE_LAST)
                return driver_rejectf(CUDA_ERROR_INVALID_VALUE, "launch attribute %d is not known", a->id);
        }
    }
    return CUDA_SUCCESS;
}

static CUresult set_cluster(struct kernel *f, launch *l) {
    const int *required = f->entry->function->reqnctapercluster;
    for (int i = 0; i < 3 && required[0] && !l->explicit_cluster; i++)
        l->cluster[i] = required[i] ? (uint32_t)required[i] : 1;
    if (required[0]) l->explicit_cluster = 1;
    uint64_t size = (uint64_t)l->cluster[0] * l->cluster[1] * l->cluster[2];
    if (size > (uint64_t)driver.device->cluster_max && !f->attributes[FUNCTION_NON_PORTABLE_CLUSTER])
        return driver_rejectf(
            CUDA_ERROR_INVALID_CLUSTER_SIZE,
            "%s: a cluster of %llu CTAs; more than %d need the attribute NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
            function_title(f->entry->function), (unsigned long long)size, driver.device->cluster_max);
    return CUDA_SUCCESS;
}

/* The parameter block, from an array of pointers or from one buffer (CU_LAUNCH_PARAM_BUFFER_POINTER 1, _SIZE 2). */
static CUresult read_parameters(struct kernel *f, void **arguments, void **extra, uint8_t *block) {
    const entry *e = f->entry;
    if (arguments || !extra) {
        int i = 0;
        for (const variable *p = e->function->parameters; p; p = p->next, i++) {
            if (!arguments || !arguments[i])
                return driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: argument %d is missing",
                                      function_title(e->function), i);
            memcpy(block + p->address, arguments[i], (size_t)p->bytes);
        }
        return CUDA_SUCCESS;
    }
    const void *buffer = NULL;
    size_t size = 0;
    for (; *extra; extra += 2) {
        if ((uintptr_t)extra[0] == 1) buffer = extra[1];
        if ((uintptr_t)extra[0] == 2) size = *(size_t *)extra[1];
    }
    if (!buffer || size < (size_t)e->parameter_bytes)
        return driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: %zu bytes of arguments; it takes %lld",
                              function_title(e->function), size, (long long)e->parameter_bytes);
    memcpy(block, buffer, (size_t)e->parameter_bytes);
    return CUDA_SUCCESS;
}

static CUresult enqueue(struct kernel *f, launch *l) {
    CUresult sticky = driver_sticky();
    if (sticky) return sticky;
    if ((uint32_t)f->attributes[FUNCTION_MAX_DYNAMIC_SHARED] < l->dynamic_shared)
        return driver_rejectf(
            CUDA_ERROR_INVALID_VALUE, "%s: %u bytes of dynamic shared memory; MAX_DYNAMIC_SHARED_SIZE_BYTES is %d",
            function_title(f->entry->function), l->dynamic_shared, f->attributes[FUNCTION_MAX_DYNAMIC_SHARED]);
    if (l->cooperative && l->block[0] && l->block[1] && l->block[2]) {
        int size = (int)(l->cluster[0] * l->cluster[1] * l->cluster[2]);
        int64_t resident = (int64_t)size * machine_clusters(driver.machine, size, machine_occupancy(driver.machine, l));
        if (resident && (int64_t)l->grid[0] * l->grid[1] * l->grid[2] > resident) /* none: machine_launch says why */
            return driver_rejectf(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                                  "%s: at most %lld blocks are resident at once", function_title(f->entry->function),
                                  (long long)resident);
    }
    char *rejection = machine_launch(driver.machine, l);
    if (rejection) return driver_reject(CUDA_ERROR_INVALID_VALUE, rejection);
    return ++driver.queued > MOST_QUEUED ? driver_flush() : CUDA_SUCCESS;
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **arguments, void **extra) {
    NEED(config && (config->attrs || !config->numAttrs));
    NEED_HANDLE(HANDLE_KERNEL, f);
    NEED_STREAM(config->hStream);
    ENTER;
    launch l = {.entry = f->entry,
                .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                .cluster = {1, 1, 1},
                .dynamic_shared = config->sharedMemBytes};
    l.parameters = calloc(1, (size_t)f->entry->parameter_bytes + 1);
    if (!l.parameters) abort();
    result = read_attributes(config, &l);
    if (!result) result = set_cluster(f, &l);
    if (!result) result = read_parameters(f, arguments, extra, l.parameters);
    if (!result) result = enqueue(f, &l);
    free(l.parameters);
    LEAVE;
}

API CUresult cuLaunchKernel(CUfunction f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,
                            void **extra) {
    CUlaunchConfig config = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, NULL, 0};
    return cuLaunchKernelEx(&config, f, arguments, extra);
}

API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                       CUstream stream, void **arguments) {
    CUlaunchAttribute cooperative = {.id = LAUNCH_ATTRIBUTE_COOPERATIVE, .value.flag = 1};
    CUlaunchConfig config = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, &cooperative, 1};
    return cuLaunchKernelEx(&config, f, arguments, NULL);
}

/* ---- occupancy ---- */

static launch shape_of(CUfunction f, int threads, size_t shared) {
    return (launch){.entry = f->entry,
                    .grid = {1, 1, 1},
                    .block = {(uint32_t)threads, 1, 1},
                    .cluster = {1, 1, 1},
                    .dynamic_shared = (uint32_t)shared};
}

static int blocks_of(CUfunction f, int threads, size_t shared) {
    if (shared > (size_t)f->attributes[FUNCTION_MAX_DYNAMIC_SHARED]) return 0;
    launch l = shape_of(f, threads, shared);
    return machine_occupancy(driver.machine, &l);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f, int threads, size_t shared,
                                                                  unsigned flags) {
    NEED(blocks && threads >= 1 && flags <= 1);
    NEED_HANDLE(HANDLE_KERNEL, f);
    *blocks = blocks_of(f, threads, shared);
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads, size_t shared) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, 0);
}
/* The block size with the most resident threads; the largest of equals. */
API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction f, size_t (*shared_of)(int),
                                                       size_t shared, int limit, unsigned flags) {
    NEED(grid && block && flags <= 1);
    NEED_HANDLE(HANDLE_KERNEL, f);
    int most = f->attributes[FUNCTION_MAX_THREADS], best = 0;
    if (limit > 0 && limit < most) most = limit;
    for (int threads = (most + WARP_LANES - 1) / WARP_LANES * WARP_LANES; threads > 0; threads -= WARP_LANES) {
        int given = threads < most ? threads : most;
        int blocks = blocks_of(f, given, shared_of ? shared_of(given) : shared);
        if (blocks * given <= best) continue;
        best = blocks * given;
        *block = given;
        *grid = blocks * driver.device->sm_count;
    }
    return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, size_t (*shared_of)(int),
                                              size_t shared, int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, f, shared_of, shared, limit, 0);
}
API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction f, int blocks, int threads) {
    NEED(bytes && blocks >= 1 && threads >= 1);
    NEED_HANDLE(HANDLE_KERNEL, f);
    const device *d = driver.device;
    int64_t each = d->shared_per_sm / blocks - d->shared_reserved;
    if (each > d->shared_per_block) each = d->shared_per_block;
    each -= f->entry->static_shared;
    *bytes = each > 0 ? (size_t)each : 0;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction f, const CUlaunchConfig *config) {
    NEED(clusters && config && (config->attrs || !config->numAttrs));
    NEED_HANDLE(HANDLE_KERNEL, f);
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    NEED(threads >= 1 && threads <= 1024);
    launch l = shape_of(f, (int)threads, config->sharedMemBytes);
    CUresult result = read_attributes(config, &l);
    if (!result) result = set_cluster(f, &l);
    if (result) return result;
    uint32_t size = l.cluster[0] * l.cluster[1] * l.cluster[2];
    NEED(size);
    *clusters = machine_clusters(driver.machine, (int)size, blocks_of(f, (int)threads, config->sharedMemBytes));
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction f, const CUlaunchConfig *config) {
    NEED(size && config);
    NEED_HANDLE(HANDLE_KERNEL, f);
    *size = f->attributes[FUNCTION_NON_PORTABLE_CLUSTER] ? 16 : driver.device->cluster_max;
    return CUDA_SUCCESS;
}
