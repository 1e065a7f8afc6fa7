/* The CUDA driver, opened at first use: libcuda.so.1, or the library that NVFP4_LIBCUDA names. */
#ifndef NVFP4_DRIVER_H
#define NVFP4_DRIVER_H

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

/* Enqueues a kernel on a queue (CUstream) of the device's primary context. driver_ready must have succeeded. */
nvfp4_status driver_launch(driver *d, int32_t device, kernel_id kernel, int64_t grid, void **arguments, void *queue);
/* Waits for a queue. Only calls on host memory need it. */
nvfp4_status driver_wait(driver *d, int32_t device, void *queue);

#endif
