/* The sm100 rules over many shapes and ways to lie in memory: every plan can be launched, and keeps what the kernel
 * relies on (csrc/kernels/sm100/config.h). Prints "N passed, N failed". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "kernels.h"
#include "preferences.h"
#include "sm100_plan.h"

/* Compute capability, has_sm90, has_sm100, SMs, shared memory a CTA and an SM, L2. */
static const struct {
    const char *name;
    device_facts facts;
} gpus[] = {
    {"B200", {100, 0, 1, 148, 232448, 233472, 126 << 20}},
    {"a slice of it", {100, 0, 1, 18, 232448, 233472, 18 << 20}},
    {"one with an odd number of SMs", {103, 0, 1, 33, 232448, 233472, 126 << 20}},
};
static const int64_t sizes[] = {1, 2, 8, 9, 32, 33, 64, 65, 127, 128, 129, 300, 2304, 7168, 100000};
static const int64_t depths[] = {0, 16, 64, 464, 2048, 7168, 16384, 1 << 20, INT32_MAX / 64 * 64};
static const int64_t batches[] = {1, 3, 1000};

typedef enum variant { PLAIN, LINEAR, UNALIGNED, FP32, FAR_ROWS, FAR_BATCHES, ONE_FOR_ALL, VARIANTS } variant;

typedef struct config {
    int kernel, cta_group, mma_tile_n, stages, accumulators, cp_async;
} config;
static const config configs[] = {
#define X(id, cta_group, mma_tile_n, stages, accumulators, cp_async)                                                   \
    {KERNEL_##id, cta_group, mma_tile_n, stages, accumulators, cp_async},
    SM100_GEMM_CONFIGS(X)
#undef X
};

static int passed, failed;
static long times_planned[KERNEL_COUNT][2][2]; /* by swap_ab, by whether K is split */

static void expect_of(int holds, const char *rule, const char *what) {
    passed += holds != 0;
    failed += holds == 0;
    if (!holds) printf("FAILED: %s: %s\n", what, rule);
}

static char about[256];
static void expect(int holds, const char *rule) {
    expect_of(holds, rule, about);
}

static int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b > 0);
}

static const config *config_of(int kernel) {
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        if (configs[i].kernel == kernel) return &configs[i];
    return NULL;
}

static uint8_t memory[4][16] __attribute__((aligned(16))); /* whose addresses stand for operands; nothing is read */

static gemm_problem problem(int64_t m, int64_t n, int64_t k, int64_t l, variant v) {
    int64_t pitch = v == FAR_ROWS ? TENSOR_STRIDE_END : k / 2;
    int64_t scale_pitch = v == LINEAR ? k / 16 : ceil_div(k, 64) * 512;
    gemm_problem p = {
        .m = m,
        .n = n,
        .k = k,
        .l = l,
        .a = memory[0],
        .b = memory[1],
        .a_pitch = m > 1 ? pitch : k / 2,
        .b_pitch = k / 2,
        .a_batch = v == FAR_BATCHES   ? TENSOR_STRIDE_END
                   : v == ONE_FOR_ALL ? 0
                                      : m * pitch,
        .b_batch = n * k / 2,
        .sfa = memory[2],
        .sfb = memory[3],
        .sfa_pitch = scale_pitch,
        .sfb_pitch = scale_pitch,
        .sfa_batch = scale_pitch * (v == LINEAR ? m : ceil_div(m, 128)),
        .sfb_batch = scale_pitch * (v == LINEAR ? n : ceil_div(n, 128)),
        .out_type = v == FP32 ? OUT_FP32 : OUT_FP16,
        .scale_layout = v == LINEAR ? SCALES_LINEAR : SCALES_128X4,
        .aligned16 = v != UNALIGNED && k % 32 == 0,
    };
    return p;
}

static void check_layout(const tensor_layout *t) {
    int64_t bytes = t->element_bytes;
    expect((uintptr_t)t->data % 16 == 0 && t->name && *t->name, "a tensor map's data are aligned");
    expect(t->rank >= 3 && t->rank <= 5, "a tensor map's rank");
    for (int i = 0; i < t->rank; i++) {
        expect(t->dims[i] >= 1 && t->dims[i] <= (uint64_t)1 << 32, "a dimension is 1 to 2^32");
        expect(t->box[i] >= 1 && t->box[i] <= 256, "a box is 1 to 256");
        bytes *= t->box[i];
        if (i == 0) continue;
        expect(t->strides[i - 1] % 16 == 0 && t->strides[i - 1] < (uint64_t)TENSOR_STRIDE_END, "a stride is encodable");
    }
    expect(!t->swizzle || t->box[0] * (uint32_t)t->element_bytes == 128, "a swizzled row is the swizzle's span");
    expect(bytes <= SM100_MMA_A_BYTES || bytes <= 2 * SM100_MMA_SFA_BYTES,
           "a box is no larger than its part of a stage");
}

static void check_tensors(const gemm_problem *p, const nvfp4_plan *plan, const config *c, sm100_schedule *s) {
    plan_tensor tensors[PLAN_MOST_TENSORS];
    int count = sm100_tensors(p, plan, s, tensors);
    int mapped = p->k > 0 && s->values_by_tma;
    expect(count == (mapped ? 2 * c->cta_group : 0), "values have tensor maps, and scales of pairs");
    tensor_map *const maps[] = {&s->mma_a.values, &s->mma_b.values, &s->mma_a.scales, &s->mma_b.scales};
    const void *const data[] = {s->mma_a.data, s->mma_b.data, s->mma_a.scale, s->mma_b.scale};
    const int64_t rows[] = {s->mma_a.rows, s->mma_b.rows, s->mma_a.rows, s->mma_b.rows};
    const int32_t box[] = {SM100_CTA_ROWS, c->mma_tile_n / c->cta_group, 1, (c->mma_tile_n + 127) / 128};
    for (int i = 0; i < count; i++) {
        const tensor_layout *t = &tensors[i].layout;
        check_layout(t);
        expect(tensors[i].map == maps[i] && t->data == data[i], "a map for each, in its place");
        expect((int32_t)t->box[i < 2 ? 1 : 2] == box[i], "a box holds a CTA's rows");
        expect((int64_t)t->dims[i < 2 ? 1 : 2] == (i < 2 ? rows[i] : ceil_div(rows[i], 128)), "all rows are there");
        expect((int64_t)t->dims[i < 2 ? 0 : 1] == (i < 2 ? p->k / 2 : p->k / 64), "all of K is there");
        expect((int64_t)t->dims[t->rank - 1] == p->l, "all batches are there");
    }
}

static int leaves_room(const device_facts *facts, const config *c, int32_t bytes) {
    return 2 * (bytes + 1024) <= facts->shared_per_sm &&
           2 * SM100_TMEM_COLUMNS(c->mma_tile_n, c->stages, c->accumulators) <= 512;
}

/* Partial sums have room of their own, or that of the stages. */
static void check_shared_memory(const device_facts *facts, const nvfp4_plan *plan, const config *c,
                                const sm100_schedule *s) {
    int32_t stages = kernels[plan->kernel].shared_bytes, parts = SM100_PARTIALS_BYTES(c->mma_tile_n, s->split_k);
    int32_t more = sm100_parts_bytes(plan, s), all = stages + parts;
    expect(stages + more <= facts->shared_per_block, "shared memory fits a CTA");
    expect(more == (s->partials_in_stages ? 0 : parts), "partial sums have room");
    expect(parts <= c->stages * SM100_STAGE_BYTES(c->cta_group, c->mma_tile_n),
           "the stages have room for partial sums");
    expect(!s->partials_in_stages || s->split_k > 1, "a whole product has no partial sums");
    int crowded = leaves_room(facts, c, stages) && !leaves_room(facts, c, all);
    expect(s->partials_in_stages == (all > facts->shared_per_block || crowded), "sums go where there is room");
}

static void check_schedule(const device_facts *facts, const gemm_problem *p, const nvfp4_plan *plan, const config *c,
                           const sm100_schedule *s) {
    int32_t rows_x = SM100_CTA_ROWS * c->cta_group, cluster = sm100_cluster(plan);
    int64_t clusters = plan->grid / cluster, room = facts->sm_count / c->cta_group;
    int64_t batch = p->a_batch > p->b_batch ? p->a_batch : p->b_batch;
    int linear = p->scale_layout == SCALES_LINEAR;
    int far = (p->m > 1 && p->a_pitch >= TENSOR_STRIDE_END) || (p->l > 1 && batch >= TENSOR_STRIDE_END);
    expect(plan->tile_m == (s->swap_ab ? c->mma_tile_n : rows_x) &&
               plan->tile_n == (s->swap_ab ? rows_x : c->mma_tile_n) && plan->tile_k == SM100_STAGE_K &&
               plan->stages == c->stages,
           "the plan says the tile");
    expect(s->mma_a.rows == (s->swap_ab ? p->n : p->m) && s->mma_b.rows == (s->swap_ab ? p->m : p->n),
           "rows of both sides");
    expect(s->tiles_mma_m == ceil_div(s->mma_a.rows, rows_x) &&
               s->tiles_mma_n == ceil_div(s->mma_b.rows, c->mma_tile_n),
           "tiles cover");
    expect(s->tiles == s->tiles_mma_m * s->tiles_mma_n * p->l && s->tiles <= INT32_MAX - facts->sm_count,
           "tiles count");
    expect(s->k_stages == ceil_div(p->k, SM100_STAGE_K), "stages cover K");
    expect(plan->split_k == s->split_k && (s->split_k == 1 || s->split_k == 2 || s->split_k == 4 || s->split_k == 8),
           "a split is a power of two");
    expect(s->split_k == 1 || s->split_k <= s->k_stages, "no part of K is empty");
    expect(s->split_k == 1 || c->mma_tile_n % (4 * s->split_k) == 0, "parts of K share a tile's columns, 4 at a time");
    expect(cluster == c->cta_group * s->split_k && cluster <= 8 && plan->grid % cluster == 0, "a cluster that fits");
    expect(plan->grid > 0 && plan->grid <= INT32_MAX, "a grid that can be launched");
    if (s->split_k > 1)
        expect(clusters == s->tiles, "one tile a cluster where K is split");
    else
        expect(clusters <= s->tiles && clusters <= room &&
                   ceil_div(s->tiles, clusters) == ceil_div(s->tiles, s->tiles < room ? s->tiles : room),
               "no more clusters than tiles or SMs, as few rounds as can be");
    expect(c->cp_async == (linear || p->k % 64 != 0 || !p->aligned16 || far), "threads load what bulk copies cannot");
    expect(s->values_by_tma == (p->aligned16 && !far), "values by tensor maps where they are aligned");
    expect(!(c->cp_async && c->cta_group == 2), "pairs do not gather");
    expect(c->mma_tile_n > 32 || s->tiles_mma_n == 1, "a narrow tile holds all of y");
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const config *other = &configs[i];
        int alike = other->cta_group == c->cta_group || other->mma_tile_n <= 32;
        expect(!alike || other->cp_async != c->cp_async || other->mma_tile_n >= c->mma_tile_n ||
                   s->mma_b.rows > other->mma_tile_n,
               "no narrower tile holds all of y");
    }
    expect(!(p->m == 1 && p->n > 1) || s->swap_ab, "one row of A is no reason for 128");
    expect(!(p->n == 1 && p->m > 1) || !s->swap_ab, "one row of B is no reason for 128");
    expect(plan->workspace == 0, "no workspace");
    check_shared_memory(facts, plan, c, s);
    int beside = leaves_room(facts, c, kernels[plan->kernel].shared_bytes);
    expect(s->prefetch_stages == 0 || (beside && !c->cp_async), "CTAs that start early prefetch");
    expect(s->prefetch_stages == plan->prefetch_stages && s->prefetch_stages >= 0 &&
               s->prefetch_stages <= ceil_div(s->k_stages, s->split_k) + 1,
           "no more than there is");
}

static void check_operands(const gemm_problem *p, const sm100_schedule *s, variant v) {
    const sm100_operand *a = s->swap_ab ? &s->mma_b : &s->mma_a, *b = s->swap_ab ? &s->mma_a : &s->mma_b;
    expect(a->data == p->a && a->scale == p->sfa && a->pitch == p->a_pitch && a->batch == p->a_batch &&
               a->scale_pitch == p->sfa_pitch && a->scale_batch == p->sfa_batch,
           "A is on its side");
    expect(b->data == p->b && b->scale == p->sfb && b->pitch == p->b_pitch && b->batch == p->b_batch &&
               b->scale_pitch == p->sfb_pitch && b->scale_batch == p->sfb_batch,
           "B is on its side");
    const uint64_t normal = 0x1000000000000000, first = 0x12F0000000000000, last = 0x14F0000000000000;
    int64_t reads[2] = {s->tiles_mma_n, s->tiles_mma_m};
    if (v == ONE_FOR_ALL && p->l > 1) reads[s->swap_ab] *= p->l;
    for (int i = 0; i < 2; i++) {
        uint64_t policy = i ? s->mma_b.cache_policy : s->mma_a.cache_policy;
        expect(policy == first || policy == last || policy == normal, "a policy that exists");
        expect(p->k == 0 || (policy == first) == (reads[i] == 1), "what is read once leaves L2 first");
        expect(p->k == 0 || policy != last || reads[!i] == 1, "what stays in L2 does so while the other streams");
    }
}

/* The plan in that place of the estimate's order; returns how many there are. */
static int32_t one_of(int32_t wanted, const char *gpu, const device_facts *facts, int64_t m, int64_t n, int64_t k,
                      int64_t l, variant v, double *modelled_us) {
    gemm_problem p = problem(m, n, k, l, v);
    nvfp4_plan plan, again;
    sm100_schedule schedule, other;
    memset(&plan, 0xff, sizeof plan);
    memset(&schedule, 0xff, sizeof schedule);
    snprintf(about, sizeof about, "%s, %lld x %lld x %lld x %lld, variant %d", gpu, (long long)m, (long long)n,
             (long long)k, (long long)l, v);
    const plan_wish wish = {.candidate = wanted};
    nvfp4_status status = sm100_plan(facts, &p, &wish, &plan, &schedule);
    expect(status == NVFP4_OK, nvfp4_last_error());
    const config *c = status ? NULL : config_of(plan.kernel);
    expect(c != NULL, "a kernel of the family");
    if (!c) return 0;
    snprintf(about, sizeof about, "%s, %lld x %lld x %lld x %lld, variant %d: %s, swap_ab %d, split %d", gpu,
             (long long)m, (long long)n, (long long)k, (long long)l, v, plan.name, schedule.swap_ab, plan.split_k);
    if (wanted == 0) times_planned[plan.kernel][schedule.swap_ab][plan.split_k > 1]++;
    check_schedule(facts, &p, &plan, c, &schedule);
    check_operands(&p, &schedule, v);
    check_tensors(&p, &plan, c, &schedule);
    expect(plan.backend == NVFP4_BACKEND_SM100 && !strcmp(plan.name, kernels[plan.kernel].name), "it says what");
    expect(plan.reason && strlen(plan.reason) > 20, "it says why");
    sm100_plan(facts, &p, &wish, &again, &other);
    expect(again.kernel == plan.kernel && again.grid == plan.grid && other.swap_ab == schedule.swap_ab,
           "the same twice");
    expect(plan.modelled_us > 0.0 && plan.candidates > 0, "it says how long that is modelled to take");
    *modelled_us = plan.modelled_us;
    return plan.candidates;
}

static void one(const char *gpu, const device_facts *facts, int64_t m, int64_t n, int64_t k, int64_t l, variant v) {
    double modelled_us;
    one_of(0, gpu, facts, m, n, k, l, v, &modelled_us);
}

/* All plans of a shape: each can be launched, none is modelled to be faster than the one before it. */
static void all(const char *gpu, const device_facts *facts, int64_t m, int64_t n, int64_t k, int64_t l, variant v) {
    double before = 0.0, now = 0.0;
    int32_t count = 1;
    for (int32_t i = 0; i < count; i++, before = now) {
        count = one_of(i, gpu, facts, m, n, k, l, v, &now);
        expect(now >= before, "in the order of the estimate");
    }
}

static void check_configs(void) {
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const config *c = &configs[i];
        const char *name = kernels[c->kernel].name;
        int used = SM100_USED_COLUMNS(c->mma_tile_n, c->stages, c->accumulators);
        int columns = SM100_TMEM_COLUMNS(c->mma_tile_n, c->stages, c->accumulators);
        expect_of(used <= columns && columns <= 512, "tensor memory suffices", name);
        expect_of(kernels[c->kernel].shared_bytes <= 232448, "shared memory of a B200 suffices", name);
        expect_of(kernels[c->kernel].arch == ARCH_SM100 && kernels[c->kernel].programmatic, "where it runs", name);
        expect_of(kernels[c->kernel].threads == (c->cp_async ? 320 : 192), "warps", name);
        expect_of(c->cta_group == 1 || c->mma_tile_n % 32 == 0, "half of a pair's tile is whole groups of rows", name);
    }
}

static void check_families(void) {
    device_facts old = gpus[0].facts;
    old.has_sm100 = 0;
    const char *what = "families";
    expect_of(plan_family(&gpus[0].facts, NVFP4_AUTO) == NVFP4_BACKEND_SM100, "sm100 where it is loaded", what);
    expect_of(plan_family(&gpus[0].facts, NVFP4_BACKEND_SM80) == NVFP4_BACKEND_SM80, "sm80 by name", what);
    expect_of(plan_family(&gpus[0].facts, NVFP4_BACKEND_SM100) == NVFP4_BACKEND_SM100, "sm100 by name", what);
    expect_of(plan_family(&old, NVFP4_AUTO) == NVFP4_BACKEND_SM80, "sm80 elsewhere", what);
    expect_of(plan_family(&old, NVFP4_BACKEND_SM100) == NVFP4_AUTO, "sm100 is refused elsewhere", what);
}

static void check_refusals(void) {
    nvfp4_plan plan;
    sm100_schedule schedule;
    device_facts small = gpus[0].facts;
    gemm_problem many = problem(INT32_MAX, 1 << 29, 64, 1, PLAIN), one = problem(1, 1, 64, 1, PLAIN);
    small.shared_per_block = 48 << 10;
    expect_of(sm100_plan(&gpus[0].facts, &many, NULL, &plan, &schedule) == NVFP4_UNSUPPORTED &&
                  strstr(nvfp4_last_error(), "M = 2147483647"),
              "too many tiles are a sentence", "refusals");
    expect_of(sm100_plan(&small, &one, NULL, &plan, &schedule) == NVFP4_UNSUPPORTED &&
                  strstr(nvfp4_last_error(), "the GPU has 49152 a CTA"),
              "too little shared memory is a sentence", "refusals");
}

static int same_settings(plan_settings x, plan_settings y) {
    return x.kernel == y.kernel && x.swap_ab == y.swap_ab && x.split_k == y.split_k &&
           x.prefetch_stages == y.prefetch_stages;
}

/* The settings of the plan that a wish gives, and its time. */
static plan_settings settings_of(const gemm_problem *p, plan_wish wish, double *time) {
    nvfp4_plan plan;
    sm100_schedule s;
    expect(sm100_plan(&gpus[0].facts, p, &wish, &plan, &s) == NVFP4_OK && plan.swap_ab == s.swap_ab, "a wish");
    *time = plan.modelled_us;
    return (plan_settings){plan.kernel, plan.swap_ab, plan.split_k, plan.prefetch_stages};
}

/* Every plan can be had by its place and by its settings; no two share settings; one that is put first leaves the
 * others in their order; settings that no plan has change nothing. */
static void check_wishes(int64_t m, int64_t n, int64_t k, variant v) {
    enum { MOST = 200 };
    plan_settings all[MOST];
    nvfp4_plan plan;
    sm100_schedule s;
    gemm_problem p = problem(m, n, k, 1, v);
    double last = 0, time;
    snprintf(about, sizeof about, "wishes for %lld x %lld x %lld, variant %d", (long long)m, (long long)n, (long long)k,
             v);
    expect(sm100_plan(&gpus[0].facts, &p, NULL, &plan, &s) == NVFP4_OK && plan.candidates <= MOST, "plans");
    for (int32_t i = 0; i < plan.candidates; i++) {
        all[i] = settings_of(&p, (plan_wish){.candidate = i}, &time);
        expect(time >= last, "in the order of their times");
        last = time;
        for (int32_t j = 0; j < i; j++) expect(!same_settings(all[i], all[j]), "no two are alike");
    }
    for (int32_t i = 0; i < plan.candidates; i++)
        for (int32_t j = 0; j < plan.candidates; j++) {
            plan_settings other = settings_of(&p, (plan_wish){all[i], j}, &time);
            expect(same_settings(other, all[j == 0 ? i : j - (j <= i)]), "one goes to the front");
        }
    plan_settings none = all[0];
    none.prefetch_stages += 1000;
    expect(same_settings(settings_of(&p, (plan_wish){.first = none}, &time), all[0]), "what no plan has is nothing");
    none = settings_of(&p, (plan_wish){.candidate = INT32_MAX}, &time);
    expect(same_settings(none, all[plan.candidates - 1]), "beyond the last is the last");
}

/* The table of preferences against a search from the last to the first of what was said. */
static void check_preferences(uint64_t seed) {
    enum { SAID = 400 };
    static preference said[SAID];
    preferences table = {0};
    snprintf(about, sizeof about, "preferences, seed %llu", (unsigned long long)seed);
    for (int i = 0; i < SAID; i++) {
        int64_t numbers[5];
        for (int j = 0; j < 5; j++) {
            seed = seed * 6364136223846793005 + 1442695040888963407;
            numbers[j] = j < 3 ? (int64_t)(seed >> 62) : (int64_t)(seed >> 63) * INT32_MAX;
        }
        said[i] = (preference){numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], {i, i % 2, 1, 0}};
        expect(preferences_add(&table, &said[i]) == NVFP4_OK, "one more");
    }
    size_t shapes = 0;
    for (int64_t key = 0; key < 5 * 5 * 5 * 2 * 2; key++) {
        const int64_t device = key % 5, m = key / 5 % 5, n = key / 25 % 5;
        const int64_t k = key / 125 % 2 * INT32_MAX, l = key / 250 * INT32_MAX;
        const gemm_problem p = {.m = m, .n = n, .k = k, .l = l};
        int i = SAID - 1;
        while (i >= 0 &&
               (said[i].device != device || said[i].m != m || said[i].n != n || said[i].k != k || said[i].l != l))
            i--;
        const plan_settings found = preferences_find(&table, (int32_t)device, &p);
        expect(i < 0 ? found.split_k == 0 : found.split_k == 1 && found.kernel == i, "what was said last, or nothing");
        shapes += i >= 0;
    }
    expect(table.count == shapes, "a shape has one place");
    preferences_forget(&table);
    const gemm_problem p = {.m = said[0].m, .n = said[0].n, .k = said[0].k, .l = said[0].l};
    expect(preferences_find(&table, (int32_t)said[0].device, &p).split_k == 0, "forgotten");
}

#define COUNT(array) (sizeof(array) / sizeof *(array))

int main(int argc, char **argv) {
    check_preferences(argc > 1 ? strtoull(argv[1], NULL, 10) : 1);
    check_wishes(128, 7168, 16384, PLAIN);
    check_wishes(3, 500, 96, LINEAR);
    check_configs();
    check_families();
    check_refusals();
    for (size_t g = 0; g < COUNT(gpus); g++)
        for (size_t m = 0; m < COUNT(sizes); m++)
            for (size_t n = 0; n < COUNT(sizes); n++)
                for (size_t k = 0; k < COUNT(depths); k++)
                    for (size_t l = 0; l < COUNT(batches); l++) {
                        if (sizes[m] * sizes[n] * batches[l] > (int64_t)1 << 34) continue; /* that no GPU holds */
                        variant v = (variant)((g + m * 3 + n * 5 + k * 7 + l) % VARIANTS);
                        one(gpus[g].name, &gpus[g].facts, sizes[m], sizes[n], depths[k], batches[l], PLAIN);
                        one(gpus[g].name, &gpus[g].facts, sizes[m], sizes[n], depths[k], batches[l], v);
                    }
    for (size_t m = 0; m < COUNT(sizes); m += 2)
        for (size_t n = 0; n < COUNT(sizes); n += 3)
            for (size_t k = 0; k < COUNT(depths); k++)
                all("B200", &gpus[0].facts, sizes[m], sizes[n], depths[k], 1, k % 2 ? PLAIN : (variant)(m % VARIANTS));
    one("B200", &gpus[0].facts, INT32_MAX, 8, INT32_MAX / 64 * 64, 1, PLAIN);
    one("B200", &gpus[0].facts, 1, INT32_MAX, 1 << 20, 1, LINEAR);
    one("B200", &gpus[0].facts, 1, 1, 64, INT32_MAX - 148, PLAIN);
    one("B200", &gpus[0].facts, 128, 128, 1 << 20, 1 << 24, PLAIN);
    for (size_t i = 0; i < COUNT(configs); i++) {
        const long (*t)[2] = times_planned[configs[i].kernel];
        expect_of(t[0][0] + t[0][1] + t[1][0] + t[1][1] > 0, "some shape has a use for it",
                  kernels[configs[i].kernel].name);
        printf("%-32s A wide: %6ld, split %6ld; B wide: %6ld, split %6ld\n", kernels[configs[i].kernel].name, t[0][0],
               t[0][1], t[1][0], t[1][1]);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
