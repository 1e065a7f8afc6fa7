/* The sm100 backend's row in the table of backends: its kernels, and plan.c with the constants of a B200. */
#include "common/error.h"
#include "kernels/sm100/units_plan.h"
#include "plan/reject.h"

/* One, or, where a CTA leaves room for the next call, three. */
#define X(id, cta_group, mma_tile_n, stages, accumulators, cp_async, multicast)                                        \
    +(SM100_CO_RESIDENT(cta_group, mma_tile_n, stages, accumulators) ? 3 : 1)
_Static_assert((0 SM100_GEMM_CONFIGS(X)) * 2 * 4 <= MAX_CANDIDATES,
               "either order, four splits; with L2 prefetching or not, with room for the next call or not");
#undef X

static const kernel_entry kernels[SM100_KERNELS] = {
#define X(id, cta_group, mma_tile_n, stages, accumulators, cp_async, multicast)                                        \
    {.name = "nvfp4_" #id,                                                                                             \
     .source = "sm100_gemm",                                                                                           \
     .threads = SM100_THREADS(mma_tile_n, cp_async),                                                                   \
     .shared_bytes = SM100_SHARED_BYTES(cta_group, mma_tile_n, stages),                                                \
     .more_shared = 1,                                                                                                 \
     .ctas_per_sm = 1 + SM100_CO_RESIDENT(cta_group, mma_tile_n, stages, accumulators),                                \
     .pdl = 1},
    SM100_GEMM_CONFIGS(X)
#undef X
#define X(id, cta_group, matrices, mma_tile_n, stages, accumulators)                                                   \
    {.name = "nvfp4_" #id,                                                                                             \
     .source = "sm100_grouped",                                                                                        \
     .threads = SM100_GROUPED_THREADS(cta_group),                                                                      \
     .shared_bytes = SM100_GROUPED_SHARED_BYTES(cta_group, matrices, mma_tile_n, stages, accumulators),                \
     .pdl = 1},
        SM100_GROUPED_CONFIGS(X)
#undef X
            SM100_UNITS_CONFIGS(SM100_UNITS_ENTRY) SM100_GROUPED_UNITS_CONFIGS(SM100_GROUPED_UNITS_ENTRY)};
static const kernel_set set = {
    .kernels = kernels, .count = SM100_KERNELS, .min_capability = 100, .max_capability = 119, .optional = 1};

enum { THOR_CAPABILITY = 110, THOR_GB_S = 273, B200_GB_S = 8184, B200_SMS = 148 }; /* GB/s: peaks of the memory */

/* The constants on a device. A Thor has a B200's SMs, fewer and slower ones, and LPDDR5X, whose rate its driver may not
 * say. */
static sm100_model model_of(const device_props *props) {
    sm100_model m = sm100_b200;
    if (props->compute_capability < THOR_CAPABILITY) return m;
    m.dram_tb_s *= (props->memory_gb_s ? props->memory_gb_s : THOR_GB_S) / (double)B200_GB_S;
    if (props->clock_mhz) m.clock_ghz = props->clock_mhz * 1e-3;
    m.l2_tb_s *= m.clock_ghz / sm100_b200.clock_ghz * props->sm_count / B200_SMS;
    return m;
}

static int32_t of_units(gemm_candidate *all, int32_t count) {
    return complete_candidates(NVFP4_BACKEND_SM100, kernels, all, count);
}

static int32_t candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    const sm100_model model = model_of(props);
    if (t->a_type != VALUES_E2M1) {
        const units_target units = sm100_units(&model, props);
        return of_units(out, units_target_candidates(&units, props, t, out));
    }
    const int32_t count = sm100_candidates(&model, props, t, out);
    for (int32_t i = 0; i < count; i++) out[i].backend = NVFP4_BACKEND_SM100;
    return count;
}

/* Every kernel for an NVFP4 A adds K in the same order, 64 values at a time. Those for 16 bits do not serve every M. */
static int32_t batch_invariant(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    if (t->a_type != VALUES_E2M1) return -1;
    const int32_t split_k = batch_invariant_split_k(props, t, SM100_CTA_ROWS, SM100_STAGE_K);
    return keep_split_k(out, candidates(props, t, out), split_k);
}

static nvfp4_status reject(const device_props *props, const gemm_traits *t) {
    if (t->a_type != VALUES_E2M1) return reject_units(sm100_name, t);
    const nvfp4_status status = reject_shared_memory(sm100_name, kernels, SM100_CONFIGS, props);
    return status ? status : reject_tiles(sm100_name, t);
}

static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    if (c->kernel >= SM100_CONFIGS)
        units_build(props, problem, c, workspace, out);
    else /* partial sums of split-K stay in the cluster */
        sm100_build(props, &problem->gemm, c, out);
}

static const gemm_planner gemm = {.a_types = TAKES_E2M1 | TAKES_16_BIT,
                                  .tma_a_types = TAKES_16_BIT,
                                  .a16_rows = UNITS_MAX_M,
                                  .candidates = candidates,
                                  .batch_invariant = batch_invariant,
                                  .reject = reject,
                                  .build = build};

static int32_t grouped_candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    const sm100_model model = model_of(props);
    if (t->a_type != VALUES_E2M1) {
        const units_target units = sm100_units(&model, props);
        return of_units(out, units_target_grouped_candidates(&units, props, t, out));
    }
    const int32_t count = sm100_grouped_candidates(&model, props, t, out);
    for (int32_t i = 0; i < count; i++) out[i].backend = NVFP4_BACKEND_SM100;
    return count;
}

static int32_t grouped_batch_invariant(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    return t->a_type == VALUES_E2M1 && sm100_grouped_reaches(t) ? grouped_candidates(props, t, out) : -1;
}

static int32_t grouped_with_activation(const device_props *props, const grouped_problem *p, const gemm_candidate *of,
                                       gemm_candidate *out) {
    const sm100_model model = model_of(props);
    if (p->g.a_type != VALUES_E2M1) {
        const units_target units = sm100_units(&model, props);
        return of_units(out, units_target_in_one_launch(&units, props, p, of, out));
    }
    return sm100_grouped_with_activation(&model, props, p, of, out);
}

static int32_t grouped_with_quantized_activation(const device_props *props, const gated_grouped_quantize_problem *p,
                                                 const gemm_candidate *of, gemm_candidate *out) {
    const sm100_model model = model_of(props);
    if (of->kernel >= SM100_GROUPED_END) return 0;
    return sm100_grouped_with_quantized_activation(&model, props, p, of, out);
}

static nvfp4_status reject_grouped(const device_props *props, const gemm_traits *t) {
    if (t->a_type != VALUES_E2M1) return reject_units(sm100_name, t);
    const nvfp4_status status =
        reject_shared_memory(sm100_name, &kernels[SM100_CONFIGS], SM100_GROUPED_END - SM100_CONFIGS, props);
    if (status) return status;
    if (t->scale_layout != NVFP4_128X4)
        return REJECT_AS(NVFP4_UNSUPPORTED, "scale_layout",
                         ("is linear, which the sm100 kernels of groups do not take"),
                         ("must be 128x4, or the backend sm80"));
    if (t->k % SM100_MMA_K)
        return REJECT_AS(NVFP4_UNSUPPORTED, "b",
                         ("K is %lld, which the sm100 kernels of groups do not take", (long long)t->k),
                         ("must be a multiple of %d, or the backend sm80", SM100_MMA_K));
    if (!t->tma_values)
        return REJECT_AS(NVFP4_UNSUPPORTED, "a",
                         ("or b has rows that do not begin at multiples of 16 bytes, as the sm100 kernels of groups "
                          "need them"),
                         ("must be aligned so, or the backend must be sm80"));
    return reject_tiles(sm100_name, t);
}

static void build_grouped(const device_props *props, const product_problem *problem, const gemm_candidate *c,
                          void *workspace, launch_plan *out) {
    if (c->kernel >= SM100_GROUPED_END)
        grouped_units_build(props, problem, c, workspace, out);
    else
        sm100_grouped_build(problem, c, out);
}

static const gemm_planner grouped = {.a_types = TAKES_E2M1 | TAKES_16_BIT,
                                     .takes_by_batch = 1,
                                     .tma_a_types = TAKES_E2M1 | TAKES_16_BIT,
                                     .candidates = grouped_candidates,
                                     .batch_invariant = grouped_batch_invariant,
                                     .with_activation = grouped_with_activation,
                                     .with_quantized_activation = grouped_with_quantized_activation,
                                     .reject = reject_grouped,
                                     .build = build_grouped};

const gemm_backend sm100_backend = {
    BACKEND_ROW(sm100),
    .kernels = &set,
    .planners = {[PRODUCT_GEMM] = &gemm, [PRODUCT_GROUPED] = &grouped},
    .model = model_of_data_sheets,
    .roundings = {.per_block = 3, .block_k = 64, .constant = 19},
    .a16_roundings = UNITS_ROUNDINGS,
};
