/* Products of groups of the sm120 backend: every candidate can be launched and keeps what the kernel relies on
 * (csrc/kernels/sm120/grouped_config.h), the plan follows from the number of rows a group, and the model never puts the
 * first candidate behind sm80's. An activation is in the product's launch where SMs have enough tiles. Prints "N
 * passed, N failed". */
#include "kernels/sm120/plan.h"
#include "plan_checks.h"

static const int64_t rows_of_result[] = {1, 7, 16, 33, 64, 300, 4096, 100000};
static const int64_t columns[] = {1, 7, 128, 130, 640, 704, 1856, 7168};
static const int64_t depths[] = {0, 32, 64, 96, 480, 2048, 7168};
static const int32_t groups_of[] = {1, 2, 60, 128, 1024};
static const gpu on[] = {
    {"RTX 5090", {120, 170, 101376, 102400, 2407, 1792, 96 << 20, {{85, 41, 19}, {85, 41, 19}}}},
    {"RTX PRO 6000", {120, 188, 101376, 102400, 2617, 1792, 128 << 20, {{0}}}},
    {"GB10", {121, 48, 101376, 102400, 2540, 273, 24 << 20, {{0}}}},
};

static long times_first[SM120_KERNELS], times_listed[SM120_KERNELS];

static size_t param_bytes(int32_t kernel, int32_t index) {
    (void)kernel;
    return index == 0 ? sizeof(grouped_problem) : index == 1 ? sizeof(sm120_grouped_schedule) : 0;
}

static void check_map(const gemm_problem *p, const launch_plan *plan, int is_b, const mma_operand *o,
                      const gemm_candidate *c) {
    const tensor_layout *t = &plan->tensor_map[!is_b].layout;
    const int64_t rows = is_b ? p->n : p->m, batches = is_b ? p->l : 1;
    expect((const unsigned char *)&o->values == plan->params + plan->tensor_map[!is_b].offset && t->data == o->data,
           "a map for each, in its place");
    expect((int64_t)t->dims[0] == p->k / 2 && (int64_t)t->dims[1] == rows && (int64_t)t->dims[2] == batches,
           "all is there, one A for all groups");
    expect((int32_t)t->box[0] == c->tile_k / 2 && t->swizzle == c->tile_k / 2, "a box is a stage along K");
    expect((int32_t)t->box[1] == (is_b ? c->tile_n : c->tile_m) && t->box[2] == 1, "and the rows of a tile");
}

static void check(const gpu *g, const gemm_problem *p, variant v, const gemm_candidate *c, const launch_plan *plan,
                  const launch_step *step) {
    const grouped_problem *all = (const grouped_problem *)p;
    const kernel_entry *kernel = &gemm_backends[NVFP4_BACKEND_SM120]->kernels->kernels[c->kernel];
    const sm120_grouped_schedule *s = param_of(plan, step, 1);
    (void)v;
    times_listed[c->kernel]++;
    expect(plan->steps == 1 && c->workspace == 0, "one launch, no workspace");
    expect(!memcmp(param_of(plan, step, 0), all, sizeof *all), "the kernel gets the problem");
    expect(!strcmp(kernel->source, "sm120_grouped") && kernel->pdl && kernel->ctas_per_sm == 0,
           "it is one of groups, may start early, and has no clusters");
    expect(step->cluster == 0 && step->grid_y == 1 && c->split_k == 1 && c->swap_ab, "a CTA has all of K");
    expect(s->values_by_tma == p->aligned16, "values by tensor maps where they are aligned");
    expect(s->scales_by_tma == (p->aligned16 && p->scale_layout == NVFP4_128X4), "scales by bulk copies, of any K");
    expect(s->tiles_n == ceil_div(p->n, c->tile_n), "tiles cover N");
    check_tiles_of_groups(g, all, c, step, s->tiles_n, 1);
    expect(s->mma_a.data == p->b && s->mma_a.scale == p->scale_b && s->mma_a.rows == p->n &&
               s->mma_a.scale_pitch == p->scale_b_pitch && s->mma_a.scale_batch == p->scale_b_batch,
           "B is the operand of the mma with 16 rows");
    expect(s->mma_b.data == p->a && s->mma_b.scale == p->scale_a && s->mma_b.scale_pitch == p->scale_a_pitch,
           "A the other");
    expect(plan->tensor_maps == (p->k > 0 && s->values_by_tma ? 2 : 0), "values have tensor maps");
    if (plan->tensor_maps == 0) return;
    check_map(p, plan, 1, &s->mma_a, c);
    check_map(p, plan, 0, &s->mma_b, c);
}

static long times_fused, times_apart;

/* The kernel of each candidate with the activation: the launch is the product's, but for pairs of tiles. */
static void check_activation(const gpu *g, const grouped_problem *product, variant v) {
    const grouped_problem p = with_activation(product);
    const gemm_planner *planner = planner_of(NVFP4_BACKEND_SM120, PRODUCT_GROUPED, VALUES_E2M1);
    static candidate_list list;
    static launch_plan plan, plan_of_product;
    list_candidates(NVFP4_BACKEND_SM120, g, &product->g, 0, &list);
    name_product(g, &p.g, v);
    for (int32_t i = 0; i < list.count; i++) {
        gemm_candidate *of = &list.all[i];
        of->batch_invariant = i % 2;
        gemm_candidate c = *of, again;
        if (!planner->with_activation(&g->props, &p, of, &c)) {
            expect(p.parts == 2, "one part takes no longer with an activation");
            expect(!memcmp(&c, of, sizeof c), "without such a kernel nothing is written");
            times_apart++;
            continue;
        }
        times_fused++;
        planner->with_activation(&g->props, &p, of, &again);
        expect(c.kernel == of->kernel && c.workspace == 0, "the product's kernel has its bits");
        expect(c.batch_invariant == of->batch_invariant, "it says what the product was chosen for");
        expect(!strstr(of->reason, "activation") && strstr(c.reason, "activation"), "it says that it computes both");
        expect(p.parts == 2 || c.modelled_us == of->modelled_us, "tiles of one part take as long");
        const launch_step *step = check_launches(g, &p.g, &c, &again, param_bytes, &plan);
        build_plan(g, &product->g, of, 0, &plan_of_product);
        if (!step) continue;
        const sm120_grouped_schedule *s = param_of(&plan, step, 1);
        const int64_t hit = min_int(p.groups, p.g.m);
        const int64_t pairs = (hit + (p.g.m - hit) / c.tile_m) * ceil_div(p.g.n, c.tile_n);
        expect(c.grid == min_int(pairs, g->props.sm_count), "a CTA an SM, if it has a pair");
        expect(s->pairs == p.parts - 1, "the tiles of two parts follow each other");
        expect(s->numbers.limit == 7.0f && s->numbers.up_limit == (p.parts == 2 ? 7.0f : INFINITY) &&
                   s->numbers.alpha == 3.0f && s->numbers.min_gate == -86.0f / 3.0f,
               "the numbers of the activation");
        expect(!memcmp(param_of(&plan, step, 0), &p, sizeof p), "the kernel gets the problem");
        sm120_grouped_schedule without = *s;
        without.pairs = 0;
        memset(&without.numbers, 0, sizeof without.numbers);
        const launch_step *other = step_of(&plan_of_product, of->kernel);
        sm120_grouped_schedule of_product = *(const sm120_grouped_schedule *)param_of(&plan_of_product, other, 1);
        memset(&of_product.numbers, 0, sizeof of_product.numbers);
        expect(!memcmp(&without, &of_product, sizeof without), "and the product's schedule");
    }
}

static int may_reject(const gpu *g, const gemm_problem *p) {
    const gemm_traits t = traits_of_product(p);
    expect(planner_of(NVFP4_BACKEND_SM120, PRODUCT_GROUPED, VALUES_E2M1)->reject(&g->props, &t) == NVFP4_UNSUPPORTED &&
               strstr(nvfp4_last_error(), "tiles"),
           nvfp4_last_error());
    return ceil_div(p->m, 128) * ceil_div(p->n, 128) > INT32_MAX / 8;
}

static int32_t one(const gpu *g, const grouped_problem *p, variant v, int all) {
    return check_product(NVFP4_BACKEND_SM120, g, &p->g, v, all, param_bytes, check, may_reject);
}

/* All candidates add in one order, so each serves batch-invariant products. */
static void check_batch_invariant(const gpu *g, const grouped_problem *p) {
    const gemm_traits t = traits_of_product(&p->g);
    const gemm_planner *planner = planner_of(NVFP4_BACKEND_SM120, PRODUCT_GROUPED, VALUES_E2M1);
    gemm_candidate plain[MAX_CANDIDATES], invariant[MAX_CANDIDATES];
    const int32_t count = planner->candidates(&g->props, &t, plain);
    expect(planner->batch_invariant(&g->props, &t, invariant) == count, "as many candidates");
    for (int32_t i = 0; i < count; i++) expect(same_settings(&plain[i], &invariant[i]), "the same candidates");
}

static void check_choice(const gpu *g, const grouped_problem *p) {
    static candidate_list list, portable;
    list_candidates(NVFP4_BACKEND_SM120, g, &p->g, 0, &list);
    if (list.count == 0) return;
    const gemm_candidate *first = &list.all[first_of(&list)];
    times_first[first->kernel]++;
    list_candidates(NVFP4_BACKEND_SM80, g, &p->g, 0, &portable);
    name_product(g, &p->g, PLAIN);
    /* With 130 columns the second tile is nearly empty, and sm80's are half as wide. */
    if (portable.count && p->g.k >= 64 && p->g.n != 130)
        expect(candidate_precedes(first, &portable.all[first_of(&portable)]), "not behind sm80's kernels");
}

/* Rows of the first plan's tile. */
static int32_t first_tile(const gpu *g, int64_t m, int64_t n, int64_t k, int32_t groups, int32_t parts) {
    const grouped_problem p = grouped(PRODUCT_GROUPED, m, n, k, groups, parts, PLAIN);
    static candidate_list list;
    list_candidates(NVFP4_BACKEND_SM120, g, &p.g, 0, &list);
    return list.count ? list.all[first_of(&list)].tile_m : 0;
}

static void check_choices(void) {
    snprintf(about, sizeof about, "choices");
    for (size_t i = 0; i < COUNT(on); i++) {
        expect(first_tile(&on[i], 8, 768, 2048, 128, 2) == 8, "a token has a row in each of its groups");
        expect(first_tile(&on[i], 65536, 768, 2048, 128, 2) == 128, "many rows a group have a wide tile");
        const int32_t some = first_tile(&on[i], 2048, 768, 2048, 128, 2);
        expect(some > 8 && some < 128, "16 rows a group have one between");
    }
}

/* Whether the first plan's kernel computes the activation of gate and up, too. */
static int is_fused(const gpu *g, int64_t m, int64_t n, int64_t k, int32_t groups) {
    const grouped_problem product = grouped(PRODUCT_GROUPED, m, n, k, groups, 2, PLAIN), p = with_activation(&product);
    static candidate_list list;
    gemm_candidate c;
    list_candidates(NVFP4_BACKEND_SM120, g, &product.g, 0, &list);
    return list.count && planner_of(NVFP4_BACKEND_SM120, PRODUCT_GROUPED, VALUES_E2M1)
                             ->with_activation(&g->props, &p, &list.all[first_of(&list)], &c);
}

static void check_choices_of_activations(void) {
    static const int64_t tokens[] = {1, 4, 16, 64, 128, 2304, 8192};
    snprintf(about, sizeof about, "choices of activations");
    for (size_t i = 0; i < COUNT(on); i++) {
        for (size_t t = 0; t < COUNT(tokens); t++)
            expect(is_fused(&on[i], tokens[t] * 8, 768, 2048, 128), "experts of Qwen3-30B take one launch");
        expect(!is_fused(&on[i], 4, 256, 16384, 1), "two pairs of long tiles leave too many SMs idle");
    }
}

static void check_limits(void) {
    const grouped_problem many = grouped(PRODUCT_GROUPED, INT32_MAX, INT32_MAX / 16 * 16, 64, 8, 2, PLAIN);
    snprintf(about, sizeof about, "limits");
    expect(one(&on[0], &many, PLAIN, 1) == 0, "too many tiles are an error");
    for (int32_t k = SM120_CONFIGS; k < SM120_GROUPED_END; k++) {
        const grouped_problem p = grouped(PRODUCT_GROUPED, 64, 64, 512, 4, 1, PLAIN);
        check_min_shared_memory(NVFP4_BACKEND_SM120, gpus[RTX_5090], &p.g, k);
    }
    const grouped_problem p = grouped(PRODUCT_GROUPED, 64, 64, 512, 4, 1, PLAIN);
    const gemm_traits t = traits_of_product(&p.g);
    gpu small = on[0];
    small.props.shared_per_block = 48 << 10;
    expect(planner_of(NVFP4_BACKEND_SM120, PRODUCT_GROUPED, VALUES_E2M1)->reject(&small.props, &t) ==
                   NVFP4_UNSUPPORTED &&
               strstr(nvfp4_last_error(), "the GPU has 49152 a CTA"),
           "too little shared memory is an error");
}

int main(void) {
    check_limits();
    check_choices();
    check_choices_of_activations();
    for (size_t m = 0; m < COUNT(rows_of_result); m++)
        for (size_t n = 0; n < COUNT(columns); n++)
            for (size_t k = 0; k < COUNT(depths); k++)
                for (size_t e = 0; e < COUNT(groups_of); e++) {
                    const gpu *g = &on[(m + n + k + e) % COUNT(on)];
                    const variant v = (m + e) % 7 == 3 ? LINEAR : (n + k) % 5 == 2 ? UNALIGNED : PLAIN;
                    const int32_t parts = 1 + (int32_t)((m + k) % 3);
                    const grouped_problem p =
                        grouped(PRODUCT_GROUPED, rows_of_result[m], columns[n], depths[k], groups_of[e], parts, v);
                    one(g, &p, v, (m + n + k + e) % 3 == 0);
                    check_batch_invariant(g, &p);
                    check_choice(g, &p);
                    if (parts <= 2) check_activation(g, &p, v);
                }
    snprintf(about, sizeof about, "what there is");
    for (int32_t k = SM120_CONFIGS; k < SM120_GROUPED_END; k++) {
        const char *name = gemm_backends[NVFP4_BACKEND_SM120]->kernels->kernels[k].name;
        expect(times_listed[k] > 0 && times_first[k] > 0, name);
        printf("%-32s first %6ld times, listed %7ld\n", name, times_first[k], times_listed[k]);
    }
    printf("activations: %ld in the product's launch, %ld in one of their own\n", times_fused, times_apart);
    expect(times_fused > 1000 && times_apart > 100, "both ways are taken");
    return report();
}
