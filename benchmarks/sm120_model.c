/* The modelled times of the sm120 and sm80 kernels, and of experts on a B200, for sm120_model.py, which compiles it.
 * Reads lines "GPU M N K GROUPS PARTS", GPU an index of gpus[], the B200 behind them, and GROUPS 0 for a plain product.
 * Prints for each the single-call times and the kernels that the GPU's own backend and sm80 rank first; then those of
 * the product of groups and its activation, in one launch if that is what is planned, and on sm120 in two. Nothing was
 * measured on these GPUs. */
#include <stdio.h>

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
    const int64_t row = t->k / 2;
    return (grouped_problem){.g = {.m = t->m,
                                   .n = t->n,
                                   .k = t->k,
                                   .l = t->l,
                                   .a_type = t->a_type,
                                   .a_pitch = row,
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

int main(void) {
    long long m, n, k;
    int gpu, groups, parts;
    while (scanf("%d %lld %lld %lld %d %d", &gpu, &m, &n, &k, &groups, &parts) == 6) {
        const gemm_traits traits = {.m = m,
                                    .n = n,
                                    .k = k,
                                    .l = groups ? (int64_t)groups * parts : 1,
                                    .output_bytes = 2,
                                    .tma_values = 1,
                                    .a_type = VALUES_E2M1,
                                    .product_kind = groups ? PRODUCT_GROUPED : PRODUCT_GEMM,
                                    .groups = groups};
        const gemm_backend *backend = gpus[gpu].compute_capability == 100 ? &sm100_backend : &sm120_backend;
        const gemm_candidate own = first_of(backend, &gpus[gpu], &traits);
        const gemm_candidate portable = first_of(&sm80_backend, &gpus[gpu], &traits);
        double gated[2] = {0, 0};
        if (groups) gated_times(backend, &gpus[gpu], &traits, &own, gated);
        printf("%.17g %s %.17g %s %.17g %.17g\n", own.single_us, own.name, portable.single_us, portable.name, gated[0],
               gated[1]);
    }
    return 0;
}
