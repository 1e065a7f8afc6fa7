/* The ranking of all backends' candidates (plan/choose.c), and plans that a user puts first (plan/overrides.c). Prints
 * "N passed, N failed". The argument is a seed. */
#include "plan_checks.h"

#include "plan/overrides.h"

enum { SM80 = 1 << NVFP4_BACKEND_SM80, SM90 = 1 << NVFP4_BACKEND_SM90, SM100 = 1 << NVFP4_BACKEND_SM100 };

typedef struct ranking {
    int32_t count;
    gemm_candidate all[3 * MAX_CANDIDATES];
} ranking;

static int by_time(const void *left, const void *right) {
    const gemm_candidate *x = left, *y = right;
    const double differences[] = {
        x->modelled_us - y->modelled_us,        (double)x->prefetch_stages - y->prefetch_stages,
        (double)y->backend - x->backend,        (double)x->kernel - y->kernel,
        (double)x->swap_ab - y->swap_ab,        (double)x->split_k - y->split_k,
        (double)y->ctas_per_sm - x->ctas_per_sm};
    for (size_t i = 0; i < COUNT(differences); i++)
        if (differences[i] != 0.0) return differences[i] < 0.0 ? -1 : 1;
    return 0;
}

/* Makes the ranking that is expected: the candidates of these backends, sorted by their times. */
static void rank_all(const gpu *g, const gemm_problem *p, uint32_t backends, ranking *r) {
    static candidate_list list;
    r->count = 0;
    for (int32_t b = 0; b < GEMM_BACKENDS; b++) {
        if (!(backends >> b & 1)) continue;
        list_candidates(b, g, p, 0, &list);
        memcpy(r->all + r->count, list.all, (size_t)list.count * sizeof *list.all);
        r->count += list.count;
    }
    qsort(r->all, (size_t)r->count, sizeof *r->all, by_time);
}

static int same(const gemm_candidate *x, const gemm_candidate *y) {
    return same_settings(x, y) && x->modelled_us == y->modelled_us && x->grid == y->grid && !strcmp(x->name, y->name);
}

static const gemm_candidate *take(const gpu *g, const gemm_problem *p, uint32_t backends, int32_t rank,
                                  plan_settings override, int32_t candidates) {
    plan_query query = query_of(g, p, backends, rank);
    query.override = override;
    const plan_answer *answer = plan_choose(&query);
    expect(answer->candidates == candidates, "how many candidates there are");
    return &answer->taken;
}

/* Rank i is the i-th of all backends' candidates; returns the bits of the backends that are ranked. */
static uint32_t check_ranks(int gpu_index, int64_t m, int64_t n, int64_t k, int64_t l, variant v, uint32_t backends) {
    static ranking r;
    const gpu *g = &gpus[gpu_index];
    const gemm_problem p = problem(m, n, k, l, v);
    const plan_settings none = {0};
    uint32_t found = 0;
    name_product(g, &p, v);
    rank_all(g, &p, backends, &r);
    for (int32_t i = 0; i < r.count; i++) {
        const gemm_candidate *c = take(g, &p, backends, i, none, r.count);
        expect(same(c, &r.all[i]), "a rank counts candidates by their times");
        expect(i == 0 || c->modelled_us >= r.all[i - 1].modelled_us,
               "none is modelled to be faster than the one before");
        expect(backends >> c->backend & 1, "no backend but those of the mask");
        found |= 1u << c->backend;
    }
    if (r.count) {
        expect(same(take(g, &p, backends, r.count, none, r.count), &r.all[r.count - 1]), "beyond the last is the last");
        expect(same(take(g, &p, backends, INT32_MAX, none, r.count), &r.all[r.count - 1]), "far beyond it too");
    }
    return found;
}

/* A candidate that is put first leaves the others in their order; settings that no candidate has change nothing.
 * Every step-th candidate is put first. */
static void check_override(int gpu_index, int64_t m, int64_t n, int64_t k, variant v, uint32_t backends, int step) {
    static ranking r;
    const gpu *g = &gpus[gpu_index];
    const gemm_problem p = problem(m, n, k, 1, v);
    name_product(g, &p, v);
    rank_all(g, &p, backends, &r);
    expect(r.count > step, "candidates");
    for (int32_t i = 0; i < r.count; i += step)
        for (int32_t j = 0; j < r.count; j++) {
            const gemm_candidate *c = take(g, &p, backends, j, settings_of(&r.all[i]), r.count);
            expect(same(c, &r.all[j == 0 ? i : j - (j <= i)]), "one goes to the front");
        }
    const gemm_candidate *first = &r.all[0], *last = &r.all[r.count - 1];
    plan_settings unknown = settings_of(last);
    unknown.prefetch_stages += 1000;
    expect(same(take(g, &p, backends, 0, unknown, r.count), first), "what no candidate has is nothing");
    unknown = settings_of(last);
    unknown.split_k = 0;
    expect(same(take(g, &p, backends, 0, unknown, r.count), first), "nor is a split of 0");
    unknown = settings_of(last);
    unknown.backend = NVFP4_BACKEND_CPU;
    expect(same(take(g, &p, backends, 0, unknown, r.count), first), "nor a kernel of another backend");
    for (int32_t b = 0; b < GEMM_BACKENDS; b++) {
        if (!(backends >> b & 1)) continue;
        static ranking without;
        rank_all(g, &p, backends & ~(1u << b), &without);
        if (without.count == 0) continue;
        const gemm_candidate *of_b = NULL;
        for (int32_t i = 0; i < r.count && !of_b; i++)
            if (r.all[i].backend == b) of_b = &r.all[i];
        expect(of_b && same(take(g, &p, backends & ~(1u << b), 0, settings_of(of_b), without.count), &without.all[0]),
               "nor one of a backend that the mask leaves out");
    }
}

static void check_backends(void) {
    static const char *const names[] = {
        "auto",
#define NVFP4_BACKEND(ID, name, ...) #name,
#include "backends.def"
    };
    snprintf(about, sizeof about, "backends");
    expect(NVFP4_BACKEND_CPU == 1 && NVFP4_BACKEND_SM80 == 2 && NVFP4_BACKEND_SM90 == 3 && NVFP4_BACKEND_SM100 == 4,
           "public numbers");
    expect(COUNT(names) == GEMM_BACKENDS && gemm_backends[NVFP4_AUTO] == NULL, "a row for every backend");
    for (int32_t b = 0; b < GEMM_BACKENDS; b++) {
        expect(!strcmp(nvfp4_backend_name(b), names[b]), "a backend's name");
        if (b == NVFP4_AUTO) continue;
        const gemm_backend *backend = gemm_backends[b];
        expect(!strcmp(backend->name, names[b]) && backend->runs_on, names[b]);
        expect(!!backend->kernels == (b != NVFP4_BACKEND_CPU), "kernels of a GPU's backend");
        uint32_t taken = 0;
        for (int32_t o = 0; o < PRODUCT_KINDS; o++) {
            const gemm_planner *planner = backend->planners[o];
            if (!planner) continue;
            expect(planner->a_types && planner->candidates && planner->reject, "a planner");
            expect(!!planner->build == !!backend->kernels && !!planner->run_host == !backend->kernels,
                   "what runs a candidate");
            for (int32_t d = 0; d < 32; d++) {
                const gemm_planner *taking = planner->a_types >> d & 1 ? planner : NULL;
                expect(planner_of(b, o, d) == taking, "a planner is found by what it takes");
            }
            taken |= planner->a_types;
        }
        expect(taken & TAKES_E2M1, "A in the format is taken");
    }
    gemm_candidate cpu;
    expect(planner_of(NVFP4_BACKEND_CPU, PRODUCT_GEMM, VALUES_E2M1)->candidates(NULL, NULL, &cpu) == 1 &&
               cpu.backend == NVFP4_BACKEND_CPU && !strcmp(cpu.name, nvfp4_cpu_kernel()),
           "the CPU has one candidate");
    expect(!planner_of(NVFP4_AUTO, PRODUCT_GEMM, VALUES_E2M1), "no kernels belong to auto");
    for (int g = 0; g < GPUS; g++) {
        int others = 0;
        for (int32_t b = NVFP4_BACKEND_SM90; b < GEMM_BACKENDS; b++) others += runs_on(b, &gpus[g]);
        snprintf(about, sizeof about, "%s", gpus[g].name);
        expect(runs_on(NVFP4_BACKEND_SM80, &gpus[g]) && others <= 1, "sm80, and at most one other backend");
    }
}

/* A backend that cannot take a product leaves it to the others. */
static void check_gaps(void) {
    const gemm_problem huge = problem(1 << 20, 1 << 20, 1 << 20, 1, LINEAR),
                       many = problem(INT32_MAX, INT32_MAX, 64, 1, PLAIN);
    const plan_settings none = {0};
    static ranking r;
    snprintf(about, sizeof about, "gaps");
    rank_all(&gpus[H200], &huge, SM90, &r);
    expect(r.count == 0, "sm90 cannot take it");
    take(&gpus[H200], &huge, SM90, 0, none, 0);
    take(&gpus[H200], &huge, SM90, 7, none, 0);
    rank_all(&gpus[H200], &huge, SM80, &r);
    expect(r.count > 0 && take(&gpus[H200], &huge, SM80 | SM90, 0, none, r.count)->backend == NVFP4_BACKEND_SM80,
           "sm80 takes it");
    take(&gpus[H200], &many, SM80 | SM90, 0, none, 0);
    take(&gpus[B200], &many, SM80 | SM100, 0, none, 0);
}

/* The table of overrides against a search from the last to the first of what was added. */
static void check_overrides(uint64_t seed) {
    enum { ADDED = 400 };
    static plan_override added[ADDED];
    plan_overrides *table = overrides_create();
    snprintf(about, sizeof about, "overrides, seed %llu", (unsigned long long)seed);
    for (int i = 0; i < ADDED; i++) {
        int64_t numbers[7];
        for (int j = 0; j < 7; j++) {
            seed = seed * 6364136223846793005 + 1442695040888963407;
            numbers[j] = j < 2 ? (int64_t)(seed >> 62) : (int64_t)(seed >> 63) * (j < 4 ? INT32_MAX : 1);
        }
        added[i] = (plan_override){.key = {.device = (int32_t)numbers[0],
                                           .m = numbers[1],
                                           .k = numbers[2],
                                           .l = numbers[3],
                                           .n = numbers[4],
                                           .product_kind = (int32_t)numbers[5],
                                           .a_type = NVFP4_FP16 + (int32_t)numbers[6]},
                                   .settings = {NVFP4_BACKEND_SM80, i, i % 2, 1, 0}};
        expect(overrides_add(table, &added[i]) == NVFP4_OK, "one more");
    }
    size_t shapes = 0;
    for (int64_t key = 0; key < 5 * 5 * 32; key++) {
        const int64_t m = key / 5 % 5, bits = key / 25;
        const gemm_problem p = {.m = m,
                                .n = bits & 1,
                                .k = (bits >> 1 & 1) * INT32_MAX,
                                .l = (bits >> 2 & 1) * INT32_MAX,
                                .product_kind = (int32_t)(bits >> 3 & 1),
                                .a_type = NVFP4_FP16 + (int32_t)(bits >> 4)};
        const int32_t device = (int32_t)(key % 5);
        int i = ADDED - 1;
        for (; i >= 0; i--) {
            const override_key *k = &added[i].key;
            if (k->device == device && k->m == p.m && k->n == p.n && k->k == p.k && k->l == p.l &&
                k->product_kind == p.product_kind && k->a_type == p.a_type)
                break;
        }
        const plan_settings found = overrides_find(table, device, &p);
        expect(i < 0 ? found.split_k == 0 : found.split_k == 1 && found.kernel == i && found.swap_ab == i % 2,
               "what was added last, or nothing");
        shapes += i >= 0;
    }
    expect(overrides_count(table) == shapes, "a product has one entry");
    overrides_clear(table);
    const override_key *k = &added[0].key;
    const gemm_problem p = {
        .m = k->m, .n = k->n, .k = k->k, .l = k->l, .product_kind = k->product_kind, .a_type = k->a_type};
    expect(overrides_find(table, k->device, &p).split_k == 0 && overrides_count(table) == 0, "cleared");
    overrides_destroy(table);
}

int main(int argc, char **argv) {
    static const int64_t m[] = {1, 2, 16, 128, 2304}, n[] = {1, 24, 7168}, k[] = {0, 464, 2048, 16384};
    uint32_t found = 0, mixed = 0, first = 0;
    check_backends();
    check_gaps();
    check_overrides(argc > 1 ? strtoull(argv[1], NULL, 10) : 1);
    for (size_t i = 0; i < COUNT(m) * COUNT(n) * COUNT(k); i++) {
        const int64_t a = m[i % COUNT(m)], b = n[i / COUNT(m) % COUNT(n)], c = k[i / COUNT(m) / COUNT(n)];
        const variant v = (variant)(i % VARIANTS);
        found |= check_ranks(H200, a, b, c, 1, v, SM80);
        found |= check_ranks(H200, a, b, c, 3, v, SM90);
        found |= check_ranks(B200, a, b, c, 1, v, SM100);
        const uint32_t on_h200 = check_ranks(H200, a, b, c, 1, v, SM80 | SM90);
        const uint32_t on_b200 = check_ranks(B200, a, b, c, 2, v, SM80 | SM100);
        mixed |= (on_h200 == (SM80 | SM90)) | (uint32_t)(on_b200 == (SM80 | SM100)) << 1;
        const gemm_problem p = problem(a, b, c, 1, v);
        plan_query query = query_of(&gpus[H200], &p, SM80 | SM90, 0);
        first |= 1u << plan_choose(&query)->taken.backend;
    }
    snprintf(about, sizeof about, "what there is");
    expect(found == (SM80 | SM90 | SM100), "every backend is ranked");
    expect(mixed == 3, "together with sm80");
    expect(first == (SM80 | SM90), "either may be first on an H200");
    check_override(B200, 128, 7168, 16384, PLAIN, SM100, 5);
    check_override(B200, 3, 500, 96, LINEAR, SM100, 1);
    check_override(H200, 2, 500, 1040, LINEAR, SM90, 1);
    check_override(H200, 128, 7168, 16384, PLAIN, SM80 | SM90, 11);
    check_override(B200, 128, 7168, 2048, PLAIN, SM80 | SM100, 17);
    check_override(A100, 16, 4096, 7168, PLAIN, SM80, 1);
    return report();
}
