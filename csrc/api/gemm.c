/* One product: check, plan, launch. No family of kernels is named here. */
#include "api/gemm.h"

#include <stdio.h>
#include <string.h>

#include "api/launch.h"
#include "api/rules.h"
#include "common/error.h"
#include "plan/choose.h"

static int is_empty(const gemm_problem *p) {
    return p->m == 0 || p->n == 0 || p->l == 0;
}

/* The family of the lowest number that may run the call: the CPU's, or the GPU family that says why there is no
 * candidate. */
static int32_t first_family(const target *where) {
    return __builtin_ctz(where->families);
}

static int32_t last_family(const target *where) {
    return 31 - __builtin_clz(where->families);
}

/* Those of some families that multiply an A of this type, and B if it is not to be transposed. */
static uint32_t taking(uint32_t families, const gemm_problem *p) {
    for (int32_t f = 0; f < GEMM_FAMILIES && p->a_type != VALUES_E2M1; f++)
        if (families >> f & 1 &&
            !(p->no_transpose_b ? gemm_families[f]->takes_no_transpose_b : gemm_families[f]->takes_16_bit_a))
            families &= ~(1u << f);
    return families;
}

static nvfp4_status choose_on_gpu(prepared_call *call, const plan_settings *override, int32_t rank, uint32_t flags) {
    const target *where = &call->where;
    plan_query query;
    memset(&query, 0, sizeof query);
    query.traits = traits_of(&call->problem.gemm);
    query.props = *where->props;
    query.families = taking(where->families, &call->problem.gemm);
    if (query.families == 0 && query.traits.no_transpose_b)
        return fail(NVFP4_UNSUPPORTED,
                    "transpose_b: is False, which the %s kernels do not take; must be True, or the backend sm80",
                    gemm_families[last_family(where)]->name);
    if (query.families == 0)
        return fail(
            NVFP4_UNSUPPORTED,
            "a: dtype is %s, which the %s kernels do not take; must be uint8 or float4_e2m1fn_x2, or the backend "
            "sm80",
            nvfp4_dtype_name(query.traits.a_type), gemm_families[last_family(where)]->name);
    query.override = *override;
    query.rank = rank;
    query.batch_invariant = (flags & NVFP4_BATCH_INVARIANT) != 0;
    const plan_choice *choice = plan_choose(&query);
    call->candidates = choice->candidates;
    if (choice->candidates == 0 && query.batch_invariant)
        return fail(
            NVFP4_UNSUPPORTED,
            "flags: no kernel of this backend is batch invariant for M = %lld, N = %lld, K = %lld, L = %lld and "
            "operands that lie so; M * L must be smaller, or the backend auto or sm80",
            (long long)query.traits.m, (long long)query.traits.n, (long long)query.traits.k, (long long)query.traits.l);
    if (choice->candidates == 0) return gemm_families[first_family(where)]->reject(&query.props, &query.traits);
    call->candidate = choice->taken;
    return NVFP4_OK;
}

static nvfp4_status choose(nvfp4_context *context, uint32_t flags, prepared_call *call) {
    const target *where = &call->where;
    call->candidates = 0;
    if (where->on_gpu && call->is_empty) {
        call->candidate = (gemm_candidate){
            .family = last_family(where), .name = "none", .reason = "the result is empty", .split_k = 1};
        return NVFP4_OK;
    }
    if (where->on_gpu) {
        const plan_settings override = overrides_find(&context->overrides, where->device, &call->problem.gemm);
        return choose_on_gpu(call, &override, context->rank, flags);
    }
    const gemm_family *family = gemm_families[first_family(where)];
    if (!family->candidates(NULL, NULL, &call->candidate)) return family->reject(NULL, NULL);
    call->candidate.batch_invariant = (flags & NVFP4_BATCH_INVARIANT) != 0;
    return NVFP4_OK;
}

void bind_gemm(const checked_call *c, prepared_call *call) {
    const nvfp4_gemm_args *args = c->args;
    call->problem.gemm.out = args->out.data;
}

nvfp4_status gemm_plan(nvfp4_context *context, const checked_call *c, prepared_call *call) {
    const nvfp4_gemm_args *args = c->args;
    nvfp4_status status = find_target(context, args->backend, args->a.device, &call->where);
    return status ? status : choose(context, args->flags, call);
}

static nvfp4_status run_on_gpu(nvfp4_context *context, const nvfp4_call *how, const prepared_call *call) {
    const gemm_candidate *candidate = &call->candidate;
    const gemm_family *family = gemm_families[candidate->family];
    void *workspace;
    launch_plan plan;
    nvfp4_status status = find_workspace(how, candidate->workspace, &workspace);
    if (status) return status;
    launch_plan_init(&plan);
#ifdef NVFP4_DUMP
    plan.dump = context->dump, plan.dump_cta = context->dump_cta, plan.dump_k_block = context->dump_k_block;
#endif
    family->build(call->where.props, &call->problem.gemm, candidate, workspace, &plan);
    return launch_steps(context, &call->where, family->kernels, &plan, how->stream);
}

nvfp4_status gemm_run(nvfp4_context *context, const checked_call *c, const prepared_call *call) {
    const nvfp4_call *how = c->args;
    if (call->where.on_gpu) return run_on_gpu(context, how, call);
    return gemm_families[call->candidate.family]->run_host(&call->problem.gemm, &call->candidate, how->threads);
}

/* ---- plans without a launch ---- */

static void describe(const prepared_call *call, nvfp4_plan *plan) {
    const gemm_candidate *c = &call->candidate;
    *plan = (nvfp4_plan){
        .backend = c->family,
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
    };
}

nvfp4_status nvfp4_gemm_plan(nvfp4_context *context, const nvfp4_gemm_args *args, nvfp4_plan *plan) {
    operation_args own;
    prepared_call call;
    const checked_call c = {&gemm_operation, complete_args(&gemm_operation, args, &own)};
    if (!c.args) return NVFP4_INVALID;
    nvfp4_status status = operation_prepare(context, &c, &call);
    if (!status) describe(&call, plan);
    return status;
}

/* A product of this shape, contiguous and aligned. */
static nvfp4_status problem_of_shape(int32_t a_dtype, uint32_t flags, int64_t m, int64_t n, int64_t k, int64_t l,
                                     gemm_problem *p) {
    nvfp4_status status = check_flags(flags);
    if (status) return status;
    if (a_dtype != NVFP4_NONE && a_dtype != NVFP4_FP16 && a_dtype != NVFP4_BF16)
        return fail(NVFP4_INVALID, "a_dtype: is %s; must be none (NVFP4), float16 or bfloat16",
                    nvfp4_dtype_name(a_dtype));
    if (m < 0 || n < 0 || k < 0 || l < 0 || m > INT32_MAX || n > INT32_MAX || k > INT32_MAX || l > INT32_MAX || k % 16)
        return fail(NVFP4_INVALID,
                    "shape: is %lld x %lld x %lld x %lld; M, N, K, L must be between 0 and %d, and K a "
                    "multiple of 16",
                    (long long)m, (long long)n, (long long)k, (long long)l, INT32_MAX);
    int64_t count;
    if (__builtin_mul_overflow(m * n, l, &count) || count > INT64_MAX / 8) /* as check.c bounds a tensor */
        return fail(NVFP4_INVALID, "shape: M, N, L are %lld, %lld, %lld; their product must be at most 2^60",
                    (long long)m, (long long)n, (long long)l);
    const int no_transpose_b = (flags & NVFP4_NO_TRANSPOSE_B) != 0;
    if (no_transpose_b && a_dtype == NVFP4_NONE)
        return fail(NVFP4_INVALID,
                    "transpose_b: is False but a_dtype is none (NVFP4); must be True, or a_dtype float16 or "
                    "bfloat16");
    const int64_t columns = no_transpose_b ? k : n, sums_of = no_transpose_b ? n : k;
    if (__builtin_mul_overflow(m * columns, l, &count) || count > INT64_MAX / 8)
        return fail(NVFP4_INVALID, "shape: M, K, L are %lld, %lld, %lld; their product must be at most 2^60",
                    (long long)m, (long long)k, (long long)l);
    const int64_t a_row = a_dtype == NVFP4_NONE ? k / 2 : sums_of * 2;
    *p = (gemm_problem){.m = m,
                        .n = columns,
                        .k = sums_of,
                        .l = l,
                        .a_pitch = a_row,
                        .b_pitch = k / 2,
                        .a_batch = m * a_row,
                        .b_batch = n * k / 2,
                        .sfa_batch = a_dtype == NVFP4_NONE ? swizzled_bytes(m, k / 16) : 0,
                        .sfb_batch = swizzled_bytes(n, k / 16),
                        .out_type = NVFP4_FP16,
                        .out_pitch = columns * 2,
                        .out_batch = m * columns * 2,
                        .aligned16 = k % 32 == 0 && a_row % 16 == 0,
                        .a_type = a_dtype == NVFP4_NONE ? VALUES_E2M1 : a_dtype,
                        .no_transpose_b = no_transpose_b};
    return NVFP4_OK;
}

nvfp4_status nvfp4_plan_shape(nvfp4_context *context, int32_t device, int32_t backend, int32_t a_dtype, uint32_t flags,
                              int64_t m, int64_t n, int64_t k, int64_t l, nvfp4_plan *plan) {
    prepared_call call;
    nvfp4_status status = problem_of_shape(a_dtype, flags, m, n, k, l, &call.problem.gemm);
    if (!status) status = find_target(context, backend, device, &call.where);
    call.is_empty = !status && is_empty(&call.problem.gemm);
    if (!status) status = choose(context, flags, &call);
    if (!status) describe(&call, plan);
    return status;
}

/* The settings that a plan names; family NVFP4_AUTO and kernel -1 where no kernel has its name. */
static plan_settings settings_of(const nvfp4_plan *plan) {
    plan_settings s = {.kernel = -1,
                       .swap_ab = plan->swap_ab,
                       .split_k = plan->split_k,
                       .prefetch_stages = plan->prefetch_stages,
                       .ctas_per_sm = plan->ctas_per_sm};
    for (int32_t f = 0; f < GEMM_FAMILIES; f++) {
        const kernel_set *set = gemm_families[f] ? gemm_families[f]->kernels : NULL;
        for (int32_t k = 0; set && k < set->count; k++)
            if (strcmp(plan->name, set->kernels[k].name) == 0) s.family = f, s.kernel = k;
    }
    return s;
}

nvfp4_status nvfp4_override_plan(nvfp4_context *context, int32_t device, int64_t m, int64_t n, int64_t k, int64_t l,
                                 const nvfp4_plan *plan) {
    prepared_call call;
    if (!plan->name) return fail(NVFP4_INVALID, "plan: has no name; must be one that nvfp4_gemm_plan has filled");
    if (device < 0) return fail(NVFP4_INVALID, "device: is %d; must be the ordinal of a GPU", device);
    const plan_settings settings = settings_of(plan);
    static const struct {
        int32_t a_dtype;
        uint32_t flags;
    } kinds[] = {{NVFP4_NONE, 0}, /* a kernel multiplies one of them */
                 {NVFP4_FP16, 0},
                 {NVFP4_BF16, 0},
                 {NVFP4_FP16, NVFP4_NO_TRANSPOSE_B},
                 {NVFP4_BF16, NVFP4_NO_TRANSPOSE_B}};
    int found = 0, plans = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !found; i++) {
        nvfp4_status status = problem_of_shape(kinds[i].a_dtype, kinds[i].flags, m, n, k, l, &call.problem.gemm);
        if (!status) status = find_target(context, settings.family, device, &call.where);
        if (status) return status;
        call.candidates = 0;
        if (is_empty(&call.problem.gemm) || !taking(call.where.families, &call.problem.gemm)) continue;
        status = choose_on_gpu(&call, &settings, 0, 0);
        if (status) return status;
        if (i == 0) plans = call.candidates; /* of NVFP4 A, for the message */
        found = candidate_is(&call.candidate, &settings);
    }
    if (!found)
        return fail(
            NVFP4_INVALID,
            "plan: is %s, swap_ab = %d, split_k = %d, prefetch_stages = %d, ctas_per_sm = %d, which is none of the %d "
            "plans for a product of M = %lld, N = %lld, K = %lld, L = %lld on cuda:%d",
            plan->name, plan->swap_ab, plan->split_k, plan->prefetch_stages, plan->ctas_per_sm, plans, (long long)m,
            (long long)n, (long long)k, (long long)l, call.where.device);
    const gemm_problem *p = &call.problem.gemm;
    const plan_override one = {
        .device = call.where.device, .m = p->m, .n = p->n, .k = p->k, .l = p->l, .settings = settings};
    return overrides_add(&context->overrides, &one);
}
