/* Tensor maps and L2 policies of the operands. Pure, as plan.h. */
#include "plan_operands.h"

/* As createpolicy.fractional gives them for the fraction 1 (PTX ISA 9.0, 9.7.9.20). */
static const uint64_t evict_normal = 0x1000000000000000, evict_first = 0x12F0000000000000,
                      evict_last = 0x14F0000000000000;

static int is_stride(int64_t bytes) {
    return bytes >= 0 && bytes < TENSOR_STRIDE_END && bytes % 16 == 0;
}

/* Where there is one row or batch the distance does not matter. */
static int is_mapped(const gemm_problem *p, int64_t rows, int64_t pitch, int64_t batch) {
    return p->aligned16 && (rows == 1 || is_stride(pitch)) && (p->l == 1 || is_stride(batch));
}

int values_are_mapped(const gemm_problem *p) {
    return is_mapped(p, p->m, p->a_pitch, p->a_batch) && is_mapped(p, p->n, p->b_pitch, p->b_batch);
}

int result_is_column(const gemm_problem *p) {
    const int64_t element = p->out_type == OUT_FP32 ? 4 : 2;
    return p->n == 1 && p->out_pitch == element && (!p->c || p->c_pitch == element) && !p->bias;
}

uint64_t mapped_stride(int64_t count, int64_t bytes) {
    return count == 1 ? 16 : (uint64_t)bytes;
}

tensor_layout values_layout(const gemm_problem *p, int is_b, int32_t box_bytes, int32_t box_rows, int32_t swizzle) {
    int64_t rows = is_b ? p->n : p->m;
    return (tensor_layout){
        .name = is_b ? "b" : "a",
        .data = is_b ? p->b : p->a,
        .element_bytes = 1,
        .rank = 3,
        .dims = {(uint64_t)p->k / 2, (uint64_t)rows, (uint64_t)p->l},
        .strides = {mapped_stride(rows, is_b ? p->b_pitch : p->a_pitch),
                    mapped_stride(p->l, is_b ? p->b_batch : p->a_batch)},
        .box = {(uint32_t)box_bytes, (uint32_t)box_rows, 1},
        .swizzle = swizzle,
    };
}

/* An operand that is read once need not stay in L2; one that is read again and again while the other streams through
 * should, if there is room for it. */
read_policies choose_policies(const device_facts *facts, const gemm_problem *p, int swap_ab, int64_t tiles_x,
                              int64_t tiles_y) {
    int a_again = p->l > 1 && p->a_batch == 0, b_again = p->l > 1 && p->b_batch == 0; /* one for all batches */
    int64_t x_rows = swap_ab ? p->n : p->m, y_rows = swap_ab ? p->m : p->n, room = facts->l2_bytes / 2;
    int x_once = tiles_y == 1 && !(swap_ab ? b_again : a_again);
    int y_once = tiles_x == 1 && !(swap_ab ? a_again : b_again);
    int x_stays = !x_once && y_once && x_rows * (p->k / 2) <= room;
    int y_stays = !y_once && x_once && y_rows * (p->k / 2) <= room;
    return (read_policies){
        .x = x_once    ? evict_first
             : x_stays ? evict_last
                       : evict_normal,
        .y = y_once    ? evict_first
             : y_stays ? evict_last
                       : evict_normal,
    };
}
