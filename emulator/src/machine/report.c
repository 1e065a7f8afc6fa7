/* Messages: faults, deadlocks and remarks. */
#define _GNU_SOURCE /* open_memstream, strdup */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "machine/simt.h"

_Noreturn static void stop(machine *m, char *text) {
    free(m->error);
    m->error = text;
    longjmp(*(jmp_buf *)m->escape, 1);
}

static void print_place(FILE *out, const warp *w, const instr *in, int lane) {
    if (w) {
        const cta *c = w->cta;
        fprintf(out, "kernel %s, block (%u,%u,%u), warp %d", function_title(c->grid->launch.entry->function), c->id[0],
                c->id[1], c->id[2], w->index);
        if (lane >= 0) fprintf(out, " lane %d (thread %d)", lane, w->index * WARP_LANES + lane);
    } else {
        fprintf(out, "a block that has exited");
    }
    if (in) {
        const module *in_module = w ? w->cta->grid->launch.entry->in : NULL;
        fprintf(out, ", %s:%d `%s`", in_module ? in_module->file : "line", in->line, in->text);
    }
    fprintf(out, ": ");
}

void fault(warp *w, const instr *in, int lane, const char *message, ...) {
    machine *m = w ? machine_of(w) : machine_running;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out || !m) abort();
    print_place(out, w, in, lane);
    va_list arguments;
    va_start(arguments, message);
    vfprintf(out, message, arguments);
    va_end(arguments);
    fclose(out);
    stop(m, text);
}

/* Numbers, by their bits: "0-3, 7". */
static void print_set(FILE *out, uint32_t set) {
    const char *between = "";
    for (int i = 0; i < 32; i++) {
        if (!(set >> i & 1)) continue;
        int first = i;
        while (i < 31 && set >> (i + 1) & 1) i++;
        fprintf(out, "%s%d", between, first);
        if (i > first) fprintf(out, "-%d", i);
        between = ", ";
    }
}

static void print_barrier(FILE *out, const cta *c, uint32_t id) {
    const named_barrier *b = &c->barriers[id];
    fprintf(out, "waits at barrier %u: phase %llu, %u of %u warps have arrived", id, (unsigned long long)b->phase,
            b->arrived, b->expected);
    if (b->warps) fprintf(out, " (");
    print_set(out, b->warps);
    if (b->warps) fprintf(out, ")");
    for (int i = 0; i < c->warp_count; i++)
        if (b->partial >> i & 1) fprintf(out, ", of warp %d only lanes %08x of %08x", i, b->lanes[i], c->warps[i].live);
}

static void print_cluster_barrier(FILE *out, const cluster *k) {
    fprintf(out, "waits at the cluster's barrier: phase %llu, %u of %u threads have arrived, %u have exited",
            (unsigned long long)k->barrier_phase, k->barrier_arrived, k->threads, k->exited_threads);
    for (int rank = 0; rank < k->size; rank++) {
        const cta *c = k->ctas[rank];
        uint32_t arrived = 0;
        for (int i = 0; i < c->warp_count; i++) FOR_LANES(lane, c->warps[i].cluster_arrived)
        arrived |= (uint32_t)(c->warps[i].cluster_phase[lane] == k->barrier_phase) << i;
        fprintf(out, "%s CTA %d: %s", rank ? ";" : " (arrived, of", rank, arrived ? "warps " : "none");
        print_set(out, arrived);
    }
    fprintf(out, ")");
}

static void print_wait(FILE *out, const warp *w, const fragment *f) {
    const wait_note *n = &f->wait;
    const cta *c = w->cta;
    char barrier[512];
    switch (n->kind) {
    case WAIT_NOTHING:
        fprintf(out, "polls");
        break;
    case WAIT_LANES:
        fprintf(out, "waits for lanes %08x of its warp to come here", (uint32_t)n->a & ~f->lanes);
        break;
    case WAIT_BARRIER:
        print_barrier(out, c, (uint32_t)n->a);
        break;
    case WAIT_CLUSTER:
        print_cluster_barrier(out, c->cluster);
        break;
    case WAIT_MBARRIER:
        mbarrier_describe(c, (uint32_t)n->a & ((1u << RANK_SHIFT) - 1), barrier, sizeof barrier);
        fprintf(out, "waits for %llu at the mbarrier at 0x%llx: %s", (unsigned long long)n->b, (unsigned long long)n->a,
                barrier);
        break;
    case WAIT_ASYNC:
        fprintf(out, "waits until at most %llu group(s) of its copies are under way", (unsigned long long)n->a);
        break;
    case WAIT_TMEM:
        fprintf(out, "waits for %llu columns of tensor memory", (unsigned long long)n->a);
        break;
    case WAIT_GRID:
        fprintf(out, "waits for the grid before it to finish");
        break;
    }
}

/* Lines of a deadlock report. */
enum { MOST_LINES = 48 };

void report_deadlock(machine *m) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) abort();
    int lines = 0, left_out = 0;
    fprintf(out, m->ready_count ? "deadlock: warps do nothing but poll, and nothing is under way"
                                : "deadlock: no warp can go on and nothing is under way");
    if (!m->ctas)
        fprintf(out, "; the next cluster of %s does not fit on the device",
                function_title(m->first_grid->launch.entry->function));
    for (const cta *c = m->ctas; c; c = c->next)
        for (int i = 0; i < c->warp_count; i++) {
            const warp *w = &c->warps[i];
            for (int j = 0; w->live && j < w->fragment_count; j++) {
                const fragment *f = &w->fragments[j];
                const instr *in = &f->function->code[f->pc];
                if (lines++ >= MOST_LINES) {
                    left_out++;
                    continue;
                }
                fprintf(out, "\n  kernel %s, block (%u,%u,%u), warp %d lanes %08x, %s:%d `%s`: ",
                        function_title(c->grid->launch.entry->function), c->id[0], c->id[1], c->id[2], w->index,
                        f->lanes, c->grid->launch.entry->in->file, in->line, in->text);
                print_wait(out, w, f);
            }
        }
    if (left_out) fprintf(out, "\n  and %d more", left_out);
    fclose(out);
    stop(m, text);
}

void remark_once(machine *m, const char *key, const char *message, ...) {
    static const char *said[64];
    static int count;
    (void)m;
    for (int i = 0; i < count; i++)
        if (!strcmp(said[i], key)) return;
    if (count < 64) said[count++] = key;
    va_list arguments;
    va_start(arguments, message);
    fprintf(stderr, "emulator: ");
    vfprintf(stderr, message, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
}
