/* The steps of every call: complete the arguments, check, plan, run. */
#include "api/operation.h"

#include <string.h>

#include "api/rules.h"
#include "common/error.h"
#include "common/float_mode.h"

nvfp4_status operation_check(const checked_call *c, prepared_call *call) {
    nvfp4_status status = check_arguments(c);
    if (!status) status = c->op->check(c, call);
    return status ? status : check_overlap(c);
}

nvfp4_status operation_prepare(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    nvfp4_status status = operation_check(c, call);
    return status ? status : c->op->plan(context, c, call);
}

nvfp4_status operation_run(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    nvfp4_status status = check_data_present(c);
    if (status || call->is_empty) return status;
    c->op->bind(c, call);
    return c->op->run(context, c, call);
}

/* Tensors of an operation that are absent and yet have a rank: what a caller left there must not be read. */
static int has_garbage(const operation *op, const void *args) {
    for (int32_t i = 0; i < op->tensor_count; i++) {
        const nvfp4_tensor *t = tensor_at(op, i, args);
        if (absent(t) && (t->ndim || t->data)) return 1;
    }
    return 0;
}

const void *complete_args(const operation *op, const void *args, operation_args *own) {
    const size_t size = ((const nvfp4_call *)args)->size;
    if (size == op->args_bytes && !has_garbage(op, args)) return args;
    if (size < op->min_bytes || size > op->args_bytes) {
        REJECT("size", ("is %zu", size),
               ("must be that of the arguments of %s, %zu bytes at least and %zu at most: begin with their defaults",
                op->name, op->min_bytes, op->args_bytes));
        return NULL;
    }
    op->defaults(own);
    memcpy(own, args, size);
    own->call.size = op->args_bytes;
    for (int32_t i = 0; i < op->tensor_count; i++) {
        nvfp4_tensor *t = tensor_to_fill(op, i, own);
        if (absent(t)) *t = (nvfp4_tensor){.dtype = NVFP4_NONE};
    }
    return own;
}

nvfp4_status operation_call(nvfp4_context *context, const operation *op, const void *args) {
    operation_args own;
    prepared_call call;
    const checked_call c = {op, complete_args(op, args, &own)};
    if (!c.args) return NVFP4_INVALID;
    const float_mode before = set_float_mode(OWN_FLOAT_MODE);
    nvfp4_status status = operation_prepare(context, &c, &call);
    if (!status) status = operation_run(context, &c, &call);
    set_float_mode(before);
    return status;
}

#define NVFP4_OPERATION(name, args_)                                                                                   \
    nvfp4_status nvfp4_##name(nvfp4_context *context, const nvfp4_##args_##_args *args) {                              \
        return operation_call(context, &operation_##name, args);                                                       \
    }                                                                                                                  \
    void default_##name(operation_args *args) {                                                                        \
        nvfp4_##args_##_init(&args->name);                                                                             \
    }
#include "operations.def"
