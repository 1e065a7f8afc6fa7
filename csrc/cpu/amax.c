/* The global scale of a tensor or of each row: amax(|x|) / divisor in fp64, rounded once to fp32; 1 where that is 0,
 * NaN or infinite. Magnitudes compare as integers, where NaN is above infinity. */
#include <float.h>
#include <stdatomic.h>

#include "cpu/quantize.h"
#include "cpu/threads.h"

typedef struct amax_task {
    const amax_problem *p;
    const quantize_kernel *kernel;
    _Atomic int32_t amax; /* bits of the type of x, without a sign */
} amax_task;

static float scale_of(const amax_problem *p, uint32_t bits) {
    float amax = p->x_type == NVFP4_FP32   ? __uint_as_float(bits)
                 : p->x_type == NVFP4_BF16 ? bf16_decode((uint16_t)bits)
                                           : fp16_decode((uint16_t)bits);
    float scale = (float)((double)amax / p->divisor);
    return scale > 0.0f && scale <= FLT_MAX ? scale : 1.0f;
}

static void amax_row(void *context, int64_t row, int thread) {
    (void)thread;
    const amax_task *t = context;
    const amax_problem *p = t->p;
    const void *x = (const char *)p->x + row * p->x_pitch;
    p->scale[row] = scale_of(p, (uint32_t)t->kernel->amax(x, p->x_bytes, p->x_type));
}

static void amax_chunk(void *context, int64_t task, int thread) {
    (void)thread;
    amax_task *t = context;
    const amax_problem *p = t->p;
    int64_t row = task / p->chunks, at = task % p->chunks * AMAX_CHUNK;
    int64_t bytes = p->x_bytes - at < AMAX_CHUNK ? p->x_bytes - at : AMAX_CHUNK;
    const void *x = (const char *)p->x + row / p->rows * p->x_batch + row % p->rows * p->x_pitch + at;
    int32_t amax = t->kernel->amax(x, bytes, p->x_type), seen = t->amax;
    while (amax > seen && !atomic_compare_exchange_weak(&t->amax, &seen, amax)) {
    }
}

void cpu_amax_scale(const amax_problem *p, cpu_isa isa, int threads) {
    amax_task t = {.p = p, .kernel = quantize_kernel_for(isa)};
    int64_t chunks = p->l * p->rows * p->chunks, worth = 1 + p->l * p->rows * p->x_bytes / 1048576;
    if (threads <= 0) threads = threads_available();
    if (threads > worth) threads = (int)worth;
    if (p->by_row) {
        parallel_for(threads, p->rows, amax_row, &t);
        return;
    }
    parallel_for(threads, chunks, amax_chunk, &t);
    *p->scale = scale_of(p, (uint32_t)t.amax);
}
