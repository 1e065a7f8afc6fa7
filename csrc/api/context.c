/* The context, and what can be asked about the machine. */
#include "api/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "cpu/cpu.h"
#include "driver/image.h"
#include "plan/gemm_backend.h"
#include "plan/row_op.h"
#ifdef NVFP4_DUMP
#include "api/debug.h"
#include "kernels/common/dump.h"
#endif

/* The kernels of every backend, and of the row ops. */
static driver *create_driver(void) {
    const kernel_set *sets[GEMM_BACKENDS + 2] = {&quantize_kernels, &moe_kernels};
    int32_t count = 2;
    for (int32_t b = 0; b < GEMM_BACKENDS; b++)
        if (gemm_backends[b] && gemm_backends[b]->kernels) sets[count++] = gemm_backends[b]->kernels;
    return driver_create(sets, count);
}

/* The number of the backend with this name; -1: there is none. */
static int32_t backend_number(const char *name) {
    int32_t i = GEMM_BACKENDS - 1;
    while (i >= 0 && strcmp(name, nvfp4_backend_name((nvfp4_backend)i)) != 0) i--;
    return i;
}

/* getenv races with a thread that changes the environment, which Python does under its lock alone. So variables are
 * read here, once, and not by calls. The driver reads its own in driver_create. */
static void read_environment(nvfp4_context *c) {
    const char *backend = getenv("NVFP4_BACKEND");
    if (backend) snprintf(c->backend_text, sizeof c->backend_text, "%s", backend);
    c->default_backend = *c->backend_text ? backend_number(c->backend_text) : NVFP4_AUTO;
    cpu_isa_read_environment();
}

nvfp4_status nvfp4_create(nvfp4_context **context) {
    nvfp4_context *c = calloc(1, sizeof *c);
    if (c) c->driver = create_driver(), c->overrides = overrides_create();
    if (!c || !c->driver || !c->overrides) {
        nvfp4_destroy(c);
        return fail(NVFP4_OUT_OF_MEMORY, "no memory for a context");
    }
    read_environment(c);
    *context = c;
    return NVFP4_OK;
}

void nvfp4_destroy(nvfp4_context *context) {
    if (!context) return;
    driver_destroy(context->driver);
    overrides_destroy(context->overrides);
    free(context);
}

nvfp4_status nvfp4_set_candidate(nvfp4_context *context, int32_t candidate) {
    if (candidate < 0) return REJECT("candidate", ("is %d", candidate), ("must not be negative"));
    context->rank = candidate;
    return NVFP4_OK;
}

static nvfp4_status check_backend(int32_t backend) {
    char names[160];
    if (backend >= NVFP4_AUTO && backend < GEMM_BACKENDS) return NVFP4_OK;
    return REJECT("backend", ("is %d", backend),
                  ("must be %s", list_backends(names, sizeof names, ALL_BACKENDS, "%s (%d)", " or ")));
}

nvfp4_status nvfp4_set_default_backend(nvfp4_context *context, nvfp4_backend backend) {
    nvfp4_status status = check_backend((int32_t)backend);
    if (!status) context->default_backend = (int32_t)backend;
    return status;
}

void nvfp4_clear_overrides(nvfp4_context *context) {
    overrides_clear(context->overrides);
}

#ifdef NVFP4_DUMP
size_t nvfp4_dump_bytes(void) {
    return sizeof(sm100_dump);
}

void nvfp4_dump(nvfp4_context *context, void *memory, int32_t cta, int32_t k_block) {
    context->dump = memory;
    context->dump_cta = cta;
    context->dump_k_block = k_block;
}

nvfp4_status nvfp4_placement(nvfp4_context *context, int32_t device, void *memory) {
    const device_props *props;
    nvfp4_status status = driver_ready(context->driver, device, &props);
    return status ? status : driver_set_placement(context->driver, device, memory);
}
#endif

const char *nvfp4_backend_name(nvfp4_backend backend) {
    if (backend == NVFP4_AUTO) return "auto";
    return (uint32_t)backend < GEMM_BACKENDS ? gemm_backends[backend]->name : "unknown";
}

char *list_backends(char *text, size_t size, uint32_t backends, const char *format, const char *last) {
    size_t length = 0;
    for (int32_t i = NVFP4_AUTO; i < GEMM_BACKENDS && length < size; i++) {
        if (!(backends >> i & 1)) continue;
        const char *separator = length == 0 ? "" : backends >> i == 1 ? last : ", ";
        length += (size_t)snprintf(text + length, size - length, "%s", separator);
        if (length < size)
            length += (size_t)snprintf(text + length, size - length, format, nvfp4_backend_name((nvfp4_backend)i), i);
    }
    return text;
}

uint32_t device_backends(const nvfp4_context *context, int32_t device) {
    uint32_t backends = 0;
    for (int32_t b = 0; b < GEMM_BACKENDS; b++) {
        const kernel_set *kernels = gemm_backends[b] ? gemm_backends[b]->kernels : NULL;
        if (kernels && (device == NVFP4_HOST || driver_has_set(context->driver, device, kernels))) backends |= 1u << b;
    }
    return backends;
}

static uint32_t host_backends(void) {
    uint32_t backends = 0;
    for (int32_t b = 0; b < GEMM_BACKENDS; b++)
        if (gemm_backends[b] && !gemm_backends[b]->kernels) backends |= 1u << b;
    return backends;
}

static nvfp4_status reject_environment(const nvfp4_context *context) {
    char names[160];
    return REJECT("NVFP4_BACKEND", ("is '%s'", context->backend_text),
                  ("must be %s", list_backends(names, sizeof names, ALL_BACKENDS, "%s", " or ")));
}

static nvfp4_status reject_backend(const nvfp4_context *context, const target *where, int32_t backend) {
    nvfp4_device device;
    nvfp4_status status = driver_device(context->driver, where->device, &device);
    if (status) return status;
    char names[160];
    list_backends(names, sizeof names, device_backends(context, where->device), "%s", ", ");
    return REJECT_AS(NVFP4_UNSUPPORTED, "backend",
                     ("is %s, whose code runs on %s; cuda:%d is %s, of compute capability %d.%d",
                      gemm_backends[backend]->name, gemm_backends[backend]->runs_on, where->device, device.name,
                      device.compute_capability / 10, device.compute_capability % 10),
                     ("must be %s or " WORD_AUTO " there", names));
}

nvfp4_status find_target(nvfp4_context *context, int32_t backend, int32_t device, target *where) {
    char names[160];
    *where = (target){0};
    nvfp4_status status = check_backend(backend);
    if (status) return status;
    if (device == NVFP4_HOST && backend == NVFP4_AUTO) {
        backend = context->default_backend;
        if (backend < NVFP4_AUTO) return reject_environment(context);
    }
    const int names_host = backend != NVFP4_AUTO && !gemm_backends[backend]->kernels;
    if (device == NVFP4_HOST && (backend == NVFP4_AUTO || names_host)) {
        where->backends = names_host ? 1u << backend : host_backends();
        return NVFP4_OK;
    }
    if (names_host)
        return REJECT("backend",
                      ("is %s but the tensors are on cuda:%d", nvfp4_backend_name((nvfp4_backend)backend), device),
                      ("must be %s or " WORD_AUTO,
                       list_backends(names, sizeof names, device_backends(context, NVFP4_HOST), "%s", ", ")));
    where->on_gpu = 1;
    where->host_memory = device == NVFP4_HOST;
    where->device = where->host_memory ? 0 : device;
    status = driver_ready(context->driver, where->device, &where->props);
    if (!status && where->host_memory && !driver_reads_host_memory(context->driver, 0))
        return CONTRADICTS("backend", ("is %s but the tensors are on the CPU, whose memory cuda:0 cannot read",
                                       nvfp4_backend_name((nvfp4_backend)backend)));
    if (status) return status;
    where->backends = device_backends(context, where->device);
    if (backend != NVFP4_AUTO) where->backends &= 1u << backend;
    return where->backends ? NVFP4_OK : reject_backend(context, where, backend);
}

nvfp4_status find_workspace(const nvfp4_call *how, int64_t bytes, void **workspace) {
    *workspace = how->workspace;
    if (bytes == 0) return NVFP4_OK;
    if (how->allocate) {
        clear_error();
        *workspace = how->allocate(how->owner, (size_t)bytes);
        if (*workspace) return NVFP4_OK;
        if (*nvfp4_last_error()) return NVFP4_OUT_OF_MEMORY; /* our own front ends say why */
        return fail(NVFP4_OUT_OF_MEMORY, "workspace: no memory for %lld bytes", (long long)bytes);
    }
    if (how->workspace && (uint64_t)bytes <= how->workspace_size && (uintptr_t)how->workspace % 16 == 0)
        return NVFP4_OK;
    return REJECT("workspace", ("has %zu bytes at %p", how->workspace_size, how->workspace),
                  ("must have %lld, aligned to 16", (long long)bytes));
}

nvfp4_status nvfp4_driver_info(nvfp4_context *context, int32_t *count, int32_t *version) {
    nvfp4_status status = driver_open(context->driver);
    *count = driver_device_count(context->driver);
    *version = driver_version(context->driver);
    return status;
}

nvfp4_status nvfp4_device_info(nvfp4_context *context, int32_t device, nvfp4_device *info) {
    return driver_device(context->driver, device, info);
}

nvfp4_status nvfp4_init_device(nvfp4_context *context, int32_t device) {
    const device_props *props;
    return driver_ready(context->driver, device, &props);
}

const char *nvfp4_cpu_kernel(void) {
    cpu_isa isa;
    return cpu_isa_detect(&isa) ? "none" : cpu_isa_name(isa);
}

const char *nvfp4_embedded_archs(void) {
    return nvfp4_image_archs;
}

int32_t nvfp4_driver_needed(void) {
    return driver_version_needed();
}
