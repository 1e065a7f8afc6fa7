/* tcgen05.ld, tcgen05.st and tcgen05.wait (PTX ISA 9.7.16.8): between registers and tensor memory.
 *
 * Both are asynchronous. A load reads its cells piece by piece before wait::ld, which delivers them to the
 * registers; until then these hold poison. A store takes its registers at issue (the ISA does not ask a program to
 * keep them) and writes its cells piece by piece before wait::st.
 *
 * By 9.7.16.6.4.5 a use of a loaded register waits for the load by itself, and some programs wait only for the last
 * of many loads, or for none. EMULATE_FENCES=hardware serves them: the warp stops at each load until it has ended. */
#include <stdlib.h>

#include "async/async.h"
#include "tensor/tmem.h"

typedef enum { SHAPE_32X32B, SHAPE_16X64B, SHAPE_16X128B, SHAPE_16X256B, SHAPE_16X32BX2 } access_shape;

static const char *const shape_names[] = {"32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2", NULL};
static const uint32_t registers_of_x1[] = {1, 1, 2, 4, 1}, columns_of_x1[] = {1, 2, 4, 8, 1};

enum { MAX_REGISTERS = 128 };

/* The instruction. */
typedef struct {
    int store;
    access_shape shape;
    uint32_t registers;
    uint32_t columns; /* of each half, as the registers see them */
    uint32_t halves;  /* 16-bit halves of a register that are columns of their own: 1 or 2 */
    uint32_t split;   /* immHalfSplitoff */
    address_operand address;
} access;

/* One execution. */
typedef struct tmem_access {
    async_op op;
    struct tmem_access *next; /* of the warp */
    const access *what;
    tmem *memory;
    uint32_t *under_way;
    uint32_t lane, column;
    uint32_t done; /* registers */
    int ended;
    int awaited; /* the warp waits in the load itself */
    tmem_reader reader;
    tmem_note note;
    uint32_t values[][WARP_LANES]; /* a register each */
} tmem_access;

/* Where register i of thread t lies, relative to the address; the column counts registers' widths. */
static void place(access_shape shape, uint32_t i, uint32_t t, uint32_t *lane, uint32_t *column) {
    switch (shape) {
    case SHAPE_32X32B:
        *lane = t, *column = i;
        break;
    case SHAPE_16X64B:
        *lane = t / 4 + 8 * (t & 1), *column = (t >> 1 & 1) + 2 * i;
        break;
    case SHAPE_16X128B:
        *lane = t / 4 + 8 * (i & 1), *column = (t & 3) + 4 * (i >> 1);
        break;
    case SHAPE_16X256B:
        *lane = t / 4 + 8 * (i >> 1 & 1), *column = (i & 1) + 2 * (t & 3) + 8 * (i >> 2);
        break;
    case SHAPE_16X32BX2:
        *lane = t % 16, *column = i;
        break;
    }
}

static uint32_t read_cell(const tmem_access *a, uint32_t lane, uint32_t column) {
    return tmem_ordered(a->memory, &a->reader, lane, column) ? a->memory->cells[lane][column] : UINT32_MAX;
}

static void move_register(tmem_access *a, uint32_t i) {
    const access *x = a->what;
    for (uint32_t t = 0; t < WARP_LANES; t++) {
        uint32_t lane = 0, column = 0;
        place(x->shape, i, t, &lane, &column);
        lane += a->lane;
        column = a->column + column * x->halves + (x->shape == SHAPE_16X32BX2 && t >= 16 ? x->split : 0);
        uint32_t *value = &a->values[i][t];
        if (x->store && x->halves == 1) {
            a->memory->cells[lane][column] = *value;
        } else if (x->store) {
            a->memory->cells[lane][column] = *value & 0xffff;
            a->memory->cells[lane][column + 1] = *value >> 16;
        } else if (x->halves == 1) {
            *value = read_cell(a, lane, column);
        } else {
            *value = (read_cell(a, lane, column) & 0xffff) | read_cell(a, lane, column + 1) << 16;
        }
    }
}

/* 32 lanes, or 16 of a quarter. */
static uint32_t lanes_of(const access *x) {
    return x->shape == SHAPE_32X32B ? 32 : 16;
}

static int step(async_op *op) {
    tmem_access *a = (tmem_access *)op;
    const access *x = a->what;
    machine *m = op->from->grid->on;
    uint32_t columns[] = {a->column, a->column + x->split};
    int parts = x->shape == SHAPE_16X32BX2 ? 2 : 1;
    for (int i = 0; x->store && !a->done && i < parts; i++)
        tmem_check_overwrite(op, a->memory, &a->reader, 1, a->lane, lanes_of(x), columns[i], x->columns);
    for (uint32_t n = async_piece(m, x->registers - a->done); n; n--) move_register(a, a->done++);
    if (a->done < x->registers) return 0;
    for (int i = 0; i < parts; i++)
        tmem_mark(x->store ? a->memory->written : a->memory->loaded, m, &a->note, a->lane, lanes_of(x), columns[i],
                  x->columns);
    return 1;
}

static void release(async_op *op) {
    tmem_access *a = (tmem_access *)op;
    --*a->under_way;
    a->ended = 1;
}

/* The first lane. Where machine->fences is that of the text, the address says it. The text wants the address to name
 * one of the warp's own quarter (9.7.16.8.1); hardware evidently takes the quarter from the warp, as programs that name
 * lane 0 in every warp are right there, and ignores bits beyond 128. */
static uint32_t lane_reached(warp *w, const instr *in, const access *x, uint32_t address) {
    uint32_t lane = tmem_lane(address) % TMEM_LANES, quarter = 32 * (uint32_t)(w->index % 4);
    int by_text = machine_of(w)->fences == FENCES_TEXT;
    if (by_text) lane = tmem_lane(address);
    if (lane != tmem_lane(address) || (lane < 32 && quarter && !by_text))
        remark_once(machine_of(w), "lane of another quarter",
                    "line %d: warp %d names lane %u of tensor memory and reaches lanes from %u on, as on hardware; the "
                    "manual wants the address to say so",
                    in->line, w->index, tmem_lane(address), quarter + lane % 32);
    if (lane < 32 && !by_text) lane += quarter;
    if (lane != quarter && !(lanes_of(x) == 16 && lane == quarter + 16))
        fault(
            w, in, -1,
            "the address 0x%x begins at lane %u, but warp %d of the CTA reaches lanes %u to %u only, and .%s begins at "
            "%s",
            address, tmem_lane(address), w->index, quarter, quarter + 31, shape_names[x->shape],
            lanes_of(x) == 16 ? "the first or the 17th of them" : "the first of them");
    return lane;
}

/* The load that the warp has stopped at: the link to it, NULL if there is none. */
static tmem_access **awaited(warp *w) {
    for (tmem_access **link = (tmem_access **)&w->tmem_loads; *link; link = &(*link)->next)
        if ((*link)->awaited) return link;
    return NULL;
}

static void deliver(warp *w, tmem_access **link) {
    tmem_access *a = *link;
    if (!a->what->store) pending_deliver(w, a->values[0], (size_t)a->what->registers * WARP_LANES);
    *link = a->next;
    free(a);
}

static run_result run_access(warp *w, const instr *in, uint32_t lanes) {
    if (!whole_warp(w, in, lanes)) return RUN_PARK;
    const access *x = in->extra;
    tmem_access **waiting = awaited(w);
    if (waiting) {
        if (!(*waiting)->ended) return park(w, WAIT_ASYNC, 0, 0);
        deliver(w, waiting);
        return RUN_NEXT;
    }
    uint32_t address = (uint32_t)address_value(w, &x->address, 0);
    for (uint32_t lane = 1; lane < WARP_LANES; lane++)
        if ((uint32_t)address_value(w, &x->address, lane) != address)
            fault(w, in, (int)lane, "the address is 0x%x here and 0x%x in lane 0: all threads of the warp must agree",
                  (uint32_t)address_value(w, &x->address, lane), address);
    uint32_t lane = lane_reached(w, in, x, address), column = tmem_column(address);
    tmem_check(w, in, w->cta, lane, lanes_of(x), column, x->columns, "the address");
    if (x->shape == SHAPE_16X32BX2)
        tmem_check(w, in, w->cta, lane, lanes_of(x), column + x->split, x->columns, "the second half's address");

    tmem_access *a = calloc(1, sizeof *a + x->registers * sizeof a->values[0]);
    if (!a) abort();
    a->op.step = step;
    a->op.release = release;
    a->op.what = x->store ? "tensor memory store" : "tensor memory load";
    a->op.bytes = x->registers * WARP_LANES * 4;
    a->op.touches[0] = w->cta;
    a->what = x;
    a->memory = tmem_of(w->cta);
    a->under_way = &((tensor_core *)w->cta->tcgen05)->under_way[tensor_core_index(w->cta)];
    a->lane = lane;
    a->column = column;
    a->reader = tmem_reader_of(w, 0);
    a->note = tmem_note_of(w, in, 0);
    for (uint32_t i = 0; i < x->registers; i++) {
        if (x->store)
            memcpy(a->values[i], r32(w, in->vs[i]), sizeof a->values[i]);
        else if (in->vd[i] != NO_SLOT)
            pending_claim(w, in->vd[i], 4, ALL_LANES, a->values[i]);
    }
    tmem_access **end = (tmem_access **)&w->tmem_loads;
    while (*end) end = &(*end)->next;
    *end = a;
    ++*a->under_way;
    w->cta->traffic[x->store ? TRAFFIC_TMEM_WRITE : TRAFFIC_TMEM_READ] += a->op.bytes;
    async_start(machine_of(w), &a->op, w, in, NULL);
    a->awaited = !x->store && machine_of(w)->fences == FENCES_HARDWARE;
    return a->awaited ? park(w, WAIT_ASYNC, 0, 0) : RUN_NEXT;
}

static run_result run_wait(warp *w, const instr *in, uint32_t lanes) {
    if (!whole_warp(w, in, lanes)) return RUN_PARK;
    int stores = (int)in->imm;
    for (const tmem_access *a = w->tmem_loads; a; a = a->next)
        if (a->what->store == stores && !a->ended) return park(w, WAIT_ASYNC, 0, 0);
    for (tmem_access **link = (tmem_access **)&w->tmem_loads; *link;) {
        if ((*link)->what->store == stores)
            deliver(w, link);
        else
            link = &(*link)->next;
    }
    return RUN_NEXT;
}

void tmem_warp_end(warp *w) {
    while (w->tmem_loads) {
        tmem_access *a = w->tmem_loads;
        w->tmem_loads = a->next;
        free(a);
    }
}

/* ---- decoding ---- */

static const uint32_t *take_vector(decoder *d, int index, const access *x) {
    int length;
    const uint32_t *slots =
        x->store ? source_vector(d, index, TYPE_B32, &length) : destination_vector(d, index, TYPE_B32, &length);
    if ((uint32_t)length != x->registers)
        reject(d, "the vector has %d registers, but the shape and the repetition need %u", length, x->registers);
    return slots;
}

static int decode_access(decoder *d) {
    static const char *const repetitions[] = {"x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128", NULL};
    if (!has_modifier(d, "ld") && !has_modifier(d, "st")) return 0;
    access *x = decode_alloc(d, sizeof *x);
    x->store = take(d, "st");
    if (!x->store) need(d, "ld");
    if (has_modifier(d, "red")) reject(d, "tcgen05.ld.red exists on sm_101, sm_103 and sm_110 only");
    need(d, "sync");
    need(d, "aligned");
    int shape = take_one_of(d, shape_names), repetition = take_one_of(d, repetitions);
    if (shape < 0) reject(d, "needs one of the shapes .32x32b, .16x64b, .16x128b, .16x256b, .16x32bx2");
    if (repetition < 0) reject(d, "needs a repetition, .x1 to .x128");
    x->shape = (access_shape)shape;
    x->registers = registers_of_x1[shape] << repetition;
    if (x->registers > MAX_REGISTERS)
        reject(d, ".%s%s does not exist: at most 128 registers", shape_names[shape], repetitions[repetition]);
    x->halves = take(d, x->store ? "unpack::16b" : "pack::16b") ? 2 : 1;
    x->columns = (columns_of_x1[shape] << repetition) * x->halves;
    need(d, "b32");
    int split = shape == SHAPE_16X32BX2, vector = x->store ? 1 + split : 0;
    x->address = take_address(d, !x->store, SPACE_NONE);
    if (split) {
        int64_t offset = constant(d, x->store ? 1 : 2);
        if (offset < 0 || offset >= TMEM_COLUMNS) reject(d, "immHalfSplitoff is %lld: no column", (long long)offset);
        if (x->store && x->halves == 2 && offset & 1)
            reject(d, "immHalfSplitoff is %lld: with .unpack::16b an odd one faults", (long long)offset);
        x->split = (uint32_t)offset;
    }
    if (x->store)
        d->in->vs = take_vector(d, vector, x);
    else
        d->in->vd = take_vector(d, vector, x);
    d->in->vector = x->registers;
    d->in->extra = x;
    d->in->run = run_access;
    return 1;
}

static int decode_wait(decoder *d) {
    if (!has_modifier(d, "wait::ld") && !has_modifier(d, "wait::st")) return 0;
    d->in->imm = take(d, "wait::st");
    take(d, "wait::ld");
    need(d, "sync");
    need(d, "aligned");
    d->in->run = run_wait;
    return 1;
}

int decode_tmem_access(decoder *d) {
    return decode_access(d) || decode_wait(d);
}
