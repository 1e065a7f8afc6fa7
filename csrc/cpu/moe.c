/* Gated activations (kernels/common/activation.h defines them), the sort of a router's choices by expert, and the sums
 * of experts' rows. The GPU's results are the same bytes. */
#include "cpu/cpu.h"
#include "cpu/epilogue.h"
#include "cpu/threads.h"
#include "kernels/common/activation.h"

enum { CHUNK = 256 };

/* Runs a task a row on as many threads as find some 100 us of work each. */
static void for_each_row(int threads, int64_t rows, int64_t elements, void (*row)(void *p, int64_t task, int thread),
                         const void *problem) {
    const int64_t worth = 1 + elements / (1 << 17);
    if (threads <= 0) threads = threads_available();
    parallel_for(threads < worth ? threads : (int)worth, rows, row, (void *)problem);
}

static inline int64_t chunk_from(int64_t column, int64_t columns) {
    return columns - column < CHUNK ? columns - column : CHUNK;
}

/* ---- gated ---- */

static inline __attribute__((always_inline)) void gated_chunk(const int activation, float *gate, const float *up,
                                                              gating g, int64_t count) {
    for (int64_t i = 0; i < count; i++) gate[i] = gated(activation, gate[i], up[i], g);
}

WITH_FMA static void gated_row(const gated_problem *p, int64_t task) {
    const int64_t batch = task / p->rows, row = task % p->rows, item = type_size(p->type);
    const char *gate = (const char *)p->gate + batch * p->gate_batch + row * p->gate_pitch;
    const char *up = p->up ? (const char *)p->up + batch * p->up_batch + row * p->up_pitch : NULL;
    char *out = (char *)p->out + batch * p->out_batch + row * p->out_pitch;
    const gating g = gating_of(p->limit, p->alpha, up != NULL);
    float y[CHUNK], factor[CHUNK];
    for (int i = 0; i < CHUNK && !up; i++) factor[i] = 1.0f;
    for (int64_t column = 0; column < p->columns; column += CHUNK) {
        const int64_t count = chunk_from(column, p->columns);
        load_floats(y, gate + column * item, p->type, count);
        if (up) load_floats(factor, up + column * item, p->type, count);
        if (p->activation == NVFP4_GELU_TANH)
            gated_chunk(NVFP4_GELU_TANH, y, factor, g, count);
        else if (p->activation == NVFP4_RELU2)
            gated_chunk(NVFP4_RELU2, y, factor, g, count);
        else if (p->activation == NVFP4_SWIGLU)
            gated_chunk(NVFP4_SWIGLU, y, factor, g, count);
        else
            gated_chunk(NVFP4_SILU, y, factor, g, count);
        store_floats(out + column * type_size(p->out_type), y, p->out_type, count);
    }
}

static void gated_task(void *problem, int64_t task, int thread) {
    (void)thread;
    gated_row(problem, task);
}

void cpu_gated(const gated_problem *p, int threads) {
    const int64_t rows = p->l * p->rows;
    for_each_row(threads, rows, rows * p->columns, gated_task, p);
}

/* ---- moe_route ---- */

/* The expert of a choice; -1: none here. */
static int32_t expert_of(const moe_route_problem *p, int64_t choice) {
    const char *row = (const char *)p->ids + choice / p->per_token * p->ids_pitch;
    const int64_t j = choice % p->per_token;
    const int64_t id = p->ids_type == NVFP4_INT64 ? ((const int64_t *)row)[j] : ((const int32_t *)row)[j];
    if (id < 0 || id >= p->ids_end) return -1;
    const int32_t expert = p->maps_ids ? p->expert_map[id] : (int32_t)id;
    return expert >= 0 && expert < p->experts ? expert : -1;
}

/* A counting sort: the choices of each expert, then the place of its next one. */
void cpu_moe_route(const moe_route_problem *p, int threads) {
    int32_t next[NVFP4_MOE_MOST_EXPERTS] = {0}, total = 0;
    (void)threads; /* 100 us for 8192 tokens of 10 */
    for (int64_t i = 0; i < p->choices; i++) {
        const int32_t expert = expert_of(p, i);
        if (expert >= 0) next[expert]++;
    }
    for (int32_t e = 0; e < p->experts; e++) {
        const int32_t count = next[e];
        next[e] = total;
        total += count;
        p->ends[e] = total;
    }
    for (int64_t i = 0; i < p->choices; i++) {
        const int32_t expert = expert_of(p, i), place = expert < 0 ? -1 : next[expert]++;
        p->places[i] = place;
        if (place >= 0) p->rows[place] = (int32_t)(i / p->per_token);
    }
    for (int64_t i = total; i < p->choices; i++) p->rows[i] = 0;
}

/* ---- moe_combine ---- */

WITH_FMA static void combine_row(const moe_combine_problem *p, int64_t token) {
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
                load_floats(y, row + column * type_size(p->y_type), p->y_type, count);
            else
                for (int i = 0; i < CHUNK; i++) y[i] = NAN;
            if (weights) load_floats(&weight, weights + j * type_size(p->weights_type), p->weights_type, 1);
            for (int64_t i = 0; i < count; i++) sum[i] = fmaf(weight, y[i], sum[i]);
        }
        store_floats(out + column * type_size(p->out_type), sum, p->out_type, count);
    }
}

static void combine_task(void *problem, int64_t token, int thread) {
    (void)thread;
    combine_row(problem, token);
}

void cpu_moe_combine(const moe_combine_problem *p, int threads) {
    for_each_row(threads, p->tokens, p->tokens * p->per_token * p->columns, combine_task, p);
}
