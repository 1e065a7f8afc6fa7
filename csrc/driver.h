/* The CUDA driver, opened at first use: libcuda.so.1, or the library that NVFP4_LIBCUDA names. */
#ifndef NVFP4_DRIVER_H
#define NVFP4_DRIVER_H

#include "device/tensor_map.h"
#include "kernels.h"
#include "nvfp4.h"
#include "plan.h"

typedef struct driver driver;

driver *driver_create(void);
void driver_destroy(driver *d);

/* Opens the library and its entry points, once; a failure is remembered and said again at every later call. */
nvfp4_status driver_open(driver *d);
int32_t driver_version(const driver *d);
int32_t driver_device_count(const driver *d);

/* What the device is; needs no context on it. */
nvfp4_status driver_device(driver *d, int32_t device, nvfp4_device *info);

/* Retains the device's primary context and loads every kernel, so that a launch allocates and loads nothing; safe
 * while a CUDA graph is being captured. A no-op after the first time. */
nvfp4_status driver_ready(driver *d, int32_t device, const device_facts **facts);

/* 1 if the device reads and writes ordinary host memory (GH200, GB200; an emulator). */
int driver_reads_host_memory(driver *d, int32_t device);

/* Encodes what a kernel's tensor copies will read; asks the device nothing. driver_ready must have succeeded. */
nvfp4_status driver_encode(driver *d, int32_t device, const tensor_layout *tensor, tensor_map *map);

/* What to enqueue, and on which queue (CUstream) of the device's primary context. */
typedef struct kernel_launch {
    kernel_id kernel;
    int32_t cluster;           /* CTAs a cluster; 0: no clusters */
    int64_t grid;              /* CTAs in all, or along x */
    int64_t grid_y;            /* along y; 0: 1 */
    int32_t more_shared_bytes; /* of dynamic shared memory a CTA, beyond what the kernel always has */
    void **arguments;
    void *queue;
} kernel_launch;

/* driver_ready must have succeeded, and plan.c have chosen the kernel for this device. */
nvfp4_status driver_launch(driver *d, int32_t device, const kernel_launch *launch);
/* Waits for a queue. Only calls on host memory need it. */
nvfp4_status driver_wait(driver *d, int32_t device, void *queue);

#endif
