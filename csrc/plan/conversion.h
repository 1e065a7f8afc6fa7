/* The operations that are no products: quantizers, their inverse, global scales, changes of scale layout, and the steps
 * around experts. Each has a planner for the CPU and one for GPUs; their results are the same bytes. */
#ifndef NVFP4_PLAN_CONVERSION_H
#define NVFP4_PLAN_CONVERSION_H

#include "common/conversion_problem.h"
#include "driver/device_props.h"
#include "driver/kernel_set.h"
#include "nvfp4.h"
#include "plan/launch_plan.h"

typedef union conversion_problem {
    quantize_problem quantize;        /* quantize, dequantize */
    grouped_quantize_problem grouped; /* grouped_quantize, silu_mul_quantize, gated_quantize */
    norm_problem norm;
    amax_problem amax;
    swizzle_problem swizzle; /* swizzle, unswizzle */
    gated_problem gated;
    moe_route_problem moe_route;
    moe_combine_problem moe_combine;
} conversion_problem;

typedef struct conversion_planner {
    const kernel_set *kernels; /* that a launch is of. NULL: a planner of the host */
    /* Bytes of device memory that the launch needs. NULL: none. */
    int64_t (*workspace)(const device_props *props, const conversion_problem *problem);
    /* Adds the launch of a problem that is not empty. */
    void (*build)(const device_props *props, const conversion_problem *problem, void *workspace, launch_plan *out);
    /* Computes it on the host; threads: 0 means all CPUs that the process may run on. */
    nvfp4_status (*run_host)(const conversion_problem *problem, int32_t threads);
} conversion_planner;

/* The places where a conversion runs, by which its planners are indexed. */
enum { ON_HOST, ON_GPU, CONVERSION_TARGETS };

#define CONVERSIONS(X)                                                                                                 \
    X(quantize)                                                                                                        \
    X(dequantize)                                                                                                      \
    X(silu_mul_quantize)                                                                                               \
    X(grouped_quantize)                                                                                                \
    X(gated_quantize)                                                                                                  \
    X(rms_norm_quantize)                                                                                               \
    X(amax_scale)                                                                                                      \
    X(swizzle)                                                                                                         \
    X(unswizzle)                                                                                                       \
    X(gated)                                                                                                           \
    X(moe_route)                                                                                                       \
    X(moe_combine)
#define X(name) extern const conversion_planner cpu_##name##_planner, gpu_##name##_planner;
CONVERSIONS(X)
#undef X

extern const kernel_set quantize_kernels, moe_kernels;

#endif
