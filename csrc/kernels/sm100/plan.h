/* The candidates and launches of the sm100 backend (plan.c). C11 and C++17. */
#ifndef NVFP4_SM100_PLAN_H
#define NVFP4_SM100_PLAN_H

#include "kernels/sm100/model.h"
#include "plan/operands.h"

/* An instantiation. */
typedef struct sm100_config {
    const char *name;
    int32_t cta_group, mma_tile_n, stages, accumulators, cp_async, multicast;
    int32_t shared_bytes, threads;
    int32_t co_resident;       /* 1: an SM has shared and tensor memory for two CTAs */
    const char *reasons[2][2]; /* by swap_ab, by whether K is split */
} sm100_config;

enum {
#define X(...) +1
    SM100_CONFIGS = 0 SM100_GEMM_CONFIGS(X)
#undef X
};
extern const sm100_config sm100_configs[SM100_CONFIGS];

/* All candidates with their times under given constants, at most MAX_CANDIDATES, without the backend. */
int32_t sm100_candidates(const sm100_model *model, const device_props *props, const gemm_traits *traits,
                         gemm_candidate *out);

/* The 128x4 scales of an operand with so many blocks of 128 rows and so many batches, in boxes of a stage along K by a
 * block. Atoms are 256 elements of 2 bytes, since a box has at most 256 along a dimension. Inlined, as is its caller:
 * gcc does not by itself, and each call takes 50 ns more. */
static inline tensor_layout sm100_scales_layout(const gemm_problem *p, int is_b, const mma_operand *o, int64_t blocks,
                                                int64_t batches) {
    tensor_layout t;
    memset(&t, 0, sizeof t);
    t.name = is_b ? "scale_b" : "scale_a";
    t.data = o->scale;
    t.element_bytes = 2;
    t.rank = 4;
    t.dims[0] = SM100_ATOM_BYTES / 2, t.dims[1] = (uint64_t)p->k / SM100_MMA_K;
    t.dims[2] = (uint64_t)blocks, t.dims[3] = (uint64_t)batches;
    t.strides[0] = SM100_ATOM_BYTES;
    t.strides[1] = tensor_stride(blocks, o->scale_pitch), t.strides[2] = tensor_stride(batches, o->scale_batch);
    t.box[0] = SM100_ATOM_BYTES / 2, t.box[1] = SM100_STAGE_ATOMS, t.box[2] = t.box[3] = 1;
    return t;
}

/* Whether two columns of C can be stored as 32 bits. */
static inline int32_t sm100_column_pairs(const gemm_problem *p, int32_t swap_ab) {
    const int64_t strides = p->out_pitch | (p->l > 1 ? p->out_batch : 0);
    return swap_ab && p->out_type != NVFP4_FP32 && p->n % 2 == 0 && ((int64_t)(uintptr_t)p->out | strides) % 4 == 0;
}

void sm100_build(const device_props *props, const gemm_problem *problem, const gemm_candidate *candidate,
                 launch_plan *out);

#endif
