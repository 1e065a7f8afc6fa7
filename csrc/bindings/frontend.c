/* Shared by the Python module and the torch operators: operations, words, result shapes. */
#include "bindings/frontend.h"

#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "api/gemm.h"
#include "api/rules.h"
#include "common/group_blocks.h"
#include "common/math.h"

const operation *const front_operations[FRONT_OPERATION_COUNT] = {
#define X(name) &operation_##name,
    FRONT_OPERATIONS(X)
#undef X
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

/* ---- results ---- */

/* A tensor whose rows and columns give sizes of a result has two or three dimensions. */
static nvfp4_status check_rank(const char *name, const nvfp4_tensor *t) {
    if (absent(t)) return REJECT(name, ("is missing"), ("must be a tensor"));
    if (t->ndim != 2 && t->ndim != 3)
        return REJECT(name, ("has %d dimensions", t->ndim), ("must have 2, or 3 with a leading batch"));
    for (int i = 0; i < t->ndim; i++) /* before anything of that size is allocated */
        if (t->shape[i] < 0 || t->shape[i] > INT32_MAX)
            return REJECT(name, ("dimension %d is %lld", i, (long long)t->shape[i]),
                          ("must be between 0 and %d", INT32_MAX));
    return NVFP4_OK;
}

/* A stack has a size for what it stacks, and at least that of a matrix. */
static nvfp4_status check_stack(const char *name, const nvfp4_tensor *t) {
    if (absent(t)) return REJECT(name, ("is missing"), ("must be a tensor"));
    if (t->ndim == 3 || t->ndim == 4) return NVFP4_OK;
    return REJECT(name, ("has %d dimensions", t->ndim), ("must have 3, or 4 with parts"));
}

/* The elements of a tensor, as large as they can be counted; 1 of an absent one. */
static int64_t counted(const nvfp4_tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->ndim && !absent(t); i++)
        if (__builtin_mul_overflow(count, t->shape[i], &count)) count = INT64_MAX;
    return count;
}

static nvfp4_status size_of_tensor(const operation *op, const front_call *call, const result_size *size,
                                   int64_t *value) {
    int32_t index = size->index, of = size->of;
    if (size->or_rows && absent(tensor_at(op, index, &call->args))) index = size->or_rows - 1, of = SIZE_ROWS;
    const nvfp4_tensor *t = tensor_at(op, index, &call->args);
    const char *name = op->tensors[index].name;
    if (of == SIZE_COUNT) {
        *value = counted(t);
        return NVFP4_OK;
    }
    const int is_stack = of >= SIZE_STACKED && of <= SIZE_STACK_COLUMNS;
    nvfp4_status status = is_stack ? check_stack(name, t) : check_rank(name, t);
    if (status) return status;
    *value = t->shape[t->ndim - (of == SIZE_COLUMNS || of == SIZE_STACK_COLUMNS ? 1 : 2)];
    if (of == SIZE_STACKED && t->ndim == 4 && __builtin_mul_overflow(*value, t->shape[1], value)) *value = INT64_MAX;
    return NVFP4_OK;
}

static nvfp4_status find_size(const operation *op, const front_call *call, const result_size *size, int64_t *value) {
    int64_t of = 1;
    if (size->of == SIZE_SCALAR) of = call->sizes[size->index];
    if (size->of != SIZE_SCALAR && size->of != SIZE_ONE) {
        nvfp4_status status = size_of_tensor(op, call, size, &of);
        if (status) return status;
    }
    if (size->ends) of = max_group_tiles(of, counted(tensor_at(op, size->ends - 1, &call->args)), SCALE_BLOCK_ROWS);
    if (__builtin_mul_overflow(of, (int64_t)size->times, &of)) of = INT64_MAX;
    if (size->over > 1) of /= size->over; /* a division takes longer than the rest of this function */
    *value = size->round_up > 1 ? ceil_div(of, size->round_up) * size->round_up : of;
    if (*value >= 0 && *value <= INT32_MAX) return NVFP4_OK;
    const char *name = size->of == SIZE_SCALAR ? op->name : op->tensors[size->index].name;
    return REJECT(name, ("gives a result with a dimension of %lld", (long long)*value),
                  ("must be at most %d", INT32_MAX));
}

static const result_shape *shape_of(const operation_result *result, const front_call *call) {
    const uint32_t condition = *(const uint32_t *)((const char *)&call->args + result->flags_offset);
    return condition & result->flags_mask ? &result->flag_shape : &result->shape;
}

static int32_t dtype_of_result(const operation_result *result, const nvfp4_tensor *like, int32_t out_dtype) {
    if (result->dtype == DTYPE_OF_LIKE) return (int32_t)like->dtype;
    if (result->dtype != DTYPE_OF_CALLER) return result->dtype;
    if (out_dtype != NVFP4_NONE) return out_dtype;
    return like->dtype == NVFP4_FP16 || like->dtype == NVFP4_BF16 ? (int32_t)like->dtype
                                                                  : (int32_t)result->default_dtype;
}

nvfp4_status describe_result(const operation *op, const operation_result *result, front_call *call) {
    const nvfp4_tensor *like = tensor_at(op, result->like, &call->args);
    const result_shape *shape = shape_of(result, call);
    if (absent(like)) return REJECT(op->tensors[result->like].name, ("is missing"), ("must be a tensor"));
    nvfp4_status status = result->rank == RANK_MATRIX ? check_rank(op->tensors[result->like].name, like) : NVFP4_OK;
    int64_t sizes[3] = {like->ndim ? like->shape[0] : 1, 1, 1};
    if (!status && result->rank != RANK_VECTOR) status = find_size(op, call, &shape->rows, &sizes[1]);
    if (!status) status = find_size(op, call, &shape->columns, &sizes[2]);
    if (status) return status;
    const int ndim = result->rank == RANK_VECTOR ? 1 : like->ndim == 3 ? 3 : 2;
    *tensor_to_fill(op, result->tensor, &call->args) =
        contiguous_tensor(dtype_of_result(result, like, call->out_dtype), like->device, ndim, sizes + 3 - ndim);
    return NVFP4_OK;
}

nvfp4_status check_new_result(const operation *op, const operation_result *result, const front_call *call) {
    const nvfp4_tensor *t = tensor_at(op, result->tensor, &call->args);
    const int32_t fixed = shape_of(result, call)->alignment;
    const int64_t bytes = fixed ? fixed : dtype_bytes((int32_t)t->dtype);
    if (element_count(t) == 0 || ((uintptr_t)t->data & (uintptr_t)(bytes - 1)) == 0) return NVFP4_OK;
    return REJECT(op->tensors[result->tensor].name, ("was allocated at address %p", t->data),
                  ("must be aligned to %lld bytes", (long long)bytes));
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
