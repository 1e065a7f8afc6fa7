/* The machine: launches, placement of CTAs on SMs, and who gets the next turn. */
#define _GNU_SOURCE /* strdup */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "machine/guard.h"
#include "machine/simt.h"

enum {
    WORKSPACE_BYTES = 64,            /* cooperative groups: a size and a counter */
    POLLS_BEFORE_FORCING = 64,       /* turns of polls only, before a late operation is forced */
    POLLS_BEFORE_EXPIRING = 4096,    /* ... before a try_wait that blocks another warp ends */
    POLLS_BEFORE_GIVING_UP = 200000, /* ... before polling with nothing under way is a deadlock */
    EXPIRATIONS_BEFORE_GIVING_UP = 256,
    LONGEST_REST = 12 /* of a warp: 1 << .. turns */
};

/* ---- random numbers: xoshiro128++ (Blackman, Vigna), seeded through splitmix64 ---- */

void machine_seed(machine *m, uint64_t seed) {
    m->seed = seed;
    uint64_t state = seed;
    for (int i = 0; i < 4; i++) {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        m->random[i] = (z ^ z >> 31) & UINT32_MAX;
    }
    m->timing = timing_of_seed(seed);
    m->resident_goal = 1 << machine_below(m, 5);
    m->spread = 1 << machine_below(m, 8);
    if (m->spread > m->sm_count) m->spread = m->sm_count;
}

uint32_t machine_random(machine *m) {
    uint32_t s[4] = {(uint32_t)m->random[0], (uint32_t)m->random[1], (uint32_t)m->random[2], (uint32_t)m->random[3]};
    uint32_t sum = s[0] + s[3], result = (sum << 7 | sum >> 25) + s[0], t = s[1] << 9;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = s[3] << 11 | s[3] >> 21;
    for (int i = 0; i < 4; i++) m->random[i] = s[i];
    return result;
}

uint32_t machine_below(machine *m, uint32_t bound) {
    return (uint32_t)((uint64_t)machine_random(m) * bound >> 32);
}

/* ---- the ready list ---- */

void machine_ready(warp *w) {
    machine *m = machine_of(w);
    if (w->in_ready >= 0 || !warp_can_run(w)) return;
    if (m->ready_count == m->ready_capacity) {
        m->ready_capacity = m->ready_capacity ? 2 * m->ready_capacity : 256;
        m->ready = realloc(m->ready, (size_t)m->ready_capacity * sizeof *m->ready);
        if (!m->ready) abort();
    }
    w->in_ready = m->ready_count;
    m->ready[m->ready_count++] = w;
}

static void not_ready(machine *m, warp *w) {
    if (w->in_ready < 0) return;
    warp *last = m->ready[--m->ready_count];
    m->ready[w->in_ready] = last;
    last->in_ready = w->in_ready;
    w->in_ready = -1;
}

void wake_cta(cta *c) {
    for (int i = 0; i < c->warp_count; i++)
        if (c->warps[i].live) wake_warp(&c->warps[i]);
}

void wake_cluster(cluster *c) {
    for (int i = 0; i < c->size; i++)
        if (c->ctas[i]) wake_cta(c->ctas[i]);
}

void wake_all(machine *m) {
    for (cta *c = m->ctas; c; c = c->next) wake_cta(c);
}

/* ---- launches ---- */

static int block_threads(const launch *l) {
    return (int)(l->block[0] * l->block[1] * l->block[2]);
}

static int64_t shared_of(const launch *l) {
    int64_t end = l->entry->dynamic_offset + l->dynamic_shared;
    int64_t statics = SHARED_BASE + l->entry->static_shared;
    return end > statics ? end : statics;
}

int machine_occupancy(const machine *m, const launch *l) {
    const device *d = m->device;
    int threads = (block_threads(l) + WARP_LANES - 1) / WARP_LANES * WARP_LANES;
    int64_t shared = shared_of(l) - SHARED_BASE + d->shared_reserved;
    if (threads > 1024 || shared > d->shared_per_block + d->shared_reserved) return 0;
    int ctas = d->threads_per_sm / threads;
    if (d->ctas_per_sm < ctas) ctas = d->ctas_per_sm;
    if (d->shared_per_sm / shared < ctas) ctas = (int)(d->shared_per_sm / shared);
    return ctas;
}

int machine_clusters(const machine *m, int size, int ctas_per_sm) {
    int fit = 0;
    for (int i = 0, gpc = 0; i < m->sm_count && size > 0; i++) {
        if (i && m->sms[i].gpc != m->sms[i - 1].gpc) gpc = 0;
        fit += ++gpc % size == 0;
    }
    return fit * ctas_per_sm;
}

static char *message(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *message(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return strdup(text);
}

static int differs(const uint32_t *given, const int *wanted) {
    return wanted[0] && (given[0] != (uint32_t)wanted[0] || given[1] != (uint32_t)(wanted[1] ? wanted[1] : 1) ||
                         given[2] != (uint32_t)(wanted[2] ? wanted[2] : 1));
}

static char *cannot_launch(const machine *m, const launch *l) {
    static const char *const axis = "xyz";
    static const uint32_t block_limit[3] = {1024, 1024, 64}, grid_limit[3] = {INT32_MAX, 65535, 65535};
    const function *f = l->entry->function;
    uint64_t cluster = (uint64_t)l->cluster[0] * l->cluster[1] * l->cluster[2];
    for (int i = 0; i < 3; i++) {
        if (!l->block[i] || l->block[i] > block_limit[i])
            return message("%s: block.%c is %u; it must be 1 to %u", function_title(f), axis[i], l->block[i],
                           block_limit[i]);
        if (!l->grid[i] || l->grid[i] > grid_limit[i])
            return message("%s: grid.%c is %u; it must be 1 to %u", function_title(f), axis[i], l->grid[i],
                           grid_limit[i]);
        if (!l->cluster[i] || l->grid[i] % l->cluster[i])
            return message("%s: grid.%c is %u, not a multiple of cluster.%c = %u", function_title(f), axis[i],
                           l->grid[i], axis[i], l->cluster[i]);
    }
    int threads = block_threads(l);
    if (threads > 1024) return message("%s: a block of %d threads; at most 1024 fit", function_title(f), threads);
    uint64_t most = (uint64_t)f->maxntid[0] * (uint64_t)(f->maxntid[1] ? f->maxntid[1] : 1) *
                    (uint64_t)(f->maxntid[2] ? f->maxntid[2] : 1);
    if (most && (uint64_t)threads > most)
        return message("%s: a block of %d threads; its .maxntid allows %llu", function_title(f), threads,
                       (unsigned long long)most);
    if (differs(l->block, f->reqntid))
        return message("%s: a block of %u,%u,%u threads; its .reqntid is %d,%d,%d", function_title(f), l->block[0],
                       l->block[1], l->block[2], f->reqntid[0], f->reqntid[1], f->reqntid[2]);
    if (differs(l->cluster, f->reqnctapercluster))
        return message("%s: a cluster of %u,%u,%u CTAs; its .reqnctapercluster is %d,%d,%d", function_title(f),
                       l->cluster[0], l->cluster[1], l->cluster[2], f->reqnctapercluster[0], f->reqnctapercluster[1],
                       f->reqnctapercluster[2]);
    if (f->explicitcluster && !l->explicit_cluster)
        return message("%s: no cluster was asked for, and it is .explicitcluster", function_title(f));
    if (cluster > 1 && m->device->cc < 90)
        return message("%s: a cluster of %llu CTAs; clusters need compute capability 9.0", function_title(f),
                       (unsigned long long)cluster);
    if (cluster > 16)
        return message("%s: a cluster of %llu CTAs; at most 16 fit", function_title(f), (unsigned long long)cluster);
    int64_t shared = shared_of(l) - SHARED_BASE;
    if (shared > m->device->shared_per_block)
        return message("%s: %lld bytes of shared memory; a block of %s has at most %d", function_title(f),
                       (long long)shared, m->device->key, m->device->shared_per_block);
    return NULL;
}

char *machine_launch(machine *m, const launch *l) {
    char *rejection = cannot_launch(m, l);
    if (rejection) return rejection;
    grid *g = calloc(1, sizeof *g);
    if (!g) abort();
    g->on = m;
    g->launch = *l;
    g->serial = ++m->grid_serial;
    g->cta_count = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
    size_t bytes = l->entry->parameter_bytes ? (size_t)l->entry->parameter_bytes : 1;
    g->launch.parameters = device_allocate(bytes); /* a kernel may take the address of a parameter: exact bounds */
    if (!g->launch.parameters) abort();
    memcpy(g->launch.parameters, l->parameters, (size_t)l->entry->parameter_bytes);
    if (l->cooperative) {
        g->workspace = device_allocate(WORKSPACE_BYTES);
        if (!g->workspace) abort();
        memset(g->workspace, 0, WORKSPACE_BYTES);
    }
    if (m->last_grid)
        m->last_grid->next = g;
    else
        m->first_grid = g;
    m->last_grid = g;
    trace_launch(m, g);
    return NULL;
}

/* ---- CTAs ---- */

static void *poisoned(machine *m, size_t bytes) {
    return memset(spare_take(m, bytes), POISON_BYTE, bytes);
}

static size_t local_bytes(const launch *l) {
    return (size_t)l->entry->local_bytes * (size_t)block_threads(l);
}

static cta *make_cta(grid *g, cluster *k, uint32_t rank, sm *s) {
    const launch *l = &g->launch;
    cta *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->grid = g;
    c->cluster = k;
    c->rank = rank;
    c->sm = s;
    c->serial = g->on->cta_serial++;
    uint32_t in[3] = {rank % l->cluster[0], rank / l->cluster[0] % l->cluster[1], rank / l->cluster[0] / l->cluster[1]};
    for (int i = 0; i < 3; i++) c->id[i] = k->id[i] * l->cluster[i] + in[i];
    c->shared_bytes = (uint32_t)shared_of(l);
    c->shared = poisoned(g->on, c->shared_bytes + 64);
    if (l->entry->uses_async_proxy && g->on->fences == FENCES_TEXT) {
        c->async_view = poisoned(g->on, c->shared_bytes + 64);
    }
    if (l->entry->local_bytes) c->local = poisoned(g->on, local_bytes(l));
    CALL_HOOK(memory_cta_start, c);
    c->thread_count = block_threads(l);
    warps_start(c);
    c->next = g->on->ctas;
    g->on->ctas = c;
    g->on->resident++;
    g->live_ctas++;
    return c;
}

/* What a CTA takes of its SM. */
static void occupy(sm *s, const launch *l, const device *d, int sign) {
    s->ctas_free -= sign;
    s->threads_free -= sign * ((block_threads(l) + WARP_LANES - 1) / WARP_LANES * WARP_LANES);
    s->shared_free -= sign * (int)(shared_of(l) - SHARED_BASE + d->shared_reserved);
}

static int fits(const sm *s, const launch *l, const device *d) {
    sm after = *s;
    occupy(&after, l, d, 1);
    return after.ctas_free >= 0 && after.threads_free >= 0 && after.shared_free >= 0;
}

/* Places the next cluster, each CTA on its own SM of one GPC; 0 if it does not fit now. */
static int start_cluster(machine *m, grid *g) {
    const launch *l = &g->launch;
    int size = (int)(l->cluster[0] * l->cluster[1] * l->cluster[2]);
    sm *of_gpc[MOST_GPCS][16], **places = NULL;
    int found[MOST_GPCS] = {0};
    int first = (int)machine_below(m, (uint32_t)m->spread);
    for (int i = 0; i < m->sm_count && !places; i++) {
        sm *s = &m->sms[(first + i) % m->sm_count];
        if (!fits(s, l, m->device)) continue;
        of_gpc[s->gpc][found[s->gpc]++] = s;
        if (found[s->gpc] == size) places = of_gpc[s->gpc];
    }
    if (!places) return 0;
    cluster *k = calloc(1, sizeof *k);
    if (!k) abort();
    k->grid = g;
    k->size = k->live = size;
    k->ctas = calloc((size_t)size, sizeof *k->ctas);
    if (!k->ctas) abort();
    k->threads = (uint32_t)(size * block_threads(l));
    uint64_t serial = g->next_cta / (uint64_t)size;
    uint32_t across[3];
    for (int i = 0; i < 3; i++) across[i] = l->grid[i] / l->cluster[i];
    k->id[0] = (uint32_t)(serial % across[0]);
    k->id[1] = (uint32_t)(serial / across[0] % across[1]);
    k->id[2] = (uint32_t)(serial / across[0] / across[1]);
    g->next_cta += (uint64_t)size;
    g->started = 1;
    for (int i = 0; i < size; i++) {
        occupy(places[i], l, m->device, 1);
        k->ctas[i] = make_cta(g, k, (uint32_t)i, places[i]);
    }
    k->started = 1;
    for (int i = 0; i < size; i++)
        for (int j = 0; j < k->ctas[i]->warp_count; j++) machine_ready(&k->ctas[i]->warps[j]);
    machine_progress(m);
    return 1;
}

/* The first grid that has CTAs left and may start them. A grid waits for the end of all grids before it, unless it was
 * launched as programmatic and every CTA of the previous grid has triggered or exited. */
static grid *startable(const machine *m) {
    int running = 0; /* grids before this one that have not finished */
    for (grid *g = m->first_grid; g; g = g->next) {
        if (running && !g->launch.programmatic) return NULL;
        if (g->next_cta < g->cta_count) return g;
        if (g->finished) continue;
        running = 1;
        if (g->triggered_ctas < g->cta_count) return NULL;
    }
    return NULL;
}

static int start_some(machine *m, int force) {
    int started = 0;
    for (;;) {
        grid *g = startable(m);
        if (!g || (m->resident >= m->resident_goal && !(force && !started) && !g->workspace)) return started;
        if (!start_cluster(m, g)) return started;
        started = 1;
    }
}

static void free_cta(cta *c) {
    for (int i = 0; i < c->warp_count; i++) {
        warp *w = &c->warps[i];
        not_ready(c->grid->on, w);
        CALL_HOOK(cp_async_warp_end, w);
        CALL_HOOK(bulk_warp_end, w);
        CALL_HOOK(wgmma_warp_end, w);
        CALL_HOOK(tmem_warp_end, w);
        CALL_HOOK(pending_warp_end, w);
        CALL_HOOK(call_nodes_free, w);
    }
    CALL_HOOK(tcgen05_cta_end, c);
    CALL_HOOK(warpgroup_cta_end, c);
    CALL_HOOK(mbarrier_cta_end, c);
    CALL_HOOK(memory_cta_end, c);
    machine *m = c->grid->on;
    warps_free(c);
    spare_give(m, c->shared, c->shared_bytes + 64);
    if (c->async_view) spare_give(m, c->async_view, c->shared_bytes + 64);
    if (c->local) spare_give(m, c->local, local_bytes(&c->grid->launch));
    free(c);
}

static void end_cluster(machine *m, cluster *k) {
    for (int i = 0; i < k->size; i++) async_forget(m, k->ctas[i]); /* may fault: nothing is gone yet */
    for (int i = 0; i < k->size; i++) {
        for (cta **link = &m->ctas; *link; link = &(*link)->next)
            if (*link == k->ctas[i]) {
                *link = k->ctas[i]->next;
                break;
            }
        trace_cta(m, k->ctas[i]);
        free_cta(k->ctas[i]);
        m->resident--;
    }
    free(k->ctas);
    free(k);
}

static void free_grid(grid *g) {
    device_free(g->launch.parameters);
    if (g->workspace) device_free(g->workspace);
    forget_image(g);
    free(g);
}

static void end_grid(machine *m, grid *g) {
    g->finished = 1;
    CALL_HOOK(memory_grid_end, g);
    trace_grid(m, g);
    while (m->first_grid && m->first_grid->finished) {
        grid *gone = m->first_grid;
        m->first_grid = gone->next;
        if (!m->first_grid) m->last_grid = NULL;
        free_grid(gone);
    }
    wake_all(m); /* griddepcontrol.wait of the next one */
}

/* Only bulk stores can still touch the CTA's memory. */
static int drains(const machine *m, const cta *c) {
    uint32_t stores = 0;
    for (const async_op *op = NULL; (op = async_touching(m, c, op)) != NULL;) stores += op->drains;
    return stores == c->pending_ops;
}

/* The last warp of a CTA has exited. Its memory stays until its whole cluster has exited. */
static void end_cta(machine *m, warp *last) {
    cta *c = last->cta;
    grid *g = c->grid;
    while (m->fences == FENCES_HARDWARE && c->pending_ops && drains(m, c)) async_turn(m, 1);
    if (c->pending_ops) {
        const async_op *op = async_touching(m, c, NULL);
        fault(last, op ? op->in : NULL, -1,
              "the block has exited while %u asynchronous operation(s) can still touch its shared memory: %s",
              c->pending_ops, op ? op->what : "");
    }
    CALL_HOOK(mbarrier_cta_exit, last);
    CALL_HOOK(tmem_cta_exit, last);
    CALL_HOOK(warpgroup_cta_exit, last);
    occupy(c->sm, &g->launch, m->device, -1);
    if (!c->launch_dependents) g->triggered_ctas++;
    c->launch_dependents = 1;
    g->live_ctas--;
    g->done_ctas++;
    machine_progress(m);
    cluster *k = c->cluster;
    if (--k->live == 0) end_cluster(m, k);
    if (g->done_ctas == g->cta_count) end_grid(m, g);
}

/* ---- turns ---- */

/* Any runnable warp, mostly one that does not rest: the ISA sets no limit on how far a warp falls behind. With
 * EMULATE_FENCES=hardware, the warp that has waited longest: there no warp falls behind by more than a barrier phase.
 */
static warp *choose_warp(machine *m) {
    warp *chosen = m->ready[machine_below(m, (uint32_t)m->ready_count)];
    for (int i = 0; i < 4 && chosen->rests_until > m->now; i++)
        chosen = m->ready[machine_below(m, (uint32_t)m->ready_count)];
    for (int i = 0; m->fences == FENCES_HARDWARE && i < m->ready_count; i++)
        if (m->ready[i]->last_turn < chosen->last_turn) chosen = m->ready[i];
    chosen->last_turn = m->now;
    return chosen;
}

/* Whether a warp rests after its turn: never in half of the groups of four seeds, more or less often in the others. */
static int is_tired(machine *m) {
    uint64_t kind = m->seed / 4;
    return m->fences == FENCES_TEXT && kind % 2 == 0 && !machine_below(m, 8u << kind % 8);
}

static void warp_goes(machine *m) {
    warp *w = choose_warp(m);
    if (w->rests_until > m->now && m->timing.mode != TIMING_LAZY && async_turn(m, 1)) {
        m->idle = 0;
        return;
    }
    uint64_t before = m->progress;
    int polled = warp_turn(m, w, 1 + machine_below(m, m->timing.max_quantum));
    /* a turn that ends between a poll and its branch back is no evidence */
    if (m->progress != before)
        m->idle = 0;
    else if (polled)
        m->idle++;
    if (is_tired(m)) w->rests_until = m->now + (1u << machine_below(m, LONGEST_REST + 1));
    if (w->live && warp_can_run(w)) return;
    not_ready(m, w);
    if (!w->live && --w->cta->live_warps == 0) end_cta(m, w);
}

/* Every try_wait reaches its time limit. 0: there is none. */
static int expire_waits(machine *m) {
    int any = 0;
    for (cta *c = m->ctas; c; c = c->next)
        for (int i = 0; i < c->warp_count; i++) {
            warp *w = &c->warps[i];
            int here = 0;
            for (int j = 0; j < w->fragment_count; j++) {
                fragment *f = &w->fragments[j];
                if (f->state != FRAGMENT_PARKED || f->wait.kind != WAIT_MBARRIER) continue;
                f->wait.over = 1;
                f->state = FRAGMENT_RUNS;
                here = any = 1;
            }
            if (here) machine_ready(w);
        }
    return any;
}

/* Nothing runs. Ending try_waits may help, a limited number of times without progress. */
static int end_stall(machine *m) {
    if (m->progress != m->expired_at) m->expirations = 0;
    m->expired_at = m->progress;
    return m->expirations++ < EXPIRATIONS_BEFORE_GIVING_UP && expire_waits(m);
}

static void turn(machine *m) {
    m->now++;
    start_some(m, 0);
    int polls = m->idle > POLLS_BEFORE_FORCING + 4 * (uint64_t)m->ready_count;
    int operations_first = (machine_random(m) & 0xffff) < m->timing.op_chance;
    if (async_pending(m) && (operations_first || polls || !m->ready_count) && async_turn(m, polls || !m->ready_count)) {
        m->idle = 0;
        return;
    }
    if (m->ready_count && !(polls && start_some(m, 1)))
        warp_goes(m);
    else if (!m->ready_count && !start_some(m, 1) && !end_stall(m))
        report_deadlock(m);
    if (m->idle && m->idle % POLLS_BEFORE_EXPIRING == 0 && !async_pending(m)) expire_waits(m);
    if (m->idle > POLLS_BEFORE_GIVING_UP && !async_pending(m)) report_deadlock(m);
}

/* Frees what a fault has left, so that its modules can be unloaded. */
static void discard(machine *m) {
    CALL_HOOK(async_clear, m);
    while (m->ctas) {
        cta *c = m->ctas;
        m->ctas = c->next;
        cluster *k = c->cluster;
        k->ctas[c->rank] = NULL;
        free_cta(c);
        int left = 0;
        for (int i = 0; i < k->size; i++) left += k->ctas[i] != NULL;
        if (!left) {
            free(k->ctas);
            free(k);
        }
    }
    while (m->first_grid) {
        grid *g = m->first_grid;
        m->first_grid = g->next;
        CALL_HOOK(memory_grid_end, g);
        free_grid(g);
    }
    m->last_grid = NULL;
    m->resident = 0;
}

machine *machine_running;

static void not_mapped(const void *address) {
    if (!machine_running->running) abort(); /* the emulator's own fault */
    fault(machine_running->running, machine_running->instruction, -1, "address %p is not mapped in this process",
          address);
}

int machine_run(machine *m) {
    if (m->error) return -1;
    jmp_buf escape;
    guard_begin(not_mapped);
    m->escape = &escape;
    machine_running = m;
    if (!setjmp(escape))
        while (m->first_grid) turn(m);
    machine_running = NULL;
    m->escape = NULL;
    m->running = NULL;
    m->instruction = NULL;
    guard_end();
    if (m->error) discard(m);
    trace_write(m);
    return m->error ? -1 : 0;
}

machine *machine_create(const device *d) {
    machine *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->device = d;
    m->sm_count = d->sm_count;
    m->sms = calloc((size_t)m->sm_count, sizeof *m->sms);
    if (!m->sms) abort();
    for (int i = 0; i < m->sm_count; i++)
        m->sms[i] = (sm){.index = i,
                         .shared_free = d->shared_per_sm,
                         .threads_free = d->threads_per_sm,
                         .ctas_free = d->ctas_per_sm};
    for (int gpc = 0, i = 0; gpc < MOST_GPCS; gpc++)
        for (int end = i + d->gpcs[gpc]; i < end; i++) m->sms[i].gpc = gpc;
    machine_seed(m, 0);
    return m;
}

void machine_destroy(machine *m) {
    discard(m);
    spare_free(m);
    free(m->spares);
    CALL_HOOK(tmem_machine_end, m);
    trace_end(m);
    free(m->ready);
    free(m->sms);
    free(m->error);
    free(m);
}
