/* mbarrier objects (PTX ISA 9.7.13.15): init, inval, expect_tx, complete_tx, arrive, arrive_drop, test_wait,
 * try_wait, pending_count, and the functions through which asynchronous operations signal.
 *
 * The content of a barrier's eight bytes is not documented. The state is kept in a table of the CTA, by offset; the
 * bytes in shared memory do not change. A state token is phase << 32 | pending count.
 *
 * mbarrier.init is a thread's write: with FENCES_TEXT, threads of other CTAs may use the barrier after a release at
 * cluster scope, and asynchronous operations signal it after fence.mbarrier_init or fence.proxy.async. */
#include <inttypes.h>
#include <stdlib.h>

#include "async/async.h"

enum { COUNT_MAX = (1 << 20) - 1, BARRIER_BYTES = 8, HISTORY = 4 };

/* Who arrived, for the deadlock's report. */
typedef struct {
    const instr *in;
    uint32_t block[3];
    int warp; /* -1: it has gone */
    int64_t amount;
} arrival;

typedef struct {
    uint32_t offset; /* in the CTA's window; 0: an empty place of the table */
    uint32_t pending, expected;
    uint64_t phase;
    uint32_t seen, seen_before; /* warps that have seen the end of the last phase, and of the phase before */
    int64_t tx;
    int64_t tx_expected, tx_completed; /* of this phase */
    uint32_t arrivals;
    arrival history[HISTORY];
    const instr *init; /* what initialised it, */
    const warp *init_by;
    uint32_t init_lane;
    uint64_t init_time; /* turn */
    mbarrier_view view; /* who may signal it */
} barrier;

/* Open addressing with linear probing. */
struct mbarrier {
    uint32_t capacity, used; /* a power of two, at least twice `used` */
    uint32_t low, high;      /* every barrier lies in here */
    uint32_t hidden;         /* barriers that the async proxy may not signal yet */
    async_queue *remote;     /* arrivals of other CTAs that are under way; NULL: there was none yet */
    barrier places[];
};

/* ---- the table ---- */

static uint32_t home_of(const mbarrier *t, uint32_t offset) {
    return offset / BARRIER_BYTES * 2654435761u >> 16 & (t->capacity - 1);
}

static barrier *find(const cta *c, uint32_t offset) {
    mbarrier *t = c->mbarriers;
    if (!t || offset < t->low || offset >= t->high) return NULL;
    for (uint32_t i = home_of(t, offset); t->places[i].offset; i = (i + 1) & (t->capacity - 1))
        if (t->places[i].offset == offset) return &t->places[i];
    return NULL;
}

static barrier *place_for(mbarrier *t, uint32_t offset) {
    uint32_t i = home_of(t, offset);
    while (t->places[i].offset) i = (i + 1) & (t->capacity - 1);
    return &t->places[i];
}

static barrier *add(cta *c, uint32_t offset) {
    mbarrier *old = c->mbarriers;
    if (!old || 2 * (old->used + 1) > old->capacity) {
        uint32_t capacity = old ? 2 * old->capacity : 32;
        mbarrier *t = calloc(1, sizeof *t + capacity * sizeof *t->places);
        if (!t) abort();
        t->capacity = capacity;
        t->low = UINT32_MAX;
        if (old) {
            t->used = old->used;
            t->low = old->low;
            t->high = old->high;
            t->hidden = old->hidden;
            t->remote = old->remote;
            for (uint32_t i = 0; i < old->capacity; i++)
                if (old->places[i].offset) *place_for(t, old->places[i].offset) = old->places[i];
        }
        free(old);
        c->mbarriers = t;
    }
    mbarrier *t = c->mbarriers;
    if (offset < t->low) t->low = offset;
    if (offset + BARRIER_BYTES > t->high) t->high = offset + BARRIER_BYTES;
    t->used++;
    t->hidden++;
    barrier *b = place_for(t, offset);
    b->offset = offset;
    return b;
}

static void take_away(cta *c, barrier *b) {
    mbarrier *t = c->mbarriers;
    uint32_t mask = t->capacity - 1, hole = (uint32_t)(b - t->places);
    t->used--;
    t->hidden -= b->view != VIEW_ASYNC;
    /* Those behind that probed across the hole move into it. */
    for (uint32_t i = (hole + 1) & mask; t->places[i].offset; i = (i + 1) & mask) {
        uint32_t home = home_of(t, t->places[i].offset);
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        t->places[hole] = t->places[i];
        hole = i;
    }
    t->places[hole] = (barrier){0};
}

void mbarrier_cta_end(cta *c) {
    if (c->mbarriers) free(c->mbarriers->remote);
    free(c->mbarriers);
    c->mbarriers = NULL;
}

/* ---- checks ---- */

static int in_use(const barrier *b) {
    return b->pending != b->expected || b->tx != 0;
}

static uint32_t shown(const cta *c, uint32_t offset) {
    return (uint32_t)own_shared_address(c, offset);
}

static void check_place(warp *w, const instr *in, int lane, const cta *c, uint32_t offset) {
    if (offset % BARRIER_BYTES)
        fault(w, in, lane, "shared address 0x%x cannot hold an mbarrier: it is not a multiple of 8", shown(c, offset));
    check_shared(w, in, c, offset, BARRIER_BYTES, BARRIER_BYTES, "the mbarrier");
}

static barrier *need_barrier(warp *w, const instr *in, int lane, cta *c, uint32_t offset) {
    barrier *b = find(c, offset);
    if (b) return b;
    check_place(w, in, lane, c, offset);
    fault(
        w, in, lane,
        "no mbarrier at shared address 0x%x of CTA %u of the cluster: it was not initialised, or has been invalidated "
        "or overwritten",
        shown(c, offset), c->rank);
}

void mbarrier_check(warp *w, const instr *in, cta *c, uint32_t offset) {
    need_barrier(w, in, -1, c, offset);
}

void mbarrier_check_view(warp *w, const instr *in, int lane, cta *c, uint32_t offset, mbarrier_view view) {
    const barrier *b = need_barrier(w, in, lane, c, offset);
    if (b->view < view && machine_of(w)->fences == FENCES_TEXT)
        fault(w, in, lane,
              "signals the mbarrier at shared address 0x%x of CTA %u of the cluster, but nothing has made its "
              "mbarrier.init (line %d) visible to %s: fence.mbarrier_init must follow it",
              shown(c, offset), c->rank, b->init->line, view == VIEW_ASYNC ? "the async proxy" : "other CTAs");
}

static void publish(const warp *w, uint32_t lanes, const cta *c, mbarrier_view view, uint64_t others_until) {
    mbarrier *t = c->mbarriers;
    for (uint32_t i = 0; t && t->hidden && i < t->capacity; i++) {
        barrier *b = &t->places[i];
        if (!b->offset || b->view >= view) continue;
        int own = b->init_by == w && lanes >> b->init_lane & 1;
        if (!own && b->init_time > others_until) continue;
        b->view = view;
        t->hidden -= view == VIEW_ASYNC;
    }
}

void mbarrier_publish(const warp *w, uint32_t lanes, mbarrier_view view, uint64_t others_until) {
    const cluster *all = w->cta->cluster;
    for (int rank = 0; rank < all->size; rank++)
        if (all->ctas[rank]) publish(w, lanes, all->ctas[rank], view, others_until);
}

static void end_overwritten(warp *w, const instr *in, cta *c, barrier *b) {
    if (in_use(b))
        fault(w, in, -1,
              "writes shared address 0x%x, where an mbarrier is in use (phase %" PRIu64
              ", %u of %u arrivals still due, tx-count %" PRId64 ")",
              shown(c, b->offset), b->phase, b->pending, b->expected, b->tx);
    remark_once(c->grid->on, "mbarrier overwritten",
                "%s, line %d: writes shared address 0x%x, where an mbarrier lies that mbarrier.inval has not ended",
                function_title(c->grid->launch.entry->function), in->line, shown(c, b->offset));
    take_away(c, b);
}

void mbarrier_guard(warp *w, const instr *in, cta *c, uint32_t offset, uint32_t bytes) {
    const mbarrier *t = c->mbarriers;
    if (!t || offset >= t->high || offset + bytes <= t->low) return;
    uint32_t first = offset > t->low ? offset / BARRIER_BYTES * BARRIER_BYTES : t->low;
    uint32_t end = offset + bytes < t->high ? offset + bytes : t->high;
    for (uint32_t at = first; at < end; at += BARRIER_BYTES) {
        barrier *b = find(c, at);
        if (b) end_overwritten(w, in, c, b);
    }
}

/* ---- what changes a barrier ---- */

static void note(barrier *b, const warp *w, const instr *in, int64_t amount) {
    arrival *s = &b->history[b->arrivals++ % HISTORY];
    *s = (arrival){.in = in, .warp = w ? w->index : -1, .amount = amount};
    if (w) memcpy(s->block, w->cta->id, sizeof s->block);
}

static void complete_if_due(cta *c, barrier *b) {
    machine_progress(c->grid->on);
    if (b->pending || b->tx) return;
    b->phase++;
    b->seen_before = b->seen;
    b->seen = 0;
    b->pending = b->expected;
    b->tx_expected = b->tx_completed = 0;
    wake_cta(c);
}

static void arrive(warp *w, const instr *in, int lane, cta *c, barrier *b, uint32_t count, int drop) {
    if (!count || count > COUNT_MAX)
        fault(w, in, lane, "arrives %u times at the mbarrier at shared address 0x%x; a count is 1 to 1048575", count,
              shown(c, b->offset));
    if (count > b->pending)
        fault(
            w, in, lane,
            "arrives %u time(s) at the mbarrier at shared address 0x%x, where only %u of %u arrivals are still due in "
            "phase %" PRIu64 " (tx-count %" PRId64 ")",
            count, shown(c, b->offset), b->pending, b->expected, b->phase, b->tx);
    if (drop && count > b->expected)
        fault(w, in, lane, "drops %u arrivals of the mbarrier at shared address 0x%x, which expects %u", count,
              shown(c, b->offset), b->expected);
    b->pending -= count;
    if (drop) b->expected -= count;
    note(b, w, in, count);
    complete_if_due(c, b);
}

static void add_tx(warp *w, const instr *in, int lane, cta *c, barrier *b, int64_t bytes) {
    if (b->tx + bytes > COUNT_MAX || b->tx + bytes < -COUNT_MAX)
        fault(w, in, lane,
              "brings the tx-count of the mbarrier at shared address 0x%x from %" PRId64 " to %" PRId64
              "; it is at most 1048575 either way",
              shown(c, b->offset), b->tx, b->tx + bytes);
    b->tx += bytes;
    if (bytes > 0)
        b->tx_expected += bytes;
    else
        b->tx_completed -= bytes;
}

void mbarrier_arrive(warp *w, const instr *in, cta *c, uint32_t offset, uint32_t count) {
    arrive(w, in, -1, c, need_barrier(w, in, -1, c, offset), count, 0);
}

void mbarrier_complete_tx(warp *w, const instr *in, cta *c, uint32_t offset, int64_t bytes) {
    barrier *b = need_barrier(w, in, -1, c, offset);
    add_tx(w, in, -1, c, b, -bytes);
    complete_if_due(c, b);
}

void mbarrier_add_pending(warp *w, const instr *in, cta *c, uint32_t offset, uint32_t count) {
    barrier *b = need_barrier(w, in, -1, c, offset);
    if (b->pending + count > COUNT_MAX)
        fault(w, in, -1, "brings the pending count of the mbarrier at shared address 0x%x to %u; at most 1048575",
              shown(c, offset), b->pending + count);
    b->pending += count;
    machine_progress(c->grid->on);
}

/* A phase that waits for bytes which no operation sends. Hardware tolerates it: the barrier ends with its block. */
void mbarrier_cta_exit(warp *last) {
    const mbarrier *t = last->cta->mbarriers;
    if (!t || machine_of(last)->fences != FENCES_TEXT) return;
    for (uint32_t i = 0; i < t->capacity; i++) {
        const barrier *b = &t->places[i];
        if (!b->offset || !b->tx) continue;
        fault(last, NULL, -1,
              "the block has exited while phase %" PRIu64 " of the mbarrier at shared address 0x%x has a tx-count of "
              "%" PRId64 " (%" PRId64 " bytes expected, %" PRId64 " completed)",
              b->phase, shown(last->cta, b->offset), b->tx, b->tx_expected, b->tx_completed);
    }
}

void mbarrier_describe(const cta *c, uint32_t offset, char *out, size_t size) {
    const barrier *b = find(c, offset);
    if (!b) {
        snprintf(out, size, "no mbarrier at shared address 0x%x", shown(c, offset));
        return;
    }
    int n = snprintf(out, size,
                     "mbarrier 0x%x: phase %" PRIu64 " (parity %d), %u of %u arrivals still due, tx-count %" PRId64
                     " (%" PRId64 " bytes expected, %" PRId64 " completed)",
                     shown(c, offset), b->phase, (int)(b->phase & 1), b->pending, b->expected, b->tx, b->tx_expected,
                     b->tx_completed);
    uint32_t known = b->arrivals < HISTORY ? b->arrivals : HISTORY;
    if (!known && n >= 0 && (size_t)n < size) snprintf(out + n, size - (size_t)n, "; nobody has arrived yet");
    for (uint32_t i = 0; i < known && n >= 0 && (size_t)n < size; i++) {
        const arrival *s = &b->history[(b->arrivals - 1 - i) % HISTORY];
        n += snprintf(out + n, size - (size_t)n, "%s block (%u,%u,%u) warp %d at line %d (count %" PRId64 ")",
                      i ? "," : "; last arrivals:", s->block[0], s->block[1], s->block[2], s->warp, s->in->line,
                      s->amount);
    }
}

/* ---- instructions ---- */

typedef struct {
    address_operand at;
    int drop, expect, no_complete;
    uint32_t count; /* slot, NO_SLOT: 1 */
} barrier_operands;

static cta *barrier_at(warp *w, const instr *in, uint32_t lane, uint32_t *offset) {
    const barrier_operands *o = in->extra;
    return shared_operand(w, in, lane, &o->at, offset, "the mbarrier's address");
}

/* For operations that .shared::cluster and generic addresses of other CTAs do not support. */
static cta *own_barrier_at(warp *w, const instr *in, uint32_t lane, uint32_t *offset) {
    cta *c = barrier_at(w, in, lane, offset);
    if (c != w->cta)
        fault(w, in, (int)lane,
              "the mbarrier lies in CTA %u of the cluster; this works only on one of the executing CTA, %u", c->rank,
              w->cta->rank);
    return c;
}

static run_result run_init(warp *w, const instr *in, uint32_t lanes) {
    const barrier_operands *o = in->extra;
    FOR_LANES(lane, lanes) {
        uint32_t offset, count = r32(w, o->count)[lane];
        cta *c = own_barrier_at(w, in, lane, &offset);
        check_place(w, in, (int)lane, c, offset);
        if (!count || count > COUNT_MAX)
            fault(w, in, (int)lane, "initialises an mbarrier with count %u; a count is 1 to 1048575", count);
        barrier *b = find(c, offset);
        if (b && in_use(b))
            fault(w, in, (int)lane,
                  "initialises the mbarrier at shared address 0x%x again while it is in use (phase %" PRIu64
                  ", %u of %u arrivals still due, tx-count %" PRId64 ")",
                  shown(c, offset), b->phase, b->pending, b->expected, b->tx);
        if (b && machine_of(w)->fences == FENCES_TEXT)
            fault(w, in, (int)lane,
                  "initialises the mbarrier at shared address 0x%x again; mbarrier.inval must end the first one before",
                  shown(c, offset));
        if (b)
            remark_once(machine_of(w), "mbarrier initialised again",
                        "%s, line %d: initialises the mbarrier at shared address 0x%x again without mbarrier.inval",
                        function_title(c->grid->launch.entry->function), in->line, shown(c, offset));
        if (b) take_away(c, b);
        b = add(c, offset);
        b->pending = b->expected = count;
        b->init = in;
        b->init_by = w;
        b->init_lane = lane;
        b->init_time = machine_of(w)->now;
        machine_progress(machine_of(w));
    }
    return RUN_NEXT;
}

static run_result run_inval(warp *w, const instr *in, uint32_t lanes) {
    FOR_LANES(lane, lanes) {
        uint32_t offset;
        cta *c = own_barrier_at(w, in, lane, &offset);
        take_away(c, need_barrier(w, in, (int)lane, c, offset));
        machine_progress(machine_of(w));
    }
    return RUN_NEXT;
}

static run_result run_tx(warp *w, const instr *in, uint32_t lanes) {
    const barrier_operands *o = in->extra;
    FOR_LANES(lane, lanes) {
        uint32_t offset;
        cta *c = barrier_at(w, in, lane, &offset);
        if (c != w->cta) mbarrier_check_view(w, in, (int)lane, c, offset, VIEW_CLUSTER);
        barrier *b = need_barrier(w, in, (int)lane, c, offset);
        int64_t bytes = r32(w, o->count)[lane];
        add_tx(w, in, (int)lane, c, b, o->expect ? bytes : -bytes);
        complete_if_due(c, b);
    }
    return RUN_NEXT;
}

/* An arrival at another CTA's barrier is an operation of its own. Arrivals at one CTA stay in the order of issue, so
 * that a release comes after what the thread did before it. */
typedef struct {
    async_op op;
    int lane;
    uint32_t offset, operand;
} remote_arrival;

static int remote_step(async_op *op) {
    const remote_arrival *a = (remote_arrival *)op;
    const barrier_operands *o = op->in->extra;
    cta *c = op->touches[0];
    barrier *b = need_barrier(op->by, op->in, a->lane, c, a->offset);
    if (o->expect) add_tx(op->by, op->in, a->lane, c, b, a->operand);
    arrive(op->by, op->in, a->lane, c, b, o->expect ? 1 : a->operand, o->drop);
    return 1;
}

static void remote_release(async_op *op) {
    free(op);
}

static void arrive_remotely(warp *w, const instr *in, uint32_t lane, cta *c, uint32_t offset, uint32_t operand) {
    if (!c->live_warps)
        fault(w, in, (int)lane, "arrives at an mbarrier of CTA %u of the cluster, which has exited", c->rank);
    mbarrier_check_view(w, in, (int)lane, c, offset, VIEW_CLUSTER);
    mbarrier *t = c->mbarriers;
    if (!t->remote) t->remote = calloc(1, sizeof *t->remote);
    remote_arrival *a = calloc(1, sizeof *a);
    if (!a || !t->remote) abort();
    a->op.step = remote_step;
    a->op.release = remote_release;
    a->op.what = "remote arrival";
    a->op.touches[0] = c;
    a->lane = (int)lane;
    a->offset = offset;
    a->operand = operand;
    async_start(machine_of(w), &a->op, w, in, t->remote);
}

int mbarrier_arrivals_under_way(const cta *from) {
    const cluster *k = from->cluster;
    for (int i = 0; i < k->size; i++) {
        const mbarrier *t = k->ctas[i] ? k->ctas[i]->mbarriers : NULL;
        for (const async_op *op = t && t->remote ? t->remote->first : NULL; op; op = op->next)
            if (op->from == from) return 1;
    }
    return 0;
}

static run_result run_arrive(warp *w, const instr *in, uint32_t lanes) {
    const barrier_operands *o = in->extra;
    FOR_LANES(lane, lanes) {
        uint32_t offset, operand = o->count == NO_SLOT ? 1 : r32(w, o->count)[lane];
        cta *c = barrier_at(w, in, lane, &offset);
        if (c != w->cta && in->d != NO_SLOT)
            fault(w, in, (int)lane, "arrives at an mbarrier of CTA %u of the cluster; that gives no state: use _",
                  c->rank);
        if (c != w->cta && machine_of(w)->fences == FENCES_TEXT) {
            arrive_remotely(w, in, lane, c, offset, operand);
            continue;
        }
        barrier *b = need_barrier(w, in, (int)lane, c, offset);
        uint64_t state = b->phase << 32 | b->pending;
        if (o->expect) add_tx(w, in, (int)lane, c, b, operand);
        arrive(w, in, (int)lane, c, b, o->expect ? 1 : operand, o->drop);
        if (o->no_complete && (uint32_t)b->phase != (uint32_t)(state >> 32))
            fault(w, in, (int)lane,
                  "completes the phase of the mbarrier at shared address 0x%x in spite of .noComplete",
                  shown(c, offset));
        if (in->d != NO_SLOT) r64(w, in->d)[lane] = state;
    }
    /* Others see what a thread did before the arrival. They may not see what it does after. */
    return machine_of(w)->fences == FENCES_TEXT && !machine_below(machine_of(w), 4) ? RUN_YIELD : RUN_NEXT;
}

/* Whether a runnable warp has seen the end of the phase before the last, but not of the last: one phase more, and it
 * would wait for ever. Programs in which every warp waits for every phase, and one warp issues the next copy, rely on
 * the time that a copy takes on hardware. */
int mbarrier_held(const cta *c, uint32_t offset) {
    const machine *m = c->grid->on;
    const barrier *b = m->fences == FENCES_HARDWARE && !m->forcing ? find(c, offset) : NULL;
    if (!b || !b->phase) return 0;
    uint32_t behind = ~b->seen & (b->phase == 1 ? ALL_LANES : b->seen_before);
    for (int i = 0; i < c->warp_count && i < 32; i++)
        if (behind >> i & 1 && c->warps[i].live && c->warps[i].in_ready >= 0) return 1;
    return 0;
}

static int phase_is_over(warp *w, const instr *in, uint32_t lane, const cta *c, const barrier *b, uint64_t asked) {
    if (in->mode) { /* .parity */
        if (asked > 1)
            remark_once(machine_of(w), "phase parity",
                        "%s, line %d: waits for phase parity %llu; the text allows 0 and 1 (an H200 takes bit 0)",
                        function_title(c->grid->launch.entry->function), in->line, (unsigned long long)asked);
        return (b->phase & 1) != (asked & 1);
    }
    uint32_t phase = (uint32_t)(asked >> 32);
    if (phase == (uint32_t)b->phase) return 0;
    if (phase + 1 == (uint32_t)b->phase) return 1;
    fault(w, in, (int)lane,
          "the state is of phase %u, and the mbarrier at shared address 0x%x is in phase %" PRIu64
          "; only the current phase and the one before can be asked for",
          phase, shown(c, b->offset), b->phase);
}

/* The lanes whose phase is over; *address and *asked are of one whose phase is not. */
static uint32_t lanes_done(warp *w, const instr *in, uint32_t lanes, uint64_t *address, uint64_t *asked) {
    uint32_t done = 0;
    FOR_LANES(lane, lanes) {
        uint32_t offset;
        cta *c = own_barrier_at(w, in, lane, &offset);
        barrier *b = need_barrier(w, in, (int)lane, c, offset);
        uint64_t of_lane = in->mode ? r32(w, in->s[0])[lane] : r64(w, in->s[0])[lane];
        if (phase_is_over(w, in, lane, c, b, of_lane)) {
            done |= 1u << lane;
            b->seen |= 1u << w->index % 32;
        } else {
            *address = shown(c, offset);
            *asked = of_lane;
        }
    }
    return done;
}

static run_result run_test_wait(warp *w, const instr *in, uint32_t lanes) {
    uint64_t address = 0, asked = 0;
    uint32_t done = lanes_done(w, in, lanes, &address, &asked);
    set_predicate(w, in->d, lanes, done);
    if (done) w->sync_time = machine_of(w)->now;
    return done == lanes ? RUN_NEXT : RUN_YIELD;
}

/* The wait may also end early, by its time limit. A program must not take that for the end of the phase, but may go on
 * to work that the phase depends on. */
static int ends_early(const warp *w) {
    machine *m = machine_of(w);
    if (w->current->wait.kind == WAIT_MBARRIER && w->current->wait.over) return 1;
    return m->timing.mode != TIMING_EAGER && w->current->wait.kind != WAIT_MBARRIER && !machine_below(m, 16);
}

static run_result run_try_wait(warp *w, const instr *in, uint32_t lanes) {
    uint64_t address = 0, asked = 0;
    uint32_t done = lanes_done(w, in, lanes, &address, &asked);
    if (!done && !ends_early(w)) return park(w, WAIT_MBARRIER, address, asked);
    set_predicate(w, in->d, lanes, done);
    if (done) w->sync_time = machine_of(w)->now;
    return done == lanes ? RUN_NEXT : RUN_YIELD;
}

static run_result run_pending_count(warp *w, const instr *in, uint32_t lanes) {
    FOR_LANES(lane, lanes) r32(w, in->d)[lane] = (uint32_t)r64(w, in->s[0])[lane] & COUNT_MAX;
    return RUN_NEXT;
}

/* ---- decoding ---- */

static const char *const scopes[] = {"cta", "cluster", NULL};

/* {.sem.scope}: both or none. No effect here: every thread sees a write at once. */
static void take_semantics(decoder *d, const char *const *semantics) {
    int sem = take_one_of(d, semantics), scope = take_one_of(d, scopes);
    if ((sem < 0) != (scope < 0)) reject(d, "the semantics and the scope must be written together");
}

static barrier_operands *take_barrier(decoder *d, int index, int cluster_too) {
    barrier_operands *o = decode_alloc(d, sizeof *o);
    ptx_space space = take_space(d);
    if (space != SPACE_NONE && space != SPACE_SHARED && !(space == SPACE_SHARED_CLUSTER && cluster_too))
        reject(d, "the mbarrier cannot be in this state space");
    need(d, "b64");
    o->at = take_address(d, index, space);
    o->count = NO_SLOT;
    d->in->extra = o;
    return o;
}

static void decode_init(decoder *d) {
    take_barrier(d, 0, 0)->count = source(d, 1, TYPE_U32);
    d->in->run = run_init;
}

static void decode_inval(decoder *d) {
    take_barrier(d, 0, 0);
    d->in->run = run_inval;
}

static void decode_tx(decoder *d, int expect) {
    take_semantics(d, (const char *const[]){"relaxed", NULL});
    barrier_operands *o = take_barrier(d, 0, 1);
    o->expect = expect;
    o->count = source(d, 1, TYPE_U32);
    d->in->run = run_tx;
}

static void decode_arrive(decoder *d, int drop) {
    int expect = take(d, "expect_tx"), no_complete = !expect && take(d, "noComplete");
    take_semantics(d, (const char *const[]){"release", "relaxed", NULL});
    barrier_operands *o = take_barrier(d, 1, !no_complete);
    o->drop = drop;
    o->expect = expect;
    o->no_complete = no_complete;
    d->in->d = destination(d, 0, TYPE_B64);
    if (o->at.space == SPACE_SHARED_CLUSTER && d->in->d != NO_SLOT)
        reject(d, "an mbarrier in .shared::cluster gives no state: the destination must be _");
    if (operand_count(d) > 2 && !no_complete) need_target(d, 90, "", "a count without .noComplete");
    if (operand_count(d) > 2 || expect || no_complete) o->count = source(d, 2, TYPE_U32);
    d->in->run = run_arrive;
}

static void decode_wait(decoder *d, int may_block) {
    d->in->mode = (uint32_t)take(d, "parity");
    take_semantics(d, (const char *const[]){"acquire", "relaxed", NULL});
    take_barrier(d, 1, 0);
    d->in->d = destination(d, 0, TYPE_PRED);
    d->in->s[0] = source(d, 2, d->in->mode ? TYPE_U32 : TYPE_B64);
    if (may_block && operand_count(d) > 3) source(d, 3, TYPE_U32); /* a time hint */
    d->in->run = may_block ? run_try_wait : run_test_wait;
}

static void decode_pending_count(decoder *d) {
    need(d, "b64");
    d->in->d = destination(d, 0, TYPE_U32);
    d->in->s[0] = source(d, 1, TYPE_B64);
    if (d->in->d == NO_SLOT) reject(d, "the count needs a register");
    d->in->run = run_pending_count;
}

static int decode_mbarrier(decoder *d) {
    static const char *const operations[] = {"init",        "inval",     "expect_tx", "complete_tx",   "arrive",
                                             "arrive_drop", "test_wait", "try_wait",  "pending_count", NULL};
    enum { INIT, INVAL, EXPECT_TX, COMPLETE_TX, ARRIVE, ARRIVE_DROP, TEST_WAIT, TRY_WAIT };
    /* arrive.expect_tx holds two of these names: the first one says what it is */
    const char *first = d->statement->modifier_count ? d->statement->modifiers[0] : "";
    int operation = 0;
    while (operations[operation] && strcmp(operations[operation], first)) operation++;
    if (!operations[operation]) reject(d, "unknown mbarrier operation");
    take(d, first);
    switch (operation) {
    case INIT:
        decode_init(d);
        break;
    case INVAL:
        decode_inval(d);
        break;
    case EXPECT_TX:
    case COMPLETE_TX:
        decode_tx(d, operation == EXPECT_TX);
        break;
    case ARRIVE:
    case ARRIVE_DROP:
        decode_arrive(d, operation == ARRIVE_DROP);
        break;
    case TEST_WAIT:
    case TRY_WAIT:
        decode_wait(d, operation == TRY_WAIT);
        break;
    default:
        decode_pending_count(d);
    }
    return 1;
}

const opcode_entry mbarrier_opcodes[] = {{"mbarrier", decode_mbarrier}, {0}};
