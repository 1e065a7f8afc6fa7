/* Cluster addresses: mapa (PTX ISA 9.7.9.23), getctarank (9.7.9.24); and clusterlaunchcontrol (9.7.13.17,
 * 9.7.13.18).
 *
 * try_cancel takes a cluster that has not started: the machine never starts it, and the response holds the id of its
 * first CTA. The seed decides how many clusters have started by then. The 16 bytes of the response have a layout of
 * our own: a word that marks a response and says whether a cluster was cancelled, then x, y, z. */
#include <stdlib.h>

#include "async/async.h"

/* ---- mapa, getctarank ---- */

/* The 32 bits of a lane's shared or generic address. */
static uint32_t window_address(warp *w, const instr *in, uint32_t lane) {
    uint64_t address = in->type == TYPE_U64 ? r64(w, in->s[0])[lane] : r32(w, in->s[0])[lane];
    uint64_t window = address & WINDOW_MASK;
    if (in->space == SPACE_NONE ? window != SHARED_WINDOW : window != 0)
        fault(w, in, (int)lane, "0x%llx is %s", (unsigned long long)address,
              in->space == SPACE_NONE ? "no generic address of shared memory" : "no address in the shared window");
    if ((address & ~WINDOW_MASK) >> 32)
        fault(w, in, (int)lane, "0x%llx is no address of shared memory: it has 32 bits",
              (unsigned long long)(address & ~WINDOW_MASK));
    return (uint32_t)address;
}

/* A CTA that does not exist has an address too, and only its use is a fault: CUTLASS's lanes compute the addresses of
 * the largest possible cluster and use those of existing CTAs. */
static run_result run_mapa(warp *w, const instr *in, uint32_t lanes) {
    FOR_LANES(lane, lanes) {
        uint32_t address = window_address(w, in, lane), rank = r32(w, in->s[1])[lane] & 0xff;
        uint64_t mapped = (address & ((1u << RANK_SHIFT) - 1)) | (uint64_t)rank << RANK_SHIFT;
        if (in->space == SPACE_NONE) mapped |= SHARED_WINDOW;
        if (in->type == TYPE_U64)
            r64(w, in->d)[lane] = mapped;
        else
            r32(w, in->d)[lane] = (uint32_t)mapped;
    }
    return RUN_NEXT;
}

static run_result run_getctarank(warp *w, const instr *in, uint32_t lanes) {
    FOR_LANES(lane, lanes) r32(w, in->d)[lane] = window_address(w, in, lane) >> RANK_SHIFT;
    return RUN_NEXT;
}

static void take_window_address(decoder *d) {
    static const char *const widths[] = {"u32", "u64", NULL};
    ptx_space space = take_space(d);
    if (space != SPACE_NONE && space != SPACE_SHARED_CLUSTER) reject(d, "the space is .shared::cluster, or none");
    int width = take_one_of(d, widths);
    if (width < 0) reject(d, "the type is .u32 or .u64");
    if (!width && space == SPACE_NONE) reject(d, "a generic address has 64 bits");
    d->in->space = space;
    d->in->type = width ? TYPE_U64 : TYPE_U32;
    d->in->s[0] = source(d, 1, (ptx_type)d->in->type);
}

static int decode_mapa(decoder *d) {
    take_window_address(d);
    d->in->d = destination(d, 0, (ptx_type)d->in->type);
    d->in->s[1] = source(d, 2, TYPE_U32);
    if (d->in->d == NO_SLOT) reject(d, "the address needs a register");
    d->in->run = run_mapa;
    return 1;
}

static int decode_getctarank(decoder *d) {
    take_window_address(d);
    d->in->d = destination(d, 0, TYPE_U32);
    if (d->in->d == NO_SLOT) reject(d, "the rank needs a register");
    d->in->run = run_getctarank;
    return 1;
}

/* ---- clusterlaunchcontrol ---- */

enum { RESPONSE_BYTES = 16 };
static const uint32_t response_word = 0xc1a57e0; /* | 1: cancelled */

typedef struct {
    int users, decided;
    uint32_t words[4];
} response;

typedef struct {
    async_op op;
    response *shared; /* by the deliveries of a multicast */
    cta *to;
    uint32_t at, barrier;
} delivery;

typedef struct {
    address_operand to, barrier;
    int multicast;
} cancel_operands;

/* Cancels the next cluster that has not started, if there is one. */
static void decide(response *r, grid *g) {
    const launch *l = &g->launch;
    uint32_t size = l->cluster[0] * l->cluster[1] * l->cluster[2];
    r->decided = 1;
    r->words[0] = response_word;
    if (g->next_cta >= g->cta_count) return;
    uint64_t serial = g->next_cta / size, x = l->grid[0] / l->cluster[0], y = l->grid[1] / l->cluster[1];
    r->words[0] |= 1;
    r->words[1] = (uint32_t)(serial % x) * l->cluster[0];
    r->words[2] = (uint32_t)(serial / x % y) * l->cluster[1];
    r->words[3] = (uint32_t)(serial / x / y) * l->cluster[2];
    g->next_cta += size;
    g->done_ctas += size; /* the grid does not wait for them */
    g->triggered_ctas += size;
}

static int deliver(async_op *op) {
    delivery *v = (delivery *)op;
    if (!v->shared->decided) decide(v->shared, op->from->grid);
    async_write_shared(v->to, v->at, v->shared->words, RESPONSE_BYTES);
    mbarrier_complete_tx(op->by, op->in, v->to, v->barrier, RESPONSE_BYTES);
    return 1;
}

static void release_delivery(async_op *op) {
    delivery *v = (delivery *)op;
    if (!--v->shared->users) free(v->shared);
    free(v);
}

static void start_delivery(warp *w, const instr *in, response *r, cta *to, uint32_t at, uint32_t barrier) {
    check_shared(w, in, to, at, RESPONSE_BYTES, RESPONSE_BYTES, "the response");
    mbarrier_check_view(w, in, -1, to, barrier, VIEW_ASYNC);
    mbarrier_guard(w, in, to, at, RESPONSE_BYTES);
    delivery *v = calloc(1, sizeof *v);
    if (!v) abort();
    *v = (delivery){.shared = r, .to = to, .at = at, .barrier = barrier};
    v->op.step = deliver;
    v->op.release = release_delivery;
    v->op.touches[0] = to;
    v->op.bytes = RESPONSE_BYTES;
    v->op.what = "cluster launch control";
    r->users++;
    async_start(machine_of(w), &v->op, w, in, NULL);
}

static run_result run_try_cancel(warp *w, const instr *in, uint32_t lanes) {
    const cancel_operands *o = in->extra;
    FOR_LANES(lane, lanes) {
        uint32_t at, barrier;
        cta *own = shared_operand(w, in, lane, &o->to, &at, "the response's address");
        const cta *signal = shared_operand(w, in, lane, &o->barrier, &barrier, "the mbarrier's address");
        if (own != w->cta || signal != w->cta)
            fault(w, in, (int)lane, "the response and the mbarrier must be in the executing CTA");
        response *r = calloc(1, sizeof *r);
        if (!r) abort();
        if (!o->multicast) start_delivery(w, in, r, own, at, barrier);
        for (int rank = 0; o->multicast && rank < w->cta->cluster->size; rank++) {
            uint32_t offset;
            cta *to = shared_target(w, in, (uint64_t)rank << RANK_SHIFT | at, &offset);
            start_delivery(w, in, r, to, at, barrier);
        }
    }
    return RUN_NEXT;
}

/* The response in a lane's register. */
static const uint32_t *response_of(warp *w, const instr *in, uint32_t lane) {
    const uint32_t *words = (const uint32_t *)&r128(w, in->s[0])[lane];
    /* CUTLASS writes zeros itself where it cancels nothing, and queries them: they are no cancelled cluster */
    if (machine_of(w)->fences == FENCES_HARDWARE && !(words[0] | words[1] | words[2] | words[3])) return words;
    if ((words[0] & ~1u) != response_word)
        fault(w, in, (int)lane, "0x%08x%08x%08x%08x is no response of clusterlaunchcontrol.try_cancel", words[3],
              words[2], words[1], words[0]);
    return words;
}

static run_result run_is_canceled(warp *w, const instr *in, uint32_t lanes) {
    uint32_t canceled = 0;
    FOR_LANES(lane, lanes) canceled |= (response_of(w, in, lane)[0] & 1) << lane;
    set_predicate(w, in->d, lanes, canceled);
    return RUN_NEXT;
}

static run_result run_first_ctaid(warp *w, const instr *in, uint32_t lanes) {
    FOR_LANES(lane, lanes) {
        const uint32_t *words = response_of(w, in, lane);
        uint32_t response[4];
        memcpy(response, words, sizeof response); /* the register itself may be overwritten */
        if (!(response[0] & 1)) fault(w, in, (int)lane, "asks for the id of a cluster, and none was cancelled");
        for (uint32_t i = 0; i < in->vector; i++) {
            uint32_t dimension = in->vector == 1 ? in->mode : i;
            if (in->vd[i] != NO_SLOT)
                r32(w, in->vd[i])[lane] = dimension < 3 ? response[1 + dimension] : POISON_BYTE * 0x01010101u;
        }
    }
    return RUN_NEXT;
}

static void decode_try_cancel(decoder *d) {
    need(d, "async");
    ptx_space space = take_space(d);
    if (space != SPACE_NONE && space != SPACE_SHARED) reject(d, "the space is .shared::cta, or none");
    need(d, "mbarrier::complete_tx::bytes");
    need(d, "b128");
    cancel_operands *o = decode_alloc(d, sizeof *o);
    o->multicast = take(d, "multicast::cluster::all");
    o->to = take_address(d, 0, space);
    o->barrier = take_address(d, 1, space);
    d->in->extra = o;
    d->in->run = run_try_cancel;
}

static void decode_query_cancel(decoder *d) {
    static const char *const parts[] = {"get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z",
                                        "get_first_ctaid", NULL};
    d->in->s[0] = source(d, 1, TYPE_B128);
    if (take(d, "is_canceled")) {
        need(d, "pred");
        need(d, "b128");
        d->in->d = destination(d, 0, TYPE_PRED);
        d->in->run = run_is_canceled;
        return;
    }
    int part = take_one_of(d, parts), length;
    if (part < 0) reject(d, "unknown query");
    if (part == 3) need(d, "v4");
    need(d, "b32");
    need(d, "b128");
    d->in->mode = (uint32_t)part;
    d->in->vd = destination_vector(d, 0, TYPE_B32, &length);
    d->in->vector = (uint32_t)length;
    if (length != (part == 3 ? 4 : 1)) reject(d, "the id has %d elements here", part == 3 ? 4 : 1);
    d->in->run = run_first_ctaid;
}

static int decode_launch_control(decoder *d) {
    if (take(d, "try_cancel"))
        decode_try_cancel(d);
    else if (take(d, "query_cancel"))
        decode_query_cancel(d);
    else
        return 0;
    return 1;
}

const opcode_entry cluster_opcodes[] = {
    {"mapa", decode_mapa}, {"getctarank", decode_getctarank}, {"clusterlaunchcontrol", decode_launch_control}, {0}};
