/* A backend, and the table of all backends (backends.c). A new backend is a folder with its kernels and
 * a gemm_backend, and a row of backends.def (CONTRIBUTING.md). */
#ifndef NVFP4_PLAN_GEMM_BACKEND_H
#define NVFP4_PLAN_GEMM_BACKEND_H

#include "common/device_props.h"
#include "common/kernel_set.h"
#include "common/math.h"
#include "nvfp4.h"
#include "plan/launch_plan.h"
#include "plan/product_problem.h"
#include "plan/traits.h"

/* The way in which a backend runs one kind of product. A planner is asked only for products whose A it takes. */
typedef struct gemm_planner {
    uint32_t a_types;       /* bit d: A may have nvfp4_dtype d; bit VALUES_E2M1: A may be in the format */
    int32_t takes_by_batch; /* 1: alpha and bias may be those of a batch */
    int32_t a16_rows;       /* that a 16-bit A may have at most; 0: any number */
    uint32_t tma_a_types;   /* those of them for which scales must be 128x4, and tensor maps reach values of A and B */

    /* Writes the candidates of a product, in any order, and returns how many; at most MAX_CANDIDATES. Depends
     * on nothing but its arguments. Sizes are at least 1, k may be 0. A backend of the host gets NULL for props and
     * traits, here and in reject, and writes at most one. */
    int32_t (*candidates)(const device_props *props, const gemm_traits *traits, gemm_candidate *out);
    /* The same for a product whose rows must have the same bits for every M: the candidates that add along K in the one
     * order which the backend takes for such products. The order follows from the device and from all traits but M and
     * the rows' distances. -1: the backend has no order that serves every M; 0: none for this M, since it is too large.
     * NULL: as -1. A backend of the host has one candidate, whose batch_invariant its run_host obeys. */
    int32_t (*batch_invariant)(const device_props *props, const gemm_traits *traits, gemm_candidate *out);
    /* Launches of which one quantizes A too, with the bits of a candidate of the product of the quantized A. 0: there
     * are none, or they take longer than a quantizer and that candidate. They are built of a quantize_gemm_problem.
     * NULL: none. */
    int32_t (*with_quantizer)(const device_props *props, const quantize_gemm_problem *problem, const gemm_candidate *of,
                              gemm_candidate *out);
    /* One kernel that computes the activation of a product of groups too, with the bits of a candidate of the product
     * and of `gated`. 0: there is none, or two launches are modelled or measured to be faster. NULL: none. */
    int32_t (*with_activation)(const device_props *props, const grouped_problem *problem, const gemm_candidate *of,
                               gemm_candidate *out);
    /* The same for a kernel that quantizes the activation, with the bytes of gated_quantize. It is built of a
     * gated_grouped_quantize_problem. NULL: none. */
    int32_t (*with_quantized_activation)(const device_props *props, const gated_grouped_quantize_problem *problem,
                                         const gemm_candidate *of, gemm_candidate *out);
    /* Says why there are no candidates: sets the error message and returns its status. */
    nvfp4_status (*reject)(const device_props *props, const gemm_traits *traits);
    /* Fills an initialized launch plan for a candidate of this problem; workspace is aligned to 16. GPU backends only.
     */
    void (*build)(const device_props *props, const product_problem *problem, const gemm_candidate *candidate,
                  void *workspace, launch_plan *out);
    /* Computes the product. Backends of the host; threads: 0 means all CPUs that the process may run on. */
    nvfp4_status (*run_host)(const product_problem *problem, const gemm_candidate *candidate, int32_t threads);
} gemm_planner;

enum { TAKES_E2M1 = 1 << VALUES_E2M1, TAKES_16_BIT = 1 << NVFP4_FP16 | 1 << NVFP4_BF16 }; /* for a_types */

/* Roundings to fp32 that a sum of k products has at most, each of half a unit in the last place of the sum of absolute
 * values so far: per_block * (k / block_k) + constant (tests/ops/test_gemm_bounds.py derives them). */
typedef struct rounding_bound {
    int32_t per_block, block_k, constant; /* block_k = 0: each kernel has a bound of its own */
} rounding_bound;

typedef struct gemm_backend {
    const char *name, *runs_on, *architectures;  /* BACKEND_ROW: of its row in backends.def */
    const kernel_set *kernels;                   /* NULL: a backend of the host */
    const gemm_planner *planners[PRODUCT_KINDS]; /* by product_kind; NULL: the backend does not take it */
    rounding_bound roundings, a16_roundings;     /* the latter with a 16-bit A; all 0: the same */
    /* Says what the times of candidates on a device come from, for nvfp4_plan.model. NULL: a backend of the host. */
    const char *(*model)(const device_props *props);
} gemm_backend;

/* gemm_backend.model of a backend none of whose GPUs was measured. */
static inline const char *model_of_data_sheets(const device_props *props) {
    (void)props;
    return "from data sheets; no GPU of this kind was measured";
}

/* Completes candidates of a backend whose model gives single_us: its number, the names of its kernels, modelled_us.
 * Returns their count. */
static inline int32_t complete_candidates(int32_t backend, const kernel_entry *kernels, gemm_candidate *candidates,
                                          int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        candidates[i].backend = backend;
        candidates[i].name = kernels[candidates[i].kernel].name;
    }
    return set_modelled_us(candidates, count);
}

/* The parts of K of a batch-invariant product, for kernels in which each CTA of a cluster keeps some columns of a tile.
 * Which CTA adds a column depends on the tile; the sum of two parts does not depend on that, the sum of three does. So
 * K has 2 parts if one row of tiles leaves half of the SMs idle and there are two stages, else 1. */
static inline int32_t batch_invariant_split_k(const device_props *props, const gemm_traits *t, int32_t tile,
                                              int32_t stage_k) {
    return 2 * ceil_div(t->n, tile) <= props->sm_count && t->k > stage_k ? 2 : 1;
}

/* Keeps the candidates with this split_k, in their order; returns how many. */
static inline int32_t keep_split_k(gemm_candidate *all, int32_t count, int32_t split_k) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++)
        if (all[i].split_k == split_k) all[kept++] = all[i];
    return kept;
}

/* The first members of a gemm_backend: `const gemm_backend sm90_backend = {BACKEND_ROW(sm90), .kernels = ...};`. */
#define NVFP4_BACKEND(ID, name, runs_on, architectures)                                                                \
    static const char name##_name[] = #name, name##_runs_on[] = runs_on, name##_architectures[] = architectures;
#include "backends.def"
#define BACKEND_ROW(backend)                                                                                           \
    .name = backend##_name, .runs_on = backend##_runs_on, .architectures = backend##_architectures

/* The table is indexed by nvfp4_backend; the row of NVFP4_AUTO is NULL. */
enum {
#define NVFP4_BACKEND(...) +1
    GEMM_BACKENDS = 1
#include "backends.def"
};
extern const gemm_backend *const gemm_backends[GEMM_BACKENDS];

/* The planner of a backend for a kind of product with an A of this type; NULL: the backend does not take it. */
static inline const gemm_planner *planner_of(int32_t backend, int32_t kind, int32_t a_type) {
    const gemm_planner *planner = gemm_backends[backend] ? gemm_backends[backend]->planners[kind] : NULL;
    return planner && planner->a_types >> a_type & 1 ? planner : NULL;
}

/* The same for a product whose alpha or bias may be those of a batch. */
static inline const gemm_planner *planner_taking(int32_t backend, int32_t kind, int32_t a_type, int32_t by_batch) {
    const gemm_planner *planner = planner_of(backend, kind, a_type);
    return planner && (planner->takes_by_batch || !by_batch) ? planner : NULL;
}

#endif
