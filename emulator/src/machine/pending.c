/* Claims on registers that tcgen05.ld (PTX ISA 9.7.16.8) or wgmma (9.7.15) will write.
 *
 * Until the operation ends the register holds poison, so a program that reads it without waiting computes with NaN.
 * A mov may copy it: compilers rename registers between the instruction and its wait, and pack them in pairs. A
 * write to a claimed register by another instruction is not reported: the delivery overwrites it, as it would on
 * hardware. */
#include <stdlib.h>

#include "machine/machine.h"

enum { CHAINS = 128 };
#define NONE UINT32_MAX /* an enumerator would make the others unsigned with some compilers */

typedef struct {
    uint32_t place, stride, lanes;
    uint32_t next;         /* claim in the same chain */
    const uint32_t *value; /* of lane 0 */
} claim;

struct pending {
    size_t count, capacity;
    claim *claims;
    uint32_t chains[CHAINS]; /* of claims by place, so that none looks through all of them */
};

static uint32_t *chain(pending *p, uint32_t place) {
    return &p->chains[place * 0x9E3779B1u >> 25];
}

static void empty_chains(pending *p) {
    for (int i = 0; i < CHAINS; i++) p->chains[i] = NONE;
}

static void link_claim(pending *p, size_t i) {
    uint32_t *first = chain(p, p->claims[i].place);
    p->claims[i].next = *first;
    *first = (uint32_t)i;
}

static void add(warp *w, claim c) {
    pending *p = w->pending;
    if (!p) {
        p = w->pending = calloc(1, sizeof *p);
        empty_chains(p);
    }
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? 2 * p->capacity : 64;
        p->claims = realloc(p->claims, p->capacity * sizeof *p->claims);
    }
    p->claims[p->count] = c;
    link_claim(p, p->count++);
}

static void drop_empty(warp *w) {
    pending *p = w->pending;
    size_t kept = 0;
    for (size_t i = 0; i < p->count; i++)
        if (p->claims[i].lanes) p->claims[kept++] = p->claims[i];
    p->count = kept;
    if (!kept) {
        pending_warp_end(w);
        return;
    }
    empty_chains(p);
    for (size_t i = 0; i < kept; i++) link_claim(p, i);
}

/* Ends the claims on a place for these lanes; returns one that has no lane left, or NULL. */
static claim *end_claims(pending *p, uint32_t place, uint32_t lanes) {
    claim *ended = NULL;
    for (uint32_t i = *chain(p, place); i != NONE; i = p->claims[i].next) {
        claim *c = &p->claims[i];
        if (c->place != place) continue;
        c->lanes &= ~lanes;
        if (!c->lanes) ended = c;
    }
    return ended;
}

static uint32_t *cell(const warp *w, const claim *c, uint32_t lane) {
    return (uint32_t *)(w->registers + c->place + (size_t)lane * c->stride);
}

void pending_claim(warp *w, uint32_t place, uint32_t stride, uint32_t lanes, const uint32_t value[WARP_LANES]) {
    claim *ended = w->pending ? end_claims(w->pending, place, lanes) : NULL;
    claim c = {place, stride, lanes, NONE, value};
    FOR_LANES(lane, lanes) memset(cell(w, &c, lane), POISON_BYTE, sizeof(uint32_t));
    if (!ended) {
        add(w, c);
        return;
    }
    c.next = ended->next;
    *ended = c;
}

void pending_copy(warp *w, uint32_t to, uint32_t to_stride, uint32_t from, uint32_t lanes) {
    pending *p = w->pending;
    if (to == from) return;
    size_t count = p->count;
    int ended = 0;
    for (size_t i = 0; i < count; i++)
        if (p->claims[i].place == to && p->claims[i].lanes & lanes) {
            p->claims[i].lanes &= ~lanes;
            ended |= !p->claims[i].lanes;
        }
    for (size_t i = 0; i < count; i++) {
        claim c = p->claims[i];
        if (c.place != from || !(c.lanes & lanes)) continue;
        add(w, (claim){to, to_stride, c.lanes & lanes, NONE, c.value});
        p = w->pending;
    }
    if (ended) drop_empty(w);
}

const uint32_t *pending_value(const warp *w, uint32_t place) {
    pending *p = w->pending;
    for (uint32_t i = p ? *chain(p, place) : NONE; i != NONE; i = p->claims[i].next)
        if (p->claims[i].place == place && p->claims[i].lanes & 1) return p->claims[i].value;
    return NULL;
}

void pending_deliver(warp *w, const uint32_t *values, size_t count) {
    pending *p = w->pending;
    if (!p) return;
    for (size_t i = 0; i < p->count; i++) {
        claim *c = &p->claims[i];
        if (c->value < values || c->value >= values + count) continue;
        FOR_LANES(lane, c->lanes) * cell(w, c, lane) = c->value[lane];
        c->lanes = 0;
    }
    drop_empty(w);
}

void pending_warp_end(warp *w) {
    if (!w->pending) return;
    free(w->pending->claims);
    free(w->pending);
    w->pending = NULL;
}
