/* Runs code that touches addresses from the program, which may not be mapped: catches SIGSEGV and SIGBUS of this
 * thread and leaves other threads' signals to the process. */
#define _GNU_SOURCE /* sigaction, siginfo_t */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

#include "machine/guard.h"

static struct sigaction before_segv, before_bus;
static pthread_t owner;
static guard_function *on_fault;

static void handle(int number, siginfo_t *info, void *context) {
    if (on_fault && pthread_equal(pthread_self(), owner)) {
        guard_function *f = on_fault;
        f(info->si_addr);
    }
    /* another thread's signal: its own handler */
    const struct sigaction *before = number == SIGSEGV ? &before_segv : &before_bus;
    if (before->sa_flags & SA_SIGINFO)
        before->sa_sigaction(number, info, context);
    else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN)
        before->sa_handler(number);
    else
        sigaction(number, before, NULL); /* the instruction is tried again, and ends the process */
}

void guard_begin(guard_function *f) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    owner = pthread_self();
    on_fault = f;
    sigaction(SIGSEGV, &action, &before_segv);
    sigaction(SIGBUS, &action, &before_bus);
}

void guard_end(void) {
    sigaction(SIGSEGV, &before_segv, NULL);
    sigaction(SIGBUS, &before_bus, NULL);
    on_fault = NULL;
}

static jmp_buf escape;
static const void *volatile faulty;

static void leave(const void *address) {
    faulty = address ? address : (const void *)1; /* a null pointer is a fault too */
    longjmp(escape, 1);
}

const void *guarded(void (*work)(void *), void *argument) {
    faulty = NULL;
    guard_begin(leave);
    if (!setjmp(escape)) work(argument);
    guard_end();
    return faulty;
}
