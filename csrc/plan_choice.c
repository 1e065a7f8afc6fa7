/* Ranks the candidates for a product. Estimates of all of them take longer than the rest of a call, so each thread
 * keeps the answers of some shapes. */
#include "plan_choice.h"

#include <stdlib.h>
#include <string.h>

#include "plan_operands.h"

/* All that a choice depends on. Compared as bytes, so without padding. */
typedef struct question {
    int64_t m, n, k, l;
    int32_t family, scale_layout, tensor_maps, wide_output;
    int32_t one_a, one_b; /* 1: serves all batches */
    int32_t column;
    int32_t sm_count, shared_per_block, shared_per_sm;
    plan_wish wish;
    int32_t padding_;
} question;
_Static_assert(sizeof(question) == 4 * sizeof(int64_t) + 11 * sizeof(int32_t) + sizeof(plan_wish), "no padding");

typedef struct answer {
    question question;
    plan_choice choice;
} answer;

/* Ties are broken by what is in the candidates, so that the choice is the same every time. Without prefetching comes
 * first: the estimate does not know of it, and an H200 loses by it (benchmarks/b200_model.md). */
static int is_slower(const void *a, const void *b) {
    const plan_candidate *x = a, *y = b;
    const plan_settings *s = &x->settings, *t = &y->settings;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    if (s->prefetch_stages != t->prefetch_stages) return s->prefetch_stages < t->prefetch_stages ? -1 : 1;
    if (s->kernel != t->kernel) return s->kernel < t->kernel ? -1 : 1;
    if (s->swap_ab != t->swap_ab) return s->swap_ab < t->swap_ab ? -1 : 1;
    return (s->split_k > t->split_k) - (s->split_k < t->split_k);
}

static void put_first(plan_candidate *all, int32_t count, const plan_settings *settings) {
    for (int32_t i = 0; i < count; i++)
        if (memcmp(&all[i].settings, settings, sizeof *settings) == 0) {
            plan_candidate first = all[i];
            memmove(all + 1, all, (size_t)i * sizeof *all);
            all[0] = first;
            return;
        }
}

static plan_choice choose(plan_lister *list, const device_facts *facts, const gemm_problem *p, const plan_wish *wish) {
    plan_candidate all[PLAN_MOST_CANDIDATES];
    int32_t count = list(facts, p, all);
    if (count == 0) return (plan_choice){.candidates = 0};
    qsort(all, (size_t)count, sizeof *all, is_slower);
    put_first(all, count, &wish->first);
    return (plan_choice){all[wish->candidate < count ? wish->candidate : count - 1], count};
}

plan_choice plan_choose(int32_t family, plan_lister *list, const device_facts *facts, const gemm_problem *p,
                        const plan_wish *wish) {
    static _Thread_local answer answers[64]; /* a shape has one place, so that the latest stays */
    const question q = {
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .l = p->l,
        .family = family,
        .scale_layout = p->scale_layout,
        .tensor_maps = values_are_mapped(p),
        .wide_output = p->out_type == OUT_FP32,
        .one_a = p->a_batch == 0 && p->sfa_batch == 0,
        .one_b = p->b_batch == 0 && p->sfb_batch == 0,
        .column = result_is_column(p),
        .sm_count = facts->sm_count,
        .shared_per_block = facts->shared_per_block,
        .shared_per_sm = facts->shared_per_sm,
        .wish = wish ? *wish : (plan_wish){.candidate = 0},
    };
    /* Odd numbers of 64 bits: the place is the upper bits, which all sizes have to reach. */
    uint64_t hash = (uint64_t)p->m * 0xD6E8FEB86659FD93 + (uint64_t)p->n * 0x9E3779B97F4A7C15 +
                    (uint64_t)p->k * 0xC2B2AE3D27D4EB4F + (uint64_t)p->l * 0x165667B19E3779F9;
    answer *a = &answers[hash >> 58];
    if (!a->choice.candidates || memcmp(&a->question, &q, sizeof q) != 0) {
        a->question = q;
        a->choice = choose(list, facts, p, &q.wish);
    }
    return a->choice;
}
