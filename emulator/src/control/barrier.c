/* Barriers of a CTA (bar, barrier; PTX ISA 9.7.13.1) and of a cluster (barrier.cluster; 9.7.13.3).
 *
 * Where the ISA is silent, an H200 decides:
 *   - an arrival counts a whole warp, including lanes that do not exist or have exited
 *   - a warp that arrives twice counts twice
 *   - with a count, a warp that has exited is still waited for
 *   - uses with and without a count do not mix; lanes of one warp at two barriers are a fault */
#include "async/async.h"
#include "machine/simt.h"

enum { SYNC, ARRIVE, RED_POPC, RED_AND, RED_OR };

/* Votes of a phase that is over, in a wait note. */
enum { SOME_NO = 1, SOME_YES = 2, SUM_SHIFT = 2 };

static uint32_t all_warps(const cta *c) {
    return c->warp_count >= WARP_LANES ? ALL_LANES : (1u << c->warp_count) - 1;
}

static uint32_t exited_warps(const cta *c) {
    uint32_t exited = 0;
    for (int i = 0; i < c->warp_count; i++) exited |= (uint32_t)!c->warps[i].live << i;
    return exited;
}

/* Lanes of warp `i` have come; the warp has arrived if none is missing. */
static void settle(cta *c, named_barrier *b, int i) {
    if (!(b->partial >> i & 1) || c->warps[i].live & ~b->lanes[i]) return;
    b->partial &= ~(1u << i);
    b->lanes[i] = 0;
    b->warps |= 1u << i;
    b->arrived++;
    /* those lanes that came again in the same phase (arrive does not wait) have waited for this */
    for (int j = 0; j < c->warps[i].fragment_count; j++) {
        fragment *f = &c->warps[i].fragments[j];
        if (f->wait.kind == WAIT_LANES && f->state == FRAGMENT_PARKED) f->state = FRAGMENT_RUNS;
    }
    machine_ready(&c->warps[i]);
}

/* Ends the phase if all have arrived. Waiting warps get the votes. */
static void complete(cta *c, uint32_t id) {
    named_barrier *b = &c->barriers[id];
    for (int i = 0; b->partial && i < c->warp_count; i++) settle(c, b, i);
    if (!b->arrived) return;
    if (b->everyone ? (b->warps | exited_warps(c)) != all_warps(c) : b->arrived < b->expected) return;
    uint64_t votes = (b->votes_no ? SOME_NO : 0) | (b->votes_yes ? SOME_YES : 0) | (uint64_t)b->votes_sum << SUM_SHIFT;
    for (int i = 0; i < c->warp_count; i++)
        for (int j = 0; j < c->warps[i].fragment_count; j++) {
            wait_note *n = &c->warps[i].fragments[j].wait;
            if (n->kind != WAIT_BARRIER || n->a != id || n->over) continue;
            n->over = 1;
            n->b = votes;
        }
    b->phase++;
    b->arrived = b->expected = b->warps = 0;
    b->votes_no = b->votes_yes = b->votes_sum = 0;
    machine_progress(c->grid->on);
    wake_cta(c);
}

static void check_count(warp *w, const instr *in, const named_barrier *b, uint32_t id, int everyone, uint32_t count) {
    if (!everyone && (count == 0 || count % WARP_LANES))
        fault(w, in, -1, "a thread count of %u; it must be a multiple of %d", count, WARP_LANES);
    uint32_t warps = everyone ? (uint32_t)w->cta->warp_count : count / WARP_LANES;
    if (b->expected && b->everyone != everyone)
        fault(w, in, -1, "barrier %u is used %s a thread count here, and %s one by those who have arrived", id,
              everyone ? "without" : "with", everyone ? "with" : "without");
    if (b->expected && b->expected != warps)
        fault(w, in, -1, "barrier %u is used for %u threads here; those who have arrived use it for %u", id, count,
              b->expected * WARP_LANES);
    if (b->arrived + 1 > warps)
        fault(w, in, -1, "%u threads have arrived at barrier %u, which is for %u", (b->arrived + 1) * WARP_LANES, id,
              count);
}

/* Lanes of one warp at two barriers can never meet at one. */
static void check_elsewhere(warp *w, const instr *in, uint32_t id) {
    for (uint32_t other = 0; other < 16; other++)
        if (other != id && w->cta->barriers[other].partial >> w->index & 1)
            fault(w, in, -1,
                  "comes to barrier %u while lanes %08x of the warp are at barrier %u: a warp arrives when all its "
                  "lanes have come",
                  id, w->cta->barriers[other].lanes[w->index], other);
}

static run_result run_barrier(warp *w, const instr *in, uint32_t lanes) {
    cta *c = w->cta;
    fragment *f = w->current;
    int aligned = in->type, everyone = in->s[1] == NO_SLOT;
    uint32_t id = r32(w, in->s[0])[__builtin_ctz(lanes)];
    if (id > 15) fault(w, in, -1, "barrier %u; there are 16, 0 to 15", id);
    named_barrier *b = &c->barriers[id];
    if (f->wait.kind == WAIT_BARRIER) {
        complete(c, id); /* threads may have exited since */
        if (!f->wait.over) return RUN_PARK;
    } else {
        if (aligned && !converge_aligned(w, in, lanes)) return RUN_PARK;
        uint32_t count = everyone ? (uint32_t)c->thread_count : r32(w, in->s[1])[__builtin_ctz(lanes)];
        complete(c, id);
        if (b->lanes[w->index] & lanes) return park(w, WAIT_LANES, w->live, 0);
        check_count(w, in, b, id, everyone, count);
        if (!aligned) check_elsewhere(w, in, id);
        b->expected = everyone ? (uint32_t)c->warp_count : count / WARP_LANES;
        b->everyone = everyone;
        b->partial |= 1u << w->index;
        b->lanes[w->index] |= lanes;
        if (in->s[2] != NO_SLOT) {
            uint32_t vote = *predicate(w, in->s[2]);
            if (in->imm) vote = ~vote;
            b->votes_no |= lanes & ~vote;
            b->votes_yes |= lanes & vote;
            b->votes_sum += (uint32_t)__builtin_popcount(lanes & vote);
        }
        machine_progress(machine_of(w));
        if (in->mode != ARRIVE) {
            f->alone = 1;
            park(w, WAIT_BARRIER, id, b->phase);
        }
        complete(c, id);
        if (in->mode != ARRIVE && !f->wait.over) return RUN_PARK;
    }
    if (in->mode == ARRIVE) return RUN_NEXT;
    uint64_t votes = f->wait.b;
    w->sync_time = machine_of(w)->now;
    if (in->mode == RED_POPC && in->d != NO_SLOT)
        FOR_LANES(lane, lanes) r32(w, in->d)[lane] = (uint32_t)(votes >> SUM_SHIFT);
    if (in->mode == RED_AND) set_predicate(w, in->d, lanes, votes & SOME_NO ? 0 : ALL_LANES);
    if (in->mode == RED_OR) set_predicate(w, in->d, lanes, votes & SOME_YES ? ALL_LANES : 0);
    return RUN_NEXT;
}

static int decode_barrier(decoder *d) {
    if (has_modifier(d, "cluster") || has_modifier(d, "warp")) return 0;
    instr *in = d->in;
    int is_bar = d->statement->opcode[3] == 0; /* bar is barrier.aligned */
    take(d, "cta");
    static const char *const actions[] = {"sync", "arrive", "red", NULL};
    static const char *const operations[] = {"popc", "and", "or", NULL};
    int action = take_one_of(d, actions), next = 0;
    if (action < 0) reject(d, "one of .sync, .arrive and .red is missing");
    in->mode = action == 2 ? RED_POPC : (uint32_t)action;
    if (action == 2) {
        int operation = take_one_of(d, operations);
        if (operation < 0) reject(d, ".red needs .popc, .and or .or");
        in->mode += (uint32_t)operation;
        ptx_type type = operation ? TYPE_PRED : TYPE_U32;
        if (need_type(d) != type) reject(d, "the result is of type .%s", type_name(type));
        in->d = destination(d, next++, type);
    }
    in->type = (uint8_t)(take(d, "aligned") || is_bar);
    in->s[0] = source(d, next++, TYPE_U32);
    int votes = action == 2;
    if (operand_count(d) - next > votes) in->s[1] = source(d, next++, TYPE_U32);
    if (action == 1 && in->s[1] == NO_SLOT) reject(d, ".arrive needs the number of threads");
    if (votes) {
        int negated;
        in->s[2] = source_predicate(d, next++, &negated);
        in->imm = negated;
    }
    in->run = run_barrier;
    return 1;
}

/* ---- barrier.cluster ---- */

static void cluster_complete(cluster *k) {
    if (!k->barrier_arrived || k->barrier_arrived + k->exited_threads < k->threads) return;
    k->barrier_arrived = 0;
    k->barrier_phase++;
    machine_progress(k->grid->on);
    wake_cluster(k);
}

/* Exited threads count as arrived from now on; those that had arrived in this phase must not count twice. */
void cluster_barrier_exit(warp *w, uint32_t lanes) {
    cluster *k = w->cta->cluster;
    FOR_LANES(lane, lanes & w->cluster_arrived)
    if (w->cluster_phase[lane] == k->barrier_phase) k->barrier_arrived--;
    w->cluster_arrived &= ~lanes;
}

static run_result run_cluster_arrive(warp *w, const instr *in, uint32_t lanes) {
    if (in->type && !converge_aligned(w, in, lanes)) return RUN_PARK;
    cluster *k = w->cta->cluster;
    if (mbarrier_arrivals_under_way(w->cta)) return park(w, WAIT_ASYNC, 0, 0); /* what it releases is done */
    if (lanes & w->cluster_arrived)
        fault(w, in, __builtin_ctz(lanes & w->cluster_arrived),
              "the thread has arrived at the cluster's barrier already and has not waited since");
    w->cluster_arrived |= lanes;
    FOR_LANES(lane, lanes) w->cluster_phase[lane] = k->barrier_phase;
    k->barrier_arrived += (uint32_t)__builtin_popcount(lanes);
    if (!in->mode) mbarrier_publish(w, lanes, VIEW_CLUSTER, w->sync_time);
    machine_progress(machine_of(w));
    cluster_complete(k);
    return RUN_NEXT;
}

static run_result run_cluster_wait(warp *w, const instr *in, uint32_t lanes) {
    if (in->type && !converge_aligned(w, in, lanes)) return RUN_PARK;
    cluster *k = w->cta->cluster;
    if (lanes & ~w->cluster_arrived)
        fault(w, in, __builtin_ctz(lanes & ~w->cluster_arrived),
              "the thread waits at the cluster's barrier without having arrived");
    cluster_complete(k); /* threads may have exited since */
    FOR_LANES(lane, lanes)
    if (w->cluster_phase[lane] == k->barrier_phase) return park(w, WAIT_CLUSTER, 0, k->barrier_phase);
    w->cluster_arrived &= ~lanes;
    w->sync_time = machine_of(w)->now;
    return RUN_NEXT;
}

static int decode_cluster_barrier(decoder *d) {
    if (!has_modifier(d, "cluster")) return 0;
    need(d, "cluster");
    static const char *const actions[] = {"arrive", "wait", NULL};
    int action = take_one_of(d, actions);
    if (action < 0) reject(d, "one of .arrive and .wait is missing");
    if (action == 0) {
        static const char *const orders[] = {"release", "relaxed", NULL};
        d->in->mode = take_one_of(d, orders) == 1; /* relaxed */
    } else {
        take(d, "acquire");
    }
    d->in->type = (uint8_t)take(d, "aligned");
    d->in->run = action ? run_cluster_wait : run_cluster_arrive;
    return 1;
}

const opcode_entry barrier_opcodes[] = {
    {"bar", decode_barrier}, {"barrier", decode_barrier}, {"barrier", decode_cluster_barrier}, {0}};
