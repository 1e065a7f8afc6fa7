/* The table of overrides: sorted by the bytes of their keys. */
#include "plan/overrides.h"

#include <stdlib.h>
#include <string.h>

#include "common/error.h"

static int compare(const void *a, const void *b) {
    return memcmp(&((const plan_override *)a)->key, &((const plan_override *)b)->key, sizeof(override_key));
}

override_key override_key_of(int32_t device, const gemm_problem *p) {
    return (override_key){
        .m = p->m, .n = p->n, .k = p->k, .l = p->l, .device = device, .operation = p->operation, .a_type = p->a_type};
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
    const plan_override key = {.key = override_key_of(device, p)};
    const plan_override *found = find(all, &key);
    return found ? found->settings : (plan_settings){0};
}

void overrides_clear(plan_overrides *all) {
    free(all->entries);
    *all = (plan_overrides){0};
}
