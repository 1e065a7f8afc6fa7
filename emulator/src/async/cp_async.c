/* cp.async with commit_group, wait_group and wait_all (PTX ISA 9.7.9.25.3), and cp.async.mbarrier.arrive
 * (9.7.13.15.15).
 *
 * The lanes of one instruction are one operation, which copies some lanes a step. It reads and writes when the step
 * runs, in the generic proxy, as the thread that issued it. */
#include <stdlib.h>

#include "async/async.h"
#include "memory/memory.h"

typedef struct copy copy;
struct copy {
    async_op op;
    machine *m;
    copy *next, *previous; /* live ones of the warp; `next` of spare ones too */
    uint32_t left;         /* lanes that have not been copied */
    uint32_t size;
    uint32_t group[WARP_LANES]; /* the number of the lane's group */
    uint32_t to[WARP_LANES];    /* offset in shared memory */
    uint64_t from[WARP_LANES];
    uint8_t bytes[WARP_LANES]; /* that are read; zeros follow */
};

typedef struct arrival arrival;
struct arrival {
    async_op op;
    machine *m;
    arrival *next;   /* not started yet */
    uint64_t serial; /* waits for copies with smaller ones */
    uint32_t lanes;
    uint32_t barrier[WARP_LANES];
};

/* Of a warp. */
typedef struct copies {
    uint32_t committed[WARP_LANES]; /* groups; the open one has this number */
    uint64_t serial;
    copy *live, *spare;
    const copy *blocker; /* the operation that a wait found incomplete, and its serial number */
    uint64_t blocker_serial;
    arrival *arrivals;
} copies;

typedef struct copy_operands {
    address_operand to, from;
    uint32_t size;
    uint32_t source_size, ignore; /* slots */
    int ignore_negated;
} copy_operands;

static copies *copies_of(warp *w) {
    if (!w->cp_async) w->cp_async = calloc(1, sizeof(copies));
    if (!w->cp_async) abort();
    return w->cp_async;
}

void cp_async_warp_end(warp *w) {
    copies *all = w->cp_async;
    if (!all) return;
    for (copy *c = all->spare, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    for (arrival *a = all->arrivals, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    free(all);
    w->cp_async = NULL;
}

/* ---- arrivals ---- */

static int arrive_step(async_op *op) {
    arrival *a = (arrival *)op;
    cta *c = op->from;
    uint32_t piece = async_piece(a->m, (uint32_t)__builtin_popcount(a->lanes));
    while (piece) {
        uint32_t offset = a->barrier[__builtin_ctz(a->lanes)], count = 0;
        while (piece && a->lanes && a->barrier[__builtin_ctz(a->lanes)] == offset) {
            a->lanes &= a->lanes - 1;
            count++;
            piece--;
        }
        mbarrier_arrive(op->by, op->in, c, offset, count);
    }
    return !a->lanes;
}

static void arrive_release(async_op *op) {
    free(op);
}

static int waits_for_copies(const copies *all, const arrival *a) {
    for (const copy *c = all->live; c; c = c->next)
        if (c->op.serial < a->serial && c->left & a->lanes) return 1;
    return 0;
}

/* Starts the arrivals whose copies are done. */
static void start_arrivals(machine *m, warp *w, copies *all) {
    for (arrival **link = &all->arrivals; *link;) {
        arrival *a = *link;
        if (waits_for_copies(all, a)) {
            link = &a->next;
            continue;
        }
        *link = a->next;
        async_start(m, &a->op, w, a->op.in, NULL);
    }
}

static run_result run_arrive(warp *w, const instr *in, uint32_t lanes) {
    const copy_operands *o = in->extra;
    machine *m = machine_of(w);
    copies *all = copies_of(w);
    arrival *a = calloc(1, sizeof *a);
    if (!a) abort();
    a->m = m;
    a->op.step = arrive_step;
    a->op.release = arrive_release;
    a->op.what = "cp.async.mbarrier.arrive";
    a->op.in = in;
    a->serial = m->op_serial;
    a->lanes = lanes;
    FOR_LANES(i, lanes) {
        cta *c = shared_operand(w, in, i, &o->to, &a->barrier[i], "the mbarrier");
        if (c != w->cta) fault(w, in, (int)i, "the mbarrier is in the shared memory of CTA %u of the cluster", c->rank);
        mbarrier_check(w, in, c, a->barrier[i]);
        if (in->mode) mbarrier_add_pending(w, in, c, a->barrier[i], 1);
    }
    a->next = all->arrivals;
    all->arrivals = a;
    start_arrivals(m, w, all);
    return RUN_NEXT;
}

/* ---- copies ---- */

static void copy_lane(const copy *c, uint32_t lane) {
    cta *own = c->op.from;
    uint8_t *to = own->shared + c->to[lane];
    const uint8_t *from = (const uint8_t *)(uintptr_t)c->from[lane];
    if (own->mbarriers) mbarrier_guard(c->op.by, c->op.in, own, c->to[lane], c->size);
    if (c->bytes[lane] == 16) {
        memcpy(to, from, 16);
    } else {
        uint8_t data[16] = {0};
        memcpy(data, from, c->bytes[lane]);
        memcpy(to, data, c->size);
    }
    if (own->async_view) note_shared_write(own, c->to[lane], c->size, shared_writer(c->op.by, lane), c->m->now);
}

static int copy_step(async_op *op) {
    copy *c = (copy *)op;
    uint32_t left = (uint32_t)__builtin_popcount(c->left);
    /* mostly in one piece: they are small, and there are many */
    uint32_t piece = machine_random(c->m) & 3 ? left : async_piece(c->m, left);
    if (piece == left) {
        FOR_LANES(lane, c->left) copy_lane(c, lane);
        c->left = 0;
        return 1;
    }
    /* from either end */
    int highest = (int)(machine_random(c->m) & 1);
    for (; piece; piece--) {
        uint32_t lane = highest ? 31 - (uint32_t)__builtin_clz(c->left) : (uint32_t)__builtin_ctz(c->left);
        copy_lane(c, lane);
        c->left &= ~(1u << lane);
    }
    return !c->left;
}

static void copy_release(async_op *op) {
    copy *c = (copy *)op;
    copies *all = op->by->cp_async;
    if (c->next) c->next->previous = c->previous;
    if (c->previous)
        c->previous->next = c->next;
    else
        all->live = c->next;
    c->next = all->spare;
    all->spare = c;
    /* operations dropped with the machine are not complete */
    if (all->arrivals && !c->left) start_arrivals(c->m, op->by, all);
}

/* What is read and written, checked when the instruction is issued. */
static void check_lanes(warp *w, const instr *in, uint32_t lanes, const copy_operands *o, copy *c) {
    uint64_t to[WARP_LANES];
    uint32_t size = o->size, reads = 0;
    reach r;
    gather_addresses(w, o->to.slot, o->to.offset, o->to.bits == 64, to);
    gather_addresses(w, o->from.slot, o->from.offset, o->from.bits == 64, c->from);
    memset(c->bytes, (int)size, sizeof c->bytes);
    if (o->source_size != NO_SLOT) {
        const uint32_t *bytes = r32(w, o->source_size);
        FOR_LANES(i, lanes) {
            if (bytes[i] > size)
                fault(w, in, (int)i, "the source's size is %u, more than the %u bytes of the copy", bytes[i], size);
            c->bytes[i] = (uint8_t)bytes[i];
        }
    }
    if (o->ignore != NO_SLOT) {
        uint32_t ignored = *predicate(w, o->ignore);
        if (o->ignore_negated) ignored = ~ignored;
        FOR_LANES(i, lanes & ignored) c->bytes[i] = 0;
    }
    FOR_LANES(i, lanes) reads |= (uint32_t)(c->bytes[i] != 0) << i;
    if (reads && !reach_of(w, SPACE_GLOBAL, c->from, reads, size, size, &r)) {
        FOR_LANES(i, reads) {
            thread_check(w, in, (int)i, SPACE_GLOBAL, c->from[i], c->bytes[i], size, "copies from");
        }
    }
    if (!reach_of(w, SPACE_SHARED, to, lanes, size, size, &r)) {
        FOR_LANES(i, lanes) {
            thread_check(w, in, (int)i, SPACE_SHARED, to[i], size, size, "copies to");
        }
    }
    for (int i = 0; i < WARP_LANES; i++) c->to[i] = (uint32_t)to[i] & ((1u << RANK_SHIFT) - 1);
}

static run_result run_copy(warp *w, const instr *in, uint32_t lanes) {
    const copy_operands *o = in->extra;
    machine *m = machine_of(w);
    copies *all = copies_of(w);
    copy *c = all->spare;
    if (c)
        all->spare = c->next;
    else
        c = malloc(sizeof *c);
    if (!c) abort();
    c->op = (async_op){.step = copy_step, .release = copy_release, .what = "cp.async"};
    c->m = m;
    c->left = lanes;
    c->size = o->size;
    check_lanes(w, in, lanes, o, c);
    memcpy(c->group, all->committed, sizeof c->group);
    c->op.bytes = (uint64_t)o->size * (uint32_t)__builtin_popcount(lanes);
    w->cta->traffic[TRAFFIC_CP_ASYNC] += c->op.bytes;
    c->previous = NULL;
    c->next = all->live;
    if (c->next) c->next->previous = c;
    all->live = c;
    c->op.touches[0] = w->cta;
    c->op.drains = 1; /* hardware lets a block exit before its copies are waited for */
    async_start(m, &c->op, w, in, NULL);
    return RUN_NEXT;
}

/* ---- groups ---- */

static run_result run_commit(warp *w, const instr *in, uint32_t lanes) {
    (void)in;
    copies *all = copies_of(w);
    FOR_LANES(i, lanes) all->committed[i]++;
    return RUN_NEXT;
}

/* The operation that the wait last found incomplete is still incomplete. */
static int still_blocked(const copies *all, uint32_t lanes) {
    const copy *c = all->blocker;
    return c && c->op.serial == all->blocker_serial && c->left & lanes;
}

static run_result wait_for(warp *w, copies *all, const copy *c, uint64_t groups) {
    all->blocker = c;
    all->blocker_serial = c->op.serial;
    return park(w, WAIT_ASYNC, groups, 0);
}

/* All groups but the latest in->imm committed ones. */
static run_result run_wait_group(warp *w, const instr *in, uint32_t lanes) {
    copies *all = copies_of(w);
    if (w->current->wait.kind == WAIT_ASYNC && still_blocked(all, lanes))
        return park(w, WAIT_ASYNC, w->current->wait.a, 0);
    for (const copy *c = all->live; c; c = c->next) {
        FOR_LANES(i, c->left & lanes) {
            if ((int64_t)c->group[i] + in->imm < (int64_t)all->committed[i])
                return wait_for(w, all, c, (uint64_t)in->imm);
        }
    }
    return RUN_NEXT;
}

static run_result run_wait_all(warp *w, const instr *in, uint32_t lanes) {
    (void)in;
    copies *all = copies_of(w);
    for (const copy *c = all->live; c; c = c->next)
        if (c->left & lanes) return wait_for(w, all, c, 0);
    FOR_LANES(i, lanes) all->committed[i]++;
    return RUN_NEXT;
}

/* ---- decoding ---- */

static void decode_arrive(decoder *d) {
    copy_operands *o = decode_alloc(d, sizeof *o);
    need(d, "arrive");
    need(d, "b64");
    d->in->mode = !take(d, "noinc");
    ptx_space space = take_space(d);
    if (space != SPACE_NONE && space != SPACE_SHARED) reject(d, "the mbarrier must be in .shared::cta");
    o->to = take_address(d, 0, space);
    d->in->extra = o;
    d->in->run = run_arrive;
}

static void decode_copy(decoder *d) {
    static const char *const operators[] = {"ca", "cg", NULL};
    static const char *const prefetch[] = {"L2::64B", "L2::128B", "L2::256B", NULL};
    copy_operands *o = decode_alloc(d, sizeof *o);
    int global_only = take_one_of(d, operators);
    if (global_only < 0) reject(d, ".ca or .cg is missing");
    if (!take(d, "shared") && !take(d, "shared::cta")) reject(d, "the destination must be .shared");
    need(d, "global");
    take_one_of(d, prefetch);
    int hint = take(d, "L2::cache_hint"), count = operand_count(d);
    o->to = take_address(d, 0, SPACE_SHARED);
    o->from = take_address(d, 1, SPACE_GLOBAL);
    int64_t size = constant(d, 2);
    if (size != 16 && (global_only || (size != 4 && size != 8))) reject(d, "the size must be 4, 8 or 16, with .cg 16");
    o->size = (uint32_t)size;
    o->source_size = o->ignore = NO_SLOT;
    if (count - hint > 3) {
        const operand *extra = operand_at(d, 3);
        if (extra->kind == OPERAND_REGISTER && extra->reg->type == TYPE_PRED)
            o->ignore = source_predicate(d, 3, &o->ignore_negated);
        else
            o->source_size = source(d, 3, TYPE_B32);
    }
    if (hint) source(d, count - 1, TYPE_B64);
    d->in->extra = o;
    d->in->run = run_copy;
}

static int decode_cp_async(decoder *d) {
    if (!has_modifier(d, "async") || has_modifier(d, "bulk") || has_modifier(d, "reduce")) return 0;
    take(d, "async");
    if (take(d, "commit_group"))
        d->in->run = run_commit;
    else if (take(d, "wait_all"))
        d->in->run = run_wait_all;
    else if (take(d, "wait_group")) {
        d->in->imm = constant(d, 0);
        d->in->run = run_wait_group;
    } else if (take(d, "mbarrier"))
        decode_arrive(d);
    else
        decode_copy(d);
    return 1;
}

const opcode_entry copy_opcodes[] = {
    {"cp", decode_cp_async},
    {0},
};
