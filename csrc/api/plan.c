/* Chooses the plan of a product, answers questions about plans and takes overrides. No backend is named here:
 * what a message says of backends follows from their table. */
#include <stdio.h>
#include <string.h>

#include "api/gemm.h"
#include "api/rules.h"
#include "common/error.h"
#include "plan/choose.h"

enum { NAMES_SIZE = 160 /* of a text that lists backends or types */ };

/* Drops the backends of a mask that do not take a kind of product: with an A of any type, or with an A of this type. */
static uint32_t taking_kind(uint32_t backends, int32_t kind) {
    uint32_t taking = 0;
    for (int32_t b = 0; b < GEMM_BACKENDS; b++)
        if (backends >> b & 1 && gemm_backends[b] && gemm_backends[b]->planners[kind]) taking |= 1u << b;
    return taking;
}

static uint32_t taking_product(uint32_t backends, const gemm_problem *p) {
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

/* The error where no backend that may run the call takes it: it names those that do, on this device or else anywhere.
 */
static nvfp4_status reject_backends(const nvfp4_context *context, const target *where, const gemm_problem *p) {
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
    uint32_t able = where->on_gpu ? taking_product(device_backends(context, where->device), p) : 0;
    if (!able) able = taking_product(ALL_BACKENDS, p);
    list_backends(asked, sizeof asked, where->backends, "%s", " and ");
    list_backends(others, sizeof others, able, "%s", " or ");
    if (p->product_kind >= PRODUCT_GROUPED && !taking_kind(where->backends, p->product_kind) &&
        !taking_kind(where->backends, kinds[p->product_kind].other))
        return REJECT_AS(NVFP4_UNSUPPORTED, "backend",
                         ("is one of the %s kernels, which do not take products of groups", asked),
                         ("must be %s", others));
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

/* The error where no backend has one order of additions for every M: it names the backends of the device that do. */
static nvfp4_status reject_batch_invariant(const nvfp4_context *context, const target *where, const plan_query *query) {
    const gemm_traits *t = &query->traits;
    plan_query other = *query;
    uint32_t able = 0;
    char names[NAMES_SIZE], hint[NAMES_SIZE + 16] = "";
    const uint32_t all = device_backends(context, where->device);
    for (int32_t b = NVFP4_AUTO; b < GEMM_BACKENDS; b++) {
        other.backends = b == NVFP4_AUTO ? all : all & 1u << b;
        if (other.backends && plan_choose(&other)->candidates) able |= 1u << b;
    }
    if (able)
        snprintf(hint, sizeof hint, ", or the backend %s", list_backends(names, sizeof names, able, "%s", " or "));
    return REJECT_AS(NVFP4_UNSUPPORTED, ARGUMENT_INVARIANT,
                     ("no kernel of this backend is batch invariant for M = %lld, N = %lld, K = %lld, L = %lld and "
                      "operands that lie so",
                      (long long)t->m, (long long)t->n, (long long)t->k, (long long)t->l),
                     ("M * L must be smaller%s", hint));
}

/* Each backend that takes the product says why it has no candidate. */
static nvfp4_status reject_product(const plan_query *query) {
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

static nvfp4_status choose_on_gpu(nvfp4_context *context, const plan_settings *override, int32_t rank, uint32_t flags,
                                  prepared_call *call) {
    const target *where = &call->where;
    plan_query query;
    memset(&query, 0, sizeof query);
    query.traits = traits_of(&call->problem.gemm);
    if (query.traits.product_kind >= PRODUCT_GROUPED) query.traits.groups = call->problem.grouped.groups;
    query.props = *where->props;
    query.backends = where->backends;
    query.override = *override;
    query.rank = rank;
    query.batch_invariant = (flags & NVFP4_BATCH_INVARIANT) != 0;
    const plan_answer *answer = plan_choose(&query);
    call->candidates = answer->candidates;
    call->candidate = answer->taken;
    if (answer->candidates) {
        const gemm_planner *planner = planner_of(answer->taken.backend, query.traits.product_kind, query.traits.a_type);
        if (planner->workspace) call->candidate.workspace = planner->workspace(&call->problem.gemm, &answer->taken);
        return NVFP4_OK;
    }
    if (!taking_product(where->backends, &call->problem.gemm))
        return reject_backends(context, where, &call->problem.gemm);
    return query.batch_invariant ? reject_batch_invariant(context, where, &query) : reject_product(&query);
}

static nvfp4_status choose_on_host(nvfp4_context *context, uint32_t flags, prepared_call *call) {
    for (int32_t b = 0; b < GEMM_BACKENDS; b++) {
        const gemm_planner *planner = planner_of(b, call->problem.gemm.product_kind, call->problem.gemm.a_type);
        if (!planner || !(call->where.backends >> b & 1)) continue;
        if (!planner->candidates(NULL, NULL, &call->candidate)) return planner->reject(NULL, NULL);
        call->candidate.batch_invariant = (flags & NVFP4_BATCH_INVARIANT) != 0;
        return NVFP4_OK;
    }
    return reject_backends(context, &call->where, &call->problem.gemm);
}

/* The plan of a product without results names the newest backend that may run it. */
static gemm_candidate no_launch(const target *where) {
    return (gemm_candidate){
        .backend = 31 - __builtin_clz(where->backends), .name = "none", .reason = "the result is empty", .split_k = 1};
}

static nvfp4_status choose(nvfp4_context *context, uint32_t flags, prepared_call *call) {
    const target *where = &call->where;
    call->candidates = call->is_fused = 0;
    if (!where->on_gpu) return choose_on_host(context, flags, call);
    const int is_grouped = call->problem.gemm.product_kind >= PRODUCT_GROUPED;
    if (is_grouped && call->problem.grouped.b_list)
        return CONTRADICTS("b", ("is a list but the backend runs on a GPU; must be one tensor there"));
    if (call->is_empty) {
        call->candidate = no_launch(where);
        return NVFP4_OK;
    }
    const plan_settings override = overrides_find(context->overrides, where->device, &call->problem.gemm);
    return choose_on_gpu(context, &override, context->rank, flags, call);
}

nvfp4_status grouped_gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    const nvfp4_grouped_gemm_args *args = c->args;
    nvfp4_status status = find_target(context, args->backend, args->a.device, &call->where);
    return status ? status : choose(context, args->flags, call);
}

nvfp4_status gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    const nvfp4_gemm_args *args = c->args;
    nvfp4_status status = find_target(context, args->backend, args->a.device, &call->where);
    return status ? status : choose(context, args->flags, call);
}

/* ---- plans without a launch ---- */

static void describe(const prepared_call *call, nvfp4_plan *plan) {
    const gemm_candidate *c = &call->candidate;
    *plan = (nvfp4_plan){
        .backend = c->backend,
        .name = c->name,
        .reason = c->reason,
        .tile_m = c->tile_m,
        .tile_n = c->tile_n,
        .tile_k = c->tile_k,
        .stages = c->stages,
        .swap_ab = c->swap_ab,
        .split_k = c->split_k,
        .grid = c->grid,
        .workspace = (size_t)c->workspace,
        .prefetch_stages = c->prefetch_stages,
        .ctas_per_sm = c->ctas_per_sm,
        .candidates = call->candidates,
        .modelled_us = c->modelled_us,
        .single_us = c->single_us,
        .is_fused = call->is_fused,
    };
}

static nvfp4_status plan_of(nvfp4_context *context, const operation *op, const void *args, nvfp4_plan *plan) {
    operation_args own;
    prepared_call call;
    const checked_call c = {op, complete_args(op, args, &own)};
    if (!c.args) return NVFP4_INVALID;
    nvfp4_status status = operation_prepare(context, &c, &call);
    if (!status) describe(&call, plan);
    return status;
}

nvfp4_status nvfp4_gemm_plan(nvfp4_context *context, const nvfp4_gemm_args *args, nvfp4_plan *plan) {
    return plan_of(context, &operation_gemm, args, plan);
}

nvfp4_status nvfp4_quantize_gemm_plan(nvfp4_context *context, const nvfp4_quantize_gemm_args *args, nvfp4_plan *plan) {
    return plan_of(context, &operation_quantize_gemm, args, plan);
}

nvfp4_status nvfp4_grouped_gemm_plan(nvfp4_context *context, const nvfp4_grouped_gemm_args *args, nvfp4_plan *plan) {
    return plan_of(context, &operation_grouped_gemm, args, plan);
}

nvfp4_status nvfp4_gated_grouped_gemm_plan(nvfp4_context *context, const nvfp4_gated_grouped_gemm_args *args,
                                           nvfp4_plan *plan) {
    return plan_of(context, &operation_gated_grouped_gemm, args, plan);
}

/* The struct of an older program is shorter. */
static int64_t groups_of(const nvfp4_shape *s) {
    return s->size > offsetof(nvfp4_shape, groups) ? s->groups : 0;
}

static int32_t shape_operation(const nvfp4_shape *s) {
    return s->size > offsetof(nvfp4_shape, operation) ? (int32_t)s->operation : NVFP4_SHAPE_PRODUCT;
}

/* The rules of an operation that is no product alone. */
static nvfp4_status check_shape_operation(const nvfp4_shape *s) {
    const int32_t operation = shape_operation(s);
    const char *dtype = nvfp4_dtype_name(s->a_dtype);
    const int is_16_bit = s->a_dtype == NVFP4_FP16 || s->a_dtype == NVFP4_BF16;
    if (operation < NVFP4_SHAPE_PRODUCT || operation > NVFP4_SHAPE_GATED_GROUPED_GEMM)
        return REJECT("operation", ("is %d", operation),
                      ("must be 0, %d (quantize_gemm) or %d (gated_grouped_gemm)", NVFP4_SHAPE_QUANTIZE_GEMM,
                       NVFP4_SHAPE_GATED_GROUPED_GEMM));
    if (operation != NVFP4_SHAPE_PRODUCT && s->flags & NVFP4_NO_TRANSPOSE_B)
        return REJECT(ARGUMENT_TRANSPOSE, (WORD_NOT_TRANSPOSED),
                      (WORD_MUST_TRANSPOSE " for quantize_gemm and gated_grouped_gemm"));
    if (operation == NVFP4_SHAPE_QUANTIZE_GEMM && !is_16_bit && s->a_dtype != NVFP4_FP32)
        return REJECT("a_dtype", ("is %s", dtype), ("must be float16, bfloat16 or float32 for quantize_gemm"));
    if (operation != NVFP4_SHAPE_QUANTIZE_GEMM && !is_16_bit && s->a_dtype != NVFP4_NONE)
        return REJECT("a_dtype", ("is %s", dtype), ("must be none (NVFP4), float16 or bfloat16"));
    if ((operation == NVFP4_SHAPE_QUANTIZE_GEMM && groups_of(s)) ||
        (operation == NVFP4_SHAPE_GATED_GROUPED_GEMM && !groups_of(s)))
        return REJECT("groups", ("are %lld", (long long)groups_of(s)),
                      ("must be %s", groups_of(s) ? "0 for quantize_gemm" : "at least 1 for gated_grouped_gemm"));
    return NVFP4_OK;
}

/* The rules of a shape. */
static nvfp4_status check_shape(const nvfp4_shape *s) {
    const int64_t m = s->m, n = s->n, k = s->k, l = s->l;
    if (s->size != sizeof *s && s->size != offsetof(nvfp4_shape, groups) && s->size != offsetof(nvfp4_shape, operation))
        return REJECT("shape", ("its size is %zu", s->size), ("must be %zu, as NVFP4_SHAPE sets it", sizeof *s));
    nvfp4_status status = check_flags(s->flags);
    const int64_t groups = groups_of(s);
    if (!status) status = check_shape_operation(s);
    if (status) return status;
    if (groups < 0 || groups > NVFP4_MAX_GROUPS || (groups && l != 1))
        return REJECT("groups", ("are %lld with L = %lld", (long long)groups, (long long)l),
                      ("must be between 0 and %d, with L = 1", NVFP4_MAX_GROUPS));
    if (m < 0 || n < 0 || k < 0 || l < 0 || m > INT32_MAX || n > INT32_MAX || k > INT32_MAX || l > INT32_MAX || k % 16)
        return REJECT("shape", ("is %lld x %lld x %lld x %lld", (long long)m, (long long)n, (long long)k, (long long)l),
                      ("M, N, K, L must be between 0 and %d, and K a multiple of 16", INT32_MAX));
    int64_t count;
    if (__builtin_mul_overflow(m * n, l, &count) || count > INT64_MAX / 8) /* as rules.c bounds a tensor */
        return REJECT("shape", ("M, N, L are %lld, %lld, %lld", (long long)m, (long long)n, (long long)l),
                      ("their product must be at most 2^60"));
    if (!(s->flags & NVFP4_NO_TRANSPOSE_B)) return NVFP4_OK;
    if (s->a_dtype == NVFP4_NONE)
        return REJECT(ARGUMENT_TRANSPOSE, (WORD_NOT_TRANSPOSED " but a_dtype is none (NVFP4)"),
                      (WORD_MUST_TRANSPOSE ", or a_dtype must be float16 or bfloat16"));
    if (__builtin_mul_overflow(m * k, l, &count) || count > INT64_MAX / 8)
        return REJECT("shape", ("M, K, L are %lld, %lld, %lld", (long long)m, (long long)k, (long long)l),
                      ("their product must be at most 2^60"));
    return NVFP4_OK;
}

/* The product that a shape describes. */
static void set_problem_of_shape(const nvfp4_shape *s, prepared_call *call) {
    const int is_nn = (s->flags & NVFP4_NO_TRANSPOSE_B) != 0;
    const int is_e2m1 = s->a_dtype == NVFP4_NONE || shape_operation(s) == NVFP4_SHAPE_QUANTIZE_GEMM;
    const int64_t columns = is_nn ? s->k : s->n, sums_of = is_nn ? s->n : s->k;
    const int64_t a_row = is_e2m1 ? s->k / 2 : sums_of * 2;
    call->is_empty = s->m == 0 || columns == 0 || s->l == 0;
    call->problem.gemm = (gemm_problem){.m = s->m,
                                        .n = columns,
                                        .k = sums_of,
                                        .l = s->l,
                                        .a_pitch = a_row,
                                        .b_pitch = s->k / 2,
                                        .a_batch = s->m * a_row,
                                        .b_batch = s->n * s->k / 2,
                                        .scale_a_batch = is_e2m1 ? swizzled_bytes(s->m, s->k / 16) : 0,
                                        .scale_b_batch = swizzled_bytes(s->n, s->k / 16),
                                        .out_type = NVFP4_FP16,
                                        .out_pitch = columns * 2,
                                        .out_batch = s->m * columns * 2,
                                        .aligned16 = s->k % 32 == 0 && a_row % 16 == 0,
                                        .a_type = is_e2m1 ? VALUES_E2M1 : (int32_t)s->a_dtype,
                                        .product_kind = is_nn ? PRODUCT_GEMM_NN : PRODUCT_GEMM};
    if (!groups_of(s)) return;
    const gemm_problem one = call->problem.gemm;
    const int32_t parts = shape_operation(s) == NVFP4_SHAPE_GATED_GROUPED_GEMM ? 2 : 1;
    call->problem.grouped = (grouped_problem){.g = one, .a_rows = s->m, .groups = (int32_t)s->groups, .parts = parts};
    call->problem.gemm.product_kind = is_nn ? PRODUCT_GROUPED_NN : PRODUCT_GROUPED;
    call->problem.gemm.l = s->groups * parts;
    call->problem.gemm.a_batch = call->problem.gemm.scale_a_batch = 0;
    call->problem.gemm.out_batch = columns * 2;
    call->problem.gemm.out_pitch = parts * columns * 2;
}

/* The other step of the operation that a shape is of: its problem, and whether the product's kernel does it too. */
static void plan_other_step(const nvfp4_shape *s, prepared_call *call) {
    if (shape_operation(s) == NVFP4_SHAPE_QUANTIZE_GEMM) {
        const int64_t row = s->k * dtype_bytes(s->a_dtype);
        call->problem.quantize_gemm.q = (quantize_problem){.rows = s->m,
                                                           .k = s->k,
                                                           .l = s->l,
                                                           .x_pitch = row,
                                                           .x_batch = s->m * row,
                                                           .global_value = 1.0f,
                                                           .scale_layout = NVFP4_128X4,
                                                           .x_type = (int32_t)s->a_dtype,
                                                           .block_scale = NVFP4_AMAX6};
        fuse_quantizer(call);
    } else if (shape_operation(s) == NVFP4_SHAPE_GATED_GROUPED_GEMM) {
        grouped_problem *p = &call->problem.grouped;
        p->has_activation = 1, p->activation = NVFP4_SILU, p->limit = INFINITY, p->activation_alpha = 1.702f;
        p->g.out_pitch = s->n * 2, p->g.out_batch = 0;
        fuse_activation(call);
    }
}

nvfp4_status nvfp4_plan_shape(nvfp4_context *context, const nvfp4_shape *shape, nvfp4_plan *plan) {
    prepared_call call;
    nvfp4_status status = check_shape(shape);
    if (status) return status;
    set_problem_of_shape(shape, &call);
    status = find_target(context, shape->backend, shape->device, &call.where);
    if (!status) status = choose(context, shape->flags, &call);
    if (status) return status;
    plan_other_step(shape, &call);
    describe(&call, plan);
    return NVFP4_OK;
}

/* The settings that a plan names; backend NVFP4_AUTO and kernel -1 where no kernel has its name. */
static plan_settings settings_of(const nvfp4_plan *plan) {
    plan_settings s = {.kernel = -1,
                       .swap_ab = plan->swap_ab,
                       .split_k = plan->split_k,
                       .prefetch_stages = plan->prefetch_stages,
                       .ctas_per_sm = plan->ctas_per_sm};
    for (int32_t b = 0; b < GEMM_BACKENDS; b++) {
        const kernel_set *set = gemm_backends[b] ? gemm_backends[b]->kernels : NULL;
        for (int32_t k = 0; set && k < set->count; k++)
            if (strcmp(plan->name, set->kernels[k].name) == 0) s.backend = b, s.kernel = k;
    }
    return s;
}

nvfp4_status nvfp4_override_plan(nvfp4_context *context, const nvfp4_shape *shape, const nvfp4_plan *plan) {
    prepared_call call = {.candidates = 0};
    nvfp4_status status = check_shape(shape);
    if (status) return status;
    if (!plan->name) return REJECT("plan", ("has no name"), ("must be one that nvfp4_gemm_plan has filled"));
    if (shape->device < 0) return REJECT("device", ("is %d", shape->device), ("must be the ordinal of a GPU"));
    if (groups_of(shape))
        return REJECT("groups", ("are %lld", (long long)shape->groups), ("must be 0 for an override"));
    if (shape_operation(shape) != NVFP4_SHAPE_PRODUCT)
        return REJECT("operation", ("is %d", shape_operation(shape)), ("must be 0 for an override"));
    if (shape->flags & ~(uint32_t)NVFP4_NO_TRANSPOSE_B)
        return REJECT("flags", ("is %u", shape->flags),
                      ("must be 0 or %d (b not transposed) for an override", NVFP4_NO_TRANSPOSE_B));
    const plan_settings settings = settings_of(plan);
    const gemm_problem *p = &call.problem.gemm;
    set_problem_of_shape(shape, &call);
    status = find_target(context, shape->backend == NVFP4_AUTO ? settings.backend : (int32_t)shape->backend,
                         shape->device, &call.where);
    if (!status && !call.is_empty) status = choose_on_gpu(context, &settings, 0, 0, &call);
    if (status) return status;
    if (call.candidates == 0 || !candidate_is(&call.candidate, &settings))
        return CONTRADICTS("plan",
                           ("is %s, swap_ab = %d, split_k = %d, prefetch_stages = %d, ctas_per_sm = %d, which is none "
                            "of the %d plans for a product of M = %lld, N = %lld, K = %lld, L = %lld%s%s%s on cuda:%d",
                            plan->name, plan->swap_ab, plan->split_k, plan->prefetch_stages, plan->ctas_per_sm,
                            call.candidates, (long long)shape->m, (long long)shape->n, (long long)shape->k,
                            (long long)shape->l, p->a_type == VALUES_E2M1 ? "" : " with a of ",
                            p->a_type == VALUES_E2M1 ? "" : nvfp4_dtype_name((nvfp4_dtype)p->a_type),
                            p->product_kind == PRODUCT_GEMM_NN ? ", b not transposed," : "", call.where.device));
    const plan_override one = {.key = override_key_of(call.where.device, p), .settings = settings};
    return overrides_add(context->overrides, &one);
}
