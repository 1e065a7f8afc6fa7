/* Bulk copies and reductions (PTX ISA 9.7.9.25.4) and bulk groups (9.7.9.25.6).
 *
 * A copy moves unit by unit, in an order drawn from the seed. Each piece completes its bytes on the mbarrier, so a
 * phase ends when the sum is right: the ISA promises no more. A multicast is one copy for each CTA. */
#include <stdlib.h>

#include "async/bulk.h"

enum { BULK_ALIGN = 16 };

/* ---- loads ---- */

static uint32_t multicast_mask(warp *w, const instr *in, uint32_t lane, uint32_t slot) {
    uint32_t mask = r32(w, slot)[lane] & 0xffff, size = (uint32_t)w->cta->cluster->size;
    if (!mask) fault(w, in, (int)lane, "the multicast mask names no CTA");
    if (mask >> size)
        fault(w, in, (int)lane, "the multicast mask 0x%x names CTAs that a cluster of %u has not", mask, size);
    return mask;
}

int load_targets(warp *w, const instr *in, uint32_t lane, const address_operand *to, const address_operand *barrier,
                 uint32_t mask, int pair, uint32_t bytes, uint32_t align, load_target targets[16]) {
    uint32_t at, signal_at;
    const cta *named = shared_operand(w, in, lane, to, &at, "the destination");
    const cta *signal = shared_operand(w, in, lane, barrier, &signal_at, "the mbarrier's address");
    uint32_t ranks = mask == NO_SLOT ? 1u << named->rank : multicast_mask(w, in, lane, mask);
    if (mask == NO_SLOT && signal != named && !(pair && (signal->rank ^ 1) == named->rank))
        fault(w, in, (int)lane,
              "the destination is in CTA %u of the cluster and the mbarrier in CTA %u; it must be in %s", named->rank,
              signal->rank, pair ? "the same CTA or the other one of its pair" : "the same CTA");
    int count = 0;
    FOR_LANES(rank, ranks) {
        /* In a pair, the CTA whose mbarrier is signalled has the parity of the CTA that the operand names. */
        uint32_t told = mask == NO_SLOT ? signal->rank : pair ? (rank & ~1u) | (signal->rank & 1) : rank, offset;
        if (told >= (uint32_t)w->cta->cluster->size)
            fault(w, in, (int)lane, "CTA %u has no other one of its pair: the cluster has %d CTAs", rank,
                  w->cta->cluster->size);
        load_target *t = &targets[count++];
        t->to = shared_target(w, in, (uint64_t)rank << RANK_SHIFT | at, &offset);
        t->signal = shared_target(w, in, (uint64_t)told << RANK_SHIFT | signal_at, &offset);
        t->at = at;
        t->barrier = signal_at;
        check_shared(w, in, t->to, at, bytes, align, "the destination");
        mbarrier_check_view(w, in, (int)lane, t->signal, signal_at, VIEW_ASYNC);
        mbarrier_guard(w, in, t->to, at, bytes);
    }
    return count;
}

static int load_step(async_op *op) {
    shared_load *l = (shared_load *)op;
    if (mbarrier_held(l->signal, l->barrier)) return STEP_HELD;
    uint32_t left = l->order.count - l->order.done, bytes = 0;
    for (uint32_t n = left ? async_piece(l->m, left) : 0; n; n--) bytes += l->unit(l, piece_order_next(&l->order));
    if (bytes) mbarrier_complete_tx(op->by, op->in, l->signal, l->barrier, bytes);
    return l->order.done == l->order.count;
}

static void release(async_op *op) {
    free(op);
}

void load_start(shared_load *l, const load_target *target, cta *source, warp *w, const instr *in, uint32_t units) {
    l->m = machine_of(w);
    l->to = target->to;
    l->at = target->at;
    l->signal = target->signal;
    l->barrier = target->barrier;
    l->order = piece_order_of(l->m, units);
    l->op.step = load_step;
    l->op.release = release;
    l->op.touches[0] = target->to;
    l->op.touches[1] = source ? source : target->signal != target->to ? target->signal : NULL;
    async_start(l->m, &l->op, w, in, NULL);
}

/* ---- stores and their groups ---- */

/* Of a warp, by lane. A store not committed yet has the number of the group that the next commit makes. */
typedef struct {
    uint64_t committed[WARP_LANES]; /* groups */
    global_store *first[WARP_LANES];
} bulk_groups;

static bulk_groups *groups_of(warp *w) {
    if (!w->bulk_groups) {
        w->bulk_groups = calloc(1, sizeof(bulk_groups));
        if (!w->bulk_groups) abort();
    }
    return w->bulk_groups;
}

void bulk_warp_end(warp *w) {
    free(w->bulk_groups);
    w->bulk_groups = NULL;
}

static int store_step(async_op *op) {
    global_store *s = (global_store *)op;
    uint32_t left = s->order.count - s->order.done;
    for (uint32_t n = left ? async_piece(s->m, left) : 0; n; n--)
        (s->writing ? s->write : s->read)(s, piece_order_next(&s->order));
    if (s->order.done < s->order.count) return 0;
    if (s->writing) return 1;
    s->writing = 1;
    s->order = piece_order_of(s->m, s->units);
    async_untouch(op, 0);
    return 0;
}

static void store_release(async_op *op) {
    global_store *s = (global_store *)op;
    /* Operations end before the warps that issued them; machine_destroy drops them before it frees warps. */
    global_store **link = &groups_of(op->by)->first[s->lane];
    while (*link != s) link = &(*link)->next_of_lane;
    *link = s->next_of_lane;
    free(s);
}

void store_start(global_store *s, warp *w, const instr *in, uint32_t lane, uint32_t units) {
    bulk_groups *g = groups_of(w);
    s->m = machine_of(w);
    s->units = units;
    s->order = piece_order_of(s->m, units);
    s->lane = lane;
    s->group = g->committed[lane];
    s->next_of_lane = g->first[lane];
    g->first[lane] = s;
    s->op.step = store_step;
    s->op.release = store_release;
    s->op.touches[0] = w->cta;
    s->op.drains = 1;
    async_start(s->m, &s->op, w, in, NULL);
}

static run_result run_commit_group(warp *w, const instr *in, uint32_t lanes) {
    (void)in;
    bulk_groups *g = groups_of(w);
    FOR_LANES(lane, lanes) g->committed[lane]++;
    return RUN_NEXT;
}

static run_result run_wait_group(warp *w, const instr *in, uint32_t lanes) {
    const bulk_groups *g = groups_of(w);
    FOR_LANES(lane, lanes) {
        for (const global_store *s = g->first[lane]; s; s = s->next_of_lane) {
            int waited_for = s->group + (uint64_t)in->imm < g->committed[lane];
            if (waited_for && !(in->mode && s->writing)) return park(w, WAIT_ASYNC, (uint64_t)in->imm, 0);
        }
    }
    return RUN_NEXT;
}

/* ---- cp.async.bulk, cp.reduce.async.bulk ---- */

typedef struct {
    address_operand to, from, barrier;
    uint32_t size, mask; /* slots, NO_SLOT: none */
    reduction reduction;
    ptx_type type;
} copy_operands;

typedef struct {
    shared_load load;
    uint64_t from; /* a global address; or, with source, an offset in its shared memory */
    cta *source;
    uint32_t bytes, unit_bytes;
    reduction reduction;
    ptx_type type;
} bulk_load;

typedef struct {
    global_store store;
    uint64_t to;
    uint32_t from, bytes, unit_bytes, byte_mask;
    reduction reduction;
    ptx_type type;
    uint8_t data[];
} bulk_store;

enum { UNIT_MAX = 1024 };

static uint32_t draw_unit(machine *m) {
    return m->timing.mode == TIMING_EAGER ? UNIT_MAX : BULK_ALIGN << machine_below(m, 7);
}

static uint32_t bytes_of_unit(uint32_t unit, uint32_t unit_bytes, uint32_t bytes) {
    uint32_t left = bytes - unit * unit_bytes;
    return left < unit_bytes ? left : unit_bytes;
}

static void reduce_all(reduction r, ptx_type type, uint8_t *into, const uint8_t *with, uint32_t bytes) {
    uint32_t size = (uint32_t)type_bits(type) / 8;
    for (uint32_t i = 0; i < bytes; i += size) reduce(r, type, into + i, with + i);
}

static uint32_t load_unit(shared_load *l, uint32_t unit) {
    const bulk_load *b = (bulk_load *)l;
    uint8_t data[UNIT_MAX], old[UNIT_MAX];
    uint32_t start = unit * b->unit_bytes, bytes = bytes_of_unit(unit, b->unit_bytes, b->bytes);
    if (b->source)
        async_read_shared(b->source, (uint32_t)b->from + start, data, bytes);
    else
        async_read_global(l->op.from, b->from + start, data, bytes);
    if (b->reduction == REDUCE_NONE) {
        async_write_shared(l->to, l->at + start, data, bytes);
        return bytes;
    }
    async_read_shared(l->to, l->at + start, old, bytes);
    reduce_all(b->reduction, b->type, old, data, bytes);
    async_write_shared(l->to, l->at + start, old, bytes);
    return bytes;
}

static void store_read(global_store *s, uint32_t unit) {
    bulk_store *b = (bulk_store *)s;
    uint32_t start = unit * b->unit_bytes;
    async_read_shared(s->op.from, b->from + start, b->data + start, bytes_of_unit(unit, b->unit_bytes, b->bytes));
}

static void store_write(global_store *s, uint32_t unit) {
    bulk_store *b = (bulk_store *)s;
    grid *g = s->op.from->grid;
    uint32_t start = unit * b->unit_bytes, bytes = bytes_of_unit(unit, b->unit_bytes, b->bytes);
    uint8_t old[UNIT_MAX];
    if (b->reduction != REDUCE_NONE) {
        async_read_global(s->op.from, b->to + start, old, bytes);
        reduce_all(b->reduction, b->type, old, b->data + start, bytes);
        async_write_global(g, b->to + start, old, bytes);
    } else if (b->byte_mask == 0xffff) {
        async_write_global(g, b->to + start, b->data + start, bytes);
    } else {
        for (uint32_t i = start; i < start + bytes; i++)
            if (b->byte_mask >> i % 16 & 1) async_write_global(g, b->to + i, b->data + i, 1);
    }
}

static uint32_t size_of_copy(warp *w, const instr *in, uint32_t lane) {
    uint32_t size = r32(w, ((const copy_operands *)in->extra)->size)[lane];
    if (size % BULK_ALIGN)
        fault(w, in, (int)lane, "copies %u bytes; the size of a bulk copy must be a multiple of 16", size);
    return size;
}

static run_result run_load(warp *w, const instr *in, uint32_t lanes) {
    const copy_operands *o = in->extra;
    machine *m = machine_of(w);
    int from_shared = o->from.space == SPACE_SHARED;
    FOR_LANES(lane, lanes) {
        load_target targets[16];
        uint32_t size = size_of_copy(w, in, lane), offset = 0;
        int count = load_targets(w, in, lane, &o->to, &o->barrier, o->mask, 0, size, BULK_ALIGN, targets);
        uint64_t from;
        if (from_shared) {
            shared_operand(w, in, lane, &o->from, &offset, "the source");
            check_shared(w, in, w->cta, from = offset, size, BULK_ALIGN, "the source");
            if (targets[0].to == w->cta)
                fault(w, in, (int)lane,
                      "copies from the CTA's own shared memory into it; the destination must be in another CTA of the "
                      "cluster");
        } else {
            check_global(w, in, from = address_value(w, &o->from, lane), size, BULK_ALIGN, "the source");
        }
        for (int i = 0; size && i < count; i++) {
            bulk_load *b = calloc(1, sizeof *b);
            if (!b) abort();
            b->from = from;
            b->source = from_shared ? w->cta : NULL;
            b->bytes = size;
            b->unit_bytes = draw_unit(m);
            b->reduction = o->reduction;
            b->type = o->type;
            b->load.unit = load_unit;
            b->load.op.bytes = size;
            b->load.op.what = from_shared ? "bulk copy to another CTA" : "bulk load";
            w->cta->traffic[from_shared ? TRAFFIC_CLUSTER_WRITE : TRAFFIC_BULK_READ] += size;
            if (i > 0) w->cta->traffic[TRAFFIC_MULTICAST] += size;
            load_start(&b->load, &targets[i], b->source, w, in, (size + b->unit_bytes - 1) / b->unit_bytes);
        }
    }
    return RUN_NEXT;
}

static run_result run_store(warp *w, const instr *in, uint32_t lanes) {
    const copy_operands *o = in->extra;
    machine *m = machine_of(w);
    FOR_LANES(lane, lanes) {
        uint32_t size = size_of_copy(w, in, lane), from;
        uint64_t to = address_value(w, &o->to, lane);
        shared_operand(w, in, lane, &o->from, &from, "the source");
        check_shared(w, in, w->cta, from, size, BULK_ALIGN, "the source");
        check_global(w, in, to, size, BULK_ALIGN, "the destination");
        if (!size) continue;
        bulk_store *b = calloc(1, sizeof *b + size);
        if (!b) abort();
        b->to = to;
        b->from = from;
        b->bytes = size;
        b->unit_bytes = draw_unit(m);
        b->byte_mask = o->mask == NO_SLOT ? 0xffff : r32(w, o->mask)[lane] & 0xffff;
        b->reduction = o->reduction;
        b->type = o->type;
        b->store.read = store_read;
        b->store.write = store_write;
        b->store.op.bytes = size;
        b->store.op.what = o->reduction == REDUCE_NONE ? "bulk store" : "bulk reduction";
        w->cta->traffic[TRAFFIC_BULK_WRITE] += size;
        store_start(&b->store, w, in, lane, (size + b->unit_bytes - 1) / b->unit_bytes);
    }
    return RUN_NEXT;
}

/* Only a hint, but its operands are checked as those of a copy. */
static run_result run_prefetch(warp *w, const instr *in, uint32_t lanes) {
    const copy_operands *o = in->extra;
    FOR_LANES(lane, lanes)
    check_global(w, in, address_value(w, &o->from, lane), size_of_copy(w, in, lane), BULK_ALIGN, "what is prefetched");
    return RUN_NEXT;
}

/* ---- decoding ---- */

static copy_operands *new_operands(decoder *d) {
    copy_operands *o = decode_alloc(d, sizeof *o);
    o->size = o->mask = NO_SLOT;
    d->in->extra = o;
    return o;
}

static void take_policy(decoder *d, int hint, int index) {
    if (hint) source(d, index, TYPE_B64);
}

/* [dst], [src], size, [mbar] {, mask} {, policy} */
static void decode_load(decoder *d, ptx_space to, ptx_space from) {
    copy_operands *o = d->in->extra;
    need(d, "mbarrier::complete_tx::bytes");
    int reduces = o->reduction != REDUCE_NONE;
    if (from != SPACE_GLOBAL && (from != SPACE_SHARED || to != SPACE_SHARED_CLUSTER))
        reject(d, "bulk copies into shared memory come from .global, or from .shared::cta to .shared::cluster");
    if (reduces && from != SPACE_SHARED) reject(d, "bulk reductions come from .shared::cta");
    if (reduces && !reduction_exists_in_shared(o->reduction, o->type))
        reject(d, "this reduction of %s does not exist in shared memory", type_name(o->type));
    int multicast = to == SPACE_SHARED_CLUSTER && from == SPACE_GLOBAL && take(d, "multicast::cluster");
    int hint = from == SPACE_GLOBAL && take(d, "L2::cache_hint");
    o->to = take_address(d, 0, to);
    o->from = take_address(d, 1, from);
    o->size = source(d, 2, TYPE_U32);
    o->barrier = take_address(d, 3, to);
    if (multicast) o->mask = source(d, 4, TYPE_B16);
    take_policy(d, hint, 4 + multicast);
    d->in->run = run_load;
}

/* [dst], [src], size {, policy} {, byte mask} */
static void decode_store(decoder *d, ptx_space from) {
    copy_operands *o = d->in->extra;
    if (from != SPACE_SHARED) reject(d, "bulk copies to .global come from .shared::cta");
    need(d, "bulk_group");
    int hint = take(d, "L2::cache_hint"), masked = o->reduction == REDUCE_NONE && take(d, "cp_mask");
    if (o->reduction != REDUCE_NONE && !reduction_exists(o->reduction, o->type))
        reject(d, "this reduction of %s does not exist in global memory", type_name(o->type));
    if (o->reduction == REDUCE_ADD && (o->type == TYPE_F16 || o->type == TYPE_BF16)) need(d, "noftz");
    o->to = take_address(d, 0, SPACE_GLOBAL);
    o->from = take_address(d, 1, from);
    o->size = source(d, 2, TYPE_U32);
    take_policy(d, hint, 3);
    if (masked) o->mask = source(d, 3 + hint, TYPE_B16);
    d->in->run = run_store;
}

static void decode_prefetch(decoder *d) {
    need(d, "L2");
    need(d, "global");
    int hint = take(d, "L2::cache_hint");
    copy_operands *o = new_operands(d);
    o->from = take_address(d, 0, SPACE_GLOBAL);
    o->size = source(d, 1, TYPE_U32);
    take_policy(d, hint, 2);
    d->in->run = run_prefetch;
}

static int decode_copy(decoder *d) {
    if (!has_modifier(d, "async") || !has_modifier(d, "bulk") || has_modifier(d, "tensor")) return 0;
    int reduces = take(d, "reduce");
    need(d, "async");
    need(d, "bulk");
    if (!reduces && take(d, "commit_group")) {
        d->in->run = run_commit_group;
        return 1;
    }
    if (!reduces && take(d, "wait_group")) {
        d->in->mode = (uint32_t)take(d, "read");
        d->in->imm = constant(d, 0);
        if (d->in->imm < 0) reject(d, "the number of groups is negative");
        d->in->run = run_wait_group;
        return 1;
    }
    if (!reduces && take(d, "prefetch")) {
        decode_prefetch(d);
        return 1;
    }
    copy_operands *o = new_operands(d);
    ptx_space to = take_space(d), from = take_space(d);
    if (reduces) {
        o->reduction = take_reduction(d);
        o->type = need_type(d);
        if (o->reduction == REDUCE_NONE) reject(d, "the reduction is missing");
    }
    if (to == SPACE_GLOBAL)
        decode_store(d, from);
    else if (to == SPACE_SHARED || to == SPACE_SHARED_CLUSTER)
        decode_load(d, to, from);
    else
        reject(d, "bulk copies go to .global, .shared::cta or .shared::cluster");
    return 1;
}

const opcode_entry bulk_opcodes[] = {
    {"cp", decode_copy}, {"st", decode_async_store}, {"red", decode_async_reduction}, {0}};
