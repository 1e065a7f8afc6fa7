/* The table of overrides: sorted by the bytes of their keys. */
#define _GNU_SOURCE /* pthread_rwlock_t */
#include "plan/overrides.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"

struct plan_overrides {
    pthread_rwlock_t lock; /* of the others; a call that reads a count of 0 does without */
    _Atomic size_t count;
    plan_override *entries; /* so that a call finds its own */
};

static int compare(const void *a, const void *b) {
    return memcmp(&((const plan_override *)a)->key, &((const plan_override *)b)->key, sizeof(override_key));
}

override_key override_key_of(int32_t device, const gemm_problem *p) {
    return (override_key){.m = p->m,
                          .n = p->n,
                          .k = p->k,
                          .l = p->l,
                          .device = device,
                          .product_kind = p->product_kind,
                          .a_type = p->a_type};
}

plan_overrides *overrides_create(void) {
    plan_overrides *all = calloc(1, sizeof *all);
    if (all) pthread_rwlock_init(&all->lock, NULL);
    return all;
}

void overrides_destroy(plan_overrides *all) {
    if (!all) return;
    pthread_rwlock_destroy(&all->lock);
    free(all->entries);
    free(all);
}

size_t overrides_count(const plan_overrides *all) {
    return all->count;
}

static plan_override *find(const plan_overrides *all, const plan_override *key) {
    return all->count ? bsearch(key, all->entries, all->count, sizeof *key, compare) : NULL;
}

/* Needs the lock. */
static nvfp4_status add(plan_overrides *all, const plan_override *one) {
    plan_override *found = find(all, one);
    const size_t count = all->count;
    if (found) {
        *found = *one;
        return NVFP4_OK;
    }
    plan_override *entries = realloc(all->entries, (count + 1) * sizeof *entries);
    if (!entries) return fail(NVFP4_OUT_OF_MEMORY, "no memory for %zu plan overrides", count + 1);
    entries[count] = *one;
    qsort(entries, count + 1, sizeof *entries, compare);
    all->entries = entries;
    all->count = count + 1;
    return NVFP4_OK;
}

nvfp4_status overrides_add(plan_overrides *all, const plan_override *one) {
    pthread_rwlock_wrlock(&all->lock);
    nvfp4_status status = add(all, one);
    pthread_rwlock_unlock(&all->lock);
    return status;
}

plan_settings overrides_find(plan_overrides *all, int32_t device, const gemm_problem *p) {
    if (all->count == 0) return (plan_settings){0};
    const plan_override key = {.key = override_key_of(device, p)};
    pthread_rwlock_rdlock(&all->lock);
    const plan_override *found = find(all, &key);
    const plan_settings settings = found ? found->settings : (plan_settings){0};
    pthread_rwlock_unlock(&all->lock);
    return settings;
}

void overrides_clear(plan_overrides *all) {
    pthread_rwlock_wrlock(&all->lock);
    free(all->entries);
    all->entries = NULL;
    all->count = 0;
    pthread_rwlock_unlock(&all->lock);
}
