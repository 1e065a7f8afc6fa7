/* Barriers of a CTA (bar, barrier; PTX ISA 9.7.13.1) and of a cluster (barrier.cluster; 9.7.13.3). */
#include "simt.h"

enum { SYNC, ARRIVE, RED_POPC, RED_AND, RED_OR };

/* Exited threads count as arrived where the barrier is for all threads of the CTA. */
static uint32_t exited(const cta *c) {
    uint32_t count = 0;
    for (int i = 0; i < c->warp_count; i++)
        count += (uint32_t)__builtin_popcount(c->warps[i].threads & ~c->warps[i].live);
    return count;
}

static void complete(cta *c, named_barrier *b, int everyone) {
    if (!b->arrived || b->arrived + (everyone ? exited(c) : 0) < b->expected) return;
    b->phase++;
    b->arrived = b->expected = 0;
    b->result_and = b->votes_and;
    b->result_or = b->votes_or;
    b->result_sum = b->votes_sum;
    machine_progress(c->grid->on);
    wake_cta(c);
}

static run_result run_barrier(warp *w, const instr *in, uint32_t lanes) {
    cta *c = w->cta;
    fragment *f = w->current;
    int aligned = in->type, everyone = in->s[1] == NO_SLOT;
    uint32_t id = r32(w, in->s[0])[__builtin_ctz(lanes)];
    if (id > 15) fault(w, in, -1, "barrier %u; there are 16, 0 to 15", id);
    named_barrier *b = &c->barriers[id];
    if (f->wait.kind == WAIT_BARRIER) {
        complete(c, b, everyone); /* threads may have exited since */
        if (b->phase == f->wait.b) return RUN_PARK;
    } else {
        if (aligned && !converge_aligned(w, in, lanes)) return RUN_PARK;
        uint32_t threads = (uint32_t)__builtin_popcount(lanes), expected = (uint32_t)c->thread_count;
        if (!everyone) {
            expected = r32(w, in->s[1])[__builtin_ctz(lanes)];
            if (aligned) threads = WARP_LANES; /* "as if all the threads in the warp are active" */
            if (expected == 0 || expected % WARP_LANES)
                fault(w, in, -1, "a thread count of %u; it must be a multiple of %d", expected, WARP_LANES);
        }
        if (b->arrived == 0) {
            b->expected = expected;
            b->votes_and = 1;
            b->votes_or = b->votes_sum = 0;
        } else if (b->expected != expected) {
            fault(w, in, -1, "barrier %u is used for %u threads here; those who have arrived use it for %u", id,
                  expected, b->expected);
        }
        b->arrived += threads;
        if (b->arrived > b->expected)
            fault(w, in, -1, "%u threads have arrived at barrier %u, which is for %u", b->arrived, id, b->expected);
        if (in->s[2] != NO_SLOT) {
            uint32_t vote = *predicate(w, in->s[2]);
            if (in->imm) vote = ~vote;
            vote &= lanes;
            b->votes_and &= vote == lanes;
            b->votes_or |= vote != 0;
            b->votes_sum += (uint32_t)__builtin_popcount(vote);
        }
        uint64_t phase = b->phase;
        machine_progress(machine_of(w));
        complete(c, b, everyone);
        if (in->mode != ARRIVE && b->phase == phase) {
            f->alone = 1;
            return park(w, WAIT_BARRIER, id, phase);
        }
    }
    if (in->mode != ARRIVE) w->sync_time = machine_of(w)->now;
    if (in->mode == RED_POPC && in->d != NO_SLOT) FOR_LANES(lane, lanes) r32(w, in->d)[lane] = b->result_sum;
    if (in->mode == RED_AND) set_predicate(w, in->d, lanes, b->result_and ? ALL_LANES : 0);
    if (in->mode == RED_OR) set_predicate(w, in->d, lanes, b->result_or ? ALL_LANES : 0);
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
    if (action < 0) refuse(d, "one of .sync, .arrive and .red is missing");
    in->mode = action == 2 ? RED_POPC : (uint32_t)action;
    if (action == 2) {
        int operation = take_one_of(d, operations);
        if (operation < 0) refuse(d, ".red needs .popc, .and or .or");
        in->mode += (uint32_t)operation;
        ptx_type type = operation ? TYPE_PRED : TYPE_U32;
        if (need_type(d) != type) refuse(d, "the result is of type .%s", type_name(type));
        in->d = destination(d, next++, type);
    }
    in->type = (uint8_t)(take(d, "aligned") || is_bar);
    in->s[0] = source(d, next++, TYPE_U32);
    int votes = action == 2;
    if (operand_count(d) - next > votes) in->s[1] = source(d, next++, TYPE_U32);
    if (action == 1 && in->s[1] == NO_SLOT) refuse(d, ".arrive needs the number of threads");
    if (votes) {
        int negated;
        in->s[2] = source_predicate(d, next++, &negated);
        in->imm = negated;
    }
    in->run = run_barrier;
    return 1;
}

/* ---- barrier.cluster ----------------------------------------------------------------------------------------------
 */

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
    if (lanes & w->cluster_arrived)
        fault(w, in, __builtin_ctz(lanes & w->cluster_arrived),
              "the thread has arrived at the cluster's barrier already and has not waited since");
    w->cluster_arrived |= lanes;
    FOR_LANES(lane, lanes) w->cluster_phase[lane] = k->barrier_phase;
    k->barrier_arrived += (uint32_t)__builtin_popcount(lanes);
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
    if (action < 0) refuse(d, "one of .arrive and .wait is missing");
    if (action == 0) {
        static const char *const orders[] = {"release", "relaxed", NULL};
        take_one_of(d, orders);
    } else {
        take(d, "acquire");
    }
    d->in->type = (uint8_t)take(d, "aligned");
    d->in->run = action ? run_cluster_wait : run_cluster_arrive;
    return 1;
}

const opcode_entry barrier_opcodes[] = {
    {"bar", decode_barrier}, {"barrier", decode_barrier}, {"barrier", decode_cluster_barrier}, {0}};
