/* The context, and the one question every call asks of it: where does this run? */
#ifndef NVFP4_CONTEXT_H
#define NVFP4_CONTEXT_H

#include "cpu/cpu.h"
#include "driver.h"
#include "nvfp4.h"
#include "preferences.h"

struct nvfp4_context {
    driver *driver;
    int32_t candidate; /* nvfp4_set_candidate */
    preferences preferences;
#ifdef NVFP4_DUMP
    sm100_dump *dump; /* what nvfp4_dump asked for */
    int32_t dump_cta, dump_block;
#endif
};

typedef struct place {
    int on_gpu;
    int32_t device;  /* ordinal, where on_gpu */
    int host_memory; /* the GPU works on host memory: the call must wait for it */
    const device_facts *facts;
    int32_t candidate; /* nvfp4_set_candidate, where on_gpu */
    const preferences *preferences;
    int32_t family;  /* nvfp4_backend of the GPU's kernels, where on_gpu */
    int32_t by_rule; /* 1: nobody asked for that family */
    cpu_isa isa;     /* where not on_gpu */
} place;

/* Resolves backend (nvfp4_backend) for tensors on `device` (NVFP4_HOST or an ordinal). A GPU backend takes host memory
 * only on a device that reads it. */
nvfp4_status find_place(nvfp4_context *context, int32_t backend, int32_t device, place *where);

#endif
