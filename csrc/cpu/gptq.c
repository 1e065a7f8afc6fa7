/* A block of GPTQ on the CPU: rows by the definition in cpu/gptq.h, and threads. */
#include "cpu/gptq.h"

#include "common/math.h"
#include "cpu/threads.h"

enum { TASK_ROWS = 64, ROWS_WORTH_A_THREAD = 640 }; /* a row takes 0.15 us */

typedef struct gptq_candidate {
    uint8_t scale, data[8];
    float error[BLOCK], sum;
} gptq_candidate;

static inline gptq_candidate round_columns(const float x[BLOCK], const gptq_factor *f, uint8_t scale, float g) {
    gptq_candidate c = {.scale = scale};
    const float d = e4m3_decode(scale) * g;
    const int has_codes = scale != 0 && scale != 0x7F;
    float t[BLOCK];
    memcpy(t, x, sizeof t);
    for (int j = 0; j < BLOCK; j++) {
        const int code = has_codes ? e2m1_encode(t[j] / d) : 0;
        c.data[j / 2] |= (uint8_t)(code << j % 2 * 4);
        c.error[j] = fmaf(-e2m1_decode(code), d, t[j]) * f->inverse[j];
        c.sum = fmaf(c.error[j], c.error[j], c.sum);
        for (int k = j + 1; k < BLOCK; k++) t[k] = fmaf(-c.error[j], f->u[j][k], t[k]);
    }
    return c;
}

WITH_FMA static void round_rows(const gptq_problem *p, int64_t first, int64_t end) {
    gptq_factor f;
    load_factor(&f, p);
    for (int64_t row = first; row < end; row++) {
        const float *x = gptq_row(p, row), g = gptq_global_scale(p, row);
        float amax = 0.0f;
        int nan = 0;
        for (int j = 0; j < BLOCK; j++) {
            nan |= isnan(x[j]);
            amax = fabsf(x[j]) > amax ? fabsf(x[j]) : amax;
        }
        const uint8_t nearest = nan ? 0x7F : amax == 0.0f ? 0 : e4m3_encode(amax / 6.0f / g);
        gptq_candidate best = round_columns(x, &f, nearest, g);
        float least = INFINITY;
        for (int offset = SEARCH_FIRST; offset <= SEARCH_LAST && !nan && amax > 0.0f; offset++) {
            const gptq_candidate c = round_columns(x, &f, searched_scale(nearest, offset), g);
            if (c.sum < least) best = c, least = c.sum;
        }
        memcpy(p->data + row * p->data_pitch, best.data, sizeof best.data);
        p->scale[row * p->scale_pitch] = best.scale;
        memcpy((char *)p->error + row * p->error_pitch, best.error, sizeof best.error);
    }
}

void portable_gptq(const gptq_problem *p, int64_t first, int64_t end) {
    round_rows(p, first, end);
}

typedef struct gptq_job {
    const gptq_problem *p;
    const quantize_kernel *kernel;
} gptq_job;

static void run_rows(void *context, int64_t task, int thread) {
    (void)thread;
    const gptq_job *j = context;
    j->kernel->gptq(j->p, task * TASK_ROWS, min_int((task + 1) * TASK_ROWS, j->p->rows));
}

void cpu_gptq_block(const gptq_problem *p, cpu_isa isa, int threads) {
    gptq_job j = {.p = p, .kernel = quantize_kernel_for(isa)};
    const int64_t worth = 1 + p->rows / ROWS_WORTH_A_THREAD;
    parallel_for((int)min_int(threads > 0 ? threads : threads_available(), worth), ceil_div(p->rows, TASK_ROWS),
                 run_rows, &j);
}
