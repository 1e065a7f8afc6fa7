/* Fences (PTX ISA 9.7.13.4: membar, fence) and cache hints (9.7.9.15 to 9.7.9.18: prefetch, prefetchu,
 * applypriority, discard, createpolicy).
 *
 * Threads see each other's writes at once, so a fence between threads only matters to asynchronous operations: it
 * records that the warp may have synchronised, so that its later fence.proxy.async publishes the other threads' writes
 * too, and that it releases its own to other clusters. */
#include "memory/memory.h"

/* ---- fences ---- */

enum {
    FENCE_ACQUIRES = 1,
    FENCE_PUBLISHES_SHARED = 2,
    FENCE_PUBLISHES_GLOBAL = 4,
    FENCE_RELEASES_CLUSTER = 8, /* to the other CTAs */
    FENCE_MBARRIER_INIT = 16,
    FENCE_RELEASES_GPU = 32
};

static run_result run_fence(warp *w, const instr *in, uint32_t lanes) {
    if (in->mode & FENCE_ACQUIRES) w->sync_time = machine_of(w)->now;
    if (in->mode & FENCE_PUBLISHES_SHARED) {
        publish_to_async_proxy(w, lanes);
        mbarrier_publish(w, lanes, VIEW_ASYNC, w->sync_time);
    }
    if (in->mode & FENCE_RELEASES_CLUSTER) mbarrier_publish(w, lanes, VIEW_CLUSTER, w->sync_time);
    if (in->mode & FENCE_RELEASES_GPU) release_global(w, lanes);
    if (in->mode & FENCE_MBARRIER_INIT) mbarrier_publish(w, lanes, VIEW_ASYNC, 0);
    if (in->mode & FENCE_PUBLISHES_GLOBAL) publish_global_to_async_proxy(w, lanes);
    return RUN_NEXT;
}

typedef struct ranged_fence {
    int wide;
} ranged_fence;

static run_result run_tensormap_fence(warp *w, const instr *in, uint32_t lanes) {
    const ranged_fence *f = in->extra;
    FOR_LANES(i, lanes) {
        uint64_t address = lane_address(w, in, f->wide, i);
        /* CUTLASS's grouped kernels pass a null map in warps that do not write one; hardware ignores it */
        if (!address && machine_of(w)->fences == FENCES_HARDWARE) continue;
        check_global(w, in, address, 128, 128, "the tensor map of the fence");
    }
    w->sync_time = machine_of(w)->now;
    return RUN_NEXT;
}

static void decode_proxy_fence(decoder *d) {
    static const char *const directions[] = {"acquire", "release", NULL};
    instr *in = d->in;
    if (take(d, "alias")) return;
    if (take(d, "async")) {
        if (take(d, "global"))
            in->mode = FENCE_PUBLISHES_GLOBAL;
        else if (take(d, "shared::cta") || take(d, "shared::cluster"))
            in->mode = FENCE_PUBLISHES_SHARED;
        else
            in->mode = FENCE_PUBLISHES_SHARED | FENCE_PUBLISHES_GLOBAL;
        return;
    }
    if (take(d, "async::generic")) {
        int direction = take_one_of(d, directions);
        if (direction < 0) reject(d, ".async::generic needs .acquire or .release");
        need(d, direction ? "sync_restrict::shared::cta" : "sync_restrict::shared::cluster");
        need(d, "cluster");
        in->mode = FENCE_PUBLISHES_SHARED | (direction ? 0 : FENCE_ACQUIRES);
        return;
    }
    need(d, "tensormap::generic");
    int direction = take_one_of(d, directions);
    take_scope(d, 1);
    if (direction < 0) reject(d, ".tensormap::generic needs .acquire or .release");
    if (direction == 1) return;
    int bits;
    ranged_fence *f = decode_alloc(d, sizeof *f);
    in->s[0] = source_address(d, 0, &in->offset, &bits);
    f->wide = bits == 64;
    if (constant(d, 1) != 128) reject(d, "the size of the range must be 128");
    in->extra = f;
    in->run = run_tensormap_fence;
}

int decode_fence(decoder *d) {
    static const char *const kinds[] = {"sc", "acq_rel", "acquire", "release", NULL};
    instr *in = d->in;
    in->run = run_fence;
    if (take(d, "proxy")) {
        decode_proxy_fence(d);
        return 1;
    }
    if (d->statement->opcode[0] == 'm') {
        static const char *const levels[] = {"cta", "gl", "sys", NULL};
        int level = take_one_of(d, levels);
        if (level < 0) reject(d, "a level (.cta, .gl, .sys) is missing");
        in->mode = FENCE_ACQUIRES | (level ? FENCE_RELEASES_CLUSTER | FENCE_RELEASES_GPU : 0);
        return 1;
    }
    if (take(d, "mbarrier_init")) {
        need(d, "release");
        need(d, "cluster");
        in->mode = FENCE_MBARRIER_INIT;
        return 1;
    }
    int kind = take_one_of(d, kinds);
    memory_scope scope = SCOPE_CTA;
    if (take(d, "sync_restrict::shared::cluster")) {
        if (kind != 2) reject(d, ".sync_restrict::shared::cluster needs .acquire");
        need(d, "cluster");
    } else if (take(d, "sync_restrict::shared::cta")) {
        if (kind != 3) reject(d, ".sync_restrict::shared::cta needs .release");
        need(d, "cluster");
    } else
        scope = take_scope(d, 1);
    in->mode = kind == 3 ? 0 : FENCE_ACQUIRES;
    if (kind != 2 && scope >= SCOPE_CLUSTER) in->mode |= FENCE_RELEASES_CLUSTER;
    if (kind != 2 && scope >= SCOPE_GPU) in->mode |= FENCE_RELEASES_GPU;
    return 1;
}

/* ---- caches ---- */

static run_result run_nothing(warp *w, const instr *in, uint32_t lanes) {
    (void)w, (void)in, (void)lanes;
    return RUN_NEXT;
}

static int take_address(decoder *d, int index) {
    int bits;
    d->in->s[0] = source_address(d, index, &d->in->offset, &bits);
    return bits == 64;
}

/* A prefetch of an address that cannot be read does nothing. */
int decode_prefetch(decoder *d) {
    static const char *const levels[] = {"L1", "L2", "L2::evict_last", "L2::evict_normal", NULL};
    ptx_space space = take_space(d);
    if (!take(d, "tensormap")) {
        if (space != SPACE_NONE && space != SPACE_GLOBAL && space != SPACE_LOCAL)
            reject(d, "only global and local memory are prefetched");
        int level = take_one_of(d, levels);
        if (level < 0) reject(d, "a cache level is missing");
        if (level > 1 && space != SPACE_GLOBAL) reject(d, "an eviction priority needs .global");
    } else if (space != SPACE_NONE && space != SPACE_CONST && space != SPACE_PARAM)
        reject(d, "a tensor map is prefetched from constants, parameters or a generic address");
    take_address(d, 0);
    d->in->run = run_nothing;
    return 1;
}

int decode_prefetchu(decoder *d) {
    need(d, "L1");
    take_address(d, 0);
    d->in->run = run_nothing;
    return 1;
}

enum { CACHE_LINE = 128 };

static void decode_line(decoder *d) {
    ptx_space space = take_space(d);
    if (space != SPACE_NONE && space != SPACE_GLOBAL) reject(d, "the line must be in global memory");
    d->in->space = SPACE_GLOBAL;
    d->in->mode = (uint32_t)take_address(d, 0);
    if (constant(d, 1) != CACHE_LINE) reject(d, "the size must be %d", CACHE_LINE);
}

static run_result run_applypriority(warp *w, const instr *in, uint32_t lanes) {
    FOR_LANES(i, lanes) {
        check_global(w, in, lane_address(w, in, (int)in->mode, i), CACHE_LINE, CACHE_LINE, "the line of applypriority");
    }
    return RUN_NEXT;
}

/* Reads of a discarded line are undefined: poison here. */
static run_result run_discard(warp *w, const instr *in, uint32_t lanes) {
    uint8_t poison[CACHE_LINE];
    memset(poison, POISON_BYTE, sizeof poison);
    FOR_LANES(i, lanes) {
        thread_write(w, in, (int)i, SPACE_GLOBAL, lane_address(w, in, (int)in->mode, i), poison, CACHE_LINE,
                     CACHE_LINE);
    }
    return RUN_NEXT;
}

int decode_applypriority(decoder *d) {
    need(d, "L2::evict_normal");
    decode_line(d);
    d->in->run = run_applypriority;
    return 1;
}

int decode_discard(decoder *d) {
    need(d, "L2");
    decode_line(d);
    d->in->run = run_discard;
    return 1;
}

/* A policy is opaque; here it is its two priorities. */
static run_result run_createpolicy(warp *w, const instr *in, uint32_t lanes) {
    if (in->d == NO_SLOT) return RUN_NEXT;
    FOR_LANES(i, lanes) r64(w, in->d)[i] = (uint64_t)in->imm;
    return RUN_NEXT;
}

int decode_createpolicy(decoder *d) {
    static const char *const primary[] = {"L2::evict_last", "L2::evict_normal", "L2::evict_first",
                                          "L2::evict_unchanged", NULL};
    static const char *const secondary[] = {"L2::evict_first", "L2::evict_unchanged", NULL};
    instr *in = d->in;
    in->d = destination(d, 0, TYPE_B64);
    in->run = run_createpolicy;
    if (take(d, "cvt")) {
        need(d, "L2");
        source(d, 1, TYPE_B64);
    } else {
        int range = take(d, "range");
        if (!range) need(d, "fractional");
        if (range) take(d, "global");
        int first = take_one_of(d, primary);
        if (first < 0) reject(d, "a primary priority is missing");
        int second = take_one_of(d, secondary);
        in->imm = (int64_t)(first + 1) << 60 | (int64_t)(second + 1) << 56;
        if (range) {
            take_address(d, 1);
            source(d, 2, TYPE_B32);
            source(d, 3, TYPE_B32);
        } else if (operand_count(d) > 1)
            source(d, 1, TYPE_F32);
    }
    need(d, "b64");
    return 1;
}
