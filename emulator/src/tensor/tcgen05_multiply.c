/* Execution of tcgen05.mma (PTX ISA 9.7.16.10): some rows of D at a time. A and B are read from shared memory at
 * that moment, so operands that are overwritten too early change the result. Positions of rows, columns and scale
 * factors: 9.7.16.10.5 and 9.7.16.10.7. Sums: arithmetic.h. */
#include "tensor/tcgen05.h"

enum { ROW_BYTES = 32, SLAB = 16, MOST_ROWS = 128, MOST_COLUMNS = 256 };

/* 4- and 6-bit elements of kind::f8f6f4 and mxf8f6f4 lie in shared memory as 16 of them, packed, and padding to 16
 * bytes. In place: one a byte, in the low bits. */
static void unpack(tensor_element type, uint8_t *rows, uint32_t bytes) {
    int bits = type == TENSOR_E2M1 ? 4 : type == TENSOR_E2M3 || type == TENSOR_E3M2 ? 6 : 8;
    if (bits == 8) return;
    for (uint8_t *unit = rows; unit < rows + bytes; unit += 16) {
        uint8_t packed[16];
        memcpy(packed, unit, sizeof packed);
        for (int i = 0; i < 16; i++) {
            int bit = i * bits, both = packed[bit / 8] | packed[bit / 8 + 1] << 8;
            unit[i] = (uint8_t)(both >> bit % 8 & ((1 << bits) - 1));
        }
    }
}

/* Of the CTA `which`: the lane of row r in part p of N. */
static uint32_t lane_of(const mma_op *o, uint32_t r, uint32_t p) {
    if (o->layout == LAYOUT_SPREAD) return tmem_lane(o->d) + r / 16 * 32 + r % 16;
    return r + p * o->rows;
}

static int enabled(const mma_op *o, int which, uint32_t lane) {
    return !(o->mask[4 * which + lane / 32] >> lane % 32 & 1);
}

/* A in tensor memory has the lanes of D, and each part of N reads the copy in its own lanes. */
static void gather_a_tmem(const mma_op *o, const tmem *t, uint32_t first, uint32_t count, uint32_t part, uint8_t *out) {
    uint32_t column = tmem_column(o->a);
    for (uint32_t r = first; r < first + count; r++, out += ROW_BYTES) {
        uint32_t lane = lane_of(o, o->what->ashift && r ? r - 1 : r, part), cells[ROW_BYTES / 4];
        for (uint32_t i = 0; i < ROW_BYTES / 4; i++)
            cells[i] = tmem_ordered(t, &o->base.reader, lane, column + i) ? t->cells[lane][column + i] : UINT32_MAX;
        memcpy(out, cells, sizeof cells);
    }
}

/* Scale factors of rows [first, first + count) of A or B, four bytes each: row i has its byte in lane i % 32 of every
 * quarter, in column i / 32 from `address` on. Which of the four copies a row is multiplied with is not documented, so
 * they must agree. */
static void gather_scales(const mma_op *o, const tmem *t, uint32_t address, uint32_t first, uint32_t count, uint32_t id,
                          const char *name, uint8_t *out) {
    uint32_t used = (o->what->blocks == 4 ? UINT32_MAX : (1u << 8 * o->what->blocks) - 1) << 8 * id;
    for (uint32_t i = first; i < first + count; i++, out += 4) {
        uint32_t lane = i % 32, column = tmem_column(address) + i / 32, word = t->cells[lane][column];
        for (uint32_t quarter = 0; quarter < 4; quarter++) {
            if (!tmem_ordered(t, &o->base.reader, lane + 32 * quarter, column)) {
                word = UINT32_MAX;
                break;
            }
            uint32_t copy = t->cells[lane + 32 * quarter][column];
            if ((copy ^ word) & used)
                fault(
                    o->base.op.by, o->base.op.in, o->base.lane,
                    "scale factors of %s, row %u, in column %u: lane %u holds 0x%08x and lane %u 0x%08x, but the four "
                    "copies must be equal",
                    name, i, column, lane, word, lane + 32 * quarter, copy);
        }
        word >>= 8 * id;
        memcpy(out, &word, 4);
    }
}

/* Cells of D that this instruction is not ordered behind are read as poison. */
static void spoil_unordered(const mma_op *o, tmem *t, uint32_t lane, uint32_t lanes, uint32_t column,
                            uint32_t columns) {
    if (!o->base.reader.checked) return;
    for (uint32_t next, l = lane; l < lane + lanes; l = next) {
        next = (l / TMEM_GROUP + 1) * TMEM_GROUP; /* lanes of a group share their note */
        if (next > lane + lanes) next = lane + lanes;
        for (uint32_t i = column; i < column + columns; i++)
            if (!tmem_ordered(t, &o->base.reader, l, i))
                for (uint32_t k = l; k < next; k++) t->cells[k][i] = UINT32_MAX;
    }
}

/* Operands of one CTA's rows [first, first + count). */
typedef struct {
    uint8_t a[MOST_ROWS * ROW_BYTES], b[MOST_COLUMNS * ROW_BYTES];
    uint8_t sfa[MOST_ROWS * 4], sfb[MOST_COLUMNS * 4];
} operands;

static void gather(const mma_op *o, int which, uint32_t first, uint32_t count, operands *x) {
    const tensor_core *core = o->base.core;
    const mma_instruction *what = o->what;
    uint32_t b_rows = o->b_view.rows;
    for (int i = 0; i < core->group; i++)
        gather_matrix(core->ctas[i], &o->b_view, 0, b_rows, x->b + (uint32_t)i * b_rows * ROW_BYTES);
    unpack(o->shape.b_type, x->b, o->shape.n * ROW_BYTES);
    if (!what->a_in_tmem) {
        gather_matrix(core->ctas[which], &o->a_view, first, count, x->a);
        unpack(o->shape.a_type, x->a, count * ROW_BYTES);
    }
    if (what->blocks) {
        tmem *t = tmem_of(core->ctas[which]);
        machine *m = core->ctas[which]->grid->on;
        gather_scales(o, t, o->sfa, first, count, o->shape.sfa_id, "A", x->sfa);
        gather_scales(o, t, o->sfb, 0, o->shape.n, o->shape.sfb_id, "B", x->sfb);
        tmem_mark(t->taken, m, &o->base.note, 0, TMEM_LANES, tmem_column(o->sfa), o->rows / 32);
        tmem_mark(t->taken, m, &o->base.note, 0, TMEM_LANES, tmem_column(o->sfb), (o->shape.n + 31) / 32);
    }
}

tensor_op mma_arithmetic(const mma_op *o, const machine *m) {
    const mma_shape *s = &o->shape;
    return (tensor_op){
        .architecture = TENSOR_SM100,
        .rule = m->arithmetic == ARITHMETIC_FP64 ? TENSOR_FP64 : TENSOR_HARDWARE,
        .m = SLAB,
        .n = (int)(s->n / o->parts),
        .k = (int)s->k,
        /* in tensor memory e2m1 lies in bits 5-2 of its byte; see tcgen05.cp's decompression */
        .a_type = o->what->a_in_tmem && s->a_type == TENSOR_E2M1 ? TENSOR_E2M1_SHIFTED : s->a_type,
        .b_type = s->b_type,
        .d_type = s->d_type,
        .a_stride = ROW_BYTES,
        .b_stride = ROW_BYTES,
        .c_stride = TMEM_COLUMNS * 4,
        .c_step = 4,
        .d_stride = TMEM_COLUMNS * 4,
        .d_step = 4,
        .scale_type = s->scale_type,
        .blocks = o->what->blocks,
        .sfa_stride = 4,
        .sfb_stride = 4,
        .negate_a = s->negate_a,
        .negate_b = s->negate_b,
        .saturate = s->saturate,
        .scale_input_d = o->what->scale_input_d,
    };
}

/* Rows [first, first + count), whose lanes follow each other and are all enabled, in one part of N. */
static void multiply(const mma_op *o, int which, uint32_t first, uint32_t count, uint32_t part, const operands *x,
                     uint32_t gathered_from) {
    cta *c = o->base.core->ctas[which];
    machine *m = c->grid->on;
    tmem *t = tmem_of(c);
    tensor_op op = mma_arithmetic(o, m);
    uint32_t lane = lane_of(o, first, part), column = tmem_column(o->d), n = (uint32_t)op.n;
    uint8_t a[MOST_ROWS * ROW_BYTES];
    op.m = (int)count;
    op.a = x->a + (first - gathered_from) * ROW_BYTES;
    if (o->what->a_in_tmem) {
        gather_a_tmem(o, t, first, count, part, a);
        tmem_mark(t->taken, m, &o->base.note, lane, count, tmem_column(o->a), ROW_BYTES / 4);
        op.a = a;
    }
    op.b = x->b + part * n * ROW_BYTES;
    op.sfa = x->sfa + (first - gathered_from) * 4;
    op.sfb = x->sfb + part * n * 4;
    op.d = &t->cells[lane][column];
    tmem_check_overwrite(&o->base.op, t, &o->base.reader, !o->accumulate, lane, count, column, n);
    if (o->accumulate) {
        spoil_unordered(o, t, lane, count, column, n);
        op.c = op.d;
    }
    tensor_multiply(&op);
    tmem_mark(t->written, m, &o->base.note, lane, count, column, n);
}

/* Rows [first, first + count) of a CTA: in runs that tensor_multiply can take as a whole. */
static void run_rows(const mma_op *o, int which, uint32_t first, uint32_t count) {
    operands x;
    gather(o, which, first, count, &x);
    for (uint32_t part = 0; part < o->parts; part++)
        for (uint32_t r = first, end; r < first + count; r = end) {
            int on = enabled(o, which, lane_of(o, r, part));
            end = r + 1;
            while (end < first + count && lane_of(o, end, part) == lane_of(o, r, part) + (end - r) &&
                   enabled(o, which, lane_of(o, end, part)) == on)
                end++;
            if (on) multiply(o, which, r, end - r, part, &x, first);
        }
}

int mma_step(async_op *op) {
    mma_op *o = (mma_op *)op;
    uint32_t total = o->rows * (uint32_t)o->base.core->group;
    uint32_t count = async_piece(op->from->grid->on, (total - o->done) / SLAB) * SLAB;
    while (count) {
        uint32_t first = o->done % o->rows, now = o->rows - first < count ? o->rows - first : count;
        run_rows(o, (int)(o->done / o->rows), first, now);
        o->done += now;
        count -= now;
    }
    return o->done == total;
}
