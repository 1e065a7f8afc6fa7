/* Quantisation, its inverse, and changes of scale layout: check, launch. */
#include "check.h"
#include "context.h"
#include "error.h"

/* The kernel over one thread an item. */
static nvfp4_status run(nvfp4_context *context, const place *where, kernel_id kernel, int64_t items, void *problem,
                        void *queue) {
    void *arguments[] = {problem};
    int64_t threads = kernels[kernel].threads;
    const kernel_launch launch = {
        .kernel = kernel, .grid = (items + threads - 1) / threads, .arguments = arguments, .queue = queue};
    nvfp4_status status = driver_launch(context->driver, where->device, &launch);
    if (!status && where->host_memory) status = driver_wait(context->driver, where->device, queue);
    return status;
}

/* Scales of the problem, those of the 128x4 layout's padding included. */
static int64_t scale_count(const quantize_problem *p) {
    int64_t columns = p->k / 16;
    return p->l * (p->scale_layout == NVFP4_128X4 ? swizzled_bytes(p->rows, columns) : p->rows * columns);
}

nvfp4_status nvfp4_quantize(nvfp4_context *context, const nvfp4_quantize_args *args) {
    quantize_problem p;
    place where;
    nvfp4_status status = check_quantize(args, 0, &p);
    if (!status) status = find_place(context, NVFP4_AUTO, args->x.device, &where);
    if (status || scale_count(&p) == 0) return status;
    return where.on_gpu ? run(context, &where, KERNEL_QUANTIZE, scale_count(&p), &p, args->queue)
                        : cpu_quantize(&p, args->threads);
}

nvfp4_status nvfp4_dequantize(nvfp4_context *context, const nvfp4_quantize_args *args) {
    quantize_problem p;
    place where;
    nvfp4_status status = check_quantize(args, 1, &p);
    if (!status) status = find_place(context, NVFP4_AUTO, args->x.device, &where);
    int64_t blocks = status ? 0 : p.l * p.rows * (p.k / 16);
    if (status || blocks == 0) return status;
    return where.on_gpu ? run(context, &where, KERNEL_DEQUANTIZE, blocks, &p, args->queue)
                        : cpu_dequantize(&p, args->threads);
}

nvfp4_status nvfp4_swizzle(nvfp4_context *context, const nvfp4_tensor *linear, const nvfp4_tensor *swizzled,
                           void *queue) {
    swizzle_problem p;
    place where;
    nvfp4_status status = check_swizzle(linear, swizzled, 0, &p);
    if (!status) status = find_place(context, NVFP4_AUTO, linear->device, &where);
    int64_t bytes = status ? 0 : p.l * swizzled_bytes(p.rows, p.columns);
    if (status || bytes == 0) return status;
    if (where.on_gpu) return run(context, &where, KERNEL_SWIZZLE, bytes, &p, queue);
    cpu_swizzle(&p);
    return NVFP4_OK;
}

nvfp4_status nvfp4_unswizzle(nvfp4_context *context, const nvfp4_tensor *swizzled, const nvfp4_tensor *linear,
                             void *queue) {
    swizzle_problem p;
    place where;
    nvfp4_status status = check_swizzle(linear, swizzled, 1, &p);
    if (!status) status = find_place(context, NVFP4_AUTO, linear->device, &where);
    int64_t bytes = status ? 0 : p.l * p.rows * p.columns;
    if (status || bytes == 0) return status;
    if (where.on_gpu) return run(context, &where, KERNEL_UNSWIZZLE, bytes, &p, queue);
    cpu_unswizzle(&p);
    return NVFP4_OK;
}
