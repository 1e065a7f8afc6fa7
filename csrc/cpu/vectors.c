/* The product with few short rows; with one it is a matrix times a vector. Reading the long operand bounds it, so the
 * short rows are packed once, then every long row is read once. A task is a group of long rows at one batch index. */
#include "common/error.h"
#include "cpu/gemm.h"
#include "cpu/threads.h"

enum { MAX_TASK_ROWS = 128 }; /* as many as share cache lines of scales in the 128x4 layout */

typedef struct vectors {
    const gemm_problem *problem;
    const cpu_kernel *kernel;
    int64_t task_rows, tasks; /* rows of a task; tasks of one batch index */
    char *packed;
    size_t vector_bytes;
    int count;
} vectors;

static void pack(void *context, int64_t task, int thread) {
    (void)thread;
    const vectors *g = context;
    roles r = choose_roles(g->problem, task / g->count);
    g->kernel->vectors->pack_vector(g->packed + (size_t)task * g->vector_bytes, &r.short_side, task % g->count,
                                    g->problem->k / 16);
}

static void run_task(void *context, int64_t task, int thread) {
    (void)thread;
    const vectors *g = context;
    int64_t batch = task / g->tasks, row0 = task % g->tasks * g->task_rows;
    roles r = choose_roles(g->problem, batch);
    int64_t rows = min_int(g->task_rows, r.long_side.rows - row0);
    const char *packed = g->packed + (size_t)(batch * g->count) * g->vector_bytes;
    float sums[MAX_TASK_ROWS * MAX_VECTORS];
    g->kernel->vectors->dots(sums, &r.long_side, row0, rows, packed, g->count, g->problem->k / 16);
    sums_tile t = {sums, 0, row0, g->count, rows, 1, g->count, NULL};
    if (r.swap_ab) t = (sums_tile){sums, row0, 0, rows, g->count, g->count, 1, NULL};
    g->kernel->epilogue(g->problem, batch, t);
}

nvfp4_status vectors_gemm(const gemm_problem *p, const cpu_kernel *kernel, int threads) {
    roles r = choose_roles(p, 0);
    vectors g = {.problem = p, .kernel = kernel, .count = (int)r.short_side.rows};
    g.task_rows = r.long_side.rows * p->l >= (int64_t)threads * 4 * MAX_TASK_ROWS ? MAX_TASK_ROWS : 16;
    g.tasks = (r.long_side.rows + g.task_rows - 1) / g.task_rows;
    g.vector_bytes = kernel->vectors->vector_bytes(p->k / 16);
    size_t bytes = g.vector_bytes * (size_t)(p->l * g.count);
    g.packed = scratch(bytes);
    if (!g.packed) return fail(NVFP4_OUT_OF_MEMORY, "gemm: no %zu bytes of scratch", bytes);
    parallel_for(threads, p->l * g.count, pack, &g);
    parallel_for(threads, p->l * g.tasks, run_task, &g);
    return NVFP4_OK;
}
