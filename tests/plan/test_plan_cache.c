/* The cache of plan_choose: two queries that differ in one field never share an answer, whatever was asked before. Two
 * backends of this program's own answer with what they were asked, so that an answer to another query is seen. Prints
 * "N passed, N failed". The argument is a seed. */
#include "plan_checks.h"

enum { ANSWERS = 4 };

static uint64_t seed;
static int32_t listed; /* how often a backend was asked */

static uint32_t draw(void) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    return (uint32_t)(seed >> 33);
}

/* FNV-1a (RFC draft-eastlake-fnv) of what a backend is given, in 31 bits and not 0. */
static int64_t digest(const device_props *props, const gemm_traits *t) {
    uint64_t hash = 0xCBF29CE484222325;
    for (size_t i = 0; i < sizeof *props + sizeof *t; i++) {
        hash ^= i < sizeof *props ? ((const unsigned char *)props)[i] : ((const unsigned char *)t)[i - sizeof *props];
        hash *= 0x100000001B3;
    }
    return (int64_t)(hash >> 33) + 1;
}

static int32_t answer(int32_t backend, const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    listed++;
    for (int32_t i = 0; i < ANSWERS; i++) {
        memset(&out[i], 0, sizeof out[i]);
        out[i].modelled_us = backend + 10.0 * i;
        out[i].grid = digest(props, t);
        out[i].backend = backend;
        out[i].kernel = i;
        out[i].swap_ab = i % 2;
        out[i].split_k = 1 + i;
    }
    return ANSWERS;
}

static int32_t answer_sm80(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    return answer(NVFP4_BACKEND_SM80, props, t, out);
}

static int32_t answer_sm90(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    return answer(NVFP4_BACKEND_SM90, props, t, out);
}

/* One, of another kernel. sm90 has no order for every M. */
static int32_t answer_batch_invariant(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    answer_sm80(props, t, out);
    out[0].kernel = ANSWERS;
    return 1;
}

static const gemm_planner sm80_all = {
    .a_types = UINT32_MAX, .takes_by_batch = 1, .candidates = answer_sm80, .batch_invariant = answer_batch_invariant};
static const gemm_planner sm90_all = {.a_types = UINT32_MAX, .takes_by_batch = 1, .candidates = answer_sm90};
#define EVERY(planner)                                                                                                 \
    {[PRODUCT_GEMM] = &(planner),                                                                                      \
     [PRODUCT_GEMM_NN] = &(planner),                                                                                   \
     [PRODUCT_GROUPED] = &(planner),                                                                                   \
     [PRODUCT_GROUPED_NN] = &(planner)}
static const gemm_backend sm80 = {.name = "sm80", .planners = EVERY(sm80_all)};
static const gemm_backend sm90 = {.name = "sm90", .planners = EVERY(sm90_all)};
const gemm_backend *const gemm_backends[GEMM_BACKENDS] = {[NVFP4_BACKEND_SM80] = &sm80, [NVFP4_BACKEND_SM90] = &sm90};

enum { SM80 = 1 << NVFP4_BACKEND_SM80, SM90 = 1 << NVFP4_BACKEND_SM90 };

static int is_override(const plan_query *q, int32_t backend, int32_t i) {
    const plan_settings *s = &q->override;
    return s->split_k == 1 + i && s->backend == backend && s->kernel == i && s->swap_ab == i % 2 &&
           s->prefetch_stages == 0 && s->ctas_per_sm == 0 && (q->backends >> backend & 1);
}

/* The answer to a query by itself. Candidate i of a backend takes 10 i us and the backend's number more. */
static void check_answer(const plan_query *q, const char *rule) {
    int32_t order[2 * ANSWERS][2], count = 0;
    for (int overrides = 1; overrides >= 0; overrides--)
        for (int32_t i = 0; i < ANSWERS; i++)
            for (int32_t backend = NVFP4_BACKEND_SM80; backend <= NVFP4_BACKEND_SM90; backend++)
                if ((q->backends >> backend & 1) && is_override(q, backend, i) == overrides)
                    order[count][0] = backend, order[count++][1] = i;
    const int32_t *wanted = order[q->rank < count ? q->rank : count - 1];
    const plan_answer *answer = plan_choose(q);
    if (q->batch_invariant) { /* whatever the override and the rank */
        const int32_t found = q->backends >> NVFP4_BACKEND_SM80 & 1;
        expect(answer->candidates == found &&
                   (!found || (answer->taken.backend == NVFP4_BACKEND_SM80 && answer->taken.kernel == ANSWERS &&
                               answer->taken.batch_invariant && answer->taken.grid == digest(&q->props, &q->traits))),
               rule);
        return;
    }
    expect(answer->candidates == count && answer->taken.backend == wanted[0] && answer->taken.kernel == wanted[1] &&
               answer->taken.grid == digest(&q->props, &q->traits) && !answer->taken.batch_invariant,
           rule);
}

/* Each asked before and after the other, and twice in a row. */
static void check_pair(const plan_query *x, const plan_query *y, const char *field) {
    const plan_query *const order[] = {x, y, x, y, y, x, x};
    snprintf(about, sizeof about, "%s", field);
    expect(memcmp(x, y, sizeof *x) != 0, "the queries differ");
    for (size_t i = 0; i < COUNT(order); i++) check_answer(order[i], "its own answer");
}

static plan_query base_query(void) {
    const gemm_problem p = problem(1 + draw() % 4096, 1 + draw() % 4096, 64 * (1 + draw() % 64), 1 + draw() % 4, PLAIN);
    plan_query q = query_of(&gpus[H200], &p, SM80 | SM90, 0);
    q.override = (plan_settings){NVFP4_BACKEND_SM90, 2, 0, 3, 0, 0};
    return q;
}

typedef struct field {
    const char *name;
    size_t offset, bytes;
} field;
#define FIELD(member) {#member, offsetof(plan_query, member), sizeof(((plan_query *)0)->member)}
static const field fields[] = {
    FIELD(traits.m),
    FIELD(traits.n),
    FIELD(traits.k),
    FIELD(traits.l),
    FIELD(traits.scale_layout),
    FIELD(traits.output_bytes),
    FIELD(traits.tma_values),
    FIELD(traits.output_is_column),
    FIELD(traits.broadcast_a),
    FIELD(traits.broadcast_b),
    FIELD(traits.a_type),
    FIELD(traits.product_kind),
    FIELD(traits.by_batch),
    FIELD(traits.groups),
    FIELD(props.compute_capability),
    FIELD(props.sm_count),
    FIELD(props.shared_per_block),
    FIELD(props.shared_per_sm),
    FIELD(props.clock_mhz),
    FIELD(props.memory_gb_s),
    FIELD(props.l2_bytes),
    FIELD(props.clusters),
    FIELD(backends),
    FIELD(override.backend),
    FIELD(override.kernel),
    FIELD(override.swap_ab),
    FIELD(override.split_k),
    FIELD(override.prefetch_stages),
    FIELD(override.ctas_per_sm),
    FIELD(rank),
    FIELD(batch_invariant),
    FIELD(padding_),
};

/* Every bit of every field that a backend is given; what is chosen between has few values that mean something. */
static void check_fields(void) {
    size_t end = 0;
    snprintf(about, sizeof about, "fields");
    for (size_t i = 0; i < COUNT(fields); i++) {
        expect(fields[i].offset == end, "no field is left out");
        end += fields[i].bytes;
    }
    expect(end == sizeof(plan_query), "up to the last");
    for (size_t i = 0; i < COUNT(fields); i++) {
        const int product_kind = !strcmp(fields[i].name, "traits.product_kind"),
                  a_type = !strcmp(fields[i].name, "traits.a_type");
        const int given = fields[i].offset < offsetof(plan_query, backends);
        const plan_query x = base_query();
        plan_query y = x;
        unsigned char *bytes = (unsigned char *)&y + fields[i].offset;
        /* The fields that select a planner have few values. */
        const size_t bits = product_kind ? 2 : a_type ? 5 : 8 * fields[i].bytes;
        for (size_t bit = 0; given && bit < bits; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
            check_pair(&x, &y, fields[i].name);
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
        if (given) continue;
        for (int32_t value = 0; value < 6; value++) {
            memcpy(bytes, &value, sizeof value);
            if (!strcmp(fields[i].name, "backends")) y.backends = value % 3 ? value % 3 * SM80 : SM80 | SM90;
            if (memcmp(&x, &y, sizeof x) != 0) check_pair(&x, &y, fields[i].name);
        }
    }
}

/* Sizes that share an entry of the cache: there are more queries than entries. */
static void check_collisions(void) {
    enum { QUERIES = 500 };
    static plan_query all[QUERIES];
    snprintf(about, sizeof about, "collisions");
    for (int i = 0; i < QUERIES; i++) {
        all[i] = base_query();
        all[i].backends = 1u << (NVFP4_BACKEND_SM80 + draw() % 2);
        all[i].rank = (int32_t)(draw() % 5);
    }
    for (int i = 0; i < 20 * QUERIES; i++) check_answer(&all[draw() % QUERIES], "its own answer");
}

/* An answer is kept: asking again asks no backend. */
static void check_hits(void) {
    const plan_query q = base_query();
    snprintf(about, sizeof about, "hits");
    check_answer(&q, "an answer");
    const int32_t before = listed;
    for (int i = 0; i < 10; i++) check_answer(&q, "the same");
    expect(listed == before, "no backend is asked again");
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    check_fields();
    check_collisions();
    check_hits();
    return report();
}
