/* Quantisation, its inverse, and changes of scale layout: check, launch. */
#include "api/check.h"
#include "api/context.h"
#include "common/math.h"
#include "cpu/cpu.h"
#include "kernels/quantize/kernels.h"
#include "plan/gemm_family.h"

/* The kernel over one thread an item. */
static nvfp4_status run(nvfp4_context *context, const target *where, int32_t kernel, int64_t items, void *problem,
                        void *stream) {
    void *params[] = {problem};
    const kernel_launch launch = {.set = &quantize_kernels,
                                  .kernel = kernel,
                                  .grid_x = ceil_div(items, QUANTIZE_THREADS),
                                  .grid_y = 1,
                                  .params = params,
                                  .stream = stream};
    nvfp4_status status = driver_launch(context->driver, where->device, &launch);
    if (!status) status = driver_watch(context->driver, where->device, stream);
    if (!status && where->host_memory) status = driver_synchronize(context->driver, where->device, stream);
    return status;
}

/* Scales of the problem, those of the 128x4 layout's padding included. */
static int64_t scale_count(const quantize_problem *p) {
    int64_t columns = p->k / 16;
    return p->l * (p->scale_layout == NVFP4_128X4 ? swizzled_bytes(p->rows, columns) : p->rows * columns);
}

nvfp4_status nvfp4_quantize(nvfp4_context *context, const nvfp4_quantize_args *args) {
    quantize_problem p;
    target where;
    nvfp4_status status = check_quantize(args, 0, &p);
    if (!status) status = find_target(context, NVFP4_AUTO, args->x.device, &where);
    if (status || scale_count(&p) == 0) return status;
    return where.on_gpu ? run(context, &where, KERNEL_QUANTIZE, scale_count(&p), &p, args->stream)
                        : cpu_quantize(&p, args->threads);
}

nvfp4_status nvfp4_dequantize(nvfp4_context *context, const nvfp4_quantize_args *args) {
    quantize_problem p;
    target where;
    nvfp4_status status = check_quantize(args, 1, &p);
    if (!status) status = find_target(context, NVFP4_AUTO, args->x.device, &where);
    int64_t blocks = status ? 0 : p.l * p.rows * (p.k / 16);
    if (status || blocks == 0) return status;
    return where.on_gpu ? run(context, &where, KERNEL_DEQUANTIZE, blocks, &p, args->stream)
                        : cpu_dequantize(&p, args->threads);
}

nvfp4_status nvfp4_swizzle(nvfp4_context *context, const nvfp4_tensor *linear, const nvfp4_tensor *swizzled,
                           void *stream) {
    swizzle_problem p;
    target where;
    nvfp4_status status = check_swizzle(linear, swizzled, 0, &p);
    if (!status) status = find_target(context, NVFP4_AUTO, linear->device, &where);
    int64_t bytes = status ? 0 : p.l * swizzled_bytes(p.rows, p.columns);
    if (status || bytes == 0) return status;
    if (where.on_gpu) return run(context, &where, KERNEL_SWIZZLE, bytes, &p, stream);
    cpu_swizzle(&p);
    return NVFP4_OK;
}

nvfp4_status nvfp4_unswizzle(nvfp4_context *context, const nvfp4_tensor *swizzled, const nvfp4_tensor *linear,
                             void *stream) {
    swizzle_problem p;
    target where;
    nvfp4_status status = check_swizzle(linear, swizzled, 1, &p);
    if (!status) status = find_target(context, NVFP4_AUTO, linear->device, &where);
    int64_t bytes = status ? 0 : p.l * p.rows * p.columns;
    if (status || bytes == 0) return status;
    if (where.on_gpu) return run(context, &where, KERNEL_UNSWIZZLE, bytes, &p, stream);
    cpu_unswizzle(&p);
    return NVFP4_OK;
}
