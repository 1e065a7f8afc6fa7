/* Products of groups of the sm80 backend on the properties of real GPUs: every candidate can be launched and has a tile
 * for every row, whatever the ends. Prints "N passed, N failed". */
#include "kernels/sm80/plan.h"
#include "plan_checks.h"

static const int64_t rows_of_result[] = {1, 2, 7, 8, 9, 16, 33, 64, 65, 300, 4096, 100000};
static const int64_t columns[] = {1, 7, 16, 33, 128, 130, 704, 1856, 7168};
static const int64_t depths[] = {0, 16, 48, 464, 2048, 7168};
static const int32_t groups_of[] = {1, 2, 8, 60, 128, 1024};
static const int on[] = {A100, RTX_3090, RTX_4090, H200, B200, RTX_5090};

static long times_first[SM80_KERNELS], times_listed[SM80_KERNELS];

static int is_of_groups(const kernel_entry *kernel) {
    return !strncmp(kernel->source, "sm80_grouped", sizeof "sm80_grouped" - 1);
}

static size_t param_bytes(int32_t kernel, int32_t index) {
    (void)kernel;
    return index == 0 ? sizeof(grouped_problem) : index == 1 ? sizeof(sm80_grouped_schedule) : 0;
}

/* ---- the tiles that ends need ---- */

static int64_t tiles_of(const int32_t *ends, int32_t groups, int64_t m, int64_t tile_m) {
    int64_t end = 0, tiles = 0;
    for (int32_t e = 0; e < groups; e++) {
        const int64_t clamped = min_int(max_int(ends[e], end), m);
        tiles += ceil_div(clamped - end, tile_m);
        end = clamped;
    }
    return tiles;
}

static uint64_t state;

static int64_t draw(int64_t below) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (int64_t)((state >> 33) % (uint64_t)below);
}

/* There are three kinds: any values, ends in order, and groups of just more rows than whole tiles. */
static void draw_ends(int32_t *ends, int32_t groups, int64_t m, int64_t tile_m) {
    const int kind = (int)draw(3);
    int64_t end = 0;
    for (int32_t e = 0; e < groups; e++) {
        if (kind == 0) ends[e] = (int32_t)(draw(3 * m) - m);
        if (kind == 1) ends[e] = (int32_t)(m * (e + 1) / groups);
        if (kind == 2) ends[e] = (int32_t)(end = min_int(m, end + draw(3) * tile_m + draw(2)));
    }
}

static void check_tiles(const gpu *g, const gemm_problem *p, const gemm_candidate *c, int64_t tiles_m) {
    static int32_t ends[NVFP4_MAX_GROUPS];
    const int32_t groups = ((const grouped_problem *)p)->groups;
    (void)g;
    for (int i = 0; i < 16; i++) {
        draw_ends(ends, groups, p->m, c->tile_m);
        expect(tiles_of(ends, groups, p->m, c->tile_m) <= tiles_m, "a tile for every row");
    }
    /* Groups of one row, and the last with the rest. */
    const int32_t hit = (int32_t)min_int(groups, p->m);
    for (int32_t e = 0; e < groups; e++) ends[e] = e + 1 < hit ? e + 1 : (int32_t)p->m;
    expect(tiles_of(ends, groups, p->m, c->tile_m) == tiles_m, "and no more than some ends need");
}

/* ---- candidates ---- */

static void check(const gpu *g, const gemm_problem *p, variant v, const gemm_candidate *c, const launch_plan *plan,
                  const launch_step *step) {
    const grouped_problem *all = (const grouped_problem *)p;
    const kernel_entry *kernel = &gemm_backends[NVFP4_BACKEND_SM80]->kernels->kernels[c->kernel];
    const sm80_grouped_schedule *s = param_of(plan, step, 1);
    (void)v;
    times_listed[c->kernel]++;
    expect(!memcmp(param_of(plan, step, 0), all, sizeof *all), "the kernel gets the problem");
    const int a_is_e2m1 = p->a_type == VALUES_E2M1;
    expect(!strcmp(kernel->source, p->product_kind == PRODUCT_GROUPED_NN ? "sm80_grouped_nn"
                                   : a_is_e2m1                           ? "sm80_grouped_w4a4"
                                                                         : "sm80_grouped"),
           "it is one of groups");
    expect(strstr(kernel->name, a_is_e2m1                 ? "_w4a4_"
                                : p->a_type == NVFP4_FP16 ? "_fp16_"
                                                          : "_bf16_") != NULL,
           "and of this type of A");
    expect(kernel->threads >= c->tile_m && step->shared_bytes == kernel->shared_bytes, "a CTA of its size");
    expect(kernel->pdl && step->cluster == 0 && step->grid_y == 1,
           "a launch that every GPU takes, and begins early where it can");
    expect(plan->steps == 1 && plan->tensor_maps == 0 && c->workspace == 0 && c->split_k == 1, "one launch, no memory");
    expect(c->grid == s->tiles_m * s->tiles_n * all->parts, "the grid is tiles x parts");
    if (p->product_kind == PRODUCT_GROUPED && !a_is_e2m1) {
        /* A quarter of a tile's columns lie in each quarter of a block of 128; the first quarter has most. */
        const int64_t whole = p->n / 128 * (128 / c->tile_n), first = min_int(p->n % 128, 32);
        expect((s->tiles_n - whole) * c->tile_n / 4 >= first && (s->tiles_n - whole - 1) * c->tile_n / 4 < first,
               "tiles cover the blocks of N");
    } else {
        expect(s->tiles_n == ceil_div(p->n, c->tile_n), "tiles cover N");
    }
    check_tiles(g, p, c, s->tiles_m);
}

static int may_reject(const gpu *g, const gemm_problem *p) {
    const gemm_traits t = traits_of_product(p);
    expect(planner_of(NVFP4_BACKEND_SM80, p->product_kind, p->a_type)->reject(&g->props, &t) == NVFP4_UNSUPPORTED &&
               strstr(nvfp4_last_error(), "more CTAs or more shared memory"),
           nvfp4_last_error());
    return ceil_div(p->m, 64) * ceil_div(p->n, 64) > INT32_MAX;
}

static int32_t one(const gpu *g, const grouped_problem *p, variant v, int all) {
    return check_product(NVFP4_BACKEND_SM80, g, &p->g, v, all, param_bytes, check, may_reject);
}

/* All candidates add in one order, so each serves batch-invariant products. */
static void check_batch_invariant(const grouped_problem *p) {
    const gemm_traits t = traits_of_product(&p->g);
    const gemm_planner *planner = planner_of(NVFP4_BACKEND_SM80, t.product_kind, t.a_type);
    gemm_candidate plain[MAX_CANDIDATES], invariant[MAX_CANDIDATES];
    const int32_t count = planner->candidates(&gpus[H200].props, &t, plain);
    expect(planner->batch_invariant(&gpus[H200].props, &t, invariant) == count, "as many candidates");
    for (int32_t i = 0; i < count; i++) expect(same_settings(&plain[i], &invariant[i]), "the same candidates");
}

static void check_limits(void) {
    const grouped_problem many = grouped(PRODUCT_GROUPED, INT32_MAX, INT32_MAX, 64, 8, 2, FP16_A);
    snprintf(about, sizeof about, "limits");
    expect(one(&gpus[A100], &many, FP16_A, 1) == 0 && strstr(nvfp4_last_error(), "M = 2147483647"),
           "too many tiles are an error");
    for (int32_t k = 0; k < SM80_KERNELS; k++) {
        const kernel_entry *kernel = &gemm_backends[NVFP4_BACKEND_SM80]->kernels->kernels[k];
        if (!is_of_groups(kernel)) continue;
        const int32_t kind = strstr(kernel->name, "_nn_") ? PRODUCT_GROUPED_NN : PRODUCT_GROUPED;
        const variant v = strstr(kernel->name, "_w4a4_") ? PLAIN : strstr(kernel->name, "_fp16_") ? FP16_A : BF16_A;
        const grouped_problem p = grouped(kind, 64, 64, 512, 4, 1, v);
        check_min_shared_memory(NVFP4_BACKEND_SM80, gpus[A100], &p.g, k);
    }
    static const variant of_a[] = {BF16_A, PLAIN};
    for (size_t i = 0; i < COUNT(of_a); i++) {
        const grouped_problem few = grouped(PRODUCT_GROUPED, 8, 1856, 7168, 128, 2, of_a[i]),
                              more = grouped(PRODUCT_GROUPED, 4096, 1856, 7168, 8, 2, of_a[i]);
        static candidate_list list;
        list_candidates(NVFP4_BACKEND_SM80, &gpus[H200], &few.g, 0, &list);
        expect(list.all[first_of(&list)].tile_m == 8, "few rows a group have a narrow tile");
        list_candidates(NVFP4_BACKEND_SM80, &gpus[H200], &more.g, 0, &list);
        expect(list.all[first_of(&list)].tile_m == (of_a[i] == PLAIN ? 48 : 64), "many rows a group have a wide one");
    }
}

int main(int argc, char **argv) {
    const kernel_set *set = gemm_backends[NVFP4_BACKEND_SM80]->kernels;
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    check_limits();
    for (size_t m = 0; m < COUNT(rows_of_result); m++)
        for (size_t n = 0; n < COUNT(columns); n++)
            for (size_t k = 0; k < COUNT(depths); k++)
                for (size_t e = 0; e < COUNT(groups_of); e++) {
                    const gpu *g = &gpus[on[(m + n + k + e) % COUNT(on)]];
                    const int32_t kind = (m + e) % 3 == 2 ? PRODUCT_GROUPED_NN : PRODUCT_GROUPED;
                    static const variant of_a[] = {FP16_A, BF16_A, PLAIN, LINEAR};
                    const variant v = of_a[(m + n + k) % (kind == PRODUCT_GROUPED ? COUNT(of_a) : 2)];
                    const int32_t parts = kind == PRODUCT_GROUPED ? 1 + (int32_t)((m + k) % 3) : 1;
                    const grouped_problem p =
                        grouped(kind, rows_of_result[m], columns[n], depths[k], groups_of[e], parts, v);
                    static candidate_list list;
                    one(g, &p, v, (m + n + k + e) % 7 == 0);
                    check_batch_invariant(&p);
                    list_candidates(NVFP4_BACKEND_SM80, g, &p.g, 0, &list);
                    if (list.count) times_first[list.all[first_of(&list)].kernel]++;
                }
    snprintf(about, sizeof about, "what there is");
    for (int k = 0; k < SM80_KERNELS; k++) {
        if (!is_of_groups(&set->kernels[k])) continue;
        expect(times_listed[k] > 0, set->kernels[k].name);
        printf("%-32s first %6ld times, listed %7ld\n", set->kernels[k].name, times_first[k], times_listed[k]);
    }
    return report();
}
