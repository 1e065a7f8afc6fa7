/* Quantization and back, plain and fused: which kernel, which rows a task has, padding.
 *
 * In the 128x4 layout a task has the 16 rows r, r + 32, r + 64, r + 96 of four neighbours r. Their scales are 64 bytes
 * of each 512, so no two threads write to one cache line. */
#include "cpu/quantize.h"

#include "cpu/threads.h"

enum { LINEAR_TASK_ROWS = 4, SWIZZLED_TASK_ROWS = 16 };

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

static void run_task(void *context, int64_t task, int thread) {
    (void)thread;
    const job *j = context;
    const quantize_problem *p = j->p;
    int64_t batch = task / j->tasks, t = task % j->tasks;
    int swizzled = p->scale_layout == NVFP4_128X4, rows = swizzled ? SWIZZLED_TASK_ROWS : LINEAR_TASK_ROWS;
    int64_t first = swizzled ? t / 8 * 128 + t % 8 * 4 : t * LINEAR_TASK_ROWS;
    for (int64_t column = 0; j->pads && swizzled && column < p->k / BLOCK; column += 4) {
        uint8_t *scale = row_of(p, batch, first).scale + scale_offset(NVFP4_128X4, p->scale_pitch, first, column);
        if (first + 99 < p->rows)
            __builtin_prefetch(scale, 1); /* 20 % in all: else the first row's stores miss one after another */
        else
            memset(scale, 0, 64);
    }
    for (int i = 0; i < rows; i++) {
        int64_t row = swizzled ? first + i / 4 * 32 + i % 4 : first + i;
        if (row >= p->rows) continue;
        if (j->norm)
            j->norm_row(j->norm, row_of(p, batch, row));
        else
            j->row(p, row_of(p, batch, row));
    }
}

/* A thread should find some 100 us of work. */
static void run(job j, int threads) {
    const quantize_problem *p = j.p;
    int64_t worth = 1 + p->rows * p->k * p->l / (1 << 19);
    j.tasks = p->scale_layout == NVFP4_128X4 ? (p->rows + 127) / 128 * 8
                                             : (p->rows + LINEAR_TASK_ROWS - 1) / LINEAR_TASK_ROWS;
    if (threads <= 0) threads = threads_available();
    parallel_for(threads < worth ? threads : (int)worth, p->l * j.tasks, run_task, &j);
}

void cpu_quantize(const quantize_problem *p, cpu_isa isa, int threads) {
    run((job){.p = p, .row = quantize_kernel_for(isa)->quantize, .pads = 1}, threads);
}

void cpu_dequantize(const quantize_problem *p, cpu_isa isa, int threads) {
    run((job){.p = p, .row = quantize_kernel_for(isa)->dequantize}, threads);
}

void cpu_silu_mul_quantize(const quantize_problem *p, cpu_isa isa, int threads) {
    run((job){.p = p, .row = quantize_kernel_for(isa)->silu_mul, .pads = 1}, threads);
}

void cpu_rms_norm_quantize(const norm_problem *p, cpu_isa isa, int threads) {
    run((job){.p = &p->q, .norm = p, .norm_row = quantize_kernel_for(isa)->rms_norm, .pads = 1}, threads);
}
