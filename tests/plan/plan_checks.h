/* Shared by the plan tests of all backends: GPUs, products and ways for them to lie in memory, and the rules that every
 * candidate and every launch plan keeps. Included by one program at a time. */
#ifndef NVFP4_TESTS_PLAN_CHECKS_H
#define NVFP4_TESTS_PLAN_CHECKS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grouped_problem.h"
#include "common/math.h"
#include "plan/choose.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static int passed, failed;
static char about[256]; /* what a failure is reported of */

static int expect(int holds, const char *rule) {
    passed += holds != 0;
    failed += holds == 0;
    if (!holds && failed <= 100) printf("FAILED: %s: %s\n", about, rule);
    return holds;
}

static int report(void) {
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

/* ---- GPUs and products ---- */

/* Compute capability, SMs, shared memory of a CTA and of an SM, L2 (CUDA programming guide, technical specifications).
 */
typedef struct gpu {
    const char *name;
    device_props props;
} gpu;
enum { A100, RTX_3090, RTX_4090, H200, H100_PCIE, H200_SLICE, B200, B200_SLICE, B300_ODD, THOR, RTX_5090, GPUS };
static const gpu gpus[GPUS] = {
    [A100] = {"A100", {80, 108, 166912, 167936, 1410, 2039, 40 << 20, {{0}}}},
    [RTX_3090] = {"RTX 3090", {86, 82, 101376, 102400, 1695, 936, 6 << 20, {{0}}}},
    [RTX_4090] = {"RTX 4090", {89, 128, 101376, 102400, 2520, 1008, 72 << 20, {{0}}}},
    [H200] = {"H200", {90, 132, 232448, 233472, 1980, 4814, 50 << 20, {{0}}}},
    [H100_PCIE] = {"H100 PCIe", {90, 114, 232448, 233472, 1755, 2039, 50 << 20, {{0}}}},
    [H200_SLICE] = {"a slice of an H200", {90, 16, 232448, 233472, 0, 0, 6 << 20, {{0}}}},
    [B200] = {"B200", {100, 148, 232448, 233472, 1965, 8184, 126 << 20, {{0}}}},
    [B200_SLICE] = {"a slice of a B200", {100, 18, 232448, 233472, 0, 0, 18 << 20, {{0}}}},
    [B300_ODD] = {"a B300 with an odd number of SMs", {103, 33, 232448, 233472, 1920, 8184, 126 << 20, {{0}}}},
    [THOR] = {"Thor", {110, 20, 232448, 233472, 1575, 273, 32 << 20, {{0}}}},
    [RTX_5090] = {"RTX 5090", {120, 170, 101376, 102400, 2407, 1792, 96 << 20, {{0}}}},
};

static inline int runs_on(int32_t backend, const gpu *g) {
    const kernel_set *set = gemm_backends[backend]->kernels;
    return g->props.compute_capability >= set->min_capability && g->props.compute_capability <= set->max_capability;
}

typedef enum variant {
    PLAIN,
    LINEAR,
    UNALIGNED,
    FP32,          /* of C; an alpha for each column */
    FAR_ROWS,      /* of A: further apart than a tensor map can say, */
    FAR_BATCHES,   /* and its batches */
    ONE_FOR_ALL,   /* A and its scales serve all batches */
    ONE_A_FOR_ALL, /* its values alone do */
    BIASED,
    FP16_A, /* A of 16 bits */
    BF16_A,
    VARIANTS
} variant;

static uint8_t memory[6][16] __attribute__((aligned(16))); /* whose addresses stand for operands; nothing is read */

static inline gemm_problem problem(int64_t m, int64_t n, int64_t k, int64_t l, variant v) {
    const int32_t a_type = v == FP16_A ? NVFP4_FP16 : v == BF16_A ? NVFP4_BF16 : VALUES_E2M1;
    const int64_t a_row = a_type == VALUES_E2M1 ? k / 2 : k * 2;
    const int64_t pitch = v == FAR_ROWS ? TENSOR_STRIDE_END : a_row, element = v == FP32 ? 4 : 2;
    const int64_t scale_pitch = v == LINEAR ? k / 16 : ceil_div(k, 64) * 512;
    const int one_a = v == ONE_FOR_ALL || v == ONE_A_FOR_ALL;
    gemm_problem p;
    memset(&p, 0, sizeof p);
    p.m = m, p.n = n, p.k = k, p.l = l;
    p.a = memory[0], p.b = memory[1];
    p.a_pitch = m > 1 ? pitch : a_row, p.b_pitch = k / 2;
    p.a_batch = v == FAR_BATCHES ? TENSOR_STRIDE_END : one_a ? 0 : m * pitch;
    p.b_batch = n * k / 2;
    p.scale_a = memory[2], p.scale_b = memory[3];
    p.scale_a_pitch = p.scale_b_pitch = scale_pitch;
    p.scale_a_batch = v == ONE_FOR_ALL ? 0 : scale_pitch * (v == LINEAR ? m : ceil_div(m, 128));
    p.scale_b_batch = scale_pitch * (v == LINEAR ? n : ceil_div(n, 128));
    if (a_type != VALUES_E2M1) p.scale_a = NULL, p.scale_a_pitch = p.scale_a_batch = 0;
    p.a_type = a_type;
    p.out = memory[4];
    p.out_pitch = n * element;
    p.out_batch = m * n * element;
    p.alpha = v == FP32 ? (const float *)memory[5] : NULL, p.alpha_stride = v == FP32;
    p.alpha_value = 1;
    p.bias = v == BIASED ? memory[5] : NULL;
    p.scale_layout = v == LINEAR ? NVFP4_LINEAR : NVFP4_128X4;
    p.out_type = v == FP32 ? NVFP4_FP32 : NVFP4_FP16;
    p.bias_type = NVFP4_FP32;
    p.aligned16 = v != UNALIGNED && k % 32 == 0;
    p.constant_b = (m + n + k / 16 + (int)v) % 2;
    return p;
}

/* A product of groups of m rows in all. */
static inline grouped_problem grouped(int32_t kind, int64_t m, int64_t n, int64_t k, int32_t groups, int32_t parts,
                                      variant v) {
    static int32_t ends[1], rows[1];
    grouped_problem p = {.g = problem(m, n, k, (int64_t)groups * parts, v), .ends = ends, .rows = rows};
    p.g.product_kind = kind;
    p.g.a_batch = 0, p.g.out_batch = n * 2;
    p.a_rows = m, p.groups = groups, p.parts = parts;
    p.constant_ends = (m + n / 8) % 2;
    if (p.g.a_type == VALUES_E2M1) {
        p.g.scale_a_batch = 0;
        if (p.g.scale_layout == NVFP4_128X4)
            p.rows = NULL, p.scale_rows = rows, p.scale_a_rows = ceil_div(m, 128) * 128;
    }
    return p;
}

/* The same with an activation, by SwiGLU where there are gate and up. */
static inline grouped_problem with_activation(const grouped_problem *product) {
    grouped_problem p = *product;
    p.has_activation = 1;
    p.activation = p.parts == 2 ? NVFP4_SWIGLU : NVFP4_SILU;
    p.limit = 7.0f, p.activation_alpha = 3.0f;
    p.g.out_batch = 0;
    return p;
}

/* Rows or batches of A further apart than a tensor map can say. */
static inline int is_far(const gemm_problem *p) {
    const int64_t batch = max_int(p->a_batch, p->b_batch);
    return (p->m > 1 && p->a_pitch >= TENSOR_STRIDE_END) || (p->l > 1 && batch >= TENSOR_STRIDE_END);
}

static inline void name_product(const gpu *g, const gemm_problem *p, variant v) {
    snprintf(about, sizeof about, "%s, %lld x %lld x %lld x %lld, variant %d", g->name, (long long)p->m,
             (long long)p->n, (long long)p->k, (long long)p->l, (int)v);
}

static inline void name_candidate(const gpu *g, const gemm_problem *p, variant v, const gemm_candidate *c) {
    name_product(g, p, v);
    const size_t used = strlen(about);
    snprintf(about + used, sizeof about - used, ": %s, swap_ab %d, split %d, prefetch %d, %d CTAs an SM",
             c->name ? c->name : "(null)", c->swap_ab, c->split_k, c->prefetch_stages, c->ctas_per_sm);
}

/* The traits with the number of groups, of a grouped_problem. */
static inline gemm_traits traits_of_product(const gemm_problem *p) {
    gemm_traits t = traits_of(p);
    if (t.product_kind >= PRODUCT_GROUPED) t.groups = ((const grouped_problem *)p)->groups;
    return t;
}

/* ---- candidates ---- */

typedef struct candidate_list {
    int32_t count;
    gemm_candidate all[MAX_CANDIDATES + 1]; /* the last one is not the backend's to write */
} candidate_list;

static inline int same_settings(const gemm_candidate *x, const gemm_candidate *y) {
    return x->backend == y->backend && x->kernel == y->kernel && x->swap_ab == y->swap_ab && x->split_k == y->split_k &&
           x->prefetch_stages == y->prefetch_stages && x->ctas_per_sm == y->ctas_per_sm;
}

static inline plan_settings settings_of(const gemm_candidate *c) {
    return (plan_settings){c->backend, c->kernel, c->swap_ab, c->split_k, c->prefetch_stages, c->ctas_per_sm};
}

static inline void list_candidates(int32_t backend, const gpu *g, const gemm_problem *p, int garbage,
                                   candidate_list *list) {
    const gemm_traits t = traits_of_product(p);
    memset(list->all, garbage, sizeof list->all);
    const gemm_planner *planner = planner_of(backend, t.product_kind, t.a_type);
    list->count = planner ? planner->candidates(&g->props, &t, list->all) : 0;
    unsigned char untouched[sizeof *list->all];
    memset(untouched, garbage, sizeof untouched);
    expect(list->count >= 0 && list->count <= MAX_CANDIDATES &&
               memcmp(&list->all[MAX_CANDIDATES], untouched, sizeof untouched) == 0,
           "no more candidates than there is room for");
}

/* The first one of a sorted list. */
static inline int32_t first_of(const candidate_list *list) {
    int32_t first = 0;
    for (int32_t i = 1; i < list->count; i++)
        if (candidate_precedes(&list->all[i], &list->all[first])) first = i;
    return first;
}

static inline void check_candidate(int32_t backend, const gemm_candidate *c) {
    const kernel_set *set = gemm_backends[backend]->kernels;
    expect(c->backend == backend && c->kernel >= 0 && c->kernel < set->count, "a kernel of the backend");
    expect(!strcmp(c->name, set->kernels[c->kernel].name), "it says what");
    expect(c->reason && strlen(c->reason) > 20, "it says why");
    expect(c->modelled_us > 0.0 && c->modelled_us < 1e30, "it says how long that is modelled to take");
    expect(c->single_us == c->modelled_us + SINGLE_CALL_US, "and a single call, exactly: both rank alike");
    expect(c->grid > 0 && c->grid <= INT32_MAX, "a grid that can be launched");
    expect(c->workspace >= 0, "a workspace that can be allocated");
    expect(c->swap_ab == 0 || c->swap_ab == 1, "swap_ab is 0 or 1");
    expect(c->split_k >= 1 && c->prefetch_stages >= 0, "K has at least one part");
    expect(c->ctas_per_sm >= 0 && c->ctas_per_sm <= 2, "an SM has room for two CTAs at the most");
    expect(c->tile_m > 0 && c->tile_n > 0 && c->tile_k > 0 && c->stages > 0, "it says the tile");
}

/* Whether a backend lists a kernel of its kernel_set for a product. */
static inline int is_listed(int32_t backend, const gpu *g, const gemm_problem *p, int32_t kernel) {
    static candidate_list list;
    int found = 0;
    list_candidates(backend, g, p, 0, &list);
    for (int32_t i = 0; i < list.count; i++) found |= list.all[i].kernel == kernel;
    return found;
}

/* A GPU with exactly the shared memory that a kernel needs can run it, and one with less cannot. */
static inline void check_min_shared_memory(int32_t backend, gpu g, const gemm_problem *p, int32_t kernel) {
    const kernel_entry *entry = &gemm_backends[backend]->kernels->kernels[kernel];
    snprintf(about, sizeof about, "%s with little shared memory", entry->name);
    g.props.shared_per_block = entry->shared_bytes;
    expect(is_listed(backend, &g, p, kernel), "it fits a CTA exactly");
    g.props.shared_per_block--;
    expect(!is_listed(backend, &g, p, kernel), "it does not fit");
}

/* A product of NVFP4 operands on a GPU whose CTAs have less shared memory than any kernel of the backend needs. */
static inline void check_too_little_shared_memory(int32_t backend, gpu g, const gemm_problem *p) {
    const gemm_traits t = traits_of(p);
    static candidate_list list;
    g.props.shared_per_block = 48 << 10;
    list_candidates(backend, &g, p, 0, &list);
    expect(planner_of(backend, p->product_kind, p->a_type)->reject(&g.props, &t) == NVFP4_UNSUPPORTED &&
               list.count == 0 && strstr(nvfp4_last_error(), "the GPU has 49152 a CTA"),
           "too little shared memory is an error");
}

/* Settings name one candidate: nvfp4_override_plan relies on it. */
static inline void check_distinct(const candidate_list *list) {
    for (int32_t i = 0; i < list->count; i++)
        for (int32_t j = 0; j < i; j++)
            expect(!same_settings(&list->all[i], &list->all[j]), "no two candidates are alike");
}

/* ---- launch plans ---- */

/* An address that stands for a workspace. No count or stride looks like it, and it is aligned to 16 alone, which is
 * what callers give. */
enum { WORKSPACE_UPPER_BITS = 0x6AAA5555 };
static const uintptr_t WORKSPACE = (uintptr_t)WORKSPACE_UPPER_BITS << 32 | 0x10;

/* Bytes of a kernel's parameter; 0: it has none of that index. */
typedef size_t param_size(int32_t kernel, int32_t index);

static inline const launch_step *step_of(const launch_plan *plan, int32_t kernel) {
    for (int32_t i = 0; i < plan->steps; i++)
        if (plan->step[i].kernel == kernel) return &plan->step[i];
    return NULL;
}

static inline const void *param_of(const launch_plan *plan, const launch_step *step, int32_t index) {
    return plan->params + step->param_offset[index];
}

static inline void check_step(const gpu *g, const kernel_entry *kernel, const launch_step *s) {
    const device_props *props = &g->props;
    expect(s->grid_x >= 1 && s->grid_x <= INT32_MAX && s->grid_y >= 1 && s->grid_y <= 65535,
           "a grid that can be launched");
    expect(s->cluster >= 0 && s->cluster <= 8 && (s->cluster == 0 || s->grid_x % s->cluster == 0),
           "whole clusters of a size that every GPU has");
    expect(s->cluster == 0 || props->compute_capability >= 90, "clusters where there are any");
    expect(kernel->threads > 0 && kernel->threads <= 1024 && kernel->threads % 32 == 0, "whole warps");
    expect(s->shared_bytes >= kernel->shared_bytes && (kernel->more_shared || s->shared_bytes == kernel->shared_bytes),
           "the shared memory that the kernel is loaded for");
    expect(s->shared_bytes <= props->shared_per_block, "shared memory fits a CTA");
}

/* Parameters begin on 64 bytes, one behind the other, and are used by a step each or shared by steps. */
static inline void check_params(const launch_plan *plan, param_size *size_of) {
    int32_t end = 0;
    for (int32_t i = 0; i < plan->steps; i++) {
        const launch_step *s = &plan->step[i];
        expect(s->params >= 1 && s->params <= PLAN_MAX_PARAMS, "a kernel has parameters");
        for (int32_t j = 0; j < s->params; j++) {
            const int32_t size = (int32_t)size_of(s->kernel, j), offset = s->param_offset[j];
            expect(size > 0, "as many as the kernel has");
            expect(offset % 64 == 0 && offset >= 0 && offset + size <= plan->param_bytes, "a parameter in its place");
            expect(offset >= end || (i > 0 && offset == plan->step[0].param_offset[j] &&
                                     size == (int32_t)size_of(plan->step[0].kernel, j)),
                   "parameters do not overlap");
            end = (int32_t)max_int(end, offset + size);
        }
        expect(s->params == PLAN_MAX_PARAMS || size_of(s->kernel, s->params) == 0, "all that the kernel has");
    }
    expect(plan->param_bytes <= PLAN_PARAM_BYTES && plan->param_bytes == (end + 63) / 64 * 64, "room for parameters");
}

static inline int in_operand(const gemm_problem *p, const void *data) {
    return data == p->a || data == p->b || data == p->scale_a || data == p->scale_b;
}

/* Checks the rules of cuTensorMapEncodeTiled (CUDA driver API, tensor map object management). */
static inline void check_tensor_layout(const gemm_problem *p, const gemm_candidate *c, const tensor_layout *t) {
    const uintptr_t data = (uintptr_t)t->data;
    int64_t box_bytes = t->element_bytes;
    expect(t->name && *t->name, "a tensor map has a name");
    expect(data % 16 == 0, "a tensor map's data are aligned");
    expect(in_operand(p, t->data) || (data >= WORKSPACE && data < WORKSPACE + (uintptr_t)c->workspace),
           "a tensor map is of an operand or of the workspace");
    expect(t->rank >= 3 && t->rank <= 5 && (t->element_bytes == 1 || t->element_bytes == 2), "a tensor map's rank");
    for (int i = 0; i < t->rank; i++) {
        expect(t->dims[i] >= 1 && t->dims[i] <= (uint64_t)1 << 32, "a dimension is 1 to 2^32");
        expect(t->box[i] >= 1 && t->box[i] <= 256, "a box is 1 to 256");
        box_bytes *= t->box[i];
        if (i == 0) continue;
        expect(t->strides[i - 1] % 16 == 0 && t->strides[i - 1] < (uint64_t)TENSOR_STRIDE_END, "a stride is encodable");
    }
    const uint32_t row = t->box[0] * (uint32_t)t->element_bytes;
    expect(row % 16 == 0 && (!t->swizzle || row == (uint32_t)t->swizzle), "a box is a swizzle wide");
    expect(t->swizzle == 0 || t->swizzle == 64 || t->swizzle == 128, "a swizzle that exists");
    expect(box_bytes <= 64 << 10, "a box is no larger than a stage");
    if (data >= WORKSPACE && data < WORKSPACE + (uintptr_t)c->workspace) {
        double reach = (double)t->dims[0] * t->element_bytes;
        for (int i = 1; i < t->rank; i++) reach += (double)(t->dims[i] - 1) * (double)t->strides[i - 1];
        expect((double)(data - WORKSPACE) + reach <= (double)c->workspace,
               "what a tensor map reaches of the workspace is there");
    }
}

/* Each tensor map is in a parameter, on 64 bytes, and none overlaps another. */
static inline void check_tensor_maps(const gemm_problem *p, const gemm_candidate *c, const launch_plan *plan,
                                     param_size *size_of) {
    expect(plan->tensor_maps >= 0 && plan->tensor_maps <= PLAN_MAX_TENSOR_MAPS, "room for tensor maps");
    for (int32_t i = 0; i < plan->tensor_maps; i++) {
        const tensor_map_request *request = &plan->tensor_map[i];
        const int32_t begin = request->offset, end = begin + (int32_t)sizeof(tensor_map);
        int inside = 0;
        for (int32_t j = 0; j < plan->steps; j++)
            for (int32_t k = 0; k < plan->step[j].params; k++) {
                const int32_t param = plan->step[j].param_offset[k];
                inside |= begin >= param && end <= param + (int32_t)size_of(plan->step[j].kernel, k);
            }
        expect(begin % 64 == 0 && inside, "a tensor map is in a parameter, on 64 bytes");
        for (int32_t j = 0; j < i; j++)
            expect(end <= plan->tensor_map[j].offset ||
                       plan->tensor_map[j].offset + (int32_t)sizeof(tensor_map) <= begin,
                   "tensor maps do not overlap");
        check_tensor_layout(p, c, &request->layout);
    }
}

/* Every pointer of a parameter into the workspace points into its bytes, or, to nothing, behind them. */
static inline void check_workspace(const gemm_candidate *c, const launch_plan *plan) {
    for (int32_t at = 0; at < plan->param_bytes; at += (int32_t)sizeof(uintptr_t)) {
        uintptr_t word;
        memcpy(&word, plan->params + at, sizeof word);
        if (word >> 32 < (WORKSPACE >> 32) - 1 || word >> 32 > (WORKSPACE >> 32) + 0x200) continue; /* 2^41 bytes */
        expect(word >= WORKSPACE && word <= WORKSPACE + (uintptr_t)c->workspace, "pointers are into the workspace");
    }
}

static inline int same_step(const launch_step *x, const launch_step *y) {
    return x->kernel == y->kernel && x->cluster == y->cluster && x->grid_x == y->grid_x && x->grid_y == y->grid_y &&
           x->shared_bytes == y->shared_bytes && x->params == y->params &&
           memcmp(x->param_offset, y->param_offset, sizeof x->param_offset[0] * (size_t)x->params) == 0;
}

static inline int same_layout(const tensor_layout *x, const tensor_layout *y) {
    const size_t rank = (size_t)x->rank;
    return !strcmp(x->name, y->name) && x->data == y->data && x->element_bytes == y->element_bytes &&
           x->rank == y->rank && x->swizzle == y->swizzle && !memcmp(x->dims, y->dims, rank * sizeof *x->dims) &&
           !memcmp(x->strides, y->strides, (rank - 1) * sizeof *x->strides) &&
           !memcmp(x->box, y->box, rank * sizeof *x->box);
}

/* Whether all that is launched is the same; bytes between parameters are nobody's. */
static inline int same_launches(const launch_plan *x, const launch_plan *y, param_size *size_of) {
    if (x->steps != y->steps || x->tensor_maps != y->tensor_maps || x->param_bytes != y->param_bytes) return 0;
    for (int32_t i = 0; i < x->steps; i++) {
        const launch_step *s = &x->step[i];
        if (!same_step(s, &y->step[i])) return 0;
        for (int32_t j = 0; j < s->params; j++)
            if (memcmp(param_of(x, s, j), param_of(y, s, j), size_of(s->kernel, j)) != 0) return 0;
    }
    for (int32_t i = 0; i < x->tensor_maps; i++)
        if (x->tensor_map[i].offset != y->tensor_map[i].offset ||
            !same_layout(&x->tensor_map[i].layout, &y->tensor_map[i].layout))
            return 0;
    return 1;
}

/* A problem as planners take it; p begins a grouped_problem where its kind is one of groups. */
static inline product_problem whole_problem(const gemm_problem *p) {
    if (p->product_kind >= PRODUCT_GROUPED) return (product_problem){.grouped = *(const grouped_problem *)p};
    return (product_problem){.gemm = *p};
}

static inline void build_plan(const gpu *g, const gemm_problem *p, const gemm_candidate *c, int garbage,
                              launch_plan *plan) {
    memset(plan, garbage, sizeof *plan);
    launch_plan_init(plan);
#ifdef NVFP4_DUMP
    plan->dump = NULL, plan->dump_cta = plan->dump_k_block = 0;
#endif
    const gemm_planner *planner = planner_of(c->backend, p->product_kind, p->a_type);
    const product_problem problem = whole_problem(p);
    planner->build(&g->props, &problem, c, (void *)WORKSPACE, plan); /* NOLINT: nothing is read */
}

/* Builds a candidate's launch plan, and again from the same candidate of another list, and checks what holds for every
 * backend. The GEMM's step is the last or the first; returns it, or NULL. */
static inline const launch_step *check_launches(const gpu *g, const gemm_problem *p, const gemm_candidate *c,
                                                const gemm_candidate *again, param_size *size_of, launch_plan *plan) {
    static launch_plan other;
    const kernel_set *set = gemm_backends[c->backend]->kernels;
    check_candidate(c->backend, c);
    build_plan(g, p, c, 0xA5, plan);
    build_plan(g, p, again, 0x5A, &other);
    if (!expect(plan->steps >= 1 && plan->steps <= PLAN_MAX_STEPS, "room for steps")) return NULL;
    for (int32_t i = 0; i < plan->steps; i++) {
        if (!expect(plan->step[i].kernel >= 0 && plan->step[i].kernel < set->count, "kernels of the backend"))
            return NULL;
        for (int32_t j = 0; j < i; j++)
            expect(plan->step[i].kernel != plan->step[j].kernel, "a kernel is launched once");
        check_step(g, &set->kernels[plan->step[i].kernel], &plan->step[i]);
    }
    check_params(plan, size_of);
    check_tensor_maps(p, c, plan, size_of);
    check_workspace(c, plan);
    expect(same_settings(c, again) && c->grid == again->grid && c->workspace == again->workspace &&
               c->modelled_us == again->modelled_us && same_launches(plan, &other, size_of),
           "the same twice");
    const launch_step *gemm = step_of(plan, c->kernel);
    expect(gemm && gemm->grid_x * gemm->grid_y == c->grid, "the GEMM's grid is the candidate's");
    return gemm;
}

/* The grid of a product of groups: a CTA an SM, and tiles for any routing. tiles_n: of a matrix along N. A CTA's teams
 * count on from their last tile by the number of all. */
static inline void check_tiles_of_groups(const gpu *g, const grouped_problem *p, const gemm_candidate *c,
                                         const launch_step *step, int64_t tiles_n, int32_t teams) {
    const int64_t hit = min_int(p->groups, p->g.m);
    const int64_t tiles = (hit + (p->g.m - hit) / c->tile_m) * tiles_n * p->parts;
    expect(c->grid == min_int(tiles, g->props.sm_count) && step->grid_x == c->grid, "a CTA an SM, if it has a tile");
    expect(tiles <= INT32_MAX - g->props.sm_count * teams, "the number behind the last tile does not overflow");
}

/* ---- walks ---- */

/* Checks one candidate with its launch plan. `gemm` is the step of the candidate's kernel. */
typedef void candidate_check(const gpu *g, const gemm_problem *p, variant v, const gemm_candidate *c,
                             const launch_plan *plan, const launch_step *gemm);
/* Checks the error message of a product without candidates; returns whether there may be none. */
typedef int rejection_check(const gpu *g, const gemm_problem *p);

/* The candidate that a backend ranks first, or all of them. Returns how many there are. */
static inline int32_t check_product(int32_t backend, const gpu *g, const gemm_problem *p, variant v, int all,
                                    param_size *size_of, candidate_check *check, rejection_check *may_reject) {
    static candidate_list list, again;
    static launch_plan plan;
    if (!planner_of(backend, p->product_kind, p->a_type)) return 0;
    name_product(g, p, v);
    list_candidates(backend, g, p, 0xA5, &list);
    list_candidates(backend, g, p, 0x5A, &again);
    expect(list.count == again.count, "the same candidates twice");
    if (list.count == 0) {
        expect(may_reject(g, p), "a product without candidates");
        return 0;
    }
    const int32_t first = first_of(&list);
    for (int32_t i = 0; i < list.count; i++) {
        if (!all && i != first) continue;
        name_candidate(g, p, v, &list.all[i]);
        const launch_step *gemm = check_launches(g, p, &list.all[i], &again.all[i], size_of, &plan);
        if (gemm) check(g, p, v, &list.all[i], &plan, gemm);
    }
    name_product(g, p, v);
    if (all) check_distinct(&list);
    return list.count;
}

/* A query over the backends of a mask. */
static inline plan_query query_of(const gpu *g, const gemm_problem *p, uint32_t backends, int32_t rank) {
    plan_query query;
    memset(&query, 0, sizeof query);
    query.traits = traits_of(p);
    query.props = g->props;
    query.backends = backends;
    query.rank = rank;
    return query;
}

#endif
