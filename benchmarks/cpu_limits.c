/* The CPU kernels beside the limits of the machine, measured in turns in one run so that the ratios hold on a busy
 * machine. Prints one table.
 *
 *   gcc -O3 -Icsrc benchmarks/cpu_limits.c csrc/cpu/(all).c csrc/common/error.c -lpthread -lm
 *   NVFP4_CPU=avx2 ./a.out [threads] [rounds]
 *
 * fp32 FMA peak: a loop of independent fused multiply-adds in registers. Plain read: a sum over as many bytes as the
 * product reads, values and scales of the weights. Both by the pool that the kernels use; the best of all rounds. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu/cpu.h"
#include "cpu/threads.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Each vector is as wide as the machine's widest; gcc splits it where it is narrower. */
enum { FLOATS = 16, CHAINS = 12, FMA_STEPS = 100000, READ_TASK = 1 << 16 };
typedef float vector __attribute__((vector_size(FLOATS * 4)));
typedef uint64_t integers __attribute__((vector_size(FLOATS * 4), aligned(8)));

static volatile float sink_float;
static volatile uint64_t sink;

#if defined(__x86_64__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

CLONES static void fma_task(void *context, int64_t task, int thread) {
    (void)context, (void)task, (void)thread;
    vector sum[CHAINS], x = {1.0f}, y = {0.5f};
    for (int i = 0; i < CHAINS; i++) sum[i] = x * (float)i;
    for (int step = 0; step < FMA_STEPS; step++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) sum[i] = sum[i] * x + y;
    }
    for (int i = 1; i < CHAINS; i++) sum[0] += sum[i];
    for (int i = 0; i < FLOATS; i++) sink_float = sum[0][i];
}

CLONES static void read_task(void *context, int64_t task, int thread) {
    (void)thread;
    const integers *from = (const integers *)((const char *)context + task * READ_TASK);
    integers sum[4] = {{0}};
    for (size_t i = 0; i < READ_TASK / sizeof *from; i += 4)
        for (int j = 0; j < 4; j++) sum[j] ^= from[i + (size_t)j];
    sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
    uint64_t all = 0;
    for (int i = 0; i < FLOATS / 2; i++) all ^= sum[0][i];
    sink = all;
}

static double best(double a, double b) {
    return a < b ? a : b;
}

int main(int count, char **arguments) {
    int threads = count > 1 ? atoi(arguments[1]) : threads_available();
    int rounds = count > 2 ? atoi(arguments[2]) : 7;
    cpu_isa isa;
    if (cpu_isa_detect(&isa) != NVFP4_OK) {
        fprintf(stderr, "%s\n", nvfp4_last_error());
        return 1;
    }
    static const int64_t shapes[][3] = {{1, 7168, 16384}, {1, 4096, 7168},   {1, 7168, 2048},   {2, 4096, 7168},
                                        {4, 4096, 7168},  {8, 4096, 7168},   {16, 4096, 7168},  {32, 4096, 7168},
                                        {64, 4096, 7168}, {128, 4096, 7168}, {128, 7168, 2048}, {512, 4096, 7168}};
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    size_t most = (size_t)7168 * 16384 / 2, scales = most / 8;
    uint8_t *weights = malloc(most + scales), *activations = malloc(512 * 8192 + 512 * 1024);
    uint8_t *activation_scales = activations + 512 * 8192;
    float *out = malloc(512 * 7168 * sizeof *out);
    if (!weights || !activations || !out) return 1;
    for (size_t i = 0; i < most; i++) weights[i] = (uint8_t)(i * 2654435761u >> 13);
    memset(weights + most, 0x38, scales);
    for (size_t i = 0; i < 512 * 8192; i++) activations[i] = (uint8_t)(i * 2246822519u >> 11);
    memset(activation_scales, 0x38, 512 * 1024);

    double fma_time = INFINITY, times[SHAPES], reads[SHAPES];
    for (int s = 0; s < SHAPES; s++) times[s] = reads[s] = INFINITY;
    for (int round = 0; round < rounds; round++)
        for (int s = 0; s < SHAPES; s++) {
            int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
            gemm_problem p = {.m = m,
                              .n = n,
                              .k = k,
                              .l = 1,
                              .a = activations,
                              .b = weights,
                              .a_pitch = k / 2,
                              .b_pitch = k / 2,
                              .scale_a = activation_scales,
                              .scale_b = weights + most,
                              .out = out,
                              .out_pitch = n * 4,
                              .alpha_value = 1.0f,
                              .out_type = NVFP4_FP32,
                              .aligned16 = 1};
            p.scale_layout = NVFP4_128X4;
            p.scale_a_pitch = p.scale_b_pitch = (k + 63) / 64 * 512;
            double start = now();
            parallel_for(threads, threads, fma_task, NULL);
            fma_time = best(fma_time, now() - start);
            for (int repeat = 0; repeat < (m <= 16 ? 3 : 1); repeat++) {
                start = now();
                parallel_for(threads, n * k / 16 * 9 / READ_TASK, read_task, weights);
                reads[s] = best(reads[s], now() - start);
                start = now();
                if (cpu_gemm(&p, isa, threads, 0) != NVFP4_OK) return 1;
                times[s] = best(times[s], now() - start);
            }
        }
    double peak = 2.0 * FLOATS * CHAINS * FMA_STEPS * threads / fma_time * 1e-9;
    printf("kernel %s, %d threads, fp32 FMA peak %.0f GFLOP/s, best of %d rounds\n", cpu_isa_name(isa), threads, peak,
           rounds);
    printf("%-13s %8s %9s %8s %13s\n", "M x N x K", "ms", "GFLOP/s", "x peak", "x plain read");
    for (int s = 0; s < SHAPES; s++) {
        double m = (double)shapes[s][0], n = (double)shapes[s][1], k = (double)shapes[s][2];
        double gflops = 2 * m * n * k / times[s] * 1e-9;
        char shape[32];
        snprintf(shape, sizeof shape, "%.0fx%.0fx%.0f", m, n, k);
        printf("%-13s %8.3f %9.0f %8.2f %13.2f\n", shape, times[s] * 1e3, gflops, gflops / peak, reads[s] / times[s]);
    }
    return 0;
}
