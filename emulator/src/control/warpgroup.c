/* Instructions that all four warps of a warpgroup must run: .aligned of wgmma (PTX ISA 9.7.15) and of setmaxnreg
 * (9.7.19.5).
 *
 * Warps advance independently, so the check compares sequences: the first warp at a position records its
 * instruction, the others must run the same one. A warp that exits must have run as many as the others.
 * EMULATE_FENCES=hardware turns the check off. */
#include <stdlib.h>

#include "control/warpgroup.h"

typedef struct {
    const instr *in;
    uint64_t values[2];
    int by; /* index of the warp in the block */
} common;

typedef struct warpgroup {
    common *log;
    uint64_t base, count, capacity; /* of the log; entries that all warps have passed are dropped */
    uint64_t reached[WARPGROUP];
} warpgroup;

static int size_of(const cta *c, int group) {
    int left = c->warp_count - group * WARPGROUP;
    return left < WARPGROUP ? left : WARPGROUP;
}

static void make_room(warpgroup *g, int size) {
    if (g->count < g->capacity) return;
    uint64_t passed = g->reached[0];
    for (int i = 1; i < size; i++)
        if (g->reached[i] < passed) passed = g->reached[i];
    passed -= g->base;
    g->base += passed;
    g->count -= passed;
    memmove(g->log, g->log + passed, g->count * sizeof *g->log);
    if (2 * g->count < g->capacity) return;
    g->capacity = g->capacity ? 2 * g->capacity : 64;
    g->log = realloc(g->log, g->capacity * sizeof *g->log);
    if (!g->log) abort();
}

void warpgroup_common(warp *w, const instr *in, uint64_t first, uint64_t second) {
    cta *c = w->cta;
    if (machine_of(w)->fences != FENCES_TEXT) return;
    int group = w->index / WARPGROUP, size = size_of(c, group);
    if (!c->warpgroups) c->warpgroups = calloc((size_t)c->warp_count / WARPGROUP + 1, sizeof *c->warpgroups);
    if (!c->warpgroups) abort();
    warpgroup *g = &c->warpgroups[group];
    uint64_t place = g->reached[w->index % WARPGROUP];
    if (place == g->base + g->count) {
        for (int i = 0; i < size; i++)
            if (!c->warps[group * WARPGROUP + i].live)
                fault(w, in, -1, "warp %d has exited without it: all warps of a warpgroup must run it",
                      group * WARPGROUP + i);
        make_room(g, size);
        g->log[g->count++] = (common){in, {first, second}, w->index};
    } else {
        const common *other = &g->log[place - g->base];
        if (other->in != in)
            fault(w, in, -1,
                  "warp %d of the same warpgroup ran another instruction in its place, line %d `%s`: all warps of a "
                  "warpgroup must run the same",
                  other->by, other->in->line, other->in->text);
        const uint64_t values[2] = {first, second};
        for (int i = 0; i < 2; i++)
            if (other->values[i] != values[i])
                fault(w, in, -1,
                      "%s is 0x%016llx, and 0x%016llx in warp %d: it must be the same in all warps of the warpgroup",
                      i ? "b-desc" : "a-desc", (unsigned long long)values[i], (unsigned long long)other->values[i],
                      other->by);
    }
    g->reached[w->index % WARPGROUP]++;
}

void warpgroup_cta_exit(warp *last) {
    const cta *c = last->cta;
    if (!c->warpgroups) return;
    for (int i = 0; i < c->warp_count; i++) {
        const warpgroup *g = &c->warpgroups[i / WARPGROUP];
        uint64_t place = g->reached[i % WARPGROUP];
        if (place == g->base + g->count) continue;
        const common *missed = &g->log[place - g->base];
        fault(last, missed->in, -1, "warp %d has exited without it, and warp %d ran it: all warps of a warpgroup must",
              i, missed->by);
    }
}

void warpgroup_cta_end(cta *c) {
    if (!c->warpgroups) return;
    for (int i = 0; i <= c->warp_count / WARPGROUP; i++) free(c->warpgroups[i].log);
    free(c->warpgroups);
    c->warpgroups = NULL;
}
