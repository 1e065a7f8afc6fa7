/* A family of GEMM kernels, and the table of all families (families.c). A new family is a folder with its kernels and
 * a gemm_family, and a row in the table. */
#ifndef NVFP4_PLAN_GEMM_FAMILY_H
#define NVFP4_PLAN_GEMM_FAMILY_H

#include "driver/device_props.h"
#include "driver/kernel_set.h"
#include "nvfp4.h"
#include "plan/launch_plan.h"
#include "plan/traits.h"

typedef struct gemm_family {
    const char *name;          /* of the backend */
    const char *runs_on;       /* for error messages, behind "runs on" */
    const kernel_set *kernels; /* NULL: a family of the host */

    /* Writes the ways to run a product, in any order, and returns how many; at most FAMILY_MAX_CANDIDATES. Depends on
     * nothing but its arguments. Sizes are at least 1, k may be 0. A family of the host gets props = NULL. */
    int32_t (*candidates)(const device_props *props, const gemm_traits *traits, gemm_candidate *out);
    /* Why there are no candidates: sets the error message and returns its status. */
    nvfp4_status (*reject)(const device_props *props, const gemm_traits *traits);
    /* Fills an initialised launch plan for a candidate of these traits; workspace is aligned to 16. GPU families. */
    void (*build)(const device_props *props, const gemm_problem *problem, const gemm_candidate *candidate,
                  void *workspace, launch_plan *out);
    /* Computes the product. Families of the host; threads: 0 means all CPUs that the process may run on. */
    nvfp4_status (*run_host)(const gemm_problem *problem, const gemm_candidate *candidate, int32_t threads);
} gemm_family;

/* By nvfp4_backend; NVFP4_AUTO has none. */
enum { GEMM_FAMILIES = NVFP4_BACKEND_SM100 + 1 };
extern const gemm_family *const gemm_families[GEMM_FAMILIES];

/* The quantisers and layout changes: kernels of kernels/quantize/. */
extern const kernel_set quantize_kernels;

#endif
