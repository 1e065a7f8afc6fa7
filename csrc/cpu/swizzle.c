/* Linear scales to the tensor core's 128x4 layout and back, 16 bytes at a time where there are as many.
 *
 * A task is the rows r, r + 32, r + 64 and r + 96 of four neighbours r: 64 bytes of each 512 are theirs alone. */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/operand.h"
#include "cpu/threads.h"

typedef uint32_t dwords __attribute__((vector_size(16)));

typedef struct job {
    const swizzle_problem *p;
    int64_t pitch, tasks; /* bytes of 128 rows; tasks of a batch */
} job;

/* Four vectors of four dwords, rows to columns. */
static inline void transpose(dwords v[4]) {
    dwords low01 = __builtin_shuffle(v[0], v[1], (dwords){0, 4, 1, 5});
    dwords high01 = __builtin_shuffle(v[0], v[1], (dwords){2, 6, 3, 7});
    dwords low23 = __builtin_shuffle(v[2], v[3], (dwords){0, 4, 1, 5});
    dwords high23 = __builtin_shuffle(v[2], v[3], (dwords){2, 6, 3, 7});
    v[0] = __builtin_shuffle(low01, low23, (dwords){0, 1, 4, 5});
    v[1] = __builtin_shuffle(low01, low23, (dwords){2, 3, 6, 7});
    v[2] = __builtin_shuffle(high01, high23, (dwords){0, 1, 4, 5});
    v[3] = __builtin_shuffle(high01, high23, (dwords){2, 3, 6, 7});
}

/* 16 columns of rows r + 32 j: dword j of 16 bytes in each of four atoms, one a group of 4 columns. */
static inline __attribute__((always_inline)) void convert_16(uint8_t *linear, uint8_t *swizzled, int64_t pitch,
                                                             const int back) {
    dwords v[4];
    for (int j = 0; j < 4; j++) memcpy(v + j, back ? swizzled + j * 512 : linear + j * 32 * pitch, 16);
    transpose(v);
    for (int j = 0; j < 4; j++) memcpy(back ? linear + j * 32 * pitch : swizzled + j * 512, v + j, 16);
}

/* Up to 4 columns of the rows among r + 32 j that exist, and zeros. */
static inline void convert_4(uint8_t *linear, uint8_t *swizzled, int64_t pitch, int64_t rows, size_t columns,
                             const int back) {
    if (!back) memset(swizzled, 0, 16);
    for (int64_t j = 0; j * 32 < rows && j < 4; j++) {
        uint8_t *from = linear + j * 32 * pitch;
        memcpy(back ? from : swizzled + j * 4, back ? swizzled + j * 4 : from, columns == 4 ? 4 : columns);
    }
}

static inline __attribute__((always_inline)) void convert(const job *job, int64_t task, const int back) {
    const swizzle_problem *p = job->p;
    int64_t batch = task / job->tasks, t = task % job->tasks, row = t / 8 * 128 + t % 8 * 4;
    uint8_t *swizzled = p->swizzled + (batch * (job->tasks / 8) + t / 8) * job->pitch + t % 8 * 64;
    uint8_t *linear = p->linear + batch * p->linear_batch + row * p->linear_pitch;
    for (int64_t c = 0, step; c < p->columns; c += step) {
        int64_t left = p->columns - c, whole = left >= 16 && row + 99 < p->rows;
        step = whole ? 16 : 4;
        for (int64_t i = 0; i < 4; i++) {
            uint8_t *from = linear + i * p->linear_pitch + c, *to = swizzled + c * 128 + i * 16;
            if (whole)
                convert_16(from, to, p->linear_pitch, back);
            else
                convert_4(from, to, p->linear_pitch, p->rows - row - i, (size_t)(left < 4 ? left : 4), back);
        }
    }
}

static void swizzle_task(void *context, int64_t task, int thread) {
    (void)thread;
    convert(context, task, 0);
}

static void unswizzle_task(void *context, int64_t task, int thread) {
    (void)thread;
    convert(context, task, 1);
}

/* A thread should find some 100 us of work. */
static void run(const swizzle_problem *p, int threads, void (*body)(void *, int64_t, int)) {
    job j = {p, (p->columns + 3) / 4 * 512, (p->rows + 127) / 128 * 8};
    int64_t worth = 1 + p->l * p->rows * p->columns / (1 << 20);
    if (threads <= 0) threads = threads_available();
    parallel_for(threads < worth ? threads : (int)worth, p->l * j.tasks, body, &j);
}

void cpu_swizzle(const swizzle_problem *p, int threads) {
    run(p, threads, swizzle_task);
}

void cpu_unswizzle(const swizzle_problem *p, int threads) {
    run(p, threads, unswizzle_task);
}
