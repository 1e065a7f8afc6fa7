/* Shared by the Python module and the torch operators: operations, words, lists of tensors. */
#include "bindings/frontend.h"

#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "api/gemm.h"
#include "api/rules.h"

const operation *const front_operations[FRONT_OPERATION_COUNT] = {
#define FRONT_OPERATION(name) &operation_##name,
#include "bindings/front_operations.def"
};

const error_words python_words = {{
    NULL,
    "transpose_b",
    "is True",
    "is False",
    "must be True",
    "must be False",
    "batch_invariant",
    "None",
}};

/* ---- words ---- */

nvfp4_status layout_from_name(const char *name, int32_t *layout) {
    if (strcmp(name, "128x4") == 0)
        *layout = NVFP4_128X4;
    else if (strcmp(name, "linear") == 0)
        *layout = NVFP4_LINEAR;
    else
        return REJECT("scale_layout", ("is '%.80s'", name), ("must be '128x4' or 'linear'"));
    return NVFP4_OK;
}

nvfp4_status block_scale_from_name(const char *name, int32_t *block_scale) {
    if (strcmp(name, "amax6") == 0)
        *block_scale = NVFP4_AMAX6;
    else if (strcmp(name, "four_over_six") == 0)
        *block_scale = NVFP4_FOUR_OVER_SIX;
    else if (strcmp(name, "search") == 0)
        *block_scale = NVFP4_SEARCH;
    else
        return REJECT("block_scale", ("is '%.80s'", name), ("must be 'amax6', 'four_over_six' or 'search'"));
    return NVFP4_OK;
}

nvfp4_status activation_from_name(const char *name, int32_t *activation) {
    for (*activation = NVFP4_SILU; *activation <= NVFP4_SWIGLU; ++*activation)
        if (strcmp(name, activation_name(*activation)) == 0) return NVFP4_OK;
    return REJECT("activation", ("is '%.80s'", name), ("must be 'silu', 'gelu_tanh', 'relu2' or 'swiglu'"));
}

nvfp4_status backend_from_name(const char *name, int32_t *backend) {
    for (*backend = NVFP4_AUTO; *backend < GEMM_BACKENDS; ++*backend)
        if (strcmp(name, nvfp4_backend_name((nvfp4_backend)*backend)) == 0) return NVFP4_OK;
    char names[160];
    list_backends(names, sizeof names, ALL_BACKENDS & ~1u, "'%s'", " or ");
    return REJECT("backend", ("is '%.80s'", name), ("must be " WORD_AUTO ", %s", names));
}

nvfp4_status dtype_from_name(const char *argument, const char *name, int32_t *dtype) {
    for (*dtype = NVFP4_FP16; *dtype <= NVFP4_FP32; ++*dtype)
        if (strcmp(name, nvfp4_dtype_name((nvfp4_dtype)*dtype)) == 0) return NVFP4_OK;
    return REJECT(argument, ("is %.80s", name), ("must be float16, bfloat16 or float32"));
}

name_parser *parser_of(scalar_kind kind) {
    static name_parser *const parsers[SCALAR_KINDS] = {[SCALAR_LAYOUT] = layout_from_name,
                                                       [SCALAR_BLOCK_SCALE] = block_scale_from_name,
                                                       [SCALAR_ACTIVATION] = activation_from_name,
                                                       [SCALAR_BACKEND] = backend_from_name};
    return parsers[kind];
}

/* ---- arguments ---- */

void *scalar_to_fill(const operation_scalar *scalar, front_call *call) {
    return scalar->kind == SCALAR_SIZE ? (void *)&call->sizes[scalar->offset] : (char *)&call->args + scalar->offset;
}

int takes_out_dtype(const operation *op) {
    for (int32_t i = 0; i < op->result_count; i++)
        if (op->results[i].dtype == DTYPE_OF_CALLER) return 1;
    return 0;
}

/* ---- lists of tensors ---- */

int32_t list_of(const operation *op, int32_t tensor) {
    for (int32_t i = 0; i < op->list_count; i++)
        if (op->lists[i].tensor == tensor) return i;
    return -1;
}

nvfp4_status start_list(const operation *op, int32_t which, int64_t count, front_call *call) {
    const operation_list *where = &op->lists[which];
    const char *name = op->tensors[where->tensor].name;
    int32_t *counted = (int32_t *)((char *)&call->args + where->count_offset); /* in the lists before */
    if (count < 1 || count > NVFP4_MAX_GROUPS)
        return REJECT(name, ("is a list of %lld tensors", (long long)count),
                      ("must have between 1 and %d", NVFP4_MAX_GROUPS));
    if (which > 0 && call->lists[which - 1] && *counted != count)
        return CONTRADICTS(name, ("is a list of %lld tensors but %s has %d", (long long)count,
                                  op->tensors[op->lists[which - 1].tensor].name, *counted));
    *counted = (int32_t)count;
    call->lists[which] = malloc((size_t)count * sizeof *call->lists[which]);
    if (!call->lists[which])
        return fail(NVFP4_OUT_OF_MEMORY, "%s: no memory for %lld addresses", name, (long long)count);
    *(const void *const **)((char *)&call->args + where->offset) = call->lists[which];
    return NVFP4_OK;
}

nvfp4_status add_to_list(const operation *op, int32_t which, int64_t index, const nvfp4_tensor *t, front_call *call) {
    const operation_list *where = &op->lists[which];
    const char *name = op->tensors[where->tensor].name;
    nvfp4_tensor *tensor = tensor_to_fill(op, where->tensor, &call->args), stacked = *t;
    if (t->ndim >= NVFP4_MAX_DIMS) return REJECT(name, ("has %d dimensions", t->ndim), ("must have fewer in a list"));
    stacked.ndim = t->ndim + 1;
    stacked.shape[0] = stacked.stride[0] = 1;
    memcpy(stacked.shape + 1, t->shape, (size_t)t->ndim * sizeof *t->shape);
    memcpy(stacked.stride + 1, t->stride, (size_t)t->ndim * sizeof *t->stride);
    if (index == 0) *tensor = stacked;
    const size_t bytes = (size_t)stacked.ndim * sizeof *stacked.shape;
    if (stacked.dtype != tensor->dtype || stacked.device != tensor->device || stacked.ndim != tensor->ndim ||
        memcmp(stacked.shape, tensor->shape, bytes) || memcmp(stacked.stride, tensor->stride, bytes))
        return CONTRADICTS(
            name, ("element %lld of the list differs from the first in dtype, shape or strides", (long long)index));
    call->lists[which][index] = t->data;
    return NVFP4_OK;
}

void free_lists(front_call *call) {
    for (int i = 0; i < OPERATION_MAX_LISTS; i++) free(call->lists[i]);
}
