/* Products of groups of the sm100 backend: every candidate can be launched and keeps what the kernel relies on
 * (csrc/kernels/sm100/grouped_config.h), the plan follows from the number of rows a group, and on a B200 no candidate
 * comes behind sm80's. An activation is in the product's launch where SMs have enough tiles. Prints "N passed, N failed". */
#include "kernels/sm100/grouped_plan.h"
#include "plan_checks.h"

static const int64_t rows_of_result[] = {1, 7, 64, 300, 4096, 100000};
static const int64_t columns[] = {1, 7, 128, 130, 704, 7168};
static const int64_t depths[] = {0, 32, 64, 96, 2048, 7168};
static const int32_t groups_of[] = {1, 2, 60, 256, 1024};
static const int on[] = {B200, B200_SLICE, B300_ODD, THOR};

static long times_first[SM100_GROUPED_END], times_listed[SM100_GROUPED_END];

static const gemm_planner *planner(void) {
    return planner_of(NVFP4_BACKEND_SM100, PRODUCT_GROUPED, VALUES_E2M1);
}

static size_t param_bytes(int32_t kernel, int32_t index) {
    (void)kernel;
    return index == 0 ? sizeof(grouped_problem) : index == 1 ? sizeof(sm100_grouped_schedule) : 0;
}

static int is_pair(const gemm_candidate *c) {
    return strstr(c->name, "_256x256") || strstr(c->name, "_128x256");
}

static int is_gated(const gemm_candidate *c) {
    return strstr(c->name, "_gated_") != NULL;
}

static void check_map(const gemm_problem *p, const launch_plan *plan, int is_b, int interleaved, const mma_operand *o) {
    const tensor_layout *t = &plan->tensor_map[!is_b].layout;
    const int64_t rows = is_b ? p->n : p->m, batches = is_b ? p->l : 1;
    expect((const unsigned char *)&o->values == plan->params + plan->tensor_map[!is_b].offset && t->data == o->data,
           "a map for each, in its place");
    expect((int64_t)t->dims[0] == p->k / 2 && (int64_t)t->dims[2] == batches, "all is there, one A for all groups");
    expect(t->box[0] == SM100_STAGE_K / 2 && t->swizzle == 128, "a box is a stage along K");
    if (interleaved) {
        expect(t->rank == 4 && t->dims[1] == 32 && (int64_t)(t->dims[1] * t->dims[3]) == rows, "rows by 32");
        expect(t->box[1] == 16 && t->box[2] == 2 && t->box[3] == 4, "16 rows of either matrix in turn");
        expect((int64_t)t->strides[0] == p->b_pitch && (int64_t)t->strides[1] == p->b_batch &&
                   (t->dims[3] == 1 || (int64_t)t->strides[2] == 32 * p->b_pitch),
               "of the same columns");
        return;
    }
    expect(t->rank == 3 && (int64_t)t->dims[1] == rows && t->box[2] == 1, "all rows");
    expect(t->box[1] == (is_b ? SM100_CTA_ROWS : SM100_GROUPED_BOX_ROWS), "rows of a CTA, or some of A's");
}

/* Scales of a pair: atoms of 256 elements, or with two matrices halves of one of each. */
static void check_scale_maps(const grouped_problem *p, const launch_plan *plan, int interleaved,
                             const sm100_grouped_schedule *s) {
    const tensor_layout *b = &plan->tensor_map[2].layout, *a = &plan->tensor_map[3].layout;
    const uint64_t atoms = (uint64_t)p->g.k / 64, of_n = (uint64_t)ceil_div(p->g.n, 128), l = (uint64_t)p->g.l;
    expect((const unsigned char *)&s->mma_a_scales == plan->params + plan->tensor_map[2].offset &&
               (const unsigned char *)&s->mma_b_scales == plan->params + plan->tensor_map[3].offset,
           "maps of scales are in their places");
    expect(b->data == p->g.scale_b && b->rank == 4 && b->element_bytes == 2 && b->dims[0] == 256 && b->swizzle == 0,
           "of B");
    if (interleaved)
        expect(b->dims[1] == l && b->dims[2] == atoms && b->dims[3] == of_n && b->box[0] == 128 && b->box[1] == 2 &&
                   b->box[2] == 4 && b->box[3] == 1 && (int64_t)b->strides[0] == p->g.scale_b_batch &&
                   b->strides[1] == 512,
               "half an atom of either matrix for each K block");
    else
        expect(b->dims[1] == atoms && b->dims[2] == of_n && b->dims[3] == l && b->box[0] == 256 && b->box[1] == 4 &&
                   b->box[2] == 1 && b->box[3] == 1,
               "a block of 128 rows");
    expect(a->rank == 4 && a->dims[1] == atoms && (int64_t)a->dims[2] == max_int(p->scale_a_rows / 128, 1) &&
               a->dims[3] == 1 && a->box[1] == 4 && a->box[2] == 1,
           "of A by blocks of 128 rows");
    expect(a->data == (p->scale_a_rows ? p->g.scale_a : p->g.scale_b), "without a block the address is any");
}

/* The grid: a CTA or a pair an SM or two, if it has a tile. */
static void check_grid(const gpu *g, const grouped_problem *p, const gemm_candidate *c, const launch_step *step,
                       int64_t across) {
    const int64_t hit = min_int(p->groups, p->g.m), tiles = (hit + (p->g.m - hit) / c->tile_m) * across;
    const int64_t ctas = is_pair(c) ? 2 : 1, at_once = sm100_clusters_that_fit(&g->props, (int32_t)ctas, 1);
    expect(c->grid == ctas * min_int(tiles, at_once) && step->grid_x == c->grid, "as many as have a tile and fit");
    expect(step->cluster == (is_pair(c) ? 2 : 0), "a pair is a cluster");
    expect(tiles <= INT32_MAX - g->props.sm_count, "the number behind the last tile does not overflow");
}

static void check(const gpu *g, const gemm_problem *p, variant v, const gemm_candidate *c, const launch_plan *plan,
                  const launch_step *step) {
    const grouped_problem *all = (const grouped_problem *)p;
    const kernel_entry *kernel = &gemm_backends[NVFP4_BACKEND_SM100]->kernels->kernels[c->kernel];
    const sm100_grouped_schedule *s = param_of(plan, step, 1);
    times_listed[c->kernel]++;
    expect(v == PLAIN && p->k % SM100_MMA_K == 0, "bulk copies take whole atoms of 128x4 scales");
    expect(plan->steps == 1 && c->workspace == 0, "one launch, no workspace");
    expect(!memcmp(param_of(plan, step, 0), all, sizeof *all), "the kernel gets the problem");
    expect(!strcmp(kernel->source, "sm100_grouped") && kernel->pdl, "it is one of groups and may start early");
    const int pair = is_pair(c), gated = is_gated(c), interleaved = pair && gated;
    expect(step->grid_y == 1 && c->split_k == 1 && c->swap_ab, "a CTA has all of K");
    expect(s->tiles_n == ceil_div(p->n, c->tile_n) && c->tile_n == SM100_CTA_ROWS * (pair && !gated ? 2 : 1),
           "tiles cover N");
    expect(!pair || p->out_type != NVFP4_FP32, "a pair keeps results of 16 bits in registers");
    expect(!interleaved || p->n % 32 == 0, "tensor maps have rows of two matrices by 32");
    expect(!s->column_pairs || (p->out_type != NVFP4_FP32 && p->n % 2 == 0), "pairs of columns of 16 bits");
    expect(s->mma_a.data == p->b && s->mma_a.scale == p->scale_b && s->mma_a.rows == p->n &&
               s->mma_a.scale_pitch == p->scale_b_pitch && s->mma_a.scale_batch == p->scale_b_batch,
           "B is the operand of the mma with 128 rows");
    expect(s->mma_b.data == p->a && s->mma_b.scale == p->scale_a && s->mma_b.scale_pitch == p->scale_a_pitch,
           "A the other");
    expect(s->is_dense == (all->groups == 1 && p->m <= 128 && all->scale_a_rows == 128),
           "one group of a block of rows or fewer has its tiles and scales in the parameters");
    expect(plan->tensor_maps == (p->k > 0 ? (pair ? 4 : 2) : 0), "values have tensor maps, scales of a pair too");
    if (plan->tensor_maps) check_map(p, plan, 1, interleaved, &s->mma_a), check_map(p, plan, 0, 0, &s->mma_b);
    if (plan->tensor_maps && pair) check_scale_maps(all, plan, interleaved, s);
    check_grid(g, all, c, step, (int64_t)s->tiles_n * (gated ? 1 : all->parts));
}

static long times_fused, times_apart; /* of two parts */

/* The kernel of each candidate with the activation. */
static void check_activation(const gpu *g, const grouped_problem *product, variant v) {
    const grouped_problem p = with_activation(product);
    static candidate_list list;
    static launch_plan plan;
    list_candidates(NVFP4_BACKEND_SM100, g, &product->g, 0, &list);
    name_product(g, &p.g, v);
    for (int32_t i = 0; i < list.count; i++) {
        gemm_candidate *of = &list.all[i];
        of->batch_invariant = i % 2;
        gemm_candidate c = *of, again;
        const int fused = planner()->with_activation(&g->props, &p, of, &c);
        expect(fused ? p.parts <= 2 : p.parts >= 2, "of one part there is a kernel, of two where it has enough tiles");
        if (!fused) {
            times_apart += p.parts == 2;
            expect(!memcmp(&c, of, sizeof c), "without such a kernel nothing is written");
            continue;
        }
        times_fused += p.parts == 2;
        planner()->with_activation(&g->props, &p, of, &again);
        const int no_pair = p.g.n % 32 != 0 && of->tile_m == 256 && p.parts == 2;
        expect(c.tile_m == (no_pair ? 128 : of->tile_m), "tiles are as wide as the product's, where there are such");
        expect(p.parts == 2 || c.kernel == of->kernel, "of one part it is the product's");
        expect(c.batch_invariant == of->batch_invariant, "it says what the product was chosen for");
        expect(!strstr(of->reason, "activation") && strstr(c.reason, "activation"), "it says that it computes both");
        const launch_step *step = check_launches(g, &p.g, &c, &again, param_bytes, &plan);
        if (!step) continue;
        check(g, &p.g, v, &c, &plan, step);
        const sm100_grouped_schedule *s = param_of(&plan, step, 1);
        expect(s->numbers.limit == 7.0f && s->numbers.up_limit == (p.parts == 2 ? 7.0f : INFINITY) &&
                   s->numbers.alpha == 3.0f && s->numbers.min_gate == -86.0f / 3.0f,
               "the numbers of the activation");
    }
}

/* The same kernel with results as NVFP4, whose places the schedule has. */
static void check_quantized(const gpu *g, const grouped_problem *product) {
    uint8_t data[1], scale[1];
    const grouped_problem p = with_activation(product);
    const gated_grouped_quantize_problem quantized = {
        .p = p, .q = {.q = {.data = data, .scale = scale, .data_pitch = 16, .global_value = 0.5f}, .groups = p.groups}};
    static candidate_list list;
    static launch_plan plan;
    list_candidates(NVFP4_BACKEND_SM100, g, &product->g, 0, &list);
    for (int32_t i = 0; i < list.count; i++) {
        gemm_candidate numbers, both = list.all[i];
        const int fused = planner()->with_activation(&g->props, &p, &list.all[i], &numbers);
        expect(planner()->with_quantized_activation(&g->props, &quantized, &list.all[i], &both) == fused,
               "where there is a kernel with the activation, it quantizes too");
        if (!fused) continue;
        expect(both.kernel == numbers.kernel && both.grid == numbers.grid && both.workspace == 0, "the same kernel");
        expect(strstr(both.reason, "quantizer") != NULL, "it says so");
        const product_problem problem = {.gated_grouped_quantize = quantized};
        launch_plan_init(&plan);
        planner()->build(&g->props, &problem, &both, NULL, &plan);
        const sm100_grouped_schedule *s = param_of(&plan, &plan.step[0], 1);
        expect(plan.steps == 1 && s->quantized.data == data && s->quantized.scale == scale &&
                   s->quantized.data_pitch == 16 && s->quantized.global_value == 0.5f,
               "results have their places");
        launch_plan_init(&plan);
        planner()->build(&g->props, &problem, &numbers, NULL, &plan);
        s = param_of(&plan, &plan.step[0], 1);
        expect(!s->quantized.data, "numbers have none");
    }
}

static int may_reject(const gpu *g, const gemm_problem *p) {
    const gemm_traits t = traits_of_product(p);
    const int reaches = t.tma_values && t.scale_layout == NVFP4_128X4 && p->k % 64 == 0;
    const char *said = reaches                          ? "tiles"
                       : t.scale_layout == NVFP4_LINEAR ? "scale_layout: is linear"
                       : p->k % 64                      ? "must be a multiple of 64"
                                                        : "multiples of 16 bytes";
    expect(planner()->reject(&g->props, &t) == NVFP4_UNSUPPORTED && strstr(nvfp4_last_error(), said),
           nvfp4_last_error());
    return !reaches || ceil_div(p->m, 128) * ceil_div(p->n, 128) > INT32_MAX / 8;
}

static int32_t one(const gpu *g, const grouped_problem *p, variant v, int all) {
    return check_product(NVFP4_BACKEND_SM100, g, &p->g, v, all, param_bytes, check, may_reject);
}

/* All candidates add in one order, so each serves batch-invariant products, where the kernels reach the operands. */
static void check_batch_invariant(const gpu *g, const grouped_problem *p, variant v) {
    const gemm_traits t = traits_of_product(&p->g);
    gemm_candidate plain[MAX_CANDIDATES], invariant[MAX_CANDIDATES];
    const int32_t count = planner()->candidates(&g->props, &t, plain);
    const int32_t found = planner()->batch_invariant(&g->props, &t, invariant);
    expect(v == PLAIN && p->g.k % 64 == 0 ? found == count : found == -1 && count == 0, "as many candidates, or none");
    for (int32_t i = 0; i < count; i++) expect(same_settings(&plain[i], &invariant[i]), "the same candidates");
}

static void check_choice(const gpu *g, const grouped_problem *p) {
    static candidate_list list, portable;
    list_candidates(NVFP4_BACKEND_SM100, g, &p->g, 0, &list);
    if (list.count == 0) return;
    const gemm_candidate *first = &list.all[first_of(&list)];
    times_first[first->kernel]++;
    list_candidates(NVFP4_BACKEND_SM80, g, &p->g, 0, &portable);
    name_product(g, &p->g, PLAIN);
    if (g == &gpus[B200] && portable.count && p->g.k >= 64)
        expect(candidate_precedes(first, &portable.all[first_of(&portable)]), "not behind sm80's kernels");
}

/* Rows of the first plan's tile, for a product or one with an activation. */
static int32_t first_tile(int64_t m, int32_t groups, int activation) {
    const grouped_problem product = grouped(PRODUCT_GROUPED, m, 768, 2048, groups, 2, PLAIN),
                          p = with_activation(&product);
    static candidate_list list;
    list_candidates(NVFP4_BACKEND_SM100, &gpus[B200], &product.g, 0, &list);
    gemm_candidate c = list.all[first_of(&list)];
    if (activation) planner()->with_activation(&gpus[B200].props, &p, &list.all[first_of(&list)], &c);
    return c.tile_m;
}

static void check_choices(void) {
    snprintf(about, sizeof about, "choices");
    for (int activation = 0; activation < 2; activation++) {
        expect(first_tile(8, 128, activation) == 64, "a token has a row in each of its groups");
        expect(first_tile(11000, 128, activation) == 128, "rows of about a block have a wide tile");
        expect(first_tile(65536, 128, activation) == 256, "many rows a group have a pair's");
        expect(first_tile(64, 1, activation) == 64, "one group has all rows, and no row more");
    }
}

/* Whether the first plan's launch takes its tiles from the parameters. */
static int is_dense(const grouped_problem *p) {
    static candidate_list list;
    launch_plan plan;
    list_candidates(NVFP4_BACKEND_SM100, &gpus[B200], &p->g, 0, &list);
    const product_problem problem = {.grouped = *p};
    launch_plan_init(&plan);
    planner()->build(&gpus[B200].props, &problem, &list.all[first_of(&list)], NULL, &plan);
    return ((const sm100_grouped_schedule *)param_of(&plan, &plan.step[0], 1))->is_dense;
}

/* One group: with an end only where few rows can lie behind it, and where the scales of A begin at 0 or nowhere. */
static void check_dense(void) {
    snprintf(about, sizeof about, "one group");
    grouped_problem p = grouped(PRODUCT_GROUPED, 128, 768, 2048, 1, 2, PLAIN);
    expect(is_dense(&p), "a block of rows");
    p.scale_a_rows = 256;
    expect(!is_dense(&p), "scales may begin with the second block");
    p.scale_a_rows = 0;
    expect(!is_dense(&p), "rows have no scales");
    p = grouped(PRODUCT_GROUPED, 129, 768, 2048, 1, 2, PLAIN);
    expect(!is_dense(&p), "more rows");
    p.ends = NULL;
    expect(is_dense(&p), "without an end all are results");
    p = grouped(PRODUCT_GROUPED, 2, 768, 2048, 2, 2, PLAIN);
    expect(!is_dense(&p), "two groups");
}

/* Groups may all be without scales: no load takes what the map then describes. */
static void check_no_scales(void) {
    grouped_problem p = grouped(PRODUCT_GROUPED, 65536, 768, 2048, 128, 1, PLAIN);
    p.scale_a_rows = 0, p.g.scale_a = NULL;
    expect(one(&gpus[B200], &p, PLAIN, 1) > 0, "it has candidates");
}

/* The kernel with the activation of a product by pairs, whose rows of B are so far apart. */
static gemm_candidate with_rows_apart(int64_t b_pitch, int64_t n) {
    grouped_problem product = grouped(PRODUCT_GROUPED, 65536, n, 2048, 128, 2, PLAIN);
    product.g.b_pitch = b_pitch;
    const grouped_problem p = with_activation(&product);
    static candidate_list list;
    list_candidates(NVFP4_BACKEND_SM100, &gpus[B200], &product.g, 0, &list);
    gemm_candidate c = list.all[0];
    for (int32_t i = 0; i < list.count; i++)
        if (is_pair(&list.all[i])) c = list.all[i];
    expect(is_pair(&c) && planner()->with_activation(&gpus[B200].props, &p, &c, &c), "there is such a kernel");
    return c;
}

/* A pair with two matrices goes from 32 rows to the next 32 by one stride of a tensor map. */
static void check_rows_apart(void) {
    const int64_t limit = TENSOR_STRIDE_END / 32;
    snprintf(about, sizeof about, "rows of B far apart");
    gemm_candidate c = with_rows_apart(limit - 16, 768);
    expect(is_pair(&c) && is_gated(&c), "the stride is valid");
    c = with_rows_apart(limit, 768);
    expect(!is_pair(&c) && is_gated(&c), "the stride is not valid, so a CTA alone has both matrices");
    c = with_rows_apart(limit, 32);
    expect(is_pair(&c) && is_gated(&c), "there is no such stride");
}

static void check_limits(void) {
    const grouped_problem many = grouped(PRODUCT_GROUPED, INT32_MAX, INT32_MAX / 16 * 16, 64, 8, 2, PLAIN);
    snprintf(about, sizeof about, "limits");
    expect(one(&gpus[B200], &many, PLAIN, 1) == 0, "too many tiles are an error");
    const grouped_problem p = grouped(PRODUCT_GROUPED, 64, 64, 512, 4, 1, PLAIN);
    const gemm_traits t = traits_of_product(&p.g);
    gpu small = gpus[B200];
    small.props.shared_per_block = 99 << 10;
    expect(planner()->reject(&small.props, &t) == NVFP4_UNSUPPORTED &&
               strstr(nvfp4_last_error(), "the GPU has 101376 a CTA"),
           "too little shared memory is an error");
}

int main(void) {
    check_limits();
    check_no_scales();
    check_rows_apart();
    check_choices();
    check_dense();
    for (size_t m = 0; m < COUNT(rows_of_result); m++)
        for (size_t n = 0; n < COUNT(columns); n++)
            for (size_t k = 0; k < COUNT(depths); k++)
                for (size_t e = 0; e < COUNT(groups_of); e++) {
                    const gpu *g = &gpus[on[(m + n + k + e) % COUNT(on)]];
                    const variant v = (m + e) % 7 == 3 ? LINEAR : (n + k) % 5 == 2 ? UNALIGNED : PLAIN;
                    const int32_t parts = 1 + (int32_t)((m + k) % 3);
                    const grouped_problem p =
                        grouped(PRODUCT_GROUPED, rows_of_result[m], columns[n], depths[k], groups_of[e], parts, v);
                    one(g, &p, v, (m + n + k + e) % 3 == 0);
                    check_batch_invariant(g, &p, v);
                    check_choice(g, &p);
                    check_activation(g, &p, v);
                    if (parts <= 2) check_quantized(g, &p);
                }
    snprintf(about, sizeof about, "what there is");
    for (int32_t k = SM100_CONFIGS; k < SM100_GROUPED_END; k++) {
        const char *name = gemm_backends[NVFP4_BACKEND_SM100]->kernels->kernels[k].name;
        expect(times_listed[k] > 0, name);
        printf("%-32s first %6ld times, listed %7ld\n", name, times_first[k], times_listed[k]);
    }
    printf("activations of two parts: %ld in one launch, %ld in two\n", times_fused, times_apart);
    expect(times_fused > 100 && times_apart > 5, "both ways are taken");
    return report();
}
