/* Planning beside the calls that steer it, on a libcuda that runs nothing (NVFP4_LIBCUDA): some threads ask for plans
 * of two shapes while others put plans first, remove them and choose a rank. Every plan is one of its shape, and the
 * override is the one that was given. tests/core/test_driver.py builds it under ThreadSanitizer. Prints "done". */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "nvfp4.h"

enum { PLANNERS = 3, ROUNDS = 2000, MAX_PLANS = 128 };

static nvfp4_context *context;
static nvfp4_shape shapes[2];
static nvfp4_plan plans[2][MAX_PLANS]; /* of each shape, by rank */
static atomic_int failed, planning = PLANNERS;

static int same(const nvfp4_plan *x, const nvfp4_plan *y) {
    return !strcmp(x->name, y->name) && x->swap_ab == y->swap_ab && x->split_k == y->split_k;
}

static void *plan(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        nvfp4_plan got;
        const int s = i % 2;
        if (nvfp4_plan_shape(context, &shapes[s], &got)) failed = 1;
        int known = 0;
        for (int rank = 0; rank < got.candidates; rank++) known |= same(&got, &plans[s][rank]);
        if (!known || got.candidates != plans[s][0].candidates) failed = 1;
    }
    planning--;
    return NULL;
}

/* Puts the plan of rank 2 first for the first shape, and that of rank 3 for the second. */
static void *steer(void *unused) {
    (void)unused;
    for (int i = 0; planning > 0; i++) {
        for (int s = 0; s < 2; s++)
            if (nvfp4_override_plan(context, &shapes[s], &plans[s][2 + s])) failed = 1;
        if (i % 3 == 0) nvfp4_clear_overrides(context);
        if (nvfp4_set_candidate(context, i % 2) || nvfp4_set_default_backend(context, (nvfp4_backend)(i % 2)))
            failed = 1;
    }
    return NULL;
}

int main(void) {
    pthread_t threads[PLANNERS + 2];
    if (nvfp4_create(&context)) return 1;
    for (int s = 0; s < 2; s++) {
        shapes[s] = NVFP4_SHAPE;
        shapes[s].device = 0, shapes[s].m = 64 << s, shapes[s].n = 512, shapes[s].k = 2048;
        for (int rank = 0; rank == 0 || rank < plans[s][0].candidates; rank++)
            if (rank == MAX_PLANS || nvfp4_set_candidate(context, rank) ||
                nvfp4_plan_shape(context, &shapes[s], &plans[s][rank]))
                return 1;
    }
    for (int i = 0; i < PLANNERS + 2; i++)
        if (pthread_create(&threads[i], NULL, i < PLANNERS ? plan : steer, NULL)) return 1;
    for (int i = 0; i < PLANNERS + 2; i++) pthread_join(threads[i], NULL);
    nvfp4_set_candidate(context, 0);
    for (int s = 0; s < 2; s++) {
        nvfp4_plan got;
        if (nvfp4_override_plan(context, &shapes[s], &plans[s][2 + s]) || nvfp4_plan_shape(context, &shapes[s], &got) ||
            !same(&got, &plans[s][2 + s]))
            failed = 1;
    }
    nvfp4_destroy(context);
    if (!failed) printf("done\n");
    return failed;
}
