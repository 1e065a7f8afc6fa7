/* One product: check, plan, launch. */
#include <string.h>

#include "check.h"
#include "context.h"
#include "error.h"
#include "sm100_plan.h"
#include "sm80_plan.h"
#include "sm90_gemv_plan.h"
#include "sm90_plan.h"

/* A call that has passed every check, and how it will be run. */
typedef struct route {
    gemm_problem problem;
    place where;
    nvfp4_plan plan;
    union { /* where it runs on the GPU: of plan.backend */
        sm80_schedule sm80;
        sm90_run sm90;
        sm100_schedule sm100;
    };
} route;

static int is_empty(const gemm_problem *p) {
    return p->m == 0 || p->n == 0 || p->l == 0;
}

/* Where sm90 is not asked for, sm80 takes what needs too large a workspace, and what it is faster at. */
static nvfp4_status plan_sm90(route *r, const plan_wish *wish) {
    const device_facts *facts = r->where.facts;
    nvfp4_status status = sm90_plan(facts, &r->problem, wish, &r->plan, &r->sm90);
    if (!r->where.by_rule || (!status && !sm90_yields_to_sm80(facts, &r->problem, wish, &r->plan))) return status;
    route other = *r;
    forget_error();
    nvfp4_status fails = sm80_plan(facts, &other.problem, &other.plan, &other.sm80);
    if (fails && status) return fails;
    if (fails)
        forget_error();
    else
        *r = other;
    return NVFP4_OK;
}

static nvfp4_status plan_on_gpu(route *r, const plan_wish *wish) {
    switch (r->where.family) {
    case NVFP4_BACKEND_SM100:
        return sm100_plan(r->where.facts, &r->problem, wish, &r->plan, &r->sm100);
    case NVFP4_BACKEND_SM90:
        return plan_sm90(r, wish);
    default:
        return sm80_plan(r->where.facts, &r->problem, &r->plan, &r->sm80);
    }
}

static nvfp4_status plan_route(route *r) {
    const place *where = &r->where;
    if (!where->on_gpu) {
        plan_cpu(where->isa, &r->plan);
        return NVFP4_OK;
    }
    if (is_empty(&r->problem)) {
        r->plan = (nvfp4_plan){.backend = where->family, .name = "none", .reason = "the result is empty", .split_k = 1};
        return NVFP4_OK;
    }
    const plan_wish wish = {preferences_find(where->preferences, where->device, &r->problem), where->candidate};
    return plan_on_gpu(r, &wish);
}

static nvfp4_status find_route(nvfp4_context *context, const nvfp4_gemm_args *args, route *r) {
    nvfp4_status status = check_gemm(args, &r->problem);
    if (!status) status = find_place(context, args->backend, args->a.device, &r->where);
    return status ? status : plan_route(r);
}

static nvfp4_status find_workspace(const nvfp4_plan *plan, const nvfp4_gemm_args *args, float **workspace) {
    *workspace = args->workspace;
    if (plan->workspace == 0) return NVFP4_OK;
    if (args->allocate) {
        forget_error();
        *workspace = args->allocate(args->owner, plan->workspace);
        if (*workspace) return NVFP4_OK;
        if (*nvfp4_last_error()) return NVFP4_OUT_OF_MEMORY; /* our own front ends say why */
        return fail(NVFP4_OUT_OF_MEMORY, "workspace: no memory for %zu bytes", plan->workspace);
    }
    if (plan->workspace <= args->workspace_size && (uintptr_t)args->workspace % 16 == 0) return NVFP4_OK;
    return fail(NVFP4_INVALID, "workspace: has %zu bytes at %p; must have %zu, aligned to 16 (nvfp4_gemm_plan)",
                args->workspace_size, args->workspace, plan->workspace);
}

static nvfp4_status launch_sm80(driver *d, route *r, const nvfp4_gemm_args *args) {
    nvfp4_status status = find_workspace(&r->plan, args, &r->sm80.partials);
    if (status) return status;
    void *arguments[] = {&r->problem, &r->sm80};
    kernel_launch launch = {
        .kernel = (kernel_id)r->plan.kernel, .grid = r->plan.grid, .arguments = arguments, .queue = args->queue};
    status = driver_launch(d, r->where.device, &launch);
    launch.kernel = KERNEL_SM80_SPLIT_REDUCE;
    launch.grid = r->sm80.reduce_grid;
    return status || launch.grid == 0 ? status : driver_launch(d, r->where.device, &launch);
}

static nvfp4_status encode(driver *d, int32_t device, const plan_tensor *tensors, int count) {
    nvfp4_status status = NVFP4_OK;
    for (int i = 0; i < count && !status; i++) status = driver_encode(d, device, &tensors[i].layout, tensors[i].map);
    return status;
}

/* The expansion of operands, which comes before the dense product of them. */
static nvfp4_status launch_sm90_dequant(driver *d, route *r, const nvfp4_gemm_args *args) {
    sm90_dequant_run *run = &r->sm90.expand;
    if (run->grid == 0) return NVFP4_OK;
    void *arguments[] = {&run->schedule};
    const kernel_launch launch = {
        .kernel = KERNEL_SM90_DEQUANT, .grid = run->grid, .arguments = arguments, .queue = args->queue};
    return driver_launch(d, r->where.device, &launch);
}

static nvfp4_status launch_sm90(driver *d, route *r, const nvfp4_gemm_args *args) {
    sm90_run *run = &r->sm90;
    float *workspace;
    plan_tensor tensors[PLAN_MOST_TENSORS];
    nvfp4_status status = find_workspace(&r->plan, args, &workspace);
    if (!status) sm90_place_workspace(run, workspace);
    if (!status) status = encode(d, r->where.device, tensors, sm90_tensors(&r->problem, &r->plan, run, tensors));
    if (!status) status = launch_sm90_dequant(d, r, args);
    if (status) return status;
    void *schedule = run->form == SM90_GEMV    ? (void *)&run->gemv
                     : run->form == SM90_DENSE ? (void *)&run->dense
                                               : (void *)&run->gemm;
    if (run->form == SM90_GEMV && r->plan.swap_ab) r->problem = sm90_gemv_exchanged(&r->problem);
    void *arguments[] = {&r->problem, schedule};
    const kernel_launch launch = {.kernel = (kernel_id)r->plan.kernel,
                                  .cluster = sm90_cluster(&r->plan, run),
                                  .grid = sm90_grid_x(&r->plan, run),
                                  .grid_y = r->plan.grid / sm90_grid_x(&r->plan, run),
                                  .more_shared_bytes = sm90_more_shared_bytes(&r->plan, run),
                                  .arguments = arguments,
                                  .queue = args->queue};
    return driver_launch(d, r->where.device, &launch);
}

static nvfp4_status launch_sm100(driver *d, route *r, const nvfp4_gemm_args *args) {
    plan_tensor tensors[PLAN_MOST_TENSORS];
    nvfp4_status status = encode(d, r->where.device, tensors, sm100_tensors(&r->problem, &r->plan, &r->sm100, tensors));
    if (status) return status;
    void *arguments[] = {&r->problem, &r->sm100};
    const kernel_launch launch = {.kernel = (kernel_id)r->plan.kernel,
                                  .cluster = sm100_cluster(&r->plan),
                                  .grid = r->plan.grid,
                                  .more_shared_bytes = sm100_parts_bytes(&r->plan, &r->sm100),
                                  .arguments = arguments,
                                  .queue = args->queue};
    return driver_launch(d, r->where.device, &launch);
}

static nvfp4_status launch(nvfp4_context *context, route *r, const nvfp4_gemm_args *args) {
    driver *d = context->driver;
#ifdef NVFP4_DUMP
    if (r->plan.backend == NVFP4_BACKEND_SM100)
        r->sm100.dump = context->dump, r->sm100.dump_cta = context->dump_cta, r->sm100.dump_block = context->dump_block;
#endif
    nvfp4_status status = r->plan.backend == NVFP4_BACKEND_SM100  ? launch_sm100(d, r, args)
                          : r->plan.backend == NVFP4_BACKEND_SM90 ? launch_sm90(d, r, args)
                                                                  : launch_sm80(d, r, args);
    if (!r->where.host_memory) return status;
    nvfp4_status waited = driver_wait(d, r->where.device, args->queue); /* also for what a failed call did launch */
    return status ? status : waited;
}

nvfp4_status nvfp4_gemm_plan(nvfp4_context *context, const nvfp4_gemm_args *args, nvfp4_plan *plan) {
    route r;
    nvfp4_status status = find_route(context, args, &r);
    if (!status) *plan = r.plan;
    return status;
}

nvfp4_status nvfp4_gemm(nvfp4_context *context, const nvfp4_gemm_args *args) {
    route r;
    nvfp4_status status = find_route(context, args, &r);
    if (!status) status = check_gemm_data_present(args);
    if (status || is_empty(&r.problem)) return status;
    return r.where.on_gpu ? launch(context, &r, args) : cpu_gemm(&r.problem, r.where.isa, args->threads);
}

/* A dense product of this shape. */
static nvfp4_status find_problem(int64_t m, int64_t n, int64_t k, int64_t l, gemm_problem *p) {
    if (m < 0 || n < 0 || k < 0 || l < 0 || m > INT32_MAX || n > INT32_MAX || k > INT32_MAX || l > INT32_MAX || k % 16)
        return fail(NVFP4_INVALID,
                    "shape: is %lld x %lld x %lld x %lld; M, N, K, L must be between 0 and %d, and K a "
                    "multiple of 16",
                    (long long)m, (long long)n, (long long)k, (long long)l, INT32_MAX);
    int64_t count;
    if (__builtin_mul_overflow(m * n, l, &count) || count > INT64_MAX / 8) /* as check.c bounds a tensor */
        return fail(NVFP4_INVALID, "shape: M, N, L are %lld, %lld, %lld; their product must be at most 2^60",
                    (long long)m, (long long)n, (long long)l);
    *p = (gemm_problem){.m = m,
                        .n = n,
                        .k = k,
                        .l = l,
                        .a_pitch = k / 2,
                        .b_pitch = k / 2,
                        .a_batch = m * k / 2,
                        .b_batch = n * k / 2,
                        .out_type = NVFP4_FP16,
                        .out_pitch = n * 2,
                        .out_batch = m * n * 2,
                        .aligned16 = k % 32 == 0};
    return NVFP4_OK;
}

nvfp4_status nvfp4_plan_shape(nvfp4_context *context, int32_t device, int32_t backend, int64_t m, int64_t n, int64_t k,
                              int64_t l, nvfp4_plan *plan) {
    route r;
    nvfp4_status status = find_problem(m, n, k, l, &r.problem);
    if (!status) status = find_place(context, backend, device, &r.where);
    if (!status) status = plan_route(&r);
    if (!status) *plan = r.plan;
    return status;
}

/* The kernel of this name; KERNEL_COUNT, which no plan has, for none. */
static kernel_id kernel_named(const char *name) {
    int32_t id = 0;
    while (id < KERNEL_COUNT && strcmp(name, kernels[id].name) != 0) id++;
    return (kernel_id)id;
}

/* The backend that has a kernel and more than one plan; NVFP4_AUTO for none. */
static int32_t family_of(int32_t kernel) {
    kernel_arch arch = kernel < KERNEL_COUNT ? kernels[kernel].arch : ARCH_SM80;
    return arch == ARCH_SM100 ? NVFP4_BACKEND_SM100 : arch == ARCH_SM90 ? NVFP4_BACKEND_SM90 : NVFP4_AUTO;
}

nvfp4_status nvfp4_prefer(nvfp4_context *context, int32_t device, int64_t m, int64_t n, int64_t k, int64_t l,
                          const nvfp4_plan *wanted) {
    route r;
    if (!wanted->name) return fail(NVFP4_INVALID, "plan: has no name; must be one that nvfp4_gemm_plan has filled");
    if (device < 0) return fail(NVFP4_INVALID, "device: is %d; must be the ordinal of a GPU", device);
    const plan_wish wish = {
        .first = {kernel_named(wanted->name), wanted->swap_ab, wanted->split_k, wanted->prefetch_stages}};
    nvfp4_status status = find_problem(m, n, k, l, &r.problem);
    if (!status) status = find_place(context, family_of(wish.first.kernel), device, &r.where);
    if (status) return status;
    r.plan.candidates = 0;
    if (!is_empty(&r.problem)) status = plan_on_gpu(&r, &wish);
    if (status) return status;
    if (r.plan.candidates == 0 || r.plan.kernel != wish.first.kernel || r.plan.swap_ab != wanted->swap_ab ||
        r.plan.split_k != wanted->split_k || r.plan.prefetch_stages != wanted->prefetch_stages)
        return fail(
            NVFP4_INVALID,
            "plan: is %s, swap_ab = %d, split_k = %d, prefetch_stages = %d, which is none of the %d plans for a "
            "product of M = %lld, N = %lld, K = %lld, L = %lld on cuda:%d",
            wanted->name, wanted->swap_ab, wanted->split_k, wanted->prefetch_stages, r.plan.candidates, (long long)m,
            (long long)n, (long long)k, (long long)l, r.where.device);
    const preference one = {.device = r.where.device, .m = m, .n = n, .k = k, .l = l, .settings = wish.first};
    return preferences_add(&context->preferences, &one);
}
