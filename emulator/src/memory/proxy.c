/* The async proxy's view of memory (PTX ISA 9.7.9.25, "Async proxy", and the memory model's chapter on proxies).
 *
 * A thread's write reaches the async proxy through a fence.proxy.async of that thread, or of one that has
 * synchronised with it since. Before that, a bulk copy, a tensor copy or the tensor core may read the old bytes;
 * here it always does. Of writes to global memory this holds for the writer's cluster: other clusters read them once
 * a release at the scope of the GPU has followed the fence. A fence.proxy.async of a reader of theirs publishes what
 * was released before.
 *
 * Shared memory has two copies and a record for each word that differs: time of the write, writer, mask of bytes. If
 * two threads write different bytes of a word, the bytes of the earlier one become visible early. Global memory has
 * one copy; the record keeps the old bytes, in granules of four words, until they are published or the grid ends. With
 * FENCES_HARDWARE the fence is enough. */
#include "memory/memory.h"

#include <stdlib.h>

/* ---- shared memory ---- */

/* time << 18 | writer << 4 | mask of bytes */
#define WORD_TIME(record)   ((record) >> 18)
#define WORD_WRITER(record) ((uint32_t)((record) >> 4) & 0x3fff)
#define WORD_MASK(record)   ((uint32_t)(record) & 15)

struct proxy_shadow {
    uint32_t dirty; /* words */
    uint32_t groups;
    uint64_t *bits;    /* a bit a word */
    uint64_t *summary; /* a bit a group of 64 words */
    uint64_t *words;
};

static struct proxy_shadow *shadow_of(cta *c) {
    if (c->shadow) return c->shadow;
    size_t words = (c->shared_bytes + 3) / 4, groups = (words + 63) / 64, summaries = (groups + 63) / 64;
    struct proxy_shadow *s = calloc(1, sizeof *s + (summaries + groups + words) * sizeof(uint64_t));
    if (!s) abort();
    s->summary = (uint64_t *)(s + 1);
    s->bits = s->summary + summaries;
    s->words = s->bits + groups;
    s->groups = (uint32_t)groups;
    return c->shadow = s;
}

void memory_cta_end(cta *c) {
    free(c->shadow);
    c->shadow = NULL;
}

static void copy_bytes(uint8_t *to, const uint8_t *from, uint32_t mask) {
    if (mask == 15)
        memcpy(to, from, 4);
    else
        for (int i = 0; i < 4; i++)
            if (mask >> i & 1) to[i] = from[i];
}

static void clean(struct proxy_shadow *s, uint32_t word) {
    uint64_t *group = &s->bits[word / 64];
    *group &= ~((uint64_t)1 << word % 64);
    if (!*group) s->summary[word / 4096] &= ~((uint64_t)1 << word / 64 % 64);
    s->dirty--;
}

/* The bytes of `word` that [offset, end) covers. */
static inline uint32_t covered(uint32_t word, uint32_t offset, uint32_t end) {
    uint32_t mask = 15, base = word * 4;
    if (offset > base) mask &= 15u << (offset - base);
    if (end < base + 4) mask &= 15u >> (base + 4 - end);
    return mask;
}

void note_shared_write(cta *c, uint32_t offset, uint32_t bytes, uint32_t writer, uint64_t now) {
    struct proxy_shadow *s = shadow_of(c);
    uint32_t end = offset + bytes;
    for (uint32_t word = offset / 4; word * 4 < end; word++) {
        uint64_t *group = &s->bits[word / 64], bit = (uint64_t)1 << word % 64;
        uint32_t mask = covered(word, offset, end);
        if (!(*group & bit)) {
            *group |= bit;
            s->summary[word / 4096] |= (uint64_t)1 << word / 64 % 64;
            s->dirty++;
        } else {
            uint32_t old = WORD_MASK(s->words[word]);
            if (WORD_WRITER(s->words[word]) == writer)
                mask |= old;
            else
                copy_bytes(c->async_view + word * 4, c->shared + word * 4, old & ~mask);
        }
        s->words[word] = now << 18 | (uint64_t)writer << 4 | mask;
    }
}

static void publish_shared(const warp *w, uint32_t lanes, cta *c) {
    struct proxy_shadow *s = c->shadow;
    if (!s || !s->dirty) return;
    uint32_t warp_writer = shared_writer(w, 0);
    for (uint32_t top = 0; top * 64 < s->groups; top++)
        for (uint64_t groups = s->summary[top]; groups; groups &= groups - 1) {
            uint32_t group = top * 64 + (uint32_t)__builtin_ctzll(groups);
            for (uint64_t bits = s->bits[group]; bits; bits &= bits - 1) {
                uint32_t word = group * 64 + (uint32_t)__builtin_ctzll(bits);
                uint64_t record = s->words[word];
                uint32_t writer = WORD_WRITER(record);
                int own = writer >> 5 == warp_writer >> 5 && lanes >> (writer & 31) & 1;
                if (!own && WORD_TIME(record) > w->sync_time) continue;
                copy_bytes(c->async_view + word * 4, c->shared + word * 4, WORD_MASK(record));
                clean(s, word);
            }
        }
}

void publish_to_async_proxy(warp *w, uint32_t lanes) {
    const cluster *all = w->cta->cluster;
    for (int rank = 0; rank < all->size; rank++)
        if (all->ctas[rank]) publish_shared(w, lanes, all->ctas[rank]);
}

void async_read_shared(cta *c, uint32_t offset, void *data, uint32_t bytes) {
    memcpy(data, (c->async_view ? c->async_view : c->shared) + offset, bytes);
}

void async_write_shared(cta *c, uint32_t offset, const void *data, uint32_t bytes) {
    memcpy(c->shared + offset, data, bytes);
    if (!c->async_view) return;
    memcpy(c->async_view + offset, data, bytes);
    struct proxy_shadow *s = c->shadow;
    if (!s || !s->dirty) return;
    uint32_t end = offset + bytes;
    for (uint32_t word = offset / 4; word * 4 < end; word++) {
        if (!s->bits[word / 64]) {
            word |= 63;
            continue;
        }
        if (!(s->bits[word / 64] >> word % 64 & 1)) continue;
        s->words[word] &= ~(uint64_t)covered(word, offset, end);
        if (!WORD_MASK(s->words[word])) clean(s, word);
    }
}

/* ---- global memory ---- */

#define GRANULE 16
/* Beyond this many granules, writes count as published: few kernels write so much and read it back. */
#define RECORD_LIMIT (1u << 22)

typedef struct granule {
    uint64_t index;                                  /* address / GRANULE */
    uint64_t writer[GRANULE / 4], time[GRANULE / 4]; /* of each word */
    uint16_t mask;                                   /* bytes that are not published */
    uint8_t fenced, released;                        /* a bit a word, since its last write */
    uint8_t old[GRANULE];
} granule;

struct global_record {
    granule *granules;
    uint32_t count, capacity;
    uint32_t *slots; /* a hash table with linear probing: 1 + place in granules, 0: free */
    uint32_t slot_mask;
    uint64_t low, high; /* all recorded indices are in here */
};

static inline uint32_t home(const struct global_record *r, uint64_t index) {
    return (uint32_t)(index * 0x9e3779b97f4a7c15u >> 32) & r->slot_mask;
}

static uint32_t *find_slot(const struct global_record *r, uint64_t index) {
    uint32_t at = home(r, index);
    while (r->slots[at] && r->granules[r->slots[at] - 1].index != index) at = (at + 1) & r->slot_mask;
    return &r->slots[at];
}

static void grow(struct global_record *r) {
    uint32_t capacity = r->capacity ? 2 * r->capacity : 1024;
    granule *granules = realloc(r->granules, capacity * sizeof *granules);
    uint32_t *slots = calloc(2 * (size_t)capacity, sizeof *slots);
    if (!granules || !slots) abort();
    free(r->slots);
    r->granules = granules;
    r->slots = slots;
    r->slot_mask = 2 * capacity - 1;
    r->capacity = capacity;
    for (uint32_t i = 0; i < r->count; i++) *find_slot(r, r->granules[i].index) = i + 1;
}

static void forget_all(struct global_record *r) {
    memset(r->slots, 0, ((size_t)r->slot_mask + 1) * sizeof *r->slots);
    r->count = 0;
    r->low = UINT64_MAX;
    r->high = 0;
}

/* Takes the granule out of the table and puts the last one in its place. */
static void forget(struct global_record *r, uint32_t place) {
    uint32_t at = (uint32_t)(find_slot(r, r->granules[place].index) - r->slots), hole = at;
    for (uint32_t next = (at + 1) & r->slot_mask; r->slots[next]; next = (next + 1) & r->slot_mask) {
        uint32_t wanted = home(r, r->granules[r->slots[next] - 1].index);
        if (((next - wanted) & r->slot_mask) < ((next - hole) & r->slot_mask)) continue;
        r->slots[hole] = r->slots[next];
        hole = next;
    }
    r->slots[hole] = 0;
    uint32_t last = --r->count;
    if (last != place) {
        *find_slot(r, r->granules[last].index) = place + 1;
        r->granules[place] = r->granules[last];
    }
    if (!r->count) r->low = UINT64_MAX, r->high = 0;
}

/* The bytes of granule `index` that [address, end) covers. */
static inline uint16_t covered_bytes(uint64_t index, uint64_t address, uint64_t end) {
    uint32_t mask = 0xffff;
    uint64_t base = index * GRANULE;
    if (address > base) mask &= 0xffffu << (address - base);
    if (end < base + GRANULE) mask &= 0xffffu >> (base + GRANULE - end);
    return (uint16_t)mask;
}

void note_global_write(grid *g, uint64_t address, uint32_t bytes, uint64_t writer, uint64_t now) {
    struct global_record *r = g->unpublished;
    if (!r) {
        r = g->unpublished = calloc(1, sizeof *r);
        if (!r) abort();
        grow(r);
        forget_all(r);
    }
    uint64_t end = address + bytes;
    for (uint64_t index = address / GRANULE; index * GRANULE < end; index++) {
        uint16_t mask = covered_bytes(index, address, end);
        const uint8_t *memory = (const uint8_t *)(uintptr_t)(index * GRANULE);
        uint32_t *slot = find_slot(r, index);
        if (!*slot) {
            if (r->count == RECORD_LIMIT) forget_all(r);
            if (r->count == r->capacity) grow(r);
            slot = find_slot(r, index);
            granule *new = &r->granules[r->count];
            *new = (granule){.index = index};
            *slot = ++r->count;
            if (index < r->low) r->low = index;
            if (index > r->high) r->high = index;
        }
        granule *known = &r->granules[*slot - 1];
        for (int word = 0; word < GRANULE / 4; word++) {
            uint16_t bytes = (uint16_t)(15 << 4 * word);
            if (!(mask & bytes)) continue;
            if (known->fenced >> word & 1)
                known->mask &= (uint16_t)~bytes;
            else if (known->writer[word] != writer)
                known->mask &= (uint16_t)(mask | ~bytes);
            known->fenced &= (uint8_t)~(1 << word);
            known->released &= (uint8_t)~(1 << word);
            known->writer[word] = writer;
            known->time[word] = now;
        }
        for (int i = 0; i < GRANULE; i++)
            if (mask >> i & 1 && !(known->mask >> i & 1)) known->old[i] = memory[i];
        known->mask |= mask;
    }
}

static int in_cluster(const cta *c, uint64_t writer) {
    return (writer >> 10) - (c->serial - c->rank) < (uint64_t)c->cluster->size;
}

/* A fence.proxy.async (fence), or a release, by these lanes. */
static void order_global(const warp *w, uint32_t lanes, int fence) {
    struct global_record *r = w->cta->grid->unpublished;
    if (!r) return;
    uint64_t warp_writer = global_writer(w, 0);
    int needs_release = machine_of(w)->fences == FENCES_TEXT;
    for (uint32_t place = r->count; place-- > 0;) {
        granule *known = &r->granules[place];
        for (int word = 0; word < GRANULE / 4; word++) {
            uint64_t writer = known->writer[word];
            uint8_t bit = (uint8_t)(1 << word);
            int own = writer >> 5 == warp_writer >> 5 && lanes >> (writer & 31) & 1, near = in_cluster(w->cta, writer);
            int reaches = near || known->released & bit || !needs_release;
            if (!own && (known->time[word] > w->sync_time || !reaches)) continue;
            int is_last = !needs_release || (fence ? !near : known->fenced & bit);
            if (is_last)
                known->mask &= (uint16_t)~(15 << 4 * word);
            else if (fence)
                known->fenced |= bit;
            else
                known->released |= bit;
        }
        if (!known->mask) forget(r, place);
        if (!r->count) return;
    }
}

void publish_global_to_async_proxy(warp *w, uint32_t lanes) {
    order_global(w, lanes, 1);
}

void release_global(warp *w, uint32_t lanes) {
    if (machine_of(w)->fences == FENCES_TEXT) order_global(w, lanes, 0);
}

/* Later grids see everything. */
void memory_grid_end(grid *g) {
    struct global_record *r = g->unpublished;
    if (!r) return;
    free(r->granules);
    free(r->slots);
    free(r);
    g->unpublished = NULL;
}

/* Whether a granule of that range can be in the record. */
static int touches_record(const struct global_record *r, uint64_t first, uint64_t last) {
    return r && r->count && first <= r->high && last >= r->low;
}

void async_read_global(const cta *from, uint64_t address, void *data, uint32_t bytes) {
    memcpy(data, (const void *)(uintptr_t)address, bytes);
    const struct global_record *r = from->grid->unpublished;
    uint64_t end = address + bytes, index = address / GRANULE;
    if (!bytes || !touches_record(r, index, (end - 1) / GRANULE)) return;
    for (; index * GRANULE < end; index++) {
        uint32_t slot = *find_slot(r, index);
        if (!slot) continue;
        const granule *known = &r->granules[slot - 1];
        uint32_t mask = known->mask & covered_bytes(index, address, end);
        for (int word = 0; word < GRANULE / 4; word++)
            if (known->fenced >> word & 1 && in_cluster(from, known->writer[word])) mask &= ~(15u << 4 * word);
        for (int i = 0; i < GRANULE; i++)
            if (mask >> i & 1) ((uint8_t *)data)[index * GRANULE + (uint64_t)i - address] = known->old[i];
    }
}

void async_write_global(grid *g, uint64_t address, const void *data, uint32_t bytes) {
    memcpy((void *)(uintptr_t)address, data, bytes);
    struct global_record *r = g->unpublished;
    uint64_t end = address + bytes, index = address / GRANULE;
    if (!bytes || !touches_record(r, index, (end - 1) / GRANULE)) return;
    for (; index * GRANULE < end && r->count; index++) {
        uint32_t slot = *find_slot(r, index);
        if (!slot) continue;
        granule *known = &r->granules[slot - 1];
        known->mask &= (uint16_t)~covered_bytes(index, address, end);
        if (!known->mask) forget(r, slot - 1);
    }
}
