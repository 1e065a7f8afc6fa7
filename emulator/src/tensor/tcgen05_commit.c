/* tcgen05.commit and tcgen05.fence (PTX ISA 9.7.16.11 and 9.7.16.12), and the tensor core's queue.
 *
 * A commit arrives at its mbarrier after the last operation that its own thread issued before it has ended.
 * Operations of other threads do not delay it. It also publishes what its warp has issued, as
 * fence::before_thread_sync does. */
#include <stdlib.h>

#include "tensor/tcgen05.h"

typedef struct core_commit {
    async_op op;
    struct core_commit *next; /* of the operation that it waits for */
    warp *by;
    const instr *in;
    cta *target;
    uint32_t offset;
    uint32_t mask; /* of ranks still to arrive at */
} core_commit;

/* ---- the queue ---- */

static void release_op(async_op *op) {
    core_op *c = (core_op *)op;
    for (int i = 0; i < c->core->group; i++) c->core->under_way[i]--;
    while (c->commits) {
        core_commit *commit = c->commits;
        c->commits = commit->next;
        async_start(commit->by->cta->grid->on, &commit->op, commit->by, commit->in, NULL);
    }
    free(c);
}

void core_start(core_op *op, warp *w, const instr *in, int lane, tensor_core *core, int (*step)(async_op *),
                const char *what) {
    for (int i = 0; i < core->group; i++) {
        if (!core->ctas[i]->live_warps)
            fault(w, in, lane, "the peer CTA %u has exited: with cta_group::2 its tensor core and memory take part",
                  core->ctas[i]->rank);
        op->op.touches[i] = core->ctas[i];
        core->under_way[i]++;
    }
    op->op.step = step;
    op->op.release = release_op;
    op->op.what = what;
    op->core = core;
    op->lane = lane;
    op->reader = tmem_reader_of(w, 1);
    op->note = tmem_note_of(w, in, 1);
    async_start(machine_of(w), &op->op, w, in, &core->queue);
}

static core_op *last_of_thread(const tensor_core *core, const warp *w, int lane) {
    for (async_op *op = core->queue.last; op; op = op->previous)
        if (op->by == w && ((core_op *)op)->lane == lane) return (core_op *)op;
    return NULL;
}

/* ---- commit ---- */

typedef struct {
    int group, multicast;
    address_operand barrier;
} commit;

static int step_commit(async_op *op) {
    core_commit *c = (core_commit *)op;
    uint32_t rank = (uint32_t)__builtin_ctz(c->mask);
    cta *target = c->target->cluster->ctas[rank];
    /* The end of the block waits for its own commits. Other CTAs may have exited: DeepGEMM's last commits find that. */
    if (!target->live_warps && target != op->from && c->by->cta->grid->on->fences == FENCES_TEXT)
        fault(c->by, op->in, -1, "CTA %u of the cluster has exited before the arrival at its mbarrier", rank);
    if (mbarrier_held(target, c->offset)) return STEP_HELD;
    mbarrier_arrive(c->by, op->in, target, c->offset, 1);
    c->mask &= c->mask - 1;
    return !c->mask;
}

static void release_commit(async_op *op) {
    free(op);
}

static run_result run_commit(warp *w, const instr *in, uint32_t lanes) {
    const commit *x = in->extra;
    tensor_core *core = tensor_core_of(w, in, x->group);
    tensor_core_publish(w);
    FOR_LANES(lane, lanes) {
        uint32_t offset;
        address_operand barrier = x->barrier;
        /* ThunderKittens passes a shared address instead of a generic one; hardware uses the lower half only */
        if (machine_of(w)->fences == FENCES_HARDWARE && address_value(w, &barrier, lane) <= UINT32_MAX)
            barrier.space = SPACE_SHARED_CLUSTER;
        cta *target = shared_operand(w, in, lane, &barrier, &offset, "the mbarrier's address");
        uint32_t mask = x->multicast ? r32(w, in->s[1])[lane] & 0xffff : 1u << target->rank;
        if (mask >> target->cluster->size)
            fault(w, in, (int)lane, "the mask of CTAs 0x%x names some that the cluster of %d has not", mask,
                  target->cluster->size);
        if (!mask) continue;
        FOR_LANES(rank, mask) {
            cta *c = target->cluster->ctas[rank];
            if (c->live_warps) mbarrier_check_view(w, in, (int)lane, c, offset, VIEW_ASYNC);
        }
        core_commit *c = calloc(1, sizeof *c);
        if (!c) abort();
        c->op.step = step_commit;
        c->op.release = release_commit;
        c->op.what = "tensor commit";
        c->op.drains = 1; /* DeepGEMM's last stages leave arrivals that no warp waits for */
        c->op.touches[0] = w->cta;
        if (target != w->cta) c->op.touches[1] = target;
        c->by = w;
        c->in = in;
        c->target = target;
        c->offset = offset;
        c->mask = mask;
        core_op *after = last_of_thread(core, w, (int)lane);
        if (after) {
            c->next = after->commits;
            after->commits = c;
        } else {
            async_start(machine_of(w), &c->op, w, in, NULL);
        }
    }
    return RUN_NEXT;
}

static int decode_commit(decoder *d) {
    if (!has_modifier(d, "commit")) return 0;
    commit *x = decode_alloc(d, sizeof *x);
    need(d, "commit");
    x->group = take_cta_group(d);
    need(d, "mbarrier::arrive::one");
    ptx_space space = take_space(d);
    if (space != SPACE_NONE && space != SPACE_SHARED_CLUSTER) reject(d, "the mbarrier is in .shared::cluster memory");
    x->multicast = take(d, "multicast::cluster");
    need(d, "b64");
    x->barrier = take_address(d, 0, space);
    if (x->multicast) d->in->s[1] = source(d, 1, TYPE_B16);
    d->in->extra = x;
    d->in->run = run_commit;
    return 1;
}

/* ---- fence ---- */

static run_result run_fence_before(warp *w, const instr *in, uint32_t lanes) {
    (void)in, (void)lanes;
    tensor_core_publish(w);
    return RUN_NEXT;
}

static run_result run_fence_after(warp *w, const instr *in, uint32_t lanes) {
    (void)in, (void)lanes;
    w->tcgen05_fence_time = machine_of(w)->now;
    return RUN_NEXT;
}

static int decode_fence(decoder *d) {
    static const char *const sides[] = {"fence::before_thread_sync", "fence::after_thread_sync", NULL};
    int side = take_one_of(d, sides);
    if (side < 0) return 0;
    d->in->run = side ? run_fence_after : run_fence_before;
    return 1;
}

static int decode_tcgen05(decoder *d) {
    return decode_commit(d) || decode_fence(d) || decode_tcgen05_copy(d) || decode_tcgen05_mma(d);
}

const opcode_entry tcgen05_opcodes[] = {{"tcgen05", decode_tcgen05}, {0}};
