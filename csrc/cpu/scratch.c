/* Memory that a thread keeps between calls, so that a call does not pay for fresh pages. Freed when the thread ends,
 * and after a call that needed more than others do. */
#include <pthread.h>
#include <stdlib.h>

#include "cpu/gemm.h"

/* 128 threads of blocked.c need some 80 MiB; vectors.c of 20,000 batches with K = 8,192 needs 234. */
static const size_t KEPT = (size_t)128 << 20;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int have_key;
static _Thread_local void *memory;
static _Thread_local size_t size;

static void make_key(void) {
    have_key = pthread_key_create(&key, free) == 0;
}

void *scratch(size_t bytes) {
    if (bytes <= size) return memory;
    pthread_once(&once, make_key);
    if (!have_key) return NULL;
    free(memory);
    size = (bytes + 4095) / 4096 * 4096;
    memory = aligned_alloc(64, size);
    if (!memory) size = 0;
    pthread_setspecific(key, memory);
    return memory;
}

void trim_scratch(void) {
    if (size <= KEPT) return;
    free(memory);
    memory = NULL;
    size = 0;
    pthread_setspecific(key, NULL);
}
