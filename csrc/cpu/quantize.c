/* Quantization and back, plain, fused and of groups: which kernel, which rows a task has, padding.
 *
 * In the 128x4 layout a task has the 16 rows r, r + 32, r + 64, r + 96 of four neighbours r. Their scales are 64 bytes
 * of each 512, so no two threads write to one cache line. Tasks of groups have such rows of a group in both layouts. */
#include "cpu/quantize.h"

#include "common/group_blocks.h"
#include "cpu/threads.h"

enum { LINEAR_TASK_ROWS = 4, SWIZZLED_TASK_ROWS = 16, TASKS_OF_BLOCK = SCALE_BLOCK_ROWS / SWIZZLED_TASK_ROWS };

typedef struct job {
    const quantize_problem *p;
    const norm_problem *norm; /* NULL: not rms_norm */
    void (*row)(const quantize_problem *p, row_at at);
    void (*norm_row)(const norm_problem *p, row_at at);
    int64_t tasks; /* of a batch */
    int pads;      /* writes scales */
} job;

const quantize_kernel *quantize_kernel_for(cpu_isa isa) {
#if defined(__x86_64__)
    if (isa >= CPU_AVX512VNNI) return &quantize_avx512;
    if (isa == CPU_AVX2) return &quantize_avx2;
#endif
    (void)isa;
    return &quantize_portable;
}

/* Writes zeros to the padding among the scales of the 16 rows from `first` on. */
static void pad_rows(const quantize_problem *p, uint8_t *scales, int64_t first) {
    for (int64_t column = 0; column < p->k / BLOCK; column += 4) {
        uint8_t *scale = scales + scale_offset(NVFP4_128X4, p->scale_pitch, first, column);
        if (first + 99 < p->rows)
            __builtin_prefetch(scale, 1); /* 20 % in all: else the first row's stores miss one after another */
        else
            memset(scale, 0, 64);
    }
}

static void run_task(void *context, int64_t task, int thread) {
    (void)thread;
    const job *j = context;
    const quantize_problem *p = j->p;
    int64_t batch = task / j->tasks, t = task % j->tasks;
    int swizzled = p->scale_layout == NVFP4_128X4, rows = swizzled ? SWIZZLED_TASK_ROWS : LINEAR_TASK_ROWS;
    int64_t first = swizzled ? t / 8 * 128 + t % 8 * 4 : t * LINEAR_TASK_ROWS;
    if (j->pads && swizzled) pad_rows(p, p->scale + batch * p->scale_batch, first);
    for (int i = 0; i < rows; i++) {
        int64_t row = swizzled ? first + i / 4 * 32 + i % 4 : first + i;
        if (row >= p->rows) continue;
        if (j->norm)
            j->norm_row(j->norm, row_of(p, batch, row, row));
        else
            j->row(p, row_of(p, batch, row, row));
    }
}

/* A thread should find some 100 us of work. */
static int threads_worth(const quantize_problem *p, int threads) {
    const int64_t worth = 1 + p->rows * p->k * p->l / (1 << 19);
    return (int)min_int(threads > 0 ? threads : threads_available(), worth);
}

static void run(job j, int threads) {
    const quantize_problem *p = j.p;
    j.tasks = p->scale_layout == NVFP4_128X4 ? (p->rows + 127) / 128 * 8
                                             : (p->rows + LINEAR_TASK_ROWS - 1) / LINEAR_TASK_ROWS;
    parallel_for(threads_worth(p, threads), p->l * j.tasks, run_task, &j);
}

void cpu_quantize(const quantize_problem *p, cpu_isa isa, int threads) {
    run((job){.p = p, .row = quantize_kernel_for(isa)->quantize, .pads = 1}, threads);
}

void cpu_dequantize(const quantize_problem *p, cpu_isa isa, int threads) {
    run((job){.p = p, .row = quantize_kernel_for(isa)->dequantize}, threads);
}

void cpu_rms_norm_quantize(const norm_problem *p, cpu_isa isa, int threads) {
    run((job){.p = &p->q, .norm = p, .norm_row = quantize_kernel_for(isa)->rms_norm, .pads = 1}, threads);
}

/* ---- rows in the order of their groups ---- */

typedef struct grouped_job {
    const grouped_quantize_problem *p;
    const quantize_kernel *kernel;
    int64_t begin[NVFP4_MAX_GROUPS + 1]; /* the first row of each group, and the end of the last */
    int64_t block[NVFP4_MAX_GROUPS + 1]; /* its first block of 128 rows */
} grouped_job;

static void find_groups(grouped_job *j) {
    const grouped_quantize_problem *p = j->p;
    for (int32_t e = 0; e < p->groups; e++) {
        const int64_t begin = j->begin[e], end = p->ends ? min_int(p->ends[e], p->q.rows) : p->q.rows;
        j->begin[e + 1] = max_int(begin, end);
        j->block[e + 1] = j->block[e] + ceil_div(j->begin[e + 1] - begin, SCALE_BLOCK_ROWS);
        if (!p->q.scale_rows) continue;
        p->q.scale_rows[e] = (int32_t)(p->q.scale_layout == NVFP4_LINEAR ? begin : j->block[e] * SCALE_BLOCK_ROWS);
    }
}

/* The group that has a block. */
static int32_t group_of(const grouped_job *j, int64_t block) {
    int32_t first = 0, last = j->p->groups; /* block[first] <= block < block[last] */
    while (last - first > 1) {
        const int32_t middle = first + (last - first) / 2;
        if (j->block[middle] <= block)
            first = middle;
        else
            last = middle;
    }
    return first;
}

/* The rows of one group as a problem of their own. */
static grouped_quantize_problem problem_of_group(const grouped_job *j, int32_t e) {
    grouped_quantize_problem p = *j->p;
    quantize_problem *q = &p.q;
    const int64_t first = j->begin[e];
    q->rows = j->begin[e + 1] - first;
    q->data += first * q->data_pitch;
    q->scale += (q->scale_layout == NVFP4_LINEAR ? first : j->block[e]) * q->scale_pitch;
    if (q->global_by == GLOBAL_BY_GROUP) {
        q->global_by = GLOBAL_BY_CALL;
        q->global_scale += e;
    }
    if (p.rows) {
        p.rows += first;
        return p;
    }
    q->x = (char *)q->x + first * q->x_pitch;
    p.up = p.up ? (const char *)p.up + first * p.up_pitch : NULL;
    if (q->global_by == GLOBAL_BY_ROW) q->global_scale += first;
    return p;
}

/* A row of NaN: scales NaN, all codes 0. */
static void write_nan(const quantize_problem *p, row_at at) {
    memset(at.data, 0, (size_t)p->k / 2);
    for (int64_t column = 0; column < p->k / BLOCK; column++)
        at.scale[scale_offset(p->scale_layout, p->scale_pitch, at.row, column)] = 0x7F;
    pad_columns(p, at);
}

static void write_row(const grouped_quantize_problem *p, const quantize_kernel *kernel, int64_t batch, int64_t row) {
    const int64_t from = p->rows ? p->rows[row] : row;
    if (p->rows && (from < 0 || from >= p->x_rows)) {
        write_nan(&p->q, (row_at){.row = row, .data = p->q.data + row * p->q.data_pitch, .scale = p->q.scale});
        return;
    }
    row_at at = row_of(&p->q, batch, row, from);
    at.up = p->up ? (const char *)p->up + batch * p->up_batch + row * p->up_pitch : NULL;
    if (p->activation == NO_ACTIVATION)
        kernel->quantize(&p->q, at);
    else
        kernel->gated(p, at);
}

static void run_group_task(void *context, int64_t task, int thread) {
    (void)thread;
    const grouped_job *j = context;
    const int64_t blocks = j->block[j->p->groups], t = task % (blocks * TASKS_OF_BLOCK);
    const int64_t batch = task / (blocks * TASKS_OF_BLOCK), block = t / TASKS_OF_BLOCK;
    const int32_t group = group_of(j, block);
    const grouped_quantize_problem p = problem_of_group(j, group);
    const int64_t first = (block - j->block[group]) * SCALE_BLOCK_ROWS + t % TASKS_OF_BLOCK * 4;
    if (p.q.scale_layout == NVFP4_128X4) pad_rows(&p.q, p.q.scale + batch * p.q.scale_batch, first);
    for (int i = 0; i < SWIZZLED_TASK_ROWS; i++) {
        const int64_t row = first + i / 4 * 32 + i % 4;
        if (row < p.q.rows) write_row(&p, j->kernel, batch, row);
    }
}

void cpu_grouped_quantize(const grouped_quantize_problem *p, cpu_isa isa, int threads) {
    grouped_job j = {.p = p, .kernel = quantize_kernel_for(isa)};
    find_groups(&j);
    const int64_t tasks = p->q.l * j.block[p->groups] * TASKS_OF_BLOCK;
    parallel_for(threads_worth(&p->q, threads), tasks, run_group_task, &j);
}
