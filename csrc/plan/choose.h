/* Chooses the way to run a product: ranks the candidates of all backends that may run it by their modelled time. */
#ifndef NVFP4_PLAN_CHOOSE_H
#define NVFP4_PLAN_CHOOSE_H

#include "common/device_props.h"
#include "plan/gemm_backend.h"

/* The settings of a plan: they name one candidate among those for a problem. */
typedef struct plan_settings {
    int32_t backend, kernel, swap_ab, split_k, prefetch_stages, ctas_per_sm; /* split_k = 0: names none */
} plan_settings;

typedef struct plan_query { /* compared as bytes: cleared before it is filled, no other padding */
    gemm_traits traits;
    device_props props;
    uint32_t backends;       /* bit b: those of gemm_backends[b], which run on a GPU */
    plan_settings override;  /* this candidate comes first, if the problem has it */
    int32_t rank;            /* take the candidate of this rank; the last one if there are fewer */
    int32_t batch_invariant; /* 1: only candidates that add in the one order; override and rank do not count */
    int32_t padding_;
} plan_query;

typedef struct plan_answer {
    gemm_candidate taken; /* the plan */
    int32_t candidates;   /* how many there are; 0: none is taken */
} plan_answer;

/* Whether settings name this candidate; settings with split_k = 0 name none. */
int candidate_is(const gemm_candidate *candidate, const plan_settings *settings);

/* Each thread keeps the answers of some queries, since modelling all candidates takes longer than a call. The answer
 * stays valid until the thread's next query. */
const plan_answer *plan_choose(const plan_query *query);

#endif
