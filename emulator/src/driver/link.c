/* Driver API: cuLink... There is no machine code and so no linker: one PTX input becomes the image, several are
 * rejected. */
#define _GNU_SOURCE /* strndup */
#include <stdio.h>
#include <stdlib.h>

#include "driver/driver.h"

struct link {
    char *image; /* the one input, ended by 0 */
    size_t bytes;
};

enum { INPUT_PTX = 1 };

API CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, struct link **out) {
    (void)count, (void)options, (void)values;
    NEED(out);
    *out = calloc(1, sizeof **out);
    if (!*out) return CUDA_ERROR_OUT_OF_MEMORY;
    handle_add(HANDLE_LINK, *out);
    return CUDA_SUCCESS;
}

static CUresult add(struct link *l, int kind, const void *data, size_t bytes, const char *name) {
    if (kind != INPUT_PTX)
        return driver_rejectf(CUDA_ERROR_INVALID_IMAGE, "cuLinkAddData: %s is no PTX; the emulator links nothing else",
                              name);
    if (l->image)
        return driver_rejectf(CUDA_ERROR_NOT_SUPPORTED,
                              "cuLinkAddData: %s would be the second input; the emulator has no linker", name);
    l->image = strndup(data, bytes); /* the text may end before the bytes do */
    if (!l->image) return CUDA_ERROR_OUT_OF_MEMORY;
    l->bytes = strlen(l->image) + 1;
    return CUDA_SUCCESS;
}

API CUresult cuLinkAddData_v2(struct link *l, int kind, const void *data, size_t bytes, const char *name,
                              unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    NEED_HANDLE(HANDLE_LINK, l);
    NEED(data && bytes);
    ENTER;
    result = add(l, kind, data, bytes, name ? name : "the input");
    LEAVE;
}

API CUresult cuLinkAddFile_v2(struct link *l, int kind, const char *path, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    NEED_HANDLE(HANDLE_LINK, l);
    NEED(path);
    size_t bytes = 0;
    char *data = driver_read_file(path, &bytes);
    if (!data) return driver_rejectf(CUDA_ERROR_FILE_NOT_FOUND, "cuLinkAddFile: %s cannot be read", path);
    ENTER;
    result = add(l, kind, data, bytes, path);
    free(data);
    LEAVE;
}

API CUresult cuLinkComplete(struct link *l, void **image, size_t *bytes) {
    NEED_HANDLE(HANDLE_LINK, l);
    NEED(image);
    if (!l->image) return driver_rejectf(CUDA_ERROR_INVALID_VALUE, "cuLinkComplete: no input has been added");
    *image = l->image;
    if (bytes) *bytes = l->bytes;
    return CUDA_SUCCESS;
}

API CUresult cuLinkDestroy(struct link *l) {
    NEED_HANDLE(HANDLE_LINK, l);
    handle_remove(l);
    free(l->image);
    free(l);
    return CUDA_SUCCESS;
}
