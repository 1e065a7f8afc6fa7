/* RMS norm and SiLU with quantisation behind them, in fp32. The exact operations, which the GPU repeats so that its
 * bytes are the same; divisions and square roots are IEEE's, fma rounds once and nothing else is contracted:
 *
 *   rms_norm   h = x, or x + residual rounded to their type, which replaces the residual
 *              s[j], j < 256: s = fma(h, h, s) over the values of blocks (of 16) j, j + 256, ... of the row, from 0
 *              s[j] = s[j] + s[j + n] for j < n; for n = 128, 64, ... 1
 *              y = (h * (1 / sqrt(s[0] / k + eps))) * weight
 *   silu_mul   y = silu(gate) * up, silu by kernels/quantize/exponential.h
 *   both       y to NVFP4 by cpu/quantize.h */
#include "cpu/cpu.h"
#include "cpu/quantize.h"
#include "kernels/quantize/exponential.h"

enum { PARTIALS = 256, BLOCK = 16 };

/* Block `column` of a row of h. The first call for it adds the residual. */
static inline void load_normed(float h[BLOCK], const norm_problem *p, const char *x, char *residual, int64_t column,
                               int first) {
    int32_t type = p->q.x_type;
    int64_t at = column * BLOCK * type_size(type);
    load_floats(h, !first && residual ? residual + at : x + at, type, BLOCK);
    if (!residual || !first) return;
    float old[BLOCK];
    load_floats(old, residual + at, type, BLOCK);
    for (int i = 0; i < BLOCK; i++) h[i] = h[i] + old[i];
    store_floats(residual + at, h, type, BLOCK);
    load_floats(h, residual + at, type, BLOCK);
}

static inline float sum_of_squares(const norm_problem *p, const char *x, char *residual) {
    float sum[PARTIALS] = {0}, h[BLOCK];
    for (int64_t column = 0; column < p->q.k / BLOCK; column++) {
        float *s = &sum[column % PARTIALS];
        load_normed(h, p, x, residual, column, 1);
        for (int i = 0; i < BLOCK; i++) *s = fmaf(h[i], h[i], *s);
    }
    for (int n = PARTIALS / 2; n > 0; n /= 2)
        for (int j = 0; j < n; j++) sum[j] = sum[j] + sum[j + n];
    return sum[0];
}

WITH_FMA static void norm_row(void *context, int64_t task, int thread) {
    (void)thread;
    const norm_problem *p = context;
    const quantize_problem *q = &p->q;
    quantized_row to = quantized_row_of(q, task);
    if (to.columns > 0) {
        const char *x = (const char *)q->x + to.batch * q->x_batch + to.row * q->x_pitch;
        char *residual =
            p->residual ? (char *)p->residual + to.batch * p->residual_batch + to.row * p->residual_pitch : NULL;
        float mean = sum_of_squares(p, x, residual) / (float)q->k + p->eps, inverse = 1.0f / sqrtf(mean);
        for (int64_t column = 0; column < to.columns; column++) {
            float y[BLOCK], weight[BLOCK];
            load_normed(y, p, x, residual, column, 0);
            load_floats(weight, (const char *)p->weight + column * BLOCK * type_size(p->weight_type), p->weight_type,
                        BLOCK);
            for (int i = 0; i < BLOCK; i++) y[i] = y[i] * inverse * weight[i];
            quantize_to(q, &to, column, y);
        }
    }
    pad_row(q, &to);
}

WITH_FMA static void silu_row(void *context, int64_t task, int thread) {
    (void)thread;
    const quantize_problem *q = context;
    quantized_row to = quantized_row_of(q, task);
    const char *gate = (const char *)q->x + to.batch * q->x_batch + to.row * q->x_pitch;
    const char *up = gate + q->k * type_size(q->x_type);
    for (int64_t column = 0; column < to.columns; column++) {
        float y[BLOCK], factor[BLOCK];
        int64_t at = column * BLOCK * type_size(q->x_type);
        load_floats(y, gate + at, q->x_type, BLOCK);
        load_floats(factor, up + at, q->x_type, BLOCK);
        for (int i = 0; i < BLOCK; i++) y[i] = silu(y[i]) * factor[i];
        quantize_to(q, &to, column, y);
    }
    pad_row(q, &to);
}

void cpu_rms_norm_quantize(const norm_problem *p, int threads) {
    parallel_for(worthwhile_threads(&p->q, threads), p->q.l * padded_rows(&p->q), norm_row, (void *)p);
}

void cpu_silu_mul_quantize(const quantize_problem *q, int threads) {
    parallel_for(worthwhile_threads(q, threads), q->l * padded_rows(q), silu_row, (void *)q);
}
