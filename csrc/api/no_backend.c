/* Errors where no backend of a call runs its product. No backend is named here: what a message says of backends follows
 * from their table. */
#include <stdio.h>

#include "api/plan.h"
#include "api/rules.h"
#include "common/error.h"

enum { NAMES_SIZE = 160 /* of a text that lists backends or types */ };

/* Drops the backends of a mask that do not take a kind of product: with an A of any type, or with an A of this type. */
static uint32_t taking_kind(uint32_t backends, int32_t kind) {
    uint32_t taking = 0;
    for (int32_t b = 0; b < GEMM_BACKENDS; b++)
        if (backends >> b & 1 && gemm_backends[b] && gemm_backends[b]->planners[kind]) taking |= 1u << b;
    return taking;
}

uint32_t backends_taking(uint32_t backends, const gemm_problem *p) {
    uint32_t taking = 0;
    for (int32_t b = 0; b < GEMM_BACKENDS; b++)
        if (backends >> b & 1 && planner_taking(b, p->product_kind, p->a_type, p->by_batch)) taking |= 1u << b;
    return taking;
}

/* Whether a backend takes the product but for its values by batch. */
static int planner_of_any(uint32_t backends, const gemm_problem *p) {
    for (int32_t b = 0; b < GEMM_BACKENDS; b++)
        if (backends >> b & 1 && planner_of(b, p->product_kind, p->a_type)) return 1;
    return 0;
}

/* The types of A that some backends take, as "x, y or z". */
static const char *list_types(char text[NAMES_SIZE], uint32_t backends, int32_t kind) {
    uint32_t types = 0;
    size_t length = 0;
    for (int32_t b = 0; b < GEMM_BACKENDS; b++)
        if (taking_kind(backends & 1u << b, kind)) types |= gemm_backends[b]->planners[kind]->a_types;
    if (types & TAKES_E2M1) types |= 1u << NVFP4_UINT8 | 1u << NVFP4_E2M1X2;
    types &= ~(uint32_t)TAKES_E2M1;
    for (int32_t d = 0; types >> d; d++) {
        if (!(types >> d & 1)) continue;
        const char *separator = length == 0 ? "" : types >> d == 1 ? " or " : ", ";
        length += (size_t)snprintf(text + length, NAMES_SIZE - length, "%s%s", separator, nvfp4_dtype_name(d));
    }
    return text;
}

nvfp4_status reject_backends(const nvfp4_context *context, const target *where, const gemm_problem *p) {
    static const struct {
        const char *is, *must_be_other;
        int32_t other;
    } kinds[PRODUCT_KINDS] = {
        [PRODUCT_GEMM] = {WORD_TRANSPOSED, WORD_MUST_NOT_TRANSPOSE, PRODUCT_GEMM_NN},
        [PRODUCT_GEMM_NN] = {WORD_NOT_TRANSPOSED, WORD_MUST_TRANSPOSE, PRODUCT_GEMM},
        [PRODUCT_GROUPED] = {WORD_TRANSPOSED, WORD_MUST_NOT_TRANSPOSE, PRODUCT_GROUPED_NN},
        [PRODUCT_GROUPED_NN] = {WORD_NOT_TRANSPOSED, WORD_MUST_TRANSPOSE, PRODUCT_GROUPED},
    };
    char asked[NAMES_SIZE], others[NAMES_SIZE], types[NAMES_SIZE];
    uint32_t able = where->on_gpu ? backends_taking(device_backends(context, where->device), p) : 0;
    if (!able) able = backends_taking(ALL_BACKENDS, p);
    list_backends(asked, sizeof asked, where->backends, "%s", " and ");
    list_backends(others, sizeof others, able, "%s", " or ");
    if (p->by_batch && planner_of_any(where->backends, p))
        return REJECT_AS(NVFP4_UNSUPPORTED, p->by_batch & ALPHA_BY_BATCH ? "alpha" : "bias",
                         ("has values for each batch, which the %s kernels do not take", asked),
                         ("must be that of all batches, or the backend %s", others));
    if (!taking_kind(where->backends, p->product_kind))
        return REJECT_AS(NVFP4_UNSUPPORTED, ARGUMENT_TRANSPOSE,
                         ("%s, which the %s kernels do not take", kinds[p->product_kind].is, asked),
                         ("%s, or the backend must be %s", kinds[p->product_kind].must_be_other, others));
    return REJECT_AS(NVFP4_UNSUPPORTED, "a",
                     ("dtype is %s, which the %s kernels do not take", nvfp4_dtype_name((nvfp4_dtype)p->a_type), asked),
                     ("must be %s, or the backend %s", list_types(types, where->backends, p->product_kind), others));
}

/* Whether a backend of the query has an order of additions for every M, of which this one may be too large. */
static int has_order(const plan_query *query) {
    gemm_candidate listed[MAX_CANDIDATES];
    const gemm_traits *t = &query->traits;
    for (int32_t b = 0; b < GEMM_BACKENDS; b++) {
        const gemm_planner *planner = planner_taking(b, t->product_kind, t->a_type, t->by_batch);
        if (query->backends >> b & 1 && planner && planner->batch_invariant &&
            planner->batch_invariant(&query->props, t, listed) >= 0)
            return 1;
    }
    return 0;
}

nvfp4_status reject_batch_invariant(const nvfp4_context *context, const target *where, const plan_query *query) {
    const gemm_traits *t = &query->traits;
    plan_query other = *query;
    uint32_t able = 0;
    char names[NAMES_SIZE] = "";
    const uint32_t all = device_backends(context, where->device);
    for (int32_t b = NVFP4_AUTO; b < GEMM_BACKENDS; b++) {
        other.backends = b == NVFP4_AUTO ? all : all & 1u << b;
        if (other.backends && plan_choose(&other)->candidates) able |= 1u << b;
    }
    if (able) list_backends(names, sizeof names, able, "%s", " or ");
    if (able && !has_order(query))
        return REJECT_AS(NVFP4_UNSUPPORTED, ARGUMENT_INVARIANT,
                         ("no kernel of this backend is batch invariant for an a of %s, K = %lld and operands that "
                          "lie so",
                          t->a_type == VALUES_E2M1 ? "NVFP4" : nvfp4_dtype_name((nvfp4_dtype)t->a_type),
                          (long long)t->k),
                         ("the backend must be %s", names));
    return REJECT_AS(NVFP4_UNSUPPORTED, ARGUMENT_INVARIANT,
                     ("no kernel of this backend is batch invariant for M = %lld, N = %lld, K = %lld, L = %lld and "
                      "operands that lie so",
                      (long long)t->m, (long long)t->n, (long long)t->k, (long long)t->l),
                     ("M * L must be smaller%s%s", able ? ", or the backend " : "", names));
}

nvfp4_status reject_product(const plan_query *query) {
    char reasons[1024] = "";
    size_t length = 0;
    int32_t backends = 0;
    nvfp4_status status = NVFP4_OK;
    for (int32_t b = 0; b < GEMM_BACKENDS && length < sizeof reasons; b++) {
        const gemm_traits *t = &query->traits;
        const gemm_planner *planner = planner_taking(b, t->product_kind, t->a_type, t->by_batch);
        if (!planner || !(query->backends >> b & 1)) continue;
        status = planner->reject(&query->props, &query->traits);
        backends++;
        length += (size_t)snprintf(reasons + length, sizeof reasons - length, "%s%s", length ? "; " : "",
                                   error_message_in(NULL));
    }
    return backends == 1 ? status : fail(status, "%s", reasons);
}
