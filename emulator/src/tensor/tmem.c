/* Tensor memory: cells, allocation, and the order of accesses (PTX ISA 9.7.16.1, 9.7.16.6, 9.7.16.7).
 *
 * Each SM has one tensor memory of 128 lanes x 512 columns, and the CTAs on it compete for columns: alloc parks
 * until enough adjacent ones are free. EMULATE_TMEM_BASE moves the first column tried, which finds kernels that
 * assume 0. New columns hold poison. */
#include "tensor/tmem.h"

#include <stdlib.h>

#include "async/async.h"

/* ---- cells ---- */

tmem *tmem_of(const cta *c) {
    if (!c->sm->tmem) {
        tmem *t = calloc(1, sizeof *t);
        if (!t) abort();
        memset(t->cells, POISON_BYTE, sizeof t->cells);
        c->sm->tmem = t;
    }
    return c->sm->tmem;
}

void tmem_machine_end(machine *m) {
    for (int i = 0; i < m->sm_count; i++) free(m->sms[i].tmem);
}

void tmem_check(warp *w, const instr *in, const cta *c, uint32_t lane, uint32_t lanes, uint32_t column,
                uint32_t columns, const char *what) {
    if (lane + lanes > TMEM_LANES || column + columns > TMEM_COLUMNS)
        fault(w, in, -1,
              "%s: lanes %u to %u, columns %u to %u do not exist: tensor memory has 128 lanes and 512 columns", what,
              lane, lane + lanes - 1, column, column + columns - 1);
    const tmem *t = tmem_of(c);
    for (uint32_t unit = column / TMEM_UNIT; unit * TMEM_UNIT < column + columns; unit++)
        if (t->owner[unit] != c)
            fault(w, in, -1, "%s: columns %u to %u of tensor memory: CTA %u of the cluster has not allocated column %u",
                  what, column, column + columns - 1, c->rank, unit * TMEM_UNIT > column ? unit * TMEM_UNIT : column);
}

/* ---- order ---- */

static uint64_t *published_by(const warp *w) {
    tensor_core *core = w->cta->tcgen05;
    return &core->published[tensor_core_index(w->cta)][w->index];
}

tmem_reader tmem_reader_of(const warp *w, int by_core) {
    const machine *m = machine_of(w);
    return (tmem_reader){w, m->now, w->tcgen05_fence_time, by_core, m->fences == FENCES_TEXT};
}

tmem_note tmem_note_of(warp *w, const instr *in, int by_core) {
    return (tmem_note){
        .by = w, .in = in, .published = published_by(w), .issued = machine_of(w)->now, .by_core = by_core};
}

void tmem_mark(tmem_notes notes, machine *m, const tmem_note *note, uint32_t lane, uint32_t lanes, uint32_t column,
               uint32_t columns) {
    tmem_note finished = *note;
    finished.finished = m->now;
    for (uint32_t group = lane / TMEM_GROUP; group * TMEM_GROUP < lane + lanes; group++)
        for (uint32_t i = column; i < column + columns; i++) notes[group][i] = finished;
}

/* A thread's load that tcgen05.wait has ended is ordered before what its own warp issues then. */
static int waited_for(const tmem_note *load, const tmem_reader *r) {
    return load->by == r->by && !load->by_core && r->issued >= load->finished;
}

void tmem_check_overwrite(const async_op *op, const tmem *t, const tmem_reader *r, int behind_writes, uint32_t lane,
                          uint32_t lanes, uint32_t column, uint32_t columns) {
    if (!r->checked) return;
    /* groups that it overwrites as a whole: the notes tell no single lanes */
    for (uint32_t group = (lane + TMEM_GROUP - 1) / TMEM_GROUP; (group + 1) * TMEM_GROUP <= lane + lanes; group++)
        for (uint32_t i = column; i < column + columns; i++) {
            const tmem_note *const notes[] = {&t->loaded[group][i], &t->taken[group][i], &t->written[group][i]};
            for (int k = 0; k < 2 + behind_writes; k++) {
                const tmem_note *last = notes[k];
                int order = tmem_order(last, r);
                if (order == TMEM_ORDERED || (k == 0 && waited_for(last, r))) continue;
                fault(op->by, op->in, -1,
                      "overwrites column %u of tensor memory, lanes %u to %u, which warp %d of CTA %u has %s in line "
                      "%d by %s; warp %d has executed no tcgen05.fence::%s_thread_sync since",
                      i, group * TMEM_GROUP, group * TMEM_GROUP + TMEM_GROUP - 1, last->by->index, last->by->cta->rank,
                      k == 2 ? "written" : "read", last->in->line, last->in->name,
                      order == TMEM_NOT_FENCED_AFTER ? r->by->index : last->by->index,
                      order == TMEM_NOT_FENCED_AFTER ? "after" : "before");
            }
        }
}

void tensor_core_publish(warp *w) {
    if (w->cta->tcgen05) *published_by(w) = machine_of(w)->now;
}

/* ---- the tensor core ---- */

int tensor_core_index(const cta *c) {
    const tensor_core *core = c->tcgen05;
    return core->group == 2 ? (int)(c->rank & 1) : 0;
}

static cta *peer_of(warp *w, const instr *in) {
    cta *c = w->cta;
    uint32_t rank = c->rank ^ 1;
    if (rank >= (uint32_t)c->cluster->size)
        fault(w, in, -1, "cta_group::2 needs a pair of CTAs, but CTA %u of a cluster of %d has no peer", c->rank,
              c->cluster->size);
    return c->cluster->ctas[rank];
}

tensor_core *tensor_core_of(warp *w, const instr *in, int group) {
    cta *c = w->cta;
    if (c->tmem_group && c->tmem_group != group)
        fault(w, in, -1, "the kernel has used cta_group::%d already: all its tcgen05 instructions must name the same",
              c->tmem_group);
    c->tmem_group = group;
    if (!c->tcgen05) {
        cta *peer = group == 2 ? peer_of(w, in) : NULL;
        tensor_core *core = calloc(1, sizeof *core);
        if (!core) abort();
        core->group = group;
        core->references = group;
        core->ctas[group == 2 ? c->rank & 1 : 0] = c;
        c->tcgen05 = core;
        if (peer) {
            if (peer->tcgen05)
                fault(w, in, -1, "cta_group::2, but the peer CTA %u has used cta_group::%d", peer->rank,
                      peer->tmem_group);
            core->ctas[peer->rank & 1] = peer;
            peer->tcgen05 = core;
            peer->tmem_group = group;
        }
    }
    return c->tcgen05;
}

void tcgen05_cta_end(cta *c) {
    tensor_core *core = c->tcgen05;
    if (core && --core->references == 0) free(core);
    c->tcgen05 = NULL;
}

void tmem_cta_exit(warp *last) {
    const cta *c = last->cta;
    if (!c->tmem_columns_held) return;
    const tmem *t = tmem_of(c);
    uint32_t unit = 0;
    while (t->owner[unit] != c) unit++;
    fault(last, t->allocator[unit], -1,
          "the CTA has exited with %d columns of tensor memory still allocated (the first at column %u, "
          "from this line): every tcgen05.alloc needs its dealloc",
          c->tmem_columns_held, unit * TMEM_UNIT);
}

/* ---- alloc, dealloc, relinquish_alloc_permit ---- */

int whole_warp(warp *w, const instr *in, uint32_t lanes) {
    if (!converge_aligned(w, in, lanes)) return 0;
    if (w->live != ALL_LANES)
        fault(w, in, -1, "all 32 threads of the warp must execute it, but lanes %08x have exited or do not exist",
              ~w->live);
    return 1;
}

uint32_t uniform_value(warp *w, const instr *in, uint32_t slot, uint32_t lanes, const char *what) {
    const uint32_t *values = r32(w, slot);
    uint32_t first = values[__builtin_ctz(lanes)];
    FOR_LANES(lane, lanes)
    if (values[lane] != first)
        fault(w, in, (int)lane, "%s is 0x%x here and 0x%x in lane %d: all threads of the warp must agree", what,
              values[lane], first, __builtin_ctz(lanes));
    return first;
}

int take_cta_group(decoder *d) {
    static const char *const groups[] = {"cta_group::1", "cta_group::2", NULL};
    int group = take_one_of(d, groups);
    if (group < 0) reject(d, "needs .cta_group::1 or .cta_group::2");
    d->entry->uses_tcgen05 = 1;
    if (group == 1) d->entry->uses_cluster = 1;
    return group + 1;
}

static int all_free(const tmem *t, uint32_t column, uint32_t columns) {
    for (uint32_t unit = column / TMEM_UNIT; unit < (column + columns) / TMEM_UNIT; unit++)
        if (t->owner[unit]) return 0;
    return 1;
}

/* The first fit from tmem_base on, then from column 0; -1: none. */
static int find_columns(const tensor_core *core, const cta *c, uint32_t columns) {
    const cta *all[2] = {c, NULL};
    if (core->group == 2) all[0] = core->ctas[0], all[1] = core->ctas[1];
    int base = c->grid->on->tmem_base / TMEM_UNIT * TMEM_UNIT, fit = -1;
    for (uint32_t column = 0; column + columns <= TMEM_COLUMNS; column += TMEM_UNIT) {
        if (!all_free(tmem_of(all[0]), column, columns)) continue;
        if (all[1] && !all_free(tmem_of(all[1]), column, columns)) continue;
        if ((int)column >= base) return (int)column;
        if (fit < 0) fit = (int)column;
    }
    return fit;
}

static void take_columns(cta *c, const instr *in, uint32_t column, uint32_t columns) {
    tmem *t = tmem_of(c);
    t->allocated[column / TMEM_UNIT] = columns;
    t->allocator[column / TMEM_UNIT] = in;
    for (uint32_t unit = column / TMEM_UNIT; unit < (column + columns) / TMEM_UNIT; unit++) t->owner[unit] = c;
    for (uint32_t lane = 0; lane < TMEM_LANES; lane++)
        memset(&t->cells[lane][column], POISON_BYTE, columns * sizeof(uint32_t));
    for (uint32_t group = 0; group < TMEM_LANES / TMEM_GROUP; group++) {
        memset(&t->written[group][column], 0, columns * sizeof(tmem_note));
        memset(&t->loaded[group][column], 0, columns * sizeof(tmem_note));
        memset(&t->taken[group][column], 0, columns * sizeof(tmem_note));
    }
    c->tmem_columns_held += (int)columns;
    ((tensor_core *)c->tcgen05)->last_columns[tensor_core_index(c)] = columns;
}

static void give_columns(cta *c, uint32_t column) {
    tmem *t = tmem_of(c);
    uint32_t columns = t->allocated[column / TMEM_UNIT];
    t->allocated[column / TMEM_UNIT] = 0;
    for (uint32_t unit = column / TMEM_UNIT; unit < (column + columns) / TMEM_UNIT; unit++) t->owner[unit] = NULL;
    c->tmem_columns_held -= (int)columns;
    machine *m = c->grid->on;
    machine_progress(m);
    for (cta *other = m->ctas; other; other = other->next)
        if (other->tcgen05) wake_cta(other); /* a pair that waits for another SM's columns too */
}

static void check_dealloc(warp *w, const instr *in, cta *c, uint32_t address, uint32_t columns) {
    const tmem *t = tmem_of(c);
    const tensor_core *core = c->tcgen05;
    uint32_t column = tmem_column(address), unit = column / TMEM_UNIT;
    if (tmem_lane(address) || column % TMEM_UNIT || column >= TMEM_COLUMNS || t->owner[unit] != c ||
        t->allocated[unit] != columns)
        fault(w, in, -1, "address 0x%x with %u columns is no allocation of CTA %u of the cluster", address, columns,
              c->rank);
    if (core->under_way[tensor_core_index(c)])
        fault(w, in, -1, "%u operation(s) on the CTA's tensor memory are still under way",
              core->under_way[tensor_core_index(c)]);
}

/* What was read and written there must be ordered before the deallocation (9.7.16.6): another CTA may own the columns
 * next. The fence of the deallocating warp is not asked for: CUTLASS has none between its barrier and its dealloc. */
static void check_unused(warp *w, const instr *in, const tmem *t, uint32_t address) {
    if (machine_of(w)->fences != FENCES_TEXT) return;
    uint32_t first = tmem_column(address), columns = t->allocated[first / TMEM_UNIT];
    for (uint32_t group = 0; group < TMEM_LANES / TMEM_GROUP; group++)
        for (uint32_t i = first; i < first + columns; i++) {
            const tmem_note *const notes[] = {&t->written[group][i], &t->loaded[group][i], &t->taken[group][i]};
            for (int k = 0; k < 3; k++) {
                const tmem_note *last = notes[k];
                if (!last->by || last->by == w || tmem_published(last)) continue;
                fault(
                    w, in, -1,
                    "frees column %u of tensor memory, which warp %d of CTA %u has %s in line %d by %s; that warp has "
                    "executed no tcgen05.fence::before_thread_sync since",
                    i, last->by->index, last->by->cta->rank, k ? "read" : "written", last->in->line, last->in->name);
            }
        }
}

static void check_columns(warp *w, const instr *in, uint32_t columns) {
    if (columns < TMEM_UNIT || columns > TMEM_COLUMNS || columns & (columns - 1))
        fault(w, in, -1, "%u columns: the number must be a power of two from 32 to 512", columns);
}

/* Does it for one CTA (group 1) or for both. 0: it cannot be done yet. */
static int manage(warp *w, const instr *in, tensor_core *core, struct tmem_meeting *meeting) {
    cta *ctas[2] = {w->cta, NULL};
    if (core->group == 2) ctas[0] = core->ctas[0], ctas[1] = core->ctas[1];
    if (meeting->what == TMEM_ALLOC) {
        int column = find_columns(core, w->cta, meeting->columns);
        if (column < 0) return 0;
        meeting->column = (uint32_t)column;
    }
    for (int i = 0; i < core->group; i++) {
        switch (meeting->what) {
        case TMEM_ALLOC:
            take_columns(ctas[i], in, meeting->column, meeting->columns);
            break;
        case TMEM_DEALLOC:
            check_dealloc(w, in, ctas[i], meeting->column, meeting->columns);
            give_columns(ctas[i], meeting->column);
            break;
        case TMEM_RELINQUISH:
            ctas[i]->tmem_relinquished = 1;
            break;
        }
    }
    return 1;
}

/* cta_group::2: one warp of each CTA takes part; the first waits for the second. 0: it waits. The ISA says that a
 * dealloc may wait, not that it does: with FENCES_TEXT half of them free the own CTA's columns and go on. */
static int meet(warp *w, const instr *in, tensor_core *core, struct tmem_meeting *wanted) {
    static const char *const names[] = {"alloc", "dealloc", "relinquish_alloc_permit"};
    int index = tensor_core_index(w->cta);
    struct tmem_meeting *own = &core->meetings[index], *other = &core->meetings[!index];
    int other_waits = other->by && !other->done && !other->alone;
    if (own->by && (own->by != w || own->alone)) return 0;
    if (!own->by) {
        *own = *wanted;
        own->alone = own->what == TMEM_DEALLOC && machine_of(w)->fences == FENCES_TEXT && !other_waits &&
                     (other->alone || machine_below(machine_of(w), 2));
    }
    if (!own->done) {
        int other_came = other_waits || other->alone;
        if (!other_came && !own->alone) return 0;
        if (other_came && (own->what != other->what || own->columns != other->columns ||
                           (own->what == TMEM_DEALLOC && own->column != other->column)))
            fault(w, in, -1,
                  "the CTAs of the pair must do the same, but this one does %s (%u columns, address 0x%x) and CTA %u "
                  "%s (%u columns, address 0x%x) in line %d",
                  names[own->what], own->columns, own->column, other->by->cta->rank, names[other->what], other->columns,
                  other->column, other->in->line);
        if (own->alone) {
            give_columns(w->cta, own->column);
            if (other->alone) *own = *other = (struct tmem_meeting){0};
            return 1;
        }
        if (!manage(w, in, core, own)) return 0;
        other->column = own->column;
        own->done = other->done = 1;
    }
    *wanted = *own;
    *own = (struct tmem_meeting){0};
    wake_cta(core->ctas[0]);
    wake_cta(core->ctas[1]);
    return 1;
}

typedef struct {
    int group;
    tmem_management what;
    address_operand destination;
} management;

static run_result run_management(warp *w, const instr *in, uint32_t lanes) {
    if (!whole_warp(w, in, lanes)) return RUN_PARK;
    const management *x = in->extra;
    tensor_core *core = tensor_core_of(w, in, x->group);
    struct tmem_meeting meeting = {.by = w, .in = in, .what = x->what};
    if (x->what != TMEM_RELINQUISH) {
        meeting.columns = uniform_value(w, in, in->s[1], lanes, "the number of columns");
        check_columns(w, in, meeting.columns);
    }
    if (x->what == TMEM_DEALLOC) meeting.column = uniform_value(w, in, in->s[0], lanes, "the address");
    int index = tensor_core_index(w->cta);
    if (!core->meetings[index].done) { /* otherwise the peer has already done it for both */
        uint32_t earlier = core->last_columns[index];
        if (x->what == TMEM_DEALLOC) {
            check_dealloc(w, in, w->cta, meeting.column, meeting.columns);
            check_unused(w, in, tmem_of(w->cta), meeting.column);
        }
        if (x->what == TMEM_ALLOC && core->group == 2 && w->cta->cluster->barrier_phase == 0 &&
            machine_of(w)->fences == FENCES_TEXT)
            fault(w, in, -1,
                  "the pair's other CTA may not have been launched: the cluster has not met at a barrier.cluster yet");
        if (x->what == TMEM_ALLOC && w->cta->tmem_relinquished)
            fault(w, in, -1, "the CTA has executed tcgen05.relinquish_alloc_permit and may not allocate any more");
        if (x->what == TMEM_ALLOC && earlier && meeting.columns > earlier)
            fault(w, in, -1, "%u columns after an allocation of %u: later allocations of a CTA may not be larger",
                  meeting.columns, earlier);
    }
    if (!(core->group == 2 ? meet(w, in, core, &meeting) : manage(w, in, core, &meeting)))
        return park(w, WAIT_TMEM, meeting.columns, 0);
    machine_progress(machine_of(w));
    if (x->what == TMEM_ALLOC) {
        uint64_t address = address_value(w, &x->destination, 0);
        /* a 64-bit register may hold a generic address; hardware uses its low half */
        if (x->destination.space == SPACE_SHARED) address = (uint32_t)address;
        thread_write(w, in, 0, x->destination.space, address, &meeting.column, 4, 4);
    }
    return RUN_NEXT;
}

static int decode_management(decoder *d) {
    if (!has_modifier(d, "alloc") && !has_modifier(d, "dealloc") && !has_modifier(d, "relinquish_alloc_permit"))
        return 0;
    management *x = decode_alloc(d, sizeof *x);
    x->what = take(d, "alloc") ? TMEM_ALLOC : take(d, "dealloc") ? TMEM_DEALLOC : TMEM_RELINQUISH;
    take(d, "relinquish_alloc_permit");
    x->group = take_cta_group(d);
    need(d, "sync");
    need(d, "aligned");
    if (x->what == TMEM_ALLOC) {
        ptx_space space = take_space(d);
        if (space != SPACE_NONE && space != SPACE_SHARED) reject(d, "the address goes to .shared::cta memory only");
        need(d, "b32");
        x->destination = take_address(d, 0, space);
        d->in->s[1] = source(d, 1, TYPE_B32);
    } else if (x->what == TMEM_DEALLOC) {
        need(d, "b32");
        d->in->s[0] = source(d, 0, TYPE_B32);
        d->in->s[1] = source(d, 1, TYPE_B32);
    }
    int64_t columns;
    if (x->what != TMEM_RELINQUISH && is_constant(d, 1, &columns) &&
        (columns < TMEM_UNIT || columns > TMEM_COLUMNS || columns & (columns - 1)))
        reject(d, "%lld columns: the number must be a power of two from 32 to 512", (long long)columns);
    d->in->extra = x;
    d->in->run = run_management;
    return 1;
}

static int decode_tmem(decoder *d) {
    return decode_management(d) || decode_tmem_access(d);
}

const opcode_entry tmem_opcodes[] = {{"tcgen05", decode_tmem}, {0}};
