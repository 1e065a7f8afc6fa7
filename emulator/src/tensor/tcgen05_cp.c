/* tcgen05.cp, from shared to tensor memory, and tcgen05.shift, down by one lane (PTX ISA 9.7.16.9).
 *
 * The async proxy reads source rows through a K-major descriptor. Row r goes to lane r (128x..), to lane 32 r
 * (4x256b), or to two or four lanes (64x128b, 32x128b: the copies that scale factors need). With cta_group::2 each
 * CTA of the pair copies from its own shared memory, at the same offset, into its own tensor memory. Decompressing
 * forms take 16 packed elements of 4 or 6 bits with padding to 16 bytes and give 16 bytes. e2m1 lies in bits 5-2 of
 * its byte, 6-bit types in bits 5-0. The ISA shows this in figures only; kernels that unpack by themselves agree. */
#include <stdlib.h>

#include "tensor/tcgen05.h"

typedef enum { CP_128X256B, CP_4X256B, CP_128X128B, CP_64X128B_02_13, CP_64X128B_01_23, CP_32X128B } cp_shape;
typedef enum { CP_PLAIN, CP_FROM_4_BITS, CP_FROM_6_BITS } cp_format;

enum { BLOCK_ROWS = 4, SHIFT_COLUMNS = 8, SHIFT_LANES = 32 };

typedef struct {
    int group;
    cp_shape shape;
    cp_format format;
    address_operand address;
} copy;

typedef struct {
    core_op base;
    const copy *what;
    uint32_t lane, column;
    matrix_view source;
    piece_order order; /* of blocks of rows: first those of CTA 0, then of CTA 1 */
} copy_op;

static const uint32_t source_rows[] = {128, 4, 128, 64, 64, 32};
static const uint32_t source_bytes[] = {32, 32, 16, 16, 16, 16};

/* The lanes that row r goes to, as a count and their numbers. */
static uint32_t destinations(cp_shape shape, uint32_t r, uint32_t lanes[4]) {
    switch (shape) {
    case CP_128X256B:
    case CP_128X128B:
        lanes[0] = r;
        return 1;
    case CP_4X256B:
        lanes[0] = 32 * r;
        return 1;
    case CP_64X128B_02_13:
        lanes[0] = r, lanes[1] = r + 64;
        return 2;
    case CP_64X128B_01_23:
        lanes[0] = r / 32 * 64 + r % 32, lanes[1] = lanes[0] + 32;
        return 2;
    case CP_32X128B:
        for (uint32_t i = 0; i < 4; i++) lanes[i] = r + 32 * i;
        return 4;
    }
    return 0;
}

/* 16 packed elements to 16 bytes, in place. */
static void decompress(cp_format format, uint8_t unit[16]) {
    uint8_t packed[16];
    memcpy(packed, unit, sizeof packed);
    for (int i = 0; i < 16; i++) {
        int bit = i * (format == CP_FROM_4_BITS ? 4 : 6);
        int both = packed[bit / 8] | packed[bit / 8 + 1] << 8;
        unit[i] = (uint8_t)(format == CP_FROM_4_BITS ? (both >> bit % 8 & 15) << 2 : both >> bit % 8 & 63);
    }
}

static void copy_rows(copy_op *c, const cta *to, uint32_t first, uint32_t count) {
    uint8_t rows[BLOCK_ROWS][32];
    uint32_t bytes = c->source.k_bytes;
    tmem *t = tmem_of(to);
    gather_matrix(to, &c->source, first, count, rows[0]);
    for (uint32_t r = 0; r < count; r++) {
        uint8_t *row = rows[0] + r * bytes;
        uint32_t lanes[4], copies = destinations(c->what->shape, first + r, lanes);
        if (c->what->format != CP_PLAIN)
            for (uint32_t unit = 0; unit < bytes; unit += 16) decompress(c->what->format, row + unit);
        for (uint32_t i = 0; i < copies; i++) {
            uint32_t lane = c->lane + lanes[i];
            memcpy(&t->cells[lane][c->column], row, bytes);
            tmem_mark(t->written, to->grid->on, &c->base.note, lane, 1, c->column, bytes / 4);
        }
    }
}

static int step_copy(async_op *op) {
    copy_op *c = (copy_op *)op;
    uint32_t blocks = c->source.rows / BLOCK_ROWS;
    for (int i = 0; !c->order.done && c->what->shape != CP_4X256B && i < c->base.core->group; i++)
        tmem_check_overwrite(op, tmem_of(c->base.core->ctas[i]), &c->base.reader, 1, 0, TMEM_LANES, c->column,
                             c->source.k_bytes / 4);
    for (uint32_t n = async_piece(op->from->grid->on, c->order.count - c->order.done); n; n--) {
        uint32_t block = piece_order_next(&c->order);
        const cta *to = c->base.core->ctas[block / blocks];
        copy_rows(c, to, block % blocks * BLOCK_ROWS, BLOCK_ROWS);
    }
    return c->order.done == c->order.count;
}

static run_result run_copy(warp *w, const instr *in, uint32_t lanes) {
    const copy *x = in->extra;
    tensor_core *core = tensor_core_of(w, in, x->group);
    FOR_LANES(lane, lanes) {
        uint32_t address = (uint32_t)address_value(w, &x->address, lane);
        copy_op *c = calloc(1, sizeof *c);
        if (!c) abort();
        c->what = x;
        c->lane = tmem_lane(address);
        c->column = tmem_column(address);
        c->source.descriptor = tcgen05_descriptor(w, in, r64(w, in->s[1])[lane], "s-desc");
        c->source.rows = source_rows[x->shape];
        c->source.k_bytes = source_bytes[x->shape];
        c->source.element_bytes = 1;
        c->order = piece_order_of(machine_of(w), c->source.rows / BLOCK_ROWS * (uint32_t)x->group);
        for (int i = 0; i < x->group; i++) {
            check_matrix(w, in, core->ctas[i], &c->source);
            tmem_check(w, in, core->ctas[i], c->lane, x->shape == CP_4X256B ? 97 : 128, c->column,
                       c->source.k_bytes / 4, "the destination");
            core->ctas[i]->traffic[TRAFFIC_TMEM_COPY] += c->source.rows * c->source.k_bytes;
            c->base.op.bytes += c->source.rows * c->source.k_bytes;
        }
        core_start(&c->base, w, in, (int)lane, core, step_copy, "shared to tensor memory");
    }
    return RUN_NEXT;
}

static int decode_copy(decoder *d) {
    static const char *const shapes[] = {"128x256b", "4x256b", "128x128b", "64x128b", "32x128b", NULL};
    static const char *const pairs[] = {"warpx2::02_13", "warpx2::01_23", NULL};
    static const char *const formats[] = {"b4x16_p64", "b6x16_p32", NULL};
    if (!has_modifier(d, "cp")) return 0;
    copy *x = decode_alloc(d, sizeof *x);
    need(d, "cp");
    x->group = take_cta_group(d);
    int shape = take_one_of(d, shapes);
    if (shape < 0) reject(d, "needs one of the shapes .128x256b, .4x256b, .128x128b, .64x128b, .32x128b");
    x->shape = shape == 4 ? CP_32X128B : (cp_shape)shape;
    if (shape == 3) {
        int pair = take_one_of(d, pairs);
        if (pair < 0) reject(d, ".64x128b needs .warpx2::02_13 or .warpx2::01_23");
        x->shape = pair ? CP_64X128B_01_23 : CP_64X128B_02_13;
    }
    if (shape == 4) need(d, "warpx4");
    if (take(d, "b8x16")) {
        int format = take_one_of(d, formats);
        if (format < 0) reject(d, ".b8x16 needs .b4x16_p64 or .b6x16_p32");
        x->format = format ? CP_FROM_6_BITS : CP_FROM_4_BITS;
    }
    x->address = take_address(d, 0, SPACE_NONE);
    d->in->s[1] = source(d, 1, TYPE_B64);
    d->entry->uses_async_proxy = 1;
    d->in->extra = x;
    d->in->run = run_copy;
    return 1;
}

/* ---- shift ---- */

typedef struct {
    core_op base;
    uint32_t lane, column;
} shift_op;

/* Rows 0 .. 30 of 32 move to 1 .. 31: all but the last, whose content is lost; row 0 stays as it is. */
static int step_shift(async_op *op) {
    shift_op *s = (shift_op *)op;
    for (int i = 0; i < s->base.core->group; i++) {
        tmem *t = tmem_of(s->base.core->ctas[i]);
        tmem_check_overwrite(op, t, &s->base.reader, 0, s->lane, SHIFT_LANES, s->column, SHIFT_COLUMNS);
        for (uint32_t lane = s->lane + SHIFT_LANES - 1; lane > s->lane; lane--)
            for (uint32_t column = s->column; column < s->column + SHIFT_COLUMNS; column++)
                t->cells[lane][column] =
                    tmem_ordered(t, &s->base.reader, lane - 1, column) ? t->cells[lane - 1][column] : UINT32_MAX;
        tmem_mark(t->written, op->from->grid->on, &s->base.note, s->lane, SHIFT_LANES, s->column, SHIFT_COLUMNS);
    }
    return 1;
}

typedef struct {
    int group;
    address_operand address;
} shift;

static run_result run_shift(warp *w, const instr *in, uint32_t lanes) {
    const shift *x = in->extra;
    tensor_core *core = tensor_core_of(w, in, x->group);
    FOR_LANES(lane, lanes) {
        uint32_t address = (uint32_t)address_value(w, &x->address, lane);
        if (tmem_lane(address) % 32)
            fault(w, in, (int)lane, "the address 0x%x begins at lane %u, which must be a multiple of 32", address,
                  tmem_lane(address));
        shift_op *s = calloc(1, sizeof *s);
        if (!s) abort();
        s->lane = tmem_lane(address);
        s->column = tmem_column(address);
        for (int i = 0; i < x->group; i++)
            tmem_check(w, in, core->ctas[i], s->lane, SHIFT_LANES, s->column, SHIFT_COLUMNS, "the address");
        core_start(&s->base, w, in, (int)lane, core, step_shift, "tensor memory shift");
    }
    return RUN_NEXT;
}

static int decode_shift(decoder *d) {
    if (!has_modifier(d, "shift")) return 0;
    shift *x = decode_alloc(d, sizeof *x);
    need(d, "shift");
    x->group = take_cta_group(d);
    need(d, "down");
    if (d->module->suffix == 'f') reject(d, "tcgen05.shift needs an architecture-specific target (sm_100a)");
    x->address = take_address(d, 0, SPACE_NONE);
    d->in->extra = x;
    d->in->run = run_shift;
    return 1;
}

int decode_tcgen05_copy(decoder *d) {
    return decode_copy(d) || decode_shift(d);
}
