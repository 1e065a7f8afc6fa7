/* Lists, ranks and caches. */
#include "plan/choose.h"

_Static_assert(sizeof(plan_query) == sizeof(gemm_traits) + sizeof(device_props) + sizeof(plan_settings) + 16,
               "no padding");
_Static_assert(sizeof(gemm_traits) == 4 * 8 + 10 * 4 && sizeof(device_props) == 12 * 4 + 8, "no padding");

int candidate_is(const gemm_candidate *c, const plan_settings *s) {
    return s->split_k > 0 && c->backend == s->backend && c->kernel == s->kernel && c->swap_ab == s->swap_ab &&
           c->split_k == s->split_k && c->prefetch_stages == s->prefetch_stages && c->ctas_per_sm == s->ctas_per_sm;
}

static int precedes(const gemm_candidate *x, const gemm_candidate *y, const plan_settings *override) {
    const int x_first = candidate_is(x, override), y_first = candidate_is(y, override);
    return x_first != y_first ? x_first : candidate_precedes(x, y);
}

/* NULL: the backend may not run the product, or does not take it. */
static const gemm_planner *planner_for(const plan_query *q, int32_t backend) {
    return q->backends >> backend & 1
               ? planner_taking(backend, q->traits.product_kind, q->traits.a_type, q->traits.by_batch)
               : NULL;
}

/* Takes the first candidate, or the first that follows `previous`. 0 if there is none: `taken` stays as it was. One
 * backend is listed at a time, so that the stack does not grow with the backends. */
static int take_next(const plan_query *q, const gemm_candidate *previous, plan_answer *answer) {
    gemm_candidate listed[MAX_CANDIDATES];
    int found = 0;
    answer->candidates = 0;
    for (int32_t b = 0; b < GEMM_BACKENDS; b++) {
        const gemm_planner *planner = planner_for(q, b);
        if (!planner) continue;
        const int32_t count = planner->candidates(&q->props, &q->traits, listed);
        answer->candidates += count;
        for (int32_t i = 0; i < count; i++) {
            if (previous && !precedes(previous, &listed[i], &q->override)) continue;
            if (found && !precedes(&listed[i], &answer->taken, &q->override)) continue;
            answer->taken = listed[i];
            found = 1;
        }
    }
    return found;
}

/* Nearly every call wants rank 0. A rank past the last takes the last. */
static void choose(const plan_query *q, plan_answer *answer) {
    int found = take_next(q, NULL, answer);
    for (int32_t rank = 1; found && rank <= q->rank; rank++) {
        const gemm_candidate previous = answer->taken;
        found = take_next(q, &previous, answer);
    }
}

/* The backend of the highest number that has an order for every M takes the product, whatever the times: another
 * backend adds in another order. */
static void choose_batch_invariant(const plan_query *q, plan_answer *answer) {
    gemm_candidate listed[MAX_CANDIDATES];
    int32_t count = -1;
    for (int32_t b = GEMM_BACKENDS - 1; b >= 0 && count < 0; b--) {
        const gemm_planner *planner = planner_for(q, b);
        if (planner && planner->batch_invariant) count = planner->batch_invariant(&q->props, &q->traits, listed);
    }
    answer->candidates = count > 0 ? count : 0;
    for (int32_t i = 0; i < answer->candidates; i++)
        if (i == 0 || candidate_precedes(&listed[i], &answer->taken)) answer->taken = listed[i];
    answer->taken.batch_invariant = 1;
}

const plan_answer *plan_choose(const plan_query *q) {
    static _Thread_local struct {
        plan_query query;
        plan_answer answer;
    } cache[64]; /* direct-mapped: the latest query of an entry stays */
    /* Odd 64-bit factors; the index is the upper bits, which every size reaches. */
    const gemm_traits *t = &q->traits;
    const uint64_t hash = (uint64_t)t->m * 0xD6E8FEB86659FD93 + (uint64_t)t->n * 0x9E3779B97F4A7C15 +
                          (uint64_t)t->k * 0xC2B2AE3D27D4EB4F + (uint64_t)t->l * 0x165667B19E3779F9;
    plan_query *key = &cache[hash >> 58].query;
    plan_answer *answer = &cache[hash >> 58].answer;
    if (answer->candidates == 0 || memcmp(key, q, sizeof *q) != 0) {
        *key = *q;
        q->batch_invariant ? choose_batch_invariant(q, answer) : choose(q, answer);
    }
    return answer;
}
