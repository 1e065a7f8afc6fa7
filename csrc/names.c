#include "names.h"

#include <string.h>

#include "error.h"

nvfp4_status layout_from_name(const char *name, int32_t *layout) {
    if (strcmp(name, "128x4") == 0) {
        *layout = NVFP4_128X4;
    } else if (strcmp(name, "linear") == 0) {
        *layout = NVFP4_LINEAR;
    } else {
        return fail(NVFP4_INVALID, "scale_layout: is '%s'; must be '128x4' or 'linear'", name);
    }
    return NVFP4_OK;
}

nvfp4_status backend_from_name(const char *name, int32_t *backend) {
    if (strcmp(name, "auto") == 0) {
        *backend = NVFP4_AUTO;
    } else if (strcmp(name, "cpu") == 0) {
        *backend = NVFP4_BACKEND_CPU;
    } else if (strcmp(name, "sm80") == 0) {
        *backend = NVFP4_BACKEND_SM80;
    } else {
        return fail(NVFP4_INVALID, "backend: is '%s'; must be None, 'cpu' or 'sm80'", name);
    }
    return NVFP4_OK;
}

nvfp4_status out_dtype_from_name(const char *name, int32_t *dtype) {
    for (int32_t d = NVFP4_FP16; d <= NVFP4_FP32; d++) {
        if (strcmp(name, nvfp4_dtype_name(d)) != 0) continue;
        *dtype = d;
        return NVFP4_OK;
    }
    return fail(NVFP4_INVALID, "out_dtype: is %s; must be float16, bfloat16 or float32", name);
}
