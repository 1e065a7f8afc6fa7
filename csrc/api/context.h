/* The context, and where a call runs. */
#ifndef NVFP4_API_CONTEXT_H
#define NVFP4_API_CONTEXT_H

#include "driver/driver.h"
#include "nvfp4.h"
#include "plan/overrides.h"

struct nvfp4_context {
    driver *driver;
    _Atomic int32_t rank;            /* nvfp4_set_candidate */
    _Atomic int32_t default_backend; /* of calls on host memory that name none; -1: backend_text names none */
    char backend_text[64];           /* NVFP4_BACKEND, its beginning */
    plan_overrides *overrides;
#ifdef NVFP4_DUMP
    void *dump; /* nvfp4_dump */
    int32_t dump_cta, dump_k_block;
#endif
};

typedef struct target {
    uint32_t backends; /* bit b: gemm_backends[b] may run the call */
    int32_t on_gpu;
    int32_t device;      /* ordinal, where on_gpu */
    int32_t host_memory; /* the GPU works on host memory: the call synchronises */
    const device_props *props;
} target;

/* Resolves backend (nvfp4_backend) for tensors on `device` (NVFP4_HOST or an ordinal). A GPU backend takes host memory
 * only on a device that reads it. */
nvfp4_status find_target(nvfp4_context *context, int32_t backend, int32_t device, target *where);

/* The backends whose kernels the device has; device NVFP4_HOST: all that a GPU runs. */
uint32_t device_backends(const nvfp4_context *context, int32_t device);

/* The workspace of a call that needs so many bytes: the caller's, or what it allocates. */
nvfp4_status find_workspace(const nvfp4_call *how, int64_t bytes, void **workspace);

/* Writes "x, y or z" for error messages: the backends of the bit mask, each by a format that takes its name and its
 * number, the last one behind `last`. Returns text. */
char *list_backends(char *text, size_t size, uint32_t backends, const char *format, const char *last);
enum { ALL_BACKENDS = (1 << GEMM_BACKENDS) - 1 };

#endif
