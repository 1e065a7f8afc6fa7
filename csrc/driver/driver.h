/* The CUDA driver, opened at first use: libcuda.so.1, or the library that NVFP4_LIBCUDA names. */
#ifndef NVFP4_DRIVER_DRIVER_H
#define NVFP4_DRIVER_DRIVER_H

#include "common/device_props.h"
#include "common/kernel_set.h"
#include "common/tensor_layout.h"
#include "nvfp4.h"

typedef struct driver driver;

/* `sets` lists the kernels that a device gets; the array is copied. At most DRIVER_MAX_SETS. Reads the environment.
 * NULL: no memory. */
enum { DRIVER_MAX_SETS = 16 };
driver *driver_create(const kernel_set *const *sets, int32_t count);
void driver_destroy(driver *d);

/* Opens the library and its entry points, once; a failure is kept and returned by every later call. */
nvfp4_status driver_open(driver *d);
int32_t driver_version(const driver *d);
/* The oldest version that runs the GPU code of this build. */
int32_t driver_version_needed(void);
int32_t driver_device_count(const driver *d);

/* Describes a device; needs no context on it. */
nvfp4_status driver_device(driver *d, int32_t device, nvfp4_device *info);

/* Retains the device's primary context and loads every kernel, so that a launch allocates and loads nothing; safe
 * while a CUDA graph is being captured. A no-op after the first time. */
nvfp4_status driver_ready(driver *d, int32_t device, const device_props **props);

/* 1 if the device has the kernels of a set. driver_ready must have succeeded. */
int driver_has_set(const driver *d, int32_t device, const kernel_set *set);

/* 1 if the device reads and writes pageable host memory (GH200, GB200; an emulator). */
int driver_reads_host_memory(driver *d, int32_t device);

/* Encodes the 128 bytes of a tensor map at an address aligned to 64; no device work. driver_ready must have succeeded.
 */
nvfp4_status driver_encode(driver *d, int32_t device, const tensor_layout *tensor, void *map);

/* A kernel to enqueue, and the stream (CUstream) of the device's primary context. */
typedef struct kernel_launch {
    const kernel_set *set;
    int32_t kernel;                 /* of the set */
    int32_t cluster;                /* CTAs of a cluster, along x; 0: no clusters */
    int64_t grid_x, grid_y, grid_z; /* z: 0 is 1 */
    int32_t shared_bytes;           /* dynamic shared memory of a CTA */
    void **params;
    void *stream;
} kernel_launch;

/* driver_ready must have succeeded, and the device have the set. */
nvfp4_status driver_launch(driver *d, int32_t device, const kernel_launch *launch);
/* Synchronises a stream. Only calls on host memory need it. */
nvfp4_status driver_synchronize(driver *d, int32_t device, void *stream);

#ifdef NVFP4_DUMP
/* Tells the kernels on a device where to record placements (kernels/common/placement.h); NULL: not to. */
nvfp4_status driver_set_placement(driver *d, int32_t device, void *memory);
#endif

/* A debug build with NVFP4_WATCHDOG waits here for what was launched, and puts a wait that did not end into an error
 * message; on a stream that is being captured it does nothing. Other builds never wait. */
#ifdef NVFP4_WATCHDOG
nvfp4_status driver_watch(driver *d, int32_t device, void *stream);
#else
static inline nvfp4_status driver_watch(driver *d, int32_t device, void *stream) {
    (void)d, (void)device, (void)stream;
    return NVFP4_OK;
}
#endif

#endif
