/* The quantizers and changes of scale layout on the GPU: kernels of kernels.cu, grouped.cu, norm.cu and amax.cu by
 * their number in the set, and their launches. A tile is a CTA's work; a grid has tiles of a row along x, rows of tiles
 * of all batches along y and z. */
#include <stdatomic.h>

#include "common/group_blocks.h"
#include "common/math.h"
#include "kernels/quantize/kernels.h"
#include "plan/row_op.h"

/* An operation before KERNEL_SWIZZLE has a kernel for each type of x, in the order of nvfp4_dtype. */
enum {
    KERNEL_QUANTIZE,
    KERNEL_FOUR_OVER_SIX = 3,
    KERNEL_DEQUANTIZE = 6,
    KERNEL_SILU_MUL_QUANTIZE = 9,
    KERNEL_RMS_NORM_QUANTIZE = 12,
    KERNEL_SEARCH = 15,
    KERNEL_SWIZZLE = 18,
    KERNEL_UNSWIZZLE,
    KERNEL_AMAX_SCALE,
    KERNEL_AMAX_SCALE_ROWS,
    KERNEL_GPTQ_BLOCK,
    KERNEL_GROUPED_QUANTIZE,                             /* + nvfp4_block_scale, without NVFP4_SEARCH */
    KERNEL_GATED_QUANTIZE = KERNEL_GROUPED_QUANTIZE + 2, /* + nvfp4_activation */
    QUANTIZE_KERNELS = KERNEL_GATED_QUANTIZE + 4
};

#define ROW(source_, symbol, pdl_)                                                                                     \
    {.name = "nvfp4_" symbol, .source = "quantize_" source_, .threads = QUANTIZE_THREADS, .pdl = pdl_}
/* By the type of x, in the order of nvfp4_dtype. */
#define ROWS(source, symbol, pdl)                                                                                      \
    ROW(source, symbol "_fp16", pdl), ROW(source, symbol "_bf16", pdl), ROW(source, symbol "_fp32", pdl)
static const kernel_entry kernels[QUANTIZE_KERNELS] = {
    [KERNEL_QUANTIZE] = ROWS("kernels", "quantize", 1),
    [KERNEL_FOUR_OVER_SIX] = ROWS("kernels", "four_over_six", 1),
    [KERNEL_DEQUANTIZE] = ROWS("kernels", "dequantize", 0),
    [KERNEL_SILU_MUL_QUANTIZE] = ROWS("kernels", "silu_mul_quantize", 1),
    [KERNEL_RMS_NORM_QUANTIZE] = ROWS("norm", "rms_norm_quantize", 1),
    [KERNEL_SEARCH] = ROWS("search", "search", 1),
    [KERNEL_SWIZZLE] = ROW("kernels", "swizzle_scales", 0),
    [KERNEL_UNSWIZZLE] = ROW("kernels", "unswizzle_scales", 0),
    [KERNEL_AMAX_SCALE] = ROW("amax", "amax_scale", 0),
    [KERNEL_AMAX_SCALE_ROWS] = ROW("amax", "amax_scale_rows", 0),
    [KERNEL_GPTQ_BLOCK] = ROW("gptq", "gptq_block", 0),
    [KERNEL_GROUPED_QUANTIZE + NVFP4_AMAX6] = ROW("grouped", "grouped_quantize", 1),
    [KERNEL_GROUPED_QUANTIZE + NVFP4_FOUR_OVER_SIX] = ROW("grouped", "grouped_four_over_six", 1),
    [KERNEL_GATED_QUANTIZE + NVFP4_SILU] = ROW("grouped", "gated_quantize_silu", 1),
    [KERNEL_GATED_QUANTIZE + NVFP4_GELU_TANH] = ROW("grouped", "gated_quantize_gelu_tanh", 1),
    [KERNEL_GATED_QUANTIZE + NVFP4_RELU2] = ROW("grouped", "gated_quantize_relu2", 1),
    [KERNEL_GATED_QUANTIZE + NVFP4_SWIGLU] = ROW("grouped", "gated_quantize_swiglu", 1),
};
const kernel_set quantize_kernels = {
    .kernels = kernels, .count = QUANTIZE_KERNELS, .min_capability = 80, .max_capability = INT32_MAX};

/* Adds one launch, of `across` tiles of a row and `down` rows of tiles. */
static void add_launch(int32_t kernel, int64_t across, int64_t down, const void *problem, size_t bytes,
                       launch_plan *out) {
    launch_step *step = add_step(out, kernel, across, 0);
    step->grid_y = min_int(down, UINT16_MAX);
    step->grid_z = ceil_div(down, UINT16_MAX);
    memcpy(add_param(out, step, bytes), problem, bytes);
}

/* Tiles of 128x4 scales are half an atom. With at most 32 rows 3 of 4 threads of those would only store padding, and
 * quantizers take two atoms. Linear tiles have 32 scales of a row, so that a warp has neighbours in memory, more if
 * there are fewer rows than such a tile has. max_serial: tiles that a CTA may take one after the other. */
static void add_blocks(int32_t kernel, const quantize_problem *problem, int64_t max_serial, launch_plan *out) {
    quantize_problem p = *problem;
    const int few_rows = p.rows <= QUANTIZE_THREADS / 8 && kernel != KERNEL_DEQUANTIZE;
    int64_t columns = p.k / 16, down = few_rows ? 1 : ceil_div(p.rows, 128) * 2;
    p.tile_log2 = few_rows ? 3 : 2;
    if (p.scale_layout == NVFP4_LINEAR) {
        int32_t log2 = 0;
        while (1 << log2 < min_int(columns, QUANTIZE_THREADS >> log2 > p.rows ? QUANTIZE_THREADS : 32)) log2++;
        p.tile_log2 = log2;
        down = ceil_div(p.rows, QUANTIZE_THREADS >> log2);
    }
    const int64_t across = ceil_div(columns, 1 << p.tile_log2);
    /* A CTA takes several tiles only while 1024 CTAs remain: two for each that an H200 runs at once. */
    const int64_t serial = max_int(1, min_int(max_serial, p.l * down * across / 1024));
    add_launch(kernel + p.x_type - NVFP4_FP16, ceil_div(across, serial), p.l * down, &p, sizeof p, out);
}

enum { MAX_SERIAL = 16 };

static void build_quantize(const device_props *props, const row_op_problem *problem, void *workspace,
                           launch_plan *out) {
    (void)props, (void)workspace;
    static const int32_t first[] = {
        [NVFP4_AMAX6] = KERNEL_QUANTIZE, [NVFP4_FOUR_OVER_SIX] = KERNEL_FOUR_OVER_SIX, [NVFP4_SEARCH] = KERNEL_SEARCH};
    const quantize_problem *p = &problem->quantize;
    add_blocks(first[p->block_scale], p, MAX_SERIAL, out);
}

static void build_gptq_block(const device_props *props, const row_op_problem *problem, void *workspace,
                             launch_plan *out) {
    (void)props, (void)workspace;
    const gptq_problem *p = &problem->gptq_block;
    add_launch(KERNEL_GPTQ_BLOCK, ceil_div(p->rows, QUANTIZE_THREADS / GPTQ_LANES), 1, p, sizeof *p, out);
}

/* A CTA works on one 128-row block, so that it looks for the block's group once. Each block gets CTAs until an SM has
 * 8, twice as many as it runs at once, but no more than have work if the block is full. */
static void build_grouped_quantize(const device_props *props, const row_op_problem *problem, void *workspace,
                                   launch_plan *out) {
    (void)workspace;
    const grouped_quantize_problem *p = &problem->grouped_quantize;
    const int64_t blocks = max_int(1, p->q.l * max_group_tiles(p->q.rows, p->groups, SCALE_BLOCK_ROWS));
    const int64_t items = min_int(p->q.rows, SCALE_BLOCK_ROWS) * ceil_div(p->q.k / 16, 32); /* of a warp each */
    const int64_t ctas =
        min_int(ceil_div(8 * (int64_t)props->sm_count, blocks), ceil_div(items, QUANTIZE_THREADS / 32));
    add_launch(p->activation == NO_ACTIVATION ? KERNEL_GROUPED_QUANTIZE + p->q.block_scale
                                              : KERNEL_GATED_QUANTIZE + p->activation,
               max_int(ctas, 1), blocks, p, sizeof *p, out);
}

/* Bytes from the gates to their factors; 0: the kernels of silu_mul_quantize do not take the problem. They want one
 * distance for all rows, of which both halves are aligned alike. */
static int64_t up_at(const grouped_quantize_problem *p) {
    const quantize_problem *q = &p->q;
    const int64_t distance = (int64_t)((uintptr_t)p->up - (uintptr_t)q->x);
    const int is_silu = p->activation == NVFP4_SILU && isinf(p->limit);
    const int is_even = p->up_pitch == q->x_pitch && (q->l == 1 || p->up_batch == q->x_batch) && distance % 16 == 0;
    return q->l * q->rows * q->k > 0 && is_silu && p->up && !p->ends && !p->rows && is_even ? distance : 0;
}

/* The kernels of gated_quantize make the same bytes as those of silu_mul_quantize, but find each row's group and take up
 * to 1.7 times as long (2048 x 14336 of bf16 on an H200: 70 us and 42). */
static void build_gated_quantize(const device_props *props, const row_op_problem *problem, void *workspace,
                                 launch_plan *out) {
    quantize_problem p = problem->grouped_quantize.q;
    p.up_at = up_at(&problem->grouped_quantize);
    if (p.up_at)
        add_blocks(KERNEL_SILU_MUL_QUANTIZE, &p, MAX_SERIAL, out);
    else
        build_grouped_quantize(props, problem, workspace, out);
}

static void build_dequantize(const device_props *props, const row_op_problem *problem, void *workspace,
                             launch_plan *out) {
    (void)props, (void)workspace;
    add_blocks(KERNEL_DEQUANTIZE, &problem->quantize, 1, out);
}

/* A row has a thread for each block of 16 values, a power of two from a warp to a CTA. */
static void build_rms_norm_quantize(const device_props *props, const row_op_problem *problem, void *workspace,
                                    launch_plan *out) {
    (void)props, (void)workspace;
    norm_problem p = problem->rms_norm_quantize;
    const int64_t rows = p.q.scale_layout == NVFP4_LINEAR ? p.q.rows : ceil_div(p.q.rows, 128) * 128;
    p.q.tile_log2 = 5;
    while (1 << p.q.tile_log2 < min_int(p.q.k / 16, QUANTIZE_THREADS)) p.q.tile_log2++;
    add_launch(KERNEL_RMS_NORM_QUANTIZE + p.q.x_type - NVFP4_FP16, 1,
               p.q.l * ceil_div(rows, QUANTIZE_THREADS >> p.q.tile_log2), &p, sizeof p, out);
}

/* 8 CTAs of an SM: 128 KiB of loads at once. */
static int64_t amax_ctas(const device_props *props, const amax_problem *p) {
    return min_int(p->l * p->rows * p->chunks, min_int(AMAX_MAX_CTAS, props->sm_count * 8));
}

static int64_t amax_workspace(const device_props *props, const row_op_problem *problem) {
    const amax_problem *p = &problem->amax_scale;
    return !p->by_row && amax_ctas(props, p) > 1 ? NVFP4_AMAX_WORKSPACE : 0;
}

/* The tag of a call tells its count of arrivals from what the workspace held before. */
static void build_amax_scale(const device_props *props, const row_op_problem *problem, void *workspace,
                             launch_plan *out) {
    static _Atomic uint64_t calls;
    amax_problem p = problem->amax_scale;
    if (p.by_row) { /* a CTA a row */
        add_launch(KERNEL_AMAX_SCALE_ROWS, p.rows, 1, &p, sizeof p, out);
        return;
    }
    p.arrivals = workspace;
    p.partial = (uint32_t *)workspace + 2;
    p.tag = (atomic_fetch_add(&calls, 1) + 1) * 0x9E3779B97F4A7C15 * (AMAX_COUNT_MASK + 1ull);
    add_launch(KERNEL_AMAX_SCALE, max_int(amax_ctas(props, &p), 1), 1, &p, sizeof p, out);
}

static void add_scales(int32_t kernel, const swizzle_problem *p, launch_plan *out) {
    add_launch(kernel, ceil_div(p->columns, SWIZZLE_COLUMNS), p->l * ceil_div(p->rows, 128), p, sizeof *p, out);
}

static void build_swizzle(const device_props *props, const row_op_problem *problem, void *workspace, launch_plan *out) {
    (void)props, (void)workspace;
    add_scales(KERNEL_SWIZZLE, &problem->swizzle, out);
}

static void build_unswizzle(const device_props *props, const row_op_problem *problem, void *workspace,
                            launch_plan *out) {
    (void)props, (void)workspace;
    add_scales(KERNEL_UNSWIZZLE, &problem->swizzle, out);
}

const row_op_planner gpu_weighted_quantize_planner = {.kernels = &quantize_kernels, .build = build_quantize};
const row_op_planner gpu_silu_mul_quantize_planner = {.kernels = &quantize_kernels, .build = build_gated_quantize};
const row_op_planner gpu_amax_scale_planner = {
    .kernels = &quantize_kernels, .workspace = amax_workspace, .build = build_amax_scale};

#define X(name) const row_op_planner gpu_##name##_planner = {.kernels = &quantize_kernels, .build = build_##name};
X(quantize)
X(gptq_block) X(dequantize) X(grouped_quantize) X(gated_quantize) X(rms_norm_quantize) X(swizzle) X(unswizzle)
#undef X
