/* The dequantize pre-pass (dequant.cu): which operands, where in the workspace, how many CTAs. */
#include "kernels/sm90/plan.h"

enum {
    WORKSPACE_ALIGNMENT = 256, /* that the kernels need, */
    CALLER_ALIGNMENT = 16,     /* and that a workspace has */
    MAX_ONE_ROW_CTAS = 264, /* of one row a thread: two an SM of an H200; with fewer SMs than CTAs it only costs time */
};

sm90_dequant_operand sm90_operand_of(const gemm_problem *p, int is_b) {
    return (sm90_dequant_operand){.data = is_b ? p->b : p->a,
                                  .scale = is_b ? p->scale_b : p->scale_a,
                                  .pitch = is_b ? p->b_pitch : p->a_pitch,
                                  .batch = is_b ? p->b_batch : p->a_batch,
                                  .scale_pitch = is_b ? p->scale_b_pitch : p->scale_a_pitch,
                                  .scale_batch = is_b ? p->scale_b_batch : p->scale_a_batch,
                                  .rows = (int32_t)(is_b ? p->n : p->m),
                                  .type = is_b ? VALUES_E2M1 : p->a_type};
}

sm90_operand_size sm90_e2m1_operand(const gemm_traits *t, int is_b) {
    const int32_t broadcast = is_b ? t->broadcast_b : t->broadcast_a;
    return (sm90_operand_size){.rows = (int32_t)(is_b ? t->n : t->m),
                               .batches = broadcast & BROADCAST_VALUES ? 1 : (int32_t)t->l};
}

/* TMA takes 10 clocks for each row of a box that it fills with zeros instead of loading it: 72 x 28672 x 4096 in tiles
 * of 128 columns took 65 us on an H200, 47 with whole boxes. So the tensor map has whole tiles. Behind the rows of a
 * batch they hold those of the next one, or workspace that nobody has written: whatever these are, only rows or
 * columns of accumulators are computed from them that are not stored. */
int sm90_fp16_operand(const gemm_traits *t, int is_b, int32_t tile_rows, sm90_operand_size *size) {
    const int32_t broadcast = is_b ? t->broadcast_b : t->broadcast_a;
    const int64_t rows = is_b ? t->n : t->m;
    const int64_t batches = broadcast == (BROADCAST_VALUES | BROADCAST_SCALES) ? 1 : t->l;
    const int64_t pitch = SM90_DEQUANT_PITCH(t->k), missing = ceil_div(rows, tile_rows) * tile_rows - rows;
    *size = (sm90_operand_size){.rows = (int32_t)rows, .batches = (int32_t)batches, .map_rows = rows};
    if ((double)rows * (double)batches * (double)pitch >= (double)TENSOR_STRIDE_END) return 0;
    if (missing * pitch <= SM90_MAX_UNWRITTEN) size->map_rows += missing; /* 255 rows of up to 2^33 bytes */
    size->dequant_bytes = (rows * (batches - 1) + size->map_rows) * pitch;
    return SM90_DEQUANT_CTAS(rows, t->k, batches, 4) <= INT32_MAX / 2;
}

int64_t sm90_workspace_bytes(int64_t dequantized, int64_t more) {
    return dequantized > 0 ? dequantized + more + WORKSPACE_ALIGNMENT - CALLER_ALIGNMENT : 0;
}

static int64_t ctas_of(const sm90_operand_size *size, int64_t rows, int64_t k, int64_t rows_per_thread) {
    return size->dequant_bytes ? SM90_DEQUANT_CTAS(rows, k, size->batches, rows_per_thread) : 0;
}

sm90_dequant_schedule *sm90_add_dequant_part(const gemm_problem *p, int mma_b_is_b, const sm90_operand_size *mma_b,
                                             int64_t rows, int64_t k, const sm90_operand_size *mma_a, void *workspace,
                                             launch_plan *out, uint8_t **mma_b_fp16, uint8_t **behind) {
    const int64_t one_row = ctas_of(mma_b, rows, k, 1) + ctas_of(mma_a, mma_a->rows, k, 1);
    const int64_t rows_per_thread = one_row <= MAX_ONE_ROW_CTAS ? 1 : 4;
    const int64_t first_ctas = ctas_of(mma_b, rows, k, rows_per_thread),
                  second_ctas = ctas_of(mma_a, mma_a->rows, k, rows_per_thread);
    const uintptr_t begin =
        ((uintptr_t)workspace + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    *mma_b_fp16 = (uint8_t *)begin;
    *behind = *mma_b_fp16 + mma_b->dequant_bytes;
    if (first_ctas + second_ctas == 0) return NULL;
    launch_step *step = add_step(out, KERNEL_SM90_DEQUANT, first_ctas + second_ctas, 0);
    sm90_dequant_schedule *s = add_param(out, step, sizeof *s);
    *s = (sm90_dequant_schedule){.first = sm90_operand_of(p, mma_b_is_b),
                                 .k = p->k,
                                 .scale_layout = p->scale_layout,
                                 .first_ctas = (int32_t)first_ctas,
                                 .second_ctas = (int32_t)second_ctas,
                                 .rows_per_thread = (int32_t)rows_per_thread,
                                 .span = SM90_PREFILL_STAGE_K,
                                 .chunks = (int32_t)ceil_div(k, SM90_DEQUANT_K)};
    if (second_ctas) s->second = sm90_operand_of(p, !mma_b_is_b);
    s->first.rows = (int32_t)rows;
    s->first.to = *mma_b_fp16;
    s->second.to = *behind;
    return s;
}

sm90_dequant_schedule *sm90_add_dequant(const gemm_problem *p, int mma_b_is_b, const sm90_operand_size *mma_b,
                                        const sm90_operand_size *mma_a, void *workspace, launch_plan *out,
                                        uint8_t **mma_b_fp16, uint8_t **behind) {
    return sm90_add_dequant_part(p, mma_b_is_b, mma_b, mma_b->rows, p->k, mma_a, workspace, out, mma_b_fp16, behind);
}

void sm90_quantize_operand(const quantize_problem *q, sm90_dequant_operand *operand, sm90_dequant_schedule *s,
                           launch_plan *out) {
    out->step[out->steps - 1].kernel =
        q->x_type == NVFP4_FP16 ? KERNEL_SM90_FAKE_QUANTIZE_FP16 : KERNEL_SM90_FAKE_QUANTIZE_BF16;
    operand->data = q->x;
    operand->scale = NULL;
    operand->pitch = q->x_pitch;
    operand->batch = q->x_batch;
    operand->type = q->x_type;
    s->global_scale = q->global_scale;
    s->global_value = q->global_value;
}

tensor_layout sm90_fp16_layout(const gemm_problem *p, int is_b, const void *data, const sm90_operand_size *size,
                               int32_t box_rows) {
    const int64_t pitch = SM90_DEQUANT_PITCH(p->k);
    return (tensor_layout){
        .name = is_b ? "the dequantized b" : "the dequantized a",
        .data = data,
        .element_bytes = 2,
        .rank = 3,
        .dims = {(uint64_t)pitch / 2, (uint64_t)size->map_rows, (uint64_t)size->batches},
        .strides = {(uint64_t)pitch, (uint64_t)(size->rows * pitch)},
        .box = {SM90_PREFILL_STAGE_K, (uint32_t)box_rows, 1},
        .swizzle = 128,
    };
}
