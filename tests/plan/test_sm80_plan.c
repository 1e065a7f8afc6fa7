/* The sm80 backend over many shapes on the properties of real GPUs: every candidate can be launched. Prints "N passed,
 * N failed". */
#include "kernels/sm80/plan.h"
#include "plan_checks.h"

static const int64_t sizes[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 127, 128, 129, 300, 2304, 7168, 100000};
static const int64_t depths[] = {0, 16, 48, 464, 2048, 7168, 16384, 1 << 20};
static const int64_t batches[] = {1, 3, 1000};
static const int on[] = {A100, RTX_3090, RTX_4090, H200, B200, RTX_5090};

static long times_first[SM80_KERNELS], times_listed[SM80_KERNELS], times_split[SM80_KERNELS];

/* test_sm80_grouped_plan.c checks these. */
static int is_of_groups(int32_t kernel) {
    return !strncmp(gemm_backends[NVFP4_BACKEND_SM80]->kernels->kernels[kernel].source, "sm80_grouped", 12);
}

static size_t param_bytes(int32_t kernel, int32_t index) {
    (void)kernel; /* the reduction takes those of the GEMM */
    return index == 0 ? sizeof(gemm_problem) : index == 1 ? sizeof(sm80_schedule) : 0;
}

static void check(const gpu *g, const gemm_problem *p, variant v, const gemm_candidate *c, const launch_plan *plan,
                  const launch_step *gemm) {
    const kernel_entry *kernel = &gemm_backends[NVFP4_BACKEND_SM80]->kernels->kernels[c->kernel];
    const sm80_schedule *s = param_of(plan, gemm, 1);
    (void)g, (void)v;
    times_listed[c->kernel]++;
    times_split[c->kernel] += c->split_k > 1;
    expect(!memcmp(param_of(plan, gemm, 0), p, sizeof *p), "the kernel gets the problem");
    const int w4a16 = p->a_type != VALUES_E2M1;
    expect(!strcmp(kernel->source, p->product_kind == PRODUCT_GEMM_NN ? "sm80_nn"
                                   : w4a16                            ? "sm80_w4a16"
                                                                      : "sm80_gemm"),
           "kernel is a GEMM of this A and B");
    if (w4a16) expect(strstr(kernel->name, p->a_type == NVFP4_FP16 ? "_fp16_" : "_bf16_") != NULL, "and of its type");
    expect(gemm->shared_bytes == kernel->shared_bytes, "all of its shared memory");
    expect(kernel->pdl && gemm->cluster == 0 && gemm->grid_y == 1,
           "a launch that every GPU takes, and begins early where it can");
    expect(s->tiles_m * c->tile_m >= p->m && (s->tiles_m - 1) * c->tile_m < p->m, "tiles cover M");
    if (w4a16 &&
        p->product_kind ==
            PRODUCT_GEMM) { /* a quarter of a tile's columns in each quarter of a block of 128: the first has most */
        const int64_t whole = p->n / 128 * (128 / c->tile_n), first = min_int(p->n % 128, 32);
        expect((s->tiles_n - whole) * c->tile_n / 4 >= first && (s->tiles_n - whole - 1) * c->tile_n / 4 < first,
               "tiles cover the blocks of N");
    } else {
        expect(s->tiles_n * c->tile_n >= p->n && (s->tiles_n - 1) * c->tile_n < p->n, "tiles cover N");
    }
    expect(c->grid == s->tiles_m * s->tiles_n * p->l * c->split_k, "grid is tiles x L x split");
    expect(s->split_k == c->split_k && c->split_k >= 1, "one split in both");
    expect(c->split_k * s->k_tiles_per_split * c->tile_k >= p->k, "splits cover K");
    expect(c->split_k == 1 || (c->split_k - 1) * s->k_tiles_per_split * c->tile_k < p->k, "no split is empty");
    expect(c->workspace == (c->split_k > 1 ? c->split_k * p->l * p->m * p->n * 4 : 0),
           "workspace holds the partial sums");
    expect((s->reduce_grid > 0) == (c->split_k > 1), "a split is reduced");
    expect(plan->steps == (c->split_k > 1 ? 2 : 1) && plan->step[0].kernel == c->kernel, "the GEMM is launched first");
    expect(plan->tensor_maps == 0 && c->swap_ab == 0 && c->prefetch_stages == 0, "neither TMA nor swap_ab");
    if (c->split_k == 1) return;
    const launch_step *reduce = &plan->step[1];
    expect((uintptr_t)s->partials == WORKSPACE, "partial sums are written to the workspace");
    expect(reduce->kernel == KERNEL_SM80_SPLIT_REDUCE && reduce->grid_x == s->reduce_grid && reduce->grid_y == 1,
           "the reduction is launched next");
    expect(s->reduce_grid * SM80_REDUCE_THREADS >= p->l * p->m * ceil_div(p->n, 4) &&
               (s->reduce_grid - 1) * SM80_REDUCE_THREADS < p->l * p->m * ceil_div(p->n, 4),
           "a thread for every 4 columns of a row");
    expect(reduce->param_offset[0] == gemm->param_offset[0] && reduce->param_offset[1] == gemm->param_offset[1],
           "of the same parameters");
}

/* Only too many CTAs are a reason. */
static int may_reject(const gpu *g, const gemm_problem *p) {
    const gemm_traits t = traits_of(p);
    expect(planner_of(NVFP4_BACKEND_SM80, p->product_kind, p->a_type)->reject(&g->props, &t) == NVFP4_UNSUPPORTED &&
               strstr(nvfp4_last_error(), "more CTAs or more shared memory"),
           nvfp4_last_error());
    return ceil_div(p->m, 64) * ceil_div(p->n, 64) * p->l > INT32_MAX;
}

static int32_t one(const gpu *g, const gemm_problem *p, variant v, int all) {
    return check_product(NVFP4_BACKEND_SM80, g, p, v, all, param_bytes, check, may_reject);
}

static void check_rejections(void) {
    gpu small = gpus[RTX_3090];
    small.props.shared_per_block = 16 << 10;
    const gemm_problem many = problem(INT32_MAX, INT32_MAX, 64, 1, PLAIN), few = problem(8, 8, 64, 1, PLAIN);
    static candidate_list list;
    snprintf(about, sizeof about, "rejections");
    expect(one(&gpus[A100], &many, PLAIN, 1) == 0 && strstr(nvfp4_last_error(), "M = 2147483647"),
           "too many tiles are an error");
    for (int32_t k = 0; k < KERNEL_SM80_SPLIT_REDUCE; k++) {
        if (is_of_groups(k)) continue;
        const char *name = gemm_backends[NVFP4_BACKEND_SM80]->kernels->kernels[k].name;
        gemm_problem p = problem(64, 64, 512, 1,
                                 strstr(name, "_fp16")   ? FP16_A
                                 : strstr(name, "_bf16") ? BF16_A
                                                         : PLAIN);
        p.product_kind = strstr(name, "sm80_nn") ? PRODUCT_GEMM_NN : PRODUCT_GEMM;
        check_min_shared_memory(NVFP4_BACKEND_SM80, gpus[A100], &p, k);
    }
    snprintf(about, sizeof about, "rejections");
    list_candidates(NVFP4_BACKEND_SM80, &small, &few, 0, &list);
    may_reject(&small, &few);
    expect(list.count == 0 && strstr(nvfp4_last_error(), "16384 bytes a CTA"), "too little shared memory is an error");
}

int main(void) {
    const kernel_set *set = gemm_backends[NVFP4_BACKEND_SM80]->kernels;
    for (int g = 0; g < GPUS; g++) expect(runs_on(NVFP4_BACKEND_SM80, &gpus[g]), "sm80 runs on every GPU since Ampere");
    expect(set->min_capability == 80 && !set->optional, "its code has to be there");
    check_rejections();
    for (size_t g = 0; g < COUNT(on); g++)
        for (size_t m = 0; m < COUNT(sizes); m++)
            for (size_t n = 0; n < COUNT(sizes); n++)
                for (size_t k = 0; k < COUNT(depths); k++)
                    for (size_t l = 0; l < COUNT(batches); l++) {
                        const variant v = (variant)((g + m * 3 + n * 5 + k * 7 + l) % VARIANTS);
                        const gemm_problem p = problem(sizes[m], sizes[n], depths[k], batches[l], v);
                        if (p.m * p.n * p.l > (int64_t)1 << 34) continue; /* results that no GPU holds */
                        one(&gpus[on[g]], &p, v, (g + m + n + k + l) % 7 == 0);
                        static candidate_list list;
                        list_candidates(NVFP4_BACKEND_SM80, &gpus[on[g]], &p, 0, &list);
                        if (list.count) times_first[list.all[first_of(&list)].kernel]++;
                        if (p.a_type == VALUES_E2M1) continue;
                        gemm_problem nn = p;
                        nn.product_kind = PRODUCT_GEMM_NN;
                        one(&gpus[on[g]], &nn, v, l == 0);
                        list_candidates(NVFP4_BACKEND_SM80, &gpus[on[g]], &nn, 0, &list);
                        if (list.count) times_first[list.all[first_of(&list)].kernel]++;
                    }
    snprintf(about, sizeof about, "what there is");
    for (int k = 0; k < KERNEL_SM80_SPLIT_REDUCE; k++) {
        if (is_of_groups(k)) continue;
        expect(times_listed[k] > 0 && times_split[k] > 0, set->kernels[k].name);
        printf("%-32s first %6ld times, listed %7ld\n", set->kernels[k].name, times_first[k], times_listed[k]);
    }
    return report();
}
