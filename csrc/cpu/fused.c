/* Rows of RMS norm and of gated activations with quantization behind them, in fp32. The exact operations, which the GPU
 * repeats so that its bytes are the same; divisions and square roots are IEEE's, fma rounds once and nothing else is
 * contracted:
 *
 *   rms_norm   h = x, or x + residual rounded to their type, which replaces the residual
 *              s[j], j < 256: s = fma(h, h, s) over the values of blocks (of 16) j, j + 256, ... of the row, from 0
 *              s[j] = s[j] + s[j + n] for j < n; for n = 128, 64, ... 1
 *              y = (h * (1 / sqrt(s[0] / k + eps))) * weight
 *   gated      y by common/gating.h; 1 for an absent up
 *   both       y to NVFP4 by cpu/quantize.h
 *
 * With round_steps both products of a norm are rounded to the type of x, one after the other, and so are the activation
 * and its product with up. */
#include "common/gating.h"
#include "cpu/quantize.h"

enum { PARTIALS = 256 };

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

static inline void round_to_type(float v[BLOCK], int32_t type) {
    char rounded[BLOCK * 4];
    store_floats(rounded, v, type, BLOCK);
    load_floats(v, rounded, type, BLOCK);
}

/* The activation of y, times up where there is one; each is rounded to the type of x. */
static inline void gate_in_steps(const grouped_quantize_problem *p, float y[BLOCK], const float *up, gating g) {
    const gating alone = gating_of(p->limit, p->alpha, 0);
    for (int i = 0; i < BLOCK; i++) y[i] = gated(p->activation, y[i], 1.0f, alone);
    round_to_type(y, p->q.x_type);
    if (!up) return;
    for (int i = 0; i < BLOCK; i++) y[i] = y[i] * factor_of_up(p->activation, up[i], g);
    round_to_type(y, p->q.x_type);
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

WITH_FMA static void rms_norm_row(const norm_problem *p, row_at at) {
    char *residual =
        p->residual ? (char *)p->residual + at.batch * p->residual_batch + at.row * p->residual_pitch : NULL;
    float mean = sum_of_squares(p, at.x, residual) / (float)p->q.k + p->eps, inverse = 1.0f / sqrtf(mean);
    for (int64_t column = 0; column < p->q.k / BLOCK; column++) {
        float y[BLOCK], weight[BLOCK];
        load_normed(y, p, at.x, residual, column, 0);
        load_floats(weight, (const char *)p->weight + column * BLOCK * type_size(p->weight_type), p->weight_type,
                    BLOCK);
        for (int i = 0; i < BLOCK; i++) y[i] = y[i] * inverse;
        if (p->q.round_steps) round_to_type(y, p->q.x_type);
        for (int i = 0; i < BLOCK; i++) y[i] = y[i] * weight[i];
        if (p->q.round_steps) round_to_type(y, p->q.x_type);
        quantize_to(&p->q, at, column, y);
    }
    pad_columns(&p->q, at);
}

WITH_FMA static void gated_row(const grouped_quantize_problem *p, row_at at) {
    const quantize_problem *q = &p->q;
    const gating g = gating_of(p->limit, p->alpha, at.up != NULL);
    for (int64_t column = 0; column < q->k / BLOCK; column++) {
        float y[BLOCK], up[BLOCK];
        int64_t from = column * BLOCK * type_size(q->x_type);
        load_floats(y, at.x + from, q->x_type, BLOCK);
        if (at.up) load_floats(up, at.up + from, q->x_type, BLOCK);
        if (p->q.round_steps)
            gate_in_steps(p, y, at.up ? up : NULL, g);
        else
            for (int i = 0; i < BLOCK; i++) y[i] = gated(p->activation, y[i], at.up ? up[i] : 1.0f, g);
        quantize_to(q, at, column, y);
    }
    pad_columns(q, at);
}

/* The compiler would export functions that are compiled for several CPUs, were they not static. */
void portable_rms_norm_row(const norm_problem *p, row_at at) {
    rms_norm_row(p, at);
}

void portable_gated_row(const grouped_quantize_problem *p, row_at at) {
    gated_row(p, at);
}
