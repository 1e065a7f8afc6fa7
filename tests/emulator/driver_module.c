/* The emulated driver: modules, kernels, launches and tensor maps. */
#define _GNU_SOURCE /* asprintf */
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"
#include "image.h"
#include "tensor_map.h"

/* ---- modules -------------------------------------------------------------------------------------------------------
 */

static CUresult load(CUmodule *out, const void *image, const char *file) {
    driver_open();
    char *error = NULL;
    char *text = image_ptx(image, driver.device, &error);
    if (!text) return driver_refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, error);
    module *parsed = module_load(text, file, &error);
    free(text);
    if (!parsed) return driver_refuse(CUDA_ERROR_INVALID_PTX, error);
    struct loaded *m = calloc(1, sizeof *m);
    if (!m) abort();
    m->module = parsed;
    *out = m;
    return CUDA_SUCCESS;
}

API CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    ENTER;
    result = load(out, image, "ptx");
    LEAVE;
}

API CUresult cuModuleLoad(CUmodule *out, const char *path) {
    FILE *in = fopen(path, "rb");
    if (!in) return driver_refusef(CUDA_ERROR_FILE_NOT_FOUND, "cuModuleLoad: %s cannot be read", path);
    ENTER;
    char *bytes = NULL;
    size_t size = 0, got;
    do {
        bytes = realloc(bytes, size + 65537);
        if (!bytes) abort();
        got = fread(bytes + size, 1, 65536, in);
        size += got;
    } while (got);
    bytes[size] = 0;
    fclose(in);
    char *name = strdup(path); /* the module keeps the pointer for its messages */
    result = load(out, bytes, name);
    free(bytes);
    if (result) free(name);
    LEAVE;
}

API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(out, image);
}
API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) {
    return cuModuleLoadData(out, image);
}

API CUresult cuModuleUnload(CUmodule m) {
    ENTER;
    result = driver_flush();
    while (m->kernels) {
        struct kernel *k = m->kernels;
        m->kernels = k->next;
        free(k);
    }
    module_free(m->module);
    free(m);
    LEAVE;
}

API CUresult cuLibraryLoadData(CUlibrary *out, const void *code, int *jit_options, void **jit_values,
                               unsigned jit_count, int *options, void **values, unsigned count) {
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return cuModuleLoadData(out, code);
}
API CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit_options, void **jit_values,
                                   unsigned jit_count, int *options, void **values, unsigned count) {
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return cuModuleLoad(out, path);
}
API CUresult cuLibraryUnload(CUlibrary library) {
    return cuModuleUnload(library);
}
API CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library) {
    *out = library;
    return CUDA_SUCCESS;
}
API CUresult cuModuleGetLoadingMode(int *mode) {
    *mode = 1; /* eager: everything is checked when it is loaded */
    return CUDA_SUCCESS;
}

/* ---- kernels --------------------------------------------------------------------------------------------------------
 */

static int threads_allowed(const function *f) {
    const int *n = f->maxntid[0] ? f->maxntid : f->reqntid;
    int threads = n[0] ? n[0] * (n[1] ? n[1] : 1) * (n[2] ? n[2] : 1) : 1024;
    return threads < 1024 ? threads : 1024;
}

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name) {
    ENTER;
    struct kernel *k = m->kernels;
    while (k && strcmp(k->entry->function->name, name) != 0) k = k->next;
    if (!k) {
        char *error = NULL;
        entry *e = module_entry(m->module, name, &error);
        if (!e) {
            free(error);
            result = CUDA_ERROR_NOT_FOUND; /* asking is no fault: a caller may try several modules */
        } else {
            k = calloc(1, sizeof *k);
            if (!k) abort();
            const function *f = e->function;
            k->entry = e;
            k->in = m;
            k->next = m->kernels;
            m->kernels = k;
            k->attributes[FUNCTION_MAX_THREADS] = threads_allowed(f);
            k->attributes[FUNCTION_SHARED_BYTES] = (int)e->static_shared;
            k->attributes[FUNCTION_LOCAL_BYTES] = (int)e->local_bytes;
            k->attributes[FUNCTION_REGISTERS] = f->maxnreg ? f->maxnreg : 64;
            k->attributes[FUNCTION_PTX_VERSION] = m->module->sm;
            k->attributes[FUNCTION_BINARY_VERSION] = driver.device->cc;
            k->attributes[FUNCTION_MAX_DYNAMIC_SHARED] = 48 * 1024 - (int)e->static_shared;
            k->attributes[FUNCTION_CLUSTER_REQUIRED] = f->reqnctapercluster[0] != 0;
            for (int i = 0; i < 3; i++) k->attributes[FUNCTION_CLUSTER_X + i] = f->reqnctapercluster[i];
        }
    }
    if (!result) *out = k;
    LEAVE;
}

API CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
    return cuModuleGetFunction(out, library, name);
}
API CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
    *out = kernel;
    return CUDA_SUCCESS;
}
API CUresult cuFuncGetModule(CUmodule *out, CUfunction f) {
    *out = f->in;
    return CUDA_SUCCESS;
}
API CUresult cuFuncGetName(const char **name, CUfunction f) {
    *name = f->entry->function->name;
    return CUDA_SUCCESS;
}
API CUresult cuKernelGetName(const char **name, CUkernel f) {
    return cuFuncGetName(name, f);
}

API CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size) {
    const variable *p = f->entry->function->parameters;
    while (p && index--) p = p->next;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    *offset = (size_t)p->address;
    if (size) *size = (size_t)p->bytes;
    return CUDA_SUCCESS;
}
API CUresult cuKernelGetParamInfo(CUkernel f, size_t index, size_t *offset, size_t *size) {
    return cuFuncGetParamInfo(f, index, offset, size);
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule m, const char *name) {
    const variable *v = module_variable(m->module, name);
    if (!v || (v->space != SPACE_GLOBAL && v->space != SPACE_CONST)) return CUDA_ERROR_NOT_FOUND;
    if (pointer) *pointer = (CUdeviceptr)v->address;
    if (bytes) *bytes = (size_t)v->bytes;
    return CUDA_SUCCESS;
}
API CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name) {
    return cuModuleGetGlobal_v2(pointer, bytes, library, name);
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction f) {
    if (attribute < 0 || attribute >= FUNCTION_ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    *value = f->attributes[attribute];
    return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value) {
    if (attribute < FUNCTION_MAX_DYNAMIC_SHARED || attribute >= FUNCTION_ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    int most = driver.device->shared_per_block - (int)f->entry->static_shared;
    if (attribute == FUNCTION_MAX_DYNAMIC_SHARED && (value < 0 || value > most))
        return driver_refusef(CUDA_ERROR_INVALID_VALUE, "%s: %d bytes of dynamic shared memory; %s has at most %d",
                              f->entry->function->name, value, driver.device->key, most);
    f->attributes[attribute] = value;
    return CUDA_SUCCESS;
}
API CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel f, CUdevice device) {
    (void)device;
    return cuFuncGetAttribute(value, attribute, f);
}
API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel f, CUdevice device) {
    (void)device;
    return cuFuncSetAttribute(f, attribute, value);
}
API CUresult cuFuncSetCacheConfig(CUfunction f, int config) {
    (void)f, (void)config;
    return CUDA_SUCCESS;
}

/* ---- launches -------------------------------------------------------------------------------------------------------
 */

enum { MOST_QUEUED = 64 }; /* launches that wait before they are run without being waited for */

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
        default: /* priorities, access policies, carve-outs and the like change no result */
            if (a->id < 0 || a->id > LAUNCH_ATTRIBUTE_LAST)
                return driver_refusef(CUDA_ERROR_INVALID_VALUE, "launch attribute %d is not known", a->id);
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
        return driver_refusef(
            CUDA_ERROR_INVALID_CLUSTER_SIZE,
            "%s: a cluster of %llu CTAs; more than %d need the attribute NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
            f->entry->function->name, (unsigned long long)size, driver.device->cluster_max);
    return CUDA_SUCCESS;
}

/* The parameter block, from an array of pointers or from one buffer (CU_LAUNCH_PARAM_BUFFER_POINTER 1, _SIZE 2). */
static CUresult read_parameters(struct kernel *f, void **arguments, void **extra, uint8_t *block) {
    const entry *e = f->entry;
    if (arguments || !extra) {
        int i = 0;
        for (const variable *p = e->function->parameters; p; p = p->next, i++) {
            if (!arguments || !arguments[i])
                return driver_refusef(CUDA_ERROR_INVALID_VALUE, "%s: argument %d is missing", e->function->name, i);
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
        return driver_refusef(CUDA_ERROR_INVALID_VALUE, "%s: %zu bytes of arguments; it takes %lld", e->function->name,
                              size, (long long)e->parameter_bytes);
    memcpy(block, buffer, (size_t)e->parameter_bytes);
    return CUDA_SUCCESS;
}

static CUresult enqueue(struct kernel *f, launch *l) {
    if (driver.machine->error) return driver_flush();
    if (f->attributes[FUNCTION_MAX_DYNAMIC_SHARED] < (int)l->dynamic_shared)
        return driver_refusef(CUDA_ERROR_INVALID_VALUE,
                              "%s: %u bytes of dynamic shared memory; MAX_DYNAMIC_SHARED_SIZE_BYTES is %d",
                              f->entry->function->name, l->dynamic_shared, f->attributes[FUNCTION_MAX_DYNAMIC_SHARED]);
    int64_t resident = (int64_t)machine_occupancy(driver.machine, l) * driver.device->sm_count;
    if (l->cooperative && (int64_t)l->grid[0] * l->grid[1] * l->grid[2] > resident)
        return driver_refusef(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "%s: at most %lld blocks are resident at once",
                              f->entry->function->name, (long long)resident);
    char *refusal = machine_launch(driver.machine, l);
    if (refusal) return driver_refuse(CUDA_ERROR_INVALID_VALUE, refusal);
    return ++driver.queued > MOST_QUEUED ? driver_flush() : CUDA_SUCCESS;
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **arguments, void **extra) {
    ENTER;
    launch l = {.entry = f->entry,
                .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                .cluster = {1, 1, 1},
                .dynamic_shared = config->sharedMemBytes};
    l.parameters = calloc(1, (size_t)f->entry->parameter_bytes + 1);
    if (!l.parameters) abort();
    result = driver.machine ? read_attributes(config, &l) : CUDA_ERROR_NOT_INITIALIZED;
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

static launch shape_of(CUfunction f, int threads, size_t shared) {
    return (launch){.entry = f->entry,
                    .grid = {1, 1, 1},
                    .block = {(uint32_t)threads, 1, 1},
                    .cluster = {1, 1, 1},
                    .dynamic_shared = (uint32_t)shared};
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f, int threads, size_t shared,
                                                                  unsigned flags) {
    (void)flags;
    if (threads < 1 || !driver.machine) return CUDA_ERROR_INVALID_VALUE;
    launch l = shape_of(f, threads, shared);
    *blocks = machine_occupancy(driver.machine, &l);
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads, size_t shared) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, 0);
}
/* The block size, a multiple of a warp, with which most threads are resident. */
API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *threads, CUfunction f,
                                                       size_t (*shared_of_block)(int), size_t shared, int limit,
                                                       unsigned flags) {
    (void)flags;
    if (!driver.machine) return CUDA_ERROR_NOT_INITIALIZED;
    int most = f->attributes[FUNCTION_MAX_THREADS], best = 0;
    if (limit && limit < most) most = limit;
    *grid = *threads = 0;
    for (int n = most / WARP_LANES * WARP_LANES; n > 0; n -= WARP_LANES) {
        launch l = shape_of(f, n, shared_of_block ? shared_of_block(n) : shared);
        int blocks = machine_occupancy(driver.machine, &l);
        if (blocks * n <= best) continue;
        best = blocks * n;
        *threads = n;
        *grid = blocks * driver.device->sm_count;
    }
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *threads, CUfunction f, size_t (*shared_of_block)(int),
                                              size_t shared, int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, threads, f, shared_of_block, shared, limit, 0);
}
API CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction f, const CUlaunchConfig *config) {
    launch l = shape_of(f, (int)(config->blockDimX * config->blockDimY * config->blockDimZ), config->sharedMemBytes);
    CUresult result = driver.machine ? read_attributes(config, &l) : CUDA_ERROR_NOT_INITIALIZED;
    if (result) return result;
    int size = (int)(l.cluster[0] * l.cluster[1] * l.cluster[2]);
    *clusters = machine_occupancy(driver.machine, &l) * (driver.device->sm_count / size);
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction f, const CUlaunchConfig *config) {
    (void)config;
    *size = f->attributes[FUNCTION_NON_PORTABLE_CLUSTER] ? 16 : driver.device->cluster_max;
    return CUDA_SUCCESS;
}

/* ---- tensor maps ----------------------------------------------------------------------------------------------------
 */

API CUresult cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                                    const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                    int interleave, int swizzle, int l2, int fill) {
    ENTER;
    driver_open();
    char error[512];
    if (tensor_map_encode_tiled(map, type, rank, address, dims, strides, box, element_strides, interleave, swizzle, l2,
                                fill, driver.device, error, sizeof error))
        result = driver_refusef(CUDA_ERROR_INVALID_VALUE, "cuTensorMapEncodeTiled: %s", error);
    LEAVE;
}
