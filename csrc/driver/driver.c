/* The CUDA driver, opened at first use. Types and numbers below are the driver API's (cuda.h of CUDA 13.0), declared
 * here so that the package builds where no toolkit is; tests/core/cuda_abi.c holds them against the real header. */
#include "driver/driver.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "driver/cuda_abi.h"
#include "driver/image.h"
#ifdef NVFP4_WATCHDOG
#include <threads.h>
#include <time.h>

#include "driver/watchdog.h"
#endif

#define ENTRY_POINT_VERSION  12000 /* all of those below are there, as they are declared here */
#define MAX_DEVICES          64
#define DEFAULT_SHARED_BYTES (48 * 1024) /* a kernel may have more by an attribute (CUDA programming guide) */
#define MAX_KERNELS          256

/* result name(arguments): one row an entry point, fetched under this name at ENTRY_POINT_VERSION. */
#define ENTRY_POINTS(X)                                                                                                \
    X(cuInit, (unsigned flags))                                                                                        \
    X(cuDriverGetVersion, (int *version))                                                                              \
    X(cuGetErrorString, (CUresult error, const char **text))                                                           \
    X(cuDeviceGetCount, (int *count))                                                                                  \
    X(cuDeviceGet, (CUdevice * device, int ordinal))                                                                   \
    X(cuDeviceGetName, (char *name, int length, CUdevice device))                                                      \
    X(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))                                              \
    X(cuDeviceTotalMem, (size_t *bytes, CUdevice device))                                                              \
    X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                                \
    X(cuDevicePrimaryCtxRelease, (CUdevice device))                                                                    \
    X(cuCtxGetCurrent, (CUcontext * context))                                                                          \
    X(cuCtxPushCurrent, (CUcontext context))                                                                           \
    X(cuCtxPopCurrent, (CUcontext * context))                                                                          \
    X(cuThreadExchangeStreamCaptureMode, (int *mode))                                                                  \
    X(cuLibraryLoadData, (CUlibrary * library, const void *code, int *jit_options, void **jit_values,                  \
                          unsigned jit_count, int *options, void **values, unsigned count))                            \
    X(cuLibraryUnload, (CUlibrary library))                                                                            \
    X(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name))                                    \
    X(cuKernelGetFunction, (CUfunction * function, CUkernel kernel))                                                   \
    X(cuKernelGetAttribute, (int *value, int attribute, CUkernel kernel, CUdevice device))                             \
    X(cuKernelSetAttribute, (int attribute, int value, CUkernel kernel, CUdevice device))                              \
    X(cuTensorMapEncodeTiled,                                                                                          \
      (void *map, int type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides,               \
       const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int l2_promotion, int fill))           \
    X(cuOccupancyMaxActiveClusters, (int *clusters, CUfunction function, const CUlaunchConfig *config))                \
    X(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra))           \
    X(cuStreamSynchronize, (CUstream stream))                                                                          \
    DEBUG_ENTRY_POINTS(X)                                                                                              \
    WATCHDOG_ENTRY_POINTS(X)

#if defined(NVFP4_DUMP) || defined(NVFP4_WATCHDOG)
#define DEBUG_ENTRY_POINTS(X)                                                                                          \
    X(cuLibraryGetGlobal, (CUdeviceptr * address, size_t *bytes, CUlibrary library, const char *name))                 \
    X(cuMemcpyHtoD, (CUdeviceptr to, const void *from, size_t bytes))
#else
#define DEBUG_ENTRY_POINTS(X)
#endif

#ifdef NVFP4_WATCHDOG
#define WATCHDOG_ENTRY_POINTS(X)                                                                                       \
    X(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                                                   \
    X(cuStreamIsCapturing, (CUstream stream, int *status))                                                             \
    X(cuStreamQuery, (CUstream stream))
#else
#define WATCHDOG_ENTRY_POINTS(X)
#endif

typedef struct device_state {
    atomic_int ready;
    CUdevice handle;
    CUcontext primary;
    device_props props;
    uint32_t sets; /* bit i: the device has kernels of set i */
    CUfunction functions[MAX_KERNELS];
    uint8_t pdl[MAX_KERNELS]; /* launched programmatically: kernel_entry has pdl, and the code waits */
} device_state;

typedef struct loaded_image {
    CUlibrary library; /* NULL: none */
    int rejected;      /* the driver has no use for the image on such a device */
} loaded_image;

struct driver {
    pthread_mutex_t lock;
    atomic_int opened;
    nvfp4_status open_status;
    char open_error[512];
    void *library;
    char *library_name; /* NVFP4_LIBCUDA; NULL: it names none */
    int32_t version, device_count;
    const kernel_set *sets[DRIVER_MAX_SETS];
    int32_t set_count;
    int32_t first[DRIVER_MAX_SETS + 1]; /* kernel 0 of each set among all; then the number of all */
    loaded_image *images;               /* as nvfp4_images; each is loaded with the first device that takes it */
    device_state devices[MAX_DEVICES];
#ifdef NVFP4_WATCHDOG
    watchdog_record *records; /* one an image, which every device writes */
    const char **launched;    /* and the name of its kernel that was launched last */
    uint64_t watchdog_clocks, watchdog_seconds;
#endif
#define X(name, arguments) CUresult(*name) arguments;
    ENTRY_POINTS(X)
#undef X
};

#ifdef NVFP4_WATCHDOG
static uint64_t watchdog_setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}
#endif

/* 0: no memory. */
static int read_environment(driver *d) {
    const char *name = getenv("NVFP4_LIBCUDA");
#ifdef NVFP4_WATCHDOG
    d->watchdog_clocks = watchdog_setting("NVFP4_WATCHDOG_CLOCKS", UINT64_C(4000000000));
    d->watchdog_seconds = watchdog_setting("NVFP4_WATCHDOG_SECONDS", 60);
#endif
    if (!name || !*name) return 1;
    const size_t bytes = strlen(name) + 1;
    d->library_name = calloc(1, bytes);
    if (d->library_name) memcpy(d->library_name, name, bytes);
    return d->library_name != NULL;
}

driver *driver_create(const kernel_set *const *sets, int32_t count) {
    driver *d = count <= DRIVER_MAX_SETS ? calloc(1, sizeof *d) : NULL;
    if (!d) return NULL;
    for (int32_t i = 0; i < count; i++) {
        d->sets[i] = sets[i];
        d->first[i + 1] = d->first[i] + sets[i]->count;
    }
    d->set_count = count;
    if (d->first[count] > MAX_KERNELS || !read_environment(d)) {
        free(d);
        return NULL;
    }
    pthread_mutex_init(&d->lock, NULL);
    return d;
}

static int32_t set_index(const driver *d, const kernel_set *set) {
    int32_t i = 0;
    while (i < d->set_count && d->sets[i] != set) i++;
    return i;
}

void driver_destroy(driver *d) {
    if (!d) return;
    /* At process exit the driver may be gone already; its calls then fail, which is harmless here. */
    for (int32_t i = 0; i < d->device_count; i++)
        if (atomic_load(&d->devices[i].ready)) d->cuDevicePrimaryCtxRelease(d->devices[i].handle);
    for (int i = 0; d->images && i < nvfp4_image_count; i++)
        if (d->images[i].library) d->cuLibraryUnload(d->images[i].library);
    free(d->images);
    free(d->library_name);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static const char *error_text(driver *d, CUresult error) {
    const char *text = NULL;
    return d->cuGetErrorString(error, &text) == CUDA_SUCCESS && text ? text : "unknown error";
}

static nvfp4_status driver_error(driver *d, const char *what, CUresult error) {
    return fail(NVFP4_DRIVER, "the CUDA driver refused %s: %s (%d)", what, error_text(d, error), error);
}

int32_t driver_version_needed(void) {
    return nvfp4_image_toolkit / 1000 * 1000;
}

/* The release of NVIDIA's driver that came with CUDA 12.0 or 13.0. */
static int release_needed(void) {
    return driver_version_needed() < 13000 ? 525 : 580;
}

static nvfp4_status open_library(driver *d) {
    const char *name = d->library_name ? d->library_name : "libcuda.so.1";
    d->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!d->library)
        return fail(NVFP4_DRIVER, "no CUDA driver: %s; a GPU needs the NVIDIA driver of release %d or later", dlerror(),
                    release_needed());
    CUresult (*get)(const char *, void **, int, uint64_t, int *);
    *(void **)&get = dlsym(d->library, "cuGetProcAddress_v2");
    CUresult (*get_version)(int *);
    *(void **)&get_version = dlsym(d->library, "cuDriverGetVersion");
    int version = 0;
    if (get_version && get_version(&version) == CUDA_SUCCESS) d->version = version;
    const int needed = driver_version_needed();
    if (!get || version < needed)
        return fail(
            NVFP4_DRIVER,
            "the CUDA driver (%s) supports CUDA %d.%d; this build of nvfp4 needs %d.0 (NVIDIA driver release "
            "%d) or later: install a newer driver, or, on a data center GPU, NVIDIA's package cuda-compat-%d-0%s",
            name, version / 1000, version % 1000 / 10, needed / 1000, release_needed(), needed / 1000,
            needed > ENTRY_POINT_VERSION ? ", or build nvfp4 with NVRTC 12.9, for release 525" : "");
#define X(entry, arguments)                                                                                            \
    if (get(#entry, (void **)&d->entry, ENTRY_POINT_VERSION, 0, NULL) != CUDA_SUCCESS || !d->entry)                    \
        return fail(NVFP4_DRIVER, "the CUDA driver (%s) has no entry point %s", name, #entry);
    ENTRY_POINTS(X)
#undef X
    CUresult error = d->cuInit(0);
    if (error != CUDA_SUCCESS && error != CUDA_ERROR_NO_DEVICE) return driver_error(d, "to start (cuInit)", error);
    int count = 0;
    if (error == CUDA_SUCCESS && (error = d->cuDeviceGetCount(&count)))
        return driver_error(d, "cuDeviceGetCount", error);
    d->device_count = count < MAX_DEVICES ? count : MAX_DEVICES;
    for (int i = 0; i < d->device_count; i++)
        if ((error = d->cuDeviceGet(&d->devices[i].handle, i))) return driver_error(d, "cuDeviceGet", error);
    return NVFP4_OK;
}

nvfp4_status driver_open(driver *d) {
    if (!atomic_load_explicit(&d->opened, memory_order_acquire)) {
        pthread_mutex_lock(&d->lock);
        if (!atomic_load(&d->opened)) {
            d->open_status = open_library(d);
            if (d->open_status) snprintf(d->open_error, sizeof d->open_error, "%s", nvfp4_last_error());
            atomic_store_explicit(&d->opened, 1, memory_order_release);
        }
        pthread_mutex_unlock(&d->lock);
    }
    return d->open_status ? fail(d->open_status, "%s", d->open_error) : NVFP4_OK;
}

int32_t driver_version(const driver *d) {
    return d->version;
}
int32_t driver_device_count(const driver *d) {
    return d->device_count;
}

static nvfp4_status check_ordinal(driver *d, int32_t device) {
    nvfp4_status status = driver_open(d);
    if (status) return status;
    if (device >= 0 && device < d->device_count) return NVFP4_OK;
    if (d->device_count == 0) return fail(NVFP4_DRIVER, "no CUDA device: the driver has none");
    return fail(NVFP4_DRIVER, "device: is cuda:%d; the driver has %d device(s)", device, d->device_count);
}

static int attribute(driver *d, CUdevice device, int which) {
    int value = 0;
    return d->cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

static device_props read_props(driver *d, CUdevice handle) {
    const int64_t bus_bytes = attribute(d, handle, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8;
    const int64_t memory_khz = attribute(d, handle, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
    return (device_props){
        .compute_capability = 10 * attribute(d, handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                              attribute(d, handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        .sm_count = attribute(d, handle, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        .shared_per_block = attribute(d, handle, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        .shared_per_sm = attribute(d, handle, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        .clock_mhz = attribute(d, handle, CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000,
        .memory_gb_s = (int32_t)(2 * memory_khz * bus_bytes / 1000000), /* double data rate */
        .l2_bytes = attribute(d, handle, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
    };
}

/* Why this build cannot run on a device of these properties, "" if it can. */
static const char *unusable_reason(const device_props *props) {
    if (nvfp4_image_count == 0) return "this build of nvfp4 has no GPU code (it was built with NVFP4_CUDA=0)";
    if (props->compute_capability < 80)
        return "its compute capability is below 8.0; nvfp4 needs an Ampere GPU or a later one";
    return "";
}

nvfp4_status driver_device(driver *d, int32_t device, nvfp4_device *info) {
    nvfp4_status status = check_ordinal(d, device);
    if (status) return status;
    CUdevice handle = d->devices[device].handle;
    device_props props = read_props(d, handle);
    size_t bytes = 0;
    memset(info, 0, sizeof *info);
    CUresult error = d->cuDeviceGetName(info->name, sizeof info->name, handle);
    if (!error) error = d->cuDeviceTotalMem(&bytes, handle);
    if (error) return driver_error(d, "to describe the device", error);
    info->compute_capability = props.compute_capability;
    info->sm_count = props.sm_count;
    info->shared_per_block = props.shared_per_block;
    info->shared_per_sm = props.shared_per_sm;
    info->clock_mhz = props.clock_mhz;
    info->memory_gb_s = props.memory_gb_s;
    info->l2_bytes = props.l2_bytes;
    info->memory_bytes = (int64_t)bytes;
    info->reads_host_memory = attribute(d, handle, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) != 0;
    info->unusable_reason = unusable_reason(&props);
    info->usable = info->unusable_reason[0] == 0;
    return NVFP4_OK;
}

int driver_reads_host_memory(driver *d, int32_t device) {
    return !check_ordinal(d, device) &&
           attribute(d, d->devices[device].handle, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
}

static int runs_on(const kernel_set *set, const device_props *props) {
    return props->compute_capability >= set->min_capability && props->compute_capability <= set->max_capability;
}

/* Whether an error only says that no image of an optional set has code for the device. The set is then left out, and
 * planning takes another backend. */
static int is_absent(const kernel_set *set, CUresult error) {
    return set->optional && error == CUDA_ERROR_NO_BINARY_FOR_GPU;
}

/* The image of a file that suits the device best of those that suit it less than `*bound`, which becomes that one's
 * fitness; -1: none. */
static int best_image(const char *source, const device_props *props, int *bound) {
    int best = -1, best_fitness = 0;
    for (int i = 0; i < nvfp4_image_count; i++) {
        if (strcmp(nvfp4_images[i].source, source) != 0) continue;
        const int fitness = image_fitness(nvfp4_images[i].arch, props->compute_capability);
        if (fitness <= best_fitness || fitness >= *bound) continue;
        best = i;
        best_fitness = fitness;
    }
    *bound = best_fitness;
    return best;
}

/* Loads an image, which holds no device's state, unless it is loaded. */
static nvfp4_status load_image(driver *d, int i, CUresult *error) {
    loaded_image *image = &d->images[i];
    *error = image->rejected ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
    if (image->library || image->rejected) return NVFP4_OK;
    unsigned char *code;
    nvfp4_status status = image_unpack(&nvfp4_images[i], &code);
    if (status) return status;
    *error = d->cuLibraryLoadData(&image->library, code, NULL, NULL, 0, NULL, NULL, 0);
    if (*error) image->library = NULL;
    image->rejected = *error == CUDA_ERROR_NO_BINARY_FOR_GPU;
    free(code); /* the driver keeps a copy */
    return NVFP4_OK;
}

/* Finds a kernel in the best image of its file that the driver takes: an emulated GPU takes PTX alone. */
static nvfp4_status find_kernel(driver *d, const device_state *state, const kernel_set *set, const kernel_entry *entry,
                                CUkernel *kernel) {
    CUresult error = CUDA_ERROR_NO_BINARY_FOR_GPU;
    for (int bound = INT_MAX; error == CUDA_ERROR_NO_BINARY_FOR_GPU;) {
        const int i = best_image(entry->source, &state->props, &bound);
        if (i < 0) break;
        nvfp4_status status = load_image(d, i, &error);
        if (status) return status;
        if (!error) error = d->cuLibraryGetKernel(kernel, d->images[i].library, entry->name);
    }
    if (!error || is_absent(set, error)) return NVFP4_OK;
    return driver_error(d, "to load the GPU code", error);
}

/* A kernel that needs more shared memory than the device has is left out: no plan takes it there. */
static nvfp4_status load_function(driver *d, device_state *state, const kernel_set *set, const kernel_entry *entry,
                                  int32_t index) {
    const int32_t bytes = entry->shared_bytes;
    CUkernel kernel = NULL;
    nvfp4_status status = find_kernel(d, state, set, entry, &kernel);
    if (status || !kernel || bytes > state->props.shared_per_block) return status;
    CUfunction function = NULL;
    CUresult error = d->cuKernelGetFunction(&function, kernel);
    if (is_absent(set, error)) return NVFP4_OK;
    if (!error && (bytes > DEFAULT_SHARED_BYTES || entry->more_shared))
        error = d->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, state->props.shared_per_block,
                                        kernel, state->handle);
    int ptx_version = 0; /* machine code of sm_90 may come from PTX of sm_80, which has no griddepcontrol */
    if (!error && entry->pdl)
        error = d->cuKernelGetAttribute(&ptx_version, CU_FUNC_ATTRIBUTE_PTX_VERSION, kernel, state->handle);
    if (error) return driver_error(d, entry->name, error);
    state->functions[index] = function;
    state->pdl[index] = ptx_version >= 90;
    return NVFP4_OK;
}

static nvfp4_status load_sets(driver *d, device_state *state) {
    nvfp4_status status = NVFP4_OK;
    for (int32_t s = 0; s < d->set_count; s++) {
        const kernel_set *set = d->sets[s];
        if (!runs_on(set, &state->props)) continue;
        int32_t loaded = 0, absent = 0;
        for (int32_t k = 0; k < set->count && !status; k++) {
            const int32_t index = d->first[s] + k;
            status = load_function(d, state, set, &set->kernels[k], index);
            if (state->functions[index])
                loaded++;
            else if (set->kernels[k].shared_bytes <= state->props.shared_per_block)
                absent++;
        }
        if (loaded && !absent) state->sets |= 1u << s;
    }
    return status;
}

/* The fewest clusters of `size` that any loaded kernel has room for, as device_props has it. A launch for one CTA an SM
 * takes all of its shared memory. */
static int32_t ask_for_clusters(driver *d, const device_state *state, int32_t ctas_per_sm, unsigned size) {
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {size, 1, 1}};
    int least = INT32_MAX;
    for (int32_t i = 0; i < d->first[d->set_count]; i++) {
        int32_t s = 0;
        while (i >= d->first[s + 1]) s++;
        const kernel_entry *entry = &d->sets[s]->kernels[i - d->first[s]];
        if (!state->functions[i] || entry->ctas_per_sm < ctas_per_sm) continue;
        const CUlaunchConfig config = {
            .gridDimX = size,
            .gridDimY = 1,
            .gridDimZ = 1,
            .blockDimX = (unsigned)entry->threads,
            .blockDimY = 1,
            .blockDimZ = 1,
            .sharedMemBytes = (unsigned)(ctas_per_sm == 1 ? state->props.shared_per_block : entry->shared_bytes),
            .attrs = &attribute,
            .numAttrs = 1,
        };
        int fit = 0;
        if (d->cuOccupancyMaxActiveClusters(&fit, state->functions[i], &config)) return 0;
        if (fit < least) least = fit;
    }
    return least == INT32_MAX ? 0 : least > 0 ? least : -1;
}

#if defined(NVFP4_DUMP) || defined(NVFP4_WATCHDOG)

/* Writes a variable of the kernels in image i, with a context current; one that none of them has is left out. */
static CUresult set_variable(driver *d, const device_state *state, int i, const char *name, const void *value,
                             size_t bytes) {
    CUdeviceptr variable;
    if (!d->images[i].library || !image_fitness(nvfp4_images[i].arch, state->props.compute_capability))
        return CUDA_SUCCESS; /* the device has another one */
    CUresult error = d->cuLibraryGetGlobal(&variable, NULL, d->images[i].library, name);
    if (error == CUDA_ERROR_NOT_FOUND) return CUDA_SUCCESS;
    return error ? error : d->cuMemcpyHtoD(variable, value, bytes);
}

#endif

#ifdef NVFP4_WATCHDOG

/* Tells the kernels of the current device where to record waits. The records stay until the process ends: a kernel
 * that hangs may write them at any time. */
static nvfp4_status start_watchdog(driver *d, const device_state *state) {
    const size_t bytes = (size_t)nvfp4_image_count * sizeof *d->records;
    CUresult error = CUDA_SUCCESS;
    if (!d->records) {
        void *memory;
        error = d->cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
        if (error) return driver_error(d, "cuMemHostAlloc", error);
        d->records = memset(memory, 0, bytes);
    }
    if (!d->launched) d->launched = calloc((size_t)nvfp4_image_count, sizeof *d->launched);
    if (!d->launched) return fail(NVFP4_OUT_OF_MEMORY, "no memory to load the GPU code");
    for (int i = 0; i < nvfp4_image_count && !error; i++) {
        const watchdog_state watchdog = {.record = &d->records[i], .limit = d->watchdog_clocks};
        error = set_variable(d, state, i, "nvfp4_watchdog", &watchdog, sizeof watchdog);
    }
    return error ? driver_error(d, "the watchdog's state", error) : NVFP4_OK;
}

#else

static nvfp4_status start_watchdog(driver *d, const device_state *state) {
    (void)d, (void)state;
    return NVFP4_OK;
}

#endif

/* Needs the primary context to be current. */
static nvfp4_status load_in_context(driver *d, device_state *state) {
    if (!d->images) d->images = calloc((size_t)nvfp4_image_count, sizeof *d->images);
    if (!d->images) return fail(NVFP4_OUT_OF_MEMORY, "no memory to load the GPU code");
    nvfp4_status status = load_sets(d, state);
    for (int32_t i = 0; i < 2 && !status; i++)
        for (int32_t j = 0; j < 3; j++) state->props.clusters[i][j] = ask_for_clusters(d, state, 1 + i, 2u << j);
    return status ? status : start_watchdog(d, state);
}

static nvfp4_status load_device(driver *d, int32_t device) {
    device_state *state = &d->devices[device];
    state->props = read_props(d, state->handle);
    const char *reason = unusable_reason(&state->props);
    if (*reason) {
        char name[256] = "";
        d->cuDeviceGetName(name, sizeof name, state->handle);
        return fail(NVFP4_UNSUPPORTED, "cuda:%d (%s, compute capability %d.%d) cannot run this: %s", device, name,
                    state->props.compute_capability / 10, state->props.compute_capability % 10, reason);
    }
    CUresult error = d->cuDevicePrimaryCtxRetain(&state->primary, state->handle);
    if (error) return driver_error(d, "a context on the device", error);
    /* Loading code may allocate, which the global capture mode forbids while any graph is being captured. */
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    d->cuThreadExchangeStreamCaptureMode(&mode);
    nvfp4_status status;
    if ((error = d->cuCtxPushCurrent(state->primary))) {
        status = driver_error(d, "cuCtxPushCurrent", error);
    } else {
        status = load_in_context(d, state);
        CUcontext popped;
        d->cuCtxPopCurrent(&popped);
    }
    d->cuThreadExchangeStreamCaptureMode(&mode);
    if (status) d->cuDevicePrimaryCtxRelease(state->handle);
    return status;
}

nvfp4_status driver_ready(driver *d, int32_t device, const device_props **props) {
    nvfp4_status status = check_ordinal(d, device);
    if (status) return status;
    device_state *state = &d->devices[device];
    if (!atomic_load_explicit(&state->ready, memory_order_acquire)) {
        pthread_mutex_lock(&d->lock);
        if (!atomic_load(&state->ready)) {
            status = load_device(d, device);
            if (!status) atomic_store_explicit(&state->ready, 1, memory_order_release);
        }
        pthread_mutex_unlock(&d->lock);
    }
    *props = &state->props;
    return status;
}

/* Makes the primary context current where it is not; *pushed says whether to pop it. */
static CUresult enter(driver *d, const device_state *state, int *pushed) {
    CUcontext current = NULL;
    CUresult error = d->cuCtxGetCurrent(&current);
    *pushed = 0;
    if (error || current == state->primary) return error;
    error = d->cuCtxPushCurrent(state->primary);
    *pushed = !error;
    return error;
}

static void leave(driver *d, int pushed) {
    CUcontext popped;
    if (pushed) d->cuCtxPopCurrent(&popped);
}

#ifdef NVFP4_DUMP

nvfp4_status driver_set_placement(driver *d, int32_t device, void *memory) {
    int pushed;
    CUresult error = enter(d, &d->devices[device], &pushed);
    for (int i = 0; i < nvfp4_image_count && !error; i++)
        error = set_variable(d, &d->devices[device], i, "nvfp4_placement", &memory, sizeof memory);
    leave(d, pushed);
    return error ? driver_error(d, "nvfp4_placement", error) : NVFP4_OK;
}

#endif

nvfp4_status driver_encode(driver *d, int32_t device, const tensor_layout *t, void *map) {
    static const uint32_t steps[] = {1, 1, 1, 1, 1};
    int type = t->element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
    int swizzle = t->swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                  : t->swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                     : CU_TENSOR_MAP_SWIZZLE_NONE;
    int pushed;
    CUresult error = enter(d, &d->devices[device],
                           &pushed); /* without a context the driver returns an error (measured on an H200) */
    if (!error)
        error = d->cuTensorMapEncodeTiled(map, type, (uint32_t)t->rank, (void *)t->data, t->dims, t->strides, t->box,
                                          steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    leave(d, pushed);
    if (!error) return NVFP4_OK;
    char what[80];
    snprintf(what, sizeof what, "a tensor map of %s (cuTensorMapEncodeTiled)", t->name);
    return driver_error(d, what, error);
}

int driver_has_set(const driver *d, int32_t device, const kernel_set *set) {
    return d->devices[device].sets >> set_index(d, set) & 1;
}

nvfp4_status driver_launch(driver *d, int32_t device, const kernel_launch *launch) {
    const device_state *state = &d->devices[device];
    const kernel_entry *kernel = &launch->set->kernels[launch->kernel];
    if (launch->grid_x > INT32_MAX)
        return fail(NVFP4_UNSUPPORTED, "the problem needs %lld CTAs of %s; the GPU takes at most %d",
                    (long long)launch->grid_x, kernel->name, INT32_MAX);
    CUlaunchAttribute attributes[2];
    CUlaunchConfig config = {
        .gridDimX = (unsigned)launch->grid_x,
        .gridDimY = (unsigned)launch->grid_y,
        .gridDimZ = launch->grid_z ? (unsigned)launch->grid_z : 1,
        .blockDimX = (unsigned)kernel->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)launch->shared_bytes,
        .hStream = launch->stream,
        .attrs = attributes,
    };
    if (launch->cluster)
        attributes[config.numAttrs++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                                            .value.clusterDim = {(unsigned)launch->cluster, 1, 1}};
    const int32_t index = d->first[set_index(d, launch->set)] + launch->kernel;
    if (state->pdl[index])
        attributes[config.numAttrs++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                                            .value.programmaticStreamSerializationAllowed = 1};
    const CUfunction function = state->functions[index];
    int pushed;
    CUresult error = enter(d, state, &pushed);
    if (!error) error = d->cuLaunchKernelEx(&config, function, launch->params, NULL);
    leave(d, pushed);
#ifdef NVFP4_WATCHDOG
    for (int i = 0; i < nvfp4_image_count; i++)
        if (strcmp(nvfp4_images[i].source, kernel->source) == 0) d->launched[i] = kernel->name;
#endif
    return error ? driver_error(d, kernel->name, error) : NVFP4_OK;
}

nvfp4_status driver_synchronize(driver *d, int32_t device, void *stream) {
    int pushed;
    CUresult error = enter(d, &d->devices[device], &pushed);
    if (!error) error = d->cuStreamSynchronize(stream);
    leave(d, pushed);
    return error ? driver_error(d, "cuStreamSynchronize", error) : NVFP4_OK;
}

#ifdef NVFP4_WATCHDOG

/* The message of a stream that failed or did not end. */
static nvfp4_status watchdog_error(driver *d, const char *how) {
    for (int i = 0; i < nvfp4_image_count; i++) {
        char text[900];
        if (!d->launched[i] || !watchdog_describe(&d->records[i], text, sizeof text)) continue;
        fail(NVFP4_DRIVER, "%s %s. It waits at %s", d->launched[i], how, text);
        /* Before an exception is shown PyTorch may free a tensor, which aborts the process in a lost context. */
        fprintf(stderr, "nvfp4: %s\n", nvfp4_last_error());
        return NVFP4_DRIVER;
    }
    return fail(NVFP4_DRIVER, "the stream %s; no wait of our kernels is recorded", how);
}

nvfp4_status driver_watch(driver *d, int32_t device, void *stream) {
    const uint64_t seconds = d->watchdog_seconds;
    const struct timespec pause = {.tv_nsec = 20000};
    struct timespec start, now;
    int pushed, capturing = 0;
    CUresult error = enter(d, &d->devices[device], &pushed);
    if (!error) error = d->cuStreamIsCapturing(stream, &capturing);
    if (error || capturing) {
        leave(d, pushed);
        return error ? driver_error(d, "cuStreamIsCapturing", error) : NVFP4_OK;
    }
    timespec_get(&start, TIME_UTC);
    now = start;
    while ((error = d->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY &&
           (uint64_t)(now.tv_sec - start.tv_sec) < seconds) {
        thrd_sleep(&pause, NULL);
        timespec_get(&now, TIME_UTC);
    }
    leave(d, pushed);
    if (!error) return NVFP4_OK;
    char how[160];
    if (error == CUDA_ERROR_NOT_READY)
        snprintf(how, sizeof how, "has not ended after %llu s", (unsigned long long)seconds);
    else
        snprintf(how, sizeof how, "failed: %s (%d)", error_text(d, error), error);
    return watchdog_error(d, how);
}

#endif
