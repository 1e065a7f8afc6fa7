/* A block of GPTQ, 16 columns of a weight: the definition, for each row t. c is the scale of quantize; divisions are
 * IEEE divisions and nothing is contracted:
 *
 *   inverse_j = 1 / u_jj
 *   with each scale s of search (cpu/quantize.h), d = value(s) * g, t as it was given:
 *     for j = 0 .. 15
 *       code_j = e2m1(t_j / d)
 *       e_j = fma(-value(code_j), d, t_j) * inverse_j
 *       sum = fma(e_j, e_j, sum)
 *       t_k = fma(-e_j, u_jk, t_k)    for k > j
 *   the first with the least sum; c where none is finite, or where t is zeros or has a NaN */
#ifndef NVFP4_CPU_GPTQ_H
#define NVFP4_CPU_GPTQ_H

#include "cpu/quantize.h"

/* The factor of a call and the reciprocals of its diagonal, which all rows share. */
typedef struct gptq_factor {
    float u[BLOCK][BLOCK], inverse[BLOCK];
} gptq_factor;

static inline void load_factor(gptq_factor *f, const gptq_problem *p) {
    for (int j = 0; j < BLOCK; j++) {
        memcpy(f->u[j], (const char *)p->u + j * p->u_pitch, sizeof f->u[j]);
        f->inverse[j] = 1.0f / f->u[j][j];
    }
}

static inline const float *gptq_row(const gptq_problem *p, int64_t row) {
    return (const float *)((const char *)p->x + row * p->x_pitch);
}

static inline float gptq_global_scale(const gptq_problem *p, int64_t row) {
    if (!p->global_scale) return p->global_value;
    return p->global_scale[p->global_by == GLOBAL_BY_ROW ? row : 0];
}

void portable_gptq(const gptq_problem *p, int64_t first, int64_t end);

#endif
