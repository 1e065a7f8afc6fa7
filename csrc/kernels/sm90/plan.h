/* Shared by the planning files of the sm90 backend: the kinds of its kernels, the operands of the mma, and the
 * dequantize pre-pass. */
#ifndef NVFP4_SM90_PLAN_H
#define NVFP4_SM90_PLAN_H

#include <math.h>

#include "common/grouped_problem.h"
#include "common/math.h"
#include "kernels/sm90/gemm_config.h"
#include "kernels/sm90/gemv_config.h"
#include "kernels/sm90/grouped_config.h"
#include "kernels/sm90/grouped_few_config.h"
#include "kernels/sm90/grouped_units_config.h"
#include "kernels/sm90/model.h"
#include "kernels/sm90/nn_config.h"
#include "kernels/sm90/prefill_config.h"
#include "kernels/sm90/units_config.h"
#include "kernels/units/plan.h"
#include "plan/even_routing.h"
#include "plan/gemm_backend.h"
#include "plan/operands.h"

/* The kinds of kernels, in the order of their numbers in the backend's kernel_set: a name, the instantiations, and how
 * one is loaded. A new kind is a row here and the files NAME.cu, NAME_config.h and NAME_plan.c, which defines
 * sm90_NAME_kind; those of gemv_quantize are gemv's. units and grouped_units are instantiations of kernels/units. */
#define SM90_KINDS(X)                                                                                                  \
    X(gemm, SM90_GEMM_CONFIGS, SM90_GEMM_ENTRY)                                                                        \
    X(gemv, SM90_GEMV_CONFIGS, SM90_GEMV_ENTRY)                                                                        \
    X(prefill, SM90_PREFILL_CONFIGS, SM90_PREFILL_ENTRY)                                                               \
    X(units, SM90_UNITS_CONFIGS, SM90_UNITS_ENTRY)                                                                     \
    X(nn, SM90_NN_CONFIGS, SM90_NN_ENTRY)                                                                              \
    X(grouped_few, SM90_GROUPED_FEW_CONFIGS, SM90_GROUPED_FEW_ENTRY)                                                   \
    X(grouped_units, SM90_GROUPED_UNITS_CONFIGS, SM90_GROUPED_UNITS_ENTRY)                                             \
    X(grouped, SM90_GROUPED_CONFIGS, SM90_GROUPED_ENTRY)                                                               \
    X(gemv_quantize, SM90_GEMV_QUANTIZE_CONFIGS, SM90_GEMV_ENTRY)

/* Numbers of the kernels. */
enum {
#define NUMBER(id, ...)         KERNEL_##id,
#define X(kind, configs, entry) configs(NUMBER)
    SM90_KINDS(X)
#undef X
#undef NUMBER
        KERNEL_SM90_DEQUANT,
    KERNEL_SM90_FAKE_QUANTIZE_FP16,
    KERNEL_SM90_FAKE_QUANTIZE_BF16,
    KERNEL_SM90_REORDER,
    KERNEL_SM90_REORDER_E2M1,
    SM90_KERNELS
};

/* How the kernels of a kind are planned: functions as in a gemm_backend. plan.c adds the backend and the kernel's name
 * to the candidates. */
typedef struct sm90_kind {
    product_kind product_kind; /* PRODUCT_KINDS: none, a kind that stands for a candidate of another */
    int32_t (*candidates)(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                          gemm_candidate *out);
    /* NULL: no order of additions serves every M. */
    int32_t (*batch_invariant)(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                               gemm_candidate *out);
    /* See gemm_planner. It is asked for a candidate of this kind, and compares no times. NULL: none. */
    int32_t (*with_activation)(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                               const gemm_candidate *of, gemm_candidate *out);
    /* The same for a quantizer of A, 16-bit numbers on 16 bytes in NVFP4_AMAX6. The backend sets `quantizes`. */
    int32_t (*with_quantizer)(const device_props *props, const quantize_gemm_problem *problem, const gemm_candidate *of,
                              gemm_candidate *out);
    void (*build)(const device_props *props, const product_problem *problem, const gemm_candidate *candidate,
                  void *workspace, launch_plan *out);
} sm90_kind;

#define X(kind, ...) extern const sm90_kind sm90_##kind##_kind;
SM90_KINDS(X)
#undef X

/* The fastest of some candidates. 0: there are none, and `out` stays. */
static inline int32_t sm90_take_fastest(const gemm_candidate *all, int32_t count, gemm_candidate *out) {
    int32_t fastest = 0;
    for (int32_t i = 1; i < count; i++)
        if (all[i].single_us < all[fastest].single_us) fastest = i;
    if (count) *out = all[fastest];
    return count > 0;
}

/* The constants of the card that was measured, or of the nearest one, scaled by the device's clock, memory and L2. */
sm90_model sm90_model_on(const device_props *props);
/* The name of that card, for nvfp4_plan.model. */
const char *sm90_model_name(const device_props *props);

/* All candidates of the product with their times under given constants. */
int32_t sm90_candidates(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                        gemm_candidate *out);

/* gemm_planner.with_activation under given constants. */
int32_t sm90_with_activation(const sm90_model *model, const device_props *props, const gemm_traits *traits,
                             const gemm_candidate *of, gemm_candidate *out);

/* The multiplier of a division (CUTLASS: FastDivmod): x * f >> 31 is x / d where x * d is below 2^31. */
static inline uint32_t sm90_reciprocal(int32_t d) {
    return (uint32_t)ceil_div((int64_t)1 << 31, d);
}

/* Whether scales are 128x4 and tensor maps describe the values. */
static inline int sm90_reaches(const gemm_traits *t) {
    return t->scale_layout == NVFP4_128X4 && t->tma_values;
}

/* Type of the wgmma operands that a product needs: bf16 for bf16 A. */
static inline int32_t sm90_wgmma_type(const gemm_traits *t) {
    return t->a_type == NVFP4_BF16 ? NVFP4_BF16 : NVFP4_FP16;
}

/* An operand as a kernel reads it: e2m1 with its scales, or 16-bit in the workspace, by the pre-pass. */
typedef struct sm90_operand_size {
    int64_t dequant_bytes; /* in the workspace; 0: read as e2m1 */
    int64_t map_rows;      /* of its tensor map: 16-bit, whole tiles */
    int32_t rows, batches; /* batches of its tensor map: L, or 1 where one serves all */
} sm90_operand_size;

sm90_operand_size sm90_e2m1_operand(const gemm_traits *traits, int is_b);
/* 0: the workspace would be larger than tensor maps reach, or the pre-pass have too many CTAs. */
int sm90_fp16_operand(const gemm_traits *traits, int is_b, int32_t tile_rows, sm90_operand_size *size);

/* A or B of a problem, for the pre-pass and for in-kernel dequantize. */
sm90_dequant_operand sm90_operand_of(const gemm_problem *problem, int is_b);

/* Bytes of workspace for dequantized operands and, behind them, `more`: aligned to 256 in a workspace aligned to 16. */
int64_t sm90_workspace_bytes(int64_t dequantized, int64_t more);

/* Turns the last launch, a pre-pass over `operand`, into one that quantizes and dequantizes x. */
void sm90_quantize_operand(const quantize_problem *problem, sm90_dequant_operand *operand, sm90_dequant_schedule *s,
                           launch_plan *out);

/* Adds the pre-pass over mma_b and, if its size asks for it, mma_a. Sets where both lie in the workspace; mma_a, or
 * what else the workspace holds, lies behind mma_b. Returns the parameter of the launch; NULL: there is nothing to do.
 */
sm90_dequant_schedule *sm90_add_dequant(const gemm_problem *problem, int mma_b_is_b, const sm90_operand_size *mma_b,
                                        const sm90_operand_size *mma_a, void *workspace, launch_plan *out,
                                        uint8_t **mma_b_fp16, uint8_t **behind);

/* The same for the first rows and values along K of mma_b, if one matrix of it serves all batches. */
sm90_dequant_schedule *sm90_add_dequant_part(const gemm_problem *problem, int mma_b_is_b,
                                             const sm90_operand_size *mma_b, int64_t rows, int64_t k,
                                             const sm90_operand_size *mma_a, void *workspace, launch_plan *out,
                                             uint8_t **mma_b_fp16, uint8_t **behind);

/* A dequantized operand: fp16 {K rounded up, rows, batches}. */
tensor_layout sm90_fp16_layout(const gemm_problem *problem, int is_b, const void *data, const sm90_operand_size *size,
                               int32_t box_rows);

#endif
