/* Modelled time of one sm100 GEMM on a B200, in microseconds: back to back, with programmatic dependent
 * launch. Nothing in it was measured on a B200. C11 and C++17.
 *
 * sm100_work_of counts what a call makes the machine do, sm100_times_of turns counts into times. A call takes the gap
 * between calls, the first byte's latency, a main loop as long as the slowest of DRAM, L2, ingress of an SM, tensor
 * core, cp.async warps and overlapped epilogues, then the last stage, the sum over split-K and the stores. */
#ifndef NVFP4_SM100_MODEL_H
#define NVFP4_SM100_MODEL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "common/device_props.h"
#include "common/math.h"
#include "kernels/sm100/config.h"

/* Name, value, unit, source. Numbers in brackets are sections of the notes on B200s that collect published
 * measurements. "H200" was measured there by benchmarks/launch_terms.cu. A constant changes when a better source is
 * found, never to reach a result. */
#define SM100_MODEL_CONSTANTS(X)                                                                                       \
    X(clock_ghz, 1.95, "GHz", "SM clock while SemiAnalysis measured, 1.93 to 1.98 (4)")                                \
    X(dram_tb_s, 7.25, "TB/s", "best of the TMA reads, 7.06 to 7.31 (4.1)")                                            \
    X(first_byte_us, 0.55, "us", "cold latency: gather4 546 ns, LDGSTS 550 to 620, a small TMA load 500 (4.1)")        \
    X(ingress_b_clk, 60.0, "B/clk", "into one SM's shared memory: 46 seen, 60 inferred, 64 the port (4.2)")            \
    X(l2_tb_s, 14.2, "TB/s",                                                                                           \
      "SemiAnalysis' tma2dmcast sweep: sectors read from L2, 4 CTAs sharing each without multicast")                   \
    X(mma_column_cycles, 0.5, "clk", "a row of mma_b, 64 along K; bounded by shared memory reads of operands (4.4)")   \
    X(shared_b_clk, 128.0, "B/clk", "shared memory of one SM (4.5)")                                                   \
    X(mma_fill_1, 137.0, "clk", "latency of an MMA above N/2, cta_group::1 (4.4)")                                     \
    X(mma_fill_2, 173.0, "clk", "the same with cta_group::2, M = 256 (4.4)")                                           \
    X(tcgen05_cp_cycles, 16.0, "clk", "assumed: tcgen05.cp writes 2 KB at 128 B/clk, overlapping MMAs (4.5: none)")    \
    X(commit_cycles, 30.0, "clk", "tcgen05.commit (4.5)")                                                              \
    X(barrier_cycles, 88.5, "clk", "mbarrier, from arrival to the end of the wait (4.5)")                              \
    X(tcgen05_ld_cycles, 62.6, "clk", "up to 32 columns and the wait: tcgen05.st's 49.8 taken for ld's, 12.8 (4.5)")   \
    X(column_store_b_clk, 20.0, "B/clk", "H200, 112 SMs: fp16 where a lane is a column of C, 64 bytes a warp and row") \
    X(row_store_b_clk, 15.0, "B/clk",                                                                                  \
      "where a lane is a row of C: H200 7.5 with 16 bytes a lane; 32, whole sectors, assumed twice that")              \
    X(bulk_store_b_clk, 32.0, "B/clk", "bulk async copy out of an SM's shared memory (4.2)")                           \
    X(remote_b_clk, 21.0, "B/clk", "to another SM of a cluster of two (4.2); an H200 has 20")                          \
    X(remote_latency_cycles, 270.0, "clk",                                                                             \
      "H200: st.async to another CTA until its mbarrier's wait ends, less the bytes' time")                            \
    X(cluster_barrier_cycles, 365.0, "clk", "H200: barrier.cluster, 356 to 374 for 2, 4 and 8 CTAs")                   \
    X(prologue_us, 0.7, "us", "barriers, tensor memory, descriptors (2.9, derived)")                                   \
    X(plain_gap_us, 3.04, "us",                                                                                        \
      "without PDL: tiny CUB kernels back to back, 4.09 (4.6), less the 1.05 that they take beyond an H200's gap")     \
    X(dependent_gap_us, 0.77, "us",                                                                                    \
      "H200, launch_dependents after the wait, stores' drain included; no B200's GEMM was timed")                      \
    X(early_trigger_us, 0.15, "us", "H200: further gap with launch_dependents before the wait, 0.1 to 0.3")            \
    X(exit_overlap_us, 0.35, "us", "H200: of a prologue, hidden by the drain where CTAs are not co-resident")          \
    X(cp_async_cycles, 4.0, "clk", "assumed: cp.async of 16 bytes a lane at 128 B/clk, and no less for fewer")

typedef struct sm100_model {
#define X(name, ...) double name;
    SM100_MODEL_CONSTANTS(X)
#undef X
} sm100_model;

static const sm100_model sm100_b200 = {
#define X(name, value, ...) value,
    SM100_MODEL_CONSTANTS(X)
#undef X
};

typedef struct sm100_model_input {
    int64_t mma_m, mma_n, k, l; /* rows of mma_a and of mma_b (sm100/config.h); at least 1 */
    int32_t cta_group, mma_tile_n, stages, accumulators;
    int32_t swap_ab;
    int32_t split_k;            /* 1, 2, 4 or 8; at most ceil(k / SM100_STAGE_K) */
    int32_t cp_async;           /* scales are loaded by cp.async */
    int32_t cp_async_values;    /* and so are values */
    int32_t multicast;          /* tiles of a cluster that share what L2 sends of mma_a's values */
    int32_t co_resident;        /* an SM holds two CTAs: at most 113 KB of shared memory and 256 columns */
    int32_t partials_in_stages; /* as the schedule has it */
    int32_t output_bytes;       /* of an element */
} sm100_model_input;

/* How C leaves a CTA: a lane stores a row of C, or a column, or bulk async copies do. */
enum { SM100_ROW_STORES, SM100_COLUMN_STORES, SM100_BULK_STORES };

/* Counted work: of one tile and of its busiest CTA, except where a comment says device. */
typedef struct sm100_work {
    int64_t tiles;       /* device; a cluster computes `multicast` at a time */
    int64_t k_stages;    /* of one CTA */
    int32_t cluster;     /* CTAs */
    int32_t ctas_per_sm; /* that fit at a time */
    int32_t cta_group, mma_tile_n, stages, accumulators, split_k, multicast;
    int32_t partials_in_stages;
    int32_t tcgen05_cp;    /* a stage */
    int32_t stores_as;     /* SM100_ROW_STORES ... */
    double stage_bytes;    /* of a CTA's pipeline */
    double ingress;        /* bytes into shared memory */
    double dram;           /* device, bytes read */
    double loaded;         /* device, into shared memory */
    double l2;             /* device, bytes read; multicast bytes count once */
    double stores;         /* device, bytes of C */
    double store_bytes;    /* of C */
    double partials_bytes; /* that a CTA sends */
    double cp_async;       /* warp instructions a stage */
} sm100_work;

/* Microseconds. The parts of the main loop overlap: the longest counts. */
typedef struct sm100_times {
    double first_byte;
    double dram, l2, ingress, mma, cp_async; /* main loop */
    double filled;                           /* of dram: first bytes of all pipeline stages */
    double drain;                            /* main loop: epilogues that overlap the next tile */
    double again;                            /* of further clusters on the same SMs: all but the main loop */
    double last_stage, reduction, epilogue;
    int32_t resident; /* CTAs of the next call find room while these run */
    int32_t padding_;
} sm100_times;

/* Clusters that run at a time with one or two CTAs an SM: as the device says, or as others said. A cluster lies in one
 * GPC; GPCs differ, and some pairs of SMs join no larger cluster. By cuOccupancyMaxActiveClusters 148-SM parts (B200,
 * GB200, B300) have room for 74, 33 and 15 of 2, 4 and 8, an H200 of 132 SMs for 28 to 30 of 4. Parts of other sizes
 * are given the least of these shares. */
static inline int64_t sm100_clusters_that_fit(const device_props *props, int32_t cluster, int32_t per_sm) {
    const int64_t sms = props->sm_count;
    const int32_t one = cluster > 1 ? props->clusters[0][cluster / 4] : 0;
    const int32_t two = cluster > 1 ? props->clusters[1][cluster / 4] : 0;
    const int64_t fit = one            ? max_int(one, 0)
                        : cluster == 4 ? (sms == 148 ? 33 : sms * 28 / 132)
                        : cluster == 8 ? sms * 15 / 148
                                       : sms / cluster;
    return per_sm == 1 ? fit : two ? max_int(two, 0) : 2 * fit;
}

/* Bytes a microsecond from DRAM with so many bytes of pipeline stages in flight in all, each idle for so long after it
 * has arrived. The rate is linear between measured points (4.1; the middle of a range), which hold for the latency and
 * peak they were measured at and scale with both. */
static inline double sm100_dram_rate(const sm100_model *m, double pipeline_bytes, double idle_us) {
    static const double kb[] = {0.5, 1, 2, 4, 8, 16, 32, 64, 128}; /* in flight on each of 148 SMs */
    static const double tb_s[] = {0.17, 0.32, 0.58, 1.15, 2.15, 3.6, 5.65, 7.14, 7.25};
    const double measured_peak = 7.25, measured_first_byte_us = 0.55, peak = m->dram_tb_s * 1e6;
    const double latency_scale = m->dram_tb_s * m->first_byte_us / (measured_peak * measured_first_byte_us);
    double x0 = 0.0, y0 = 0.0;
    for (size_t i = 0; i < sizeof kb / sizeof *kb; i++) {
        double y1 = tb_s[i] / measured_peak * peak, x1 = kb[i] * 148.0 * 1024.0 * latency_scale + y1 * idle_us;
        if (pipeline_bytes < x1) return y0 + (y1 - y0) * (pipeline_bytes - x0) / (x1 - x0);
        x0 = x1, y0 = y1;
    }
    return peak;
}

/* See the schedule in config.h. */
static inline sm100_work sm100_work_of(const sm100_model_input *in) {
    const int64_t tiles_m = ceil_div(in->mma_m, SM100_CTA_ROWS * in->cta_group);
    const int64_t tiles_n = ceil_div(in->mma_n, in->mma_tile_n);
    const double tile_atoms = ceil_div(in->mma_tile_n, SM100_ATOM_ROWS);
    /* Bytes of a row of values, and of scales of 128 rows. */
    const double row = (double)in->k / 2, atom = (double)ceil_div(in->k, SM100_MMA_K) * SM100_ATOM_BYTES;
    const double atoms_a = (double)ceil_div(in->mma_m, SM100_ATOM_ROWS);
    const double atoms_b = (double)ceil_div(in->mma_n, SM100_ATOM_ROWS);
    const double a = (double)in->mma_m, b = (double)in->mma_n, l = (double)in->l;
    const double rows_a = (double)min_int(in->mma_m, SM100_CTA_ROWS);
    const double rows_b = (double)min_int(in->mma_n, in->mma_tile_n);
    sm100_work w;
    w.tiles = tiles_m * tiles_n * in->l;
    w.k_stages = ceil_div(ceil_div(in->k, SM100_STAGE_K), in->split_k);
    w.cluster = in->cta_group * in->multicast * in->split_k;
    w.ctas_per_sm = in->co_resident ? 2 : 1;
    w.cta_group = in->cta_group;
    w.mma_tile_n = in->mma_tile_n;
    w.stages = in->stages;
    w.accumulators = in->accumulators;
    w.split_k = in->split_k;
    w.multicast = in->multicast;
    w.partials_in_stages = in->partials_in_stages;
    w.tcgen05_cp = SM100_STAGE_ATOMS * (1 + (int32_t)tile_atoms);
    w.stores_as = in->swap_ab ? SM100_COLUMN_STORES : SM100_ROW_STORES;
    w.stage_bytes = SM100_STAGE_BYTES(in->cta_group, in->mma_tile_n);
    const double k_share = (double)(w.k_stages * SM100_STAGE_K) / (double)in->k;
    w.ingress =
        (k_share < 1.0 ? k_share : 1.0) * (rows_a * row + rows_b / in->cta_group * row + (1 + tile_atoms) * atom);
    w.dram = l * ((a + b) * row + (atoms_a + atoms_b) * atom);
    w.loaded = l * ((a * row + atoms_a * atom) * (double)tiles_n + b * row * (double)tiles_m +
                    (double)(tiles_m * in->cta_group * tiles_n) * tile_atoms * atom);
    w.l2 = w.loaded - l * a * row * (double)(tiles_n - tiles_n / in->multicast);
    w.stores = l * a * b * in->output_bytes;
    w.store_bytes = rows_a * rows_b * in->output_bytes / in->split_k;
    /* Under split-K each CTA or pair sends the columns that it does not keep. */
    w.partials_bytes = (double)SM100_CTA_ROWS * in->mma_tile_n * 4 * (in->split_k - 1) / in->split_k;
    const double lanes = (in->cp_async_values ? 20.0 : 4.0) * (SM100_CTA_ROWS + in->mma_tile_n);
    w.cp_async = in->cp_async ? lanes / 32 : 0.0;
    return w;
}

/* `again` is infinite where a cluster fits nowhere. */
static inline sm100_times sm100_times_of(const sm100_model *m, const sm100_work *w, const device_props *props) {
    const double clk = 1e-3 / m->clock_ghz;
    const int64_t apart = sm100_clusters_that_fit(props, w->cluster, 1); /* a CTA an SM */
    const int64_t fit = w->ctas_per_sm == 1 ? apart : sm100_clusters_that_fit(props, w->cluster, 2);
    sm100_times t = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    if (apart == 0 || fit == 0) {
        t.again = INFINITY;
        return t;
    }

    /* The schedule. Without split-K a CTA an SM takes tile after tile; with it a cluster takes one. */
    const int persistent = w->split_k == 1;
    int64_t clusters = ceil_div(w->tiles, w->multicast), active = min_int(clusters, fit);
    int64_t rounds = ceil_div(clusters, active), launched = clusters;
    if (persistent) {
        rounds = ceil_div(clusters, apart);
        active = launched = ceil_div(clusters, rounds);
    }
    const int64_t ctas = active * w->cluster, ctas_beside = ceil_div(active, apart);
    const double tiles_per_sm = (double)(rounds * ctas_beside), further_rounds = (double)(rounds - 1);
    t.resident = 2 * launched <= fit;

    const double operand_bytes = (SM100_CTA_ROWS + w->mma_tile_n / w->cta_group) * (SM100_MMA_K / 2);
    const double mma_cycles = max_double(w->mma_tile_n * m->mma_column_cycles, operand_bytes / m->shared_b_clk);
    const double fill = w->cta_group == 2 ? m->mma_fill_2 : m->mma_fill_1;
    const double cp_cycles = w->tcgen05_cp * m->tcgen05_cp_cycles, mma_stage_cycles = SM100_STAGE_ATOMS * mma_cycles;
    const double stage = max_double(mma_stage_cycles, cp_cycles);
    t.first_byte = m->first_byte_us;
    t.last_stage = (2 * m->barrier_cycles + m->commit_cycles + cp_cycles + mma_stage_cycles + fill) * clk;
    /* Only the first load from tensor memory is exposed. */
    const double store_b_clk = w->stores_as == SM100_COLUMN_STORES ? m->column_store_b_clk
                               : w->stores_as == SM100_ROW_STORES  ? m->row_store_b_clk
                                                                   : m->bulk_store_b_clk;
    t.epilogue = (m->tcgen05_ld_cycles + w->store_bytes / store_b_clk) * clk;
    /* H200: 20, 14 and 11 B/clk where clusters of 2, 4 and 8 all exchange by st.async at once. */
    const double exchanged = m->remote_b_clk * (w->split_k == 8 ? 0.55 : w->split_k == 4 ? 0.7 : 1.0);
    const double barrier = w->partials_in_stages ? m->cluster_barrier_cycles : 0.0;
    const double sending = m->tcgen05_ld_cycles + m->remote_latency_cycles + w->partials_bytes / exchanged;
    if (!persistent) t.reduction = (barrier + sending + w->partials_bytes / m->shared_b_clk) * clk;

    /* The main loop: pipelines fill at the full rate, and refill as stages are released. A stage is idle from its last
     * byte's arrival until its next load. */
    const double other_pair = w->multicast > 1 ? m->remote_latency_cycles : 0.0;
    const double idle = (stage + fill + m->commit_cycles + 2 * m->barrier_cycles + other_pair) * clk;
    const int64_t filled_stages = min_int(w->stages, persistent ? w->k_stages * rounds : w->k_stages);
    const double pipeline_bytes = (double)(ctas * filled_stages) * w->stage_bytes * w->dram / w->loaded;
    const double at_once = w->dram < pipeline_bytes ? w->dram : pipeline_bytes;
    const double refilled = (w->dram - at_once) / sm100_dram_rate(m, pipeline_bytes, idle);
    t.filled = at_once / (m->dram_tb_s * 1e6);
    t.dram = (at_once + w->stores) / (m->dram_tb_s * 1e6) + refilled;
    t.l2 = w->l2 / (m->l2_tb_s * 1e6);
    t.ingress = w->ingress * tiles_per_sm / m->ingress_b_clk * clk;
    t.mma = tiles_per_sm * (double)w->k_stages * stage * clk;
    t.cp_async = tiles_per_sm * (double)w->k_stages * w->cp_async * m->cp_async_cycles * clk;
    if (!persistent)
        t.again = further_rounds * (m->prologue_us + t.first_byte + t.last_stage + t.reduction + t.epilogue);
    else if (w->accumulators > 1)
        t.drain = (tiles_per_sm - 1) * t.epilogue;
    else if (SM100_EPILOGUE_GROUPS(w->mma_tile_n) == 1)
        t.mma += further_rounds * (t.last_stage + t.epilogue);
    else { /* some columns are stored, the others in registers, when the next tile begins */
        const double drained = SM100_DRAINED_COLUMNS, columns = w->mma_tile_n / 2.0;
        const double loads = drained / SM100_DRAINED_CHUNK * m->tcgen05_ld_cycles * clk;
        t.drain = (tiles_per_sm - 1) * t.epilogue;
        t.mma += further_rounds * (t.last_stage + (1 - drained / columns) * t.epilogue + loads);
    }
    return t;
}

static inline double sm100_mainloop_us(const sm100_times *t) {
    return max_double(max_double(max_double(t->dram, t->l2), max_double(t->ingress, t->mma)),
                      max_double(t->cp_async, t->drain));
}

/* From the moment when a call may read its inputs. */
static inline double sm100_body_us(const sm100_times *t) {
    return t->first_byte + sm100_mainloop_us(t) + t->again + t->last_stage + t->reduction + t->epilogue;
}

/* The part of the prologue that the previous call does not hide. */
static inline double sm100_exposed_us(const sm100_model *m, const sm100_times *t) {
    return t->resident ? 0.0 : max_double(0.0, m->prologue_us - m->exit_overlap_us);
}

/* Back to back, with programmatic dependent launch. */
static inline double sm100_call_us(const sm100_model *m, const sm100_times *t) {
    return m->dependent_gap_us + sm100_exposed_us(m, t) + sm100_body_us(t);
}

/* The same machine where a call starts when the one before has ended: without programmatic dependent launch. */
static inline sm100_model sm100_without_pdl(const sm100_model *m) {
    sm100_model plain = *m;
    plain.dependent_gap_us = m->plain_gap_us + m->prologue_us;
    plain.exit_overlap_us = m->prologue_us; /* whether hidden or not, it is in the gap */
    return plain;
}

/* Infinite where a cluster fits nowhere. */
static inline double sm100_gemm_time_us(const sm100_model *m, const device_props *props, const sm100_model_input *in) {
    const sm100_work work = sm100_work_of(in);
    const sm100_times times = sm100_times_of(m, &work, props);
    return sm100_call_us(m, &times);
}

#endif
