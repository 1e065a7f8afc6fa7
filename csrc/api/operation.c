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

nvfp4_status nvfp4_gemm(nvfp4_context *context, const nvfp4_gemm_args *args) {
    return operation_call(context, &operation_gemm, args);
}

nvfp4_status nvfp4_quantize_gemm(nvfp4_context *context, const nvfp4_quantize_gemm_args *args) {
    return operation_call(context, &operation_quantize_gemm, args);
}

nvfp4_status nvfp4_grouped_gemm(nvfp4_context *context, const nvfp4_grouped_gemm_args *args) {
    return operation_call(context, &operation_grouped_gemm, args);
}

nvfp4_status nvfp4_gated_grouped_gemm(nvfp4_context *context, const nvfp4_gated_grouped_gemm_args *args) {
    return operation_call(context, &operation_gated_grouped_gemm, args);
}

nvfp4_status nvfp4_quantize(nvfp4_context *context, const nvfp4_quantize_args *args) {
    return operation_call(context, &operation_quantize, args);
}

nvfp4_status nvfp4_grouped_quantize(nvfp4_context *context, const nvfp4_grouped_quantize_args *args) {
    return operation_call(context, &operation_grouped_quantize, args);
}

nvfp4_status nvfp4_dequantize(nvfp4_context *context, const nvfp4_quantize_args *args) {
    return operation_call(context, &operation_dequantize, args);
}

nvfp4_status nvfp4_weighted_quantize(nvfp4_context *context, const nvfp4_weighted_quantize_args *args) {
    return operation_call(context, &operation_weighted_quantize, args);
}

nvfp4_status nvfp4_gptq_block(nvfp4_context *context, const nvfp4_gptq_block_args *args) {
    return operation_call(context, &operation_gptq_block, args);
}

nvfp4_status nvfp4_rms_norm_quantize(nvfp4_context *context, const nvfp4_rms_norm_quantize_args *args) {
    return operation_call(context, &operation_rms_norm_quantize, args);
}

nvfp4_status nvfp4_silu_mul_quantize(nvfp4_context *context, const nvfp4_quantize_args *args) {
    return operation_call(context, &operation_silu_mul_quantize, args);
}

nvfp4_status nvfp4_amax_scale(nvfp4_context *context, const nvfp4_amax_scale_args *args) {
    return operation_call(context, &operation_amax_scale, args);
}

nvfp4_status nvfp4_swizzle(nvfp4_context *context, const nvfp4_swizzle_args *args) {
    return operation_call(context, &operation_swizzle, args);
}

nvfp4_status nvfp4_unswizzle(nvfp4_context *context, const nvfp4_swizzle_args *args) {
    return operation_call(context, &operation_unswizzle, args);
}

nvfp4_status nvfp4_gated(nvfp4_context *context, const nvfp4_gated_args *args) {
    return operation_call(context, &operation_gated, args);
}

nvfp4_status nvfp4_gated_quantize(nvfp4_context *context, const nvfp4_gated_quantize_args *args) {
    return operation_call(context, &operation_gated_quantize, args);
}

nvfp4_status nvfp4_moe_route(nvfp4_context *context, const nvfp4_moe_route_args *args) {
    return operation_call(context, &operation_moe_route, args);
}

nvfp4_status nvfp4_moe_combine(nvfp4_context *context, const nvfp4_moe_combine_args *args) {
    return operation_call(context, &operation_moe_combine, args);
}
