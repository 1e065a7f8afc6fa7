/* How plans describe operands to kernels and to the hardware: addresses and strides, tensor maps of values, and L2
 * cache policies. C11 and C++17. */
#ifndef NVFP4_PLAN_OPERANDS_H
#define NVFP4_PLAN_OPERANDS_H

#include "common/device_props.h"
#include "common/mma_operand.h"
#include "plan/launch_plan.h"
#include "plan/traits.h"

/* A dimension of size 1 may have any stride in a tensor map, but a valid one. */
static inline uint64_t tensor_stride(int64_t size, int64_t bytes) {
    return size == 1 ? 16 : (uint64_t)bytes;
}

/* The values of A, or of B, as bytes {K/2, rows, batches} in boxes of box_bytes along K by box_rows. */
static inline tensor_layout values_layout(const gemm_problem *p, int is_b, int64_t batches, int32_t box_bytes,
                                          int32_t box_rows, int32_t swizzle) {
    const int64_t rows = is_b ? p->n : p->m;
    tensor_layout t;
    memset(&t, 0, sizeof t);
    t.name = is_b ? "b" : "a";
    t.data = is_b ? p->b : p->a;
    t.element_bytes = 1;
    t.rank = 3;
    t.dims[0] = (uint64_t)p->k / 2, t.dims[1] = (uint64_t)rows, t.dims[2] = (uint64_t)batches;
    t.strides[0] = tensor_stride(rows, is_b ? p->b_pitch : p->a_pitch);
    t.strides[1] = tensor_stride(batches, is_b ? p->b_batch : p->a_batch);
    t.box[0] = (uint32_t)box_bytes, t.box[1] = (uint32_t)box_rows, t.box[2] = 1;
    t.swizzle = swizzle;
    return t;
}

/* All of an operand but the tensor map. */
static inline void fill_operand(const gemm_problem *p, int is_b, uint64_t cache_policy, mma_operand *o) {
    o->data = is_b ? p->b : p->a;
    o->scale = is_b ? p->scale_b : p->scale_a;
    o->pitch = is_b ? p->b_pitch : p->a_pitch;
    o->batch = is_b ? p->b_batch : p->a_batch;
    o->scale_pitch = is_b ? p->scale_b_pitch : p->scale_a_pitch;
    o->scale_batch = is_b ? p->scale_b_batch : p->scale_a_batch;
    o->cache_policy = cache_policy;
    o->rows = (int32_t)(is_b ? p->n : p->m);
}

/* Results of createpolicy.fractional for the fraction 1 (PTX ISA 9.0, 9.7.9.20). */
static const uint64_t L2_EVICT_NORMAL = 0x1000000000000000, L2_EVICT_FIRST = 0x12F0000000000000,
                      L2_EVICT_LAST = 0x14F0000000000000;

/* L2 cache policies of the two operands of the mma. */
typedef struct cache_policies {
    uint64_t mma_a, mma_b;
} cache_policies;

/* An operand that is read once need not stay in L2, nor B where all its readers run at the same time. One that is read
 * again while the other passes through should stay if it takes at most half of L2. */
static inline cache_policies choose_cache_policies(const device_props *props, const gemm_problem *p, int swap_ab,
                                                   int64_t tiles_mma_m, int64_t tiles_mma_n, int b_at_once) {
    const int a_again = p->l > 1 && p->a_batch == 0, b_again = p->l > 1 && p->b_batch == 0; /* one for all batches */
    const int64_t room = props->l2_bytes / 2, row = p->k / 2;
    const int64_t mma_m = swap_ab ? p->n : p->m, mma_n = swap_ab ? p->m : p->n;
    const int mma_a_once = (b_at_once && swap_ab) || (tiles_mma_n == 1 && !(swap_ab ? b_again : a_again));
    const int mma_b_once = (b_at_once && !swap_ab) || (tiles_mma_m == 1 && !(swap_ab ? a_again : b_again));
    const int mma_a_stays = !mma_a_once && mma_b_once && mma_m * row <= room;
    const int mma_b_stays = !mma_b_once && mma_a_once && mma_n * row <= room;
    cache_policies policies;
    policies.mma_a = mma_a_once ? L2_EVICT_FIRST : mma_a_stays ? L2_EVICT_LAST : L2_EVICT_NORMAL;
    policies.mma_b = mma_b_once ? L2_EVICT_FIRST : mma_b_stays ? L2_EVICT_LAST : L2_EVICT_NORMAL;
    return policies;
}

#endif
