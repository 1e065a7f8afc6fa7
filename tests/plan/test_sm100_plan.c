/* The sm100 backend over many shapes and ways to lie in memory: every candidate can be launched, and keeps what the
 * kernel relies on (csrc/kernels/sm100/config.h). Prints "N passed, N failed". */
#include "kernels/sm100/units_plan.h"
#include "plan_checks.h"

static const int64_t sizes[] = {1, 2, 8, 9, 32, 33, 64, 65, 127, 128, 129, 300, 2304, 7168, 100000};
static const int64_t depths[] = {0, 16, 64, 96, 464, 2048, 7168, 16384, 1 << 20, INT32_MAX / 64 * 64};
static const int64_t batches[] = {1, 3, 1000};
static const int on[] = {B200, B200_SLICE, B300_ODD, THOR};

typedef struct config {
    int cta_group, mma_tile_n, stages, accumulators, cp_async, multicast;
} config;
static const config configs[] = {
#define X(id, cta_group, mma_tile_n, stages, accumulators, cp_async, multicast)                                        \
    {cta_group, mma_tile_n, stages, accumulators, cp_async, multicast},
    SM100_GEMM_CONFIGS(X)
#undef X
};

static long times_first[COUNT(configs)][2][2]; /* on a B200 or B300; by swap_ab, by whether K is split */
static long times_prefetched, times_at_once;

static size_t param_bytes(int32_t kernel, int32_t index) {
    (void)kernel;
    return index == 0 ? sizeof(gemm_problem) : index == 1 ? sizeof(sm100_schedule) : 0;
}

static const kernel_entry *entry_of(int32_t kernel) {
    return &gemm_backends[NVFP4_BACKEND_SM100]->kernels->kernels[kernel];
}

static void check_maps(const gemm_problem *p, const launch_plan *plan, const config *c, const sm100_schedule *s) {
    const int mapped = p->k > 0 && s->values_by_tma;
    expect(plan->tensor_maps == (mapped ? 2 * c->cta_group : 0), "values have tensor maps, and scales of pairs");
    const tensor_map *const maps[] = {&s->mma_a.values, &s->mma_b.values, &s->mma_a_scales, &s->mma_b_scales};
    const void *const data[] = {s->mma_a.data, s->mma_b.data, s->mma_a.scale, s->mma_b.scale};
    const int64_t rows[] = {s->mma_a.rows, s->mma_b.rows, s->mma_a.rows, s->mma_b.rows};
    const int32_t box[] = {SM100_CTA_ROWS / c->multicast, c->mma_tile_n / c->cta_group, 1, (c->mma_tile_n + 127) / 128};
    for (int32_t i = 0; i < plan->tensor_maps && i < 4; i++) {
        const tensor_layout *t = &plan->tensor_map[i].layout;
        const int values = i < 2;
        int64_t bytes = t->element_bytes;
        for (int j = 0; j < t->rank; j++) bytes *= t->box[j];
        expect(t->rank == (values ? 3 : 4) && t->element_bytes == (values ? 1 : 2), "a tensor map's rank");
        expect((const unsigned char *)maps[i] == plan->params + plan->tensor_map[i].offset && t->data == data[i],
               "a map for each, in its place");
        expect((int32_t)t->box[values ? 1 : 2] == box[i], "a box holds the rows that a CTA loads");
        expect(t->box[0] == (values ? SM100_STAGE_K / 2 : 256) && (values || t->box[1] == SM100_STAGE_K / 64) &&
                   t->box[t->rank - 1] == 1,
               "and a stage along K");
        expect((int64_t)t->dims[values ? 1 : 2] == (values ? rows[i] : ceil_div(rows[i], 128)), "all rows are there");
        expect((int64_t)t->dims[values ? 0 : 1] == (values ? p->k / 2 : p->k / 64), "all of K is there");
        expect((int64_t)t->dims[t->rank - 1] == p->l, "all batches are there");
        expect(t->swizzle == (values ? 128 : 0), "values are swizzled");
        expect(bytes <= SM100_MMA_A_BYTES || bytes <= 2 * SM100_MMA_SFA_BYTES,
               "a box is no larger than its part of a stage");
    }
}

static int leaves_room(const gpu *g, const config *c, int32_t bytes) {
    return 2 * (bytes + 1024) <= g->props.shared_per_sm &&
           2 * SM100_TMEM_COLUMNS(c->mma_tile_n, c->stages, c->accumulators) <= 512;
}

/* Clusters that run at once, a CTA an SM. */
static int64_t fit_apart(const gpu *g, int32_t cluster) {
    static const int64_t fours[] = {[B200] = 33, [B200_SLICE] = 3, [B300_ODD] = 7, [THOR] = 4};
    static const int64_t eights[] = {[B200] = 15, [B200_SLICE] = 1, [B300_ODD] = 3, [THOR] = 2};
    const ptrdiff_t i = g - gpus;
    return cluster == 8 ? eights[i] : cluster == 4 ? fours[i] : g->props.sm_count / cluster;
}

/* Large clusters that fill the GPU: by the rule they do not share an SM. */
static int fill_the_gpu(const gpu *g, const config *c, int32_t split_k, int64_t grid) {
    const int32_t cluster = c->cta_group * c->multicast * split_k;
    const int64_t apart = fit_apart(g, cluster), clusters = grid / cluster;
    return cluster >= 4 && 8 * clusters > 7 * apart && clusters <= apart;
}

static int is_by_rule(const gpu *g, const gemm_candidate *candidate) {
    const config *c = &configs[candidate->kernel];
    const int alone = fill_the_gpu(g, c, candidate->split_k, candidate->grid);
    return candidate->ctas_per_sm == 1 + (!alone && leaves_room(g, c, entry_of(candidate->kernel)->shared_bytes));
}

static int64_t launches[2][2]; /* by whether they are by the rule, and by ctas_per_sm - 1 */

/* Partial sums have room of their own, or that of the stages. */
static void check_shared_memory(const gpu *g, const config *c, const sm100_schedule *s, const launch_step *gemm,
                                int32_t ctas_per_sm) {
    const int32_t stages = entry_of(gemm->kernel)->shared_bytes, more = gemm->shared_bytes - stages;
    const int32_t partials = SM100_PARTIALS_BYTES(c->mma_tile_n, s->split_k), all = stages + partials;
    expect(stages + more <= g->props.shared_per_block, "shared memory fits a CTA");
    const int32_t needed = s->partials_in_stages ? stages : all;
    expect(gemm->shared_bytes >= needed && (gemm->shared_bytes == needed || ctas_per_sm == 1),
           "partial sums have room, no more");
    expect(ctas_per_sm == 1 + leaves_room(g, c, gemm->shared_bytes), "as many CTAs share an SM as the candidate says");
    expect(partials <= c->stages * SM100_STAGE_BYTES(c->cta_group, c->mma_tile_n),
           "the stages have room for partial sums");
    expect(!s->partials_in_stages || s->split_k > 1, "a product without split has no partial sums");
    const int crowded = ctas_per_sm == 2 && !leaves_room(g, c, all);
    expect(s->partials_in_stages == (all > g->props.shared_per_block || crowded), "sums go where there is room");
}

/* The kernel's division, of numbers that a tile's index may be. */
static void check_divisor(fast_divisor by, int64_t d) {
    const int64_t most = INT32_MAX, last = most / d * d, some[] = {0, 1, d - 1, d, d + 1, last - 1, last, most};
    expect(by.shift < 32 && by.multiplier > 0, "a divisor");
    for (size_t i = 0; i < COUNT(some); i++)
        if (some[i] >= 0 && some[i] <= most)
            expect((int64_t)((uint64_t)some[i] * by.multiplier >> (31 + by.shift)) == some[i] / d, "divides exactly");
}

static void check_schedule(const gpu *g, const gemm_problem *p, const gemm_candidate *candidate, const config *c,
                           const sm100_schedule *s, const launch_step *gemm) {
    const int32_t mma_tile_m = SM100_CTA_ROWS * c->cta_group, cluster = gemm->cluster;
    const int64_t clusters = cluster ? candidate->grid / cluster : 0, groups = s->tiles / c->multicast;
    const int64_t room = fit_apart(g, c->cta_group * c->multicast);
    const int linear = p->scale_layout == NVFP4_LINEAR, far = is_far(p);
    expect(candidate->tile_m == (s->swap_ab ? c->mma_tile_n : mma_tile_m) &&
               candidate->tile_n == (s->swap_ab ? mma_tile_m : c->mma_tile_n) && candidate->tile_k == SM100_STAGE_K &&
               candidate->stages == c->stages && candidate->swap_ab == s->swap_ab,
           "the candidate says the tile");
    expect(s->mma_a.rows == (s->swap_ab ? p->n : p->m) && s->mma_b.rows == (s->swap_ab ? p->m : p->n),
           "rows of both operands");
    expect(s->tiles_mma_m == ceil_div(s->mma_a.rows, mma_tile_m) &&
               s->tiles_mma_n == ceil_div(s->mma_b.rows, c->mma_tile_n) && s->tiles_mma_n % c->multicast == 0,
           "tiles cover, in whole groups along mma_b");
    expect(s->tiles == s->tiles_mma_m * s->tiles_mma_n * p->l && s->tiles <= INT32_MAX - g->props.sm_count,
           "tiles count");
    check_divisor(s->inv_tiles_mma_m, s->tiles_mma_m);
    check_divisor(s->inv_tiles_mma_n, s->tiles_mma_n);
    expect(s->k_stages == ceil_div(p->k, SM100_STAGE_K), "stages cover K");
    expect(candidate->split_k == s->split_k &&
               (s->split_k == 1 || s->split_k == 2 || s->split_k == 4 || s->split_k == 8),
           "a split is a power of two");
    expect(s->split_k == 1 || s->split_k <= s->k_stages, "no split is empty");
    expect(s->split_k == 1 || c->mma_tile_n % (4 * s->split_k) == 0, "splits share a tile's columns, 4 at a time");
    expect(cluster == c->cta_group * c->multicast * s->split_k && cluster <= 8 && candidate->grid % cluster == 0,
           "a cluster that fits");
    expect(gemm->grid_y == 1, "a row of clusters");
    if (s->split_k > 1)
        expect(clusters == groups, "one group of tiles a cluster where K is split");
    else
        expect(clusters <= groups && clusters <= room &&
                   ceil_div(groups, clusters) == ceil_div(groups, min_int(groups, room)),
               "no more clusters than tiles or SMs, as few rounds as can be");
    expect(c->cp_async == (linear || p->k % 64 != 0 || !p->aligned16 || far), "cp.async loads what bulk copies cannot");
    expect(s->values_by_tma == (p->aligned16 && !far), "values by tensor maps where they are aligned");
    expect(!(c->cp_async && c->cta_group == 2), "pairs have no cp.async variant");
    expect(c->mma_tile_n > 32 || s->tiles_mma_n == 1, "a narrow tile holds all of mma_b");
    for (size_t i = 0; i < COUNT(configs); i++) {
        const config *other = &configs[i];
        const int alike = other->cta_group == c->cta_group || other->mma_tile_n <= 32;
        expect(!alike || other->cp_async != c->cp_async || other->mma_tile_n >= c->mma_tile_n ||
                   s->mma_b.rows > other->mma_tile_n,
               "no narrower tile holds all of mma_b");
    }
    expect(!(p->m == 1 && p->n > 1) || s->swap_ab, "one row of A is no reason for 128");
    expect(!(p->n == 1 && p->m > 1) || !s->swap_ab, "one row of B is no reason for 128");
    expect(candidate->workspace == 0, "no workspace");
    expect(s->constant_operand == (!p->constant_b || c->cp_async ? SM100_CONSTANT_NONE
                                   : s->swap_ab                  ? SM100_CONSTANT_MMA_A
                                                                 : SM100_CONSTANT_MMA_B),
           "a constant b is loaded early, and nothing else");
    const int aligned =
        ((uintptr_t)p->out | (uintptr_t)p->out_pitch | (uintptr_t)(p->l > 1 ? p->out_batch : 0)) % 4 == 0;
    expect(s->column_pairs == (!c->cp_async && s->swap_ab && p->out_type != NVFP4_FP32 && p->n % 2 == 0 && aligned),
           "pairs of columns exist and are aligned");
    check_shared_memory(g, c, s, gemm, candidate->ctas_per_sm);
    launches[is_by_rule(g, candidate)][candidate->ctas_per_sm - 1]++;
    const int co_resident = leaves_room(g, c, gemm->shared_bytes);
    expect(s->prefetch_stages == 0 || (co_resident && !c->cp_async), "CTAs that start early prefetch");
    times_prefetched += s->prefetch_stages > 0;
    expect(s->prefetch_stages == candidate->prefetch_stages && s->prefetch_stages >= 0 &&
               s->prefetch_stages <= ceil_div(s->k_stages, s->split_k) + 1,
           "no more than there is");
}

static void check_operands(const gpu *g, const gemm_problem *p, const gemm_candidate *candidate, const config *c,
                           const sm100_schedule *s) {
    const mma_operand *a = s->swap_ab ? &s->mma_b : &s->mma_a, *b = s->swap_ab ? &s->mma_a : &s->mma_b;
    expect(a->data == p->a && a->scale == p->scale_a && a->pitch == p->a_pitch && a->batch == p->a_batch &&
               a->scale_pitch == p->scale_a_pitch && a->scale_batch == p->scale_a_batch,
           "A is its operand of the mma");
    expect(b->data == p->b && b->scale == p->scale_b && b->pitch == p->b_pitch && b->batch == p->b_batch &&
               b->scale_pitch == p->scale_b_pitch && b->scale_batch == p->scale_b_batch,
           "B is its operand of the mma");
    const uint64_t normal = 0x1000000000000000, first = 0x12F0000000000000, last = 0x14F0000000000000;
    const int64_t rows[2] = {s->mma_a.rows, s->mma_b.rows};
    int64_t reads[2] = {s->tiles_mma_n, s->tiles_mma_m};
    if (p->a_batch == 0 && p->l > 1) reads[s->swap_ab] *= p->l;
    const int32_t cluster = c->cta_group * c->multicast * candidate->split_k;
    const int64_t clusters = candidate->grid / cluster;
    const int at_once =
        clusters * c->multicast == s->tiles && clusters <= fit_apart(g, cluster) * candidate->ctas_per_sm;
    if (at_once) reads[!s->swap_ab] = 1; /* of B */
    times_at_once += at_once && p->k > 0 && (s->swap_ab ? s->tiles_mma_n : s->tiles_mma_m) > 1;
    for (int i = 0; i < 2; i++) {
        const uint64_t policy = i ? s->mma_b.cache_policy : s->mma_a.cache_policy;
        expect(policy == first || policy == last || policy == normal, "a cache policy that exists");
        if (p->k == 0) continue;
        const int fits = rows[i] * (p->k / 2) <= g->props.l2_bytes / 2;
        expect((policy == first) == (reads[i] == 1), "what is read once, or by all at the same time, leaves L2 first");
        expect((policy == last) == (reads[i] > 1 && reads[!i] == 1 && fits),
               "what is read again stays in L2 while the other passes, if half of L2 holds it");
    }
}

static void check(const gpu *g, const gemm_problem *p, variant v, const gemm_candidate *candidate,
                  const launch_plan *plan, const launch_step *gemm) {
    const sm100_schedule *s = param_of(plan, gemm, 1);
    const config *c = &configs[candidate->kernel];
    (void)v;
    expect(plan->steps == 1, "one launch");
    expect(!memcmp(param_of(plan, gemm, 0), p, sizeof *p), "the kernel gets the problem");
    check_schedule(g, p, candidate, c, s, gemm);
    check_operands(g, p, candidate, c, s);
    check_maps(p, plan, c, s);
}

static int may_reject(const gpu *g, const gemm_problem *p) {
    const gemm_traits t = traits_of(p);
    expect(planner_of(NVFP4_BACKEND_SM100, PRODUCT_GEMM, VALUES_E2M1)->reject(&g->props, &t) == NVFP4_UNSUPPORTED &&
               strstr(nvfp4_last_error(), "tiles"),
           nvfp4_last_error());
    return ceil_div(p->m, 256) * ceil_div(p->n, 256) * p->l > INT32_MAX - g->props.sm_count;
}

static int32_t one(const gpu *g, int64_t m, int64_t n, int64_t k, int64_t l, variant v, int all) {
    const gemm_problem p = problem(m, n, k, l, v);
    static candidate_list list;
    if (p.a_type != VALUES_E2M1) return 0; /* test_units_plan.c has them */
    list_candidates(NVFP4_BACKEND_SM100, g, &p, 0, &list);
    if (list.count) {
        const gemm_candidate *first = &list.all[first_of(&list)];
        expect(is_by_rule(g, first) || first->ctas_per_sm == 1, "no room against the rule is given unasked");
        if (g != &gpus[THOR]) times_first[first->kernel][first->swap_ab][first->split_k > 1]++;
    }
    return check_product(NVFP4_BACKEND_SM100, g, &p, v, all, param_bytes, check, may_reject);
}

static void check_configs(void) {
    const kernel_set *set = gemm_backends[NVFP4_BACKEND_SM100]->kernels;
    snprintf(about, sizeof about, "kernels");
    for (int g = 0; g < GPUS; g++)
        expect(runs_on(NVFP4_BACKEND_SM100, &gpus[g]) ==
                   (gpus[g].props.compute_capability >= 100 && gpus[g].props.compute_capability < 120),
               gpus[g].name);
    expect(set->optional && set->count == SM100_KERNELS, "a driver without its code leaves it out");
    for (int32_t i = 0; i < SM100_CONFIGS; i++) {
        const config *c = &configs[i];
        const int used = SM100_USED_COLUMNS(c->mma_tile_n, c->stages, c->accumulators);
        const int columns = SM100_TMEM_COLUMNS(c->mma_tile_n, c->stages, c->accumulators);
        snprintf(about, sizeof about, "%s", set->kernels[i].name);
        expect(used <= columns && columns <= 512, "tensor memory suffices");
        expect(set->kernels[i].shared_bytes <= 232448, "shared memory of a B200 suffices");
        expect(set->kernels[i].pdl && set->kernels[i].more_shared, "it starts early, with room for partial sums");
        expect(set->kernels[i].threads == (c->cp_async || c->mma_tile_n == 256 ? 320 : 192), "warps");
        expect(c->cta_group == 1 || c->mma_tile_n % 32 == 0, "half of a pair's tile is whole groups of rows");
        expect(sm100_configs[i].threads == set->kernels[i].threads &&
                   sm100_configs[i].shared_bytes == set->kernels[i].shared_bytes &&
                   !strcmp(sm100_configs[i].name, set->kernels[i].name),
               "the plan's own row says the same");
    }
}

static void check_rejections(void) {
    const gemm_problem many = problem(INT32_MAX, 1 << 29, 64, 1, PLAIN), few = problem(1, 1, 64, 1, PLAIN);
    expect(one(&gpus[B200], INT32_MAX, 1 << 29, 64, 1, PLAIN, 0) == 0, "no candidates");
    snprintf(about, sizeof about, "rejections");
    may_reject(&gpus[B200], &many);
    expect(!!strstr(nvfp4_last_error(), "M = 2147483647"), "too many tiles are an error");
    check_too_little_shared_memory(NVFP4_BACKEND_SM100, gpus[B200], &few);
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
                        one(&gpus[on[g]], sizes[m], sizes[n], depths[k], batches[l], PLAIN, 0);
                        one(&gpus[on[g]], sizes[m], sizes[n], depths[k], batches[l], v, (g + m + n + k + l) % 5 == 0);
                    }
    for (size_t m = 0; m < COUNT(sizes); m += 2)
        for (size_t n = 0; n < COUNT(sizes); n += 3)
            for (size_t k = 0; k < COUNT(depths); k++)
                one(&gpus[B200], sizes[m], sizes[n], depths[k], 1, k % 2 ? PLAIN : (variant)(m % VARIANTS), 1);
    one(&gpus[B200], 128, 7168, 16384, 1, PLAIN, 1);
    one(&gpus[B200], 128, 4096, 7168, 1, PLAIN, 1);
    one(&gpus[B200], 3, 500, 96, 1, LINEAR, 1);
    one(&gpus[B200], INT32_MAX, 8, INT32_MAX / 64 * 64, 1, PLAIN, 0);
    one(&gpus[B200], 1, INT32_MAX, 1 << 20, 1, LINEAR, 0);
    one(&gpus[B200], 1, 1, 64, INT32_MAX - 148, PLAIN, 0);
    one(&gpus[B200], 128, 128, 1 << 20, 1 << 24, PLAIN, 0);
    one(&gpus[B200], 8, INT32_MAX, 64, 200, PLAIN, 1); /* more tiles than are counted, of some sizes */
    one(&gpus[B200], 200, INT32_MAX, 64, 200, PLAIN, 1);
    for (size_t i = 0; i < COUNT(configs); i++) {
        const long (*t)[2] = times_first[i];
        snprintf(about, sizeof about, "%s", entry_of((int32_t)i)->name);
        /* 256x64_multicast needs more clusters of 8 than fit; it is there for `bench --tune`. */
        expect((t[0][0] + t[0][1] + t[1][0] + t[1][1] > 0) == (configs[i].multicast == 1 || configs[i].mma_tile_n > 64),
               "some shape has a use for it");
        printf("%-32s A is mma_a: %6ld, split %6ld; B is: %6ld, split %6ld\n", about, t[0][0], t[0][1], t[1][0],
               t[1][1]);
    }
    snprintf(about, sizeof about, "L2");
    expect(times_at_once > 0, "some launch reads B again, all tiles at the same time");
    expect(times_prefetched > 0, "some shape has a candidate with it");
    snprintf(about, sizeof about, "room for the next call");
    for (int i = 0; i < 4; i++) expect(launches[i / 2][i % 2] > 0, "given and withheld, by the rule and against it");
    return report();
}
