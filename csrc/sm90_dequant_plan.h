/* What the sm90 kernels that read expanded operands have in common: how an operand lies before and after
 * sm90_dequant.cu, the launch that expands, the workspace. */
#ifndef NVFP4_SM90_DEQUANT_PLAN_H
#define NVFP4_SM90_DEQUANT_PLAN_H

#include "device/problem.h"
#include "plan_operands.h"
#include "sm90_prefill_configs.h"

/* One operand, raw or to be expanded. */
typedef struct sm90_side {
    int64_t batches;  /* of its tensor map and of its expansion: L, or 1 where one serves all */
    int64_t expanded; /* bytes; 0: it is read as it lies */
    sm90_dequant_operand operand;
} sm90_side;

/* Operand A or B; 0: it cannot be done so. */
int sm90_expanded_side(const gemm_problem *problem, int is_b, sm90_side *side);
void sm90_raw_side(const gemm_problem *problem, int is_b, sm90_side *side);

/* The launch of sm90_dequant.cu, which comes before the product; grid 0: there is none. */
typedef struct sm90_dequant_run {
    sm90_dequant_schedule schedule;
    int64_t grid;
    int64_t second_at; /* bytes of the workspace from the first operand on to the second, or what comes in its place */
    int64_t flags_at;  /* and to the flags, where there are any */
} sm90_dequant_run;

/* For y and, where it is to be expanded, x; returns the bytes of workspace. */
size_t sm90_plan_expansion(const gemm_problem *problem, const sm90_side *y, const sm90_side *x, sm90_dequant_run *run);
/* Says where the workspace is, aligned to 16. */
void sm90_place_expansion(sm90_dequant_run *run, void *workspace);

/* Tensor maps of an expanded operand and of a raw one. */
tensor_layout sm90_expanded_layout(const gemm_problem *problem, int is_b, const void *data, int64_t rows,
                                   int64_t batches, int32_t box_rows);
tensor_layout sm90_raw_layout(const gemm_problem *problem, int is_b, int64_t batches, int32_t box_bytes,
                              int32_t box_rows);

#endif
