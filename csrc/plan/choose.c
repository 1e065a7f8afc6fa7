/* Lists, ranks and caches. */
#include "plan/choose.h"

_Static_assert(sizeof(plan_query) == sizeof(gemm_traits) + sizeof(device_props) + sizeof(plan_settings) + 12,
               "no padding");
_Static_assert(sizeof(gemm_traits) == 4 * 8 + 6 * 4 && sizeof(device_props) == 4 * 4 + 8, "no padding");

enum { GPU_FAMILIES = GEMM_FAMILIES - 2 }; /* all but NVFP4_AUTO and the CPU */

static int is_override(const gemm_candidate *c, const plan_settings *s) {
    return s->split_k > 0 && c->family == s->family && c->kernel == s->kernel && c->swap_ab == s->swap_ab &&
           c->split_k == s->split_k && c->prefetch_stages == s->prefetch_stages;
}

static int precedes(const gemm_candidate *x, const gemm_candidate *y, const plan_settings *override) {
    const int x_first = is_override(x, override), y_first = is_override(y, override);
    return x_first != y_first ? x_first : candidate_precedes(x, y);
}

/* Moves the candidate of the given rank to its place, by selection: nearly every call wants rank 0. */
static void select_rank(gemm_candidate *all, int32_t count, int32_t rank, const plan_settings *override) {
    for (int32_t i = 0; i <= rank; i++) {
        int32_t first = i;
        for (int32_t j = i + 1; j < count; j++)
            if (precedes(&all[j], &all[first], override)) first = j;
        const gemm_candidate taken = all[first];
        all[first] = all[i];
        all[i] = taken;
    }
}

static void choose(const plan_query *q, plan_choice *choice) {
    gemm_candidate all[GPU_FAMILIES * FAMILY_MAX_CANDIDATES];
    int32_t count = 0;
    for (int32_t f = 0; f < GEMM_FAMILIES; f++)
        if (q->families >> f & 1) count += gemm_families[f]->candidates(&q->props, &q->traits, all + count);
    choice->candidates = count;
    if (count == 0) return;
    const int32_t rank = q->rank < count ? q->rank : count - 1;
    select_rank(all, count, rank, &q->override);
    choice->taken = all[rank];
}

const plan_choice *plan_choose(const plan_query *q) {
    static _Thread_local struct {
        plan_query query;
        plan_choice choice;
    } cache[64]; /* direct-mapped: the latest query of an entry stays */
    /* Odd 64-bit factors; the index is the upper bits, which every size reaches. */
    const gemm_traits *t = &q->traits;
    const uint64_t hash = (uint64_t)t->m * 0xD6E8FEB86659FD93 + (uint64_t)t->n * 0x9E3779B97F4A7C15 +
                          (uint64_t)t->k * 0xC2B2AE3D27D4EB4F + (uint64_t)t->l * 0x165667B19E3779F9;
    plan_query *key = &cache[hash >> 58].query;
    plan_choice *choice = &cache[hash >> 58].choice;
    if (choice->candidates == 0 || memcmp(key, q, sizeof *q) != 0) {
        *key = *q;
        choose(q, choice);
    }
    return choice;
}
