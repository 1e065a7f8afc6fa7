/* Which sm90 kernels run a product, how it is cut up, and what its tensor maps describe. Pure, as plan.h. */
#ifndef NVFP4_SM90_PLAN_H
#define NVFP4_SM90_PLAN_H

#include "device/problem.h"
#include "nvfp4.h"
#include "plan.h"
#include "plan_operands.h"
#include "sm90_configs.h"
#include "sm90_gemv_configs.h"
#include "sm90_prefill_plan.h"

typedef enum sm90_form {
    SM90_GEMM,  /* sm90_gemm.cu: x is decoded beside the tensor core, y expanded before */
    SM90_GEMV,  /* sm90_gemv.cu: a few rows of A, no tensor core */
    SM90_DENSE, /* sm90_prefill.cu: larger tiles, x raw or expanded as well */
} sm90_form;

typedef struct sm90_run {
    sm90_form form;
    sm90_dequant_run expand; /* into the workspace; not of SM90_GEMV */
    union {
        sm90_schedule gemm;
        sm90_gemv_schedule gemv;
        sm90_prefill_schedule dense;
    };
} sm90_run;

/* Fills the plan, and what its kernels are given but for tensor maps and the workspace; without a wish by the estimate
 * alone. Sizes of the problem are at least 1 (k may be 0). Fails, with a sentence, only where no configuration fits the
 * device or the tiles cannot be counted. */
nvfp4_status sm90_plan(const device_facts *facts, const gemm_problem *problem, const plan_wish *wish, nvfp4_plan *plan,
                       sm90_run *run);

/* Whether sm80 should run this product where nobody has asked for sm90, nor for this plan of it: what both operands
 * have to be expanded for, because of how they lie, is slower than that unless there are many rows. */
int sm90_yields_to_sm80(const device_facts *facts, const gemm_problem *problem, const plan_wish *wish,
                        const nvfp4_plan *plan);

/* Says where the workspace is, aligned to 16. */
void sm90_place_workspace(sm90_run *run, void *workspace);

/* The tensor maps of a planned product, 0 to PLAN_MOST_TENSORS of them; returns how many. Of what is expanded they
 * describe the workspace, after sm90_place_workspace. */
int sm90_tensors(const gemm_problem *problem, const nvfp4_plan *plan, sm90_run *run,
                 plan_tensor tensors[PLAN_MOST_TENSORS]);

/* CTAs of a cluster, 0: no clusters; and of the grid along x. */
int32_t sm90_cluster(const nvfp4_plan *plan, const sm90_run *run);
int64_t sm90_grid_x(const nvfp4_plan *plan, const sm90_run *run);

/* Bytes of shared memory that the product takes beyond what its kernel always has. */
int32_t sm90_more_shared_bytes(const nvfp4_plan *plan, const sm90_run *run);

#endif
