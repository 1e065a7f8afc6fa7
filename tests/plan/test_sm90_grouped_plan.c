/* Products of groups of the sm90 backend on the properties of real GPUs: every candidate can be launched, its pre-pass
 * fills what the kernel reads, and the plan follows from the number of rows a group. Prints "N passed, N failed". */
#include "kernels/sm90/plan.h"
#include "units_plan_checks.h"

static const int64_t rows_of_result[] = {1, 7, 16, 33, 64, 300, 4096, 100000};
static const int64_t columns[] = {1, 7, 128, 130, 704, 1856, 7168};
static const int64_t depths[] = {0, 16, 32, 48, 464, 2048, 7168};
static const int32_t groups_of[] = {1, 2, 60, 128, 1024};
static const int on[] = {H200, H100_PCIE, H200_SLICE};
enum {
    FIRST_FEW = KERNEL_sm90_grouped_few_fp16_256x16,
    FIRST_UNITS = KERNEL_sm90_grouped_units_fp16_8,
    FIRST = KERNEL_sm90_grouped_fp16_256x96,
    END = KERNEL_sm90_gemv_quantize_fp16_1
};

static const grouped_units_kernel units_configs[] = {SM90_GROUPED_UNITS_CONFIGS(UNITS_ROW)};

static long times_first[SM90_KERNELS], times_listed[SM90_KERNELS];

static size_t param_bytes(int32_t kernel, int32_t index) {
    if (kernel == KERNEL_SM90_REORDER_E2M1)
        return index == 0 ? sizeof(grouped_problem) : index == 1 ? sizeof(sm90_reorder_e2m1_schedule) : 0;
    if (kernel == KERNEL_SM90_REORDER) return index == 0 ? sizeof(sm90_reorder_schedule) : 0;
    if (kernel < FIRST_UNITS)
        return index == 0 ? sizeof(grouped_problem) : index == 1 ? sizeof(sm90_grouped_few_schedule) : 0;
    if (kernel < FIRST) return index == 0 ? sizeof(grouped_problem) : index == 1 ? sizeof(grouped_units_schedule) : 0;
    return index == 0 ? sizeof(grouped_problem) : index == 1 ? sizeof(sm90_grouped_schedule) : 0;
}

static void check_reorder(const grouped_problem *p, const launch_plan *plan, const sm90_grouped_schedule *s) {
    const launch_step *step = &plan->step[0];
    const sm90_reorder_schedule *r = param_of(plan, step, 0);
    const int64_t spans = ceil_div(p->g.k, 64);
    expect(plan->steps == 2 && step->kernel == KERNEL_SM90_REORDER, "a pre-pass before the kernel");
    expect(r->a == p->g.a && r->a_pitch == p->g.a_pitch && r->a_rows == p->a_rows && r->k == p->g.k, "over A");
    expect(r->bf16 == (p->g.a_type == NVFP4_BF16), "of its type");
    expect(r->count == p->g.m && r->rows == p->rows, "by rows of the result");
    expect(r->spans == spans && (void *)r->to == (void *)WORKSPACE && r->claimed == s->claimed, "in the workspace");
    expect(step->grid_x * SM90_REORDER_THREADS * 4 >= p->g.m * spans * 8, "a thread for each 32 values");
}

/* The pre-pass over NVFP4 A finds its rows from the ends, whatever they are. */
static void check_reorder_e2m1(const grouped_problem *p, const launch_plan *plan, const sm90_grouped_schedule *s) {
    const launch_step *step = &plan->step[0];
    const sm90_reorder_e2m1_schedule *r = param_of(plan, step, 1);
    const int64_t spans = ceil_div(p->g.k, 64), hit = min_int(p->groups, p->g.m);
    expect(plan->steps == 2 && step->kernel == KERNEL_SM90_REORDER_E2M1, "a pre-pass before the kernel");
    expect(!memcmp(param_of(plan, step, 0), p, sizeof *p), "which gets the problem");
    expect(r->spans == spans && (void *)r->to == (void *)WORKSPACE && r->claimed == s->claimed, "in the workspace");
    expect(r->chunks * (int64_t)SM90_REORDER_SPANS >= spans, "its chunks cover K");
    expect(step->grid_x == (p->g.m + hit * (SM90_REORDER_TILE_M - 1)) / SM90_REORDER_TILE_M * r->chunks,
           "by a CTA for each tile of any ends");
}

/* What up to some 48 rows a group have: one launch without a workspace, deep stages of whole lines of B. */
static void check_few(const gpu *g, const grouped_problem *all, const gemm_candidate *c, const launch_plan *plan,
                      const launch_step *step) {
    const gemm_problem *p = &all->g;
    const sm90_grouped_few_schedule *s = param_of(plan, step, 1);
    expect(plan->steps == 1 && c->workspace == 0, "one launch");
    expect(p->k > 0 && s->stages_k == ceil_div(p->k, 256) && c->tile_k == 256, "stages cover K");
    expect(p->out_type != NVFP4_FP32, "results of 16 bits");
    expect(c->tile_n == 256 && s->tiles_n == ceil_div(p->n, 256), "tiles cover N");
    expect((s->b_cache_policy == L2_EVICT_FIRST) == (c->tile_m != 32), "B is read once, or stays in L2");
    expect(s->early_b == (p->constant_b && all->constant_ends),
           "a constant B is loaded early, if the ends are constant");
    check_tiles_of_groups(g, all, c, step, s->tiles_n, 1);
    const tensor_layout *b = &plan->tensor_map[0].layout;
    expect(plan->tensor_maps == 1 && b->data == p->b && b->element_bytes == 1 && b->rank == 3, "a tensor map of B");
    expect((int64_t)b->dims[0] == p->k / 2 && (int64_t)b->dims[1] == p->n && (int64_t)b->dims[2] == p->l,
           "of all of B");
    expect(b->box[0] == 128 && b->box[1] == 128 && b->swizzle == 128, "in halves of a stage");
}

static void check(const gpu *g, const gemm_problem *p, variant v, const gemm_candidate *c, const launch_plan *plan,
                  const launch_step *step) {
    const grouped_problem *all = (const grouped_problem *)p;
    const kernel_entry *kernel = &gemm_backends[NVFP4_BACKEND_SM90]->kernels->kernels[c->kernel];
    const sm90_grouped_schedule *s = param_of(plan, step, 1);
    (void)v;
    times_listed[c->kernel]++;
    expect(!memcmp(param_of(plan, step, 0), all, sizeof *all), "the kernel gets the problem");
    expect(!strcmp(kernel->source, c->kernel < FIRST_UNITS ? "sm90_grouped_few"
                                   : c->kernel < FIRST     ? "sm90_grouped_units"
                                                           : "sm90_grouped"),
           "it is one of groups");
    expect(strstr(kernel->name, p->a_type == NVFP4_BF16 ? "_bf16_" : "_fp16_") != NULL, "and of this type of A");
    expect(kernel->pdl && step->cluster == 0 && step->grid_y == 1, "a dependent launch");
    expect(p->scale_layout == NVFP4_128X4 && p->aligned16, "scales and rows that the kernel takes");
    if (c->kernel < FIRST_UNITS) {
        check_few(g, all, c, plan, step);
        return;
    }
    if (c->kernel < FIRST) {
        check_grouped_units(g, all, &units_configs[c->kernel - FIRST_UNITS], c, plan, step);
        return;
    }
    expect(c->split_k == 1 && c->tile_n == 256 && c->tile_k == 64 && c->swap_ab, "a CTA has all of K");
    expect(s->tiles_n == ceil_div(p->n, 256), "tiles cover N");
    check_tiles_of_groups(g, all, c, step, s->tiles_n, 1);
    if (p->k == 0 || all->a_rows == 0) {
        expect(plan->steps == 1 && plan->tensor_maps == 0 && s->stages_k == 0 && !s->claimed, "nothing to load");
        return;
    }
    const int64_t bytes = p->m * ceil_div(p->k, 64) * 128;
    expect(s->stages_k == ceil_div(p->k, 64), "stages cover K");
    expect((void *)s->claimed == (void *)(WORKSPACE + bytes) && c->workspace == bytes + 16, "a count behind the rows");
    if (p->a_type == VALUES_E2M1)
        check_reorder_e2m1(all, plan, s);
    else
        check_reorder(all, plan, s);
    const tensor_layout *b = &plan->tensor_map[0].layout;
    const int32_t maps = 1 + (c->tile_m == 96 ? 5 : 4);
    expect(plan->tensor_maps == maps && b->data == p->b && b->element_bytes == 1 && b->rank == 3, "a tensor map of B");
    expect((int64_t)b->dims[0] == p->k / 2 && (int64_t)b->dims[1] == p->n && (int64_t)b->dims[2] == p->l,
           "of all of B");
    expect(b->box[0] == 32 && b->box[1] == 128 && b->swizzle == 0, "in stages");
    for (int32_t i = 1; i < maps; i++) {
        const tensor_layout *a = &plan->tensor_map[i].layout;
        expect((void *)a->data == (void *)WORKSPACE && a->element_bytes == 2 && a->swizzle == 128, "maps of A");
        expect((int64_t)a->dims[0] == ceil_div(p->k, 64) * 64 && (int64_t)a->dims[1] == p->m, "of the result's rows");
        expect(a->box[0] == 64 && a->box[1] % 8 == 0 &&
                   a->box[1] > (i > 1 ? plan->tensor_map[i - 1].layout.box[1] : 0) &&
                   (i < maps - 1 || (int32_t)a->box[1] == c->tile_m),
               "of rising numbers of rows, up to a tile's");
    }
}

/* The choice of with_activation for a candidate is the same kernel, with as many warps that share K, so the bits of a
 * row are the product's; its tiles cover the columns of one part. */
static long times_fused[SM90_KERNELS];

static void check_with_activation(const gpu *g, const grouped_problem *p) {
    const gemm_planner *planner = planner_of(NVFP4_BACKEND_SM90, p->g.product_kind, p->g.a_type);
    grouped_problem gated = *p;
    static candidate_list list;
    static launch_plan plan;
    gated.has_activation = 1, gated.activation = NVFP4_SWIGLU, gated.g.out_batch = 0;
    gated.limit = 7.0f, gated.activation_alpha = 0.5f;
    list_candidates(NVFP4_BACKEND_SM90, g, &p->g, 0, &list);
    for (int32_t i = 0; i < list.count; i++) {
        const gemm_candidate *of = &list.all[i], untouched = *of;
        gemm_candidate fused = *of;
        if (!planner->with_activation(&g->props, &gated, of, &fused)) {
            expect(!memcmp(&fused, &untouched, sizeof fused), "no candidate is written where there is none");
            continue;
        }
        times_fused[of->kernel]++;
        const int is_few = of->kernel < FIRST_UNITS, is_many = of->kernel >= FIRST;
        expect(fused.backend == of->backend && fused.tile_k == of->tile_k, "a kernel that adds in the same order");
        if (is_few || is_many)
            expect((is_few ? fused.kernel < FIRST_UNITS : fused.kernel >= FIRST) &&
                       !strncmp(fused.name, of->name,
                                strlen(is_few ? "nvfp4_sm90_grouped_few_bf16" : "nvfp4_sm90_grouped_bf16")),
                   "of this kind and type of A");
        else
            expect(fused.kernel == of->kernel && fused.name == of->name && fused.tile_m == of->tile_m, "the same one");
        expect(fused.workspace == of->workspace && fused.modelled_us == fused.single_us - SINGLE_CALL_US,
               "with the workspace of the product, and a time");
        launch_plan_init(&plan);
        planner->build(&g->props, &(product_problem){.grouped = gated}, &fused, (void *)WORKSPACE, &plan);
        const launch_step *step = &plan.step[plan.steps - 1];
        const int64_t hit = min_int(p->groups, p->g.m), tiles_m = (p->g.m + hit * (fused.tile_m - 1)) / fused.tile_m;
        expect(!memcmp(param_of(&plan, step, 0), &gated, sizeof gated), "the kernel gets the activation");
        const grouped_units_schedule *s = param_of(&plan, step, 1);
        const sm90_grouped_few_schedule *few = param_of(&plan, step, 1);
        const sm90_grouped_schedule *many = param_of(&plan, step, 1);
        const int64_t tiles_n = is_few ? few->tiles_n : is_many ? many->tiles_n : s->tiles_n;
        const gating numbers = is_few ? few->numbers : is_many ? many->numbers : s->numbers;
        if (is_few || is_many) {
            expect(tiles_n == ceil_div(p->g.n, 256 / p->parts), "tiles cover the columns of a part");
        } else {
            expect(s->tile_pairs >= 1 &&
                       s->tile_pairs * p->parts * (of->tile_m / 8) <= units_configs[of->kernel - FIRST_UNITS].pairs,
                   "sums of all parts have room");
            expect((tiles_n - 1) * s->tile_pairs < s->pairs && tiles_n * s->tile_pairs >= s->pairs,
                   "tiles cover the pairs of a part");
            expect(256 << s->team_log2 == of->tile_k, "by teams of as many warps");
        }
        expect(step->grid_x == min_int(tiles_m * tiles_n, g->props.sm_count), "a CTA an SM, if it has a tile");
        expect(numbers.limit == 7.0f && numbers.up_limit == (p->parts == 2 ? 7.0f : INFINITY) &&
                   numbers.alpha == 0.5f && numbers.min_gate == -172.0f,
               "with the numbers of the activation");
    }
}

/* One launch where groups have few rows, but for the shortest products: two of wgmma take less time. */
static void check_fused_choices(void) {
    static const struct {
        int64_t m, n, k;
        int32_t groups, fused;
    } cases[] = {
        {8, 768, 2048, 128, 0},  {32, 768, 2048, 128, 1},   {1024, 768, 2048, 128, 1}, {8192, 768, 2048, 128, 1},
        {8, 2048, 7168, 256, 1}, {128, 2048, 7168, 256, 1}, {1024, 512, 2048, 256, 1}, {65536, 768, 2048, 128, 1},
    };
    snprintf(about, sizeof about, "activations");
    for (size_t i = 0; i < COUNT(cases); i++) {
        grouped_problem p = grouped(PRODUCT_GROUPED, cases[i].m, cases[i].n, cases[i].k, cases[i].groups, 2, BF16_A);
        static candidate_list list;
        p.g.out_type = NVFP4_BF16;
        list_candidates(NVFP4_BACKEND_SM90, &gpus[H200], &p.g, 0, &list);
        const gemm_candidate *of = &list.all[first_of(&list)];
        gemm_candidate fused;
        p.has_activation = 1, p.g.out_batch = 0;
        const int32_t got = planner_of(NVFP4_BACKEND_SM90, PRODUCT_GROUPED, NVFP4_BF16)
                                ->with_activation(&gpus[H200].props, &p, of, &fused);
        printf("%6lld x %lld x %lld: %s, %.1f us to %.1f\n", (long long)cases[i].m, (long long)cases[i].n,
               (long long)cases[i].k, of->name, of->single_us, got ? fused.single_us : 0.0);
        expect(got == cases[i].fused, "one launch, or two");
    }
}

static int may_reject(const gpu *g, const gemm_problem *p) {
    const gemm_traits t = traits_of_product(p);
    const int reached = p->scale_layout == NVFP4_128X4 && p->aligned16;
    expect(planner_of(NVFP4_BACKEND_SM90, p->product_kind, p->a_type)->reject(&g->props, &t) == NVFP4_UNSUPPORTED &&
               strstr(nvfp4_last_error(), reached ? "tiles" : "128x4 scales"),
           nvfp4_last_error());
    return !reached || ceil_div(p->m, 128) * ceil_div(p->n, 128) > INT32_MAX / 8;
}

static int32_t one(const gpu *g, const grouped_problem *p, variant v, int all) {
    return check_product(NVFP4_BACKEND_SM90, g, &p->g, v, all, param_bytes, check, may_reject);
}

/* All candidates of sm90/grouped.cu add in one order, so each serves batch-invariant products. */
static void check_batch_invariant(const grouped_problem *p) {
    const gemm_traits t = traits_of_product(&p->g);
    const gemm_planner *planner = planner_of(NVFP4_BACKEND_SM90, t.product_kind, t.a_type);
    gemm_candidate plain[MAX_CANDIDATES], invariant[MAX_CANDIDATES];
    int32_t count = 0;
    for (int32_t i = 0, all = planner->candidates(&gpus[H200].props, &t, plain); i < all; i++)
        if (plain[i].kernel >= FIRST) plain[count++] = plain[i];
    const int reached = t.scale_layout == NVFP4_128X4 && t.tma_values;
    expect(planner->batch_invariant(&gpus[H200].props, &t, invariant) == (reached ? count : -1),
           "as many candidates, or those of another backend");
    for (int32_t i = 0; i < count; i++) expect(same_settings(&plain[i], &invariant[i]), "the same candidates");
}

/* Rows of the first plan's tile, and the backend that is chosen of both. */
static int32_t first_tile_of(variant a, int64_t m, int64_t n, int64_t k, int32_t groups, int32_t parts,
                             int32_t *backend) {
    const grouped_problem p = grouped(PRODUCT_GROUPED, m, n, k, groups, parts, a);
    static candidate_list sm80, sm90;
    list_candidates(NVFP4_BACKEND_SM80, &gpus[H200], &p.g, 0, &sm80);
    list_candidates(NVFP4_BACKEND_SM90, &gpus[H200], &p.g, 0, &sm90);
    const gemm_candidate *x = &sm80.all[first_of(&sm80)], *y = &sm90.all[first_of(&sm90)];
    *backend = candidate_precedes(y, x) ? NVFP4_BACKEND_SM90 : NVFP4_BACKEND_SM80;
    return y->tile_m;
}

static int32_t first_tile(int64_t m, int64_t n, int64_t k, int32_t groups, int32_t parts, int32_t *backend) {
    return first_tile_of(BF16_A, m, n, k, groups, parts, backend);
}

static void check_choices(void) {
    int32_t backend;
    snprintf(about, sizeof about, "choices");
    expect(first_tile(8, 768, 2048, 128, 2, &backend) <= 16 && backend == NVFP4_BACKEND_SM90,
           "the rows of one token have a narrow tile");
    expect(first_tile(128, 768, 2048, 128, 2, &backend) == 16 && backend == NVFP4_BACKEND_SM90,
           "one row a group or two have tiles of 16 rows");
    expect(first_tile(512, 2048, 7168, 256, 2, &backend) == 16 && backend == NVFP4_BACKEND_SM90, "a few have, too");
    expect(first_tile(4096, 2048, 7168, 256, 2, &backend) == 32 && backend == NVFP4_BACKEND_SM90,
           "more rows a group have a wider tile");
    expect(first_tile(7168, 2048, 7168, 256, 2, &backend) == 48 && backend == NVFP4_BACKEND_SM90, "and one of 48");
    expect(first_tile(65536, 768, 2048, 128, 2, &backend) == 152 && backend == NVFP4_BACKEND_SM90,
           "many rows a group have a wide one");
    first_tile_of(PLAIN, 8, 768, 2048, 128, 2, &backend);
    expect(backend == NVFP4_BACKEND_SM80, "the NVFP4 rows of one token are sm80's");
    first_tile_of(PLAIN, 1024, 768, 2048, 128, 2, &backend);
    expect(backend == NVFP4_BACKEND_SM90, "those of 128 are sm90's");
    first_tile_of(PLAIN, 64, 2048, 7168, 64, 2, &backend);
    expect(backend == NVFP4_BACKEND_SM80, "with a large K those of a few are sm80's");
    first_tile_of(PLAIN, 512, 2048, 7168, 64, 2, &backend);
    expect(backend == NVFP4_BACKEND_SM90, "and those of more are sm90's");
    expect(first_tile_of(PLAIN, 65536, 768, 2048, 128, 2, &backend) == 152 && backend == NVFP4_BACKEND_SM90,
           "many are dequantized once");
}

static void check_limits(void) {
    const grouped_problem many = grouped(PRODUCT_GROUPED, INT32_MAX, INT32_MAX, 64, 8, 2, FP16_A);
    snprintf(about, sizeof about, "limits");
    expect(one(&gpus[H200], &many, FP16_A, 1) == 0, "too many tiles are an error");
    for (int32_t k = FIRST_FEW; k < END; k++) {
        const kernel_entry *kernel = &gemm_backends[NVFP4_BACKEND_SM90]->kernels->kernels[k];
        const variant v = strstr(kernel->name, "_fp16_") ? FP16_A : BF16_A;
        const grouped_problem p = grouped(PRODUCT_GROUPED, 64, 64, 512, 4, 1, v);
        check_min_shared_memory(NVFP4_BACKEND_SM90, gpus[H200], &p.g, k);
    }
    grouped_problem tall = grouped(PRODUCT_GROUPED, 64, 64, 512, 4, 1, FP16_A);
    tall.a_rows = 1000;
    one(&gpus[H200], &tall, FP16_A, 1);
    tall.a_rows = 0;
    static candidate_list list;
    static launch_plan plan;
    list_candidates(NVFP4_BACKEND_SM90, &gpus[H200], &tall.g, 0, &list);
    launch_plan_init(&plan);
    int32_t i = 0;
    while (list.all[i].kernel < FIRST) i++;
    planner_of(NVFP4_BACKEND_SM90, PRODUCT_GROUPED, NVFP4_FP16)
        ->build(&gpus[H200].props, &(product_problem){.grouped = tall}, &list.all[i], (void *)WORKSPACE, &plan);
    const sm90_grouped_schedule *s = param_of(&plan, &plan.step[0], 1);
    expect(plan.steps == 1 && s->stages_k == 0, "an A without rows has no pre-pass");
}

int main(void) {
    check_limits();
    check_choices();
    check_fused_choices();
    for (size_t m = 0; m < COUNT(rows_of_result); m++)
        for (size_t n = 0; n < COUNT(columns); n++)
            for (size_t k = 0; k < COUNT(depths); k++)
                for (size_t e = 0; e < COUNT(groups_of); e++) {
                    const gpu *g = &gpus[on[(m + n + k + e) % COUNT(on)]];
                    static const variant types[] = {BF16_A, FP16_A, PLAIN};
                    const variant v = types[(m + n + k) % COUNT(types)];
                    grouped_problem p = grouped(PRODUCT_GROUPED, rows_of_result[m], columns[n], depths[k], groups_of[e],
                                                1 + (int32_t)((m + k) % 3), v);
                    if ((m + e) % 7 == 3) p.g.scale_layout = NVFP4_LINEAR;
                    if (v == PLAIN)
                        p.rows = NULL;
                    else if ((n + e) % 3 == 1)
                        p.a_rows = p.g.m / 2 + 1;
                    else if ((m + n) % 2)
                        p.rows = NULL;
                    static candidate_list list;
                    one(g, &p, v, (m + n + k + e) % 3 == 0);
                    if (p.parts <= 2) check_with_activation(g, &p);
                    check_batch_invariant(&p);
                    list_candidates(NVFP4_BACKEND_SM90, g, &p.g, 0, &list);
                    if (list.count) times_first[list.all[first_of(&list)].kernel]++;
                }
    snprintf(about, sizeof about, "what there is");
    for (int32_t k = FIRST_FEW; k < END; k++) {
        const char *name = gemm_backends[NVFP4_BACKEND_SM90]->kernels->kernels[k].name;
        expect(times_listed[k] > 0, name);
        expect(times_fused[k] > 0, "an activation in it");
        printf("%-32s first %6ld times, listed %7ld\n", name, times_first[k], times_listed[k]);
    }
    return report();
}
