/* The models and planners of csrc/ as a shared library for c_model.py, which compiles it. Functions take and fill the
 * structs of csrc/; describe() lists how the compiler lays them out. -DSM100_GEMM_CONFIGS(X)=... replaces the
 * instantiations of the sm100 kernels. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/sm100/grouped_model.h"
#include "kernels/sm100/plan.c"
#include "kernels/sm90/plan.h"

const device_props b200_props = {.compute_capability = 100,
                                 .sm_count = 148,
                                 .shared_per_block = 227 << 10,
                                 .shared_per_sm = 228 << 10,
                                 .clock_mhz = 1965,
                                 .memory_gb_s = 8184,
                                 .l2_bytes = 126 << 20};
const device_props h200_props = {.compute_capability = 90,
                                 .sm_count = 132,
                                 .shared_per_block = 227 << 10,
                                 .shared_per_sm = 228 << 10,
                                 .clock_mhz = 1980,
                                 .memory_gb_s = 4814,
                                 .l2_bytes = 60 << 20};
const device_props h100_props = {.compute_capability = 90,
                                 .sm_count = 132,
                                 .shared_per_block = 227 << 10,
                                 .shared_per_sm = 228 << 10,
                                 .clock_mhz = 1980,
                                 .memory_gb_s = 3352,
                                 .l2_bytes = 50 << 20};
/* By their data sheets: HBM3 of 4 TB/s. */
const device_props gh200_props = {.compute_capability = 90,
                                  .sm_count = 132,
                                  .shared_per_block = 227 << 10,
                                  .shared_per_sm = 228 << 10,
                                  .clock_mhz = 1980,
                                  .memory_gb_s = 4022,
                                  .l2_bytes = 60 << 20};
const device_props h20_props = {.compute_capability = 90,
                                .sm_count = 78,
                                .shared_per_block = 227 << 10,
                                .shared_per_sm = 228 << 10,
                                .clock_mhz = 1980,
                                .memory_gb_s = 4022,
                                .l2_bytes = 60 << 20};

const sm100_model sm100_model_defaults = {
#define X(name, value, ...) .name = value,
    SM100_MODEL_CONSTANTS(X)
#undef X
};

/* The time of a dense group with an fp16 activation of two matrices, by the best instantiation of sm100/grouped.cu, and
 * the rows of its tile. */
double sm100_dense_gated_us(const sm100_model *m, const device_props *props, int64_t rows, int64_t columns, int64_t k,
                            int32_t *tile_rows) {
    double best = INFINITY;
    const struct {
        int32_t cta_group, matrices, mma_tile_n, stages, accumulators;
    } configs[] = {
#define X(id, ...) {__VA_ARGS__},
        SM100_GROUPED_CONFIGS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const sm100_grouped_input in = {.columns = columns,
                                        .rows = rows,
                                        .k = k,
                                        .groups = 1,
                                        .parts = 2,
                                        .is_dense = 1,
                                        .cta_group = configs[i].cta_group,
                                        .matrices = 2,
                                        .mma_tile_n = configs[i].mma_tile_n,
                                        .accumulators = configs[i].accumulators,
                                        .output_bytes = 2};
        const double us = sm100_grouped_time_us(m, props, &in);
        if (configs[i].matrices == 2 && us < best) best = us, *tile_rows = configs[i].mma_tile_n;
    }
    return best;
}

/* Fills the traits of contiguous operands with scales in the tensor core's layout, and an fp16 result. */
void contiguous_traits(int64_t m, int64_t n, int64_t k, int64_t l, int32_t a_type, gemm_traits *out) {
    static const uint8_t memory[16] __attribute__((aligned(16)));
    const int64_t atoms = ceil_div(k, SM100_MMA_K) * SM100_ATOM_BYTES, a_row = a_type == VALUES_E2M1 ? k / 2 : k * 2;
    const gemm_problem p = {.m = m,
                            .n = n,
                            .k = k,
                            .l = l,
                            .a = memory,
                            .b = memory,
                            .a_pitch = a_row,
                            .b_pitch = k / 2,
                            .a_batch = m * a_row,
                            .b_batch = n * k / 2,
                            .scale_a_pitch = atoms,
                            .scale_b_pitch = atoms,
                            .scale_a_batch = ceil_div(m, SM100_ATOM_ROWS) * atoms,
                            .scale_b_batch = ceil_div(n, SM100_ATOM_ROWS) * atoms,
                            .out_pitch = n * 2,
                            .scale_layout = NVFP4_128X4,
                            .out_type = NVFP4_FP16,
                            .aligned16 = 1,
                            .a_type = a_type};
    *out = traits_of(&p);
}

void count_sm100_work(const device_props *props, const gemm_traits *traits, int32_t kernel, int32_t swap_ab,
                      int32_t split_k, int32_t ctas_per_sm, sm100_work *out) {
    const sm100_config *config = &sm100_configs[kernel];
    sm100_tiling tiling = {0};
    tile(props, traits, config, swap_ab, split_k, 0, &tiling);
    if (ctas_per_sm && ctas_per_sm != 1 + tiling.room.for_next_call)
        tile(props, traits, config, swap_ab, split_k, 1, &tiling);
    const sm100_model_input in = model_input(traits, config, swap_ab, split_k, &tiling.room);
    *out = sm100_work_of(&in);
}

int64_t clusters_that_fit(const device_props *props, int32_t cluster, int32_t per_sm) {
    return sm100_clusters_that_fit(props, cluster, per_sm);
}

void sm100_model_without_pdl(const sm100_model *model, sm100_model *out) {
    *out = sm100_without_pdl(model);
}

/* Microseconds of a call, as it may be measured. */
typedef struct sm100_call {
    double mainloop, exposed; /* parts of all of them: sm100_mainloop_us, sm100_exposed_us */
    double dependent;         /* back to back, with programmatic dependent launch */
    double plain;             /* back to back, without */
    double kernel;            /* as a profiler's time stamps have it: without what lies between kernels */
} sm100_call;

void time_sm100_work(const sm100_model *model, const device_props *props, const sm100_work *work, sm100_times *times,
                     sm100_call *call) {
    *times = sm100_times_of(model, work, props);
    call->mainloop = sm100_mainloop_us(times);
    call->exposed = sm100_exposed_us(model, times);
    call->dependent = sm100_call_us(model, times);
    call->kernel = model->prologue_us + sm100_body_us(times);
    call->plain = model->plain_gap_us + call->kernel;
}

/* ---- Hopper: not with other instantiations of sm100 ---- */

#ifndef ONLY_SM100

void sm90_constants_on(const device_props *props, sm90_model *out) {
    *out = sm90_model_on(props);
}

const char *sm90_constants_are(const device_props *props) {
    return sm90_model_name(props);
}

/* Fills the traits of rows in groups, of a 16-bit A as nvfp4_shape has them: l matrices in all. */
void grouped_traits(int64_t rows, int64_t n, int64_t k, int64_t l, int32_t groups, int32_t a_type, gemm_traits *out) {
    contiguous_traits(rows, n, k, l, a_type, out);
    out->product_kind = PRODUCT_GROUPED;
    out->broadcast_a = BROADCAST_VALUES | BROADCAST_SCALES;
    out->groups = groups;
}

static int by_time(const void *x, const void *y) {
    return candidate_precedes(x, y) ? -1 : 1;
}

/* All plans of a product on a Hopper GPU, sm80's too, from the chosen one on; is_gated: of gate and up with their
 * activation, where `fused[i]` says whether plan i computes it too. At most 2 * MAX_CANDIDATES. */
int32_t hopper_plans(const sm90_model *model, const device_props *props, const gemm_traits *t, int32_t is_gated,
                     gemm_candidate *out, int32_t *fused) {
    extern const gemm_backend sm80_backend;
    const gemm_planner *sm80 = sm80_backend.planners[t->product_kind];
    int32_t count = sm90_candidates(model, props, t, out);
    if (sm80->a_types >> t->a_type & 1) count += sm80->candidates(props, t, out + count);
    qsort(out, (size_t)count, sizeof *out, by_time);
    for (int32_t i = 0; i < count; i++) {
        const gemm_candidate of = out[i];
        fused[i] = is_gated && of.backend == NVFP4_BACKEND_SM90 && sm90_with_activation(model, props, t, &of, &out[i]);
    }
    return count;
}

/* A measured plan of a product; us: 0 where it was not measured. */
typedef struct timed_plan {
    int32_t backend, kernel, swap_ab, split_k, tile_n, fused;
    double single_us, graph_us;
} timed_plan;

typedef struct timed_product {
    gemm_traits traits;
    int32_t is_gated, first, end; /* of its plans */
    int32_t padding_;
} timed_product;

/* The number that a fit makes small: squared relative errors, of back-to-back times where a plan has one, weighted
 * towards the fastest plans of a product; and by how much the chosen plan takes longer than the fastest, more where it
 * is over 1 %. */
double hopper_loss(const sm90_model *model, const device_props *props, const timed_product *products, int32_t count,
                   const timed_plan *plans) {
    static gemm_candidate all[2 * MAX_CANDIDATES];
    static int32_t fused[2 * MAX_CANDIDATES];
    double loss = 0;
    for (const timed_product *p = products; p < products + count; p++) {
        const int32_t listed = hopper_plans(model, props, &p->traits, p->is_gated, all, fused);
        double single = INFINITY, graph = INFINITY;
        for (int32_t j = p->first; j < p->end; j++) {
            if (plans[j].single_us > 0) single = fmin(single, plans[j].single_us);
            if (plans[j].graph_us > 0) graph = fmin(graph, plans[j].graph_us);
        }
        int chosen = 0;
        for (int32_t i = 0; i < listed; i++)
            for (int32_t j = p->first; j < p->end; j++) {
                const timed_plan *m = &plans[j];
                if (m->backend != all[i].backend || m->kernel != all[i].kernel || m->swap_ab != all[i].swap_ab ||
                    m->split_k != all[i].split_k || m->tile_n != all[i].tile_n || m->fused != fused[i])
                    continue;
                if (m->graph_us > 0)
                    loss += pow(graph / m->graph_us, 4) * pow(log(fmax(all[i].modelled_us, 0.5) / m->graph_us), 2);
                else
                    loss += pow(single / m->single_us, 4) * pow(log(all[i].single_us / m->single_us), 2);
                if (!chosen++) {
                    const double longer = m->graph_us > 0 ? m->graph_us / graph : m->single_us / single;
                    loss += 200 * pow(fmax(longer - 1.01, 0.0), 2) + 3 * (longer - 1.0);
                }
                break;
            }
    }
    return loss;
}

#endif

/* One line a fact: its kind, then what names it and its values, divided by tabs. */
const char *describe(void) {
    static char text[1 << 16];
    size_t at = 0;
#define LINE(...)                           at += (size_t)snprintf(text + at, sizeof text - at, __VA_ARGS__)
#define NUMBER(name)                        LINE("number\t%s\t%lld\n", #name, (long long)name)
#define MEANING(name, unit, meaning)        LINE("constant\tsm90_model\t%s\t%s\t%s\n", #name, unit, meaning);
#define CONSTANT(name, value, unit, source) LINE("constant\tsm100_model\t%s\t%s\t%s\n", #name, unit, source);
#define CONFIG(id, cta_group, mma_tile_n, stages, accumulators, cp_async, multicast)                                   \
    LINE("config\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", #id, cta_group, mma_tile_n, stages, accumulators, cp_async, multicast);
#define SIZE(owner)  LINE("size\t%s\t%zu\n", #owner, sizeof(owner))
#define KIND(member) _Generic(member, int32_t: 'i', int64_t: 'q', double: 'd', const char *: 's', default: 'b')
#define FIELD(owner, member)                                                                                           \
    LINE("field\t%s\t%s\t%c\t%zu\t%zu\n", #owner, #member, KIND(((owner *)0)->member), offsetof(owner, member),        \
         sizeof(((owner *)0)->member))

    NUMBER(SM100_STAGE_K);
    NUMBER(SM100_MMA_K);
    NUMBER(SM100_STAGE_ATOMS);
    NUMBER(SM100_ATOM_BYTES);
    NUMBER(SM100_ATOM_ROWS);
    NUMBER(SM100_CTA_ROWS);
    NUMBER(SM100_BULK_STORES);
    NUMBER(MAX_CANDIDATES);
    NUMBER(VALUES_E2M1);
    NUMBER(NVFP4_FP16);
    NUMBER(NVFP4_BF16);
    SM90_MODEL_CONSTANTS(MEANING)
    SM100_MODEL_CONSTANTS(CONSTANT)
    SM100_GEMM_CONFIGS(CONFIG)

    SIZE(sm90_model);
#define X(name, ...) FIELD(sm90_model, name);
    SM90_MODEL_CONSTANTS(X)
#undef X
    SIZE(sm100_model);
#define X(name, ...) FIELD(sm100_model, name);
    SM100_MODEL_CONSTANTS(X)
#undef X

    SIZE(device_props);
    FIELD(device_props, compute_capability);
    FIELD(device_props, sm_count);
    FIELD(device_props, shared_per_block);
    FIELD(device_props, shared_per_sm);
    FIELD(device_props, clock_mhz);
    FIELD(device_props, memory_gb_s);
    FIELD(device_props, l2_bytes);
    FIELD(device_props, clusters);

    SIZE(gemm_traits);
    FIELD(gemm_traits, m);
    FIELD(gemm_traits, n);
    FIELD(gemm_traits, k);
    FIELD(gemm_traits, l);
    FIELD(gemm_traits, scale_layout);
    FIELD(gemm_traits, output_bytes);
    FIELD(gemm_traits, tma_values);
    FIELD(gemm_traits, output_is_column);
    FIELD(gemm_traits, broadcast_a);
    FIELD(gemm_traits, broadcast_b);
    FIELD(gemm_traits, a_type);
    FIELD(gemm_traits, product_kind);
    FIELD(gemm_traits, by_batch);
    FIELD(gemm_traits, groups);

    SIZE(gemm_candidate);
    FIELD(gemm_candidate, modelled_us);
    FIELD(gemm_candidate, single_us);
    FIELD(gemm_candidate, name);
    FIELD(gemm_candidate, reason);
    FIELD(gemm_candidate, grid);
    FIELD(gemm_candidate, workspace);
    FIELD(gemm_candidate, backend);
    FIELD(gemm_candidate, kernel);
    FIELD(gemm_candidate, swap_ab);
    FIELD(gemm_candidate, split_k);
    FIELD(gemm_candidate, prefetch_stages);
    FIELD(gemm_candidate, ctas_per_sm);
    FIELD(gemm_candidate, tile_m);
    FIELD(gemm_candidate, tile_n);
    FIELD(gemm_candidate, tile_k);
    FIELD(gemm_candidate, stages);
    FIELD(gemm_candidate, batch_invariant);
    FIELD(gemm_candidate, quantizes);
    FIELD(gemm_candidate, tiling);

#ifndef ONLY_SM100
    SIZE(timed_plan);
    FIELD(timed_plan, backend);
    FIELD(timed_plan, kernel);
    FIELD(timed_plan, swap_ab);
    FIELD(timed_plan, split_k);
    FIELD(timed_plan, tile_n);
    FIELD(timed_plan, fused);
    FIELD(timed_plan, single_us);
    FIELD(timed_plan, graph_us);

    SIZE(timed_product);
    FIELD(timed_product, traits);
    FIELD(timed_product, is_gated);
    FIELD(timed_product, first);
    FIELD(timed_product, end);
    FIELD(timed_product, padding_);
#endif

    SIZE(sm100_work);
    FIELD(sm100_work, tiles);
    FIELD(sm100_work, k_stages);
    FIELD(sm100_work, cluster);
    FIELD(sm100_work, ctas_per_sm);
    FIELD(sm100_work, cta_group);
    FIELD(sm100_work, mma_tile_n);
    FIELD(sm100_work, stages);
    FIELD(sm100_work, accumulators);
    FIELD(sm100_work, split_k);
    FIELD(sm100_work, multicast);
    FIELD(sm100_work, partials_in_stages);
    FIELD(sm100_work, tcgen05_cp);
    FIELD(sm100_work, stores_as);
    FIELD(sm100_work, stage_bytes);
    FIELD(sm100_work, ingress);
    FIELD(sm100_work, dram);
    FIELD(sm100_work, loaded);
    FIELD(sm100_work, l2);
    FIELD(sm100_work, stores);
    FIELD(sm100_work, store_bytes);
    FIELD(sm100_work, partials_bytes);
    FIELD(sm100_work, cp_async);

    SIZE(sm100_times);
    FIELD(sm100_times, first_byte);
    FIELD(sm100_times, dram);
    FIELD(sm100_times, l2);
    FIELD(sm100_times, ingress);
    FIELD(sm100_times, mma);
    FIELD(sm100_times, cp_async);
    FIELD(sm100_times, filled);
    FIELD(sm100_times, drain);
    FIELD(sm100_times, again);
    FIELD(sm100_times, last_stage);
    FIELD(sm100_times, reduction);
    FIELD(sm100_times, epilogue);
    FIELD(sm100_times, resident);
    FIELD(sm100_times, padding_);

    SIZE(sm100_call);
    FIELD(sm100_call, mainloop);
    FIELD(sm100_call, exposed);
    FIELD(sm100_call, dependent);
    FIELD(sm100_call, plain);
    FIELD(sm100_call, kernel);
    return text;
}
