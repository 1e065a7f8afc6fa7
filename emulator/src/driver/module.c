/* Driver API: modules and kernels. */
#define _GNU_SOURCE /* asprintf */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "ptx/image.h"

/* ---- modules ---- */

/* Whether PTX for this target runs on the device: .target sm_90a on 9.0 only, sm_100f on its family from there on,
 * others on what is newer too. */
static int runs_on(const module *m, const device *d) {
    if (m->suffix == 'a') return m->sm == d->cc;
    return m->sm <= d->cc && (m->suffix != 'f' || m->sm / 10 == d->cc / 10);
}

static CUresult load(CUmodule *out, const void *image, const char *file) {
    CUresult sticky = driver_sticky();
    if (sticky) return sticky;
    char *error = NULL;
    char *text = image_ptx(image, driver.device, &error);
    /* A program that has cubins of its own offers its PTX next. */
    if (!text && image && !strncmp(image, "\177ELF", 4)) return driver_decline(CUDA_ERROR_NO_BINARY_FOR_GPU, error);
    if (!text) return driver_reject(CUDA_ERROR_NO_BINARY_FOR_GPU, error);
    module *parsed = module_load(text, file, &error);
    free(text);
    if (!parsed) return driver_reject(CUDA_ERROR_INVALID_PTX, error);
    if (!runs_on(parsed, driver.device)) {
        driver_rejectf(CUDA_ERROR_NO_BINARY_FOR_GPU, "%s: its .target is %s, which %s does not run", file,
                       parsed->target, driver.device->key);
        module_free(parsed);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    struct loaded *m = calloc(1, sizeof *m);
    if (!m) abort();
    m->module = parsed;
    *out = m;
    handle_add(HANDLE_MODULE, m);
    return CUDA_SUCCESS;
}

API CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    NEED(out && image);
    ENTER;
    result = load(out, image, "ptx");
    LEAVE;
}

char *driver_read_file(const char *path, size_t *bytes) {
    FILE *in = fopen(path, "rb");
    char *data = NULL;
    size_t size = 0, got = 1;
    while (in && got) {
        data = realloc(data, size + 65537);
        if (!data) abort();
        got = fread(data + size, 1, 65536, in);
        size += got;
    }
    if (data) data[size] = 0;
    int good = in && !ferror(in);
    if (in) fclose(in);
    if (!good) free(data);
    if (bytes) *bytes = size;
    return good ? data : NULL;
}

API CUresult cuModuleLoad(CUmodule *out, const char *path) {
    NEED(out && path);
    char *image = driver_read_file(path, NULL);
    if (!image) return driver_rejectf(CUDA_ERROR_FILE_NOT_FOUND, "cuModuleLoad: %s cannot be read", path);
    ENTER;
    char *name = strdup(path); /* the module keeps the pointer for its messages */
    result = load(out, image, name);
    if (result)
        free(name);
    else
        (*out)->file = name;
    free(image);
    LEAVE;
}

/* Options are two arrays, of their numbers and values. */
static int are_given(unsigned count, const int *options, void **values) {
    return !count || (options && values);
}

API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values) {
    NEED(are_given(count, options, values));
    return cuModuleLoadData(out, image);
}
API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) {
    return cuModuleLoadData(out, image);
}

API CUresult cuModuleUnload(CUmodule m) {
    NEED_HANDLE(HANDLE_MODULE, m);
    ENTER;
    result = driver_flush(); /* a fault also removes the module from the machine */
    while (m->kernels) {
        struct kernel *k = m->kernels;
        m->kernels = k->next;
        handle_remove(k);
        free(k);
    }
    handle_remove(m);
    module_free(m->module);
    free(m->file);
    free(m);
    LEAVE;
}

API CUresult cuLibraryLoadData(CUlibrary *out, const void *code, int *jit_options, void **jit_values,
                               unsigned jit_count, int *options, void **values, unsigned count) {
    NEED(are_given(jit_count, jit_options, jit_values));
    NEED(are_given(count, options, values));
    return cuModuleLoadData(out, code);
}
API CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit_options, void **jit_values,
                                   unsigned jit_count, int *options, void **values, unsigned count) {
    NEED(are_given(jit_count, jit_options, jit_values));
    NEED(are_given(count, options, values));
    return cuModuleLoad(out, path);
}
API CUresult cuLibraryUnload(CUlibrary library) {
    return cuModuleUnload(library);
}
API CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library) {
    NEED(out);
    NEED_HANDLE(HANDLE_MODULE, library);
    *out = library;
    return CUDA_SUCCESS;
}
API CUresult cuModuleGetLoadingMode(int *mode) {
    NEED(mode);
    *mode = 1; /* eager: everything is checked when it is loaded */
    return CUDA_SUCCESS;
}

/* ---- kernels ---- */

static int threads_allowed(const function *f) {
    const int *n = f->maxntid[0] ? f->maxntid : f->reqntid;
    int threads = n[0] ? n[0] * (n[1] ? n[1] : 1) * (n[2] ? n[2] : 1) : 1024;
    return threads < 1024 ? threads : 1024;
}

static CUfunction make_kernel(CUmodule m, entry *e) {
    const function *f = e->function;
    struct kernel *k = calloc(1, sizeof *k);
    if (!k) abort();
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
    handle_add(HANDLE_KERNEL, k);
    return k;
}

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name) {
    NEED(out && name);
    NEED_HANDLE(HANDLE_MODULE, m);
    ENTER;
    struct kernel *k = m->kernels;
    while (k && strcmp(k->entry->function->name, name) != 0) k = k->next;
    if (!k) {
        char *error = NULL;
        entry *e = module_entry(m->module, name, &error);
        free(error);
        if (e) k = make_kernel(m, e);
    }
    if (k)
        *out = k;
    else
        result = CUDA_ERROR_NOT_FOUND; /* no error message: a caller may try several modules */
    LEAVE;
}

API CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule m) {
    NEED(count);
    NEED_HANDLE(HANDLE_MODULE, m);
    *count = 0;
    for (const function *f = m->module->functions; f; f = f->next) *count += f->is_entry && !f->is_declaration;
    return CUDA_SUCCESS;
}
/* In the order in which the file has them. */
API CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned count, CUmodule m) {
    NEED(out || !count);
    NEED_HANDLE(HANDLE_MODULE, m);
    unsigned i = 0;
    for (const function *f = m->module->functions; f && i < count; f = f->next)
        if (f->is_entry && !f->is_declaration && cuModuleGetFunction(&out[i], m, f->name) == CUDA_SUCCESS) i++;
    return CUDA_SUCCESS;
}
API CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library) {
    return cuModuleGetFunctionCount(count, library);
}
API CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned count, CUlibrary library) {
    return cuModuleEnumerateFunctions(out, count, library);
}
API CUresult cuFuncIsLoaded(int *state, CUfunction f) {
    NEED(state);
    NEED_HANDLE(HANDLE_KERNEL, f);
    *state = 1;
    return CUDA_SUCCESS;
}
API CUresult cuFuncLoad(CUfunction f) {
    NEED_HANDLE(HANDLE_KERNEL, f);
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
    return cuModuleGetFunction(out, library, name);
}
API CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
    NEED(out);
    NEED_HANDLE(HANDLE_KERNEL, kernel);
    *out = kernel;
    return CUDA_SUCCESS;
}
API CUresult cuFuncGetModule(CUmodule *out, CUfunction f) {
    NEED(out);
    NEED_HANDLE(HANDLE_KERNEL, f);
    *out = f->in;
    return CUDA_SUCCESS;
}
API CUresult cuFuncGetName(const char **name, CUfunction f) {
    NEED(name);
    NEED_HANDLE(HANDLE_KERNEL, f);
    *name = f->entry->function->name;
    return CUDA_SUCCESS;
}
API CUresult cuKernelGetName(const char **name, CUkernel f) {
    return cuFuncGetName(name, f);
}

API CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size) {
    NEED(offset);
    NEED_HANDLE(HANDLE_KERNEL, f);
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

/* Not in the real driver: the PTX type of a parameter ("f32"), "" for an array, NULL if there is none. */
API const char *emulator_parameter_type(CUfunction f, size_t index) {
    if (!handle_known(HANDLE_KERNEL, f)) return NULL;
    const variable *p = f->entry->function->parameters;
    while (p && index--) p = p->next;
    return !p ? NULL : p->is_array ? "" : type_name(p->type);
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule m, const char *name) {
    NEED(name);
    NEED_HANDLE(HANDLE_MODULE, m);
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
    NEED(value && attribute >= 0 && attribute < FUNCTION_ATTRIBUTES);
    NEED_HANDLE(HANDLE_KERNEL, f);
    *value = f->attributes[attribute];
    return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value) {
    NEED(attribute >= FUNCTION_MAX_DYNAMIC_SHARED && attribute < FUNCTION_ATTRIBUTES);
    NEED_HANDLE(HANDLE_KERNEL, f);
    int most = driver.device->shared_per_block - (int)f->entry->static_shared;
    if (attribute == FUNCTION_MAX_DYNAMIC_SHARED && (value < 0 || value > most))
        return driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s: %d bytes of dynamic shared memory; %s has at most %d",
                              function_title(f->entry->function), value, driver.device->key, most);
    f->attributes[attribute] = value;
    return CUDA_SUCCESS;
}
API CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel f, CUdevice device) {
    NEED_DEVICE(device);
    return cuFuncGetAttribute(value, attribute, f);
}
API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel f, CUdevice device) {
    NEED_DEVICE(device);
    return cuFuncSetAttribute(f, attribute, value);
}
API CUresult cuFuncSetCacheConfig(CUfunction f, int config) {
    (void)config;
    NEED_HANDLE(HANDLE_KERNEL, f);
    return CUDA_SUCCESS;
}
API CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel kernel) {
    return cuFuncGetModule(out, kernel);
}
API CUresult cuKernelSetCacheConfig(CUkernel f, int config, CUdevice device) {
    NEED_DEVICE(device);
    return cuFuncSetCacheConfig(f, config);
}
