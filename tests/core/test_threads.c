/* The pool of csrc/cpu/threads.c, with pauses where a thread has just released the lock or is about to wait: what
 * another one may do there happens often. tests/core/test_c_core.py builds it under ThreadSanitizer too.
 *
 * test_threads [SEED [ROUNDS / 20]] */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t seed;
static atomic_uint_fast64_t drawn;

/* splitmix64 of a counter that all threads share */
static uint64_t draw(void) {
    uint64_t z = seed + atomic_fetch_add_explicit(&drawn, 1, memory_order_relaxed) * 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

static void rest(void) {
    uint64_t choice = draw() % 8;
    if (choice == 0) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    if (choice == 1) sched_yield();
}

/* Whether this thread has the pool's lock: it must where it gives it back or waits. A worker that began without the
 * lock would read the list of jobs while another thread changes it, which no timing shows for certain. */
static _Thread_local int locked;

static void need_lock(const char *before) {
    if (locked) return;
    fprintf(stderr, "%s without the lock\n", before);
    abort();
}

static int lock_and_note(pthread_mutex_t *lock) {
    int result = pthread_mutex_lock(lock);
    locked = 1;
    return result;
}

static int unlock_and_pause(pthread_mutex_t *lock) {
    need_lock("unlocks");
    locked = 0;
    int result = pthread_mutex_unlock(lock);
    rest();
    return result;
}

static int pause_and_wait(pthread_cond_t *condition, pthread_mutex_t *lock) {
    need_lock("waits");
    rest();
    return pthread_cond_wait(condition, lock);
}

/* The CPUs that the process may run on, or that there are; affinity < 0: there are more than a cpu_set_t holds. */
static int affinity;
static long processors;

static int fake_getaffinity(pid_t process, size_t size, cpu_set_t *set) {
    if (process != 0 || size != sizeof *set || affinity < 0) return -1;
    CPU_ZERO(set);
    for (int i = 0; i < affinity; i++) CPU_SET(3 * i, set);
    return 0;
}

static long fake_sysconf(int name) {
    return name == _SC_NPROCESSORS_ONLN ? processors : -1;
}

/* A copy of its own: the program is linked with the core. */
#define pthread_mutex_lock   lock_and_note
#define pthread_mutex_unlock unlock_and_pause
#define sched_getaffinity    fake_getaffinity
#define sysconf              fake_sysconf
#define pthread_cond_wait    pause_and_wait
#define parallel_for         paused_parallel_for
#define threads_available    paused_threads_available
#include "cpu/threads.c"

enum { CALLERS = 4, MAX_THREADS = 6, MAX_TASKS = 12 };

typedef struct call {
    int tasks, threads;
    int times[MAX_TASKS]; /* that a task ran; not atomic: the pool orders them before the caller's reads */
    atomic_int busy[MAX_THREADS];
    atomic_int wrong; /* a task or thread that does not exist, or two tasks at once with the same thread number */
} call;

static void run_task(void *context, int64_t task, int thread) {
    call *c = context;
    if (task < 0 || task >= c->tasks || thread < 0 || thread >= c->threads) {
        atomic_fetch_add(&c->wrong, 1);
        return;
    }
    if (atomic_exchange(&c->busy[thread], 1)) atomic_fetch_add(&c->wrong, 1);
    c->times[task]++;
    uint64_t choice = draw() % 16;
    if (choice == 0) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    if (choice < 4) sched_yield();
    atomic_store(&c->busy[thread], 0);
}

/* Overwrites the stack below the caller, where the last job was. */
static __attribute__((noinline)) void overwrite_stack(void) {
    volatile char bytes[1024];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i % 8 == 7 ? i / 8 % 2 : 0x5A);
}

static int rounds = 1000;
static pthread_barrier_t together;

static void *caller(void *result) {
    int *wrong = result;
    for (int i = 0; i < rounds; i++) {
        /* A caller that is not woken stays so: no later call of another one wakes it by chance. */
        if (i % 4 == 0) pthread_barrier_wait(&together);
        call c = {.tasks = (int)(draw() % (MAX_TASKS + 1)), .threads = 1 + (int)(draw() % MAX_THREADS)};
        parallel_for(c.threads, c.tasks, run_task, &c);
        overwrite_stack();
        for (int task = 0; task < c.tasks; task++) *wrong += c.times[task] != 1;
        *wrong += atomic_load(&c.wrong);
    }
    return NULL;
}

/* Ends when both tasks of a call have begun, or in vain after 10 s. */
static void meet(void *context, int64_t task, int thread) {
    atomic_int *begun = context;
    (void)task, (void)thread;
    atomic_fetch_add(begun, 1);
    for (int i = 0; i < 10000 && atomic_load(begun) < 2; i++) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (atomic_load(begun) < 2) atomic_store(begun, -1);
}

/* The caller's task ends when the other one has begun, so that the caller waits until that one ends. */
typedef struct held_call {
    atomic_int begun, caller_waits, released;
} held_call;

static void hold(void *context, int64_t task, int thread) {
    held_call *h = context;
    (void)task;
    atomic_fetch_add(&h->begun, 1);
    while (thread == 0 && atomic_load(&h->begun) < 2) sched_yield();
    if (thread == 0) atomic_store(&h->caller_waits, 1);
    while (thread != 0 && !atomic_load(&h->released)) sched_yield();
}

static void *call_held(void *h) {
    parallel_for(2, 2, hold, h);
    return NULL;
}

static void *release(void *h) {
    while (!atomic_load(&((held_call *)h)->caller_waits)) sched_yield();
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    atomic_store(&((held_call *)h)->released, 1);
    return NULL;
}

/* A process that is forked while a thread waits for its call has a pool without that thread, where calls end. */
static int test_fork_during_a_call(void) {
    const char *forks = getenv("NVFP4_TEST_FORK");
#ifdef __SANITIZE_THREAD__
    forks = "0"; /* it supports no threads behind such a fork */
#endif
    if (forks && !strcmp(forks, "0")) return 0;
    held_call h = {0};
    pthread_t waits;
    if (pthread_create(&waits, NULL, call_held, &h)) abort();
    while (!atomic_load(&h.caller_waits)) sched_yield();
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        for (int i = 0; i < 3; i++) {
            held_call own = {0};
            pthread_t later;
            if (pthread_create(&later, NULL, release, &own)) abort();
            call_held(&own);
            pthread_join(later, NULL);
        }
        _exit(0);
    }
    atomic_store(&h.released, 1);
    pthread_join(waits, NULL);
    int status = 1;
    waitpid(child, &status, 0);
    if (status) printf("a child that was forked during a call: status %d\n", status);
    return status;
}

/* One CPU at least, also where the system tells nothing. */
static int test_threads_available(void) {
    static const struct {
        int affinity;
        long processors;
        int expected;
    } cases[] = {{5, 64, 5}, {1, 64, 1}, {-1, 2048, 2048}, {-1, 1, 1}, {-1, 0, 1}, {-1, -1, 1}};
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        affinity = cases[i].affinity, processors = cases[i].processors;
        const int found = threads_available();
        if (found == cases[i].expected) continue;
        printf("%d CPUs of %ld: %d threads, not %d\n", affinity, processors, found, cases[i].expected);
        wrong = 1;
    }
    return wrong;
}

int main(int count, char **arguments) {
    seed = count > 1 ? strtoull(arguments[1], NULL, 0) : (uint64_t)time(NULL);
    if (count > 2) rounds = 20 * atoi(arguments[2]);
    alarm(60); /* a pool that has gone wrong may wait for ever */
    atomic_int begun = 0;
    parallel_for(2, 2, meet, &begun);
    if (begun != 2) printf("two tasks did not run at the same time\n");
    int forked = test_fork_during_a_call(), miscounted = test_threads_available();
    pthread_barrier_init(&together, NULL, CALLERS);
    pthread_t threads[CALLERS];
    int wrong[CALLERS] = {0}, total = 0;
    for (int i = 0; i < CALLERS; i++)
        if (pthread_create(threads + i, NULL, caller, wrong + i)) abort();
    for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL), total += wrong[i];
    printf("seed %llu: %d calls of %d callers, %d tasks wrong\n", (unsigned long long)seed, rounds * CALLERS, CALLERS,
           total);
    return total != 0 || begun != 2 || forked || miscounted;
}
