/* The competition's dual product on the current device, as a product of one group with an activation: the package's own
 * kernels and plan (kernels/sm100/grouped.cu, grouped_plan.c), their tensor maps and the launch.
 *
 * B1 and B2 are two allocations, and the kernels take two matrices of one. The first of the two is the one with the
 * lower address; the distance between them is the stride from matrix to matrix. */
#include "contest/device.h"
#include "contest/dual_instantiations.h"
#include "contest/dual_launch.h"
#include "kernels/sm100/grouped.cu"
#include "kernels/sm100/grouped_plan.c"

namespace {

const contest_kernel kernels[] = {
#define X(id, cta_group, ...) {(const void *)nvfp4_##id, SM100_GROUPED_THREADS(cta_group), cta_group},
    SM100_GROUPED_CONFIGS(X)
#undef X
};

/* first: the index of the matrix at the lower address. */
grouped_problem problem_of(const contest_dual_product &of, int first) {
    grouped_problem p = {};
    gemm_problem &g = p.g;
    g.m = of.m, g.n = of.n, g.k = of.k, g.l = 2;
    g.a = (const uint8_t *)of.a, g.a_pitch = of.a_pitch;
    g.b = (const uint8_t *)of.b[first], g.b_pitch = of.b_pitch;
    g.b_batch = (int64_t)((uintptr_t)of.b[!first] - (uintptr_t)of.b[first]);
    g.scale_a = (const uint8_t *)of.sfa, g.scale_b = (const uint8_t *)of.sfb[first];
    g.scale_a_pitch = g.scale_b_pitch = of.k / SM100_MMA_K * SM100_ATOM_BYTES;
    g.scale_b_batch = (int64_t)((uintptr_t)of.sfb[!first] - (uintptr_t)of.sfb[first]);
    g.out = of.c, g.out_pitch = of.c_pitch;
    g.alpha_value = 1, g.scale_layout = NVFP4_128X4, g.out_type = NVFP4_FP16, g.aligned16 = 1;
    p.a_rows = of.m, p.scale_a_rows = ceil_div(of.m, SM100_ATOM_ROWS) * SM100_ATOM_ROWS;
    p.groups = 1, p.parts = 2;
    p.has_activation = 1, p.activation = NVFP4_SILU, p.limit = INFINITY, p.activation_alpha = 1;
    return p;
}

/* A pair of CTAs loads scales by a tensor map, which takes their distance too. */
bool reaches_scales(const gemm_candidate &c, const gemm_problem &g) {
    return kernels[c.kernel].largest_cluster == 1 || (g.scale_b_batch > 0 && g.scale_b_batch < TENSOR_STRIDE_END);
}

/* The candidate with the least modelled time; false: there is none. The contest refuses dependent launch. */
bool choose(const device_props &props, const grouped_problem &p, gemm_candidate *best) {
    const sm100_model plain = sm100_without_pdl(&sm100_b200);
    gemm_traits traits = traits_of(&p.g);
    traits.groups = 1;
    bool found = false;
    for (const grouped_config &config : configs) {
        gemm_candidate c;
        if (!list_one(&plain, &props, &traits, &config, &c) || !reaches_scales(c, p.g)) continue;
        if (!found || candidate_precedes(&c, best)) *best = c;
        found = true;
    }
    return found;
}

} // namespace

std::string contest_dual(const contest_dual_product &of) {
    static const contest_device here(kernels, CONFIGS);
    const std::string why_not = here.why_not(of.device);
    if (!why_not.empty()) return why_not;
    const int first = (uintptr_t)of.b[1] < (uintptr_t)of.b[0];
    product_problem problem = {};
    problem.grouped = problem_of(of, first);
    gemm_candidate candidate;
    if (!choose(here.props, problem.grouped, &candidate))
        return "there are more tiles than the kernel counts, or b1 and b2 are 2^40 bytes apart";
    launch_plan plan;
    launch_plan_init(&plan);
    sm100_grouped_build(&problem, &candidate, &plan);
    auto &schedule = *(sm100_grouped_schedule *)(plan.params + plan.step[0].param_offset[1]);
    schedule.up_is_first = first;
    schedule.numbers.limit = schedule.numbers.up_limit = INFINITY;
    return here.launch(plan);
}
