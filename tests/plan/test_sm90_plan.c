/* The sm90 backend over many shapes and ways to lie in memory: every candidate can be launched, and keeps what its
 * kernels rely on (sm90_plan_checks.h). Prints "N passed, N failed". */
#include "sm90_plan_checks.h"

static const int64_t sizes[] = {1, 2, 4, 5, 8, 9, 32, 33, 64, 112, 127, 128, 129, 300, 2304, 7168, 100000};
static const int64_t depths[] = {0, 16, 64, 96, 144, 464, 2048, 7168, 16384, 1 << 20, INT32_MAX / 64 * 64};
static const int64_t batches[] = {1, 3, 1000};
static const int on[] = {H200, H100_PCIE, H200_SLICE};

static long times_first[SM90_KERNELS], times_listed[SM90_KERNELS];

static void check(const gpu *g, const gemm_problem *p, variant v, const gemm_candidate *c, const launch_plan *plan,
                  const launch_step *gemm) {
    (void)v;
    times_listed[c->kernel]++;
    expect(c->kernel != KERNEL_SM90_DEQUANT && entry_of(c->kernel)->pdl == (p->product_kind == PRODUCT_GEMM),
           "a GEMM that starts early, but for those of A . B");
    expect((kind_of(c->kernel) == NN) == (p->product_kind == PRODUCT_GEMM_NN), "a kernel of this B");
    expect(gemm == &plan->step[plan->steps - 1], "the GEMM is launched last");
    expect(c->prefetch_stages == 0, "no L2 prefetching");
    if (kind_of(c->kernel) != GEMV)
        expect(!memcmp(param_of(plan, gemm, 0), p, sizeof *p), "the kernel gets the problem");
    switch (kind_of(c->kernel)) {
    case GEMM:
        check_gemm(g, p, c, plan, gemm);
        break;
    case GEMV:
        check_gemv(g, p, c, plan, gemm);
        break;
    case PREFILL:
        check_prefill(g, p, c, plan, gemm);
        break;
    case UNITS:
        check_units(g, p, &units_configs[c->kernel - FIRST_UNITS], c, plan, gemm);
        break;
    case NN:
        check_nn(p, c, plan, gemm);
        break;
    }
}

/* Whether there are too many of the largest tiles, or an operand that has to be dequantized is beyond what a tensor
 * map's strides reach: the smaller one, or, where the other cannot be read as it lies, either. */
static int may_reject(const gpu *g, const gemm_problem *p) {
    const gemm_traits t = traits_of(p);
    const gemm_planner *planner = planner_of(NVFP4_BACKEND_SM90, p->product_kind, p->a_type);
    const double row = (double)SM90_DEQUANT_PITCH(p->k), end = (double)TENSOR_STRIDE_END;
    const double a = row * (double)p->m * (double)(p->a_batch == 0 && p->scale_a_batch == 0 ? 1 : p->l);
    const double b = row * (double)p->n * (double)p->l;
    const int e2m1 = p->scale_layout == NVFP4_128X4 && needs_tma(p);
    if (p->product_kind == PRODUCT_GEMM_NN) {
        expect(planner->reject(&g->props, &t) == NVFP4_UNSUPPORTED &&
                   strstr(nvfp4_last_error(), e2m1 ? "tiles" : "NVFP4_NO_TRANSPOSE_B"),
               nvfp4_last_error());
        return !e2m1 || ceil_div(p->m, 128) * ceil_div(p->n, 128) * p->l > INT32_MAX / 16;
    }
    expect(planner->reject(&g->props, &t) == NVFP4_UNSUPPORTED &&
               (strstr(nvfp4_last_error(), "workspace") || (p->a_type && strstr(nvfp4_last_error(), "a: dtype is ")) ||
                strstr(nvfp4_last_error(), "tiles")),
           nvfp4_last_error());
    if (ceil_div(p->m, 256) * ceil_div(p->n, 256) * p->l > INT32_MAX - g->props.sm_count) return 1;
    if (p->a_type != VALUES_E2M1) return !e2m1 || a >= end;
    return e2m1 ? (a < b ? a : b) >= end : (a > b ? a : b) >= end;
}

static int32_t one_problem(const gpu *g, gemm_problem p, variant v, int all) {
    static candidate_list list;
    list_candidates(NVFP4_BACKEND_SM90, g, &p, 0, &list);
    if (list.count) times_first[list.all[first_of(&list)].kernel]++;
    return check_product(NVFP4_BACKEND_SM90, g, &p, v, all, param_bytes, check, may_reject);
}

static int32_t one(const gpu *g, int64_t m, int64_t n, int64_t k, int64_t l, variant v, int all) {
    const gemm_problem p = problem(m, n, k, l, v);
    if (p.a_type != VALUES_E2M1 && n % 16 == 0) { /* the same bytes without the transposition */
        gemm_problem nn = p;
        nn.product_kind = PRODUCT_GEMM_NN, nn.a_pitch = nn.k * 2, nn.a_batch = p.a_batch ? m * nn.k * 2 : 0;
        nn.b_pitch = n / 2, nn.b_batch = k * n / 2, nn.aligned16 = n % 32 == 0 && k % 8 == 0;
        one_problem(g, nn, v, all);
    }
    return one_problem(g, p, v, all);
}

static void check_kernels(void) {
    const kernel_set *set = gemm_backends[NVFP4_BACKEND_SM90]->kernels;
    snprintf(about, sizeof about, "kernels");
    for (int g = 0; g < GPUS; g++)
        expect(runs_on(NVFP4_BACKEND_SM90, &gpus[g]) == (gpus[g].props.compute_capability == 90), gpus[g].name);
    expect(set->optional, "a driver without its code leaves it out");
    expect(set->count == SM90_KERNELS && set->kernels[KERNEL_SM90_DEQUANT].pdl, "the pre-pass starts early");
}

static void check_rejections(void) {
    const gemm_problem many = problem(INT32_MAX, 1 << 30, 64, 8, PLAIN), few = problem(8, 8, 64, 1, PLAIN);
    static candidate_list list;
    snprintf(about, sizeof about, "rejections");
    list_candidates(NVFP4_BACKEND_SM90, &gpus[H200], &many, 0, &list);
    may_reject(&gpus[H200], &many);
    expect(list.count == 0 && strstr(nvfp4_last_error(), "M = 2147483647"), "too many tiles are an error");
    check_too_little_shared_memory(NVFP4_BACKEND_SM90, gpus[H200], &few);
}

/* Pairs of tiles, 256 x 256, are counted in 32 bits; of the tiles alone there may be more. */
static void check_many_pairs(void) {
    static const struct {
        int64_t m, n, l;
        int fits;
    } products[] = {
        {256, 256, 1, 1},           {1 << 27, 1 << 19, 1, 1},         {1 << 19, 1 << 27, 1, 1},
        {1 << 20, 1 << 19, 128, 1}, {1 << 27, (1 << 20) - 256, 1, 1}, {1 << 27, 1 << 20, 1, 0},
        {1 << 20, 1 << 27, 1, 0},   {1 << 20, 1 << 20, 128, 0},
    };
    static candidate_list list;
    for (size_t i = 0; i < COUNT(products); i++) {
        const gemm_problem p = problem(products[i].m, products[i].n, 64, products[i].l, PLAIN);
        int count = 0;
        list_candidates(NVFP4_BACKEND_SM90, &gpus[H200], &p, 0, &list);
        for (int32_t j = 0; j < list.count; j++) count += kind_of(list.all[j].kernel) == PREFILL;
        name_product(&gpus[H200], &p, PLAIN);
        expect(count == (products[i].fits ? 4 : 0), "both undivided kernels either way round, if pairs can be counted");
    }
}

/* Checks the shapes that matter most: the kind of kernel, one round of clusters, and whether AUTO takes sm80. Times of
 * an H200 stand behind each line (benchmarks/results/sm90_plans_h200.csv), of an H100 behind those of units.cu
 * (benchmarks/log/sm90_units_h100.csv). */
static void check_choices(void) {
    static const struct {
        int64_t m, n, k;
        variant v;
        kind kind;
        int swap_ab, sm80_first;
    } choices[] = {
        {7168, 1, 16384, PLAIN, GEMV, 1, 0},        {4096, 1, 7168, FP32, GEMV, 1, 0},
        {1, 7168, 16384, PLAIN, GEMV, 0, 0},        {1, 4096, 7168, PLAIN, GEMV, 0, 0},
        {1, 7168, 2048, PLAIN, GEMV, 0, 0},         {2, 7168, 16384, PLAIN, GEMV, 0, 0},
        {4, 4096, 7168, PLAIN, UNITS, 1, 0},        {4, 7168, 2048, PLAIN, UNITS, 1, 0},
        {8, 7168, 16384, PLAIN, UNITS, 1, 0},       {8, 4096, 7168, PLAIN, UNITS, 1, 0},
        {5, 7168, 2048, PLAIN, UNITS, 1, 0},        {16, 7168, 16384, PLAIN, GEMM, 1, 0},
        {16, 4096, 7168, PLAIN, UNITS, 1, 0},       {16, 7168, 2048, PLAIN, GEMM, 1, 0},
        {64, 7168, 16384, PLAIN, GEMM, 1, 0},       {128, 7168, 16384, PLAIN, GEMM, 1, 0},
        {128, 4096, 7168, PLAIN, GEMM, 1, 0},       {128, 7168, 2048, PLAIN, GEMM, 1, 0},
        {16384, 16, 7168, PLAIN, GEMM, 0, 0},       {256, 7168, 16384, PLAIN, GEMM, 1, 0},
        {320, 7168, 16384, PLAIN, GEMM, 1, 0},      {2304, 4608, 7168, PLAIN, PREFILL, 1, 0},
        {1, 7168, 16384, LINEAR, GEMV, 0, 0},       {16, 7168, 16384, LINEAR, PREFILL, 0, 1},
        {16, 7168, 2048, UNALIGNED, PREFILL, 0, 1}, {128, 4096, 7168, LINEAR, PREFILL, 0, 1},
        {2304, 7168, 16384, LINEAR, PREFILL, 0, 0}, {4096, 4608, 7168, UNALIGNED, PREFILL, 0, 0},
        {4, 7168, 2048, FP16_A, UNITS, 1, 0},       {8, 4096, 7168, BF16_A, UNITS, 1, 0},
        {16, 7168, 16384, FP16_A, GEMM, 1, 0},      {16, 7168, 16384, BF16_A, GEMM, 1, 0},
        {128, 7168, 16384, BF16_A, GEMM, 1, 0},     {2304, 4608, 7168, BF16_A, PREFILL, 1, 0},
    };
    const uint32_t sm80 = 1u << NVFP4_BACKEND_SM80, sm90 = 1u << NVFP4_BACKEND_SM90;
    const gpu *h200 = &gpus[H200];
    for (size_t i = 0; i < COUNT(choices); i++) {
        const gemm_problem p = problem(choices[i].m, choices[i].n, choices[i].k, 1, choices[i].v);
        plan_query query = query_of(h200, &p, sm90, 0);
        const gemm_candidate c = plan_choose(&query)->taken;
        name_candidate(h200, &p, choices[i].v, &c);
        const kind found = kind_of(c.kernel);
        expect(found == choices[i].kind, "the kind that measures fastest");
        if (found == GEMM) {
            expect(c.swap_ab == choices[i].swap_ab, "what has more rows stays e2m1");
            expect(c.grid <= sm90_ctas_that_fit(h200->props.sm_count, c.split_k), "all CTAs run at once");
            expect(c.grid >= 90, "most SMs have work");
        }
        if (found == PREFILL)
            expect(prefill_configs[c.kernel - FIRST_PREFILL].mma_a_e2m1 ==
                       (choices[i].v == PLAIN || choices[i].v == BF16_A),
                   "e2m1 where it can be");
        query.backends |= sm80;
        const gemm_candidate taken = plan_choose(&query)->taken;
        expect(taken.backend == (choices[i].sm80_first ? NVFP4_BACKEND_SM80 : NVFP4_BACKEND_SM90),
               "the backend of AUTO");
        expect(choices[i].sm80_first ? taken.modelled_us < c.modelled_us : same_settings(&taken, &c),
               "which is the one of the lesser time");
        query.override = settings_of(&c);
        expect(same_settings(&plan_choose(&query)->taken, &c), "but not where sm90's is asked for by its settings");
    }
}

/* The times of A . B by a candidate's settings; 0: it is not listed. */
static double nn_us(int64_t m, int64_t n, int64_t k, variant v, int32_t tile_m, int32_t split_k, int32_t element) {
    static candidate_list list;
    gemm_problem p = problem(m, n, k, 1, v);
    p.product_kind = PRODUCT_GEMM_NN, p.a_pitch = k * 2, p.b_pitch = n / 2, p.out_pitch = n * element;
    p.out_type = element == 4 ? NVFP4_FP32 : NVFP4_FP16;
    list_candidates(NVFP4_BACKEND_SM90, &gpus[H200], &p, 0, &list);
    for (int32_t i = 0; i < list.count; i++)
        if (list.all[i].tile_m == tile_m && list.all[i].split_k == split_k) return list.all[i].modelled_us;
    return 0.0;
}

/* Clocks of A . B that follow from the kernel, whatever the constants are. */
static void check_nn_model(void) {
    snprintf(about, sizeof about, "the model of A . B");
    const double us = nn_us(128, 16896, 8192, FP16_A, 128, 1, 2); /* 66 tiles */
    expect(us > 0 && nn_us(128, 16896, 8192, BF16_A, 128, 1, 2) > us, "bf16 takes longer to decode");
    const double longer = nn_us(128, 16896, 16384, FP16_A, 128, 1, 2),
                 longest = nn_us(128, 16896, 24576, FP16_A, 128, 1, 2);
    expect(longer > us && fabs((longest - longer) - (longer - us)) < 1e-6 * us, "each stage takes as long");
    expect(longer > 1.8 * us, "stages are most of it");
    expect(nn_us(64, 16896, 8192, FP16_A, 64, 1, 2) < us, "wgmma takes longer for more rows");
    const double few = nn_us(1, 1 << 20, 64, FP16_A, 32, 1, 2), wide = nn_us(1, 1 << 20, 64, FP16_A, 32, 1, 4);
    expect(few > 0 && wide > few && wide < 1.1 * few, "one row of A and of results takes little of the memory's time");
}

/* Clusters of 2, 3 ... 8 CTAs that ran at once on an H200, and numbers that did not (model.h). */
static void check_clusters(void) {
    static const int64_t ran[] = {66, 36, 28, 18, 16, 1, 1}, did_not[] = {67, 40, 32, 23, 18, 16, 16};
    for (int32_t i = 0; i < (int32_t)COUNT(ran); i++) {
        const int64_t ctas = sm90_ctas_that_fit(132, 2 + i);
        snprintf(about, sizeof about, "clusters of %d", 2 + i);
        expect(ctas % (2 + i) == 0 && ctas >= ran[i] * (2 + i), "what has run at once fits");
        expect(ctas < did_not[i] * (2 + i), "what has not does not fit");
    }
}

int main(void) {
    check_clusters();
    check_kernels();
    check_choices();
    check_nn_model();
    check_rejections();
    check_many_pairs();
    for (size_t g = 0; g < COUNT(on); g++)
        for (size_t m = 0; m < COUNT(sizes); m++)
            for (size_t n = 0; n < COUNT(sizes); n++)
                for (size_t k = 0; k < COUNT(depths); k++)
                    for (size_t l = 0; l < COUNT(batches); l++) {
                        if (sizes[m] * sizes[n] * batches[l] > (int64_t)1 << 34) continue; /* that no GPU holds */
                        const variant v = (variant)((g + m * 3 + n * 5 + k * 7 + l) % VARIANTS);
                        one(&gpus[on[g]], sizes[m], sizes[n], depths[k], batches[l], v, (g + m + n + k + l) % 5 == 0);
                    }
    for (size_t m = 0; m < COUNT(sizes); m += 2)
        for (size_t n = 0; n < COUNT(sizes); n += 3)
            for (size_t k = 0; k < COUNT(depths); k++)
                one(&gpus[H200], sizes[m], sizes[n], depths[k], k % 3 ? 1 : 3,
                    k % 2 ? PLAIN : (variant)((m + n) % VARIANTS), 1);
    one(&gpus[H200], 128, 7168, 16384, 1, PLAIN, 1);
    one(&gpus[H200], 2, 500, 1040, 1, LINEAR, 1);
    one(&gpus[H200], INT32_MAX, 8, INT32_MAX / 64 * 64, 1, PLAIN, 0);
    one(&gpus[H200], 1, INT32_MAX, 1 << 20, 1, LINEAR, 0);
    one(&gpus[H200], 1, 1, 64, INT32_MAX - 132, PLAIN, 0);
    one(&gpus[H200], 128, 128, 1 << 20, 1 << 24, PLAIN, 0);
    one(&gpus[H200], 8, INT32_MAX, 64, 300, PLAIN, 1); /* more tiles than are counted */
    one(&gpus[H200], 40, INT32_MAX, 64, 300, PLAIN, 1);
    one(&gpus[H200], INT32_MAX, 8, 64, 200, FP32, 1);
    snprintf(about, sizeof about, "what there is");
    for (int32_t k = 0; k < KERNEL_sm90_grouped_few_fp16_256x16; k++) { /* those are test_sm90_grouped_plan.c's */
        if (strstr(entry_of(k)->name, "_quantize_")) continue;          /* listed for quantize_gemm alone */
        expect(times_listed[k] > 0, entry_of(k)->name);
        printf("%-32s first %6ld times, listed %7ld\n", entry_of(k)->name, times_first[k], times_listed[k]);
    }
    return report();
}
