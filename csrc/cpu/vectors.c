/* The product with few short rows (one: a matrix times a vector), bound by reading the long operand: the short rows
 * are packed once, then every long row is read once. A task is a group of long rows at one batch index. */
#include "../error.h"
#include "gemm.h"
#include "threads.h"

enum { TASK_ROWS = 32 };

typedef struct vectors {
    const gemm_problem *problem;
    const cpu_kernel *kernel;
    int64_t tasks; /* of one batch index */
    char *packed;
    size_t vector_bytes;
    int count;
} vectors;

static void pack(void *context, int64_t task, int thread) {
    (void)thread;
    const vectors *g = context;
    roles r = choose_roles(g->problem, task / g->count);
    g->kernel->pack_vector(g->packed + (size_t)task * g->vector_bytes, &r.short_side, task % g->count,
                           g->problem->k / 16);
}

static void run_task(void *context, int64_t task, int thread) {
    (void)thread;
    const vectors *g = context;
    int64_t batch = task / g->tasks, row0 = task % g->tasks * TASK_ROWS;
    roles r = choose_roles(g->problem, batch);
    int64_t rows = least(TASK_ROWS, r.long_side.rows - row0);
    const char *packed = g->packed + (size_t)(batch * g->count) * g->vector_bytes;
    float sums[TASK_ROWS * MAX_VECTORS];
    for (int64_t i = 0; i < rows; i++)
        g->kernel->dots(sums + i * g->count, &r.long_side, row0 + i, packed, g->count, g->problem->k / 16);
    sums_tile t = {sums, 0, row0, g->count, rows, 1, g->count};
    if (r.swapped) t = (sums_tile){sums, row0, 0, rows, g->count, g->count, 1};
    g->kernel->epilogue(g->problem, batch, t);
}

nvfp4_status vectors_gemm(const gemm_problem *p, const cpu_kernel *kernel, int threads) {
    roles r = choose_roles(p, 0);
    vectors g = {.problem = p, .kernel = kernel, .count = (int)r.short_side.rows};
    g.tasks = (r.long_side.rows + TASK_ROWS - 1) / TASK_ROWS;
    g.vector_bytes = kernel->vector_bytes(p->k / 16);
    size_t bytes = g.vector_bytes * (size_t)(p->l * g.count);
    g.packed = scratch(bytes);
    if (!g.packed) return fail(NVFP4_OUT_OF_MEMORY, "gemm: no %zu bytes of scratch", bytes);
    parallel_for(threads, p->l * g.count, pack, &g);
    parallel_for(threads, p->l * g.tasks, run_task, &g);
    return NVFP4_OK;
}
