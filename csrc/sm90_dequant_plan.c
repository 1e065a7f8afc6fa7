/* The rules of sm90_prefill_configs.h for expanded operands. Pure, as plan.h. */
#include "sm90_dequant_plan.h"

enum {
    WORKSPACE_ALIGNMENT = 256, /* that the kernels ask for, */
    CALLERS_ALIGNMENT = 16,    /* and that a workspace has */
    MOST_THIN_CTAS = 264,      /* of one row a thread: two an SM of an H200; where SMs are fewer it costs time alone */
};

static sm90_dequant_operand operand_of(const gemm_problem *p, int is_b) {
    return (sm90_dequant_operand){.data = is_b ? p->b : p->a,
                                  .scale = is_b ? p->sfb : p->sfa,
                                  .pitch = is_b ? p->b_pitch : p->a_pitch,
                                  .batch = is_b ? p->b_batch : p->a_batch,
                                  .scale_pitch = is_b ? p->sfb_pitch : p->sfa_pitch,
                                  .scale_batch = is_b ? p->sfb_batch : p->sfa_batch,
                                  .rows = (int32_t)(is_b ? p->n : p->m)};
}

void sm90_raw_side(const gemm_problem *p, int is_b, sm90_side *s) {
    *s = (sm90_side){.operand = operand_of(p, is_b)};
    s->batches = s->operand.batch == 0 ? 1 : p->l;
}

int sm90_expanded_side(const gemm_problem *p, int is_b, sm90_side *s) {
    *s = (sm90_side){.operand = operand_of(p, is_b)};
    const int64_t rows = s->operand.rows;
    s->batches = s->operand.batch == 0 && s->operand.scale_batch == 0 ? 1 : p->l;
    if ((double)rows * (double)s->batches * (double)SM90_DEQUANT_PITCH(p->k) >= (double)TENSOR_STRIDE_END) return 0;
    s->expanded = SM90_DEQUANT_BYTES(rows, p->k, s->batches);
    return SM90_DEQUANT_CTAS(rows, p->k, s->batches, 4) <= INT32_MAX / 2;
}

static int64_t ctas_of(const sm90_side *s, int64_t k, int64_t rows_a_thread) {
    return s->expanded ? SM90_DEQUANT_CTAS((int64_t)s->operand.rows, k, s->batches, rows_a_thread) : 0;
}

size_t sm90_plan_expansion(const gemm_problem *p, const sm90_side *y, const sm90_side *x, sm90_dequant_run *run) {
    const int64_t bytes = y->expanded + x->expanded;
    const int64_t thin = ctas_of(y, p->k, 1) + ctas_of(x, p->k, 1), rows_a_thread = thin <= MOST_THIN_CTAS ? 1 : 4;
    const int64_t first_ctas = ctas_of(y, p->k, rows_a_thread), second_ctas = ctas_of(x, p->k, rows_a_thread);
    *run = (sm90_dequant_run){
        .schedule = {.first = y->operand,
                     .second = x->operand,
                     .k = p->k,
                     .scale_layout = p->scale_layout,
                     .first_ctas = (int32_t)first_ctas,
                     .second_ctas = (int32_t)second_ctas,
                     .rows_per_thread = (int32_t)rows_a_thread},
        .grid = first_ctas + second_ctas,
        .second_at = y->expanded,
    };
    return bytes > 0 ? (size_t)bytes + WORKSPACE_ALIGNMENT - CALLERS_ALIGNMENT : 0;
}

void sm90_place_expansion(sm90_dequant_run *run, void *workspace) {
    uintptr_t y = ((uintptr_t)workspace + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    run->schedule.first.to = (void *)y;
    run->schedule.second.to = (void *)(y + (uintptr_t)run->second_at);
}

tensor_layout sm90_expanded_layout(const gemm_problem *p, int is_b, const void *data, int64_t rows, int64_t batches,
                                   int32_t box_rows) {
    const int64_t pitch = SM90_DEQUANT_PITCH(p->k);
    return (tensor_layout){
        .name = is_b ? "the expanded b" : "the expanded a",
        .data = data,
        .element_bytes = 2,
        .rank = 3,
        .dims = {(uint64_t)pitch / 2, (uint64_t)rows, (uint64_t)batches},
        .strides = {(uint64_t)pitch, (uint64_t)(rows * pitch)},
        .box = {SM90_PREFILL_STAGE_K, (uint32_t)box_rows, 1},
        .swizzle = 128,
    };
}

tensor_layout sm90_raw_layout(const gemm_problem *p, int is_b, int64_t batches, int32_t box_bytes, int32_t box_rows) {
    tensor_layout t = values_layout(p, is_b, box_bytes, box_rows, 0);
    t.dims[2] = (uint64_t)batches;
    t.strides[1] = mapped_stride(batches, (int64_t)t.strides[1]);
    return t;
}
