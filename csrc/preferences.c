/* The table of nvfp4_prefer. */
#include "preferences.h"

#include <stdlib.h>

#include "error.h"

static int compare(const void *a, const void *b) {
    const preference *x = a, *y = b;
    const int64_t left[] = {x->device, x->m, x->n, x->k, x->l}, right[] = {y->device, y->m, y->n, y->k, y->l};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
    return 0;
}

static preference *find(const preferences *all, const preference *key) {
    return all->count ? bsearch(key, all->entries, all->count, sizeof *key, compare) : NULL;
}

nvfp4_status preferences_add(preferences *all, const preference *one) {
    preference *found = find(all, one);
    if (found) {
        *found = *one;
        return NVFP4_OK;
    }
    preference *entries = realloc(all->entries, (all->count + 1) * sizeof *entries);
    if (!entries) return fail(NVFP4_OUT_OF_MEMORY, "no memory for %zu preferred plans", all->count + 1);
    entries[all->count++] = *one;
    all->entries = entries;
    qsort(entries, all->count, sizeof *entries, compare);
    return NVFP4_OK;
}

plan_settings preferences_find(const preferences *all, int32_t device, const gemm_problem *p) {
    const preference key = {.device = device, .m = p->m, .n = p->n, .k = p->k, .l = p->l};
    const preference *found = find(all, &key);
    return found ? found->settings : (plan_settings){0};
}

void preferences_forget(preferences *all) {
    free(all->entries);
    *all = (preferences){0};
}
