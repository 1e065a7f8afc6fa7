/* Device allocations with exact bounds, and the meaning of addresses in every state space (PTX ISA, chapter 5,
 * "State Spaces", and section 6.4, "Operand addresses").
 *
 * Device allocations lie in one arena, far from the rest of the process, so that an address that misses its
 * allocation is recognised. Addresses outside are host memory, which kernels reach only if EMULATE_HOST_MEMORY
 * allows it. */
#define _GNU_SOURCE
#include "memory/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#define ALLOCATION_ALIGN 256
#define POISON_LIMIT     ((size_t)256 << 20) /* poison only this much of a larger allocation, to save time */
#define FREED_KEPT       64

typedef struct range {
    uint64_t start, end;
} range;

int host_memory_allowed;

static uint64_t arena_start, arena_end, arena_cursor;
static range *allocations; /* live, by address */
static size_t allocation_count, allocation_capacity;
static range recent[4]; /* the last hits; an empty range if none */
static unsigned recent_next;
static range freed[FREED_KEPT]; /* for the message of a fault */
static unsigned freed_next;

/* ---- allocations ---- */

/* The whole arena is readable at once, and no page of it exists before it is touched: page protection for each
 * allocation would soon reach the kernel's limit on mappings. Bounds are checked access by access. */
static int arena_create(void) {
    for (uint64_t bytes = (uint64_t)256 << 30; bytes >= (uint64_t)1 << 30; bytes /= 2) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) continue;
        madvise(p, bytes, MADV_DONTDUMP);
        arena_start = arena_cursor = (uint64_t)(uintptr_t)p;
        arena_end = arena_start + bytes;
        return 1;
    }
    return 0;
}

/* Index of the first allocation that begins behind `address`. */
static size_t first_behind(uint64_t address) {
    size_t low = 0, high = allocation_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (allocations[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A place at or behind `from` for bytes with a gap on both sides; 0: none. */
static uint64_t find_place(uint64_t from, uint64_t bytes, uint64_t gap) {
    for (size_t i = first_behind(from);; i++) {
        uint64_t start = i ? allocations[i - 1].end : arena_start;
        if (start < from) start = from;
        start = (start + gap + ALLOCATION_ALIGN - 1) & ~(uint64_t)(ALLOCATION_ALIGN - 1);
        uint64_t end = i < allocation_count ? allocations[i].start : arena_end;
        if (start + bytes + gap <= end) return start;
        if (i == allocation_count) return 0;
    }
}

void *device_allocate(size_t bytes) {
    if (!arena_start && !arena_create()) return NULL;
    uint64_t size = bytes ? bytes : 1;
    if (size > arena_end - arena_start) return NULL;
    /* the gap grows with the allocation, so that an index off by a row or a tile falls into it too */
    uint64_t gap = size < 512 ? 512 : size > 1 << 20 ? 1 << 20 : size;
    /* the cursor moves on before it wraps: freed memory is not reused soon */
    uint64_t start = find_place(arena_cursor, size, gap);
    if (!start) start = find_place(arena_start, size, gap);
    if (!start) return NULL;
    if (allocation_count == allocation_capacity) {
        size_t capacity = allocation_capacity ? 2 * allocation_capacity : 64;
        range *grown = realloc(allocations, capacity * sizeof *grown);
        if (!grown) return NULL;
        allocations = grown;
        allocation_capacity = capacity;
    }
    size_t at = first_behind(start);
    memmove(allocations + at + 1, allocations + at, (allocation_count - at) * sizeof *allocations);
    allocations[at] = (range){start, start + size};
    allocation_count++;
    arena_cursor = start + size;
    memset((void *)(uintptr_t)start, POISON_BYTE, size < POISON_LIMIT ? size : POISON_LIMIT);
    return (void *)(uintptr_t)start;
}

int device_free(void *p) {
    uint64_t address = (uint64_t)(uintptr_t)p;
    size_t at = first_behind(address);
    if (!at || allocations[at - 1].start != address) return 0;
    range gone = allocations[--at];
    memmove(allocations + at, allocations + at + 1, (allocation_count - at - 1) * sizeof *allocations);
    allocation_count--;
    memset(recent, 0, sizeof recent);
    freed[freed_next++ % FREED_KEPT] = gone;
    /* pages that no neighbour needs go back to the system */
    uint64_t low = at ? allocations[at - 1].end : arena_start;
    uint64_t high = at < allocation_count ? allocations[at].start : arena_end;
    const uint64_t page = 4096;
    low = (low + page - 1) & ~(page - 1);
    high &= ~(page - 1);
    uint64_t start = gone.start & ~(page - 1), end = (gone.end + page - 1) & ~(page - 1);
    if (start < low) start = low;
    if (end > high) end = high;
    if (start < end) madvise((void *)(uintptr_t)start, end - start, MADV_DONTNEED);
    return 1;
}

static const range *allocation_at(uint64_t address) {
    size_t at = first_behind(address);
    return at && address < allocations[at - 1].end ? &allocations[at - 1] : NULL;
}

int device_range(uint64_t address, uint64_t *start, uint64_t *bytes) {
    const range *r = allocation_at(address);
    if (!r) return 0;
    if (start) *start = r->start;
    if (bytes) *bytes = r->end - r->start;
    return 1;
}

static inline int in_arena(uint64_t address) {
    return address >= arena_start && address < arena_end;
}

int device_is_reserved(uint64_t address) {
    return in_arena(address);
}

uint8_t *global_range(uint64_t address, uint64_t bytes) {
    for (int i = 0; i < 4; i++)
        if (address >= recent[i].start && address < recent[i].end)
            return bytes <= recent[i].end - address ? (uint8_t *)(uintptr_t)address : NULL;
    if (!in_arena(address)) {
        int outside = !(address & WINDOW_MASK) && (address + bytes <= arena_start || address >= arena_end);
        return host_memory_allowed && outside ? (uint8_t *)(uintptr_t)address : NULL;
    }
    const range *r = allocation_at(address);
    if (!r) return NULL;
    recent[recent_next++ & 3] = *r;
    return bytes <= r->end - address ? (uint8_t *)(uintptr_t)address : NULL;
}

/* ---- messages ---- */

/* What is wrong with a range of global memory that global_range rejected. */
static void explain_global(uint64_t address, uint64_t bytes, char *out, size_t size) {
    const range *in = allocation_at(address);
    if (in) {
        snprintf(out, size, "%llu bytes past the end of the allocation of %llu bytes at 0x%llx",
                 (unsigned long long)(address + bytes - in->end), (unsigned long long)(in->end - in->start),
                 (unsigned long long)in->start);
        return;
    }
    if (!in_arena(address)) {
        snprintf(out, size, address < 65536 ? "a null pointer and an offset" : "not device memory");
        return;
    }
    for (unsigned i = 0; i < FREED_KEPT; i++)
        if (address >= freed[i].start && address < freed[i].end) {
            snprintf(out, size, "in an allocation of %llu bytes at 0x%llx that has been freed",
                     (unsigned long long)(freed[i].end - freed[i].start), (unsigned long long)freed[i].start);
            return;
        }
    size_t at = first_behind(address);
    const range *before = at ? &allocations[at - 1] : NULL, *after = at < allocation_count ? &allocations[at] : NULL;
    if (before && after && address - before->end > after->start - address) before = NULL;
    if (before && address == before->end)
        snprintf(out, size, "right behind the allocation of %llu bytes at 0x%llx",
                 (unsigned long long)(before->end - before->start), (unsigned long long)before->start);
    else if (before)
        snprintf(out, size, "%llu bytes behind the end of the allocation of %llu bytes at 0x%llx",
                 (unsigned long long)(address - before->end), (unsigned long long)(before->end - before->start),
                 (unsigned long long)before->start);
    else if (after)
        snprintf(out, size, "%llu bytes before the allocation of %llu bytes at 0x%llx",
                 (unsigned long long)(after->start - address), (unsigned long long)(after->end - after->start),
                 (unsigned long long)after->start);
    else
        snprintf(out, size, "in no allocation: there is none");
}

typedef struct access {
    warp *w;
    const instr *in;
    int lane;
    const char *verb; /* "reads" */
    uint64_t address;
    uint32_t bytes;
} access;

#define ACCESS_FAULT(a, format, ...)                                                                                   \
    fault((a)->w, (a)->in, (a)->lane, "%s %u bytes at 0x%llx" format, (a)->verb, (a)->bytes,                           \
          (unsigned long long)(a)->address, __VA_ARGS__)

/* ---- one access ---- */

typedef struct place {
    uint8_t *bytes;
    memory_kind kind;
    cta *owner; /* of shared memory */
    uint32_t offset;
} place;

static int has_run(const cta *c) {
    for (int i = 0; i < c->warp_count; i++)
        if (c->warps[i].instructions) return 1;
    return 0;
}

/* The CTA that a .shared::cluster address leads to, alive. */
static cta *cluster_target(const access *a, uint32_t address) {
    cta *own = a->w->cta;
    uint32_t rank = address >> RANK_SHIFT;
    if (rank == own->rank) return own;
    if (rank >= (uint32_t)own->cluster->size)
        ACCESS_FAULT(a, ", the shared memory of CTA %u of a cluster of %d", rank, own->cluster->size);
    cta *c = own->cluster->ctas[rank];
    if (!c || !c->live_warps)
        ACCESS_FAULT(a, ", the shared memory of CTA %u of the cluster, which has exited%s", rank, "");
    if (!has_run(c))
        ACCESS_FAULT(a,
                     ", the shared memory of CTA %u of the cluster, which nothing guarantees to have started: a "
                     "barrier.cluster is missing%s",
                     rank, "");
    return c;
}

static place shared_place(const access *a, int cluster_wide) {
    uint32_t address = (uint32_t)a->address, offset = address & ((1u << RANK_SHIFT) - 1);
    cta *own = a->w->cta, *c = own;
    if (address >> RANK_SHIFT != own->rank) {
        if (!cluster_wide)
            ACCESS_FAULT(a,
                         ", an address of CTA %u of the cluster, as .shared::cta; this CTA's rank is %u and its own "
                         "addresses begin at 0x%llx",
                         address >> RANK_SHIFT, own->rank, (unsigned long long)own_shared_address(own, SHARED_BASE));
        c = cluster_target(a, address);
    }
    if (offset < shared_begin(c) || (uint64_t)offset + a->bytes > c->shared_bytes)
        ACCESS_FAULT(a,
                     ", outside of the shared memory of the CTA: it has %u bytes, at offsets 0x%x to 0x%x of the "
                     "window",
                     c->shared_bytes - SHARED_BASE, SHARED_BASE, c->shared_bytes);
    return (place){c->shared + offset, MEMORY_SHARED, c, offset};
}

static place local_place(const access *a) {
    uint64_t size = (uint64_t)a->w->cta->grid->launch.entry->local_bytes, offset = a->address & ~WINDOW_MASK;
    if (a->bytes > size || offset > size - a->bytes)
        ACCESS_FAULT(a, ", outside of the thread's %llu bytes of local memory", (unsigned long long)size);
    uint64_t thread = (uint64_t)a->w->index * WARP_LANES + (uint64_t)a->lane;
    return (place){a->w->cta->local + thread * size + offset, MEMORY_LOCAL, NULL, 0};
}

static place global_place(const access *a) {
    uint8_t *p = global_range(a->address, a->bytes);
    if (!p) {
        char why[200];
        explain_global(a->address, a->bytes, why, sizeof why);
        ACCESS_FAULT(a, ": %s", why);
    }
    return (place){p, MEMORY_GLOBAL, NULL, 0};
}

static place place_of(const access *a, ptx_space space, uint32_t align) {
    if (a->address & (align - 1)) ACCESS_FAULT(a, ": the address must be a multiple of %u", align);
    uint64_t window = a->address & WINDOW_MASK;
    if (space == SPACE_LOCAL && (!window || window == LOCAL_WINDOW)) return local_place(a);
    if (space == SPACE_SHARED || space == SPACE_SHARED_CLUSTER) {
        if (window == SHARED_WINDOW) ACCESS_FAULT(a, ": a generic address is used as an address of .shared%s", "");
        if (a->address >> 32) ACCESS_FAULT(a, ": an address of .shared has 32 bits%s", "");
        return shared_place(a, space == SPACE_SHARED_CLUSTER);
    }
    int generic = space == SPACE_NONE || space == SPACE_PARAM;
    if (generic && window == LOCAL_WINDOW) return local_place(a);
    if (space == SPACE_NONE && window == SHARED_WINDOW && !(a->address << 8 >> 40)) return shared_place(a, 1);
    if (window && !generic) ACCESS_FAULT(a, ": a generic address is used as an address of .global%s", "");
    if (window) ACCESS_FAULT(a, ": no window of generic addresses is there%s", "");
    return global_place(a);
}

uint8_t *thread_check(warp *w, const instr *in, int lane, ptx_space space, uint64_t address, uint32_t bytes,
                      uint32_t align, const char *verb) {
    access a = {w, in, lane, verb, address, bytes};
    return place_of(&a, space, align).bytes;
}

static void count_read(cta *c, memory_kind kind, uint64_t bytes) {
    c->traffic[kind == MEMORY_GLOBAL   ? TRAFFIC_GLOBAL_READ
               : kind == MEMORY_SHARED ? TRAFFIC_SHARED_READ
                                       : TRAFFIC_LOCAL] += bytes;
}

uint8_t *thread_read(warp *w, const instr *in, int lane, ptx_space space, uint64_t address, uint32_t bytes,
                     uint32_t align) {
    access a = {w, in, lane, "reads", address, bytes};
    place p = place_of(&a, space, align);
    if (space != SPACE_PARAM && space != SPACE_CONST)
        count_read(w->cta, p.kind, bytes); /* those are of a constant bank */
    return p.bytes;
}

void thread_write(warp *w, const instr *in, int lane, ptx_space space, uint64_t address, const void *data,
                  uint32_t bytes, uint32_t align) {
    access a = {w, in, lane, "writes", address, bytes};
    place p = place_of(&a, space, align);
    machine *m = machine_of(w);
    if (p.kind == MEMORY_SHARED && p.owner->mbarriers) mbarrier_guard(w, in, p.owner, p.offset, bytes);
    if (p.kind == MEMORY_GLOBAL && writes_are_noted(w, p.kind))
        note_global_write(w->cta->grid, address, bytes, global_writer(w, (uint32_t)lane), m->now);
    memcpy(p.bytes, data, bytes);
    if (p.kind == MEMORY_SHARED && p.owner->async_view)
        note_shared_write(p.owner, p.offset, bytes, shared_writer(w, (uint32_t)lane), m->now);
    w->cta->traffic[p.kind == MEMORY_GLOBAL  ? TRAFFIC_GLOBAL_WRITE
                    : p.kind == MEMORY_LOCAL ? TRAFFIC_LOCAL
                    : p.owner == w->cta      ? TRAFFIC_SHARED_WRITE
                                             : TRAFFIC_CLUSTER_WRITE] += bytes;
    machine_progress(m);
}

/* ---- a warp's accesses, in one check ---- */

typedef uint64_t eight __attribute__((vector_size(64)));

static inline void span_of_warp(const uint64_t address[WARP_LANES], uint64_t *low, uint64_t *high, uint64_t *bits) {
    eight least, most, all;
    memcpy(&least, address, sizeof least);
    most = all = least;
    for (int i = 8; i < WARP_LANES; i += 8) {
        eight a;
        memcpy(&a, address + i, sizeof a);
        eight less = (eight)(a < least), more = (eight)(a > most);
        least = (a & less) | (least & ~less);
        most = (a & more) | (most & ~more);
        all |= a;
    }
    for (int i = 0; i < 8; i++) {
        if (least[i] < *low) *low = least[i];
        if (most[i] > *high) *high = most[i];
        *bits |= all[i];
    }
}

int reach_of(const warp *w, ptx_space space, const uint64_t address[WARP_LANES], uint32_t lanes, uint32_t bytes,
             uint32_t align, reach *r) {
    uint64_t low = UINT64_MAX, high = 0, bits = 0;
    if (lanes == ALL_LANES) {
        span_of_warp(address, &low, &high, &bits);
    } else {
        FOR_LANES(lane, lanes) {
            uint64_t a = address[lane];
            low = a < low ? a : low;
            high = a > high ? a : high;
            bits |= a;
        }
    }
    if (bits & (align - 1)) return 0;
    uint64_t window = low & WINDOW_MASK;
    if (window != (high & WINDOW_MASK)) return 0;
    if (space == SPACE_NONE || space == SPACE_PARAM)
        space = !window                                          ? SPACE_GLOBAL
                : window == LOCAL_WINDOW                         ? SPACE_LOCAL
                : window == SHARED_WINDOW && space == SPACE_NONE ? SPACE_SHARED
                                                                 : SPACE_REG;
    else if (window && !(space == SPACE_LOCAL && window == LOCAL_WINDOW))
        return 0;
    *r = (reach){.first = low};
    const cta *c = w->cta;
    switch (space) {
    case SPACE_GLOBAL:
    case SPACE_CONST:
        r->kind = MEMORY_GLOBAL;
        r->base = global_range(low, high - low + bytes);
        return r->base != NULL;
    case SPACE_SHARED:
    case SPACE_SHARED_CLUSTER: {
        uint64_t own = (uint64_t)c->rank << RANK_SHIFT;
        low &= ~WINDOW_MASK;
        high &= ~WINDOW_MASK;
        if (low < own + shared_begin(c) || high + bytes > own + c->shared_bytes) return 0;
        r->kind = MEMORY_SHARED;
        r->offset = (uint32_t)(low - own);
        r->base = c->shared + r->offset;
        return 1;
    }
    case SPACE_LOCAL: {
        uint64_t size = (uint64_t)c->grid->launch.entry->local_bytes;
        if ((high & ~WINDOW_MASK) + bytes > size) return 0;
        r->kind = MEMORY_LOCAL;
        r->stride = size;
        r->base = c->local + (uint64_t)w->index * WARP_LANES * size + (low & ~WINDOW_MASK);
        return 1;
    }
    default:
        return 0;
    }
}

/* ---- for asynchronous operations ---- */

void check_shared(warp *w, const instr *in, const cta *c, uint64_t offset, uint64_t bytes, uint32_t align,
                  const char *what) {
    if (align && offset % align)
        fault(w, in, -1, "%s is at offset 0x%llx of shared memory, which must be a multiple of %u", what,
              (unsigned long long)offset, align);
    if (offset < SHARED_BASE || offset > c->shared_bytes || bytes > c->shared_bytes - offset)
        fault(
            w, in, -1,
            "%s has %llu bytes at offset 0x%llx, outside of the shared memory of the CTA: it has %u bytes, at offsets "
            "0x%x to 0x%x of the window",
            what, (unsigned long long)bytes, (unsigned long long)offset, c->shared_bytes - SHARED_BASE, SHARED_BASE,
            c->shared_bytes);
}

uint8_t *check_global(warp *w, const instr *in, uint64_t address, uint64_t bytes, uint32_t align, const char *what) {
    if (align && address % align)
        fault(w, in, -1, "%s is at 0x%llx, which must be a multiple of %u", what, (unsigned long long)address, align);
    if (address & WINDOW_MASK)
        fault(w, in, -1, "%s is at 0x%llx, a generic address of shared or local memory, and must be in global memory",
              what, (unsigned long long)address);
    uint8_t *p = global_range(address, bytes);
    if (!p) {
        char why[200];
        explain_global(address, bytes, why, sizeof why);
        fault(w, in, -1, "%s has %llu bytes at 0x%llx: %s", what, (unsigned long long)bytes,
              (unsigned long long)address, why);
    }
    return p;
}

cta *shared_target(warp *w, const instr *in, uint64_t address, uint32_t *offset) {
    access a = {w, in, -1, "names", address, 1};
    uint64_t window = address & WINDOW_MASK;
    if ((window && window != SHARED_WINDOW) || (address & ~WINDOW_MASK) >> 32)
        fault(w, in, -1, "0x%llx is no address of shared memory", (unsigned long long)address);
    cta *c = cluster_target(&a, (uint32_t)address);
    *offset = (uint32_t)address & ((1u << RANK_SHIFT) - 1);
    return c;
}

int64_t own_shared_address(const cta *c, uint32_t offset) {
    return (int64_t)c->rank << RANK_SHIFT | offset;
}
