/* The steps around experts on the GPU: kernels by their number in the set, and their launches. */
#include "common/math.h"
#include "kernels/moe/kernels.h"
#include "plan/row_op.h"

/* The numbers of the kernels in the set. */
enum {
    KERNEL_GATED, /* + nvfp4_activation */
    KERNEL_ROUTE = 4,
    KERNEL_COMBINE,
    MOE_KERNELS
};

#define ROW(symbol, source_, threads_)                                                                                 \
    {.name = "nvfp4_" symbol, .source = "moe_" source_, .threads = threads_, .pdl = 1}
static const kernel_entry kernels[MOE_KERNELS] = {
    [KERNEL_GATED + NVFP4_SILU] = ROW("gated_silu", "gated", ROWS_THREADS),
    [KERNEL_GATED + NVFP4_GELU_TANH] = ROW("gated_gelu_tanh", "gated", ROWS_THREADS),
    [KERNEL_GATED + NVFP4_RELU2] = ROW("gated_relu2", "gated", ROWS_THREADS),
    [KERNEL_GATED + NVFP4_SWIGLU] = ROW("gated_swiglu", "gated", ROWS_THREADS),
    [KERNEL_ROUTE] = ROW("moe_route", "route", ROUTE_THREADS),
    [KERNEL_COMBINE] = ROW("moe_combine", "combine", ROWS_THREADS),
};
const kernel_set moe_kernels = {
    .kernels = kernels, .count = MOE_KERNELS, .min_capability = 80, .max_capability = INT32_MAX};

/* The threads that a CTA has in a row, a power of two: all of them, or what the columns need. */
static int32_t tile_log2_of(int64_t columns) {
    int32_t log2 = 0;
    while (1 << log2 < min_int(ceil_div(columns, ROWS_COLUMNS), ROWS_THREADS)) log2++;
    return log2;
}

/* Adds the launch of a kernel whose threads have columns of a row. */
static void add_rows(int32_t kernel, int64_t rows, int64_t columns, int32_t tile_log2, const void *problem,
                     size_t bytes, launch_plan *out) {
    const int64_t down = ceil_div(rows, ROWS_THREADS >> tile_log2);
    launch_step *step = add_step(out, kernel, ceil_div(columns, (int64_t)ROWS_COLUMNS << tile_log2), 0);
    step->grid_y = min_int(down, UINT16_MAX);
    step->grid_z = ceil_div(down, UINT16_MAX);
    memcpy(add_param(out, step, bytes), problem, bytes);
}

static void build_gated(const device_props *props, const row_op_problem *problem, void *workspace, launch_plan *out) {
    gated_problem p = problem->gated;
    (void)props, (void)workspace;
    p.tile_log2 = tile_log2_of(p.columns);
    add_rows(KERNEL_GATED + p.activation, p.l * p.rows, p.columns, p.tile_log2, &p, sizeof p, out);
}

static void build_moe_route(const device_props *props, const row_op_problem *problem, void *workspace,
                            launch_plan *out) {
    moe_route_problem p = problem->moe_route;
    (void)workspace;
    const int64_t most = min_int(ROUTE_THREADS / 32, ROUTE_COUNTERS / p.experts), chunks = ceil_div(p.choices, 32);
    p.segments = (int32_t)max_int(1, min_int(most, chunks));
    const int64_t ctas = max_int(1, min_int(ceil_div(chunks, p.segments), min_int(ROUTE_MAX_CTAS, props->sm_count)));
    p.segment = 32 * max_int(1, ceil_div(chunks, p.segments * ctas));
    launch_step *step = add_step(out, KERNEL_ROUTE, max_int(1, ceil_div(p.choices, p.segments * p.segment)), 0);
    memcpy(add_param(out, step, sizeof p), &p, sizeof p);
}

static void build_moe_combine(const device_props *props, const row_op_problem *problem, void *workspace,
                              launch_plan *out) {
    moe_combine_problem p = problem->moe_combine;
    (void)props, (void)workspace;
    p.tile_log2 = tile_log2_of(p.columns);
    add_rows(KERNEL_COMBINE, p.tokens, p.columns, p.tile_log2, &p, sizeof p, out);
}

#define X(name) const row_op_planner gpu_##name##_planner = {.kernels = &moe_kernels, .build = build_##name};
X(gated) X(moe_route) X(moe_combine)
#undef X
