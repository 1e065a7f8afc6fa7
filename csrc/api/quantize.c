/* Quantisation, its inverse, global scales, and changes of scale layout: check, launch. */
#include <stdatomic.h>

#include "api/check.h"
#include "api/context.h"
#include "common/math.h"
#include "cpu/cpu.h"
#include "kernels/quantize/kernels.h"
#include "plan/gemm_family.h"

/* One launch: a CTA for each of `across` tiles of a row, and each of `down` rows of tiles, along y and z. */
static nvfp4_status run(nvfp4_context *context, const target *where, int32_t kernel, int64_t across, int64_t down,
                        void *problem, void *stream) {
    void *params[] = {problem};
    const kernel_launch launch = {.set = &quantize_kernels,
                                  .kernel = kernel,
                                  .grid_x = across,
                                  .grid_y = min_int(down, UINT16_MAX),
                                  .grid_z = ceil_div(down, UINT16_MAX),
                                  .params = params,
                                  .stream = stream};
    nvfp4_status status = driver_launch(context->driver, where->device, &launch);
    if (!status) status = driver_watch(context->driver, where->device, stream);
    if (!status && where->host_memory) status = driver_synchronize(context->driver, where->device, stream);
    return status;
}

/* Tiles of 128x4 scales are half an atom. Linear ones have 32 scales of a row, so that a warp has neighbours in memory,
 * more if there are fewer rows than such a tile has. */
static nvfp4_status run_blocks(nvfp4_context *context, const target *where, int32_t kernel, quantize_problem *p,
                               void *stream) {
    int64_t columns = p->k / 16, down = ceil_div(p->rows, 128) * 2, across, serial = 1;
    p->tile_log2 = 2;
    if (p->scale_layout == NVFP4_LINEAR) {
        int32_t log2 = 0;
        while (1 << log2 < min_int(columns, QUANTIZE_THREADS >> log2 > p->rows ? QUANTIZE_THREADS : 32)) log2++;
        p->tile_log2 = log2;
        down = ceil_div(p->rows, QUANTIZE_THREADS >> log2);
    }
    across = ceil_div(columns, 1 << p->tile_log2);
    /* A CTA of quantize takes up to 16 tiles, as long as there are 1024 CTAs: two for each that an H200 runs at once.
     */
    if (kernel != KERNEL_DEQUANTIZE) serial = max_int(1, min_int(16, p->l * down * across / 1024));
    return run(context, where, kernel + p->x_type - NVFP4_FP16, ceil_div(across, serial), p->l * down, p, stream);
}

static nvfp4_status run_scales(nvfp4_context *context, const target *where, int32_t kernel, swizzle_problem *p,
                               void *stream) {
    return run(context, where, kernel, ceil_div(p->columns, SWIZZLE_COLUMNS), p->l * ceil_div(p->rows, 128), p, stream);
}

/* Where a call runs, and for the CPU with which instructions. */
static nvfp4_status find_unit(nvfp4_context *context, int32_t device, target *where, cpu_isa *isa) {
    nvfp4_status status = find_target(context, NVFP4_AUTO, device, where);
    return status || where->on_gpu ? status : cpu_isa_detect(isa);
}

nvfp4_status nvfp4_quantize(nvfp4_context *context, const nvfp4_quantize_args *args) {
    quantize_problem p;
    target where;
    cpu_isa isa;
    nvfp4_status status = check_quantize(args, 0, &p);
    if (!status) status = find_unit(context, args->x.device, &where, &isa);
    if (status || p.l * p.rows * p.k == 0) return status;
    int32_t kernel = p.block_scale == NVFP4_FOUR_OVER_SIX ? KERNEL_FOUR_OVER_SIX : KERNEL_QUANTIZE;
    if (where.on_gpu) return run_blocks(context, &where, kernel, &p, args->stream);
    cpu_quantize(&p, isa, args->threads);
    return NVFP4_OK;
}

nvfp4_status nvfp4_silu_mul_quantize(nvfp4_context *context, const nvfp4_quantize_args *args) {
    quantize_problem p;
    target where;
    cpu_isa isa;
    nvfp4_status status = check_silu_mul_quantize(args, &p);
    if (!status) status = find_unit(context, args->x.device, &where, &isa);
    if (status || p.l * p.rows * p.k == 0) return status;
    if (where.on_gpu) return run_blocks(context, &where, KERNEL_SILU_MUL_QUANTIZE, &p, args->stream);
    cpu_silu_mul_quantize(&p, isa, args->threads);
    return NVFP4_OK;
}

/* A row has a thread for each block of 16 values, a power of two from a warp to a CTA. */
nvfp4_status nvfp4_rms_norm_quantize(nvfp4_context *context, const nvfp4_rms_norm_quantize_args *args) {
    norm_problem p;
    target where;
    cpu_isa isa;
    nvfp4_status status = check_rms_norm_quantize(args, &p);
    if (!status) status = find_unit(context, args->x.device, &where, &isa);
    if (status || p.q.l * p.q.rows * p.q.k == 0) return status;
    if (!where.on_gpu) {
        cpu_rms_norm_quantize(&p, isa, args->threads);
        return NVFP4_OK;
    }
    int64_t rows = p.q.scale_layout == NVFP4_LINEAR ? p.q.rows : ceil_div(p.q.rows, 128) * 128;
    p.q.tile_log2 = 5;
    while (1 << p.q.tile_log2 < min_int(p.q.k / 16, QUANTIZE_THREADS)) p.q.tile_log2++;
    return run(context, &where, KERNEL_RMS_NORM_QUANTIZE + p.q.x_type - NVFP4_FP16, 1,
               p.q.l * ceil_div(rows, QUANTIZE_THREADS >> p.q.tile_log2), &p, args->stream);
}

nvfp4_status nvfp4_dequantize(nvfp4_context *context, const nvfp4_quantize_args *args) {
    quantize_problem p;
    target where;
    cpu_isa isa;
    nvfp4_status status = check_quantize(args, 1, &p);
    if (!status) status = find_unit(context, args->x.device, &where, &isa);
    if (status || p.l * p.rows * p.k == 0) return status;
    if (where.on_gpu) return run_blocks(context, &where, KERNEL_DEQUANTIZE, &p, args->stream);
    cpu_dequantize(&p, isa, args->threads);
    return NVFP4_OK;
}

/* The tag of a call is what tells its count of arrivals from what the workspace held before. */
static nvfp4_status run_amax(nvfp4_context *context, const target *where, amax_problem *p,
                             const nvfp4_amax_scale_args *args) {
    static _Atomic uint64_t calls;
    const workspace_source source = {args->workspace, args->workspace_size, args->allocate, args->owner};
    /* 8 CTAs of an SM: 128 KiB of loads at once. */
    int64_t ctas = min_int(p->l * p->rows * p->chunks, min_int(AMAX_MOST_CTAS, where->props->sm_count * 8));
    void *workspace;
    nvfp4_status status = find_workspace(&source, ctas > 1 ? NVFP4_AMAX_WORKSPACE : 0, &workspace);
    if (status) return status;
    p->arrivals = workspace;
    p->partial = (uint32_t *)workspace + 2;
    p->tag = (atomic_fetch_add(&calls, 1) + 1) * 0x9E3779B97F4A7C15 * (AMAX_COUNT_MASK + 1ull);
    return run(context, where, KERNEL_AMAX_SCALE, max_int(ctas, 1), 1, p, args->stream);
}

nvfp4_status nvfp4_amax_scale(nvfp4_context *context, const nvfp4_amax_scale_args *args) {
    amax_problem p;
    target where;
    cpu_isa isa;
    nvfp4_status status = check_amax_scale(args, &p);
    if (!status) status = find_unit(context, args->x.device, &where, &isa);
    if (status) return status;
    if (where.on_gpu) return run_amax(context, &where, &p, args);
    cpu_amax_scale(&p, isa, args->threads);
    return NVFP4_OK;
}

nvfp4_status nvfp4_swizzle(nvfp4_context *context, const nvfp4_tensor *linear, const nvfp4_tensor *swizzled,
                           void *stream) {
    swizzle_problem p;
    target where;
    nvfp4_status status = check_swizzle(linear, swizzled, 0, &p);
    if (!status) status = find_target(context, NVFP4_AUTO, linear->device, &where);
    if (status || p.l * p.rows * p.columns == 0) return status;
    if (where.on_gpu) return run_scales(context, &where, KERNEL_SWIZZLE, &p, stream);
    cpu_swizzle(&p, 0);
    return NVFP4_OK;
}

nvfp4_status nvfp4_unswizzle(nvfp4_context *context, const nvfp4_tensor *swizzled, const nvfp4_tensor *linear,
                             void *stream) {
    swizzle_problem p;
    target where;
    nvfp4_status status = check_swizzle(linear, swizzled, 1, &p);
    if (!status) status = find_target(context, NVFP4_AUTO, linear->device, &where);
    if (status || p.l * p.rows * p.columns == 0) return status;
    if (where.on_gpu) return run_scales(context, &where, KERNEL_UNSWIZZLE, &p, stream);
    cpu_unswizzle(&p, 0);
    return NVFP4_OK;
}
