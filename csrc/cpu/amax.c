/* The global scale of a tensor: amax(|x|) / divisor in fp64, rounded once to fp32; 1 where that is 0, NaN or infinite.
 * Magnitudes compare as integers, where NaN is above infinity. */
#include <float.h>
#include <stdatomic.h>

#include "cpu/cpu.h"
#include "cpu/epilogue.h"
#include "cpu/threads.h"

typedef struct amax_task {
    const amax_problem *p;
    _Atomic int32_t amax; /* bits of the type of x, without a sign */
} amax_task;

static int32_t amax_16(const int16_t *x, int64_t count) {
    int16_t amax = 0;
    for (int64_t i = 0; i < count; i++) {
        int16_t magnitude = (int16_t)(x[i] & INT16_MAX);
        amax = magnitude > amax ? magnitude : amax;
    }
    return amax;
}

static int32_t amax_32(const int32_t *x, int64_t count) {
    int32_t amax = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t magnitude = x[i] & INT32_MAX;
        amax = magnitude > amax ? magnitude : amax;
    }
    return amax;
}

static void amax_chunk(void *context, int64_t task, int thread) {
    (void)thread;
    amax_task *t = context;
    const amax_problem *p = t->p;
    int64_t row = task / p->chunks, at = task % p->chunks * AMAX_CHUNK;
    int64_t bytes = p->x_bytes - at < AMAX_CHUNK ? p->x_bytes - at : AMAX_CHUNK;
    const void *x = (const char *)p->x + row / p->rows * p->x_batch + row % p->rows * p->x_pitch + at;
    int32_t amax = p->x_type == OUT_FP32 ? amax_32(x, bytes / 4) : amax_16(x, bytes / 2), seen = t->amax;
    while (amax > seen && !atomic_compare_exchange_weak(&t->amax, &seen, amax)) {
    }
}

void cpu_amax_scale(const amax_problem *p, int threads) {
    amax_task t = {.p = p};
    int64_t chunks = p->l * p->rows * p->chunks, worth = 1 + p->l * p->rows * p->x_bytes / 1048576;
    if (threads <= 0) threads = threads_available();
    parallel_for(threads < worth ? threads : (int)worth, chunks, amax_chunk, &t);
    uint32_t bits = (uint32_t)t.amax;
    float amax = p->x_type == OUT_FP32   ? bits_float(bits)
                 : p->x_type == OUT_BF16 ? bf16_decode((uint16_t)bits)
                                         : fp16_decode((uint16_t)bits);
    float scale = (float)((double)amax / p->divisor);
    *p->scale = scale > 0.0f && scale <= FLT_MAX ? scale : 1.0f;
}
