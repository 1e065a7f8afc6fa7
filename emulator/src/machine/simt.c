/* Warps: fragments, the interpreter's loop, divergence and reconvergence.
 *
 * Lanes run independently, as on Volta and later. The fragment deepest in calls and lowest in the program runs
 * first, since branches of nvcc's code then reconverge where they join. One turn in sixteen prefers another
 * fragment, so that no program can rely on it.
 *
 * EMULATE_LANES=apart: lanes meet only at instructions that make them wait for each other (.sync, .aligned, bar). After
 * each of these a fragment parts in two at its first access to memory that other lanes can see. One part runs ahead,
 * mostly until it waits; the other stays behind, before that access. */
#include <stdlib.h>

#include "machine/simt.h"

enum { PARTS_KINDS = 4 };

static int same_place(const fragment *a, const fragment *b) {
    return a->pc == b->pc && a->function == b->function && a->stack == b->stack && !a->alone && !b->alone;
}

static fragment *new_fragment(warp *w, const fragment *like, uint32_t lanes) {
    fragment *f = &w->fragments[w->fragment_count++];
    *f = *like;
    f->lanes = lanes;
    f->state = FRAGMENT_RUNS;
    f->wait = (wait_note){0};
    f->alone = 0;
    return f;
}

static void remove_fragment(warp *w, fragment *f) {
    fragment *last = &w->fragments[--w->fragment_count];
    if (w->current == last) w->current = f;
    if (f != last) *f = *last;
}

run_result park(warp *w, int kind, uint64_t a, uint64_t b) {
    w->current->wait = (wait_note){.kind = kind, .a = a, .b = b};
    return RUN_PARK;
}

/* Whether a fragment waits for the same members at another instruction of the same name. */
static int waits_elsewhere(const warp *w, const fragment *f, const instr *in, uint32_t members) {
    const instr *other = &f->function->code[f->pc];
    return f != w->current && f->wait.kind == WAIT_LANES && !f->wait.b && ((uint32_t)f->wait.a & w->live) == members &&
           other->run == in->run && !strcmp(other->name, in->name);
}

int converge(warp *w, const instr *in, uint32_t members) {
    members &= w->live;
    uint32_t here = w->executing;
    for (int i = 0; (here & members) != members && i < w->fragment_count; i++)
        if (waits_elsewhere(w, &w->fragments[i], in, members)) here |= w->fragments[i].lanes;
    if ((here & members) == members) return 1;
    park(w, WAIT_LANES, members, 0);
    return 0;
}

int elsewhere(const warp *w, const instr *in, uint32_t members, meeting out[WARP_LANES]) {
    int count = 0;
    members &= w->live;
    for (int i = 0; i < w->fragment_count; i++) {
        const fragment *f = &w->fragments[i];
        if (!(f->lanes & members) || !waits_elsewhere(w, f, in, members)) continue;
        out[count++] = (meeting){&f->function->code[f->pc], f->lanes & members};
    }
    return count;
}

void elsewhere_done(warp *w, const instr *in, uint32_t members) {
    members &= w->live;
    for (int i = 0; i < w->fragment_count; i++) {
        fragment *f = &w->fragments[i];
        if (!waits_elsewhere(w, f, in, members)) continue;
        f->pc++;
        f->joined = 1;
        f->wait = (wait_note){0};
        f->state = FRAGMENT_RUNS;
    }
}

int converge_aligned(warp *w, const instr *in, uint32_t lanes) {
    if (lanes == w->live) return 1;
    if (lanes != w->current->lanes)
        fault(w, in, -1,
              "the instruction is .aligned, but only lanes %08x execute it: the guard is false in lanes %08x", lanes,
              w->current->lanes & ~lanes);
    for (int i = 0; i < w->fragment_count; i++) {
        const fragment *f = &w->fragments[i];
        if (f != w->current && f->wait.kind == WAIT_LANES && f->wait.b && f->state == FRAGMENT_PARKED)
            fault(w, in, -1,
                  "the instruction is .aligned, but only lanes %08x execute it: lanes %08x are at line %d, which is "
                  ".aligned too",
                  lanes, f->lanes, f->function->code[f->pc].line);
    }
    park(w, WAIT_LANES, w->live, 1);
    return 0;
}

void split_off(warp *w, uint32_t lanes) {
    fragment *f = w->current;
    lanes &= f->lanes;
    if (lanes == f->lanes || !lanes) return;
    fragment *parked = new_fragment(w, f, lanes);
    parked->pc = f->pc - 1; /* the interpreter has gone past the instruction already */
    parked->state = FRAGMENT_PARKED;
    parked->wait = f->wait;
    f->wait = (wait_note){0};
    f->lanes &= ~lanes;
    w->executing &= ~lanes;
}

void jump_function(warp *w, uint32_t lanes, const function *to, int32_t pc, call_node *stack) {
    fragment *f = w->current;
    if (lanes != f->lanes) {
        f->lanes &= ~lanes;
        f = new_fragment(w, f, lanes);
    }
    f->function = to;
    f->pc = pc;
    f->stack = stack;
}

void jump(warp *w, uint32_t lanes, int32_t pc) {
    jump_function(w, lanes, w->current->function, pc, w->current->stack);
}

void exit_lanes(warp *w, uint32_t lanes) {
    fragment *f = w->current;
    f->lanes &= ~lanes;
    w->live &= ~lanes;
    cluster_barrier_exit(w, lanes);
    w->cta->cluster->exited_threads += (uint32_t)__builtin_popcount(lanes);
    machine_progress(machine_of(w));
    /* collectives and barriers may have waited for these lanes */
    for (int i = 0; i < w->fragment_count; i++) w->fragments[i].state = FRAGMENT_RUNS;
    wake_cluster(w->cta->cluster);
}

void wake_warp(warp *w) {
    int woke = 0;
    for (int i = 0; i < w->fragment_count; i++)
        if (w->fragments[i].state == FRAGMENT_PARKED && w->fragments[i].wait.kind != WAIT_LANES) {
            w->fragments[i].state = FRAGMENT_RUNS;
            woke = 1;
        }
    if (woke || w->in_ready < 0) machine_ready(w);
}

/* LANES_APART: some lanes stay behind. */
static void part_lanes(machine *m, warp *w, fragment *f) {
    uint32_t lanes = f->lanes, count = (uint32_t)__builtin_popcount(lanes), some = machine_random(m);
    f->joined = 0;
    if (count < 2) return;
    switch (machine_below(m, PARTS_KINDS)) {
    case 0: /* a lane of its own */
        for (uint32_t skip = machine_below(m, count); skip; skip--) lanes &= lanes - 1;
        some = lanes & -lanes;
        break;
    case 1: /* the lower and the upper ones */
        some = (1u << machine_below(m, WARP_LANES)) - 1;
        break;
    }
    if (machine_below(m, 2)) some = ~some;
    some &= f->lanes;
    if (!some || some == f->lanes) return;
    fragment *behind = new_fragment(w, f, some);
    f->lanes &= ~some;
    f->rank = machine_random(m) | 1u << 31;
    behind->rank = f->rank >> 1;
}

static int deeper(const fragment *a, const fragment *b) {
    int da = a->stack ? a->stack->depth : 0, db = b->stack ? b->stack->depth : 0;
    return da != db ? da > db : a->pc < b->pc;
}

static fragment *choose(machine *m, warp *w) {
    fragment *best = NULL;
    int runs = 0;
    for (int i = 0; i < w->fragment_count; i++) {
        fragment *f = &w->fragments[i];
        if (f->state != FRAGMENT_RUNS) continue;
        runs++;
        if (!best || (m->lanes == LANES_APART ? f->rank > best->rank : deeper(f, best))) best = f;
    }
    if (runs < 2 || machine_below(m, 16)) return best;
    for (int skip = (int)machine_below(m, (uint32_t)runs), i = 0; i < w->fragment_count; i++)
        if (w->fragments[i].state == FRAGMENT_RUNS && skip-- == 0) return &w->fragments[i];
    return best;
}

/* Puts fragments that stand where the current one stands into it. */
static void merge_here(warp *w) {
    for (int i = w->fragment_count - 1; i >= 0; i--) {
        fragment *f = &w->fragments[i];
        if (f == w->current || !same_place(f, w->current)) continue;
        w->current->lanes |= f->lanes;
        w->current->wait = (wait_note){0};
        remove_fragment(w, f);
    }
}

/* LANES_APART: of one side of a branch. Mostly the many lanes go first: they may need what the few write. */
static uint32_t branch_rank(machine *m, const fragment *f) {
    uint32_t random = machine_random(m);
    return __builtin_popcount(f->lanes) > WARP_LANES / 2 ? random | 1u << 31 : random;
}

/* Whether another runnable fragment should run first, so that it meets the current one. */
static int overtaken(const warp *w) {
    for (int i = 0; i < w->fragment_count; i++)
        if (w->fragments[i].state == FRAGMENT_RUNS && deeper(&w->fragments[i], w->current)) return 1;
    return 0;
}

/* Runs the current fragment for up to *budget instructions. 1: its turn is over (it yielded). */
static int run_current(machine *m, warp *w, uint32_t *budget) {
    const instr *code = w->current->function->code;
    uint32_t left = *budget;
    int yielded = 0, diverged = w->fragment_count > 1, apart = m->lanes == LANES_APART;
    while (left && !yielded) {
        fragment *f = w->current;
        if (diverged && (!apart || code[f->pc].lanes_meet)) merge_here(w);
        f = w->current;
        if (apart && f->joined && code[f->pc].lanes_part) {
            part_lanes(m, w, f);
            diverged = w->fragment_count > 1;
        }
        instr *in = (instr *)&code[f->pc++];
        uint32_t lanes = f->lanes;
        if (in->guard != NO_SLOT) {
            uint32_t guard = *predicate(w, in->guard);
            lanes &= in->guard_negated ? ~guard : guard;
        }
        left--;
        w->instructions++; /* here, so that %clock advances within a turn */
        if (!lanes) continue;
        w->executing = lanes;
        m->instruction = in;
        int fragments = w->fragment_count;
        run_result result = in->run(w, in, lanes);
        f = w->current; /* splitting never moves it; removing is done below */
        if (result != RUN_PARK) {
            in->executions++;
            in->lane_executions += (uint64_t)__builtin_popcount(lanes);
            if (apart && in->lanes_meet) f->joined = 1;
        }
        if (result == RUN_NEXT && !diverged && w->fragment_count == 1) {
            f->wait.kind = WAIT_NOTHING;
            f->alone = 0;
            continue;
        }
        if (result == RUN_PARK) {
            uint32_t others = f->lanes & ~w->executing; /* their guard is false: they go on */
            if (others) {
                new_fragment(w, f, others);
                f->lanes &= ~others;
            }
            f->pc--;
            f->state = FRAGMENT_PARKED;
            break;
        }
        f->wait = (wait_note){0};
        f->alone = 0;
        if (!f->lanes) {
            remove_fragment(w, f);
            break;
        }
        yielded = result == RUN_YIELD;
        if (apart && yielded) f->rank = machine_random(m);
        code = f->function->code;
        diverged = w->fragment_count > 1;
        if (apart && w->fragment_count > fragments) { /* either side of a branch may go first */
            f->rank = branch_rank(m, f);
            for (int i = fragments; i < w->fragment_count; i++) w->fragments[i].rank = branch_rank(m, &w->fragments[i]);
            break;
        }
        if (diverged && !apart && overtaken(w)) break;
    }
    *budget = left;
    return yielded;
}

int warp_turn(machine *m, warp *w, uint32_t budget) {
    int yielded = 0;
    m->running = w;
    while (budget && !yielded && (w->current = choose(m, w)) != NULL) {
        yielded = run_current(m, w, &budget);
        /* its operations may end before the lanes behind issue theirs */
        if (m->lanes == LANES_APART && machine_below(m, 2)) break;
    }
    w->current = NULL;
    m->running = NULL;
    m->instruction = NULL;
    return yielded;
}

int warp_can_run(const warp *w) {
    for (int i = 0; i < w->fragment_count; i++)
        if (w->fragments[i].state == FRAGMENT_RUNS) return 1;
    return 0;
}
