/* How the matrices of a product lie in memory: whether tensor maps reach them, what such maps describe, and how long
 * they are worth keeping in L2. For the families that copy by TMA. */
#ifndef NVFP4_PLAN_OPERANDS_H
#define NVFP4_PLAN_OPERANDS_H

#include "device/problem.h"
#include "device/tensor_map.h"
#include "plan.h"

/* Whether tensor maps reach the values of both operands. */
int values_are_mapped(const gemm_problem *problem);

/* Whether the result (and c) is one column whose elements are neighbours, as the row that is its transpose would lie.
 * Not so with a bias, which has one number a column. */
int result_is_column(const gemm_problem *problem);

/* The distance of what there is only one of is free, but must be a valid one. */
uint64_t mapped_stride(int64_t count, int64_t bytes);

/* The values of one operand (is_b: of B) as bytes {K/2, rows, L}, in boxes of so many bytes along K and rows. */
tensor_layout values_layout(const gemm_problem *problem, int is_b, int32_t box_bytes, int32_t box_rows,
                            int32_t swizzle);

/* A tensor map that a planned product needs: what is encoded, and where in the schedule. */
typedef struct plan_tensor {
    tensor_layout layout;
    tensor_map *map;
} plan_tensor;
enum { PLAN_MOST_TENSORS = 4 };

/* L2 cache policies for the two sides of the product; x is B where swap_ab. */
typedef struct read_policies {
    uint64_t x, y;
} read_policies;
read_policies choose_policies(const device_facts *facts, const gemm_problem *problem, int swap_ab, int64_t tiles_x,
                              int64_t tiles_y);

#endif
