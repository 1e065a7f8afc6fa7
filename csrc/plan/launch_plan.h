/* A way to run a product, as plain data: a candidate says which kernel and how the problem is tiled; a launch plan is
 * what a candidate becomes for given operands: launches, their parameters, and the tensor maps to be encoded into the
 * parameters. The C API's nvfp4_plan describes a candidate.
 * C11 and C++17. */
#ifndef NVFP4_PLAN_LAUNCH_PLAN_H
#define NVFP4_PLAN_LAUNCH_PLAN_H

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "common/problem.h"
#include "common/tensor_layout.h"
#include "common/tensor_map.h"

enum {
    MAX_CANDIDATES = 256,
    PLAN_MAX_STEPS = 2,
    PLAN_MAX_PARAMS = 2, /* of a kernel */
    PLAN_MAX_TENSOR_MAPS = 6,
    PLAN_PARAM_BYTES = 1664,
    PLAN_TILING_BYTES = 72,
};

typedef struct gemm_candidate {
    double modelled_us; /* of a back-to-back call; candidates of all backends are ranked by it */
    double single_us;   /* modelled time of a single call with a cold L2, for reports */
    const char *name;   /* of the kernel; static, as is reason */
    const char *reason;
    int64_t grid;      /* CTAs of the GEMM kernel; 0 on the CPU */
    int64_t workspace; /* bytes of device memory; its address is aligned to 16 */
    int32_t backend;   /* nvfp4_backend */
    int32_t kernel;    /* of the backend's kernel_set; on the CPU a cpu_isa */
    int32_t swap_ab;   /* 1: B is the A operand of the mma */
    /* CTAs, or pairs of them, that share an output tile along K; 1 where a kernel splits by its own rule (sm90) */
    int32_t split_k;
    int32_t prefetch_stages;
    int32_t ctas_per_sm; /* sm100: of consecutive calls, that an SM has room for, 1 or 2; 0 elsewhere */
    int32_t tile_m, tile_n, tile_k, stages;
    int32_t batch_invariant; /* 1: chosen for a product whose rows must not depend on M */
    int32_t quantizes;       /* 1: gemm_planner.with_quantizer or with_quantized_activation made it */
    unsigned char __attribute__((aligned(8))) tiling[PLAN_TILING_BYTES]; /* TILING() */
} gemm_candidate;

/* A planner keeps what a launch needs of its tiling in the candidate, in a struct of its own:
 *     typedef struct IS_TILING sm80_tiling { ... } sm80_tiling;
 * TILING(sm80_tiling, candidate) points to it, TILING(const sm80_tiling, candidate) if the candidate is const. A struct
 * that is too large does not compile. */
#define IS_TILING __attribute__((may_alias))
#define TILING(type, candidate)                                                                                        \
    ((type *)((candidate)->tiling + 0 * sizeof(char[sizeof(type) <= PLAN_TILING_BYTES ? 1 : -1])))

typedef struct launch_step {
    int32_t kernel;  /* of the backend's kernel_set */
    int32_t cluster; /* CTAs of a cluster, along x; 0: launched without the cluster attribute */
    int64_t grid_x, grid_y, grid_z;
    int32_t shared_bytes; /* dynamic shared memory of a CTA */
    int32_t params;       /* how many the kernel has */
    int32_t param_offset[PLAN_MAX_PARAMS];
} launch_step;

typedef struct tensor_map_request {
    tensor_layout layout;
    int32_t offset; /* of the tensor map in params */
    int32_t padding_;
} tensor_map_request;

typedef struct launch_plan {
    int32_t steps, tensor_maps, param_bytes;
    launch_step step[PLAN_MAX_STEPS];
    tensor_map_request tensor_map[PLAN_MAX_TENSOR_MAPS];
#ifdef NVFP4_DUMP
    void *dump; /* nvfp4_dump: set before a backend builds the plan */
    int32_t dump_cta, dump_k_block;
#endif
    unsigned char __attribute__((aligned(64))) params[PLAN_PARAM_BYTES];
} launch_plan;

static inline void launch_plan_init(launch_plan *plan) {
    plan->steps = plan->tensor_maps = plan->param_bytes = 0;
#ifdef NVFP4_DUMP
    plan->dump = NULL;
#endif
}

/* Adds a launch of one row of CTAs without clusters, with no parameters. */
static inline launch_step *add_step(launch_plan *plan, int32_t kernel, int64_t grid_x, int32_t shared_bytes) {
    assert(plan->steps < PLAN_MAX_STEPS);
    launch_step *step = &plan->step[plan->steps++];
    memset(step, 0, sizeof *step);
    step->kernel = kernel;
    step->grid_x = grid_x;
    step->grid_y = step->grid_z = 1;
    step->shared_bytes = shared_bytes;
    return step;
}

/* Adds a parameter to a launch and returns where it lies, for the caller to fill. Aligned to 64, which tensor maps in
 * it need. Its bytes are not cleared. */
static inline void *add_param(launch_plan *plan, launch_step *step, size_t bytes) {
    assert(step->params < PLAN_MAX_PARAMS && plan->param_bytes + bytes <= PLAN_PARAM_BYTES);
    unsigned char *param = plan->params + plan->param_bytes;
    step->param_offset[step->params++] = plan->param_bytes;
    plan->param_bytes += (int32_t)((bytes + 63) / 64 * 64);
    return param;
}

/* `map` lies in a parameter of this plan; launching encodes it there. */
static inline void add_tensor_map(launch_plan *plan, const tensor_layout *layout, const tensor_map *map) {
    assert(plan->tensor_maps < PLAN_MAX_TENSOR_MAPS);
    tensor_map_request *request = &plan->tensor_map[plan->tensor_maps++];
    request->layout = *layout;
    request->offset = (int32_t)((const unsigned char *)map - plan->params);
    request->padding_ = 0;
}

/* The time of a single call with a cold L2 beyond a back-to-back one, in us, on any GPU: the median of 108 pairs of
 * medians is 3.47, of sm80's and sm90's kernels on an H200 and an H100 (benchmarks/results/h200.json, h100.json). 3.5
 * has so few bits that its difference to a modelled time is exact: both times rank candidates alike, ties included. */
#define SINGLE_CALL_US 3.5

/* Completes candidates whose model gives single_us; returns their count. */
static inline int32_t set_modelled_us(gemm_candidate *candidates, int32_t count) {
    for (int32_t i = 0; i < count; i++) candidates[i].modelled_us = candidates[i].single_us - SINGLE_CALL_US;
    return count;
}

/* The order of candidates. Ties are broken by the settings, so that the order is total. The models do not know of L2
 * prefetching, which loses on an H200 (benchmarks/b200_model.md): without comes first. */
static inline int candidate_precedes(const gemm_candidate *x, const gemm_candidate *y) {
    if (x->modelled_us != y->modelled_us) return x->modelled_us < y->modelled_us;
    if (x->prefetch_stages != y->prefetch_stages) return x->prefetch_stages < y->prefetch_stages;
    if (x->backend != y->backend) return x->backend > y->backend; /* the newer architecture */
    if (x->kernel != y->kernel) return x->kernel < y->kernel;
    if (x->swap_ab != y->swap_ab) return x->swap_ab < y->swap_ab;
    if (x->split_k != y->split_k) return x->split_k < y->split_k;
    return x->ctas_per_sm > y->ctas_per_sm;
}

#endif
