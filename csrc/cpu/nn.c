/* The product A . B of 16-bit A: out[m][n] = sum over k of a[m][k] * b[k][n], where a scale belongs to 16 values along
 * n. A task is one rectangle of the output: up to NN_ROWS rows by NN_COLUMNS columns.
 *
 *   for every NN_CHUNK rows of b
 *       decode the task's columns of these rows                  (L2)
 *       for every strip of rows of a
 *           values of the strip as floats                        (L1)
 *           sums of the strip += products                        (registers)
 *   epilogue of the rectangle
 *
 * An element's sum is formed in the order of k whatever the chunk or the rectangle it falls in, so its bits depend
 * neither on the number of threads nor on M. */
#include "common/error.h"
#include "cpu/gemm.h"
#include "cpu/threads.h"

enum { NN_ROWS = 256, MIN_COLUMNS = 64 /* whole groups of 4 scales */ };

typedef struct nn {
    const gemm_problem *problem;
    const float *row_scale;
    const cpu_kernel *kernel;
    int64_t columns, column_tasks, row_tasks; /* columns of a rectangle; rectangles along each side */
    int64_t tasks;
    int threads;
    size_t scratch_bytes; /* of one thread */
    char *scratch;
} nn;

static void run_task(void *context, int64_t task, int thread) {
    const nn *g = context;
    const gemm_problem *p = g->problem;
    const int64_t batch = task / (g->row_tasks * g->column_tasks);
    const int64_t m0 = task / g->column_tasks % g->row_tasks * NN_ROWS, n0 = task % g->column_tasks * g->columns;
    const int64_t rows = min_int(NN_ROWS, p->m - m0), columns = min_int(g->columns, p->n - n0);
    const operand a = operand_a(p, batch), b = operand_b(p, batch);
    float *decoded = (float *)(g->scratch + (size_t)thread * g->scratch_bytes), *sums = decoded + NN_CHUNK * NN_PITCH;
    for (int64_t k = 0; k < p->k; k += NN_CHUNK) {
        const int64_t count = min_int(NN_CHUNK, p->k - k);
        g->kernel->nn_decode(decoded, &b, k, count, n0 / 16, columns / 16);
        g->kernel->nn_multiply(sums, &a, m0, rows, k, count, decoded, columns, k == 0);
    }
    g->kernel->epilogue(p, batch, (sums_tile){sums, m0, n0, rows, columns, NN_PITCH, 1, g->row_scale});
}

/* Everything but the scratch space. */
static nn lay_out(const gemm_problem *p, const cpu_kernel *kernel, int threads) {
    nn g = {.problem = p, .kernel = kernel, .columns = NN_COLUMNS, .row_tasks = (p->m + NN_ROWS - 1) / NN_ROWS};
    while (g.columns > MIN_COLUMNS && p->l * g.row_tasks * p->n / g.columns < 2 * threads) g.columns /= 2;
    g.column_tasks = (p->n + g.columns - 1) / g.columns;
    g.tasks = p->l * g.row_tasks * g.column_tasks;
    g.threads = (int)min_int(threads, g.tasks);
    const int64_t rows = round_up(min_int(NN_ROWS, p->m), kernel->strip_rows);
    g.scratch_bytes = (size_t)(NN_CHUNK + rows) * NN_PITCH * sizeof(float);
    return g;
}

size_t nn_scratch(const gemm_problem *p, const cpu_kernel *kernel, int threads) {
    const nn g = lay_out(p, kernel, threads);
    return g.scratch_bytes * (size_t)g.threads;
}

nvfp4_status nn_gemm(const gemm_problem *p, const float *row_scale, const cpu_kernel *kernel, int threads) {
    nn g = lay_out(p, kernel, threads);
    g.row_scale = row_scale;
    const size_t bytes = g.scratch_bytes * (size_t)g.threads;
    g.scratch = scratch(bytes);
    if (!g.scratch) return fail(NVFP4_OUT_OF_MEMORY, "gemm: no %zu bytes of scratch for %d threads", bytes, g.threads);
    parallel_for(g.threads, g.tasks, run_task, &g);
    return NVFP4_OK;
}
