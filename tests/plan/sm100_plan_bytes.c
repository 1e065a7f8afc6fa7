/* The sm100 plan (kernels/sm100/plan.c) as C11 and as C++17: prints every candidate of some hundred products, and the
 * launch plan of each as bytes. tests/plan/test_submission_rule.py compiles it in both languages. The argument:
 * a seed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/sm100/plan.c"

static uint64_t seed;

static int64_t draw(int64_t count) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(seed >> 33) % count;
}

static int64_t draw_size(void) {
    static const int64_t sizes[] = {1, 2, 8, 16, 17, 32, 33, 64, 127, 128, 129, 300, 1024, 2304, 7168};
    return draw(3) ? sizes[draw(sizeof sizes / sizeof *sizes)] : 1 + draw(5000);
}

/* Operands at addresses that stand for some; nothing is read. */
static const uint8_t *address(int64_t i) {
    return (const uint8_t *)(uintptr_t)((i + 1) << 32);
}

static gemm_problem draw_problem(void) {
    gemm_problem p;
    memset(&p, 0, sizeof p);
    p.m = draw_size(), p.n = draw_size(), p.l = draw(3) ? 1 : 1 + draw(8);
    p.k = draw(4) ? 64 * (1 + draw(300)) : 16 * draw(100);
    p.scale_layout = draw(4) ? NVFP4_128X4 : NVFP4_LINEAR;
    p.out_type = draw(3) ? NVFP4_FP16 : NVFP4_FP32;
    p.aligned16 = p.k % 32 == 0 && draw(8);
    const int64_t element = p.out_type == NVFP4_FP32 ? 4 : 2;
    const int64_t scale_pitch = p.scale_layout == NVFP4_LINEAR ? p.k / 16 : ceil_div(p.k, 64) * 512;
    p.a = address(0), p.b = address(1), p.scale_a = address(2), p.scale_b = address(3),
    p.out = (void *)(uintptr_t)address(4);
    p.a_pitch = p.k / 2 + 16 * draw(2), p.b_pitch = p.k / 2;
    p.a_batch = draw(4) ? p.m * p.a_pitch : 0, p.b_batch = p.n * p.b_pitch;
    p.scale_a_pitch = p.scale_b_pitch = scale_pitch;
    p.scale_a_batch = scale_pitch * (p.scale_layout == NVFP4_LINEAR ? p.m : ceil_div(p.m, 128));
    p.scale_b_batch = scale_pitch * (p.scale_layout == NVFP4_LINEAR ? p.n : ceil_div(p.n, 128));
    p.out_pitch = p.n * element, p.out_batch = p.m * p.n * element;
    p.alpha_value = 1;
    return p;
}

static void print_candidate(const gemm_candidate *c) {
    printf("  %s %a grid %" PRId64 " workspace %" PRId64, c->name, c->modelled_us, c->grid, c->workspace);
    printf(" kernel %d swap_ab %d split_k %d prefetch %d ctas_per_sm %d tile %d %d %d stages %d tiling", c->kernel,
           c->swap_ab, c->split_k, c->prefetch_stages, c->ctas_per_sm, c->tile_m, c->tile_n, c->tile_k, c->stages);
    for (size_t i = 0; i < PLAN_TILING_BYTES; i++) printf("%02x", c->tiling[i]);
    printf(" %s\n", c->reason);
}

static void print_plan(const launch_plan *plan) {
    for (int i = 0; i < plan->steps; i++) {
        const launch_step *s = &plan->step[i];
        printf("    step %d cluster %d grid %" PRId64 " %" PRId64 " shared %d params", s->kernel, s->cluster, s->grid_x,
               s->grid_y, s->shared_bytes);
        for (int j = 0; j < s->params; j++) printf(" %d", s->param_offset[j]);
        printf("\n");
    }
    for (int i = 0; i < plan->tensor_maps; i++) {
        const tensor_layout *t = &plan->tensor_map[i].layout;
        printf("    map %d %s %" PRIuPTR " %d %d %d", plan->tensor_map[i].offset, t->name, (uintptr_t)t->data,
               t->element_bytes, t->rank, t->swizzle);
        for (int j = 0; j < t->rank; j++) printf(" %" PRIu64 " %u", t->dims[j], t->box[j]);
        for (int j = 0; j + 1 < t->rank; j++) printf(" %" PRIu64, t->strides[j]);
        printf("\n");
    }
    printf("    ");
    for (int32_t i = 0; i < plan->param_bytes; i++) printf("%02x", plan->params[i]);
    printf("\n");
}

int main(int argc, char **argv) {
    enum { PRODUCTS = 300, BUILT = 8 };
    static const device_props gpus[] = {
        {100, 148, 232448, 233472, 1965, 8184, 126 << 20, {{74, 33, 15}, {148, 66, -1}}},
        {100, 18, 232448, 233472, 0, 0, 18 << 20, {{0}}},
        {103, 33, 232448, 233472, 1920, 8184, 126 << 20, {{0}}}};
    static gemm_candidate all[MAX_CANDIDATES];
    static launch_plan plan;
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (int product = 0; product < PRODUCTS; product++) {
        const device_props *props = &gpus[product % 3];
        const gemm_problem p = draw_problem();
        const gemm_traits t = traits_of(&p);
        memset(all, 0, sizeof all);
        const int32_t count = sm100_candidates(&sm100_b200, props, &t, all);
        int32_t first = 0;
        for (int32_t i = 1; i < count; i++)
            if (candidate_precedes(&all[i], &all[first])) first = i;
        printf("%" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64 ": %d candidates, first %d\n", p.m, p.n, p.k, p.l,
               count, first);
        for (int32_t i = 0; i < count; i++) {
            print_candidate(&all[i]);
            if (i != first && i % BUILT != product % BUILT) continue;
            memset(&plan, 0, sizeof plan);
            launch_plan_init(&plan);
            sm100_build(props, &p, &all[i], &plan);
            print_plan(&plan);
        }
    }
    return 0;
}
