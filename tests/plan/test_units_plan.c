/* Products of a 16-bit A on sm100 and sm120, whose kernels for it are those of kernels/units alone: every candidate can
 * be launched and keeps what the kernels rely on (units/config.h), what they do not take is an error that says so, few
 * rows do not go to sm80, and an activation is in the product's launch. Prints "N passed, N failed". */
#include "kernels/sm100/units_plan.h"
#include "kernels/sm120/plan.h"
#include "units_plan_checks.h"

static const units_kernel of_sm100[] = {SM100_UNITS_CONFIGS(UNITS_ROW)}, of_sm120[] = {SM120_UNITS_CONFIGS(UNITS_ROW)};
static const grouped_units_kernel groups_of_sm100[] = {SM100_GROUPED_UNITS_CONFIGS(UNITS_ROW)},
                                  groups_of_sm120[] = {SM120_GROUPED_UNITS_CONFIGS(UNITS_ROW)};

static const struct {
    int32_t backend;
    const units_kernel *units;
    const grouped_units_kernel *groups;
    int32_t end; /* behind the last kernel */
    size_t most; /* shared memory of a CTA */
} backends[] = {
    {NVFP4_BACKEND_SM100, of_sm100, groups_of_sm100, SM100_KERNELS, 227 << 10},
    {NVFP4_BACKEND_SM120, of_sm120, groups_of_sm120, SM120_KERNELS, 99 << 10},
};
static const struct {
    int gpu, of; /* of: index of its backend */
} on[] = {{B200, 0}, {THOR, 0}, {B200_SLICE, 0}, {RTX_5090, 1}};

static const int64_t rows[] = {1, 7, 8, 9, 16, 17, 300}, columns[] = {1, 16, 130, 4096, 57344};
static const int64_t depths[] = {0, 32, 272, 2048, 16384}, batches[] = {1, 3, 200};
static const int32_t groups_of[] = {1, 8, 128, 1024};
static const variant variants[] = {FP16_A, BF16_A};

static int of; /* the backend of the walk */
static long times_first[2][SM120_KERNELS + SM100_KERNELS], times_fused, times_apart;

static size_t param_bytes(int32_t kernel, int32_t index) {
    const int is_grouped = kernel >= backends[of].groups->kernel;
    const size_t bytes[] = {is_grouped ? sizeof(grouped_problem) : sizeof(gemm_problem),
                            is_grouped ? sizeof(grouped_units_schedule) : sizeof(units_schedule)};
    return index < 2 ? bytes[index] : 0;
}

static void check(const gpu *g, const gemm_problem *p, variant v, const gemm_candidate *c, const launch_plan *plan,
                  const launch_step *step) {
    const int32_t first = backends[of].units->kernel, groups = backends[of].groups->kernel;
    const int is_grouped = p->product_kind == PRODUCT_GROUPED;
    (void)v;
    expect(c->backend == backends[of].backend && c->prefetch_stages == 0 && c->ctas_per_sm == 0, "of the backend");
    if (!expect(c->kernel >= (is_grouped ? groups : first) && c->kernel < (is_grouped ? backends[of].end : groups),
                "its kernel"))
        return;
    expect((size_t)step->shared_bytes <= backends[of].most, "shared memory of the architecture");
    if (!is_grouped) {
        check_units(g, p, &backends[of].units[c->kernel - first], c, plan, step);
        return;
    }
    const grouped_units_kernel *kernel = &backends[of].groups[c->kernel - groups];
    expect((kernel->bf16 ? NVFP4_BF16 : NVFP4_FP16) == p->a_type, "of the type of A");
    check_grouped_units(g, (const grouped_problem *)p, kernel, c, plan, step);
}

static int may_reject(const gpu *g, const gemm_problem *p) {
    const gemm_traits t = traits_of_product(p);
    const int reached = p->k > 0 && needs_tma(p) && p->scale_layout == NVFP4_128X4;
    const int is_few = p->product_kind == PRODUCT_GROUPED || p->m <= 16;
    expect(planner_of(backends[of].backend, p->product_kind, p->a_type)->reject(&g->props, &t) == NVFP4_UNSUPPORTED &&
               strstr(nvfp4_last_error(), !reached  ? "with K above 0"
                                          : !is_few ? "up to 16 rows of that type"
                                                    : "more tiles than"),
           nvfp4_last_error());
    return !reached || !is_few || (double)p->m * (double)p->n * (double)p->l > INT32_MAX / 16;
}

/* sm80 is behind where few rows have matrices large enough that reading them takes longest. */
static void check_first(const gpu *g, const gemm_problem *p, variant v) {
    static candidate_list list, portable;
    list_candidates(backends[of].backend, g, p, 0, &list);
    if (!list.count) return;
    const gemm_candidate *first = &list.all[first_of(&list)];
    times_first[of][first->kernel]++;
    list_candidates(NVFP4_BACKEND_SM80, g, p, 0, &portable);
    name_product(g, p, v);
    const int is_grouped = p->product_kind == PRODUCT_GROUPED;
    const int is_few = is_grouped ? p->m >= 8 && p->m <= 4 * (int64_t)((const grouped_problem *)p)->groups : p->l == 1;
    if (g == &gpus[B200_SLICE] || p->n * p->k < 4096 * 2048 || !is_few) return;
    expect(candidate_precedes(first, &portable.all[first_of(&portable)]), "not behind sm80's kernels");
}

static void check_invariance(const gpu *g, const gemm_problem *p) {
    const gemm_traits t = traits_of_product(p);
    static gemm_candidate all[MAX_CANDIDATES];
    expect(planner_of(backends[of].backend, p->product_kind, p->a_type)->batch_invariant(&g->props, &t, all) == -1,
           "no order for every M");
}

static void check_activation(const gpu *g, const grouped_problem *product) {
    const grouped_problem p = with_activation(product);
    const gemm_planner *planner = planner_of(backends[of].backend, PRODUCT_GROUPED, p.g.a_type);
    static candidate_list list;
    static launch_plan plan;
    list_candidates(backends[of].backend, g, &product->g, 0, &list);
    for (int32_t i = 0; i < list.count; i++) {
        gemm_candidate fused;
        const gemm_candidate *plain = &list.all[i];
        name_candidate(g, &p.g, FP16_A, plain);
        const int found = planner->with_activation(&g->props, &p, plain, &fused);
        times_fused += found, times_apart += !found;
        if (!found) continue;
        expect(fused.kernel == plain->kernel && fused.backend == plain->backend && fused.name == plain->name &&
                   fused.tile_k == plain->tile_k,
               "the product's kernel, in teams of as many warps");
        launch_plan_init(&plan);
        planner->build(&g->props, &(product_problem){.grouped = p}, &fused, (void *)WORKSPACE, &plan);
        const grouped_units_schedule *s = param_of(&plan, &plan.step[0], 1);
        const grouped_units_kernel *kernel = &backends[of].groups[fused.kernel - backends[of].groups->kernel];
        expect(s->tile_pairs >= 1 && s->tile_pairs * p.parts * kernel->a_units <= kernel->pairs,
               "sums of all parts have room");
        expect(s->numbers.limit == 7.0f, "the numbers of the activation");
    }
}

int main(void) {
    for (size_t i = 0; i < COUNT(on); i++)
        for (size_t m = 0; m < COUNT(rows); m++)
            for (size_t n = 0; n < COUNT(columns); n++)
                for (size_t k = 0; k < COUNT(depths); k++) {
                    const gpu *g = &gpus[on[i].gpu];
                    const variant v = variants[(m + n + k) % 2];
                    of = on[i].of;
                    gemm_problem p = problem(rows[m], columns[n], depths[k], batches[(i + n + k) % 3], v);
                    if ((m + n) % 7 == 3) p.aligned16 = 0;
                    check_product(backends[of].backend, g, &p, v, 1, param_bytes, check, may_reject);
                    check_first(g, &p, v);
                    check_invariance(g, &p);
                    const int32_t parts = 1 + (int32_t)((n + k) % 2);
                    grouped_problem groups =
                        grouped(PRODUCT_GROUPED, rows[m], columns[n], depths[k], groups_of[(m + k) % 4], parts, v);
                    if ((m + n) % 7 == 4) groups.g.scale_layout = NVFP4_LINEAR;
                    check_product(backends[of].backend, g, &groups.g, v, 1, param_bytes, check, may_reject);
                    check_first(g, &groups.g, v);
                    check_invariance(g, &groups.g);
                    check_activation(g, &groups);
                }
    snprintf(about, sizeof about, "what there is");
    for (of = 0; of < 2; of++)
        for (int32_t kernel = backends[of].units->kernel; kernel < backends[of].end; kernel++) {
            const char *name = gemm_backends[backends[of].backend]->kernels->kernels[kernel].name;
            printf("%-32s first %6ld times\n", name, times_first[of][kernel]);
            expect(times_first[of][kernel] > 0 || strstr(name, "grouped_units"), name);
        }
    printf("activations: %ld in the product's launch, %ld in one of their own\n", times_fused, times_apart);
    expect(times_fused > 100, "activations are computed there");
    return report();
}
