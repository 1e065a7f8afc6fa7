/* Modelled time of one sm100 GEMM on a B200, back to back with programmatic dependent launch, in microseconds. Nothing
 * in it was measured on a B200; benchmarks/b200_constants.py has the source of each constant. C11 and C++17.
 *
 * A call takes the gap between calls, the first byte's latency, a main phase as long as the slowest of DRAM, L2,
 * ingress of an SM, tensor core and cp.async warps, then the last stage, the sum over split-K and the stores. */
#ifndef NVFP4_SM100_MODEL_H
#define NVFP4_SM100_MODEL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/sm100/config.h"
#include "plan/math.h"

/* Name, value. */
#define SM100_MODEL_CONSTANTS(X)                                                                                       \
    X(clock_ghz, 1.95)                                                                                                 \
    X(dram_tb_s, 7.25)                                                                                                 \
    X(first_byte_us, 0.55)                                                                                             \
    X(ingress_b_clk, 60.0)                                                                                             \
    X(l2_tb_s, 13.3)                                                                                                   \
    X(mma_column_cycles, 0.5)                                                                                          \
    X(shared_b_clk, 128.0)                                                                                             \
    X(mma_fill_1, 137.0)                                                                                               \
    X(mma_fill_2, 173.0)                                                                                               \
    X(tcgen05_cp_cycles, 16.0)                                                                                         \
    X(commit_cycles, 30.0)                                                                                             \
    X(barrier_cycles, 88.5)                                                                                            \
    X(tcgen05_ld_cycles, 62.6)                                                                                         \
    X(column_store_b_clk, 20.0)                                                                                        \
    X(row_store_b_clk, 15.0)                                                                                           \
    X(remote_b_clk, 21.0)                                                                                              \
    X(remote_latency_cycles, 270.0)                                                                                    \
    X(cluster_barrier_cycles, 365.0)                                                                                   \
    X(prologue_us, 0.7)                                                                                                \
    X(dependent_gap_us, 0.77)                                                                                          \
    X(exit_overlap_us, 0.35)                                                                                           \
    X(cp_async_cycles, 4.0)

typedef struct sm100_model {
#define X(name, value) double name;
    SM100_MODEL_CONSTANTS(X)
#undef X
} sm100_model;

static const sm100_model sm100_b200 = {
#define X(name, value) value,
    SM100_MODEL_CONSTANTS(X)
#undef X
};

enum { SM100_GPCS = 8 };

typedef struct sm100_model_input {
    int64_t mma_m, mma_n, k, l; /* rows of mma_a and of mma_b (sm100/config.h); at least 1 */
    int32_t sm_count;
    int32_t cta_group, mma_tile_n, stages, accumulators;
    int32_t swap_ab;
    int32_t split_k;            /* 1, 2, 4 or 8; at most ceil(k / SM100_STAGE_K) */
    int32_t cp_async;           /* scales are loaded by cp.async */
    int32_t cp_async_values;    /* and so are values */
    int32_t co_resident;        /* an SM holds two CTAs: at most 113 KB of shared memory and 256 columns */
    int32_t partials_in_stages; /* as the schedule has it */
    int32_t output_bytes;       /* of an element */
} sm100_model_input;

/* Clusters that fit on the device at a time: those of two and more lie in one GPC, over which SMs are spread in pairs.
 */
static inline int64_t sm100_clusters_that_fit(int32_t sm_count, int32_t cluster, int32_t per_sm) {
    int64_t fit = 0, pairs = sm_count / 2;
    if (cluster == 1) return (int64_t)sm_count * per_sm;
    for (int i = 0; i < SM100_GPCS; i++) fit += 2 * (pairs / SM100_GPCS + (i < pairs % SM100_GPCS)) * per_sm / cluster;
    return fit;
}

/* Bytes a microsecond from DRAM with so many bytes of pipeline stages in flight in all, each idle for so long after it
 * has arrived. */
static inline double sm100_dram_rate(const sm100_model *m, double pipeline_bytes, double idle_us) {
    static const double kb[] = {0.5, 1, 2, 4, 8, 16, 32, 64, 128}; /* in flight on each of 148 SMs */
    static const double tb_s[] = {0.17, 0.32, 0.58, 1.15, 2.15, 3.6, 5.65, 7.14, 7.25};
    double x0 = 0.0, y0 = 0.0;
    for (size_t i = 0; i < sizeof kb / sizeof *kb; i++) {
        double y1 = tb_s[i] * 1e6, x1 = kb[i] * 148.0 * 1024.0 + y1 * idle_us;
        if (pipeline_bytes < x1) return y0 + (y1 - y0) * (pipeline_bytes - x0) / (x1 - x0);
        x0 = x1, y0 = y1;
    }
    return m->dram_tb_s * 1e6;
}

/* Infinity where a cluster fits nowhere. */
static inline double sm100_gemm_time_us(const sm100_model *m, const sm100_model_input *in) {
    const double clk = 1e-3 / m->clock_ghz;
    const int32_t cluster = in->cta_group * in->split_k;
    const int64_t fit = sm100_clusters_that_fit(in->sm_count, cluster, in->co_resident ? 2 : 1);
    if (fit == 0) return INFINITY;

    /* Counted work: bytes of values and of scales of 128 rows along K, then of one CTA and of the device. */
    const int64_t tiles_m = ceil_div(in->mma_m, SM100_CTA_ROWS * in->cta_group);
    const int64_t tiles_n = ceil_div(in->mma_n, in->mma_tile_n);
    const int64_t tiles = tiles_m * tiles_n * in->l;
    const int64_t k_stages = ceil_div(ceil_div(in->k, SM100_STAGE_K), in->split_k);
    const double tile_atoms = ceil_div(in->mma_tile_n, SM100_ATOM_ROWS);
    const double row = (double)in->k / 2, atom = (double)ceil_div(in->k, SM100_MMA_K) * SM100_ATOM_BYTES;
    const double atoms_a = (double)ceil_div(in->mma_m, SM100_ATOM_ROWS);
    const double atoms_b = (double)ceil_div(in->mma_n, SM100_ATOM_ROWS);
    const double a = (double)in->mma_m, b = (double)in->mma_n, l = (double)in->l;
    const double rows_a = (double)min_int(in->mma_m, SM100_CTA_ROWS);
    const double rows_b = (double)min_int(in->mma_n, in->mma_tile_n);
    const double part = (double)(k_stages * SM100_STAGE_K) / (double)in->k;
    const double ingress =
        (part < 1.0 ? part : 1.0) * (rows_a * row + rows_b / in->cta_group * row + (1 + tile_atoms) * atom);
    const double l2 = l * ((a * row + atoms_a * atom) * (double)tiles_n + b * row * (double)tiles_m +
                           (double)(tiles_m * in->cta_group * tiles_n) * tile_atoms * atom);
    const double dram = l * ((a + b) * row + (atoms_a + atoms_b) * atom);
    const double stores = l * a * b * in->output_bytes;
    const double store_bytes = rows_a * rows_b * in->output_bytes / in->split_k;

    /* The schedule. Without split-K a CTA an SM takes tile after tile; with it a cluster takes one. */
    const int persistent = in->split_k == 1;
    int64_t active = min_int(tiles, fit), rounds = ceil_div(tiles, active), launched = tiles;
    if (persistent) {
        rounds = ceil_div(tiles, min_int(fit, in->sm_count / cluster));
        active = launched = ceil_div(tiles, rounds);
    }
    const int64_t ctas = active * cluster, beside = ceil_div(ctas, in->sm_count);
    const double tiles_a_cta = (double)(rounds * beside), again = (double)(rounds - 1);

    const double one =
        max_double(in->mma_tile_n * m->mma_column_cycles,
                   (SM100_CTA_ROWS + in->mma_tile_n / in->cta_group) * (SM100_MMA_K / 2) / m->shared_b_clk);
    const double fill = in->cta_group == 2 ? m->mma_fill_2 : m->mma_fill_1;
    const double copies = SM100_STAGE_ATOMS * (1 + tile_atoms) * m->tcgen05_cp_cycles;
    const double products = SM100_STAGE_ATOMS * one, stage = max_double(products, copies);
    const double idle = (stage + fill + m->commit_cycles + 2 * m->barrier_cycles) * clk;
    const double last = (2 * m->barrier_cycles + m->commit_cycles + copies + products + fill) * clk;
    /* Only the first load from tensor memory is exposed. Under split-K each CTA or pair sends the columns that it does
     * not keep, and adds up what it receives. */
    const double stored = store_bytes / (in->swap_ab ? m->column_store_b_clk : m->row_store_b_clk);
    const double epilogue = (m->tcgen05_ld_cycles + stored) * clk;
    const double others = (double)SM100_CTA_ROWS * in->mma_tile_n * 4 * (in->split_k - 1) / in->split_k;
    const double exchanged = m->remote_b_clk * (in->split_k == 8 ? 0.55 : in->split_k == 4 ? 0.7 : 1.0);
    const double barrier = in->partials_in_stages ? m->cluster_barrier_cycles : 0.0;
    const double sending = m->tcgen05_ld_cycles + m->remote_latency_cycles + others / exchanged;
    const double reduction = persistent ? 0.0 : (barrier + sending + others / m->shared_b_clk) * clk;
    const double tail = last + reduction + epilogue;

    /* The main phase: pipelines fill at the full rate, and refill as stages are released. */
    const int64_t filled_stages = min_int(in->stages, persistent ? k_stages * rounds : k_stages);
    const double pipeline_bytes =
        (double)(ctas * filled_stages) * SM100_STAGE_BYTES(in->cta_group, in->mma_tile_n) * dram / l2;
    const double at_once = dram < pipeline_bytes ? dram : pipeline_bytes, peak = m->dram_tb_s * 1e6;
    const double lanes = (in->cp_async_values ? 20.0 : 4.0) * (SM100_CTA_ROWS + in->mma_tile_n);
    double busy_us = (at_once + stores) / peak + (dram - at_once) / sm100_dram_rate(m, pipeline_bytes, idle);
    double mma = tiles_a_cta * (double)k_stages * stage * clk;
    if (persistent && in->accumulators == 1) mma += again * (last + epilogue);
    if (persistent && in->accumulators > 1) busy_us = max_double(busy_us, (tiles_a_cta - 1) * epilogue);
    busy_us = max_double(busy_us, max_double(l2 / (m->l2_tb_s * 1e6), ingress * tiles_a_cta / m->ingress_b_clk * clk));
    busy_us = max_double(busy_us, mma);
    if (in->cp_async)
        busy_us = max_double(busy_us, tiles_a_cta * (double)k_stages * lanes / 32 * m->cp_async_cycles * clk);

    if (!persistent) busy_us += again * (m->prologue_us + m->first_byte_us + tail);
    const double exposed = 2 * launched <= fit ? 0.0 : m->prologue_us - m->exit_overlap_us;
    return m->dependent_gap_us + exposed + m->first_byte_us + busy_us + tail;
}

#endif
