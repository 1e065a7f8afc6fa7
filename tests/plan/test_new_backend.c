/* A new backend is a gemm_backend and a row in the table: this program has a table of its own in place of
 * plan/backends.c, with a backend of one fake kernel for products with M <= 4 beside sm80 and sm90. Prints "N passed,
 * N failed". */
#include "plan_checks.h"

#include "common/error.h"

enum { TINY = NVFP4_BACKEND_SM100, MAX_ROWS = 4, TILE_N = 64, THREADS = 128, SHARED_BYTES = 4096 };

typedef struct tiny_schedule {
    float *sums; /* in the workspace, one for each element of C */
    int32_t tiles_n, padding_;
} tiny_schedule;

static double tiny_us;         /* the modelled time of its candidates */
static int32_t tiny_count = 1; /* how many candidates it lists */
static int32_t tiny_rejected;  /* how often it was asked why there are none */

static int32_t candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    if (t->m > MAX_ROWS || props->shared_per_block < SHARED_BYTES) return 0;
    for (int32_t i = 0; i < tiny_count; i++) {
        memset(&out[i], 0, sizeof out[i]);
        out[i].modelled_us = tiny_us + i, out[i].single_us = out[i].modelled_us + SINGLE_CALL_US;
        out[i].name = "nvfp4_tiny";
        out[i].reason = "so few rows fit the registers of one CTA";
        out[i].grid = ceil_div(t->n, TILE_N) * t->l;
        out[i].workspace = t->m * t->n * t->l * 4;
        out[i].backend = TINY;
        out[i].split_k = 1 + i;
        out[i].tile_m = MAX_ROWS, out[i].tile_n = TILE_N, out[i].tile_k = 64, out[i].stages = 1;
    }
    return tiny_count;
}

static nvfp4_status reject(const device_props *props, const gemm_traits *t) {
    (void)props;
    tiny_rejected++;
    return fail(NVFP4_UNSUPPORTED, "M is %lld; must be at most %d", (long long)t->m, MAX_ROWS);
}

static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    (void)props;
    const gemm_problem *p = &problem->gemm;
    launch_step *step = add_step(out, c->kernel, c->grid, SHARED_BYTES);
    *(gemm_problem *)add_param(out, step, sizeof *p) = *p;
    *(tiny_schedule *)add_param(out, step, sizeof(tiny_schedule)) =
        (tiny_schedule){.sums = workspace, .tiles_n = (int32_t)ceil_div(p->n, TILE_N)};
}

static const kernel_entry kernels[] = {
    {.name = "nvfp4_tiny", .source = "tiny", .threads = THREADS, .shared_bytes = SHARED_BYTES}};
static const kernel_set set = {
    .kernels = kernels, .count = COUNT(kernels), .min_capability = 80, .max_capability = 99, .optional = 1};
static const gemm_planner tiny_gemm = {
    .a_types = TAKES_E2M1, .candidates = candidates, .reject = reject, .build = build};
static const gemm_backend tiny_backend = {
    .name = "tiny", .runs_on = "any GPU of this test", .kernels = &set, .planners = {[PRODUCT_GEMM] = &tiny_gemm}};

extern const gemm_backend cpu_backend, sm80_backend, sm90_backend;
static gemm_backend sm80, sm90;
static gemm_planner sm80_gemm, sm90_gemm; /* which list as many candidates as they may while `crowded` */
static int crowded;

const gemm_backend *const gemm_backends[GEMM_BACKENDS] = {
    [NVFP4_BACKEND_CPU] = &cpu_backend,
    [NVFP4_BACKEND_SM80] = &sm80,
    [NVFP4_BACKEND_SM90] = &sm90,
    [TINY] = &tiny_backend,
};

static int32_t crowd(int32_t backend, gemm_candidate *out) {
    for (int32_t i = 0; i < MAX_CANDIDATES; i++) {
        memset(&out[i], 0, sizeof out[i]);
        out[i].modelled_us = 1e5 * backend + i;
        out[i].backend = backend;
        out[i].split_k = 1 + i;
    }
    return MAX_CANDIDATES;
}

static int32_t sm80_candidates_or_crowd(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    return crowded ? crowd(NVFP4_BACKEND_SM80, out) : sm80_backend.planners[PRODUCT_GEMM]->candidates(props, t, out);
}

static int32_t sm90_candidates_or_crowd(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    return crowded ? crowd(NVFP4_BACKEND_SM90, out) : sm90_backend.planners[PRODUCT_GEMM]->candidates(props, t, out);
}

static const uint32_t SM80 = 1u << NVFP4_BACKEND_SM80, SM90 = 1u << NVFP4_BACKEND_SM90, OWN = 1u << TINY;

static size_t param_bytes(int32_t kernel, int32_t index) {
    (void)kernel;
    return index == 0 ? sizeof(gemm_problem) : index == 1 ? sizeof(tiny_schedule) : 0;
}

/* The fastest candidate of these backends with sizes of its own: the cache does not know of tiny_us. */
static gemm_candidate fastest(int64_t m, int64_t n, uint32_t backends, int32_t *count) {
    const gemm_problem p = problem(m, n, 2048, 1, PLAIN);
    const plan_query query = query_of(&gpus[H200], &p, backends, 0);
    const plan_answer *answer = plan_choose(&query);
    *count = answer->candidates;
    return answer->taken;
}

/* It is taken where its time is the least, and where it is the only one. */
static void check_ranking(void) {
    int32_t others, count;
    snprintf(about, sizeof about, "ranking");
    const gemm_candidate best = fastest(4, 4096, SM80 | SM90, &others);
    expect(others > 1 && best.backend == NVFP4_BACKEND_SM90, "the table's other backends are ranked");
    tiny_us = best.modelled_us / 2;
    const gemm_candidate wins = fastest(4, 4096, SM80 | SM90 | OWN, &count);
    expect(count == others + 1 && wins.backend == TINY && !strcmp(wins.name, "nvfp4_tiny"), "it wins by its time");
    const gemm_problem p = problem(4, 4096, 2048, 1, PLAIN);
    plan_query last = query_of(&gpus[H200], &p, SM80 | SM90 | OWN, 1);
    expect(same_settings(&plan_choose(&last)->taken, &best), "and what was the best is the second");

    tiny_us = 1e6;
    const gemm_candidate loses = fastest(4, 4097, SM80 | SM90 | OWN, &count);
    expect(loses.backend != TINY, "it loses by its time");
    const gemm_problem q = problem(4, 4097, 2048, 1, PLAIN);
    last = query_of(&gpus[H200], &q, SM80 | SM90 | OWN, count - 1);
    expect(plan_choose(&last)->taken.backend == TINY, "and comes last");
    last.override = (plan_settings){TINY, 0, 0, 1, 0, 0};
    last.rank = 0;
    expect(plan_choose(&last)->taken.backend == TINY, "but for an override");
    expect(fastest(4, 4098, OWN, &count).backend == TINY && count == 1, "it is taken where it is named");
}

/* A product for which the backend has no candidate is ranked without it; alone it says why. */
static void check_gaps(void) {
    int32_t others, count;
    tiny_us = 1e-3;
    snprintf(about, sizeof about, "gaps");
    const gemm_candidate best = fastest(5, 4096, SM80 | SM90, &others);
    const gemm_candidate taken = fastest(5, 4096, SM80 | SM90 | OWN, &count);
    expect(count == others && same_settings(&taken, &best), "it does not take five rows");
    fastest(5, 4096, OWN, &count);
    const gemm_problem p = problem(5, 4096, 2048, 1, PLAIN);
    const gemm_traits t = traits_of(&p);
    expect(count == 0 &&
               planner_of(TINY, PRODUCT_GEMM, VALUES_E2M1)->reject(&gpus[H200].props, &t) == NVFP4_UNSUPPORTED &&
               tiny_rejected == 1 && !strcmp(nvfp4_last_error(), "M is 5; must be at most 4"),
           "it says why");
    expect(!planner_of(TINY, PRODUCT_GEMM_NN, NVFP4_FP16) && !planner_of(TINY, PRODUCT_GEMM, NVFP4_FP16),
           "it takes one product");
    const gemm_problem w4a16 = problem(4, 4096, 2048, 1, FP16_A);
    const plan_query others_alone = query_of(&gpus[H200], &w4a16, SM80 | SM90, 0),
                     own_alone = query_of(&gpus[H200], &w4a16, OWN, 0),
                     together = query_of(&gpus[H200], &w4a16, SM80 | SM90 | OWN, 0);
    others = plan_choose(&others_alone)->candidates;
    expect(plan_choose(&together)->candidates == others && others > 0, "and is not asked for another");
    expect(plan_choose(&own_alone)->candidates == 0, "not even alone");
}

/* All backends may list as many candidates as there is room for, at once. */
static void check_room(void) {
    enum { ALL = 3 * MAX_CANDIDATES };
    int32_t count;
    crowded = 1;
    tiny_us = 1e6;
    tiny_count = MAX_CANDIDATES;
    snprintf(about, sizeof about, "room");
    expect(fastest(3, 9999, SM80 | SM90 | OWN, &count).backend == NVFP4_BACKEND_SM80 && count == ALL, "all are listed");
    const gemm_problem p = problem(3, 9999, 2048, 1, PLAIN);
    const plan_query last = query_of(&gpus[H200], &p, SM80 | SM90 | OWN, ALL - 1);
    const gemm_candidate *taken = &plan_choose(&last)->taken;
    expect(taken->backend == TINY && taken->split_k == MAX_CANDIDATES, "and ranked");
    crowded = 0;
    tiny_count = 1;
}

/* Its launch, found through the table as api/gemm.c does. */
static void check_launch(void) {
    static launch_plan plan;
    tiny_us = 1e-3;
    const gemm_problem p = problem(2, 1000, 2048, 3, PLAIN);
    const plan_query query = query_of(&gpus[H200], &p, SM80 | SM90 | OWN, 0);
    const gemm_candidate c = plan_choose(&query)->taken;
    name_candidate(&gpus[H200], &p, PLAIN, &c);
    const launch_step *step = check_launches(&gpus[H200], &p, &c, &c, param_bytes, &plan);
    if (!expect(step && c.backend == TINY, "its own launch")) return;
    const tiny_schedule *s = param_of(&plan, step, 1);
    expect(plan.steps == 1 && plan.tensor_maps == 0 && step->kernel == 0, "its kernel");
    expect(step->grid_x == 16 * 3 && step->grid_y == 1 && step->cluster == 0, "its grid");
    expect(step->shared_bytes == SHARED_BYTES && step->params == 2, "its shared memory");
    expect(!memcmp(param_of(&plan, step, 0), &p, sizeof p) && s->tiles_n == 16, "its parameters");
    expect((uintptr_t)s->sums == WORKSPACE && c.workspace == 2 * 1000 * 3 * 4, "its workspace");
}

int main(void) {
    sm80 = sm80_backend, sm90 = sm90_backend;
    sm80_gemm = *sm80.planners[PRODUCT_GEMM], sm90_gemm = *sm90.planners[PRODUCT_GEMM];
    sm80_gemm.candidates = sm80_candidates_or_crowd, sm90_gemm.candidates = sm90_candidates_or_crowd;
    sm80.planners[PRODUCT_GEMM] = &sm80_gemm, sm90.planners[PRODUCT_GEMM] = &sm90_gemm;
    snprintf(about, sizeof about, "table");
    expect(!strcmp(nvfp4_backend_name((nvfp4_backend)TINY), "tiny"), "the backend has its name");
    check_ranking();
    check_gaps();
    check_room();
    check_launch();
    return report();
}
