/* Shared by bulk copies (bulk.c) and tensor copies (tma.c): loads into shared memory tracked by an mbarrier, stores
 * to global memory tracked by a bulk group, and reductions. */
#ifndef EMULATOR_BULK_H
#define EMULATOR_BULK_H

#include "async/async.h"

/* ---- loads (bulk.c) ---- */

/* A copy into the shared memory of one CTA, unit by unit in any order. The family embeds it as its first member. */
typedef struct shared_load shared_load;
struct shared_load {
    async_op op;
    machine *m;
    cta *to;
    uint32_t at;
    cta *signal; /* whose mbarrier is signalled */
    uint32_t barrier;
    piece_order order;
    uint32_t (*unit)(shared_load *l, uint32_t unit); /* copies one; returns the bytes that it completes */
};

/* A destination and the mbarrier to signal: one for each CTA that a multicast reaches. */
typedef struct {
    cta *to, *signal;
    uint32_t at, barrier;
} load_target;

/* For a lane: the CTAs and offsets of its destination and of its mbarrier; with `mask` (NO_SLOT: none) those of every
 * CTA in it. pair: .cta_group::2, where the mbarrier may be the one of the other CTA of the pair. Faults if the
 * mbarrier is not there or not where it may be, and if `bytes` at the destination are not. Returns how many. */
int load_targets(warp *w, const instr *in, uint32_t lane, const address_operand *to, const address_operand *barrier,
                 uint32_t mask, int pair, uint32_t bytes, uint32_t align, load_target targets[16]);
/* l is zeroed except for what the family added. `source` is a CTA whose shared memory is read, or NULL. */
void load_start(shared_load *l, const load_target *target, cta *source, warp *w, const instr *in, uint32_t units);

/* ---- stores (bulk.c) ---- */

/* A copy to global memory: first every unit is read from shared memory, then every unit is written. */
typedef struct global_store global_store;
struct global_store {
    async_op op;
    machine *m;
    uint32_t units;
    piece_order order;
    int writing; /* shared memory has been read */
    uint32_t lane;
    uint64_t group; /* number of its bulk group, in its thread */
    global_store *next_of_lane;
    void (*read)(global_store *s, uint32_t unit);
    void (*write)(global_store *s, uint32_t unit);
};

/* s is zeroed except for what the family added, and freed by free(). */
void store_start(global_store *s, warp *w, const instr *in, uint32_t lane, uint32_t units);

/* st.async and st.bulk; red.async (async_store.c): of the table bulk_opcodes. */
decode_function decode_async_store, decode_async_reduction;

/* ---- reductions (reduce.c) ---- */

typedef enum {
    REDUCE_NONE,
    REDUCE_ADD,
    REDUCE_MIN,
    REDUCE_MAX,
    REDUCE_INC,
    REDUCE_DEC,
    REDUCE_AND,
    REDUCE_OR,
    REDUCE_XOR
} reduction;

reduction take_reduction(decoder *d);             /* REDUCE_NONE: there is none */
int reduction_exists(reduction r, ptx_type type); /* in global memory */
int reduction_exists_in_shared(reduction r, ptx_type type);
void reduce(reduction r, ptx_type type, void *into, const void *with); /* one element */
void add_f32(void *into, const void *with, int flushes);               /* as reduce, or flushing subnormals */

#endif
