/* Memory as loads, stores, atomics and copies see it, beyond machine.h: the addresses of a warp's lanes, one check
 * for all of them, and the record of writes that the async proxy does not see yet. */
#ifndef EMULATOR_MEMORY_H
#define EMULATOR_MEMORY_H

#include "machine/machine.h"

/* [s[0] + offset], decoded: whether the base register has 64 bits. A 32-bit one wraps around. */
static inline uint64_t lane_address(const warp *w, const instr *in, int wide, uint32_t lane) {
    if (wide) return r64(w, in->s[0])[lane] + (uint64_t)in->offset;
    return (uint32_t)(r32(w, in->s[0])[lane] + (uint32_t)in->offset);
}

static inline void gather_addresses(const warp *w, uint32_t slot, int64_t offset, int wide,
                                    uint64_t address[WARP_LANES]) {
    if (wide) {
        const uint64_t *base = r64(w, slot);
#pragma GCC ivdep
        for (int lane = 0; lane < WARP_LANES; lane++) address[lane] = base[lane] + (uint64_t)offset;
    } else {
        const uint32_t *base = r32(w, slot);
#pragma GCC ivdep
        for (int lane = 0; lane < WARP_LANES; lane++) address[lane] = (uint32_t)(base[lane] + (uint32_t)offset);
    }
}

static inline void lane_addresses(const warp *w, const instr *in, int wide, uint64_t address[WARP_LANES]) {
    gather_addresses(w, in->s[0], in->offset, wide, address);
}

typedef enum { MEMORY_GLOBAL, MEMORY_SHARED, MEMORY_LOCAL } memory_kind;

/* Where lanes' accesses are, when one check covers them all: lane l's bytes are at base + (address[l] - first) +
 * l * stride. */
typedef struct reach {
    memory_kind kind;
    uint8_t *base;
    uint64_t first;  /* the lowest address of a lane */
    uint64_t stride; /* between threads: local memory */
    uint32_t offset; /* of `first` in the shared window */
} reach;

static inline uint8_t *reach_lane(const reach *r, uint64_t address, uint32_t lane) {
    return r->base + (address - r->first) + lane * r->stride;
}

/* 1: every lane's access is allowed, *r says where it is. 0: one at least is not, or they are in different places: the
 * caller takes thread_read or thread_write for each lane, which fault where there is reason to. `align` is a power of
 * two. */
int reach_of(const warp *w, ptx_space space, const uint64_t address[WARP_LANES], uint32_t lanes, uint32_t bytes,
             uint32_t align, reach *r);

/* As thread_read, without counting it; `verb` is for the message: "copies to". */
uint8_t *thread_check(warp *w, const instr *in, int lane, ptx_space space, uint64_t address, uint32_t bytes,
                      uint32_t align, const char *verb);

/* The bytes, if all of them are in one live allocation, or outside the arena where the device reads host memory; else
 * NULL. */
uint8_t *global_range(uint64_t address, uint64_t bytes);

/* Whether writes of this warp to memory of that kind concern others: the proxies' record, or mbarriers. */
static inline int writes_are_noted(const warp *w, memory_kind kind) {
    return kind == MEMORY_SHARED   ? w->cta->async_view != NULL || w->cta->mbarriers != NULL
           : kind == MEMORY_GLOBAL ? w->cta->grid->launch.entry->uses_async_proxy
                                   : 0;
}

/* Who wrote: the thread in the cluster (shared memory) or in the grid (global memory). */
static inline uint32_t shared_writer(const warp *w, uint32_t lane) {
    return w->cta->rank << 10 | (uint32_t)w->index << 5 | lane;
}
static inline uint64_t global_writer(const warp *w, uint32_t lane) {
    return w->cta->serial << 10 | (uint64_t)w->index << 5 | lane;
}

/* proxy.c. A thread has written bytes of c's shared memory (call it after the write), or is about to write bytes of
 * global memory (call it before). */
void note_shared_write(cta *c, uint32_t offset, uint32_t bytes, uint32_t writer, uint64_t now);
void note_global_write(grid *g, uint64_t address, uint32_t bytes, uint64_t writer, uint64_t now);

/* load_store.c: takes the modifiers that only advise the caches (eviction priorities, prefetch sizes, cache operators),
 * and with .L2::cache_hint the operand at `policy`. */
void take_cache_hints(decoder *d, int policy);
/* Takes .cta, .cluster, .gpu or .sys. */
typedef enum { ORDER_WEAK, ORDER_RELAXED, ORDER_ACQUIRE, ORDER_RELEASE, ORDER_ACQ_REL, ORDER_SC } memory_order_kind;
typedef enum { SCOPE_NONE = -1, SCOPE_CTA, SCOPE_CLUSTER, SCOPE_GPU, SCOPE_SYS } memory_scope;
memory_scope take_scope(decoder *d, int needed);

/* fence.c */
decode_function decode_fence, decode_prefetch, decode_prefetchu, decode_applypriority, decode_discard,
    decode_createpolicy;

#endif
