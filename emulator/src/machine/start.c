/* Start of a CTA: memory reused from CTAs that have ended, and warps with their registers filled. */
#include <stdlib.h>

#include "machine/simt.h"

/* ---- memory ---- */

/* The CTAs of a grid need the same sizes, so that blocks of the very size are found again. */
enum { BUCKETS = 64, GRANULE = 256, MOST_KEPT = 1 << 28 };

typedef struct spare {
    struct spare *next;
    size_t bytes;
} spare;

struct spares {
    spare *of_size[BUCKETS];
    size_t kept;
};

static size_t rounded(size_t bytes) {
    return (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

void *spare_take(machine *m, size_t bytes) {
    bytes = rounded(bytes ? bytes : 1);
    if (m->spares)
        for (spare **link = &m->spares->of_size[bytes / GRANULE % BUCKETS]; *link; link = &(*link)->next)
            if ((*link)->bytes == bytes) {
                spare *found = *link;
                *link = found->next;
                m->spares->kept -= bytes;
                return found;
            }
    void *p = aligned_alloc(64, bytes);
    if (!p) abort();
    return p;
}

void spare_give(machine *m, void *p, size_t bytes) {
    bytes = rounded(bytes ? bytes : 1);
    if (!m->spares && !(m->spares = calloc(1, sizeof *m->spares))) abort();
    if (m->spares->kept + bytes > MOST_KEPT) spare_free(m);
    spare *s = p, **bucket = &m->spares->of_size[bytes / GRANULE % BUCKETS];
    *s = (spare){*bucket, bytes};
    *bucket = s;
    m->spares->kept += bytes;
}

void spare_free(machine *m) {
    for (int i = 0; m->spares && i < BUCKETS; i++)
        for (spare *s = m->spares->of_size[i]; s;) {
            spare *next = s->next;
            free(s);
            s = next;
        }
    if (m->spares) *m->spares = (struct spares){0};
}

/* ---- warps ---- */

/* Writes the slots whose values are the same in that scope and in no wider one. */
static void fill(warp *w, int scope) {
    const entry *e = w->cta->grid->launch.entry;
    for (int i = 0; i < e->fill_count; i++) {
        const struct fill *f = &e->fills[i];
        uint64_t lanes[WARP_LANES];
        if ((int)f->scope != scope) continue;
        if (f->special)
            special_fill(w, f->special, lanes);
        else
            for (int lane = 0; lane < WARP_LANES; lane++) lanes[lane] = f->bits[0];
        int bits = type_bits(f->type);
        for (int lane = 0; lane < WARP_LANES; lane++) {
            if (bits == 128)
                r128(w, f->slot)[lane] = (unsigned __int128)f->bits[1] << 64 | lanes[lane];
            else if (bits == 64)
                r64(w, f->slot)[lane] = lanes[lane];
            else if (bits > 1)
                r32(w, f->slot)[lane] = (uint32_t)lanes[lane];
        }
        if (bits == 1) *predicate(w, f->slot) = lanes[0] & 1 ? ALL_LANES : 0;
    }
}

static size_t register_bytes(const grid *g) {
    return ((size_t)g->launch.entry->register_bytes + 63) / 64 * 64;
}

void warps_start(cta *c) {
    grid *g = c->grid;
    machine *m = g->on;
    size_t bytes = register_bytes(g);
    c->warp_count = c->live_warps = (c->thread_count + WARP_LANES - 1) / WARP_LANES;
    c->warps = spare_take(m, (size_t)c->warp_count * sizeof *c->warps);
    memset(c->warps, 0, (size_t)c->warp_count * sizeof *c->warps);
    uint8_t *registers = spare_take(m, (size_t)c->warp_count * bytes);
    for (int i = 0; i < c->warp_count; i++) {
        warp *w = &c->warps[i];
        int threads = c->thread_count - i * WARP_LANES;
        w->cta = c;
        w->index = i;
        w->in_ready = -1;
        w->live = w->threads = threads >= WARP_LANES ? ALL_LANES : (1u << threads) - 1;
        w->fragment_count = 1;
        w->fragments[0] = (fragment){.joined = 1, .lanes = w->threads, .function = g->launch.entry->function};
        w->registers = registers + (size_t)i * bytes;
        if (!g->image) {
            memset(w->registers, POISON_BYTE, bytes);
            fill(w, SAME_IN_GRID);
            g->image = memcpy(spare_take(m, bytes), w->registers, bytes);
        } else if (i == 0) {
            memcpy(w->registers, g->image, bytes);
        }
        if (i == 0)
            fill(w, SAME_IN_CTA);
        else
            memcpy(w->registers, registers, bytes);
    }
    for (int i = 0; i < c->warp_count; i++) fill(&c->warps[i], SAME_IN_WARP);
}

void warps_free(cta *c) {
    machine *m = c->grid->on;
    spare_give(m, c->warps[0].registers, (size_t)c->warp_count * register_bytes(c->grid));
    spare_give(m, c->warps, (size_t)c->warp_count * sizeof *c->warps);
}

void forget_image(grid *g) {
    if (g->image) spare_give(g->on, g->image, register_bytes(g));
}
