/* The modelled times of the sm120 and sm80 kernels, and of experts on a B200, for sm120_model.py, which compiles it.
 * Reads lines "GPU M N K GROUPS PARTS A16", GPU an index of gpus[], the B200 behind them, GROUPS 0 for a plain product,
 * and A16 1 for a bf16 A.
 * Prints for each the single-call times and the kernels that the GPU's own backend and sm80 rank first; then those of
 * the product of groups and its activation, in one launch if that is what is planned, and on sm120 in two; and that of
 * groups with a bf16 A on a B200 whose SMs load at the rate of its memory. Nothing was measured on these GPUs. */
#include <stdio.h>

#include "kernels/sm100/units_plan.h"
#include "kernels/sm120/plan.h"
#include "kernels/sm80/plan.h"

extern const gemm_backend sm100_backend, sm120_backend, sm80_backend;

static const device_props gpus[] = {
    {.compute_capability = 120,
     .sm_count = 170,
     .shared_per_block = 99 << 10,
     .shared_per_sm = 100 << 10,
     .clock_mhz = 2407,
     .memory_gb_s = 1792,
     .l2_bytes = 96 << 20},
    {.compute_capability = 120,
     .sm_count = 188,
     .shared_per_block = 99 << 10,
     .shared_per_sm = 100 << 10,
     .clock_mhz = 2617,
     .memory_gb_s = 1792,
     .l2_bytes = 128 << 20},
    {.compute_capability = 121,
     .sm_count = 48,
     .shared_per_block = 99 << 10,
     .shared_per_sm = 100 << 10,
     .clock_mhz = 2540,
     .memory_gb_s = 273,
     .l2_bytes = 24 << 20},
    {.compute_capability = 100,
     .sm_count = 148,
     .shared_per_block = 227 << 10,
     .shared_per_sm = 228 << 10,
     .clock_mhz = 1965,
     .memory_gb_s = 8184,
     .l2_bytes = 126 << 20},
};

static gemm_candidate first_of(const gemm_backend *backend, const device_props *props, const gemm_traits *traits) {
    static gemm_candidate all[MAX_CANDIDATES];
    const int32_t count = backend->planners[traits->product_kind]->candidates(props, traits, all);
    gemm_candidate first = all[0];
    for (int32_t i = 1; i < count; i++)
        if (candidate_precedes(&all[i], &first)) first = all[i];
    return first;
}

/* The product that these traits are of, with an activation. Rows are dense. */
static grouped_problem gated_of(const gemm_traits *t) {
    const int64_t row = t->k / 2, a_row = t->a_type == VALUES_E2M1 ? row : t->k * 2;
    return (grouped_problem){.g = {.m = t->m,
                                   .n = t->n,
                                   .k = t->k,
                                   .l = t->l,
                                   .a_type = t->a_type,
                                   .a_pitch = a_row,
                                   .b_pitch = row,
                                   .b_batch = t->n * row,
                                   .out_type = NVFP4_BF16,
                                   .aligned16 = 1,
                                   .product_kind = PRODUCT_GROUPED},
                             .groups = t->groups,
                             .parts = (int32_t)(t->l / t->groups),
                             .has_activation = 1};
}

/* The times with the activation, in as many launches as are planned, and in two. */
static void gated_times(const gemm_backend *backend, const device_props *props, const gemm_traits *t,
                        const gemm_candidate *product, double us[2]) {
    const sm120_model_input in = {.mma_m = t->n, .mma_n = t->m, .l = t->l / t->groups, .output_bytes = t->output_bytes};
    const grouped_problem p = gated_of(t);
    gemm_candidate both;
    us[0] = us[1] = product->single_us + sm120_gated_us(&sm120_published, props, &in);
    if (backend->planners[PRODUCT_GROUPED]->with_activation(props, &p, product, &both)) us[0] = both.single_us;
}

/* The time of the units kernels of groups on a B200 if loads under way are no limit. */
static double unlimited_us(const device_props *props, const gemm_traits *t) {
    static gemm_candidate all[MAX_CANDIDATES];
    const units_target target = sm100_units(&sm100_b200, props);
    grouped_units_model model = grouped_units_model_by_data_sheet(&target.sheet);
    model.tb_s = INFINITY;
    const int32_t count = grouped_units_candidates(&model, &target.grouped, props, t, all);
    double least = INFINITY;
    for (int32_t i = 0; i < count; i++)
        if (all[i].single_us < least) least = all[i].single_us;
    return least;
}

int main(void) {
    long long m, n, k;
    int gpu, groups, parts, a16;
    while (scanf("%d %lld %lld %lld %d %d %d", &gpu, &m, &n, &k, &groups, &parts, &a16) == 7) {
        const gemm_traits traits = {.m = m,
                                    .n = n,
                                    .k = k,
                                    .l = groups ? (int64_t)groups * parts : 1,
                                    .output_bytes = 2,
                                    .tma_values = 1,
                                    .a_type = a16 ? NVFP4_BF16 : VALUES_E2M1,
                                    .product_kind = groups ? PRODUCT_GROUPED : PRODUCT_GEMM,
                                    .groups = groups};
        const gemm_backend *backend = gpus[gpu].compute_capability == 100 ? &sm100_backend : &sm120_backend;
        const gemm_candidate own = first_of(backend, &gpus[gpu], &traits);
        const gemm_candidate portable = first_of(&sm80_backend, &gpus[gpu], &traits);
        double gated[2] = {0, 0};
        if (groups) gated_times(backend, &gpus[gpu], &traits, &own, gated);
        const double unlimited = a16 && groups ? unlimited_us(&gpus[gpu], &traits) : own.single_us;
        printf("%.17g %s %.17g %s %.17g %.17g %.17g\n", own.single_us, own.name, portable.single_us, portable.name,
               gated[0], gated[1], unlimited);
    }
    return 0;
}
