/* The trace, as JSON: a timeline of asynchronous operations and CTAs (Trace Event Format: ui.perfetto.dev),
 * instructions executed and bytes moved. The unit of time is a turn. */
#define _GNU_SOURCE /* open_memstream */
#include <stdio.h>
#include <stdlib.h>

#include "machine/simt.h"

struct trace {
    FILE *out;
    int events;
    char *kernels; /* JSON of the finished grids */
    size_t kernels_size;
    FILE *kernels_out;
    int kernel_count;
    struct rows *rows;            /* of grids that run: they may overlap */
    uint64_t time_base, cta_base; /* of the machine that writes to it now: see trace_move */
};

/* What the CTAs of a grid have moved. */
struct rows {
    struct rows *next;
    const grid *of;
    uint64_t count; /* see MOST_CTAS */
    char *text;
    size_t size;
    FILE *out;
    uint64_t traffic[TRAFFIC_COUNT];
};

enum { MOST_CTAS = 4096 }; /* rows of bytes by CTA that are kept of a grid */

static const char *const traffic_names[] = {
#define X(kind, text) text,
    TRAFFIC_KINDS(X)
#undef X
};

void trace_begin(machine *m, const char *path) {
    struct trace *t = calloc(1, sizeof *t);
    if (!t) abort();
    t->out = fopen(path, "w");
    if (!t->out) {
        fprintf(stderr, "emulator: EMULATE_TRACE: %s cannot be written\n", path);
        free(t);
        return;
    }
    t->kernels_out = open_memstream(&t->kernels, &t->kernels_size);
    if (!t->kernels_out) abort();
    fprintf(t->out, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [");
    m->trace = t;
    trace_write(m);
}

static void event(struct trace *t, const char *name, uint64_t start, uint64_t end, uint64_t process, int thread,
                  int line, uint64_t bytes) {
    fprintf(t->out,
            "%s\n{\"name\": \"%s\", \"ph\": \"X\", \"ts\": %llu, \"dur\": %llu, \"pid\": %llu, \"tid\": %d, "
            "\"args\": {\"line\": %d, \"bytes\": %llu}}",
            t->events++ ? "," : "", name, (unsigned long long)(t->time_base + start), (unsigned long long)(end - start),
            (unsigned long long)(t->cta_base + process), thread, line, (unsigned long long)bytes);
}

void trace_op(machine *m, const async_op *op) {
    if (!m->trace) return;
    event(m->trace, op->what, op->started_at, m->now, op->from ? op->from->serial : 0, op->by ? op->by->index : -1,
          op->in ? op->in->line : 0, op->bytes);
}

static void print_traffic(FILE *out, const uint64_t *traffic) {
    int first = 1;
    for (int k = 0; k < TRAFFIC_COUNT; k++) {
        if (!traffic[k]) continue;
        fprintf(out, "%s\"%s\": %llu", first ? "" : ", ", traffic_names[k], (unsigned long long)traffic[k]);
        first = 0;
    }
}

static struct rows *rows_of(struct trace *t, const grid *g) {
    struct rows *r = t->rows;
    while (r && r->of != g) r = r->next;
    if (r) return r;
    r = calloc(1, sizeof *r);
    if (!r) abort();
    r->of = g;
    r->out = open_memstream(&r->text, &r->size);
    if (!r->out) abort();
    r->next = t->rows;
    return t->rows = r;
}

static void free_rows(struct trace *t, const struct rows *gone) {
    for (struct rows **link = &t->rows; *link; link = &(*link)->next) {
        struct rows *r = *link;
        if (r != gone) continue;
        *link = r->next;
        fclose(r->out);
        free(r->text);
        free(r);
        return;
    }
}

void trace_cta(machine *m, const cta *c) {
    if (!m->trace) return;
    struct rows *r = rows_of(m->trace, c->grid);
    for (int k = 0; k < TRAFFIC_COUNT; k++) r->traffic[k] += c->traffic[k];
    if (r->count++ >= MOST_CTAS) return;
    fprintf(r->out, "%s\n  {\"cta\": %llu, \"block\": [%u, %u, %u], \"sm\": %d, \"bytes\": {", r->count > 1 ? "," : "",
            (unsigned long long)(m->trace->cta_base + c->serial), c->id[0], c->id[1], c->id[2], c->sm->index);
    print_traffic(r->out, c->traffic);
    fprintf(r->out, "}}");
}

typedef struct {
    const char *name;
    uint64_t warps, lanes;
} row;

static int by_name(const void *a, const void *b) {
    return strcmp(((const row *)a)->name, ((const row *)b)->name);
}

/* The counts of every function that the kernel reaches, by mnemonic; they start again at 0. Where grids of one kernel
 * overlap, the first that ends has the counts of both until then. */
static void print_instructions(FILE *out, const grid *g) {
    const entry *e = g->launch.entry;
    size_t length = 0, used = 0;
    for (int i = 0; i < e->function_count; i++) length += (size_t)e->functions[i]->length;
    row *rows = calloc(length + 1, sizeof *rows);
    if (!rows) abort();
    for (int i = 0; i < e->function_count; i++)
        for (int j = 0; j < e->functions[i]->length; j++) {
            instr *in = &e->functions[i]->code[j];
            if (in->executions) rows[used++] = (row){in->name, in->executions, in->lane_executions};
            in->executions = in->lane_executions = 0;
        }
    qsort(rows, used, sizeof *rows, by_name);
    int first = 1;
    for (size_t i = 0; i < used;) {
        row sum = rows[i++];
        for (; i < used && !strcmp(rows[i].name, sum.name); i++) {
            sum.warps += rows[i].warps;
            sum.lanes += rows[i].lanes;
        }
        fprintf(out, "%s\n  \"%s\": [%llu, %llu]", first ? "" : ",", sum.name, (unsigned long long)sum.warps,
                (unsigned long long)sum.lanes);
        first = 0;
    }
    free(rows);
}

void trace_launch(machine *m, const grid *g) {
    if (!m->trace) return;
    for (const grid *other = m->first_grid; other; other = other->next)
        if (other != g && other->launch.entry == g->launch.entry) return;
    const entry *e = g->launch.entry;
    for (int i = 0; i < e->function_count; i++)
        for (int j = 0; j < e->functions[i]->length; j++)
            e->functions[i]->code[j].executions = e->functions[i]->code[j].lane_executions = 0;
}

void trace_grid(machine *m, const grid *g) {
    struct trace *t = m->trace;
    if (!t) return;
    const launch *l = &g->launch;
    FILE *out = t->kernels_out;
    fprintf(out, "%s\n{\"kernel\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"cluster\": [%u, %u, %u],",
            t->kernel_count++ ? "," : "", l->entry->function->name, l->grid[0], l->grid[1], l->grid[2], l->block[0],
            l->block[1], l->block[2], l->cluster[0], l->cluster[1], l->cluster[2]);
    fprintf(out, "\n \"instructions\": {");
    print_instructions(out, g);
    fprintf(out, "},\n \"bytes\": {");
    struct rows *r = rows_of(t, g);
    print_traffic(out, r->traffic);
    fflush(r->out);
    fprintf(out, "},\n \"ctas\": [%s]}", r->text);
    free_rows(t, r);
}

/* Makes the file whole as it is now; more may follow. */
void trace_write(machine *m) {
    struct trace *t = m->trace;
    if (!t) return;
    fflush(t->kernels_out);
    long here = ftell(t->out);
    fprintf(t->out, "],\n\"kernels\": [%s]}\n", t->kernels);
    fflush(t->out);
    fseek(t->out, here, SEEK_SET);
}

void trace_move(machine *from, machine *to) {
    struct trace *t = from->trace;
    from->trace = NULL;
    to->trace = t;
    if (!t) return;
    while (t->rows) free_rows(t, t->rows);
    t->time_base += from->now;
    t->cta_base += from->cta_serial;
}

void trace_end(machine *m) {
    struct trace *t = m->trace;
    if (!t) return;
    trace_write(m);
    fclose(t->out);
    fclose(t->kernels_out);
    free(t->kernels);
    while (t->rows) free_rows(t, t->rows);
    free(t);
    m->trace = NULL;
}
