#include "plan/overrides.h"

#include <stdlib.h>

#include "common/error.h"

static int compare(const void *a, const void *b) {
    const plan_override *x = a, *y = b;
    const int64_t left[] = {x->device, x->m, x->n, x->k, x->l}, right[] = {y->device, y->m, y->n, y->k, y->l};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
    return 0;
}

static plan_override *find(const plan_overrides *all, const plan_override *key) {
    return all->count ? bsearch(key, all->entries, all->count, sizeof *key, compare) : NULL;
}

nvfp4_status overrides_add(plan_overrides *all, const plan_override *one) {
    plan_override *found = find(all, one);
    if (found) {
        *found = *one;
        return NVFP4_OK;
    }
    plan_override *entries = realloc(all->entries, (all->count + 1) * sizeof *entries);
    if (!entries) return fail(NVFP4_OUT_OF_MEMORY, "no memory for %zu plan overrides", all->count + 1);
    entries[all->count++] = *one;
    all->entries = entries;
    qsort(entries, all->count, sizeof *entries, compare);
    return NVFP4_OK;
}

plan_settings overrides_find(const plan_overrides *all, int32_t device, const gemm_problem *p) {
    const plan_override key = {.device = device, .m = p->m, .n = p->n, .k = p->k, .l = p->l};
    const plan_override *found = find(all, &key);
    return found ? found->settings : (plan_settings){0};
}

void overrides_clear(plan_overrides *all) {
    free(all->entries);
    *all = (plan_overrides){0};
}
