/* Rows of gated activations (cpu/gated.h) and of sums of experts' rows, as gcc compiles them for the instructions of
 * the file that includes this once. That file has defined load_row and store_row, which are load_floats and
 * store_floats of up to CHUNK values. */
#ifndef NVFP4_CPU_MOE_ROWS_H
#define NVFP4_CPU_MOE_ROWS_H

#include "cpu/gated.h"
#include "cpu/moe.h"

static inline int64_t chunk_from(int64_t column, int64_t columns) {
    return columns - column < CHUNK ? columns - column : CHUNK;
}

static void gated_row(const gated_problem *p, int64_t task) {
    const int64_t batch = task / p->rows, row = task % p->rows, item = type_size(p->type);
    const char *gate = (const char *)p->gate + batch * p->gate_batch + row * p->gate_pitch;
    const char *up = p->up ? (const char *)p->up + batch * p->up_batch + row * p->up_pitch : NULL;
    char *out = (char *)p->out + batch * p->out_batch + row * p->out_pitch;
    const gating g = gating_of(p->limit, p->alpha, up != NULL);
    float y[CHUNK], factor[CHUNK];
    for (int i = 0; i < CHUNK && !up; i++) factor[i] = 1.0f;
    for (int64_t column = 0; column < p->columns; column += CHUNK) {
        const int64_t count = chunk_from(column, p->columns);
        load_row(y, gate + column * item, p->type, count);
        if (up) load_row(factor, up + column * item, p->type, count);
        gate_values(p->activation, y, factor, g, count);
        store_row(out + column * type_size(p->out_type), y, p->out_type, count);
    }
}

static void combine_row(const moe_combine_problem *p, int64_t token) {
    const int32_t *places = (const int32_t *)((const char *)p->places + token * p->places_pitch);
    const char *weights = p->weights ? (const char *)p->weights + token * p->weights_pitch : NULL;
    char *out = (char *)p->out + token * p->out_pitch;
    for (int64_t column = 0; column < p->columns; column += CHUNK) {
        const int64_t count = chunk_from(column, p->columns);
        float sum[CHUNK] = {0}, y[CHUNK], weight = 1.0f;
        for (int64_t j = 0; j < p->per_token; j++) {
            if (places[j] < 0) continue;
            const char *row = (const char *)p->y + places[j] * p->y_pitch;
            if (places[j] < p->y_rows)
                load_row(y, row + column * type_size(p->y_type), p->y_type, count);
            else
                for (int i = 0; i < CHUNK; i++) y[i] = NAN;
            if (weights) load_floats(&weight, weights + j * type_size(p->weights_type), p->weights_type, 1);
            for (int64_t i = 0; i < count; i++) sum[i] = fmaf(weight, y[i], sum[i]);
        }
        store_row(out + column * type_size(p->out_type), sum, p->out_type, count);
    }
}

#endif
