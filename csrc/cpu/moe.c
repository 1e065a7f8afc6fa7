/* The steps around experts: gated activations, the sort of a router's choices by expert, and the sums of experts' rows.
 * The GPU's results are the same bits. */
#include "cpu/moe.h"

#include <string.h>

#include "cpu/threads.h"

static const moe_kernel *kernel_for(cpu_isa isa) {
#if defined(__x86_64__)
    if (isa >= CPU_AVX2) return &moe_avx2;
#endif
    (void)isa;
    return &moe_portable;
}

typedef struct job {
    const moe_kernel *kernel;
    const gated_problem *gated;
    const moe_combine_problem *combine;
} job;

/* Runs a task a row on as many threads as find some 100 us of work each. */
static void for_each_row(job j, int threads, int64_t rows, int64_t elements,
                         void (*body)(void *context, int64_t row, int thread)) {
    const int64_t worth = 1 + elements / (1 << 17);
    if (threads <= 0) threads = threads_available();
    parallel_for(threads < worth ? threads : (int)worth, rows, body, &j);
}

static void gated_task(void *context, int64_t row, int thread) {
    const job *j = context;
    (void)thread;
    j->kernel->gated(j->gated, row);
}

void cpu_gated(const gated_problem *p, cpu_isa isa, int threads) {
    const int64_t rows = p->l * p->rows;
    for_each_row((job){.kernel = kernel_for(isa), .gated = p}, threads, rows, rows * p->columns, gated_task);
}

static void combine_task(void *context, int64_t token, int thread) {
    const job *j = context;
    (void)thread;
    j->kernel->combine(j->combine, token);
}

void cpu_moe_combine(const moe_combine_problem *p, cpu_isa isa, int threads) {
    for_each_row((job){.kernel = kernel_for(isa), .combine = p}, threads, p->tokens,
                 p->tokens * p->per_token * p->columns, combine_task);
}

/* The expert of a token's j-th choice; -1: none here. */
static inline int32_t expert_of(const moe_route_problem *p, int64_t token, int64_t j) {
    const char *row = (const char *)p->ids + token * p->ids_pitch;
    const int64_t id = p->ids_type == NVFP4_INT64 ? ((const int64_t *)row)[j] : ((const int32_t *)row)[j];
    if (id < 0 || id >= p->ids_end) return -1;
    const int32_t expert = p->maps_ids ? p->expert_map[id] : (int32_t)id;
    return expert >= 0 && expert < p->experts ? expert : -1;
}

/* A counting sort: the choices of each expert, then the place of its next one. One thread: it takes less time than to
 * wake others. */
void cpu_moe_route(const moe_route_problem *p, int threads) {
    const int64_t tokens = p->per_token ? p->choices / p->per_token : 0;
    int32_t next[NVFP4_MOE_MAX_EXPERTS] = {0}, last[NVFP4_MOE_MAX_EXPERTS], total = 0, *places = p->places;
    (void)threads;
    /* A row that no choice takes: behind the last expert's, or a place whose id another thread has changed. */
    memset(p->rows, 0, (size_t)p->choices * sizeof *p->rows);
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t j = 0; j < p->per_token; j++) {
            const int32_t expert = expert_of(p, token, j);
            if (expert >= 0) next[expert]++;
        }
    for (int32_t e = 0; e < p->experts; e++) {
        const int32_t count = next[e];
        next[e] = total;
        total += count;
        p->ends[e] = last[e] = total;
    }
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t j = 0; j < p->per_token; j++) {
            /* Another thread may have changed an id since it was counted: its expert has no place left then. */
            const int32_t expert = expert_of(p, token, j);
            const int32_t place = expert < 0 || next[expert] == last[expert] ? -1 : next[expert]++;
            *places++ = place;
            if (place >= 0) p->rows[place] = (int32_t)token;
        }
}
