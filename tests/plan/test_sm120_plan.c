/* The sm120 backend over many shapes and ways to lie in memory: every candidate can be launched, and keeps what the
 * kernel relies on (csrc/kernels/sm120/config.h). Its first candidate is never modelled behind sm80's. Prints "N
 * passed, N failed". */
#include "kernels/sm120/plan.h"
#include "plan_checks.h"

static const int64_t sizes[] = {1, 8, 9, 33, 64, 65, 128, 129, 2304, 7168, 100000};
static const int64_t depths[] = {0, 16, 96, 464, 2048, 7168, 16384, INT32_MAX / 64 * 64};
static const int64_t batches[] = {1, 1000};

/* What the chips say of clusters of 2, 4 and 8, or nothing. */
static const gpu on[] = {
    {"RTX 5090", {120, 170, 101376, 102400, 2407, 1792, 96 << 20, {{85, 41, 19}, {85, 41, 19}}}},
    {"RTX PRO 6000", {120, 188, 101376, 102400, 2617, 1792, 128 << 20, {{0}}}},
    {"GB10", {121, 48, 101376, 102400, 2540, 273, 24 << 20, {{0}}}},
    {"a GB10 without clusters", {121, 48, 101376, 102400, 2540, 273, 24 << 20, {{-1, -1, -1}, {-1, -1, -1}}}},
};

typedef struct config {
    int mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n;
} config;
static const config configs[] = {
#define X(id, mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n)                                               \
    {mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n},
    SM120_GEMM_CONFIGS(X)
#undef X
};

static long times_first[COUNT(configs)][2][2]; /* by swap_ab, by whether K is split */

static size_t param_bytes(int32_t kernel, int32_t index) {
    (void)kernel;
    return index == 0 ? sizeof(gemm_problem) : index == 1 ? sizeof(sm120_schedule) : 0;
}

static const kernel_entry *entry_of(int32_t kernel) {
    return &gemm_backends[NVFP4_BACKEND_SM120]->kernels->kernels[kernel];
}

static int64_t fit(const gpu *g, int32_t cluster) {
    const int32_t said = cluster > 1 ? g->props.clusters[0][cluster / 4] : 0;
    return said ? max_int(said, 0) : g->props.sm_count / cluster;
}

static void check_maps(const gemm_problem *p, const launch_plan *plan, const config *c, const sm120_schedule *s) {
    expect(plan->tensor_maps == (p->k > 0 && s->values_by_tma ? 2 : 0), "values have tensor maps");
    for (int32_t i = 0; i < plan->tensor_maps; i++) {
        const tensor_layout *t = &plan->tensor_map[i].layout;
        const mma_operand *o = i ? &s->mma_b : &s->mma_a;
        expect((const unsigned char *)&o->values == plan->params + plan->tensor_map[i].offset && t->data == o->data,
               "a map for each, in its place");
        expect((int32_t)t->box[0] == c->stage_k / 2 && t->swizzle == c->stage_k / 2, "a box is a stage along K");
        expect((int32_t)t->box[1] == (i ? c->mma_tile_n : c->mma_tile_m) && t->box[2] == 1, "and the rows of a tile");
        expect((int64_t)t->dims[0] == p->k / 2 && (int64_t)t->dims[1] == o->rows && (int64_t)t->dims[2] == p->l,
               "all is there");
    }
}

static void check_operands(const gemm_problem *p, const sm120_schedule *s) {
    const mma_operand *a = s->swap_ab ? &s->mma_b : &s->mma_a, *b = s->swap_ab ? &s->mma_a : &s->mma_b;
    expect(a->data == p->a && a->scale == p->scale_a && a->pitch == p->a_pitch && a->batch == p->a_batch &&
               a->scale_pitch == p->scale_a_pitch && a->scale_batch == p->scale_a_batch && a->rows == p->m,
           "A is its operand of the mma");
    expect(b->data == p->b && b->scale == p->scale_b && b->pitch == p->b_pitch && b->batch == p->b_batch &&
               b->scale_pitch == p->scale_b_pitch && b->scale_batch == p->scale_b_batch && b->rows == p->n,
           "B is its operand of the mma");
}

static void check(const gpu *g, const gemm_problem *p, variant v, const gemm_candidate *candidate,
                  const launch_plan *plan, const launch_step *gemm) {
    const sm120_schedule *s = param_of(plan, gemm, 1);
    const config *c = &configs[candidate->kernel];
    const int far = is_far(p), by_tma = p->aligned16 && !far;
    (void)v;
    expect(plan->steps == 1 && candidate->workspace == 0, "one launch, no workspace");
    expect(!memcmp(param_of(plan, gemm, 0), p, sizeof *p), "the kernel gets the problem");
    expect(candidate->tile_m == (s->swap_ab ? c->mma_tile_n : c->mma_tile_m) &&
               candidate->tile_n == (s->swap_ab ? c->mma_tile_m : c->mma_tile_n) && candidate->tile_k == c->stage_k &&
               candidate->stages == c->stages && candidate->swap_ab == s->swap_ab,
           "the candidate says the tile");
    expect(s->tiles_mma_m == ceil_div(s->mma_a.rows, c->mma_tile_m) &&
               s->tiles_mma_n == ceil_div(s->mma_b.rows, c->mma_tile_n),
           "tiles cover");
    expect(s->tiles == s->tiles_mma_m * s->tiles_mma_n * p->l && s->tiles <= INT32_MAX - g->props.sm_count,
           "tiles count");
    expect(s->group_m >= 1 && s->group_m <= s->tiles_mma_m, "groups of rows of tiles that exist");
    expect(s->k_parts == ceil_div(p->k, SM120_PART_K), "parts cover K");
    expect(candidate->split_k == s->split_k && gemm->cluster == s->split_k &&
               (s->split_k == 1 || s->split_k == 2 || s->split_k == 4 || s->split_k == 8),
           "a split is a power of two, and a cluster");
    if (s->split_k > 1) {
        expect(s->split_k <= s->k_parts, "no split is empty");
        expect(fit(g, s->split_k) > 0, "a cluster that the GPU has");
        expect(candidate->grid == (int64_t)s->tiles * s->split_k, "a cluster for each tile");
        expect(c->mma_tile_m * c->mma_tile_n * 4 / s->split_k * (s->split_k - 1) <=
                   c->stages * SM120_STAGE_BYTES(c->mma_tile_m, c->mma_tile_n, c->stage_k),
               "partial sums have room in place of the stages");
    } else {
        const int64_t sms = g->props.sm_count;
        expect(candidate->grid <= s->tiles && candidate->grid <= sms &&
                   ceil_div(s->tiles, candidate->grid) == ceil_div(s->tiles, min_int(s->tiles, sms)),
               "no more CTAs than tiles or SMs, as few rounds as can be");
    }
    expect(s->values_by_tma == by_tma, "values by tensor maps where they are aligned");
    expect(s->scales_by_tma == (by_tma && p->scale_layout == NVFP4_128X4 && p->k % 64 == 0),
           "scales by bulk copies where these are whole atoms");
    expect(c->mma_tile_n > 16 || s->tiles_mma_n == 1, "a narrow tile holds all of mma_b");
    expect(!(p->m == 1 && p->n > 1) || s->swap_ab, "one row of A is no reason for 128");
    expect(!(p->n == 1 && p->m > 1) || !s->swap_ab, "one row of B is no reason for 128");
    expect(s->constant_operand == (!p->constant_b || !s->scales_by_tma ? SM120_CONSTANT_NONE
                                   : s->swap_ab                        ? SM120_CONSTANT_MMA_A
                                                                       : SM120_CONSTANT_MMA_B),
           "a constant b is loaded early, and nothing else");
    expect(gemm->shared_bytes == entry_of(gemm->kernel)->shared_bytes &&
               gemm->shared_bytes <= g->props.shared_per_block,
           "shared memory fits a CTA");
    check_operands(p, s);
    check_maps(p, plan, c, s);
}

static int may_reject(const gpu *g, const gemm_problem *p) {
    const gemm_traits t = traits_of(p);
    expect(planner_of(NVFP4_BACKEND_SM120, PRODUCT_GEMM, VALUES_E2M1)->reject(&g->props, &t) == NVFP4_UNSUPPORTED &&
               strstr(nvfp4_last_error(), "tiles"),
           nvfp4_last_error());
    return ceil_div(p->m, 256) * ceil_div(p->n, 128) * p->l > INT32_MAX - g->props.sm_count;
}

/* The same split for every M, at the same places of K, from the same planner. */
static void check_batch_invariant(const gpu *g, int64_t n, int64_t k) {
    static gemm_candidate all[MAX_CANDIDATES];
    const gemm_planner *planner = planner_of(NVFP4_BACKEND_SM120, PRODUCT_GEMM, VALUES_E2M1);
    int32_t split_k = 0;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        const gemm_problem p = problem(sizes[i], n, k, 1, PLAIN), far = problem(sizes[i], n, k, 1, UNALIGNED);
        const gemm_traits t[2] = {traits_of(&p), traits_of(&far)};
        for (int j = 0; j < 2; j++) {
            const int32_t count = planner->batch_invariant(&g->props, &t[j], all);
            name_product(g, &p, PLAIN);
            if (!expect(count > 0, "an order for every M")) continue;
            if (!split_k) split_k = all[0].split_k;
            for (int32_t c = 0; c < count; c++) expect(all[c].split_k == split_k, "one order");
        }
    }
}

static int32_t one(const gpu *g, int64_t m, int64_t n, int64_t k, int64_t l, variant v, int all) {
    const gemm_problem p = problem(m, n, k, l, v);
    static candidate_list list, portable;
    if (p.a_type != VALUES_E2M1) return 0; /* test_units_plan.c has them */
    list_candidates(NVFP4_BACKEND_SM120, g, &p, 0, &list);
    if (list.count) {
        const gemm_candidate *first = &list.all[first_of(&list)];
        times_first[first->kernel][first->swap_ab][first->split_k > 1]++;
        list_candidates(NVFP4_BACKEND_SM80, g, &p, 0, &portable);
        name_product(g, &p, v);
        /* sm80's kernels split a longer K over more CTAs than a cluster has. */
        if (portable.count && k > 0 && k <= 16384 && g->props.clusters[0][0] >= 0)
            expect(candidate_precedes(first, &portable.all[first_of(&portable)]), "not behind sm80's kernels");
    }
    return check_product(NVFP4_BACKEND_SM120, g, &p, v, all, param_bytes, check, may_reject);
}

static void check_configs(void) {
    const kernel_set *set = gemm_backends[NVFP4_BACKEND_SM120]->kernels;
    snprintf(about, sizeof about, "kernels");
    for (int g = 0; g < GPUS; g++)
        expect(runs_on(NVFP4_BACKEND_SM120, &gpus[g]) == (gpus[g].props.compute_capability / 10 == 12), gpus[g].name);
    expect(runs_on(NVFP4_BACKEND_SM120, &on[2]), "12.1 too");
    expect(set->optional && set->count == SM120_KERNELS, "a driver without its code leaves it out");
    for (int32_t i = 0; i < SM120_CONFIGS; i++) {
        snprintf(about, sizeof about, "%s", set->kernels[i].name);
        expect(set->kernels[i].shared_bytes <= 101376, "shared memory of an RTX 5090 suffices");
        expect(set->kernels[i].pdl && set->kernels[i].ctas_per_sm == 1, "it starts early, in clusters");
        expect(set->kernels[i].threads % 32 == 0 &&
                   set->kernels[i].threads > 32 * configs[i].warps_m * configs[i].warps_n,
               "a warp that loads");
        const gemm_problem p = problem(configs[i].mma_tile_n, 4096, 4096, 1, PLAIN);
        check_min_shared_memory(NVFP4_BACKEND_SM120, gpus[RTX_5090], &p, i);
    }
}

static void check_rejections(void) {
    const gemm_problem many = problem(INT32_MAX, 1 << 29, 64, 1, PLAIN), few = problem(1, 1, 64, 1, PLAIN);
    expect(one(&on[0], INT32_MAX, 1 << 29, 64, 1, PLAIN, 0) == 0, "no candidates");
    snprintf(about, sizeof about, "rejections");
    may_reject(&on[0], &many);
    expect(!!strstr(nvfp4_last_error(), "M = 2147483647"), "too many tiles are an error");
    check_too_little_shared_memory(NVFP4_BACKEND_SM120, on[0], &few);
}

int main(void) {
    check_configs();
    check_rejections();
    for (size_t g = 0; g < COUNT(on); g++)
        for (size_t m = 0; m < COUNT(sizes); m++)
            for (size_t n = 0; n < COUNT(sizes); n++)
                for (size_t k = 0; k < COUNT(depths); k++)
                    for (size_t l = 0; l < COUNT(batches); l++) {
                        if (sizes[m] * sizes[n] * batches[l] > (int64_t)1 << 34) continue; /* that no GPU holds */
                        const variant v = (variant)((g + m * 3 + n * 5 + k * 7 + l) % VARIANTS);
                        one(&on[g], sizes[m], sizes[n], depths[k], batches[l], PLAIN, 0);
                        one(&on[g], sizes[m], sizes[n], depths[k], batches[l], v, (g + m + n + k + l) % 5 == 0);
                    }
    for (size_t g = 0; g < COUNT(on); g++)
        for (size_t n = 0; n < COUNT(sizes); n++)
            for (size_t k = 0; k + 1 < COUNT(depths); k++) check_batch_invariant(&on[g], sizes[n], depths[k]);
    one(&on[0], INT32_MAX, 8, INT32_MAX / 64 * 64, 1, PLAIN, 0);
    one(&on[0], 1, INT32_MAX, 1 << 20, 1, LINEAR, 0);
    one(&on[0], 1, 1, 64, INT32_MAX - 170, PLAIN, 0);
    one(&on[0], 8, INT32_MAX, 64, 200, PLAIN, 1); /* more tiles than are counted, of some sizes */
    for (size_t i = 0; i < COUNT(configs); i++) {
        const long (*t)[2] = times_first[i];
        snprintf(about, sizeof about, "%s", entry_of((int32_t)i)->name);
        expect(t[0][0] + t[0][1] + t[1][0] + t[1][1] > 0, "some shape has a use for it");
        printf("%-28s A is mma_a: %6ld, split %6ld; B is: %6ld, split %6ld\n", about, t[0][0], t[0][1], t[1][0],
               t[1][1]);
    }
    return report();
}
