/* Asynchronous stores through the generic proxy: st.async (PTX ISA 9.7.9.12), red.async (9.7.13.7), st.bulk
 * (9.7.9.13). */
#include <stdlib.h>

#include "async/bulk.h"

/* ---- st.async, red.async, st.bulk ---- */

typedef struct {
    address_operand to, barrier;
    reduction reduction;
    ptx_type type;
    const uint32_t *values;
    int count;
    ptx_space space;     /* of the address, for thread_write */
    int releases_to_gpu; /* 1: a release whose scope is the GPU or more */
} value_operands;

typedef struct {
    address_operand to;
    uint32_t size; /* slot */
} fill_operands;

enum { ZEROS = 1024 };

typedef struct {
    async_op op;
    int lane;
    uint64_t to;
    cta *signal; /* NULL: it has no mbarrier */
    uint32_t barrier;
    uint8_t data[32];
} value_store;

/* A delayed write of the thread, in the generic proxy. */
static int value_step(async_op *op) {
    value_store *v = (value_store *)op;
    const value_operands *o = op->in->extra;
    uint32_t bytes = (uint32_t)op->bytes, size = (uint32_t)type_bits(o->type) / 8;
    if (o->reduction != REDUCE_NONE) {
        uint8_t value[8];
        memcpy(value, thread_read(op->by, op->in, v->lane, o->space, v->to, size, size), size);
        reduce(o->reduction, o->type, value, v->data);
        memcpy(v->data, value, size);
    }
    thread_write(op->by, op->in, v->lane, o->space, v->to, v->data, bytes, bytes);
    if (v->signal) mbarrier_complete_tx(op->by, op->in, v->signal, v->barrier, bytes);
    return 1;
}

static void value_release(async_op *op) {
    free(op);
}

static void value_targets(warp *w, const instr *in, uint32_t lane, value_store *v) {
    const value_operands *o = in->extra;
    if (o->barrier.slot == NO_SLOT) {
        check_global(w, in, v->to, v->op.bytes, (uint32_t)v->op.bytes, "the destination");
        return;
    }
    uint32_t offset;
    cta *to = shared_operand(w, in, lane, &o->to, &offset, "the destination");
    v->signal = shared_operand(w, in, lane, &o->barrier, &v->barrier, "the mbarrier's address");
    if (w->cta->cluster->size < 2) fault(w, in, (int)lane, "works only in a cluster of more than one CTA");
    if (o->reduction != REDUCE_NONE && to == w->cta)
        fault(w, in, (int)lane, "the destination is in the executing CTA, %u; it must be in another one of the cluster",
              to->rank);
    if (v->signal != to)
        fault(w, in, (int)lane,
              "the destination is in CTA %u of the cluster and the mbarrier in CTA %u; it must be in "
              "the same CTA",
              to->rank, v->signal->rank);
    check_shared(w, in, to, offset, v->op.bytes, (uint32_t)v->op.bytes, "the destination");
    mbarrier_check_view(w, in, (int)lane, v->signal, v->barrier, VIEW_CLUSTER);
    v->op.touches[0] = to;
}

static run_result run_value(warp *w, const instr *in, uint32_t lanes) {
    const value_operands *o = in->extra;
    uint32_t size = (uint32_t)type_bits(o->type) / 8;
    if (o->releases_to_gpu) release_global(w, lanes);
    FOR_LANES(lane, lanes) {
        value_store *v = calloc(1, sizeof *v);
        if (!v) abort();
        for (int i = 0; i < o->count; i++) {
            uint64_t low = size == 8 ? r64(w, o->values[i])[lane] : size < 8 ? r32(w, o->values[i])[lane] : 0;
            if (size == 16)
                memcpy(v->data, &r128(w, o->values[i])[lane], 16);
            else
                memcpy(v->data + (uint32_t)i * size, &low, size);
        }
        v->lane = (int)lane;
        v->to = address_value(w, &o->to, lane);
        v->op.bytes = (uint64_t)o->count * size;
        v->op.what = o->reduction == REDUCE_NONE ? "st.async" : "red.async";
        v->op.step = value_step;
        v->op.release = value_release;
        value_targets(w, in, lane, v);
        async_start(machine_of(w), &v->op, w, in, NULL);
    }
    return RUN_NEXT;
}

static run_result run_st_bulk(warp *w, const instr *in, uint32_t lanes) {
    static const uint8_t zeros[ZEROS];
    const fill_operands *o = in->extra;
    FOR_LANES(lane, lanes) {
        uint64_t size = in->mode == 64 ? r64(w, o->size)[lane] : r32(w, o->size)[lane];
        uint32_t offset;
        const cta *c = shared_operand(w, in, lane, &o->to, &offset, "the destination");
        if (c != w->cta)
            fault(w, in, (int)lane, "the destination is in CTA %u of the cluster, not in its own", c->rank);
        if (size % 8 || size > 16777216)
            fault(w, in, (int)lane, "initialises %llu bytes; the size must be a multiple of 8 and at most 16777216",
                  (unsigned long long)size);
        check_shared(w, in, c, offset, size, 8, "the destination");
        for (uint64_t done = 0; done < size; done += sizeof zeros) {
            uint64_t bytes = size - done < sizeof zeros ? size - done : sizeof zeros;
            thread_write(w, in, (int)lane, SPACE_SHARED, (uint64_t)own_shared_address(c, offset + (uint32_t)done),
                         zeros, (uint32_t)bytes, 8);
        }
    }
    return RUN_NEXT;
}

/* ---- decoding ---- */

/* What st.async and red.async have in common: [a], b {, [mbar]}; with an mbarrier to the cluster's shared memory, else,
 * as a release, to global memory. */
static void decode_value(decoder *d, value_operands *o, int release_form) {
    static const char *const scopes[] = {"gpu", "sys", "cluster", NULL};
    ptx_space space = take_space(d);
    o->barrier.slot = NO_SLOT;
    if (release_form) {
        const int scope = take_one_of(d, scopes);
        if (scope < 0) reject(d, "a release needs a scope");
        o->releases_to_gpu = strcmp(scopes[scope], "cluster") != 0;
        take(d, "mmio");
        if (space != SPACE_NONE && space != SPACE_GLOBAL) reject(d, "a release goes to .global");
        o->space = SPACE_GLOBAL;
        o->to = take_address(d, 0, space);
    } else {
        if (space != SPACE_NONE && space != SPACE_SHARED_CLUSTER) reject(d, "this goes to .shared::cluster");
        o->space = space;
        o->to = take_address(d, 0, space);
        o->barrier = take_address(d, 2, space);
    }
    o->values = source_vector(d, 1, o->type, &o->count);
    d->in->extra = o;
    d->in->run = run_value;
}

static void decode_st_async(decoder *d) {
    value_operands *o = decode_alloc(d, sizeof *o);
    int release_form = take(d, "release");
    if (!release_form) {
        take(d, "weak");
        take(d, "cluster");
        need(d, "mbarrier::complete_tx::bytes");
    }
    int vector = !release_form && take(d, "v2") ? 2 : !release_form && take(d, "v4") ? 4 : 1;
    o->type = need_type(d);
    int bits = type_bits(o->type);
    if ((bits < 32 && !release_form) || bits > 64 || bits < 8 || (vector == 4 && bits != 32))
        reject(d, "st.async has no %s of this length", type_name(o->type));
    decode_value(d, o, release_form);
    if (o->count != vector) reject(d, "the value has %d elements, and the type %d", o->count, vector);
}

static void decode_st_bulk(decoder *d) {
    take(d, "weak");
    ptx_space space = take_space(d);
    if (space != SPACE_NONE && space != SPACE_SHARED) reject(d, "st.bulk goes to .shared::cta");
    fill_operands *o = decode_alloc(d, sizeof *o);
    d->in->extra = o;
    o->to = take_address(d, 0, space);
    const operand *size = operand_at(d, 1);
    d->in->mode = size->kind == OPERAND_REGISTER && type_bits(size->reg->type) == 32 ? 32 : 64;
    o->size = source(d, 1, d->in->mode == 32 ? TYPE_B32 : TYPE_B64);
    if (constant(d, 2)) reject(d, "the initial value of st.bulk can only be 0");
    d->in->run = run_st_bulk;
}

int decode_async_store(decoder *d) {
    if (take(d, "async"))
        decode_st_async(d);
    else if (take(d, "bulk"))
        decode_st_bulk(d);
    else
        return 0;
    return 1;
}

int decode_async_reduction(decoder *d) {
    if (!take(d, "async")) return 0;
    value_operands *o = decode_alloc(d, sizeof *o);
    int release_form = take(d, "release");
    if (!release_form) {
        need(d, "relaxed");
        need(d, "cluster");
        take(d, "mbarrier::complete_tx::bytes");
    }
    o->reduction = take_reduction(d);
    o->type = need_type(d);
    int known = release_form ? o->reduction == REDUCE_ADD && (o->type == TYPE_U32 || o->type == TYPE_S32 ||
                                                              o->type == TYPE_U64 || o->type == TYPE_S64)
                             : reduction_exists_in_shared(o->reduction, o->type);
    if (!known) reject(d, "red.async has no such reduction of %s", type_name(o->type));
    decode_value(d, o, release_form);
    if (o->count != 1) reject(d, "red.async takes one value");
    return 1;
}
