/* What the planning files of the sm90 family share: kernels by their number in its kernel_set, the operands of the mma,
 * and the dequantize pre-pass. */
#ifndef NVFP4_SM90_PLAN_H
#define NVFP4_SM90_PLAN_H

#include "common/math.h"
#include "kernels/sm90/gemm_config.h"
#include "kernels/sm90/gemv_config.h"
#include "kernels/sm90/model.h"
#include "kernels/sm90/nn_config.h"
#include "kernels/sm90/prefill_config.h"
#include "kernels/sm90/skinny_config.h"
#include "plan/gemm_family.h"
#include "plan/operands.h"

enum {
#define X(id, ...) KERNEL_##id,
    SM90_GEMM_CONFIGS(X)
#undef X
        SM90_FIRST_GEMV,
    SM90_BEFORE_GEMV = SM90_FIRST_GEMV - 1,
#define X(id, ...) KERNEL_##id,
    SM90_GEMV_CONFIGS(X)
#undef X
        SM90_FIRST_PREFILL,
    SM90_BEFORE_PREFILL = SM90_FIRST_PREFILL - 1,
#define X(id, ...) KERNEL_##id,
    SM90_PREFILL_CONFIGS(X)
#undef X
        SM90_FIRST_SKINNY,
    SM90_BEFORE_SKINNY = SM90_FIRST_SKINNY - 1,
#define X(id, ...) KERNEL_##id,
    SM90_SKINNY_CONFIGS(X)
#undef X
        SM90_FIRST_NN,
    SM90_BEFORE_NN = SM90_FIRST_NN - 1,
#define X(id, ...) KERNEL_##id,
    SM90_NN_CONFIGS(X)
#undef X
        KERNEL_SM90_DEQUANT,
    SM90_KERNELS
};

/* The multiplier of a division (CUTLASS: FastDivmod): x * f >> 31 is x / d where x * d is below 2^31. */
static inline uint32_t sm90_reciprocal(int32_t d) {
    return (uint32_t)ceil_div((int64_t)1 << 31, d);
}

/* Each kind of kernel lists its candidates and builds their launches, as a gemm_family does. */
int32_t sm90_gemm_batch_invariant(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                                  gemm_candidate *out);
int32_t sm90_gemm_candidates(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                             gemm_candidate *out);
int32_t sm90_gemv_candidates(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                             gemm_candidate *out);
int32_t sm90_prefill_candidates(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                                gemm_candidate *out);
int32_t sm90_skinny_candidates(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                               gemm_candidate *out);
/* The kernels of A . B. */
int32_t sm90_nn_candidates(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                           gemm_candidate *out);
void sm90_nn_build(const device_props *props, const gemm_problem *problem, const gemm_candidate *candidate,
                   void *workspace, launch_plan *out);
void sm90_gemm_build(const device_props *props, const gemm_problem *problem, const gemm_candidate *candidate,
                     void *workspace, launch_plan *out);
void sm90_gemv_build(const device_props *props, const gemm_problem *problem, const gemm_candidate *candidate,
                     void *workspace, launch_plan *out);
void sm90_prefill_build(const device_props *props, const gemm_problem *problem, const gemm_candidate *candidate,
                        void *workspace, launch_plan *out);
void sm90_skinny_build(const device_props *props, const gemm_problem *problem, const gemm_candidate *candidate,
                       void *workspace, launch_plan *out);

/* All candidates of A . B^T with their times under given constants. */
int32_t sm90_candidates(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                        gemm_candidate *out);

/* Shared memory that every launch of a kernel takes, in bytes. */
int32_t sm90_kernel_shared_bytes(int32_t kernel);
const char *sm90_kernel_name(int32_t kernel);

/* Type of the wgmma operands that a product needs: bf16 for bf16 A. */
static inline int32_t sm90_wgmma_type(const gemm_traits *t) {
    return t->a_type == NVFP4_BF16 ? NVFP4_BF16 : NVFP4_FP16;
}

/* An operand as a kernel reads it: e2m1 with its scales, or 16-bit in the workspace, by the pre-pass. */
typedef struct sm90_operand_size {
    int64_t rows, batches; /* batches of its tensor map: L, or 1 where one serves all */
    int64_t map_rows;      /* of its tensor map: 16-bit, whole tiles */
    int64_t dequant_bytes; /* in the workspace; 0: read as e2m1 */
} sm90_operand_size;

sm90_operand_size sm90_e2m1_operand(const gemm_traits *traits, int is_b);
/* 0: the workspace would be larger than tensor maps reach, or the pre-pass have too many CTAs. */
int sm90_fp16_operand(const gemm_traits *traits, int is_b, int32_t tile_rows, sm90_operand_size *size);

/* A or B of a problem, for the pre-pass and for in-kernel dequantize. */
sm90_dequant_operand sm90_operand_of(const gemm_problem *problem, int is_b);

/* Bytes of workspace for dequantized operands and, behind them, `more`: aligned to 256 in a workspace aligned to 16. */
int64_t sm90_workspace_bytes(int64_t dequantized, int64_t more);

/* Adds the pre-pass over mma_b and, if its size asks for it, mma_a. Sets where both lie in the workspace; mma_a, or
 * what else the workspace holds, lies behind mma_b. Returns the parameter of the launch; NULL: there is nothing to do.
 */
sm90_dequant_schedule *sm90_add_dequant(const gemm_problem *problem, int mma_b_is_b, const sm90_operand_size *mma_b,
                                        const sm90_operand_size *mma_a, void *workspace, launch_plan *out,
                                        uint8_t **mma_b_fp16, uint8_t **behind);

/* A dequantized operand: fp16 {K rounded up, rows, batches}. */
tensor_layout sm90_fp16_layout(const gemm_problem *problem, int is_b, const void *data, const sm90_operand_size *size,
                               int32_t box_rows);

#endif
