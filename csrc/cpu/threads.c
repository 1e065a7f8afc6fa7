/* The pool. A call puts its job, which lives on the caller's stack, on a list; idle workers join jobs that still want
 * helpers; everyone draws tasks from the job's counter. The caller takes part, then leaves the list and waits for
 * the helpers that joined. No thread exists before the first call that wants two. */
#define _GNU_SOURCE
#include "cpu/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

typedef struct job {
    void (*body)(void *context, int64_t task, int thread);
    void *context;
    int64_t tasks;
    atomic_int_fast64_t next; /* the first task that nobody has drawn */
    int helpers, limit;       /* threads that joined; that may join */
    atomic_int running;       /* helpers that have not left */
    struct job *rest;
} job;

enum { MAX_WORKERS = 1023 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    job *jobs;
    int workers;
} pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0};

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void before_fork(void) {
    pthread_mutex_lock(&pool.lock);
}
static void after_fork_parent(void) {
    pthread_mutex_unlock(&pool.lock);
}

/* The child has the forking thread alone: no workers, and no caller of any job on the list. */
static void after_fork_child(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.jobs = NULL;
    pool.workers = 0;
}

static void handle_fork(void) {
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static void draw_tasks(job *j, int thread) {
    for (;;) {
        int64_t task = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (task >= j->tasks) return;
        j->body(j->context, task, thread);
    }
}

/* The first job that wants a helper. */
static job *job_to_join(void) {
    for (job *j = pool.jobs; j; j = j->rest)
        if (j->helpers < j->limit && atomic_load_explicit(&j->next, memory_order_relaxed) < j->tasks) return j;
    return NULL;
}

static void *worker(void *unused) {
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        job *j = job_to_join();
        if (!j) {
            pthread_cond_wait(&pool.work, &pool.lock);
            continue;
        }
        int thread = ++j->helpers;
        atomic_fetch_add(&j->running, 1);
        pthread_mutex_unlock(&pool.lock);
        draw_tasks(j, thread);
        pthread_mutex_lock(&pool.lock);
        if (atomic_fetch_sub(&j->running, 1) == 1) pthread_cond_broadcast(&pool.done); /* j may be gone from here on */
    }
    return NULL;
}

/* Makes workers until there are count, or as many as the system gives. */
static void hire(int count) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    while (pool.workers < count && pthread_create(&thread, &detached, worker, NULL) == 0) pool.workers++;
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int threads_available(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long count = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than cpu_set_t holds */
    return count > 0 ? (int)count : 1;
}

void parallel_for(int threads, int64_t tasks, void (*body)(void *context, int64_t task, int thread), void *context) {
    job j = {.body = body, .context = context, .tasks = tasks, .limit = threads - 1};
    if (j.limit > tasks - 1) j.limit = (int)(tasks - 1);
    if (j.limit > MAX_WORKERS) j.limit = MAX_WORKERS;
    if (j.limit <= 0) {
        draw_tasks(&j, 0);
        return;
    }
    pthread_once(&fork_once, handle_fork);
    pthread_mutex_lock(&pool.lock);
    j.rest = pool.jobs;
    pool.jobs = &j;
    hire(j.limit);
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);

    draw_tasks(&j, 0);

    pthread_mutex_lock(&pool.lock);
    job **link = &pool.jobs;
    while (*link != &j) link = &(*link)->rest;
    *link = j.rest; /* nobody joins any more */
    while (atomic_load(&j.running)) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}
