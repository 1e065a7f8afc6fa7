/* Row ops: the operations that are no products and go through a matrix row by row. They are the quantizers, their
 * inverse, global scales, changes of scale layout, and the steps around experts. Each has a planner for the CPU and one
 * for GPUs; their results are the same bytes. */
#ifndef NVFP4_PLAN_ROW_OP_H
#define NVFP4_PLAN_ROW_OP_H

#include "common/device_props.h"
#include "common/kernel_set.h"
#include "common/row_op_problems.h"
#include "nvfp4.h"
#include "plan/launch_plan.h"

typedef union row_op_problem {
#define NVFP4_ROW_OP(name, args, problem) problem##_problem name;
#include "operations.def"
} row_op_problem;

typedef struct row_op_planner {
    const kernel_set *kernels; /* that a launch is of. NULL: a planner of the host */
    /* Bytes of device memory that the launch needs. NULL: none. */
    int64_t (*workspace)(const device_props *props, const row_op_problem *problem);
    /* Adds the launch of a problem that is not empty. */
    void (*build)(const device_props *props, const row_op_problem *problem, void *workspace, launch_plan *out);
    /* Computes it on the host; threads: 0 means all CPUs that the process may run on. */
    nvfp4_status (*run_host)(const row_op_problem *problem, int32_t threads);
} row_op_planner;

/* The places where a row op runs, by which its planners are indexed. */
enum { ON_HOST, ON_GPU, ROW_OP_TARGETS };

#define NVFP4_ROW_OP(name, args, problem) extern const row_op_planner cpu_##name##_planner, gpu_##name##_planner;
#include "operations.def"

extern const kernel_set quantize_kernels, moe_kernels;

#endif
