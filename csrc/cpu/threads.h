/* A pool of threads that share the tasks of one call. */
#ifndef NVFP4_CPU_THREADS_H
#define NVFP4_CPU_THREADS_H

#include <stdint.h>

/* CPUs that this process may run on. */
int threads_available(void);

/* Runs body(context, task, thread) for every task in 0 .. tasks-1, on the calling thread (number 0) and at most
 * threads-1 others (1 .. threads-1), and returns when all have run. Several threads may call at once. */
void parallel_for(int threads, int64_t tasks, void (*body)(void *context, int64_t task, int thread), void *context);

#endif
