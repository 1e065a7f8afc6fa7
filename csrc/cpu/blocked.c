/* The cache-blocked product. A task is one rectangle of the output: SHORT_ROWS short rows by a chunk of long rows.
 *
 *   for every K chunk
 *       pack the short rows into panels                      (L2)
 *       for every strip of long rows
 *           decode the strip                                 (L1)
 *           sums of the strip by all panels += products      (registers)
 *   epilogue of the rectangle
 *
 * Nothing is shared between tasks, and an element's sum is formed in the order of K whatever the chunk it falls in, so
 * its bits do not depend on the number of threads. */
#include "common/error.h"
#include "cpu/gemm.h"
#include "cpu/threads.h"

enum { MAX_LONG_ROWS = 512, LONG_ROWS_MULTIPLE = 32 };

typedef struct blocked {
    const gemm_problem *problem;
    const float *row_scale;
    const cpu_kernel *kernel;
    int64_t short_tasks, long_tasks, long_rows; /* rectangles along each side, and the long rows of one */
    int64_t tasks;
    int threads;
    size_t panels_bytes, scratch_bytes; /* of one thread */
    char *scratch;
} blocked;

static void run_task(void *context, int64_t task, int thread) {
    const blocked *g = context;
    const gemm_problem *p = g->problem;
    const cpu_kernel *kernel = g->kernel;
    int64_t batch = task / (g->short_tasks * g->long_tasks);
    int64_t short0 = task / g->long_tasks % g->short_tasks * SHORT_ROWS, long0 = task % g->long_tasks * g->long_rows;
    roles r = choose_roles(p, batch);
    int64_t short_rows = min_int(SHORT_ROWS, r.short_side.rows - short0);
    int64_t long_rows = min_int(g->long_rows, r.long_side.rows - long0);
    int panel_count = (int)((short_rows + kernel->lanes - 1) / kernel->lanes);

    char *panels = g->scratch + (size_t)thread * g->scratch_bytes, *strip = panels + g->panels_bytes;
    float *sums = (float *)(strip + kernel->strip_bytes);

    for (int64_t block = 0; block < p->k / 16; block += kernel->chunk_blocks) {
        int64_t blocks = min_int(kernel->chunk_blocks, p->k / 16 - block);
        for (int i = 0; i < panel_count; i++)
            kernel->pack_panel(panels + (size_t)i * kernel->panel_bytes, &r.short_side, short0 + i * kernel->lanes,
                               block, blocks);
        for (int64_t row = 0; row < long_rows; row += kernel->strip_rows) {
            kernel->decode_strip(strip, &r.long_side, long0 + row, block, blocks);
            kernel->tile(sums + row * SUMS_PITCH, strip, panels, panel_count, blocks, block == 0);
        }
    }
    sums_tile t = {sums, short0, long0, short_rows, long_rows, 1, SUMS_PITCH, g->row_scale};
    if (r.swap_ab) t = (sums_tile){sums, long0, short0, long_rows, short_rows, SUMS_PITCH, 1, g->row_scale};
    kernel->epilogue(p, batch, t);
}

/* Everything but the scratch space. */
static blocked lay_out(const gemm_problem *p, const cpu_kernel *kernel, int threads) {
    blocked g = {.problem = p, .kernel = kernel};
    roles r = choose_roles(p, 0);
    g.short_tasks = (r.short_side.rows + SHORT_ROWS - 1) / SHORT_ROWS;
    /* Some four tasks a thread even out their speeds; fewer rows a task pack the short side more often. */
    int64_t rows_wanted = r.long_side.rows * g.short_tasks * p->l / (4 * threads);
    int64_t multiple = round_up(LONG_ROWS_MULTIPLE, kernel->strip_rows);
    g.long_rows = min_int(round_up(rows_wanted + 1, multiple), MAX_LONG_ROWS / multiple * multiple);
    g.long_tasks = (r.long_side.rows + g.long_rows - 1) / g.long_rows;

    g.tasks = p->l * g.short_tasks * g.long_tasks;
    g.threads = (int)min_int(threads, g.tasks);

    g.panels_bytes = (size_t)((SHORT_ROWS + kernel->lanes - 1) / kernel->lanes) * kernel->panel_bytes;
    size_t sums_bytes = (MAX_LONG_ROWS + LONG_ROWS_MULTIPLE) * SUMS_PITCH * sizeof(float);
    g.scratch_bytes = g.panels_bytes + kernel->strip_bytes + sums_bytes;
    return g;
}

size_t blocked_scratch(const gemm_problem *p, const cpu_kernel *kernel, int threads) {
    const blocked g = lay_out(p, kernel, threads);
    return g.scratch_bytes * (size_t)g.threads;
}

nvfp4_status blocked_gemm(const gemm_problem *p, const float *row_scale, const cpu_kernel *kernel, int threads) {
    blocked g = lay_out(p, kernel, threads);
    g.row_scale = row_scale;
    const size_t bytes = g.scratch_bytes * (size_t)g.threads;
    g.scratch = scratch(bytes);
    if (!g.scratch) return fail(NVFP4_OUT_OF_MEMORY, "gemm: no %zu bytes of scratch for %d threads", bytes, g.threads);
    parallel_for(g.threads, g.tasks, run_task, &g);
    return NVFP4_OK;
}
