/* Claims on registers: what tcgen05.ld (PTX ISA 9.7.16.8) and wgmma (9.7.15) will write when they have ended.
 *
 * Until then the register holds poison, so that a program that reads it without waiting computes with NaN. Only a mov
 * may touch it: compilers rename registers between the instruction and its wait, and pack them in pairs. Any other
 * instruction that writes a claimed register is not noticed here: the delivery overwrites it, as on hardware a write
 * that does not wait would be overwritten. */
#include <stdlib.h>

#include "emulator.h"

typedef struct {
    uint32_t place, stride, lanes;
    const uint32_t *value; /* of lane 0 */
} claim;

struct pending {
    size_t count, capacity;
    claim *claims;
};

static void add(warp *w, claim c) {
    pending *p = w->pending;
    if (!p) p = w->pending = calloc(1, sizeof *p);
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? 2 * p->capacity : 64;
        p->claims = realloc(p->claims, p->capacity * sizeof *p->claims);
    }
    p->claims[p->count++] = c;
}

static void drop_empty(warp *w) {
    pending *p = w->pending;
    size_t kept = 0;
    for (size_t i = 0; i < p->count; i++)
        if (p->claims[i].lanes) p->claims[kept++] = p->claims[i];
    p->count = kept;
    if (!kept) pending_warp_end(w);
}

/* Ends the claims on a place for these lanes. */
static void end_claims(pending *p, uint32_t place, uint32_t lanes) {
    for (size_t i = 0; i < p->count; i++)
        if (p->claims[i].place == place) p->claims[i].lanes &= ~lanes;
}

static uint32_t *cell(const warp *w, const claim *c, uint32_t lane) {
    return (uint32_t *)(w->registers + c->place + (size_t)lane * c->stride);
}

void pending_claim(warp *w, uint32_t place, uint32_t stride, uint32_t lanes, const uint32_t value[WARP_LANES]) {
    if (w->pending) end_claims(w->pending, place, lanes);
    claim c = {place, stride, lanes, value};
    FOR_LANES(lane, lanes) memset(cell(w, &c, lane), POISON_BYTE, sizeof(uint32_t));
    add(w, c);
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
        add(w, (claim){to, to_stride, c.lanes & lanes, c.value});
        p = w->pending;
    }
    if (ended) drop_empty(w);
}

const uint32_t *pending_value(const warp *w, uint32_t place) {
    const pending *p = w->pending;
    for (size_t i = 0; p && i < p->count; i++)
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
