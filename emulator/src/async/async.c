/* The engine of asynchronous operations: which are under way, and which one does its next piece.
 *
 * An operation happens at any time between its issue and the moment at which the program observes its completion
 * (PTX ISA 8.9 and 9.7.9.25). The seed chooses when (timing_of_seed):
 *   seed % 4 = 0     eager: an operation runs to its end when the turn ends in which it was issued
 *   seed % 4 = 1     lazy: an operation runs only when no warp can run without it
 *   seed % 4 = 2, 3  random: how often operations get a turn, how long a warp runs and how late an operation may start
 *                    are drawn over orders of magnitude; operations overlap and go on piece by piece */
#include <stdlib.h>

#include "async/async.h"

/* What can do a step: an unordered operation, or the first operation of a queue. */
typedef struct {
    async_op *op;
    async_queue *queue; /* NULL: unordered */
} candidate;

struct async_pool {
    candidate *candidates;
    uint32_t count, capacity;
    int operations;
};

/* An operation that may start at any time but is forced last. */
#define WITHHELD UINT64_MAX

enum { TRIES = 4 }; /* candidates looked at in a turn before giving up on those that may not start yet */

timing timing_of_seed(uint64_t seed) {
    uint64_t z = seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    switch (seed % 4) {
    case 0:
        return (timing){TIMING_EAGER, 65536, 256, 0};
    case 1:
        return (timing){TIMING_LAZY, 0, 256, 0};
    }
    return (timing){TIMING_RANDOM, 64u << (z & 1023) % 11, 4u << (z >> 10 & 1023) % 8, 1u << (z >> 20 & 1023) % 13};
}

/* ---- the pool ---- */

static void add_candidate(struct async_pool *pool, candidate c) {
    if (pool->count == pool->capacity) {
        pool->capacity = pool->capacity ? 2 * pool->capacity : 64;
        pool->candidates = realloc(pool->candidates, pool->capacity * sizeof *pool->candidates);
        if (!pool->candidates) abort();
    }
    pool->candidates[pool->count++] = c;
}

static async_op *candidate_op(const candidate *c) {
    return c->queue ? c->queue->first : c->op;
}

void async_start(machine *m, async_op *op, warp *by, const instr *in, async_queue *queue) {
    if (!m->pool) {
        m->pool = calloc(1, sizeof *m->pool);
        if (!m->pool) abort();
    }
    op->queue = queue;
    op->next = op->previous = NULL;
    op->in = in;
    op->by = by;
    op->from = by->cta;
    op->serial = m->op_serial++;
    op->started_at = m->now;
    op->not_before = m->now + (m->timing.max_delay ? machine_below(m, m->timing.max_delay + 1) : 0);
    if (m->fences == FENCES_TEXT && m->timing.mode != TIMING_EAGER &&
        !machine_below(m, (queue ? 32u : 4u) << m->seed / 4 % 4))
        op->not_before = WITHHELD;
    for (int i = 0; i < 2; i++)
        if (op->touches[i]) op->touches[i]->pending_ops++;
    m->pool->operations++;
    if (!queue) {
        add_candidate(m->pool, (candidate){op, NULL});
    } else if (queue->last) {
        op->previous = queue->last;
        queue->last->next = op;
        queue->last = op;
    } else {
        queue->first = queue->last = op;
        add_candidate(m->pool, (candidate){NULL, queue});
    }
}

void async_untouch(async_op *op, int which) {
    cta *c = op->touches[which];
    if (!c) return;
    op->touches[which] = NULL;
    c->pending_ops--;
    wake_cta(c);
}

const async_op *async_touching(const machine *m, const cta *c, const async_op *after) {
    for (uint32_t i = 0; m->pool && i < m->pool->count; i++)
        for (const async_op *op = candidate_op(&m->pool->candidates[i]); op; op = op->next)
            if (op == after)
                after = NULL;
            else if (!after && (op->touches[0] == c || op->touches[1] == c))
                return op;
    return NULL;
}

int async_pending(const machine *m) {
    return m->pool ? m->pool->operations : 0;
}

/* ---- steps ---- */

/* Takes the operation of candidate `index` out of the pool. */
static async_op *take_out(struct async_pool *pool, uint32_t index) {
    candidate *c = &pool->candidates[index];
    async_op *op = candidate_op(c);
    if (c->queue) {
        c->queue->first = op->next;
        if (op->next)
            op->next->previous = NULL;
        else
            c->queue->last = NULL;
    }
    if (!c->queue || !c->queue->first) *c = pool->candidates[--pool->count];
    pool->operations--;
    return op;
}

static void end(machine *m, async_op *op) {
    cta *from = op->from;
    if (m->trace) trace_op(m, op);
    async_untouch(op, 0);
    async_untouch(op, 1);
    op->release(op);
    wake_cta(from);
}

/* One step, or all steps with an eager seed. A step may start other operations, which queue behind. 0: held. */
static int go_on(machine *m, uint32_t index) {
    async_op *op = candidate_op(&m->pool->candidates[index]);
    int done, steps = 0;
    do {
        m->running = op->by; /* reported if an address is not mapped */
        m->instruction = op->in;
        done = op->step(op);
        m->running = NULL;
        if (done == STEP_HELD) return steps;
        machine_progress(m);
        steps = 1;
    } while (!done && m->timing.mode == TIMING_EAGER);
    if (done) end(m, take_out(m->pool, index));
    return 1;
}

int async_turn(machine *m, int force) {
    struct async_pool *pool = m->pool;
    if (!pool || !pool->count || (m->timing.mode == TIMING_LAZY && !force)) return 0;
    m->forcing = force;
    for (int i = 0; !force && i < TRIES; i++) {
        uint32_t index = machine_below(m, pool->count);
        if (candidate_op(&pool->candidates[index])->not_before <= m->now && go_on(m, index)) return 1;
    }
    uint32_t count = pool->count, first = machine_below(m, count);
    for (uint32_t i = 0; force && i < 2 * count; i++) {
        uint32_t index = (first + i) % count;
        int withheld = candidate_op(&pool->candidates[index])->not_before == WITHHELD;
        if ((i >= count || !withheld) && go_on(m, index)) return 1;
    }
    return 0;
}

void async_forget(machine *m, const cta *c) {
    struct async_pool *pool = m->pool;
    if (!pool) return;
    m->forcing = 1;
    for (uint32_t i = 0; i < pool->count;) {
        const async_op *op = candidate_op(&pool->candidates[i]);
        if (op->from == c)
            go_on(m, i);
        else
            i++;
    }
}

void async_clear(machine *m) {
    struct async_pool *pool = m->pool;
    if (!pool) return;
    while (pool->count) {
        async_op *op = take_out(pool, pool->count - 1);
        op->release(op);
    }
    free(pool->candidates);
    free(pool);
    m->pool = NULL;
}

/* ---- pieces ---- */

uint32_t async_piece(machine *m, uint32_t left) {
    if (m->timing.mode == TIMING_EAGER || left == 1) return left;
    /* Usually large, so that large copies take few turns; sometimes small. */
    uint32_t most = left >> machine_below(m, 4);
    return 1 + machine_below(m, most ? most : 1);
}

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

piece_order piece_order_of(machine *m, uint32_t count) {
    piece_order o = {.count = count, .stride = 1};
    if (count < 2 || m->timing.mode == TIMING_EAGER) return o;
    o.at = machine_below(m, count);
    o.stride = 1 + machine_below(m, count - 1);
    while (common_divisor(o.stride, count) != 1) o.stride = o.stride % count + 1;
    return o;
}

uint32_t piece_order_next(piece_order *o) {
    uint32_t unit = o->at;
    o->at = (uint32_t)(((uint64_t)o->at + o->stride) % o->count);
    o->done++;
    return unit;
}

/* ---- address operands ---- */

address_operand take_address(decoder *d, int index, ptx_space space) {
    address_operand a = {.space = space};
    a.slot = source_address(d, index, &a.offset, &a.bits);
    return a;
}

uint64_t address_value(const warp *w, const address_operand *a, uint32_t lane) {
    if (a->bits == 64) return r64(w, a->slot)[lane] + (uint64_t)a->offset;
    return (uint32_t)(r32(w, a->slot)[lane] + (uint64_t)a->offset);
}

cta *shared_operand(warp *w, const instr *in, uint32_t lane, const address_operand *a, uint32_t *offset,
                    const char *what) {
    uint64_t address = address_value(w, a, lane);
    if (a->space == SPACE_NONE && (address & WINDOW_MASK) != SHARED_WINDOW)
        fault(w, in, (int)lane, "%s is the generic address 0x%llx, which is not in shared memory", what,
              (unsigned long long)address);
    if (a->space != SPACE_NONE && address > UINT32_MAX)
        fault(w, in, (int)lane, "%s is 0x%llx, which is not an address of the shared window (it has 32 bits)", what,
              (unsigned long long)address);
    cta *c = shared_target(w, in, address, offset);
    if (a->space == SPACE_SHARED && c != w->cta)
        fault(w, in, (int)lane,
              "%s is 0x%llx, in the shared memory of CTA %u of the cluster; .shared::cta means the executing CTA, %u",
              what, (unsigned long long)address, c->rank, w->cta->rank);
    return c;
}
